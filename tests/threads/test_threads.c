// SPDX-License-Identifier: Apache-2.0
//
// The thread rules of tessera.h, tried with real threads on every host backend: whatever runs at once,
// each result has the bits of the same run made alone (plans ask for `deterministic`), and each thread
// reads its own messages. A data race shows in the thread sanitizer's build of this program.
#define _POSIX_C_SOURCE 200809L

#include <math.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <tessera/tessera.h>

/* Enough work that the library wakes threads of its own. */
enum { B = 2, HQ = 4, HKV = 2, SQ = 97, SK = 151, D = 24, THREADS = 6, ROUNDS = 3 };
enum { Q_COUNT = B * HQ * SQ * D, K_COUNT = B * HKV * SK * D, LSE_COUNT = B * HQ * SQ };

static const tsr_device kHost = {TSR_DEVICE_HOST, 0};
static float q[Q_COUNT], k[K_COUNT], v[K_COUNT];

typedef struct result {
  float o[Q_COUNT], lse[LSE_COUNT];
} result;

static void fill(float *x, int count, uint32_t seed) {
  for (int i = 0; i < count; ++i) {
    seed = seed * 1664525u + 1013904223u;
    x[i] = (float)(seed >> 8) / (float)(1 << 23) - 1.0f;
  }
}

static tsr_problem causal_problem(const char *backend) {
  tsr_problem p = TSR_PROBLEM_INIT;
  p.batch = B, p.heads_q = HQ, p.heads_kv = HKV, p.seq_q = SQ, p.seq_k = SK, p.dim_qk = D;
  p.q.dtype = p.k.dtype = p.v.dtype = p.o.dtype = p.lse.dtype = TSR_DTYPE_F32;
  p.causal = TSR_CAUSAL_BOTTOM_RIGHT;
  p.determinism = TSR_DETERMINISM_DETERMINISTIC;
  p.backend = backend;
  return p;
}

static int run_plan(const tsr_plan *plan, result *r) {
  tsr_args a = TSR_ARGS_INIT;
  memset(r, 0x7f, sizeof *r);
  a.q = q, a.k = k, a.v = v, a.o = r->o, a.lse = r->lse;
  if (tsr_forward(plan, &a) == TSR_STATUS_SUCCESS) return 0;
  fprintf(stderr, "forward: %s\n", tsr_last_message());
  return 1;
}

static int same(const char *what, const result *got, const result *wanted) {
  if (memcmp(got, wanted, sizeof *got) == 0) return 0;
  fprintf(stderr, "%s: the bits differ from a run made alone\n", what);
  return 1;
}

/* What a thread is given and what it found; start lines the threads up so that they really collide. */
typedef struct job {
  pthread_barrier_t *start;
  const tsr_plan *plan;
  const result *wanted;
  const char *backend;
  int index, failed;
} job;

static int collide(void *(*body)(void *), job model) {
  static job jobs[THREADS];
  pthread_t threads[THREADS];
  pthread_barrier_t start;
  int failed = 0, made = 0;
  if (pthread_barrier_init(&start, NULL, THREADS) != 0) return 1;
  for (int t = 0; t < THREADS; ++t) {
    jobs[t] = model;
    jobs[t].start = &start;
    jobs[t].index = t;
    if (pthread_create(&threads[t], NULL, body, &jobs[t]) != 0) break;
    ++made;
  }
  if (made < THREADS) {
    fprintf(stderr, "only %d threads could be made\n", made);
    exit(1); /* those made wait for the others for ever */
  }
  for (int t = 0; t < made; ++t) {
    pthread_join(threads[t], NULL);
    failed |= jobs[t].failed;
  }
  pthread_barrier_destroy(&start);
  return failed;
}

/* The default context is made by whichever thread comes first; all must get the same one and a result. */
static void *first_use(void *arg) {
  job *j = arg;
  float o[Q_COUNT] = {0};
  const tsr_tensor tq = {q, TSR_DTYPE_F32, 0, {B, HQ, SQ, D}, {HQ * SQ * D, SQ * D, D, 1}};
  const tsr_tensor tk = {k, TSR_DTYPE_F32, 0, {B, HKV, SK, D}, {HKV * SK * D, SK * D, D, 1}};
  tsr_tensor tv = tk, to = tq;
  tv.data = v;
  to.data = o;
  pthread_barrier_wait(j->start);
  const tsr_status status =
      tsr_attention(NULL, kHost, &tq, &tk, &tv, &to, NULL, TSR_CAUSAL_NONE, 0, NULL);
  /* A build without a backend that is chosen by itself must say so, to every thread. */
  j->failed = status != TSR_STATUS_SUCCESS && status != TSR_STATUS_NOT_SUPPORTED;
  if (j->failed) fprintf(stderr, "first use: %s\n", tsr_last_message());
  return NULL;
}

static void *share_plan(void *arg) {
  job *j = arg;
  result *r = malloc(sizeof *r);
  j->failed = !r;
  pthread_barrier_wait(j->start);
  for (int round = 0; round < ROUNDS && !j->failed; ++round) {
    j->failed = run_plan(j->plan, r) || same("shared plan", r, j->wanted);
  }
  free(r);
  return NULL;
}

/* Contexts and plans made and destroyed by everyone at once. */
static void *own_context(void *arg) {
  job *j = arg;
  result *r = malloc(sizeof *r);
  const tsr_problem p = causal_problem(j->backend);
  j->failed = !r;
  pthread_barrier_wait(j->start);
  for (int round = 0; round < ROUNDS && !j->failed; ++round) {
    tsr_context *context = NULL;
    tsr_plan *plan = NULL;
    j->failed = tsr_context_create(&context, NULL) || tsr_plan_create(&plan, context, kHost, &p) ||
                run_plan(plan, r) || same("own context", r, j->wanted);
    tsr_plan_destroy(plan);
    tsr_context_destroy(context);
  }
  free(r);
  return NULL;
}

/* Each thread fails in its own way and must read its own message, not a neighbour's. */
static void *own_message(void *arg) {
  job *j = arg;
  tsr_problem p = causal_problem(j->backend);
  char wanted[16];
  p.dim_qk = 1000 + j->index; /* above the limit of 576 */
  snprintf(wanted, sizeof wanted, "%d", 1000 + j->index);
  pthread_barrier_wait(j->start);
  for (int round = 0; round < 100 && !j->failed; ++round) {
    tsr_plan *plan = NULL;
    const tsr_status status = tsr_plan_create(&plan, NULL, kHost, &p);
    j->failed = status != TSR_STATUS_INVALID_ARGUMENT || plan || !strstr(tsr_last_message(), wanted);
  }
  if (j->failed) fprintf(stderr, "own message: no %s in '%s'\n", wanted, tsr_last_message());
  return NULL;
}

/* A runner of the caller's own: fresh threads for every call, indices dealt out by stride. */
typedef struct share {
  void (*task)(void *arg, int64_t index, int32_t worker);
  void *arg;
  int64_t count;
  int32_t worker, workers;
} share;

static void *run_share(void *arg) {
  const share *s = arg;
  for (int64_t i = s->worker; i < s->count; i += s->workers) s->task(s->arg, i, s->worker);
  return NULL;
}

static int run_on_threads(void *user, void (*task)(void *arg, int64_t index, int32_t worker),
                          void *arg, int64_t count) {
  share shares[THREADS];
  pthread_t threads[THREADS];
  int made = 0;
  for (; made < THREADS; ++made) {
    shares[made] = (share){task, arg, count, made, THREADS};
    if (pthread_create(&threads[made], NULL, run_share, &shares[made]) != 0) break;
  }
  for (int t = 0; t < made; ++t) pthread_join(threads[t], NULL);
  ++*(int *)user;
  return made != THREADS;
}

static int own_runner(const char *backend, const result *wanted) {
  static result r;
  int calls = 0, failed;
  tsr_context_options options = TSR_CONTEXT_OPTIONS_INIT;
  tsr_context *context = NULL;
  tsr_plan *plan = NULL;
  const tsr_problem p = causal_problem(backend);
  options.runner.user = &calls;
  options.runner.threads = THREADS;
  options.runner.run = run_on_threads;
  failed = tsr_context_create(&context, &options) || tsr_plan_create(&plan, context, kHost, &p);
  if (failed) fprintf(stderr, "own runner: %s\n", tsr_last_message());
  failed = failed || run_plan(plan, &r) || same("own runner", &r, wanted);
  /* An emulated GPU, which is on the host but named only, has its own order of blocks. */
  if (!failed && !calls && strcmp(backend, "cuda") != 0) {
    fprintf(stderr, "own runner: backend %s did not use it\n", backend);
    failed = 1;
  }
  tsr_plan_destroy(plan);
  tsr_context_destroy(context);
  return failed;
}

/* Calls from inside a parallel region of the caller's. */
static int inside_region(const tsr_plan *plan, const result *wanted) {
  int failed = 0;
#pragma omp parallel for num_threads(3) reduction(| : failed)
  for (int i = 0; i < 6; ++i) {
    result *r = malloc(sizeof *r);
    failed |= !r || run_plan(plan, r) || same("inside a parallel region", r, wanted);
    free(r);
  }
  return failed;
}

static int check_backend(tsr_context *context, const char *backend) {
  static result wanted;
  const tsr_problem p = causal_problem(backend);
  tsr_plan *plan = NULL;
  int failed;
  if (tsr_plan_create(&plan, context, kHost, &p) != TSR_STATUS_SUCCESS) {
    fprintf(stderr, "%s: %s\n", backend, tsr_last_message());
    return 1;
  }
  failed = run_plan(plan, &wanted);
  for (int i = 0; i < LSE_COUNT; ++i) failed |= !isfinite(wanted.lse[i]);
  const job model = {NULL, plan, &wanted, backend, 0, 0};
  failed = failed || collide(share_plan, model);
  failed = failed || collide(own_context, model);
  failed = failed || collide(own_message, model);
  failed = failed || own_runner(backend, &wanted);
  failed = failed || inside_region(plan, &wanted);
  tsr_plan_destroy(plan);
  printf("%s: %s\n", backend, failed ? "failed" : "ok");
  return failed;
}

int main(void) {
  tsr_context *context = NULL;
  int failed, checked = 0;
  fill(q, Q_COUNT, 1);
  fill(k, K_COUNT, 2);
  fill(v, K_COUNT, 3);
  /* Before anything else, so that the default context does not exist yet. */
  failed = collide(first_use, (job){0});
  if (tsr_context_create(&context, NULL) != TSR_STATUS_SUCCESS) {
    fprintf(stderr, "context: %s\n", tsr_last_message());
    return 1;
  }
  for (int32_t i = 0; i < tsr_context_backend_count(context); ++i) {
    tsr_backend_info info = TSR_BACKEND_INFO_INIT;
    if (tsr_context_backend_info(context, i, &info) != TSR_STATUS_SUCCESS) return 1;
    if (!info.available || info.device_kind != TSR_DEVICE_HOST) continue;
    failed |= check_backend(context, info.name);
    ++checked;
  }
  tsr_context_destroy(context);
  return failed || !checked;
}
