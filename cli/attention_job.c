// SPDX-License-Identifier: Apache-2.0
// Inputs of a run: reading, type and NaN checks, and comparison of results (see attention_job.h).
// The mapping from shapes to a problem is in attention_layout.c.
#include "attention_job.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define FLOATS (JOB_TYPE(FILE_F32) | JOB_TYPE(FILE_F16) | JOB_TYPE(FILE_BF16))
#define QKV                                                                        \
  (FLOATS | JOB_TYPE(FILE_F64) | JOB_TYPE(FILE_F8_E4M3) | JOB_TYPE(FILE_F8_E5M2) | \
   JOB_TYPE(FILE_I8))
#define SINGLE JOB_TYPE(FILE_F32)
#define BYTES (JOB_TYPE(FILE_U8) | JOB_TYPE(FILE_BOOL))
#define INTEGERS (JOB_TYPE(FILE_I32) | JOB_TYPE(FILE_I64))

const job_input_row job_inputs[IN_COUNT] = {
    [IN_Q] = {"q", "q", "Queries", 3, 4, QKV},
    [IN_K] = {"k", "k", "Keys", 3, 4, QKV},
    [IN_V] = {"v", "v", "Values", 3, 4, QKV},
    [IN_BIAS] = {"bias", "bias", "Added to scores; axes [B, Hq, Sq, Sk], 1 or missing: broadcast",
                 0, 4, FLOATS},
    [IN_MASK] = {"mask", "mask", "Non-zero: key allowed; axes as for --bias", 0, 4, BYTES},
    [IN_BLOCK_MASK] = {"block-mask", "block_mask", "As --mask, per --block-q x --block-k tile", 0,
                       4, BYTES},
    [IN_ALIBI] = {"alibi", "alibi", "Slopes [Hq] or [B, Hq], or auto: 2^(-8 (h+1) / Hq)", 1, 2,
                  SINGLE},
    [IN_SINK] = {"sink", "sink", "A logit per query head [Hq] that joins the denominator", 1, 1,
                 SINGLE},
    [IN_CU_Q] = {"cu-seqlens-q", "cu_seqlens_q", "Packed queries: [B+1] row offsets", 1, 1,
                 INTEGERS},
    [IN_CU_K] = {"cu-seqlens-k", "cu_seqlens_k", "Packed keys: [B+1] row offsets", 1, 1, INTEGERS},
    [IN_USED_Q] = {"used-q", "used_q", "Valid queries per sequence [B]", 1, 1, INTEGERS},
    [IN_USED_K] = {"used-k", "used_k", "Valid keys per sequence [B]", 1, 1, INTEGERS},
    [IN_LEFT_PAD_Q] = {"left-pad-q", "left_pad_q", "Rows before the first query [B]", 1, 1,
                       INTEGERS},
    [IN_LEFT_PAD_K] = {"left-pad-k", "left_pad_k", "Rows before the first key [B]", 1, 1, INTEGERS},
    [IN_PREFIX] = {"prefix-per-sequence", "prefix", "Prefix lengths [B], instead of --prefix", 1, 1,
                   INTEGERS},
    [IN_DIAGONAL] = {"diagonal-per-sequence", "diagonal",
                     "Diagonal offsets [B], instead of --causal N", 1, 1, INTEGERS},
    [IN_PAGE_TABLE] = {"page-table", "page_table",
                       "[B, pages per sequence]; K and V are then "
                       "[pages, Hkv, page size, D] in --layout order",
                       2, 2, INTEGERS},
    [IN_Q_SCALE] = {"q-scale", "q_scale", "Scales of an 8-bit Q [B, Hq, n], 1: broadcast", 3, 3,
                    SINGLE},
    [IN_K_SCALE] = {"k-scale", "k_scale", "Scales of an 8-bit K", 3, 3, SINGLE},
    [IN_V_SCALE] = {"v-scale", "v_scale", "Scales of an 8-bit V", 3, 3, SINGLE},
};

tsr_dtype job_dtype(file_dtype dtype) {
  switch (dtype) {
    case FILE_F32:
      return TSR_DTYPE_F32;
    case FILE_F16:
      return TSR_DTYPE_F16;
    case FILE_BF16:
      return TSR_DTYPE_BF16;
    case FILE_F64:
      return TSR_DTYPE_F64;
    case FILE_F8_E4M3:
      return TSR_DTYPE_F8_E4M3;
    case FILE_F8_E5M2:
      return TSR_DTYPE_F8_E5M2;
    case FILE_I8:
      return TSR_DTYPE_I8;
    case FILE_U8:
    case FILE_BOOL:
      return TSR_DTYPE_U8;
    case FILE_I32:
      return TSR_DTYPE_I32;
    case FILE_I64:
      return TSR_DTYPE_I64;
    default:
      return TSR_DTYPE_NONE;
  }
}

static void name_option(job_input input, cli_message *message) {
  char option[64];
  snprintf(option, sizeof option, "--%s", job_inputs[input].option);
  cli_fail_in(message, option);
}

static void list_types(uint32_t types, char *text, size_t capacity) {
  size_t used = 0;
  text[0] = 0;
  for (int t = 0; t < FILE_DTYPE_END && used < capacity; ++t) {
    if ((types & JOB_TYPE(t)) == 0) continue;
    used += (size_t)snprintf(text + used, capacity - used, "%s%s", used != 0 ? ", " : "",
                             file_dtype_info((file_dtype)t)->name);
  }
}

static bool check_input(const attention_job *job, job_input input, cli_message *message) {
  const job_input_row *row = &job_inputs[input];
  const file_tensor *tensor = &job->in[input];
  if ((row->types & JOB_TYPE(tensor->dtype)) == 0) {
    char accepted[160];
    list_types(row->types, accepted, sizeof accepted);
    return cli_fail(message, "holds %s; accepted: %s", file_dtype_info(tensor->dtype)->name,
                    accepted);
  }
  if (tensor->rank < row->least_rank || tensor->rank > row->most_rank) {
    char shape[160];
    return cli_fail(message, "shape %s has %d dimensions; accepted: %d%s%.0d",
                    file_shape_text(tensor, shape, sizeof shape), tensor->rank, row->least_rank,
                    row->least_rank == row->most_rank ? "" : " to ",
                    row->least_rank == row->most_rank ? 0 : row->most_rank);
  }
  if (job->allow_nan) return true;
  int64_t first;
  int64_t count = file_tensor_count_nan(tensor, &first);
  if (count == 0) return true;
  return cli_fail(message,
                  "%" PRId64 " of %" PRId64
                  " elements are NaN, the first at flat index "
                  "%" PRId64 "; accepted: no NaN, or --allow-nan",
                  count, tensor->count, first);
}

bool attention_job_read(attention_job *job, cli_message *message) {
  for (int i = 0; i < IN_COUNT; ++i) {
    if (job->spec[i] == NULL) continue;
    bool ok = file_tensor_read(&job->in[i], job->spec[i], job_inputs[i].name, job->void2_is_bf16,
                               message);
    if (ok && !check_input(job, (job_input)i, message)) ok = cli_fail_in(message, job->spec[i]);
    if (!ok) {
      name_option((job_input)i, message);
      return false;
    }
  }
  return true;
}

void attention_job_free(attention_job *job) {
  for (int i = 0; i < IN_COUNT; ++i) {
    if ((job->borrowed & (1u << i)) == 0) file_tensor_free(&job->in[i]);
  }
  file_tensor_free(&job->o);
  file_tensor_free(&job->lse);
  file_tensor_free(&job->max_logit);
}

static bool widen_tensor(file_tensor *wide, const file_tensor *from, cli_message *message) {
  if (!file_tensor_layout(wide, FILE_F64, from->rank, from->shape, false, message) ||
      !file_tensor_allocate(wide, message)) {
    return false;
  }
  double *out = wide->data;
  for (int64_t i = 0; i < wide->count; ++i) out[i] = file_tensor_get(from, i);
  return true;
}

bool attention_job_peer(attention_job *peer, const attention_job *job,
                        const problem_options *options, const char *backend, cli_message *message) {
  *peer = *job;
  peer->borrowed = ~0u;
  peer->o = peer->lse = peer->max_logit = (file_tensor){.dtype = FILE_F32};
  problem_options changed = *options;
  changed.backend = backend;
  changed.kernel = NULL;
  changed.out_dtype = TSR_DTYPE_F32;
  bool widen = strcmp(backend, "reference") == 0;
  for (int i = IN_Q; i <= IN_V; ++i) widen = widen && job->in[i].dtype <= FILE_F64;
  if (widen) changed.out_dtype = TSR_DTYPE_F64;
  for (int i = IN_Q; widen && i <= IN_V; ++i) {
    peer->borrowed &= ~(1u << i);
    peer->in[i] = (file_tensor){.dtype = FILE_F64};
    if (!widen_tensor(&peer->in[i], &job->in[i], message)) return false;
  }
  return attention_job_build(peer, &changed, message);
}

error_figures file_tensor_compare(const file_tensor *x, const file_tensor *reference) {
  error_figures figures = {0};
  double square = 0, reference_square = 0;
  for (int64_t i = 0; i < x->count; ++i) {
    double a = file_tensor_get(x, i);
    double b = file_tensor_get(reference, i);
    double error = fabs(a - b);
    if (a == b || (isnan(a) && isnan(b))) error = 0;
    if (isnan(error)) error = (double)INFINITY;
    if (error > figures.max_error) figures.max_error = error;
    square += error * error;
    if (!isfinite(b)) continue;
    if (fabs(b) > figures.max_reference) figures.max_reference = fabs(b);
    reference_square += b * b;
  }
  double n = x->count > 0 ? (double)x->count : 1.0;
  figures.rms_error = sqrt(square / n);
  figures.rms_reference = sqrt(reference_square / n);
  return figures;
}
