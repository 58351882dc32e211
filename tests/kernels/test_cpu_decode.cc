// SPDX-License-Identifier: Apache-2.0
//
// Pieces of the split kernel below its tasks, per Highway target: 8-bit elements against
// common/dtype.h code by code, bfloat16 in halves, the folds that turn sums over phases into
// scores, and the scores and outputs of the narrow form against plain sums.
#include <math.h>
#include <string.h>

#include <vector>

#include "tests/kernels/kernel_test.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "tests/kernels/test_cpu_decode.cc"
#include "hwy/foreach_target.h"
// After foreach_target.h, which includes this file once per target.
#include "hwy/highway.h"

#include "backends/cpu/decode-inl.h"
#include "backends/cpu/decode_eight-inl.h"

HWY_BEFORE_NAMESPACE();
namespace tessera {
namespace HWY_NAMESPACE {

template <class E>
void check_codes(const char *name, float (*expected)(uint8_t)) {
  typename E::T codes[256 + HWY_MAX_BYTES];
  HWY_ALIGN_MAX float out[HWY_MAX_BYTES / sizeof(float)];
  const size_t lanes = hn::Lanes(DF());
  for (size_t c = 0; c < 256 + HWY_MAX_BYTES; ++c) codes[c] = static_cast<typename E::T>(c % 256);
  for (size_t c = 0; c < 256; c += lanes) {
    hn::Store(E::load(codes + c), DF(), out);
    for (size_t l = 0; l < lanes && c + l < 256; ++l) {
      const float want = expected(static_cast<uint8_t>(c + l));
      kernel_check(memcmp(&out[l], &want, 4) == 0 || (out[l] != out[l] && want != want),
                   "%s of 0x%02x is %g, not %g", name, (unsigned)(c + l), out[l], want);
      kernel_check(E::get(codes[c + l]) == want || want != want, "%s of 0x%02x, scalar", name,
                   (unsigned)(c + l));
    }
  }
}

float int8_value(uint8_t code) {
  return static_cast<float>(static_cast<int8_t>(code));
}

#if HWY_TARGET != HWY_SCALAR
void check_halves() {
  const size_t lanes = hn::Lanes(DF());
  std::vector<uint16_t> row(2 * lanes);
  HWY_ALIGN_MAX float even[HWY_MAX_BYTES / sizeof(float)], odd[HWY_MAX_BYTES / sizeof(float)];
  for (size_t x = 0; x < row.size(); ++x)
    row[x] = tsri_float_to_bf16(kernel_uniform(50, x, -9.0f, 9.0f));
  VF a, b;
  load_halves(row.data(), a, b);
  hn::Store(a, DF(), even);
  hn::Store(b, DF(), odd);
  for (size_t x = 0; x < row.size(); ++x) {
    const size_t place = place_of(x, lanes);
    const float got = place < lanes ? even[place] : odd[place - lanes];
    kernel_check(got == tsri_bf16_to_float(row[x]), "halves: element %d", (int)x);
  }
}

// Memory of a vector from a place on where any vector may be stored.
constexpr size_t kSlack = HWY_MAX_BYTES / sizeof(float);
float *aligned(std::vector<float> &memory) {
  const uintptr_t at = reinterpret_cast<uintptr_t>(memory.data());
  return memory.data() + (HWY_MAX_BYTES - at % HWY_MAX_BYTES) % HWY_MAX_BYTES / sizeof(float);
}

// R rows with P phases: scores and outputs of n keys of dim dims.
template <int R, int P>
void check_narrow(size_t n, size_t dim) {
  const DF d;
  const size_t lanes = hn::Lanes(d);
  if (static_cast<size_t>(R) * P != lanes || !can_repeat(lanes, P)) return;
  const size_t room = (n + 16) * lanes, columns = (dim + lanes - 1) / lanes;
  const size_t padded = HWY_MAX(columns * lanes, size_t{16});
  std::vector<float> q_memory(padded * R + kSlack), s_memory(room + kSlack);
  std::vector<float> o_memory(padded * R + kSlack);
  float *q = aligned(q_memory), *s = aligned(s_memory), *o = aligned(o_memory);
  std::vector<float> k((n + 16) * padded, 0.0f);
  std::vector<const void *> rows(n + 16), ahead((n + 16) * (padded / 8 + 8), k.data());
  for (size_t j = 0; j < n; ++j)
    for (size_t x = 0; x < dim; ++x) k[j * padded + x] = kernel_uniform(51, j * dim + x, -1, 1);
  for (size_t j = 0; j < n + 16; ++j) rows[j] = &k[HWY_MIN(j, n - 1) * padded];
  for (size_t r = 0; r < R; ++r)
    for (size_t x = 0; x < dim; ++x)
      q[x / P * lanes + r * P + x % P] = kernel_uniform(52, r * dim + x, -1, 1);
  score_narrow<P, true>(rows.data(), n, q, padded, s, ahead.data());
  for (size_t j = 0; j < n; ++j)
    for (size_t r = 0; r < R; ++r) {
      double want = 0;
      for (size_t x = 0; x < dim; ++x)
        want += static_cast<double>(k[j * padded + x]) * kernel_uniform(52, r * dim + x, -1, 1);
      const float got = s[j / P * lanes + r * P + j % P];
      kernel_check(fabs(got - want) < 1e-5, "score %dx%d [%d][%d] of %d is %g, not %g", R, P,
                   (int)r, (int)j, (int)dim, got, want);
    }
  // Outputs from the scores as weights; O before is 1 and alpha depends on the row.
  HWY_ALIGN_MAX float alpha[HWY_MAX_BYTES / sizeof(float)];
  for (size_t l = 0; l < lanes; ++l) alpha[l] = 1.0f + static_cast<float>(l / P);
  for (size_t x = 0; x < R * padded; ++x) o[x] = 1.0f;
  output_narrow<R, P, F32>(rows.data(), n, s, columns, o, padded, alpha, ahead.data(),
                          false);
  for (size_t r = 0; r < R; ++r)
    for (size_t x = 0; x < dim; ++x) {
      double want = 1.0 + static_cast<double>(r);
      for (size_t j = 0; j < n; ++j)
        want += static_cast<double>(s[j / P * lanes + r * P + j % P]) * k[j * padded + x];
      kernel_check(fabs(o[r * padded + x] - want) < 1e-3, "output %dx%d [%d][%d] is %g, not %g", R,
                   P, (int)r, (int)x, o[r * padded + x], want);
    }
  // Folds over phases.
  HWY_ALIGN_MAX float lane[HWY_MAX_BYTES / sizeof(float)], sum[HWY_MAX_BYTES / sizeof(float)];
  HWY_ALIGN_MAX float most[HWY_MAX_BYTES / sizeof(float)];
  for (size_t l = 0; l < lanes; ++l) lane[l] = static_cast<float>((l * 7) % 16);
  hn::Store(sum_phases<P>(hn::Load(d, lane)), d, sum);
  hn::Store(max_phases<P>(hn::Load(d, lane)), d, most);
  for (size_t l = 0; l < lanes; ++l) {
    float total = 0, top = -1;
    for (size_t e = 0; e < P; ++e) {
      total += lane[l / P * P + e];
      top = HWY_MAX(top, lane[l / P * P + e]);
    }
    kernel_check(sum[l] == total && most[l] == top, "phases %d: lane %d", P, (int)l);
  }
}

template <int R, int P>
void check_shapes() {
  for (const size_t n : {1, 5, 8, 16, 33})
    for (const size_t dim : {1, 16, 40, 80, 128, 600}) check_narrow<R, P>(n, dim);
}
#endif

#if TSRI_CPU_EIGHT
// The scores of 8 rows: K as it is stored, any number of keys, the last row repeated.
template <class E>
void check_eight(const char *name, size_t n, size_t dim) {
  using T = typename E::T;
  const size_t lanes = 16, pad = kPad;
  std::vector<float> q_memory(dim * 8 + kSlack), s_memory((n + 16) * 8 + kSlack);
  std::vector<float> copy_memory(16 * (dim + pad) + kSlack);
  float *q = aligned(q_memory), *s = aligned(s_memory), *copies = aligned(copy_memory);
  std::vector<T> k(n * dim);
  std::vector<const void *> rows(n + 16);
  for (size_t x = 0; x < n * dim; ++x) {
    const float value = kernel_uniform(53, x, -9, 9);
    if constexpr (sizeof(T) == 1)
      k[x] = static_cast<T>(value * 14);
    else
      k[x] = E::put(value);
  }
  for (size_t j = 0; j < n + 16; ++j) rows[j] = &k[HWY_MIN(j, n - 1) * dim];
  const bool halves = E::kDtype == TSR_DTYPE_BF16;
  for (size_t r = 0; r < 8; ++r)
    for (size_t x = 0; x < dim; ++x) {
      const size_t at = halves ? place_of(x, lanes) : x;
      q[at / 4 * 32 + r * 4 + at % 4] = kernel_uniform(54, r * dim + x, -1, 1);
    }
  score_eight<E>(rows.data(), rows.data(), n, dim, q, copies, s);
  for (size_t j = 0; j < n; ++j)
    for (size_t r = 0; r < 8; ++r) {
      double want = 0, size = 0;
      for (size_t x = 0; x < dim; ++x) {
        const double term = static_cast<double>(E::get(k[j * dim + x])) *
                            kernel_uniform(54, r * dim + x, -1, 1);
        want += term, size += fabs(term);
      }
      const float got = s[j / 2 * lanes + r * 2 + j % 2];
      kernel_check(fabs(got - want) < 1e-6 * size, "%s: score [%d][%d] of %d is %g, not %g", name,
                   (int)r, (int)j, (int)dim, got, want);
    }
}
#endif

void run_decode() {
#if TSRI_CPU_EIGHT
  for (const size_t n : {1, 7, 16, 64})
    for (const size_t dim : {32, 64, 128, 160, 512}) {
      check_eight<F32>("f32", n, dim), check_eight<BF16>("bf16", n, dim);
      check_eight<F16>("f16", n, dim), check_eight<I8>("int8", n, dim);
    }
#endif
  check_codes<I8>("int8", int8_value);
  check_codes<E4M3>("e4m3", tsri_e4m3_to_float);
  check_codes<E5M2>("e5m2", tsri_e5m2_to_float);
#if HWY_TARGET != HWY_SCALAR
  check_halves();
  constexpr size_t kMost = hn::MaxLanes(DF());
  if constexpr (kMost >= 16) {
    check_shapes<8, 2>(), check_shapes<4, 4>(), check_shapes<2, 8>(), check_shapes<1, 16>();
  }
  if constexpr (kMost == 8 || (HWY_HAVE_SCALABLE && kMost > 8)) {
    check_shapes<4, 2>(), check_shapes<2, 4>(), check_shapes<1, 8>();
  }
  if constexpr (kMost == 4 || (HWY_HAVE_SCALABLE && kMost > 4)) {
    check_shapes<2, 2>(), check_shapes<1, 4>();
  }
#endif
}

// NOLINTNEXTLINE(google-readability-namespace-comments)
}  // namespace HWY_NAMESPACE
}  // namespace tessera
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
  #include "backends/cpu/targets.h"
namespace tessera {
HWY_EXPORT(run_decode);
}

void kernel_test_decode(int64_t target) {
  TSRI_CPU_FUNCTION(tessera, run_decode, target)();
}
#endif
