// SPDX-License-Identifier: Apache-2.0
//
// Every row of cases.def on every backend, forward, against the accuracy contract: once with the
// dispatcher's kernel, once with every kernel by name.
#include <criterion/criterion.h>
#include <criterion/parameterized.h>

#include "conformance.h"

ParameterizedTestParameters(forward, every_case) {
  static int32_t groups[64];
  int32_t i, count = tsr_check_group_count();
  for (i = 0; i < count && i < 64; ++i) groups[i] = i;
  return cr_make_param_array(int32_t, groups, (size_t)count);
}

ParameterizedTest(int32_t *group, forward, every_case) {
  tsr_check_options options = {0};
  cr_assert_eq(conform_group(&options, tsr_check_group_name(*group)), 0);
}

Test(forward, every_kernel) {
  static const char *const groups[] = {"lengths", "headdims", "window", "mask", "varlen",
                                       "paged",   "strides",  "empty"};
  tsr_check_options options = {0};
  int64_t failures = 0;
  size_t i;
  options.kernel = "*";
  for (i = 0; i < sizeof groups / sizeof groups[0]; ++i)
    failures += conform_group(&options, groups[i]);
  cr_assert_eq(failures, 0);
}

static void tally(void *state, const tsr_check_record *record) {
  tsr_check_tally_add((tsr_check_tally *)state, record);
}

/* The check notices a bound that is broken on purpose. */
Test(forward, broken_bound_fails) {
  tsr_check_tally counts = {0};
  tsr_check_options options = {0};
  char message[256];
  options.report = tally;
  options.user = &counts;
  options.bound_scale = 1e-9;
  options.name = "square_64";
  cr_assert(tsr_check_group(&options, 0, message, sizeof message), "%s", message);
  cr_assert_gt(counts.failed, 0);
  cr_assert_gt(counts.worst_ratio, 1);
}
