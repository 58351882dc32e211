// SPDX-License-Identifier: Apache-2.0
//
// A tile on its way through registers, for devices whose copies to shared memory go that way (U::kStaged): loads
// of the next tile are under way while this one is worked on, and are stored when all are done with it. Tiles
// that lie inside a sequence have loads of their own, without a branch or a 64-bit address per lane: all of
// them share a base, which is the wave's, and a lane adds 32 bits to it.
#ifndef TESSERA_COMMON_GPU_STAGE_HPP_
#define TESSERA_COMMON_GPU_STAGE_HPP_

#include "common/gpu/tile.hpp"

namespace tessera {
namespace gpu {

// 16 bytes of row `row` of the used part, from chunk c on; zeros outside the source.
template <class E, bool kAny>
TSRI_DEVICE CopyWords fetch_chunk(const RowSource &s, int row, int c) {
  CopyWords x = {0, 0, 0, 0};
  if (static_cast<uint32_t>(row) >= static_cast<uint32_t>(s.length) ||
      c * (16 / static_cast<int>(sizeof(E))) >= s.columns)
    return x;
  if (kAny && !s.vector) {
    const Chunk chunk = gather_chunk<E>(s, row, c);
    TSRI_UNROLL
    for (int i = 0; i < 4; ++i) x[i] = chunk.w[i];
    return x;
  }
  return load_global<CopyWords>(row_address(s, row) + c * 16);
}

// The free operand of step t from global memory: what load_free would read of a tile.
template <class U, bool kAny>
TSRI_DEVICE void fetch_free(typename U::Free &y, const RowSource &s, int row, int t) {
  constexpr int chunks = static_cast<int>(sizeof(typename U::Free)) / 16;
  CopyWords x[chunks];
  TSRI_UNROLL
  for (int i = 0; i < chunks; ++i)
    x[i] = fetch_chunk<typename U::Element, kAny>(s, row, U::free_chunk(t, i));
  __builtin_memcpy(&y, x, sizeof y);
}

template <class T, bool kTransposed>
struct Parts {
  static constexpr int kLanes = T::kColumns / 2;
};
template <class T>
struct Parts<T, false> {
  static constexpr int kLanes = T::kChunks;
};

// Where a thread's part of a tile is, of tiles inside a sequence.
struct StageLane {
  uint32_t from; // bytes from the tile's first row in memory
  bool any;      // false: its columns are beyond the source, and zeros in shared memory stay what they are
};

// Whether offsets of 32 bits reach all rows of a tile.
TSRI_DEVICE bool rows_are_near(const RowSource &s, int rows) {
  return !s.pages.table && s.row_bytes >= 0 && s.row_bytes < (int64_t{1} << 31) / rows;
}

template <class E, class T, int kThreads>
struct Stage {
  // A thread turns four rows of two columns of a transposed tile; else it moves a chunk of a row.
  static constexpr int kRowsOfOne = T::kTransposed ? 4 : 1;
  static constexpr int kLanes = Parts<T, T::kTransposed>::kLanes; // threads along a row
  static constexpr int kTotal = kLanes * (T::kRows / kRowsOfOne);
  static constexpr int kCount = ceil_div(kTotal, kThreads);
  static constexpr int kDown = kThreads / kLanes * kRowsOfOne; // rows between two parts of a thread
  static constexpr bool kRegular = kThreads % kLanes == 0 && kTotal % kThreads == 0;
  CopyWords x[kCount];

  TSRI_DEVICE_MEMBER int row_of(int n, int thread) {
    if constexpr (kRegular) return thread / kLanes * kRowsOfOne + n * kDown;
    return (n * kThreads + thread) / kLanes * kRowsOfOne;
  }
  TSRI_DEVICE_MEMBER int lane_of(int n, int thread) {
    if constexpr (kRegular) return thread % kLanes;
    return (n * kThreads + thread) % kLanes;
  }
  TSRI_DEVICE_MEMBER bool has(int n, int thread) {
    return kTotal % kThreads == 0 || n * kThreads + thread < kTotal;
  }

  // Rows first .. first + T::kRows - 1 of the used part and columns from `column` on; zeros outside.
  template <bool kAny>
  TSRI_DEVICE_MEMBER void fetch(Stage &stage, const RowSource &s, int first, int column, int thread) {
    TSRI_UNROLL
    for (int n = 0; n < kCount; ++n) {
      CopyWords &x = stage.x[n];
      if (!has(n, thread)) continue;
      const int row = first + row_of(n, thread), lane = lane_of(n, thread);
      if constexpr (T::kTransposed) {
        TSRI_UNROLL
        for (int r = 0; r < 4; ++r) x[r] = load_pair<E, kAny>(s, row + r, column + 2 * lane);
      } else {
        x = fetch_chunk<E, kAny>(s, row, column / T::kPerChunk + lane);
      }
    }
  }

  // The same of a tile inside the sequence whose first row is at `tile`, which all lanes of a wave share.
  TSRI_DEVICE_MEMBER StageLane lane_part(const RowSource &s, int column, int thread) {
    const int lane = lane_of(0, thread);
    const int first = column + lane * (T::kTransposed ? 2 : 16 / static_cast<int>(sizeof(E)));
    return StageLane{static_cast<uint32_t>(row_of(0, thread)) * static_cast<uint32_t>(s.row_bytes) +
                         static_cast<uint32_t>(first) * static_cast<uint32_t>(sizeof(E)),
                     first < s.columns};
  }
  TSRI_DEVICE_MEMBER void fetch_inside(Stage &stage, const unsigned char *tile, int64_t row_bytes,
                                       const StageLane &lane) {
    if (!lane.any) return;
    uint32_t from = lane.from;
    keep_register(from); // extended to 64 bits elsewhere, the compiler would not know that it is of 32
    TSRI_UNROLL
    for (int n = 0; n < kCount; ++n) {
      if constexpr (T::kTransposed) {
        TSRI_UNROLL
        for (int r = 0; r < 4; ++r)
          stage.x[n][r] = load_lane<uint32_t>(tile + (n * kDown + r) * row_bytes, from);
      } else {
        stage.x[n] = load_lane<CopyWords>(tile + n * kDown * row_bytes, from);
      }
    }
  }

  // Into the tile at `offset`. A barrier must follow.
  TSRI_DEVICE_MEMBER void store(const Stage &stage, uint32_t offset, int thread) {
    TSRI_UNROLL
    for (int n = 0; n < kCount; ++n) {
      const CopyWords &x = stage.x[n];
      if (!has(n, thread)) continue;
      const int row = row_of(n, thread), lane = lane_of(n, thread);
      if constexpr (T::kTransposed) {
        shared_at<Group>(offset + T::at(2 * lane, row / 4)) =
            Group{low_halves(x[0], x[1]), low_halves(x[2], x[3])};
        shared_at<Group>(offset + T::at(2 * lane + 1, row / 4)) =
            Group{high_halves(x[0], x[1]), high_halves(x[2], x[3])};
      } else {
        shared_at<CopyWords>(offset + T::at(row, lane)) = x;
      }
    }
  }
};

} // namespace gpu
} // namespace tessera

#endif // TESSERA_COMMON_GPU_STAGE_HPP_
