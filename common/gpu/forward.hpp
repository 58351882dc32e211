// SPDX-License-Identifier: Apache-2.0
//
// Forward: one block folds the keys that a tile of queries may see (Dao 2023, "FlashAttention-2",
// algorithm 1). Each wave owns kFree x U::kFree queries and all columns of its chunk of Dv; scores and
// probabilities live in registers. Key tiles come through kStages buffers: with two, the copies of the
// next tile run under the products of this one and there is one barrier per tile; with one, V arrives under the
// scores and the next K under the rest (less shared memory, two barriers).
//
// kAny false: interval masks on aligned tensors, no row maxima, scores stay raw (unit = scale log2 e is folded into
// the exponent). Rows of 16 bits whose lanes copy by cp.async walk in pieces of keys then, see forward_pieces.hpp.
// kAny true: every score step of score.hpp, any strides; scores are natural.
#ifndef TESSERA_COMMON_GPU_FORWARD_HPP_
#define TESSERA_COMMON_GPU_FORWARD_HPP_

#include "common/gpu/arguments.hpp"
#include "common/gpu/epilogue.hpp"
#include "common/gpu/forward_pairs.hpp"
#include "common/gpu/forward_pieces.hpp"
#include "common/gpu/forward_sliced.hpp"
#include "common/gpu/forward_staged.hpp"
#include "common/gpu/product.hpp"
#include "common/gpu/row_policy.hpp"
#include "common/gpu/score.hpp"
#include "common/gpu/turned.hpp"
#include "common/gpu/tile.hpp"
#include "common/gpu/work.hpp"

namespace tessera {
namespace gpu {

// Lanes that hold the same rows side by side; 0: of units that do not say.
template <class U, class = void>
struct RowLanes {
  static constexpr int value = 0;
};
template <class U>
struct RowLanes<U, decltype(static_cast<void>(U::kRowLanes))> {
  static constexpr int value = U::kRowLanes;
};

// kSlice: columns of Q and K that are in shared memory at a time; fewer than all: see forward_sliced.hpp.
template <class U, int kTileQ_, int kTileK_, int kDqk, int kDv, int kWaves, int kStages, bool kAny,
          bool kPaged = true, int kSlice = kDqk>
struct Forward {
  using E = typename U::Element;
  using Args = ForwardArgs;
  static constexpr int kTileQ = kTileQ_, kTileK = kTileK_, kKeyStages = kStages, kOutColumns = kDv;
  static constexpr int kThreads = kWaves * U::kWave;
  // Walks in pieces of keys, see forward_pieces.hpp; where O is wide two waves share rows, see forward_pairs.hpp.
  template <class T>
  static constexpr bool kDown = LaneCopies<T, kThreads>::kRegular;
  static constexpr bool kPieces = !kAny && !kPaged && !Operands<U>::kTurned && !U::kStaged && !U::kSplits &&
                                  sizeof(E) == 2 && RowLanes<U>::value > 0 && kDqk == kDv && kTileK % 32 == 0 &&
                                  (kStages > 1 || kDv > 128) && // or a piece would wait for all of V
                                  kDown<Tile<E, kTileQ, kDqk>> && kDown<Tile<E, kTileK, kDqk>>;
  static constexpr int kShare = kPieces && kStages == 1 ? 2 : 1; // waves to a row
  static constexpr int kFree = kTileQ * kShare / (kWaves * U::kFree); // accumulators along the queries
  static constexpr int kCon = kTileK / U::kCon;                       // and along the keys
  static constexpr int kDepth = kSlice / U::kStep;
  static constexpr int kOut = kDv / (U::kCon * kShare); // and along the columns of O
  static constexpr int kApply = U::kCon / U::kApplyStep;
  static constexpr int kSlots = kFree * U::kRows; // queries of a lane
  // Turned: operands of two key tiles, and copies of a third; see turned.hpp.
  static constexpr bool kTurned = Operands<U>::kTurned;
  using TileQ = typename Operands<U>::template In<kTileQ, kSlice>;
  using TileK = typename Operands<U>::template In<kTileK, kSlice>;
  using TileV = typename U::template ZTile<kTileK, kDv>;
  using TileO = Tile<E, kTileQ, kDv>;
  using CopyQ = typename Operands<U>::template Copy<TileQ>;
  using CopyK = typename Operands<U>::template Copy<TileK>;
  using CopyV = typename Operands<U>::template Copy<TileV>;
  // Queries stay in registers where these are few, or (staged) where shared memory has no room for them.
  static constexpr int kQueryBytes = kFree * kDepth * static_cast<int>(sizeof(typename U::Free)); // of a lane
  static constexpr bool kKeepQ = !U::kSplits && (kQueryBytes <= 128 || (U::kStaged && kQueryBytes <= 640 &&
                                                 TileQ::kBytes + TileK::kBytes + TileV::kBytes > 60 * 1024));

  struct Shared { // at the front of shared memory
    tsri_sequence sequence;
    tsri_mask_rule rule;
    Place place;
    RowSource k, v;   // not in registers: they are needed only where copies start,
    ScoreTerms terms; // and these, of kAny, only among scores
    int32_t odd[2];   // turned: the last key tile of a stage whose values want a second look
  };
  static constexpr uint32_t kBands = ceil_div(sizeof(Shared), 16) * 16;
  static constexpr uint32_t kQ = ceil_div(kBands + kTileQ * sizeof(RowBand), 1024) * 1024;
  // Staged: one buffer, and queries that are kept in registers come straight from memory.
  static constexpr int kBuffers = U::kStaged ? 1 : kStages;
  static constexpr uint32_t kK = kQ + (U::kStaged && kKeepQ ? 0 : TileQ::kBytes);
  static constexpr uint32_t kV = kK + kBuffers * TileK::kBytes;
  static constexpr uint32_t kCopyK = kV + kBuffers * TileV::kBytes;
  static constexpr uint32_t kCopyV = kCopyK + (kTurned ? CopyK::kBytes : 0);
  static constexpr int kPieceKeys = kShare > 1 ? kTileK / kShare : 32; // of a wave
  static constexpr uint32_t kMaxima = kCopyV + (kTurned ? CopyV::kBytes : 0);
  static constexpr uint32_t kSides = kMaxima + (kPieces ? kThreads * kSlots * 4 : 0);
  static constexpr uint32_t kWalk = kSides + (kPieces ? kThreads * 2 * 16 : 0);
  static constexpr uint32_t kPairs = ceil_div(kWalk + (kPieces ? sizeof(PieceWalk) : 0), 16) * 16;
  static constexpr uint32_t kEnd = kPairs + (kShare > 1 ? pair_bytes(kThreads, kFree * U::kFree, kPieceKeys) : 0);
  // O leaves through shared memory, in two parts where that makes room for another block.
  static constexpr int kParts =
      U::kStaged && kOut % 2 == 0 && kDv / 2 * sizeof(E) % 128 == 0 && kQ + TileO::kBytes > kEnd ? 2 : 1;
  using PartO = Tile<E, kTileQ, kDv / kParts>;
  static constexpr uint32_t kSharedBytes = max_of(kEnd, kQ + PartO::kBytes);
  // Three blocks where registers have room: a wave waits longer than it computes.
  static constexpr int kMinBlocks = kThreads > 128 || kSharedBytes > 113 * 1024                    ? 1
                                    : kPieces && kDv <= 64 && kSharedBytes <= 75 * 1024 ? 3
                                                                                        : 2;
  static constexpr float kSlack = 8.0f; // how far m may lag behind, in powers of two
  // Rows of which one key is all are as exact as their values then: its probability is 1, which planes hold.
  static constexpr bool kExactMax = kAny || HasScales<TileV>::value;
  static_assert(!kTurned || (kStages == 2 && kEnd >= kK + CopyQ::kBytes), "copies beside operands");
  static_assert(kFree >= 1 && kTileQ * kShare == kFree * kWaves * U::kFree, "whole accumulators per wave");

  // What a wave carries from tile to tile.
  struct State {
    typename U::Acc out[kFree][kOut];
    float m[kSlots]; // maximum so far, in the scores' own unit
    float l[kSlots]; // this lane's part of the sum
  };
  using Scores = typename U::Acc[kFree][kCon];

  TSRI_DEVICE_MEMBER int wave() { return wave_index(U::kWave); }
  // First row of the wave, relative to the tile.
  TSRI_DEVICE_MEMBER int wave_row() { return wave() / kShare * kFree * U::kFree; }
  // First column of O of the wave, of the block's.
  TSRI_DEVICE_MEMBER int wave_column() { return kShare > 1 ? wave() % kShare * kOut * U::kCon : 0; }

  // Scores of a tile of keys at `k_tile`.
  TSRI_DEVICE_MEMBER void score_tile(Scores &s, uint32_t k_tile, uint32_t q_offset,
                                     const typename U::Free (&kept)[kFree][kKeepQ ? kDepth : 1]) {
    score_product<U, TileK, TileQ, kDepth, kKeepQ>(
        s, U::template con_offset<TileK::kRowBytes>(k_tile), q_offset, kept);
    if constexpr (HasScales<TileK>::value) U::template scale_scores<TileK, TileQ>(s, k_tile, kQ, wave_row());
  }

  // Hides what the interval rule hides.
  TSRI_DEVICE_MEMBER void mask_scores(Scores &s, int32_t prefix, int32_t key0) {
    TSRI_UNROLL
    for (int r = 0; r < kSlots; ++r) {
      const int f = r / U::kRows;
      const Limits limits = row_limits(kBands, wave_row() + f * U::kFree + U::free_of(r % U::kRows),
                                       prefix, key0 + U::con_lane());
      // Most edges are on the right alone.
      if (limits.prefix <= 0 && limits.lo <= 0)
        mask_row<true>(s[f], r % U::kRows, limits);
      else
        mask_row<false>(s[f], r % U::kRows, limits);
    }
  }
  template <bool kRight>
  TSRI_DEVICE_MEMBER void mask_row(typename U::Acc (&s)[kCon], int slot, const Limits &limits) {
    TSRI_UNROLL
    for (int c = 0; c < kCon; ++c)
      TSRI_UNROLL
      for (int e = 0; e < U::kElements; ++e) {
        const int32_t o = c * U::kCon + U::con_element(e);
        if (U::slot(e) == slot && !(kRight ? o < limits.hi : Limits::allows(limits, o)))
          s[c].x[e] = -infinity();
      }
  }

  // All score steps, for kAny.
  TSRI_DEVICE_MEMBER void modify_scores(Scores &s, const ScoreTerms &terms, int32_t prefix,
                                        int32_t i0, int32_t key0) {
    TSRI_UNROLL
    for (int r = 0; r < kSlots; ++r) {
      const int f = r / U::kRows;
      const int32_t i = i0 + f * U::kFree + U::free_of(r % U::kRows);
      const int32_t j0 = key0 + U::con_lane();
      const Limits limits =
          row_limits(kBands, wave_row() + f * U::kFree + U::free_of(r % U::kRows), prefix, j0);
      TSRI_UNROLL
      for (int c = 0; c < kCon; ++c)
        TSRI_UNROLL
        for (int e = 0; e < U::kElements; ++e) {
          if (U::slot(e) != r % U::kRows) continue;
          const int32_t o = c * U::kCon + U::con_element(e);
          float &x = s[f][c].x[e];
          x = Limits::allows(limits, o) ? score_of(terms, x, i, j0 + o) : -infinity();
        }
    }
  }

  // Folds one tile of scores into m and l and turns it into probabilities; alpha: the factors on the
  // outputs so far. True if one of this lane's is not 1. unit * score is in base two. kExactMax false: m moves
  // only when it is left behind by 2^8 (lazy_max).
  TSRI_DEVICE_MEMBER bool fold_scores(State &state, Scores &s, float unit, float (&alpha)[kSlots]) {
    bool moved = false;
    TSRI_UNROLL
    for (int r = 0; r < kSlots; ++r) {
      const int f = r / U::kRows;
      // Two chains: what one maximum or sum takes, another can be under way in.
      float most[2] = {-infinity(), -infinity()};
      TSRI_UNROLL
      for (int c = 0; c < kCon; ++c)
        TSRI_UNROLL
        for (int e = 0; e < U::kElements; ++e)
          if (U::slot(e) == r % U::kRows) most[e & 1] = larger_of(most[e & 1], s[f][c].x[e]);
      const float tile_max = U::max_con(larger_of(most[0], most[1]));
      const float m = kExactMax ? Softmax::new_max(state.m[r], tile_max)
                                : Softmax::lazy_max(unit, state.m[r], tile_max, kSlack);
      const float ref = Softmax::reference(m);
      const float ready = Softmax::ready_reference(unit, m);
      moved = moved || m != state.m[r];
      // Exactly 1 while m stays: the rounding of `ready` would multiply up in l, tile after tile.
      alpha[r] = kExactMax           ? Softmax::correction_in(unit, state.m[r], ref)
                 : m == state.m[r] ? 1.0f
                                   : Softmax::prob_ready(unit, state.m[r], ready);
      state.m[r] = m;
      float sum[2] = {0.0f, 0.0f};
      TSRI_UNROLL
      for (int c = 0; c < kCon; ++c)
        TSRI_UNROLL
        for (int e = 0; e < U::kElements; ++e)
          if (U::slot(e) == r % U::kRows) {
            float &x = s[f][c].x[e];
            x = kExactMax ? Softmax::prob_in(unit, x, ref) : Softmax::prob_ready(unit, x, ready);
            sum[e & 1] += x;
          }
      state.l[r] = Softmax::new_sum(state.l[r], alpha[r], sum[0] + sum[1]);
    }
    return moved;
  }

  TSRI_DEVICE_MEMBER void rescale(State &state, const float (&alpha)[kSlots]) {
    TSRI_UNROLL
    for (int r = 0; r < kSlots; ++r) {
      TSRI_UNROLL
      for (int o = 0; o < kOut; ++o)
        TSRI_UNROLL
        for (int e = 0; e < U::kElements; ++e)
          if (U::slot(e) == r % U::kRows) {
            float &x = state.out[r / U::kRows][o].x[e];
            x = Softmax::rescale(x, alpha[r]);
          }
    }
  }

  TSRI_DEVICE_MEMBER void fold(State &state, Scores &s, float unit) {
    float alpha[kSlots];
    const bool moved = fold_scores(state, s, unit, alpha);
    if (seldom(any_lane(moved))) rescale(state, alpha);
  }

  TSRI_DEVICE_MEMBER void drop(Scores &s, const ScoreTerms &terms, int32_t i0, int32_t key0) {
    TSRI_UNROLL
    for (int f = 0; f < kFree; ++f)
      TSRI_UNROLL
      for (int c = 0; c < kCon; ++c)
        TSRI_UNROLL
        for (int e = 0; e < U::kElements; e += 2) {
          bool keep[2];
          keep_pair(terms, i0 + f * U::kFree + U::free_of(U::slot(e)),
                    key0 + U::con_lane() + c * U::kCon + U::con_element(e), keep);
          if (!keep[0]) s[f][c].x[e] = 0.0f;
          if (!keep[1]) s[f][c].x[e + 1] = 0.0f;
        }
  }

  // out += P V of one tile.
  // odd: of a tile with values that are not finite or nearly so; only turned tiles know.
  TSRI_DEVICE_MEMBER void multiply_values(State &state, const Scores &s, uint32_t v_tile, bool odd = true) {
    const typename U::ZOffset v_offset = U::template z_offset<TileV::kRowBytes>(v_tile);
    const auto load = [&s](typename U::P(&p)[kFree], int step) {
      TSRI_UNROLL
      for (int f = 0; f < kFree; ++f) U::to_operand(p[f], s[f][step / kApply], step % kApply);
    };
    if constexpr (kTurned) {
      if (odd)
        recheck_values<U, TileV>(state.out, s, v_tile, ~0u >> (32 - kOut));
      else if constexpr (HasScales<TileV>::value)
        apply_product_scaled<U, TileV>(state.out, s, v_tile, v_offset);
      else
        apply_product_split<U, TileV, kCon * kApply, true>(state.out, v_offset, load);
    } else if constexpr (U::kSplits) {
      const uint32_t left_out =
          apply_product_split<U, TileV, kCon * kApply, false>(state.out, v_offset, load);
      if (left_out) recheck_values<U, TileV>(state.out, s, v_tile, left_out);
    } else {
      apply_product<U, TileV, kCon * kApply, false>(state.out, v_offset, load);
    }
  }

  // Start loading a tile of keys, or of values from `column` on, into a stage.
  TSRI_DEVICE_MEMBER void load_keys(const RowSource &k, int32_t key0, uint32_t stage) {
    load_tile<E, CopyK, kThreads, kAny, kPaged>(kTurned ? kCopyK : kK + stage * TileK::kBytes, k, key0, 0);
  }
  TSRI_DEVICE_MEMBER void load_values(const RowSource &v, int32_t key0, int column, uint32_t stage) {
    load_tile<E, CopyV, kThreads, kAny, kPaged>(kTurned ? kCopyV : kV + stage * TileV::kBytes, v, key0,
                                                column);
  }

  // Turned: key tile n from its copies, into the half of the operands that nobody reads; then the copies of the
  // next one begin.
  TSRI_DEVICE_MEMBER void turn_keys(Shared &shared, const KeyTiles &tiles, int32_t n, int column) {
    const uint32_t stage = static_cast<uint32_t>(n % kStages);
    copy_wait<0>();
    turn_tile<U, TileK, kThreads>(kCopyK, kK + stage * TileK::kBytes, thread_index());
    if (turn_tile<U, TileV, kThreads>(kCopyV, kV + stage * TileV::kBytes, thread_index()))
      shared.odd[stage] = n;
    if (n + 1 < tiles.count) {
      load_keys(shared.k, KeyTiles::at(tiles, n + 1) * kTileK, 0);
      load_values(shared.v, KeyTiles::at(tiles, n + 1) * kTileK, column, 0);
    }
    copy_commit();
  }

  // All key tiles, copied by the device beside the products.
  TSRI_DEVICE_MEMBER void walk_async(Shared &shared, State &state, const KeyTiles &tiles, const RowSource &q,
                                     int32_t prefix, int32_t i0, int32_t sq, int column, float unit) {
    const RowSource &k = shared.k, &v = shared.v;
    const ScoreTerms &terms = shared.terms;
    if (tiles.count > 0) {
      load_tile<E, CopyQ, kThreads, kAny, false>(kTurned ? kK : kQ, q, i0, 0);
      if constexpr (kTurned) { // over what keys need later
        copy_commit();
        copy_wait<0>();
        turn_tile<U, TileQ, kThreads>(kK, kQ, thread_index());
        sync_block();
      }
      load_keys(k, KeyTiles::at(tiles, 0) * kTileK, 0);
      if (kStages > 1) load_values(v, KeyTiles::at(tiles, 0) * kTileK, column, 0);
      copy_commit();
      if constexpr (kTurned) turn_keys(shared, tiles, 0, column);
    }
    const uint32_t q_offset =
        U::template free_offset<TileQ::kRowBytes>(kQ) + wave_row() * TileQ::kRowBytes;
    typename U::Free kept[kFree][kKeepQ ? kDepth : 1];
    const int32_t wave_i0 = i0 + wave_row();
    const int first = larger(-i0, wave_row());
    const int last = smaller(sq - i0, wave_row() + kFree * U::kFree);
    RowsClass rows = {0, 0, 0, 0, 0};
    TSRI_NO_UNROLL
    for (int32_t n_tile = 0; n_tile < tiles.count; ++n_tile) {
      const int32_t key0 = KeyTiles::at(tiles, n_tile) * kTileK;
      const int32_t next = KeyTiles::at(tiles, n_tile + 1) * kTileK;
      const uint32_t stage = static_cast<uint32_t>(kStages > 1 ? n_tile % kStages : 0);
      const uint32_t k_tile = kK + stage * TileK::kBytes, v_tile = kV + stage * TileV::kBytes;
      const bool ends = n_tile + 1 >= tiles.count;
      if (!kTurned) copy_wait<0>();
      sync_block(); // K is there (of two stages V too), everybody is done with the tile before
      if (kStages == 1) {
        load_values(v, key0, column, 0);
      } else if (!kTurned && !ends) {
        const uint32_t other = static_cast<uint32_t>((n_tile + 1) % kStages);
        load_keys(k, next, other);
        load_values(v, next, column, other);
      }
      copy_commit();
      if (kKeepQ && n_tile == 0) {
        TSRI_UNROLL
        for (int f = 0; f < kFree; ++f)
          TSRI_UNROLL
          for (int t = 0; t < (kKeepQ ? kDepth : 1); ++t)
            U::template load_free<TileQ::kRowBytes>(kept[f][t], q_offset, f * U::kFree, t);
      }
      // The wave's own rows decide: next to the diagonal some waves see all of a tile, some nothing.
      // Rows outside the sequence are computed and not used.
      if (n_tile == 0) rows = rows_class(kBands, first, last, prefix); // after the barrier
      const int tile_class = uniform(RowsClass::of(rows, key0, key0 + kTileK));
      Scores s;
      if (tile_class != TSRI_TILE_SKIP) {
        score_tile(s, k_tile, q_offset, kept);
        if (kAny)
          modify_scores(s, terms, prefix, wave_i0, key0);
        else if (tile_class == TSRI_TILE_EDGE)
          mask_scores(s, prefix, key0);
      }
      if constexpr (kTurned)
        if (!ends) turn_keys(shared, tiles, n_tile + 1, column);
      if (kStages == 1) {
        copy_wait<0>();
        sync_block(); // V is there, K has been read by all
        if (!ends) load_keys(k, next, 0);
        copy_commit();
      }
      if (tile_class != TSRI_TILE_SKIP) {
        fold(state, s, unit);
        if (kAny && terms.drops) drop(s, terms, wave_i0, key0);
        multiply_values(state, s, v_tile, !kTurned || shared.odd[n_tile % 2] == n_tile);
      }
    }
  }

  TSRI_DEVICE_MEMBER void block(const Args &args) {
    if constexpr (kPieces && kMinBlocks > 2) { // by offsets that no register keeps
      using Fresh = Forward<typename U::Fresh, kTileQ, kTileK, kDqk, kDv, kWaves, kStages, kAny, kPaged>;
      return Pieces<Fresh, typename U::Fresh>::block(args);
    } else if constexpr (kPieces) {
      return Pieces<Forward, U>::block(args);
    }
    const tsr_problem &p = args.call.p;
    const tsr_args &a = args.call.a;
    // Which work: the tile is fastest, and the last rows, which see the most keys, come first.
    uint32_t n = block_index();
    const uint32_t tile = n % static_cast<uint32_t>(args.tiles);
    n /= static_cast<uint32_t>(args.tiles);
    const int column = static_cast<int>(n % static_cast<uint32_t>(args.chunks)) * kDv;
    n /= static_cast<uint32_t>(args.chunks);
    const uint32_t h = n % static_cast<uint32_t>(p.heads_q);
    Shared &shared = shared_at<Shared>(0);
    if (wave() == 0) {
      Place place = {n / static_cast<uint32_t>(p.heads_q),
                     args.tiles - 1 - static_cast<int32_t>(tile)};
      if (a.cu_q)
        place = find_packed(a.cu_q, p.index_dtype, p.total_q, p.batch, kTileQ, tile, U::kWave);
      if (thread_index() == 0) {
        shared.odd[0] = shared.odd[1] = -1;
        shared.place = place;
        if (place.b >= 0) {
          const uint32_t kv_head = h / static_cast<uint32_t>(args.call.group);
          shared.sequence = tsri_sequence_of(&p, &a, place.b);
          shared.rule = tsri_sequence_rule(&p, &shared.sequence);
          const tsri_pages pages = tsri_pages_of(&p, &a);
          shared.k = kv_source<E>(a.k, p.k, shared.sequence.k, pages, place.b, kv_head,
                                  p.dim_qk, args.call.vector & kVectorK);
          shared.v = kv_source<E>(a.v, p.v, shared.sequence.k, pages, place.b, kv_head,
                                  p.dim_v, args.call.vector & kVectorV);
          if (kAny) shared.terms = score_terms(args.call, shared.sequence, place.b, h);
        }
      }
    }
    sync_block();
    const int64_t b = shared.place.b;
    if (uniform(b < 0)) return;
    const int32_t row0 = shared.place.tile * kTileQ; // of the slot
    const int32_t slot_rows = static_cast<int32_t>(shared.sequence.q.slot_len);
    if (uniform(row0 >= slot_rows)) return;
    // Used row of the tile's first row; negative before the left padding ends.
    const int32_t i0 = row0 - static_cast<int32_t>(shared.sequence.q.begin -
                                                   shared.sequence.q.slot_begin);
    const int32_t sq = static_cast<int32_t>(shared.sequence.q.len);
    const KeyTiles tiles = key_tiles(shared.rule, larger(i0, 0), smaller(i0 + kTileQ, sq), kTileK);

    const int32_t prefix = static_cast<int32_t>(shared.rule.prefix);
    store_bands<kTileQ, kThreads>(kBands, shared.rule, i0);
    const RowSource q = row_source<E>(a.q, p.q, shared.sequence.q, b, h, p.dim_qk,
                                      args.call.vector & kVectorQ);
    State state;
    clear<U>(state.out);
    TSRI_UNROLL
    for (int r = 0; r < kSlots; ++r) {
      state.m[r] = Softmax::start_max();
      state.l[r] = Softmax::start_sum();
    }
    const float unit = kAny ? static_cast<float>(TSRI_LOG2E)
                            : p.scale * static_cast<float>(TSRI_LOG2E);

    if constexpr (kSlice < kDqk) {
      SlicedWalk<Forward, U, kAny, kPaged>::run(shared, state, tiles, q, prefix, i0, sq, column, unit,
                                                static_cast<int>(p.dim_qk));
    } else if constexpr (U::kStaged) {
      if (tiles.count > 0)
        StagedWalk<Forward, U, kAny, kPaged>::run(shared, state, tiles, q, prefix, i0, sq, column, unit);
    } else {
      walk_async(shared, state, tiles, q, prefix, i0, sq, column, unit);
    }
    copy_wait<0>();
    sync_block(); // the tiles' memory becomes the output's
    finish(args.call, state, b, h, column, row0, i0, unit);
  }

  // The maximum of a row from what the recurrence kept of it, which is not a NaN: a NaN score made the sum
  // one. (The maximum +inf does too.)
  TSRI_DEVICE_MEMBER float max_logit_of(float m, float l) {
    return l != l && m != infinity() ? l : m;
  }

  // What ends a row: the factor on its outputs, LSE and the row maximum.
  struct RowEnd {
    float factor, lse, max_logit;
    bool writes; // its outputs count; otherwise they are 0, whatever stands in V
  };
  // lane_sum: the lane's part of l. used: the row is one of the sequence.
  TSRI_DEVICE_MEMBER RowEnd end_row(const Call &call, int64_t h, float m, float lane_sum, float unit,
                                    bool used) {
    return end_row_in(call, h, m, lane_sum, kAny ? 1.0f : call.p.scale, unit, used);
  }
  // natural: times m is natural.
  TSRI_DEVICE_MEMBER RowEnd end_row_in(const Call &call, int64_t h, float m, float lane_sum, float natural,
                                       float unit, bool used) {
    return end_row_of(call, h, m, U::sum_con(lane_sum), natural, unit, used);
  }
  // l: the whole row's.
  TSRI_DEVICE_MEMBER RowEnd end_row_of(const Call &call, int64_t h, float m, float l, float natural, float unit,
                                       bool used) {
    const tsr_problem &p = call.p;
    // A maximum without a finite power of two leaves nothing to measure scores from: NaN, as after +inf.
    if (!kAny && m != -infinity() && m * unit - m * unit != 0.0f) l = infinity() - infinity();
    RowEnd end = {Softmax::inverse_sum(l), 0.0f, max_logit_of(m, l) * natural,
                  used && l != 0.0f}; // 0: no key was allowed
    if (p.sink || p.lse.dtype != TSR_DTYPE_NONE) end.lse = Softmax::log_sum_exp_in(natural, m, l);
    if (p.sink) end.factor = Softmax::join_sink(m * natural, l, call.a.sink[h], &end.lse);
    if (p.dropout > 0) end.factor *= call.keep_scale;
    if (!used) end.lse = end.max_logit = -infinity();
    return end;
  }

  // all: every row of the wave writes.
  TSRI_DEVICE_MEMBER void scale_row(State &state, int r, const RowEnd &end, bool all) {
    TSRI_UNROLL
    for (int o = 0; o < kOut; ++o)
      TSRI_UNROLL
      for (int e = 0; e < U::kElements; ++e)
        if (U::slot(e) == r % U::kRows) state.out[r / U::kRows][o].x[e] *= end.factor;
    if (all) return;
    TSRI_UNROLL
    for (int o = 0; o < kOut; ++o)
      TSRI_UNROLL
      for (int e = 0; e < U::kElements; ++e)
        if (U::slot(e) == r % U::kRows && !end.writes) state.out[r / U::kRows][o].x[e] = 0.0f;
  }

  // Ends all rows, and O through shared memory.
  TSRI_DEVICE_MEMBER void finish(const Call &call, State &state, int64_t b, int64_t h, int column,
                                 int32_t row0, int32_t i0, float unit) {
    const tsr_problem &p = call.p;
    const tsri_span &span = shared_at<Shared>(0).sequence.q;
    const int32_t rows = static_cast<int32_t>(span.slot_len) - row0;
    constexpr int row_lanes = RowLanes<U>::value;
    if constexpr (!kAny && !U::kSplits && row_lanes >= kSlots) { // each lane of a row ends one of their rows
      const int lane = U::lane(), mine = lane % row_lanes % kSlots;
      float m = state.m[0], l = U::sum_con(state.l[0]);
      int row = U::free_of(0);
      TSRI_UNROLL
      for (int r = 1; r < kSlots; ++r) {
        const float other = U::sum_con(state.l[r]);
        if (r == mine) {
          m = state.m[r];
          l = other;
          row = r / U::kRows * U::kFree + U::free_of(r % U::kRows);
        }
      }
      row += wave_row();
      const bool used = static_cast<uint32_t>(i0 + row) < static_cast<uint32_t>(span.len);
      const RowEnd end = end_row_of(call, h, m, l, kAny ? 1.0f : p.scale, unit, used);
      const bool all = !any_lane(!end.writes);
      TSRI_UNROLL
      for (int r = 0; r < kSlots; ++r) {
        const int owner = lane - lane % row_lanes + r;
        RowEnd its = end;
        its.factor = shuffle(end.factor, owner);
        if (!all) its.writes = shuffle(static_cast<uint32_t>(end.writes), owner) != 0;
        scale_row(state, r, its, all);
      }
      if (column == 0 && wave_column() == 0 && row < rows && lane % row_lanes < kSlots)
        store_row_numbers(call, b, h, span.slot_begin + row0 + row, end.lse, end.max_logit);
    } else {
      TSRI_UNROLL
      for (int r = 0; r < kSlots; ++r) {
        const int row = wave_row() + r / U::kRows * U::kFree + U::free_of(r % U::kRows);
        const bool used = static_cast<uint32_t>(i0 + row) < static_cast<uint32_t>(span.len);
        const RowEnd end = end_row(call, h, state.m[r], state.l[r], unit, used);
        scale_row(state, r, end, !any_lane(!end.writes));
        if (column == 0 && row < rows && U::leads_row())
          store_row_numbers(call, b, h, span.slot_begin + row0 + row, end.lse, end.max_logit);
      }
    }
    if constexpr (kPieces) { // rows of O take the place of the wave's own of Q
      using WaveO = Tile<E, kTileQ, kOut * U::kCon>; // of waves that share rows, one after the other
      const uint32_t behind = static_cast<uint32_t>(wave_row() * (TileQ::kRowBytes - WaveO::kRowBytes) +
                                                    wave_column() * kFree * U::kFree * static_cast<int>(sizeof(E)));
      store_wave_outputs<U, WaveO, kFree, kOut>(state.out, kQ + (kShare > 1 ? behind : 0), wave_row(), p.o, call.a.o, b,
                                                h, span.slot_begin + row0, rows, column + wave_column(),
                                                static_cast<int>(p.dim_v));
      return;
    }
    const auto store = [&](const auto &out, int first) {
      store_outputs<U, PartO, kThreads, kFree, kOut / kParts, kAny>(
          out, kQ, wave_row(), 0, p.o, call.a.o, call.vector & kVectorO, false, b, h,
          span.slot_begin + row0, rows, column + first, static_cast<int>(p.dim_v));
    };
    if constexpr (kParts == 1) {
      store(state.out, 0);
    } else {
      TSRI_UNROLL
      for (int part = 0; part < kParts; ++part) {
        typename U::Acc out[kFree][kOut / kParts];
        TSRI_UNROLL
        for (int f = 0; f < kFree; ++f)
          TSRI_UNROLL
          for (int o = 0; o < kOut / kParts; ++o) out[f][o] = state.out[f][part * (kOut / kParts) + o];
        if (part > 0) sync_block();
        store(out, part * (kDv / kParts));
      }
    }
  }
};

} // namespace gpu
} // namespace tessera

#endif // TESSERA_COMMON_GPU_FORWARD_HPP_
