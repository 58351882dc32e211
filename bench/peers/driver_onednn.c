// SPDX-License-Identifier: Apache-2.0
// oneDNN's primitives composed to attention: matmul (a mask as a binary post-operation), softmax,
// matmul. Two forms: batched over heads with the library's threads, and one head per thread with
// single-threaded primitives, which is how its Graph API decomposes attention on a CPU. Not the
// Graph API itself. The scores are in memory; the scale is folded into Q beforehand.
//
// Both C interfaces are spoken: version 2 (operation descriptors) and version 3.
#define _GNU_SOURCE
#include <math.h>
#include <omp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#if __has_include(<oneapi/dnnl/dnnl.h>)
  #include <oneapi/dnnl/dnnl.h>
#else
  #include <dnnl.h>
#endif

#include "driver.h"

enum { kMaxThreads = 512, kMaxOwned = 2 * kMaxThreads + 8, kOnlyReference = 1 << 16 };

#if DNNL_VERSION_MAJOR >= 3
typedef dnnl_memory_desc_t md_t;
  #define MD(x) (x)
#else
typedef dnnl_memory_desc_t md_t;
  #define MD(x) (&(x))
#endif

typedef struct lane {  // primitives and memory of one thread, or of the batch
  dnnl_primitive_t qk, softmax, pv;
  dnnl_stream_t stream;
  dnnl_memory_t q, kt, v, s, p, o, mask;
  char *scores, *narrow;  // narrow: probabilities, when they are of another type than scores
} lane;

static struct {
  peer_shape s;
  int form;
  int64_t heads, rows;  // one matrix per "head"; grouped queries are rows of their key head
  dnnl_engine_t engine;
  dnnl_data_type_t type, score_type;
  int64_t bytes, score_bytes;  // of an element of q, k, v and of a score
  char *q, *k, *v, *o;
  float *mask;
  lane *lanes;
  int lanes_count;
  dnnl_memory_t owned[kMaxOwned];
  int owned_count;
} state;

const char *peer_version(void) {
  static char text[128];
  const dnnl_version_t *v = dnnl_version();
  snprintf(text, sizeof text, "%d.%d.%d primitives%s", v->major, v->minor, v->patch,
           v->cpu_runtime == DNNL_RUNTIME_OMP ? "" : ", not OpenMP");
  return text;
}

const char *peer_form(int form) {
  static const char *const names[] = {"batched matmul", "one head per thread"};
  return form < 2 ? names[form] : NULL;
}

static int make_md(md_t *md, dnnl_data_type_t type, int64_t h, int64_t m, int64_t n, int64_t row,
                   int64_t column) {
  dnnl_dims_t dims = {h, m, n};
  dnnl_dims_t strides = {column == 1 ? m * row : n * column, row, column};
#if DNNL_VERSION_MAJOR >= 3
  return dnnl_memory_desc_create_with_strides(md, 3, dims, type, strides);
#else
  return dnnl_memory_desc_init_by_strides(md, 3, dims, type, strides);
#endif
}

static int make_primitive(dnnl_primitive_t *out, dnnl_primitive_desc_t pd) {
  int status = dnnl_primitive_create(out, pd);
  dnnl_primitive_desc_destroy(pd);
  return status;
}

// A reference implementation is hundreds of times slower than what anybody would use: not a peer.
static int is_fast(dnnl_primitive_desc_t pd) {
  const char *name = NULL;
  if (dnnl_primitive_desc_query(pd, dnnl_query_impl_info_str, 0, &name) != 0) return 1;
  return name == NULL || strncmp(name, "ref", 3) != 0;
}

static int make_matmul(dnnl_primitive_t *out, md_t *a, md_t *b, md_t *c, md_t *mask) {
  dnnl_primitive_attr_t attr = NULL;
  dnnl_post_ops_t ops = NULL;
  dnnl_primitive_desc_t pd = NULL;
  int status = dnnl_primitive_attr_create(&attr);
  if (status == 0 && mask != NULL) {
    status = dnnl_post_ops_create(&ops);
    if (status == 0) status = dnnl_post_ops_append_binary(ops, dnnl_binary_add, MD(*mask));
    if (status == 0) status = dnnl_primitive_attr_set_post_ops(attr, ops);
  }
#if DNNL_VERSION_MAJOR >= 3
  if (status == 0) {
    status = dnnl_matmul_primitive_desc_create(&pd, state.engine, *a, *b, NULL, *c, attr);
  }
#else
  dnnl_matmul_desc_t desc;
  if (status == 0) status = dnnl_matmul_desc_init(&desc, a, b, NULL, c);
  if (status == 0) status = dnnl_primitive_desc_create(&pd, &desc, attr, state.engine, NULL);
#endif
  if (status == 0 && !is_fast(pd)) {
    dnnl_primitive_desc_destroy(pd);
    status = kOnlyReference;
  }
  if (status == 0) status = make_primitive(out, pd);
  if (ops != NULL) dnnl_post_ops_destroy(ops);
  if (attr != NULL) dnnl_primitive_attr_destroy(attr);
  return status;
}

static int make_softmax(dnnl_primitive_t *out, md_t *src, md_t *dst) {
  dnnl_primitive_desc_t pd = NULL;
#if DNNL_VERSION_MAJOR >= 3
  int status = dnnl_softmax_forward_primitive_desc_create(
      &pd, state.engine, dnnl_forward_inference, dnnl_softmax_accurate, *src, *dst, 2, NULL);
#else
  dnnl_softmax_desc_t desc;
  (void)dst;  // in place
  int status = dnnl_softmax_forward_desc_init(&desc, dnnl_forward_inference, src, 2);
  if (status == 0) status = dnnl_primitive_desc_create(&pd, &desc, NULL, state.engine, NULL);
#endif
  return status == 0 ? make_primitive(out, pd) : status;
}

static int make_memory(dnnl_memory_t *out, md_t *md, const void *data) {
  return dnnl_memory_create(out, MD(*md), state.engine, (void *)data);
}

// Memory from the library itself: with a SYCL runtime it takes no other. NULL when there is none.
static void *own(size_t bytes) {
  md_t md;
  dnnl_dims_t dims = {(dnnl_dim_t)bytes}, strides = {1};
  void *data = NULL;
  dnnl_memory_t memory = NULL;
#if DNNL_VERSION_MAJOR >= 3
  int status = dnnl_memory_desc_create_with_strides(&md, 1, dims, dnnl_u8, strides);
#else
  int status = dnnl_memory_desc_init_by_strides(&md, 1, dims, dnnl_u8, strides);
#endif
  if (status == 0) {
    status = dnnl_memory_create(&memory, MD(md), state.engine, DNNL_MEMORY_ALLOCATE);
  }
  if (status == 0) status = dnnl_memory_get_data_handle(memory, &data);
  if (status != 0) return NULL;
#pragma omp critical(owned)
  if (state.owned_count < kMaxOwned) {
    state.owned[state.owned_count++] = memory;
  } else {
    data = NULL;
    dnnl_memory_destroy(memory);
  }
  return data;
}

static int make_lane(lane *l, int64_t heads) {
  const peer_shape *s = &state.s;
  int64_t M = state.rows, K = s->seq_k, D = s->dim;
  dnnl_data_type_t type = state.type, score = state.score_type;
  md_t q, kt, v, scores, p, o, mask;
  int status = make_md(&q, type, heads, M, D, D, 1) | make_md(&kt, type, heads, D, K, 1, D) |
               make_md(&v, type, heads, K, D, D, 1) | make_md(&scores, score, heads, M, K, K, 1) |
               make_md(&p, type, heads, M, K, K, 1) | make_md(&o, type, heads, M, D, D, 1) |
               make_md(&mask, dnnl_f32, 1, M, K, K, 1);
  size_t count = (size_t)(heads * M * K);
  l->scores = own(count * (size_t)state.score_bytes);
  if (type != score) l->narrow = own(count * (size_t)state.bytes);
  if (l->scores == NULL || (type != score && l->narrow == NULL)) return -1;
  status |= make_matmul(&l->qk, &q, &kt, &scores, s->causal ? &mask : NULL);
  status |= make_softmax(&l->softmax, &scores, &p);
  status |= make_matmul(&l->pv, &p, &v, &o, NULL);
  status |= dnnl_stream_create(&l->stream, state.engine, dnnl_stream_default_flags);
  status |= make_memory(&l->q, &q, state.q) | make_memory(&l->kt, &kt, state.k) |
            make_memory(&l->v, &v, state.v) | make_memory(&l->s, &scores, l->scores) |
            make_memory(&l->p, &p, type != score ? l->narrow : l->scores) |
            make_memory(&l->o, &o, state.o);
  if (s->causal) status |= make_memory(&l->mask, &mask, state.mask);
  return status;
}

static void run_lane(lane *l) {
  dnnl_exec_arg_t qk[] = {{DNNL_ARG_SRC, l->q},
                          {DNNL_ARG_WEIGHTS, l->kt},
                          {DNNL_ARG_DST, l->s},
                          {DNNL_ARG_ATTR_MULTIPLE_POST_OP(0) | DNNL_ARG_SRC_1, l->mask}};
  dnnl_exec_arg_t sm[] = {{DNNL_ARG_SRC, l->s}, {DNNL_ARG_DST, l->p}};
  dnnl_exec_arg_t pv[] = {{DNNL_ARG_SRC, l->p}, {DNNL_ARG_WEIGHTS, l->v}, {DNNL_ARG_DST, l->o}};
  dnnl_primitive_execute(l->qk, l->stream, state.s.causal ? 4 : 3, qk);
  dnnl_primitive_execute(l->softmax, l->stream, 2, sm);
  dnnl_primitive_execute(l->pv, l->stream, 3, pv);
  dnnl_stream_wait(l->stream);
}

static void fill_mask(void) {
  const peer_shape *s = &state.s;
  for (int64_t i = 0; i < s->seq_q; ++i) {
    for (int64_t j = 0; j < s->seq_k; ++j) {
      state.mask[i * s->seq_k + j] = j >= peer_first(s, i) && j < peer_last(s, i) ? 0 : -INFINITY;
    }
  }
}

// The values are exact in the type, except those of Q after scaling.
static void store(char *to, const float *from, int64_t count, float scale) {
  for (int64_t i = 0; i < count; ++i) {
    union {
      float f;
      uint32_t u;
    } x = {.f = from[i] * scale};
    if (state.type == dnnl_f32) ((float *)to)[i] = x.f;
    if (state.type == dnnl_bf16) {
      ((uint16_t *)to)[i] = (uint16_t)((x.u + 0x7fff + ((x.u >> 16) & 1)) >> 16);
    }
#ifdef __FLT16_MANT_DIG__
    if (state.type == dnnl_f16) ((_Float16 *)to)[i] = (_Float16)x.f;
#endif
  }
}

static int refuse(char *reason, size_t capacity, const char *text) {
  snprintf(reason, capacity, "%s", text);
  return -1;
}

int peer_open(const peer_shape *shape, int form, const float *q, const float *k, const float *v,
              const float *dout, char *reason, size_t capacity) {
  const int64_t most = (int64_t)4 << 30;
  (void)dout;
  peer_close();
  state.s = *shape;
  const peer_shape *s = &state.s;
  static const dnnl_data_type_t types[] = {dnnl_f32, dnnl_f16, dnnl_bf16};
  state.form = form;
  state.type = types[s->dtype];
  state.bytes = s->dtype == PEER_F32 ? 4 : 2;
  state.score_type = DNNL_VERSION_MAJOR >= 3 ? dnnl_f32 : state.type;
  state.score_bytes = DNNL_VERSION_MAJOR >= 3 ? 4 : state.bytes;
#ifndef __FLT16_MANT_DIG__
  if (s->dtype == PEER_F16) return refuse(reason, capacity, "the compiler has no float16");
#endif
  if (s->backward) return refuse(reason, capacity, "no backward pass composed");
  if (dnnl_version()->cpu_runtime != DNNL_RUNTIME_OMP &&
      (form != 0 || s->threads != omp_get_num_procs())) {
    return refuse(reason, capacity,
                  "this build counts its threads itself: batched and on all only");
  }
  if (s->causal && s->heads != s->heads_kv) {
    return refuse(reason, capacity, "no grouped heads together with a mask");
  }
  state.heads = s->heads_kv;
  state.rows = s->seq_q * (s->heads / s->heads_kv);
  state.lanes_count = form == 0 ? 1 : (int)s->threads;
  int64_t scores = (form == 0 ? state.heads : state.lanes_count) * state.rows * s->seq_k;
  if (state.lanes_count > kMaxThreads || scores > most / 4) {
    return refuse(reason, capacity, "scores pass 4 GiB");
  }
  omp_set_num_threads((int)s->threads);
  int status = dnnl_engine_create(&state.engine, dnnl_cpu, 0);
  if (status != 0) return refuse(reason, capacity, "no CPU engine");
  int64_t count = s->heads * s->seq_q * s->dim, keys = s->heads_kv * s->seq_k * s->dim;
  state.q = own((size_t)(count * state.bytes)), state.o = own((size_t)(count * state.bytes));
  state.k = own((size_t)(keys * state.bytes)), state.v = own((size_t)(keys * state.bytes));
  state.lanes = calloc((size_t)state.lanes_count, sizeof *state.lanes);
  if (s->causal) state.mask = own((size_t)(s->seq_q * s->seq_k) * 4);
  if (!state.q || !state.o || !state.k || !state.v || !state.lanes || (s->causal && !state.mask)) {
    return refuse(reason, capacity, "out of memory");
  }
  store(state.q, q, count, s->scale), store(state.k, k, keys, 1), store(state.v, v, keys, 1);
  memset(state.o, 0, (size_t)(count * state.bytes));
  if (s->causal) fill_mask();
  if (status == 0 && form == 0) status = make_lane(&state.lanes[0], state.heads);
  if (status == 0 && form == 1) {
    // Made inside the region: the primitives then count on one thread.
#pragma omp parallel num_threads((int)s->threads) reduction(| : status)
    status |= make_lane(&state.lanes[omp_get_thread_num()], 1);
  }
  if (status != 0) {
    if (status & kOnlyReference) {
      snprintf(reason, capacity, "%s: a reference implementation only", peer_form(form));
    } else {
      snprintf(reason, capacity, "%s: oneDNN status %d", peer_form(form), status);
    }
    return -1;
  }
  return 0;
}

void peer_run(void) {
  const peer_shape *s = &state.s;
  if (state.form == 0) {
    run_lane(&state.lanes[0]);
    return;
  }
#pragma omp parallel for schedule(dynamic, 1) num_threads((int)s->threads)
  for (int64_t h = 0; h < state.heads; ++h) {
    lane *l = &state.lanes[omp_get_thread_num()];
    int64_t queries = h * state.rows * s->dim * state.bytes,
            keys = h * s->seq_k * s->dim * state.bytes;
    dnnl_memory_set_data_handle(l->q, state.q + queries);
    dnnl_memory_set_data_handle(l->kt, state.k + keys);
    dnnl_memory_set_data_handle(l->v, state.v + keys);
    dnnl_memory_set_data_handle(l->o, state.o + queries);
    run_lane(l);
  }
}

void peer_output(int which, float *out) {
  int64_t count = state.s.heads * state.s.seq_q * state.s.dim;
  if (which != 0) return;
  for (int64_t i = 0; i < count; ++i) {
    union {
      uint32_t u;
      float f;
    } wide = {.u = 0};
    if (state.type == dnnl_f32) wide.f = ((const float *)state.o)[i];
    if (state.type == dnnl_bf16) wide.u = (uint32_t)((const uint16_t *)state.o)[i] << 16;
#ifdef __FLT16_MANT_DIG__
    if (state.type == dnnl_f16) wide.f = (float)((const _Float16 *)state.o)[i];
#endif
    out[i] = wide.f;
  }
}

void peer_close(void) {
  for (int i = 0; state.lanes != NULL && i < state.lanes_count; ++i) {
    lane *l = &state.lanes[i];
    dnnl_memory_t memory[] = {l->q, l->kt, l->v, l->s, l->p, l->o, l->mask};
    dnnl_primitive_t primitives[] = {l->qk, l->softmax, l->pv};
    for (int m = 0; m < 7; ++m) {
      if (memory[m] != NULL) dnnl_memory_destroy(memory[m]);
    }
    for (int p = 0; p < 3; ++p) {
      if (primitives[p] != NULL) dnnl_primitive_destroy(primitives[p]);
    }
    if (l->stream != NULL) dnnl_stream_destroy(l->stream);
  }
  for (int i = 0; i < state.owned_count; ++i) dnnl_memory_destroy(state.owned[i]);
  if (state.engine != NULL) dnnl_engine_destroy(state.engine);
  free(state.lanes);
  memset(&state, 0, sizeof state);
}
