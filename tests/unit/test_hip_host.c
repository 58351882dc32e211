// SPDX-License-Identifier: Apache-2.0
//
// The host code of the HIP backend above a runtime whose calls fail, one after the other (tests/support/fake_hip.h):
// making a context, plans of both passes, runs with and without a workspace, merging, a keep mask. Whatever fails,
// the status says whose memory or device it was and the message quotes the runtime; nothing is kept, neither memory
// nor an error that the caller's next call would find; the thread's current device is what it was; and the same
// calls succeed afterwards. Also what no failure has to do with: pointers of anywhere, captures, and threads that all
// come first. Code that was loaded stays for ever, so that every failure has a process of its own. A
// plain program, so that threads can be watched too.
#define _DEFAULT_SOURCE
#include <dlfcn.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <tessera/tessera.h>
#include <unistd.h>

#include "tests/support/fake_hip.h"

enum { B = 1, H = 2, SQ = 3, SK = 4000, D = 64, MANY = 700, THREADS = 4 };

static fake_hip *hip;
static int (*last_error)(void), (*set_device)(int), (*get_device)(int *);
static char wrong[512]; /* the first thing that was */

__attribute__((format(printf, 1, 2))) static void complain(const char *format, ...) {
  va_list values;
  if (wrong[0]) return;
  va_start(values, format);
  vsnprintf(wrong, sizeof wrong, format, values);
  va_end(values);
}

static bool open_fake(void) {
  void *library = dlopen("libamdhip64.so.7", RTLD_NOW | RTLD_LOCAL);
  fake_hip *(*get)(void) = NULL;
  void *symbols[4];
  static const char *const names[4] = {"fakeHip", "hipGetLastError", "hipSetDevice", "hipGetDevice"};
  int i;
  for (i = 0; i < 4; ++i) {
    symbols[i] = library ? dlsym(library, names[i]) : NULL;
    if (!symbols[i]) return false;
  }
  memcpy(&get, &symbols[0], sizeof get);
  memcpy(&last_error, &symbols[1], sizeof last_error);
  memcpy(&set_device, &symbols[2], sizeof set_device);
  memcpy(&get_device, &symbols[3], sizeof get_device);
  hip = get();
  return true;
}

/* The library's own memory. */
static int64_t live;
static void *host_alloc(void *user, size_t size, size_t alignment) {
  (void)user;
  __atomic_add_fetch(&live, 1, __ATOMIC_RELAXED);
  return aligned_alloc(alignment < 16 ? 16 : alignment, (size + 4095) / 4096 * 4096);
}
static void host_free(void *user, void *block) {
  (void)user;
  __atomic_sub_fetch(&live, 1, __ATOMIC_RELAXED);
  free(block);
}

static tsr_problem problem_of(void) {
  tsr_problem p = TSR_PROBLEM_INIT;
  p.passes = TSR_PASS_FORWARD | TSR_PASS_BACKWARD;
  p.batch = B, p.heads_q = p.heads_kv = H, p.seq_q = SQ, p.seq_k = SK, p.dim_qk = D;
  p.q.dtype = TSR_DTYPE_F16;
  p.q.alignment = 16;
  p.k = p.v = p.o = p.dout = p.dq = p.dk = p.dv = p.q;
  p.lse.dtype = TSR_DTYPE_F32;
  return p;
}

typedef struct memory {
  tsr_args args;
  const void *o_parts[MANY];
  const float *lse_parts[MANY];
  float *merged, *merged_lse;
  uint8_t *mask;
} memory;

static void fill_memory(memory *m, int device) {
  const tsr_args none = TSR_ARGS_INIT;
  const size_t q = (size_t)B * H * SQ * D * 2, k = (size_t)B * H * SK * D * 2;
  tsr_args *a = &m->args;
  int i;
  *a = none;
  a->q = hip->memory(device, q), a->k = hip->memory(device, k), a->v = hip->memory(device, k);
  a->o = hip->memory(device, q), a->lse = (float *)hip->memory(device, (size_t)B * H * SQ * 4);
  a->dout = hip->memory(device, q), a->dq = hip->memory(device, q);
  a->dk = hip->memory(device, k), a->dv = hip->memory(device, k);
  m->merged = (float *)hip->memory(device, 4), m->merged_lse = (float *)hip->memory(device, 4);
  m->mask = (uint8_t *)hip->memory(device, 64);
  m->o_parts[0] = hip->memory(device, 4);
  m->lse_parts[0] = (float *)hip->memory(device, 4);
  for (i = 1; i < MANY; ++i) m->o_parts[i] = m->o_parts[0], m->lse_parts[i] = m->lse_parts[0];
}

static tsr_status run(const tsr_plan *plan, const memory *m) {
  tsr_args a = m->args;
  tsr_status status;
  a.dout = NULL, a.dq = a.dk = a.dv = NULL;
  status = tsr_forward(plan, &a);
  return status == TSR_STATUS_SUCCESS ? tsr_backward(plan, &m->args) : status;
}

static tsr_status merge(tsr_context *context, tsr_device device, const memory *m, int parts) {
  tsr_merge_problem p = TSR_MERGE_PROBLEM_INIT;
  p.parts = parts, p.batch = p.heads = p.seq = p.dim_v = 1;
  p.o_part.dtype = p.lse_part.dtype = p.o.dtype = p.lse.dtype = TSR_DTYPE_F32;
  return tsr_merge(context, device, &p, m->o_parts, m->lse_parts, m->merged, m->merged_lse, NULL);
}

static tsr_status keep_mask(tsr_context *context, tsr_device device, const memory *m) {
  tsr_dropout_problem p = TSR_DROPOUT_PROBLEM_INIT;
  p.batch = p.heads = 1, p.seq_q = p.seq_k = 8, p.dropout = 0.5f;
  p.mask.dtype = TSR_DTYPE_U8;
  return tsr_dropout_mask(context, device, &p, m->mask, NULL);
}

/* What is left to the caller by a call that has returned. */
static tsr_status settled(const char *what, tsr_status status) {
  const int error = last_error();
  if (error) complain("%s leaves error %d to the caller", what, error);
  return status;
}

/* All calls of an application, until one fails. *probed: whether the context has the backend. */
static tsr_status everything(int ordinal, const memory *m, bool *probed) {
  const tsr_device device = {TSR_DEVICE_HIP, ordinal};
  const tsr_problem p = problem_of();
  tsr_context_options options = TSR_CONTEXT_OPTIONS_INIT;
  tsr_device_info info = TSR_DEVICE_INFO_INIT;
  tsr_context *context = NULL;
  tsr_plan *plan = NULL;
  tsr_status status;
  options.allocator.alloc = host_alloc;
  options.allocator.free = host_free;
  *probed = false;
  status = settled("tsr_context_create", tsr_context_create(&context, &options));
  if (status != TSR_STATUS_SUCCESS) return status;
  status = settled("tsr_device_query", tsr_device_query(context, device, &info));
  *probed = status == TSR_STATUS_SUCCESS;
  if (!*probed) tsr_plan_create(&plan, context, device, &p); /* whose message says why */
  if (*probed) status = settled("tsr_plan_create", tsr_plan_create(&plan, context, device, &p));
  if (status == TSR_STATUS_SUCCESS) status = settled("a run", run(plan, m));
  if (status == TSR_STATUS_SUCCESS) status = settled("tsr_merge", merge(context, device, m, 2));
  if (status == TSR_STATUS_SUCCESS) status = settled("tsr_merge", merge(context, device, m, MANY));
  if (status == TSR_STATUS_SUCCESS) status = settled("tsr_dropout_mask", keep_mask(context, device, m));
  tsr_plan_destroy(plan);
  tsr_context_destroy(context);
  return status;
}

/* One failure, in a process that has not used the backend before. */
static bool may_be_passed_over(const char *call) {
  static const char *const calls[] = {"hipDeviceGetAttribute", "hipFreeAsync", "hipGetDevice", "hipSetDevice"};
  size_t i;
  for (i = 0; i < sizeof calls / sizeof calls[0]; ++i)
    if (!strcmp(call, calls[i])) return true;
  return false;
}

static void fail_one(int64_t n, int error, bool for_ever) {
  const char *name = error == FAKE_HIP_OUT_OF_MEMORY ? "hipErrorOutOfMemory" : "hipErrorOther";
  bool probed;
  memory m;
  tsr_status status;
  int device = -1;
  fill_memory(&m, 1);
  hip->error = error;
  hip->for_ever = for_ever;
  hip->fail_at = hip->calls + n;
  status = everything(1, &m, &probed);
  hip->fail_at = 0;
  if (status != TSR_STATUS_SUCCESS) {
    const tsr_status expected = !probed                           ? TSR_STATUS_NOT_FOUND
                                : error == FAKE_HIP_OUT_OF_MEMORY ? TSR_STATUS_OUT_OF_MEMORY
                                                                  : TSR_STATUS_DEVICE_ERROR;
    if (status != expected) complain("status '%s': %s", tsr_status_string(status), tsr_last_message());
    if (!strstr(tsr_last_message(), name) && !strstr(tsr_last_message(), "no HIP runtime") &&
        !(error == FAKE_HIP_OUT_OF_MEMORY && strstr(tsr_last_message(), "the device has no ")))
      complain("no %s in '%s'", name, tsr_last_message());
  } else if (!may_be_passed_over(hip->failed)) {
    complain("%s failed, and nobody was told", hip->failed);
  }
  if (live) complain("%lld blocks of the library are kept", (long long)live);
  if (hip->blocks != hip->not_freed) complain("%lld blocks of the device are kept", (long long)hip->blocks);
  /* Where the call that sets it back failed too, nobody can. */
  if (get_device(&device) || (device != 0 && !for_ever && strcmp(hip->failed, "hipSetDevice") != 0))
    complain("the current device is %d", device);
  set_device(0);
  status = everything(1, &m, &probed);
  if (status != TSR_STATUS_SUCCESS) complain("afterwards: '%s': %s", tsr_status_string(status), tsr_last_message());
  if (hip->repeated) complain("%lld modules were loaded twice", (long long)hip->repeated);
  if (hip->misplaced) complain("%lld launches on another device", (long long)hip->misplaced);
}

/* Whether a call is refused with a message that has the text. */
static void refused(const char *what, tsr_status status, const char *text) {
  if (status != TSR_STATUS_INVALID_ARGUMENT || !strstr(tsr_last_message(), text))
    complain("%s: no '%s' in %s: %s", what, text, tsr_status_string(status), tsr_last_message());
}
static void accepted(const char *what, tsr_status status) {
  if (status != TSR_STATUS_SUCCESS) complain("%s: %s", what, tsr_last_message());
}

/* A plan of both passes, and what its runs need. */
typedef struct bench {
  tsr_context *context;
  tsr_plan *plan;
  tsr_device device;
  memory m;
  tsr_args forward;
} bench;

static void open_bench(bench *b, int64_t seq_k) {
  tsr_problem p = problem_of();
  const tsr_device device = {TSR_DEVICE_HIP, 1};
  memset(b, 0, sizeof *b);
  p.seq_k = seq_k;
  b->device = device;
  fill_memory(&b->m, 1);
  b->forward = b->m.args;
  b->forward.dout = NULL, b->forward.dq = b->forward.dk = b->forward.dv = NULL;
  accepted("context", tsr_context_create(&b->context, NULL));
  accepted("plan", tsr_plan_create(&b->plan, b->context, device, &p));
}
static void close_bench(bench *b) {
  tsr_plan_destroy(b->plan);
  tsr_context_destroy(b->context);
}

/* Memory of the host, of another device, and of nobody where nothing is read. */
static void pointers(int64_t n, int error, bool for_ever) {
  static float host[16];
  bench b;
  tsr_args a;
  (void)n, (void)error, (void)for_ever;
  open_bench(&b, SK);
  a = b.forward, a.k = (const char *)host + 8;
  refused("k of the host", tsr_forward(b.plan, &a), "k: found 0x"); /* off its alignment */
  a = b.forward, a.lse = host;
  refused("lse of the host", tsr_forward(b.plan, &a), "lse: found memory the driver does not know");
  a = b.forward, a.v = hip->memory(0, (size_t)B * H * SK * D * 2);
  refused("v of another device", tsr_forward(b.plan, &a), "v: found memory of device 0 at ");
  a = b.m.args, a.dv = hip->memory(0, (size_t)B * H * SK * D * 2);
  refused("dv of another device", tsr_backward(b.plan, &a), "dv: found memory of device 0 at ");
  b.m.o_parts[7] = host;
  refused("a part of the host", merge(b.context, b.device, &b.m, MANY), "o_parts[7]: found memory the driver");
  if (hip->launches) complain("%lld launches", (long long)hip->launches);
  close_bench(&b);
  open_bench(&b, 0); /* no keys: their tensors may lie behind the end of a block */
  a = b.m.args, a.k = a.v = host, a.dk = host + 4, a.dv = host + 8;
  b.forward.k = b.forward.v = host;
  accepted("no keys", tsr_forward(b.plan, &b.forward));
  accepted("no keys, backward", tsr_backward(b.plan, &a));
  close_bench(&b);
}

static tsr_status merge_nothing(const bench *b, float *anywhere) {
  tsr_merge_problem p = TSR_MERGE_PROBLEM_INIT;
  const void *o[2] = {anywhere, anywhere};
  const float *lse[2] = {anywhere, anywhere};
  p.parts = 2, p.batch = p.heads = p.dim_v = 1;
  p.o_part.dtype = p.lse_part.dtype = p.o.dtype = p.lse.dtype = TSR_DTYPE_F32;
  return tsr_merge(b->context, b->device, &p, o, lse, anywhere, anywhere, NULL);
}

/* With a plan made, nothing that is captured allocates or loads code; what would have to is refused. */
static void captures(int64_t n, int error, bool for_ever) {
  static float host[16];
  bench b;
  tsr_args a;
  size_t bytes[2] = {0, 0};
  int64_t modules, blocks;
  (void)n, (void)error, (void)for_ever;
  open_bench(&b, SK);
  accepted("workspace", tsr_plan_workspace_size(b.plan, TSR_PASS_FORWARD, &bytes[0]));
  accepted("workspace", tsr_plan_workspace_size(b.plan, TSR_PASS_BACKWARD, &bytes[1]));
  modules = hip->modules, blocks = hip->blocks;
  hip->capturing = 1;
  if (!bytes[0] || !bytes[1]) complain("workspaces of %zu and %zu bytes", bytes[0], bytes[1]);
  refused("captured without a workspace", tsr_forward(b.plan, &b.forward),
          "workspace: found NULL inside a stream capture, accepted ");
  refused("captured without a workspace", tsr_backward(b.plan, &b.m.args),
          "workspace: found NULL inside a stream capture, accepted ");
  a = b.forward, a.workspace = hip->memory(1, bytes[0]), a.workspace_size = bytes[0];
  accepted("captured forward", tsr_forward(b.plan, &a));
  a.workspace_size = bytes[0] - 1;
  refused("a workspace too small", tsr_forward(b.plan, &a), "workspace_size: found ");
  a = b.m.args, a.workspace = hip->memory(1, bytes[1]), a.workspace_size = bytes[1];
  accepted("captured backward", tsr_backward(b.plan, &a));
  a.workspace = hip->memory(0, bytes[1]);
  refused("a workspace of another device", tsr_backward(b.plan, &a), "workspace: found memory of device 0 at ");
  accepted("captured merge", merge(b.context, b.device, &b.m, 2));
  refused("captured merge of many", merge(b.context, b.device, &b.m, MANY), "parts: found 700 inside a stream capture");
  accepted("captured keep mask", keep_mask(b.context, b.device, &b.m));
  accepted("captured merge of nothing", merge_nothing(&b, host));
  hip->capturing = 0;
  if (hip->modules != modules) complain("code was loaded while a stream was captured");
  if (hip->blocks != blocks) complain("memory was allocated while a stream was captured");
  close_bench(&b);
}

/* Runs body in a process of its own; 1 if something was wrong there. */
static int apart(void (*body)(int64_t, int, bool), int64_t n, int error, bool for_ever) {
  int status = 0;
  pid_t child;
  fflush(stdout);
  child = fork();
  if (child == 0) {
    body(n, error, for_ever);
    if (wrong[0])
      printf("FAIL call %lld (%s) fails with %d%s: %s\n", (long long)n, hip->failed ? hip->failed : "none", error,
             for_ever ? ", and all after it" : "", wrong);
    fflush(stdout);
    exit(wrong[0] != 0); /* and not _exit: leaks are looked for on the way */
  }
  if (child < 0 || waitpid(child, &status, 0) != child) return 1;
  if (WIFSIGNALED(status)) printf("FAIL call %lld: signal %d\n", (long long)n, WTERMSIG(status));
  return !WIFEXITED(status) || WEXITSTATUS(status) != 0;
}

/* Numbers of the calls of the clean application; of calls in a row to one function the first and the last. They come
 * through a pipe, from a process that has not used the backend before. */
static int64_t list_calls(int64_t *list, int64_t capacity) {
  int ends[2];
  int64_t count = 0, n;
  pid_t child;
  if (pipe(ends) != 0) return 0;
  fflush(stdout);
  child = fork();
  if (child == 0) {
    bool probed;
    memory m;
    int64_t before;
    fill_memory(&m, 1);
    before = hip->calls;
    if (everything(1, &m, &probed) != TSR_STATUS_SUCCESS || wrong[0])
      printf("FAIL the clean run: %s; %s\n", tsr_last_message(), wrong);
    else if (hip->calls >= FAKE_HIP_LOG)
      printf("FAIL the clean run: %lld calls\n", (long long)hip->calls);
    else
      for (n = before + 1; n <= hip->calls && count < capacity; ++n)
        if (hip->log[n] != hip->log[n - 1] || n == hip->calls || hip->log[n] != hip->log[n + 1])
          list[count++] = n - before;
    fflush(stdout);
    exit(write(ends[1], list, (size_t)count * sizeof *list) != (ssize_t)((size_t)count * sizeof *list));
  }
  close(ends[1]);
  if (child > 0) {
    ssize_t bytes;
    char *to = (char *)list;
    while ((bytes = read(ends[0], to, (size_t)((char *)(list + capacity) - to))) > 0) to += bytes;
    count = (to - (char *)list) / (int64_t)sizeof *list;
    waitpid(child, NULL, 0);
  }
  close(ends[0]);
  return count;
}

/* ------------------------------------------------------------------------------------- threads */

typedef struct job {
  pthread_barrier_t *start;
  const memory *memory; /* of both devices */
  int index;
} job;

static void *first_use(void *arg) {
  const job *j = (const job *)arg;
  bool probed;
  int i;
  pthread_barrier_wait(j->start);
  for (i = 0; i < 3; ++i)
    if (everything((j->index + i) % 2, &j->memory[(j->index + i) % 2], &probed) != TSR_STATUS_SUCCESS)
      return arg;
  return NULL;
}

/* Contexts, code that is loaded and runs on two devices, first used by all threads at once. */
static void many_threads(int64_t n, int error, bool for_ever) {
  static memory m[2];
  pthread_t threads[THREADS];
  pthread_barrier_t start;
  job jobs[THREADS];
  int i;
  (void)n, (void)error, (void)for_ever;
  fill_memory(&m[0], 0), fill_memory(&m[1], 1);
  pthread_barrier_init(&start, NULL, THREADS);
  for (i = 0; i < THREADS; ++i) {
    jobs[i] = (job){&start, m, i};
    if (pthread_create(&threads[i], NULL, first_use, &jobs[i]) != 0) exit(1);
  }
  for (i = 0; i < THREADS; ++i) {
    void *result = NULL;
    pthread_join(threads[i], &result);
    if (result) complain("a thread failed");
  }
  pthread_barrier_destroy(&start);
  if (live || hip->blocks) complain("%lld and %lld blocks are kept", (long long)live, (long long)hip->blocks);
  if (hip->repeated) complain("%lld modules were loaded twice", (long long)hip->repeated);
  if (hip->misplaced) complain("%lld launches on another device", (long long)hip->misplaced);
}

int main(void) {
  static int64_t list[FAKE_HIP_LOG];
  int failures = 0;
  int64_t count, i;
  if (!open_fake()) {
    printf("FAIL the runtime that fails cannot be opened\n");
    return 1;
  }
  count = list_calls(list, FAKE_HIP_LOG);
  for (i = 0; i < count; ++i) {
    failures += apart(fail_one, list[i], FAKE_HIP_OUT_OF_MEMORY, false);
    failures += apart(fail_one, list[i], FAKE_HIP_LAUNCH_FAILURE, false);
    failures += apart(fail_one, list[i], FAKE_HIP_OUT_OF_MEMORY, true);
    failures += apart(fail_one, list[i], FAKE_HIP_LAUNCH_FAILURE, true);
  }
  failures += apart(pointers, 0, 0, false);
  failures += apart(captures, 0, 0, false);
  failures += apart(many_threads, 0, 0, false);
  printf("%lld calls that failed, %d failures\n", (long long)count, failures);
  return failures != 0 || count == 0;
}
