// SPDX-License-Identifier: Apache-2.0
// Suites of shapes (see suite.h).
#include "suite.h"

#include <string.h>

#define F16 TSR_DTYPE_F16
#define BF16 TSR_DTYPE_BF16

// Hidden size 2048, 16384 tokens.
static size_t prefill(bench_suite_row *rows) {
  static const int64_t kDims[] = {64, 128, 256}, kLengths[] = {1024, 4096, 16384};
  size_t n = 0;
  for (int d = 0; d < 3; ++d) {
    for (int causal = 0; causal < 2; ++causal) {
      for (int l = 0; l < 3; ++l) {
        const int64_t heads = 2048 / kDims[d], length = kLengths[l];
        rows[n++] = (bench_suite_row){BF16,   16384 / length, heads,    heads,
                                      length, length,         kDims[d], causal != 0};
      }
    }
  }
  return n;
}

// 64 features and 16 heads in float16, full attention, 16384 tokens.
static const bench_suite_row kShort[] = {{F16, 128, 16, 16, 128, 128, 64, false},
                                         {F16, 64, 16, 16, 256, 256, 64, false},
                                         {F16, 32, 16, 16, 512, 512, 64, false},
                                         {F16, 16, 16, 16, 1024, 1024, 64, false}};
// One query per sequence.
static const bench_suite_row kDecode[] = {{BF16, 1, 32, 8, 1, 16384, 128, false},
                                          {BF16, 1, 32, 8, 1, 131072, 128, false},
                                          {BF16, 16, 32, 8, 1, 8192, 128, false},
                                          {BF16, 64, 32, 8, 1, 4096, 128, false},
                                          {BF16, 128, 32, 8, 1, 8192, 128, false}};
static const bench_suite_row kFloat32[] = {{TSR_DTYPE_F32, 4, 16, 16, 4096, 4096, 64, true},
                                           {TSR_DTYPE_F32, 4, 16, 16, 4096, 4096, 64, false}};
// Grouped heads of a large model.
static const bench_suite_row kGrouped[] = {{BF16, 1, 64, 8, 8192, 8192, 128, true},
                                           {BF16, 1, 64, 8, 16384, 16384, 128, false},
                                           {BF16, 1, 64, 8, 32768, 32768, 128, true}};

size_t bench_suite(const char *name, bench_suite_row *rows) {
  static const struct {
    const char *name;
    const bench_suite_row *rows;
    size_t count;
  } kSuites[] = {{"short", kShort, sizeof kShort / sizeof kShort[0]},
                 {"decode", kDecode, sizeof kDecode / sizeof kDecode[0]},
                 {"float32", kFloat32, sizeof kFloat32 / sizeof kFloat32[0]},
                 {"grouped", kGrouped, sizeof kGrouped / sizeof kGrouped[0]}};
  if (strcmp(name, "prefill") == 0) return prefill(rows);
  for (size_t i = 0; i < sizeof kSuites / sizeof kSuites[0]; ++i) {
    if (strcmp(name, kSuites[i].name) != 0) continue;
    memcpy(rows, kSuites[i].rows, kSuites[i].count * sizeof *rows);
    return kSuites[i].count;
  }
  return 0;
}

const char *bench_suite_names(void) {
  return "prefill, short, decode, float32, grouped";
}
