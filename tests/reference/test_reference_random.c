// SPDX-License-Identifier: Apache-2.0
//
// Random problems: the oracle against the brute-force formulas (brute.h), and the float32 and
// 16-bit baselines against the oracle. Every problem is a function of its seed, which a failure
// prints.
#include <criterion/criterion.h>
#include <math.h>

#include "brute.h"
#include "common/dropout.h"

enum { SEEDS = 400 };

typedef struct random_case {
  ref_rig rig;
  uint8_t *keep;
} random_case;

static int64_t pick(ref_rig *rig, int64_t low, int64_t high) {
  const int64_t x = low + (int64_t)((rig_random(rig) * 0.5 + 0.5) * (double)(high - low + 1));
  return x > high ? high : x;
}

static int chance(ref_rig *rig, double p) {
  return rig_random(rig) * 0.5 + 0.5 < p;
}

static void random_mask_rule(ref_rig *rig) {
  tsr_problem *p = &rig->p;
  const int kind = (int)pick(rig, 1, 3);
  if (chance(rig, 0.4)) p->causal = (tsr_causal)kind;
  if (chance(rig, 0.4)) {
    p->window.kind = (tsr_window_kind)kind;
    p->window.left = chance(rig, 0.3) ? TSR_UNBOUNDED : pick(rig, 0, 5);
    p->window.right = chance(rig, 0.3) ? TSR_UNBOUNDED : pick(rig, 0, 3);
  }
  if (p->causal && p->window.kind && p->window.right < 0) p->window.right = 0;
  if (kind == 3 && (p->causal || p->window.kind)) p->diagonal = pick(rig, -4, 6);
  if (chance(rig, 0.2)) p->prefix = pick(rig, 0, p->seq_k);
}

/* Arrays of lengths: what each sequence uses of its slot. */
static void random_lengths(ref_rig *rig, int32_t *used, int32_t *pad, int64_t slot) {
  for (int64_t b = 0; b < rig->p.batch; b++) {
    pad[b] = (int32_t)pick(rig, 0, slot);
    used[b] = (int32_t)pick(rig, 0, slot - pad[b]);
  }
}

static void random_arrays(ref_rig *rig) {
  tsr_problem *p = &rig->p;
  int32_t used[4], pad[4], cu[5] = {0};
  int64_t b;
  if (p->arrays & TSR_ARRAY_CU_Q) {
    for (b = 0; b < p->batch; b++) cu[b + 1] = cu[b] + (int32_t)pick(rig, 0, p->seq_q);
    rig->a.cu_q = rig_ints(rig, cu, p->batch + 1);
    for (b = 0; b < p->batch; b++) cu[b + 1] = cu[b] + (int32_t)pick(rig, 0, p->seq_k);
    rig->a.cu_k = rig_ints(rig, cu, p->batch + 1);
  }
  if (p->arrays & TSR_ARRAY_USED_Q) {
    random_lengths(rig, used, pad, p->seq_q);
    rig->a.used_q = rig_ints(rig, used, p->batch);
    rig->a.left_pad_q = rig_ints(rig, pad, p->batch);
  }
  if (p->arrays & TSR_ARRAY_USED_K) {
    random_lengths(rig, used, pad, p->seq_k);
    rig->a.used_k = rig_ints(rig, used, p->batch);
    if (p->arrays & TSR_ARRAY_LEFT_PAD_K) rig->a.left_pad_k = rig_ints(rig, pad, p->batch);
  }
  if (p->page_size) {
    int32_t table[64];
    for (b = 0; b < p->batch * p->max_pages; b++)
      table[b] = (int32_t)pick(rig, 0, p->num_pages - 1);
    rig->a.page_table = rig_ints(rig, table, p->batch * p->max_pages);
  }
}

static void random_tensors(ref_rig *rig) {
  tsr_problem *p = &rig->p;
  const int64_t n = p->batch * p->heads_q * p->seq_q * p->seq_k;
  if (p->mask.dtype) {
    uint8_t *mask = (uint8_t *)rig_memory(rig, n);
    for (int64_t e = 0; e < n; e++) mask[e] = (uint8_t)(chance(rig, 0.7) ? pick(rig, 1, 255) : 0);
    rig->a.mask = mask;
  }
  if (p->block_mask.dtype) {
    const int64_t nq = (p->seq_q + p->block_q - 1) / p->block_q;
    const int64_t nk = (p->seq_k + p->block_k - 1) / p->block_k, blocks = p->heads_q * nq * nk;
    uint8_t *mask = (uint8_t *)rig_memory(rig, blocks);
    for (int64_t e = 0; e < blocks; e++) mask[e] = (uint8_t)chance(rig, 0.7);
    p->block_mask.stride[1] = nq * nk, p->block_mask.stride[2] = nk, p->block_mask.stride[3] = 1;
    rig->a.block_mask = mask;
    rig_resolve(rig);
  }
}

static void random_features(ref_rig *rig) {
  tsr_problem *p = &rig->p;
  p->scale = (float)(0.5 + 0.5 * rig_random(rig));
  random_mask_rule(rig);
  if (chance(rig, 0.3)) p->softcap = (float)(1 + 0.5 * rig_random(rig));
  if (chance(rig, 0.3)) p->bias.dtype = TSR_DTYPE_F32;
  if (chance(rig, 0.3)) p->alibi = (tsr_alibi)pick(rig, 1, 2);
  p->sink = (uint32_t)chance(rig, 0.3);
  if (chance(rig, 0.3)) p->mask.dtype = TSR_DTYPE_U8;
  if (chance(rig, 0.2)) {
    p->block_mask.dtype = TSR_DTYPE_U8;
    p->block_q = pick(rig, 1, 4);
    p->block_k = pick(rig, 1, 4);
  }
  if (chance(rig, 0.3)) p->dropout = (float)(0.5 + 0.4 * rig_random(rig));
}

static void random_layout(ref_rig *rig) {
  tsr_problem *p = &rig->p;
  switch (pick(rig, 0, 3)) {
    case 0:
      p->arrays |= TSR_ARRAY_CU_Q | TSR_ARRAY_CU_K;
      p->total_q = p->batch * p->seq_q + 1;
      p->total_k = p->batch * p->seq_k + 1;
      break;
    case 1:
      p->arrays |=
          TSR_ARRAY_USED_Q | TSR_ARRAY_LEFT_PAD_Q | TSR_ARRAY_USED_K | TSR_ARRAY_LEFT_PAD_K;
      break;
    case 2:
      p->arrays |= TSR_ARRAY_USED_K;
      p->page_size = pick(rig, 1, 4);
      p->max_pages = (p->seq_k + p->page_size - 1) / p->page_size;
      p->num_pages = p->max_pages + 2;
      p->seq_k = p->max_pages * p->page_size;
      break;
    default:
      break;
  }
}

static random_case make(uint64_t seed, tsr_dtype dtype) {
  random_case c;
  ref_rig *rig = &c.rig, dice;
  rig_init(&dice, 1, 1, 1, 1, 1, 1, 1);
  dice.seed = seed * 7919 + 13;
  for (int n = 0; n < 4; n++) (void)rig_random(&dice);
  {
    const int64_t kv = pick(&dice, 1, 2), group = pick(&dice, 1, 3);
    rig_init(rig, pick(&dice, 1, 3), kv * group, kv, pick(&dice, 1, 19), pick(&dice, 0, 23),
             pick(&dice, 1, 9), pick(&dice, 1, 9));
  }
  rig->seed = dice.seed;
  rig->p.q.dtype = rig->p.k.dtype = rig->p.v.dtype = rig->p.o.dtype = dtype;
  random_layout(rig);
  random_features(rig);
  rig_alloc(rig);
  random_arrays(rig);
  random_tensors(rig);
  rig->a.seed = seed, rig->a.offset = seed << 33;
  c.keep = NULL;
  if (rig->p.dropout > 0) {
    const tsr_problem *p = &rig->p;
    tsr_dropout_problem drop = {0};
    tsr_reason reason;
    drop.batch = p->batch, drop.heads = p->heads_q, drop.seq_q = p->seq_q, drop.seq_k = p->seq_k;
    drop.dropout = p->dropout, drop.seed = seed, drop.offset = seed << 33;
    drop.mask.dtype = TSR_DTYPE_U8;
    drop.mask.stride[3] = 1, drop.mask.stride[2] = p->seq_k;
    drop.mask.stride[1] = p->seq_q * p->seq_k,
    drop.mask.stride[0] = p->heads_q * p->seq_q * p->seq_k;
    c.keep = (uint8_t *)rig_memory(rig, p->batch * drop.mask.stride[0]);
    rig_backend()->dropout_mask(NULL, 0, &drop, c.keep, NULL, &reason);
  }
  return c;
}

/* Equal within e, and the same infinities. */
static int same(double x, double y, double e) {
  return x == y || fabs(x - y) <= e * (1 + fabs(y));
}

static void compare_row(const random_case *c, uint64_t seed, int64_t b, int64_t h, int64_t i) {
  const tsr_problem *p = &c->rig.p;
  const brute_sequence seq = brute_sequence_of(&c->rig, b);
  double o[16], lse, max;
  brute_row(&c->rig, b, h, i, c->keep, o, &lse, &max);
  cr_expect(same(rig_get(&p->lse, c->rig.lse, b, h, seq.q0 + i, 0), lse, 1e-11) &&
                same(rig_get(&p->max_logit, c->rig.max_logit, b, h, seq.q0 + i, 0), max, 1e-11),
            "seed %d b %d h %d i %d: lse %g, expected %g", (int)seed, (int)b, (int)h, (int)i,
            rig_get(&p->lse, c->rig.lse, b, h, seq.q0 + i, 0), lse);
  for (int64_t d = 0; d < p->dim_v; d++) {
    const double got = rig_get(&p->o, c->rig.o, b, h, seq.q0 + i, d);
    cr_expect(same(got, o[d], 1e-11), "seed %d b %d h %d i %d d %d: %.15g, expected %.15g",
              (int)seed, (int)b, (int)h, (int)i, (int)d, got, o[d]);
  }
}

Test(random_problems, oracle_against_brute_force) {
  for (uint64_t seed = 0; seed < SEEDS; seed++) {
    random_case c = make(seed, TSR_DTYPE_F64);
    rig_forward(&c.rig);
    for (int64_t b = 0; b < c.rig.p.batch; b++)
      for (int64_t h = 0; h < c.rig.p.heads_q; h++)
        for (int64_t i = 0; i < brute_sequence_of(&c.rig, b).sq; i++)
          compare_row(&c, seed, b, h, i);
    rig_free(&c.rig);
  }
}

/* ----------------------------------------------------------------------------- the baselines */

static double values(const tsr_layout *layout, const void *data, int64_t outer, int64_t heads,
                     int64_t rows, int64_t dim, double *out) {
  double most = 0;
  for (int64_t e = 0; e < outer * heads * rows * dim; e++) {
    const int64_t s = e / dim % rows, h = e / dim / rows % heads, b = e / dim / rows / heads;
    out[e] = rig_get(layout, data, b, h, s, e % dim);
    if (isfinite(out[e])) most = fmax(most, fabs(out[e]));
  }
  return most;
}

/* Both runs left the same elements untouched (NaN) and infinite, and differ by at most `bound`. */
static void compare(uint64_t seed, const char *what, const double *x, const double *y, int64_t n,
                    double bound) {
  for (int64_t e = 0; e < n; e++)
    if (isnan(x[e]) != isnan(y[e]) || isinf(x[e]) != isinf(y[e]) ||
        (isfinite(x[e]) && fabs(x[e] - y[e]) > bound)) {
      cr_expect_fail("seed %d: %s[%d] is %g, expected %g within %g", (int)seed, what, (int)e, x[e],
                     y[e], bound);
      return;
    }
}

enum { MOST = 1 << 17 };

typedef struct outputs {
  double o[MOST], lse[MOST], max[MOST], dq[MOST], dk[MOST], dv[MOST], dbias[MOST];
  double most[7];
} outputs;

static void gather_forward(const ref_rig *rig, outputs *out) {
  const tsr_problem *p = &rig->p;
  const int64_t n = rig->outer_q, rows = rig->rows_q;
  out->most[0] = values(&p->o, rig->o, n, p->heads_q, rows, p->dim_v, out->o);
  out->most[1] = values(&p->lse, rig->lse, n, p->heads_q, rows, 1, out->lse);
  out->most[2] = values(&p->max_logit, rig->max_logit, n, p->heads_q, rows, 1, out->max);
}

static void compare_forward(const ref_rig *rig, uint64_t seed, double u, const outputs *x,
                            const outputs *y) {
  const tsr_problem *p = &rig->p;
  const int64_t rows = rig->outer_q * p->heads_q * rig->rows_q;
  compare(seed, "o", x->o, y->o, rows * p->dim_v, 16 * u * (1 + y->most[0]));
  compare(seed, "lse", x->lse, y->lse, rows, 16 * u * (1 + y->most[1]));
  compare(seed, "max_logit", x->max, y->max, rows, 16 * u * (1 + y->most[2]));
}

static void gather_backward(const ref_rig *rig, outputs *out) {
  const tsr_problem *p = &rig->p;
  const int64_t nq = rig->outer_q, nk = rig->outer_k, sq = rig->rows_q, sk = rig->rows_k;
  out->most[3] = values(&p->dq, rig->dq, nq, p->heads_q, sq, p->dim_qk, out->dq);
  out->most[4] = values(&p->dk, rig->dk, nk, p->heads_kv, sk, p->dim_qk, out->dk);
  out->most[5] = values(&p->dv, rig->dv, nk, p->heads_kv, sk, p->dim_v, out->dv);
  if (p->dbias.dtype)
    out->most[6] =
        values(&p->dbias, rig->dbias, p->batch, p->heads_q, p->seq_q, p->seq_k, out->dbias);
}

static void compare_backward(const ref_rig *rig, uint64_t seed, double u, const outputs *x,
                             const outputs *y) {
  const tsr_problem *p = &rig->p;
  const int64_t nq = rig->outer_q * p->heads_q * rig->rows_q;
  const int64_t nk = rig->outer_k * p->heads_kv * rig->rows_k;
  compare(seed, "dq", x->dq, y->dq, nq * p->dim_qk, 64 * u * (1 + y->most[3]));
  compare(seed, "dk", x->dk, y->dk, nk * p->dim_qk, 64 * u * (1 + y->most[4]));
  compare(seed, "dv", x->dv, y->dv, nk * p->dim_v, 64 * u * (1 + y->most[5]));
  if (p->dbias.dtype)
    compare(seed, "dbias", x->dbias, y->dbias, p->batch * p->heads_q * p->seq_q * p->seq_k,
            64 * u * (1 + y->most[6]));
}

/* The gradients of a problem whose forward tensors exist: the same inputs, new outputs. */
static ref_rig gradients_of(const ref_rig *rig) {
  ref_rig grad = *rig;
  const tsr_args kept = rig->a;
  grad.block_count = 0;
  rig_want_gradients(&grad, 1);
  rig_alloc(&grad);
  grad.a.q = kept.q, grad.a.k = kept.k, grad.a.v = kept.v, grad.a.bias = kept.bias;
  grad.a.sink = kept.sink, grad.a.alibi = kept.alibi;
  return grad;
}

static void check_baseline(ref_rig *rig, uint64_t seed, const char *forward, const char *backward) {
  static outputs x, y;
  const double u = tsri_dtype_describe(rig->p.q.dtype).roundoff;
  rig_run(rig, forward, 2);
  gather_forward(rig, &x);
  rig_run(rig, "fwd_any_rows__ref64", 2);
  gather_forward(rig, &y);
  compare_forward(rig, seed, u, &x, &y);
  if (!rig->p.page_size) {
    ref_rig grad = gradients_of(rig);
    double sink[8];
    rig_run(&grad, backward, 2);
    gather_backward(&grad, &x);
    for (int64_t h = 0; grad.p.dsink && h < grad.p.heads_q; h++) sink[h] = grad.dsink[h];
    rig_run(&grad, "bwd_any_rows__ref64", 2);
    gather_backward(&grad, &y);
    compare_backward(&grad, seed, u, &x, &y);
    for (int64_t h = 0; grad.p.dsink && h < grad.p.heads_q; h++)
      cr_expect(fabs(sink[h] - (double)grad.dsink[h]) < 256 * u, "seed %d: dsink[%d] is %g, not %g",
                (int)seed, (int)h, sink[h], (double)grad.dsink[h]);
    rig_free(&grad);
  }
}

static void baseline(tsr_dtype dtype, const char *forward, const char *backward, uint64_t seeds) {
  for (uint64_t seed = 0; seed < seeds; seed++) {
    random_case c = make(seed, dtype);
    check_baseline(&c.rig, seed, forward, backward);
    rig_free(&c.rig);
  }
}

/* Longer than every block that products are cut into: rows 64, depth 128, head dimension too. */
Test(random_problems, baseline_across_blocks) {
  ref_rig rig;
  rig_init(&rig, 1, 2, 1, 131, 259, 197, 70);
  rig.p.q.dtype = rig.p.k.dtype = rig.p.v.dtype = rig.p.o.dtype = TSR_DTYPE_F32;
  rig.p.scale = 0.07f;
  rig.p.softcap = 3;
  rig_alloc(&rig);
  check_baseline(&rig, 0, "fwd_f32_full__naive", "bwd_f32_full__naive");
  rig_free(&rig);
}

Test(random_problems, baseline_of_float32) {
  baseline(TSR_DTYPE_F32, "fwd_f32_full__naive", "bwd_f32_full__naive", SEEDS);
}
Test(random_problems, baseline_of_float16) {
  baseline(TSR_DTYPE_F16, "fwd_f16_full__naive", "bwd_f16_full__naive", SEEDS / 4);
}
Test(random_problems, baseline_of_bfloat16) {
  baseline(TSR_DTYPE_BF16, "fwd_bf16_full__naive", "bwd_bf16_full__naive", SEEDS / 4);
}
