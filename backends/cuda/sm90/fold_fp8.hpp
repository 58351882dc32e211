// SPDX-License-Identifier: Apache-2.0
//
// The recurrence on scores of 8-bit elements: a tile of them becomes probabilities of 8 bits. Scores are raw products,
// and a row's factor to base two differs from tile to tile with the scale of its keys, so maxima are kept in base two.
//
// P is 2^6 times as large as usual: E4M3 has its numbers between 2^-9 and 448, so a maximum may lag behind by 2^2.75.
// 2^8 and 2^0.75 would round small P less (errors of O 1 to 4 % lower), but maxima then move in every third tile.
#ifndef TESSERA_BACKENDS_CUDA_SM90_FOLD_FP8_HPP_
#define TESSERA_BACKENDS_CUDA_SM90_FOLD_FP8_HPP_

#include "backends/cuda/sm90/instructions_fp8.hpp"
#include "backends/cuda/sm90/maxima.hpp"
#include "common/gpu/row_policy.hpp"

namespace tessera {
namespace gpu {

template <class U, class Rows> // a Forward, whose rows and tiles these are
struct FoldFp8 {
  using State = typename Rows::State;
  using Scores = typename Rows::Scores;
  static constexpr float kShift = 6.0f;  // of P, in powers of two,
  static constexpr float kSlack = 2.75f; // and how far it may be above that: 2^8.75 < 448

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

  // The maximum so far of slot r's row, in base two. It lies in shared memory, at `maxima` + 4 bytes a row: most tiles
  // do without it.
  TSRI_DEVICE_MEMBER float &max_of(uint32_t maxima, int r) {
    return shared_at<float>(maxima + static_cast<uint32_t>(Rows::wave_row() + U::free_of(r)) * 4);
  }
  TSRI_DEVICE_MEMBER void start(uint32_t maxima, float (&minus_ready)[2]) {
    sync_wave();
    if (U::leads_row()) max_of(maxima, 0) = max_of(maxima, 1) = Softmax::start_max();
    minus_ready[0] = minus_ready[1] = 0.0f;
    sync_wave();
  }

  // Moves maxima where a score of the warp asks for it; minus_ready: less what scores are measured from; alpha: the
  // factors on what was added up before. False: nothing has moved, and alpha is not set. A row without a sum so far
  // counts as one that moves: it may have seen nothing yet.
  TSRI_DEVICE_MEMBER bool move(State &state, float (&minus_ready)[2], Scores &s, float (&unit)[2], float (&alpha)[2],
                               uint32_t maxima) {
    bool moved = !(unit[0] > 0.0f) || !(unit[1] > 0.0f);
    matrix_pin(s[0]); // see Maxima::move
    TSRI_UNROLL
    for (int r = 0; r < 2; ++r)
      moved = moved || !(state.l[r] > 0.0f) ||
              !(multiply_add(Maxima<U, Rows>::above_zero(s, r), unit[r], minus_ready[r]) <= kShift + kSlack);
    if (!any_lane(moved)) return false;
    matrix_pin(s[0]);
    settle_units(s, unit);
    TSRI_UNROLL
    for (int r = 0; r < 2; ++r) {
      const float before = max_of(maxima, r);
      const float m = Softmax::lazy_max(1.0f, before, Maxima<U, Rows>::largest(s, r) * unit[r], kSlack);
      alpha[r] = m != before ? Softmax::prob_ready(1.0f, before, Softmax::reference(m)) : 1.0f;
      sync_wave();
      if (U::leads_row()) max_of(maxima, r) = m;
      state.l[r] = Softmax::rescale(state.l[r], alpha[r]);
      minus_ready[r] = -reference_of(m);
    }
    sync_wave();
    return true;
  }

  // Scores of 32 keys, the c-th, to probabilities; added up in l and `more`.
  TSRI_DEVICE_MEMBER void exponentiate(uint32_t (&p)[4], Scores &s, int c, const float (&unit)[2],
                                       const float (&minus_ready)[2], float (&l)[2], float (&more)[2]) {
    TSRI_UNROLL
    for (int half = 0; half < 2; ++half) { // 16 keys
      float(&x)[8] = s[0][2 * c + half].x;
      TSRI_UNROLL
      for (int e = 0; e < 8; ++e) {
        const int r = U::slot(e);
        x[e] = Softmax::prob_negated(unit[r], x[e], minus_ready[r]);
        (e & 1 ? more : l)[r] += x[e];
      }
      p[2 * half] = pack_e4m3(x[0], x[1], x[4], x[5]);
      p[2 * half + 1] = pack_e4m3(x[2], x[3], x[6], x[7]);
    }
  }
};

} // namespace gpu
} // namespace tessera

#endif // TESSERA_BACKENDS_CUDA_SM90_FOLD_FP8_HPP_
