// SPDX-License-Identifier: Apache-2.0
//
// Forward of compute capability 9.0 on 8-bit elements (E4M3) with scales. Blocks, work lists, masks and rows are
// those of forward.hpp; what 8 bits change:
//
//   V    is turned by two warps, see turn_fp8.hpp; columns of O come out in another order, and are stored accordingly.
//   P    is converted, see fold_fp8.hpp, 32 keys at a time: their product with V is under way while the exponentials
//        of the next 32 are made, without registers for a second tile.
//   O    Products of 8-bit elements may add up a few tiles only, see totals_fp8.hpp. Where the total finds no room in
//        shared memory, each tile's P V has accumulators of its own, part by part of the columns.
#ifndef TESSERA_BACKENDS_CUDA_SM90_FORWARD_FP8_HPP_
#define TESSERA_BACKENDS_CUDA_SM90_FORWARD_FP8_HPP_

#include "backends/cuda/sm90/forward.hpp"
#include "backends/cuda/sm90/fold_fp8.hpp"
#include "backends/cuda/sm90/instructions_fp8.hpp"
#include "backends/cuda/sm90/totals_fp8.hpp"
#include "backends/cuda/sm90/turn_fp8.hpp"

namespace tessera {
namespace gpu {

// The lists and barriers of queries come from a forward of the same tiles on 16-bit elements.
template <int kTileQ_, int kTileK_, int kDqk, int kDv, int kStagesQ, int kStages>
struct EngineForwardFp8 : EngineForward<BFloat16, kTileQ_, kTileK_, kDqk, kDv, kStagesQ, 1, false> {
  using Base = EngineForward<BFloat16, kTileQ_, kTileK_, kDqk, kDv, kStagesQ, 1, false>;
  using Args = EngineForwardArgs;
  using Rows = typename Base::Rows;
  using State = typename Base::State;
  using Scores = typename Base::Scores;
  using FullTiles = typename Base::FullTiles;
  using U = typename Base::U;
  using Fold = FoldFp8<U, Rows>;
  using Parts = ForwardParts<EngineForwardFp8>;
  using Base::kFullQ, Base::kEmptyQ, Base::kGroups, Base::kItems, Base::kMostItems, Base::kThreads, Base::kTileK,
      Base::kTileQ, Base::kList;
  static constexpr int kMinBlocks = 1;
  static constexpr bool kDeals = true;
  static constexpr int kSteps = kTileK / 32; // of 32 keys
  static constexpr int kPart = min_of(kDv, 128); // columns of O that are made at a time
  static constexpr bool kTotals = kDv == kPart;
  using Part = typename U::Acc[kPart / 16];
  static_assert(kTileK % 32 == 0 && kDqk % 32 == 0 && kDv % 64 == 0 && kDv % kPart == 0, "whole products");

  // Pieces of 128 columns, or of 128 keys where V is turned.
  static constexpr uint32_t kPieceQ = 64 * 128, kPieceK = kTileK * 128, kPieceT = kDv * 128;
  static constexpr uint32_t kBytesQ = ceil_div(kDqk, 128) * kPieceQ;
  static constexpr uint32_t kBytesK = ceil_div(kDqk, 128) * kPieceK;
  static constexpr uint32_t kBytesV = ceil_div(kDv, 128) * kPieceK;
  static constexpr uint32_t kBytesT = ceil_div(kTileK, 128) * kPieceT;

  static constexpr uint32_t kFullK = ceil_div(kItems + kMostItems * sizeof(WorkItem), 16) * 16;
  static constexpr uint32_t kEmptyK = kFullK + 8 * kStages;
  static constexpr uint32_t kFullV = kEmptyK + 8 * kStages, kEmptyV = kFullV + 8 * 2;
  static constexpr uint32_t kFullT = kEmptyV + 8 * 2, kEmptyT = kFullT + 8 * kStages;
  static constexpr uint32_t kScales = kEmptyT + 8 * kStages; // of tiles of keys and of values, see scale_slot
  static constexpr uint32_t kKeys = kScales + 8 * 2 * kStages; // from the first of a tile of values on
  static constexpr uint32_t kUnits = ceil_div(kKeys + 4 * 2, 16) * 16; // of rows, see store_units
  static constexpr uint32_t kMaxima = kUnits + 4 * kTileQ;             // of rows, see FoldFp8::max_of
  static constexpr uint32_t kFull = kMaxima + 4 * kTileQ;              // FullTiles of warps
  static constexpr uint32_t kFew = ceil_div(kFull + 8 * 4 * kGroups, 16) * 16;
  static constexpr uint32_t kQ =
      ceil_div(kFew + TotalsFp8<U, Rows, kGroups, kPart, kFew, 0>::kFewBytes, 1024) * 1024;
  static constexpr uint32_t kK = kQ + kStagesQ * kGroups * kBytesQ;
  static constexpr uint32_t kT = kK + kStages * kBytesK;
  static constexpr uint32_t kTotal = kT + kStages * kBytesT;
  using Totals = TotalsFp8<U, Rows, kGroups, kPart, kFew, kTotal>;
  static constexpr uint32_t kV = kTotal + (kTotals ? Totals::kBytes : 0);
  static constexpr int kStagesV = kV + 2 * kBytesV > kMostShared ? 1 : 2; // of V as it comes; kStages of it turned
  static constexpr uint32_t kSharedBytes = kV + kStagesV * kBytesV;
  static_assert(kSharedBytes <= kMostShared, "what a block can have");

  static constexpr int kEvenRegisters = 65536 / kThreads / 8 * 8;
  static constexpr int kLoadRegisters = kGroups == 3 ? 32 : 40;
  static constexpr int kMultiplyRegisters =
      min_of((kEvenRegisters * (kGroups + 1) - kLoadRegisters) / kGroups / 8 * 8, 240);
  static constexpr int kTurners = 2; // warps that turn V
  using Turn = TurnFp8<kTileK, kDv, kTurners>;

  struct TileScales {
    float k, v;
  };
  // Use number `n` of a ring of barriers that begins at `ring`; a buffer is empty from the start.
  template <int kSlots>
  TSRI_DEVICE_MEMBER void wait_full(uint32_t ring, uint32_t n) {
    phase_wait(ring + 8 * Base::template slot_of<kSlots>(n), Base::template parity_of<kSlots>(n));
  }
  template <int kSlots>
  TSRI_DEVICE_MEMBER void wait_empty(uint32_t ring, uint32_t n) {
    phase_wait(ring + 8 * Base::template slot_of<kSlots>(n), Base::template parity_of<kSlots>(n) ^ 1);
  }
  // A tile's scale of values is read until the next tile's keys are left.
  TSRI_DEVICE_MEMBER uint32_t scale_slot(uint32_t n) { return n % (2 * kStages); }
  TSRI_DEVICE_MEMBER TileScales &scales_of(uint32_t n) { return shared_at<TileScales>(kScales + 8 * scale_slot(n)); }
  TSRI_DEVICE_MEMBER uint32_t slot(uint32_t n) { return n % kStages; }
  TSRI_DEVICE_MEMBER uint32_t slot_v(uint32_t n) { return n % kStagesV; }

  // ---------------------------------------------------------------------------------- loading

  // The scale of row `row` of a tensor; packed and broadcast axes have strides of 0.
  TSRI_DEVICE_MEMBER float scale_at(const tsr_layout &layout, const float *scales, int64_t rows_each, int32_t b,
                                    int32_t h, int32_t row) {
    const int64_t at = rows_each > 0 ? row / rows_each : 0;
    return load_global<float>(scales + tsri_row_offset(layout.stride, b, h, at));
  }

  template <uint32_t kBytes, uint32_t kPiece>
  TSRI_DEVICE_MEMBER void load_boxes(uint32_t to, const TensorMap &map, uint32_t full, int32_t row, int32_t head,
                                     int32_t batch) {
    phase_expect(full, kBytes);
    TSRI_UNROLL
    for (uint32_t piece = 0; piece < kBytes / kPiece; ++piece)
      tensor_load(to + piece * kPiece, map, full, static_cast<int32_t>(128 * piece), row, head, batch);
  }

  // Keys, values and their scales, by one thread. The scales are there when the keys are, and with values how many
  // keys of the sequence there are from the tile's first on.
  TSRI_DEVICE_MEMBER void load_keys(const Args &args) {
    const Call &call = args.forward.call;
    uint32_t t = 0;
    for (int i = 0; i < Base::items(); ++i) {
      const WorkItem &item = Base::item_at(i);
      TSRI_NO_UNROLL
      for (int32_t n = 0; n < item.tiles.count; ++n, ++t) {
        const int32_t row = item.k_begin + KeyTiles::at(item.tiles, n) * kTileK;
        const TileScales scales = {
            scale_at(call.p.k_scale, call.a.k_scale, call.p.scale_rows_k, item.b, item.k_head, row),
            scale_at(call.p.v_scale, call.a.v_scale, call.p.scale_rows_k, item.b, item.k_head, row)};
        wait_empty<kStages>(kEmptyK, t);
        scales_of(t) = scales;
        load_boxes<kBytesK, kPieceK>(kK + slot(t) * kBytesK, args.k, kFullK + 8 * slot(t), row, item.k_head,
                                     item.k_batch);
        wait_empty<kStagesV>(kEmptyV, t);
        shared_at<int32_t>(kKeys + 4 * slot_v(t)) = item.keys - KeyTiles::at(item.tiles, n) * kTileK;
        load_boxes<kBytesV, kPieceK>(kV + slot_v(t) * kBytesV, args.v, kFullV + 8 * slot_v(t), row, item.k_head,
                                     item.k_batch);
      }
    }
  }

  TSRI_DEVICE_MEMBER void load_queries(const Args &args) {
    for (int i = 0; i < Base::items(); ++i) {
      const WorkItem &item = Base::item_at(i);
      TSRI_NO_UNROLL
      for (int group = 0; group < kGroups; ++group) {
        const uint32_t buffer = Base::q_buffer(i, group);
        phase_wait(kEmptyQ + 8 * buffer,
                   Base::template parity_of<kStagesQ>(static_cast<uint32_t>(i)) ^ 1);
        load_boxes<kBytesQ, kPieceQ>(kQ + buffer * kBytesQ, args.q, kFullQ + 8 * buffer,
                                     item.slot_begin + item.row0 + 64 * group, item.h, item.q_batch);
      }
    }
  }

  // --------------------------------------------------------------------------------- turning V

  TSRI_DEVICE_MEMBER void turn_values(int warp) {
    uint32_t count = 0;
    for (int i = 0; i < Base::items(); ++i) count += static_cast<uint32_t>(Base::item_at(i).tiles.count);
    TSRI_NO_UNROLL
    for (uint32_t t = 0; t < count; ++t) {
      wait_empty<kStages>(kEmptyT, t);
      wait_full<kStagesV>(kFullV, t);
      const int32_t keys = shared_at<int32_t>(kKeys + 4 * slot_v(t));
      if (keys < kTileK)
        Turn::template turn_tile<true>(kV + slot_v(t) * kBytesV, kT + slot(t) * kBytesT, warp, keys);
      else
        Turn::template turn_tile<false>(kV + slot_v(t) * kBytesV, kT + slot(t) * kBytesT, warp, keys);
      fence_async();
      sync_wave();
      if (thread_index() % 32 == 0) {
        phase_arrive(kFullT + 8 * slot(t));
        phase_arrive(kEmptyV + 8 * slot_v(t));
      }
    }
  }

  // ------------------------------------------------------------------------------ multiplying

  TSRI_DEVICE_MEMBER void multiply_keys(Scores &s, MatrixTile q, MatrixTile k) {
    q = matrix_fresh(q);
    k = matrix_fresh(k);
    matrix_begin();
    TSRI_UNROLL
    for (int t = 0; t < kDqk / 32; ++t)
      product_e4m3(s[0], matrix_at(q, t / 4 * kPieceQ + t % 4 * 32), matrix_at(k, t / 4 * kPieceK + t % 4 * 32),
                   t > 0);
    matrix_commit();
  }
  TSRI_DEVICE_MEMBER void multiply_values(Part &part, const uint32_t (&p)[4], MatrixTile v, int c, bool add) {
    matrix_begin();
    product_e4m3_registers(part, p, matrix_at(v, c / 4 * kPieceT + c % 4 * 32), add);
    matrix_commit();
  }
  TSRI_DEVICE_MEMBER MatrixTile turned_tile(uint32_t t, int column) {
    return matrix_fresh(matrix_tile(kT + slot(t) * kBytesT + static_cast<uint32_t>(column) * 128, 16));
  }

  // O += scale * part, columns from 16 `first` on.
  TSRI_DEVICE_MEMBER void add_part(State &state, const Part &part, int first, float scale) {
    TSRI_UNROLL
    for (int o = 0; o < kPart / 16; ++o)
      TSRI_UNROLL
      for (int e = 0; e < 8; ++e) {
        float &x = state.out[0][first + o].x[e];
        x = multiply_add(part[o].x[e], scale, x);
      }
  }

  // Factors from products to base two, of the warp's rows, in shared memory; rows beyond the tensor are not used.
  TSRI_DEVICE_MEMBER void store_units(const Args &args, const WorkItem &item) {
    const Call &call = args.forward.call;
    const int lane = thread_index() & 31;
    if (lane < 16) {
      const int32_t row = smaller(item.row0 + Rows::wave_row() + lane, item.slot_len - 1);
      shared_at<float>(kUnits + static_cast<uint32_t>(Rows::wave_row() + lane) * 4) =
          Base::unit_of(args) *
          scale_at(call.p.q_scale, call.a.q_scale, call.p.scale_rows_q, item.b, item.h, item.slot_begin + row);
    }
    sync_wave();
  }
  // Of the lane's rows, against keys of a scale.
  TSRI_DEVICE_MEMBER void load_units(float (&unit)[2], float scale) {
    TSRI_UNROLL
    for (int r = 0; r < 2; ++r)
      unit[r] = shared_at<float>(kUnits + static_cast<uint32_t>(Rows::wave_row() + U::free_of(r)) * 4) * scale;
  }

  // By every warp for itself: products end for a warpgroup together, but its warps read scales on their own.
  TSRI_DEVICE_MEMBER void release_warp(uint32_t empty, int thread) {
    if (thread % 32 == 0) phase_arrive(empty);
  }

  // The begin of piece i; t: its first tile.
  TSRI_DEVICE_MEMBER void start_item(const Args &args, State &state, float (&minus_ready)[2], int i, uint32_t t) {
    const int thread = thread_index();
    shared_at<FullTiles>(kFull + static_cast<uint32_t>(thread / 32) * 8) = Base::start_rows(Base::item_at(i));
    store_units(args, Base::item_at(i));
    Base::start_state(state);
    Fold::start(kMaxima, minus_ready);
    phase_wait(kFullQ + 8 * Base::q_buffer(i, thread / kWarpgroup),
               Base::template parity_of<kStagesQ>(static_cast<uint32_t>(i)));
    wait_full<kStages>(kFullK, t); // and the scales
    if constexpr (kTotals) Totals::start(scales_of(t).v, Base::item_at(i).tiles.count, false, thread);
  }

  // The scores of tile `number`, of piece i, and with it `left` tiles left; begun: it is not the first. They come back
  // masked, with the rows' factors, and with maxima moved.
  TSRI_DEVICE_MEMBER void make_scores(State &state, float (&minus_ready)[2], Scores &s, float (&unit)[2], int i,
                                      int32_t left, int &number, bool begun) {
    int thread = thread_index(); // read again for every tile, as other numbers are found again: registers are few
    uint32_t t = static_cast<uint32_t>(number);
    wait_full<kStages>(kFullK, t);
    const MatrixTile q = matrix_fresh(matrix_tile(kQ + Base::q_buffer(i, thread / kWarpgroup) * kBytesQ, 16));
    const MatrixTile k = matrix_fresh(matrix_tile(kK + slot(t) * kBytesK, 16));
    if constexpr (kTotals) {
      const bool due = Totals::due(scales_of(t).v, left, thread);
      matrix_wait<0>();
      matrix_pin(state.out[0]);
      if (begun) release_warp(kEmptyT + 8 * slot(t - 1), thread);
      if (due) {
        Totals::template add<false>(state, thread);
        Totals::start(scales_of(t).v, left, true, thread);
      }
    }
    multiply_keys(s, q, k);
    float alpha[2];
    load_units(unit, scales_of(t).k);
    const FullTiles full = shared_at<FullTiles>(kFull + static_cast<uint32_t>(thread / 32) * 8);
    const bool masked = left > full.from || left <= full.to;
    matrix_wait<0>();
    matrix_pin(s[0]);
    keep_register(number);
    t = static_cast<uint32_t>(number);
    thread = fresh_thread_index();
    release_warp(kEmptyK + 8 * slot(t), thread);
    if (left == 1) Base::release(kEmptyQ + 8 * Base::q_buffer(i, thread / kWarpgroup), thread);
    if (masked) Rows::mask_scores(s, Base::item_at(i).prefix, Base::first_key(Base::item_at(i), left));
    if (!Fold::move(state, minus_ready, s, unit, alpha, kMaxima)) return;
    if constexpr (kTotals)
      Totals::rescale(state, alpha);
    else
      Rows::rescale(state, alpha);
  }

  // Probabilities of tile t, 32 keys after 32 keys, times its values, which stay under way.
  TSRI_DEVICE_MEMBER void fold_steps(State &state, const float (&minus_ready)[2], Scores &s, uint32_t (&p)[kSteps][4],
                                     const float (&unit)[2], uint32_t t) {
    wait_full<kStages>(kFullT, t);
    const MatrixTile v = turned_tile(t, 0);
    float more[2] = {0.0f, 0.0f};
    matrix_pin(state.out[0]);
    TSRI_UNROLL
    for (int c = 0; c < kSteps; ++c) {
      Fold::exponentiate(p[c], s, c, unit, minus_ready, state.l, more);
      multiply_values(state.out[0], p[c], v, c, true);
    }
    state.l[0] += more[0];
    state.l[1] += more[1];
  }
  // The same, all columns after one another, until they are in O.
  TSRI_DEVICE_MEMBER void fold_parts(State &state, const float (&minus_ready)[2], Scores &s, uint32_t (&p)[kSteps][4],
                                     const float (&unit)[2], uint32_t t, int thread) {
    Part part;
    float more[2] = {0.0f, 0.0f};
    TSRI_UNROLL
    for (int c = 0; c < kSteps; ++c) Fold::exponentiate(p[c], s, c, unit, minus_ready, state.l, more);
    state.l[0] += more[0];
    state.l[1] += more[1];
    wait_full<kStages>(kFullT, t);
    const float scale = scales_of(t).v;
    TSRI_UNROLL
    for (int column = 0; column < kDv; column += kPart) {
      const MatrixTile v = turned_tile(t, column);
      TSRI_UNROLL
      for (int c = 0; c < kSteps; ++c) multiply_values(part, p[c], v, c, c > 0);
      matrix_wait<0>();
      matrix_pin(part);
      if (column + kPart == kDv) release_warp(kEmptyT + 8 * slot(t), thread);
      add_part(state, part, column / 16, scale);
    }
  }

  TSRI_DEVICE_MEMBER void multiply_all(const Args &args) {
    State state;
    Scores s;
    float minus_ready[2], unit[2];
    uint32_t p[kSteps][4];
    int t = 0; // number of the tile
    TSRI_NO_UNROLL
    for (int i = 0; i < Base::items(); ++i) {
      start_item(args, state, minus_ready, i, static_cast<uint32_t>(t));
      int32_t left = Base::item_at(i).tiles.count;
      bool begun = false;
      TSRI_NO_UNROLL
      for (; left > 0; --left, ++t, begun = true) {
        make_scores(state, minus_ready, s, unit, i, left, t, begun);
        keep_register(t);
        if constexpr (kTotals)
          fold_steps(state, minus_ready, s, p, unit, static_cast<uint32_t>(t));
        else
          fold_parts(state, minus_ready, s, p, unit, static_cast<uint32_t>(t), thread_index());
        keep_register(t);
        keep_register(left);
      }
      state.m[0] = Fold::max_of(kMaxima, 0);
      state.m[1] = Fold::max_of(kMaxima, 1);
      if constexpr (kTotals) {
        const int thread = thread_index();
        matrix_wait<0>();
        matrix_pin(state.out[0]);
        release_warp(kEmptyT + 8 * slot(static_cast<uint32_t>(t - 1)), thread);
        Totals::template add<true>(state, thread);
      }
      if (Base::item_at(i).parts > 1)
        Parts::store(args, state, Base::item_at(i));
      else
        finish(args.forward.call, state, Base::item_at(i));
    }
    Parts::finish_parts(args, 1.0f);
  }

  // ---------------------------------------------------------------------------------- finishing

  // Four neighbouring columns 16 o + 4 q of a row, see above.
  TSRI_DEVICE_MEMBER void store_row(const Call &call, const State &state, const WorkItem &item, int r) {
    const int row = Rows::wave_row() + U::free_of(r), q = thread_index() & 3;
    if (row >= item.slot_len - item.row0) return;
    const int64_t at = item.o_at + row * call.p.o.stride[2] + 4 * q;
    TSRI_UNROLL
    for (int o = 0; o < Rows::kOut; ++o) {
      const float(&x)[8] = state.out[0][o].x;
      const float y[4] = {x[2 * r], x[2 * r + 4], x[2 * r + 1], x[2 * r + 5]};
      if (16 * o >= call.p.dim_v) break;
      if (call.p.o.dtype == TSR_DTYPE_F32)
        *reinterpret_cast<Quad *>(static_cast<float *>(call.a.o) + at + 16 * o) = Quad{{y[0], y[1], y[2], y[3]}};
      else if (call.p.o.dtype == TSR_DTYPE_F16)
        *reinterpret_cast<Words *>(static_cast<Half *>(call.a.o) + at + 16 * o) =
            Words{{Half::pack(y[0], y[1]), Half::pack(y[2], y[3])}};
      else
        *reinterpret_cast<Words *>(static_cast<BFloat16 *>(call.a.o) + at + 16 * o) =
            Words{{BFloat16::pack(y[0], y[1]), BFloat16::pack(y[2], y[3])}};
    }
  }
  struct alignas(16) Quad {
    float x[4];
  };
  struct alignas(8) Words {
    uint32_t w[2];
  };

  TSRI_DEVICE_MEMBER void finish(const Call &call, State &state, const WorkItem &item) {
    TSRI_UNROLL
    for (int r = 0; r < 2; ++r) {
      const int row = Rows::wave_row() + U::free_of(r);
      const bool used = static_cast<uint32_t>(item.i0 + row) < static_cast<uint32_t>(item.queries);
      // A row that saw no key has no reference: a sink is all that it has.
      const float from = state.m[r] == -infinity() ? -infinity() : Fold::reference_of(state.m[r]);
      const typename Rows::RowEnd end =
          Rows::end_row_in(call, item.h, from, state.l[r], static_cast<float>(TSRI_LN2), 1.0f, used);
      Rows::scale_row(state, r, end, !any_lane(!end.writes));
      if (row < item.slot_len - item.row0 && U::leads_row() && call.p.lse.dtype != TSR_DTYPE_NONE)
        call.a.lse[item.lse_at + row * call.p.lse.stride[2]] = end.lse;
      store_row(call, state, item, r);
    }
  }

  // For parts.hpp: maxima are in base two.
  TSRI_DEVICE_MEMBER float part_weight(float, float before, float m) {
    return before == -infinity() ? 0.0f : exp2_of(Fold::reference_of(before) - Fold::reference_of(m));
  }
  TSRI_DEVICE_MEMBER void finish_whole(const Args &args, State &state, const WorkItem &item, float, uint32_t) {
    finish(args.forward.call, state, item);
  }

  // Pieces of work whose rows see nothing.
  TSRI_DEVICE_MEMBER void finish_empty(const Call &call, int items) {
    for (int i = 0; i < items; ++i) {
      const WorkItem &item = Base::item_at(i);
      if (item.b < 0 || item.tiles.count > 0) continue;
      State state;
      Base::start_state(state);
      finish(call, state, item);
    }
  }

  TSRI_DEVICE_MEMBER void make_barriers() {
    TSRI_NO_UNROLL
    for (uint32_t n = 0; n < kStagesQ * kGroups; ++n) {
      phase_init(kFullQ + 8 * n, 1);
      phase_init(kEmptyQ + 8 * n, 1);
    }
    TSRI_NO_UNROLL
    for (uint32_t n = 0; n < kStages; ++n) {
      phase_init(kFullK + 8 * n, 1);
      phase_init(kEmptyK + 8 * n, 4 * kGroups);
      phase_init(kFullT + 8 * n, kTurners);
      phase_init(kEmptyT + 8 * n, 4 * kGroups);
    }
    TSRI_NO_UNROLL
    for (uint32_t n = 0; n < kStagesV; ++n) {
      phase_init(kFullV + 8 * n, 1);
      phase_init(kEmptyV + 8 * n, kTurners);
    }
    phase_init_done();
  }

  TSRI_DEVICE_MEMBER void block(const Args &args) {
    if (thread_index() == 0) {
      tensor_prefetch(args.q);
      tensor_prefetch(args.k);
      tensor_prefetch(args.v);
      make_barriers();
      shared_at<WorkList>(kList).gaps = 0;
    }
    sync_block();
    if (reads_first(args.forward.call)) wait_for_earlier();
    const int found = find_work<kThreads, kMostItems, true>(kList, kItems, args, kTileQ, kTileK);
    sync_block();
    wait_for_earlier();
    release_later();
    if (shared_at<WorkList>(kList).gaps) {
      if (thread_index() < kGroups * kWarpgroup) finish_empty(args.forward.call, found);
      sync_block();
      if (thread_index() < 32) close_gaps(kList, kItems, found);
      sync_block();
    }
    if (thread_index() >= kGroups * kWarpgroup) {
      fewer_registers<kLoadRegisters>();
      const int warp = thread_index() / 32 - 4 * kGroups;
      if (warp >= 4 - kTurners)
        turn_values(warp - (4 - kTurners));
      else if (thread_index() % 32 == 0 && warp == 0)
        load_keys(args);
      else if (thread_index() % 32 == 0)
        load_queries(args);
    } else {
      more_registers<kMultiplyRegisters>();
      multiply_all(args);
    }
  }
};

} // namespace gpu
} // namespace tessera

#endif // TESSERA_BACKENDS_CUDA_SM90_FORWARD_FP8_HPP_
