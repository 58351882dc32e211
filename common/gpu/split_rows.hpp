// SPDX-License-Identifier: Apache-2.0
//
// What the blocks of a split launch agree on: the rows of a tile (query heads of a group x queries), the
// key tiles that a part visits, where the keys of a tile lie in memory, and which parts have anything to
// do. A part without visible keys ends at once; the others know how many they are, so that the last of
// them to arrive can merge (split_combine.hpp).
#ifndef TESSERA_COMMON_GPU_SPLIT_ROWS_HPP_
#define TESSERA_COMMON_GPU_SPLIT_ROWS_HPP_

#include "common/gpu/arguments.hpp"
#include "common/gpu/score.hpp"
#include "common/gpu/tile.hpp"
#include "common/gpu/work.hpp"

namespace tessera {
namespace gpu {

// a / b; 64-bit division only where it must be, for it is many times slower.
TSRI_DEVICE int64_t divide_rows(int64_t a, int32_t b) {
  const uint64_t n = static_cast<uint64_t>(a);
  if (n < static_cast<uint32_t>(b)) return 0;
  return static_cast<int64_t>(n >> 32 ? n / static_cast<uint32_t>(b)
                                      : static_cast<uint32_t>(n) / static_cast<uint32_t>(b));
}

// A row of a tile. head < 0: beyond the slot, nothing is written.
struct SplitRow {
  int32_t query; // of the used part; outside [0, Sq) in padding
  int32_t head;
};

// What of ScoreTerms depends on the row's head.
struct SplitTerms {
  const unsigned char *bias;
  int64_t mask_bh, block_bh, head;
  float slope;
};

// The work of one block. Parts of keys are numbered from the first key on; those with visible keys are
// [0, head_parts) and [band_parts, band_parts + live - head_parts).
struct SplitWork {
  int64_t b, unit; // unit: index of (b, KV head, row tile)
  int32_t group_head, row_tile, part, chunk;
  int32_t pad;        // rows of the slot before the used part
  int32_t rows;       // rows of the tile that lie in the slot
  int32_t first, last; // rows of the tile that lie in the used part
  int32_t head_parts, band_parts, live;
  // Key tiles of this part: head of them from head_from on, the others from band on.
  int32_t head_from, head, band, count;

  TSRI_DEVICE_MEMBER int32_t tile_at(const SplitWork &w, int32_t n) {
    return n < w.head ? w.head_from + n : w.band + n - w.head;
  }
  TSRI_DEVICE_MEMBER int32_t live_part(const SplitWork &w, int32_t n) {
    return n < w.head_parts ? n : w.band_parts + n - w.head_parts;
  }
};

// Block number -> work, fastest index first: chunk of Dv, row tile, KV head, part, batch. Blocks that run
// side by side then share keys, or read neighbouring heads of the same tokens.
TSRI_DEVICE SplitWork split_place(const SplitArgs &args) {
  SplitWork w;
  uint32_t n = block_index();
  const uint32_t heads = static_cast<uint32_t>(args.call.p.heads_kv);
  w.chunk = w.row_tile = 0;
  if (args.chunks > 1) {
    w.chunk = static_cast<int32_t>(n % static_cast<uint32_t>(args.chunks));
    n /= static_cast<uint32_t>(args.chunks);
  }
  if (args.row_tiles > 1) {
    w.row_tile = static_cast<int32_t>(n % static_cast<uint32_t>(args.row_tiles));
    n /= static_cast<uint32_t>(args.row_tiles);
  }
  w.group_head = static_cast<int32_t>(n % heads);
  n /= heads;
  w.part = static_cast<int32_t>(n % static_cast<uint32_t>(args.splits));
  w.b = n / static_cast<uint32_t>(args.splits);
  w.unit = (w.b * heads + w.group_head) * args.row_tiles + w.row_tile;
  return w;
}

// Shares the key tiles of a row tile out evenly, to as many parts as there are tiles at most.
TSRI_DEVICE void share_tiles(SplitWork &w, const KeyTiles &all, int32_t splits) {
  const int32_t parts = smaller(splits, all.count);
  w.live = w.head_parts = w.band_parts = parts;
  w.head_from = w.head = w.band = w.count = 0;
  if (w.part >= parts) return;
  const int32_t each = all.count / parts, more = all.count - each * parts; // the first take one more
  const int32_t from = w.part * each + smaller(w.part, more);
  w.count = each + (w.part < more ? 1 : 0);
  w.head_from = from;
  w.head = larger(smaller(all.head, from + w.count) - from, 0);
  w.band = all.band + larger(from - all.head, 0);
}

// Parts of a fixed size, counted from key 0. The last takes all keys that are left.
template <int kTileK>
TSRI_DEVICE void cut_tiles(SplitWork &w, const KeyTiles &all, const SplitArgs &args) {
  const int32_t each = static_cast<int32_t>(args.part_keys / kTileK);
  const int32_t end = all.band + all.count - all.head, last = args.splits - 1;
  w.head_parts = all.head > 0 ? smaller((all.head - 1) / each, last) + 1 : 0;
  w.band_parts = larger(smaller(all.band / each, last), w.head_parts);
  w.live = w.head_parts;
  if (end > all.band) w.live += larger(smaller((end - 1) / each, last) + 1 - w.band_parts, 0);
  const int32_t from = w.part * each, to = w.part == last ? INT32_MAX : from + each;
  w.head_from = from;
  w.head = larger(smaller(all.head, to) - from, 0);
  w.band = larger(all.band, from);
  w.count = w.head + larger(smaller(end, to) - w.band, 0);
}

// Whether every query of every sequence sees every key of its slot: much less to find out, and what
// decoding from a full cache is.
TSRI_DEVICE bool sees_all(const tsr_problem &p) {
  return tsri_masks_nothing(&p);
}

// The rows of the tile and the keys of the part.
template <int kRows, int kTileK>
TSRI_DEVICE void split_cut(SplitWork &w, const SplitArgs &args, const tsri_sequence &sequence,
                           const tsri_mask_rule &rule, bool all_seen) {
  const int64_t group = args.call.group, row0 = static_cast<int64_t>(w.row_tile) * kRows;
  const int64_t pad = sequence.q.begin - sequence.q.slot_begin;
  const auto inside = [row0](int64_t row) {
    return static_cast<int32_t>(tsri_clamp(row - row0, 0, kRows));
  };
  w.pad = static_cast<int32_t>(pad);
  w.rows = inside(sequence.q.slot_len * group);
  KeyTiles all = {0, 0, 0};
  if (all_seen) {
    w.first = 0;
    w.last = w.rows;
    all.count = static_cast<int32_t>((static_cast<uint32_t>(rule.sk) + kTileK - 1) / kTileK);
  } else {
    w.first = inside(pad * group);
    w.last = inside((pad + sequence.q.len) * group);
    if (w.first < w.last)
      all = key_tiles_of(rule, divide_rows(row0 + w.first, args.call.group) - pad,
                         divide_rows(row0 + w.last - 1, args.call.group) - pad + 1, kTileK);
  }
  if (args.part_keys == 0)
    share_tiles(w, all, args.splits);
  else
    cut_tiles<kTileK>(w, all, args);
}

// Addresses of a row of K and of V; NULL outside the sequence.
struct KeyRow {
  const unsigned char *k, *v;
};

// Number of the page that holds row r; 0 without pages. Apart from key_row so that the look-up in the
// table can be under way while something else is done.
TSRI_DEVICE int64_t key_page(const RowSource &k, int32_t r) {
  if (!k.pages.table || static_cast<uint32_t>(r) >= static_cast<uint32_t>(k.length)) return 0;
  const uint32_t row = static_cast<uint32_t>(k.first + r);
  return tsri_clamp(
      tsri_index(k.pages.table, k.pages.dtype, row / static_cast<uint32_t>(k.pages.size)), 0,
      k.pages.count - 1);
}

TSRI_DEVICE KeyRow key_row(const RowSource &k, const RowSource &v, int32_t r, int64_t page) {
  if (static_cast<uint32_t>(r) >= static_cast<uint32_t>(k.length)) return KeyRow{nullptr, nullptr};
  int64_t row = k.first + r;
  if (k.pages.table) row = static_cast<uint32_t>(row) % static_cast<uint32_t>(k.pages.size);
  return KeyRow{k.base + page * k.page_bytes + row * k.row_bytes,
                v.base + page * v.page_bytes + row * v.row_bytes};
}

// The r-th of pointers that are one KeyRow apart.
TSRI_DEVICE const unsigned char *key_pointer(uint32_t rows, int r) {
  return shared_at<const unsigned char *>(rows + static_cast<uint32_t>(r) *
                                                     static_cast<uint32_t>(sizeof(KeyRow)));
}

// Starts loading rows first .. first + T::kRows - 1 of an unpaged source that allows 16-byte copies, columns
// from `column` on, by kThreads threads of which this is number `thread`.
template <class E, class T, int kThreads>
TSRI_DEVICE void load_following_rows(uint32_t offset, const RowSource &source, int32_t first, int column,
                                     int thread) {
  constexpr int total = T::kRows * T::kChunks, step = kThreads / T::kChunks;
  constexpr bool regular = kThreads % T::kChunks == 0 && T::kRows % max_of(step, 8) == 0;
  const int chunk0 = column / T::kPerChunk, columns = source.columns;
  const int64_t row_bytes = source.row_bytes;
  const unsigned char *from = source.base + (source.first + first) * row_bytes + chunk0 * 16;
  const int32_t rows = source.length - first;
  if constexpr (regular) {
    // A thread keeps its column and steps down. r0 < step, a power of two, or 8 divides step: the row's
    // place in the swizzle changes by an xor.
    const int r0 = thread / T::kChunks, c0 = thread % T::kChunks;
    const int32_t left = (chunk0 + c0) * T::kPerChunk < columns ? rows - r0 : 0;
    const int64_t down = step * row_bytes;
    const uint32_t to = offset + T::at(r0, c0);
    from += r0 * row_bytes + c0 * 16;
    TSRI_UNROLL
    for (int n = 0; n < T::kRows / max_of(step, 1); ++n) {
      copy_async((to ^ static_cast<uint32_t>(n * step % 8 * 16)) +
                     static_cast<uint32_t>(n * step * T::kRowBytes),
                 from, n * step < left);
      from += down;
    }
  } else {
    TSRI_NO_UNROLL
    for (int i = thread; i < total; i += kThreads) {
      const int r = i / T::kChunks, c = i % T::kChunks;
      copy_async(offset + T::at(r, c), from + r * row_bytes + c * 16,
                 r < rows && (chunk0 + c) * T::kPerChunk < columns);
    }
  }
}

// Starts loading columns from `column` on of the rows whose addresses lie in shared memory at `rows`, one
// of each KeyRow, by kThreads threads of which this is number `thread`. source: what is common to the rows.
template <class E, class T, int kThreads, bool kAny>
TSRI_DEVICE void load_key_rows(uint32_t offset, uint32_t rows, const RowSource &source, int column,
                               int thread) {
  constexpr int total = T::kRows * T::kChunks, each = ceil_div(total, kThreads);
  constexpr int step = kThreads / T::kChunks; // rows between two copies of a thread, which keeps its column
  constexpr int together = step == 1 && each % 8 == 0 ? 8 : each % 4 == 0 ? 4 : each % 2 == 0 ? 2 : 1;
  constexpr bool regular = kThreads % T::kChunks == 0 && together * step % 8 == 0;
  const int chunk0 = column / T::kPerChunk, columns = source.columns;
  if (kAny && !source.vector) {
    RowSource one = source;
    one.first = 0;
    one.pages.table = nullptr;
    TSRI_NO_UNROLL
    for (int i = thread; i < total; i += kThreads) {
      const int r = i / T::kChunks, c = i % T::kChunks;
      one.base = key_pointer(rows, r);
      const bool valid = one.base && (chunk0 + c) * T::kPerChunk < columns;
      shared_at<Chunk>(offset + T::at(r, c)) =
          valid ? gather_chunk<E>(one, 0, chunk0 + c) : Chunk{{0, 0, 0, 0}};
    }
    return;
  }
  const int r0 = thread / T::kChunks, c0 = thread % T::kChunks;
  const bool inside = (chunk0 + c0) * T::kPerChunk < columns;
  const int64_t along_row = (chunk0 + c0) * 16;
  uint32_t from = rows + static_cast<uint32_t>(r0 * static_cast<int>(sizeof(KeyRow)));
  uint32_t to = offset + T::at(r0, c0);
  TSRI_NO_UNROLL
  for (int n0 = 0; n0 < each; n0 += together) {
    // Look-ups of several copies first: each of them waits for shared memory.
    const unsigned char *row[together];
    TSRI_UNROLL
    for (int n = 0; n < together; ++n) {
      const int i = (n0 + n) * kThreads + thread;
      if (regular)
        row[n] = key_pointer(from, n * step);
      else
        row[n] = total % kThreads == 0 || i < total ? key_pointer(rows, i / T::kChunks) : nullptr;
    }
    TSRI_UNROLL
    for (int n = 0; n < together; ++n) {
      const int i = (n0 + n) * kThreads + thread;
      if (regular) {
        // r0 < step, a power of two, or 8 divides step: the row's place in the swizzle changes by an xor.
        const uint32_t turn = static_cast<uint32_t>(n * step % 8 * 16);
        copy_async((to ^ turn) + static_cast<uint32_t>(n * step * T::kRowBytes), row[n] + along_row,
                   row[n] && inside);
      } else if (total % kThreads == 0 || i < total) {
        const int c = i % T::kChunks;
        copy_async(offset + T::at(i / T::kChunks, c), row[n] + (chunk0 + c) * 16,
                   row[n] && (chunk0 + c) * T::kPerChunk < columns);
      }
    }
    from += static_cast<uint32_t>(together * step * static_cast<int>(sizeof(KeyRow)));
    to += static_cast<uint32_t>(together * step * T::kRowBytes);
  }
}

} // namespace gpu
} // namespace tessera

#endif // TESSERA_COMMON_GPU_SPLIT_ROWS_HPP_
