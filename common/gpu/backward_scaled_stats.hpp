// SPDX-License-Identifier: Apache-2.0
//
// Tiles of queries (backward_query.hpp) whose scores have the bits that BackwardScaled makes: what BackwardStats finds
// again has to be of the very P and dP that gradients are made of, or a row's dS would not sum to zero. Copies land
// in plain rows and are turned by who waits for them.
#ifndef TESSERA_COMMON_GPU_BACKWARD_SCALED_STATS_HPP_
#define TESSERA_COMMON_GPU_BACKWARD_SCALED_STATS_HPP_

#include "common/gpu/backward_query.hpp"
#include "common/gpu/turned.hpp"

namespace tessera {
namespace gpu {

template <class Unit, int kTileQ_, int kTileK_, int kDqk, int kDv, int kWaves>
struct ScaledQueryTiles : QueryTiles<Unit, kTileQ_, kTileK_, kDqk, kDv, kWaves, false> {
  using Base = QueryTiles<Unit, kTileQ_, kTileK_, kDqk, kDv, kWaves, false>;
  using U = typename Base::U;
  using E = typename Base::E;
  using Args = BackwardArgs;
  using typename Base::Scores;
  using typename Base::Shared;
  static constexpr int kTileQ = kTileQ_, kTileK = kTileK_, kThreads = Base::kThreads;
  template <int kRows, int kColumns>
  using In = typename Operands<U>::template In<kRows, kColumns>;
  template <class T>
  using Copy = typename Operands<U>::template Copy<T>;
  using TileQ = In<kTileQ, kDqk>;
  using TileO = In<kTileQ, kDv>;
  using TileK = In<kTileK, kDqk>;
  using TileV = In<kTileK, kDv>;
  static constexpr uint32_t kQ = Base::kQ;
  static constexpr uint32_t kO = kQ + TileQ::kBytes;
  static constexpr uint32_t kK = kO + TileO::kBytes;
  static constexpr uint32_t kV = kK + TileK::kBytes;
  static constexpr uint32_t kCopyK = kV + TileV::kBytes;
  static constexpr uint32_t kCopyV = kCopyK + Copy<TileK>::kBytes;
  static constexpr uint32_t kEnd = kCopyV + Copy<TileV>::kBytes;
  // Queries land where keys do later.
  static constexpr uint32_t kSharedBytes = max_of(kEnd, kK + max_of(Copy<TileQ>::kBytes, Copy<TileO>::kBytes));
  static constexpr int kMinBlocks = kThreads <= 128 && kSharedBytes <= 113 * 1024 ? 2 : 1;

  // Done when it returns, but for a barrier.
  template <class T>
  TSRI_DEVICE_MEMBER void load_turned(uint32_t to, const RowSource &from, int32_t first) {
    load_tile<E, Copy<T>, kThreads, false, false>(kK, from, first, 0);
    copy_commit();
    copy_wait<0>();
    turn_tile<U, T, kThreads>(kK, to, thread_index());
  }
  TSRI_DEVICE_MEMBER void load_queries(const Args &args, const Shared &shared, int32_t i0) {
    load_stats<kTileQ, kThreads>(Base::kStats, args.stats + shared.stats, i0,
                                 static_cast<int32_t>(shared.sequence.q.len));
    static_assert(kDqk == kDv, "copies in one place, of which each thread turns what it has copied itself");
    load_turned<TileQ>(kQ, shared.q, i0);
    load_turned<TileO>(kO, shared.dout, i0);
    sync_block(); // the copies' place becomes that of keys
  }
  TSRI_DEVICE_MEMBER void load_keys(const Shared &shared, int32_t key0) {
    load_tile<E, Copy<TileK>, kThreads, false>(kCopyK, shared.k, key0, 0);
    load_tile<E, Copy<TileV>, kThreads, false>(kCopyV, shared.v, key0, 0);
    copy_commit();
    copy_wait<0>();
    turn_tile<U, TileK, kThreads>(kCopyK, kK, thread_index());
    turn_tile<U, TileV, kThreads>(kCopyV, kV, thread_index());
  }

  // acc[query][key] = Y X^T, out of the units of their rows.
  template <int kDepth, class TY, class TX>
  TSRI_DEVICE_MEMBER void multiply(Scores &acc, uint32_t y, uint32_t x) {
    const int row = Base::wave_row();
    const typename U::Free none[Base::kFree][1] = {};
    score_product<U, TX, TY, kDepth, false>(acc, U::template con_offset<TX::kRowBytes>(x),
                                            U::template free_offset<TY::kRowBytes>(y) + row * TY::kRowBytes, none);
    U::template scale_scores<TX, TY>(acc, x, y, row);
  }
  TSRI_DEVICE_MEMBER bool multiply_both(const Args &, const Shared &, Scores &s, Scores &dp, int32_t, int32_t,
                                        bool sees) {
    if (sees) multiply<kDqk / U::kStep, TileQ, TileK>(s, kQ, kK);
    sync_block(); // keeps the loads of one product out of the other, where registers end
    if (!sees) return false;
    multiply<kDv / U::kStep, TileO, TileV>(dp, kO, kV);
    return true;
  }
};

} // namespace gpu
} // namespace tessera

#endif // TESSERA_COMMON_GPU_BACKWARD_SCALED_STATS_HPP_
