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

// Float32 beside 16-bit inputs, of rows that allow pairs: rows [row, row + 16 kFree) below `rows` of `to`, and columns
// from `column` on.
template <class U, int kFree, int kOut>
TSRI_DEVICE void store_pairs(const typename U::Acc (&out)[kFree][kOut], float *to, int64_t stride, int row, int rows,
                             int column, int columns) {
  TSRI_UNROLL
  for (int f = 0; f < kFree; ++f)
    TSRI_UNROLL
    for (int slot = 0; slot < U::kRows; ++slot) {
      const int r = row + f * U::kFree + U::free_of(slot);
      float *at = to + r * stride + column + U::con_lane();
      TSRI_UNROLL
      for (int o = 0; o < kOut; ++o)
        TSRI_UNROLL
        for (int e = 0; e < U::kElements; e += 2) {
          const int c = o * U::kCon + U::con_element(e);
          if (U::slot(e) == slot && r < rows && column + U::con_lane() + c < columns)
            *reinterpret_cast<Pair *>(at + c) = Pair{out[f][o].x[e], out[f][o].x[e + 1]};
        }
    }
}

// store_outputs of a wave on its own, which meets no other: the wave's rows of the tile at `offset` are free for it.
template <class U, class T, int kFree, int kOut>
TSRI_DEVICE void store_wave_outputs(const typename U::Acc (&out)[kFree][kOut], uint32_t offset, int wave_row,
                                    const tsr_layout &layout, void *data, int64_t b, int64_t h, int64_t row, int rows,
                                    int column, int columns) {
  using E = typename U::Element;
  const int64_t begin = tsri_row_offset(layout.stride, b, h, row);
  if (layout.dtype != DtypeOf<E>::value) {
    store_pairs<U>(out, static_cast<float *>(data) + begin, layout.stride[2], wave_row, rows, column, columns);
    return;
  }
  TSRI_UNROLL
  for (int f = 0; f < kFree; ++f)
    TSRI_UNROLL
    for (int slot = 0; slot < U::kRows; ++slot) {
      const int r = wave_row + f * U::kFree + U::free_of(slot);
      const uint32_t at = offset + T::at(r, 0) + static_cast<uint32_t>(U::con_lane() * 2);
      TSRI_UNROLL
      for (int o = 0; o < kOut; ++o)
        TSRI_UNROLL
        for (int e = 0; e < U::kElements; e += 2)
          if (U::slot(e) == slot)
            shared_pair<E>(along(at, (o * U::kCon + U::con_element(e)) * 2), out[f][o].x[e], out[f][o].x[e + 1]);
    }
  sync_wave();
  constexpr int step = U::kWave / T::kChunks, total = kFree * U::kFree;
  static_assert(step >= 1 && U::kWave % T::kChunks == 0 && (step & (step - 1)) == 0, "a lane keeps its column");
  const int lane = U::lane(), r = lane / T::kChunks, c = lane % T::kChunks;
  const int last = column + c * T::kPerChunk < columns ? rows - wave_row - r : 0;
  E *to = static_cast<E *>(data) + begin + (wave_row + r) * layout.stride[2] + column + c * T::kPerChunk;
  const uint32_t from = offset + T::at(wave_row + r, c);
  TSRI_UNROLL
  for (int n = 0; n < total / step; ++n) {
    const uint32_t at = from ^ static_cast<uint32_t>(n * step % 8 * 16); // where the swizzle is further on
    if (n * step < last)
      *reinterpret_cast<Chunk *>(to) = shared_at<Chunk>(at + static_cast<uint32_t>(n * step * T::kRowBytes));
    to += step * layout.stride[2];
  }
}

// Writes a wave's accumulators to rows from `row` on and columns from `column` on, or adds them, a tile of 16 columns
// after the other through shared memory: see store_outputs. begin: the element of row 0 and column 0.
template <class U, int kFree, int kOut>
TSRI_DEVICE void store_elements(const typename U::Acc (&out)[kFree][kOut], uint32_t offset, int row, int column,
                                const tsr_layout &layout, void *data, bool add, int64_t begin, int rows,
                                int columns) {
  static_assert(U::kCon == 16, "columns of an accumulator");
  constexpr int own = kFree * U::kFree; // rows of the wave
  const uint32_t strip = offset + static_cast<uint32_t>(thread_index() / U::kWave * own * 64);
  TSRI_UNROLL
  for (int o = 0; o < kOut; ++o) {
    sync_wave(); // the columns before have been read
    TSRI_UNROLL
    for (int f = 0; f < kFree; ++f)
      TSRI_UNROLL
      for (int e = 0; e < U::kElements; ++e)
        shared_at<float>(strip + static_cast<uint32_t>((f * U::kFree + U::free_of(U::slot(e))) * 64 +
                                                       (U::con_lane() + U::con_element(e)) * 4)) = out[f][o].x[e];
    sync_wave();
    TSRI_NO_UNROLL
    for (int i = thread_index() % U::kWave; i < own * 16; i += U::kWave) {
      const int r = row + i / 16, c = column + o * 16 + i % 16;
      if (r >= rows || c >= columns) continue;
      const int64_t at = begin + r * layout.stride[2] + c * layout.stride[3];
      const float x = shared_at<float>(strip + static_cast<uint32_t>(i) * 4);
      store_element(layout.dtype, data, at, add ? load_element(layout.dtype, data, at) + x : x);
    }
  }
}

// Writes out[kFree][kOut] accumulators (free index: row, other index: column) of every wave to rows
// row .. row + rows - 1 of a tensor, columns column .. min(column + width, columns) - 1, or adds them.
// T is the tile of the whole block, in which the wave's part begins at (wave_row, wave_column); its
// memory at `offset` must be free, with a barrier before. All threads call it. kLoops: outputs with any strides go in
// a loop over elements, for programs whose code would be too long for branches.
template <class U, class T, int kThreads, int kFree, int kOut, bool kAny, bool kLoops = false>
TSRI_DEVICE void store_outputs(const typename U::Acc (&out)[kFree][kOut], uint32_t offset,
                               int wave_row, int wave_column, const tsr_layout &layout, void *data,
                               bool vector, bool add, int64_t b, int64_t h, int64_t row, int rows,
                               int column, int columns) {
  using E = typename U::Element;
  const int64_t begin = tsri_row_offset(layout.stride, b, h, row);
  if (!kAny && layout.dtype != DtypeOf<E>::value) {
    store_pairs<U>(out, static_cast<float *>(data) + begin, layout.stride[2], wave_row, rows, column + wave_column,
                   columns);
    return;
  }
  if (kAny && (layout.dtype != DtypeOf<E>::value || !vector || add)) {
    if constexpr (kLoops) {
      store_elements<U>(out, offset, wave_row, column + wave_column, layout, data, add, begin, rows, columns);
      return;
    }
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
