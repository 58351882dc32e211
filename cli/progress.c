// SPDX-License-Identifier: Apache-2.0
// Task counting runner and the reporting thread (see progress.h).
#define _GNU_SOURCE
#include "progress.h"

#include <omp.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <time.h>
#include <unistd.h>

static struct {
  const char *what;
  double flops, seconds, start;
  bool terminal, quiet, shown, running;
  pthread_t thread;
  pthread_mutex_t lock;
  pthread_cond_t stop;
  _Atomic int64_t step;   // calls of the runner so far
  _Atomic int64_t total;  // tasks of the current call
  _Atomic int64_t done;
} g = {.lock = PTHREAD_MUTEX_INITIALIZER};

double cli_now(void) {
  struct timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static int run_tasks(void *user, void (*task)(void *arg, int64_t index, int32_t worker), void *arg,
                     int64_t count) {
  int threads = (int)(intptr_t)user;
  atomic_store(&g.total, count);
  atomic_store(&g.done, 0);
  atomic_fetch_add(&g.step, 1);
#pragma omp parallel for schedule(dynamic, 1) num_threads(threads)
  for (int64_t i = 0; i < count; ++i) {
    task(arg, i, (int32_t)omp_get_thread_num());
    atomic_fetch_add_explicit(&g.done, 1, memory_order_relaxed);
  }
  return 0;
}

tsr_runner progress_runner(int64_t threads) {
  int count = threads > 0 ? (int)threads : omp_get_max_threads();
  return (tsr_runner){.user = (void *)(intptr_t)count, .threads = count, .run = run_tasks};
}

static void show(double elapsed) {
  int64_t step = atomic_load(&g.step), total = atomic_load(&g.total), done = atomic_load(&g.done);
  char text[200];
  if (step == 0 || total == 0) {
    snprintf(text, sizeof text, "%s: %.1f s, the plan's estimate is %.1f s", g.what, elapsed,
             g.seconds);
  } else {
    double fraction = (double)done / (double)total;
    int n =
        snprintf(text, sizeof text, "%s: step %lld, %.1f %% (%lld of %lld tasks), %.1f s", g.what,
                 (long long)step, 100.0 * fraction, (long long)done, (long long)total, elapsed);
    // Speed and time left follow from the share of the tasks only while one step is the whole work.
    if (step == 1 && done > 0 && n > 0 && (size_t)n < sizeof text) {
      snprintf(text + n, sizeof text - (size_t)n, ", %.1f GFLOP/s, about %.1f s left",
               g.flops * fraction / elapsed * 1e-9, elapsed / fraction - elapsed);
    }
  }
  fprintf(stderr, g.terminal ? "\r\033[K%s" : "%s\n", text);
  fflush(stderr);
  g.shown = true;
}

static void *report(void *unused) {
  (void)unused;
  double next = 1.0;
  pthread_mutex_lock(&g.lock);
  while (g.running) {
    double until = g.start + next;
    struct timespec deadline = {.tv_sec = (time_t)until,
                                .tv_nsec = (long)((until - (double)(time_t)until) * 1e9)};
    pthread_cond_timedwait(&g.stop, &g.lock, &deadline);
    double elapsed = cli_now() - g.start;
    if (!g.running || elapsed < next) continue;
    show(elapsed);
    next = elapsed + (g.terminal ? 0.5 : 2.0);
  }
  pthread_mutex_unlock(&g.lock);
  return NULL;
}

void progress_begin(const char *what, double flops, double seconds, bool quiet) {
  g.what = what;
  g.flops = flops;
  g.seconds = seconds;
  g.quiet = quiet;
  g.terminal = isatty(STDERR_FILENO) != 0;
  g.shown = false;
  atomic_store(&g.step, 0);
  atomic_store(&g.total, 0);
  atomic_store(&g.done, 0);
  g.start = cli_now();
  if (quiet) return;
  pthread_condattr_t attributes;
  pthread_condattr_init(&attributes);
  pthread_condattr_setclock(&attributes, CLOCK_MONOTONIC);
  pthread_cond_init(&g.stop, &attributes);
  pthread_condattr_destroy(&attributes);
  g.running = true;
  // Without a thread the work is done all the same, only silently.
  if (pthread_create(&g.thread, NULL, report, NULL) != 0) {
    g.running = false;
    g.quiet = true;
    pthread_cond_destroy(&g.stop);
  }
}

double progress_end(void) {
  double elapsed = cli_now() - g.start;
  if (g.quiet) return elapsed;
  pthread_mutex_lock(&g.lock);
  g.running = false;
  pthread_cond_signal(&g.stop);
  pthread_mutex_unlock(&g.lock);
  pthread_join(g.thread, NULL);
  pthread_cond_destroy(&g.stop);
  if (g.shown && g.terminal) fprintf(stderr, "\r\033[K");
  return elapsed;
}
