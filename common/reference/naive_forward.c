// SPDX-License-Identifier: Apache-2.0
//
// Forward pass of the baseline (naive.h): three phases over the whole problem, each of which reads
// and writes the materialised matrix, as frameworks without a fused kernel do.
#include <math.h>

#include "naive_parts.h"

static void scores_task(void *arg, int64_t index, int32_t worker) {
  const tsri_ref_call *call = (const tsri_ref_call *)arg;
  const tsri_naive_rows rows = tsri_naive_rows_of(call, index);
  const tsri_naive_matrix s = tsri_naive_matrix_of(call, 0);
  tsri_workspace ws = tsri_ref_worker(call, worker);
  if (rows.i1 > rows.i0)
    tsri_naive_scores(&rows.head, &call->q, &call->k, call->p->scale, &s, rows.i0, rows.i1, &ws);
}

static void softmax_task(void *arg, int64_t index, int32_t worker) {
  const tsri_ref_call *call = (const tsri_ref_call *)arg;
  const tsr_problem *p = call->p;
  const tsri_naive_rows rows = tsri_naive_rows_of(call, index);
  const tsri_ref_head *head = &rows.head;
  const tsri_naive_matrix s = tsri_naive_matrix_of(call, 0);
  tsri_workspace ws = tsri_ref_worker(call, worker);
  float *weights = (float *)tsri_workspace_take(&ws, p->seq_k, sizeof(float));
  int64_t i;
  for (i = rows.i0; i < rows.i1; i++) {
    float max, lse;
    tsri_naive_softmax_row(head, &s, &s, i, 1, weights, &max, &lse);
    if (p->lse.dtype != TSR_DTYPE_NONE)
      tsri_ref_store_row_f32(&p->lse, call->a->lse, head->b, head->h, head->seq.q.begin + i, &lse,
                             1, 0);
    if (p->max_logit.dtype != TSR_DTYPE_NONE)
      tsri_ref_store_row_f32(&p->max_logit, call->a->max_logit, head->b, head->h,
                             head->seq.q.begin + i, &max, 1, 0);
  }
}

/* Rows of O, LSE and maxima of the slot that no query uses. */
static void empty_padding(const tsri_ref_head *head) {
  const tsr_problem *p = head->call->p;
  const tsr_args *a = head->call->a;
  const tsri_span *span = &head->seq.q;
  const float empty = -INFINITY;
  int64_t row;
  tsri_ref_zero_padding(&p->o, (void *)(uintptr_t)a->o, head->b, head->h, span, p->dim_v, 0);
  for (row = span->slot_begin; row < span->slot_begin + span->slot_len; row++) {
    if (row >= span->begin && row < span->begin + span->len) continue;
    if (p->lse.dtype != TSR_DTYPE_NONE)
      tsri_ref_store_row_f32(&p->lse, a->lse, head->b, head->h, row, &empty, 1, 0);
    if (p->max_logit.dtype != TSR_DTYPE_NONE)
      tsri_ref_store_row_f32(&p->max_logit, a->max_logit, head->b, head->h, row, &empty, 1, 0);
  }
}

/* O = P V for a block of rows. */
static void output_task(void *arg, int64_t index, int32_t worker) {
  const tsri_ref_call *call = (const tsri_ref_call *)arg;
  const tsr_problem *p = call->p;
  const tsri_naive_rows rows = tsri_naive_rows_of(call, index);
  const tsri_ref_head *head = &rows.head;
  const tsri_naive_matrix m = tsri_naive_matrix_of(call, 0);
  const int64_t ld = tsri_naive_lanes(p->dim_v), sk = head->seq.k.len;
  tsri_workspace ws = tsri_ref_worker(call, worker);
  float *a = (float *)tsri_workspace_take(&ws, BLOCK * DEPTH, sizeof(float));
  float *b = (float *)tsri_workspace_take(&ws, DEPTH * ld, sizeof(float));
  float *c = (float *)tsri_workspace_take(&ws, BLOCK * ld, sizeof(float));
  int64_t i, j0;

  if (rows.i0 == 0) empty_padding(head);
  if (rows.i1 <= rows.i0) return;
  memset(c, 0, (size_t)(BLOCK * ld) * sizeof(float));
  for (j0 = 0; j0 < sk; j0 += DEPTH) {
    const int64_t keys = sk - j0 < DEPTH ? sk - j0 : DEPTH;
    for (i = rows.i0; i < rows.i1; i++)
      tsri_naive_load(&m, tsri_naive_at(&m, rows.bh, i, j0), keys, a + (i - rows.i0) * DEPTH);
    tsri_naive_pack(&call->v, head->b, head->g, &head->seq.k, j0, keys, b, ld);
    tsri_naive_product(rows.i1 - rows.i0, ld, keys, a, DEPTH, b, ld, c, ld, 1);
  }
  for (i = rows.i0; i < rows.i1; i++)
    tsri_ref_store_row_f32(&p->o, (void *)(uintptr_t)call->a->o, head->b, head->h,
                           head->seq.q.begin + i, c + (i - rows.i0) * ld, p->dim_v, 0);
}

tsri_ref_memory tsri_naive_forward_memory(const tsr_resolved *r) {
  const tsr_problem *p = &r->p;
  const int64_t ld = tsri_naive_lanes(p->dim_v), scores = tsri_naive_scores_bytes(p);
  tsri_ref_memory memory = {0, 0};
  tsri_workspace ws = {NULL, 0}, weights = {NULL, 0};
  (void)tsri_workspace_take(&ws, BLOCK * DEPTH, sizeof(float));
  (void)tsri_workspace_take(&ws, DEPTH * ld, sizeof(float));
  (void)tsri_workspace_take(&ws, BLOCK * ld, sizeof(float));
  (void)tsri_workspace_take(&weights, p->seq_k, sizeof(float));
  memory.shared = tsri_naive_matrix_bytes(r, TSR_PASS_FORWARD);
  memory.worker = ws.used > scores ? ws.used : scores;
  if (weights.used > memory.worker) memory.worker = weights.used;
  return memory;
}

const tsri_ref_phase tsri_naive_forward_phases[3] = {{tsri_naive_row_tasks, scores_task},
                                                     {tsri_naive_row_tasks, softmax_task},
                                                     {tsri_naive_row_tasks, output_task}};
