// SPDX-License-Identifier: Apache-2.0
//
// The recurrence on scores of 8-bit elements: a tile of them becomes probabilities of 8 bits. Scores are raw products,
// and a row's factor to base two differs from tile to tile with the scale of its keys, so maxima are kept in base two.
//
// P is 2^8 times as large as usual, because E4M3 has its numbers between 2^-9 and 448, so a maximum may lag behind by
// 2^0.75, no more.
#ifndef TESSERA_BACKENDS_CUDA_SM90_FOLD_FP8_HPP_
#define TESSERA_BACKENDS_CUDA_SM90_FOLD_FP8_HPP_

#include "backends/cuda/sm90/instructions_fp8.hpp"
#include "common/gpu/row_policy.hpp"

namespace tessera {
namespace gpu {

template <class U, class Rows> // a Forward, whose rows and tiles these are
struct FoldFp8 {
  using State = typename Rows::State;
  using Scores = typename Rows::Scores;
  static constexpr int kSteps = Rows::kTileK / 32; // of 32 keys
  static constexpr float kShift = 8.0f;  // of P, in powers of two,
  static constexpr float kSlack = 0.75f; // and how far it may be above that: 2^8.75 < 448

  // What scores of a row with maximum m, in base two, are measured from. Where they are so large that taking kShift
  // off is lost in rounding, P does without.
  TSRI_DEVICE_MEMBER float reference_of(float m) {
    const float whole = Softmax::reference(m), shifted = whole - kShift;
    return whole - shifted <= kShift ? shifted : whole;
  }

  // Factors on scores that are not positive (or NaN) are multiplied in before anything is compared.
  TSRI_DEVICE_MEMBER void settle_units(Scores &s, float (&unit)[2]) {
    if (!any_lane(!(unit[0] > 0.0f) || !(unit[1] > 0.0f))) return;
    TSRI_UNROLL
    for (int c = 0; c < Rows::kCon; ++c)
      TSRI_UNROLL
      for (int e = 0; e < 8; ++e) {
        float &x = s[0][c].x[e];
        x = x == -infinity() ? x : x * unit[U::slot(e)]; // what is hidden stays so
      }
    unit[0] = unit[1] = 1.0f;
  }

  // The largest score of each row. kAboveZero: not below 0, as integers, of which an instruction compares three.
  template <bool kAboveZero>
  TSRI_DEVICE_MEMBER void find_largest(float (&largest)[2], const Scores &s) {
    TSRI_UNROLL
    for (int r = 0; r < 2; ++r) {
      int32_t bits[2] = {0, 0};
      float most[2] = {-infinity(), -infinity()};
      TSRI_UNROLL
      for (int c = 0; c < Rows::kCon; ++c)
        TSRI_UNROLL
        for (int half = 0; half < 2; ++half) {
          const float x = s[0][c].x[4 * half + 2 * r], y = s[0][c].x[4 * half + 2 * r + 1];
          if (kAboveZero) {
            const int32_t i = static_cast<int32_t>(float_bits(x)), j = static_cast<int32_t>(float_bits(y));
            bits[half] = larger(larger(bits[half], i), j);
          } else {
            most[half] = larger_of(larger_of(most[half], x), y);
          }
        }
      largest[r] = U::max_con(kAboveZero ? bits_float(static_cast<uint32_t>(larger(bits[0], bits[1])))
                                         : larger_of(most[0], most[1]));
    }
  }

  // As Forward::fold_scores, with a factor for each row, and m in base two, beside which scores of tiles with
  // other scales stand.
  TSRI_DEVICE_MEMBER void find_maxima(State &state, Scores &s, float (&unit)[2]) {
    float largest[2], alpha[2];
    find_largest<true>(largest, s);
    bool moved = false;
    TSRI_UNROLL
    for (int r = 0; r < 2; ++r) {
      moved = moved || !(unit[r] > 0.0f) ||
              Softmax::lazy_max(1.0f, state.m[r], largest[r] * unit[r], kSlack) != state.m[r];
      alpha[r] = 1.0f;
    }
    if (!any_lane(moved)) return;
    settle_units(s, unit);
    find_largest<false>(largest, s);
    TSRI_UNROLL
    for (int r = 0; r < 2; ++r) {
      const float m = Softmax::lazy_max(1.0f, state.m[r], largest[r] * unit[r], kSlack);
      if (m != state.m[r]) alpha[r] = Softmax::prob_ready(1.0f, state.m[r], Softmax::reference(m));
      state.m[r] = m;
      state.l[r] = Softmax::rescale(state.l[r], alpha[r]);
    }
    Rows::rescale(state, alpha);
  }
  TSRI_DEVICE_MEMBER void exponentiate(State &state, Scores &s, const float (&unit)[2]) {
    const float ready[2] = {reference_of(state.m[0]), reference_of(state.m[1])};
    float sum[2][2] = {{0.0f, 0.0f}, {0.0f, 0.0f}};
    TSRI_UNROLL
    for (int c = 0; c < Rows::kCon; ++c)
      TSRI_UNROLL
      for (int e = 0; e < 8; ++e) {
        const int r = U::slot(e);
        float &x = s[0][c].x[e];
        x = Softmax::prob_ready(unit[r], x, ready[r]);
        sum[r][e & 1] += x;
      }
    TSRI_UNROLL
    for (int r = 0; r < 2; ++r) state.l[r] += sum[r][0] + sum[r][1];
  }
  TSRI_DEVICE_MEMBER void pack(uint32_t (&p)[kSteps][4], const Scores &s) {
    TSRI_UNROLL
    for (int c = 0; c < kSteps; ++c)
      TSRI_UNROLL
      for (int half = 0; half < 2; ++half) { // 16 keys
        const float(&x)[8] = s[0][2 * c + half].x;
        p[c][2 * half] = pack_e4m3(x[0], x[1], x[4], x[5]);
        p[c][2 * half + 1] = pack_e4m3(x[2], x[3], x[6], x[7]);
      }
  }
};

} // namespace gpu
} // namespace tessera

#endif // TESSERA_BACKENDS_CUDA_SM90_FOLD_FP8_HPP_
