// SPDX-License-Identifier: Apache-2.0
//
// Validation of a run: pointers required, refused, misaligned or overlapping; lengths, offsets and
// page numbers in host memory; workspace and stream.
#include <stdlib.h>

#include "api/src/validate.h"
#include "tests/support/fake_backend.h"
#include "tests/unit/expect.h"

static const tsr_device host = {TSR_DEVICE_HOST, 0};
static const tsr_device gpu = {TSR_DEVICE_CUDA, 0};

/* Memory for every tensor of the small problems below, far enough apart. */
static float memory[32][512] __attribute__((aligned(64)));
static tsr_args checked;

static tsr_resolved resolve(tsr_problem p, tsr_pass pass, tsr_device device) {
  tsr_problem valid;
  tsr_resolved r;
  const tsr_status status = tsri_validate_problem(&p, &valid);
  cr_assert_eq(status, TSR_STATUS_SUCCESS, "%s", tsr_last_message());
  tsri_resolve_pass(&valid, device, pass, &r);
  return r;
}

static tsr_args forward_args(void) {
  tsr_args a = TSR_ARGS_INIT;
  a.q = memory[0];
  a.k = memory[1];
  a.v = memory[2];
  a.o = memory[3];
  return a;
}

static tsr_args backward_args(void) {
  tsr_args a = forward_args();
  a.lse = memory[4];
  a.dout = memory[5];
  a.dq = memory[6];
  a.dk = memory[7];
  a.dv = memory[8];
  return a;
}

/* problem: statements on p. change: statements on a. */
#define RUN(check, pass, args, problem, change)                   \
  do {                                                            \
    tsr_problem p = fake_problem();                               \
    if ((pass) == TSR_PASS_BACKWARD) p = fake_problem_backward(); \
    problem;                                                      \
    const tsr_resolved r = resolve(p, pass, host);                \
    tsr_args a = args;                                            \
    change;                                                       \
    check(tsri_validate_run(&r, 0, &a, &checked));                \
  } while (0)
#define GOOD(problem, change) RUN(EXPECT_OK, TSR_PASS_FORWARD, forward_args(), problem, change)
#define BAD(text, problem, change)                                \
  do {                                                            \
    tsr_problem p = fake_problem();                               \
    problem;                                                      \
    const tsr_resolved r = resolve(p, TSR_PASS_FORWARD, host);    \
    tsr_args a = forward_args();                                  \
    change;                                                       \
    EXPECT_INVALID(text, tsri_validate_run(&r, 0, &a, &checked)); \
  } while (0)
#define BAD_BACKWARD(text, problem, change)                       \
  do {                                                            \
    tsr_problem p = fake_problem_backward();                      \
    problem;                                                      \
    const tsr_resolved r = resolve(p, TSR_PASS_BACKWARD, host);   \
    tsr_args a = backward_args();                                 \
    change;                                                       \
    EXPECT_INVALID(text, tsri_validate_run(&r, 0, &a, &checked)); \
  } while (0)
#define NOTHING (void)0

Test(validate_run, tensors_required) {
  GOOD(NOTHING, NOTHING);
  RUN(EXPECT_OK, TSR_PASS_BACKWARD, backward_args(), NOTHING, NOTHING);
  BAD("tsr_args.struct_size: found 4", NOTHING, a.struct_size = 4);
  BAD("q: found NULL", NOTHING, a.q = NULL);
  BAD("k: found NULL", NOTHING, a.k = NULL);
  BAD("v: found NULL", NOTHING, a.v = NULL);
  BAD("o: found NULL, accepted a pointer to 768 bytes", NOTHING, a.o = NULL);
  BAD("lse: found NULL", p.lse.dtype = TSR_DTYPE_F32, NOTHING);
  BAD("max_logit: found NULL", p.max_logit.dtype = TSR_DTYPE_F32, NOTHING);
  BAD("bias: found NULL", p.bias.dtype = TSR_DTYPE_F32, NOTHING);
  BAD("mask: found NULL", p.mask.dtype = TSR_DTYPE_U8, NOTHING);
  BAD("block_mask: found NULL", p.block_mask.dtype = TSR_DTYPE_U8;
      p.block_q = p.block_k = 2, NOTHING);
  BAD("alibi: found NULL", p.alibi = TSR_ALIBI_PER_HEAD, NOTHING);
  BAD("sink: found NULL", p.sink = 1, NOTHING);
  BAD_BACKWARD("lse: found NULL", NOTHING, a.lse = NULL);
  BAD_BACKWARD("dout: found NULL", NOTHING, a.dout = NULL);
  BAD_BACKWARD("dq: found NULL", NOTHING, a.dq = NULL);
  BAD_BACKWARD("dk: found NULL", NOTHING, a.dk = NULL);
  BAD_BACKWARD("dv: found NULL", NOTHING, a.dv = NULL);
  BAD_BACKWARD("dlse: found NULL", p.dlse.dtype = TSR_DTYPE_F32, NOTHING);
  BAD_BACKWARD("dbias: found NULL", p.bias.dtype = p.dbias.dtype = TSR_DTYPE_F32,
               a.bias = memory[9]);
  BAD_BACKWARD("dsink: found NULL", p.sink = p.dsink = 1, a.sink = memory[9]);
  BAD("q: found 1152921504606847360 bytes from", p.q.order = TSR_ORDER_STRIDED;
      p.q.stride[0] = INT64_C(1) << 58; p.q.stride[1] = 24; p.q.stride[2] = 8;
      p.q.stride[3] = 1, a.q = (const void *)(UINTPTR_MAX - 4095));
  /* An empty tensor needs no memory. */
  GOOD(p.batch = 0, a.q = a.k = a.v = NULL; a.o = NULL);
  GOOD(p.seq_q = 0, a.q = NULL; a.o = NULL);
}

/* What is given for empty tensors and arrays may lie anywhere: no backend gets to see it. */
Test(validate_run, empty_memory_has_no_address) {
  GOOD(p.seq_k = 0, NOTHING);
  cr_assert(!checked.k && !checked.v);
  cr_assert(checked.q == memory[0] && checked.o == memory[3]);
  RUN(EXPECT_OK, TSR_PASS_BACKWARD, backward_args(), p.seq_k = 0, NOTHING);
  cr_assert(!checked.k && !checked.v && !checked.dk && !checked.dv);
  cr_assert(checked.dq == memory[6] && checked.lse == memory[4]);
  GOOD(p.heads_q = p.heads_kv = 0; p.sink = 1; p.alibi = TSR_ALIBI_PER_HEAD,
       a.sink = memory[9]; a.alibi = memory[10]);
  cr_assert(!checked.q && !checked.o && !checked.sink && !checked.alibi);
  GOOD(p.batch = 0; p.arrays = TSR_ARRAY_USED_K | TSR_ARRAY_DIAGONAL; p.causal = TSR_CAUSAL_EXPLICIT,
       a.used_k = memory[9]; a.diagonal = memory[10]);
  cr_assert(!checked.used_k && !checked.diagonal);
  /* But what is broadcast along an axis of nothing has elements. */
  RUN(EXPECT_OK, TSR_PASS_BACKWARD, backward_args(),
      p.batch = 0; p.bias.dtype = p.dbias.dtype = TSR_DTYPE_F32; p.bias.order = p.dbias.order = TSR_ORDER_STRIDED;
      p.bias.stride[1] = p.dbias.stride[1] = 15; p.bias.stride[2] = p.dbias.stride[2] = 5;
      p.bias.stride[3] = p.dbias.stride[3] = 1, a.bias = memory[9]; a.dbias = memory[10]);
  cr_assert(checked.dbias == memory[10] && !checked.q);
  BAD_BACKWARD("dbias: found NULL, accepted a pointer to ", p.batch = 0; p.bias.dtype = p.dbias.dtype = TSR_DTYPE_F32;
               p.bias.order = p.dbias.order = TSR_ORDER_STRIDED; p.bias.stride[1] = p.dbias.stride[1] = 15;
               p.bias.stride[2] = p.dbias.stride[2] = 5; p.bias.stride[3] = p.dbias.stride[3] = 1, a.bias = memory[9]);
  /* Aligned and wanted it has to be nevertheless. */
  BAD("k: found 0x", p.seq_k = 0, a.k = (const char *)memory[1] + 1);
  BAD("lse: found a pointer", p.seq_q = 0, a.lse = memory[4]);
}

Test(validate_run, given_needlessly) {
  void *x = memory[10];
  BAD("bias: found a pointer, accepted NULL", NOTHING, a.bias = x);
  BAD("mask: found a pointer", NOTHING, a.mask = x);
  BAD("block_mask: found a pointer", NOTHING, a.block_mask = x);
  BAD("alibi: found a pointer", NOTHING, a.alibi = x);
  BAD("sink: found a pointer", NOTHING, a.sink = x);
  BAD("q_scale: found a pointer", NOTHING, a.q_scale = x);
  BAD("k_scale: found a pointer", NOTHING, a.k_scale = x);
  BAD("v_scale: found a pointer", NOTHING, a.v_scale = x);
  BAD("cu_q: found a pointer", NOTHING, a.cu_q = x);
  BAD("cu_k: found a pointer", NOTHING, a.cu_k = x);
  BAD("used_q: found a pointer", NOTHING, a.used_q = x);
  BAD("used_k: found a pointer", NOTHING, a.used_k = x);
  BAD("left_pad_q: found a pointer", NOTHING, a.left_pad_q = x);
  BAD("left_pad_k: found a pointer", NOTHING, a.left_pad_k = x);
  BAD("prefix: found a pointer", NOTHING, a.prefix = x);
  BAD("diagonal: found a pointer", NOTHING, a.diagonal = x);
  BAD("page_table: found a pointer", NOTHING, a.page_table = x);
  BAD("rng_state: found a pointer", NOTHING, a.rng_state = x);
  BAD("lse: found a pointer", NOTHING, a.lse = x);
  BAD("max_logit: found a pointer", NOTHING, a.max_logit = x);
  BAD("dout: found a pointer", NOTHING, a.dout = x);
  BAD("dlse: found a pointer", NOTHING, a.dlse = x);
  BAD("dq: found a pointer", NOTHING, a.dq = x);
  BAD("dk: found a pointer", NOTHING, a.dk = x);
  BAD("dv: found a pointer", NOTHING, a.dv = x);
  BAD("dbias: found a pointer", NOTHING, a.dbias = x);
  BAD("dsink: found a pointer", NOTHING, a.dsink = x);
  BAD_BACKWARD("max_logit: found a pointer", p.max_logit.dtype = TSR_DTYPE_F32, a.max_logit = x);
  BAD("seed, offset: found 7, 0 with rng_state", p.dropout = 0.5f, a.rng_state = x; a.seed = 7);
  GOOD(p.dropout = 0.5f, a.rng_state = x);
  GOOD(p.dropout = 0.5f, a.seed = 7; a.offset = 9);
}

Test(validate_run, alignment) {
  char *base = (char *)memory[10];
  BAD("q: found", p.q.alignment = 16, a.q = base + 4);
  GOOD(p.q.alignment = 16, a.q = base + 16);
  BAD("accepted multiples of 4 bytes", NOTHING, a.q = base + 2);
  BAD("sink: found", p.sink = 1, a.sink = (float *)(void *)(base + 1));
  BAD("used_k: found", p.arrays = TSR_ARRAY_USED_K;
      p.index_dtype = TSR_DTYPE_I64, a.used_k = base + 4);
  BAD("rng_state: found", p.dropout = 0.5f, a.rng_state = (uint64_t *)(void *)(base + 4));
}

Test(validate_run, overlap) {
  BAD("o: found memory at", NOTHING, a.o = memory[0]);
  BAD("overlaps q", NOTHING, a.o = memory[0] + 191);
  GOOD(NOTHING, a.o = memory[0] + 192);
  BAD("overlaps v", NOTHING, a.o = memory[2] - 4);
  GOOD(NOTHING, a.k = a.v = a.q); /* inputs may share */
  BAD("overlaps o", p.lse.dtype = TSR_DTYPE_F32, a.lse = memory[3]);
  BAD("lse: found memory at", p.lse.dtype = TSR_DTYPE_F32, a.lse = (float *)memory[1]);
  BAD("overlaps sink", p.sink = 1, a.sink = memory[3] + 3);
  BAD("overlaps used_k", p.arrays = TSR_ARRAY_USED_K, a.used_k = memory[3] + 4);
  BAD_BACKWARD("dk: found memory at", NOTHING, a.dk = a.dq);
  BAD_BACKWARD("dsink: found memory at", p.sink = p.dsink = 1, a.sink = memory[9];
               a.dsink = memory[9]);
  /* dq, dk, dv as slices of one [B, S, 3, H, D] tensor. */
  tsr_problem p = fake_problem_backward();
  p.heads_kv = 4;
  p.seq_k = 3;
  tsr_layout *slices[] = {&p.dq, &p.dk, &p.dv};
  for (int i = 0; i < 3; ++i) {
    slices[i]->order = TSR_ORDER_STRIDED;
    slices[i]->stride[0] = 3 * 96;
    slices[i]->stride[1] = 8;
    slices[i]->stride[2] = 96;
    slices[i]->stride[3] = 1;
  }
  static float packed[2 * 3 * 96];
  const tsr_resolved r = resolve(p, TSR_PASS_BACKWARD, host);
  tsr_args a = backward_args();
  a.dq = packed;
  a.dk = packed + 32;
  a.dv = packed + 64;
  EXPECT_OK(tsri_validate_run(&r, 0, &a, &checked));
  a.dv = packed + 63;
  EXPECT_INVALID("overlaps", tsri_validate_run(&r, 0, &a, &checked));
}

Test(validate_run, workspace_and_stream) {
  const tsr_resolved r = resolve(fake_problem(), TSR_PASS_FORWARD, host);
  tsr_args a = forward_args();
  EXPECT_OK(tsri_validate_run(&r, 256, &a, &checked));
  a.workspace_size = 256;
  EXPECT_INVALID("workspace: found NULL with workspace_size 256",
                 tsri_validate_run(&r, 256, &a, &checked));
  a.workspace = memory[11];
  EXPECT_OK(tsri_validate_run(&r, 256, &a, &checked));
  EXPECT_INVALID("workspace_size: found 256, accepted 257",
                 tsri_validate_run(&r, 257, &a, &checked));
  a.workspace = memory[11] + 1;
  EXPECT_INVALID("workspace: found", tsri_validate_run(&r, 256, &a, &checked));
  a.workspace = memory[0];
  EXPECT_INVALID("workspace: found", tsri_validate_run(&r, 256, &a, &checked));
  a.workspace = NULL;
  a.workspace_size = 0;
  a.stream = memory;
  EXPECT_INVALID("stream: found", tsri_validate_run(&r, 0, &a, &checked));
  const tsr_resolved on_gpu = resolve(fake_problem(), TSR_PASS_FORWARD, gpu);
  EXPECT_OK(tsri_validate_run(&on_gpu, 0, &a, &checked));
}

/* Both index types. */
static const void *indices(tsr_dtype dtype, int n, const int64_t *values, int64_t *store) {
  for (int i = 0; i < n; ++i) {
    if (dtype == TSR_DTYPE_I64) {
      store[i] = values[i];
    } else {
      ((int32_t *)(void *)store)[i] = (int32_t)values[i];
    }
  }
  return store;
}
#define INDICES(n, ...) \
  indices(p.index_dtype, n, (const int64_t[]){__VA_ARGS__}, (int64_t *)store[stored++ % 8])

static int64_t store[8][8];
static int stored;

Test(validate_run, offsets) {
  for (int wide = 0; wide < 2; ++wide) {
    const tsr_dtype index = wide ? TSR_DTYPE_I64 : TSR_DTYPE_I32;
#define CU_Q                 \
  p.index_dtype = index;     \
  p.arrays = TSR_ARRAY_CU_Q; \
  p.total_q = 6;             \
  p.seq_q = 4
    GOOD(CU_Q, a.cu_q = INDICES(3, 0, 3, 6));
    GOOD(CU_Q, a.cu_q = INDICES(3, 1, 1, 5)); /* rows outside every slot, an empty slot */
    BAD("cu_q[0]: found -1", CU_Q, a.cu_q = INDICES(3, -1, 3, 6));
    BAD("cu_q[1]: found 2, accepted 3 or more", CU_Q, a.cu_q = INDICES(3, 3, 2, 6));
    BAD("cu_q[2]: found 7, accepted at most 6 rows", CU_Q, a.cu_q = INDICES(3, 0, 3, 7));
    BAD("cu_q[2]: found a sequence of 5 rows, accepted at most seq_q = 4", CU_Q,
        a.cu_q = INDICES(3, 0, 1, 6));
    BAD("cu_q: found NULL", CU_Q, NOTHING);
#define CU_K                 \
  p.index_dtype = index;     \
  p.arrays = TSR_ARRAY_CU_K; \
  p.total_k = 6;             \
  p.seq_k = 0
    GOOD(CU_K, a.cu_k = INDICES(3, 0, 0, 6));
    BAD("cu_k[1]: found 9", CU_K, a.cu_k = INDICES(3, 0, 9, 9));
#define USED             \
  p.index_dtype = index; \
  p.arrays = TSR_ARRAY_USED_K | TSR_ARRAY_LEFT_PAD_K
    GOOD(USED, a.used_k = INDICES(2, 5, 0); a.left_pad_k = INDICES(2, 0, 5));
    BAD("used_k[0]: found 6, accepted 0 .. 5", USED, a.used_k = INDICES(2, 6, 0);
        a.left_pad_k = INDICES(2, 0, 0));
    BAD("used_k[1]: found 2, accepted 0 .. 1", USED, a.used_k = INDICES(2, 5, 2);
        a.left_pad_k = INDICES(2, 0, 4));
    BAD("used_k[1]: found -1", USED, a.used_k = INDICES(2, 5, -1); a.left_pad_k = INDICES(2, 0, 0));
    BAD("left_pad_k[1]: found 6, accepted 0 .. 5, its slot", USED, a.used_k = INDICES(2, 5, 0);
        a.left_pad_k = INDICES(2, 0, 6));
    BAD("left_pad_k[0]: found -1", USED, a.used_k = INDICES(2, 5, 0);
        a.left_pad_k = INDICES(2, -1, 0));
    BAD("left_pad_q[0]: found 4", p.index_dtype = index;
        p.arrays = TSR_ARRAY_LEFT_PAD_Q, a.left_pad_q = INDICES(2, 4, 0));
    BAD("used_q[1]: found 4", p.index_dtype = index;
        p.arrays = TSR_ARRAY_USED_Q, a.used_q = INDICES(2, 3, 4));
    /* Packed and used: the slot is what the offsets leave. */
    BAD("used_q[1]: found 3, accepted 0 .. 2", CU_Q;
        p.arrays |= TSR_ARRAY_USED_Q, a.cu_q = INDICES(3, 0, 4, 6); a.used_q = INDICES(2, 4, 3));
    BAD("prefix[1]: found -1", p.index_dtype = index;
        p.arrays = TSR_ARRAY_PREFIX, a.prefix = INDICES(2, 9, -1));
    GOOD(p.index_dtype = index; p.arrays = TSR_ARRAY_DIAGONAL;
         p.causal = TSR_CAUSAL_EXPLICIT, a.diagonal = INDICES(2, -3, 9));
  }
  const int64_t far[2] = {0, INT64_MIN};
  BAD("diagonal[1]: found -9223372036854775808", p.index_dtype = TSR_DTYPE_I64;
      p.arrays = TSR_ARRAY_DIAGONAL; p.causal = TSR_CAUSAL_EXPLICIT, a.diagonal = far);
}

Test(validate_run, page_table) {
#define PAGED                  \
  p.seq_k = 0;                 \
  p.arrays = TSR_ARRAY_USED_K; \
  p.page_size = 2;             \
  p.num_pages = 10;            \
  p.max_pages = 3
  /* Row 0 needs two pages, row 1 none; the other entries may be anything. */
  GOOD(PAGED, a.used_k = INDICES(2, 3, 0); a.page_table = INDICES(6, 9, 0, -7, 99, 99, 99));
  BAD("page_table[0][1]: found 10, accepted 0 .. num_pages - 1 = 9", PAGED,
      a.used_k = INDICES(2, 3, 0);
      a.page_table = INDICES(6, 9, 10, -7, 99, 99, 99));
  BAD("page_table[1][0]: found -1", PAGED, a.used_k = INDICES(2, 3, 1);
      a.page_table = INDICES(6, 9, 0, 0, -1, 0, 0));
  BAD("used_k[0]: found 7, accepted 0 .. 6", PAGED, a.used_k = INDICES(2, 7, 1);
      a.page_table = INDICES(6, 0, 0, 0, 0, 0, 0));
  /* Left padding skips pages. */
  GOOD(PAGED; p.arrays |= TSR_ARRAY_LEFT_PAD_K, a.used_k = INDICES(2, 2, 0);
       a.left_pad_k = INDICES(2, 3, 0); a.page_table = INDICES(6, -1, 0, 0, -1, -1, -1));
  BAD("page_table[0][2]: found -1", PAGED;
      p.arrays |= TSR_ARRAY_LEFT_PAD_K, a.used_k = INDICES(2, 2, 0);
      a.left_pad_k = INDICES(2, 3, 0); a.page_table = INDICES(6, 0, 0, -1, -1, -1, -1));
  GOOD(PAGED; p.page_table_stride = 4, a.used_k = INDICES(2, 5, 5);
       a.page_table = INDICES(7, 0, 1, 2, -1, 3, 4, 5));
  BAD("page_table: found NULL", PAGED, a.used_k = INDICES(2, 3, 0));
}

/* Memory that the host may not read is not read. */
Test(validate_run, device_arrays_are_not_read) {
  tsr_problem p = fake_problem();
  p.arrays = TSR_ARRAY_CU_Q;
  p.total_q = 6;
  const tsr_resolved r = resolve(p, TSR_PASS_FORWARD, gpu);
  tsr_args a = forward_args();
  a.cu_q = (const void *)(uintptr_t)64;
  EXPECT_OK(tsri_validate_run(&r, 0, &a, &checked));
}
