// SPDX-License-Identifier: Apache-2.0
//
// The OpenMP loop of this backend, and the only one: kernels never start threads. Tasks are handed
// out one by one as threads become free, so uneven tasks (causal, packed lengths) balance by
// themselves.
#include "runner.h"

#ifdef _OPENMP
  #include <omp.h>
#endif

tsri_cpu_runner tsri_cpu_runner_of(const tsr_host *host) {
  tsri_cpu_runner runner;
  runner.caller = host->runner;
  if (host->runner)
    runner.threads = host->runner->threads;
  else if (host->threads > 0)
    runner.threads = host->threads;
  else
#ifdef _OPENMP
    runner.threads = omp_get_max_threads();
#else
    runner.threads = 1;
#endif
  if (runner.threads < 1) runner.threads = 1;
  return runner;
}

tsri_cpu_runner tsri_cpu_runner_for(const tsri_cpu_runner *runner, double flops, double bytes) {
  const double of_thread = 2.5e6, of_byte = 15; /* a core computes so much while it reads a byte */
  const double work = flops > bytes * of_byte ? flops : bytes * of_byte;
  tsri_cpu_runner limited = *runner;
  if (!runner->caller && work < of_thread * runner->threads)
    limited.threads = work > of_thread ? (int32_t)(work / of_thread) : 1;
  return limited;
}

int tsri_cpu_run(const tsri_cpu_runner *runner,
                 void (*task)(void *arg, int64_t index, int32_t worker), void *arg, int64_t count) {
  int64_t index;
  if (count <= 0) return 0;
  if (runner->caller) return runner->caller->run(runner->caller->user, task, arg, count);
#ifdef _OPENMP
  if (runner->threads > 1 && count > 1 && !omp_in_parallel()) {
    const int64_t most = runner->threads < count ? runner->threads : count;
  #pragma omp parallel for schedule(dynamic, 1) num_threads((int)most)
    for (index = 0; index < count; ++index) task(arg, index, omp_get_thread_num());
    return 0;
  }
#endif
  for (index = 0; index < count; ++index) task(arg, index, 0);
  return 0;
}
