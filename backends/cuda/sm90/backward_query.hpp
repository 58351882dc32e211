// SPDX-License-Identifier: Apache-2.0
//
// dQ of compute capability 9.0 by itself, queries outermost: two warpgroups of 64 queries walk over the keys that
// these may see, and no sum is shared between blocks. Three products for a pair of tiles:
//
//   S = Q K^T    P = 2^(unit S - LSE2)    dP = dO V^T    dS = P (dP - delta)    dQ += dS K
//
// Scores have the orientation of forward (free = query, con = key), so that dS is an operand of dQ where it lies.
// The warpgroups meet nowhere but in the buffers of keys: one has the tensor cores while the other is in its
// exponentials. Interval masks without a prefix on aligned tensors without pages.
#ifndef TESSERA_BACKENDS_CUDA_SM90_BACKWARD_QUERY_HPP_
#define TESSERA_BACKENDS_CUDA_SM90_BACKWARD_QUERY_HPP_

#include "backends/cuda/sm90/backward_tiles.hpp"

namespace tessera {
namespace gpu {

template <class E, int kTileK_, int kDqk, int kDv, int kStagesK, int kStagesV>
struct EngineBackwardQ {
  using U = MmaSync<E>;
  using Acc = typename U::Acc;
  using Args = EngineBackwardArgs;
  static constexpr int kTileQ = 128, kTileK = kTileK_;
  static constexpr int kGroups = kTileQ / 64;
  static constexpr int kThreads = (kGroups + 1) * kWarpgroup;
  static constexpr int kMinBlocks = 1;
  static constexpr int kCon = kTileK / 16, kOut = kDqk / 16;

  // Pieces of 64 columns, see instructions.hpp; queries by warpgroup.
  static constexpr uint32_t kPieceQ = 64 * 128, kPieceK = kTileK * 128;
  static constexpr uint32_t kBytesQ = ceil_div(kDqk, 64) * kPieceQ, kBytesO = ceil_div(kDv, 64) * kPieceQ;
  static constexpr uint32_t kBytesK = ceil_div(kDqk, 64) * kPieceK, kBytesV = ceil_div(kDv, 64) * kPieceK;

  static constexpr uint32_t kFullQ = 0; // by warpgroup, Q and dO
  static constexpr uint32_t kFullK = kFullQ + 8 * kGroups, kEmptyK = kFullK + 8 * kStagesK;
  static constexpr uint32_t kFullV = kEmptyK + 8 * kStagesK, kEmptyV = kFullV + 8 * kStagesV;
  static constexpr uint32_t kItem = ceil_div(kEmptyV + 8 * kStagesV, 16) * 16;
  static constexpr uint32_t kQ = ceil_div(kItem + sizeof(WorkItem), 1024) * 1024;
  static constexpr uint32_t kO = kQ + kGroups * kBytesQ;
  static constexpr uint32_t kK = kO + kGroups * kBytesO;
  static constexpr uint32_t kV = kK + kStagesK * kBytesK;
  static constexpr uint32_t kSharedBytes = kV + kStagesV * kBytesV;
  static_assert(kSharedBytes <= kMostShared, "what a block can have");
  static constexpr int kGroupBarrier = 1; // named barriers, one a warpgroup

  using Scores = Acc[kCon];

  template <int kStages>
  struct Ring {
    uint32_t slot, parity;
    TSRI_DEVICE_MEMBER void next(Ring &ring) {
      if (++ring.slot == kStages) {
        ring.slot = 0;
        ring.parity ^= 1;
      }
    }
  };

  TSRI_DEVICE_MEMBER const WorkItem &item() { return shared_at<WorkItem>(kItem); }
  TSRI_DEVICE_MEMBER int32_t key_of(int32_t n) { return KeyTiles::at(item().tiles, n) * kTileK; }

  TSRI_DEVICE_MEMBER void load_queries(const Args &args, uint32_t group) {
    const WorkItem &w = item();
    const int32_t row = w.slot_begin + w.row0 + 64 * static_cast<int32_t>(group);
    load_boxes<kBytesQ, kPieceQ>(kQ + group * kBytesQ, args.q, kFullQ + 8 * group, row, w.h, w.q_batch);
    load_boxes<kBytesO, kPieceQ>(kO + group * kBytesO, args.dout, kFullQ + 8 * group, row, w.h, w.q_batch);
  }

  // By one thread.
  TSRI_DEVICE_MEMBER void load_tiles(const Args &args) {
    const WorkItem &w = item();
    load_queries(args, 0);
    Ring<kStagesK> k = {0, 1}; // empty buffers are there from the start
    Ring<kStagesV> v = {0, 1};
    TSRI_NO_UNROLL
    for (int32_t n = 0; n < w.tiles.count; ++n) {
      const int32_t row = w.k_begin + key_of(n);
      phase_wait(kEmptyK + 8 * k.slot, k.parity);
      load_boxes<kBytesK, kPieceK>(kK + k.slot * kBytesK, args.k, kFullK + 8 * k.slot, row, w.k_head, w.k_batch);
      phase_wait(kEmptyV + 8 * v.slot, v.parity);
      load_boxes<kBytesV, kPieceK>(kV + v.slot * kBytesV, args.v, kFullV + 8 * v.slot, row, w.k_head, w.k_batch);
      if (n == 0) load_queries(args, 1);
      Ring<kStagesK>::next(k);
      Ring<kStagesV>::next(v);
    }
  }

  // What is known of a lane's rows, and the keys that all used rows of its warp see.
  struct Rows {
    RowStat stat[2];
    int32_t full_lo, full_hi;
  };

  TSRI_DEVICE_MEMBER Rows find_rows(const Args &args) {
    const WorkItem &w = item();
    const BackwardArgs &b = args.backward;
    const tsri_span span = {w.slot_begin, w.slot_len, static_cast<int64_t>(w.slot_begin) + w.row0 - w.i0, w.queries};
    const RowStat *stats = b.stats + stat_row(b.call.p, b.call.a, span, w.b, w.h);
    Rows rows;
    rows.full_lo = 0;
    rows.full_hi = w.keys;
    TSRI_UNROLL
    for (int slot = 0; slot < 2; ++slot) {
      const int32_t i = w.i0 + thread_index() / 32 * 16 + U::free_of(slot);
      rows.stat[slot] = RowStat{infinity(), 0.0f, INT32_MAX, INT32_MIN};
      if (i < 0 || i >= w.queries) continue;
      rows.stat[slot] = stats[i];
      rows.full_lo = larger(rows.full_lo, rows.stat[slot].lo);
      rows.full_hi = smaller(rows.full_hi, rows.stat[slot].hi);
    }
    TSRI_UNROLL
    for (int mask = 4; mask < 32; mask *= 2) {
      const uint32_t lo = shuffle_xor(static_cast<uint32_t>(rows.full_lo), mask);
      const uint32_t hi = shuffle_xor(static_cast<uint32_t>(rows.full_hi), mask);
      rows.full_lo = larger(rows.full_lo, static_cast<int32_t>(lo));
      rows.full_hi = smaller(rows.full_hi, static_cast<int32_t>(hi));
    }
    return rows;
  }

  // Scores become P, or with it dP becomes dS. j: a lane's first key.
  template <bool kEdge, bool kScores>
  TSRI_DEVICE_MEMBER void differentiate(Scores &s, Scores &dp, const Rows &rows, float unit, int32_t j) {
    TSRI_UNROLL
    for (int c = 0; c < kCon; ++c)
      TSRI_UNROLL
      for (int e = 0; e < 8; ++e) {
        const RowStat &stat = rows.stat[U::slot(e)];
        const bool allowed = !kEdge || stat_allows(stat, 0, j + 16 * c + U::con_element(e));
        float &x = s[c].x[e], &y = dp[c].x[e];
        if (kScores)
          x = allowed ? Softmax::prob_ready(unit, x, stat.lse) : 0.0f;
        else
          y = allowed ? x * (y - stat.delta) : 0.0f;
      }
  }

  TSRI_DEVICE_MEMBER void release(uint32_t empty) {
    if (fresh_thread_index() % kWarpgroup == 0) phase_arrive(empty);
  }

  // Keys of turn n are there, and zeros where there are none.
  TSRI_DEVICE_MEMBER void wait_keys(const Ring<kStagesK> &k, int32_t n, int group) {
    phase_wait(kFullK + 8 * k.slot, k.parity);
    const int32_t left = item().keys - key_of(n);
    if (left < kTileK) clear_rows<kBytesK, kPieceK>(kK + k.slot * kBytesK, 0, left, kGroupBarrier + group);
  }

  TSRI_DEVICE_MEMBER void walk(const Args &args, int group, Acc (&out)[kOut], const Rows &rows) {
    const float unit = args.backward.call.p.scale * static_cast<float>(TSRI_LOG2E);
    const uint32_t q_tile = kQ + static_cast<uint32_t>(group) * kBytesQ;
    const uint32_t o_tile = kO + static_cast<uint32_t>(group) * kBytesO;
    Ring<kStagesK> k = {0, 0};
    Ring<kStagesV> v = {0, 0};
    Scores s, dp;
    uint32_t ds[kCon][4];
    int32_t n = 0;
    phase_wait(kFullQ + 8 * static_cast<uint32_t>(group), 0);
    TSRI_NO_UNROLL
    for (;;) {
      const int32_t key0 = key_of(n);
      const bool full = rows.full_lo <= key0 && key0 + kTileK <= rows.full_hi;
      wait_keys(k, n, group);
      matrix_begin();
      start_scores<E, kDqk / 16, kPieceQ, kPieceK>(s, matrix_tile(q_tile, 16),
                                                   matrix_tile(kK + k.slot * kBytesK, 16));
      phase_wait(kFullV + 8 * v.slot, v.parity);
      matrix_begin();
      start_scores<E, kDv / 16, kPieceQ, kPieceK>(dp, matrix_tile(o_tile, 16),
                                                  matrix_tile(kV + v.slot * kBytesV, 16));
      matrix_wait<1>();
      matrix_pin(s);
      if (full)
        differentiate<false, true>(s, dp, rows, unit, 0);
      else
        differentiate<true, true>(s, dp, rows, unit, key0 + U::con_lane());
      matrix_wait<0>();
      matrix_pin(dp);
      release(kEmptyV + 8 * v.slot);
      Ring<kStagesV>::next(v);
      if (full)
        differentiate<false, false>(s, dp, rows, unit, 0);
      else
        differentiate<true, false>(s, dp, rows, unit, key0 + U::con_lane());
      pack_operand<E>(ds, dp);
      matrix_begin();
      start_sums<E>(out, ds, matrix_tile(kK + k.slot * kBytesK, kPieceK));
      matrix_wait<0>();
      release(kEmptyK + 8 * k.slot);
      Ring<kStagesK>::next(k);
      if (++n == item().tiles.count) break;
    }
    matrix_wait<0>();
    matrix_pin(out);
  }

  TSRI_DEVICE_MEMBER void multiply(const Args &args) {
    const Call &call = args.backward.call;
    const WorkItem &w = item();
    const int group = static_cast<int>(shuffle(static_cast<uint32_t>(thread_index() / kWarpgroup), 0));
    const Rows rows = find_rows(args);
    Acc out[1][kOut];
    clear<U>(out);
    if (w.tiles.count > 0) walk(args, group, out[0], rows);
    const int64_t row = static_cast<int64_t>(w.slot_begin) + w.row0;
    store_warp_gradient<U>(out[0], call.p.scale, -w.i0, w.queries - w.i0, call.p.dq, call.a.dq,
                           w.b, w.h, row, w.slot_len - w.row0,
                           thread_index() / 32 * 16, call.p.dim_qk);
  }

  // Piece of work of this block: `together` heads of queries side by side, and of each the last rows first. By
  // a whole warp.
  TSRI_DEVICE_MEMBER WorkItem find_item(const Args &args) {
    const Call &call = args.backward.call;
    const tsr_problem &p = call.p;
    const int64_t tiles = args.backward.tiles, together = args.backward.order.together * static_cast<int64_t>(call.group);
    const int64_t slots = call.a.cu_q ? p.heads_q : p.heads_q * p.batch;
    const int64_t n = block_index(), section = n / (tiles * together), rest = n - section * tiles * together;
    const int64_t width = smaller(together, slots - section * together);
    const int64_t slot = section * together + rest % width, tile = rest / width;
    Place place = {slot / p.heads_q, static_cast<int32_t>(tiles - 1 - tile)};
    if (call.a.cu_q) place = find_packed(call.a.cu_q, p.index_dtype, p.total_q, p.batch, kTileQ, tile, 32);
    WorkItem found;
    found.b = -1;
    if (place.b >= 0)
      found = work_item(call, place.b, static_cast<int32_t>(slot % p.heads_q), place.tile, kTileQ, kTileK);
    return found;
  }

  TSRI_DEVICE_MEMBER void block(const Args &args) {
    const int warp = static_cast<int>(shuffle(static_cast<uint32_t>(thread_index() / 32), 0));
    if (thread_index() == 32) {
      tensor_prefetch(args.q);
      tensor_prefetch(args.k);
      tensor_prefetch(args.v);
      tensor_prefetch(args.dout);
      for (uint32_t g = 0; g < kGroups; ++g) phase_init(kFullQ + 8 * g, 2);
      for (uint32_t s = 0; s < kStagesK; ++s) {
        phase_init(kFullK + 8 * s, 1);
        phase_init(kEmptyK + 8 * s, kGroups);
      }
      for (uint32_t s = 0; s < kStagesV; ++s) {
        phase_init(kFullV + 8 * s, 1);
        phase_init(kEmptyV + 8 * s, kGroups);
      }
      phase_init_done();
    }
    if (warp == 0) {
      const WorkItem found = find_item(args);
      if (thread_index() == 0) shared_at<WorkItem>(kItem) = found;
    }
    sync_block();
    if (item().b < 0) return;
    if (warp >= 4 * kGroups) {
      fewer_registers<24>();
      if (thread_index() == kGroups * kWarpgroup && item().tiles.count > 0) load_tiles(args);
    } else {
      more_registers<240>();
      multiply(args);
    }
  }
};

} // namespace gpu
} // namespace tessera

#endif // TESSERA_BACKENDS_CUDA_SM90_BACKWARD_QUERY_HPP_
