// SPDX-License-Identifier: Apache-2.0
//
// Scalar instructions: functions of one value each, with what they make of SCC, and scalar loads.
#include <math.h>
#include <stdio.h>

#include <tuple>
#include <utility>

#include "wave.h"

namespace tessera {
namespace amdgpu {

namespace {

// Operand n of an instruction as the type that its function takes.
void read(const Wave &w, const Operand &o, uint32_t *x) { *x = scalar_word(w, o); }
void read(const Wave &w, const Operand &o, int32_t *x) { *x = static_cast<int32_t>(scalar_word(w, o)); }
void read(const Wave &w, const Operand &o, float *x) { *x = as_float(scalar_word(w, o)); }
void read(const Wave &w, const Operand &o, uint64_t *x) { *x = scalar_wide(w, o); }
void read(const Wave &w, const Operand &o, int64_t *x) {
  const uint64_t bits = scalar_wide(w, o);
  *x = o.literal && bits <= 0xffffffffu ? static_cast<int32_t>(bits) : static_cast<int64_t>(bits);
}
void write(Wave &w, const Operand &o, uint32_t x) { set_scalar_word(w, o, x); }
void write(Wave &w, const Operand &o, int32_t x) { set_scalar_word(w, o, static_cast<uint32_t>(x)); }
void write(Wave &w, const Operand &o, float x) { set_scalar_word(w, o, as_word(x)); }
void write(Wave &w, const Operand &o, uint64_t x) { set_scalar_wide(w, o, x); }
void write(Wave &w, const Operand &o, int64_t x) { set_scalar_wide(w, o, static_cast<uint64_t>(x)); }

template <auto f>
struct Scalar;
template <class R, class... A, R (*f)(A...)>
struct Scalar<f> {
  template <size_t... n>
  static R call(Wave &w, const Inst &i, int first, std::index_sequence<n...>) {
    std::tuple<A...> x;
    (read(w, i.op[static_cast<int>(n) + first], &std::get<n>(x)), ...);
    return f(std::get<n>(x)...);
  }
  static void run(Wave &w, const Inst &i) {
    write(w, i.op[0], call(w, i, 1, std::index_sequence_for<A...>()));
  }
  // SCC: the result is not 0.
  static void run_scc(Wave &w, const Inst &i) {
    const R x = call(w, i, 1, std::index_sequence_for<A...>());
    write(w, i.op[0], x);
    w.scc = x != 0;
  }
  static void compare(Wave &w, const Inst &i) {
    w.scc = call(w, i, 0, std::index_sequence_for<A...>()) ? 1 : 0;
  }
  // Operand 0 gets EXEC, EXEC f(operand 1, EXEC).
  static void save_exec(Wave &w, const Inst &i) {
    const uint64_t before = w.exec(), source = w.mask(i.op[1]);
    w.set_mask(i.op[0], before);
    const uint64_t after = f(source, before) & w.all();
    w.s[kExec] = static_cast<uint32_t>(after);
    w.s[kExec + 1] = static_cast<uint32_t>(after >> 32);
    w.scc = after != 0;
  }
};

template <class T>
T mov(T x) {
  return x;
}
template <class T>
T lnot(T x) {
  return ~x;
}
template <class T>
T land(T a, T b) {
  return a & b;
}
template <class T>
T lor(T a, T b) {
  return a | b;
}
template <class T>
T lxor(T a, T b) {
  return a ^ b;
}
template <class T>
T and_not(T a, T b) {
  return a & ~b;
}
template <class T>
T or_not(T a, T b) {
  return a | ~b;
}
template <class T>
T nand(T a, T b) {
  return ~(a & b);
}
template <class T>
T nor(T a, T b) {
  return ~(a | b);
}
template <class T>
T xnor(T a, T b) {
  return ~(a ^ b);
}
template <class T>
T shift_left(T x, uint32_t n) {
  return x << (n & (sizeof(T) * 8 - 1));
}
template <class T>
T shift_right(T x, uint32_t n) {
  return x >> (n & (sizeof(T) * 8 - 1));
}
template <class T>
T product(T a, T b) {
  return a * b;
}
template <class T>
T sum(T a, T b) {
  return a + b;
}
template <class T>
T difference(T a, T b) {
  return a - b;
}
template <class T>
bool eq(T a, T b) {
  return a == b;
}
template <class T>
bool ne(T a, T b) {
  return a != b;
}
template <class T>
bool lt(T a, T b) {
  return a < b;
}
template <class T>
bool gt(T a, T b) {
  return a > b;
}
template <class T>
bool le(T a, T b) {
  return a <= b;
}
template <class T>
bool ge(T a, T b) {
  return a >= b;
}
bool flg(float a, float b) { return a < b || a > b; }
bool fo(float a, float b) { return a == a && b == b; }
bool fu(float a, float b) { return !fo(a, b); }
bool fnge(float a, float b) { return !(a >= b); }
bool fnlg(float a, float b) { return !flg(a, b); }
bool fngt(float a, float b) { return !(a > b); }
bool fnle(float a, float b) { return !(a <= b); }
bool fnlt(float a, float b) { return !(a < b); }
bool bit0(uint32_t x, uint32_t n) { return !(x >> (n & 31) & 1); }
bool bit1(uint32_t x, uint32_t n) { return x >> (n & 31) & 1; }
bool eq_short(int32_t a, int32_t k) { return a == static_cast<int16_t>(k); }
bool ne_short(int32_t a, int32_t k) { return a != static_cast<int16_t>(k); }
bool gt_short(int32_t a, int32_t k) { return a > static_cast<int16_t>(k); }
bool ge_short(int32_t a, int32_t k) { return a >= static_cast<int16_t>(k); }
bool lt_short(int32_t a, int32_t k) { return a < static_cast<int16_t>(k); }
bool le_short(int32_t a, int32_t k) { return a <= static_cast<int16_t>(k); }

uint32_t mul_hi(uint32_t a, uint32_t b) { return static_cast<uint32_t>(static_cast<uint64_t>(a) * b >> 32); }
int32_t mul_hi_signed(int32_t a, int32_t b) {
  return static_cast<int32_t>(static_cast<int64_t>(a) * b >> 32);
}
template <class T>
T field(T x, uint32_t what, T mask) { // what: bit 0 up, bits 16 up how many
  const uint32_t wide = sizeof(T) * 8, n = what >> 16 & 127;
  const T shifted = x >> (what & (wide - 1));
  return n == 0 ? 0 : n >= wide ? shifted : shifted & ~(mask << n);
}
uint32_t bfe_u32(uint32_t x, uint32_t what) { return field<uint32_t>(x, what, ~0u); }
uint64_t bfe_u64(uint64_t x, uint32_t what) { return field<uint64_t>(x, what, ~uint64_t{0}); }
int32_t bfe_i32(uint32_t x, uint32_t what) {
  const uint32_t n = what >> 16 & 127, y = bfe_u32(x, what);
  if (n == 0 || n >= 32) return n ? static_cast<int32_t>(x) >> (what & 31) : 0;
  return static_cast<int32_t>(y << (32 - n)) >> (32 - n);
}
int64_t bfe_i64(uint64_t x, uint32_t what) {
  const uint32_t n = what >> 16 & 127;
  const uint64_t y = bfe_u64(x, what);
  if (n == 0 || n >= 64) return n ? static_cast<int64_t>(x) >> (what & 63) : 0;
  return static_cast<int64_t>(y << (64 - n)) >> (64 - n);
}
uint32_t bfm(uint32_t n, uint32_t at) { return ((1u << (n & 31)) - 1) << (at & 31); }
uint32_t reverse(uint32_t x) {
  uint32_t y = 0;
  for (int b = 0; b < 32; ++b) y |= (x >> b & 1u) << (31 - b);
  return y;
}
uint32_t count32(uint32_t x) { return static_cast<uint32_t>(__builtin_popcount(x)); }
uint32_t count64(uint64_t x) { return static_cast<uint32_t>(__builtin_popcountll(x)); }
uint32_t first_low32(uint32_t x) { return x ? static_cast<uint32_t>(__builtin_ctz(x)) : 0xffffffffu; }
uint32_t first_low64(uint64_t x) { return x ? static_cast<uint32_t>(__builtin_ctzll(x)) : 0xffffffffu; }
uint32_t first_high32(uint32_t x) { return x ? static_cast<uint32_t>(__builtin_clz(x)) : 0xffffffffu; }
uint32_t first_high64(uint64_t x) { return x ? static_cast<uint32_t>(__builtin_clzll(x)) : 0xffffffffu; }
// Of the first bit that is not as the sign.
uint32_t first_unlike32(uint32_t x) {
  const uint32_t unlike = x >> 31 ? ~x : x;
  return first_high32(unlike);
}
int32_t sign_byte(uint32_t x) { return static_cast<int8_t>(x); }
int32_t sign_short(uint32_t x) { return static_cast<int16_t>(x); }
uint32_t absolute(int32_t x) { return x < 0 ? 0u - static_cast<uint32_t>(x) : static_cast<uint32_t>(x); }
uint32_t pack_low(uint32_t a, uint32_t b) { return (a & 0xffff) | b << 16; }
uint32_t pack_low_high(uint32_t a, uint32_t b) { return (a & 0xffff) | (b & 0xffff0000u); }
uint32_t pack_high(uint32_t a, uint32_t b) { return a >> 16 | (b & 0xffff0000u); }
float fused(float a, float b, float c) { return fmaf(a, b, c); }
float ftrunc(float x) { return truncf(x); }
float ffloor(float x) { return floorf(x); }
float fceil(float x) { return ceilf(x); }
float frndne(float x) { return rintf(x); }
float from_u(uint32_t x) { return static_cast<float>(x); }
float from_i(int32_t x) { return static_cast<float>(x); }
uint32_t to_u(float x) { return !(x > 0) ? 0 : x >= 0x1p32f ? 0xffffffffu : static_cast<uint32_t>(x); }
int32_t to_i(float x) {
  if (x != x) return 0;
  if (x >= 0x1p31f) return 0x7fffffff;
  return x < -0x1p31f ? -0x7fffffff - 1 : static_cast<int32_t>(x);
}

// Sums with carry or overflow in SCC. param: 1 subtract, 2 SCC comes in, 4 signed.
void sum_scc(Wave &w, const Inst &i) {
  const uint32_t a = scalar_word(w, i.op[1]), b = scalar_word(w, i.op[2]), in = i.param & 2 ? w.scc : 0;
  const bool minus = i.param & 1;
  const uint64_t x = minus ? uint64_t{a} - b - in : uint64_t{a} + b + in;
  const uint32_t word = static_cast<uint32_t>(x);
  const uint32_t same_sign = minus ? (a ^ b) & (a ^ word) : ~(a ^ b) & (a ^ word);
  set_scalar_word(w, i.op[0], word);
  w.scc = i.param & 4 ? same_sign >> 31 : x >> 32 & 1;
}

// param: shift; SCC: what is carried out.
void shift_add(Wave &w, const Inst &i) {
  const uint64_t x = (uint64_t{scalar_word(w, i.op[1])} << i.param) + scalar_word(w, i.op[2]);
  set_scalar_word(w, i.op[0], static_cast<uint32_t>(x));
  w.scc = x > 0xffffffffu;
}

// SCC: the first source was taken. param: 1 the larger, 2 signed.
void extreme(Wave &w, const Inst &i) {
  const uint32_t a = scalar_word(w, i.op[1]), b = scalar_word(w, i.op[2]);
  const int32_t sa = static_cast<int32_t>(a), sb = static_cast<int32_t>(b);
  const bool first = i.param & 2 ? (i.param & 1 ? sa >= sb : sa < sb) : (i.param & 1 ? a >= b : a < b);
  set_scalar_word(w, i.op[0], first ? a : b);
  w.scc = first;
}

void select32(Wave &w, const Inst &i) { set_scalar_word(w, i.op[0], scalar_word(w, i.op[w.scc ? 1 : 2])); }
void select64(Wave &w, const Inst &i) { set_scalar_wide(w, i.op[0], scalar_wide(w, i.op[w.scc ? 1 : 2])); }
void move_if32(Wave &w, const Inst &i) {
  if (w.scc) set_scalar_word(w, i.op[0], scalar_word(w, i.op[1]));
}
void move_if64(Wave &w, const Inst &i) {
  if (w.scc) set_scalar_wide(w, i.op[0], scalar_wide(w, i.op[1]));
}
// 16 bits of the code, sign-extended.
void movk(Wave &w, const Inst &i) {
  set_scalar_word(w, i.op[0], static_cast<uint32_t>(static_cast<int16_t>(i.op[1].word)));
}
void addk(Wave &w, const Inst &i) {
  const int32_t a = static_cast<int32_t>(scalar_word(w, i.op[0]));
  int32_t x;
  w.scc = __builtin_add_overflow(a, static_cast<int32_t>(static_cast<int16_t>(i.op[1].word)), &x);
  set_scalar_word(w, i.op[0], static_cast<uint32_t>(x));
}
void mulk(Wave &w, const Inst &i) {
  set_scalar_word(w, i.op[0],
                  scalar_word(w, i.op[0]) * static_cast<uint32_t>(static_cast<int16_t>(i.op[1].word)));
}
void set_bit(Wave &w, const Inst &i) { // param: to what
  const uint32_t bit = 1u << (scalar_word(w, i.op[1]) & 31), x = scalar_word(w, i.op[0]);
  set_scalar_word(w, i.op[0], i.param ? x | bit : x & ~bit);
}
void getpc(Wave &w, const Inst &i) { set_scalar_wide(w, i.op[0], w.code + i.address + 4); }
void fmac(Wave &w, const Inst &i) {
  const float x = fmaf(as_float(scalar_word(w, i.op[1])), as_float(scalar_word(w, i.op[2])),
                       as_float(scalar_word(w, i.op[0])));
  set_scalar_word(w, i.op[0], as_word(x));
}

// param: bytes; negative: of a signed one.
void load(Wave &w, const Inst &i) {
  const Operand &o = i.op[2];
  const int64_t by = o.kind == Kind::kConstant ? static_cast<int32_t>(o.word) : int64_t{scalar_word(w, o)};
  const int bytes = i.param < 0 ? -i.param : i.param;
  uint64_t address = scalar_wide(w, i.op[1]) + static_cast<uint64_t>(by + i.offset);
  if (bytes >= 4) address &= ~uint64_t{3};
  const unsigned char *from = w.memory->at(address, static_cast<uint32_t>(bytes), false);
  if (!from) {
    char text[96];
    snprintf(text, sizeof text, "reads %d bytes at 0x%llx, which is no memory of the device", bytes,
             static_cast<unsigned long long>(address));
    return w.fail(text);
  }
  uint32_t word = 0;
  if (bytes < 4) {
    memcpy(&word, from, static_cast<size_t>(bytes));
    if (i.param == -1) word = static_cast<uint32_t>(static_cast<int8_t>(word));
    if (i.param == -2) word = static_cast<uint32_t>(static_cast<int16_t>(word));
    set_scalar_word(w, i.op[0], word);
  } else if (i.op[0].reg != kNull) {
    memcpy(w.s + i.op[0].reg, from, static_cast<size_t>(bytes));
  }
  w.starts(w.family == Family::kGfx12 ? kScalarLoads : kLocal, false, i.op[0].reg,
           i.op[0].reg == kNull ? 0 : (bytes + 3) / 4, false);
}

// Names that end in b32 and b64.
void both(Table &t, const std::string &name, Handler small, Handler wide) {
  t[name + "_b32"] = {small, 0, 0};
  t[name + "_b64"] = {wide, 0, 0};
}

void add_logic(Table &t) {
  using Small = uint32_t;
  using Wide = uint64_t;
  both(t, "s_mov", Scalar<mov<Small>>::run, Scalar<mov<Wide>>::run);
  both(t, "s_not", Scalar<lnot<Small>>::run_scc, Scalar<lnot<Wide>>::run_scc);
  both(t, "s_and", Scalar<land<Small>>::run_scc, Scalar<land<Wide>>::run_scc);
  both(t, "s_or", Scalar<lor<Small>>::run_scc, Scalar<lor<Wide>>::run_scc);
  both(t, "s_xor", Scalar<lxor<Small>>::run_scc, Scalar<lxor<Wide>>::run_scc);
  both(t, "s_nand", Scalar<nand<Small>>::run_scc, Scalar<nand<Wide>>::run_scc);
  both(t, "s_nor", Scalar<nor<Small>>::run_scc, Scalar<nor<Wide>>::run_scc);
  both(t, "s_xnor", Scalar<xnor<Small>>::run_scc, Scalar<xnor<Wide>>::run_scc);
  for (const char *name : {"s_andn2", "s_and_not1"})
    both(t, name, Scalar<and_not<Small>>::run_scc, Scalar<and_not<Wide>>::run_scc);
  for (const char *name : {"s_orn2", "s_or_not1"})
    both(t, name, Scalar<or_not<Small>>::run_scc, Scalar<or_not<Wide>>::run_scc);
  both(t, "s_lshl", Scalar<shift_left<Small>>::run_scc, Scalar<shift_left<Wide>>::run_scc);
  both(t, "s_lshr", Scalar<shift_right<Small>>::run_scc, Scalar<shift_right<Wide>>::run_scc);
  both(t, "s_cselect", select32, select64);
  both(t, "s_cmov", move_if32, move_if64);
  t["s_ashr_i32"] = {Scalar<shift_right<int32_t>>::run_scc, 0, 0};
  t["s_ashr_i64"] = {Scalar<shift_right<int64_t>>::run_scc, 0, 0};
  const struct {
    const char *name;
    Handler run;
  } saves[] = {
      {"s_and", Scalar<land<Wide>>::save_exec},         {"s_or", Scalar<lor<Wide>>::save_exec},
      {"s_xor", Scalar<lxor<Wide>>::save_exec},         {"s_andn2", Scalar<and_not<Wide>>::save_exec},
      {"s_and_not1", Scalar<and_not<Wide>>::save_exec}, {"s_orn2", Scalar<or_not<Wide>>::save_exec},
      {"s_or_not1", Scalar<or_not<Wide>>::save_exec}};
  for (const auto &s : saves) both(t, std::string(s.name) + "_saveexec", s.run, s.run);
}

void add_arithmetic(Table &t) {
  const struct {
    const char *name;
    int param;
  } sums[] = {{"s_add_u32", 0},  {"s_add_co_u32", 0},    {"s_sub_u32", 1},  {"s_sub_co_u32", 1},
              {"s_addc_u32", 2}, {"s_add_co_ci_u32", 2}, {"s_subb_u32", 3}, {"s_sub_co_ci_u32", 3},
              {"s_add_i32", 4},  {"s_add_co_i32", 4},    {"s_sub_i32", 5},  {"s_sub_co_i32", 5}};
  for (const auto &s : sums) t[s.name] = {sum_scc, 0, s.param};
  for (int n = 1; n <= 4; ++n) t["s_lshl" + std::to_string(n) + "_add_u32"] = {shift_add, 0, n};
  t["s_min_u32"] = {extreme, 0, 0};
  t["s_max_u32"] = {extreme, 0, 1};
  t["s_min_i32"] = {extreme, 0, 2};
  t["s_max_i32"] = {extreme, 0, 3};
  t["s_mul_i32"] = {Scalar<product<uint32_t>>::run, 0, 0};
  t["s_mul_hi_u32"] = {Scalar<mul_hi>::run, 0, 0};
  t["s_mul_hi_i32"] = {Scalar<mul_hi_signed>::run, 0, 0};
  t["s_mul_u64"] = {Scalar<product<uint64_t>>::run, 0, 0};
  t["s_add_nc_u64"] = {Scalar<sum<uint64_t>>::run, 0, 0};
  t["s_sub_nc_u64"] = {Scalar<difference<uint64_t>>::run, 0, 0};
  t["s_bfe_u32"] = {Scalar<bfe_u32>::run_scc, 0, 0};
  t["s_bfe_i32"] = {Scalar<bfe_i32>::run_scc, 0, 0};
  t["s_bfe_i64"] = {Scalar<bfe_i64>::run_scc, 0, 0};
  t["s_bfe_u64"] = {Scalar<bfe_u64>::run_scc, 0, 0};
  t["s_bfm_b32"] = {Scalar<bfm>::run, 0, 0};
  t["s_brev_b32"] = {Scalar<reverse>::run, 0, 0};
  t["s_bcnt1_i32_b32"] = {Scalar<count32>::run_scc, 0, 0};
  t["s_bcnt1_i32_b64"] = {Scalar<count64>::run_scc, 0, 0};
  for (const char *name : {"s_ff1_i32", "s_ctz_i32"})
    both(t, name, Scalar<first_low32>::run, Scalar<first_low64>::run);
  t["s_flbit_i32_b32"] = t["s_clz_i32_u32"] = {Scalar<first_high32>::run, 0, 0};
  t["s_flbit_i32_b64"] = t["s_clz_i32_u64"] = {Scalar<first_high64>::run, 0, 0};
  t["s_flbit_i32"] = t["s_cls_i32"] = {Scalar<first_unlike32>::run, 0, 0};
  t["s_sext_i32_i8"] = {Scalar<sign_byte>::run, 0, 0};
  t["s_sext_i32_i16"] = {Scalar<sign_short>::run, 0, 0};
  t["s_abs_i32"] = {Scalar<absolute>::run_scc, 0, 0};
  t["s_pack_ll_b32_b16"] = {Scalar<pack_low>::run, 0, 0};
  t["s_pack_lh_b32_b16"] = {Scalar<pack_low_high>::run, 0, 0};
  t["s_pack_hh_b32_b16"] = {Scalar<pack_high>::run, 0, 0};
  t["s_add_f32"] = {Scalar<sum<float>>::run, 0, 0};
  t["s_sub_f32"] = {Scalar<difference<float>>::run, 0, 0};
  t["s_mul_f32"] = {Scalar<product<float>>::run, 0, 0};
  t["s_fmac_f32"] = {fmac, 0, 0};
  for (const char *name : {"s_fmamk_f32", "s_fmaak_f32"}) t[name] = {Scalar<fused>::run, 0, 0};
  t["s_trunc_f32"] = {Scalar<ftrunc>::run, 0, 0};
  t["s_floor_f32"] = {Scalar<ffloor>::run, 0, 0};
  t["s_ceil_f32"] = {Scalar<fceil>::run, 0, 0};
  t["s_rndne_f32"] = {Scalar<frndne>::run, 0, 0};
  t["s_cvt_f32_u32"] = {Scalar<from_u>::run, 0, 0};
  t["s_cvt_f32_i32"] = {Scalar<from_i>::run, 0, 0};
  t["s_cvt_u32_f32"] = {Scalar<to_u>::run, 0, 0};
  t["s_cvt_i32_f32"] = {Scalar<to_i>::run, 0, 0};
  t["s_movk_i32"] = {movk, 0, 0};
  for (const char *name : {"s_addk_i32", "s_addk_co_i32"}) t[name] = {addk, 0, 0};
  t["s_mulk_i32"] = {mulk, 0, 0};
  t["s_bitset0_b32"] = {set_bit, 0, 0};
  t["s_bitset1_b32"] = {set_bit, 0, 1};
  t["s_getpc_b64"] = {getpc, 0, 0};
}

template <class T>
void add_predicates(Table &t, const std::string &type) {
  t["s_cmp_eq_" + type] = {Scalar<eq<T>>::compare, 0, 0};
  t["s_cmp_lg_" + type] = {Scalar<ne<T>>::compare, 0, 0};
  t["s_cmp_gt_" + type] = {Scalar<gt<T>>::compare, 0, 0};
  t["s_cmp_ge_" + type] = {Scalar<ge<T>>::compare, 0, 0};
  t["s_cmp_lt_" + type] = {Scalar<lt<T>>::compare, 0, 0};
  t["s_cmp_le_" + type] = {Scalar<le<T>>::compare, 0, 0};
}

void add_compares(Table &t) {
  add_predicates<uint32_t>(t, "u32");
  add_predicates<int32_t>(t, "i32");
  add_predicates<float>(t, "f32");
  t["s_cmp_lg_f32"] = {Scalar<flg>::compare, 0, 0};
  t["s_cmp_neq_f32"] = {Scalar<ne<float>>::compare, 0, 0};
  t["s_cmp_o_f32"] = {Scalar<fo>::compare, 0, 0};
  t["s_cmp_u_f32"] = {Scalar<fu>::compare, 0, 0};
  t["s_cmp_nge_f32"] = {Scalar<fnge>::compare, 0, 0};
  t["s_cmp_nlg_f32"] = {Scalar<fnlg>::compare, 0, 0};
  t["s_cmp_ngt_f32"] = {Scalar<fngt>::compare, 0, 0};
  t["s_cmp_nle_f32"] = {Scalar<fnle>::compare, 0, 0};
  t["s_cmp_nlt_f32"] = {Scalar<fnlt>::compare, 0, 0};
  t["s_cmp_eq_u64"] = {Scalar<eq<uint64_t>>::compare, 0, 0};
  t["s_cmp_lg_u64"] = {Scalar<ne<uint64_t>>::compare, 0, 0};
  t["s_bitcmp0_b32"] = {Scalar<bit0>::compare, 0, 0};
  t["s_bitcmp1_b32"] = {Scalar<bit1>::compare, 0, 0};
  t["s_cmpk_eq_i32"] = {Scalar<eq_short>::compare, 0, 0};
  t["s_cmpk_lg_i32"] = {Scalar<ne_short>::compare, 0, 0};
  t["s_cmpk_gt_i32"] = {Scalar<gt_short>::compare, 0, 0};
  t["s_cmpk_ge_i32"] = {Scalar<ge_short>::compare, 0, 0};
  t["s_cmpk_lt_i32"] = {Scalar<lt_short>::compare, 0, 0};
  t["s_cmpk_le_i32"] = {Scalar<le_short>::compare, 0, 0};
  t["s_cmpk_eq_u32"] = {Scalar<eq<uint32_t>>::compare, 0, 0};
  t["s_cmpk_lg_u32"] = {Scalar<ne<uint32_t>>::compare, 0, 0};
  t["s_cmpk_gt_u32"] = {Scalar<gt<uint32_t>>::compare, 0, 0};
  t["s_cmpk_ge_u32"] = {Scalar<ge<uint32_t>>::compare, 0, 0};
  t["s_cmpk_lt_u32"] = {Scalar<lt<uint32_t>>::compare, 0, 0};
  t["s_cmpk_le_u32"] = {Scalar<le<uint32_t>>::compare, 0, 0};
}

} // namespace

void add_scalar(Table &t) {
  add_logic(t);
  add_arithmetic(t);
  add_compares(t);
  const uint32_t modifiers = kModOffset | kModCache | kModLoad;
  t["s_load_dword"] = {load, modifiers, 4};
  for (int n = 1; n <= 16; n *= 2) {
    if (n > 1) t["s_load_dwordx" + std::to_string(n)] = {load, modifiers, 4 * n};
    t["s_load_b" + std::to_string(32 * n)] = {load, modifiers, 4 * n};
  }
  t["s_load_b96"] = {load, modifiers, 12};
  t["s_load_u8"] = {load, modifiers, 1};
  t["s_load_i8"] = {load, modifiers, -1};
  t["s_load_u16"] = {load, modifiers, 2};
  t["s_load_i16"] = {load, modifiers, -2};
}

} // namespace amdgpu
} // namespace tessera
