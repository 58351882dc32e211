// SPDX-License-Identifier: Apache-2.0
//
// The table of kernel rows, and the handles of kernels that no row owns. Threads and shared memory are read off
// the types that the device code is made of, here compiled as they are for the emulator, without any code.
#include "backends/hip/objects.h"
#include "backends/hip/programs.hpp"
#include "common/gpu/backward_rows.hpp"
#include "common/gpu/host/backward_plan.h"
#include "common/gpu/host/kernels.h"
#include "common/gpu/host/merge.h"
#include "common/gpu/merge.hpp"

namespace tessera {
namespace hip {
namespace {

// Shared memory that a block may ask for on all of these devices.
constexpr uint32_t kMostShared = 65536;

template <class Program>
constexpr Entry entry_of(const Function &function) {
  static_assert(Program::kSharedBytes <= kMostShared, "shared memory of a block");
  return Entry{&function, Program::kThreads, Program::kSharedBytes};
}

template <class Program>
constexpr Row forward_row(const char *name, Family family, tsr_dtype dtype, int dim_qk, int dim_v, Mask mask,
                          Arch arch, int stages, const Function &function) {
  return Row{name,
             TSR_PASS_FORWARD,
             family,
             dtype,
             dim_qk,
             dim_v,
             mask == any,
             family == Family::kSplit || mask != edge,
             arch,
             Program::kTileQ,
             Program::kTileK,
             stages,
             {entry_of<Program>(function)},
             {}};
}

template <class Program, Mask mask>
constexpr Row backward_row(const char *name, tsr_dtype dtype, int dim_qk, int dim_v, Arch arch, int stages,
                           const Function (&function)[kEntryCount]) {
  using Main = typename Program::Main;
  using Dq = typename Program::Dq;
  Row row = {name,
             TSR_PASS_BACKWARD,
             Family::kBackward,
             dtype,
             dim_qk,
             dim_v,
             mask == any,
             1,
             arch,
             Main::kTileQ,
             Main::kTileK,
             stages,
             {entry_of<Main>(function[kEntryMain]), entry_of<typename Program::Stats>(function[kEntryStats]),
              entry_of<Dq>(function[kEntryDq])},
             {Program::kColumnsQk, Program::kColumnsV, Dq::kTileQ, Dq::kTileK, Program::kDqColumns}};
  if constexpr (mask == any) row.entry[kEntryBias] = entry_of<typename Program::Bias>(function[kEntryBias]);
  return row;
}

#define TSRI_FORWARD_NAME(dtype, tier, mask, arch, q, k) fwd_##dtype##_##tier##_##mask##__##arch##_##q##x##k
#define TSRI_SPLIT_NAME(dtype, tier, mask, arch, q, k) fwd_##dtype##_##tier##_##mask##__##arch##_split_##q##x##k
#define TSRI_BACKWARD_NAME(dtype, tier, mask, arch, q, k) bwd_##dtype##_##tier##_##mask##__##arch##_##q##x##k
#define TSRI_ONE(name) TSRI_ONE_OF(name)
#define TSRI_ONE_OF(name) const Function function_##name = {#name, "tsri_hip_" #name, {nullptr}};
#define TSRI_FOUR(name) TSRI_FOUR_OF(name)
#define TSRI_FOUR_OF(name)                                                                                 \
  const Function function_##name[kEntryCount] = {{#name, "tsri_hip_" #name, {nullptr}},                    \
                                                 {#name, "tsri_hip_" #name "_stats", {nullptr}},           \
                                                 {#name, "tsri_hip_" #name "_dq", {nullptr}},              \
                                                 {#name, "tsri_hip_" #name "_bias", {nullptr}}};
#define TSRI_NAMED(name) TSRI_NAMED_OF(name)
#define TSRI_NAMED_OF(name) #name
#define TSRI_FUNCTION(name) TSRI_FUNCTION_OF(name)
#define TSRI_FUNCTION_OF(name) function_##name

#define TSRI_HIP_FORWARD(dtype, DTYPE, tier, dim_qk, dim_v, mask, arch, side, q, k, ...) \
  TSRI_ONE(TSRI_FORWARD_NAME(dtype, tier, mask, arch, q, k))
#define TSRI_HIP_SPLIT(dtype, DTYPE, tier, dim_qk, dim_v, mask, arch, side, q, k, ...) \
  TSRI_ONE(TSRI_SPLIT_NAME(dtype, tier, mask, arch, q, k))
#define TSRI_HIP_BACKWARD(dtype, DTYPE, tier, dim_qk, dim_v, mask, arch, side, q, k, ...) \
  TSRI_FOUR(TSRI_BACKWARD_NAME(dtype, tier, mask, arch, q, k))
#include "backends/hip/kernels.def"

const Row rows[] = {
#define TSRI_HIP_FORWARD(dtype, DTYPE, tier, dim_qk, dim_v, mask, arch, side, q, k, waves, stages)          \
  forward_row<ForwardOf<dtype, dim_qk, dim_v, mask, arch, side, q, k, waves, stages>>(                      \
      TSRI_NAMED(TSRI_FORWARD_NAME(dtype, tier, mask, arch, q, k)), Family::kForward, TSR_DTYPE_##DTYPE,    \
      dim_qk, dim_v, mask, arch, stages, TSRI_FUNCTION(TSRI_FORWARD_NAME(dtype, tier, mask, arch, q, k))),
#define TSRI_HIP_SPLIT(dtype, DTYPE, tier, dim_qk, dim_v, mask, arch, side, q, k, waves, stages)            \
  forward_row<SplitOf<dtype, dim_qk, dim_v, mask, arch, side, q, k, waves, stages>>(                        \
      TSRI_NAMED(TSRI_SPLIT_NAME(dtype, tier, mask, arch, q, k)), Family::kSplit, TSR_DTYPE_##DTYPE,        \
      dim_qk, dim_v, mask, arch, stages, TSRI_FUNCTION(TSRI_SPLIT_NAME(dtype, tier, mask, arch, q, k))),
#define TSRI_HIP_BACKWARD(dtype, DTYPE, tier, dim_qk, dim_v, mask, arch, side, q, k, chunk_qk, chunk_v,     \
                          key_waves, other_waves, query_waves, stages, ...)                                 \
  backward_row<BackwardOf<dtype, dim_qk, dim_v, mask, arch, side, q, k, chunk_qk, chunk_v, key_waves,       \
                          other_waves, query_waves, stages, __VA_ARGS__>,                                   \
               mask>(TSRI_NAMED(TSRI_BACKWARD_NAME(dtype, tier, mask, arch, q, k)), TSR_DTYPE_##DTYPE,      \
                     dim_qk, dim_v, arch, stages,                                                           \
                     TSRI_FUNCTION(TSRI_BACKWARD_NAME(dtype, tier, mask, arch, q, k))),
#include "backends/hip/kernels.def"
};

const Function merge_functions[] = {{"merge", "tsri_hip_merge", {nullptr}},
                                    {"merge", "tsri_hip_merge_table", {nullptr}},
                                    {"merge", "tsri_hip_keep_mask", {nullptr}}};
const Function backward_functions[kBackwardPasses] = {
    {"backward_rows", "tsri_hip_backward_convert", {nullptr}},
    {"backward_rows", "tsri_hip_backward_prepare", {nullptr}},
    {"backward_rows", "tsri_hip_backward_finish", {nullptr}},
    {"backward_rows", "tsri_hip_backward_sink", {nullptr}}};

} // namespace

// Threads and shared memory of these do not depend on the width of a wave.
const Entry merge_entry = entry_of<gpu::Merge<64>>(merge_functions[0]);
const Entry merge_table_entry = entry_of<gpu::MergeTable>(merge_functions[1]);
const Entry keep_mask_entry = entry_of<gpu::KeepMask>(merge_functions[2]);
const Entry backward_entries[kBackwardPasses] = {
    entry_of<gpu::BackwardConvert<64>>(backward_functions[kPassConvert]),
    entry_of<gpu::BackwardPrepare<64, false>>(backward_functions[kPassPrepare]),
    entry_of<gpu::BackwardFinish<64>>(backward_functions[kPassFinish]),
    entry_of<gpu::BackwardSink<64>>(backward_functions[kPassSink])};

const Row *row_at(int32_t index) {
  constexpr int32_t kCount = static_cast<int32_t>(sizeof rows / sizeof rows[0]);
  return index >= 0 && index < kCount ? &rows[index] : nullptr;
}

} // namespace hip
} // namespace tessera
