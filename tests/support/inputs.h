// SPDX-License-Identifier: Apache-2.0
//
// A row of cases.def as numbers: dense arrays of double [B, H, S, D] that hold the values after rounding
// to the case's dtype, plus lengths. They know nothing of strides, packing or pages; setup.c lays the
// same numbers out in memory for a backend and, densely, for the reference.
#ifndef TESSERA_TESTS_SUPPORT_INPUTS_H_
#define TESSERA_TESTS_SUPPORT_INPUTS_H_

#include <stdbool.h>
#include <stdint.h>

#include "cases.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct tsr_dense {
  int64_t dim[4];
  double *x; /* NULL when absent */
} tsr_dense;

/* All elements zero. False: out of memory. */
bool tsr_dense_create(tsr_dense *dense, int64_t b, int64_t h, int64_t s, int64_t d);
void tsr_dense_destroy(tsr_dense *dense);
int64_t tsr_dense_count(const tsr_dense *dense);
double *tsr_dense_row(const tsr_dense *dense, int64_t b, int64_t h, int64_t s);

/* One side of a sequence, as tessera.h defines slot, left padding and used part. */
typedef struct tsr_lengths {
  int64_t slot, left, len;
} tsr_lengths;

/* Outputs of both passes; also indexes the initial values of accumulated gradients. */
typedef enum tsr_output {
  TSR_OUTPUT_O = 0,
  TSR_OUTPUT_LSE,
  TSR_OUTPUT_MAX_LOGIT,
  TSR_OUTPUT_DQ,
  TSR_OUTPUT_DK,
  TSR_OUTPUT_DV,
  TSR_OUTPUT_DBIAS,
  TSR_OUTPUT_DSINK,
  TSR_OUTPUT_COUNT
} tsr_output;

const char *tsr_output_name(tsr_output output); /* "o", "lse", "max_logit", "dq", ... */

typedef struct tsr_inputs {
  const tsr_case *row;
  tsr_dtype dtype;      /* values are rounded to it */
  tsr_dtype bias_dtype; /* of bias */
  tsr_lengths *q_len, *k_len; /* [batch] */
  tsr_dense q, k, v;
  tsr_dense q_scale;                /* [B, Hq, Sq, 1] with row->q8; likewise */
  tsr_dense k_scale, v_scale;       /* [B, Hkv, Sk, 1] with row->cache; k and v are products with it */
  tsr_dense bias, mask, block_mask; /* broadcast axes have extent 1; NaN outside what is used */
  tsr_dense alibi, sink;            /* [1 or B, Hq, 1, 1] */
  tsr_dense dout, dlse;
  tsr_dense initial[TSR_OUTPUT_COUNT]; /* of accumulated gradients */
} tsr_inputs;

/* Fills inputs; they refer to row. False: out of memory. */
bool tsr_inputs_create(tsr_inputs *inputs, const tsr_case *row, tsr_dtype dtype);
void tsr_inputs_destroy(tsr_inputs *inputs);

/* Gradients that a backward pass of the row computes: TSR_GRAD bits. */
uint32_t tsr_inputs_grads(const tsr_case *row);

/* Whether the gradient of a TSR_GRAD bit is F32 whatever the inputs are. */
bool tsr_case_wide(const tsr_case *row, uint32_t grad);

#ifdef __cplusplus
}
#endif

#endif  // TESSERA_TESTS_SUPPORT_INPUTS_H_
