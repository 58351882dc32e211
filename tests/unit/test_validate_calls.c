// SPDX-License-Identifier: Apache-2.0
//
// Validation of context options, merges, dropout masks and the one-call form.
#include <math.h>
#include <stdlib.h>

#include "api/src/validate.h"
#include "tests/support/fake_backend.h"
#include "tests/unit/expect.h"

static const tsr_device host = {TSR_DEVICE_HOST, 0};
static float memory[32][256] __attribute__((aligned(64)));

static void *some_alloc(void *user, size_t size, size_t alignment) {
  (void)user, (void)alignment;
  return malloc(size);
}
static void some_free(void *user, void *block) {
  (void)user;
  free(block);
}
static int some_run(void *user, void (*task)(void *, int64_t, int32_t), void *arg, int64_t count) {
  (void)user;
  for (int64_t i = 0; i < count; ++i) task(arg, i, 0);
  return 0;
}

#define OPTIONS(check, change)                             \
  do {                                                     \
    tsr_context_options o = TSR_CONTEXT_OPTIONS_INIT, out; \
    change;                                                \
    check(tsri_validate_options(&o, &out));                \
  } while (0)
#define BAD_OPTIONS(text, change)                          \
  do {                                                     \
    tsr_context_options o = TSR_CONTEXT_OPTIONS_INIT, out; \
    change;                                                \
    EXPECT_INVALID(text, tsri_validate_options(&o, &out)); \
  } while (0)

Test(validate_calls, options) {
  tsr_context_options defaults;
  EXPECT_OK(tsri_validate_options(NULL, &defaults));
  OPTIONS(EXPECT_OK, (void)o);
  BAD_OPTIONS("tsr_context_options.struct_size: found 1", o.struct_size = 1);
  OPTIONS(EXPECT_OK, o.allocator.alloc = some_alloc; o.allocator.free = some_free);
  BAD_OPTIONS("allocator: found only one", o.allocator.alloc = some_alloc);
  BAD_OPTIONS("allocator: found only one", o.allocator.free = some_free);
  BAD_OPTIONS("allocator.user", o.allocator.user = memory);
  OPTIONS(EXPECT_OK, o.runner.run = some_run; o.runner.threads = 1);
  BAD_OPTIONS("runner.threads: found 0", o.runner.run = some_run);
  BAD_OPTIONS("runner.threads: found 65537", o.runner.run = some_run; o.runner.threads = 65537);
  BAD_OPTIONS("runner.run: found NULL", o.runner.threads = 2);
  BAD_OPTIONS("runner.run: found NULL", o.runner.user = memory);
  OPTIONS(EXPECT_OK, o.threads = 3);
  BAD_OPTIONS("threads: found -1", o.threads = -1);
  BAD_OPTIONS("threads: found 65537", o.threads = 65537);
  BAD_OPTIONS("threads: found 2 with a runner", o.runner.run = some_run; o.runner.threads = 2;
              o.threads = 2);
  BAD_OPTIONS("reserved: found 1", o.reserved = 1);
  BAD_OPTIONS("log_user", o.log_user = memory);
}

typedef struct merge_case {
  tsr_merge_problem m;
  const void *o_parts[2];
  const float *lse_parts[2];
  void *o;
  float *lse;
  void *stream;
  tsr_device device;
} merge_case;

static merge_case merge_base(void) {
  merge_case c = {TSR_MERGE_PROBLEM_INIT};
  c.m.parts = 2;
  c.m.batch = c.m.heads = 2;
  c.m.seq = 3;
  c.m.dim_v = 4;
  c.m.o_part.dtype = c.m.lse_part.dtype = c.m.o.dtype = c.m.lse.dtype = TSR_DTYPE_F32;
  c.o_parts[0] = memory[0];
  c.o_parts[1] = memory[1];
  c.lse_parts[0] = memory[2];
  c.lse_parts[1] = memory[3];
  c.o = memory[4];
  c.lse = memory[5];
  c.device = host;
  return c;
}

static tsr_status merge_check(const merge_case *c) {
  tsr_merge_problem out;
  return tsri_validate_merge(&c->m, c->device, c->o_parts, c->lse_parts, c->o, c->lse, c->stream,
                             &out);
}

#define GOOD_MERGE(change)       \
  do {                           \
    merge_case c = merge_base(); \
    change;                      \
    EXPECT_OK(merge_check(&c));  \
  } while (0)
#define BAD_MERGE(text, change)            \
  do {                                     \
    merge_case c = merge_base();           \
    change;                                \
    EXPECT_INVALID(text, merge_check(&c)); \
  } while (0)

Test(validate_calls, merge) {
  GOOD_MERGE((void)c);
  BAD_MERGE("tsr_merge_problem.struct_size", c.m.struct_size = 2);
  BAD_MERGE("parts: found 0, accepted 1 .. 65536", c.m.parts = 0);
  BAD_MERGE("parts: found 65537", c.m.parts = 65537);
  BAD_MERGE("batch: found -1", c.m.batch = -1);
  BAD_MERGE("heads: found -1", c.m.heads = -1);
  BAD_MERGE("batch * heads", c.m.batch = c.m.heads = 1 << 20);
  BAD_MERGE("seq: found -1", c.m.seq = -1);
  BAD_MERGE("dim_v: found 0", c.m.dim_v = 0);
  BAD_MERGE("dim_v: found 513", c.m.dim_v = 513);
  BAD_MERGE("o_part.dtype: found 4 (float64), accepted float32, float16 or bfloat16",
            c.m.o_part.dtype = TSR_DTYPE_F64);
  BAD_MERGE("lse_part.dtype: found 0", c.m.lse_part.dtype = TSR_DTYPE_NONE);
  BAD_MERGE("o.dtype: found 0", c.m.o.dtype = TSR_DTYPE_NONE);
  BAD_MERGE("lse.dtype: found 2", c.m.lse.dtype = TSR_DTYPE_F16);
  BAD_MERGE("o.stride[3]: found 0", c.m.o.order = TSR_ORDER_STRIDED);
  BAD_MERGE("device.kind: found 9", c.device.kind = (tsr_device_kind)9);
  BAD_MERGE("stream: found", c.stream = memory);
  BAD_MERGE("o: found NULL", c.o = NULL);
  BAD_MERGE("lse: found NULL", c.lse = NULL);
  GOOD_MERGE(c.m.lse.dtype = TSR_DTYPE_NONE; c.lse = NULL);
  BAD_MERGE("lse: found a pointer", c.m.lse.dtype = TSR_DTYPE_NONE);
  BAD_MERGE("o_parts[1]: found NULL", c.o_parts[1] = NULL);
  BAD_MERGE("lse_parts[1]: found NULL", c.lse_parts[1] = NULL);
  BAD_MERGE("o_parts[0]: found 0x", c.o_parts[0] = (const char *)memory[0] + 1);
  BAD_MERGE("lse: found memory at", c.lse = memory[4]);
  BAD_MERGE("lse: found memory at", c.lse = memory[0]);
  BAD_MERGE("o: found memory at", c.o = memory[2]);
  /* In place: the very memory of one part, or apart from it. */
  GOOD_MERGE(c.o = memory[0]; c.lse = memory[2]);
  BAD_MERGE("o: found memory at", c.o = memory[0] + 4);
  /* Strides of axes of length 1 are no difference; of longer ones they are. */
  GOOD_MERGE(c.m.batch = c.m.heads = 1; c.o = memory[0]; c.lse = memory[2];
             c.m.o.order = c.m.lse.order = TSR_ORDER_STRIDED; c.m.o.stride[2] = 4;
             c.m.o.stride[3] = 1; c.m.lse.stride[1] = 77; c.m.lse.stride[2] = 1);
  BAD_MERGE("o: found memory at", c.m.batch = c.m.heads = 1; c.o = memory[0];
            c.m.o.order = TSR_ORDER_STRIDED; c.m.o.stride[2] = 5; c.m.o.stride[3] = 1);
  BAD_MERGE("o: found memory at", c.o = memory[1]; c.m.o.order = TSR_ORDER_BSHD);
  BAD_MERGE("lse: found memory at", c.lse = memory[3] + 1);
  GOOD_MERGE(c.m.batch = 0; c.o = NULL; c.lse = NULL; c.o_parts[0] = NULL);
  merge_case c = merge_base();
  tsr_merge_problem out;
  EXPECT_INVALID("o_parts: found NULL",
                 tsri_validate_merge(&c.m, host, NULL, c.lse_parts, c.o, c.lse, NULL, &out));
  EXPECT_INVALID("lse_parts: found NULL",
                 tsri_validate_merge(&c.m, host, c.o_parts, NULL, c.o, c.lse, NULL, &out));
  EXPECT_OK(tsri_validate_merge(&c.m, host, c.o_parts, c.lse_parts, c.o, c.lse, NULL, &out));
  cr_expect_eq(out.o.order, TSR_ORDER_STRIDED);
  cr_expect_eq(out.o.stride[0], 24);
  cr_expect_eq(out.lse.stride[1], 3);
}

static tsr_status dropout_check(tsr_dropout_problem d, const uint8_t *mask, void *stream) {
  tsr_dropout_problem out;
  return tsri_validate_dropout(&d, host, mask, stream, &out);
}

static tsr_dropout_problem dropout_base(void) {
  tsr_dropout_problem d = TSR_DROPOUT_PROBLEM_INIT;
  d.batch = d.heads = 2;
  d.seq_q = 3;
  d.seq_k = 5;
  d.dropout = 0.5f;
  d.mask.dtype = TSR_DTYPE_U8;
  return d;
}

#define BAD_DROPOUT(text, change)                                          \
  do {                                                                     \
    tsr_dropout_problem d = dropout_base();                                \
    change;                                                                \
    EXPECT_INVALID(text, dropout_check(d, (const uint8_t *)memory, NULL)); \
  } while (0)

Test(validate_calls, dropout) {
  EXPECT_OK(dropout_check(dropout_base(), (const uint8_t *)memory, NULL));
  BAD_DROPOUT("tsr_dropout_problem.struct_size", d.struct_size = 2);
  BAD_DROPOUT("batch: found -1", d.batch = -1);
  BAD_DROPOUT("heads: found -1", d.heads = -1);
  BAD_DROPOUT("batch * heads", d.batch = d.heads = 1 << 20);
  BAD_DROPOUT("seq_q: found -1", d.seq_q = -1);
  BAD_DROPOUT("seq_k: found 2147483648", d.seq_k = INT64_C(1) << 31);
  BAD_DROPOUT("dropout: found 2", d.dropout = 2);
  BAD_DROPOUT("dropout: found nan", d.dropout = NAN);
  BAD_DROPOUT("reserved: found 1", d.reserved = 1);
  BAD_DROPOUT("mask.dtype: found 17 (bit), accepted uint8", d.mask.dtype = TSR_DTYPE_BIT);
  BAD_DROPOUT("mask.stride[3]: found 0", d.mask.order = TSR_ORDER_STRIDED);
  tsr_dropout_problem out;
  const tsr_dropout_problem d = dropout_base();
  EXPECT_INVALID("device.kind: found 9",
                 tsri_validate_dropout(&d, (tsr_device){(tsr_device_kind)9, 0},
                                       (const uint8_t *)memory, NULL, &out));
  EXPECT_INVALID("mask: found NULL", dropout_check(dropout_base(), NULL, NULL));
  EXPECT_INVALID("stream: found", dropout_check(dropout_base(), (const uint8_t *)memory, memory));
}

typedef struct call {
  tsr_tensor q, k, v, o, lse;
} call;

static call call_base(void) {
  const call c = {
      {memory[0], TSR_DTYPE_F32, 0, {1, 2, 3, 4}, {24, 12, 4, 1}},
      {memory[1], TSR_DTYPE_F32, 0, {1, 1, 5, 4}, {20, 20, 4, 1}},
      {memory[2], TSR_DTYPE_F32, 0, {1, 1, 5, 6}, {30, 30, 6, 1}},
      {memory[3], TSR_DTYPE_F32, 0, {1, 2, 3, 6}, {36, 18, 6, 1}},
      {memory[4], TSR_DTYPE_F32, 0, {1, 2, 3, 1}, {6, 3, 1, 1}},
  };
  return c;
}

static tsr_problem made;
static tsr_args made_args;

#define BAD_CALL(text, change)                                                                    \
  do {                                                                                            \
    call c = call_base();                                                                         \
    change;                                                                                       \
    EXPECT_INVALID(text, tsri_validate_attention(&c.q, &c.k, &c.v, &c.o, &c.lse, TSR_CAUSAL_NONE, \
                                                 0, &made, &made_args));                          \
  } while (0)

Test(validate_calls, attention) {
  call good = call_base();
  tsr_problem valid;
  EXPECT_OK(tsri_validate_attention(&good.q, &good.k, &good.v, &good.o, &good.lse,
                                    TSR_CAUSAL_BOTTOM_RIGHT, 0.5f, &made, &made_args));
  EXPECT_OK(tsri_validate_problem(&made, &valid));
  cr_expect_eq(valid.heads_kv, 1);
  cr_expect_eq(valid.dim_v, 6);
  cr_expect_eq(valid.q.alignment, 64);
  cr_expect_eq(valid.window.kind, TSR_WINDOW_BOTTOM_RIGHT);
  cr_expect_eq(made_args.lse, (float *)good.lse.data);
  EXPECT_OK(tsri_validate_attention(&good.q, &good.k, &good.v, &good.o, NULL, TSR_CAUSAL_NONE, 0,
                                    &made, &made_args));
  cr_expect_eq(made.lse.dtype, TSR_DTYPE_NONE);
  cr_expect_null(made_args.lse);
  BAD_CALL("q.shape[1]: found -2, accepted 0 or more", c.q.shape[1] = -2);
  BAD_CALL("k.shape[1]: found -1, accepted 0 or more", c.k.shape[1] = -1);
  BAD_CALL("k.shape[0]: found 2, accepted 1", c.k.shape[0] = 2);
  BAD_CALL("k.shape[3]: found 5, accepted 4", c.k.shape[3] = 5);
  BAD_CALL("v.shape[1]: found 2, accepted 1", c.v.shape[1] = 2);
  BAD_CALL("v.shape[2]: found 6, accepted 5", c.v.shape[2] = 6);
  BAD_CALL("v.shape[3]: found 0", c.v.shape[3] = c.o.shape[3] = 0);
  BAD_CALL("o.shape[3]: found 4, accepted 6", c.o.shape[3] = 4);
  BAD_CALL("lse.shape[3]: found 2, accepted 1", c.lse.shape[3] = 2);
  BAD_CALL("lse.dtype: found 2", c.lse.dtype = TSR_DTYPE_F16);
  BAD_CALL("q.reserved: found 1", c.q.reserved = 1);
  EXPECT_INVALID("causal: found 3",
                 tsri_validate_attention(&good.q, &good.k, &good.v, &good.o, NULL,
                                         TSR_CAUSAL_EXPLICIT, 0, &made, &made_args));
  EXPECT_INVALID("q: found NULL", tsri_validate_attention(NULL, &good.k, &good.v, &good.o, NULL,
                                                          TSR_CAUSAL_NONE, 0, &made, &made_args));
  EXPECT_INVALID("k: found NULL", tsri_validate_attention(&good.q, NULL, &good.v, &good.o, NULL,
                                                          TSR_CAUSAL_NONE, 0, &made, &made_args));
  EXPECT_INVALID("v: found NULL", tsri_validate_attention(&good.q, &good.k, NULL, &good.o, NULL,
                                                          TSR_CAUSAL_NONE, 0, &made, &made_args));
  EXPECT_INVALID("o: found NULL", tsri_validate_attention(&good.q, &good.k, &good.v, NULL, NULL,
                                                          TSR_CAUSAL_NONE, 0, &made, &made_args));
}
