// SPDX-License-Identifier: Apache-2.0
// The check that precedes every timing: blocks of the result against the backend "reference" in
// double precision, with the bound that standard attention in the same type sets.
#ifndef TESSERA_BENCH_ORACLE_H_
#define TESSERA_BENCH_ORACLE_H_

#include <stdbool.h>
#include <stddef.h>

#include "accuracy.h"
#include "tensors.h"

// Tensors of a run that is to be checked.
typedef struct oracle_run {
  tsr_context *context;
  const tsr_problem *problem;  // as planned
  uint64_t seed;
  const bench_tensor *q, *k, *v, *o, *lse;
  const bench_tensor *dout, *dq, *dk, *dv;  // backward only, else NULL
} oracle_run;

typedef struct oracle_result {
  const char *extent;  // what was compared
  const char *worst;   // output with the largest ratio
  double max_error, rms_error, ratio;
} oracle_result;

// Compares O and LSE (forward), or dQ, dK, dV (backward). Small problems are compared whole; of
// large ones rows at the start, middle and end of the first and last head, or one KV head.
// False when the oracle could not run; message says why.
bool oracle_check(const oracle_run *run, tsr_pass pass, oracle_result *result, char *message,
                  size_t capacity);

#endif  // TESSERA_BENCH_ORACLE_H_
