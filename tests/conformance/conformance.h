// SPDX-License-Identifier: Apache-2.0
//
// What the conformance tests share: running groups of cases.def with coverage.def applied, and printing
// what failed with everything needed to find it. Returned counts are of failures; tests assert zero.
#ifndef TESSERA_TESTS_CONFORMANCE_CONFORMANCE_H_
#define TESSERA_TESTS_CONFORMANCE_CONFORMANCE_H_

#include <stdbool.h>
#include <stdint.h>

#include "tests/support/backends.h"
#include "tests/support/cases.h"
#include "tests/support/check.h"
#include "tests/support/inputs.h"
#include "tests/support/setup.h"

/* Whether coverage.def demands it. */
bool conform_required(const char *backend, tsr_pass pass, const char *group, tsr_dtype dtype);

typedef struct conform_count {
  int64_t passed, failed, refused, skipped;
} conform_count;

/* tsr_check_fn over a conform_count: counts, applies coverage.def, prints failures. */
void conform_report(void *count, const tsr_check_record *record);

/* Runs one group, or rows of the test's own; prints a summary line; returns failures. */
int64_t conform_group(const tsr_check_options *options, const char *group);
int64_t conform_rows(const tsr_check_options *options, const tsr_case *rows, int32_t count);

/* One run on a backend: plan, run, gather. False with a printed reason on failure; *refused when the
 * backend does not take it. passes may hold BACKWARD. */
bool conform_run(tsr_context *context, const char *backend, const tsr_inputs *in,
                 const tsr_case *form, uint32_t passes, tsr_results *results, bool *refused);

/* Whether all outputs are bitwise equal; prints the first difference under title. */
bool conform_equal(const char *title, const tsr_results *a, const tsr_results *b);

/* Which kernels the tests of every case visit: "*", or NULL (those that dispatch chooses) where the
 * environment says TSR_TEST_KERNELS=chosen: emulated devices are slow and have many kernels. */
const char *conform_kernels(void);

#endif  // TESSERA_TESTS_CONFORMANCE_CONFORMANCE_H_
