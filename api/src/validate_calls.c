// SPDX-License-Identifier: Apache-2.0
//
// Validation of what is not a problem: context options, merging of partial results, the dropout
// mask, and the one-call form, whose tensors are turned into a problem and its arguments here.
#include <stdio.h>
#include <string.h>

#include "common/dtype.h"
#include "validate.h"

#define LL long long
#define BIT_OF(key) (UINT64_C(1) << TSR_DTYPE_##key)

#define THREADS_MAX 65536

tsr_status tsri_validate_options(const tsr_context_options *in, tsr_context_options *out) {
  const tsr_context_options defaults = TSR_CONTEXT_OPTIONS_INIT;
  if (!in) in = &defaults;
  TSRI_FORWARD(tsri_read_struct(out, sizeof *out, in, "tsr_context_options"));
  const tsr_allocator *a = &out->allocator;
  const tsr_runner *r = &out->runner;
  TSRI_INVALID_IF(!a->alloc != !a->free,
                  "allocator: found only one of alloc and free, accepted both or neither");
  TSRI_INVALID_IF(!a->alloc && a->user,
                  "allocator.user: found a pointer without alloc and free, accepted NULL");
  TSRI_INVALID_IF(r->run && (r->threads < 1 || r->threads > THREADS_MAX),
                  "runner.threads: found %d, accepted 1 .. %d", r->threads, THREADS_MAX);
  TSRI_INVALID_IF(!r->run && (r->threads || r->user),
                  "runner.run: found NULL with threads or user set, accepted a function");
  TSRI_INVALID_IF(out->threads < 0 || out->threads > THREADS_MAX,
                  "threads: found %d, accepted 0 .. %d", out->threads, THREADS_MAX);
  TSRI_INVALID_IF(r->run && out->threads, "threads: found %d with a runner, accepted 0",
                  out->threads);
  TSRI_INVALID_IF(out->reserved, "reserved: found %d, accepted 0", out->reserved);
  TSRI_INVALID_IF(!out->log && out->log_user,
                  "log_user: found a pointer without log, accepted NULL");
  return TSR_STATUS_SUCCESS;
}

/* Axes shared by merge and the dropout mask. */
static tsr_status check_axes(int64_t batch, int64_t heads) {
  TSRI_INVALID_IF(batch < 0 || batch > TSRI_LENGTH_MAX, "batch: found %lld, accepted 0 .. 2^31-1",
                  (LL)batch);
  TSRI_INVALID_IF(heads < 0 || heads > TSRI_LENGTH_MAX, "heads: found %lld, accepted 0 .. 2^31-1",
                  (LL)heads);
  TSRI_INVALID_IF(batch * heads > TSRI_LENGTH_MAX,
                  "batch * heads: found %lld, accepted less than 2^31", (LL)(batch * heads));
  return TSR_STATUS_SUCCESS;
}

static tsr_status check_length(const char *name, int64_t value) {
  TSRI_INVALID_IF(value < 0 || value > TSRI_LENGTH_MAX, "%s: found %lld, accepted 0 .. 2^31-1",
                  name, (LL)value);
  return TSR_STATUS_SUCCESS;
}

/* A result may be one part in place, element for element; any other overlap is refused. */
static int in_place(const int64_t dim[4], const void *a, const tsr_layout *la, const void *b,
                    const tsr_layout *lb) {
  for (int k = 0; k < 4; ++k) {
    if (dim[k] > 1 && la->stride[k] != lb->stride[k]) return 0;
  }
  return a == b && la->dtype == lb->dtype;
}

static tsr_status check_merge_layouts(tsr_merge_problem *m, int64_t dim[4], int64_t row[4]) {
  const uint64_t floats = BIT_OF(F32) | BIT_OF(F16) | BIT_OF(BF16);
  TSRI_FORWARD(tsri_validate_layout("o_part", dim, 0, floats, 0, &m->o_part));
  TSRI_FORWARD(
      tsri_validate_layout("lse_part", row, TSRI_LAYOUT_ROWS, BIT_OF(F32), 0, &m->lse_part));
  TSRI_FORWARD(tsri_validate_layout("o", dim, 0, floats, 1, &m->o));
  return tsri_validate_layout("lse", row, TSRI_LAYOUT_ROWS, BIT_OF(F32) | BIT_OF(NONE), 1, &m->lse);
}

static int64_t extent_of(const int64_t dim[4], const tsr_layout *layout) {
  int64_t bytes = 0;
  /* The layouts were found to fit; an absent one has no bytes. */
  if (!layout->dtype || tsri_layout_extent(dim, layout->stride, layout->dtype, &bytes)) return 0;
  return bytes;
}

/* The name is made for the message alone: there may be many parts. */
static tsr_status check_part_pointer(const char *array, int64_t i, const void *pointer, int64_t bytes,
                                     int64_t alignment) {
  char name[48];
  if (pointer ? (uintptr_t)pointer % (uintptr_t)alignment == 0 : bytes == 0) return TSR_STATUS_SUCCESS;
  snprintf(name, sizeof name, "%s[%lld]", array, (LL)i);
  return tsri_validate_pointer(name, pointer, 1, bytes, alignment);
}

static tsr_status check_merge_part(const tsr_merge_problem *m, const int64_t dim[4],
                                   const int64_t row[4], int64_t i, const void *o_part,
                                   const void *lse_part, const void *o, const void *lse) {
  const tsri_region part = tsri_region_of(o_part, dim, m->o_part.stride, m->o_part.dtype);
  const tsri_region part_lse = tsri_region_of(lse_part, row, m->lse_part.stride, m->lse_part.dtype);
  const tsri_region out = tsri_region_of(o, dim, m->o.stride, m->o.dtype);
  TSRI_FORWARD(check_part_pointer("o_parts", i, o_part, extent_of(dim, &m->o_part), m->o_part.alignment));
  TSRI_FORWARD(
      check_part_pointer("lse_parts", i, lse_part, extent_of(row, &m->lse_part), m->lse_part.alignment));
  TSRI_INVALID_IF(!in_place(dim, o, &m->o, o_part, &m->o_part) && tsri_regions_collide(&out, &part),
                  "o: found memory at %p that overlaps o_parts[%lld], accepted its very memory and "
                  "layout, or none of it",
                  o, (LL)i);
  TSRI_INVALID_IF(tsri_regions_collide(&out, &part_lse),
                  "o: found memory at %p that overlaps lse_parts[%lld], accepted memory apart", o,
                  (LL)i);
  if (!m->lse.dtype) return TSR_STATUS_SUCCESS;
  const tsri_region out_lse = tsri_region_of(lse, row, m->lse.stride, m->lse.dtype);
  TSRI_INVALID_IF(!in_place(row, lse, &m->lse, lse_part, &m->lse_part) &&
                      tsri_regions_collide(&out_lse, &part_lse),
                  "lse: found memory at %p that overlaps lse_parts[%lld], accepted its very memory "
                  "and layout, or none of it",
                  lse, (LL)i);
  TSRI_INVALID_IF(tsri_regions_collide(&out_lse, &part),
                  "lse: found memory at %p that overlaps o_parts[%lld], accepted memory apart", lse,
                  (LL)i);
  return TSR_STATUS_SUCCESS;
}

tsr_status tsri_validate_merge(const tsr_merge_problem *in, tsr_device device,
                               const void *const *o_parts, const float *const *lse_parts,
                               const void *o, const float *lse, const void *stream,
                               tsr_merge_problem *m) {
  TSRI_FORWARD(tsri_read_struct(m, sizeof *m, in, "tsr_merge_problem"));
  TSRI_INVALID_IF(m->parts < 1 || m->parts > 65536, "parts: found %lld, accepted 1 .. 65536",
                  (LL)m->parts);
  TSRI_FORWARD(check_axes(m->batch, m->heads));
  TSRI_FORWARD(check_length("seq", m->seq));
  TSRI_INVALID_IF(m->dim_v < 1 || m->dim_v > TSRI_DIM_V_MAX, "dim_v: found %lld, accepted 1 .. %d",
                  (LL)m->dim_v, TSRI_DIM_V_MAX);
  int64_t dim[4] = {m->batch, m->heads, m->seq, m->dim_v};
  int64_t row[4] = {m->batch, m->heads, m->seq, 1};
  TSRI_FORWARD(check_merge_layouts(m, dim, row));
  TSRI_FORWARD(tsri_validate_device(device));
  TSRI_FORWARD(tsri_validate_stream(device, stream));
  TSRI_INVALID_IF(!o_parts, "o_parts: found NULL, accepted %lld pointers", (LL)m->parts);
  TSRI_INVALID_IF(!lse_parts, "lse_parts: found NULL, accepted %lld pointers", (LL)m->parts);
  TSRI_FORWARD(tsri_validate_pointer("o", o, 1, extent_of(dim, &m->o), m->o.alignment));
  TSRI_FORWARD(tsri_validate_pointer("lse", lse, m->lse.dtype != TSR_DTYPE_NONE,
                                     extent_of(row, &m->lse), m->lse.dtype ? m->lse.alignment : 1));
  for (int64_t i = 0; i < m->parts; ++i) {
    TSRI_FORWARD(check_merge_part(m, dim, row, i, o_parts[i], lse_parts[i], o, lse));
  }
  if (!m->lse.dtype) return TSR_STATUS_SUCCESS;
  const tsri_region out = tsri_region_of(o, dim, m->o.stride, m->o.dtype);
  const tsri_region out_lse = tsri_region_of(lse, row, m->lse.stride, m->lse.dtype);
  TSRI_INVALID_IF(tsri_regions_collide(&out, &out_lse),
                  "lse: found memory at %p that overlaps o, accepted outputs apart",
                  (const void *)lse);
  return TSR_STATUS_SUCCESS;
}

tsr_status tsri_validate_dropout(const tsr_dropout_problem *in, tsr_device device,
                                 const uint8_t *mask, const void *stream, tsr_dropout_problem *d) {
  TSRI_FORWARD(tsri_read_struct(d, sizeof *d, in, "tsr_dropout_problem"));
  TSRI_FORWARD(check_axes(d->batch, d->heads));
  TSRI_FORWARD(check_length("seq_q", d->seq_q));
  TSRI_FORWARD(check_length("seq_k", d->seq_k));
  TSRI_INVALID_IF(!(d->dropout >= 0 && d->dropout <= 1), "dropout: found %g, accepted 0 .. 1",
                  d->dropout);
  TSRI_INVALID_IF(d->reserved, "reserved: found %u, accepted 0", d->reserved);
  const int64_t dim[4] = {d->batch, d->heads, d->seq_q, d->seq_k};
  TSRI_FORWARD(tsri_validate_layout("mask", dim, 0, BIT_OF(U8), 1, &d->mask));
  TSRI_FORWARD(tsri_validate_device(device));
  TSRI_FORWARD(tsri_validate_stream(device, stream));
  return tsri_validate_pointer("mask", mask, 1, extent_of(dim, &d->mask), d->mask.alignment);
}

/* ------------------------------------------------------------------------------- one-call form */

/* The layout of a tensor whose pointer is known: it may promise what the pointer happens to keep.
 */
static tsr_layout layout_of(const tsr_tensor *t) {
  tsr_layout layout;
  const uintptr_t address = (uintptr_t)t->data;
  const int64_t multiple = address ? (int64_t)(address & (~address + 1)) : 64;
  memset(&layout, 0, sizeof layout);
  layout.dtype = t->dtype;
  layout.order = TSR_ORDER_STRIDED;
  memcpy(layout.stride, t->stride, sizeof layout.stride);
  layout.alignment = multiple > 64 ? 64 : multiple;
  /* Below the element's size the run must complain about the pointer, not about this promise. */
  if (layout.alignment < tsri_dtype_bytes(t->dtype)) layout.alignment = 0;
  return layout;
}

static tsr_status check_shape(const char *name, const tsr_tensor *t, int64_t b, int64_t h,
                              int64_t s, int64_t d) {
  const int64_t want[4] = {b, h, s, d};
  for (int a = 0; a < 4; ++a) {
    TSRI_INVALID_IF(t->shape[a] < 0, "%s.shape[%d]: found %lld, accepted 0 or more", name, a,
                    (LL)t->shape[a]);
    TSRI_INVALID_IF(t->shape[a] != want[a], "%s.shape[%d]: found %lld, accepted %lld", name, a,
                    (LL)t->shape[a], (LL)want[a]);
  }
  TSRI_INVALID_IF(t->reserved, "%s.reserved: found %d, accepted 0", name, t->reserved);
  return TSR_STATUS_SUCCESS;
}

tsr_status tsri_validate_attention(const tsr_tensor *q, const tsr_tensor *k, const tsr_tensor *v,
                                   const tsr_tensor *o, const tsr_tensor *lse, tsr_causal causal,
                                   float scale, tsr_problem *p, tsr_args *args) {
  const tsr_problem problem = TSR_PROBLEM_INIT;
  const tsr_args none = TSR_ARGS_INIT;
  TSRI_INVALID_IF(!q, "q: found NULL, accepted a pointer to a tsr_tensor");
  TSRI_INVALID_IF(!k, "k: found NULL, accepted a pointer to a tsr_tensor");
  TSRI_INVALID_IF(!v, "v: found NULL, accepted a pointer to a tsr_tensor");
  TSRI_INVALID_IF(!o, "o: found NULL, accepted a pointer to a tsr_tensor");
  const int64_t b = q->shape[0], hq = q->shape[1], sq = q->shape[2], dqk = q->shape[3];
  const int64_t hkv = k->shape[1], sk = k->shape[2], dv = v->shape[3];
  TSRI_FORWARD(check_shape("q", q, b, hq, sq, dqk));
  TSRI_FORWARD(check_shape("k", k, b, hkv, sk, dqk));
  TSRI_FORWARD(check_shape("v", v, b, hkv, sk, dv));
  TSRI_FORWARD(check_shape("o", o, b, hq, sq, dv));
  TSRI_INVALID_IF(dv < 1, "v.shape[3]: found %lld, accepted 1 .. %d", (LL)dv, TSRI_DIM_V_MAX);
  TSRI_INVALID_IF((unsigned)causal > TSR_CAUSAL_BOTTOM_RIGHT,
                  "causal: found %d, accepted NONE, TOP_LEFT or BOTTOM_RIGHT: an explicit diagonal "
                  "needs a problem",
                  (int)causal);
  *p = problem;
  p->batch = b;
  p->heads_q = hq;
  p->heads_kv = hkv;
  p->seq_q = sq;
  p->seq_k = sk;
  p->dim_qk = dqk;
  p->dim_v = dv;
  p->q = layout_of(q);
  p->k = layout_of(k);
  p->v = layout_of(v);
  p->o = layout_of(o);
  p->causal = causal;
  p->scale = scale;
  *args = none;
  args->q = q->data;
  args->k = k->data;
  args->v = v->data;
  args->o = o->data;
  if (!lse) return TSR_STATUS_SUCCESS;
  TSRI_FORWARD(check_shape("lse", lse, b, hq, sq, 1));
  TSRI_INVALID_IF(lse->dtype != TSR_DTYPE_F32, "lse.dtype: found %d, accepted float32",
                  (int)lse->dtype);
  p->lse = layout_of(lse);
  args->lse = lse->data;
  return TSR_STATUS_SUCCESS;
}
