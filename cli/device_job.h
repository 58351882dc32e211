// SPDX-License-Identifier: Apache-2.0
// A job's tensors where its plan wants them: copied to a device before a run and the results back
// after it; for host devices the job's own memory. Also which device the options name.
#ifndef TESSERA_CLI_DEVICE_JOB_H_
#define TESSERA_CLI_DEVICE_JOB_H_

#include <stdbool.h>

#include <tessera/tessera.h>

#include "attention_job.h"
#include "message.h"
#include "problem_options.h"
#include "tests/support/device_memory.h"

// The device of --device, or of the backend that --backend names, or the host.
tsr_device cli_device(tsr_context *context, const problem_options *options);

// "host", "cuda:1".
const char *cli_device_text(tsr_device device, char *buffer, size_t capacity);

enum { DEVICE_JOB_BLOCKS = IN_COUNT + 3 };

typedef struct device_job {
  const tsr_gpu *gpu;  // NULL: host memory
  attention_job *job;
  tsr_args args;  // to run with
  void *block[DEVICE_JOB_BLOCKS];
} device_job;

// Copies inputs and the initial state of outputs. False with a message; then nothing is held.
bool device_job_open(device_job *at, tsr_device device, attention_job *job, cli_message *message);

// Waits for the run, so that its time can be taken.
bool device_job_wait(const device_job *at, cli_message *message);

// Copies results into the job's outputs.
bool device_job_fetch(const device_job *at, cli_message *message);
void device_job_close(device_job *at);

#endif  // TESSERA_CLI_DEVICE_JOB_H_
