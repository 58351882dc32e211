/* SPDX-License-Identifier: Apache-2.0
 *
 * Plan and run of the backward pass: where keys are cut, estimated cost, workspace, and the phases
 * of a run. Called by backend.c. */
#ifndef TESSERA_CPU_BACKWARD_H_
#define TESSERA_CPU_BACKWARD_H_

#include "backward_job.h"
#include "device.h"
#include "runner.h"

typedef struct tsri_cpu_backward_plan {
  const tsr_resolved *problem;
  tsri_cpu_kernels kernels;
  tsri_cpu_runner runner;
  tsri_cpu_backward_tiles tiles;
} tsri_cpu_backward_plan;

/* What a plan would be for this problem, with at most most_keys keys per tile; amx: 1 for the kernel
 * on AMX tiles, which has most_keys. */
tsri_cpu_backward_plan tsri_cpu_backward_plan_of(const tsr_resolved *problem,
                                                 const tsri_cpu_kernels *kernels,
                                                 const tsri_cpu_runner *runner,
                                                 const tsri_cpu_device *device, int amx,
                                                 int64_t most_keys);

/* Workspace of one run in bytes; INT64_MAX if it cannot be. */
int64_t tsri_cpu_backward_workspace(const tsri_cpu_backward_plan *plan);

/* Cost: operations (masks counted, gradients that are not wanted left out), slow-memory traffic,
 * seconds. */
void tsri_cpu_backward_estimate(const tsri_cpu_backward_plan *plan, const tsri_cpu_device *device,
                                tsr_estimate *estimate);

tsr_status tsri_cpu_backward_run(const tsri_cpu_backward_plan *plan, const tsr_args *args,
                                 tsr_reason *reason);

#endif /* TESSERA_CPU_BACKWARD_H_ */
