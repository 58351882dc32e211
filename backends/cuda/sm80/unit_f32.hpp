// SPDX-License-Identifier: Apache-2.0
//
// float32 on the tensor cores of compute capability 8.0: every number is b0 + b1 + b2 in bfloat16,
// exactly: b0 is cut off, so that nothing grows into an infinity, b1 is rounded to nearest, and what is
// left has no more bits than b2 holds. A product is six products of planes by m16n8k16; those left out
// are below 2^-23 of it and have both signs. (Numbers below 2^-110 lose bits to bfloat16's subnormals.)
// Tiles in shared memory stay float32, operands are split on the way to registers. The tensor core
// truncates when it adds: two steps have a sum of their own, small products first, which is added to the large
// one with rounding.
//
// An infinity leaves a NaN in its other planes: every result that it enters is NaN and is made again from
// the numbers themselves (common/gpu/recheck.hpp).
#ifndef TESSERA_BACKENDS_CUDA_SM80_UNIT_F32_HPP_
#define TESSERA_BACKENDS_CUDA_SM80_UNIT_F32_HPP_

#include "backends/cuda/sm80/unit.hpp"

namespace tessera {
namespace gpu {

template <bool kFresh = false>
struct MmaSyncBf16x6Of : MmaSyncLayout<kFresh> {
  using Base = MmaSyncLayout<kFresh>;
  using typename Base::Acc;
  using Fresh = MmaSyncBf16x6Of<true>;
  using Element = float;
  static constexpr int kStep = 16;
  static constexpr int kApplyStep = 16;
  // Operands cost arithmetic: products keep their loops, sum by tiles of con, and look for NaN.
  static constexpr bool kSplits = true;
  static constexpr int kSum = 2; // steps of a sum of their own: fewer additions than with one

  struct Planes { // registers of the instruction's operands, per plane
    uint32_t r[3][4];
  };
  using Con = Planes;
  using Free = Planes;
  using Z = Planes;
  using P = Planes;
  template <int kRows, int kColumns>
  using ZTile = Tile<float, kRows, kColumns>;

  // Register i of the operands from two neighbours in contraction order.
  TSRI_DEVICE_MEMBER void split(Planes &s, int i, float lo, float hi) {
    s.r[0][i] = cut_bf16(lo, hi);
    lo -= bits_float(float_bits(lo) & 0xffff0000u);
    hi -= bits_float(float_bits(hi) & 0xffff0000u);
    const uint32_t w = s.r[1][i] = pack_bf16(lo, hi);
    s.r[2][i] = cut_bf16(lo - BFloat16::low(w), hi - BFloat16::high(w));
  }

  // Scores may contract in any order that both sides share. Matrix m of ldmatrix gives lane l the
  // number 4 m + l % 4 of a row; contraction slots 2 t, 2 t + 1, 2 t + 8, 2 t + 9 are matrices 0 to 3.
  template <int kRowBytes>
  TSRI_DEVICE_MEMBER uint32_t con_offset(uint32_t tile) {
    const int l = Base::offset_lane(), row = l % 8, chunk = l / 8;
    return tile + static_cast<uint32_t>(row * kRowBytes + ((chunk ^ row) << 4));
  }
  template <int kRowBytes>
  TSRI_DEVICE_MEMBER uint32_t free_offset(uint32_t tile) {
    return con_offset<kRowBytes>(tile);
  }
  template <int kRowBytes>
  TSRI_DEVICE_MEMBER void load_con(Con &x, uint32_t offset, int con0, int t) {
    TSRI_UNROLL
    for (int half = 0; half < 2; ++half) {
      uint32_t r[4];
      ldmatrix(r, along(offset, t * 64) + static_cast<uint32_t>((con0 + 8 * half) * kRowBytes));
      split(x, 2 * half, bits_float(r[0]), bits_float(r[1]));
      split(x, 2 * half + 1, bits_float(r[2]), bits_float(r[3]));
    }
  }
  template <int kRowBytes>
  TSRI_DEVICE_MEMBER void load_free(Free &y, uint32_t offset, int free0, int t) {
    TSRI_UNROLL
    for (int half = 0; half < 2; ++half) {
      uint32_t r[4];
      ldmatrix(r, along(offset, t * 64) + static_cast<uint32_t>((free0 + 8 * half) * kRowBytes));
      split(y, half, bits_float(r[0]), bits_float(r[1]));
      split(y, half + 2, bits_float(r[2]), bits_float(r[3]));
    }
  }

  // Z[con][column] with con in its own order: rows 2 (l % 4) and the next, and eight below.
  struct ZOffset {
    uint32_t even, odd;
  };
  template <int kRowBytes>
  TSRI_DEVICE_MEMBER ZOffset pair_offset(uint32_t tile, int bytes) {
    const int l = Base::offset_lane(), row = 2 * (l % 4), column = l / 4 * 4;
    const uint32_t even = static_cast<uint32_t>(row * kRowBytes + (column ^ (row << 4)));
    const uint32_t odd = static_cast<uint32_t>((row + 1) * kRowBytes + (column ^ ((row + 1) << 4)));
    return ZOffset{along(tile + even, bytes), along(tile + odd, bytes)};
  }
  template <int kRowBytes>
  TSRI_DEVICE_MEMBER void split_pair(Planes &s, int i, ZOffset offset, int down, int bytes) {
    const uint32_t rows = static_cast<uint32_t>(down * kRowBytes);
    split(s, i, shared_at<float>(along(offset.even, bytes) + rows),
          shared_at<float>(along(offset.odd, bytes) + rows));
  }
  template <int kRowBytes>
  TSRI_DEVICE_MEMBER ZOffset z_offset(uint32_t tile, int first = 0) { // first: column tile
    return pair_offset<kRowBytes>(tile, first * 64);
  }
  template <int kRowBytes>
  TSRI_DEVICE_MEMBER void load_z(Z &z, ZOffset offset, int con0, int tile) {
    TSRI_UNROLL
    for (int i = 0; i < 4; ++i)
      split_pair<kRowBytes>(z, i, offset, con0 + 8 * (i % 2), tile * 64 + i / 2 * 32);
  }

  // The operand of apply from shared memory, with the same order of con: P[free][con], and the same
  // from a tile [con][free].
  template <int kRowBytes>
  TSRI_DEVICE_MEMBER uint32_t apply_offset(uint32_t tile) {
    const int l = Base::offset_lane(), row = l / 4;
    return tile + static_cast<uint32_t>(row * kRowBytes + ((l % 4 * 8) ^ (row << 4)));
  }
  struct alignas(8) Two {
    float lo, hi;
  };
  template <int kRowBytes>
  TSRI_DEVICE_MEMBER void load_apply(P &p, uint32_t offset, int free0, int step) {
    TSRI_UNROLL
    for (int i = 0; i < 4; ++i) {
      const Two two = shared_at<Two>(along(offset, step * 64 + i / 2 * 32) +
                                     static_cast<uint32_t>((free0 + 8 * (i % 2)) * kRowBytes));
      split(p, i, two.lo, two.hi);
    }
  }
  using ApplyTOffset = ZOffset;
  template <int kRowBytes>
  TSRI_DEVICE_MEMBER ApplyTOffset apply_transposed_offset(uint32_t tile, int free0) {
    return pair_offset<kRowBytes>(tile, free0 * 4);
  }
  template <int kRowBytes>
  TSRI_DEVICE_MEMBER void load_apply_transposed(P &p, ApplyTOffset offset, int free0, int step) {
    TSRI_UNROLL
    for (int i = 0; i < 4; ++i)
      split_pair<kRowBytes>(p, i, offset, step * kApplyStep + i / 2 * 8, free0 * 4 + i % 2 * 32);
  }

  // sum = a[0] b[0] + ... of kSteps steps, small products first, both halves of b in turn so that no instruction
  // waits for the one before it. kSwapped: in the order that b a has.
  template <bool kSwapped, int kSteps>
  TSRI_DEVICE_MEMBER void multiply(Acc &sum, const Planes (&a)[kSteps], const Planes (&b)[kSteps]) {
    constexpr int one[6] = {0, 2, 1, 0, 1, 0}, other[6] = {2, 0, 1, 1, 0, 0};
    TSRI_UNROLL
    for (int e = 0; e < Base::kElements; ++e) sum.x[e] = 0.0f;
    TSRI_UNROLL
    for (int n = 0; n < 6; ++n)
      TSRI_UNROLL
      for (int s = 0; s < kSteps; ++s)
        TSRI_UNROLL
        for (int half = 0; half < 2; ++half)
          mma16(BFloat16{}, sum.x + 4 * half, a[s].r[kSwapped ? other[n] : one[n]],
                b[s].r[kSwapped ? one[n] : other[n]] + 2 * half);
  }
  // kTransposed: free and con have changed places. The same products are added in the same order, so that a
  // score does not depend on which of them is free.
  template <bool kTransposed, int kSteps>
  TSRI_DEVICE_MEMBER void score_sum(Acc &sum, const Con (&x)[kSteps], const Free (&y)[kSteps]) {
    multiply<kTransposed>(sum, y, x);
  }
  // The same of one step, added.
  TSRI_DEVICE_MEMBER void score(Acc &acc, const Con &x, const Free &y) { apply(acc, x, y); }
  TSRI_DEVICE_MEMBER void apply(Acc &out, const Z &z, const P &p) {
    const Planes a[1] = {p}, b[1] = {z};
    Acc sum;
    multiply<false>(sum, a, b);
    TSRI_UNROLL
    for (int e = 0; e < Base::kElements; ++e) out.x[e] += sum.x[e];
  }
  TSRI_DEVICE_MEMBER void to_operand(P &p, const Acc &acc, int) {
    TSRI_UNROLL
    for (int i = 0; i < 4; ++i) split(p, i, acc.x[2 * i], acc.x[2 * i + 1]);
  }
  template <int kSteps>
  TSRI_DEVICE_MEMBER void apply_sum(Acc &sum, const Z (&z)[kSteps], const P (&p)[kSteps]) {
    multiply<false>(sum, p, z);
  }
};

using MmaSyncBf16x6 = MmaSyncBf16x6Of<>;

} // namespace gpu
} // namespace tessera

#endif // TESSERA_BACKENDS_CUDA_SM80_UNIT_F32_HPP_
