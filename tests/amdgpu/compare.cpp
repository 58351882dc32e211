// SPDX-License-Identifier: Apache-2.0
//
// v_cmp_* and v_cmpx_*: six predicates on integers, fourteen on floats, and the class of a float.
#include <math.h>

#include "per_lane.h"

namespace tessera {
namespace amdgpu {

namespace {

// What one source compares with the other.
template <class T>
T value(T x) {
  return x;
}
float value(Half x) { return x.value(); }

template <class T>
bool lt(T a, T b) {
  return value(a) < value(b);
}
template <class T>
bool eq(T a, T b) {
  return value(a) == value(b);
}
template <class T>
bool le(T a, T b) {
  return value(a) <= value(b);
}
template <class T>
bool gt(T a, T b) {
  return value(a) > value(b);
}
template <class T>
bool lg(T a, T b) {
  return value(a) < value(b) || value(a) > value(b);
}
template <class T>
bool ne(T a, T b) {
  return value(a) != value(b);
}
template <class T>
bool ge(T a, T b) {
  return value(a) >= value(b);
}
template <class T>
bool ordered(T a, T b) {
  return value(a) == value(a) && value(b) == value(b);
}
template <class T>
bool unordered(T a, T b) {
  return !ordered(a, b);
}
template <class T>
bool nge(T a, T b) {
  return !ge(a, b);
}
template <class T>
bool nlg(T a, T b) {
  return !lg(a, b);
}
template <class T>
bool ngt(T a, T b) {
  return !gt(a, b);
}
template <class T>
bool nle(T a, T b) {
  return !le(a, b);
}
template <class T>
bool nlt(T a, T b) {
  return !lt(a, b);
}

template <>
bool lt<Short>(Short a, Short b) {
  return a.bits < b.bits;
}
template <>
bool eq<Short>(Short a, Short b) {
  return a.bits == b.bits;
}
template <>
bool le<Short>(Short a, Short b) {
  return a.bits <= b.bits;
}
template <>
bool gt<Short>(Short a, Short b) {
  return a.bits > b.bits;
}
template <>
bool ne<Short>(Short a, Short b) {
  return a.bits != b.bits;
}
template <>
bool ge<Short>(Short a, Short b) {
  return a.bits >= b.bits;
}

template <auto f>
void add_predicate(Table &t, const std::string &name, const char *type, uint32_t modifiers) {
  t["v_cmp_" + name + "_" + type] = {PerLane<f>::run_mask, modifiers, 0};
  t["v_cmpx_" + name + "_" + type] = {PerLane<f>::run_exec, modifiers, 0};
}

template <class T>
void add_integers(Table &t, const char *type) {
  const uint32_t modifiers = sizeof(T) < 8 ? uint32_t{kModSdwa} : 0u;
  add_predicate<lt<T>>(t, "lt", type, modifiers);
  add_predicate<eq<T>>(t, "eq", type, modifiers);
  add_predicate<le<T>>(t, "le", type, modifiers);
  add_predicate<gt<T>>(t, "gt", type, modifiers);
  add_predicate<ne<T>>(t, "ne", type, modifiers);
  add_predicate<ge<T>>(t, "ge", type, modifiers);
}

template <class T>
void add_floats(Table &t, const char *type) {
  const uint32_t modifiers = kModSigns;
  add_predicate<lt<T>>(t, "lt", type, modifiers);
  add_predicate<eq<T>>(t, "eq", type, modifiers);
  add_predicate<le<T>>(t, "le", type, modifiers);
  add_predicate<gt<T>>(t, "gt", type, modifiers);
  add_predicate<lg<T>>(t, "lg", type, modifiers);
  add_predicate<ge<T>>(t, "ge", type, modifiers);
  add_predicate<ordered<T>>(t, "o", type, modifiers);
  add_predicate<unordered<T>>(t, "u", type, modifiers);
  add_predicate<nge<T>>(t, "nge", type, modifiers);
  add_predicate<nlg<T>>(t, "nlg", type, modifiers);
  add_predicate<ngt<T>>(t, "ngt", type, modifiers);
  add_predicate<nle<T>>(t, "nle", type, modifiers);
  add_predicate<ne<T>>(t, "neq", type, modifiers);
  add_predicate<nlt<T>>(t, "nlt", type, modifiers);
}

// Bits of the mask: signalling NaN, quiet NaN, -inf, -normal, -denormal, -0, +0, +denormal,
// +normal, +inf.
bool of_class(uint32_t x, uint32_t mask) {
  const uint32_t size = x & 0x7fffffffu;
  const bool minus = x >> 31;
  int bit;
  if (size > 0x7f800000u)
    bit = size & 0x400000u ? 1 : 0;
  else if (size == 0x7f800000u)
    bit = minus ? 2 : 9;
  else if (size >= 0x00800000u)
    bit = minus ? 3 : 8;
  else if (size > 0)
    bit = minus ? 4 : 7;
  else
    bit = minus ? 5 : 6;
  return mask >> bit & 1;
}

} // namespace

void add_compare(Table &t) {
  add_integers<uint32_t>(t, "u32");
  add_integers<int32_t>(t, "i32");
  add_integers<uint64_t>(t, "u64");
  add_integers<int64_t>(t, "i64");
  add_integers<Short>(t, "u16");
  add_floats<float>(t, "f32");
  add_floats<double>(t, "f64");
  add_floats<Half>(t, "f16");
  add_predicate<of_class>(t, "class", "f32", kModSigns);
}

} // namespace amdgpu
} // namespace tessera
