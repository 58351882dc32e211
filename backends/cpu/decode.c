// SPDX-License-Identifier: Apache-2.0
//
// The split kernel above its Highway source: how rows and keys are cut, what a run costs and needs,
// and the loop over tasks (sequence, KV head, tile of rows, chunk of keys). Workspace holds a
// partial state per task: Dv + 2 floats per row for every 512 keys or more, a few hundredths of the
// K and V that the task reads, and at most 32 per row.
#include "decode.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "decode_job.h"
#include "forward.h"

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

/* Keys per step of the narrow form: a power of two, so that chunks are whole steps. K of a step, as
 * it is stored, takes at most a sixth of L1, V as much: there is room for both, for scores, Q and
 * O. With more than 4 grouped heads, whose O is written back after every step, twice that is faster.
 * The number may depend on the group, but on no length: results depend on it. */
static int64_t narrow_keys(const tsr_resolved *problem, const tsri_cpu_device *device,
                           int64_t most) {
  const tsr_problem *p = &problem->p;
  const int64_t row = p->dim_qk * tsri_dtype_bytes(p->k.dtype);
  const int64_t room = device->l1_bytes / (problem->group > 4 ? 3 : 6);
  int64_t keys = 16;
  while (2 * keys <= most && 2 * keys * row <= room) keys *= 2;
  return keys;
}

tsri_cpu_split_plan tsri_cpu_split_plan_of(const tsr_resolved *problem,
                                           const tsri_cpu_kernels *kernels,
                                           const tsri_cpu_runner *runner,
                                           const tsri_cpu_device *device, int64_t most_rows,
                                           int64_t most_keys) {
  const tsr_problem *p = &problem->p;
  const int64_t block = 3 * kernels->lanes;
  const int64_t row_bytes = (p->dim_qk + p->dim_v) * (int64_t)sizeof(float);
  const int64_t rows = tsri_mul_sat(p->seq_q, problem->group);
  tsri_cpu_split_plan plan;
  int64_t fit = min64(max64(most_rows, block), device->l2_bytes / 2 / row_bytes);
  fit = min64(fit, ceil_div(rows, block) * block);
  memset(&plan, 0, sizeof plan);
  plan.problem = problem;
  plan.kernels = *kernels;
  plan.runner = *runner;
  plan.tiles.lanes = kernels->lanes;
  plan.tiles.rows = max64(block, fit / block * block);
  plan.tiles.keys = most_keys;
  plan.narrow_keys = narrow_keys(problem, device, most_keys);
  return plan;
}

static int64_t scratch_bytes(const tsri_cpu_split_plan *plan) {
  tsri_workspace ws = {NULL, 0};
  tsri_cpu_scratch_take(&ws, &plan->problem->p, &plan->tiles);
  tsri_cpu_split_scratch_take(&ws, &plan->problem->p, &plan->tiles);
  return ws.used;
}

/* The most that a run can have, whatever the lengths in the arrays are. */
typedef struct bounds {
  int64_t units; /* of all sequences and KV heads */
  int64_t parts; /* floats */
} bounds;

/* Floats of all parts of a KV head, at most. Sequences of up to `top` rows have chunks of `keys` keys
 * or more, both doubling from level to level; one of a known number of rows has its own level. */
static int64_t parts_bound(const tsri_cpu_split_plan *plan, int64_t rows, int known) {
  const tsr_problem *p = &plan->problem->p;
  const int64_t most_rows = min64(rows, TSRI_CPU_SPLIT_ROWS);
  int64_t keys = TSRI_CPU_CHUNK, top = TSRI_CPU_CHUNK_ROWS;
  int64_t by_sequence = 0, by_total = 0, unit = 0;
  for (;; keys *= 2, top *= 2) {
    const int64_t here = min64(most_rows, top), last = top >= most_rows;
    const int64_t floats = tsri_mul_sat(ceil_div(here, plan->tiles.rows),
                                        tsri_cpu_part_floats(here, p->dim_v, &plan->tiles));
    if (!known || last) {
      const int64_t each = min64(ceil_div(p->seq_k, keys), TSRI_CPU_CHUNKS);
      by_sequence = max64(by_sequence, tsri_mul_sat(each, floats));
      by_total = max64(by_total, tsri_mul_sat(p->total_k / keys + 1, floats));
      unit = max64(unit, floats);
    }
    if (last) break;
  }
  by_sequence = tsri_mul_sat(p->batch, by_sequence);
  if (!(p->arrays & TSR_ARRAY_CU_K)) return by_sequence;
  return min64(by_sequence, tsri_add_sat(by_total, tsri_mul_sat(p->batch, unit)));
}

static bounds bounds_of(const tsri_cpu_split_plan *plan) {
  const tsr_problem *p = &plan->problem->p;
  const tsri_cpu_tiles *tiles = &plan->tiles;
  const int64_t rows = tsri_mul_sat(p->seq_q, plan->problem->group); /* of a sequence, at most */
  bounds most;
  most.units = tsri_mul_sat(p->batch, ceil_div(rows, tiles->rows));
  if (p->arrays & TSR_ARRAY_CU_Q) {
    const int64_t all = tsri_mul_sat(p->total_q, plan->problem->group);
    most.units = min64(most.units, tsri_add_sat(p->batch, all / tiles->rows));
  }
  most.units = tsri_mul_sat(most.units, p->heads_kv);
  most.parts = 0;
  if (rows == 0 || (uniform(p) && rows > TSRI_CPU_SPLIT_ROWS)) return most;
  most.parts = tsri_mul_sat(parts_bound(plan, rows, uniform(p)), p->heads_kv);
  return most;
}

static int64_t take_bounds(tsri_workspace *ws, const tsri_cpu_split_plan *plan) {
  const bounds most = bounds_of(plan);
  const int64_t entries = plan->problem->p.batch + 1;
  tsri_workspace_take(ws, tsri_mul_sat(entries, 3), sizeof(int64_t));
  tsri_workspace_take(ws, most.units, sizeof(int32_t));
  tsri_workspace_take(ws, most.parts, sizeof(float));
  tsri_workspace_take(ws, plan->runner.threads, scratch_bytes(plan));
  return ws->used;
}

int64_t tsri_cpu_split_workspace(const tsri_cpu_split_plan *plan) {
  tsri_workspace ws = {NULL, 0};
  return take_bounds(&ws, plan);
}

int tsri_cpu_split_preferred(const tsr_resolved *problem) {
  const tsr_problem *p = &problem->p;
  /* Sizes of slots say something of the other sequences: with batch_invariant they may not decide.
   */
  if (p->determinism == TSR_DETERMINISM_BATCH_INVARIANT) return 1;
  return tsri_mul_sat(p->seq_q, problem->group) <= 2 * TSRI_CPU_CHUNK_ROWS;
}

void tsri_cpu_split_estimate(const tsri_cpu_split_plan *plan, const tsri_cpu_device *device,
                             tsr_estimate *estimate) {
  const tsr_problem *p = &plan->problem->p;
  const tsri_cpu_tiles *tiles = &plan->tiles;
  const double rows = (double)p->seq_q * plan->problem->group;
  const double pairs = (double)p->batch * (double)p->heads_kv;
  const double keys = tsri_cpu_mean_keys(p), dims = (double)(p->dim_qk + p->dim_v);
  const double lanes = (double)tiles->lanes, threads = plan->runner.threads;
  const int64_t chunk = tsri_cpu_chunk_keys(tsri_mul_sat(p->seq_q, plan->problem->group), p->seq_k);
  const double chunks = chunk == INT64_MAX ? 1 : fmax(1, ceil(keys / (double)chunk));
  const double units = pairs * ceil(rows / (double)tiles->rows);
  const double tasks = fmax(1, units * chunks), parallel = fmin(threads, tasks);
  const double peak = device->clock * lanes * (plan->kernels.fused ? 4 : 2);
  const double state = chunks > 1 ? pairs * rows * chunks * (double)(p->dim_v + 2) * 8 : 0;
  double filled = rows > 0 ? rows / (ceil(rows / lanes) * lanes) : 1, efficiency = 0.6;
  double narrow = 1, seconds;
  /* The narrow form has no idle lanes but those between its rows and the next power of two. */
  for (; narrow < rows && narrow < 8; narrow *= 2) continue;
  if (rows <= narrow && narrow < lanes)
    filled = rows / narrow;
  else
    narrow = 0;
  if (p->softcap > 0 || p->bias.dtype != TSR_DTYPE_NONE || p->alibi != TSR_ALIBI_NONE ||
      p->mask.dtype != TSR_DTYPE_NONE || p->dropout > 0)
    efficiency *= 0.7;
  estimate->flops = 2 * rows * pairs * keys * dims;
  estimate->bytes = pairs * rows *
                        ((double)p->dim_qk * tsri_dtype_bytes(p->q.dtype) +
                         (double)p->dim_v * tsri_dtype_bytes(p->o.dtype)) +
                    units * keys * dims * tsri_dtype_bytes(p->k.dtype) + state;
  if (p->bias.dtype != TSR_DTYPE_NONE)
    estimate->bytes += pairs * rows * keys * tsri_dtype_bytes(p->bias.dtype);
  seconds = fmax(estimate->flops / (peak * efficiency * filled * parallel),
                 estimate->bytes / (device->bandwidth * fmin(parallel, 8)));
  estimate->seconds = 5e-6 + seconds;
  estimate->tile_q = tiles->rows;
  estimate->tile_k = narrow == 0 ? tiles->keys : plan->narrow_keys;
  estimate->workspace = (size_t)tsri_cpu_split_workspace(plan);
}

typedef struct split_job {
  tsri_cpu_split split;
  void (*kernel)(const tsri_cpu_split *job, int64_t task, int32_t worker);
} split_job;

static void split_task(void *arg, int64_t index, int32_t worker) {
  const split_job *job = (const split_job *)arg;
  job->kernel(&job->split, index, worker);
}

/* Where tasks, units and parts of every sequence begin, and the chunks that units wait for. Returns
 * the number of tasks. */
static int64_t cut_all(const tsri_cpu_split_plan *plan, const tsr_args *args, int64_t *first,
                       int32_t *open) {
  const tsr_problem *p = &plan->problem->p;
  const int64_t entries = p->batch + 1;
  int64_t tasks = 0, units = 0, floats = 0, b, u;
  for (b = 0; b < entries; ++b) {
    first[b] = tasks;
    first[entries + b] = units;
    first[2 * entries + b] = floats;
    if (b < p->batch) {
      const tsri_sequence seq = tsri_sequence_of(p, args, b);
      const tsri_mask_rule rule = tsri_sequence_rule(p, &seq);
      const tsri_cpu_cut cut = tsri_cpu_cut_of(&seq, &rule, plan->problem->group, plan->tiles.rows);
      const int64_t here = p->heads_kv * cut.tiles;
      for (u = 0; u < here; ++u) open[units + u] = (int32_t)cut.count;
      units += here;
      tasks += here * cut.count;
      if (cut.count > 1)
        floats += here * cut.count * tsri_cpu_part_floats(cut.rows, p->dim_v, &plan->tiles);
    }
  }
  return tasks;
}

tsr_status tsri_cpu_split_run(const tsri_cpu_split_plan *plan, const tsr_args *args,
                              tsr_reason *reason) {
  const tsr_problem *p = &plan->problem->p;
  const bounds most = bounds_of(plan);
  tsri_workspace ws = {(unsigned char *)args->workspace, 0};
  const int64_t entries = p->batch + 1;
  int64_t *first = (int64_t *)tsri_workspace_take(&ws, entries * 3, sizeof(int64_t));
  split_job job;
  int64_t tasks;
  memset(&job, 0, sizeof job);
  job.kernel = plan->kernels.split;
  job.split.problem = plan->problem;
  job.split.args = args;
  job.split.tiles = plan->tiles;
  job.split.narrow_keys = plan->narrow_keys;
  job.split.pages = tsri_pages_of(p, args);
  if (p->dropout > 0)
    job.split.drop_key = args->rng_state
                             ? tsri_dropout_key_make(args->rng_state[0], args->rng_state[1])
                             : tsri_dropout_key_make(args->seed, args->offset);
  job.split.first_task = first;
  job.split.first_unit = first + entries;
  job.split.first_part = first + 2 * entries;
  job.split.open = (int32_t *)tsri_workspace_take(&ws, most.units, sizeof(int32_t));
  job.split.parts = (float *)tsri_workspace_take(&ws, most.parts, sizeof(float));
  job.split.scratch_bytes = scratch_bytes(plan);
  job.split.scratch =
      (unsigned char *)tsri_workspace_take(&ws, plan->runner.threads, job.split.scratch_bytes);
  tasks = cut_all(plan, args, first, job.split.open);
  if (tsri_cpu_run(&plan->runner, split_task, &job, tasks) != 0 ||
      tsri_cpu_clear_unused(&plan->runner, plan->problem, args) != 0) {
    snprintf(reason->text, sizeof reason->text,
             "the runner of the context could not run the tasks");
    return TSR_STATUS_INTERNAL;
  }
  return TSR_STATUS_SUCCESS;
}
