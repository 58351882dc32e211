// SPDX-License-Identifier: Apache-2.0
// dK and dV of a few keys in double precision, for problems too large to compute a whole head of:
// from Q, K, V, dO and the O and LSE of the run (covered by the check of its forward pass),
//   P = e^(S - LSE), dS = P (dO V' - rowsum(dO O)), dV = P' dO, dK = scale dS' Q
// beside the same as standard attention computes it, with P, dP and dS stored in the tensors' type
// and sums in float32: the baseline that the bound follows from.
#ifndef TESSERA_BENCH_ORACLE_KEYS_H_
#define TESSERA_BENCH_ORACLE_KEYS_H_

#include <stdbool.h>
#include <stdint.h>

#include "oracle.h"

enum { ORACLE_KEYS = 16 };

// Keys [first, first + count) of KV head (b, g), count <= ORACLE_KEYS: sums over all queries of the
// group. Each output is [count, D]. False when memory does not suffice.
typedef struct oracle_keys {
  double *dk, *dv, *naive_dk, *naive_dv;
} oracle_keys;
bool oracle_keys_compute(const oracle_run *run, int64_t b, int64_t g, int64_t first, int64_t count,
                         oracle_keys *out);

#endif  // TESSERA_BENCH_ORACLE_KEYS_H_
