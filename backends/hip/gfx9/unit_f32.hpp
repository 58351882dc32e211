// SPDX-License-Identifier: Apache-2.0
//
// The instruction for float32 on MFMA has the shape of the 16-bit ones and a quarter of their depth, and rounds
// every addition, so that a unit of it is that of unit.hpp with numbers in place of pairs. Tiles are plain: a lane
// reads four rows of a column as easily as four columns of a row.
//
// MfmaFloats<float> is float32. MfmaFloats<Half> is float16 where the 16-bit instructions take subnormal operands for
// 0 (gfx90a): tiles hold float16, operands become float32 when they are read, and nothing is lost. P and dS stay
// float32 on their way into the next product.
#ifndef TESSERA_BACKENDS_HIP_GFX9_UNIT_F32_HPP_
#define TESSERA_BACKENDS_HIP_GFX9_UNIT_F32_HPP_

#include "backends/hip/gfx9/unit.hpp"

namespace tessera {
namespace gpu {

// Lane 16 g + n of an accumulator holds con 4 g .. 4 g + 3 of free n. Instruction e of a step contracts
// indices 4 g + e of all groups: what the accumulator's element e is, so that nothing moves.
template <class E>
struct MfmaFloats {
  using Element = E;
  using Fresh = MfmaFloats;
  static constexpr int kWave = 64;
  static constexpr int kFree = 16;
  static constexpr int kCon = 16;
  static constexpr int kElements = 4;
  static constexpr int kRows = 1;
  static constexpr int kStep = 16; // four matrix operations
  static constexpr int kApplyStep = 16;
  static constexpr bool kSplits = false; // operands are what memory holds
  static constexpr bool kStaged = true; // copies to shared memory go through registers

  struct Acc {
    float x[kElements];
  };
  struct Numbers {
    float x[4];
  };
  using Con = Numbers;
  using Free = Numbers;
  using Z = Numbers;
  using P = Numbers;
  template <int kTileRows, int kColumns>
  using ZTile = Tile<E, kTileRows, kColumns>;
  struct ZOffset {
    uint32_t at;
  };
  using ApplyTOffset = ZOffset;
  static constexpr int kSize = static_cast<int>(sizeof(E));
  static constexpr int kPerChunk = 16 / kSize;

  TSRI_DEVICE_MEMBER int index() { return lane_index() % 16; }
  TSRI_DEVICE_MEMBER int group() { return lane_index() / 16; }
  TSRI_DEVICE_MEMBER constexpr int slot(int) { return 0; }
  TSRI_DEVICE_MEMBER int free_of(int) { return index(); }
  TSRI_DEVICE_MEMBER int con_lane() { return 4 * group(); }
  TSRI_DEVICE_MEMBER constexpr int con_element(int e) { return e; }
  TSRI_DEVICE_MEMBER constexpr int beside(int e, int) { return e; } // the element of e's con and a slot
  TSRI_DEVICE_MEMBER bool leads_row() { return group() == 0; }
  TSRI_DEVICE_MEMBER float max_con(float v) {
    v = larger_of(v, shuffle_xor(v, 16));
    return larger_of(v, shuffle_xor(v, 32));
  }
  TSRI_DEVICE_MEMBER float sum_con(float v) {
    v += shuffle_xor(v, 16);
    return v + shuffle_xor(v, 32);
  }

  // Four numbers of a lane's row: depth 4 g .. 4 g + 3 of a step.
  template <int kRowBytes>
  TSRI_DEVICE_MEMBER uint32_t con_offset(uint32_t tile) {
    const int row = index(), bytes = group() * 4 * kSize;
    return tile + static_cast<uint32_t>(row * kRowBytes + ((bytes / 16 ^ (row & 7)) << 4) + bytes % 16);
  }
  template <int kRowBytes>
  TSRI_DEVICE_MEMBER uint32_t free_offset(uint32_t tile) {
    return con_offset<kRowBytes>(tile);
  }
  // The chunk of a lane's row that is its free operand of step t, of float32.
  TSRI_DEVICE_MEMBER int free_chunk(int t, int) { return t * 4 + group(); }
  template <int kRowBytes>
  TSRI_DEVICE_MEMBER void load_con(Con &x, uint32_t offset, int con0, int t) {
    const uint32_t at = along(offset, t * kStep * kSize) + static_cast<uint32_t>(con0 * kRowBytes);
    if constexpr (kSize == 4) {
      const CopyWords chunk = shared_at<CopyWords>(at);
      TSRI_UNROLL
      for (int e = 0; e < 4; ++e) x.x[e] = bits_float(chunk[e]);
    } else {
      const Group pairs = shared_at<Group>(at);
      TSRI_UNROLL
      for (int e = 0; e < 4; ++e) x.x[e] = e & 1 ? E::high(pairs[e / 2]) : E::low(pairs[e / 2]);
    }
  }
  template <int kRowBytes>
  TSRI_DEVICE_MEMBER void load_free(Free &y, uint32_t offset, int free0, int t) {
    load_con<kRowBytes>(y, offset, free0, t);
  }

  // Four rows of a lane's column: con 4 g .. 4 g + 3 of a step.
  template <int kRowBytes>
  TSRI_DEVICE_MEMBER ZOffset column_offset(uint32_t tile, int column) {
    const int row = 4 * group();
    const uint32_t own = static_cast<uint32_t>(row * kRowBytes + ((index() / kPerChunk ^ (row & 7)) << 4) +
                                               index() % kPerChunk * kSize);
    return ZOffset{along(tile + own, column * kSize)};
  }
  template <int kRowBytes>
  TSRI_DEVICE_MEMBER void load_column(Numbers &z, ZOffset offset, int con0, int column) {
    const uint32_t at = along(offset.at, column * kSize);
    TSRI_UNROLL
    for (int e = 0; e < 4; ++e) {
      const uint32_t one = (at ^ static_cast<uint32_t>(e << 4)) + static_cast<uint32_t>((con0 + e) * kRowBytes);
      if constexpr (kSize == 4)
        z.x[e] = shared_at<float>(one);
      else
        z.x[e] = E::low(shared_at<uint16_t>(one));
    }
  }
  template <int kRowBytes>
  TSRI_DEVICE_MEMBER ZOffset z_offset(uint32_t tile, int first = 0) { // first: column tile
    return column_offset<kRowBytes>(tile, first * 16);
  }
  template <int kRowBytes>
  TSRI_DEVICE_MEMBER void load_z(Z &z, ZOffset offset, int con0, int tile) {
    load_column<kRowBytes>(z, offset, con0, tile * 16);
  }
  // The operand of apply from a tile: P[free][con], and the same from a tile [con][free].
  template <int kRowBytes>
  TSRI_DEVICE_MEMBER uint32_t apply_offset(uint32_t tile) {
    return con_offset<kRowBytes>(tile);
  }
  template <int kRowBytes>
  TSRI_DEVICE_MEMBER void load_apply(P &p, uint32_t offset, int free0, int step) {
    load_con<kRowBytes>(p, offset, free0, step);
  }
  template <int kRowBytes>
  TSRI_DEVICE_MEMBER ApplyTOffset apply_transposed_offset(uint32_t tile, int free0) {
    return column_offset<kRowBytes>(tile, free0);
  }
  template <int kRowBytes>
  TSRI_DEVICE_MEMBER void load_apply_transposed(P &p, ApplyTOffset offset, int free0, int step) {
    load_column<kRowBytes>(p, offset, step * kApplyStep, free0);
  }

  TSRI_DEVICE_MEMBER void multiply(Acc &acc, const Numbers &a, const Numbers &b) {
    TSRI_UNROLL
    for (int e = 0; e < 4; ++e) mfma(0.0f, acc.x, a.x[e], b.x[e]);
  }
  TSRI_DEVICE_MEMBER void score(Acc &acc, const Con &x, const Free &y) { multiply(acc, x, y); }
  TSRI_DEVICE_MEMBER void to_operand(P &p, const Acc &acc, int) {
    TSRI_UNROLL
    for (int e = 0; e < 4; ++e) p.x[e] = acc.x[e];
  }
  TSRI_DEVICE_MEMBER void apply(Acc &out, const Z &z, const P &p) { multiply(out, z, p); }
};
using MfmaF32 = MfmaFloats<float>;

} // namespace gpu
} // namespace tessera

#endif // TESSERA_BACKENDS_HIP_GFX9_UNIT_F32_HPP_
