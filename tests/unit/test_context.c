// SPDX-License-Identifier: Apache-2.0
//
// Contexts: options and environment, every byte through the caller's allocator, failure of every
// single allocation, what backends are told, the default context, and the run entry points.
#define _POSIX_C_SOURCE 200809L
#include <stdio.h>
#include <stdlib.h>

#include "tests/support/fake_backend.h"
#include "tests/unit/expect.h"

static const tsr_device host = {TSR_DEVICE_HOST, 0};
static float memory[12][512] __attribute__((aligned(64)));

/* An allocator that counts, checks what it gets back, and fails at one chosen call. */
typedef struct counter {
  int64_t calls, alive, fail_at; /* fail_at: number of the call that fails, from 0; -1: none */
} counter;

/* In front of every block, so that foreign blocks are noticed. */
typedef struct header {
  void *raw;
  counter *owner;
} header;

static void *counted_alloc(void *user, size_t size, size_t alignment) {
  counter *c = user;
  cr_assert(alignment > 0 && (alignment & (alignment - 1)) == 0 && alignment <= 4096);
  if (c->calls++ == c->fail_at) return NULL;
  char *raw = malloc(size + alignment + sizeof(header) + 64);
  cr_assert_not_null(raw);
  uintptr_t at = (uintptr_t)raw + sizeof(header);
  at = (at + alignment - 1) / alignment * alignment;
  if (at % sizeof(void *)) at += sizeof(void *) - at % sizeof(void *);
  header *h = (header *)(void *)(raw + (at - (uintptr_t)raw) - sizeof(header));
  h->raw = raw;
  h->owner = c;
  ++c->alive;
  return h + 1;
}

static void counted_free(void *user, void *block) {
  counter *c = user;
  cr_assert_not_null(block, "free must not get NULL");
  header *h = (header *)block - 1;
  cr_assert_eq(h->owner, c);
  --c->alive;
  free(h->raw);
}

static tsr_context_options options_with(counter *c) {
  tsr_context_options o = TSR_CONTEXT_OPTIONS_INIT;
  o.allocator.user = c;
  o.allocator.alloc = counted_alloc;
  o.allocator.free = counted_free;
  o.plugin_path = "/nonexistent:/none"; /* two more entries, so that paths are copied */
  return o;
}

static tsr_args args_of(void) {
  tsr_args a = TSR_ARGS_INIT;
  a.q = memory[0];
  a.k = memory[1];
  a.v = memory[2];
  a.o = memory[3];
  a.lse = memory[4];
  return a;
}

static tsr_args backward_args_of(void) {
  tsr_args a = args_of();
  a.dout = memory[5];
  a.dq = memory[6];
  a.dk = memory[7];
  a.dv = memory[8];
  return a;
}

/* Everything that takes memory; stops at the first failure and always cleans up. */
static tsr_status whole_life(counter *c) {
  tsr_context_options o = options_with(c);
  tsr_context *context = NULL;
  tsr_plan *plan = NULL;
  o.backend = "alpha";
  o.kernel = "fwd_alpha";
  o.cpu_target = "ANY";
  tsr_status status = tsr_context_create(&context, &o);
  if (status != TSR_STATUS_SUCCESS) {
    cr_expect_null(context);
    return status;
  }
  const tsr_problem p = fake_problem_backward();
  status = tsr_plan_create(&plan, context, host, &p);
  cr_expect_eq(plan == NULL, status != TSR_STATUS_SUCCESS);
  if (status == TSR_STATUS_SUCCESS) {
    const tsr_args forward = args_of(), backward = backward_args_of();
    status = tsr_forward(plan, &forward);
    if (status == TSR_STATUS_SUCCESS) status = tsr_backward(plan, &backward);
  }
  tsr_plan_destroy(plan);
  tsr_context_destroy(context);
  return status;
}

static void prepare(void) {
  fake_reset();
  for (int i = 0; i < FAKE_BACKENDS; ++i) {
    fake_backends[i].probe_status = TSR_STATUS_SUCCESS;
    fake_backends[i].state_bytes = 100;
    fake_backends[i].plan_bytes = 200;
  }
  fake_backends[0].kernels[0].workspace = 4000;
  fake_backends[0].kernels[1].workspace = 8000;
}

TestSuite(context, .init = prepare);

Test(context, allocations_balance) {
  counter c = {0, 0, -1};
  EXPECT_OK(whole_life(&c));
  cr_expect_eq(c.alive, 0);
  cr_expect_gt(c.calls, 12, "context, 4 texts, list, states, paths, plan, plans, workspaces");
  cr_expect_eq(fake_backends[0].runs, 2);
  cr_expect_eq(fake_backends[0].probes, 1);
  cr_expect_eq(fake_backends[0].closes, 1);
  cr_expect_eq(fake_backends[2].closes, 1);
  cr_expect_eq(fake_backends[0].plans_alive, 0);
}

Test(context, every_allocation_may_fail) {
  counter c = {0, 0, -1};
  EXPECT_OK(whole_life(&c));
  const int64_t calls = c.calls;
  for (int64_t i = 0; i < calls; ++i) {
    prepare();
    c = (counter){0, 0, i};
    EXPECT_FAIL(TSR_STATUS_OUT_OF_MEMORY, "", whole_life(&c));
    cr_expect_eq(c.alive, 0, "allocation %lld failed and %lld blocks were left", (long long)i,
                 (long long)c.alive);
    cr_expect_eq(fake_backends[0].plans_alive, 0);
    for (int b = 0; b < FAKE_BACKENDS; ++b) {
      cr_expect_eq(fake_backends[b].open, 0, "allocation %lld", (long long)i);
    }
  }
  c = (counter){0, 0, calls};
  prepare();
  EXPECT_OK(whole_life(&c));
}

Test(context, workspace) {
  counter c = {0, 0, -1};
  tsr_context_options o = options_with(&c);
  tsr_context *context;
  tsr_plan *plan;
  EXPECT_OK(tsr_context_create(&context, &o));
  const tsr_problem p = fake_problem();
  EXPECT_OK(tsr_plan_create(&plan, context, host, &p));
  tsr_args a = args_of();
  a.lse = NULL;
  EXPECT_OK(tsr_forward(plan, &a));
  cr_expect_not_null(fake_backends[0].last_args.workspace);
  cr_expect_eq((uintptr_t)fake_backends[0].last_args.workspace % 64, 0u);
  cr_expect_eq(fake_backends[0].last_args.workspace_size, 4000u);
  const int64_t calls = c.calls;
  static float own[1024] __attribute__((aligned(64)));
  a.workspace = own;
  a.workspace_size = sizeof own;
  EXPECT_OK(tsr_forward(plan, &a));
  cr_expect_eq(fake_backends[0].last_args.workspace, own);
  cr_expect_eq(c.calls, calls, "a run with workspace allocates nothing");
  a.workspace_size = 3999;
  EXPECT_INVALID("workspace_size: found 3999, accepted 4000", tsr_forward(plan, &a));
  a.workspace_size = sizeof own;
  a.stream = own;
  EXPECT_INVALID("stream", tsr_forward(plan, &a));
  a.stream = NULL;
  EXPECT_INVALID("pass: found backward", tsr_backward(plan, &a));
  EXPECT_INVALID("tsr_args: found NULL", tsr_forward(plan, NULL));
  EXPECT_INVALID("plan: found NULL", tsr_forward(NULL, &a));
  cr_expect_eq(fake_backends[0].runs, 2);
  fake_backends[0].run_status = TSR_STATUS_DEVICE_ERROR;
  fake_backends[0].text = "lost";
  EXPECT_FAIL(TSR_STATUS_DEVICE_ERROR, "alpha/fwd_alpha: lost", tsr_forward(plan, &a));
  fake_backends[0].text = NULL;
  EXPECT_FAIL(TSR_STATUS_DEVICE_ERROR, "alpha/fwd_alpha: device error", tsr_forward(plan, &a));
  tsr_plan_destroy(plan);
  tsr_plan_destroy(NULL);
  tsr_context_destroy(context);
  tsr_context_destroy(NULL);
  cr_expect_eq(c.alive, 0);
}

static int run_here(void *user, void (*task)(void *, int64_t, int32_t), void *arg, int64_t count) {
  (void)user;
  for (int64_t i = 0; i < count; ++i) task(arg, i, 0);
  return 0;
}

Test(context, what_backends_are_told) {
  tsr_context_options o = TSR_CONTEXT_OPTIONS_INIT;
  tsr_context *context;
  o.plugin_path = "";
  o.runner.run = run_here;
  o.runner.threads = 3;
  char target[] = "AVX2";
  o.cpu_target = target;
  EXPECT_OK(tsr_context_create(&context, &o));
  memset(target, 'x', 4); /* strings are copied */
  const tsr_host *h = fake_backends[0].host;
  cr_expect_eq(h->struct_size, sizeof *h);
  cr_expect_eq(h->abi, TSR_BACKEND_ABI);
  cr_expect_eq(h->runner->threads, 3);
  cr_expect_eq(h->runner->run, run_here);
  cr_expect_neq(h->runner, &o.runner);
  cr_expect_str_eq(h->cpu_target, "AVX2");
  h->free(h->context, NULL);
  tsr_context_destroy(context);
  tsr_context_options threads = TSR_CONTEXT_OPTIONS_INIT;
  threads.plugin_path = "";
  threads.threads = 5;
  EXPECT_OK(tsr_context_create(&context, &threads));
  cr_expect_eq(fake_backends[0].host->threads, 5);
  cr_expect_null(fake_backends[0].host->runner);
  cr_expect_null(fake_backends[0].host->cpu_target);
  tsr_context_destroy(context);
}

static tsr_status create(const char *backend, const char *cpu_target) {
  tsr_context_options o = TSR_CONTEXT_OPTIONS_INIT;
  tsr_context *context = NULL;
  o.plugin_path = "";
  o.backend = backend;
  o.cpu_target = cpu_target;
  const tsr_status status = tsr_context_create(&context, &o);
  tsr_context_destroy(context);
  return status;
}

Test(context, names_are_checked) {
  EXPECT_INVALID("out: found NULL", tsr_context_create(NULL, NULL));
  EXPECT_OK(create("beta", NULL));
  EXPECT_FAIL(TSR_STATUS_NOT_FOUND, "backend: found 'delta', accepted alpha, beta, gamma",
              create("delta", NULL));
  EXPECT_INVALID("backend: found an empty string", create("", NULL));
  fake_backends[1].probe_status = TSR_STATUS_NOT_FOUND;
  EXPECT_OK(create("beta", NULL)); /* known and absent: plans will say why */
  /* A target that a backend does not know, or that no CPU backend takes. */
  fake_backends[0].probe_status = TSR_STATUS_INVALID_ARGUMENT;
  fake_backends[0].probe_text = "targets here: AVX2, SSE4";
  EXPECT_FAIL(TSR_STATUS_NOT_FOUND, "cpu_target: found 'AVX9': alpha: targets here: AVX2, SSE4",
              create(NULL, "AVX9"));
  for (int i = 0; i < FAKE_BACKENDS; ++i) fake_backends[i].probe_status = TSR_STATUS_NOT_FOUND;
  fake_backends[2].vtable.named_only = 1;
  fake_backends[2].probe_status = TSR_STATUS_SUCCESS;
  EXPECT_FAIL(TSR_STATUS_NOT_FOUND, "cpu_target: found 'AVX9', which no CPU backend here takes",
              create(NULL, "AVX9"));
  EXPECT_OK(create(NULL, NULL));
}

Test(context, environment) {
  setenv("TSR_LOG", "loud", 1);
  EXPECT_INVALID("TSR_LOG: found 'loud'", create(NULL, NULL));
  setenv("TSR_LOG", "", 1);
  EXPECT_OK(create(NULL, NULL));
  setenv("TSR_BACKEND", "delta", 1);
  EXPECT_FAIL(TSR_STATUS_NOT_FOUND, "TSR_BACKEND: found 'delta'", create(NULL, NULL));
  EXPECT_OK(create("alpha", NULL)); /* the option wins */
  unsetenv("TSR_BACKEND");
  setenv("TSR_CPU_TARGET", "NEON", 1);
  EXPECT_OK(create(NULL, NULL));
  cr_expect_eq(fake_backends[0].probes, 4);
  for (int i = 0; i < FAKE_BACKENDS; ++i) fake_backends[i].probe_status = TSR_STATUS_NOT_FOUND;
  EXPECT_FAIL(TSR_STATUS_NOT_FOUND, "TSR_CPU_TARGET: found 'NEON'", create(NULL, NULL));
}

Test(context, describes_backends) {
  tsr_context_options o = TSR_CONTEXT_OPTIONS_INIT;
  tsr_context *context;
  tsr_backend_info info = TSR_BACKEND_INFO_INIT;
  o.plugin_path = "";
  fake_backends[1].probe_status = TSR_STATUS_DEVICE_ERROR;
  fake_backends[1].probe_text = "the driver said 35";
  fake_backends[2].vtable.named_only = 1;
  fake_backends[2].vtable.device_kind = TSR_DEVICE_HIP;
  fake_backends[2].devices = 4;
  EXPECT_OK(tsr_context_create(&context, &o));
  cr_expect_eq(tsr_context_backend_count(context), FAKE_BACKENDS);
  EXPECT_OK(tsr_context_backend_info(context, 0, &info));
  cr_expect_str_eq(info.name, "alpha");
  cr_expect_str_eq(info.origin, "built in");
  cr_expect_str_eq(info.detail, "switched on");
  cr_expect_eq(info.devices, 1);
  EXPECT_OK(tsr_context_backend_info(context, 1, &info));
  cr_expect_eq(info.available, 0);
  cr_expect_str_eq(info.reason, "the driver said 35");
  cr_expect_str_eq(info.detail, "");
  EXPECT_OK(tsr_context_backend_info(context, 2, &info));
  cr_expect_eq(info.named_only, 1);
  cr_expect_eq(info.device_kind, TSR_DEVICE_HIP);
  cr_expect_eq(info.devices, 4);
  EXPECT_INVALID("index: found 3, accepted 0 .. 2", tsr_context_backend_info(context, 3, &info));
  EXPECT_INVALID("index: found -1", tsr_context_backend_info(context, -1, &info));
  EXPECT_INVALID("info: found NULL", tsr_context_backend_info(context, 0, NULL));
  info.struct_size = 0;
  EXPECT_INVALID("struct_size", tsr_context_backend_info(context, 0, &info));
  cr_expect_str_eq(tsr_context_kernel_name(context, 0, 1), "bwd_alpha");
  cr_expect_null(tsr_context_kernel_name(context, 0, 2));
  cr_expect_null(tsr_context_kernel_name(context, 0, -1));
  cr_expect_null(tsr_context_kernel_name(context, 9, 0));
  cr_expect_null(tsr_context_kernel_name(context, -1, 0));
  cr_expect_null(tsr_context_kernel_name(context, 1, 0));
  tsr_context_destroy(context);
}

Test(context, merge_and_mask_take_the_first_backend) {
  tsr_context_options o = TSR_CONTEXT_OPTIONS_INIT;
  tsr_context *context;
  tsr_merge_problem m = TSR_MERGE_PROBLEM_INIT;
  tsr_dropout_problem d = TSR_DROPOUT_PROBLEM_INIT;
  const void *parts[1] = {memory[0]};
  const float *lse_parts[1] = {memory[1]};
  o.plugin_path = "";
  fake_backends[2].vtable.named_only = 1;
  EXPECT_OK(tsr_context_create(&context, &o));
  m.parts = 1;
  m.batch = m.heads = m.seq = m.dim_v = 2;
  m.o_part.dtype = m.lse_part.dtype = m.o.dtype = TSR_DTYPE_F32;
  d.batch = d.heads = d.seq_q = d.seq_k = 2;
  d.mask.dtype = TSR_DTYPE_U8;
#define MERGE() tsr_merge(context, host, &m, parts, lse_parts, memory[2], NULL, NULL)
#define MASK() tsr_dropout_mask(context, host, &d, (uint8_t *)memory[2], NULL)
  EXPECT_OK(MERGE());
  EXPECT_OK(MASK());
  cr_expect_eq(fake_backends[0].merges, 1);
  cr_expect_eq(fake_backends[0].masks, 1);
  cr_expect_eq(fake_backends[0].last_merge.o.stride[0], 8);
  cr_expect_eq(fake_backends[0].last_mask.mask.stride[1], 4);
  fake_backends[0].merge_status = fake_backends[0].mask_status = TSR_STATUS_NOT_SUPPORTED;
  fake_backends[0].text = "only odd ones";
  EXPECT_OK(MERGE());
  EXPECT_OK(MASK());
  cr_expect_eq(fake_backends[1].merges, 1);
  cr_expect_eq(fake_backends[1].masks, 1);
  fake_backends[1].merge_status = fake_backends[1].mask_status = TSR_STATUS_NOT_SUPPORTED;
  EXPECT_FAIL(TSR_STATUS_NOT_SUPPORTED,
              "alpha: only odd ones; beta: refused without a reason; gamma: used only when named",
              MERGE());
  EXPECT_FAIL(TSR_STATUS_NOT_SUPPORTED, "no backend takes the dropout mask", MASK());
  EXPECT_FAIL(
      TSR_STATUS_NOT_FOUND, "device: found cuda 0",
      tsr_dropout_mask(context, (tsr_device){TSR_DEVICE_CUDA, 0}, &d, (uint8_t *)memory[2], NULL));
  /* Any other failure is told at once. */
  fake_backends[0].merge_status = TSR_STATUS_DEVICE_ERROR;
  EXPECT_FAIL(TSR_STATUS_DEVICE_ERROR, "alpha/merge: only odd ones", MERGE());
  tsr_context_destroy(context);
  o.backend = "gamma";
  EXPECT_OK(tsr_context_create(&context, &o));
  EXPECT_OK(MERGE());
  cr_expect_eq(fake_backends[2].merges, 1);
  tsr_context_destroy(context);
}

Test(context, default_context) {
  tsr_backend_info info = TSR_BACKEND_INFO_INIT;
  /* A failure is not remembered. */
  setenv("TSR_BACKEND", "delta", 1);
  cr_expect_eq(tsr_context_backend_count(NULL), 0);
  EXPECT_FAIL(TSR_STATUS_NOT_FOUND, "TSR_BACKEND", tsr_context_backend_info(NULL, 0, &info));
  unsetenv("TSR_BACKEND");
  setenv("TSR_PLUGIN_PATH", "", 1);
  cr_expect_eq(tsr_context_backend_count(NULL), FAKE_BACKENDS);
  EXPECT_OK(tsr_context_backend_info(NULL, 0, &info));
  cr_expect_str_eq(info.name, "alpha");
  tsr_device_info device = TSR_DEVICE_INFO_INIT;
  EXPECT_OK(tsr_device_query(NULL, host, &device));
  cr_expect_str_eq(device.name, "alpha 0");
  cr_expect_eq(device.compute_units, 7);
  const tsr_tensor q = {memory[0], TSR_DTYPE_F32, 0, {2, 4, 3, 8}, {96, 24, 8, 1}};
  const tsr_tensor k = {memory[1], TSR_DTYPE_F32, 0, {2, 2, 5, 8}, {80, 40, 8, 1}};
  tsr_tensor o = q;
  o.data = memory[3];
  EXPECT_OK(tsr_attention(NULL, host, &q, &k, &k, &o, NULL, TSR_CAUSAL_NONE, 0, NULL));
  cr_expect_eq(fake_backends[0].runs, 1);
  cr_expect_eq(fake_backends[0].plans_alive, 0);
  cr_expect_eq(fake_backends[0].last_problem.p.heads_kv, 2);
  EXPECT_INVALID("o: found memory at",
                 tsr_attention(NULL, host, &q, &k, &k, &q, NULL, TSR_CAUSAL_NONE, 0, NULL));
  /* Twice in vain, then once. */
  cr_expect_eq(fake_backends[0].probes, 3);
}
