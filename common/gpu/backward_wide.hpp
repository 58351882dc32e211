// SPDX-License-Identifier: Apache-2.0
//
// Backward for head dimensions whose tiles no shared memory has room for: Q, K, V and dO pass through it kSlice
// columns at a time, and scores and dP are sums over slices. Every pair of tiles is loaded anew, so that this costs
// memory traffic; what a block needs after the scores, its own chunk of columns, is the slice that comes last.
//
//   BackwardWide   keys outermost, as Backward
//   WideTiles      queries outermost, for BackwardQ, BackwardStats and BackwardBias in place of QueryTiles
//
// A slice is as wide as a chunk. Loops run over the columns of the problem, not of the row: few columns cost little.
#ifndef TESSERA_COMMON_GPU_BACKWARD_WIDE_HPP_
#define TESSERA_COMMON_GPU_BACKWARD_WIDE_HPP_

#include "common/gpu/backward.hpp"
#include "common/gpu/backward_query.hpp"

namespace tessera {
namespace gpu {

// The n-th of the slices of `columns` columns, of which `last` comes last (or the last one, if there is no such).
template <int kSlice>
struct SliceOrder {
  int count, last;
  TSRI_DEVICE_MEMBER SliceOrder of(int64_t columns, int chunk) {
    const int count = ceil_div(static_cast<int>(columns), kSlice);
    return SliceOrder{count, smaller(chunk, count - 1)};
  }
  TSRI_DEVICE_MEMBER int column(const SliceOrder &order, int n) {
    const int slice = order.last + 1 + n;
    return (slice < order.count ? slice : slice - order.count) * kSlice;
  }
};

template <class Unit, int kTileQ_, int kTileK_, int kSlice, int kWaves>
struct WideTiles : QueryTiles<Unit, kTileQ_, kTileK_, kSlice, kSlice, kWaves, true> {
  using Base = QueryTiles<Unit, kTileQ_, kTileK_, kSlice, kSlice, kWaves, true>;
  using U = typename Base::U;
  using E = typename U::Element;
  using Args = BackwardArgs;
  using Order = SliceOrder<kSlice>;
  using typename Base::Scores;
  using typename Base::Shared;
  static constexpr bool kWide = true;
  static constexpr uint32_t kK = Base::kQ + Base::TileQ::kBytes; // of V as well, and dO is where Q is
  static constexpr uint32_t kSharedBytes = kK + Base::TileK::kBytes;

  TSRI_DEVICE_MEMBER void load_queries(const Args &args, const Shared &shared, int32_t i0) {
    load_stats<kTileQ_, Base::kThreads>(Base::kStats, args.stats + shared.stats, i0,
                                        static_cast<int32_t>(shared.sequence.q.len));
  }
  TSRI_DEVICE_MEMBER void load_keys(const Shared &, int32_t) {} // slices are loaded where they are used
  TSRI_DEVICE_MEMBER uint32_t column_bytes(int) { return 0; }   // the chunk is in place

  // acc[query][key] = Y X^T over all slices.
  TSRI_DEVICE_MEMBER void add_slices(Scores &acc, const RowSource &y, const RowSource &x, int32_t i0, int32_t key0,
                                     const Order &order, bool sees) {
    clear<U>(acc);
    TSRI_NO_UNROLL
    for (int n = 0; n < order.count; ++n) {
      const int column = Order::column(order, n);
      sync_block(); // the slice before has been read by all
      load_tile<E, typename Base::TileQ, Base::kThreads, true, false>(Base::kQ, y, i0, column);
      load_tile<E, typename Base::TileK, Base::kThreads, true>(kK, x, key0, column);
      copy_commit();
      copy_wait<0>();
      sync_block();
      if (!sees) continue;
      Scores part;
      Base::template multiply<kSlice / U::kStep, typename Base::TileQ, typename Base::TileK>(part, Base::kQ, kK);
      add_part<U>(acc, part);
    }
  }

  // Scores and dP; afterwards slice `chunk` of Q and K is in shared memory. All waves call it.
  TSRI_DEVICE_MEMBER bool multiply_both(const Args &args, const Shared &shared, Scores &s, Scores &dp, int32_t i0,
                                        int32_t key0, bool sees, int chunk = 0) {
    const tsr_problem &p = args.call.p;
    add_slices(dp, shared.dout, shared.v, i0, key0, Order::of(p.dim_v, 0), sees);
    add_slices(s, shared.q, shared.k, i0, key0, Order::of(p.dim_qk, chunk), sees);
    return sees;
  }

  template <bool kOfBias>
  TSRI_DEVICE_MEMBER bool differentiate(const Args &args, const Shared &shared, Scores &ds, int32_t i0,
                                        int32_t key0, int chunk = 0) {
    const int32_t prefix = static_cast<int32_t>(shared.rule.prefix);
    const int32_t sq = static_cast<int32_t>(shared.sequence.q.len);
    const int first = larger(Base::wave_row(), -i0);
    const int last = smaller(sq - i0, Base::wave_row() + Base::kFree * U::kFree);
    const bool sees = uniform(static_cast<int32_t>(
        first < last &&
        stats_class(Base::kStats, first, last, prefix, key0, key0 + kTileK_) != TSRI_TILE_SKIP));
    Scores s;
    if (!multiply_both(args, shared, s, ds, i0, key0, sees, chunk)) return false;
    Base::template differentiate_all<kOfBias, true>(args, shared, s, ds, 0.0f, i0, key0);
    return true;
  }
};

struct WideNumbers { // of BackwardWide, in its shared memory
  RowSource k, v;
};

template <class Unit, int kTileQ_, int kTileK_, int kSlice, int kWaves, int kQueryWaves>
struct BackwardWide
    : Backward<Unit, kTileQ_, kTileK_, kSlice, kSlice, kSlice, kSlice, kWaves, 1, kQueryWaves, 1, true, WideNumbers> {
  using Base =
      Backward<Unit, kTileQ_, kTileK_, kSlice, kSlice, kSlice, kSlice, kWaves, 1, kQueryWaves, 1, true, WideNumbers>;
  using U = typename Base::U;
  using E = typename U::Element;
  using Args = BackwardArgs;
  using Order = SliceOrder<kSlice>;
  using Keys = typename Base::TileK;    // of K and of V
  using Queries = typename Base::TileQ; // of Q and of dO
  using typename Base::Scores;
  using typename Base::Shared;
  using Out = typename U::Acc[Base::kFree][Base::kOutK]; // of dK and of dV
  static constexpr int kDepth = kSlice / U::kStep;
  static_assert(Base::kGroup == Base::kCon, "scores of all query accumulators at once");

  TSRI_DEVICE_MEMBER void block(const Args &args) { Base::template block_of<BackwardWide>(args); }

  TSRI_DEVICE_MEMBER void walk(const Args &args, Shared &shared, uint32_t g, int chunk, int32_t key0, Out &dk,
                               Out &dv) {
    const tsr_problem &p = args.call.p;
    int32_t begin, end;
    if (!Base::find_queries(shared, key0, begin, end)) return;
    if (thread_index() == 0) {
      const tsri_pages pages = tsri_pages_of(&p, &args.call.a);
      shared.k = kv_source<E>(args.call.a.k, p.k, shared.sequence.k, pages, shared.place.b, g, p.dim_qk,
                              args.call.vector & kVectorK);
      shared.v = kv_source<E>(args.call.a.v, p.v, shared.sequence.k, pages, shared.place.b, g, p.dim_v,
                              args.call.vector & kVectorV);
    }
    TSRI_NO_UNROLL
    for (int32_t head = 0; head < args.call.group; ++head) {
      sync_block(); // everybody is done with the head before
      if (thread_index() == 0)
        Base::take_head(args, shared, g * static_cast<uint32_t>(args.call.group) + static_cast<uint32_t>(head));
      sync_block();
      TSRI_NO_UNROLL
      for (int32_t t = begin; t < end; ++t) step(fresh_arguments(args), shared, chunk, key0, t * kTileQ_, dk, dv);
    }
  }

  TSRI_DEVICE_MEMBER void load_slice(uint32_t to, const RowSource &queries, int32_t i0, int column) {
    load_tile<E, Queries, Base::kThreads, true, false>(to, queries, i0, column, fresh_thread_index());
  }

  // acc[key][query] = X Y^T over all slices.
  TSRI_DEVICE_MEMBER void add_slices(Scores &acc, const RowSource &x, const RowSource &y, int32_t key0, int32_t i0,
                                     const Order &order, bool sees) {
    clear<U>(acc);
    TSRI_NO_UNROLL
    for (int n = 0; n < order.count; ++n) {
      const int column = Order::column(order, n);
      sync_block(); // the slice before has been read by all
      load_tile<E, Keys, Base::kThreads, true>(Base::kK, x, key0, column, fresh_thread_index());
      load_slice(Base::kQ, y, i0, column);
      copy_commit();
      copy_wait<0>();
      sync_block();
      if (!sees) continue;
      Scores part;
      Base::template multiply<kDepth, Keys, Queries>(part, Base::kK, Base::kQ, 0);
      add_part<U>(acc, part);
    }
  }

  // One query tile: dK and dV of the chunk, and its part of dQ's sums.
  TSRI_DEVICE_MEMBER void step(const Args &args, const Shared &shared, int chunk, int32_t key0, int32_t i0, Out &dk,
                               Out &dv) {
    const tsr_problem &p = args.call.p;
    const int32_t prefix = static_cast<int32_t>(shared.rule.prefix);
    const int32_t sq = static_cast<int32_t>(shared.rule.sq), sk = static_cast<int32_t>(shared.rule.sk);
    // The numbers of the tile before were read before its last barrier.
    load_stats<kTileQ_, Base::kThreads>(Base::kStats, args.stats + shared.stats, i0, sq);
    copy_commit();
    copy_wait<0>();
    sync_block();
    const int32_t j0 = key0 + Base::key_row(), j1 = j0 + Base::kFree * U::kFree;
    const int last = smaller(sq - i0, kTileQ_);
    const bool sees = uniform(static_cast<int32_t>(
        last > 0 && j1 > 0 && j0 < sk &&
        stats_class(Base::kStats, 0, last, prefix, larger(j0, 0), j1) != TSRI_TILE_SKIP));
    Scores s, dp;
    add_slices(dp, shared.v, shared.dout, key0, i0, Order::of(p.dim_v, 0), sees);
    add_slices(s, shared.k, shared.q, key0, i0, Order::of(p.dim_qk, chunk), sees);
    if (sees) Base::template differentiate<true>(s, dp, Base::kStats, 0.0f, prefix, key0, i0, 0, args, shared);
    const bool sums = args.dq_sum && chunk < args.dq_chunks;
    if (sums) Base::store_scores(Base::kS, dp, 0);
    sync_block(); // dS is complete
    if (sees && chunk * kSlice < p.dim_qk)
      Base::template accumulate_direct<Base::kOutK, Queries>(dk, dp, Base::kQ, 0);
    if (sums)
      Base::add_queries(args.dq_sum + (chunk * query_rows(p, args.call.a) + shared.stats + i0) * kSlice, Base::kS,
                        sq - i0, 0);
    if (chunk * kSlice >= p.dim_v) return;
    sync_block(); // Q has been read by all
    load_slice(Base::kQ, shared.dout, i0, chunk * kSlice);
    copy_commit();
    copy_wait<0>();
    sync_block();
    if (sees) Base::template accumulate_direct<Base::kOutV, Queries>(dv, s, Base::kQ, 0);
  }
};

} // namespace gpu
} // namespace tessera

#endif // TESSERA_COMMON_GPU_BACKWARD_WIDE_HPP_
