// SPDX-License-Identifier: Apache-2.0
//
// Per-target pieces of the CPU backend against scalar arithmetic, on every Highway target that this
// build has and this processor can run: 2^x, ln, tanh; conversions, exhaustively; the score steps
// and the keep bits; the micro-kernels, every block shape against one another to the bit; the
// recurrence. test_cpu_tasks.cc goes on with whole tasks.
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/kernels/kernel_test.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "tests/kernels/test_cpu_kernels.cc"
#include "hwy/foreach_target.h"
// After foreach_target.h, which includes this file once per target.
#include "hwy/highway.h"

#include "backends/cpu/convert-inl.h"
#include "backends/cpu/output_rows-inl.h"
#include "backends/cpu/row_policy-inl.h"
#include "backends/cpu/score-inl.h"
#include "backends/cpu/tile-inl.h"
#include "common/score.h"

HWY_BEFORE_NAMESPACE();
namespace tessera {
namespace HWY_NAMESPACE {

constexpr size_t kMost = 4096;  // floats of a test buffer
constexpr float kInf = __builtin_inff();

HWY_ALIGN_MAX static float in_[kMost], out_[kMost], other_[kMost];

// Score steps against common/score.h and common/mask.h on a tile of n keys.
static void test_score_steps() {
  const size_t lanes = hn::Lanes(DF()), n = 13;
  HWY_ALIGN_MAX float slope[3 * 64];
  HWY_ALIGN_MAX int32_t lo[3 * 64], hi[3 * 64];
  for (size_t vectors = 1; vectors <= 3; ++vectors) {
    const size_t width = vectors * lanes, count = n * width;
    if (count > kMost || width > 3 * 64) continue;
    for (size_t i = 0; i < count; ++i) in_[i] = kernel_uniform(4, i, -60.0f, 60.0f);
    for (size_t i = 0; i < count; ++i) other_[i] = kernel_uniform(5, i, -3.0f, 3.0f);
    for (size_t r = 0; r < width; ++r) {
      slope[r] = kernel_uniform(6, r, 0.0f, 1.0f);
      lo[r] = 1900000000 - static_cast<int32_t>(r * 7);
      if (r % 2) lo[r] = static_cast<int32_t>(r) - 5;
    }
    memcpy(out_, in_, count * sizeof(float));
    scale_tile(out_, count, 0.125f);
    softcap_tile(out_, count, 7.0f);
    add_tile(out_, other_, count);
    alibi_tile(out_, n, width, slope, lo);
    for (size_t j = 0; j < n; ++j)
      for (size_t r = 0; r < width; ++r) {
        const int64_t away = static_cast<int64_t>(lo[r]) - static_cast<int64_t>(j);
        const float want = tsri_score_f32(in_[j * width + r], 0.125f, 7.0f, other_[j * width + r],
                                          slope[r], away < 0 ? -away : away);
        const float got = out_[j * width + r];
        kernel_check(fabs((double)got - want) <= 2e-6 + 2e-7 * fabs((double)want),
                     "score step: %.9g, not %.9g", got, want);
      }
    // Intervals, and a mask of 0 and 1; both select, whatever is hidden.
    for (size_t r = 0; r < width; ++r) {
      lo[r] = static_cast<int32_t>(r % 14);
      hi[r] = static_cast<int32_t>(r % 14 + r % 5);
    }
    for (int32_t prefix = 0; prefix <= 13; prefix += 3) {
      for (size_t i = 0; i < count; ++i) out_[i] = i % 7 == 3 ? kInf : i % 11 == 5 ? NAN : in_[i];
      for (size_t i = 0; i < count; ++i)
        other_[i] = kernel_uniform(7, i, 0.0f, 1.0f) < 0.7f ? 1.0f : 0.0f;
      interval_tile(out_, zones_whole(n, vectors), width, prefix, lo, hi);
      mask_tile(out_, other_, count);
      for (size_t j = 0; j < n; ++j)
        for (size_t r = 0; r < width; ++r) {
          const tsri_mask_row row = {prefix, HWY_MAX(lo[r], prefix), hi[r]};
          const size_t i = j * width + r;
          const bool on = tsri_mask_allows(&row, static_cast<int64_t>(j)) && other_[i] != 0;
          kernel_check(on == !(out_[i] == -kInf), "mask: key %zu row %zu prefix %d", j, r,
                       (int)prefix);
        }
    }
    HWY_ALIGN_MAX float top[3 * 64];
    for (size_t r = 0; r < width; ++r) top[r] = -kInf;
    if (vectors == 1) max_tile<1>(in_, n, top);
    if (vectors == 2) max_tile<2>(in_, n, top);
    if (vectors == 3) max_tile<3>(in_, n, top);
    for (size_t r = 0; r < width; ++r) {
      float want = -kInf;
      for (size_t j = 0; j < n; ++j) want = fmaxf(want, in_[j * width + r]);
      kernel_check(top[r] == want, "max of row %zu", r);
    }
  }
}

static void test_dropout() {
  const size_t lanes = hn::Lanes(DF()), width = 2 * lanes, n = 11;
  HWY_ALIGN_MAX uint32_t query[2 * 64], head[2 * 64];
  if (width > 2 * 64) return;
  const tsri_dropout_key key = tsri_dropout_key_make(0x123456789abcdefULL, 77);
  for (size_t r = 0; r < width; ++r) {
    query[r] = static_cast<uint32_t>(r * 2654435761u) & 0x7fffffffu;
    head[r] = static_cast<uint32_t>(r * 40503u);
  }
  const uint64_t thresholds[] = {0,           1,           0x40000000u, 0x80000000u,
                                 0xfffffffeu, 0xffffffffu, 1ull << 32};
  for (uint64_t threshold : thresholds) {
    for (size_t i = 0; i < n * width; ++i) out_[i] = in_[i] = kernel_uniform(8, i, 0.1f, 1.0f);
    const int64_t first = (int64_t{1} << 31) - 64;
    dropout_tile(out_, n, width, first, query, head, key, threshold, 1.25f);
    for (size_t j = 0; j < n; ++j)
      for (size_t r = 0; r < width; ++r) {
        const int keep = tsri_dropout_keep(key, threshold, head[r], query[r], first + (int64_t)j);
        kernel_check(out_[j * width + r] == (keep ? in_[j * width + r] * 1.25f : 0.0f),
                     "keep bit of key %zu row %zu threshold %llx", j, r,
                     (unsigned long long)threshold);
      }
  }
}

// Lines of masks and bias.
static void test_lines() {
  static uint8_t bytes[256];
  for (size_t i = 0; i < sizeof bytes; ++i)
    bytes[i] = kernel_uniform(9, i, 0, 1) < 0.5f ? 0 : (uint8_t)i;
  tsr_layout layout;
  memset(&layout, 0, sizeof layout);
  for (int bits = 0; bits <= 1; ++bits)
    for (int64_t step = 0; step <= (bits ? 1 : 3); ++step) {
      layout.dtype = bits ? TSR_DTYPE_BIT : TSR_DTYPE_U8;
      layout.stride[3] = step;
      const size_t ones = mask_line(layout, bytes, 13, 61, out_);
      size_t want = 0;
      for (int64_t j = 0; j < 61; ++j) {
        const int on = tsri_mask_element(bytes, bits, 13 + j * step);
        want += on ? 1 : 0;
        kernel_check(out_[j] == (on ? 1.0f : 0.0f), "mask line, element %d", (int)j);
      }
      kernel_check(ones == want, "mask line counts %zu, not %zu", ones, want);
    }
  for (int64_t block = 1; block <= 70; block += 3) {
    layout.dtype = TSR_DTYPE_U8;
    layout.stride[3] = 2;
    for (size_t j = 0; j < 61; ++j) out_[j] = j % 3 ? 1.0f : 0.0f;
    const size_t cleared = block_mask_line(layout, bytes, 5, block, 40, 61, out_);
    size_t want = 0;
    for (int64_t j = 0; j < 61; ++j) {
      const bool on = bytes[5 + (40 + j) / block * 2] != 0, was = j % 3 != 0;
      want += was && !on ? 1 : 0;
      kernel_check(out_[j] == (was && on ? 1.0f : 0.0f), "block mask line, block %d", (int)block);
    }
    kernel_check(cleared == want, "block mask line counts %zu, not %zu", cleared, want);
  }
}

// Scores and outputs of one shape; rows of the result that belong to NV vectors.
template <int NV>
void tile_of(const float *k, int64_t ldk, size_t n, const float *q, size_t dim, const float *v,
             int64_t ldv, size_t dim_v, float *s, float *o) {
  const DF d;
  const size_t lanes = hn::Lanes(d);
  HWY_ALIGN_MAX float m[3 * HWY_MAX_BYTES / sizeof(float)];
  for (size_t r = 0; r < NV * lanes; ++r) m[r] = -kInf;
  score_tile<NV>(k, ldk, n, q, dim, s);
  max_tile<NV>(s, n, m);
  float *at = s + n * NV * lanes;
  const VF r0 = Recurrence::reference(hn::Load(d, m));
  const VF r1 = NV > 1 ? Recurrence::reference(hn::Load(d, m + lanes)) : r0;
  const VF r2 = NV > 2 ? Recurrence::reference(hn::Load(d, m + 2 * lanes)) : r0;
  VF t0 = r0, t1 = r0, t2 = r0;
  softmax_tile<NV>(s, n, hn::Set(d, 0.25f), r0, r1, r2, t0, t1, t2);
  const VF a = hn::Set(d, 0.5f);
  for (size_t i = 0; i < dim_v * NV * lanes; ++i) o[i] = 1.0f;
  output_tile<NV>(v, ldv, n, s, dim_v, o, a, a, a);
  hn::Store(t0, d, at);
  if (NV > 1) hn::Store(t1, d, at + lanes);
  if (NV > 2) hn::Store(t2, d, at + 2 * lanes);
}

// A row's bits do not depend on the number of vectors, its lane, the keys after it or the dims
// after.
static void test_micro_kernels() {
  const size_t lanes = hn::Lanes(DF());
  const size_t dims[] = {1, 2, 3, 7, 8, 9, 37, 64, 128, 129, 200};
  const size_t keys[] = {1, 3, 8, 9, 24};
  const size_t most = 3 * lanes;
  float *q = nullptr, *s = nullptr, *o = nullptr;
  if (posix_memalign(reinterpret_cast<void **>(&q), 256, 200 * most * 4) ||
      posix_memalign(reinterpret_cast<void **>(&s), 256, 40 * most * 4) ||
      posix_memalign(reinterpret_cast<void **>(&o), 256, 200 * most * 4)) {
    kernel_check(false, "no memory");
    return;
  }
  for (size_t dim : dims)
    for (size_t n : keys) {
      const size_t ld = dim + 3;
      // Exactly what is used, so that address checkers see a read beyond a row's last element.
      float *k = static_cast<float *>(malloc(((n - 1) * ld + dim) * 4));
      for (size_t i = 0; i < (n - 1) * ld + dim; ++i) k[i] = kernel_uniform(10, i, -1, 1);
      for (size_t vectors = 1; vectors <= 3; ++vectors) {
        const size_t width = vectors * lanes;
        for (size_t x = 0; x < dim; ++x)
          for (size_t r = 0; r < width; ++r)
            q[x * width + r] = kernel_uniform(11, x * 5 + r % 5, -1, 1);
        if (vectors == 1) tile_of<1>(k, ld, n, q, dim, k, ld, dim, s, o);
        if (vectors == 2) tile_of<2>(k, ld, n, q, dim, k, ld, dim, s, o);
        if (vectors == 3) tile_of<3>(k, ld, n, q, dim, k, ld, dim, s, o);
        for (size_t r = 0; r < width; ++r) {
          double p[24], sum = 0, top = -1e300;
          for (size_t j = 0; j < n; ++j) {
            p[j] = 0;
            for (size_t x = 0; x < dim; ++x) p[j] += (double)q[x * width + r] * k[j * ld + x];
            top = fmax(top, p[j]);
          }
          for (size_t j = 0; j < n; ++j) sum += p[j] = exp2((p[j] - top) * 0.25);
          kernel_check(fabs(s[n * width + r] - sum) < 1e-5 * sum,
                       "dim %zu keys %zu: sum %g, not %g", dim, n, s[n * width + r], sum);
          for (size_t x = 0; x < dim; ++x) {
            double want = 0.5;
            for (size_t j = 0; j < n; ++j) want += p[j] * k[j * ld + x];
            kernel_check(fabs(o[x * width + r] - want) < 2e-5,
                         "dim %zu keys %zu vectors %zu: %g, not %g", dim, n, vectors,
                         o[x * width + r], want);
            // Rows r and r % 5 have equal inputs.
            kernel_check(
                memcmp(&o[x * width + r], &o[x * width + r % 5 % width], 4) == 0 || lanes == 1,
                "dim %zu keys %zu vectors %zu: lane %zu differs", dim, n, vectors, r);
          }
        }
        // The first row again, alone against the first vector of wider tiles.
        for (size_t x = 0; x < dim; ++x) {
          if (vectors == 1) other_[x] = o[x * width];
          kernel_check(memcmp(&other_[x], &o[x * width], 4) == 0,
                       "dim %zu keys %zu: %zu vectors differ from one", dim, n, vectors);
        }
      }
      free(k);
    }
  free(q);
  free(s);
  free(o);
}

// A tile of which each vector needs a run of keys: the same bits as with zeros in the rest of P^T,
// and nothing outside the runs is read. Every pair of runs that does not fall is tried.
static void test_zones() {
  const DF d;
  const size_t lanes = hn::Lanes(d), width = 3 * lanes, n = 21, dim = 15, ld = 17;
  if ((n + 8) * width > kMost || dim * width > kMost) return;
  static float k[21 * 17];
  HWY_ALIGN_MAX static float p[kMost], zeroed[kMost], top[3 * HWY_MAX_BYTES / sizeof(float)];
  for (size_t i = 0; i < n * ld; ++i) k[i] = kernel_uniform(12, i, -1, 1);
  for (size_t i = 0; i < dim * width; ++i) in_[i] = kernel_uniform(13, i, -1, 1);
  const size_t ends[] = {0, 8, 16, n};
  const VF one = hn::Set(d, 1.0f), zero = hn::Zero(d);
  for (size_t code = 0; code < 4096; ++code) {
    Zones z;
    bool falls = false;
    for (size_t v = 0; v < 3; ++v) {
      z.from[v] = ends[code >> (4 * v) & 3], z.to[v] = ends[code >> (4 * v + 2) & 3];
      falls = falls || z.to[v] < z.from[v] ||
              (v > 0 && (z.from[v] < z.from[v - 1] || z.to[v] < z.to[v - 1]));
    }
    if (falls) continue;
    zones_finish(n, 3, z);
    for (size_t i = 0; i < (n + 8) * width; ++i) out_[i] = NAN;
    score_zones<3>(k, ld, z, in_, dim, out_);
    score_tile<3>(k, ld, n, in_, dim, zeroed);
    for (size_t r = 0; r < width; ++r) top[r] = -kInf;
    max_zones(out_, z, width, top);
    for (size_t j = 0; j < n; ++j)
      for (size_t r = 0; r < width; ++r) {
        const size_t i = j * width + r;
        const bool needed = z.from[r / lanes] <= j && j < z.to[r / lanes];
        if (needed)
          kernel_check(out_[i] == zeroed[i] && top[r] >= out_[i], "zones %zx: score", code);
        else
          out_[i] = NAN, zeroed[i] = -kInf;
      }
    VF sum0, sum1, sum2;
    softmax_tile<3>(zeroed, n, one, zero, zero, zero, sum0, sum1, sum2);
    const VF sum = softmax_vector(out_ + lanes, width, z.from[1], z.to[1], one, zero);
    softmax_vector(out_, width, z.from[0], z.to[0], one, zero);
    softmax_vector(out_ + 2 * lanes, width, z.from[2], z.to[2], one, zero);
    kernel_check(hn::GetLane(sum) == hn::GetLane(sum1), "zones %zx: sum", code);
    for (size_t i = 0; i < dim * width; ++i) p[i] = other_[i] = 0.5f;
    output_zones<3>(k, ld, z, out_, dim, p, one, one, one);
    output_tile<3>(k, ld, n, zeroed, dim, other_, one, one, one);
    for (size_t i = 0; i < dim * width; ++i)
      kernel_check(p[i] == other_[i], "zones %zx: output %zu is %g, not %g", code, i, p[i],
                   other_[i]);
    const Zones part = zones_cut(z, 8, n, 3);
    for (size_t v = 0; v < 3; ++v)
      for (size_t j = 8; j < n; ++j)
        kernel_check((z.from[v] <= j && j < z.to[v]) ==
                         (part.from[v] <= j - 8 && j - 8 < part.to[v]),
                     "zones %zx: part of a tile", code);
  }
}

// Outputs in rows against outputs in lanes, to the bit: the first step of a row, one that follows, the last
// one; n = 0 of an empty row. Rows of O lie apart, and nothing beside them is written.
static void test_output_rows() {
  constexpr size_t R = kOutputRows > 0 ? kOutputRows : 1;
  const DF d;
  const size_t lanes = hn::Lanes(d), dim = 3 * lanes, ld = dim + 5, apart = dim + 3;
  if (21 * ld > kMost || R * apart > kMost) return;
  HWY_ALIGN_MAX static float p[kMost], o_t[kMost], alphas[HWY_MAX_BYTES / sizeof(float)];
  for (size_t i = 0; i < kMost; ++i) in_[i] = kernel_uniform(14, i, -1, 1);
  for (size_t i = 0; i < kMost; ++i) p[i] = kernel_uniform(15, i, 0, 1);
  for (size_t i = 0; i < kMost; ++i) o_t[i] = kernel_uniform(16, i, -1, 1);
  for (size_t r = 0; r < lanes; ++r) alphas[r] = 0.5f + (float)r;
  for (size_t n : {size_t{0}, size_t{1}, size_t{8}, size_t{21}})
    for (int code = 0; code < 8; ++code) {
      const bool follows = code & 1, ends = code & 2, empty = code & 4;
      const VF alpha = follows ? hn::Load(d, alphas) : hn::Zero(d);
      for (size_t r0 = 0; r0 + R <= lanes; r0 += R) {
        for (size_t i = 0; i < kMost; ++i) other_[i] = -7.0f;
        OutputRows rows;
        bool none[R];
        for (size_t r = 0; r < R; ++r) {
          rows.o[r] = other_ + r * apart;
          none[r] = empty && r % 2;
          for (size_t x = 0; x < dim; ++x) rows.o[r][x] = o_t[x * lanes + r0 + r];
        }
        rows.alpha = follows ? alphas + r0 : nullptr;
        rows.factor = ends ? alphas + r0 : nullptr;
        rows.empty = none;
        output_rows_block<2, R>(in_, static_cast<int64_t>(ld), n, p + r0, lanes, 0, rows);
        output_rows_block<1, R>(in_, static_cast<int64_t>(ld), n, p + r0, lanes, 2 * lanes, rows);
        memcpy(out_, o_t, dim * lanes * sizeof(float));
        output_tile<1>(in_, static_cast<int64_t>(ld), n, p, dim, out_, alpha, alpha, alpha);
        for (size_t r = 0; r < R; ++r)
          for (size_t x = 0; x < apart; ++x) {
            float want = x < dim ? out_[x * lanes + r0 + r] : -7.0f;
            if (x < dim && ends) want = none[r] ? 0.0f : want * alphas[r0 + r];
            kernel_check(other_[r * apart + x] == want, "output rows, n %zu, code %d: %g, not %g", n,
                         code, other_[r * apart + x], want);
          }
      }
    }
}

// Whole groups of rows, some of them one and the same, into columns and back.
static void test_rows() {
  const DF d;
  const size_t lanes = hn::Lanes(d), width = 2 * HWY_MAX(lanes, kRows);
  for (size_t n = 1; n <= 19 && kRows * n <= kMost && n * width <= kMost; ++n) {
    const float *rows[kRows];
    float *back[kRows];
    for (size_t i = 0; i < kRows * n; ++i) in_[i] = (float)i, other_[i] = -1.0f;
    for (size_t r = 0; r < kRows; ++r) rows[r] = in_ + r * n, back[r] = other_ + r * n;
    rows_to_lanes(rows, n, out_ + kRows, width);
    for (size_t x = 0; x < n; ++x)
      for (size_t r = 0; r < kRows; ++r)
        kernel_check(out_[x * width + kRows + r] == in_[r * n + x], "rows to lanes, n %zu", n);
    const auto twice = [](VF v) HWY_ATTR { return hn::Add(v, v); };
    if (lanes == kRows) before_rows(out_ + kRows, width, n, twice);
    lanes_to_rows(out_ + kRows, width, n, back, twice);
    const float factor = lanes == kRows || kWholeVectors ? 2.0f : 1.0f;
    for (size_t i = 0; i < kRows * n; ++i)
      kernel_check(other_[i] == factor * in_[i], "lanes to rows, n %zu", n);
  }
}

static void test_transposes() {
  for (size_t n = 1; n <= 19; ++n) {
    const size_t width = 4 * kGroup;
    for (size_t i = 0; i < kGroup * n; ++i) in_[i] = (float)i;
    const float *rows[4] = {in_, in_ + n, in_ + 2 * n, in_ + 3 * n};
    memset(out_, 0, sizeof out_);
    rows_to_columns(rows, n, out_ + kGroup, width);
    for (size_t x = 0; x < n; ++x)
      for (size_t r = 0; r < kGroup; ++r)
        kernel_check(out_[x * width + kGroup + r] == in_[r * n + x], "rows to columns, n %zu", n);
    columns_to_rows(out_ + kGroup, width, n, other_, n + 5);
    for (size_t r = 0; r < kGroup; ++r)
      for (size_t x = 0; x < n; ++x)
        kernel_check(other_[r * (n + 5) + x] == in_[r * n + x], "columns to rows, n %zu", n);
  }
}

void run_all() {
  test_score_steps();
  test_dropout();
  test_lines();
  test_micro_kernels();
  test_zones();
  test_output_rows();
  test_rows();
  test_transposes();
}

// NOLINTNEXTLINE(google-readability-namespace-comments)
}  // namespace HWY_NAMESPACE
}  // namespace tessera
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
  #include "backends/cpu/targets.h"

namespace tessera {
HWY_EXPORT(run_all);
}

const char *kernel_test_target = "";
int64_t kernel_test_checks = 0, kernel_test_failures = 0;

void kernel_check(bool ok, const char *format, ...) {
  ++kernel_test_checks;
  if (ok) return;
  if (++kernel_test_failures > 40) return;
  va_list list;
  va_start(list, format);
  fprintf(stderr, "FAIL %s: ", kernel_test_target);
  vfprintf(stderr, format, list);
  fprintf(stderr, "\n");
  va_end(list);
}

float kernel_uniform(uint64_t stream, uint64_t index, float lo, float hi) {
  uint64_t z = (stream << 40) + index + 0x9e3779b97f4a7c15ULL;  // splitmix64's mixing of a counter
  z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9ULL;
  z = (z ^ (z >> 27)) * 0x94d049bb133111ebULL;
  z ^= z >> 31;
  return lo + (hi - lo) * static_cast<float>(z >> 40) * 0x1p-24f;
}

double kernel_ulps(float a, double b) {
  if (isnan(a) && isnan(b)) return 0;
  if (isnan(a) || isnan(b)) return 1e30;
  int exponent;
  frexp(b, &exponent);
  return fabs(a - b) / ldexp(1.0, exponent - 24 < -149 ? -149 : exponent - 24);
}

int main() {
  int64_t targets = hwy::SupportedTargets() & HWY_TARGETS;
  for (int32_t index = 0; targets != 0; targets &= targets - 1, ++index) {
    const int64_t target = targets & -targets;
    const int64_t before = kernel_test_checks;
    kernel_test_target = hwy::TargetName(target);
    kernel_test_lanes(target);
    TSRI_CPU_FUNCTION(tessera, run_all, target)();
    kernel_test_gradients(target);
    kernel_test_decode(target);
    kernel_test_tasks(index);
    printf("%-8s %lld checks\n", kernel_test_target, (long long)(kernel_test_checks - before));
  }
  printf("%lld checks, %lld failures\n", (long long)kernel_test_checks,
         (long long)kernel_test_failures);
  return kernel_test_failures != 0 || kernel_test_checks == 0;
}
#endif
