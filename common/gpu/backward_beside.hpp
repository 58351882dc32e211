// SPDX-License-Identifier: Apache-2.0
//
// The walk of Backward (backward.hpp) over its query tiles where the instructions of a wave that are not products
// have to pass beside its own products: P is made while dP is multiplied, dS while P is applied, and what a tile
// needs besides is little: where its copies begin is kept for every thread, and sums of dQ lie as the accumulators
// of dQ^T = K^T dS^T do (sum_index() in gradient.hpp), so that a wave adds whole lines.
#ifndef TESSERA_COMMON_GPU_BACKWARD_BESIDE_HPP_
#define TESSERA_COMMON_GPU_BACKWARD_BESIDE_HPP_

#include "common/gpu/gradient.hpp"
#include "common/gpu/product.hpp"

namespace tessera {
namespace gpu {

// What Backward's shared state holds besides, and of programs without this walk.
struct BesideNumbers {
  int32_t sums; // tile of dq_sum of the current head's query 0
  int32_t key0; // of the block
  uint32_t first_head; // of the group
};
struct NoNumbers {};

// B: Backward<...> of interval masks with two stages, U its unit.
template <class B, class U>
struct BesideSteps {
  // Where addresses take more registers than those of 9.0, waves that exchange nothing have none for this walk: they
  // take Backward's own and share the sums alone.
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ < 900
  static constexpr bool kWalks = !B::kDirect;
#else
  static constexpr bool kWalks = true;
#endif
  using Args = BackwardArgs;
  using Acc = typename U::Acc;

  // ---- Copies of query tiles ----

  struct alignas(16) Lane { // where the next copies of a thread begin
    const unsigned char *q, *dout;
  };
  TSRI_DEVICE_MEMBER Lane &lane_at() {
    return shared_at<Lane>(B::kLanes + static_cast<uint32_t>(fresh_thread_index()) * 16);
  }

  using CopiesQ = LaneCopies<typename B::TileQ, B::kThreads>;
  using CopiesO = LaneCopies<typename B::TileO, B::kThreads>;
  // For the current head, of which query i0 is loaded next.
  template <class Shared>
  TSRI_DEVICE_MEMBER void point_lanes(const Shared &shared, int32_t i0) {
    const int thread = fresh_thread_index();
    lane_at() = Lane{CopiesQ::source(shared.q, i0, 0, thread), CopiesO::source(shared.dout, i0, 0, thread)};
  }

  // The tile of queries i0 on that comes next, of which `rows` are used, into a stage.
  struct Copies {
    CopiesQ q;
    CopiesO dout;
  };
  template <class Shared>
  TSRI_DEVICE_MEMBER Copies copies_of(const Args &args, const Shared &shared, int stage, int32_t i0, int rows,
                                      const unsigned char *q, const unsigned char *dout) {
    const tsr_problem &p = args.call.p;
    constexpr int64_t size = sizeof(typename U::Element);
    const int thread = fresh_thread_index();
    load_stats<B::kTileQ, B::kThreads>(
        B::kStats + static_cast<uint32_t>(stage) * (B::kTileQ * static_cast<uint32_t>(sizeof(RowStat))),
        args.stats + shared.stats, i0, i0 + rows);
    return Copies{CopiesQ::start(B::kQ + static_cast<uint32_t>(stage) * B::TileQ::kBytes, q,
                                 p.q.stride[2] * size, rows, static_cast<int>(p.dim_qk), thread),
                  CopiesO::start(B::kO + static_cast<uint32_t>(stage) * B::TileO::kBytes, dout,
                                 p.dout.stride[2] * size, rows, static_cast<int>(p.dim_v), thread)};
  }
  template <class Shared>
  TSRI_DEVICE_MEMBER Copies start_queries(const Args &args, const Shared &shared, int stage, int32_t i0, int rows) {
    const Lane lane = lane_at();
    return copies_of(args, shared, stage, i0, rows, lane.q, lane.dout);
  }
  TSRI_DEVICE_MEMBER void issue(Copies &copies, int part, int parts) {
    CopiesQ::issue(copies.q, part, parts);
    CopiesO::issue(copies.dout, part, parts);
  }
  // The same, and after the last part keeps where the next ones begin.
  TSRI_DEVICE_MEMBER void issue_kept(Copies &copies, int part, int parts) {
    issue(copies, part, parts);
    if (part + 1 == parts) lane_at() = Lane{copies.q.from, copies.dout.from};
  }

  // ---- P and dS ----

  static constexpr int kFree = B::kFree, kGroup = B::kGroup;
  static constexpr int kCount = kFree * kGroup * U::kElements;      // scores of a lane
  static constexpr int kQueries = kGroup * U::kElements / U::kRows; // and queries of them
  static_assert(kCount <= 32, "a bit each");
  using Scores = typename B::Scores;

  // Element n of a lane's scores, accumulators along the queries slowest; its query among the lane's.
  TSRI_DEVICE_MEMBER float &score_at(Scores &s, int n) {
    return s[n / U::kElements % kFree][n / (U::kElements * kFree)].x[n % U::kElements];
  }
  TSRI_DEVICE_MEMBER int query_at(int n) {
    const int e = n % U::kElements;
    return n / (U::kElements * kFree) * (U::kElements / U::kRows) + e / 4 * 2 + e % 2;
  }
  // Query k of the lane, from the group's first.
  TSRI_DEVICE_MEMBER int query_row(int k) {
    return k / 4 * U::kCon + U::con_lane() + U::con_element(k % 4 / 2 * 4 + k % 2);
  }

  using Numbers = float[kQueries]; // of the lane's queries
  TSRI_DEVICE_MEMBER void load_numbers(Numbers &numbers, uint32_t stats, int row) {
    TSRI_UNROLL
    for (int k = 0; k < kQueries; ++k)
      numbers[k] = shared_at<float>(stats + static_cast<uint32_t>(row + query_row(k)) * 16);
  }

  // A bit for each score that the interval rule allows. key: the wave's first.
  TSRI_DEVICE_MEMBER uint32_t allowed(uint32_t stats, int row, int32_t key) {
    uint32_t bits = 0;
    TSRI_UNROLL
    for (int n = 0; n < kCount; ++n) {
      const RowStat stat = shared_at<RowStat>(stats + static_cast<uint32_t>(row + query_row(query_at(n))) * 16);
      const int32_t j = key + n / U::kElements % kFree * U::kFree + U::free_of(U::slot(n % U::kElements));
      if (stat_allows(stat, 0, j)) bits |= 1u << n;
    }
    return bits;
  }
  TSRI_DEVICE_MEMBER void keep(Scores &s, uint32_t bits) {
    TSRI_UNROLL
    for (int n = 0; n < kCount; ++n)
      if (!(bits >> n & 1)) score_at(s, n) = 0.0f;
  }

  TSRI_DEVICE_MEMBER void make_p(Scores &s, const Numbers &lse, float unit, int begin, int end) {
    TSRI_UNROLL
    for (int n = begin; n < end; ++n) {
      float &x = score_at(s, n);
      x = Softmax::prob_ready(unit, x, lse[query_at(n)]);
    }
  }
  TSRI_DEVICE_MEMBER void make_ds(Scores &p, Scores &dp, const Numbers &delta, int begin, int end) {
    TSRI_UNROLL
    for (int n = begin; n < end; ++n) {
      float &y = score_at(dp, n);
      y = score_at(p, n) * (y - delta[query_at(n)]);
    }
  }

  // Scores [key][query] as elements of a tile, queries from `row` on.
  TSRI_DEVICE_MEMBER void store_scores(uint32_t tile, Scores &s, int row) {
    using T = typename B::TileP;
    const int lane = U::offset_lane();
    const uint32_t first = along(
        tile + static_cast<uint32_t>((B::key_row() + lane / 4) * T::kRowBytes + lane / 4 * 16 + lane % 4 * 4), row * 2);
    TSRI_UNROLL
    for (int n = 0; n < kCount; n += 2) {
      const int e = n % U::kElements, f = n / U::kElements % kFree, c = n / (U::kElements * kFree);
      shared_at<uint32_t>(along(first, (c * U::kCon + U::con_element(e)) * 2) +
                          static_cast<uint32_t>((f * U::kFree + 8 * U::slot(e)) * T::kRowBytes)) =
          U::Element::pack(score_at(s, n), score_at(s, n + 1));
    }
  }

  // ---- Products of a tile ----

  // dK and dV from one query tile, with the copies of the next one on the way; its dS is left in buffer `slot`.
  template <class Shared, class DK, class DV>
  TSRI_DEVICE_MEMBER void make_keys(const Args &args, const Shared &shared, int slot, int32_t i0,
                                    Copies &copies, DK &dk, DV &dv) {
    const uint32_t stats =
        B::kStats + static_cast<uint32_t>(slot) * (B::kTileQ * static_cast<uint32_t>(sizeof(RowStat)));
    const uint32_t q_tile = B::kQ + static_cast<uint32_t>(slot) * B::TileQ::kBytes;
    const uint32_t o_tile = B::kO + static_cast<uint32_t>(slot) * B::TileO::kBytes;
    const uint32_t s_tile = B::kS + static_cast<uint32_t>(slot) * B::TileP::kBytes;
    const int32_t sq = static_cast<int32_t>(shared.rule.sq);
    const int32_t sk = static_cast<int32_t>(shared.rule.sk);
    const float unit = args.call.p.scale * static_cast<float>(TSRI_LOG2E);
    // Read here: a register kept across the products of the loop is one too many.
    const int32_t j0 = shared.key0 + B::key_row(), j1 = j0 + kFree * U::kFree;
    constexpr int dp_steps = B::TileV::kColumns / U::kStep * kGroup;
    constexpr int dv_steps = (B::kDirect ? kGroup * U::kCon : B::kTileQ) / U::kApplyStep * B::kOutV;
    // Copies pass among the first product's where there is one of them.
    constexpr bool kSpreads = B::kCon == kGroup;
    if (!kSpreads) issue_kept(copies, 0, 1);
    TSRI_NO_UNROLL // unrolled, the groups' loads move together and registers run out
    for (int group = 0; group < B::kCon / kGroup; ++group) {
      Scores s, dp;
      Numbers lse, delta;
      uint32_t bits = ~0u;
      const int row = B::query_row() + group * kGroup * U::kCon;
      const int last = smaller(sq - i0, row + kGroup * U::kCon);
      int tile_class = TSRI_TILE_SKIP;
      if (row < last && j1 > 0 && j0 < sk)
        tile_class = uniform(stats_class(stats, row, last, 0, larger(j0, 0), j1));
      const auto ds_beside = [&](int step) {
        make_ds(s, dp, delta, kCount * step / dv_steps, kCount * (step + 1) / dv_steps);
      };
      // Zeros beyond the last query have p = 1, which makes NaN of what is not finite.
      const bool edge = tile_class == TSRI_TILE_EDGE || j0 < 0 || last < row + kGroup * U::kCon;
      if (tile_class == TSRI_TILE_SKIP) {
        if (kSpreads) issue_kept(copies, 0, 1);
        clear<U>(s);
        clear<U>(dp);
      } else {
        load_numbers(lse, stats, row);
        constexpr int s_steps = B::TileQ::kColumns / U::kStep * kGroup;
        const auto copy = [&](int step) {
          if (kSpreads) issue_kept(copies, step, s_steps);
        };
        B::template multiply<B::TileQ::kColumns / U::kStep, typename B::TileK, typename B::TileQ>(s, B::kK, q_tile, row,
                                                                                                  copy);
        B::template multiply<B::TileV::kColumns / U::kStep, typename B::TileV, typename B::TileO>(
            dp, B::kV, o_tile, row, [&](int step) {
              make_p(s, lse, unit, kCount * step / dp_steps, kCount * (step + 1) / dp_steps);
            });
        load_numbers(delta, stats + 4, row);
        if (edge) {
          bits = allowed(stats, row, j0);
          keep(s, bits);
        }
        if constexpr (B::kDirect) {
          B::template accumulate_direct<B::kOutV, typename B::TileO>(dv, s, o_tile, row, ds_beside);
        } else {
          make_ds(s, dp, delta, 0, kCount);
        }
        if (edge) keep(dp, bits);
        if constexpr (B::kDirect)
          B::template accumulate_direct<B::kOutK, typename B::TileQ>(dk, dp, q_tile, row);
      }
      if (!B::kDirect) store_scores(B::kP, s, row);
      if (!B::kDirect || args.dq_sum) store_scores(s_tile, dp, row);
    }
    if constexpr (!B::kDirect) {
      sync_group(1 + B::wave() / B::kSharers, B::kSharers * U::kWave);
      B::template accumulate<B::kOutV, typename B::TileO>(dv, B::kP, o_tile);
      B::template accumulate<B::kOutK, typename B::TileQ>(dk, s_tile, q_tile);
    }
  }

  // Adds dQ^T of a tile: a wave's columns x queries. to: the tile's sums.
  TSRI_DEVICE_MEMBER void add_queries(float *to, uint32_t s_tile) {
    constexpr int kColumns = B::kOutQ, kRows = B::kFreeQ;
    const int wave = B::wave(), column = wave % B::kColumnWaves * kColumns, row = wave / B::kColumnWaves * kRows;
    const typename U::ApplyTOffset k_offset =
        U::template apply_transposed_offset<B::TileK::kRowBytes>(B::kK, column * 16);
    const typename U::ZOffset s_offset = U::template z_offset<B::TileP::kRowBytes>(s_tile, row);
    constexpr int kEights = B::kTileQ / 8, kSteps = B::kTileK / U::kApplyStep;
    float *const lane_to = to + (column * kEights + row * 2) * 128 + U::offset_lane() * 4;
    const auto add = [lane_to](const Acc &sum, int f, int o) {
      TSRI_UNROLL
      for (int half = 0; half < 2; ++half)
        atomic_add_four(lane_to + (f * kEights + o * 2 + half) * 128, sum.x + 4 * half);
    };
    if constexpr (kSteps * kRows * sizeof(typename U::Z) <= 128 && kColumns > 2) {
      // Few keys: dS stays in registers, and additions, which memory takes slowly, spread among the products.
      typename U::Z ds[kSteps][kRows];
      TSRI_UNROLL
      for (int step = 0; step < kSteps; ++step)
        TSRI_UNROLL
        for (int o = 0; o < kRows; ++o)
          U::template load_z<B::TileP::kRowBytes>(ds[step][o], s_offset, step * U::kApplyStep, o);
      typename U::P k[2];
      U::template load_apply_transposed<B::TileK::kRowBytes>(k[0], k_offset, 0, 0);
      TSRI_UNROLL
      for (int f = 0; f < kColumns; ++f) {
        Acc out[1][kRows];
        clear<U>(out);
        TSRI_UNROLL
        for (int step = 0; step < kSteps; ++step) {
          const int n = f * kSteps + step, next = n + 1;
          if (next < kColumns * kSteps)
            U::template load_apply_transposed<B::TileK::kRowBytes>(k[next % 2], k_offset, next / kSteps * U::kFree,
                                                                   next % kSteps);
          TSRI_UNROLL
          for (int o = 0; o < kRows; ++o) U::apply(out[0][o], ds[step][o], k[n % 2]);
        }
        TSRI_UNROLL
        for (int o = 0; o < kRows; ++o) add(out[0][o], f, o);
      }
    } else {
      Acc out[kColumns][kRows];
      clear<U>(out);
      apply_product<U, typename B::TileP, kSteps, true>(
          out, s_offset, [k_offset](typename U::P(&a)[kColumns], int step) {
            TSRI_UNROLL
            for (int f = 0; f < kColumns; ++f)
              U::template load_apply_transposed<B::TileK::kRowBytes>(a[f], k_offset, f * U::kFree, step);
          });
      TSRI_UNROLL
      for (int f = 0; f < kColumns; ++f)
        TSRI_UNROLL
        for (int o = 0; o < kRows; ++o) add(out[f][o], f, o);
    }
  }

  // Query tiles [begin, end) of all heads of the group.
  template <class Shared, class DK, class DV>
  TSRI_DEVICE_MEMBER void walk(const Args &args, Shared &shared, uint32_t g, int32_t key0, int32_t begin, int32_t end,
                               DK &dk, DV &dv) {
    point_lanes(shared, begin * B::kTileQ);
    {
      Copies first = start_queries(args, shared, 0, begin * B::kTileQ,
                                   static_cast<int32_t>(shared.rule.sq) - begin * B::kTileQ);
      issue_kept(first, 0, 1);
      copy_commit();
    }
    if (thread_index() == 0) {
      shared.begin = begin;
      shared.count = end - begin;
      shared.first_head = g * static_cast<uint32_t>(args.call.group);
      shared.key0 = key0;
    }
    int32_t tile = begin;
    const int32_t total = (end - begin) * args.call.group;
    TSRI_NO_UNROLL
    for (int32_t n = 0; n < total; ++n) {
      copy_wait<0>();
      sync_block(); // this tile has arrived; everybody is done with the one before
      const int32_t i0 = tile * B::kTileQ;
      if (thread_index() == 0) shared.sum_row[n % 2] = shared.sums + tile;
      if (++tile == shared.begin + shared.count && n + 1 < total) { // the next one is of the next head
        tile = shared.begin;
        if (thread_index() == 0)
          B::take_head(args, shared, shared.first_head + static_cast<uint32_t>((n + 1) / shared.count));
        sync_block();
        point_lanes(shared, tile * B::kTileQ);
      }
      // No branch around what is copied: without a next tile there are no rows.
      Copies copies = start_queries(args, shared, (n + 1) % 2, tile * B::kTileQ,
                                    n + 1 < total ? static_cast<int32_t>(shared.rule.sq) - tile * B::kTileQ : 0);
      make_keys(args, shared, n % 2, i0, copies, dk, dv);
      copy_commit();
      if (n > 0) add_sum(args, shared, (n - 1) % 2);
    }
    sync_block();
    add_sum(args, shared, (total - 1) % 2);
  }
  // dQ of a tile whose dS is complete in buffer `slot`.
  template <class Shared>
  TSRI_DEVICE_MEMBER void add_sum(const Args &args, const Shared &shared, int slot) {
    constexpr int sum = B::kTileQ * B::TileQ::kColumns; // floats of a tile
    if (args.dq_sum)
      add_queries(args.dq_sum + shared.sum_row[slot] * sum, B::kS + static_cast<uint32_t>(slot) * B::TileP::kBytes);
  }
};

} // namespace gpu
} // namespace tessera

#endif // TESSERA_COMMON_GPU_BACKWARD_BESIDE_HPP_
