// SPDX-License-Identifier: Apache-2.0
//
// The backend "reference": the oracle (ref64) and the materialised baseline (naive) behind the
// vtable, with the threads that run their phases. It is used only when named, and of its kernels
// the oracle is the choice unless a baseline is named: a baseline's estimate carries a constant
// that ranks it last. Time figures are order-of-magnitude constants of portable scalar code.
#include <omp.h>
#include <stdio.h>

#include "attention_ref.h"
#include "naive.h"

/* Cache that repeated reads of K and V are assumed to hit. */
#define REF_FAST_BYTES 1048576.0
#define REF_FLOPS_F64 2.0e9 /* per thread and second */
#define REF_FLOPS_F32 8.0e9
#define REF_BANDWIDTH 1.0e10
/* Multiply-adds below which one thread does everything. */
#define REF_SMALL 131072.0
/* Added to a baseline's seconds so that it never wins by being quick. */
#define REF_BASELINE_SECONDS 1.0e6

typedef struct ref_kernel {
  const char *name;
  tsr_pass pass;
  tsr_dtype dtype; /* of Q; NONE: any; F8_E4M3: any 8-bit type */
  int baseline;
  tsri_ref_memory (*memory)(const tsr_resolved *r);
  const tsri_ref_phase *phases;
  int phase_count;
} ref_kernel;

#define REF_FORWARD tsri_ref_forward_memory, tsri_ref_forward_phases, 1
#define REF_BACKWARD tsri_ref_backward_memory, tsri_ref_backward_phases, 3
#define NAIVE_FORWARD tsri_naive_forward_memory, tsri_naive_forward_phases, 3
#define NAIVE_BACKWARD \
  tsri_naive_backward_memory, tsri_naive_backward_phases, TSRI_NAIVE_BACKWARD_PHASES

static const ref_kernel kernels[] = {
    {"fwd_any_rows__ref64", TSR_PASS_FORWARD, TSR_DTYPE_NONE, 0, REF_FORWARD},
    {"bwd_any_rows__ref64", TSR_PASS_BACKWARD, TSR_DTYPE_NONE, 0, REF_BACKWARD},
    {"fwd_f32_full__naive", TSR_PASS_FORWARD, TSR_DTYPE_F32, 1, NAIVE_FORWARD},
    {"fwd_f16_full__naive", TSR_PASS_FORWARD, TSR_DTYPE_F16, 1, NAIVE_FORWARD},
    {"fwd_bf16_full__naive", TSR_PASS_FORWARD, TSR_DTYPE_BF16, 1, NAIVE_FORWARD},
    {"fwd_f8_full__naive", TSR_PASS_FORWARD, TSR_DTYPE_F8_E4M3, 1, NAIVE_FORWARD},
    {"bwd_f32_full__naive", TSR_PASS_BACKWARD, TSR_DTYPE_F32, 1, NAIVE_BACKWARD},
    {"bwd_f16_full__naive", TSR_PASS_BACKWARD, TSR_DTYPE_F16, 1, NAIVE_BACKWARD},
    {"bwd_bf16_full__naive", TSR_PASS_BACKWARD, TSR_DTYPE_BF16, 1, NAIVE_BACKWARD},
    {"bwd_f8_full__naive", TSR_PASS_BACKWARD, TSR_DTYPE_F8_E4M3, 1, NAIVE_BACKWARD},
};

typedef struct ref_state {
  const tsr_host *host;
  int32_t threads;
} ref_state;

typedef struct ref_plan {
  const ref_kernel *kernel;
  const tsr_resolved *problem;
} ref_plan;

/* ------------------------------------------------------------------------------------- probing */

static tsr_status ref_probe(const tsr_host *host, void **state, tsr_reason *detail) {
  ref_state *s = (ref_state *)host->alloc(host->context, sizeof *s, sizeof(void *));
  if (!s) {
    snprintf(detail->text, sizeof detail->text, "no memory for the state (%zu bytes)", sizeof *s);
    return TSR_STATUS_OUT_OF_MEMORY;
  }
  s->host = host;
  s->threads = host->runner ? host->runner->threads : host->threads;
  if (s->threads < 1) s->threads = (int32_t)omp_get_max_threads();
  snprintf(detail->text, sizeof detail->text,
           "double precision by whole rows; materialised baselines; %d threads", (int)s->threads);
  *state = s;
  return TSR_STATUS_SUCCESS;
}

static void ref_close(void *state) {
  ref_state *s = (ref_state *)state;
  s->host->free(s->host->context, s);
}

static int32_t ref_device_count(void *state) {
  (void)state;
  return 1;
}

static tsr_status ref_device_info(void *state, int32_t index, tsr_device_info *info,
                                  tsr_reason *reason) {
  const ref_state *s = (const ref_state *)state;
  (void)reason;
  info->device.kind = TSR_DEVICE_HOST;
  info->device.index = index;
  snprintf(info->name, sizeof info->name, "host, portable code");
  info->compute_units = s->threads;
  return TSR_STATUS_SUCCESS;
}

static tsr_status ref_kernel_info(void *state, int32_t index, tsr_kernel_info *info) {
  (void)state;
  if (index < 0 || index >= (int32_t)(sizeof kernels / sizeof kernels[0]))
    return TSR_STATUS_NOT_FOUND;
  info->name = kernels[index].name;
  info->pass = kernels[index].pass;
  return TSR_STATUS_SUCCESS;
}

/* ------------------------------------------------------------------------------------ planning */

/* Allowed pairs of one head, by the interval rule alone, from at most 1024 rows spread evenly: a
 * figure for estimates. Lengths are the upper bounds that the problem holds. */
static double estimate_pairs(const tsr_problem *p) {
  const int64_t samples = p->seq_q < 1024 ? p->seq_q : 1024;
  const tsri_mask_rule rule = tsri_problem_rule(p, p->seq_q, p->seq_k);
  double sum = 0;
  int64_t n;
  for (n = 0; n < samples; n++) {
    const int64_t i =
        samples == p->seq_q ? n : (int64_t)((double)p->seq_q / 1024 * ((double)n + 0.5));
    const tsri_mask_row row = tsri_mask_row_of(&rule, i);
    sum += (double)tsri_mask_row_count(&row);
  }
  return samples ? sum / (double)samples * (double)p->seq_q : 0;
}

/* Bytes of the operands that `blocks` query blocks of a head read: K and V once if they stay in the
 * cache, else once per block. */
static double operand_bytes(const tsr_problem *p, double blocks) {
  const double q = tsri_dtype_bytes(p->q.dtype), k = tsri_dtype_bytes(p->k.dtype);
  const double o = tsri_dtype_bytes(p->o.dtype);
  const double keys = (double)p->seq_k * (double)(p->dim_qk + p->dim_v) * k;
  return (double)p->seq_q * ((double)p->dim_qk * q + (double)p->dim_v * o) +
         keys * (keys > REF_FAST_BYTES ? blocks : 1);
}

static void estimate(const ref_state *s, const ref_kernel *kernel, const tsr_resolved *r,
                     size_t workspace, tsr_estimate *out) {
  const tsr_problem *p = &r->p;
  const double heads = (double)p->batch * (double)p->heads_q;
  const double pairs = kernel->baseline ? (double)p->seq_q * (double)p->seq_k : estimate_pairs(p);
  const int backward = kernel->pass == TSR_PASS_BACKWARD;
  const double dims =
      backward ? 3.0 * (double)p->dim_qk + 2.0 * (double)p->dim_v : (double)(p->dim_qk + p->dim_v);
  const int rows = kernel->baseline ? TSRI_NAIVE_BLOCK : TSRI_REF_ROWS;
  const double blocks = (double)((p->seq_q + rows - 1) / rows);
  const double threads = s->threads;

  out->flops = 2 * heads * pairs * dims;
  out->bytes = heads * operand_bytes(p, blocks) * (backward ? 2.5 : 1);
  if (kernel->baseline) {
    /* Forward: S written, read, P written, read. Backward: that and P read twice more, dP written,
     * read, dS written, read twice. */
    const double matrix = heads * pairs * tsri_dtype_bytes(tsri_naive_dtype(r));
    out->bytes += matrix * (backward ? 10 : 4);
    out->seconds = out->flops / (REF_FLOPS_F32 * threads) + out->bytes / REF_BANDWIDTH;
    out->seconds += REF_BASELINE_SECONDS;
  } else {
    out->seconds = out->flops / (REF_FLOPS_F64 * threads) + out->bytes / REF_BANDWIDTH;
  }
  out->tile_q = out->tile_k = 0;
  out->workspace = workspace;
}

static int dtype_matches(const ref_kernel *kernel, const tsr_problem *p) {
  if (kernel->dtype == TSR_DTYPE_NONE) return 1;
  if (kernel->dtype == TSR_DTYPE_F8_E4M3) return tsri_dtype_needs_scale(p->q.dtype);
  return kernel->dtype == p->q.dtype;
}

/* Workspace of one run; INT64_MAX when it cannot be. */
static int64_t workspace_bytes(const ref_state *s, tsri_ref_memory memory) {
  const int64_t workers = tsri_mul_sat(memory.worker, s->threads);
  return workers > INT64_MAX - memory.shared ? INT64_MAX : memory.shared + workers;
}

static tsr_status ref_supports(void *state, int32_t index, const tsr_resolved *r, tsr_estimate *out,
                               tsr_reason *reason) {
  const ref_state *s = (const ref_state *)state;
  const ref_kernel *kernel = &kernels[index];
  int64_t bytes;
  if (!(r->p.passes & (uint32_t)kernel->pass)) {
    snprintf(reason->text, sizeof reason->text, "the problem does not ask for this pass");
    return TSR_STATUS_NOT_SUPPORTED;
  }
  if (!dtype_matches(kernel, &r->p)) {
    snprintf(reason->text, sizeof reason->text, "q is %s, this row takes %s",
             tsri_dtype_describe(r->p.q.dtype).name,
             kernel->dtype == TSR_DTYPE_F8_E4M3 ? "8-bit types"
                                                : tsri_dtype_describe(kernel->dtype).name);
    return TSR_STATUS_NOT_SUPPORTED;
  }
  bytes = kernel->baseline ? tsri_naive_matrix_bytes(r, kernel->pass) : 0;
  if (bytes > TSRI_NAIVE_LIMIT) {
    snprintf(reason->text, sizeof reason->text,
             "score matrices take %lld bytes, the baseline stops at %lld", (long long)bytes,
             (long long)TSRI_NAIVE_LIMIT);
    return TSR_STATUS_NOT_SUPPORTED;
  }
  bytes = workspace_bytes(s, kernel->memory(r));
  if (bytes > INT64_MAX / 2) {
    snprintf(reason->text, sizeof reason->text, "workspace does not fit 63 bits");
    return TSR_STATUS_NOT_SUPPORTED;
  }
  estimate(s, kernel, r, (size_t)bytes, out);
  return TSR_STATUS_SUCCESS;
}

static tsr_status ref_plan_create(void *state, int32_t index, const tsr_resolved *problem,
                                  void **plan, tsr_reason *reason) {
  const ref_state *s = (const ref_state *)state;
  ref_plan *made = (ref_plan *)s->host->alloc(s->host->context, sizeof *made, sizeof(void *));
  if (!made) {
    snprintf(reason->text, sizeof reason->text, "no memory for the plan (%zu bytes)", sizeof *made);
    return TSR_STATUS_OUT_OF_MEMORY;
  }
  made->kernel = &kernels[index];
  made->problem = problem;
  *plan = made;
  return TSR_STATUS_SUCCESS;
}

static void ref_plan_destroy(void *state, void *plan) {
  const ref_state *s = (const ref_state *)state;
  s->host->free(s->host->context, plan);
}

/* ------------------------------------------------------------------------------------- running */

/* Whether waking threads would take longer than the work: below some tens of microseconds. */
static int is_small(const tsr_problem *p) {
  const double pairs = (double)p->batch * (double)p->heads_q * (double)p->seq_q * (double)p->seq_k;
  return pairs * (double)(p->dim_qk + p->dim_v) < REF_SMALL;
}

/* Calls task for every index: by the caller's runner, else by OpenMP, else (for little work, or
 * inside a parallel region) on this thread alone. */
static int run_phase(const ref_state *s, const tsr_problem *p,
                     void (*task)(void *, int64_t, int32_t), void *arg, int64_t count) {
  int64_t index;
  if (count < 1) return 0;
  if (s->host->runner) return s->host->runner->run(s->host->runner->user, task, arg, count);
  if (omp_in_parallel() || s->threads == 1 || count == 1 || is_small(p)) {
    for (index = 0; index < count; index++) task(arg, index, 0);
    return 0;
  }
#pragma omp parallel for schedule(dynamic) num_threads(s->threads)
  for (index = 0; index < count; index++) task(arg, index, (int32_t)omp_get_thread_num());
  return 0;
}

static tsr_status ref_run(void *state, void *plan, const tsr_args *args, tsr_reason *reason) {
  const ref_state *s = (const ref_state *)state;
  const ref_plan *planned = (const ref_plan *)plan;
  tsri_ref_call call;
  int n;
  tsri_ref_call_init(&call, planned->problem, args, args->workspace,
                     planned->kernel->memory(planned->problem));
  for (n = 0; n < planned->kernel->phase_count; n++) {
    const tsri_ref_phase *phase = &planned->kernel->phases[n];
    const int failed = run_phase(s, call.p, phase->task, &call, phase->count(&call));
    if (failed) {
      snprintf(reason->text, sizeof reason->text, "the runner returned %d", failed);
      return TSR_STATUS_INTERNAL;
    }
  }
  return TSR_STATUS_SUCCESS;
}

static tsr_status ref_merge(void *state, int32_t device, const tsr_merge_problem *problem,
                            const void *const *o_parts, const float *const *lse_parts, void *o,
                            float *lse, void *stream, tsr_reason *reason) {
  (void)state, (void)device, (void)stream, (void)reason;
  tsri_ref_merge(problem, o_parts, lse_parts, o, lse);
  return TSR_STATUS_SUCCESS;
}

static tsr_status ref_dropout_mask(void *state, int32_t device, const tsr_dropout_problem *problem,
                                   uint8_t *mask, void *stream, tsr_reason *reason) {
  (void)state, (void)device, (void)stream, (void)reason;
  tsri_ref_dropout_mask(problem, mask);
  return TSR_STATUS_SUCCESS;
}

static const tsr_backend reference = {
    sizeof(tsr_backend), TSR_BACKEND_ABI, "reference",      TSR_DEVICE_HOST, 1,
    ref_probe,           ref_close,       ref_device_count, ref_device_info, ref_kernel_info,
    ref_supports,        ref_plan_create, ref_plan_destroy, ref_run,         ref_merge,
    ref_dropout_mask};

TSR_BACKEND_ENTRY(reference) {
  return host_abi == TSR_BACKEND_ABI ? &reference : NULL;
}
