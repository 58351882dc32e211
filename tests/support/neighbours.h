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

/* Errors of the baseline against the reference over all neighbours, joined (tsr_error_join); outputs that the
 * problem does not have stay 0. dtype: of each output. False with a reason. */
bool tsr_neighbours_measure(tsr_context *context, const tsr_inputs *in, uint32_t passes,
                            const tsr_dtype dtype[TSR_OUTPUT_COUNT], tsr_error errors[TSR_OUTPUT_COUNT],
                            char *why, size_t capacity);

#ifdef __cplusplus
}
#endif

#endif  // TESSERA_TESTS_SUPPORT_NEIGHBOURS_H_
