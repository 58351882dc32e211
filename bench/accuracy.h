// SPDX-License-Identifier: Apache-2.0
// The accuracy contract (docs/numerics.md) as two numbers: with ref64 the double-precision result,
// naive standard attention in the tensor's type, u the type's roundoff:
//   max|x - ref64| <= 2 max|naive - ref64| + a u max|ref64|
//   RMS(x - ref64) <= f RMS(naive - ref64) + c u RMS(ref64)
// with a, f, c = 4, 2, 1 for float32 and 1, 1, 0.05 for 16-bit types. Sums are kept so that a
// result can be compared block by block. The conformance suite's comparer is stricter about NaN and
// zeros; this one serves random inputs of order one.
#ifndef TESSERA_BENCH_ACCURACY_H_
#define TESSERA_BENCH_ACCURACY_H_

#include <stdbool.h>
#include <stdint.h>

#include <tessera/tessera.h>

// Sums over any number of blocks; zero-initialise.
typedef struct accuracy_sum {
  double max_error, square_error;  // infinite once exactly one side is NaN or infinite
  double max_reference, square_reference;
  int64_t count;
} accuracy_sum;

// Adds n elements: x as doubles against the reference. -inf equals -inf, NaN equals NaN.
void accuracy_add(accuracy_sum *sum, const double *x, const double *reference, int64_t n);
double accuracy_rms_error(const accuracy_sum *sum);
double accuracy_rms_reference(const accuracy_sum *sum);

typedef struct accuracy_bound {
  double max, rms;
} accuracy_bound;
// logarithm: an LSE, whose absolute error counts, so that max|ref64| is taken as 1 at least.
accuracy_bound accuracy_bound_of(tsr_dtype dtype, bool logarithm, const accuracy_sum *naive);

// The larger of error over bound of both figures; infinite for a zero bound that is missed.
double accuracy_ratio(const accuracy_sum *sum, accuracy_bound bound);

// Element i of a dense array as double, for float types.
double accuracy_load(tsr_dtype dtype, const void *data, int64_t i);
// Rounds to the nearest value of the type, ties to even.
void accuracy_store(tsr_dtype dtype, void *data, int64_t i, double value);

#endif  // TESSERA_BENCH_ACCURACY_H_
