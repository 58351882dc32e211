// SPDX-License-Identifier: Apache-2.0
//
// The oracle's forward pass against values worked out by hand, one step of the formulas at a time,
// and its rules: empty rows, padding, NaN and infinity, sequences of length zero.
#include <criterion/criterion.h>
#include <math.h>

#include "rig.h"

#define EXPECT_NEAR(x, y)                                                                          \
  do {                                                                                             \
    const double x_ = (x), y_ = (y);                                                               \
    cr_expect(x_ == y_ || fabs(x_ - y_) <= 1e-12 * (1 + fabs(y_)), "%s is %.17g, %s is %.17g", #x, \
              x_, #y, y_);                                                                         \
  } while (0)

/* One query (2), two keys (0.5 and -1), values 1 and 10; scores at scale 1 are 1 and -2. */
static void pair(ref_rig *rig) {
  rig->q[0] = 2;
  rig->k[0] = 0.5, rig->k[1] = -1;
  rig->v[0] = 1, rig->v[1] = 10;
}

static void expect_scores(const ref_rig *rig, double s0, double s1) {
  const double sum = exp(s0) + exp(s1);
  EXPECT_NEAR(rig->o[0], (exp(s0) + 10 * exp(s1)) / sum);
  EXPECT_NEAR(rig->lse[0], log(sum));
  EXPECT_NEAR(rig->max_logit[0], fmax(s0, s1));
}

Test(steps, scale) {
  ref_rig rig;
  rig_init(&rig, 1, 1, 1, 1, 2, 1, 1);
  rig.p.scale = 0.25f;
  rig_alloc(&rig);
  pair(&rig);
  rig_forward(&rig);
  expect_scores(&rig, 0.25, -0.5);
  rig_free(&rig);
}

Test(steps, negative_scale) {
  ref_rig rig;
  rig_init(&rig, 1, 1, 1, 1, 2, 1, 1);
  rig.p.scale = -1;
  rig_alloc(&rig);
  pair(&rig);
  rig_forward(&rig);
  expect_scores(&rig, -1, 2);
  rig_free(&rig);
}

Test(steps, softcap_then_bias) {
  ref_rig rig;
  rig_init(&rig, 1, 1, 1, 1, 2, 1, 1);
  rig.p.softcap = 1.5f;
  rig.p.bias.dtype = TSR_DTYPE_F64;
  rig_alloc(&rig);
  pair(&rig);
  rig.bias[0] = 0.125, rig.bias[1] = 4;
  rig_forward(&rig);
  expect_scores(&rig, 1.5 * tanh(1 / 1.5) + 0.125, 1.5 * tanh(-2 / 1.5) + 4);
  rig_free(&rig);
}

/* The distance is measured from the bottom-right diagonal: with one query the last key has 0. */
Test(steps, alibi) {
  ref_rig rig;
  rig_init(&rig, 1, 1, 1, 1, 2, 1, 1);
  rig.p.alibi = TSR_ALIBI_PER_HEAD;
  rig_alloc(&rig);
  pair(&rig);
  rig.slopes[0] = 0.5f;
  rig_forward(&rig);
  expect_scores(&rig, 1 - 0.5, -2);
  rig_free(&rig);
}

/* Two queries, three keys, all scores 0 but for the slope: distances 1 0 1 and 2 1 0. */
Test(steps, alibi_per_batch_and_head) {
  ref_rig rig;
  int64_t b, h;
  rig_init(&rig, 2, 2, 1, 2, 3, 1, 1);
  rig.p.alibi = TSR_ALIBI_PER_BATCH_HEAD;
  rig_alloc(&rig);
  for (b = 0; b < 8; b++) rig.q[b] = 0;
  for (b = 0; b < 4; b++) rig.slopes[b] = (float)(b + 1);
  rig_forward(&rig);
  for (b = 0; b < 2; b++)
    for (h = 0; h < 2; h++) {
      const double m = (double)(b * 2 + h + 1), *lse = rig.lse + (b * 2 + h) * 2;
      EXPECT_NEAR(lse[0], log(2 * exp(-m) + 1));
      EXPECT_NEAR(lse[1], log(exp(-2 * m) + exp(-m) + 1));
    }
  rig_free(&rig);
}

Test(steps, sink_joins_the_denominator_alone) {
  ref_rig rig;
  rig_init(&rig, 1, 1, 1, 1, 2, 1, 1);
  rig.p.sink = 1;
  rig_alloc(&rig);
  pair(&rig);
  rig.sink[0] = 3;
  rig_forward(&rig);
  EXPECT_NEAR(rig.lse[0], log(exp(1) + exp(-2) + exp(3)));
  EXPECT_NEAR(rig.o[0], (exp(1) + 10 * exp(-2)) / (exp(1) + exp(-2) + exp(3)));
  EXPECT_NEAR(rig.max_logit[0], 1);
  rig_free(&rig);
}

/* Scores of +-1000 neither overflow nor vanish. */
Test(steps, large_scores) {
  ref_rig rig;
  rig_init(&rig, 1, 1, 1, 1, 2, 1, 1);
  rig_alloc(&rig);
  rig.q[0] = 1;
  rig.k[0] = 1000, rig.k[1] = 1001;
  rig.v[0] = 1, rig.v[1] = 10;
  rig_forward(&rig);
  EXPECT_NEAR(rig.lse[0], 1001 + log(1 + exp(-1)));
  EXPECT_NEAR(rig.o[0], (exp(-1) + 10) / (exp(-1) + 1));
  rig.k[0] = -1000, rig.k[1] = -1001;
  rig_forward(&rig);
  EXPECT_NEAR(rig.lse[0], -1000 + log(1 + exp(-1)));
  rig_free(&rig);
}

Test(steps, dropout_after_the_lse) {
  ref_rig rig;
  tsr_dropout_problem drop = {
      sizeof drop, 1, 1,  1, 64,
      0.25f,       0, 77, 5, {TSR_DTYPE_U8, TSR_ORDER_STRIDED, {64, 64, 64, 1}, 0}};
  uint8_t keep[64];
  tsr_reason reason;
  double expect = 0;
  int64_t j;
  rig_init(&rig, 1, 1, 1, 1, 64, 1, 1);
  rig.p.dropout = 0.25f;
  rig_alloc(&rig);
  rig.a.seed = 77, rig.a.offset = 5;
  rig.q[0] = 0;
  cr_assert_eq(rig_backend()->dropout_mask(NULL, 0, &drop, keep, NULL, &reason),
               TSR_STATUS_SUCCESS);
  for (j = 0; j < 64; j++) expect += keep[j] * rig.v[j] / 0.75 / 64;
  rig_forward(&rig);
  EXPECT_NEAR(rig.o[0], expect);
  EXPECT_NEAR(rig.lse[0], log(64));
  rig.p.dropout = 1;
  rig_resolve(&rig);
  rig_forward(&rig);
  EXPECT_NEAR(rig.o[0], 0);
  EXPECT_NEAR(rig.lse[0], log(64));
  /* The state in memory is the same as the state by value. */
  {
    const uint64_t state[2] = {77, 5};
    rig.p.dropout = 0.25f;
    rig_resolve(&rig);
    rig.a.seed = rig.a.offset = 0;
    rig.a.rng_state = state;
    rig_forward(&rig);
    EXPECT_NEAR(rig.o[0], expect);
  }
  rig_free(&rig);
}

/* Query head h reads KV head h / group: values tell them apart. */
Test(steps, grouped_heads) {
  ref_rig rig;
  int64_t b, h;
  rig_init(&rig, 2, 6, 2, 1, 1, 1, 1);
  rig_alloc(&rig);
  for (b = 0; b < 2; b++)
    for (h = 0; h < 2; h++) rig.v[b * 2 + h] = (double)(b * 10 + h + 1);
  rig_forward(&rig);
  for (b = 0; b < 2; b++)
    for (h = 0; h < 6; h++) EXPECT_NEAR(rig.o[b * 6 + h], (double)(b * 10 + h / 3 + 1));
  rig_free(&rig);
}

/* ----------------------------------------------------------------------------------- empty rows */

Test(rules, no_keys) {
  ref_rig rig;
  rig_init(&rig, 1, 2, 1, 2, 0, 3, 2);
  rig_alloc(&rig);
  rig_forward(&rig);
  for (int e = 0; e < 8; e++) EXPECT_NEAR(rig.o[e], 0);
  for (int e = 0; e < 4; e++) {
    EXPECT_NEAR(rig.lse[e], -INFINITY);
    EXPECT_NEAR(rig.max_logit[e], -INFINITY);
  }
  rig_free(&rig);
}

Test(rules, no_keys_but_a_sink) {
  ref_rig rig;
  rig_init(&rig, 1, 2, 1, 1, 0, 3, 1);
  rig.p.sink = 1;
  rig_alloc(&rig);
  rig.sink[0] = 2.5f, rig.sink[1] = -INFINITY;
  rig_forward(&rig);
  EXPECT_NEAR(rig.o[0], 0);
  EXPECT_NEAR(rig.lse[0], 2.5);
  EXPECT_NEAR(rig.max_logit[0], -INFINITY);
  EXPECT_NEAR(rig.o[1], 0);
  EXPECT_NEAR(rig.lse[1], -INFINITY);
  rig_free(&rig);
}

/* Scores of -inf through the bias: some, then all of a row; V of +inf does not turn 0 into NaN in
 * the row that is empty. */
Test(rules, minus_infinity_scores) {
  ref_rig rig;
  rig_init(&rig, 1, 1, 1, 2, 2, 1, 1);
  rig.p.bias.dtype = TSR_DTYPE_F64;
  rig_alloc(&rig);
  rig.q[0] = rig.q[1] = 0;
  rig.v[0] = 3, rig.v[1] = 5;
  rig.bias[0] = -INFINITY, rig.bias[1] = 0;
  rig.bias[2] = -INFINITY, rig.bias[3] = -INFINITY;
  rig_forward(&rig);
  EXPECT_NEAR(rig.o[0], 5);
  EXPECT_NEAR(rig.lse[0], 0);
  EXPECT_NEAR(rig.o[1], 0);
  EXPECT_NEAR(rig.lse[1], -INFINITY);
  rig.v[0] = INFINITY;
  rig_forward(&rig);
  cr_expect(isnan(rig.o[0]), "0 * inf at an allowed key is NaN");
  EXPECT_NEAR(rig.o[1], 0);
  rig_free(&rig);
}

/* A finite minimum added to a whole row is a shift, not a mask. */
Test(rules, finite_minimum_is_no_mask) {
  ref_rig rig;
  rig_init(&rig, 1, 1, 1, 1, 3, 1, 1);
  rig.p.bias.dtype = TSR_DTYPE_F32;
  rig_alloc(&rig);
  rig.q[0] = 0.125;
  for (int j = 0; j < 3; j++) ((float *)rig.bias)[j] = -3.4028234663852886e38f, rig.v[j] = j;
  rig_forward(&rig);
  EXPECT_NEAR(rig.o[0], 1);
  rig_free(&rig);
}

Test(rules, nan_and_infinity_propagate_from_allowed_elements_only) {
  ref_rig rig;
  rig_init(&rig, 1, 1, 1, 3, 3, 2, 1);
  rig.p.causal = TSR_CAUSAL_TOP_LEFT;
  rig_alloc(&rig);
  rig.v[2] = NAN;
  rig_forward(&rig);
  cr_expect(isfinite(rig.o[0]) && isfinite(rig.o[1]) && isnan(rig.o[2]));
  cr_expect(isfinite(rig.lse[2]));
  rig.v[2] = 1;
  rig.k[2 * 1] = NAN;
  rig_forward(&rig);
  cr_expect(isfinite(rig.o[0]) && isnan(rig.o[1]) && isnan(rig.o[2]) && isnan(rig.lse[1]));
  rig.k[2 * 1] = INFINITY; /* a score of +-inf: exp(inf - inf) where positive, weight 0 otherwise */
  rig.q[2 * 1] = 1, rig.q[2 * 2] = -1;
  rig_forward(&rig);
  cr_expect(isnan(rig.o[1]) && isfinite(rig.o[2]));
  rig.k[2 * 1] = 0;
  rig.q[0] = NAN;
  rig_forward(&rig);
  cr_expect(isnan(rig.o[0]) && isnan(rig.lse[0]) && isnan(rig.max_logit[0]) && isfinite(rig.o[1]));
  rig_free(&rig);
}

Test(rules, nothing_to_do) {
  ref_rig rig;
  rig_init(&rig, 0, 2, 1, 3, 3, 2, 2);
  rig_alloc(&rig);
  rig_forward(&rig);
  rig_free(&rig);
  rig_init(&rig, 2, 2, 1, 0, 3, 2, 2);
  rig_alloc(&rig);
  rig_forward(&rig);
  rig_free(&rig);
  rig_init(&rig, 2, 0, 0, 3, 3, 2, 2);
  rig_alloc(&rig);
  rig_forward(&rig);
  rig_free(&rig);
}

/* Only the LSE's absence may change nothing else. */
Test(rules, optional_outputs) {
  ref_rig rig;
  double o;
  rig_init(&rig, 1, 1, 1, 1, 3, 2, 1);
  rig_alloc(&rig);
  rig_forward(&rig);
  o = rig.o[0];
  rig.p.lse.dtype = rig.p.max_logit.dtype = TSR_DTYPE_NONE;
  rig_resolve(&rig);
  rig.a.lse = rig.a.max_logit = NULL;
  rig.o[0] = NAN;
  rig_forward(&rig);
  EXPECT_NEAR(rig.o[0], o);
  rig_free(&rig);
}

/* ---------------------------------------------------------------------------- 8-bit and 16-bit */

/* K is 8-bit with one scale per two rows, V with one per head; values are exact in every type. */
static void scaled(tsr_dtype dtype) {
  ref_rig rig;
  float k_scale[4] = {0.5f, 2, 1, 4}, v_scale[2] = {3, 0.25f};
  int64_t h, j;
  rig_init(&rig, 1, 2, 2, 1, 4, 1, 1);
  rig.p.k.dtype = rig.p.v.dtype = dtype;
  rig.p.k_scale.dtype = rig.p.v_scale.dtype = TSR_DTYPE_F32;
  rig.p.k_scale.stride[1] = 2, rig.p.k_scale.stride[2] = 1;
  rig.p.v_scale.stride[1] = 1;
  rig.p.scale_rows_k = 2;
  rig_alloc(&rig);
  rig.a.k_scale = k_scale, rig.a.v_scale = v_scale;
  for (h = 0; h < 2; h++) {
    rig.q[h] = 0.5;
    for (j = 0; j < 4; j++) {
      tsri_store_f64(dtype, rig.k, h * 4 + j, (double)(j - 1));
      tsri_store_f64(dtype, rig.v, h * 4 + j, (double)(2 * j - 3));
    }
  }
  rig_forward(&rig);
  for (h = 0; h < 2; h++) {
    double sum = 0, o = 0;
    for (j = 0; j < 4; j++) {
      const double e = exp(0.5 * (double)(j - 1) * k_scale[h * 2 + j / 2]);
      sum += e;
      o += e * (double)(2 * j - 3) * v_scale[h];
    }
    EXPECT_NEAR(rig.lse[h], log(sum));
    EXPECT_NEAR(rig.o[h], o / sum);
  }
  rig_free(&rig);
}

Test(dtypes, scales_of_int8) {
  scaled(TSR_DTYPE_I8);
}
Test(dtypes, scales_of_e4m3) {
  scaled(TSR_DTYPE_F8_E4M3);
}
Test(dtypes, scales_of_e5m2) {
  scaled(TSR_DTYPE_F8_E5M2);
}

/* Output is rounded once from double: the result 1 + 2^-11 + a little must go up in float16. */
Test(dtypes, single_rounding_of_the_output) {
  ref_rig rig;
  rig_init(&rig, 1, 1, 1, 1, 2, 1, 1);
  rig.p.o.dtype = TSR_DTYPE_F16;
  rig_alloc(&rig);
  rig.q[0] = 0;
  rig.v[0] = 1, rig.v[1] = 1 + 0x1p-10 + 0x1p-39;
  rig_forward(&rig);
  cr_expect_eq(((uint16_t *)rig.o)[0], 0x3c01);
  rig_free(&rig);
}
