// SPDX-License-Identifier: Apache-2.0
//
// The arithmetic of one vector of rows, per Highway target: 2^x, ln, tanh, and the policy that
// common/online_softmax-inl.h is instantiated with. Lanes are independent: a lane's result depends
// on that lane's input alone, so a row gives the same bits in whatever lane it lands.
//
// 2^x = 2^r 2^f with r = round(x), f in [-1/2, 1/2]; 2^f by a polynomial of degree 6 with constant
// term 1 (relative error 4e-9, below the rounding of its evaluation). Results below 2^-126 are 0.
// ln x = e ln 2 + f - f^2/2 + f^3 P(f), 1 + f in [sqrt(1/2), sqrt(2)), P of degree 8.
// tanh by an odd polynomial up to 0.625, beyond by 1 - 2 / (e^2x + 1).
#include "common/platform.h"
#include "hwy/highway.h"

#if defined(TESSERA_CPU_ROW_POLICY_INL_H_) == defined(HWY_TARGET_TOGGLE)
  #ifdef TESSERA_CPU_ROW_POLICY_INL_H_
    #undef TESSERA_CPU_ROW_POLICY_INL_H_
  #else
    #define TESSERA_CPU_ROW_POLICY_INL_H_
  #endif

HWY_BEFORE_NAMESPACE();
namespace tessera {
namespace HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

using DF = hn::ScalableTag<float>;
using VF = hn::Vec<DF>;
using DI = hn::RebindToSigned<DF>;
using VI = hn::Vec<DI>;
using DU = hn::RebindToUnsigned<DF>;
using VU = hn::Vec<DU>;

  // max(a, limit) and min(a, limit) that let a NaN in a through: on x86 the second operand wins;
  // Arm and what is emulated drop the NaN.
  #if HWY_ARCH_X86 && HWY_TARGET != HWY_SCALAR && HWY_TARGET != HWY_EMU128
HWY_INLINE VF at_least(VF a, VF limit) {
  return hn::Max(limit, a);
}
HWY_INLINE VF at_most(VF a, VF limit) {
  return hn::Min(limit, a);
}
  #else
HWY_INLINE VF at_least(VF a, VF limit) {
  return hn::IfThenElse(hn::Lt(a, limit), limit, a);
}
HWY_INLINE VF at_most(VF a, VF limit) {
  return hn::IfThenElse(hn::Gt(a, limit), limit, a);
}
  #endif

// 2^f by the polynomial, exactly 1 at 0.
HWY_INLINE VF exp2_polynomial(DF d, VF f) {
  VF p = hn::Set(d, 1.546973198e-04f);
  p = hn::MulAdd(p, f, hn::Set(d, 1.341000097e-03f));
  p = hn::MulAdd(p, f, hn::Set(d, 9.618030783e-03f));
  p = hn::MulAdd(p, f, hn::Set(d, 5.550297314e-02f));
  p = hn::MulAdd(p, f, hn::Set(d, 2.402265108e-01f));
  p = hn::MulAdd(p, f, hn::Set(d, 6.931472254e-01f));
  return hn::MulAdd(p, f, hn::Set(d, 1.0f));
}

// 2^x for x <= 127; exactly 0 at -inf and wherever x < -126, exactly 1 at 0, NaN at NaN.
HWY_INLINE VF exp2_of(VF x) {
  const DF d;
  #if HWY_TARGET == HWY_AVX3 || HWY_TARGET == HWY_AVX3_DL
  // scalef does in one instruction what needs four elsewhere. Lanes below -126 are cleared, NaN is
  // not: subnormal probabilities would cost a microcode assist in every product.
  const VF r{_mm512_roundscale_ps(x.raw, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC)};
  const VF p = exp2_polynomial(d, hn::Sub(x, r));
  const __mmask16 kept = _mm512_cmp_ps_mask(x.raw, _mm512_set1_ps(-126.0f), _CMP_NLT_UQ);
  return VF{_mm512_maskz_scalef_ps(kept, p.raw, r.raw)};
  #else
  const DI di;
  const VF lowest = hn::Set(d, -126.0f);
  const VF bounded = at_least(x, lowest);
  const VF r = hn::Round(bounded);
  const VF p = exp2_polynomial(d, hn::Sub(bounded, r));
  const VF y = hn::BitCast(d, hn::Add(hn::BitCast(di, p), hn::ShiftLeft<23>(hn::ConvertTo(di, r))));
  // p of a NaN is NaN, and adding to its exponent field could turn it into a number.
  const VF kept = hn::IfThenElse(hn::Eq(x, x), y, x);
  return hn::IfThenZeroElse(hn::Lt(x, lowest), kept);
  #endif
}

// 2^(x unit) without rounding the product first: adding 1.5 2^23 leaves its integer part in the low
// bits, and the rest is exact with fused multiply-add. Exactly 0 where x unit < -126, exactly 1 at 0,
// NaN at NaN; x unit <= 127, unit > 0.
HWY_INLINE VF exp2_product(VF x, VF unit) {
  const DF d;
  const VF magic = hn::Set(d, 12582912.0f);
  // The same for all of a tile; finite, so that -inf is below it.
  const VF lowest = hn::Max(hn::Div(hn::Set(d, -126.0f), unit), hn::Set(d, -3.402823466e38f));
  #if HWY_TARGET == HWY_AVX3 || HWY_TARGET == HWY_AVX3_DL
  const VF r = hn::Sub(hn::MulAdd(x, unit, magic), magic);
  const VF p = exp2_polynomial(d, hn::MulSub(x, unit, r));
  const __mmask16 kept = _mm512_cmp_ps_mask(x.raw, lowest.raw, _CMP_NLT_UQ);
  return VF{_mm512_maskz_scalef_ps(kept, p.raw, r.raw)};
  #else
  const DI di;
  const VF bounded = at_least(x, lowest);
  const VF whole = hn::MulAdd(bounded, unit, magic);
  const VF p = exp2_polynomial(d, hn::MulSub(bounded, unit, hn::Sub(whole, magic)));
  const VI exponent = hn::ShiftLeft<23>(hn::BitCast(di, whole));
  const VF y = hn::BitCast(d, hn::Add(hn::BitCast(di, p), exponent));
  const VF kept = hn::IfThenElse(hn::Eq(x, x), y, x);
  return hn::IfThenZeroElse(hn::Lt(x, lowest), kept);
  #endif
}

// Natural logarithm of positive normal numbers, +inf and NaN; exactly 0 at 1. x = 2^e (1 + f): the
// leading terms of log(1 + f) and the upper part of e ln 2 are exact, so the result is within an
// ulp.
HWY_INLINE VF log_of(VF x) {
  const DF d;
  const DI di;
  // Bits of sqrt(1/2): subtracting them makes the exponent field that of x relative to it.
  const VI origin = hn::Set(di, 0x3f3504f3);
  const VI bits = hn::BitCast(di, x);
  const VI whole = hn::ShiftRight<23>(hn::Sub(bits, origin));
  const VF e = hn::ConvertTo(d, whole);
  const VF f = hn::Sub(hn::BitCast(d, hn::Sub(bits, hn::ShiftLeft<23>(whole))), hn::Set(d, 1.0f));
  const VF f2 = hn::Mul(f, f);
  VF p = hn::Set(d, 6.744583215e-02f);
  p = hn::MulAdd(p, f, hn::Set(d, -1.167481348e-01f));
  p = hn::MulAdd(p, f, hn::Set(d, 1.188858795e-01f));
  p = hn::MulAdd(p, f, hn::Set(d, -1.240575418e-01f));
  p = hn::MulAdd(p, f, hn::Set(d, 1.421952179e-01f));
  p = hn::MulAdd(p, f, hn::Set(d, -1.666798573e-01f));
  p = hn::MulAdd(p, f, hn::Set(d, 2.000211952e-01f));
  p = hn::MulAdd(p, f, hn::Set(d, -2.500000979e-01f));
  p = hn::MulAdd(p, f, hn::Set(d, 3.333331260e-01f));
  VF tail = hn::MulAdd(e, hn::Set(d, -2.12194440e-04f), hn::Mul(hn::Mul(p, f2), f));
  tail = hn::MulAdd(f2, hn::Set(d, -0.5f), tail);
  const VF y = hn::MulAdd(e, hn::Set(d, 0.693359375f), hn::Add(f, tail));
  return hn::IfThenElse(hn::Lt(x, hn::Set(d, __builtin_inff())), y, x);
}

HWY_INLINE VF tanh_of(VF x) {
  const DF d;
  const VF one = hn::Set(d, 1.0f);
  const VF a = hn::Abs(x);
  const VF z = hn::Mul(x, x);
  VF p = hn::Set(d, -5.717170716e-03f);
  p = hn::MulAdd(p, z, hn::Set(d, 2.065077873e-02f));
  p = hn::MulAdd(p, z, hn::Set(d, -5.374358912e-02f));
  p = hn::MulAdd(p, z, hn::Set(d, 1.333149288e-01f));
  p = hn::MulAdd(p, z, hn::Set(d, -3.333328400e-01f));
  const VF small = hn::MulAdd(hn::Mul(p, z), x, x);
  // Beyond 10 the result is 1 in float32, and 2^x keeps its range.
  const VF e = exp2_of(hn::Mul(at_most(a, hn::Set(d, 10.0f)), hn::Set(d, 2.885390082f)));
  const VF big = hn::Sub(one, hn::Div(hn::Set(d, 2.0f), hn::Add(e, one)));
  return hn::IfThenElse(hn::Lt(a, hn::Set(d, 0.625f)), small, hn::CopySign(big, x));
}

struct RowPolicy {
  using V = VF;
  static HWY_INLINE V set(float x) { return hn::Set(DF(), x); }
  // Operands in this order: x86 returns the second when one is NaN, and it is better for m to stay
  // a number (the NaN score makes its own p, and so l, NaN).
  static HWY_INLINE V max(V m, V s) { return hn::Max(s, m); }
  static HWY_INLINE V add(V a, V b) { return hn::Add(a, b); }
  static HWY_INLINE V sub(V a, V b) { return hn::Sub(a, b); }
  static HWY_INLINE V mul(V a, V b) { return hn::Mul(a, b); }
  static HWY_INLINE V mul_add(V a, V b, V c) { return hn::MulAdd(a, b, c); }
  #if HWY_TARGET == HWY_SCALAR || HWY_TARGET == HWY_EMU128 || HWY_TARGET == HWY_SSSE3 || HWY_TARGET == HWY_SSE4
  // MulAdd rounds its product here. Halves of 12 bits have exact products (Dekker 1971).
  static HWY_INLINE V product_rest(V a, V b, V y) {
    const V split = hn::Set(DF(), 4097.0f), wa = hn::Mul(a, split), wb = hn::Mul(b, split);
    const V a1 = hn::Sub(wa, hn::Sub(wa, a)), a0 = hn::Sub(a, a1);
    const V b1 = hn::Sub(wb, hn::Sub(wb, b)), b0 = hn::Sub(b, b1);
    const V upper = hn::Add(hn::Sub(hn::Mul(a1, b1), y), hn::Mul(a1, b0));
    return hn::Add(hn::Add(upper, hn::Mul(a0, b1)), hn::Mul(a0, b0));
  }
  #endif
  static HWY_INLINE V div(V a, V b) { return hn::Div(a, b); }
  static HWY_INLINE V exp2(V x) { return exp2_of(x); }
  static HWY_INLINE V exp2_product(V x, V unit) {
    return tessera::HWY_NAMESPACE::exp2_product(x, unit);
  }
  static HWY_INLINE V log(V x) { return log_of(x); }
  static HWY_INLINE V select_eq(V a, V b, V yes, V no) {
    return hn::IfThenElse(hn::Eq(a, b), yes, no);
  }
  static HWY_INLINE V select_le(V a, V b, V yes, V no) {
    return hn::IfThenElse(hn::Le(a, b), yes, no);
  }
};

  #include "common/online_softmax-inl.h"

using Recurrence = OnlineSoftmax<RowPolicy>;

// NOLINTNEXTLINE(google-readability-namespace-comments)
}  // namespace HWY_NAMESPACE
}  // namespace tessera
HWY_AFTER_NAMESPACE();

#endif  // TESSERA_CPU_ROW_POLICY_INL_H_
