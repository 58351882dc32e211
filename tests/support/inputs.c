// SPDX-License-Identifier: Apache-2.0
//
// See inputs.h. Every tensor has a stream number of its own in the random source, so adding a feature
// to a row leaves its other tensors as they were.
#include "inputs.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "numeric.h"

enum { STREAM_Q = 1, STREAM_K, STREAM_V, STREAM_BIAS, STREAM_MASK, STREAM_BLOCK, STREAM_ALIBI,
       STREAM_SINK, STREAM_DOUT, STREAM_DLSE, STREAM_INITIAL, STREAM_SCALE = 60 };

bool tsr_dense_create(tsr_dense *dense, int64_t b, int64_t h, int64_t s, int64_t d) {
  int64_t count = b * h * s * d;
  dense->dim[0] = b, dense->dim[1] = h, dense->dim[2] = s, dense->dim[3] = d;
  dense->x = (double *)calloc((size_t)count + 1, sizeof(double));
  return dense->x != NULL;
}

void tsr_dense_destroy(tsr_dense *dense) {
  free(dense->x);
  memset(dense, 0, sizeof *dense);
}

int64_t tsr_dense_count(const tsr_dense *dense) {
  return dense->dim[0] * dense->dim[1] * dense->dim[2] * dense->dim[3];
}

double *tsr_dense_row(const tsr_dense *dense, int64_t b, int64_t h, int64_t s) {
  return dense->x + ((b * dense->dim[1] + h) * dense->dim[2] + s) * dense->dim[3];
}

const char *tsr_output_name(tsr_output output) {
  static const char *const names[] = {"o", "lse", "max_logit", "dq", "dk", "dv", "dbias", "dsink"};
  return output < TSR_OUTPUT_COUNT ? names[output] : "";
}

uint32_t tsr_inputs_grads(const tsr_case *row) {
  uint32_t grads = TSR_GRAD_Q | TSR_GRAD_K | TSR_GRAD_V;
  if (row->page_size) grads = TSR_GRAD_Q; /* pages may be shared: dK and dV are refused */
  if (row->bias) grads |= TSR_GRAD_BIAS;
  if (row->sink) grads |= TSR_GRAD_SINK;
  return row->grads ? row->grads & grads : grads;
}

bool tsr_case_wide(const tsr_case *row, uint32_t grad) { return row->grad_f32 || row->grad_wide & grad; }

static double draw(const tsr_case *row, uint64_t stream, uint64_t n) {
  double x = row->dist == TSR_DIST_UNIFORM ? 2 * tsr_test_uniform(row->seed, stream, n) - 1
                                           : tsr_test_normal(row->seed, stream, n);
  if (row->dist == TSR_DIST_POSITIVE) x = tsr_test_uniform(row->seed, stream, n);
  if (row->dist == TSR_DIST_OUTLIERS && tsr_test_bits(row->seed, stream + 100, n) % 64 == 0) x *= 30;
  return x;
}

static void fill(const tsr_case *row, tsr_dense *dense, uint64_t stream, double factor,
                 tsr_dtype dtype) {
  int64_t i, count = tsr_dense_count(dense);
  for (i = 0; i < count; ++i)
    dense->x[i] = tsr_test_round(dtype, factor * draw(row, stream, (uint64_t)i));
}

/* First component of every row. */
static void fill_first(tsr_dense *dense, double value, tsr_dtype dtype) {
  int64_t i, count = tsr_dense_count(dense);
  for (i = 0; i < count; i += dense->dim[3]) dense->x[i] = tsr_test_round(dtype, value);
}

static void add_offset(tsr_dense *dense, double offset, tsr_dtype dtype) {
  int64_t i, count = tsr_dense_count(dense);
  for (i = 0; i < count; ++i) dense->x[i] = tsr_test_round(dtype, dense->x[i] + offset);
}

/* Axes that the layout repeats hold equal values; so do rows that sequences share. */
static void repeat(tsr_dense *dense, int layout, bool packed, int64_t share) {
  int64_t b, h, s, d;
  for (b = 0; b < dense->dim[0]; ++b)
    for (h = 0; h < dense->dim[1]; ++h)
      for (s = 0; s < dense->dim[2]; ++s) {
        int64_t from_b = layout == TSR_PATTERN_SAME_BATCH ? 0 : b;
        int64_t from_h = layout == TSR_PATTERN_SAME_HEAD ? 0 : h;
        int64_t from_s = layout == TSR_PATTERN_SAME_SEQ ? 0 : s;
        if (s < share || (layout == TSR_PATTERN_SAME_SEQ && packed)) from_b = 0;
        for (d = 0; d < dense->dim[3]; ++d)
          tsr_dense_row(dense, b, h, s)[d] =
              tsr_dense_row(dense, from_b, from_h, from_s)[layout == TSR_PATTERN_SAME_DIM ? 0 : d];
      }
}

/* Which scale of its head row s has, as setup.c shares them. */
static int64_t scale_group(const tsr_case *row, bool paged, int64_t s) {
  int64_t page = paged && !(row->scale_over & TSR_OVER_B) ? s / row->page_size : 0;
  int64_t in = paged ? s % row->page_size : s;
  return page * 4096 + (row->scale_rows ? in / row->scale_rows : 0);
}

/* Values of Q, K or V become multiples of their scales that the cache's type can hold. packed: all sequences are
 * rows of one tensor, so a scale of all rows is theirs together. */
static bool quantise(const tsr_case *row, bool packed, bool paged, tsr_dense *dense, tsr_dense *scale,
                     uint64_t stream) {
  double largest = tsr_test_largest(row->cache);
  int64_t b, h, s, d;
  if (!tsr_dense_create(scale, dense->dim[0], dense->dim[1], dense->dim[2], 1)) return false;
  for (b = 0; b < dense->dim[0]; ++b)
    for (h = 0; h < dense->dim[1]; ++h)
      for (s = 0; s < dense->dim[2]; ++s) {
        int64_t part = (packed && !row->scale_rows) || row->scale_over & TSR_OVER_B ? 0 : b;
        int64_t head = row->scale_over & TSR_OVER_H ? 0 : h;
        uint64_t n = (uint64_t)((part * dense->dim[1] + head) * 1048576 + scale_group(row, paged, s));
        int64_t exponent = tsr_test_integer(row->seed, stream, n, -3, 0);
        double unit = ldexp(row->cache == TSR_DTYPE_I8 ? 0.125 : 2, (int)exponent);
        double *x = tsr_dense_row(dense, b, h, s);
        if (row->odd_scales && n % 3 > 0) unit = n % 3 == 1 ? -unit : 0;
        *tsr_dense_row(scale, b, h, s) = unit;
        if (unit == 0) {
          memset(x, 0, (size_t)dense->dim[3] * sizeof *x);
          continue;
        }
        for (d = 0; d < dense->dim[3]; ++d)
          x[d] = unit *
                 tsr_test_round(row->cache, fmax(-largest, fmin(largest, x[d] / unit)));
      }
  return true;
}

/* A row that is 0 but for component d. */
static void set_row(tsr_dense *dense, int64_t s, int64_t d, double value) {
  double *x = tsr_dense_row(dense, 0, 0, s);
  memset(x, 0, (size_t)dense->dim[3] * sizeof *x);
  x[d] = value;
}

static void inject_large_apart(tsr_inputs *in) {
  int64_t i;
  for (i = 0; i < tsr_dense_count(&in->k); i += in->k.dim[3]) in->k.x[i] = 0;
  for (i = 1; i < tsr_dense_count(&in->q); i += in->q.dim[3]) in->q.x[i] = 0;
  set_row(&in->q, in->q.dim[2] - 1, 0, 0x1p80);
  set_row(&in->k, in->k.dim[2] - 1, 1, 0x1p80);
}

static void inject(tsr_inputs *in) {
  const tsr_case *row = in->row;
  int64_t i, count, last = row->batch > 0 ? in->k_len[0].len - 1 : -1;
  if (row->inject == TSR_INJECT_NONE || last < 0 || row->heads_kv == 0) return;
  switch (row->inject) {
    case TSR_INJECT_NAN_Q:
      count = tsr_dense_count(&in->q);
      for (i = 0; i < count; ++i) in->q.x[i] = (double)NAN;
      break;
    case TSR_INJECT_NAN_K:
      tsr_dense_row(&in->k, 0, 0, last)[row->dim_qk / 2] = (double)NAN;
      break;
    case TSR_INJECT_NAN_V:
      tsr_dense_row(&in->v, 0, 0, last)[row->dim_v / 2] = (double)NAN;
      break;
    case TSR_INJECT_INF_BOTH_V:
      tsr_dense_row(&in->v, 0, 0, 0)[row->dim_v / 2] = -(double)INFINITY;
      tsr_dense_row(&in->v, 0, 0, last)[row->dim_v / 2] = (double)INFINITY;
      break;
    case TSR_INJECT_INF_V:
      tsr_dense_row(&in->v, 0, 0, last)[row->dim_v / 2] = (double)INFINITY;
      break;
    case TSR_INJECT_MINUS_INF_KEY:
      fill_first(&in->q, 1, in->dtype);
      *tsr_dense_row(&in->k, 0, 0, last) = -(double)INFINITY;
      break;
    case TSR_INJECT_MINUS_INF_SMALL:
      count = tsr_dense_count(&in->q);
      for (i = 0; i < count; ++i) in->q.x[i] = tsr_test_round(in->dtype, in->q.x[i] * 0x1p-12);
      fill_first(&in->q, 0x1p-12, in->dtype);
      set_row(&in->k, last, 0, -(double)INFINITY);
      break;
    case TSR_INJECT_LARGE_APART:
      inject_large_apart(in);
      break;
    case TSR_INJECT_INF_DOUT: /* see fill_backward */
      break;
    case TSR_INJECT_LARGE_V:
      for (i = 0; i < in->v.dim[3]; ++i) tsr_dense_row(&in->v, 0, 0, last)[i] *= 0x1p60;
      break;
    default: /* MINUS_INF_K */
      fill_first(&in->q, 1, in->dtype);
      count = tsr_dense_count(&in->k);
      for (i = 0; i < count; i += row->dim_qk) in->k.x[i] = -(double)INFINITY;
      break;
  }
}

static bool make_lengths(tsr_inputs *in) {
  const tsr_case *row = in->row;
  int64_t b;
  in->q_len = (tsr_lengths *)calloc((size_t)row->batch + 1, sizeof(tsr_lengths));
  in->k_len = (tsr_lengths *)calloc((size_t)row->batch + 1, sizeof(tsr_lengths));
  if (!in->q_len || !in->k_len) return false;
  for (b = 0; b < row->batch; ++b) {
    tsr_lengths *q = &in->q_len[b], *k = &in->k_len[b];
    q->left = row->left_q ? row->left_q[b] : 0;
    k->left = row->left_k ? row->left_k[b] : 0;
    q->len = row->len_q ? row->len_q[b] : row->seq_q - q->left;
    k->len = row->len_k ? row->len_k[b] : row->seq_k - k->left;
    q->slot = !row->packed_q ? row->seq_q : row->slot_q ? row->slot_q[b] : q->left + q->len;
    k->slot = !row->packed_k ? row->seq_k : row->slot_k ? row->slot_k[b] : k->left + k->len;
  }
  return true;
}

/* Whether some sequence that shares element (b, i, j) of a pair tensor has that pair. Extents of 1
 * where the case broadcasts. */
static bool pair_used(const tsr_inputs *in, uint32_t over, int64_t b, int64_t i, int64_t j) {
  int64_t n, first = over & TSR_OVER_B ? 0 : b, last = over & TSR_OVER_B ? in->row->batch : b + 1;
  for (n = first; n < last; ++n)
    if ((over & TSR_OVER_Q || i < in->q_len[n].len) && (over & TSR_OVER_K || j < in->k_len[n].len))
      return true;
  return false;
}

static double bias_value(const tsr_inputs *in, int64_t n, int64_t i, int64_t j) {
  const tsr_case *row = in->row;
  double lowest = -tsr_test_largest(in->bias_dtype);
  switch (row->bias) {
    case TSR_BIAS_LOWEST_KEYS:
      return j < row->special ? lowest : 0;
    case TSR_BIAS_LOWEST_ROW:
      return i == 0 ? lowest : 1;
    case TSR_BIAS_MINUS_INF:
      if (i == 1 || tsr_test_bits(row->seed, STREAM_BIAS + 200, (uint64_t)n) % 3 == 0)
        return -(double)INFINITY;
      return tsr_test_normal(row->seed, STREAM_BIAS, (uint64_t)n);
    case TSR_BIAS_LEFT_PAD:
      return j < row->special || j > i ? -65504.0 : 0;
    default:
      return tsr_test_normal(row->seed, STREAM_BIAS, (uint64_t)n);
  }
}

static bool mask_value(const tsr_inputs *in, int64_t n, int64_t i, int64_t j, int64_t sq,
                       int64_t sk) {
  const tsr_case *row = in->row;
  bool random = tsr_test_bits(row->seed, STREAM_MASK, (uint64_t)n) % 10 < 6;
  switch (row->mask) {
    case TSR_MASK_ALL:
      return true;
    case TSR_MASK_NOTHING:
      return false;
    case TSR_MASK_LAST_ROW:
      return random && i != sq - 1;
    case TSR_MASK_FIRST_ROWS:
      return random && i >= row->special;
    case TSR_MASK_TRIL:
      return j <= i;
    case TSR_MASK_FIRST_KEYS:
      return j >= row->special;
    case TSR_MASK_STRIPES:
      return j % 128 >= 96;
    case TSR_MASK_LAST_KEY:
      return j == sk - 1;
    case TSR_MASK_KEYS_011010:
      return j % 3 != 0 && j != 5;
    default:
      return random;
  }
}

typedef enum pair_tensor { PAIR_BIAS, PAIR_MASK, PAIR_BLOCK } pair_tensor;

static bool fill_pairs(tsr_inputs *in, tsr_dense *dense, pair_tensor which, uint32_t over,
                       int64_t block_q, int64_t block_k) {
  const tsr_case *row = in->row;
  int64_t sq = (row->seq_q + block_q - 1) / block_q, sk = (row->seq_k + block_k - 1) / block_k;
  int64_t b, h, i, j, n = 0;
  if (!tsr_dense_create(dense, over & TSR_OVER_B ? 1 : row->batch,
                        over & TSR_OVER_H ? 1 : row->heads_q, over & TSR_OVER_Q ? 1 : sq,
                        over & TSR_OVER_K ? 1 : sk))
    return false;
  for (b = 0; b < dense->dim[0]; ++b)
    for (h = 0; h < dense->dim[1]; ++h)
      for (i = 0; i < dense->dim[2]; ++i)
        for (j = 0; j < dense->dim[3]; ++j, ++n) {
          double *x = &tsr_dense_row(dense, b, h, i)[j];
          if (!pair_used(in, over, b, i * block_q, j * block_k))
            *x = (double)NAN;
          else if (which == PAIR_BIAS)
            *x = tsr_test_round(in->bias_dtype, bias_value(in, n, i, j));
          else if (which == PAIR_MASK)
            *x = mask_value(in, n, i, j, row->seq_q, row->seq_k);
          else
            *x = tsr_test_bits(row->seed, STREAM_BLOCK, (uint64_t)n) % 10 < 6;
        }
  return true;
}

static bool fill_head_values(tsr_inputs *in) {
  const tsr_case *row = in->row;
  int64_t b, h;
  if (row->alibi) {
    int64_t rows = row->alibi == TSR_ALIBI_PER_HEAD ? 1 : row->batch;
    if (!tsr_dense_create(&in->alibi, rows, row->heads_q, 1, 1)) return false;
    for (b = 0; b < rows; ++b)
      for (h = 0; h < row->heads_q; ++h)
        *tsr_dense_row(&in->alibi, b, h, 0) =
            tsr_test_round(TSR_DTYPE_F32, exp2(-8.0 * (double)(h + 1) / (double)row->heads_q) * (double)(b + 1)) *
            (row->alibi_negative && h % 2 ? -1 : 1);
  }
  if (row->sink) {
    if (!tsr_dense_create(&in->sink, 1, row->heads_q, 1, 1)) return false;
    for (h = 0; h < row->heads_q; ++h) {
      double x = tsr_test_normal(row->seed, STREAM_SINK, (uint64_t)h);
      if (row->sink == TSR_SINK_LARGE) x = 20 + fabs(x);
      if (row->sink == TSR_SINK_LOW) x = -200 - fabs(x);
      if (row->sink == TSR_SINK_MINUS_INF) x = -(double)INFINITY;
      if (row->sink == TSR_SINK_HUGE) x = h % 2 ? -3e38 : 3e38;
      in->sink.x[h] = tsr_test_round(TSR_DTYPE_F32, x);
    }
  }
  return true;
}

static bool fill_backward(tsr_inputs *in) {
  const tsr_case *row = in->row;
  uint32_t i, grads = tsr_inputs_grads(row);
  const tsr_dense *like[TSR_OUTPUT_COUNT] = {0};
  if (row->forward_only) return true;
  if (!tsr_dense_create(&in->dout, row->batch, row->heads_q, row->seq_q, row->dim_v)) return false;
  fill(row, &in->dout, STREAM_DOUT, 1, in->dtype);
  repeat(&in->dout, row->layout_dout ? row->layout_dout - 1 : (int)row->layout, row->packed_q, 0);
  if (row->inject == TSR_INJECT_INF_DOUT) tsr_dense_row(&in->dout, 0, 0, 0)[row->dim_v / 2] = (double)INFINITY;
  if (row->dlse) {
    if (!tsr_dense_create(&in->dlse, row->batch, row->heads_q, row->seq_q, 1)) return false;
    fill(row, &in->dlse, STREAM_DLSE, 1, TSR_DTYPE_F32);
  }
  like[TSR_OUTPUT_DQ] = &in->q, like[TSR_OUTPUT_DK] = &in->k, like[TSR_OUTPUT_DV] = &in->v;
  like[TSR_OUTPUT_DBIAS] = &in->bias, like[TSR_OUTPUT_DSINK] = &in->sink;
  for (i = TSR_OUTPUT_DQ; i < TSR_OUTPUT_COUNT; ++i) {
    uint32_t bit = 1u << (i - TSR_OUTPUT_DQ); /* TSR_GRAD and tsr_accumulate have one order */
    tsr_dense *initial = &in->initial[i];
    tsr_dtype dtype = i == TSR_OUTPUT_DBIAS ? in->bias_dtype : in->dtype;
    if (i == TSR_OUTPUT_DSINK || tsr_case_wide(row, bit)) dtype = TSR_DTYPE_F32;
    if (!(grads & row->accumulate & bit)) continue;
    if (!tsr_dense_create(initial, like[i]->dim[0], like[i]->dim[1], like[i]->dim[2],
                          like[i]->dim[3]))
      return false;
    fill(row, initial, STREAM_INITIAL + i, 1, dtype);
  }
  return true;
}

bool tsr_inputs_create(tsr_inputs *in, const tsr_case *row, tsr_dtype dtype) {
  double amplitude = row->amplitude != 0 ? row->amplitude : 1;
  double amplitude_v = row->amplitude_v != 0 ? row->amplitude_v : 1;
  int layout_q = row->layout_q ? row->layout_q - 1 : (int)row->layout;
  int layout_k = row->layout_k ? row->layout_k - 1 : (int)row->layout;
  int layout_v = row->layout_v ? row->layout_v - 1 : (int)row->layout;
  int64_t dim_v = row->dim_v ? row->dim_v : row->dim_qk;
  bool ok;
  memset(in, 0, sizeof *in);
  in->row = row;
  in->dtype = dtype;
  in->bias_dtype = row->bias_dtype ? row->bias_dtype : dtype == TSR_DTYPE_F64 ? TSR_DTYPE_F32 : dtype;
  if (row->dist == TSR_DIST_OFFSET) amplitude *= 0.1;
  ok = make_lengths(in) &&
       tsr_dense_create(&in->q, row->batch, row->heads_q, row->seq_q, row->dim_qk) &&
       tsr_dense_create(&in->k, row->batch, row->heads_kv, row->seq_k, row->dim_qk) &&
       tsr_dense_create(&in->v, row->batch, row->heads_kv, row->seq_k, dim_v);
  if (ok) {
    fill(row, &in->q, STREAM_Q, row->dist == TSR_DIST_ZERO_Q ? 0 : amplitude, dtype);
    fill(row, &in->k, STREAM_K, amplitude, dtype);
    fill(row, &in->v, STREAM_V, amplitude_v, dtype);
    if (row->offset_v != 0) add_offset(&in->v, row->offset_v, dtype);
    if (row->dist == TSR_DIST_OFFSET) {
      fill_first(&in->q, 1, dtype);
      fill_first(&in->k, row->offset_logit * sqrt((double)row->dim_qk), dtype);
    }
    inject(in);
    if (row->cache)
      ok = quantise(row, row->packed_k, row->page_size > 0, &in->k, &in->k_scale, STREAM_SCALE) &&
           quantise(row, row->packed_k, row->page_size > 0, &in->v, &in->v_scale, STREAM_SCALE + 1) &&
           (!row->q8 || quantise(row, row->packed_q, false, &in->q, &in->q_scale, STREAM_SCALE + 2));
    repeat(&in->q, layout_q, row->packed_q, 0);
    repeat(&in->k, layout_k, row->packed_k, row->share);
    repeat(&in->v, layout_v, row->packed_k, row->share);
    if (ok && row->cache) {
      repeat(&in->k_scale, layout_k, row->packed_k, row->share);
      repeat(&in->v_scale, layout_v, row->packed_k, row->share);
      if (row->q8) repeat(&in->q_scale, layout_q, row->packed_q, 0);
    }
  }
  if (ok && row->bias) ok = fill_pairs(in, &in->bias, PAIR_BIAS, row->bias_over, 1, 1);
  if (ok && row->mask) ok = fill_pairs(in, &in->mask, PAIR_MASK, row->mask_over, 1, 1);
  if (ok && row->block_q && row->block_k)
    ok = fill_pairs(in, &in->block_mask, PAIR_BLOCK, row->block_over, row->block_q, row->block_k);
  ok = ok && fill_head_values(in) && fill_backward(in);
  if (!ok) tsr_inputs_destroy(in);
  return ok;
}

void tsr_inputs_destroy(tsr_inputs *in) {
  tsr_dense *all[] = {&in->q,     &in->k,    &in->v,    &in->bias, &in->mask, &in->block_mask,
                      &in->alibi, &in->sink, &in->dout, &in->dlse, &in->q_scale, &in->k_scale, &in->v_scale};
  size_t i;
  for (i = 0; i < sizeof all / sizeof all[0]; ++i) tsr_dense_destroy(all[i]);
  for (i = 0; i < TSR_OUTPUT_COUNT; ++i) tsr_dense_destroy(&in->initial[i]);
  free(in->q_len);
  free(in->k_len);
  memset(in, 0, sizeof *in);
}
