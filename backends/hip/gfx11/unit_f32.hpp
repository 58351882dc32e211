// SPDX-License-Identifier: Apache-2.0
//
// float32 on WMMA, which takes 16-bit numbers only: every number is three planes of bfloat16 and a product is
// six products of planes, as in backends/cuda/sm80/unit_f32.hpp, which says why that is exact enough. Tiles
// in shared memory stay float32; the layouts are those of unit.hpp, four bytes for every two.
#ifndef TESSERA_BACKENDS_HIP_GFX11_UNIT_F32_HPP_
#define TESSERA_BACKENDS_HIP_GFX11_UNIT_F32_HPP_

#include "backends/hip/gfx11/unit.hpp"

namespace tessera {
namespace gpu {

// W: WmmaGfx11<BFloat16> or WmmaGfx12<BFloat16>, whose lanes hold kHeld of the 16 indices of an operand.
template <class W, int kHeld>
struct WmmaBf16x6 : W {
  using typename W::Acc;
  using Fresh = WmmaBf16x6;
  using Element = float;
  static constexpr bool kSplits = true;
  static constexpr int kSum = 1; // steps that are added up at a time
  static constexpr bool kStaged = false; // planes leave no registers for copies under way
  static constexpr int kStep = 16, kApplyStep = 16;
  static constexpr int kWords = kHeld / 2;
  static constexpr bool kWhole = kHeld == 16; // both halves of a wave hold all of an operand

  struct Planes {
    uint32_t r[3][kWords];
  };
  using Con = Planes;
  using Free = Planes;
  using Z = Planes;
  using P = Planes;
  template <int kTileRows, int kColumns>
  using ZTile = Tile<float, kTileRows, kColumns>;
  struct ZOffset {
    uint32_t at;
  };
  using ApplyTOffset = ZOffset;

  // b0 is cut off, b1 rounded, b2 the rest.
  TSRI_DEVICE_MEMBER uint32_t cut(float lo, float hi) {
    return float_bits(lo) >> 16 | (float_bits(hi) & 0xffff0000u);
  }
  TSRI_DEVICE_MEMBER void split(Planes &s, int i, float lo, float hi) {
    s.r[0][i] = cut(lo, hi);
    lo -= bits_float(float_bits(lo) & 0xffff0000u);
    hi -= bits_float(float_bits(hi) & 0xffff0000u);
    const uint32_t w = s.r[1][i] = pack_bf16(lo, hi);
    s.r[2][i] = cut(lo - BFloat16::low(w), hi - BFloat16::high(w));
  }

  // Which row of a tile feeds row r of the con operand: where the accumulator holds it.
  TSRI_DEVICE_MEMBER int con_row() {
    const int index = W::offset_index();
    return kWhole ? 8 * (index % 2) + index / 2 : index;
  }
  TSRI_DEVICE_MEMBER int first_held() { return kWhole ? 0 : 8 * (W::offset_lane() / 16); }

  // Rows along memory: kHeld numbers of a lane's row.
  template <int kRowBytes>
  TSRI_DEVICE_MEMBER uint32_t line_offset(uint32_t tile, int row) {
    return tile + static_cast<uint32_t>(row * kRowBytes + ((first_held() / 4 ^ (row & 7)) << 4));
  }
  template <int kRowBytes>
  TSRI_DEVICE_MEMBER uint32_t con_offset(uint32_t tile) {
    return line_offset<kRowBytes>(tile, con_row());
  }
  template <int kRowBytes>
  TSRI_DEVICE_MEMBER uint32_t free_offset(uint32_t tile) {
    return line_offset<kRowBytes>(tile, W::offset_index());
  }
  template <int kRowBytes>
  TSRI_DEVICE_MEMBER void load_con(Con &x, uint32_t offset, int con0, int t) {
    const uint32_t down = static_cast<uint32_t>(con0 * kRowBytes);
    TSRI_UNROLL
    for (int i = 0; i < kHeld / 4; ++i) {
      const CopyWords chunk = shared_at<CopyWords>(along(offset, t * 64 + i * 16) + down);
      split(x, 2 * i, bits_float(chunk[0]), bits_float(chunk[1]));
      split(x, 2 * i + 1, bits_float(chunk[2]), bits_float(chunk[3]));
    }
  }
  template <int kRowBytes>
  TSRI_DEVICE_MEMBER void load_free(Free &y, uint32_t offset, int free0, int t) {
    load_con<kRowBytes>(y, offset, free0, t);
  }

  // Columns: kHeld rows of a lane's column.
  template <int kRowBytes>
  TSRI_DEVICE_MEMBER ZOffset column_offset(uint32_t tile, int column) {
    return ZOffset{tile + static_cast<uint32_t>(first_held() * kRowBytes + column * 4)};
  }
  template <int kRowBytes>
  TSRI_DEVICE_MEMBER void load_column(Planes &z, ZOffset offset, int con0, int bytes) {
    const uint32_t at = along(offset.at, bytes) + static_cast<uint32_t>(con0 * kRowBytes);
    TSRI_UNROLL
    for (int i = 0; i < kWords; ++i)
      split(z, i,
            shared_at<float>((at ^ static_cast<uint32_t>((2 * i & 7) << 4)) +
                             static_cast<uint32_t>(2 * i * kRowBytes)),
            shared_at<float>((at ^ static_cast<uint32_t>(((2 * i + 1) & 7) << 4)) +
                             static_cast<uint32_t>((2 * i + 1) * kRowBytes)));
  }
  template <int kRowBytes>
  TSRI_DEVICE_MEMBER ZOffset z_offset(uint32_t tile, int first = 0) { // first: column tile
    return ZOffset{along(column_offset<kRowBytes>(tile, con_row()).at, first * 64)};
  }
  template <int kRowBytes>
  TSRI_DEVICE_MEMBER void load_z(Z &z, ZOffset offset, int con0, int tile) {
    load_column<kRowBytes>(z, offset, con0, tile * 64);
  }
  // The operand of apply from a tile: P[free][con], and the same from a tile [con][free].
  template <int kRowBytes>
  TSRI_DEVICE_MEMBER uint32_t apply_offset(uint32_t tile) {
    return free_offset<kRowBytes>(tile);
  }
  template <int kRowBytes>
  TSRI_DEVICE_MEMBER void load_apply(P &p, uint32_t offset, int free0, int step) {
    load_con<kRowBytes>(p, offset, free0, step);
  }
  template <int kRowBytes>
  TSRI_DEVICE_MEMBER ApplyTOffset apply_transposed_offset(uint32_t tile, int free0) {
    return ZOffset{along(column_offset<kRowBytes>(tile, W::offset_index()).at, free0 * 4)};
  }
  template <int kRowBytes>
  TSRI_DEVICE_MEMBER void load_apply_transposed(P &p, ApplyTOffset offset, int free0, int step) {
    load_column<kRowBytes>(p, offset, step * kApplyStep, free0 * 4);
  }

  // acc += a b; the small products have a sum of their own. kSwapped: in the order that b a has.
  template <bool kSwapped = false>
  TSRI_DEVICE_MEMBER void multiply(Acc &acc, const Planes &a, const Planes &b) {
    constexpr int one[5] = {0, 2, 1, 0, 1}, other[5] = {2, 0, 1, 1, 0};
    float small[8] = {0.0f, 0.0f, 0.0f, 0.0f, 0.0f, 0.0f, 0.0f, 0.0f};
    TSRI_UNROLL
    for (int n = 0; n < 5; ++n)
      wmma(BFloat16{}, small, a.r[kSwapped ? other[n] : one[n]], b.r[kSwapped ? one[n] : other[n]]);
    wmma(BFloat16{}, acc.x, a.r[0], b.r[0]);
    TSRI_UNROLL
    for (int e = 0; e < W::kElements; ++e) acc.x[e] += small[e];
  }
  TSRI_DEVICE_MEMBER void score(Acc &acc, const Con &x, const Free &y) { multiply(acc, x, y); }
  // score where free and con have changed places: the same products added in the same order.
  TSRI_DEVICE_MEMBER void score_transposed(Acc &acc, const Con &x, const Free &y) {
    multiply<true>(acc, x, y);
  }
  TSRI_DEVICE_MEMBER void to_operand(P &p, const Acc &acc, int) {
    if constexpr (kWhole) { // the other half of the wave has the other eight
      float other[8];
      TSRI_UNROLL
      for (int e = 0; e < 8; ++e) other[e] = shuffle_xor(acc.x[e], 16);
      TSRI_UNROLL
      for (int i = 0; i < 4; ++i) {
        split(p, i, W::half() ? other[2 * i] : acc.x[2 * i], W::half() ? other[2 * i + 1] : acc.x[2 * i + 1]);
        split(p, i + 4, W::half() ? acc.x[2 * i] : other[2 * i],
              W::half() ? acc.x[2 * i + 1] : other[2 * i + 1]);
      }
    } else {
      TSRI_UNROLL
      for (int i = 0; i < 4; ++i) split(p, i, acc.x[2 * i], acc.x[2 * i + 1]);
    }
  }
  TSRI_DEVICE_MEMBER void apply(Acc &out, const Z &z, const P &p) { multiply(out, z, p); }
};

// Offsets into tiles are computed where they are used: planes leave no registers to keep them in.
using WmmaGfx11Bf16x6 = WmmaBf16x6<WmmaGfx11<BFloat16, true>, 16>;
using WmmaGfx12Bf16x6 = WmmaBf16x6<WmmaGfx12<BFloat16, true>, 8>;

} // namespace gpu
} // namespace tessera

#endif // TESSERA_BACKENDS_HIP_GFX11_UNIT_F32_HPP_
