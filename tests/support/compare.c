// SPDX-License-Identifier: Apache-2.0
//
// See compare.h. tests/conformance/test_comparer.c checks that every way to be wrong is noticed.
#include "compare.h"

#include <math.h>
#include <string.h>

#include "common/dtype.h"
#include "numeric.h"

/* Probabilities below the smallest normal float32, 2^-126, may be taken for zero; a row has many. */
#define FLUSHED 0x1p-120
/* Of scores: products of 8-bit elements are added up with 14 bits at least. */
#define SUMS8 0x1p-11

/* Whether an element is not comparable as a number; *broken when the sides disagree. */
static bool special(double x, double ref, tsr_dtype dtype, bool allow_nan, bool *broken) {
  *broken = false;
  if (isnan(ref) || isnan(x)) {
    *broken = isnan(ref) != isnan(x) || !allow_nan;
    return true;
  }
  if (isinf(ref)) {
    *broken = x != ref;
    return true;
  }
  if (isinf(x)) {
    double rounded = tsr_test_round(dtype, ref);
    *broken = x != rounded;
    return true;
  }
  return false;
}

/* Elements of one problem that carry the error. */
static double effective_of(const tsr_error *e) {
  const double distinct = (double)e->distinct;
  const double all = e->fourths > 0 ? fmin(distinct, 3 * e->squares * e->squares / e->fourths) : distinct;
  return e->problems > 1 ? all / (double)e->problems : all;
}

tsr_error tsr_error_measure(const tsr_dense *x, const tsr_dense *ref, tsr_dtype dtype,
                            bool allow_nan) {
  tsr_error e = {0};
  int64_t i, count = tsr_dense_count(ref);
  double sum = 0, fourth = 0, ref_sum = 0;
  e.broken = -1, e.problems = 1;
  for (i = 0; i < count; ++i) {
    bool broken;
    double d;
    if (special(x->x[i], ref->x[i], dtype, allow_nan, &broken)) {
      if (broken && e.broken < 0) e.broken = i;
      continue;
    }
    d = fabs(x->x[i] - ref->x[i]);
    sum += d * d;
    fourth += d * d * d * d;
    ref_sum += ref->x[i] * ref->x[i];
    if (fabs(ref->x[i]) > e.ref_max) e.ref_max = fabs(ref->x[i]);
    if (d > e.max) e.max = d, e.worst = i;
    e.finite++;
    if (i < ref->dim[3] || ref->x[i] != ref->x[i - ref->dim[3]]) e.distinct++;
  }
  if (e.finite) {
    e.rms = sqrt(sum / (double)e.finite);
    e.ref_rms = sqrt(ref_sum / (double)e.finite);
  }
  e.squares = sum, e.fourths = fourth;
  e.effective = effective_of(&e);
  return e;
}

void tsr_error_join(tsr_error *to, const tsr_error *more) {
  to->max = fmax(to->max, more->max);
  to->ref_max = fmax(to->ref_max, more->ref_max);
  to->squares += more->squares, to->fourths += more->fourths;
  to->finite += more->finite, to->distinct += more->distinct;
  to->problems += more->problems;
  to->rms = to->finite ? sqrt(to->squares / (double)to->finite) : 0;
  to->effective = effective_of(to);
}

double tsr_dense_largest(const tsr_dense *dense) {
  int64_t i, count = dense->x ? tsr_dense_count(dense) : 0;
  double largest = 0;
  for (i = 0; i < count; ++i)
    if (isfinite(dense->x[i])) largest = fmax(largest, fabs(dense->x[i]));
  return largest;
}

tsr_bound tsr_bound_make(const tsr_error *naive, const tsr_error *error, tsr_output output,
                         tsr_dtype dtype, double scores) {
  tsri_dtype_info info = tsri_dtype_describe(dtype);
  double largest = error->ref_max, typical = error->ref_rms;
  double spread = error->distinct ? 1 + 2 / sqrt(fmin((double)error->distinct, fmax(naive->effective, 1)))
                                  : 3;
  tsr_bound bound;
  if (output == TSR_OUTPUT_LSE || output == TSR_OUTPUT_MAX_LOGIT) {
    largest = fmax(largest, 1);
    typical = fmax(typical, 1);
  }
  if (naive->finite == 0 && error->finite > 0) {
    bound.max = (info.bound + 8 * info.bound_sqrt) * info.roundoff * largest;
    bound.rms = 4 * info.roundoff * typical;
    return bound;
  }
  bound.max =
      2 * naive->max + (info.max_slack * info.roundoff + scores * 0x1p-24) * largest;
  bound.rms = spread * (info.rms_factor * naive->rms + info.rms_slack * info.roundoff * typical);
  bound.max += FLUSHED;
  bound.rms += FLUSHED;
  return bound;
}

void tsr_bound_add_operand(tsr_bound *bound, const tsr_error *error, tsr_output output, tsr_dtype q) {
  tsri_dtype_info info = tsri_dtype_describe(q);
  bool scores = output == TSR_OUTPUT_LSE || output == TSR_OUTPUT_MAX_LOGIT;
  if (!tsri_dtype_needs_scale(q)) return;
  bound->max += scores ? SUMS8 * fmax(error->ref_max, 1) : info.max_slack * info.roundoff * error->ref_max;
  bound->rms += scores ? SUMS8 * fmax(error->ref_rms, 1) : info.rms_slack * info.roundoff * error->ref_rms;
}

static double over(double error, double bound) {
  if (error == 0) return 0;
  return bound > 0 ? error / bound : (double)INFINITY;
}

double tsr_error_ratio(const tsr_error *error, const tsr_bound *bound) {
  if (error->broken >= 0) return (double)INFINITY;
  return fmax(over(error->max, bound->max), over(error->rms, bound->rms));
}

static bool zero_row(const double *row, int64_t count) {
  int64_t i;
  for (i = 0; i < count; ++i)
    if (row[i] != 0) return false; /* also NaN */
  return true;
}

int64_t tsr_zero_rows(const tsr_dense *x, const tsr_dense *ref, const tsr_dense *also) {
  int64_t rows = ref->dim[0] * ref->dim[1] * ref->dim[2], r;
  for (r = 0; r < rows; ++r) {
    if (!zero_row(ref->x + r * ref->dim[3], ref->dim[3])) continue;
    if (also && !zero_row(also->x + r * also->dim[3], also->dim[3])) continue;
    if (!zero_row(x->x + r * x->dim[3], x->dim[3])) return r;
  }
  return -1;
}

bool tsr_dense_equal(const tsr_dense *a, const tsr_dense *b, int64_t *first) {
  int64_t i, count = tsr_dense_count(a);
  for (i = 0; i < count; ++i) {
    if (memcmp(&a->x[i], &b->x[i], sizeof(double)) == 0) continue;
    if (isnan(a->x[i]) && isnan(b->x[i])) continue;
    if (first) *first = i;
    return false;
  }
  return true;
}
