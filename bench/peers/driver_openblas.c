// SPDX-License-Identifier: Apache-2.0
// Standard attention on OpenBLAS: cblas_sgemm, a vectorised softmax, cblas_sgemm, with the scores
// in memory. Three forms: all heads' scores at once (the textbook), one head's per thread, blocks
// of rows of a head per thread, which skip the keys that a mask hides from the whole block.
//
// Backward (first form) keeps P: dV = P^T dO, dP = dO V^T, dS = scale P o (dP - D), dQ = dS K,
// dK = dS^T Q. Compiled and called by peer_c.py.
#define _GNU_SOURCE
#include <cblas.h>
#include <math.h>
#include <omp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "driver.h"

enum { FORM_ALL, FORM_HEAD, FORM_ROWS, kRows = 256 };

static struct {
  peer_shape s;
  int form;
  const float *q, *k, *v, *dout;
  float *o, *p, *dp, *dq, *dk, *dv;
  int64_t block;  // query rows whose scores a task holds
  int kept;       // P of the forward pass is in memory
} state;

const char *peer_version(void) {
  static char text[256];
  snprintf(text, sizeof text, "%s, core %s", openblas_get_config(), openblas_get_corename());
  return text;
}

const char *peer_form(int form) {
  static const char *const names[] = {"all scores at once", "one head per thread",
                                      "row blocks per thread"};
  return form < 3 ? names[form] : NULL;
}

static float *floats(int64_t count) {
  void *block = NULL;
  size_t bytes = (size_t)(count > 0 ? count : 1) * sizeof(float);
  return posix_memalign(&block, 4096, bytes) == 0 ? block : NULL;
}

static int refuse(char *reason, size_t capacity, const char *text) {
  snprintf(reason, capacity, "%s", text);
  return -1;
}

// 2^x to about 3e-7 for x <= 0: round, polynomial on [-1/2, 1/2], exponent field.
static inline float exp2_negative(float x) {
  x = x < -126.0f ? -126.0f : x;
  float whole = rintf(x), f = x - whole;
  float y = 1.33990567e-3f;
  y = y * f + 9.67037332e-3f;
  y = y * f + 5.55032939e-2f;
  y = y * f + 2.40222156e-1f;
  y = y * f + 6.93147182e-1f;
  y = y * f + 1.0f;
  union {
    int32_t i;
    float f;
  } power = {.i = ((int32_t)whole + 127) << 23};
  return y * power.f;
}

// Row of scores to probabilities in place; keys outside [first, last) get 0.
static void softmax_row(float *row, int64_t count, int64_t first, int64_t last, float scale) {
  float most = -INFINITY, sum = 0, factor = scale * 1.44269504f;
  for (int64_t j = 0; j < first; ++j) row[j] = 0;
  for (int64_t j = last; j < count; ++j) row[j] = 0;
#pragma omp simd reduction(max : most)
  for (int64_t j = first; j < last; ++j) most = row[j] > most ? row[j] : most;
#pragma omp simd reduction(+ : sum)
  for (int64_t j = first; j < last; ++j) {
    row[j] = exp2_negative((row[j] - most) * factor);
    sum += row[j];
  }
  float inverse = 1.0f / sum;
#pragma omp simd
  for (int64_t j = first; j < last; ++j) row[j] *= inverse;
}

static void gemm(enum CBLAS_TRANSPOSE ta, enum CBLAS_TRANSPOSE tb, int64_t m, int64_t n, int64_t k,
                 const float *a, int64_t lda, const float *b, int64_t ldb, float add, float *c,
                 int64_t ldc) {
  cblas_sgemm(CblasRowMajor, ta, tb, (int)m, (int)n, (int)k, 1.0f, a, (int)lda, b, (int)ldb, add, c,
              (int)ldc);
}

// The query heads of a key head stand one after the other; unmasked they are one matrix of rows.
static int64_t rows_per_unit(const peer_shape *s) {
  return s->causal ? s->seq_q : s->seq_q * (s->heads / s->heads_kv);
}

static int64_t units(const peer_shape *s) {
  return s->causal ? s->heads : s->heads_kv;
}

// Rows [begin, end) of a unit: scores into p (row length seq_k), probabilities, output.
static void attend(int64_t unit, int64_t begin, int64_t end, float *p) {
  const peer_shape *s = &state.s;
  int64_t rows = rows_per_unit(s), D = s->dim;
  int64_t kv = s->causal ? unit / (s->heads / s->heads_kv) : unit;
  int64_t low = s->causal ? peer_first(s, begin) : 0;
  int64_t high = s->causal ? peer_last(s, end - 1) : s->seq_k;
  const float *q = state.q + (unit * rows + begin) * D;
  const float *k = state.k + (kv * s->seq_k + low) * D, *v = state.v + (kv * s->seq_k + low) * D;
  gemm(CblasNoTrans, CblasTrans, end - begin, high - low, D, q, D, k, D, 0, p, s->seq_k);
  int outer = omp_in_parallel();
#pragma omp parallel for schedule(static) \
    num_threads((int)s->threads) if (!outer && end - begin > 8)
  for (int64_t i = begin; i < end; ++i) {
    int64_t first = s->causal ? peer_first(s, i) - low : 0;
    int64_t last = s->causal ? peer_last(s, i) - low : s->seq_k;
    softmax_row(p + (i - begin) * s->seq_k, high - low, first, last, s->scale);
  }
  gemm(CblasNoTrans, CblasNoTrans, end - begin, D, high - low, p, s->seq_k, v, D, 0,
       state.o + (unit * rows + begin) * D, D);
}

// All scores at once: the products use all threads when there are fewer heads than threads.
static void forward_all(void) {
  const peer_shape *s = &state.s;
  int64_t rows = rows_per_unit(s), n = units(s);
  if (n < s->threads) {
    openblas_set_num_threads((int)s->threads);
    for (int64_t u = 0; u < n; ++u) attend(u, 0, rows, state.p + u * rows * s->seq_k);
    return;
  }
  openblas_set_num_threads(1);
#pragma omp parallel for schedule(dynamic, 1) num_threads((int)s->threads)
  for (int64_t u = 0; u < n; ++u) attend(u, 0, rows, state.p + u * rows * s->seq_k);
}

static void forward_blocks(void) {
  const peer_shape *s = &state.s;
  int64_t rows = rows_per_unit(s), blocks = (rows + state.block - 1) / state.block;
  int64_t tasks = units(s) * blocks;
  openblas_set_num_threads(1);
#pragma omp parallel for schedule(dynamic, 1) num_threads((int)s->threads)
  for (int64_t t = 0; t < tasks; ++t) {
    // The last blocks of a causal head see most keys: they come first.
    int64_t begin = (blocks - 1 - t % blocks) * state.block;
    int64_t end = begin + state.block < rows ? begin + state.block : rows;
    attend(t / blocks, begin, end, state.p + omp_get_thread_num() * state.block * s->seq_k);
  }
}

// dP becomes dS in place.
static void backward_unit(int64_t unit) {
  const peer_shape *s = &state.s;
  int64_t rows = rows_per_unit(s), D = s->dim, K = s->seq_k;
  int64_t kv = s->causal ? unit / (s->heads / s->heads_kv) : unit;
  float add = s->causal && unit % (s->heads / s->heads_kv) != 0 ? 1 : 0;
  const float *dout = state.dout + unit * rows * D, *o = state.o + unit * rows * D;
  const float *q = state.q + unit * rows * D;
  const float *k = state.k + kv * K * D, *v = state.v + kv * K * D;
  float *p = state.p + unit * rows * K, *dp = state.dp + unit * rows * K;
  gemm(CblasTrans, CblasNoTrans, K, D, rows, p, K, dout, D, add, state.dv + kv * K * D, D);
  gemm(CblasNoTrans, CblasTrans, rows, K, D, dout, D, v, D, 0, dp, K);
  int outer = omp_in_parallel();
#pragma omp parallel for schedule(static) num_threads((int)s->threads) if (!outer)
  for (int64_t i = 0; i < rows; ++i) {
    float delta = 0;
    for (int64_t d = 0; d < D; ++d) delta += dout[i * D + d] * o[i * D + d];
#pragma omp simd
    for (int64_t j = 0; j < K; ++j) {
      dp[i * K + j] = s->scale * p[i * K + j] * (dp[i * K + j] - delta);
    }
  }
  gemm(CblasNoTrans, CblasNoTrans, rows, D, K, dp, K, k, D, 0, state.dq + unit * rows * D, D);
  gemm(CblasTrans, CblasNoTrans, K, D, rows, dp, K, q, D, add, state.dk + kv * K * D, D);
}

static void backward(void) {
  const peer_shape *s = &state.s;
  int64_t n = units(s), group = s->causal ? s->heads / s->heads_kv : 1;
  if (n / group < s->threads) {
    openblas_set_num_threads((int)s->threads);
    for (int64_t u = 0; u < n; ++u) backward_unit(u);
    return;
  }
  openblas_set_num_threads(1);
#pragma omp parallel for schedule(dynamic, 1) num_threads((int)s->threads)
  for (int64_t g = 0; g < n / group; ++g) {
    for (int64_t u = g * group; u < (g + 1) * group; ++u) backward_unit(u);
  }
}

int peer_open(const peer_shape *shape, int form, const float *q, const float *k, const float *v,
              const float *dout, char *reason, size_t capacity) {
  const int64_t most = (int64_t)4 << 30;
  peer_close();
  state.s = *shape;
  state.form = form;
  state.q = q, state.k = k, state.v = v, state.dout = dout;
  const peer_shape *s = &state.s;
  if (s->dtype != PEER_F32) return refuse(reason, capacity, "float32 only");
  if (s->backward && form != FORM_ALL) return refuse(reason, capacity, "backward keeps all scores");
  int64_t rows = rows_per_unit(s), scores = units(s) * rows * s->seq_k;
  state.block = rows;
  if (form == FORM_ROWS) {
    if (rows <= kRows) return refuse(reason, capacity, "one row block only");
    state.block = kRows;
  }
  if (form != FORM_ALL) scores = s->threads * state.block * s->seq_k;
  if (scores > most / 4) {
    snprintf(reason, capacity, "%s: scores of %lld MiB", peer_form(form),
             (long long)(scores >> 18));
    return -1;
  }
  int64_t queries = s->heads * s->seq_q * s->dim, keys = s->heads_kv * s->seq_k * s->dim;
  state.o = floats(queries);
  state.p = floats(scores);
  int failed = state.o == NULL || state.p == NULL;
  if (s->backward) {
    state.dp = floats(scores);
    state.dq = floats(queries), state.dk = floats(keys), state.dv = floats(keys);
    failed |= !state.dp || !state.dq || !state.dk || !state.dv;
  }
  if (failed) return refuse(reason, capacity, "out of memory");
  // Outputs are the caller's in every measurement of memory; they are touched here.
  memset(state.o, 0, (size_t)queries * 4);
  if (s->backward) {
    memset(state.dq, 0, (size_t)queries * 4);
    memset(state.dk, 0, (size_t)keys * 4), memset(state.dv, 0, (size_t)keys * 4);
  }
  return 0;
}

// A backward call includes no forward pass: P comes from the first call.
void peer_run(void) {
  if (state.form != FORM_ALL) {
    forward_blocks();
  } else if (!state.s.backward) {
    forward_all();
  } else {
    if (!state.kept) forward_all();
    state.kept = 1;
    backward();
  }
}

void peer_output(int which, float *out) {
  const peer_shape *s = &state.s;
  const float *from[] = {state.o, state.dq, state.dk, state.dv};
  int64_t n = (which < 2 ? s->heads * s->seq_q : s->heads_kv * s->seq_k) * s->dim;
  memcpy(out, from[which], (size_t)n * sizeof(float));
}

void peer_close(void) {
  float *all[] = {state.o, state.p, state.dp, state.dq, state.dk, state.dv};
  for (size_t i = 0; i < sizeof all / sizeof all[0]; ++i) free(all[i]);
  memset(&state, 0, sizeof state);
}
