// SPDX-License-Identifier: Apache-2.0
//
// dK and dV of compute capability 9.0 for heads too wide for backward.hpp: a block owns 64 keys, and its two
// warpgroups share the products instead of the keys:
//
//   first    S^T = K Q^T      P = 2^(unit S - LSE2)    dV += P^T dO
//   second   dP^T = V dO^T    dS = P (dP - delta)      dK += dS^T Q
//
// P goes from thread to thread of the same place in both, through shared memory and as floats, so that dS is
// what one warpgroup alone would make. In each the scores of a tile are made while the sums of the tile before
// are. dQ is made by backward_query.hpp. Interval masks without a prefix on aligned tensors without pages.
#ifndef TESSERA_BACKENDS_CUDA_SM90_BACKWARD_PAIR_HPP_
#define TESSERA_BACKENDS_CUDA_SM90_BACKWARD_PAIR_HPP_

#include "backends/cuda/sm90/backward_keys.hpp"

namespace tessera {
namespace gpu {

template <class E, int kTileQ_, int kDqk, int kDv>
struct EngineBackwardPair {
  using U = MmaSync<E>;
  using Acc = typename U::Acc;
  using Args = EngineBackwardArgs;
  static constexpr int kTileQ = kTileQ_, kTileK = 64;
  static constexpr int kGroups = 2; // warpgroups that multiply
  static constexpr int kThreads = (kGroups + 1) * kWarpgroup;
  static constexpr int kMinBlocks = 1;
  static constexpr int kStages = 2; // of queries, dO, their rows' numbers, and P
  static constexpr int kCon = kTileQ / 16;

  // Pieces of 64 columns, see instructions.hpp.
  static constexpr uint32_t kPieceK = kTileK * 128, kPieceQ = kTileQ * 128;
  static constexpr uint32_t kBytesK = ceil_div(kDqk, 64) * kPieceK, kBytesV = ceil_div(kDv, 64) * kPieceK;
  static constexpr uint32_t kBytesQ = ceil_div(kDqk, 64) * kPieceQ, kBytesO = ceil_div(kDv, 64) * kPieceQ;
  static constexpr uint32_t kBytesP = kTileK * kTileQ * 4;

  // Barriers; Q and dO are each read by both warpgroups.
  static constexpr uint32_t kFullK = 0, kFullV = 8;
  static constexpr uint32_t kFullQ = 16, kFullO = kFullQ + 8 * kStages, kFullStats = kFullO + 8 * kStages;
  static constexpr uint32_t kEmpty = kFullStats + 8 * kStages;
  static constexpr uint32_t kFullP = kEmpty + 8 * kStages, kEmptyP = kFullP + 8 * kStages;
  static constexpr uint32_t kWork = kEmptyP + 8 * kStages;
  using Stats = KeyStats<kTileQ, 1>;
  static constexpr uint32_t kStats = ceil_div(kWork + sizeof(KeyWork), 16) * 16;
  static constexpr uint32_t kK = ceil_div(kStats + kStages * Stats::kBytes, 1024) * 1024;
  static constexpr uint32_t kV = kK + kBytesK;
  static constexpr uint32_t kQ = kV + kBytesV;
  static constexpr uint32_t kO = kQ + kStages * kBytesQ;
  static constexpr uint32_t kP = kO + kStages * kBytesO;
  static constexpr uint32_t kSharedBytes = kP + kStages * kBytesP;
  static_assert(kSharedBytes <= kMostShared, "what a block can have");
  static constexpr int kGroupBarrier = 1; // named barriers, one a warpgroup

  using Scores = Acc[kCon];
  using Operand = uint32_t[kCon][4];
};

} // namespace gpu
} // namespace tessera

#endif // TESSERA_BACKENDS_CUDA_SM90_BACKWARD_PAIR_HPP_
