// SPDX-License-Identifier: Apache-2.0
//
// instructions_fp8.hpp for the emulator; as strict about time as emulated.hpp, and with operands only where the
// device takes them: rows of 128 bytes along the contracted index.
#ifndef TESSERA_BACKENDS_CUDA_SM90_EMULATED_FP8_HPP_
#define TESSERA_BACKENDS_CUDA_SM90_EMULATED_FP8_HPP_

#include "backends/cuda/sm90/emulated.hpp"
#include "common/dtype.h"

namespace tessera {
namespace gpu {

inline uint32_t pack_e4m3(float a, float b, float c, float d) {
  return static_cast<uint32_t>(tsri_double_to_e4m3(static_cast<double>(a))) |
         static_cast<uint32_t>(tsri_double_to_e4m3(static_cast<double>(b))) << 8 |
         static_cast<uint32_t>(tsri_double_to_e4m3(static_cast<double>(c))) << 16 |
         static_cast<uint32_t>(tsri_double_to_e4m3(static_cast<double>(d))) << 24;
}

template <uint32_t kWhich>
inline uint32_t pick_bytes(uint32_t lo, uint32_t hi) {
  const uint64_t both = static_cast<uint64_t>(hi) << 32 | lo;
  uint32_t r = 0;
  for (uint32_t i = 0; i < 4; ++i)
    r |= static_cast<uint32_t>(both >> 8 * (kWhich >> 4 * i & 7) & 0xff) << 8 * i;
  return r;
}

inline float matrix_element_e4m3(MatrixTile tile, int line, int k) {
  const uint32_t base = (tile.low & 0x3fff) << 4;
  uint32_t at = base + static_cast<uint32_t>(line) * 128 + static_cast<uint32_t>(k);
  at ^= (at >> 7 & 7) << 4; // the swizzle is of addresses
  return tsri_e4m3_to_float(shared_at<uint8_t>(at));
}

inline void emulated_product_e4m3(const void *data) {
  const EmulatedProduct &p = *static_cast<const EmulatedProduct *>(data);
  float a[2][32], b[32];
  for (int r = 0; r < 2; ++r)
    for (int k = 0; k < 32; ++k)
      a[r][k] = p.in_registers ? tsri_e4m3_to_float(static_cast<uint8_t>(p.row[r][k / 4] >> 8 * (k % 4)))
                               : matrix_element_e4m3(p.a, 16 * p.warp + p.lane / 4 + 8 * r, k);
  for (int j = 0; j < p.columns / 8; ++j)
    for (int e = 0; e < 2; ++e) {
      for (int k = 0; k < 32; ++k) b[k] = matrix_element_e4m3(p.b, 8 * j + 2 * (p.lane % 4) + e, k);
      for (int r = 0; r < 2; ++r) {
        float &d = p.d[4 * j + 2 * r + e];
        float sum = p.add ? d : 0.0f;
        for (int k = 0; k < 32; ++k) sum += a[r][k] * b[k];
        d = sum;
      }
    }
}

template <class Acc, int kCount>
inline void product_e4m3(Acc (&d)[kCount], MatrixTile a, MatrixTile b, bool add) {
  EmulatedProduct p = emulated_product_of(d[0].x, 16 * kCount, b, false, add);
  p.a = a;
  emulated_defer(emulated_product_e4m3, &p, sizeof p);
}
template <class Acc, int kCount>
inline void product_e4m3_registers(Acc (&d)[kCount], const uint32_t (&a)[4], MatrixTile b, bool add) {
  EmulatedProduct p = emulated_product_of(d[0].x, 16 * kCount, b, false, add);
  p.in_registers = true;
  const unsigned char *all = emulated_meet("wgmma of E4M3, A in registers", a, sizeof a);
  for (int r = 0; r < 2; ++r)
    for (int w = 0; w < 8; ++w) p.row[r][w] = met_word(all, p.lane / 4 * 4 + w % 4, r + 2 * (w / 4));
  emulated_defer(emulated_product_e4m3, &p, sizeof p);
}

} // namespace gpu
} // namespace tessera

#endif // TESSERA_BACKENDS_CUDA_SM90_EMULATED_FP8_HPP_
