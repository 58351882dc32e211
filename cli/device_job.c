// SPDX-License-Identifier: Apache-2.0
// Copies to and from a device (see device_job.h). A pointer of tsr_args is replaced by the device
// block of the file tensor whose memory it is.
#include "device_job.h"

#include <stddef.h>
#include <stdio.h>
#include <string.h>

#include "tests/support/backends.h"

tsr_device cli_device(tsr_context *context, const problem_options *options) {
  if (options->device_given) return options->device;
  if (options->backend == NULL) return (tsr_device){TSR_DEVICE_HOST, 0};
  return tsr_backends_device(context, options->backend, options->device.index);
}

const char *cli_device_text(tsr_device device, char *buffer, size_t capacity) {
  if (device.kind == TSR_DEVICE_HOST) {
    snprintf(buffer, capacity, "host");
  } else {
    snprintf(buffer, capacity, "%s:%d", device.kind == TSR_DEVICE_CUDA ? "cuda" : "hip",
             device.index);
  }
  return buffer;
}

// Fields of tsr_args that a forward run may use.
static const size_t kPointers[] = {
    offsetof(tsr_args, q),          offsetof(tsr_args, k),          offsetof(tsr_args, v),
    offsetof(tsr_args, bias),       offsetof(tsr_args, mask),       offsetof(tsr_args, block_mask),
    offsetof(tsr_args, alibi),      offsetof(tsr_args, sink),       offsetof(tsr_args, q_scale),
    offsetof(tsr_args, k_scale),    offsetof(tsr_args, v_scale),    offsetof(tsr_args, cu_q),
    offsetof(tsr_args, cu_k),       offsetof(tsr_args, used_q),     offsetof(tsr_args, used_k),
    offsetof(tsr_args, left_pad_q), offsetof(tsr_args, left_pad_k), offsetof(tsr_args, prefix),
    offsetof(tsr_args, diagonal),   offsetof(tsr_args, page_table), offsetof(tsr_args, o),
    offsetof(tsr_args, lse),        offsetof(tsr_args, max_logit)};

static file_tensor *tensor_at(attention_job *job, int i) {
  file_tensor *outputs[] = {&job->o, &job->lse, &job->max_logit};
  return i < IN_COUNT ? &job->in[i] : outputs[i - IN_COUNT];
}

static void replace(tsr_args *args, const void *from, void *to) {
  for (size_t i = 0; i < sizeof kPointers / sizeof kPointers[0]; ++i) {
    char *field = (char *)args + kPointers[i];
    void *pointer;
    memcpy(&pointer, field, sizeof pointer);
    if (pointer == from) memcpy(field, &to, sizeof to);
  }
}

bool device_job_open(device_job *at, tsr_device device, attention_job *job, cli_message *message) {
  *at = (device_job){.job = job, .args = job->args};
  if (device.kind == TSR_DEVICE_HOST) return true;
  char name[32];
  cli_device_text(device, name, sizeof name);
  at->gpu = tsr_gpu_open(device);
  if (at->gpu == NULL) return cli_fail(message, "%s: %s", name, tsr_gpu_error());
  for (int i = 0; i < DEVICE_JOB_BLOCKS; ++i) {
    const file_tensor *t = tensor_at(job, i);
    if (t->data == NULL) continue;
    if (!tsr_gpu_alloc(at->gpu, TSR_GPU_DEVICE, t->bytes, &at->block[i]) ||
        !tsr_gpu_to_device(at->gpu, at->block[i], t->data, t->bytes)) {
      device_job_close(at);
      cli_fail(message, "%s: %s", name, tsr_gpu_error());
      return false;
    }
    replace(&at->args, t->data, at->block[i]);
  }
  return true;
}

bool device_job_wait(const device_job *at, cli_message *message) {
  if (at->gpu == NULL || tsr_gpu_synchronize(at->gpu)) return true;
  return cli_fail(message, "%s", tsr_gpu_error());
}

bool device_job_fetch(const device_job *at, cli_message *message) {
  for (int i = IN_COUNT; at->gpu != NULL && i < DEVICE_JOB_BLOCKS; ++i) {
    const file_tensor *t = tensor_at(at->job, i);
    if (at->block[i] != NULL && !tsr_gpu_to_host(at->gpu, t->data, at->block[i], t->bytes)) {
      return cli_fail(message, "%s", tsr_gpu_error());
    }
  }
  return true;
}

void device_job_close(device_job *at) {
  for (int i = 0; at->gpu != NULL && i < DEVICE_JOB_BLOCKS; ++i) {
    tsr_gpu_free(at->gpu, TSR_GPU_DEVICE, at->block[i]);
    at->block[i] = NULL;
  }
}
