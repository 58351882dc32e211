// SPDX-License-Identifier: Apache-2.0
//
// Units of mma.sync, as the tile programs see matrix hardware: a product contracts one index; of the
// other two one is "free" (query in forward) and one is "con", which the next product contracts (key in
// forward). Here the score product has the free operand as A and the con operand as B, and what it
// leaves in a lane is already the A operand of the next product: nothing moves between lanes.
//
// MmaSync<E>        16-bit elements, m16n8k16, two n8 halves side by side
// MmaSyncBf16x6     float32, in unit_f32.hpp; MmaSyncPlanes, in unit_planes.hpp
#ifndef TESSERA_BACKENDS_CUDA_SM80_UNIT_HPP_
#define TESSERA_BACKENDS_CUDA_SM80_UNIT_HPP_

#include "backends/cuda/sm80/instructions.hpp"
#include "common/gpu/tile.hpp"

namespace tessera {
namespace gpu {

// What all units of m16n8 accumulators share. An accumulator is 16 free x 16 con (or 16 free x 16
// columns of an output): element e of lane l is at free l / 4 + 8 (e / 2 % 2), con 8 (e / 4) +
// 2 (l % 4) + e % 2.
template <bool kFresh>
struct MmaSyncLayout {
  static constexpr int kWave = 32;
  static constexpr int kFree = 16; // free indices of an accumulator
  static constexpr int kCon = 16;  // con indices of it
  static constexpr int kElements = 8;
  static constexpr int kRows = 2; // distinct free indices of a lane
  static constexpr bool kStaged = false; // the device copies to shared memory by itself

  struct Acc {
    float x[kElements];
  };

  TSRI_DEVICE_MEMBER int lane() { return thread_index() & 31; }
  // For offsets into tiles. kFresh: computed where they are used, not kept in registers across a loop.
  TSRI_DEVICE_MEMBER int offset_lane() {
    return (kFresh ? fresh_thread_index() : thread_index()) & 31;
  }
  TSRI_DEVICE_MEMBER constexpr int slot(int e) { return e / 2 % 2; }
  TSRI_DEVICE_MEMBER int free_of(int slot) { return lane() / 4 + 8 * slot; }
  // con index = con_lane() + con_element(e).
  TSRI_DEVICE_MEMBER int con_lane() { return 2 * (lane() % 4); }
  TSRI_DEVICE_MEMBER constexpr int con_element(int e) { return 8 * (e / 4) + e % 2; }
  // The element of e's con and a slot.
  TSRI_DEVICE_MEMBER constexpr int beside(int e, int slot) { return e - e / 2 % 2 * 2 + 2 * slot; }
  // Element e and e + 1 are neighbours in con for even e.
  // The lane that holds con j of this lane's rows, and what is left of j there: con_element(e), plus kCon
  // for every further accumulator.
  TSRI_DEVICE_MEMBER int con_owner(int j) { return (lane() & ~3) | j % 8 / 2; }
  TSRI_DEVICE_MEMBER int con_rest(int j) { return j / 8 * 8 + j % 2; }
  TSRI_DEVICE_MEMBER bool leads_row() { return lane() % 4 == 0; }
  static constexpr int kRowLanes = 4; // neighbours, that hold the same free indices

  TSRI_DEVICE_MEMBER float max_con(float v) {
    v = larger_of(v, shuffle_xor(v, 1));
    return larger_of(v, shuffle_xor(v, 2));
  }
  TSRI_DEVICE_MEMBER float sum_con(float v) {
    v += shuffle_xor(v, 1);
    return v + shuffle_xor(v, 2);
  }

  // A lane's offset into a tile of rows of kRowBytes for loads of 16 rows x 32 bytes: matrices
  // (rows 0-7, first 16 bytes), (0-7, second), (8-15, first), (8-15, second).
  template <int kRowBytes>
  TSRI_DEVICE_MEMBER uint32_t con_offset(uint32_t tile) {
    const int l = offset_lane(), row = l % 8 + 8 * (l / 16), half = l / 8 % 2;
    return tile + static_cast<uint32_t>(row * kRowBytes + ((half ^ (row & 7)) << 4));
  }
  // Matrices (rows 0-7, first), (8-15, first), (0-7, second), (8-15, second).
  template <int kRowBytes>
  TSRI_DEVICE_MEMBER uint32_t free_offset(uint32_t tile) {
    const int l = offset_lane(), row = l % 16, half = l / 16;
    return tile + static_cast<uint32_t>(row * kRowBytes + ((half ^ (row & 7)) << 4));
  }
};

template <class E, bool kFresh = false>
struct MmaSync : MmaSyncLayout<kFresh> {
  using Base = MmaSyncLayout<kFresh>;
  using typename Base::Acc;
  using Fresh = MmaSync<E, true>;
  using Element = E;
  static constexpr bool kSplits = false; // operands are what memory holds
  static constexpr int kStep = 16;    // depth of one score product
  static constexpr int kApplyStep = 16; // con indices of one apply

  struct Con { // 16 con x kStep
    uint32_t r[4];
  };
  struct Free { // 16 free x kStep
    uint32_t r[4];
  };
  struct Z { // kApplyStep con x 16 columns
    uint32_t r[4];
  };
  using P = Free; // 16 free x kApplyStep con, of apply
  template <int kRows, int kColumns>
  using ZTile = Tile<E, kRows, kColumns>;
  struct ZOffset {
    uint32_t at;
  };

  // X[con][depth] from row con0 and depth step t on; `offset` from con_offset.
  template <int kRowBytes>
  TSRI_DEVICE_MEMBER void load_con(Con &x, uint32_t offset, int con0, int t) {
    ldmatrix(x.r, along(offset, t * 32) + static_cast<uint32_t>(con0 * kRowBytes));
  }
  template <int kRowBytes>
  TSRI_DEVICE_MEMBER void load_free(Free &y, uint32_t offset, int free0, int t) {
    ldmatrix(y.r, along(offset, t * 32) + static_cast<uint32_t>(free0 * kRowBytes));
  }
  // Z[con][column] for apply: 16 columns from 16 * tile on.
  template <int kRowBytes>
  TSRI_DEVICE_MEMBER ZOffset z_offset(uint32_t tile, int first = 0) { // first: column tile
    return ZOffset{along(Base::template free_offset<kRowBytes>(tile), first * 32)};
  }
  template <int kRowBytes>
  TSRI_DEVICE_MEMBER void load_z(Z &z, ZOffset offset, int con0, int tile) {
    ldmatrix_transposed(z.r, along(offset.at, tile * 32) + static_cast<uint32_t>(con0 * kRowBytes));
  }

  // The operand of apply from shared memory: P[free][con], and the same from a tile [con][free].
  struct ApplyTOffset {
    uint32_t at;
  };
  template <int kRowBytes>
  TSRI_DEVICE_MEMBER uint32_t apply_offset(uint32_t tile) {
    return Base::template free_offset<kRowBytes>(tile);
  }
  template <int kRowBytes>
  TSRI_DEVICE_MEMBER void load_apply(Free &p, uint32_t offset, int free0, int step) {
    load_free<kRowBytes>(p, offset, free0, step);
  }
  template <int kRowBytes>
  TSRI_DEVICE_MEMBER ApplyTOffset apply_transposed_offset(uint32_t tile, int free0) {
    return ApplyTOffset{along(Base::template con_offset<kRowBytes>(tile), free0 * 2)};
  }
  template <int kRowBytes>
  TSRI_DEVICE_MEMBER void load_apply_transposed(Free &p, ApplyTOffset offset, int free0, int step) {
    ldmatrix_transposed(p.r, along(offset.at, free0 * 2) +
                                 static_cast<uint32_t>(step * kApplyStep * kRowBytes));
  }

  // acc[free][con] += Y X^T over one depth step.
  TSRI_DEVICE_MEMBER void score(Acc &acc, const Con &x, const Free &y) {
    mma16(E{}, acc.x, y.r, x.r);
    mma16(E{}, acc.x + 4, y.r, x.r + 2);
  }
  // Step s of an accumulator (kCon / kApplyStep of them) as the operand of apply.
  TSRI_DEVICE_MEMBER void to_operand(P &p, const Acc &acc, int) {
    p.r[0] = E::pack(acc.x[0], acc.x[1]);
    p.r[1] = E::pack(acc.x[2], acc.x[3]);
    p.r[2] = E::pack(acc.x[4], acc.x[5]);
    p.r[3] = E::pack(acc.x[6], acc.x[7]);
  }
  // out[free][column] += P Z.
  TSRI_DEVICE_MEMBER void apply(Acc &out, const Z &z, const P &p) {
    mma16(E{}, out.x, p.r, z.r);
    mma16(E{}, out.x + 4, p.r, z.r + 2);
  }
};

} // namespace gpu
} // namespace tessera

#endif // TESSERA_BACKENDS_CUDA_SM80_UNIT_HPP_
