// SPDX-License-Identifier: Apache-2.0
//
// What the rest of the backend knows of a kernel row: its limits, its tile, and the device functions
// behind it. One row is one line of the backend's kernels.def. Numbers that follow from the tile (shared
// memory, threads) are computed where the tile program is instantiated and only carried here.
#ifndef TESSERA_COMMON_GPU_HOST_KERNELS_H_
#define TESSERA_COMMON_GPU_HOST_KERNELS_H_

#include <stdint.h>

#include "tessera/tessera.h"

#if !defined(TSRI_GPU_BACKEND)
#error "TSRI_GPU_BACKEND: the backend's name, see tessera_gpu_host() in cmake/TesseraKernels.cmake"
#endif

namespace tessera {
namespace TSRI_GPU_BACKEND {

enum class Family : int32_t {
  kForward,  // one block per query tile: ForwardArgs
  kEngineForward, // blocks that stay, fed by the copy engine: EngineForwardArgs
  kSplit,    // short queries, keys cut over blocks: SplitArgs
  kBackward, // several passes: BackwardArgs
};

// A device function: what the runtime launches. `function` is what the backend's runtime knows it by; the
// function takes one argument struct by value.
struct Entry {
  const void *function; // nullptr: the row has no such entry
  int32_t threads;
  uint32_t shared_bytes;
};

// Of a backward row: kEntryMain makes dK and dV and adds to the float sums of dQ; kEntryStats finds LSE and
// delta again; kEntryDq makes dQ by itself, without sums; kEntryBias makes dBias and exists in `any` rows. Rows of
// the copy engine have kEntryKeys, which makes dK and dV alone, and may have no kEntryMain, or kEntryDirect, which
// makes dK, dV and dQ where a tile of keys is all that a head has, and kEntryOrdered, which is kEntryMain but that tiles of
// keys add to sums one after the other.
// What does not depend on the row is in backward_plan.h.
enum {
  kEntryMain = 0,
  kEntryStats = 1,
  kEntryDq = 2,
  kEntryBias = 3,
  kEntryKeys = 4,
  kEntryDirect = 5,
  kEntryOrdered = 6,
  kEntryCount = 7
};

// The tiles of a backward row beyond tile_q x tile_k of kEntryMain.
struct BackwardTiles {
  int32_t chunk_qk, chunk_v;    // kEntryMain: columns of dK (and dQ), and of dV, per block
  int32_t query_q, query_k;     // kEntryStats, kEntryDq and kEntryBias
  int32_t query_chunk;          // kEntryDq: columns of dQ per block
};

// Of a row of the copy engine; box_q 0: it is none, and of what follows only part_q may count.
struct EngineShape {
  int32_t items;  // query tiles that a block takes at most; 0: one, blocks do not stay
  int32_t blocks; // of a multiprocessor
  int32_t box_q;  // rows of queries that are copied at a time; of keys it is tile_k, in backward box_q
  int32_t scores; // 1: score steps and dropout too
  int32_t part_q; // backward: queries of a part of a tile of dQ's sums; 0: they are rows, or there are none
  int32_t heads = 0; // 1: a head is one tile of queries and one of keys, and no array says which of their rows are used
  int32_t deals = 0; // 1: tiles of queries may be dealt out in order, and cut; see deal.h
};

struct Row {
  const char *name; // op_dtype_dTIER_mask__arch_QxK
  tsr_pass pass;
  Family family;
  tsr_dtype dtype; // of Q, K and V
  int32_t dim_qk;  // largest Dqk
  int32_t dim_v;   // columns of Dv per block; larger Dv takes several chunks. Backward: largest Dv
  int32_t any;     // 0: interval masks, lengths, pages and sinks on aligned tensors with unit last
                   // stride; 1: every feature and stride
  int32_t paged;   // 1: K and V may be paged; rows of the copy engine: they have to be
  int32_t arch;    // what device_takes() compares with the device's
  int32_t tile_q, tile_k;
  int32_t stages;
  Entry entry[kEntryCount]; // kEntryMain, and what the family defines beyond it
  BackwardTiles backward;   // zeros in other families
  EngineShape engine = {0, 0, 0, 0, 0}; // likewise
  int32_t planes = 0;       // that float32 is split into once, in shared memory; 0: it is not, or on the way
};

// The index-th row of kernels.def; nullptr past the last one.
const Row *row_at(int32_t index);

} // namespace TSRI_GPU_BACKEND
} // namespace tessera

#endif // TESSERA_COMMON_GPU_HOST_KERNELS_H_
