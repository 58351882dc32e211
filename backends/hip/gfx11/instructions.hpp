// SPDX-License-Identifier: Apache-2.0
//
// The matrix instruction of gfx11 and gfx12 (waves of 32) that the units are made of: the compiler's
// builtins on a device, and in the emulated build what AMD's matrix instruction calculator says they do.
// Fragments are arrays of 32-bit registers of one lane, two 16-bit elements in each.
#ifndef TESSERA_BACKENDS_HIP_GFX11_INSTRUCTIONS_HPP_
#define TESSERA_BACKENDS_HIP_GFX11_INSTRUCTIONS_HPP_

#include "common/gpu/element.hpp"
#include "common/gpu/platform.hpp"

namespace tessera {
namespace gpu {

// c += a b, 16x16x16. Operands of 8 registers: gfx11; of 4: gfx12.
#if defined(TSRI_GPU_AMD)

typedef float WmmaAcc __attribute__((ext_vector_type(8)));
typedef _Float16 WmmaHalfs __attribute__((ext_vector_type(16)));
typedef short WmmaShorts __attribute__((ext_vector_type(16)));
typedef _Float16 WmmaHalfs12 __attribute__((ext_vector_type(8)));
typedef short WmmaShorts12 __attribute__((ext_vector_type(8)));
template <int n>
struct WmmaWords {
  uint32_t w[n];
};

// The words of an operand as the vector type that the builtin takes.
template <class V, int n>
TSRI_DEVICE V wmma_operand(const uint32_t (&r)[n]) {
  WmmaWords<n> words;
  TSRI_UNROLL
  for (int i = 0; i < n; ++i) words.w[i] = r[i];
  return __builtin_bit_cast(V, words);
}
TSRI_DEVICE WmmaAcc wmma_acc(const float (&c)[8]) {
  return WmmaAcc{c[0], c[1], c[2], c[3], c[4], c[5], c[6], c[7]};
}
TSRI_DEVICE void wmma_result(float (&c)[8], WmmaAcc x) {
  TSRI_UNROLL
  for (int e = 0; e < 8; ++e) c[e] = x[e];
}

// Nothing moves across in the compiler's schedule: left to itself it reads operands so far ahead that
// registers run out.
TSRI_DEVICE void keep_order() { __builtin_amdgcn_sched_barrier(0); }

#if defined(__GFX11__)
TSRI_DEVICE void wmma(BFloat16, float (&c)[8], const uint32_t (&a)[8], const uint32_t (&b)[8]) {
  wmma_result(c, __builtin_amdgcn_wmma_f32_16x16x16_bf16_w32(
                     wmma_operand<WmmaShorts>(a), wmma_operand<WmmaShorts>(b), wmma_acc(c)));
}
TSRI_DEVICE void wmma(Half, float (&c)[8], const uint32_t (&a)[8], const uint32_t (&b)[8]) {
  wmma_result(c, __builtin_amdgcn_wmma_f32_16x16x16_f16_w32(
                     wmma_operand<WmmaHalfs>(a), wmma_operand<WmmaHalfs>(b), wmma_acc(c)));
}
#elif defined(__GFX12__)
TSRI_DEVICE void wmma(BFloat16, float (&c)[8], const uint32_t (&a)[4], const uint32_t (&b)[4]) {
  wmma_result(c, __builtin_amdgcn_wmma_f32_16x16x16_bf16_w32_gfx12(
                     wmma_operand<WmmaShorts12>(a), wmma_operand<WmmaShorts12>(b), wmma_acc(c)));
}
TSRI_DEVICE void wmma(Half, float (&c)[8], const uint32_t (&a)[4], const uint32_t (&b)[4]) {
  wmma_result(c, __builtin_amdgcn_wmma_f32_16x16x16_f16_w32_gfx12(
                     wmma_operand<WmmaHalfs12>(a), wmma_operand<WmmaHalfs12>(b), wmma_acc(c)));
}
#endif

#else

inline void keep_order() {}

// One element of an operand of n registers as contributed by a lane: A operands first, then B.
template <class E, int n>
inline float wmma_element(const unsigned char *all, int lane, bool b, int i) {
  const uint32_t w = met_word(all, lane, (b ? n : 0) + i / 2);
  return i & 1 ? E::high(w) : E::low(w);
}

// gfx11: lanes r and r + 16 both hold A(r, k) and B(k, r) as element k, and must hold the same; element e
// of lane l is D(2 e + l / 16, l % 16).
template <class E>
inline void wmma(E, float (&c)[8], const uint32_t (&a)[8], const uint32_t (&b)[8]) {
  uint32_t mine[16];
  memcpy(mine, a, sizeof a);
  memcpy(mine + 8, b, sizeof b);
  const unsigned char *all = emulated_meet("wmma gfx11", mine, sizeof mine);
  for (int i = 0; i < 16; ++i)
    if (met_word(all, lane_index() ^ 16, i) != mine[i])
      emulated_fail("wmma gfx11: the halves of a wave hold different operands");
  for (int e = 0; e < 8; ++e) {
    const int row = 2 * e + lane_index() / 16;
    float sum = c[e];
    for (int k = 0; k < 16; ++k)
      sum += wmma_element<E, 8>(all, row, false, k) * wmma_element<E, 8>(all, lane_index(), true, k);
    c[e] = sum;
  }
}

// gfx12: lane 16 g + r holds A(r, k) and B(k, r) for k = 8 (i / 4) + 4 g + i % 4 as element i; element e of
// it is D(8 g + e, r).
template <class E>
inline void wmma(E, float (&c)[8], const uint32_t (&a)[4], const uint32_t (&b)[4]) {
  uint32_t mine[8];
  memcpy(mine, a, sizeof a);
  memcpy(mine + 4, b, sizeof b);
  const unsigned char *all = emulated_meet("wmma gfx12", mine, sizeof mine);
  for (int e = 0; e < 8; ++e) {
    const int row = 8 * (lane_index() / 16) + e, column = lane_index() % 16;
    float sum = c[e];
    for (int k = 0; k < 16; ++k) {
      const int g = k / 4 % 2, i = 4 * (k / 8) + k % 4;
      sum += wmma_element<E, 4>(all, 16 * g + row, false, i) *
             wmma_element<E, 4>(all, 16 * g + column, true, i);
    }
    c[e] = sum;
  }
}

#endif

} // namespace gpu
} // namespace tessera

#endif // TESSERA_BACKENDS_HIP_GFX11_INSTRUCTIONS_HPP_
