// SPDX-License-Identifier: Apache-2.0
//
// Tests of the tests: every way to be wrong that the support library promises to notice is tried on it,
// first piece by piece, then by damaging the outputs of a run that was right.
#include <criterion/criterion.h>
#include <math.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>

#include "conformance.h"
#include "tests/support/backends.h"
#include "tests/support/compare.h"
#include "tests/support/neighbours.h"
#include "tests/support/numeric.h"
#include "tests/support/tensor.h"

static tsr_dense of(int64_t n, const double *x) {
  tsr_dense d;
  cr_assert(tsr_dense_create(&d, 1, 1, 1, n));
  memcpy(d.x, x, (size_t)n * sizeof(double));
  return d;
}

static tsr_error measure(double x, double ref, bool allow_nan) {
  tsr_dense a = of(1, &x), b = of(1, &ref);
  tsr_error e = tsr_error_measure(&a, &b, TSR_DTYPE_F16, allow_nan);
  tsr_dense_destroy(&a);
  tsr_dense_destroy(&b);
  return e;
}

/* https://github.com/tracel-ai/cubecl/pull/1070: a checker passed anything where the reference is NaN. */
Test(comparer, nan_on_one_side_fails) {
  cr_assert_eq(measure((double)NAN, 1, true).broken, 0);
  cr_assert_eq(measure(1, (double)NAN, true).broken, 0);
  cr_assert_eq(measure(1, (double)NAN, false).broken, 0);
  cr_assert_eq(measure((double)NAN, (double)NAN, true).broken, -1);
  cr_assert_eq(measure((double)NAN, (double)NAN, false).broken, 0);
  tsr_error e = measure((double)NAN, 1, true);
  tsr_bound loose = {1e300, 1e300};
  cr_assert_eq(tsr_error_ratio(&e, &loose), (double)INFINITY);
}

Test(comparer, infinities_must_agree) {
  const double inf = (double)INFINITY;
  cr_assert_eq(measure(inf, inf, false).broken, -1);
  cr_assert_eq(measure(-inf, inf, false).broken, 0);
  cr_assert_eq(measure(1, inf, false).broken, 0);
  cr_assert_eq(measure(65504, inf, false).broken, 0);
  cr_assert_eq(measure(inf, 1, false).broken, 0);
  cr_assert_eq(measure(inf, 70000, false).broken, -1);  /* past float16's largest */
  cr_assert_eq(measure(-inf, 70000, false).broken, 0);
}

Test(comparer, errors_and_bounds) {
  const double ref[] = {1, -2, 0.5, 0}, x[] = {1, -2.25, 0.5, 0};
  tsr_dense a = of(4, x), b = of(4, ref);
  tsr_error exact = tsr_error_measure(&b, &b, TSR_DTYPE_F32, false);
  tsr_error e = tsr_error_measure(&a, &b, TSR_DTYPE_F32, false);
  cr_assert(e.max == 0.25 && e.worst == 1 && e.rms == 0.125 && e.ref_max == 2 && e.finite == 4);
  cr_assert(exact.max == 0 && exact.rms == 0);
  tsr_bound bound = tsr_bound_make(&exact, &e, TSR_OUTPUT_O, TSR_DTYPE_F32, 0);
  cr_assert(bound.max > 0 && bound.max < 1e-6);
  cr_assert_gt(tsr_error_ratio(&e, &bound), 1e4);
  cr_assert_eq(tsr_error_ratio(&exact, &bound), 0);
  bound = tsr_bound_make(&e, &e, TSR_OUTPUT_O, TSR_DTYPE_F32, 0);
  cr_assert_leq(tsr_error_ratio(&e, &bound), 1); /* as wrong as the baseline is allowed */
  bound.max *= 1e-3, bound.rms *= 1e-3;
  cr_assert_gt(tsr_error_ratio(&e, &bound), 1);
  tsr_dense_destroy(&a);
  tsr_dense_destroy(&b);
}

Test(comparer, joined_errors) {
  const double ref[] = {1, -2, 0.5, 0}, x[] = {1, -2.25, 0.5, 0}, y[] = {1.5, -2, 0.5, 0};
  tsr_dense r = of(4, ref), a = of(4, x), b = of(4, y);
  tsr_error one = tsr_error_measure(&a, &r, TSR_DTYPE_F32, false), all = {0};
  tsr_error two = tsr_error_measure(&b, &r, TSR_DTYPE_F32, false);
  tsr_error_join(&all, &one);
  cr_assert(all.max == one.max && all.rms == one.rms && all.effective == one.effective);
  tsr_error_join(&all, &two);
  cr_assert(all.max == 0.5 && all.finite == 8 && all.problems == 2);
  cr_assert_float_eq(all.rms, sqrt((0.0625 + 0.25) / 8), 1e-15);
  /* One element of either problem carries the error: of two problems one and a half, at most three. */
  cr_assert(all.effective > 0.5 && all.effective <= one.effective);
  tsr_dense_destroy(&r), tsr_dense_destroy(&a), tsr_dense_destroy(&b);
}

/* Error over bound of dQ as rounded, with `gone` of its columns 0: all that the keys do not have in common. */
static double without_columns(const tsr_neighbours *near, const tsr_results *ref, const tsr_results *naive, bool gone) {
  const tsr_dense *dq = &ref->out[TSR_OUTPUT_DQ], *baseline = &naive->out[TSR_OUTPUT_DQ];
  const double scores = tsr_dense_largest(&ref->out[TSR_OUTPUT_LSE]);
  const int64_t count = tsr_dense_count(dq), dim = dq->dim[3];
  tsr_dense x;
  tsr_error error, own = tsr_error_measure(baseline, dq, TSR_DTYPE_BF16, false);
  tsr_bound bound;
  double ratio;
  int64_t i, common = 0;
  cr_assert(tsr_dense_create(&x, dq->dim[0], dq->dim[1], dq->dim[2], dq->dim[3]));
  for (i = 0; i < count; ++i)
    if (near->most[TSR_OUTPUT_DQ].x[i] > near->most[TSR_OUTPUT_DQ].x[common]) common = i;
  for (i = 0; i < count; ++i)
    x.x[i] = gone && i % dim != common % dim ? 0 : tsr_test_round(TSR_DTYPE_BF16, dq->x[i]);
  error = tsr_error_measure(&x, dq, TSR_DTYPE_BF16, false);
  bound = tsr_bound_make(&own, &error, TSR_OUTPUT_DQ, TSR_DTYPE_BF16, scores);
  ratio = tsr_neighbours_ratio(near, TSR_OUTPUT_DQ, &x, dq, baseline, &error, &own, &bound, TSR_DTYPE_BF16, scores);
  tsr_dense_destroy(&x);
  return ratio;
}

/* Where one element carries it, the baseline's error is luck. Neighbours must neither miss what it is off by over
 * many draws of the problem nor exaggerate it, and what they do not allow must still fail. */
Test(comparer, luck_of_the_baseline) {
  static const tsr_dtype dtypes[TSR_OUTPUT_COUNT] = {TSR_DTYPE_BF16, TSR_DTYPE_F32,  TSR_DTYPE_F32, TSR_DTYPE_BF16,
                                                     TSR_DTYPE_BF16, TSR_DTYPE_BF16, TSR_DTYPE_F32, TSR_DTYPE_F32};
  const uint32_t passes = TSR_PASS_FORWARD | TSR_PASS_BACKWARD;
  enum { DRAWS = 40 };
  tsr_case row = *tsr_case_find("grad_alike_keys_few");
  double own = 0, near = 0, least = (double)INFINITY, most = 0, lost = (double)INFINITY;
  int n, lucky = 0;
  for (n = 0; n < DRAWS; ++n) {
    char why[256] = "";
    tsr_inputs in;
    tsr_results ref, naive;
    tsr_error error;
    tsr_neighbours all;
    row.seed = (uint64_t)n;
    cr_assert(tsr_inputs_create(&in, &row, TSR_DTYPE_BF16));
    cr_assert(tsr_backends_truth(NULL, &in, TSR_TRUTH_REF64, passes, &ref, why, sizeof why), "%s", why);
    cr_assert(tsr_backends_truth(NULL, &in, TSR_TRUTH_NAIVE, passes, &naive, why, sizeof why), "%s", why);
    cr_assert(tsr_neighbours_measure(NULL, &in, passes, dtypes, &all, why, sizeof why), "%s", why);
    error = tsr_error_measure(&naive.out[TSR_OUTPUT_DQ], &ref.out[TSR_OUTPUT_DQ], TSR_DTYPE_BF16, false);
    cr_assert_eq(all.error[TSR_OUTPUT_DQ].problems, TSR_NEIGHBOURS);
    cr_assert_eq(all.error[TSR_OUTPUT_DBIAS].problems, 0); /* the noise has no gradient */
    least = fmin(least, error.max), most = fmax(most, error.max);
    own += error.squares, near += all.error[TSR_OUTPUT_DQ].squares / TSR_NEIGHBOURS;
    cr_assert_leq(without_columns(&all, &ref, &naive, false), 1);
    if (error.max < 0.05 * error.ref_max) /* else its own bound allows for that everywhere */
      lost = fmin(lost, without_columns(&all, &ref, &naive, true)), ++lucky;
    tsr_neighbours_destroy(&all);
    tsr_results_destroy(&ref);
    tsr_results_destroy(&naive);
    tsr_inputs_destroy(&in);
  }
  cr_assert_lt(least, 0.02 * most, "%g %g", least, most); /* luck */
  cr_assert(near > own / 2 && near < own * 2, "%g %g", near, own);
  cr_assert(lucky > 0 && lost > 1, "%d %g", lucky, lost);
}

Test(comparer, rows_that_must_be_zero) {
  const double ref[] = {0, 0, 0, 1}, clean[] = {0, -0.0, 0, 1}, dirty[] = {0, 1e-30, 0, 1};
  const double nan[] = {(double)NAN, 0, 0, 1};
  tsr_dense r = of(4, ref), c = of(4, clean), d = of(4, dirty), n = of(4, nan);
  r.dim[2] = c.dim[2] = d.dim[2] = n.dim[2] = 2;
  r.dim[3] = c.dim[3] = d.dim[3] = n.dim[3] = 2;
  cr_assert_eq(tsr_zero_rows(&c, &r, NULL), -1);
  cr_assert_eq(tsr_zero_rows(&d, &r, NULL), 0);
  cr_assert_eq(tsr_zero_rows(&n, &r, NULL), 0);
  cr_assert_eq(tsr_zero_rows(&d, &r, &d), -1); /* the second reference is not zero there */
  cr_assert(tsr_dense_equal(&n, &n, NULL));
  cr_assert(!tsr_dense_equal(&r, &c, NULL)); /* bits: -0 is not 0 */
  tsr_dense_destroy(&r), tsr_dense_destroy(&c), tsr_dense_destroy(&d), tsr_dense_destroy(&n);
}

Test(comparer, rounding) {
  cr_assert_eq(tsr_test_round(TSR_DTYPE_F16, 1 + 0x1p-11), 1);
  cr_assert_eq(tsr_test_round(TSR_DTYPE_F16, 1 + 0x1.8p-10), 1 + 0x1p-9);
  cr_assert_eq(tsr_test_round(TSR_DTYPE_F16, 65519), 65504);
  cr_assert_eq(tsr_test_round(TSR_DTYPE_F16, 65520), (double)INFINITY);
  cr_assert_eq(tsr_test_round(TSR_DTYPE_F16, -0x1p-24), -0x1p-24);
  cr_assert_eq(tsr_test_round(TSR_DTYPE_F16, 0x1p-25), 0);
  cr_assert_eq(tsr_test_round(TSR_DTYPE_BF16, 1 + 0x1p-8), 1);
  cr_assert_eq(tsr_test_round(TSR_DTYPE_BF16, 1 + 0x1.8p-7), 1 + 0x1p-6);
  uint32_t bits;
  for (bits = 0; bits < 0x10000; ++bits) { /* every number survives a round trip */
    uint16_t h = (uint16_t)bits, back = 0;
    double x = tsr_test_load(TSR_DTYPE_F16, &h, 0);
    tsr_test_store(TSR_DTYPE_F16, &back, 0, x);
    cr_assert(h == back || isnan(x), "%04x", bits);
    x = tsr_test_load(TSR_DTYPE_BF16, &h, 0);
    tsr_test_store(TSR_DTYPE_BF16, &back, 0, x);
    cr_assert(h == back || isnan(x), "%04x", bits);
  }
}

Test(comparer, gaps_are_watched) {
  static const tsr_pattern patterns[] = {TSR_PATTERN_BHSD_GAPS, TSR_PATTERN_BSHD_GAPS,
                                         TSR_PATTERN_EVERY_OTHER, TSR_PATTERN_TRANSPOSED};
  static const tsr_dtype dtypes[] = {TSR_DTYPE_F32, TSR_DTYPE_F16, TSR_DTYPE_BF16};
  const int64_t dim[4] = {2, 2, 3, 5};
  size_t p, t;
  for (p = 0; p < 4; ++p)
    for (t = 0; t < 3; ++t) {
      tsr_buffer buffer;
      double row[5] = {1, 2, 3, 4, 5};
      int64_t b, h, s, i, where = -1, gaps = 0;
      cr_assert(tsr_buffer_create(&buffer, dtypes[t], dim, patterns[p], false, 0));
      cr_assert(tsr_buffer_gaps_intact(&buffer, &where));
      for (b = 0; b < 2; ++b)
        for (h = 0; h < 2; ++h)
          for (s = 0; s < 3; ++s) tsr_buffer_write_row(&buffer, b, h, s, row);
      cr_assert(tsr_buffer_gaps_intact(&buffer, &where));
      for (i = 0; i < buffer.elements; ++i) {
        if (buffer.mark[i]) continue;
        gaps++;
        tsr_test_store(dtypes[t], buffer.block.data, i, (double)NAN); /* also a NaN, but not ours */
        cr_assert(!tsr_buffer_gaps_intact(&buffer, &where));
        cr_assert_eq(where, i);
        tsr_test_poison(dtypes[t], buffer.block.data, i);
      }
      cr_assert_gt(gaps, 0);
      tsr_buffer_destroy(&buffer);
    }
}

/* A run of the reference, then damage: each kind must be reported by gather or by the comparison. */
Test(comparer, damage_is_found) {
  const tsr_case *row = tsr_case_find("packed_slots");
  tsr_inputs in;
  tsr_setup setup;
  tsr_results results;
  tsr_plan *plan = NULL;
  char why[256];
  tsr_buffer *o;
  double zeros[64] = {0}, rows[64];
  cr_assert_not_null(row);
  cr_assert(tsr_inputs_create(&in, row, TSR_DTYPE_F32));
  cr_assert(tsr_setup_create(&setup, &in, row, TSR_DTYPE_F32, 1, why, sizeof why));
  cr_assert_eq(tsr_backends_plan(&plan, NULL, &setup, "reference", NULL), 0);
  o = &setup.out[TSR_OUTPUT_O];
  cr_assert_eq(tsr_setup_run(&setup, plan, NULL), 0);
  cr_assert(tsr_setup_gather(&setup, &results, why, sizeof why), "%s", why);
  tsr_results_destroy(&results);

  /* Sequence 0 has slot 9 and length 7: row 8 must be 0. */
  memset(rows, 0, sizeof rows);
  rows[63] = 1e-20;
  tsr_buffer_write_row(o, 0, 1, 8, rows);
  cr_assert(!tsr_setup_gather(&setup, &results, why, sizeof why));
  tsr_buffer_write_row(o, 0, 1, 8, zeros);
  cr_assert(tsr_setup_gather(&setup, &results, why, sizeof why), "%s", why);
  tsr_results_destroy(&results);

  /* Rows past the last slot belong to nobody. */
  ((float *)tsr_buffer_data(o))[o->elements - 1] = 0;
  cr_assert(!tsr_setup_gather(&setup, &results, why, sizeof why));

  /* An output that was never written holds NaN, which no reference has. */
  tsr_setup_reset(&setup);
  if (tsr_setup_gather(&setup, &results, why, sizeof why)) {
    tsr_results_destroy(&results);
    cr_assert_fail("outputs of no run passed");
  }
  tsr_plan_destroy(plan);
  tsr_setup_destroy(&setup);
  tsr_inputs_destroy(&in);
}

/* The guard pages are there: reading one byte past a block faults. */
Test(comparer, over_read_faults, .signal = SIGSEGV) {
  tsr_block block;
  cr_assert(tsr_block_create(&block, 1000, 8, false));
  signal(SIGSEGV, SIG_DFL); /* a sanitizer's handler would end the process in its own way */
  volatile unsigned char *end = block.data + 1000;
  (void)*end;
}

Test(comparer, under_read_faults, .signal = SIGSEGV) {
  tsr_block block;
  cr_assert(tsr_block_create(&block, 4096, 4096, false));
  signal(SIGSEGV, SIG_DFL);
  volatile unsigned char *before = block.data - 1;
  (void)*before;
}

/* Rows of cases.def have unique names and sane fields. */
Test(comparer, table_is_sane) {
  int32_t i, j, count = tsr_case_count();
  cr_assert_gt(count, 200);
  for (i = 0; i < count; ++i) {
    const tsr_case *row = tsr_case_at(i);
    for (j = 0; j < i; ++j) cr_assert_str_neq(row->name, tsr_case_at(j)->name);
    cr_assert(row->dim_qk >= 1 && row->dim_qk <= 576 && row->dim_v >= 1 && row->dim_v <= 512);
    if (strcmp(row->group, "reports") == 0) cr_assert_not_null(row->note, "%s", row->name);
  }
}
