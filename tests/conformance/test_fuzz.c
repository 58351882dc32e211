// SPDX-License-Identifier: Apache-2.0
//
// Random problems over all features, on every backend against the reference, forward and backward in
// turn. Problem n has seed TSR_FUZZ_SEED + n (default 1); TSR_FUZZ_COUNT says how many (default 300).
// A failure is shrunk and printed as a row for cases.def with the command that repeats it.
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "conformance.h"
#include "fuzz_row.h"

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

static verdict run(const fuzz_row *row, bool backward) {
  verdict v = {0};
  tsr_check_options options = {0};
  char message[512] = "";
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
} target;

static bool same_failure(void *state, const fuzz_row *row) {
  const target *t = (const target *)state;
  verdict v = run(row, t->backward);
  return strcmp(v.kind, t->kind) == 0;
}

static void report(uint64_t seed, const verdict *v, const fuzz_row *found, bool backward) {
  char text[2048];
  fuzz_row row;
  target t = {v->kind, backward};
  fuzz_row_copy(&row, found);
  fuzz_row_print(&row, text, sizeof text);
  printf("%s\n  found:   %s\n", v->text, text);
  fuzz_row_shrink(&row, same_failure, &t);
  fuzz_row_print(&row, text, sizeof text);
  printf("  repeat:  TSR_FUZZ_SEED=%llu TSR_FUZZ_COUNT=1\n  smallest (%s): %s\n",
         (unsigned long long)seed, backward ? "backward" : "forward", text);
  verdict again = run(&row, backward);
  printf("  there:   %s\n", again.text);
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
    int pass;
    if (n % 25 == 0) printf("seed %llu\n", (unsigned long long)(seed + n));
    fflush(stdout); /* a crash leaves the neighbourhood of its seed */
    fuzz_row_make(&row, seed + n);
    for (pass = 0; pass < 2; ++pass) {
      verdict v;
      if (pass == 1 && (row.row.forward_only || (seed + n) % 2)) continue;
      v = run(&row, pass == 1);
      passed += v.count.passed, refused += v.count.refused, skipped += v.count.skipped;
      failures += v.count.failed > 0;
      if (v.count.failed > 0) report(seed + n, &v, &row, pass == 1);
    }
    if (failures >= 10) break; /* enough to look at */
  }
  printf("%llu problems from seed %llu: %lld outputs right, %lld failures, %lld refusals, %lld skipped\n",
         (unsigned long long)n, (unsigned long long)seed, (long long)passed, (long long)failures,
         (long long)refused, (long long)skipped);
  return failures || (count > 0 && passed == 0) ? 1 : 0;
}
