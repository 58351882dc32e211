// SPDX-License-Identifier: Apache-2.0
//
// Backward, queries outermost: BackwardQ makes dQ of a tile of queries by walking over the keys that it
// may see, with no sum shared between blocks (three products; used for `deterministic`). BackwardBias
// makes a tile of dBias by walking over everything that the bias is broadcast to, in a fixed order (two
// products). Scores have the orientation of forward: free = query, con = key.
#ifndef TESSERA_COMMON_GPU_BACKWARD_QUERY_HPP_
#define TESSERA_COMMON_GPU_BACKWARD_QUERY_HPP_

#include "common/gpu/gradient.hpp"
#include "common/gpu/work.hpp"

namespace tessera {
namespace gpu {

// What both are made of: tiles of Q and dO against tiles of K and V, and dS of a pair of tiles.
template <class Unit, int kTileQ_, int kTileK_, int kDqk, int kDv, int kWaves, bool kAny>
struct QueryTiles {
  using U = typename Unit::Fresh; // the accumulators leave no registers for offsets
  using E = typename U::Element;
  using Args = BackwardArgs;
  static constexpr int kTileQ = kTileQ_, kTileK = kTileK_;
  static constexpr int kThreads = kWaves * U::kWave;
  static constexpr int kFree = kTileQ / (kWaves * U::kFree);
  static constexpr int kCon = kTileK / U::kCon;
  using TileQ = Tile<E, kTileQ, kDqk>;
  using TileO = Tile<E, kTileQ, kDv>;
  using TileK = Tile<E, kTileK, kDqk>;
  using TileV = Tile<E, kTileK, kDv>;
  using Scores = typename U::Acc[kFree][kCon];
  static constexpr bool kWide = false;

  struct Shared {
    tsri_sequence sequence;
    tsri_mask_rule rule;
    Place place;
    RowSource q, dout, k, v;
    ScoreTerms terms;
    int64_t stats;
  };
  static constexpr uint32_t kStats = ceil_div(sizeof(Shared), 16) * 16;
  static constexpr uint32_t kQ = ceil_div(kStats + kTileQ * sizeof(RowStat), 1024) * 1024;
  static constexpr uint32_t kO = kQ + TileQ::kBytes;
  static constexpr uint32_t kK = kO + TileO::kBytes;
  static constexpr uint32_t kV = kK + TileK::kBytes;
  static constexpr uint32_t kSharedBytes = kV + TileV::kBytes;
  static constexpr int kMinBlocks = kThreads <= 128 && kSharedBytes <= 113 * 1024 ? 2 : 1;

  TSRI_DEVICE_MEMBER int wave() { return fresh_thread_index() / U::kWave; }
  TSRI_DEVICE_MEMBER int wave_row() { return wave() * kFree * U::kFree; }

  // One thread: points the shared state at sequence b and query head h.
  TSRI_DEVICE_MEMBER void take(const Args &args, Shared &shared, int64_t b, uint32_t h) {
    const tsr_problem &p = args.call.p;
    const tsr_args &a = args.call.a;
    const tsri_pages pages = tsri_pages_of(&p, &a);
    const uint32_t g = h / static_cast<uint32_t>(args.call.group);
    shared.sequence = tsri_sequence_of(&p, &a, b);
    shared.rule = tsri_sequence_rule(&p, &shared.sequence);
    shared.q = row_source<E>(a.q, p.q, shared.sequence.q, b, h, p.dim_qk,
                             args.call.vector & kVectorQ);
    shared.dout = row_source<E>(a.dout, p.dout, shared.sequence.q, b, h, p.dim_v,
                                args.call.vector & kVectorDout);
    shared.k = kv_source<E>(a.k, p.k, shared.sequence.k, pages, b, g, p.dim_qk,
                            args.call.vector & kVectorK);
    shared.v = kv_source<E>(a.v, p.v, shared.sequence.k, pages, b, g, p.dim_v,
                            args.call.vector & kVectorV);
    shared.stats = stat_row(p, a, shared.sequence.q, b, h);
    if (kAny) shared.terms = score_terms(args.call, shared.sequence, b, h);
  }

  // The block's place and query head, of which the shared state is told. All threads call it.
  TSRI_DEVICE_MEMBER uint32_t find(const Args &args, Shared &shared, int32_t chunks) {
    const tsr_problem &p = args.call.p;
    const tsr_args &a = args.call.a;
    const uint32_t tile = block_index() % static_cast<uint32_t>(args.tiles);
    const uint32_t n =
        block_index() / static_cast<uint32_t>(args.tiles) / static_cast<uint32_t>(chunks);
    const uint32_t h = n % static_cast<uint32_t>(p.heads_q);
    if (wave() == 0) {
      Place place = {n / static_cast<uint32_t>(p.heads_q), static_cast<int32_t>(tile)};
      if (a.cu_q)
        place = find_packed(a.cu_q, p.index_dtype, p.total_q, p.batch, kTileQ, tile, U::kWave);
      if (thread_index() == 0) {
        shared.place = place;
        if (place.b >= 0) take(args, shared, place.b, h);
      }
    }
    sync_block();
    return h;
  }

  // The block's rows, after find. count 0: none of them sees a key.
  struct Rows {
    int32_t row0;  // the first one, of the slot
    int32_t i0;    // and of the used part; negative before the left padding ends
    int32_t sq;
    KeyTiles keys;
  };
  // False when the slot has no such rows.
  TSRI_DEVICE_MEMBER bool rows_of(const Shared &shared, Rows &rows) {
    if (shared.place.b < 0) return false;
    const tsri_span &q = shared.sequence.q;
    rows.row0 = shared.place.tile * kTileQ;
    if (rows.row0 >= static_cast<int32_t>(q.slot_len)) return false;
    rows.i0 = rows.row0 - static_cast<int32_t>(q.begin - q.slot_begin);
    rows.sq = static_cast<int32_t>(q.len);
    rows.keys =
        key_tiles(shared.rule, larger(rows.i0, 0), smaller(rows.i0 + kTileQ, rows.sq), kTileK);
    return true;
  }

  TSRI_DEVICE_MEMBER void load_queries(const Args &args, const Shared &shared, int32_t i0) {
    load_tile<E, TileQ, kThreads, kAny, false>(kQ, shared.q, i0, 0);
    load_tile<E, TileO, kThreads, kAny, false>(kO, shared.dout, i0, 0);
    load_stats<kTileQ, kThreads>(kStats, args.stats + shared.stats, i0,
                                 static_cast<int32_t>(shared.sequence.q.len));
  }
  TSRI_DEVICE_MEMBER void load_keys(const Shared &shared, int32_t key0) {
    load_tile<E, TileK, kThreads, kAny>(kK, shared.k, key0, 0);
    load_tile<E, TileV, kThreads, kAny>(kV, shared.v, key0, 0);
  }

  // acc[query][key] = Y X^T.
  template <int kDepth, class TY, class TX>
  TSRI_DEVICE_MEMBER void multiply(Scores &acc, uint32_t y, uint32_t x) {
    const uint32_t y_offset = U::template free_offset<TY::kRowBytes>(y) + wave_row() * TY::kRowBytes;
    const uint32_t x_offset = U::template con_offset<TX::kRowBytes>(x);
    const typename U::Free none[kFree][1] = {};
    score_product<U, TX, TY, kDepth, false>(acc, x_offset, y_offset, none);
  }

  // Scores and dP of the tiles in shared memory, false where the wave sees none of the keys. All waves call it.
  TSRI_DEVICE_MEMBER bool multiply_both(const Args &, const Shared &, Scores &s, Scores &dp, int32_t, int32_t,
                                        bool sees) {
    if (sees) multiply<kDqk / U::kStep, TileQ, TileK>(s, kQ, kK);
    sync_block(); // keeps the loads of one product out of the other, where registers end
    if (!sees) return false;
    multiply<kDv / U::kStep, TileO, TileV>(dp, kO, kV);
    return true;
  }
  // Bytes to a column of the tile of keys.
  TSRI_DEVICE_MEMBER uint32_t column_bytes(int column) {
    return static_cast<uint32_t>(column) * static_cast<uint32_t>(sizeof(E));
  }

  // dS of the tiles in shared memory; false when the wave's rows see none of the keys. All waves call it; chunk: of
  // columns of Q and K that is wanted after it.
  template <bool kOfBias>
  TSRI_DEVICE_MEMBER bool differentiate(const Args &args, const Shared &shared, Scores &ds,
                                        int32_t i0, int32_t key0, int = 0) {
    const int32_t sq = static_cast<int32_t>(shared.sequence.q.len);
    const int32_t prefix = kAny ? static_cast<int32_t>(shared.rule.prefix) : 0;
    const int first = larger(wave_row(), -i0);
    const int last = smaller(sq - i0, wave_row() + kFree * U::kFree);
    if (first >= last) return false;
    const int tile_class = stats_class(kStats, first, last, prefix, key0, key0 + kTileK);
    if (tile_class == TSRI_TILE_SKIP) return false;
    const float unit = args.call.p.scale * Weighs<E, kAny>::base; // not of kAny
    Scores s;
    multiply<kDqk / U::kStep, TileQ, TileK>(s, kQ, kK);
    multiply<kDv / U::kStep, TileO, TileV>(ds, kO, kV);
    if (kAny || tile_class == TSRI_TILE_EDGE || first > wave_row() ||
        last < wave_row() + kFree * U::kFree)
      differentiate_all<kOfBias, true>(args, shared, s, ds, unit, i0, key0);
    else
      differentiate_all<kOfBias, false>(args, shared, s, ds, unit, i0, key0);
    return true;
  }

  template <bool kOfBias, bool kEdge>
  TSRI_DEVICE_MEMBER void differentiate_all(const Args &args, const Shared &shared, Scores &s,
                                            Scores &ds, float unit, int32_t i0, int32_t key0) {
    const int32_t prefix = kAny ? static_cast<int32_t>(shared.rule.prefix) : 0;
    TSRI_UNROLL
    for (int r = 0; r < kFree * U::kRows; ++r) {
      const int f = r / U::kRows;
      const int row = wave_row() + f * U::kFree + U::free_of(r % U::kRows);
      const RowStat stat = shared_at<RowStat>(kStats + static_cast<uint32_t>(row) * 16);
      const float weight =
          weight_of<Weighs<E, kAny>::value>(args, shared.stats, i0 + row, shared.rule.sq);
      TSRI_UNROLL
      for (int c = 0; c < kCon; ++c)
        TSRI_UNROLL
        for (int e = 0; e < U::kElements; ++e)
          if (U::slot(e) == r % U::kRows)
            differentiate_one<kAny, kEdge, Weighs<E, kAny>::value, kOfBias>(
                s[f][c].x[e], ds[f][c].x[e], stat, weight, unit, prefix, i0 + row,
                key0 + c * U::kCon + U::con_lane() + U::con_element(e), shared.terms,
                args.call.keep_scale);
    }
  }
};

// Tiles: QueryTiles or WideTiles.
template <class Unit, int kTileQ_, int kTileK_, int kDqk, int kDv, int kChunk, int kWaves,
          bool kAny, class Tiles = QueryTiles<Unit, kTileQ_, kTileK_, kDqk, kDv, kWaves, kAny>>
struct BackwardQ : Tiles {
  using Base = Tiles;
  using U = typename Base::U;
  using E = typename U::Element;
  using Args = BackwardArgs;
  using Shared = typename Base::Shared;
  static constexpr int kTileQ = kTileQ_, kTileK = kTileK_;
  static constexpr int kThreads = Base::kThreads, kFree = Base::kFree, kCon = Base::kCon;
  static constexpr int kOut = kChunk / 16;
  using Out = Tile<E, kTileQ, kChunk>;
  static constexpr uint32_t kSharedBytes = max_of(Base::kSharedBytes, Base::kQ + Out::kBytes);
  static_assert(kChunk * sizeof(E) % 128 == 0 || kChunk == kDqk, "chunks begin at a swizzle");

  TSRI_DEVICE_MEMBER void block(const Args &args) {
    const tsr_problem &p = args.call.p;
    const tsr_args &a = args.call.a;
    Shared &shared = shared_at<Shared>(0);
    const uint32_t h = Base::find(args, shared, args.chunks);
    const int chunk = static_cast<int>(block_index() / static_cast<uint32_t>(args.tiles) %
                                       static_cast<uint32_t>(args.chunks));
    typename Base::Rows rows;
    if (!Base::rows_of(shared, rows)) return;
    const int32_t i0 = rows.i0;
    const KeyTiles &tiles = rows.keys;
    typename U::Acc dq[kFree][kOut];
    clear<U>(dq);
    if (tiles.count > 0) Base::load_queries(args, shared, i0);
    TSRI_NO_UNROLL
    for (int32_t t = 0; t < tiles.count; ++t) {
      const int32_t key0 = KeyTiles::at(tiles, t) * kTileK;
      Base::load_keys(shared, key0);
      copy_commit();
      copy_wait<0>();
      sync_block();
      typename Base::Scores ds;
      if (Base::template differentiate<false>(args, shared, ds, i0, key0, chunk))
        accumulate(dq, ds, Base::column_bytes(chunk * kChunk));
      sync_block();
    }
    sync_block();
    store_gradient<U, Out, kThreads, kFree, kOut, kAny, Base::kWide>(
        dq, p.scale, -i0, rows.sq - i0, Base::kQ, Base::wave_row(), 0, p.dq, a.dq, args.call.vector & kVectorDq,
        p.accumulate & TSR_ACCUMULATE_DQ, shared.place.b, h, shared.sequence.q.slot_begin + rows.row0,
        static_cast<int32_t>(shared.sequence.q.slot_len) - rows.row0, chunk * kChunk,
        static_cast<int>(p.dim_qk));
  }

  // dq += dS K.
  TSRI_DEVICE_MEMBER void accumulate(typename U::Acc (&dq)[kFree][kOut],
                                     const typename Base::Scores &ds, uint32_t column_bytes) {
    constexpr int steps = U::kCon / U::kApplyStep;
    apply_product<U, typename Base::TileK, kCon * steps, false>(
        dq, U::template z_offset<Base::TileK::kRowBytes>(Base::kK + column_bytes),
        [&ds](typename U::P(&a)[kFree], int step) {
          TSRI_UNROLL
          for (int f = 0; f < kFree; ++f) U::to_operand(a[f], ds[f][step / steps], step % steps);
        });
  }
};

template <class Unit, int kTileQ_, int kTileK_, int kDqk, int kDv, int kWaves,
          class Tiles = QueryTiles<Unit, kTileQ_, kTileK_, kDqk, kDv, kWaves, true>>
struct BackwardBias : Tiles {
  using Base = Tiles;
  using U = typename Base::U;
  using Args = BackwardArgs;
  using Shared = typename Base::Shared;
  static constexpr int kTileQ = kTileQ_, kTileK = kTileK_;
  static constexpr int kThreads = Base::kThreads, kFree = Base::kFree, kCon = Base::kCon;
  // The finished tile as floats, over Q.
  static constexpr uint32_t kSum = Base::kQ;
  static constexpr uint32_t kSharedBytes =
      max_of(Base::kSharedBytes, kSum + kTileQ * kTileK * static_cast<int>(sizeof(float)));

  TSRI_DEVICE_MEMBER void block(const Args &args) {
    const tsr_problem &p = args.call.p;
    uint32_t n = block_index();
    const int tile_k = static_cast<int>(n % static_cast<uint32_t>(args.bias_tiles_k));
    n /= static_cast<uint32_t>(args.bias_tiles_k);
    const int tile_q = static_cast<int>(n % static_cast<uint32_t>(args.bias_tiles_q));
    n /= static_cast<uint32_t>(args.bias_tiles_q);
    const bool over_b = p.bias.stride[0] == 0, over_h = p.bias.stride[1] == 0;
    const bool over_q = p.bias.stride[2] == 0, over_k = p.bias.stride[3] == 0;
    const uint32_t heads = over_h ? 1 : static_cast<uint32_t>(p.heads_q);
    const int64_t bias_h = n % heads, bias_b = n / heads;
    Shared &shared = shared_at<Shared>(0);
    typename Base::Scores sum;
    clear<U>(sum);
    for (int64_t b = over_b ? 0 : bias_b; b < (over_b ? p.batch : bias_b + 1); ++b)
      for (int64_t h = over_h ? 0 : bias_h; h < (over_h ? p.heads_q : bias_h + 1); ++h) {
        sync_block();
        const Args &now = fresh_arguments(args);
        if (thread_index() == 0) Base::take(now, shared, b, static_cast<uint32_t>(h));
        sync_block();
        const int32_t sq = static_cast<int32_t>(shared.sequence.q.len);
        const int32_t sk = static_cast<int32_t>(shared.sequence.k.len);
        const int32_t i_end = over_q ? sq : smaller(sq, (tile_q + 1) * kTileQ);
        const int32_t j_end = over_k ? sk : smaller(sk, (tile_k + 1) * kTileK);
        for (int32_t i0 = tile_q * kTileQ; i0 < i_end; i0 += kTileQ)
          for (int32_t key0 = tile_k * kTileK; key0 < j_end; key0 += kTileK)
            add_tile(fresh_arguments(args), shared, sum, i0, key0);
      }
    sync_block();
    store(p, args.call.a.dbias, sum, bias_b, bias_h, tile_q * kTileQ, tile_k * kTileK);
  }

  TSRI_DEVICE_MEMBER void add_tile(const Args &args, const Shared &shared,
                                   typename Base::Scores &sum, int32_t i0, int32_t key0) {
    const int32_t last = smaller(i0 + kTileQ, static_cast<int32_t>(shared.sequence.q.len));
    if (tsri_mask_tile_class(&shared.rule, i0, last, key0, key0 + kTileK) == TSRI_TILE_SKIP) return;
    sync_block(); // the tiles before have been read
    Base::load_queries(args, shared, i0);
    Base::load_keys(shared, key0);
    copy_commit();
    copy_wait<0>();
    sync_block();
    typename Base::Scores ds;
    if (!Base::template differentiate<true>(args, shared, ds, i0, key0)) return;
    TSRI_UNROLL
    for (int f = 0; f < kFree; ++f)
      TSRI_UNROLL
      for (int c = 0; c < kCon; ++c)
        TSRI_UNROLL
        for (int e = 0; e < U::kElements; ++e) sum[f][c].x[e] += ds[f][c].x[e];
  }

  // Sums over broadcast rows and keys of the tile, and stores.
  TSRI_DEVICE_MEMBER void store(const tsr_problem &p, void *data, const typename Base::Scores &sum,
                                int64_t b, int64_t h, int32_t i0, int32_t key0) {
    TSRI_UNROLL
    for (int f = 0; f < kFree; ++f)
      TSRI_UNROLL
      for (int c = 0; c < kCon; ++c)
        TSRI_UNROLL
        for (int e = 0; e < U::kElements; ++e) {
          const int row = Base::wave_row() + f * U::kFree + U::free_of(U::slot(e));
          const int key = c * U::kCon + U::con_lane() + U::con_element(e);
          shared_at<float>(kSum + static_cast<uint32_t>(row * kTileK + key) * 4) = sum[f][c].x[e];
        }
    sync_block();
    const bool over_q = p.bias.stride[2] == 0, over_k = p.bias.stride[3] == 0;
    const int rows = over_q ? 1 : kTileQ, keys = over_k ? 1 : kTileK;
    for (int x = thread_index(); x < rows * keys; x += kThreads) {
      const int row = x / keys, key = x % keys;
      if (!over_q && i0 + row >= p.seq_q) continue;
      if (!over_k && key0 + key >= p.seq_k) continue;
      float total = 0.0f;
      for (int r = row; r < (over_q ? kTileQ : row + 1); ++r)
        for (int k = key; k < (over_k ? kTileK : key + 1); ++k)
          total += shared_at<float>(kSum + static_cast<uint32_t>(r * kTileK + k) * 4);
      const int64_t at = tsri_pair_offset(p.dbias.stride, b, h, i0 + row, key0 + key);
      if (p.accumulate & TSR_ACCUMULATE_DBIAS) total += load_element(p.dbias.dtype, data, at);
      store_element(p.dbias.dtype, data, at, total);
    }
  }
};

} // namespace gpu
} // namespace tessera

#endif // TESSERA_COMMON_GPU_BACKWARD_QUERY_HPP_
