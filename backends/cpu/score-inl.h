// SPDX-License-Identifier: Apache-2.0
//
// The steps between Q K^T and the softmax on one tile S^T [n keys][width rows], per Highway target,
// in the order of common/score.h: softcap, bias, ALiBi, mask; and dropout after it. Each step is
// its own pass over a tile that sits in L1: a problem pays for what it uses, and none of it is in
// the inner loops of the common case. Masked scores become -inf by selection, never by addition.
#include <stdint.h>

#include "common/bias.h"
#include "common/dropout.h"
#include "common/mask.h"
#include "convert-inl.h"
#include "row_policy-inl.h"
#include "tile-inl.h"
#include "transpose-inl.h"

#if defined(TESSERA_CPU_SCORE_INL_H_) == defined(HWY_TARGET_TOGGLE)
  #ifdef TESSERA_CPU_SCORE_INL_H_
    #undef TESSERA_CPU_SCORE_INL_H_
  #else
    #define TESSERA_CPU_SCORE_INL_H_
  #endif

HWY_BEFORE_NAMESPACE();
namespace tessera {
namespace HWY_NAMESPACE {

// s = cap * tanh(s / cap).
HWY_INLINE void softcap_tile(float *HWY_RESTRICT s, size_t count, float cap) {
  const DF d;
  const VF c = hn::Set(d, cap);
  for (size_t x = 0; x < count; x += hn::Lanes(d))
    hn::Store(hn::Mul(c, tanh_of(hn::Div(hn::Load(d, s + x), c))), d, s + x);
}

HWY_INLINE void add_tile(float *HWY_RESTRICT s, const float *HWY_RESTRICT term, size_t count) {
  const DF d;
  for (size_t x = 0; x < count; x += hn::Lanes(d))
    hn::Store(hn::Add(hn::Load(d, s + x), hn::Load(d, term + x)), d, s + x);
}

// s -= slope * |distance - j|, where distance[row] is that of key 0 of the tile. Distances fit 32
// bits because lengths are below 2^31.
HWY_INLINE void alibi_tile(float *HWY_RESTRICT s, size_t n, size_t width,
                           const float *HWY_RESTRICT slope, const int32_t *HWY_RESTRICT distance) {
  const DF d;
  const DI di;
  for (size_t x = 0; x < width; x += hn::Lanes(d)) {
    const VF factor = hn::Load(d, slope + x);
    VI left = hn::Load(di, distance + x);
    float *HWY_RESTRICT at = s + x;
    for (size_t j = 0; j < n; ++j, at += width, left = hn::Sub(left, hn::Set(di, 1))) {
      const VF far = hn::ConvertTo(d, hn::Max(left, hn::Neg(left)));
      hn::Store(hn::Sub(hn::Load(d, at), hn::Mul(factor, far)), d, at);
    }
  }
}

// Keeps keys j with j < prefix or lo[row] <= j < hi[row], within zones. Keys that all rows of a
// vector see are not touched.
HWY_INLINE void interval_tile(float *HWY_RESTRICT s, const Zones &z, size_t width, int32_t prefix,
                              const int32_t *HWY_RESTRICT lo, const int32_t *HWY_RESTRICT hi) {
  const DF d;
  const DI di;
  const VF hidden = hn::Set(d, -__builtin_inff());
  const size_t first = prefix > 0 ? static_cast<size_t>(prefix) : 0;
  for (size_t x = 0, v = 0; x < width; x += hn::Lanes(d), ++v) {
    const VI from = hn::Load(di, lo + x), to = hn::Load(di, hi + x);
    const int32_t shared = hn::GetLane(hn::MaxOfLanes(di, from));
    const int32_t end = hn::GetLane(hn::MinOfLanes(di, to));
    for (size_t j = HWY_MAX(first, z.from[v]); j < z.to[v]; ++j) {
      const VI key = hn::Set(di, static_cast<int32_t>(j));
      if (static_cast<int32_t>(j) == shared && shared < end) {
        j = static_cast<size_t>(end) - 1;
        continue;
      }
      const auto off = hn::Or(hn::Gt(from, key), hn::Not(hn::Gt(to, key)));
      float *at = s + j * width + x;
      hn::Store(hn::IfThenElse(hn::RebindMask(d, off), hidden, hn::Load(d, at)), d, at);
    }
  }
}

// Keeps keys whose mask term is not 0.
HWY_INLINE void mask_tile(float *HWY_RESTRICT s, const float *HWY_RESTRICT term, size_t count) {
  const DF d;
  const VF hidden = hn::Set(d, -__builtin_inff());
  for (size_t x = 0; x < count; x += hn::Lanes(d)) {
    const auto off = hn::Eq(hn::Load(d, term + x), hn::Zero(d));
    hn::Store(hn::IfThenElse(off, hidden, hn::Load(d, s + x)), d, s + x);
  }
}

  #if HWY_TARGET != HWY_SCALAR
// High and low halves of a * b in 32-bit lanes.
HWY_INLINE void multiply_wide(VU a, VU b, VU &high, VU &low) {
  const DU du;
  const hn::RepartitionToWide<DU> dw;
  const auto even = hn::MulEven(a, b);
  const auto odd = hn::MulEven(hn::BitCast(du, hn::ShiftRight<32>(hn::BitCast(dw, a))),
                               hn::BitCast(du, hn::ShiftRight<32>(hn::BitCast(dw, b))));
  high = hn::OddEven(hn::BitCast(du, odd), hn::BitCast(du, hn::ShiftRight<32>(even)));
  low = hn::OddEven(hn::BitCast(du, hn::ShiftLeft<32>(odd)), hn::BitCast(du, even));
}

// Philox4x32-10 of common/dropout.h, one counter per lane.
HWY_INLINE void philox(VU &c0, VU &c1, VU &c2, VU &c3, uint32_t k0, uint32_t k1) {
  const DU du;
  const VU m0 = hn::Set(du, TSRI_PHILOX_M0), m1 = hn::Set(du, TSRI_PHILOX_M1);
  for (int round = 0; round < TSRI_PHILOX_ROUNDS; ++round) {
    VU high0, low0, high1, low1;
    multiply_wide(m0, c0, high0, low0);
    multiply_wide(m1, c2, high1, low1);
    c0 = hn::Xor(hn::Xor(high1, c1), hn::Set(du, k0));
    c1 = low1;
    c2 = hn::Xor(hn::Xor(high0, c3), hn::Set(du, k1));
    c3 = low0;
    k0 += TSRI_PHILOX_W0;
    k1 += TSRI_PHILOX_W1;
  }
}

HWY_INLINE void keep_line(float *at, VU word, VU threshold, VF factor) {
  const DF d;
  const auto keep = hn::RebindMask(d, hn::Eq(hn::Max(word, threshold), word));
  hn::Store(hn::IfThenElseZero(keep, hn::Mul(hn::Load(d, at), factor)), d, at);
}
  #endif

// p = keep ? p * factor : 0 for keys key .. key + n - 1, key a multiple of 4. query, head: 32-bit
// words of the counter per row (head is below 2^31, so its upper word is 0).
HWY_INLINE void dropout_tile(float *HWY_RESTRICT p, size_t n, size_t width, int64_t key,
                             const uint32_t *HWY_RESTRICT query, const uint32_t *HWY_RESTRICT head,
                             tsri_dropout_key drop, uint64_t threshold, float factor) {
  #if HWY_TARGET == HWY_SCALAR
  for (size_t j = 0; j < n; ++j)
    for (size_t x = 0; x < width; ++x) {
      const int keep =
          tsri_dropout_keep(drop, threshold, head[x], query[x], key + static_cast<int64_t>(j));
      p[j * width + x] = keep ? p[j * width + x] * factor : 0.0f;
    }
  #else
  const DF d;
  const DU du;
  if (threshold > 0xffffffffu) {  // everything is dropped
    for (size_t x = 0; x < n * width; x += hn::Lanes(d)) hn::Store(hn::Zero(d), d, p + x);
    return;
  }
  const VU limit = hn::Set(du, static_cast<uint32_t>(threshold));
  const VF scale = hn::Set(d, factor);
  for (size_t x = 0; x < width; x += hn::Lanes(d)) {
    for (size_t j = 0; j < n; j += 4) {
      VU w0 = hn::Set(du, static_cast<uint32_t>((key + static_cast<int64_t>(j)) >> 2));
      VU w1 = hn::Load(du, query + x), w2 = hn::Load(du, head + x), w3 = hn::Zero(du);
      philox(w0, w1, w2, w3, drop.k0, drop.k1);
      float *at = p + j * width + x;
      keep_line(at, w0, limit, scale);
      if (j + 1 < n) keep_line(at + width, w1, limit, scale);
      if (j + 2 < n) keep_line(at + 2 * width, w2, limit, scale);
      if (j + 3 < n) keep_line(at + 3 * width, w3, limit, scale);
    }
  }
  #endif
}

// A line of a bias: n elements from element `offset` on, as float32.
HWY_INLINE void bias_line(const tsr_layout &layout, const void *base, int64_t offset, size_t n,
                          float *HWY_RESTRICT dst) {
  load_row_any(layout.dtype, base, offset, layout.stride[3], n, dst);
}

// A line of a boolean mask as 0 and 1; returns how many are 1.
HWY_INLINE size_t mask_line(const tsr_layout &layout, const void *base, int64_t offset, size_t n,
                            float *HWY_RESTRICT dst) {
  const int64_t step = layout.stride[3];
  const int bits = layout.dtype == TSR_DTYPE_BIT;
  size_t ones = 0;
  for (size_t j = 0; j < n; ++j) {
    const int on = tsri_mask_element(base, bits, offset + static_cast<int64_t>(j) * step);
    dst[j] = on ? 1.0f : 0.0f;
    ones += on ? 1 : 0;
  }
  return ones;
}

// Clears the elements of a mask line whose block is off: keys key .. key + n - 1, block row
// starting at element `offset`. Returns how many were cleared and had been 1.
HWY_INLINE size_t block_mask_line(const tsr_layout &layout, const void *base, int64_t offset,
                                  int64_t block_k, int64_t key, size_t n, float *HWY_RESTRICT dst) {
  size_t cleared = 0;
  for (size_t j = 0; j < n;) {
    const int64_t column = (key + static_cast<int64_t>(j)) / block_k;
    const size_t end =
        static_cast<size_t>(HWY_MIN(static_cast<int64_t>(n), (column + 1) * block_k - key));
    const bool on = static_cast<const uint8_t *>(base)[offset + column * layout.stride[3]] != 0;
    for (; j < end; ++j) {
      if (on) continue;
      cleared += dst[j] != 0.0f ? 1 : 0;
      dst[j] = 0.0f;
    }
  }
  return cleared;
}

// NOLINTNEXTLINE(google-readability-namespace-comments)
}  // namespace HWY_NAMESPACE
}  // namespace tessera
HWY_AFTER_NAMESPACE();

#endif  // TESSERA_CPU_SCORE_INL_H_
