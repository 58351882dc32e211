// SPDX-License-Identifier: Apache-2.0
//
// The side of the keys that the backward programs of compute capability 9.0 have in common: which keys a block
// owns and which queries see them, how keys, values and then queries, dO and what is known of their rows come
// into shared memory, by two stages, and the way from scores and dP to P and dS in transposed scores.
#ifndef TESSERA_BACKENDS_CUDA_SM90_BACKWARD_KEYS_HPP_
#define TESSERA_BACKENDS_CUDA_SM90_BACKWARD_KEYS_HPP_

#include "backends/cuda/sm90/backward_tiles.hpp"

namespace tessera {
namespace gpu {

// A block's keys and the queries that see them.
struct KeyWork {
  int32_t b, g;             // b -1: nothing to do
  int32_t q_batch, k_batch; // where the copy engine finds them: 0 in packed tensors
  int32_t k_row, q_row;     // rows of the tensors: the tile's first key, the first used query
  int32_t key0;             // used index of the tile's first key; negative in left padding
  int32_t keys, queries;
  int32_t rows;             // of the slot, from the tile's first key on
  int32_t begin, count;     // query tiles
  int32_t heads;            // of the group
  int64_t stats, head_stats; // row of stats of used query 0 of the group's first head; step to the next
  int32_t sums, head_sums;   // likewise of tiles of dq_sum
};

// Number `n` of the grid: `together` heads side by side, and of each the first keys first, which the most
// queries see under a causal mask. By a whole warp.
TSRI_DEVICE KeyWork key_work(const EngineBackwardArgs &args, int64_t n, int tile_q, int tile_k) {
  const Call &call = args.backward.call;
  const tsr_problem &p = call.p;
  const tsr_args &a = call.a;
  const int64_t tiles = args.backward.tiles, together = args.together;
  const int64_t slots = a.cu_k ? p.heads_kv : p.heads_kv * p.batch;
  int64_t rest, column, g;
  const int64_t section = divide(n, tiles * together, rest);
  const int64_t tile = divide(rest, smaller(together, slots - section * together), column);
  const int64_t batch = divide(section * together + column, p.heads_kv, g);
  KeyWork work = {};
  work.g = static_cast<int32_t>(g);
  Place place = {batch, static_cast<int32_t>(tile)};
  if (a.cu_k) place = find_packed(a.cu_k, p.index_dtype, p.total_k, p.batch, tile_k, tile, 32);
  work.b = static_cast<int32_t>(place.b);
  if (work.b < 0) return work;
  const tsri_sequence sequence = tsri_sequence_of(&p, &a, place.b);
  const tsri_mask_rule rule = tsri_sequence_rule(&p, &sequence);
  const int32_t row0 = place.tile * tile_k;
  work.rows = static_cast<int32_t>(sequence.k.slot_len) - row0;
  if (work.rows <= 0) work.b = -1;
  work.q_batch = a.cu_q ? 0 : work.b;
  work.k_batch = a.cu_k ? 0 : work.b;
  work.k_row = static_cast<int32_t>(sequence.k.slot_begin) + row0;
  work.q_row = static_cast<int32_t>(sequence.q.begin);
  work.key0 = row0 - static_cast<int32_t>(sequence.k.begin - sequence.k.slot_begin);
  work.keys = static_cast<int32_t>(sequence.k.len);
  work.queries = static_cast<int32_t>(sequence.q.len);
  work.stats = stat_row(p, a, sequence.q, place.b, work.g * static_cast<int64_t>(call.group));
  work.heads = call.group;
  work.head_stats = a.cu_q ? p.total_q : p.seq_q;
  const SumTiles sums = sum_tiles(p, a, tile_q, sequence.q.slot_begin, place.b);
  work.head_sums = static_cast<int32_t>(sums.head);
  work.sums = static_cast<int32_t>(sums.first + work.g * static_cast<int64_t>(call.group) * sums.head);
  const int32_t first = larger(work.key0, 0), end = smaller(work.key0 + tile_k, work.keys);
  int64_t from = 0, to = 0;
  if (first < end) tsri_mask_queries_of(&rule, first, end, &from, &to);
  work.begin = static_cast<int32_t>(from) / tile_q;
  work.count = to > from ? ceil_div(static_cast<int32_t>(to), tile_q) - work.begin : 0;
  return work;
}

template <class E, int kTileQ_, int kTileK_, int kDqk, int kDv>
struct EngineKeys {
  using U = MmaSync<E>;
  using Acc = typename U::Acc;
  using Args = EngineBackwardArgs;
  static constexpr int kTileQ = kTileQ_, kTileK = kTileK_;
  static constexpr int kGroups = 2; // warpgroups that multiply
  static constexpr int kThreads = (kGroups + 1) * kWarpgroup;
  static constexpr int kMinBlocks = 1;
  static constexpr int kStages = 2; // of queries, dO and their rows' numbers
  static constexpr int kCon = kTileQ / 16;

  // Pieces of 64 columns, see instructions.hpp.
  static constexpr uint32_t kPieceK = kTileK * 128, kPieceQ = kTileQ * 128;
  static constexpr uint32_t kBytesK = ceil_div(kDqk, 64) * kPieceK, kBytesV = ceil_div(kDv, 64) * kPieceK;
  static constexpr uint32_t kBytesQ = ceil_div(kDqk, 64) * kPieceQ, kBytesO = ceil_div(kDv, 64) * kPieceQ;

  // Barriers: full buffers, a stage that both warpgroups have read, and more of the program's own.
  static constexpr uint32_t kFullK = 0, kFullV = 8;
  // Queries are full with what is known of their rows.
  static constexpr uint32_t kFullQ = 16, kFullO = kFullQ + 8 * kStages;
  static constexpr uint32_t kEmpty = kFullO + 8 * kStages, kMore = kEmpty + 8 * kStages;
  static constexpr uint32_t kWork = kMore + 4 * 8;
  // Of a stage: -LSE, delta, begin and width of the band of every query, in the order of stat_at; then for 64
  // keys each, a Turn.
  static constexpr uint32_t kRowBytes = kTileQ * 4, kTurns = 4 * kRowBytes;
  static constexpr uint32_t kStatBytes = kTurns + kTileK / 64 * 16;
  static constexpr uint32_t kStats = ceil_div(kWork + sizeof(KeyWork), 16) * 16;
  static constexpr uint32_t kK = ceil_div(kStats + kStages * kStatBytes, 1024) * 1024;
  static constexpr uint32_t kV = kK + kBytesK;
  static constexpr uint32_t kQ = kV + kBytesV;
  static constexpr uint32_t kO = kQ + kStages * kBytesQ;
  static constexpr uint32_t kTilesEnd = kO + kStages * kBytesO;
  static constexpr int kGroupBarrier = 1; // named barriers, one a warpgroup

  using Scores = Acc[kCon];
  using Operand = uint32_t[kCon][4];

  // A tile of queries of one head.
  struct alignas(16) Turn {
    int32_t kind; // how it meets the warpgroup's 64 keys: TSRI_TILE_...
    int32_t used; // queries
    int32_t sum;  // tile of dq_sum
    int32_t unused;
  };
  TSRI_DEVICE_MEMBER Turn turn_at(uint32_t stats, int group) {
    return shared_at<Turn>(stats + kTurns + static_cast<uint32_t>(group) * 16);
  }

  // Where the number of query r lies: the four that a lane has of 16 are together.
  TSRI_DEVICE_MEMBER uint32_t stat_at(uint32_t r) {
    return (r / 16 * 16 + r % 8 / 2 * 4 + r % 16 / 8 * 2 + r % 2) * 4;
  }

  TSRI_DEVICE_MEMBER const KeyWork &work() { return shared_at<KeyWork>(kWork); }
  TSRI_DEVICE_MEMBER uint32_t slot_of(int32_t n) { return static_cast<uint32_t>(n) & 1; }
  TSRI_DEVICE_MEMBER uint32_t parity_of(int32_t n) { return static_cast<uint32_t>(n) >> 1 & 1; }

  // ---------------------------------------------------------------------------------- loading

  // By one thread.
  TSRI_DEVICE_MEMBER void load_tiles(const Args &args) {
    const KeyWork &w = work();
    const int32_t group = args.backward.call.group;
    load_boxes<kBytesK, kPieceK>(kK, args.k, kFullK, w.k_row, w.g, w.k_batch);
    int32_t n = 0;
    for (int32_t head = w.g * group; head < (w.g + 1) * group; ++head)
      TSRI_NO_UNROLL
      for (int32_t tile = w.begin; tile < w.begin + w.count; ++tile, ++n) {
        const uint32_t slot = slot_of(n);
        const int32_t row = w.q_row + tile * kTileQ;
        phase_wait(kEmpty + 8 * slot, parity_of(n) ^ 1);
        load_boxes<kBytesQ, kPieceQ>(kQ + slot * kBytesQ, args.q, kFullQ + 8 * slot, row, head, w.q_batch);
        if (n == 0) load_boxes<kBytesV, kPieceK>(kV, args.v, kFullV, w.k_row, w.g, w.k_batch);
        load_boxes<kBytesO, kPieceQ>(kO + slot * kBytesO, args.dout, kFullO + 8 * slot, row, head, w.q_batch);
      }
  }

  // How the queries of a tile, `used` of them, meet the group-th 64 keys.
  TSRI_DEVICE_MEMBER int class_of(uint32_t stats, int used, int group) {
    const KeyWork &w = work();
    const int32_t j0 = w.key0 + 64 * group, j1 = j0 + 64;
    if (j0 < 0 || j1 > w.keys || used < kTileQ) return TSRI_TILE_EDGE;
    RowBand band[2];
    TSRI_UNROLL
    for (int i = 0; i < 2; ++i) {
      const uint32_t at = stats + 2 * kRowBytes + stat_at(i ? static_cast<uint32_t>(used) - 1 : 0);
      band[i].lo = shared_at<int32_t>(at);
      band[i].hi = static_cast<int32_t>(static_cast<uint32_t>(band[i].lo) + shared_at<uint32_t>(at + kRowBytes));
    }
    return RowsClass::of(rows_class(band[0], band[1], 0), j0, j1);
  }

  // By one warp, which has few registers. Rows beyond the used part are as rows that see nothing.
  TSRI_DEVICE_MEMBER void load_stats(const Args &args) {
    const int lane = thread_index() % 32;
    int32_t n = 0;
    for (int32_t head = 0; head < work().heads; ++head)
      TSRI_NO_UNROLL
      for (int32_t tile = work().begin; tile < work().begin + work().count; ++tile, ++n) {
        const KeyWork &w = work();
        const uint32_t slot = slot_of(n), to = kStats + slot * kStatBytes;
        const int32_t left = w.queries - tile * kTileQ;
        const RowStat *stats = args.backward.stats + (w.stats + head * w.head_stats + tile * kTileQ);
        phase_wait(kEmpty + 8 * slot, parity_of(n) ^ 1);
        TSRI_NO_UNROLL // there are 24 registers
        for (int first = 0; first < kTileQ; first += 32) {
          const int r = first + lane;
          RowStat stat = {infinity(), 0.0f, INT32_MAX, INT32_MIN};
          if (r < left) stat = stats[r];
          const uint32_t at = to + stat_at(static_cast<uint32_t>(lane)) + static_cast<uint32_t>(first) * 4;
          shared_at<float>(at) = -stat.lse;
          shared_at<float>(at + kRowBytes) = stat.delta;
          shared_at<int32_t>(at + 2 * kRowBytes) = stat.lo;
          shared_at<uint32_t>(at + 3 * kRowBytes) =
              static_cast<uint32_t>(stat.hi) - static_cast<uint32_t>(stat.lo);
        }
        sync_wave();
        if (lane < kTileK / 64) {
          const int32_t used = smaller(kTileQ, left);
          shared_at<Turn>(to + kTurns + static_cast<uint32_t>(lane) * 16) =
              Turn{class_of(to, used, lane), used, work().sums + head * work().head_sums + tile, 0};
        }
        sync_wave();
        if (lane == 0) phase_arrive(kFullQ + 8 * slot);
      }
  }

  // Used index of a lane's first key.
  TSRI_DEVICE_MEMBER int32_t first_key() {
    const int thread = fresh_thread_index();
    return work().key0 + thread / 32 % (kTileK / 16) * 16 + thread % 32 / 4;
  }

  // Of a lane's four queries of 16.
  struct alignas(16) Four {
    uint32_t x[4];
  };
  // Numbers of the lane's queries: `number` 0 -LSE, 1 delta, 2 begin, 3 width of the band.
  TSRI_DEVICE_MEMBER Four four_at(uint32_t stats, int number, int c) {
    return shared_at<Four>(stats + static_cast<uint32_t>(number) * kRowBytes + static_cast<uint32_t>(c) * 64 +
                           static_cast<uint32_t>(fresh_thread_index()) % 4 * 16);
  }

  // Scores to P, or (kScores false) P and dP to dS in the place of dP. Elements e with the queries
  // 16 c + 8 half + con_lane() and the next one: 4 half + i (query), + 2 (key).
  template <bool kEdge, bool kScores, int kCount>
  TSRI_DEVICE_MEMBER void differentiate(Acc (&s)[kCount], Acc (&dp)[kCount], uint32_t stats, float unit, int32_t j) {
    TSRI_UNROLL
    for (int c = 0; c < kCount; ++c) {
      const Four number = four_at(stats, kScores ? 0 : 1, c);
      Four lo = {}, width = {};
      if (kEdge) {
        lo = four_at(stats, 2, c);
        width = four_at(stats, 3, c);
      }
      TSRI_UNROLL
      for (int e = 0; e < 8; ++e) {
        const int query = e / 4 * 2 + e % 2, key = e / 2 % 2 * 8;
        const bool allowed = !kEdge || static_cast<uint32_t>(j + key) - lo.x[query] < width.x[query];
        float &x = s[c].x[e], &y = dp[c].x[e];
        if (kScores) {
          const float p = Softmax::prob_negated(unit, x, bits_float(number.x[query]));
          x = allowed ? p : 0.0f;
        } else {
          const float ds = x * (y - bits_float(number.x[query]));
          y = allowed ? ds : 0.0f;
        }
      }
    }
  }
  template <bool kScores, int kCount>
  TSRI_DEVICE_MEMBER void differentiate(bool full, Acc (&s)[kCount], Acc (&dp)[kCount], uint32_t stats, float unit) {
    if (full)
      differentiate<false, kScores>(s, dp, stats, unit, 0);
    else
      differentiate<true, kScores>(s, dp, stats, unit, first_key());
  }

  // Whether some tile of queries has unused ones.
  TSRI_DEVICE_MEMBER bool has_tails() { return (work().begin + work().count) * kTileQ > work().queries; }

  // Queries of turn n, and what is known of them.
  TSRI_DEVICE_MEMBER void wait_queries(int32_t n, bool tails, int group) {
    const uint32_t slot = slot_of(n);
    phase_wait(kFullQ + 8 * slot, parity_of(n));
    if (!tails) return;
    const int32_t used = turn_at(kStats + slot * kStatBytes, 0).used;
    if (used < kTileQ) clear_rows<kBytesQ, kPieceQ>(kQ + slot * kBytesQ, 0, used, kGroupBarrier + group);
  }
  // dO of turn n, whose queries have been waited for.
  TSRI_DEVICE_MEMBER void wait_dout(int32_t n, bool tails, int group) {
    const uint32_t slot = slot_of(n);
    phase_wait(kFullO + 8 * slot, parity_of(n));
    if (!tails) return;
    const int32_t used = turn_at(kStats + slot * kStatBytes, 0).used;
    if (used < kTileQ) clear_rows<kBytesO, kPieceQ>(kO + slot * kBytesO, 0, used, kGroupBarrier + group);
  }

  // By one thread.
  TSRI_DEVICE_MEMBER void start_barriers(const Args &args) {
    tensor_prefetch(args.q);
    tensor_prefetch(args.k);
    tensor_prefetch(args.v);
    tensor_prefetch(args.dout);
    phase_init(kFullK, 1);
    phase_init(kFullV, 1);
    for (uint32_t s = 0; s < kStages; ++s) {
      phase_init(kFullQ + 8 * s, 2);
      phase_init(kFullO + 8 * s, 1);
      phase_init(kEmpty + 8 * s, kGroups);
    }
  }

  // The warps that do not multiply.
  TSRI_DEVICE_MEMBER void feed(const Args &args) {
    if (work().count == 0) return;
    if (thread_index() == kGroups * kWarpgroup) load_tiles(args);
    if (thread_index() / 32 == 4 * kGroups + 1) load_stats(args);
  }

  TSRI_DEVICE_MEMBER void find(const Args &args) {
    const KeyWork found = key_work(args, block_index(), kTileQ, kTileK);
    if (thread_index() == 0) shared_at<KeyWork>(kWork) = found;
  }
};

} // namespace gpu
} // namespace tessera

#endif // TESSERA_BACKENDS_CUDA_SM90_BACKWARD_KEYS_HPP_
