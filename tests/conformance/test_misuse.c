// SPDX-License-Identifier: Apache-2.0
//
// What callers do wrong: NULL, wrong sizes, garbage structs, misaligned and overlapping memory, lengths
// out of range. The library answers with a status and a message that names the field; it does not
// crash, and outputs stay as they were.
#include <criterion/criterion.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "conformance.h"
#include "tests/support/numeric.h"

static const tsr_device host = {TSR_DEVICE_HOST, 0};

/* The message of the last failure must contain text. */
#define EXPECT(status, expected, text)                                                             \
  do {                                                                                             \
    tsr_status found = (status);                                                                   \
    cr_assert_eq(found, expected, "%s: found %s: %s", text, tsr_status_string(found),              \
                 tsr_last_message());                                                              \
    cr_assert_not_null(strstr(tsr_last_message(), text), "'%s' is not in '%s'", text,              \
                       tsr_last_message());                                                        \
  } while (0)
#define INVALID TSR_STATUS_INVALID_ARGUMENT

typedef struct rig {
  tsr_inputs in;
  tsr_setup setup;
  tsr_plan *plan;
  unsigned char *before; /* copies of all outputs */
} rig;

static void rig_open(rig *r, const char *name, uint32_t passes) {
  char why[256];
  const tsr_case *row = tsr_case_find(name);
  cr_assert_not_null(row);
  cr_assert(tsr_inputs_create(&r->in, row, TSR_DTYPE_F32));
  cr_assert(tsr_setup_create(&r->setup, &r->in, row, TSR_DTYPE_F32, passes, why, sizeof why));
  cr_assert_eq(tsr_backends_plan(&r->plan, NULL, &r->setup, "reference", NULL), 0, "%s",
               tsr_last_message());
}

static void rig_close(rig *r) {
  tsr_plan_destroy(r->plan);
  tsr_setup_destroy(&r->setup);
  tsr_inputs_destroy(&r->in);
}

/* Runs forward with changed arguments; it must fail and leave O alone. */
static void expect_run(rig *r, const tsr_args *args, const char *text) {
  const tsr_buffer *o = &r->setup.out[TSR_OUTPUT_O];
  int64_t i;
  EXPECT(tsr_forward(r->plan, args), INVALID, text);
  for (i = 0; i < o->elements; ++i)
    cr_assert(tsr_test_is_poison(TSR_DTYPE_F32, o->block.data, i), "%s: O was written", text);
}

Test(misuse, null_pointers) {
  tsr_plan *plan = (tsr_plan *)&plan;
  tsr_context *context = (tsr_context *)&context;
  tsr_problem problem = TSR_PROBLEM_INIT;
  tsr_args args = TSR_ARGS_INIT;
  size_t bytes;
  EXPECT(tsr_context_create(NULL, NULL), INVALID, "out");
  EXPECT(tsr_plan_create(NULL, NULL, host, &problem), INVALID, "out");
  EXPECT(tsr_plan_create(&plan, NULL, host, NULL), INVALID, "problem");
  cr_assert_null(plan);
  EXPECT(tsr_plan_workspace_size(NULL, TSR_PASS_FORWARD, &bytes), INVALID, "plan");
  EXPECT(tsr_forward(NULL, &args), INVALID, "plan");
  EXPECT(tsr_backward(NULL, &args), INVALID, "plan");
  cr_assert_neq(tsr_explain(NULL, host, NULL, NULL, 0, NULL), TSR_STATUS_SUCCESS);
  cr_assert_neq(tsr_plan_explain(NULL, NULL, 0, NULL), TSR_STATUS_SUCCESS);
  cr_assert_neq(tsr_plan_describe(NULL, TSR_PASS_FORWARD, NULL), TSR_STATUS_SUCCESS);
  cr_assert_neq(tsr_device_query(NULL, host, NULL), TSR_STATUS_SUCCESS);
  cr_assert_neq(tsr_context_backend_info(NULL, 0, NULL), TSR_STATUS_SUCCESS);
  cr_assert_neq(tsr_merge(NULL, host, NULL, NULL, NULL, NULL, NULL, NULL), TSR_STATUS_SUCCESS);
  cr_assert_neq(tsr_dropout_mask(NULL, host, NULL, NULL, NULL), TSR_STATUS_SUCCESS);
  cr_assert_neq(tsr_attention(NULL, host, NULL, NULL, NULL, NULL, NULL, TSR_CAUSAL_NONE, 0, NULL),
                TSR_STATUS_SUCCESS);
  cr_assert_null(tsr_context_kernel_name(NULL, -1, 0));
  cr_assert_null(tsr_context_kernel_name(NULL, 1 << 20, 0));
  tsr_plan_destroy(NULL);
  tsr_context_destroy(NULL);
}

Test(misuse, run_arguments) {
  rig r;
  tsr_args args;
  float spare[4] = {0};
  rig_open(&r, "packed_features", TSR_PASS_FORWARD);
  EXPECT(tsr_forward(r.plan, NULL), INVALID, "tsr_args");
  EXPECT(tsr_backward(r.plan, &r.setup.args), INVALID, "pass");
#define WITH(change, text)             \
  do {                                 \
    args = r.setup.args;               \
    change;                            \
    expect_run(&r, &args, text);       \
  } while (0)
  WITH(args.q = NULL, "q");
  WITH(args.k = NULL, "k");
  WITH(args.v = NULL, "v");
  WITH(args.o = NULL, "o");
  WITH(args.lse = NULL, "lse");
  WITH(args.max_logit = NULL, "max_logit");
  WITH(args.bias = NULL, "bias");
  WITH(args.mask = NULL, "mask");
  WITH(args.alibi = NULL, "alibi");
  WITH(args.sink = NULL, "sink");
  WITH(args.cu_q = NULL, "cu_q");
  WITH(args.cu_k = NULL, "cu_k");
  WITH(args.used_q = spare, "used_q");
  WITH(args.left_pad_k = spare, "left_pad_k");
  WITH(args.page_table = spare, "page_table");
  WITH(args.block_mask = spare, "block_mask");
  WITH(args.q_scale = spare, "q_scale");
  WITH(args.dq = spare, "dq");
  WITH(args.dlse = spare, "dlse");
  WITH(args.dout = spare, "dout");
  WITH(args.q = (const char *)args.q + 1, "q");
  WITH(args.lse = (float *)(void *)((char *)args.lse + 2), "lse");
  WITH(args.o = (void *)(uintptr_t)args.q, "o");
  WITH(args.o = (char *)(uintptr_t)args.v + 4, "o");
  WITH(args.lse = (float *)args.o, "lse");
  WITH(args.max_logit = args.lse, "max_logit");
  WITH(args.stream = spare, "stream");
  WITH(args.struct_size = 3, "struct_size");
  WITH(args.struct_size = 0, "struct_size");
  WITH(args.struct_size = SIZE_MAX, "struct_size");
  WITH((args.workspace = NULL, args.workspace_size = 64), "workspace");
#undef WITH
  rig_close(&r);
}

Test(misuse, workspace) {
  rig r;
  tsr_args args;
  size_t bytes = 0;
  unsigned char *memory;
  rig_open(&r, "square_64", TSR_PASS_FORWARD);
  cr_assert_eq(tsr_plan_workspace_size(r.plan, TSR_PASS_FORWARD, &bytes), 0);
  EXPECT(tsr_plan_workspace_size(r.plan, TSR_PASS_BACKWARD, &bytes), INVALID, "pass");
  cr_assert_eq(tsr_plan_workspace_size(r.plan, TSR_PASS_FORWARD, &bytes), 0);
  memory = (unsigned char *)aligned_alloc(64, (bytes + 127) / 64 * 64);
  args = r.setup.args;
  args.workspace = memory;
  if (bytes > 0) {
    args.workspace_size = bytes - 1;
    expect_run(&r, &args, "workspace_size");
    args.workspace = memory + 8;
    args.workspace_size = bytes;
    expect_run(&r, &args, "workspace");
    args.workspace = args.o;
    args.workspace = (void *)((uintptr_t)args.workspace & ~(uintptr_t)63);
    expect_run(&r, &args, "overlap");
  }
  free(memory);
  rig_close(&r);
}

/* Replaces one entry of an index array and expects its name in the message. */
static void bad_index(const char *name, tsr_vector vector, int64_t entry, int32_t value,
                      const char *text) {
  rig r;
  rig_open(&r, name, TSR_PASS_FORWARD);
  int32_t *values = (int32_t *)(void *)r.setup.vector[vector].data;
  cr_assert_not_null(values);
  values[entry] = value;
  expect_run(&r, &r.setup.args, text);
  rig_close(&r);
}

Test(misuse, lengths_out_of_range) {
  bad_index("packed", TSR_VECTOR_CU_Q, 0, -1, "cu_q");
  bad_index("packed", TSR_VECTOR_CU_Q, 2, 5, "cu_q");
  bad_index("packed", TSR_VECTOR_CU_Q, 4, 1 << 30, "cu_q");
  bad_index("packed", TSR_VECTOR_CU_K, 1, INT32_MAX, "cu_k");
  bad_index("packed", TSR_VECTOR_CU_K, 1, INT32_MIN, "cu_k");
  bad_index("used_lengths", TSR_VECTOR_USED_Q, 1, 66, "used_q");
  bad_index("used_lengths", TSR_VECTOR_USED_K, 1, -1, "used_k");
  bad_index("left_pad", TSR_VECTOR_LEFT_Q, 0, 34, "left_pad_q");
  bad_index("left_pad", TSR_VECTOR_LEFT_K, 0, -5, "left_pad_k");
  bad_index("left_pad_and_used", TSR_VECTOR_LEFT_K, 0, 16, "used_k");
  bad_index("paged_16", TSR_VECTOR_PAGES, 0, -1, "page_table");
  bad_index("paged_16", TSR_VECTOR_PAGES, 1, 1 << 20, "page_table");
  bad_index("paged_16", TSR_VECTOR_USED_K, 0, 1000, "used_k");
  bad_index("prefix_each", TSR_VECTOR_PREFIX, 1, -2, "prefix");
}

Test(misuse, absurd_shapes) {
  static const struct {
    int64_t batch, hq, hkv, sq, sk, dqk, dv;
    const char *text;
  } shapes[] = {
      {-1, 1, 1, 1, 1, 8, 8, "batch"},         {INT64_MAX, 1, 1, 1, 1, 8, 8, "batch"},
      {1, 3, 2, 1, 1, 8, 8, "heads_q"},        {1, 2, 0, 1, 1, 8, 8, "heads_q"},
      {1, -2, 1, 1, 1, 8, 8, "heads_q"},       {1, 2, -2, 1, 1, 8, 8, "heads_kv"},
      {1, INT64_MAX, 1, 1, 1, 8, 8, "heads_q"}, {65536, 65536, 1, 1, 1, 8, 8, "batch * heads_q"},
      {1, 1, 1, -1, 1, 8, 8, "seq_q"},         {1, 1, 1, 1, INT64_MIN, 8, 8, "seq_k"},
      {1, 1, 1, INT64_C(1) << 31, 1, 8, 8, "seq_q"}, {1, 1, 1, 1, INT64_MAX, 8, 8, "seq_k"},
      {1, 1, 1, 1, 1, 0, 8, "dim_qk"},         {1, 1, 1, 1, 1, 577, 8, "dim_qk"},
      {1, 1, 1, 1, 1, 8, 513, "dim_v"},        {1, 1, 1, 1, 1, 8, -1, "dim_v"},
      {1, 1, 1, 1, 1, INT64_MIN, 8, "dim_qk"},
  };
  size_t i;
  for (i = 0; i < sizeof shapes / sizeof shapes[0]; ++i) {
    tsr_problem p = TSR_PROBLEM_INIT;
    tsr_plan *plan = NULL;
    p.batch = shapes[i].batch, p.heads_q = shapes[i].hq, p.heads_kv = shapes[i].hkv;
    p.seq_q = shapes[i].sq, p.seq_k = shapes[i].sk;
    p.dim_qk = shapes[i].dqk, p.dim_v = shapes[i].dv;
    p.q.dtype = p.k.dtype = p.v.dtype = p.o.dtype = TSR_DTYPE_F32;
    EXPECT(tsr_plan_create(&plan, NULL, host, &p), INVALID, shapes[i].text);
    cr_assert_null(plan);
  }
}

/* Largest legal sizes: planning must not overflow, whatever it decides. */
Test(misuse, largest_shapes_plan) {
  static const char *const backends[] = {"reference", "cpu"};
  const int64_t longest = (INT64_C(1) << 31) - 1;
  size_t i;
  for (i = 0; i < 2; ++i) {
    tsr_problem p = TSR_PROBLEM_INIT;
    tsr_plan *plan = NULL;
    tsr_status status;
    p.batch = 1, p.heads_q = 16, p.heads_kv = 1, p.seq_q = p.seq_k = longest;
    p.dim_qk = 576, p.dim_v = 512;
    p.q.dtype = p.k.dtype = p.v.dtype = p.o.dtype = TSR_DTYPE_BF16;
    p.causal = TSR_CAUSAL_BOTTOM_RIGHT;
    p.backend = backends[i];
    status = tsr_plan_create(&plan, NULL, host, &p);
    cr_assert(status == TSR_STATUS_SUCCESS || status == TSR_STATUS_NOT_SUPPORTED ||
                  status == TSR_STATUS_NOT_FOUND || status == TSR_STATUS_OUT_OF_MEMORY,
              "%s", tsr_last_message());
    if (plan) {
      tsr_plan_info info = {sizeof info};
      cr_assert_eq(tsr_plan_describe(plan, TSR_PASS_FORWARD, &info), 0);
      cr_assert(info.flops > 1e20 && isfinite(info.flops) && info.bytes > 1e12);
    }
    tsr_plan_destroy(plan);
  }
}

/* Structs full of random bytes, and good problems with one random field: a status, never a crash. */
Test(misuse, garbage_problems) {
  const tsr_case *row = tsr_case_find("packed_features");
  char why[256];
  tsr_inputs in;
  tsr_setup setup;
  uint64_t n;
  cr_assert(tsr_inputs_create(&in, row, TSR_DTYPE_F32));
  cr_assert(tsr_setup_create(&setup, &in, row, TSR_DTYPE_F32, 1, why, sizeof why));
  for (n = 0; n < 20000; ++n) {
    tsr_problem p = setup.problem;
    tsr_plan *plan = NULL;
    unsigned char *bytes = (unsigned char *)&p;
    size_t first = sizeof p.struct_size, last = offsetof(tsr_problem, backend), i;
    tsr_status status;
    if (n % 4 == 0) {
      for (i = first; i < last; ++i)
        if (tsr_test_bits(n, 2, i) % 8 == 0) bytes[i] = (unsigned char)tsr_test_bits(n, 1, i);
    } else {
      uint64_t word = tsr_test_bits(n, 3, 0);
      size_t at = (size_t)tsr_test_integer(n, 4, 0, (int64_t)first / 4, (int64_t)last / 4 - 2) * 4;
      if (n % 4 == 1) word %= 7;
      if (n % 4 == 2) word = UINT64_C(1) << word % 64;
      memcpy(bytes + at, &word, n % 3 ? 4 : 8);
    }
    status = tsr_plan_create(&plan, NULL, host, &p);
    cr_assert((status == TSR_STATUS_SUCCESS) == (plan != NULL));
    if (status != TSR_STATUS_SUCCESS) cr_assert_gt(strlen(tsr_last_message()), 0);
    tsr_plan_destroy(plan);
  }
  tsr_setup_destroy(&setup);
  tsr_inputs_destroy(&in);
}

/* ------------------------------------------------------------------------------------- sweep */

typedef enum field_kind { LONG, INT, REAL, LAYOUT } field_kind;
#define FIELD(name, kind) {#name, offsetof(tsr_problem, name), kind}
static const struct {
  const char *name;
  size_t offset;
  field_kind kind;
} problem_fields[] = {
    FIELD(passes, INT),         FIELD(arrays, INT),        FIELD(index_dtype, INT),    FIELD(determinism, INT),
    FIELD(batch, LONG),         FIELD(heads_q, LONG),      FIELD(heads_kv, LONG),      FIELD(seq_q, LONG),
    FIELD(seq_k, LONG),         FIELD(total_q, LONG),      FIELD(total_k, LONG),       FIELD(dim_qk, LONG),
    FIELD(dim_v, LONG),         FIELD(q, LAYOUT),          FIELD(k, LAYOUT),           FIELD(v, LAYOUT),
    FIELD(o, LAYOUT),           FIELD(lse, LAYOUT),        FIELD(max_logit, LAYOUT),   FIELD(scale, REAL),
    FIELD(softcap, REAL),       FIELD(bias, LAYOUT),       FIELD(alibi, INT),          FIELD(sink, INT),
    FIELD(causal, INT),         FIELD(reserved0, INT),     FIELD(diagonal, LONG),      FIELD(window.kind, INT),
    FIELD(window.reserved, INT), FIELD(window.left, LONG), FIELD(window.right, LONG),  FIELD(prefix, LONG),
    FIELD(mask, LAYOUT),        FIELD(block_mask, LAYOUT), FIELD(block_q, LONG),       FIELD(block_k, LONG),
    FIELD(dropout, REAL),       FIELD(reserved1, INT),     FIELD(page_size, LONG),     FIELD(num_pages, LONG),
    FIELD(max_pages, LONG),     FIELD(page_table_stride, LONG), FIELD(q_scale, LAYOUT), FIELD(k_scale, LAYOUT),
    FIELD(v_scale, LAYOUT),     FIELD(scale_rows_q, LONG), FIELD(scale_rows_k, LONG),  FIELD(dout, LAYOUT),
    FIELD(dlse, LAYOUT),        FIELD(dq, LAYOUT),         FIELD(dk, LAYOUT),          FIELD(dv, LAYOUT),
    FIELD(dbias, LAYOUT),       FIELD(dsink, INT),         FIELD(accumulate, INT),
};
#undef FIELD
enum { PROBLEM_FIELDS = sizeof problem_fields / sizeof problem_fields[0] };

static const int64_t edges[] = {
    0, 1, 2, 3, 8, 17, 63, 64, 65, 127, 128, 129, 512, 513, 576, 577, 4096, 65536, 1 << 24, -1, -8, INT32_MAX,
    INT32_MAX - 4096, INT64_C(1) << 31, INT64_C(1) << 32, (INT64_C(1) << 39) - 8, INT64_C(1) << 39, INT64_C(1) << 40,
    INT64_C(1) << 61, (INT64_C(1) << 61) + 1, INT64_C(1) << 62, INT64_MAX - 7, INT64_MAX, INT64_MIN};
static const float real_edges[] = {0,      1,     -1,    0.125f, 1e30f,    1e-30f,    1e-38f,
                                   1e-45f, 3e38f, -3e38f, 0.9999999f, INFINITY, -INFINITY, NAN};
enum { EDGES = sizeof edges / sizeof edges[0], REAL_EDGES = sizeof real_edges / sizeof real_edges[0] };

/* The v-th absurd value of a field; false past the last one. */
static bool set_absurd(tsr_problem *p, int field, int v) {
  char *at = (char *)p + problem_fields[field].offset;
  tsr_layout *l = (tsr_layout *)(void *)at;
  const int32_t word = v < 20 ? v : (int32_t)edges[v % EDGES];
  int a;
  switch (problem_fields[field].kind) {
    case LONG:
      if (v < EDGES) memcpy(at, &edges[v], sizeof edges[v]);
      return v < EDGES;
    case INT:
      memcpy(at, &word, sizeof word);
      return v < 20 + EDGES;
    case REAL:
      if (v < REAL_EDGES) memcpy(at, &real_edges[v], sizeof real_edges[v]);
      return v < REAL_EDGES;
    case LAYOUT:
      break;
  }
  if (v < 40) return l->dtype = (tsr_dtype)(v - 2), true;
  v -= 40;
  if (v < EDGES) return l->alignment = edges[v], true;
  v -= EDGES;
  if (v >= 4 * EDGES) return false;
  l->order = TSR_ORDER_STRIDED; /* of axes of the length that they have below, but for one of the strides */
  for (a = 3; a >= 0; --a) l->stride[a] = a == 3 ? 1 : a == 2 ? 64 : 512 * l->stride[a + 1];
  l->stride[v / EDGES] = edges[v % EDGES];
  return true;
}

static int absurd_count(int field) {
  switch (problem_fields[field].kind) {
    case LONG:
      return EDGES;
    case INT:
      return 20 + EDGES;
    case REAL:
      return REAL_EDGES;
    case LAYOUT:
      break;
  }
  return 40 + 5 * EDGES;
}

enum { SWEEP_BASES = 6 };
static tsr_problem sweep_base(int which) {
  tsr_problem p = TSR_PROBLEM_INIT;
  p.batch = which == 1 ? 1 : 2, p.heads_q = which == 1 ? 1 : 4, p.heads_kv = which == 1 ? 1 : 2;
  p.seq_q = which == 1 ? 1 : 70, p.seq_k = 300, p.dim_qk = p.dim_v = 64;
  p.q.dtype = which == 2 ? TSR_DTYPE_F32 : TSR_DTYPE_F16;
  p.q.alignment = 16;
  p.k = p.v = p.o = p.q;
  p.lse.dtype = TSR_DTYPE_F32;
  if (which == 3) {
    p.page_size = 64, p.num_pages = 10, p.max_pages = 5, p.seq_k = 0;
    p.arrays = TSR_ARRAY_USED_K;
    return p;
  }
  p.passes = TSR_PASS_FORWARD | TSR_PASS_BACKWARD;
  p.dout = p.dq = p.dk = p.dv = p.q;
  if (which >= 4) { /* tensors of pairs, in the second one of nothing */
    p.bias.dtype = p.dbias.dtype = TSR_DTYPE_F32;
    p.mask.dtype = TSR_DTYPE_U8;
    if (which == 5) p.batch = 0;
  }
  if (which == 2) p.arrays = TSR_ARRAY_CU_Q | TSR_ARRAY_CU_K, p.total_q = 140, p.total_k = 600;
  return p;
}

/* Nothing but a plan whose figures are numbers, or a refusal; a wrong argument is named with what was found. */
static void check_absurd(const tsr_problem *p, tsr_device device, const char *field, int v) {
  tsr_plan *plan = NULL;
  const tsr_status status = tsr_plan_create(&plan, NULL, device, p);
  const char *text = tsr_last_message();
  int pass;
  cr_assert((status == TSR_STATUS_SUCCESS) == (plan != NULL));
  if (status == TSR_STATUS_INVALID_ARGUMENT)
    cr_assert(strstr(text, "found") && strstr(text, "accepted"), "%s, value %d: %s", field, v, text);
  else
    cr_assert(status == TSR_STATUS_SUCCESS || status == TSR_STATUS_NOT_SUPPORTED, "%s, value %d: %s: %s", field, v,
              tsr_status_string(status), text);
  for (pass = TSR_PASS_FORWARD; plan && pass <= TSR_PASS_BACKWARD; ++pass) {
    tsr_plan_info info = TSR_PLAN_INFO_INIT;
    if (tsr_plan_describe(plan, (tsr_pass)pass, &info) != TSR_STATUS_SUCCESS) continue;
    cr_assert(info.seconds >= 0 && isfinite(info.seconds) && info.flops >= 0 && isfinite(info.flops) &&
                  info.bytes >= 0 && isfinite(info.bytes) && info.workspace <= (size_t)INT64_MAX,
              "%s, value %d: %s: %g s, %g, %g bytes, workspace %zu", field, v, info.kernel, info.seconds, info.flops,
              info.bytes, info.workspace);
  }
  tsr_plan_destroy(plan);
}

/* Every field of good problems set to every absurd value, and two fields at once, on every backend. */
Test(misuse, absurd_fields) {
  const char *names[16];
  const int32_t count = tsr_backends_list(NULL, NULL, names, 16);
  int32_t n;
  for (n = 0; n < count && n < 16; ++n) {
    const tsr_device device = tsr_backends_device(NULL, names[n], 0);
    int base, field, v;
    uint64_t trial;
    for (base = 0; base < SWEEP_BASES; ++base)
      for (field = 0; field < PROBLEM_FIELDS; ++field)
        for (v = 0;; ++v) {
          tsr_problem p = sweep_base(base);
          p.backend = names[n];
          if (!set_absurd(&p, field, v)) break;
          check_absurd(&p, device, problem_fields[field].name, v);
        }
    for (trial = 0; trial < 4000; ++trial) {
      tsr_problem p = sweep_base((int)(trial % SWEEP_BASES));
      const int one = (int)tsr_test_integer(trial, 5, 0, 0, PROBLEM_FIELDS - 1);
      const int two = (int)tsr_test_integer(trial, 5, 1, 0, PROBLEM_FIELDS - 1);
      p.backend = names[n];
      set_absurd(&p, one, (int)tsr_test_integer(trial, 5, 2, 0, absurd_count(one) - 1));
      set_absurd(&p, two, (int)tsr_test_integer(trial, 5, 3, 0, absurd_count(two) - 1));
      check_absurd(&p, device, problem_fields[two].name, (int)trial);
    }
  }
}

Test(misuse, messages_are_per_thread_and_kept) {
  tsr_plan *plan = NULL;
  tsr_problem p = TSR_PROBLEM_INIT;
  p.batch = -7;
  cr_assert_eq(tsr_plan_create(&plan, NULL, host, &p), INVALID);
  cr_assert_not_null(strstr(tsr_last_message(), "-7"), "%s", tsr_last_message());
  cr_assert_gt(tsr_context_backend_count(NULL), 0); /* a success does not clear it */
  cr_assert_not_null(strstr(tsr_last_message(), "-7"));
}
