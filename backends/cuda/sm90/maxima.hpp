// SPDX-License-Identifier: Apache-2.0
//
// Largest scores of rows in registers, and the recurrence on raw 16-bit products with them. An instruction of 9.0
// compares three integers and none of it three floats; the bits of floats that are not negative are in order as
// integers. So a lane first searches its own scores as if 0 were among them: in most tiles no lane of a warp sees
// one that moves a maximum, and then that is all there is to know, without exchanges between lanes. Where one
// does, the search is done again with floats, and each row decides by its own scores as Forward::fold_scores has it.
#ifndef TESSERA_BACKENDS_CUDA_SM90_MAXIMA_HPP_
#define TESSERA_BACKENDS_CUDA_SM90_MAXIMA_HPP_

#include "backends/cuda/sm90/instructions.hpp"
#include "common/gpu/platform.hpp"
#include "common/gpu/row_policy.hpp"

namespace tessera {
namespace gpu {

template <class U, class Rows> // a Forward, whose rows and tiles these are
struct Maxima {
  using State = typename Rows::State;
  using Scores = typename Rows::Scores;
  static_assert(Rows::kFree == 1 && Rows::kSlots == 2, "two rows a lane");

  // The largest of a lane's scores of row r and of 0.
  TSRI_DEVICE_MEMBER float above_zero(const Scores &s, int r) {
    int32_t most[2] = {0, 0}; // two chains
    TSRI_UNROLL
    for (int c = 0; c < Rows::kCon; ++c)
      TSRI_UNROLL
      for (int half = 0; half < 2; ++half) {
        const int32_t i = static_cast<int32_t>(float_bits(s[0][c].x[4 * half + 2 * r]));
        const int32_t j = static_cast<int32_t>(float_bits(s[0][c].x[4 * half + 2 * r + 1]));
        most[half] = larger(larger(most[half], i), j);
      }
    return bits_float(static_cast<uint32_t>(larger(most[0], most[1])));
  }
  // The largest score of row r.
  TSRI_DEVICE_MEMBER float largest(const Scores &s, int r) {
    float most[2] = {-infinity(), -infinity()};
    TSRI_UNROLL
    for (int c = 0; c < Rows::kCon; ++c)
      TSRI_UNROLL
      for (int e = 0; e < 8; ++e)
        if (U::slot(e) == r) most[e & 1] = larger_of(most[e & 1], s[0][c].x[e]);
    return U::max_con(larger_of(most[0], most[1]));
  }

  // Of the first tile of rows: a maximum that is above 0 is one already; of others the search is done again.
  TSRI_DEVICE_MEMBER void begin(State &state, Scores &s, float unit) {
    bool below = false;
    matrix_pin(s[0]);
    TSRI_UNROLL
    for (int r = 0; r < 2; ++r) {
      state.m[r] = U::max_con(above_zero(s, r));
      below = below || !(state.m[r] * unit > 0.0f);
    }
    if (!any_lane(below)) return;
    matrix_pin(s[0]);
    TSRI_UNROLL
    for (int r = 0; r < 2; ++r) state.m[r] = Softmax::lazy_max(unit, Softmax::start_max(), largest(s, r), Rows::kSlack);
  }

  // Moves maxima where a score of the warp asks for it, and says whether one has moved; alpha: the factors on what
  // was added up before.
  TSRI_DEVICE_MEMBER bool move(State &state, Scores &s, float unit, float (&alpha)[2]) {
    bool moved = false; // by either row, and no branch between them: their chains are beside each other
    matrix_pin(s[0]); // or the compiler keeps scores twice, as floats and as integers
    TSRI_UNROLL
    for (int r = 0; r < 2; ++r) {
      moved |= Softmax::lazy_max(unit, state.m[r], above_zero(s, r), Rows::kSlack) != state.m[r];
      alpha[r] = 1.0f;
    }
    moved = any_lane(moved);
    if (moved) {
      matrix_pin(s[0]);
      TSRI_UNROLL
      for (int r = 0; r < 2; ++r) {
        const float m = Softmax::lazy_max(unit, state.m[r], largest(s, r), Rows::kSlack);
        // Exactly 1 while m stays, see Forward::fold_scores.
        if (m != state.m[r])
          alpha[r] = Softmax::prob_ready(unit, state.m[r], Softmax::ready_reference(unit, m));
        state.m[r] = m;
        state.l[r] = Softmax::rescale(state.l[r], alpha[r]);
      }
    }
    return moved;
  }

  // The rest of Forward::fold_scores without score steps, by parts of a tile: 2^x has a unit of its own, beside which there is
  // time for additions, for the exponents of the part after and for the operands that the part before becomes. `begin_fold`
  // is for the first part, which the product with the values before may still be beside; `end_fold` for the others.
  struct Folding {
    float minus_ready[2], sum[2][2];
  };
  // Of 256 columns products take longer than all of this, and the order of one part was faster.
  static constexpr int kMostParts = Rows::kOut > 8 ? 1 : 5, kParts = Rows::kCon < kMostParts ? Rows::kCon : kMostParts;
  template <int kPart>
  static constexpr int kBegin = Rows::kCon * kPart / kParts; // in steps of 16 keys

  TSRI_DEVICE_MEMBER void begin_fold(Folding &fold, const State &state, Scores &s, float unit) {
    TSRI_UNROLL
    for (int r = 0; r < 2; ++r) {
      fold.minus_ready[r] = 0.0f - Softmax::ready_reference(unit, state.m[r]); // as prob_ready() has it, to the bit
      fold.sum[r][0] = fold.sum[r][1] = 0.0f;
    }
    exponents<0>(fold, s, unit);
    exponents<1>(fold, s, unit);
    probabilities<0>(fold, s);
  }
  template <class E, int kPart = 1>
  TSRI_DEVICE_MEMBER void end_fold(Folding &fold, State &state, Scores &s, float unit, uint32_t (&p)[Rows::kCon][4]) {
    exponents<kPart + 1>(fold, s, unit);
    probabilities<kPart>(fold, s);
    pack<E, kPart - 1>(p, s);
    if constexpr (kPart + 1 < kParts) {
      end_fold<E, kPart + 1>(fold, state, s, unit, p);
    } else {
      if constexpr (kPart < kParts) pack<E, kPart>(p, s);
      TSRI_UNROLL
      for (int r = 0; r < 2; ++r) state.l[r] += fold.sum[r][0] + fold.sum[r][1];
    }
  }

  template <int kPart>
  TSRI_DEVICE_MEMBER void exponents(const Folding &fold, Scores &s, float unit) {
    if constexpr (kPart < kParts) {
      TSRI_UNROLL
      for (int c = kBegin<kPart>; c < kBegin<kPart + 1>; ++c)
        TSRI_UNROLL
        for (int e = 0; e < 8; ++e) {
          s[0][c].x[e] = Softmax::exponent(unit, s[0][c].x[e], fold.minus_ready[U::slot(e)]);
          matrix_pin(s[0][c].x[e]); // here, not where it is used
        }
    }
  }
  template <int kPart>
  TSRI_DEVICE_MEMBER void probabilities(Folding &fold, Scores &s) {
    if constexpr (kPart < kParts) {
      TSRI_UNROLL
      for (int c = kBegin<kPart>; c < kBegin<kPart + 1>; ++c)
        TSRI_UNROLL
        for (int e = 0; e < 8; ++e) {
          float &x = s[0][c].x[e];
          x = Softmax::prob_of(x);
          fold.sum[U::slot(e)][e & 1] += x;
        }
    }
  }
  template <class E, int kPart>
  TSRI_DEVICE_MEMBER void pack(uint32_t (&p)[Rows::kCon][4], const Scores &s) {
    TSRI_UNROLL
    for (int c = kBegin<kPart>; c < kBegin<kPart + 1>; ++c)
      TSRI_UNROLL
      for (int r = 0; r < 4; ++r) p[c][r] = E::pack(s[0][c].x[2 * r], s[0][c].x[2 * r + 1]);
  }
};

} // namespace gpu
} // namespace tessera

#endif // TESSERA_BACKENDS_CUDA_SM90_MAXIMA_HPP_
