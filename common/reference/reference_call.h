// SPDX-License-Identifier: Apache-2.0
//
// What the oracle (attention_ref) and the materialised baseline (naive) share: one run's arguments
// unpacked, rows read from tensors of any dtype, stride, page or scale, and the question which
// pairs are allowed. Everything is a phase: a task function called once for every index, with a
// barrier between phases; backend_ref.c owns the threads.
#ifndef TESSERA_COMMON_REFERENCE_REFERENCE_CALL_H_
#define TESSERA_COMMON_REFERENCE_REFERENCE_CALL_H_

#include <stdint.h>

#include "common/dropout.h"
#include "common/dtype.h"
#include "common/geometry.h"
#include "common/workspace.h"
#include "tessera/backend.h"

/* A tensor [B, H, S, D] that is read by whole rows. */
typedef struct tsri_ref_input {
  const void *data;
  tsr_dtype dtype;
  int64_t dim;
  const int64_t *stride;
  const float *scale; /* NULL: none */
  const int64_t *scale_stride;
  int64_t scale_rows;
  tsri_pages pages;
} tsri_ref_input;

/* Memory of a kernel: one shared block, then one private block per worker. */
typedef struct tsri_ref_memory {
  int64_t shared, worker;
} tsri_ref_memory;

/* One run. */
typedef struct tsri_ref_call {
  const tsr_resolved *r;
  const tsr_problem *p;
  const tsr_args *a;
  tsri_ref_input q, k, v, dout;
  tsri_dropout_key key;
  double keep_scale;     /* 1 / (1 - p_drop) in double; 0 when everything is dropped */
  unsigned char *shared; /* workspace, cut up by the kernel */
  unsigned char *workers;
  int64_t worker_bytes;
} tsri_ref_call;

typedef struct tsri_ref_phase {
  int64_t (*count)(const tsri_ref_call *call);
  void (*task)(void *call, int64_t index, int32_t worker); /* as tsr_runner wants it */
} tsri_ref_phase;

/* One query head of one sequence. */
typedef struct tsri_ref_head {
  const tsri_ref_call *call;
  int64_t b, h, g; /* g: KV head */
  tsri_sequence seq;
  tsri_mask_rule rule;
  double slope; /* of ALiBi, 0 without */
  double sink;  /* -inf without */
} tsri_ref_head;

void tsri_ref_call_init(tsri_ref_call *call, const tsr_resolved *r, const tsr_args *a,
                        void *workspace, tsri_ref_memory memory);

tsri_ref_head tsri_ref_head_of(const tsri_ref_call *call, int64_t b, int64_t h);

/* Row `row` of the tensor (span.begin + i) as numbers, scale applied. */
void tsri_ref_load_row_f64(const tsri_ref_input *in, int64_t b, int64_t h, int64_t row,
                           double *out);
void tsri_ref_load_row_f32(const tsri_ref_input *in, int64_t b, int64_t h, int64_t row, float *out);

/* Writes n numbers to a row of an output, added to what it holds if asked. */
void tsri_ref_store_row_f64(const tsr_layout *layout, void *data, int64_t b, int64_t h, int64_t row,
                            const double *value, int64_t n, int accumulate);
void tsri_ref_store_row_f32(const tsr_layout *layout, void *data, int64_t b, int64_t h, int64_t row,
                            const float *value, int64_t n, int accumulate);
/* Writes zeros, unless accumulating: then there is nothing to add. */
void tsri_ref_store_zero(const tsr_layout *layout, void *data, int64_t b, int64_t h, int64_t row,
                         int64_t n, int accumulate);

/* Zero rows of a gradient for the part of a slot that is not used. */
void tsri_ref_zero_padding(const tsr_layout *layout, void *data, int64_t b, int64_t h,
                           const tsri_span *span, int64_t n, int accumulate);

/* Whether the mask tensor and the block mask let query i see key j; the interval is apart. */
int tsri_ref_mask_tensors(const tsri_ref_head *head, int64_t i, int64_t j);

/* bias[b, h, i, j]; 0 without one. */
double tsri_ref_bias(const tsri_ref_head *head, int64_t i, int64_t j);

/* Axes of dbias that are not broadcast keep their size, the others have one element. */
typedef struct tsri_ref_bias_shape {
  int64_t batch, heads, seq_q, seq_k;
} tsri_ref_bias_shape;
tsri_ref_bias_shape tsri_ref_dbias_shape(const tsr_problem *p);

/* Private memory of a worker. */
static inline tsri_workspace tsri_ref_worker(const tsri_ref_call *call, int32_t worker) {
  tsri_workspace ws;
  ws.base = call->workers + (int64_t)worker * call->worker_bytes;
  ws.used = 0;
  return ws;
}

#endif  // TESSERA_COMMON_REFERENCE_REFERENCE_CALL_H_
