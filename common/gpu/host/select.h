// SPDX-License-Identifier: Apache-2.0
//
// Whether a kernel row takes a problem on a device, how the work is then cut, and what it is expected to
// take: a pure function of facts, row and problem, with no device in reach. The dispatcher ranks by
// the seconds; nothing else chooses.
#ifndef TESSERA_COMMON_GPU_HOST_SELECT_H_
#define TESSERA_COMMON_GPU_HOST_SELECT_H_

#include <stdint.h>

#include "common/gpu/host/device.h"
#include "common/gpu/host/kernels.h"
#include "tessera/backend.h"

namespace tessera {
namespace TSRI_GPU_BACKEND {

// Keys of a part where the cut may depend on nothing but the problem's rules (batch_invariant).
constexpr int64_t kFixedPartKeys = 512;
// What one launch can have: 2^31 - 1 blocks, or as many as the backend's build says.
#if defined(TSRI_GPU_MOST_BLOCKS)
constexpr int64_t kMostBlocks = TSRI_GPU_MOST_BLOCKS;
#else
constexpr int64_t kMostBlocks = INT32_MAX;
#endif

// Blocks of one launch of a backward row; 0: the launch is not needed.
struct PassCut {
  int64_t blocks;
  int32_t tiles, chunks;
};

// The launches of a backward row, see backward_plan.h.
struct BackwardCut {
  int64_t rows;        // query rows of all heads
  int64_t row_blocks;  // of the passes over them
  PassCut stats;       // kEntryStats: tiles, one after the other of
  int64_t stats_blocks; // so many blocks
  bool stats_always;   // see BackwardStats
  bool delta;          // looks at whether P and delta may come from what is stored
  PassCut keys;        // kEntryMain; of rows of the copy engine its units of work
  int64_t key_blocks;  // its blocks
  PassCut queries;     // kEntryDq
  int64_t bias_blocks; // kEntryBias
  int32_t bias_tiles_q, bias_tiles_k;
  int32_t dq_columns, dq_chunks; // float sums of dQ: columns of a chunk, chunks
  int64_t dq_floats;   // of these sums
  bool sums;           // dQ comes from float sums
  int32_t together;    // KV heads of slots that the main kernel of a row of the copy engine works on side by side
  int32_t last;        // and of the last ones
  int32_t lag;         // tiles of keys after which the next heads begin, see KeyOrder in arguments.hpp
  int32_t sets, ring;  // see SumOrder in arguments.hpp; 0: dQ leaves its sums in a pass of its own
  int32_t set_tiles;
  bool ordered;        // tiles of keys add to them one after the other
  int64_t passed;      // then: tiles of these sums
  bool direct;         // or from kEntryDirect
  bool converts;       // dO is converted first
};

// How blocks that stay share out tiles, see deal.h.
constexpr int32_t kMostBack = 3;
struct Deal {
  int32_t back;     // of EngineForwardArgs
  double gain;      // of the time without it
  int32_t cut_keys; // of CutArgs
  int64_t cut_tiles; // of queries that are cut,
  int64_t cut_each; // and tiles of keys that a block gets of them
};

// How a row's work on a problem is cut. Fields of other families are 0.
struct Cut {
  int64_t blocks;    // 0: nothing to do; not of backward
  int32_t tiles;     // forward: query tiles per slot, packed: of all slots
  int32_t row_tiles; // split: tiles of group x queries
  int32_t splits;    // split: parts of the keys of a sequence
  int32_t chunks;    // column chunks of Dv
  int32_t turns;     // forward: heads whose tiles take turns, 1 or more
  int64_t part_keys; // split: keys of a part; 0: shares of what a row tile sees
  int64_t units;     // split: [B, Hkv, row_tiles]
  Deal deal;         // blocks that stay
  BackwardCut backward;
};

struct Choice {
  Cut cut;
  tsr_estimate estimate; // with the workspace
};

// True with the choice, or false with the reason.
bool select_row(const DeviceFacts &facts, const Row &row, const tsr_resolved &problem,
                Choice *choice, tsr_reason *why);

} // namespace TSRI_GPU_BACKEND
} // namespace tessera

#endif // TESSERA_COMMON_GPU_HOST_SELECT_H_
