// SPDX-License-Identifier: Apache-2.0
//
// Backward's numbers of a row by a walk over its keys, before the gradients: two products and an online
// softmax, in the orientation of forward.
#ifndef TESSERA_COMMON_GPU_BACKWARD_STATS_HPP_
#define TESSERA_COMMON_GPU_BACKWARD_STATS_HPP_

#include "common/gpu/backward_query.hpp"

namespace tessera {
namespace gpu {

// LSE and delta of every row found again from the scores: delta = sum_j p_j dP_j - dLSE over the very dP
// that the gradients are made of, so that a row's dS sums to zero, and is zero with a single key. The
// stored O and LSE have lost that to their rounding. Left out for tiles of rows whose LSE is small, unless
// stats_always: there a long sum hides the difference.
template <class Unit, int kTileQ_, int kTileK_, int kDqk, int kDv, int kWaves, bool kAny>
struct BackwardStats : QueryTiles<Unit, kTileQ_, kTileK_, kDqk, kDv, kWaves, kAny> {
  using Base = QueryTiles<Unit, kTileQ_, kTileK_, kDqk, kDv, kWaves, kAny>;
  using U = typename Base::U;
  using Args = BackwardArgs;
  using Shared = typename Base::Shared;
  static constexpr int kTileQ = kTileQ_, kTileK = kTileK_;
  static constexpr int kThreads = Base::kThreads, kFree = Base::kFree, kCon = Base::kCon;
  static constexpr int kRows = kFree * U::kRows; // of a lane
  using Natural = Weighs<typename U::Element, kAny>;
  static constexpr uint32_t kSharedBytes = Base::kSharedBytes;
  // LSE beyond this makes p inexact in 16 bits: its rounding is a relative error of p.
  static constexpr float kLargeLse = 256.0f;

  // A sum with what rounding took from it, which counts in float32: delta is as large as a dP, and its
  // rounding is shared by all keys of a row.
  static constexpr bool kExact = sizeof(typename U::Element) == 4;
  struct Sum {
    float value, rest;
    TSRI_DEVICE_MEMBER void add(Sum &s, float x) {
      if (kExact) {
        const float total = s.value + x, added = total - s.value;
        s.rest += (s.value - (total - added)) + (x - added);
        s.value = total;
      } else {
        s.value += x;
      }
    }
    TSRI_DEVICE_MEMBER void add_product(Sum &s, float a, float b) {
      if (kExact) {
        const float product = a * b;
        s.rest += multiply_add(a, b, -product);
        add(s, product);
      } else {
        s.value = multiply_add(a, b, s.value);
      }
    }
    TSRI_DEVICE_MEMBER void scale(Sum &s, float x) {
      s.value *= x;
      s.rest *= x;
    }
    TSRI_DEVICE_MEMBER float total(const Sum &s) {
      const float value = U::sum_con(s.value), rest = kExact ? U::sum_con(s.rest) : 0.0f;
      return rest == rest ? value + rest : value; // an infinity has no rest
    }
  };
  struct State {
    float max;
    Sum sum, delta; // this lane's share
  };

  TSRI_DEVICE_MEMBER void block(const Args &args) {
    Shared &shared = shared_at<Shared>(0);
    const uint32_t h = Base::find(args, shared, 1);
    if (shared.place.b < 0) return;
    const int32_t row0 = shared.place.tile * kTileQ;
    if (row0 >= static_cast<int32_t>(shared.sequence.q.slot_len)) return;
    const int32_t i0 = row0 - static_cast<int32_t>(shared.sequence.q.begin -
                                                   shared.sequence.q.slot_begin);
    const int32_t sq = static_cast<int32_t>(shared.sequence.q.len);
    const KeyTiles tiles = key_tiles(shared.rule, larger(i0, 0), smaller(i0 + kTileQ, sq), kTileK);
    if (tiles.count == 0) return; // LSE is that of the sink, and delta has no term
    if (!args.stats_always && !has_large(args, shared, i0, sq)) return;
    Base::load_queries(args, shared, i0);
    copy_commit();
    copy_wait<0>();
    sync_block();
    State state[kRows];
    TSRI_UNROLL
    for (int r = 0; r < kRows; ++r) state[r] = State{-infinity(), {0.0f, 0.0f}, {0.0f, 0.0f}};
    TSRI_NO_UNROLL
    for (int32_t t = 0; t < tiles.count; ++t) {
      const int32_t key0 = KeyTiles::at(tiles, t) * kTileK;
      Base::load_keys(shared, key0);
      copy_commit();
      copy_wait<0>();
      sync_block();
      add_tile(args, shared, state, i0, key0);
      sync_block();
    }
    finish(args, shared, state, h, i0);
  }

  TSRI_DEVICE_MEMBER bool has_large(const Args &args, const Shared &shared, int32_t i0, int32_t sq) {
    const float most = kLargeLse * args.lse_unit;
    bool large = false;
    for (int32_t i = i0 + thread_index() % U::kWave; i < smaller(i0 + kTileQ, sq); i += U::kWave) {
      if (i < 0) continue;
      const float lse = args.stats[shared.stats + i].lse;
      if (lse != infinity() && !(lse <= most && lse >= -most)) large = true;
    }
    return any_lane(large); // every wave looks at the whole tile: all agree
  }

  TSRI_DEVICE_MEMBER void add_tile(const Args &args, const Shared &shared, State (&state)[kRows],
                                   int32_t i0, int32_t key0) {
    const int32_t prefix = kAny ? static_cast<int32_t>(shared.rule.prefix) : 0;
    const float unit = args.call.p.scale * Natural::base; // not of kAny
    const int32_t sq = static_cast<int32_t>(shared.sequence.q.len);
    const int first = larger(Base::wave_row(), -i0);
    const int last = smaller(sq - i0, Base::wave_row() + kFree * U::kFree);
    const bool sees = first < last && stats_class(Base::kStats, first, last, prefix, key0,
                                                  key0 + kTileK) != TSRI_TILE_SKIP;
    typename Base::Scores s, dp;
    if (sees) Base::template multiply<kDqk / U::kStep, typename Base::TileQ, typename Base::TileK>(
          s, Base::kQ, Base::kK);
    sync_block(); // keeps the loads of one product out of the other, where registers end
    if (!sees) return;
    Base::template multiply<kDv / U::kStep, typename Base::TileO, typename Base::TileV>(
        dp, Base::kO, Base::kV);
    TSRI_UNROLL
    for (int r = 0; r < kRows; ++r) {
      const int f = r / U::kRows;
      const int row = Base::wave_row() + f * U::kFree + U::free_of(r % U::kRows);
      const RowStat stat = shared_at<RowStat>(Base::kStats + static_cast<uint32_t>(row) * 16);
      float most = state[r].max;
      TSRI_UNROLL
      for (int c = 0; c < kCon; ++c)
        TSRI_UNROLL
        for (int e = 0; e < U::kElements; ++e) {
          if (U::slot(e) != r % U::kRows) continue;
          const int32_t j = key0 + c * U::kCon + U::con_lane() + U::con_element(e);
          float &x = s[f][c].x[e], &y = dp[f][c].x[e];
          x = score<kAny>(shared.terms, stat, unit, prefix, i0 + row, j, x, y, args.call.keep_scale);
          most = larger_of(most, x);
        }
      most = U::max_con(most);
      const float zero = most == -infinity() ? 0.0f : most;
      const float base = Natural::value ? static_cast<float>(TSRI_LOG2E) : 1.0f;
      const float shrink = exp2_of((state[r].max - zero) * base);
      Sum::scale(state[r].sum, shrink);
      Sum::scale(state[r].delta, shrink);
      TSRI_UNROLL
      for (int c = 0; c < kCon; ++c)
        TSRI_UNROLL
        for (int e = 0; e < U::kElements; ++e) {
          if (U::slot(e) != r % U::kRows) continue;
          const float p = exp2_of((s[f][c].x[e] - zero) * base);
          Sum::add(state[r].sum, p);
          Sum::add_product(state[r].delta, p, dp[f][c].x[e]);
        }
      state[r].max = most;
    }
  }

  // The score of a pair, -inf where it is hidden; dp after dropout, 0 where the interval rule hides.
  template <bool kTerms>
  TSRI_DEVICE_MEMBER float score(const ScoreTerms &terms, const RowStat &stat, float unit,
                                 int32_t prefix, int32_t i, int32_t j, float dot, float &dp,
                                 float keep_scale) {
    if (!stat_allows(stat, prefix, j)) {
      dp = 0.0f;
      return -infinity();
    }
    if (!kTerms) return dot * unit;
    if (terms.drops) dp = keep_key(terms, i, j) ? dp * keep_scale : 0.0f;
    return score_of(terms, dot, i, j);
  }

  TSRI_DEVICE_MEMBER void finish(const Args &args, const Shared &shared, State (&state)[kRows],
                                 uint32_t h, int32_t i0) {
    const tsr_problem &p = args.call.p;
    const float base = Natural::value ? static_cast<float>(TSRI_LOG2E) : 1.0f;
    TSRI_UNROLL
    for (int r = 0; r < kRows; ++r) {
      const int row = Base::wave_row() + r / U::kRows * U::kFree + U::free_of(r % U::kRows);
      const int32_t i = i0 + row;
      float sum = Sum::total(state[r].sum), delta = Sum::total(state[r].delta);
      if (i < 0 || i >= static_cast<int32_t>(shared.sequence.q.len) || !U::leads_row()) continue;
      float most = state[r].max;
      if (p.sink) {
        const float sink = args.call.a.sink[h] * args.lse_unit;
        const float all = larger_of(most, sink);
        const float shrink = all == -infinity() ? 0.0f : exp2_of((most - all) * base);
        sum = sum * shrink + (all == -infinity() ? 0.0f : exp2_of((sink - all) * base));
        delta *= shrink;
        most = all;
      }
      RowStat stat = shared_at<RowStat>(Base::kStats + static_cast<uint32_t>(row) * 16);
      const bool empty = sum == 0.0f;
      stat.lse = empty ? infinity() : args.weight ? most : most + log_of(sum) * args.lse_unit;
      if (args.weight) args.weight[shared.stats + i] = empty ? 1.0f : 1.0f / sum;
      stat.delta = empty ? 0.0f : delta / sum;
      if (p.dlse.dtype != TSR_DTYPE_NONE)
        stat.delta -= args.call.a.dlse[tsri_row_offset(p.dlse.stride, shared.place.b, h,
                                                       shared.sequence.q.begin + i)];
      args.stats[shared.stats + i] = stat;
    }
  }
};

} // namespace gpu
} // namespace tessera

#endif // TESSERA_COMMON_GPU_BACKWARD_STATS_HPP_
