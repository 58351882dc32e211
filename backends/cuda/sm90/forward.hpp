// SPDX-License-Identifier: Apache-2.0
//
// Forward of compute capability 9.0: one warp feeds the copy engine with keys and values and one with queries, two or
// three warpgroups of 64 queries multiply (wgmma) and fold; four: see shared_serial.hpp. Blocks stay and go
// from one tile of queries to the next; for a warpgroup all tiles of keys of all its tiles of queries are one
// sequence, in which the scores of a tile are made while the values of the tile before are multiplied (Shah et al. 2024,
// "FlashAttention-3", algorithm 2), also where a new tile of queries begins. Between warpgroups, kTurns
// lets one have the tensor cores while another is in its exponentials (section 3.1 there).
//
// The recurrence, masks and row numbers are those of common/gpu/forward.hpp, whose rows a warpgroup's
// accumulators have. Interval masks on aligned tensors; kPages: keys and values in pages, see pages.hpp;
// kScores: score steps and dropout, see scores.hpp.
#ifndef TESSERA_BACKENDS_CUDA_SM90_FORWARD_HPP_
#define TESSERA_BACKENDS_CUDA_SM90_FORWARD_HPP_

#define TSRI_ALWAYS_FRESH

#include "backends/cuda/sm80/unit.hpp"
#include "backends/cuda/sm90/instructions.hpp"
#include "backends/cuda/sm90/late_end.hpp"
#include "backends/cuda/sm90/loads.hpp"
#include "backends/cuda/sm90/maxima.hpp"
#include "backends/cuda/sm90/pages.hpp"
#include "backends/cuda/sm90/parts.hpp"
#include "backends/cuda/sm90/scores.hpp"
#include "backends/cuda/sm90/serial.hpp"
#include "backends/cuda/sm90/shared_serial.hpp"
#include "backends/cuda/sm90/store.hpp"
#include "backends/cuda/sm90/work.hpp"
#include "common/gpu/forward.hpp"

namespace tessera {
namespace gpu {

template <class E, int kTileQ_, int kTileK_, int kDqk, int kDv, int kStagesQ, int kStages, bool kTurns,
          int kMinBlocks_ = 1, bool kPages = false, bool kScores = false>
struct EngineForward {
  using U = MmaSync<E>;
  using Args = EngineForwardArgs;
  static constexpr int kTileQ = kTileQ_, kTileK = kTileK_;
  static constexpr int kGroups = kTileQ / 64; // warpgroups that multiply
  static constexpr int kMinBlocks = kMinBlocks_;
  // Several small blocks on a multiprocessor have no warps that load, which would take registers from those that
  // multiply: a warpgroup asks for the next tile as soon as it has read one, and has a loop of its own, see serial.hpp.
  // Four warpgroups that share tiles in a block have no room for such warps either.
  static constexpr bool kLoadsItself = kMinBlocks > 1 || kGroups == 4;
  static_assert(!kLoadsItself || (kGroups == (kMinBlocks > 1 ? 1 : 4) && !kPages && !kScores),
                "four warpgroups a multiprocessor, each for itself or all with the same tiles");
  static constexpr int kThreads = (kGroups + !kLoadsItself) * kWarpgroup;
  static constexpr uint32_t kRing = kStages; // buffers of keys, and of values
  static constexpr int kBuffersQ = kStagesQ;
  using Rows = Forward<U, kTileQ, kTileK, kDqk, kDv, 4 * kGroups, 2, kScores, false>;
  using State = typename Rows::State;
  using Scores = typename Rows::Scores;
  static constexpr int kCon = Rows::kCon;
  using Steps = ScoreSteps<U, kCon, kDv <= 64 ? 2 : 1>;
  static constexpr int kDepth = kDqk / 16;
  static_assert(kGroups >= 1 && kGroups <= 4 && Rows::kFree == 1, "64 queries a warpgroup");

  // Pieces of 64 columns, see instructions.hpp; queries by warpgroup.
  static constexpr uint32_t kPieceQ = 64 * 128, kPieceK = kTileK * 128;
  static constexpr uint32_t kBytesQ = ceil_div(kDqk, 64) * kPieceQ;
  static constexpr uint32_t kBytesK = ceil_div(kDqk, 64) * kPieceK;
  static constexpr uint32_t kBytesV = ceil_div(kDv, 64) * kPieceK;
  static_assert(kPieceK % 1024 == 0, "the swizzle's period");

  // Barriers: `full` when the copy engine has filled a buffer, `empty` when every warpgroup (queries: that
  // one) has read it.
  static constexpr uint32_t kFullQ = 0, kEmptyQ = kFullQ + 8 * kGroups * kStagesQ;
  static constexpr uint32_t kFullK = kEmptyQ + 8 * kGroups * kStagesQ, kEmptyK = kFullK + 8 * kStages;
  static constexpr uint32_t kFullV = kEmptyK + 8 * kStages, kEmptyV = kFullV + 8 * kStages;
  static constexpr uint32_t kList = kEmptyV + 8 * kStages;
  static constexpr uint32_t kDropKey = kList + sizeof(WorkList);
  static constexpr uint32_t kLast = ceil_div(kDropKey + sizeof(tsri_dropout_key), 4) * 4; // see parts.hpp
  static_assert(kLast + 4 * kGroups <= Rows::kBands, "in front of the bands");
  static constexpr uint32_t kItems = ceil_div(Rows::kBands + kTileQ * sizeof(RowBand), 16) * 16;
  // O leaves by the copy engine where there is room for it beside everything else: narrow heads, whose tiles of
  // queries end often.
  static constexpr bool kCopiesOut = kDv <= 64 && !kPages && !kScores; // these have no registers for it
  // Rows for many keys share out the last tiles better, see Deal and parts.hpp; it costs short problems time.
  static constexpr bool kDeals = kGroups >= 3 || kTileK > 128;
  static constexpr bool kCuts = kDeals && !kPages && !kScores;
  static constexpr bool kEndsLate = kGroups == 2 && !kScores; // see late_end.hpp
  static constexpr uint32_t kBytesO = kCopiesOut && !kLoadsItself ? ceil_div(kDv, 64) * kPieceQ : 0;
  static constexpr uint32_t kTiles =
      kStagesQ * kGroups * kBytesQ + kStages * (kBytesK + kBytesV) + kGroups * kBytesO;
  // Shared memory of a block: of several on a multiprocessor, its part less what the system takes of it.
  static constexpr int kBlockShared =
      kMinBlocks == 1 ? kMostShared : (228 << 10) / kMinBlocks / 1024 * 1024 - 1024;
  // Pieces of work that a block is given at most: what is left of it.
  static constexpr int kMostItems = min_of(64, (kBlockShared - static_cast<int>(kTiles + kItems)) /
                                                   static_cast<int>(sizeof(WorkItem)));
  static_assert(kMostItems >= 8, "a block has to be worth its start");
  static_assert(kTiles % 1024 == 0 && kBlockShared % 1024 == 0, "the tiles begin at a multiple of 1024");
  static constexpr uint32_t kQ = ceil_div(kItems + kMostItems * sizeof(WorkItem), 1024) * 1024;
  static constexpr uint32_t kK = kQ + kStagesQ * kGroups * kBytesQ;
  static constexpr uint32_t kV = kK + kStages * kBytesK;
  static constexpr uint32_t kO = kV + kStages * kBytesV;
  static constexpr uint32_t kSharedBytes = kO + kGroups * kBytesO;
  static_assert(kSharedBytes <= kBlockShared, "what a block can have");
  static constexpr int kTurnBarrier = 1;  // named barriers, one a warpgroup
  static constexpr int kGroupBarrier = 5; // likewise

  // Registers of a thread: even shares at the start, in steps of 8, and then what the loading warpgroup leaves.
  static constexpr int kEvenRegisters = min_of(65536 / (kThreads * kMinBlocks) / 8 * 8, 248);
  static constexpr int kLoadRegisters = kGroups == 3 ? 32 : kPages ? 40 : 24;
  static constexpr int kMultiplyRegisters =
      min_of((kEvenRegisters * (kGroups + 1) - kLoadRegisters) / kGroups / 8 * 8, 240);

  // Use number `n` of a ring of buffers.
  template <int kSlots>
  TSRI_DEVICE_MEMBER uint32_t slot_of(uint32_t n) {
    return n % kSlots;
  }
  template <int kSlots>
  TSRI_DEVICE_MEMBER uint32_t parity_of(uint32_t n) {
    return n / kSlots & 1;
  }

  // ---------------------------------------------------------------------------------- loading

  template <uint32_t kBytes, uint32_t kPiece>
  TSRI_DEVICE_MEMBER void load(uint32_t to, const TensorMap &map, uint32_t full, int32_t row, int32_t head,
                               int32_t batch) {
    phase_expect(full, kBytes);
    TSRI_UNROLL
    for (uint32_t piece = 0; piece < kBytes / kPiece; ++piece)
      tensor_load(to + piece * kPiece, map, full, static_cast<int32_t>(64 * piece), row, head, batch);
  }

  TSRI_DEVICE_MEMBER int items() { return shared_at<WorkList>(kList).count; }
  TSRI_DEVICE_MEMBER const WorkItem &item_at(int i) {
    return shared_at<WorkItem>(kItems + static_cast<uint32_t>(i) * sizeof(WorkItem));
  }

  TSRI_DEVICE_MEMBER uint32_t q_buffer(int i, int group) {
    return slot_of<kStagesQ>(static_cast<uint32_t>(i)) * kGroups + static_cast<uint32_t>(group);
  }

  // ------------------------------------------------------------------------------ multiplying

  TSRI_DEVICE_MEMBER float unit_of(const Args &args) {
    return (kScores ? 1.0f : args.forward.call.p.scale) * static_cast<float>(TSRI_LOG2E);
  }
  TSRI_DEVICE_MEMBER void release(uint32_t empty, int thread) {
    if (thread % kWarpgroup == 0) phase_arrive(empty);
  }
  TSRI_DEVICE_MEMBER void leave_queries(int i, int thread) {
    release(kEmptyQ + 8 * q_buffer(i, thread / kWarpgroup), thread);
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

  TSRI_DEVICE_MEMBER void start_state(State &state) {
    clear<U>(state.out);
    TSRI_UNROLL
    for (int r = 0; r < Rows::kSlots; ++r) {
      state.m[r] = Softmax::start_max();
      state.l[r] = Softmax::start_sum();
    }
  }

  // Pieces of work whose rows see nothing.
  TSRI_DEVICE_MEMBER void finish_empty(const Args &args, int items, float unit) {
    for (int i = 0; i < items; ++i) {
      const WorkItem &item = item_at(i);
      if (item.b < 0 || item.tiles.count > 0) continue;
      State state;
      start_state(state);
      finish_whole(args, state, item, unit, buffer_o(0));
    }
    if (kCopiesOut && thread_index() % 32 == 0) bulk_wait_read(); // by this thread, which may not finish another
  }

  // Scores of tile number t, of piece i.
  TSRI_DEVICE_MEMBER void multiply_keys(Scores &s, int i, uint32_t t, int group) {
    const uint32_t slot = slot_of<kStages>(t);
    phase_wait(kFullK + 8 * slot, parity_of<kStages>(t));
    take_turn(group);
    matrix_begin();
    start_scores(s, matrix_tile(kQ + q_buffer(i, group) * kBytesQ, 16), matrix_tile(kK + slot * kBytesK, 16));
  }
  // Values of tile number t, of piece i, whose last tile it is or not.
  TSRI_DEVICE_MEMBER void multiply_values(State &state, const uint32_t (&p)[kCon][4], int i, bool last,
                                          uint32_t t, int group) {
    const uint32_t slot = slot_of<kStages>(t), v_tile = kV + slot * kBytesV;
    phase_wait(kFullV + 8 * slot, parity_of<kStages>(t));
    if (last) {
      const WorkItem &item = item_at(i);
      const int32_t rows = item.keys - first_key(item, 1);
      if (rows < kTileK) EngineLoads<EngineForward>::clear_tail(v_tile, rows, group);
    }
    matrix_pin(state.out[0]);
    matrix_begin();
    start_values(state, p, matrix_tile(v_tile, kPieceK));
  }

  // The tiles that all rows of a warp see all of: those of the band with which at most `from` and more than
  // `to` are left.
  struct FullTiles {
    int32_t from, to;
  };

  // The first tile of the first piece, which has `left` tiles, up to its scores.
  TSRI_DEVICE_MEMBER FullTiles start_first(const Call &call, State &state, Scores &s, typename Steps::Ahead &ahead,
                                           int32_t left, int thread) {
    phase_wait(kFullQ + 8 * q_buffer(0, thread / kWarpgroup), 0);
    multiply_keys(s, 0, 0, thread / kWarpgroup);
    pass_turn(thread / kWarpgroup);
    start_state(state);
    const FullTiles full = start_rows(item_at(0));
    matrix_wait<0>();
    matrix_pin(s[0]);
    release(kEmptyK, thread);
    if (left == 1) leave_queries(0, thread);
    if constexpr (kScores) Steps::forget(ahead);
    modify(call, s, ahead, 0, left, full);
    return full;
  }

  TSRI_DEVICE_MEMBER void multiply_all(const Args &args) {
    const Call &call = args.forward.call;
    const float unit = unit_of(args);
    if (items() == 0) return;
    int thread = thread_index();
    if (thread / kWarpgroup == 0) pass_turn(kGroups - 1); // the first turn is the first warpgroup's
    State state;
    Scores s;
    uint32_t p[kCon][4];
    float alpha[Rows::kSlots];
    using Late = LateEnd<EngineForward>;
    Late late = {{0.0f, 0.0f}, {0.0f, 0.0f}};
    // The tile whose scores came last: number t, of piece i, of which `left` tiles with this one are left.
    uint32_t t = 0;
    int i = 0;
    int32_t left = item_at(0).tiles.count;
    typename Steps::Ahead ahead;
    Folding folding;
    FullTiles full = start_first(call, state, s, ahead, left, thread);
    begin_fold(call, folding, state, s, 0, left, unit, alpha);
    end_fold(folding, state, s, unit, p);
    TSRI_NO_UNROLL
    for (;;) {
      keep_register(thread);
      const int group = thread / kWarpgroup;
      const bool fresh = left == 1;
      ++t;
      if (fresh) {
        if (++i == items()) break;
        left = item_at(i).tiles.count;
        phase_wait(kFullQ + 8 * q_buffer(i, group), parity_of<kStagesQ>(static_cast<uint32_t>(i)));
      } else {
        --left;
      }
      multiply_keys(s, i, t, group);
      multiply_values(state, p, i - fresh, fresh, t - 1, group);
      pass_turn(group);
      if constexpr (kScores) ahead.ready = false;
      if constexpr (kScores)
        if (!fresh)
          Steps::fetch(ahead, call, item_at(i), first_key(item_at(i), left), Rows::wave_row(), whole(full, left));
      matrix_wait<1>();
      matrix_pin(s[0]);
      release(kEmptyK + 8 * slot_of<kStages>(t), thread);
      if (left == 1) leave_queries(i, thread);
      // A new tile of queries, whose maxima and sums begin beside the last product of the one before.
      if (fresh) {
        if constexpr (kEndsLate) {
          Late::keep(late, state);
        } else {
          matrix_wait<0>();
          matrix_pin(state.out[0]);
          release(kEmptyV + 8 * slot_of<kStages>(t - 1), thread);
          finish(args, state, item_at(i - 1), unit, buffer_o(i - 1));
          start_state(state);
        }
        if constexpr (kScores) Steps::forget(ahead);
        full = start_rows(item_at(i));
      }
      modify(call, s, ahead, i, left, full);
      const bool moved = begin_fold(call, folding, state, s, i, left, unit, alpha);
      matrix_after(kScores ? state.l[0] + state.l[1] : folding.sum[0][0]); // or the wait would come before what it is to hide
      matrix_wait<0>();
      matrix_pin(state.out[0]);
      if (kEndsLate || !fresh) release(kEmptyV + 8 * slot_of<kStages>(t - 1), thread);
      if (kEndsLate && fresh) Late::finish(late, args, state, i - 1, unit);
      end_fold(folding, state, s, unit, p);
      if (any_lane(moved) && !(kEndsLate && fresh)) Rows::rescale(state, alpha);
    }
    multiply_values(state, p, items() - 1, true, t - 1, thread / kWarpgroup);
    matrix_wait<0>();
    matrix_pin(state.out[0]);
    ForwardParts<EngineForward>::finish(args, state, unit);
    if (kCopiesOut && fresh_thread_index() % 32 == 0) bulk_wait_read(); // shared memory has to stay until then
  }

  // First key of the tile of a piece with which `left` tiles are left.
  TSRI_DEVICE_MEMBER int32_t first_key(const WorkItem &item, int32_t left) {
    return KeyTiles::at(item.tiles, item.tiles.count - left) * kTileK;
  }

  TSRI_DEVICE_MEMBER bool whole(const FullTiles &full, int32_t left) { return left <= full.from && left > full.to; }

  // Score steps, and the mask where the tile needs one.
  TSRI_DEVICE_MEMBER void modify(const Call &call, Scores &s, [[maybe_unused]] typename Steps::Ahead &ahead, int i,
                                 int32_t left, const FullTiles &full) {
    if constexpr (kScores)
      Steps::modify(s[0], ahead, call, item_at(i), first_key(item_at(i), left), Rows::wave_row(), Rows::kBands,
                    whole(full, left));
    if (left > full.from || left <= full.to) Rows::mask_scores(s, item_at(i).prefix, first_key(item_at(i), left));
  }
  // The recurrence, up to where the product before has to have read its operands, and from there on; alpha: as fold_scores.
  using Fold = Maxima<U, Rows>;
  using Folding = typename Fold::Folding;
  TSRI_DEVICE_MEMBER bool begin_fold(const Call &call, Folding &folding, State &state, Scores &s, int i, int32_t left, float unit,
                                     float (&alpha)[Rows::kSlots]) {
    bool moved;
    if constexpr (!kScores) {
      moved = Fold::move(state, s, unit, alpha);
      Fold::begin_fold(folding, state, s, unit);
    } else {
      moved = Rows::fold_scores(state, s, unit, alpha);
      if (call.p.dropout > 0)
        Steps::drop(s[0], call, shared_at<tsri_dropout_key>(kDropKey), item_at(i), first_key(item_at(i), left),
                    Rows::wave_row());
    }
    return moved;
  }
  TSRI_DEVICE_MEMBER void end_fold(Folding &folding, State &state, Scores &s, float unit, uint32_t (&p)[kCon][4]) {
    if constexpr (kScores)
      pack(p, s);
    else
      Fold::template end_fold<E>(folding, state, s, unit, p);
  }

  // The bands of the warp's rows go to shared memory, for masks.
  TSRI_DEVICE_MEMBER FullTiles start_rows(const WorkItem &item) {
    if (!kScores && item.whole) return FullTiles{INT32_MAX, 0};
    const int first = Rows::wave_row(), row = first + thread_index() % 32;
    sync_wave(); // the last piece's are no longer read
    if (thread_index() % 32 < 16)
      shared_at<RowBand>(Rows::kBands + static_cast<uint32_t>(row) * 8) =
          work_band(item, static_cast<int64_t>(item.i0) + row);
    sync_wave();
    const int begin_row = larger(-item.i0, first), end_row = smaller(item.queries - item.i0, first + 16);
    // What comes of such rows is not used; but no bias is there to be read for them.
    if (begin_row >= end_row) return kScores ? FullTiles{0, 0} : FullTiles{INT32_MAX, 0};
    const RowsClass rows = rows_class(Rows::kBands, begin_row, end_row, item.prefix);
    // Whole tiles of [full_lo, full_hi), as places in the list behind the tiles of the prefix.
    const int32_t begin = (rows.full_lo + kTileK - 1) / kTileK, end = rows.full_hi / kTileK;
    const int32_t shift = item.tiles.count - item.tiles.head + item.tiles.band;
    const int32_t from = smaller(shift - begin, item.tiles.count - item.tiles.head);
    return begin < end ? FullTiles{from, shift - end} : FullTiles{0, 0};
  }

  // Where O of the calling warp's warpgroup goes on its way out.
  TSRI_DEVICE_MEMBER uint32_t buffer_o(int i) {
    if constexpr (kLoadsItself) return kQ + q_buffer(i, Rows::wave_row() / 64) * kBytesQ;
    return kO + static_cast<uint32_t>(Rows::wave_row() / 64) * kBytesO;
  }

  TSRI_DEVICE_MEMBER void finish(const Args &args, State &state, const WorkItem &item, float unit, uint32_t buffer) {
    if constexpr (kCuts)
      if (item.parts > 1) return ForwardParts<EngineForward>::store(args, state, item);
    finish_whole(args, state, item, unit, buffer);
  }
  // What sums of a part with maximum `before` count for beside those with a larger one; see parts.hpp.
  TSRI_DEVICE_MEMBER float part_weight(float unit, float before, float m) {
    return Softmax::prob_ready(unit, before, Softmax::ready_reference(unit, m));
  }
  TSRI_DEVICE_MEMBER void finish_whole(const Args &args, State &state, const WorkItem &item, float unit,
                                       uint32_t buffer) {
    const Call &call = args.forward.call;
    const auto end_of = [&](int r) {
      const bool used = static_cast<uint32_t>(item.i0 + Rows::wave_row() + U::free_of(r)) <
                        static_cast<uint32_t>(item.queries);
      return Rows::end_row(call, item.h, state.m[r], state.l[r], unit, used);
    };
    typename Rows::RowEnd ends[2];
    if (kCopiesOut) ends[0] = end_of(0), ends[1] = end_of(1); // both chains beside each other
    TSRI_UNROLL
    for (int r = 0; r < Rows::kSlots; ++r) {
      const int row = Rows::wave_row() + U::free_of(r);
      const typename Rows::RowEnd end = kCopiesOut ? ends[r] : end_of(r);
      Rows::scale_row(state, r, end, !any_lane(!end.writes));
      if (row < item.slot_len - item.row0 && U::leads_row() && call.p.lse.dtype != TSR_DTYPE_NONE)
        call.a.lse[item.lse_at + row * call.p.lse.stride[2]] = end.lse;
      if constexpr (kScores)
        if (row < item.slot_len - item.row0 && U::leads_row() && call.p.max_logit.dtype != TSR_DTYPE_NONE)
          call.a.max_logit[tsri_row_offset(call.p.max_logit.stride, item.b, item.h,
                                           static_cast<int64_t>(item.slot_begin) + item.row0 + row)] = end.max_logit;
      matrix_pin(state.out[0]); // one row after the other: addresses take registers
    }
    // What follows the last row of a tensor is left out, but not what follows a sequence's.
    if constexpr (kCopiesOut) {
      const int first = Rows::wave_row();
      if (args.copies_out && (!call.a.cu_q || item.slot_len - item.row0 - first >= 16)) {
        store_by_engine<U, Rows::kOut, kPieceQ>(state.out[0], buffer + static_cast<uint32_t>(first % 64) * 128,
                                                args.o, item.slot_begin + item.row0 + first, item.h, item.q_batch);
        return;
      }
    }
    store_registers<U, Rows::kOut>(state.out[0], call.p.o, call.a.o, item.o_at, item.slot_len - item.row0,
                                   Rows::wave_row(), static_cast<int>(call.p.dim_v));
  }

  TSRI_DEVICE_MEMBER void make_barriers() {
    TSRI_NO_UNROLL
    for (uint32_t n = 0; n < kStagesQ * kGroups; ++n) {
      phase_init(kFullQ + 8 * n, 1);
      phase_init(kEmptyQ + 8 * n, kLoadsItself ? 4 : 1); // every warp for itself, or one for all
    }
    TSRI_NO_UNROLL
    for (uint32_t n = 0; n < kStages; ++n) {
      phase_init(kFullK + 8 * n, 1);
      phase_init(kEmptyK + 8 * n, kGroups);
      phase_init(kFullV + 8 * n, 1);
      phase_init(kEmptyV + 8 * n, kGroups);
    }
    phase_init_done();
  }

  TSRI_DEVICE_MEMBER void block(const Args &args) {
    if (thread_index() == 0) {
      tensor_prefetch(args.q);
      tensor_prefetch(args.k);
      tensor_prefetch(args.v);
      if (kCopiesOut && args.copies_out) tensor_prefetch(args.o);
      make_barriers();
      shared_at<WorkList>(kList).gaps = 0;
    }
    if (reads_first(args.forward.call)) wait_for_earlier();
    if constexpr (kScores)
      if (thread_index() == 0) Steps::store_key(args.forward.call, kDropKey);
    sync_block();
    const int found = find_work<kThreads, kMostItems, kDeals>(kList, kItems, args, kTileQ, kTileK);
    sync_block();
    wait_for_earlier();
    release_later();
    if (shared_at<WorkList>(kList).gaps) {
      if (thread_index() < kGroups * kWarpgroup) finish_empty(args, found, unit_of(args));
      sync_block();
      if (thread_index() < 32) close_gaps(kList, kItems, found);
      sync_block();
    }
    if constexpr (kLoadsItself && kGroups > 1) {
      SharedSerialLoop<EngineForward>::run(args);
    } else if constexpr (kLoadsItself) {
      SerialLoop<EngineForward>::run(args);
    } else if (thread_index() >= kGroups * kWarpgroup) {
      fewer_registers<kLoadRegisters>();
      if constexpr (kPages) {
        if (thread_index() / 32 == kGroups * kWarpgroup / 32) load_pages<EngineForward, false>(args);
        if (thread_index() / 32 == kGroups * kWarpgroup / 32 + 2) load_pages<EngineForward, true>(args);
      } else {
        if (thread_index() == kGroups * kWarpgroup) EngineLoads<EngineForward>::load_keys(args);
      }
      if (thread_index() == kGroups * kWarpgroup + 32) EngineLoads<EngineForward>::load_queries(args);
    } else {
      more_registers<kMultiplyRegisters>();
      multiply_all(args);
    }
  }
};

} // namespace gpu
} // namespace tessera

#endif // TESSERA_BACKENDS_CUDA_SM90_FORWARD_HPP_
