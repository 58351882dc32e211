// SPDX-License-Identifier: Apache-2.0
// Named lists of shapes, those that published tables of attention kernels have, so that figures can
// be laid beside them. Batch and heads follow from 2048 features and 16384 tokens unless a row says
// otherwise.
#ifndef TESSERA_BENCH_SUITE_H_
#define TESSERA_BENCH_SUITE_H_

#include <stdbool.h>
#include <stddef.h>

#include <tessera/tessera.h>

typedef struct bench_suite_row {
  tsr_dtype dtype;  // of the published figure
  int64_t batch, heads_q, heads_kv, seq_q, seq_k, dim;
  bool causal;
} bench_suite_row;

enum { BENCH_SUITE_ROWS_MAX = 24 };

// Rows of a suite; 0: no such suite. rows has room for BENCH_SUITE_ROWS_MAX.
size_t bench_suite(const char *name, bench_suite_row *rows);

// Every name, separated by ", ".
const char *bench_suite_names(void);

#endif  // TESSERA_BENCH_SUITE_H_
