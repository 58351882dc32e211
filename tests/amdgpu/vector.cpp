// SPDX-License-Identifier: Apache-2.0
//
// Vector instructions on 32 and 16 bits, one function of a lane each, with the meanings of AMD's
// ISA documents. Denormals are kept, as the kernels' descriptors ask, but for the functions that
// never keep them: exp, log, rcp, rsq, sqrt.
#include <math.h>

#include "per_lane.h"

namespace tessera {
namespace amdgpu {

namespace {

constexpr float kInfinity = __builtin_inff();

float flush(float x) { return fabsf(x) < 0x1p-126f ? copysignf(0.0f, x) : x; }

uint32_t mov(uint32_t x) { return x; }
uint32_t lnot(uint32_t x) { return ~x; }
uint32_t add(uint32_t a, uint32_t b) { return a + b; }
uint32_t sub(uint32_t a, uint32_t b) { return a - b; }
uint32_t subrev(uint32_t a, uint32_t b) { return b - a; }
uint32_t land(uint32_t a, uint32_t b) { return a & b; }
uint32_t lor(uint32_t a, uint32_t b) { return a | b; }
uint32_t lxor(uint32_t a, uint32_t b) { return a ^ b; }
uint32_t lxnor(uint32_t a, uint32_t b) { return ~(a ^ b); }
uint32_t lshlrev(uint32_t n, uint32_t x) { return x << (n & 31); }
uint32_t lshrrev(uint32_t n, uint32_t x) { return x >> (n & 31); }
int32_t ashrrev(uint32_t n, int32_t x) { return x >> (n & 31); }
uint32_t mul_lo(uint32_t a, uint32_t b) { return a * b; }
uint32_t mul_hi(uint32_t a, uint32_t b) { return static_cast<uint32_t>(static_cast<uint64_t>(a) * b >> 32); }
int32_t mul_hi_signed(int32_t a, int32_t b) {
  return static_cast<int32_t>(static_cast<int64_t>(a) * b >> 32);
}
uint32_t mul_24(uint32_t a, uint32_t b) { return (a & 0xffffffu) * (b & 0xffffffu); }
int32_t signed_24(int32_t x) { return static_cast<int32_t>(static_cast<uint32_t>(x) << 8) >> 8; }
uint32_t mul_24_signed(int32_t a, int32_t b) {
  return static_cast<uint32_t>(static_cast<int64_t>(signed_24(a)) * signed_24(b));
}
uint32_t mad_24(uint32_t a, uint32_t b, uint32_t c) { return mul_24(a, b) + c; }
uint32_t mad_24_signed(int32_t a, int32_t b, uint32_t c) { return mul_24_signed(a, b) + c; }
uint32_t add3(uint32_t a, uint32_t b, uint32_t c) { return a + b + c; }
uint32_t lshl_add(uint32_t a, uint32_t n, uint32_t c) { return (a << (n & 31)) + c; }
uint32_t add_lshl(uint32_t a, uint32_t b, uint32_t n) { return (a + b) << (n & 31); }
uint32_t lshl_or(uint32_t a, uint32_t n, uint32_t c) { return a << (n & 31) | c; }
uint32_t and_or(uint32_t a, uint32_t b, uint32_t c) { return (a & b) | c; }
uint32_t or3(uint32_t a, uint32_t b, uint32_t c) { return a | b | c; }
uint32_t xor3(uint32_t a, uint32_t b, uint32_t c) { return a ^ b ^ c; }
uint32_t xad(uint32_t a, uint32_t b, uint32_t c) { return (a ^ b) + c; }
uint32_t bfe_u(uint32_t x, uint32_t at, uint32_t n) { return x >> (at & 31) & ((1u << (n & 31)) - 1); }
int32_t bfe_i(uint32_t x, uint32_t at, uint32_t n) {
  const uint32_t bits = n & 31, field = bfe_u(x, at, n);
  if (bits == 0) return 0;
  return static_cast<int32_t>(field << (32 - bits)) >> (32 - bits);
}
uint32_t bfi(uint32_t mask, uint32_t a, uint32_t b) { return (mask & a) | (~mask & b); }
uint32_t bfm(uint32_t n, uint32_t at) { return ((1u << (n & 31)) - 1) << (at & 31); }
uint32_t alignbit(uint32_t high, uint32_t low, uint32_t n) {
  return static_cast<uint32_t>((static_cast<uint64_t>(high) << 32 | low) >> (n & 31));
}
uint32_t alignbyte(uint32_t high, uint32_t low, uint32_t n) { return alignbit(high, low, (n & 3) * 8); }
uint32_t reverse(uint32_t x) {
  uint32_t y = 0;
  for (int b = 0; b < 32; ++b) y |= (x >> b & 1u) << (31 - b);
  return y;
}
uint32_t first_high(uint32_t x) { return x ? static_cast<uint32_t>(__builtin_clz(x)) : 0xffffffffu; }
uint32_t first_low(uint32_t x) { return x ? static_cast<uint32_t>(__builtin_ctz(x)) : 0xffffffffu; }
uint32_t bit_count(uint32_t x, uint32_t y) { return static_cast<uint32_t>(__builtin_popcount(x)) + y; }
uint32_t perm(uint32_t a, uint32_t b, uint32_t selector) {
  const uint64_t bytes = static_cast<uint64_t>(a) << 32 | b;
  uint32_t out = 0;
  for (int k = 0; k < 4; ++k) {
    const uint32_t s = selector >> 8 * k & 0xff;
    uint32_t byte = 0;
    if (s < 8)
      byte = static_cast<uint32_t>(bytes >> 8 * s) & 0xff;
    else if (s < 12)
      byte = bytes >> (16 * (s - 8) + 15) & 1 ? 0xff : 0;
    else if (s >= 13)
      byte = 0xff;
    out |= byte << 8 * k;
  }
  return out;
}
uint32_t min_u(uint32_t a, uint32_t b) { return a < b ? a : b; }
uint32_t max_u(uint32_t a, uint32_t b) { return a > b ? a : b; }
int32_t min_i(int32_t a, int32_t b) { return a < b ? a : b; }
int32_t max_i(int32_t a, int32_t b) { return a > b ? a : b; }
uint32_t min3_u(uint32_t a, uint32_t b, uint32_t c) { return min_u(min_u(a, b), c); }
uint32_t max3_u(uint32_t a, uint32_t b, uint32_t c) { return max_u(max_u(a, b), c); }
int32_t min3_i(int32_t a, int32_t b, int32_t c) { return min_i(min_i(a, b), c); }
int32_t max3_i(int32_t a, int32_t b, int32_t c) { return max_i(max_i(a, b), c); }
uint32_t med3_u(uint32_t a, uint32_t b, uint32_t c) { return max_u(min_u(max_u(a, b), c), min_u(a, b)); }
int32_t med3_i(int32_t a, int32_t b, int32_t c) { return max_i(min_i(max_i(a, b), c), min_i(a, b)); }

float fadd(float a, float b) { return a + b; }
float fsub(float a, float b) { return a - b; }
float fsubrev(float a, float b) { return b - a; }
float fmul(float a, float b) { return a * b; }
float fused(float a, float b, float c) { return fmaf(a, b, c); }
// Two roundings, and no denormals whatever the mode.
float multiplied_onto(float a, float b, float c) { return flush(flush(flush(a) * flush(b)) + flush(c)); }
// The number where one is no number; of zeros the positive one.
float fmax2(float a, float b) {
  if (a != a) return b;
  if (b != b) return a;
  return a > b || (a == b && !signbit(a)) ? a : b;
}
float fmin2(float a, float b) {
  if (a != a) return b;
  if (b != b) return a;
  return a < b || (a == b && signbit(a)) ? a : b;
}
float fmax3(float a, float b, float c) { return fmax2(fmax2(a, b), c); }
float fmin3(float a, float b, float c) { return fmin2(fmin2(a, b), c); }
float fmed3(float a, float b, float c) {
  if (a != a || b != b || c != c) return fmin3(a, b, c);
  return fmax2(fmin2(fmax2(a, b), c), fmin2(a, b));
}
float fexp(float x) { return flush(exp2f(flush(x))); }
float flog(float x) { return log2f(flush(x)); }
float frcp(float x) { return flush(1.0f / flush(x)); }
float frsq(float x) { return 1.0f / sqrtf(flush(x)); }
float fsqrt(float x) { return sqrtf(flush(x)); }
float ffloor(float x) { return floorf(x); }
float fceil(float x) { return ceilf(x); }
float ftrunc(float x) { return truncf(x); }
float frndne(float x) { return rintf(x); }
float fract(float x) {
  const float y = x - floorf(x);
  return y < 1.0f ? y : 0x1.fffffep-1f;
}
float fldexp(float x, int32_t n) { return ldexpf(x, n < -400 ? -400 : n > 400 ? 400 : n); }
float frexp_mant(float x) {
  int n;
  return isfinite(x) ? frexpf(x, &n) : x;
}
int32_t frexp_exp(float x) {
  int n = 0;
  if (isfinite(x)) frexpf(x, &n);
  return n;
}
float from_u(uint32_t x) { return static_cast<float>(x); }
float from_i(int32_t x) { return static_cast<float>(x); }
float from_byte(uint32_t x) { return static_cast<float>(x & 0xff); }
uint32_t to_u(float x) { // towards zero; what does not fit becomes the nearest that does
  if (!(x > 0)) return 0;
  return x >= 0x1p32f ? 0xffffffffu : static_cast<uint32_t>(x);
}
int32_t to_i(float x) {
  if (x != x) return 0;
  if (x >= 0x1p31f) return 0x7fffffff;
  return x < -0x1p31f ? -0x7fffffff - 1 : static_cast<int32_t>(x);
}
float from_half(Half x) { return x.value(); }
Half to_half(float x) { return {half_of(x)}; }
uint32_t pack_halves(Half low, Half high) { return low.bits | static_cast<uint32_t>(high.bits) << 16; }

Half hadd(Half a, Half b) { return {half_of(a.value() + b.value())}; }
Half hsub(Half a, Half b) { return {half_of(a.value() - b.value())}; }
Half hmul(Half a, Half b) { return {half_of(a.value() * b.value())}; }
Half hmax(Half a, Half b) { return {half_of(fmax2(a.value(), b.value()))}; }
Half hmin(Half a, Half b) { return {half_of(fmin2(a.value(), b.value()))}; }
Half hrcp(Half a) { return {half_of(1.0f / a.value())}; }
Short add_16(Short a, Short b) { return {static_cast<uint16_t>(a.bits + b.bits)}; }
Short sub_16(Short a, Short b) { return {static_cast<uint16_t>(a.bits - b.bits)}; }
Short mul_16(Short a, Short b) { return {static_cast<uint16_t>(a.bits * b.bits)}; }
Short lshlrev_16(Short n, Short x) { return {static_cast<uint16_t>(x.bits << (n.bits & 15))}; }
Short lshrrev_16(Short n, Short x) { return {static_cast<uint16_t>(x.bits >> (n.bits & 15))}; }
Short ashrrev_16(Short n, Short x) {
  return {static_cast<uint16_t>(static_cast<int16_t>(x.bits) >> (n.bits & 15))};
}
Short max_u16(Short a, Short b) { return a.bits > b.bits ? a : b; }
Short min_u16(Short a, Short b) { return a.bits < b.bits ? a : b; }
Short land_16(Short a, Short b) { return {static_cast<uint16_t>(a.bits & b.bits)}; }
Short lor_16(Short a, Short b) { return {static_cast<uint16_t>(a.bits | b.bits)}; }
Short lxor_16(Short a, Short b) { return {static_cast<uint16_t>(a.bits ^ b.bits)}; }

int exponent(float x) { return static_cast<int>(as_word(x) >> 23 & 255); }
bool denormal(double x) { return x != 0 && fabs(x) < 0x1p-126; }

// q = n / d after Newton's steps, made right where d or n are no ordinary numbers.
float div_fixup(float q, float d, float n) {
  const float sign = signbit(d) != signbit(n) ? -1.0f : 1.0f;
  if (n != n) return n;
  if (d != d) return d;
  if ((d == 0 && n == 0) || (isinf(d) && isinf(n))) return as_float(0xffc00000u);
  if (d == 0 || isinf(n)) return copysignf(kInfinity, sign);
  if (isinf(d) || n == 0) return copysignf(0.0f, sign);
  if (exponent(n) - exponent(d) < -150) return copysignf(0.0f, sign);
  return copysignf(fabsf(q), sign);
}

// Operand of a division n / d, s being n or d, scaled so that no step in between leaves the range
// of normal numbers; the lane's bit of operand 1 asks div_fmas to undo it.
float div_scale(float s, float d, float n, bool *undo) {
  *undo = false;
  if (d == 0 || n == 0) return __builtin_nanf("");
  const double quotient = static_cast<double>(n) / d;
  if (exponent(n) - exponent(d) >= 96) {
    *undo = true;
    return s == d ? ldexpf(s, 64) : s;
  }
  if (denormal(d)) return ldexpf(s, 64);
  if (denormal(1.0 / d) && denormal(quotient)) {
    *undo = true;
    return s == d ? ldexpf(s, 64) : s;
  }
  if (denormal(1.0 / d)) return ldexpf(s, -64);
  if (denormal(quotient)) {
    *undo = true;
    return s == n ? ldexpf(s, 64) : s;
  }
  return exponent(n) <= 23 ? ldexpf(s, 64) : s;
}

void scale(Wave &w, const Inst &i) {
  Values<float> s, d, n, out;
  s.read(w, i, 2);
  d.read(w, i, 3);
  n.read(w, i, 4);
  uint64_t mask = 0;
  for (int l = 0; l < w.lanes; ++l) {
    bool undo;
    out.set(l, div_scale(s[l], d[l], n[l], &undo));
    mask |= static_cast<uint64_t>(undo) << l;
  }
  out.write(w, i, 0);
  w.set_mask(i.op[1], mask & w.exec());
}

// The factor undoes what div_scale did to one of the two operands: a large quotient came from a
// denominator made larger, a small one from a numerator made larger. (The documents say 2^32 where
// they say that div_scale uses 2^64; with that no quotient that was scaled would be right.)
void div_fmas(Wave &w, const Inst &i) {
  Values<float> a, b, c, out;
  a.read(w, i, 1);
  b.read(w, i, 2);
  c.read(w, i, 3);
  const uint64_t vcc = w.lanes == 64 ? w.pair(kVcc) : w.s[kVcc];
  for (int l = 0; l < w.lanes; ++l) {
    const float x = fmaf(a[l], b[l], c[l]);
    out.set(l, !(vcc >> l & 1) ? x : exponent(c[l]) > 127 ? x * 0x1p64f : x * 0x1p-64f);
  }
  out.write(w, i, 0);
}

// A scalar's exp, log and so on: the vector unit's function of one value.
template <float (*f)(float)>
void of_scalar(Wave &w, const Inst &i) {
  const Operand &o = i.op[1];
  float x = as_float(scalar_word(w, o));
  if (o.absolute) x = fabsf(x);
  set_scalar_word(w, i.op[0], as_word(f(o.negate ? -x : x)));
}

// fma of sources that are float32, or where op_sel_hi says so float16: the half that op_sel names.
void fma_mix(Wave &w, const Inst &i) {
  float x[3][64];
  uint32_t buffer[64], out[64];
  for (int n = 0; n < 3; ++n) {
    const Operand &o = i.op[n + 1];
    Inst raw = i; // signs belong to the value, whatever its size
    raw.op[n + 1].negate = raw.op[n + 1].absolute = false;
    const uint32_t *words = read_words(w, raw, n + 1, buffer);
    const bool half = i.has_select_high && (i.select_high >> n & 1), high = i.select >> n & 1;
    for (int l = 0; l < w.lanes; ++l) {
      const uint16_t bits = static_cast<uint16_t>(high ? words[l] >> 16 : words[l]);
      float y = !half ? as_float(words[l]) : float_of_half(o.kind == Kind::kConstant ? o.half : bits);
      if (o.absolute) y = fabsf(y);
      x[n][l] = o.negate ? -y : y;
    }
  }
  for (int l = 0; l < w.lanes; ++l) out[l] = as_word(fmaf(x[0][l], x[1][l], x[2][l]));
  write_words(w, i, 0, out);
}

// v_fmaak d, a, b, k and v_fmamk d, a, k, b are the fused form as their operands stand.
struct Plain {
  const char *name;
  Handler run;
};
const Plain kIntegers[] = {{"v_mov_b32", per_lane<mov>},
                           {"v_accvgpr_read_b32", per_lane<mov>},
                           {"v_accvgpr_write_b32", per_lane<mov>},
                           {"v_accvgpr_mov_b32", per_lane<mov>},
                           {"v_not_b32", per_lane<lnot>},
                           {"v_add_u32", per_lane<add>},
                           {"v_add_nc_u32", per_lane<add>},
                           {"v_sub_u32", per_lane<sub>},
                           {"v_sub_nc_u32", per_lane<sub>},
                           {"v_subrev_u32", per_lane<subrev>},
                           {"v_subrev_nc_u32", per_lane<subrev>},
                           {"v_and_b32", per_lane<land>},
                           {"v_or_b32", per_lane<lor>},
                           {"v_xor_b32", per_lane<lxor>},
                           {"v_xnor_b32", per_lane<lxnor>},
                           {"v_lshlrev_b32", per_lane<lshlrev>},
                           {"v_lshrrev_b32", per_lane<lshrrev>},
                           {"v_ashrrev_i32", per_lane<ashrrev>},
                           {"v_mul_lo_u32", per_lane<mul_lo>},
                           {"v_mul_hi_u32", per_lane<mul_hi>},
                           {"v_mul_hi_i32", per_lane<mul_hi_signed>},
                           {"v_mul_u32_u24", per_lane<mul_24>},
                           {"v_mul_i32_i24", per_lane<mul_24_signed>},
                           {"v_mad_u32_u24", per_lane<mad_24>},
                           {"v_mad_i32_i24", per_lane<mad_24_signed>},
                           {"v_add3_u32", per_lane<add3>},
                           {"v_lshl_add_u32", per_lane<lshl_add>},
                           {"v_add_lshl_u32", per_lane<add_lshl>},
                           {"v_lshl_or_b32", per_lane<lshl_or>},
                           {"v_and_or_b32", per_lane<and_or>},
                           {"v_or3_b32", per_lane<or3>},
                           {"v_xor3_b32", per_lane<xor3>},
                           {"v_xad_u32", per_lane<xad>},
                           {"v_bfe_u32", per_lane<bfe_u>},
                           {"v_bfe_i32", per_lane<bfe_i>},
                           {"v_bfi_b32", per_lane<bfi>},
                           {"v_bfm_b32", per_lane<bfm>},
                           {"v_alignbit_b32", per_lane<alignbit>},
                           {"v_alignbyte_b32", per_lane<alignbyte>},
                           {"v_bfrev_b32", per_lane<reverse>},
                           {"v_ffbh_u32", per_lane<first_high>},
                           {"v_clz_i32_u32", per_lane<first_high>},
                           {"v_ffbl_b32", per_lane<first_low>},
                           {"v_ctz_i32_b32", per_lane<first_low>},
                           {"v_bcnt_u32_b32", per_lane<bit_count>},
                           {"v_perm_b32", per_lane<perm>},
                           {"v_min_u32", per_lane<min_u>},
                           {"v_max_u32", per_lane<max_u>},
                           {"v_min_i32", per_lane<min_i>},
                           {"v_max_i32", per_lane<max_i>},
                           {"v_min3_u32", per_lane<min3_u>},
                           {"v_max3_u32", per_lane<max3_u>},
                           {"v_min3_i32", per_lane<min3_i>},
                           {"v_max3_i32", per_lane<max3_i>},
                           {"v_med3_u32", per_lane<med3_u>},
                           {"v_med3_i32", per_lane<med3_i>},
                           {"v_cvt_f32_u32", per_lane<from_u>},
                           {"v_cvt_f32_i32", per_lane<from_i>},
                           {"v_cvt_f32_ubyte0", per_lane<from_byte>}};
const Plain kShorts[] = {{"v_add_u16", per_lane<add_16>},         {"v_add_nc_u16", per_lane<add_16>},
                         {"v_sub_u16", per_lane<sub_16>},         {"v_sub_nc_u16", per_lane<sub_16>},
                         {"v_mul_lo_u16", per_lane<mul_16>},      {"v_lshlrev_b16", per_lane<lshlrev_16>},
                         {"v_lshrrev_b16", per_lane<lshrrev_16>}, {"v_ashrrev_i16", per_lane<ashrrev_16>},
                         {"v_max_u16", per_lane<max_u16>},        {"v_min_u16", per_lane<min_u16>},
                         {"v_and_b16", per_lane<land_16>},        {"v_or_b16", per_lane<lor_16>},
                         {"v_xor_b16", per_lane<lxor_16>}};
const Plain kFloats[] = {{"v_add_f32", per_lane<fadd>},
                         {"v_sub_f32", per_lane<fsub>},
                         {"v_subrev_f32", per_lane<fsubrev>},
                         {"v_mul_f32", per_lane<fmul>},
                         {"v_fma_f32", per_lane<fused>},
                         {"v_fmaak_f32", per_lane<fused>},
                         {"v_fmamk_f32", per_lane<fused>},
                         {"v_fmac_f32", PerLane<fused>::run_onto},
                         {"v_madmk_f32", per_lane<multiplied_onto>},
                         {"v_madak_f32", per_lane<multiplied_onto>},
                         {"v_mac_f32", PerLane<multiplied_onto>::run_onto},
                         {"v_max_f32", per_lane<fmax2>},
                         {"v_min_f32", per_lane<fmin2>},
                         {"v_max_num_f32", per_lane<fmax2>},
                         {"v_min_num_f32", per_lane<fmin2>},
                         {"v_max3_f32", per_lane<fmax3>},
                         {"v_max3_num_f32", per_lane<fmax3>},
                         {"v_min3_f32", per_lane<fmin3>},
                         {"v_min3_num_f32", per_lane<fmin3>},
                         {"v_med3_f32", per_lane<fmed3>},
                         {"v_med3_num_f32", per_lane<fmed3>},
                         {"v_exp_f32", per_lane<fexp>},
                         {"v_log_f32", per_lane<flog>},
                         {"v_rcp_f32", per_lane<frcp>},
                         {"v_rcp_iflag_f32", per_lane<frcp>},
                         {"v_rsq_f32", per_lane<frsq>},
                         {"v_sqrt_f32", per_lane<fsqrt>},
                         {"v_floor_f32", per_lane<ffloor>},
                         {"v_ceil_f32", per_lane<fceil>},
                         {"v_trunc_f32", per_lane<ftrunc>},
                         {"v_rndne_f32", per_lane<frndne>},
                         {"v_fract_f32", per_lane<fract>},
                         {"v_ldexp_f32", per_lane<fldexp>},
                         {"v_frexp_mant_f32", per_lane<frexp_mant>},
                         {"v_frexp_exp_i32_f32", per_lane<frexp_exp>},
                         {"v_cvt_u32_f32", per_lane<to_u>},
                         {"v_cvt_i32_f32", per_lane<to_i>},
                         {"v_cvt_f16_f32", per_lane<to_half>},
                         {"v_div_fixup_f32", per_lane<div_fixup>},
                         {"v_div_scale_f32", scale},
                         {"v_div_fmas_f32", div_fmas}};
const Plain kHalves[] = {{"v_cvt_f32_f16", per_lane<from_half>}, {"v_add_f16", per_lane<hadd>},
                         {"v_sub_f16", per_lane<hsub>},          {"v_mul_f16", per_lane<hmul>},
                         {"v_max_f16", per_lane<hmax>},          {"v_max_num_f16", per_lane<hmax>},
                         {"v_min_f16", per_lane<hmin>},          {"v_min_num_f16", per_lane<hmin>},
                         {"v_rcp_f16", per_lane<hrcp>},          {"v_pack_b32_f16", per_lane<pack_halves>}};

} // namespace

void add_vector(Table &t) {
  for (const Plain &p : kIntegers) t[p.name] = {p.run, kModSdwa | kModDpp, 0};
  for (const Plain &p : kShorts) t[p.name] = {p.run, kModSdwa, 0};
  for (const Plain &p : kFloats) t[p.name] = {p.run, kModSdwa | kModDpp | kModSigns, 0};
  for (const Plain &p : kHalves) t[p.name] = {p.run, kModSdwa | kModSigns, 0};
  t["v_pack_b32_f16"].modifiers |= kModSelect;
  t["v_fma_mix_f32"] = {fma_mix, kModSelect | kModSigns, 0};
  t["v_s_exp_f32"] = {of_scalar<fexp>, kModSigns, 0};
  t["v_s_log_f32"] = {of_scalar<flog>, kModSigns, 0};
  t["v_s_rcp_f32"] = {of_scalar<frcp>, kModSigns, 0};
  t["v_s_rsq_f32"] = {of_scalar<frsq>, kModSigns, 0};
  t["v_s_sqrt_f32"] = {of_scalar<fsqrt>, kModSigns, 0};
}

} // namespace amdgpu
} // namespace tessera
