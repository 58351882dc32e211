/* SPDX-License-Identifier: Apache-2.0
 *
 * Running independent tasks on threads: the caller's runner if the context has one, else OpenMP,
 * else (inside a parallel region of the caller's, or with one thread) the calling thread alone. */
#ifndef TESSERA_CPU_RUNNER_H_
#define TESSERA_CPU_RUNNER_H_

#include <stdint.h>

#include "tessera/backend.h"

typedef struct tsri_cpu_runner {
  const tsr_runner *caller; /* NULL: OpenMP */
  int32_t threads;          /* at least 1; workers are numbered below it */
} tsri_cpu_runner;

/* The runner that a host asks for. */
tsri_cpu_runner tsri_cpu_runner_of(const tsr_host *host);

/* The same, with fewer threads if so much work is not worth waking them: one per 10 to 20 microseconds of it,
 * which is what a sleeping thread costs, if that is less than a quarter of them, else all. flops: operations; bytes: slow-memory traffic. A caller's
 * runner stays as it is. */
tsri_cpu_runner tsri_cpu_runner_for(const tsri_cpu_runner *runner, double flops, double bytes);

/* A few threads more in such a team, by half at most, if then `tasks` have one each instead of two for some. A team
 * stays one of a quarter of all threads, or all. */
void tsri_cpu_runner_round(tsri_cpu_runner *limited, const tsri_cpu_runner *all, int64_t tasks);

/* task(arg, index, worker) once for every index in [0, count), in about rising order, no worker
 * twice at once; returns when all have returned. Returns 0, or the caller's runner's failure. */
int tsri_cpu_run(const tsri_cpu_runner *runner,
                 void (*task)(void *arg, int64_t index, int32_t worker), void *arg, int64_t count);

#endif /* TESSERA_CPU_RUNNER_H_ */
