// SPDX-License-Identifier: Apache-2.0
//
// Every row of cases.def on every backend, forward and backward in one plan: dQ, dK, dV, dBias and
// dSink against the accuracy contract. Backends without a backward pass refuse; coverage.def says who
// may.
#include <criterion/criterion.h>
#include <criterion/parameterized.h>

#include <string.h>

#include "conformance.h"

/* Whether a row of the group has a backward pass: caches of 8 bits have none. */
static bool has_backward(const char *group) {
  int32_t i;
  for (i = 0; i < tsr_case_count(); ++i)
    if (strcmp(tsr_case_at(i)->group, group) == 0 && !tsr_case_at(i)->forward_only) return true;
  return false;
}

ParameterizedTestParameters(backward, every_case) {
  static int32_t groups[64];
  int32_t i, count = 0;
  for (i = 0; i < tsr_check_group_count() && count < 64; ++i)
    if (has_backward(tsr_check_group_name(i))) groups[count++] = i;
  return cr_make_param_array(int32_t, groups, (size_t)count);
}

ParameterizedTest(int32_t *group, backward, every_case) {
  tsr_check_options options = {0};
  options.kernel = conform_kernels();
  options.passes = TSR_PASS_FORWARD | TSR_PASS_BACKWARD;
  cr_assert_eq(conform_group(&options, tsr_check_group_name(*group)), 0);
}
