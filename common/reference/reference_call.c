// SPDX-License-Identifier: Apache-2.0
//
// Rows in and out of tensors for the reference backend: any dtype, any strides, scales, pages, used
// parts and padding. Only rows of a sequence's used part are ever read, so that whatever lies in
// padding, gaps and unreferenced pages cannot reach a result.
#include "reference_call.h"

#include <math.h>

#include "common/bias.h"

static tsri_ref_input input_of(const tsr_layout *layout, const void *data, int64_t dim) {
  tsri_ref_input in;
  memset(&in, 0, sizeof in);
  in.data = data;
  in.dtype = layout->dtype;
  in.dim = dim;
  in.stride = layout->stride;
  return in;
}

static void input_scale(tsri_ref_input *in, const tsr_layout *layout, const float *scale,
                        int64_t rows) {
  if (layout->dtype == TSR_DTYPE_NONE) return;
  in->scale = scale;
  in->scale_stride = layout->stride;
  in->scale_rows = rows;
}

void tsri_ref_call_init(tsri_ref_call *call, const tsr_resolved *r, const tsr_args *a,
                        void *workspace, tsri_ref_memory memory) {
  const tsr_problem *p = &r->p;
  memset(call, 0, sizeof *call);
  call->r = r;
  call->p = p;
  call->a = a;
  call->q = input_of(&p->q, a->q, p->dim_qk);
  call->k = input_of(&p->k, a->k, p->dim_qk);
  call->v = input_of(&p->v, a->v, p->dim_v);
  call->dout = input_of(&p->dout, a->dout, p->dim_v);
  input_scale(&call->q, &p->q_scale, a->q_scale, p->scale_rows_q);
  input_scale(&call->k, &p->k_scale, a->k_scale, p->scale_rows_k);
  input_scale(&call->v, &p->v_scale, a->v_scale, p->scale_rows_k);
  call->k.pages = call->v.pages = tsri_pages_of(p, a);
  if (a->rng_state)
    call->key = tsri_dropout_key_make(a->rng_state[0], a->rng_state[1]);
  else
    call->key = tsri_dropout_key_make(a->seed, a->offset);
  call->keep_scale = p->dropout < 1 ? 1 / (1 - (double)p->dropout) : 0;
  call->shared = (unsigned char *)workspace;
  call->workers = call->shared ? call->shared + memory.shared : NULL;
  call->worker_bytes = memory.worker;
}

tsri_ref_head tsri_ref_head_of(const tsri_ref_call *call, int64_t b, int64_t h) {
  const tsr_problem *p = call->p;
  tsri_ref_head head;
  head.call = call;
  head.b = b;
  head.h = h;
  head.g = h / call->r->group;
  head.seq = tsri_sequence_of(p, call->a, b);
  head.rule = tsri_sequence_rule(p, &head.seq);
  head.slope = 0;
  if (p->alibi == TSR_ALIBI_PER_HEAD) head.slope = call->a->alibi[h];
  if (p->alibi == TSR_ALIBI_PER_BATCH_HEAD) head.slope = call->a->alibi[b * p->heads_q + h];
  head.sink = p->sink ? (double)call->a->sink[h] : -INFINITY;
  return head;
}

/* Element offset of a row, and its scale. */
static int64_t locate(const tsri_ref_input *in, int64_t b, int64_t h, int64_t row, double *scale) {
  const int64_t offset = tsri_kv_offset(&in->pages, in->stride, b, h, row);
  *scale = 1;
  if (in->scale) { /* a page takes the place of the sequence, a row in it that of the row */
    int64_t outer = b, inner = row;
    if (in->pages.table) {
      const int64_t entry = b * in->pages.stride + row / in->pages.size;
      outer = tsri_index(in->pages.table, in->pages.dtype, entry);
      inner = row % in->pages.size;
    }
    inner = in->scale_rows > 0 ? inner / in->scale_rows : 0;
    *scale = in->scale[tsri_row_offset(in->scale_stride, outer, h, inner)];
  }
  return offset;
}

void tsri_ref_load_row_f64(const tsri_ref_input *in, int64_t b, int64_t h, int64_t row,
                           double *out) {
  double scale;
  const int64_t first = locate(in, b, h, row, &scale);
  const int64_t step = in->stride[3];
  int64_t d;
  switch (in->dtype) { /* the common types apart, so that the loop holds no switch */
    case TSR_DTYPE_F32:
      for (d = 0; d < in->dim; d++) out[d] = ((const float *)in->data)[first + d * step];
      break;
    case TSR_DTYPE_BF16:
      for (d = 0; d < in->dim; d++)
        out[d] = tsri_bf16_to_float(((const uint16_t *)in->data)[first + d * step]);
      break;
    case TSR_DTYPE_F16:
      for (d = 0; d < in->dim; d++)
        out[d] = tsri_f16_to_float(((const uint16_t *)in->data)[first + d * step]);
      break;
    default:
      for (d = 0; d < in->dim; d++) out[d] = tsri_load_f64(in->dtype, in->data, first + d * step);
  }
  if (in->scale)
    for (d = 0; d < in->dim; d++) out[d] *= scale;
}

void tsri_ref_load_row_f32(const tsri_ref_input *in, int64_t b, int64_t h, int64_t row,
                           float *out) {
  double scale;
  const int64_t first = locate(in, b, h, row, &scale);
  const int64_t step = in->stride[3];
  int64_t d;
  switch (in->dtype) {
    case TSR_DTYPE_F32:
      for (d = 0; d < in->dim; d++) out[d] = ((const float *)in->data)[first + d * step];
      break;
    case TSR_DTYPE_BF16:
      for (d = 0; d < in->dim; d++)
        out[d] = tsri_bf16_to_float(((const uint16_t *)in->data)[first + d * step]);
      break;
    case TSR_DTYPE_F16:
      for (d = 0; d < in->dim; d++)
        out[d] = tsri_f16_to_float(((const uint16_t *)in->data)[first + d * step]);
      break;
    default:
      for (d = 0; d < in->dim; d++) out[d] = tsri_load_f32(in->dtype, in->data, first + d * step);
  }
  if (in->scale)
    for (d = 0; d < in->dim; d++) out[d] *= (float)scale;
}

void tsri_ref_store_row_f64(const tsr_layout *layout, void *data, int64_t b, int64_t h, int64_t row,
                            const double *value, int64_t n, int accumulate) {
  const int64_t first = tsri_row_offset(layout->stride, b, h, row);
  int64_t d;
  for (d = 0; d < n; d++) {
    const int64_t at = first + d * layout->stride[3];
    const double before = accumulate ? tsri_load_f64(layout->dtype, data, at) : 0;
    tsri_store_f64(layout->dtype, data, at, accumulate ? before + value[d] : value[d]);
  }
}

void tsri_ref_store_row_f32(const tsr_layout *layout, void *data, int64_t b, int64_t h, int64_t row,
                            const float *value, int64_t n, int accumulate) {
  const int64_t first = tsri_row_offset(layout->stride, b, h, row);
  int64_t d;
  for (d = 0; d < n; d++) {
    const int64_t at = first + d * layout->stride[3];
    const float before = accumulate ? tsri_load_f32(layout->dtype, data, at) : 0;
    tsri_store_f32(layout->dtype, data, at, accumulate ? before + value[d] : value[d]);
  }
}

void tsri_ref_store_zero(const tsr_layout *layout, void *data, int64_t b, int64_t h, int64_t row,
                         int64_t n, int accumulate) {
  const int64_t first = tsri_row_offset(layout->stride, b, h, row);
  int64_t d;
  if (accumulate) return;
  for (d = 0; d < n; d++) tsri_store_f64(layout->dtype, data, first + d * layout->stride[3], 0);
}

void tsri_ref_zero_padding(const tsr_layout *layout, void *data, int64_t b, int64_t h,
                           const tsri_span *span, int64_t n, int accumulate) {
  const int64_t slot_end = span->slot_begin + span->slot_len;
  int64_t row;
  for (row = span->slot_begin; row < span->begin; row++)
    tsri_ref_store_zero(layout, data, b, h, row, n, accumulate);
  for (row = span->begin + span->len; row < slot_end; row++)
    tsri_ref_store_zero(layout, data, b, h, row, n, accumulate);
}

int tsri_ref_mask_tensors(const tsri_ref_head *head, int64_t i, int64_t j) {
  const tsr_problem *p = head->call->p;
  const tsr_args *a = head->call->a;
  if (p->mask.dtype != TSR_DTYPE_NONE &&
      !tsri_mask_element(a->mask, p->mask.dtype == TSR_DTYPE_BIT,
                         tsri_pair_offset(p->mask.stride, head->b, head->h, i, j)))
    return 0;
  if (p->block_mask.dtype != TSR_DTYPE_NONE &&
      !tsri_mask_element(
          a->block_mask, 0,
          tsri_pair_offset(p->block_mask.stride, head->b, head->h, i / p->block_q, j / p->block_k)))
    return 0;
  return 1;
}

double tsri_ref_bias(const tsri_ref_head *head, int64_t i, int64_t j) {
  const tsr_layout *bias = &head->call->p->bias;
  if (bias->dtype == TSR_DTYPE_NONE) return 0;
  return tsri_load_f64(bias->dtype, head->call->a->bias,
                       tsri_pair_offset(bias->stride, head->b, head->h, i, j));
}

tsri_ref_bias_shape tsri_ref_dbias_shape(const tsr_problem *p) {
  tsri_ref_bias_shape shape;
  shape.batch = p->dbias.stride[0] ? p->batch : 1;
  shape.heads = p->dbias.stride[1] ? p->heads_q : 1;
  shape.seq_q = p->dbias.stride[2] ? p->seq_q : 1;
  shape.seq_k = p->dbias.stride[3] ? p->seq_k : 1;
  return shape;
}
