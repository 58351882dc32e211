// SPDX-License-Identifier: Apache-2.0
//
// Exact results for units that split numbers (U::kSplits), where an infinity times the zero of another
// plane is NaN: what came out as NaN is made again by fused multiply-adds from float32 tiles in shared
// memory. Looking costs an addition per result; making again is slow and rare, so its loops stay loops
// and registers are picked by comparison.
#ifndef TESSERA_COMMON_GPU_RECHECK_HPP_
#define TESSERA_COMMON_GPU_RECHECK_HPP_

#include "common/gpu/platform.hpp"

namespace tessera {
namespace gpu {

// Whether a lane of the wave has a NaN, or infinities of both signs.
template <class U, int kFree>
TSRI_DEVICE bool finds_nan(const typename U::Acc (&acc)[kFree]) {
  float sum[4] = {}; // additions wait for one another
  TSRI_UNROLL
  for (int f = 0; f < kFree; ++f)
    TSRI_UNROLL
    for (int e = 0; e < U::kElements; ++e) sum[e % 4] += acc[f].x[e];
  const float all = (sum[0] + sum[1]) + (sum[2] + sum[3]);
  return all != all;
}

// Tiles whose rows have units of their own, see T::scale().
template <class T, class = void>
struct HasScales {
  static constexpr bool value = false;
};
template <class T>
struct HasScales<T, decltype(static_cast<void>(T::kScales))> {
  static constexpr bool value = true;
};

// In its row's unit.
template <class T>
TSRI_DEVICE float tile_value(uint32_t tile, int row, int column) {
  if constexpr (T::kPlanes > 1)
    return T::value(tile, row, column);
  else
    return shared_at<float>(tile + T::at(row, column / 4) + static_cast<uint32_t>(column % 4 * 4));
}

// Scores acc[free][con] = Y X^T; x, y: offsets of the wave's first rows.
template <class U, class TX, class TY, int kColumns, int kFree, int kCon>
TSRI_DEVICE void recheck_scores(typename U::Acc (&acc)[kFree][kCon], uint32_t x, uint32_t y) {
  bool found = false;
  TSRI_UNROLL
  for (int f = 0; f < kFree; ++f) found = finds_nan<U, kCon>(acc[f]) || found;
  if (!any_lane(found)) return;
  TSRI_NO_UNROLL
  for (int n = 0; n < kFree * kCon * U::kElements; ++n) {
    const int e = n % U::kElements, c = n / U::kElements % kCon, f = n / (U::kElements * kCon);
    const int row = f * U::kFree + U::free_of(U::slot(e));
    const int con = c * U::kCon + U::con_lane() + U::con_element(e);
    float dot = 0.0f;
    TSRI_NO_UNROLL
    for (int d = 0; d < kColumns; ++d)
      dot = multiply_add(tile_value<TY>(y, row, d), tile_value<TX>(x, con, d), dot);
    TSRI_UNROLL
    for (int i = 0; i < kFree * kCon * U::kElements; ++i) {
      float &to = acc[i / (U::kElements * kCon)][i / U::kElements % kCon].x[i % U::kElements];
      if (i == n) to = dot;
    }
  }
}

// out += P Z for the column tiles whose bits are set, P from the accumulators of scores.
template <class U, class TZ, int kFree, int kCon, int kOut>
TSRI_DEVICE void recheck_values(typename U::Acc (&out)[kFree][kOut],
                                const typename U::Acc (&p)[kFree][kCon], uint32_t z,
                                uint32_t columns) {
  TSRI_NO_UNROLL
  for (int o = 0; o < kOut; ++o) {
    if (!(columns >> o & 1)) continue;
    typename U::Acc part[kFree];
    TSRI_UNROLL
    for (int f = 0; f < kFree; ++f)
      TSRI_UNROLL
      for (int e = 0; e < U::kElements; ++e) part[f].x[e] = 0.0f;
    TSRI_NO_UNROLL
    for (int j = 0; j < kCon * U::kCon; ++j) {
      const int rest = U::con_rest(j), owner = U::con_owner(j);
      float unit = 1.0f;
      if constexpr (HasScales<TZ>::value) unit = TZ::scale(z, j);
      TSRI_UNROLL
      for (int r = 0; r < kFree * U::kRows; ++r) {
        const int f = r / U::kRows, slot = r % U::kRows;
        float mine = 0.0f;
        TSRI_UNROLL
        for (int c = 0; c < kCon; ++c)
          TSRI_UNROLL
          for (int e = 0; e < U::kElements; ++e)
            if (U::slot(e) == slot && c * U::kCon + U::con_element(e) == rest) mine = p[f][c].x[e];
        const float weight = shuffle(mine, owner);
        TSRI_UNROLL
        for (int e = 0; e < U::kElements; ++e)
          if (U::slot(e) == slot)
            part[f].x[e] = multiply_add(
                weight, unit * tile_value<TZ>(z, j, o * 16 + U::con_lane() + U::con_element(e)),
                part[f].x[e]);
      }
    }
    TSRI_UNROLL
    for (int i = 0; i < kOut; ++i)
      if (i == o) {
        TSRI_UNROLL
        for (int f = 0; f < kFree; ++f)
          TSRI_UNROLL
          for (int e = 0; e < U::kElements; ++e) out[f][i].x[e] += part[f].x[e];
      }
  }
}

} // namespace gpu
} // namespace tessera

#endif // TESSERA_COMMON_GPU_RECHECK_HPP_
