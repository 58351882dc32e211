// SPDX-License-Identifier: Apache-2.0
//
// The OpenMP loop of this backend, and the only one: kernels never start threads. Tasks are dealt to
// the threads in turn, and whoever is done takes what others have not begun, so uneven tasks (causal,
// packed lengths) and slow processors balance by themselves.
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
  /* A team of another size than the last one's is made anew: for libgomp threads end, or start. So all of them or
   * few, and nothing between a quarter and all. */
  if (!runner->caller && (work < of_thread * runner->threads / 4 || work < 2 * of_thread))
    limited.threads = work > of_thread ? (int32_t)(work / of_thread) : 1;
  return limited;
}

void tsri_cpu_runner_round(tsri_cpu_runner *limited, const tsri_cpu_runner *all, int64_t tasks) {
  if (limited->threads < tasks && tasks <= all->threads / 4 && tasks <= 3 * (int64_t)limited->threads / 2)
    limited->threads = (int32_t)tasks;
}

#ifdef _OPENMP
enum { most_queues = 256 };

/* Tasks of one thread, t, t + threads, t + 2 threads, ..: how many of them are taken. */
typedef struct queue {
  int64_t taken;
  char rest_of_line[64 - sizeof(int64_t)];
} queue;

/* A thread's own tasks, then what others have not begun. From call to call a task stays with its thread, in
 * whose cache the data may lie, and the end is as even as if tasks were handed out one by one. */
static void run_queues(queue *queues, int32_t worker, int32_t threads, int64_t count,
                       void (*task)(void *arg, int64_t index, int32_t worker), void *arg) {
  int32_t v;
  for (v = 0; v < threads; ++v) {
    const int32_t owner = (worker + v) % threads;
    for (;;) {
      int64_t index = __atomic_load_n(&queues[owner].taken, __ATOMIC_RELAXED) * threads + owner;
      if (index >= count) break;
      index = __atomic_fetch_add(&queues[owner].taken, 1, __ATOMIC_RELAXED) * threads + owner;
      if (index >= count) break;
      task(arg, index, worker);
    }
  }
}
#endif

int tsri_cpu_run(const tsri_cpu_runner *runner,
                 void (*task)(void *arg, int64_t index, int32_t worker), void *arg, int64_t count) {
  int64_t index;
  if (count <= 0) return 0;
  if (runner->caller) return runner->caller->run(runner->caller->user, task, arg, count);
#ifdef _OPENMP
  if (runner->threads > 1 && count > 1 && !omp_in_parallel()) {
    /* Also for fewer tasks: runner_for's reason. Not of more threads than processors, whom a caller may have named
     * without ever needing them: a thread that cannot be started ends the process. */
    const int64_t most = runner->threads <= omp_get_num_procs() || runner->threads < count ? runner->threads : count;
    queue queues[most_queues];
    int64_t q;
    if (most > most_queues) {
  #pragma omp parallel for schedule(dynamic, 1) num_threads((int)most)
      for (index = 0; index < count; ++index) task(arg, index, omp_get_thread_num());
      return 0;
    }
    for (q = 0; q < most; ++q) queues[q].taken = 0;
  #pragma omp parallel num_threads((int)most)
    run_queues(queues, omp_get_thread_num(), omp_get_num_threads(), count, task, arg);
    return 0;
  }
#endif
  for (index = 0; index < count; ++index) task(arg, index, 0);
  return 0;
}
