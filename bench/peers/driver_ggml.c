// SPDX-License-Identifier: Apache-2.0
// ggml's flash attention (ggml_flash_attn_ext) on its CPU backend: Q in float32, K and V in the
// type asked for, causal and window through its float16 mask tensor, which is its only way. Written
// against ggml's public headers; ggml itself is built by the user and named with --ggml.
#include <ggml-cpu.h>
#include <ggml.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "driver.h"

static struct {
  peer_shape s;
  struct ggml_context *context;
  struct ggml_cgraph *graph;
  struct ggml_cplan plan;
  struct ggml_tensor *result;
} state;

const char *peer_version(void) {
  return ggml_version();
}

const char *peer_form(int form) {
  return form == 0 ? "" : NULL;
}

static int refuse(char *reason, size_t capacity, const char *text) {
  snprintf(reason, capacity, "%s", text);
  return -1;
}

static void store(struct ggml_tensor *to, const float *from) {
  int64_t count = ggml_nelements(to);
  if (to->type == GGML_TYPE_F32) memcpy(to->data, from, (size_t)count * 4);
  if (to->type == GGML_TYPE_F16) ggml_fp32_to_fp16_row(from, to->data, count);
  if (to->type == GGML_TYPE_BF16) ggml_fp32_to_bf16_row(from, to->data, count);
}

static struct ggml_tensor *make_mask(void) {
  const peer_shape *s = &state.s;
  struct ggml_tensor *mask = ggml_new_tensor_2d(state.context, GGML_TYPE_F16, s->seq_k, s->seq_q);
  ggml_fp16_t shown = ggml_fp32_to_fp16(0), hidden = ggml_fp32_to_fp16(-INFINITY);
  ggml_fp16_t *row = mask->data;
  for (int64_t i = 0; i < s->seq_q; ++i, row += s->seq_k) {
    for (int64_t j = 0; j < s->seq_k; ++j) {
      row[j] = j >= peer_first(s, i) && j < peer_last(s, i) ? shown : hidden;
    }
  }
  return mask;
}

int peer_open(const peer_shape *shape, int form, const float *q, const float *k, const float *v,
              const float *dout, char *reason, size_t capacity) {
  static const enum ggml_type types[] = {GGML_TYPE_F32, GGML_TYPE_F16, GGML_TYPE_BF16};
  (void)form, (void)dout;
  peer_close();
  state.s = *shape;
  const peer_shape *s = &state.s;
  if (s->backward) return refuse(reason, capacity, "no backward pass on the CPU");
  ggml_cpu_init();
  size_t queries = (size_t)(s->heads * s->seq_q * s->dim) * 4;
  size_t keys = (size_t)(s->heads_kv * s->seq_k * s->dim) * 4;
  size_t mask_bytes = s->causal ? (size_t)(s->seq_q * s->seq_k) * 2 : 0;
  struct ggml_init_params params = {.mem_size = 2 * queries + 2 * keys + mask_bytes +
                                                ggml_graph_overhead() + (1 << 20)};
  state.context = ggml_init(params);
  if (state.context == NULL) return refuse(reason, capacity, "out of memory");
  enum ggml_type type = types[s->dtype];
  struct ggml_tensor *tq =
      ggml_new_tensor_3d(state.context, GGML_TYPE_F32, s->dim, s->seq_q, s->heads);
  struct ggml_tensor *tk = ggml_new_tensor_3d(state.context, type, s->dim, s->seq_k, s->heads_kv);
  struct ggml_tensor *tv = ggml_new_tensor_3d(state.context, type, s->dim, s->seq_k, s->heads_kv);
  store(tq, q), store(tk, k), store(tv, v);
  state.result = ggml_flash_attn_ext(state.context, tq, tk, tv, s->causal ? make_mask() : NULL,
                                     s->scale, 0.0f, 0.0f);
  memset(state.result->data, 0, ggml_nbytes(state.result));
  state.graph = ggml_new_graph(state.context);
  ggml_build_forward_expand(state.graph, state.result);
  state.plan = ggml_graph_plan(state.graph, (int)s->threads, NULL);
  if (state.plan.work_size > 0) {
    state.plan.work_data = malloc(state.plan.work_size);
    if (state.plan.work_data == NULL) return refuse(reason, capacity, "out of memory");
  }
  return 0;
}

void peer_run(void) {
  ggml_graph_compute(state.graph, &state.plan);
}

// The result is [seq_q, heads, dim].
void peer_output(int which, float *out) {
  const peer_shape *s = &state.s;
  const float *from = state.result->data;
  if (which != 0) return;
  for (int64_t h = 0; h < s->heads; ++h) {
    for (int64_t i = 0; i < s->seq_q; ++i) {
      memcpy(out + (h * s->seq_q + i) * s->dim, from + (i * s->heads + h) * s->dim,
             (size_t)s->dim * sizeof(float));
    }
  }
}

void peer_close(void) {
  free(state.plan.work_data);
  if (state.context != NULL) ggml_free(state.context);
  memset(&state, 0, sizeof state);
}
