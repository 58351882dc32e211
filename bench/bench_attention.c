// SPDX-License-Identifier: Apache-2.0
// Checking and timing one problem (see bench_attention.h).
#define _GNU_SOURCE
#include "bench_attention.h"

#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "bench_device.h"
#include "oracle.h"
#include "peak_memory.h"
#include "standard.h"
#include "tensors.h"
#include "traffic.h"

typedef struct bench_run {
  const bench_request *request;
  tsr_problem problem;  // with layouts of every tensor
  bench_tensor q, k, v, o, lse, dout, dq, dk, dv;
  tsr_args args;
  tsr_plan *plan;
  void *workspace;
  size_t workspace_bytes;  // of the pass that needs most
  char *message;
  size_t capacity;
} bench_run;

static bench_status refuse(bench_run *run, bench_status status, const char *format, ...)
    __attribute__((format(printf, 3, 4)));
static bench_status refuse(bench_run *run, bench_status status, const char *format, ...) {
  va_list args;
  va_start(args, format);
  vsnprintf(run->message, run->capacity, format, args);
  va_end(args);
  return status;
}

static bench_status library_error(bench_run *run, tsr_status status) {
  bool refused = status == TSR_STATUS_INVALID_ARGUMENT || status == TSR_STATUS_NOT_SUPPORTED ||
                 status == TSR_STATUS_NOT_FOUND;
  return refuse(run, refused ? BENCH_REFUSED : BENCH_FAILED, "%s: %s", tsr_status_string(status),
                tsr_last_message());
}

// A caller's tensor is copied, so that all memory is aligned and placed alike.
static bool create_input(bench_tensor *tensor, const bench_tensor *given, const tsr_layout *layout,
                         uint64_t seed, uint64_t stream, int64_t b, int64_t h, int64_t s,
                         int64_t d) {
  if (!bench_tensor_create(tensor, layout->dtype, layout->order, b, h, s, d)) return false;
  if (given == NULL) {
    bench_tensor_fill(tensor, seed, stream);
  } else {
    memcpy(tensor->data, given->data, (size_t)tensor->count * bench_dtype_bytes(tensor->dtype));
  }
  return true;
}

static bool create_tensors(bench_run *run) {
  const tsr_problem *p = &run->problem;
  int64_t B = p->batch, H = p->heads_q, G = p->heads_kv, S = p->seq_q, K = p->seq_k;
  int64_t D = p->dim_qk, V = p->dim_v > 0 ? p->dim_v : D;
  const bench_request *r = run->request;
  bool ok = create_input(&run->q, r->q, &p->q, r->seed, 0, B, H, S, D) &&
            create_input(&run->k, r->k, &p->k, r->seed, 1, B, G, K, D) &&
            create_input(&run->v, r->v, &p->v, r->seed, 2, B, G, K, V) &&
            bench_tensor_create(&run->o, p->o.dtype, p->o.order, B, H, S, V) &&
            bench_tensor_create(&run->lse, TSR_DTYPE_F32, TSR_ORDER_BHSD, B, H, S, 1);
  if (ok && run->request->pass == TSR_PASS_BACKWARD) {
    ok = bench_tensor_create(&run->dout, p->o.dtype, p->o.order, B, H, S, V) &&
         bench_tensor_create(&run->dq, p->q.dtype, p->q.order, B, H, S, D) &&
         bench_tensor_create(&run->dk, p->k.dtype, p->k.order, B, G, K, D) &&
         bench_tensor_create(&run->dv, p->v.dtype, p->v.order, B, G, K, V);
    if (ok) bench_tensor_fill(&run->dout, run->request->seed, 3);
  }
  return ok;
}

static void free_run(bench_run *run) {
  bench_tensor *all[] = {&run->q,    &run->k,  &run->v,  &run->o, &run->lse,
                         &run->dout, &run->dq, &run->dk, &run->dv};
  for (size_t i = 0; i < sizeof all / sizeof all[0]; ++i) bench_tensor_destroy(all[i]);
  free(run->workspace);
  tsr_plan_destroy(run->plan);
}

static void set_pointers(bench_run *run) {
  tsr_problem *p = &run->problem;
  bool backward = run->request->pass == TSR_PASS_BACKWARD;
  p->passes = TSR_PASS_FORWARD | (backward ? TSR_PASS_BACKWARD : 0);
  p->lse = (tsr_layout){.dtype = TSR_DTYPE_F32, .order = TSR_ORDER_BHSD, .alignment = 64};
  run->args = (tsr_args){.struct_size = sizeof run->args,
                         .q = run->q.data,
                         .k = run->k.data,
                         .v = run->v.data,
                         .o = run->o.data,
                         .lse = run->lse.data};
  if (p->dropout > 0) run->args.seed = run->request->seed;
  if (!backward) return;
  p->dout = p->o;
  p->dq = p->q;
  p->dk = p->k;
  p->dv = p->v;
}

// A backward run takes other pointers than a forward run of the same plan.
static tsr_status run_pass(bench_run *run, tsr_pass pass) {
  tsr_args args = run->args;
  if (pass == TSR_PASS_BACKWARD) {
    args.dout = run->dout.data;
    args.dq = run->dq.data;
    args.dk = run->dk.data;
    args.dv = run->dv.data;
  }
  size_t needed = 0;
  tsr_status status = tsr_plan_workspace_size(run->plan, pass, &needed);
  if (status != TSR_STATUS_SUCCESS) return status;
  args.workspace_size = needed;
  args.workspace = needed > 0 ? run->workspace : NULL;
  return pass == TSR_PASS_BACKWARD ? tsr_backward(run->plan, &args) : tsr_forward(run->plan, &args);
}

static bench_status make_plan(bench_run *run, bench_record *record) {
  tsr_status status =
      tsr_plan_create(&run->plan, run->request->context, run->request->device, &run->problem);
  if (status != TSR_STATUS_SUCCESS) return library_error(run, status);
  tsr_plan_info info = {.struct_size = sizeof info};
  status = tsr_plan_describe(run->plan, run->request->pass, &info);
  if (status != TSR_STATUS_SUCCESS) return library_error(run, status);
  snprintf(record->backend, sizeof record->backend, "%s", info.backend);
  snprintf(record->kernel, sizeof record->kernel, "%s", info.kernel);
  record->tile_q = info.tile_q;
  record->tile_k = info.tile_k;
  record->flops = info.flops;
  record->bytes = info.bytes;
  record->estimate = info.seconds;
  record->workspace = info.workspace;
  size_t forward = 0;
  status = tsr_plan_workspace_size(run->plan, TSR_PASS_FORWARD, &forward);
  if (status != TSR_STATUS_SUCCESS) return library_error(run, status);
  size_t bytes = forward > info.workspace ? forward : info.workspace;
  run->workspace_bytes = bytes;
  run->workspace = aligned_alloc(64, (bytes + 64) / 64 * 64);
  if (run->workspace == NULL) return refuse(run, BENCH_FAILED, "out of memory: workspace");
  memset(run->workspace, 0, bytes);
  return BENCH_OK;
}

// Backward takes O and LSE from forward.
static bench_status run_both(bench_run *run) {
  tsr_status status = run_pass(run, TSR_PASS_FORWARD);
  bool backward = run->request->pass == TSR_PASS_BACKWARD;
  if (status == TSR_STATUS_SUCCESS && backward) status = run_pass(run, TSR_PASS_BACKWARD);
  return status == TSR_STATUS_SUCCESS ? BENCH_OK : library_error(run, status);
}

static bench_status check(bench_run *run, bench_record *record) {
  bench_status ran = run_both(run);
  if (ran != BENCH_OK) return ran;
  if (run->request->inspect != NULL) {
    run->request->inspect(run->request->user, false, &run->o, &run->lse);
  }
  if (!run->request->check) return BENCH_OK;
  oracle_run oracle = {.context = run->request->context,
                       .problem = &run->request->problem,
                       .seed = run->request->seed,
                       .q = &run->q,
                       .k = &run->k,
                       .v = &run->v,
                       .o = &run->o,
                       .lse = &run->lse,
                       .dout = &run->dout,
                       .dq = &run->dq,
                       .dk = &run->dk,
                       .dv = &run->dv};
  oracle_result result;
  if (!oracle_check(&oracle, run->request->pass, &result, run->message, run->capacity)) {
    return BENCH_FAILED;
  }
  record->check = result.extent;
  record->max_error = result.max_error;
  record->rms_error = result.rms_error;
  record->ratio = result.ratio;
  if (result.ratio <= 1.0) return BENCH_OK;
  return refuse(run, BENCH_WRONG,
                "%s: %s is wrong (%s: max error %.3g, RMS %.3g, %.3g times the "
                "bound); not timed",
                record->kernel, result.worst, result.extent, result.max_error, result.rms_error,
                result.ratio);
}

static int ascending(const void *a, const void *b) {
  double x = *(const double *)a, y = *(const double *)b;
  return x < y ? -1 : x > y;
}

// Times calls of `once`; returns false when a call fails. A window of the FMA probe follows each
// sample (beside, may be NULL), so that both see the same clocks and the same neighbours.
static bool time_calls(bool (*once)(void *), void *user, const bench_request *request,
                       bench_times *times, bench_rate *beside) {
  const double window = 0.004;
  double sample[BENCH_SAMPLES_MAX], rate[BENCH_SAMPLES_MAX];
  int n = request->repeats < BENCH_SAMPLES_MAX ? request->repeats : BENCH_SAMPLES_MAX;
  double begin = bench_now(), once_seconds = 0;
  for (int i = 0; i < request->warmup || i < 1; ++i) {
    double start = bench_now();
    if (!once(user)) return false;
    once_seconds = bench_now() - start;
  }
  // The first calls of a process are slow; do not let one of them set the number of calls.
  while (bench_now() - begin < request->sample_seconds) {
    double start = bench_now();
    if (!once(user)) return false;
    once_seconds = bench_now() - start;
  }
  double calls = request->sample_seconds / (once_seconds > 1e-9 ? once_seconds : 1e-9);
  *times = (bench_times){.samples = n, .calls_per_sample = calls < 1 ? 1 : (int64_t)calls};
  for (int s = 0; s < n; ++s) {
    double start = bench_now();
    for (int64_t c = 0; c < times->calls_per_sample; ++c) {
      if (!once(user)) return false;
    }
    sample[s] = (bench_now() - start) / (double)times->calls_per_sample;
    if (beside != NULL) rate[s] = bench_probe_fma(request->threads, window);
  }
  if (beside != NULL) *beside = bench_rate_of(rate, n);
  qsort(sample, (size_t)n, sizeof sample[0], ascending);
  times->least = sample[0];
  times->most = sample[n - 1];
  times->median = n % 2 == 1 ? sample[n / 2] : 0.5 * (sample[n / 2 - 1] + sample[n / 2]);
  times->lower_quartile = sample[n / 4];
  times->upper_quartile = sample[n - 1 - n / 4];
  return true;
}

static bool once_library(void *user) {
  bench_run *run = user;
  return run_pass(run, run->request->pass) == TSR_STATUS_SUCCESS;
}

static bool once_standard(void *user) {
  standard_run(user);
  return true;
}

// What standard attention here cannot do is said before anything runs.
static bench_status check_standard(bench_run *run) {
  const tsr_problem *p = &run->request->problem;
  if (run->request->device.kind != TSR_DEVICE_HOST) {
    return refuse(run, BENCH_REFUSED,
                  "standard attention is timed on the host; accepted: without --standard");
  }
  if (run->request->pass != TSR_PASS_FORWARD || p->dropout > 0 || p->prefix > 0 || p->sink != 0 ||
      p->alibi != TSR_ALIBI_NONE || p->o.dtype != p->q.dtype || p->q.dtype == TSR_DTYPE_F64) {
    return refuse(run, BENCH_REFUSED,
                  "standard attention is timed for a forward pass with scale, softcap, causal and "
                  "window in float32, float16 or bfloat16; accepted: without --standard");
  }
  return BENCH_OK;
}

// Standard attention's problem on the same inputs; it overwrites O.
static standard_problem standard_of(const bench_run *run) {
  const tsr_problem *p = &run->request->problem;
  bool corner = p->causal == TSR_CAUSAL_BOTTOM_RIGHT || p->window.kind == TSR_WINDOW_BOTTOM_RIGHT;
  bool windowed = p->window.kind != TSR_WINDOW_NONE;
  standard_problem s = {.batch = p->batch,
                        .heads_q = p->heads_q,
                        .heads_kv = p->heads_kv,
                        .seq_q = p->seq_q,
                        .seq_k = p->seq_k,
                        .dim_qk = p->dim_qk,
                        .dim_v = run->v.shape[3],
                        .dtype = p->q.dtype,
                        .q = run->q.data,
                        .k = run->k.data,
                        .v = run->v.data,
                        .o = run->o.data,
                        .scale = p->scale != 0 ? p->scale : (float)(1.0 / sqrt((double)p->dim_qk)),
                        .softcap = p->softcap,
                        .diagonal = corner ? p->seq_k - p->seq_q : p->diagonal,
                        .left = windowed ? p->window.left : TSR_UNBOUNDED,
                        .right = windowed ? p->window.right : TSR_UNBOUNDED,
                        .threads = run->request->threads};
  if (p->causal != TSR_CAUSAL_NONE && s.right > 0) s.right = 0;
  memcpy(s.q_stride, run->q.stride, sizeof s.q_stride);
  memcpy(s.k_stride, run->k.stride, sizeof s.k_stride);
  memcpy(s.v_stride, run->v.stride, sizeof s.v_stride);
  memcpy(s.o_stride, run->o.stride, sizeof s.o_stride);
  return s;
}

static bench_status time_standard(bench_run *run, bench_record *record) {
  standard_problem s = standard_of(run);
  // A short problem is done sooner by one thread than by all: the opponent may choose.
  const double short_flops = 1e9;
  int threads[2] = {s.threads, 1};
  for (int i = 0; i < 2; ++i) {
    s.threads = threads[i];
    standard_state *state = standard_create(&s);
    if (state == NULL) return refuse(run, BENCH_FAILED, "out of memory: standard attention");
    bench_times times;
    time_calls(once_standard, state, run->request, &times, NULL);
    standard_destroy(state);
    if (i == 0 || times.median < record->standard_times.median) record->standard_times = times;
    if (record->flops > short_flops) break;
  }
  if (run->request->inspect != NULL) {
    run->request->inspect(run->request->user, true, &run->o, NULL);
  }
  record->standard = true;
  record->standard_bytes = standard_bytes(&s);
  return BENCH_OK;
}

// One more call under the cache-miss counters, outside the timed samples.
static bool measure_traffic(bench_run *run, bench_record *record) {
  bench_traffic traffic;
  record->bytes_measured = -1;
  if (!bench_traffic_begin(&traffic, run->request->threads, record->bytes_reason,
                           sizeof record->bytes_reason)) {
    return true;
  }
  bool ok = once_library(run);
  record->bytes_measured = bench_traffic_end(&traffic);
  return ok;
}

// With few query rows per key the caches' or the memory's read rate is the limit, and which of them
// it is depends on the size of K and V: an array as large is read.
static double probe_same_size(bench_run *run, bench_record *record) {
  const tsr_problem *p = &run->problem;
  const int64_t few_rows = 64;
  if (p->seq_q * (p->heads_q / p->heads_kv) > few_rows) return 0;
  record->read_array = run->k.count * (int64_t)bench_dtype_bytes(run->k.dtype) +
                       run->v.count * (int64_t)bench_dtype_bytes(run->v.dtype);
  return bench_probe_read(run->request->threads, record->read_array);
}

bench_status bench_plan(const bench_request *request, char *message, size_t capacity) {
  bench_run run = {
      .request = request, .problem = request->problem, .message = message, .capacity = capacity};
  set_pointers(&run);
  tsr_status status = tsr_plan_create(&run.plan, request->context, request->device, &run.problem);
  tsr_plan_destroy(run.plan);
  if (status != TSR_STATUS_SUCCESS) return library_error(&run, status);
  return request->standard ? check_standard(&run) : BENCH_OK;
}

bench_status bench_attention(const bench_request *request, bench_record *record, char *message,
                             size_t capacity) {
  if (request->device.kind != TSR_DEVICE_HOST) {
    return bench_device_attention(request, record, message, capacity);
  }
  bench_run run = {
      .request = request, .problem = request->problem, .message = message, .capacity = capacity};
  *record = (bench_record){.problem = request->problem,
                           .pass = request->pass,
                           .seed = request->seed,
                           .check = "not checked"};
  bench_status status = BENCH_OK;
  if (request->standard) status = check_standard(&run);
  set_pointers(&run);
  if (status == BENCH_OK && !create_tensors(&run))
    status = refuse(&run, BENCH_FAILED, "out of memory: tensors");
  set_pointers(&run);
  if (status == BENCH_OK) status = make_plan(&run, record);
  if (status == BENCH_OK) status = check(&run, record);
  if (status == BENCH_OK) {
    record->clock_before = bench_probe_clock();
    double read_before = probe_same_size(&run, record);
    if (!time_calls(once_library, &run, request, &record->times, &record->fma_beside) ||
        !measure_traffic(&run, record)) {
      status = refuse(&run, BENCH_FAILED, "%s: %s", record->kernel, tsr_last_message());
    }
    double read_after = probe_same_size(&run, record);
    record->read_beside = read_after > read_before ? read_after : read_before;
    record->clock_after = bench_probe_clock();
  }
  if (status == BENCH_OK && request->standard) status = time_standard(&run, record);
  free_run(&run);
  return status;
}

static int64_t tensor_bytes(const bench_run *run) {
  const bench_tensor *all[] = {&run->q,    &run->k,  &run->v,  &run->o,
                               &run->dout, &run->dq, &run->dk, &run->dv};
  int64_t bytes = 0;
  for (size_t i = 0; i < sizeof all / sizeof all[0]; ++i) {
    if (all[i]->data != NULL) bytes += all[i]->count * (int64_t)bench_dtype_bytes(all[i]->dtype);
  }
  return bytes;
}

static bench_status peak_standard(bench_run *run) {
  standard_problem s = standard_of(run);
  standard_state *state = standard_create(&s);
  if (state == NULL) return refuse(run, BENCH_FAILED, "out of memory: standard attention");
  standard_run(state);
  standard_destroy(state);
  return BENCH_OK;
}

bench_status bench_peak_run(const bench_request *request, bool standard, bench_peak *peak,
                            char *message, size_t capacity) {
  bench_run run = {
      .request = request, .problem = request->problem, .message = message, .capacity = capacity};
  bench_record record = {.times = {.samples = 0}};
  *peak = (bench_peak){.kernel = "standard attention"};
  bench_status status = standard ? check_standard(&run) : BENCH_OK;
  set_pointers(&run);
  if (status == BENCH_OK && !create_tensors(&run)) {
    status = refuse(&run, BENCH_FAILED, "out of memory: tensors");
  }
  set_pointers(&run);
  int64_t before = bench_peak_resident();
  peak->tensors = tensor_bytes(&run);
  if (status == BENCH_OK && standard) status = peak_standard(&run);
  if (status == BENCH_OK && !standard) {
    // LSE was touched with the other tensors; the algorithm needs it, so it counts.
    peak->lse = run.lse.count * (int64_t)bench_dtype_bytes(run.lse.dtype);
    status = make_plan(&run, &record);
    if (status == BENCH_OK) status = run_both(&run);
    peak->workspace = (int64_t)run.workspace_bytes;
    snprintf(peak->kernel, sizeof peak->kernel, "%s", record.kernel);
  }
  peak->extra = bench_peak_resident() - before + peak->lse;
  free_run(&run);
  return status;
}

double bench_fma_rate(const bench_record *record, const bench_probe *probe) {
  if (record->device != NULL) {
    return record->problem.q.dtype == TSR_DTYPE_F32 ? record->device->flops_f32
                                                    : record->device->flops_16;
  }
  return record->fma_beside.samples > 0 ? record->fma_beside.best : probe->flops_f32;
}

double bench_roofline_seconds(const bench_record *record, const bench_probe *probe) {
  double fma = bench_fma_rate(record, probe);
  double read = record->read_beside > 0  ? record->read_beside
                : record->device != NULL ? record->device->copy_bytes
                                         : probe->read_bytes;
  double compute = fma > 0 ? record->flops / fma : 0;
  double memory = read > 0 ? record->bytes / read : 0;
  return compute > memory ? compute : memory;
}
