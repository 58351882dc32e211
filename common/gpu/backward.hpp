// SPDX-License-Identifier: Apache-2.0
//
// Backward, keys outermost: one block owns a tile of keys, keeps dK and dV of it in registers and walks
// over the queries that may see it, of all heads of the KV group (Dao 2023, "FlashAttention-2",
// algorithm 2). Scores are transposed, free = key and con = query:
//
//   S^T = K Q^T    P = 2^(unit S - LSE2)    dP^T = V dO^T    dS = P (dP - delta)
//   dV += P^T dO   dK += dS^T Q             dQ += dS K, added into float sums shared by all blocks
//
// Five products per pair of tiles. dS goes through shared memory, because the waves that make it (keys x
// queries) are not those that use it for dQ (queries x columns); that product is made one tile later, so
// that one barrier per tile is enough. Where several waves share keys (kOtherWaves > 1) they exchange P
// and dS through shared memory too, with a barrier among themselves. Without dq_sum the last product is
// left out: then BackwardQ makes dQ, and nothing depends on the order of additions.
#ifndef TESSERA_COMMON_GPU_BACKWARD_HPP_
#define TESSERA_COMMON_GPU_BACKWARD_HPP_

#include <type_traits>

#include "common/gpu/arguments.hpp"
#include "common/gpu/backward_beside.hpp"
#include "common/gpu/backward_staged.hpp"
#include "common/gpu/epilogue.hpp"
#include "common/gpu/gradient.hpp"
#include "common/gpu/row_policy.hpp"
#include "common/gpu/score.hpp"
#include "common/gpu/turned.hpp"
#include "common/gpu/tile.hpp"
#include "common/gpu/work.hpp"

namespace tessera {
namespace gpu {

// kKeyWaves x kOtherWaves waves: over keys and queries while scores are made, over keys and columns for
// dK and dV; kQueryWaves of them over queries, the rest over columns, for dQ. kChunkQk, kChunkV:
// columns of dQ and dK, and of dV, that a block makes. Wide: what else BackwardWide keeps in shared memory.
template <class Unit, int kTileQ_, int kTileK_, int kDqk, int kDv, int kChunkQk, int kChunkV,
          int kKeyWaves, int kOtherWaves, int kQueryWaves, int kStages, bool kAny, class Wide = NoNumbers>
struct Backward {
  // The accumulators leave no registers for offsets, unless waves exchange nothing.
  static constexpr bool kKeepsOffsets = kOtherWaves == 1 && !kAny && !Unit::kStaged && !Unit::kSplits;
  using U = typename std::conditional<kKeepsOffsets, Unit, typename Unit::Fresh>::type;
  using E = typename U::Element;
  using Args = BackwardArgs;
  static constexpr int kTileQ = kTileQ_, kTileK = kTileK_;
  static constexpr int kWaves = kKeyWaves * kOtherWaves;
  static constexpr int kThreads = kWaves * U::kWave;
  static constexpr int kColumnWaves = kWaves / kQueryWaves;
  static constexpr int kFree = kTileK / (kKeyWaves * U::kFree); // key accumulators of a wave
  static constexpr int kCon = kTileQ / (kOtherWaves * U::kCon); // query accumulators of its scores
  static constexpr int kOutK = kChunkQk / (kOtherWaves * 16);   // column accumulators of dK
  static constexpr int kOutV = kChunkV / (kOtherWaves * 16);    // and of dV
  static constexpr int kFreeQ = kTileQ / (kQueryWaves * U::kFree);
  static constexpr int kOutQ = kChunkQk / (kColumnWaves * 16);
  // A wave that has all columns of its keys uses the P and dS it made from registers.
  static constexpr bool kDirect = kOtherWaves == 1;
  static constexpr int kSharers = kOtherWaves; // waves that exchange what they make of their keys
  // Turned: operands of one query tile, made from copies that land in a stage of plain rows.
  static constexpr bool kTurned = Operands<U>::kTurned;
  // See backward_beside.hpp.
  static constexpr bool kBeside = !kAny && !U::kStaged && !U::kSplits && kStages == 2 && kChunkQk == kDqk &&
                                  LaneCopies<Tile<E, kTileQ, kDqk>, kThreads>::kRegular &&
                                  LaneCopies<Tile<E, kTileQ, kDv>, kThreads>::kRegular;
  template <int kRows, int kColumns>
  using In = typename Operands<U>::template In<kRows, kColumns>;
  using TileK = In<kTileK, kDqk>;
  using TileV = In<kTileK, kDv>;
  using TileQ = In<kTileQ, kDqk>;
  using TileO = In<kTileQ, kDv>;
  using TileP = In<kTileK, kTileQ>;
  using CopyQ = typename Operands<U>::template Copy<TileQ>;
  using CopyO = typename Operands<U>::template Copy<TileO>;
  using OutK = Tile<E, kTileK, kChunkQk>;
  using OutV = Tile<E, kTileK, kChunkV>;

  static constexpr bool kWide = !std::is_same<Wide, NoNumbers>::value;
  struct Shared : std::conditional<kBeside, BesideNumbers, Wide>::type {
    tsri_sequence sequence;
    tsri_mask_rule rule;
    Place place;
    RowSource q, dout; // of the current query head
    ScoreTerms terms;  // likewise
    int64_t stats;     // row of stats of the sequence's query 0, current head
    int64_t sum_row[2]; // of query tiles whose dS waits for its product: row (or tile) of dq_sum, and
    int32_t sum_rows[2]; // how many of its queries are used
    int32_t begin, count; // query tiles that see the keys
  };
  static constexpr uint32_t kStats = ceil_div(sizeof(Shared), 16) * 16;
  static constexpr uint32_t kWeights = kStats + kStages * kTileQ * sizeof(RowStat); // turned: of the rows
  static constexpr uint32_t kK = ceil_div(kWeights + (kTurned ? kTileQ * 4 : 0), 1024) * 1024;
  static constexpr uint32_t kV = kWide ? kK : kK + TileK::kBytes;
  static constexpr uint32_t kQ = kV + TileV::kBytes;
  static constexpr int kTiles = kTurned ? 1 : kStages; // query tiles that are operands at once
  static constexpr uint32_t kO = kWide ? kQ : kQ + kTiles * TileQ::kBytes;
  static constexpr uint32_t kP = kO + kTiles * TileO::kBytes;
  static constexpr uint32_t kS = kP + (kDirect ? 0 : TileP::kBytes);
  static constexpr uint32_t kCopyQ = kS + (kTurned || kWide ? 1 : 2) * TileP::kBytes;
  static constexpr uint32_t kCopyO = kCopyQ + (kTurned ? CopyQ::kBytes : 0);
  static constexpr uint32_t kLanes = kCopyO + (kTurned ? CopyO::kBytes : 0); // see BesideSteps
  static constexpr uint32_t kEnd = kLanes + (kBeside ? kThreads * 16 : 0);
  static constexpr uint32_t kSharedBytes = max_of(kEnd, kK + max_of(OutK::kBytes, OutV::kBytes));
  static constexpr int kMinBlocks = kThreads <= 128 && kSharedBytes <= 113 * 1024 ? 2 : 1;
  static_assert(kFree >= 1 && kCon >= 1 && kOutK >= 1 && kOutV >= 1 && kFreeQ >= 1 && kOutQ >= 1,
                "every wave has whole accumulators in every product");
  // A wave's columns begin where the swizzle of its lanes' offsets has nothing to carry.
  static constexpr bool columns_align(int tiles) {
    return (tiles & (tiles - 1)) == 0 || tiles * 16 * static_cast<int>(sizeof(E)) % 128 == 0;
  }
  static_assert(columns_align(kOutK) && columns_align(kOutV) && columns_align(kOutQ),
                "column tiles of a wave are a power of two or whole swizzles");
  static constexpr int kSize = TileK::kPlanes > 1 ? 2 : static_cast<int>(sizeof(E)); // bytes of an operand
  static_assert(kChunkQk * kSize % 128 == 0 || kChunkQk == kDqk, "chunks begin at a swizzle");
  static_assert(kChunkV * kSize % 128 == 0 || kChunkV == kDv, "chunks begin at a swizzle");
  static_assert((kChunkQk == kDqk) == (kChunkV == kDv), "one chunk of both, or chunks are counted");

  // Scores of a wave are made a few query accumulators at a time, as many as registers allow beside dK
  // and dV.
  static constexpr int kGroup =
      kCon % 2 == 0 && kFree * kCon * U::kElements > (kTurned ? 16 : 32) ? kCon / 2 : kCon;
  using Scores = typename U::Acc[kFree][kGroup];
  using Steps = BesideSteps<Backward, U>;

  TSRI_DEVICE_MEMBER int wave() { return fresh_thread_index() / U::kWave; }
  TSRI_DEVICE_MEMBER int key_row() { return wave() / kOtherWaves * kFree * U::kFree; }
  TSRI_DEVICE_MEMBER int query_row() { return wave() % kOtherWaves * kCon * U::kCon; }

  // acc[key][query] = X Y^T over kDepth steps, X of keys (free), Y of queries (con).
  // From query row `row` of the tile on.
  template <int kDepth, class TX, class TY, class Beside = NothingBeside>
  TSRI_DEVICE_MEMBER void multiply(Scores &acc, uint32_t x, uint32_t y, int row, const Beside &beside = Beside()) {
    const uint32_t x_offset = U::template free_offset<TX::kRowBytes>(x) + key_row() * TX::kRowBytes;
    const uint32_t y_offset =
        U::template con_offset<TY::kRowBytes>(y) + row * TY::kRowBytes;
    const typename U::Free none[kFree][1] = {};
    score_product<U, TY, TX, kDepth, false, true>(acc, y_offset, x_offset, none, beside);
  }

  // Scores and dP become P (after dropout) and dS. kEdge: the interval rule cuts into the tile.
  template <bool kEdge>
  TSRI_DEVICE_MEMBER void differentiate(Scores &s, Scores &dp, uint32_t stats, float unit,
                                        int32_t prefix, int32_t key0, int32_t i0, int row,
                                        const Args &args, const Shared &shared) {
    TSRI_UNROLL
    for (int c = 0; c < kGroup; ++c)
      TSRI_UNROLL
      for (int e = 0; e < U::kElements; ++e) {
        if (U::slot(e) != 0) continue; // each query once, then both slots of keys
        const int q = row + c * U::kCon + U::con_lane() + U::con_element(e);
        const RowStat stat = shared_at<RowStat>(stats + static_cast<uint32_t>(q) * 16);
        // From global memory with an address each, where registers allow it.
        const float weight =
            kTurned ? shared_at<float>(kWeights + static_cast<uint32_t>(q) * 4)
                    : weight_of<Weighs<E, kAny>::value>(args, shared.stats, i0 + q, shared.rule.sq);
        TSRI_UNROLL
        for (int f = 0; f < kFree; ++f)
          TSRI_UNROLL
          for (int slot = 0; slot < U::kRows; ++slot) {
            const int other = U::beside(e, slot);
            const int32_t j = key0 + key_row() + f * U::kFree + U::free_of(slot);
            float &x = s[f][c].x[other], &y = dp[f][c].x[other];
            differentiate_one<kAny, kEdge, Weighs<E, kAny>::value>(
                x, y, stat, weight, unit, prefix, i0 + q, j, shared.terms, args.call.keep_scale);
          }
      }
  }

  // An accumulator tile [key][query] as elements in shared memory.
  TSRI_DEVICE_MEMBER void store_scores(uint32_t tile, const Scores &s, int row) {
    constexpr int size = static_cast<int>(sizeof(E));
    TSRI_UNROLL
    for (int f = 0; f < kFree; ++f)
      TSRI_UNROLL
      for (int c = 0; c < kGroup; ++c)
        TSRI_UNROLL
        for (int e = 0; e < U::kElements; e += 2) {
          const int r = key_row() + f * U::kFree + U::free_of(U::slot(e));
          const int bytes = (row + c * U::kCon + U::con_lane() + U::con_element(e)) * size;
          if constexpr (kTurned)
            U::template store_pair<TileP>(tile, r, bytes / size, s[f][c].x[e], s[f][c].x[e + 1]);
          else
            shared_pair<E>(tile + TileP::at(r, bytes / 16) + static_cast<uint32_t>(bytes % 16),
                           s[f][c].x[e], s[f][c].x[e + 1]);
        }
  }

  // The same with P^T from registers: queries from `row` of the tile on.
  template <int kOut, class TZ, class Beside = NothingBeside>
  TSRI_DEVICE_MEMBER void accumulate_direct(typename U::Acc (&out)[kFree][kOut], const Scores &s,
                                            uint32_t z, int row, const Beside &beside = Beside()) {
    constexpr int steps = U::kCon / U::kApplyStep;
    apply_product<U, TZ, kGroup * steps, false>(
        out, U::template z_offset<TZ::kRowBytes>(z + static_cast<uint32_t>(row * TZ::kRowBytes)),
        [&s](typename U::P(&a)[kFree], int step) {
          TSRI_UNROLL
          for (int f = 0; f < kFree; ++f) U::to_operand(a[f], s[f][step / steps], step % steps);
        },
        beside);
  }

  // out[key][column] += P^T Z, Z of queries.
  template <int kOut, class TZ, class Beside = NothingBeside>
  TSRI_DEVICE_MEMBER void accumulate(typename U::Acc (&out)[kFree][kOut], uint32_t p, uint32_t z,
                                     const Beside &beside = Beside()) {
    const uint32_t p_offset =
        U::template apply_offset<TileP::kRowBytes>(p) + key_row() * TileP::kRowBytes;
    const typename U::ZOffset z_offset =
        U::template z_offset<TZ::kRowBytes>(z, wave() % kOtherWaves * kOut);
    apply_product<U, TZ, kTileQ / U::kApplyStep, true>(
        out, z_offset, [p_offset](typename U::P(&a)[kFree], int step) {
          TSRI_UNROLL
          for (int f = 0; f < kFree; ++f)
            U::template load_apply<TileP::kRowBytes>(a[f], p_offset, f * U::kFree, step);
        },
        beside);
  }

  // dq_sum += dS K for the tile's queries. rows: of queries that are used.
  TSRI_DEVICE_MEMBER void add_queries(float *sum, uint32_t s_tile, int rows,
                                      uint32_t column_bytes) {
    typename U::Acc out[kFreeQ][kOutQ];
    const int row = wave() / kColumnWaves * kFreeQ * U::kFree;
    const int tile = wave() % kColumnWaves * kOutQ;
    const typename U::ApplyTOffset s_offset =
        U::template apply_transposed_offset<TileP::kRowBytes>(s_tile, row);
    const typename U::ZOffset k_offset =
        U::template z_offset<TileK::kRowBytes>(kK + column_bytes, tile);
    clear<U>(out);
    apply_product<U, TileK, kTileK / U::kApplyStep, true>(
        out, k_offset, [s_offset](typename U::P(&a)[kFreeQ], int step) {
          TSRI_UNROLL
          for (int f = 0; f < kFreeQ; ++f)
            U::template load_apply_transposed<TileP::kRowBytes>(a[f], s_offset, f * U::kFree, step);
        });
    // Rows of sums have a constant length, so that one address serves all additions of a lane: the
    // addition reads its address late, and a second one in the same register would wait for it.
    float *const to = sum + (row + U::free_of(0)) * kChunkQk + tile * 16 + U::con_lane();
    TSRI_UNROLL
    for (int f = 0; f < kFreeQ; ++f)
      TSRI_UNROLL
      for (int slot = 0; slot < U::kRows; ++slot) {
        const int down = f * U::kFree + U::free_of(slot) - U::free_of(0);
        if (row + U::free_of(0) + down >= rows) continue;
        TSRI_UNROLL
        for (int o = 0; o < kOutQ; ++o)
          TSRI_UNROLL
          for (int e = 0; e < U::kElements; e += 2)
            if (U::slot(e) == slot)
              atomic_add_pair(to + down * kChunkQk + o * U::kCon + U::con_element(e),
                              out[f][o].x[e], out[f][o].x[e + 1]);
      }
  }

  // Copies of query tile i0 of the current head into a stage.
  TSRI_DEVICE_MEMBER void load_queries(const Args &args, const Shared &shared, int stage, int32_t i0) {
    load_tile<E, CopyQ, kThreads, kAny, false>(
        kTurned ? kCopyQ : kQ + static_cast<uint32_t>(stage) * TileQ::kBytes, shared.q, i0, 0,
        fresh_thread_index());
    load_tile<E, CopyO, kThreads, kAny, false>(
        kTurned ? kCopyO : kO + static_cast<uint32_t>(stage) * TileO::kBytes, shared.dout, i0, 0,
        fresh_thread_index());
    load_stats<kTileQ, kThreads>(kStats + stage * kTileQ * static_cast<uint32_t>(sizeof(RowStat)),
                                 args.stats + shared.stats, i0,
                                 static_cast<int32_t>(shared.sequence.q.len));
  }

  // Thread 0 points the shared state at a query head.
  TSRI_DEVICE_MEMBER void take_head(const Args &args, Shared &shared, uint32_t h) {
    const tsr_problem &p = args.call.p;
    const int64_t b = shared.place.b;
    shared.q = row_source<E>(args.call.a.q, p.q, shared.sequence.q, b, h, p.dim_qk,
                             args.call.vector & kVectorQ);
    shared.dout = row_source<E>(args.call.a.dout, p.dout, shared.sequence.q, b, h, p.dim_v,
                                args.call.vector & kVectorDout);
    shared.stats = stat_row(p, args.call.a, shared.sequence.q, b, h);
    if constexpr (kBeside) {
      const SumTiles tiles = sum_tiles(p, args.call.a, kTileQ, shared.sequence.q.slot_begin, b);
      shared.sums = static_cast<int32_t>(tiles.first + h * tiles.head);
    }
    if (kAny) shared.terms = score_terms(args.call, shared.sequence, b, h);
  }

  TSRI_DEVICE_MEMBER void block(const Args &args) { block_of<Backward>(args); }

  struct BlockWork {
    uint32_t g;
    int chunk;
    int32_t row0, key0; // first row of the slot, and its used row: negative before the left padding ends
  };
  // What the block does, with the shared state at the group's first query head; false: nothing.
  TSRI_DEVICE_MEMBER bool find_work(const Args &args, Shared &shared, BlockWork &work) {
    const tsr_problem &p = args.call.p;
    const tsr_args &a = args.call.a;
    uint32_t n = block_index();
    const uint32_t tile = n % static_cast<uint32_t>(args.tiles);
    n /= static_cast<uint32_t>(args.tiles);
    work.chunk = static_cast<int>(n % static_cast<uint32_t>(args.chunks));
    n /= static_cast<uint32_t>(args.chunks);
    work.g = n % static_cast<uint32_t>(p.heads_kv);
    if (wave() == 0) {
      Place place = {n / static_cast<uint32_t>(p.heads_kv), static_cast<int32_t>(tile)};
      if (a.cu_k)
        place = find_packed(a.cu_k, p.index_dtype, p.total_k, p.batch, kTileK, tile, U::kWave);
      if (thread_index() == 0) {
        shared.place = place;
        if (place.b >= 0) {
          shared.sequence = tsri_sequence_of(&p, &a, place.b);
          shared.rule = tsri_sequence_rule(&p, &shared.sequence);
          take_head(args, shared, work.g * static_cast<uint32_t>(args.call.group));
        }
      }
    }
    sync_block();
    if (shared.place.b < 0) return false;
    work.row0 = shared.place.tile * kTileK;
    if (work.row0 >= static_cast<int32_t>(shared.sequence.k.slot_len)) return false;
    work.key0 = work.row0 - static_cast<int32_t>(shared.sequence.k.begin - shared.sequence.k.slot_begin);
    return true;
  }

  // Program: whose walk it is.
  template <class Program>
  TSRI_DEVICE_MEMBER void block_of(const Args &args) {
    const tsr_problem &p = args.call.p;
    const tsr_args &a = args.call.a;
    Shared &shared = shared_at<Shared>(0);
    BlockWork work;
    if (!find_work(args, shared, work)) return;
    const uint32_t g = work.g;
    const int chunk = work.chunk;
    const int32_t row0 = work.row0, key0 = work.key0;
    typename U::Acc dk[kFree][kOutK], dv[kFree][kOutV];
    clear<U>(dk);
    clear<U>(dv);
    Program::walk(args, shared, g, chunk, key0, dk, dv);
    copy_wait<0>();
    sync_block(); // the tiles' memory becomes the outputs'
    const int32_t rows = static_cast<int32_t>(shared.sequence.k.slot_len) - row0;
    const int64_t row = shared.sequence.k.slot_begin + row0;
    const int32_t sk = static_cast<int32_t>(shared.sequence.k.len);
    store_gradient<U, OutK, kThreads, kFree, kOutK, kAny, kWide>(
        dk, p.scale, -key0, sk - key0, kK, key_row(), wave() % kOtherWaves * kOutK * 16, p.dk, a.dk,
        args.call.vector & kVectorDk, p.accumulate & TSR_ACCUMULATE_DK, shared.place.b, g, row, rows,
        chunk * kChunkQk, static_cast<int>(p.dim_qk));
    sync_block();
    store_gradient<U, OutV, kThreads, kFree, kOutV, kAny, kWide>(
        dv, p.dropout > 0 ? args.call.keep_scale : 1.0f, -key0, sk - key0, kK, key_row(),
        wave() % kOtherWaves * kOutV * 16, p.dv, a.dv, args.call.vector & kVectorDv,
        p.accumulate & TSR_ACCUMULATE_DV, shared.place.b, g, row, rows, chunk * kChunkV,
        static_cast<int>(p.dim_v));
  }

  // Starts loading keys or values, which stay; turned ones are split in place of waiting.
  template <class T>
  TSRI_DEVICE_MEMBER void load_keys(uint32_t to, const RowSource &from, int32_t key0) {
    if constexpr (kTurned) {
      using Copy = typename Operands<U>::template Copy<T>; // over what is used later
      static_assert(kEnd >= kQ + Copy::kBytes, "room for plain rows");
      load_tile<E, Copy, kThreads, kAny>(kQ, from, key0, 0);
      copy_commit();
      copy_wait<0>();
      turn_tile<U, T, kThreads>(kQ, to, thread_index());
      sync_block();
    } else {
      load_tile<E, T, kThreads, kAny>(to, from, key0, 0);
    }
  }

  // K and V of the block.
  TSRI_DEVICE_MEMBER void load_both(const Args &args, const Shared &shared, uint32_t g, int32_t key0) {
    const tsr_problem &p = args.call.p;
    const tsri_pages pages = tsri_pages_of(&p, &args.call.a);
    load_keys<TileK>(kK,
                     kv_source<E>(args.call.a.k, p.k, shared.sequence.k, pages, shared.place.b, g,
                                  p.dim_qk, args.call.vector & kVectorK),
                     key0);
    load_keys<TileV>(kV,
                     kv_source<E>(args.call.a.v, p.v, shared.sequence.k, pages, shared.place.b, g,
                                  p.dim_v, args.call.vector & kVectorV),
                     key0);
  }

  // The query tiles that see keys of the block; false: none does.
  TSRI_DEVICE_MEMBER bool find_queries(const Shared &shared, int32_t key0, int32_t &begin, int32_t &end) {
    const int32_t sk = static_cast<int32_t>(shared.rule.sk);
    const int32_t first_key = larger(key0, 0), end_key = smaller(key0 + kTileK, sk);
    int64_t from = 0, to = 0;
    if (first_key < end_key)
      tsri_mask_queries_of(&shared.rule, first_key, end_key, &from, &to);
    begin = static_cast<int32_t>(from) / kTileQ;
    end = to > from ? ceil_div(static_cast<int32_t>(to), kTileQ) : begin;
    return begin < end;
  }

  // All query tiles of all heads of the group.
  TSRI_DEVICE_MEMBER void walk(const Args &args, Shared &shared, uint32_t g, int chunk, int32_t key0,
                               typename U::Acc (&dk)[kFree][kOutK],
                               typename U::Acc (&dv)[kFree][kOutV]) {
    int32_t begin, end;
    if (!find_queries(shared, key0, begin, end)) return;
    load_both(args, shared, g, key0);
    if constexpr (kBeside)
      if constexpr (Steps::kWalks) return Steps::walk(args, shared, g, key0, begin, end, dk, dv);
    load_queries(args, shared, 0, begin * kTileQ);
    copy_commit();
    if (thread_index() == 0) {
      shared.begin = begin;
      shared.count = end - begin;
    }
    const int32_t total = (end - begin) * args.call.group;
    TSRI_NO_UNROLL
    for (int32_t n = 0; n < total; ++n) {
      copy_wait<0>();
      sync_block(); // this tile has arrived; everybody is done with the one before
      if constexpr (kTurned) make_operands(args, shared, n, chunk);
      // Head and tile follow from n: only one number is kept in a register across the products.
      const int32_t count = shared.count;
      const int32_t i0 = (shared.begin + n % count) * kTileQ;
      const int32_t head = (n + 1) / count, t = (n + 1) % count; // of the next tile
      const bool last = t == 0;
      const int stage = kStages > 1 ? n % kStages : 0;
      if (thread_index() == 0) {
        shared.sum_row[n % 2] = shared.stats + i0;
        if constexpr (kBeside) shared.sum_row[n % 2] = shared.sums + i0 / kTileQ;
        shared.sum_rows[n % 2] = static_cast<int32_t>(shared.rule.sq) - i0;
      }
      // The next tile may be of the next head. Its terms and its row of stats would replace this head's,
      // which the scores still need where there are terms or weights: there the head changes after them.
      const bool late = (Weighs<E, kAny>::value && last) || kStages == 1;
      if (!late && n + 1 < total) {
        if (last) {
          if (thread_index() == 0)
            take_head(args, shared, g * static_cast<uint32_t>(args.call.group) + head);
          sync_block();
        }
        load_queries(args, shared, (n + 1) % kStages, (shared.begin + t) * kTileQ);
        copy_commit();
      }
      if constexpr (kTurned) sync_block(); // operands are made, dS of the tile before has been used
      make_keys(args, shared, stage, n % 2, chunk, key0, i0, dk, dv);
      if (!kTurned && n > 0) make_queries(args, shared, (n - 1) % 2, chunk);
      if (late && n + 1 < total) {
        sync_block(); // the scores are made, the stage has been read by all
        const int32_t again = shared.count;
        if ((n + 1) % again == 0) {
          if (thread_index() == 0)
            take_head(args, shared,
                      g * static_cast<uint32_t>(args.call.group) + (n + 1) / again);
          sync_block();
        }
        load_queries(args, shared, (n + 1) % kStages, (shared.begin + (n + 1) % again) * kTileQ);
        copy_commit();
      }
    }
    sync_block();
    make_queries(args, shared, (total - 1) % 2, chunk);
  }

  // Turned: query tile n from its copies, and dQ of the tile before, whose dS is complete.
  TSRI_DEVICE_MEMBER void make_operands(const Args &args, const Shared &shared, int32_t n, int chunk) {
    const int row = fresh_thread_index();
    float weight = 1.0f;
    if (row < kTileQ)
      weight = weight_of<Weighs<E, kAny>::value>(
          args, shared.stats, (shared.begin + n % shared.count) * kTileQ + row, shared.rule.sq);
    if (n > 0) make_queries(args, shared, (n - 1) % 2, chunk);
    turn_tile<U, TileQ, kThreads>(kCopyQ, kQ, fresh_thread_index());
    turn_tile<U, TileO, kThreads>(kCopyO, kO, fresh_thread_index());
    if (row < kTileQ) shared_at<float>(kWeights + static_cast<uint32_t>(row) * 4) = weight;
  }

  // dQ of a tile whose dS is complete in buffer `slot`.
  TSRI_DEVICE_MEMBER void make_queries(const Args &args, const Shared &shared, int slot, int chunk) {
    const uint32_t k_bytes = static_cast<uint32_t>(chunk * kChunkQk) * kSize;
    if constexpr (kBeside) return Steps::add_sum(args, shared, slot);
    if (args.dq_sum && (kChunkQk == kDqk || chunk < args.dq_chunks))
      add_queries(args.dq_sum +
                      (chunk * query_rows(args.call.p, args.call.a) + shared.sum_row[slot]) * kChunkQk,
                  kS + (kTurned ? 0 : slot) * TileP::kBytes, shared.sum_rows[slot], k_bytes);
  }

  // dK and dV from one query tile; its dS is left in buffer `slot`.
  TSRI_DEVICE_MEMBER void make_keys(const Args &args, const Shared &shared, int stage, int slot,
                                    int chunk, int32_t key0, int32_t i0,
                                    typename U::Acc (&dk)[kFree][kOutK],
                                    typename U::Acc (&dv)[kFree][kOutV]) {
    const uint32_t stats = kStats + stage * kTileQ * static_cast<uint32_t>(sizeof(RowStat));
    const uint32_t q_tile = kQ + (kTurned ? 0 : stage) * TileQ::kBytes;
    const uint32_t o_tile = kO + (kTurned ? 0 : stage) * TileO::kBytes;
    const uint32_t s_tile = kS + (kTurned ? 0 : slot) * TileP::kBytes;
    const uint32_t v_bytes = static_cast<uint32_t>(chunk * kChunkV) * kSize;
    const uint32_t k_bytes = static_cast<uint32_t>(chunk * kChunkQk) * kSize;
    // Read here: a register kept across the products of the loop is one too many.
    const int32_t prefix = kAny ? static_cast<int32_t>(shared.rule.prefix) : 0;
    const int32_t sq = static_cast<int32_t>(shared.rule.sq);
    const int32_t sk = static_cast<int32_t>(shared.rule.sk);
    const float unit = args.call.p.scale * Weighs<E, kAny>::base; // not of kAny
    const int32_t j0 = key0 + key_row(), j1 = j0 + kFree * U::kFree;
    TSRI_NO_UNROLL // unrolled, the groups' loads move together and registers run out
    for (int group = 0; group < kCon / kGroup; ++group) {
      Scores s, dp;
      const int row = query_row() + group * kGroup * U::kCon;
      const int last = smaller(sq - i0, row + kGroup * U::kCon);
      int tile_class = TSRI_TILE_SKIP;
      if (row < last && j1 > 0 && j0 < sk)
        tile_class = uniform(stats_class(stats, row, last, prefix, larger(j0, 0), j1));
      if (tile_class != TSRI_TILE_SKIP) {
        multiply<kDqk / U::kStep, TileK, TileQ>(s, kK, q_tile, row);
        multiply<kDv / U::kStep, TileV, TileO>(dp, kV, o_tile, row);
        // Zeros beyond the last query have p = 1, which makes NaN of what is not finite.
        if (kAny || tile_class == TSRI_TILE_EDGE || j0 < 0 || last < row + kGroup * U::kCon)
          differentiate<true>(s, dp, stats, unit, prefix, key0, i0, row, args, shared);
        else
          differentiate<false>(s, dp, stats, unit, prefix, key0, i0, row, args, shared);
        if (kDirect) {
          if (kChunkV == kDv || chunk * kChunkV < args.call.p.dim_v)
            accumulate_direct<kOutV, TileO>(dv, s, o_tile + v_bytes, row);
          if (kTurned) sync_wave(); // keeps the loads of one product out of the other, where registers end
          if (kChunkQk == kDqk || chunk * kChunkQk < args.call.p.dim_qk)
            accumulate_direct<kOutK, TileQ>(dk, dp, q_tile + k_bytes, row);
        }
      } else {
        clear<U>(s);
        clear<U>(dp);
      }
      if (!kDirect) store_scores(kP, s, row);
      if (!kDirect || args.dq_sum) store_scores(s_tile, dp, row);
    }
    if (kDirect) return;
    sync_group(1 + wave() / kOtherWaves, kOtherWaves * U::kWave);
    if (kChunkV == kDv || chunk * kChunkV < args.call.p.dim_v)
      accumulate<kOutV, TileO>(dv, kP, o_tile + v_bytes);
    if (kChunkQk == kDqk || chunk * kChunkQk < args.call.p.dim_qk)
      accumulate<kOutK, TileQ>(dk, s_tile, q_tile + k_bytes);
  }
};

// The program of a row that makes dK, dV and the sums of dQ.
template <bool kStaged, class U, int kTileQ, int kTileK, int kDqk, int kDv, int kChunkQk, int kChunkV, int kKeyWaves,
          int kOtherWaves, int kQueryWaves, int kStages, bool kAny>
struct BackwardMainOf : std::enable_if<true, Backward<U, kTileQ, kTileK, kDqk, kDv, kChunkQk, kChunkV, kKeyWaves,
                                                      kOtherWaves, kQueryWaves, kStages, kAny>> {};
template <class U, int kTileQ, int kTileK, int kDqk, int kDv, int kChunkQk, int kChunkV, int kWaves, int kQueryWaves,
          int kStages, bool kAny>
struct BackwardMainOf<true, U, kTileQ, kTileK, kDqk, kDv, kChunkQk, kChunkV, kWaves, 1, kQueryWaves, kStages, kAny>
    : std::enable_if<true, BackwardStaged<U, kTileQ, kTileK, kDqk, kDv, kChunkQk, kChunkV, kWaves, kQueryWaves,
                                          kAny>> {};
template <bool kStaged, class U, int kTileQ, int kTileK, int kDqk, int kDv, int kChunkQk, int kChunkV, int kKeyWaves,
          int kOtherWaves, int kQueryWaves, int kStages, bool kAny>
using BackwardMain = typename BackwardMainOf<kStaged, U, kTileQ, kTileK, kDqk, kDv, kChunkQk, kChunkV, kKeyWaves,
                                             kOtherWaves, kQueryWaves, kStages, kAny>::type;

} // namespace gpu
} // namespace tessera

#endif // TESSERA_COMMON_GPU_BACKWARD_HPP_
