// SPDX-License-Identifier: Apache-2.0
//
// Real attention inputs (tests/data/README.md): Q, K, V of layers of two models on real text,
// in float32, float16 and bfloat16, with GQA and causal masks. Every backend against the reference, and
// the reference against the outputs stored with them, which another program computed.
#include <criterion/criterion.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "conformance.h"
#include "tensor_file.h"
#include "tests/support/compare.h"
#include "tests/support/numeric.h"

#ifndef TESSERA_REAL_QKV
#error "the build names the file"
#endif

/* Reads one tensor of a layer into a dense array [.., .., .., ..] of the file's shape. */
static tsr_dtype read_tensor(const char *layer, const char *which, tsr_dense *into) {
  char spec[512];
  file_tensor t = {0};
  cli_message message = {0};
  int64_t dim[4] = {1, 1, 1, 1}, i;
  tsr_dtype dtype;
  const char *file = getenv("TSR_REAL_QKV"); /* when the tree is elsewhere than where it was built */
  snprintf(spec, sizeof spec, "%s:%s.%s", file ? file : TESSERA_REAL_QKV, layer, which);
  cr_assert(file_tensor_read(&t, spec, NULL, false, &message), "%s", spec);
  for (i = 0; i < t.rank && i < 4; ++i) dim[i] = t.shape[i];
  cr_assert(tsr_dense_create(into, dim[0], dim[1], dim[2], dim[3]));
  for (i = 0; i < t.count; ++i) into->x[i] = file_tensor_get(&t, i);
  dtype = t.dtype == FILE_F32 ? TSR_DTYPE_F32 : t.dtype == FILE_F16 ? TSR_DTYPE_F16 : TSR_DTYPE_BF16;
  file_tensor_free(&t);
  return dtype;
}

/* Largest |stored - computed| in roundings of the tensor's largest element. */
static double distance(const tsr_dense *stored, const tsr_dense *computed, tsr_dtype dtype) {
  double worst = 0;
  double unit = dtype == TSR_DTYPE_F32 ? 0x1p-24 : dtype == TSR_DTYPE_F16 ? 0x1p-11 : 0x1p-8;
  int64_t i;
  for (i = 0; i < tsr_dense_count(stored); ++i)
    worst = fmax(worst, fabs(stored->x[i] - computed->x[i]));
  return worst / (unit * tsr_dense_largest(computed));
}

static void check_layer(const char *layer, tsr_causal causal, uint32_t passes) {
  tsr_check_options options = {0};
  conform_count count = {0};
  char message[512] = "";
  tsr_case row = {0};
  tsr_inputs in;
  tsr_dense q, k, v, o, lse;
  tsr_results ref;
  tsr_dtype dtype = read_tensor(layer, "q", &q);
  read_tensor(layer, "k", &k);
  read_tensor(layer, "v", &v);
  read_tensor(layer, "o", &o);
  read_tensor(layer, "lse", &lse);
  row.name = layer, row.group = "real";
  row.batch = q.dim[0], row.heads_q = q.dim[1], row.heads_kv = k.dim[1];
  row.seq_q = q.dim[2], row.seq_k = k.dim[2], row.dim_qk = q.dim[3], row.dim_v = v.dim[3];
  row.causal = causal;
  cr_assert(tsr_inputs_create(&in, &row, dtype));
  tsr_dense_destroy(&in.q), tsr_dense_destroy(&in.k), tsr_dense_destroy(&in.v);
  in.q = q, in.k = k, in.v = v;

  cr_assert(tsr_backends_truth(NULL, &in, TSR_TRUTH_REF64, TSR_PASS_FORWARD, &ref, message,
                               sizeof message), "%s", message);
  cr_assert_eq(tsr_dense_count(&o), tsr_dense_count(&ref.out[TSR_OUTPUT_O]));
  /* Rounded once; the problem's scale is a float32, the file's was not: some more in float32. */
  cr_assert_leq(distance(&o, &ref.out[TSR_OUTPUT_O], dtype), dtype == TSR_DTYPE_F32 ? 8 : 1.01, "%s",
                layer);
  cr_assert_leq(distance(&lse, &ref.out[TSR_OUTPUT_LSE], TSR_DTYPE_F32), 8, "%s", layer);

  options.report = conform_report;
  options.user = &count;
  options.passes = passes;
  cr_assert(tsr_check_inputs(&options, &in, message, sizeof message), "%s", message);
  cr_assert_eq(count.failed, 0);
  cr_assert_gt(count.passed, 0);
  tsr_results_destroy(&ref);
  tsr_dense_destroy(&o);
  tsr_dense_destroy(&lse);
  tsr_inputs_destroy(&in);
}

static void check_all(uint32_t passes) {
  check_layer("minilm.l00", TSR_CAUSAL_NONE, passes);
  check_layer("minilm.l05", TSR_CAUSAL_NONE, passes);
  check_layer("smollm2.l07", TSR_CAUSAL_BOTTOM_RIGHT, passes);
  check_layer("smollm2.l22", TSR_CAUSAL_BOTTOM_RIGHT, passes);
}

Test(real, forward) { check_all(TSR_PASS_FORWARD); }

Test(real, backward) { check_all(TSR_PASS_FORWARD | TSR_PASS_BACKWARD); }
