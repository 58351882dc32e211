// SPDX-License-Identifier: Apache-2.0
//
// The walk of a forward block over its key tiles where shared memory has no room for all columns of Q and K: both
// pass through it a slice at a time, and scores are sums over slices. Q is loaded anew for every tile of keys, which
// costs memory traffic and leaves room for more waves than queries that stay would.
#ifndef TESSERA_COMMON_GPU_FORWARD_SLICED_HPP_
#define TESSERA_COMMON_GPU_FORWARD_SLICED_HPP_

#include "common/gpu/product.hpp"
#include "common/gpu/score.hpp"
#include "common/gpu/tile.hpp"
#include "common/gpu/work.hpp"

namespace tessera {
namespace gpu {

// F: Forward<...>.
template <class F, class U, bool kAny, bool kPaged>
struct SlicedWalk {
  using E = typename U::Element;
  static constexpr int kTileK = F::kTileK, kSlice = F::TileK::kColumns;
  static_assert(!F::kKeepQ && !F::kTurned && F::kBuffers == 1, "one buffer, and no queries in registers");

  // After bands are stored and before anybody waits for them. columns: of Q and K.
  TSRI_DEVICE_MEMBER void run(const typename F::Shared &shared, typename F::State &state, const KeyTiles &tiles,
                              const RowSource &q, int32_t prefix, int32_t i0, int32_t sq, int column, float unit,
                              int columns) {
    const int row = F::wave_row();
    sync_block();
    const RowsClass rows =
        rows_class(F::kBands, larger(-i0, row), smaller(sq - i0, row + F::kFree * U::kFree), prefix);
    TSRI_NO_UNROLL
    for (int32_t n = 0; n < tiles.count; ++n) {
      const int32_t key0 = KeyTiles::at(tiles, n) * kTileK;
      // The wave's own rows decide: next to the diagonal some waves see all of a tile, some nothing.
      // Rows outside the sequence are computed and not used.
      const int tile_class = uniform(RowsClass::of(rows, key0, key0 + kTileK));
      typename F::Scores s;
      clear<U>(s);
      TSRI_NO_UNROLL
      for (int first = 0; first < columns; first += kSlice) {
        sync_block(); // the slice before and, at the first, the values of the tile before have been read by all
        load_tile<E, typename F::TileQ, F::kThreads, kAny, false>(F::kQ, q, i0, first);
        load_tile<E, typename F::TileK, F::kThreads, kAny, kPaged>(F::kK, shared.k, key0, first);
        if (first == 0) load_tile<E, typename F::TileV, F::kThreads, kAny, kPaged>(F::kV, shared.v, key0, column);
        copy_commit();
        copy_wait<0>();
        sync_block();
        if (tile_class == TSRI_TILE_SKIP) continue;
        typename F::Scores part;
        const typename U::Free none[F::kFree][1] = {};
        F::score_tile(part, F::kK, U::template free_offset<F::TileQ::kRowBytes>(F::kQ) + row * F::TileQ::kRowBytes,
                      none);
        add_part<U>(s, part);
      }
      if (tile_class == TSRI_TILE_SKIP) continue;
      if (kAny)
        F::modify_scores(s, shared.terms, prefix, i0 + row, key0);
      else if (tile_class == TSRI_TILE_EDGE)
        F::mask_scores(s, prefix, key0);
      F::fold(state, s, unit);
      if (kAny && shared.terms.drops) F::drop(s, shared.terms, i0 + row, key0);
      F::multiply_values(state, s, F::kV);
    }
  }
};

} // namespace gpu
} // namespace tessera

#endif // TESSERA_COMMON_GPU_FORWARD_SLICED_HPP_
