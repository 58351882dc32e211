// SPDX-License-Identifier: Apache-2.0
//
// instructions.hpp for 8-bit elements (OCP E4M3): products of a warpgroup that contract 32 elements, conversion
// of four floats to a word, bytes picked from two words. Both operands of such a product run along the contracted
// index in rows of 128 bytes: there is no transposed form.
#ifndef TESSERA_BACKENDS_CUDA_SM90_INSTRUCTIONS_FP8_HPP_
#define TESSERA_BACKENDS_CUDA_SM90_INSTRUCTIONS_FP8_HPP_

#include "backends/cuda/sm90/instructions.hpp"

#if defined(TSRI_GPU_EMULATED)
#include "backends/cuda/sm90/emulated_fp8.hpp"
#else

namespace tessera {
namespace gpu {

// Four floats rounded to nearest even into the bytes of a word, lowest first; beyond 448 they become 448.
TSRI_DEVICE uint32_t pack_e4m3(float a, float b, float c, float d) {
  uint32_t r;
  asm("{\n.reg .b16 lo, hi;\n"
      "cvt.rn.satfinite.e4m3x2.f32 lo, %2, %1;\n"
      "cvt.rn.satfinite.e4m3x2.f32 hi, %4, %3;\n"
      "mov.b32 %0, {lo, hi};\n}"
      : "=r"(r)
      : "f"(a), "f"(b), "f"(c), "f"(d));
  return r;
}

// Bytes of the pair (lo, hi), numbered 0 .. 7, by the hexadecimal digits of `which`, lowest first.
template <uint32_t kWhich>
TSRI_DEVICE uint32_t pick_bytes(uint32_t lo, uint32_t hi) {
  return __byte_perm(lo, hi, kWhich);
}

// d[c] is columns 16 c .. 16 c + 15 of 64 rows, as in instructions.hpp.
//   product_e4m3(d, a, b, add)             d = a b (+ d), both in shared memory
//   product_e4m3_registers(d, a, b, add)   a in registers, as the A operand of mma.m16n8k32 of every warp
#define TSRI_WGMMA_E4M3(N, LAST, P0, P1, P2, P3, P4, P5)                                            \
  template <class Acc>                                                                               \
  TSRI_DEVICE void product_e4m3(Acc(&d)[N / 16], MatrixTile a, MatrixTile b, bool add) {             \
    asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, %" #P2 ", 0;\n"                                     \
                 "wgmma.mma_async.sync.aligned.m64n" #N "k32.f32.e4m3.e4m3 {" TSRI_R##LAST          \
                 "}, %" #P0 ", %" #P1 ", p, 1, 1;\n}"                                                  \
                 : TSRI_D##LAST                                                                      \
                 : "l"(matrix_word(a)), "l"(matrix_word(b)), "r"(static_cast<int>(add)));            \
  }                                                                                                  \
  template <class Acc>                                                                               \
  TSRI_DEVICE void product_e4m3_registers(Acc(&d)[N / 16], const uint32_t(&a)[4], MatrixTile b,      \
                                          bool add) {                                                \
    asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, %" #P5 ", 0;\n"                                     \
                 "wgmma.mma_async.sync.aligned.m64n" #N "k32.f32.e4m3.e4m3 {" TSRI_R##LAST          \
                 "}, {%" #P0 ", %" #P1 ", %" #P2 ", %" #P3 "}, %" #P4 ", p, 1, 1;\n}"                  \
                 : TSRI_D##LAST                                                                      \
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(matrix_word(b)),                  \
                   "r"(static_cast<int>(add)));                                                      \
  }
TSRI_WGMMA_E4M3(64, 3, 32, 33, 34, 35, 36, 37)
TSRI_WGMMA_E4M3(128, 7, 64, 65, 66, 67, 68, 69)
TSRI_WGMMA_E4M3(160, 9, 80, 81, 82, 83, 84, 85)
#undef TSRI_WGMMA_E4M3

} // namespace gpu
} // namespace tessera

#endif
#endif // TESSERA_BACKENDS_CUDA_SM90_INSTRUCTIONS_FP8_HPP_
