// SPDX-License-Identifier: Apache-2.0
//
// The walk of a forward block over its key tiles where copies to shared memory go through registers
// (U::kStaged): the loads of the next tile are under way while this one is folded, and reach the same buffer
// when all waves are done with it, two barriers a tile. Runs of tiles that all rows of the block see whole have
// a loop of their own, without masks and, where rows follow each other in memory, without a look at where the
// sequence ends.
#ifndef TESSERA_COMMON_GPU_FORWARD_STAGED_HPP_
#define TESSERA_COMMON_GPU_FORWARD_STAGED_HPP_

#include "common/gpu/score.hpp"
#include "common/gpu/stage.hpp"
#include "common/gpu/work.hpp"

namespace tessera {
namespace gpu {

// F: Forward<...>.
template <class F, class U, bool kAny, bool kPaged>
struct StagedWalk {
  using E = typename U::Element;
  using StageK = Stage<E, typename F::TileK, F::kThreads>;
  using StageV = Stage<E, typename F::TileV, F::kThreads>;
  using State = typename F::State;
  static constexpr int kTileK = F::kTileK;
  // Whether registers have room for a tile under way; if not, it is loaded when the one before has been read.
  static constexpr bool kAhead = StageK::kCount + StageV::kCount <= 10;
  // Tiles inside a sequence are loaded without looking.
  static constexpr bool kInside = kAhead && !kAny && !kPaged && StageK::kRegular && StageV::kRegular;

  struct Side { // K or V of tiles inside the sequence
    const unsigned char *tile; // the next one to load
    int64_t row_bytes;
    StageLane lane;
  };
  struct Walk { // what all tiles share
    const RowSource *k, *v;
    const ScoreTerms *terms;
    KeyTiles tiles;
    RowsClass rows; // of the wave
    uint32_t q_offset;
    int32_t prefix, row0; // row0: the wave's first row, of the used part
    int column;
    float unit;
    Side side_k, side_v;
    typename U::Free kept[F::kFree][F::kKeepQ ? F::kDepth : 1];
    StageK next_k;
    StageV next_v;
  };
  // Numbers of tiles that all used rows of the block see whole, before and after the end of the prefix.
  struct Runs {
    int32_t begin[2], end[2];
  };

  TSRI_DEVICE_MEMBER Runs full_runs(const RowsClass &c, const KeyTiles &tiles) {
    Runs runs;
    runs.begin[0] = 0;
    runs.end[0] = uniform(smaller(c.prefix / kTileK, tiles.head));
    const int32_t lo = larger(c.full_lo, 0), shift = tiles.head - tiles.band;
    runs.begin[1] = uniform(larger((lo + kTileK - 1) / kTileK + shift, tiles.head));
    runs.end[1] = uniform(smaller(larger(c.full_hi, 0) / kTileK + shift, tiles.count));
    return runs;
  }

  TSRI_DEVICE_MEMBER void start_side(Side &side, const RowSource &s, const StageLane &lane) {
    side.row_bytes = uniform(s.row_bytes);
    side.tile = uniform(s.base + s.first * s.row_bytes);
    side.lane = lane;
  }
  TSRI_DEVICE_MEMBER void fetch(Walk &w, int32_t n) {
    const int32_t first = KeyTiles::at(w.tiles, n) * kTileK;
    StageK::template fetch<kAny>(w.next_k, *w.k, first, 0, thread_index());
    StageV::template fetch<kAny>(w.next_v, *w.v, first, w.column, thread_index());
  }
  // At once into shared memory.
  TSRI_DEVICE_MEMBER void load(const Walk &w, int32_t n) {
    const int32_t first = KeyTiles::at(w.tiles, n) * kTileK;
    load_tile<E, typename F::TileK, F::kThreads, kAny, kPaged>(F::kK, *w.k, first, 0);
    load_tile<E, typename F::TileV, F::kThreads, kAny, kPaged>(F::kV, *w.v, first, w.column);
    copy_commit();
    copy_wait<0>();
  }
  TSRI_DEVICE_MEMBER void store(const Walk &w) {
    StageK::store(w.next_k, F::kK, thread_index());
    StageV::store(w.next_v, F::kV, thread_index());
  }

  // Tile n, which is in shared memory or about to be; afterwards the next one is. kFull: the wave's block sees
  // all of this tile and of the next.
  template <bool kFull>
  TSRI_DEVICE_MEMBER void step(Walk &w, State &state, int32_t n) {
    sync_block();
    if constexpr (kFull && kInside) {
      StageK::fetch_inside(w.next_k, w.side_k.tile, w.side_k.row_bytes, w.side_k.lane);
      StageV::fetch_inside(w.next_v, w.side_v.tile, w.side_v.row_bytes, w.side_v.lane);
      w.side_k.tile += kTileK * w.side_k.row_bytes;
      w.side_v.tile += kTileK * w.side_v.row_bytes;
    } else if (kAhead && n + 1 < w.tiles.count) {
      fetch(w, n + 1);
    }
    // The wave's own rows decide: next to the diagonal some waves see all of a tile, some nothing.
    // Rows outside the sequence are computed and not used.
    const int32_t key0 = KeyTiles::at(w.tiles, n) * kTileK;
    const int tile_class = kFull ? TSRI_TILE_FULL : uniform(RowsClass::of(w.rows, key0, key0 + kTileK));
    if (tile_class != TSRI_TILE_SKIP) {
      typename F::Scores s;
      F::score_tile(s, F::kK, w.q_offset, w.kept);
      if (kAny)
        F::modify_scores(s, *w.terms, w.prefix, w.row0, key0);
      else if (tile_class == TSRI_TILE_EDGE)
        F::mask_scores(s, w.prefix, key0);
      F::fold(state, s, w.unit);
      if (kAny && w.terms->drops) F::drop(s, *w.terms, w.row0, key0);
      F::multiply_values(state, s, F::kV);
    }
    sync_block(); // the tile has been read by all
    if constexpr (kFull && kInside) {
      if (w.side_k.lane.any) StageK::store(w.next_k, F::kK, thread_index());
      if (w.side_v.lane.any) StageV::store(w.next_v, F::kV, thread_index());
    } else if (n + 1 < w.tiles.count) {
      if constexpr (kAhead)
        store(w);
      else
        load(w, n + 1);
    }
  }

  // After bands are stored and before anybody waits for them. count > 0.
  TSRI_DEVICE_MEMBER void run(const typename F::Shared &shared, State &state, const KeyTiles &tiles,
                              const RowSource &q, int32_t prefix, int32_t i0, int32_t sq, int column,
                              float unit) {
    const int row = F::wave_row();
    Walk w;
    w.k = &shared.k;
    w.v = &shared.v;
    w.terms = &shared.terms;
    w.tiles = tiles;
    w.q_offset = 0;
    w.prefix = prefix;
    w.row0 = i0 + row;
    w.column = column;
    w.unit = unit;
    if constexpr (F::kKeepQ) {
      TSRI_UNROLL
      for (int f = 0; f < F::kFree; ++f)
        TSRI_UNROLL
        for (int t = 0; t < F::kDepth; ++t)
          fetch_free<U, kAny>(w.kept[f][t], q, w.row0 + f * U::kFree + U::free_of(0), t);
    } else {
      load_tile<E, typename F::TileQ, F::kThreads, kAny, false>(F::kQ, q, i0, 0);
      w.q_offset = U::template free_offset<F::TileQ::kRowBytes>(F::kQ) + row * F::TileQ::kRowBytes;
    }
    load(w, 0); // and waits for the queries as well
    sync_block();
    w.rows = rows_class(F::kBands, larger(-i0, row), smaller(sq - i0, row + F::kFree * U::kFree), w.prefix);
    Runs runs = {{0, 0}, {0, 0}};
    if constexpr (!kAny)
      runs = full_runs(rows_class(F::kBands, larger(-i0, 0), smaller(sq - i0, F::kTileQ), w.prefix), w.tiles);
    if constexpr (kInside) {
      if (!uniform(rows_are_near(*w.k, kTileK) && rows_are_near(*w.v, kTileK))) runs.end[0] = runs.end[1] = 0;
      start_side(w.side_k, *w.k, StageK::lane_part(*w.k, 0, thread_index()));
      start_side(w.side_v, *w.v, StageV::lane_part(*w.v, w.column, thread_index()));
    }
    int32_t n = 0;
    TSRI_NO_UNROLL
    for (int part = 0; part < 3; ++part) {
      const int32_t begin = part == 0 ? runs.begin[0] : part == 1 ? runs.begin[1] : w.tiles.count;
      const int32_t end = part == 0 ? runs.end[0] : part == 1 ? runs.end[1] : 0;
      TSRI_NO_UNROLL
      for (; n < smaller(begin, w.tiles.count); ++n) step<false>(w, state, n);
      if constexpr (!kAny) {
        if (n + 1 >= end) continue;
        if constexpr (kInside) {
          const int64_t next = int64_t{KeyTiles::at(w.tiles, n + 1)} * kTileK;
          w.side_k.tile = uniform(w.k->base + (w.k->first + next) * w.side_k.row_bytes);
          w.side_v.tile = uniform(w.v->base + (w.v->first + next) * w.side_v.row_bytes);
        }
        TSRI_NO_UNROLL
        for (; n + 1 < end; ++n) step<true>(w, state, n);
      }
    }
  }
};

} // namespace gpu
} // namespace tessera

#endif // TESSERA_COMMON_GPU_FORWARD_STAGED_HPP_
