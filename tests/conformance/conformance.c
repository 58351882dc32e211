// SPDX-License-Identifier: Apache-2.0
//
// See conformance.h. Output goes to stdout, which the test runner shows on failure.
#include "conformance.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/support/compare.h"

bool conform_required(const char *backend, tsr_pass pass, const char *group, tsr_dtype dtype) {
  static const struct {
    const char *backend;
    tsr_pass pass;
    const char *group;
    uint32_t dtypes;
  } rows[] = {
#define TSR_COVER(backend, pass, group, dtypes) {backend, pass, group, dtypes},
#include "coverage.def"
#undef TSR_COVER
  };
  size_t i;
  for (i = 0; i < sizeof rows / sizeof rows[0]; ++i) {
    uint32_t dtypes = rows[i].dtypes ? rows[i].dtypes
                                     : (1u << TSR_DTYPE_F32) | (1u << TSR_DTYPE_F16) |
                                           (1u << TSR_DTYPE_BF16);
    if (strcmp(rows[i].backend, backend) == 0 && rows[i].pass == pass &&
        ((strcmp(rows[i].group, "*") == 0 && strcmp(group, "all8") != 0) || strcmp(rows[i].group, group) == 0) &&
        dtypes >> dtype & 1)
      return true;
  }
  return false;
}

void conform_report(void *state, const tsr_check_record *record) {
  conform_count *count = (conform_count *)state;
  char text[1024];
  bool fatal = record->verdict == TSR_VERDICT_FAIL;
  switch (record->verdict) {
    case TSR_VERDICT_PASS:
      count->passed++;
      return;
    case TSR_VERDICT_FAIL:
      count->failed++;
      break;
    case TSR_VERDICT_REFUSED:
      count->refused++;
      fatal = conform_required(record->backend, record->pass, record->group, record->dtype);
      count->failed += fatal;
      break;
    default:
      count->skipped++;
  }
  /* Refusals that are allowed repeat themselves: the first says it all. */
  if (!fatal && record->verdict == TSR_VERDICT_REFUSED && count->refused > 1) return;
  tsr_check_format(record, text, sizeof text);
  printf("%s%s\n", text, fatal && record->verdict == TSR_VERDICT_REFUSED
                             ? " [required by coverage.def]" : "");
  fflush(stdout);
}

static int64_t finish(const char *title, const conform_count *count, bool ok, const char *message) {
  if (!ok) printf("%s: %s\n", title, message);
  printf("%s: %lld outputs right, %lld failures, %lld refusals, %lld skipped\n", title,
         (long long)count->passed, (long long)count->failed, (long long)count->refused,
         (long long)count->skipped);
  /* Rows that were all skipped have shown nothing. */
  const bool idle = count->passed + count->failed + count->refused == 0;
  if (idle) printf("%s: nothing was run\n", title);
  fflush(stdout);
  return count->failed + !ok + idle;
}

int64_t conform_group(const tsr_check_options *given, const char *group) {
  tsr_check_options options = *given;
  conform_count count = {0};
  char message[512] = "no such group";
  int32_t g;
  bool ok = false;
  options.report = conform_report;
  options.user = &count;
  for (g = 0; g < tsr_check_group_count(); ++g)
    if (strcmp(tsr_check_group_name(g), group) == 0)
      ok = tsr_check_group(&options, g, message, sizeof message);
  return finish(group, &count, ok, message);
}

int64_t conform_rows(const tsr_check_options *given, const tsr_case *rows, int32_t rows_count) {
  tsr_check_options options = *given;
  conform_count count = {0};
  char message[512] = "";
  int32_t i;
  bool ok = true;
  options.report = conform_report;
  options.user = &count;
  for (i = 0; ok && i < rows_count; ++i)
    ok = tsr_check_case(&options, &rows[i], message, sizeof message);
  return finish("rows of this test", &count, ok, message);
}

bool conform_run(tsr_context *context, const char *backend, const tsr_inputs *in,
                 const tsr_case *form, uint32_t passes, tsr_results *results, bool *refused) {
  char why[512] = "";
  tsr_setup setup;
  tsr_plan *plan = NULL;
  tsr_status status;
  bool ok = false;
  *refused = false;
  memset(results, 0, sizeof *results);
  if (!tsr_setup_create_on(&setup, tsr_backends_device(context, backend, 0), in, form, in->dtype,
                           passes, why, sizeof why)) {
    printf("%s: %s\n", form->name, why);
    return false;
  }
  status = tsr_backends_plan(&plan, context, &setup, backend, NULL);
  if (status == TSR_STATUS_NOT_SUPPORTED) {
    tsr_pass pass = passes & TSR_PASS_BACKWARD ? TSR_PASS_BACKWARD : TSR_PASS_FORWARD;
    *refused = !conform_required(backend, pass, form->group ? form->group : "*", in->dtype);
  } else if (status == TSR_STATUS_SUCCESS) {
    status = tsr_setup_run(&setup, plan, NULL);
    if (status == TSR_STATUS_SUCCESS) ok = tsr_setup_gather(&setup, results, why, sizeof why);
  }
  if (!ok)
    printf("%s %s %s: %s: %s\n", *refused ? "refused" : "FAIL", backend, form->name,
           tsr_status_string(status), *why ? why : tsr_setup_message(&setup));
  tsr_plan_destroy(plan);
  tsr_setup_destroy(&setup);
  return ok;
}

bool conform_equal(const char *title, const tsr_results *a, const tsr_results *b) {
  int which;
  for (which = 0; which < TSR_OUTPUT_COUNT; ++which) {
    int64_t at = 0;
    if (!a->out[which].x != !b->out[which].x) {
      printf("%s: %s is only on one side\n", title, tsr_output_name((tsr_output)which));
      return false;
    }
    if (!a->out[which].x || tsr_dense_equal(&a->out[which], &b->out[which], &at)) continue;
    printf("%s: %s[%lld] is %.9g and %.9g\n", title, tsr_output_name((tsr_output)which),
           (long long)at, a->out[which].x[at], b->out[which].x[at]);
    return false;
  }
  return true;
}

const char *conform_kernels(void) {
  const char *text = getenv("TSR_TEST_KERNELS");
  return text && strcmp(text, "chosen") == 0 ? NULL : "*";
}
