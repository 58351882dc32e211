// SPDX-License-Identifier: Apache-2.0
//
// Backward's numbers of a row by a walk over its keys, before the gradients: two products and an online
// softmax, in the orientation of forward.
#ifndef TESSERA_COMMON_GPU_BACKWARD_STATS_HPP_
#define TESSERA_COMMON_GPU_BACKWARD_STATS_HPP_

#include "common/gpu/backward_delta.hpp"
#include "common/gpu/backward_query.hpp"

namespace tessera {
namespace gpu {

// LSE and delta of every row found again from the scores: delta = sum_j p_j dP_j - dLSE over the very dP
// that the gradients are made of, so that a row's dS sums to zero, and is zero with a single key. The
// stored O and LSE have lost that to their rounding. Left out, unless stats_always, for tiles of many rows
// whose LSE is small and which all see many keys: there a long sum hides the difference, unless keys and values have
// parts in common (common/delta.h).
// kBlocks: of a multiprocessor, where more than the tiles' own number fit into registers; 0: that one.
template <class Unit, int kTileQ_, int kTileK_, int kDqk, int kDv, int kWaves, bool kAny, int kBlocks = 0,
          class Tiles = QueryTiles<Unit, kTileQ_, kTileK_, kDqk, kDv, kWaves, kAny>>
struct BackwardStats : Tiles {
  using Base = Tiles;
  using U = typename Base::U;
  using Args = BackwardArgs;
  using Shared = typename Base::Shared;
  static constexpr int kTileQ = kTileQ_, kTileK = kTileK_;
  static constexpr int kThreads = Base::kThreads, kFree = Base::kFree, kCon = Base::kCon;
  static constexpr int kRows = kFree * U::kRows; // of a lane
  using Natural = Weighs<typename U::Element, kAny>;
  static constexpr uint32_t kSharedBytes = Base::kSharedBytes;
  static constexpr int kMinBlocks = kBlocks ? kBlocks : Base::kMinBlocks;

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

  // Tiles of queries, numbered as those of sum_tiles(): the lanes of a wave look at one each, then the block works
  // on those that have coarse rows. Every wave looks at the same ones and finds the same.
  TSRI_DEVICE_MEMBER void block(const Args &args) {
    release_later();
    wait_for_earlier();
    Shared &shared = shared_at<Shared>(0);
    // In 32 bits, of which there are enough for blocks and for one stride more: scalars are short on some devices.
    const uint32_t total = static_cast<uint32_t>(args.tiles) * static_cast<uint32_t>(args.call.p.heads_q) *
                           (args.call.a.cu_q ? 1u : static_cast<uint32_t>(args.call.p.batch));
    TSRI_NO_UNROLL
    for (uint32_t n = block_index(); n < total;) {
      const int64_t own = n + static_cast<int64_t>(thread_index() % U::kWave) * block_count();
      float most = infinity(); // see delta_most()
      const uint32_t wanted = own < total && (args.stats_always || may_be_coarse(args, own, most));
      TSRI_NO_UNROLL
      for (int t = 0; t < U::kWave && n < total; ++t, n += block_count())
        if (uniform(static_cast<int32_t>(shuffle(wanted, t)))) tile(args, shared, n, shuffle(most, t));
    }
  }

  // As BackwardPrepare left it: true also where a neighbour of the tile is meant. most: becomes what it found of
  // the head.
  TSRI_DEVICE_MEMBER bool may_be_coarse(const Args &args, int64_t n, float &most) {
    const tsr_problem &p = args.call.p;
    const SumTile tile = sum_tile(p, args.call.a, kTileQ, n);
    if (tile.b < 0) return false;
    const int64_t row = stat_row(p, args.call.a, tile.q, tile.b, tile.h) + tile.i0;
    const int64_t last = (row + smaller(static_cast<int64_t>(kTileQ), tile.q.len - tile.i0) - 1) / kCoarseRows;
    if (args.delta) {
      int64_t member;
      const int64_t g = divide(tile.h, args.call.group, member);
      most = delta_most(args, tile.b, g, tsri_sequence_of(&p, &args.call.a, tile.b).k.len);
    }
    uint32_t any = 0;
    for (int64_t i = row / kCoarseRows; i <= last; ++i) any |= args.coarse[i];
    return any != 0 || (kExact ? args.large_lse : static_cast<float>(p.seq_k)) > most;
  }

  TSRI_DEVICE_MEMBER void tile(const Args &args, Shared &shared, int64_t n, float most) {
    const SumTile place = sum_tile(args.call.p, args.call.a, kTileQ, n);
    if (uniform(static_cast<int32_t>(place.b)) < 0) return;
    const uint32_t h = static_cast<uint32_t>(place.h);
    const int32_t i0 = uniform(place.i0), sq = uniform(static_cast<int32_t>(place.q.len));
    sync_block(); // the tile before
    if (thread_index() == 0) {
      shared.place = Place{place.b, 0};
      Base::take(args, shared, place.b, h);
    }
    sync_block();
    const KeyTiles tiles = key_tiles(shared.rule, i0, smaller(i0 + kTileQ, sq), kTileK);
    if (tiles.count == 0) return; // LSE is that of the sink, and delta has no term
    if (!args.stats_always && !has_coarse(args, shared, i0, sq, most)) return;
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

  // Whether some row of the tile needs better numbers than the stored ones.
  TSRI_DEVICE_MEMBER bool has_coarse(const Args &args, const Shared &shared, int32_t i0, int32_t sq, float most) {
    const int32_t prefix = static_cast<int32_t>(shared.rule.prefix);
    bool coarse = false;
    for (int32_t i = i0 + thread_index() % U::kWave; i < smaller(i0 + kTileQ, sq); i += U::kWave) {
      const RowStat stat = args.stats[shared.stats + i];
      const float keys = kExact ? infinity() : most, large = kExact ? most : infinity();
      coarse = is_coarse(args, sq, prefix + stat.hi - stat.lo, stat.lse, keys, large) || coarse;
    }
    return any_lane(coarse); // every wave looks at the whole tile: all agree
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
    if (!Base::multiply_both(args, shared, s, dp, i0, key0, sees)) return;
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

  // What a row's numbers become: `factor` makes probabilities of 2^(score - max).
  struct RowSum {
    float lse, factor;
  };
  // LSE is the maximum of the keys, the sink is in the weight: far below a sink every p keeps its bits.
  // A row without keys has the sink's.
  TSRI_DEVICE_MEMBER RowSum weighted(float max, float sum, float sink) {
    float lse;
    const float factor = Softmax::join_sink(max, sum, sink, &lse);
    return RowSum{sum == 0.0f ? sink : max, factor};
  }
  // LSE of keys and sink, in base two.
  TSRI_DEVICE_MEMBER RowSum logarithmic(float max, float sum, float sink) {
    const float all = larger_of(max, sink), zero = all == -infinity() ? 0.0f : all;
    const float keys = exp2_of(max - zero), total = sum * keys + exp2_of(sink - zero);
    if (total == 0.0f) return RowSum{-infinity(), 0.0f};
    return RowSum{all + log_of(total) * static_cast<float>(TSRI_LOG2E), keys / total};
  }

  TSRI_DEVICE_MEMBER void finish(const Args &args, const Shared &shared, State (&state)[kRows],
                                 uint32_t h, int32_t i0) {
    const tsr_problem &p = args.call.p;
    TSRI_UNROLL
    for (int r = 0; r < kRows; ++r) {
      const int row = Base::wave_row() + r / U::kRows * U::kFree + U::free_of(r % U::kRows);
      const int32_t i = i0 + row;
      float sum = Sum::total(state[r].sum), delta = Sum::total(state[r].delta);
      if (i < 0 || i >= static_cast<int32_t>(shared.sequence.q.len) || !U::leads_row()) continue;
      RowStat stat = shared_at<RowStat>(Base::kStats + static_cast<uint32_t>(row) * 16);
      const float sink = p.sink ? args.call.a.sink[h] : -infinity();
      const RowSum all = Natural::value ? weighted(state[r].max, sum, sink)
                                        : logarithmic(state[r].max, sum, in_stats_unit(sink, args.lse_unit));
      stat.lse = all.lse == -infinity() ? infinity() : all.lse;
      stat.delta = sum == 0.0f ? 0.0f : delta * all.factor;
      if (Natural::value) args.weight[shared.stats + i] = sum == 0.0f ? 1.0f : all.factor;
      if (p.dlse.dtype != TSR_DTYPE_NONE)
        stat.delta -= args.call.a.dlse[tsri_row_offset(p.dlse.stride, shared.place.b, h,
                                                       shared.sequence.q.begin + i)];
      stat.delta = plain_nan(stat.delta);
      args.stats[shared.stats + i] = stat;
    }
  }
};

} // namespace gpu
} // namespace tessera

#endif // TESSERA_COMMON_GPU_BACKWARD_STATS_HPP_
