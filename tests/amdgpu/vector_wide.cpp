// SPDX-License-Identifier: Apache-2.0
//
// Vector instructions on 64 bits, on pairs of floats, with carries, and those that choose by a
// mask.
#include <math.h>

#include "per_lane.h"

namespace tessera {
namespace amdgpu {

namespace {

uint64_t mov(uint64_t x) { return x; }
uint64_t lshlrev(uint32_t n, uint64_t x) { return x << (n & 63); }
uint64_t lshrrev(uint32_t n, uint64_t x) { return x >> (n & 63); }
int64_t ashrrev(uint32_t n, int64_t x) { return x >> (n & 63); }
uint64_t lshl_add(uint64_t x, uint32_t n, uint64_t y) { return (x << (n & 7)) + y; }

double fadd(double a, double b) { return a + b; }
double fmul(double a, double b) { return a * b; }
double fused(double a, double b, double c) { return fma(a, b, c); }
double fmax2(double a, double b) { return fmax(a, b); }
double fmin2(double a, double b) { return fmin(a, b); }
double fldexp(double x, int32_t n) { return ldexp(x, n < -3000 ? -3000 : n > 3000 ? 3000 : n); }
double frndne(double x) { return rint(x); }
double ffloor(double x) { return floor(x); }
double widen(float x) { return static_cast<double>(x); }
float narrow(double x) { return static_cast<float>(x); }
double from_u(uint32_t x) { return x; }
double from_i(int32_t x) { return x; }
int32_t to_i(double x) {
  if (x != x) return 0;
  if (x >= 0x1p31) return 0x7fffffff;
  return x < -0x1p31 ? -0x7fffffff - 1 : static_cast<int32_t>(x);
}
uint32_t to_u(double x) {
  if (!(x > 0)) return 0;
  return x >= 0x1p32 ? 0xffffffffu : static_cast<uint32_t>(x);
}

// d, carry = a * b + c: the carry is that of the sum.
void mad_u64(Wave &w, const Inst &i) {
  Values<uint32_t> a, b;
  Values<uint64_t> c, out;
  a.read(w, i, 2);
  b.read(w, i, 3);
  c.read(w, i, 4);
  uint64_t carry = 0;
  for (int l = 0; l < w.lanes; ++l) {
    const uint64_t product = static_cast<uint64_t>(a[l]) * b[l], sum = product + c[l];
    out.set(l, sum);
    carry |= static_cast<uint64_t>(sum < product) << l;
  }
  out.write(w, i, 0);
  w.set_mask(i.op[1], carry & w.exec());
}

void mad_i64(Wave &w, const Inst &i) {
  Values<int32_t> a, b;
  Values<uint64_t> c, out;
  a.read(w, i, 2);
  b.read(w, i, 3);
  c.read(w, i, 4);
  uint64_t carry = 0;
  for (int l = 0; l < w.lanes; ++l) {
    const int64_t product = static_cast<int64_t>(a[l]) * b[l];
    int64_t sum;
    const bool over = __builtin_add_overflow(product, static_cast<int64_t>(c[l]), &sum);
    out.set(l, static_cast<uint64_t>(sum));
    carry |= static_cast<uint64_t>(over) << l;
  }
  out.write(w, i, 0);
  w.set_mask(i.op[1], carry & w.exec());
}

// d, carry out = a +- b +- carry in; what param says: 0 add, 1 subtract, 2 subtract a from b; 4:
// carry in.
void carry_sum(Wave &w, const Inst &i) {
  Values<uint32_t> a, b, out;
  a.read(w, i, 2);
  b.read(w, i, 3);
  const uint64_t in = i.param & 4 ? w.mask(i.op[4]) : 0;
  uint64_t carry = 0;
  for (int l = 0; l < w.lanes; ++l) {
    const uint64_t c = in >> l & 1, x = a[l], y = b[l];
    const uint64_t sum = (i.param & 3) == 0 ? x + y + c : (i.param & 3) == 1 ? x - y - c : y - x - c;
    out.set(l, static_cast<uint32_t>(sum));
    carry |= (sum >> 32 & 1) << l;
  }
  out.write(w, i, 0);
  w.set_mask(i.op[1], carry & w.exec());
}

// The second source where the lane's bit is set. Dual instructions do not name VCC.
void choose(Wave &w, const Inst &i) {
  Values<uint32_t> a, b, out;
  a.read(w, i, 1);
  b.read(w, i, 2);
  Operand vcc;
  vcc.kind = Kind::kScalar;
  vcc.reg = kVcc;
  const uint64_t mask = w.mask(i.operands > 3 ? i.op[3] : vcc);
  for (int l = 0; l < w.lanes; ++l) out.set(l, mask >> l & 1 ? b[l] : a[l]);
  out.write(w, i, 0);
}

// One float of a packed source: op_sel says which half the low result takes, op_sel_hi which the
// high one.
struct PackedSource {
  uint64_t wide[64];
  bool constant, swap_low, swap_high, negate_low, negate_high;
  void read(Wave &w, const Inst &i, int n) {
    read_wides(w, i, n, wide);
    constant = i.op[n].kind == Kind::kConstant;
    if (constant) // the same in both halves
      for (uint64_t &x : wide) x = i.op[n].word | static_cast<uint64_t>(i.op[n].word) << 32;
    swap_low = i.select >> (n - 1) & 1;
    swap_high = !(i.select_high >> (n - 1) & 1);
    negate_low = i.negate_low >> (n - 1) & 1;
    negate_high = i.negate_high >> (n - 1) & 1;
  }
  float low(int l) const {
    const float x = as_float(static_cast<uint32_t>(wide[l] >> (swap_low ? 32 : 0)));
    return negate_low ? -x : x;
  }
  float high(int l) const {
    const float x = as_float(static_cast<uint32_t>(wide[l] >> (swap_high ? 0 : 32)));
    return negate_high ? -x : x;
  }
};

// param: 0 add, 1 multiply, 2 fused.
void packed_floats(Wave &w, const Inst &i) {
  PackedSource a, b, c;
  a.read(w, i, 1);
  b.read(w, i, 2);
  if (i.param == 2) c.read(w, i, 3);
  uint64_t out[64];
  for (int l = 0; l < w.lanes; ++l) {
    float low, high;
    if (i.param == 2) {
      low = fmaf(a.low(l), b.low(l), c.low(l));
      high = fmaf(a.high(l), b.high(l), c.high(l));
    } else {
      low = i.param ? a.low(l) * b.low(l) : a.low(l) + b.low(l);
      high = i.param ? a.high(l) * b.high(l) : a.high(l) + b.high(l);
    }
    out[l] = as_word(low) | static_cast<uint64_t>(as_word(high)) << 32;
  }
  write_wides(w, i, 0, out);
}

// Low result from source 0, high result from source 1, each by its bit of op_sel.
void packed_move(Wave &w, const Inst &i) {
  uint64_t a[64], b[64], out[64];
  read_wides(w, i, 1, a);
  read_wides(w, i, 2, b);
  for (int l = 0; l < w.lanes; ++l)
    out[l] = (a[l] >> (i.select & 1 ? 32 : 0) & 0xffffffffu) | b[l] >> (i.select & 2 ? 32 : 0) << 32;
  write_wides(w, i, 0, out);
}

// Pairs of float16. param: 0 add, 1 multiply, 2 fused, 3 max, 4 min.
void packed_halves(Wave &w, const Inst &i) {
  const int sources = i.param == 2 ? 3 : 2;
  uint32_t buffer[3][64];
  const uint32_t *from[3] = {};
  for (int n = 0; n < sources; ++n) from[n] = read_words(w, i, n + 1, buffer[n]);
  auto half = [&](int n, int l, bool top) {
    const bool constant = i.op[n + 1].kind == Kind::kConstant && !i.op[n + 1].literal;
    const bool high = (top ? i.select_high : i.select) >> n & 1;
    const uint32_t word = from[n][l];
    const float x =
        float_of_half(constant ? i.op[n + 1].half : static_cast<uint16_t>(word >> (high ? 16 : 0)));
    return (top ? i.negate_high : i.negate_low) >> n & 1 ? -x : x;
  };
  uint32_t out[64];
  for (int l = 0; l < w.lanes; ++l) {
    uint32_t word = 0;
    for (int top = 0; top < 2; ++top) {
      const float a = half(0, l, top), b = half(1, l, top);
      float x = a + b;
      if (i.param == 1) x = a * b;
      // Exact in double, rounded once.
      if (i.param == 2) {
        word |= static_cast<uint32_t>(tsri_double_to_f16(static_cast<double>(a) * b + half(2, l, top)))
                << 16 * top;
        continue;
      }
      if (i.param == 3) x = fmaxf(a, b);
      if (i.param == 4) x = fminf(a, b);
      word |= static_cast<uint32_t>(half_of(x)) << 16 * top;
    }
    out[l] = word;
  }
  write_words(w, i, 0, out);
}

} // namespace

void add_vector_wide(Table &t) {
  t["v_mov_b64"] = {per_lane<mov>, 0, 0};
  t["v_lshlrev_b64"] = {per_lane<lshlrev>, 0, 0};
  t["v_lshrrev_b64"] = {per_lane<lshrrev>, 0, 0};
  t["v_ashrrev_i64"] = {per_lane<ashrrev>, 0, 0};
  t["v_lshl_add_u64"] = {per_lane<lshl_add>, 0, 0};
  t["v_add_f64"] = {per_lane<fadd>, kModSigns, 0};
  t["v_mul_f64"] = {per_lane<fmul>, kModSigns, 0};
  t["v_fma_f64"] = {per_lane<fused>, kModSigns, 0};
  t["v_fmac_f64"] = {PerLane<fused>::run_onto, kModSigns, 0};
  for (const char *name : {"v_max_f64", "v_max_num_f64"}) t[name] = {per_lane<fmax2>, kModSigns, 0};
  for (const char *name : {"v_min_f64", "v_min_num_f64"}) t[name] = {per_lane<fmin2>, kModSigns, 0};
  t["v_ldexp_f64"] = {per_lane<fldexp>, kModSigns, 0};
  t["v_rndne_f64"] = {per_lane<frndne>, kModSigns, 0};
  t["v_floor_f64"] = {per_lane<ffloor>, kModSigns, 0};
  t["v_cvt_f64_f32"] = {per_lane<widen>, kModSigns, 0};
  t["v_cvt_f32_f64"] = {per_lane<narrow>, kModSigns, 0};
  t["v_cvt_f64_u32"] = {per_lane<from_u>, 0, 0};
  t["v_cvt_f64_i32"] = {per_lane<from_i>, 0, 0};
  t["v_cvt_i32_f64"] = {per_lane<to_i>, kModSigns, 0};
  t["v_cvt_u32_f64"] = {per_lane<to_u>, kModSigns, 0};
  for (const char *name : {"v_mad_u64_u32", "v_mad_co_u64_u32"}) t[name] = {mad_u64, 0, 0};
  for (const char *name : {"v_mad_i64_i32", "v_mad_co_i64_i32"}) t[name] = {mad_i64, 0, 0};
  t["v_add_co_u32"] = {carry_sum, 0, 0};
  t["v_sub_co_u32"] = {carry_sum, 0, 1};
  t["v_subrev_co_u32"] = {carry_sum, 0, 2};
  for (const char *name : {"v_addc_co_u32", "v_add_co_ci_u32"}) t[name] = {carry_sum, 0, 4};
  for (const char *name : {"v_subb_co_u32", "v_sub_co_ci_u32"}) t[name] = {carry_sum, 0, 5};
  for (const char *name : {"v_subbrev_co_u32", "v_subrev_co_ci_u32"}) t[name] = {carry_sum, 0, 6};
  t["v_cndmask_b32"] = {choose, kModSigns | kModDpp, 0};
  t["v_pk_add_f32"] = {packed_floats, kModSelect, 0};
  t["v_pk_mul_f32"] = {packed_floats, kModSelect, 1};
  t["v_pk_fma_f32"] = {packed_floats, kModSelect, 2};
  t["v_pk_mov_b32"] = {packed_move, kModSelect, 0};
  t["v_pk_add_f16"] = {packed_halves, kModSelect, 0};
  t["v_pk_mul_f16"] = {packed_halves, kModSelect, 1};
  t["v_pk_fma_f16"] = {packed_halves, kModSelect, 2};
  t["v_pk_max_f16"] = {packed_halves, kModSelect, 3};
  t["v_pk_min_f16"] = {packed_halves, kModSelect, 4};
}

} // namespace amdgpu
} // namespace tessera
