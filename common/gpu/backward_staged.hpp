// SPDX-License-Identifier: Apache-2.0
//
// Backward with keys outermost, as in backward.hpp, for devices whose copies to shared memory go through
// registers (U::kStaged) and whose matrix units read along the contracted index only. Every wave owns keys and
// all columns of its chunk; P and dS go from registers into the products of dV and dK. What else differs:
//   - the operands of K, which no query tile changes, stay in registers where they fit (kKeep);
//   - Q and dO are in shared memory twice, as rows and turned (U::ZTile), instead of being read as columns;
//   - dS is stored with queries as rows, and dQ is made of it after the next barrier;
//   - loads of the next query tile are under way meanwhile. Runs of query tiles that see all keys of the block
//     have a loop of their own, without masks and without a look at where the sequence ends.
#ifndef TESSERA_COMMON_GPU_BACKWARD_STAGED_HPP_
#define TESSERA_COMMON_GPU_BACKWARD_STAGED_HPP_

#include "common/gpu/arguments.hpp"
#include "common/gpu/backward_stages.hpp"
#include "common/gpu/epilogue.hpp"
#include "common/gpu/gradient.hpp"
#include "common/gpu/row_policy.hpp"
#include "common/gpu/score.hpp"
#include "common/gpu/tile.hpp"
#include "common/gpu/work.hpp"

namespace tessera {
namespace gpu {

// kKeyWaves waves over keys; for dQ kQueryWaves of them over queries, the rest over columns. kChunkQk, kChunkV:
// columns of dQ and dK, and of dV, that a block makes.
template <class Unit, int kTileQ_, int kTileK_, int kDqk, int kDv, int kChunkQk, int kChunkV, int kWaves,
          int kQueryWaves, bool kAny>
struct BackwardStaged {
  using U = Unit;
  using Columns = typename Unit::Fresh; // reads columns of plain tiles
  using E = typename U::Element;
  using Args = BackwardArgs;
  static constexpr int kTileQ = kTileQ_, kTileK = kTileK_;
  static constexpr int kThreads = kWaves * U::kWave;
  static constexpr int kColumnWaves = kWaves / kQueryWaves;
  static constexpr int kFree = kTileK / (kWaves * U::kFree); // key accumulators of a wave
  static constexpr int kCon = kTileQ / U::kCon;              // query accumulators
  static constexpr int kOutK = kChunkQk / 16, kOutV = kChunkV / 16;
  static constexpr int kFreeQ = kTileQ / (kQueryWaves * U::kFree);
  static constexpr int kOutQ = kChunkQk / (kColumnWaves * 16);
  static constexpr int kDepthQk = kDqk / U::kStep, kDepthV = kDv / U::kStep;
  static constexpr int kStepsQ = kTileK / U::kApplyStep; // of dQ's product
  using TileK = Tile<E, kTileK, kDqk>;
  using TileV = Tile<E, kTileK, kDv>;
  using TileQ = Tile<E, kTileQ, kDqk>;
  using TileO = Tile<E, kTileQ, kDv>;
  using TileS = Tile<E, kTileQ, kTileK>;
  static constexpr bool kTurned = U::template ZTile<kTileQ, kChunkQk>::kTransposed;
  using TurnedQ = typename U::template ZTile<kTileQ, kTurned ? kChunkQk : kDqk>;
  using TurnedO = typename U::template ZTile<kTileQ, kTurned ? kChunkV : kDv>;
  using OutK = Tile<E, kTileK, kChunkQk>;
  using OutV = Tile<E, kTileK, kChunkV>;
  using Scores = typename U::Acc[kFree][kCon];
  static_assert(kFree >= 1 && kCon >= 1 && kOutK >= 1 && kOutV >= 1 && kFreeQ >= 1 && kOutQ >= 1,
                "every wave has whole accumulators in every product");

  // 16 registers for each operand of K and V.
  static constexpr int kMostKept = 64;
  static constexpr bool kKeep =
      !U::kSplits && !kAny &&
      kFree * max_of(kDepthQk, kDepthV) * static_cast<int>(sizeof(typename U::Free)) <= kMostKept &&
      kOutQ * kStepsQ * static_cast<int>(sizeof(typename Columns::Z)) <= kMostKept;

  struct Shared {
    tsri_sequence sequence;
    tsri_mask_rule rule;
    Place place;
    RowSource q, dout; // of the current query head
    ScoreTerms terms;  // likewise
    int64_t stats;     // row of stats of the sequence's query 0, current head
    int32_t begin, end;           // query tiles that see keys of the block
    int32_t full_begin, full_end; // those whose queries all see all of them
  };
  static constexpr uint32_t kStats = ceil_div(sizeof(Shared), 16) * 16;
  static constexpr uint32_t kK = ceil_div(kStats + kTileQ * sizeof(RowStat), 1024) * 1024;
  static constexpr uint32_t kV = kKeep ? kK : kK + TileK::kBytes;
  static constexpr uint32_t kQ = kKeep ? kK : kV + TileV::kBytes; // kept: over K and V, which are gone by then
  static constexpr uint32_t kO = kQ + TileQ::kBytes;
  static constexpr uint32_t kTurnedQ = kTurned ? kO + TileO::kBytes : kQ;
  static constexpr uint32_t kTurnedO = kTurned ? kTurnedQ + TurnedQ::kBytes : kO;
  static constexpr uint32_t kS = kTurnedO + (kTurned ? TurnedO::kBytes : TileO::kBytes);
  static constexpr uint32_t kEnd = max_of(kS + TileS::kBytes, kK + max_of(TileK::kBytes, TileV::kBytes));
  static constexpr uint32_t kSharedBytes = max_of(kEnd, kK + max_of(OutK::kBytes, OutV::kBytes));

  using Next = QueryStages<E, TileQ, TileO, TurnedQ, TurnedO, kThreads, kAny>;
  static constexpr bool kInside = !kAny && !Weighs<E, kAny>::value && Next::kRegular;

  struct Kept {
    typename U::Free k[kFree][kKeep ? kDepthQk : 1], v[kFree][kKeep ? kDepthV : 1];
    typename Columns::Z turned[kKeep ? kStepsQ : 1][kKeep ? kOutQ : 1];
  };
  struct Walk {
    Kept kept;
    typename U::Acc dk[kFree][kOutK], dv[kFree][kOutV];
    int chunk;
    int32_t key0;
    Next next; // query tile
    int64_t sum_row;          // of dq_sum, of the current head's query 0
  };

  TSRI_DEVICE_MEMBER int wave() { return wave_index(U::kWave); }
  TSRI_DEVICE_MEMBER int key_row() { return wave() * kFree * U::kFree; }
  TSRI_DEVICE_MEMBER int query_row() { return wave() / kColumnWaves * kFreeQ * U::kFree; } // for dQ
  TSRI_DEVICE_MEMBER int column_tile() { return wave() % kColumnWaves * kOutQ; }

  // Thread 0 points the shared state at a query head.
  TSRI_DEVICE_MEMBER void take_head(const Args &args, Shared &shared, uint32_t h) {
    const tsr_problem &p = args.call.p;
    const int64_t b = shared.place.b;
    shared.q = row_source<E>(args.call.a.q, p.q, shared.sequence.q, b, h, p.dim_qk,
                             args.call.vector & kVectorQ);
    shared.dout = row_source<E>(args.call.a.dout, p.dout, shared.sequence.q, b, h, p.dim_v,
                                args.call.vector & kVectorDout);
    shared.stats = stat_row(p, args.call.a, shared.sequence.q, b, h);
    if (kAny) shared.terms = score_terms(args.call, shared.sequence, b, h);
  }

  // Thread 0: which query tiles see keys of the block, and which of them all.
  TSRI_DEVICE_MEMBER void find_queries(Shared &shared, int32_t key0) {
    const tsri_mask_rule &rule = shared.rule;
    const int32_t sk = static_cast<int32_t>(rule.sk), sq = static_cast<int32_t>(rule.sq);
    const int32_t first_key = larger(key0, 0), end_key = smaller(key0 + kTileK, sk);
    int64_t from = 0, to = 0;
    if (first_key < end_key) tsri_mask_queries_of(&rule, first_key, end_key, &from, &to);
    shared.begin = static_cast<int32_t>(from) / kTileQ;
    shared.end = to > from ? ceil_div(static_cast<int32_t>(to), kTileQ) : shared.begin;
    shared.full_begin = shared.end;
    shared.full_end = shared.end;
    if (!kInside || key0 < 0 || key0 + kTileK > sk) return;
    // The bounds of a row's keys rise with the row, so that the tiles that see all keys follow each other.
    const auto full = [&](int32_t t) {
      return (t + 1) * kTileQ <= sq &&
             tsri_mask_tile_class(&rule, t * kTileQ, (t + 1) * kTileQ, key0, key0 + kTileK) == TSRI_TILE_FULL;
    };
    int32_t t = shared.begin;
    while (t < shared.end && !full(t)) ++t;
    shared.full_begin = t;
    t = shared.end;
    while (t > shared.full_begin && !full(t - 1)) --t;
    shared.full_end = t;
  }

  TSRI_DEVICE_MEMBER void block(const Args &args) {
    const tsr_problem &p = args.call.p;
    const tsr_args &a = args.call.a;
    uint32_t n = block_index();
    const uint32_t tile = n % static_cast<uint32_t>(args.tiles);
    n /= static_cast<uint32_t>(args.tiles);
    const int chunk = static_cast<int>(n % static_cast<uint32_t>(args.chunks));
    n /= static_cast<uint32_t>(args.chunks);
    const uint32_t g = n % static_cast<uint32_t>(p.heads_kv);
    Shared &shared = shared_at<Shared>(0);
    if (wave() == 0) {
      Place place = {n / static_cast<uint32_t>(p.heads_kv), static_cast<int32_t>(tile)};
      if (a.cu_k)
        place = find_packed(a.cu_k, p.index_dtype, p.total_k, p.batch, kTileK, tile, U::kWave);
      if (thread_index() == 0) {
        shared.place = place;
        if (place.b >= 0) {
          shared.sequence = tsri_sequence_of(&p, &a, place.b);
          shared.rule = tsri_sequence_rule(&p, &shared.sequence);
          find_queries(shared, place.tile * kTileK - static_cast<int32_t>(shared.sequence.k.begin -
                                                                          shared.sequence.k.slot_begin));
        }
      }
    }
    sync_block();
    if (uniform(shared.place.b < 0)) return;
    const int32_t row0 = shared.place.tile * kTileK; // of the slot
    if (uniform(row0 >= static_cast<int32_t>(shared.sequence.k.slot_len))) return;
    Walk w;
    // Used row of the tile's first key; negative before the left padding ends.
    w.key0 = uniform(row0 - static_cast<int32_t>(shared.sequence.k.begin - shared.sequence.k.slot_begin));
    w.chunk = chunk;
    clear<U>(w.dk);
    clear<U>(w.dv);
    if (uniform(shared.begin < shared.end)) walk(args, shared, g, w);
    sync_block(); // the tiles' memory becomes the outputs'
    const int32_t key0 = w.key0, rows = static_cast<int32_t>(shared.sequence.k.slot_len) - row0;
    const int64_t row = shared.sequence.k.slot_begin + row0;
    const int32_t sk = static_cast<int32_t>(shared.sequence.k.len);
    store_gradient<U, OutK, kThreads, kFree, kOutK, kAny>(
        w.dk, p.scale, -key0, sk - key0, kK, key_row(), 0, p.dk, a.dk, args.call.vector & kVectorDk,
        p.accumulate & TSR_ACCUMULATE_DK, shared.place.b, g, row, rows, chunk * kChunkQk,
        static_cast<int>(p.dim_qk));
    sync_block();
    store_gradient<U, OutV, kThreads, kFree, kOutV, kAny>(
        w.dv, p.dropout > 0 ? args.call.keep_scale : 1.0f, -key0, sk - key0, kK, key_row(), 0, p.dv, a.dv,
        args.call.vector & kVectorDv, p.accumulate & TSR_ACCUMULATE_DV, shared.place.b, g, row, rows,
        chunk * kChunkV, static_cast<int>(p.dim_v));
  }

  // K and V into shared memory, and from there into registers where they are kept.
  TSRI_DEVICE_MEMBER void load_keys(const Args &args, const Shared &shared, uint32_t g, Walk &w) {
    const tsr_problem &p = args.call.p;
    const tsri_pages pages = tsri_pages_of(&p, &args.call.a);
    load_tile<E, TileK, kThreads, kAny>(
        kK,
        kv_source<E>(args.call.a.k, p.k, shared.sequence.k, pages, shared.place.b, g, p.dim_qk,
                     args.call.vector & kVectorK),
        w.key0, 0);
    if constexpr (kKeep) {
      copy_commit();
      copy_wait<0>();
      sync_block();
      keep<TileK, kDepthQk>(w.kept.k, kK);
      const typename Columns::ZOffset offset =
          Columns::template z_offset<TileK::kRowBytes>(kK + column_bytes(w.chunk * kChunkQk), column_tile());
      TSRI_UNROLL
      for (int s = 0; s < kStepsQ; ++s)
        TSRI_UNROLL
        for (int o = 0; o < kOutQ; ++o)
          Columns::template load_z<TileK::kRowBytes>(w.kept.turned[s][o], offset, s * U::kApplyStep, o);
      sync_block();
    }
    load_tile<E, TileV, kThreads, kAny>(
        kV,
        kv_source<E>(args.call.a.v, p.v, shared.sequence.k, pages, shared.place.b, g, p.dim_v,
                     args.call.vector & kVectorV),
        w.key0, 0);
    copy_commit();
    copy_wait<0>();
    if constexpr (kKeep) {
      sync_block();
      keep<TileV, kDepthV>(w.kept.v, kV);
      sync_block();
    }
  }
  template <class T, int kDepth>
  TSRI_DEVICE_MEMBER void keep(typename U::Free (&kept)[kFree][kDepth], uint32_t tile) {
    const uint32_t offset = U::template free_offset<T::kRowBytes>(tile) + key_row() * T::kRowBytes;
    TSRI_UNROLL
    for (int f = 0; f < kFree; ++f)
      TSRI_UNROLL
      for (int t = 0; t < kDepth; ++t) U::template load_free<T::kRowBytes>(kept[f][t], offset, f * U::kFree, t);
  }
  TSRI_DEVICE_MEMBER uint32_t column_bytes(int column) {
    return static_cast<uint32_t>(column) * static_cast<uint32_t>(sizeof(E));
  }

  // All query tiles of all heads of the group.
  TSRI_DEVICE_MEMBER void walk(const Args &args, Shared &shared, uint32_t g, Walk &w) {
    load_keys(args, shared, g, w);
    const int32_t begin = uniform(shared.begin), end = uniform(shared.end);
    int32_t full_begin = uniform(shared.full_begin), full_end = uniform(shared.full_end);
    TSRI_NO_UNROLL
    for (int32_t head = 0; head < args.call.group; ++head) {
      if (thread_index() == 0) take_head(args, shared, g * static_cast<uint32_t>(args.call.group) + head);
      sync_block();
      w.sum_row = uniform(w.chunk * query_rows(args.call.p, args.call.a) + shared.stats);
      if constexpr (kInside)
        if (!Next::start(w.next, shared, args.stats, full_begin + 1, w.chunk * kChunkQk, w.chunk * kChunkV))
          full_begin = full_end = end;
      load(args, shared, w, begin);
      int32_t n = begin;
      TSRI_NO_UNROLL
      for (int part = 0; part < 2; ++part) {
        const int32_t until = part == 0 ? full_begin : end;
        TSRI_NO_UNROLL
        for (; n < until; ++n) step<false>(args, shared, w, n, end);
        if constexpr (kInside) {
          if (part > 0) continue;
          TSRI_NO_UNROLL
          for (; n + 1 < full_end; ++n) step<true>(args, shared, w, n, end);
        }
      }
    }
  }

  TSRI_DEVICE_MEMBER void load(const Args &args, const Shared &shared, Walk &w, int32_t n) {
    Next::fetch(w.next, shared, args.stats, n * kTileQ, w.chunk * kChunkQk, w.chunk * kChunkV);
    Next::store(w.next, kQ, kO, kTurnedQ, kTurnedO, kStats);
  }

  // Query tile n. kFull: its queries, and those of the next tile, see all keys of the block.
  template <bool kFull>
  TSRI_DEVICE_MEMBER void step(const Args &args, const Shared &shared, Walk &w, int32_t n, int32_t end) {
    sync_block(); // the tile has arrived; dS has been read by all
    if constexpr (kFull) Next::fetch_inside(w.next);
    const int32_t i0 = n * kTileQ, sq = static_cast<int32_t>(shared.rule.sq);
    make_keys<kFull>(args, shared, w, i0, sq);
    sync_block(); // dS is complete; the tile has been read by all
    if constexpr (kFull)
      Next::store_inside(w.next, kQ, kO, kTurnedQ, kTurnedO, kStats);
    else if (n + 1 < end) // no loads under way among products: with masks there is no register left for them
      load(args, shared, w, n + 1);
    // Thread 0 may point the shared state at the next head meanwhile.
    if (args.dq_sum && (kChunkQk == kDqk || w.chunk < args.dq_chunks))
      add_queries<kFull>(w, reinterpret_cast<const unsigned char *>(args.dq_sum + (w.sum_row + i0) * kChunkQk),
                         sq - i0);
  }

  // dK and dV from one query tile; its dS is left in shared memory.
  template <bool kFull>
  TSRI_DEVICE_MEMBER void make_keys(const Args &args, const Shared &shared, Walk &w, int32_t i0, int32_t sq) {
    const int32_t prefix = kAny ? static_cast<int32_t>(shared.rule.prefix) : 0;
    const int32_t sk = static_cast<int32_t>(shared.rule.sk);
    const float unit = args.call.p.scale * Weighs<E, kAny>::base; // not of kAny
    const int32_t j0 = w.key0 + key_row(), j1 = j0 + kFree * U::kFree;
    Scores s, dp;
    int tile_class = TSRI_TILE_FULL;
    const int last = kFull ? kTileQ : smaller(sq - i0, kTileQ);
    if (!kFull) {
      tile_class = TSRI_TILE_SKIP;
      if (0 < last && j1 > 0 && j0 < sk)
        tile_class = uniform(stats_class(kStats, 0, last, prefix, larger(j0, 0), j1));
    }
    if (tile_class != TSRI_TILE_SKIP) {
      multiply<kDepthQk, TileK, TileQ>(s, kK, kQ, w.kept.k);
      multiply<kDepthV, TileV, TileO>(dp, kV, kO, w.kept.v);
      // Zeros beyond the last query have p = 1, which makes NaN of what is not finite.
      if (kAny || (!kFull && (tile_class == TSRI_TILE_EDGE || j0 < 0 || last < kTileQ)))
        differentiate<true>(s, dp, unit, prefix, w.key0, i0, args, shared);
      else
        differentiate<false>(s, dp, unit, prefix, w.key0, i0, args, shared);
      if (kChunkV == kDv || w.chunk * kChunkV < args.call.p.dim_v)
        accumulate<kOutV, TurnedO>(w.dv, s, kTurnedO + (kTurned ? 0 : column_bytes(w.chunk * kChunkV)));
      if (kChunkQk == kDqk || w.chunk * kChunkQk < args.call.p.dim_qk)
        accumulate<kOutK, TurnedQ>(w.dk, dp, kTurnedQ + (kTurned ? 0 : column_bytes(w.chunk * kChunkQk)));
    } else {
      clear<U>(dp);
    }
    if (args.dq_sum) store_scores(dp);
  }

  // acc[key][query] = X Y^T over kDepth steps, X of keys (free), Y of queries (con).
  template <int kDepth, class TX, class TY>
  TSRI_DEVICE_MEMBER void multiply(Scores &acc, uint32_t x, uint32_t y,
                                   const typename U::Free (&kept)[kFree][kKeep ? kDepth : 1]) {
    const uint32_t x_offset = kKeep ? 0 : U::template free_offset<TX::kRowBytes>(x) + key_row() * TX::kRowBytes;
    score_product<U, TY, TX, kDepth, kKeep, true>(acc, U::template con_offset<TY::kRowBytes>(y), x_offset, kept);
  }

  // Scores and dP become P (after dropout) and dS. kEdge: the interval rule cuts into the tile.
  template <bool kEdge>
  TSRI_DEVICE_MEMBER void differentiate(Scores &s, Scores &dp, float unit, int32_t prefix, int32_t key0,
                                        int32_t i0, const Args &args, const Shared &shared) {
    TSRI_UNROLL
    for (int c = 0; c < kCon; ++c)
      TSRI_UNROLL
      for (int e = 0; e < U::kElements; ++e) {
        const int q = c * U::kCon + U::con_lane() + U::con_element(e);
        const RowStat stat = shared_at<RowStat>(kStats + static_cast<uint32_t>(q) * 16);
        const float weight = weight_of<Weighs<E, kAny>::value>(args, shared.stats, i0 + q, shared.rule.sq);
        TSRI_UNROLL
        for (int f = 0; f < kFree; ++f) {
          const int32_t j = key0 + key_row() + f * U::kFree + U::free_of(0);
          differentiate_one<kAny, kEdge, Weighs<E, kAny>::value>(s[f][c].x[e], dp[f][c].x[e], stat, weight, unit,
                                                                 prefix, i0 + q, j, shared.terms,
                                                                 args.call.keep_scale);
        }
      }
  }

  // out[key][column] += P^T Z, Z of queries, with P^T from registers.
  template <int kOut, class TZ>
  TSRI_DEVICE_MEMBER void accumulate(typename U::Acc (&out)[kFree][kOut], const Scores &s, uint32_t z) {
    constexpr int steps = U::kCon / U::kApplyStep;
    apply_product<U, TZ, kCon * steps, false>(
        out, U::template z_offset<TZ::kRowBytes>(z), [&s](typename U::P(&a)[kFree], int step) {
          TSRI_UNROLL
          for (int f = 0; f < kFree; ++f) U::to_operand(a[f], s[f][step / steps], step % steps);
        });
  }

  // Scores of the wave as elements of the tile [query][key].
  TSRI_DEVICE_MEMBER void store_scores(const Scores &s) {
    constexpr int size = static_cast<int>(sizeof(E));
    TSRI_UNROLL
    for (int f = 0; f < kFree; ++f)
      TSRI_UNROLL
      for (int c = 0; c < kCon; ++c)
        TSRI_UNROLL
        for (int e = 0; e < U::kElements; e += 2) {
          const int bytes = (key_row() + f * U::kFree + U::free_of(0)) * size;
          const int q = c * U::kCon + U::con_lane() + U::con_element(e); // and the next
          const uint32_t at = kS + TileS::at(q, bytes / 16) + static_cast<uint32_t>(bytes % 16);
          const uint32_t next = kS + TileS::at(q + 1, bytes / 16) + static_cast<uint32_t>(bytes % 16);
          if constexpr (size == 4) {
            shared_at<float>(at) = s[f][c].x[e];
            shared_at<float>(next) = s[f][c].x[e + 1];
          } else {
            const uint32_t pair = E::pack_numbers(s[f][c].x[e], s[f][c].x[e + 1]);
            shared_at<uint16_t>(at) = static_cast<uint16_t>(pair);
            shared_at<uint16_t>(next) = static_cast<uint16_t>(pair >> 16);
          }
        }
  }

  // dq_sum += dS K for the tile's queries, of which `rows` are used; sum: of the first.
  template <bool kFull>
  TSRI_DEVICE_MEMBER void add_queries(const Walk &w, const unsigned char *sum, int rows) {
    using C = Columns;
    typename C::Acc out[kFreeQ][kOutQ];
    clear<C>(out);
    const uint32_t s_offset = C::template apply_offset<TileS::kRowBytes>(kS) + query_row() * TileS::kRowBytes;
    if constexpr (kKeep) {
      TSRI_UNROLL
      for (int s = 0; s < kStepsQ; ++s)
        TSRI_UNROLL
        for (int f = 0; f < kFreeQ; ++f) {
          typename C::P p;
          C::template load_apply<TileS::kRowBytes>(p, s_offset, f * U::kFree, s);
          TSRI_UNROLL
          for (int o = 0; o < kOutQ; ++o) C::apply(out[f][o], w.kept.turned[s][o], p);
        }
      settle<C>(out);
    } else {
      apply_product<C, TileK, kStepsQ, true>(
          out, C::template z_offset<TileK::kRowBytes>(kK + column_bytes(w.chunk * kChunkQk), column_tile()),
          [s_offset](typename C::P(&a)[kFreeQ], int step) {
            TSRI_UNROLL
            for (int f = 0; f < kFreeQ; ++f)
              C::template load_apply<TileS::kRowBytes>(a[f], s_offset, f * U::kFree, step);
          });
    }
    const int first = query_row() + U::free_of(0);
    uint32_t lane = static_cast<uint32_t>((first * kChunkQk + column_tile() * 16 + U::con_lane()) * 4);
    keep_register(lane);
    TSRI_UNROLL
    for (int f = 0; f < kFreeQ; ++f) {
      if (!kFull && first + f * U::kFree >= rows) continue;
      TSRI_UNROLL
      for (int o = 0; o < kOutQ; ++o)
        TSRI_UNROLL
        for (int e = 0; e < U::kElements; e += 2)
          atomic_add_pair_lane(sum, lane, (f * U::kFree * kChunkQk + o * U::kCon + U::con_element(e)) * 4,
                               out[f][o].x[e], out[f][o].x[e + 1]);
    }
  }
};

} // namespace gpu
} // namespace tessera

#endif // TESSERA_COMMON_GPU_BACKWARD_STAGED_HPP_
