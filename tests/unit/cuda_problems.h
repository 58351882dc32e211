// SPDX-License-Identifier: Apache-2.0
//
// What the tests of the CUDA backend's selection share: devices by their facts, problems as backends see
// them, and the choice among rows that the dispatcher would make.
#ifndef TESSERA_TESTS_UNIT_CUDA_PROBLEMS_H_
#define TESSERA_TESTS_UNIT_CUDA_PROBLEMS_H_

#include <criterion/criterion.h>

#include <cmath>
#include <cstdio>
#include <cstring>
#include <string>

#include "common/gpu/host/cost.h"
#include "common/gpu/host/select.h"
extern "C" {
#include "api/src/validate.h"
}

namespace cuda_problems {

using tessera::cuda::Choice;
using tessera::cuda::DeviceFacts;
using tessera::cuda::Family;
using tessera::cuda::Row;

inline DeviceFacts facts_of(const char *name, int arch, int processors, int64_t shared_kib, double clock,
                     double bandwidth, int64_t l2_mib) {
  DeviceFacts f = {};
  std::snprintf(f.name, sizeof f.name, "%s", name);
  f.arch = arch;
  f.processors = processors;
  f.shared_per_block = (shared_kib - 1) << 10;
  f.shared_per_processor = shared_kib << 10;
  f.registers_per_processor = 65536;
  f.l2_bytes = l2_mib << 20;
  f.memory_bytes = int64_t{40} << 30;
  f.clock = clock;
  f.bandwidth = bandwidth;
  return f;
}

inline const DeviceFacts kDevices[] = {
    facts_of("H200", 90, 132, 228, 1.98e9, 4.8e12, 60),
    facts_of("A100", 80, 108, 164, 1.41e9, 1.6e12, 40),
    facts_of("RTX 4090", 89, 128, 100, 2.5e9, 1.0e12, 72),
    facts_of("B200", 100, 148, 228, 1.85e9, 8.0e12, 126),
};
inline const DeviceFacts &h200 = kDevices[0];

inline tsr_layout layout_of(tsr_dtype dtype, int64_t alignment) {
  tsr_layout l = {};
  l.dtype = dtype;
  l.alignment = alignment;
  return l;
}

inline tsr_problem problem_of(int64_t batch, int64_t heads_q, int64_t heads_kv, int64_t sq, int64_t sk,
                       int64_t dim_qk, int64_t dim_v, tsr_dtype dtype = TSR_DTYPE_BF16,
                       int64_t alignment = 16) {
  tsr_problem p = TSR_PROBLEM_INIT;
  p.batch = batch, p.heads_q = heads_q, p.heads_kv = heads_kv;
  p.seq_q = sq, p.seq_k = sk, p.dim_qk = dim_qk, p.dim_v = dim_v;
  p.q = p.k = p.v = p.o = layout_of(dtype, alignment);
  return p;
}

inline tsr_resolved resolve(const tsr_problem &p, tsr_pass pass = TSR_PASS_FORWARD) {
  tsr_problem valid;
  tsr_resolved r;
  const tsr_status status = tsri_validate_problem(&p, &valid);
  cr_assert_eq(status, TSR_STATUS_SUCCESS, "%s", tsr_last_message());
  tsri_resolve_pass(&valid, tsr_device{TSR_DEVICE_CUDA, 0}, pass, &r);
  return r;
}

struct Winner {
  const Row *row = nullptr;
  Choice choice = {};
  std::string refusals;
};

// What the dispatcher would do among the rows of a pass.
inline Winner select(const DeviceFacts &facts, const tsr_problem &p, tsr_pass pass = TSR_PASS_FORWARD) {
  const tsr_resolved r = resolve(p, pass);
  Winner w;
  const Row *row;
  for (int32_t i = 0; (row = tessera::cuda::row_at(i)) != nullptr; ++i) {
    Choice choice;
    tsr_reason why = {};
    if (row->pass != pass) continue;
    if (!tessera::cuda::select_row(facts, *row, r, &choice, &why)) {
      cr_expect_neq(why.text[0], '\0', "%s refuses without a reason", row->name);
      w.refusals += std::string(row->name) + ": " + why.text + "\n";
      continue;
    }
    const double seconds = choice.estimate.seconds;
    cr_expect(seconds >= 0 && std::isfinite(seconds), "%s: %g s", row->name, seconds);
    if (w.row && seconds >= w.choice.estimate.seconds) continue;
    w.row = row;
    w.choice = choice;
  }
  return w;
}

inline void expect_refused(const DeviceFacts &facts, const tsr_problem &p, const char *text,
                           tsr_pass pass = TSR_PASS_FORWARD) {
  const Winner w = select(facts, p, pass);
  cr_expect_null(w.row, "%s takes it", w.row ? w.row->name : "");
  cr_expect(w.refusals.find(text) != std::string::npos, "no '%s' in\n%s", text,
            w.refusals.c_str());
}

inline void expect_row(const DeviceFacts &facts, const tsr_problem &p, const char *part,
                       tsr_pass pass = TSR_PASS_FORWARD) {
  const Winner w = select(facts, p, pass);
  cr_assert_not_null(w.row, "%s", w.refusals.c_str());
  cr_expect(std::strstr(w.row->name, part) != nullptr, "%s on %s, wanted %s", w.row->name,
            facts.name, part);
}

} // namespace cuda_problems

#endif // TESSERA_TESTS_UNIT_CUDA_PROBLEMS_H_
