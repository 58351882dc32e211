// SPDX-License-Identifier: Apache-2.0
//
// Units whose operands do not lie in shared memory as memory has them (U::InTile): copies land in a stage of
// plain rows, and each thread turns what it copied itself, so that nothing but its own wait lies between.
#ifndef TESSERA_COMMON_GPU_TURNED_HPP_
#define TESSERA_COMMON_GPU_TURNED_HPP_

#include "common/gpu/recheck.hpp"
#include "common/gpu/tile.hpp"

namespace tessera {
namespace gpu {

template <class...>
using Nothing = void;

// In: tiles that products read. Copy: what memory's rows land in on the way to such a tile.
template <class U, class = void>
struct Operands {
  static constexpr bool kTurned = false;
  template <int kRows, int kColumns>
  using In = Tile<typename U::Element, kRows, kColumns>;
  template <class T>
  using Copy = T;
};
template <class U>
struct Operands<U, Nothing<typename U::template InTile<64, 64>>> {
  static constexpr bool kTurned = true;
  template <int kRows, int kColumns>
  using In = typename U::template InTile<kRows, kColumns>;
  template <class T>
  using Copy = Tile<typename U::Element, T::kRows, T::kColumns>;
};

// turn_tile (below) where rows have units of their own: lanes of a wave hold whole rows, and both addresses move by
// constants.
template <class U, class TTo, int kThreads>
TSRI_DEVICE bool turn_scaled_tile(uint32_t from, uint32_t to, int thread) {
  using TFrom = typename Operands<U>::template Copy<TTo>;
  constexpr int lanes = TFrom::kChunks, step = kThreads / lanes; // step: rows between two chunks of a thread
  constexpr int at_once = 4;
  static_assert(U::kWave % lanes == 0 && step % 4 == 0, "whole or half swizzle periods");
  static_assert(TFrom::kRows % (at_once * step) == 0, "lanes of a wave take the same turns");
  const int r = thread / lanes, c = thread % lanes;
  uint32_t source = from + TFrom::at(r, c);
  typename TTo::Place place = TTo::place(to, r, 4 * c);
  bool odd = false;
  TSRI_NO_UNROLL
  for (int row = 0; row < TFrom::kRows; row += at_once * step) {
    Chunk chunk[at_once];
    TSRI_UNROLL
    for (int n = 0; n < at_once; ++n)
      chunk[n] = shared_at<Chunk>((step % 8 != 0 && n % 2 != 0 ? source ^ 64u : source) + // see LaneCopies
                                  static_cast<uint32_t>(n * step * TFrom::kRowBytes));
    odd = U::template store_scaled<TTo, step>(place, chunk, c == 0) || odd;
    source += at_once * step * TFrom::kRowBytes;
    TTo::down(place, at_once * step);
  }
  return odd;
}

template <class U, class TTo, int kThreads>
TSRI_DEVICE bool turn_unscaled_tile(uint32_t from, uint32_t to, int thread) {
  using TFrom = typename Operands<U>::template Copy<TTo>;
  constexpr int total = TFrom::kRows * TFrom::kChunks;
  constexpr int at_once = 4; // chunks under way
  static_assert(total % U::kWave == 0 && kThreads % U::kWave == 0, "lanes of a wave take the same turns");
  bool any_odd = false;
  TSRI_NO_UNROLL
  for (int first = thread; first < total; first += at_once * kThreads) {
    Chunk chunk[at_once];
    TSRI_UNROLL
    for (int n = 0; n < at_once; ++n) {
      const int i = first + n * kThreads;
      if (total % (at_once * kThreads) == 0 || i < total)
        chunk[n] = shared_at<Chunk>(from + TFrom::at(i / TFrom::kChunks, i % TFrom::kChunks));
      else
        chunk[n] = Chunk{{0, 0, 0, 0}};
    }
    float odd = 0.0f;
    TSRI_UNROLL
    for (int n = 0; n < at_once; ++n) odd = U::odd_sum(odd, chunk[n]);
    const bool has_odd = any_lane(odd != 0.0f);
    any_odd = any_odd || has_odd;
    TSRI_UNROLL
    for (int n = 0; n < at_once; ++n) {
      const int i = first + n * kThreads;
      if (total % (at_once * kThreads) == 0 || i < total)
        U::template store_chunk<TTo>(to, i / TFrom::kChunks, i % TFrom::kChunks, chunk[n], has_odd);
    }
  }
  return any_odd;
}

// Tile `to` of operands from its copy `from`, for which load_tile was called with the same `thread` and has
// been waited for. Whether a number of the wave's part is not finite, or so large that products of it may not be.
template <class U, class TTo, int kThreads>
TSRI_DEVICE bool turn_tile(uint32_t from, uint32_t to, int thread) {
  if constexpr (HasScales<TTo>::value)
    return turn_scaled_tile<U, TTo, kThreads>(from, to, thread);
  else
    return turn_unscaled_tile<U, TTo, kThreads>(from, to, thread);
}

} // namespace gpu
} // namespace tessera

#endif // TESSERA_COMMON_GPU_TURNED_HPP_
