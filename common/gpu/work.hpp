// SPDX-License-Identifier: Apache-2.0
//
// Which tile of which sequence a block works on, and which key tiles a range of queries visits. With
// packed sequences the tiles of all sequences are numbered in one row; a block finds its own by a scan
// over the lengths on the device, because the host may not read them.
#ifndef TESSERA_COMMON_GPU_WORK_HPP_
#define TESSERA_COMMON_GPU_WORK_HPP_

#include "common/geometry.h"
#include "common/gpu/platform.hpp"
#include "common/mask.h"

namespace tessera {
namespace gpu {

// n / d and n % d; 64-bit division is a subroutine of a hundred instructions on a device.
TSRI_DEVICE int64_t divide(int64_t n, int64_t d, int64_t &rest) {
  if (n <= UINT32_MAX && d <= UINT32_MAX) {
    const uint32_t quotient = static_cast<uint32_t>(n) / static_cast<uint32_t>(d);
    rest = static_cast<uint32_t>(n) - quotient * static_cast<uint32_t>(d);
    return quotient;
  }
  rest = n % d;
  return n / d;
}

struct Place {
  int64_t b;    // sequence; -1: none, the block has nothing to do
  int32_t tile; // of that sequence's slot
};

// Tile `index` of sequences whose slots cu describes, cut into tiles of `rows`. Called by all lanes of
// a wave together; all get the result.
TSRI_DEVICE Place find_packed(const void *cu, tsr_dtype dtype, int64_t total, int64_t batch, int rows,
                              int64_t index, int wave) {
  const int lane = thread_index() % wave;
  int64_t before = 0; // tiles of the sequences before this round
  for (int64_t first = 0; first < batch; first += wave) {
    const int64_t b = first + lane;
    uint32_t mine = 0;
    if (b < batch) {
      const tsri_span span = tsri_span_of(cu, nullptr, nullptr, dtype, 0, total, b);
      mine = static_cast<uint32_t>((span.slot_len + rows - 1) / rows);
    }
    uint32_t sum = mine; // inclusive over lanes
    for (int step = 1; step < wave; step *= 2) {
      const uint32_t other = shuffle(sum, lane >= step ? lane - step : lane);
      if (lane >= step) sum += other;
    }
    const int64_t end = before + shuffle(sum, wave - 1);
    if (index < end) {
      // The lane whose sequence holds it: how many lanes end at or before it.
      uint32_t past = before + static_cast<int64_t>(sum) <= index;
      for (int step = 1; step < wave; step *= 2) past += shuffle_xor(past, step);
      const int owner = static_cast<int>(past);
      const int64_t begin = before + shuffle(sum, owner) - shuffle(mine, owner);
      return Place{first + owner, static_cast<int32_t>(index - begin)};
    }
    before = end;
  }
  return Place{-1, 0};
}

// The key tiles that queries [i0, i1) may see: the first `head` of them start at tile 0 (prefix), the
// others at tile `band`.
struct KeyTiles {
  int32_t head, band, count;
  TSRI_DEVICE_MEMBER int32_t at(const KeyTiles &t, int32_t n) {
    return n < t.head ? n : t.band + n - t.head;
  }
};

// By one thread for its block, or by any.
TSRI_DEVICE KeyTiles key_tiles_of(const tsri_mask_rule &rule, int64_t i0, int64_t i1, int keys) {
  KeyTiles t = {0, 0, 0};
  if (i0 >= i1) return t;
  const tsri_mask_row rows = tsri_mask_rows_of(&rule, i0, i1);
  t.head = static_cast<int32_t>((rows.prefix + keys - 1) / keys);
  t.band = t.head;
  t.count = t.head;
  if (rows.hi > rows.lo) {
    const int32_t from = static_cast<int32_t>(rows.lo / keys);
    t.band = larger(from, t.head);
    t.count += larger(static_cast<int32_t>((rows.hi + keys - 1) / keys) - t.band, 0);
  }
  return t;
}

// The same by all lanes of a wave together.
TSRI_DEVICE KeyTiles key_tiles(const tsri_mask_rule &rule, int64_t i0, int64_t i1, int keys) {
  KeyTiles t = key_tiles_of(rule, i0, i1, keys);
  t.head = uniform(t.head);
  t.band = uniform(t.band);
  t.count = uniform(t.count);
  return t;
}

} // namespace gpu
} // namespace tessera

#endif // TESSERA_COMMON_GPU_WORK_HPP_
