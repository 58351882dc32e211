// SPDX-License-Identifier: Apache-2.0
//
// Scores of the narrow form for 5 to 8 rows on vectors of 16 lanes, per Highway target: what grouped
// heads of a KV head usually are. A lane is a pair (row of 4, phase of 4), two vectors hold all
// rows, so one load of 4 floats of K, repeated, feeds two multiply-adds; with the two phases of the
// general form it would feed one, and loads would be the limit:
//
//   Q      [dim / 4][8][4]    q[r][4 x + e]
//   S      [keys / 2][8][2]   s[r][2 j + e], as the general form has it
//
// Elements that are no float32 are converted 8 keys ahead, between the multiply-adds of the keys at
// hand, which leave load, store and issue slots free; the cache line of V that the step will read
// next is asked for at the same pace. Head dims are multiples of 32, at most 512 (128 products per
// chain).
#include <stdint.h>

#include "decode-inl.h"

#if defined(TESSERA_CPU_DECODE_EIGHT_INL_H_) == defined(HWY_TARGET_TOGGLE)
  #ifdef TESSERA_CPU_DECODE_EIGHT_INL_H_
    #undef TESSERA_CPU_DECODE_EIGHT_INL_H_
  #else
    #define TESSERA_CPU_DECODE_EIGHT_INL_H_
  #endif

HWY_BEFORE_NAMESPACE();
namespace tessera {
namespace HWY_NAMESPACE {

  #undef TSRI_CPU_EIGHT
  #if HWY_TARGET == HWY_AVX3 || HWY_TARGET == HWY_AVX3_DL
    #define TSRI_CPU_EIGHT 1
  #else
    #define TSRI_CPU_EIGHT 0
  #endif

// Whether these kernels take rows of K and V: in memory as they want them, of one width.
HWY_INLINE bool can_take_eight(const tsr_problem &p) {
  const tsr_dtype type = p.k.dtype;
  return TSRI_CPU_EIGHT && p.dim_qk == p.dim_v && p.dim_qk % static_cast<int64_t>(kSlot) == 0 &&
         p.dim_qk <= 512 && p.k.stride[3] == 1 && p.v.stride[3] == 1 &&
         (type == TSR_DTYPE_F32 || type == TSR_DTYPE_BF16 || type == TSR_DTYPE_F16 ||
          type == TSR_DTYPE_I8);
}

  #if TSRI_CPU_EIGHT
constexpr size_t kPad = 16;  // floats between rows of copies: they share no set of L1

// kSlot elements of a row as float32, bfloat16 in the order of load_halves.
template <class E>
HWY_INLINE void widen_slot(const typename E::T *from, float *HWY_RESTRICT to) {
  const DF d;
  VF low, high;
  Pair<E>::load(from, 0, 16, low, high);
  hn::Store(low, d, to);
  hn::Store(high, d, to + 16);
}

// Sums of the products of 8 keys, a for rows 0 to 3 and b for rows 4 to 7, to 8 keys x 8 rows.
HWY_INLINE void store_eight(VF a0, VF a1, VF b0, VF b1, float *HWY_RESTRICT s) {
  const __m512i even = _mm512_setr_epi64(0, 2, 4, 6, 8, 10, 12, 14);
  const __m512i odd = _mm512_setr_epi64(1, 3, 5, 7, 9, 11, 13, 15);
  // Lanes of a row: phases 0 + 1 of both keys, then phases 2 + 3.
  const __m512d a = _mm512_castps_pd(fold<1>(a0, a1).raw);
  const __m512d b = _mm512_castps_pd(fold<1>(b0, b1).raw);
  const __m512 low = _mm512_castpd_ps(_mm512_permutex2var_pd(a, even, b));
  const __m512 high = _mm512_castpd_ps(_mm512_permutex2var_pd(a, odd, b));
  hn::Store(VF{_mm512_add_ps(low, high)}, DF(), s);
}

    #define TSRI_EIGHT(X) X(0) X(1) X(2) X(3) X(4) X(5) X(6) X(7)

// Scores of 8 keys; rows of K are `ld` apart if they are copies, else at k[0 .. 7]. next: 8 rows to
// be converted into `copy`; v: 8 rows to be asked for.
template <class E, size_t kDim>
HWY_INLINE void dot_rows_eight(const void *const *k, const float *HWY_RESTRICT now, size_t any_dim,
                               const float *HWY_RESTRICT q, const void *const *next,
                               float *HWY_RESTRICT copy, const void *const *v,
                               float *HWY_RESTRICT s) {
  using T = typename E::T;
  constexpr bool kFloats = sizeof(T) == sizeof(float);
  const size_t dim = kDim ? kDim : any_dim;
  const DF d;
    #define TSRI_DECLARE(i)               \
      VF a##i = hn::Zero(d), b##i = a##i; \
      const float *HWY_RESTRICT k##i = kFloats ? static_cast<const float *>(k[i]) : now + i * (dim + kPad);
  TSRI_EIGHT(TSRI_DECLARE)
    #undef TSRI_DECLARE
  size_t x = 0;
  for (size_t r = 0; r < 8; ++r) {
    const T *HWY_RESTRICT from = static_cast<const T *>(next[r]);
    const T *ahead = static_cast<const T *>(v[r]);
    #pragma GCC unroll 4
    for (size_t c = 0; c < dim; c += kSlot, x += 4, q += 32) {
      const VF q0 = hn::Load(d, q), q1 = hn::Load(d, q + 16);
    #define TSRI_STEP(i)                             \
      {                                              \
        const VF four = hn::LoadDup128(d, k##i + x); \
        a##i = hn::MulAdd(four, q0, a##i);           \
        b##i = hn::MulAdd(four, q1, b##i);           \
      }
      TSRI_EIGHT(TSRI_STEP)
    #undef TSRI_STEP
      if constexpr (!kFloats) widen_slot<E>(from + c, copy + r * (dim + kPad) + c);
      prefetch_slot<kFloats>(ahead + c);
    }
  }
  store_eight(a0, a1, b0, b1, s);
  store_eight(a2, a3, b2, b3, s + 16);
  store_eight(a4, a5, b4, b5, s + 32);
  store_eight(a6, a7, b6, b7, s + 48);
}

// Scores of n keys. k, v: rows, repeated beyond the last up to n + 16. copies: [2][8][dim].
template <class E, size_t kDim>
static HWY_NOINLINE void score_rows(const void *const *k, const void *const *v, size_t n,
                                     size_t dim, const float *q, float *HWY_RESTRICT copies,
                                     float *HWY_RESTRICT s) {
  using T = typename E::T;
  if constexpr (sizeof(T) != sizeof(float))
    for (size_t r = 0; r < 8; ++r)
      for (size_t x = 0; x < dim; x += kSlot)
        widen_slot<E>(static_cast<const T *>(k[r]) + x, copies + r * (dim + kPad) + x);
  for (size_t j = 0; j < n; j += 8) {
    float *now = copies + j / 8 % 2 * 8 * (dim + kPad), *next = copies + (j / 8 + 1) % 2 * 8 * (dim + kPad);
    dot_rows_eight<E, kDim>(k + j, now, dim, q, k + j + 8, next, v + j, s + j * 8);
  }
}

template <class E>
HWY_INLINE void score_eight(const void *const *k, const void *const *v, size_t n, size_t dim,
                            const float *q, float *copies, float *s) {
  if (dim == 128) return score_rows<E, 128>(k, v, n, dim, q, copies, s);
  if (dim == 64) return score_rows<E, 64>(k, v, n, dim, q, copies, s);
  score_rows<E, 0>(k, v, n, dim, q, copies, s);
}

    #undef TSRI_EIGHT
  #endif  // TSRI_CPU_EIGHT

// NOLINTNEXTLINE(google-readability-namespace-comments)
}  // namespace HWY_NAMESPACE
}  // namespace tessera
HWY_AFTER_NAMESPACE();

#endif  // TESSERA_CPU_DECODE_EIGHT_INL_H_
