// SPDX-License-Identifier: Apache-2.0
//
// Forward of heads that are one tile of queries and one of keys, for compute capability 9.0. Such a problem moves as
// many bytes as it computes, so a block is a stream: three warps ask the copy engine for Q, K and V of the heads to
// come, as many as there is room for, and two teams of warpgroups take heads in turn, each warpgroup 64 queries of its
// team's. With one tile of keys there is no recurrence and no list of work: scores, maximum, probabilities, product
// with V, O by way of the rows that its queries came in, one after the other; what a warpgroup waits for the three
// others fill.
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

template <class E, int kTileQ_, int kTileK_, int kDqk, int kDv, int kRingQ, int kRing>
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

  // Buffers of queries, keys and values, each a ring. Barriers: full when the copy engine has filled a buffer; empty
  // when both warpgroups of the team have read it, or every warp's rows of O have left it.
  static constexpr uint32_t kBytesQ = kTileQ * 128, kBytesK = kTileK * 128;
  static constexpr uint32_t kFullQ = 0, kEmptyQ = kFullQ + 8 * kRingQ, kFullK = kEmptyQ + 8 * kRingQ;
  static constexpr uint32_t kEmptyK = kFullK + 8 * kRing, kFullV = kEmptyK + 8 * kRing, kEmptyV = kFullV + 8 * kRing;
  static_assert(kEmptyV + 8 * kRing <= Rows::kBands, "in front of the bands");
  static_assert(kRingQ >= kTeams && kRing >= kTeams, "every team has a head");
  static constexpr uint32_t kQ = ceil_div(Rows::kBands + kTeams * kTileQ * sizeof(RowBand), 1024) * 1024;
  static constexpr uint32_t kK = kQ + kRingQ * kBytesQ, kV = kK + kRing * kBytesK;
  static constexpr uint32_t kSharedBytes = kV + kRing * kBytesK;
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

  // Where the next head's buffer of a ring is.
  struct Place {
    uint32_t slot, parity;
  };
  template <int kSlots>
  TSRI_DEVICE_MEMBER void advance(Place &place, int heads) {
    place.slot += static_cast<uint32_t>(heads);
    if (place.slot >= kSlots) {
      place.slot -= kSlots;
      place.parity ^= 1;
    }
  }

  // Queries, or keys or values, of all heads of the block; by one thread.
  template <int kSlots, uint32_t kBytes>
  TSRI_DEVICE_MEMBER void load(const Args &args, const TensorMap &map, int group, uint32_t to, uint32_t full,
                               uint32_t empty) {
    Place place = {0, 1}; // empty buffers are there from the start
    for (uint32_t at = block_index(); at < heads(args); at += block_count()) {
      int32_t h;
      const int32_t b = batch_of(args, at, &h);
      phase_wait(empty + 8 * place.slot, place.parity);
      phase_expect(full + 8 * place.slot, kBytes);
      tensor_load(to + place.slot * kBytes, map, full + 8 * place.slot, 0, 0, h / group, b);
      advance<kSlots>(place, 1);
    }
  }

  // First row of the calling warp.
  TSRI_DEVICE_MEMBER int first_row() { return Rows::wave_row() % kTileQ; }

  TSRI_DEVICE_MEMBER void multiply_keys(Scores &s, Place queries, Place keys) {
    phase_wait(kFullQ + 8 * queries.slot, queries.parity);
    phase_wait(kFullK + 8 * keys.slot, keys.parity);
    const uint32_t rows = kQ + queries.slot * kBytesQ + static_cast<uint32_t>(first_row()) / 64 * (64 * 128);
    const MatrixTile q = matrix_fresh(matrix_tile(rows, 16));
    const MatrixTile k = matrix_fresh(matrix_tile(kK + keys.slot * kBytesK, 16));
    matrix_begin();
    TSRI_UNROLL
    for (int t = 0; t < kDqk / 16; ++t)
      matrix_product<false, false>(E{}, s[0], matrix_at(q, t * 32), matrix_at(k, t * 32), t > 0);
    matrix_commit();
    matrix_wait<0>();
    matrix_pin(s[0]);
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

  TSRI_DEVICE_MEMBER void multiply_values(State &state, const uint32_t (&p)[kCon][4], Place values) {
    phase_wait(kFullV + 8 * values.slot, values.parity);
    const MatrixTile v = matrix_fresh(matrix_tile(kV + values.slot * kBytesK, kBytesK));
    matrix_begin();
    TSRI_UNROLL
    for (int c = 0; c < kCon; ++c)
      matrix_product_registers<true>(E{}, state.out[0], p[c], matrix_at(v, static_cast<uint32_t>(c) * 2048), c > 0);
    matrix_commit();
    matrix_wait<0>();
    matrix_pin(state.out[0]);
  }

  TSRI_DEVICE_MEMBER void finish(const Args &args, State &state, uint32_t at, uint32_t buffer, float unit) {
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
      store_by_engine<U, Rows::kOut, kBytesQ>(state.out[0], buffer + static_cast<uint32_t>(first) * 128, args.o,
                                              first, h, b);
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

  // By the first thread of a warpgroup, whose products have ended.
  TSRI_DEVICE_MEMBER void release(uint32_t empty) {
    if (thread_index() % kWarpgroup == 0) phase_arrive(empty);
  }
  // By every warp: its rows of O have left the buffer.
  TSRI_DEVICE_MEMBER void release_queries(uint32_t slot) {
    if (thread_index() % 32 != 0) return;
    bulk_wait_read();
    phase_arrive(kEmptyQ + 8 * slot);
  }

  TSRI_DEVICE_MEMBER void multiply(const Args &args) {
    const uint32_t team = static_cast<uint32_t>(thread_index() / kTeamThreads);
    const float unit = args.forward.call.p.scale * static_cast<float>(TSRI_LOG2E);
    const bool whole = sees_all(args);
    Place queries = {team, 0}, keys = {team, 0};
    uint32_t before = kRingQ; // the buffer that O of the last head leaves by
    TSRI_NO_UNROLL
    for (uint32_t at = block_index() + team * block_count(); at < heads(args); at += kTeams * block_count()) {
      State state;
      Scores s;
      uint32_t p[kCon][4];
      multiply_keys(s, queries, keys);
      release(kEmptyK + 8 * keys.slot);
      if (!whole) Rows::mask_scores(s, args.forward.rows.prefix, 0);
      fold(state, s, unit, p);
      if (before != kRingQ) release_queries(before);
      multiply_values(state, p, keys);
      release(kEmptyV + 8 * keys.slot);
      finish(args, state, at, kQ + queries.slot * kBytesQ, unit);
      before = queries.slot;
      advance<kRingQ>(queries, kTeams);
      advance<kRing>(keys, kTeams);
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
      for (uint32_t n = 0; n < kRingQ; ++n) {
        phase_init(kFullQ + 8 * n, 1);
        phase_init(kEmptyQ + 8 * n, kTeamThreads / 32);
      }
      TSRI_NO_UNROLL
      for (uint32_t n = 0; n < kRing; ++n) {
        phase_init(kFullK + 8 * n, 1);
        phase_init(kEmptyK + 8 * n, kTeamThreads / kWarpgroup);
        phase_init(kFullV + 8 * n, 1);
        phase_init(kEmptyV + 8 * n, kTeamThreads / kWarpgroup);
      }
      phase_init_done();
    }
    store_bands(args);
    sync_block();
    wait_for_earlier();
    release_later();
    if (thread_index() >= kMultiplying) {
      fewer_registers<kLoadRegisters>();
      const int group = args.forward.call.group;
      if (thread_index() == kMultiplying) load<kRing, kBytesK>(args, args.k, group, kK, kFullK, kEmptyK);
      if (thread_index() == kMultiplying + 32) load<kRingQ, kBytesQ>(args, args.q, 1, kQ, kFullQ, kEmptyQ);
      if (thread_index() == kMultiplying + 64) load<kRing, kBytesK>(args, args.v, group, kV, kFullV, kEmptyV);
    } else {
      more_registers<kMultiplyRegisters>();
      multiply(args);
    }
  }
};

} // namespace gpu
} // namespace tessera

#endif // TESSERA_BACKENDS_CUDA_SM90_HEADS_HPP_
