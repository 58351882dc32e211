// SPDX-License-Identifier: Apache-2.0
//
// Micro-kernels on one tile, per Highway target, in the "query lanes" form: a lane is a row of Q,
// so scores are S^T = K Q^T, outputs O^T = V^T P^T, and everything between is vertical. K and V are
// read as scalars that are broadcast, in their own layout, and need no packing.
//
//   Q^T [dim][W]    S^T, P^T [keys][W]    O^T [dim_v][W]     W = NV vectors of rows, NV = 1 .. 3
//
// A block of MR keys (or MR dims of V) times NV vectors keeps MR * NV sums in registers. Every
// element is summed over the inner index in order by fused multiply-add, whatever MR and NV are, so
// a row's bits do not depend on the block it fell into.
#include <stddef.h>
#include <stdint.h>

#include "row_policy-inl.h"

#if defined(TESSERA_CPU_TILE_INL_H_) == defined(HWY_TARGET_TOGGLE)
  #ifdef TESSERA_CPU_TILE_INL_H_
    #undef TESSERA_CPU_TILE_INL_H_
  #else
    #define TESSERA_CPU_TILE_INL_H_
  #endif

HWY_BEFORE_NAMESPACE();
namespace tessera {
namespace HWY_NAMESPACE {

// Vectors per block of rows, and rows of the register block: 24 + 4 of 32 registers, or 12 + 4
// of 16.
constexpr int kMaxVectors = 3;
  #if HWY_TARGET == HWY_AVX2 || HWY_TARGET == HWY_SSE4 || HWY_TARGET == HWY_SSSE3
template <int NV>
constexpr int kBlock = NV == 1 ? 8 : 4;
  #else
template <int NV>
constexpr int kBlock = 8;
  #endif

  // Vectors may not be array elements or members on targets of unknown length: names are made by
  // hand.
  #define TSRI_EACH_ROW(X) X(0) X(1) X(2) X(3) X(4) X(5) X(6) X(7)

// Scores of keys 0 .. n-1 at k (rows `ld` apart) against one block of rows, over `dim` dims; added
// to what S^T holds if kAdd. Rows of S^T up to the next multiple of the block may be overwritten.
template <int NV, bool kAdd>
static HWY_NOINLINE void score_part(const float *k, int64_t ld, size_t n,
                                    const float *HWY_RESTRICT q, size_t dim,
                                    float *HWY_RESTRICT s) {
  constexpr int MR = kBlock<NV>;
  const DF d;
  const size_t lanes = hn::Lanes(d);
  const size_t width = NV * lanes;
  for (size_t j = 0; j < n; j += MR) {
    const size_t last = n - 1 - j;
  #define TSRI_DECLARE(i)                                           \
    VF a##i##0 = hn::Zero(d), a##i##1 = a##i##0, a##i##2 = a##i##0; \
    const float *HWY_RESTRICT k##i = k + static_cast<int64_t>(j + HWY_MIN(size_t{i}, last)) * ld;
    TSRI_EACH_ROW(TSRI_DECLARE)
  #undef TSRI_DECLARE
    const float *HWY_RESTRICT qx = q;
    for (size_t x = 0; x < dim; ++x, qx += width) {
      const VF b0 = hn::Load(d, qx);
      const VF b1 = NV > 1 ? hn::Load(d, qx + lanes) : b0;
      const VF b2 = NV > 2 ? hn::Load(d, qx + 2 * lanes) : b0;
  #define TSRI_STEP(i)                                            \
    if constexpr (i < MR) {                                       \
      const VF c = hn::Set(d, k##i[x]);                           \
      a##i##0 = hn::MulAdd(c, b0, a##i##0);                       \
      if constexpr (NV > 1) a##i##1 = hn::MulAdd(c, b1, a##i##1); \
      if constexpr (NV > 2) a##i##2 = hn::MulAdd(c, b2, a##i##2); \
    }
      TSRI_EACH_ROW(TSRI_STEP)
  #undef TSRI_STEP
    }
    float *HWY_RESTRICT sj = s + j * width;
  #define TSRI_JOIN(x, at) hn::Store(kAdd ? hn::Add(hn::Load(d, sj + (at)), x) : x, d, sj + (at))
  #define TSRI_FINISH(i)                                              \
    if constexpr (i < MR) {                                           \
      TSRI_JOIN(a##i##0, i *width);                                   \
      if constexpr (NV > 1) TSRI_JOIN(a##i##1, i *width + lanes);     \
      if constexpr (NV > 2) TSRI_JOIN(a##i##2, i *width + 2 * lanes); \
    }
    TSRI_EACH_ROW(TSRI_FINISH)
  #undef TSRI_FINISH
  #undef TSRI_JOIN
  }
}

// All dims of S^T = K Q^T. Sums over many dims are cut into parts that are added afterwards, which
// keeps the rounding error of dim 576 near that of dim 128.
template <int NV>
HWY_INLINE void score_tile(const float *k, int64_t ld, size_t n, const float *HWY_RESTRICT q,
                           size_t dim, float *HWY_RESTRICT s) {
  constexpr size_t kWhole = 128, kPart = 64;
  const size_t width = NV * hn::Lanes(DF());
  size_t done = dim <= kWhole ? dim : kPart;
  score_part<NV, false>(k, ld, n, q, done, s);
  for (; done < dim; done += kPart)
    score_part<NV, true>(k + done, ld, n, q + done * width, HWY_MIN(kPart, dim - done), s);
}

// Maximum over keys of every row, folded into m[width]. Kept out of score_part: with three more
// live vectors gcc reloads operands of every product. Two chains a vector, because a maximum takes
// 4 cycles.
template <int NV>
HWY_INLINE void max_tile(const float *HWY_RESTRICT s, size_t n, float *HWY_RESTRICT m) {
  const DF d;
  const size_t lanes = hn::Lanes(d);
  const size_t width = NV * lanes;
  VF a0 = hn::Load(d, m), a1 = a0, a2 = a0;
  if constexpr (NV > 1) a1 = hn::Load(d, m + lanes);
  if constexpr (NV > 2) a2 = hn::Load(d, m + 2 * lanes);
  VF b0 = a0, b1 = a1, b2 = a2;
  size_t j = 0;
  for (; j + 2 <= n; j += 2, s += 2 * width) {
    a0 = RowPolicy::max(a0, hn::Load(d, s));
    if constexpr (NV > 1) a1 = RowPolicy::max(a1, hn::Load(d, s + lanes));
    if constexpr (NV > 2) a2 = RowPolicy::max(a2, hn::Load(d, s + 2 * lanes));
    b0 = RowPolicy::max(b0, hn::Load(d, s + width));
    if constexpr (NV > 1) b1 = RowPolicy::max(b1, hn::Load(d, s + width + lanes));
    if constexpr (NV > 2) b2 = RowPolicy::max(b2, hn::Load(d, s + width + 2 * lanes));
  }
  if (j < n) {
    a0 = RowPolicy::max(a0, hn::Load(d, s));
    if constexpr (NV > 1) a1 = RowPolicy::max(a1, hn::Load(d, s + lanes));
    if constexpr (NV > 2) a2 = RowPolicy::max(a2, hn::Load(d, s + 2 * lanes));
  }
  hn::Store(RowPolicy::max(a0, b0), d, m);
  if constexpr (NV > 1) hn::Store(RowPolicy::max(a1, b1), d, m + lanes);
  if constexpr (NV > 2) hn::Store(RowPolicy::max(a2, b2), d, m + 2 * lanes);
}

// MR dims of O^T = alpha O^T + V^T P^T over n keys. A tile is summed apart and joins O at the end:
// rounding errors then grow with the tile and the number of tiles, not with the number of keys.
template <int NV, int MR>
static HWY_NOINLINE void output_block(const float *HWY_RESTRICT v, int64_t ld, size_t n,
                                      const float *HWY_RESTRICT p, float *HWY_RESTRICT o,
                                      const VF &alpha0, const VF &alpha1, const VF &alpha2) {
  const DF d;
  const size_t lanes = hn::Lanes(d);
  const size_t width = NV * lanes;
  #define TSRI_DECLARE(i) VF a##i##0 = hn::Zero(d), a##i##1 = a##i##0, a##i##2 = a##i##0;
  TSRI_EACH_ROW(TSRI_DECLARE)
  #undef TSRI_DECLARE
  for (size_t j = 0; j < n; ++j, v += ld, p += width) {
    const VF b0 = hn::Load(d, p);
    const VF b1 = NV > 1 ? hn::Load(d, p + lanes) : b0;
    const VF b2 = NV > 2 ? hn::Load(d, p + 2 * lanes) : b0;
  #define TSRI_STEP(i)                                            \
    if constexpr (i < MR) {                                       \
      const VF c = hn::Set(d, v[i]);                              \
      a##i##0 = hn::MulAdd(c, b0, a##i##0);                       \
      if constexpr (NV > 1) a##i##1 = hn::MulAdd(c, b1, a##i##1); \
      if constexpr (NV > 2) a##i##2 = hn::MulAdd(c, b2, a##i##2); \
    }
    TSRI_EACH_ROW(TSRI_STEP)
  #undef TSRI_STEP
  }
  #define TSRI_JOIN(x, alpha, at) \
    hn::Store(Recurrence::new_sum(hn::Load(d, o + (at)), alpha, x), d, o + (at))
  #define TSRI_FINISH(i)                                                      \
    if constexpr (i < MR) {                                                   \
      TSRI_JOIN(a##i##0, alpha0, i *width);                                   \
      if constexpr (NV > 1) TSRI_JOIN(a##i##1, alpha1, i *width + lanes);     \
      if constexpr (NV > 2) TSRI_JOIN(a##i##2, alpha2, i *width + 2 * lanes); \
    }
  TSRI_EACH_ROW(TSRI_FINISH)
  #undef TSRI_FINISH
  #undef TSRI_JOIN
}

// All dims of O^T: whole blocks, then the rest in halves, so that nothing beyond a row of V is
// read.
template <int NV>
HWY_INLINE void output_tile(const float *v, int64_t ld, size_t n, const float *HWY_RESTRICT p,
                            size_t dim, float *HWY_RESTRICT o, VF alpha0, VF alpha1, VF alpha2) {
  constexpr int MR = kBlock<NV>;
  const size_t width = NV * hn::Lanes(DF());
  size_t x = 0;
  for (; x + MR <= dim; x += MR)
    output_block<NV, MR>(v + x, ld, n, p, o + x * width, alpha0, alpha1, alpha2);
  if (MR > 4 && (dim - x) & 4) {
    output_block<NV, 4>(v + x, ld, n, p, o + x * width, alpha0, alpha1, alpha2);
    x += 4;
  }
  if ((dim - x) & 2) {
    output_block<NV, 2>(v + x, ld, n, p, o + x * width, alpha0, alpha1, alpha2);
    x += 2;
  }
  if ((dim - x) & 1) output_block<NV, 1>(v + x, ld, n, p, o + x * width, alpha0, alpha1, alpha2);
}

// Scores to probabilities in place, and the sum over keys of each lane: p = 2^((s - r) unit).
template <int NV>
HWY_INLINE void softmax_tile(float *HWY_RESTRICT s, size_t n, VF unit, VF r0, VF r1, VF r2,
                             VF &sum0, VF &sum1, VF &sum2) {
  const DF d;
  const size_t lanes = hn::Lanes(d);
  const size_t width = NV * lanes;
  VF t0 = hn::Zero(d), t1 = t0, t2 = t0;
  for (size_t j = 0; j < n; ++j, s += width) {
    const VF p0 = Recurrence::prob_in(unit, hn::Load(d, s), r0);
    hn::Store(p0, d, s);
    t0 = hn::Add(t0, p0);
    if constexpr (NV > 1) {
      const VF p1 = Recurrence::prob_in(unit, hn::Load(d, s + lanes), r1);
      hn::Store(p1, d, s + lanes);
      t1 = hn::Add(t1, p1);
    }
    if constexpr (NV > 2) {
      const VF p2 = Recurrence::prob_in(unit, hn::Load(d, s + 2 * lanes), r2);
      hn::Store(p2, d, s + 2 * lanes);
      t2 = hn::Add(t2, p2);
    }
  }
  sum0 = t0;
  sum1 = t1;
  sum2 = t2;
}

  // Rows are transposed in groups: 4 x 4 blocks of 128-bit vectors exist on every target but
  // SCALAR.
  #if HWY_TARGET == HWY_SCALAR
constexpr size_t kGroup = 1;
  #else
constexpr size_t kGroup = 4;
using D4 = hn::Full128<float>;
using V4 = hn::Vec<D4>;

HWY_INLINE void transpose4(V4 &a, V4 &b, V4 &c, V4 &e) {
  const D4 d4;
  const hn::Full128<uint64_t> d2;
  const auto ab0 = hn::BitCast(d2, hn::InterleaveLower(d4, a, b));
  const auto ab1 = hn::BitCast(d2, hn::InterleaveUpper(d4, a, b));
  const auto ce0 = hn::BitCast(d2, hn::InterleaveLower(d4, c, e));
  const auto ce1 = hn::BitCast(d2, hn::InterleaveUpper(d4, c, e));
  a = hn::BitCast(d4, hn::InterleaveLower(d2, ab0, ce0));
  b = hn::BitCast(d4, hn::InterleaveUpper(d2, ab0, ce0));
  c = hn::BitCast(d4, hn::InterleaveLower(d2, ab1, ce1));
  e = hn::BitCast(d4, hn::InterleaveUpper(d2, ab1, ce1));
}
  #endif

// kGroup rows of n floats into kGroup columns of a matrix of `width` columns.
HWY_INLINE void rows_to_columns(const float *const *rows, size_t n, float *HWY_RESTRICT dst,
                                size_t width) {
  size_t x = 0;
  #if HWY_TARGET != HWY_SCALAR
  const D4 d4;
  for (; x + 4 <= n; x += 4) {
    V4 a = hn::LoadU(d4, rows[0] + x), b = hn::LoadU(d4, rows[1] + x);
    V4 c = hn::LoadU(d4, rows[2] + x), e = hn::LoadU(d4, rows[3] + x);
    transpose4(a, b, c, e);
    float *HWY_RESTRICT to = dst + x * width;
    hn::StoreU(a, d4, to);
    hn::StoreU(b, d4, to + width);
    hn::StoreU(c, d4, to + 2 * width);
    hn::StoreU(e, d4, to + 3 * width);
  }
  #endif
  for (; x < n; ++x)
    for (size_t r = 0; r < kGroup; ++r) dst[x * width + r] = rows[r][x];
}

// x *= factor.
HWY_INLINE void scale_tile(float *HWY_RESTRICT x, size_t count, float factor) {
  const DF d;
  const VF f = hn::Set(d, factor);
  for (size_t i = 0; i < count; i += hn::Lanes(d))
    hn::Store(hn::Mul(hn::Load(d, x + i), f), d, x + i);
}

// kGroup columns of a matrix of n rows and `width` columns to kGroup rows, `ld` apart.
HWY_INLINE void columns_to_rows(const float *HWY_RESTRICT src, size_t width, size_t n,
                                float *HWY_RESTRICT dst, size_t ld) {
  size_t x = 0;
  #if HWY_TARGET != HWY_SCALAR
  const D4 d4;
  for (; x + 4 <= n; x += 4) {
    const float *HWY_RESTRICT from = src + x * width;
    V4 a = hn::LoadU(d4, from), b = hn::LoadU(d4, from + width);
    V4 c = hn::LoadU(d4, from + 2 * width), e = hn::LoadU(d4, from + 3 * width);
    transpose4(a, b, c, e);
    hn::StoreU(a, d4, dst + x);
    hn::StoreU(b, d4, dst + ld + x);
    hn::StoreU(c, d4, dst + 2 * ld + x);
    hn::StoreU(e, d4, dst + 3 * ld + x);
  }
  #endif
  for (; x < n; ++x)
    for (size_t r = 0; r < kGroup; ++r) dst[r * ld + x] = src[x * width + r];
}

// NOLINTNEXTLINE(google-readability-namespace-comments)
}  // namespace HWY_NAMESPACE
}  // namespace tessera
HWY_AFTER_NAMESPACE();

#endif  // TESSERA_CPU_TILE_INL_H_
