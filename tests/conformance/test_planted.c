// SPDX-License-Identifier: Apache-2.0
//
// Faults that are planted in results must be found: small problems of different kinds, where few elements carry the
// baseline's error and neighbours (tests/support/neighbours.h) have a say, and of each what a backend would make of it
// with one thing wrong. The damaged result is the reference of another problem, in the right type; what is right
// but for rounding must pass.
#include <criterion/criterion.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "conformance.h"
#include "tests/support/backends.h"
#include "tests/support/compare.h"
#include "tests/support/neighbours.h"
#include "tests/support/numeric.h"

enum { PASSES = TSR_PASS_FORWARD | TSR_PASS_BACKWARD, CARRIED = 2048 };

/* Changes the problem, or its numbers. False: it has not what the fault is about. */
typedef bool (*plant_fn)(tsr_case *row, tsr_inputs *in);

static bool other_scale(tsr_case *row, tsr_inputs *in) {
  (void)in;
  row->scale = (row->scale != 0 ? row->scale : 1 / sqrtf((float)row->dim_qk)) * 1.5f;
  return true;
}
static bool wider_window(tsr_case *row, tsr_inputs *in) {
  (void)in;
  row->left++;
  return row->window != TSR_WINDOW_NONE;
}
static bool other_corner(tsr_case *row, tsr_inputs *in) {
  (void)in;
  if (row->causal != TSR_CAUSAL_BOTTOM_RIGHT || row->seq_q == row->seq_k) return false;
  row->causal = TSR_CAUSAL_TOP_LEFT;
  return true;
}
static bool no_softcap(tsr_case *row, tsr_inputs *in) {
  (void)in;
  if (row->softcap == 0) return false;
  row->softcap = 0;
  return true;
}
static bool other_dropout(tsr_case *row, tsr_inputs *in) {
  (void)in;
  row->drop_offset++;
  return row->dropout > 0;
}
static bool no_sink(tsr_case *row, tsr_inputs *in) {
  int64_t i;
  for (i = 0; row->sink && i < tsr_dense_count(&in->sink); ++i) in->sink.x[i] = -(double)INFINITY;
  return row->sink != TSR_SINK_NONE;
}
static bool no_dlse(tsr_case *row, tsr_inputs *in) {
  int64_t i;
  for (i = 0; row->dlse && i < tsr_dense_count(&in->dlse); ++i) in->dlse.x[i] = 0;
  return row->dlse;
}
static bool alibi_of_other_head(tsr_case *row, tsr_inputs *in) {
  int64_t h;
  for (h = 0; row->alibi && h < row->heads_q; ++h)
    *tsr_dense_row(&in->alibi, 0, h, 0) *= 2;
  return row->alibi != TSR_ALIBI_NONE;
}
static bool unmasked(tsr_case *row, tsr_inputs *in) {
  int64_t i;
  for (i = 0; row->mask && i < tsr_dense_count(&in->mask); ++i) in->mask.x[i] = 1;
  return row->mask != TSR_MASK_NONE;
}
static bool no_bias(tsr_case *row, tsr_inputs *in) {
  int64_t i;
  for (i = 0; row->bias && i < tsr_dense_count(&in->bias); ++i)
    if (!isnan(in->bias.x[i])) in->bias.x[i] = 0;
  return row->bias != TSR_BIAS_NONE;
}
/* Rows of a tensor by one place, in all heads. */
static void rotate(tsr_dense *x) {
  int64_t b, h, s, d;
  for (b = 0; b < x->dim[0]; ++b)
    for (h = 0; h < x->dim[1]; ++h)
      for (s = 0; s + 1 < x->dim[2]; ++s)
        for (d = 0; d < x->dim[3]; ++d) {
          double *one = &tsr_dense_row(x, b, h, s)[d], *next = &tsr_dense_row(x, b, h, s + 1)[d], keep = *one;
          *one = *next, *next = keep;
        }
}
static bool shifted_keys(tsr_case *row, tsr_inputs *in) {
  rotate(&in->k);
  return row->seq_k > 1;
}
static bool shifted_values(tsr_case *row, tsr_inputs *in) {
  rotate(&in->v);
  return row->seq_k > 1;
}
/* The second half of every group reads the KV head of the first group. */
static bool other_group(tsr_case *row, tsr_inputs *in) {
  int64_t b, i;
  if (row->heads_kv < 2) return false;
  for (b = 0; b < row->batch; ++b)
    for (i = 0; i < row->seq_k * in->k.dim[3]; ++i)
      tsr_dense_row(&in->k, b, 1, 0)[i] = tsr_dense_row(&in->k, b, 0, 0)[i];
  return true;
}
/* The last columns of Q are left out, as by a loop over whole vectors. */
static bool lost_column(tsr_case *row, tsr_inputs *in) {
  int64_t i;
  for (i = row->dim_qk - 1; i < tsr_dense_count(&in->q); i += row->dim_qk) in->q.x[i] = 0;
  return row->dim_qk > 1;
}
static bool lost_value(tsr_case *row, tsr_inputs *in) {
  int64_t b, h, d;
  for (b = 0; b < row->batch; ++b)
    for (h = 0; h < row->heads_kv; ++h)
      for (d = 0; d < in->v.dim[3]; ++d) tsr_dense_row(&in->v, b, h, row->seq_k / 2)[d] = 0;
  return row->seq_k > 1;
}

/* Outputs that a fault shows in: at least one of these has to be outside of its bound. */
enum { FORWARD = 1u << TSR_OUTPUT_O, BACKWARD = 1u << TSR_OUTPUT_DQ | 1u << TSR_OUTPUT_DK | 1u << TSR_OUTPUT_DV };

static const struct plant {
  const char *name;
  plant_fn apply;
  uint32_t outputs;
} plants[] = {{"scale", other_scale, FORWARD | BACKWARD},
              {"window", wider_window, FORWARD | BACKWARD},
              {"corner", other_corner, FORWARD},
              {"softcap", no_softcap, FORWARD | BACKWARD},
              {"dropout", other_dropout, FORWARD},
              {"sink", no_sink, FORWARD | BACKWARD},
              {"dlse", no_dlse, BACKWARD},
              {"alibi", alibi_of_other_head, FORWARD | BACKWARD},
              {"mask", unmasked, FORWARD},
              {"bias", no_bias, FORWARD},
              {"keys", shifted_keys, FORWARD},
              {"values", shifted_values, FORWARD},
              {"group", other_group, FORWARD},
              {"column", lost_column, FORWARD | BACKWARD},
              {"value", lost_value, FORWARD}};

static const tsr_case problems[] = {
    {.name = "causal", .batch = 1, .heads_q = 1, .heads_kv = 1, .seq_q = 3, .seq_k = 5, .dim_qk = 8, .dim_v = 8,
     .causal = TSR_CAUSAL_BOTTOM_RIGHT},
    {.name = "window", .batch = 1, .heads_q = 2, .heads_kv = 1, .seq_q = 9, .seq_k = 9, .dim_qk = 7, .dim_v = 5,
     .window = TSR_WINDOW_TOP_LEFT, .left = 2, .right = 1, .softcap = 1.5f},
    {.name = "grouped", .batch = 1, .heads_q = 4, .heads_kv = 2, .seq_q = 4, .seq_k = 6, .dim_qk = 16, .dim_v = 8,
     .sink = TSR_SINK_NORMAL, .dlse = true},
    {.name = "masked", .batch = 2, .heads_q = 1, .heads_kv = 1, .seq_q = 5, .seq_k = 12, .dim_qk = 8, .dim_v = 8,
     .mask = TSR_MASK_RANDOM, .seed = 3},
    {.name = "biased", .batch = 1, .heads_q = 2, .heads_kv = 2, .seq_q = 6, .seq_k = 7, .dim_qk = 4, .dim_v = 12,
     .bias = TSR_BIAS_NORMAL, .alibi = TSR_ALIBI_PER_HEAD, .seed = 5},
    {.name = "dropped", .batch = 1, .heads_q = 1, .heads_kv = 1, .seq_q = 8, .seq_k = 16, .dim_qk = 8, .dim_v = 4,
     .dropout = 0.25f, .drop_seed = 7, .dlse = true},
    {.name = "alike", .batch = 1, .heads_q = 1, .heads_kv = 1, .seq_q = 4, .seq_k = 6, .dim_qk = 8, .dim_v = 16,
     .dist = TSR_DIST_OFFSET, .offset_logit = 20, .amplitude = 10},
    {.name = "outliers", .batch = 1, .heads_q = 1, .heads_kv = 1, .seq_q = 7, .seq_k = 10, .dim_qk = 8, .dim_v = 8,
     .dist = TSR_DIST_OUTLIERS, .seed = 11}};

typedef struct trial {
  tsr_inputs in;
  tsr_results ref, naive;
  tsr_neighbours near;
  bool near_known;
  int asked; /* how often neighbours had a say */
} trial;

static tsr_dtype dtype_of(const trial *t, int which) {
  return which == TSR_OUTPUT_LSE || which == TSR_OUTPUT_MAX_LOGIT || which == TSR_OUTPUT_DSINK ? TSR_DTYPE_F32
         : which == TSR_OUTPUT_DBIAS                                                           ? t->in.bias_dtype
                                                                                               : t->in.dtype;
}

/* As check.c judges an output. x becomes rounded. */
static double judge(trial *t, tsr_output which, tsr_dense *x) {
  const tsr_dense *ref = &t->ref.out[which], *naive = &t->naive.out[which];
  const double scores = tsr_dense_largest(&t->ref.out[TSR_OUTPUT_LSE]);
  const tsr_dtype dtype = dtype_of(t, which);
  tsr_dtype dtypes[TSR_OUTPUT_COUNT];
  tsr_error error, own = tsr_error_measure(naive, ref, dtype, true);
  tsr_bound bound;
  double ratio;
  char why[256] = "";
  int64_t i;
  int n;
  for (i = 0; i < tsr_dense_count(x); ++i) x->x[i] = tsr_test_round(dtype, x->x[i]);
  error = tsr_error_measure(x, ref, dtype, true);
  bound = tsr_bound_make(&own, &error, which, dtype, scores);
  ratio = tsr_error_ratio(&error, &bound);
  if (ratio <= 1 || error.broken >= 0 || own.effective > CARRIED) return ratio;
  for (n = 0; n < TSR_OUTPUT_COUNT; ++n) dtypes[n] = dtype_of(t, n);
  if (!t->near_known)
    cr_assert(tsr_neighbours_measure(NULL, &t->in, PASSES, dtypes, &t->near, why, sizeof why), "%s", why);
  t->near_known = true;
  t->asked++;
  return tsr_neighbours_ratio(&t->near, which, x, ref, naive, &error, &own, &bound, dtype, scores);
}

/* Largest ratio over `outputs` of what the reference makes of `in`. */
static double worst(trial *t, const tsr_inputs *in, uint32_t outputs) {
  tsr_results results;
  char why[256] = "";
  double most = 0;
  int which;
  cr_assert(tsr_backends_truth(NULL, in, TSR_TRUTH_REF64, PASSES, &results, why, sizeof why), "%s", why);
  for (which = 0; which < TSR_OUTPUT_COUNT; ++which)
    if (outputs >> which & 1 && results.out[which].x)
      most = fmax(most, judge(t, (tsr_output)which, &results.out[which]));
  tsr_results_destroy(&results);
  return most;
}

static int plant_all(trial *t, const tsr_case *problem, tsr_dtype dtype) {
  size_t n;
  int found = 0;
  for (n = 0; n < sizeof plants / sizeof plants[0]; ++n) {
    tsr_inputs damaged;
    tsr_case row = *problem;
    double ratio;
    cr_assert(tsr_inputs_create(&damaged, problem, dtype));
    if (plants[n].apply(&row, &damaged)) {
      damaged.row = &row;
      ratio = worst(t, &damaged, plants[n].outputs);
      cr_expect(ratio > 1, "%s %s: the fault '%s' is not found: %g of its bound", problem->name,
                tsr_check_dtype_name(dtype), plants[n].name, ratio);
      found += ratio > 1;
    }
    damaged.row = problem;
    tsr_inputs_destroy(&damaged);
  }
  return found;
}

Test(planted, faults_are_found) {
  static const tsr_dtype dtypes[] = {TSR_DTYPE_F32, TSR_DTYPE_F16, TSR_DTYPE_BF16};
  int found = 0, asked = 0;
  size_t p, d;
  for (p = 0; p < sizeof problems / sizeof problems[0]; ++p)
    for (d = 0; d < 3; ++d) {
      trial t;
      char why[256] = "";
      memset(&t, 0, sizeof t);
      cr_assert(tsr_inputs_create(&t.in, &problems[p], dtypes[d]));
      cr_assert(tsr_backends_truth(NULL, &t.in, TSR_TRUTH_REF64, PASSES, &t.ref, why, sizeof why), "%s", why);
      cr_assert(tsr_backends_truth(NULL, &t.in, TSR_TRUTH_NAIVE, PASSES, &t.naive, why, sizeof why), "%s", why);
      cr_expect_leq(worst(&t, &t.in, ~0u), 1, "%s: what is right does not pass", problems[p].name);
      found += plant_all(&t, &problems[p], dtypes[d]);
      asked += t.asked;
      if (t.near_known) tsr_neighbours_destroy(&t.near);
      tsr_results_destroy(&t.ref);
      tsr_results_destroy(&t.naive);
      tsr_inputs_destroy(&t.in);
    }
  cr_log_info("%d faults found, %d results held against neighbours", found, asked);
  cr_expect(found > 150 && asked > 150, "%d faults, %d with neighbours", found, asked);
}
