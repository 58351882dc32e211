// SPDX-License-Identifier: Apache-2.0
//
// Pieces that the backward tile programs share: the numbers of a query row, one element's way from
// score and dP to P and dS (common/score.h walked back), and how gradients are stored.
#ifndef TESSERA_COMMON_GPU_GRADIENT_HPP_
#define TESSERA_COMMON_GPU_GRADIENT_HPP_

#include "common/gpu/arguments.hpp"
#include "common/gpu/epilogue.hpp"
#include "common/gpu/product.hpp"
#include "common/gpu/row_policy.hpp"
#include "common/gpu/score.hpp"
#include "common/gpu/tile.hpp"
#include "common/gpu/work.hpp"

namespace tessera {
namespace gpu {

// Index in stats (and dq_sum by rows) of used query 0 of a sequence and head.
TSRI_DEVICE int64_t stat_row(const tsr_problem &p, const tsr_args &a, const tsri_span &q, int64_t b,
                             int64_t h) {
  return (a.cu_q ? h * p.total_q : (b * p.heads_q + h) * p.seq_q) + q.begin;
}

// dq_sum by tiles of tile_q used queries: every sequence begins with a tile of its own. Tile 0 of head 0 of
// sequence b, whose slot begins at slot_begin, and the tiles of a head.
struct SumTiles {
  int64_t first, head;
};
TSRI_HOST_DEVICE inline SumTiles sum_tiles(const tsr_problem &p, const tsr_args &a, int64_t tile_q,
                                           int64_t slot_begin, int64_t b) {
  if (a.cu_q) return SumTiles{slot_begin / tile_q + b, p.total_q / tile_q + p.batch};
  const int64_t head = (p.seq_q + tile_q - 1) / tile_q;
  return SumTiles{b * p.heads_q * head, head};
}
// The tile of number n of all: used queries of (b, h) from i0 on. b -1: none.
struct SumTile {
  int64_t b, h;
  tsri_span q;
  int32_t i0;
};
TSRI_DEVICE SumTile sum_tile(const tsr_problem &p, const tsr_args &a, int32_t tile_q, int64_t n) {
  SumTile tile;
  int64_t rest;
  const int64_t slot = divide(n, sum_tiles(p, a, tile_q, 0, 0).head, rest);
  if (!a.cu_q) {
    tile.b = divide(slot, p.heads_q, tile.h);
  } else {
    tile.h = slot;
    tile.b = 0;
    int64_t hi = p.batch; // the last sequence whose tiles begin at or before this one
    while (hi - tile.b > 1) {
      const int64_t middle = tile.b + (hi - tile.b) / 2;
      if (tsri_index(a.cu_q, p.index_dtype, middle) / tile_q + middle <= rest)
        tile.b = middle;
      else
        hi = middle;
    }
  }
  tile.q = tsri_sequence_of(&p, &a, tile.b).q;
  if (a.cu_q) rest -= sum_tiles(p, a, tile_q, tile.q.slot_begin, tile.b).first;
  tile.i0 = static_cast<int32_t>(rest) * tile_q;
  if (rest < 0 || tile.i0 >= tile.q.len) tile.b = -1;
  return tile;
}
// Within such a tile of tile_q queries: the element of query q, column d. Parts of 64 columns x part_q queries, one
// after the other, each as the accumulators of dQ^T lie in a warpgroup: 16 columns a warp, a
// lane's four numbers of 16 columns x 8 queries together.
TSRI_DEVICE int sum_index(int q, int d, int tile_q, int part_q) {
  const int part = tile_q == part_q ? d / 64 : q / part_q;
  const int warp = d % 64 / 16, lane = d % 8 * 4 + q % 8 / 2;
  return ((part * 4 + warp) * (part_q / 8) + q % part_q / 8) * 128 + lane * 4 + d % 16 / 8 * 2 + q % 2;
}

// Rows of stats and of a chunk of dq_sum by rows.
TSRI_DEVICE int64_t query_rows(const tsr_problem &p, const tsr_args &a) {
  return a.cu_q ? p.heads_q * p.total_q : p.batch * p.heads_q * p.seq_q;
}

// Copies the stats of kRows queries from i0 on; rows beyond `length` become zeros: an empty band.
template <int kRows, int kThreads>
TSRI_DEVICE void load_stats(uint32_t offset, const RowStat *stats, int32_t i0, int32_t length) {
  for (int r = fresh_thread_index(); r < kRows; r += kThreads)
    copy_async(offset + static_cast<uint32_t>(r) * 16, stats + smaller(i0 + r, length - 1),
               i0 + r < length);
}

// kCount columns of dQ from c on, a multiple of it, of a row of the tensor.
template <int kCount>
TSRI_DEVICE void store_dq(const BackwardArgs &args, int64_t b, int64_t h, int64_t row, int c, const float (&y)[kCount]) {
  struct alignas(kCount * 2) Halves {
    uint32_t w[kCount / 2];
  };
  const tsr_problem &p = args.call.p;
  void *dq = args.call.a.dq;
  const int64_t to = tsri_row_offset(p.dq.stride, b, h, row) + c * p.dq.stride[3];
  const bool add = p.accumulate & TSR_ACCUMULATE_DQ;
  if (!(args.call.vector & kVectorDq) || p.dq.dtype == TSR_DTYPE_F32 || add) {
    TSRI_UNROLL
    for (int d = 0; d < kCount; ++d) {
      if (c + d >= p.dim_qk) break;
      const int64_t at = to + d * p.dq.stride[3];
      store_element(p.dq.dtype, dq, at, add ? load_element(p.dq.dtype, dq, at) + y[d] : y[d]);
    }
    return;
  }
  Halves x;
  TSRI_UNROLL
  for (int i = 0; i < kCount / 2; ++i)
    x.w[i] = p.dq.dtype == TSR_DTYPE_F16 ? pack_f16(y[2 * i], y[2 * i + 1]) : pack_bf16(y[2 * i], y[2 * i + 1]);
  *reinterpret_cast<Halves *>(static_cast<uint16_t *>(dq) + to) = x;
}

// An LSE or a sink in the unit of stats. Natural ones beyond 2.4e38 have no power in base two: they become the largest
// finite ones there, beside which other scores are as nothing too. Infinities and NaN stay.
TSRI_DEVICE float in_stats_unit(float x, float unit) {
  constexpr float most = 3.402823466e+38f;
  const float y = x * unit;
  if (y == infinity() && x <= most) return most;
  return y == -infinity() && x >= -most ? -most : y;
}

// Whether a row that sees `keys` keys needs better numbers than the stored ones. most, large: keys, and |LSE| in the unit of stats, that
// delta_most() allows.
TSRI_DEVICE bool is_coarse(const BackwardArgs &args, int64_t queries, int64_t keys, float lse,
                           float most = infinity(), float large = infinity()) {
  if (keys <= 0 || lse == infinity()) return false;
  if (static_cast<float>(keys) > most) return true;
  return queries * args.call.group < kFewRows || keys <= args.few_keys ||
         !(lse <= args.large_lse && lse >= -args.large_lse && lse <= large && lse >= -large);
}

// How used queries [r0, r1) of the tile of stats meet keys [j0, j1).
TSRI_DEVICE int stats_class(uint32_t stats, int r0, int r1, int32_t prefix, int32_t j0, int32_t j1) {
  const RowStat first = shared_at<RowStat>(stats + static_cast<uint32_t>(r0) * 16);
  const RowStat last = shared_at<RowStat>(stats + static_cast<uint32_t>(r1 - 1) * 16);
  return RowsClass::of(
      rows_class(RowBand{first.lo, first.hi}, RowBand{last.lo, last.hi}, prefix), j0, j1);
}

// Rows whose p is 2^(score - maximum) times a weight, and not 2^(score - LSE): the rounding of an LSE is an
// error that all keys of a row share, and next to a score of -65504 it loses ln 2.
// There scores are natural: base two would round them once more.
template <class E, bool kAny>
struct Weighs {
  static constexpr bool value = kAny || DtypeOf<E>::value == TSR_DTYPE_F32;
  static constexpr float base = value ? 1.0f : static_cast<float>(TSRI_LOG2E); // times a natural score
};

// The weight of query i of `length` used ones, of which the first is row `first` of stats.
template <bool kWeighs>
TSRI_DEVICE float weight_of(const BackwardArgs &args, int64_t first, int32_t i, int64_t length) {
  return kWeighs && i >= 0 && i < length ? args.weight[first + i] : 1.0f;
}

// prefix: 0 in rows of interval masks, which take problems without one. A used row's band begins at the prefix or
// later, so that neither an unused row nor the zeros beyond the last one pass for a row that sees the prefix.
TSRI_DEVICE bool stat_allows(const RowStat &stat, int32_t prefix, int32_t j) {
  const uint32_t lo = static_cast<uint32_t>(stat.lo), key = static_cast<uint32_t>(j);
  const int32_t seen = stat.lo >= prefix && stat.lo <= stat.hi ? prefix : 0;
  return key - lo < static_cast<uint32_t>(stat.hi) - lo || key < static_cast<uint32_t>(seen);
}

// x: dot -> p for dV (with dropout, before 1 / (1 - p_drop)); y: dP -> gradient of scale * dot, or of the
// score after softcap, which is that of the bias. unit: of the score (not kAny), in base two or, kWeighs, natural.
// weight: 1, or that of the row.
// kEdge: the interval rule cuts into the tile (kAny always looks).
template <bool kAny, bool kEdge, bool kWeighs, bool kOfBias = false>
TSRI_DEVICE void differentiate_one(float &x, float &y, const RowStat &stat, float weight, float unit,
                                   int32_t prefix, int32_t i, int32_t j, const ScoreTerms &terms,
                                   float keep_scale) {
  if (kAny) {
    const float dot = x;
    if (!stat_allows(stat, prefix, j)) {
      x = y = 0.0f;
      return;
    }
    // Natural until the difference is taken: the lowest finite score has no finite power in base two.
    const float p = plain_nan(weight * exp2_of((score_of(terms, dot, i, j) - stat.lse) *
                                               static_cast<float>(TSRI_LOG2E)));
    bool keep = true;
    if (terms.drops) keep = keep_key(terms, i, j);
    x = keep ? p : 0.0f;
    const float dp = terms.drops ? (keep ? y * keep_scale : 0.0f) : y;
    y = p * (dp - stat.delta) * (kOfBias ? 1.0f : softcap_slope(terms, dot));
    return;
  }
  const float p = kWeighs ? weight * exp2_of((x * unit - stat.lse) * static_cast<float>(TSRI_LOG2E))
                          : Softmax::prob_ready(unit, x, stat.lse);
  const bool allowed = !kEdge || stat_allows(stat, prefix, j);
  x = allowed ? p : 0.0f;
  y = allowed ? p * (y - stat.delta) : 0.0f;
}

// factor * out into a gradient tensor, or added to it; nothing when it was not asked for. Rows of the tile
// outside [first, last) are padding and become zeros: a p of 0 times what is not finite is none. See
// store_outputs for the rest of the geometry.
template <class U, class T, int kThreads, int kFree, int kOut, bool kAny, bool kLoops = false>
TSRI_DEVICE void store_gradient(typename U::Acc (&out)[kFree][kOut], float factor, int first, int last,
                                uint32_t offset, int wave_row, int wave_column,
                                const tsr_layout &layout, void *data, bool vector, bool add, int64_t b,
                                int64_t h, int64_t row, int rows, int column, int columns) {
  if (layout.dtype == TSR_DTYPE_NONE) return;
  TSRI_UNROLL
  for (int f = 0; f < kFree; ++f)
    TSRI_UNROLL
    for (int slot = 0; slot < U::kRows; ++slot) {
      const int r = wave_row + f * U::kFree + U::free_of(slot);
      const bool used = r >= first && r < last;
      TSRI_UNROLL
      for (int o = 0; o < kOut; ++o)
        TSRI_UNROLL
        for (int e = 0; e < U::kElements; ++e)
          if (U::slot(e) == slot) out[f][o].x[e] = used ? out[f][o].x[e] * factor : 0.0f;
    }
  store_outputs<U, T, kThreads, kFree, kOut, kAny, kLoops>(out, offset, wave_row, wave_column, layout, data,
                                                   vector, kAny && add, b, h, row, rows, column,
                                                   columns);
}

} // namespace gpu
} // namespace tessera

#endif // TESSERA_COMMON_GPU_GRADIENT_HPP_
