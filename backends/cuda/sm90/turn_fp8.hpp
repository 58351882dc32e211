// SPDX-License-Identifier: Apache-2.0
//
// V of 8-bit elements for warpgroup products, which contract along rows of shared memory alone: tiles come with
// columns along their rows and are turned, 32 keys x 16 columns at a time, by a transposing load of 16-bit pairs, four
// picks of bytes and a store.
//
// A turned tile is pieces of 128 keys, each kDv rows of 128 bytes with the swizzle of common/gpu/tile.hpp. Inside 32
// keys the order is that in which a lane holds scores: key 8 j + 2 q + e is at place 16 (j / 2) + 4 q + 2 (j % 2) + e,
// so that P goes from accumulators to the next product by conversion alone. Inside 16 columns the even ones come first.
#ifndef TESSERA_BACKENDS_CUDA_SM90_TURN_FP8_HPP_
#define TESSERA_BACKENDS_CUDA_SM90_TURN_FP8_HPP_

#include "backends/cuda/sm80/instructions.hpp"
#include "backends/cuda/sm90/instructions_fp8.hpp"

namespace tessera {
namespace gpu {

template <int kTileK, int kDv, int kTurners> // warps that share a tile
struct TurnFp8 {
  static constexpr int kSteps = kTileK / 32; // of 32 keys
  static constexpr uint32_t kPieceV = kTileK * 128, kPieceT = kDv * 128;
  static constexpr uint32_t kTurnUnits = 2; // see turn; registers are few
  static_assert(kTileK % 32 == 0 && kDv % (16 * kTurnUnits) == 0, "whole units");

  // kTurnUnits times 32 keys x 16 columns side by side, by a warp: all of them are under way together. Of the keys,
  // those from `keys` on are what memory holds beyond the sequence: they become 0, which 0 times something else need
  // not be. from: row `lane` of 32, where the swizzle has moved its first 16 columns; c: number of the first of these.
  template <bool kTail>
  TSRI_DEVICE_MEMBER void turn(uint32_t from, uint32_t to, uint32_t c, int32_t keys) {
    uint32_t r[kTurnUnits][4];
    TSRI_UNROLL
    for (uint32_t n = 0; n < kTurnUnits; ++n) // word j: keys 8 j + 2 q and the next, columns 2 g and the next
      ldmatrix_transposed(r[n], from ^ (c + n) % 8 * 16);
    TSRI_UNROLL
    for (uint32_t n = 0; n < kTurnUnits; ++n) {
      if constexpr (kTail) {
        const int32_t left = keys - 2 * (thread_index() & 3);
        TSRI_UNROLL
        for (int j = 0; j < 4; ++j) r[n][j] = left >= 8 * j + 2 ? r[n][j] : left == 8 * j + 1 ? r[n][j] & 0xffff : 0;
      }
      const uint32_t turned[4] = {pick_bytes<0x6420>(r[n][0], r[n][1]), pick_bytes<0x6420>(r[n][2], r[n][3]),
                                  pick_bytes<0x7531>(r[n][0], r[n][1]), pick_bytes<0x7531>(r[n][2], r[n][3])};
      store_matrices(to + (c + n) * 2048, turned);
    }
  }

  template <bool kTail>
  TSRI_DEVICE_MEMBER void turn_tile(uint32_t v_tile, uint32_t t_tile, int warp, int32_t keys) {
    const uint32_t lane = static_cast<uint32_t>(thread_index() & 31), low = lane & 7;
    TSRI_NO_UNROLL
    for (int step = warp; step < kSteps; step += kTurners) {
      const uint32_t s = static_cast<uint32_t>(step);
      // Key 32 step + lane; row 8 (lane / 16) + lane % 8 of 16 columns, half lane / 8 % 2 of 32 keys.
      const uint32_t from = v_tile + s * 4096 + lane * 128 + low * 16;
      const uint32_t to = t_tile + s / 4 * kPieceT + lane / 16 * 1024 + low * 128 +
                          ((2 * (s & 3) + (lane >> 3 & 1)) ^ low) * 16;
      TSRI_NO_UNROLL
      for (uint32_t c = 0; c < kDv / 16; c += kTurnUnits)
        turn<kTail>(from + c / 8 * kPieceV, to, c, keys - 32 * step);
    }
  }
};

} // namespace gpu
} // namespace tessera

#endif // TESSERA_BACKENDS_CUDA_SM90_TURN_FP8_HPP_
