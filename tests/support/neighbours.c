// SPDX-License-Identifier: Apache-2.0
//
// See neighbours.h.
#include "neighbours.h"

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

/* Reference and baseline on neighbour number `seed`. */
static bool measure_one(tsr_context *context, const tsr_inputs *in, uint32_t passes, uint64_t seed,
                        const tsr_dtype dtype[TSR_OUTPUT_COUNT], tsr_error errors[TSR_OUTPUT_COUNT], char *why,
                        size_t capacity) {
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
  for (which = 0; ok && which < TSR_OUTPUT_COUNT; ++which) {
    tsr_error error;
    if (!ref.out[which].x) continue;
    error = tsr_error_measure(&naive.out[which], &ref.out[which], dtype[which], true);
    tsr_error_join(&errors[which], &error);
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
                            const tsr_dtype dtype[TSR_OUTPUT_COUNT], tsr_error errors[TSR_OUTPUT_COUNT],
                            char *why, size_t capacity) {
  uint64_t n;
  memset(errors, 0, TSR_OUTPUT_COUNT * sizeof *errors);
  for (n = 1; n <= TSR_NEIGHBOURS; ++n)
    if (!measure_one(context, in, passes, in->row->seed + n * UINT64_C(0x9e3779b97f4a7c15), dtype, errors, why,
                     capacity))
      return false;
  return true;
}
