// SPDX-License-Identifier: Apache-2.0
//
// The walk of forward_pieces.hpp where O is so wide that a wave has registers for 16 queries of it: two waves
// share 32 queries instead, each makes the scores of half of a tile's keys and has half of the columns of O, so that
// an operand from shared memory serves two products. Probabilities change hands in the layout of the product that
// reads them, lane by lane. Rows move their m as there, if a wave of the pair finds much; both then do.
#ifndef TESSERA_COMMON_GPU_FORWARD_PAIRS_HPP_
#define TESSERA_COMMON_GPU_FORWARD_PAIRS_HPP_

#include "common/gpu/forward_pieces.hpp"

namespace tessera {
namespace gpu {

// Shared memory of a block's pairs: operands of 16 bytes a lane for each of 16 queries x 16 keys, what a row has to say
// to the other wave, and a word of each wave. rows: of a pair; keys: of a wave, of a tile.
TSRI_HOST_DEVICE constexpr uint32_t pair_bytes(int threads, int rows, int keys) {
  return static_cast<uint32_t>(threads * (rows * keys / 256) * 16 + threads / 32 * rows * 4 + threads / 32 * 4);
}

// F: Forward<U, ...> with two waves to a row.
template <class F, class U>
struct Pairs {
  using P = Pieces<F, U>;
  using Walk = typename P::Walk;
  using State = typename P::State;
  using Scores = typename P::Scores;
  using Probs = typename P::Probs;
  static constexpr int kFree = F::kFree, kSlots = F::kSlots, kThreads = F::kThreads;
  static constexpr int kRows = kFree * U::kFree; // of a pair
  static constexpr int kKeys = P::kPiece;        // of a wave, of a tile
  static constexpr int kOperands = kFree * P::kSteps;
  static constexpr uint32_t kNews = F::kPairs + kThreads * kOperands * 16;
  static constexpr uint32_t kWords = kNews + kThreads / U::kWave * kRows * 4;
  static_assert(U::kWave == 32 && sizeof(typename U::P) == 16 && kOperands == kRows * kKeys / 256, "see pair_bytes");
  static_assert(F::kKeyStages == 1 && F::kShare == 2, "one tile of K and of V");

  TSRI_DEVICE_MEMBER int side() { return F::wave() % 2; }
  TSRI_DEVICE_MEMBER void meet() { sync_group(1 + F::wave() / 2, 2 * U::kWave); }

  TSRI_DEVICE_MEMBER typename U::P &operand(int wave, int n) {
    return shared_at<typename U::P>(F::kPairs +
                                    static_cast<uint32_t>(((wave * kOperands + n) * U::kWave + U::lane()) * 16));
  }
  // What a row of wave `wave` has to say.
  TSRI_DEVICE_MEMBER float &news(int wave, int r) {
    const int row = r / U::kRows * U::kFree + U::free_of(r % U::kRows);
    return shared_at<float>(kNews + static_cast<uint32_t>((wave * kRows + row) * 4));
  }
  TSRI_DEVICE_MEMBER uint32_t &word(int wave) { return shared_at<uint32_t>(kWords + static_cast<uint32_t>(wave * 4)); }

  TSRI_DEVICE_MEMBER void give(const Probs &p) {
    TSRI_UNROLL
    for (int n = 0; n < kOperands; ++n) operand(F::wave(), n) = p[n / P::kSteps][n % P::kSteps];
  }

  // The tile once more, after rows of which a lane of the pair has seen much have moved m to their maximum. Both waves
  // come here, and have met before.
  TSRI_DEVICE_MEMBER void fold_again(State &state, float (&minus_ready)[kSlots], Probs &p, float (&sum)[kSlots],
                                     const Scores &s, float unit, bool fresh) {
    const int mine = F::wave();
    float most[kSlots];
    TSRI_UNROLL
    for (int r = 0; r < kSlots; ++r) {
      const bool much = fresh || U::max_con(!(sum[r] <= P::kMuch) ? 1.0f : 0.0f) > 0.0f;
      most[r] = P::most_of(s, r);
      if (!much) most[r] = -infinity();
      if (U::leads_row()) news(mine, r) = most[r];
    }
    meet();
    float alpha[kSlots], ready[kSlots];
    TSRI_UNROLL
    for (int r = 0; r < kSlots; ++r) {
      const float before = P::maximum(r);
      const float m = Softmax::new_max(before, larger_of(most[r], news(mine ^ 1, r)));
      ready[r] = Softmax::ready_reference(unit, m);
      alpha[r] = m == before ? 1.0f : Softmax::prob_ready(unit, before, ready[r]);
      P::maximum(r) = m;
      state.l[r] = Softmax::new_sum(state.l[r], alpha[r], 0.0f);
      minus_ready[r] = P::minus_ready_of(m, unit);
      ready[r] = -ready[r];
    }
    if (!fresh) F::rescale(state, alpha);
    P::probabilities(p, sum, s, unit, ready);
    give(p);
    meet();
  }

  // out += P V of the keys that wave `wave` of the pair has made.
  TSRI_DEVICE_MEMBER void multiply(State &state, const Probs &p, int side) {
    const typename U::ZOffset offset = U::template z_offset<F::TileV::kRowBytes>(
        F::kV + static_cast<uint32_t>(side * kKeys * F::TileV::kRowBytes + F::wave_column() * 2));
    const auto load = [&p](typename U::P(&to)[kFree], int step) {
      TSRI_UNROLL
      for (int f = 0; f < kFree; ++f) to[f] = p[f][step];
    };
    apply_product<U, typename F::TileV, P::kSteps, false>(state.out, offset, load);
  }

  // Tile at key0, of which the pair sees something. between: what waves of the block meet for, behind scores.
  template <bool kInside, class Beside, class Between>
  TSRI_DEVICE_MEMBER void fold(State &state, Walk &w, int32_t key0, int tile_class, bool fresh, const Beside &beside,
                               const Between &between) {
    Scores s;
    P::score(s, w, F::kK + static_cast<uint32_t>(side() * kKeys * F::TileK::kRowBytes), beside);
    if (!kInside && tile_class == TSRI_TILE_EDGE)
      P::mask(s, shared_at<PieceWalk>(F::kWalk), key0 + side() * kKeys);
    Probs p;
    float sum[kSlots];
    bool any = !kInside && fresh;
    if (!any) {
      P::probabilities(p, sum, s, w.unit, w.minus_ready);
      TSRI_UNROLL
      for (int r = 0; r < kSlots; ++r) any = any || !(sum[r] <= P::kMuch);
      give(p);
      any = any_lane(any);
    }
    if (U::lane() == 0) word(F::wave()) = any;
    between();
    if (seldom(any || word(F::wave() ^ 1) != 0)) fold_again(state, w.minus_ready, p, sum, s, w.unit, !kInside && fresh);
    TSRI_UNROLL
    for (int r = 0; r < kSlots; ++r) state.l[r] += sum[r];
    multiply(state, p, side());
    TSRI_UNROLL
    for (int n = 0; n < kOperands; ++n) p[n / P::kSteps][n % P::kSteps] = operand(F::wave() ^ 1, n);
    multiply(state, p, side() ^ 1);
  }

  // K makes way for the next tile's, and V arrives under the scores; that of the first tile has been asked for with K.
  TSRI_DEVICE_MEMBER void walk(Walk &w, const Call &call, State &state, const KeyTiles &first_tiles) {
    const PieceWalk &rest = shared_at<PieceWalk>(F::kWalk);
    const int32_t count = first_tiles.count;
    int32_t key0 = KeyTiles::at(first_tiles, 0) * F::kTileK, next = 0;
    bool fresh = true; // the pair has seen no key
    copy_wait<1>();
    TSRI_NO_UNROLL
    for (int32_t n = 0; n < count; ++n, key0 = next) {
      if (n > 0) copy_wait<0>();
      sync_block(); // K is there, everybody is done with the tile before
      next = n + 1 == rest.tiles.head ? rest.tiles.band * F::kTileK : key0 + F::kTileK;
      const auto beside = [&](int step) {
        if (step != 0) return; // when the first products are under way
        P::load_values(call, key0, 0);
        copy_commit();
      };
      const auto between = [&] {
        copy_wait<0>();
        sync_block(); // V is there, K has been read by all, and probabilities are
        if (n + 1 < count) P::load_keys(call, next, 0);
        copy_commit();
      };
      if (n >= w.full_begin && n < w.full_end) {
        fold<true>(state, w, key0, TSRI_TILE_FULL, false, beside, between);
        continue;
      }
      const RowsClass rows = P::wave_rows(rest); // after the first barrier
      if (n == 0)
        P::find_full(w, rows, rest.tiles);
      else
        beside(0);
      const int tile_class = uniform(RowsClass::of(rows, key0, key0 + F::kTileK));
      if (tile_class == TSRI_TILE_SKIP) {
        between();
        continue;
      }
      fold<false>(state, w, key0, tile_class, fresh, NothingBeside(), between);
      fresh = false;
    }
    join_sums(state);
  }

  // l of whole rows, in the first of a row's lanes, as both waves of the pair add it up.
  TSRI_DEVICE_MEMBER void join_sums(State &state) {
    float sum[kSlots];
    meet(); // news have been read
    TSRI_UNROLL
    for (int r = 0; r < kSlots; ++r) {
      sum[r] = U::sum_con(state.l[r]);
      if (U::leads_row()) news(F::wave(), r) = sum[r];
    }
    meet();
    TSRI_UNROLL
    for (int r = 0; r < kSlots; ++r) state.l[r] = U::leads_row() ? sum[r] + news(F::wave() ^ 1, r) : 0.0f;
  }
};

} // namespace gpu
} // namespace tessera

#endif // TESSERA_COMMON_GPU_FORWARD_PAIRS_HPP_
