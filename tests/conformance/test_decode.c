// SPDX-License-Identifier: Apache-2.0
//
// Serving shapes: one or a few queries against long caches, grouped heads, padded, packed and paged.
// Against the reference, and as a walk: queries one at a time over a growing cache give what one causal
// run over the whole sequence gives.
#include <criterion/criterion.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "conformance.h"
#include "tests/support/compare.h"

#define LENGTHS(...) \
  (const int64_t[]) { __VA_ARGS__ }
#define ROW(name_, b, hq, hkv, sq, sk, dqk, dv, ...)                                             \
  {                                                                                              \
    .name = name_, .group = "decode", .batch = b, .heads_q = hq, .heads_kv = hkv, .seq_q = sq,   \
    .seq_k = sk, .dim_qk = dqk, .dim_v = dv, .causal = TSR_CAUSAL_BOTTOM_RIGHT, __VA_ARGS__      \
  }

static const tsr_case rows[] = {
    ROW("one query, 4096 keys", 1, 8, 1, 1, 4096, 64, 64, .seed = 0),
    ROW("one query, 5003 keys, no group", 1, 2, 2, 1, 5003, 128, 128, .seed = 1),
    ROW("group of 16", 2, 16, 1, 1, 777, 128, 128, .seed = 2),
    ROW("four queries", 2, 8, 2, 4, 1500, 64, 64, .seed = 3),
    ROW("17 queries", 1, 4, 4, 17, 2100, 64, 64, .seed = 4),
    ROW("padded cache", 4, 8, 2, 1, 1024, 64, 64, .len_k = LENGTHS(1024, 1, 513, 0)),
    ROW("paged cache", 4, 8, 2, 1, 1024, 64, 64, .len_k = LENGTHS(1024, 1, 513, 0),
        .page_size = 32),
    ROW("paged cache, page of 1", 2, 4, 2, 1, 300, 64, 64, .len_k = LENGTHS(300, 299),
        .page_size = 1),
    ROW("paged cache, shared prefix", 3, 8, 2, 1, 640, 64, 64, .len_k = LENGTHS(640, 257, 400),
        .page_size = 64, .share = 256),
    ROW("packed cache", 3, 8, 2, 1, 900, 64, 64, .packed_q = true, .packed_k = true,
        .len_q = LENGTHS(1, 1, 1), .len_k = LENGTHS(900, 3, 450)),
    ROW("mixed prefill and decode", 3, 8, 2, 70, 900, 64, 64, .packed_q = true, .packed_k = true,
        .len_q = LENGTHS(1, 70, 3), .len_k = LENGTHS(900, 70, 450)),
    ROW("window", 2, 8, 2, 1, 1500, 64, 64, .window = TSR_WINDOW_BOTTOM_RIGHT, .left = 255,
        .right = TSR_UNBOUNDED),
    ROW("sinks and window", 2, 8, 2, 1, 700, 64, 64, .window = TSR_WINDOW_BOTTOM_RIGHT, .left = 127,
        .right = TSR_UNBOUNDED, .sink = TSR_SINK_NORMAL, .softcap = 30.0f),
    ROW("alibi", 2, 8, 8, 1, 700, 64, 64, .alibi = TSR_ALIBI_PER_HEAD, .max_logit = true),
    ROW("latent attention, 576 and 512", 1, 16, 1, 1, 600, 576, 512, .seed = 5),
    ROW("batch invariant", 2, 8, 2, 1, 1500, 64, 64,
        .determinism = TSR_DETERMINISM_BATCH_INVARIANT),
};

Test(decode, serving_shapes) {
  tsr_check_options options = {0};
  cr_assert_eq(conform_rows(&options, rows, (int32_t)(sizeof rows / sizeof rows[0])), 0);
}

enum { STEPS = 37, HEADS = 4, DIM = 32 };

/* Row `step` of the walk: one query over step + 1 keys. */
static bool one_step(const char *backend, const tsr_inputs *whole, int64_t step, double *o) {
  tsr_case row = *whole->row;
  tsr_inputs in;
  tsr_results results;
  int64_t h, j;
  bool refused, ok;
  row.seq_q = 1;
  row.seq_k = step + 1;
  if (!tsr_inputs_create(&in, &row, whole->dtype)) return false;
  for (h = 0; h < HEADS; ++h)
    memcpy(tsr_dense_row(&in.q, 0, h, 0), tsr_dense_row(&whole->q, 0, h, step),
           DIM * sizeof(double));
  for (h = 0; h < row.heads_kv; ++h)
    for (j = 0; j <= step; ++j) {
      memcpy(tsr_dense_row(&in.k, 0, h, j), tsr_dense_row(&whole->k, 0, h, j),
             DIM * sizeof(double));
      memcpy(tsr_dense_row(&in.v, 0, h, j), tsr_dense_row(&whole->v, 0, h, j),
             DIM * sizeof(double));
    }
  ok = conform_run(NULL, backend, &in, &row, TSR_PASS_FORWARD, &results, &refused);
  if (ok)
    for (h = 0; h < HEADS; ++h)
      memcpy(o + h * DIM, tsr_dense_row(&results.out[TSR_OUTPUT_O], 0, h, 0), DIM * sizeof(double));
  tsr_results_destroy(&results);
  tsr_inputs_destroy(&in);
  return ok;
}

Test(decode, walk_equals_one_causal_run) {
  static const struct {
    tsr_dtype dtype;
    double tolerance; /* two roundings of the output of size one, and the sums' noise in float32 */
  } types[] = {{TSR_DTYPE_F32, 0x1p-20}, {TSR_DTYPE_F16, 0x1p-9}, {TSR_DTYPE_BF16, 0x1p-6}};
  const char *names[16];
  int32_t n, count = tsr_backends_list(NULL, NULL, names, 16);
  tsr_case row = ROW("walk", 1, HEADS, 2, STEPS, STEPS, DIM, DIM, .seed = 6, .alignment = 16);
  size_t t;
  for (n = 0; n < count; ++n)
    for (t = 0; t < 3; ++t) {
      double o[HEADS * DIM], worst = 0;
      tsr_inputs in;
      tsr_results results;
      bool refused;
      int64_t step, h, d;
      cr_assert(tsr_inputs_create(&in, &row, types[t].dtype));
      if (!conform_run(NULL, names[n], &in, &row, TSR_PASS_FORWARD, &results, &refused)) {
        cr_assert(refused, "%s", names[n]);
        tsr_inputs_destroy(&in);
        continue;
      }
      for (step = 0; step < STEPS; ++step) {
        cr_assert(one_step(names[n], &in, step, o), "%s: step %lld", names[n], (long long)step);
        for (h = 0; h < HEADS; ++h)
          for (d = 0; d < DIM; ++d)
            worst = fmax(worst, fabs(o[h * DIM + d] -
                                     tsr_dense_row(&results.out[TSR_OUTPUT_O], 0, h, step)[d]));
      }
      cr_assert_leq(worst, 4 * types[t].tolerance, "%s %s: %g", names[n],
                    tsr_check_dtype_name(types[t].dtype), worst);
      tsr_results_destroy(&results);
      tsr_inputs_destroy(&in);
    }
}
