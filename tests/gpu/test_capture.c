// SPDX-License-Identifier: Apache-2.0
//
// What only a device backend promises: a run can be captured into a graph and replayed with other lengths
// in device memory; runs without a workspace, on a stream, from a thread without a context; and pointers
// to host memory, to another device or off their alignment are refused by name with outputs untouched.
// A plain program; status 77 when no backend has a device.
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/support/backends.h"
#include "tests/support/check.h"
#include "tests/support/numeric.h"

enum { SKIPPED = 77 };

static int failures;

static void fail(const char *backend, const char *what, const char *detail) {
  printf("FAIL %s: %s: %s\n", backend, what, detail);
  fflush(stdout);
  ++failures;
}

/* One problem laid out on a device, planned, with workspaces of its own. */
typedef struct rig {
  const char *backend;
  tsr_device device;
  const tsr_gpu *gpu;
  tsr_inputs in;
  tsr_setup setup;
  tsr_plan *plan;
  tsr_block forward, backward; /* workspaces */
} rig;

static bool make_workspace(rig *r, tsr_pass pass, tsr_block *block) {
  size_t bytes = 0;
  return tsr_plan_workspace_size(r->plan, pass, &bytes) == TSR_STATUS_SUCCESS &&
         tsr_block_create_on(block, r->device, bytes, 64, false);
}

static void rig_close(rig *r) {
  tsr_plan_destroy(r->plan);
  tsr_block_destroy(&r->forward);
  tsr_block_destroy(&r->backward);
  tsr_setup_destroy(&r->setup);
  tsr_inputs_destroy(&r->in);
}

/* False when the backend refuses the problem (printed) or a step fails (counted). */
static bool rig_open(rig *r, const char *backend, int32_t ordinal, const tsr_case *row,
                     tsr_dtype dtype, uint32_t passes) {
  char why[640] = "out of memory";
  tsr_status status;
  memset(r, 0, sizeof *r);
  r->backend = backend;
  r->device = tsr_backends_device(NULL, backend, ordinal);
  r->gpu = tsr_gpu_open(r->device);
  if (!r->gpu) {
    fail(backend, row->name, tsr_gpu_error());
    return false;
  }
  if (!tsr_inputs_create(&r->in, row, dtype) ||
      !tsr_setup_create_on(&r->setup, r->device, &r->in, row, dtype, passes, why, sizeof why)) {
    fail(backend, row->name, why);
    tsr_inputs_destroy(&r->in);
    return false;
  }
  status = tsr_backends_plan(&r->plan, NULL, &r->setup, backend, NULL);
  if (status == TSR_STATUS_SUCCESS && make_workspace(r, TSR_PASS_FORWARD, &r->forward) &&
      (!(passes & TSR_PASS_BACKWARD) || make_workspace(r, TSR_PASS_BACKWARD, &r->backward)))
    return true;
  if (status == TSR_STATUS_NOT_SUPPORTED)
    printf("refused %s %s %s: %s\n", backend, row->name, tsr_check_dtype_name(dtype),
           tsr_last_message());
  else
    fail(backend, row->name, status ? tsr_last_message() : tsr_block_reason());
  rig_close(r);
  return false;
}

/* Enqueues every pass of the setup. */
static tsr_status enqueue(const rig *r, void *stream, bool own_workspace) {
  tsr_args args = r->setup.args;
  tsr_status status;
  args.stream = stream;
  args.workspace = own_workspace ? r->forward.data : NULL;
  args.workspace_size = own_workspace ? r->forward.size : 0;
  args.dout = NULL, args.dlse = NULL, args.dsink = NULL;
  args.dq = args.dk = args.dv = args.dbias = NULL;
  status = tsr_forward(r->plan, &args);
  if (status != TSR_STATUS_SUCCESS || !(r->setup.passes & TSR_PASS_BACKWARD)) return status;
  args = r->setup.args;
  args.stream = stream;
  args.max_logit = NULL;
  args.workspace = own_workspace ? r->backward.data : NULL;
  args.workspace_size = own_workspace ? r->backward.size : 0;
  return tsr_backward(r->plan, &args);
}

/* Whether all outputs of two setups of one layout hold the same bytes; else a failure. */
static bool same_outputs(const rig *a, const rig *b, const char *what) {
  char text[160];
  int which;
  for (which = 0; which < TSR_OUTPUT_COUNT; ++which) {
    const tsr_block *x = &a->setup.out[which].block, *y = &b->setup.out[which].block;
    size_t i;
    if (x->size != y->size) {
      fail(a->backend, what, "layouts differ");
      return false;
    }
    for (i = 0; i < x->size && x->data[i] == y->data[i]; ++i) continue;
    if (i == x->size) continue;
    snprintf(text, sizeof text, "byte %zu of %s differs", i, tsr_output_name((tsr_output)which));
    fail(a->backend, what, text);
    return false;
  }
  return true;
}

static bool settled(rig *r, const char *what) {
  if (tsr_setup_settle(&r->setup) == TSR_STATUS_SUCCESS) return true;
  fail(r->backend, what, tsr_setup_message(&r->setup));
  return false;
}

/* Results of the same problem by ordinary runs, to compare with. */
static bool run_plainly(rig *r, const char *what) {
  if (tsr_setup_run(&r->setup, r->plan, NULL) == TSR_STATUS_SUCCESS) return true;
  fail(r->backend, what, tsr_setup_message(&r->setup));
  return false;
}

/* ------------------------------------------------------------------------------------- capture */

enum { SEQUENCES = 3 };
static const int64_t long_q[SEQUENCES] = {70, 33, 64}, long_k[SEQUENCES] = {200, 131, 64};
static const int64_t short_q[SEQUENCES] = {1, 33, 17}, short_k[SEQUENCES] = {77, 0, 63};
static const int64_t ones[SEQUENCES] = {1, 1, 1};

static tsr_case row_of(const char *name, bool decode, bool paged, bool shorter) {
  tsr_case row = {0};
  row.name = name, row.group = "capture";
  row.batch = SEQUENCES, row.heads_q = 4, row.heads_kv = 2;
  row.seq_q = decode ? 1 : 70, row.seq_k = 200, row.dim_qk = 64, row.dim_v = 64;
  row.len_q = decode ? ones : shorter ? short_q : long_q;
  row.len_k = shorter ? short_k : long_k;
  row.page_size = paged ? 16 : 0;
  row.causal = TSR_CAUSAL_BOTTOM_RIGHT;
  row.alignment = 16;
  row.determinism = TSR_DETERMINISM_DETERMINISTIC; /* bits are compared */
  return row;
}

/* New lengths into the arrays that the captured run reads. */
static void change_lengths(rig *r, const tsr_case *row) {
  const tsr_vector vectors[2] = {TSR_VECTOR_USED_Q, TSR_VECTOR_USED_K};
  const int64_t *values[2] = {row->len_q, row->len_k};
  int side;
  int64_t b;
  for (side = 0; side < 2; ++side)
    for (b = 0; b < row->batch; ++b)
      tsr_test_store(TSR_DTYPE_I32, r->setup.vector[vectors[side]].data, b,
                     (double)values[side][b]);
}

static bool capture(const rig *r, void *stream, void **graph) {
  tsr_status status = TSR_STATUS_SUCCESS;
  if (!tsr_gpu_capture_begin(r->gpu, stream)) {
    fail(r->backend, "begin of capture", tsr_gpu_error());
    return false;
  }
  status = enqueue(r, stream, true);
  if (status != TSR_STATUS_SUCCESS) fail(r->backend, "run while capturing", tsr_last_message());
  if (!tsr_gpu_capture_end(r->gpu, stream, graph)) {
    fail(r->backend, "end of capture", tsr_gpu_error());
    return false;
  }
  return status == TSR_STATUS_SUCCESS;
}

static bool replay(rig *r, void *graph, void *stream, const char *what) {
  tsr_setup_reset(&r->setup);
  if (tsr_gpu_graph_launch(r->gpu, graph, stream)) return settled(r, what);
  fail(r->backend, what, tsr_gpu_error());
  return false;
}

/* Equal results before and after would show nothing. */
static bool lengths_matter(const rig *a, const rig *b) {
  const tsr_block *x = &a->setup.out[TSR_OUTPUT_O].block, *y = &b->setup.out[TSR_OUTPUT_O].block;
  if (x->size == y->size && memcmp(x->data, y->data, x->size) != 0) return true;
  fail(a->backend, "capture", "the lengths make no difference");
  return false;
}

static void captured_run(const char *backend, tsr_dtype dtype, bool decode, bool paged,
                         uint32_t passes) {
  const tsr_case before = row_of("lengths as captured", decode, paged, false);
  const tsr_case after = row_of("lengths changed", decode, paged, true);
  rig r, first, second;
  void *stream = NULL, *graph = NULL;
  if (!rig_open(&r, backend, 0, &before, dtype, passes)) return;
  if (!rig_open(&first, backend, 0, &before, dtype, passes)) {
    rig_close(&r);
    return;
  }
  if (!rig_open(&second, backend, 0, &after, dtype, passes)) {
    rig_close(&r), rig_close(&first);
    return;
  }
  if (!tsr_gpu_stream_create(r.gpu, &stream)) {
    fail(backend, "stream", tsr_gpu_error());
  } else if (run_plainly(&first, before.name) && run_plainly(&second, after.name) &&
             lengths_matter(&first, &second) && capture(&r, stream, &graph) && replay(&r, graph, stream, before.name) &&
             same_outputs(&r, &first, before.name)) {
    change_lengths(&r, &after);
    if (replay(&r, graph, stream, after.name)) same_outputs(&r, &second, after.name);
    change_lengths(&r, &before);
    if (replay(&r, graph, stream, "lengths changed back"))
      same_outputs(&r, &first, "lengths changed back");
  }
  tsr_gpu_graph_destroy(r.gpu, graph);
  tsr_gpu_stream_destroy(r.gpu, stream);
  rig_close(&second), rig_close(&first), rig_close(&r);
}

/* ------------------------------------------------------------------------ streams and contexts */

typedef struct other_thread {
  rig *r;
  void *stream;
  tsr_status status;
  char message[512];
} other_thread;

/* A thread on which nobody made a context current. */
static void *run_elsewhere(void *arg) {
  other_thread *t = (other_thread *)arg;
  t->status = enqueue(t->r, t->stream, true);
  snprintf(t->message, sizeof t->message, "%s", tsr_last_message());
  return NULL;
}

static void ways_to_run(const char *backend, tsr_dtype dtype, uint32_t passes) {
  const tsr_case row = row_of("ways to run", false, false, false);
  rig r, plain;
  void *stream = NULL;
  pthread_t thread;
  other_thread other = {&r, NULL, TSR_STATUS_SUCCESS, ""};
  if (!rig_open(&r, backend, 0, &row, dtype, passes)) return;
  if (!rig_open(&plain, backend, 0, &row, dtype, passes)) {
    rig_close(&r);
    return;
  }
  if (!run_plainly(&plain, row.name) || !tsr_gpu_stream_create(r.gpu, &stream)) {
    fail(backend, row.name, "no run to compare with, or no stream");
  } else {
    tsr_setup_reset(&r.setup);
    if (enqueue(&r, stream, false) != TSR_STATUS_SUCCESS)
      fail(backend, "without a workspace", tsr_last_message());
    else if (settled(&r, "without a workspace"))
      same_outputs(&r, &plain, "without a workspace");
    tsr_setup_reset(&r.setup);
    tsr_gpu_leave(r.gpu);
    if (enqueue(&r, stream, true) != TSR_STATUS_SUCCESS)
      fail(backend, "without a current context", tsr_last_message());
    else if (settled(&r, "without a current context"))
      same_outputs(&r, &plain, "without a current context");
    tsr_setup_reset(&r.setup);
    other.stream = stream;
    if (pthread_create(&thread, NULL, run_elsewhere, &other) != 0) {
      fail(backend, "another thread", "not created");
    } else {
      pthread_join(thread, NULL);
      if (other.status != TSR_STATUS_SUCCESS)
        fail(backend, "another thread", other.message);
      else if (settled(&r, "another thread"))
        same_outputs(&r, &plain, "another thread");
    }
  }
  tsr_gpu_stream_destroy(r.gpu, stream);
  rig_close(&plain), rig_close(&r);
}

/* ------------------------------------------------------------------------------- wrong pointers */

/* The run must be refused in words that name the field, before anything is written. */
static void expect_refusal(rig *r, const tsr_args *args, const char *field, const char *what) {
  const tsr_buffer *o = &r->setup.out[TSR_OUTPUT_O];
  const tsr_status status = tsr_forward(r->plan, args);
  int64_t i;
  char text[640];
  if (status != TSR_STATUS_INVALID_ARGUMENT || !strstr(tsr_last_message(), field)) {
    snprintf(text, sizeof text, "%s is %s: found status '%s': %.300s", field, what,
             tsr_status_string(status), tsr_last_message());
    fail(r->backend, "wrong pointer", text);
  }
  if (!settled(r, what)) return;
  for (i = 0; i < o->elements; ++i)
    if (!tsr_test_is_poison(o->dtype, o->block.data, i)) {
      fail(r->backend, what, "O was written");
      return;
    }
}

static void wrong_pointers(const char *backend, tsr_dtype dtype, int32_t devices) {
  const tsr_case row = row_of("wrong pointers", false, false, false);
  const size_t room = 1 << 20;
  rig r;
  tsr_args good, args;
  tsr_block other = {0};
  void *host;
  if (!rig_open(&r, backend, 0, &row, dtype, TSR_PASS_FORWARD)) return;
  host = aligned_alloc(4096, room);
  if (!host) exit(1);
  memset(host, 0, room);
  good = r.setup.args;
  good.workspace = r.forward.size ? r.forward.data : NULL;
  good.workspace_size = r.forward.size;
#define WITH(change, field, what)          \
  do {                                     \
    args = good;                           \
    change;                                \
    expect_refusal(&r, &args, field, what); \
  } while (0)
  WITH(args.q = host, "q", "in host memory");
  WITH(args.v = host, "v", "in host memory");
  WITH(args.o = host, "o", "in host memory");
  WITH(args.lse = (float *)host, "lse", "in host memory");
  WITH(args.used_k = host, "used_k", "in host memory");
  WITH(args.q = (const char *)args.q + 2 * tsr_test_dtype_bytes(dtype), "q", "off its alignment");
  WITH(args.o = (char *)args.o + 1, "o", "off its alignment");
  if (good.workspace) WITH(args.workspace = host, "workspace", "in host memory");
  if (devices > 1 &&
      tsr_block_create_on(&other, tsr_backends_device(NULL, backend, 1), room, 16, false)) {
    WITH(args.q = other.data, "q", "on another device");
    WITH(args.o = other.data, "o", "on another device");
  }
#undef WITH
  tsr_block_destroy(&other);
  free(host);
  rig_close(&r);
}

/* A second device computes what the first one does. */
static void second_device(const char *backend, tsr_dtype dtype) {
  const tsr_case row = row_of("second device", false, false, false);
  rig first, second;
  if (!rig_open(&first, backend, 0, &row, dtype, TSR_PASS_FORWARD)) return;
  if (rig_open(&second, backend, 1, &row, dtype, TSR_PASS_FORWARD)) {
    if (run_plainly(&first, row.name) && run_plainly(&second, row.name))
      same_outputs(&first, &second, row.name);
    rig_close(&second);
  }
  rig_close(&first);
}

static int32_t devices_of(const char *backend) {
  int32_t i, count = tsr_context_backend_count(NULL);
  for (i = 0; i < count; ++i) {
    tsr_backend_info info = TSR_BACKEND_INFO_INIT;
    if (tsr_context_backend_info(NULL, i, &info) == TSR_STATUS_SUCCESS &&
        strcmp(info.name, backend) == 0)
      return info.devices;
  }
  return 0;
}

int main(void) {
  static const tsr_dtype dtypes[] = {TSR_DTYPE_F32, TSR_DTYPE_F16, TSR_DTYPE_BF16};
  const uint32_t both = TSR_PASS_FORWARD | TSR_PASS_BACKWARD;
  const char *names[16];
  int32_t n, count = tsr_backends_list(NULL, NULL, names, 16), visited = 0;
  int d;
  for (n = 0; n < count && n < 16; ++n) {
    const int32_t devices = devices_of(names[n]);
    if (tsr_backends_device(NULL, names[n], 0).kind == TSR_DEVICE_HOST) continue;
    ++visited;
    for (d = 0; d < 3; ++d) {
      captured_run(names[n], dtypes[d], false, false, TSR_PASS_FORWARD);
      captured_run(names[n], dtypes[d], false, false, both);
      captured_run(names[n], dtypes[d], true, false, TSR_PASS_FORWARD);
      captured_run(names[n], dtypes[d], true, true, TSR_PASS_FORWARD);
      ways_to_run(names[n], dtypes[d], TSR_PASS_FORWARD);
      ways_to_run(names[n], dtypes[d], both);
      wrong_pointers(names[n], dtypes[d], devices);
      if (devices > 1) second_device(names[n], dtypes[d]);
    }
  }
  printf("%d backends with devices, %d failures\n", (int)visited, failures);
  return failures ? 1 : visited ? 0 : SKIPPED;
}
