// SPDX-License-Identifier: Apache-2.0
//
// Validation of a problem's scalar fields, and its resolution: what a caller left to default
// becomes a number here, causal and window become one band (see common/mask.h), and the features
// that a kernel must honour become bits. Tensors are checked by validate_layout.c, which this file
// calls.
#include "validate.h"

#include <math.h>
#include <string.h>

#include "common/dropout.h"
#include "text.h"

#define LL long long

/* Structs a little longer than ours come from newer headers; sizes beyond this are garbage, and
 * looking for zeros there would read memory that is not the caller's. */
#define STRUCT_SLACK 4096

static tsr_status check_struct_size(size_t found, size_t known, const char *name) {
  TSRI_INVALID_IF(found < sizeof(size_t) || found % sizeof(size_t) || found > known + STRUCT_SLACK,
                  "%s.struct_size: found %zu, accepted sizeof(%s) = %zu", name, found, name, known);
  return TSR_STATUS_SUCCESS;
}

tsr_status tsri_read_struct(void *to, size_t size, const void *from, const char *name) {
  size_t found;
  TSRI_INVALID_IF(!from, "%s: found NULL, accepted a pointer to a %s", name, name);
  memcpy(&found, from, sizeof found);
  TSRI_FORWARD(check_struct_size(found, size, name));
  for (size_t i = size; i < found; ++i) {
    TSRI_INVALID_IF(
        ((const unsigned char *)from)[i],
        "%s.struct_size: found %zu with fields in use beyond the %zu bytes that version "
        "%s knows, accepted zero there",
        name, found, size, tsr_version_string());
  }
  memset(to, 0, size);
  memcpy(to, from, found < size ? found : size);
  memcpy(to, &size, sizeof size);
  return TSR_STATUS_SUCCESS;
}

tsr_status tsri_check_out_struct(const void *out, size_t size, const char *name) {
  size_t found;
  TSRI_INVALID_IF(!out, "info: found NULL, accepted a pointer to a %s", name);
  memcpy(&found, out, sizeof found);
  return check_struct_size(found, size, name);
}

void tsri_write_struct(void *to, const void *from, size_t size) {
  size_t room;
  memcpy(&room, to, sizeof room);
  const size_t copied = room < size ? room : size;
  memcpy((char *)to + sizeof room, (const char *)from + sizeof room, copied - sizeof room);
  if (room > size) memset((char *)to + size, 0, room - size);
}

tsr_status tsri_validate_device(tsr_device device) {
  TSRI_INVALID_IF((unsigned)device.kind > TSR_DEVICE_HIP,
                  "device.kind: found %d, accepted 0 (host), 1 (cuda) or 2 (hip)",
                  (int)device.kind);
  TSRI_INVALID_IF(device.index < 0, "device.index: found %d, accepted 0 or more", device.index);
  TSRI_INVALID_IF(device.kind == TSR_DEVICE_HOST && device.index != 0,
                  "device.index: found %d, accepted 0: there is one host", device.index);
  return TSR_STATUS_SUCCESS;
}

static tsr_status check_range(const char *name, int64_t value, int64_t lo, int64_t hi) {
  TSRI_INVALID_IF(value < lo || value > hi, "%s: found %lld, accepted %lld .. %lld", name,
                  (LL)value, (LL)lo, (LL)hi);
  return TSR_STATUS_SUCCESS;
}

static tsr_status check_zero(const char *name, int64_t value, const char *why) {
  TSRI_INVALID_IF(value != 0, "%s: found %lld, accepted 0: %s", name, (LL)value, why);
  return TSR_STATUS_SUCCESS;
}

static tsr_status check_choices(tsr_problem *p) {
  TSRI_INVALID_IF(p->passes & ~(uint32_t)(TSR_PASS_FORWARD | TSR_PASS_BACKWARD),
                  "passes: found 0x%x, accepted tsr_pass bits (0x3)", p->passes);
  if (!p->passes) p->passes = TSR_PASS_FORWARD;
  TSRI_INVALID_IF(p->arrays & ~UINT32_C(0xff), "arrays: found 0x%x, accepted tsr_array bits (0xff)",
                  p->arrays);
  TSRI_INVALID_IF(p->index_dtype != TSR_DTYPE_NONE && p->index_dtype != TSR_DTYPE_I32 &&
                      p->index_dtype != TSR_DTYPE_I64,
                  "index_dtype: found %d (%s), accepted int32 or int64", (int)p->index_dtype,
                  tsri_dtype_text(p->index_dtype));
  if (p->index_dtype == TSR_DTYPE_NONE) p->index_dtype = TSR_DTYPE_I32;
  TSRI_FORWARD(check_range("determinism", (int)p->determinism, 0, 2));
  TSRI_FORWARD(check_zero("reserved0", p->reserved0, "it is reserved"));
  TSRI_FORWARD(check_zero("reserved1", p->reserved1, "it is reserved"));
  TSRI_FORWARD(check_zero("window.reserved", p->window.reserved, "it is reserved"));
  return TSR_STATUS_SUCCESS;
}

static tsr_status check_heads_and_dims(tsr_problem *p) {
  TSRI_FORWARD(check_range("batch", p->batch, 0, TSRI_LENGTH_MAX));
  TSRI_FORWARD(check_range("heads_q", p->heads_q, 0, TSRI_LENGTH_MAX));
  TSRI_FORWARD(check_range("heads_kv", p->heads_kv, 0, TSRI_LENGTH_MAX));
  TSRI_INVALID_IF(p->heads_kv ? p->heads_q % p->heads_kv != 0 : p->heads_q != 0,
                  "heads_q: found %lld, accepted a multiple of heads_kv (%lld)", (LL)p->heads_q,
                  (LL)p->heads_kv);
  TSRI_INVALID_IF(p->batch * p->heads_q > TSRI_LENGTH_MAX,
                  "batch * heads_q: found %lld, accepted less than 2^31",
                  (LL)(p->batch * p->heads_q));
  TSRI_FORWARD(check_range("dim_qk", p->dim_qk, 1, TSRI_DIM_QK_MAX));
  if (!p->dim_v) p->dim_v = p->dim_qk;
  TSRI_FORWARD(check_range("dim_v", p->dim_v, 1, TSRI_DIM_V_MAX));
  return TSR_STATUS_SUCCESS;
}

/* Packed or fixed slots of one side; *seq becomes an upper bound of every slot. */
static tsr_status check_side(const char *seq_name, const char *total_name, int packed, int64_t *seq,
                             int64_t total) {
  TSRI_FORWARD(check_range(seq_name, *seq, 0, TSRI_LENGTH_MAX));
  TSRI_INVALID_IF(total < 0, "%s: found %lld, accepted 0 or more", total_name, (LL)total);
  if (!packed) return check_zero(total_name, total, "the sequences are not packed (arrays: CU)");
  if (!*seq) *seq = total < TSRI_LENGTH_MAX ? total : TSRI_LENGTH_MAX;
  return TSR_STATUS_SUCCESS;
}

static tsr_status check_pages(tsr_problem *p) {
  TSRI_FORWARD(check_range("page_size", p->page_size, 0, TSRI_LENGTH_MAX));
  if (!p->page_size) {
    TSRI_FORWARD(check_zero("num_pages", p->num_pages, "page_size is 0"));
    TSRI_FORWARD(check_zero("max_pages", p->max_pages, "page_size is 0"));
    return check_zero("page_table_stride", p->page_table_stride, "page_size is 0");
  }
  int64_t rows, extent;
  TSRI_FORWARD(check_range("num_pages", p->num_pages, 0, INT64_MAX));
  TSRI_FORWARD(check_range("max_pages", p->max_pages, 0, TSRI_LENGTH_MAX));
  TSRI_INVALID_IF(tsri_mul_overflows(p->max_pages, p->page_size, &rows) || rows > TSRI_LENGTH_MAX,
                  "max_pages: found %lld pages of %lld rows, accepted less than 2^31 rows",
                  (LL)p->max_pages, (LL)p->page_size);
  TSRI_INVALID_IF(p->arrays & TSR_ARRAY_CU_K,
                  "arrays: found CU_K with page_size %lld, accepted "
                  "one of the two: pages are not packed",
                  (LL)p->page_size);
  TSRI_INVALID_IF(!(p->arrays & TSR_ARRAY_USED_K),
                  "arrays: found no USED_K with page_size %lld, accepted USED_K: pages need it",
                  (LL)p->page_size);
  TSRI_INVALID_IF(p->seq_k && p->seq_k != rows,
                  "seq_k: found %lld, accepted 0 or max_pages * page_size = %lld", (LL)p->seq_k,
                  (LL)rows);
  p->seq_k = rows;
  TSRI_INVALID_IF(p->page_table_stride && p->page_table_stride < p->max_pages,
                  "page_table_stride: found %lld, accepted 0 or at least max_pages (%lld)",
                  (LL)p->page_table_stride, (LL)p->max_pages);
  if (!p->page_table_stride) p->page_table_stride = p->max_pages;
  TSRI_INVALID_IF(tsri_mul_overflows(p->batch, p->page_table_stride, &extent) ||
                      tsri_mul_overflows(extent, 8, &extent),
                  "page_table_stride: found %lld for %lld sequences, accepted what 64-bit offsets "
                  "reach",
                  (LL)p->page_table_stride, (LL)p->batch);
  return TSR_STATUS_SUCCESS;
}

/* A score tensor's dense shape is the bound of the slots, so one must be known. */
static tsr_status check_score_bounds(const tsr_problem *p, const char *name,
                                     const tsr_layout *layout) {
  const int dense = layout->order != TSR_ORDER_STRIDED;
  if (layout->dtype == TSR_DTYPE_NONE) return TSR_STATUS_SUCCESS;
  TSRI_INVALID_IF(
      (p->arrays & TSR_ARRAY_CU_Q) && !p->seq_q && p->total_q && (dense || layout->stride[2]),
      "seq_q: found 0, accepted the longest packed query sequence: it is an axis of %s", name);
  TSRI_INVALID_IF(
      (p->arrays & TSR_ARRAY_CU_K) && !p->seq_k && p->total_k && (dense || layout->stride[3]),
      "seq_k: found 0, accepted the longest packed key sequence: it is an axis of %s", name);
  return TSR_STATUS_SUCCESS;
}

static tsr_status check_sizes(tsr_problem *p) {
  TSRI_FORWARD(check_heads_and_dims(p));
  TSRI_FORWARD(check_score_bounds(p, "bias", &p->bias));
  TSRI_FORWARD(check_score_bounds(p, "mask", &p->mask));
  TSRI_FORWARD(check_score_bounds(p, "block_mask", &p->block_mask));
  TSRI_FORWARD(check_pages(p));
  TSRI_FORWARD(
      check_side("seq_q", "total_q", !!(p->arrays & TSR_ARRAY_CU_Q), &p->seq_q, p->total_q));
  TSRI_FORWARD(
      check_side("seq_k", "total_k", !!(p->arrays & TSR_ARRAY_CU_K), &p->seq_k, p->total_k));
  return TSR_STATUS_SUCCESS;
}

static tsr_status check_scores(tsr_problem *p) {
  TSRI_INVALID_IF(!isfinite(p->scale), "scale: found %g, accepted a finite number", p->scale);
  if (p->scale == 0) p->scale = (float)(1.0 / sqrt((double)p->dim_qk));
  TSRI_INVALID_IF(!isfinite(p->softcap) || p->softcap < 0,
                  "softcap: found %g, accepted 0 or a finite positive number", p->softcap);
  TSRI_FORWARD(check_range("alibi", (int)p->alibi, 0, 2));
  TSRI_FORWARD(check_range("sink", p->sink, 0, 1));
  TSRI_FORWARD(check_range("dsink", p->dsink, 0, 1));
  TSRI_INVALID_IF(!(p->dropout >= 0 && p->dropout <= 1), "dropout: found %g, accepted 0 .. 1",
                  p->dropout);
  return TSR_STATUS_SUCCESS;
}

/* causal and window as one band. A side of 2^62 or more bounds nothing, whatever the diagonal. */
static void merge_band(tsr_problem *p) {
  tsr_window *w = &p->window;
  if (w->kind == TSR_WINDOW_NONE) w->left = w->right = TSR_UNBOUNDED;
  if (w->left >= INT64_C(1) << 62) w->left = TSR_UNBOUNDED;
  if (w->right >= INT64_C(1) << 62) w->right = TSR_UNBOUNDED;
  if (p->causal != TSR_CAUSAL_NONE) {
    w->kind = (tsr_window_kind)p->causal; /* the enumerators have the same values */
    w->right = 0;                         /* sides are not negative, so min(right, 0) is 0 */
    p->causal = TSR_CAUSAL_NONE;
  }
  if (w->left == TSR_UNBOUNDED && w->right == TSR_UNBOUNDED) w->kind = TSR_WINDOW_NONE;
}

static tsr_status check_band(tsr_problem *p) {
  const tsr_window *w = &p->window;
  TSRI_FORWARD(check_range("causal", (int)p->causal, 0, 3));
  TSRI_FORWARD(check_range("window.kind", (int)w->kind, 0, 3));
  if (w->kind == TSR_WINDOW_NONE) {
    TSRI_FORWARD(check_zero("window.left", w->left, "window.kind is NONE"));
    TSRI_FORWARD(check_zero("window.right", w->right, "window.kind is NONE"));
  }
  TSRI_INVALID_IF(w->left < 0, "window.left: found %lld, accepted 0 or more, or TSR_UNBOUNDED",
                  (LL)w->left);
  TSRI_INVALID_IF(w->right < 0, "window.right: found %lld, accepted 0 or more, or TSR_UNBOUNDED",
                  (LL)w->right);
  TSRI_INVALID_IF(p->causal && w->kind && (int)p->causal != (int)w->kind,
                  "window.kind: found %d with causal %d, accepted the same diagonal", (int)w->kind,
                  (int)p->causal);
  const int is_explicit = p->causal == TSR_CAUSAL_EXPLICIT || w->kind == TSR_WINDOW_EXPLICIT;
  TSRI_INVALID_IF(p->diagonal && !is_explicit,
                  "diagonal: found %lld, accepted 0: neither causal nor window.kind is EXPLICIT",
                  (LL)p->diagonal);
  TSRI_INVALID_IF((p->arrays & TSR_ARRAY_DIAGONAL) && !is_explicit,
                  "arrays: found DIAGONAL, accepted only with causal or window.kind EXPLICIT");
  TSRI_INVALID_IF((p->arrays & TSR_ARRAY_DIAGONAL) && p->diagonal,
                  "diagonal: found %lld, accepted 0: arrays has DIAGONAL", (LL)p->diagonal);
  TSRI_FORWARD(check_range("diagonal", p->diagonal, -TSRI_DIAGONAL_MAX, TSRI_DIAGONAL_MAX));
  TSRI_INVALID_IF(p->prefix < 0, "prefix: found %lld, accepted 0 or more", (LL)p->prefix);
  TSRI_INVALID_IF((p->arrays & TSR_ARRAY_PREFIX) && p->prefix,
                  "prefix: found %lld, accepted 0: arrays has PREFIX", (LL)p->prefix);
  if (p->prefix > TSRI_LENGTH_MAX) p->prefix = TSRI_LENGTH_MAX; /* longer than any sequence */
  merge_band(p);
  return TSR_STATUS_SUCCESS;
}

/* Rows per scale or per block: needed with the tensor, refused without. */
static tsr_status check_blocks(tsr_problem *p) {
  const int blocks = p->block_mask.dtype != TSR_DTYPE_NONE;
  TSRI_INVALID_IF(blocks ? p->block_q < 1 || p->block_q > TSRI_LENGTH_MAX : p->block_q != 0,
                  "block_q: found %lld, accepted %s", (LL)p->block_q,
                  blocks ? "1 .. 2^31-1" : "0: there is no block_mask");
  TSRI_INVALID_IF(blocks ? p->block_k < 1 || p->block_k > TSRI_LENGTH_MAX : p->block_k != 0,
                  "block_k: found %lld, accepted %s", (LL)p->block_k,
                  blocks ? "1 .. 2^31-1" : "0: there is no block_mask");
  TSRI_INVALID_IF(p->scale_rows_q < 0, "scale_rows_q: found %lld, accepted 0 or more",
                  (LL)p->scale_rows_q);
  TSRI_INVALID_IF(p->scale_rows_k < 0, "scale_rows_k: found %lld, accepted 0 or more",
                  (LL)p->scale_rows_k);
  if (p->q_scale.dtype == TSR_DTYPE_NONE) {
    TSRI_FORWARD(check_zero("scale_rows_q", p->scale_rows_q, "there is no q_scale"));
  }
  if (p->k_scale.dtype == TSR_DTYPE_NONE && p->v_scale.dtype == TSR_DTYPE_NONE) {
    TSRI_FORWARD(check_zero("scale_rows_k", p->scale_rows_k, "there is no k_scale or v_scale"));
  }
  return TSR_STATUS_SUCCESS;
}

/* What a backward pass needs, and what only it may ask for. Tensors of unused roles are refused by
 * validate_layout.c. */
static tsr_status check_backward(const tsr_problem *p) {
  const uint32_t asked =
      (p->dq.dtype ? TSR_ACCUMULATE_DQ : 0u) | (p->dk.dtype ? TSR_ACCUMULATE_DK : 0u) |
      (p->dv.dtype ? TSR_ACCUMULATE_DV : 0u) | (p->dbias.dtype ? TSR_ACCUMULATE_DBIAS : 0u) |
      (p->dsink ? TSR_ACCUMULATE_DSINK : 0u);
  TSRI_INVALID_IF(p->accumulate & ~asked,
                  "accumulate: found 0x%x, accepted bits of gradients that are asked for (0x%x)",
                  p->accumulate, asked);
  if (!(p->passes & TSR_PASS_BACKWARD)) {
    return check_zero("dsink", p->dsink, "passes has no BACKWARD");
  }
  TSRI_INVALID_IF(p->lse.dtype == TSR_DTYPE_NONE,
                  "lse.dtype: found none, accepted float32: the backward pass needs it");
  TSRI_INVALID_IF(
      p->dout.dtype == TSR_DTYPE_NONE,
      "dout.dtype: found none, accepted o's dtype or float32: the backward pass needs it");
  TSRI_INVALID_IF(!asked,
                  "dq, dk, dv, dbias, dsink: found none of them, accepted at least one gradient");
  TSRI_INVALID_IF(p->page_size && p->dk.dtype,
                  "dk.dtype: found %s with pages, accepted none: sequences may share pages",
                  tsri_dtype_text(p->dk.dtype));
  TSRI_INVALID_IF(p->page_size && p->dv.dtype,
                  "dv.dtype: found %s with pages, accepted none: sequences may share pages",
                  tsri_dtype_text(p->dv.dtype));
  TSRI_INVALID_IF(p->dsink && !p->sink, "dsink: found 1, accepted 0: there is no sink");
  return TSR_STATUS_SUCCESS;
}

tsr_status tsri_validate_problem(const tsr_problem *in, tsr_problem *out) {
  TSRI_FORWARD(tsri_read_struct(out, sizeof *out, in, "tsr_problem"));
  TSRI_FORWARD(check_choices(out));
  TSRI_FORWARD(check_sizes(out));
  TSRI_FORWARD(check_scores(out));
  TSRI_FORWARD(check_band(out));
  TSRI_FORWARD(check_blocks(out));
  TSRI_FORWARD(tsri_validate_layouts(out));
  TSRI_FORWARD(check_backward(out));
  out->backend = out->kernel = NULL;
  return TSR_STATUS_SUCCESS;
}

static int last_strided(const tsr_layout *layout, int64_t dim) {
  return layout->dtype != TSR_DTYPE_NONE && dim > 1 && layout->stride[3] != 1;
}

static uint32_t features_of(const tsr_problem *p) {
  const uint32_t lengths =
      TSR_ARRAY_USED_Q | TSR_ARRAY_USED_K | TSR_ARRAY_LEFT_PAD_Q | TSR_ARRAY_LEFT_PAD_K;
  const tsr_window *w = &p->window;
  uint32_t f = 0;
  if (w->kind && w->right == 0) f |= TSR_FEATURE_CAUSAL;
  if (w->kind && (w->left != TSR_UNBOUNDED || (w->right != 0 && w->right != TSR_UNBOUNDED))) {
    f |= TSR_FEATURE_WINDOW;
  }
  if (p->prefix || (p->arrays & TSR_ARRAY_PREFIX)) f |= TSR_FEATURE_PREFIX;
  if (p->mask.dtype) f |= TSR_FEATURE_MASK;
  if (p->block_mask.dtype) f |= TSR_FEATURE_BLOCK_MASK;
  if (p->bias.dtype) f |= TSR_FEATURE_BIAS;
  if (p->alibi) f |= TSR_FEATURE_ALIBI;
  if (p->softcap > 0) f |= TSR_FEATURE_SOFTCAP;
  if (p->sink) f |= TSR_FEATURE_SINK;
  if (p->dropout > 0) f |= TSR_FEATURE_DROPOUT;
  if (p->heads_q > p->heads_kv) f |= TSR_FEATURE_GROUPED_HEADS;
  if (p->arrays & (TSR_ARRAY_CU_Q | TSR_ARRAY_CU_K)) f |= TSR_FEATURE_PACKED;
  if (p->arrays & lengths) f |= TSR_FEATURE_USED_LENGTHS;
  if (p->page_size) f |= TSR_FEATURE_PAGED;
  if (p->max_logit.dtype) f |= TSR_FEATURE_MAX_LOGIT;
  if (p->q_scale.dtype || p->k_scale.dtype || p->v_scale.dtype) f |= TSR_FEATURE_SCALES;
  if (p->dlse.dtype) f |= TSR_FEATURE_DLSE;
  if (p->dbias.dtype) f |= TSR_FEATURE_DBIAS;
  if (p->dsink) f |= TSR_FEATURE_DSINK;
  if (p->accumulate) f |= TSR_FEATURE_ACCUMULATE;
  if (p->determinism >= TSR_DETERMINISM_DETERMINISTIC) f |= TSR_FEATURE_DETERMINISTIC;
  if (p->determinism >= TSR_DETERMINISM_BATCH_INVARIANT) f |= TSR_FEATURE_BATCH_INVARIANT;
  if (last_strided(&p->q, p->dim_qk) || last_strided(&p->k, p->dim_qk) ||
      last_strided(&p->v, p->dim_v) || last_strided(&p->o, p->dim_v) ||
      last_strided(&p->dout, p->dim_v) || last_strided(&p->dq, p->dim_qk) ||
      last_strided(&p->dk, p->dim_qk) || last_strided(&p->dv, p->dim_v)) {
    f |= TSR_FEATURE_STRIDED_LAST;
  }
  return f;
}

void tsri_resolve_pass(const tsr_problem *valid, tsr_device device, tsr_pass pass,
                       tsr_resolved *out) {
  memset(out, 0, sizeof *out);
  out->p = *valid;
  out->p.passes = (uint32_t)pass;
  for (int i = 0; i < TSRI_TENSORS; ++i) {
    tsr_layout *layout = tsri_tensor_layout(&out->p, &tsri_tensors[i]);
    if (!tsri_tensor_role(&tsri_tensors[i], (uint32_t)pass)) memset(layout, 0, sizeof *layout);
  }
  if (pass == TSR_PASS_FORWARD) out->p.dsink = out->p.accumulate = 0;
  out->features = features_of(&out->p);
  out->group = valid->heads_q && valid->heads_kv ? (int32_t)(valid->heads_q / valid->heads_kv) : 1;
  out->drop_threshold = tsri_dropout_threshold(valid->dropout);
  out->keep_scale = valid->dropout < 1 ? (float)(1.0 / (1.0 - (double)valid->dropout)) : 0;
  out->device = device;
}
