// SPDX-License-Identifier: Apache-2.0
//
// Validation of the tensors of a problem: dtypes, orders, strides, extents, uniqueness of outputs,
// alignment promises, and the strides that the dense orders resolve to.
#include "api/src/validate.h"
#include "tests/support/fake_backend.h"
#include "tests/unit/expect.h"

static tsr_problem resolved;

#define GOOD(change)                                 \
  do {                                               \
    tsr_problem p = fake_problem_backward();         \
    change;                                          \
    EXPECT_OK(tsri_validate_problem(&p, &resolved)); \
  } while (0)
#define BAD(text, change)                                       \
  do {                                                          \
    tsr_problem p = fake_problem_backward();                    \
    change;                                                     \
    EXPECT_INVALID(text, tsri_validate_problem(&p, &resolved)); \
  } while (0)

/* Makes a layout STRIDED. */
static void strided(tsr_layout *l, int64_t b, int64_t h, int64_t s, int64_t d) {
  l->order = TSR_ORDER_STRIDED;
  l->stride[0] = b;
  l->stride[1] = h;
  l->stride[2] = s;
  l->stride[3] = d;
}

static void expect_strides(const tsr_layout *l, int64_t b, int64_t h, int64_t s, int64_t d,
                           int line) {
  cr_expect_eq(l->order, TSR_ORDER_STRIDED, "line %d", line);
  cr_expect(l->stride[0] == b && l->stride[1] == h && l->stride[2] == s && l->stride[3] == d,
            "line %d: strides %lld %lld %lld %lld", line, (long long)l->stride[0],
            (long long)l->stride[1], (long long)l->stride[2], (long long)l->stride[3]);
}
#define STRIDES(field, b, h, s, d) expect_strides(&resolved.field, b, h, s, d, __LINE__)

static void set_dtypes(tsr_problem *p, tsr_dtype in, tsr_dtype out) {
  p->q.dtype = p->k.dtype = p->v.dtype = in;
  p->o.dtype = p->dout.dtype = p->dq.dtype = p->dk.dtype = p->dv.dtype = out;
}

Test(validate_layout, dtypes) {
  GOOD(set_dtypes(&p, TSR_DTYPE_BF16, TSR_DTYPE_BF16));
  GOOD(set_dtypes(&p, TSR_DTYPE_F16, TSR_DTYPE_F32));
  GOOD(set_dtypes(&p, TSR_DTYPE_F64, TSR_DTYPE_F64));
  BAD("q.dtype: found 0 (none), accepted float32, float16, bfloat16, float64, float8_e4m3 or "
      "float8_e5m2",
      p.q.dtype = TSR_DTYPE_NONE);
  BAD("q.dtype: found 7 (int8)", p.q.dtype = TSR_DTYPE_I8);
  BAD("q.dtype: found 99 (?)", p.q.dtype = (tsr_dtype)99);
  BAD("q.dtype: found -1", p.q.dtype = (tsr_dtype)-1);
  BAD("k.dtype: found 2 (float16), accepted float32, float8_e4m3", p.k.dtype = TSR_DTYPE_F16);
  BAD("v.dtype: found 2 (float16), accepted float32", p.v.dtype = TSR_DTYPE_F16);
  BAD("o.dtype: found 2 (float16), accepted float32", p.o.dtype = TSR_DTYPE_F16);
  BAD("o.dtype: found 0", p.o.dtype = TSR_DTYPE_NONE);
  BAD("lse.dtype: found 2 (float16), accepted none or float32", p.lse.dtype = TSR_DTYPE_F16);
  BAD("max_logit.dtype: found 4", p.max_logit.dtype = TSR_DTYPE_F64);
  BAD("bias.dtype: found 4 (float64)", p.bias.dtype = TSR_DTYPE_F64);
  BAD("mask.dtype: found 1 (float32), accepted none, uint8 or bit", p.mask.dtype = TSR_DTYPE_F32);
  BAD("block_mask.dtype: found 17 (bit), accepted none or uint8",
      p.block_mask.dtype = TSR_DTYPE_BIT;
      p.block_q = p.block_k = 2);
  BAD("dout.dtype: found 3 (bfloat16)", p.dout.dtype = TSR_DTYPE_BF16);
  BAD("dlse.dtype: found 3 (bfloat16)", p.dlse.dtype = TSR_DTYPE_BF16);
  BAD("dq.dtype: found 3 (bfloat16)", p.dq.dtype = TSR_DTYPE_BF16);
  BAD("dk.dtype: found 3 (bfloat16)", p.dk.dtype = TSR_DTYPE_BF16);
  BAD("dv.dtype: found 3 (bfloat16)", p.dv.dtype = TSR_DTYPE_BF16);
  GOOD(p.bias.dtype = TSR_DTYPE_F16; p.dbias.dtype = TSR_DTYPE_F16);
  GOOD(p.bias.dtype = TSR_DTYPE_F16; p.dbias.dtype = TSR_DTYPE_F32);
  BAD("dbias.dtype: found 2 (float16)", p.bias.dtype = TSR_DTYPE_F32;
      p.dbias.dtype = TSR_DTYPE_F16);
}

Test(validate_layout, eight_bit) {
  tsr_problem base = fake_problem();
  base.q.dtype = base.k.dtype = base.v.dtype = TSR_DTYPE_F8_E4M3;
  base.q_scale.dtype = base.k_scale.dtype = base.v_scale.dtype = TSR_DTYPE_F32;
  base.o.dtype = TSR_DTYPE_BF16;
  tsr_problem f = base;
  EXPECT_OK(tsri_validate_problem(&f, &resolved));
  f = base;
  f.q_scale.dtype = TSR_DTYPE_NONE;
  EXPECT_INVALID("q_scale.dtype: found 0 (none), accepted float32",
                 tsri_validate_problem(&f, &resolved));
  f = base;
  f.v_scale.dtype = TSR_DTYPE_NONE;
  EXPECT_INVALID("v_scale.dtype: found 0", tsri_validate_problem(&f, &resolved));
  f = base;
  f.o.dtype = TSR_DTYPE_F8_E4M3;
  EXPECT_INVALID("o.dtype: found 5 (float8_e4m3), accepted float32, float16 or bfloat16",
                 tsri_validate_problem(&f, &resolved));
  BAD("k_scale.dtype: found 1 (float32), accepted none", p.k_scale.dtype = TSR_DTYPE_F32);
  /* An int8 cache behind float queries; 3 scales of 2 rows for 5 keys. */
  f = fake_problem();
  f.k.dtype = f.v.dtype = TSR_DTYPE_I8;
  f.k_scale.dtype = f.v_scale.dtype = TSR_DTYPE_F32;
  f.scale_rows_k = 2;
  EXPECT_OK(tsri_validate_problem(&f, &resolved));
  STRIDES(k_scale, 6, 3, 1, 0);
  f.scale_rows_k = 0;
  EXPECT_OK(tsri_validate_problem(&f, &resolved));
  STRIDES(k_scale, 2, 1, 1, 0);
}

Test(validate_layout, dense_strides) {
  GOOD(p.v.order = p.dv.order = TSR_ORDER_BSHD; p.lse.order = TSR_ORDER_BSHD; p.dim_v = 6);
  STRIDES(q, 96, 24, 8, 1);
  STRIDES(k, 80, 40, 8, 1);
  STRIDES(v, 60, 6, 12, 1);
  STRIDES(o, 72, 18, 6, 1);
  STRIDES(lse, 12, 1, 4, 0);
  GOOD(p.bias.dtype = TSR_DTYPE_F32; p.mask.dtype = TSR_DTYPE_BIT);
  STRIDES(bias, 60, 15, 5, 1);
  STRIDES(mask, 96, 24, 8, 1);
  cr_expect_eq(resolved.bias.alignment, 4);
  cr_expect_eq(resolved.mask.alignment, 1);
  GOOD(p.block_mask.dtype = TSR_DTYPE_U8; p.block_q = 2; p.block_k = 2);
  STRIDES(block_mask, 24, 6, 3, 1);
  /* Packed: no batch axis. */
  GOOD(p.arrays = TSR_ARRAY_CU_Q | TSR_ARRAY_CU_K; p.total_q = 7; p.total_k = 9);
  STRIDES(q, 0, 56, 8, 1);
  STRIDES(k, 0, 72, 8, 1);
  STRIDES(lse, 0, 7, 1, 0);
  GOOD(p.arrays = TSR_ARRAY_CU_Q; p.total_q = 7; p.q.order = TSR_ORDER_BSHD;
       p.lse.order = TSR_ORDER_BSHD);
  STRIDES(q, 0, 8, 32, 1);
  STRIDES(lse, 0, 1, 4, 0);
  /* Pages stand for the batch. */
  GOOD(p.seq_k = 0; p.arrays = TSR_ARRAY_USED_K; p.page_size = 16; p.num_pages = 10;
       p.max_pages = 3; p.v.order = TSR_ORDER_BSHD; p.dk.dtype = p.dv.dtype = TSR_DTYPE_NONE);
  STRIDES(k, 256, 128, 8, 1);
  STRIDES(v, 256, 8, 16, 1);
  /* Head dimension 1: the last stride is 1, whatever was said. */
  GOOD(p.dim_qk = 1; strided(&p.q, 12, 3, 1, 77));
  STRIDES(q, 12, 3, 1, 1);
}

Test(validate_layout, orders_and_strides) {
  BAD("q.order: found 3", p.q.order = (tsr_order)3);
  BAD("q.stride[1]: found 24, accepted 0: order is dense", p.q.stride[1] = 24);
  BAD("k.stride[2]: found -8, accepted 0 or more (axis S)", strided(&p.k, 80, 40, -8, 1));
  BAD("q.stride[0]: found 4, accepted 0: packed", p.arrays = TSR_ARRAY_CU_Q; p.total_q = 7;
      strided(&p.q, 4, 56, 8, 1));
  BAD("mask.stride[2]: found 5 bits, accepted multiples of 8", p.mask.dtype = TSR_DTYPE_BIT;
      strided(&p.mask, 0, 0, 5, 1));
  BAD("mask.stride[3]: found 2 bits, accepted 0 or 1", p.mask.dtype = TSR_DTYPE_BIT;
      strided(&p.mask, 0, 0, 8, 2));
  GOOD(p.mask.dtype = TSR_DTYPE_BIT; strided(&p.mask, 0, 0, 8, 1));
  GOOD(strided(&p.k, 0, 0, 0, 0)); /* inputs may broadcast anything */
  BAD("bias.dtype: found none with order", strided(&p.bias, 1, 1, 1, 1));
  BAD("bias.dtype: found none with order", p.bias.alignment = 16);
  BAD("dlse.dtype: found none with order", p.dlse.order = TSR_ORDER_BSHD);
}

Test(validate_layout, extents) {
  const int64_t huge = INT64_C(1) << 60;
  BAD("q: found a [2, 4, 3, 8] tensor of more than 2^63-1 bytes",
      strided(&p.q, huge * 2, 24, 8, 1));
  BAD("q: found", strided(&p.q, INT64_MAX, INT64_MAX, INT64_MAX, INT64_MAX));
  GOOD(strided(&p.q, huge, 24, 8, 1));
  BAD("mask: found a [2, 4, 2147483647, 2147483647] tensor", p.mask.dtype = TSR_DTYPE_U8;
      p.seq_q = p.seq_k = 0x7fffffff);
  BAD("k: found", p.arrays = TSR_ARRAY_CU_K; p.total_k = INT64_C(1) << 61);
  /* Nothing is addressed in an empty tensor. */
  GOOD(p.batch = 0; strided(&p.q, INT64_MAX, INT64_MAX, INT64_MAX, INT64_MAX));
}

/* Axes of length 1 may have any stride, and kernels must be able to count with what is left of it. */
Test(validate_layout, idle_strides) {
  const int64_t most = INT64_C(1) << 39;
  GOOD(p.batch = 1; p.seq_q = 1; strided(&p.q, INT64_MAX, 8, INT64_C(1) << 62, 1));
  STRIDES(q, most, 8, most, 1);
  GOOD(p.batch = 1; strided(&p.q, most, 24, 8, 1));
  STRIDES(q, most, 24, 8, 1);
  GOOD(p.seq_k = 0; strided(&p.k, INT64_MAX, INT64_MAX, INT64_MAX, INT64_MAX));
  STRIDES(k, most, most, most, most);
  GOOD(p.batch = 1; p.heads_q = p.heads_kv = 1;
       strided(&p.o, INT64_MAX, INT64_MAX, 8, 1); strided(&p.k, INT64_MAX, 24, 8, 1));
  STRIDES(o, most, most, 8, 1);
  STRIDES(k, most, 24, 8, 1);
  /* None becomes a broadcast, which dbias has to share with bias. */
  GOOD(p.batch = 0; p.bias.dtype = p.dbias.dtype = TSR_DTYPE_F32; strided(&p.bias, most + 1, INT64_MAX, 5, 1);
       strided(&p.dbias, INT64_MAX, 15, 5, 1));
  STRIDES(bias, most, most, 5, 1);
  STRIDES(dbias, most, 15, 5, 1);
}

Test(validate_layout, outputs_are_unique) {
  BAD("o.stride[1]: found 0", strided(&p.o, 96, 0, 8, 1));
  BAD("o.stride[1]: found 23", strided(&p.o, 96, 23, 8, 1));
  BAD("lse.stride[2]: found 0", strided(&p.lse, 12, 3, 0, 0));
  BAD("dq.stride[0]: found 0", strided(&p.dq, 0, 24, 8, 1));
  BAD("dk.stride[3]: found 0", strided(&p.dk, 80, 40, 8, 0));
  GOOD(strided(&p.o, 24, 48, 8, 1));             /* [H, B, S, D] */
  GOOD(strided(&p.o, 1000, 200, 50, 3));         /* gaps */
  GOOD(p.batch = 1; strided(&p.o, 0, 24, 8, 1)); /* an axis of length 1 has no stride */
  GOOD(strided(&p.o, 1, 2, 8, 24));              /* D outermost */
  /* As inputs of a backward pass alone, they may broadcast. */
  GOOD(p.passes = TSR_PASS_BACKWARD; strided(&p.o, 0, 0, 0, 0); strided(&p.lse, 0, 0, 0, 0));
}

Test(validate_layout, dbias_broadcasts_as_bias) {
#define BIAS                                    \
  p.bias.dtype = p.dbias.dtype = TSR_DTYPE_F32; \
  strided(&p.bias, 0, 15, 5, 1)
  GOOD(BIAS; strided(&p.dbias, 0, 15, 5, 1));
  STRIDES(dbias, 0, 15, 5, 1);
  BAD("dbias.stride[0]: found 60 with 0 in bias", BIAS; strided(&p.dbias, 60, 15, 5, 1));
  BAD("dbias.stride[1]: found 0 with 15 in bias", BIAS; strided(&p.dbias, 0, 0, 5, 1));
  BAD("dbias.stride[2]: found 4", BIAS; strided(&p.dbias, 0, 15, 4, 1));
  BAD("dbias.stride[0]: found 60", BIAS; p.dbias.order = TSR_ORDER_BHSD);
  GOOD(BIAS; p.bias.stride[3] = 0; strided(&p.dbias, 0, 3, 1, 0));
  STRIDES(dbias, 0, 3, 1, 0);
  GOOD(BIAS; p.batch = 1; strided(&p.dbias, 60, 15, 5, 1)); /* one sequence: nothing to sum */
}

Test(validate_layout, alignment) {
  GOOD(p.q.alignment = 64);
  cr_expect_eq(resolved.q.alignment, 64);
  cr_expect_eq(resolved.k.alignment, 4);
  BAD("q.alignment: found 2, accepted 0 or a power of two, 4 .. 4096", p.q.alignment = 2);
  BAD("q.alignment: found 24", p.q.alignment = 24);
  BAD("q.alignment: found -16", p.q.alignment = -16);
  BAD("lse.alignment: found 8192", p.lse.alignment = 8192);
}
