// SPDX-License-Identifier: Apache-2.0
//
// Rows of tensors to and from columns of tiles, per Highway target: a lane is a row, so Q comes in
// and O goes out transposed. 4 x 4 blocks of 128 bits exist on every target but SCALAR; AVX2 and
// AVX-512 turn a whole vector of rows at a time, four elements of each row to a load or store.
#include <stddef.h>

#include "row_policy-inl.h"

#if defined(TESSERA_CPU_TRANSPOSE_INL_H_) == defined(HWY_TARGET_TOGGLE)
  #ifdef TESSERA_CPU_TRANSPOSE_INL_H_
    #undef TESSERA_CPU_TRANSPOSE_INL_H_
  #else
    #define TESSERA_CPU_TRANSPOSE_INL_H_
  #endif

HWY_BEFORE_NAMESPACE();
namespace tessera {
namespace HWY_NAMESPACE {

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

  // Rows turned at a time by rows_to_lanes and lanes_to_rows. Where that is a vector of them, what
  // is stored can be changed on the way.
  #if HWY_TARGET == HWY_AVX3 || HWY_TARGET == HWY_AVX3_DL || HWY_TARGET == HWY_AVX2
constexpr bool kWholeVectors = true;
constexpr size_t kRows = HWY_LANES(float);

// Elements x .. x + 3 of rows i, i + 4, ... as the 128-bit blocks of a vector.
HWY_INLINE VF blocks_of_rows(const float *const *rows, size_t i, size_t x) {
    #if HWY_TARGET == HWY_AVX2
  const __m256 v = _mm256_castps128_ps256(_mm_loadu_ps(rows[i] + x));
  return VF{_mm256_insertf128_ps(v, _mm_loadu_ps(rows[i + 4] + x), 1)};
    #else
  __m512 v = _mm512_castps128_ps512(_mm_loadu_ps(rows[i] + x));
  v = _mm512_insertf32x4(v, _mm_loadu_ps(rows[i + 4] + x), 1);
  v = _mm512_insertf32x4(v, _mm_loadu_ps(rows[i + 8] + x), 2);
  return VF{_mm512_insertf32x4(v, _mm_loadu_ps(rows[i + 12] + x), 3)};
    #endif
}

HWY_INLINE void blocks_to_rows(VF v, float *const *rows, size_t i, size_t x) {
    #if HWY_TARGET == HWY_AVX2
  _mm_storeu_ps(rows[i] + x, _mm256_castps256_ps128(v.raw));
  _mm_storeu_ps(rows[i + 4] + x, _mm256_extractf128_ps(v.raw, 1));
    #else
  _mm_storeu_ps(rows[i] + x, _mm512_castps512_ps128(v.raw));
  _mm_storeu_ps(rows[i + 4] + x, _mm512_extractf32x4_ps(v.raw, 1));
  _mm_storeu_ps(rows[i + 8] + x, _mm512_extractf32x4_ps(v.raw, 2));
  _mm_storeu_ps(rows[i + 12] + x, _mm512_extractf32x4_ps(v.raw, 3));
    #endif
}

HWY_INLINE void transpose_blocks(VF &a, VF &b, VF &c, VF &e) {
  const DF d;
  const hn::Repartition<uint64_t, DF> d2;
  const auto ab0 = hn::BitCast(d2, hn::InterleaveLower(d, a, b));
  const auto ab1 = hn::BitCast(d2, hn::InterleaveUpper(d, a, b));
  const auto ce0 = hn::BitCast(d2, hn::InterleaveLower(d, c, e));
  const auto ce1 = hn::BitCast(d2, hn::InterleaveUpper(d, c, e));
  a = hn::BitCast(d, hn::InterleaveLower(d2, ab0, ce0));
  b = hn::BitCast(d, hn::InterleaveUpper(d2, ab0, ce0));
  c = hn::BitCast(d, hn::InterleaveLower(d2, ab1, ce1));
  e = hn::BitCast(d, hn::InterleaveUpper(d2, ab1, ce1));
}

// kRows rows of n floats into kRows columns of a matrix of `width` columns.
HWY_INLINE void rows_to_lanes(const float *const *rows, size_t n, float *HWY_RESTRICT dst,
                              size_t width) {
  const DF d;
  size_t x = 0;
  for (; x + 4 <= n; x += 4) {
    VF a = blocks_of_rows(rows, 0, x), b = blocks_of_rows(rows, 1, x);
    VF c = blocks_of_rows(rows, 2, x), e = blocks_of_rows(rows, 3, x);
    transpose_blocks(a, b, c, e);
    float *HWY_RESTRICT to = dst + x * width;
    hn::Store(a, d, to);
    hn::Store(b, d, to + width);
    hn::Store(c, d, to + 2 * width);
    hn::Store(e, d, to + 3 * width);
  }
  for (; x < n; ++x)
    for (size_t r = 0; r < kRows; ++r) dst[x * width + r] = rows[r][x];
}

// The reverse: f(vector of a column) into rows, whose elements n .. n + 3 are not touched.
template <class F>
HWY_INLINE void lanes_to_rows(const float *HWY_RESTRICT src, size_t width, size_t n,
                              float *const *rows, const F &f) {
  const DF d;
  size_t x = 0;
  for (; x + 4 <= n; x += 4) {
    const float *HWY_RESTRICT from = src + x * width;
    VF a = f(hn::Load(d, from)), b = f(hn::Load(d, from + width));
    VF c = f(hn::Load(d, from + 2 * width)), e = f(hn::Load(d, from + 3 * width));
    transpose_blocks(a, b, c, e);
    blocks_to_rows(a, rows, 0, x);
    blocks_to_rows(b, rows, 1, x);
    blocks_to_rows(c, rows, 2, x);
    blocks_to_rows(e, rows, 3, x);
  }
  HWY_ALIGN float column[kRows];
  for (; x < n; ++x) {
    hn::Store(f(hn::Load(d, src + x * width)), d, column);
    for (size_t r = 0; r < kRows; ++r) rows[r][x] = column[r];
  }
}
  #else
constexpr bool kWholeVectors = false;
constexpr size_t kRows = kGroup;

HWY_INLINE void rows_to_lanes(const float *const *rows, size_t n, float *HWY_RESTRICT dst,
                              size_t width) {
  rows_to_columns(rows, n, dst, width);
}

// Here a vector is no group of rows: f has been applied before.
template <class F>
HWY_INLINE void lanes_to_rows(const float *HWY_RESTRICT src, size_t width, size_t n,
                              float *const *rows, const F &) {
  size_t x = 0;
    #if HWY_TARGET != HWY_SCALAR
  const D4 d4;
  for (; x + 4 <= n; x += 4) {
    const float *HWY_RESTRICT from = src + x * width;
    V4 a = hn::LoadU(d4, from), b = hn::LoadU(d4, from + width);
    V4 c = hn::LoadU(d4, from + 2 * width), e = hn::LoadU(d4, from + 3 * width);
    transpose4(a, b, c, e);
    hn::StoreU(a, d4, rows[0] + x);
    hn::StoreU(b, d4, rows[1] + x);
    hn::StoreU(c, d4, rows[2] + x);
    hn::StoreU(e, d4, rows[3] + x);
  }
    #endif
  for (; x < n; ++x)
    for (size_t r = 0; r < kRows; ++r) rows[r][x] = src[x * width + r];
}
  #endif

// f of the columns [0, lanes) of a matrix of n rows, in place, where lanes_to_rows does not do it.
template <class F>
HWY_INLINE void before_rows(float *HWY_RESTRICT src, size_t width, size_t n, const F &f) {
  if constexpr (!kWholeVectors) {
    const DF d;
    for (size_t x = 0; x < n; ++x) hn::Store(f(hn::Load(d, src + x * width)), d, src + x * width);
  } else {
    (void)src, (void)width, (void)n, (void)f;
  }
}

// NOLINTNEXTLINE(google-readability-namespace-comments)
}  // namespace HWY_NAMESPACE
}  // namespace tessera
HWY_AFTER_NAMESPACE();

#endif  // TESSERA_CPU_TRANSPOSE_INL_H_
