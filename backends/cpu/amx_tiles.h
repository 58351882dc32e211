// SPDX-License-Identifier: Apache-2.0
//
// The tile registers of Intel AMX and the four things kernels do with them. Eight registers of 16
// rows of 64 bytes; dot<C, A, B>: C [16][16] float32 += A [16][32] B [32][16] in bfloat16, where
// row k of B's register holds rows 2k and 2k + 1 of the matrix, interleaved (Intel SDM, TDPBF16PS).
//
// TileUnit is the hardware, by inline assembly: no compiler flags, so nothing here can leak into
// code for processors without it. TileEmulator computes the same in plain loops: it stands in for
// the hardware where tests run without it (TESSERA_EMULATE_AMX), bits included.
#ifndef TESSERA_CPU_AMX_TILES_H_
#define TESSERA_CPU_AMX_TILES_H_

#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include "common/platform.h"

namespace tessera {

constexpr size_t kTileSide = 16;    // rows of a tile, and floats of a row
constexpr size_t kTileDepth = 32;   // bfloat16 of a row: what one product contracts
constexpr size_t kTileBytes = 1024;

#if defined(__x86_64__)
struct TileUnit {
  // Every register 16 x 64 bytes. Before the first use in a task; release() after the last.
  TSRI_FORCE_INLINE void configure() {
    alignas(64) uint8_t config[64] = {};
    config[0] = 1;  // palette
    for (int t = 0; t < 8; ++t) {
      config[16 + 2 * t] = 64;  // bytes of a row
      config[48 + t] = 16;      // rows
    }
    __asm__ volatile("ldtilecfg %0" ::"m"(config));
  }
  TSRI_FORCE_INLINE void release() { __asm__ volatile("tilerelease" ::: "memory"); }
  template <int T>
  TSRI_FORCE_INLINE void zero() {
    __asm__ volatile("tilezero %%tmm%c0" ::"i"(T));
  }
  // stride: bytes between rows.
  template <int T>
  TSRI_FORCE_INLINE void load(const void *from, size_t stride) {
    __asm__ volatile("tileloadd (%0,%1,1), %%tmm%c2" ::"r"(from), "r"(stride), "i"(T) : "memory");
  }
  template <int T>
  TSRI_FORCE_INLINE void store(void *to, size_t stride) {
    __asm__ volatile("tilestored %%tmm%c2, (%0,%1,1)" ::"r"(to), "r"(stride), "i"(T) : "memory");
  }
  template <int C, int A, int B>
  TSRI_FORCE_INLINE void dot() {
    __asm__ volatile("tdpbf16ps %%tmm%c2, %%tmm%c1, %%tmm%c0" ::"i"(C), "i"(A), "i"(B));
  }
};
#endif

// Where tile kernels run, loops have vectors and fused multiply-add; elsewhere they are not called.
#if defined(__x86_64__) && defined(__GNUC__)
  #define TSRI_TILE_LOOPS __attribute__((target("avx512f,fma")))
#else
  #define TSRI_TILE_LOOPS
#endif

class TileEmulator {
 public:
  void configure() {}
  void release() {}
  template <int T>
  void zero() {
    memset(tile_[T], 0, kTileBytes);
  }
  template <int T>
  void load(const void *from, size_t stride) {
    for (size_t r = 0; r < kTileSide; ++r)
      memcpy(tile_[T][r], static_cast<const char *>(from) + r * stride, 64);
  }
  template <int T>
  void store(void *to, size_t stride) const {
    for (size_t r = 0; r < kTileSide; ++r)
      memcpy(static_cast<char *>(to) + r * stride, tile_[T][r], 64);
  }
  template <int C, int A, int B>
  TSRI_TILE_LOOPS void dot() {
    float low[kTileSide][kTileSide], high[kTileSide][kTileSide];  // of B
    for (size_t k = 0; k < kTileSide; ++k)
      for (size_t n = 0; n < kTileSide; ++n) {
        low[k][n] = half(tile_[B][k][n] << 16);
        high[k][n] = half(tile_[B][k][n]);
      }
    for (size_t m = 0; m < kTileSide; ++m) {
      float even[kTileSide] = {}, odd[kTileSide] = {}, c[kTileSide];
      for (size_t k = 0; k < kTileSide; ++k) {
        const float a0 = half(tile_[A][m][k] << 16), a1 = half(tile_[A][m][k]);
        for (size_t n = 0; n < kTileSide; ++n) {
          even[n] = flush(__builtin_fmaf(a0, low[k][n], even[n]));
          odd[n] = flush(__builtin_fmaf(a1, high[k][n], odd[n]));
        }
      }
      memcpy(c, tile_[C][m], sizeof c);
      for (size_t n = 0; n < kTileSide; ++n) c[n] = flush(c[n] + flush(even[n] + odd[n]));
      memcpy(tile_[C][m], c, sizeof c);
    }
  }

 private:
  // Subnormals count as zero on their way in and out.
  static TSRI_FORCE_INLINE float flush(float x) { return x > -0x1p-126f && x < 0x1p-126f ? 0.0f : x; }
  // The upper half of a word as a number.
  static TSRI_FORCE_INLINE float half(uint32_t x) {
    float value;
    x &= 0xffff0000u;
    memcpy(&value, &x, sizeof value);
    return flush(value);
  }

  uint32_t tile_[8][kTileSide][kTileSide] = {};
};

#if defined(TESSERA_EMULATE_AMX) || !defined(__x86_64__)
using Tiles = TileEmulator;
#else
using Tiles = TileUnit;
#endif
#undef TSRI_TILE_LOOPS

}  // namespace tessera

#endif  // TESSERA_CPU_AMX_TILES_H_
