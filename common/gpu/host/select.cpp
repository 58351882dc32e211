// SPDX-License-Identifier: Apache-2.0
//
// See select.h. Refusals come first, each with what was found and what the row takes; then the cut; then
// its cost. Only what the problem says at plan time counts, never a length that is known at run time.
#include "common/gpu/host/select.h"

#include <float.h>
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "common/dtype.h"
#include "common/gpu/arguments.hpp"
#include "common/gpu/host/backward_plan.h"
#include "common/gpu/host/cost.h"
#include "common/gpu/host/deal.h"
#include "common/gpu/host/launch.h"
#include "common/mask.h"
#include "common/score.h"
#include "common/workspace.h"

namespace tessera {
namespace TSRI_GPU_BACKEND {
namespace {

// Every row of either mask class honours these. No row maxima: edge rows let the maximum lag behind.
constexpr uint32_t kEdgeFeatures =
    TSR_FEATURE_CAUSAL | TSR_FEATURE_WINDOW | TSR_FEATURE_PREFIX | TSR_FEATURE_SINK |
    TSR_FEATURE_GROUPED_HEADS | TSR_FEATURE_PACKED | TSR_FEATURE_USED_LENGTHS | TSR_FEATURE_PAGED |
    TSR_FEATURE_DETERMINISTIC | TSR_FEATURE_BATCH_INVARIANT;
// dLSE and dSink are matters of the passes over rows, which all backward rows share.
constexpr uint32_t kBackwardFeatures = TSR_FEATURE_DLSE | TSR_FEATURE_DSINK;
constexpr uint32_t kBackwardAnyFeatures = TSR_FEATURE_DBIAS | TSR_FEATURE_ACCUMULATE;
// A prefix costs the interval rule the registers that dK and dV have left.
constexpr uint32_t kBackwardNotEdge = TSR_FEATURE_PREFIX;
constexpr uint32_t kScoreFeatures = kEdgeFeatures | TSR_FEATURE_MAX_LOGIT | TSR_FEATURE_BIAS | TSR_FEATURE_ALIBI |
                                    TSR_FEATURE_SOFTCAP | TSR_FEATURE_DROPOUT;
constexpr uint32_t kAnyFeatures = kScoreFeatures | TSR_FEATURE_MASK | TSR_FEATURE_BLOCK_MASK |
                                  TSR_FEATURE_STRIDED_LAST;
// Rows of a slot are counted in 32 bits on the device, with room for a tile beyond the last one.
constexpr int64_t kMostRows = INT32_MAX - 4096;
constexpr int64_t kMostSplits = 256;         // where their number is chosen,
constexpr int64_t kMostParts = (1 << 24) - 1; // and what a counter of them holds
constexpr int64_t kCanonicalRows = 4096;

struct FeatureName {
  uint32_t bit;
  const char *name;
};
constexpr FeatureName kFeatureNames[] = {
    {TSR_FEATURE_CAUSAL, "a causal mask"},
    {TSR_FEATURE_WINDOW, "a window"},
    {TSR_FEATURE_PREFIX, "a prefix"},
    {TSR_FEATURE_MASK, "a mask tensor"},
    {TSR_FEATURE_BLOCK_MASK, "a block mask"},
    {TSR_FEATURE_BIAS, "a bias"},
    {TSR_FEATURE_ALIBI, "ALiBi"},
    {TSR_FEATURE_SOFTCAP, "a softcap"},
    {TSR_FEATURE_SINK, "a sink"},
    {TSR_FEATURE_DROPOUT, "dropout"},
    {TSR_FEATURE_GROUPED_HEADS, "grouped heads"},
    {TSR_FEATURE_PACKED, "packed sequences"},
    {TSR_FEATURE_USED_LENGTHS, "used lengths or left padding"},
    {TSR_FEATURE_PAGED, "pages"},
    {TSR_FEATURE_MAX_LOGIT, "max_logit"},
    {TSR_FEATURE_SCALES, "scales of 8-bit tensors"},
    {TSR_FEATURE_DLSE, "dlse"},
    {TSR_FEATURE_DBIAS, "dbias"},
    {TSR_FEATURE_DSINK, "dsink"},
    {TSR_FEATURE_ACCUMULATE, "accumulation into gradients"},
    {TSR_FEATURE_DETERMINISTIC, "determinism"},
    {TSR_FEATURE_BATCH_INVARIANT, "batch invariance"},
    {TSR_FEATURE_STRIDED_LAST, "a last stride other than 1"},
};

int64_t ceil_div(int64_t a, int64_t b) { return a / b + (a % b != 0); }
int64_t min64(int64_t a, int64_t b) { return a < b ? a : b; }
int64_t max64(int64_t a, int64_t b) { return a > b ? a : b; }

const char *dtype_name(tsr_dtype dtype) { return tsri_dtype_describe(dtype).name; }

// Writes the reason; false, so that refusals read as one line each.
__attribute__((format(printf, 2, 3))) bool refuse(tsr_reason *why, const char *format, ...) {
  va_list values;
  va_start(values, format);
  vsnprintf(why->text, sizeof why->text, format, values);
  va_end(values);
  return false;
}

bool takes_device(const DeviceFacts &facts, const Row &row, tsr_reason *why) {
  if (!device_takes(facts, row, why)) return false;
  for (const Entry &entry : row.entry)
    if (entry.function && entry.shared_bytes > facts.shared_per_block)
      return refuse(why, "needs %u bytes of shared memory per block, %.64s has %lld",
                    static_cast<unsigned>(entry.shared_bytes), facts.name,
                    static_cast<long long>(facts.shared_per_block));
  return true;
}

bool takes_dtypes(const Row &row, const tsr_problem &p, tsr_reason *why) {
  if (p.q.dtype != row.dtype || p.k.dtype != row.dtype || p.v.dtype != row.dtype)
    return refuse(why, "q, k, v are %s, %s, %s; this kernel takes %s", dtype_name(p.q.dtype),
                  dtype_name(p.k.dtype), dtype_name(p.v.dtype), dtype_name(row.dtype));
  // 8-bit results have no scale, so validation lets o be of 16 or 32 bits there.
  if (!tsri_dtype_needs_scale(row.dtype) && p.o.dtype != row.dtype && p.o.dtype != TSR_DTYPE_F32)
    return refuse(why, "o is %s; this kernel writes %s or float32", dtype_name(p.o.dtype),
                  dtype_name(row.dtype));
  return true;
}

bool takes_features(const Row &row, const tsr_resolved &problem, tsr_reason *why) {
  // Where keys lie is no reason for other bits: rows that differ by pages alone may still differ in tiles.
  if ((!row.paged || row.family == Family::kEngineForward) &&
      problem.p.determinism == TSR_DETERMINISM_BATCH_INVARIANT)
    return refuse(why, "with batch_invariant only kernels that take keys with and without pages are used");
  uint32_t known = row.any ? kAnyFeatures : row.engine.scores ? kScoreFeatures : kEdgeFeatures;
  if (row.family == Family::kBackward)
    known = (row.any ? known | kBackwardAnyFeatures : known & ~kBackwardNotEdge) | kBackwardFeatures;
  if (!row.paged) known &= ~static_cast<uint32_t>(TSR_FEATURE_PAGED);
  if (tsri_dtype_needs_scale(row.dtype)) known |= TSR_FEATURE_SCALES;
  const uint32_t unknown = problem.features & ~known;
  if (!unknown) return true;
  size_t used = 0;
  uint32_t named = 0;
  for (const FeatureName &f : kFeatureNames) {
    if (!(unknown & f.bit) || used >= sizeof why->text) continue;
    used += static_cast<size_t>(snprintf(why->text + used, sizeof why->text - used, "%s%s",
                                         used ? ", " : "the problem uses ", f.name));
    named |= f.bit;
  }
  if (unknown & ~named && used < sizeof why->text)
    snprintf(why->text + used, sizeof why->text - used, "%sa feature unknown here (bits 0x%x)",
             used ? ", " : "the problem uses ", static_cast<unsigned>(unknown & ~named));
  return false;
}

// Rows of the copy engine read pages in boxes: see engine_box_k in launch.h.
bool takes_pages(const Row &row, const tsr_problem &p, tsr_reason *why) {
  if (row.family != Family::kEngineForward || !row.paged) return true;
  if (!p.page_size) return refuse(why, "keys do not lie in pages; this kernel takes those that do");
  if (p.page_size % kLeastBox != 0)
    return refuse(why, "pages have %lld rows; this kernel takes multiples of %d", static_cast<long long>(p.page_size),
                  static_cast<int>(kLeastBox));
  if (p.num_pages < 1 || p.num_pages > kMostRows)
    return refuse(why, "%lld pages; this kernel takes 1 to %lld", static_cast<long long>(p.num_pages),
                  static_cast<long long>(kMostRows));
  if (p.arrays & TSR_ARRAY_LEFT_PAD_K)
    return refuse(why, "keys have left padding; this kernel takes pages whose first row is used");
  return true;
}

bool takes_sizes(const Row &row, const tsr_problem &p, tsr_reason *why) {
  if (p.dim_qk > row.dim_qk)
    return refuse(why, "dim_qk is %lld; this kernel takes up to %d",
                  static_cast<long long>(p.dim_qk), static_cast<int>(row.dim_qk));
  if (row.family == Family::kBackward && p.dim_v > row.dim_v)
    return refuse(why, "dim_v is %lld; this kernel takes up to %d", static_cast<long long>(p.dim_v),
                  static_cast<int>(row.dim_v));
  const int64_t longest = max64(max64(p.seq_q, p.seq_k), max64(p.total_q, p.total_k));
  if (longest > kMostRows)
    return refuse(why, "%lld rows; kernels here take up to %lld", static_cast<long long>(longest),
                  static_cast<long long>(kMostRows));
  return true;
}

// Rows of whole heads have no recurrence, and know of no sequence but by the problem.
bool takes_heads(const Row &row, const tsr_problem &p, tsr_reason *why) {
  if (!row.engine.heads) return true;
  if (p.arrays & (TSR_ARRAY_CU_Q | TSR_ARRAY_CU_K))
    return refuse(why, "sequences are packed; this kernel takes heads of one size");
  if (p.arrays) return refuse(why, "arrays tell sequences apart; this kernel takes heads that are alike");
  if (p.seq_q > row.tile_q || p.seq_k > row.tile_k || p.seq_k < 1)
    return refuse(why, "heads have %lld queries and %lld keys; this kernel takes up to %d, and 1 to %d",
                  static_cast<long long>(p.seq_q), static_cast<long long>(p.seq_k), static_cast<int>(row.tile_q),
                  static_cast<int>(row.tile_k));
  return true;
}

// Edge rows fold scale log2 e into one factor of raw products, hidden ones (-inf) included; score rows take
// products by scale / softcap to what tanh is of.
bool takes_scale(const Row &row, const tsr_problem &p, tsr_reason *why) {
  if (row.engine.scores) {
    const float factor = p.softcap > 0 ? fabsf(p.scale / p.softcap) : 1.0f;
    if (p.scale == 0 || (factor >= FLT_MIN && factor <= FLT_MAX)) return true;
    return refuse(why, "scale is %g and softcap %g; this kernel needs their ratio to be a normal float32", p.scale,
                  p.softcap);
  }
  const float unit = p.scale * static_cast<float>(TSRI_LOG2E);
  if (unit >= FLT_MIN && unit <= FLT_MAX) return true;
  return refuse(why, "scale is %g; this kernel needs log2 e times it to be a positive, normal float32",
                p.scale);
}

// What the encoding of tensors for the copy engine can say.
bool takes_boxes(const tsr_problem &p, tsr_reason *why) {
  constexpr int64_t kMostStride = int64_t{1} << 39; // elements; 2^40 bytes are too many
  const int64_t keys_batch = p.page_size ? p.num_pages : p.arrays & TSR_ARRAY_CU_K ? 1 : p.batch;
  const struct {
    const char *name;
    const tsr_layout *layout;
    int64_t extent[3];
  } tensors[] = {{"q", &p.q, {p.arrays & TSR_ARRAY_CU_Q ? 1 : p.batch, p.heads_q, INT64_MAX}},
                 {"k", &p.k, {keys_batch, p.heads_kv, INT64_MAX}},
                 {"v", &p.v, {keys_batch, p.heads_kv, INT64_MAX}},
                 {"dout", &p.dout, {p.arrays & TSR_ARRAY_CU_Q ? 1 : p.batch, p.heads_q, INT64_MAX}}};
  for (const auto &t : tensors)
    for (int d = 0; d < 3; ++d) {
      const int64_t stride = t.layout->stride[d];
      if (t.layout->dtype != TSR_DTYPE_NONE && t.extent[d] > 1 && (stride <= 0 || stride >= kMostStride))
        return refuse(why, "%s has a stride of %lld elements; the copy engine takes 1 to 2^39 - 1", t.name,
                      static_cast<long long>(stride));
    }
  return true;
}

// What 16-byte accesses without a second way need.
bool takes_layouts(const Row &row, const tsr_problem &p, tsr_reason *why) {
  if (row.any) return true;
  if (row.engine.box_q && !takes_boxes(p, why)) return false;
  // Split rows have a second way to write O, and backward reads it row by row.
  const bool any_o = row.family == Family::kSplit || row.family == Family::kBackward;
  const struct {
    const char *name;
    const tsr_layout *layout;
    int64_t columns;
  } tensors[] = {{"q", &p.q, p.dim_qk},    {"k", &p.k, p.dim_qk},   {"v", &p.v, p.dim_v},
                 {"o", any_o ? nullptr : &p.o, p.dim_v}, {"dout", &p.dout, p.dim_v},
                 {"dq", &p.dq, p.dim_qk},  {"dk", &p.dk, p.dim_qk}, {"dv", &p.dv, p.dim_v}};
  for (const auto &t : tensors)
    if (t.layout && t.layout->dtype != TSR_DTYPE_NONE && !gpu::layout_is_vector(*t.layout, t.columns))
      return refuse(why,
                    "%s has rows that do not begin and end at multiples of 16 bytes (alignment %lld, "
                    "%lld columns)",
                    t.name, static_cast<long long>(t.layout->alignment),
                    static_cast<long long>(t.columns));
  return takes_scale(row, p, why);
}

// Rows of 8-bit elements take one scale of keys and one of values for a tile of keys; queries have one each.
bool takes_scales(const Row &row, const tsr_problem &p, tsr_reason *why) {
  if (!tsri_dtype_needs_scale(row.dtype)) return true;
  const bool packed = p.arrays & TSR_ARRAY_CU_K;
  if (p.scale_rows_k == 0 || p.scale_rows_k >= (packed ? p.total_k : p.seq_k)) return true;
  if (p.scale_rows_k % row.tile_k != 0)
    return refuse(why, "scale_rows_k is %lld; this kernel takes multiples of %d, or 0",
                  static_cast<long long>(p.scale_rows_k), static_cast<int>(row.tile_k));
  // Tiles begin where the used keys of a sequence do, blocks of scales at row 0 of the tensor.
  if (packed || p.arrays & TSR_ARRAY_LEFT_PAD_K)
    return refuse(why, "scale_rows_k is %lld and keys are %s; this kernel takes 0 there",
                  static_cast<long long>(p.scale_rows_k), packed ? "packed" : "padded on the left");
  return true;
}

// Fails where the launch would not fit the device's numbering.
bool set_blocks(int64_t blocks, Cut *cut, tsr_reason *why) {
  if (blocks > kMostBlocks)
    return refuse(why, "needs %lld blocks, a launch has %lld at most",
                  static_cast<long long>(blocks), static_cast<long long>(kMostBlocks));
  cut->blocks = blocks;
  return true;
}

bool cut_forward(const Row &row, const tsr_problem &p, Cut *cut, tsr_reason *why) {
  const int64_t heads = tsri_mul_sat(p.batch, p.heads_q);
  int64_t tiles = ceil_div(p.seq_q, row.tile_q), slots = heads;
  cut->chunks = static_cast<int32_t>(ceil_div(p.dim_v, row.dim_v));
  if (p.arrays & TSR_ARRAY_CU_Q) {
    // Each sequence may end inside a tile; and none is longer than seq_q.
    const int64_t by_total = p.total_q / row.tile_q + min64(p.batch, p.total_q);
    tiles = min64(by_total, tsri_mul_sat(tiles, p.batch));
    slots = p.heads_q;
  }
  if (tiles > kMostBlocks) return set_blocks(tiles, cut, why);
  cut->tiles = static_cast<int32_t>(tiles);
  return set_blocks(tsri_mul_sat(tsri_mul_sat(tiles, cut->chunks), slots), cut, why);
}

// Heads whose tiles take turns where rows see different numbers of keys, so that the last blocks of a launch are short:
// as many as fill the device, while their keys and values take half of L2 at most. With more tiles to a head they are
// short anyhow, and turns cost more than they bring (docs/performance.md).
constexpr int32_t kMostTurning = 16;
int32_t turns_of(const DeviceFacts &facts, const tsr_problem &p, int32_t tiles) {
  if (p.arrays != 0 || tiles < 2 || tiles > kMostTurning) return 1;
  const tsri_mask_rule rule = tsri_problem_rule(&p, p.seq_q, p.seq_k);
  if (tsri_mask_tile_class(&rule, 0, p.seq_q, 0, p.seq_k) == TSRI_TILE_FULL) return 1;
  const int64_t bytes = tsri_mul_sat(p.seq_k, (p.dim_qk + p.dim_v) * gpu::element_bytes(p.k.dtype));
  const int64_t held = facts.l2_bytes / 2 / max64(bytes, 1) * (p.heads_q / max64(p.heads_kv, 1));
  const int64_t filling = ceil_div(int64_t{2} * facts.processors, tiles);
  return static_cast<int32_t>(max64(1, min64(held, filling)));
}

// Blocks that stay take pairs of tiles, see backends/cuda/sm90/work.hpp; as many as the device holds, or so many
// times as many as make their lists of work short enough.
bool cut_engine(const DeviceFacts &facts, const Row &row, const tsr_problem &p, Cut *cut, tsr_reason *why) {
  if (!cut_forward(row, p, cut, why)) return false;
  cut->deal = Deal{-1, 1, 0, 0, 0};
  if (cut->chunks > 1)
    return refuse(why, "dim_v is %lld; this kernel takes up to %d", static_cast<long long>(p.dim_v),
                  static_cast<int>(row.dim_v));
  if (cut->blocks == 0) return true;
  const int64_t pairs = cut->blocks / cut->tiles * ((cut->tiles + 1) / 2);
  const int64_t most = (row.engine.items - 2) / 2; // the last round is two tiles, or one and two parts
  const int64_t held = static_cast<int64_t>(facts.processors) * row.engine.blocks;
  // No list, whatever their number; and as few blocks as take no longer: those that end early leave memory idle.
  if (row.engine.heads) return set_blocks(ceil_div(cut->blocks, ceil_div(cut->blocks, held)), cut, why);
  // Whole rounds of what the device holds: a few blocks more than one would take as long as another.
  const int64_t rounds = max64(1, ceil_div(ceil_div(pairs, most), held));
  if (!set_blocks(min64(tsri_mul_sat(rounds, held), 2 * pairs), cut, why)) return false;
  choose_deal(facts, row, p, cut);
  return true;
}

// Into parts of `part_keys` keys, a multiple of the key tile; 0: parts of what each row tile sees.
bool cut_split_to(int64_t splits, int64_t part_keys, Cut *cut, tsr_reason *why) {
  if (splits > kMostParts)
    return refuse(why, "%lld parts of the keys of a sequence; kernels here take up to %lld",
                  static_cast<long long>(splits), static_cast<long long>(kMostParts));
  cut->part_keys = part_keys;
  cut->splits = static_cast<int32_t>(splits);
  return set_blocks(tsri_mul_sat(tsri_mul_sat(cut->units, cut->chunks), splits), cut, why);
}

// The number of parts with the least cost: more of them fill the device, and make more to merge. With
// batch_invariant parts have a fixed size, whatever else there is.
bool cut_split(const DeviceFacts &facts, const Row &row, const tsr_resolved &problem,
               const Visits &visits, Cut *cut, tsr_reason *why) {
  const tsr_problem &p = problem.p;
  const int64_t row_tiles = ceil_div(tsri_mul_sat(p.seq_q, problem.group), row.tile_q);
  if (row_tiles > kMostBlocks) return set_blocks(row_tiles, cut, why);
  cut->row_tiles = static_cast<int32_t>(row_tiles);
  cut->chunks = static_cast<int32_t>(ceil_div(p.dim_v, row.dim_v));
  cut->units = tsri_mul_sat(tsri_mul_sat(p.batch, p.heads_kv), row_tiles);
  if (p.determinism == TSR_DETERMINISM_BATCH_INVARIANT) {
    const int64_t part_keys = ceil_div(kFixedPartKeys, row.tile_k) * row.tile_k;
    return cut_split_to(max64(1, ceil_div(p.seq_k, part_keys)), part_keys, cut, why);
  }
  const int64_t most = min64(max64(1, ceil_div(p.seq_k, row.tile_k)), kMostSplits);
  double best = INFINITY;
  int64_t best_splits = 1;
  for (int64_t n = 1; n <= most; ++n) {
    Cut candidate = *cut;
    tsr_reason ignored;
    if (!cut_split_to(n, 0, &candidate, &ignored)) break;
    const double seconds = cost_seconds(facts, row, problem, visits, candidate);
    if (seconds < best) best = seconds, best_splits = n;
  }
  return cut_split_to(best_splits, 0, cut, why);
}

// The same rules on sequences of a fixed size: what ranks rows where neither the batch nor padding may.
tsr_resolved canonical(const tsr_resolved &problem) {
  tsr_resolved r = problem;
  r.p.batch = 1;
  r.p.seq_q = r.p.seq_k = kCanonicalRows;
  r.p.total_q = r.p.total_k = 0;
  r.p.arrays = 0;
  r.p.page_size = 0;
  r.p.diagonal = 0;
  return r;
}

bool estimate_row(const DeviceFacts &facts, const Row &row, const tsr_resolved &problem,
                  Choice *choice, tsr_reason *why) {
  const Visits visits = count_visits(row, problem);
  tsr_estimate *e = &choice->estimate;
  e->tile_q = row.tile_q;
  e->tile_k = row.tile_k;
  if (row.family == Family::kBackward) {
    BackwardCut &cut = choice->cut.backward;
    if (!backward_cut(row, problem.p, &cut, why) || !backward_blocks(facts, row, problem.p, &cut, why)) return false;
    e->seconds = backward_seconds(facts, row, problem, visits, cut);
    e->flops = backward_flops(problem, visits);
    e->bytes = backward_bytes(problem, visits, cut);
    return true;
  }
  if (row.family == Family::kSplit) {
    if (!cut_split(facts, row, problem, visits, &choice->cut, why)) return false;
  } else if (row.family == Family::kEngineForward) {
    if (!cut_engine(facts, row, problem.p, &choice->cut, why)) return false;
  } else if (!cut_forward(row, problem.p, &choice->cut, why)) {
    return false;
  } else {
    choice->cut.turns = turns_of(facts, problem.p, choice->cut.tiles);
  }
  e->seconds = row.family == Family::kEngineForward
                   ? engine_seconds(facts, row, problem, visits, choice->cut)
                   : cost_seconds(facts, row, problem, visits, choice->cut);
  e->flops = cost_flops(problem, visits);
  e->bytes = cost_bytes(facts, row, problem, visits, choice->cut);
  return true;
}

} // namespace

bool select_row(const DeviceFacts &facts, const Row &row, const tsr_resolved &problem,
                Choice *choice, tsr_reason *why) {
  memset(choice, 0, sizeof *choice);
  if (!takes_device(facts, row, why) || !takes_dtypes(row, problem.p, why) ||
      !takes_features(row, problem, why) || !takes_sizes(row, problem.p, why) ||
      !takes_heads(row, problem.p, why) || !takes_pages(row, problem.p, why) || !takes_layouts(row, problem.p, why) ||
      !takes_scales(row, problem.p, why))
    return false;
  if (!estimate_row(facts, row, problem, choice, why)) return false;
  const int64_t workspace = row.family == Family::kBackward
                                ? backward_workspace(row, problem.p, choice->cut.backward)
                                : launch_workspace(row, problem, choice->cut);
  if (workspace == INT64_MAX) return refuse(why, "needs more workspace than can be addressed");
  choice->estimate.workspace = static_cast<size_t>(workspace);
  if (problem.p.determinism == TSR_DETERMINISM_BATCH_INVARIANT) {
    Choice ranked;
    memset(&ranked, 0, sizeof ranked);
    if (!estimate_row(facts, row, canonical(problem), &ranked, why)) return false;
    // By sizes alone, which no row counts in its own way: the order stays.
    const tsr_problem &p = problem.p;
    choice->estimate.seconds = ranked.estimate.seconds * static_cast<double>(p.batch) *
                               (static_cast<double>(p.seq_q) / kCanonicalRows) *
                               (static_cast<double>(p.seq_k) / kCanonicalRows);
  }
  return true;
}

} // namespace TSRI_GPU_BACKEND
} // namespace tessera
