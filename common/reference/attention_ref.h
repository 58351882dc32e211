// SPDX-License-Identifier: Apache-2.0
//
// The oracle: attention and its gradients in double precision, straight from the formulas at the
// top of tessera.h. Whole rows, softmax in two passes (maximum, then sum), no tiles, no online
// update. Rows go eight at a time only so that one loaded row of K or V serves eight queries.
// Backward starts from Q, K, V and dO alone: it recomputes the probabilities and ignores the O and
// LSE it is given, so that rounding of a stored LSE never enters the values that others are
// measured against.
#ifndef TESSERA_COMMON_REFERENCE_ATTENTION_REF_H_
#define TESSERA_COMMON_REFERENCE_ATTENTION_REF_H_

#include "reference_call.h"

/* Query rows that are worked on together. */
enum { TSRI_REF_ROWS = 8 };

/* A block of up to eight query rows of one head. Arrays are [column][row]: the row is innermost. */
typedef struct tsri_ref_block {
  tsri_ref_head head;
  int64_t i0;    /* first query, in the used part */
  int rows;      /* 1 .. 8 */
  double *q;     /* [Dqk][8], rows past `rows` zero */
  double *p;     /* [Sk][8] scores, then probabilities before dropout */
  uint8_t *seen; /* [Sk] bit r: key is allowed for row r */
  double *row;   /* one row of K or V */
  double max[TSRI_REF_ROWS], lse[TSRI_REF_ROWS];
  double sink[TSRI_REF_ROWS]; /* probability of the sink, 0 without one */
} tsri_ref_block;

/* Cuts the block's arrays out of ws. */
void tsri_ref_block_take(tsri_ref_block *block, const tsr_problem *p, tsri_workspace *ws);
/* Loads queries i0 .. i0 + rows - 1 and computes scores, maxima, LSE and probabilities. */
void tsri_ref_block_softmax(tsri_ref_block *block, const tsri_ref_head *head, int64_t i0, int rows);
/* Factor of p in O: 1 without dropout, else keep / (1 - p_drop). */
double tsri_ref_block_keep(const tsri_ref_block *block, int r, int64_t j);

tsri_ref_memory tsri_ref_forward_memory(const tsr_resolved *r);
extern const tsri_ref_phase tsri_ref_forward_phases[1];

tsri_ref_memory tsri_ref_backward_memory(const tsr_resolved *r);
extern const tsri_ref_phase tsri_ref_backward_phases[3];

/* merge_ref.c: partial results and the dropout mask, both serial; layouts are resolved. */
void tsri_ref_merge(const tsr_merge_problem *problem, const void *const *o_parts,
                    const float *const *lse_parts, void *o, float *lse);
void tsri_ref_dropout_mask(const tsr_dropout_problem *problem, uint8_t *mask);

#endif  // TESSERA_COMMON_REFERENCE_ATTENTION_REF_H_
