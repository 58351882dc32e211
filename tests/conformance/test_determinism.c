// SPDX-License-Identifier: Apache-2.0
//
// The promises of tsr_determinism, bit by bit: DETERMINISTIC runs repeat, also with other numbers of
// threads; under BATCH_INVARIANT a row does not depend on the rest of the batch. And rules that mean the
// same give the same: windows of S - 1, S, S + 1 keys and none, under a causal mask.
#include <criterion/criterion.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "conformance.h"
#include "tests/support/compare.h"

static const tsr_dtype dtypes[] = {TSR_DTYPE_F32, TSR_DTYPE_F16, TSR_DTYPE_BF16};
static const char *names[16];

static int32_t backends(void) {
  int32_t count = tsr_backends_list(NULL, NULL, names, 16);
  cr_assert_gt(count, 0);
  return count;
}

static tsr_case base_row(const char *name, int64_t batch, int64_t seq_q, int64_t seq_k) {
  tsr_case row = {0};
  row.name = name, row.group = "determinism";
  row.batch = batch, row.heads_q = 4, row.heads_kv = 2;
  row.seq_q = seq_q, row.seq_k = seq_k, row.dim_qk = 64, row.dim_v = 64;
  row.alignment = 16; /* what the fast kernels of some backends ask for */
  return row;
}

static void print_refused(const char *backend, const char *what) {
  printf("%s refuses %s, which coverage.def allows\n", backend, what);
}

/* Runs of a row: TSR_TEST_REPEATS, 2 to 8 (default). Two are what a backend without threads can tell apart. */
static int repeats(void) {
  const char *value = getenv("TSR_TEST_REPEATS");
  const long n = value ? strtol(value, NULL, 10) : 8;
  return n >= 2 && n <= 8 ? (int)n : 8;
}

/* Runs a row in contexts of 1, 2, 3 and 7 threads, twice each; all results must be equal. */
static int repeat_runs(const char *backend, const tsr_case *row, tsr_dtype dtype, uint32_t passes) {
  static const int32_t threads[] = {1, 2, 3, 7};
  tsr_results first = {0}, other;
  tsr_inputs in;
  const int runs = repeats();
  int failures = 0, run;
  bool refused = false;
  cr_assert(tsr_inputs_create(&in, row, dtype));
  for (run = 0; run < runs && !refused; ++run) {
    tsr_context_options options = TSR_CONTEXT_OPTIONS_INIT;
    tsr_context *context = NULL;
    char title[160];
    options.threads = threads[run / 2];
    cr_assert_eq(tsr_context_create(&context, &options), TSR_STATUS_SUCCESS);
    snprintf(title, sizeof title, "%s %s %s, 1 thread and %d", backend, row->name,
             tsr_check_dtype_name(dtype), (int)options.threads);
    if (!conform_run(context, backend, &in, row, passes, &other, &refused)) {
      failures += !refused;
    } else if (run == 0) {
      first = other;
    } else {
      failures += !conform_equal(title, &first, &other);
      tsr_results_destroy(&other);
    }
    tsr_context_destroy(context);
  }
  if (refused) print_refused(backend, row->name);
  tsr_results_destroy(&first);
  tsr_inputs_destroy(&in);
  return failures;
}

static int repeat_all(uint32_t passes) {
  int32_t i, count = backends();
  int failures = 0;
  size_t d;
  for (i = 0; i < count; ++i)
    for (d = 0; d < 3; ++d) {
      tsr_case prefill = base_row("prefill", 2, 130, 200);
      tsr_case decode = base_row("decode", 2, 1, 3000);
      tsr_case packed = base_row("packed", 3, 90, 150);
      tsr_case longer = base_row("long decode", 1, 3, 9000);
      tsr_case cached = base_row("int8 decode", 2, 1, 2100);
      prefill.determinism = decode.determinism = packed.determinism =
          longer.determinism = cached.determinism = TSR_DETERMINISM_DETERMINISTIC;
      longer.causal = TSR_CAUSAL_BOTTOM_RIGHT;
      longer.forward_only = cached.forward_only = true;
      cached.cache = TSR_DTYPE_I8, cached.scale_rows = 1;
      prefill.causal = TSR_CAUSAL_BOTTOM_RIGHT;
      prefill.bias = TSR_BIAS_NORMAL;
      prefill.bias_over = TSR_OVER_B;
      prefill.sink = TSR_SINK_NORMAL;
      packed.packed_q = packed.packed_k = true;
      packed.len_q = (const int64_t[]){90, 3, 40};
      packed.len_k = (const int64_t[]){150, 70, 1};
      packed.dropout = 0.3f;
      failures += repeat_runs(names[i], &prefill, dtypes[d], passes);
      failures += repeat_runs(names[i], &decode, dtypes[d], passes);
      if (passes == TSR_PASS_FORWARD) {
        failures += repeat_runs(names[i], &longer, dtypes[d], passes);
        failures += repeat_runs(names[i], &cached, dtypes[d], passes);
      }
      failures += repeat_runs(names[i], &packed, dtypes[d], passes);
      /* Keys of more than one chunk, and a band that most of them are outside of. */
      tsr_case chunks = base_row("chunks", 1, 70, 1300);
      tsr_case window = base_row("window", 1, 300, 1300);
      chunks.determinism = window.determinism = TSR_DETERMINISM_DETERMINISTIC;
      window.causal = TSR_CAUSAL_BOTTOM_RIGHT;
      window.window = TSR_WINDOW_BOTTOM_RIGHT;
      window.left = 90, window.right = TSR_UNBOUNDED;
      failures += repeat_runs(names[i], &chunks, dtypes[d], passes);
      failures += repeat_runs(names[i], &window, dtypes[d], passes);
    }
  return failures;
}

/* https://github.com/Dao-AILab/flash-attention/issues/2244 */
Test(determinism, repeated_runs) { cr_assert_eq(repeat_all(TSR_PASS_FORWARD), 0); }

Test(determinism, repeated_runs_backward) {
  cr_assert_eq(repeat_all(TSR_PASS_FORWARD | TSR_PASS_BACKWARD), 0);
}

/* The last sequence of a batch of n against the same sequence in a batch of one. */
static int one_of_batch(const char *backend, int64_t n, int64_t seq_q, int64_t seq_k,
                        tsr_dtype dtype) {
  tsr_case many = base_row("batch of many", n, seq_q, seq_k);
  tsr_case one = base_row("batch of one", 1, seq_q, seq_k);
  tsr_inputs in_many, in_one;
  tsr_results a, b;
  bool refused = false;
  int failures = 0, t;
  many.determinism = one.determinism = TSR_DETERMINISM_BATCH_INVARIANT;
  many.causal = one.causal = TSR_CAUSAL_BOTTOM_RIGHT;
  cr_assert(tsr_inputs_create(&in_many, &many, dtype));
  cr_assert(tsr_inputs_create(&in_one, &one, dtype));
  for (t = 0; t < 3; ++t) {
    tsr_dense *from = t == 0 ? &in_many.q : t == 1 ? &in_many.k : &in_many.v;
    tsr_dense *to = t == 0 ? &in_one.q : t == 1 ? &in_one.k : &in_one.v;
    memcpy(to->x, tsr_dense_row(from, n - 1, 0, 0), (size_t)tsr_dense_count(to) * sizeof(double));
  }
  if (!conform_run(NULL, backend, &in_many, &many, TSR_PASS_FORWARD, &a, &refused)) {
    failures += !refused;
  } else {
    if (!conform_run(NULL, backend, &in_one, &one, TSR_PASS_FORWARD, &b, &refused)) {
      failures++;
    } else {
      tsr_results last = {0};
      char title[160];
      for (t = 0; t < TSR_OUTPUT_COUNT; ++t) {
        if (!a.out[t].x) continue;
        last.out[t] = b.out[t]; /* shape of one sequence */
        last.out[t].x = tsr_dense_row(&a.out[t], n - 1, 0, 0);
      }
      snprintf(title, sizeof title, "%s %s: %lld queries, %lld keys, alone and in a batch of %lld",
               backend, tsr_check_dtype_name(dtype), (long long)seq_q, (long long)seq_k,
               (long long)n);
      failures += !conform_equal(title, &b, &last);
      tsr_results_destroy(&b);
    }
    tsr_results_destroy(&a);
  }
  tsr_inputs_destroy(&in_many);
  tsr_inputs_destroy(&in_one);
  return failures;
}

Test(determinism, row_independent_of_batch) {
  int32_t i, count = backends();
  int failures = 0;
  size_t d;
  for (i = 0; i < count; ++i)
    for (d = 0; d < 3; ++d) {
      failures += one_of_batch(names[i], 9, 1, 2500, dtypes[d]);
      failures += one_of_batch(names[i], 3, 5, 1100, dtypes[d]);
      failures += one_of_batch(names[i], 5, 33, 400, dtypes[d]);
      failures += one_of_batch(names[i], 3, 200, 200, dtypes[d]);
    }
  cr_assert_eq(failures, 0);
}

/* Rows of sequence `from` of one batch into sequence `to` of another. */
static void copy_rows(const tsr_dense *a, int64_t from, const tsr_dense *b, int64_t to,
                      int64_t rows) {
  int64_t h, i;
  for (h = 0; h < a->dim[1]; ++h)
    for (i = 0; i < rows; ++i)
      memcpy(tsr_dense_row(b, to, h, i), tsr_dense_row(a, from, h, i),
             (size_t)a->dim[3] * sizeof(double));
}

/* Whether sequence `at` of a batch and the only one of another have the same rows. */
static bool same_rows(const char *title, const char *what, const tsr_dense *many, int64_t at,
                      const tsr_dense *one, int64_t rows) {
  int64_t h, i;
  for (h = 0; h < one->dim[1]; ++h)
    for (i = 0; i < rows; ++i)
      if (memcmp(tsr_dense_row(many, at, h, i), tsr_dense_row(one, 0, h, i),
                 (size_t)one->dim[3] * sizeof(double)) != 0) {
        printf("%s: row %lld of %s, head %lld, differs\n", title, (long long)i, what,
               (long long)h);
        return false;
      }
  return true;
}

/* A batch that holds the sequence in question among others. */
typedef struct composition {
  const char *name;
  int64_t batch, at;      /* its place */
  int64_t other_q, other_k; /* lengths of the others */
  bool packed;
  int64_t bound_q, bound_k; /* lengths that the problem states at least */
  int32_t threads;
} composition;

/* Results of the sequence in a batch against those of it alone. */
static int in_company(const char *backend, const tsr_inputs *one, const tsr_results *alone,
                      const composition *c) {
  int64_t len_q[48], len_k[48], sq = one->row->seq_q, sk = one->row->seq_k, b;
  tsr_context_options options = TSR_CONTEXT_OPTIONS_INIT;
  tsr_context *context = NULL;
  tsr_case form = *one->row;
  tsr_results results;
  tsr_inputs in;
  char title[160];
  bool refused, same;
  for (b = 0; b < c->batch; ++b) {
    len_q[b] = b == c->at ? sq : c->other_q + b % 3;
    len_k[b] = b == c->at ? sk : c->other_k + b % 5;
  }
  form.name = c->name, form.batch = c->batch, form.len_q = len_q, form.len_k = len_k;
  form.seq_q = sq > c->other_q + 2 ? sq : c->other_q + 2;
  form.seq_k = sk > c->other_k + 4 ? sk : c->other_k + 4;
  if (form.seq_q < c->bound_q) form.seq_q = c->bound_q;
  if (form.seq_k < c->bound_k) form.seq_k = c->bound_k;
  form.packed_q = form.packed_k = c->packed;
  cr_assert(tsr_inputs_create(&in, &form, one->dtype));
  copy_rows(&one->q, 0, &in.q, c->at, sq);
  copy_rows(&one->dout, 0, &in.dout, c->at, sq);
  copy_rows(&one->k, 0, &in.k, c->at, sk);
  copy_rows(&one->v, 0, &in.v, c->at, sk);
  options.threads = c->threads;
  cr_assert_eq(tsr_context_create(&context, &options), TSR_STATUS_SUCCESS);
  snprintf(title, sizeof title, "%s %s, %lld queries and %lld keys alone and %s", backend,
           tsr_check_dtype_name(one->dtype), (long long)sq, (long long)sk, c->name);
  same = conform_run(context, backend, &in, &form, TSR_PASS_FORWARD | TSR_PASS_BACKWARD, &results,
                     &refused);
  if (same) {
    same = same_rows(title, "o", &results.out[TSR_OUTPUT_O], c->at, &alone->out[TSR_OUTPUT_O], sq) &&
           same_rows(title, "dq", &results.out[TSR_OUTPUT_DQ], c->at, &alone->out[TSR_OUTPUT_DQ],
                     sq) &&
           same_rows(title, "dk", &results.out[TSR_OUTPUT_DK], c->at, &alone->out[TSR_OUTPUT_DK],
                     sk) &&
           same_rows(title, "dv", &results.out[TSR_OUTPUT_DV], c->at, &alone->out[TSR_OUTPUT_DV],
                     sk);
    tsr_results_destroy(&results);
  }
  tsr_context_destroy(context);
  tsr_inputs_destroy(&in);
  return !same;
}

/* Gradients of a sequence alone, and in batches that differ in size, lengths, packing, padding and
 * number of threads. */
static int compositions(const char *backend, int64_t sq, int64_t sk, tsr_dtype dtype,
                        tsr_causal causal) {
  static const composition all[] = {
      {"packed between two others", 3, 1, 30, 50, true, 0, 0, 3},
      {"packed after a longer one", 2, 1, 150, 1500, true, 0, 0, 1},
      {"packed among forty short ones", 40, 17, 5, 9, true, 0, 0, 7},
      {"padded to thrice its length", 2, 0, 20, 700, false, 400, 2600, 2},
  };
  tsr_case row = base_row("alone", 1, sq, sk);
  tsr_results alone;
  tsr_inputs one;
  bool refused = false;
  int failures = 0;
  size_t i;
  row.determinism = TSR_DETERMINISM_BATCH_INVARIANT;
  row.causal = causal;
  cr_assert(tsr_inputs_create(&one, &row, dtype));
  if (!conform_run(NULL, backend, &one, &row, TSR_PASS_FORWARD | TSR_PASS_BACKWARD, &alone,
                   &refused)) {
    failures += !refused;
  } else {
    for (i = 0; i < sizeof all / sizeof all[0]; ++i)
      failures += in_company(backend, &one, &alone, &all[i]);
    tsr_results_destroy(&alone);
  }
  tsr_inputs_destroy(&one);
  return failures;
}

Test(determinism, gradients_independent_of_batch) {
  int32_t i, count = backends();
  int failures = 0;
  size_t d;
  for (i = 0; i < count; ++i)
    for (d = 0; d < 3; ++d) {
      failures += compositions(names[i], 61, 1100, dtypes[d], TSR_CAUSAL_BOTTOM_RIGHT);
      failures += compositions(names[i], 131, 700, dtypes[d], TSR_CAUSAL_NONE);
      if (dtypes[d] != TSR_DTYPE_F32) continue;
      failures += compositions(names[i], 1, 530, dtypes[d], TSR_CAUSAL_NONE);
      failures += compositions(names[i], 200, 90, dtypes[d], TSR_CAUSAL_TOP_LEFT);
    }
  cr_assert_eq(failures, 0);
}

/* A left window that reaches past the first key is no window:
 * https://github.com/Dao-AILab/flash-attention/issues/1133. */
Test(determinism, windows_that_mean_the_same) {
  enum { S = 160 };
  static const int64_t lefts[] = {S - 1, S, S + 1, 10 * S, TSR_UNBOUNDED};
  int32_t i, count = backends();
  int failures = 0;
  size_t d, w;
  for (i = 0; i < count; ++i)
    for (d = 0; d < 3; ++d) {
      tsr_case causal = base_row("causal", 1, S, S);
      tsr_results first = {0}, other;
      tsr_inputs in;
      bool refused = false;
      causal.causal = TSR_CAUSAL_BOTTOM_RIGHT;
      cr_assert(tsr_inputs_create(&in, &causal, dtypes[d]));
      if (!conform_run(NULL, names[i], &in, &causal, TSR_PASS_FORWARD, &first, &refused))
        failures += !refused;
      for (w = 0; first.out[0].x && w < 10; ++w) {
        tsr_case form = causal;
        char title[160];
        form.name = "window";
        form.window = TSR_WINDOW_BOTTOM_RIGHT;
        form.left = lefts[w / 2];
        form.right = w % 2 ? 0 : TSR_UNBOUNDED;
        if (w % 2) form.causal = TSR_CAUSAL_NONE; /* right = 0 is causal */
        snprintf(title, sizeof title, "%s %s: causal and window (%lld, %s)", names[i],
                 tsr_check_dtype_name(dtypes[d]), (long long)form.left, w % 2 ? "0" : "unbounded");
        if (!conform_run(NULL, names[i], &in, &form, TSR_PASS_FORWARD, &other, &refused)) {
          failures++;
          continue;
        }
        failures += !conform_equal(title, &first, &other);
        tsr_results_destroy(&other);
      }
      tsr_results_destroy(&first);
      tsr_inputs_destroy(&in);
    }
  cr_assert_eq(failures, 0);
}
