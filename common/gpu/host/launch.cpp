// SPDX-License-Identifier: Apache-2.0
//
// See launch.h. Nothing here allocates, waits or reads device memory: a run is the filling of one struct
// and one launch.
#include "common/gpu/host/launch.h"

#include <string.h>

#include "common/gpu/arguments.hpp"
#include "common/workspace.h"

namespace tessera {
namespace TSRI_GPU_BACKEND {
namespace {

static_assert(sizeof(gpu::ForwardArgs) <= 4096, "kernel parameters that every device takes");
static_assert(sizeof(gpu::EngineForwardArgs) <= 4096, "kernel parameters that every device takes");
static_assert(sizeof(gpu::SplitArgs) <= 4096, "kernel parameters that every device takes");

struct SplitMemory {
  uint64_t *counters;
  float *part_o, *part_lse, *part_max;
};

SplitMemory take_split(tsri_workspace *ws, const Row &row, const tsr_problem &p, const Cut &cut) {
  SplitMemory m = {};
  if (cut.splits <= 1) return m; // nothing is merged
  const int64_t counters = tsri_mul_sat(cut.units, cut.chunks);
  const int64_t rows = tsri_mul_sat(tsri_mul_sat(cut.units, cut.splits), row.tile_q);
  m.counters = static_cast<uint64_t *>(tsri_workspace_take(ws, counters, sizeof(uint64_t)));
  m.part_o = static_cast<float *>(
      tsri_workspace_take(ws, tsri_mul_sat(rows, p.dim_v), sizeof(float)));
  m.part_lse = static_cast<float *>(tsri_workspace_take(ws, rows, sizeof(float)));
  if (p.max_logit.dtype != TSR_DTYPE_NONE)
    m.part_max = static_cast<float *>(tsri_workspace_take(ws, rows, sizeof(float)));
  return m;
}

// What tiles of queries that are cut need of the workspace; see CutArgs.
void take_cut(tsri_workspace *ws, const Row &row, const Cut &cut, gpu::CutArgs *args) {
  if (cut.deal.cut_keys == 0) return;
  args->keys = cut.deal.cut_keys;
  args->counters = static_cast<uint64_t *>(
      tsri_workspace_take(ws, tsri_mul_sat(cut.deal.cut_tiles, row.tile_q / row.engine.box_q), sizeof(uint64_t)));
  // Every block has a part, and one more for every tile that ends inside its share.
  args->parts = tsri_workspace_take(ws, cut.deal.cut_tiles + cut.blocks,
                                    static_cast<int64_t>(gpu::cut_bytes(row.tile_q, row.dim_v)));
}

// 40 bits that no other launch of this process has, and that are no small number, which memory may hold by
// accident. A recorded launch keeps its own.
uint64_t next_tag() {
  static uint64_t given = 0;
  constexpr uint64_t kTags = uint64_t{1} << 40, kStep = 0x9e3779b97f; // odd: each of kTags numbers once
  uint64_t tag = 0;
  while (tag == 0) tag = __atomic_add_fetch(&given, 1, __ATOMIC_RELAXED) * kStep % kTags;
  return tag;
}

} // namespace

void fill_call(const tsr_resolved &problem, const tsr_args &args, gpu::Call *call) {
  call->p = problem.p;
  call->a = args;
  call->features = problem.features;
  call->group = problem.group;
  call->drop_threshold = problem.drop_threshold;
  call->keep_scale = problem.keep_scale;
  call->vector = gpu::vector_bits(problem.p);
}

int64_t launch_workspace(const Row &row, const tsr_resolved &problem, const Cut &cut) {
  tsri_workspace ws = {nullptr, 0};
  if (row.family == Family::kSplit && cut.blocks > 0) take_split(&ws, row, problem.p, cut);
  gpu::CutArgs args;
  if (row.family == Family::kEngineForward) take_cut(&ws, row, cut, &args);
  return ws.used;
}

tsr_status launch_function(const Plan &plan, const Entry &entry, int64_t blocks, const void *args,
                           size_t args_size, void *stream, tsr_reason *why, bool early) {
  const Launch launch = {entry.function, blocks,    entry.threads, entry.shared_bytes,
                         args,           args_size, stream,         early};
  return runtime_launch(plan.device, launch, why);
}

tsr_status launch_entry(const Plan &plan, int entry, int64_t blocks, const void *args, size_t args_size,
                        void *stream, tsr_reason *why) {
  return launch_function(plan, plan.row->entry[entry], blocks, args, args_size, stream, why);
}

int32_t engine_box_k(const Row &row, const tsr_problem &p) {
  int64_t box = row.tile_k;
  for (int64_t page = p.page_size; page != 0;) { // the greatest common divisor
    const int64_t rest = box % page;
    box = page;
    page = rest;
  }
  return static_cast<int32_t>(box);
}

tsr_status map_tensor(int32_t device, const void *base, const tsr_layout &layout, bool packed, int64_t columns,
                      int64_t rows, int64_t heads, int64_t batch, int32_t box_rows, gpu::TensorMap *map,
                      tsr_reason *why) {
  TensorBox box = {base, layout.dtype, {columns, rows, heads, packed ? 1 : batch}, {0, 0, 0, 0}, box_rows, device};
  const int64_t bytes = gpu::element_bytes(layout.dtype);
  // Of nothing there is no map, and nobody asks for it.
  for (int d = 0; d < 4; ++d)
    if (box.extent[d] == 0) return TSR_STATUS_SUCCESS;
  // Of a dimension with one index the stride is never used, but has to be a legal one.
  for (int d = 1; d < 4; ++d) box.stride[d] = box.extent[d] > 1 ? bytes * layout.stride[3 - d] : 16;
  return runtime_tensor_map(box, map, why);
}

namespace {

constexpr int32_t kEngineRowsOut = 16; // of O that are copied at a time: a warp's

tsr_status launch_engine(const Plan &plan, const tsr_args &args, void *workspace, tsr_reason *why) {
  const tsr_problem &p = plan.problem->p;
  const EngineShape &engine = plan.row->engine;
  const bool packed_q = p.arrays & TSR_ARRAY_CU_Q, packed_k = p.arrays & TSR_ARRAY_CU_K;
  gpu::EngineForwardArgs e;
  memset(&e, 0, sizeof e);
  fill_call(*plan.problem, args, &e.forward.call);
  e.forward.tiles = plan.choice.cut.tiles;
  e.forward.chunks = 1;
  e.forward.rows = gpu::same_rows(p);
  e.box_k = engine_box_k(*plan.row, p);
  e.back = plan.choice.cut.deal.back;
  tsri_workspace ws = {static_cast<unsigned char *>(workspace), 0};
  take_cut(&ws, *plan.row, plan.choice.cut, &e.cut);
  if (e.cut.keys) e.cut.tag = next_tag();
  // A page is what a batch is elsewhere.
  const int64_t keys = p.page_size ? p.page_size : packed_k ? p.total_k : p.seq_k;
  const int64_t keys_batch = p.page_size ? p.num_pages : p.batch;
  const auto map = [&](const void *base, const tsr_layout &layout, bool packed, int64_t columns, int64_t rows,
                       int64_t heads, int64_t batch, int32_t box, gpu::TensorMap *to) {
    return map_tensor(plan.device, base, layout, packed, columns, rows, heads, batch, box, to, why);
  };
  const int64_t rows = packed_q ? p.total_q : p.seq_q;
  tsr_status status = map(args.q, p.q, packed_q, p.dim_qk, rows, p.heads_q, p.batch, engine.box_q, &e.q);
  // Without keys no tile is ever asked for.
  if (status == TSR_STATUS_SUCCESS && keys > 0)
    status = map(args.k, p.k, packed_k, p.dim_qk, keys, p.heads_kv, keys_batch, e.box_k, &e.k);
  if (status == TSR_STATUS_SUCCESS && keys > 0)
    status = map(args.v, p.v, packed_k, p.dim_v, keys, p.heads_kv, keys_batch, e.box_k, &e.v);
  // Narrow O as wide as Q's elements, in rows of whole 16 bytes, and with strides that the copy engine takes; rows
  // store what is not so themselves.
  e.copies_out = plan.row->dim_v <= 64 && p.o.dtype == p.q.dtype && (e.forward.call.vector & gpu::kVectorO) != 0;
  for (int d = 0; d < 3; ++d)
    if (p.o.stride[d] >= int64_t{1} << 39) e.copies_out = 0;
  if (status == TSR_STATUS_SUCCESS && e.copies_out)
    status = map(args.o, p.o, packed_q, p.dim_v, rows, p.heads_q, p.batch, kEngineRowsOut, &e.o);
  if (status != TSR_STATUS_SUCCESS) return status;
  const Entry &entry = plan.row->entry[kEntryMain];
  const Launch launch = {entry.function, plan.choice.cut.blocks, entry.threads, entry.shared_bytes,
                         &e,             sizeof e,               args.stream,   plan.early};
  return runtime_launch(plan.device, launch, why);
}

} // namespace

tsr_status launch_forward(const Plan &plan, const tsr_args &args, void *workspace, tsr_reason *why) {
  const Cut &cut = plan.choice.cut;
  if (cut.blocks == 0) return TSR_STATUS_SUCCESS; // no row, and nothing else to write
  if (plan.row->family == Family::kSplit) {
    tsri_workspace ws = {static_cast<unsigned char *>(workspace), 0};
    const SplitMemory memory = take_split(&ws, *plan.row, plan.problem->p, cut);
    gpu::SplitArgs split;
    memset(&split, 0, sizeof split);
    fill_call(*plan.problem, args, &split.call);
    split.row_tiles = cut.row_tiles;
    split.splits = cut.splits;
    split.chunks = cut.chunks;
    split.part_keys = cut.part_keys;
    split.part_o = memory.part_o;
    split.part_lse = memory.part_lse;
    split.part_max = memory.part_max;
    split.counters = memory.counters;
    split.tag = next_tag();
    const Entry &entry = plan.row->entry[kEntryMain];
    const Launch launch = {entry.function, cut.blocks,   entry.threads, entry.shared_bytes,
                           &split,         sizeof split, args.stream,   plan.early};
    return runtime_launch(plan.device, launch, why);
  }
  if (plan.row->family == Family::kEngineForward) return launch_engine(plan, args, workspace, why);
  gpu::ForwardArgs forward;
  memset(&forward, 0, sizeof forward);
  fill_call(*plan.problem, args, &forward.call);
  forward.tiles = cut.tiles;
  forward.chunks = cut.chunks;
  forward.turns = cut.turns;
  forward.rows = gpu::same_rows(plan.problem->p);
  return launch_entry(plan, kEntryMain, cut.blocks, &forward, sizeof forward, args.stream, why);
}

} // namespace TSRI_GPU_BACKEND
} // namespace tessera
