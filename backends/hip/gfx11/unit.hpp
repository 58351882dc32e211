// SPDX-License-Identifier: Apache-2.0
//
// Units of WMMA (waves of 32), as the tile programs see matrix hardware: see backends/cuda/sm80/unit.hpp
// for what free and con are, and backends/hip/gfx9/unit.hpp for AMD's orientation, which is the same
// here: con is A and the row of an accumulator, free is B and its column. 16x16x16, one free index a lane.
//
// WmmaGfx11<E>   both halves of a wave hold whole operands; a score product leaves half of the next operand
//                in each half of the wave, so that to_operand exchanges four registers
// WmmaGfx12<E>   operands are split between the halves as accumulators are: nothing moves
#ifndef TESSERA_BACKENDS_HIP_GFX11_UNIT_HPP_
#define TESSERA_BACKENDS_HIP_GFX11_UNIT_HPP_

#include "backends/hip/gfx11/instructions.hpp"
#include "common/gpu/tile.hpp"

namespace tessera {
namespace gpu {

// What both share. Lane 16 g + n of an accumulator holds con 8 g .. 8 g + 7 of free n. kWords: registers
// of an operand.
template <class E, int kWords>
struct WmmaLayout {
  using Element = E;
  static constexpr int kWave = 32;
  static constexpr int kFree = 16;
  static constexpr int kCon = 16;
  static constexpr int kElements = 8;
  static constexpr int kRows = 1;
  static constexpr int kStep = 16;
  static constexpr int kApplyStep = 16;
  static constexpr bool kSplits = false; // operands are what memory holds

  struct Acc {
    float x[kElements];
  };
  struct Operand {
    uint32_t r[kWords];
  };
  using Con = Operand;
  using Free = Operand;
  using Z = Operand;
  using P = Operand;
  template <int kTileRows, int kColumns>
  using ZTile = TransposedTile<E, kTileRows, kColumns>;
  struct ZOffset {
    uint32_t at;
  };

  TSRI_DEVICE_MEMBER int index() { return lane_index() % 16; }
  TSRI_DEVICE_MEMBER int half() { return lane_index() / 16; }
  TSRI_DEVICE_MEMBER constexpr int slot(int) { return 0; }
  TSRI_DEVICE_MEMBER int free_of(int) { return index(); }
  TSRI_DEVICE_MEMBER int con_lane() { return 8 * half(); }
  TSRI_DEVICE_MEMBER constexpr int con_element(int e) { return e; }
  TSRI_DEVICE_MEMBER bool leads_row() { return half() == 0; }
  TSRI_DEVICE_MEMBER float max_con(float v) { return larger_of(v, shuffle_xor(v, 16)); }
  TSRI_DEVICE_MEMBER float sum_con(float v) { return v + shuffle_xor(v, 16); }

  // Chunk `chunk` of a lane's row of a tile.
  template <int kRowBytes>
  TSRI_DEVICE_MEMBER uint32_t row_offset(uint32_t tile, int row, int chunk) {
    return tile + static_cast<uint32_t>(row * kRowBytes + ((chunk ^ (row & 7)) << 4));
  }
  TSRI_DEVICE_MEMBER void load_words(uint32_t *r, uint32_t offset) {
    const Chunk chunk = shared_at<Chunk>(offset);
    TSRI_UNROLL
    for (int i = 0; i < 4; ++i) r[i] = chunk.w[i];
  }
  // Z of apply, from a transposed tile: kWords / 2 groups of con of one column, from the group of z_offset
  // on. con0 is a multiple of 16, so that only the low bits of the swizzle differ between lanes.
  template <int kRowBytes>
  TSRI_DEVICE_MEMBER void load_z(Z &z, ZOffset offset, int con0, int tile) {
    using T = TransposedTile<E, kRowBytes / 2, 1>;
    TSRI_UNROLL
    for (int i = 0; i < kWords / 2; ++i) {
      const int q = con0 / 4 + i;
      const uint32_t flip = static_cast<uint32_t>(((q & T::kMask) ^ T::swizzle(tile * 16)) * 8);
      const Group group = shared_at<Group>(
          (offset.at ^ flip) + static_cast<uint32_t>(tile * 16 * kRowBytes + (q & ~T::kMask) * 8));
      z.r[2 * i] = group.w[0];
      z.r[2 * i + 1] = group.w[1];
    }
  }

  // acc[con][free] += X Y^T.
  TSRI_DEVICE_MEMBER void score(Acc &acc, const Con &x, const Free &y) {
    wmma(E{}, acc.x, x.r, y.r);
  }
  // out[column][free] += Z^T P.
  TSRI_DEVICE_MEMBER void apply(Acc &out, const Z &z, const P &p) { wmma(E{}, out.x, z.r, p.r); }
};

template <class E>
struct WmmaGfx11 : WmmaLayout<E, 8> {
  using L = WmmaLayout<E, 8>;
  using typename L::Acc;
  using typename L::Con;
  using typename L::Free;
  using typename L::P;
  using typename L::Z;
  using typename L::ZOffset;

  // The instruction leaves row 2 e + g in element e of half g. Fed with row 8 (r % 2) + r / 2 of a tile
  // as its row r, that is row 8 g + e of the tile.
  TSRI_DEVICE_MEMBER int con_row() { return 8 * (L::index() % 2) + L::index() / 2; }

  template <int kRowBytes>
  TSRI_DEVICE_MEMBER uint32_t con_offset(uint32_t tile) {
    return L::template row_offset<kRowBytes>(tile, con_row(), 0);
  }
  template <int kRowBytes>
  TSRI_DEVICE_MEMBER uint32_t free_offset(uint32_t tile) {
    return L::template row_offset<kRowBytes>(tile, L::index(), 0);
  }
  template <int kRowBytes>
  TSRI_DEVICE_MEMBER void load_con(Con &x, uint32_t offset, int con0, int t) {
    const uint32_t down = static_cast<uint32_t>(con0 * kRowBytes);
    L::load_words(x.r, along(offset, t * 32) + down);
    L::load_words(x.r + 4, along(offset, t * 32 + 16) + down);
  }
  template <int kRowBytes>
  TSRI_DEVICE_MEMBER void load_free(Free &y, uint32_t offset, int free0, int t) {
    load_con<kRowBytes>(y, offset, free0, t);
  }
  template <int kRowBytes>
  TSRI_DEVICE_MEMBER ZOffset z_offset(uint32_t tile) {
    using T = TransposedTile<E, kRowBytes / 2, 1>;
    return ZOffset{tile + T::at(con_row(), 0)};
  }
  TSRI_DEVICE_MEMBER void to_operand(P &p, const Acc &acc, int) {
    TSRI_UNROLL
    for (int i = 0; i < 4; ++i) {
      const uint32_t own = E::pack(acc.x[2 * i], acc.x[2 * i + 1]);
      const uint32_t other = shuffle_xor(own, 16);
      p.r[i] = L::half() ? other : own;
      p.r[i + 4] = L::half() ? own : other;
    }
  }
};

template <class E>
struct WmmaGfx12 : WmmaLayout<E, 4> {
  using L = WmmaLayout<E, 4>;
  using typename L::Acc;
  using typename L::Con;
  using typename L::Free;
  using typename L::P;
  using typename L::Z;
  using typename L::ZOffset;

  // A lane's 16 bytes are depth 8 g .. 8 g + 7 on both sides, which is a relabelling of the instruction's
  // order that both sides share.
  template <int kRowBytes>
  TSRI_DEVICE_MEMBER uint32_t con_offset(uint32_t tile) {
    return L::template row_offset<kRowBytes>(tile, L::index(), L::half());
  }
  template <int kRowBytes>
  TSRI_DEVICE_MEMBER uint32_t free_offset(uint32_t tile) {
    return con_offset<kRowBytes>(tile);
  }
  template <int kRowBytes>
  TSRI_DEVICE_MEMBER void load_con(Con &x, uint32_t offset, int con0, int t) {
    L::load_words(x.r, along(offset, t * 32) + static_cast<uint32_t>(con0 * kRowBytes));
  }
  template <int kRowBytes>
  TSRI_DEVICE_MEMBER void load_free(Free &y, uint32_t offset, int free0, int t) {
    load_con<kRowBytes>(y, offset, free0, t);
  }
  template <int kRowBytes>
  TSRI_DEVICE_MEMBER ZOffset z_offset(uint32_t tile) {
    using T = TransposedTile<E, kRowBytes / 2, 1>;
    return ZOffset{tile + T::at(L::index(), 2 * L::half())};
  }
  TSRI_DEVICE_MEMBER void to_operand(P &p, const Acc &acc, int) {
    TSRI_UNROLL
    for (int i = 0; i < 4; ++i) p.r[i] = E::pack(acc.x[2 * i], acc.x[2 * i + 1]);
  }
};

} // namespace gpu
} // namespace tessera

#endif // TESSERA_BACKENDS_HIP_GFX11_UNIT_HPP_
