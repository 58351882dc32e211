// SPDX-License-Identifier: Apache-2.0
// Block-wise comparison with the oracle (see oracle.h). A block is one KV head with its query
// heads, or a few rows of one query head; its problem is the original one with an explicit
// diagonal, since the corner rules count from the original lengths. Dropout depends on absolute
// indices and is therefore only compared whole. dK and dV add up all queries: of a head too large
// to compute, dQ is compared by rows and they by keys (oracle_keys.h).
#include "oracle.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "oracle_keys.h"

// Work that the scalar oracle does in a few seconds.
#define WHOLE_FLOPS 6e9
// The same for one head, which the oracle gives to one thread.
#define HEAD_FLOPS 2e10
enum { kSampleRows = 16 };

typedef struct block {
  int64_t b, g;      // batch, KV head
  int64_t h, heads;  // first query head and how many
  int64_t row, rows;
} block;

typedef struct sums {
  accuracy_sum x, naive;
  tsr_dtype dtype;
} sums;

enum { OUT_O = 0, OUT_LSE, OUT_DQ, OUT_DK, OUT_DV, OUT_COUNT };

static bool oracle_fail(char *message, size_t capacity, const char *what) {
  snprintf(message, capacity, "%s: %s", what, tsr_last_message());
  return false;
}

// The block's own problem, without tensors.
static tsr_problem block_problem(const oracle_run *run, const block *at, bool whole) {
  tsr_problem p = *run->problem;
  p.batch = whole ? p.batch : 1;
  p.heads_q = whole ? p.heads_q : at->heads;
  p.heads_kv = whole ? p.heads_kv : 1;
  p.backend = "reference";
  p.kernel = NULL;
  p.determinism = TSR_DETERMINISM_DEFAULT;
  if (whole) return p;
  int64_t corner = p.seq_k - p.seq_q;
  int64_t offset = p.diagonal;
  if (p.causal == TSR_CAUSAL_BOTTOM_RIGHT || p.window.kind == TSR_WINDOW_BOTTOM_RIGHT) {
    offset = corner;
  } else if (p.causal == TSR_CAUSAL_TOP_LEFT || p.window.kind == TSR_WINDOW_TOP_LEFT) {
    offset = 0;
  }
  if (p.causal != TSR_CAUSAL_NONE) p.causal = TSR_CAUSAL_EXPLICIT;
  if (p.window.kind != TSR_WINDOW_NONE) p.window.kind = TSR_WINDOW_EXPLICIT;
  bool diagonal = p.causal != TSR_CAUSAL_NONE || p.window.kind != TSR_WINDOW_NONE;
  p.diagonal = diagonal ? offset + at->row : 0;
  p.seq_q = at->rows;
  return p;
}

// A dense copy of part of a tensor in another type; memory for results when `from` is NULL.
static bool copy_part(bench_tensor *to, const bench_tensor *from, tsr_dtype dtype, int64_t b,
                      int64_t batch, int64_t h, int64_t heads, int64_t s, int64_t rows, int64_t d) {
  if (!bench_tensor_create(to, dtype, TSR_ORDER_BHSD, batch, heads, rows, d)) return false;
  if (from == NULL) return true;
  for (int64_t n = 0; n < batch * heads; ++n) {
    for (int64_t i = 0; i < rows; ++i) {
      const void *row = bench_tensor_row(from, b + n / heads, h + n % heads, s + i);
      if (dtype == from->dtype) {
        const size_t bytes = (size_t)d * bench_dtype_bytes(dtype);
        memcpy((char *)to->data + (size_t)(n * rows + i) * bytes, row, bytes);
        continue;
      }
      for (int64_t e = 0; e < d; ++e) {
        accuracy_store(dtype, to->data, (n * rows + i) * d + e, accuracy_load(from->dtype, row, e));
      }
    }
  }
  return true;
}

typedef struct part_tensors {
  bench_tensor q, k, v, o, lse, dout, dq, dk, dv;
} part_tensors;

static void part_free(part_tensors *t) {
  bench_tensor *all[] = {&t->q, &t->k, &t->v, &t->o, &t->lse, &t->dout, &t->dq, &t->dk, &t->dv};
  for (size_t i = 0; i < sizeof all / sizeof all[0]; ++i) bench_tensor_destroy(all[i]);
}

static bool part_create(part_tensors *t, const oracle_run *run, const tsr_problem *p,
                        const block *at, tsr_dtype dtype, bool backward) {
  int64_t B = p->batch, H = p->heads_q, G = p->heads_kv, S = p->seq_q, K = p->seq_k;
  int64_t D = p->dim_qk, V = p->dim_v;
  tsr_dtype out = dtype == TSR_DTYPE_F64 ? TSR_DTYPE_F64 : run->o->dtype;
  memset(t, 0, sizeof *t);
  bool ok = copy_part(&t->q, run->q, dtype, at->b, B, at->h, H, at->row, S, D) &&
            copy_part(&t->k, run->k, dtype, at->b, B, at->g, G, 0, K, D) &&
            copy_part(&t->v, run->v, dtype, at->b, B, at->g, G, 0, K, V) &&
            copy_part(&t->o, NULL, out, 0, B, 0, H, 0, S, V) &&
            copy_part(&t->lse, NULL, TSR_DTYPE_F32, 0, B, 0, H, 0, S, 1);
  if (!ok || !backward) return ok;
  return copy_part(&t->dout, run->dout, out, at->b, B, at->h, H, at->row, S, V) &&
         copy_part(&t->dq, NULL, dtype, 0, B, 0, H, 0, S, D) &&
         copy_part(&t->dk, NULL, dtype, 0, B, 0, G, 0, K, D) &&
         copy_part(&t->dv, NULL, dtype, 0, B, 0, G, 0, K, V);
}

// Plans and runs one pass of a part on the reference backend.
static bool part_run(const oracle_run *run, tsr_problem p, part_tensors *t, tsr_pass pass,
                     const char *kernel, char *message, size_t capacity) {
  p.passes = pass;
  p.kernel = kernel;
  p.q = bench_tensor_layout(&t->q);
  p.k = bench_tensor_layout(&t->k);
  p.v = bench_tensor_layout(&t->v);
  p.o = bench_tensor_layout(&t->o);
  p.lse = bench_tensor_layout(&t->lse);
  p.lse.stride[3] = 0;
  tsr_args a = {.struct_size = sizeof a,
                .q = t->q.data,
                .k = t->k.data,
                .v = t->v.data,
                .o = t->o.data,
                .lse = t->lse.data};
  if (p.dropout > 0) a.seed = run->seed;
  if (pass == TSR_PASS_BACKWARD) {
    p.dout = bench_tensor_layout(&t->dout);
    p.dq = bench_tensor_layout(&t->dq);
    p.dk = bench_tensor_layout(&t->dk);
    p.dv = bench_tensor_layout(&t->dv);
    a.dout = t->dout.data;
    a.dq = t->dq.data;
    a.dk = t->dk.data;
    a.dv = t->dv.data;
  }
  tsr_plan *plan = NULL;
  const tsr_device host = {TSR_DEVICE_HOST, 0};
  if (tsr_plan_create(&plan, run->context, host, &p) != TSR_STATUS_SUCCESS) {
    return oracle_fail(message, capacity, "the oracle refuses the problem");
  }
  tsr_status status = pass == TSR_PASS_BACKWARD ? tsr_backward(plan, &a) : tsr_forward(plan, &a);
  tsr_plan_destroy(plan);
  if (status != TSR_STATUS_SUCCESS) return oracle_fail(message, capacity, "the oracle failed");
  return true;
}

static bool add_output(sums *sum, const bench_tensor *tested, const bench_tensor *oracle,
                       const bench_tensor *naive, int64_t b, int64_t h, int64_t s) {
  int64_t rows = oracle->shape[2], d = oracle->shape[3];
  double *x = malloc((size_t)(3 * rows * d + 1) * sizeof(double));
  if (x == NULL) return false;
  double *ref = x + rows * d, *other = ref + rows * d;
  for (int64_t n = 0; n < oracle->shape[0] * oracle->shape[1]; ++n) {
    int64_t bb = n / oracle->shape[1], hh = n % oracle->shape[1];
    bench_tensor_read(tested, b + bb, h + hh, s, rows, x);
    bench_tensor_read(oracle, bb, hh, 0, rows, ref);
    bench_tensor_read(naive, bb, hh, 0, rows, other);
    accuracy_add(&sum->x, x, ref, rows * d);
    accuracy_add(&sum->naive, other, ref, rows * d);
  }
  free(x);
  sum->dtype = tested->dtype;
  return true;
}

static bool check_block(const oracle_run *run, tsr_pass pass, const block *at, bool whole,
                        sums *out, char *message, size_t capacity) {
  static const char *const kNaive[2][3] = {
      {"fwd_f32_full__naive", "fwd_f16_full__naive", "fwd_bf16_full__naive"},
      {"bwd_f32_full__naive", "bwd_f16_full__naive", "bwd_bf16_full__naive"}};
  tsr_dtype dtype = run->q->dtype;
  int column = dtype == TSR_DTYPE_F16 ? 1 : dtype == TSR_DTYPE_BF16 ? 2 : 0;
  // float64 has no baseline of its own: float32's is a bound far too wide, the oracle itself is one
  // that only equality meets, so slack alone decides.
  bool wide = dtype == TSR_DTYPE_F64;
  bool backward = pass == TSR_PASS_BACKWARD;
  tsr_problem p = block_problem(run, at, whole);
  part_tensors oracle, naive;
  memset(&naive, 0, sizeof naive);
  bool ok = part_create(&oracle, run, &p, at, TSR_DTYPE_F64, backward) &&
            part_create(&naive, run, &p, at, dtype, backward);
  if (!ok) snprintf(message, capacity, "out of memory for the check");
  ok = ok && part_run(run, p, &oracle, TSR_PASS_FORWARD, NULL, message, capacity) &&
       part_run(run, p, &naive, TSR_PASS_FORWARD, wide ? NULL : kNaive[0][column], message,
                capacity);
  if (backward) {
    ok = ok && part_run(run, p, &oracle, TSR_PASS_BACKWARD, NULL, message, capacity) &&
         part_run(run, p, &naive, TSR_PASS_BACKWARD, wide ? NULL : kNaive[1][column], message,
                  capacity);
  }
  if (ok && !backward) {
    ok = add_output(&out[OUT_O], run->o, &oracle.o, &naive.o, at->b, at->h, at->row) &&
         add_output(&out[OUT_LSE], run->lse, &oracle.lse, &naive.lse, at->b, at->h, at->row);
  } else if (ok) {
    ok = add_output(&out[OUT_DQ], run->dq, &oracle.dq, &naive.dq, at->b, at->h, at->row);
  }
  const tsr_problem *q = run->problem;
  const bool all_queries = at->rows == q->seq_q && (whole || at->heads == q->heads_q / q->heads_kv);
  if (ok && backward && all_queries) {
    ok = add_output(&out[OUT_DK], run->dk, &oracle.dk, &naive.dk, at->b, at->g, 0) &&
         add_output(&out[OUT_DV], run->dv, &oracle.dv, &naive.dv, at->b, at->g, 0);
  }
  part_free(&oracle);
  part_free(&naive);
  return ok;
}

static bool check_samples(const oracle_run *run, tsr_pass pass, sums *out, char *message,
                          size_t capacity) {
  const tsr_problem *p = run->problem;
  int64_t group = p->heads_q / p->heads_kv;
  for (int n = 0; n < 6; ++n) {
    int64_t rows = p->seq_q < kSampleRows ? p->seq_q : kSampleRows;
    int64_t h = n < 3 ? 0 : p->heads_q - 1;
    block at = {.b = n < 3 ? 0 : p->batch - 1,
                .g = h / group,
                .h = h,
                .heads = 1,
                .rows = rows,
                .row = (p->seq_q - rows) * (n % 3) / 2};
    if (!check_block(run, pass, &at, false, out, message, capacity)) return false;
  }
  return true;
}

// Sums of `rows` keys of one tensor against the oracle's and the baseline's.
static void add_keys(sums *sum, const bench_tensor *tested, int64_t b, int64_t g, int64_t first,
                     int64_t rows, const double *ref, double *naive, double *x) {
  const int64_t n = rows * tested->shape[3];
  bench_tensor_read(tested, b, g, first, rows, x);
  for (int64_t i = 0; i < n; ++i) {
    uint64_t storage = 0;
    accuracy_store(tested->dtype, &storage, 0, naive[i]);
    naive[i] = accuracy_load(tested->dtype, &storage, 0);
  }
  accuracy_add(&sum->x, x, ref, n);
  accuracy_add(&sum->naive, naive, ref, n);
  sum->dtype = tested->dtype;
}

// dK and dV at the start, middle and end of the first and last KV head.
static bool check_key_samples(const oracle_run *run, sums *out, char *message, size_t capacity) {
  const tsr_problem *p = run->problem;
  const int64_t D = p->dim_qk, V = run->v->shape[3], wide = D > V ? D : V;
  const int64_t rows = p->seq_k < ORACLE_KEYS ? p->seq_k : ORACLE_KEYS;
  double *memory = malloc((size_t)(rows * (2 * D + 2 * V + wide) + 1) * sizeof(double));
  oracle_keys keys = {.dk = memory, .naive_dk = memory + rows * D, .dv = memory + 2 * rows * D};
  bool ok = memory != NULL;
  keys.naive_dv = keys.dv + rows * V;
  for (int n = 0; ok && n < 6; ++n) {
    const int64_t b = n < 3 ? 0 : p->batch - 1, g = n < 3 ? 0 : p->heads_kv - 1;
    const int64_t first = (p->seq_k - rows) * (n % 3) / 2;
    double *x = keys.naive_dv + rows * V;
    ok = oracle_keys_compute(run, b, g, first, rows, &keys);
    if (!ok) break;
    add_keys(&out[OUT_DK], run->dk, b, g, first, rows, keys.dk, keys.naive_dk, x);
    add_keys(&out[OUT_DV], run->dv, b, g, first, rows, keys.dv, keys.naive_dv, x);
  }
  if (!ok) snprintf(message, capacity, "out of memory for the check");
  free(memory);
  return ok;
}

bool oracle_check(const oracle_run *run, tsr_pass pass, oracle_result *result, char *message,
                  size_t capacity) {
  static const char *const kNames[OUT_COUNT] = {"o", "lse", "dq", "dk", "dv"};
  const tsr_problem *p = run->problem;
  sums out[OUT_COUNT];
  memset(out, 0, sizeof out);
  *result = (oracle_result){.extent = "nothing to compare", .worst = ""};
  if (p->batch * p->heads_q * p->seq_q == 0) return true;
  double flops = 4.0 * (double)(p->batch * p->heads_q) * (double)p->seq_q * (double)p->seq_k *
                 (double)(p->dim_qk + p->dim_v) / 2 * (pass == TSR_PASS_BACKWARD ? 3.5 : 1.0);
  bool whole = flops <= WHOLE_FLOPS || p->dropout > 0 || p->alibi != TSR_ALIBI_NONE;
  bool ok;
  if (whole) {
    block at = {.heads = p->heads_q, .rows = p->seq_q};
    result->extent = "whole result";
    ok = check_block(run, pass, &at, true, out, message, capacity);
  } else if (pass == TSR_PASS_FORWARD) {
    result->extent = "sampled rows";
    ok = check_samples(run, pass, out, message, capacity);
  } else if (flops / (double)(p->batch * p->heads_kv) > HEAD_FLOPS) {
    result->extent = "sampled rows and keys";
    ok = check_samples(run, pass, out, message, capacity) &&
         check_key_samples(run, out, message, capacity);
  } else {
    int64_t group = p->heads_q / p->heads_kv;
    block at = {.b = p->batch - 1,
                .g = p->heads_kv - 1,
                .h = p->heads_q - group,
                .heads = group,
                .rows = p->seq_q};
    result->extent = "one key and value head";
    ok = check_block(run, pass, &at, false, out, message, capacity);
  }
  for (int i = 0; ok && i < OUT_COUNT; ++i) {
    if (out[i].x.count == 0) continue;
    accuracy_bound bound = accuracy_bound_of(out[i].dtype, i == OUT_LSE, &out[i].naive);
    double ratio = accuracy_ratio(&out[i].x, bound);
    if (ratio < result->ratio) continue;
    result->ratio = ratio;
    result->worst = kNames[i];
    result->max_error = out[i].x.max_error;
    result->rms_error = accuracy_rms_error(&out[i].x);
  }
  return ok;
}
