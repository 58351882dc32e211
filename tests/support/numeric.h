// SPDX-License-Identifier: Apache-2.0
//
// Numbers for tests, written independently of the library: element sizes, rounding to 16-bit floats
// through ldexp and rint, the poison pattern of each type (a quiet NaN with a payload, so that bits
// tell it from a computed NaN), and a counter-based random source: value n of stream s depends on
// (seed, s, n) alone, so a case has the same inputs whatever is built around it.
#ifndef TESSERA_TESTS_SUPPORT_NUMERIC_H_
#define TESSERA_TESTS_SUPPORT_NUMERIC_H_

#include <stdbool.h>
#include <stdint.h>

#include "tessera/tessera.h"

/* Bytes of one element; 0 for NONE and BIT. */
int32_t tsr_test_dtype_bytes(tsr_dtype dtype);

/* "f32", "f16", "bf16", "f64", "u8", ... */
const char *tsr_test_dtype_name(tsr_dtype dtype);

/* Nearest value of a float dtype or int8, ties to even; overflow of floats becomes infinite. */
double tsr_test_round(tsr_dtype dtype, double x);

/* Largest finite value of a float dtype or int8. */
double tsr_test_largest(tsr_dtype dtype);

/* Element index of an array of floats, bytes or integers, as a double, and back (rounded). */
double tsr_test_load(tsr_dtype dtype, const void *data, int64_t index);
void tsr_test_store(tsr_dtype dtype, void *data, int64_t index, double value);

/* The poison of a dtype: written to element index; recognised bit by bit. */
void tsr_test_poison(tsr_dtype dtype, void *data, int64_t index);
bool tsr_test_is_poison(tsr_dtype dtype, const void *data, int64_t index);

/* Random source. stream tells tensors of a case apart. */
uint64_t tsr_test_bits(uint64_t seed, uint64_t stream, uint64_t index);
double tsr_test_uniform(uint64_t seed, uint64_t stream, uint64_t index); /* [0, 1) */
double tsr_test_normal(uint64_t seed, uint64_t stream, uint64_t index);  /* mean 0, variance 1 */

/* Integer in [lo, hi]. */
int64_t tsr_test_integer(uint64_t seed, uint64_t stream, uint64_t index, int64_t lo, int64_t hi);

#endif  // TESSERA_TESTS_SUPPORT_NUMERIC_H_
