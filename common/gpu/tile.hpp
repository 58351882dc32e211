// SPDX-License-Identifier: Apache-2.0
//
// Tiles in shared memory and how they get there. A tile is rows of kColumns elements; a row takes a
// multiple of 128 bytes, and within each 128 bytes the 16-byte chunk c of row r sits at c ^ (r & 7), so
// that eight consecutive rows of one chunk, and eight chunks of one row, each touch all banks once.
// Rows beyond a sequence's end and columns beyond a head dimension are zeros that were never loaded.
#ifndef TESSERA_COMMON_GPU_TILE_HPP_
#define TESSERA_COMMON_GPU_TILE_HPP_

#include "common/geometry.h"
#include "common/gpu/element.hpp"
#include "common/gpu/platform.hpp"

namespace tessera {
namespace gpu {

template <class E, int kRows_, int kColumns_>
struct Tile {
  static constexpr int kRows = kRows_;
  static constexpr int kColumns = kColumns_;
  static constexpr int kRowBytes = ceil_div(kColumns * static_cast<int>(sizeof(E)), 128) * 128;
  static constexpr int kBytes = kRows * kRowBytes;
  static constexpr int kChunks = ceil_div(kColumns * static_cast<int>(sizeof(E)), 16); // of a row
  static constexpr int kPerChunk = 16 / static_cast<int>(sizeof(E));
  static constexpr int kPlanes = 1; // parts that numbers are kept in
  static constexpr bool kTransposed = false;

  // Byte offset of chunk c of row r from the tile's begin.
  TSRI_DEVICE_MEMBER uint32_t at(int r, int c) {
    return static_cast<uint32_t>(r * kRowBytes + ((c ^ (r & 7)) & 7) * 16 + (c & ~7) * 16);
  }
};

// The same elements with columns as rows, for matrix units that read along the index that runs over the
// rows of memory. Of 16-bit elements; a row (a column of memory) is groups of four elements, and group
// q of row c sits at q ^ swizzle(c), so that reads of 8 bytes do not meet in a bank; writes may, two or four at a
// time. kPair 2: two groups stay side by side, for reads of 16 bytes.
template <class E, int kRows_, int kColumns_, int kPair = 1>
struct TransposedTile {
  static_assert(sizeof(E) == 2 && (kRows_ == 16 || kRows_ % 32 == 0), "rows of whole groups");
  static constexpr int kRows = kRows_; // of memory
  static constexpr int kColumns = kColumns_;
  static constexpr int kRowBytes = kRows * 2;
  static constexpr int kBytes = kColumns * kRowBytes;
  static constexpr int kPlanes = 1;
  static constexpr bool kTransposed = true;
  static constexpr int kMask = kRows >= 64 ? 15 : kRows >= 32 ? 7 : 3;

  TSRI_DEVICE_MEMBER int swizzle(int column) {
    // Rows of 128, 64 or 32 bytes, of which one, two or four pass all banks.
    if (kPair == 2) return (kRows >= 64 ? column * 2 : kRows >= 32 ? column : column >> 1) & kMask & ~1;
    if (kRows < 32) return (column >> 2) & kMask;
    return (column ^ column >> 4) & kMask;
  }
  // Byte offset of rows 4 q .. 4 q + 3 of a column.
  TSRI_DEVICE_MEMBER uint32_t at(int column, int q) {
    return static_cast<uint32_t>(column * kRowBytes + (q ^ swizzle(column)) * 8);
  }
};

// A lane's byte offset moved by a compile-time number of bytes along its row: the swizzle lives in the
// low seven bits.
TSRI_DEVICE uint32_t along(uint32_t lane_offset, int bytes) {
  return (lane_offset ^ static_cast<uint32_t>(bytes & 127)) + static_cast<uint32_t>(bytes & ~127);
}

// Where the rows of one side of one (batch, head) are in memory. `pages.table` NULL: not paged.
struct RowSource {
  const unsigned char *base; // element 0 of (b, h), or of the tensor when paged
  int64_t row_bytes;         // stride 2
  int64_t column_bytes;      // stride 3
  int64_t first;             // tensor row of row 0 of the used part
  tsri_pages pages;          // with strides in bytes below
  int64_t page_bytes, head_offset;
  int32_t length;            // rows of the used part
  int32_t columns;
  bool vector;               // 16-byte copies are legal
};

template <class E>
TSRI_DEVICE RowSource row_source(const void *data, const tsr_layout &layout, const tsri_span &span,
                                 int64_t b, int64_t h, int64_t columns, bool vector) {
  RowSource s;
  const int64_t size = static_cast<int64_t>(sizeof(E));
  s.base = static_cast<const unsigned char *>(data) +
           (b * layout.stride[0] + h * layout.stride[1]) * size;
  s.row_bytes = layout.stride[2] * size;
  s.column_bytes = layout.stride[3] * size;
  s.first = span.begin;
  s.pages.table = nullptr;
  s.page_bytes = s.head_offset = 0;
  s.length = static_cast<int32_t>(span.len);
  s.columns = static_cast<int32_t>(columns);
  s.vector = vector;
  return s;
}

// The same for keys and values, which may be paged; the row of the table is that of sequence b.
template <class E>
TSRI_DEVICE RowSource kv_source(const void *data, const tsr_layout &layout, const tsri_span &span,
                                const tsri_pages &pages, int64_t b, int64_t h, int64_t columns,
                                bool vector) {
  RowSource s = row_source<E>(data, layout, span, pages.table ? 0 : b, h, columns, vector);
  if (!pages.table) return s;
  s.pages = pages;
  s.pages.table = static_cast<const unsigned char *>(pages.table) +
                  b * pages.stride * (pages.dtype == TSR_DTYPE_I64 ? 8 : 4);
  s.page_bytes = layout.stride[0] * static_cast<int64_t>(sizeof(E));
  return s;
}

// Address of row r of the used part.
TSRI_DEVICE const unsigned char *row_address(const RowSource &s, int r) {
  const int64_t row = s.first + r;
  if (!s.pages.table) return s.base + row * s.row_bytes;
  const uint32_t size = static_cast<uint32_t>(s.pages.size); // rows of a slot stay below 2^31
  const uint32_t page = static_cast<uint32_t>(row) / size;
  const int64_t number =
      tsri_clamp(tsri_index(s.pages.table, s.pages.dtype, page), 0, s.pages.count - 1);
  return s.base + number * s.page_bytes +
         static_cast<int64_t>(static_cast<uint32_t>(row) - page * size) * s.row_bytes;
}

// Gathers one chunk of a row with any strides.
template <class E>
TSRI_DEVICE Chunk gather_chunk(const RowSource &s, int r, int c) {
  constexpr int n = 16 / static_cast<int>(sizeof(E));
  union {
    Chunk chunk;
    E x[n];
  } u;
  const unsigned char *row = row_address(s, r);
  u.chunk = Chunk{{0, 0, 0, 0}};
  TSRI_UNROLL
  for (int e = 0; e < n; ++e)
    if (c * n + e < s.columns)
      u.x[e] = load_global<E>(row + (c * n + e) * s.column_bytes);
  return u.chunk;
}

// One chunk on its way into a tile; rows outside [0, length) and columns beyond the source are zeros.
template <class E, bool kAny>
TSRI_DEVICE void load_chunk(uint32_t to, const RowSource &s, int row, int c) {
  constexpr int per_chunk = 16 / static_cast<int>(sizeof(E));
  const bool valid =
      static_cast<uint32_t>(row) < static_cast<uint32_t>(s.length) && c * per_chunk < s.columns;
  if (kAny && !s.vector)
    shared_at<Chunk>(to) = valid ? gather_chunk<E>(s, row, c) : Chunk{{0, 0, 0, 0}};
  else
    copy_async(to, valid ? row_address(s, row) + c * 16 : s.base, valid);
}

// Elements column and column + 1, column even, of a row; zeros outside the source.
template <class E, bool kAny>
TSRI_DEVICE uint32_t load_pair(const RowSource &s, int row, int column) {
  if (static_cast<uint32_t>(row) >= static_cast<uint32_t>(s.length) || column >= s.columns) return 0;
  const unsigned char *from = row_address(s, row) + column * s.column_bytes;
  if (!kAny || s.vector) return load_global<uint32_t>(from);
  const uint32_t lo = load_global<uint16_t>(from);
  if (column + 1 >= s.columns) return lo;
  return lo | static_cast<uint32_t>(load_global<uint16_t>(from + s.column_bytes)) << 16;
}

// load_tile for a TransposedTile: a thread turns two columns of four rows; neighbouring threads take
// neighbouring columns. Through registers, done when it returns.
template <class E, class T, int kThreads, bool kAny>
TSRI_DEVICE void load_transposed(uint32_t offset, const RowSource &s, int first, int column,
                                 int thread) {
  constexpr int pairs = T::kColumns / 2, total = pairs * (T::kRows / 4);
  TSRI_UNROLL
  for (int n = 0; n < ceil_div(total, kThreads); ++n) {
    const int i = n * kThreads + thread;
    if (total % kThreads != 0 && i >= total) break;
    const int c = i % pairs * 2, q = i / pairs;
    uint32_t x[4];
    TSRI_UNROLL
    for (int r = 0; r < 4; ++r) x[r] = load_pair<E, kAny>(s, first + 4 * q + r, column + c);
    shared_at<Group>(offset + T::at(c, q)) =
        Group{low_halves(x[0], x[1]), low_halves(x[2], x[3])};
    shared_at<Group>(offset + T::at(c + 1, q)) =
        Group{high_halves(x[0], x[1]), high_halves(x[2], x[3])};
  }
}

// load_tile for a Tile.
template <class E, class T, int kThreads, bool kAny, bool kPaged>
TSRI_DEVICE void load_rows(uint32_t offset, const RowSource &s, int first, int column,
                           int thread) {
  constexpr int total = T::kRows * T::kChunks;
  const int chunk0 = column / T::kPerChunk;
  constexpr int step = max_of(kThreads / T::kChunks, 1); // rows between two copies of a thread
  constexpr bool regular = kThreads % T::kChunks == 0 && step % 8 == 0 && total % kThreads == 0;
    if (!regular || (kPaged && s.pages.table) || (kAny && !s.vector)) {
    TSRI_NO_UNROLL
    for (int i = thread; i < total; i += kThreads)
      load_chunk<E, kAny>(offset + T::at(i / T::kChunks, i % T::kChunks), s, first + i / T::kChunks,
                          chunk0 + i % T::kChunks);
    return;
  }
  // Rows in memory follow each other: a thread keeps its column and steps down by whole swizzle
  // periods, so that both addresses move by constants.
  const int r = thread / T::kChunks, c = thread % T::kChunks;
  const unsigned char *from = s.base + (s.first + first + r) * s.row_bytes + (chunk0 + c) * 16;
  const int64_t down = step * s.row_bytes;
  const uint32_t to = offset + T::at(r, c);
  // No branch around whole tiles: the copies are to be scheduled among the products that follow.
  const int rows = (chunk0 + c) * T::kPerChunk < s.columns ? s.length - first : 0;
  TSRI_UNROLL
  for (int n = 0; n < T::kRows / step; ++n) {
    const int row = r + n * step;
    copy_async(to + static_cast<uint32_t>(n * step * T::kRowBytes), from,
               row < rows && first + row >= 0);
    from += down;
  }
}

// Copies of a tile of rows that follow each other in memory, one at a time, so that they can pass among products:
// a thread keeps where its first chunk of some tile is, and nothing else of the source is needed.
template <class T, int kThreads>
struct LaneCopies {
  using Target = T;
  static constexpr int kStep = kThreads / max_of(T::kChunks, 1); // rows between two copies of a thread
  static constexpr bool kRegular = kThreads % T::kChunks == 0 && kStep % 4 == 0 && T::kRows % max_of(kStep, 1) == 0;
  static constexpr int kCount = T::kRows / max_of(kStep, 1); // of a thread
  uint32_t to;
  const unsigned char *from;
  int64_t row_bytes;
  int rows; // from the thread's first on, that the source has

  // The thread's first chunk of a tile that begins with row `first` of the used part and column `column`.
  TSRI_DEVICE_MEMBER const unsigned char *source(const RowSource &s, int first, int column, int thread) {
    return s.base + (s.first + first + thread / T::kChunks) * s.row_bytes +
           (column / T::kPerChunk + thread % T::kChunks) * 16;
  }
  // rows, columns: that the source has from the tile's first on; more become zeros.
  TSRI_DEVICE_MEMBER LaneCopies start(uint32_t tile, const unsigned char *from, int64_t row_bytes, int rows,
                                      int columns, int thread) {
    const int r = thread / T::kChunks, c = thread % T::kChunks;
    return LaneCopies{tile + T::at(r, c), from, row_bytes, c * T::kPerChunk < columns ? rows - r : 0};
  }
  // Copies [kCount * part / parts, kCount * (part + 1) / parts), in the order of parts.
  TSRI_DEVICE_MEMBER void issue(LaneCopies &c, int part, int parts) {
    TSRI_UNROLL
    for (int n = kCount * part / parts; n < kCount * (part + 1) / parts; ++n) {
      // Half a swizzle period further the chunk is another one.
      const uint32_t at = kStep % 8 != 0 && n % 2 != 0 ? c.to ^ 64u : c.to;
      copy_async(at + static_cast<uint32_t>(n * kStep * T::kRowBytes), c.from, n * kStep < c.rows);
      c.from += kStep * c.row_bytes;
    }
  }
};

// Starts loading rows first .. first + T::kRows - 1 (of the used part) and columns from `column` (a
// multiple of a chunk) on into the tile at `offset`. Done after the copies are waited for and a
// barrier. kAny false: the source allows 16-byte copies. kPaged false: it has no pages; then there is no
// branch on the way, and the compiler schedules the copies among the products around them.
template <class E, class T, int kThreads, bool kAny, bool kPaged = true>
TSRI_DEVICE void load_tile(uint32_t offset, const RowSource &s, int first, int column,
                           int thread = thread_index()) {
  if constexpr (T::kTransposed)
    load_transposed<E, T, kThreads, kAny>(offset, s, first, column, thread);
  else
    load_rows<E, T, kThreads, kAny, kPaged>(offset, s, first, column, thread);
}

} // namespace gpu
} // namespace tessera

#endif // TESSERA_COMMON_GPU_TILE_HPP_
