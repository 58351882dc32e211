// SPDX-License-Identifier: Apache-2.0
//
// The product kernel, panels and the softmax pass of the baseline (naive.h). The product is the
// plain register-blocked loop that a compiler vectorises: four rows by eight columns of C stay in
// registers while one block of the depth goes by, then join C, which bounds the error of long sums
// as a BLAS does.
#include "naive_parts.h"

#include <math.h>

#include "common/bias.h"
#include "common/score.h"

enum { MR = 4, PARTS = 16 };

tsr_dtype tsri_naive_dtype(const tsr_resolved *r) {
  return tsri_dtype_needs_scale(r->p.q.dtype) ? r->p.o.dtype : r->p.q.dtype;
}

static int64_t matrix_elements(const tsr_problem *p) {
  return tsri_mul_sat(tsri_mul_sat(p->batch, p->heads_q), tsri_mul_sat(p->seq_q, p->seq_k));
}

static int matrix_count(const tsr_problem *p, tsr_pass pass) {
  if (pass == TSR_PASS_FORWARD) return 1;
  return p->softcap > 0 ? 3 : 2;
}

int64_t tsri_naive_matrix_bytes(const tsr_resolved *r, tsr_pass pass) {
  const int64_t one = tsri_mul_sat(matrix_elements(&r->p), tsri_dtype_bytes(tsri_naive_dtype(r)));
  return tsri_mul_sat(tsri_workspace_round(one), matrix_count(&r->p, pass));
}

tsri_naive_matrix tsri_naive_matrix_of(const tsri_ref_call *call, int n) {
  tsri_naive_matrix m;
  m.dtype = tsri_naive_dtype(call->r);
  m.seq_q = call->p->seq_q;
  m.seq_k = call->p->seq_k;
  m.data =
      call->shared + n * tsri_workspace_round(matrix_elements(call->p) * tsri_dtype_bytes(m.dtype));
  return m;
}

void tsri_naive_load(const tsri_naive_matrix *m, int64_t at, int64_t n, float *out) {
  int64_t e;
  switch (m->dtype) { /* one loop per type: no switch inside */
    case TSR_DTYPE_F16:
      for (e = 0; e < n; e++) out[e] = tsri_f16_to_float(((const uint16_t *)m->data)[at + e]);
      break;
    case TSR_DTYPE_BF16:
      for (e = 0; e < n; e++) out[e] = tsri_bf16_to_float(((const uint16_t *)m->data)[at + e]);
      break;
    default:
      memcpy(out, (const float *)m->data + at, (size_t)n * sizeof(float));
  }
}

void tsri_naive_store(const tsri_naive_matrix *m, int64_t at, int64_t n, const float *in) {
  int64_t e;
  switch (m->dtype) {
    case TSR_DTYPE_F16:
      for (e = 0; e < n; e++) ((uint16_t *)m->data)[at + e] = tsri_float_to_f16(in[e]);
      break;
    case TSR_DTYPE_BF16:
      for (e = 0; e < n; e++) ((uint16_t *)m->data)[at + e] = tsri_float_to_bf16(in[e]);
      break;
    default:
      memcpy((float *)m->data + at, in, (size_t)n * sizeof(float));
  }
}

/* ------------------------------------------------------------------------------------- product */

/* c[MR][LANES] += a[MR rows][k] b[k][LANES]; `rows` of the four count. */
static void product_tile(int rows, int64_t k, const float *TSRI_RESTRICT a, int64_t lda,
                         const float *TSRI_RESTRICT b, int64_t ldb, float *TSRI_RESTRICT c,
                         int64_t ldc, int add) {
  float acc[MR][LANES] = {{0}};
  const float *a0 = a, *a1 = a + (rows > 1) * lda, *a2 = a + (rows > 2 ? 2 : 0) * lda;
  const float *a3 = a + (rows > 3 ? 3 : 0) * lda;
  int64_t t;
  int i, j;
  for (t = 0; t < k; t++) {
    const float *TSRI_RESTRICT bt = b + t * ldb;
    for (j = 0; j < LANES; j++) {
      acc[0][j] += a0[t] * bt[j];
      acc[1][j] += a1[t] * bt[j];
      acc[2][j] += a2[t] * bt[j];
      acc[3][j] += a3[t] * bt[j];
    }
  }
  for (i = 0; i < rows; i++)
    for (j = 0; j < LANES; j++) c[i * ldc + j] = add ? c[i * ldc + j] + acc[i][j] : acc[i][j];
}

void tsri_naive_product(int64_t m, int64_t n, int64_t k, const float *a, int64_t lda,
                        const float *b, int64_t ldb, float *c, int64_t ldc, int add) {
  int64_t i, j, t = 0;
  do {
    const int64_t depth = k - t < DEPTH ? k - t : DEPTH;
    for (j = 0; j < n; j += LANES)
      for (i = 0; i < m; i += MR)
        product_tile((int)(m - i < MR ? m - i : MR), depth, a + i * lda + t, lda, b + t * ldb + j,
                     ldb, c + i * ldc + j, ldc, add || t > 0);
    t += depth;
  } while (t < k);
}

static float fold(float *lane) {
  int width, e;
  for (width = PARTS / 2; width > 0; width /= 2)
    for (e = 0; e < width; e++) lane[e] += lane[e + width];
  return lane[0];
}

float tsri_naive_sum(const float *x, int64_t n) {
  float lane[PARTS] = {0};
  int64_t i;
  int e;
  for (i = 0; i + PARTS <= n; i += PARTS)
    for (e = 0; e < PARTS; e++) lane[e] += x[i + e];
  for (e = 0; i < n; i++, e++) lane[e] += x[i];
  return fold(lane);
}

float tsri_naive_dot(const float *x, const float *y, int64_t n) {
  float lane[PARTS] = {0};
  int64_t i;
  int e;
  for (i = 0; i + PARTS <= n; i += PARTS)
    for (e = 0; e < PARTS; e++) lane[e] += x[i + e] * y[i + e];
  for (e = 0; i < n; i++, e++) lane[e] += x[i] * y[i];
  return fold(lane);
}

/* -------------------------------------------------------------------------------------- panels */

void tsri_naive_pack(const tsri_ref_input *in, int64_t b, int64_t h, const tsri_span *span,
                     int64_t r0, int64_t rows, float *panel, int64_t ld) {
  int64_t i, d;
  for (i = 0; i < rows; i++) {
    float *const row = panel + i * ld;
    tsri_ref_load_row_f32(in, b, h, span->begin + r0 + i, row);
    for (d = in->dim; d < ld; d++) row[d] = 0;
  }
}

void tsri_naive_pack_transposed(const tsri_ref_input *in, int64_t b, int64_t h,
                                const tsri_span *span, int64_t r0, int64_t rows, float *panel,
                                int64_t ld, float *row) {
  int64_t i, d;
  for (i = 0; i < ld; i++) {
    if (i < rows) tsri_ref_load_row_f32(in, b, h, span->begin + r0 + i, row);
    for (d = 0; d < in->dim; d++) panel[d * ld + i] = i < rows ? row[d] : 0;
  }
}

int64_t tsri_naive_scores_bytes(const tsr_problem *p) {
  const int64_t dim = p->dim_qk > p->dim_v ? p->dim_qk : p->dim_v;
  tsri_workspace ws = {NULL, 0};
  (void)tsri_workspace_take(&ws, BLOCK * dim, sizeof(float));
  (void)tsri_workspace_take(&ws, BLOCK * dim, sizeof(float));
  (void)tsri_workspace_take(&ws, dim, sizeof(float));
  (void)tsri_workspace_take(&ws, BLOCK * BLOCK, sizeof(float));
  return ws.used;
}

void tsri_naive_scores(const tsri_ref_head *head, const tsri_ref_input *x, const tsri_ref_input *y,
                       float factor, const tsri_naive_matrix *out, int64_t i0, int64_t i1,
                       tsri_workspace *ws) {
  const int64_t dim = x->dim, sk = head->seq.k.len;
  const int64_t bh = head->b * head->call->p->heads_q + head->h;
  float *a = (float *)tsri_workspace_take(ws, BLOCK * dim, sizeof(float));
  float *b = (float *)tsri_workspace_take(ws, BLOCK * dim, sizeof(float));
  float *row = (float *)tsri_workspace_take(ws, dim, sizeof(float));
  float *c = (float *)tsri_workspace_take(ws, BLOCK * BLOCK, sizeof(float));
  int64_t i, j, j0;
  tsri_naive_pack(x, head->b, head->h, &head->seq.q, i0, i1 - i0, a, dim);
  for (j0 = 0; j0 < sk; j0 += BLOCK) {
    const int64_t keys = sk - j0 < BLOCK ? sk - j0 : BLOCK;
    tsri_naive_pack_transposed(y, head->b, head->g, &head->seq.k, j0, keys, b, BLOCK, row);
    tsri_naive_product(i1 - i0, tsri_naive_lanes(keys), dim, a, dim, b, BLOCK, c, BLOCK, 0);
    for (i = i0; i < i1; i++) {
      float *const line = c + (i - i0) * BLOCK;
      for (j = 0; j < keys; j++) line[j] *= factor;
      tsri_naive_store(out, tsri_naive_at(out, bh, i, j0), keys, line);
    }
  }
}

/* ------------------------------------------------------------------------------------- softmax */

float tsri_naive_keep(const tsri_ref_head *head, int64_t i, int64_t j) {
  const tsri_ref_call *call = head->call;
  if (!(call->p->dropout > 0)) return 1;
  return tsri_dropout_keep(call->key, call->r->drop_threshold, head->b * call->p->heads_q + head->h,
                           i, j)
             ? call->r->keep_scale
             : 0;
}

void tsri_naive_softmax_row(const tsri_ref_head *head, const tsri_naive_matrix *s,
                            const tsri_naive_matrix *p, int64_t i, int dropped, float *weights,
                            float *max, float *lse) {
  const tsr_problem *problem = head->call->p;
  const int64_t sq = head->seq.q.len, sk = head->seq.k.len;
  const int64_t bh = head->b * problem->heads_q + head->h;
  const tsri_mask_row row = tsri_mask_row_of(&head->rule, i);
  const float sink = (float)head->sink;
  float m = -INFINITY, top, sum = 0;
  int64_t j;

  tsri_naive_load(s, tsri_naive_at(s, bh, i, 0), sk, weights);
  for (j = 0; j < sk; j++) {
    const float x = weights[j];
    weights[j] = -INFINITY;
    if (!tsri_mask_allows(&row, j) || !tsri_ref_mask_tensors(head, i, j)) continue;
    weights[j] = tsri_score_f32(x, 1, problem->softcap, (float)tsri_ref_bias(head, i, j),
                                (float)head->slope, tsri_alibi_distance(i, j, sq, sk));
    if (weights[j] > m || isnan(weights[j])) m = weights[j];
  }
  top = sink > m || isnan(sink) ? sink : m;
  *max = m;
  *lse = top;
  if (top != -INFINITY) {
    for (j = 0; j < sk; j++) weights[j] = weights[j] == -INFINITY ? 0 : expf(weights[j] - top);
    sum = tsri_naive_sum(weights, sk);
    if (problem->sink) sum += expf(sink - top);
    *lse = top + logf(sum);
  }
  for (j = 0; j < sk; j++) {
    weights[j] = top == -INFINITY ? 0 : weights[j] / sum;
    if (dropped) weights[j] *= tsri_naive_keep(head, i, j);
  }
  tsri_naive_store(p, tsri_naive_at(p, bh, i, 0), sk, weights);
}

/* --------------------------------------------------------------------------------------- tasks */

int64_t tsri_naive_row_tasks(const tsri_ref_call *call) {
  const tsr_problem *p = call->p;
  return p->batch * p->heads_q * ((p->seq_q + BLOCK - 1) / BLOCK);
}

tsri_naive_rows tsri_naive_rows_of(const tsri_ref_call *call, int64_t index) {
  const tsr_problem *p = call->p;
  const int64_t blocks = (p->seq_q + BLOCK - 1) / BLOCK;
  tsri_naive_rows rows;
  rows.bh = index / blocks;
  rows.head = tsri_ref_head_of(call, rows.bh / p->heads_q, rows.bh % p->heads_q);
  rows.i0 = index % blocks * BLOCK;
  rows.i1 = rows.i0 + BLOCK < rows.head.seq.q.len ? rows.i0 + BLOCK : rows.head.seq.q.len;
  return rows;
}
