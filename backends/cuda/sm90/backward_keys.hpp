// SPDX-License-Identifier: Apache-2.0
//
// The side of the keys that the backward programs of compute capability 9.0 have in common: which keys a block
// owns and which queries see them, how keys, values and then queries, dO and what is known of their rows come
// into shared memory, by two stages, and the way from scores and dP to P and dS in transposed scores.
#ifndef TESSERA_BACKENDS_CUDA_SM90_BACKWARD_KEYS_HPP_
#define TESSERA_BACKENDS_CUDA_SM90_BACKWARD_KEYS_HPP_

#include "backends/cuda/sm90/backward_tiles.hpp"
#include "common/gpu/key_work.hpp"

namespace tessera {
namespace gpu {

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
  // Of keys, where there is room: the next unit's are there before this one's dQ is done.
  static constexpr int kKeyStages = kDqk <= 64 ? 2 : 1;
  static constexpr int kCon = kTileQ / 16;

  // Pieces of 64 columns, see instructions.hpp.
  static constexpr uint32_t kPieceK = kTileK * 128, kPieceQ = kTileQ * 128;
  static constexpr uint32_t kBytesK = ceil_div(kDqk, 64) * kPieceK, kBytesV = ceil_div(kDv, 64) * kPieceK;
  static constexpr uint32_t kBytesQ = ceil_div(kDqk, 64) * kPieceQ, kBytesO = ceil_div(kDv, 64) * kPieceQ;

  // Barriers: full buffers, a stage that both warpgroups have read, and more of the program's own.
  static constexpr uint32_t kFullK = 0, kFullV = kFullK + 8 * 2;
  // Queries are full with what is known of their rows.
  static constexpr uint32_t kFullQ = kFullV + 8, kFullO = kFullQ + 8 * kStages;
  static constexpr uint32_t kEmpty = kFullO + 8 * kStages, kEmptyK = kEmpty + 8 * kStages,
                            kEmptyV = kEmptyK + 8 * 2;
  // Units of work, two so that the next one is known early.
  static constexpr uint32_t kFullW = kEmptyV + 8, kEmptyW = kFullW + 8 * 2, kMore = kEmptyW + 8 * 2;
  static constexpr uint32_t kMoreBarriers = 24, kMoreBytes = 160; // of programs with more
  // Those two, a copy of each of the two warps that feed, and the number that each warp is at.
  static constexpr int kWarps = 4 * kGroups;
  static constexpr uint32_t kWork = ceil_div(kMore + kMoreBarriers * 8, 16) * 16, kWorkBytes = sizeof(KeyWork);
  static constexpr uint32_t kNumbers = kWork + 4 * kWorkBytes, kEnds = kNumbers + 4 * kWarps;
  // Of a stage: -LSE, delta, begin and width of the band of every query, in the order of stat_at; then for 64
  // keys each, a Turn.
  static constexpr uint32_t kRowBytes = kTileQ * 4, kTurns = 4 * kRowBytes;
  static constexpr uint32_t kStatBytes = kTurns + kTileK / 64 * 16;
  static constexpr uint32_t kStats = kEnds + ceil_div(kWarps, 4) * 16;
  static constexpr uint32_t kStatsEnd = kStats + kStages * kStatBytes;
  static constexpr uint32_t kK = ceil_div(kStatsEnd + kMoreBytes, 1024) * 1024;
  static constexpr uint32_t kV = kK + kKeyStages * kBytesK;
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

  // Unit u of the block, as it is handed out.
  TSRI_DEVICE_MEMBER const KeyWork &handed_out(int32_t u) { return shared_at<KeyWork>(kWork + slot_of(u) * kWorkBytes); }
  // Of a warp that multiplies: the number of its unit, which is no register, and the unit.
  TSRI_DEVICE_MEMBER int32_t &number() {
    return shared_at<int32_t>(kNumbers + static_cast<uint32_t>(fresh_thread_index()) / 32 * 4);
  }
  // The turn after its last, for who is short of registers.
  TSRI_DEVICE_MEMBER int32_t &end() {
    return shared_at<int32_t>(kEnds + static_cast<uint32_t>(fresh_thread_index()) / 32 * 4);
  }
  TSRI_DEVICE_MEMBER const KeyWork &work() { return handed_out(number()); }
  // The unit of warp kWarps + i: a copy, whose place is no register either.
  template <uint32_t i>
  TSRI_DEVICE_MEMBER KeyWork &work_of() { return shared_at<KeyWork>(kWork + (2 + i) * kWorkBytes); }
  TSRI_DEVICE_MEMBER uint32_t slot_of(int32_t n) { return static_cast<uint32_t>(n) & 1; }
  TSRI_DEVICE_MEMBER uint32_t parity_of(int32_t n) { return static_cast<uint32_t>(n) >> 1 & 1; }

  // Of barriers that every unit goes through once.
  TSRI_DEVICE_MEMBER uint32_t unit_parity() { return static_cast<uint32_t>(number()) & 1; }
  // Of the keys of unit u.
  TSRI_DEVICE_MEMBER uint32_t key_slot(int32_t u) { return kKeyStages > 1 ? slot_of(u) : 0; }
  TSRI_DEVICE_MEMBER uint32_t key_parity(int32_t u) { return kKeyStages > 1 ? parity_of(u) : slot_of(u); }
  TSRI_DEVICE_MEMBER uint32_t keys_at() { return kK + (kKeyStages > 1 ? slot_of(number()) * kBytesK : 0); }
  TSRI_DEVICE_MEMBER void wait_for_keys() {
    const int32_t u = number();
    phase_wait(kFullK + 8 * key_slot(u), key_parity(u));
  }
  // By whole warps, each for itself: what a warp reads without products nothing else puts in front of another's word.
  TSRI_DEVICE_MEMBER void arrive_warp(uint32_t barrier) {
    sync_wave();
    if (fresh_thread_index() % 32 == 0) phase_arrive(barrier);
  }
  TSRI_DEVICE_MEMBER void release_keys() { arrive_warp(kEmptyK + 8 * key_slot(number())); }
  // A unit without query tiles: keys and values come all the same. By warps that multiply.
  TSRI_DEVICE_MEMBER void pass_over() {
    wait_for_keys();
    phase_wait(kFullV, unit_parity());
    release_keys();
    arrive_warp(kEmptyV);
  }

  // ---------------------------------------------------------------------------------- loading

  // body(head, query tile) for every turn of a unit, heads from the unit's first on: of all, where `group` says how many
  // a KV head has, or of the group. kOrdered: where tiles of keys add to sums one after the
  // other, and so go the same way: the last queries first, which all tiles of keys of a causal head have.
  template <bool kOrdered, class Body>
  TSRI_DEVICE_MEMBER void each_turn(const KeyWork &w, const Body &body, int32_t group = 0) {
    if constexpr (kOrdered) {
      for (int32_t tile = w.begin + w.count - 1; tile >= w.begin; --tile)
        TSRI_NO_UNROLL
        for (int32_t head = 0; head < w.heads; ++head) {
          body(w.g * group + head, tile);
          keep_register(tile); // what follows from it is found anew
        }
    } else {
      for (int32_t head = w.g * group; head < (group ? (w.g + 1) * group : w.heads); ++head)
        TSRI_NO_UNROLL
        for (int32_t tile = w.begin; tile < w.begin + w.count; ++tile) body(head, tile);
    }
  }

  // A unit of the block; its query tiles are turns n and following. By one thread. Returns the turn after them.
  template <bool kOrdered>
  TSRI_DEVICE_MEMBER int32_t load_tiles(const Args &args, int32_t n) {
    const KeyWork &w = work_of<0>();
    const uint32_t again = (static_cast<uint32_t>(w.number) & 1) ^ 1;
    const int32_t first = n;
    const uint32_t place = key_slot(w.number);
    wait_for_sums(args.backward.order, w); // first: the unit before is still multiplied
    phase_wait(kEmptyK + 8 * place, key_parity(w.number) ^ 1);
    load_boxes<kBytesK, kPieceK>(kK + place * kBytesK, args.k, kFullK + 8 * place, w.k_row, w.g, w.k_batch);
    if (w.count == 0) { // nobody reads them, but everybody counts
      phase_wait(kEmptyV, again);
      load_boxes<kBytesV, kPieceK>(kV, args.v, kFullV, w.k_row, w.g, w.k_batch);
      return n;
    }
    each_turn<kOrdered>(w, [&](int32_t head, int32_t tile) {
      const uint32_t slot = slot_of(n);
      const int32_t row = w.q_row + tile * kTileQ;
      phase_wait(kEmpty + 8 * slot, parity_of(n) ^ 1);
      load_boxes<kBytesQ, kPieceQ>(kQ + slot * kBytesQ, args.q, kFullQ + 8 * slot, row, head, w.q_batch);
      if (n == first) {
        phase_wait(kEmptyV, again);
        load_boxes<kBytesV, kPieceK>(kV, args.v, kFullV, w.k_row, w.g, w.k_batch);
      }
      load_boxes<kBytesO, kPieceQ>(kO + slot * kBytesO, args.dout, kFullO + 8 * slot, row, head, w.q_batch);
      ++n;
    }, args.backward.call.group);
    return n;
  }

  // Until those whose sums were where the unit's are going to be have left, and zeros are there.
  TSRI_DEVICE_MEMBER void wait_for_sums(const KeyOrder &order, const KeyWork &w) {
    if (!order.sums.pieces || w.set < order.sums.ring) return;
    wait_word(order.sums.freed + w.set - order.sums.ring, static_cast<uint64_t>(2 * order.sums.set_tiles));
    fence_device();
    fence_async_all();
  }

  // How the queries of a tile, `used` of them, meet the group-th 64 keys.
  TSRI_DEVICE_MEMBER int class_of(uint32_t stats, int used, int group) {
    const KeyWork &w = work_of<1>();
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

  // As load_tiles, by one warp, which has few registers. Rows beyond the used part are as rows that see nothing.
  template <bool kOrdered>
  TSRI_DEVICE_MEMBER int32_t load_stats(const Args &args, int32_t n) {
    const KeyWork &w = work_of<1>();
    const int own = thread_index() % 32;
    each_turn<kOrdered>(w, [&](int32_t head, int32_t tile) {
      const int lane = kOrdered ? fresh_thread_index() % 32 : own; // what follows from it may take registers
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
            Turn{class_of(to, used, lane), used, w.sums + head * w.head_sums + tile, 0};
      }
      sync_wave();
      if (lane == 0) phase_arrive(kFullQ + 8 * slot);
      ++n;
    });
    return n;
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

  // Those numbers of all, on their way while products are waited for.
  using Ahead = Four[kCon];
  TSRI_DEVICE_MEMBER void look_ahead(Ahead &ahead, uint32_t stats, int number) {
    TSRI_UNROLL
    for (int c = 0; c < kCon; ++c) ahead[c] = four_at(stats, number, c);
  }

  // Scores to P, or (kScores false) P and dP to dS in the place of dP. Elements e with the queries
  // 16 c + 8 half + con_lane() and the next one: 4 half + i (query), + 2 (key). ahead: numbers, or NULL: they are loaded here.
  template <bool kEdge, bool kScores, int kCount>
  TSRI_DEVICE_MEMBER void differentiate(Acc (&s)[kCount], Acc (&dp)[kCount], uint32_t stats, float unit, int32_t j,
                                        const Ahead *ahead = nullptr) {
    TSRI_UNROLL
    for (int c = 0; c < kCount; ++c) {
      const Four number = ahead ? (*ahead)[c] : four_at(stats, kScores ? 0 : 1, c);
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
  TSRI_DEVICE_MEMBER bool has_tails() {
    return any_lane((work().begin + work().count) * kTileQ > work().queries); // one register, not what it is made of
  }

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

  // By one thread. readers: warps that read units, beside those that multiply and the one that fetches stats.
  TSRI_DEVICE_MEMBER void start_barriers(const Args &args, uint32_t readers) {
    tensor_prefetch(args.q);
    tensor_prefetch(args.k);
    tensor_prefetch(args.v);
    tensor_prefetch(args.dout);
    for (uint32_t w = 0; w < kWarps; ++w) shared_at<int32_t>(kNumbers + w * 4) = -1;
    work_of<0>().number = work_of<1>().number = -1;
    phase_init(kFullV, 1);
    phase_init(kEmptyV, kWarps);
    for (uint32_t s = 0; s < 2; ++s) {
      phase_init(kFullK + 8 * s, 1);
      phase_init(kEmptyK + 8 * s, kWarps);
      phase_init(kFullW + 8 * s, 1);
      phase_init(kEmptyW + 8 * s, kWarps + 1 + readers); // who loads hands out
    }
    for (uint32_t s = 0; s < kStages; ++s) {
      phase_init(kFullQ + 8 * s, 2);
      phase_init(kFullO + 8 * s, 1);
      phase_init(kEmpty + 8 * s, kWarps);
    }
  }

  // The warps that do not multiply. What earlier kernels of the run made, units of work, stats and cleared sums, is
  // behind what they wait for; tensors were there before the first of these kernels began.
  template <bool kOrdered>
  TSRI_DEVICE_MEMBER void feed(const Args &args) {
    const int warp = thread_index() / 32 - kWarps;
    int32_t n = 0;
    release_later();
    wait_for_earlier();
    if (warp == 0) {
      // The first one too: others may wait for what becomes of it, and the block may come late.
      int32_t unit = next_unit(args.backward.order);
      while (hand_out(args.backward.order, unit)) {
        if (thread_index() % 32 == 0) n = load_tiles<kOrdered>(args, n);
        unit = next_unit(args.backward.order); // late, so that no block holds what another could begin
      }
    } else if (warp == 1) {
      while (copy_work()) n = load_stats<kOrdered>(args, n);
    }
  }

  TSRI_DEVICE_MEMBER int32_t next_unit(const KeyOrder &order) {
    uint32_t taken = 0;
    if (thread_index() % 32 == 0) taken = static_cast<uint32_t>(increment_word(order.next));
    return static_cast<int32_t>(shuffle(taken, 0));
  }

  // The unit, or what follows it if it is none, becomes the block's next one; false: there is none left, of which
  // the others are told too. By the warp that loads.
  TSRI_DEVICE_MEMBER bool hand_out(const KeyOrder &order, int32_t unit) {
    const int lane = fresh_thread_index() % 32; // not what is known of it before: registers
    const bool has = lane < static_cast<int>(kWorkBytes / 16);
    Chunk part = {{0xffffffffu, 0, 0, 0}};
    TSRI_NO_UNROLL
    while (unit < order.units) {
      if (has) part = reinterpret_cast<const Chunk *>(order.work + unit)[lane];
      if (static_cast<int32_t>(shuffle(part.w[0], 0)) >= 0) break;
      if (order.sums.pieces && lane == 0) increment_word(order.sums.added + order.work[unit].set);
      unit = next_unit(order);
    }
    const int32_t u = work_of<0>().number + 1;
    sync_wave(); // all lanes have read the number, which the copy replaces
    phase_wait(kEmptyW + 8 * slot_of(u), parity_of(u) ^ 1);
    if (has) {
      const uint32_t at = static_cast<uint32_t>(lane) * 16;
      shared_at<Chunk>(kWork + slot_of(u) * kWorkBytes + at) = part;
      shared_at<Chunk>(kWork + 2 * kWorkBytes + at) = part;
    }
    sync_wave();
    if (lane == 0) {
      work_of<0>().number = u;
      phase_arrive(kFullW + 8 * slot_of(u));
    }
    sync_wave();
    return work_of<0>().b >= 0;
  }

  // The block's next unit becomes that of the warp that fetches stats; false: there is none.
  TSRI_DEVICE_MEMBER bool copy_work() {
    const int lane = fresh_thread_index() % 32;
    const int32_t u = work_of<1>().number + 1;
    phase_wait(kFullW + 8 * slot_of(u), parity_of(u));
    if (handed_out(u).b < 0) return false;
    sync_wave(); // all lanes have read the number and are done with the unit before
    if (lane < static_cast<int>(kWorkBytes / 16)) {
      const uint32_t at = static_cast<uint32_t>(lane) * 16;
      shared_at<Chunk>(kWork + 3 * kWorkBytes + at) = shared_at<Chunk>(kWork + slot_of(u) * kWorkBytes + at);
    }
    sync_wave();
    if (lane == 0) {
      work_of<1>().number = u;
      phase_arrive(kEmptyW + 8 * slot_of(u));
    }
    sync_wave();
    return true;
  }

  // The block's next unit becomes that of the calling warp, which multiplies; false: there is none.
  TSRI_DEVICE_MEMBER bool take_work() {
    const int32_t u = number() + 1;
    phase_wait(kFullW + 8 * slot_of(u), parity_of(u));
    if (handed_out(u).b < 0) return false;
    sync_wave(); // all lanes have read the number
    if (fresh_thread_index() % 32 == 0) number() = u;
    sync_wave();
    return true;
  }
  TSRI_DEVICE_MEMBER void leave_work() { arrive_warp(kEmptyW + 8 * slot_of(number())); }
};

} // namespace gpu
} // namespace tessera

#endif // TESSERA_BACKENDS_CUDA_SM90_BACKWARD_KEYS_HPP_
