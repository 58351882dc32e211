// SPDX-License-Identifier: Apache-2.0
//
// Random problems over all features, on every backend against the reference, forward and backward in
// turn. Problem n has seed TSR_FUZZ_SEED + n (default 1); TSR_FUZZ_COUNT says how many (default 300).
// A failure is shrunk and printed as a row for cases.def with the command that repeats it. Two problems in three
// run with a runner that takes its tasks in an order of its own and as if there were more threads, or fewer, than
// the machine has: a task that counts on another one having run before it reads what the workspace was filled with.
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "conformance.h"
#include "fuzz_row.h"
#include "tests/support/numeric.h"

/* A runner of one thread and `threads` workers. */
typedef struct disorder {
  uint64_t seed;
  tsr_runner runner;
  tsr_context *context; /* NULL: none, the default context */
} disorder;

static int run_disordered(void *user, void (*task)(void *arg, int64_t index, int32_t worker), void *arg,
                          int64_t count) {
  const disorder *d = (const disorder *)user;
  int64_t *order = (int64_t *)malloc((size_t)(count + 1) * sizeof *order), i;
  if (!order) return 1;
  for (i = 0; i < count; ++i) order[i] = i;
  for (i = count - 1; i > 0; --i) {
    int64_t other = tsr_test_integer(d->seed, 1, (uint64_t)i, 0, i), index = order[i];
    order[i] = order[other];
    order[other] = index;
  }
  for (i = 0; i < count; ++i)
    task(arg, order[i], (int32_t)tsr_test_integer(d->seed, 2, (uint64_t)i, 0, d->runner.threads - 1));
  free(order);
  return 0;
}

/* The context of a problem. */
static void disorder_open(disorder *d, uint64_t seed) {
  static const int32_t threads[] = {1, 2, 3, 5, 16, 64};
  tsr_context_options options = TSR_CONTEXT_OPTIONS_INIT;
  memset(d, 0, sizeof *d);
  d->seed = seed;
  if (seed % 3 == 0) return;
  d->runner.user = d;
  d->runner.threads = threads[tsr_test_integer(seed, 3, 0, 0, 5)];
  d->runner.run = run_disordered;
  options.runner = d->runner;
  if (tsr_context_create(&d->context, &options) == TSR_STATUS_SUCCESS) return;
  printf("context: %s\n", tsr_last_message());
  exit(2);
}

typedef struct verdict {
  conform_count count;
  char kind[64]; /* of the first failure: which output, or which step */
  char text[1024];
  bool quiet;
} verdict;

static void watch(void *state, const tsr_check_record *record) {
  verdict *v = (verdict *)state;
  bool bad = record->verdict == TSR_VERDICT_FAIL;
  switch (record->verdict) {
    case TSR_VERDICT_PASS:
      v->count.passed++;
      break;
    case TSR_VERDICT_FAIL:
      v->count.failed++;
      break;
    case TSR_VERDICT_REFUSED:
      v->count.refused++;
      bad = conform_required(record->backend, record->pass, record->group, record->dtype);
      v->count.failed += bad;
      break;
    default:
      v->count.skipped++;
  }
  if (!bad || *v->kind) return;
  snprintf(v->kind, sizeof v->kind, "%s %s %.12s", record->backend, record->output,
           *record->output ? "" : record->reason);
  tsr_check_format(record, v->text, sizeof v->text);
}

static verdict run(const fuzz_row *row, bool backward, const disorder *order) {
  verdict v = {0};
  tsr_check_options options = {0};
  char message[512] = "";
  options.context = order->context;
  options.report = watch;
  options.user = &v;
  options.dtypes = 1u << row->dtype;
  if (row->row.seed % 4 == 0) options.kernel = "*"; /* also those that dispatch does not choose */
  options.passes = backward ? TSR_PASS_FORWARD | TSR_PASS_BACKWARD : TSR_PASS_FORWARD;
  if (!tsr_check_case(&options, &row->row, message, sizeof message)) {
    v.count.failed++;
    snprintf(v.kind, sizeof v.kind, "check %.40s", message);
    snprintf(v.text, sizeof v.text, "%s", message);
  }
  return v;
}

typedef struct target {
  const char *kind;
  bool backward;
  const disorder *order;
} target;

static bool same_failure(void *state, const fuzz_row *row) {
  const target *t = (const target *)state;
  verdict v = run(row, t->backward, t->order);
  return strcmp(v.kind, t->kind) == 0;
}

static void report(uint64_t seed, const verdict *v, const fuzz_row *found, bool backward, const disorder *order) {
  char text[2048];
  fuzz_row row;
  target t = {v->kind, backward, order};
  fuzz_row_copy(&row, found);
  fuzz_row_print(&row, text, sizeof text);
  printf("%s\n  found:   %s\n", v->text, text);
  fuzz_row_shrink(&row, same_failure, &t);
  fuzz_row_print(&row, text, sizeof text);
  printf("  repeat:  TSR_FUZZ_SEED=%llu TSR_FUZZ_COUNT=1\n  smallest (%s): %s\n",
         (unsigned long long)seed, backward ? "backward" : "forward", text);
  verdict again = run(&row, backward, order);
  printf("  there:   %s\n  threads: %d\n", again.text, (int)order->runner.threads);
  fflush(stdout);
}

static uint64_t number_from(const char *name, uint64_t otherwise) {
  const char *text = getenv(name);
  char *end;
  unsigned long long value;
  if (!text || !*text) return otherwise;
  value = strtoull(text, &end, 0);
  if (*end == 0) return value;
  printf("%s: found '%s', accepted a number\n", name, text);
  exit(2);
}

int main(void) {
  uint64_t seed = number_from("TSR_FUZZ_SEED", 1), count = number_from("TSR_FUZZ_COUNT", 300), n;
  int64_t passed = 0, refused = 0, skipped = 0, failures = 0;
  for (n = 0; n < count; ++n) {
    fuzz_row row;
    disorder order;
    int pass;
    if (n % 25 == 0) printf("seed %llu\n", (unsigned long long)(seed + n));
    fflush(stdout); /* a crash leaves the neighbourhood of its seed */
    fuzz_row_make(&row, seed + n);
    disorder_open(&order, seed + n);
    for (pass = 0; pass < 2; ++pass) {
      verdict v;
      if (pass == 1 && (row.row.forward_only || (seed + n) % 2)) continue;
      v = run(&row, pass == 1, &order);
      passed += v.count.passed, refused += v.count.refused, skipped += v.count.skipped;
      failures += v.count.failed > 0;
      if (v.count.failed > 0) report(seed + n, &v, &row, pass == 1, &order);
    }
    tsr_context_destroy(order.context);
    if (failures >= 10) break; /* enough to look at */
  }
  printf("%llu problems from seed %llu: %lld outputs right, %lld failures, %lld refusals, %lld skipped\n",
         (unsigned long long)n, (unsigned long long)seed, (long long)passed, (long long)failures,
         (long long)refused, (long long)skipped);
  return failures || (count > 0 && passed == 0) ? 1 : 0;
}
