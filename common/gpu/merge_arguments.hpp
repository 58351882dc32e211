// SPDX-License-Identifier: Apache-2.0
//
// What the kernels of merge.hpp receive. Pointers of a few parts travel with the arguments; those of
// many are first written to a table in device memory, piece by piece, by a kernel of their own.
#ifndef TESSERA_COMMON_GPU_MERGE_ARGUMENTS_HPP_
#define TESSERA_COMMON_GPU_MERGE_ARGUMENTS_HPP_

#include <stdint.h>

#include "tessera/tessera.h"

namespace tessera {
namespace gpu {

constexpr int kMergeThreads = 128;
constexpr int kMergeParts = 200;  // that fit the arguments
constexpr int kMergePiece = 480; // pointers of one MergeTable launch

struct MergeArgs {
  tsr_merge_problem p; // resolved
  const void *const *table; // NULL, or pointers of all O, then of all LSE
  void *o;
  float *lse; // NULL: not wanted
  const void *o_parts[kMergeParts];
  const float *lse_parts[kMergeParts];
};

struct MergeTableArgs {
  const void **table; // where the piece goes
  int32_t count;
  const void *values[kMergePiece];
};

struct KeepMaskArgs {
  tsr_dropout_problem p; // resolved
  uint64_t threshold;
  uint8_t *mask;
};

} // namespace gpu
} // namespace tessera

#endif // TESSERA_COMMON_GPU_MERGE_ARGUMENTS_HPP_
