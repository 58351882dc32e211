// SPDX-License-Identifier: Apache-2.0
//
// Backend "fakegpu": the reference behind the manners of a GPU backend, for tests of the device path
// on the fake driver (fake_libcuda.c). Its device kind is CUDA, runs are enqueued and return at once,
// memory must be the right device's, a workspace is made when none is given. Under a real driver, or none,
// it is absent. FAKE_GPU spoils it on purpose: "overrun" writes past O, "underrun" before it, "wrong"
// changes one element, "deaf" returns without computing.
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/dtype.h"
#include "tessera/backend.h"

/* The reference's entry, linked into this module. */
const tsr_backend *tsr_backend_entry_reference(uint32_t host_abi);

enum { MEMORY_TYPE = 2, ORDINAL = 9, TYPE_DEVICE = 2 };

static struct {
  int (*launch)(void *stream, void (*function)(void *), void *argument, size_t size);
  int (*attribute)(void *value, int attribute, uint64_t pointer);
  int (*synchronize)(void);
  int (*set_current)(void *context);
  int (*retain)(void **context, int device);
  int (*get_current)(void **context);
} cuda;

static const tsr_backend *reference;
static const char *spoiled;

static bool find(void *library, const char *name, void *into) {
  void *symbol = dlsym(library, name);
  memcpy(into, &symbol, sizeof symbol);
  return symbol != NULL;
}

static tsr_status fake_probe(const tsr_host *host, void **state, tsr_reason *detail) {
  void *library = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
  tsr_status status;
  if (!library || !find(library, "fakeCudaLaunch", &cuda.launch) ||
      !find(library, "cuPointerGetAttribute", &cuda.attribute) ||
      !find(library, "cuCtxSynchronize", &cuda.synchronize) ||
      !find(library, "cuCtxSetCurrent", &cuda.set_current) ||
      !find(library, "cuCtxGetCurrent", &cuda.get_current) ||
      !find(library, "cuDevicePrimaryCtxRetain", &cuda.retain)) {
    snprintf(detail->text, sizeof detail->text, "needs the fake driver of the tests");
    return TSR_STATUS_NOT_FOUND;
  }
  reference = tsr_backend_entry_reference(TSR_BACKEND_ABI);
  spoiled = getenv("FAKE_GPU") ? getenv("FAKE_GPU") : "";
  status = reference->probe(host, state, detail);
  if (status == TSR_STATUS_SUCCESS)
    snprintf(detail->text, sizeof detail->text, "the reference on host memory posing as a device");
  return status;
}

static void fake_close(void *state) {
  cuda.synchronize();
  reference->close(state);
}

static int32_t fake_device_count(void *state) {
  (void)state;
  return 2;
}

static tsr_status fake_device_info(void *state, int32_t index, tsr_device_info *info,
                                   tsr_reason *reason) {
  (void)state, (void)reason;
  info->device.kind = TSR_DEVICE_CUDA;
  info->device.index = index;
  snprintf(info->name, sizeof info->name, "host memory posing as device %d", (int)index);
  info->compute_units = 4;
  info->peak_flops_f32 = info->peak_flops_16 = 1e10;
  info->bandwidth = 1e10;
  return TSR_STATUS_SUCCESS;
}

/* The oracle's two rows, not the baselines, and its forward row again as one that claims to be slower. */
enum { SECOND = 2 };

static int32_t row_of(int32_t kernel) { return kernel == SECOND ? 0 : kernel; }

static tsr_status fake_kernel_info(void *state, int32_t index, tsr_kernel_info *info) {
  static const char *const names[] = {"fwd_any_rows__fakegpu", "bwd_any_rows__fakegpu",
                                      "fwd_any_rows__fakegpu_slow"};
  tsr_status status;
  if (index < 0 || index > SECOND) return TSR_STATUS_NOT_FOUND;
  status = reference->kernel_info(state, row_of(index), info);
  info->name = names[index];
  return status;
}

static tsr_status fake_supports(void *state, int32_t kernel, const tsr_resolved *problem,
                                tsr_estimate *estimate, tsr_reason *reason) {
  tsr_status status = reference->supports(state, row_of(kernel), problem, estimate, reason);
  if (kernel == SECOND) estimate->seconds *= 2;
  return status;
}

/* ------------------------------------------------------------------------------------- runs */

static bool is_of_device(const char *name, const void *pointer, int32_t device,
                         tsr_reason *reason) {
  int type = 0, owner = -1;
  if (!pointer) return true;
  if (cuda.attribute(&type, MEMORY_TYPE, (uint64_t)(uintptr_t)pointer) != 0) {
    snprintf(reason->text, sizeof reason->text,
             "%s: found host memory at %p, accepted memory of device %d", name, pointer,
             (int)device);
    return false;
  }
  cuda.attribute(&owner, ORDINAL, (uint64_t)(uintptr_t)pointer);
  if (type != TYPE_DEVICE || owner == device) return true;
  snprintf(reason->text, sizeof reason->text, "%s: found memory of device %d, accepted device %d",
           name, owner, (int)device);
  return false;
}

static bool check_pointers(const tsr_args *a, int32_t device, tsr_reason *reason) {
  const struct {
    const char *name;
    const void *pointer;
  } all[] = {{"q", a->q},
             {"k", a->k},
             {"v", a->v},
             {"bias", a->bias},
             {"mask", a->mask},
             {"block_mask", a->block_mask},
             {"alibi", a->alibi},
             {"sink", a->sink},
             {"k_scale", a->k_scale},
             {"v_scale", a->v_scale},
             {"cu_q", a->cu_q},
             {"cu_k", a->cu_k},
             {"used_q", a->used_q},
             {"used_k", a->used_k},
             {"left_pad_q", a->left_pad_q},
             {"left_pad_k", a->left_pad_k},
             {"prefix", a->prefix},
             {"diagonal", a->diagonal},
             {"page_table", a->page_table},
             {"rng_state", a->rng_state},
             {"o", a->o},
             {"lse", a->lse},
             {"max_logit", a->max_logit},
             {"dout", a->dout},
             {"dlse", a->dlse},
             {"dq", a->dq},
             {"dk", a->dk},
             {"dv", a->dv},
             {"dbias", a->dbias},
             {"dsink", a->dsink},
             {"workspace", a->workspace}};
  for (size_t i = 0; i < sizeof all / sizeof all[0]; ++i)
    if (!is_of_device(all[i].name, all[i].pointer, device, reason)) return false;
  return true;
}

typedef struct run_job {
  void *state, *plan;
  tsr_args args;
  size_t workspace;
  int64_t o_bytes; /* of a dense O */
  bool second;
} run_job;

static void spoil(const run_job *job) {
  unsigned char *o = (unsigned char *)job->args.o;
  if (job->args.dout || !o || job->o_bytes == 0) return;
  if (strcmp(spoiled, "overrun") == 0) o[job->o_bytes + 40] = 0;
  if (strcmp(spoiled, "underrun") == 0) o[-40] = 0;
  if (strcmp(spoiled, "wrong") == 0 || (job->second && strcmp(spoiled, "second") == 0))
    o[1] ^= 0x40;
}

static void run_now(void *argument) {
  run_job *job = (run_job *)argument;
  void *own = NULL;
  tsr_reason reason;
  if (strcmp(spoiled, "deaf") == 0) return;
  if (!job->args.workspace && job->workspace) {
    own = aligned_alloc(64, (job->workspace + 63) / 64 * 64);
    if (!own) abort();
    job->args.workspace = own;
  }
  if (reference->run(job->state, job->plan, &job->args, &reason) != TSR_STATUS_SUCCESS) abort();
  spoil(job);
  free(own);
}

static tsr_status sent(int result, tsr_reason *reason) {
  if (result == 0) return TSR_STATUS_SUCCESS;
  snprintf(reason->text, sizeof reason->text, "the fake driver answers %d", result);
  return TSR_STATUS_DEVICE_ERROR;
}

/* The reference's plan with what a run needs besides. */
typedef struct wrapped_plan {
  void *inner;
  const tsr_resolved *problem;
  size_t workspace;
  bool second;
} wrapped_plan;

static tsr_status fake_plan_create(void *state, int32_t kernel, const tsr_resolved *problem,
                                   void **plan, tsr_reason *reason) {
  wrapped_plan *made = (wrapped_plan *)calloc(1, sizeof *made);
  tsr_estimate estimate = {0};
  tsr_status status = TSR_STATUS_OUT_OF_MEMORY;
  if (made) status = reference->supports(state, row_of(kernel), problem, &estimate, reason);
  if (made && status == TSR_STATUS_SUCCESS)
    status = reference->plan_create(state, row_of(kernel), problem, &made->inner, reason);
  if (status != TSR_STATUS_SUCCESS) {
    if (!made) snprintf(reason->text, sizeof reason->text, "no memory for the plan");
    free(made);
    return status;
  }
  made->problem = problem;
  made->workspace = estimate.workspace;
  made->second = kernel == SECOND;
  *plan = made;
  return TSR_STATUS_SUCCESS;
}

/* Enqueued runs still use the plan. */
static void fake_plan_destroy(void *state, void *plan) {
  wrapped_plan *made = (wrapped_plan *)plan;
  cuda.synchronize();
  reference->plan_destroy(state, made->inner);
  free(made);
}

static tsr_status fake_run(void *state, void *plan, const tsr_args *args, tsr_reason *reason) {
  const wrapped_plan *made = (const wrapped_plan *)plan;
  const tsr_problem *p = &made->problem->p;
  run_job job = {.state = state, .plan = made->inner, .args = *args};
  void *context = NULL, *mine = NULL;
  int result;
  if (!check_pointers(args, made->problem->device.index, reason))
    return TSR_STATUS_INVALID_ARGUMENT;
  job.workspace = made->workspace;
  job.second = made->second;
  job.o_bytes = p->batch * p->heads_q * p->seq_q * p->dim_v * tsri_dtype_bytes(p->o.dtype);
  if (p->arrays & TSR_ARRAY_CU_Q)
    job.o_bytes = p->heads_q * p->total_q * p->dim_v * tsri_dtype_bytes(p->o.dtype);
  /* As a backend on the CUDA runtime would: its own device, whatever was current. */
  cuda.get_current(&context);
  if (cuda.retain(&mine, made->problem->device.index) == 0) cuda.set_current(mine);
  result = cuda.launch(args->stream, run_now, &job, sizeof job);
  cuda.set_current(context);
  return sent(result, reason);
}

typedef struct merge_job {
  tsr_merge_problem problem;
  void *state, *o;
  float *lse;
  const void **o_parts; /* copies: the caller's arrays may go once the call has returned */
  const float **lse_parts;
} merge_job;

static void merge_now(void *argument) {
  merge_job *job = (merge_job *)argument;
  tsr_reason reason;
  reference->merge(job->state, 0, &job->problem, job->o_parts, job->lse_parts, job->o, job->lse,
                   NULL, &reason);
  free((void *)job->o_parts);
  free((void *)job->lse_parts);
}

static tsr_status fake_merge(void *state, int32_t device, const tsr_merge_problem *problem,
                             const void *const *o_parts, const float *const *lse_parts, void *o,
                             float *lse, void *stream, tsr_reason *reason) {
  const size_t bytes = (size_t)problem->parts * sizeof(void *);
  merge_job job = {.problem = *problem, .state = state, .o = o, .lse = lse};
  int64_t i;
  for (i = 0; i < problem->parts; ++i)
    if (!is_of_device("o_parts", o_parts[i], device, reason) ||
        !is_of_device("lse_parts", lse_parts[i], device, reason))
      return TSR_STATUS_INVALID_ARGUMENT;
  if (!is_of_device("o", o, device, reason) || !is_of_device("lse", lse, device, reason))
    return TSR_STATUS_INVALID_ARGUMENT;
  job.o_parts = (const void **)malloc(bytes);
  job.lse_parts = (const float **)malloc(bytes);
  if (!job.o_parts || !job.lse_parts) abort();
  memcpy((void *)job.o_parts, o_parts, bytes);
  memcpy((void *)job.lse_parts, lse_parts, bytes);
  return sent(cuda.launch(stream, merge_now, &job, sizeof job), reason);
}

typedef struct mask_job {
  tsr_dropout_problem problem;
  void *state;
  uint8_t *mask;
} mask_job;

static void mask_now(void *argument) {
  mask_job *job = (mask_job *)argument;
  tsr_reason reason;
  reference->dropout_mask(job->state, 0, &job->problem, job->mask, NULL, &reason);
}

static tsr_status fake_mask(void *state, int32_t device, const tsr_dropout_problem *problem,
                            uint8_t *mask, void *stream, tsr_reason *reason) {
  mask_job job = {*problem, state, mask};
  if (!is_of_device("mask", mask, device, reason)) return TSR_STATUS_INVALID_ARGUMENT;
  return sent(cuda.launch(stream, mask_now, &job, sizeof job), reason);
}

static const tsr_backend vtable = {
    sizeof vtable,    TSR_BACKEND_ABI,   "fakegpu",         TSR_DEVICE_CUDA,  0,
    fake_probe,       fake_close,        fake_device_count, fake_device_info, fake_kernel_info,
    fake_supports,    fake_plan_create,  fake_plan_destroy, fake_run,         fake_merge,
    fake_mask};

TSR_BACKEND_ENTRY(fakegpu) { return host_abi == TSR_BACKEND_ABI ? &vtable : NULL; }
