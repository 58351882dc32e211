// SPDX-License-Identifier: Apache-2.0
//
// See backward_plan.h. As in launch.cpp nothing here allocates, waits or reads device memory.
#include "common/gpu/host/backward_plan.h"

#include <stdio.h>
#include <string.h>

#include "common/geometry.h"
#include "common/gpu/arguments.hpp"
#include "common/gpu/host/runtime.h"
#include "common/gpu/key_work.hpp"
#include "common/score.h"
#include "common/workspace.h"

namespace tessera {
namespace TSRI_GPU_BACKEND {
namespace {

static_assert(sizeof(gpu::EngineBackwardArgs) <= 4096, "kernel parameters that every device takes");
static_assert(sizeof(gpu::BackwardConvertArgs) <= 4096, "kernel parameters that every device takes");

// Of L2 so many eighths for the queries of what blocks of rows of the copy engine work on: few where there are sums of
// dQ, which are soon complete then.
constexpr int64_t kEngineEighths = 5, kEngineEighthsSums = 1;

// Blocks of passes over rows walk in strides: enough of them to fill any device.
constexpr int64_t kRowBlocks = 1 << 13;
constexpr int64_t kRowsOfBlock = 16;
// Blocks that look at heads beside them, at most; three for each head.
constexpr int64_t kDeltaBlocksMost = 1 << 10;
// Units of work are found beside the rows, by blocks of their own. Finding one takes a wave some microseconds.
constexpr int64_t kUnitsOfBlock = 4, kUnitBlocks = 1 << 11;

int64_t ceil_div(int64_t a, int64_t b) { return a / b + (a % b != 0); }
int64_t min64(int64_t a, int64_t b) { return a < b ? a : b; }
int64_t max64(int64_t a, int64_t b) { return a > b ? a : b; }

int64_t common_divisor(int64_t a, int64_t b) {
  while (b != 0) {
    const int64_t rest = a % b;
    a = b;
    b = rest;
  }
  return a;
}

bool fits(int64_t blocks, tsr_reason *why) {
  if (blocks <= kMostBlocks) return true;
  snprintf(why->text, sizeof why->text, "needs %lld blocks, a launch has %lld at most",
           static_cast<long long>(blocks), static_cast<long long>(kMostBlocks));
  return false;
}

// Tiles of one side per slot or, packed, of all slots: each sequence may end inside a tile, and none is
// longer than seq.
int64_t tiles_of(int64_t seq, int64_t total, bool packed, int64_t batch, int64_t tile) {
  const int64_t each = ceil_div(seq, tile);
  if (!packed) return each;
  return min64(total / tile + min64(batch, total), tsri_mul_sat(each, batch));
}

// Blocks of `tiles` tiles and `chunks` chunks of every head of every slot.
bool set_pass(int64_t tiles, int64_t chunks, int64_t heads, int64_t slots, PassCut *pass,
              tsr_reason *why) {
  const int64_t blocks = tsri_mul_sat(tsri_mul_sat(tiles, chunks), tsri_mul_sat(heads, slots));
  if (!fits(tiles, why) || !fits(blocks, why)) return false;
  pass->blocks = blocks;
  pass->tiles = static_cast<int32_t>(tiles);
  pass->chunks = static_cast<int32_t>(chunks);
  return true;
}

// Whether the stored O and LSE are too coarse for every row, as far as sizes tell; BackwardStats looks at
// lengths and masks. It may not depend on sizes where results may not.
bool finds_stats(const Row &row, const tsr_problem &p) {
  const int64_t group = p.heads_kv > 0 ? p.heads_q / p.heads_kv : 1;
  const int64_t few = row.dtype == TSR_DTYPE_F32 ? gpu::kFewKeysF32 : gpu::kFewKeys;
  return p.determinism == TSR_DETERMINISM_BATCH_INVARIANT || p.seq_k <= few ||
         tsri_mul_sat(p.seq_q, group) < gpu::kFewRows;
}

bool cut_bias(const Row &row, const tsr_problem &p, BackwardCut *cut, tsr_reason *why) {
  const int64_t *stride = p.bias.stride;
  const int64_t tiles_q = stride[2] ? ceil_div(p.seq_q, row.backward.query_q) : 1;
  const int64_t tiles_k = stride[3] ? ceil_div(p.seq_k, row.backward.query_k) : 1;
  const int64_t slices = tsri_mul_sat(stride[0] ? p.batch : 1, stride[1] ? p.heads_q : 1);
  const int64_t blocks = tsri_mul_sat(tsri_mul_sat(tiles_q, tiles_k), slices);
  if (!fits(tiles_q, why) || !fits(tiles_k, why) || !fits(blocks, why)) return false;
  cut->bias_tiles_q = static_cast<int32_t>(tiles_q);
  cut->bias_tiles_k = static_cast<int32_t>(tiles_k);
  cut->bias_blocks = blocks;
  return true;
}

// Whether one tile of keys is all that a head has, and every row of dQ that of a query: nobody else writes it.
bool makes_direct(const Row &row, const tsr_problem &p) {
  return row.entry[kEntryDirect].function && p.determinism != TSR_DETERMINISM_BATCH_INVARIANT && p.seq_k > 0 &&
         p.seq_k <= row.tile_k && tsri_mul_sat(ceil_div(p.seq_q, row.tile_q), p.heads_q) <= kMostBlocks && !(p.arrays & (TSR_ARRAY_CU_Q | TSR_ARRAY_CU_K | TSR_ARRAY_USED_Q | TSR_ARRAY_LEFT_PAD_Q));
}

// Whether the last key is seen by some of the queries alone, as far as sizes tell.
bool masks_queries(const tsr_problem &p) {
  if (p.seq_k <= 0) return false;
  const tsri_mask_rule rule = tsri_problem_rule(&p, p.seq_q, p.seq_k);
  int64_t from = 0, to = 0;
  tsri_mask_queries_of(&rule, p.seq_k - 1, p.seq_k, &from, &to);
  return to - from < p.seq_q;
}

// Slots' KV heads, and bytes of what blocks share of one: its queries' Q, dO and sums of dQ.
int64_t heads_of(const tsr_problem &p) { return tsri_mul_sat(p.heads_kv, p.arrays & TSR_ARRAY_CU_K ? 1 : p.batch); }
int64_t head_bytes(const tsr_problem &p) {
  const int64_t group = p.heads_kv > 0 ? p.heads_q / p.heads_kv : 1;
  const int64_t queries = p.arrays & TSR_ARRAY_CU_Q ? p.total_q : p.seq_q;
  return max64(tsri_mul_sat(tsri_mul_sat(queries, group), 6 * p.dim_qk + 2 * p.dim_v), 1);
}

// Whether a section of heads begins when the one before it is half done. Under a mask units are short by then, and in
// order their successors would wait for each other; with long units of the next heads between them they do not. It takes
// many units a block, and heads with sums of their own: with groups (long units) it was slower.
constexpr int64_t kUnitsOverlapped = 8;
bool overlaps(const DeviceFacts &facts, const tsr_problem &p, const BackwardCut &cut) {
  return cut.ordered && masks_queries(p) && p.heads_q == p.heads_kv && cut.keys.tiles >= 2 &&
         tsri_mul_sat(heads_of(p), cut.keys.tiles) >= kUnitsOverlapped * facts.processors;
}

// Heads side by side, so that L2 holds what blocks share of them.
int32_t heads_together(const DeviceFacts &facts, const Row &row, const tsr_problem &p, const BackwardCut &cut) {
  const int64_t heads = max64(heads_of(p), 1);
  int64_t held = max64(1, facts.l2_bytes / 8 * (cut.sums ? kEngineEighthsSums : kEngineEighths) / head_bytes(p));
  if (cut.ordered) {
    // Tiles of keys that follow each other have to begin a turn or two apart: blocks begin `processors` of them in the
    // time of one, and those between are other heads'. Of half of the queries where a mask leaves the other half out,
    // and then the last ones are short; a quarter is enough where sections overlap, not quite half where each turn is told of a
    // turn later. More than so much of L2 costs more than waiting does.
    const int64_t group = p.heads_kv > 0 ? p.heads_q / p.heads_kv : 1;
    const int64_t tiles = max64(ceil_div(p.seq_q, row.tile_q), 1), turns = tsri_mul_sat(tiles, group);
    const bool late = row.tile_q < 128 && tiles >= gpu::kTilesToldLate;
    const int64_t halves = !masks_queries(p) ? 4 : !overlaps(facts, p, cut) ? 16 : late ? 7 : 4; // of turns
    const int64_t apart = ceil_div(halves * int64_t{facts.processors}, tsri_mul_sat(2, turns));
    const int64_t room = facts.l2_bytes / 32 * min64(int64_t{cut.keys.tiles} + 8, 64) / head_bytes(p);
    held = max64(held, min64(apart, room));
    held = ceil_div(heads, ceil_div(heads, held)); // and no few that are left for the end
  }
  return static_cast<int32_t>(min64(min64(heads, kMostBlocks), held));
}

// Where a mask makes units of different lengths, so many heads are the last section that the longest of their units
// begin before two units a block are left: a long one that begins last is waited for alone. Of short heads no more than
// half of L2 holds; blocks of a long one go through its queries together.
constexpr int64_t kLongTiles = 32;
int32_t heads_last(const DeviceFacts &facts, const tsr_problem &p, const BackwardCut &cut) {
  if (!masks_queries(p) || cut.keys.tiles == 0 || overlaps(facts, p, cut)) return 0;
  const int64_t heads = heads_of(p);
  int64_t last = ceil_div(2 * int64_t{facts.processors}, cut.keys.tiles);
  if (cut.keys.tiles < kLongTiles) last = min64(last, facts.l2_bytes / 2 / head_bytes(p));
  last = max64(last, cut.together);
  return static_cast<int32_t>(heads < 2 * last ? heads : last);
}

// Tiles of keys of a head from which on it pays that the main kernel turns sums into dQ itself.
constexpr int32_t kLeastTiles = 3;

// Whether the main kernel turns sums into dQ itself, as backends/cuda/sm90/backward_sums.hpp does: into the element
// type, 16 bytes at a time, every row of a slot is a used one, and units and sums are of the same heads: queries and
// keys are both packed or neither.
bool turns_sums(const Row &row, const tsr_problem &p, const BackwardCut &cut) {
  return row.engine.box_q && row.engine.part_q && cut.sums && cut.keys.tiles >= kLeastTiles && cut.dq_floats > 0 &&
         p.dq.dtype == row.dtype && (gpu::vector_bits(p) & gpu::kVectorDq) && !(p.accumulate & TSR_ACCUMULATE_DQ) &&
         cut.dq_floats / (64 * 64) < INT32_MAX - (1 << 16) && // pieces, and more that nobody gets
         !(p.arrays & TSR_ARRAY_CU_Q) == !(p.arrays & TSR_ARRAY_CU_K) &&
         !(p.arrays & (TSR_ARRAY_USED_Q | TSR_ARRAY_LEFT_PAD_Q));
}

// Units a block that begin while dQ of one leaves: the time of so many rows of queries, of a unit's mean number of them.
constexpr int64_t kRowsLeaving = 3840, kLeastLeaving = 5, kMostLeaving = 12;
int64_t units_leaving(const tsr_problem &p) {
  const int64_t group = p.heads_kv > 0 ? p.heads_q / p.heads_kv : 1;
  const int64_t rows = max64(tsri_mul_sat(max64(p.seq_q, 1), group) / (masks_queries(p) ? 2 : 1), 1);
  return max64(kLeastLeaving, min64(kMostLeaving, kRowsLeaving / rows));
}

// Then sums have room for the heads that blocks work on, for those whose dQ is on its way, which takes as long
// as a few units or some more short ones, and for those that are worked on side by side, twice as many where sections overlap. Fewer than those and
// two more could make blocks wait for each other.
void cut_sums(const DeviceFacts &facts, const Row &row, const tsr_problem &p, BackwardCut *cut) {
  if (!turns_sums(row, p, *cut)) return;
  const int64_t sets = p.heads_kv * (p.arrays & TSR_ARRAY_CU_Q ? 1 : p.batch);
  const int64_t tile = int64_t{row.tile_q} * row.dim_qk;
  const int64_t beside = cut->lag < cut->keys.tiles ? 2 * int64_t{cut->together} : max64(cut->together, cut->last);
  const int64_t under_way = units_leaving(p) * int64_t{facts.processors} / cut->keys.tiles + 1 + cut->together + beside;
  cut->sets = static_cast<int32_t>(sets);
  cut->ring = static_cast<int32_t>(min64(sets, under_way));
  cut->set_tiles = static_cast<int32_t>(cut->dq_floats / tile / sets);
  cut->dq_floats = cut->ring * cut->set_tiles * tile;
}

// What the steps share. dO in the element type is first: its rows are read 16 bytes at a time.
struct Shares {
  void *dout;
  gpu::RowStat *stats;
  uint8_t *coarse;
  gpu::DeltaPart *delta; // where P and delta may come from what is stored
  gpu::KeyWork *work; // of rows of the copy engine
  uint64_t *next;
  gpu::SumPiece *pieces; // where the main kernel turns sums into dQ
  uint64_t *counts;
  uint64_t *passed; // where sums are added to in a known order
  float *weight; // of rows that have weights
  float *dq_sum;
};

// Blocks that look at heads, if each had one.
int64_t delta_blocks(const tsr_problem &p) {
  return tsri_mul_sat(tsri_mul_sat(p.batch, p.heads_kv), gpu::kDeltaBlocks);
}

// The rows of Weighs in gradient.hpp.
bool has_weights(const Row &row) { return row.any || row.dtype == TSR_DTYPE_F32; }

Shares take(tsri_workspace *ws, const Row &row, const tsr_problem &p, const BackwardCut &cut) {
  Shares m = {};
  if (cut.converts)
    m.dout = tsri_workspace_take(ws, tsri_mul_sat(cut.rows, p.dim_v), sizeof(uint16_t));
  m.stats = static_cast<gpu::RowStat *>(tsri_workspace_take(ws, cut.rows, sizeof(gpu::RowStat)));
  if (has_weights(row))
    m.weight = static_cast<float *>(tsri_workspace_take(ws, cut.rows, sizeof(float)));
  m.coarse = static_cast<uint8_t *>(tsri_workspace_take(ws, ceil_div(cut.rows, gpu::kCoarseRows), 1));
  if (cut.delta)
    m.delta = static_cast<gpu::DeltaPart *>(
        tsri_workspace_take(ws, tsri_mul_sat(delta_blocks(p), gpu::kDeltaParts), sizeof(gpu::DeltaPart)));
  if (row.engine.box_q) {
    m.work = static_cast<gpu::KeyWork *>(tsri_workspace_take(ws, cut.keys.blocks, sizeof(gpu::KeyWork)));
    m.next = static_cast<uint64_t *>(tsri_workspace_take(ws, 1, sizeof(uint64_t)));
  }
  if (cut.ring) {
    m.pieces = static_cast<gpu::SumPiece *>(
        tsri_workspace_take(ws, int64_t{2} * cut.sets * cut.set_tiles, sizeof(gpu::SumPiece)));
    m.counts = static_cast<uint64_t *>(tsri_workspace_take(ws, 1 + 2 * int64_t{cut.sets}, sizeof(uint64_t)));
  }
  if (cut.passed)
    m.passed = static_cast<uint64_t *>(tsri_workspace_take(ws, cut.passed, sizeof(uint64_t)));
  if (cut.sums)
    m.dq_sum = static_cast<float *>(tsri_workspace_take(ws, cut.dq_floats, sizeof(float)));
  return m;
}

// dO as the conversion leaves it.
tsr_layout converted_dout(const tsr_problem &p) {
  tsr_layout l = p.dout;
  const bool packed = p.arrays & TSR_ARRAY_CU_Q;
  l.dtype = p.q.dtype;
  l.alignment = TSRI_WORKSPACE_ALIGNMENT;
  l.stride[3] = 1;
  l.stride[2] = p.dim_v;
  l.stride[1] = (packed ? p.total_q : p.seq_q) * p.dim_v;
  l.stride[0] = packed ? 0 : l.stride[1] * p.heads_q;
  return l;
}

// One run under way.
struct Steps {
  const Plan &plan;
  gpu::EngineBackwardArgs engine;
  tsr_reason *why;
  tsr_status status; // of the last step

  // True on success, so that steps follow each other with &&.
  bool done(tsr_status of) {
    status = of;
    return of == TSR_STATUS_SUCCESS;
  }
  // early: for functions that wait by themselves, and for those only.
  bool launch(const Entry &entry, int64_t blocks, bool by_engine = false, bool early = false) {
    const gpu::BackwardArgs &args = engine.backward;
    if (blocks == 0) return true;
    return done(by_engine
                    ? launch_function(plan, entry, blocks, &engine, sizeof engine, args.call.a.stream, why, early)
                    : launch_function(plan, entry, blocks, &args, sizeof args, args.call.a.stream, why, early));
  }
  bool launch_pass(int entry, const PassCut &pass) {
    engine.backward.tiles = pass.tiles;
    engine.backward.chunks = pass.chunks;
    return launch(plan.row->entry[entry], pass.blocks, plan.row->engine.box_q, plan.early && entry != kEntryDq);
  }
  bool launch_prepare(const BackwardCut &cut) {
    return launch(backward_entries[kPassPrepare], engine.backward.order.blocks + engine.backward.delta_blocks + cut.row_blocks);
  }
  bool launch_stats(const BackwardCut &cut) {
    engine.backward.tiles = cut.stats.tiles;
    return launch(plan.row->entry[kEntryStats], cut.stats_blocks, false, plan.early);
  }
  bool launch_keys(const BackwardCut &cut) {
    PassCut pass = cut.keys;
    pass.blocks = cut.key_blocks;
    return launch_pass(keys_entry(*plan.row, cut), pass);
  }
  // Where the copy engine finds everything that there is of.
  bool map_tensors() {
    const gpu::Call &call = engine.backward.call;
    const tsr_problem &p = call.p;
    const bool packed_q = p.arrays & TSR_ARRAY_CU_Q, packed_k = p.arrays & TSR_ARRAY_CU_K;
    const int64_t queries = packed_q ? p.total_q : p.seq_q, keys = packed_k ? p.total_k : p.seq_k;
    const int32_t box = plan.row->engine.box_q;
    const auto map = [&](const void *base, const tsr_layout &layout, bool packed, int64_t columns, int64_t rows,
                         int64_t heads, gpu::TensorMap *to) {
      return done(map_tensor(plan.device, base, layout, packed, columns, rows, heads, p.batch, box, to, why));
    };
    return (queries == 0 || (map(call.a.q, p.q, packed_q, p.dim_qk, queries, p.heads_q, &engine.q) &&
                             map(call.a.dout, p.dout, packed_q, p.dim_v, queries, p.heads_q, &engine.dout))) &&
           (keys == 0 || (map(call.a.k, p.k, packed_k, p.dim_qk, keys, p.heads_kv, &engine.k) &&
                          map(call.a.v, p.v, packed_k, p.dim_v, keys, p.heads_kv, &engine.v)));
  }
};

tsr_status convert(const Plan &plan, const gpu::Call &call, void *to, tsr_reason *why) {
  const BackwardCut &cut = plan.choice.cut.backward;
  gpu::BackwardConvertArgs args;
  memset(&args, 0, sizeof args);
  args.call = call;
  args.to = to;
  args.dtype = call.p.q.dtype;
  if (cut.row_blocks == 0) return TSR_STATUS_SUCCESS;
  return launch_function(plan, backward_entries[kPassConvert], cut.row_blocks, &args, sizeof args, call.a.stream,
                         why);
}

} // namespace

int keys_entry(const Row &row, const BackwardCut &cut) {
  return cut.direct ? kEntryDirect : cut.ordered ? kEntryOrdered : row.engine.box_q && !cut.sums ? kEntryKeys : kEntryMain;
}

bool backward_blocks(const DeviceFacts &facts, const Row &row, const tsr_problem &p, BackwardCut *cut, tsr_reason *why) {
  // Blocks of BackwardStats have little to do as a rule. A stride that has nothing in common with the tiles of a
  // head does not meet the same one of every head: those that see few keys are alike.
  const int64_t processors = max64(facts.processors, 1); // of none, no block would do what there is
  cut->stats_blocks = cut->stats.blocks;
  if (!cut->stats_always) {
    cut->stats_blocks = min64(cut->stats.blocks, 2 * processors);
    while (cut->stats_blocks > 1 && common_divisor(cut->stats_blocks, cut->stats.tiles) != 1) --cut->stats_blocks;
  }
  cut->key_blocks = row.engine.box_q ? min64(cut->keys.blocks, processors) : cut->keys.blocks;
  cut->together = heads_together(facts, row, p, *cut);
  cut->last = heads_last(facts, p, *cut);
  cut->lag = overlaps(facts, p, *cut) ? static_cast<int32_t>(ceil_div(cut->keys.tiles, 2)) : cut->keys.tiles;
  cut_sums(facts, row, p, cut);
  // Every block asks once for a unit that is none.
  return !row.engine.box_q || fits(cut->keys.blocks + 2 * processors, why);
}

bool backward_cut(const Row &row, const tsr_problem &p, BackwardCut *cut, tsr_reason *why) {
  const bool packed_q = p.arrays & TSR_ARRAY_CU_Q, packed_k = p.arrays & TSR_ARRAY_CU_K;
  const bool keys = p.dk.dtype != TSR_DTYPE_NONE || p.dv.dtype != TSR_DTYPE_NONE;
  const bool queries = p.dq.dtype != TSR_DTYPE_NONE;
  const int64_t slots_q = packed_q ? 1 : p.batch, slots_k = packed_k ? 1 : p.batch;
  memset(cut, 0, sizeof *cut);
  cut->converts = p.dout.dtype != row.dtype;
  // Not batch-invariant: tiles of keys begin where the slot does, padding included.
  const bool orders = p.determinism == TSR_DETERMINISM_DETERMINISTIC && row.entry[kEntryOrdered].function;
  cut->sums = queries && keys && row.entry[kEntryMain].function &&
              (p.determinism == TSR_DETERMINISM_DEFAULT || orders);
  cut->direct = queries && keys && makes_direct(row, p);
  if (cut->direct) cut->sums = false;
  cut->ordered = cut->sums && orders;
  if (row.planes == 2 && queries && !cut->sums) {
    snprintf(why->text, sizeof why->text, "dq is made without sums; this kernel makes it beside dk and dv");
    return false;
  }
  cut->rows = tsri_mul_sat(p.heads_q,
                           packed_q ? p.total_q : tsri_mul_sat(p.batch, p.seq_q));
  cut->dq_columns = row.backward.chunk_qk;
  cut->dq_chunks = static_cast<int32_t>(ceil_div(p.dim_qk, cut->dq_columns));
  cut->dq_floats = tsri_mul_sat(cut->rows, int64_t{cut->dq_chunks} * cut->dq_columns);
  if (row.engine.part_q) { // whole tiles, see sum_tiles() in gradient.hpp; also beyond the last column
    const int64_t tiles = packed_q ? p.total_q / row.tile_q + p.batch
                                   : tsri_mul_sat(p.batch, ceil_div(p.seq_q, row.tile_q));
    const int64_t sums = tsri_mul_sat(p.heads_q, tiles);
    if (cut->sums && !fits(sums, why)) return false;
    if (cut->ordered) cut->passed = sums;
    cut->dq_floats = tsri_mul_sat(sums, int64_t{row.tile_q} * row.dim_qk);
  }
  // Of no sequence there is no row, whatever packed tensors hold.
  if (p.batch == 0) cut->rows = cut->dq_floats = cut->passed = 0;
  cut->row_blocks = min64(ceil_div(cut->rows, kRowsOfBlock), kRowBlocks);
  const int64_t query_tiles =
      tiles_of(p.seq_q, p.total_q, packed_q, p.batch, row.backward.query_q);
  cut->stats_always = finds_stats(row, p);
  // Keys and values do not depend on the rounding of O as much as what is summed over keys.
  cut->delta = !cut->stats_always && cut->rows > 0 &&
               (row.dtype == TSR_DTYPE_F32 ||
                (p.o.dtype != TSR_DTYPE_F32 && (queries || p.dbias.dtype != TSR_DTYPE_NONE)));
  const int64_t stats_tiles = cut->rows == 0 ? 0 : packed_q ? tsri_add_sat(p.total_q / row.backward.query_q, p.batch)
                                                 : ceil_div(p.seq_q, row.backward.query_q); // as sum_tiles()
  if (!set_pass(stats_tiles, 1, p.heads_q, slots_q, &cut->stats, why)) return false;
  if (keys && !set_pass(tiles_of(p.seq_k, p.total_k, packed_k, p.batch, row.tile_k),
                        max64(ceil_div(p.dim_qk, row.backward.chunk_qk),
                              ceil_div(p.dim_v, row.backward.chunk_v)),
                        p.heads_kv, slots_k, &cut->keys, why))
    return false;
  if (queries && !cut->sums && !cut->direct &&
      !set_pass(query_tiles, ceil_div(p.dim_qk, row.backward.query_chunk), p.heads_q, slots_q,
                &cut->queries, why))
    return false;
  return p.dbias.dtype == TSR_DTYPE_NONE || cut_bias(row, p, cut, why);
}

int64_t backward_workspace(const Row &row, const tsr_problem &p, const BackwardCut &cut) {
  tsri_workspace ws = {nullptr, 0};
  take(&ws, row, p, cut);
  return ws.used;
}

tsr_status backward_prepare(int32_t device, tsr_reason *why) {
  tsr_status status = TSR_STATUS_SUCCESS;
  for (const Entry &entry : backward_entries)
    if (status == TSR_STATUS_SUCCESS) status = runtime_prepare(device, entry.function, entry.shared_bytes, why);
  return status;
}

bool backward_starts_early(int32_t device, const Row &row, const BackwardCut &cut) {
  return row.engine.box_q && runtime_starts_early(device, backward_entries[kPassPrepare].function) &&
         runtime_starts_early(device, row.entry[kEntryStats].function) &&
         runtime_starts_early(device, row.entry[keys_entry(row, cut)].function) &&
         runtime_starts_early(device, backward_entries[kPassFinish].function);
}

tsr_status backward_launch(const Plan &plan, const tsr_args &args, void *workspace, tsr_reason *why) {
  const BackwardCut &cut = plan.choice.cut.backward;
  const tsr_problem &p = plan.problem->p;
  tsri_workspace ws = {static_cast<unsigned char *>(workspace), 0};
  const Shares shares = take(&ws, *plan.row, p, cut);
  Steps steps = {plan, {}, why, TSR_STATUS_SUCCESS};
  gpu::BackwardArgs &own = steps.engine.backward;
  gpu::Call &call = own.call;
  fill_call(*plan.problem, args, &call);
  if (cut.converts) {
    if (!steps.done(convert(plan, call, shares.dout, why))) return steps.status;
    call.p.dout = converted_dout(p);
    call.a.dout = shares.dout;
    call.vector = gpu::vector_bits(call.p);
  }
  own.stats = shares.stats;
  own.weight = shares.weight;
  own.dq_sum = shares.dq_sum;
  own.dq_columns = cut.dq_columns;
  own.dq_chunks = cut.dq_chunks;
  own.lse_unit = has_weights(*plan.row) ? 1.0f : static_cast<float>(TSRI_LOG2E);
  own.stats_always = cut.stats_always;
  own.bias_tiles_q = cut.bias_tiles_q;
  own.bias_tiles_k = cut.bias_tiles_k;
  const bool is_float = plan.row->dtype == TSR_DTYPE_F32;
  own.coarse = shares.coarse;
  own.delta = shares.delta;
  own.delta_blocks = cut.delta ? static_cast<int32_t>(min64(delta_blocks(p), kDeltaBlocksMost)) : 0;
  own.few_keys = is_float ? gpu::kFewKeysF32 : gpu::kFewKeys;
  own.large_lse = (is_float ? gpu::kLargeLseF32 : gpu::kLargeLse) * own.lse_unit;
  own.dq_floats = cut.sums ? cut.dq_floats : 0;
  if (plan.row->engine.part_q) {
    own.dq_tile_q = plan.row->tile_q;
    own.dq_part_q = plan.row->engine.part_q;
  }
  if (plan.row->engine.box_q) {
    own.order.work = shares.work;
    own.order.next = shares.next;
    own.order.units = cut.keys.blocks;
    own.order.blocks = static_cast<int32_t>(min64(ceil_div(cut.keys.blocks, kUnitsOfBlock), kUnitBlocks));
    own.order.tiles = cut.keys.tiles;
    own.order.tile_q = plan.row->tile_q;
    own.order.tile_k = plan.row->tile_k;
    own.order.direct = cut.direct;
    own.order.together = cut.together;
    own.order.last = cut.last;
    own.order.lag = cut.lag;
    own.order.passed = shares.passed;
    own.order.passed_count = static_cast<int32_t>(cut.passed);
    if (cut.ring)
      own.order.sums = gpu::SumOrder{shares.pieces, shares.counts, shares.counts + 1, shares.counts + 1 + cut.sets,
                                     cut.sets, cut.ring, cut.set_tiles};
    if (!steps.map_tensors()) return steps.status;
  }
  const bool ended =
      steps.launch_prepare(cut) && steps.launch_stats(cut) && steps.launch_keys(cut) &&
      steps.launch(backward_entries[kPassFinish], cut.sums && !cut.ring ? cut.row_blocks : 0, false, plan.early) &&
      steps.launch_pass(kEntryDq, cut.queries) && steps.launch(plan.row->entry[kEntryBias], cut.bias_blocks) &&
      steps.launch(backward_entries[kPassSink], p.dsink ? p.heads_q : 0);
  return ended ? TSR_STATUS_SUCCESS : steps.status;
}

} // namespace TSRI_GPU_BACKEND
} // namespace tessera
