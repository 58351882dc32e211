// SPDX-License-Identifier: Apache-2.0
#include "common/gpu/host/deal.h"

#include <math.h>

#include "common/dtype.h"
#include "common/geometry.h"
#include "common/mask.h"
#include "common/workspace.h"

namespace tessera {
namespace TSRI_GPU_BACKEND {
namespace {

// What a tile of queries takes besides its tiles of keys, in such tiles. Of 8 bits a tile of keys is quick, and nothing
// hides where a tile of queries begins.
double item_tiles(const Row &row) { return row.dtype == TSR_DTYPE_F8_E4M3 ? 1.5 : 0.6; }
// Tiles of keys that cutting has to save: parts are stored, found and added up, and wider ones have more of everything.
int64_t merge_tiles(const Row &row) { return int64_t{row.dim_v} * 5 / 64; }
constexpr int64_t kMostSingles = 4096; // tiles that are looked at one by one
constexpr int64_t kMostHeld = 4;       // blocks of a processor at once, at most
constexpr double kLeastGain = 1.005;
constexpr double kCacheShare = 1;      // of L2, for keys of heads whose tiles are in order of their lengths

int64_t smaller(int64_t a, int64_t b) { return a < b ? a : b; }

// Tiles of queries of a launch, and its blocks. Selection takes no memory, so what is looked at one by one lies here.
struct Tiles {
  int64_t tiles, pairs, slots, blocks; // at most kMostSingles tiles, and blocks where there is an order to choose
  float cost[kMostSingles];            // of every tile of a head
  float single[kMostSingles], load[kMostSingles];
};

// What the block with most to do gets of the last rounds, `back` whole ones among them (-1: none, and second tiles are
// lent), beyond the mean. The rounds before are the same for all.
double longest(Tiles &t, int32_t back) {
  const int64_t all = t.pairs * t.slots, rounds = all / t.blocks;
  const int64_t whole = (back > 0 ? (rounds > back ? rounds - back : 0) : rounds) * t.blocks, ends = all - whole;
  int64_t singles = 0;
  const auto first = [&](int64_t pair) { return t.cost[t.tiles - 1 - pair]; };
  const auto has_second = [&](int64_t pair) { return pair != t.tiles - 1 - pair; };
  for (int64_t k = 0; k < t.blocks; ++k) t.load[k] = 0;
  if (back < 0) {
    const int64_t free = t.blocks - ends, lent = smaller(ends, 2 * free);
    for (int64_t k = 0; k < ends; ++k) {
      const int64_t slot = (whole + k) / t.pairs; // turned from head to head, see find_work()
      const int64_t pair = ((whole + k) % t.pairs + slot + slot * t.pairs / t.blocks) % t.pairs;
      t.load[k] += first(pair);
      if (has_second(pair)) t.load[k < lent ? ends + k % free : k] += t.cost[pair];
    }
  } else {
    const auto count_of = [&](int64_t pair) { // among the pairs behind the whole rounds
      const int64_t from = (pair - whole % t.pairs + t.pairs) % t.pairs;
      return ends > from ? (ends - from + t.pairs - 1) / t.pairs : 0;
    };
    for (int64_t pair = 0; pair < t.pairs; ++pair)
      for (int64_t n = count_of(pair); n > 0; --n) t.single[singles++] = first(pair);
    for (int64_t pair = t.pairs; pair-- > 0;)
      for (int64_t n = has_second(pair) ? count_of(pair) : 0; n > 0; --n) t.single[singles++] = t.cost[pair];
  }
  for (int64_t k = 0; k < singles; ++k) {
    const int64_t row = k / t.blocks, at = k % t.blocks;
    t.load[row % 2 ? t.blocks - 1 - at : at] += t.single[k];
  }
  double most = 0, sum = 0;
  for (int64_t k = 0; k < t.blocks; ++k) {
    most = fmax(most, t.load[k]);
    sum += t.load[k];
  }
  return most - sum / static_cast<double>(t.blocks);
}

// Tiles of keys that queries [i0, i1) may see.
double visited(const tsr_problem &p, int64_t i0, int64_t i1, int32_t tile_k) {
  const tsri_mask_rule rule = tsri_problem_rule(&p, p.seq_q, p.seq_k);
  const tsri_mask_row rows = tsri_mask_rows_of(&rule, i0, i1);
  double tiles = ceil(static_cast<double>(rows.prefix) / tile_k);
  if (rows.hi > rows.lo) tiles += static_cast<double>((rows.hi - 1) / tile_k - rows.lo / tile_k + 1);
  return tiles;
}

// Warpgroups of a tile pass over what they do not see, so the mean of theirs.
double tile_cost(const Row &row, const tsr_problem &p, int64_t tile) {
  const int64_t begin = tile * row.tile_q, end = smaller(begin + row.tile_q, p.seq_q);
  const int64_t step = row.tile_q == 4 * row.engine.box_q ? row.engine.box_q : row.tile_q;
  double sum = 0;
  for (int64_t i0 = begin; i0 < begin + row.tile_q; i0 += step)
    sum += i0 < end ? visited(p, i0, smaller(i0 + step, end), row.tile_k) : 0;
  return item_tiles(row) + sum * static_cast<double>(step) / static_cast<double>(row.tile_q);
}

// Rounds of pairs to deal out tile by tile, where that leaves less to wait for.
void choose_order(const DeviceFacts &facts, const Row &row, const tsr_problem &p, Tiles &t, Deal *deal) {
  const int64_t all = t.pairs * t.slots, rounds = all / t.blocks;
  if (all % t.blocks == 0 || t.blocks > kMostSingles) return;
  double sum = 0;
  for (int64_t tile = 0; tile < t.tiles; ++tile) {
    t.cost[tile] = static_cast<float>(tile_cost(row, p, tile));
    sum += t.cost[tile];
  }
  if (t.cost[0] == t.cost[t.tiles - 1]) return;
  const double mean = sum * static_cast<double>(t.slots) / static_cast<double>(t.blocks);
  const double before = longest(t, -1);
  double least = before;
  const double group = static_cast<double>(p.heads_q) / static_cast<double>(p.heads_kv);
  const double head = static_cast<double>(p.seq_k) * static_cast<double>(p.dim_qk + p.dim_v) *
                      tsri_dtype_bits(p.k.dtype) / 8 / group; // bytes of keys and values
  for (int32_t back = 0; back <= kMostBack && back <= rounds; ++back) {
    const int64_t singles = all - (rounds - back) * t.blocks;
    const double heads =
        fmin(static_cast<double>(singles) / static_cast<double>(t.pairs) + 1, static_cast<double>(t.slots));
    if (2 * singles > kMostSingles || heads * head > kCacheShare * static_cast<double>(facts.l2_bytes)) break;
    const double most = longest(t, back);
    if (most < least && (mean + before) / (mean + most) > kLeastGain) {
      least = most;
      deal->back = back;
    }
  }
  deal->gain = (mean + before) / (mean + least);
}

// Whether the last tiles are cut: all of them have the same keys then, and a kernel without such parts is not asked.
void choose_cut(const DeviceFacts &facts, const Row &row, const tsr_problem &p, const Tiles &t, Deal *deal) {
  if (t.blocks > kMostHeld * facts.processors) return; // several rounds of blocks: the last one is a small part
  const tsri_mask_rule rule = tsri_problem_rule(&p, p.seq_q, p.seq_k);
  if (row.paged || row.engine.scores || rule.prefix > 0 || rule.left != TSR_UNBOUNDED ||
      rule.right != TSR_UNBOUNDED)
    return;
  const int64_t all = t.pairs * t.slots, whole = all / t.blocks * t.blocks;
  if (all == whole) return;
  const bool odd = t.tiles % 2; // then the pair in the middle is one tile: in order it leaves no gap
  const int64_t before = t.pairs - 1 - whole % t.pairs; // pairs in front of the first one in the middle
  const int64_t ends = all - whole, middle = ends > before ? (ends - before - 1) / t.pairs + 1 : 0;
  const int64_t cut = (2 * ends - (odd ? middle : 0)) % t.blocks;
  if (cut == 0) return;
  const int64_t keys = (p.seq_k + row.tile_k - 1) / row.tile_k;
  const int64_t sharers = smaller(t.blocks, 2 * cut), each = (cut * keys + sharers - 1) / sharers;
  if (keys - each < merge_tiles(row)) return;
  deal->cut_keys = static_cast<int32_t>(keys);
  deal->cut_tiles = cut;
  deal->cut_each = each;
  deal->back = odd ? 0 : -1;
}

} // namespace

void choose_deal(const DeviceFacts &facts, const Row &row, const tsr_problem &p, Cut *cut) {
  Deal *deal = &cut->deal;
  *deal = Deal{-1, 1, 0, 0, 0};
  if (!row.engine.deals || cut->blocks == 0 || p.arrays != 0 || p.seq_k == 0) return;
  Tiles t;
  t.tiles = cut->tiles;
  t.pairs = (t.tiles + 1) / 2;
  t.slots = tsri_mul_sat(p.batch, p.heads_q);
  t.blocks = cut->blocks;
  if (t.tiles > kMostSingles) return;
  choose_cut(facts, row, p, t, deal);
  if (deal->cut_keys == 0) choose_order(facts, row, p, t, deal);
}

} // namespace TSRI_GPU_BACKEND
} // namespace tessera
