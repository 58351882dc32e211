// SPDX-License-Identifier: Apache-2.0
//
// Validation of tensors: one table says for every tensor of a problem where its layout and pointer
// are, which axes it has and which pass reads or writes it. From it follow the checks of dtypes,
// orders, strides (overflow; outputs with an own address per element) and alignment promises, and
// later the checks of pointers (validate_run.c) and what a pass does not see (validate.c).
#include <stdio.h>
#include <string.h>

#include "common/dtype.h"
#include "text.h"
#include "validate.h"

#define LL long long

#define ROW(field, shape, forward, backward)                                  \
  {                                                                           \
    #field, offsetof(tsr_problem, field), offsetof(tsr_args, field), shape, { \
      TSRI_##forward, TSRI_##backward                                         \
    }                                                                         \
  }

const tsri_tensor tsri_tensors[TSRI_TENSORS] = {
    ROW(q, TSRI_SHAPE_Q, IN, IN),
    ROW(k, TSRI_SHAPE_K, IN, IN),
    ROW(v, TSRI_SHAPE_V, IN, IN),
    ROW(bias, TSRI_SHAPE_SCORES, IN, IN),
    ROW(mask, TSRI_SHAPE_SCORES, IN, IN),
    ROW(block_mask, TSRI_SHAPE_BLOCKS, IN, IN),
    ROW(q_scale, TSRI_SHAPE_Q_SCALE, IN, IN),
    ROW(k_scale, TSRI_SHAPE_KV_SCALE, IN, IN),
    ROW(v_scale, TSRI_SHAPE_KV_SCALE, IN, IN),
    ROW(o, TSRI_SHAPE_O, OUT, IN),
    ROW(lse, TSRI_SHAPE_ROWS, OUT, IN),
    ROW(max_logit, TSRI_SHAPE_ROWS, OUT, UNUSED),
    ROW(dout, TSRI_SHAPE_O, UNUSED, IN),
    ROW(dlse, TSRI_SHAPE_ROWS, UNUSED, IN),
    ROW(dq, TSRI_SHAPE_Q, UNUSED, OUT),
    ROW(dk, TSRI_SHAPE_K, UNUSED, OUT),
    ROW(dv, TSRI_SHAPE_V, UNUSED, OUT),
    ROW(dbias, TSRI_SHAPE_SCORES, UNUSED, OUT),
};

tsr_layout *tsri_tensor_layout(tsr_problem *p, const tsri_tensor *tensor) {
  return (tsr_layout *)(void *)((char *)p + tensor->layout);
}

const tsr_layout *tsri_tensor_layout_const(const tsr_problem *p, const tsri_tensor *tensor) {
  return (const tsr_layout *)(const void *)((const char *)p + tensor->layout);
}

tsri_role tsri_tensor_role(const tsri_tensor *tensor, uint32_t passes) {
  const tsri_role forward = passes & TSR_PASS_FORWARD ? tensor->role[0] : TSRI_UNUSED;
  const tsri_role backward = passes & TSR_PASS_BACKWARD ? tensor->role[1] : TSRI_UNUSED;
  return forward > backward ? forward : backward;
}

static int64_t ceil_div(int64_t a, int64_t b) {
  return a / b + (a % b != 0);
}

/* Elements along the row axis of a scale tensor. */
static int64_t scale_count(int64_t rows, int64_t per_scale) {
  return per_scale ? ceil_div(rows, per_scale) : rows > 0;
}

static int set_dims(int64_t dim[4], int64_t b, int64_t h, int64_t s, int64_t d, int flags) {
  dim[0] = b;
  dim[1] = h;
  dim[2] = s;
  dim[3] = d;
  return flags;
}

int tsri_tensor_dims(const tsr_problem *p, const tsri_tensor *tensor, int64_t dim[4]) {
  const int packed_q = p->arrays & TSR_ARRAY_CU_Q ? TSRI_LAYOUT_PACKED : 0;
  const int packed_k = p->arrays & TSR_ARRAY_CU_K ? TSRI_LAYOUT_PACKED : 0;
  const int64_t bq = packed_q ? 1 : p->batch, sq = packed_q ? p->total_q : p->seq_q;
  const int64_t bk = p->page_size ? p->num_pages : packed_k ? 1 : p->batch;
  const int64_t sk = p->page_size ? p->page_size : packed_k ? p->total_k : p->seq_k;
  switch (tensor->shape) {
    case TSRI_SHAPE_Q:
      return set_dims(dim, bq, p->heads_q, sq, p->dim_qk, packed_q);
    case TSRI_SHAPE_O:
      return set_dims(dim, bq, p->heads_q, sq, p->dim_v, packed_q);
    case TSRI_SHAPE_K:
      return set_dims(dim, bk, p->heads_kv, sk, p->dim_qk, packed_k);
    case TSRI_SHAPE_V:
      return set_dims(dim, bk, p->heads_kv, sk, p->dim_v, packed_k);
    case TSRI_SHAPE_ROWS:
      return set_dims(dim, bq, p->heads_q, sq, 1, packed_q | TSRI_LAYOUT_ROWS);
    case TSRI_SHAPE_Q_SCALE:
      return set_dims(dim, bq, p->heads_q, scale_count(sq, p->scale_rows_q), 1,
                      packed_q | TSRI_LAYOUT_ROWS);
    case TSRI_SHAPE_KV_SCALE:
      return set_dims(dim, bk, p->heads_kv, scale_count(sk, p->scale_rows_k), 1,
                      packed_k | TSRI_LAYOUT_ROWS);
    case TSRI_SHAPE_BLOCKS:
      return set_dims(dim, p->batch, p->heads_q, ceil_div(p->seq_q, p->block_q),
                      ceil_div(p->seq_k, p->block_k), 0);
    case TSRI_SHAPE_SCORES:
      break;
  }
  return set_dims(dim, p->batch, p->heads_q, p->seq_q, p->seq_k, 0);
}

/* "float32, float16 or bfloat16" of a set of bits 1 << dtype. */
static void list_dtypes(tsri_text *text, uint64_t accepted) {
  int left = __builtin_popcountll(accepted);
  for (int d = 0; d < 64; ++d) {
    if (!(accepted >> d & 1)) continue;
    --left;
    tsri_text_add(text, "%s%s", tsri_dtype_text((tsr_dtype)d),
                  left > 1    ? ", "
                  : left == 1 ? " or "
                              : "");
  }
}

static tsr_status check_dtype(const char *name, tsr_dtype dtype, uint64_t accepted) {
  char list[160];
  if ((unsigned)dtype < 64 && accepted >> dtype & 1) return TSR_STATUS_SUCCESS;
  tsri_text text = tsri_text_over(list, sizeof list);
  list_dtypes(&text, accepted);
  TSRI_RETURN(TSR_STATUS_INVALID_ARGUMENT, "%s.dtype: found %d (%s), accepted %s", name, (int)dtype,
              tsri_dtype_text(dtype), list);
}

/* A layout without a dtype says nothing else either: a forgotten dtype must not pass for absence.
 */
static tsr_status check_absent(const char *name, const tsr_layout *l) {
  TSRI_INVALID_IF(
      l->order || l->alignment || l->stride[0] || l->stride[1] || l->stride[2] || l->stride[3],
      "%s.dtype: found none with order, strides or alignment set, accepted a dtype, or "
      "zero in all fields",
      name);
  return TSR_STATUS_SUCCESS;
}

static tsr_status check_strides(const char *name, const int64_t dim[4], int flags,
                                const tsr_layout *l) {
  static const char axes[] = "BHSD";
  for (int a = 0; a < 4; ++a) {
    const int64_t stride = l->stride[a];
    TSRI_INVALID_IF(stride < 0, "%s.stride[%d]: found %lld, accepted 0 or more (axis %c)", name, a,
                    (LL)stride, axes[a]);
    TSRI_INVALID_IF(l->order != TSR_ORDER_STRIDED && stride,
                    "%s.stride[%d]: found %lld, accepted 0: order is dense, not STRIDED", name, a,
                    (LL)stride);
    TSRI_INVALID_IF(l->dtype == TSR_DTYPE_BIT && a < 3 && dim[a] > 1 && stride % 8,
                    "%s.stride[%d]: found %lld bits, accepted multiples of 8", name, a, (LL)stride);
  }
  TSRI_INVALID_IF(l->dtype == TSR_DTYPE_BIT && dim[3] > 1 && l->stride[3] > 1,
                  "%s.stride[3]: found %lld bits, accepted 0 or 1", name, (LL)l->stride[3]);
  TSRI_INVALID_IF((flags & TSRI_LAYOUT_PACKED) && l->stride[0],
                  "%s.stride[0]: found %lld, accepted 0: packed sequences have no batch axis", name,
                  (LL)l->stride[0]);
  return TSR_STATUS_SUCCESS;
}

static tsr_status resolve_alignment(const char *name, tsr_layout *l) {
  const int64_t element = l->dtype == TSR_DTYPE_BIT ? 1 : tsri_dtype_bytes(l->dtype);
  if (!l->alignment) l->alignment = element;
  TSRI_INVALID_IF(l->alignment < element || l->alignment > TSRI_ALIGNMENT_MAX ||
                      (l->alignment & (l->alignment - 1)),
                  "%s.alignment: found %lld, accepted 0 or a power of two, %lld .. %d", name,
                  (LL)l->alignment, (LL)element, TSRI_ALIGNMENT_MAX);
  return TSR_STATUS_SUCCESS;
}

/* Strides that no address needs may have any value: of axes of length 1, and all of an empty tensor. Kernels count
 * strides in bytes and by rows of a tile, where large ones would overflow; none becomes 0, which says broadcast. */
static void limit_idle_strides(const int64_t dim[4], tsr_layout *l) {
  const int64_t most = INT64_C(1) << 39;
  const int empty = !dim[0] || !dim[1] || !dim[2] || !dim[3];
  for (int a = 0; a < 4; ++a) {
    if ((empty || dim[a] == 1) && l->stride[a] > most) l->stride[a] = most;
  }
}

tsr_status tsri_validate_layout(const char *name, const int64_t dim[4], int flags,
                                uint64_t accepted, int written, tsr_layout *l) {
  int64_t extent;
  int axis = 0;
  TSRI_FORWARD(check_dtype(name, l->dtype, accepted));
  if (l->dtype == TSR_DTYPE_NONE) return check_absent(name, l);
  TSRI_INVALID_IF((unsigned)l->order > TSR_ORDER_STRIDED,
                  "%s.order: found %d, accepted 0 (BHSD), 1 (BSHD) or 2 (STRIDED)", name,
                  (int)l->order);
  TSRI_FORWARD(check_strides(name, dim, flags, l));
  int too_large = 0;
  if (l->order != TSR_ORDER_STRIDED) {
    too_large = tsri_layout_dense(dim, l->order, l->dtype, flags, l->stride);
    l->order = TSR_ORDER_STRIDED;
  }
  too_large = too_large || tsri_layout_extent(dim, l->stride, l->dtype, &extent);
  TSRI_INVALID_IF(too_large,
                  "%s: found a [%lld, %lld, %lld, %lld] tensor of more than 2^63-1 bytes, accepted "
                  "what 64-bit offsets reach",
                  name, (LL)dim[0], (LL)dim[1], (LL)dim[2], (LL)dim[3]);
  TSRI_INVALID_IF(written && !tsri_layout_unique(dim, l->stride, &axis),
                  "%s.stride[%d]: found %lld, accepted a stride past the reach of the inner axes: "
                  "an output may not address an element twice",
                  name, axis, (LL)l->stride[axis]);
  limit_idle_strides(dim, l);
  /* Axes of length 1 have no stride to speak of; kernels look at the last one only. */
  if (flags & TSRI_LAYOUT_ROWS) {
    l->stride[3] = 0;
  } else if (dim[3] == 1) {
    l->stride[3] = 1;
  }
  return resolve_alignment(name, l);
}

#define BIT_OF(key) (UINT64_C(1) << TSR_DTYPE_##key)

/* Also of values that are no dtype, which are refused when their own turn comes. */
static uint64_t bit_of(tsr_dtype dtype) {
  return UINT64_C(1) << ((unsigned)dtype & 63);
}

static const uint64_t none_bit = BIT_OF(NONE);
static const uint64_t byte_bits = BIT_OF(F8_E4M3) | BIT_OF(F8_E5M2) | BIT_OF(I8);

/* Dtypes that a tensor may have, given those checked before it in the table's order. Results and
 * gradients of 8-bit tensors are never 8-bit themselves: there is no scale for them. */
static uint64_t accepted_dtypes(const tsr_problem *p, const char *name) {
  const uint64_t q = bit_of(p->q.dtype);
  const uint64_t k = bit_of(p->k.dtype);
  const uint64_t half = BIT_OF(F16) | BIT_OF(BF16), f32 = BIT_OF(F32);
  const uint64_t o_like = bit_of(p->o.dtype) | f32;
  const struct {
    const char *name;
    uint64_t accepted;
  } rules[] = {
      {"q", f32 | half | BIT_OF(F64) | BIT_OF(F8_E4M3) | BIT_OF(F8_E5M2)},
      {"k", q | byte_bits},
      {"v", k},
      {"bias", none_bit | f32 | half},
      {"mask", none_bit | BIT_OF(U8) | BIT_OF(BIT)},
      {"block_mask", none_bit | BIT_OF(U8)},
      {"q_scale", q & byte_bits ? f32 : none_bit},
      {"k_scale", k & byte_bits ? f32 : none_bit},
      {"v_scale", k & byte_bits ? f32 : none_bit},
      {"o", (q & byte_bits ? half : q) | f32},
      {"dout", none_bit | o_like},
      {"dq", none_bit | (q & byte_bits ? 0 : q) | f32},
      {"dk", none_bit | (k & byte_bits ? 0 : k) | f32},
      {"dv", none_bit | (k & byte_bits ? 0 : k) | f32},
      {"dbias", none_bit | (p->bias.dtype ? bit_of(p->bias.dtype) | f32 : 0)},
  };
  for (size_t i = 0; i < sizeof rules / sizeof rules[0]; ++i) {
    if (strcmp(rules[i].name, name) == 0) return rules[i].accepted;
  }
  return none_bit | f32; /* lse, max_logit, dlse */
}

/* dbias is summed over the axes that bias broadcasts, and over no others. */
static tsr_status check_dbias(const tsr_problem *p, const int64_t dim[4]) {
  for (int a = 0; a < 4; ++a) {
    TSRI_INVALID_IF(dim[a] > 1 && !p->dbias.stride[a] != !p->bias.stride[a],
                    "dbias.stride[%d]: found %lld with %lld in bias, accepted 0 exactly where bias "
                    "has 0",
                    a, (LL)p->dbias.stride[a], (LL)p->bias.stride[a]);
  }
  return TSR_STATUS_SUCCESS;
}

static tsr_status check_tensor(tsr_problem *p, const tsri_tensor *tensor) {
  tsr_layout *layout = tsri_tensor_layout(p, tensor);
  const tsri_role role = tsri_tensor_role(tensor, p->passes);
  int64_t dim[4];
  if (role == TSRI_UNUSED) {
    TSRI_INVALID_IF(layout->dtype != TSR_DTYPE_NONE,
                    "%s.dtype: found %d (%s), accepted none: "
                    "passes has no %s",
                    tensor->name, (int)layout->dtype, tsri_dtype_text(layout->dtype),
                    tensor->role[0] ? "FORWARD" : "BACKWARD");
    return check_absent(tensor->name, layout);
  }
  const uint64_t accepted = accepted_dtypes(p, tensor->name);
  /* Before the axes are computed: a block mask's need block_q and block_k. */
  TSRI_FORWARD(check_dtype(tensor->name, layout->dtype, accepted));
  if (layout->dtype == TSR_DTYPE_NONE) return check_absent(tensor->name, layout);
  const int flags = tsri_tensor_dims(p, tensor, dim);
  const int is_dbias = layout == &p->dbias;
  int64_t own[4];
  memcpy(own, dim, sizeof own);
  for (int a = 0; is_dbias && a < 4; ++a) {
    if (layout->order == TSR_ORDER_STRIDED && !layout->stride[a] && own[a] > 1) own[a] = 1;
  }
  const int64_t last = layout->stride[3];
  TSRI_FORWARD(tsri_validate_layout(tensor->name, own, flags, accepted, role == TSRI_OUT, layout));
  if (is_dbias && own[3] != dim[3]) layout->stride[3] = last;
  return is_dbias ? check_dbias(p, dim) : TSR_STATUS_SUCCESS;
}

tsr_status tsri_validate_layouts(tsr_problem *p) {
  for (int i = 0; i < TSRI_TENSORS; ++i) TSRI_FORWARD(check_tensor(p, &tsri_tensors[i]));
  return TSR_STATUS_SUCCESS;
}
