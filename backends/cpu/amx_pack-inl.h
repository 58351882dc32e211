// SPDX-License-Identifier: Apache-2.0
//
// Operands of tile products (amx_tiles.h) from rows of bfloat16, per Highway target; AVX-512 only.
// An operand is a sequence of whole tiles of 1 KiB, padded with zeros:
//
//   rows     A of a product that contracts over dims: tile (i, c) holds rows 16 i .. and dims 32 c ..
//   columns  A of a product that contracts over rows: tile (c, i) holds dims 16 i .. of rows 32 c ..
//   pairs    B of a product that contracts over dims: tile c holds dims 32 c .. of 16 rows, word k of
//            a row's column being its dims 2 k and 2 k + 1
//   doubles  B of a product that contracts over rows: tile i holds dims 16 i .. of 32 rows, word k of
//            a dim's column being rows 2 k and 2 k + 1
//
// Rows come as 32 pointers; NULL stands for a row of zeros. Nothing beyond `dim` elements of a row
// is read.
#include <stdint.h>

#include "amx_tiles.h"
#include "convert-inl.h"
#include "row_policy-inl.h"

#if defined(TESSERA_CPU_AMX_PACK_INL_H_) == defined(HWY_TARGET_TOGGLE)
  #ifdef TESSERA_CPU_AMX_PACK_INL_H_
    #undef TESSERA_CPU_AMX_PACK_INL_H_
  #else
    #define TESSERA_CPU_AMX_PACK_INL_H_
  #endif

HWY_BEFORE_NAMESPACE();
namespace tessera {
namespace HWY_NAMESPACE {

  // Tile kernels exist for the targets with 512-bit vectors.
  #undef TSRI_AMX_TARGET
  #if HWY_ARCH_X86_64 && HWY_TARGET <= HWY_AVX3
    #define TSRI_AMX_TARGET 1
  #else
    #define TSRI_AMX_TARGET 0
  #endif

  #if TSRI_AMX_TARGET
using Words = __m512i;

// Which of the 32 dims from 32 c on exist.
HWY_INLINE __mmask32 dims_of_tile(size_t dim, size_t c) {
  const size_t left = dim - c * kTileDepth;
  return left >= kTileDepth ? 0xffffffffu : (1u << left) - 1;
}

HWY_INLINE Words load_dims(const uint16_t *row, size_t c, __mmask32 exist) {
  return row ? _mm512_maskz_loadu_epi16(exist, row + c * kTileDepth) : _mm512_setzero_si512();
}

// 16 x 16 words.
HWY_INLINE void transpose_words(Words w[16]) {
  Words t[16];
  for (int i = 0; i < 16; i += 2) {
    t[i] = _mm512_unpacklo_epi32(w[i], w[i + 1]);
    t[i + 1] = _mm512_unpackhi_epi32(w[i], w[i + 1]);
  }
  for (int i = 0; i < 16; i += 4) {
    w[i] = _mm512_unpacklo_epi64(t[i], t[i + 2]);
    w[i + 1] = _mm512_unpackhi_epi64(t[i], t[i + 2]);
    w[i + 2] = _mm512_unpacklo_epi64(t[i + 1], t[i + 3]);
    w[i + 3] = _mm512_unpackhi_epi64(t[i + 1], t[i + 3]);
  }
  for (int i = 0; i < 4; ++i) {
    t[i] = _mm512_shuffle_i32x4(w[i], w[i + 4], 0x88);
    t[i + 4] = _mm512_shuffle_i32x4(w[i], w[i + 4], 0xdd);
    t[i + 8] = _mm512_shuffle_i32x4(w[i + 8], w[i + 12], 0x88);
    t[i + 12] = _mm512_shuffle_i32x4(w[i + 8], w[i + 12], 0xdd);
  }
  for (int i = 0; i < 4; ++i) {
    w[i] = _mm512_shuffle_i32x4(t[i], t[i + 8], 0x88);
    w[i + 8] = _mm512_shuffle_i32x4(t[i], t[i + 8], 0xdd);
    w[i + 4] = _mm512_shuffle_i32x4(t[i + 4], t[i + 12], 0x88);
    w[i + 12] = _mm512_shuffle_i32x4(t[i + 4], t[i + 12], 0xdd);
  }
}

HWY_INLINE uint8_t *tile_at(void *tiles, size_t index) {
  return static_cast<uint8_t *>(tiles) + index * kTileBytes;
}
HWY_INLINE const uint8_t *tile_at(const void *tiles, size_t index) {
  return static_cast<const uint8_t *>(tiles) + index * kTileBytes;
}

// 32 rows into `rows` form: two lines of tiles, a line being all dims.
static HWY_NOINLINE HWY_MAYBE_UNUSED void pack_rows(const uint16_t *const *rows, size_t dim,
                                                    void *tiles) {
  const size_t chunks = (dim + kTileDepth - 1) / kTileDepth;
  for (size_t c = 0; c < chunks; ++c) {
    const __mmask32 exist = dims_of_tile(dim, c);
    for (size_t r = 0; r < 2 * kTileSide; ++r)
      _mm512_store_si512(tile_at(tiles, r / kTileSide * chunks + c) + r % kTileSide * 64,
                         load_dims(rows[r], c, exist));
  }
}

// 32 rows into `columns` form: one line of tiles, two per 32 dims.
static HWY_NOINLINE HWY_MAYBE_UNUSED void pack_columns(const uint16_t *const *rows, size_t dim,
                                                       void *tiles) {
  for (size_t c = 0; c * kTileDepth < dim; ++c) {
    const __mmask32 exist = dims_of_tile(dim, c);
    Words low[16], high[16];
    for (int k = 0; k < 16; ++k) {
      const Words even = load_dims(rows[2 * k], c, exist);
      const Words odd = load_dims(rows[2 * k + 1], c, exist);
      low[k] = _mm512_unpacklo_epi16(even, odd);  // word w: dim 8 (w / 4) + w % 4
      high[k] = _mm512_unpackhi_epi16(even, odd);  // the same plus 4
    }
    transpose_words(low);
    transpose_words(high);
    for (size_t w = 0; w < 16; ++w) {
      const size_t x = w / 4 * 8 + w % 4;
      uint8_t *to = tile_at(tiles, 2 * c + x / kTileSide) + x % kTileSide * 64;
      _mm512_store_si512(to, low[w]);
      _mm512_store_si512(to + 4 * 64, high[w]);
    }
  }
}

// 16 rows into `pairs` form: a tile per 32 dims, `step` tiles apart. flip: xor of every word.
static HWY_NOINLINE HWY_MAYBE_UNUSED void pack_pairs(const uint16_t *const *rows, size_t dim,
                                                     uint32_t flip, size_t step, void *tiles) {
  const Words sign = _mm512_set1_epi32(static_cast<int>(flip));
  for (size_t c = 0; c * kTileDepth < dim; ++c) {
    const __mmask32 exist = dims_of_tile(dim, c);
    Words w[16];
    for (int r = 0; r < 16; ++r) w[r] = _mm512_xor_si512(sign, load_dims(rows[r], c, exist));
    transpose_words(w);
    for (size_t k = 0; k < 16; ++k) _mm512_store_si512(tile_at(tiles, c * step) + k * 64, w[k]);
  }
}

// 32 rows into `doubles` form.
static HWY_NOINLINE HWY_MAYBE_UNUSED void pack_doubles(const uint16_t *const *rows, size_t dim,
                                                       void *tiles) {
  const Words first = _mm512_set_epi16(47, 15, 46, 14, 45, 13, 44, 12, 43, 11, 42, 10, 41, 9, 40, 8,
                                       39, 7, 38, 6, 37, 5, 36, 4, 35, 3, 34, 2, 33, 1, 32, 0);
  const Words second = _mm512_add_epi16(first, _mm512_set1_epi16(16));
  for (size_t c = 0; c * kTileDepth < dim; ++c) {
    const __mmask32 exist = dims_of_tile(dim, c);
    for (size_t k = 0; k < kTileSide; ++k) {
      const Words even = load_dims(rows[2 * k], c, exist);
      const Words odd = load_dims(rows[2 * k + 1], c, exist);
      uint8_t *to = tile_at(tiles, 2 * c) + k * 64;
      _mm512_store_si512(to, _mm512_permutex2var_epi16(even, first, odd));
      _mm512_store_si512(to + kTileBytes, _mm512_permutex2var_epi16(even, second, odd));
    }
  }
}

// a then b as bfloat16. The hardware takes subnormals as 0.
HWY_INLINE Words row_words(__m512 a, __m512 b) {
    #if defined(TESSERA_EMULATE_AMX)
  const VU low = BF16::bits_of(VF{a}), high = BF16::bits_of(VF{b});
  return _mm512_inserti64x4(_mm512_castsi256_si512(_mm512_cvtepi32_epi16(low.raw)),
                            _mm512_cvtepi32_epi16(high.raw), 1);
    #else
  Words both;
  __asm__("vcvtne2ps2bf16 %2, %1, %0" : "=v"(both) : "v"(b), "v"(a));
  return both;
    #endif
}

// The same interleaved: words (a[i], b[i]).
HWY_INLINE Words pair_words(__m512 a, __m512 b) {
  const Words order = _mm512_set_epi16(31, 15, 30, 14, 29, 13, 28, 12, 27, 11, 26, 10, 25, 9, 24, 8,
                                       23, 7, 22, 6, 21, 5, 20, 4, 19, 3, 18, 2, 17, 1, 16, 0);
  return _mm512_permutexvar_epi16(order, row_words(a, b));
}
  #endif  // TSRI_AMX_TARGET

// NOLINTNEXTLINE(google-readability-namespace-comments)
}  // namespace HWY_NAMESPACE
}  // namespace tessera
HWY_AFTER_NAMESPACE();

#endif  // TESSERA_CPU_AMX_PACK_INL_H_
