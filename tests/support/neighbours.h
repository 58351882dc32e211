// SPDX-License-Identifier: Apache-2.0
//
// The baseline's error where few elements carry it. A bound is a multiple of the error that the baseline
// happens to have; that of one or two elements is one or two draws from a distribution, and as often as not a
// small part of what the same arithmetic is off by on the next problem. So the baseline is also run on
// neighbours of the problem: dO and V a few hundredths off, element by element, Q a few units of its last place,
// and scores some hundredths through the bias. Sizes stay what they are, roundings are drawn anew.
#ifndef TESSERA_TESTS_SUPPORT_NEIGHBOURS_H_
#define TESSERA_TESTS_SUPPORT_NEIGHBOURS_H_

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "compare.h"
#include "tessera/tessera.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Neighbours that the baseline runs on, and the most elements that are few (tsr_error.effective). */
enum { TSR_NEIGHBOURS = 16, TSR_NEIGHBOURS_FEW = 2048 };

/* What the baseline is off by over all neighbours: joined (tsr_error_join), and of every element the largest error and
 * the sum of squares. Outputs that the problem does not have stay 0. */
typedef struct tsr_neighbours {
  tsr_error error[TSR_OUTPUT_COUNT];
  tsr_dense most[TSR_OUTPUT_COUNT], squares[TSR_OUTPUT_COUNT];
} tsr_neighbours;

/* dtype: of each output. False with a reason; near holds what was measured, for tsr_neighbours_destroy, in any case. */
bool tsr_neighbours_measure(tsr_context *context, const tsr_inputs *in, uint32_t passes,
                            const tsr_dtype dtype[TSR_OUTPUT_COUNT], tsr_neighbours *near, char *why,
                            size_t capacity);
void tsr_neighbours_destroy(tsr_neighbours *near);

/* Error over bound of a result that is outside of `bound`, which the baseline of the problem alone gives. Elements where
 * the baseline is off by more on a neighbour than anywhere on the problem have twice the largest error that it has
 * there on the problem or a neighbour, and an RMS of their own; to all others `bound` applies as before. x, ref, naive
 * are of output `which`; error, naive_error: x and naive against ref; scores as for tsr_bound_make. */
double tsr_neighbours_ratio(const tsr_neighbours *near, tsr_output which, const tsr_dense *x, const tsr_dense *ref,
                            const tsr_dense *naive, const tsr_error *error, const tsr_error *naive_error,
                            const tsr_bound *bound, tsr_dtype dtype, double scores);

#ifdef __cplusplus
}
#endif

#endif  // TESSERA_TESTS_SUPPORT_NEIGHBOURS_H_
