// SPDX-License-Identifier: Apache-2.0
//
// Forward of heads that are one tile of queries and one of keys, for compute capability 9.0. Such a problem moves as
// many bytes as it computes, so a block is a stream: one thread asks the copy engine for Q, K and V of the heads to
// come, as many as there are slots, and two teams of warpgroups take heads in turn, each warpgroup 64 queries of its
// team's. With one tile of keys there is no recurrence and no list of work: scores, maximum, probabilities, product
// with V, one after the other; what a warpgroup waits for the three others fill. O leaves by way of the rows that its
// queries came in.
//
// All heads have the same rows, so what masks need is found once, and nothing is read of the caller's memory for it:
// no arrays of lengths. Otherwise the problems are those of `edge` rows in forward.hpp.
#ifndef TESSERA_BACKENDS_CUDA_SM90_HEADS_HPP_
#define TESSERA_BACKENDS_CUDA_SM90_HEADS_HPP_

#define TSRI_ALWAYS_FRESH

#include "backends/cuda/sm80/unit.hpp"
#include "backends/cuda/sm90/instructions.hpp"
#include "backends/cuda/sm90/maxima.hpp"
#include "backends/cuda/sm90/store.hpp"
#include "common/gpu/forward.hpp"

namespace tessera {
namespace gpu {

template <class E, int kTileQ_, int kTileK_, int kDqk, int kDv, int kSlots>
struct EngineHeads {
  using U = MmaSync<E>;
  using Args = EngineForwardArgs;
  static constexpr int kTileQ = kTileQ_, kTileK = kTileK_, kMinBlocks = 1;
  static constexpr int kTeams = 2, kTeamThreads = kTileQ / 64 * kWarpgroup;
  static constexpr int kMultiplying = kTeams * kTeamThreads, kThreads = kMultiplying + kWarpgroup;
  // Rows of both teams, one behind the other; they are the same rows of different heads.
  using Rows = Forward<U, kTeams * kTileQ, kTileK, kDqk, kDv, kMultiplying / 32, 2, false, false>;
  using State = typename Rows::State;
  using Scores = typename Rows::Scores;
  static constexpr int kCon = Rows::kCon;
  static_assert(kDqk == 64 && kDv == 64 && Rows::kFree == 1, "rows of 128 bytes, 64 queries a warpgroup");
  static_assert(kSlots % kTeams == 0, "a slot is always the same team's");

  // A slot: Q, and O in its place, K, V. Barriers: Q and K are there; V is; every warp of the team is done with it.
  static constexpr uint32_t kBytesQ = kTileQ * 128, kBytesK = kTileK * 128;
  static constexpr uint32_t kSlot = kBytesQ + 2 * kBytesK;
  static constexpr uint32_t kFull = 0, kFullV = kFull + 8 * kSlots, kEmpty = kFullV + 8 * kSlots;
  static_assert(kEmpty + 8 * kSlots <= Rows::kBands, "in front of the bands");
  static constexpr uint32_t kTiles = ceil_div(Rows::kBands + kTeams * kTileQ * sizeof(RowBand), 1024) * 1024;
  static constexpr uint32_t kSharedBytes = kTiles + kSlots * kSlot;
  static_assert(kSharedBytes <= kMostShared, "what a block can have");

  // Registers: even shares at the start, in steps of 8, and then what the loading warpgroup leaves.
  static constexpr int kEvenRegisters = 65536 / kThreads / 8 * 8, kLoadRegisters = 32;
  static constexpr int kMultiplyRegisters =
      (kEvenRegisters * kThreads - kLoadRegisters * kWarpgroup) / kMultiplying / 8 * 8;

  // A block takes head block, block + blocks, ... of all batches', of which there are fewer than 2^31.
  TSRI_DEVICE_MEMBER uint32_t heads(const Args &args) {
    return static_cast<uint32_t>(args.forward.call.p.batch) * static_cast<uint32_t>(args.forward.call.p.heads_q);
  }
  TSRI_DEVICE_MEMBER int32_t batch_of(const Args &args, uint32_t at, int32_t *h) {
    const uint32_t b = at / static_cast<uint32_t>(args.forward.call.p.heads_q);
    *h = static_cast<int32_t>(at - b * static_cast<uint32_t>(args.forward.call.p.heads_q));
    return static_cast<int32_t>(b);
  }

  TSRI_DEVICE_MEMBER void load(const Args &args) {
    uint32_t slot = 0, parity = 1; // empty slots are there from the start
    for (uint32_t at = block_index(); at < heads(args); at += block_count()) {
      const uint32_t to = kTiles + slot * kSlot;
      int32_t h;
      const int32_t b = batch_of(args, at, &h), kv = h / args.forward.call.group;
      phase_wait(kEmpty + 8 * slot, parity);
      phase_expect(kFull + 8 * slot, kBytesQ + kBytesK);
      tensor_load(to + kBytesQ, args.k, kFull + 8 * slot, 0, 0, kv, b);
      tensor_load(to, args.q, kFull + 8 * slot, 0, 0, h, b);
      phase_expect(kFullV + 8 * slot, kBytesK);
      tensor_load(to + kBytesQ + kBytesK, args.v, kFullV + 8 * slot, 0, 0, kv, b);
      if (++slot == kSlots) {
        slot = 0;
        parity ^= 1;
      }
    }
  }

  // First row of the calling warp.
  TSRI_DEVICE_MEMBER int first_row() { return Rows::wave_row() % kTileQ; }

  TSRI_DEVICE_MEMBER void start_scores(Scores &s, uint32_t slot, uint32_t parity) {
    phase_wait(kFull + 8 * slot, parity);
    const uint32_t to = kTiles + slot * kSlot;
    MatrixTile q = matrix_fresh(matrix_tile(to + static_cast<uint32_t>(first_row()) / 64 * (64 * 128), 16));
    MatrixTile k = matrix_fresh(matrix_tile(to + kBytesQ, 16));
    matrix_begin();
    TSRI_UNROLL
    for (int t = 0; t < kDqk / 16; ++t)
      matrix_product<false, false>(E{}, s[0], matrix_at(q, t * 32), matrix_at(k, t * 32), t > 0);
    matrix_commit();
  }

  // Probabilities as the operand of their product with V, and their sums.
  TSRI_DEVICE_MEMBER void fold(State &state, Scores &s, float unit, uint32_t (&p)[kCon][4]) {
    Maxima<U, Rows>::begin(state, s, unit);
    float minus_ready[2], sum[2][2] = {{0.0f, 0.0f}, {0.0f, 0.0f}}; // two chains a row
    TSRI_UNROLL
    for (int r = 0; r < 2; ++r) minus_ready[r] = -Softmax::ready_reference(unit, state.m[r]);
    TSRI_UNROLL
    for (int c = 0; c < kCon; ++c) {
      float(&x)[8] = s[0][c].x;
      TSRI_UNROLL
      for (int e = 0; e < 8; ++e) {
        x[e] = Softmax::prob_negated(unit, x[e], minus_ready[U::slot(e)]);
        sum[U::slot(e)][e & 1] += x[e];
      }
      TSRI_UNROLL
      for (int r = 0; r < 4; ++r) p[c][r] = E::pack(x[2 * r], x[2 * r + 1]);
      // Sums in time: the assembler would keep what they are made of instead.
      if (c % 2 == 1 && c + 1 < kCon) matrix_after(sum[0][0] + sum[0][1] + sum[1][0] + sum[1][1]);
    }
    TSRI_UNROLL
    for (int r = 0; r < 2; ++r) state.l[r] = sum[r][0] + sum[r][1];
  }

  TSRI_DEVICE_MEMBER void multiply_values(State &state, const uint32_t (&p)[kCon][4], uint32_t slot, uint32_t parity) {
    phase_wait(kFullV + 8 * slot, parity);
    MatrixTile v = matrix_fresh(matrix_tile(kTiles + slot * kSlot + kBytesQ + kBytesK, kBytesK));
    matrix_begin();
    TSRI_UNROLL
    for (int c = 0; c < kCon; ++c)
      matrix_product_registers<true>(E{}, state.out[0], p[c], matrix_at(v, static_cast<uint32_t>(c) * 2048), c > 0);
    matrix_commit();
    matrix_wait<0>();
    matrix_pin(state.out[0]);
  }

  TSRI_DEVICE_MEMBER void finish(const Args &args, State &state, uint32_t at, uint32_t slot, float unit) {
    const Call &call = args.forward.call;
    const int first = first_row();
    const int32_t rows = args.forward.rows.sq;
    int32_t h;
    const int32_t b = batch_of(args, at, &h);
    typename Rows::RowEnd ends[2];
    TSRI_UNROLL
    for (int r = 0; r < 2; ++r)
      ends[r] = Rows::end_row(call, h, state.m[r], state.l[r], unit, first + U::free_of(r) < rows);
    TSRI_UNROLL
    for (int r = 0; r < 2; ++r) {
      const int row = first + U::free_of(r);
      Rows::scale_row(state, r, ends[r], !any_lane(!ends[r].writes));
      if (call.p.lse.dtype != TSR_DTYPE_NONE && row < rows && U::leads_row())
        call.a.lse[tsri_row_offset(call.p.lse.stride, b, h, row)] = ends[r].lse;
    }
    if (args.copies_out)
      store_by_engine<U, Rows::kOut, kBytesQ>(state.out[0], kTiles + slot * kSlot + static_cast<uint32_t>(first) * 128,
                                              args.o, first, h, b);
    else
      store_registers<U, Rows::kOut>(state.out[0], call.p.o, call.a.o, tsri_row_offset(call.p.o.stride, b, h, 0), rows,
                                     first, static_cast<int>(call.p.dim_v));
  }

  // Whether the warp's rows see all keys of the tile; others have their bands in shared memory.
  TSRI_DEVICE_MEMBER bool sees_all(const Args &args) {
    const SameRows &same = args.forward.rows;
    const int first = Rows::wave_row(), used = smaller(same.sq - first_row(), 16);
    if (used <= 0) return true; // what comes of them is not used
    const RowsClass rows = rows_class(Rows::kBands, first, first + used, same.prefix);
    return rows.full_lo <= 0 && rows.full_hi >= kTileK;
  }
  TSRI_DEVICE_MEMBER void store_bands(const Args &args) {
    const SameRows &same = args.forward.rows;
    const int thread = thread_index();
    if (thread >= kTeams * kTileQ) return;
    RowBand band = {INT32_MAX, INT32_MIN};
    if (thread % kTileQ < same.sq) {
      const tsri_mask_row row = tsri_mask_band_row(same.band, thread % kTileQ, same.prefix, same.sk);
      band = RowBand{static_cast<int32_t>(row.lo), static_cast<int32_t>(row.hi)};
    }
    shared_at<RowBand>(Rows::kBands + static_cast<uint32_t>(thread) * 8) = band;
  }

  TSRI_DEVICE_MEMBER void release(uint32_t slot) {
    if (thread_index() % 32 != 0) return;
    bulk_wait_read();
    phase_arrive(kEmpty + 8 * slot);
  }

  TSRI_DEVICE_MEMBER void multiply(const Args &args) {
    const int team = thread_index() / kTeamThreads;
    const float unit = args.forward.call.p.scale * static_cast<float>(TSRI_LOG2E);
    const bool whole = sees_all(args);
    uint32_t slot = static_cast<uint32_t>(team), parity = 0, before = kSlots;
    TSRI_NO_UNROLL
    for (uint32_t at = block_index() + slot * block_count(); at < heads(args); at += kTeams * block_count()) {
      State state;
      Scores s;
      uint32_t p[kCon][4];
      start_scores(s, slot, parity);
      matrix_wait<0>();
      matrix_pin(s[0]);
      if (!whole) Rows::mask_scores(s, args.forward.rows.prefix, 0);
      fold(state, s, unit, p);
      if (before != kSlots) release(before);
      multiply_values(state, p, slot, parity);
      finish(args, state, at, slot, unit);
      before = slot;
      slot += kTeams;
      if (slot >= kSlots) {
        slot -= kSlots;
        parity ^= 1;
      }
    }
    if (thread_index() % 32 == 0) bulk_wait_read(); // shared memory has to stay until then
  }

  TSRI_DEVICE_MEMBER void block(const Args &args) {
    if (thread_index() == kMultiplying) {
      tensor_prefetch(args.q);
      tensor_prefetch(args.k);
      tensor_prefetch(args.v);
      if (args.copies_out) tensor_prefetch(args.o);
      TSRI_NO_UNROLL
      for (uint32_t n = 0; n < kSlots; ++n) {
        phase_init(kFull + 8 * n, 1);
        phase_init(kFullV + 8 * n, 1);
        phase_init(kEmpty + 8 * n, kTeamThreads / 32);
      }
      phase_init_done();
    }
    store_bands(args);
    sync_block();
    wait_for_earlier();
    release_later();
    if (thread_index() >= kMultiplying) {
      fewer_registers<kLoadRegisters>();
      if (thread_index() == kMultiplying) load(args);
    } else {
      more_registers<kMultiplyRegisters>();
      multiply(args);
    }
  }
};

} // namespace gpu
} // namespace tessera

#endif // TESSERA_BACKENDS_CUDA_SM90_HEADS_HPP_
