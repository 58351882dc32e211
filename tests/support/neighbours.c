// SPDX-License-Identifier: Apache-2.0
//
// See neighbours.h.
#include "neighbours.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "backends.h"
#include "common/dtype.h"
#include "numeric.h"

enum { STREAM_V = 300, STREAM_DOUT = 400, STREAM_BIAS = 500, STREAM_Q = 600 };

/* How far off: several units of the last place of bfloat16, a small part of a number's size. Q is off by units of
 * its own last place alone: scores may be hundreds, and a small part of one is another problem. */
static const double off = 0.04;
static const double units_of_q = 4;

static double noise(uint64_t seed, uint64_t stream, int64_t i) {
  return 2 * tsr_test_uniform(seed, stream, (uint64_t)i) - 1;
}

/* A copy with every element off by a part of itself, at most `part`. What is absent stays so. */
static bool scale_copy(tsr_dense *to, const tsr_dense *from, double part, uint64_t seed, uint64_t stream,
                       tsr_dtype dtype) {
  int64_t i, count;
  memset(to, 0, sizeof *to);
  if (!from->x) return true;
  if (!tsr_dense_create(to, from->dim[0], from->dim[1], from->dim[2], from->dim[3])) return false;
  count = tsr_dense_count(from);
  for (i = 0; i < count; ++i)
    to->x[i] = tsr_test_round(dtype, from->x[i] * (1 + part * noise(seed, stream, i)));
  return true;
}

/* The bias with noise on top, or noise alone, equal in all sequences and heads. */
static bool shift_bias(tsr_dense *to, const tsr_inputs *in, uint64_t seed, tsr_dtype dtype) {
  const tsr_dense *from = &in->bias;
  const tsr_case *row = in->row;
  int64_t i, count;
  if (from->x) {
    if (!tsr_dense_create(to, from->dim[0], from->dim[1], from->dim[2], from->dim[3])) return false;
  } else if (!tsr_dense_create(to, 1, 1, row->seq_q, row->seq_k)) {
    return false;
  }
  count = tsr_dense_count(to);
  for (i = 0; i < count; ++i)
    to->x[i] = tsr_test_round(dtype, (from->x ? from->x[i] : 0) + off * noise(seed, STREAM_BIAS, i));
  return true;
}

/* Joins what one neighbour's baseline is off by. */
static bool join(tsr_neighbours *near, int which, const tsr_dense *naive, const tsr_dense *ref, tsr_dtype dtype) {
  const tsr_error error = tsr_error_measure(naive, ref, dtype, true);
  tsr_dense *most = &near->most[which], *squares = &near->squares[which];
  const int64_t count = tsr_dense_count(ref);
  int64_t i;
  tsr_error_join(&near->error[which], &error);
  if (!most->x && !(tsr_dense_create(most, ref->dim[0], ref->dim[1], ref->dim[2], ref->dim[3]) &&
                    tsr_dense_create(squares, ref->dim[0], ref->dim[1], ref->dim[2], ref->dim[3])))
    return false;
  for (i = 0; i < count; ++i) {
    const double d = fabs(naive->x[i] - ref->x[i]);
    if (!isfinite(d)) continue;
    most->x[i] = fmax(most->x[i], d);
    squares->x[i] += d * d;
  }
  return true;
}

/* Reference and baseline on neighbour number `seed`. */
static bool measure_one(tsr_context *context, const tsr_inputs *in, uint32_t passes, uint64_t seed,
                        const tsr_dtype dtype[TSR_OUTPUT_COUNT], tsr_neighbours *all, char *why, size_t capacity) {
  tsr_inputs near = *in;
  tsr_case row = *in->row;
  const double roundoff = tsri_dtype_describe(in->dtype).roundoff;
  tsr_results ref, naive;
  int which;
  bool ok;
  near.row = &row;
  memset(&near.bias, 0, sizeof near.bias);
  memset(&ref, 0, sizeof ref);
  memset(&naive, 0, sizeof naive);
  row.grads = tsr_inputs_grads(in->row); /* a bias of noise brings no gradient of its own */
  if (!in->bias.x) {
    row.bias = TSR_BIAS_NORMAL, row.bias_over = TSR_OVER_B | TSR_OVER_H;
    near.bias_dtype = TSR_DTYPE_F32;
  }
  ok = scale_copy(&near.q, &in->q, units_of_q * roundoff, seed, STREAM_Q, in->dtype);
  ok = scale_copy(&near.v, &in->v, off, seed, STREAM_V, in->dtype) && ok;
  ok = scale_copy(&near.dout, &in->dout, off, seed, STREAM_DOUT, in->dtype) && ok;
  ok = shift_bias(&near.bias, in, seed, near.bias_dtype) && ok;
  if (!ok) snprintf(why, capacity, "out of memory");
  ok = ok && tsr_backends_truth(context, &near, TSR_TRUTH_REF64, passes, &ref, why, capacity) &&
       tsr_backends_truth(context, &near, TSR_TRUTH_NAIVE, passes, &naive, why, capacity);
  for (which = 0; ok && which < TSR_OUTPUT_COUNT; ++which)
    if (ref.out[which].x && !join(all, which, &naive.out[which], &ref.out[which], dtype[which])) {
      snprintf(why, capacity, "out of memory");
      ok = false;
    }
  tsr_results_destroy(&ref);
  tsr_results_destroy(&naive);
  tsr_dense_destroy(&near.q);
  tsr_dense_destroy(&near.v);
  tsr_dense_destroy(&near.dout);
  tsr_dense_destroy(&near.bias);
  return ok;
}

bool tsr_neighbours_measure(tsr_context *context, const tsr_inputs *in, uint32_t passes,
                            const tsr_dtype dtype[TSR_OUTPUT_COUNT], tsr_neighbours *near, char *why,
                            size_t capacity) {
  uint64_t n;
  int which;
  memset(near, 0, sizeof *near);
  for (which = 0; which < TSR_OUTPUT_COUNT; ++which) near->error[which].broken = -1;
  for (n = 1; n <= TSR_NEIGHBOURS; ++n)
    if (!measure_one(context, in, passes, in->row->seed + n * UINT64_C(0x9e3779b97f4a7c15), dtype, near, why,
                     capacity))
      return false;
  return true;
}

void tsr_neighbours_destroy(tsr_neighbours *near) {
  int which;
  for (which = 0; which < TSR_OUTPUT_COUNT; ++which) {
    if (near->most[which].x) tsr_dense_destroy(&near->most[which]);
    if (near->squares[which].x) tsr_dense_destroy(&near->squares[which]);
  }
  memset(near, 0, sizeof *near);
}

static double over(double error, double bound) {
  if (error == 0) return 0;
  return bound > 0 ? error / bound : (double)INFINITY;
}

double tsr_neighbours_ratio(const tsr_neighbours *near, tsr_output which, const tsr_dense *x, const tsr_dense *ref,
                            const tsr_dense *naive, const tsr_error *error, const tsr_error *naive_error,
                            const tsr_bound *bound, tsr_dtype dtype, double scores) {
  const tsri_dtype_info info = tsri_dtype_describe(dtype);
  const int64_t count = tsr_dense_count(ref), problems = near->error[which].problems + 1;
  tsr_error exact = *naive_error; /* a baseline that is off by nothing: what a bound has besides */
  tsr_bound slack;
  double ratio = 0, others = 0, theirs = 0, base = 0, fourths = 0;
  int64_t n_others = 0, n = 0, i;
  exact.max = exact.rms = 0;
  slack = tsr_bound_make(&exact, error, which, dtype, scores);
  for (i = 0; i < count; ++i) {
    const double d = fabs(x->x[i] - ref->x[i]), own = fabs(naive->x[i] - ref->x[i]);
    const double mean = (near->squares[which].x[i] + (isfinite(own) ? own * own : 0)) / (double)problems;
    if (!isfinite(d)) continue;
    if (near->most[which].x[i] > naive_error->max) {
      ratio = fmax(ratio, over(d, fmax(2 * near->most[which].x[i] + slack.max, bound->max)));
      theirs += d * d, base += mean, fourths += mean * mean, n++;
    } else {
      ratio = fmax(ratio, over(d, bound->max));
      others += d * d, n_others++;
    }
  }
  if (n_others) ratio = fmax(ratio, over(sqrt(others / (double)(n + n_others)), bound->rms));
  if (n) {
    const double carry = fmax(1, fourths > 0 ? 3 * base * base / fourths : 1); /* as tsr_error.effective */
    const double spread = 1 + 3 / sqrt(fmin(carry, (double)n)), all = (double)(n + n_others);
    const double typical = info.rms_factor * sqrt(base / (double)n) + info.rms_slack * info.roundoff * error->ref_rms;
    const double allowed = fmax(spread * typical + slack.rms, bound->rms * sqrt(all / (double)n));
    ratio = fmax(ratio, over(sqrt(theirs / (double)n), allowed));
  }
  return ratio;
}
