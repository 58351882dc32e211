// SPDX-License-Identifier: Apache-2.0
//
// The matrix instructions of compute capability 8.0 that the units are made of, as PTX on a device and
// as what the PTX ISA says they do (sections "Matrix fragments for mma.m16n8k16", "ldmatrix")
// in the emulated build. Fragments are arrays of 32-bit registers of one lane.
#ifndef TESSERA_BACKENDS_CUDA_SM80_INSTRUCTIONS_HPP_
#define TESSERA_BACKENDS_CUDA_SM80_INSTRUCTIONS_HPP_

#include "common/gpu/element.hpp"
#include "common/gpu/platform.hpp"

namespace tessera {
namespace gpu {

#if defined(TSRI_GPU_CUDA)

// Two floats cut off to bfloat16 in one word, lo in the low half.
TSRI_DEVICE uint32_t cut_bf16(float lo, float hi) {
  uint32_t r;
  asm("prmt.b32 %0, %1, %2, 0x7632;" : "=r"(r) : "r"(float_bits(lo)), "r"(float_bits(hi)));
  return r;
}

// The largest number of a wave's lanes.
TSRI_DEVICE uint32_t max_lanes(uint32_t x) { return __reduce_max_sync(0xffffffffu, x); }

// Four 8 x 16-byte matrices; lane l gives the address of row l % 8 of matrix l / 8.
TSRI_DEVICE void ldmatrix(uint32_t r[4], uint32_t offset) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
               : "r"(shared_address(offset)));
}
TSRI_DEVICE void ldmatrix_transposed(uint32_t r[4], uint32_t offset) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
               : "r"(shared_address(offset)));
}

// c += a b, 16 x 8 x 16.
TSRI_DEVICE void mma16(BFloat16, float c[4], const uint32_t a[4], const uint32_t b[2]) {
  asm volatile(
      "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, "
      "{%8, %9}, {%0, %1, %2, %3};"
      : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
}
TSRI_DEVICE void mma16(Half, float c[4], const uint32_t a[4], const uint32_t b[2]) {
  asm volatile(
      "mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, "
      "{%8, %9}, {%0, %1, %2, %3};"
      : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
}

#else

TSRI_DEVICE uint32_t cut_bf16(float lo, float hi) {
  return float_bits(lo) >> 16 | (float_bits(hi) & 0xffff0000u);
}
TSRI_DEVICE uint32_t max_lanes(uint32_t x) {
  for (int mask = 1; mask < 32; mask *= 2) {
    const uint32_t other = shuffle_xor(x, mask);
    x = other > x ? other : x;
  }
  return x;
}
inline void ldmatrix_emulated(uint32_t r[4], uint32_t offset, bool transposed) {
  const int lane = thread_index() & 31;
  const unsigned char *all =
      emulated_meet(transposed ? "ldmatrix transposed" : "ldmatrix", &offset, 4);
  const unsigned char *shared = emulated_thread().shared;
  for (int m = 0; m < 4; ++m) {
    uint16_t half[2];
    for (int e = 0; e < 2; ++e) {
      const int row = transposed ? 2 * (lane % 4) + e : lane / 4;
      const int column = transposed ? lane / 4 : 2 * (lane % 4) + e;
      memcpy(&half[e], shared + met_word(all, 8 * m + row, 0) + 2 * column, 2);
    }
    r[m] = half[0] | (uint32_t)half[1] << 16;
  }
  // A lane that runs ahead may write shared memory only after the others have read.
  sync_wave();
}
TSRI_DEVICE void ldmatrix(uint32_t r[4], uint32_t offset) { ldmatrix_emulated(r, offset, false); }
TSRI_DEVICE void ldmatrix_transposed(uint32_t r[4], uint32_t offset) {
  ldmatrix_emulated(r, offset, true);
}

template <class E>
inline void mma16(E, float c[4], const uint32_t a[4], const uint32_t b[2]) {
  typedef double Two __attribute__((vector_size(16)));
  const int lane = thread_index() & 31;
  // Every lane converts its own: the others need them eight times.
  float mine[12];
  for (int i = 0; i < 6; ++i) {
    const uint32_t word = i < 4 ? a[i] : b[i - 4];
    mine[2 * i] = E::low(word);
    mine[2 * i + 1] = E::high(word);
  }
  const unsigned char *all = emulated_meet("mma 16x8x16", mine, sizeof mine);
  float rows[2][16], columns[2][16]; // of A and of B: this lane's
  for (int owner = 0; owner < 4; ++owner)
    for (int half = 0; half < 2; ++half)
      for (int i = 0; i < 2; ++i) {
        const int k = 8 * half + 2 * owner;
        memcpy(&rows[i][k], met_words(all, lane / 4 * 4 + owner, 2 * (i + 2 * half)), 8);
        memcpy(&columns[i][k], met_words(all, 4 * (2 * (lane % 4) + i) + owner, 8 + 2 * half), 8);
      }
  // Products are exact and are added before the one rounding, as on a device (which cuts: Fasi et al. 2021,
  // "Numerical behavior of NVIDIA tensor cores").
  Two sum[2] = {{c[0], c[1]}, {c[2], c[3]}};
  for (int k = 0; k < 16; ++k) {
    const Two column = {columns[0][k], columns[1][k]};
    for (int i = 0; i < 2; ++i) sum[i] += static_cast<double>(rows[i][k]) * column;
  }
  for (int e = 0; e < 4; ++e) c[e] = static_cast<float>(sum[e / 2][e % 2]);
}

#endif

} // namespace gpu
} // namespace tessera

#endif // TESSERA_BACKENDS_CUDA_SM80_INSTRUCTIONS_HPP_
