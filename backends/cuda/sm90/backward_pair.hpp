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
  using Keys::kK, Keys::kO, Keys::kQ, Keys::kV, Keys::kStats, Keys::kStatBytes;
  using Keys::kEmpty, Keys::kFullK, Keys::kFullV;
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
  // By whole warps: a warp hands over to the one of the same place.
  TSRI_DEVICE_MEMBER void arrive_warp(uint32_t barrier) {
    sync_wave();
    if (fresh_thread_index() % 32 == 0) phase_arrive(barrier);
  }
  TSRI_DEVICE_MEMBER void release(uint32_t slot) {
    if (fresh_thread_index() % kWarpgroup == 0) phase_arrive(kEmpty + 8 * slot);
  }
  TSRI_DEVICE_MEMBER bool is_full(uint32_t stats) { return Keys::turn_at(stats, 0).kind == TSRI_TILE_FULL; }

  // The first warpgroup: P and dV.
  TSRI_DEVICE_MEMBER void make_values(const Args &args, Acc (&dv)[kDv / 16]) {
    const KeyWork &w = work();
    const float unit = args.backward.call.p.scale * static_cast<float>(TSRI_LOG2E);
    const int32_t total = w.count * args.backward.call.group;
    Scores s;
    Operand p;
    const bool tails = Keys::has_tails();
    phase_wait(kFullK, 0);
    TSRI_NO_UNROLL
    for (int32_t n = 0; n < total; ++n) {
      const uint32_t slot = slot_of(n), parity = parity_of(n), stats = kStats + slot * kStatBytes;
      Keys::wait_queries(n, tails, 0);
      matrix_begin();
      start_scores<E, kDqk / 16, kPieceK, kPieceQ>(s, matrix_tile(kK, 16), matrix_tile(kQ + slot * kBytesQ, 16));
      const bool full = is_full(stats);
      matrix_wait<0>();
      matrix_pin(s);
      Keys::template differentiate<true>(full, s, s, stats, unit);
      phase_wait(kEmptyP + 8 * slot, parity ^ 1);
      hand_over(slot, s);
      arrive_warp(kFullP + 8 * slot);
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
  TSRI_DEVICE_MEMBER void make_keys(const Args &args, Acc (&dk)[kDqk / 16]) {
    const KeyWork &w = work();
    const int32_t total = w.count * args.backward.call.group;
    Scores p, dp;
    Operand ds;
    const bool tails = Keys::has_tails();
    phase_wait(kFullV, 0);
    TSRI_NO_UNROLL
    for (int32_t n = 0; n < total; ++n) {
      const uint32_t slot = slot_of(n), parity = parity_of(n), stats = kStats + slot * kStatBytes;
      Keys::wait_queries(n, tails, 1);
      Keys::wait_dout(n, tails, 1);
      matrix_begin();
      start_scores<E, kDv / 16, kPieceK, kPieceQ>(dp, matrix_tile(kV, 16), matrix_tile(kO + slot * kBytesO, 16));
      const bool full = is_full(stats);
      phase_wait(kFullP + 8 * slot, parity);
      take_over(slot, p);
      arrive_warp(kEmptyP + 8 * slot);
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

  TSRI_DEVICE_MEMBER void multiply(const Args &args, int group) {
    const Call &call = args.backward.call;
    const KeyWork &w = work();
    const int row = thread_index() / 32 % 4 * 16, first = -w.key0, last = w.keys - w.key0;
    if (group == 0) {
      Acc dv[1][kDv / 16];
      clear<U>(dv);
      if (w.count > 0) make_values(args, dv[0]);
      store_warp_gradient<U>(dv[0], 1.0f, first, last, call.p.dv, call.a.dv,
                             w.b, w.g, w.k_row, w.rows, row, call.p.dim_v);
    } else {
      Acc dk[1][kDqk / 16];
      clear<U>(dk);
      if (w.count > 0) make_keys(args, dk[0]);
      store_warp_gradient<U>(dk[0], call.p.scale, first, last, call.p.dk, call.a.dk,
                             w.b, w.g, w.k_row, w.rows, row, call.p.dim_qk);
    }
  }

  TSRI_DEVICE_MEMBER void block(const Args &args) {
    const int warp = static_cast<int>(shuffle(static_cast<uint32_t>(thread_index() / 32), 0));
    if (thread_index() == 32) {
      Keys::start_barriers(args);
      for (uint32_t s = 0; s < kStages; ++s) {
        phase_init(kFullP + 8 * s, 4);
        phase_init(kEmptyP + 8 * s, 4);
      }
      phase_init_done();
    }
    if (warp == 0) Keys::find(args);
    sync_block();
    if (work().b < 0) return;
    if (warp >= 4 * kGroups) {
      fewer_registers<24>();
      Keys::feed(args);
    } else {
      more_registers<240>();
      multiply(args, warp / 4);
    }
  }
};

} // namespace gpu
} // namespace tessera

#endif // TESSERA_BACKENDS_CUDA_SM90_BACKWARD_PAIR_HPP_
