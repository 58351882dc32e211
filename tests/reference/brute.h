// SPDX-License-Identifier: Apache-2.0
//
// The formulas of tessera.h once more, one score at a time and sharing nothing with the library:
// what the oracle's own addressing, masks and sums are compared with on random problems.
#ifndef TESSERA_TESTS_REFERENCE_BRUTE_H_
#define TESSERA_TESTS_REFERENCE_BRUTE_H_

#include "rig.h"

/* Used parts: rows of the tensors, and lengths. */
typedef struct brute_sequence {
  int64_t q0, sq, k0, sk;
} brute_sequence;
brute_sequence brute_sequence_of(const ref_rig *rig, int64_t b);

/* Score after step 3 of pair (i, j), and whether step 4 allows it. */
double brute_score(const ref_rig *rig, int64_t b, int64_t h, int64_t i, int64_t j);
int brute_allowed(const ref_rig *rig, int64_t b, int64_t h, int64_t i, int64_t j);

/* One output row: o[dim_v], LSE and maximum. Dropout's keep bits come from the backend's own call.
 */
void brute_row(const ref_rig *rig, int64_t b, int64_t h, int64_t i, const uint8_t *keep, double *o,
               double *lse, double *max);

#endif  // TESSERA_TESTS_REFERENCE_BRUTE_H_
