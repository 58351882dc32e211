// SPDX-License-Identifier: Apache-2.0
//
// Two row operations, per Highway target: the merge of partial results by their LSE (the
// recurrence's own merge), and a row of dropout's keep mask as a tensor. backend.c runs them over
// all rows.
#include "kernels.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "backends/cpu/merge_simd.cc"
#include "hwy/foreach_target.h"
// After foreach_target.h, which includes this file once per target.
#include "hwy/highway.h"

#include "common/dropout.h"
#include "convert-inl.h"
#include "row_policy-inl.h"

HWY_BEFORE_NAMESPACE();
namespace tessera {
namespace HWY_NAMESPACE {

int32_t lane_count() {
  return static_cast<int32_t>(hn::Lanes(DF()));
}

// Row `index` of [B, H, S]: O = sum w_t O_t / sum w_t with w_t = exp(LSE_t - largest). Done in
// pieces of the head dim so that the result may overwrite a part; LSE is written last for the same
// reason.
void merge(const tsri_cpu_merge *job, int64_t index) {
  constexpr size_t kPiece = 128;
  const tsr_merge_problem &p = *job->problem;
  const DF d;
  const size_t lanes = hn::Lanes(d);
  const int64_t i = index % p.seq, h = index / p.seq % p.heads, b = index / p.seq / p.heads;
  const auto at = [b, h, i](const tsr_layout &t) {
    return b * t.stride[0] + h * t.stride[1] + i * t.stride[2];
  };
  const int64_t lse_at = at(p.lse_part), o_at = at(p.o_part), out_at = at(p.o);
  float largest = -__builtin_inff();
  for (int64_t t = 0; t < p.parts; ++t) {
    const float lse = job->lse_parts[t][lse_at];
    if (lse > largest || lse != lse) largest = lse;
  }
  const VF top = hn::Set(d, largest);
  VF weights = hn::Zero(d);
  for (int64_t t = 0; t < p.parts; ++t)
    weights = hn::Add(weights, Recurrence::weight(hn::Set(d, job->lse_parts[t][lse_at]), top));
  const VF inverse = Recurrence::inverse_sum(weights);

  HWY_ALIGN_MAX float sum[kPiece + HWY_MAX_BYTES / sizeof(float)];
  HWY_ALIGN_MAX float part[kPiece + HWY_MAX_BYTES / sizeof(float)];
  for (int64_t x = 0; x < p.dim_v; x += static_cast<int64_t>(kPiece)) {
    const size_t n = static_cast<size_t>(HWY_MIN(p.dim_v - x, static_cast<int64_t>(kPiece)));
    for (size_t c = 0; c < n; c += lanes) hn::Store(hn::Zero(d), d, sum + c);
    for (int64_t t = 0; t < p.parts; ++t) {
      const VF w = Recurrence::weight(hn::Set(d, job->lse_parts[t][lse_at]), top);
      // An empty part's O may hold anything: it is not read into the sum.
      if (job->lse_parts[t][lse_at] == -__builtin_inff()) continue;
      const int64_t step = p.o_part.stride[3];
      load_row_any(p.o_part.dtype, job->o_parts[t], o_at + x * step, step, n, part);
      for (size_t c = 0; c < n; c += lanes)
        hn::Store(hn::MulAdd(w, hn::Load(d, part + c), hn::Load(d, sum + c)), d, sum + c);
    }
    for (size_t c = 0; c < n; c += lanes)
      hn::Store(hn::Mul(hn::Load(d, sum + c), inverse), d, sum + c);
    store_row_any(p.o.dtype, sum, n, job->o, out_at + x * p.o.stride[3], p.o.stride[3]);
  }
  if (job->lse) job->lse[at(p.lse)] = hn::GetLane(Recurrence::merged_lse(top, weights));
}

// Row `index` of [B, Hq, Sq] of the keep mask.
void keep(const tsri_cpu_keep *job, int64_t index) {
  const tsr_dropout_problem &p = *job->problem;
  const int64_t i = index % p.seq_q, head = index / p.seq_q;
  const int64_t *stride = p.mask.stride;
  uint8_t *row =
      job->mask + head / p.heads * stride[0] + head % p.heads * stride[1] + i * stride[2];
  for (int64_t j = 0; j < p.seq_k; j += 4) {
    const tsri_philox words = tsri_dropout_words(job->key, head, i, j >> 2);
    for (int64_t t = 0; t < 4 && j + t < p.seq_k; ++t)
      row[(j + t) * stride[3]] = words.w[t] >= job->threshold;
  }
}

// NOLINTNEXTLINE(google-readability-namespace-comments)
}  // namespace HWY_NAMESPACE
}  // namespace tessera
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
  #include <string.h>
  #include <strings.h>

  #include "targets.h"

namespace tessera {
HWY_EXPORT(lane_count);
HWY_EXPORT(merge);
HWY_EXPORT(keep);
}  // namespace tessera

void tsri_cpu_merge_install(int64_t target, tsri_cpu_kernels *kernels) {
  kernels->lanes = TSRI_CPU_FUNCTION(tessera, lane_count, target)();
  kernels->merge = TSRI_CPU_FUNCTION(tessera, merge, target);
  kernels->keep = TSRI_CPU_FUNCTION(tessera, keep, target);
}

int tsri_cpu_kernels_at(int32_t index, tsri_cpu_kernels *kernels) {
  int64_t targets = hwy::SupportedTargets() & HWY_TARGETS;
  for (; index > 0 && targets != 0; --index) targets &= targets - 1;
  if (index < 0 || targets == 0) return 0;
  const int64_t target = targets & -targets;  // lower bits are better
  memset(kernels, 0, sizeof *kernels);
  kernels->target = hwy::TargetName(target);
  kernels->fused = (target & (HWY_SSSE3 | HWY_SSE4)) == 0;
  tsri_cpu_forward_install(target, kernels);
  tsri_cpu_backward_install(target, kernels);
  tsri_cpu_amx_forward_install(target, kernels);
  tsri_cpu_amx_backward_install(target, kernels);
  tsri_cpu_split_install(target, kernels);
  tsri_cpu_merge_install(target, kernels);
  return 1;
}

int tsri_cpu_kernels_find(const char *target, tsri_cpu_kernels *kernels) {
  if (!target) return tsri_cpu_kernels_at(0, kernels);
  for (int32_t i = 0; tsri_cpu_kernels_at(i, kernels); ++i)
    if (strcasecmp(kernels->target, target) == 0) return 1;
  return 0;
}
#endif
