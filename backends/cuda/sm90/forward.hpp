// SPDX-License-Identifier: Apache-2.0
//
// Forward of compute capability 9.0: one warp feeds the copy engine with keys and values and one with queries,
// two or three warpgroups of 64 queries multiply (wgmma) and fold. Blocks stay and go from one tile of
// queries to the next; for a warpgroup all tiles of keys of all its tiles of queries are one sequence, in which
// the scores of a tile are made while the values of the tile before are multiplied (Shah et al. 2024,
// "FlashAttention-3", algorithm 2), also where a new tile of queries begins. Between warpgroups, kTurns
// lets one have the tensor cores while another is in its exponentials (section 3.1 there).
//
// The recurrence, masks and row numbers are those of common/gpu/forward.hpp, whose rows a warpgroup's
// accumulators have. Interval masks on aligned tensors without pages.
#ifndef TESSERA_BACKENDS_CUDA_SM90_FORWARD_HPP_
#define TESSERA_BACKENDS_CUDA_SM90_FORWARD_HPP_

#include "backends/cuda/sm80/unit.hpp"
#include "backends/cuda/sm90/instructions.hpp"
#include "backends/cuda/sm90/store.hpp"
#include "backends/cuda/sm90/work.hpp"
#include "common/gpu/forward.hpp"

namespace tessera {
namespace gpu {

template <class E, int kTileQ_, int kTileK_, int kDqk, int kDv, int kStages, bool kTurns>
struct EngineForward {
  using U = MmaSync<E>;
  using Args = EngineForwardArgs;
  static constexpr int kTileQ = kTileQ_, kTileK = kTileK_;
  static constexpr int kGroups = kTileQ / 64; // warpgroups that multiply
  static constexpr int kThreads = (kGroups + 1) * kWarpgroup;
  static constexpr int kMinBlocks = 1;
  using Rows = Forward<U, kTileQ, kTileK, kDqk, kDv, 4 * kGroups, 2, false, false>;
  using State = typename Rows::State;
  using Scores = typename Rows::Scores;
  static constexpr int kCon = Rows::kCon;
  static constexpr int kDepth = kDqk / 16;
  static_assert(kGroups >= 2 && kGroups <= 3 && Rows::kFree == 1, "64 queries a warpgroup");

  // Pieces of 64 columns, see instructions.hpp; queries by warpgroup.
  static constexpr uint32_t kPieceQ = 64 * 128, kPieceK = kTileK * 128;
  static constexpr uint32_t kBytesQ = ceil_div(kDqk, 64) * kPieceQ;
  static constexpr uint32_t kBytesK = ceil_div(kDqk, 64) * kPieceK;
  static constexpr uint32_t kBytesV = ceil_div(kDv, 64) * kPieceK;
  static_assert(kPieceK % 1024 == 0, "the swizzle's period");

  // Barriers: `full` when the copy engine has filled a buffer, `empty` when every warpgroup (queries: that
  // one) has read it.
  static constexpr uint32_t kFullQ = 0, kEmptyQ = kFullQ + 8 * kGroups;
  static constexpr uint32_t kFullK = kEmptyQ + 8 * kGroups, kEmptyK = kFullK + 8 * kStages;
  static constexpr uint32_t kFullV = kEmptyK + 8 * kStages, kEmptyV = kFullV + 8 * kStages;
  static_assert(kEmptyV + 8 * kStages <= Rows::kBands, "in front of the bands");
  static constexpr uint32_t kItems = ceil_div(Rows::kBands + kTileQ * sizeof(RowBand), 16) * 16;
  static constexpr uint32_t kTiles = kGroups * kBytesQ + kStages * (kBytesK + kBytesV);
  // Pieces of work that a block is given at most: what is left of shared memory.
  static constexpr int kMostItems =
      min_of(64, (kMostShared - static_cast<int>(kTiles + kItems)) / static_cast<int>(sizeof(WorkItem)));
  static_assert(kMostItems >= 8 && kTiles % 1024 == 0 && kMostShared % 1024 == 0, "a block has to be worth its start");
  static constexpr uint32_t kQ = ceil_div(kItems + kMostItems * sizeof(WorkItem), 1024) * 1024;
  static constexpr uint32_t kK = kQ + kGroups * kBytesQ;
  static constexpr uint32_t kV = kK + kStages * kBytesK;
  static constexpr uint32_t kSharedBytes = kV + kStages * kBytesV;
  static_assert(kSharedBytes <= kMostShared, "what a block can have");
  static constexpr int kTurnBarrier = 1;  // named barriers, one a warpgroup
  static constexpr int kGroupBarrier = 5; // likewise

  static constexpr int kLoadRegisters = kGroups == 2 ? 24 : 32;
  static constexpr int kMultiplyRegisters = kGroups == 2 ? 240 : 160;

  // A position in a ring of buffers.
  struct Ring {
    uint32_t slot, parity;
    TSRI_DEVICE_MEMBER void next(Ring &ring) {
      if (++ring.slot == kStages) {
        ring.slot = 0;
        ring.parity ^= 1;
      }
    }
  };

  // ---------------------------------------------------------------------------------- loading

  template <uint32_t kBytes, uint32_t kPiece>
  TSRI_DEVICE_MEMBER void load(uint32_t to, const TensorMap &map, uint32_t full, int32_t row, int32_t head,
                               int32_t batch) {
    phase_expect(full, kBytes);
    TSRI_UNROLL
    for (uint32_t piece = 0; piece < kBytes / kPiece; ++piece)
      tensor_load(to + piece * kPiece, map, full, static_cast<int32_t>(64 * piece), row, head, batch);
  }

  TSRI_DEVICE_MEMBER const WorkItem &item_at(int i) {
    return shared_at<WorkItem>(kItems + static_cast<uint32_t>(i) * sizeof(WorkItem));
  }

  // The first piece of work from i on that has keys to see.
  TSRI_DEVICE_MEMBER int next_item(int i, int items) {
    while (i < items && (item_at(i).b < 0 || item_at(i).tiles.count == 0)) ++i;
    return i;
  }

  // Keys and values, by one thread.
  TSRI_DEVICE_MEMBER void load_keys(const Args &args, int items) {
    Ring ring = {0, 1}; // empty buffers are there from the start
    for (int i = next_item(0, items); i < items; i = next_item(i + 1, items)) {
      const WorkItem &item = item_at(i);
      TSRI_NO_UNROLL
      for (int32_t n = 0; n < item.tiles.count; ++n) {
        const int32_t row = item.k_begin + KeyTiles::at(item.tiles, n) * kTileK;
        phase_wait(kEmptyK + 8 * ring.slot, ring.parity);
        load<kBytesK, kPieceK>(kK + ring.slot * kBytesK, args.k, kFullK + 8 * ring.slot, row, item.k_head,
                               item.k_batch);
        phase_wait(kEmptyV + 8 * ring.slot, ring.parity);
        load<kBytesV, kPieceK>(kV + ring.slot * kBytesV, args.v, kFullV + 8 * ring.slot, row, item.k_head,
                               item.k_batch);
        Ring::next(ring);
      }
    }
  }

  // Queries, by one thread.
  TSRI_DEVICE_MEMBER void load_queries(const Args &args, int items) {
    uint32_t parity = 1;
    for (int i = next_item(0, items); i < items; i = next_item(i + 1, items)) {
      const WorkItem &item = item_at(i);
      TSRI_NO_UNROLL
      for (uint32_t group = 0; group < kGroups; ++group) {
        phase_wait(kEmptyQ + 8 * group, parity);
        load<kBytesQ, kPieceQ>(kQ + group * kBytesQ, args.q, kFullQ + 8 * group,
                               item.slot_begin + item.row0 + 64 * static_cast<int32_t>(group), item.h,
                               item.q_batch);
      }
      parity ^= 1;
    }
  }

  // ------------------------------------------------------------------------------ multiplying

  TSRI_DEVICE_MEMBER bool signals() { return thread_index() % kWarpgroup == 0; }
  TSRI_DEVICE_MEMBER void release(uint32_t empty) {
    if (signals()) phase_arrive(empty);
  }

  TSRI_DEVICE_MEMBER void take_turn(int group) {
    if constexpr (kTurns) sync_group(kTurnBarrier + group, 2 * kWarpgroup);
  }
  TSRI_DEVICE_MEMBER void pass_turn(int group) {
    if constexpr (kTurns)
      arrive_group(kTurnBarrier + (group + 1 == kGroups ? 0 : group + 1), 2 * kWarpgroup);
  }

  TSRI_DEVICE_MEMBER void start_scores(Scores &s, MatrixTile q, MatrixTile k) {
    q = matrix_fresh(q);
    k = matrix_fresh(k);
    TSRI_UNROLL
    for (int t = 0; t < kDepth; ++t)
      matrix_product<false, false>(E{}, s[0], matrix_at(q, t / 4 * kPieceQ + t % 4 * 32),
                                   matrix_at(k, t / 4 * kPieceK + t % 4 * 32), t > 0);
    matrix_commit();
  }

  TSRI_DEVICE_MEMBER void start_values(State &state, const uint32_t (&p)[kCon][4], MatrixTile v) {
    v = matrix_fresh(v);
    TSRI_UNROLL
    for (int c = 0; c < kCon; ++c)
      matrix_product_registers<true>(E{}, state.out[0], p[c], matrix_at(v, c * 2048), true);
    matrix_commit();
  }

  TSRI_DEVICE_MEMBER void pack(uint32_t (&p)[kCon][4], const Scores &s) {
    TSRI_UNROLL
    for (int c = 0; c < kCon; ++c)
      TSRI_UNROLL
      for (int r = 0; r < 4; ++r) p[c][r] = E::pack(s[0][c].x[2 * r], s[0][c].x[2 * r + 1]);
  }

  // Rows of V beyond the sequence are whatever memory holds, and 0 times it need not be 0.
  TSRI_DEVICE_MEMBER void clear_tail(uint32_t v_tile, int32_t rows, int group) {
    const int first = larger(rows, 0);
    for (int piece = 0; piece < static_cast<int>(kBytesV / kPieceK); ++piece)
      for (int i = first * 8 + thread_index() % kWarpgroup; i < kTileK * 8; i += kWarpgroup)
        shared_at<Chunk>(v_tile + static_cast<uint32_t>(piece) * kPieceK + static_cast<uint32_t>(i) * 16) =
            Chunk{{0, 0, 0, 0}};
    fence_async();
    sync_group(kGroupBarrier + group, kWarpgroup);
  }

  // Mask and recurrence of one tile; alpha: see Forward::fold_scores.
  TSRI_DEVICE_MEMBER bool fold(State &state, Scores &s, const WorkItem &item, float unit, int32_t key0,
                               float (&alpha)[Rows::kSlots]) {
    const int first = Rows::wave_row();
    const RowsClass rows = rows_class(Rows::kBands, larger(-item.i0, first),
                                      smaller(item.queries - item.i0, first + 16), item.prefix);
    if (RowsClass::of(rows, key0, key0 + kTileK) != TSRI_TILE_FULL)
      Rows::mask_scores(s, item.prefix, key0);
    return Rows::fold_scores(state, s, unit, alpha);
  }

  TSRI_DEVICE_MEMBER void start_state(State &state) {
    clear<U>(state.out);
    TSRI_UNROLL
    for (int r = 0; r < Rows::kSlots; ++r) {
      state.m[r] = Softmax::start_max();
      state.l[r] = Softmax::start_sum();
    }
  }

  // Pieces of work whose rows see nothing.
  TSRI_DEVICE_MEMBER void finish_empty(const Call &call, int items, float unit) {
    for (int i = 0; i < items; ++i) {
      const WorkItem &item = item_at(i);
      if (item.b < 0 || item.tiles.count > 0) continue;
      State state;
      start_state(state);
      finish(call, state, item, unit);
    }
  }

  // The values of the tile in `ring`, whose first key is key0.
  TSRI_DEVICE_MEMBER void multiply_values(State &state, const uint32_t (&p)[kCon][4], const Ring &ring,
                                          int32_t keys, int32_t key0, int group) {
    const uint32_t v_tile = kV + ring.slot * kBytesV;
    phase_wait(kFullV + 8 * ring.slot, ring.parity);
    if (key0 + kTileK > keys) clear_tail(v_tile, keys - key0, group);
    matrix_pin(state.out[0]);
    matrix_begin();
    start_values(state, p, matrix_tile(v_tile, kPieceK));
  }

  TSRI_DEVICE_MEMBER void multiply_all(const Args &args, int items) {
    const Call &call = args.forward.call;
    const int group = static_cast<int>(shuffle(static_cast<uint32_t>(thread_index() / kWarpgroup), 0));
    const float unit = call.p.scale * static_cast<float>(TSRI_LOG2E);
    const uint32_t full_q = kFullQ + 8 * static_cast<uint32_t>(group), empty_q = full_q + 8 * kGroups;
    const MatrixTile q = matrix_tile(kQ + static_cast<uint32_t>(group) * kBytesQ, 16);
    finish_empty(call, items, unit);
    int i = next_item(0, items); // the piece of work whose scores came last
    if (i >= items) return;
    if (group == kGroups - 1) pass_turn(group); // the first turn is the first warpgroup's

    Ring ring = {0, 0}; // the tile whose scores came last
    uint32_t parity_q = 0;
    State state;
    Scores s;
    uint32_t p[kCon][4];
    float alpha[Rows::kSlots];
    start_state(state);
    store_warp_bands(item_at(i));
    int before = i;
    int32_t n = 0, key0 = KeyTiles::at(item_at(i).tiles, 0) * kTileK;
    phase_wait(full_q, parity_q);
    phase_wait(kFullK, 0);
    matrix_begin();
    start_scores(s, q, matrix_tile(kK, 16));
    matrix_wait<0>();
    matrix_pin(s[0]);
    release(kEmptyK);
    if (item_at(i).tiles.count == 1) release(empty_q);
    fold(state, s, item_at(i), unit, key0, alpha); // nothing to rescale yet
    pack(p, s);
    TSRI_NO_UNROLL
    for (;;) {
      before = i;
      const Ring v_ring = ring;
      const int32_t v_key0 = key0;
      if (++n == item_at(before).tiles.count) {
        n = 0;
        i = next_item(i + 1, items);
        if (i >= items) break;
        parity_q ^= 1;
        phase_wait(full_q, parity_q);
      }
      const bool fresh = i != before;
      key0 = KeyTiles::at(item_at(i).tiles, n) * kTileK;
      Ring::next(ring);
      phase_wait(kFullK + 8 * ring.slot, ring.parity);
      take_turn(group);
      matrix_begin();
      start_scores(s, q, matrix_tile(kK + ring.slot * kBytesK, 16));
      multiply_values(state, p, v_ring, item_at(before).keys, v_key0, group);
      pass_turn(group);
      matrix_wait<1>();
      matrix_pin(s[0]);
      release(kEmptyK + 8 * ring.slot);
      if (n + 1 == item_at(i).tiles.count) release(empty_q);
      if (fresh) {
        matrix_wait<0>();
        matrix_pin(state.out[0]);
        finish(call, state, item_at(before), unit);
        start_state(state);
        store_warp_bands(item_at(i));
      }
      const bool moved = fold(state, s, item_at(i), unit, key0, alpha);
      matrix_wait<0>();
      matrix_pin(state.out[0]);
      release(kEmptyV + 8 * v_ring.slot);
      pack(p, s);
      if (any_lane(moved)) Rows::rescale(state, alpha);
    }
    multiply_values(state, p, ring, item_at(before).keys, key0, group);
    matrix_wait<0>();
    matrix_pin(state.out[0]);
    finish(call, state, item_at(before), unit);
  }

  TSRI_DEVICE_MEMBER void finish(const Call &call, State &state, const WorkItem &item, float unit) {
    const int64_t begin = static_cast<int64_t>(item.slot_begin) + item.row0 - item.i0;
    const tsri_span span = {item.slot_begin, item.slot_len, begin, item.queries};
    Rows::finish_rows(call, state, span, item.b, item.h, 0, item.row0, item.i0, unit);
    store_registers<U, Rows::kOut>(state.out[0], call.p.o, call.a.o, item.b, item.h,
                                   static_cast<int64_t>(item.slot_begin) + item.row0, item.slot_len - item.row0, Rows::wave_row(),
                                   static_cast<int>(call.p.dim_v));
  }

  TSRI_DEVICE_MEMBER void store_warp_bands(const WorkItem &item) {
    const int row = Rows::wave_row() + thread_index() % 32;
    sync_wave(); // the last piece's are no longer read
    if (thread_index() % 32 < 16)
      shared_at<RowBand>(Rows::kBands + static_cast<uint32_t>(row) * 8) =
          work_band(item, static_cast<int64_t>(item.i0) + row);
    sync_wave();
  }

  TSRI_DEVICE_MEMBER void block(const Args &args) {
    const int warp = static_cast<int>(shuffle(static_cast<uint32_t>(thread_index() / 32), 0));
    if (thread_index() == 0) {
      tensor_prefetch(args.q);
      tensor_prefetch(args.k);
      tensor_prefetch(args.v);
      for (uint32_t g = 0; g < kGroups; ++g) {
        phase_init(kFullQ + 8 * g, 1);
        phase_init(kEmptyQ + 8 * g, 1);
      }
      for (uint32_t s = 0; s < kStages; ++s) {
        phase_init(kFullK + 8 * s, 1);
        phase_init(kEmptyK + 8 * s, kGroups);
        phase_init(kFullV + 8 * s, 1);
        phase_init(kEmptyV + 8 * s, kGroups);
      }
      phase_init_done();
    }
    const int items = find_work<kThreads, kMostItems>(kItems, args, kTileQ, kTileK);
    sync_block();
    if (warp >= 4 * kGroups) {
      fewer_registers<kLoadRegisters>();
      if (thread_index() == kGroups * kWarpgroup) load_keys(args, items);
      if (thread_index() == kGroups * kWarpgroup + 32) load_queries(args, items);
    } else {
      more_registers<kMultiplyRegisters>();
      multiply_all(args, items);
    }
  }
};

} // namespace gpu
} // namespace tessera

#endif // TESSERA_BACKENDS_CUDA_SM90_FORWARD_HPP_
