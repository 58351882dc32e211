// SPDX-License-Identifier: Apache-2.0
//
// Units of work of backward programs whose blocks stay: a tile of keys of a KV head each. The preparing kernel
// finds them all, so that the main kernel, whose registers are short, only reads them, and its blocks take them in
// turn.
#ifndef TESSERA_COMMON_GPU_KEY_WORK_HPP_
#define TESSERA_COMMON_GPU_KEY_WORK_HPP_

#include "common/gpu/gradient.hpp"
#include "common/gpu/work.hpp"

namespace tessera {
namespace gpu {

// A tile of keys and the queries that see them.
struct alignas(16) KeyWork {
  int32_t b, g;             // b -1: nothing to do
  int32_t q_batch, k_batch; // where the copy engine finds them: 0 in packed tensors
  int32_t k_row, q_row;     // rows of the tensors: the tile's first key, the first used query
  int32_t key0;             // used index of the tile's first key; negative in left padding
  int32_t keys, queries;
  int32_t rows;             // of the slot, from the tile's first key on
  int32_t begin, count;     // query tiles
  int32_t heads;            // of the group
  int32_t number;           // of the units that its block has had before
  int64_t stats, head_stats; // row of stats of used query 0 of the group's first head; step to the next
  int32_t sums, head_sums;   // likewise of tiles of dq_sum or, order.direct, of the unit's own query tiles
  int32_t set;               // of sums, see SumOrder; also where there is nothing to do
  // Where sums are added to in a known order. Both ends of the queries that see a tile of keys grow with the keys as long
  // as there is no prefix, so a tile of queries is seen by tiles of keys that follow each other: who comes before this
  // unit at a tile of queries is the tile of keys before, or nobody.
  int32_t passed; // as sums, of order.passed
  int32_t tile;   // of keys, in its slot: the word that the unit waits for, and leaves one more than
  int32_t before; // query tiles from which on the tile of keys before has none
};

// Tiles of queries of a head from which on blocks that add to its sums in a known order tell of one a tile later, where
// their tiles are small ones; see backends/cuda/sm90/backward_sums.hpp.
constexpr int32_t kTilesToldLate = 64;

// Of tiles of queries.
struct TileRange {
  int32_t begin, end;
};

// Those that see any of the used keys j0 to j1 - 1; 0 to 0 if none does.
TSRI_DEVICE TileRange queries_of_keys(const tsri_mask_rule &rule, int32_t j0, int32_t j1, int32_t keys, int32_t tile_q) {
  const int32_t first = larger(j0, 0), end = smaller(j1, keys);
  int64_t from = 0, to = 0;
  if (first < end) tsri_mask_queries_of(&rule, first, end, &from, &to);
  if (to <= from) return {0, 0};
  return {static_cast<int32_t>(from) / tile_q, ceil_div(static_cast<int32_t>(to), tile_q)};
}

// A head, and a tile of its keys.
struct HeadTile {
  int64_t head, tile;
};

// Of unit n: `together` heads side by side are a section, and of each the first keys come first, which the most queries
// see under a causal mask; the last heads are a section of their own.
TSRI_DEVICE HeadTile head_in_sections(const KeyOrder &order, int64_t heads, int64_t n) {
  const int64_t tiles = order.tiles, together = order.together;
  const int64_t earlier = heads - order.last; // heads that come before the last ones
  int64_t rest = n - earlier * tiles, column;
  int64_t first = earlier, beside = order.last;
  if (rest < 0) {
    first = divide(n, tiles * together, rest) * together;
    beside = smaller(together, earlier - first);
  }
  const int64_t tile = divide(rest, beside, column);
  return {first + column, tile};
}

// The same where a section begins as soon as the one before has come to tile `lag`, half way at the earliest: blocks that
// have short units of that one then begin long ones between them. In rows of a tile each, first the older section's.
TSRI_DEVICE HeadTile head_in_turn(const KeyOrder &order, int64_t heads, int64_t n) {
  const int64_t tiles = order.tiles, together = order.together, lag = order.lag, sections = ceil_div(heads, together);
  const int64_t short_one = heads - (sections - 1) * together; // heads of the last section
  // Rows go by `lag`: those in which section s is the newer one, of which there is none in the last ones.
  const int64_t last = together * tiles * (sections - 1) + short_one * lag; // units before those
  int64_t s = sections, rest = n - last, column;
  if (rest < 0) {
    s = n < together * lag ? 0 : 1 + divide(n - together * lag, together * tiles, rest);
    if (s == 0) rest = n;
  }
  const int64_t newer = s + 1 < sections ? together : s + 1 == sections ? short_one : 0;
  const int64_t older = s == 0 ? 0 : s == sections ? short_one : together;
  const int64_t both = (newer + older) * (tiles - lag); // units of rows in which there are both
  int64_t row;
  if (s > 0 && rest < both) {
    row = divide(rest, newer + older, column);
    if (column < older) return {(s - 1) * together + column, lag + row};
    column -= older;
  } else {
    row = s > 0 ? tiles - lag : 0;
    row += divide(rest - (s > 0 ? both : 0), newer, column);
  }
  return {s * together + column, row};
}

// Unit `n` of those orders. By a whole wave.
TSRI_DEVICE KeyWork key_work(const BackwardArgs &args, int64_t n, int wave) {
  const Call &call = args.call;
  const tsr_problem &p = call.p;
  const tsr_args &a = call.a;
  const int32_t tile_q = args.order.tile_q, tile_k = args.order.tile_k;
  const int64_t slots = a.cu_k ? p.heads_kv : p.heads_kv * p.batch;
  const HeadTile unit = args.order.lag < args.order.tiles ? head_in_turn(args.order, slots, n)
                                                          : head_in_sections(args.order, slots, n);
  const int64_t head = unit.head, tile = unit.tile;
  int64_t g;
  const int64_t batch = divide(head, p.heads_kv, g);
  KeyWork work = {};
  work.g = static_cast<int32_t>(g);
  work.set = static_cast<int32_t>(head);
  Place place = {batch, static_cast<int32_t>(tile)};
  if (a.cu_k) place = find_packed(a.cu_k, p.index_dtype, p.total_k, p.batch, tile_k, tile, wave);
  work.b = static_cast<int32_t>(place.b);
  if (work.b < 0) return work;
  const tsri_sequence sequence = tsri_sequence_of(&p, &a, place.b);
  const tsri_mask_rule rule = tsri_sequence_rule(&p, &sequence);
  const int32_t row0 = place.tile * tile_k;
  work.rows = static_cast<int32_t>(sequence.k.slot_len) - row0;
  if (work.rows <= 0) work.b = -1;
  work.q_batch = a.cu_q ? 0 : work.b;
  work.k_batch = a.cu_k ? 0 : work.b;
  work.k_row = static_cast<int32_t>(sequence.k.slot_begin) + row0;
  work.q_row = static_cast<int32_t>(sequence.q.begin);
  work.key0 = row0 - static_cast<int32_t>(sequence.k.begin - sequence.k.slot_begin);
  work.keys = static_cast<int32_t>(sequence.k.len);
  work.queries = static_cast<int32_t>(sequence.q.len);
  work.stats = stat_row(p, a, sequence.q, place.b, work.g * static_cast<int64_t>(call.group));
  work.heads = call.group;
  work.head_stats = a.cu_q ? p.total_q : p.seq_q;
  const SumTiles sums = sum_tiles(p, a, tile_q, sequence.q.slot_begin, place.b);
  work.head_sums = static_cast<int32_t>(sums.head);
  work.sums = static_cast<int32_t>(sums.first + work.g * static_cast<int64_t>(call.group) * sums.head);
  work.passed = work.sums;
  work.tile = place.tile;
  if (args.order.sums.pieces)
    work.sums -= (work.set - work.set % args.order.sums.ring) * args.order.sums.set_tiles;
  TileRange seen = {0, ceil_div(static_cast<int32_t>(sequence.q.len), tile_q)};
  if (!args.order.direct) seen = queries_of_keys(rule, work.key0, work.key0 + tile_k, work.keys, tile_q);
  work.begin = seen.begin;
  work.count = seen.end - seen.begin;
  if (args.order.passed) work.before = queries_of_keys(rule, work.key0 - tile_k, work.key0, work.keys, tile_q).end;
  if (args.order.direct) {
    work.sums = 0;
    work.head_sums = work.count;
  }
  return work;
}

// Piece n of dQ.
TSRI_DEVICE SumPiece sum_piece(const BackwardArgs &args, int64_t n) {
  const tsr_problem &p = args.call.p;
  const int64_t tile = n / 2;
  const SumTile owner = sum_tile(p, args.call.a, args.order.tile_q, tile);
  const int row = args.dq_part_q < args.order.tile_q ? static_cast<int>(n % 2) * 64 : 0;
  const int column = args.dq_part_q < args.order.tile_q ? 0 : static_cast<int>(n % 2) * 64;
  const SumOrder &sums = args.order.sums;
  SumPiece piece = {};
  piece.set = static_cast<int32_t>(tile / sums.set_tiles);
  piece.from = static_cast<int32_t>(n % (int64_t{2} * sums.ring * sums.set_tiles));
  piece.frees = piece.set + sums.ring < sums.sets;
  const int64_t rows = owner.b < 0 ? 0 : owner.q.len - owner.i0 - row, columns = p.dim_qk - column;
  if (rows <= 0 || columns <= 0) return piece;
  piece.rows = static_cast<int32_t>(smaller<int64_t>(rows, 64));
  piece.columns = static_cast<int32_t>(smaller<int64_t>(columns, 64));
  piece.to = tsri_row_offset(p.dq.stride, owner.b, owner.h, owner.q.begin + owner.i0 + row) + column;
  return piece;
}

// What the way of dQ out of its sums is told, by the threads of the same blocks.
template <int kThreads>
TSRI_DEVICE void find_pieces(const BackwardArgs &args) {
  const SumOrder &sums = args.order.sums;
  const int64_t step = static_cast<int64_t>(args.order.blocks) * kThreads;
  const int64_t first = static_cast<int64_t>(block_index()) * kThreads + thread_index();
  const int64_t pieces = int64_t{2} * sums.set_tiles * sums.sets;
  for (int64_t n = first; n < pieces; n += step) sums.pieces[n] = sum_piece(args, n);
  for (int64_t set = first; set < sums.sets; set += step) sums.added[set] = sums.freed[set] = 0;
  if (first == 0) *sums.next = 0;
}

// All of them, by blocks 0 to order.blocks - 1 of a launch, a wave each at a time.
template <int kThreads, int kWave>
TSRI_DEVICE void find_units(const BackwardArgs &args) {
  constexpr int waves = kThreads / kWave;
  const int64_t step = static_cast<int64_t>(args.order.blocks) * waves;
  for (int64_t n = static_cast<int64_t>(block_index()) * waves + thread_index() / kWave; n < args.order.units;
       n += step) {
    const KeyWork found = key_work(args, n, kWave);
    if (thread_index() % kWave == 0) args.order.work[n] = found;
  }
  if (block_index() == 0 && thread_index() == 0) *args.order.next = 0;
  if (args.order.sums.pieces) find_pieces<kThreads>(args);
  for (int64_t i = static_cast<int64_t>(block_index()) * kThreads + thread_index(); i < args.order.passed_count;
       i += static_cast<int64_t>(args.order.blocks) * kThreads)
    args.order.passed[i] = 0;
}

} // namespace gpu
} // namespace tessera

#endif // TESSERA_COMMON_GPU_KEY_WORK_HPP_
