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
// started as soon as their operands are there, scores of the next tile before the sums of dQ are added, so that
// tensor cores have work while threads compute (Shah et al. 2024, "FlashAttention-3", section 3.2 for
// forward). Interval masks without a prefix on aligned tensors without pages.
#ifndef TESSERA_BACKENDS_CUDA_SM90_BACKWARD_HPP_
#define TESSERA_BACKENDS_CUDA_SM90_BACKWARD_HPP_

#include "backends/cuda/sm90/backward_keys.hpp"

namespace tessera {
namespace gpu {

// kSums: adds to dQ. Without it dQ is made by backward_query.hpp, and dS stays in registers.
template <class E, int kTileQ_, int kDqk, int kDv, bool kSums>
struct EngineBackward : EngineKeys<E, kTileQ_, 128, kDqk, kDv> {
  using Keys = EngineKeys<E, kTileQ_, 128, kDqk, kDv>;
  using typename Keys::Acc;
  using typename Keys::Args;
  using typename Keys::Operand;
  using typename Keys::Scores;
  using typename Keys::U;
  using Keys::kBytesK, Keys::kBytesO, Keys::kBytesQ, Keys::kPieceK, Keys::kPieceQ;
  using Keys::kCon, Keys::kGroups, Keys::kStages, Keys::kTileK, Keys::kTileQ;
  using Keys::kK, Keys::kO, Keys::kQ, Keys::kV, Keys::kStats, Keys::kStatBytes, Keys::kRowBytes;
  using Keys::kEmpty, Keys::kFullK, Keys::kFullStats, Keys::kFullV, Keys::kGroupBarrier;
  using Keys::work, Keys::slot_of, Keys::parity_of, Keys::left_of, Keys::first_key;
  static constexpr int kQueryGroups = kTileQ / 64; // dQ: warpgroups over queries, the rest over columns
  static constexpr int kOutQ = kDqk / 16 / (kGroups / kQueryGroups);
  static_assert(kTileQ == 64 || kTileQ == 128, "dQ is made of whole products");
  static constexpr uint32_t kFullS = Keys::kMore;
  static constexpr uint32_t kBytesS = kQueryGroups * kPieceK; // dS^T: rows of keys, pieces of 64 queries
  static constexpr uint32_t kS = Keys::kTilesEnd;
  static constexpr int kColumns = kOutQ * 16; // of a chunk of dq_sum
  static constexpr uint32_t kPartD = 16 * kColumns * 4, kD = kS + kStages * kBytesS; // dQ of a warp
  static_assert(kColumns == 64, "dq_sum is turned within 32 columns, and chunks are those of a warpgroup");
  static constexpr uint32_t kSharedBytes = kD + 4 * kGroups * kPartD;
  static_assert(kSharedBytes <= kMostShared, "what a block can have");

  // Whether dV is started before dS is made: P, as floats and as operand, and dP are in registers then.
  static constexpr bool kEarly = kTileQ == 64;

  // out[query][column] = dS K.
  TSRI_DEVICE_MEMBER void start_queries(Acc (&out)[kOutQ], MatrixTile s, MatrixTile k) {
    s = matrix_fresh(s);
    k = matrix_fresh(k);
    TSRI_UNROLL
    for (int t = 0; t < kTileK / 16; ++t)
      matrix_product<true, true>(E{}, out, matrix_at(s, t * 2048), matrix_at(k, t * 2048), t > 0);
    matrix_commit();
  }

  // This warp's 16 keys of dS^T.
  TSRI_DEVICE_MEMBER void store_scores(uint32_t tile, const Operand &p) {
    const int thread = fresh_thread_index(), lane = thread % 32, r = thread / 32 * 16 + lane % 16;
    const uint32_t at = tile + static_cast<uint32_t>(r) * 128;
    TSRI_UNROLL
    for (int c = 0; c < kCon; ++c) {
      const int chunk = c % 4 * 2 + lane / 16;
      store_matrices(at + static_cast<uint32_t>(c / 4) * kPieceK + static_cast<uint32_t>((chunk ^ (r & 7)) << 4),
                     p[c]);
    }
  }

  // A warp's 16 queries of dQ, by way of its own part of shared memory and the copy engine: additions by the threads
  // themselves take longer than the products. n: row of stats of the tile's first query, of which `rows` are
  // used.
  TSRI_DEVICE_MEMBER void add_queries(const BackwardArgs &args, const Acc (&out)[kOutQ], int64_t n, int32_t rows) {
    const int thread = fresh_thread_index(), group = thread / kWarpgroup, lane = thread % 32;
    const int first = (kQueryGroups == 1 ? 0 : 64 * group) + thread / 32 % 4 * 16; // of the tile
    const uint32_t part = kD + static_cast<uint32_t>(thread / 32) * kPartD;
    if (lane == 0) bulk_wait_read();
    sync_wave();
    TSRI_UNROLL
    for (int slot = 0; slot < 2; ++slot) {
      const int row = lane / 4 + 8 * slot;
      const uint32_t turn = (static_cast<uint32_t>(n) + static_cast<uint32_t>(row)) % 4 * 32;
      const uint32_t at = part + static_cast<uint32_t>(row) * kColumns * 4 + static_cast<uint32_t>(lane % 4) * 8;
      TSRI_UNROLL
      for (int o = 0; o < kOutQ; ++o)
        TSRI_UNROLL
        for (int half = 0; half < 2; ++half)
          shared_at<Pair>(at + (static_cast<uint32_t>(64 * o + 32 * half) ^ turn)) =
              Pair{out[o].x[4 * half + 2 * slot], out[o].x[4 * half + 2 * slot + 1]};
    }
    fence_async();
    sync_wave();
    const int32_t used = smaller(rows - first, 16);
    if (lane != 0 || used <= 0) return;
    const int64_t chunk = kQueryGroups == 1 ? group : 0;
    bulk_add(args.dq_sum + (chunk * query_rows(args.call.p, args.call.a) + n + first) * kColumns, part,
             static_cast<uint32_t>(used) * kColumns * 4);
    bulk_commit();
  }

  // A turn of the walk: one query tile of one head of the group.
  struct Turn {
    int32_t n, tile, head; // number, and tile of the walk and head that follow from it
    TSRI_DEVICE_MEMBER bool next(Turn &turn) { // whether there is one
      const KeyWork &w = work();
      if (++turn.tile == w.count) {
        turn.tile = 0;
        ++turn.head;
      }
      ++turn.n;
      return turn.head < w.heads;
    }
  };

  TSRI_DEVICE_MEMBER bool is_full(uint32_t stats, int group) {
    return shared_at<int32_t>(stats + 4 * kRowBytes + static_cast<uint32_t>(group) * 4) == TSRI_TILE_FULL;
  }
  TSRI_DEVICE_MEMBER MatrixTile own_keys(uint32_t tile, int group) {
    return matrix_tile(tile + static_cast<uint32_t>(group) * 64 * 128, 16);
  }
  TSRI_DEVICE_MEMBER void release(uint32_t slot) {
    if (fresh_thread_index() % kWarpgroup == 0) phase_arrive(kEmpty + 8 * slot);
  }

  // dS of this warp is in shared memory: products out of it may begin when that of all warps is.
  TSRI_DEVICE_MEMBER void share_scores(uint32_t slot) {
    fence_async();
    sync_wave();
    if (fresh_thread_index() % 32 == 0) phase_arrive(kFullS + 8 * slot);
  }
  TSRI_DEVICE_MEMBER void start_shared(Acc (&dq)[kOutQ], uint32_t slot, uint32_t parity, int group) {
    const uint32_t own = static_cast<uint32_t>(group) * kPieceK, s_tile = kS + slot * kBytesS;
    phase_wait(kFullS + 8 * slot, parity);
    matrix_begin();
    start_queries(dq, matrix_tile(s_tile + (kQueryGroups == 1 ? 0 : own), kPieceK),
                  matrix_tile(kK + (kQueryGroups == 1 ? own : 0), kPieceK));
  }
  TSRI_DEVICE_MEMBER int64_t stats_row(const Turn &turn) {
    const KeyWork &w = work();
    return w.stats + turn.head * w.head_stats + (w.begin + turn.tile) * kTileQ;
  }

  TSRI_DEVICE_MEMBER void wait_keys(int group) {
    const KeyWork &w = work();
    phase_wait(kFullK, 0);
    if (kSums && (w.key0 < 0 || w.key0 + kTileK > w.keys))
      clear_rows<kBytesK, kPieceK>(kK, -w.key0, w.keys - w.key0, kGroupBarrier + group);
    phase_wait(kFullV, 0);
  }

  TSRI_DEVICE_MEMBER void start_scores_of(Scores &s, int32_t n, int group) {
    start_scores<E, kDqk / 16, kPieceK, kPieceQ>(s, own_keys(kK, group), matrix_tile(kQ + slot_of(n) * kBytesQ, 16));
  }

  // All query tiles of all heads of the group.
  TSRI_DEVICE_MEMBER void walk(const Args &args, int group, Acc (&dk)[kDqk / 16], Acc (&dv)[kDv / 16]) {
    const float unit = args.backward.call.p.scale * static_cast<float>(TSRI_LOG2E);
    Turn turn = {0, 0, 0};
    Scores s, dp;
    Operand p, ds;
    wait_keys(group);
    Keys::wait_queries(0, 0, group);
    matrix_begin();
    start_scores_of(s, 0, group);
    matrix_wait<0>();
    matrix_pin(s);
    TSRI_NO_UNROLL
    for (;;) {
      const uint32_t slot = slot_of(turn.n), parity = parity_of(turn.n), stats = kStats + slot * kStatBytes;
      const uint32_t o_tile = kO + slot * kBytesO;
      Keys::wait_dout(turn.n, turn.tile, group);
      matrix_begin();
      start_scores<E, kDv / 16, kPieceK, kPieceQ>(dp, own_keys(kV, group), matrix_tile(o_tile, 16));
      phase_wait(kFullStats + 8 * slot, parity);
      const bool full = is_full(stats, group);
      if (full)
        Keys::template differentiate<false, true>(s, dp, stats, unit, first_key());
      else
        Keys::template differentiate<true, true>(s, dp, stats, unit, first_key());
      if constexpr (kEarly) {
        pack_operand<E>(p, s);
        matrix_begin();
        start_sums<E>(dv, p, matrix_tile(o_tile, kPieceQ));
      }
      matrix_wait<kEarly ? 1 : 0>();
      matrix_pin(dp);
      if (full)
        Keys::template differentiate<false, false>(s, dp, stats, unit, first_key());
      else
        Keys::template differentiate<true, false>(s, dp, stats, unit, first_key());
      pack_operand<E>(ds, dp);
      if constexpr (!kEarly) pack_operand<E>(p, s);
      if constexpr (kSums) {
        store_scores(kS + slot * kBytesS, ds);
        share_scores(slot);
      }
      matrix_begin();
      if constexpr (!kEarly) start_sums<E>(dv, p, matrix_tile(o_tile, kPieceQ));
      start_sums<E>(dk, ds, matrix_tile(kQ + slot * kBytesQ, kPieceQ));
      Acc dq[kOutQ];
      if constexpr (kSums) start_shared(dq, slot, parity, group);
      matrix_wait<kSums ? 1 : 0>();
      release(slot);
      const int64_t row = stats_row(turn);
      const int32_t left = left_of(turn.tile);
      const bool more = Turn::next(turn);
      // After the last tile scores of none, which nobody reads: a product under a condition would be waited for
      // at once.
      if (more) Keys::wait_queries(turn.n, turn.tile, group);
      matrix_begin();
      start_scores_of(s, turn.n, group);
      if constexpr (kSums) {
        matrix_wait<1>();
        matrix_pin(dq);
        add_queries(args.backward, dq, row, left);
      }
      matrix_wait<0>();
      matrix_pin(s);
      if (!more) break;
    }
  }

  TSRI_DEVICE_MEMBER void multiply(const Args &args) {
    const Call &call = args.backward.call;
    const int group = static_cast<int>(shuffle(static_cast<uint32_t>(thread_index() / kWarpgroup), 0));
    Acc dk[1][kDqk / 16], dv[1][kDv / 16];
    clear<U>(dk);
    clear<U>(dv);
    if (work().count > 0) {
      walk(args, group, dk[0], dv[0]);
      matrix_pin(dk[0]);
      matrix_pin(dv[0]);
      if (kSums && thread_index() % 32 == 0) bulk_wait();
    }
    const KeyWork &w = work();
    const int row = thread_index() / 32 * 16, first = -w.key0, last = w.keys - w.key0;
    store_warp_gradient<U>(dk[0], call.p.scale, first, last, call.p.dk, call.a.dk,
                           w.b, w.g, w.k_row, w.rows, row, call.p.dim_qk);
    store_warp_gradient<U>(dv[0], 1.0f, first, last, call.p.dv, call.a.dv,
                           w.b, w.g, w.k_row, w.rows, row, call.p.dim_v);
  }

  TSRI_DEVICE_MEMBER void block(const Args &args) {
    const int warp = static_cast<int>(shuffle(static_cast<uint32_t>(thread_index() / 32), 0));
    if (thread_index() == 32) {
      Keys::start_barriers(args);
      for (uint32_t s = 0; s < kStages; ++s) phase_init(kFullS + 8 * s, 4 * kGroups);
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
      multiply(args);
    }
  }
};

} // namespace gpu
} // namespace tessera

#endif // TESSERA_BACKENDS_CUDA_SM90_BACKWARD_HPP_
