// SPDX-License-Identifier: Apache-2.0
//
// Merging: attention over pieces of the keys, merged, is attention over all keys. And the corners: parts
// without keys, all parts without keys (0, -inf), garbage in a part that contributes nothing, results
// written over a part, strides, very many parts.
#include <criterion/criterion.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "conformance.h"
#include "tests/support/compare.h"
#include "tests/support/numeric.h"

enum { B = 2, H = 4, HKV = 2, SQ = 19, SK = 157, D = 40, PARTS_MAX = 6 };

/* A context in which only one backend may be used, so that it merges too, and memory where its tensors
 * live. */
typedef struct desk {
  tsr_context *context;
  tsr_device device;
  tsr_block block;
  size_t used;
} desk;

static desk desk_open(const char *backend, size_t bytes) {
  tsr_context_options options = TSR_CONTEXT_OPTIONS_INIT;
  desk d = {0};
  options.backend = backend;
  cr_assert_eq(tsr_context_create(&d.context, &options), TSR_STATUS_SUCCESS, "%s",
               tsr_last_message());
  d.device = tsr_backends_device(d.context, backend, 0);
  cr_assert(tsr_block_create_on(&d.block, d.device, bytes, 64, false), "%s", tsr_block_reason());
  return d;
}

static void desk_close(desk *d) {
  tsr_block_destroy(&d->block);
  tsr_context_destroy(d->context);
}

/* Bytes of the desk, holding what from holds unless it is NULL. */
static void *desk_take(desk *d, const void *from, size_t bytes) {
  unsigned char *at = d->block.data + d->used;
  d->used += (bytes + 15) / 16 * 16;
  cr_assert_leq(d->used, d->block.size);
  if (from) memcpy(at, from, bytes);
  return at;
}

/* The merge, done when it returns. */
static void desk_merge(const desk *d, const tsr_merge_problem *m, const void *const *o_parts,
                       const float *const *lse_parts, void *o, float *lse) {
  int64_t where = 0;
  cr_assert_eq(tsr_merge(d->context, d->device, m, o_parts, lse_parts, o, lse, NULL),
               TSR_STATUS_SUCCESS, "%s", tsr_last_message());
  if (d->block.gpu) cr_assert(tsr_gpu_synchronize(d->block.gpu), "%s", tsr_gpu_error());
  cr_assert(tsr_block_intact(&d->block, &where), "byte %lld was written", (long long)where);
}

static tsr_case whole_row(void) {
  tsr_case row = {0};
  row.name = "merge", row.group = "merge";
  row.batch = B, row.heads_q = H, row.heads_kv = HKV;
  row.seq_q = SQ, row.seq_k = SK, row.dim_qk = D, row.dim_v = D;
  row.o_f32 = true;
  return row;
}

/* Attention over keys first .. first + count - 1, as dense float32 arrays. */
static bool run_part(desk *table, const char *backend, const tsr_inputs *whole, int64_t first,
                     int64_t count, float **o, float **lse) {
  tsr_case row = *whole->row;
  tsr_inputs in;
  tsr_results r;
  bool refused, ok;
  int64_t b, h, j, i, n;
  row.seq_k = count;
  cr_assert(tsr_inputs_create(&in, &row, whole->dtype));
  memcpy(in.q.x, whole->q.x, (size_t)tsr_dense_count(&in.q) * sizeof(double));
  for (b = 0; b < B; ++b)
    for (h = 0; h < HKV; ++h)
      for (j = 0; j < count; ++j) {
        memcpy(tsr_dense_row(&in.k, b, h, j), tsr_dense_row(&whole->k, b, h, first + j),
               D * sizeof(double));
        memcpy(tsr_dense_row(&in.v, b, h, j), tsr_dense_row(&whole->v, b, h, first + j),
               D * sizeof(double));
      }
  ok = conform_run(table->context, backend, &in, &row, TSR_PASS_FORWARD, &r, &refused);
  if (ok) {
    n = tsr_dense_count(&r.out[TSR_OUTPUT_O]);
    *o = (float *)desk_take(table, NULL, (size_t)n * sizeof(float));
    for (i = 0; i < n; ++i) (*o)[i] = (float)r.out[TSR_OUTPUT_O].x[i];
    n = tsr_dense_count(&r.out[TSR_OUTPUT_LSE]);
    *lse = (float *)desk_take(table, NULL, (size_t)n * sizeof(float));
    for (i = 0; i < n; ++i) (*lse)[i] = (float)r.out[TSR_OUTPUT_LSE].x[i];
  }
  tsr_results_destroy(&r);
  tsr_inputs_destroy(&in);
  return ok;
}

static tsr_merge_problem merge_problem(int64_t parts) {
  tsr_merge_problem m = {sizeof m};
  m.parts = parts;
  m.batch = B, m.heads = H, m.seq = SQ, m.dim_v = D;
  m.o_part.dtype = m.lse_part.dtype = m.o.dtype = m.lse.dtype = TSR_DTYPE_F32;
  return m;
}

static void to_dense(tsr_dense *dense, int64_t last, const float *x) {
  int64_t i;
  cr_assert(tsr_dense_create(dense, B, H, SQ, last));
  for (i = 0; i < tsr_dense_count(dense); ++i) dense->x[i] = (double)x[i];
}

static void check_split(const char *backend, tsr_dtype dtype, const int64_t *cuts, int parts) {
  enum { O = B * H * SQ * D, LSE = B * H * SQ };
  desk d = desk_open(backend, (PARTS_MAX + 1) * (O + LSE) * sizeof(float));
  tsr_case row = whole_row();
  tsr_inputs in;
  tsr_results ref, naive;
  float *o[PARTS_MAX] = {0}, *lse[PARTS_MAX] = {0};
  float *merged = (float *)desk_take(&d, NULL, O * sizeof(float));
  float *merged_lse = (float *)desk_take(&d, NULL, LSE * sizeof(float));
  tsr_merge_problem m = merge_problem(parts);
  char why[256];
  int n, which;
  cr_assert(tsr_inputs_create(&in, &row, dtype));
  for (n = 0; n < parts; ++n)
    cr_assert(run_part(&d, backend, &in, cuts[n], cuts[n + 1] - cuts[n], &o[n], &lse[n]));
  desk_merge(&d, &m, (const void *const *)o, (const float *const *)lse, merged, merged_lse);
  cr_assert(tsr_backends_truth(NULL, &in, TSR_TRUTH_REF64, 1, &ref, why, sizeof why), "%s", why);
  cr_assert(tsr_backends_truth(NULL, &in, TSR_TRUTH_NAIVE, 1, &naive, why, sizeof why), "%s", why);
  for (which = TSR_OUTPUT_O; which <= TSR_OUTPUT_LSE; ++which) {
    tsr_dense x;
    to_dense(&x, which == TSR_OUTPUT_O ? D : 1, which == TSR_OUTPUT_O ? merged : merged_lse);
    tsr_error base = tsr_error_measure(&naive.out[which], &ref.out[which], TSR_DTYPE_F32, false);
    tsr_error error = tsr_error_measure(&x, &ref.out[which], TSR_DTYPE_F32, false);
    tsr_bound bound = tsr_bound_make(&base, &error, (tsr_output)which, TSR_DTYPE_F32,
                                     tsr_dense_largest(&ref.out[TSR_OUTPUT_LSE]));
    cr_assert_leq(tsr_error_ratio(&error, &bound), 1, "%s %s, %d parts, %s: max %g of %g", backend,
                  tsr_check_dtype_name(dtype), parts, tsr_output_name((tsr_output)which), error.max,
                  bound.max);
    tsr_dense_destroy(&x);
  }
  tsr_results_destroy(&ref);
  tsr_results_destroy(&naive);
  tsr_inputs_destroy(&in);
  desk_close(&d);
}

Test(merge, parts_equal_whole) {
  static const int64_t two[] = {0, 64, SK}, uneven[] = {0, 1, 40, 41, 150, SK};
  static const int64_t with_empty[] = {0, 0, 70, 70, SK, SK};
  static const tsr_dtype dtypes[] = {TSR_DTYPE_F32, TSR_DTYPE_F16, TSR_DTYPE_BF16};
  const char *names[16];
  int32_t i, count = tsr_backends_list(NULL, NULL, names, 16);
  size_t d;
  for (i = 0; i < count; ++i)
    for (d = 0; d < 3; ++d) {
      check_split(names[i], dtypes[d], two, 2);
      check_split(names[i], dtypes[d], uneven, 5);
      check_split(names[i], dtypes[d], with_empty, 5);
    }
}

/* One row of three elements; parts in the middle of the parts' list may be empty. */
typedef struct small {
  float o[3], lse;
} small;

static void merge_small(desk *table, tsr_dtype dtype, int parts, const small *in, small *out) {
  tsr_merge_problem m = {sizeof m};
  const void *o_parts[8];
  const float *lse_parts[8];
  void *result;
  float *lse;
  int n, i;
  table->used = 0;
  result = desk_take(table, NULL, sizeof out->o);
  lse = (float *)desk_take(table, NULL, sizeof *lse);
  m.parts = parts;
  m.batch = m.heads = m.seq = 1, m.dim_v = 3;
  m.o_part.dtype = m.o.dtype = dtype;
  m.lse_part.dtype = m.lse.dtype = TSR_DTYPE_F32;
  for (n = 0; n < parts; ++n) {
    void *stored = desk_take(table, NULL, sizeof out->o);
    for (i = 0; i < 3; ++i) tsr_test_store(dtype, stored, i, (double)in[n].o[i]);
    o_parts[n] = stored;
    lse_parts[n] = (const float *)desk_take(table, &in[n].lse, sizeof(float));
  }
  desk_merge(table, &m, o_parts, lse_parts, result, lse);
  out->lse = *lse;
  for (i = 0; i < 3; ++i) out->o[i] = (float)tsr_test_load(dtype, result, i);
}

/* https://github.com/flashinfer-ai/flashinfer/issues/4051: two empty parts gave NaN. */
Test(merge, parts_without_keys) {
  static const tsr_dtype dtypes[] = {TSR_DTYPE_F32, TSR_DTYPE_F16, TSR_DTYPE_BF16};
  const char *names[16];
  int32_t i, count = tsr_backends_list(NULL, NULL, names, 16);
  size_t t;
  for (i = 0; i < count; ++i)
    for (t = 0; t < 3; ++t) {
      desk d = desk_open(names[i], 4096);
      small empty = {{0, 0, 0}, -INFINITY}, garbage = {{NAN, INFINITY, -INFINITY}, -INFINITY};
      small one = {{1, -2, 0.5f}, 3.25f}, other = {{3, 2, 0.5f}, 3.25f}, out;
      merge_small(&d, dtypes[t], 2, (small[]){empty, empty}, &out);
      cr_assert(out.o[0] == 0 && out.o[1] == 0 && out.o[2] == 0 && out.lse == -INFINITY,
                "%s: two empty parts gave %g, %g", names[i], (double)out.o[0], (double)out.lse);
      merge_small(&d, dtypes[t], 2, (small[]){garbage, garbage}, &out);
      cr_assert(out.o[0] == 0 && out.o[1] == 0 && out.o[2] == 0 && out.lse == -INFINITY);
      merge_small(&d, dtypes[t], 3, (small[]){garbage, one, empty}, &out);
      cr_assert(memcmp(&out, &one, sizeof out) == 0, "%s: %g %g", names[i], (double)out.o[0],
                (double)out.lse);
      merge_small(&d, dtypes[t], 1, (small[]){one}, &out);
      cr_assert(memcmp(&out, &one, sizeof out) == 0);
      merge_small(&d, dtypes[t], 2, (small[]){one, other}, &out);
      cr_assert(out.o[0] == 2 && out.o[1] == 0 && out.o[2] == 0.5f, "%g %g %g", (double)out.o[0],
                (double)out.o[1], (double)out.o[2]);
      cr_assert_float_eq(out.lse, 3.25f + logf(2.0f), 1e-6f);
      one.lse = 3000, other.lse = -3000; /* no overflow, no underflow into NaN */
      merge_small(&d, dtypes[t], 2, (small[]){other, one}, &out);
      cr_assert(out.o[0] == 1 && out.lse == 3000);
      desk_close(&d);
    }
}

Test(merge, in_place_and_strided) {
  const char *names[16];
  int32_t n, count = tsr_backends_list(NULL, NULL, names, 16);
  for (n = 0; n < count; ++n) {
    enum { S = 37, E = 8, WIDE = S * 2 * E * 2 };
    desk d = desk_open(names[n], 32768);
    float *a = (float *)desk_take(&d, NULL, S * E * sizeof(float));
    float *b = (float *)desk_take(&d, NULL, S * E * sizeof(float));
    float *wide = (float *)desk_take(&d, NULL, WIDE * sizeof(float));
    float *expected = (float *)desk_take(&d, NULL, S * E * sizeof(float));
    float *la = (float *)desk_take(&d, NULL, S * sizeof(float));
    float *lb = (float *)desk_take(&d, NULL, S * sizeof(float));
    float *expected_lse = (float *)desk_take(&d, NULL, S * sizeof(float));
    const void *parts[2] = {a, b};
    const float *lses[2] = {la, lb};
    tsr_merge_problem m = {sizeof m};
    int i, j;
    m.parts = 2, m.batch = m.heads = 1, m.seq = S, m.dim_v = E;
    m.o_part.dtype = m.lse_part.dtype = m.o.dtype = m.lse.dtype = TSR_DTYPE_F32;
    for (i = 0; i < S * E; ++i) {
      a[i] = (float)tsr_test_normal(1, 1, (uint64_t)i);
      b[i] = (float)tsr_test_normal(1, 2, (uint64_t)i);
    }
    for (i = 0; i < S; ++i) {
      la[i] = (float)tsr_test_normal(1, 3, (uint64_t)i);
      lb[i] = (float)tsr_test_normal(1, 4, (uint64_t)i);
    }
    desk_merge(&d, &m, parts, lses, expected, expected_lse);
    /* Result with every other element and rows apart. */
    for (i = 0; i < WIDE; ++i) tsr_test_poison(TSR_DTYPE_F32, wide, i);
    m.o.order = TSR_ORDER_STRIDED;
    m.o.stride[0] = m.o.stride[1] = S * 4 * E, m.o.stride[2] = 4 * E, m.o.stride[3] = 2;
    m.lse.dtype = TSR_DTYPE_NONE;
    desk_merge(&d, &m, parts, lses, wide, NULL);
    for (i = 0; i < S; ++i)
      for (j = 0; j < 4 * E; ++j)
        if (j < 2 * E && j % 2 == 0)
          cr_assert_eq(wide[i * 4 * E + j], expected[i * E + j / 2]);
        else
          cr_assert(tsr_test_is_poison(TSR_DTYPE_F32, wide, i * 4 * E + j));
    /* Over the second part. */
    memset(&m.o, 0, sizeof m.o);
    m.o.dtype = m.lse.dtype = TSR_DTYPE_F32;
    desk_merge(&d, &m, parts, lses, b, lb);
    cr_assert(memcmp(b, expected, S * E * sizeof *b) == 0 &&
                  memcmp(lb, expected_lse, S * sizeof *lb) == 0,
              "%s: in place differs", names[n]);
    desk_close(&d);
  }
}

Test(merge, very_many_parts) {
  enum { N = 65536 };
  const void **parts = (const void **)malloc(N * sizeof *parts);
  const float **lses = (const float **)malloc(N * sizeof *lses);
  const float part = 0.75f, lse = 1.5f;
  const char *names[16];
  int32_t n, count = tsr_backends_list(NULL, NULL, names, 16), i;
  for (n = 0; n < count; ++n) {
    desk d = desk_open(names[n], 64);
    const void *one = desk_take(&d, &part, sizeof part);
    const float *one_lse = (const float *)desk_take(&d, &lse, sizeof lse);
    float *o = (float *)desk_take(&d, NULL, sizeof *o);
    float *total = (float *)desk_take(&d, NULL, sizeof *total);
    tsr_merge_problem m = {sizeof m};
    for (i = 0; i < N; ++i) parts[i] = one, lses[i] = one_lse;
    m.parts = N, m.batch = m.heads = m.seq = m.dim_v = 1;
    m.o_part.dtype = m.lse_part.dtype = m.o.dtype = m.lse.dtype = TSR_DTYPE_F32;
    desk_merge(&d, &m, parts, lses, o, total);
    cr_assert_float_eq(*o, part, 1e-5f, "%s: %g", names[n], (double)*o);
    cr_assert_float_eq(*total, lse + 16 * logf(2.0f), 1e-4f, "%s: %g", names[n], (double)*total);
    desk_close(&d);
  }
  free(parts);
  free(lses);
}
