// SPDX-License-Identifier: Apache-2.0
//
// From accumulators to tensors: a tile of results goes through shared memory so that global stores are
// 16 bytes wide and whole rows; tensors that do not allow that, or are float32 beside 16-bit inputs, are
// written element by element. Also the numbers a row has one of: LSE and the row maximum.
#ifndef TESSERA_COMMON_GPU_EPILOGUE_HPP_
#define TESSERA_COMMON_GPU_EPILOGUE_HPP_

#include "common/geometry.h"
#include "common/gpu/arguments.hpp"
#include "common/gpu/tile.hpp"

namespace tessera {
namespace gpu {

// row: of the tensor.
TSRI_DEVICE void store_row_numbers(const Call &call, int64_t b, int64_t h, int64_t row, float lse,
                                   float max_logit) {
  const tsr_problem &p = call.p;
  if (p.lse.dtype != TSR_DTYPE_NONE)
    call.a.lse[tsri_row_offset(p.lse.stride, b, h, row)] = lse;
  if (p.max_logit.dtype != TSR_DTYPE_NONE)
    call.a.max_logit[tsri_row_offset(p.max_logit.stride, b, h, row)] = max_logit;
}

struct alignas(8) Pair {
  float lo, hi;
};

// Two neighbouring elements of a tile of E.
template <class E>
TSRI_DEVICE void shared_pair(uint32_t offset, float lo, float hi) {
  if constexpr (DtypeOf<E>::value == TSR_DTYPE_F32) {
    shared_at<float>(offset) = lo;
    shared_at<float>(offset + 4) = hi;
  } else {
    shared_at<uint32_t>(offset) = E::pack(lo, hi);
  }
}

// Writes out[kFree][kOut] accumulators (free index: row, other index: column) of every wave to rows
// row .. row + rows - 1 of a tensor, columns column .. min(column + width, columns) - 1, or adds them.
// T is the tile of the whole block, in which the wave's part begins at (wave_row, wave_column); its
// memory at `offset` must be free, with a barrier before. All threads call it.
template <class U, class T, int kThreads, int kFree, int kOut, bool kAny>
TSRI_DEVICE void store_outputs(const typename U::Acc (&out)[kFree][kOut], uint32_t offset,
                               int wave_row, int wave_column, const tsr_layout &layout, void *data,
                               bool vector, bool add, int64_t b, int64_t h, int64_t row, int rows,
                               int column, int columns) {
  using E = typename U::Element;
  const int64_t begin = tsri_row_offset(layout.stride, b, h, row);
  if (!kAny && layout.dtype != DtypeOf<E>::value) { // float32, of rows that allow pairs
    TSRI_UNROLL
    for (int f = 0; f < kFree; ++f)
      TSRI_UNROLL
      for (int slot = 0; slot < U::kRows; ++slot) {
        const int r = wave_row + f * U::kFree + U::free_of(slot);
        float *to = static_cast<float *>(data) + begin + r * layout.stride[2] + column +
                    wave_column + U::con_lane();
        TSRI_UNROLL
        for (int o = 0; o < kOut; ++o)
          TSRI_UNROLL
          for (int e = 0; e < U::kElements; e += 2) {
            const int c = o * U::kCon + U::con_element(e);
            if (U::slot(e) == slot && r < rows &&
                column + wave_column + U::con_lane() + c < columns)
              *reinterpret_cast<Pair *>(to + c) = Pair{out[f][o].x[e], out[f][o].x[e + 1]};
          }
      }
    return;
  }
  if (kAny && (layout.dtype != DtypeOf<E>::value || !vector || add)) {
    TSRI_UNROLL
    for (int f = 0; f < kFree; ++f)
      TSRI_UNROLL
      for (int o = 0; o < kOut; ++o)
        TSRI_UNROLL
        for (int e = 0; e < U::kElements; ++e) {
          const int r = wave_row + f * U::kFree + U::free_of(U::slot(e));
          const int c = column + wave_column + o * U::kCon + U::con_lane() + U::con_element(e);
          if (r >= rows || c >= columns) continue;
          const int64_t at = begin + r * layout.stride[2] + c * layout.stride[3];
          store_element(layout.dtype, data, at,
                        add ? load_element(layout.dtype, data, at) + out[f][o].x[e] : out[f][o].x[e]);
        }
    return;
  }
  constexpr int size = static_cast<int>(sizeof(E));
  TSRI_UNROLL
  for (int f = 0; f < kFree; ++f)
    TSRI_UNROLL
    for (int o = 0; o < kOut; ++o)
      TSRI_UNROLL
      for (int e = 0; e < U::kElements; e += 2) {
        const int r = wave_row + f * U::kFree + U::free_of(U::slot(e));
        const int bytes = (wave_column + o * U::kCon + U::con_lane() + U::con_element(e)) * size;
        shared_pair<E>(offset + T::at(r, bytes / 16) + static_cast<uint32_t>(bytes % 16),
                       out[f][o].x[e], out[f][o].x[e + 1]);
      }
  sync_block();
  constexpr int total = T::kRows * T::kChunks;
  if constexpr (!kAny && !U::kStaged && !U::kSplits && kThreads % T::kChunks == 0 && kThreads / T::kChunks % 8 == 0 &&
                total % kThreads == 0) {
    // A thread keeps its column and goes down by whole swizzle periods: both addresses move by constants.
    constexpr int step = kThreads / T::kChunks;
    const int r = thread_index() / T::kChunks, c = thread_index() % T::kChunks;
    const int last = column + c * T::kPerChunk < columns ? rows - r : 0;
    E *to = static_cast<E *>(data) + begin + r * layout.stride[2] + column + c * T::kPerChunk;
    const uint32_t from = offset + T::at(r, c);
    TSRI_UNROLL
    for (int n = 0; n < total / kThreads; ++n) {
      if (n * step < last)
        *reinterpret_cast<Chunk *>(to) = shared_at<Chunk>(from + static_cast<uint32_t>(n * step * T::kRowBytes));
      to += step * layout.stride[2];
    }
  } else {
    TSRI_UNROLL
    for (int n = 0; n < ceil_div(total, kThreads); ++n) {
      const int i = n * kThreads + thread_index();
      if (total % kThreads != 0 && i >= total) break;
      const int r = i / T::kChunks, c = i % T::kChunks;
      const int at = column + c * T::kPerChunk;
      if (r < rows && at < columns)
        *reinterpret_cast<Chunk *>(static_cast<E *>(data) + begin + r * layout.stride[2] + at) =
            shared_at<Chunk>(offset + T::at(r, c));
    }
  }
}

} // namespace gpu
} // namespace tessera

#endif // TESSERA_COMMON_GPU_EPILOGUE_HPP_
