// SPDX-License-Identifier: Apache-2.0
//
// The two calls beside forward and backward, in double precision:
//   merge         LSE = ln sum_i exp(LSE_i),  O = sum_i exp(LSE_i - LSE) O_i
//   dropout mask  the keep bit of every (b, h, i, j)
// A part whose LSE is -inf is skipped before its O is read; a single part that is left has weight
// exp(0) = 1 and comes through exactly. Weights are exp(LSE_i - m) over their sum, not
// exp(LSE_i - LSE): where |LSE| is huge, adding ln of the sum to m would round it away. An output
// may be the memory of a part: a row's LSE is written after all of its columns, and a column after
// all of its parts were read.
#include <math.h>

#include "attention_ref.h"
#include "common/bias.h"

enum { CHUNK = 64 };

/* The largest LSE of one row and the sum of exp(LSE_i - m); -inf and 0 when all parts are empty. */
static double weigh(const tsr_merge_problem *p, const float *const *lse_parts, int64_t at,
                    double *sum) {
  double m = -INFINITY;
  int64_t n;
  *sum = 0;
  for (n = 0; n < p->parts; n++) {
    const double x = lse_parts[n][at];
    if (x > m || isnan(x)) m = x;
  }
  if (m == -INFINITY) return m;
  for (n = 0; n < p->parts; n++) *sum += exp(lse_parts[n][at] - m);
  return m;
}

static void merge_row(const tsr_merge_problem *p, const void *const *o_parts,
                      const float *const *lse_parts, void *o, float *lse, int64_t b, int64_t h,
                      int64_t row) {
  const int64_t lse_at = tsri_row_offset(p->lse_part.stride, b, h, row);
  const int64_t part_at = tsri_row_offset(p->o_part.stride, b, h, row);
  const int64_t out_at = tsri_row_offset(p->o.stride, b, h, row);
  double sum;
  const double m = weigh(p, lse_parts, lse_at, &sum);
  int64_t d0, d, n;
  for (d0 = 0; d0 < p->dim_v; d0 += CHUNK) {
    const int64_t width = p->dim_v - d0 < CHUNK ? p->dim_v - d0 : CHUNK;
    double acc[CHUNK] = {0};
    for (n = 0; n < p->parts; n++) {
      const double x = lse_parts[n][lse_at];
      double weight;
      if (x == -INFINITY) continue;
      weight = exp(x - m) / sum;
      for (d = 0; d < width; d++)
        acc[d] += weight * tsri_load_f64(p->o_part.dtype, o_parts[n],
                                         part_at + (d0 + d) * p->o_part.stride[3]);
    }
    for (d = 0; d < width; d++)
      tsri_store_f64(p->o.dtype, o, out_at + (d0 + d) * p->o.stride[3], acc[d]);
  }
  if (p->lse.dtype != TSR_DTYPE_NONE)
    lse[tsri_row_offset(p->lse.stride, b, h, row)] = (float)(m == -INFINITY ? m : m + log(sum));
}

void tsri_ref_merge(const tsr_merge_problem *problem, const void *const *o_parts,
                    const float *const *lse_parts, void *o, float *lse) {
  int64_t b, h, row;
  for (b = 0; b < problem->batch; b++)
    for (h = 0; h < problem->heads; h++)
      for (row = 0; row < problem->seq; row++)
        merge_row(problem, o_parts, lse_parts, o, lse, b, h, row);
}

void tsri_ref_dropout_mask(const tsr_dropout_problem *problem, uint8_t *mask) {
  const tsri_dropout_key key = tsri_dropout_key_make(problem->seed, problem->offset);
  const uint64_t threshold = tsri_dropout_threshold(problem->dropout);
  int64_t b, h, i, j;
  for (b = 0; b < problem->batch; b++)
    for (h = 0; h < problem->heads; h++)
      for (i = 0; i < problem->seq_q; i++)
        for (j = 0; j < problem->seq_k; j++)
          mask[tsri_pair_offset(problem->mask.stride, b, h, i, j)] =
              (uint8_t)tsri_dropout_keep(key, threshold, b * problem->heads + h, i, j);
}
