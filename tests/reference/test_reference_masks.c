// SPDX-License-Identifier: Apache-2.0
//
// Which keys the oracle lets each query see, and where it finds them. With Q = 0 every allowed key
// has the same weight; with v_j = 2^j the sum of the allowed values spells their set in binary, so
// a whole mask is one small table of bit patterns (bit j: key j).
#include <criterion/criterion.h>
#include <math.h>

#include "rig.h"

/* Zero queries, v_j = 2^j by position in the used part of each sequence. */
static void spell(ref_rig *rig) {
  const int64_t nq = rig->outer_q * rig->p.heads_q * rig->rows_q * rig->p.dim_qk;
  int64_t e;
  for (e = 0; e < nq; e++) rig->q[e] = 0;
  for (e = 0; e < rig->outer_k * rig->p.heads_kv; e++)
    for (int64_t j = 0; j < rig->rows_k; j++) rig->v[e * rig->rows_k + j] = ldexp(1, (int)j);
}

/* Row `row` of the output tensor saw exactly these keys. */
static void expect_set(const ref_rig *rig, int64_t b, int64_t h, int64_t row, unsigned set) {
  const int count = __builtin_popcount(set);
  const double o = rig_get(&rig->p.o, rig->o, b, h, row, 0);
  const double lse = rig_get(&rig->p.lse, rig->lse, b, h, row, 0);
  const double expect = count ? log(count) : -INFINITY;
  cr_expect(fabs(o * count - set) < 1e-9 * (1 + set), "b %d h %d row %d: set %g, expected %u",
            (int)b, (int)h, (int)row, o * count, set);
  cr_expect(lse == expect || fabs(lse - expect) < 1e-12, "b %d h %d row %d: lse %g, expected %g",
            (int)b, (int)h, (int)row, lse, expect);
  cr_expect(count || o == 0);
}

static void expect_rows(ref_rig *rig, const unsigned *sets) {
  int64_t i;
  spell(rig);
  rig_forward(rig);
  for (i = 0; i < rig->p.seq_q; i++) expect_set(rig, 0, 0, i, sets[i]);
  rig_free(rig);
}

static ref_rig make(int64_t sq, int64_t sk) {
  ref_rig rig;
  rig_init(&rig, 1, 1, 1, sq, sk, 1, 1);
  return rig;
}

Test(masks, causal_top_left) {
  ref_rig rig = make(3, 5);
  rig.p.causal = TSR_CAUSAL_TOP_LEFT;
  rig_alloc(&rig);
  expect_rows(&rig, (unsigned[]){1, 3, 7});
}

Test(masks, causal_bottom_right) {
  ref_rig rig = make(3, 5);
  rig.p.causal = TSR_CAUSAL_BOTTOM_RIGHT;
  rig_alloc(&rig);
  expect_rows(&rig, (unsigned[]){7, 15, 31});
}

Test(masks, causal_bottom_right_with_more_queries_than_keys) {
  ref_rig rig = make(4, 2);
  rig.p.causal = TSR_CAUSAL_BOTTOM_RIGHT;
  rig_alloc(&rig);
  expect_rows(&rig, (unsigned[]){0, 0, 1, 3});
}

Test(masks, causal_explicit) {
  ref_rig rig = make(3, 5);
  rig.p.causal = TSR_CAUSAL_EXPLICIT;
  rig.p.diagonal = 1;
  rig_alloc(&rig);
  expect_rows(&rig, (unsigned[]){3, 7, 15});
  rig = make(3, 5);
  rig.p.causal = TSR_CAUSAL_EXPLICIT;
  rig.p.diagonal = -2;
  rig_alloc(&rig);
  expect_rows(&rig, (unsigned[]){0, 0, 1});
}

Test(masks, window_top_left) {
  ref_rig rig = make(5, 4);
  rig.p.window.kind = TSR_WINDOW_TOP_LEFT;
  rig.p.window.left = 1;
  rig.p.window.right = 0;
  rig_alloc(&rig);
  expect_rows(&rig, (unsigned[]){1, 3, 6, 12, 8});
}

Test(masks, window_bottom_right) {
  ref_rig rig = make(3, 5);
  rig.p.window.kind = TSR_WINDOW_BOTTOM_RIGHT;
  rig.p.window.left = 1;
  rig.p.window.right = 1;
  rig_alloc(&rig);
  expect_rows(&rig, (unsigned[]){14, 28, 24});
}

Test(masks, window_of_one_side) {
  ref_rig rig = make(3, 4);
  rig.p.window.kind = TSR_WINDOW_TOP_LEFT;
  rig.p.window.left = TSR_UNBOUNDED;
  rig.p.window.right = 1;
  rig_alloc(&rig);
  expect_rows(&rig, (unsigned[]){3, 7, 15});
  rig = make(3, 4);
  rig.p.window.kind = TSR_WINDOW_TOP_LEFT;
  rig.p.window.left = 0;
  rig.p.window.right = TSR_UNBOUNDED;
  rig_alloc(&rig);
  expect_rows(&rig, (unsigned[]){15, 14, 12});
}

Test(masks, window_and_causal) {
  ref_rig rig = make(3, 5);
  rig.p.causal = TSR_CAUSAL_BOTTOM_RIGHT;
  rig.p.window.kind = TSR_WINDOW_BOTTOM_RIGHT;
  rig.p.window.left = 1;
  rig.p.window.right = TSR_UNBOUNDED;
  rig_alloc(&rig);
  expect_rows(&rig, (unsigned[]){6, 12, 24});
}

Test(masks, prefix_over_causal) {
  ref_rig rig = make(3, 5);
  rig.p.causal = TSR_CAUSAL_TOP_LEFT;
  rig.p.prefix = 2;
  rig_alloc(&rig);
  expect_rows(&rig, (unsigned[]){3, 3, 7});
}

Test(masks, prefix_apart_from_the_window) {
  ref_rig rig = make(3, 6);
  rig.p.window.kind = TSR_WINDOW_EXPLICIT;
  rig.p.diagonal = 3;
  rig.p.prefix = 1;
  rig_alloc(&rig);
  expect_rows(&rig, (unsigned[]){1 | 8, 1 | 16, 1 | 32});
}

Test(masks, byte_mask_removes_from_causal) {
  static const uint8_t mask[] = {0, 1, 1, 2, 0, 255, 0, 0, 0};
  ref_rig rig = make(3, 3);
  rig.p.causal = TSR_CAUSAL_TOP_LEFT;
  rig.p.mask.dtype = TSR_DTYPE_U8;
  rig_alloc(&rig);
  rig.a.mask = mask;
  expect_rows(&rig, (unsigned[]){0, 1, 0});
}

/* Rows of ten bits padded to sixteen, broadcast over heads and batch. */
Test(masks, bit_mask_with_broadcast) {
  static const uint8_t mask[] = {0x85, 0x02, 0xff, 0xff};
  ref_rig rig;
  rig_init(&rig, 2, 2, 1, 2, 10, 1, 1);
  rig.p.mask.dtype = TSR_DTYPE_BIT;
  rig.p.mask.order = TSR_ORDER_STRIDED;
  rig.p.mask.stride[2] = 16;
  rig.p.mask.stride[3] = 1;
  rig_alloc(&rig);
  rig.a.mask = mask;
  spell(&rig);
  rig_forward(&rig);
  for (int n = 0; n < 4; n++) {
    expect_set(&rig, n / 2, n % 2, 0, 0x285);
    expect_set(&rig, n / 2, n % 2, 1, 0x3ff);
  }
  rig_free(&rig);
}

Test(masks, block_mask) {
  static const uint8_t blocks[] = {1, 0, 1, 0, 0, 1}; /* 2 blocks of queries, 3 of keys */
  ref_rig rig = make(3, 8);
  rig.p.block_mask.dtype = TSR_DTYPE_U8;
  rig.p.block_q = 2, rig.p.block_k = 3;
  rig.p.block_mask.stride[2] = 3, rig.p.block_mask.stride[3] = 1;
  rig_alloc(&rig);
  rig.a.block_mask = blocks;
  expect_rows(&rig, (unsigned[]){0xc7, 0xc7, 0xc0});
}

Test(masks, diagonal_and_prefix_per_sequence) {
  ref_rig rig;
  rig_init(&rig, 2, 1, 1, 2, 4, 1, 1);
  rig.p.causal = TSR_CAUSAL_EXPLICIT;
  rig.p.arrays = TSR_ARRAY_DIAGONAL | TSR_ARRAY_PREFIX;
  rig_alloc(&rig);
  rig.a.diagonal = rig_ints(&rig, (int32_t[]){-1, 2}, 2);
  rig.a.prefix = rig_ints(&rig, (int32_t[]){0, 9}, 2); /* cut to the sequence */
  spell(&rig);
  rig_forward(&rig);
  expect_set(&rig, 0, 0, 0, 0);
  expect_set(&rig, 0, 0, 1, 1);
  expect_set(&rig, 1, 0, 0, 15);
  expect_set(&rig, 1, 0, 1, 15);
  rig_free(&rig);
}

/* ----------------------------------------------------------------------- lengths and addresses */

/* Two sequences in slots of 4 queries and 5 keys; what is not used is NaN and becomes 0 or -inf. */
Test(lengths, used_and_left_padding) {
  ref_rig rig;
  int64_t i;
  rig_init(&rig, 2, 1, 1, 4, 5, 1, 1);
  rig.p.causal = TSR_CAUSAL_BOTTOM_RIGHT;
  rig.p.arrays = TSR_ARRAY_USED_Q | TSR_ARRAY_USED_K | TSR_ARRAY_LEFT_PAD_Q | TSR_ARRAY_LEFT_PAD_K;
  rig_alloc(&rig);
  rig.a.used_q = rig_ints(&rig, (int32_t[]){2, 0}, 2);
  rig.a.left_pad_q = rig_ints(&rig, (int32_t[]){1, 0}, 2);
  rig.a.used_k = rig_ints(&rig, (int32_t[]){3, 4}, 2);
  rig.a.left_pad_k = rig_ints(&rig, (int32_t[]){2, 1}, 2);
  spell(&rig);
  rig.q[0] = rig.q[3] = rig.k[0] = rig.k[1] = rig.v[0] = rig.v[1] = NAN;
  rig_forward(&rig);
  expect_set(&rig, 0, 0, 0, 0);
  expect_set(&rig, 0, 0, 1, 4 | 8); /* used keys are 2, 3, 4 of the slot; Sk - Sq = 1 */
  expect_set(&rig, 0, 0, 2, 4 | 8 | 16);
  expect_set(&rig, 0, 0, 3, 0);
  for (i = 0; i < 4; i++) expect_set(&rig, 1, 0, i, 0);
  rig_free(&rig);
}

/* Packed: lengths 2, 0, 1 of 5 rows and 3, 2, 0 of 6 keys. Rows past the last slot stay untouched.
 */
Test(lengths, packed) {
  ref_rig rig;
  rig_init(&rig, 3, 1, 1, 2, 3, 1, 1);
  rig.p.arrays = TSR_ARRAY_CU_Q | TSR_ARRAY_CU_K;
  rig.p.total_q = 5, rig.p.total_k = 6;
  rig.p.causal = TSR_CAUSAL_BOTTOM_RIGHT;
  rig_alloc(&rig);
  rig.a.cu_q = rig_ints(&rig, (int32_t[]){1, 3, 3, 4}, 4);
  rig.a.cu_k = rig_ints(&rig, (int32_t[]){0, 3, 5, 5}, 4);
  spell(&rig);
  rig.k[5] = rig.v[5] = NAN;
  rig_forward(&rig);
  cr_expect(isnan(rig.o[0]) && isnan(rig.lse[0]));
  expect_set(&rig, 0, 0, 1, 3);
  expect_set(&rig, 0, 0, 2, 7);
  expect_set(&rig, 0, 0, 3, 0);
  cr_expect(isnan(rig.o[4]) && isnan(rig.lse[4]));
  rig_free(&rig);
}

/* Three pages of two rows, one of them NaN and never named; sequence 0 has rows in pages 2, 0. */
Test(lengths, paged) {
  ref_rig rig;
  int64_t e;
  rig_init(&rig, 2, 2, 1, 1, 4, 1, 1);
  rig.p.page_size = 2, rig.p.num_pages = 4, rig.p.max_pages = 2;
  rig.p.arrays = TSR_ARRAY_USED_K;
  rig_alloc(&rig);
  rig.a.page_table = rig_ints(&rig, (int32_t[]){2, 0, 3, -7}, 4);
  rig.a.used_k = rig_ints(&rig, (int32_t[]){3, 2}, 2);
  spell(&rig);
  for (e = 0; e < 8; e++) rig.v[e] = NAN;
  rig.v[4] = 1, rig.v[5] = 2, rig.v[0] = 4, rig.v[6] = 8, rig.v[7] = 16;
  rig.k[2] = rig.k[3] = NAN;
  rig_forward(&rig);
  for (e = 0; e < 2; e++) {
    expect_set(&rig, 0, e, 0, 7);
    expect_set(&rig, 1, e, 0, 24);
  }
  rig_free(&rig);
}

/* The scale of a paged cache goes with the page, that of a packed tensor with the row. */
Test(lengths, paged_scales) {
  static const float scale[] = {1, 2, 4, 8}; /* [page][row] */
  ref_rig rig;
  rig_init(&rig, 1, 1, 1, 1, 4, 1, 1);
  rig.p.k.dtype = rig.p.v.dtype = TSR_DTYPE_I8;
  rig.p.page_size = 2, rig.p.num_pages = 2, rig.p.max_pages = 2;
  rig.p.arrays = TSR_ARRAY_USED_K;
  rig.p.k_scale.dtype = rig.p.v_scale.dtype = TSR_DTYPE_F32;
  rig.p.v_scale.stride[0] = 2, rig.p.v_scale.stride[2] = 1;
  rig.p.scale_rows_k = 1;
  rig_alloc(&rig);
  rig.a.page_table = rig_ints(&rig, (int32_t[]){1, 0}, 2);
  rig.a.used_k = rig_ints(&rig, (int32_t[]){4}, 1);
  rig.a.k_scale = rig.a.v_scale = scale;
  rig.q[0] = 0;
  for (int64_t e = 0; e < 4; e++) ((int8_t *)rig.v)[e] = (int8_t)(e + 1);
  rig_forward(&rig);
  cr_expect(fabs(rig.o[0] - (1 * 1 + 2 * 2 + 3 * 4 + 4 * 8) / 4.0) < 1e-12);
  rig_free(&rig);
}

/* Every tensor has its own strides: V is a transposed view, Q and O interleave heads, K skips. */
Test(lengths, strides) {
  ref_rig plain, odd;
  int64_t h, s, d;
  rig_init(&plain, 1, 2, 2, 3, 4, 2, 3);
  rig_alloc(&plain);
  rig_forward(&plain);
  rig_init(&odd, 1, 2, 2, 3, 4, 2, 3);
  odd.p.q = (tsr_layout){TSR_DTYPE_F64, TSR_ORDER_STRIDED, {0, 2, 4, 1}, 0};
  odd.p.k = (tsr_layout){TSR_DTYPE_F64, TSR_ORDER_STRIDED, {0, 100, 20, 7}, 0};
  odd.p.v = (tsr_layout){TSR_DTYPE_F64, TSR_ORDER_STRIDED, {0, 12, 1, 4}, 0};
  odd.p.o = (tsr_layout){TSR_DTYPE_F64, TSR_ORDER_STRIDED, {0, 1, 6, 2}, 0};
  odd.p.lse = (tsr_layout){TSR_DTYPE_F64, TSR_ORDER_STRIDED, {0, 1, 2, 0}, 0};
  rig_alloc(&odd);
  for (h = 0; h < 2; h++) {
    for (s = 0; s < 3; s++)
      for (d = 0; d < 2; d++) odd.q[h * 2 + s * 4 + d] = rig_get(&plain.p.q, plain.q, 0, h, s, d);
    for (s = 0; s < 4; s++) {
      for (d = 0; d < 2; d++)
        odd.k[h * 100 + s * 20 + d * 7] = rig_get(&plain.p.k, plain.k, 0, h, s, d);
      for (d = 0; d < 3; d++) odd.v[h * 12 + s + d * 4] = rig_get(&plain.p.v, plain.v, 0, h, s, d);
    }
  }
  rig_forward(&odd);
  for (h = 0; h < 2; h++)
    for (s = 0; s < 3; s++) {
      cr_expect_eq(odd.lse[h + s * 2], plain.lse[h * 3 + s]);
      for (d = 0; d < 3; d++)
        cr_expect_eq(odd.o[h + s * 6 + d * 2], rig_get(&plain.p.o, plain.o, 0, h, s, d));
    }
  rig_free(&plain);
  rig_free(&odd);
}
