// SPDX-License-Identifier: Apache-2.0
//
// Loads of forward blocks without a warp that loads: the warpgroup that multiplies asks for the next tile when it has
// read one. Every thread knows which is next, the first one asks for it, after its own wait for the product: a
// product of a warpgroup ends for all of its warps at once.
#ifndef TESSERA_BACKENDS_CUDA_SM90_OWN_LOADS_HPP_
#define TESSERA_BACKENDS_CUDA_SM90_OWN_LOADS_HPP_

#include "backends/cuda/sm90/instructions.hpp"
#include "backends/cuda/sm90/work.hpp"

namespace tessera {
namespace gpu {

// P: the program, EngineForward of one warpgroup.
template <class P>
struct OwnLoads {
  using Args = EngineForwardArgs;

  // Where a tile of keys and its values are; head -1: behind the last one.
  struct Box {
    int32_t row, head, batch;
  };
  struct Asked {
    Box keys, values; // of the last `next`; values are asked for one tile later than keys
    int item;         // the tile after `keys`
    int32_t tile;
  };

  // The next tile. A chain of loads from shared memory: called while products are under way.
  TSRI_DEVICE_MEMBER void next(Asked &asked) {
    asked.values = asked.keys;
    asked.keys.head = -1;
    if (asked.item >= P::items()) return;
    const WorkItem &item = P::item_at(asked.item);
    asked.keys = Box{item.k_begin + KeyTiles::at(item.tiles, asked.tile) * P::kTileK, item.k_head, item.k_batch};
    if (++asked.tile == item.tiles.count) {
      asked.tile = 0;
      ++asked.item;
    }
  }
  template <bool kValues>
  TSRI_DEVICE_MEMBER void ask(const Args &args, const Asked &asked, uint32_t slot, int thread) {
    const Box &box = kValues ? asked.values : asked.keys;
    if (thread != 0 || box.head < 0) return;
    if constexpr (kValues)
      P::template load<P::kBytesV, P::kPieceK>(P::kV + slot * P::kBytesV, args.v, P::kFullV + 8 * slot, box.row,
                                               box.head, box.batch);
    else
      P::template load<P::kBytesK, P::kPieceK>(P::kK + slot * P::kBytesK, args.k, P::kFullK + 8 * slot, box.row,
                                               box.head, box.batch);
  }
  TSRI_DEVICE_MEMBER void ask_for_queries(const Args &args, int i, int thread) {
    if (thread != 0 || i >= P::items()) return;
    const WorkItem &item = P::item_at(i);
    const uint32_t buffer = P::q_buffer(i, 0);
    P::template load<P::kBytesQ, P::kPieceQ>(P::kQ + buffer * P::kBytesQ, args.q, P::kFullQ + 8 * buffer,
                                             item.slot_begin + item.row0, item.h, item.q_batch);
  }

  // As many as there are buffers for.
  TSRI_DEVICE_MEMBER void ask_first(const Args &args, Asked &asked, int thread) {
    asked.item = 0;
    asked.tile = 0;
    ask_for_queries(args, 0, thread);
    for (uint32_t slot = 0; slot < P::kRing; ++slot) {
      next(asked);
      ask<false>(args, asked, slot, thread);
      asked.values = asked.keys;
      ask<true>(args, asked, slot, thread);
    }
    for (int i = 1; i < P::kBuffersQ; ++i) ask_for_queries(args, i, thread);
  }
};

} // namespace gpu
} // namespace tessera

#endif // TESSERA_BACKENDS_CUDA_SM90_OWN_LOADS_HPP_
