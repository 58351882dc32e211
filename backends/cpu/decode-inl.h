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
// vector in which a lane's phase is a key. Nothing in the inner loops is wasted, whatever R is, and K
// and V are read once for all rows. Rows of K and V come as pointers: pages and strides cost nothing.
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

// ------------------------------------------------------------------------------ 8-bit elements

using DI8 = hn::Rebind<int8_t, DF>;
using DU8 = hn::Rebind<uint8_t, DF>;

struct I8 {
  using T = int8_t;
  static HWY_INLINE VF load(const T *p) {
    return hn::ConvertTo(DF(), hn::PromoteTo(DI(), hn::LoadU(DI8(), p)));
  }
  static HWY_INLINE float get(T x) { return static_cast<float>(x); }
};

// Exponent and mantissa moved into float32's fields, times the difference of the biases; subnormals
// are integers times the smallest one; the top exponent (E5M2) or the top pattern (E4M3) is special.
struct E4M3 {
  using T = uint8_t;
  static HWY_INLINE VF load(const T *p) {
    const DF d;
    const DU du;
    const DI di;
    const VU u = hn::PromoteTo(du, hn::LoadU(DU8(), p));
    const VU magnitude = hn::And(u, hn::Set(du, 0x7f));
    const VI level = hn::BitCast(di, magnitude);
    const VF normal =
        hn::BitCast(d, hn::Add(hn::ShiftLeft<20>(magnitude), hn::Set(du, 120u << 23)));
    const VF small = hn::Mul(hn::ConvertTo(d, level), hn::Set(d, 0x1p-9f));
    VF x = hn::IfThenElse(hn::RebindMask(d, hn::Lt(level, hn::Set(di, 8))), small, normal);
    const auto lost = hn::RebindMask(d, hn::Eq(level, hn::Set(di, 0x7f)));
    x = hn::IfThenElse(lost, hn::Set(d, __builtin_nanf("")), x);
    return hn::BitCast(d, hn::Or(hn::BitCast(du, x), hn::ShiftLeft<24>(hn::Xor(u, magnitude))));
  }
  static HWY_INLINE float get(T x) { return tsri_e4m3_to_float(x); }
};

struct E5M2 {
  using T = uint8_t;
  static HWY_INLINE VF load(const T *p) {
    const DF d;
    const DU du;
    const DI di;
    const VU u = hn::PromoteTo(du, hn::LoadU(DU8(), p));
    const VU magnitude = hn::And(u, hn::Set(du, 0x7f));
    const VI level = hn::BitCast(di, magnitude);
    const VF normal =
        hn::BitCast(d, hn::Add(hn::ShiftLeft<21>(magnitude), hn::Set(du, 112u << 23)));
    const VF special =
        hn::BitCast(d, hn::Or(hn::ShiftLeft<21>(magnitude), hn::Set(du, 0x7f800000u)));
    const VF small = hn::Mul(hn::ConvertTo(d, level), hn::Set(d, 0x1p-16f));
    VF x = hn::IfThenElse(hn::RebindMask(d, hn::Lt(level, hn::Set(di, 4))), small, normal);
    x = hn::IfThenElse(hn::RebindMask(d, hn::Gt(level, hn::Set(di, 0x7b))), special, x);
    return hn::BitCast(d, hn::Or(hn::BitCast(du, x), hn::ShiftLeft<24>(hn::Xor(u, magnitude))));
  }
  static HWY_INLINE float get(T x) { return tsri_e5m2_to_float(x); }
};

// Rows of elements, `step` bytes apart, to float32 rows `ld` apart, with zeros up to `padded`.
template <class E>
HWY_INLINE void widen_rows(const unsigned char *src, int64_t step, int64_t stride, size_t n,
                           size_t dim, size_t padded, float *HWY_RESTRICT dst, size_t ld) {
  using T = typename E::T;
  const DF d;
  const size_t lanes = hn::Lanes(d);
  for (size_t r = 0; r < n; ++r, src += step, dst += ld) {
    const T *HWY_RESTRICT row = reinterpret_cast<const T *>(src);
    size_t x = 0;
    if (stride == 1)
      for (; x + lanes <= dim; x += lanes) hn::Store(E::load(row + x), d, dst + x);
    for (; x < dim; ++x) dst[x] = E::get(row[static_cast<int64_t>(x) * stride]);
    for (; x < padded; ++x) dst[x] = 0.0f;
  }
}

static HWY_NOINLINE void widen_rows_any(tsr_dtype dtype, const unsigned char *src, int64_t step,
                                        int64_t stride, size_t n, size_t dim, size_t padded,
                                        float *dst, size_t ld) {
  switch (dtype) {
    case TSR_DTYPE_F32:
      return widen_rows<F32>(src, step, stride, n, dim, padded, dst, ld);
    case TSR_DTYPE_F16:
      return widen_rows<F16>(src, step, stride, n, dim, padded, dst, ld);
    case TSR_DTYPE_BF16:
      return widen_rows<BF16>(src, step, stride, n, dim, padded, dst, ld);
    case TSR_DTYPE_F8_E4M3:
      return widen_rows<E4M3>(src, step, stride, n, dim, padded, dst, ld);
    case TSR_DTYPE_F8_E5M2:
      return widen_rows<E5M2>(src, step, stride, n, dim, padded, dst, ld);
    default:
      return widen_rows<I8>(src, step, stride, n, dim, padded, dst, ld);
  }
}

// ------------------------------------------------------------------------------------ prefetch

// The rows of the step after this one, a cache line at a time. Micro-kernels ask for a few lines per
// turn of their inner loops, so that memory works while they compute.
class Ahead {
 public:
  Ahead() = default;
  // row_bytes: what is read of a row; step: from row to row.
  void add(const tsri_cpu_run_of_rows *runs, size_t count, int64_t row_bytes, int64_t step) {
    Part &part = parts_[given_++];
    part.runs = runs, part.end = runs + count;
    part.row_bytes = row_bytes, part.step = step;
    lines_ += total(part);
    if (at_ >= stop_) next_row();
  }
  int64_t lines() const { return lines_; }
  HWY_INLINE void fetch(int64_t count) {
    for (int64_t i = 0; i < count; ++i) {
      if (at_ >= stop_ && !next_row()) return;
      __builtin_prefetch(at_, 0, 2);
      at_ += kLine;
    }
  }

 private:
  static constexpr int64_t kLine = 64;
  struct Part {
    const tsri_cpu_run_of_rows *runs, *end;
    int64_t row_bytes, step;
  };
  static int64_t total(const Part &part) {
    int64_t lines = 0;
    for (const tsri_cpu_run_of_rows *r = part.runs; r != part.end; ++r)
      lines += part.step == part.row_bytes ? (r->rows * part.step + kLine - 1) / kLine
                                           : r->rows * ((part.row_bytes + kLine - 1) / kLine);
    return lines;
  }
  HWY_NOINLINE bool next_row() {
    while (row_ == rows_) {
      while (part_ < given_ && parts_[part_].runs == parts_[part_].end) ++part_;
      if (part_ == given_) return false;
      const tsri_cpu_run_of_rows *run = parts_[part_].runs++;
      base_ = run->base;
      row_ = 0;
      const bool dense = parts_[part_].step == parts_[part_].row_bytes;
      rows_ = dense ? 1 : run->rows;
      length_ = dense ? run->rows * parts_[part_].step : parts_[part_].row_bytes;
      step_ = parts_[part_].step;
    }
    at_ = base_ + row_ * step_;
    stop_ = at_ + length_;
    ++row_;
    return true;
  }

  const unsigned char *at_ = nullptr, *stop_ = nullptr, *base_ = nullptr;
  int64_t row_ = 0, rows_ = 0, length_ = 0, step_ = 0, lines_ = 0;
  Part parts_[2] = {};
  int part_ = 0, given_ = 0;
};

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

// Dots of 8 rows of K against Q over dims [0, dim), folded as far as 8 keys allow: 8 / P vectors, or
// for P = 16 one vector whose upper and lower halves are still to be added.
template <int P>
HWY_INLINE void dot_eight(const float *const *k, size_t dim, const float *HWY_RESTRICT q,
                          Ahead &ahead, int64_t lines, VF &s0, VF &s1, VF &s2, VF &s3) {
  const DF d;
  const size_t lanes = hn::Lanes(d);
    #define TSRI_DECLARE(i)    \
      VF a##i = hn::Zero(d);   \
      const float *HWY_RESTRICT k##i = k[i];
  TSRI_EIGHT(TSRI_DECLARE)
    #undef TSRI_DECLARE
  for (size_t x = 0; x < dim; x += P, q += lanes) {
    const VF b = hn::Load(d, q);
    #define TSRI_STEP(i) a##i = hn::MulAdd(repeat<P>(k##i + x), b, a##i);
    TSRI_EIGHT(TSRI_STEP)
    #undef TSRI_STEP
    ahead.fetch(lines);
  }
  s0 = fold<1>(a0, a1), s1 = fold<1>(a2, a3), s2 = fold<1>(a4, a5), s3 = fold<1>(a6, a7);
  if constexpr (P > 2) s0 = fold<2>(s0, s1), s1 = fold<2>(s2, s3);
  if constexpr (P > 4) s0 = fold<4>(s0, s1);
}

// Scores of keys 0 .. n-1 into [ceil(n / P)][lanes]. Pointers beyond the last key repeat a row.
// Chains of more than 128 products are cut, as in score_tile.
template <int P>
static HWY_NOINLINE void score_narrow(const float *const *k, size_t n, const float *q, size_t dim,
                                      float *HWY_RESTRICT s, Ahead &ahead, int64_t lines) {
  constexpr size_t kPart = 128 * P, kKeys = P > 8 ? 16 : 8;
  const DF d;
  const size_t lanes = hn::Lanes(d);
  Ahead next = ahead;
  for (size_t j = 0; j < n; j += kKeys) {
    float *HWY_RESTRICT at = s + j / P * lanes;
    for (size_t x = 0; x < dim; x += kPart) {
      const size_t dims = HWY_MIN(kPart, dim - x);
      const float *row[kKeys];
      for (size_t t = 0; t < kKeys; ++t) row[t] = k[j + t] + x;
      VF s0, s1, s2, s3;
      dot_eight<P>(row, dims, q + x / P * lanes, next, lines, s0, s1, s2, s3);
      if constexpr (P > 8) {
        const VF low = s0;
        dot_eight<P>(row + 8, dims, q + x / P * lanes, next, lines, s0, s1, s2, s3);
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
  ahead = next;
}

// s of key j of every row times factor[j].
template <int P>
HWY_INLINE void scale_keys(float *HWY_RESTRICT s, size_t n, const float *factor) {
  const DF d;
  for (size_t j = 0; j < n; j += P, s += hn::Lanes(d))
    hn::Store(hn::Mul(hn::Load(d, s), repeat<P>(factor + j)), d, s);
}

// C vectors of dims times the groups of 8 / R: O = alpha O + P V over n keys. Slot i of 8 sums row
// i % R, group i / R of the columns.
template <int R, int P, int C>
static HWY_NOINLINE void output_narrow_block(const float *const *v, size_t n,
                                             const float *HWY_RESTRICT p, size_t first,
                                             size_t columns, float *HWY_RESTRICT o, size_t ld,
                                             const float *alpha, Ahead &ahead, int64_t lines) {
  const DF d;
  const size_t lanes = hn::Lanes(d), last = columns - 1;
  Ahead next = ahead;
    // Columns beyond the last repeat it and are not stored.
    #define TSRI_DECLARE(i)                                                                       \
      VF a##i##0 = hn::Zero(d), a##i##1 = a##i##0, a##i##2 = a##i##0;                             \
      const size_t c##i##0 = HWY_MIN(first + (i / R) * C, last) * lanes;                          \
      const size_t c##i##1 = HWY_MIN(first + (i / R) * C + 1, last) * lanes;                      \
      const size_t c##i##2 = HWY_MIN(first + (i / R) * C + 2, last) * lanes;                      \
      (void)c##i##1, (void)c##i##2;
  TSRI_EIGHT(TSRI_DECLARE)
    #undef TSRI_DECLARE
  for (size_t j = 0; j < n; j += P) {
    const size_t end = HWY_MIN(n - j, size_t{P});
    for (size_t t = 0; t < end; ++t) {
      const float *HWY_RESTRICT row = v[j + t];
      const float *HWY_RESTRICT w = p + t;
    #define TSRI_STEP(i)                                                                          \
      {                                                                                           \
        const VF c = hn::Set(d, w[(i % R) * P]);                                                  \
        a##i##0 = hn::MulAdd(c, hn::LoadU(d, row + c##i##0), a##i##0);                            \
        if constexpr (C > 1) a##i##1 = hn::MulAdd(c, hn::LoadU(d, row + c##i##1), a##i##1);       \
        if constexpr (C > 2) a##i##2 = hn::MulAdd(c, hn::LoadU(d, row + c##i##2), a##i##2);       \
      }
      TSRI_EIGHT(TSRI_STEP)
    #undef TSRI_STEP
      next.fetch(lines);
    }
    p += lanes;
  }
    #define TSRI_JOIN(x, i, c)                                                                    \
      if (first + (i / R) * C + c <= last) {                                                      \
        float *at = o + (i % R) * ld + (first + (i / R) * C + c) * lanes;                         \
        hn::Store(Recurrence::new_sum(hn::Load(d, at), hn::Set(d, alpha[(i % R) * P]), x), d, at); \
      }
    #define TSRI_FINISH(i)                          \
      TSRI_JOIN(a##i##0, i, 0)                      \
      if constexpr (C > 1) TSRI_JOIN(a##i##1, i, 1) \
      if constexpr (C > 2) TSRI_JOIN(a##i##2, i, 2)
  TSRI_EIGHT(TSRI_FINISH)
    #undef TSRI_FINISH
    #undef TSRI_JOIN
  ahead = next;
}

// All columns in blocks of equal size.
template <int R, int P>
HWY_INLINE void output_narrow(const float *const *v, size_t n, const float *p, size_t columns,
                              float *o, size_t ld, const float *alpha, Ahead &ahead) {
  constexpr size_t kGroups = 8 / R;
  const size_t most = 3 * kGroups, blocks = (columns + most - 1) / most;
  const size_t wide = (columns + blocks * kGroups - 1) / (blocks * kGroups);
  const int64_t turns = static_cast<int64_t>(blocks * n);
  const int64_t lines = (ahead.lines() / 2 + turns - 1) / turns;
  for (size_t c = 0; c < columns; c += wide * kGroups) {
    if (wide == 3)
      output_narrow_block<R, P, 3>(v, n, p, c, columns, o, ld, alpha, ahead, lines);
    else if (wide == 2)
      output_narrow_block<R, P, 2>(v, n, p, c, columns, o, ld, alpha, ahead, lines);
    else
      output_narrow_block<R, P, 1>(v, n, p, c, columns, o, ld, alpha, ahead, lines);
  }
}

    #undef TSRI_EIGHT
  #endif  // HWY_TARGET != HWY_SCALAR

// NOLINTNEXTLINE(google-readability-namespace-comments)
}  // namespace HWY_NAMESPACE
}  // namespace tessera
HWY_AFTER_NAMESPACE();

#endif  // TESSERA_CPU_DECODE_INL_H_
