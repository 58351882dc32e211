// SPDX-License-Identifier: Apache-2.0
//
// The two matrix products of a wave, over whatever the unit is made of: scores (operands from shared
// memory or kept in registers) and apply (P from shared memory or registers, Z from shared memory).
// Every operand is loaded one use before its turn, into the other half of a pair of registers, so that
// the latency of shared memory passes under the products of the operand before it. Units that split
// numbers (U::kSplits) have products of their own, with fewer registers and with sums by tiles.
#ifndef TESSERA_COMMON_GPU_PRODUCT_HPP_
#define TESSERA_COMMON_GPU_PRODUCT_HPP_

#include "common/gpu/platform.hpp"
#include "common/gpu/recheck.hpp"

namespace tessera {
namespace gpu {

template <class U, int kFree, int kOut>
TSRI_DEVICE void clear(typename U::Acc (&out)[kFree][kOut]) {
  TSRI_UNROLL
  for (int f = 0; f < kFree; ++f)
    TSRI_UNROLL
    for (int o = 0; o < kOut; ++o)
      TSRI_UNROLL
      for (int e = 0; e < U::kElements; ++e) out[f][o].x[e] = 0.0f;
}

// sum += part.
template <class U, int kFree, int kOut>
TSRI_DEVICE void add_part(typename U::Acc (&sum)[kFree][kOut], const typename U::Acc (&part)[kFree][kOut]) {
  TSRI_UNROLL
  for (int f = 0; f < kFree; ++f)
    TSRI_UNROLL
    for (int o = 0; o < kOut; ++o)
      TSRI_UNROLL
      for (int e = 0; e < U::kElements; ++e) sum[f][o].x[e] += part[f][o].x[e];
}

// Results of a product, where it ends: see settle() of the platform.
template <class U, int kFree, int kOut>
TSRI_DEVICE void settle(typename U::Acc (&out)[kFree][kOut]) {
  TSRI_UNROLL
  for (int f = 0; f < kFree; ++f)
    TSRI_UNROLL
    for (int o = 0; o < kOut; ++o)
      TSRI_UNROLL
      for (int e = 0; e < U::kElements; ++e) settle(out[f][o].x[e]);
}

// Sums of U::kSum steps that units which split numbers add at a time; of one step the unit adds it.
template <class U, bool kTransposed, int kSteps>
TSRI_DEVICE void add_scores(typename U::Acc &acc, const typename U::Con (&x)[kSteps],
                            const typename U::Free (&y)[kSteps]) {
  if constexpr (U::kSum > 1) {
    typename U::Acc sum;
    U::template score_sum<kTransposed>(sum, x, y);
    TSRI_UNROLL
    for (int e = 0; e < U::kElements; ++e) acc.x[e] += sum.x[e];
  } else if constexpr (kTransposed) {
    U::score_transposed(acc, x[0], y[0]);
  } else {
    U::score(acc, x[0], y[0]);
  }
}

// Whether loads of column tile o wait for the products of those before: moved together, they and the sums that
// wait to be added take more registers than there are.
template <class U>
TSRI_DEVICE constexpr bool ends_turn(int o, int turn) {
  return U::kSum > 1 && o > 0 && o % turn == 0;
}

// kFirst: acc holds nothing yet.
template <class U, bool kFirst, int kSteps>
TSRI_DEVICE void add_applied(typename U::Acc &acc, const typename U::Z (&z)[kSteps],
                             const typename U::P (&p)[kSteps]) {
  if constexpr (U::kSum > 1) {
    typename U::Acc sum;
    U::apply_sum(sum, z, p);
    TSRI_UNROLL
    for (int e = 0; e < U::kElements; ++e) acc.x[e] = kFirst ? sum.x[e] : acc.x[e] + sum.x[e];
  } else {
    if (kFirst) {
      TSRI_UNROLL
      for (int e = 0; e < U::kElements; ++e) acc.x[e] = 0.0f;
    }
    U::apply(acc, z[0], p[0]);
  }
}

// score_product of a unit that splits numbers: the loop over depth stays a loop, or the splitting would
// move ahead of everything else and registers run out.
template <class U, class TX, class TY, int kDepth, bool kTransposed, int kFree, int kCon>
TSRI_DEVICE void score_product_split(typename U::Acc (&acc)[kFree][kCon], uint32_t x_offset,
                                     uint32_t y_offset) {
  // Split on the way, two steps of two rows are too many registers.
  constexpr int kSum = kFree > 1 && TY::kPlanes == 1 ? 1 : U::kSum;
  static_assert(kDepth % kSum == 0, "whole sums");
  clear<U>(acc);
  TSRI_NO_UNROLL
  for (int t = 0; t < kDepth; t += kSum) {
    typename U::Free y[kFree][kSum];
    TSRI_UNROLL
    for (int f = 0; f < kFree; ++f)
      TSRI_UNROLL
      for (int s = 0; s < kSum; ++s)
        U::template load_free<TY::kRowBytes>(y[f][s], y_offset, f * U::kFree, t + s);
    TSRI_UNROLL
    for (int c = 0; c < kCon; ++c) {
      typename U::Con x[kSum];
      TSRI_UNROLL
      for (int s = 0; s < kSum; ++s)
        U::template load_con<TX::kRowBytes>(x[s], x_offset, c * U::kCon, t + s);
      TSRI_UNROLL
      for (int f = 0; f < kFree; ++f) add_scores<U, kTransposed>(acc[f][c], x, y[f]);
    }
  }
  settle<U>(acc);
  recheck_scores<U, TX, TY, kDepth * U::kStep>(
      acc, x_offset - U::template con_offset<TX::kRowBytes>(0),
      y_offset - U::template free_offset<TY::kRowBytes>(0));
}

// Column c of acc goes into the sum of its parts, and is that sum at last.
template <class U, int kFree, int kCon>
TSRI_DEVICE void end_part(typename U::Acc (&parts)[kFree][kCon], typename U::Acc (&acc)[kFree][kCon], int c, bool last) {
  TSRI_UNROLL
  for (int f = 0; f < kFree; ++f)
    TSRI_UNROLL
    for (int e = 0; e < U::kElements; ++e) {
      float &sum = parts[f][c].x[e], &x = acc[f][c].x[e];
      sum += x;
      x = last ? sum : 0.0f;
    }
}
// Nothing beside the products of step n.
struct NothingBeside {
  TSRI_HOST_DEVICE void operator()(int) const {}
};

// acc[free][con] = Y X^T over kDepth steps. TX, TY: tiles of the con and free operands, whose offsets
// are those of the wave's first row. kKeep: the free operands are in registers already.
// kTransposed: free is key and con is query. beside(n): what passes beside the products of step n of kDepth x kCon,
// of units that do not split.
template <class U, class TX, class TY, int kDepth, bool kKeep, bool kTransposed = false, int kFree,
          int kCon, class Beside = NothingBeside>
TSRI_DEVICE void score_product(typename U::Acc (&acc)[kFree][kCon], uint32_t x_offset,
                               uint32_t y_offset,
                               const typename U::Free (&kept)[kFree][kKeep ? kDepth : 1],
                               const Beside &beside = Beside()) {
  if constexpr (U::kSplits) {
    score_product_split<U, TX, TY, kDepth, kTransposed>(acc, x_offset, y_offset);
    return;
  }
  // float32 as it is: more columns than 128 are summed in parts, or rounding would grow with their number.
  constexpr int kPart = sizeof(typename U::Element) == 4 ? 128 / U::kStep : kDepth;
  typename U::Acc parts[kFree][kDepth > kPart ? kCon : 1];
  clear<U>(acc);
  if (kDepth > kPart) clear<U>(parts);
  typename U::Free y[2][kFree];
  typename U::Con x[2];
  if (!kKeep) {
    TSRI_UNROLL
    for (int f = 0; f < kFree; ++f)
      U::template load_free<TY::kRowBytes>(y[0][f], y_offset, f * U::kFree, 0);
  }
  U::template load_con<TX::kRowBytes>(x[0], x_offset, 0, 0);
  TSRI_UNROLL
  for (int t = 0; t < kDepth; ++t)
    TSRI_UNROLL
    for (int c = 0; c < kCon; ++c) {
      const int n = t * kCon + c, next = n + 1;
      if (next < kDepth * kCon)
        U::template load_con<TX::kRowBytes>(x[next % 2], x_offset, next % kCon * U::kCon,
                                            next / kCon);
      if (!kKeep && c == (kCon > 1 ? kCon - 2 : 0) && t + 1 < kDepth) {
        TSRI_UNROLL
        for (int f = 0; f < kFree; ++f)
          U::template load_free<TY::kRowBytes>(y[(t + 1) % 2][f], y_offset, f * U::kFree, t + 1);
      }
      TSRI_UNROLL
      for (int f = 0; f < kFree; ++f)
        U::score(acc[f][c], x[n % 2], kKeep ? kept[f][kKeep ? t : 0] : y[t % 2][f]);
      if constexpr (kDepth > kPart)
        if (t % kPart == kPart - 1 || t == kDepth - 1) end_part<U>(parts, acc, c, t == kDepth - 1);
      beside(n);
    }
  settle<U>(acc);
}

// apply_product of a unit that splits numbers, P from registers: each column tile gets a sum of its own
// before it is added to the running one, so that rounding grows with the number of tiles and not of con
// indices. Returns a bit for every column tile that was left out because it has a NaN; kAll: none is.
template <class U, class TZ, int kSteps, bool kAll, int kFree, int kOut, class Load>
TSRI_DEVICE uint32_t apply_product_split(typename U::Acc (&out)[kFree][kOut],
                                         typename U::ZOffset z_offset, const Load &load) {
  constexpr int kSum = min_of(U::kSum, kSteps);
  static_assert(kSteps % kSum == 0, "whole sums");
  typename U::P p[kSteps / kSum][kFree][kSum];
  uint32_t left_out = 0;
  static_assert(kOut <= 32, "a bit each");
  TSRI_UNROLL
  for (int s = 0; s < kSteps; ++s) {
    typename U::P one[kFree];
    load(one, s);
    TSRI_UNROLL
    for (int f = 0; f < kFree; ++f) p[s / kSum][f][s % kSum] = one[f];
  }
  TSRI_UNROLL
  for (int o = 0; o < kOut; ++o) {
    if (ends_turn<U>(o, TZ::kPlanes > 1 ? 1 : 2)) sync_wave();
    typename U::Acc part[1][kFree];
    TSRI_UNROLL
    for (int s = 0; s < kSteps / kSum; ++s) {
      typename U::Z z[kSum];
      TSRI_UNROLL
      for (int n = 0; n < kSum; ++n)
        U::template load_z<TZ::kRowBytes>(z[n], z_offset, (s * kSum + n) * U::kApplyStep, o);
      TSRI_UNROLL
      for (int f = 0; f < kFree; ++f) {
        if (s == 0)
          add_applied<U, true>(part[0][f], z, p[s][f]);
        else
          add_applied<U, false>(part[0][f], z, p[s][f]);
      }
    }
    const bool leave = !kAll && any_lane(finds_nan<U>(part[0]));
    if (leave) left_out |= 1u << o;
    if (leave) continue;
    TSRI_UNROLL
    for (int f = 0; f < kFree; ++f)
      TSRI_UNROLL
      for (int e = 0; e < U::kElements; ++e) out[f][o].x[e] += part[0][f].x[e];
  }
  settle<U>(out);
  return left_out;
}

// The same of probabilities s where rows of Z have units of their own, which P then takes into account. What a row of
// P adds has one too.
template <class U, class TZ, int kFree, int kCon, int kOut>
TSRI_DEVICE void apply_product_scaled(typename U::Acc (&out)[kFree][kOut], const typename U::Acc (&s)[kFree][kCon],
                                      uint32_t z_tile, typename U::ZOffset z_offset) {
  static_assert(kCon % U::kSum == 0, "whole sums");
  typename U::P p[kFree][kCon];
  float unit[kFree][U::kRows];
  TSRI_UNROLL
  for (int f = 0; f < kFree; ++f) U::template weigh<TZ>(p[f], unit[f], s[f], z_tile);
  TSRI_UNROLL
  for (int o = 0; o < kOut; ++o) {
    if (ends_turn<U>(o, 1)) sync_wave();
    typename U::Acc part[1][kFree];
    TSRI_UNROLL
    for (int c = 0; c < kCon; c += U::kSum) {
      typename U::Z z[U::kSum];
      TSRI_UNROLL
      for (int n = 0; n < U::kSum; ++n)
        U::template load_z<TZ::kRowBytes>(z[n], z_offset, (c + n) * U::kApplyStep, o);
      TSRI_UNROLL
      for (int f = 0; f < kFree; ++f) {
        typename U::P one[U::kSum];
        TSRI_UNROLL
        for (int n = 0; n < U::kSum; ++n) one[n] = p[f][c + n];
        if (c == 0)
          add_applied<U, true>(part[0][f], z, one);
        else
          add_applied<U, false>(part[0][f], z, one);
      }
    }
    TSRI_UNROLL
    for (int f = 0; f < kFree; ++f)
      TSRI_UNROLL
      for (int e = 0; e < U::kElements; ++e)
        out[f][o].x[e] = multiply_add(part[0][f].x[e], unit[f][U::slot(e)], out[f][o].x[e]);
  }
  settle<U>(out);
}

// The same with P from shared memory, and no sum of a tile, so that only one sum's P is in registers.
template <class U, class TZ, int kSteps, int kFree, int kOut, class Load>
TSRI_DEVICE void apply_steps_split(typename U::Acc (&out)[kFree][kOut],
                                   typename U::ZOffset z_offset, const Load &load) {
  constexpr int kSum = min_of(U::kSum, kSteps);
  static_assert(kSteps % kSum == 0, "whole sums");
  TSRI_NO_UNROLL
  for (int s = 0; s < kSteps; s += kSum) {
    typename U::P p[kFree][kSum];
    TSRI_UNROLL
    for (int n = 0; n < kSum; ++n) {
      typename U::P one[kFree];
      load(one, s + n);
      TSRI_UNROLL
      for (int f = 0; f < kFree; ++f) p[f][n] = one[f];
    }
    TSRI_UNROLL
    for (int o = 0; o < kOut; ++o) {
      if (ends_turn<U>(o, 2)) sync_wave();
      typename U::Z z[kSum];
      TSRI_UNROLL
      for (int n = 0; n < kSum; ++n)
        U::template load_z<TZ::kRowBytes>(z[n], z_offset, (s + n) * U::kApplyStep, o);
      TSRI_UNROLL
      for (int f = 0; f < kFree; ++f) {
        typename U::Acc part;
        add_applied<U, true>(part, z, p[f]);
        TSRI_UNROLL
        for (int e = 0; e < U::kElements; ++e) out[f][o].x[e] += part.x[e];
      }
    }
  }
  settle<U>(out);
}

// apply_product of a unit that multiplies float32 as it is, P from registers: as there, each column tile gets a sum of
// its own before it is added to the running one.
template <class U, class TZ, int kSteps, int kFree, int kOut, class Load>
TSRI_DEVICE void apply_product_summed(typename U::Acc (&out)[kFree][kOut], typename U::ZOffset z_offset,
                                      const Load &load) {
  typename U::P p[kSteps][kFree];
  typename U::Z z[2];
  TSRI_UNROLL
  for (int s = 0; s < kSteps; ++s) load(p[s], s);
  U::template load_z<TZ::kRowBytes>(z[0], z_offset, 0, 0);
  TSRI_UNROLL
  for (int o = 0; o < kOut; ++o) {
    typename U::Acc part[kFree][1];
    clear<U>(part);
    TSRI_UNROLL
    for (int s = 0; s < kSteps; ++s) {
      const int n = o * kSteps + s, next = n + 1;
      if (next < kSteps * kOut)
        U::template load_z<TZ::kRowBytes>(z[next % 2], z_offset, next % kSteps * U::kApplyStep, next / kSteps);
      TSRI_UNROLL
      for (int f = 0; f < kFree; ++f) U::apply(part[f][0], z[n % 2], p[s][f]);
    }
    TSRI_UNROLL
    for (int f = 0; f < kFree; ++f)
      TSRI_UNROLL
      for (int e = 0; e < U::kElements; ++e) out[f][o].x[e] += part[f][0].x[e];
  }
  settle<U>(out);
}

// out[free][column] += P Z over kSteps steps. load(p, step) gives the free operands of a step; kAhead:
// it reads shared memory and is called one step before its turn. beside: as above, of kSteps x kOut.
template <class U, class TZ, int kSteps, bool kAhead, int kFree, int kOut, class Load,
          class Beside = NothingBeside>
TSRI_DEVICE void apply_product(typename U::Acc (&out)[kFree][kOut], typename U::ZOffset z_offset,
                               const Load &load, const Beside &beside = Beside()) {
  if constexpr (U::kSplits) {
    if constexpr (kAhead)
      apply_steps_split<U, TZ, kSteps>(out, z_offset, load);
    else
      apply_product_split<U, TZ, kSteps, true>(out, z_offset, load);
    return;
  } else if constexpr (sizeof(typename U::Element) == 4 && !kAhead) {
    apply_product_summed<U, TZ, kSteps>(out, z_offset, load);
    return;
  }
  typename U::P p[2][kFree];
  typename U::Z z[2];
  load(p[0], 0);
  U::template load_z<TZ::kRowBytes>(z[0], z_offset, 0, 0);
  TSRI_UNROLL
  for (int s = 0; s < kSteps; ++s)
    TSRI_UNROLL
    for (int o = 0; o < kOut; ++o) {
      const int n = s * kOut + o, next = n + 1;
      if (next < kSteps * kOut)
        U::template load_z<TZ::kRowBytes>(z[next % 2], z_offset, next / kOut * U::kApplyStep,
                                          next % kOut);
      if (kAhead ? o == (kOut > 1 ? kOut - 2 : 0) && s + 1 < kSteps : o == 0 && s > 0)
        load(p[kAhead ? (s + 1) % 2 : s % 2], kAhead ? s + 1 : s);
      TSRI_UNROLL
      for (int f = 0; f < kFree; ++f) U::apply(out[f][o], z[n % 2], p[s % 2][f]);
      beside(n);
    }
  settle<U>(out);
}

} // namespace gpu
} // namespace tessera

#endif // TESSERA_COMMON_GPU_PRODUCT_HPP_
