// SPDX-License-Identifier: Apache-2.0
//
// One score at a time, in the order of common/score.h, for the rows that honour every feature: softcap,
// bias, ALiBi, mask tensor, block mask, dropout; and the interval rule of common/mask.h in the 32-bit
// form that tiles use. Everything about one (batch, head) is gathered once per block.
#ifndef TESSERA_COMMON_GPU_SCORE_HPP_
#define TESSERA_COMMON_GPU_SCORE_HPP_

#include "common/bias.h"
#include "common/dropout.h"
#include "common/geometry.h"
#include "common/gpu/arguments.hpp"
#include "common/gpu/element.hpp"
#include "common/gpu/platform.hpp"
#include "common/mask.h"
#include "common/score.h"

namespace tessera {
namespace gpu {

// Allowed keys of a row: [0, prefix) and [lo, hi), absolute or relative to some key.
struct Limits {
  int32_t prefix, lo, hi;
  TSRI_DEVICE_MEMBER bool allows(const Limits &l, int32_t j) {
    return (j >= l.lo && j < l.hi) || j < l.prefix;
  }
};

// The band part of every row of a tile, in shared memory at `offset`, written once per block (a barrier
// must follow) so that the 64-bit rule is not evaluated among the products. i0: used row of row 0 of
// the tile; rows outside [0, sq) see nothing.
struct RowBand {
  int32_t lo, hi;
};
template <int kRows, int kThreads>
TSRI_DEVICE void store_bands(uint32_t offset, const tsri_mask_rule &rule, int32_t i0) {
  for (int r = thread_index(); r < kRows; r += kThreads) {
    RowBand band = {INT32_MAX, INT32_MIN};
    const int64_t i = static_cast<int64_t>(i0) + r;
    if (i >= 0 && i < rule.sq) {
      const tsri_mask_row row = tsri_mask_row_of(&rule, i);
      band.lo = static_cast<int32_t>(row.lo); // lengths stay below 2^31
      band.hi = static_cast<int32_t>(row.hi);
    }
    shared_at<RowBand>(offset + static_cast<uint32_t>(r) * 8) = band;
  }
}

// Row r of the tile, keys relative to key0. prefix: of the sequence; a row without a band sees nothing.
TSRI_DEVICE Limits row_limits(uint32_t offset, int r, int32_t prefix, int32_t key0) {
  const RowBand band = shared_at<RowBand>(offset + static_cast<uint32_t>(r) * 8);
  const bool unused = band.lo > band.hi;
  return Limits{unused ? INT32_MIN : prefix - key0, unused ? 0 : band.lo - key0,
                unused ? 0 : band.hi - key0};
}

// How a range of rows meets tiles of keys, ready for many tiles: common/mask.h's rule for a range
// (tsri_mask_keys_class) with what depends on the rows alone taken out.
struct RowsClass {
  int32_t prefix;
  int32_t any_lo, any_hi;   // some row sees keys of [any_lo, any_hi)
  int32_t full_lo, full_hi; // all rows see keys of [full_lo, full_hi)
  TSRI_DEVICE_MEMBER int of(const RowsClass &c, int32_t key0, int32_t key1) {
    if (key0 >= c.prefix && !(key0 < c.any_hi && key1 > c.any_lo)) return TSRI_TILE_SKIP;
    if (key1 <= c.prefix || (c.full_lo <= key0 && key1 <= c.full_hi)) return TSRI_TILE_FULL;
    return TSRI_TILE_EDGE;
  }
};
TSRI_DEVICE RowsClass rows_class(const RowBand &first, const RowBand &last, int32_t prefix) {
  return RowsClass{prefix, first.lo, larger(last.hi, first.lo), last.lo == prefix ? 0 : last.lo,
                   first.hi};
}
// Rows [r0, r1) of the tile of bands; r0 >= r1: rows that see nothing.
TSRI_DEVICE RowsClass rows_class(uint32_t offset, int r0, int r1, int32_t prefix) {
  if (r0 >= r1) return RowsClass{0, 0, 0, 0, 0};
  return rows_class(shared_at<RowBand>(offset + static_cast<uint32_t>(r0) * 8),
                    shared_at<RowBand>(offset + static_cast<uint32_t>(r1 - 1) * 8), prefix);
}

// What a score of one (batch, head) meets besides Q K^T.
struct ScoreTerms {
  const unsigned char *bias; // of (b, h); NULL: none
  tsr_dtype bias_dtype;
  int64_t bias_i, bias_j;
  const void *mask; // NULL: none
  int64_t mask_bh, mask_i, mask_j;
  bool mask_bits;
  const uint8_t *blocks; // NULL: none
  int64_t block_bh, block_i, block_j;
  int32_t block_q, block_k;
  float scale, softcap, slope; // 0: none
  int64_t sq, sk;
  bool drops;
  tsri_dropout_key key;
  uint64_t threshold;
  int64_t head; // b * Hq + h
};

TSRI_DEVICE ScoreTerms score_terms(const Call &call, const tsri_sequence &sequence, int64_t b,
                                   int64_t h) {
  const tsr_problem &p = call.p;
  const tsr_args &a = call.a;
  ScoreTerms t;
  t.bias_dtype = p.bias.dtype;
  t.bias = nullptr;
  if (p.bias.dtype != TSR_DTYPE_NONE)
    t.bias = static_cast<const unsigned char *>(a.bias) +
             tsri_pair_offset(p.bias.stride, b, h, 0, 0) * (p.bias.dtype == TSR_DTYPE_F32 ? 4 : 2);
  t.bias_i = p.bias.stride[2];
  t.bias_j = p.bias.stride[3];
  t.mask = p.mask.dtype != TSR_DTYPE_NONE ? a.mask : nullptr;
  t.mask_bits = p.mask.dtype == TSR_DTYPE_BIT;
  t.mask_bh = tsri_pair_offset(p.mask.stride, b, h, 0, 0);
  t.mask_i = p.mask.stride[2];
  t.mask_j = p.mask.stride[3];
  t.blocks = p.block_mask.dtype != TSR_DTYPE_NONE ? static_cast<const uint8_t *>(a.block_mask)
                                                  : nullptr;
  t.block_bh = tsri_pair_offset(p.block_mask.stride, b, h, 0, 0);
  t.block_i = p.block_mask.stride[2];
  t.block_j = p.block_mask.stride[3];
  t.block_q = static_cast<int32_t>(smaller<int64_t>(p.block_q, INT32_MAX));
  t.block_k = static_cast<int32_t>(smaller<int64_t>(p.block_k, INT32_MAX));
  t.scale = p.scale;
  t.softcap = p.softcap;
  t.slope = p.alibi == TSR_ALIBI_NONE ? 0.0f
            : a.alibi[p.alibi == TSR_ALIBI_PER_BATCH_HEAD ? b * p.heads_q + h : h];
  t.sq = sequence.q.len;
  t.sk = sequence.k.len;
  t.drops = p.dropout > 0;
  if (t.drops)
    t.key = a.rng_state ? tsri_dropout_key_make(a.rng_state[0], a.rng_state[1])
                        : tsri_dropout_key_make(a.seed, a.offset);
  t.threshold = call.drop_threshold;
  t.head = b * p.heads_q + h;
  return t;
}

// Element `offset` of the mask tensor: one byte is loaded, the rule is common/bias.h's.
TSRI_DEVICE bool mask_allows(const ScoreTerms &t, int64_t offset) {
  const uint8_t byte = load_global<uint8_t>(static_cast<const uint8_t *>(t.mask) +
                                            (t.mask_bits ? offset >> 3 : offset));
  return tsri_mask_element(&byte, t.mask_bits, t.mask_bits ? offset & 7 : 0);
}

// Steps 1 to 4 without the interval rule; i, j inside the sequence. -inf where a mask tensor hides.
TSRI_DEVICE float score_of(const ScoreTerms &t, float dot, int32_t i, int32_t j) {
  float s = t.scale * dot;
  if (t.softcap > 0) s = t.softcap * tanh_of(s / t.softcap);
  if (t.bias) s += load_element(t.bias_dtype, t.bias, i * t.bias_i + j * t.bias_j);
  if (t.slope != 0) s -= t.slope * static_cast<float>(tsri_alibi_distance(i, j, t.sq, t.sk));
  if (t.mask && !mask_allows(t, t.mask_bh + i * t.mask_i + j * t.mask_j))
    s = -infinity();
  if (t.blocks && !load_global<uint8_t>(t.blocks + t.block_bh + i / t.block_q * t.block_i +
                                        j / t.block_k * t.block_j))
    s = -infinity();
  return s;
}

// d score / d dot over scale, at the value that score_of saw.
TSRI_DEVICE float softcap_slope(const ScoreTerms &t, float dot) {
  if (!(t.softcap > 0)) return 1.0f;
  const float y = tanh_of(t.scale * dot / t.softcap);
  return 1.0f - y * y;
}

// Whether dropout keeps keys j and j + 1, j even.
TSRI_DEVICE void keep_pair(const ScoreTerms &t, int32_t i, int32_t j, bool keep[2]) {
  const tsri_philox words = tsri_dropout_words(t.key, t.head, i, j >> 2);
  keep[0] = (j & 2 ? words.w[2] : words.w[0]) >= t.threshold;
  keep[1] = (j & 2 ? words.w[3] : words.w[1]) >= t.threshold;
}

// The same for one key. Words are picked by conditions: an index would put them in local memory.
TSRI_DEVICE bool keep_key(const ScoreTerms &t, int32_t i, int32_t j) {
  bool keep[2];
  keep_pair(t, i, j & ~1, keep);
  return j & 1 ? keep[1] : keep[0];
}

} // namespace gpu
} // namespace tessera

#endif // TESSERA_COMMON_GPU_SCORE_HPP_
