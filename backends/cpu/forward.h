/* SPDX-License-Identifier: Apache-2.0
 *
 * Plan and run of the forward pass: tile sizes from the caches, estimated cost, workspace, and the
 * parallel loop over tasks. Called by backend.c. */
#ifndef TESSERA_CPU_FORWARD_H_
#define TESSERA_CPU_FORWARD_H_

#include "device.h"
#include "kernels.h"
#include "runner.h"

typedef struct tsri_cpu_plan {
  const tsr_resolved *problem;
  tsri_cpu_kernels kernels;
  tsri_cpu_runner runner;
  tsri_cpu_tiles tiles;
} tsri_cpu_plan;

/* What a plan would be for this problem, with at most most_rows rows and most_keys keys per tile;
 * amx: 1 for the kernel on AMX tiles, whose keys per step are most_keys. */
tsri_cpu_plan tsri_cpu_forward_plan(const tsr_resolved *problem, const tsri_cpu_kernels *kernels,
                                    const tsri_cpu_runner *runner, const tsri_cpu_device *device,
                                    int amx, int64_t most_rows, int64_t most_keys);

/* Allowed keys of an average row of the largest sequence, from up to 64 rows. */
double tsri_cpu_mean_keys(const tsr_problem *p);

/* Clears the rows of O, LSE and the maxima that lie in a slot but belong to no query. Returns 0, or
 * the runner's failure. */
int tsri_cpu_clear_unused(const tsri_cpu_runner *runner, const tsr_resolved *problem,
                          const tsr_args *args);

/* Workspace of one run in bytes; INT64_MAX if it cannot be. */
int64_t tsri_cpu_forward_workspace(const tsri_cpu_plan *plan);

/* Cost: operations (masks counted), slow-memory traffic, seconds. */
void tsri_cpu_forward_estimate(const tsri_cpu_plan *plan, const tsri_cpu_device *device,
                               tsr_estimate *estimate);

tsr_status tsri_cpu_forward_run(const tsri_cpu_plan *plan, const tsr_args *args,
                                tsr_reason *reason);

#endif /* TESSERA_CPU_FORWARD_H_ */
