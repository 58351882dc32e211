// SPDX-License-Identifier: Apache-2.0
//
// Random rows in the form of cases.def: made from a seed alone, printed as a row that can be pasted into
// the table, and shrunk while a predicate keeps failing. Used by test_fuzz.c.
#ifndef TESSERA_TESTS_CONFORMANCE_FUZZ_ROW_H_
#define TESSERA_TESTS_CONFORMANCE_FUZZ_ROW_H_

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "tests/support/cases.h"

enum { FUZZ_BATCH_MAX = 6, FUZZ_ARRAYS = 8 };

/* A row and the arrays it points to. Not copied by assignment: use fuzz_row_copy. */
typedef struct fuzz_row {
  tsr_case row;
  tsr_dtype dtype;
  int64_t array[FUZZ_ARRAYS][FUZZ_BATCH_MAX];
  char name[48];
} fuzz_row;

void fuzz_row_make(fuzz_row *out, uint64_t seed);
void fuzz_row_copy(fuzz_row *to, const fuzz_row *from);

/* "TSR_CASE(fuzz_17, reports, 1, 2, ..., .causal = 2)". */
void fuzz_row_print(const fuzz_row *row, char *text, size_t capacity);

/* Makes the row smaller in place while fails(state, row) stays true. */
typedef bool (*fuzz_fails_fn)(void *state, const fuzz_row *row);
void fuzz_row_shrink(fuzz_row *row, fuzz_fails_fn fails, void *state);

#endif  // TESSERA_TESTS_CONFORMANCE_FUZZ_ROW_H_
