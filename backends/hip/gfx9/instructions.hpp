// SPDX-License-Identifier: Apache-2.0
//
// The matrix instructions of gfx90a and gfx942 that the units are made of: the compiler's builtins on a
// device, and in the emulated build what AMD's matrix instruction calculator says they do. Fragments are
// arrays of 32-bit registers of one lane, two 16-bit elements in each.
#ifndef TESSERA_BACKENDS_HIP_GFX9_INSTRUCTIONS_HPP_
#define TESSERA_BACKENDS_HIP_GFX9_INSTRUCTIONS_HPP_

#include "common/gpu/element.hpp"
#include "common/gpu/platform.hpp"

namespace tessera {
namespace gpu {

#if defined(TSRI_GPU_AMD)

typedef _Float16 MfmaHalfs __attribute__((ext_vector_type(4)));
typedef short MfmaShorts __attribute__((ext_vector_type(4)));
typedef float MfmaAcc16 __attribute__((ext_vector_type(4)));
typedef float MfmaAcc32 __attribute__((ext_vector_type(16)));
struct MfmaWords {
  uint32_t w[2];
};

// c += a b: V_MFMA_F32_16X16X16 for 4 elements of c per lane, V_MFMA_F32_32X32X8 for 16.
TSRI_DEVICE void mfma(BFloat16, float (&c)[4], const uint32_t a[2], const uint32_t b[2]) {
  MfmaAcc16 x = {c[0], c[1], c[2], c[3]};
  x = __builtin_amdgcn_mfma_f32_16x16x16bf16_1k(
      __builtin_bit_cast(MfmaShorts, MfmaWords{{a[0], a[1]}}),
      __builtin_bit_cast(MfmaShorts, MfmaWords{{b[0], b[1]}}), x, 0, 0, 0);
  TSRI_UNROLL
  for (int e = 0; e < 4; ++e) c[e] = x[e];
}
TSRI_DEVICE void mfma(Half, float (&c)[4], const uint32_t a[2], const uint32_t b[2]) {
  MfmaAcc16 x = {c[0], c[1], c[2], c[3]};
  x = __builtin_amdgcn_mfma_f32_16x16x16f16(
      __builtin_bit_cast(MfmaHalfs, MfmaWords{{a[0], a[1]}}),
      __builtin_bit_cast(MfmaHalfs, MfmaWords{{b[0], b[1]}}), x, 0, 0, 0);
  TSRI_UNROLL
  for (int e = 0; e < 4; ++e) c[e] = x[e];
}
TSRI_DEVICE void mfma(BFloat16, float (&c)[16], const uint32_t a[2], const uint32_t b[2]) {
  MfmaAcc32 x;
  TSRI_UNROLL
  for (int e = 0; e < 16; ++e) x[e] = c[e];
  x = __builtin_amdgcn_mfma_f32_32x32x8bf16_1k(
      __builtin_bit_cast(MfmaShorts, MfmaWords{{a[0], a[1]}}),
      __builtin_bit_cast(MfmaShorts, MfmaWords{{b[0], b[1]}}), x, 0, 0, 0);
  TSRI_UNROLL
  for (int e = 0; e < 16; ++e) c[e] = x[e];
}
TSRI_DEVICE void mfma(Half, float (&c)[16], const uint32_t a[2], const uint32_t b[2]) {
  MfmaAcc32 x;
  TSRI_UNROLL
  for (int e = 0; e < 16; ++e) x[e] = c[e];
  x = __builtin_amdgcn_mfma_f32_32x32x8f16(
      __builtin_bit_cast(MfmaHalfs, MfmaWords{{a[0], a[1]}}),
      __builtin_bit_cast(MfmaHalfs, MfmaWords{{b[0], b[1]}}), x, 0, 0, 0);
  TSRI_UNROLL
  for (int e = 0; e < 16; ++e) c[e] = x[e];
}
// V_MFMA_F32_16X16X4: a product of float32, rounded as fused multiply-adds are.
TSRI_DEVICE void mfma(float, float (&c)[4], float a, float b) {
  MfmaAcc16 x = {c[0], c[1], c[2], c[3]};
  x = __builtin_amdgcn_mfma_f32_16x16x4f32(a, b, x, 0, 0, 0);
  TSRI_UNROLL
  for (int e = 0; e < 4; ++e) c[e] = x[e];
}

#else

// Lane l = n g + r of an n x n product (n 16: kElements 4, n 32: kElements 16) holds A(r, 4 g + i) and
// B(4 g + i, r) for i < 4, and element e of D(8 (e / 4) + 4 g + e % 4, r).
template <class E, int kElements>
inline void mfma(E, float (&c)[kElements], const uint32_t a[2], const uint32_t b[2]) {
  constexpr int n = kElements == 4 ? 16 : 32, groups = 64 / n;
  const uint32_t mine[4] = {a[0], a[1], b[0], b[1]};
  const unsigned char *all = emulated_meet(n == 16 ? "mfma 16x16x16" : "mfma 32x32x8", mine, sizeof mine);
  const int column = lane_index() % n;
  for (int e = 0; e < kElements; ++e) {
    const int row = 8 * (e / 4) + 4 * (lane_index() / n) + e % 4;
    float sum = c[e];
    for (int k = 0; k < 4 * groups; ++k) {
      const uint32_t wa = met_word(all, k / 4 * n + row, k % 4 / 2);
      const uint32_t wb = met_word(all, k / 4 * n + column, 2 + k % 4 / 2);
      sum += (k & 1 ? E::high(wa) : E::low(wa)) * (k & 1 ? E::high(wb) : E::low(wb));
    }
    c[e] = sum;
  }
}

// Lane 16 g + r holds A(r, g) and B(g, r), and element e of D(4 g + e, r).
inline void mfma(float, float (&c)[4], float a, float b) {
  const uint32_t mine[2] = {float_bits(a), float_bits(b)};
  const unsigned char *all = emulated_meet("mfma 16x16x4 f32", mine, sizeof mine);
  const int g = lane_index() / 16, column = lane_index() % 16;
  for (int e = 0; e < 4; ++e)
    for (int k = 0; k < 4; ++k)
      c[e] = multiply_add(bits_float(met_word(all, 16 * k + 4 * g + e, 0)),
                          bits_float(met_word(all, 16 * k + column, 1)), c[e]);
}

#endif

} // namespace gpu
} // namespace tessera

#endif // TESSERA_BACKENDS_HIP_GFX9_INSTRUCTIONS_HPP_
