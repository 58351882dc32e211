// SPDX-License-Identifier: Apache-2.0
//
// Units of WMMA (waves of 32), as the tile programs see matrix hardware: see backends/cuda/sm80/unit.hpp
// for what free and con are, and backends/hip/gfx9/unit.hpp for AMD's orientation, which is the same
// here: con is A and the row of an accumulator, free is B and its column. 16x16x16, one free index a lane.
//
// WmmaGfx11<E>   both halves of a wave hold whole operands; a score product leaves half of the next operand
//                in each half of the wave, so that to_operand exchanges four registers
// WmmaGfx12<E>   operands are split between the halves as accumulators are: nothing moves
// kPlain: Z comes from a tile as memory has it, two bytes at a time, and not from a transposed one; for
// programs whose tiles are operands of both kinds.
#ifndef TESSERA_BACKENDS_HIP_GFX11_UNIT_HPP_
#define TESSERA_BACKENDS_HIP_GFX11_UNIT_HPP_

#include <type_traits>

#include "backends/hip/gfx11/instructions.hpp"
#include "common/gpu/tile.hpp"

namespace tessera {
namespace gpu {

// What both share. Lane 16 g + n of an accumulator holds con 8 g .. 8 g + 7 of free n. kWords: registers
// of an operand.
template <class E, int kWords, bool kPlain>
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
  static constexpr bool kStaged = true; // copies to shared memory go through registers

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
  using ZTile = std::conditional_t<kPlain, Tile<E, kTileRows, kColumns>,
                                   TransposedTile<E, kTileRows, kColumns, 2>>;
  struct ZOffset {
    uint32_t at;
  };
  using ApplyTOffset = ZOffset;

  TSRI_DEVICE_MEMBER int index() { return lane_index() % 16; }
  TSRI_DEVICE_MEMBER int half() { return lane_index() / 16; }
  // For offsets into tiles. kPlain: computed where they are used, not kept in registers across a loop.
  TSRI_DEVICE_MEMBER int offset_index() { return offset_lane() % 16; }
  TSRI_DEVICE_MEMBER int offset_lane() { return (kPlain ? fresh_thread_index() : thread_index()) & 31; }
  TSRI_DEVICE_MEMBER constexpr int slot(int) { return 0; }
  TSRI_DEVICE_MEMBER int free_of(int) { return index(); }
  TSRI_DEVICE_MEMBER int con_lane() { return 8 * half(); }
  TSRI_DEVICE_MEMBER constexpr int con_element(int e) { return e; }
  TSRI_DEVICE_MEMBER constexpr int beside(int e, int) { return e; } // the element of e's con and a slot
  // The lane that holds con j of this lane's free index, and what is left of j there.
  TSRI_DEVICE_MEMBER int con_owner(int j) { return index() + 16 * (j / 8 % 2); }
  TSRI_DEVICE_MEMBER int con_rest(int j) { return j / 16 * 16 + j % 8; }
  TSRI_DEVICE_MEMBER bool leads_row() { return half() == 0; }
  TSRI_DEVICE_MEMBER float max_con(float v) { return larger_of(v, shuffle_xor(v, 16)); }
  TSRI_DEVICE_MEMBER float sum_con(float v) { return v + shuffle_xor(v, 16); }

  // Chunk `chunk` of a lane's row of a tile.
  template <int kRowBytes>
  TSRI_DEVICE_MEMBER uint32_t row_offset(uint32_t tile, int row, int chunk) {
    return tile + static_cast<uint32_t>(row * kRowBytes + ((chunk ^ (row & 7)) << 4));
  }
  // Chunk i of a lane's row that is its free operand of step t.
  TSRI_DEVICE_MEMBER int free_chunk(int t, int i) { return t * 2 + (kWords == 8 ? i : half()); }
  TSRI_DEVICE_MEMBER void load_words(uint32_t *r, uint32_t offset) {
    const CopyWords chunk = shared_at<CopyWords>(offset);
    TSRI_UNROLL
    for (int i = 0; i < 4; ++i) r[i] = chunk[i];
  }
  // Z of apply, from a transposed tile: kWords / 2 groups of con of one column, from the group of z_offset
  // on. con0 is a multiple of 16, so that only the low bits of the swizzle differ between lanes.
  template <int kRowBytes>
  TSRI_DEVICE_MEMBER void load_z(Z &z, ZOffset offset, int con0, int tile) {
    if constexpr (kPlain) {
      load_column<kRowBytes>(z, offset, con0, tile * 16);
      return;
    }
    using T = TransposedTile<E, kRowBytes / 2, 1, 2>;
    TSRI_UNROLL
    for (int i = 0; i < kWords / 4; ++i) {
      const int q = con0 / 4 + 2 * i;
      const uint32_t flip = static_cast<uint32_t>(((q & T::kMask) ^ T::swizzle(tile * 16)) * 8);
      load_words(z.r + 4 * i, (offset.at ^ flip) +
                                  static_cast<uint32_t>(tile * 16 * kRowBytes + (q & ~T::kMask) * 8));
    }
  }

  // Element `column` of row `row` of a plain tile, row a multiple of 8, column below 16.
  template <int kRowBytes>
  TSRI_DEVICE_MEMBER uint32_t element_offset(uint32_t tile, int row, int column) {
    constexpr int size = static_cast<int>(sizeof(E));
    return tile + static_cast<uint32_t>(row * kRowBytes + column * size);
  }
  // kWords * 2 rows of a lane's column of a plain tile: row i is the offset with i in its swizzle.
  template <int kRowBytes>
  TSRI_DEVICE_MEMBER void load_column(Operand &z, ZOffset offset, int con0, int column) {
    const uint32_t at = along(offset.at, column * 2) + static_cast<uint32_t>(con0 * kRowBytes);
    keep_order();
    TSRI_UNROLL
    for (int i = 0; i < kWords; ++i) {
      const uint32_t lo = shared_at<uint16_t>((at ^ static_cast<uint32_t>((2 * i & 7) << 4)) +
                                              static_cast<uint32_t>(2 * i * kRowBytes));
      const uint32_t hi = shared_at<uint16_t>((at ^ static_cast<uint32_t>(((2 * i + 1) & 7) << 4)) +
                                              static_cast<uint32_t>((2 * i + 1) * kRowBytes));
      z.r[i] = lo | hi << 16;
    }
  }

  // acc[con][free] += X Y^T.
  TSRI_DEVICE_MEMBER void score(Acc &acc, const Con &x, const Free &y) {
    wmma(E{}, acc.x, x.r, y.r);
  }
  // out[column][free] += Z^T P.
  TSRI_DEVICE_MEMBER void apply(Acc &out, const Z &z, const P &p) { wmma(E{}, out.x, z.r, p.r); }
};

template <class E, bool kPlain = false>
struct WmmaGfx11 : WmmaLayout<E, 8, kPlain> {
  using L = WmmaLayout<E, 8, kPlain>;
  using Fresh = WmmaGfx11<E, true>; // of backward
  using typename L::ApplyTOffset;
  using typename L::Acc;
  using typename L::Con;
  using typename L::Free;
  using typename L::P;
  using typename L::Z;
  using typename L::ZOffset;

  // The instruction leaves row 2 e + g in element e of half g. Fed with row 8 (r % 2) + r / 2 of a tile
  // as its row r, that is row 8 g + e of the tile.
  TSRI_DEVICE_MEMBER int con_row() {
    const int index = L::offset_index();
    return 8 * (index % 2) + index / 2;
  }

  template <int kRowBytes>
  TSRI_DEVICE_MEMBER uint32_t con_offset(uint32_t tile) {
    return L::template row_offset<kRowBytes>(tile, con_row(), 0);
  }
  template <int kRowBytes>
  TSRI_DEVICE_MEMBER uint32_t free_offset(uint32_t tile) {
    return L::template row_offset<kRowBytes>(tile, L::offset_index(), 0);
  }
  template <int kRowBytes>
  TSRI_DEVICE_MEMBER void load_con(Con &x, uint32_t offset, int con0, int t) {
    const uint32_t down = static_cast<uint32_t>(con0 * kRowBytes);
    if (kPlain) keep_order();
    L::load_words(x.r, along(offset, t * 32) + down);
    L::load_words(x.r + 4, along(offset, t * 32 + 16) + down);
  }
  template <int kRowBytes>
  TSRI_DEVICE_MEMBER void load_free(Free &y, uint32_t offset, int free0, int t) {
    load_con<kRowBytes>(y, offset, free0, t);
  }
  template <int kRowBytes>
  TSRI_DEVICE_MEMBER ZOffset z_offset(uint32_t tile, int first = 0) { // first: column tile
    if constexpr (kPlain)
      return ZOffset{along(L::template element_offset<kRowBytes>(tile, 0, con_row()), first * 32)};
    using T = TransposedTile<E, kRowBytes / 2, 1, 2>;
    return ZOffset{tile + T::at(con_row(), 0)};
  }
  // The operand of apply from a plain tile: P[free][con], and the same from a tile [con][free].
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
    return ApplyTOffset{along(L::template element_offset<kRowBytes>(tile, 0, L::offset_index()), free0 * 2)};
  }
  template <int kRowBytes>
  TSRI_DEVICE_MEMBER void load_apply_transposed(P &p, ApplyTOffset offset, int free0, int step) {
    L::template load_column<kRowBytes>(p, offset, step * 16, free0);
  }
  TSRI_DEVICE_MEMBER void to_operand(P &p, const Acc &acc, int) {
    TSRI_UNROLL
    for (int i = 0; i < 4; ++i) {
      const uint32_t own = E::pack_numbers(acc.x[2 * i], acc.x[2 * i + 1]);
      const uint32_t other = shuffle_xor(own, 16);
      p.r[i] = L::half() ? other : own;
      p.r[i + 4] = L::half() ? own : other;
    }
  }
};

template <class E, bool kPlain = false>
struct WmmaGfx12 : WmmaLayout<E, 4, kPlain> {
  using L = WmmaLayout<E, 4, kPlain>;
  using Fresh = WmmaGfx12<E, true>; // of backward
  using typename L::ApplyTOffset;
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
    const int lane = L::offset_lane();
    return L::template row_offset<kRowBytes>(tile, lane % 16, lane / 16);
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
  TSRI_DEVICE_MEMBER ZOffset z_offset(uint32_t tile, int first = 0) { // first: column tile
    if constexpr (kPlain) return apply_transposed_offset<kRowBytes>(tile, first * 16);
    using T = TransposedTile<E, kRowBytes / 2, 1, 2>;
    return ZOffset{tile + T::at(L::index(), 2 * L::half())};
  }
  // The operand of apply from a plain tile: P[free][con], and the same from a tile [con][free].
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
    const int lane = L::offset_lane();
    return ApplyTOffset{
        along(L::template element_offset<kRowBytes>(tile, lane / 16 * 8, lane % 16), free0 * 2)};
  }
  template <int kRowBytes>
  TSRI_DEVICE_MEMBER void load_apply_transposed(P &p, ApplyTOffset offset, int free0, int step) {
    L::template load_column<kRowBytes>(p, offset, step * 16, free0);
  }
  TSRI_DEVICE_MEMBER void to_operand(P &p, const Acc &acc, int) {
    TSRI_UNROLL
    for (int i = 0; i < 4; ++i) p.r[i] = E::pack_numbers(acc.x[2 * i], acc.x[2 * i + 1]);
  }
};

} // namespace gpu
} // namespace tessera

#endif // TESSERA_BACKENDS_HIP_GFX11_UNIT_HPP_
