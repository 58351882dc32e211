/* SPDX-License-Identifier: Apache-2.0
 *
 * Plan and run of the split kernel: forward for few rows per KV head against many keys, which are
 * cut into chunks so that every thread has work, and for 8-bit caches of any shape. Called by
 * backend.c. */
#ifndef TESSERA_CPU_DECODE_H_
#define TESSERA_CPU_DECODE_H_

#include "device.h"
#include "kernels.h"
#include "runner.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct tsri_cpu_split_plan {
  const tsr_resolved *problem;
  tsri_cpu_kernels kernels;
  tsri_cpu_runner runner;
  tsri_cpu_tiles tiles;
  int64_t narrow_keys; /* per step of the narrow form */
} tsri_cpu_split_plan;

/* What a plan would be for this problem, with at most most_rows rows and most_keys keys per step.
 */
tsri_cpu_split_plan tsri_cpu_split_plan_of(const tsr_resolved *problem,
                                           const tsri_cpu_kernels *kernels,
                                           const tsri_cpu_runner *runner,
                                           const tsri_cpu_device *device, int64_t most_rows,
                                           int64_t most_keys);

/* Workspace of one run in bytes; INT64_MAX if it cannot be. */
int64_t tsri_cpu_split_workspace(const tsri_cpu_split_plan *plan);

/* Cost: operations (masks counted), slow-memory traffic, seconds. */
void tsri_cpu_split_estimate(const tsri_cpu_split_plan *plan, const tsri_cpu_device *device,
                             tsr_estimate *estimate);

/* Whether a problem that asks for the same bits whatever the threads (and the batch, if
 * batch_invariant) takes this kernel where another one could: the choice may not depend on them. */
int tsri_cpu_split_preferred(const tsr_resolved *problem);

tsr_status tsri_cpu_split_run(const tsri_cpu_split_plan *plan, const tsr_args *args,
                              tsr_reason *reason);

#ifdef __cplusplus
}
#endif

#endif /* TESSERA_CPU_DECODE_H_ */
