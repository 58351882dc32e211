// SPDX-License-Identifier: Apache-2.0
//
// Handlers made of functions of one lane: per_lane<f> reads the operands that f's parameter types
// name, operand 1 on, calls f for every lane and writes operand 0 where EXEC is set. Loops are over
// plain arrays, so that the compiler makes vector code of them.
#ifndef TESSERA_TESTS_AMDGPU_PER_LANE_H_
#define TESSERA_TESTS_AMDGPU_PER_LANE_H_

#include <tuple>
#include <utility>

#include "half.h"
#include "wave.h"

namespace tessera {
namespace amdgpu {

struct Half {
  uint16_t bits;
  float value() const { return float_of_half(bits); }
};
struct Short { // 16 bits of an integer
  uint16_t bits;
};

template <class T>
struct Values { // 32 bits
  uint32_t buffer[64];
  const uint32_t *at;
  void read(Wave &w, const Inst &i, int n) { at = read_words(w, i, n, buffer); }
  T operator[](int l) const {
    T x;
    memcpy(&x, at + l, 4);
    return x;
  }
  void set(int l, T x) { memcpy(buffer + l, &x, 4); }
  void write(Wave &w, const Inst &i, int n) const { write_words(w, i, n, buffer); }
};

template <class T>
struct HalfValues {
  uint16_t buffer[64];
  void read(Wave &w, const Inst &i, int n) { read_halves(w, i, n, buffer); }
  T operator[](int l) const { return T{buffer[l]}; }
  void set(int l, T x) { buffer[l] = x.bits; }
  void write(Wave &w, const Inst &i, int n) const { write_halves(w, i, n, buffer); }
};
template <>
struct Values<Half> : HalfValues<Half> {};
template <>
struct Values<Short> : HalfValues<Short> {};

template <class T>
struct WideValues {
  uint64_t buffer[64];
  void read(Wave &w, const Inst &i, int n) {
    const Operand &o = i.op[n];
    if (o.kind == Kind::kConstant && o.literal && o.wide <= 0xffffffffu) {
      uint64_t x = o.wide; // 32 bits of the code as 64: by what they are
      if (T(0.5) != T(0))
        x <<= 32;
      else if (T(-1) < T(0))
        x = static_cast<uint64_t>(static_cast<int64_t>(static_cast<int32_t>(x)));
      for (uint64_t &b : buffer) b = x;
      return;
    }
    read_wides(w, i, n, buffer);
  }
  T operator[](int l) const {
    T x;
    memcpy(&x, buffer + l, 8);
    return x;
  }
  void set(int l, T x) { memcpy(buffer + l, &x, 8); }
  void write(Wave &w, const Inst &i, int n) const { write_wides(w, i, n, buffer); }
};
template <>
struct Values<uint64_t> : WideValues<uint64_t> {};
template <>
struct Values<int64_t> : WideValues<int64_t> {};
template <>
struct Values<double> : WideValues<double> {};

// Chunks of 32 lanes have a length that the compiler knows.
template <class Body>
inline void each_lane(int lanes, Body body) {
  for (int l0 = 0; l0 < lanes; l0 += 32)
    for (int l = l0; l < l0 + 32; ++l) body(l);
}

template <auto f>
struct PerLane;

template <class R, class... A, R (*f)(A...)>
struct PerLane<f> {
  template <size_t... n>
  static void work(Wave &w, const Inst &i, std::index_sequence<n...>) {
    std::tuple<Values<A>...> sources;
    (std::get<n>(sources).read(w, i, static_cast<int>(n) + 1), ...);
    Values<R> result;
    each_lane(w.lanes, [&](int l) { result.set(l, f(std::get<n>(sources)[l]...)); });
    result.write(w, i, 0);
  }
  static void run(Wave &w, const Inst &i) { work(w, i, std::index_sequence_for<A...>()); }

  // With the result's old value as a last source.
  template <size_t... n>
  static void work_onto(Wave &w, const Inst &i, std::index_sequence<n...>) {
    std::tuple<Values<A>...> sources;
    (std::get<n>(sources).read(w, i, static_cast<int>((n + 1) % sizeof...(A))), ...);
    Values<R> result;
    each_lane(w.lanes, [&](int l) { result.set(l, f(std::get<n>(sources)[l]...)); });
    result.write(w, i, 0);
  }
  static void run_onto(Wave &w, const Inst &i) { work_onto(w, i, std::index_sequence_for<A...>()); }

  // f says for which lanes: operand 0 is a mask, 0 for lanes that are off.
  template <size_t... n>
  static uint64_t ask(Wave &w, const Inst &i, int first, std::index_sequence<n...>) {
    std::tuple<Values<A>...> sources;
    (std::get<n>(sources).read(w, i, static_cast<int>(n) + first), ...);
    uint8_t holds[64];
    each_lane(w.lanes, [&](int l) { holds[l] = f(std::get<n>(sources)[l]...) ? 1 : 0; });
    uint64_t mask = 0;
    for (int l = 0; l < w.lanes; ++l) mask |= static_cast<uint64_t>(holds[l]) << l;
    return mask & w.exec();
  }
  static void run_mask(Wave &w, const Inst &i) {
    w.set_mask(i.op[0], ask(w, i, 1, std::index_sequence_for<A...>()));
  }
  // The mask becomes EXEC. On gfx9 operand 0 gets it too; later families name EXEC or nothing.
  static void run_exec(Wave &w, const Inst &i) {
    const bool names = i.operands > static_cast<int>(sizeof...(A));
    const uint64_t mask = ask(w, i, names ? 1 : 0, std::index_sequence_for<A...>());
    if (names) w.set_mask(i.op[0], mask);
    w.s[kExec] = static_cast<uint32_t>(mask);
    w.s[kExec + 1] = static_cast<uint32_t>(mask >> 32);
  }
};

template <auto f>
constexpr Handler per_lane = PerLane<f>::run;

} // namespace amdgpu
} // namespace tessera

#endif // TESSERA_TESTS_AMDGPU_PER_LANE_H_
