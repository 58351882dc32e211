// SPDX-License-Identifier: Apache-2.0
// Checking and timing on a GPU (see bench_device.h).
#include "bench_device.h"

#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "oracle.h"
#include "tests/support/device_memory.h"

enum { T_Q = 0, T_K, T_V, T_DOUT, T_O, T_LSE, T_DQ, T_DK, T_DV, T_COUNT };
enum { kSetsMax = 64, kCallsMax = 4000 };

struct bench_session {
  bool ready;
  bool verified;  // the outputs in host[] have passed a check
  tsr_device device;
  tsr_problem problem;  // what the tensors were made for
  tsr_pass pass;
  uint64_t seed;
  const tsr_gpu *gpu;
  bench_tensor host[T_COUNT];
  int sets;
  void *set[kSetsMax];  // a device block with all tensors
  size_t offset[T_COUNT], set_bytes;
  void *stream, *begin, *end;
};

typedef struct device_run {
  const bench_request *request;
  bench_session *session;
  tsr_problem problem;
  tsr_plan *plan;
  void *workspace;
  size_t forward_bytes, backward_bytes;
  int64_t calls;  // made so far: which set is next
  char *message;
  size_t capacity;
} device_run;

static bench_status refuse(device_run *run, bench_status status, const char *format, ...)
    __attribute__((format(printf, 3, 4)));
static bench_status refuse(device_run *run, bench_status status, const char *format, ...) {
  va_list args;
  va_start(args, format);
  vsnprintf(run->message, run->capacity, format, args);
  va_end(args);
  return status;
}

static bench_status device_error(device_run *run) {
  return refuse(run, BENCH_FAILED, "device: %s", tsr_gpu_error());
}

static bench_status library_error(device_run *run, tsr_status status) {
  bool refused = status == TSR_STATUS_INVALID_ARGUMENT || status == TSR_STATUS_NOT_SUPPORTED ||
                 status == TSR_STATUS_NOT_FOUND;
  return refuse(run, refused ? BENCH_REFUSED : BENCH_FAILED, "%s: %s", tsr_status_string(status),
                tsr_last_message());
}

bench_session *bench_session_create(void) {
  return calloc(1, sizeof(bench_session));
}

static void session_clear(bench_session *s) {
  for (int i = 0; i < T_COUNT; ++i) {
    if (s->host[i].data != NULL) bench_tensor_destroy(&s->host[i]);
  }
  if (s->gpu != NULL) {
    for (int i = 0; i < s->sets; ++i) tsr_gpu_free(s->gpu, TSR_GPU_DEVICE, s->set[i]);
    tsr_gpu_event_destroy(s->gpu, s->begin);
    tsr_gpu_event_destroy(s->gpu, s->end);
    tsr_gpu_stream_destroy(s->gpu, s->stream);
  }
  memset(s, 0, sizeof *s);
}

void bench_session_destroy(bench_session *session) {
  if (session == NULL) return;
  session_clear(session);
  free(session);
}

// Whether the tensors of the session are those of the request: the same problem but for the kernel.
static bool session_fits(const bench_session *s, const bench_request *request) {
  tsr_problem a = s->problem, b = request->problem;
  a.backend = b.backend = a.kernel = b.kernel = NULL;
  return s->ready && s->pass == request->pass && s->seed == request->seed &&
         s->device.kind == request->device.kind && s->device.index == request->device.index &&
         request->q == NULL && memcmp(&a, &b, sizeof a) == 0;
}

static size_t tensor_bytes(const bench_tensor *t) {
  return (size_t)t->count * bench_dtype_bytes(t->dtype);
}

static bool make_host_tensors(bench_session *s, const bench_request *r) {
  const tsr_problem *p = &r->problem;
  const int64_t B = p->batch, H = p->heads_q, G = p->heads_kv, S = p->seq_q, K = p->seq_k;
  const int64_t D = p->dim_qk, V = p->dim_v > 0 ? p->dim_v : D;
  const bench_tensor *given[3] = {r->q, r->k, r->v};
  bench_tensor *t = s->host;
  bool ok = bench_tensor_create(&t[T_Q], p->q.dtype, p->q.order, B, H, S, D) &&
            bench_tensor_create(&t[T_K], p->k.dtype, p->k.order, B, G, K, D) &&
            bench_tensor_create(&t[T_V], p->v.dtype, p->v.order, B, G, K, V) &&
            bench_tensor_create(&t[T_O], p->o.dtype, p->o.order, B, H, S, V) &&
            bench_tensor_create(&t[T_LSE], TSR_DTYPE_F32, TSR_ORDER_BHSD, B, H, S, 1);
  if (ok && r->pass == TSR_PASS_BACKWARD) {
    ok = bench_tensor_create(&t[T_DOUT], p->o.dtype, p->o.order, B, H, S, V) &&
         bench_tensor_create(&t[T_DQ], p->q.dtype, p->q.order, B, H, S, D) &&
         bench_tensor_create(&t[T_DK], p->k.dtype, p->k.order, B, G, K, D) &&
         bench_tensor_create(&t[T_DV], p->v.dtype, p->v.order, B, G, K, V);
    if (ok) bench_tensor_fill(&t[T_DOUT], r->seed, 3);
  }
  for (int i = 0; ok && i < 3; ++i) {
    if (given[i] != NULL) {
      memcpy(t[i].data, given[i]->data, tensor_bytes(&t[i]));
    } else {
      bench_tensor_fill(&t[i], r->seed, (uint64_t)i);
    }
  }
  return ok;
}

// Device blocks; the second and later ones are copies inside the device.
static bool make_sets(bench_session *s) {
  size_t inputs = 0;
  for (int i = 0; i < T_COUNT; ++i) {
    s->offset[i] = s->set_bytes;
    s->set_bytes += (tensor_bytes(&s->host[i]) + 255) / 256 * 256;
    if (i <= T_DOUT) inputs += tensor_bytes(&s->host[i]);
  }
  const size_t enough = 3 * (size_t)tsr_gpu_describe(s->gpu)->l2_bytes;
  size_t wanted = inputs > 0 ? (enough + inputs - 1) / inputs : 1;
  if (wanted < 1) wanted = 1;
  if (wanted > kSetsMax) wanted = kSetsMax;
  for (size_t n = 0; n < wanted; ++n) {
    char *block;
    if (!tsr_gpu_alloc(s->gpu, TSR_GPU_DEVICE, s->set_bytes, &s->set[n])) return false;
    s->sets = (int)n + 1;
    block = s->set[n];
    if (n > 0) {
      if (!tsr_gpu_copy(s->gpu, block, s->set[0], s->set_bytes, NULL)) return false;
      continue;
    }
    if (!tsr_gpu_fill(s->gpu, block, 0xff, s->set_bytes)) return false;
    for (int i = T_Q; i <= T_DOUT; ++i) {
      if (s->host[i].data != NULL &&
          !tsr_gpu_to_device(s->gpu, block + s->offset[i], s->host[i].data,
                             tensor_bytes(&s->host[i]))) {
        return false;
      }
    }
  }
  return tsr_gpu_synchronize(s->gpu);
}

static bench_status session_prepare(device_run *run) {
  bench_session *s = run->session;
  const bench_request *r = run->request;
  if (session_fits(s, r)) return BENCH_OK;
  session_clear(s);
  s->device = r->device;
  s->problem = r->problem;
  s->pass = r->pass;
  s->seed = r->seed;
  s->gpu = tsr_gpu_open(r->device);
  if (s->gpu == NULL) return device_error(run);
  if (!make_host_tensors(s, r)) return refuse(run, BENCH_FAILED, "out of memory: tensors");
  if (!make_sets(s) || !tsr_gpu_stream_create(s->gpu, &s->stream) ||
      !tsr_gpu_event_create(s->gpu, &s->begin) || !tsr_gpu_event_create(s->gpu, &s->end)) {
    return device_error(run);
  }
  s->ready = true;
  return BENCH_OK;
}

static void *at_set(const bench_session *s, int64_t set, int tensor) {
  if (s->host[tensor].data == NULL) return NULL;
  return (char *)s->set[set] + s->offset[tensor];
}

// Enqueues a pass on one set.
static tsr_status enqueue(const device_run *run, tsr_pass pass, int64_t set) {
  const bench_session *s = run->session;
  tsr_args args = {.struct_size = sizeof args,
                   .q = at_set(s, set, T_Q),
                   .k = at_set(s, set, T_K),
                   .v = at_set(s, set, T_V),
                   .o = at_set(s, set, T_O),
                   .lse = at_set(s, set, T_LSE),
                   .stream = s->stream};
  if (run->problem.dropout > 0) args.seed = run->request->seed;
  args.workspace_size = pass == TSR_PASS_BACKWARD ? run->backward_bytes : run->forward_bytes;
  args.workspace = args.workspace_size > 0 ? run->workspace : NULL;
  if (pass != TSR_PASS_BACKWARD) return tsr_forward(run->plan, &args);
  args.dout = at_set(s, set, T_DOUT);
  args.dq = at_set(s, set, T_DQ);
  args.dk = at_set(s, set, T_DK);
  args.dv = at_set(s, set, T_DV);
  return tsr_backward(run->plan, &args);
}

static bench_status make_plan(device_run *run, bench_record *record) {
  const bool backward = run->request->pass == TSR_PASS_BACKWARD;
  tsr_problem *p = &run->problem;
  p->passes = TSR_PASS_FORWARD | (backward ? TSR_PASS_BACKWARD : 0);
  p->lse = (tsr_layout){.dtype = TSR_DTYPE_F32, .order = TSR_ORDER_BHSD, .alignment = 64};
  if (backward) p->dout = p->o, p->dq = p->q, p->dk = p->k, p->dv = p->v;
  tsr_status status = tsr_plan_create(&run->plan, run->request->context, run->request->device, p);
  if (status != TSR_STATUS_SUCCESS) return library_error(run, status);
  tsr_plan_info info = {.struct_size = sizeof info};
  status = tsr_plan_describe(run->plan, run->request->pass, &info);
  if (status == TSR_STATUS_SUCCESS) {
    status = tsr_plan_workspace_size(run->plan, TSR_PASS_FORWARD, &run->forward_bytes);
  }
  if (status == TSR_STATUS_SUCCESS && backward) {
    status = tsr_plan_workspace_size(run->plan, TSR_PASS_BACKWARD, &run->backward_bytes);
  }
  if (status != TSR_STATUS_SUCCESS) return library_error(run, status);
  snprintf(record->backend, sizeof record->backend, "%s", info.backend);
  snprintf(record->kernel, sizeof record->kernel, "%s", info.kernel);
  record->tile_q = info.tile_q;
  record->tile_k = info.tile_k;
  record->flops = info.flops;
  record->bytes = info.bytes;
  record->estimate = info.seconds;
  record->workspace = info.workspace;
  return BENCH_OK;
}

static bench_status make_workspace(device_run *run) {
  size_t bytes =
      run->forward_bytes > run->backward_bytes ? run->forward_bytes : run->backward_bytes;
  if (!tsr_gpu_alloc(run->session->gpu, TSR_GPU_DEVICE, bytes, &run->workspace)) {
    return device_error(run);
  }
  return BENCH_OK;
}

static bool fetch(const bench_session *s, int tensor) {
  const bench_tensor *t = &s->host[tensor];
  return t->data == NULL || tsr_gpu_to_host(s->gpu, t->data, at_set(s, 0, tensor), tensor_bytes(t));
}

// Largest difference of two results over what roundings allow.
static double difference_ratio(const bench_tensor *x, const void *other) {
  const bool wide = x->dtype == TSR_DTYPE_F32;
  const double u = wide ? 0x1p-24 : x->dtype == TSR_DTYPE_F16 ? 0x1p-11 : 0x1p-8;
  const double roundings = wide ? 128 : 8;
  double worst = 0, largest = 0;
#pragma omp parallel for schedule(static) reduction(max : worst, largest)
  for (int64_t i = 0; i < x->count; ++i) {
    const double a = accuracy_load(x->dtype, x->data, i), b = accuracy_load(x->dtype, other, i);
    const double error = a == b ? 0 : fabs(a - b);
    if (!(error <= worst)) worst = isnan(error) ? (double)INFINITY : error;
    if (isfinite(a) && fabs(a) > largest) largest = fabs(a);
  }
  return worst > 0 ? worst / (roundings * u * largest) : 0;
}

// Outputs of set 0 against those in host memory, which passed their check.
static bench_status check_against(device_run *run, bench_record *record) {
  static const char *const kNames[T_COUNT] = {
      [T_O] = "o", [T_LSE] = "lse", [T_DQ] = "dq", [T_DK] = "dk", [T_DV] = "dv"};
  const bench_session *s = run->session;
  record->check = "the chosen kernel's result";
  for (int i = T_O; i < T_COUNT; ++i) {
    const bench_tensor *t = &s->host[i];
    if (t->data == NULL) continue;
    void *other = malloc(tensor_bytes(t) + 1);
    if (other == NULL) return refuse(run, BENCH_FAILED, "out of memory: check");
    bool ok = tsr_gpu_to_host(s->gpu, other, at_set(s, 0, i), tensor_bytes(t));
    const double ratio = ok ? difference_ratio(t, other) : 0;
    free(other);
    if (!ok) return device_error(run);
    if (ratio > record->ratio) record->ratio = ratio;
    if (ratio <= 1) continue;
    return refuse(run, BENCH_WRONG,
                  "%s: %s differs from the chosen kernel's result by %.3g times what rounding "
                  "allows; not timed",
                  record->kernel, kNames[i], ratio);
  }
  return BENCH_OK;
}

// Outputs of set 0 are NaN, then computed and compared. Every set gets O and LSE, which a backward
// pass reads.
static bench_status check(device_run *run, bench_record *record) {
  bench_session *s = run->session;
  bench_tensor *t = s->host;
  bool backward = run->request->pass == TSR_PASS_BACKWARD;
  if (!tsr_gpu_fill(s->gpu, at_set(s, 0, T_O), 0xff, s->set_bytes - s->offset[T_O])) {
    return device_error(run);
  }
  tsr_status status = TSR_STATUS_SUCCESS;
  for (int n = 0; status == TSR_STATUS_SUCCESS && n < s->sets; ++n) {
    status = enqueue(run, TSR_PASS_FORWARD, n);
  }
  if (status == TSR_STATUS_SUCCESS && backward) status = enqueue(run, TSR_PASS_BACKWARD, 0);
  if (status != TSR_STATUS_SUCCESS) return library_error(run, status);
  if (!tsr_gpu_stream_synchronize(s->gpu, s->stream)) return device_error(run);
  if (run->request->against_last && s->verified) return check_against(run, record);
  s->verified = false;
  for (int i = T_O; i < T_COUNT; ++i) {
    if (!fetch(s, i)) return device_error(run);
  }
  if (run->request->inspect != NULL) {
    run->request->inspect(run->request->user, false, &t[T_O], &t[T_LSE]);
  }
  if (!run->request->check) return BENCH_OK;
  oracle_run oracle = {.context = run->request->context,
                       .problem = &run->request->problem,
                       .seed = run->request->seed,
                       .q = &t[T_Q],
                       .k = &t[T_K],
                       .v = &t[T_V],
                       .o = &t[T_O],
                       .lse = &t[T_LSE],
                       .dout = &t[T_DOUT],
                       .dq = &t[T_DQ],
                       .dk = &t[T_DK],
                       .dv = &t[T_DV]};
  oracle_result result;
  if (!oracle_check(&oracle, run->request->pass, &result, run->message, run->capacity)) {
    return BENCH_FAILED;
  }
  record->check = result.extent;
  record->max_error = result.max_error;
  record->rms_error = result.rms_error;
  record->ratio = result.ratio;
  s->verified = result.ratio <= 1.0;
  if (s->verified) return BENCH_OK;
  return refuse(run, BENCH_WRONG,
                "%s: %s is wrong (%s: max error %.3g, RMS %.3g, %.3g times the bound); not timed",
                record->kernel, result.worst, result.extent, result.max_error, result.rms_error,
                result.ratio);
}

// Seconds of one call, from `calls` of them between two events; negative on failure.
static double sample(device_run *run, int64_t calls, bench_status *failed) {
  const bench_session *s = run->session;
  double seconds = 0;
  if (!tsr_gpu_event_record(s->gpu, s->begin, s->stream)) {
    *failed = device_error(run);
    return -1;
  }
  for (int64_t i = 0; i < calls; ++i) {
    tsr_status status = enqueue(run, run->request->pass, run->calls++ % s->sets);
    if (status == TSR_STATUS_SUCCESS) continue;
    *failed = library_error(run, status);
    return -1;
  }
  if (!tsr_gpu_event_record(s->gpu, s->end, s->stream) ||
      !tsr_gpu_event_seconds(s->gpu, s->begin, s->end, &seconds)) {
    *failed = device_error(run);
    return -1;
  }
  return seconds / (double)calls;
}

static int ascending(const void *a, const void *b) {
  double x = *(const double *)a, y = *(const double *)b;
  return x < y ? -1 : x > y;
}

static bench_status time_calls(device_run *run, bench_times *times) {
  const bench_request *r = run->request;
  bench_status failed = BENCH_OK;
  double value[BENCH_SAMPLES_MAX];
  int n = r->repeats < BENCH_SAMPLES_MAX ? r->repeats : BENCH_SAMPLES_MAX;
  double begin = bench_now(), once = 0;
  for (int i = 0; i < r->warmup || bench_now() - begin < r->sample_seconds; ++i) {
    once = sample(run, 1, &failed);
    if (failed != BENCH_OK) return failed;
  }
  double calls = r->sample_seconds / (once > 1e-7 ? once : 1e-7);
  if (calls > kCallsMax) calls = kCallsMax;
  *times = (bench_times){.samples = n, .calls_per_sample = calls < 1 ? 1 : (int64_t)calls};
  for (int i = 0; i < n; ++i) {
    value[i] = sample(run, times->calls_per_sample, &failed);
    if (failed != BENCH_OK) return failed;
  }
  qsort(value, (size_t)n, sizeof value[0], ascending);
  times->least = value[0];
  times->most = value[n - 1];
  times->median = n % 2 == 1 ? value[n / 2] : 0.5 * (value[n / 2 - 1] + value[n / 2]);
  times->lower_quartile = value[n / 4];
  times->upper_quartile = value[n - 1 - n / 4];
  return BENCH_OK;
}

bench_status bench_device_attention(const bench_request *request, bench_record *record,
                                    char *message, size_t capacity) {
  bench_session *own = NULL;
  device_run run = {.request = request,
                    .session = request->session,
                    .problem = request->problem,
                    .message = message,
                    .capacity = capacity};
  *record = (bench_record){.problem = request->problem,
                           .pass = request->pass,
                           .seed = request->seed,
                           .device = request->bench_device,
                           .bytes_measured = -1,
                           .bytes_reason = "no traffic counter on devices",
                           .check = "not checked"};
  if (run.session == NULL) run.session = own = bench_session_create();
  if (run.session == NULL) return refuse(&run, BENCH_FAILED, "out of memory: session");
  bench_status status = make_plan(&run, record);
  if (status == BENCH_OK) status = session_prepare(&run);
  if (status == BENCH_OK) status = make_workspace(&run);
  if (status == BENCH_OK) status = check(&run, record);
  if (status == BENCH_OK) {
    record->sets = run.session->sets;
    if (request->bench_device != NULL) {
      record->clocks_before = bench_device_clocks(request->bench_device);
    }
    status = time_calls(&run, &record->times);
    if (request->bench_device != NULL) {
      record->clocks_after = bench_device_clocks(request->bench_device);
    }
  }
  const tsr_problem *p = &request->problem;
  const int64_t few_rows = 64;
  if (p->seq_q * (p->heads_q / p->heads_kv) <= few_rows) {
    record->read_array =
        (int64_t)(tensor_bytes(&run.session->host[T_K]) + tensor_bytes(&run.session->host[T_V]));
    if (request->bench_device != NULL) record->read_beside = request->bench_device->copy_bytes;
  }
  tsr_plan_destroy(run.plan);
  if (run.session->gpu != NULL) tsr_gpu_free(run.session->gpu, TSR_GPU_DEVICE, run.workspace);
  bench_session_destroy(own);
  return status;
}
