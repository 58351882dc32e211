// SPDX-License-Identifier: Apache-2.0
//
// Sharing between threads: one plan run from many threads at once gives every one of them the bits of a
// lone run; contexts and plans come and go concurrently; messages belong to their thread; a caller's
// runner does all the work. A plain program, so that it also runs under the thread sanitizer.
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "conformance.h"
#include "tests/support/compare.h"

enum { THREADS = 4, RUNS = 3 };

static const tsr_device host = {TSR_DEVICE_HOST, 0};
static int failures; /* atomic */

static void fail(const char *what, const char *detail) {
  printf("FAIL %s: %s\n", what, detail);
  fflush(stdout);
  __atomic_fetch_add(&failures, 1, __ATOMIC_RELAXED);
}

typedef struct job {
  const tsr_plan *plan;
  const tsr_inputs *in;
  const tsr_results *expected;
  const char *title;
  tsr_device device;
} job;

static void *run_job(void *arg) {
  const job *j = (const job *)arg;
  char why[256];
  tsr_setup setup;
  tsr_results results;
  int run;
  if (!tsr_setup_create_on(&setup, j->device, j->in, j->in->row, j->in->dtype, 1, why,
                           sizeof why)) {
    fail(j->title, why);
    return NULL;
  }
  for (run = 0; run < RUNS; ++run) {
    tsr_setup_reset(&setup);
    if (tsr_setup_run(&setup, j->plan, NULL) != TSR_STATUS_SUCCESS)
      fail(j->title, tsr_setup_message(&setup));
    else if (!tsr_setup_gather(&setup, &results, why, sizeof why))
      fail(j->title, why);
    else {
      if (!conform_equal(j->title, j->expected, &results)) fail(j->title, "bits differ");
      tsr_results_destroy(&results);
    }
  }
  tsr_setup_destroy(&setup);
  return NULL;
}

static void start(pthread_t *thread, void *(*body)(void *), void *arg) {
  if (pthread_create(thread, NULL, body, arg) == 0) return;
  fail("pthread_create", "no thread");
  exit(1);
}

/* The case with DETERMINISTIC set, so that bits may be compared. */
static void one_plan_many_threads(tsr_context *context, const char *backend, const char *name,
                                  const char *kind) {
  tsr_case row = *tsr_case_find(name);
  char title[128], why[256];
  tsr_inputs in;
  tsr_setup setup;
  tsr_plan *plan = NULL;
  tsr_results expected;
  pthread_t threads[THREADS];
  job j = {NULL, &in, &expected, title, tsr_backends_device(context, backend, 0)};
  int i;
  row.determinism = TSR_DETERMINISM_DETERMINISTIC;
  snprintf(title, sizeof title, "%s %s %s", backend, name, kind);
  if (!tsr_inputs_create(&in, &row, TSR_DTYPE_F32) ||
      !tsr_setup_create_on(&setup, j.device, &in, &row, TSR_DTYPE_F32, 1, why, sizeof why)) {
    fail(title, "setup");
    return;
  }
  if (tsr_backends_plan(&plan, context, &setup, backend, NULL) != TSR_STATUS_SUCCESS ||
      tsr_setup_run(&setup, plan, NULL) != TSR_STATUS_SUCCESS ||
      !tsr_setup_gather(&setup, &expected, why, sizeof why)) {
    fail(title, tsr_last_message());
    return;
  }
  j.plan = plan;
  for (i = 0; i < THREADS; ++i) start(&threads[i], run_job, &j);
  for (i = 0; i < THREADS; ++i) pthread_join(threads[i], NULL);
  tsr_plan_destroy(plan);
  tsr_results_destroy(&expected);
  tsr_setup_destroy(&setup);
  tsr_inputs_destroy(&in);
}

/* ------------------------------------------------------------------------------------- runner */

typedef struct pool {
  int64_t tasks; /* atomic */
} pool;

typedef struct slice {
  void (*task)(void *arg, int64_t index, int32_t worker);
  void *arg;
  int64_t count;
  int64_t *next;
  int32_t worker;
} slice;

static void *run_slice(void *arg) {
  slice *s = (slice *)arg;
  int64_t i;
  while ((i = __atomic_fetch_add(s->next, 1, __ATOMIC_RELAXED)) < s->count)
    s->task(s->arg, i, s->worker);
  return NULL;
}

/* Two workers: one thread of its own and the caller. */
static int pool_run(void *user, void (*task)(void *arg, int64_t index, int32_t worker), void *arg,
                    int64_t count) {
  pool *p = (pool *)user;
  int64_t next = 0;
  pthread_t other;
  slice a = {task, arg, count, &next, 0}, b = a;
  b.worker = 1;
  __atomic_fetch_add(&p->tasks, count, __ATOMIC_RELAXED);
  if (pthread_create(&other, NULL, run_slice, &b) != 0) return 1;
  run_slice(&a);
  pthread_join(other, NULL);
  return 0;
}

static int broken_run(void *user, void (*task)(void *arg, int64_t index, int32_t worker), void *arg,
                      int64_t count) {
  (void)user, (void)task, (void)arg, (void)count;
  return 7;
}

static void caller_runner(const char *backend) {
  pool p = {0};
  tsr_context_options options = TSR_CONTEXT_OPTIONS_INIT;
  tsr_context *context = NULL;
  options.runner.user = &p;
  options.runner.threads = 2;
  options.runner.run = pool_run;
  if (tsr_context_create(&context, &options) != TSR_STATUS_SUCCESS) {
    fail("runner", tsr_last_message());
    return;
  }
  one_plan_many_threads(context, backend, "packed_features", "with the caller's runner");
  if (p.tasks == 0) fail(backend, "the caller's runner was never called");
  tsr_context_destroy(context);

  /* A runner that cannot run: INTERNAL, and nothing hangs. */
  options.runner.run = broken_run;
  if (tsr_context_create(&context, &options) == TSR_STATUS_SUCCESS) {
    const tsr_case *row = tsr_case_find("square_64");
    char why[256];
    tsr_inputs in;
    tsr_setup setup;
    tsr_plan *plan = NULL;
    if (tsr_inputs_create(&in, row, TSR_DTYPE_F32) &&
        tsr_setup_create(&setup, &in, row, TSR_DTYPE_F32, 1, why, sizeof why)) {
      if (tsr_backends_plan(&plan, context, &setup, backend, NULL) != TSR_STATUS_SUCCESS ||
          tsr_setup_run(&setup, plan, NULL) != TSR_STATUS_INTERNAL)
        fail(backend, "a runner that fails must give INTERNAL");
      tsr_plan_destroy(plan);
      tsr_setup_destroy(&setup);
    }
    tsr_inputs_destroy(&in);
    tsr_context_destroy(context);
  }
}

/* An emulated device lies in host memory and has threads of its own making. */
static bool uses_runner(const char *backend) {
  return strcmp(backend, "cuda") != 0 && strcmp(backend, "hip") != 0;
}

/* ----------------------------------------------------------------------------------- lifetimes */

static void *make_and_drop(void *arg) {
  int n = *(const int *)arg, i;
  for (i = 0; i < 5; ++i) {
    tsr_context *context = NULL;
    tsr_plan *plan = NULL;
    tsr_problem p = TSR_PROBLEM_INIT;
    char expected[32];
    if (tsr_context_create(&context, NULL) != TSR_STATUS_SUCCESS) fail("create", tsr_last_message());
    p.batch = p.heads_q = p.heads_kv = 1, p.seq_q = p.seq_k = 4 + n, p.dim_qk = 8;
    p.q.dtype = p.k.dtype = p.v.dtype = p.o.dtype = TSR_DTYPE_F32;
    p.backend = "reference";
    if (tsr_plan_create(&plan, i % 2 ? context : NULL, host, &p) != TSR_STATUS_SUCCESS)
      fail("plan", tsr_last_message());
    tsr_plan_destroy(plan);
    p.batch = -100 - n; /* each thread's own message */
    snprintf(expected, sizeof expected, "found %d", -100 - n);
    if (tsr_plan_create(&plan, NULL, host, &p) != TSR_STATUS_INVALID_ARGUMENT ||
        !strstr(tsr_last_message(), expected))
      fail("message of another thread", tsr_last_message());
    tsr_context_destroy(context);
  }
  return NULL;
}

int main(void) {
  static const char *const cases[] = {"square_64", "gqa_decode", "packed_features", "paged_16"};
  const char *names[16];
  pthread_t threads[THREADS];
  int numbers[THREADS], i;
  int32_t n, count = tsr_backends_list(NULL, NULL, names, 16);
  size_t c;
  if (count < 1) fail("backends", "none");
  for (i = 0; i < THREADS; ++i) {
    numbers[i] = i;
    start(&threads[i], make_and_drop, &numbers[i]);
  }
  for (i = 0; i < THREADS; ++i) pthread_join(threads[i], NULL);
  for (n = 0; n < count && n < 16; ++n) {
    for (c = 0; c < sizeof cases / sizeof cases[0]; ++c)
      one_plan_many_threads(NULL, names[n], cases[c], "default runner");
    /* A device does its own work. */
    if (tsr_backends_device(NULL, names[n], 0).kind == TSR_DEVICE_HOST && uses_runner(names[n]))
      caller_runner(names[n]);
  }
  printf("%d backends, %d failures\n", (int)count, failures);
  return failures ? 1 : 0;
}
