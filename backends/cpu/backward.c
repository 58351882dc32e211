// SPDX-License-Identifier: Apache-2.0
//
// The backward pass above its kernels. Keys are cut into chunks, a key task each: dK and dV of a
// chunk belong to its task, dQ is left as one share per chunk and summed in order afterwards.
// Shares cost memory and time, so there are only as many chunks as make a few tasks per thread, at most
// 16: the workspace stays linear in the lengths. Where equal bits are asked for the number depends on
// the problem alone, as if there were 16 threads.
//
// Phases of a run, each a parallel loop: a look at heads; facts of all rows; zeros into dBias; key tasks; dQ; what
// dBias and dSink still need; zeros into rows that no sequence uses.
#include "backward.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "amx.h"
#include "common/bias.h"
#include "common/dtype.h"
#include "delta.h"
#include "forward.h"

enum {
  most_chunks = 16,
  tasks_of_thread = 4,
  usual_threads = 16,
  invariant_chunks = 8,
  least_chunk = 512, /* keys; of sequences that are to be few chunks */
  short_chunk = 128, /* of others */
  whole_keys = 512,  /* keys of a sequence that is one tile, the same two */
  short_whole = 256
};

static int64_t min64(int64_t a, int64_t b) {
  return a < b ? a : b;
}
static int64_t max64(int64_t a, int64_t b) {
  return a > b ? a : b;
}
static int64_t ceil_div(int64_t a, int64_t b) {
  return a / b + (a % b != 0);
}

static int wanted(const tsr_layout *layout) {
  return layout->dtype != TSR_DTYPE_NONE;
}

/* Whether dS is needed, which anything but dV and dSink is made of. */
static int wants_scores(const tsr_problem *p) {
  return wanted(&p->dq) || wanted(&p->dk) || wanted(&p->dbias);
}

/* Whether all sequences have as many queries, or keys, as the problem says. */
static int uniform_q(const tsr_problem *p) {
  return (p->arrays & (TSR_ARRAY_CU_Q | TSR_ARRAY_USED_Q | TSR_ARRAY_LEFT_PAD_Q)) == 0;
}
static int uniform_k(const tsr_problem *p) {
  return (p->arrays & (TSR_ARRAY_CU_K | TSR_ARRAY_USED_K | TSR_ARRAY_LEFT_PAD_K)) == 0;
}

/* How keys are cut into chunks. Tiles of AMX take long to pack, and short chunks share less of it. */
static void cut_keys(tsri_cpu_backward_tiles *tiles, const tsr_resolved *problem, int32_t threads,
                     int64_t pairs, double flops) {
  const int fixed = problem->p.determinism != TSR_DETERMINISM_DEFAULT || tiles->amx;
  const int64_t all = fixed ? usual_threads : threads;
  /* Little work is not worth two more waits for the slowest thread: then one task each is enough. */
  const double worth = 2.5e8; /* FLOPs of a thread */
  const int64_t tasks = tiles->amx || flops >= worth * (double)all ? tasks_of_thread * all : all;
  int64_t least = least_chunk;
  tiles->whole = whole_keys;
  tiles->most_chunks = max64(1, min64(most_chunks, ceil_div(tasks, pairs)));
  if (problem->features & TSR_FEATURE_BATCH_INVARIANT) {
    tiles->most_chunks = invariant_chunks;
  } else if (!tiles->amx && tiles->most_chunks > 1) {
    least = short_chunk;
    tiles->whole = short_whole;
  }
  tiles->least_keys = ceil_div(least, tiles->keys) * tiles->keys;
}

tsri_cpu_backward_plan tsri_cpu_backward_plan_of(const tsr_resolved *problem,
                                                 const tsri_cpu_kernels *kernels,
                                                 const tsri_cpu_runner *runner,
                                                 const tsri_cpu_device *device, int amx,
                                                 int64_t most) {
  const tsr_problem *p = &problem->p;
  const int64_t pairs = max64(1, tsri_mul_sat(p->batch, p->heads_kv));
  const int64_t block = 3 * kernels->lanes;
  const double flops = 5.0 * (double)p->batch * (double)p->heads_q * (double)p->seq_q *
                       tsri_cpu_mean_keys(p) * (double)(p->dim_qk + p->dim_v);
  tsri_cpu_backward_plan plan;
  tsri_cpu_backward_tiles *tiles = &plan.tiles;
  int64_t fit;
  plan.problem = problem;
  plan.kernels = *kernels;
  plan.runner = tsri_cpu_runner_for(runner, flops, 0);
  tiles->lanes = amx ? 32 : kernels->lanes;
  tiles->amx = amx;
  /* S^T and dP^T of a block take half of L1. A fact of the processor, because results follow it. */
  fit = device->l1_bytes / 2 / (2 * block * (int64_t)sizeof(float));
  tiles->keys = amx ? most : max64(32, min64(most, fit / 16 * 16));
  cut_keys(tiles, problem, plan.runner.threads, pairs, flops);
  /* K, V, dK and dV of a panel take a quarter of L2, which two threads may share. */
  fit = device->l2_bytes / 4 / (2 * (p->dim_qk + p->dim_v) * (int64_t)sizeof(float));
  fit = min64(fit, tsri_cpu_chunk_keys(tiles, p->seq_k));
  fit = max64(fit, tsri_cpu_tile_bound(tiles, p->seq_k));
  tiles->panel = ceil_div(fit, tiles->keys) * tiles->keys;
  return plan;
}

/* Chunks of any sequence, at most. */
static int64_t chunk_bound(const tsri_cpu_backward_plan *plan) {
  return min64(plan->tiles.most_chunks, ceil_div(plan->problem->p.seq_k, plan->tiles.least_keys));
}

/* Padded rows of all KV heads, at most; whole vectors, because shares of dQ lie so far apart. */
static int64_t row_bound(const tsri_cpu_backward_plan *plan) {
  const tsr_problem *p = &plan->problem->p;
  const int64_t lanes = plan->tiles.lanes, group = plan->problem->group;
  int64_t rows;
  if (p->arrays & TSR_ARRAY_CU_Q) {
    const int64_t used = tsri_mul_sat(p->total_q, group), pad = p->batch * lanes;
    rows = used > INT64_MAX - pad ? INT64_MAX : (used + pad) / lanes * lanes;
  } else {
    rows = tsri_mul_sat(p->batch, tsri_cpu_padded_rows(p->seq_q, group, lanes));
  }
  return tsri_mul_sat(rows, p->heads_kv);
}

/* --------------------------------------------------------------------------------------- dBias */

/* Elements along each axis of dBias: 1 where it is summed. */
static void dbias_shape(const tsr_problem *p, int64_t shape[4]) {
  shape[0] = p->dbias.stride[0] ? p->batch : 1;
  shape[1] = p->dbias.stride[1] ? p->heads_q : 1;
  shape[2] = p->dbias.stride[2] ? p->seq_q : 1;
  shape[3] = p->dbias.stride[3] ? p->seq_k : 1;
}

static int dbias_summed(const tsr_problem *p) {
  const int64_t *stride = p->dbias.stride;
  return wanted(&p->dbias) &&
         ((stride[0] == 0 && p->batch > 1) || (stride[1] == 0 && p->heads_q > 1) ||
          (stride[2] == 0 && p->seq_q > 1) || (stride[3] == 0 && p->seq_k > 1));
}

/* Floats of the sums of a 16-bit dBias. */
static int64_t dbias_floats(const tsr_problem *p) {
  int64_t shape[4];
  if (!dbias_summed(p) || p->dbias.dtype == TSR_DTYPE_F32) return 0;
  dbias_shape(p, shape);
  return tsri_mul_sat(tsri_mul_sat(shape[0], shape[1]), tsri_mul_sat(shape[2], shape[3]));
}

typedef struct backward_job {
  tsri_cpu_backward shared;
  void (*kernel)(const tsri_cpu_backward *job, int64_t task, int32_t worker);
} backward_job;

static void kernel_task(void *arg, int64_t index, int32_t worker) {
  const backward_job *job = (const backward_job *)arg;
  job->kernel(&job->shared, index, worker);
}

/* Index (b, h) of dBias: zeros, where sums start from nothing or no pair may write. */
static void dbias_clear(void *arg, int64_t index, int32_t worker) {
  const tsri_cpu_backward *job = &((const backward_job *)arg)->shared;
  const tsr_problem *p = &job->problem->p;
  int64_t shape[4], i, j;
  (void)worker;
  dbias_shape(p, shape);
  if (job->dbias.sums && p->dbias.dtype != TSR_DTYPE_F32) {
    memset(job->dbias.sums + index * shape[2] * shape[3], 0,
           (size_t)(shape[2] * shape[3]) * sizeof(float));
    return;
  }
  if (p->accumulate & TSR_ACCUMULATE_DBIAS) return;
  for (i = 0; i < shape[2]; ++i)
    for (j = 0; j < shape[3]; ++j)
      tsri_store_f32(p->dbias.dtype, job->args->dbias,
                     tsri_pair_offset(p->dbias.stride, index / shape[1], index % shape[1], i, j),
                     0.0f);
}

/* Index (b, h) of dBias: sums in workspace to the output. */
static void dbias_store(void *arg, int64_t index, int32_t worker) {
  const tsri_cpu_backward *job = &((const backward_job *)arg)->shared;
  const tsr_problem *p = &job->problem->p;
  int64_t shape[4], i, j;
  const float *sum;
  (void)worker;
  dbias_shape(p, shape);
  sum = job->dbias.sums + index * shape[2] * shape[3];
  for (i = 0; i < shape[2]; ++i)
    for (j = 0; j < shape[3]; ++j) {
      const int64_t at =
          tsri_pair_offset(p->dbias.stride, index / shape[1], index % shape[1], i, j);
      float value = *sum++;
      if (p->accumulate & TSR_ACCUMULATE_DBIAS)
        value += tsri_load_f32(p->dbias.dtype, job->args->dbias, at);
      tsri_store_f32(p->dbias.dtype, job->args->dbias, at, value);
    }
}

/* Where key tasks add dS, and which axes they may not be spread over. */
static void dbias_prepare(const tsri_cpu_backward_plan *plan, const tsr_args *args, float *sums,
                          tsri_cpu_backward *job) {
  const tsr_problem *p = &plan->problem->p;
  const int64_t *stride = p->dbias.stride;
  int64_t shape[4];
  if (!wanted(&p->dbias)) return;
  job->dbias.summed = dbias_summed(p);
  memcpy(job->dbias.stride, stride, sizeof job->dbias.stride);
  if (p->dbias.dtype == TSR_DTYPE_F32) {
    job->dbias.sums = (float *)args->dbias;
  } else if (job->dbias.summed) {
    dbias_shape(p, shape);
    job->dbias.sums = sums;
    job->dbias.stride[3] = stride[3] ? 1 : 0;
    job->dbias.stride[2] = stride[2] ? shape[3] : 0;
    job->dbias.stride[1] = stride[1] ? shape[2] * shape[3] : 0;
    job->dbias.stride[0] = stride[0] ? shape[1] * shape[2] * shape[3] : 0;
  }
  if (stride[0] == 0) job->owners_b = 1;
  if (stride[1] == 0) job->owners_g = 1;
  /* Sequences of different lengths have different chunks: those that share an element share a task.
   */
  if (stride[3] == 0 || (stride[0] == 0 && !uniform_k(p))) job->owners_c = 1;
}

/* ------------------------------------------------------------------------------------ the rest */

/* Index (b, g). */
static void delta_task(void *arg, int64_t index, int32_t worker) {
  const tsri_cpu_backward *job = &((const backward_job *)arg)->shared;
  const int64_t heads = job->problem->p.heads_kv;
  (void)worker;
  job->most[index] = tsri_cpu_delta_most(job->problem, job->args, index / heads, index % heads);
}

/* Index h: minus the sum of p_sink D over batches and rows, in double. */
static void dsink_task(void *arg, int64_t index, int32_t worker) {
  const tsri_cpu_backward *job = &((const backward_job *)arg)->shared;
  const tsr_problem *p = &job->problem->p;
  const int64_t group = job->problem->group, g = index / group, member = index % group;
  double sum = (p->accumulate & TSR_ACCUMULATE_DSINK) ? job->args->dsink[index] : 0;
  int64_t b, i;
  (void)worker;
  for (b = 0; b < p->batch; ++b) {
    const tsri_span q = tsri_sequence_of(p, job->args, b).q;
    const int64_t first = tsri_cpu_first_row(job, b) +
                          g * tsri_cpu_padded_rows(q.len, group, job->tiles.lanes) + member;
    for (i = 0; i < q.len; ++i)
      sum -= (double)job->p_sink[first + i * group] * job->d[first + i * group];
  }
  job->args->dsink[index] = (float)sum;
}

static void clear_rows(const tsr_layout *layout, void *base, int64_t b, int64_t h, int64_t begin,
                       int64_t end, int64_t dim) {
  int64_t row, x;
  for (row = begin; row < end; ++row)
    for (x = 0; x < dim; ++x)
      tsri_store_f32(layout->dtype, base,
                     tsri_row_offset(layout->stride, b, h, row) + x * layout->stride[3], 0.0f);
}

/* Rows of head h's slot outside its used part. */
static void clear_padding(const tsr_layout *layout, void *base, int64_t b, int64_t h,
                          const tsri_span *span, int64_t dim, int add) {
  if (!wanted(layout) || add) return;
  clear_rows(layout, base, b, h, span->slot_begin, span->begin, dim);
  clear_rows(layout, base, b, h, span->begin + span->len, span->slot_begin + span->slot_len, dim);
}

/* Index (b, h): zeros into rows of the gradients that no query and no key uses. */
static void clear_task(void *arg, int64_t index, int32_t worker) {
  const tsri_cpu_backward *job = &((const backward_job *)arg)->shared;
  const tsr_problem *p = &job->problem->p;
  const tsr_args *args = job->args;
  const int64_t b = index / p->heads_q, h = index % p->heads_q, group = job->problem->group;
  const tsri_sequence seq = tsri_sequence_of(p, args, b);
  (void)worker;
  clear_padding(&p->dq, args->dq, b, h, &seq.q, p->dim_qk, p->accumulate & TSR_ACCUMULATE_DQ);
  if (h % group != 0) return;
  clear_padding(&p->dk, args->dk, b, h / group, &seq.k, p->dim_qk,
                p->accumulate & TSR_ACCUMULATE_DK);
  clear_padding(&p->dv, args->dv, b, h / group, &seq.k, p->dim_v,
                p->accumulate & TSR_ACCUMULATE_DV);
}

/* Rows of a KV head below which no row takes them, as kFewRows in backward_block-inl.h. */
enum { few_rows = 64 };

/* Whether rows may take P and D from what forward stored, if heads allow it. */
static int looks_at_heads(const tsri_cpu_backward_plan *plan) {
  const tsr_problem *p = &plan->problem->p;
  const int rounds = p->o.dtype != TSR_DTYPE_F32 || p->q.dtype == TSR_DTYPE_F32;
  const int keys = wants_scores(p) || wanted(&p->dv); /* then few of them are gone through as a whole */
  if (!rounds || tsri_mul_sat(p->seq_q, plan->problem->group) < few_rows) return 0;
  return keys ? p->seq_k > plan->tiles.whole : p->dsink;
}

/* The arrays of a run, cut from its workspace; with ws->base NULL it only counts. */
static float *take_arrays(const tsri_cpu_backward_plan *plan, tsri_workspace *ws,
                          tsri_cpu_backward *job, int64_t **first_row, int64_t **first_task) {
  const tsr_problem *p = &plan->problem->p;
  const int64_t f = sizeof(float), rows = row_bound(plan);
  const int64_t dims = tsri_cpu_dq_dims(&plan->tiles, p->dim_qk);
  const int64_t shares = wanted(&p->dq) ? tsri_mul_sat(chunk_bound(plan), dims) : 0;
  tsri_workspace scratch = {NULL, 0};
  float *sums;
  *first_row = *first_task = NULL;
  if (!uniform_q(p)) {
    *first_row = (int64_t *)tsri_workspace_take(ws, p->batch + 1, (int64_t)sizeof(int64_t));
    *first_task = (int64_t *)tsri_workspace_take(ws, p->batch + 1, (int64_t)sizeof(int64_t));
  }
  job->ref = (float *)tsri_workspace_take(ws, rows, f);
  job->inverse = (float *)tsri_workspace_take(ws, rows, f);
  job->d = (float *)tsri_workspace_take(ws, rows, f);
  job->most = NULL;
  if (looks_at_heads(plan)) job->most = (float *)tsri_workspace_take(ws, tsri_mul_sat(p->batch, p->heads_kv), f);
  job->p_sink = (float *)tsri_workspace_take(ws, p->dsink ? rows : 0, f);
  job->dq = (float *)tsri_workspace_take(ws, tsri_mul_sat(rows, shares), f);
  sums = (float *)tsri_workspace_take(ws, dbias_floats(p), f);
  tsri_cpu_backward_scratch_take(&scratch, p, &plan->tiles);
  job->scratch_bytes = scratch.used;
  job->scratch = (unsigned char *)tsri_workspace_take(ws, plan->runner.threads, job->scratch_bytes);
  return sums;
}

int64_t tsri_cpu_backward_workspace(const tsri_cpu_backward_plan *plan) {
  tsri_workspace ws = {NULL, 0};
  tsri_cpu_backward unused;
  int64_t *first_row, *first_task;
  take_arrays(plan, &ws, &unused, &first_row, &first_task);
  return ws.used;
}

void tsri_cpu_backward_estimate(const tsri_cpu_backward_plan *plan, const tsri_cpu_device *device,
                                tsr_estimate *estimate) {
  const tsr_problem *p = &plan->problem->p;
  const double pairs = (double)p->batch * (double)p->heads_q, rows = pairs * (double)p->seq_q;
  const double keys = tsri_cpu_mean_keys(p), dims = (double)(p->dim_qk + p->dim_v);
  const double bytes = tsri_dtype_bytes(p->q.dtype), lanes = (double)plan->tiles.lanes;
  const double in_group = (double)p->seq_q * plan->problem->group;
  const double filled = in_group > 0 ? in_group / (ceil(in_group / lanes) * lanes) : 1;
  const double shares = wanted(&p->dq) ? (double)chunk_bound(plan) : 0;
  const double peak = plan->tiles.amx ? device->clock * TSRI_CPU_AMX_FLOPS
                                      : device->clock * plan->kernels.lanes *
                                            (plan->kernels.fused ? 4 : 2);
  const double tasks = (double)p->batch * (double)p->heads_kv * fmax(1, (double)chunk_bound(plan));
  const double parallel = fmin(plan->runner.threads, fmax(1, tasks));
  double efficiency = (plan->tiles.amx ? 0.15 : 0.6) * filled, per_pair = 0;
  if (wants_scores(p) || wanted(&p->dv)) per_pair += 2.0 * (double)p->dim_qk;
  if (wants_scores(p)) per_pair += 2.0 * (double)p->dim_v;
  if (wanted(&p->dv)) per_pair += 2.0 * (double)p->dim_v;
  if (wanted(&p->dq)) per_pair += 2.0 * (double)p->dim_qk;
  if (wanted(&p->dk)) per_pair += 2.0 * (double)p->dim_qk;
  if (!plan->tiles.amx && in_group < 3 * lanes) efficiency *= 0.6;
  if (p->softcap > 0 || wanted(&p->bias) || p->alibi != TSR_ALIBI_NONE || wanted(&p->mask) ||
      p->dropout > 0)
    efficiency *= 0.7;
  estimate->flops = rows * keys * per_pair;
  /* Q and dO pass once per panel, and dQ's shares are written and read once per chunk; K, V, dK and
   * dV pass once. */
  estimate->bytes = rows * dims * bytes * ceil((double)p->seq_k / (double)plan->tiles.panel) +
                    rows * (double)p->dim_v * bytes * 2 + rows * (double)p->dim_qk * 8 * shares +
                    pairs / plan->problem->group * (double)p->seq_k * dims * 2 * bytes;
  if (wanted(&p->bias)) estimate->bytes += rows * keys * tsri_dtype_bytes(p->bias.dtype);
  if (wanted(&p->dbias)) estimate->bytes += rows * keys * tsri_dtype_bytes(p->dbias.dtype);
  estimate->seconds = 1e-5 + fmax(estimate->flops / (peak * efficiency * parallel),
                                  estimate->bytes / (device->bandwidth * fmin(parallel, 8)));
  estimate->tile_q = tsri_cpu_block_rows(&plan->tiles);
  estimate->tile_k = plan->tiles.keys;
  estimate->workspace = (size_t)tsri_cpu_backward_workspace(plan);
}

/* Row tasks of a sequence of sq queries. */
static int64_t row_tasks_of(const tsri_cpu_backward_plan *plan, int64_t step, int64_t sq) {
  return plan->problem->p.heads_kv * ceil_div(sq * plan->problem->group, step);
}

/* Everything that the phases share. Returns the number of row tasks. */
static int64_t prepare(const tsri_cpu_backward_plan *plan, const tsr_args *args, backward_job *out) {
  const tsr_problem *p = &plan->problem->p;
  const int64_t group = plan->problem->group, lanes = plan->tiles.lanes;
  tsri_cpu_backward *job = &out->shared;
  tsri_workspace ws = {(unsigned char *)args->workspace, 0};
  int64_t *first_row, *first_task;
  float *sums;
  int64_t b;
  memset(out, 0, sizeof *out);
  sums = take_arrays(plan, &ws, job, &first_row, &first_task);
  job->problem = plan->problem;
  job->args = args;
  job->tiles = plan->tiles;
  job->pages = tsri_pages_of(p, args);
  if (p->dropout > 0)
    job->drop_key = args->rng_state ? tsri_dropout_key_make(args->rng_state[0], args->rng_state[1])
                                    : tsri_dropout_key_make(args->seed, args->offset);
  job->rows_each = tsri_cpu_padded_rows(p->seq_q, group, lanes);
  job->rows_all = row_bound(plan);
  job->row_step = 4 * 3 * lanes;
  job->tasks_each = row_tasks_of(plan, job->row_step, p->seq_q);
  if (first_row) {
    first_row[0] = first_task[0] = 0;
    for (b = 0; b < p->batch; ++b) {
      const int64_t sq = tsri_sequence_of(p, args, b).q.len;
      first_row[b + 1] = first_row[b] + tsri_cpu_padded_rows(sq, group, lanes);
      first_task[b + 1] = first_task[b] + row_tasks_of(plan, job->row_step, sq);
    }
    job->first_row = first_row;
    job->first_task = first_task;
  }
  job->owners_b = p->batch;
  job->owners_g = p->heads_kv;
  job->owners_c = chunk_bound(plan);
  dbias_prepare(plan, args, sums, job);
  return first_task ? first_task[p->batch] : p->batch * job->tasks_each;
}

tsr_status tsri_cpu_backward_run(const tsri_cpu_backward_plan *plan, const tsr_args *args,
                                 tsr_reason *reason) {
  const tsr_problem *p = &plan->problem->p;
  const int padded = (p->arrays & (TSR_ARRAY_USED_Q | TSR_ARRAY_LEFT_PAD_Q | TSR_ARRAY_USED_K |
                                   TSR_ARRAY_LEFT_PAD_K)) != 0;
  const tsri_cpu_runner *runner = &plan->runner;
  int64_t row_tasks, dbias_tasks = 0, shape[4];
  backward_job job;
  const int key_tasks = wants_scores(p) || wanted(&p->dv);
  const int keys_known = uniform_k(p) && p->seq_k > 0;
  int failed = 0;
  row_tasks = prepare(plan, args, &job);
  if (wanted(&p->dbias)) {
    dbias_shape(p, shape);
    dbias_tasks = shape[0] * shape[1];
  }
  /* Rows of a sequence that is one tile, and dQ of one that is one chunk, are left to the key tasks: if
   * all are such, short problems wake the threads only once. */
  if ((key_tasks || p->dsink) && !(key_tasks && keys_known && p->seq_k <= plan->tiles.whole)) {
    job.kernel =
        plan->tiles.amx ? plan->kernels.amx_backward_rows : plan->kernels.backward_rows;
    if (job.shared.most) failed |= tsri_cpu_run(runner, delta_task, &job, p->batch * p->heads_kv);
    failed |= tsri_cpu_run(runner, kernel_task, &job, row_tasks);
  }
  failed |= tsri_cpu_run(runner, dbias_clear, &job, dbias_tasks);
  if (!failed && key_tasks) {
    job.kernel =
        plan->tiles.amx ? plan->kernels.amx_backward_keys : plan->kernels.backward_keys;
    failed |= tsri_cpu_run(runner, kernel_task, &job,
                           job.shared.owners_b * job.shared.owners_g * job.shared.owners_c);
  }
  if (!failed && wanted(&p->dq) &&
      !(keys_known && tsri_cpu_chunk_count(&plan->tiles, p->seq_k) == 1)) {
    job.kernel =
        plan->tiles.amx ? plan->kernels.amx_backward_queries : plan->kernels.backward_queries;
    failed |= tsri_cpu_run(runner, kernel_task, &job, row_tasks);
  }
  if (!failed && job.shared.dbias.sums && p->dbias.dtype != TSR_DTYPE_F32)
    failed |= tsri_cpu_run(runner, dbias_store, &job, dbias_tasks);
  if (!failed && p->dsink) failed |= tsri_cpu_run(runner, dsink_task, &job, p->heads_q);
  if (!failed && padded) failed |= tsri_cpu_run(runner, clear_task, &job, p->batch * p->heads_q);
  if (!failed) return TSR_STATUS_SUCCESS;
  snprintf(reason->text, sizeof reason->text, "the runner of the context could not run the tasks");
  return TSR_STATUS_INTERNAL;
}
