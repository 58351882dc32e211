// SPDX-License-Identifier: Apache-2.0
//
// float32 as in unit_f32.hpp, with the planes in shared memory: a tile is split once, by the threads that
// copied it, and every wave loads its operands from the planes as they are. Splitting on the way to registers
// costs more than the products where several waves read the same rows. The same planes and the same six
// products in the same order: results have the bits of MmaSyncBf16x6 where the order of con is the same.
#ifndef TESSERA_BACKENDS_CUDA_SM80_UNIT_PLANES_HPP_
#define TESSERA_BACKENDS_CUDA_SM80_UNIT_PLANES_HPP_

#include "backends/cuda/sm80/unit_f32.hpp"
#include "common/gpu/turned.hpp"

namespace tessera {
namespace gpu {

// Rows of three planes of kColumns bfloat16, one after the other, each a multiple of 64 bytes.
template <int kRows_, int kColumns_>
struct PlaneTile {
  static constexpr int kRows = kRows_;
  static constexpr int kColumns = kColumns_;
  static constexpr int kPlanes = 3;
  static constexpr int kRowBytes = ceil_div(kPlanes * kColumns * 2, 128) * 128;
  static constexpr int kBytes = kRows * kRowBytes;
  static constexpr bool kTransposed = false;
  static_assert(kColumns == 32 || kColumns % 64 == 0, "planes begin where a swizzle does, or in its middle");

  // Byte offset of 16-byte chunk c of row r, of all planes.
  TSRI_DEVICE_MEMBER uint32_t at(int r, int c) {
    return static_cast<uint32_t>(r * kRowBytes + ((c ^ (r & 7)) & 7) * 16 + (c & ~7) * 16);
  }
  // Of column `column` of a plane.
  TSRI_DEVICE_MEMBER uint32_t element(int plane, int r, int column) {
    const int bytes = (plane * kColumns + column) * 2;
    return at(r, bytes / 16) + static_cast<uint32_t>(bytes % 16);
  }
  // The number, for common/gpu/recheck.hpp.
  TSRI_DEVICE_MEMBER float value(uint32_t tile, int r, int column) {
    float x[kPlanes];
    TSRI_UNROLL
    for (int p = 0; p < kPlanes; ++p)
      x[p] = bits_float(static_cast<uint32_t>(shared_at<uint16_t>(tile + element(p, r, column))) << 16);
    return x[0] - x[0] == 0.0f ? x[0] + (x[1] + x[2]) : x[0]; // see store()
  }
};

template <bool kFresh = false>
struct MmaSyncPlanesOf : MmaSyncBf16x6Of<kFresh> {
  using Base = MmaSyncLayout<kFresh>;
  using Split = MmaSyncBf16x6Of<kFresh>;
  using typename Base::Acc;
  using Fresh = MmaSyncPlanesOf<true>;
  using Planes = typename Split::Planes;
  using Con = Planes;
  using Free = Planes;
  using Z = Planes;
  using P = Planes;
  template <int kRows, int kColumns>
  using InTile = PlaneTile<kRows, kColumns>;
  template <int kRows, int kColumns>
  using ZTile = PlaneTile<kRows, kColumns>;
  struct ZOffset {
    uint32_t at;
  };
  using ApplyTOffset = ZOffset;

  // Bytes between planes of a row: a third of it, or a quarter of 256 bytes.
  template <int kRowBytes>
  static constexpr int kPlane = kRowBytes % 384 == 0 ? kRowBytes / 3 : kRowBytes / 4;

  template <int kRowBytes>
  TSRI_DEVICE_MEMBER uint32_t con_offset(uint32_t tile) {
    return Base::template con_offset<kRowBytes>(tile);
  }
  template <int kRowBytes>
  TSRI_DEVICE_MEMBER uint32_t free_offset(uint32_t tile) {
    return Base::template free_offset<kRowBytes>(tile);
  }
  template <int kRowBytes>
  TSRI_DEVICE_MEMBER void load(Planes &x, uint32_t offset, int row, int bytes) {
    TSRI_UNROLL
    for (int p = 0; p < 3; ++p)
      ldmatrix(x.r[p], along(offset, bytes + p * kPlane<kRowBytes>) + static_cast<uint32_t>(row * kRowBytes));
  }
  template <int kRowBytes>
  TSRI_DEVICE_MEMBER void load_transposed(Planes &x, uint32_t offset, int row, int bytes) {
    TSRI_UNROLL
    for (int p = 0; p < 3; ++p)
      ldmatrix_transposed(x.r[p], along(offset, bytes + p * kPlane<kRowBytes>) +
                                      static_cast<uint32_t>(row * kRowBytes));
  }
  template <int kRowBytes>
  TSRI_DEVICE_MEMBER void load_con(Con &x, uint32_t offset, int con0, int t) {
    load<kRowBytes>(x, offset, con0, t * 32);
  }
  template <int kRowBytes>
  TSRI_DEVICE_MEMBER void load_free(Free &y, uint32_t offset, int free0, int t) {
    load<kRowBytes>(y, offset, free0, t * 32);
  }
  template <int kRowBytes>
  TSRI_DEVICE_MEMBER ZOffset z_offset(uint32_t tile, int first = 0) { // first: column tile
    return ZOffset{along(free_offset<kRowBytes>(tile), first * 32)};
  }
  template <int kRowBytes>
  TSRI_DEVICE_MEMBER void load_z(Z &z, ZOffset offset, int con0, int tile) {
    load_transposed<kRowBytes>(z, offset.at, con0, tile * 32);
  }
  template <int kRowBytes>
  TSRI_DEVICE_MEMBER uint32_t apply_offset(uint32_t tile) {
    return free_offset<kRowBytes>(tile);
  }
  template <int kRowBytes>
  TSRI_DEVICE_MEMBER void load_apply(P &p, uint32_t offset, int free0, int step) {
    load<kRowBytes>(p, offset, free0, step * 32);
  }
  template <int kRowBytes>
  TSRI_DEVICE_MEMBER ApplyTOffset apply_transposed_offset(uint32_t tile, int free0) {
    return ApplyTOffset{along(con_offset<kRowBytes>(tile), free0 * 2)};
  }
  template <int kRowBytes>
  TSRI_DEVICE_MEMBER void load_apply_transposed(P &p, ApplyTOffset offset, int free0, int step) {
    load_transposed<kRowBytes>(p, offset.at, step * Split::kApplyStep, free0 * 2);
  }

  // Two neighbours, `lo` of an even column, as planes.
  template <class T>
  TSRI_DEVICE_MEMBER void store_pair(uint32_t tile, int r, int column, float lo, float hi) {
    Planes s;
    Split::split(s, 0, lo, hi);
    TSRI_UNROLL
    for (int p = 0; p < 3; ++p) shared_at<uint32_t>(tile + T::element(p, r, column)) = s.r[p][0];
  }
  // sum, or NaN where a number of the chunk is not finite or beyond 2^100, where sums of products may end.
  TSRI_DEVICE_MEMBER float odd_sum(float sum, const Chunk &chunk) {
    TSRI_UNROLL
    for (int e = 0; e < 4; ++e) sum = multiply_add(bits_float(chunk.w[e]) * 0x1p28f, 0.0f, sum);
    return sum;
  }
  // Four neighbours. What is not finite is in its first plane alone, a NaN as a quiet one, so that value()
  // finds it again: next to an infinity the other planes are zeros, and a product with them is NaN or right.
  // has_odd: a chunk of the wave has such numbers.
  template <class T>
  TSRI_DEVICE_MEMBER void store_chunk(uint32_t tile, int r, int c, const Chunk &chunk, bool has_odd) {
    Planes s;
    float x[4];
    TSRI_UNROLL
    for (int e = 0; e < 4; ++e) x[e] = bits_float(chunk.w[e]);
    Split::split(s, 0, x[0], x[1]);
    Split::split(s, 1, x[2], x[3]);
    if (has_odd) {
      TSRI_UNROLL
      for (int i = 0; i < 2; ++i)
        TSRI_UNROLL
        for (int half = 0; half < 2; ++half) {
          const float v = x[2 * i + half];
          if (v - v == 0.0f) continue;
          const uint32_t keep = half ? 0x0000ffffu : 0xffff0000u;
          if (v != v) s.r[0][i] = (s.r[0][i] & keep) | (0x7fc07fc0u & ~keep);
          s.r[1][i] &= keep;
          s.r[2][i] &= keep;
        }
    }
    TSRI_UNROLL
    for (int p = 0; p < 3; ++p)
      shared_at<Group>(tile + T::element(p, r, 4 * c)) = Group{{s.r[p][0], s.r[p][1]}};
  }
};

using MmaSyncPlanes = MmaSyncPlanesOf<>;

} // namespace gpu
} // namespace tessera

#endif // TESSERA_BACKENDS_CUDA_SM80_UNIT_PLANES_HPP_
