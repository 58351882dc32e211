// SPDX-License-Identifier: Apache-2.0
//
// What happens to single lanes, on every Highway target of this build and processor, against scalar
// arithmetic: 2^x, ln, tanh; conversions of 16-bit types, exhaustively; the recurrence and its
// merge.
#include <math.h>
#include <string.h>

#include "tests/kernels/kernel_test.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "tests/kernels/test_cpu_lanes.cc"
#include "hwy/foreach_target.h"
// After foreach_target.h, which includes this file once per target.
#include "hwy/highway.h"

#include "backends/cpu/convert-inl.h"
#include "backends/cpu/row_policy-inl.h"

HWY_BEFORE_NAMESPACE();
namespace tessera {
namespace HWY_NAMESPACE {

constexpr size_t kLanesMost = 4096;  // floats of a test buffer
static constexpr float kLanesInf = __builtin_inff();

HWY_ALIGN_MAX static float in_[kLanesMost], out_[kLanesMost];

// out_ = f(in_) for n values, n a multiple of the lanes.
template <class F>
HWY_INLINE void apply(size_t n, F f) {
  const DF d;
  for (size_t i = 0; i < n; i += hn::Lanes(d)) hn::Store(f(hn::Load(d, in_ + i)), d, out_ + i);
}

struct Exp2 {
  HWY_INLINE VF operator()(VF x) const { return exp2_of(x); }
};
struct Log {
  HWY_INLINE VF operator()(VF x) const { return log_of(x); }
};
struct Tanh {
  HWY_INLINE VF operator()(VF x) const { return tanh_of(x); }
};

static void test_exp2() {
  double worst = 0;
  for (int part = 0; part < 64; ++part) {
    for (size_t i = 0; i < kLanesMost; ++i)
      in_[i] = kernel_uniform(1, part * kLanesMost + i, -126.0f, part < 32 ? 0.0f : 20.0f) /
               static_cast<float>(1 << (part % 8));
    apply(kLanesMost, Exp2());
    for (size_t i = 0; i < kLanesMost; ++i)
      worst = fmax(worst, fabs(out_[i] / exp2((double)in_[i]) - 1));
  }
  kernel_check(worst < 1.3e-7, "exp2: relative error %g", worst);
  const float special[] = {0.0f,    -0.0f,   -kLanesInf, NAN,     -NAN,     -126.0f,
                           -126.5f, -200.0f, -1e30f,     -149.0f, -3.4e38f, 1e-40f};
  const float expect[] = {1.0f, 1.0f, 0.0f, NAN,  NAN,  0x1p-126f,
                          0.0f, 0.0f, 0.0f, 0.0f, 0.0f, 1.0f};
  for (size_t i = 0; i < kLanesMost; ++i) in_[i] = special[i % 12];
  apply(kLanesMost, Exp2());
  for (size_t i = 0; i < kLanesMost; ++i)
    kernel_check(isnan(expect[i % 12]) ? isnan(out_[i]) : out_[i] == expect[i % 12],
                 "exp2(%g) = %g, expected %g", in_[i], out_[i], expect[i % 12]);
  // Probabilities stay normal numbers: products with subnormal ones are slow.
  for (size_t i = 0; i < kLanesMost; ++i) in_[i] = -125.0f - 30.0f * (float)i / kLanesMost;
  apply(kLanesMost, Exp2());
  for (size_t i = 0; i < kLanesMost; ++i)
    kernel_check(out_[i] == 0.0f || out_[i] >= 0x1p-126f, "exp2(%g) = %g is subnormal", in_[i],
                 out_[i]);
}

// Against the product in double: where the target fuses, nothing is lost by it.
static void test_exp2_product() {
  const DF d;
  const float units[] = {0.18033688f, 1.4426950f, 3e-5f, 2e4f};
  const bool fused = HWY_NATIVE_FMA != 0;
  for (const float unit : units) {
    double worst = 0;
    const auto power = [unit](VF x) HWY_ATTR { return exp2_product(x, hn::Set(DF(), unit)); };
    for (size_t i = 0; i < kLanesMost; ++i)
      in_[i] = kernel_uniform(22, i, -126.0f, i % 4 == 0 ? 20.0f : 0.0f) / unit /
               static_cast<float>(1 << (i % 8));
    for (size_t i = 0; i < kLanesMost; i += hn::Lanes(d))
      hn::Store(power(hn::Load(d, in_ + i)), d, out_ + i);
    for (size_t i = 0; i < kLanesMost; ++i)
      if (static_cast<double>(in_[i]) * static_cast<double>(unit) >= -126)
        worst = fmax(worst,
                     fabs(out_[i] / exp2(static_cast<double>(in_[i]) * static_cast<double>(unit)) -
                          1));
    kernel_check(worst < (fused ? 1.3e-7 : 6e-6), "exp2 of a product with %g: error %g", unit,
                 worst);
    const float special[] = {0.0f, -0.0f, -kLanesInf, NAN, -3.4e38f, -127.0f / unit};
    const float expect[] = {1.0f, 1.0f, 0.0f, NAN, 0.0f, 0.0f};
    for (size_t i = 0; i < 96; ++i) in_[i] = special[i % 6];
    for (size_t i = 0; i < 96; i += hn::Lanes(d))
      hn::Store(power(hn::Load(d, in_ + i)), d, out_ + i);
    for (size_t i = 0; i < 96; ++i)
      kernel_check(isnan(expect[i % 6]) ? isnan(out_[i]) : out_[i] == expect[i % 6],
                   "exp2 of %g times %g = %g", in_[i], unit, out_[i]);
  }
}

static void test_log() {
  double worst = 0;
  for (int part = 0; part < 32; ++part) {
    for (size_t i = 0; i < kLanesMost; ++i)
      in_[i] = exp2f(kernel_uniform(2, part * kLanesMost + i, part < 16 ? -0.6f : -20.0f,
                                    part < 16 ? 0.6f : 100.0f));
    apply(kLanesMost, Log());
    for (size_t i = 0; i < kLanesMost; ++i)
      worst = fmax(worst, kernel_ulps(out_[i], log((double)in_[i])));
  }
  kernel_check(worst <= 1.5, "log: %g ulps", worst);
  const float special[] = {1.0f, kLanesInf, NAN};
  for (size_t i = 0; i < kLanesMost; ++i) in_[i] = special[i % 3];
  apply(kLanesMost, Log());
  for (size_t i = 0; i < kLanesMost; ++i)
    kernel_check(i % 3 == 0   ? out_[i] == 0
                 : i % 3 == 1 ? out_[i] == kLanesInf
                              : isnan(out_[i]),
                 "log(%g) = %g", in_[i], out_[i]);
}

static void test_tanh() {
  double worst = 0;
  for (int part = 0; part < 32; ++part) {
    for (size_t i = 0; i < kLanesMost; ++i)
      in_[i] = kernel_uniform(3, part * kLanesMost + i, -12.0f, 12.0f) /
               static_cast<float>(1 << part % 16);
    apply(kLanesMost, Tanh());
    for (size_t i = 0; i < kLanesMost; ++i)
      worst = fmax(worst, kernel_ulps(out_[i], tanh((double)in_[i])));
  }
  kernel_check(worst <= 3.0, "tanh: %g ulps", worst);
  const float special[] = {0.0f, kLanesInf, -kLanesInf, NAN, 1e30f, -1e30f, 1e-42f};
  for (size_t i = 0; i < kLanesMost; ++i) in_[i] = special[i % 7];
  apply(kLanesMost, Tanh());
  for (size_t i = 0; i < kLanesMost; ++i)
    kernel_check(isnan(in_[i]) ? isnan(out_[i]) : out_[i] == tanhf(in_[i]), "tanh(%g) = %g", in_[i],
                 out_[i]);
}

// Every 16-bit pattern to float32 and back; and floats at, just below and just above every tie.
template <class E>
static void test_conversion(const char *name, float (*up)(uint16_t), uint16_t (*down)(float)) {
  static uint16_t code[kLanesMost], back[kLanesMost];
  for (size_t base = 0; base < 65536; base += kLanesMost) {
    for (size_t i = 0; i < kLanesMost; ++i) code[i] = static_cast<uint16_t>(base + i);
    load_row_any(E::kDtype, code, 0, 1, kLanesMost, out_);
    for (size_t i = 0; i < kLanesMost; ++i) {
      const float x = up(code[i]);
      kernel_check(isnan(x) ? isnan(out_[i]) : memcmp(&x, &out_[i], 4) == 0,
                   "%s 0x%04x -> %g, not %g", name, code[i], out_[i], x);
    }
    for (int step = -2; step <= 2; ++step) {
      for (size_t i = 0; i < kLanesMost; ++i) {
        const float x = up(code[i]), y = up(static_cast<uint16_t>(code[i] + 1));
        in_[i] = step == -2 ? x : static_cast<float>(((double)x + (double)y) / 2);
        uint32_t bits;
        memcpy(&bits, &in_[i], 4);
        if (step > -2) bits += static_cast<uint32_t>(step);
        memcpy(&in_[i], &bits, 4);
      }
      // An odd number of elements at an odd place, so that vectors and tail both take part.
      store_row_any(E::kDtype, in_, kLanesMost - 1, back, 1, 1);
      for (size_t i = 0; i + 1 < kLanesMost; ++i) {
        const uint16_t want = down(in_[i]);
        kernel_check(back[i + 1] == want || isnan(in_[i]), "%s: %a -> 0x%04x, not 0x%04x", name,
                     (double)in_[i], back[i + 1], want);
        kernel_check(!isnan(in_[i]) || isnan(up(back[i + 1])), "%s: NaN lost", name);
      }
    }
  }
  const float overflow[] = {65504.0f, 65519.996f, 65520.0f,  1e9f,
                            3.4e38f,  kLanesInf,  -65520.0f, -kLanesInf};
  for (size_t i = 0; i < 64; ++i) in_[i] = overflow[i % 8];
  store_row_any(E::kDtype, in_, 64, back, 0, 1);
  for (size_t i = 0; i < 64; ++i)
    kernel_check(back[i] == down(in_[i]), "%s: %a -> 0x%04x", name, (double)in_[i], back[i]);
  // Strides.
  for (size_t i = 0; i < kLanesMost; ++i) back[i] = 0x1234;
  store_row_any(E::kDtype, in_, 37, back, 5, 3);
  for (size_t i = 0; i < 200; ++i) {
    const bool written = i >= 5 && (i - 5) % 3 == 0 && (i - 5) / 3 < 37;
    kernel_check(back[i] == (written ? down(in_[(i - 5) / 3]) : 0x1234), "%s: strided store", name);
  }
  load_row_any(E::kDtype, back, 5, 3, 37, out_);
  for (size_t i = 0; i < 37; ++i)
    kernel_check(out_[i] == up(back[5 + 3 * i]), "%s: strided load", name);
}

// Folding tiles, and merging states, equals one softmax over all.
static void test_recurrence() {
  const DF d;
  const VF unit = hn::Set(d, 1.4426950408889634f), nat = hn::Set(d, 1.0f);
  for (int kind = 0; kind < 5; ++kind) {
    VF m = Recurrence::start_max(), l = Recurrence::start_sum(), acc = hn::Zero(d);
    double sum = 0, value = 0, top = -HUGE_VAL;
    for (int tile = 0; tile < 4; ++tile)
      for (int j = 0; j < 8; ++j) {
        float s = kernel_uniform(12 + kind, tile * 8 + j, -30, 30);
        if (kind == 1 && tile < 2) s = -kLanesInf;  // starts with empty tiles
        if (kind == 2) s = -kLanesInf;              // nothing allowed
        if (kind == 3 && tile == 2 && j == 3) s = NAN;
        if (kind == 4) s = 3e38f;  // would overflow if scaled before the subtraction
        const VF old = m, vs = hn::Set(d, s);
        m = Recurrence::new_max(m, vs);
        const VF ref = Recurrence::reference(m), alpha = Recurrence::correction_in(unit, old, ref);
        const VF p = Recurrence::prob_in(unit, vs, ref);
        l = Recurrence::new_sum(l, alpha, p);
        acc = hn::MulAdd(p, hn::Set(d, (float)j), Recurrence::rescale(acc, alpha));
        if (kind == 3 || s == -kLanesInf) continue;
        if (s > top) {
          const double move = s == top ? 1 : exp(top - s);
          sum *= move;
          value *= move;
          top = s;
        }
        sum += exp(s - top);
        value += j * exp(s - top);
      }
    const float o = hn::GetLane(hn::Mul(acc, Recurrence::inverse_sum(l)));
    const float lse = hn::GetLane(Recurrence::log_sum_exp_in(nat, m, l));
    if (kind == 2)
      kernel_check(o == 0 && lse == -kLanesInf, "empty row: O %g LSE %g", o, lse);
    else if (kind == 3)
      kernel_check(isnan(o) && isnan(lse), "NaN score: O %g LSE %g", o, lse);
    else
      kernel_check(fabs(o - value / sum) < 1e-5 && kernel_ulps(lse, top + log(sum)) < 4,
                   "kind %d: O %g, not %g; LSE %.9g, not %.9g", kind, o, value / sum, lse,
                   top + log(sum));
  }
  const VF empty = hn::Set(d, -kLanesInf), five = hn::Set(d, 5.0f);
  kernel_check(hn::GetLane(Recurrence::weight(empty, empty)) == 0,
               "weight of an empty part among none");
  kernel_check(hn::GetLane(Recurrence::weight(empty, five)) == 0, "weight of an empty part");
  kernel_check(hn::GetLane(Recurrence::weight(five, five)) == 1, "weight of the largest part");
  kernel_check(hn::GetLane(Recurrence::merged_lse(five, nat)) == 5,
               "LSE of one part and empty ones");
  kernel_check(hn::GetLane(Recurrence::merged_lse(empty, hn::Zero(d))) == -kLanesInf,
               "LSE of empty parts");
}

void run_lanes() {
  test_exp2();
  test_exp2_product();
  test_log();
  test_tanh();
  test_conversion<F16>("f16", tsri_f16_to_float, tsri_float_to_f16);
  test_conversion<BF16>("bf16", tsri_bf16_to_float, tsri_float_to_bf16);
  test_recurrence();
}

// NOLINTNEXTLINE(google-readability-namespace-comments)
}  // namespace HWY_NAMESPACE
}  // namespace tessera
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
  #include "backends/cpu/targets.h"

namespace tessera {
HWY_EXPORT(run_lanes);
}

void kernel_test_lanes(int64_t target) {
  TSRI_CPU_FUNCTION(tessera, run_lanes, target)();
}
#endif
