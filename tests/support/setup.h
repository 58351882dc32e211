// SPDX-License-Identifier: Apache-2.0
//
// Inputs in memory: a tsr_problem, its tsr_args and the buffers behind them, laid out as a row of
// cases.def says (strides, packing, padding, pages) or, for the reference, densely. Everything that no
// result may depend on is poison, and so are outputs and workspace before a run. After it the results
// are gathered into dense arrays, and what had to stay untouched or become zero is checked.
#ifndef TESSERA_TESTS_SUPPORT_SETUP_H_
#define TESSERA_TESTS_SUPPORT_SETUP_H_

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "cases.h"
#include "inputs.h"
#include "tensor.h"
#include "tessera/tessera.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Index arrays and small vectors of floats. */
typedef enum tsr_vector {
  TSR_VECTOR_CU_Q = 0,
  TSR_VECTOR_CU_K,
  TSR_VECTOR_USED_Q,
  TSR_VECTOR_USED_K,
  TSR_VECTOR_LEFT_Q,
  TSR_VECTOR_LEFT_K,
  TSR_VECTOR_PREFIX,
  TSR_VECTOR_DIAGONAL,
  TSR_VECTOR_PAGES,
  TSR_VECTOR_ALIBI,
  TSR_VECTOR_SINK,
  TSR_VECTOR_RNG, /* seed and offset of dropout, 64 bits each */
  TSR_VECTOR_COUNT
} tsr_vector;

typedef struct tsr_setup {
  const tsr_inputs *in;
  tsr_device device; /* where all of it lies */
  tsr_case form;     /* how the inputs are laid out */
  tsr_dtype dtype;
  uint32_t passes;
  tsr_problem problem;
  tsr_args args;
  tsr_buffer q, k, v, q_scale, k_scale, v_scale, bias, mask, block_mask, dout, dlse;
  tsr_buffer out[TSR_OUTPUT_COUNT];
  tsr_block vector[TSR_VECTOR_COUNT];
  tsr_block workspace;
  int64_t *begin_q, *begin_k; /* first row of each slot */
  int64_t *page;              /* [batch, columns] */
  int64_t columns;
  bool broken;     /* the device failed, or bytes around a block were written */
  char fault[640]; /* what happened; "" when a run's status is the library's own */
} tsr_setup;

/* The row of a dense problem with the same inputs: no strides, packing, padding or pages. lens_q and
 * lens_k receive row->batch used lengths each. */
tsr_case tsr_setup_dense_form(const tsr_inputs *in, int64_t *lens_q, int64_t *lens_k);

/* Lays inputs out in host memory. dtype is the storage type: the inputs' own, or F64. False with a
 * reason when the machine has no room for it. */
bool tsr_setup_create(tsr_setup *setup, const tsr_inputs *in, const tsr_case *form,
                      tsr_dtype dtype, uint32_t passes, char *why, size_t capacity);

/* The same in a device's memory. On false, setup->broken tells a device that failed from one that has
 * no room or no such memory. */
bool tsr_setup_create_on(tsr_setup *setup, tsr_device device, const tsr_inputs *in,
                         const tsr_case *form, tsr_dtype dtype, uint32_t passes, char *why,
                         size_t capacity);
void tsr_setup_destroy(tsr_setup *setup);

/* Slot, padding and length of sequence b as the form lays it out. */
tsr_lengths tsr_setup_lengths(const tsr_setup *setup, bool queries, int64_t b);

/* Results as dense arrays; x is NULL for outputs that were not asked for. */
typedef struct tsr_results {
  tsr_dense out[TSR_OUTPUT_COUNT];
} tsr_results;

void tsr_results_destroy(tsr_results *results);

/* Runs the passes of a plan with the setup's memory: workspace is allocated to the byte and filled
 * with NaN. plan_backward NULL: plan holds both passes. Returns when a device is done; a device that
 * faulted and bytes written around a block are DEVICE_ERROR. */
tsr_status tsr_setup_run(tsr_setup *setup, const tsr_plan *plan, const tsr_plan *plan_backward);

/* Waits for the device and looks at the canaries of every block: what tsr_setup_run ends with, for runs
 * made by hand. */
tsr_status tsr_setup_settle(tsr_setup *setup);

/* Text of the last failure of a run: the fault, or the library's message. */
const char *tsr_setup_message(const tsr_setup *setup);

/* Puts the outputs back to their state before a run, for another one. */
void tsr_setup_reset(tsr_setup *setup);

/* Collects results after a run. False with a reason when memory outside the rows was changed, an
 * unused row of a slot is not zero (-inf), or memory ran out. */
bool tsr_setup_gather(tsr_setup *setup, tsr_results *results, char *why, size_t capacity);

#ifdef __cplusplus
}
#endif

#endif  // TESSERA_TESTS_SUPPORT_SETUP_H_
