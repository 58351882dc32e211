// SPDX-License-Identifier: Apache-2.0
//
// The forward pass above its kernels. Tile sizes by the IO model of README.md: keys per step so
// that S^T of a block stays in L1 beside Q^T, rows per task so that Q^T and O^T of a task stay in
// half of L2 while K and V stream past, which costs Sq / rows passes over K and V. Then tasks are
// independent.
#include "forward.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "amx.h"
#include "common/dtype.h"

static int64_t min64(int64_t a, int64_t b) {
  return a < b ? a : b;
}
static int64_t max64(int64_t a, int64_t b) {
  return a > b ? a : b;
}
static int64_t ceil_div(int64_t a, int64_t b) {
  return a / b + (a % b != 0);
}

/* Whether all sequences have the same number of queries, known from the problem. */
static int uniform(const tsr_problem *p) {
  return (p->arrays & (TSR_ARRAY_CU_Q | TSR_ARRAY_USED_Q | TSR_ARRAY_LEFT_PAD_Q)) == 0;
}

/* Keys per step. Only facts that are the same for every batch go in, because results follow it. */
static int64_t keys_per_step(const tsri_cpu_kernels *kernels, const tsri_cpu_device *device,
                             int64_t most) {
  const int64_t block = 3 * kernels->lanes;
  const int64_t fit = device->l1_bytes / 2 / (block * (int64_t)sizeof(float));
  return max64(32, min64(most, fit / 16 * 16));
}

/* Rows per task where threads have a few tasks each: of the numbers of tasks per sequence and KV head around
 * that of tasks of `fit` rows, the one whose slowest thread has the fewest rows. */
static int64_t even_rows(int64_t rows, int64_t pairs, int64_t threads, int64_t block, int64_t unit, int64_t fit,
                         int64_t most) {
  const int64_t first = ceil_div(rows, fit), last = ceil_div(rows, block);
  int64_t tiles, best = fit, least = INT64_MAX;
  if (rows == 0 || pairs == 0) return fit;
  if (tsri_mul_sat(pairs, first) > 4 * threads) return min64(fit, ceil_div(ceil_div(rows, first), unit) * unit);
  for (tiles = first > 1 ? first - 1 : 1; tiles <= last && tiles <= first + 2; ++tiles) {
    const int64_t each = ceil_div(ceil_div(rows, tiles), unit) * unit;
    const int64_t slowest = ceil_div(tsri_mul_sat(pairs, ceil_div(rows, each)), threads) * each;
    if (each <= most && slowest < least) best = each, least = slowest;
  }
  return best;
}

static int64_t rows_per_task(const tsr_resolved *problem, const tsri_cpu_kernels *kernels,
                             const tsri_cpu_runner *runner, const tsri_cpu_device *device,
                             int amx, int64_t most) {
  const tsr_problem *p = &problem->p;
  const int64_t block = (amx ? 2 : 3) * kernels->lanes;
  const int64_t row_bytes = (p->dim_qk + p->dim_v) * (int64_t)sizeof(float);
  const int64_t rows = tsri_mul_sat(p->seq_q, problem->group); /* of one sequence and KV head */
  const int64_t pairs = tsri_mul_sat(p->batch, p->heads_kv);
  const int64_t share = tsri_mul_sat(rows, pairs) / runner->threads; /* of a thread */
  const int64_t half = most / 2;
  /* Rows of K or V that share sets of L1: load_keys copies them, or they come from L2 every time. */
  const int apart = p->k.dtype == TSR_DTYPE_F32 && (p->k.stride[2] % 256 == 0 || p->v.stride[2] % 256 == 0);
  int64_t fit = min64(max64(most, block), device->l2_bytes / 2 / row_bytes);
  most = max64(block, fit / block * block);
  /* Enough tasks for threads to balance: 16 each, for the last one of the slowest is what all wait
   * for, but from 8 on no fewer rows than let K and V pass without being felt. Not so many with AMX
   * tiles, of which each task packs V. */
  if (apart) /* for each task: four tasks of a thread, for it costs what their balance brings */
    fit = min64(fit, ceil_div(max64(share / 4, 1), block) * block);
  else
    fit = min64(fit, amx ? share / 4 : max64(share / 16, min64(share / 8, half)));
  fit = max64(block, min64(fit, ceil_div(rows, block) * block) / block * block);
  return even_rows(rows, pairs, runner->threads, block, amx ? block : kernels->lanes, fit, most);
}

/* The runner for this problem: bytes if K and V pass once, which is all that few queries need. */
static tsri_cpu_runner runner_of(const tsr_resolved *problem, const tsri_cpu_runner *runner) {
  const tsr_problem *p = &problem->p;
  const double keys = tsri_cpu_mean_keys(p), dims = (double)(p->dim_qk + p->dim_v);
  const double flops = 2.0 * (double)p->batch * (double)p->heads_q * (double)p->seq_q * keys * dims;
  const double bytes = (double)p->batch * (double)p->heads_kv * keys * dims *
                       tsri_dtype_bytes(p->k.dtype);
  tsri_cpu_runner limited = tsri_cpu_runner_for(runner, flops, bytes);
  tsri_cpu_runner_round(&limited, runner, tsri_mul_sat(p->batch, p->heads_kv));
  return limited;
}

tsri_cpu_plan tsri_cpu_forward_plan(const tsr_resolved *problem, const tsri_cpu_kernels *kernels,
                                    const tsri_cpu_runner *runner, const tsri_cpu_device *device,
                                    int amx, int64_t most_rows, int64_t most_keys) {
  tsri_cpu_plan plan;
  plan.problem = problem;
  plan.kernels = *kernels;
  plan.runner = runner_of(problem, runner);
  plan.tiles.lanes = kernels->lanes;
  plan.tiles.amx = amx;
  plan.tiles.rows = rows_per_task(problem, kernels, &plan.runner, device, amx, most_rows);
  plan.tiles.keys = amx ? most_keys : keys_per_step(kernels, device, most_keys);
  return plan;
}

/* Bytes of a worker's block. */
static int64_t scratch_bytes(const tsri_cpu_plan *plan) {
  tsri_workspace ws = {NULL, 0};
  tsri_cpu_scratch_take(&ws, &plan->problem->p, &plan->tiles);
  return ws.used;
}

int64_t tsri_cpu_forward_workspace(const tsri_cpu_plan *plan) {
  tsri_workspace ws = {NULL, 0};
  if (!uniform(&plan->problem->p))
    tsri_workspace_take(&ws, plan->problem->p.batch + 1, sizeof(int64_t));
  tsri_workspace_take(&ws, plan->runner.threads, scratch_bytes(plan));
  return ws.used;
}

double tsri_cpu_mean_keys(const tsr_problem *p) {
  const int64_t samples = min64(64, p->seq_q);
  tsri_mask_rule rule = tsri_problem_rule(p, p->seq_q, p->seq_k);
  double sum = 0;
  int64_t t;
  for (t = 0; t < samples; ++t) {
    const int64_t i = (int64_t)((double)p->seq_q * ((double)t + 0.5) / (double)samples);
    const tsri_mask_row row = tsri_mask_row_of(&rule, min64(i, p->seq_q - 1));
    sum += (double)tsri_mask_row_count(&row);
  }
  return samples > 0 ? sum / (double)samples : 0;
}

void tsri_cpu_forward_estimate(const tsri_cpu_plan *plan, const tsri_cpu_device *device,
                               tsr_estimate *estimate) {
  const tsr_problem *p = &plan->problem->p;
  const tsri_cpu_tiles *tiles = &plan->tiles;
  const double rows = (double)p->seq_q * plan->problem->group; /* of a sequence and KV head */
  const double pairs = (double)p->batch * (double)p->heads_kv;
  const double keys = tsri_cpu_mean_keys(p), dims = (double)(p->dim_qk + p->dim_v);
  const double bytes_in = tsri_dtype_bytes(p->k.dtype), bytes_q = tsri_dtype_bytes(p->q.dtype);
  const double bytes_out = tsri_dtype_bytes(p->o.dtype);
  const double lanes = (double)tiles->lanes * (tiles->amx ? 2 : 1);
  const double threads = plan->runner.threads;
  const double tasks = ceil(rows / (double)tiles->rows);
  const double filled = rows > 0 ? rows / (ceil(rows / lanes) * lanes) : 1;
  /* A head whose K and V fit in L2 is read from slow memory once, else once per task. */
  const double passes = (double)p->seq_k * dims * bytes_in <= (double)device->l2_bytes / 2
                            ? min64(1, (int64_t)tasks)
                            : tasks;
  const double peak = tiles->amx ? device->clock * TSRI_CPU_AMX_FLOPS
                                 : device->clock * lanes * (plan->kernels.fused ? 4 : 2);
  const double parallel = fmin(threads, fmax(1, pairs * tasks));
  double efficiency = (tiles->amx ? 0.3 : 0.7) * filled;
  /* One or two vectors of rows: more loads per product. */
  if (!tiles->amx && rows < 3 * lanes) efficiency *= 0.6;
  if (p->softcap > 0 || p->bias.dtype != TSR_DTYPE_NONE || p->alibi != TSR_ALIBI_NONE ||
      p->mask.dtype != TSR_DTYPE_NONE || p->dropout > 0)
    efficiency *= 0.7;
  estimate->flops = 2 * rows * pairs * keys * dims;
  estimate->bytes = pairs * rows * ((double)p->dim_qk * bytes_q + (double)p->dim_v * bytes_out) +
                    pairs * passes * keys * dims * bytes_in;
  if (p->bias.dtype != TSR_DTYPE_NONE)
    estimate->bytes += pairs * rows * keys * tsri_dtype_bytes(p->bias.dtype);
  estimate->seconds = 5e-6 + fmax(estimate->flops / (peak * efficiency * parallel),
                                  estimate->bytes / (device->bandwidth * fmin(parallel, 8)));
  /* Tiles are packed by every task, at about 4 bytes a clock. */
  if (tiles->amx)
    estimate->seconds += pairs * tasks * keys * dims * bytes_in / (device->clock * 4 * parallel);
  estimate->tile_q = tiles->rows;
  estimate->tile_k = tiles->keys;
  estimate->workspace = (size_t)tsri_cpu_forward_workspace(plan);
}

typedef struct forward_job {
  tsri_cpu_forward forward;
  void (*kernel)(const tsri_cpu_forward *job, int64_t task, int32_t worker);
} forward_job;

static void forward_task(void *arg, int64_t index, int32_t worker) {
  const forward_job *job = (const forward_job *)arg;
  job->kernel(&job->forward, index, worker);
}

/* Rows [begin, end) of head h's slot that no query uses: O = 0, LSE and maximum -inf. */
static void clear_rows(const tsr_problem *p, const tsr_args *args, int64_t b, int64_t h,
                       int64_t begin, int64_t end) {
  int64_t row, x;
  for (row = begin; row < end; ++row) {
    const int64_t at = tsri_row_offset(p->o.stride, b, h, row);
    for (x = 0; x < p->dim_v; ++x)
      tsri_store_f32(p->o.dtype, args->o, at + x * p->o.stride[3], 0.0f);
    if (args->lse) args->lse[tsri_row_offset(p->lse.stride, b, h, row)] = -INFINITY;
    if (args->max_logit)
      args->max_logit[tsri_row_offset(p->max_logit.stride, b, h, row)] = -INFINITY;
  }
}

typedef struct clear_job {
  const tsr_problem *problem;
  const tsr_args *args;
} clear_job;

/* Index (b, h). */
static void clear_task(void *arg, int64_t index, int32_t worker) {
  const clear_job *job = (const clear_job *)arg;
  const tsr_problem *p = job->problem;
  const int64_t b = index / p->heads_q, h = index % p->heads_q;
  const tsri_span q = tsri_sequence_of(p, job->args, b).q;
  (void)worker;
  clear_rows(p, job->args, b, h, q.slot_begin, q.begin);
  clear_rows(p, job->args, b, h, q.begin + q.len, q.slot_begin + q.slot_len);
}

int tsri_cpu_clear_unused(const tsri_cpu_runner *runner, const tsr_resolved *problem,
                          const tsr_args *args) {
  const tsr_problem *p = &problem->p;
  clear_job job;
  if (!(p->arrays & (TSR_ARRAY_USED_Q | TSR_ARRAY_LEFT_PAD_Q))) return 0;
  job.problem = p;
  job.args = args;
  return tsri_cpu_run(runner, clear_task, &job, p->batch * p->heads_q);
}

/* Tasks of a sequence with sq queries. */
static int64_t tasks_of(const tsri_cpu_plan *plan, int64_t sq) {
  return plan->problem->p.heads_kv * ceil_div(sq * plan->problem->group, plan->tiles.rows);
}

tsr_status tsri_cpu_forward_run(const tsri_cpu_plan *plan, const tsr_args *args,
                                tsr_reason *reason) {
  const tsr_problem *p = &plan->problem->p;
  tsri_workspace ws = {(unsigned char *)args->workspace, 0};
  forward_job job;
  int64_t b, tasks = 0;
  memset(&job, 0, sizeof job);
  job.kernel = plan->tiles.amx ? plan->kernels.amx_forward : plan->kernels.forward;
  job.forward.problem = plan->problem;
  job.forward.args = args;
  job.forward.tiles = plan->tiles;
  job.forward.pages = tsri_pages_of(p, args);
  if (p->dropout > 0)
    job.forward.drop_key = args->rng_state
                               ? tsri_dropout_key_make(args->rng_state[0], args->rng_state[1])
                               : tsri_dropout_key_make(args->seed, args->offset);
  if (uniform(p)) {
    job.forward.tasks_each = tasks_of(plan, p->seq_q);
    tasks = p->batch * job.forward.tasks_each;
  } else {
    int64_t *first = (int64_t *)tsri_workspace_take(&ws, p->batch + 1, sizeof(int64_t));
    for (b = 0; b < p->batch; ++b) {
      first[b] = tasks;
      tasks += tasks_of(plan, tsri_sequence_of(p, args, b).q.len);
    }
    first[p->batch] = tasks;
    job.forward.first_task = first;
  }
  job.forward.scratch_bytes = scratch_bytes(plan);
  job.forward.scratch =
      (unsigned char *)tsri_workspace_take(&ws, plan->runner.threads, job.forward.scratch_bytes);
  if (tsri_cpu_run(&plan->runner, forward_task, &job, tasks) != 0 ||
      tsri_cpu_clear_unused(&plan->runner, plan->problem, args) != 0) {
    snprintf(reason->text, sizeof reason->text,
             "the runner of the context could not run the tasks");
    return TSR_STATUS_INTERNAL;
  }
  return TSR_STATUS_SUCCESS;
}
