// SPDX-License-Identifier: Apache-2.0
//
// See setup.h. One function knows where a logical row lies (place_q, place_k): everything written and
// read goes through it, and it is written apart from common/geometry.h on purpose.
#include "setup.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "numeric.h"

enum { STREAM_PAGES = 40 };

/* Rows at the end of packed tensors and pages of a cache that belong to nobody. */
enum { TAIL_ROWS = 3, SPARE_PAGES = 3 };

typedef struct place {
  int64_t b, s;
} place;

static place place_q(const tsr_setup *s, int64_t b, int64_t row) {
  place p = {s->form.packed_q ? 0 : b, s->begin_q[b] + row};
  return p;
}

static place place_k(const tsr_setup *s, int64_t b, int64_t row) {
  place p = {s->form.packed_k ? 0 : b, s->begin_k[b] + row};
  if (s->form.page_size) {
    p.b = s->page[b * s->columns + row / s->form.page_size];
    p.s = row % s->form.page_size;
  }
  return p;
}

tsr_lengths tsr_setup_lengths(const tsr_setup *s, bool queries, int64_t b) {
  const tsr_case *form = &s->form;
  tsr_lengths l = queries ? s->in->q_len[b] : s->in->k_len[b];
  const int64_t *left = queries ? form->left_q : form->left_k;
  const int64_t *slot = queries ? form->slot_q : form->slot_k;
  l.left = left ? left[b] : 0;
  if (!(queries ? form->packed_q : form->packed_k))
    l.slot = queries ? form->seq_q : form->seq_k;
  else
    l.slot = slot ? slot[b] : l.left + l.len;
  return l;
}

/* ------------------------------------------------------------------------------------- vectors */

static bool make_vector(tsr_setup *s, tsr_vector which, tsr_dtype dtype, int64_t count) {
  return tsr_block_create_on(&s->vector[which], s->device,
                             (size_t)(count * tsr_test_dtype_bytes(dtype)),
                             (size_t)tsr_test_dtype_bytes(dtype), false);
}

static bool index_vector(tsr_setup *s, tsr_vector which, const int64_t *values, int64_t count,
                         const void **pointer) {
  tsr_dtype dtype = s->form.index_i64 ? TSR_DTYPE_I64 : TSR_DTYPE_I32;
  int64_t i;
  if (!make_vector(s, which, dtype, count)) return false;
  for (i = 0; i < count; ++i) tsr_test_store(dtype, s->vector[which].data, i, (double)values[i]);
  *pointer = s->vector[which].data;
  if (which < TSR_VECTOR_PAGES) s->problem.arrays |= 1u << which; /* tsr_array has this order */
  return true;
}

static bool float_vector(tsr_setup *s, tsr_vector which, const tsr_dense *values,
                         const float **pointer) {
  int64_t i, count = tsr_dense_count(values);
  if (!make_vector(s, which, TSR_DTYPE_F32, count)) return false;
  for (i = 0; i < count; ++i)
    tsr_test_store(TSR_DTYPE_F32, s->vector[which].data, i, values->x[i]);
  *pointer = (const float *)(const void *)s->vector[which].data;
  return true;
}

/* Offsets, used lengths and left padding of one side. */
static bool side_vectors(tsr_setup *s, bool queries) {
  const tsr_case *form = &s->form;
  bool packed = queries ? form->packed_q : form->packed_k;
  bool paged = !queries && form->page_size;
  bool slots = queries ? form->slot_q != NULL : form->slot_k != NULL;
  const int64_t *left = queries ? form->left_q : form->left_k;
  const int64_t *len = queries ? form->len_q : form->len_k;
  int64_t *begin = (int64_t *)calloc((size_t)form->batch + 1, sizeof(int64_t));
  int64_t b, next = packed ? form->lead : 0;
  tsr_vector shift = queries ? TSR_VECTOR_CU_Q : TSR_VECTOR_CU_K;
  bool ok = true;
  if (!begin) return false;
  *(queries ? &s->begin_q : &s->begin_k) = begin;
  for (b = 0; b < form->batch; ++b) {
    begin[b] = next;
    if (packed) next += tsr_setup_lengths(s, queries, b).slot;
  }
  begin[form->batch] = next;
  if (packed) {
    *(queries ? &s->problem.total_q : &s->problem.total_k) = next + TAIL_ROWS;
    ok = index_vector(s, shift, begin, form->batch + 1, queries ? &s->args.cu_q : &s->args.cu_k);
  }
  if (ok && len && (!packed || slots || paged))
    ok = index_vector(s, (tsr_vector)(shift + 2), len, form->batch,
                      queries ? &s->args.used_q : &s->args.used_k);
  if (ok && left)
    ok = index_vector(s, (tsr_vector)(shift + 4), left, form->batch,
                      queries ? &s->args.left_pad_q : &s->args.left_pad_k);
  return ok;
}

/* Pages in random order; rows before form.share lie in sequence 0's pages. Table entries past a
 * sequence's last row, or wholly inside its left padding, hold -1. */
static bool make_pages(tsr_setup *s) {
  const tsr_case *form = &s->form;
  int64_t size = form->page_size, b, i, used = 0, count;
  int64_t *order;
  bool ok;
  s->columns = (form->seq_k + size - 1) / size + 1 + form->page_gap;
  s->page = (int64_t *)malloc((size_t)(form->batch * s->columns + 1) * sizeof(int64_t));
  count = form->batch * s->columns + SPARE_PAGES;
  order = (int64_t *)malloc((size_t)count * sizeof(int64_t));
  if (!s->page || !order) {
    free(order);
    return false;
  }
  for (i = 0; i < count; ++i) order[i] = i;
  for (i = count - 1; i > 0; --i) {
    int64_t other = tsr_test_integer(form->seed, STREAM_PAGES, (uint64_t)i, 0, i);
    int64_t swap = order[i];
    order[i] = order[other];
    order[other] = swap;
  }
  for (b = 0; b < form->batch; ++b) {
    tsr_lengths l = tsr_setup_lengths(s, false, b);
    for (i = 0; i < s->columns; ++i) {
      int64_t *page = &s->page[b * s->columns + i];
      if (i >= s->columns - form->page_gap || i * size >= l.left + l.len || (i + 1) * size <= l.left)
        *page = -1;
      else if (b > 0 && (i + 1) * size <= form->share && s->page[i] >= 0)
        *page = s->page[i];
      else
        *page = order[used++];
    }
  }
  free(order);
  s->problem.page_size = size;
  s->problem.num_pages = count;
  s->problem.max_pages = s->columns - form->page_gap;
  s->problem.page_table_stride = form->index_i64 || form->page_gap ? s->columns : 0;
  s->problem.seq_k = form->index_i64 ? s->problem.max_pages * size : 0;
  ok = index_vector(s, TSR_VECTOR_PAGES, s->page, form->batch * s->columns, &s->args.page_table);
  return ok;
}

/* ------------------------------------------------------------------------------------- tensors */

typedef struct side {
  bool packed;
  int64_t dim[4];
} side;

static side side_of(const tsr_setup *s, bool queries, int64_t heads, int64_t d) {
  const tsr_case *form = &s->form;
  side r = {queries ? form->packed_q : form->packed_k, {form->batch, heads, 0, d}};
  if (r.packed) r.dim[0] = 1;
  r.dim[2] = r.packed ? (queries ? s->problem.total_q : s->problem.total_k)
                      : (queries ? form->seq_q : form->seq_k);
  if (!queries && form->page_size) r.dim[0] = s->problem.num_pages, r.dim[2] = form->page_size;
  return r;
}

static tsr_pattern pattern_of(const tsr_case *form, uint8_t own) {
  return own ? (tsr_pattern)(own - 1) : form->layout;
}

static bool make_side(tsr_setup *s, tsr_buffer *buffer, bool queries, int64_t heads, int64_t d,
                      tsr_dtype dtype, tsr_pattern pattern) {
  side r = side_of(s, queries, heads, d);
  return tsr_buffer_create_on(buffer, s->device, dtype, r.dim, pattern, r.packed,
                              s->form.alignment);
}

/* Writes the used rows of values, divided by their scales if there are any. */
static void scatter(tsr_setup *s, tsr_buffer *buffer, bool queries, const tsr_dense *values,
                    const tsr_dense *scale) {
  double row[1024];
  int64_t b, h, i, d;
  for (b = 0; b < values->dim[0]; ++b) {
    tsr_lengths l = tsr_setup_lengths(s, queries, b);
    for (h = 0; h < values->dim[1]; ++h)
      for (i = 0; i < l.len; ++i) {
        place p = queries ? place_q(s, b, l.left + i) : place_k(s, b, l.left + i);
        const double *x = tsr_dense_row(values, b, h, i);
        for (d = 0; scale && d < values->dim[3]; ++d) {
          double unit = *tsr_dense_row(scale, b, h, i);
          row[d] = unit != 0 ? x[d] / unit : 1; /* times 0, anything finite would do */
        }
        tsr_buffer_write_row(buffer, p.b, h, p.s, scale ? row : x);
      }
  }
}

/* Scales of Q, or of K or V: one per scale_rows rows of the tensor. */
static bool make_scale(tsr_setup *s, bool queries, tsr_buffer *buffer, const tsr_dense *scale,
                       tsr_layout *layout, const float **pointer) {
  const tsr_case *form = &s->form;
  side r = side_of(s, queries, queries ? form->heads_q : form->heads_kv, 1);
  int64_t rows = form->scale_rows, b, h, i;
  tsr_pattern pattern = form->layout;
  if (pattern != TSR_PATTERN_BSHD && pattern != TSR_PATTERN_BHSD_GAPS &&
      pattern != TSR_PATTERN_SBHD)
    pattern = TSR_PATTERN_BHSD;
  r.dim[2] = rows ? (r.dim[2] + rows - 1) / rows : r.dim[2] > 0;
  if (!tsr_buffer_create_on(buffer, s->device, TSR_DTYPE_F32, r.dim, pattern, r.packed,
                            form->alignment))
    return false;
  if (form->scale_over) {
    buffer->layout.order = TSR_ORDER_STRIDED;
    if (form->scale_over & TSR_OVER_B) buffer->stride[0] = 0;
    if (form->scale_over & TSR_OVER_H) buffer->stride[1] = 0;
    memcpy(buffer->layout.stride, buffer->stride, sizeof buffer->stride);
  }
  for (b = 0; b < scale->dim[0]; ++b) {
    tsr_lengths l = tsr_setup_lengths(s, queries, b);
    for (h = 0; h < scale->dim[1]; ++h)
      for (i = 0; i < l.len; ++i) {
        place p = queries ? place_q(s, b, l.left + i) : place_k(s, b, l.left + i);
        tsr_buffer_write_row(buffer, p.b, h, rows ? p.s / rows : 0, tsr_dense_row(scale, b, h, i));
      }
  }
  *layout = buffer->layout;
  *pointer = (const float *)tsr_buffer_data(buffer);
  *(queries ? &s->problem.scale_rows_q : &s->problem.scale_rows_k) = rows;
  return true;
}

/* Extents of bias, mask, block mask or dbias: those of values, but keys reach to the end of the page
 * table where there is one. blocks: keys per element. */
static void pair_dims(const tsr_setup *s, const tsr_dense *values, uint32_t over, int64_t blocks,
                      int64_t dim[4]) {
  memcpy(dim, values->dim, 4 * sizeof(int64_t));
  if (s->form.page_size && !(over & TSR_OVER_K))
    dim[3] = (s->problem.max_pages * s->form.page_size + blocks - 1) / blocks;
}

/* Broadcast axes have extent 1 and stride 0. Elements that no pair uses are NaN in values and stay
 * poison in memory. write false: an output. */
static bool make_pairs(tsr_setup *s, tsr_buffer *buffer, tsr_dtype dtype, const tsr_dense *values,
                       uint32_t over, int64_t blocks, bool write) {
  tsr_pattern pattern = s->form.layout;
  int64_t b, h, i, dim[4];
  int axis;
  if (pattern >= TSR_PATTERN_SAME_BATCH || pattern == TSR_PATTERN_HUGE_SEQ || pattern == TSR_PATTERN_WIDE_SEQ)
    pattern = TSR_PATTERN_BHSD;
  pair_dims(s, values, over, blocks, dim);
  if (!tsr_buffer_create_on(buffer, s->device, dtype, dim, pattern, false, s->form.alignment))
    return false;
  if (over || s->form.packed_q || s->form.packed_k) buffer->layout.order = TSR_ORDER_STRIDED;
  for (axis = 0; axis < 4; ++axis) {
    if (over >> axis & 1) buffer->stride[axis] = 0;
    buffer->layout.stride[axis] =
        buffer->layout.order == TSR_ORDER_STRIDED ? buffer->stride[axis] : 0;
  }
  if (!write) return true;
  for (b = 0; b < values->dim[0]; ++b)
    for (h = 0; h < values->dim[1]; ++h)
      for (i = 0; i < values->dim[2]; ++i) {
        const double *row = tsr_dense_row(values, b, h, i);
        tsr_buffer part = *buffer;
        for (part.dim[3] = 0; part.dim[3] < values->dim[3]; ++part.dim[3])
          if (isnan(row[part.dim[3]])) break;
        tsr_buffer_write_row(&part, b, h, i, row);
      }
  return true;
}

static bool make_inputs(tsr_setup *s) {
  const tsr_inputs *in = s->in;
  const tsr_case *form = &s->form;
  tsr_problem *p = &s->problem;
  tsr_dtype cache = form->cache ? form->cache : s->dtype;
  const bool q8 = form->q8 && form->cache;
  bool ok;
  ok = make_side(s, &s->q, true, form->heads_q, form->dim_qk, q8 ? cache : s->dtype,
                 pattern_of(form, form->layout_q)) &&
       make_side(s, &s->k, false, form->heads_kv, form->dim_qk, cache,
                 pattern_of(form, form->layout_k)) &&
       make_side(s, &s->v, false, form->heads_kv, in->v.dim[3], cache,
                 pattern_of(form, form->layout_v));
  if (!ok) return false;
  scatter(s, &s->q, true, &in->q, q8 ? &in->q_scale : NULL);
  scatter(s, &s->k, false, &in->k, form->cache ? &in->k_scale : NULL);
  scatter(s, &s->v, false, &in->v, form->cache ? &in->v_scale : NULL);
  if (form->cache &&
      !(make_scale(s, false, &s->k_scale, &in->k_scale, &p->k_scale, &s->args.k_scale) &&
        make_scale(s, false, &s->v_scale, &in->v_scale, &p->v_scale, &s->args.v_scale)))
    return false;
  if (q8 && !make_scale(s, true, &s->q_scale, &in->q_scale, &p->q_scale, &s->args.q_scale)) return false;
  p->q = s->q.layout, p->k = s->k.layout, p->v = s->v.layout;
  s->args.q = tsr_buffer_data(&s->q);
  s->args.k = tsr_buffer_data(&s->k);
  s->args.v = tsr_buffer_data(&s->v);
  if (in->bias.x) {
    if (!make_pairs(s, &s->bias, in->bias_dtype, &in->bias, form->bias_over, 1, true)) return false;
    p->bias = s->bias.layout;
    s->args.bias = tsr_buffer_data(&s->bias);
  }
  if (in->mask.x) {
    tsr_dtype dtype = form->mask_bits ? TSR_DTYPE_BIT : TSR_DTYPE_U8;
    if (!make_pairs(s, &s->mask, dtype, &in->mask, form->mask_over, 1, true)) return false;
    p->mask = s->mask.layout;
    s->args.mask = tsr_buffer_data(&s->mask);
  }
  if (in->block_mask.x) {
    if (!make_pairs(s, &s->block_mask, TSR_DTYPE_U8, &in->block_mask, form->block_over,
                    form->block_k, true))
      return false;
    p->block_mask = s->block_mask.layout;
    p->block_q = form->block_q, p->block_k = form->block_k;
    s->args.block_mask = tsr_buffer_data(&s->block_mask);
  }
  if (in->alibi.x && !float_vector(s, TSR_VECTOR_ALIBI, &in->alibi, &s->args.alibi)) return false;
  if (in->sink.x && !float_vector(s, TSR_VECTOR_SINK, &in->sink, &s->args.sink)) return false;
  if (!(s->passes & TSR_PASS_BACKWARD)) return true;
  if (!make_side(s, &s->dout, true, form->heads_q, in->v.dim[3],
                 (form->o_f32 || form->dout_f32) && s->dtype != TSR_DTYPE_F64 ? TSR_DTYPE_F32 : s->dtype,
                 pattern_of(form, form->layout_dout)))
    return false;
  scatter(s, &s->dout, true, &in->dout, NULL);
  p->dout = s->dout.layout;
  s->args.dout = tsr_buffer_data(&s->dout);
  if (!in->dlse.x) return true;
  if (!make_side(s, &s->dlse, true, form->heads_q, 1, TSR_DTYPE_F32,
                 pattern_of(form, form->layout_lse)))
    return false;
  scatter(s, &s->dlse, true, &in->dlse, NULL);
  p->dlse = s->dlse.layout;
  s->args.dlse = (const float *)tsr_buffer_data(&s->dlse);
  return true;
}

/* Outputs never repeat elements, whatever the inputs' pattern is. */
static tsr_pattern output_pattern(const tsr_case *form, uint8_t own) {
  tsr_pattern pattern = pattern_of(form, own);
  return pattern >= TSR_PATTERN_SAME_BATCH ? TSR_PATTERN_BHSD : pattern;
}

static tsr_dtype gradient_dtype(const tsr_setup *s, uint32_t grad) {
  return tsr_case_wide(&s->form, grad) && s->dtype != TSR_DTYPE_F64 ? TSR_DTYPE_F32 : s->dtype;
}

static bool make_gradients(tsr_setup *s) {
  const tsr_case *form = &s->form;
  const tsr_inputs *in = s->in;
  tsr_problem *p = &s->problem;
  uint32_t grads = tsr_inputs_grads(in->row);
  tsr_pattern pattern = output_pattern(form, 0);
  tsr_buffer *out = s->out;
  if (grads & TSR_GRAD_Q && !make_side(s, &out[TSR_OUTPUT_DQ], true, form->heads_q, form->dim_qk,
                                       gradient_dtype(s, TSR_GRAD_Q), pattern))
    return false;
  if (grads & TSR_GRAD_K && !make_side(s, &out[TSR_OUTPUT_DK], false, form->heads_kv, form->dim_qk,
                                       gradient_dtype(s, TSR_GRAD_K), pattern))
    return false;
  if (grads & TSR_GRAD_V && !make_side(s, &out[TSR_OUTPUT_DV], false, form->heads_kv, in->v.dim[3],
                                       gradient_dtype(s, TSR_GRAD_V), pattern))
    return false;
  if (grads & TSR_GRAD_BIAS &&
      !make_pairs(s, &out[TSR_OUTPUT_DBIAS],
                  tsr_case_wide(form, TSR_GRAD_BIAS) || s->dtype == TSR_DTYPE_F64 ? TSR_DTYPE_F32 : in->bias_dtype,
                  &in->bias, form->bias_over, 1, false))
    return false;
  if (grads & TSR_GRAD_SINK) {
    int64_t dim[4] = {1, form->heads_q, 1, 1};
    if (!tsr_buffer_create_on(&out[TSR_OUTPUT_DSINK], s->device, TSR_DTYPE_F32, dim,
                              TSR_PATTERN_BHSD, false, 0))
      return false;
    p->dsink = 1;
    s->args.dsink = (float *)tsr_buffer_data(&out[TSR_OUTPUT_DSINK]);
  }
  p->dq = out[TSR_OUTPUT_DQ].layout, p->dk = out[TSR_OUTPUT_DK].layout;
  p->dv = out[TSR_OUTPUT_DV].layout, p->dbias = out[TSR_OUTPUT_DBIAS].layout;
  s->args.dq = tsr_buffer_data(&out[TSR_OUTPUT_DQ]);
  s->args.dk = tsr_buffer_data(&out[TSR_OUTPUT_DK]);
  s->args.dv = tsr_buffer_data(&out[TSR_OUTPUT_DV]);
  s->args.dbias = tsr_buffer_data(&out[TSR_OUTPUT_DBIAS]);
  p->accumulate = form->accumulate & grads;
  return true;
}

static bool make_outputs(tsr_setup *s) {
  const tsr_case *form = &s->form;
  tsr_problem *p = &s->problem;
  tsr_pattern rows = output_pattern(form, form->layout_lse);
  tsr_buffer *out = s->out;
  tsr_dtype o_dtype = form->o_f32 && s->dtype != TSR_DTYPE_F64 ? TSR_DTYPE_F32 : s->dtype;
  if (!make_side(s, &out[TSR_OUTPUT_O], true, form->heads_q, s->in->v.dim[3], o_dtype,
                 output_pattern(form, form->layout_o)))
    return false;
  p->o = out[TSR_OUTPUT_O].layout;
  s->args.o = tsr_buffer_data(&out[TSR_OUTPUT_O]);
  if (!form->no_lse || s->passes & TSR_PASS_BACKWARD) {
    if (!make_side(s, &out[TSR_OUTPUT_LSE], true, form->heads_q, 1, TSR_DTYPE_F32, rows))
      return false;
    p->lse = out[TSR_OUTPUT_LSE].layout;
    s->args.lse = (float *)tsr_buffer_data(&out[TSR_OUTPUT_LSE]);
  }
  if (form->max_logit) {
    if (!make_side(s, &out[TSR_OUTPUT_MAX_LOGIT], true, form->heads_q, 1, TSR_DTYPE_F32, rows))
      return false;
    p->max_logit = out[TSR_OUTPUT_MAX_LOGIT].layout;
    s->args.max_logit = (float *)tsr_buffer_data(&out[TSR_OUTPUT_MAX_LOGIT]);
  }
  return !(s->passes & TSR_PASS_BACKWARD) || make_gradients(s);
}

/* ------------------------------------------------------------------------------------- problem */

static void fill_problem(tsr_setup *s) {
  const tsr_case *form = &s->form;
  tsr_problem *p = &s->problem;
  p->passes = s->passes;
  p->index_dtype = form->index_i64 ? TSR_DTYPE_I64 : TSR_DTYPE_NONE;
  p->determinism = form->determinism;
  p->batch = form->batch, p->heads_q = form->heads_q, p->heads_kv = form->heads_kv;
  p->seq_q = form->packed_q && form->no_bound ? 0 : form->seq_q;
  if (!form->page_size) p->seq_k = form->packed_k && form->no_bound ? 0 : form->seq_k;
  p->dim_qk = form->dim_qk, p->dim_v = form->dim_v == form->dim_qk ? 0 : form->dim_v;
  p->scale = form->scale, p->softcap = form->softcap;
  p->alibi = form->alibi;
  p->sink = form->sink != TSR_SINK_NONE;
  p->causal = form->causal;
  p->diagonal = form->diagonals ? 0 : form->diagonal;
  p->window.kind = form->window;
  p->window.left = form->left, p->window.right = form->right;
  p->prefix = form->prefixes ? 0 : form->prefix;
  p->dropout = form->dropout;
  if (form->dropout > 0) s->args.seed = form->drop_seed, s->args.offset = form->drop_offset;
}

static bool make_rng(tsr_setup *s) {
  uint64_t state[2] = {s->args.seed, s->args.offset};
  if (!s->form.rng_array || !(s->form.dropout > 0)) return true;
  if (!make_vector(s, TSR_VECTOR_RNG, TSR_DTYPE_I64, 2)) return false;
  memcpy(s->vector[TSR_VECTOR_RNG].data, state, sizeof state);
  s->args.rng_state = (const uint64_t *)(const void *)s->vector[TSR_VECTOR_RNG].data;
  s->args.seed = s->args.offset = 0;
  return true;
}

bool tsr_setup_create(tsr_setup *s, const tsr_inputs *in, const tsr_case *form, tsr_dtype dtype,
                      uint32_t passes, char *why, size_t capacity) {
  const tsr_device host = {TSR_DEVICE_HOST, 0};
  return tsr_setup_create_on(s, host, in, form, dtype, passes, why, capacity);
}

bool tsr_setup_create_on(tsr_setup *s, tsr_device device, const tsr_inputs *in,
                         const tsr_case *form, tsr_dtype dtype, uint32_t passes, char *why,
                         size_t capacity) {
  const tsr_gpu *gpu = NULL;
  bool ok;
  memset(s, 0, sizeof *s);
  s->device = device;
  if (device.kind != TSR_DEVICE_HOST && !(gpu = tsr_gpu_open(device))) {
    snprintf(why, capacity, "%s", tsr_gpu_error());
    s->broken = true;
    return false;
  }
  s->in = in;
  s->form = *form;
  s->dtype = dtype;
  s->passes = passes;
  s->problem.struct_size = sizeof s->problem;
  s->args.struct_size = sizeof s->args;
  fill_problem(s);
  ok = side_vectors(s, true) && side_vectors(s, false);
  if (ok && form->page_size) ok = make_pages(s);
  if (ok && form->prefixes)
    ok = index_vector(s, TSR_VECTOR_PREFIX, form->prefixes, form->batch, &s->args.prefix);
  if (ok && form->diagonals)
    ok = index_vector(s, TSR_VECTOR_DIAGONAL, form->diagonals, form->batch, &s->args.diagonal);
  ok = ok && make_rng(s) && make_inputs(s) && make_outputs(s);
  if (ok) {
    tsr_setup_reset(s);
    return true;
  }
  snprintf(why, capacity, "no memory for the tensors of this case: %s", tsr_block_reason());
  tsr_setup_destroy(s);
  s->broken = gpu && !tsr_gpu_synchronize(gpu);
  return false;
}
