// SPDX-License-Identifier: Apache-2.0
//
// Backward pass of the oracle. With P the probabilities before dropout, K_ij = keep / (1 - p_drop):
//   dV_j += P_ij K_ij dO_i          dP_ij = K_ij (dO_i . v_j)
//   D_i = sum_j P_ij dP_ij - dLSE_i  (= dO_i . O_i - dLSE_i, without needing O)
//   dS_ij = P_ij (dP_ij - D_i)       dBias = dS summed over broadcast axes
//   dX_ij = scale softcap'(scale q.k) dS_ij;  dQ_i = sum_j dX_ij k_j;  dK_j += dX_ij q_i
//   dsink = - sum_i p_sink,i D_i     p_sink = exp(sink - m) / l
// Three phases, each output owned by one task and summed in a fixed order: dQ, dK, dV and the
// sink's partial sums per KV head; dBias per element of its batch and head axes; the sum of the
// sinks.
#include <math.h>

#include "attention_ref.h"
#include "common/bias.h"
#include "common/score.h"

enum { R = TSRI_REF_ROWS };

/* A block with what backward adds to it. */
typedef struct grad_block {
  tsri_ref_block block;
  double *dout; /* [Dv][8] */
  double *ds;   /* [Sk][8]: dP, then dS */
  double d[TSRI_REF_ROWS];
} grad_block;

/* Accumulators of one KV head. */
typedef struct grad_sums {
  double *dq; /* [8][Dqk], of the current block */
  double *dk; /* [Sk][Dqk] */
  double *dv; /* [Sk][Dv] */
} grad_sums;

static int wanted(const tsr_layout *layout) {
  return layout->dtype != TSR_DTYPE_NONE;
}

static void grad_take(grad_block *grad, const tsr_problem *p, tsri_workspace *ws) {
  tsri_ref_block_take(&grad->block, p, ws);
  grad->dout = (double *)tsri_workspace_take(ws, p->dim_v * R, sizeof(double));
  grad->ds = (double *)tsri_workspace_take(ws, tsri_mul_sat(p->seq_k, R), sizeof(double));
}

static void sums_take(grad_sums *sums, const tsr_problem *p, tsri_workspace *ws) {
  const int64_t keys_k = wanted(&p->dk) ? p->seq_k : 0, keys_v = wanted(&p->dv) ? p->seq_k : 0;
  sums->dq = (double *)tsri_workspace_take(ws, p->dim_qk * R, sizeof(double));
  sums->dk = (double *)tsri_workspace_take(ws, tsri_mul_sat(keys_k, p->dim_qk), sizeof(double));
  sums->dv = (double *)tsri_workspace_take(ws, tsri_mul_sat(keys_v, p->dim_v), sizeof(double));
}

static double upstream_lse(const tsri_ref_head *head, int64_t i) {
  const tsr_layout *dlse = &head->call->p->dlse;
  if (!wanted(dlse)) return 0;
  return head->call->a
      ->dlse[tsri_row_offset(dlse->stride, head->b, head->h, head->seq.q.begin + i)];
}

/* Whether p of row r at key j can be anything but a structural zero. */
static int alive(const tsri_ref_block *block, int r, int64_t j) {
  return (block->seen[j] >> r & 1) && block->lse[r] != -INFINITY;
}

/* Probabilities, D and dS of rows i0 .. i0 + rows - 1. */
static void grad_scores(grad_block *grad, const tsri_ref_head *head, int64_t i0, int rows) {
  tsri_ref_block *const block = &grad->block;
  const tsri_ref_call *call = head->call;
  const int64_t dim = call->p->dim_v, sk = head->seq.k.len;
  int64_t j, d;
  int r;

  tsri_ref_block_softmax(block, head, i0, rows);
  for (r = 0; r < R; r++) {
    if (r < rows)
      tsri_ref_load_row_f64(&call->dout, head->b, head->h, head->seq.q.begin + i0 + r, block->row);
    for (d = 0; d < dim; d++) grad->dout[d * R + r] = r < rows ? block->row[d] : 0;
    grad->d[r] = 0;
  }
  for (j = 0; j < sk; j++) {
    double *const dp = grad->ds + j * R;
    for (r = 0; r < R; r++) dp[r] = 0;
    if (!block->seen[j]) continue;
    tsri_ref_load_row_f64(&call->v, head->b, head->g, head->seq.k.begin + j, block->row);
    for (d = 0; d < dim; d++)
      for (r = 0; r < R; r++) dp[r] += grad->dout[d * R + r] * block->row[d];
    for (r = 0; r < rows; r++) {
      if (!alive(block, r, j)) continue;
      dp[r] *= tsri_ref_block_keep(block, r, j);
      grad->d[r] += block->p[j * R + r] * dp[r];
    }
  }
  for (r = 0; r < rows; r++) grad->d[r] -= upstream_lse(head, i0 + r);
  for (j = 0; j < sk; j++)
    for (r = 0; r < rows; r++) {
      double *const ds = &grad->ds[j * R + r];
      *ds = alive(block, r, j) ? block->p[j * R + r] * (*ds - grad->d[r]) : 0;
    }
}

/* Adds a block to dQ, dK and dV. */
static void grad_products(grad_block *grad, grad_sums *sums) {
  const tsri_ref_block *block = &grad->block;
  const tsri_ref_head *head = &block->head;
  const tsr_problem *p = head->call->p;
  const int64_t sk = head->seq.k.len;
  const double scale = p->scale, cap = p->softcap;
  int64_t j, d;
  int r;

  memset(sums->dq, 0, (size_t)(p->dim_qk * R) * sizeof(double));
  for (j = 0; j < sk; j++) {
    double dot[R] = {0};
    if (!block->seen[j]) continue;
    tsri_ref_load_row_f64(&head->call->k, head->b, head->g, head->seq.k.begin + j, block->row);
    if (cap > 0)
      for (d = 0; d < p->dim_qk; d++)
        for (r = 0; r < R; r++) dot[r] += block->q[d * R + r] * block->row[d];
    for (r = 0; r < block->rows; r++) {
      double dx, w;
      if (!alive(block, r, j)) continue;
      dx = scale * tsri_softcap_grad_f64(scale * dot[r], cap) * grad->ds[j * R + r];
      w = block->p[j * R + r] * tsri_ref_block_keep(block, r, j);
      for (d = 0; d < p->dim_qk; d++) sums->dq[r * p->dim_qk + d] += dx * block->row[d];
      if (wanted(&p->dk))
        for (d = 0; d < p->dim_qk; d++) sums->dk[j * p->dim_qk + d] += dx * block->q[d * R + r];
      if (wanted(&p->dv))
        for (d = 0; d < p->dim_v; d++) sums->dv[j * p->dim_v + d] += w * grad->dout[d * R + r];
    }
  }
}

/* Minus the sum of p_sink D over a block's rows. */
static double sink_part(const grad_block *grad) {
  const tsri_ref_block *block = &grad->block;
  double sum = 0;
  int r;
  for (r = 0; r < block->rows; r++)
    if (block->lse[r] != -INFINITY) sum -= block->sink[r] * grad->d[r];
  return sum;
}

/* --------------------------------------------------------------- phase 1: one KV head per task */

static int64_t heads_count(const tsri_ref_call *call) {
  const tsr_problem *p = call->p;
  if (!wanted(&p->dq) && !wanted(&p->dk) && !wanted(&p->dv) && !p->dsink) return 0;
  return p->batch * p->heads_kv;
}

/* dQ of one query head; adds to dK and dV; leaves the sink's part in the shared memory. */
static void query_head(const tsri_ref_call *call, const tsri_ref_head *head, grad_block *grad,
                       grad_sums *sums) {
  const tsr_problem *p = call->p;
  const int add_dq = (p->accumulate & TSR_ACCUMULATE_DQ) != 0;
  const tsri_span *span = &head->seq.q;
  double sink = 0;
  int64_t i0, r;
  for (i0 = 0; i0 < span->len; i0 += R) {
    const int rows = (int)(span->len - i0 < R ? span->len - i0 : R);
    grad_scores(grad, head, i0, rows);
    grad_products(grad, sums);
    if (p->dsink) sink += sink_part(grad);
    for (r = 0; wanted(&p->dq) && r < rows; r++)
      tsri_ref_store_row_f64(&p->dq, call->a->dq, head->b, head->h, span->begin + i0 + r,
                             sums->dq + r * p->dim_qk, p->dim_qk, add_dq);
  }
  if (wanted(&p->dq))
    tsri_ref_zero_padding(&p->dq, call->a->dq, head->b, head->h, span, p->dim_qk, add_dq);
  if (p->dsink) ((double *)call->shared)[head->b * p->heads_q + head->h] = sink;
}

static void store_keys(const tsri_ref_head *head, const tsr_layout *layout, void *data,
                       const double *sum, int64_t dim, int accumulate) {
  const tsri_span *span = &head->seq.k;
  int64_t j;
  if (!wanted(layout)) return;
  for (j = 0; j < span->len; j++)
    tsri_ref_store_row_f64(layout, data, head->b, head->g, span->begin + j, sum + j * dim, dim,
                           accumulate);
  tsri_ref_zero_padding(layout, data, head->b, head->g, span, dim, accumulate);
}

static void heads_task(void *arg, int64_t index, int32_t worker) {
  const tsri_ref_call *call = (const tsri_ref_call *)arg;
  const tsr_problem *p = call->p;
  const int64_t b = index / p->heads_kv, g = index % p->heads_kv;
  tsri_workspace ws = tsri_ref_worker(call, worker);
  tsri_ref_head head = tsri_ref_head_of(call, b, g * call->r->group);
  grad_block grad;
  grad_sums sums;
  int32_t n;

  grad_take(&grad, p, &ws);
  sums_take(&sums, p, &ws);
  if (wanted(&p->dk)) memset(sums.dk, 0, (size_t)(head.seq.k.len * p->dim_qk) * sizeof(double));
  if (wanted(&p->dv)) memset(sums.dv, 0, (size_t)(head.seq.k.len * p->dim_v) * sizeof(double));
  for (n = 0; n < call->r->group; n++) {
    head = tsri_ref_head_of(call, b, g * call->r->group + n);
    query_head(call, &head, &grad, &sums);
  }
  store_keys(&head, &p->dk, call->a->dk, sums.dk, p->dim_qk,
             (p->accumulate & TSR_ACCUMULATE_DK) != 0);
  store_keys(&head, &p->dv, call->a->dv, sums.dv, p->dim_v,
             (p->accumulate & TSR_ACCUMULATE_DV) != 0);
}

/* ---------------------------------------- phase 2: one (batch, head) element of dBias per task */

static int64_t dbias_count(const tsri_ref_call *call) {
  tsri_ref_bias_shape shape;
  if (!wanted(&call->p->dbias)) return 0;
  shape = tsri_ref_dbias_shape(call->p);
  return shape.batch * shape.heads;
}

/* Adds dS of one query head to sum[seq_q or 1][seq_k or 1]. */
static void dbias_add(const tsri_ref_head *head, const tsri_ref_bias_shape *shape, grad_block *grad,
                      double *sum) {
  const int64_t step_i = shape->seq_q == 1 ? 0 : shape->seq_k, step_j = shape->seq_k == 1 ? 0 : 1;
  int64_t i0, j;
  int r;
  for (i0 = 0; i0 < head->seq.q.len; i0 += R) {
    const int rows = (int)(head->seq.q.len - i0 < R ? head->seq.q.len - i0 : R);
    grad_scores(grad, head, i0, rows);
    for (j = 0; j < head->seq.k.len; j++)
      for (r = 0; r < rows; r++) sum[(i0 + r) * step_i + j * step_j] += grad->ds[j * R + r];
  }
}

static void dbias_task(void *arg, int64_t index, int32_t worker) {
  const tsri_ref_call *call = (const tsri_ref_call *)arg;
  const tsr_problem *p = call->p;
  const tsri_ref_bias_shape shape = tsri_ref_dbias_shape(p);
  const int64_t b0 = index / shape.heads, h0 = index % shape.heads;
  const int64_t b1 = p->dbias.stride[0] ? b0 + 1 : p->batch;
  const int64_t h1 = p->dbias.stride[1] ? h0 + 1 : p->heads_q;
  tsri_workspace ws = tsri_ref_worker(call, worker);
  grad_block grad;
  double *sum;
  int64_t b, h, i, j;

  grad_take(&grad, p, &ws);
  sum = (double *)tsri_workspace_take(&ws, shape.seq_q * shape.seq_k, sizeof(double));
  memset(sum, 0, (size_t)(shape.seq_q * shape.seq_k) * sizeof(double));
  for (b = b0; b < b1; b++)
    for (h = h0; h < h1; h++) {
      const tsri_ref_head head = tsri_ref_head_of(call, b, h);
      dbias_add(&head, &shape, &grad, sum);
    }
  for (i = 0; i < shape.seq_q; i++)
    for (j = 0; j < shape.seq_k; j++) {
      const int64_t at = tsri_pair_offset(p->dbias.stride, b0, h0, i, j);
      double value = sum[i * shape.seq_k + j];
      if (p->accumulate & TSR_ACCUMULATE_DBIAS)
        value += tsri_load_f64(p->dbias.dtype, call->a->dbias, at);
      tsri_store_f64(p->dbias.dtype, call->a->dbias, at, value);
    }
}

/* ----------------------------------------------------------------------- phase 3: sum of sinks */

static int64_t dsink_count(const tsri_ref_call *call) {
  return call->p->dsink ? call->p->heads_q : 0;
}

static void dsink_task(void *arg, int64_t index, int32_t worker) {
  const tsri_ref_call *call = (const tsri_ref_call *)arg;
  const tsr_problem *p = call->p;
  double sum = (p->accumulate & TSR_ACCUMULATE_DSINK) ? call->a->dsink[index] : 0;
  int64_t b;
  (void)worker;
  for (b = 0; b < p->batch; b++) sum += ((const double *)call->shared)[b * p->heads_q + index];
  call->a->dsink[index] = (float)sum;
}

tsri_ref_memory tsri_ref_backward_memory(const tsr_resolved *r) {
  const tsr_problem *p = &r->p;
  tsri_ref_memory memory = {0, 0};
  tsri_workspace shared = {NULL, 0}, heads = {NULL, 0}, bias = {NULL, 0};
  grad_block grad;
  grad_sums sums;
  if (p->dsink)
    (void)tsri_workspace_take(&shared, tsri_mul_sat(p->batch, p->heads_q), sizeof(double));
  grad_take(&grad, p, &heads);
  sums_take(&sums, p, &heads);
  if (wanted(&p->dbias)) {
    const tsri_ref_bias_shape shape = tsri_ref_dbias_shape(p);
    grad_take(&grad, p, &bias);
    (void)tsri_workspace_take(&bias, tsri_mul_sat(shape.seq_q, shape.seq_k), sizeof(double));
  }
  memory.shared = shared.used;
  memory.worker = heads.used > bias.used ? heads.used : bias.used;
  return memory;
}

const tsri_ref_phase tsri_ref_backward_phases[3] = {
    {heads_count, heads_task}, {dbias_count, dbias_task}, {dsink_count, dsink_task}};
