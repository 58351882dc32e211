// SPDX-License-Identifier: Apache-2.0
//
// Validation of a problem's scalar fields: every field with values that are accepted and values
// that are refused by a message that names the field; and the resolution of every default.
#include <math.h>

#include "api/src/validate.h"
#include "tests/support/fake_backend.h"
#include "tests/unit/expect.h"

static tsr_problem resolved;

/* change: statements on p, a valid forward problem. */
#define GOOD(change)                                 \
  do {                                               \
    tsr_problem p = fake_problem();                  \
    change;                                          \
    EXPECT_OK(tsri_validate_problem(&p, &resolved)); \
  } while (0)
#define BAD(text, change)                                       \
  do {                                                          \
    tsr_problem p = fake_problem();                             \
    change;                                                     \
    EXPECT_INVALID(text, tsri_validate_problem(&p, &resolved)); \
  } while (0)
#define GOOD_BACKWARD(change)                        \
  do {                                               \
    tsr_problem p = fake_problem_backward();         \
    change;                                          \
    EXPECT_OK(tsri_validate_problem(&p, &resolved)); \
  } while (0)
#define BAD_BACKWARD(text, change)                              \
  do {                                                          \
    tsr_problem p = fake_problem_backward();                    \
    change;                                                     \
    EXPECT_INVALID(text, tsri_validate_problem(&p, &resolved)); \
  } while (0)

Test(validate, struct_size) {
  GOOD((void)p);
  BAD("tsr_problem.struct_size: found 0", p.struct_size = 0);
  BAD("struct_size", p.struct_size = sizeof p - 3);
  BAD("struct_size", p.struct_size = SIZE_MAX & ~(size_t)7);
  EXPECT_INVALID("tsr_problem", tsri_validate_problem(NULL, &resolved));
  /* An older caller: what lies beyond is default, whatever the memory holds. */
  tsr_problem p = fake_problem();
  p.struct_size = offsetof(tsr_problem, dout);
  memset((char *)&p + p.struct_size, 0xee, sizeof p - p.struct_size);
  EXPECT_OK(tsri_validate_problem(&p, &resolved));
  cr_expect_eq(resolved.struct_size, sizeof resolved);
  cr_expect_eq(resolved.dout.dtype, TSR_DTYPE_NONE);
  cr_expect_null(resolved.backend);
  /* A newer caller: accepted as long as it uses nothing new. */
  struct {
    tsr_problem p;
    int64_t more[4];
  } longer;
  memset(&longer, 0, sizeof longer);
  longer.p = fake_problem();
  longer.p.struct_size = sizeof longer;
  EXPECT_OK(tsri_validate_problem(&longer.p, &resolved));
  longer.more[3] = 1;
  EXPECT_INVALID("in use beyond", tsri_validate_problem(&longer.p, &resolved));
}

Test(validate, choices) {
  GOOD(p.passes = 0);
  cr_expect_eq(resolved.passes, (uint32_t)TSR_PASS_FORWARD);
  BAD("passes: found 0x4", p.passes = 4);
  BAD("arrays: found 0x100", p.arrays = 0x100);
  GOOD(p.index_dtype = TSR_DTYPE_I64);
  cr_expect_eq(resolved.index_dtype, TSR_DTYPE_I64);
  GOOD(p.index_dtype = TSR_DTYPE_NONE);
  cr_expect_eq(resolved.index_dtype, TSR_DTYPE_I32);
  BAD("index_dtype: found 1 (float32), accepted int32 or int64", p.index_dtype = TSR_DTYPE_F32);
  BAD("index_dtype: found -1", p.index_dtype = (tsr_dtype)-1);
  GOOD(p.determinism = TSR_DETERMINISM_BATCH_INVARIANT);
  BAD("determinism: found 3, accepted 0 .. 2", p.determinism = (tsr_determinism)3);
  BAD("determinism: found -1", p.determinism = (tsr_determinism)-1);
  BAD("reserved0: found 7", p.reserved0 = 7);
  BAD("reserved1: found 7", p.reserved1 = 7);
  BAD("window.reserved: found 7", p.window.reserved = 7);
}

Test(validate, sizes) {
  GOOD(p.batch = 0);
  BAD("batch: found -1, accepted 0 .. 2147483647", p.batch = -1);
  BAD("batch: found 2147483648", p.batch = INT64_C(1) << 31);
  GOOD(p.heads_q = p.heads_kv = 0);
  GOOD(p.heads_q = 0);
  GOOD(p.heads_q = 6; p.heads_kv = 3);
  BAD("heads_q: found 4, accepted a multiple of heads_kv (3)", p.heads_kv = 3);
  BAD("heads_q: found 4, accepted a multiple of heads_kv (0)", p.heads_kv = 0);
  BAD("heads_q: found -4", p.heads_q = -4);
  BAD("heads_kv: found -2", p.heads_kv = -2);
  BAD("batch * heads_q: found 4294967296", p.batch = INT64_C(1) << 30);
  GOOD(p.seq_q = p.seq_k = 0);
  BAD("seq_q: found -1", p.seq_q = -1);
  BAD("seq_q: found 2147483648", p.seq_q = INT64_C(1) << 31);
  BAD("seq_k: found -1", p.seq_k = -1);
  BAD("total_q: found 8, accepted 0", p.total_q = 8);
  BAD("total_k: found 8, accepted 0", p.total_k = 8);
  GOOD(p.dim_qk = 1);
  GOOD(p.dim_qk = 576; p.dim_v = 512);
  BAD("dim_qk: found 0, accepted 1 .. 576", p.dim_qk = 0);
  BAD("dim_qk: found 577", p.dim_qk = 577);
  BAD("dim_v: found 513, accepted 1 .. 512", p.dim_v = 513);
  BAD("dim_v: found 576", p.dim_qk = 576);
  BAD("dim_v: found -1", p.dim_v = -1);
  GOOD(p.dim_v = 16);
  cr_expect_eq(resolved.dim_v, 16);
  GOOD(p.dim_v = 0);
  cr_expect_eq(resolved.dim_v, 8);
}

Test(validate, packed) {
  GOOD(p.arrays = TSR_ARRAY_CU_Q; p.total_q = 9; p.seq_q = 0);
  cr_expect_eq(resolved.seq_q, 9);
  GOOD(p.arrays = TSR_ARRAY_CU_Q; p.total_q = 9; p.seq_q = 4);
  cr_expect_eq(resolved.seq_q, 4);
  GOOD(p.arrays = TSR_ARRAY_CU_K; p.total_k = INT64_C(1) << 33; p.seq_k = 0);
  cr_expect_eq(resolved.seq_k, TSRI_LENGTH_MAX);
  BAD("total_q: found -1", p.arrays = TSR_ARRAY_CU_Q; p.total_q = -1);
  BAD("total_k: found -1", p.arrays = TSR_ARRAY_CU_K; p.total_k = -1);
  /* A score tensor has the longest sequences as axes. */
  BAD("seq_q: found 0, accepted the longest packed query sequence: it is an axis of bias",
      p.arrays = TSR_ARRAY_CU_Q;
      p.total_q = 9; p.seq_q = 0; p.bias.dtype = TSR_DTYPE_F32);
  BAD("seq_k: found 0", p.arrays = TSR_ARRAY_CU_K; p.total_k = 9; p.seq_k = 0;
      p.mask.dtype = TSR_DTYPE_U8);
  BAD("it is an axis of block_mask", p.arrays = TSR_ARRAY_CU_K; p.total_k = 9; p.seq_k = 0;
      p.block_mask.dtype = TSR_DTYPE_U8; p.block_q = p.block_k = 2);
  GOOD(p.arrays = TSR_ARRAY_CU_Q; p.total_q = 9; p.seq_q = 0; p.bias.dtype = TSR_DTYPE_F32;
       p.bias.order = TSR_ORDER_STRIDED; p.bias.stride[3] = 1);
}

#define PAGED                  \
  p.seq_k = 0;                 \
  p.arrays = TSR_ARRAY_USED_K; \
  p.page_size = 16;            \
  p.num_pages = 10;            \
  p.max_pages = 3

Test(validate, pages) {
  GOOD(PAGED);
  cr_expect_eq(resolved.seq_k, 48);
  cr_expect_eq(resolved.page_table_stride, 3);
  GOOD(PAGED; p.seq_k = 48; p.page_table_stride = 7);
  cr_expect_eq(resolved.page_table_stride, 7);
  GOOD(PAGED; p.page_size = 1);
  GOOD(PAGED; p.num_pages = 0);
  GOOD(PAGED; p.max_pages = 0);
  GOOD(PAGED; p.arrays |= TSR_ARRAY_LEFT_PAD_K);
  BAD("page_size: found -1", PAGED; p.page_size = -1);
  BAD("num_pages: found -1", PAGED; p.num_pages = -1);
  BAD("max_pages: found -1", PAGED; p.max_pages = -1);
  BAD("max_pages: found 2147483647 pages", PAGED; p.max_pages = 0x7fffffff);
  BAD("page_table_stride: found 2, accepted 0 or at least max_pages (3)", PAGED;
      p.page_table_stride = 2);
  BAD("page_table_stride: found 9223372036854775807", PAGED; p.page_table_stride = INT64_MAX);
  BAD("page_table_stride: found -1", PAGED; p.page_table_stride = -1);
  BAD("arrays: found CU_K", PAGED; p.arrays |= TSR_ARRAY_CU_K);
  BAD("arrays: found no USED_K", PAGED; p.arrays = 0);
  BAD("seq_k: found 47, accepted 0 or max_pages * page_size = 48", PAGED; p.seq_k = 47);
  BAD("num_pages: found 4, accepted 0", p.num_pages = 4);
  BAD("max_pages: found 4, accepted 0", p.max_pages = 4);
  BAD("page_table_stride: found 4, accepted 0", p.page_table_stride = 4);
}

Test(validate, scores) {
  GOOD(p.scale = -2);
  GOOD(p.scale = 0);
  cr_expect_float_eq(resolved.scale, 1 / sqrt(8.0), 1e-7);
  BAD("scale: found nan", p.scale = NAN);
  BAD("scale: found inf", p.scale = INFINITY);
  GOOD(p.softcap = 30);
  BAD("softcap: found -1", p.softcap = -1);
  BAD("softcap: found nan", p.softcap = NAN);
  BAD("softcap: found inf", p.softcap = INFINITY);
  GOOD(p.alibi = TSR_ALIBI_PER_BATCH_HEAD);
  BAD("alibi: found 3", p.alibi = (tsr_alibi)3);
  GOOD(p.sink = 1);
  BAD("sink: found 2, accepted 0 .. 1", p.sink = 2);
  GOOD(p.dropout = 1);
  BAD("dropout: found 1.5", p.dropout = 1.5f);
  BAD("dropout: found -0.1", p.dropout = -0.1f);
  BAD("dropout: found nan", p.dropout = NAN);
}

Test(validate, band) {
  BAD("causal: found 4", p.causal = (tsr_causal)4);
  BAD("window.kind: found 4", p.window.kind = (tsr_window_kind)4);
  BAD("window.left: found 3, accepted 0: window.kind is NONE", p.window.left = 3);
  BAD("window.right: found 3, accepted 0: window.kind is NONE", p.window.right = 3);
  BAD("window.left: found -1", p.window.kind = TSR_WINDOW_TOP_LEFT; p.window.left = -1);
  BAD("window.right: found -1", p.window.kind = TSR_WINDOW_TOP_LEFT; p.window.right = -1);
  BAD("window.kind: found 2 with causal 1", p.window.kind = TSR_WINDOW_BOTTOM_RIGHT;
      p.causal = TSR_CAUSAL_TOP_LEFT);
  BAD("diagonal: found 5", p.diagonal = 5);
  BAD("diagonal: found 5", p.diagonal = 5; p.causal = TSR_CAUSAL_BOTTOM_RIGHT);
  BAD("arrays: found DIAGONAL", p.arrays = TSR_ARRAY_DIAGONAL; p.causal = TSR_CAUSAL_TOP_LEFT);
  BAD("diagonal: found 5, accepted 0: arrays has DIAGONAL", p.arrays = TSR_ARRAY_DIAGONAL;
      p.diagonal = 5; p.causal = TSR_CAUSAL_EXPLICIT);
  BAD("diagonal: found 9223372036854775807", p.diagonal = INT64_MAX;
      p.causal = TSR_CAUSAL_EXPLICIT);
  GOOD(p.arrays = TSR_ARRAY_DIAGONAL; p.window.kind = TSR_WINDOW_EXPLICIT);
  GOOD(p.diagonal = -5; p.causal = TSR_CAUSAL_EXPLICIT);
  BAD("prefix: found -1", p.prefix = -1);
  BAD("prefix: found 2, accepted 0: arrays has PREFIX", p.prefix = 2; p.arrays = TSR_ARRAY_PREFIX);
  GOOD(p.prefix = INT64_MAX);
  cr_expect_eq(resolved.prefix, TSRI_LENGTH_MAX);
}

/* window of a resolved problem */
static void expect_window(tsr_window_kind kind, int64_t left, int64_t right, int line) {
  cr_expect_eq(resolved.causal, TSR_CAUSAL_NONE, "line %d", line);
  cr_expect_eq(resolved.window.kind, kind, "line %d: kind %d", line, (int)resolved.window.kind);
  cr_expect_eq(resolved.window.left, left, "line %d", line);
  cr_expect_eq(resolved.window.right, right, "line %d", line);
}
#define WINDOW(kind, left, right) expect_window(TSR_WINDOW_##kind, left, right, __LINE__)

Test(validate, band_is_merged) {
  const int64_t open = TSR_UNBOUNDED;
  GOOD((void)p);
  WINDOW(NONE, open, open);
  GOOD(p.causal = TSR_CAUSAL_BOTTOM_RIGHT);
  WINDOW(BOTTOM_RIGHT, open, 0);
  GOOD(p.causal = TSR_CAUSAL_TOP_LEFT; p.window.kind = TSR_WINDOW_TOP_LEFT; p.window.left = 4;
       p.window.right = 9);
  WINDOW(TOP_LEFT, 4, 0);
  GOOD(p.window.kind = TSR_WINDOW_EXPLICIT; p.window.left = open; p.window.right = open);
  WINDOW(NONE, open, open);
  GOOD(p.window.kind = TSR_WINDOW_TOP_LEFT; p.window.left = open - 1; p.window.right = 3);
  WINDOW(TOP_LEFT, open, 3);
  GOOD(p.window.kind = TSR_WINDOW_TOP_LEFT);
  WINDOW(TOP_LEFT, 0, 0);
}

Test(validate, blocks_and_scales) {
  GOOD(p.block_mask.dtype = TSR_DTYPE_U8; p.block_q = 2; p.block_k = 2);
  BAD("block_q: found 0, accepted 1 ..", p.block_mask.dtype = TSR_DTYPE_U8; p.block_k = 2);
  BAD("block_k: found -2, accepted 1 ..", p.block_mask.dtype = TSR_DTYPE_U8; p.block_q = 2;
      p.block_k = -2);
  BAD("block_q: found 2, accepted 0: there is no block_mask", p.block_q = 2);
  BAD("block_k: found 2, accepted 0: there is no block_mask", p.block_k = 2);
  BAD("scale_rows_q: found 4, accepted 0: there is no q_scale", p.scale_rows_q = 4);
  BAD("scale_rows_k: found 4, accepted 0: there is no k_scale", p.scale_rows_k = 4);
  BAD("scale_rows_q: found -4", p.scale_rows_q = -4);
  BAD("scale_rows_k: found -4", p.scale_rows_k = -4);
  GOOD(p.k.dtype = p.v.dtype = TSR_DTYPE_I8; p.k_scale.dtype = p.v_scale.dtype = TSR_DTYPE_F32;
       p.scale_rows_k = 4);
  BAD("scale_rows_k: found -1, accepted 0 or more", p.k.dtype = p.v.dtype = TSR_DTYPE_I8;
      p.k_scale.dtype = p.v_scale.dtype = TSR_DTYPE_F32; p.scale_rows_k = -1);
  BAD("scale_rows_q: found -1, accepted 0 or more",
      p.q.dtype = p.k.dtype = p.v.dtype = TSR_DTYPE_F8_E5M2;
      p.q_scale.dtype = p.k_scale.dtype = p.v_scale.dtype = TSR_DTYPE_F32; p.scale_rows_q = -1);
}

Test(validate, backward) {
  GOOD_BACKWARD((void)p);
  GOOD_BACKWARD(p.passes = TSR_PASS_BACKWARD);
  GOOD_BACKWARD(p.dk.dtype = p.dv.dtype = TSR_DTYPE_NONE);
  BAD_BACKWARD("lse.dtype: found none", p.lse.dtype = TSR_DTYPE_NONE);
  BAD_BACKWARD("dout.dtype: found none", p.dout.dtype = TSR_DTYPE_NONE);
  BAD_BACKWARD("at least one gradient", p.dq.dtype = p.dk.dtype = p.dv.dtype = TSR_DTYPE_NONE);
  BAD_BACKWARD("dk.dtype: found float32 with pages", PAGED);
  BAD_BACKWARD("dv.dtype: found float32 with pages", PAGED; p.dk.dtype = TSR_DTYPE_NONE);
  GOOD_BACKWARD(PAGED; p.dk.dtype = p.dv.dtype = TSR_DTYPE_NONE);
  BAD_BACKWARD("dbias.dtype: found 1 (float32), accepted none", p.dbias.dtype = TSR_DTYPE_F32);
  GOOD_BACKWARD(p.bias.dtype = p.dbias.dtype = TSR_DTYPE_F32);
  BAD_BACKWARD("dsink: found 1, accepted 0: there is no sink", p.dsink = 1);
  BAD_BACKWARD("dsink: found 2", p.dsink = 2);
  GOOD_BACKWARD(p.sink = p.dsink = 1; p.accumulate = TSR_ACCUMULATE_DSINK);
  GOOD_BACKWARD(p.accumulate = TSR_ACCUMULATE_DQ | TSR_ACCUMULATE_DK | TSR_ACCUMULATE_DV);
  BAD_BACKWARD("accumulate: found 0x8", p.accumulate = TSR_ACCUMULATE_DBIAS);
  BAD_BACKWARD("accumulate: found 0x20", p.accumulate = 0x20);
  BAD("accumulate: found 0x1", p.accumulate = TSR_ACCUMULATE_DQ);
  BAD("dsink: found 1, accepted 0: passes has no BACKWARD", p.sink = p.dsink = 1);
  BAD("dout.dtype: found 1 (float32), accepted none: passes has no BACKWARD",
      p.dout.dtype = TSR_DTYPE_F32);
  BAD("dq.dtype", p.dq.dtype = TSR_DTYPE_F32);
  BAD("dlse.dtype", p.dlse.dtype = TSR_DTYPE_F32);
  BAD_BACKWARD("max_logit.dtype: found 1 (float32), accepted none: passes has no FORWARD",
               p.passes = TSR_PASS_BACKWARD;
               p.max_logit.dtype = TSR_DTYPE_F32);
}

Test(validate, device) {
  EXPECT_OK(tsri_validate_device((tsr_device){TSR_DEVICE_HOST, 0}));
  EXPECT_OK(tsri_validate_device((tsr_device){TSR_DEVICE_CUDA, 7}));
  EXPECT_INVALID("device.kind: found 3", tsri_validate_device((tsr_device){(tsr_device_kind)3, 0}));
  EXPECT_INVALID("device.index: found -1", tsri_validate_device((tsr_device){TSR_DEVICE_CUDA, -1}));
  EXPECT_INVALID("device.index: found 1", tsri_validate_device((tsr_device){TSR_DEVICE_HOST, 1}));
}

static uint32_t features(tsr_pass pass, tsr_problem p) {
  const tsr_device host = {TSR_DEVICE_HOST, 0};
  tsr_resolved r;
  EXPECT_OK(tsri_validate_problem(&p, &resolved));
  tsri_resolve_pass(&resolved, host, pass, &r);
  return r.features;
}

#define FEATURES(wanted, change)                                                 \
  do {                                                                           \
    tsr_problem p = fake_problem();                                              \
    p.heads_kv = p.heads_q;                                                      \
    change;                                                                      \
    const uint32_t found = features(TSR_PASS_FORWARD, p);                        \
    cr_expect_eq(found, (uint32_t)(wanted), "features 0x%x, wanted 0x%x", found, \
                 (uint32_t)(wanted));                                            \
  } while (0)

Test(validate, features) {
  FEATURES(0, (void)p);
  FEATURES(TSR_FEATURE_GROUPED_HEADS, p.heads_kv = 2);
  FEATURES(TSR_FEATURE_CAUSAL, p.causal = TSR_CAUSAL_TOP_LEFT);
  FEATURES(TSR_FEATURE_WINDOW, p.window.kind = TSR_WINDOW_TOP_LEFT; p.window.left = 2;
           p.window.right = 2);
  FEATURES((TSR_FEATURE_WINDOW | TSR_FEATURE_CAUSAL), p.window.kind = TSR_WINDOW_TOP_LEFT;
           p.window.left = 2);
  FEATURES(TSR_FEATURE_PREFIX, p.prefix = 2);
  FEATURES(TSR_FEATURE_PREFIX, p.arrays = TSR_ARRAY_PREFIX);
  FEATURES(TSR_FEATURE_MASK, p.mask.dtype = TSR_DTYPE_U8);
  FEATURES(TSR_FEATURE_BLOCK_MASK, p.block_mask.dtype = TSR_DTYPE_U8; p.block_q = p.block_k = 1);
  FEATURES(TSR_FEATURE_BIAS, p.bias.dtype = TSR_DTYPE_F32);
  FEATURES(TSR_FEATURE_ALIBI, p.alibi = TSR_ALIBI_PER_HEAD);
  FEATURES(TSR_FEATURE_SOFTCAP, p.softcap = 2);
  FEATURES(TSR_FEATURE_SINK, p.sink = 1);
  FEATURES(TSR_FEATURE_DROPOUT, p.dropout = 0.5f);
  FEATURES(TSR_FEATURE_PACKED, p.arrays = TSR_ARRAY_CU_K; p.total_k = 9);
  FEATURES(TSR_FEATURE_USED_LENGTHS, p.arrays = TSR_ARRAY_LEFT_PAD_Q);
  FEATURES((TSR_FEATURE_PAGED | TSR_FEATURE_USED_LENGTHS), PAGED);
  FEATURES(TSR_FEATURE_MAX_LOGIT, p.max_logit.dtype = TSR_DTYPE_F32);
  FEATURES(TSR_FEATURE_SCALES, p.k.dtype = p.v.dtype = TSR_DTYPE_I8;
           p.k_scale.dtype = p.v_scale.dtype = TSR_DTYPE_F32);
  FEATURES(TSR_FEATURE_DETERMINISTIC, p.determinism = TSR_DETERMINISM_DETERMINISTIC);
  FEATURES((TSR_FEATURE_DETERMINISTIC | TSR_FEATURE_BATCH_INVARIANT),
           p.determinism = TSR_DETERMINISM_BATCH_INVARIANT);
  const int64_t transposed[4] = {160, 40, 1, 5};
  FEATURES(TSR_FEATURE_STRIDED_LAST, p.k.order = TSR_ORDER_STRIDED;
           memcpy(p.k.stride, transposed, sizeof transposed));
}

/* What only one pass uses is absent from what the other sees. */
Test(validate, passes_are_apart) {
  const tsr_device host = {TSR_DEVICE_HOST, 0};
  tsr_problem p = fake_problem_backward();
  tsr_resolved r;
  p.max_logit.dtype = p.dlse.dtype = p.bias.dtype = p.dbias.dtype = TSR_DTYPE_F32;
  p.sink = p.dsink = 1;
  p.accumulate = TSR_ACCUMULATE_DQ;
  p.dropout = 0.25f;
  EXPECT_OK(tsri_validate_problem(&p, &resolved));
  tsri_resolve_pass(&resolved, host, TSR_PASS_FORWARD, &r);
  cr_expect_eq(r.p.passes, (uint32_t)TSR_PASS_FORWARD);
  cr_expect_eq(r.p.dq.dtype, TSR_DTYPE_NONE);
  cr_expect_eq(r.p.dlse.dtype, TSR_DTYPE_NONE);
  cr_expect_eq(r.p.dsink, 0u);
  cr_expect_eq(r.p.accumulate, 0u);
  cr_expect_eq(r.features, (uint32_t)(TSR_FEATURE_GROUPED_HEADS | TSR_FEATURE_MAX_LOGIT |
                                      TSR_FEATURE_BIAS | TSR_FEATURE_SINK | TSR_FEATURE_DROPOUT));
  cr_expect_eq(r.group, 2);
  cr_expect_eq(r.drop_threshold, UINT64_C(1) << 30);
  cr_expect_float_eq(r.keep_scale, 4.0 / 3, 1e-7);
  tsri_resolve_pass(&resolved, host, TSR_PASS_BACKWARD, &r);
  cr_expect_eq(r.p.max_logit.dtype, TSR_DTYPE_NONE);
  cr_expect_eq(r.features,
               (uint32_t)(TSR_FEATURE_GROUPED_HEADS | TSR_FEATURE_BIAS | TSR_FEATURE_SINK |
                          TSR_FEATURE_DROPOUT | TSR_FEATURE_DLSE | TSR_FEATURE_DBIAS |
                          TSR_FEATURE_DSINK | TSR_FEATURE_ACCUMULATE));
  resolved.dropout = 1;
  tsri_resolve_pass(&resolved, host, TSR_PASS_FORWARD, &r);
  cr_expect_eq(r.drop_threshold, UINT64_C(1) << 32);
  cr_expect_eq(r.keep_scale, 0);
}
