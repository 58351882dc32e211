// SPDX-License-Identifier: Apache-2.0
//
// Every row of cases.def on every backend, forward, against the accuracy contract: with the kernel that
// dispatch chooses and with every other by name; some groups again on every instruction set.
#include <criterion/criterion.h>
#include <criterion/parameterized.h>
#include <stdio.h>

#include "conformance.h"

ParameterizedTestParameters(forward, every_case) {
  static int32_t groups[64];
  int32_t i, count = tsr_check_group_count();
  for (i = 0; i < count && i < 64; ++i) groups[i] = i;
  return cr_make_param_array(int32_t, groups, (size_t)count);
}

ParameterizedTest(int32_t *group, forward, every_case) {
  tsr_check_options options = {0};
  options.kernel = conform_kernels();
  cr_assert_eq(conform_group(&options, tsr_check_group_name(*group)), 0);
}

/* The instruction sets that this machine can run beside its best one. */
Test(forward, every_cpu_target) {
  static const char *const targets[] = {"AVX3_ZEN4", "AVX3_DL", "AVX3", "AVX2",     "SSE4",  "SSSE3",
                                        "SCALAR",    "EMU128",  "NEON", "SVE2_128", "SVE2",  "SVE_256",
                                        "SVE"};
  static const char *const groups[] = {"basic", "causal", "softcap", "dropout", "paged", "nan"};
  int64_t failures = 0;
  size_t t, g;
  for (t = 0; t < sizeof targets / sizeof targets[0]; ++t) {
    tsr_context_options made = TSR_CONTEXT_OPTIONS_INIT;
    tsr_check_options options = {0};
    made.cpu_target = targets[t];
    if (tsr_context_create(&options.context, &made) != TSR_STATUS_SUCCESS) continue;
    options.backend = "cpu";
    if (tsr_backends_list(options.context, "cpu", NULL, 0) > 0) {
      printf("%s\n", targets[t]);
      for (g = 0; g < sizeof groups / sizeof groups[0]; ++g)
        failures += conform_group(&options, groups[g]);
    }
    tsr_context_destroy(options.context);
  }
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
