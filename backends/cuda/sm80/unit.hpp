// SPDX-License-Identifier: Apache-2.0
//
// Units of mma.sync, as the tile programs see matrix hardware: a product contracts one index; of the
// other two one is "free" (query in forward) and one is "con", which the next product contracts (key in
// forward). Here the score product has the free operand as A and the con operand as B, and what it
// leaves in a lane is already the A operand of the next product: nothing moves between lanes.
//
// MmaSync<E>        16-bit elements, m16n8k16, two n8 halves side by side
// MmaSyncTf32       float32 as hi + lo in tf32: hi hi' + hi lo' + lo hi', error near 2^-22 of a product
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
  // Element e and e + 1 are neighbours in con for even e.
  TSRI_DEVICE_MEMBER bool leads_row() { return lane() % 4 == 0; }

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
  static constexpr int kStep = 16;    // depth of one score product
  static constexpr int kApplyStep = 16; // con indices of one apply
  static constexpr bool kLoops = false;

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
  // The same; units whose sum has an order need another one here.
  TSRI_DEVICE_MEMBER void score_transposed(Acc &acc, const Con &x, const Free &y) {
    score(acc, x, y);
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

template <bool kFresh = false>
struct MmaSyncTf32 : MmaSyncLayout<kFresh> {
  using Base = MmaSyncLayout<kFresh>;
  using typename Base::Acc;
  using Fresh = MmaSyncTf32<true>;
  using Element = float;
  static constexpr int kStep = 8;
  static constexpr int kApplyStep = 8;
  static constexpr bool kLoops = kFresh;

  // A value as two tf32 numbers. finite is hi, or 0 where the value is infinite: an infinity must not
  // meet the zero of the other side's lo, which would make a NaN of a good product.
  template <int n>
  struct Split {
    uint32_t hi[n], lo[n], finite[n];
  };
  template <int n>
  TSRI_DEVICE_MEMBER void split(Split<n> &s, int i, float v) {
    uint32_t hi = round_tf32(v);
    const bool overflow = (hi & 0x7fffffffu) == 0x7f800000u;
    if (overflow) hi = float_bits(v) & 0xffffe000u;
    const bool infinite = (hi & 0x7fffffffu) == 0x7f800000u;
    s.hi[i] = hi;
    s.finite[i] = infinite ? 0u : hi;
    s.lo[i] = infinite ? 0u : round_tf32(v - bits_float(hi));
  }
  using Con = Split<4>;
  using Free = Split<4>;
  using Z = Split<4>;
  using P = Free;
  template <int kRows, int kColumns>
  using ZTile = Tile<float, kRows, kColumns>;
  struct ZOffset {
    uint32_t even, odd;
  };

  template <int n>
  TSRI_DEVICE_MEMBER void split_words(Split<n> &s, const uint32_t r[n]) {
    TSRI_UNROLL
    for (int i = 0; i < n; ++i) split(s, i, bits_float(r[i]));
  }
  template <int kRowBytes>
  TSRI_DEVICE_MEMBER void load_con(Con &x, uint32_t offset, int con0, int t) {
    uint32_t r[4];
    ldmatrix(r, along(offset, t * 32) + static_cast<uint32_t>(con0 * kRowBytes));
    split_words(x, r);
  }
  template <int kRowBytes>
  TSRI_DEVICE_MEMBER void load_free(Free &y, uint32_t offset, int free0, int t) {
    uint32_t r[4];
    ldmatrix(r, along(offset, t * 32) + static_cast<uint32_t>(free0 * kRowBytes));
    split_words(y, r);
  }
  // Contraction slot t of the instruction is con 2t, slot t + 4 is con 2t + 1, on both sides: then P is
  // where the score product left it.
  template <int kRowBytes>
  TSRI_DEVICE_MEMBER ZOffset z_offset(uint32_t tile, int first = 0) { // first: column tile
    return pair_offset<kRowBytes>(tile, first * 64);
  }
  template <int kRowBytes>
  TSRI_DEVICE_MEMBER ZOffset pair_offset(uint32_t tile, int bytes) {
    const int l = Base::offset_lane(), row = 2 * (l % 4), column = l / 4 * 4;
    const uint32_t even = static_cast<uint32_t>(row * kRowBytes + (column ^ (row << 4)));
    const uint32_t odd = static_cast<uint32_t>((row + 1) * kRowBytes + (column ^ ((row + 1) << 4)));
    return ZOffset{along(tile + even, bytes), along(tile + odd, bytes)};
  }
  template <int kRowBytes>
  TSRI_DEVICE_MEMBER void load_z(Z &z, ZOffset offset, int con0, int tile) {
    const uint32_t down = static_cast<uint32_t>(con0 * kRowBytes);
    TSRI_UNROLL
    for (int n = 0; n < 2; ++n) {
      const int bytes = tile * 64 + n * 32;
      split(z, 2 * n, shared_at<float>(along(offset.even, bytes) + down));
      split(z, 2 * n + 1, shared_at<float>(along(offset.odd, bytes) + down));
    }
  }

  // The operand of apply from shared memory, with the same order of con as load_z has.
  using ApplyTOffset = ZOffset;
  template <int kRowBytes>
  TSRI_DEVICE_MEMBER uint32_t apply_offset(uint32_t tile) {
    const int l = Base::offset_lane(), row = l / 4;
    return tile + static_cast<uint32_t>(row * kRowBytes + ((l % 4 * 8) ^ (row << 4)));
  }
  template <int kRowBytes>
  TSRI_DEVICE_MEMBER void load_apply(Free &p, uint32_t offset, int free0, int step) {
    TSRI_UNROLL
    for (int n = 0; n < 2; ++n) {
      const uint32_t at =
          along(offset, step * 32) + static_cast<uint32_t>((free0 + 8 * n) * kRowBytes);
      split(p, n, shared_at<float>(at));
      split(p, n + 2, shared_at<float>(at + 4));
    }
  }
  template <int kRowBytes>
  TSRI_DEVICE_MEMBER ApplyTOffset apply_transposed_offset(uint32_t tile, int free0) {
    return pair_offset<kRowBytes>(tile, free0 * 4);
  }
  template <int kRowBytes>
  TSRI_DEVICE_MEMBER void load_apply_transposed(Free &p, ApplyTOffset offset, int free0, int step) {
    const uint32_t down = static_cast<uint32_t>(step * kApplyStep * kRowBytes);
    TSRI_UNROLL
    for (int n = 0; n < 2; ++n) {
      const int bytes = free0 * 4 + n * 32;
      split(p, n, shared_at<float>(along(offset.even, bytes) + down));
      split(p, n + 2, shared_at<float>(along(offset.odd, bytes) + down));
    }
  }

  TSRI_DEVICE_MEMBER void multiply(float c[4], const Free &a, const Split<4> &b, int n) {
    mma8_tf32(c, a.lo, b.finite + 2 * n);
    mma8_tf32(c, a.finite, b.lo + 2 * n);
    mma8_tf32(c, a.hi, b.hi + 2 * n);
  }
  TSRI_DEVICE_MEMBER void score(Acc &acc, const Con &x, const Free &y) {
    multiply(acc.x, y, x, 0);
    multiply(acc.x + 4, y, x, 1);
  }
  // score where free and con have changed places: the same sum in the same order, so that a score does not
  // depend on which of them is free.
  TSRI_DEVICE_MEMBER void score_transposed(Acc &acc, const Con &x, const Free &y) {
    TSRI_UNROLL
    for (int n = 0; n < 2; ++n) {
      mma8_tf32(acc.x + 4 * n, y.finite, x.lo + 2 * n);
      mma8_tf32(acc.x + 4 * n, y.lo, x.finite + 2 * n);
      mma8_tf32(acc.x + 4 * n, y.hi, x.hi + 2 * n);
    }
  }
  TSRI_DEVICE_MEMBER void to_operand(P &p, const Acc &acc, int step) {
    const float *x = acc.x + 4 * step;
    split(p, 0, x[0]);
    split(p, 1, x[2]);
    split(p, 2, x[1]);
    split(p, 3, x[3]);
  }
  TSRI_DEVICE_MEMBER void apply(Acc &out, const Z &z, const P &p) {
    multiply(out.x, p, z, 0);
    multiply(out.x + 4, p, z, 1);
  }
};

using MmaSyncTf32x3 = MmaSyncTf32<>;

} // namespace gpu
} // namespace tessera

#endif // TESSERA_BACKENDS_CUDA_SM80_UNIT_HPP_
