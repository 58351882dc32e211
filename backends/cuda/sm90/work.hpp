// SPDX-License-Identifier: Apache-2.0
//
// Work of blocks that stay: which tiles of queries of which heads a block takes one after the other, and what
// it needs to know of each. Found once at the block's start, by all its threads and into shared memory, while
// registers are still shared out evenly: warps that load and warps that multiply have few to spare.
//
// Order: tile t from the end and tile t from the beginning of a head make a pair: under a causal mask the one
// sees what the other does not, so pairs are alike, and blocks take pairs in turn. Blocks side by side work on
// the same head, whose keys come from memory once and from L2 to all of them. What does not fill a last round of
// pairs is dealt out in single tiles.
#ifndef TESSERA_BACKENDS_CUDA_SM90_WORK_HPP_
#define TESSERA_BACKENDS_CUDA_SM90_WORK_HPP_

#include "common/gpu/arguments.hpp"
#include "common/gpu/score.hpp"
#include "common/gpu/work.hpp"

namespace tessera {
namespace gpu {

struct WorkItem {
  int64_t o_at, lse_at; // elements in front of row row0 of (b, h)
  int32_t b;          // -1: nothing to do
  int32_t h;
  int32_t slot_begin; // first row of the queries' slot in its tensor; all rows are below 2^31
  int32_t k_begin;    // first used row of keys
  int32_t q_batch;    // where the copy engine finds them: 0 in packed tensors
  int32_t k_batch, k_head;
  int32_t row0;       // of the slot
  int32_t i0;         // used row of it; negative in left padding
  int32_t slot_len, queries, keys, prefix;
  int32_t whole; // whether all rows of the tile are used and see all keys, in whole tiles of them
  tsri_mask_band band;
  KeyTiles tiles;
};

// The pairs of a launch, dealt out to its blocks.
struct Deal {
  int64_t rounds, rest; // full rounds, pairs of the last one
  int64_t lent;         // second tiles of these that blocks without a pair of their own take
  int64_t free;         // such blocks
};
TSRI_DEVICE Deal deal_of(int64_t pairs) {
  const int64_t blocks = block_count();
  Deal d;
  d.rounds = divide(pairs, blocks, d.rest);
  d.free = blocks - d.rest;
  d.lent = smaller(d.rest, 2 * d.free);
  return d;
}
// Single tiles, two to a pair, that a block gets.
TSRI_DEVICE int deal_count(const Deal &d) {
  const int64_t block = block_index(), spare = block - d.rest;
  const int64_t last = block < d.rest ? 1 + (block >= d.lent) : (d.lent > spare) + (d.lent > spare + d.free);
  return static_cast<int>(2 * d.rounds + last);
}
// The pair of number n of them; *second: its second tile.
TSRI_DEVICE int64_t deal_at(const Deal &d, int n, bool *second) {
  const int64_t blocks = block_count(), block = block_index();
  const int64_t whole = d.rounds * blocks;
  *second = n & 1;
  if (n < 2 * d.rounds) return n / 2 * blocks + block;
  n -= static_cast<int>(2 * d.rounds);
  *second = block >= d.rest || n == 1;
  return whole + (block < d.rest ? block : block - d.rest + n * d.free);
}

// What there is to know of tile `tile` of (b, h).
TSRI_DEVICE WorkItem work_item(const Call &call, int64_t b, int32_t h, int32_t tile, int tile_q, int tile_k) {
  const tsri_sequence sequence = tsri_sequence_of(&call.p, &call.a, b);
  const tsri_mask_rule rule = tsri_sequence_rule(&call.p, &sequence);
  WorkItem item;
  item.slot_begin = static_cast<int32_t>(sequence.q.slot_begin);
  item.k_begin = static_cast<int32_t>(sequence.k.begin);
  item.q_batch = call.a.cu_q ? 0 : static_cast<int32_t>(b);
  item.k_batch = call.a.cu_k ? 0 : static_cast<int32_t>(b);
  item.k_head = h / call.group;
  item.slot_len = static_cast<int32_t>(sequence.q.slot_len);
  item.row0 = tile * tile_q;
  item.b = item.row0 < item.slot_len ? static_cast<int32_t>(b) : -1;
  item.h = h;
  item.o_at = tsri_row_offset(call.p.o.stride, b, h, sequence.q.slot_begin + item.row0);
  item.lse_at = tsri_row_offset(call.p.lse.stride, b, h, sequence.q.slot_begin + item.row0);
  item.i0 = item.row0 - static_cast<int32_t>(sequence.q.begin - sequence.q.slot_begin);
  item.queries = static_cast<int32_t>(sequence.q.len);
  item.keys = static_cast<int32_t>(sequence.k.len);
  item.prefix = static_cast<int32_t>(rule.prefix);
  item.band = tsri_mask_band_of(&rule);
  item.whole = rule.left == TSR_UNBOUNDED && rule.right == TSR_UNBOUNDED && rule.prefix <= 0 && item.i0 >= 0 &&
               item.i0 + tile_q <= item.queries && item.keys % tile_k == 0;
  const int64_t i0 = larger(item.i0, 0), i1 = smaller(item.i0 + tile_q, item.queries);
  item.tiles = key_tiles_of(rule, i0, i1, tile_k);
  return item;
}

// The band of used row i of a piece, as store_band's.
TSRI_DEVICE RowBand work_band(const WorkItem &item, int64_t i) {
  if (i < 0 || i >= item.queries) return RowBand{INT32_MAX, INT32_MIN};
  const tsri_mask_row row = tsri_mask_band_row(item.band, i, item.prefix, item.keys);
  return RowBand{static_cast<int32_t>(row.lo), static_cast<int32_t>(row.hi)};
}

// Before a block knows its work it may have to read the caller's memory.
TSRI_DEVICE bool reads_first(const Call &call) { return call.p.arrays != 0 || call.a.rng_state; }

// The list of a block in shared memory.
struct WorkList {
  int32_t count;
  int32_t gaps; // whether some have no keys to see or are not there at all
};

// Fills items[0 .. n - 1] at `offset` and returns n <= kItems, by all threads of a block; a barrier must follow,
// and one that follows `gaps = 0` come before.
template <int kThreads, int kItems>
TSRI_DEVICE int find_work(uint32_t list, uint32_t offset, const EngineForwardArgs &args, int tile_q, int tile_k) {
  const Call &call = args.forward.call;
  const tsr_problem &p = call.p;
  const bool packed = call.a.cu_q != nullptr;
  const int64_t tiles = args.forward.tiles, pairs = (tiles + 1) / 2;
  const int64_t slots = packed ? p.heads_q : p.heads_q * p.batch;
  const Deal deal = deal_of(pairs * slots);
  const int n = smaller(deal_count(deal), kItems);
  // Packed: a warp looks for one tile at a time; otherwise a thread does.
  const int first = packed ? thread_index() / 32 : thread_index(), step = packed ? kThreads / 32 : kThreads;
  for (int i = first; i < n; i += step) {
    bool second;
    const int64_t work = deal_at(deal, i, &second);
    // Turned from head to head and from round to round, or a block might get the same pair of every head, and some
    // have less to do: a pair in the middle may be one tile.
    int64_t pair, h;
    const int64_t slot = divide(work, pairs, pair);
    divide(pair + slot + slot * pairs / block_count(), pairs, pair);
    const int64_t b = divide(slot, p.heads_q, h);
    const int64_t tile = second ? pair : tiles - 1 - pair;
    WorkItem item;
    item.b = -1;
    if (!second || pair != tiles - 1 - pair) {
      Place place = {b, static_cast<int32_t>(tile)};
      if (packed) place = find_packed(call.a.cu_q, p.index_dtype, p.total_q, p.batch, tile_q, tile, 32);
      if (place.b >= 0) item = work_item(call, place.b, static_cast<int32_t>(h), place.tile, tile_q, tile_k);
    }
    if (packed && thread_index() % 32 != 0) continue;
    shared_at<WorkItem>(offset + static_cast<uint32_t>(i) * sizeof(WorkItem)) = item;
    if (item.b < 0 || item.tiles.count == 0) shared_at<WorkList>(list).gaps = 1;
  }
  if (thread_index() == 0) shared_at<WorkList>(list).count = n;
  return n;
}

// Closes the gaps among n items: those with keys to see stay, in order. By one warp; barriers around it.
TSRI_DEVICE void close_gaps(uint32_t list, uint32_t offset, int n) {
  const int lane = thread_index() % 32;
  int kept = 0;
  for (int first = 0; first < n; first += 32) {
    WorkItem item;
    item.b = -1;
    if (first + lane < n) item = shared_at<WorkItem>(offset + static_cast<uint32_t>(first + lane) * sizeof(WorkItem));
    const uint32_t mine = item.b >= 0 && item.tiles.count > 0;
    uint32_t sum = mine; // inclusive over lanes
    for (int step = 1; step < 32; step *= 2) {
      const uint32_t other = shuffle(sum, lane >= step ? lane - step : lane);
      if (lane >= step) sum += other;
    }
    const int all = static_cast<int>(shuffle(sum, 31));
    if (mine)
      shared_at<WorkItem>(offset + static_cast<uint32_t>(kept + static_cast<int>(sum) - 1) * sizeof(WorkItem)) = item;
    kept += all;
    sync_wave();
  }
  if (lane == 0) shared_at<WorkList>(list).count = kept;
}

} // namespace gpu
} // namespace tessera

#endif // TESSERA_BACKENDS_CUDA_SM90_WORK_HPP_
