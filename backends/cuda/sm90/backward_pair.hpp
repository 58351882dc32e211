// SPDX-License-Identifier: Apache-2.0
//
// dK and dV of compute capability 9.0 for heads too wide for backward.hpp: a block owns 64 keys, and its two
// warpgroups share the products instead of the keys:
//
//   first    S^T = K Q^T      P = 2^(unit S - LSE2)    dV += P^T dO
//   second   dP^T = V dO^T    dS = P (dP - delta)      dK += dS^T Q
//
// P goes from thread to thread of the same place in both, through shared memory and as floats, so that dS is
// what one warpgroup alone would make; the first may be a tile of queries ahead. dQ is made by
// backward_query.hpp. Interval masks without a prefix on aligned tensors without pages.
#ifndef TESSERA_BACKENDS_CUDA_SM90_BACKWARD_PAIR_HPP_
#define TESSERA_BACKENDS_CUDA_SM90_BACKWARD_PAIR_HPP_

#include "backends/cuda/sm90/backward_keys.hpp"

namespace tessera {
namespace gpu {

template <class E, int kTileQ_, int kDqk, int kDv>
struct EngineBackwardPair : EngineKeys<E, kTileQ_, 64, kDqk, kDv> {
  using Keys = EngineKeys<E, kTileQ_, 64, kDqk, kDv>;
  using typename Keys::Acc;
  using typename Keys::Args;
  using typename Keys::Operand;
  using typename Keys::Scores;
  using typename Keys::U;
  using Keys::kBytesK, Keys::kBytesO, Keys::kBytesQ, Keys::kPieceK, Keys::kPieceQ;
  using Keys::kCon, Keys::kGroups, Keys::kStages, Keys::kTileK, Keys::kTileQ;
  using Keys::kO, Keys::kQ, Keys::kV, Keys::kStats, Keys::kStatBytes;
  using Keys::kEmpty, Keys::kEmptyV, Keys::kFullV;
  using Keys::work, Keys::slot_of, Keys::parity_of;
  static constexpr uint32_t kFullP = Keys::kMore, kEmptyP = kFullP + 8 * kStages;
  static constexpr uint32_t kBytesP = kTileK * kTileQ * 4;
  static constexpr uint32_t kP = Keys::kTilesEnd;
  static constexpr uint32_t kSharedBytes = kP + kStages * kBytesP;
  static_assert(kSharedBytes <= kMostShared, "what a block can have");

  // A thread's P in buffer `slot`: chunk i of all threads, then the next.
  TSRI_DEVICE_MEMBER uint32_t handed(uint32_t slot) {
    return kP + slot * kBytesP + static_cast<uint32_t>(fresh_thread_index()) % kWarpgroup * 16;
  }
  TSRI_DEVICE_MEMBER void hand_over(uint32_t slot, const Scores &p) {
    const uint32_t at = handed(slot);
    TSRI_UNROLL
    for (int i = 0; i < kCon * 2; ++i) {
      const float *x = p[i / 2].x + i % 2 * 4;
      shared_at<Chunk>(at + static_cast<uint32_t>(i) * kWarpgroup * 16) =
          Chunk{{float_bits(x[0]), float_bits(x[1]), float_bits(x[2]), float_bits(x[3])}};
    }
  }
  TSRI_DEVICE_MEMBER void take_over(uint32_t slot, Scores &p) {
    const uint32_t at = handed(slot);
    TSRI_UNROLL
    for (int i = 0; i < kCon * 2; ++i) {
      const Chunk x = shared_at<Chunk>(at + static_cast<uint32_t>(i) * kWarpgroup * 16);
      TSRI_UNROLL
      for (int e = 0; e < 4; ++e) p[i / 2].x[i % 2 * 4 + e] = bits_float(x.w[e]);
    }
  }
  TSRI_DEVICE_MEMBER void release(uint32_t slot) { Keys::arrive_warp(kEmpty + 8 * slot); }
  TSRI_DEVICE_MEMBER bool is_full(uint32_t stats) { return Keys::turn_at(stats, 0).kind == TSRI_TILE_FULL; }

  TSRI_DEVICE_MEMBER int32_t end_of(int32_t n) { return n + work().count * work().heads; }

  // The first warpgroup: P and dV of a unit, turns from n on.
  TSRI_DEVICE_MEMBER void make_values(const Args &args, int32_t n, Acc (&dv)[kDv / 16]) {
    const float unit = args.backward.call.p.scale * static_cast<float>(TSRI_LOG2E);
    const int32_t end = end_of(n);
    Scores s;
    Operand p;
    const bool tails = Keys::has_tails();
    Keys::wait_for_keys();
    TSRI_NO_UNROLL
    for (; n < end; ++n) {
      const uint32_t slot = slot_of(n), parity = parity_of(n), stats = kStats + slot * kStatBytes;
      Keys::wait_queries(n, tails, 0);
      matrix_begin();
      start_scores<E, kDqk / 16, kPieceK, kPieceQ>(s, matrix_tile(Keys::keys_at(), 16), matrix_tile(kQ + slot * kBytesQ, 16));
      const bool full = is_full(stats);
      matrix_wait<0>();
      matrix_pin(s);
      Keys::template differentiate<true>(full, s, s, stats, unit);
      phase_wait(kEmptyP + 8 * slot, parity ^ 1);
      hand_over(slot, s);
      Keys::arrive_warp(kFullP + 8 * slot);
      pack_operand<E>(p, s);
      Keys::wait_dout(n, tails, 0);
      matrix_begin();
      start_sums<E>(dv, p, matrix_tile(kO + slot * kBytesO, kPieceQ));
      matrix_wait<0>();
      release(slot);
    }
    matrix_pin(dv);
  }

  // The second: dS and dK.
  TSRI_DEVICE_MEMBER void make_keys(int32_t n, Acc (&dk)[kDqk / 16]) {
    const int32_t end = end_of(n);
    Scores p, dp;
    Operand ds;
    const bool tails = Keys::has_tails();
    phase_wait(kFullV, Keys::unit_parity());
    TSRI_NO_UNROLL
    for (; n < end; ++n) {
      const uint32_t slot = slot_of(n), parity = parity_of(n), stats = kStats + slot * kStatBytes;
      Keys::wait_queries(n, tails, 1);
      Keys::wait_dout(n, tails, 1);
      matrix_begin();
      start_scores<E, kDv / 16, kPieceK, kPieceQ>(dp, matrix_tile(kV, 16), matrix_tile(kO + slot * kBytesO, 16));
      const bool full = is_full(stats);
      phase_wait(kFullP + 8 * slot, parity);
      take_over(slot, p);
      Keys::arrive_warp(kEmptyP + 8 * slot);
      matrix_wait<0>();
      matrix_pin(dp);
      Keys::template differentiate<false>(full, p, dp, stats, 0.0f);
      pack_operand<E>(ds, dp);
      matrix_begin();
      start_sums<E>(dk, ds, matrix_tile(kQ + slot * kBytesQ, kPieceQ));
      matrix_wait<0>();
      release(slot);
    }
    matrix_pin(dk);
  }

  TSRI_DEVICE_MEMBER void release_unit() {
    Keys::release_keys();
    Keys::arrive_warp(kEmptyV);
  }

  // kValues: the first warpgroup.
  template <bool kValues>
  TSRI_DEVICE_MEMBER void multiply(const Args &args) {
    const Call &call = args.backward.call;
    int32_t n = 0;
    TSRI_NO_UNROLL
    while (Keys::take_work()) {
      Acc sum[1][(kValues ? kDv : kDqk) / 16];
      clear<U>(sum);
      if (work().count > 0) {
        if constexpr (kValues)
          make_values(args, n, sum[0]);
        else
          make_keys(n, sum[0]);
        release_unit();
        n = end_of(n);
      } else {
        Keys::pass_over();
      }
      const KeyWork &w = work();
      const int row = fresh_thread_index() / 32 % 4 * 16, first = -w.key0, last = w.keys - w.key0;
      if constexpr (kValues)
        store_warp_gradient<U>(sum[0], 1.0f, first, last, call.p.dv, call.a.dv,
                               w.b, w.g, w.k_row, w.rows, row, call.p.dim_v);
      else
        store_warp_gradient<U>(sum[0], call.p.scale, first, last, call.p.dk, call.a.dk,
                               w.b, w.g, w.k_row, w.rows, row, call.p.dim_qk);
      Keys::leave_work();
    }
  }

  TSRI_DEVICE_MEMBER void block(const Args &args) {
    const int warp = static_cast<int>(shuffle(static_cast<uint32_t>(thread_index() / 32), 0));
    if (thread_index() == 0) {
      Keys::start_barriers(args, 0);
      for (uint32_t s = 0; s < kStages; ++s) {
        phase_init(kFullP + 8 * s, 4);
        phase_init(kEmptyP + 8 * s, 4);
      }
      phase_init_done();
    }
    sync_block();
    if (warp >= 4 * kGroups) {
      fewer_registers<24>();
      Keys::template feed<false>(args);
    } else {
      more_registers<240>();
      if (warp < 4)
        multiply<true>(args);
      else
        multiply<false>(args);
    }
  }
};

} // namespace gpu
} // namespace tessera

#endif // TESSERA_BACKENDS_CUDA_SM90_BACKWARD_PAIR_HPP_
