// SPDX-License-Identifier: Apache-2.0
//
// common/online_softmax-inl.h with a scalar policy: tiles of any cut give the whole row's softmax, rows
// without keys and with -inf or NaN scores follow the rules, sinks join, and merging is associative.
#include <criterion/criterion.h>

#include <cmath>
#include <cstdint>

#include "common/platform.h"

#include "common/online_softmax-inl.h"

namespace {

struct Scalar {
  using V = float;
  static V set(float x) { return x; }
  // Drops a NaN, as the contract of a policy allows.
  static V max(V a, V b) { return a > b ? a : b; }
  static V add(V a, V b) { return a + b; }
  static V sub(V a, V b) { return a - b; }
  static V mul(V a, V b) { return a * b; }
  static V mul_add(V a, V b, V c) { return std::fma(a, b, c); }
  static V exp2(V x) { return std::exp2(x); }
  static V exp2_product(V x, V unit) { return std::exp2(x * unit); }
  static V log(V x) { return std::log(x); }
  static V div(V a, V b) { return a / b; }
  static V select_eq(V a, V b, V yes, V no) { return a == b ? yes : no; }
  static V select_le(V a, V b, V yes, V no) { return a <= b ? yes : no; }
};

using Row = OnlineSoftmax<Scalar>;
constexpr float kInf = INFINITY;
constexpr float kLog2E = 1.4426950408889634f;

struct State {
  float m = Row::start_max(), l = Row::start_sum(), acc = 0;

  int moves = 0;

  // Folds a tile of scores (base two) with one value each.
  void fold(const float* s, const float* v, int n) {
    fold_from(Row::new_max(m, largest(s, n)), s, v, n);
  }

  // The same where m stays while sums of tiles are at most `most`.
  void fold_on_trial(const float* s, const float* v, int n, float most) {
    float sum = 0;
    for (int j = 0; j < n; ++j) sum += Row::prob(s[j], Row::reference(m));
    fold_from(Row::trial_max(m, sum, largest(s, n), most), s, v, n);
  }

  static float largest(const float* s, int n) {
    float tile = -kInf;
    for (int j = 0; j < n; ++j) tile = Scalar::max(tile, s[j]);
    return tile;
  }

  void fold_from(float m_new, const float* s, const float* v, int n) {
    const float ref = Row::reference(m_new);
    moves += m_new != m;
    const float alpha = Row::correction(m, ref);
    float sum = 0;
    acc = Row::rescale(acc, alpha);
    for (int j = 0; j < n; ++j) {
      const float p = Row::prob(s[j], ref);
      sum += p;
      acc += p * v[j];
    }
    l = Row::new_sum(l, alpha, sum);
    m = m_new;
  }
  // Natural.
  float o_with(float sink, float* with) const {
    return acc * Row::join_sink(m == -kInf ? m : m / kLog2E, l, sink, with);
  }
  float o() const { return acc * Row::inverse_sum(l); }
  float lse() const { return Row::log_sum_exp(m, l); }
};

// The same in double, from natural logits.
void expected(const float* s, const float* v, int n, double sink, double* o, double* lse) {
  double m = sink, l = 0, acc = 0;
  for (int j = 0; j < n; ++j) m = std::fmax(m, static_cast<double>(s[j]));
  if (m == -static_cast<double>(kInf)) {
    *o = 0, *lse = m;
    return;
  }
  for (int j = 0; j < n; ++j) {
    const double p = std::exp(static_cast<double>(s[j]) - m);
    l += p;
    acc += p * static_cast<double>(v[j]);
  }
  l += std::exp(sink - m);
  *o = acc / l, *lse = m + std::log(l);
}

float noise(uint32_t n) {
  n = (n ^ 61u) * 2654435761u;
  n ^= n >> 15;
  n *= 2246822519u;
  n ^= n >> 13;
  return static_cast<float>(n) / 2147483648.0f - 1.0f;
}

}  // namespace

Test(online_softmax, any_cut_gives_the_whole_row) {
  constexpr int kKeys = 61;
  for (int spread = 1; spread < 200; spread *= 5) {
    float natural[kKeys], s[kKeys], v[kKeys];
    for (int j = 0; j < kKeys; ++j) {
      natural[j] = static_cast<float>(spread) * noise(static_cast<uint32_t>(j + spread));
      if (j % 7 == 3) natural[j] = -kInf;  // masked
      s[j] = natural[j] * kLog2E;
      v[j] = noise(static_cast<uint32_t>(1000 + j));
    }
    double o, lse;
    expected(natural, v, kKeys, -static_cast<double>(kInf), &o, &lse);
    for (int tile = 1; tile <= kKeys; ++tile) {
      State state;
      for (int j = 0; j < kKeys; j += tile)
        state.fold(s + j, v + j, tile < kKeys - j ? tile : kKeys - j);
      const double tolerance = 3e-7 * (1 + spread);
      cr_assert_float_eq(static_cast<double>(state.o()), o, tolerance, "tile %d", tile);
      cr_assert_float_eq(static_cast<double>(state.lse()), lse, tolerance, "tile %d", tile);
      State trial;
      for (int j = 0; j < kKeys; j += tile)
        trial.fold_on_trial(s + j, v + j, tile < kKeys - j ? tile : kKeys - j, 256.0f);
      cr_assert_float_eq(static_cast<double>(trial.o()), o, tolerance, "trial, tile %d", tile);
      cr_assert_float_eq(static_cast<double>(trial.lse()), lse, tolerance, "trial, tile %d", tile);
      cr_assert(spread > 1 || trial.moves == 1, "trial, tile %d: m moved %d times", tile, trial.moves);
    }
  }
}

Test(online_softmax, rows_without_keys) {
  const float hidden[3] = {-kInf, -kInf, -kInf}, v[3] = {5, 6, 7};
  State none, masked;
  masked.fold(hidden, v, 3);
  masked.fold(hidden, v, 2);
  cr_assert(none.o() == 0 && none.lse() == -kInf);
  cr_assert(masked.o() == 0 && masked.lse() == -kInf && masked.l == 0);
  // Keys may come after tiles without any.
  const float score = 2.0f;
  masked.fold(&score, v, 1);
  masked.fold(hidden, v, 3);
  cr_assert(masked.o() == 5 && std::fabs(masked.lse() - 2 / kLog2E) < 1e-6f);
}

Test(online_softmax, nan_and_infinity_are_not_hidden) {
  const float v[3] = {1, 2, 3};
  const float with_nan[3] = {0, NAN, 1}, with_inf[3] = {0, kInf, 1}, only_nan[1] = {NAN};
  State a, b, c;
  a.fold(with_nan, v, 3);
  cr_assert(std::isnan(a.o()) && std::isnan(a.lse()));
  b.fold(with_inf, v, 3);  // inf - inf
  cr_assert(std::isnan(b.o()));
  c.fold(only_nan, v, 1);
  cr_assert(std::isnan(c.o()) && std::isnan(c.lse()));
}

Test(online_softmax, sinks) {
  const float natural[4] = {0.5f, -1, 2, 0}, v[4] = {1, 2, 3, 4};
  const float sinks[4] = {-kInf, -3, 1.5f, 40};
  for (float sink : sinks) {
    State state;
    float s[4], with;
    double o, lse;
    for (int j = 0; j < 4; ++j) s[j] = natural[j] * kLog2E;
    state.fold(s, v, 4);
    expected(natural, v, 4, static_cast<double>(sink), &o, &lse);
    cr_assert_float_eq(static_cast<double>(state.o_with(sink, &with)), o, 5e-7 * o);
    cr_assert_float_eq(static_cast<double>(with), lse, 4e-6);
  }
  float with;
  const State empty;  // only a sink: O = 0, LSE = sink
  cr_assert(empty.o_with(1.25f, &with) == 0 && with == 1.25f);
  cr_assert(empty.o_with(-kInf, &with) == 0 && with == -kInf);
  // Keys at the lowest finite score are keys; a NaN stays one.
  float lse;
  const float lowest = -3.4028234e38f;
  cr_assert(Row::join_sink(lowest, 3, -kInf, &lse) == 1.0f / 3 && lse == lowest);
  cr_assert(std::isnan(Row::join_sink(-kInf, NAN, 1, &lse)) && std::isnan(lse));
}

Test(online_softmax, merging) {
  // Weights against the largest: exactly 1 for it, exactly 0 for an empty part.
  cr_assert(Row::weight(3, 3) == 1 && Row::weight(-kInf, 3) == 0 && Row::weight(-kInf, -kInf) == 0);
  cr_assert_eq(Row::merged_lse(-kInf, 0), -kInf);
  for (int n = 1; n < 60; ++n) { // far below the largest, too
    const float largest = static_cast<float>(n) + 0.123f, lse = noise(static_cast<uint32_t>(n));
    const double exact = std::exp(static_cast<double>(lse) - static_cast<double>(largest));
    cr_assert_float_eq(static_cast<double>(Row::weight(lse, largest)), exact, 1.3e-7 * exact, "%d", n);
  }
  cr_assert_eq(Row::merged_lse(3, 1), 3);
  cr_assert_float_eq(Row::merged_lse(3, 2), 3.6931472f, 1e-6f);
  // Parts of a row, merged, are the row.
  float natural[40], s[40], v[40];
  for (int j = 0; j < 40; ++j) {
    natural[j] = 6 * noise(static_cast<uint32_t>(j));
    s[j] = natural[j] * kLog2E;
    v[j] = noise(static_cast<uint32_t>(500 + j));
  }
  double o, lse;
  expected(natural, v, 40, -static_cast<double>(kInf), &o, &lse);
  for (int cut = 0; cut <= 40; ++cut) {
    State a, b;
    a.fold(s, v, cut);
    b.fold(s + cut, v + cut, 40 - cut);
    const float largest = Scalar::max(a.lse(), b.lse());
    const float wa = Row::weight(a.lse(), largest), wb = Row::weight(b.lse(), largest);
    cr_assert_float_eq(static_cast<double>((wa * a.o() + wb * b.o()) / (wa + wb)), o, 2e-6);
    cr_assert_float_eq(static_cast<double>(Row::merged_lse(largest, wa + wb)), lse, 4e-6);
  }
}
