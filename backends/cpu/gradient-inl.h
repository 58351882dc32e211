// SPDX-License-Identifier: Apache-2.0
//
// What backward adds to the pieces of forward, per Highway target: the product that contracts over
// query lanes (dV += P^T dO and dK += dS^T Q), and the pass from S and dP to P and dS on one tile.
//
//   P = 2^((s - ref) unit) inverse      dS = P (keep dP - D)
//
// The product has its lanes along the head dimension: an element of P^T or dS^T is broadcast, rows
// of dO or Q are loaded. 6 keys x 4 vectors of sums (6 x 2 with 16 registers) stay in registers.
// Each tile is summed apart and joins dK or dV at the end, so that rounding errors do not grow with
// every query.
#include <stddef.h>

#include "row_policy-inl.h"
#include "tile-inl.h"

#if defined(TESSERA_CPU_GRADIENT_INL_H_) == defined(HWY_TARGET_TOGGLE)
  #ifdef TESSERA_CPU_GRADIENT_INL_H_
    #undef TESSERA_CPU_GRADIENT_INL_H_
  #else
    #define TESSERA_CPU_GRADIENT_INL_H_
  #endif

HWY_BEFORE_NAMESPACE();
namespace tessera {
namespace HWY_NAMESPACE {

  #if HWY_TARGET == HWY_AVX2 || HWY_TARGET == HWY_SSE4 || HWY_TARGET == HWY_SSSE3
constexpr size_t kWide = 2;
  #else
constexpr size_t kWide = 4;
  #endif

  #define TSRI_EACH_KEY(X) X(0) X(1) X(2) X(3) X(4) X(5)

// c[i][x] += sum over r < n of a[i][r] b[r][x] for MR rows i and NV vectors of columns x.
template <int NV, int MR>
HWY_NOINLINE void rows_block(const float *HWY_RESTRICT a, size_t lda, size_t n,
                             const float *HWY_RESTRICT b, size_t ldb, float *HWY_RESTRICT c,
                             size_t ldc) {
  const DF d;
  const size_t lanes = hn::Lanes(d);
  #define TSRI_DECLARE(i)                                                              \
    VF c##i##0 = hn::Zero(d), c##i##1 = c##i##0, c##i##2 = c##i##0, c##i##3 = c##i##0; \
    const float *HWY_RESTRICT a##i = a + (i < MR ? i : 0) * lda;
  TSRI_EACH_KEY(TSRI_DECLARE)
  #undef TSRI_DECLARE
  // The sums lie in L2; they are read at the end.
  for (size_t i = 0; i < MR; ++i)
    for (size_t x = 0; x < NV; ++x) __builtin_prefetch(c + i * ldc + x * lanes, 1);
  TSRI_UNROLL
  for (size_t r = 0; r < n; ++r, b += ldb) {
    const VF b0 = hn::LoadU(d, b);
    const VF b1 = NV > 1 ? hn::LoadU(d, b + lanes) : b0;
    const VF b2 = NV > 2 ? hn::LoadU(d, b + 2 * lanes) : b0;
    const VF b3 = NV > 3 ? hn::LoadU(d, b + 3 * lanes) : b0;
  #define TSRI_STEP(i)                                            \
    if constexpr (i < MR) {                                       \
      const VF w = hn::Set(d, a##i[r]);                           \
      c##i##0 = hn::MulAdd(w, b0, c##i##0);                       \
      if constexpr (NV > 1) c##i##1 = hn::MulAdd(w, b1, c##i##1); \
      if constexpr (NV > 2) c##i##2 = hn::MulAdd(w, b2, c##i##2); \
      if constexpr (NV > 3) c##i##3 = hn::MulAdd(w, b3, c##i##3); \
    }
    TSRI_EACH_KEY(TSRI_STEP)
  #undef TSRI_STEP
  }
  #define TSRI_JOIN(v, at) hn::StoreU(hn::Add(hn::LoadU(d, c + (at)), v), d, c + (at))
  #define TSRI_FINISH(i)                                            \
    if constexpr (i < MR) {                                         \
      TSRI_JOIN(c##i##0, i *ldc);                                   \
      if constexpr (NV > 1) TSRI_JOIN(c##i##1, i *ldc + lanes);     \
      if constexpr (NV > 2) TSRI_JOIN(c##i##2, i *ldc + 2 * lanes); \
      if constexpr (NV > 3) TSRI_JOIN(c##i##3, i *ldc + 3 * lanes); \
    }
  TSRI_EACH_KEY(TSRI_FINISH)
  #undef TSRI_FINISH
  #undef TSRI_JOIN
}

template <int NV>
HWY_INLINE void rows_panel(const float *a, size_t lda, size_t m, size_t n, const float *b,
                           size_t ldb, float *c, size_t ldc) {
  for (; m >= 6; m -= 6, a += 6 * lda, c += 6 * ldc) rows_block<NV, 6>(a, lda, n, b, ldb, c, ldc);
  if (m & 4) {
    rows_block<NV, 4>(a, lda, n, b, ldb, c, ldc);
    a += 4 * lda, c += 4 * ldc;
  }
  if (m & 2) {
    rows_block<NV, 2>(a, lda, n, b, ldb, c, ldc);
    a += 2 * lda, c += 2 * ldc;
  }
  if (m & 1) rows_block<NV, 1>(a, lda, n, b, ldb, c, ldc);
}

// C [m][ldc] += A [m][n] B [n][ldc]; ldc whole vectors, rows of A and B lda and ldb floats apart.
static HWY_NOINLINE HWY_MAYBE_UNUSED void rows_product(const float *a, size_t lda, size_t m, size_t n,
                                      const float *b, size_t ldb, float *c, size_t ldc) {
  const size_t lanes = hn::Lanes(DF());
  for (size_t left = ldc / lanes; left > 0;) {
    // One vector alone has a load per product: 5 = 3 + 2.
    const size_t take = left <= kWide ? left : left == kWide + 1 && kWide > 2 ? kWide - 1 : kWide;
    if (take == 1) rows_panel<1>(a, lda, m, n, b, ldb, c, ldc);
    if (take == 2) rows_panel<2>(a, lda, m, n, b, ldb, c, ldc);
    if constexpr (kWide > 2) {
      if (take == 3) rows_panel<3>(a, lda, m, n, b, ldb, c, ldc);
      if (take == 4) rows_panel<4>(a, lda, m, n, b, ldb, c, ldc);
    }
    b += take * lanes;
    c += take * lanes;
    left -= take;
  }
}

// Softcap and its derivative 1 - tanh^2.
HWY_INLINE void softcap_gradient_tile(float *HWY_RESTRICT s, float *HWY_RESTRICT slope,
                                      size_t count, float cap) {
  const DF d;
  const VF c = hn::Set(d, cap), one = hn::Set(d, 1.0f);
  for (size_t x = 0; x < count; x += hn::Lanes(d)) {
    const VF t = tanh_of(hn::Div(hn::Load(d, s + x), c));
    hn::Store(hn::Mul(c, t), d, s + x);
    hn::Store(hn::NegMulAdd(t, t, one), d, slope + x);
  }
}

HWY_INLINE void multiply_tile(float *HWY_RESTRICT x, const float *HWY_RESTRICT y, size_t count) {
  const DF d;
  for (size_t i = 0; i < count; i += hn::Lanes(d))
    hn::Store(hn::Mul(hn::Load(d, x + i), hn::Load(d, y + i)), d, x + i);
}

// keep ? x keep : 0, for x that may be anything where it is dropped.
HWY_INLINE VF kept(VF x, VF keep) {
  const DF d;
  return hn::IfThenZeroElse(hn::Eq(keep, hn::Zero(d)), hn::Mul(x, keep));
}

// Whether a score is hidden from its row (mask, tail, empty row). Only such a pair is cleared by
// selection, because dP may be anything there. An allowed key whose P underflows to 0 is not: a NaN
// in its V or dP has to show.
HWY_INLINE auto hidden_score(VF s) {
  return hn::Eq(s, hn::Set(DF(), -__builtin_inff()));
}

// -0 stands for a hidden pair between the two passes over a tile: 2^x is never negative.
HWY_INLINE auto hidden_weight(VF w) {
  const DI di;
  const VI minus_zero = hn::BitCast(di, hn::Set(DF(), -0.0f));
  return hn::RebindMask(DF(), hn::Eq(hn::BitCast(di, w), minus_zero));
}

// Rows whose state is known: S to P (after dropout) in s; with kGrad, dP to dS in g. unit: from
// scores to base two, positive. The difference comes first: it is small where P matters, and 0 at
// the maximum.
template <bool kGrad, bool kDrop>
HWY_INLINE void gradient_tile(float *HWY_RESTRICT s, float *HWY_RESTRICT g,
                              const float *HWY_RESTRICT keep, const Zones &z, size_t width,
                              const float *HWY_RESTRICT ref, const float *HWY_RESTRICT inverse,
                              const float *HWY_RESTRICT delta, float unit) {
  const DF d;
  const VF u = hn::Set(d, unit);
  for (size_t x = 0, v = 0; x < width; x += hn::Lanes(d), ++v) {
    const VF r = hn::Load(d, ref + x), scale = hn::Load(d, inverse + x), e = hn::Load(d, delta + x);
    for (size_t j = z.from[v], i = j * width + x; j < z.to[v]; ++j, i += width) {
      const VF score = hn::Load(d, s + i);
      const auto hidden = hidden_score(score);
      VF p = hn::IfThenZeroElse(hidden, hn::Mul(Recurrence::prob_in(u, score, r), scale));
      VF k = p;
      if constexpr (kDrop) k = hn::Load(d, keep + i);
      if constexpr (kGrad) {
        VF dp = hn::Load(d, g + i);
        if constexpr (kDrop) dp = kept(dp, k);
        hn::Store(hn::IfThenZeroElse(hidden, hn::Mul(p, hn::Sub(dp, e))), d, g + i);
      }
      if constexpr (kDrop) p = kept(p, k);
      hn::Store(p, d, s + i);
    }
  }
}

// The sum of what was added, with what rounding took from it (Knuth 1969) unless that is of infinities.
HWY_INLINE VF whole_sum(VF sum, VF rest) {
  return hn::IfThenElse(hn::Eq(rest, rest), hn::Add(sum, rest), sum);
}
HWY_INLINE void add_exactly(VF x, VF &sum, VF &rest) {
  const VF all = hn::Add(sum, x), part = hn::Sub(all, sum);
  rest = hn::Add(rest, hn::Add(hn::Sub(sum, hn::Sub(all, part)), hn::Sub(x, part)));
  sum = all;
}

// Of rows: maximum, sum of w = 2^((s - m) unit), sum of w dP, and what rounding took from these.
struct RowSums {
  float *HWY_RESTRICT m, *HWY_RESTRICT l, *HWY_RESTRICT l_rest, *HWY_RESTRICT e, *HWY_RESTRICT e_rest;
};

// sum alpha + x + rest, where alpha is 1 unless the maximum moved.
HWY_INLINE void join_sum(VF alpha, VF x, VF more, float *HWY_RESTRICT sum, float *HWY_RESTRICT rest) {
  const DF d;
  const VF held = hn::Load(d, sum);
  VF all = hn::Mul(alpha, held), lost = hn::MulAdd(alpha, hn::Load(d, rest), more);
  lost = hn::Add(lost, Recurrence::product_rest<RowPolicy>(alpha, held, all, 0));
  add_exactly(x, all, lost);
  hn::Store(all, d, sum);
  hn::Store(lost, d, rest);
}

// Rows whose state is being found: folds a tile into m, l and, with kGrad, e. Leaves w (-0 where
// hidden) in s and dP after dropout in g.
// D = e / l must be the mean of these dP: what the sums are off by stays in the sum of dS, and so in dQ wherever keys
// have a column in common. Where few keys have nearly all weight, every key that comes after them rounds a sum of full
// size: so sums go by four keys, and what rounding takes where these join is kept.
template <bool kGrad, bool kDrop>
HWY_INLINE void state_tile(float *HWY_RESTRICT s, float *HWY_RESTRICT g,
                           const float *HWY_RESTRICT keep, const Zones &z, size_t width, float unit,
                           const RowSums &sums) {
  constexpr size_t kSum = 4;
  const DF d;
  const VF u = hn::Set(d, unit);
  const VF zero = hn::Zero(d);
  for (size_t x = 0, v = 0; x < width; x += hn::Lanes(d), ++v) {
    const VF old = hn::Load(d, sums.m + x);
    VF top = old;
    for (size_t j = z.from[v], i = j * width + x; j < z.to[v]; ++j, i += width)
      top = RowPolicy::max(top, hn::Load(d, s + i));
    const VF ref = Recurrence::reference(top);
    VF sum = zero, sum_e = zero, rest = zero, rest_e = zero;
    for (size_t j0 = z.from[v] / kSum * kSum; j0 < z.to[v]; j0 += kSum) {
      VF part = zero, part_e = zero;
      size_t j = HWY_MAX(j0, z.from[v]);
      for (size_t i = j * width + x; j < HWY_MIN(z.to[v], j0 + kSum); ++j, i += width) {
        const VF score = hn::Load(d, s + i);
        const auto hidden = hidden_score(score);
        const VF p = hn::IfThenZeroElse(hidden, Recurrence::prob_in(u, score, ref));
        part = hn::Add(part, p);
        hn::Store(hn::IfThenElse(hidden, hn::Set(d, -0.0f), p), d, s + i);
        if constexpr (kGrad) {
          VF dp = hn::Load(d, g + i);
          if constexpr (kDrop) dp = kept(dp, hn::Load(d, keep + i));
          part_e = hn::MulAdd(p, hn::IfThenZeroElse(hidden, dp), part_e);
          hn::Store(dp, d, g + i);
        }
      }
      add_exactly(part, sum, rest);
      if constexpr (kGrad) add_exactly(part_e, sum_e, rest_e);
    }
    const VF alpha = Recurrence::correction_in(u, old, ref);
    hn::Store(top, d, sums.m + x);
    join_sum(alpha, sum, rest, sums.l + x, sums.l_rest + x);
    if constexpr (kGrad) join_sum(alpha, sum_e, rest_e, sums.e + x, sums.e_rest + x);
  }
}

// The rest after state_tile: P (after dropout) in s, dS in g. scale: from w to P.
template <bool kGrad, bool kDrop>
HWY_INLINE void finish_tile(float *HWY_RESTRICT s, float *HWY_RESTRICT g,
                            const float *HWY_RESTRICT keep, const Zones &z, size_t width,
                            const float *HWY_RESTRICT scale, const float *HWY_RESTRICT delta) {
  const DF d;
  for (size_t x = 0, v = 0; x < width; x += hn::Lanes(d), ++v) {
    const VF factor = hn::Load(d, scale + x), e = hn::Load(d, delta + x);
    for (size_t j = z.from[v], i = j * width + x; j < z.to[v]; ++j, i += width) {
      const VF w = hn::Load(d, s + i);
      const auto hidden = hidden_weight(w);
      VF p = hn::IfThenZeroElse(hidden, hn::Mul(w, factor));
      if constexpr (kGrad) {
        const VF ds = hn::Mul(p, hn::Sub(hn::Load(d, g + i), e));
        hn::Store(hn::IfThenZeroElse(hidden, ds), d, g + i);
      }
      if constexpr (kDrop) p = kept(p, hn::Load(d, keep + i));
      hn::Store(p, d, s + i);
    }
  }
}

// NOLINTNEXTLINE(google-readability-namespace-comments)
}  // namespace HWY_NAMESPACE
}  // namespace tessera
HWY_AFTER_NAMESPACE();

#endif  // TESSERA_CPU_GRADIENT_INL_H_
