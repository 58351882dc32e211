// SPDX-License-Identifier: Apache-2.0
//
// What a kernel receives: the resolved problem and the pointers of a run as the caller gave them, plus
// what the plan decided. One value, passed by copy (under the 4 KiB that every device takes), so that
// no field is translated twice. Filled by the backend, read by the tile programs of this folder.
//
// A launch is one row of blocks. Block number -> work, fastest index first:
//   forward    query tile, chunk of Dv, query head, batch       (packed: query tiles of all sequences)
//   split      chunk of Dv, row tile, KV head, part of the keys, batch   (see split_rows.hpp)
//   stats      query tile, query head, batch
//   dQ         query tile, chunk of Dqk, query head, batch
//   dK, dV     key tile, chunk, KV head, batch                  (packed: key tiles of all sequences)
//   dBias      key tile, query tile, head, batch of the bias (1 where it is broadcast)
//   convert, prepare, finish   rows of [B, Hq, Sq] (packed: [Hq, total_q]), strided by the launch
//   dSink      query head
#ifndef TESSERA_COMMON_GPU_ARGUMENTS_HPP_
#define TESSERA_COMMON_GPU_ARGUMENTS_HPP_

#include <stdint.h>

#include "common/geometry.h"
#include "tessera/tessera.h"

namespace tessera {
namespace gpu {

// The problem and the run, in both passes.
struct Call {
  tsr_problem p; // resolved: see tsr_resolved in backend.h
  tsr_args a;
  uint32_t features;       // tsr_feature bits
  int32_t group;           // query heads per KV head
  uint64_t drop_threshold; // keep when word >= threshold
  float keep_scale;        // 1 / (1 - p_drop), 0 when p_drop is 1
  uint32_t vector;         // kVector bits: tensors that 16-byte accesses may touch
};

enum : uint32_t {
  kVectorQ = 1,
  kVectorK = 2,
  kVectorV = 4,
  kVectorO = 8,
  kVectorDout = 16,
  kVectorDq = 32,
  kVectorDk = 64,
  kVectorDv = 128
};

// Bytes of an element of Q, K, V, O or their gradients.
inline int64_t element_bytes(tsr_dtype dtype) {
  const bool byte = dtype == TSR_DTYPE_F8_E4M3 || dtype == TSR_DTYPE_F8_E5M2 || dtype == TSR_DTYPE_I8;
  return dtype == TSR_DTYPE_F32 ? 4 : byte ? 1 : 2;
}

// Whether rows of `columns` elements of a tensor can be moved 16 bytes at a time: unit last stride and
// every row begin a multiple of 16 bytes, for the pointer as promised by the layout's alignment.
inline bool layout_is_vector(const tsr_layout &layout, int64_t columns) {
  // Elements of 16 bytes: strides of axes of length 1 may be too large to be counted in bytes.
  const int64_t unit = 16 / element_bytes(layout.dtype);
  return layout.dtype != TSR_DTYPE_NONE && layout.alignment % 16 == 0 && layout.alignment > 0 &&
         layout.stride[3] == 1 && columns % unit == 0 && layout.stride[0] % unit == 0 &&
         layout.stride[1] % unit == 0 && layout.stride[2] % unit == 0;
}

inline uint32_t vector_bits(const tsr_problem &p) {
  return (layout_is_vector(p.q, p.dim_qk) ? kVectorQ : 0u) |
         (layout_is_vector(p.k, p.dim_qk) ? kVectorK : 0u) |
         (layout_is_vector(p.v, p.dim_v) ? kVectorV : 0u) |
         (layout_is_vector(p.o, p.dim_v) ? kVectorO : 0u) |
         (layout_is_vector(p.dout, p.dim_v) ? kVectorDout : 0u) |
         (layout_is_vector(p.dq, p.dim_qk) ? kVectorDq : 0u) |
         (layout_is_vector(p.dk, p.dim_qk) ? kVectorDk : 0u) |
         (layout_is_vector(p.dv, p.dim_v) ? kVectorDv : 0u);
}

// Where the copy engine of some devices finds a tensor, in the device's own encoding; made by the runtime.
struct alignas(64) TensorMap {
  unsigned char bytes[128];
};

// The interval rule of all sequences where no array says anything of one of them, so that blocks need not find it out.
struct SameRows {
  int32_t known; // 0: arrays decide, and the rest is not set
  int32_t sq, sk, prefix;
  tsri_mask_band band;
};

inline SameRows same_rows(const tsr_problem &p) {
  SameRows rows = {0, 0, 0, 0, {0, 0}};
  if (p.arrays != 0 || p.seq_q > INT32_MAX || p.seq_k > INT32_MAX) return rows;
  const tsri_mask_rule rule = tsri_problem_rule(&p, p.seq_q, p.seq_k);
  rows.known = 1;
  rows.sq = static_cast<int32_t>(rule.sq);
  rows.sk = static_cast<int32_t>(rule.sk);
  rows.prefix = static_cast<int32_t>(rule.prefix);
  rows.band = tsri_mask_band_of(&rule);
  return rows;
}

struct ForwardWork {
  Call call;
  int32_t tiles;  // query tiles per slot; packed: of all slots, ceil(total_q / tile) + B at most
  int32_t chunks; // column chunks of Dv
  SameRows rows;
};

// The last tiles of queries of a launch of blocks that stay, cut along the keys into parts; see
// backends/cuda/sm90/parts.hpp.
struct alignas(16) CutQuad {
  float x[4];
};
struct CutArgs {
  int32_t keys;       // tiles of keys of a tile of queries; 0: nothing is cut
  uint64_t tag;       // of this launch and no other, 1 .. 2^40 - 1
  uint64_t *counters; // of parts that are done, one for 64 queries of every tile that is cut
  void *parts;        // cut_bytes each, see WorkItem::first
};
// Of a part: accumulators of 64 queries in 128 lanes each, and a quad more of every lane.
constexpr uint32_t cut_bytes(int tile_q, int columns) {
  return static_cast<uint32_t>(sizeof(CutQuad)) * static_cast<uint32_t>(tile_q * 2 * (columns / 8 + 1));
}

struct ForwardArgs : ForwardWork {
  int32_t turns; // heads (and chunks) whose tiles take turns, see forward_pieces.hpp; below 2: none
};

// Forward by the copy engine: blocks stay and take one piece of work after the other; see
// backends/cuda/sm90/work.hpp.
struct EngineForwardArgs {
  ForwardWork forward;
  TensorMap q, k, v;
  TensorMap o; // boxes of 16 rows; where copies_out is 1
  int32_t copies_out;
  int32_t box_k; // rows of keys that are copied at a time: the key tile, or fewer where they lie in pages
  CutArgs cut;
  int32_t back;  // how tiles are dealt out to blocks, see Deal in backends/cuda/sm90/work.hpp
};

// Split-KV: a tile of rows (query heads of a group x queries of a slot, row r: query r / group, head
// r % group of the group) against a part of the keys per block.
struct SplitArgs {
  Call call;
  int32_t row_tiles;   // tiles of group * seq_q rows
  int32_t splits;      // parts that the keys of a sequence are cut into
  int32_t chunks;      // column chunks of Dv
  int64_t part_keys;   // keys of a part, from key 0 on; a multiple of the key tile. The last takes the rest.
                       // 0: the key tiles that a row tile sees are shared out evenly
  float *part_o;       // [B, Hkv, row_tiles, splits, rows of a tile, Dv] results of parts, each over its own l
  float *part_lse;     // [B, Hkv, row_tiles, splits, rows of a tile] natural LSE; sink not in it
  float *part_max;     // the same shape: row maxima, natural; only if asked for
  uint64_t *counters;  // [B, Hkv, row_tiles, chunks] parts that are done, see SplitCounter. Before the launch
                       // anything that does not begin with the tag; 0 after it where parts were merged
  uint64_t tag;        // of this launch and no other, 1 .. 2^40 - 1
};

// What backward needs of a query row besides the tensors; made by the preparing kernel.
struct alignas(16) RowStat {
  float lse;      // LSE in the unit of BackwardArgs; +inf for a row that sees nothing, so that p = 0
  float delta;    // rowsum(dO * O) - dLSE
  int32_t lo, hi; // its band of keys; lo > hi: not a used row
};

// The rounding of a stored O is an error of delta that all keys of a row share. Against the rounding of dS
// it falls with the root of the number of keys, so it shows where a row sees few of them, or where few rows
// of a KV head add up. In float32 there is no rounding of dS to compare with, only those of sums: more keys.
constexpr int32_t kFewKeys = 96, kFewKeysF32 = 512, kFewRows = 64;
// A natural LSE beyond this makes p inexact in 16 bits, or float32: its rounding is a relative error of p.
constexpr float kLargeLse = 256.0f, kLargeLseF32 = 16.0f;

struct KeyWork;

// 64 queries x 64 columns of dQ.
struct alignas(32) SumPiece {
  int64_t to;            // element of the tensor of the first
  int32_t set;
  int32_t from;          // piece of dq_sum
  int32_t rows, columns; // that there are, 0 to 64
  int32_t frees;         // another set follows in its place
  int32_t unused;
};

// The way of dQ out of its float sums in the kernel that adds them, see backends/cuda/sm90/backward_sums.hpp. What
// units of one KV head of a slot add to is a set of sums; dq_sum has room for `ring` sets, in turn.
struct SumOrder {
  SumPiece *pieces; // [2 set_tiles sets] of which those of a set follow each other; NULL: dQ leaves later, by BackwardFinish
  uint64_t *next;   // pieces that were taken; like the following zero before the main kernel
  uint64_t *added;  // [sets] units whose sums are all there
  uint64_t *freed;  // [sets] pieces whose sums are zero again; counted where another set follows in their place
  int32_t sets, ring;
  int32_t set_tiles; // tiles of dq_sum of a set
};

// What the blocks of a row of the copy engine work on, one piece after the other; see key_work.hpp.
struct KeyOrder {
  KeyWork *work;     // [units] made by the preparing kernel
  uint64_t *next;    // units that blocks have taken; zero before the main kernel
  int64_t units;
  int32_t blocks;    // of the preparing kernel that find them: its first
  int32_t tiles;     // as BackwardArgs::tiles of the main kernel
  int32_t together;  // KV heads that are worked on side by side, so that L2 holds their queries
  int32_t last;      // of the last heads as many at once, so that no long unit of them begins late
  int32_t lag;       // tiles of keys of a section of heads after which the next one begins: tiles, or half of them or more
  int32_t tile_q, tile_k;
  int32_t direct;    // a unit has all keys of its head and makes the head's dQ: of every query tile
  int32_t passed_count; // tiles of dq_sum of all heads
  // [passed_count] tile of keys after the last one that has added, see KeyWork::passed; zero before the main kernel.
  // NULL: sums are added to in any order.
  uint64_t *passed;
  SumOrder sums;
};

constexpr int32_t kCoarseRows = 8;

// A share of what backward_delta.hpp finds of a KV head, by a block each for keys, values and weights, of which 32
// lanes leave a share each.
constexpr int kDeltaBlocks = 3, kDeltaParts = 4;
struct alignas(8) DeltaPart {
  float mean, spread; // squared and summed over columns; of weights: 1 / crowd (common/delta.h), nothing
};

// Row of stats and of dq_sum by rows: batch-major over slots, [Hq, total_q] when packed.
struct BackwardArgs {
  Call call;
  int32_t tiles;  // key tiles per slot, packed: of all slots; of queries in the dQ kernel
  int32_t chunks; // column chunks of the outputs
  RowStat *stats; // [B, Hq, Sq]
  float *weight;  // [B, Hq, Sq]: factor of p beyond RowStat::lse; NULL: 1
  float *dq_sum;  // zero before the main kernel; NULL: no dQ from it. [dq_chunks, B, Hq, Sq, dq_columns], or
                  // by tiles: see sum_tiles() in gradient.hpp
  int64_t dq_floats;  // of dq_sum
  int32_t dq_columns; // columns that a block makes: the row's kChunkQk
  int32_t dq_chunks;  // ceil(Dqk / dq_columns)
  int32_t dq_tile_q;  // dq_sum is made of tiles of as many queries and dq_columns columns; 0: of rows
  int32_t dq_part_q;  // see sum_index() in gradient.hpp
  float lse_unit;     // log2(e): LSE is kept in base two. 1: natural, see Weighs in gradient.hpp
  int32_t stats_always; // BackwardStats leaves no tile of rows out
  uint8_t *coarse;      // [ceil(rows of stats / kCoarseRows)] whether a row of so many is coarse, see is_coarse()
  DeltaPart *delta;     // [B, Hkv, kDeltaBlocks, kDeltaParts]; NULL: heads are no reason for coarse rows
  int32_t delta_blocks; // of the preparing kernel that find it: its first after those of order
  int32_t few_keys;     // kFewKeys or kFewKeysF32
  float large_lse;      // kLargeLse or kLargeLseF32 in the unit of LSE
  int32_t bias_tiles_q; // tiles of dBias along queries and keys, 1 where the bias is broadcast
  int32_t bias_tiles_k;
  KeyOrder order;
};

// Backward by the copy engine; see backends/cuda/sm90/backward.hpp.
struct EngineBackwardArgs {
  BackwardArgs backward;
  TensorMap q, k, v, dout;
};

struct BackwardConvertArgs {
  Call call;
  void *to; // rows of Dv elements
  tsr_dtype dtype;
};

} // namespace gpu
} // namespace tessera

#endif // TESSERA_COMMON_GPU_ARGUMENTS_HPP_
