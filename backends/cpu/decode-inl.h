// SPDX-License-Identifier: Apache-2.0
//
// Micro-kernels for few rows against many keys, per Highway target: the "narrow" form. With fewer
// rows than a vector has lanes, a lane is a pair (row, phase): R rows times P phases fill a vector.
//
//   Q      [dim / P][lanes]    lane r P + e holds q[r][x P + e]
//   S, P   [keys / P][lanes]   lane r P + e holds s[r][key P + e]
//   O      [R][dim_v]          lanes lie along the head dimension
//
// A score is P sums over every P-th dim: one load that repeats P floats of a row of K, one
// multiply-add, no shuffle. Sums of P keys are then folded pairwise, lane bit by lane bit, into one
// vector in which a lane's phase is a key. Nothing in the inner loops is wasted, whatever R is, and
// K and V are read once for all rows. Rows of K and V come as pointers: pages and strides cost
// nothing.
#include <stdint.h>
#include <string.h>

#include "convert-inl.h"
#include "decode_job.h"
#include "row_policy-inl.h"

#if defined(TESSERA_CPU_DECODE_INL_H_) == defined(HWY_TARGET_TOGGLE)
  #ifdef TESSERA_CPU_DECODE_INL_H_
    #undef TESSERA_CPU_DECODE_INL_H_
  #else
    #define TESSERA_CPU_DECODE_INL_H_
  #endif

HWY_BEFORE_NAMESPACE();
namespace tessera {
namespace HWY_NAMESPACE {

  #if HWY_TARGET != HWY_SCALAR
// Two vectors of bfloat16 in one load: elements with even numbers, then those with odd ones. Half
// the work of BF16::load, in an order that only asks the other operand to follow.
HWY_INLINE void load_halves(const uint16_t *p, VF &even, VF &odd) {
  const DF d;
  const DU du;
  const hn::Repartition<uint16_t, DF> dh;
  const VU u = hn::BitCast(du, hn::LoadU(dh, p));
  even = hn::BitCast(d, hn::ShiftLeft<16>(u));
  odd = hn::BitCast(d, hn::And(u, hn::Set(du, 0xffff0000u)));
}

  #endif

// Place of element x in that order.
HWY_INLINE size_t place_of(size_t x, size_t lanes) {
  return x / (2 * lanes) * (2 * lanes) + x % 2 * lanes + x % (2 * lanes) / 2;
}

// Whether rows of a tensor are kept in that order: bfloat16 in whole pairs of vectors.
HWY_INLINE bool in_halves(tsr_dtype dtype, size_t dim, size_t lanes) {
  return dtype == TSR_DTYPE_BF16 && lanes > 1 && dim % (2 * lanes) == 0;
}

// Rows of elements to float32 rows `ld` apart, with zeros up to `padded`.
template <class E>
HWY_INLINE void widen_rows(const void *const *rows, int64_t stride, size_t n, size_t dim,
                           size_t padded, float *HWY_RESTRICT dst, size_t ld) {
  using T = typename E::T;
  const DF d;
  const size_t lanes = hn::Lanes(d);
  for (size_t r = 0; r < n; ++r, dst += ld) {
    const T *HWY_RESTRICT row = static_cast<const T *>(rows[r]);
    size_t x = 0;
    if (stride == 1)
      for (; x + lanes <= dim; x += lanes) hn::Store(E::load(row + x), d, dst + x);
    for (; x < dim; ++x) dst[x] = E::get(row[static_cast<int64_t>(x) * stride]);
    for (; x < padded; ++x) dst[x] = 0.0f;
  }
}

  #if HWY_TARGET != HWY_SCALAR
// The same for whole pairs of vectors of bfloat16, even elements before odd ones.
HWY_INLINE void widen_halves(const void *const *rows, int64_t stride, size_t n, size_t dim,
                             float *HWY_RESTRICT dst, size_t ld) {
  const DF d;
  const size_t lanes = hn::Lanes(d);
  for (size_t r = 0; r < n; ++r, dst += ld) {
    const uint16_t *HWY_RESTRICT row = static_cast<const uint16_t *>(rows[r]);
    if (stride == 1) {
      for (size_t x = 0; x < dim; x += 2 * lanes) {
        VF even, odd;
        load_halves(row + x, even, odd);
        hn::Store(even, d, dst + x);
        hn::Store(odd, d, dst + x + lanes);
      }
    } else {
      for (size_t x = 0; x < dim; ++x)
        dst[place_of(x, lanes)] = BF16::get(row[static_cast<int64_t>(x) * stride]);
    }
  }
}
  #endif

static HWY_NOINLINE HWY_MAYBE_UNUSED void widen_rows_any(tsr_dtype dtype, bool halves,
                                                         const void *const *rows, int64_t stride,
                                                         size_t n, size_t dim, size_t padded,
                                                         float *dst, size_t ld) {
  #if HWY_TARGET != HWY_SCALAR
  if (halves) return widen_halves(rows, stride, n, dim, dst, ld);
  #else
  (void)halves;
  #endif
  switch (dtype) {
    case TSR_DTYPE_F32:
      return widen_rows<F32>(rows, stride, n, dim, padded, dst, ld);
    case TSR_DTYPE_F16:
      return widen_rows<F16>(rows, stride, n, dim, padded, dst, ld);
    case TSR_DTYPE_BF16:
      return widen_rows<BF16>(rows, stride, n, dim, padded, dst, ld);
    case TSR_DTYPE_F8_E4M3:
      return widen_rows<E4M3>(rows, stride, n, dim, padded, dst, ld);
    case TSR_DTYPE_F8_E5M2:
      return widen_rows<E5M2>(rows, stride, n, dim, padded, dst, ld);
    default:
      return widen_rows<I8>(rows, stride, n, dim, padded, dst, ld);
  }
}

// ------------------------------------------------------------------------------------ prefetch

// Addresses of what the next step reads, one per kSlot elements, in the order in which
// micro-kernels ask for them: memory then works while they compute. Nothing is looked up in their
// inner loops.
constexpr size_t kSlot = 32;

// A slot of 4-byte elements is two lines. What is asked for goes to L2: L1 holds K or V of the step
// at hand, and a core has more requests of L2 under way than of L1.
template <bool kFour>
HWY_INLINE void prefetch_slot(const void *address) {
  __builtin_prefetch(address, 0, 2);
  if constexpr (kFour) __builtin_prefetch(static_cast<const unsigned char *>(address) + 64, 0, 2);
}

// Columns of O (vectors of dims) go in pairs, 8 / rows pairs to a block.
HWY_INLINE size_t output_blocks(size_t columns, size_t rows) {
  const size_t pairs = (columns + 1) / 2, groups = 8 / rows;
  return (pairs + groups - 1) / groups;
}

  #if HWY_TARGET != HWY_SCALAR

// ------------------------------------------------------------------------------ narrow kernels

// Whether a vector of this many lanes can be filled with repeated runs of `phases` floats.
HWY_INLINE bool can_repeat(size_t lanes, size_t phases) {
    #if HWY_TARGET == HWY_AVX3 || HWY_TARGET == HWY_AVX3_DL
  if (phases == 8) return lanes == 16;
    #endif
  return lanes <= 16 && (phases == lanes || ((phases == 2 || phases == 4) && phases < lanes));
}

// P floats, repeated over the vector.
template <int P>
HWY_INLINE VF repeat(const float *p) {
  const DF d;
  if constexpr (P == 2) {
    const hn::Repartition<double, DF> dd;
    double pair;
    memcpy(&pair, p, sizeof pair);
    return hn::BitCast(d, hn::Set(dd, pair));
  } else if constexpr (P == 4) {
    return hn::LoadDup128(d, p);
  } else {
    #if HWY_TARGET == HWY_AVX3 || HWY_TARGET == HWY_AVX3_DL
    if constexpr (P == 8) return VF{_mm512_broadcast_f32x8(_mm256_loadu_ps(p))};
    #endif
    return hn::LoadU(d, p);
  }
}

// Lane l becomes lane l ^ D.
template <int D>
HWY_INLINE VF swap(VF v) {
  const DF d;
  if constexpr (D == 1) return hn::Shuffle2301(v);
  if constexpr (D == 2) return hn::Shuffle1032(v);
  if constexpr (D == 4) return hn::SwapAdjacentBlocks(v);
  return hn::ConcatLowerUpper(d, v, v);
}

template <int D>
HWY_INLINE hn::Mask<DF> lanes_with_bit() {
  const DU du;
  const VU bit = hn::And(hn::Iota(du, 0), hn::Set(du, D));
  return hn::RebindMask(DF(), hn::Eq(bit, hn::Set(du, D)));
}

// Lanes without bit D: a[l] + a[l ^ D]; lanes with it: the same of b.
template <int D>
HWY_INLINE VF fold(VF a, VF b) {
  const auto odd = lanes_with_bit<D>();
  return hn::Add(hn::IfThenElse(odd, b, a), swap<D>(hn::IfThenElse(odd, a, b)));
}

// v combined over the P phases of a row; all of its lanes get the result.
template <int P>
HWY_INLINE VF max_phases(VF v) {
  v = hn::Max(v, swap<1>(v));
  if constexpr (P > 2) v = hn::Max(v, swap<2>(v));
  if constexpr (P > 4) v = hn::Max(v, swap<4>(v));
  if constexpr (P > 8) v = hn::Max(v, swap<8>(v));
  return v;
}
template <int P>
HWY_INLINE VF sum_phases(VF v) {
  v = hn::Add(v, swap<1>(v));
  if constexpr (P > 2) v = hn::Add(v, swap<2>(v));
  if constexpr (P > 4) v = hn::Add(v, swap<4>(v));
  if constexpr (P > 8) v = hn::Add(v, swap<8>(v));
  return v;
}

    #define TSRI_EIGHT(X) X(0) X(1) X(2) X(3) X(4) X(5) X(6) X(7)

// Dots of 8 rows of K against Q over dims [0, dim), folded as far as 8 keys allow: 8 / P vectors,
// or for P = 16 one vector whose upper and lower halves are still to be added. Two chains per key.
// ahead: one slot per kSlot elements that are read, rounded down.
template <int P, bool kFour>
HWY_INLINE void dot_eight(const float *const *k, size_t dim, const float *HWY_RESTRICT q,
                          const void *const *ahead, VF &s0, VF &s1, VF &s2, VF &s3) {
  constexpr size_t kSlots = 16 * P / kSlot;
  const DF d;
  const size_t lanes = hn::Lanes(d);
    #define TSRI_DECLARE(i)               \
      VF a##i = hn::Zero(d), b##i = a##i; \
      const float *HWY_RESTRICT k##i = k[i];
  TSRI_EIGHT(TSRI_DECLARE)
    #undef TSRI_DECLARE
  size_t x = 0;
  for (; x + 2 * P <= dim; x += 2 * P, q += 2 * lanes, ahead += kSlots) {
    const VF q0 = hn::Load(d, q), q1 = hn::Load(d, q + lanes);
    #define TSRI_STEP(i)                                \
      a##i = hn::MulAdd(repeat<P>(k##i + x), q0, a##i); \
      b##i = hn::MulAdd(repeat<P>(k##i + x + P), q1, b##i);
    TSRI_EIGHT(TSRI_STEP)
    #undef TSRI_STEP
    for (size_t i = 0; i < kSlots; ++i) prefetch_slot<kFour>(ahead[i]);
  }
  if (x < dim) {
    const VF q0 = hn::Load(d, q);
    #define TSRI_STEP(i) a##i = hn::MulAdd(repeat<P>(k##i + x), q0, a##i);
    TSRI_EIGHT(TSRI_STEP)
    #undef TSRI_STEP
  }
    #define TSRI_JOIN(i) a##i = hn::Add(a##i, b##i);
  TSRI_EIGHT(TSRI_JOIN)
    #undef TSRI_JOIN
  s0 = fold<1>(a0, a1), s1 = fold<1>(a2, a3), s2 = fold<1>(a4, a5), s3 = fold<1>(a6, a7);
  if constexpr (P > 2) s0 = fold<2>(s0, s1), s1 = fold<2>(s2, s3);
  if constexpr (P > 4) s0 = fold<4>(s0, s1);
}

// Scores of keys 0 .. n-1 into [ceil(n / P)][lanes]. Pointers beyond the last key repeat a row.
// Chains of more than 128 products are cut, as in score_tile.
template <int P, bool kFour>
static HWY_NOINLINE void score_narrow(const void *const *k, size_t n, const float *q, size_t dim,
                                      float *HWY_RESTRICT s, const void *const *ahead) {
  constexpr size_t kPart = 256 * P, kKeys = P > 8 ? 16 : 8;
  const DF d;
  const size_t lanes = hn::Lanes(d);
  for (size_t j = 0; j < n; j += kKeys) {
    float *HWY_RESTRICT at = s + j / P * lanes;
    for (size_t x = 0; x < dim; x += kPart) {
      const size_t dims = HWY_MIN(kPart, dim - x), slots = dims / (2 * P) * (16 * P / kSlot);
      const float *row[kKeys];
      for (size_t t = 0; t < kKeys; ++t) row[t] = static_cast<const float *>(k[j + t]) + x;
      VF s0, s1, s2, s3;
      dot_eight<P, kFour>(row, dims, q + x / P * lanes, ahead, s0, s1, s2, s3);
      ahead += slots;
      if constexpr (P > 8) {
        const VF low = s0;
        dot_eight<P, kFour>(row + 8, dims, q + x / P * lanes, ahead, s0, s1, s2, s3);
        ahead += slots;
        s0 = fold<8>(low, s0);
      }
      if (x > 0) {
        s0 = hn::Add(hn::Load(d, at), s0);
        if constexpr (P <= 4) s1 = hn::Add(hn::Load(d, at + lanes), s1);
        if constexpr (P == 2) s2 = hn::Add(hn::Load(d, at + 2 * lanes), s2);
        if constexpr (P == 2) s3 = hn::Add(hn::Load(d, at + 3 * lanes), s3);
      }
      hn::Store(s0, d, at);
      if constexpr (P <= 4) hn::Store(s1, d, at + lanes);
      if constexpr (P == 2) hn::Store(s2, d, at + 2 * lanes);
      if constexpr (P == 2) hn::Store(s3, d, at + 3 * lanes);
    }
  }
}

// s of key j of every row times factor[j].
template <int P>
HWY_INLINE void scale_keys(float *HWY_RESTRICT s, size_t n, const float *factor) {
  const DF d;
  for (size_t j = 0; j < n; j += P, s += hn::Lanes(d))
    hn::Store(hn::Mul(hn::Load(d, s), repeat<P>(factor + j)), d, s);
}

// Maximum of n vectors and `most`, in four chains.
HWY_INLINE VF max_narrow(const float *HWY_RESTRICT s, size_t n, VF most) {
  const DF d;
  const size_t lanes = hn::Lanes(d);
  VF a = most, b = most, c = most, e = most;
  for (; n >= 4; n -= 4, s += 4 * lanes) {
    a = RowPolicy::max(a, hn::Load(d, s));
    b = RowPolicy::max(b, hn::Load(d, s + lanes));
    c = RowPolicy::max(c, hn::Load(d, s + 2 * lanes));
    e = RowPolicy::max(e, hn::Load(d, s + 3 * lanes));
  }
  for (; n > 0; --n, s += lanes) a = RowPolicy::max(a, hn::Load(d, s));
  return RowPolicy::max(RowPolicy::max(a, b), RowPolicy::max(c, e));
}

// Scores to probabilities in place; returns their sum, vectors alternating between two chains.
HWY_INLINE VF softmax_narrow(float *HWY_RESTRICT s, size_t n, VF unit, VF ref) {
  const DF d;
  const size_t lanes = hn::Lanes(d);
  VF even = hn::Zero(d), odd = even;
  for (; n >= 2; n -= 2, s += 2 * lanes) {
    const VF p = Recurrence::prob_in(unit, hn::Load(d, s), ref);
    const VF r = Recurrence::prob_in(unit, hn::Load(d, s + lanes), ref);
    hn::Store(p, d, s);
    hn::Store(r, d, s + lanes);
    even = hn::Add(even, p);
    odd = hn::Add(odd, r);
  }
  if (n > 0) {
    const VF p = Recurrence::prob_in(unit, hn::Load(d, s), ref);
    hn::Store(p, d, s);
    even = hn::Add(even, p);
  }
  return hn::Add(even, odd);
}

// How a pair of vectors of V is loaded: columns at x and y.
template <class E>
struct Pair {
  using T = typename E::T;
  static HWY_INLINE void load(const T *row, size_t x, size_t y, VF &a, VF &b) {
    a = E::load(row + x);
    b = E::load(row + y);
  }
};
template <>
struct Pair<BF16> {
  using T = uint16_t;
  static HWY_INLINE void load(const T *row, size_t x, size_t, VF &a, VF &b) {
    load_halves(row + x, a, b);
  }
};

// O = alpha O + P V over n keys in one block of columns: slot i of 8 sums row i / (8 / R) and pair
// first + i % (8 / R). ahead: 8 / R addresses per key, `past` bytes from which memory is asked for.
template <int R, int P, class E>
static HWY_NOINLINE void output_block_narrow(const void *const *v, size_t n,
                                             const float *HWY_RESTRICT p, size_t first,
                                             size_t columns, float *HWY_RESTRICT o, size_t ld,
                                             const float *alpha, const void *const *ahead,
                                             size_t past) {
  using T = typename Pair<E>::T;
  constexpr size_t kGroups = 8 / R;
  const DF d;
  const size_t lanes = hn::Lanes(d), last = columns - 1;
    // Columns beyond the last repeat the last pair and are not stored.
    #define TSRI_DECLARE(i)                                                   \
      VF a##i = hn::Zero(d), b##i = a##i;                                     \
      const size_t x##i = 2 * HWY_MIN(first + i % kGroups, last / 2) * lanes; \
      const size_t y##i = HWY_MIN(x##i + lanes, last * lanes);                \
      (void)x##i, (void)y##i;
  TSRI_EIGHT(TSRI_DECLARE)
    #undef TSRI_DECLARE
    #define TSRI_LOAD(i)       \
      VF v##i = a0, u##i = a0; \
      if constexpr (i < kGroups) Pair<E>::load(row, x##i, y##i, v##i, u##i);
    #define TSRI_STEP(i, g)                                \
      {                                                    \
        const VF c = hn::Set(d, p[(i / kGroups) * P + t]); \
        a##i = hn::MulAdd(c, v##g, a##i);                  \
        b##i = hn::MulAdd(c, u##g, b##i);                  \
      }
    // Key j + t.
    #define TSRI_KEY                                                                    \
      const T *HWY_RESTRICT row = static_cast<const T *>(v[j + t]);                     \
      TSRI_EIGHT(TSRI_LOAD)                                                             \
      if constexpr (R == 8) {                                                           \
        TSRI_STEP(0, 0)                                                                 \
        TSRI_STEP(1, 0) TSRI_STEP(2, 0) TSRI_STEP(3, 0) TSRI_STEP(4, 0) TSRI_STEP(5, 0) \
            TSRI_STEP(6, 0) TSRI_STEP(7, 0)                                             \
      } else if constexpr (R == 4) {                                                    \
        TSRI_STEP(0, 0)                                                                 \
        TSRI_STEP(1, 1) TSRI_STEP(2, 0) TSRI_STEP(3, 1) TSRI_STEP(4, 0) TSRI_STEP(5, 1) \
            TSRI_STEP(6, 0) TSRI_STEP(7, 1)                                             \
      } else if constexpr (R == 2) {                                                    \
        TSRI_STEP(0, 0)                                                                 \
        TSRI_STEP(1, 1) TSRI_STEP(2, 2) TSRI_STEP(3, 3) TSRI_STEP(4, 0) TSRI_STEP(5, 1) \
            TSRI_STEP(6, 2) TSRI_STEP(7, 3)                                             \
      } else {                                                                          \
        TSRI_STEP(0, 0)                                                                 \
        TSRI_STEP(1, 1) TSRI_STEP(2, 2) TSRI_STEP(3, 3) TSRI_STEP(4, 4) TSRI_STEP(5, 5) \
            TSRI_STEP(6, 6) TSRI_STEP(7, 7)                                             \
      }                                                                                 \
      for (size_t i = 0; i < kGroups; ++i)                                              \
        prefetch_slot<sizeof(T) == 4>(                                                  \
            static_cast<const unsigned char *>(ahead[(j + t) * kGroups + i]) + past);
  size_t j = 0;
  for (; j + P <= n; j += P, p += lanes)
    for (size_t t = 0; t < P; ++t) {
      TSRI_KEY
    }
  for (size_t t = 0; j + t < n; ++t) {
    TSRI_KEY
  }
    #undef TSRI_KEY
    #undef TSRI_STEP
    #undef TSRI_LOAD
    #define TSRI_JOIN(sum, i, column)                                        \
      if (column <= last) {                                                  \
        float *at = o + (i / kGroups) * ld + (column)*lanes;                 \
        const VF factor = hn::Set(d, alpha[(i / kGroups) * P]);              \
        hn::Store(Recurrence::new_sum(hn::Load(d, at), factor, sum), d, at); \
      }
    #define TSRI_FINISH(i)                          \
      TSRI_JOIN(a##i, i, 2 * (first + i % kGroups)) \
      TSRI_JOIN(b##i, i, 2 * (first + i % kGroups) + 1)
  TSRI_EIGHT(TSRI_FINISH)
    #undef TSRI_FINISH
    #undef TSRI_JOIN
}

// All columns. Lists of addresses of blocks follow each other; or all blocks have one list, of rows
// (by_rows), and ask for their own columns of them.
template <int R, int P, class E>
HWY_INLINE void output_narrow(const void *const *v, size_t n, const float *p, size_t columns,
                              float *o, size_t ld, const float *alpha, const void *const *ahead,
                              bool by_rows) {
  const size_t blocks = output_blocks(columns, R);
  const size_t list = by_rows ? 0 : 8 / R * n;
  const size_t slot = by_rows ? 2 * hn::Lanes(DF()) * sizeof(typename Pair<E>::T) : 0;
  for (size_t c = 0; c < blocks; ++c, ahead += list)
    output_block_narrow<R, P, E>(v, n, p, c * (8 / R), columns, o, ld, alpha, ahead, c * slot);
}

    #undef TSRI_EIGHT
  #endif  // HWY_TARGET != HWY_SCALAR

// NOLINTNEXTLINE(google-readability-namespace-comments)
}  // namespace HWY_NAMESPACE
}  // namespace tessera
HWY_AFTER_NAMESPACE();

#endif  // TESSERA_CPU_DECODE_INL_H_
