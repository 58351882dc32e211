// SPDX-License-Identifier: Apache-2.0
//
// Units of MFMA (gfx90a, gfx942; waves of 64), as the tile programs see matrix hardware: see
// backends/cuda/sm80/unit.hpp for what free and con are. On AMD the con operand is A and the free
// operand is B, so that rows of an accumulator are con and columns are free; the registers that a score
// product leaves in a lane are then the B operand of the next product, which computes the transpose of
// O: rows are columns of O, columns are queries. A lane owns one free index.
//
// Mfma<E, 16>    16x16x16, 16 free x 16 con
// Mfma<E, 32>    32x32x8, 32 free x 32 con: half the shared-memory reads per product
// kPlain: Z comes from a tile as memory has it, two bytes at a time, and not from a transposed one; for
// programs whose tiles are operands of both kinds.
#ifndef TESSERA_BACKENDS_HIP_GFX9_UNIT_HPP_
#define TESSERA_BACKENDS_HIP_GFX9_UNIT_HPP_

#include <type_traits>

#include "backends/hip/gfx9/instructions.hpp"
#include "common/gpu/tile.hpp"

namespace tessera {
namespace gpu {

template <class E, int kSide, bool kPlain = false>
struct Mfma {
  using Element = E;
  using Fresh = Mfma<E, kSide, true>; // of backward
  static_assert(kSide == 16 || kSide == 32, "shapes of the instruction");
  static constexpr int kWave = 64;
  static constexpr int kGroups = 64 / kSide; // groups of lanes, each with its own part of the depth
  static constexpr int kFree = kSide;
  static constexpr int kCon = kSide;
  static constexpr int kElements = kSide * kSide / 64;
  static constexpr int kRows = 1; // distinct free indices of a lane
  static constexpr int kStep = 8 * kGroups;      // two matrix operations: a lane reads 16 bytes for both
  static constexpr int kApplyStep = 4 * kGroups; // one
  static constexpr bool kSplits = false; // operands are what memory holds
  static constexpr bool kStaged = true; // copies to shared memory go through registers

  struct Acc {
    float x[kElements];
  };
  struct Con {
    uint32_t r[4];
  };
  struct Free {
    uint32_t r[4];
  };
  struct Z { // kSide columns x kApplyStep con
    uint32_t r[2];
  };
  struct P { // kApplyStep con x kSide free
    uint32_t r[2];
  };
  template <int kTileRows, int kColumns>
  using ZTile = std::conditional_t<kPlain, Tile<E, kTileRows, kColumns>,
                                   TransposedTile<E, kTileRows, kColumns>>;
  struct ZOffset {
    uint32_t at;
  };
  using ApplyTOffset = ZOffset;

  TSRI_DEVICE_MEMBER int index() { return lane_index() % kSide; }
  TSRI_DEVICE_MEMBER int group() { return lane_index() / kSide; }
  TSRI_DEVICE_MEMBER constexpr int slot(int) { return 0; }
  TSRI_DEVICE_MEMBER int free_of(int) { return index(); }
  TSRI_DEVICE_MEMBER int con_lane() { return 4 * group(); }
  TSRI_DEVICE_MEMBER constexpr int con_element(int e) { return 8 * (e / 4) + e % 4; }
  TSRI_DEVICE_MEMBER constexpr int beside(int e, int) { return e; } // the element of e's con and a slot
  TSRI_DEVICE_MEMBER bool leads_row() { return group() == 0; }

  TSRI_DEVICE_MEMBER float max_con(float v) {
    TSRI_UNROLL
    for (int mask = kSide; mask < kWave; mask *= 2) v = larger_of(v, shuffle_xor(v, mask));
    return v;
  }
  TSRI_DEVICE_MEMBER float sum_con(float v) {
    TSRI_UNROLL
    for (int mask = kSide; mask < kWave; mask *= 2) v += shuffle_xor(v, mask);
    return v;
  }

  // A lane's 16 bytes of a row: depth 8 g .. 8 g + 7 of a step. The contraction index of a product may be
  // relabelled on both sides alike: elements 0-3 go to the first operation, 4-7 to the second.
  template <int kRowBytes>
  TSRI_DEVICE_MEMBER uint32_t con_offset(uint32_t tile) {
    const int row = index();
    return tile + static_cast<uint32_t>(row * kRowBytes + ((group() ^ (row & 7)) << 4));
  }
  template <int kRowBytes>
  TSRI_DEVICE_MEMBER uint32_t free_offset(uint32_t tile) {
    return con_offset<kRowBytes>(tile);
  }
  // Chunk i of a lane's row that is its free operand of step t.
  TSRI_DEVICE_MEMBER int free_chunk(int t, int) { return t * kGroups + group(); }
  TSRI_DEVICE_MEMBER void load_words(uint32_t r[4], uint32_t offset) {
    const CopyWords chunk = shared_at<CopyWords>(offset);
    TSRI_UNROLL
    for (int i = 0; i < 4; ++i) r[i] = chunk[i];
  }
  template <int kRowBytes>
  TSRI_DEVICE_MEMBER void load_con(Con &x, uint32_t offset, int con0, int t) {
    load_words(x.r, along(offset, t * kStep * 2) + static_cast<uint32_t>(con0 * kRowBytes));
  }
  template <int kRowBytes>
  TSRI_DEVICE_MEMBER void load_free(Free &y, uint32_t offset, int free0, int t) {
    load_words(y.r, along(offset, t * kStep * 2) + static_cast<uint32_t>(free0 * kRowBytes));
  }
  // Z of apply, from a transposed tile: con 4 g .. 4 g + 3 of one column. con0 moves whole sets of groups,
  // so that only the low bits of the swizzle differ between lanes.
  template <int kRowBytes>
  TSRI_DEVICE_MEMBER ZOffset z_offset(uint32_t tile, int first = 0) { // first: column tile
    if constexpr (kPlain) return column_offset<kRowBytes>(tile, first * kSide);
    using T = TransposedTile<E, kRowBytes / 2, 1>;
    return ZOffset{tile + T::at(index(), group())};
  }
  template <int kRowBytes>
  TSRI_DEVICE_MEMBER void load_z(Z &z, ZOffset offset, int con0, int tile) {
    if constexpr (kPlain) {
      load_column<kRowBytes>(z.r, offset, con0, tile * kSide);
      return;
    }
    using T = TransposedTile<E, kRowBytes / 2, 1>;
    const int q = con0 / 4;
    const uint32_t flip = static_cast<uint32_t>(((q & T::kMask) ^ T::swizzle(tile * kSide)) * 8);
    const Group group = shared_at<Group>(
        (offset.at ^ flip) + static_cast<uint32_t>(tile * kSide * kRowBytes + (q & ~T::kMask) * 8));
    z.r[0] = group[0];
    z.r[1] = group[1];
  }

  // A column of a plain tile, rows 4 g .. 4 g + 3 of a step: row e is the offset with e in its swizzle.
  template <int kRowBytes>
  TSRI_DEVICE_MEMBER ZOffset column_offset(uint32_t tile, int column) {
    const int row = 4 * group();
    const uint32_t own = static_cast<uint32_t>(row * kRowBytes + ((index() / 8 ^ (row & 7)) << 4) +
                                               index() % 8 * 2);
    return ZOffset{along(tile + own, column * 2)};
  }
  template <int kRowBytes>
  TSRI_DEVICE_MEMBER void load_column(uint32_t r[2], ZOffset offset, int con0, int column) {
    const uint32_t at = along(offset.at, column * 2);
    uint32_t x[4];
    TSRI_UNROLL
    for (int e = 0; e < 4; ++e)
      x[e] = shared_at<uint16_t>((at ^ static_cast<uint32_t>(e << 4)) +
                                 static_cast<uint32_t>((con0 + e) * kRowBytes));
    r[0] = x[0] | x[1] << 16;
    r[1] = x[2] | x[3] << 16;
  }

  // The operand of apply from a plain tile: P[free][con], and the same from a tile [con][free].
  template <int kRowBytes>
  TSRI_DEVICE_MEMBER uint32_t apply_offset(uint32_t tile) {
    const int row = index(), g = group();
    return tile + static_cast<uint32_t>(row * kRowBytes + ((g / 2 ^ (row & 7)) << 4) + g % 2 * 8);
  }
  template <int kRowBytes>
  TSRI_DEVICE_MEMBER void load_apply(P &p, uint32_t offset, int free0, int step) {
    const Group group = shared_at<Group>(along(offset, step * kApplyStep * 2) +
                                         static_cast<uint32_t>(free0 * kRowBytes));
    p.r[0] = group[0];
    p.r[1] = group[1];
  }
  template <int kRowBytes>
  TSRI_DEVICE_MEMBER ApplyTOffset apply_transposed_offset(uint32_t tile, int free0) {
    return column_offset<kRowBytes>(tile, free0);
  }
  template <int kRowBytes>
  TSRI_DEVICE_MEMBER void load_apply_transposed(P &p, ApplyTOffset offset, int free0, int step) {
    load_column<kRowBytes>(p.r, offset, step * kApplyStep, free0);
  }

  // acc[con][free] += X Y^T over one depth step.
  TSRI_DEVICE_MEMBER void score(Acc &acc, const Con &x, const Free &y) {
    mfma(E{}, acc.x, x.r, y.r);
    mfma(E{}, acc.x, x.r + 2, y.r + 2);
  }
  // Elements 4 step .. 4 step + 3 of a lane are con 4 g .. 4 g + 3 of step `step`.
  TSRI_DEVICE_MEMBER void to_operand(P &p, const Acc &acc, int step) {
    p.r[0] = E::pack_numbers(acc.x[4 * step], acc.x[4 * step + 1]);
    p.r[1] = E::pack_numbers(acc.x[4 * step + 2], acc.x[4 * step + 3]);
  }
  // out[column][free] += Z^T P.
  TSRI_DEVICE_MEMBER void apply(Acc &out, const Z &z, const P &p) { mfma(E{}, out.x, z.r, p.r); }
};

} // namespace gpu
} // namespace tessera

#endif // TESSERA_BACKENDS_HIP_GFX9_UNIT_HPP_
