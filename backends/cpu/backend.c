// SPDX-License-Identifier: Apache-2.0
//
// The vtable of backend "cpu": probe, facts, which kernel takes which problem and why not, and the
// way from the dispatcher to forward.c, decode.c, backward.c, merge and keep-mask kernels. Kernel
// choice inside the backend is one row of kernels.def per element type; the instruction set is the
// context's, chosen at probe.
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "amx.h"
#include "backward.h"
#include "decode.h"
#include "device.h"
#include "forward.h"
#include "kernels.h"
#include "runner.h"
#include "tessera/backend.h"

typedef struct cpu_state {
  tsr_host host;
  tsri_cpu_kernels kernels;
  tsri_cpu_device device;
  tsri_cpu_runner runner;
  const char *no_amx; /* why AMX tiles cannot be used, or NULL */
} cpu_state;

typedef enum cpu_family { CPU_FORWARD, CPU_SPLIT, CPU_BACKWARD } cpu_family;

typedef struct cpu_kernel {
  tsr_kernel_info info;
  cpu_family family;
  tsr_dtype dtype;    /* of Q, and of K and V unless */
  int eight;          /*   these have 8 bits */
  int amx;            /* 1: on AMX tiles */
  int64_t rows, keys; /* largest tile */
} cpu_kernel;

/* Pass and family of a row's operation. */
enum { cpu_pass_fwd = TSR_PASS_FORWARD, cpu_pass_bwd = TSR_PASS_BACKWARD };
enum { cpu_family_fwd = CPU_FORWARD, cpu_family_bwd = CPU_BACKWARD };
/* Unit of a row. */
enum { cpu_unit_cpu = 0, cpu_unit_amx = 1 };

static const cpu_kernel cpu_kernels[] = {
#define TSRI_CPU_KERNEL(op, type, TYPE, tier, mask, unit, q, k)                           \
  {{#op "_" #type "_" #tier "_" #mask "__" #unit "_" #q "x" #k, (tsr_pass)cpu_pass_##op}, \
   (cpu_family)cpu_family_##op,                                                           \
   TSR_DTYPE_##TYPE,                                                                      \
   0,                                                                                     \
   cpu_unit_##unit,                                                                       \
   q,                                                                                     \
   k},
#define TSRI_CPU_SPLIT(type, TYPE, cache, eight, q, k)                        \
  {{"fwd_" #type #cache "_any_edge__cpu_split_" #q "x" #k, TSR_PASS_FORWARD}, \
   CPU_SPLIT,                                                                 \
   TSR_DTYPE_##TYPE,                                                          \
   eight,                                                                     \
   cpu_unit_cpu,                                                              \
   q,                                                                         \
   k},
#include "kernels.def"
#undef TSRI_CPU_KERNEL
};
enum { cpu_kernel_count = sizeof cpu_kernels / sizeof cpu_kernels[0] };

/* What the kernels honour, each what concerns its pass. */
#define CPU_FEATURES                                                                            \
  (TSR_FEATURE_CAUSAL | TSR_FEATURE_WINDOW | TSR_FEATURE_PREFIX | TSR_FEATURE_MASK |            \
   TSR_FEATURE_BLOCK_MASK | TSR_FEATURE_BIAS | TSR_FEATURE_ALIBI | TSR_FEATURE_SOFTCAP |        \
   TSR_FEATURE_SINK | TSR_FEATURE_DROPOUT | TSR_FEATURE_GROUPED_HEADS | TSR_FEATURE_PACKED |    \
   TSR_FEATURE_USED_LENGTHS | TSR_FEATURE_PAGED | TSR_FEATURE_MAX_LOGIT | TSR_FEATURE_DLSE |    \
   TSR_FEATURE_DBIAS | TSR_FEATURE_DSINK | TSR_FEATURE_ACCUMULATE | TSR_FEATURE_DETERMINISTIC | \
   TSR_FEATURE_BATCH_INVARIANT | TSR_FEATURE_STRIDED_LAST)

/* A plan of any family. */
typedef struct cpu_plan {
  cpu_family family;
  tsri_cpu_plan forward;     /* or */
  tsri_cpu_split_plan split; /* or */
  tsri_cpu_backward_plan backward;
} cpu_plan;

static tsr_status cpu_probe(const tsr_host *host, void **out, tsr_reason *detail) {
  tsri_cpu_kernels kernels, other;
  cpu_state *state;
  char *text = detail->text;
  const size_t size = sizeof detail->text;
  size_t used;
  int32_t i;
  if (!tsri_cpu_kernels_find(host->cpu_target, &kernels)) {
    used = (size_t)snprintf(text, size, "cpu_target '%.32s' is none of", host->cpu_target);
    for (i = 0; used < size && tsri_cpu_kernels_at(i, &other); ++i)
      used += (size_t)snprintf(text + used, size - used, "%s %s", i ? "," : "", other.target);
    if (used < size) snprintf(text + used, size - used, ", which this build and processor have");
    return TSR_STATUS_NOT_FOUND;
  }
  state = (cpu_state *)host->alloc(host->context, sizeof *state, 64);
  if (!state) {
    snprintf(text, size, "no memory for the backend's state");
    return TSR_STATUS_OUT_OF_MEMORY;
  }
  memset(state, 0, sizeof *state);
  state->host = *host;
  state->kernels = kernels;
  state->device = tsri_cpu_device_read();
  state->runner = tsri_cpu_runner_of(host);
  state->no_amx =
      kernels.amx_forward ? tsri_cpu_amx_missing() : "the instruction set in use has no AMX tiles";
  used = (size_t)snprintf(text, size, "%s", kernels.target);
  for (i = 0; used < size && tsri_cpu_kernels_at(i, &other); ++i)
    if (strcmp(other.target, kernels.target) != 0)
      used += (size_t)snprintf(text + used, size - used, "%s%s",
                               strchr(text, '(') ? ", " : " (also ", other.target);
  if (used < size)
    snprintf(text + used, size - used, "%s%s; %d thread%s", strchr(text, '(') ? ")" : "",
             state->no_amx ? "" : ", AMX tiles", (int)state->runner.threads,
             state->runner.threads == 1 ? "" : "s");
  *out = state;
  return TSR_STATUS_SUCCESS;
}

static void cpu_close(void *opaque) {
  cpu_state *state = (cpu_state *)opaque;
  const tsr_host host = state->host;
  host.free(host.context, state);
}

static int32_t cpu_device_count(void *state) {
  (void)state;
  return 1;
}

static tsr_status cpu_device_info(void *opaque, int32_t index, tsr_device_info *info,
                                  tsr_reason *reason) {
  const cpu_state *state = (const cpu_state *)opaque;
  const double threads = state->runner.threads;
  (void)index;
  (void)reason;
  info->device.kind = TSR_DEVICE_HOST;
  info->device.index = 0;
  memcpy(info->name, state->device.name, sizeof info->name);
  info->compute_units = state->runner.threads;
  info->fast_bytes = state->device.l1_bytes;
  info->mid_bytes = state->device.l2_bytes;
  info->memory_bytes = state->device.memory_bytes;
  info->peak_flops_f32 =
      state->device.clock * state->kernels.lanes * (state->kernels.fused ? 4 : 2) * threads;
  info->peak_flops_16 = info->peak_flops_f32; /* 16-bit inputs are expanded to float32, or: */
  if (!state->no_amx) info->peak_flops_16 = state->device.clock * TSRI_CPU_AMX_FLOPS * threads;
  info->bandwidth = state->device.bandwidth * (threads < 8 ? threads : 8);
  return TSR_STATUS_SUCCESS;
}

static tsr_status cpu_kernel_info(void *state, int32_t index, tsr_kernel_info *info) {
  (void)state;
  if (index < 0 || index >= cpu_kernel_count) return TSR_STATUS_NOT_FOUND;
  *info = cpu_kernels[index].info;
  return TSR_STATUS_SUCCESS;
}

static const char *dtype_name(tsr_dtype dtype) {
  return tsri_dtype_describe(dtype).name;
}

static cpu_plan make_plan(const cpu_state *state, int32_t kernel, const tsr_resolved *problem) {
  const cpu_kernel *k = &cpu_kernels[kernel];
  cpu_plan plan;
  memset(&plan, 0, sizeof plan);
  plan.family = k->family;
  switch (k->family) {
    case CPU_FORWARD:
      plan.forward = tsri_cpu_forward_plan(problem, &state->kernels, &state->runner, &state->device,
                                           k->amx, k->rows, k->keys);
      break;
    case CPU_SPLIT:
      plan.split = tsri_cpu_split_plan_of(problem, &state->kernels, &state->runner, &state->device,
                                          k->rows, k->keys);
      break;
    case CPU_BACKWARD:
      plan.backward = tsri_cpu_backward_plan_of(problem, &state->kernels, &state->runner,
                                                &state->device, k->amx, k->keys);
  }
  return plan;
}

static int64_t plan_workspace(const cpu_plan *plan) {
  if (plan->family == CPU_BACKWARD) return tsri_cpu_backward_workspace(&plan->backward);
  if (plan->family == CPU_SPLIT) return tsri_cpu_split_workspace(&plan->split);
  return tsri_cpu_forward_workspace(&plan->forward);
}

static void plan_estimate(const cpu_state *state, const cpu_plan *plan, tsr_estimate *estimate) {
  if (plan->family == CPU_BACKWARD)
    tsri_cpu_backward_estimate(&plan->backward, &state->device, estimate);
  else if (plan->family == CPU_SPLIT)
    tsri_cpu_split_estimate(&plan->split, &state->device, estimate);
  else
    tsri_cpu_forward_estimate(&plan->forward, &state->device, estimate);
}

/* Whether a kernel on AMX tiles can take a problem of its element type. */
static int amx_takes(const cpu_state *state, const cpu_kernel *k, const tsr_problem *p) {
  return !state->no_amx && (k->family != CPU_BACKWARD || p->dout.dtype == k->dtype);
}

/* Time of the best kernel of a family for an element type: of those on AMX tiles if one can take
 * the problem, else of the others. INFINITY if amx is asked for and none can. */
static double best_of(const cpu_state *state, cpu_family family, tsr_dtype dtype, int amx,
                      const tsr_resolved *problem) {
  double best = INFINITY;
  int32_t i;
  for (i = 0; i < cpu_kernel_count; ++i) {
    const cpu_kernel *k = &cpu_kernels[i];
    tsr_estimate estimate;
    cpu_plan plan;
    if (k->dtype != dtype || k->family != family || k->amx != amx) continue;
    if (amx && !amx_takes(state, k, &problem->p)) continue;
    plan = make_plan(state, i, problem);
    plan_estimate(state, &plan, &estimate);
    best = fmin(best, estimate.seconds);
  }
  return best;
}

/* Kernels differ in their last bits. Which one a problem takes that asks for equal bits may follow
 * neither from threads nor, with batch_invariant, from the batch: the split kernel's time is then
 * set below or above the best of the others, and vectors come after AMX tiles. */
static void settle(const cpu_state *state, int32_t kernel, const tsr_resolved *problem,
                   tsr_estimate *estimate) {
  const cpu_kernel *k = &cpu_kernels[kernel];
  double best;
  if (problem->p.determinism == TSR_DETERMINISM_DEFAULT || k->eight || k->amx) return;
  if (k->family != CPU_SPLIT) {
    best = best_of(state, k->family, k->dtype, 1, problem);
    if (best < INFINITY) estimate->seconds = fmax(estimate->seconds, best * 1.02);
    return;
  }
  best = best_of(state, CPU_FORWARD, k->dtype, 1, problem);
  if (best == INFINITY) best = best_of(state, CPU_FORWARD, k->dtype, 0, problem);
  estimate->seconds = tsri_cpu_split_preferred(problem) ? fmin(estimate->seconds, best * 0.99)
                                                        : fmax(estimate->seconds, best * 1.01);
}

static int is_eight(tsr_dtype dtype) {
  return dtype == TSR_DTYPE_I8 || dtype == TSR_DTYPE_F8_E4M3 || dtype == TSR_DTYPE_F8_E5M2;
}

/* Whether the element types are a kernel's. */
static int takes_dtypes(const cpu_kernel *k, const tsr_problem *p, tsr_reason *reason) {
  const int fits = k->eight ? is_eight(p->k.dtype) && p->k.dtype == p->v.dtype
                            : p->k.dtype == k->dtype && p->v.dtype == k->dtype;
  if (p->q.dtype != k->dtype || !fits) {
    snprintf(reason->text, sizeof reason->text, "q, k, v are %s, %s, %s; this kernel takes %s%s",
             dtype_name(p->q.dtype), dtype_name(p->k.dtype), dtype_name(p->v.dtype),
             dtype_name(k->dtype), k->eight ? ", with k and v int8 or float8" : "");
    return 0;
  }
  if (p->o.dtype != k->dtype && p->o.dtype != TSR_DTYPE_F32) {
    snprintf(reason->text, sizeof reason->text, "o is %s; this kernel writes %s or float32",
             dtype_name(p->o.dtype), dtype_name(k->dtype));
    return 0;
  }
  return 1;
}

static tsr_status cpu_supports(void *opaque, int32_t kernel, const tsr_resolved *problem,
                               tsr_estimate *estimate, tsr_reason *reason) {
  const cpu_state *state = (const cpu_state *)opaque;
  const cpu_kernel *k = &cpu_kernels[kernel];
  const uint32_t known = (uint32_t)CPU_FEATURES | (k->eight ? (uint32_t)TSR_FEATURE_SCALES : 0);
  const uint32_t unknown = problem->features & ~known;
  cpu_plan plan;
  if (!takes_dtypes(k, &problem->p, reason)) return TSR_STATUS_NOT_SUPPORTED;
  if (unknown) {
    snprintf(reason->text, sizeof reason->text, "the problem uses %s (feature bits 0x%x)",
             unknown & TSR_FEATURE_SCALES ? "scales of 8-bit tensors"
                                          : "a feature this backend does not know",
             (unsigned)unknown);
    return TSR_STATUS_NOT_SUPPORTED;
  }
  if (k->amx && state->no_amx) {
    snprintf(reason->text, sizeof reason->text, "%s", state->no_amx);
    return TSR_STATUS_NOT_SUPPORTED;
  }
  if (k->amx && !amx_takes(state, k, &problem->p)) {
    snprintf(reason->text, sizeof reason->text, "dout is %s; this kernel takes %s",
             dtype_name(problem->p.dout.dtype), dtype_name(k->dtype));
    return TSR_STATUS_NOT_SUPPORTED;
  }
  plan = make_plan(state, kernel, problem);
  if (plan_workspace(&plan) == INT64_MAX) {
    snprintf(reason->text, sizeof reason->text, "needs more workspace than can be addressed");
    return TSR_STATUS_NOT_SUPPORTED;
  }
  plan_estimate(state, &plan, estimate);
  settle(state, kernel, problem, estimate);
  return TSR_STATUS_SUCCESS;
}

static tsr_status cpu_plan_create(void *opaque, int32_t kernel, const tsr_resolved *problem,
                                  void **out, tsr_reason *reason) {
  const cpu_state *state = (const cpu_state *)opaque;
  cpu_plan *plan = (cpu_plan *)state->host.alloc(state->host.context, sizeof *plan, 64);
  if (!plan) {
    snprintf(reason->text, sizeof reason->text, "no memory for a plan of %zu bytes", sizeof *plan);
    return TSR_STATUS_OUT_OF_MEMORY;
  }
  *plan = make_plan(state, kernel, problem);
  *out = plan;
  return TSR_STATUS_SUCCESS;
}

static void cpu_plan_destroy(void *opaque, void *plan) {
  const cpu_state *state = (const cpu_state *)opaque;
  state->host.free(state->host.context, plan);
}

static tsr_status cpu_run(void *state, void *opaque, const tsr_args *args, tsr_reason *reason) {
  const cpu_plan *plan = (const cpu_plan *)opaque;
  (void)state;
  if (plan->family == CPU_BACKWARD) return tsri_cpu_backward_run(&plan->backward, args, reason);
  if (plan->family == CPU_SPLIT) return tsri_cpu_split_run(&plan->split, args, reason);
  return tsri_cpu_forward_run(&plan->forward, args, reason);
}

/* Rows of a merge or of a keep mask, `step` to a task. */
typedef struct row_job {
  const tsri_cpu_kernels *kernels;
  const tsri_cpu_merge *merge; /* or */
  const tsri_cpu_keep *keep;
  int64_t rows, step;
} row_job;

static void row_task(void *arg, int64_t index, int32_t worker) {
  const row_job *job = (const row_job *)arg;
  int64_t row = index * job->step;
  const int64_t end = job->rows - row < job->step ? job->rows : row + job->step;
  (void)worker;
  for (; row < end; ++row)
    if (job->merge)
      job->kernels->merge(job->merge, row);
    else
      job->kernels->keep(job->keep, row);
}

/* length: elements of a row; tasks get about 16384 of them. */
static tsr_status run_rows(const cpu_state *state, row_job *job, int64_t length,
                           tsr_reason *reason) {
  job->kernels = &state->kernels;
  job->step = 16384 / (length + 1) + 1;
  if (tsri_cpu_run(&state->runner, row_task, job, (job->rows + job->step - 1) / job->step) == 0)
    return TSR_STATUS_SUCCESS;
  snprintf(reason->text, sizeof reason->text, "the runner of the context could not run the tasks");
  return TSR_STATUS_INTERNAL;
}

static tsr_status cpu_merge(void *opaque, int32_t device, const tsr_merge_problem *problem,
                            const void *const *o_parts, const float *const *lse_parts, void *o,
                            float *lse, void *stream, tsr_reason *reason) {
  tsri_cpu_merge merge;
  row_job job = {NULL, NULL, NULL, 0, 0};
  (void)device;
  (void)stream;
  merge.problem = problem;
  merge.o_parts = o_parts;
  merge.lse_parts = lse_parts;
  merge.o = o;
  merge.lse = lse;
  job.merge = &merge;
  job.rows = problem->batch * problem->heads * problem->seq;
  return run_rows((const cpu_state *)opaque, &job, tsri_mul_sat(problem->parts, problem->dim_v),
                  reason);
}

static tsr_status cpu_dropout_mask(void *opaque, int32_t device, const tsr_dropout_problem *problem,
                                   uint8_t *mask, void *stream, tsr_reason *reason) {
  tsri_cpu_keep keep;
  row_job job = {NULL, NULL, NULL, 0, 0};
  (void)device;
  (void)stream;
  keep.problem = problem;
  keep.key = tsri_dropout_key_make(problem->seed, problem->offset);
  keep.threshold = tsri_dropout_threshold(problem->dropout);
  keep.mask = mask;
  job.keep = &keep;
  job.rows = problem->batch * problem->heads * problem->seq_q;
  return run_rows((const cpu_state *)opaque, &job, problem->seq_k, reason);
}

static const tsr_backend cpu_backend = {
    sizeof(tsr_backend),
    TSR_BACKEND_ABI,
    "cpu",
    TSR_DEVICE_HOST,
    0,
    cpu_probe,
    cpu_close,
    cpu_device_count,
    cpu_device_info,
    cpu_kernel_info,
    cpu_supports,
    cpu_plan_create,
    cpu_plan_destroy,
    cpu_run,
    cpu_merge,
    cpu_dropout_mask,
};

TSR_BACKEND_ENTRY(cpu) {
  return host_abi == TSR_BACKEND_ABI ? &cpu_backend : NULL;
}
