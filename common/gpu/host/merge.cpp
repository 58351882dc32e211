// SPDX-License-Identifier: Apache-2.0
//
// Launches of the kernels of common/gpu/merge.hpp. A merge of more parts than fit its arguments needs a
// table of pointers in device memory, allocated and freed in stream order: the call has no workspace.
#include "common/gpu/host/merge.h"

#include <stdio.h>
#include <string.h>

#include "common/dropout.h"
#include "common/gpu/host/runtime.h"
#include "common/gpu/merge_arguments.hpp"

namespace tessera {
namespace TSRI_GPU_BACKEND {
namespace {

static_assert(sizeof(gpu::MergeArgs) <= 4096, "kernel parameters that every device takes");
static_assert(sizeof(gpu::MergeTableArgs) <= 4096, "kernel parameters that every device takes");

// Blocks walk over the work in strides, so a bounded number does for any of it.
constexpr int64_t kBlocks = 1 << 16;

int64_t blocks_of(int64_t work, int64_t per_block) {
  const int64_t blocks = work / per_block + (work % per_block != 0);
  return blocks < kBlocks ? blocks : kBlocks;
}

template <class Args>
tsr_status launch(int32_t device, const Entry &entry, int64_t blocks, const Args &args,
                  void *stream, tsr_reason *why) {
  const Launch l = {entry.function, blocks, entry.threads, entry.shared_bytes,
                    &args,          sizeof args, stream};
  return runtime_launch(device, l, why);
}

tsr_status fill_table(int32_t device, const void *const *pointers, int64_t count,
                      const void **table, void *stream, tsr_reason *why) {
  tsr_status status = TSR_STATUS_SUCCESS;
  for (int64_t at = 0; at < count && status == TSR_STATUS_SUCCESS; at += gpu::kMergePiece) {
    gpu::MergeTableArgs args;
    memset(&args, 0, sizeof args);
    const int64_t left = count - at;
    args.table = table + at;
    args.count = static_cast<int32_t>(left < gpu::kMergePiece ? left : gpu::kMergePiece);
    memcpy(args.values, pointers + at, static_cast<size_t>(args.count) * sizeof(void *));
    status = launch(device, merge_table_entry, 1, args, stream, why);
  }
  return status;
}

} // namespace

// Every plan asks for it, so what is ready is remembered, of the first 64 devices.
tsr_status merge_prepare(int32_t device, tsr_reason *why) {
  static uint64_t ready = 0;
  const uint64_t bit = device < 64 ? uint64_t{1} << device : 0;
  if (__atomic_load_n(&ready, __ATOMIC_RELAXED) & bit) return TSR_STATUS_SUCCESS;
  const Entry *const entries[] = {&merge_entry, &merge_table_entry, &keep_mask_entry};
  for (const Entry *entry : entries) {
    const tsr_status status = runtime_prepare(device, entry->function, entry->shared_bytes, why);
    if (status != TSR_STATUS_SUCCESS) {
      const tsr_reason cause = *why;
      snprintf(why->text, sizeof why->text, "code of merges: %.200s", cause.text);
      return status;
    }
  }
  __atomic_fetch_or(&ready, bit, __ATOMIC_RELAXED);
  return TSR_STATUS_SUCCESS;
}

tsr_status merge_launch(int32_t device, const tsr_merge_problem &problem,
                        const void *const *o_parts, const float *const *lse_parts, void *o,
                        float *lse, void *stream, tsr_reason *why) {
  const int64_t parts = problem.parts, rows = problem.batch * problem.heads * problem.seq;
  // A row is a wave's; with waves of 64 half of the blocks find no row, which costs nothing to speak of.
  const int64_t blocks = blocks_of(rows, gpu::kMergeThreads / 32);
  gpu::MergeArgs args;
  void *table = nullptr;
  if (blocks == 0) return TSR_STATUS_SUCCESS;
  memset(&args, 0, sizeof args);
  args.p = problem;
  args.o = o;
  args.lse = lse;
  if (parts <= gpu::kMergeParts) {
    memcpy(args.o_parts, o_parts, static_cast<size_t>(parts) * sizeof(void *));
    memcpy(args.lse_parts, lse_parts, static_cast<size_t>(parts) * sizeof(void *));
    return launch(device, merge_entry, blocks, args, stream, why);
  }
  tsr_status status = runtime_allocate(device, static_cast<size_t>(2 * parts) * sizeof(void *),
                                       stream, &table, why);
  if (status == TSR_STATUS_INVALID_ARGUMENT)
    snprintf(why->text, sizeof why->text,
             "parts: found %lld inside a stream capture, accepted up to %d there",
             static_cast<long long>(parts), gpu::kMergeParts);
  if (status != TSR_STATUS_SUCCESS) return status;
  const void **pointers = static_cast<const void **>(table);
  args.table = pointers;
  status = fill_table(device, o_parts, parts, pointers, stream, why);
  if (status == TSR_STATUS_SUCCESS)
    status = fill_table(device, reinterpret_cast<const void *const *>(lse_parts), parts,
                        pointers + parts, stream, why);
  if (status == TSR_STATUS_SUCCESS)
    status = launch(device, merge_entry, blocks, args, stream, why);
  runtime_release(device, table, stream);
  return status;
}

tsr_status keep_mask_launch(int32_t device, const tsr_dropout_problem &problem, uint8_t *mask,
                            void *stream, tsr_reason *why) {
  const int64_t quads = (problem.seq_k + 3) / 4;
  const int64_t blocks =
      blocks_of(problem.batch * problem.heads * problem.seq_q * quads, gpu::kMergeThreads);
  gpu::KeepMaskArgs args;
  if (blocks == 0) return TSR_STATUS_SUCCESS;
  memset(&args, 0, sizeof args);
  args.p = problem;
  args.threshold = tsri_dropout_threshold(problem.dropout);
  args.mask = mask;
  return launch(device, keep_mask_entry, blocks, args, stream, why);
}

} // namespace TSRI_GPU_BACKEND
} // namespace tessera
