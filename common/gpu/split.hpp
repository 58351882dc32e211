// SPDX-License-Identifier: Apache-2.0
//
// Forward for few queries against many keys (decoding from a cache): bound by how fast K and V arrive. A
// block takes one row tile of a KV head (query heads of the group x queries, so that K and V are read once
// for all of them), one chunk of Dv and one part of the keys. Tiles of K and V stream through a ring of
// kStages buffers, kStages - 1 of them under way. Each wave loads and owns kTileK / kWaves keys of a tile and
// has a state of its own, so that waves wait for nobody; they join at the end.
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
  static_assert(kStages >= 2 && kWaveKeys <= U::kWave, "a lane per key, a tile ahead");

  TSRI_DEVICE_MEMBER int wave() { return wave_index(U::kWave); }
  TSRI_DEVICE_MEMBER int lane() { return thread_index() % U::kWave; }
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

  // Writes a row of the tile: its band, place and terms.
  TSRI_DEVICE_MEMBER void store_row(const Args &args, Shared &shared, const SplitWork &work,
                                    const tsri_sequence &sequence, const tsri_mask_rule &rule, bool all_seen,
                                    int row) {
    const int32_t group = args.call.group;
    const int64_t r = static_cast<int64_t>(work.row_tile) * kTileQ + row, slot_row = divide_rows(r, group);
    const int32_t query = static_cast<int32_t>(slot_row) - work.pad;
    const int32_t head = work.group_head * group + static_cast<int32_t>(r - slot_row * group);
    RowBand band = {INT32_MAX, INT32_MIN};
    if (row >= work.first && row < work.last) {
      if (all_seen) {
        band.lo = 0;
        band.hi = static_cast<int32_t>(rule.sk);
      } else {
        const tsri_mask_row allowed = tsri_mask_row_of(&rule, query);
        band.lo = static_cast<int32_t>(allowed.lo);
        band.hi = static_cast<int32_t>(allowed.hi);
      }
      if (kAny) {
        const ScoreTerms t = score_terms(args.call, sequence, work.b, head);
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

  // Whether addresses of rows are looked up in shared.key, and not just follow each other.
  TSRI_DEVICE_MEMBER bool looks_up(const Shared &shared) {
    return shared.k.pages.table || (kAny && !(shared.k.vector && shared.v.vector));
  }

  // Starts the copies of the wave's keys of the n-th tile of the part into a stage; the rows' addresses are
  // there.
  TSRI_DEVICE_MEMBER void load_stage(const Shared &shared, int32_t n, int stage, int column) {
    using WaveK = Tile<E, kWaveKeys, kDqk>;
    const int key = wave() * kWaveKeys;
    const int32_t first = SplitWork::tile_at(shared.work, n) * kTileK + key;
    const uint32_t rows = static_cast<uint32_t>(offsetof(Shared, key)) +
                          static_cast<uint32_t>((stage * kTileK + key) * static_cast<int>(sizeof(KeyRow)));
    const uint32_t k_tile = stage_at(stage) + static_cast<uint32_t>(key * TileK::kRowBytes);
    const uint32_t v_tile =
        stage_at(stage) + TileK::kBytes + static_cast<uint32_t>(wave() * TileV::kBytes);
    const bool table = looks_up(shared);
    if (table)
      load_key_rows<E, WaveK, U::kWave, kAny>(k_tile, rows, shared.k, 0, lane());
    else
      load_following_rows<E, WaveK, U::kWave>(k_tile, shared.k, first, 0, lane());
    if constexpr (TileV::kTransposed)
      load_tile<E, TileV, U::kWave, kAny>(v_tile, shared.v, first, column, lane());
    else if (table)
      load_key_rows<E, TileV, U::kWave, kAny>(
          v_tile, rows + static_cast<uint32_t>(offsetof(KeyRow, v)), shared.v, column, lane());
    else
      load_following_rows<E, TileV, U::kWave>(v_tile, shared.v, first, column, lane());
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

  // What all threads need to know of the block's work, and the rows of its tile. By a whole wave; a barrier
  // must follow.
  TSRI_DEVICE_MEMBER void set_up(const Args &args, Shared &shared) {
    const tsr_problem &p = args.call.p;
    const tsr_args &a = args.call.a;
    static_assert(kTileQ <= U::kWave, "a lane per row");
    const bool all_seen = sees_all(p);
    SplitWork work = split_place(args);
    tsri_sequence sequence = {{0, p.seq_q, 0, p.seq_q}, {0, p.seq_k, 0, p.seq_k}, 0, 0};
    if (!all_seen) sequence = tsri_sequence_of(&p, &a, work.b);
    tsri_mask_rule rule = {p.seq_q, p.seq_k, 0, TSR_UNBOUNDED, TSR_UNBOUNDED, 0};
    if (!all_seen) rule = tsri_sequence_rule(&p, &sequence);
    split_cut<kTileQ, kTileK>(work, args, sequence, rule, all_seen);
    if (lane() < kTileQ) store_row(args, shared, work, sequence, rule, all_seen, lane());
    if (lane() != 0) return;
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

  // Addresses of the rows of the first tiles. A barrier must follow.
  TSRI_DEVICE_MEMBER void look_up_first(Shared &shared) {
    TSRI_NO_UNROLL
    for (int i = thread_index(); i < kStages * kTileK; i += kThreads) {
      if (i / kTileK >= shared.work.count) break;
      const int32_t row = SplitWork::tile_at(shared.work, i / kTileK) * kTileK + i % kTileK;
      shared.key[i / kTileK][i % kTileK] = key_row(shared.k, shared.v, row, key_page(shared.k, row));
    }
  }

  // Whether a block needs to read the caller's memory before it knows its rows and keys.
  TSRI_DEVICE_MEMBER bool reads_first(const Args &args) {
    return kAny || args.call.p.arrays != 0 || args.call.p.page_size != 0;
  }

  TSRI_DEVICE_MEMBER void block(const Args &args) {
    Shared &shared = shared_at<Shared>(0);
    const SplitWork &work = shared.work;
    if (reads_first(args)) wait_for_earlier();
    if (wave() == 0) set_up(args, shared);
    sync_block();
    // A part without visible keys has nothing to say; the first one answers where none has any.
    if (work.rows == 0 || (work.count == 0 && (work.live > 0 || work.part > 0))) {
      wait_for_earlier();
      return;
    }
    wait_for_earlier();
    release_later();
    if (looks_up(shared)) {
      look_up_first(shared);
      sync_block();
    }

    const int column = work.chunk * kDv;
    State state;
    clear<U>(state.out);
    TSRI_UNROLL
    for (int slot = 0; slot < U::kRows; ++slot) {
      state.m[slot] = Softmax::start_max();
      state.l[slot] = Softmax::start_sum();
    }
    if (work.count > 0) stream(args, shared, state, work.count, column);
    finish(args, shared, state);
  }

  // Every tile of the part through the ring.
  TSRI_DEVICE_MEMBER void stream(const Args &args, Shared &shared, State &state, int32_t count,
                                 int column) {
    const float unit = score_unit(args);
    const bool counts = thread_index() == 0 && shared.work.live > 1;
    uint64_t counter = 0;
    if (counts) counter = load_word(End::counter_of(args, shared.work));
    TSRI_UNROLL
    for (int stage = 0; stage < kStages - 1; ++stage) {
      if (stage < count) load_stage(shared, stage, stage, column);
      if (stage == 0) load_queries(args, shared);
      copy_commit();
    }
    const uint32_t q_offset = U::template free_offset<TileQ::kRowBytes>(kQ);
    if (counts) End::begin_count(args, shared.work, counter);
    const RowsClass rows = rows_class(kBands, shared.work.first, shared.work.last,
                                      static_cast<int32_t>(shared.rule.prefix));
    copy_wait<kStages - 2>();
    sync_block(); // Q, which all waves loaded for all
    Kept kept;
    if constexpr (Wave::kKeepQ) {
      TSRI_UNROLL
      for (int t = 0; t < Wave::kDepth; ++t)
        U::template load_free<TileQ::kRowBytes>(kept[0][t], q_offset, 0, t);
    }
    int stage = 0;
    TSRI_NO_UNROLL
    for (int32_t n = 0; n < count; ++n) {
      copy_wait<kStages - 2>();
      sync_wave(); // the wave's keys are here, and it has read the stage before them
      const int free = stage == 0 ? kStages - 1 : stage - 1;
      if (n + kStages - 1 < count) load_stage(shared, n + kStages - 1, free, column);
      copy_commit();
      // The rows of a later tile are looked up under the products of this one.
      const bool looks = looks_up(shared) && n + kStages < count && lane() < kWaveKeys;
      const int key = wave() * kWaveKeys;
      int32_t row = 0;
      int64_t page = 0;
      if (looks) {
        row = SplitWork::tile_at(shared.work, n + kStages) * kTileK + key + lane();
        page = key_page(shared.k, row);
      }
      fold_tile(state, kept, q_offset, stage, rows, SplitWork::tile_at(shared.work, n) * kTileK + key, unit);
      if (looks) shared.key[stage][key + lane()] = key_row(shared.k, shared.v, row, page);
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
    const float natural = kAny ? 1.0f : args.call.p.scale;
    End::join_waves(at, state, score_unit(args));
    if (work.live <= 1) {
      End::store_whole(at, natural);
      return;
    }
    End::store_part(at, natural);
    if (End::ends_last(at)) End::combine(at);
  }
};

} // namespace gpu
} // namespace tessera

#endif // TESSERA_COMMON_GPU_SPLIT_HPP_
