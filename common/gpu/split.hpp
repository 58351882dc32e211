// SPDX-License-Identifier: Apache-2.0
//
// Forward for few queries against many keys (decoding from a cache): bound by how fast K and V arrive. A
// block takes one row tile of a KV head (query heads of the group x queries, so that K and V are read once
// for all of them), one chunk of Dv and one part of the keys. Tiles of K and V stream through a ring of
// kStages buffers, kStages - 1 of them under way. Each wave owns kTileK / kWaves keys of a tile and a state
// of its own; they join at the end. Parts are cut from key 0, whatever the lengths and the mask are.
//
// kAny as in forward.hpp, whose products and recurrence a wave uses on its rows and keys.
#ifndef TESSERA_COMMON_GPU_SPLIT_HPP_
#define TESSERA_COMMON_GPU_SPLIT_HPP_

#include <stddef.h>

#include "common/gpu/forward.hpp"
#include "common/gpu/product.hpp"
#include "common/gpu/split_combine.hpp"
#include "common/gpu/split_rows.hpp"

namespace tessera {
namespace gpu {

template <class U, int kTileK_, int kDqk, int kDv, int kWaves, int kStages, bool kAny>
struct Split {
  using E = typename U::Element;
  using Args = SplitArgs;
  static constexpr int kTileQ = U::kFree, kTileK = kTileK_;
  static constexpr int kThreads = kWaves * U::kWave;
  static constexpr int kWaveKeys = kTileK / kWaves;
  using Wave = Forward<U, kTileQ, kWaveKeys, kDqk, kDv, 1, 1, kAny>;
  using End = SplitEnd<U, kDv, kWaves, kAny>;
  using TileQ = typename Wave::TileQ;
  using TileK = Tile<E, kTileK, kDqk>;
  using TileV = typename Wave::TileV; // of each wave's keys, one after the other
  using State = typename Wave::State;
  using Scores = typename Wave::Scores;
  using Kept = typename U::Free[1][Wave::kKeepQ ? Wave::kDepth : 1];

  struct Shared { // at the front of shared memory
    tsri_sequence sequence;
    tsri_mask_rule rule;
    SplitWork work;
    RowSource k, v;
    ScoreTerms terms; // of the first head; a row's own are below
    RowBand band[kTileQ];
    SplitRow row[kTileQ];
    SplitTerms own[kAny ? kTileQ : 1];
    KeyRow key[kStages][kTileK];
    typename End::Totals totals;
  };
  static constexpr uint32_t kBands = offsetof(Shared, band);
  static constexpr uint32_t kQ = ceil_div(sizeof(Shared), 128) * 128;
  static constexpr uint32_t kTiles = kQ + TileQ::kBytes;
  static constexpr uint32_t kStageBytes = TileK::kBytes + kWaves * TileV::kBytes;
  static constexpr uint32_t kSharedBytes =
      kTiles + (kStages * kStageBytes > End::kSumBytes ? kStages * kStageBytes : End::kSumBytes);
  static constexpr int kMinBlocks = 1;
  static_assert(kWaveKeys % U::kCon == 0 && kWaveKeys * kWaves == kTileK, "whole accumulators per wave");
  static_assert(kStages >= 2 && kTileK <= kThreads, "a thread per key, a tile ahead");

  TSRI_DEVICE_MEMBER int wave() { return wave_index(U::kWave); }
  TSRI_DEVICE_MEMBER uint32_t stage_at(int stage) {
    return kTiles + static_cast<uint32_t>(stage) * kStageBytes;
  }

  // The terms of a row's head.
  TSRI_DEVICE_MEMBER ScoreTerms row_terms(const Shared &shared, int row) {
    ScoreTerms t = shared.terms;
    const SplitTerms &own = shared.own[row];
    t.bias = own.bias;
    t.mask_bh = own.mask_bh;
    t.block_bh = own.block_bh;
    t.head = own.head;
    t.slope = own.slope;
    return t;
  }

  // Writes the rows of the tile: bands, places, terms. A thread per row; a barrier must follow.
  TSRI_DEVICE_MEMBER void store_row(const Args &args, Shared &shared, int row) {
    const SplitWork &work = shared.work;
    const int32_t group = args.call.group;
    const int64_t r = static_cast<int64_t>(work.row_tile) * kTileQ + row, slot_row = divide_rows(r, group);
    const int32_t query = static_cast<int32_t>(slot_row) - work.pad;
    const int32_t head = work.group_head * group + static_cast<int32_t>(r - slot_row * group);
    RowBand band = {INT32_MAX, INT32_MIN};
    if (row >= work.first && row < work.last) {
      const tsri_mask_row allowed = tsri_mask_row_of(&shared.rule, query);
      band.lo = static_cast<int32_t>(allowed.lo);
      band.hi = static_cast<int32_t>(allowed.hi);
      if (kAny) {
        const ScoreTerms t = score_terms(args.call, shared.sequence, work.b, head);
        shared.own[row] = SplitTerms{t.bias, t.mask_bh, t.block_bh, t.head, t.slope};
      }
    }
    shared.band[row] = band;
    shared.row[row] = SplitRow{query, row < work.rows ? head : -1};
  }

  // Rows of Q, each of its own head. Rows in padding are zeros.
  TSRI_DEVICE_MEMBER void load_queries(const Args &args, const Shared &shared) {
    const tsr_problem &p = args.call.p;
    constexpr int total = TileQ::kRows * TileQ::kChunks;
    TSRI_NO_UNROLL
    for (int i = thread_index(); i < total; i += kThreads) {
      const int r = i / TileQ::kChunks, c = i % TileQ::kChunks;
      const bool used = r >= shared.work.first && r < shared.work.last;
      const RowSource q = row_source<E>(args.call.a.q, p.q, shared.sequence.q, shared.work.b,
                                        used ? shared.row[r].head : 0, p.dim_qk,
                                        args.call.vector & kVectorQ);
      load_chunk<E, kAny>(kQ + TileQ::at(r, c), q, used ? shared.row[r].query : -1, c);
    }
  }

  // Starts the copies of the n-th tile of the part into a stage; the rows' addresses are there.
  TSRI_DEVICE_MEMBER void load_stage(const Shared &shared, int32_t n, int stage, int column) {
    const uint32_t rows =
        static_cast<uint32_t>(offsetof(Shared, key)) + static_cast<uint32_t>(stage) * sizeof(shared.key[0]);
    const uint32_t to = stage_at(stage);
    load_key_rows<E, TileK, kThreads, kAny>(to, rows, shared.k, 0);
    if constexpr (TileV::kTransposed)
      load_tile<E, TileV, U::kWave, kAny>(
          to + TileK::kBytes + static_cast<uint32_t>(wave() * TileV::kBytes), shared.v,
          SplitWork::tile_at(shared.work, n) * kTileK + wave() * kWaveKeys, column,
          thread_index() % U::kWave);
    else
      load_key_rows<E, Tile<E, kTileK, kDv>, kThreads, kAny>(
          to + TileK::kBytes, rows + static_cast<uint32_t>(offsetof(KeyRow, v)), shared.v, column);
  }

  TSRI_DEVICE_MEMBER void mask_scores(Scores &s, int32_t prefix, int32_t key0) {
    TSRI_UNROLL
    for (int slot = 0; slot < U::kRows; ++slot) {
      const Limits limits = row_limits(kBands, U::free_of(slot), prefix, key0 + U::con_lane());
      TSRI_UNROLL
      for (int c = 0; c < Wave::kCon; ++c)
        TSRI_UNROLL
        for (int e = 0; e < U::kElements; ++e)
          if (U::slot(e) == slot && !Limits::allows(limits, c * U::kCon + U::con_element(e)))
            s[0][c].x[e] = -infinity();
    }
  }

  // All score steps, for kAny.
  TSRI_DEVICE_MEMBER void modify_scores(Scores &s, const Shared &shared, int32_t prefix, int32_t key0) {
    const int32_t j0 = key0 + U::con_lane();
    TSRI_UNROLL
    for (int slot = 0; slot < U::kRows; ++slot) {
      const int row = U::free_of(slot);
      const ScoreTerms terms = row_terms(shared, row);
      const int32_t i = shared.row[row].query;
      const Limits limits = row_limits(kBands, row, prefix, j0);
      TSRI_UNROLL
      for (int c = 0; c < Wave::kCon; ++c)
        TSRI_UNROLL
        for (int e = 0; e < U::kElements; ++e) {
          if (U::slot(e) != slot) continue;
          const int32_t o = c * U::kCon + U::con_element(e);
          float &x = s[0][c].x[e];
          x = Limits::allows(limits, o) ? score_of(terms, x, i, j0 + o) : -infinity();
        }
    }
  }

  TSRI_DEVICE_MEMBER void drop(Scores &s, const Shared &shared, int32_t key0) {
    TSRI_UNROLL
    for (int c = 0; c < Wave::kCon; ++c)
      TSRI_UNROLL
      for (int e = 0; e < U::kElements; e += 2) {
        const int row = U::free_of(U::slot(e));
        bool keep[2];
        keep_pair(row_terms(shared, row), shared.row[row].query,
                  key0 + U::con_lane() + c * U::kCon + U::con_element(e), keep);
        if (!keep[0]) s[0][c].x[e] = 0.0f;
        if (!keep[1]) s[0][c].x[e + 1] = 0.0f;
      }
  }

  // Folds the wave's keys of one tile, key0 on.
  TSRI_DEVICE_MEMBER void fold_tile(State &state, const Kept &kept, uint32_t q_offset, int stage,
                                    const RowsClass &rows, int32_t key0, float unit) {
    const Shared &shared = shared_at<Shared>(0);
    const int tile_class = uniform(RowsClass::of(rows, key0, key0 + kWaveKeys));
    if (tile_class == TSRI_TILE_SKIP) return;
    const uint32_t k_tile = stage_at(stage) + static_cast<uint32_t>(wave() * kWaveKeys * TileK::kRowBytes);
    const uint32_t v_tile =
        stage_at(stage) + TileK::kBytes + static_cast<uint32_t>(wave() * TileV::kBytes);
    Scores s;
    const uint32_t k_offset = U::template con_offset<TileK::kRowBytes>(k_tile);
    score_product<U, TileK, TileQ, Wave::kDepth, Wave::kKeepQ>(s, k_offset, q_offset, kept);
    if (kAny)
      modify_scores(s, shared, rows.prefix, key0);
    else if (tile_class == TSRI_TILE_EDGE)
      mask_scores(s, rows.prefix, key0);
    Wave::fold(state, s, unit);
    if (kAny && shared.terms.drops) drop(s, shared, key0);
    Wave::multiply_values(state, s, v_tile);
  }

  // What all threads need to know of the block's work. By a whole wave; a barrier must follow.
  TSRI_DEVICE_MEMBER void set_up(const Args &args, Shared &shared) {
    const tsr_problem &p = args.call.p;
    const tsr_args &a = args.call.a;
    SplitWork work = split_place(args);
    const tsri_sequence sequence = tsri_sequence_of(&p, &a, work.b);
    const tsri_mask_rule rule = tsri_sequence_rule(&p, &sequence);
    split_cut<kTileQ, kTileK>(work, args, sequence, rule);
    if (thread_index() != 0) return;
    shared.work = work;
    shared.sequence = sequence;
    shared.rule = rule;
    const tsri_pages pages = tsri_pages_of(&p, &a);
    shared.k = kv_source<E>(a.k, p.k, sequence.k, pages, work.b, work.group_head, p.dim_qk,
                            args.call.vector & kVectorK);
    shared.v = kv_source<E>(a.v, p.v, sequence.k, pages, work.b, work.group_head, p.dim_v,
                            args.call.vector & kVectorV);
    if (kAny)
      shared.terms =
          score_terms(args.call, sequence, work.b, static_cast<int64_t>(work.group_head) * args.call.group);
  }

  TSRI_DEVICE_MEMBER void block(const Args &args) {
    Shared &shared = shared_at<Shared>(0);
    const SplitWork &work = shared.work;
    if (wave() == 0) set_up(args, shared);
    sync_block();
    // A part without visible keys has nothing to say; the first one answers where none has any.
    if (work.rows == 0 || (work.count == 0 && (work.live > 0 || work.part > 0))) return;
    if (thread_index() < kTileQ) store_row(args, shared, thread_index());
    const int32_t count = work.count;
    TSRI_NO_UNROLL
    for (int i = thread_index(); i < kStages * kTileK; i += kThreads) {
      if (i / kTileK >= count) break;
      const int32_t row = SplitWork::tile_at(work, i / kTileK) * kTileK + i % kTileK;
      shared.key[i / kTileK][i % kTileK] = key_row(shared.k, shared.v, row, key_page(shared.k, row));
    }
    sync_block();

    const int column = work.chunk * kDv;
    State state;
    clear<U>(state.out);
    TSRI_UNROLL
    for (int slot = 0; slot < U::kRows; ++slot) {
      state.m[slot] = Softmax::start_max();
      state.l[slot] = Softmax::start_sum();
    }
    if (count > 0) stream(args, shared, state, count, column);
    finish(args, shared, state);
  }

  // Every tile of the part through the ring.
  TSRI_DEVICE_MEMBER void stream(const Args &args, Shared &shared, State &state, int32_t count,
                                 int column) {
    const float unit = score_unit(args);
    TSRI_UNROLL
    for (int stage = 0; stage < kStages - 1; ++stage) {
      if (stage < count) load_stage(shared, stage, stage, column);
      if (stage == 0) load_queries(args, shared);
      copy_commit();
    }
    const uint32_t q_offset = U::template free_offset<TileQ::kRowBytes>(kQ);
    const RowsClass rows = rows_class(kBands, shared.work.first, shared.work.last,
                                      static_cast<int32_t>(shared.rule.prefix));
    Kept kept;
    int stage = 0;
    TSRI_NO_UNROLL
    for (int32_t n = 0; n < count; ++n) {
      copy_wait<kStages - 2>();
      sync_block(); // the tile is here, and the stage before it has been read by all
      const int free = stage == 0 ? kStages - 1 : stage - 1;
      if (n + kStages - 1 < count) load_stage(shared, n + kStages - 1, free, column);
      copy_commit();
      // The rows of a later tile are looked up under the products of this one.
      const bool looks = n + kStages < count && thread_index() < kTileK;
      int32_t row = 0;
      int64_t page = 0;
      if (looks) {
        row = SplitWork::tile_at(shared.work, n + kStages) * kTileK + thread_index();
        page = key_page(shared.k, row);
      }
      if (Wave::kKeepQ && n == 0) {
        TSRI_UNROLL
        for (int t = 0; t < (Wave::kKeepQ ? Wave::kDepth : 1); ++t)
          U::template load_free<TileQ::kRowBytes>(kept[0][t], q_offset, 0, t);
      }
      fold_tile(state, kept, q_offset, stage, rows,
                SplitWork::tile_at(shared.work, n) * kTileK + wave() * kWaveKeys, unit);
      if (looks) shared.key[stage][thread_index()] = key_row(shared.k, shared.v, row, page);
      stage = stage == kStages - 1 ? 0 : stage + 1;
    }
    copy_wait<0>();
    sync_block(); // the tiles' memory becomes that of sums
  }

  TSRI_DEVICE_MEMBER float score_unit(const Args &args) {
    return kAny ? static_cast<float>(TSRI_LOG2E)
                : args.call.p.scale * static_cast<float>(TSRI_LOG2E);
  }

  TSRI_DEVICE_MEMBER void finish(const Args &args, Shared &shared, const State &state) {
    const SplitWork &work = shared.work;
    const typename End::Place at = {args,       work,          shared.sequence.q,
                                    shared.row, shared.totals, kTiles};
    End::join_waves(at, state, kAny ? 1.0f : args.call.p.scale, score_unit(args));
    if (work.live <= 1) {
      End::store_whole(at);
      return;
    }
    End::store_part(at);
    if (End::arrives_last(at)) End::combine(at);
  }
};

} // namespace gpu
} // namespace tessera

#endif // TESSERA_COMMON_GPU_SPLIT_HPP_
