// SPDX-License-Identifier: Apache-2.0
//
// The pieces that only backward has (backends/cpu/gradient-inl.h) against double arithmetic, once
// per Highway target: the product over query lanes, P and dS of a tile, the derivative of the
// softcap.
#include <math.h>
#include <string.h>

#include "tests/kernels/kernel_test.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "tests/kernels/test_cpu_gradient.cc"
#include "hwy/foreach_target.h"
// After foreach_target.h, which includes this file once per target.
#include "hwy/highway.h"

#include "backends/cpu/gradient-inl.h"
#include "common/score.h"

HWY_BEFORE_NAMESPACE();
namespace tessera {
namespace HWY_NAMESPACE {
namespace {

constexpr size_t kMost = 4096;  // floats of a test buffer
constexpr float kInf = __builtin_inff();

HWY_ALIGN_MAX float in_[kMost], out_[kMost], other_[kMost];

// C += A B against doubles, for every count of keys, queries and vectors; nothing else is written.
void test_rows_product() {
  const size_t lanes = hn::Lanes(DF()), lda = 21;
  for (size_t vectors = 1; vectors <= 9; ++vectors)
    for (size_t m = 1; m <= 14; ++m)
      for (size_t n = 0; n <= 20; n += 1 + n / 2) {
        const size_t ld = vectors * lanes;
        if ((n + 1) * ld > kMost || (m + 1) * ld > kMost) continue;
        float a[14 * 21];
        for (size_t i = 0; i < m * lda; ++i)
          a[i] = i % lda < n ? kernel_uniform(14, i, -1, 1) : NAN;
        for (size_t i = 0; i < n * ld; ++i) in_[i] = kernel_uniform(15, i, -1, 1);
        for (size_t i = 0; i < (m + 1) * ld; ++i)
          out_[i] = other_[i] = kernel_uniform(16, i, -1, 1);
        rows_product(a, lda, m, n, in_, ld, out_, ld);
        for (size_t i = 0; i < (m + 1) * ld; ++i) {
          double want = other_[i];
          for (size_t r = 0; i < m * ld && r < n; ++r)
            want += static_cast<double>(a[i / ld * lda + r]) * in_[r * ld + i % ld];
          kernel_check(i < m * ld ? fabs(out_[i] - want) < 4e-6 : out_[i] == other_[i],
                       "keys %zu queries %zu vectors %zu: element %zu is %g, not %g", m, n, vectors,
                       i, out_[i], want);
        }
      }
}

// P and dS of a tile from a known state, and from the state found in it, against doubles. Hidden
// keys, dropped pairs and rows without keys hold what must be selected away.
void test_gradient_tiles() {
  const size_t lanes = hn::Lanes(DF()), n = 37;
  if (n * lanes > kMost) return;
  HWY_ALIGN_MAX static float keep[kMost], s[kMost], g[kMost];
  HWY_ALIGN_MAX float m[64], l[64], e[64], l_rest[64], e_rest[64], inverse[64], delta[64];
  const RowSums sums = {m, l, l_rest, e, e_rest};
  const float unit = 0.7f;
  for (size_t i = 0; i < n * lanes; ++i) {
    const bool hidden = i % lanes == 1 || kernel_uniform(17, i, 0, 1) < 0.2f;
    const bool dropped = kernel_uniform(18, i, 0, 1) < 0.3f;
    in_[i] = hidden ? -kInf : kernel_uniform(19, i, -150, -130);
    other_[i] = hidden || dropped ? NAN : kernel_uniform(20, i, -1, 1);
    keep[i] = dropped ? 0.0f : 1.25f;
  }
  for (size_t r = 0; r < lanes; ++r) m[r] = -kInf, l[r] = e[r] = l_rest[r] = e_rest[r] = 0;
  memcpy(s, in_, n * lanes * 4);
  memcpy(g, other_, n * lanes * 4);
  const size_t half = 20;  // two tiles, the first of them longer than a partial sum
  state_tile<true, true>(s, g, keep, zones_whole(half, 1), lanes, unit, sums);
  state_tile<true, true>(s + half * lanes, g + half * lanes, keep + half * lanes,
                         zones_whole(n - half, 1), lanes, unit, sums);
  for (size_t r = 0; r < lanes; ++r) {
    double top = -HUGE_VAL, sum = 0, mean = 0;
    for (size_t j = 0; j < n; ++j) top = fmax(top, (double)in_[j * lanes + r]);
    for (size_t j = 0; j < n; ++j) {
      const size_t i = j * lanes + r;
      if (in_[i] == -kInf) continue;
      const double w = exp2((in_[i] - top) * unit);
      sum += w;
      if (keep[i] != 0) mean += w * keep[i] * other_[i];
    }
    kernel_check(m[r] == top && fabs(l[r] - sum) < 1e-6 * (1 + sum) && fabs(e[r] - mean) < 1e-5,
                 "state of row %zu: %g %g %g, not %g %g %g", r, m[r], l[r], e[r], top, sum, mean);
    inverse[r] = sum > 0 ? static_cast<float>(1 / sum) : 1.0f;
    delta[r] = static_cast<float>(mean * inverse[r]);
    if (sum == 0) m[r] = kInf;
  }
  memcpy(s, in_, n * lanes * 4);
  memcpy(g, other_, n * lanes * 4);
  gradient_tile<true, true>(s, g, keep, zones_whole(n, 1), lanes, m, inverse, delta, unit);
  for (size_t i = 0; i < n * lanes; ++i) {
    const size_t r = i % lanes;
    const double p = in_[i] == -kInf ? 0 : exp2(((double)in_[i] - m[r]) * unit) * inverse[r];
    const double ds =
        p == 0 ? 0 : p * ((keep[i] == 0 ? 0 : (double)keep[i] * other_[i]) - delta[r]);
    kernel_check(fabs(s[i] - p * keep[i]) < 1e-6 && fabs(g[i] - ds) < 1e-6,
                 "row %zu: P %g, not %g; dS %g, not %g", r, s[i], p * keep[i], g[i], ds);
  }
  // A tile that is all keys, its state at hand: the same to rounding.
  float *whole_s = out_;
  HWY_ALIGN_MAX float whole_m[64];
  for (size_t r = 0; r < lanes; ++r) whole_m[r] = -kInf, l[r] = e[r] = l_rest[r] = e_rest[r] = 0;
  memcpy(whole_s, in_, n * lanes * 4);
  HWY_ALIGN_MAX static float whole_g[kMost];
  memcpy(whole_g, other_, n * lanes * 4);
  state_tile<true, true>(whole_s, whole_g, keep, zones_whole(n, 1), lanes, unit,
                         RowSums{whole_m, l, l_rest, e, e_rest});
  finish_tile<true, true>(whole_s, whole_g, keep, zones_whole(n, 1), lanes, inverse, delta);
  for (size_t i = 0; i < n * lanes; ++i)
    kernel_check(fabs(whole_s[i] - s[i]) < 1e-6 && fabs(whole_g[i] - g[i]) < 1e-6,
                 "whole tile, element %zu", i);
}

// Sums of exact weights, powers of two, and of exact products with dP: exact themselves with what rounding took. Key 0
// has nearly all weight, those after it a half to 2^-28 of it each; a later tile moves the maximum.
void test_exact_sums() {
  const size_t lanes = hn::Lanes(DF()), n = 60, tile = 20;
  HWY_ALIGN_MAX static float s[kMost], g[kMost];
  HWY_ALIGN_MAX float m[64], l[64], e[64], l_rest[64], e_rest[64];
  const RowSums sums = {m, l, l_rest, e, e_rest};
  if (n * lanes > kMost) return;
  for (size_t i = 0; i < n * lanes; ++i) {
    const size_t j = i / lanes;
    // The four keys that are added first hold no other: their sum would be rounded before it joins.
    const bool beside = (j > 0 && j < 4) || (j > 47 && j < 52 && j != 50);
    in_[i] = beside ? -kInf : j == 0 ? 0.0f : j == 50 ? 1.0f : -floorf(kernel_uniform(31, i, 20, 28));
    other_[i] = floorf(kernel_uniform(32, i, 1, 255));
  }
  for (size_t r = 0; r < lanes; ++r) m[r] = -kInf, l[r] = e[r] = l_rest[r] = e_rest[r] = 0;
  memcpy(s, in_, n * lanes * 4);
  memcpy(g, other_, n * lanes * 4);
  for (size_t t = 0; t < n; t += tile)
    state_tile<true, false>(s + t * lanes, g + t * lanes, nullptr, zones_whole(tile, 1), lanes, 1.0f, sums);
  for (size_t r = 0; r < lanes; ++r) {
    double sum = 0, mean = 0;
    for (size_t j = 0; j < n; ++j) {
      const double w = exp2((double)in_[j * lanes + r] - 1);
      sum += w;
      mean += w * other_[j * lanes + r];
    }
    const double l_all = (double)l[r] + l_rest[r], e_all = (double)e[r] + e_rest[r];
    kernel_check(fabs(l_all - sum) <= 1e-8 * sum && fabs(e_all - mean) <= 1e-8 * mean,
                 "sums of row %zu: %.12g %.12g, not %.12g %.12g", r, l_all, e_all, sum, mean);
  }
}

// Where all dP are 3, so is D, though every tile moves the maximum: what weights are off by is in both sums, what
// their rescaling rounds is not.
void test_sums_rescaled() {
  const size_t lanes = hn::Lanes(DF()), n = 20;
  HWY_ALIGN_MAX static float s[kMost], g[kMost];
  HWY_ALIGN_MAX float m[64], l[64], e[64], l_rest[64], e_rest[64];
  const RowSums sums = {m, l, l_rest, e, e_rest};
  double squares = 0;
  if (n * lanes > kMost) return;
  for (size_t r = 0; r < lanes; ++r) m[r] = -kInf, l[r] = e[r] = l_rest[r] = e_rest[r] = 0;
  for (size_t t = 0; t < 400; ++t) {
    for (size_t i = 0; i < n * lanes; ++i) {
      s[i] = 0.002f * static_cast<float>(t * n + i / lanes) + kernel_uniform(33, t * kMost + i, 0, 0.01f);
      g[i] = 3;
    }
    state_tile<true, false>(s, g, nullptr, zones_whole(n, 1), lanes, 0.7f, sums);
    for (size_t r = 0; t >= 200 && r < lanes; ++r) {
      const double d = ((double)e[r] + e_rest[r]) / ((double)l[r] + l_rest[r]) / 3 - 1;
      squares += d * d / static_cast<double>(200 * lanes);
    }
  }
  kernel_check(sqrt(squares) < 1.5e-8, "D of sums that are rescaled: off by %g of it", sqrt(squares));
}

void test_softcap_gradient() {
  for (size_t i = 0; i < kMost; ++i) in_[i] = out_[i] = kernel_uniform(21, i, -40, 40);
  softcap_gradient_tile(out_, other_, kMost, 9.0f);
  for (size_t i = 0; i < kMost; ++i)
    kernel_check(fabs(out_[i] - tsri_score_f64(in_[i], 1, 9, 0, 0, 0)) < 4e-6 &&
                     fabs(other_[i] - tsri_softcap_grad_f64(in_[i], 9)) < 1e-6,
                 "softcap of %g: %g, slope %g", in_[i], out_[i], other_[i]);
}

}  // namespace

void run_gradients() {
  test_rows_product();
  test_gradient_tiles();
  test_exact_sums();
  test_sums_rescaled();
  test_softcap_gradient();
}

// NOLINTNEXTLINE(google-readability-namespace-comments)
}  // namespace HWY_NAMESPACE
}  // namespace tessera
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
  #include "backends/cpu/targets.h"

namespace tessera {
HWY_EXPORT(run_gradients);
}

void kernel_test_gradients(int64_t target) {
  TSRI_CPU_FUNCTION(tessera, run_gradients, target)();
}
#endif
