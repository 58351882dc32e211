// SPDX-License-Identifier: Apache-2.0
//
// Element types, per Highway target: float16 and bfloat16 to float32 and back, and rows of a tensor
// to and from contiguous float32. Rounding is to nearest, ties to even, whatever the library's own
// conversions do (those of Highway 1.0.3 truncate bfloat16); infinities and NaN survive; float16
// overflow becomes infinite; results equal common/dtype.h bit for bit, NaN payloads aside. Nothing
// outside the n elements of a row is read or written.
#include <stdint.h>
#include <string.h>

#include "common/dtype.h"
#include "row_policy-inl.h"

#if defined(TESSERA_CPU_CONVERT_INL_H_) == defined(HWY_TARGET_TOGGLE)
  #ifdef TESSERA_CPU_CONVERT_INL_H_
    #undef TESSERA_CPU_CONVERT_INL_H_
  #else
    #define TESSERA_CPU_CONVERT_INL_H_
  #endif

HWY_BEFORE_NAMESPACE();
namespace tessera {
namespace HWY_NAMESPACE {

using DU16 = hn::Rebind<uint16_t, DF>;

// How a tensor's elements are stored.
struct F32 {
  using T = float;
  static constexpr tsr_dtype kDtype = TSR_DTYPE_F32;
  static HWY_INLINE VF load(const T *p) { return hn::LoadU(DF(), p); }
  static HWY_INLINE void store(VF v, T *p) { hn::StoreU(v, DF(), p); }
  static HWY_INLINE float get(T x) { return x; }
  static HWY_INLINE T put(float x) { return x; }
};

struct BF16 {
  using T = uint16_t;
  static constexpr tsr_dtype kDtype = TSR_DTYPE_BF16;
  static HWY_INLINE VF load(const T *p) {
    const VU u = hn::PromoteTo(DU(), hn::LoadU(DU16(), p));
    return hn::BitCast(DF(), hn::ShiftLeft<16>(u));
  }
  static HWY_INLINE VU bits_of(VF v) {
    const DU du;
    const VU u = hn::BitCast(du, v);
    const VU odd = hn::And(hn::ShiftRight<16>(u), hn::Set(du, 1));
    const VU rounded = hn::ShiftRight<16>(hn::Add(hn::Add(u, hn::Set(du, 0x7fff)), odd));
    const VU quiet =
        hn::Or(hn::And(hn::ShiftRight<16>(u), hn::Set(du, 0x8000)), hn::Set(du, 0x7fc0));
    // A NaN's payload could be lost in the cut half, or carry into the sign.
    return hn::IfThenElse(hn::RebindMask(du, hn::Eq(v, v)), rounded, quiet);
  }
  static HWY_INLINE void store(VF v, T *p) {
    hn::StoreU(hn::DemoteTo(DU16(), hn::BitCast(DI(), bits_of(v))), DU16(), p);
  }
  static HWY_INLINE float get(T x) { return tsri_bf16_to_float(x); }
  static HWY_INLINE T put(float x) { return tsri_float_to_bf16(x); }
};

struct F16 {
  using T = uint16_t;
  static constexpr tsr_dtype kDtype = TSR_DTYPE_F16;
  static HWY_INLINE VF load(const T *p) {
    const DF d;
    const DU du;
  #if HWY_TARGET == HWY_AVX3 || HWY_TARGET == HWY_AVX3_DL
    return VF{_mm512_cvtph_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i *>(p)))};
  #elif HWY_TARGET == HWY_AVX2 && !defined(HWY_DISABLE_F16C)
    return VF{_mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i *>(p)))};
  #else
    // Exponent and mantissa moved into float32's fields, then times 2^112 for the difference of the
    // biases, which also normalises subnormals exactly. The top exponent must become float32's.
    const VU h = hn::PromoteTo(du, hn::LoadU(DU16(), p));
    const VU magnitude = hn::And(h, hn::Set(du, 0x7fff));
    const VF scaled = hn::Mul(hn::BitCast(d, hn::ShiftLeft<13>(magnitude)), hn::Set(d, 0x1p112f));
    const VI top = hn::BitCast(DI(), hn::And(h, hn::Set(du, 0x7c00)));
    const VU special = hn::IfThenElseZero(hn::RebindMask(du, hn::Eq(top, hn::Set(DI(), 0x7c00))),
                                          hn::Set(du, 0x7f800000));
    const VU sign = hn::ShiftLeft<16>(hn::Xor(h, magnitude));
    return hn::BitCast(d, hn::Or(hn::Or(hn::BitCast(du, scaled), special), sign));
  #endif
  }
  static HWY_INLINE VU bits_of(VF v) {
    const DF d;
    const DU du;
    const VU u = hn::BitCast(du, v);
    const VU sign = hn::And(hn::ShiftRight<16>(u), hn::Set(du, 0x8000));
    const VF a = hn::Abs(v);
    const VU ua = hn::BitCast(du, a);
    // Normal results: rebias, round half to even on 13 cut bits.
    const VU odd = hn::And(hn::ShiftRight<13>(ua), hn::Set(du, 1));
    const VU rebias = hn::Set(du, 0xfffu - (112u << 23));
    const VU normal = hn::ShiftRight<13>(hn::Add(hn::Add(ua, rebias), odd));
    // Subnormal results: adding 1/2 puts the unit of float16's subnormals at the last bit.
    const VF half = hn::Set(d, 0.5f);
    const VU subnormal = hn::Sub(hn::BitCast(du, hn::Add(a, half)), hn::BitCast(du, half));
    VU r = hn::IfThenElse(hn::RebindMask(du, hn::Lt(a, hn::Set(d, 0x1p-14f))), subnormal, normal);
    // 65520 is halfway between the largest float16 and 2^16.
    r = hn::IfThenElse(hn::RebindMask(du, hn::Ge(a, hn::Set(d, 65520.0f))), hn::Set(du, 0x7c00), r);
    r = hn::IfThenElse(hn::RebindMask(du, hn::Eq(v, v)), r, hn::Set(du, 0x7e00));
    return hn::Or(r, sign);
  }
  static HWY_INLINE void store(VF v, T *p) {
    hn::StoreU(hn::DemoteTo(DU16(), hn::BitCast(DI(), bits_of(v))), DU16(), p);
  }
  static HWY_INLINE float get(T x) { return tsri_f16_to_float(x); }
  static HWY_INLINE T put(float x) { return tsri_float_to_f16(x); }
};

// 8-bit elements, to be multiplied by their scales.
using DI8 = hn::Rebind<int8_t, DF>;
using DU8 = hn::Rebind<uint8_t, DF>;

struct I8 {
  using T = int8_t;
  static constexpr tsr_dtype kDtype = TSR_DTYPE_I8;
  static HWY_INLINE VF load(const T *p) {
    return hn::ConvertTo(DF(), hn::PromoteTo(DI(), hn::LoadU(DI8(), p)));
  }
  static HWY_INLINE float get(T x) { return static_cast<float>(x); }
};

// Exponent and mantissa moved into float32's fields, times the difference of the biases; subnormals
// are integers times the smallest one; the top exponent (E5M2) or the top pattern (E4M3) is
// special.
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

// n elements from src, `stride` apart, to contiguous float32.
template <class E>
HWY_INLINE void load_row(const void *base, int64_t offset, int64_t stride, size_t n,
                         float *HWY_RESTRICT dst) {
  const typename E::T *HWY_RESTRICT src = static_cast<const typename E::T *>(base) + offset;
  const DF d;
  const size_t lanes = hn::Lanes(d);
  size_t x = 0;
  if (stride != 1) {
    for (; x < n; ++x) dst[x] = E::get(src[static_cast<int64_t>(x) * stride]);
    return;
  }
  for (; x + lanes <= n; x += lanes) hn::StoreU(E::load(src + x), d, dst + x);
  for (; x < n; ++x) dst[x] = E::get(src[x]);
}

// n contiguous float32 to dst, `stride` apart.
template <class E>
HWY_INLINE void store_row(const float *HWY_RESTRICT src, size_t n, void *base, int64_t offset,
                          int64_t stride) {
  typename E::T *HWY_RESTRICT dst = static_cast<typename E::T *>(base) + offset;
  const DF d;
  const size_t lanes = hn::Lanes(d);
  size_t x = 0;
  if (stride != 1) {
    for (; x < n; ++x) dst[static_cast<int64_t>(x) * stride] = E::put(src[x]);
    return;
  }
  for (; x + lanes <= n; x += lanes) E::store(hn::LoadU(d, src + x), dst + x);
  for (; x < n; ++x) dst[x] = E::put(src[x]);
}

// The same with the type as a value. Not inlined: called per row, and rows are long.
static HWY_NOINLINE HWY_MAYBE_UNUSED void load_row_any(tsr_dtype dtype, const void *base,
                                                       int64_t offset, int64_t stride, size_t n,
                                                       float *dst) {
  if (dtype == TSR_DTYPE_F32) return load_row<F32>(base, offset, stride, n, dst);
  if (dtype == TSR_DTYPE_BF16) return load_row<BF16>(base, offset, stride, n, dst);
  load_row<F16>(base, offset, stride, n, dst);
}

static HWY_NOINLINE HWY_MAYBE_UNUSED void store_row_any(tsr_dtype dtype, const float *src, size_t n,
                                                        void *base, int64_t offset,
                                                        int64_t stride) {
  if (dtype == TSR_DTYPE_F32) return store_row<F32>(src, n, base, offset, stride);
  if (dtype == TSR_DTYPE_BF16) return store_row<BF16>(src, n, base, offset, stride);
  store_row<F16>(src, n, base, offset, stride);
}

// NOLINTNEXTLINE(google-readability-namespace-comments)
}  // namespace HWY_NAMESPACE
}  // namespace tessera
HWY_AFTER_NAMESPACE();

#endif  // TESSERA_CPU_CONVERT_INL_H_
