// SPDX-License-Identifier: Apache-2.0
//
// A user's C++ program: makes a context and a plan, prints what was chosen. Shows that the header and
// its initialisers work from C++ and that the package links there.
#include <cstdio>
#include <tessera/tessera.h>

int main() {
  tsr_context *context = nullptr;
  tsr_status status = tsr_context_create(&context, nullptr);
  if (status != TSR_STATUS_SUCCESS) {
    std::printf("%s: %s\n", tsr_status_string(status), tsr_last_message());
    return 1;
  }
  tsr_problem problem = TSR_PROBLEM_INIT;
  problem.batch = 1;
  problem.heads_q = problem.heads_kv = 2;
  problem.seq_q = problem.seq_k = 128;
  problem.dim_qk = 64;
  problem.q.dtype = problem.k.dtype = problem.v.dtype = problem.o.dtype = TSR_DTYPE_F32;
  tsr_plan *plan = nullptr;
  status = tsr_plan_create(&plan, context, tsr_device(), &problem);
  tsr_plan_info info = TSR_PLAN_INFO_INIT;
  if (status == TSR_STATUS_SUCCESS) status = tsr_plan_describe(plan, TSR_PASS_FORWARD, &info);
  if (status == TSR_STATUS_SUCCESS) {
    std::printf("plan: %s of backend %s\n", info.kernel, info.backend);
  } else {
    std::printf("%s: %s\n", tsr_status_string(status), tsr_last_message());
  }
  tsr_plan_destroy(plan);
  tsr_context_destroy(context);
  return status != TSR_STATUS_SUCCESS;
}
