// SPDX-License-Identifier: Apache-2.0
//
// Work of blocks that stay: which tiles of queries of which heads a block takes one after the other, and what
// it needs to know of each. Found once at the block's start, by all its threads and into shared memory, while
// registers are still shared out evenly: warps that load and warps that multiply have few to spare.
//
// Order: tile t from the end and tile t from the beginning of a head make a pair: under a causal mask the one
// sees what the other does not, so pairs are alike, and blocks take pairs in turn. Blocks side by side work on
// the same head, whose keys come from memory once and from L2 to all of them. What does not fill a last round of
// pairs is dealt out in single tiles, and some rounds before it where that shares them out better.
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
  // Of tiles that are cut, see parts.hpp: which of them, where its parts are among all, and which of them this is;
  // otherwise one part.
  int32_t cut, first, part, parts;
};

// The pairs of a launch, dealt out to its blocks: rounds of whole pairs, and what is left in single tiles.
//   back < 0   what does not fill a round: blocks without a pair of it take second tiles of others
//   otherwise  that and `back` rounds before it, back and forth over the blocks, in the order of pair numbers, first tiles
//              and then second ones: under a causal mask the longest first, so that blocks with one tile more than
//              others have short ones
struct Deal {
  int64_t rounds, whole; // of pairs dealt out as such, and these pairs
  int64_t ends;  // pairs behind them
  int64_t lent, free;    // back < 0: second tiles of these that are lent, and blocks that take them
  int64_t pairs, single; // of a head; tiles of those behind
  int64_t each;          // of every pair number there are so many among them, and one more from number `more` on of the
  int64_t more, extra;   // next `extra` ones; behind the last one comes number 0
  bool sorted;
};
TSRI_DEVICE Deal deal_of(int64_t pairs, int64_t slots, bool odd, int32_t back) {
  const int64_t blocks = block_count(), all = pairs * slots;
  Deal d;
  int64_t rest;
  d.rounds = divide(all, blocks, rest);
  d.sorted = back >= 0 && rest > 0;
  if (d.sorted) d.rounds -= smaller(static_cast<int64_t>(back), d.rounds);
  d.whole = d.rounds * blocks;
  d.ends = all - d.whole;
  d.free = blocks - rest;
  d.lent = smaller(rest, 2 * d.free);
  d.pairs = pairs;
  d.single = 2 * d.ends;
  d.each = d.more = d.extra = 0;
  if (!d.sorted) return d;
  d.each = divide(d.ends, pairs, d.extra);
  divide(d.whole, pairs, d.more);
  if (odd) d.single -= d.each + (pairs - 1 - d.more < d.extra); // the pair in the middle is one tile
  return d;
}
// Tiles that a block gets; cuts: but those that are cut.
TSRI_DEVICE int deal_count(const Deal &d, bool cuts) {
  const int64_t blocks = block_count(), block = block_index();
  const int whole = static_cast<int>(2 * d.rounds);
  if (d.sorted || cuts) {
    int64_t rest;
    const int64_t rounds = divide(d.single, blocks, rest), place = rounds & 1 ? blocks - 1 - block : block;
    return whole + static_cast<int>(rounds + (!cuts && place < rest));
  }
  const int64_t spare = block - d.ends;
  return whole + static_cast<int>(block < d.ends ? 1 + (block >= d.lent)
                                                 : (d.lent > spare) + (d.lent > spare + d.free));
}
// Number k of the pairs behind the whole ones.
TSRI_DEVICE int64_t deal_single(const Deal &d, int64_t k) {
  if (!d.sorted) return d.whole + k;
  // Pair numbers 0 .. first - 1, .. second - 1 and the rest; one of three has one more, or the first and the last.
  const int64_t end = d.more + d.extra;
  const bool around = end > d.pairs;
  const int64_t first = around ? end - d.pairs : d.more, second = around ? d.more : end;
  const int64_t many = d.each + around, few = d.each + !around;
  int64_t number = 0, n;
  if (k < first * many) {
    number = divide(k, many, n);
  } else if ((k -= first * many) < (second - first) * few) {
    number = first + divide(k, few, n);
  } else {
    number = second + divide(k - (second - first) * few, many, n);
  }
  int64_t at = number - d.more;
  if (at < 0) at += d.pairs;
  return d.whole + at + n * d.pairs;
}
// The pair of the single tile at a place; *second: whether it is its second tile.
TSRI_DEVICE int64_t deal_place(const Deal &d, int64_t place, bool *second) {
  *second = place >= d.ends;
  return deal_single(d, *second ? d.single - 1 - place : place);
}
// The pair of tile number n of a block.
TSRI_DEVICE int64_t deal_at(const Deal &d, int n, bool cuts, bool *second) {
  const int64_t blocks = block_count(), block = block_index();
  *second = n & 1;
  const int64_t at = n / 2 * blocks + block;
  if (at < d.whole) return at;
  const int64_t row = n - 2 * d.rounds;
  if (d.sorted || cuts) return deal_place(d, row * blocks + (row & 1 ? blocks - 1 - block : block), second);
  *second = block >= d.ends || row == 1;
  return d.whole + (block < d.ends ? block : block - d.ends + row * d.free);
}

// What does not fill a last round of single tiles, cut along the keys: block 0 .. sharers - 1 get every one the same
// number of tiles of keys, up to rounding, of at most two tiles of queries.
struct DealCut {
  int64_t first;   // place of the first tile among the single ones
  int64_t keys;    // of a tile
  int64_t sharers, all; // blocks, and what they share
};
TSRI_DEVICE DealCut cut_of(const Deal &d, int32_t keys) {
  const int64_t blocks = block_count();
  int64_t rest;
  divide(d.single, blocks, rest);
  return DealCut{d.single - rest, keys, smaller(blocks, 2 * rest), rest * keys};
}
TSRI_DEVICE int64_t cut_at(const DealCut &c, int64_t block) {
  int64_t rest;
  return divide(smaller(block, c.sharers) * c.all, c.sharers, rest);
}
// Block of number `at` among all that they share.
TSRI_DEVICE int32_t cut_sharer(const DealCut &c, int64_t at) {
  int64_t rest;
  return static_cast<int32_t>(divide((at + 1) * c.sharers - 1, c.all, rest));
}
TSRI_DEVICE int cut_count(const DealCut &c) {
  const int64_t lo = cut_at(c, block_index()), hi = cut_at(c, block_index() + int64_t{1});
  int64_t rest;
  return hi > lo ? static_cast<int>(divide(hi - 1, c.keys, rest) - divide(lo, c.keys, rest)) + 1 : 0;
}
// Number `n` of a block's parts: the place of its tile among the single ones; *from, *to: its tiles of keys.
TSRI_DEVICE int64_t cut_part(const DealCut &c, int n, int64_t *from, int64_t *to) {
  const int64_t lo = cut_at(c, block_index()), hi = cut_at(c, block_index() + int64_t{1});
  int64_t rest;
  const int64_t tile = divide(lo, c.keys, rest) + n, begin = tile * c.keys;
  *from = larger(lo - begin, int64_t{0});
  *to = smaller(hi - begin, c.keys);
  return c.first + tile;
}
// Item of a whole tile, of which keys `from` to `to` stay, in tiles of them.
TSRI_DEVICE void cut_item(WorkItem &item, const DealCut &c, int64_t place, int64_t from, int64_t to) {
  const int64_t tile = place - c.first;
  const int32_t first = cut_sharer(c, tile * c.keys);
  item.cut = static_cast<int32_t>(tile);
  item.first = first + item.cut; // a part more for every tile that ends inside a block's share
  item.part = static_cast<int32_t>(block_index()) - first;
  item.parts = cut_sharer(c, (tile + 1) * c.keys - 1) - first + 1;
  item.tiles.band += static_cast<int32_t>(from);
  item.tiles.count = static_cast<int32_t>(to - from);
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
  item.cut = item.first = item.part = 0;
  item.parts = 1;
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
// and one that follows `gaps = 0` come before. kDeals: other orders than `back` < 0 and cuts are looked at.
template <int kThreads, int kItems, bool kDeals>
TSRI_DEVICE int find_work(uint32_t list, uint32_t offset, const EngineForwardArgs &args, int tile_q, int tile_k) {
  const Call &call = args.forward.call;
  const tsr_problem &p = call.p;
  const bool packed = call.a.cu_q != nullptr;
  const int64_t tiles = args.forward.tiles, pairs = (tiles + 1) / 2;
  const int64_t slots = packed ? p.heads_q : p.heads_q * p.batch;
  const Deal deal = deal_of(pairs, slots, (tiles & 1) != 0, kDeals ? args.back : -1);
  const bool cuts = kDeals && args.cut.keys > 0;
  DealCut cut = {0, 1, 1, 1};
  const int whole = deal_count(deal, cuts);
  int n = whole;
  if (cuts) {
    cut = cut_of(deal, args.cut.keys);
    n += cut_count(cut);
  }
  n = smaller(n, kItems);
  // Packed: a warp looks for one tile at a time; otherwise a thread does.
  const int first = packed ? thread_index() / 32 : thread_index(), step = packed ? kThreads / 32 : kThreads;
  for (int i = first; i < n; i += step) {
    bool second;
    int64_t work, place = 0, from = 0, to = 0;
    if (!cuts || i < whole) {
      work = deal_at(deal, i, cuts, &second);
    } else {
      place = cut_part(cut, i - whole, &from, &to);
      work = deal_place(deal, place, &second);
    }
    // Turned from head to head and from round to round, or a block might get the same pair of every head, and some
    // have less to do: a pair in the middle may be one tile. Not of heads whose tiles are in order.
    int64_t pair, h;
    const int64_t slot = divide(work, pairs, pair);
    if (!deal.sorted || (slot + 1) * pairs <= deal.whole)
      divide(pair + slot + slot * pairs / block_count(), pairs, pair);
    const int64_t b = divide(slot, p.heads_q, h);
    const int64_t tile = second ? pair : tiles - 1 - pair;
    WorkItem item;
    item.b = -1;
    if (!second || pair != tiles - 1 - pair) {
      Place at = {b, static_cast<int32_t>(tile)};
      if (packed) at = find_packed(call.a.cu_q, p.index_dtype, p.total_q, p.batch, tile_q, tile, 32);
      if (at.b >= 0) item = work_item(call, at.b, static_cast<int32_t>(h), at.tile, tile_q, tile_k);
      if (cuts && i >= whole) cut_item(item, cut, place, from, to);
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
