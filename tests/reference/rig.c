// SPDX-License-Identifier: Apache-2.0
//
// Builds resolved problems by hand for the tests of the reference backend (rig.h).
#include "rig.h"

#include <criterion/criterion.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "common/dropout.h"

const tsr_backend *tsr_backend_entry_reference(uint32_t host_abi);

static void *host_alloc(void *context, size_t size, size_t alignment) {
  (void)context;
  if (alignment < sizeof(void *)) alignment = sizeof(void *);
  return aligned_alloc(alignment, (size + alignment - 1) / alignment * alignment);
}

static void host_free(void *context, void *block) {
  (void)context;
  free(block);
}

const tsr_backend *rig_backend(void) {
  return tsr_backend_entry_reference(TSR_BACKEND_ABI);
}

void *rig_state(int32_t threads) {
  static tsr_host hosts[8];
  tsr_host *host = &hosts[threads & 7];
  tsr_reason reason;
  void *state = NULL;
  host->struct_size = sizeof *host;
  host->abi = TSR_BACKEND_ABI;
  host->threads = threads;
  host->alloc = host_alloc;
  host->free = host_free;
  cr_assert_eq(rig_backend()->probe(host, &state, &reason), TSR_STATUS_SUCCESS);
  return state;
}

int32_t rig_kernel(const char *name) {
  tsr_kernel_info info;
  int32_t n;
  for (n = 0; rig_backend()->kernel_info(NULL, n, &info) == TSR_STATUS_SUCCESS; n++)
    if (!strcmp(info.name, name)) return n;
  return -1;
}

void *rig_memory(ref_rig *rig, int64_t bytes) {
  void *block = calloc(1, (size_t)bytes + 1);
  cr_assert(block && rig->block_count < 64);
  rig->blocks[rig->block_count++] = block;
  return block;
}

void *rig_ints(ref_rig *rig, const int32_t *values, int64_t n) {
  void *copy = rig_memory(rig, n * 4);
  memcpy(copy, values, (size_t)n * 4);
  return copy;
}

double rig_random(ref_rig *rig) {
  /* A linear congruential step; the top 21 bits become an odd multiple of 2^-20. */
  rig->seed = rig->seed * 6364136223846793005ull + 1442695040888963407ull;
  return ((double)(rig->seed >> 43) - 1048576.0 + 0.5) / 1048576.0;
}

double rig_get(const tsr_layout *layout, const void *data, int64_t b, int64_t h, int64_t s,
               int64_t d) {
  const int64_t *stride = layout->stride;
  return tsri_load_f64(layout->dtype, data,
                       b * stride[0] + h * stride[1] + s * stride[2] + d * stride[3]);
}

void rig_init(ref_rig *rig, int64_t batch, int64_t heads_q, int64_t heads_kv, int64_t seq_q,
              int64_t seq_k, int64_t dim_qk, int64_t dim_v) {
  tsr_problem *p = &rig->p;
  memset(rig, 0, sizeof *rig);
  rig->seed = 12345;
  p->struct_size = sizeof *p;
  p->passes = TSR_PASS_FORWARD;
  p->index_dtype = TSR_DTYPE_I32;
  p->batch = batch;
  p->heads_q = heads_q;
  p->heads_kv = heads_kv;
  p->seq_q = seq_q;
  p->seq_k = seq_k;
  p->dim_qk = dim_qk;
  p->dim_v = dim_v;
  p->q.dtype = p->k.dtype = p->v.dtype = p->o.dtype = TSR_DTYPE_F64;
  p->lse.dtype = p->max_logit.dtype = TSR_DTYPE_F64;
  p->scale = 1;
  rig->a.struct_size = sizeof rig->a;
}

void rig_want_gradients(ref_rig *rig, int with_dlse) {
  tsr_problem *p = &rig->p;
  p->passes |= TSR_PASS_BACKWARD;
  p->dout.dtype = p->dq.dtype = p->dk.dtype = p->dv.dtype = p->q.dtype;
  if (with_dlse) p->dlse.dtype = TSR_DTYPE_F32;
  if (p->bias.dtype) {
    p->dbias = p->bias;
    p->dbias.dtype = TSR_DTYPE_F64;
  }
  p->dsink = p->sink;
}

/* Dense [outer, H, S, D] unless the test set strides. */
static void dense(tsr_layout *layout, int64_t outer, int64_t h, int64_t s, int64_t d) {
  if (!layout->dtype || layout->order == TSR_ORDER_STRIDED) return;
  layout->order = TSR_ORDER_STRIDED;
  layout->stride[3] = 1;
  layout->stride[2] = d;
  layout->stride[1] = s * d;
  layout->stride[0] = outer == 1 ? 0 : h * s * d;
}

void rig_resolve(ref_rig *rig) {
  tsr_problem *p = &rig->p;
  tsr_resolved *r = &rig->r;
  memset(r, 0, sizeof *r);
  r->p = *p;
  if (p->causal) {
    r->p.window.right = p->window.kind && p->window.right < 0 ? p->window.right : 0;
    if (!p->window.kind) r->p.window.left = TSR_UNBOUNDED;
    r->p.window.kind = (tsr_window_kind)p->causal;
  }
  if (!p->page_table_stride) r->p.page_table_stride = p->max_pages;
  r->group = p->heads_kv ? (int32_t)(p->heads_q / p->heads_kv) : 1;
  r->drop_threshold = tsri_dropout_threshold(p->dropout);
  r->keep_scale = p->dropout < 1 ? (float)(1 / (1 - (double)p->dropout)) : 0;
}

static int64_t span(const tsr_layout *layout, int64_t outer, int64_t h, int64_t s, int64_t d) {
  if (!outer || !h || !s || !d) return 0;
  return (outer - 1) * layout->stride[0] + (h - 1) * layout->stride[1] +
         (s - 1) * layout->stride[2] + (d - 1) * layout->stride[3] + 1;
}

static void *make(ref_rig *rig, const tsr_layout *layout, int64_t outer, int64_t h, int64_t s,
                  int64_t d, int input) {
  const int64_t n = span(layout, outer, h, s, d);
  void *data;
  int64_t e;
  if (!layout->dtype) return NULL;
  data = rig_memory(rig, n * 8);
  for (e = 0; e < n; e++) tsri_store_f64(layout->dtype, data, e, input ? rig_random(rig) : NAN);
  return data;
}

static float *make_floats(ref_rig *rig, int64_t n, int input) {
  float *data = (float *)rig_memory(rig, n * 4);
  int64_t e;
  for (e = 0; e < n; e++) data[e] = input ? (float)rig_random(rig) : NAN;
  return data;
}

static void layouts(ref_rig *rig) {
  tsr_problem *p = &rig->p;
  const int64_t oq = rig->outer_q, ok = rig->outer_k, sq = rig->rows_q, sk = rig->rows_k;
  dense(&p->q, oq, p->heads_q, sq, p->dim_qk);
  dense(&p->k, ok, p->heads_kv, sk, p->dim_qk);
  dense(&p->v, ok, p->heads_kv, sk, p->dim_v);
  dense(&p->o, oq, p->heads_q, sq, p->dim_v);
  dense(&p->lse, oq, p->heads_q, sq, 1);
  dense(&p->max_logit, oq, p->heads_q, sq, 1);
  dense(&p->bias, p->batch, p->heads_q, p->seq_q, p->seq_k);
  dense(&p->mask, p->batch, p->heads_q, p->seq_q, p->seq_k);
  dense(&p->dout, oq, p->heads_q, sq, p->dim_v);
  dense(&p->dlse, oq, p->heads_q, sq, 1);
  dense(&p->dq, oq, p->heads_q, sq, p->dim_qk);
  dense(&p->dk, ok, p->heads_kv, sk, p->dim_qk);
  dense(&p->dv, ok, p->heads_kv, sk, p->dim_v);
  dense(&p->dbias, p->batch, p->heads_q, p->seq_q, p->seq_k);
}

void rig_alloc(ref_rig *rig) {
  tsr_problem *p = &rig->p;
  tsr_args *a = &rig->a;
  rig->outer_q = (p->arrays & TSR_ARRAY_CU_Q) ? 1 : p->batch;
  rig->outer_k = (p->arrays & TSR_ARRAY_CU_K) ? 1 : p->page_size ? p->num_pages : p->batch;
  rig->rows_q = (p->arrays & TSR_ARRAY_CU_Q) ? p->total_q : p->seq_q;
  rig->rows_k = (p->arrays & TSR_ARRAY_CU_K) ? p->total_k : p->page_size ? p->page_size : p->seq_k;
  layouts(rig);
  rig_resolve(rig);
  rig->q = make(rig, &p->q, rig->outer_q, p->heads_q, rig->rows_q, p->dim_qk, 1);
  rig->k = make(rig, &p->k, rig->outer_k, p->heads_kv, rig->rows_k, p->dim_qk, 1);
  rig->v = make(rig, &p->v, rig->outer_k, p->heads_kv, rig->rows_k, p->dim_v, 1);
  rig->o = make(rig, &p->o, rig->outer_q, p->heads_q, rig->rows_q, p->dim_v, 0);
  rig->lse = make(rig, &p->lse, rig->outer_q, p->heads_q, rig->rows_q, 1, 0);
  rig->max_logit = make(rig, &p->max_logit, rig->outer_q, p->heads_q, rig->rows_q, 1, 0);
  rig->bias = make(rig, &p->bias, p->batch, p->heads_q, p->seq_q, p->seq_k, 1);
  rig->dout = make(rig, &p->dout, rig->outer_q, p->heads_q, rig->rows_q, p->dim_v, 1);
  rig->dlse = make(rig, &p->dlse, rig->outer_q, p->heads_q, rig->rows_q, 1, 1);
  rig->dq = make(rig, &p->dq, rig->outer_q, p->heads_q, rig->rows_q, p->dim_qk, 0);
  rig->dk = make(rig, &p->dk, rig->outer_k, p->heads_kv, rig->rows_k, p->dim_qk, 0);
  rig->dv = make(rig, &p->dv, rig->outer_k, p->heads_kv, rig->rows_k, p->dim_v, 0);
  rig->dbias = make(rig, &p->dbias, p->batch, p->heads_q, p->seq_q, p->seq_k, 0);
  rig->sink = make_floats(rig, p->heads_q, 1);
  rig->slopes = make_floats(rig, p->batch * p->heads_q, 1);
  rig->dsink = make_floats(rig, p->heads_q, 0);
  a->q = rig->q, a->k = rig->k, a->v = rig->v, a->o = rig->o;
  a->lse = (float *)(void *)rig->lse;
  a->max_logit = (float *)(void *)rig->max_logit;
  a->bias = rig->bias;
  a->dout = rig->dout, a->dlse = rig->dlse;
  a->dq = rig->dq, a->dk = rig->dk, a->dv = rig->dv, a->dbias = rig->dbias;
  a->sink = p->sink ? rig->sink : NULL;
  a->alibi = p->alibi ? rig->slopes : NULL;
  a->dsink = p->dsink ? rig->dsink : NULL;
}

void rig_run(ref_rig *rig, const char *kernel, int32_t threads) {
  const tsr_backend *backend = rig_backend();
  void *state = rig_state(threads), *plan = NULL;
  const int32_t index = rig_kernel(kernel);
  tsr_estimate estimate;
  tsr_reason reason = {""};
  cr_assert(index >= 0, "no kernel %s", kernel);
  cr_assert_eq(backend->supports(state, index, &rig->r, &estimate, &reason), TSR_STATUS_SUCCESS,
               "%s: %s", kernel, reason.text);
  cr_assert_eq(backend->plan_create(state, index, &rig->r, &plan, &reason), TSR_STATUS_SUCCESS);
  rig->a.workspace = host_alloc(NULL, estimate.workspace + 64, 64);
  rig->a.workspace_size = estimate.workspace;
  cr_assert(rig->a.workspace);
  memset(rig->a.workspace, 0xff, estimate.workspace);
  cr_assert_eq(backend->run(state, plan, &rig->a, &reason), TSR_STATUS_SUCCESS);
  free(rig->a.workspace);
  rig->a.workspace = NULL;
  backend->plan_destroy(state, plan);
  backend->close(state);
}

void rig_forward(ref_rig *rig) {
  rig_run(rig, "fwd_any_rows__ref64", 2);
}

void rig_backward(ref_rig *rig) {
  rig_run(rig, "bwd_any_rows__ref64", 2);
}

void rig_free(ref_rig *rig) {
  while (rig->block_count > 0) free(rig->blocks[--rig->block_count]);
}
