// SPDX-License-Identifier: Apache-2.0
// Standard attention (see standard.h). Compiled with contraction of a * x + y allowed, which the
// library's own sources are not: here the compiler chooses the fused instructions.
#define _GNU_SOURCE
#include "standard.h"

#include <math.h>
#include <omp.h>
#include <stdlib.h>
#include <string.h>

typedef struct std_kernels {
  int rows, columns;  // of one block
  void (*block)(const float *a, int64_t a_row, int64_t rows, const float *b, int64_t b_row,
                int64_t depth, float *c, int64_t c_row);
  float (*exp_row)(float *s, int64_t count, float bias, float log2_scale);
  float (*max_row)(const float *s, int64_t count);
  void (*scale_row)(float *s, int64_t count, float factor);
} std_kernels;

#if defined(__x86_64__)
  #define STD_NAME(x) avx512_##x
  #define STD_BYTES 64
  #define STD_ROWS 8
  #define STD_TARGET __attribute__((target("avx512f,avx512dq,avx2,fma")))
  #include "standard_kernels.h"
  #define STD_NAME(x) avx2_##x
  #define STD_BYTES 32
  #define STD_ROWS 6
  #define STD_TARGET __attribute__((target("avx2,fma")))
  #include "standard_kernels.h"
#endif
#define STD_NAME(x) base_##x
#define STD_BYTES 16
#define STD_ROWS 4
#define STD_TARGET
#include "standard_kernels.h"

enum { kTile = 64 };  // query rows per task
#define SCORE_BYTES ((int64_t)1 << 30)

struct standard_state {
  standard_problem p;
  const std_kernels *kernels;
  int threads;
  int64_t ld_s, ld_v;     // row lengths of scores and of widened V, multiples of a block
  int64_t heads_at_once;  // query heads whose scores are held together
  float *scores, *q, *kt, *v, *o;
};

static const std_kernels *pick_kernels(void) {
#if defined(__x86_64__)
  if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512dq")) {
    return &avx512_table;
  }
  if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma")) return &avx2_table;
#endif
  return &base_table;
}

static int64_t round_up(int64_t n, int64_t step) {
  return (n + step - 1) / step * step;
}

static float *floats(int64_t count) {
  size_t bytes = (size_t)round_up(count > 0 ? count : 1, 1024) * sizeof(float);
  float *block = aligned_alloc(4096, bytes);
  if (block != NULL) memset(block, 0, bytes);
  return block;
}

static float widen_f16(uint16_t h) {
  uint32_t sign = (uint32_t)(h & 0x8000) << 16, exponent = (h >> 10) & 31, fraction = h & 1023;
  union {
    uint32_t u;
    float f;
  } out;
  if (exponent == 0) {
    out.f = (float)fraction * 0x1p-24f;
    out.u |= sign;
  } else {
    out.u = sign | (exponent == 31 ? 0x7f800000u : (exponent + 112) << 23) | fraction << 13;
  }
  return out.f;
}

static float load(tsr_dtype dtype, const void *data, int64_t i) {
  if (dtype == TSR_DTYPE_F32) return ((const float *)data)[i];
  uint16_t h = ((const uint16_t *)data)[i];
  if (dtype == TSR_DTYPE_F16) return widen_f16(h);
  union {
    uint32_t u;
    float f;
  } wide = {.u = (uint32_t)h << 16};
  return wide.f;
}

// Round to nearest even; values here are finite averages of V.
static uint16_t narrow_bf16(float x) {
  union {
    float f;
    uint32_t u;
  } in = {.f = x};
  return (uint16_t)((in.u + 0x7fff + ((in.u >> 16) & 1)) >> 16);
}

static uint16_t narrow_f16(float x) {
  union {
    float f;
    uint32_t u;
  } in = {.f = x};
  uint16_t sign = (uint16_t)(in.u >> 16 & 0x8000);
  float magnitude = fabsf(x);
  if (magnitude >= 65520.0f) return sign | 0x7c00;
  if (magnitude < 0x1p-14f) {
    // Adding 2^9 * 2^-24... places the last kept bit at 2^-24, with the hardware's rounding.
    in.f = magnitude + 0.5f;
    return sign | (uint16_t)(in.u - 0x3f000000u);
  }
  in.f = magnitude;
  uint32_t rounded = in.u + 0xfff + ((in.u >> 13) & 1);
  return sign | (uint16_t)((rounded >> 13) - (112u << 10));
}

static void store(tsr_dtype dtype, void *data, int64_t i, float x) {
  if (dtype == TSR_DTYPE_F32) {
    ((float *)data)[i] = x;
  } else {
    ((uint16_t *)data)[i] = dtype == TSR_DTYPE_F16 ? narrow_f16(x) : narrow_bf16(x);
  }
}

standard_state *standard_create(const standard_problem *problem) {
  standard_state *s = calloc(1, sizeof *s);
  if (s == NULL) return NULL;
  s->p = *problem;
  s->kernels = pick_kernels();
  s->threads = problem->threads > 0 ? problem->threads : omp_get_max_threads();
  const standard_problem *p = &s->p;
  s->ld_s = round_up(p->seq_k, s->kernels->columns);
  s->ld_v = round_up(p->dim_v, s->kernels->columns);
  int64_t heads = p->batch * p->heads_q, kv_heads = p->batch * p->heads_kv;
  int64_t per_head = p->seq_q * s->ld_s;
  s->heads_at_once = per_head > 0 ? SCORE_BYTES / 4 / per_head : heads;
  if (s->heads_at_once > heads) s->heads_at_once = heads;
  if (s->heads_at_once < 1) s->heads_at_once = 1;
  s->scores = floats(s->heads_at_once * per_head);
  s->q = floats(heads * p->seq_q * p->dim_qk);
  s->kt = floats(kv_heads * p->dim_qk * s->ld_s);
  s->v = floats(kv_heads * p->seq_k * s->ld_v);
  s->o = floats((int64_t)s->threads * kTile * s->ld_v);
  if (s->scores == NULL || s->q == NULL || s->kt == NULL || s->v == NULL || s->o == NULL) {
    standard_destroy(s);
    return NULL;
  }
  return s;
}

void standard_destroy(standard_state *state) {
  if (state == NULL) return;
  free(state->scores);
  free(state->q);
  free(state->kt);
  free(state->v);
  free(state->o);
  free(state);
}

// Widened copies: Q dense, K transposed, V with padded rows.
static void widen_inputs(standard_state *s) {
  const standard_problem *p = &s->p;
#pragma omp for schedule(static) nowait
  for (int64_t n = 0; n < p->batch * p->heads_q; ++n) {
    int64_t from = n / p->heads_q * p->q_stride[0] + n % p->heads_q * p->q_stride[1];
    float *to = s->q + n * p->seq_q * p->dim_qk;
    for (int64_t i = 0; i < p->seq_q; ++i) {
      for (int64_t d = 0; d < p->dim_qk; ++d) {
        to[i * p->dim_qk + d] = load(p->dtype, p->q, from + i * p->q_stride[2] + d);
      }
    }
  }
#pragma omp for schedule(static)
  for (int64_t n = 0; n < p->batch * p->heads_kv; ++n) {
    int64_t b = n / p->heads_kv, h = n % p->heads_kv;
    float *kt = s->kt + n * p->dim_qk * s->ld_s;
    float *v = s->v + n * p->seq_k * s->ld_v;
    for (int64_t j = 0; j < p->seq_k; ++j) {
      int64_t k_row = b * p->k_stride[0] + h * p->k_stride[1] + j * p->k_stride[2];
      int64_t v_row = b * p->v_stride[0] + h * p->v_stride[1] + j * p->v_stride[2];
      for (int64_t d = 0; d < p->dim_qk; ++d) kt[d * s->ld_s + j] = load(p->dtype, p->k, k_row + d);
      for (int64_t d = 0; d < p->dim_v; ++d) v[j * s->ld_v + d] = load(p->dtype, p->v, v_row + d);
    }
  }
}

// C[rows x n] = A[rows x depth] B[depth x n], column blocks outermost so that B stays in cache.
static void product(const std_kernels *kernels, const float *a, int64_t a_row, int64_t rows,
                    const float *b, int64_t b_row, int64_t depth, float *c, int64_t c_row,
                    int64_t n) {
  for (int64_t j = 0; j < n; j += kernels->columns) {
    for (int64_t i = 0; i < rows; i += kernels->rows) {
      kernels->block(a + i * a_row, a_row, rows - i, b + j, b_row, depth, c + i * c_row + j, c_row);
    }
  }
}

// Allowed keys of query i: [*begin, *end).
static void interval(const standard_problem *p, int64_t i, int64_t *begin, int64_t *end) {
  int64_t at = i + p->diagonal;
  *begin = 0;
  *end = p->seq_k;
  if (p->left != TSR_UNBOUNDED && at - p->left > 0) *begin = at - p->left;
  if (p->right != TSR_UNBOUNDED && at + p->right + 1 < p->seq_k) *end = at + p->right + 1;
  if (*end < *begin) *end = *begin;
}

static void softmax_row(const standard_state *s, float *row, int64_t head, int64_t i) {
  const standard_problem *p = &s->p;
  const std_kernels *kernels = s->kernels;
  int64_t begin, end;
  interval(p, i, &begin, &end);
  if (begin > p->seq_k) begin = end = p->seq_k;
  memset(row, 0, (size_t)begin * sizeof(float));
  memset(row + end, 0, (size_t)(s->ld_s - end) * sizeof(float));
  float *lse = p->lse != NULL ? p->lse + head * p->seq_q + i : NULL;
  if (end <= begin) {
    if (lse != NULL) *lse = -INFINITY;
    return;
  }
  float scale = p->scale;
  if (p->softcap > 0) {
    for (int64_t j = begin; j < end; ++j) {
      row[j] = p->softcap * tanhf(row[j] * scale / p->softcap);
    }
    scale = 1.0f;
  }
  // A negative scale turns the order round; fold it in so that the maximum is a maximum.
  if (scale < 0) {
    kernels->scale_row(row + begin, end - begin, scale);
    scale = 1.0f;
  }
  float most = kernels->max_row(row + begin, end - begin);
  float sum = kernels->exp_row(row + begin, end - begin, most, scale * 1.44269504f);
  kernels->scale_row(row + begin, end - begin, 1.0f / sum);
  if (lse != NULL) *lse = most * scale + logf(sum);
}

static void run_heads(standard_state *s, int64_t first, int64_t count) {
  const standard_problem *p = &s->p;
  const std_kernels *kernels = s->kernels;
  int64_t tiles = (p->seq_q + kTile - 1) / kTile, group = p->heads_q / p->heads_kv;
#pragma omp for schedule(dynamic, 1)
  for (int64_t t = 0; t < count * tiles; ++t) {
    int64_t n = first + t / tiles, i = t % tiles * kTile;
    int64_t rows = p->seq_q - i < kTile ? p->seq_q - i : kTile;
    int64_t kv = n / p->heads_q * p->heads_kv + n % p->heads_q / group;
    product(kernels, s->q + (n * p->seq_q + i) * p->dim_qk, p->dim_qk, rows,
            s->kt + kv * p->dim_qk * s->ld_s, s->ld_s, p->dim_qk,
            s->scores + ((n - first) * p->seq_q + i) * s->ld_s, s->ld_s, s->ld_s);
  }
#pragma omp for schedule(dynamic, 8)
  for (int64_t r = 0; r < count * p->seq_q; ++r) {
    softmax_row(s, s->scores + r * s->ld_s, first + r / p->seq_q, r % p->seq_q);
  }
#pragma omp for schedule(dynamic, 1)
  for (int64_t t = 0; t < count * tiles; ++t) {
    int64_t n = first + t / tiles, i = t % tiles * kTile;
    int64_t rows = p->seq_q - i < kTile ? p->seq_q - i : kTile;
    int64_t kv = n / p->heads_q * p->heads_kv + n % p->heads_q / group;
    float *out = s->o + (int64_t)omp_get_thread_num() * kTile * s->ld_v;
    product(kernels, s->scores + ((n - first) * p->seq_q + i) * s->ld_s, s->ld_s, rows,
            s->v + kv * p->seq_k * s->ld_v, s->ld_v, p->seq_k, out, s->ld_v, s->ld_v);
    for (int64_t r = 0; r < rows; ++r) {
      int64_t to = n / p->heads_q * p->o_stride[0] + n % p->heads_q * p->o_stride[1] +
                   (i + r) * p->o_stride[2];
      for (int64_t d = 0; d < p->dim_v; ++d) store(p->dtype, p->o, to + d, out[r * s->ld_v + d]);
    }
  }
}

void standard_run(standard_state *s) {
  int64_t heads = s->p.batch * s->p.heads_q;
#pragma omp parallel num_threads(s->threads)
  {
    widen_inputs(s);
    for (int64_t first = 0; first < heads; first += s->heads_at_once) {
      run_heads(s, first, heads - first < s->heads_at_once ? heads - first : s->heads_at_once);
    }
  }
}

double standard_bytes(const standard_problem *p) {
  double element = p->dtype == TSR_DTYPE_F32 ? 4 : 2;
  double rows_q = (double)(p->batch * p->heads_q * p->seq_q);
  double rows_k = (double)(p->batch * p->heads_kv * p->seq_k);
  double inputs = rows_q * (double)p->dim_qk + rows_k * (double)(p->dim_qk + p->dim_v);
  return element * (inputs + rows_q * (double)p->dim_v) + 4.0 * 4.0 * rows_q * (double)p->seq_k;
}
