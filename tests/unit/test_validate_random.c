// SPDX-License-Identifier: Apache-2.0
//
// Validation under random problems: fields are set to values at the edges of what is accepted, and
// beyond. Whatever comes, there is no crash and no overflow (sanitizers watch), a refusal has a
// message, and what is accepted keeps every promise that backend.h makes of a resolved problem. The
// seed is printed on failure; TSR_SEED replays it.
#include <math.h>
#include <stdlib.h>

#include "api/src/validate.h"
#include "tests/support/fake_backend.h"
#include "tests/unit/expect.h"

static unsigned long long state;

static uint64_t next(void) {
  state ^= state << 13;
  state ^= state >> 7;
  state ^= state << 17;
  return state;
}

static int64_t edge(void) {
  static const int64_t values[] = {
      0,         1,         2,         3,   4,   5,         7,         8,         15,
      16,        17,        48,        64,  128, 512,       513,       576,       577,
      4096,      -1,        -8,        256, 192, INT32_MAX, 1LL << 31, 1LL << 32, INT64_MAX,
      INT64_MIN, 1LL << 40, 1LL << 61, 96,  24,  40,        80,        1LL << 62};
  return values[next() % (sizeof values / sizeof values[0])];
}

static float real(void) {
  static const float values[] = {0, 1, 0.5f, -1, 0.125f, 1e30f, 1e-30f, INFINITY, -INFINITY, NAN};
  return values[next() % 10];
}

/* Fields of a problem by offset and type. */
typedef enum kind { LONG, INT, REAL, LAYOUT } kind;
#define FIELD(name, kind) \
  { offsetof(tsr_problem, name), kind }
static const struct {
  size_t offset;
  kind kind;
} fields[] = {
    FIELD(passes, INT),        FIELD(arrays, INT),
    FIELD(index_dtype, INT),   FIELD(determinism, INT),
    FIELD(batch, LONG),        FIELD(heads_q, LONG),
    FIELD(heads_kv, LONG),     FIELD(seq_q, LONG),
    FIELD(seq_k, LONG),        FIELD(total_q, LONG),
    FIELD(total_k, LONG),      FIELD(dim_qk, LONG),
    FIELD(dim_v, LONG),        FIELD(q, LAYOUT),
    FIELD(k, LAYOUT),          FIELD(v, LAYOUT),
    FIELD(o, LAYOUT),          FIELD(lse, LAYOUT),
    FIELD(max_logit, LAYOUT),  FIELD(scale, REAL),
    FIELD(softcap, REAL),      FIELD(bias, LAYOUT),
    FIELD(alibi, INT),         FIELD(sink, INT),
    FIELD(causal, INT),        FIELD(reserved0, INT),
    FIELD(diagonal, LONG),     FIELD(window.kind, INT),
    FIELD(window.left, LONG),  FIELD(window.right, LONG),
    FIELD(prefix, LONG),       FIELD(mask, LAYOUT),
    FIELD(block_mask, LAYOUT), FIELD(block_q, LONG),
    FIELD(block_k, LONG),      FIELD(dropout, REAL),
    FIELD(page_size, LONG),    FIELD(num_pages, LONG),
    FIELD(max_pages, LONG),    FIELD(page_table_stride, LONG),
    FIELD(q_scale, LAYOUT),    FIELD(k_scale, LAYOUT),
    FIELD(v_scale, LAYOUT),    FIELD(scale_rows_q, LONG),
    FIELD(scale_rows_k, LONG), FIELD(dout, LAYOUT),
    FIELD(dlse, LAYOUT),       FIELD(dq, LAYOUT),
    FIELD(dk, LAYOUT),         FIELD(dv, LAYOUT),
    FIELD(dbias, LAYOUT),      FIELD(dsink, INT),
    FIELD(accumulate, INT),
};

static void change(tsr_problem *p) {
  const size_t i = next() % (sizeof fields / sizeof fields[0]);
  char *at = (char *)p + fields[i].offset;
  if (fields[i].kind == LONG) {
    const int64_t value = edge();
    memcpy(at, &value, sizeof value);
  } else if (fields[i].kind == INT) {
    const int32_t value = next() % 4 ? (int32_t)(next() % 16) : (int32_t)edge();
    memcpy(at, &value, sizeof value);
  } else if (fields[i].kind == REAL) {
    const float value = real();
    memcpy(at, &value, sizeof value);
  } else {
    tsr_layout *l = (tsr_layout *)(void *)at;
    l->dtype = (tsr_dtype)(next() % 3 ? next() % 8 : next() % 34);
    if (next() % 2) return;
    l->order = (tsr_order)(next() % 4);
    for (int a = 0; a < 4; ++a) l->stride[a] = next() % 3 ? (int64_t)(next() % 200) : edge();
    l->alignment = next() % 4 ? 0 : edge();
  }
}

/* What backend.h promises of a resolved problem. */
static void check_promises(const tsr_problem *given, tsr_pass pass, long trial) {
  const tsr_device host = {TSR_DEVICE_HOST, 0};
  tsr_resolved r;
  tsri_resolve_pass(given, host, pass, &r);
  const tsr_problem *p = &r.p;
  cr_assert(p->batch >= 0 && p->batch * p->heads_q <= TSRI_LENGTH_MAX, "trial %ld", trial);
  cr_assert(p->heads_q == 0 || p->heads_q == r.group * p->heads_kv, "trial %ld", trial);
  cr_assert(p->dim_qk >= 1 && p->dim_qk <= 576 && p->dim_v >= 1 && p->dim_v <= 512);
  cr_assert(p->seq_q >= 0 && p->seq_q <= TSRI_LENGTH_MAX, "trial %ld", trial);
  cr_assert(p->seq_k >= 0 && p->seq_k <= TSRI_LENGTH_MAX, "trial %ld", trial);
  cr_assert(p->scale != 0 && isfinite(p->scale) && p->softcap >= 0 && isfinite(p->softcap));
  cr_assert(p->causal == TSR_CAUSAL_NONE && p->window.left >= 0 && p->window.right >= 0);
  cr_assert(p->index_dtype == TSR_DTYPE_I32 || p->index_dtype == TSR_DTYPE_I64);
  cr_assert(p->q.dtype && p->k.dtype && p->v.dtype && p->o.dtype, "trial %ld", trial);
  cr_assert(r.drop_threshold <= UINT64_C(1) << 32 && r.keep_scale >= 0);
  if (pass == TSR_PASS_BACKWARD) cr_assert(p->lse.dtype && p->dout.dtype, "trial %ld", trial);
  for (int i = 0; i < TSRI_TENSORS; ++i) {
    const tsri_tensor *t = &tsri_tensors[i];
    const tsr_layout *l = tsri_tensor_layout_const(p, t);
    int64_t dim[4], bytes = -1;
    if (!l->dtype) continue;
    cr_assert_neq(tsri_tensor_role(t, (uint32_t)pass), TSRI_UNUSED, "trial %ld: %s", trial,
                  t->name);
    cr_assert_eq(l->order, TSR_ORDER_STRIDED, "trial %ld: %s", trial, t->name);
    cr_assert(l->alignment >= 1 && (l->alignment & (l->alignment - 1)) == 0);
    const int flags = tsri_tensor_dims(p, t, dim);
    for (int a = 0; a < 4; ++a) cr_assert(dim[a] >= 0 && l->stride[a] >= 0);
    cr_assert(!(flags & TSRI_LAYOUT_PACKED) || l->stride[0] == 0, "trial %ld: %s", trial, t->name);
    cr_assert_eq(tsri_layout_extent(dim, l->stride, l->dtype, &bytes), 0, "trial %ld", trial);
    cr_assert_geq(bytes, 0);
  }
}

Test(validate_random, problems) {
  const char *given = getenv("TSR_SEED");
  const unsigned long long seed = given ? strtoull(given, NULL, 0) : 20240229;
  long accepted = 0, refused = 0;
  state = seed ? seed : 1;
  for (long trial = 0; trial < 300000; ++trial) {
    tsr_problem p = trial % 2 ? fake_problem() : fake_problem_backward(), valid;
    for (uint64_t n = 1 + next() % 6; n; --n) change(&p);
    tsri_fail(TSR_STATUS_SUCCESS, "%s", "");
    if (tsri_validate_problem(&p, &valid) == TSR_STATUS_SUCCESS) {
      ++accepted;
      if (valid.passes & TSR_PASS_FORWARD) check_promises(&valid, TSR_PASS_FORWARD, trial);
      if (valid.passes & TSR_PASS_BACKWARD) check_promises(&valid, TSR_PASS_BACKWARD, trial);
    } else {
      ++refused;
      cr_assert_not_null(strstr(tsr_last_message(), "found"), "seed %llu, trial %ld: %s", seed,
                         trial, tsr_last_message());
      cr_assert_not_null(strstr(tsr_last_message(), "accepted"), "seed %llu, trial %ld: %s", seed,
                         trial, tsr_last_message());
    }
  }
  cr_log_info("seed %llu: %ld accepted, %ld refused", seed, accepted, refused);
  cr_expect_gt(accepted, 8000);
  cr_expect_gt(refused, 20000);
}
