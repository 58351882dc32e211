// SPDX-License-Identifier: Apache-2.0
//
// Choice of kernels with backends whose claims the test sets: ranking, backends that must be named,
// names from problem, context and environment, refusal lists, explanations and log lines.
#define _POSIX_C_SOURCE 200809L
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#include "tests/support/fake_backend.h"
#include "tests/unit/expect.h"

static const tsr_device host = {TSR_DEVICE_HOST, 0};

/* Switches a backend on with up to three forward kernels of the given times. */
static fake_backend *on(int i, const char *a, double ta, const char *b, double tb) {
  fake_backend *f = &fake_backends[i];
  f->probe_status = TSR_STATUS_SUCCESS;
  f->kernels[0] = (fake_kernel){a, TSR_PASS_FORWARD, ta, 0, NULL};
  f->kernels[1] = (fake_kernel){b, TSR_PASS_FORWARD, tb, 0, NULL};
  return f;
}

static tsr_context *context_with(const char *backend, const char *kernel) {
  tsr_context_options options = TSR_CONTEXT_OPTIONS_INIT;
  tsr_context *context = NULL;
  options.plugin_path = "";
  options.backend = backend;
  options.kernel = kernel;
  EXPECT_OK(tsr_context_create(&context, &options));
  return context;
}

/* The forward kernel that a problem gets; "" on failure. */
static const char *chosen(tsr_context *context, const char *backend, const char *kernel) {
  static char name[128];
  tsr_problem p = fake_problem();
  tsr_plan_info info = TSR_PLAN_INFO_INIT;
  tsr_plan *plan = NULL;
  p.backend = backend;
  p.kernel = kernel;
  name[0] = '\0';
  if (tsr_plan_create(&plan, context, host, &p) != TSR_STATUS_SUCCESS) {
    cr_expect_null(plan);
    return name;
  }
  EXPECT_OK(tsr_plan_describe(plan, TSR_PASS_FORWARD, &info));
  snprintf(name, sizeof name, "%s", info.kernel);
  tsr_plan_destroy(plan);
  return name;
}

static tsr_status plan_status(tsr_context *context, const char *backend, const char *kernel) {
  tsr_problem p = fake_problem();
  tsr_plan *plan = NULL;
  p.backend = backend;
  p.kernel = kernel;
  const tsr_status status = tsr_plan_create(&plan, context, host, &p);
  tsr_plan_destroy(plan);
  return status;
}

TestSuite(dispatch, .init = fake_reset);

Test(dispatch, fastest_wins) {
  on(0, "a_slow", 3, "a_fast", 1);
  on(1, "b_mid", 2, "b_refuses", 0.1);
  fake_backends[1].kernels[1].refusal = "wants even head dimensions";
  tsr_context *context = context_with(NULL, NULL);
  cr_expect_str_eq(chosen(context, NULL, NULL), "a_fast");
  fake_backends[1].kernels[0].seconds = 0.5;
  cr_expect_str_eq(chosen(context, NULL, NULL), "b_mid");
  /* On a tie the first registered. */
  fake_backends[1].kernels[0].seconds = 1;
  cr_expect_str_eq(chosen(context, NULL, NULL), "a_fast");
  /* A claim that is no time is no claim. */
  fake_backends[1].kernels[0].seconds = NAN;
  cr_expect_str_eq(chosen(context, NULL, NULL), "a_fast");
  fake_backends[1].kernels[0].seconds = -1;
  cr_expect_str_eq(chosen(context, NULL, NULL), "a_fast");
  fake_backends[0].kernels[0].seconds = INFINITY;
  fake_backends[0].kernels[1].seconds = INFINITY;
  EXPECT_FAIL(TSR_STATUS_NOT_SUPPORTED, "is no time", plan_status(context, NULL, NULL));
  tsr_context_destroy(context);
}

Test(dispatch, describes_what_was_chosen) {
  fake_backends[0].kernels[0].workspace = 320;
  tsr_context *context = context_with(NULL, NULL);
  tsr_problem p = fake_problem();
  tsr_plan_info info = TSR_PLAN_INFO_INIT;
  tsr_plan *plan;
  size_t bytes = 0;
  EXPECT_OK(tsr_plan_create(&plan, context, host, &p));
  EXPECT_OK(tsr_plan_describe(plan, TSR_PASS_FORWARD, &info));
  cr_expect_str_eq(info.backend, "alpha");
  cr_expect_str_eq(info.kernel, "fwd_alpha");
  cr_expect_eq(info.tile_q, 16);
  cr_expect_eq(info.tile_k, 32);
  cr_expect_eq(info.seconds, 1.0);
  cr_expect_eq(info.flops, 100.0);
  cr_expect_eq(info.bytes, 200.0);
  cr_expect_eq(info.workspace, 320u);
  EXPECT_OK(tsr_plan_workspace_size(plan, TSR_PASS_FORWARD, &bytes));
  cr_expect_eq(bytes, 320u);
  EXPECT_INVALID("pass: found backward", tsr_plan_describe(plan, TSR_PASS_BACKWARD, &info));
  EXPECT_INVALID("pass: found backward", tsr_plan_workspace_size(plan, TSR_PASS_BACKWARD, &bytes));
  EXPECT_INVALID("pass: found 3", tsr_plan_workspace_size(plan, (tsr_pass)3, &bytes));
  EXPECT_INVALID("bytes: found NULL", tsr_plan_workspace_size(plan, TSR_PASS_FORWARD, NULL));
  EXPECT_INVALID("plan: found NULL", tsr_plan_workspace_size(NULL, TSR_PASS_FORWARD, &bytes));
  EXPECT_INVALID("info: found NULL", tsr_plan_describe(plan, TSR_PASS_FORWARD, NULL));
  info.struct_size = 0;
  EXPECT_INVALID("tsr_plan_info.struct_size: found 0",
                 tsr_plan_describe(plan, TSR_PASS_FORWARD, &info));
  /* An older caller's struct is filled as far as it goes. */
  memset(&info, 0x55, sizeof info);
  info.struct_size = offsetof(tsr_plan_info, tile_q);
  EXPECT_OK(tsr_plan_describe(plan, TSR_PASS_FORWARD, &info));
  cr_expect_str_eq(info.kernel, "fwd_alpha");
  cr_expect_eq(info.tile_q, INT64_C(0x5555555555555555));
  tsr_plan_destroy(plan);
  tsr_context_destroy(context);
}

Test(dispatch, passes_are_chosen_apart) {
  on(1, "b_fwd", 0.5, NULL, 0);
  tsr_context *context = context_with(NULL, NULL);
  tsr_problem p = fake_problem_backward();
  tsr_plan_info info = TSR_PLAN_INFO_INIT;
  tsr_plan *plan;
  EXPECT_OK(tsr_plan_create(&plan, context, host, &p));
  EXPECT_OK(tsr_plan_describe(plan, TSR_PASS_FORWARD, &info));
  cr_expect_str_eq(info.kernel, "b_fwd");
  EXPECT_OK(tsr_plan_describe(plan, TSR_PASS_BACKWARD, &info));
  cr_expect_str_eq(info.kernel, "bwd_alpha");
  cr_expect_eq(fake_backends[1].last_problem.p.passes, (uint32_t)TSR_PASS_FORWARD);
  cr_expect_eq(fake_backends[0].last_problem.p.passes, (uint32_t)TSR_PASS_BACKWARD);
  tsr_plan_destroy(plan);
  cr_expect_eq(fake_backends[0].plans_alive, 0);
  cr_expect_eq(fake_backends[1].plans_alive, 0);
  /* A backend that cannot do the second pass: the first one's plan goes too. */
  p.backend = "beta";
  EXPECT_FAIL(TSR_STATUS_NOT_SUPPORTED, "no backward kernel takes the problem",
              tsr_plan_create(&plan, context, host, &p));
  cr_expect_eq(fake_backends[1].plans, 2);
  cr_expect_eq(fake_backends[1].plans_alive, 0);
  /* The same when preparing fails. */
  p.backend = NULL;
  fake_backends[0].plan_status = TSR_STATUS_DEVICE_ERROR;
  fake_backends[0].text = "the driver said 700";
  EXPECT_FAIL(TSR_STATUS_DEVICE_ERROR, "alpha/bwd_alpha: the driver said 700",
              tsr_plan_create(&plan, context, host, &p));
  cr_expect_eq(fake_backends[1].plans_alive, 0);
  cr_expect_eq(fake_backends[0].plans_alive, 0);
  tsr_context_destroy(context);
}

Test(dispatch, named_only) {
  on(1, "b_oracle", 0.001, NULL, 0)->vtable.named_only = 1;
  tsr_context *context = context_with(NULL, NULL);
  cr_expect_str_eq(chosen(context, NULL, NULL), "fwd_alpha");
  cr_expect_str_eq(chosen(context, "beta", NULL), "b_oracle");
  cr_expect_str_eq(chosen(context, NULL, "b_oracle"), "b_oracle");
  fake_backends[0].kernels[0].refusal = "too small";
  EXPECT_FAIL(TSR_STATUS_NOT_SUPPORTED, "alpha/fwd_alpha: too small; beta: used only when named",
              plan_status(context, NULL, NULL));
  tsr_context_destroy(context);
  context = context_with("beta", NULL);
  cr_expect_str_eq(chosen(context, NULL, NULL), "b_oracle");
  cr_expect_str_eq(chosen(context, "alpha", NULL), "");
  tsr_context_destroy(context);
}

Test(dispatch, forced_names_never_fall_back) {
  on(1, "b_one", 5, "b_two", 6);
  tsr_context *context = context_with(NULL, NULL);
  cr_expect_str_eq(chosen(context, "beta", NULL), "b_one");
  cr_expect_str_eq(chosen(context, NULL, "b_two"), "b_two");
  cr_expect_str_eq(chosen(context, "beta", "b_two"), "b_two");
  fake_backends[1].kernels[0].refusal = "odd";
  fake_backends[1].kernels[1].refusal = "even";
  EXPECT_FAIL(TSR_STATUS_NOT_SUPPORTED, "beta/b_one: odd; beta/b_two: even",
              plan_status(context, "beta", NULL));
  EXPECT_FAIL(TSR_STATUS_NOT_SUPPORTED, "beta/b_two: even", plan_status(context, NULL, "b_two"));
  EXPECT_FAIL(TSR_STATUS_NOT_FOUND,
              "backend: found 'delta', named by the problem, accepted alpha, beta, gamma",
              plan_status(context, "delta", NULL));
  EXPECT_FAIL(TSR_STATUS_NOT_FOUND,
              "backend: found 'gamma', named by the problem, which is absent "
              "here: switched off",
              plan_status(context, "gamma", NULL));
  EXPECT_FAIL(TSR_STATUS_NOT_FOUND, "kernel: found 'nope', named by the problem",
              plan_status(context, NULL, "nope"));
  EXPECT_FAIL(TSR_STATUS_NOT_FOUND, "kernel: found 'b_one' with backend 'alpha'",
              plan_status(context, "alpha", "b_one"));
  EXPECT_FAIL(TSR_STATUS_NOT_FOUND, "kernel: found 'bwd_alpha', a backward kernel",
              plan_status(context, NULL, "bwd_alpha"));
  tsr_context_destroy(context);
}

/* A kernel names one pass; the other is chosen freely. */
Test(dispatch, kernel_names_one_pass) {
  on(1, "b_fwd", 9, NULL, 0);
  tsr_context *context = context_with(NULL, "b_fwd");
  tsr_problem p = fake_problem_backward();
  tsr_plan_info info = TSR_PLAN_INFO_INIT;
  tsr_plan *plan;
  EXPECT_OK(tsr_plan_create(&plan, context, host, &p));
  EXPECT_OK(tsr_plan_describe(plan, TSR_PASS_FORWARD, &info));
  cr_expect_str_eq(info.kernel, "b_fwd");
  EXPECT_OK(tsr_plan_describe(plan, TSR_PASS_BACKWARD, &info));
  cr_expect_str_eq(info.kernel, "bwd_alpha");
  tsr_plan_destroy(plan);
  tsr_context_destroy(context);
  /* A context's kernel that no plan here needs. */
  context = context_with(NULL, "bwd_alpha");
  cr_expect_str_eq(chosen(context, NULL, NULL), "fwd_alpha");
  tsr_context_destroy(context);
  context = context_with(NULL, "nope");
  EXPECT_FAIL(TSR_STATUS_NOT_FOUND, "kernel: found 'nope', named by the context",
              plan_status(context, NULL, NULL));
  tsr_context_destroy(context);
}

Test(dispatch, precedence) {
  on(1, "b_one", 5, "b_two", 6);
  on(2, "c_one", 7, NULL, 0);
  setenv("TSR_BACKEND", "gamma", 1);
  tsr_context *context = context_with(NULL, NULL);
  cr_expect_str_eq(chosen(context, NULL, NULL), "c_one");
  cr_expect_str_eq(chosen(context, "beta", NULL), "b_one");
  /* A kernel named by a stronger source picks its own backend. */
  cr_expect_str_eq(chosen(context, NULL, "b_two"), "b_two");
  tsr_context_destroy(context);
  context = context_with("beta", NULL);
  cr_expect_str_eq(chosen(context, NULL, NULL), "b_one");
  tsr_context_destroy(context);
  unsetenv("TSR_BACKEND");
  setenv("TSR_KERNEL", "b_two", 1);
  context = context_with(NULL, NULL);
  cr_expect_str_eq(chosen(context, NULL, NULL), "b_two");
  cr_expect_str_eq(chosen(context, NULL, "b_one"), "b_one");
  /* A backend named by a stronger source: the weaker kernel gives way if it is not its own. */
  cr_expect_str_eq(chosen(context, "gamma", NULL), "c_one");
  cr_expect_str_eq(chosen(context, "beta", NULL), "b_two");
  tsr_context_destroy(context);
  context = context_with("gamma", NULL);
  cr_expect_str_eq(chosen(context, NULL, NULL), "c_one");
  tsr_context_destroy(context);
  setenv("TSR_BACKEND", "gamma", 1);
  context = context_with(NULL, NULL);
  EXPECT_FAIL(TSR_STATUS_NOT_FOUND, "both named by the environment",
              plan_status(context, NULL, NULL));
  tsr_context_destroy(context);
  /* Empty variables name nothing. */
  setenv("TSR_BACKEND", "", 1);
  setenv("TSR_KERNEL", "", 1);
  context = context_with(NULL, NULL);
  cr_expect_str_eq(chosen(context, NULL, NULL), "fwd_alpha");
  tsr_context_destroy(context);
}

Test(dispatch, devices) {
  fake_backend *b = on(1, "b_gpu", 0.1, NULL, 0);
  b->vtable.device_kind = TSR_DEVICE_CUDA;
  b->devices = 2;
  fake_backends[2].vtable.device_kind = TSR_DEVICE_HIP;
  tsr_context *context = context_with(NULL, NULL);
  tsr_problem p = fake_problem();
  tsr_plan *plan;
  cr_expect_str_eq(chosen(context, NULL, NULL), "fwd_alpha");
  EXPECT_OK(tsr_plan_create(&plan, context, (tsr_device){TSR_DEVICE_CUDA, 1}, &p));
  cr_expect_eq(b->last_problem.device.index, 1);
  tsr_plan_destroy(plan);
  EXPECT_FAIL(TSR_STATUS_NOT_FOUND,
              "device: found cuda 2, which no available backend has; beta: "
              "has 2",
              tsr_plan_create(&plan, context, (tsr_device){TSR_DEVICE_CUDA, 2}, &p));
  EXPECT_FAIL(TSR_STATUS_NOT_FOUND,
              "device: found hip 0, which no available backend has; gamma: "
              "absent: switched off",
              tsr_plan_create(&plan, context, (tsr_device){TSR_DEVICE_HIP, 0}, &p));
  EXPECT_INVALID("out: found NULL", tsr_plan_create(NULL, context, host, &p));
  EXPECT_INVALID("device.index: found 1",
                 tsr_plan_create(&plan, context, (tsr_device){TSR_DEVICE_HOST, 1}, &p));
  EXPECT_FAIL(TSR_STATUS_NOT_SUPPORTED, "beta: works on cuda memory",
              plan_status(context, "beta", NULL));
  tsr_device_info info = TSR_DEVICE_INFO_INIT;
  EXPECT_OK(tsr_device_query(context, (tsr_device){TSR_DEVICE_CUDA, 1}, &info));
  cr_expect_str_eq(info.name, "beta 1");
  cr_expect_eq(info.device.index, 1);
  EXPECT_FAIL(TSR_STATUS_NOT_FOUND, "device: found hip 0",
              tsr_device_query(context, (tsr_device){TSR_DEVICE_HIP, 0}, &info));
  EXPECT_INVALID("device.index: found -1",
                 tsr_device_query(context, (tsr_device){TSR_DEVICE_CUDA, -1}, &info));
  b->info_status = TSR_STATUS_DEVICE_ERROR;
  b->text = "error 999";
  EXPECT_FAIL(TSR_STATUS_DEVICE_ERROR, "beta: error 999",
              tsr_device_query(context, (tsr_device){TSR_DEVICE_CUDA, 1}, &info));
  info.struct_size = 3;
  EXPECT_INVALID("struct_size", tsr_device_query(context, host, &info));
  tsr_context_destroy(context);
}

Test(dispatch, explain) {
  on(1, "b_slow", 4, "b_refuses", 0);
  fake_backends[1].kernels[1].refusal = "wants bfloat16";
  tsr_context *context = context_with(NULL, NULL);
  tsr_problem p = fake_problem();
  char text[2048], again[2048], tiny[16];
  size_t needed = 0, more = 0;
  EXPECT_OK(tsr_explain(context, host, &p, text, sizeof text, &needed));
  cr_expect_eq(needed, strlen(text) + 1);
  cr_expect_not_null(strstr(text, "B 2, Hq 4, Hkv 2, Sq 3, Sk 5, Dqk 8, Dv 8; q float32"));
  cr_expect_not_null(strstr(text, "features: grouped heads"));
  cr_expect_not_null(strstr(text, "forward: alpha/fwd_alpha\n  tile 16 x 32, 100 FLOP, 200 bytes"));
  cr_expect_not_null(strstr(text, "beta/b_slow: ranked lower, 4 s estimated"));
  cr_expect_not_null(strstr(text, "beta/b_refuses: wants bfloat16"));
  cr_expect_not_null(strstr(text, "gamma: absent: switched off"));
  cr_expect_eq(fake_backends[0].plans, 0, "explaining prepares nothing");
  tsr_plan *plan;
  EXPECT_OK(tsr_plan_create(&plan, context, host, &p));
  EXPECT_OK(tsr_plan_explain(plan, again, sizeof again, &more));
  cr_expect_str_eq(text, again);
  EXPECT_OK(tsr_plan_explain(plan, NULL, 0, &more));
  cr_expect_eq(more, needed);
  EXPECT_OK(tsr_plan_explain(plan, tiny, sizeof tiny, &more));
  cr_expect_eq(more, needed);
  cr_expect_eq(strlen(tiny), sizeof tiny - 1);
  EXPECT_INVALID("text: found NULL", tsr_plan_explain(plan, NULL, 9, &more));
  EXPECT_INVALID("text: found NULL", tsr_explain(context, host, &p, NULL, 9, &more));
  EXPECT_INVALID("plan: found NULL", tsr_plan_explain(NULL, text, 9, &more));
  tsr_plan_destroy(plan);
  /* Also where no plan can be made. */
  p.backend = "beta";
  fake_backends[1].kernels[0].refusal = "not today";
  EXPECT_FAIL(TSR_STATUS_NOT_SUPPORTED, "not today",
              tsr_explain(context, host, &p, text, sizeof text, NULL));
  cr_expect_not_null(strstr(text, "forward: no kernel"));
  cr_expect_not_null(strstr(text, "beta/b_slow: not today"));
  cr_expect_not_null(strstr(text, "alpha: not the backend named (beta)"));
  p.heads_kv = 3;
  EXPECT_INVALID("heads_q", tsr_explain(context, host, &p, text, sizeof text, NULL));
  cr_expect_not_null(strstr(text, "invalid argument: heads_q: found 4"));
  tsr_context_destroy(context);
}

/* A list longer than the message is cut, not overrun. */
Test(dispatch, long_refusal_lists) {
  static char reason[256];
  memset(reason, 'r', sizeof reason - 1);
  static const char *const names[FAKE_KERNELS] = {"k0", "k1", "k2", "k3", "k4", "k5"};
  for (int i = 0; i < FAKE_BACKENDS; ++i) {
    fake_backends[i].probe_status = TSR_STATUS_SUCCESS;
    for (int k = 0; k < FAKE_KERNELS; ++k) {
      fake_backends[i].kernels[k] = (fake_kernel){names[k], TSR_PASS_FORWARD, 1, 0, reason};
    }
  }
  tsr_context *context = context_with(NULL, NULL);
  EXPECT_FAIL(TSR_STATUS_NOT_SUPPORTED, "gamma/k0: rrr", plan_status(context, NULL, NULL));
  tsr_context_destroy(context);
}

static char plan_lines[4][1024];
static int plan_count;
static void keep_plans(void *user, tsr_log_level level, const char *text) {
  (void)user;
  if (level != TSR_LOG_PLAN || plan_count == 4) return;
  snprintf(plan_lines[plan_count++], sizeof plan_lines[0], "%s", text);
}

Test(dispatch, choices_are_logged) {
  tsr_context_options options = TSR_CONTEXT_OPTIONS_INIT;
  tsr_context *context;
  options.plugin_path = "";
  options.log = keep_plans;
  on(1, "b_slow", 4, NULL, 0);
  EXPECT_OK(tsr_context_create(&context, &options));
  cr_expect_str_eq(chosen(context, NULL, NULL), "fwd_alpha");
  cr_assert_eq(plan_count, 1);
  cr_expect_str_eq(plan_lines[0],
                   "forward: alpha/fwd_alpha, 1 s estimated; others: beta/b_slow: ranked lower, "
                   "4 s estimated; gamma: absent: switched off");
  fake_backends[0].kernels[0].refusal = "no";
  fake_backends[1].kernels[0].refusal = "no";
  cr_expect_str_eq(chosen(context, NULL, NULL), "");
  cr_assert_eq(plan_count, 2);
  cr_expect_not_null(strstr(plan_lines[1], "forward: no kernel; alpha/fwd_alpha: no"));
  tsr_context_destroy(context);
}
