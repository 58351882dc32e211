// SPDX-License-Identifier: Apache-2.0
//
// float32 as two float16 planes and a power of two a row: x = 2^e (h + l), with the largest number of a
// row below 2^15. A product is three products of planes, half of what three planes of bfloat16 take, and operands are
// two thirds of their size. h has 11 bits of a float32's 24, l 11 more and its sign: what is left of x is at most
// one unit in its last place, in one number of four, and l l is below 2^-22 of a product, 2^-24 as a rule. Sums of 32
// products and more round further than that; for shorter ones see docs/numerics.md, 7. A number 2^-16 of the largest of
// its row and less keeps an absolute error of up to 2^-39 of that.
//
// Rows of Q and K give factors on scores, those of V on probabilities before they are split in turn; these are at most
// 1 (kExactMax of forward.hpp). As with three planes, what is not finite leaves NaN behind and is made again.
#ifndef TESSERA_BACKENDS_CUDA_SM80_UNIT_HALVES_HPP_
#define TESSERA_BACKENDS_CUDA_SM80_UNIT_HALVES_HPP_

#include "backends/cuda/sm80/unit.hpp"
#include "common/gpu/turned.hpp"

namespace tessera {
namespace gpu {

// Rows of two planes of kColumns float16, one after the other, and behind all rows a power of two for each.
template <int kRows_, int kColumns_>
struct HalvesTile {
  static constexpr int kRows = kRows_;
  static constexpr int kColumns = kColumns_;
  static constexpr int kPlanes = 2;
  static constexpr int kRowBytes = kPlanes * kColumns * 2;
  static constexpr int kScales = kRows * kRowBytes;
  static constexpr int kBytes = ceil_div(kScales + kRows * 4, 128) * 128;
  static constexpr bool kTransposed = false;
  static_assert(kColumns == 32 || kColumns % 64 == 0, "planes begin where a swizzle does, or in its middle");

  TSRI_DEVICE_MEMBER uint32_t at(int r, int c) {
    return static_cast<uint32_t>(r * kRowBytes + ((c ^ (r & 7)) & 7) * 16 + (c & ~7) * 16);
  }
  // Of column `column` of a plane.
  TSRI_DEVICE_MEMBER uint32_t element(int plane, int r, int column) {
    const int bytes = (plane * kColumns + column) * 2;
    return at(r, bytes / 16) + static_cast<uint32_t>(bytes % 16);
  }
  // The number in its row's unit, for common/gpu/recheck.hpp.
  TSRI_DEVICE_MEMBER float value(uint32_t tile, int r, int column) {
    const float h = f16_to_float(shared_at<uint16_t>(tile + element(0, r, column)));
    return h - h == 0.0f ? h + f16_to_float(shared_at<uint16_t>(tile + element(1, r, column))) : h;
  }
  // Where a column of a row is in both planes, and the row's scale.
  struct Place {
    uint32_t plane[2], scale;
  };
  TSRI_DEVICE_MEMBER Place place(uint32_t tile, int r, int column) {
    return Place{{tile + element(0, r, column), tile + element(1, r, column)},
                 tile + static_cast<uint32_t>(kScales + r * 4)};
  }
  // Rows further down, a multiple of eight.
  TSRI_DEVICE_MEMBER void down(Place &place, int rows) {
    place.plane[0] += static_cast<uint32_t>(rows * kRowBytes);
    place.plane[1] += static_cast<uint32_t>(rows * kRowBytes);
    place.scale += static_cast<uint32_t>(rows * 4);
  }
  // Of row r.
  TSRI_DEVICE_MEMBER float &scale(uint32_t tile, int r) {
    return shared_at<float>(tile + static_cast<uint32_t>(kScales + r * 4));
  }
};

template <bool kFresh = false>
struct MmaSyncHalvesOf : MmaSyncLayout<kFresh> {
  using Base = MmaSyncLayout<kFresh>;
  using typename Base::Acc;
  using Fresh = MmaSyncHalvesOf<true>;
  using Element = float;
  static constexpr int kStep = 16;
  static constexpr int kApplyStep = 16;
  static constexpr bool kSplits = true;
  static constexpr int kSum = 2; // as in unit_f32.hpp: the tensor core truncates, sums of two steps are added rounded

  struct Planes { // registers of the instruction's operands, per plane
    uint32_t r[2][4];
  };
  using Con = Planes;
  using Free = Planes;
  using Z = Planes;
  using P = Planes;
  template <int kRows, int kColumns>
  using InTile = HalvesTile<kRows, kColumns>;
  template <int kRows, int kColumns>
  using ZTile = HalvesTile<kRows, kColumns>;
  struct ZOffset {
    uint32_t at;
  };

  // Register i of the operands from two neighbours in contraction order.
  TSRI_DEVICE_MEMBER void split(Planes &s, int i, float lo, float hi) {
    const uint32_t w = s.r[0][i] = pack_f16(lo, hi);
    s.r[1][i] = pack_f16(lo - Half::low(w), hi - Half::high(w));
  }
  template <int kRowBytes>
  TSRI_DEVICE_MEMBER void load(Planes &x, uint32_t offset, int row, int bytes) {
    TSRI_UNROLL
    for (int p = 0; p < 2; ++p)
      ldmatrix(x.r[p], along(offset, bytes + p * (kRowBytes / 2)) + static_cast<uint32_t>(row * kRowBytes));
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
    return ZOffset{along(Base::template free_offset<kRowBytes>(tile), first * 32)};
  }
  template <int kRowBytes>
  TSRI_DEVICE_MEMBER void load_z(Z &z, ZOffset offset, int con0, int tile) {
    TSRI_UNROLL
    for (int p = 0; p < 2; ++p)
      ldmatrix_transposed(z.r[p], along(offset.at, tile * 32 + p * (kRowBytes / 2)) +
                                      static_cast<uint32_t>(con0 * kRowBytes));
  }

  // The operand of apply from a tile [con][free].
  using ApplyTOffset = ZOffset;
  template <int kRowBytes>
  TSRI_DEVICE_MEMBER ApplyTOffset apply_transposed_offset(uint32_t tile, int free0) {
    return ApplyTOffset{along(Base::template con_offset<kRowBytes>(tile), free0 * 2)};
  }
  template <int kRowBytes>
  TSRI_DEVICE_MEMBER void load_apply_transposed(P &p, ApplyTOffset offset, int free0, int step) {
    TSRI_UNROLL
    for (int n = 0; n < 2; ++n)
      ldmatrix_transposed(p.r[n], along(offset.at, free0 * 2 + n * (kRowBytes / 2)) +
                                      static_cast<uint32_t>(step * kApplyStep * kRowBytes));
  }
  // sums[i][k] = a[i][0] b[k][0] + ... of kSteps steps, small products first. All sums in turn: a product waits
  // longer for the one before it in its sum than for the tensor core.
  // kSwapped: in the order that b a has, see score_sum of unit_f32.hpp.
  template <bool kSwapped, int kFree, int kCon, int kSteps>
  TSRI_DEVICE_MEMBER void multiply_all(Acc (&sums)[kFree][kCon], const Planes (&a)[kFree][kSteps],
                                       const Planes (&b)[kCon][kSteps]) {
    TSRI_UNROLL
    for (int i = 0; i < kFree; ++i)
      TSRI_UNROLL
      for (int k = 0; k < kCon; ++k)
        TSRI_UNROLL
        for (int e = 0; e < Base::kElements; ++e) sums[i][k].x[e] = 0.0f;
    TSRI_UNROLL
    for (int n = 0; n < 3; ++n)
      TSRI_UNROLL
      for (int s = 0; s < kSteps; ++s)
        TSRI_UNROLL
        for (int i = 0; i < kFree; ++i)
          TSRI_UNROLL
          for (int k = 0; k < kCon; ++k)
            TSRI_UNROLL
            for (int half = 0; half < 2; ++half)
              mma16(Half{}, sums[i][k].x + 4 * half, a[i][s].r[n == !kSwapped], b[k][s].r[n == kSwapped] + 2 * half);
  }

  // sum = a[0] b[0] + ... of kSteps steps, small products first, both halves of b in turn.
  template <int kSteps>
  TSRI_DEVICE_MEMBER void multiply(Acc &sum, const Planes (&a)[kSteps], const Planes (&b)[kSteps]) {
    TSRI_UNROLL
    for (int e = 0; e < Base::kElements; ++e) sum.x[e] = 0.0f;
    TSRI_UNROLL
    for (int n = 0; n < 3; ++n)
      TSRI_UNROLL
      for (int s = 0; s < kSteps; ++s)
        TSRI_UNROLL
        for (int half = 0; half < 2; ++half)
          mma16(Half{}, sum.x + 4 * half, a[s].r[n == 1], b[s].r[n == 0] + 2 * half);
  }
  template <bool kTransposed, int kSteps>
  TSRI_DEVICE_MEMBER void score_sum(Acc &sum, const Con (&x)[kSteps], const Free (&y)[kSteps]) {
    static_assert(!kTransposed, "not of transposed scores");
    multiply(sum, y, x);
  }
  // The same of one step, added.
  TSRI_DEVICE_MEMBER void score(Acc &acc, const Con &x, const Free &y) { apply(acc, x, y); }
  TSRI_DEVICE_MEMBER void apply(Acc &out, const Z &z, const P &p) {
    const Planes a[1] = {p}, b[1] = {z};
    Acc sum;
    multiply(sum, a, b);
    TSRI_UNROLL
    for (int e = 0; e < Base::kElements; ++e) out.x[e] += sum.x[e];
  }
  TSRI_DEVICE_MEMBER void to_operand(P &p, const Acc &acc, int) {
    TSRI_UNROLL
    for (int i = 0; i < 4; ++i) split(p, i, acc.x[2 * i], acc.x[2 * i + 1]);
  }
  template <int kSteps>
  TSRI_DEVICE_MEMBER void apply_sum(Acc &sum, const Z (&z)[kSteps], const P (&p)[kSteps]) {
    multiply(sum, p, z);
  }

  // Four neighbours of each of kCount rows, kDown apart from `place` on; the lanes that hold a row's chunks call it
  // together, leads: with its first. What is not finite stands in the first plane alone and does not count for the
  // row's scale. Whether a row of the wave has a number that is not finite, or so large that sums of products may not be.
  template <class T, int kDown, int kCount>
  TSRI_DEVICE_MEMBER bool store_scaled(const typename T::Place &place, const Chunk (&chunk)[kCount], bool leads) {
    constexpr uint32_t infinite = 0x7f800000u, large = 0x71800000u; // 2^100
    uint32_t most[kCount], all = 0;
    TSRI_UNROLL
    for (int n = 0; n < kCount; ++n) {
      most[n] = most_of_row<T::kColumns / 4>(larger_word(larger_word(chunk[n].w[0] & ~kSign, chunk[n].w[1] & ~kSign),
                                                         larger_word(chunk[n].w[2] & ~kSign, chunk[n].w[3] & ~kSign)));
      all = larger_word(all, most[n]);
    }
    const bool odd = any_lane(all > large);
    if (seldom(odd)) { // the largest number that is one
      TSRI_UNROLL
      for (int n = 0; n < kCount; ++n) {
        uint32_t mine = 0;
        TSRI_UNROLL
        for (int e = 0; e < 4; ++e) {
          const uint32_t bits = chunk[n].w[e] & ~kSign;
          mine = bits < infinite ? larger_word(mine, bits) : mine;
        }
        most[n] = most_of_row<T::kColumns / 4>(mine);
      }
    }
    TSRI_UNROLL
    for (int n = 0; n < kCount; ++n) {
      float up, unit;
      unit_of(most[n], up, unit);
      if (leads) shared_at<float>(place.scale + n * kDown * 4) = unit;
      Planes s;
      float x[4];
      TSRI_UNROLL
      for (int e = 0; e < 4; ++e) x[e] = bits_float(chunk[n].w[e]) * up;
      split(s, 0, x[0], x[1]);
      split(s, 1, x[2], x[3]);
      if (seldom(odd)) {
        TSRI_UNROLL
        for (int e = 0; e < 4; ++e)
          if ((chunk[n].w[e] & ~kSign) >= infinite) s.r[1][e / 2] &= e % 2 ? 0x0000ffffu : 0xffff0000u;
      }
      TSRI_UNROLL
      for (int p = 0; p < 2; ++p)
        shared_at<Group>((kDown % 8 != 0 && n % 2 != 0 ? place.plane[p] ^ 64u : place.plane[p]) +
                         n * kDown * T::kRowBytes) = Group{{s.r[p][0], s.r[p][1]}};
    }
    return odd;
  }
  static constexpr uint32_t kSign = 0x80000000u;
  TSRI_DEVICE_MEMBER uint32_t larger_word(uint32_t a, uint32_t b) { return a > b ? a : b; }
  // Over kLanes neighbouring lanes.
  template <int kLanes>
  TSRI_DEVICE_MEMBER uint32_t most_of_row(uint32_t x) {
    static_assert(kLanes == 16 || kLanes == 32, "rows of 64 or 128 columns");
    if (kLanes == 32) return max_lanes(x);
    const bool second = Base::lane() >= 16;
    const uint32_t low = max_lanes(second ? 0 : x), high = max_lanes(second ? x : 0);
    return second ? high : low;
  }

  // A sum out of the units a and b of its rows. The smaller factor comes first, so that nothing overflows on the way.
  TSRI_DEVICE_MEMBER float out_of_units(float x, float a, float b) { return x * -larger_of(-a, -b) * larger_of(a, b); }

  // Scores of rows of Q x rows of K from `k_tile` on, out of their rows' units. wave_row: of the tile of Q.
  template <class TX, class TY, int kFree, int kCon>
  TSRI_DEVICE_MEMBER void scale_scores(Acc (&s)[kFree][kCon], uint32_t k_tile, uint32_t q_tile, int wave_row) {
    float q[kFree * Base::kRows];
    TSRI_UNROLL
    for (int r = 0; r < kFree * Base::kRows; ++r)
      q[r] = TY::scale(q_tile, wave_row + r / Base::kRows * Base::kFree + Base::free_of(r % Base::kRows));
    TSRI_UNROLL
    for (int c = 0; c < kCon; ++c)
      TSRI_UNROLL
      for (int e = 0; e < Base::kElements; ++e) {
        const float k = TX::scale(k_tile, c * Base::kCon + Base::con_lane() + Base::con_element(e));
        TSRI_UNROLL
        for (int f = 0; f < kFree; ++f) {
          const float row = q[f * Base::kRows + Base::slot(e)];
          s[f][c].x[e] = out_of_units(s[f][c].x[e], k, row);
        }
      }
  }

  // Probabilities s as operands, times their keys' scales, and the units of their rows: the largest of a row, which is
  // what counts of the keys of a tile, is below 2^15 in it.
  template <class TZ, int kCon>
  TSRI_DEVICE_MEMBER void weigh(P (&p)[kCon], float (&unit)[Base::kRows], const Acc (&s)[kCon], uint32_t z_tile) {
    float x[kCon][Base::kElements], most[Base::kRows] = {}, up[Base::kRows];
    TSRI_UNROLL
    for (int c = 0; c < kCon; ++c)
      TSRI_UNROLL
      for (int e = 0; e < Base::kElements; ++e) {
        const float scale = TZ::scale(z_tile, c * Base::kCon + Base::con_lane() + Base::con_element(e));
        x[c][e] = s[c].x[e] * scale;
        most[Base::slot(e)] = larger_of(most[Base::slot(e)], x[c][e]);
      }
    TSRI_UNROLL
    for (int r = 0; r < Base::kRows; ++r) unit_of(float_bits(Base::max_con(most[r])), up[r], unit[r]);
    TSRI_UNROLL
    for (int c = 0; c < kCon; ++c)
      TSRI_UNROLL
      for (int i = 0; i < 4; ++i)
        split(p[c], i, x[c][2 * i] * up[Base::slot(2 * i)], x[c][2 * i + 1] * up[Base::slot(2 * i)]);
  }
  TSRI_DEVICE_MEMBER float inverse_unit(float unit) { return bits_float((254u << 23) - float_bits(unit)); }
  // A unit, 2^-14 of the power of two of numbers whose largest has bits `most`, and its inverse, as normal numbers.
  TSRI_DEVICE_MEMBER void unit_of(uint32_t most, float &up, float &unit) {
    const uint32_t power = larger_word(most & 0x7f800000u, 15u << 23);
    up = bits_float((268u << 23) - power);
    unit = bits_float(power - (14u << 23));
  }
};

using MmaSyncHalves = MmaSyncHalvesOf<>;

} // namespace gpu
} // namespace tessera

#endif // TESSERA_BACKENDS_CUDA_SM80_UNIT_HALVES_HPP_
