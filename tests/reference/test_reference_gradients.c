// SPDX-License-Identifier: Apache-2.0
//
// Every gradient of the oracle against central differences of its own forward pass, in double, for
// each feature alone and several together. The function differentiated is L = sum dO . O + sum dLSE
// * LSE. With step e the error of the difference is about e^2 |L'''| / 6 + 2^-53 |L| / e.
#include <criterion/criterion.h>
#include <math.h>

#include "rig.h"

/* Exact in float32 for inputs that are multiples of 2^-20 below 1. */
#define STEP 0x1p-12
#define TOLERANCE 1e-6

static double loss(ref_rig *rig) {
  const tsr_problem *p = &rig->p;
  double sum = 0;
  int64_t outer, h, s, d;
  rig_run(rig, "fwd_any_rows__ref64", 1);
  for (outer = 0; outer < rig->outer_q; outer++)
    for (h = 0; h < p->heads_q; h++)
      for (s = 0; s < rig->rows_q; s++) {
        for (d = 0; d < p->dim_v; d++) {
          const double o = rig_get(&p->o, rig->o, outer, h, s, d);
          /* NaN: never written, the row belongs to no sequence. */
          if (!isnan(o)) sum += o * rig_get(&p->dout, rig->dout, outer, h, s, d);
        }
        if (p->dlse.dtype) {
          const double lse = rig_get(&p->lse, rig->lse, outer, h, s, 0);
          if (isfinite(lse)) sum += lse * rig_get(&p->dlse, rig->dlse, outer, h, s, 0);
        }
      }
  return sum;
}

/* dL / d x[e] by differences; float32 inputs take the step that they can hold. */
static double difference(ref_rig *rig, tsr_dtype dtype, void *x, int64_t e) {
  const double before = tsri_load_f64(dtype, x, e);
  double up, down;
  tsri_store_f64(dtype, x, e, before + STEP);
  up = loss(rig);
  tsri_store_f64(dtype, x, e, before - STEP);
  down = loss(rig);
  tsri_store_f64(dtype, x, e, before);
  return (up - down) / (2 * STEP);
}

static void check(ref_rig *rig, const char *name, tsr_dtype dtype, void *x, tsr_dtype grad_dtype,
                  const void *grad, int64_t n) {
  int64_t e;
  for (e = 0; e < n; e++) {
    const double got = tsri_load_f64(grad_dtype, grad, e), want = difference(rig, dtype, x, e);
    /* Rows that belong to no sequence are not written: NaN, and without effect on L. */
    if (isnan(got) && want == 0 && rig->p.arrays) continue;
    cr_expect(fabs(got - want) <= TOLERANCE * (1 + fabs(want)),
              "%s[%d] is %.10g, differences %.10g", name, (int)e, got, want);
  }
}

/* Runs backward and checks everything it gives. */
static void check_all(ref_rig *rig) {
  const tsr_problem *p = &rig->p;
  const int64_t nq = rig->outer_q * p->heads_q * rig->rows_q;
  const int64_t nk = rig->outer_k * p->heads_kv * rig->rows_k;
  rig_backward(rig);
  check(rig, "dq", TSR_DTYPE_F64, rig->q, TSR_DTYPE_F64, rig->dq, nq * p->dim_qk);
  check(rig, "dk", TSR_DTYPE_F64, rig->k, TSR_DTYPE_F64, rig->dk, nk * p->dim_qk);
  check(rig, "dv", TSR_DTYPE_F64, rig->v, TSR_DTYPE_F64, rig->dv, nk * p->dim_v);
  if (p->dbias.dtype) {
    const int64_t *st = p->dbias.stride;
    const int64_t n = (st[0] ? p->batch : 1) * (st[1] ? p->heads_q : 1) * (st[2] ? p->seq_q : 1) *
                      (st[3] ? p->seq_k : 1);
    check(rig, "dbias", TSR_DTYPE_F64, rig->bias, TSR_DTYPE_F64, rig->dbias, n);
  }
  if (p->dsink)
    check(rig, "dsink", TSR_DTYPE_F32, rig->sink, TSR_DTYPE_F32, rig->dsink, p->heads_q);
  rig_free(rig);
}

/* Two sequences, four query heads on two KV heads, odd sizes. */
static ref_rig usual(void) {
  ref_rig rig;
  rig_init(&rig, 2, 4, 2, 3, 5, 3, 2);
  rig.p.scale = 0.75f;
  return rig;
}

Test(gradients, plain) {
  ref_rig rig = usual();
  rig_want_gradients(&rig, 0);
  rig_alloc(&rig);
  check_all(&rig);
}

Test(gradients, more_rows_than_a_block) {
  ref_rig rig;
  rig_init(&rig, 1, 1, 1, 11, 9, 2, 3);
  rig_want_gradients(&rig, 1);
  rig_alloc(&rig);
  check_all(&rig);
}

Test(gradients, lse) {
  ref_rig rig = usual();
  rig_want_gradients(&rig, 1);
  rig_alloc(&rig);
  check_all(&rig);
}

Test(gradients, softcap) {
  ref_rig rig = usual();
  rig.p.softcap = 0.5f;
  rig_want_gradients(&rig, 1);
  rig_alloc(&rig);
  check_all(&rig);
}

Test(gradients, alibi) {
  ref_rig rig = usual();
  rig.p.alibi = TSR_ALIBI_PER_BATCH_HEAD;
  rig_want_gradients(&rig, 0);
  rig_alloc(&rig);
  check_all(&rig);
}

Test(gradients, causal_with_empty_rows) {
  ref_rig rig;
  rig_init(&rig, 1, 2, 1, 5, 3, 2, 2);
  rig.p.causal = TSR_CAUSAL_BOTTOM_RIGHT;
  rig_want_gradients(&rig, 1);
  rig_alloc(&rig);
  rig_backward(&rig);
  for (int e = 0; e < 4; e++) cr_expect_eq(rig.dq[e], 0);
  check_all(&rig);
}

Test(gradients, window_and_prefix) {
  ref_rig rig = usual();
  rig.p.window.kind = TSR_WINDOW_BOTTOM_RIGHT;
  rig.p.window.left = 1, rig.p.window.right = 0;
  rig.p.prefix = 1;
  rig_want_gradients(&rig, 0);
  rig_alloc(&rig);
  check_all(&rig);
}

Test(gradients, byte_mask) {
  ref_rig rig = usual();
  uint8_t mask[2 * 4 * 3 * 5];
  rig.p.mask.dtype = TSR_DTYPE_U8;
  rig_want_gradients(&rig, 1);
  rig_alloc(&rig);
  for (int e = 0; e < 120; e++) mask[e] = rig_random(&rig) > 0.2;
  rig.a.mask = mask;
  check_all(&rig);
}

Test(gradients, sink) {
  ref_rig rig = usual();
  rig.p.sink = 1;
  rig_want_gradients(&rig, 1);
  rig_alloc(&rig);
  check_all(&rig);
}

/* A row without keys still has LSE = sink, so what flows into its LSE reaches the sink. */
Test(gradients, sink_of_empty_rows) {
  ref_rig rig;
  rig_init(&rig, 1, 2, 1, 4, 2, 2, 2);
  rig.p.sink = 1;
  rig.p.causal = TSR_CAUSAL_BOTTOM_RIGHT;
  rig_want_gradients(&rig, 1);
  rig_alloc(&rig);
  check_all(&rig);
}

/* ln 2 is lost beside a score of 2^60; the halves that key and sink get are not. */
Test(gradients, sink_of_huge_scores) {
  ref_rig rig;
  rig_init(&rig, 1, 1, 1, 1, 1, 1, 1);
  rig.p.sink = 1;
  rig_want_gradients(&rig, 0);
  rig_alloc(&rig);
  rig.q[0] = rig.k[0] = 0x1p30;
  rig.sink[0] = 0x1p60f;
  rig.v[0] = rig.dout[0] = 1;
  rig_forward(&rig);
  rig_backward(&rig);
  cr_expect_eq(rig.o[0], 0.5);
  cr_expect_eq(rig.dsink[0], -0.25f);
  rig_free(&rig);
}

Test(gradients, dropout) {
  ref_rig rig = usual();
  rig.p.dropout = 0.375f;
  rig_want_gradients(&rig, 1);
  rig_alloc(&rig);
  rig.a.seed = 99, rig.a.offset = 1ull << 40;
  check_all(&rig);
}

static void bias(int axes, int causal) {
  ref_rig rig = usual();
  const int64_t full[4] = {60, 15, 5, 1};
  int64_t size = 1, n;
  rig.p.bias.dtype = TSR_DTYPE_F64;
  rig.p.bias.order = TSR_ORDER_STRIDED;
  for (n = 3; n >= 0; n--) { /* dense over the axes that are kept */
    const int64_t length[4] = {2, 4, 3, 5};
    rig.p.bias.stride[n] = (axes >> n & 1) ? size : 0;
    if (axes >> n & 1) size *= length[n];
  }
  if (axes == 15)
    for (n = 0; n < 4; n++) cr_assert_eq(rig.p.bias.stride[n], full[n]);
  if (causal) rig.p.causal = TSR_CAUSAL_TOP_LEFT;
  rig_want_gradients(&rig, 1);
  rig_alloc(&rig);
  check_all(&rig);
}

Test(gradients, bias_full) {
  bias(15, 1);
}
Test(gradients, bias_broadcast) {
  int axes;
  for (axes = 0; axes < 15; axes++) bias(axes, axes & 1);
}

Test(gradients, only_the_bias) {
  ref_rig rig = usual(), all = usual();
  int64_t e;
  rig.p.bias.dtype = all.p.bias.dtype = TSR_DTYPE_F64;
  rig_want_gradients(&all, 0);
  rig_alloc(&all);
  rig_backward(&all);
  rig_want_gradients(&rig, 0);
  rig.p.dq.dtype = rig.p.dk.dtype = rig.p.dv.dtype = TSR_DTYPE_NONE;
  rig_alloc(&rig);
  memcpy(rig.dout, all.dout, sizeof(double) * 2 * 4 * 3 * 2);
  rig_backward(&rig);
  for (e = 0; e < 120; e++) cr_expect_eq(rig.dbias[e], all.dbias[e]);
  rig_free(&rig);
  rig_free(&all);
}

Test(gradients, packed_with_an_empty_sequence) {
  ref_rig rig;
  rig_init(&rig, 3, 2, 1, 3, 3, 2, 2);
  rig.p.arrays = TSR_ARRAY_CU_Q | TSR_ARRAY_CU_K;
  rig.p.total_q = 5, rig.p.total_k = 7;
  rig.p.causal = TSR_CAUSAL_BOTTOM_RIGHT;
  rig_want_gradients(&rig, 1);
  rig_alloc(&rig);
  rig.a.cu_q = rig_ints(&rig, (int32_t[]){0, 3, 3, 4}, 4);
  rig.a.cu_k = rig_ints(&rig, (int32_t[]){0, 2, 5, 6}, 4);
  rig_backward(&rig);
  for (int e = 4; e < 10; e++) cr_expect_eq(rig.dk[e], 0, "keys that no query sees");
  cr_expect(isnan(rig.dk[12]) && isnan(rig.dq[8]), "rows of no slot are not touched");
  check_all(&rig);
}

/* Slots with padding on both sides: gradients there are written as zero. */
Test(gradients, used_and_left_padding) {
  ref_rig rig = usual();
  rig.p.arrays = TSR_ARRAY_USED_Q | TSR_ARRAY_USED_K | TSR_ARRAY_LEFT_PAD_Q | TSR_ARRAY_LEFT_PAD_K;
  rig.p.bias.dtype = TSR_DTYPE_F64;
  rig_want_gradients(&rig, 1);
  rig_alloc(&rig);
  rig.a.used_q = rig_ints(&rig, (int32_t[]){1, 3}, 2);
  rig.a.left_pad_q = rig_ints(&rig, (int32_t[]){1, 0}, 2);
  rig.a.used_k = rig_ints(&rig, (int32_t[]){3, 0}, 2);
  rig.a.left_pad_k = rig_ints(&rig, (int32_t[]){1, 2}, 2);
  rig_backward(&rig);
  for (int64_t h = 0; h < 4; h++)
    for (int64_t d = 0; d < 3; d++) { /* sequence 0 uses row 1 of 3 */
      cr_expect_eq(rig_get(&rig.p.dq, rig.dq, 0, h, 0, d), 0);
      cr_expect_eq(rig_get(&rig.p.dq, rig.dq, 0, h, 2, d), 0);
    }
  for (int64_t h = 0; h < 2; h++)
    for (int64_t j = 0; j < 5; j++) { /* sequence 0 uses keys 1 to 3, sequence 1 none */
      if (j < 1 || j > 3) cr_expect_eq(rig_get(&rig.p.dk, rig.dk, 0, h, j, 0), 0);
      if (j < 1 || j > 3) cr_expect_eq(rig_get(&rig.p.dv, rig.dv, 0, h, j, 0), 0);
      cr_expect_eq(rig_get(&rig.p.dk, rig.dk, 1, h, j, 0), 0);
      cr_expect_eq(rig_get(&rig.p.dv, rig.dv, 1, h, j, 0), 0);
    }
  check_all(&rig);
}

Test(gradients, everything_together) {
  ref_rig rig = usual();
  rig.p.softcap = 2;
  rig.p.bias.dtype = TSR_DTYPE_F64;
  rig.p.alibi = TSR_ALIBI_PER_HEAD;
  rig.p.sink = 1;
  rig.p.causal = TSR_CAUSAL_BOTTOM_RIGHT;
  rig.p.dropout = 0.25f;
  rig.p.arrays = TSR_ARRAY_USED_Q | TSR_ARRAY_USED_K;
  rig_want_gradients(&rig, 1);
  rig_alloc(&rig);
  rig.a.used_q = rig_ints(&rig, (int32_t[]){3, 2}, 2);
  rig.a.used_k = rig_ints(&rig, (int32_t[]){5, 4}, 2);
  check_all(&rig);
}

/* ------------------------------------------------------------------------------ other promises */

Test(promises, accumulate_adds_and_leaves_padding) {
  ref_rig rig = usual(), sum = usual();
  int64_t e;
  rig.p.bias.dtype = sum.p.bias.dtype = TSR_DTYPE_F64;
  rig.p.sink = sum.p.sink = 1;
  rig.p.arrays = sum.p.arrays = TSR_ARRAY_USED_Q;
  rig_want_gradients(&rig, 0);
  rig_want_gradients(&sum, 0);
  sum.p.accumulate = TSR_ACCUMULATE_DQ | TSR_ACCUMULATE_DK | TSR_ACCUMULATE_DV |
                     TSR_ACCUMULATE_DBIAS | TSR_ACCUMULATE_DSINK;
  rig_alloc(&rig);
  rig_alloc(&sum);
  rig.a.used_q = rig_ints(&rig, (int32_t[]){2, 3}, 2);
  sum.a.used_q = rig_ints(&sum, (int32_t[]){2, 3}, 2);
  for (e = 0; e < 72; e++) sum.dq[e] = 10;
  for (e = 0; e < 60; e++) sum.dk[e] = 20;
  for (e = 0; e < 40; e++) sum.dv[e] = 30;
  for (e = 0; e < 120; e++) sum.dbias[e] = 40;
  for (e = 0; e < 4; e++) sum.dsink[e] = 50;
  rig_backward(&rig);
  rig_backward(&sum);
  for (e = 0; e < 72; e++) cr_expect_eq(sum.dq[e], 10 + rig.dq[e]);
  for (e = 0; e < 60; e++) cr_expect_eq(sum.dk[e], 20 + rig.dk[e]);
  for (e = 0; e < 40; e++) cr_expect_eq(sum.dv[e], 30 + rig.dv[e]);
  for (e = 0; e < 120; e++) cr_expect_eq(sum.dbias[e], 40 + rig.dbias[e]);
  for (e = 0; e < 4; e++) cr_expect(fabsf(sum.dsink[e] - 50 - rig.dsink[e]) < 1e-5f);
  rig_free(&rig);
  rig_free(&sum);
}

/* The number of threads changes no bit. Large enough for the backend to use them. */
Test(promises, threads) {
  static const char *const kernels[2][2] = {{"fwd_any_rows__ref64", "bwd_any_rows__ref64"},
                                            {"fwd_f32_full__naive", "bwd_f32_full__naive"}};
  for (int n = 0; n < 2; n++) {
    ref_rig rig[2];
    int64_t e;
    for (int t = 0; t < 2; t++) {
      const tsr_dtype dtype = n ? TSR_DTYPE_F32 : TSR_DTYPE_F64;
      rig_init(&rig[t], 2, 4, 2, 70, 70, 8, 8);
      rig[t].p.q.dtype = rig[t].p.k.dtype = rig[t].p.v.dtype = rig[t].p.o.dtype = dtype;
      rig[t].p.bias.dtype = TSR_DTYPE_F32;
      rig[t].p.bias.order = TSR_ORDER_STRIDED;
      rig[t].p.bias.stride[2] = 70, rig[t].p.bias.stride[3] = 1;
      rig[t].p.sink = 1;
      rig_want_gradients(&rig[t], 1);
      rig_alloc(&rig[t]);
      rig_run(&rig[t], kernels[n][0], t ? 4 : 1);
      rig_run(&rig[t], kernels[n][1], t ? 4 : 1);
    }
    for (e = 0; e < 2 * 4 * 70 * 8; e++) {
      const tsr_dtype dtype = rig[0].p.q.dtype;
      cr_assert_eq(tsri_load_f64(dtype, rig[0].o, e), tsri_load_f64(dtype, rig[1].o, e));
      cr_assert_eq(tsri_load_f64(dtype, rig[0].dq, e), tsri_load_f64(dtype, rig[1].dq, e));
      if (e >= 2 * 2 * 70 * 8) continue;
      cr_assert_eq(tsri_load_f64(dtype, rig[0].dk, e), tsri_load_f64(dtype, rig[1].dk, e));
      cr_assert_eq(tsri_load_f64(dtype, rig[0].dv, e), tsri_load_f64(dtype, rig[1].dv, e));
    }
    for (e = 0; e < 70 * 70; e++) cr_assert_eq(rig[0].dbias[e], rig[1].dbias[e]);
    for (e = 0; e < 4; e++) cr_assert_eq(rig[0].dsink[e], rig[1].dsink[e]);
    rig_free(&rig[0]);
    rig_free(&rig[1]);
  }
}

Test(promises, no_batch_writes_zero_sums) {
  ref_rig rig;
  rig_init(&rig, 0, 2, 1, 3, 3, 2, 2);
  rig.p.sink = 1;
  rig_want_gradients(&rig, 0);
  rig_alloc(&rig);
  rig_backward(&rig);
  cr_expect(rig.dsink[0] == 0 && rig.dsink[1] == 0);
  rig_free(&rig);
}

Test(promises, no_queries_gives_zero_gradients_of_keys) {
  ref_rig rig;
  rig_init(&rig, 1, 2, 1, 0, 3, 2, 2);
  rig_want_gradients(&rig, 0);
  rig_alloc(&rig);
  rig_backward(&rig);
  for (int e = 0; e < 6; e++) cr_expect(rig.dk[e] == 0 && rig.dv[e] == 0);
  rig_free(&rig);
}
