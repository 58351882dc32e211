// SPDX-License-Identifier: Apache-2.0
// Gradients of a few keys (see oracle_keys.h). Threads share the queries; each has sums of its own.
#include "oracle_keys.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

// The masks that a benchmark's problem has, for one pair.
static bool allowed(const tsr_problem *p, int64_t i, int64_t j) {
  const bool corner =
      p->causal == TSR_CAUSAL_BOTTOM_RIGHT || p->window.kind == TSR_WINDOW_BOTTOM_RIGHT;
  const bool explicit_diagonal =
      p->causal == TSR_CAUSAL_EXPLICIT || p->window.kind == TSR_WINDOW_EXPLICIT;
  const int64_t at = i + (corner ? p->seq_k - p->seq_q : explicit_diagonal ? p->diagonal : 0);
  if (j < p->prefix) return true;
  if (p->causal != TSR_CAUSAL_NONE && j > at) return false;
  if (p->window.kind == TSR_WINDOW_NONE) return true;
  return (p->window.left == TSR_UNBOUNDED || j >= at - p->window.left) &&
         (p->window.right == TSR_UNBOUNDED || j <= at + p->window.right);
}

// Nearest value of the type, through its storage.
static double rounded(tsr_dtype dtype, double x) {
  uint64_t storage = 0;
  accuracy_store(dtype, &storage, 0, x);
  return accuracy_load(dtype, &storage, 0);
}

typedef struct query {
  const double *q, *dout;
  double lse, d;  // d: rowsum(dO O)
} query;

typedef struct keys_job {
  const oracle_run *run;
  int64_t first, count, D, V;
  double scale;
  const double *k, *v;  // [count, D], [count, V]
} keys_job;

// x + y as a float32 accumulator adds.
static double plus(double x, double y) {
  return (double)((float)x + (float)y);
}

// Adds one query's share.
static void add_query(const keys_job *job, const query *at, int64_t i, oracle_keys *sums) {
  const tsr_problem *p = job->run->problem;
  const double cap = p->softcap;
  for (int64_t j = 0; j < job->count; ++j) {
    if (!allowed(p, i, job->first + j)) continue;
    const double *k = job->k + j * job->D, *v = job->v + j * job->V;
    double s = 0, dp = 0, slope = job->scale;
    for (int64_t e = 0; e < job->D; ++e) s += at->q[e] * k[e];
    for (int64_t e = 0; e < job->V; ++e) dp += at->dout[e] * v[e];
    s *= job->scale;
    if (cap > 0) {
      const double t = tanh(s / cap);
      s = cap * t;
      slope *= 1 - t * t;
    }
    const double weight = exp(s - at->lse), ds = weight * (dp - at->d);
    for (int64_t e = 0; e < job->V; ++e) sums->dv[j * job->V + e] += weight * at->dout[e];
    for (int64_t e = 0; e < job->D; ++e) sums->dk[j * job->D + e] += slope * ds * at->q[e];
  }
}

// The same as standard attention computes it: matrices stored in the type, sums in float32.
static void add_query_naive(const keys_job *job, const query *at, int64_t i, oracle_keys *sums) {
  const tsr_problem *p = job->run->problem;
  const tsr_dtype dtype = job->run->q->dtype;
  const float cap = p->softcap, scale = (float)job->scale;
  for (int64_t j = 0; j < job->count; ++j) {
    if (!allowed(p, i, job->first + j)) continue;
    const double *k = job->k + j * job->D, *v = job->v + j * job->V;
    float s = 0, dp = 0, slope = scale;
    for (int64_t e = 0; e < job->D; ++e) s += (float)at->q[e] * (float)k[e];
    for (int64_t e = 0; e < job->V; ++e) dp += (float)at->dout[e] * (float)v[e];
    s *= scale;
    if (cap > 0) {
      const float t = tanhf(s / cap);
      s = cap * t;
      slope *= 1 - t * t;
    }
    const double weight = rounded(dtype, (double)expf(s - (float)at->lse));
    const double ds = rounded(dtype, weight * (rounded(dtype, (double)dp) - (double)(float)at->d));
    const double dx = (double)(slope * (float)ds);
    for (int64_t e = 0; e < job->V; ++e) {
      double *to = &sums->naive_dv[j * job->V + e];
      *to = plus(*to, weight * at->dout[e]);
    }
    for (int64_t e = 0; e < job->D; ++e) {
      double *to = &sums->naive_dk[j * job->D + e];
      *to = plus(*to, dx * at->q[e]);
    }
  }
}

static void add_heads(const keys_job *job, int64_t b, int64_t h, oracle_keys *sums, double *row) {
  const oracle_run *run = job->run;
  double *q = row, *dout = row + job->D, *o = dout + job->V;
#pragma omp for schedule(static)
  for (int64_t i = 0; i < run->problem->seq_q; ++i) {
    query at = {.q = q, .dout = dout};
    bench_tensor_read(run->lse, b, h, i, 1, &at.lse);
    if (at.lse == -(double)INFINITY) continue;
    bench_tensor_read(run->q, b, h, i, 1, q);
    bench_tensor_read(run->dout, b, h, i, 1, dout);
    bench_tensor_read(run->o, b, h, i, 1, o);
    for (int64_t e = 0; e < job->V; ++e) at.d += dout[e] * o[e];
    add_query(job, &at, i, sums);
    add_query_naive(job, &at, i, sums);
  }
}

static void add_into(double *to, const double *from, int64_t n) {
  for (int64_t i = 0; i < n; ++i) to[i] += from[i];
}

bool oracle_keys_compute(const oracle_run *run, int64_t b, int64_t g, int64_t first, int64_t count,
                         oracle_keys *out) {
  const tsr_problem *p = run->problem;
  const int64_t D = p->dim_qk, V = run->v->shape[3], group = p->heads_q / p->heads_kv;
  const int64_t sums = 2 * count * (D + V);
  double *k = malloc((size_t)(count * (D + V)) * sizeof(double));
  if (k == NULL) return false;
  double *v = k + count * D;
  bench_tensor_read(run->k, b, g, first, count, k);
  bench_tensor_read(run->v, b, g, first, count, v);
  keys_job job = {.run = run, .first = first, .count = count, .D = D, .V = V, .k = k, .v = v};
  job.scale = p->scale != 0 ? (double)p->scale : 1.0 / sqrt((double)D);
  memset(out->dk, 0, (size_t)(count * D) * sizeof(double));
  memset(out->naive_dk, 0, (size_t)(count * D) * sizeof(double));
  memset(out->dv, 0, (size_t)(count * V) * sizeof(double));
  memset(out->naive_dv, 0, (size_t)(count * V) * sizeof(double));
  bool ok = true;
#pragma omp parallel
  {
    double *mine = calloc((size_t)(sums + D + 2 * V), sizeof(double));
    if (mine == NULL) {
#pragma omp atomic write
      ok = false;
    }
#pragma omp barrier
    bool all;
#pragma omp atomic read
    all = ok;
    if (all) {
      oracle_keys own = {.dk = mine, .naive_dk = mine + count * D};
      own.dv = own.naive_dk + count * D;
      own.naive_dv = own.dv + count * V;
      for (int64_t h = 0; h < group; ++h) {
        add_heads(&job, b, g * group + h, &own, mine + sums);
      }
#pragma omp critical
      {
        add_into(out->dk, own.dk, count * D);
        add_into(out->naive_dk, own.naive_dk, count * D);
        add_into(out->dv, own.dv, count * V);
        add_into(out->naive_dv, own.naive_dv, count * V);
      }
    }
    free(mine);
  }
  free(k);
  return ok;
}
