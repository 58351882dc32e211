// SPDX-License-Identifier: Apache-2.0
//
// Pieces that both passes of the baseline use: the materialised matrices, panels of rows in
// float32, and one product kernel. Every product is C[M][N] (+)= A[M][K] B[K][N] on packed float32
// panels, so each caller only says which rows go into A and B, as they are or transposed.
#ifndef TESSERA_COMMON_REFERENCE_NAIVE_PARTS_H_
#define TESSERA_COMMON_REFERENCE_NAIVE_PARTS_H_

#include "naive.h"

enum { BLOCK = TSRI_NAIVE_BLOCK, DEPTH = TSRI_NAIVE_DEPTH, LANES = TSRI_NAIVE_LANES };

static inline int64_t tsri_naive_lanes(int64_t n) {
  return (n + LANES - 1) / LANES * LANES;
}

/* A matrix [B * Hq][Sq][Sk] in the working dtype. */
typedef struct tsri_naive_matrix {
  void *data;
  tsr_dtype dtype;
  int64_t seq_q, seq_k;
} tsri_naive_matrix;

/* Matrix number n (0, 1, 2) of the shared workspace. */
tsri_naive_matrix tsri_naive_matrix_of(const tsri_ref_call *call, int n);

static inline int64_t tsri_naive_at(const tsri_naive_matrix *m, int64_t bh, int64_t i, int64_t j) {
  return (bh * m->seq_q + i) * m->seq_k + j;
}

/* n numbers of the matrix from element `at` on, out of it and (rounded) into it. */
void tsri_naive_load(const tsri_naive_matrix *m, int64_t at, int64_t n, float *out);
void tsri_naive_store(const tsri_naive_matrix *m, int64_t at, int64_t n, const float *in);

/* C[m][ldc] = or += A[m][k] B[k][n]: m <= BLOCK, k <= DEPTH or any depth summed in one go, n a
 * multiple of LANES; lda, ldb, ldc in elements. */
void tsri_naive_product(int64_t m, int64_t n, int64_t k, const float *a, int64_t lda,
                        const float *b, int64_t ldb, float *c, int64_t ldc, int add);

/* Sum of n numbers, or of x[i] * y[i], in sixteen interleaved partial sums as vector code does. */
float tsri_naive_sum(const float *x, int64_t n);
float tsri_naive_dot(const float *x, const float *y, int64_t n);

/* Rows [r0, r0 + rows) of a sequence's used part into panel[rows][ld], zero up to ld. */
void tsri_naive_pack(const tsri_ref_input *in, int64_t b, int64_t h, const tsri_span *span,
                     int64_t r0, int64_t rows, float *panel, int64_t ld);
/* The same transposed: panel[dim][ld], columns past `rows` zero; row is scratch of dim floats. */
void tsri_naive_pack_transposed(const tsri_ref_input *in, int64_t b, int64_t h,
                                const tsri_span *span, int64_t r0, int64_t rows, float *panel,
                                int64_t ld, float *row);

/* out[i][j] = round(factor * x_i . y_j) for rows [i0, i1) of x and every key: the pass that writes
 * S (x = Q, y = K) and dP (x = dO, y = V). ws: the worker's memory. */
void tsri_naive_scores(const tsri_ref_head *head, const tsri_ref_input *x, const tsri_ref_input *y,
                       float factor, const tsri_naive_matrix *out, int64_t i0, int64_t i1,
                       tsri_workspace *ws);
int64_t tsri_naive_scores_bytes(const tsr_problem *p);

/* Softmax of row i of S, in float32, into P (which may be S): probabilities before dropout, or
 * after it. Writes the row's maximum and LSE. weights: seq_k floats of scratch. */
void tsri_naive_softmax_row(const tsri_ref_head *head, const tsri_naive_matrix *s,
                            const tsri_naive_matrix *p, int64_t i, int dropped, float *weights,
                            float *max, float *lse);

/* keep / (1 - p_drop) of one pair, 1 without dropout. */
float tsri_naive_keep(const tsri_ref_head *head, int64_t i, int64_t j);

/* Tasks over (head, block of rows of the slot). */
int64_t tsri_naive_row_tasks(const tsri_ref_call *call);

/* The head of such a task and its part of the used rows, which may be empty: i1 <= i0. */
typedef struct tsri_naive_rows {
  tsri_ref_head head;
  int64_t bh, i0, i1;
} tsri_naive_rows;
tsri_naive_rows tsri_naive_rows_of(const tsri_ref_call *call, int64_t index);

#endif  // TESSERA_COMMON_REFERENCE_NAIVE_PARTS_H_
