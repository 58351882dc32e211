// SPDX-License-Identifier: Apache-2.0
//
// See delta.h. Plain loops over at most 256 rows of K and V: little beside the products of one head.
#include "delta.h"

#include <math.h>

#include "common/delta.h"
#include "common/dtype.h"
#include "common/geometry.h"

/* Rows of K or V of one sequence and KV head. */
typedef struct rows_of {
  const tsr_layout *layout;
  const void *base;
  tsri_pages pages;
  const tsri_span *span;
  int64_t b, g;
} rows_of;

static int64_t offset_of(const rows_of *rows, int64_t i) {
  return tsri_kv_offset(&rows->pages, rows->layout->stride, rows->b, rows->g, rows->span->begin + i);
}

/* Squared mean, less chance, and spread over all columns, each the mean of the samples. */
static void look_at_columns(const rows_of *rows, int64_t columns, float *mean, float *spread) {
  const int32_t all = tsri_delta_rows(rows->span->len), count = all / TSRI_DELTA_PARTS;
  const int64_t step = rows->span->len / all;
  double means = 0, spreads = 0;
  int64_t c, t, part;
  for (part = 0; part < TSRI_DELTA_PARTS; ++part)
    for (c = 0; c < columns; ++c) {
      const int64_t at = c * rows->layout->stride[3];
      const double first = tsri_load_f32(rows->layout->dtype, rows->base, offset_of(rows, part * step) + at);
      double sum = 0, squares = 0; /* less the first one, which may be large */
      for (t = 1; t < count; ++t) {
        const int64_t row = offset_of(rows, (t * TSRI_DELTA_PARTS + part) * step);
        const double x = tsri_load_f32(rows->layout->dtype, rows->base, row + at) - first;
        sum += x;
        squares += x * x;
      }
      sum /= (double)count;
      means += (first + sum) * (first + sum) / TSRI_DELTA_PARTS;
      spreads += fmax(squares / (double)count - sum * sum, 0) / TSRI_DELTA_PARTS;
    }
  *spread = (float)spreads;
  *mean = tsri_delta_mean((float)means, *spread, count);
}

/* Query number n of TSRI_DELTA_QUERIES that are looked at. */
static int64_t query_at(const tsri_sequence *seq, int64_t n) {
  return (2 * n + 1) * seq->q.len / (2 * TSRI_DELTA_QUERIES);
}

/* n sum p^2 of query i of head h, from its stored LSE; key 0 stands for itself, others for all not looked at. */
static double crowd_of(const tsr_problem *p, const tsr_args *args, const tsri_sequence *seq, const rows_of *keys,
                       int64_t h, int64_t i) {
  const tsri_mask_rule rule = tsri_sequence_rule(p, seq);
  const tsri_mask_row band = tsri_mask_row_of(&rule, i);
  const int64_t seen = band.prefix + band.hi - band.lo;
  const int64_t q = tsri_row_offset(p->q.stride, keys->b, h, seq->q.begin + i);
  const double lse = args->lse[tsri_row_offset(p->lse.stride, keys->b, h, seq->q.begin + i)];
  double sum = 0;
  int64_t t, c;
  if (seen <= TSRI_DELTA_KEYS) return 1;
  for (t = 0; t < TSRI_DELTA_KEYS; ++t) {
    const int64_t n = t * (seen / TSRI_DELTA_KEYS);
    const int64_t k = offset_of(keys, n < band.prefix ? n : n - band.prefix + band.lo);
    double dot = 0, w;
    for (c = 0; c < p->dim_qk; ++c)
      dot += (double)tsri_load_f32(p->q.dtype, args->q, q + c * p->q.stride[3]) *
             (double)tsri_load_f32(p->k.dtype, args->k, k + c * p->k.stride[3]);
    w = exp(2 * (dot * (double)p->scale - lse));
    sum += t == 0 ? w : w * (double)(seen - 1) / (TSRI_DELTA_KEYS - 1);
  }
  return (double)seen * sum;
}

static float squared_length(const tsr_problem *p, const tsr_args *args, int64_t at) {
  float sum = 0;
  int64_t c;
  for (c = 0; c < p->dim_qk; ++c) {
    const float x = tsri_load_f32(p->q.dtype, args->q, at + c * p->q.stride[3]);
    sum += x * x;
  }
  return sum;
}

float tsri_cpu_delta_most(const tsr_resolved *problem, const tsr_args *args, int64_t b, int64_t g) {
  const tsr_problem *p = &problem->p;
  const tsri_sequence seq = tsri_sequence_of(p, args, b);
  const rows_of keys = {&p->k, args->k, tsri_pages_of(p, args), &seq.k, b, g};
  const rows_of values = {&p->v, args->v, tsri_pages_of(p, args), &seq.k, b, g};
  tsri_delta_facts facts = {0, 0, 0, 0, 1};
  double shares = 0; /* of 1 / crowd, which the error goes with: a row that looks at one key says nothing of others */
  const int f32 = p->q.dtype == TSR_DTYPE_F32;
  float queries = 0;
  int64_t n;
  if (seq.q.len == 0 || seq.k.len == 0) return (float)INFINITY;
  look_at_columns(&keys, p->dim_qk, &facts.key, &facts.key_spread);
  /* Short heads are looked at as well, so what does not matter to float32 is not looked for. */
  if (f32 && tsri_delta_shares_f32(&facts, p->dim_qk, seq.k.len)) return -1;
  look_at_columns(&values, p->dim_v, &facts.value, &facts.value_spread);
  for (n = 0; !tsri_delta_has_terms(p) && !(f32 && facts.value == 0) && n < TSRI_DELTA_QUERIES; ++n)
    shares += 1 / fmax(1, crowd_of(p, args, &seq, &keys, g * problem->group + tsri_delta_head(n, problem->group),
                                   query_at(&seq, n)));
  if (shares > 0) facts.crowd = (float)(TSRI_DELTA_QUERIES / shares);
  if (!f32) return tsri_delta_most_keys(&facts, p->dim_qk);
  if (tsri_delta_shares_f32(&facts, p->dim_qk, seq.k.len)) return -1;
  for (n = 0; n < TSRI_DELTA_QUERIES; ++n) {
    const int64_t h = g * problem->group + tsri_delta_head(n, problem->group);
    queries += squared_length(p, args, tsri_row_offset(p->q.stride, b, h, seq.q.begin + query_at(&seq, n)));
  }
  return tsri_delta_most_lse(queries / TSRI_DELTA_QUERIES, facts.key + facts.key_spread, p->scale, p->dim_qk);
}
