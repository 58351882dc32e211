// SPDX-License-Identifier: Apache-2.0
//
// See cost.h. Figures per cycle and multiprocessor are those of the vendors' white papers and guides; the
// fractions that kernels reach of them are marked as such.
#include "common/gpu/host/cost.h"

#include <math.h>

#include "common/dtype.h"
#include "common/gpu/host/backward_plan.h"
#include "common/geometry.h"

namespace tessera {
namespace TSRI_GPU_BACKEND {
namespace {

constexpr double kLaunchSeconds = 3e-6;
constexpr double kBlockCycles = 2500;     // start and end of a block, without what it loads and stores
constexpr double kMergeCycles = 4500;     // last block of a unit: fence, counter, loads, stores
constexpr double kMergePartCycles = 40;   // and for every part
constexpr double kUnitFraction = 0.75;    // of the unit's peak within a tile's products
constexpr double kPlanesGain = 1.5;       // where float32 is split once, in shared memory,
constexpr double kTwoPlanesGain = 2;      // and into two planes, of which three products make one (forward; backward on
                                          // one H200 1.2 times three planes at D 64 and 1.4 to 1.9 at D 128)
constexpr double kOrdered = 1.08;         // where tiles of keys add to sums one after the other
constexpr double kForwardFit = 1.3;       // cycles that one H200 took of a forward row over those counted here
constexpr double kBandFraction = 0.85;    // of the memory's bandwidth,
constexpr double kBandBusy = 0.75;        // which this part of the multiprocessors can ask for
constexpr double kFillBytes = 40;         // per cycle, from L2 into shared memory
constexpr double kOneStageCycles = 1200;  // of latency per tile with one stage,
constexpr double kOneStageBeside = 100;   // which a block beside it hides but for its barrier
constexpr double kStreamFraction = 0.94;  // of the memory's bandwidth, when blocks only stream keys,
constexpr double kStreamReach = 1.65;     // of which a multiprocessor alone can take so many even shares,
constexpr double kStreamFirst = 0.58;     // and many this much
constexpr double kStreamRest = 0.44;      // and their share of this much, up to all of it
constexpr double kUnevenStart = 0.3;      // blocks that all start at once are not shared out by need
constexpr double kStreamCycles = 1300;    // of a key tile in a split block, whatever its size,
constexpr double kStreamBytes = 56;       // and bytes per cycle of it
constexpr double kRestartSeconds = 2e-6;  // until the next block of a multiprocessor has its first keys
constexpr double kEdgeScoreCycles = 0.10; // per score: 1/16 for 2^x, the rest for a few FMA
// Rows of the copy engine, by what one H200 measured of them (docs/performance.md).
constexpr double kEngineProducts = 1.09;  // of the time of products at their peak,
constexpr double kEngineNarrow = 20;      // more where few keys make a product,
constexpr double kEngineExponents = 0.88; // of the time of exponentials, of which a part hides
constexpr double kEngineBeside = 1.18;    // small blocks beside one another: a tile,
constexpr double kEngineBesideItem = 0.95; // and the rest
constexpr double kEngineShared = 1.14;    // four warpgroups of one block: a tile,
constexpr double kEngineSharedItem = 0.7; // and the rest
constexpr double kEngineItem = 1550;      // cycles that 64 queries take besides their tiles
constexpr double kEngineMerge = 190;      // parts of tiles that are cut, a column
constexpr double kEngineStart = 6000;     // lists of work, first loads, last stores
// Cycles per score of rows with score steps: the loops and the exact maximum, and what each feature adds.
constexpr double kStepsScale = 0.065, kStepsSoftcap = 0.12, kStepsBias = 0.10, kStepsAlibi = 0.02;
constexpr double kStepsDropout = 0.30;
// Backward by the copy engine: of the peak, with all that is not products (an H200 measured 0.51, but also less of
// the other rows than the model of them says, and the two have to compare); work, first loads, last stores.
constexpr double kEnginePairs = 0.62;
constexpr double kEnginePairsBlock = 6500;
constexpr double kAnyScoreCycles = 0.45;  // more steps, and masks and bias read element-wise

int64_t min64(int64_t a, int64_t b) { return a < b ? a : b; }

double ceil_div(double a, double b) { return ceil(a / b); }

// Blocks that a multiprocessor holds at once. Registers per thread are not known here: kernels of 4
// warps are compiled for two blocks, wider ones use what there is.
double resident(const DeviceFacts &facts, const Entry &e) {
  const double shared = static_cast<double>(e.shared_bytes) + 1024;
  double blocks = floor(static_cast<double>(facts.shared_per_processor) / shared);
  blocks = fmin(blocks, floor(static_cast<double>(facts.registers_per_processor) / (e.threads * 224.0)));
  return fmax(blocks, 1);
}

// FLOPs per cycle of a multiprocessor that products of a row reach within a tile.
double unit_rate(const DeviceFacts &facts, const Row &row) {
  const double gain = row.planes == 2 ? kTwoPlanesGain : row.planes ? kPlanesGain : 1;
  return unit_flops(facts.arch, row.dtype) * kUnitFraction * gain;
}

// Cycles of one key tile of one block, with `together` blocks on the multiprocessor: the longest of
// products, scores and loads, and of the others what does not hide behind it.
double tile_cycles(const DeviceFacts &facts, const Row &row, double together) {
  const double scores = static_cast<double>(row.tile_q) * row.tile_k;
  const double dims = static_cast<double>(row.dim_qk + row.dim_v);
  const double products = 2 * scores * dims / unit_rate(facts, row);
  const double steps = scores * (row.any ? kAnyScoreCycles : kEdgeScoreCycles);
  const double loads = row.tile_k * dims * tsri_dtype_bytes(row.dtype) / kFillBytes;
  // With one stage copies wait for products and products for copies, twice per tile. Where two blocks of 16-bit rows
  // are beside each other one H200 was as fast as with two stages.
  const bool beside = together >= 2 && !row.any && !row.paged && row.dtype != TSR_DTYPE_F32;
  if (row.stages == 1 && !beside) return products + steps + loads + kOneStageCycles;
  const double longest = fmax(products, fmax(steps, loads));
  const double hidden = together >= 2 ? 0.7 : 0.35;
  return longest + (1 - hidden) * (products + steps + loads - longest) + (row.stages == 1 ? kOneStageBeside : 0);
}

// Cycles of a block without its key tiles: its start, Q in, O out.
double block_cycles(const Row &row) {
  return kBlockCycles + static_cast<double>(row.tile_q) * (row.dim_qk + row.dim_v) *
                            tsri_dtype_bytes(row.dtype) / kFillBytes;
}

double bytes_of(tsr_dtype dtype) { return static_cast<double>(tsri_dtype_bits(dtype)) / 8; }

} // namespace

// Rows of the copy engine whose block has four warpgroups, each of which passes over what it does not see.
static bool shares_tiles(const Row &row) {
  return row.family == Family::kEngineForward && (row.engine.heads || row.tile_q == 4 * row.engine.box_q);
}

Visits count_visits(const Row &row, const tsr_resolved &problem) {
  constexpr int64_t kSamples = 64;
  const tsr_problem &p = problem.p;
  Visits v = {};
  int64_t sq = p.seq_q, sk = p.seq_k;
  if (p.arrays & TSR_ARRAY_CU_Q && p.batch > 0) sq = min64(sq, (p.total_q + p.batch - 1) / p.batch);
  if (p.arrays & TSR_ARRAY_CU_K && p.batch > 0) sk = min64(sk, (p.total_k + p.batch - 1) / p.batch);
  v.queries = static_cast<double>(sq);
  v.keys = static_cast<double>(sk);
  if (sq == 0 || sk == 0) return v;
  const tsri_mask_rule rule = tsri_problem_rule(&p, sq, sk);
  // A split row's tile holds the query heads of a group, so fewer queries.
  const int64_t group = row.family == Family::kSplit ? problem.group : 1;
  const int64_t tile_q = shares_tiles(row) ? row.tile_q / (row.engine.heads ? 1 : 4) : row.tile_q;
  const int64_t rows = tile_q / group > 1 ? tile_q / group : 1;
  const int64_t tiles = (sq + rows - 1) / rows, samples = min64(tiles, kSamples);
  const double key_tile = row.tile_k;
  for (int64_t s = 0; s < samples; ++s) {
    const int64_t t = samples == tiles ? s : static_cast<int64_t>((static_cast<double>(s) + 0.5) *
                                                                  static_cast<double>(tiles) / kSamples);
    const int64_t i0 = t * rows, i1 = min64(i0 + rows, sq);
    const tsri_mask_row all = tsri_mask_rows_of(&rule, i0, i1);
    const tsri_mask_row middle = tsri_mask_row_of(&rule, (i0 + i1) / 2);
    double visited = ceil_div(static_cast<double>(all.prefix), key_tile);
    if (all.hi > all.lo)
      visited += static_cast<double>((all.hi - 1) / row.tile_k - all.lo / row.tile_k + 1);
    v.mean += visited;
    v.most = fmax(v.most, visited);
    v.pairs += static_cast<double>(tsri_mask_row_count(&middle));
  }
  v.mean /= static_cast<double>(samples);
  v.pairs *= v.queries / static_cast<double>(samples);
  return v;
}

double cost_flops(const tsr_resolved &problem, const Visits &visits) {
  const tsr_problem &p = problem.p;
  return 2 * static_cast<double>(p.batch) * static_cast<double>(p.heads_q) * visits.pairs *
         static_cast<double>(p.dim_qk + p.dim_v);
}

double cost_bytes(const DeviceFacts &facts, const Row &row, const tsr_resolved &problem,
                  const Visits &visits, const Cut &cut) {
  const tsr_problem &p = problem.p;
  const double batch = static_cast<double>(p.batch), heads = static_cast<double>(p.heads_q);
  const double groups = static_cast<double>(p.heads_kv);
  const double rows = batch * heads * visits.queries;
  const double dims = static_cast<double>(p.dim_qk + p.dim_v);
  // Keys that some query sees, and how often their tiles leave L2 and come again.
  const double tiles = fmax(1, ceil_div(visits.queries * (cut.splits ? problem.group : 1), row.tile_q));
  const double seen = fmin(visits.keys, visits.mean * row.tile_k * tiles);
  const double cache = seen * dims * bytes_of(p.k.dtype);
  const double readers = tiles * (cut.splits ? 1 : static_cast<double>(problem.group)) * cut.chunks;
  const double active = fmin(batch * groups, fmax(1, facts.processors / readers));
  const double again = active * cache <= 0.7 * static_cast<double>(facts.l2_bytes)
                           ? 1
                           : fmax(1, readers * visits.mean * row.tile_k / fmax(seen, 1) /
                                         fmax(1, fmin(readers, facts.processors)));
  double bytes = rows * (static_cast<double>(p.dim_qk) * bytes_of(p.q.dtype) * cut.chunks +
                         static_cast<double>(p.dim_v) * bytes_of(p.o.dtype) + 4) +
                 batch * groups * cache * again;
  if (cut.splits > 1)
    bytes += 2 * static_cast<double>(cut.units) * cut.splits * row.tile_q *
             static_cast<double>(p.dim_v + 2) * 4;
  if (p.bias.dtype != TSR_DTYPE_NONE) {
    const double share = (p.bias.stride[0] ? batch : 1) * (p.bias.stride[1] ? heads : 1);
    bytes += share * visits.pairs * bytes_of(p.bias.dtype);
  }
  return bytes;
}

// Cycles of score steps, per score.
static double steps_cycles(const Row &row, const tsr_problem &p) {
  if (!row.engine.scores) return 0;
  return kStepsScale + (p.softcap > 0 ? kStepsSoftcap : 0) + (p.bias.dtype != TSR_DTYPE_NONE ? kStepsBias : 0) +
         (p.alibi != TSR_ALIBI_NONE ? kStepsAlibi : 0) + (p.dropout > 0 ? kStepsDropout : 0);
}

// Blocks that stay: nothing but the first loads and the last stores is not under way beside products, and what a
// tile takes is what one unit needs and a part of what the other does.
double engine_seconds(const DeviceFacts &facts, const Row &row, const tsr_resolved &problem,
                      const Visits &visits, const Cut &cut) {
  if (cut.blocks == 0) return 0;
  const double scores = static_cast<double>(row.tile_q) * row.tile_k;
  const double products = 2 * scores * (row.dim_qk + row.dim_v) /
                          (device_flops(facts.arch) * 2 / static_cast<double>(tsri_dtype_bytes(row.dtype)));
  const bool beside = row.engine.blocks > 1, shared = shares_tiles(row);
  // Few keys to a product use shared memory less well.
  const double tile = (products * kEngineProducts * (1 + kEngineNarrow / row.tile_k) +
                       scores / 16 * kEngineExponents + scores * steps_cycles(row, problem.p)) *
                      (shared ? kEngineShared : beside ? kEngineBeside : 1);
  const double item = kEngineItem * row.tile_q / 64 * (shared ? kEngineSharedItem : beside ? kEngineBesideItem : 1);
  const double tiles = static_cast<double>(cut.tiles) * static_cast<double>(problem.p.heads_q) *
                       (problem.p.arrays & TSR_ARRAY_CU_Q ? 1 : static_cast<double>(problem.p.batch));
  double work = fmax(ceil_div(tiles, facts.processors), 1) * (item + visits.mean * tile) / cut.deal.gain;
  if (cut.deal.cut_keys) {
    const double whole = (tiles - static_cast<double>(cut.deal.cut_tiles)) / facts.processors;
    work = whole * (item + visits.mean * tile) +
           static_cast<double>(cut.deal.cut_each * row.engine.blocks) * tile + 2 * item +
           kEngineMerge * row.dim_v;
  }
  const double cycles = kEngineStart + work;
  const double bytes = cost_bytes(facts, row, problem, visits, cut) / (facts.bandwidth * kBandFraction);
  return fmax(cycles / facts.clock, bytes) + kLaunchSeconds;
}

namespace {

// Blocks of a split row on the multiprocessors, in so many rounds: `high` on `busy` of them, `low` on the
// others.
struct Spread {
  double rounds, low, high, busy;
};

Spread spread_blocks(double blocks, double processors, double resident) {
  const double slots = processors * resident, full = floor(blocks / slots), rest = blocks - full * slots;
  Spread s = {fmax(1, ceil_div(blocks, slots)), full * resident, full * resident, 0};
  if (rest == 0) return s;
  if (full == 0) { // the first ones go where nothing is yet
    s.low = floor(rest / processors);
    s.high = s.low + 1;
    s.busy = rest - s.low * processors;
    if (s.busy == 0) s.high = s.low;
  } else { // later ones where blocks end, and those of a multiprocessor end together
    s.high = s.low + resident;
    s.busy = ceil_div(rest, resident);
  }
  return s;
}

// Split rows wait for memory: all multiprocessors together take its bandwidth, and one alone a little more
// than its share, so what counts is that none is idle at the end.
double split_seconds(const DeviceFacts &facts, const Row &row, const tsr_resolved &problem,
                     const Visits &visits, const Cut &cut) {
  double parts = fmax(1, fmin(cut.splits, visits.mean)); // that have keys,
  double tiles = ceil_div(visits.mean, parts);           // and key tiles of the longest
  if (cut.part_keys > 0) {
    const double each = static_cast<double>(cut.part_keys) / row.tile_k;
    parts = fmin(cut.splits, fmax(1, ceil_div(visits.mean, each)));
    tiles = fmin(each, visits.mean);
  }
  const double blocks = static_cast<double>(cut.blocks) / cut.splits * parts;
  const double processors = static_cast<double>(facts.processors);
  const double most = resident(facts, row.entry[kEntryMain]);
  const Spread spread = spread_blocks(blocks, processors, most);
  const double all_tiles = fmax(blocks * tiles, 1);
  const double bytes = cost_bytes(facts, row, problem, visits, cut) / all_tiles; // from memory, of a tile
  const double band = facts.bandwidth * kStreamFraction;
  const double latency = kStreamCycles + row.tile_k * static_cast<double>(row.dim_qk + row.dim_v) *
                                             tsri_dtype_bytes(row.dtype) / kStreamBytes;
  const auto tile_seconds = [&](double together, double active) {
    together = fmax(1, fmin(together, most));
    // 16-bit rows of this family were measured waiting for memory, those of float32 multiply as forward rows do.
    const double fit = row.dtype == TSR_DTYPE_F32 ? kForwardFit : 1;
    const double busy = fmax(tile_cycles(facts, row, together) * fit, latency / together) / facts.clock;
    const double share = active / processors;
    const double reached = fmin(1, fmin(kStreamReach * share, kStreamFirst + kStreamRest * share));
    return fmax(busy, active > 0 ? bytes * active / (band * reached) : 0);
  };
  double seconds = kLaunchSeconds + block_cycles(row) / facts.clock;
  seconds += spread.low * tiles * tile_seconds(spread.low, processors);
  seconds += (spread.high - spread.low) * tiles * tile_seconds(spread.high, spread.busy) *
             (spread.rounds == 1 && spread.low > 0 ? 1 + kUnevenStart * (1 - spread.busy / processors) : 1);
  seconds += (spread.rounds - 1) * (kRestartSeconds + block_cycles(row) / facts.clock);
  // Blocks that find no keys of theirs.
  seconds += (static_cast<double>(cut.blocks) - blocks) / (processors * most) * kBlockCycles / 3 / facts.clock;
  if (cut.splits > 1) seconds += (kMergeCycles + parts * kMergePartCycles) / facts.clock;
  return seconds;
}

} // namespace

double cost_seconds(const DeviceFacts &facts, const Row &row, const tsr_resolved &problem,
                    const Visits &visits, const Cut &cut) {
  if (cut.blocks == 0) return 0;
  if (cut.splits) return split_seconds(facts, row, problem, visits, cut);
  const double blocks = static_cast<double>(cut.blocks);
  const double each = ceil_div(blocks, facts.processors);
  const double together = fmin(each, resident(facts, row.entry[kEntryMain]));
  const double tile = tile_cycles(facts, row, together);
  const double fixed = block_cycles(row);
  const double mean = fixed + visits.mean * tile, most = fixed + visits.most * tile;
  // Every multiprocessor gets its share of blocks; the longest may come last.
  double cycles = fmax(blocks / facts.processors, 1) * mean + (each - blocks / facts.processors) * mean / each;
  if (each <= together) cycles = fmax(cycles, each * mean);
  cycles = (cycles + most - mean) * kForwardFit;
  const double band = facts.bandwidth * kBandFraction *
                      fmin(1, blocks / (kBandBusy * static_cast<double>(facts.processors)));
  double seconds =
      fmax(cycles / facts.clock, cost_bytes(facts, row, problem, visits, cut) / band);
  seconds += kLaunchSeconds;
  return seconds;
}

namespace {

// One launch of a backward row: blocks that each go through `pairs` pairs of tiles of q x k, making the
// scores and dP, then `columns` columns of gradients from them.
struct PairPass {
  const Entry &entry;
  double blocks, pairs;
  double q, k, columns;
};

double pass_cycles(const DeviceFacts &facts, const Row &row, const PairPass &pass,
                          double moved_rows) {
  if (pass.blocks == 0) return 0;
  const double scores = pass.q * pass.k, dims = row.dim_qk + row.dim_v;
  const double share = pass.blocks / facts.processors;
  if (row.engine.box_q && &pass.entry != &row.entry[kEntryStats]) {
    const double block = kEnginePairsBlock +
                         pass.pairs * 2 * scores * (dims + pass.columns) / (device_flops(facts.arch) * kEnginePairs);
    return fmax(share, 1) * block + (ceil(share) - share) * block / ceil(share);
  }
  // Three planes are those of the main kernel; others split on the way.
  const double slower = row.planes > 2 && &pass.entry != &row.entry[kEntryMain] ? kPlanesGain : 1;
  const double products = 2 * scores * (dims + pass.columns) * slower / unit_rate(facts, row);
  const double steps = scores * (row.any ? kAnyScoreCycles : kEdgeScoreCycles);
  const double loads = moved_rows * dims * tsri_dtype_bytes(row.dtype) / kFillBytes;
  const double longest = fmax(products, fmax(steps, row.stages > 1 ? loads : 0));
  const double each = ceil_div(pass.blocks, facts.processors);
  const double together = fmin(each, resident(facts, pass.entry));
  const double hidden = together >= 2 ? 0.7 : 0.35;
  const double tile = longest + (1 - hidden) * (products + steps + loads - longest);
  const double block = kBlockCycles + pass.pairs * tile;
  double cycles = fmax(share, 1) * block + (each - share) * block / each;
  if (each <= together) cycles = fmax(cycles, each * block);
  return cycles;
}

} // namespace

double backward_flops(const tsr_resolved &problem, const Visits &visits) {
  const tsr_problem &p = problem.p;
  return 2 * static_cast<double>(p.batch) * static_cast<double>(p.heads_q) * visits.pairs *
         static_cast<double>(3 * p.dim_qk + 2 * p.dim_v);
}

// Every tensor once, statistics and sums as often as passes touch them.
double backward_bytes(const tsr_resolved &problem, const Visits &visits, const BackwardCut &cut) {
  const tsr_problem &p = problem.p;
  const double rows = static_cast<double>(p.batch) * static_cast<double>(p.heads_q) * visits.queries;
  const double keys = static_cast<double>(p.batch) * static_cast<double>(p.heads_kv) * visits.keys;
  const double dqk = static_cast<double>(p.dim_qk), dv = static_cast<double>(p.dim_v);
  double bytes = rows * (dqk * (bytes_of(p.q.dtype) + bytes_of(p.dq.dtype)) +
                         dv * (bytes_of(p.o.dtype) + 2 * bytes_of(p.dout.dtype)) + 2 * 16) +
                 keys * (dqk * (bytes_of(p.k.dtype) + bytes_of(p.dk.dtype)) +
                         dv * (bytes_of(p.v.dtype) + bytes_of(p.dv.dtype)));
  if (cut.sums) bytes += 4 * 4.0 * static_cast<double>(cut.dq_floats);
  if (cut.converts) bytes += 2 * rows * dv * bytes_of(p.q.dtype);
  const double slices = (p.bias.stride[0] ? static_cast<double>(p.batch) : 1) *
                        (p.bias.stride[1] ? static_cast<double>(p.heads_q) : 1);
  bytes += slices * visits.pairs * (bytes_of(p.bias.dtype) + bytes_of(p.dbias.dtype));
  return bytes;
}

// Of those bytes what the passes before and after the main kernel move, beside which nothing is computed.
static double pass_bytes(const tsr_problem &p, const Visits &visits, const BackwardCut &cut) {
  const double rows = static_cast<double>(p.batch) * static_cast<double>(p.heads_q) * visits.queries;
  double bytes = rows * static_cast<double>(p.dim_v) * (bytes_of(p.o.dtype) + bytes_of(p.dout.dtype));
  if (cut.sums) bytes += 4.0 * static_cast<double>(cut.dq_floats); // they are cleared
  if (cut.sums && !cut.ring)
    bytes += 4.0 * static_cast<double>(cut.dq_floats) + rows * static_cast<double>(p.dim_qk) * bytes_of(p.dq.dtype);
  return bytes;
}

double backward_seconds(const DeviceFacts &facts, const Row &row, const tsr_resolved &problem,
                        const Visits &visits, const BackwardCut &cut) {
  const tsr_problem &p = problem.p;
  const BackwardTiles &t = row.backward;
  const double rows = static_cast<double>(p.batch) * static_cast<double>(p.heads_q);
  // Pairs of tiles of all heads; the tiles of other passes have the same area more or less.
  const double area = rows * visits.mean * ceil_div(visits.queries, row.tile_q) * row.tile_q *
                      row.tile_k;
  const auto pass = [area](const Entry &e, int64_t blocks, int64_t chunks, double q, double k,
                           double columns) {
    const double n = static_cast<double>(blocks), c = static_cast<double>(chunks);
    return PairPass{e, n, area / (q * k) * c / fmax(n, 1), q, k, columns};
  };
  const Entry &keys = row.entry[keys_entry(row, cut)];
  const double key_columns = 2.0 * t.chunk_qk - (cut.sums || cut.direct ? 0 : t.chunk_qk) + t.chunk_v;
  double cycles = pass_cycles(facts, row,
                              pass(keys, cut.keys.blocks, cut.keys.chunks,
                                   row.tile_q, row.tile_k, key_columns),
                              row.tile_q);
  if (cut.ordered) cycles *= kOrdered;
  if (cut.stats_always)
    cycles += pass_cycles(facts, row,
                          pass(row.entry[kEntryStats], cut.stats.blocks, 1, t.query_q, t.query_k, 0),
                          t.query_k);
  cycles += pass_cycles(facts, row,
                        pass(row.entry[kEntryDq], cut.queries.blocks, cut.queries.chunks, t.query_q,
                             t.query_k, t.query_chunk),
                        t.query_k);
  cycles += pass_cycles(facts, row,
                        pass(row.entry[kEntryBias], cut.bias_blocks, 1, t.query_q, t.query_k, 0),
                        t.query_k);
  const double launches = 2 + (cut.keys.blocks > 0) + (cut.queries.blocks > 0) +
                          (cut.bias_blocks > 0) + (cut.sums && !cut.ring) + cut.converts + (p.dsink != 0);
  const double band = facts.bandwidth * kBandFraction, apart = pass_bytes(p, visits, cut);
  return fmax(cycles / facts.clock, (backward_bytes(problem, visits, cut) - apart) / band) + apart / band +
         launches * kLaunchSeconds;
}

} // namespace TSRI_GPU_BACKEND
} // namespace tessera
