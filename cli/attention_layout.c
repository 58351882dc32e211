// SPDX-License-Identifier: Apache-2.0
// From shapes to a problem: which axis of a file is which, sizes and strides, arrays of lengths,
// broadcasting of bias and mask, and the outputs (see attention_job.h). Only facts that the library
// cannot see are checked here: how files relate to each other. The rest is its validation's.
#define _GNU_SOURCE
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "attention_job.h"

// Position of the axes [B, H, S, D] in a file's shape; -1: absent.
typedef struct axes {
  int b, h, s, d;
} axes;

static axes axes_of(tsr_order order, bool packed) {
  if (packed) return order == TSR_ORDER_BSHD ? (axes){-1, 1, 0, 2} : (axes){-1, 0, 1, 2};
  return order == TSR_ORDER_BSHD ? (axes){0, 2, 1, 3} : (axes){0, 1, 2, 3};
}

static tsr_layout layout_of(const file_tensor *tensor, axes a) {
  return (tsr_layout){.dtype = job_dtype(tensor->dtype),
                      .order = TSR_ORDER_STRIDED,
                      .stride = {a.b < 0 ? 0 : tensor->stride[a.b], tensor->stride[a.h],
                                 tensor->stride[a.s], tensor->stride[a.d]},
                      .alignment = 64};
}

static bool present(const attention_job *job, job_input input) {
  return job->in[input].data != NULL;
}

static const char *shape_of(const attention_job *job, job_input input, char *text, size_t size) {
  return file_shape_text(&job->in[input], text, size);
}

// "--k: found; accepted" with both shapes in it.
static bool mismatch(const attention_job *job, job_input input, job_input other, const char *what,
                     int64_t found, int64_t wanted, cli_message *message) {
  char a[160], b[160];
  return cli_fail(
      message, "--%s: %s is %" PRId64 " (shape %s); accepted: %" PRId64 ", as in --%s (shape %s)",
      job_inputs[input].option, what, found, shape_of(job, input, a, sizeof a), wanted,
      job_inputs[other].option, shape_of(job, other, b, sizeof b));
}

static bool check_rank(const attention_job *job, job_input input, bool packed,
                       cli_message *message) {
  int wanted = packed ? 3 : 4;
  if (job->in[input].rank == wanted) return true;
  char text[160];
  return cli_fail(message, "--%s: shape %s has %d dimensions; accepted: %d%s",
                  job_inputs[input].option, shape_of(job, input, text, sizeof text),
                  job->in[input].rank, wanted,
                  packed ? " (packed rows)" : " (4-D; packed rows need --cu-seqlens-*)");
}

// One element of an integer array.
static int64_t integer_at(const file_tensor *tensor, int64_t i) {
  int64_t offset = tensor->rank > 1 ? i / tensor->shape[1] * tensor->stride[0] +
                                          i % tensor->shape[1] * tensor->stride[1]
                                    : i * tensor->stride[0];
  return tensor->dtype == FILE_I64 ? ((const int64_t *)tensor->data)[offset]
                                   : (int64_t)((const int32_t *)tensor->data)[offset];
}

// All integer arrays of a problem have one element type: I32 if every file holds I32, else I64.
// A page table in Fortran order is also made dense, because the problem has one stride for it.
static bool unify_integers(attention_job *job, cli_message *message) {
  bool wide = false;
  bool any = false;
  for (int i = IN_CU_Q; i <= IN_PAGE_TABLE; ++i) {
    if (!present(job, (job_input)i)) continue;
    any = true;
    wide |= job->in[i].dtype == FILE_I64;
    wide |= job->in[i].rank > 1 && job->in[i].stride[1] != 1 && job->in[i].shape[1] > 1;
  }
  job->problem.index_dtype = !any ? TSR_DTYPE_NONE : wide ? TSR_DTYPE_I64 : TSR_DTYPE_I32;
  if (!wide) return true;
  for (int i = IN_CU_Q; i <= IN_PAGE_TABLE; ++i) {
    file_tensor *old = &job->in[i];
    bool dense = old->rank < 2 || old->stride[1] == 1 || old->shape[1] <= 1;
    if (!present(job, (job_input)i) || (old->dtype == FILE_I64 && dense)) continue;
    file_tensor fresh;
    if (!file_tensor_layout(&fresh, FILE_I64, old->rank, old->shape, false, message) ||
        !file_tensor_allocate(&fresh, message)) {
      return false;
    }
    for (int64_t n = 0; n < fresh.count; ++n) ((int64_t *)fresh.data)[n] = integer_at(old, n);
    if ((job->borrowed & (1u << i)) == 0) file_tensor_free(old);
    job->borrowed &= ~(1u << i);
    *old = fresh;
  }
  return true;
}

// Longest sequence of a packed tensor; 0 (unknown) if the offsets do not ascend, which the library
// refuses when it runs.
static int64_t longest(const file_tensor *offsets) {
  int64_t most = 0;
  for (int64_t i = 0; i + 1 < offsets->count; ++i) {
    int64_t begin = integer_at(offsets, i), end = integer_at(offsets, i + 1);
    if (begin < 0 || end < begin) return 0;
    if (end - begin > most) most = end - begin;
  }
  return most;
}

static bool set_batch(attention_job *job, int64_t *batch, bool *known, int64_t found,
                      job_input input, job_input *source, cli_message *message) {
  if (!*known) {
    *batch = found;
    *known = true;
    *source = input;
    return true;
  }
  if (*batch == found) return true;
  return mismatch(job, input, *source, "the batch", found, *batch, message);
}

// B from every file that has one.
static bool find_batch(attention_job *job, bool packed_q, bool packed_k, bool paged,
                       cli_message *message) {
  bool known = false;
  job_input source = IN_Q;
  int64_t *batch = &job->problem.batch;
  if (!packed_q && !set_batch(job, batch, &known, job->in[IN_Q].shape[0], IN_Q, &source, message)) {
    return false;
  }
  for (int i = IN_K; i <= IN_V && !packed_k && !paged; ++i) {
    if (!set_batch(job, batch, &known, job->in[i].shape[0], (job_input)i, &source, message)) {
      return false;
    }
  }
  for (int i = IN_CU_Q; i <= IN_PAGE_TABLE; ++i) {
    if (!present(job, (job_input)i)) continue;
    int64_t found = job->in[i].shape[0] - (i <= IN_CU_K ? 1 : 0);
    if (found < 0) {
      return cli_fail(message, "--%s: is empty; accepted: at least one offset",
                      job_inputs[i].option);
    }
    if (!set_batch(job, batch, &known, found, (job_input)i, &source, message)) return false;
  }
  return true;
}

static bool set_sizes(attention_job *job, tsr_order order, cli_message *message) {
  tsr_problem *p = &job->problem;
  bool packed_q = present(job, IN_CU_Q), packed_k = present(job, IN_CU_K);
  bool paged = present(job, IN_PAGE_TABLE);
  if (paged && packed_k) {
    return cli_fail(message, "--page-table: --cu-seqlens-k is given too; accepted: one of them");
  }
  if (!check_rank(job, IN_Q, packed_q, message) || !check_rank(job, IN_K, packed_k, message) ||
      !check_rank(job, IN_V, packed_k, message) ||
      !find_batch(job, packed_q, packed_k, paged, message)) {
    return false;
  }
  axes aq = axes_of(order, packed_q), ak = axes_of(order, packed_k);
  const file_tensor *q = &job->in[IN_Q], *k = &job->in[IN_K], *v = &job->in[IN_V];
  if (k->shape[ak.h] != v->shape[ak.h]) {
    return mismatch(job, IN_V, IN_K, "heads", v->shape[ak.h], k->shape[ak.h], message);
  }
  if (k->shape[ak.s] != v->shape[ak.s]) {
    return mismatch(job, IN_V, IN_K, "the sequence axis", v->shape[ak.s], k->shape[ak.s], message);
  }
  if (q->shape[aq.d] != k->shape[ak.d]) {
    return mismatch(job, IN_K, IN_Q, "the head dimension", k->shape[ak.d], q->shape[aq.d], message);
  }
  if (paged && k->shape[0] != v->shape[0]) {
    return mismatch(job, IN_V, IN_K, "pages", v->shape[0], k->shape[0], message);
  }
  p->heads_q = q->shape[aq.h];
  p->heads_kv = k->shape[ak.h];
  p->dim_qk = q->shape[aq.d];
  p->dim_v = v->shape[ak.d];
  p->seq_q = packed_q ? longest(&job->in[IN_CU_Q]) : q->shape[aq.s];
  p->total_q = packed_q ? q->shape[aq.s] : 0;
  p->seq_k = packed_k ? longest(&job->in[IN_CU_K]) : k->shape[ak.s];
  p->total_k = packed_k ? k->shape[ak.s] : 0;
  if (paged) {
    p->page_size = k->shape[ak.s];
    p->num_pages = k->shape[0];
    p->max_pages = job->in[IN_PAGE_TABLE].shape[1];
    p->page_table_stride = 0;
    p->seq_k = 0;
  }
  p->q = layout_of(q, aq);
  p->k = layout_of(k, ak);
  p->v = layout_of(v, ak);
  return true;
}

static bool check_page_size(const attention_job *job, cli_message *message) {
  bool paged = present(job, IN_PAGE_TABLE);
  if (job->page_size == 0) return true;
  if (!paged) return cli_fail(message, "--page-size: needs --page-table");
  if (job->page_size != job->problem.page_size) {
    return cli_fail(message,
                    "--page-size: %" PRId64 "; accepted: %" PRId64
                    ", the rows per page of --k (or leave it out)",
                    job->page_size, job->problem.page_size);
  }
  return true;
}

// Strides of a tensor whose axes align with the last axes of `full` as in NumPy: missing or 1 means
// broadcast.
static bool broadcast_layout(const attention_job *job, job_input input, const int64_t full[4],
                             bool bound_only, tsr_layout *layout, cli_message *message) {
  const file_tensor *t = &job->in[input];
  *layout = (tsr_layout){.dtype = job_dtype(t->dtype), .order = TSR_ORDER_STRIDED};
  for (int i = 0; i < 4; ++i) {
    int axis = i - (4 - t->rank);
    if (axis < 0 || (t->shape[axis] == 1 && full[i] != 1)) continue;
    // With packed rows the axis is an upper bound, and a file may be larger than it.
    bool fits = t->shape[axis] == full[i] || (bound_only && i >= 2 && t->shape[axis] > full[i]);
    if (!fits) {
      char text[160];
      return cli_fail(message,
                      "--%s: shape %s; accepted: axes [%" PRId64 ", %" PRId64 ", %" PRId64
                      ", %" PRId64 "], each of that size, 1, or left out from the front",
                      job_inputs[input].option, shape_of(job, input, text, sizeof text), full[0],
                      full[1], full[2], full[3]);
    }
    layout->stride[i] = t->stride[axis];
  }
  return true;
}

static bool set_score_tensors(attention_job *job, cli_message *message) {
  tsr_problem *p = &job->problem;
  int64_t keys = p->page_size > 0 ? p->max_pages * p->page_size : p->seq_k;
  int64_t full[4] = {p->batch, p->heads_q, p->seq_q, keys};
  bool packed = present(job, IN_CU_Q) || present(job, IN_CU_K);
  if (present(job, IN_BIAS)) {
    if (!broadcast_layout(job, IN_BIAS, full, packed, &p->bias, message)) return false;
    job->args.bias = job->in[IN_BIAS].data;
  }
  if (present(job, IN_MASK)) {
    if (!broadcast_layout(job, IN_MASK, full, packed, &p->mask, message)) return false;
    job->args.mask = job->in[IN_MASK].data;
  }
  bool blocks = present(job, IN_BLOCK_MASK);
  if (blocks != (job->block_q > 0 && job->block_k > 0) ||
      blocks != (job->block_q > 0 || job->block_k > 0)) {
    return cli_fail(message, "--block-mask, --block-q, --block-k: accepted: all three, or none");
  }
  if (!blocks) return true;
  p->block_q = job->block_q;
  p->block_k = job->block_k;
  int64_t tiles[4] = {p->batch, p->heads_q, (p->seq_q + p->block_q - 1) / p->block_q,
                      (keys + p->block_k - 1) / p->block_k};
  if (!broadcast_layout(job, IN_BLOCK_MASK, tiles, packed, &p->block_mask, message)) return false;
  job->args.block_mask = job->in[IN_BLOCK_MASK].data;
  return true;
}

// Slopes of Press et al. 2022: a geometric sequence from 2^(-8/n) for n heads, n a power of two;
// otherwise those of the next lower power, then every other one of the next higher.
static bool make_slopes(attention_job *job, cli_message *message) {
  int64_t heads = job->problem.heads_q;
  file_tensor *t = &job->in[IN_ALIBI];
  if (!file_tensor_layout(t, FILE_F32, 1, &heads, false, message) ||
      !file_tensor_allocate(t, message)) {
    return false;
  }
  job->borrowed &= ~(1u << IN_ALIBI);
  int64_t lower = 1;
  while (lower * 2 <= heads) lower *= 2;
  float *slope = t->data;
  for (int64_t h = 0; h < heads; ++h) {
    double exponent = h < lower ? -8.0 * (double)(h + 1) / (double)lower
                                : -8.0 * (double)(2 * (h - lower) + 1) / (double)(2 * lower);
    slope[h] = (float)exp2(exponent);
  }
  return true;
}

static bool dense_vector(const attention_job *job, job_input input, int64_t wanted,
                         const char *what, cli_message *message) {
  const file_tensor *t = &job->in[input];
  int64_t found = t->shape[t->rank - 1];
  if (found != wanted) {
    return cli_fail(message, "--%s: %" PRId64 " values per row; accepted: %" PRId64 " (%s)",
                    job_inputs[input].option, found, wanted, what);
  }
  if (t->rank == 2 && (t->stride[1] != 1 && t->shape[1] > 1)) {
    return cli_fail(message, "--%s: Fortran order; accepted: C order for this input",
                    job_inputs[input].option);
  }
  return true;
}

static bool set_vectors(attention_job *job, cli_message *message) {
  tsr_problem *p = &job->problem;
  if (job->alibi_auto && !present(job, IN_ALIBI) && !make_slopes(job, message)) return false;
  if (present(job, IN_ALIBI)) {
    const file_tensor *t = &job->in[IN_ALIBI];
    if (!dense_vector(job, IN_ALIBI, p->heads_q, "query heads", message)) return false;
    if (t->rank == 2 && t->shape[0] != p->batch) {
      return cli_fail(message, "--alibi: %" PRId64 " rows; accepted: %" PRId64 " (batch)",
                      t->shape[0], p->batch);
    }
    p->alibi = t->rank == 2 ? TSR_ALIBI_PER_BATCH_HEAD : TSR_ALIBI_PER_HEAD;
    job->args.alibi = t->data;
  }
  if (present(job, IN_SINK)) {
    if (!dense_vector(job, IN_SINK, p->heads_q, "query heads", message)) return false;
    p->sink = 1;
    job->args.sink = job->in[IN_SINK].data;
  }
  return true;
}

static void set_arrays(attention_job *job) {
  static const struct {
    job_input input;
    uint32_t bit;
  } kArrays[] = {{IN_CU_Q, TSR_ARRAY_CU_Q},
                 {IN_CU_K, TSR_ARRAY_CU_K},
                 {IN_USED_Q, TSR_ARRAY_USED_Q},
                 {IN_USED_K, TSR_ARRAY_USED_K},
                 {IN_LEFT_PAD_Q, TSR_ARRAY_LEFT_PAD_Q},
                 {IN_LEFT_PAD_K, TSR_ARRAY_LEFT_PAD_K},
                 {IN_PREFIX, TSR_ARRAY_PREFIX},
                 {IN_DIAGONAL, TSR_ARRAY_DIAGONAL}};
  const void **pointers[] = {&job->args.cu_q,   &job->args.cu_k,       &job->args.used_q,
                             &job->args.used_k, &job->args.left_pad_q, &job->args.left_pad_k,
                             &job->args.prefix, &job->args.diagonal};
  for (size_t i = 0; i < sizeof kArrays / sizeof kArrays[0]; ++i) {
    if (!present(job, kArrays[i].input)) continue;
    job->problem.arrays |= kArrays[i].bit;
    *pointers[i] = job->in[kArrays[i].input].data;
  }
  job->args.page_table = job->in[IN_PAGE_TABLE].data;
}

static void set_scales(attention_job *job) {
  tsr_layout *layouts[3] = {&job->problem.q_scale, &job->problem.k_scale, &job->problem.v_scale};
  const float **pointers[3] = {&job->args.q_scale, &job->args.k_scale, &job->args.v_scale};
  for (int i = 0; i < 3; ++i) {
    const file_tensor *t = &job->in[IN_Q_SCALE + i];
    if (t->data == NULL) continue;
    *layouts[i] = (tsr_layout){.dtype = TSR_DTYPE_F32, .order = TSR_ORDER_STRIDED};
    for (int a = 0; a < 3; ++a) layouts[i]->stride[a] = t->shape[a] == 1 ? 0 : t->stride[a];
    *pointers[i] = t->data;
  }
  job->problem.scale_rows_q = job->scale_rows_q;
  job->problem.scale_rows_k = job->scale_rows_k;
}

static bool make_row_output(attention_job *job, file_tensor *out, tsr_layout *layout,
                            float **pointer, cli_message *message) {
  const tsr_problem *p = &job->problem;
  bool packed = (p->arrays & TSR_ARRAY_CU_Q) != 0;
  int64_t shape[3] = {p->batch, p->heads_q, p->seq_q};
  int64_t packed_shape[2] = {p->heads_q, p->total_q};
  if (!file_tensor_layout(out, FILE_F32, packed ? 2 : 3, packed ? packed_shape : shape, false,
                          message) ||
      !file_tensor_allocate(out, message)) {
    return false;
  }
  *layout = (tsr_layout){.dtype = TSR_DTYPE_F32, .order = TSR_ORDER_BHSD, .alignment = 64};
  *pointer = out->data;
  // Rows that belong to no sequence are not touched by a run: they read as "no key seen".
  for (int64_t i = 0; i < out->count; ++i) (*pointer)[i] = -INFINITY;
  return true;
}

static bool make_outputs(attention_job *job, const problem_options *options, cli_message *message) {
  tsr_problem *p = &job->problem;
  bool packed = (p->arrays & TSR_ARRAY_CU_Q) != 0;
  axes a = axes_of(options->order, packed);
  int64_t shape[4];
  if (a.b >= 0) shape[a.b] = p->batch;
  shape[a.h] = p->heads_q;
  shape[a.s] = packed ? p->total_q : p->seq_q;
  shape[a.d] = p->dim_v;
  tsr_dtype dtype = options->out_dtype != TSR_DTYPE_NONE ? options->out_dtype : p->q.dtype;
  if (options->out_dtype == TSR_DTYPE_NONE && cli_dtype_bytes(dtype) == 1) dtype = TSR_DTYPE_F32;
  file_dtype stored = dtype == TSR_DTYPE_F64    ? FILE_F64
                      : dtype == TSR_DTYPE_F16  ? FILE_F16
                      : dtype == TSR_DTYPE_BF16 ? FILE_BF16
                                                : FILE_F32;
  if (!file_tensor_layout(&job->o, stored, packed ? 3 : 4, shape, false, message) ||
      !file_tensor_allocate(&job->o, message)) {
    return false;
  }
  memset(job->o.data, 0, job->o.bytes);
  p->o = layout_of(&job->o, a);
  job->args.o = job->o.data;
  if (job->want_lse && !make_row_output(job, &job->lse, &p->lse, &job->args.lse, message)) {
    return false;
  }
  return !job->want_max_logit ||
         make_row_output(job, &job->max_logit, &p->max_logit, &job->args.max_logit, message);
}

bool attention_job_build(attention_job *job, const problem_options *options, cli_message *message) {
  job->problem = (tsr_problem){.struct_size = sizeof job->problem};
  job->args = (tsr_args){.struct_size = sizeof job->args};
  if (!unify_integers(job, message) || !set_sizes(job, options->order, message) ||
      !check_page_size(job, message) || !set_score_tensors(job, message) ||
      !set_vectors(job, message)) {
    return false;
  }
  set_arrays(job);
  set_scales(job);
  if (!problem_options_apply(options, &job->problem, message)) return false;
  job->args.q = job->in[IN_Q].data;
  job->args.k = job->in[IN_K].data;
  job->args.v = job->in[IN_V].data;
  job->args.seed = options->dropout > 0 ? options->seed : 0;
  job->args.offset = options->dropout > 0 ? options->offset : 0;
  return make_outputs(job, options, message);
}
