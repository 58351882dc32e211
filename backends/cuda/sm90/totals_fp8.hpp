// SPDX-License-Identifier: Apache-2.0
//
// Totals of O beside products of 8-bit elements. Such a product keeps about 14 bits of a sum, whatever its accumulator
// has, so what it adds up must stay short: after some tiles, and where the scale of the values changes, accumulators
// times that scale are added in float32 to a total in shared memory and begin again at 0. A second set of accumulators
// would cost registers and an addition for every element of every tile.
#ifndef TESSERA_BACKENDS_CUDA_SM90_TOTALS_FP8_HPP_
#define TESSERA_BACKENDS_CUDA_SM90_TOTALS_FP8_HPP_

#include "backends/cuda/sm90/instructions_fp8.hpp"

namespace tessera {
namespace gpu {

// Rows: a Forward, whose rows and accumulators these are; kFew, kTotal: of kFewBytes and kBytes of shared memory.
template <class U, class Rows, int kGroups, int kDv, uint32_t kFew, uint32_t kTotal>
struct TotalsFp8 {
  using State = typename Rows::State;
  static constexpr int kRows = 64 * kGroups;
  static constexpr int kKeys = 2048; // whose values products add up at most
  static constexpr int kTogether = max_of(1, kKeys / Rows::kTileK); // and their tiles
  struct alignas(16) Sum { // of a warp
    float scale;  // of values whose products are in the accumulators
    int32_t due;  // with as many tiles left they become part of the total
    int32_t kept; // whether there is a total
    int32_t unused;
  };
  struct alignas(16) Quad {
    float x[4];
  };
  static constexpr uint32_t kPending = kFew + kRows / 16 * sizeof(Sum); // factors of rows on totals
  static constexpr uint32_t kFewBytes = kRows / 16 * sizeof(Sum) + 4 * kRows;
  static constexpr uint32_t kBytes = kRows * kDv * 4;

  TSRI_DEVICE_MEMBER Sum &sum_of(int thread) {
    return shared_at<Sum>(kFew + static_cast<uint32_t>(thread / 32) * sizeof(Sum));
  }
  TSRI_DEVICE_MEMBER float &pending_of(int r) {
    return shared_at<float>(kPending + static_cast<uint32_t>(Rows::wave_row() + U::free_of(r)) * 4);
  }

  // Accumulators are 0; values of `scale` come next, with which `left` tiles are left. kept: there is a total.
  TSRI_DEVICE_MEMBER void start(float scale, int32_t left, bool kept, int thread) {
    sync_wave();
    if (thread % 32 == 0) sum_of(thread) = Sum{scale, left - kTogether, kept, 0};
    if (U::leads_row()) pending_of(0) = pending_of(1) = 1.0f;
    sync_wave();
  }
  // Whether accumulators have to be added to the total before values of `scale` are, with which `left` tiles are left.
  TSRI_DEVICE_MEMBER bool due(float scale, int32_t left, int thread) {
    const Sum sum = sum_of(thread);
    return left == sum.due || scale != sum.scale;
  }
  TSRI_DEVICE_MEMBER void rescale(State &state, const float (&alpha)[2]) {
    Rows::rescale(state, alpha);
    if (U::leads_row()) {
      pending_of(0) *= alpha[0];
      pending_of(1) *= alpha[1];
    }
    sync_wave();
  }
  // Accumulators and total together; kLast: in the accumulators, otherwise as the total, and those are 0.
  template <bool kLast>
  TSRI_DEVICE_MEMBER void add(State &state, int thread) {
    const Sum sum = sum_of(thread);
    if (kLast && !sum.kept) {
      TSRI_UNROLL
      for (int o = 0; o < kDv / 16; ++o)
        TSRI_UNROLL
        for (int e = 0; e < 8; ++e) state.out[0][o].x[e] *= sum.scale;
      return;
    }
    const float pending[2] = {pending_of(0), pending_of(1)};
    TSRI_UNROLL
    for (int o = 0; o < kDv / 16; ++o)
      TSRI_UNROLL
      for (int half = 0; half < 2; ++half) {
        Quad &total = shared_at<Quad>(kTotal + static_cast<uint32_t>(2 * o + half) * (kGroups * 2048) +
                                      static_cast<uint32_t>(thread) * 16);
        Quad q = {{0.0f, 0.0f, 0.0f, 0.0f}};
        if (sum.kept) q = total;
        TSRI_UNROLL
        for (int e = 0; e < 4; ++e) {
          float &x = state.out[0][o].x[4 * half + e];
          q.x[e] = multiply_add(q.x[e], pending[U::slot(e)], x * sum.scale);
          x = kLast ? q.x[e] : 0.0f;
        }
        if (!kLast) total = q;
        matrix_pin(state.out[0]); // four after four, for the registers' sake
      }
  }
};

} // namespace gpu
} // namespace tessera

#endif // TESSERA_BACKENDS_CUDA_SM90_TOTALS_FP8_HPP_
