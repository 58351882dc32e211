// SPDX-License-Identifier: Apache-2.0
//
// Backward pass of the baseline (naive.h), as frameworks do it from a saved P: with W the rounding
// to the working dtype,
//   P = W(softmax(W(scale Q K^T)))      dP = W(dO V^T)     dS = W(P (keep dP - D)),  D = sum P keep
//   dP dQ = scale (dS softcap'(S)) K       dK = scale (dS softcap'(S))^T Q      dV = W(keep P)^T dO
// Eight phases over materialised matrices: P, dP (dS in its place), and S while a softcap needs it.
#include <math.h>

#include "common/bias.h"
#include "common/score.h"
#include "naive_parts.h"

enum { MATRIX_P = 0, MATRIX_DS = 1, MATRIX_S = 2 };

static int wanted(const tsr_layout *layout) {
  return layout->dtype != TSR_DTYPE_NONE;
}

static tsri_naive_matrix scores_of(const tsri_ref_call *call) {
  return tsri_naive_matrix_of(call, call->p->softcap > 0 ? MATRIX_S : MATRIX_P);
}

/* One float per query row, after the matrices: LSE, then the row's part of the sink's gradient. */
static float *row_values(const tsri_ref_call *call, int64_t bh) {
  unsigned char *base = call->shared + tsri_naive_matrix_bytes(call->r, TSR_PASS_BACKWARD);
  return (float *)(void *)base + bh * call->p->seq_q;
}

/* ---------------------------------------------------------------------- phases 1 to 4: matrices */

static void scores_task(void *arg, int64_t index, int32_t worker) {
  const tsri_ref_call *call = (const tsri_ref_call *)arg;
  const tsri_naive_rows rows = tsri_naive_rows_of(call, index);
  const tsri_naive_matrix s = scores_of(call);
  tsri_workspace ws = tsri_ref_worker(call, worker);
  if (rows.i1 > rows.i0)
    tsri_naive_scores(&rows.head, &call->q, &call->k, call->p->scale, &s, rows.i0, rows.i1, &ws);
}

static void softmax_task(void *arg, int64_t index, int32_t worker) {
  const tsri_ref_call *call = (const tsri_ref_call *)arg;
  const tsri_naive_rows rows = tsri_naive_rows_of(call, index);
  const tsri_naive_matrix s = scores_of(call), p = tsri_naive_matrix_of(call, MATRIX_P);
  tsri_workspace ws = tsri_ref_worker(call, worker);
  float *weights = (float *)tsri_workspace_take(&ws, call->p->seq_k, sizeof(float));
  float *lse = row_values(call, rows.bh), max;
  int64_t i;
  for (i = rows.i0; i < rows.i1; i++)
    tsri_naive_softmax_row(&rows.head, &s, &p, i, 0, weights, &max, &lse[i]);
}

static void dp_task(void *arg, int64_t index, int32_t worker) {
  const tsri_ref_call *call = (const tsri_ref_call *)arg;
  const tsri_naive_rows rows = tsri_naive_rows_of(call, index);
  const tsri_naive_matrix dp = tsri_naive_matrix_of(call, MATRIX_DS);
  tsri_workspace ws = tsri_ref_worker(call, worker);
  if (rows.i1 > rows.i0)
    tsri_naive_scores(&rows.head, &call->dout, &call->v, 1, &dp, rows.i0, rows.i1, &ws);
}

static void ds_task(void *arg, int64_t index, int32_t worker) {
  const tsri_ref_call *call = (const tsri_ref_call *)arg;
  const tsr_problem *problem = call->p;
  const tsri_naive_rows rows = tsri_naive_rows_of(call, index);
  const tsri_ref_head *head = &rows.head;
  const tsri_naive_matrix p = tsri_naive_matrix_of(call, MATRIX_P);
  const tsri_naive_matrix ds = tsri_naive_matrix_of(call, MATRIX_DS);
  const int64_t sk = head->seq.k.len;
  float *values = row_values(call, rows.bh);
  tsri_workspace ws = tsri_ref_worker(call, worker);
  float *prob = (float *)tsri_workspace_take(&ws, problem->seq_k, sizeof(float));
  float *grad = (float *)tsri_workspace_take(&ws, problem->seq_k, sizeof(float));
  int64_t i, j;
  for (i = rows.i0; i < rows.i1; i++) {
    const int64_t at = tsri_naive_at(&p, rows.bh, i, 0);
    const int empty = values[i] == -INFINITY;
    float d;
    tsri_naive_load(&p, at, sk, prob);
    tsri_naive_load(&ds, at, sk, grad);
    if (problem->dropout > 0)
      for (j = 0; j < sk; j++) grad[j] *= tsri_naive_keep(head, i, j);
    d = tsri_naive_dot(prob, grad, sk);
    if (wanted(&problem->dlse))
      d -= call->a->dlse[tsri_row_offset(problem->dlse.stride, head->b, head->h,
                                         head->seq.q.begin + i)];
    for (j = 0; j < sk; j++) grad[j] = empty ? 0 : prob[j] * (grad[j] - d);
    tsri_naive_store(&ds, at, sk, grad);
    if (problem->dsink) values[i] = empty ? 0 : -expf((float)head->sink - values[i]) * d;
  }
}

/* -------------------------------------------------------------------- phases 5 and 6: products */

/* dS softcap'(S) of n keys of query i: what flows into scale q.k. scratch: n floats. */
static void dx_row(const tsri_ref_head *head, int64_t i, int64_t j0, int64_t n, float *scratch,
                   float *out) {
  const tsri_ref_call *call = head->call;
  const tsri_naive_matrix ds = tsri_naive_matrix_of(call, MATRIX_DS);
  const int64_t at = tsri_naive_at(&ds, head->b * call->p->heads_q + head->h, i, j0);
  tsri_naive_load(&ds, at, n, out);
  if (call->p->softcap > 0) {
    const tsri_naive_matrix s = scores_of(call);
    int64_t j;
    tsri_naive_load(&s, at, n, scratch);
    for (j = 0; j < n; j++) out[j] *= tsri_softcap_grad_f32(scratch[j], call->p->softcap);
  }
}

/* W(keep P) of n keys of query i. */
static void dropped_row(const tsri_ref_head *head, int64_t i, int64_t j0, int64_t n, float *out) {
  const tsri_ref_call *call = head->call;
  const tsri_naive_matrix p = tsri_naive_matrix_of(call, MATRIX_P);
  int64_t j;
  tsri_naive_load(&p, tsri_naive_at(&p, head->b * call->p->heads_q + head->h, i, j0), n, out);
  for (j = 0; call->p->dropout > 0 && j < n; j++)
    out[j] = tsri_round_f32(p.dtype, out[j] * tsri_naive_keep(head, i, j0 + j));
}

static int64_t dq_count(const tsri_ref_call *call) {
  return wanted(&call->p->dq) ? tsri_naive_row_tasks(call) : 0;
}

static void dq_task(void *arg, int64_t index, int32_t worker) {
  const tsri_ref_call *call = (const tsri_ref_call *)arg;
  const tsr_problem *p = call->p;
  const tsri_naive_rows rows = tsri_naive_rows_of(call, index);
  const tsri_ref_head *head = &rows.head;
  const int64_t ld = tsri_naive_lanes(p->dim_qk), sk = head->seq.k.len;
  const int add = (p->accumulate & TSR_ACCUMULATE_DQ) != 0;
  tsri_workspace ws = tsri_ref_worker(call, worker);
  float *a = (float *)tsri_workspace_take(&ws, BLOCK * DEPTH, sizeof(float));
  float *b = (float *)tsri_workspace_take(&ws, DEPTH * ld, sizeof(float));
  float *c = (float *)tsri_workspace_take(&ws, BLOCK * ld, sizeof(float));
  float scratch[DEPTH];
  int64_t i, j0;

  if (rows.i0 == 0)
    tsri_ref_zero_padding(&p->dq, call->a->dq, head->b, head->h, &head->seq.q, p->dim_qk, add);
  if (rows.i1 <= rows.i0) return;
  memset(c, 0, (size_t)(BLOCK * ld) * sizeof(float));
  for (j0 = 0; j0 < sk; j0 += DEPTH) {
    const int64_t keys = sk - j0 < DEPTH ? sk - j0 : DEPTH;
    for (i = rows.i0; i < rows.i1; i++)
      dx_row(head, i, j0, keys, scratch, a + (i - rows.i0) * DEPTH);
    tsri_naive_pack(&call->k, head->b, head->g, &head->seq.k, j0, keys, b, ld);
    tsri_naive_product(rows.i1 - rows.i0, ld, keys, a, DEPTH, b, ld, c, ld, 1);
  }
  for (i = 0; i < BLOCK * ld; i++) c[i] *= p->scale;
  for (i = rows.i0; i < rows.i1; i++)
    tsri_ref_store_row_f32(&p->dq, call->a->dq, head->b, head->h, head->seq.q.begin + i,
                           c + (i - rows.i0) * ld, p->dim_qk, add);
}

/* c[keys][ld] += over the rows of one query head: dX^T Q (dv 0) or P^T dO (dv 1). */
static void add_keys(const tsri_ref_head *head, int dv, int64_t j0, int64_t keys, int64_t ld,
                     float *a, float *b, float *c) {
  const tsri_ref_call *call = head->call;
  const int64_t sq = head->seq.q.len;
  float line[BLOCK], scratch[BLOCK];
  int64_t i, i0, j;
  for (i0 = 0; i0 < sq; i0 += DEPTH) {
    const int64_t n = sq - i0 < DEPTH ? sq - i0 : DEPTH;
    for (i = 0; i < n; i++) {
      if (dv)
        dropped_row(head, i0 + i, j0, keys, line);
      else
        dx_row(head, i0 + i, j0, keys, scratch, line);
      for (j = 0; j < keys; j++) a[j * DEPTH + i] = line[j];
    }
    tsri_naive_pack(dv ? &call->dout : &call->q, head->b, head->h, &head->seq.q, i0, n, b, ld);
    tsri_naive_product(keys, ld, n, a, DEPTH, b, ld, c, ld, 1);
  }
}

static int64_t keys_count(const tsri_ref_call *call) {
  const tsr_problem *p = call->p;
  if (!wanted(&p->dk) && !wanted(&p->dv)) return 0;
  return p->batch * p->heads_kv * ((p->seq_k + BLOCK - 1) / BLOCK);
}

static void keys_task(void *arg, int64_t index, int32_t worker) {
  const tsri_ref_call *call = (const tsri_ref_call *)arg;
  const tsr_problem *p = call->p;
  const int64_t blocks = (p->seq_k + BLOCK - 1) / BLOCK, bg = index / blocks;
  const int64_t b = bg / p->heads_kv, g = bg % p->heads_kv, j0 = index % blocks * BLOCK;
  const int64_t widest = tsri_naive_lanes(p->dim_qk > p->dim_v ? p->dim_qk : p->dim_v);
  const tsri_ref_head first = tsri_ref_head_of(call, b, g * call->r->group);
  const tsri_span *span = &first.seq.k;
  const int64_t keys = span->len - j0 < BLOCK ? span->len - j0 : BLOCK;
  tsri_workspace ws = tsri_ref_worker(call, worker);
  float *a = (float *)tsri_workspace_take(&ws, BLOCK * DEPTH, sizeof(float));
  float *rows = (float *)tsri_workspace_take(&ws, DEPTH * widest, sizeof(float));
  float *c = (float *)tsri_workspace_take(&ws, BLOCK * widest, sizeof(float));
  int dv;
  int64_t i, n;

  for (dv = 0; dv < 2; dv++) {
    const tsr_layout *out = dv ? &p->dv : &p->dk;
    void *data = dv ? call->a->dv : call->a->dk;
    const int64_t dim = dv ? p->dim_v : p->dim_qk, ld = tsri_naive_lanes(dim);
    const int add = (p->accumulate & (uint32_t)(dv ? TSR_ACCUMULATE_DV : TSR_ACCUMULATE_DK)) != 0;
    if (!wanted(out)) continue;
    if (j0 == 0) tsri_ref_zero_padding(out, data, b, g, span, dim, add);
    if (keys <= 0) continue;
    memset(c, 0, (size_t)(BLOCK * ld) * sizeof(float));
    for (n = 0; n < call->r->group; n++) {
      const tsri_ref_head head = tsri_ref_head_of(call, b, g * call->r->group + n);
      add_keys(&head, dv, j0, keys, ld, a, rows, c);
    }
    for (i = 0; !dv && i < keys * ld; i++) c[i] *= p->scale;
    for (i = 0; i < keys; i++)
      tsri_ref_store_row_f32(out, data, b, g, span->begin + j0 + i, c + i * ld, dim, add);
  }
}

/* -------------------------------------------------------------- phases 7 and 8: dBias and dSink */

static int64_t dbias_count(const tsri_ref_call *call) {
  tsri_ref_bias_shape shape;
  if (!wanted(&call->p->dbias)) return 0;
  shape = tsri_ref_dbias_shape(call->p);
  return shape.batch * shape.heads;
}

static void dbias_task(void *arg, int64_t index, int32_t worker) {
  const tsri_ref_call *call = (const tsri_ref_call *)arg;
  const tsr_problem *p = call->p;
  const tsri_ref_bias_shape shape = tsri_ref_dbias_shape(p);
  const tsri_naive_matrix ds = tsri_naive_matrix_of(call, MATRIX_DS);
  const int64_t b0 = index / shape.heads, h0 = index % shape.heads;
  const int64_t b1 = p->dbias.stride[0] ? b0 + 1 : p->batch;
  const int64_t h1 = p->dbias.stride[1] ? h0 + 1 : p->heads_q;
  const int64_t step_i = p->dbias.stride[2] ? shape.seq_k : 0, step_j = p->dbias.stride[3] ? 1 : 0;
  const int64_t total = shape.seq_q * shape.seq_k;
  tsri_workspace ws = tsri_ref_worker(call, worker);
  float *sum = (float *)tsri_workspace_take(&ws, total, sizeof(float));
  int64_t b, h, i, j;

  memset(sum, 0, (size_t)total * sizeof(float));
  for (b = b0; b < b1; b++)
    for (h = h0; h < h1; h++) {
      const tsri_ref_head head = tsri_ref_head_of(call, b, h);
      for (i = 0; i < head.seq.q.len; i++)
        for (j = 0; j < head.seq.k.len; j++)
          sum[i * step_i + j * step_j] +=
              tsri_load_f32(ds.dtype, ds.data, tsri_naive_at(&ds, b * p->heads_q + h, i, j));
    }
  for (i = 0; i < shape.seq_q; i++)
    for (j = 0; j < shape.seq_k; j++) {
      const int64_t at = tsri_pair_offset(p->dbias.stride, b0, h0, i, j);
      float value = sum[i * shape.seq_k + j];
      if (p->accumulate & TSR_ACCUMULATE_DBIAS)
        value += tsri_load_f32(p->dbias.dtype, call->a->dbias, at);
      tsri_store_f32(p->dbias.dtype, call->a->dbias, at, value);
    }
}

static int64_t dsink_count(const tsri_ref_call *call) {
  return call->p->dsink ? call->p->heads_q : 0;
}

static void dsink_task(void *arg, int64_t index, int32_t worker) {
  const tsri_ref_call *call = (const tsri_ref_call *)arg;
  const tsr_problem *p = call->p;
  float sum = (p->accumulate & TSR_ACCUMULATE_DSINK) ? call->a->dsink[index] : 0;
  int64_t b, i;
  (void)worker;
  for (b = 0; b < p->batch; b++) {
    const tsri_ref_head head = tsri_ref_head_of(call, b, index);
    const float *values = row_values(call, b * p->heads_q + index);
    for (i = 0; i < head.seq.q.len; i++) sum += values[i];
  }
  call->a->dsink[index] = sum;
}

tsri_ref_memory tsri_naive_backward_memory(const tsr_resolved *r) {
  const tsr_problem *p = &r->p;
  const int64_t widest = tsri_naive_lanes(p->dim_qk > p->dim_v ? p->dim_qk : p->dim_v);
  const int64_t scores = tsri_naive_scores_bytes(p);
  const int64_t rows = tsri_mul_sat(tsri_mul_sat(p->batch, p->heads_q), p->seq_q);
  tsri_ref_memory memory = {0, 0};
  tsri_workspace shared = {NULL, 0}, ws = {NULL, 0}, weights = {NULL, 0}, bias = {NULL, 0};
  (void)tsri_workspace_take(&shared, tsri_naive_matrix_bytes(r, TSR_PASS_BACKWARD), 1);
  (void)tsri_workspace_take(&shared, rows, sizeof(float));
  (void)tsri_workspace_take(&ws, BLOCK * DEPTH, sizeof(float));
  (void)tsri_workspace_take(&ws, DEPTH * widest, sizeof(float));
  (void)tsri_workspace_take(&ws, BLOCK * widest, sizeof(float));
  (void)tsri_workspace_take(&weights, p->seq_k, sizeof(float));
  (void)tsri_workspace_take(&weights, p->seq_k, sizeof(float));
  if (wanted(&p->dbias)) {
    const tsri_ref_bias_shape shape = tsri_ref_dbias_shape(p);
    (void)tsri_workspace_take(&bias, tsri_mul_sat(shape.seq_q, shape.seq_k), sizeof(float));
  }
  memory.shared = shared.used;
  memory.worker = ws.used > scores ? ws.used : scores;
  if (weights.used > memory.worker) memory.worker = weights.used;
  if (bias.used > memory.worker) memory.worker = bias.used;
  return memory;
}

const tsri_ref_phase tsri_naive_backward_phases[TSRI_NAIVE_BACKWARD_PHASES] = {
    {tsri_naive_row_tasks, scores_task},
    {tsri_naive_row_tasks, softmax_task},
    {tsri_naive_row_tasks, dp_task},
    {tsri_naive_row_tasks, ds_task},
    {dq_count, dq_task},
    {keys_count, keys_task},
    {dbias_count, dbias_task},
    {dsink_count, dsink_task}};
