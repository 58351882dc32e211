// SPDX-License-Identifier: Apache-2.0
//
// Tile programs compiled for AMD GPUs, executed instruction by instruction and compared with the
// double-precision oracle: every code object named on the command line, waves of a block in both orders.
// What is under test is what would run on a device: the compiled matrix instructions with their layouts,
// lanes that are off, LDS, barriers and waits, and that nothing outside of the tensors is touched.
//   test_programs <code object>...
#include "program_run.h"

int main(int count, char **names) {
  using namespace tessera::gpu;
  int64_t checks = 0, failures = 0;
  uint64_t instructions = 0;
  for (int n = 1; n < count; ++n) {
    Code code;
    const std::string why = code.read(names[n]);
    if (!why.empty()) {
      printf("FAILED: %s\n", why.c_str());
      ++failures;
      continue;
    }
    auto try_case = [&](const Case &c, bool backwards) {
      const Verdict v = run_case(code, c, backwards, as_it_is);
      ++checks;
      instructions += v.counts.instructions;
      if (v.wrong.empty()) return;
      ++failures;
      printf("FAILED: %s: %s%s: %s\n", code.name.c_str(), c.name, backwards ? ", backwards" : "", v.wrong.c_str());
    };
    for (const bool backwards : {false, true}) {
      for (const Case &c : kEdgeCases)
        if (!code.any) try_case(c, backwards);
      for (const Case &c : kAnyCases)
        if (code.any) try_case(c, backwards);
    }
  }
  printf("test_programs: %lld cases, %lld failures, %llu instructions\n", static_cast<long long>(checks),
         static_cast<long long>(failures), static_cast<unsigned long long>(instructions));
  return failures != 0 || checks == 0;
}
