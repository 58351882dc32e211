// SPDX-License-Identifier: Apache-2.0
//
// Backward (backward.hpp) of heads so wide that dK and dV of a tile of keys take the registers of eight waves and
// shared memory has no room for more keys: operands from shared memory decide then. Half of the waves make scores and
// dV, the others dP and dK, so that a wave makes 32 keys x 32 queries, and 64 keys x 64 columns, where waves that have
// a part of everything make 32 x 16 and 32 x 64. An operand serves more products: of 64 keys x 64 queries
// and 256 columns 480 KB are read instead of 672. Two waves, one of each half, exchange halves of what they made and
// end it, a half each, to P and dS. dQ of a tile is made beside dV and dK: nothing but one tile of dS is kept.
#ifndef TESSERA_COMMON_GPU_BACKWARD_ROLES_HPP_
#define TESSERA_COMMON_GPU_BACKWARD_ROLES_HPP_

#include "common/gpu/backward.hpp"

namespace tessera {
namespace gpu {

template <class Base>
struct BackwardRoles : Base {
  using U = typename Base::U;
  using E = typename U::Element;
  using Args = BackwardArgs;
  using Acc = typename U::Acc;
  using Steps = BesideSteps<BackwardRoles, U>;
  using typename Base::Scores;
  using typename Base::Shared;
  using TileP = typename Base::TileP;
  static constexpr int kRole = Base::kWaves / 2; // waves of a role
  static constexpr int kKeys = Base::kTileK / 2, kQueries = Base::kTileQ / 2; // of a pair of waves
  static constexpr int kFree = Base::kFree, kPairCon = kQueries / U::kCon;
  static constexpr int kOutFree = Base::kTileK / U::kFree, kOut = Base::TileQ::kColumns / (kRole * 16);
  using Out = Acc[kOutFree][kOut]; // dV or dK: all keys, some columns
  // Of a wave, when it stores.
  using Strip = Tile<E, Base::kTileK, kOut * 16>;

  static constexpr int kGiven = kFree * U::kElements / 4; // 16 bytes a lane
  static constexpr uint32_t kGive = Base::kS + TileP::kBytes;
  static constexpr uint32_t kEnd = kGive + Base::kThreads * kGiven * 16;
  static constexpr uint32_t kSharedBytes = max_of(kEnd, Base::kK + Base::kWaves * Strip::kBytes);
  static constexpr int kMinBlocks = 1;
  static_assert(kRole == 4 && kKeys == kFree * U::kFree && kPairCon == 2 && Base::kGroup == 1 && Base::kBeside &&
                    Base::TileQ::kColumns == Base::TileO::kColumns,
                "a pair has a quarter of a tile and ends a half of that each; roles have the same shapes");

  TSRI_DEVICE_MEMBER int role() { return Base::wave() / kRole; } // 0: scores and dV, 1: dP and dK
  TSRI_DEVICE_MEMBER int pair() { return Base::wave() % kRole; }
  TSRI_DEVICE_MEMBER int key_row() { return pair() / 2 * kKeys; }
  TSRI_DEVICE_MEMBER int pair_row() { return pair() % 2 * kQueries; }

  TSRI_DEVICE_MEMBER void block(const Args &args) {
    const tsr_problem &p = args.call.p;
    Shared &shared = shared_at<Shared>(0);
    typename Base::BlockWork work;
    if (!Base::find_work(args, shared, work)) return;
    Out out;
    clear<U>(out);
    walk(args, shared, work.g, work.key0, out);
    copy_wait<0>();
    sync_block(); // the tiles' memory becomes the outputs'
    const int32_t sk = static_cast<int32_t>(shared.sequence.k.len);
    if (role() == 0)
      store(args, shared, work, out, p.dropout > 0 ? args.call.keep_scale : 1.0f, sk, p.dv, args.call.a.dv, p.dim_v);
    else
      store(args, shared, work, out, p.scale, sk, p.dk, args.call.a.dk, p.dim_qk);
  }

  // See store_gradient.
  TSRI_DEVICE_MEMBER void store(const Args &, const Shared &shared, const typename Base::BlockWork &work, Out &out,
                                float factor, int32_t sk, const tsr_layout &layout, void *data, int64_t columns) {
    if (layout.dtype == TSR_DTYPE_NONE) return;
    TSRI_UNROLL
    for (int f = 0; f < kOutFree; ++f)
      TSRI_UNROLL
      for (int slot = 0; slot < U::kRows; ++slot) {
        const int j = work.key0 + f * U::kFree + U::free_of(slot);
        TSRI_UNROLL
        for (int o = 0; o < kOut; ++o)
          TSRI_UNROLL
          for (int e = 0; e < U::kElements; ++e)
            if (U::slot(e) == slot) out[f][o].x[e] = j >= 0 && j < sk ? out[f][o].x[e] * factor : 0.0f;
      }
    store_wave_outputs<U, Strip>(out, Base::kK + static_cast<uint32_t>(Base::wave()) * Strip::kBytes, 0, layout, data,
                                 shared.place.b, work.g, shared.sequence.k.slot_begin + work.row0,
                                 static_cast<int32_t>(shared.sequence.k.slot_len) - work.row0, pair() * kOut * 16,
                                 static_cast<int>(columns));
  }

  // ---- What a pair exchanges ----

  struct alignas(16) Four {
    float x[4];
  };
  TSRI_DEVICE_MEMBER Four &given(int wave, int n) {
    return shared_at<Four>(kGive + static_cast<uint32_t>(((wave * kGiven + n) * U::kWave + U::offset_lane()) * 16));
  }
  // The half of what this wave made that the other one ends.
  template <int kHalf>
  TSRI_DEVICE_MEMBER void give(const Acc (&made)[kFree][kPairCon]) {
    TSRI_UNROLL
    for (int n = 0; n < kGiven; ++n) {
      const float *x = made[n * 4 / U::kElements][kHalf].x + n * 4 % U::kElements;
      given(Base::wave(), n) = Four{{x[0], x[1], x[2], x[3]}};
    }
  }
  TSRI_DEVICE_MEMBER void take(Scores &other) {
    TSRI_UNROLL
    for (int n = 0; n < kGiven; ++n) {
      const Four four = given(Base::wave() ^ kRole, n);
      TSRI_UNROLL
      for (int i = 0; i < 4; ++i) other[n * 4 / U::kElements][0].x[n * 4 % U::kElements + i] = four.x[i];
    }
  }
  template <int kHalf>
  TSRI_DEVICE_MEMBER void keep_half(Scores &mine, const Acc (&made)[kFree][kPairCon]) {
    TSRI_UNROLL
    for (int f = 0; f < kFree; ++f) mine[f][0] = made[f][kHalf];
  }
  TSRI_DEVICE_MEMBER void meet() { sync_group(1 + pair(), 2 * U::kWave); }

  // P and dS of queries from `row` on, by a wave of role kRoleOf. edge: the interval rule cuts into the pair's part.
  template <int kRoleOf>
  TSRI_DEVICE_MEMBER void end_scores(const Acc (&made)[kFree][kPairCon], uint32_t stats, float unit, int32_t j0,
                                     bool edge) {
    const int row = pair_row() + kRoleOf * U::kCon;
    Scores s, dp;
    typename Steps::Numbers lse, delta;
    give<1 - kRoleOf>(made);
    Steps::load_numbers(lse, stats, row);
    Steps::load_numbers(delta, stats + 4, row);
    uint32_t bits = ~0u;
    if (edge) bits = Steps::allowed(stats, row, j0);
    keep_half<kRoleOf>(kRoleOf == 0 ? s : dp, made);
    // While the other wave makes what this one waits for.
    if (kRoleOf == 0) Steps::make_p(s, lse, unit, 0, Steps::kCount);
    meet();
    take(kRoleOf == 0 ? dp : s);
    if (kRoleOf == 1) Steps::make_p(s, lse, unit, 0, Steps::kCount);
    if (edge) Steps::keep(s, bits);
    Steps::store_scores(Base::kP, s, row);
    Steps::make_ds(s, dp, delta, 0, Steps::kCount);
    if (edge) Steps::keep(dp, bits);
    Steps::store_scores(Base::kS, dp, row);
  }

  // P and dS of a query tile, with the copies of the next one on the way.
  TSRI_DEVICE_MEMBER void make_scores(const Args &args, const Shared &shared, int slot, int32_t i0,
                                      typename Steps::Copies &copies) {
    using T = typename Base::TileQ;
    const uint32_t stats =
        Base::kStats + static_cast<uint32_t>(slot) * (Base::kTileQ * static_cast<uint32_t>(sizeof(RowStat)));
    const uint32_t tile = static_cast<uint32_t>(slot) * T::kBytes;
    const int32_t sq = static_cast<int32_t>(shared.rule.sq), sk = static_cast<int32_t>(shared.rule.sk);
    const int32_t j0 = shared.key0 + key_row(), j1 = j0 + kKeys;
    const int row = pair_row(), last = smaller(sq - i0, row + kQueries);
    int tile_class = TSRI_TILE_SKIP;
    if (row < last && j1 > 0 && j0 < sk) tile_class = uniform(stats_class(stats, row, last, 0, larger(j0, 0), j1));
    if (tile_class == TSRI_TILE_SKIP) { // of both waves of the pair
      Steps::issue(copies, 0, 1);
      Scores none;
      clear<U>(none);
      Steps::store_scores(Base::kP, none, row + role() * U::kCon);
      Steps::store_scores(Base::kS, none, row + role() * U::kCon);
      meet(); // nothing is exchanged, but tools that look for races count the barriers of every wave
      return;
    }
    // Zeros beyond the last query have p = 1, which makes NaN of what is not finite.
    const bool edge = tile_class == TSRI_TILE_EDGE || j0 < 0 || last < row + kQueries;
    const float unit = args.call.p.scale * static_cast<float>(TSRI_LOG2E);
    Acc made[kFree][kPairCon];
    const typename U::Free none[kFree][1] = {};
    const uint32_t x = role() == 0 ? Base::kK : Base::kV, y = (role() == 0 ? Base::kQ : Base::kO) + tile;
    constexpr int depth = T::kColumns / U::kStep;
    score_product<U, T, typename Base::TileK, depth, false, true>(
        made, U::template con_offset<T::kRowBytes>(y) + static_cast<uint32_t>(row * T::kRowBytes),
        U::template free_offset<T::kRowBytes>(x) + static_cast<uint32_t>(key_row() * T::kRowBytes), none,
        [&](int step) { Steps::issue(copies, step, depth * kPairCon); });
    if (role() == 0)
      end_scores<0>(made, stats, unit, j0, edge);
    else
      end_scores<1>(made, stats, unit, j0, edge);
  }

  // out += P^T dO, or dS^T Q.
  TSRI_DEVICE_MEMBER void apply(int slot, Out &out) {
    using T = typename Base::TileQ;
    const uint32_t tile = static_cast<uint32_t>(slot) * T::kBytes;
    const uint32_t p = role() == 0 ? Base::kP : Base::kS, z = (role() == 0 ? Base::kO : Base::kQ) + tile;
    const uint32_t p_offset = U::template apply_offset<TileP::kRowBytes>(p);
    apply_product<U, T, Base::kTileQ / U::kApplyStep, true>(
        out, U::template z_offset<T::kRowBytes>(z, pair() * kOut),
        [p_offset](typename U::P(&a)[kOutFree], int step) {
          TSRI_UNROLL
          for (int f = 0; f < kOutFree; ++f)
            U::template load_apply<TileP::kRowBytes>(a[f], p_offset, f * U::kFree, step);
        });
  }

  // All query tiles of all heads of the group.
  TSRI_DEVICE_MEMBER void walk(const Args &args, Shared &shared, uint32_t g, int32_t key0, Out &out) {
    int32_t begin, end;
    if (!Base::find_queries(shared, key0, begin, end)) return;
    Base::load_both(args, shared, g, key0);
    {
      typename Steps::Copies first = start_queries(args, shared, 0, begin * Base::kTileQ);
      Steps::issue(first, 0, 1);
      copy_commit();
    }
    if (thread_index() == 0) {
      shared.begin = begin;
      shared.count = end - begin;
      shared.first_head = g * static_cast<uint32_t>(args.call.group);
      shared.key0 = key0;
    }
    // Where copies of the next tile begin: kept in registers, shared memory has no room.
    const unsigned char *from_q = queries_at(shared, (begin + 1) * Base::kTileQ);
    const unsigned char *from_o = gradients_at(shared, (begin + 1) * Base::kTileQ);
    int32_t tile = begin;
    const int32_t total = (end - begin) * args.call.group;
    constexpr int sum = Base::kTileQ * Base::TileQ::kColumns; // floats of a tile
    TSRI_NO_UNROLL
    for (int32_t n = 0; n < total; ++n) {
      copy_wait<0>();
      sync_block(); // this tile has arrived; everybody is done with the one before
      const int32_t i0 = tile * Base::kTileQ;
      if (thread_index() == 0) shared.sum_row[0] = shared.sums + tile;
      if (++tile == shared.begin + shared.count && n + 1 < total) { // the next one is of the next head
        tile = shared.begin;
        if (thread_index() == 0)
          Base::take_head(args, shared, shared.first_head + static_cast<uint32_t>((n + 1) / shared.count));
        sync_block();
        from_q = queries_at(shared, tile * Base::kTileQ);
        from_o = gradients_at(shared, tile * Base::kTileQ);
      }
      // No branch around what is copied: without a next tile there are no rows.
      typename Steps::Copies copies = Steps::copies_of(
          args, shared, (n + 1) % 2, tile * Base::kTileQ,
          n + 1 < total ? static_cast<int32_t>(shared.rule.sq) - tile * Base::kTileQ : 0, from_q, from_o);
      make_scores(args, shared, n % 2, i0, copies);
      from_q = copies.q.from;
      from_o = copies.dout.from;
      copy_commit();
      sync_block(); // P and dS are complete
      // The other way round in the other role: additions of one pass under products of the other.
      TSRI_NO_UNROLL
      for (int turn = 0; turn < 2; ++turn) {
        if (turn == role())
          apply(n % 2, out);
        else if (args.dq_sum)
          Steps::add_queries(args.dq_sum + shared.sum_row[0] * sum, Base::kS);
      }
    }
  }

  // The thread's first chunk of the tile of Q, or of dO, that begins with query i0.
  TSRI_DEVICE_MEMBER const unsigned char *queries_at(const Shared &shared, int32_t i0) {
    return Steps::CopiesQ::source(shared.q, i0, 0, fresh_thread_index());
  }
  TSRI_DEVICE_MEMBER const unsigned char *gradients_at(const Shared &shared, int32_t i0) {
    return Steps::CopiesO::source(shared.dout, i0, 0, fresh_thread_index());
  }
  TSRI_DEVICE_MEMBER typename Steps::Copies start_queries(const Args &args, const Shared &shared, int stage,
                                                          int32_t i0) {
    return Steps::copies_of(args, shared, stage, i0, static_cast<int32_t>(shared.rule.sq) - i0, queries_at(shared, i0),
                            gradients_at(shared, i0));
  }
};

// Which program makes dK, dV and the sums of dQ of a row.
template <class Base, bool kRoles>
struct BackwardOrRoles : std::enable_if<true, Base> {};
template <class Base>
struct BackwardOrRoles<Base, true> : std::enable_if<true, BackwardRoles<Base>> {};
template <class Base>
using BackwardOf = typename BackwardOrRoles<Base, Base::kBeside && Base::kSharers == 4 && Base::kWaves == 8 &&
                                                      Base::kTileQ == 64 && Base::kTileK == 64 &&
                                                      Base::TileQ::kColumns == Base::TileO::kColumns>::type;

} // namespace gpu
} // namespace tessera

#endif // TESSERA_COMMON_GPU_BACKWARD_ROLES_HPP_
