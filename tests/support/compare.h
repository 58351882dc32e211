// SPDX-License-Identifier: Apache-2.0
//
// Errors and their bounds. An error is measured element by element against the reference: infinities
// must agree in sign, a NaN on one side only is a failure, and NaN on both sides is accepted only where
// the case asks for it. The bound comes from the baseline's own error and the constants of dtype.def:
//   max|x - ref64| <= 2 max|naive - ref64| + (max_slack u + S 2^-24) R
//   rms(x - ref64) <= (1 + 2 / sqrt n) (rms_factor rms(naive - ref64) + rms_slack u rms(ref64))
// both plus 2^-120, where float32 ends. u is the roundoff of the output's dtype, R the largest |ref64|
// (at least 1 for LSE, a logarithm: its absolute error is what a merge sees). S is the largest |LSE|,
// standing for the scores: a float32 score s is off by about 2^-24 |s|, and its exponential by that
// much relatively. The factor of the RMS is the spread of an RMS over n different elements. Where few
// elements carry the baseline's error see neighbours.h.
#ifndef TESSERA_TESTS_SUPPORT_COMPARE_H_
#define TESSERA_TESTS_SUPPORT_COMPARE_H_

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "inputs.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct tsr_error {
  double max, rms;
  double ref_max, ref_rms; /* of the finite elements of the reference */
  int64_t finite;          /* elements that were compared as numbers */
  int64_t distinct;        /* of them, those that do not repeat the row before in the reference */
  double effective;        /* of distinct, as many as carry the error: 3 (sum d^2)^2 / sum d^4, which is n for
                              n normal errors and less when a few large ones stand for all */
  double squares, fourths; /* sums of d^2 and d^4 */
  int64_t problems;        /* that were measured: 1, or as many as were joined */
  int64_t worst;           /* index of the largest error */
  int64_t broken;          /* first element that disagrees about NaN or infinity; -1: none */
} tsr_error;

/* Measures x against ref, both of one shape. dtype: of x; a reference beyond its largest number may
 * be met by an infinity. allow_nan: NaN on both sides is agreement, else it is broken too. */
tsr_error tsr_error_measure(const tsr_dense *x, const tsr_dense *ref, tsr_dtype dtype,
                            bool allow_nan);

/* Joins the errors of the same output of another problem, or of none yet (all zero): the largest of both, the RMS
 * over both, and effective as of one problem. */
void tsr_error_join(tsr_error *to, const tsr_error *more);

typedef struct tsr_bound {
  double max, rms;
} tsr_bound;

/* Bound from the baseline's error; error gives the reference's size, scores is S. Where the baseline
 * broke (a float16 score may overflow), its finite elements decide; without any, the bound of dtype.def
 * against the reference alone. */
tsr_bound tsr_bound_make(const tsr_error *naive, const tsr_error *error, tsr_output output,
                         tsr_dtype dtype, double scores);

/* What 8-bit Q allows on top: probabilities are rounded to its type, and sums of its products keep fewer bits. */
void tsr_bound_add_operand(tsr_bound *bound, const tsr_error *error, tsr_output output, tsr_dtype q);

/* Largest finite magnitude, 0 without any. */
double tsr_dense_largest(const tsr_dense *dense);

/* Error over bound: the larger of both; 0 when exact, infinite when broken. */
double tsr_error_ratio(const tsr_error *error, const tsr_bound *bound);

/* Rows of x that must be exactly zero, because ref's row is: no key is allowed, or nobody sees the
 * key. also NULL, or a second reference whose row must be zero too. Returns the first row that is
 * not, or -1. */
int64_t tsr_zero_rows(const tsr_dense *x, const tsr_dense *ref, const tsr_dense *also);

/* Whether all elements have the same bits (as doubles; any NaN equals any NaN). first receives the
 * first difference. */
bool tsr_dense_equal(const tsr_dense *a, const tsr_dense *b, int64_t *first);

#ifdef __cplusplus
}
#endif

#endif  // TESSERA_TESTS_SUPPORT_COMPARE_H_
