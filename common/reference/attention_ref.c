// SPDX-License-Identifier: Apache-2.0
//
// Forward pass of the oracle, and the softmax of a block of rows that backward shares:
//   s = scores (score.h), m = max s, l = sum exp(s - m) + exp(sink - m), p = exp(s - m) / l,
//   LSE = m + ln l, O = sum_j keep_j p_j v_j
// over allowed keys only, each sum in the order of the keys. A row without a finite or infinite
// score to hold on to (m = -inf) is empty: O = 0, LSE = -inf. Called phase by phase from
// backend_ref.c.
#include "attention_ref.h"

#include <math.h>

#include "common/bias.h"
#include "common/score.h"

enum { R = TSRI_REF_ROWS };

void tsri_ref_block_take(tsri_ref_block *block, const tsr_problem *p, tsri_workspace *ws) {
  const int64_t widest = p->dim_qk > p->dim_v ? p->dim_qk : p->dim_v;
  block->q = (double *)tsri_workspace_take(ws, p->dim_qk * R, sizeof(double));
  block->row = (double *)tsri_workspace_take(ws, widest, sizeof(double));
  block->p = (double *)tsri_workspace_take(ws, tsri_mul_sat(p->seq_k, R), sizeof(double));
  block->seen = (uint8_t *)tsri_workspace_take(ws, p->seq_k, 1);
}

double tsri_ref_block_keep(const tsri_ref_block *block, int r, int64_t j) {
  const tsri_ref_call *call = block->head.call;
  if (!(call->p->dropout > 0)) return 1;
  return tsri_dropout_keep(call->key, call->r->drop_threshold,
                           block->head.b * call->p->heads_q + block->head.h, block->i0 + r, j)
             ? call->keep_scale
             : 0;
}

/* Rows of the block that may see key j, as bits. */
static uint8_t allowed_rows(const tsri_ref_block *block, const tsri_mask_row *row, int64_t j) {
  unsigned seen = 0;
  int r;
  for (r = 0; r < block->rows; r++)
    if (tsri_mask_allows(&row[r], j) && tsri_ref_mask_tensors(&block->head, block->i0 + r, j))
      seen |= 1u << r;
  return (uint8_t)seen;
}

static void block_scores(tsri_ref_block *block) {
  const tsri_ref_head *head = &block->head;
  const tsr_problem *p = head->call->p;
  const double scale = p->scale, cap = p->softcap;
  const int64_t sq = head->seq.q.len, sk = head->seq.k.len;
  tsri_mask_row row[R];
  int64_t j, d;
  int r;

  for (r = 0; r < block->rows; r++) row[r] = tsri_mask_row_of(&head->rule, block->i0 + r);
  for (j = 0; j < sk; j++) {
    double *const s = block->p + j * R;
    double dot[R] = {0};
    block->seen[j] = allowed_rows(block, row, j);
    if (block->seen[j]) {
      tsri_ref_load_row_f64(&head->call->k, head->b, head->g, head->seq.k.begin + j, block->row);
      for (d = 0; d < p->dim_qk; d++)
        for (r = 0; r < R; r++) dot[r] += block->q[d * R + r] * block->row[d];
    }
    for (r = 0; r < R; r++) {
      const int64_t i = block->i0 + r;
      s[r] = -INFINITY;
      if (block->seen[j] >> r & 1)
        s[r] = tsri_score_f64(dot[r], scale, cap, tsri_ref_bias(head, i, j), head->slope,
                              tsri_alibi_distance(i, j, sq, sk));
    }
  }
}

void tsri_ref_block_softmax(tsri_ref_block *block, const tsri_ref_head *head, int64_t i0,
                            int rows) {
  const tsri_ref_call *call = head->call;
  const int64_t dim = call->p->dim_qk, sk = head->seq.k.len;
  int64_t j, d;
  int r;

  block->head = *head;
  block->i0 = i0;
  block->rows = rows;
  for (r = 0; r < R; r++) {
    if (r < rows)
      tsri_ref_load_row_f64(&call->q, head->b, head->h, head->seq.q.begin + i0 + r, block->row);
    for (d = 0; d < dim; d++) block->q[d * R + r] = r < rows ? block->row[d] : 0;
  }
  block_scores(block);

  for (r = 0; r < rows; r++) {
    double *const s = block->p + r;
    double m = -INFINITY, top, sum = 0;
    /* A NaN wins over every number, as it would in the sum. */
    for (j = 0; j < sk; j++)
      if (s[j * R] > m || isnan(s[j * R])) m = s[j * R];
    top = head->sink > m || isnan(head->sink) ? head->sink : m;
    block->max[r] = m;
    block->lse[r] = -INFINITY;
    block->sink[r] = 0;
    if (top == -INFINITY) { /* an empty row: every p is 0 */
      for (j = 0; j < sk; j++) s[j * R] = 0;
      continue;
    }
    for (j = 0; j < sk; j++) {
      s[j * R] = block->seen[j] >> r & 1 ? exp(s[j * R] - top) : 0;
      sum += s[j * R];
    }
    if (call->p->sink) {
      block->sink[r] = exp(head->sink - top);
      sum += block->sink[r];
    }
    for (j = 0; j < sk; j++) s[j * R] /= sum;
    block->sink[r] /= sum;
    block->lse[r] = top + log(sum);
  }
}

/* acc[r][d] = sum_j keep p v over the keys that row r may see. */
static void block_output(tsri_ref_block *block, double *acc) {
  const tsri_ref_head *head = &block->head;
  const int64_t dim = head->call->p->dim_v, sk = head->seq.k.len;
  int64_t j, d;
  int r;
  memset(acc, 0, (size_t)(dim * R) * sizeof *acc);
  for (j = 0; j < sk; j++) {
    if (!block->seen[j]) continue;
    tsri_ref_load_row_f64(&head->call->v, head->b, head->g, head->seq.k.begin + j, block->row);
    for (r = 0; r < block->rows; r++) {
      double *const out = acc + r * dim;
      double w;
      if (!(block->seen[j] >> r & 1) || block->lse[r] == -INFINITY) continue;
      w = block->p[j * R + r] * tsri_ref_block_keep(block, r, j);
      for (d = 0; d < dim; d++) out[d] += w * block->row[d];
    }
  }
}

static void store_state(const tsri_ref_head *head, int64_t row, double lse, double max) {
  const tsr_problem *p = head->call->p;
  const tsr_args *a = head->call->a;
  if (p->lse.dtype != TSR_DTYPE_NONE)
    tsri_ref_store_row_f64(&p->lse, a->lse, head->b, head->h, row, &lse, 1, 0);
  if (p->max_logit.dtype != TSR_DTYPE_NONE)
    tsri_ref_store_row_f64(&p->max_logit, a->max_logit, head->b, head->h, row, &max, 1, 0);
}

/* Blocks of eight rows of the longest slot, for every head. */
static int64_t forward_count(const tsri_ref_call *call) {
  const tsr_problem *p = call->p;
  return p->batch * p->heads_q * ((p->seq_q + R - 1) / R);
}

static void forward_task(void *arg, int64_t index, int32_t worker) {
  const tsri_ref_call *call = (const tsri_ref_call *)arg;
  const tsr_problem *p = call->p;
  const int64_t blocks = (p->seq_q + R - 1) / R;
  const int64_t first = index % blocks * R, bh = index / blocks;
  const tsri_ref_head head = tsri_ref_head_of(call, bh / p->heads_q, bh % p->heads_q);
  const tsri_span *span = &head.seq.q;
  const int64_t last = first + R < span->slot_len ? first + R : span->slot_len;
  const int64_t pad = span->begin - span->slot_begin;
  void *const o = (void *)(uintptr_t)call->a->o; /* const for backward, an output here */
  int64_t i0 = first > pad ? first - pad : 0, i1 = last - pad, slot;
  tsri_workspace ws = tsri_ref_worker(call, worker);
  tsri_ref_block block;
  double *acc;

  tsri_ref_block_take(&block, p, &ws);
  acc = (double *)tsri_workspace_take(&ws, p->dim_v * R, sizeof(double));
  if (i1 > span->len) i1 = span->len;
  if (i1 > i0) {
    tsri_ref_block_softmax(&block, &head, i0, (int)(i1 - i0));
    block_output(&block, acc);
  }
  for (slot = first; slot < last; slot++) {
    const int64_t i = slot - pad, row = span->slot_begin + slot;
    if (i >= i0 && i < i1) {
      tsri_ref_store_row_f64(&p->o, o, head.b, head.h, row, acc + (i - i0) * p->dim_v, p->dim_v, 0);
      store_state(&head, row, block.lse[i - i0], block.max[i - i0]);
    } else {
      tsri_ref_store_zero(&p->o, o, head.b, head.h, row, p->dim_v, 0);
      store_state(&head, row, -INFINITY, -INFINITY);
    }
  }
}

tsri_ref_memory tsri_ref_forward_memory(const tsr_resolved *r) {
  tsri_ref_memory memory = {0, 0};
  tsri_workspace ws = {NULL, 0};
  tsri_ref_block block;
  tsri_ref_block_take(&block, &r->p, &ws);
  (void)tsri_workspace_take(&ws, r->p.dim_v * R, sizeof(double));
  memory.worker = ws.used;
  return memory;
}

const tsri_ref_phase tsri_ref_forward_phases[1] = {{forward_count, forward_task}};
