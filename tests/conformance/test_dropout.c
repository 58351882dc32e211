// SPDX-License-Identifier: Apache-2.0
//
// Dropout: the mask call against a Philox written here from the paper, the same on every backend; and O
// against the mask: with V the identity, O is the matrix of dropped probabilities itself.
#include <criterion/criterion.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "conformance.h"
#include "tests/support/tensor.h"

/* Salmon et al., "Parallel random numbers: as easy as 1, 2, 3", SC 2011: one round is two products. */
static void philox(uint32_t c[4], uint32_t k0, uint32_t k1) {
  int round;
  for (round = 0; round < 10; ++round) {
    uint64_t a = (uint64_t)0xD2511F53u * c[0], b = (uint64_t)0xCD9E8D57u * c[2];
    uint32_t next[4] = {(uint32_t)(b >> 32) ^ c[1] ^ k0, (uint32_t)b, (uint32_t)(a >> 32) ^ c[3] ^ k1,
                        (uint32_t)a};
    memcpy(c, next, sizeof next);
    k0 += 0x9E3779B9u, k1 += 0xBB67AE85u;
  }
}

static bool keep(uint64_t seed, uint64_t offset, float p, int64_t head, int64_t i, int64_t j) {
  uint32_t key[4] = {(uint32_t)offset, (uint32_t)(offset >> 32), 0, 0};
  uint32_t word[4] = {(uint32_t)(j / 4), (uint32_t)i, (uint32_t)head, (uint32_t)((uint64_t)head >> 32)};
  philox(key, (uint32_t)seed, (uint32_t)(seed >> 32));
  philox(word, key[0], key[1]);
  return word[j % 4] >= (uint64_t)((double)p * 4294967296.0);
}

Test(dropout, philox_known_answers) {
  uint32_t zero[4] = {0, 0, 0, 0}, ones[4] = {~0u, ~0u, ~0u, ~0u};
  uint32_t pi[4] = {0x243f6a88u, 0x85a308d3u, 0x13198a2eu, 0x03707344u};
  philox(zero, 0, 0);
  philox(ones, ~0u, ~0u);
  philox(pi, 0xa4093822u, 0x299f31d0u);
  cr_assert(zero[0] == 0x6627e8d5u && zero[1] == 0xe169c58du && zero[2] == 0xbc57ac4cu &&
            zero[3] == 0x9b00dbd8u);
  cr_assert(ones[0] == 0x408f276du && ones[1] == 0x41c83b0eu && ones[2] == 0xa20bc7c6u &&
            ones[3] == 0x6d5451fdu);
  cr_assert(pi[0] == 0xd16cfe09u && pi[1] == 0x94fdccebu && pi[2] == 0x5001e420u &&
            pi[3] == 0x24126ea1u);
}

static tsr_context *context_of(const char *backend) {
  tsr_context_options options = TSR_CONTEXT_OPTIONS_INIT;
  tsr_context *context = NULL;
  options.backend = backend;
  cr_assert_eq(tsr_context_create(&context, &options), TSR_STATUS_SUCCESS);
  return context;
}

/* Writes the mask into a guarded strided buffer and compares every element. */
static void check_mask(const char *backend, tsr_dropout_problem d, tsr_pattern pattern) {
  tsr_context *context = context_of(backend);
  const tsr_device device = tsr_backends_device(context, backend, 0);
  int64_t dim[4] = {d.batch, d.heads, d.seq_q, d.seq_k}, b, h, i, j, kept = 0, total = 0, where = 0;
  double *row = (double *)calloc((size_t)d.seq_k + 1, sizeof(double));
  tsr_buffer mask;
  if (!tsr_buffer_create_on(&mask, device, TSR_DTYPE_U8, dim, pattern, false, 0)) {
    cr_assert(pattern >= TSR_PATTERN_HUGE_BATCH, "%s", tsr_block_reason());
    free(row);
    tsr_context_destroy(context);
    return; /* no address space for the huge strides */
  }
  d.struct_size = sizeof d;
  d.mask = mask.layout;
  cr_assert_eq(tsr_dropout_mask(context, device, &d, (uint8_t *)tsr_buffer_data(&mask), NULL), 0,
               "%s: %s", backend, tsr_last_message());
  if (mask.block.gpu) cr_assert(tsr_gpu_synchronize(mask.block.gpu), "%s", tsr_gpu_error());
  cr_assert(tsr_block_intact(&mask.block, &where), "%s: wrote byte %lld", backend,
            (long long)where);
  for (b = 0; b < d.batch; ++b)
    for (h = 0; h < d.heads; ++h)
      for (i = 0; i < d.seq_q; ++i) {
        tsr_buffer_read_row(&mask, b, h, i, row);
        for (j = 0; j < d.seq_k; ++j) {
          bool expected = keep(d.seed, d.offset, d.dropout, b * d.heads + h, i, j);
          cr_assert_eq(row[j], expected, "%s: b %lld h %lld i %lld j %lld: %g", backend,
                       (long long)b, (long long)h, (long long)i, (long long)j, row[j]);
          kept += expected;
          total++;
        }
      }
  cr_assert(tsr_buffer_gaps_intact(&mask, &where), "%s: wrote into gap %lld", backend,
            (long long)where);
  if (total > 20000) /* five standard deviations */
    cr_assert_float_eq((double)kept / (double)total, 1 - (double)d.dropout,
                       5 * sqrt(0.25 / (double)total));
  tsr_buffer_destroy(&mask);
  tsr_context_destroy(context);
  free(row);
}

Test(dropout, mask_is_the_specified_function) {
  static const float probabilities[] = {0, 0.1f, 0.5f, 0.999f, 1};
  const char *names[16];
  int32_t n, count = tsr_backends_list(NULL, NULL, names, 16);
  size_t p;
  for (n = 0; n < count; ++n) {
    for (p = 0; p < 5; ++p) {
      tsr_dropout_problem d = {0};
      d.batch = 3, d.heads = 5, d.seq_q = 33, d.seq_k = 131;
      d.dropout = probabilities[p];
      d.seed = UINT64_C(0x9e3779b97f4a7c15), d.offset = UINT64_C(1) << 63 | p;
      check_mask(names[n], d, TSR_PATTERN_BHSD);
      check_mask(names[n], d, TSR_PATTERN_BSHD);
      check_mask(names[n], d, TSR_PATTERN_BHSD_GAPS);
      check_mask(names[n], d, TSR_PATTERN_TRANSPOSED);
    }
    /* Offsets of elements past 2^31: https://github.com/Dao-AILab/flash-attention/issues/1054. */
    tsr_dropout_problem far = {0};
    far.batch = 1, far.heads = 1, far.seq_q = 3, far.seq_k = 29, far.dropout = 0.1f, far.seed = 4;
    check_mask(names[n], far, TSR_PATTERN_HUGE_SEQ);
    tsr_dropout_problem none = {0};
    none.batch = 2, none.heads = 2, none.seq_q = 0, none.seq_k = 9, none.dropout = 0.5f;
    check_mask(names[n], none, TSR_PATTERN_BHSD);
  }
}

/* O with V = I has a zero exactly where the mask has one. */
static int check_o(const char *backend, tsr_dtype dtype, bool packed) {
  enum { BATCH = 2, HEADS = 4, SQ = 37, SK = 96 };
  tsr_case row = {0};
  tsr_inputs in;
  tsr_results r;
  bool refused;
  int64_t b, h, i, j;
  row.name = "identity", row.group = "dropout";
  row.batch = BATCH, row.heads_q = HEADS, row.heads_kv = 2, row.seq_q = SQ, row.seq_k = SK;
  row.dim_qk = 16, row.dim_v = SK;
  row.dropout = 0.25f, row.drop_seed = UINT64_C(0x123456789abcdef0), row.drop_offset = 77;
  row.packed_q = row.packed_k = packed;
  cr_assert(tsr_inputs_create(&in, &row, dtype));
  for (b = 0; b < BATCH; ++b)
    for (h = 0; h < 2; ++h)
      for (j = 0; j < SK; ++j)
        for (i = 0; i < SK; ++i) tsr_dense_row(&in.v, b, h, j)[i] = i == j;
  if (!conform_run(NULL, backend, &in, &row, TSR_PASS_FORWARD, &r, &refused)) {
    tsr_inputs_destroy(&in);
    return !refused;
  }
  for (b = 0; b < BATCH; ++b)
    for (h = 0; h < HEADS; ++h)
      for (i = 0; i < SQ; ++i)
        for (j = 0; j < SK; ++j) {
          double p = tsr_dense_row(&r.out[TSR_OUTPUT_O], b, h, i)[j];
          bool expected = keep(row.drop_seed, row.drop_offset, row.dropout, b * HEADS + h, i, j);
          cr_assert_eq(p != 0, expected, "%s %s: b %lld h %lld i %lld j %lld: %g", backend,
                       tsr_check_dtype_name(dtype), (long long)b, (long long)h, (long long)i,
                       (long long)j, p);
        }
  tsr_results_destroy(&r);
  tsr_inputs_destroy(&in);
  return 0;
}

Test(dropout, output_follows_the_mask) {
  static const tsr_dtype dtypes[] = {TSR_DTYPE_F32, TSR_DTYPE_F16, TSR_DTYPE_BF16};
  const char *names[16];
  int32_t n, count = tsr_backends_list(NULL, NULL, names, 16);
  int failures = 0;
  size_t d;
  for (n = 0; n < count; ++n)
    for (d = 0; d < 3; ++d)
      failures += check_o(names[n], dtypes[d], false) + check_o(names[n], dtypes[d], true);
  cr_assert_eq(failures, 0);
}

/* Seed and offset in memory mean the same as by value. */
Test(dropout, state_in_memory) {
  const char *names[16];
  int32_t n, count = tsr_backends_list(NULL, NULL, names, 16);
  for (n = 0; n < count; ++n) {
    tsr_case row = *tsr_case_find("dropout");
    const tsr_device device = tsr_backends_device(NULL, names[n], 0);
    tsr_block state;
    tsr_inputs in;
    tsr_setup setup;
    tsr_results by_value, by_pointer;
    tsr_plan *plan = NULL;
    char why[256];
    cr_assert(tsr_inputs_create(&in, &row, TSR_DTYPE_F32));
    cr_assert(tsr_setup_create_on(&setup, device, &in, &row, TSR_DTYPE_F32, 1, why, sizeof why));
    cr_assert(tsr_block_create_on(&state, device, 16, 8, false), "%s", tsr_block_reason());
    memcpy(state.data, (const uint64_t[]){row.drop_seed, row.drop_offset}, 16);
    if (tsr_backends_plan(&plan, NULL, &setup, names[n], NULL) == TSR_STATUS_SUCCESS) {
      cr_assert_eq(tsr_setup_run(&setup, plan, NULL), 0, "%s", tsr_setup_message(&setup));
      cr_assert(tsr_setup_gather(&setup, &by_value, why, sizeof why), "%s", why);
      tsr_setup_reset(&setup);
      setup.args.seed = setup.args.offset = 0;
      setup.args.rng_state = (const uint64_t *)(const void *)state.data;
      cr_assert_eq(tsr_setup_run(&setup, plan, NULL), 0, "%s", tsr_setup_message(&setup));
      cr_assert(tsr_setup_gather(&setup, &by_pointer, why, sizeof why), "%s", why);
      cr_assert(conform_equal(names[n], &by_value, &by_pointer));
      tsr_results_destroy(&by_value);
      tsr_results_destroy(&by_pointer);
    }
    tsr_plan_destroy(plan);
    tsr_block_destroy(&state);
    tsr_setup_destroy(&setup);
    tsr_inputs_destroy(&in);
  }
}
