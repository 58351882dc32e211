// SPDX-License-Identifier: Apache-2.0
//
// The little that a kernel test needs: counted checks that say where they failed, and numbers that
// are the same in every run. Shared by the files of test_cpu_kernels.
#ifndef TESSERA_TESTS_KERNELS_KERNEL_TEST_H_
#define TESSERA_TESTS_KERNELS_KERNEL_TEST_H_

#include <stdint.h>

#include "backends/cpu/kernels.h"

// Set by main(); names the target under test in messages.
extern const char *kernel_test_target;
extern int64_t kernel_test_checks, kernel_test_failures;

// Counts a check; prints the first few failures. Arguments as printf.
void kernel_check(bool ok, const char *format, ...) __attribute__((format(printf, 2, 3)));

// Uniform in [lo, hi), a function of (stream, index) alone.
float kernel_uniform(uint64_t stream, uint64_t index, float lo, float hi);

// |a - b| in units of the last place of b; 0 when both are NaN, huge when one is.
double kernel_ulps(float a, double b);

// Single lanes, on one of Highway's targets.
void kernel_test_lanes(int64_t target);

// Pieces of backward, on one of Highway's targets.
void kernel_test_gradients(int64_t target);

// Pieces of the split kernel, on one of Highway's targets.
void kernel_test_decode(int64_t target);

// Tasks of every row of kernels.def, on the index-th instruction set.
void kernel_test_tasks(int32_t index);

// A whole backward run of one element type; amx: on AMX tiles.
void kernel_test_backward(const tsri_cpu_kernels &kernels, tsr_dtype dtype, int amx);

#endif  // TESSERA_TESTS_KERNELS_KERNEL_TEST_H_
