// SPDX-License-Identifier: Apache-2.0
//
// One batch of sequences laid out in every way the API knows: padded on the right, on the left, packed,
// paged, and each sequence alone. The numbers are the same, so under BATCH_INVARIANT the bits are; the
// memory between them is poison.
#include <criterion/criterion.h>
#include <stdio.h>
#include <string.h>

#include "conformance.h"
#include "tests/support/compare.h"

enum { SEQUENCES = 4, BACKENDS_MAX = 16, FORMS = 5 };

static const int64_t len_q[SEQUENCES] = {17, 65, 1, 40};
static const int64_t len_k[SEQUENCES] = {129, 70, 64, 33};
static const int64_t left_q[SEQUENCES] = {3, 0, 64, 25};
static const int64_t left_k[SEQUENCES] = {0, 59, 1, 96};

/* The problem, with padding on both sides in its lengths. */
static tsr_case base_row(tsr_causal causal, bool features) {
  tsr_case row = {0};
  row.name = "layouts", row.group = "varlen";
  row.batch = SEQUENCES, row.heads_q = 4, row.heads_kv = 2;
  row.seq_q = 67, row.seq_k = 130, row.dim_qk = 40, row.dim_v = 24;
  row.len_q = len_q, row.len_k = len_k, row.left_q = left_q, row.left_k = left_k;
  row.causal = causal;
  row.determinism = TSR_DETERMINISM_BATCH_INVARIANT;
  row.alignment = 16; /* what the fast kernels of some backends ask for */
  if (features) {
    row.bias = TSR_BIAS_NORMAL, row.mask = TSR_MASK_RANDOM, row.alibi = TSR_ALIBI_PER_HEAD;
    row.sink = TSR_SINK_NORMAL, row.softcap = 7.0f, row.max_logit = true;
    row.dropout = 0.2f, row.drop_seed = 99;
  }
  return row;
}

static tsr_case form_of(const tsr_case *row, int which) {
  static const char *const names[FORMS] = {"padded", "left padded", "packed", "paged", "packed bshd"};
  tsr_case form = *row;
  form.name = names[which];
  if (which != 1) form.left_q = form.left_k = NULL;
  if (which == 2 || which == 4) form.packed_q = form.packed_k = true;
  if (which == 3) form.page_size = 16;
  if (which == 4) form.layout = TSR_PATTERN_BSHD;
  return form;
}

/* Sequence b of a result against a run of that sequence alone:
 * https://github.com/Dao-AILab/flash-attention/issues/2374 and /1745. */
static bool compare_alone(tsr_context *context, const char *backend, const tsr_inputs *in,
                          const tsr_results *whole) {
  int64_t b, h, i, d;
  for (b = 0; b < SEQUENCES; ++b) {
    tsr_case alone = *in->row;
    tsr_inputs one;
    tsr_results results;
    bool refused, same = true;
    alone.name = "alone";
    alone.batch = 1;
    alone.len_q = alone.len_k = alone.left_q = alone.left_k = NULL;
    alone.seq_q = len_q[b], alone.seq_k = len_k[b];
    if (!tsr_inputs_create(&one, &alone, in->dtype)) return false;
    for (h = 0; h < 4; ++h)
      for (i = 0; i < len_q[b]; ++i)
        memcpy(tsr_dense_row(&one.q, 0, h, i), tsr_dense_row(&in->q, b, h, i), 40 * sizeof(double));
    for (h = 0; h < 2; ++h)
      for (i = 0; i < len_k[b]; ++i) {
        memcpy(tsr_dense_row(&one.k, 0, h, i), tsr_dense_row(&in->k, b, h, i), 40 * sizeof(double));
        memcpy(tsr_dense_row(&one.v, 0, h, i), tsr_dense_row(&in->v, b, h, i), 24 * sizeof(double));
      }
    if (!conform_run(context, backend, &one, &alone, TSR_PASS_FORWARD, &results, &refused)) {
      tsr_inputs_destroy(&one);
      return refused;
    }
    for (h = 0; same && h < 4; ++h)
      for (i = 0; same && i < len_q[b]; ++i)
        for (d = 0; same && d < 24; ++d) {
          double x = tsr_dense_row(&whole->out[TSR_OUTPUT_O], b, h, i)[d];
          double y = tsr_dense_row(&results.out[TSR_OUTPUT_O], 0, h, i)[d];
          same = memcmp(&x, &y, sizeof x) == 0;
          if (!same)
            printf("%s %s: sequence %lld, head %lld, row %lld: %.9g in the batch, %.9g alone\n",
                   backend, tsr_check_dtype_name(in->dtype), (long long)b, (long long)h,
                   (long long)i, x, y);
        }
    tsr_results_destroy(&results);
    tsr_inputs_destroy(&one);
    if (!same) return false;
  }
  return true;
}

static int compare_forms(const char *backend, const tsr_case *row, tsr_dtype dtype,
                         uint32_t passes) {
  tsr_results first = {0}, other;
  tsr_inputs in;
  int which, failures = 0;
  bool refused;
  cr_assert(tsr_inputs_create(&in, row, dtype));
  for (which = 0; which < FORMS; ++which) {
    tsr_case form = form_of(row, which);
    char title[128];
    if (form.page_size && passes & TSR_PASS_BACKWARD) continue; /* other gradients */
    snprintf(title, sizeof title, "%s %s, padded and %s", backend, tsr_check_dtype_name(dtype),
             form.name);
    if (!conform_run(NULL, backend, &in, &form, passes, &other, &refused)) {
      failures += !refused;
      if (refused) break;
    } else if (which == 0) {
      first = other;
    } else {
      failures += first.out[0].x && !conform_equal(title, &first, &other);
      tsr_results_destroy(&other);
    }
  }
  /* Alone, dropout, bias and mask of another batch index differ. */
  if (first.out[0].x && passes == TSR_PASS_FORWARD && !row->bias)
    failures += !compare_alone(NULL, backend, &in, &first);
  tsr_results_destroy(&first);
  tsr_inputs_destroy(&in);
  return failures;
}

static int all_backends(tsr_causal causal, bool features, uint32_t passes) {
  static const tsr_dtype dtypes[] = {TSR_DTYPE_F32, TSR_DTYPE_F16, TSR_DTYPE_BF16};
  const char *names[BACKENDS_MAX];
  int32_t i, count = tsr_backends_list(NULL, NULL, names, BACKENDS_MAX);
  tsr_case row = base_row(causal, features);
  int failures = 0;
  size_t d;
  cr_assert_gt(count, 0);
  for (i = 0; i < count; ++i)
    for (d = 0; d < 3; ++d) failures += compare_forms(names[i], &row, dtypes[d], passes);
  return failures;
}

Test(varlen, layouts_agree) { cr_assert_eq(all_backends(TSR_CAUSAL_NONE, false, 1), 0); }

Test(varlen, layouts_agree_causal) {
  cr_assert_eq(all_backends(TSR_CAUSAL_BOTTOM_RIGHT, false, 1), 0);
}

/* ALiBi among them: https://github.com/Dao-AILab/flash-attention/issues/907. */
Test(varlen, layouts_agree_all_features) {
  cr_assert_eq(all_backends(TSR_CAUSAL_BOTTOM_RIGHT, true, 1), 0);
}

Test(varlen, layouts_agree_backward) {
  cr_assert_eq(all_backends(TSR_CAUSAL_BOTTOM_RIGHT, false, 3), 0);
}
