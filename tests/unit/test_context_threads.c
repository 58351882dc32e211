// SPDX-License-Identifier: Apache-2.0
//
// Many threads at once: the default context is made exactly once, plans are made and run from one
// context, and every thread reads its own message. A plain program, so that it also runs under the
// thread sanitizer.
#define _POSIX_C_SOURCE 200809L
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/support/fake_backend.h"

enum { THREADS = 8, ROUNDS = 50 };

static atomic_int failures;
static atomic_int runs;
static pthread_barrier_t start;

/* Counts without the fake's own counters, which are not made for several threads. */
static tsr_status counted_run(void *state, void *plan, const tsr_args *args, tsr_reason *reason) {
  (void)state, (void)plan, (void)args, (void)reason;
  atomic_fetch_add(&runs, 1);
  return TSR_STATUS_SUCCESS;
}

static tsr_status quiet_plan(void *state, int32_t kernel, const tsr_resolved *problem, void **plan,
                             tsr_reason *reason) {
  (void)state, (void)kernel, (void)problem, (void)reason;
  *plan = NULL;
  return TSR_STATUS_SUCCESS;
}

static void quiet_destroy(void *state, void *plan) {
  (void)state, (void)plan;
}

static void check(int good, const char *what, long id) {
  if (good) return;
  fprintf(stderr, "thread %ld: %s (%s)\n", id, what, tsr_last_message());
  atomic_fetch_add(&failures, 1);
}

typedef struct worker {
  long id;
  float in[192], out[192];
} worker;

static void *work(void *arg) {
  worker *w = arg;
  const tsr_device host = {TSR_DEVICE_HOST, 0};
  char wanted[64];
  snprintf(wanted, sizeof wanted, "batch: found -%ld,", w->id + 1);
  pthread_barrier_wait(&start);
  for (int round = 0; round < ROUNDS; ++round) {
    tsr_problem p = fake_problem();
    tsr_plan *plan = NULL;
    tsr_args a = TSR_ARGS_INIT;
    a.q = a.k = a.v = w->in;
    a.o = w->out;
    check(tsr_plan_create(&plan, NULL, host, &p) == TSR_STATUS_SUCCESS, "plan", w->id);
    check(tsr_forward(plan, &a) == TSR_STATUS_SUCCESS, "run", w->id);
    tsr_plan_destroy(plan);
    p.batch = -(w->id + 1);
    check(tsr_plan_create(&plan, NULL, host, &p) == TSR_STATUS_INVALID_ARGUMENT, "refusal", w->id);
    check(strncmp(tsr_last_message(), wanted, strlen(wanted)) == 0, "own message", w->id);
  }
  return NULL;
}

int main(void) {
  static worker workers[THREADS];
  pthread_t threads[THREADS];
  fake_reset();
  fake_backends[0].vtable.run = counted_run;
  fake_backends[0].vtable.plan_create = quiet_plan;
  fake_backends[0].vtable.plan_destroy = quiet_destroy;
  fake_backends[0].kernels[0].workspace = 64; /* lent by the library in every run */
  setenv("TSR_PLUGIN_PATH", "", 1);
  pthread_barrier_init(&start, NULL, THREADS);
  for (long i = 0; i < THREADS; ++i) {
    workers[i].id = i;
    if (pthread_create(&threads[i], NULL, work, &workers[i])) return 2;
  }
  for (int i = 0; i < THREADS; ++i) pthread_join(threads[i], NULL);
  pthread_barrier_destroy(&start);
  check(fake_backends[0].probes == 1, "the default context was not made exactly once", -1);
  check(atomic_load(&runs) == THREADS * ROUNDS, "runs are missing", -1);
  if (atomic_load(&failures)) return 1;
  printf("%d threads, %d runs, one context\n", THREADS, atomic_load(&runs));
  return 0;
}
