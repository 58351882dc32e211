// SPDX-License-Identifier: Apache-2.0
//
// Backward of compute capability 9.0, keys outermost as in common/gpu/backward.hpp: a block owns 128 keys, a
// warpgroup 64 of them. Scores are transposed (free = key, con = query), so that P and dS are operands of
// dV and dK where they lie, in registers; dS goes through shared memory for dQ alone:
//
//   S^T = K Q^T    P = 2^(unit S - LSE2)    dP^T = V dO^T    dS = P (dP - delta)
//   dV += P^T dO   dK += dS^T Q             dQ += dS K, added into float sums shared by all blocks
//
// One warp feeds the copy engine with queries and dO, another fetches what is known of query rows. Products are
// started as soon as their operands are there, those of one warpgroup beside what the other one computes (Shah et al. 2024,
// "FlashAttention-3", section 3.2 for forward). Interval masks without a prefix on aligned tensors without pages.
#ifndef TESSERA_BACKENDS_CUDA_SM90_BACKWARD_HPP_
#define TESSERA_BACKENDS_CUDA_SM90_BACKWARD_HPP_

#include "backends/cuda/sm90/backward_sums.hpp"

namespace tessera {
namespace gpu {

// What is done about dQ: nothing, and backward_query.hpp makes it, and dS stays in registers; added to sums, in any
// order or tile of keys after tile of keys; or written, where a block's keys are all that there are.
enum class QueryGradient { kNone, kSums, kOrdered, kDirect };

template <class E, int kTileQ_, int kDqk, int kDv, QueryGradient kGradient>
struct EngineBackward : EngineSums<E, kTileQ_, 128, kDqk, kDv> {
  using Keys = EngineSums<E, kTileQ_, 128, kDqk, kDv>;
  using typename Keys::Acc;
  using typename Keys::Args;
  using typename Keys::Operand;
  using typename Keys::Scores;
  using typename Keys::Turn;
  using typename Keys::U;
  using Keys::kBytesK, Keys::kBytesO, Keys::kBytesQ, Keys::kPieceK, Keys::kPieceQ;
  using Keys::kCon, Keys::kGroups, Keys::kStages, Keys::kTileK, Keys::kTileQ;
  using Keys::kO, Keys::kQ, Keys::kV, Keys::kStats, Keys::kStatBytes;
  using Keys::kEmpty, Keys::kEmptyV, Keys::kFullV, Keys::kGroupBarrier;
  using Keys::work, Keys::slot_of, Keys::parity_of;
  static constexpr bool kSums = kGradient != QueryGradient::kNone, kOrdered = kGradient == QueryGradient::kOrdered,
                        kLater = kGradient == QueryGradient::kSums || kOrdered;
  // dQ^T: warpgroups over columns, or over queries where there are 64 columns.
  static constexpr int kPartQ = kDqk / 64 == kGroups ? kTileQ : kTileQ / kGroups;
  static_assert(kPartQ * 64 * kGroups == kTileQ * kDqk, "dQ is made of whole products");
  using Sums = Acc[kPartQ / 16];
  // dS: pieces of 64 keys, rows of queries. A warpgroup's piece is full when all its warps have written, empty
  // when both have read it.
  static constexpr uint32_t kFullS = Keys::kSumsMore, kEmptyS = kFullS + 8 * kStages;
  // Of the two warps that turn sums into dQ, as many parts on their way as there is room for, and one of each that
  // multiplies.
  static constexpr int kLeaving = kDqk <= 64 ? 2 : 8, kWarps = Keys::kWarps;
  static constexpr uint32_t kFullL = kEmptyS + 8 * kStages, kFullOwn = kFullL + 8 * kLeaving;
  static_assert(kFullOwn + 8 * kWarps <= Keys::kWork, "barriers");
  static constexpr uint32_t kTakenAt = Keys::kStatsEnd;
  static_assert((kWarps + 2) * sizeof(typename Keys::Taken) <= Keys::kMoreBytes, "what warps know");
  static constexpr uint32_t kPieceS = kTileQ * 128, kBytesS = kGroups * kPieceS, kS = Keys::kTilesEnd;
  static constexpr uint32_t kPartD = 16 * kPartQ * 4, kD = kS + kStages * kBytesS; // dQ of a warp
  static constexpr uint32_t kL = kD + kWarps * kPartD; // parts that become dQ
  static constexpr uint32_t kSharedBytes = !kSums ? Keys::kTilesEnd : kLater ? kL + kLeaving * Keys::kPart : kL;
  static_assert(kSharedBytes <= kMostShared, "what a block can have");

  static constexpr int kSharedBarrier = kGroupBarrier + kGroups; // of both warpgroups

  // Columns (of Q) x queries: K^T dS^T.
  TSRI_DEVICE_MEMBER void start_queries(Sums &dq, uint32_t slot, int group) {
    const uint32_t own = static_cast<uint32_t>(group);
    const MatrixTile k = matrix_fresh(matrix_tile(Keys::keys_at() + (kDqk > 64 ? own * kPieceK : 0), kPieceK));
    const MatrixTile s =
        matrix_fresh(matrix_tile(kS + slot * kBytesS + (kPartQ < kTileQ ? own * (kPartQ * 128) : 0), 16));
    TSRI_UNROLL
    for (int t = 0; t < kTileK / 16; ++t)
      matrix_product<true, false>(E{}, dq, matrix_at(k, static_cast<uint32_t>(t) * 2048),
                                  matrix_at(s, static_cast<uint32_t>(t / 4) * kPieceS + t % 4 * 32), t > 0);
    matrix_commit();
  }

  // This warp's 16 keys of dS.
  TSRI_DEVICE_MEMBER void store_scores(uint32_t tile, const Operand &ds) {
    const int thread = fresh_thread_index(), lane = thread % 32, chunk = thread / 32 % 4 * 2 + lane / 8 % 2;
    const uint32_t at = tile + static_cast<uint32_t>(thread / kWarpgroup) * kPieceS +
                        static_cast<uint32_t>(lane / 16 * 8 + lane % 8) * 128 +
                        static_cast<uint32_t>((chunk ^ lane % 8) << 4);
    TSRI_UNROLL
    for (int c = 0; c < kCon; ++c) store_matrices_transposed(at + static_cast<uint32_t>(c) * 2048, ds[c]);
  }

  // A warp's part of dQ goes to its own part of shared memory, and from there the copy engine adds it: additions
  // by the threads themselves take longer than the products. Unused queries add zeros.
  TSRI_DEVICE_MEMBER uint32_t part_of(int thread) { return kD + static_cast<uint32_t>(thread / 32) * kPartD; }
  // Until dQ of the turn before has left, by a warp.
  TSRI_DEVICE_MEMBER void await_room(int32_t n) {
    const uint32_t group = static_cast<uint32_t>(fresh_thread_index()) / kWarpgroup;
    phase_wait(Keys::kEmptyD + 8 * group, (static_cast<uint32_t>(n) & 1) ^ 1);
  }
  TSRI_DEVICE_MEMBER void store_queries(const Sums &dq, int32_t n) {
    const int thread = fresh_thread_index();
    const uint32_t at = part_of(thread) + static_cast<uint32_t>(thread % 32) * 16;
    if constexpr (kLater) await_room(n);
    sync_wave();
    TSRI_UNROLL
    for (int c = 0; c < kPartQ / 16; ++c)
      TSRI_UNROLL
      for (int half = 0; half < 2; ++half) {
        const float *x = dq[c].x + 4 * half;
        shared_at<Chunk>(at + static_cast<uint32_t>(2 * c + half) * 512) =
            Chunk{{float_bits(x[0]), float_bits(x[1]), float_bits(x[2]), float_bits(x[3])}};
      }
  }
  TSRI_DEVICE_MEMBER void add_queries(const BackwardArgs &args, int32_t tile) {
    if constexpr (kGradient == QueryGradient::kDirect) {
      write_queries(args, tile);
      return;
    }
    fence_async();
    sync_wave();
    const int thread = fresh_thread_index();
    if (thread % 32 == 0) phase_arrive(Keys::kFullD + 8 * (static_cast<uint32_t>(thread) / kWarpgroup));
  }

  // The same into the tensor: eight queries at a time, of each this warp's 16 columns by four lanes. tile: of all
  // that the unit goes through.
  TSRI_DEVICE_MEMBER void write_queries(const BackwardArgs &args, int32_t tile) {
    sync_wave();
    const KeyWork &w = work();
    const int thread = fresh_thread_index(), group = thread / kWarpgroup, lane = thread % 32;
    const int32_t head = tile / w.count;
    const int first = (tile - head * w.count) * kTileQ + (kPartQ < kTileQ ? group * kPartQ : 0);
    const int column = (kPartQ < kTileQ ? 0 : group * 64) + thread / 32 % 4 * 16 + lane % 4 * 4;
    // As the accumulators lie: query lane / 4 of eight, column lane % 4 * 4 of 16 and the next three.
    const uint32_t from = part_of(thread) + static_cast<uint32_t>(lane % 2 * 4 * 4 + lane / 8) * 16 +
                          static_cast<uint32_t>(lane % 4 / 2 * 2 + lane / 4 % 2) * 4;
    TSRI_NO_UNROLL
    for (int q = 0; q < kPartQ; q += 8) {
      float y[4];
      TSRI_UNROLL
      for (int d = 0; d < 4; ++d)
        y[d] = args.call.p.scale * shared_at<float>(from + static_cast<uint32_t>(q) * 64 + static_cast<uint32_t>(d) * 64);
      const int row = first + q + lane / 4;
      if (row < w.queries && column < args.call.p.dim_qk)
        store_dq(args, w.b, w.g * static_cast<int64_t>(w.heads) + head, w.q_row + row, column, y);
    }
  }

  TSRI_DEVICE_MEMBER MatrixTile own_keys(uint32_t tile, int group) {
    return matrix_tile(tile + static_cast<uint32_t>(group) * 64 * 128, 16);
  }
  TSRI_DEVICE_MEMBER void arrive_group(uint32_t barrier) {
    if (fresh_thread_index() % kWarpgroup == 0) phase_arrive(barrier);
  }

  TSRI_DEVICE_MEMBER void wait_keys(int group) {
    const KeyWork &w = work();
    Keys::wait_for_keys();
    if (kSums && (w.key0 < 0 || w.key0 + kTileK > w.keys))
      clear_rows<kBytesK, kPieceK>(Keys::keys_at(), -w.key0, w.keys - w.key0, kGroupBarrier + group);
  }

  // ---------------------------------------------------------------------- steps of turn n

  TSRI_DEVICE_MEMBER void start_scores_of(Scores &s, int32_t n, int group) {
    matrix_begin();
    start_scores<E, kDqk / 16, kPieceK, kPieceQ>(s, own_keys(Keys::keys_at(), group), matrix_tile(kQ + slot_of(n) * kBytesQ, 16));
  }
  TSRI_DEVICE_MEMBER void start_dp(Scores &dp, int32_t n, int group) {
    matrix_begin();
    start_scores<E, kDv / 16, kPieceK, kPieceQ>(dp, own_keys(kV, group), matrix_tile(kO + slot_of(n) * kBytesO, 16));
  }
  TSRI_DEVICE_MEMBER void start_values(Acc (&dv)[kDv / 16], const Operand &p, int32_t n) {
    matrix_begin();
    start_sums<E>(dv, p, matrix_tile(kO + slot_of(n) * kBytesO, kPieceQ));
  }
  TSRI_DEVICE_MEMBER void start_keys(Acc (&dk)[kDqk / 16], const Operand &ds, int32_t n) {
    matrix_begin();
    start_sums<E>(dk, ds, matrix_tile(kQ + slot_of(n) * kBytesQ, kPieceQ));
  }
  // Everybody's dS of turn n is there. What a warpgroup has read of turn n - 2 it had when it came here in turn n - 1,
  // so two buffers are enough.
  TSRI_DEVICE_MEMBER void share_scores() {
    fence_async();
    sync_group(kSharedBarrier, kGroups * kWarpgroup);
  }
  TSRI_DEVICE_MEMBER uint32_t stats_of(int32_t n) { return kStats + slot_of(n) * kStatBytes; }

  // dS into its place, from which both warpgroups have read that of turn n - 2.
  TSRI_DEVICE_MEMBER void put_scores(const Operand &ds, int32_t n) {
    if (!kSums) return;
    phase_wait(kEmptyS + 8 * slot_of(n), parity_of(n) ^ 1);
    store_scores(kS + slot_of(n) * kBytesS, ds);
  }
  TSRI_DEVICE_MEMBER void tell_scores(int32_t n) {
    if (!kSums) return;
    fence_async();
    sync_wave();
    if (fresh_thread_index() % 32 == 0) phase_arrive(kFullS + 8 * slot_of(n));
  }
  // Of a turn that there is not (sum: its tile, below 0) it is of nothing, and nobody reads it; a product under a
  // condition would be waited for at once.
  TSRI_DEVICE_MEMBER void start_dq(Sums &dq, int32_t n, int32_t sum, int group) {
    if (sum >= 0) phase_wait(kFullS + 8 * slot_of(n), parity_of(n));
    matrix_begin();
    start_queries(dq, slot_of(n), group);
  }
  // After dQ has been waited for, into shared memory.
  TSRI_DEVICE_MEMBER void take_dq(Sums &dq, int32_t n, int32_t sum) {
    matrix_pin(dq);
    if (sum < 0) return;
    arrive_group(kEmptyS + 8 * slot_of(n));
    store_queries(dq, n);
  }
  // From scores and dP, which are on their way, on. kEdge: some of the tile's pairs are masked, or rows of it are unused.
  // All threads of a warpgroup go the same way. Products wait for each other alone once dS is there: dV is made while it
  // is shared, dK while dQ leaves.
  template <bool kEdge>
  TSRI_DEVICE_MEMBER void end_turn(const Args &args, int group, int32_t n, float unit, Scores &s, Scores &dp,
                                   Acc (&dk)[kDqk / 16], Acc (&dv)[kDv / 16]) {
    typename Keys::Ahead ahead;
    Operand p, ds;
    if (!kEdge) Keys::look_ahead(ahead, stats_of(n), 0);
    Keys::template differentiate<kEdge, true>(s, s, stats_of(n), unit, kEdge ? Keys::first_key() : 0, kEdge ? nullptr : &ahead);
    if (!kEdge) Keys::look_ahead(ahead, stats_of(n), 1);
    matrix_wait<0>();
    matrix_pin(dp);
    Keys::template differentiate<kEdge, false>(s, dp, stats_of(n), unit, kEdge ? Keys::first_key() : 0, kEdge ? nullptr : &ahead);
    pack_operand<E>(ds, dp);
    if constexpr (kSums) store_scores(kS + slot_of(n) * kBytesS, ds);
    pack_operand<E>(p, s);
    start_values(dv, p, n);
    if constexpr (kSums) {
      share_scores();
      Sums dq;
      matrix_begin();
      start_queries(dq, slot_of(n), group);
      matrix_wait<1>(); // dV
      start_keys(dk, ds, n);
      matrix_wait<1>(); // dQ
      matrix_pin(dq);
      store_queries(dq, n);
      add_queries(args.backward, Keys::turn_at(stats_of(n), group).sum);
    } else {
      start_keys(dk, ds, n);
    }
    matrix_wait<0>();
  }

  // The walk over query tiles of 64, of all heads of the group: turns n to end - 1; `s` holds scores of turn n. Both
  // warpgroups are at the same turn: one's exponentials are found beside the other's products. After the last turn scores
  // of none are made: a product under a condition would be waited for at once. Returns end.
  TSRI_DEVICE_MEMBER int32_t walk_small(const Args &args, int group, int32_t n, int32_t end, float unit, Scores &s,
                                     Acc (&dk)[kDqk / 16], Acc (&dv)[kDv / 16]) {
    const bool tails = Keys::has_tails();
    Scores dp;
    TSRI_NO_UNROLL
    for (; n < end; ++n) {
      Keys::wait_dout(n, tails, group);
      start_dp(dp, n, group);
      if (Keys::turn_at(stats_of(n), group).kind == TSRI_TILE_FULL)
        end_turn<false>(args, group, n, unit, s, dp, dk, dv);
      else
        end_turn<true>(args, group, n, unit, s, dp, dk, dv);
      if (n + 1 < end) Keys::wait_queries(n + 1, tails, group);
      start_scores_of(s, n + 1, group);
      Keys::arrive_warp(kEmpty + 8 * slot_of(n));
      matrix_wait<0>();
      matrix_pin(s);
    }
    return n;
  }

  // Of 128 queries P is found beside dP, and scores of the next turn are made while dQ leaves.
  TSRI_DEVICE_MEMBER int32_t walk_large(const Args &args, int group, int32_t n, float unit, Scores &s,
                                        Acc (&dk)[kDqk / 16], Acc (&dv)[kDv / 16]) {
    const bool tails = Keys::has_tails();
    int32_t sum_before = -1;
    Scores dp;
    Operand p, ds;
    TSRI_NO_UNROLL
    for (;; ++n) {
      Keys::wait_dout(n, tails, group);
      start_dp(dp, n, group);
      const bool full = Keys::turn_at(stats_of(n), group).kind == TSRI_TILE_FULL;
      Keys::template differentiate<true>(full, s, dp, stats_of(n), unit);
      matrix_wait<0>();
      matrix_pin(dp);
      Keys::template differentiate<false>(full, s, dp, stats_of(n), unit);
      pack_operand<E>(ds, dp);
      pack_operand<E>(p, s);
      put_scores(ds, n);
      start_values(dv, p, n);
      start_keys(dk, ds, n);
      tell_scores(n);
      Sums dq;
      if constexpr (kSums) {
        matrix_wait<1>(); // dV
        start_dq(dq, n - 1, sum_before, group);
      }
      matrix_wait<kSums ? 1 : 0>(); // dK
      const int32_t sum = sum_before;
      sum_before = Keys::turn_at(stats_of(n), group).sum; // numbers that wait in shared memory, not in registers
      Keys::arrive_warp(kEmpty + 8 * slot_of(n));
      const bool more = n + 1 < Keys::end();
      if (more) Keys::wait_queries(n + 1, tails, group);
      start_scores_of(s, n + 1, group);
      if constexpr (kSums) {
        matrix_wait<1>();
        take_dq(dq, n - 1, sum);
        if (sum >= 0) add_queries(args.backward, sum);
      }
      matrix_wait<0>();
      matrix_pin(s);
      if (!more) break;
    }
    return sum_before;
  }

  // A unit, from turn n on. Returns the turn after its last.
  TSRI_DEVICE_MEMBER int32_t walk(const Args &args, int group, int32_t n, Acc (&dk)[kDqk / 16],
                                  Acc (&dv)[kDv / 16]) {
    const float unit = args.backward.call.p.scale * static_cast<float>(TSRI_LOG2E);
    int32_t end = n + work().count * work().heads;
    Scores s;
    wait_keys(group);
    Keys::wait_queries(n, Keys::has_tails(), group);
    start_scores_of(s, n, group);
    phase_wait(kFullV, Keys::unit_parity());
    matrix_wait<0>();
    matrix_pin(s);
    if constexpr (kTileQ == 64) {
      n = walk_small(args, group, uniform(n), uniform(end), unit, s, dk, dv);
      Keys::arrive_warp(kEmptyV);
      Keys::release_keys();
      return n;
    }
    if (fresh_thread_index() % 32 == 0) Keys::end() = end;
    sync_wave();
    const int32_t sum = walk_large(args, group, n, unit, s, dk, dv);
    end = Keys::end();
    Keys::arrive_warp(kEmptyV);
    if constexpr (kSums) {
      Sums dq;
      start_dq(dq, end - 1, sum, group);
      matrix_wait<0>();
      take_dq(dq, end - 1, sum);
      Keys::release_keys();
      add_queries(args.backward, sum);
    } else {
      Keys::release_keys();
    }
    return end;
  }
  // The same in all lanes, as the compiler then knows.
  TSRI_DEVICE_MEMBER int32_t uniform(int32_t x) { return static_cast<int32_t>(shuffle(static_cast<uint32_t>(x), 0)); }

  TSRI_DEVICE_MEMBER void multiply(const Args &args) {
    const Call &call = args.backward.call;
    const int group = static_cast<int>(shuffle(static_cast<uint32_t>(thread_index() / kWarpgroup), 0));
    int32_t n = 0;
    TSRI_NO_UNROLL
    while (Keys::take_work()) {
      Acc dk[1][kDqk / 16], dv[1][kDv / 16];
      clear<U>(dk);
      clear<U>(dv);
      if (work().count > 0) {
        n = walk(args, group, n, dk[0], dv[0]);
        matrix_pin(dk[0]);
        matrix_pin(dv[0]);
      } else {
        Keys::pass_over();
      }
      const KeyWork &w = work();
      const int row = fresh_thread_index() / 32 * 16, first = -w.key0, last = w.keys - w.key0;
      store_warp_gradient<U>(dk[0], call.p.scale, first, last, call.p.dk, call.a.dk,
                             w.b, w.g, w.k_row, w.rows, row, call.p.dim_qk);
      store_warp_gradient<U>(dv[0], 1.0f, first, last, call.p.dv, call.a.dv,
                             w.b, w.g, w.k_row, w.rows, row, call.p.dim_v);
      Keys::leave_work();
    }
    if constexpr (kLater) { // what the two other warps have not come to
      const int thread = fresh_thread_index();
      const uint32_t warp = static_cast<uint32_t>(thread) / 32;
      await_room(n);
      if (args.backward.order.sums.pieces)
        Keys::template finish_sums<1, 1>(args.backward, part_of(thread), kFullOwn + warp * 8,
                                                kTakenAt + warp * 16);
    }
  }

  TSRI_DEVICE_MEMBER void block(const Args &args) {
    const int warp = static_cast<int>(shuffle(static_cast<uint32_t>(thread_index() / 32), 0));
    if (thread_index() == 0) {
      Keys::start_barriers(args, kLater);
      if constexpr (kLater) {
        for (uint32_t i = 0; i < kLeaving + kWarps; ++i) phase_init(kFullL + 8 * i, 1);
        for (uint32_t s = 0; s < 2; ++s) phase_init(Keys::kFullD + 8 * s, 4);
        for (uint32_t s = 0; s < 2; ++s) phase_init(Keys::kEmptyD + 8 * s, 1);
      }
      for (uint32_t s = 0; s < kStages; ++s) {
        phase_init(kFullS + 8 * s, 4 * kGroups);
        phase_init(kEmptyS + 8 * s, kGroups);
      }
      phase_init_done();
    }
    sync_block();
    if (warp >= 4 * kGroups) {
      fewer_registers<24>();
      Keys::template feed<kOrdered>(args);
      if constexpr (kLater) {
        constexpr uint32_t mine = kTakenAt + kWarps * 16;
        if (fresh_thread_index() / 32 == kWarps + 2 && args.backward.order.sums.pieces)
          Keys::template finish_sums<4, kLeaving>(args.backward, kL, kFullL, mine);
        if (fresh_thread_index() / 32 == kWarps + 3)
          Keys::template add_all<kOrdered>(args.backward, kD, kPartD * 4);
      }
    } else {
      more_registers<240>();
      multiply(args);
    }
  }
};

} // namespace gpu
} // namespace tessera

#endif // TESSERA_BACKENDS_CUDA_SM90_BACKWARD_HPP_
