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
  TSRI_DEVICE_MEMBER Box box_of(const WorkItem &item, int32_t tile) {
    return Box{item.k_begin + KeyTiles::at(item.tiles, tile) * P::kTileK, item.k_head, item.k_batch};
  }
  template <bool kValues>
  TSRI_DEVICE_MEMBER void ask_box(const Args &args, const Box &box, uint32_t slot, int thread) {
    if (thread != 0 || box.head < 0) return;
    if constexpr (kValues)
      P::template load<P::kBytesV, P::kPieceK>(P::kV + slot * P::kBytesV, args.v, P::kFullV + 8 * slot, box.row,
                                               box.head, box.batch);
    else
      P::template load<P::kBytesK, P::kPieceK>(P::kK + slot * P::kBytesK, args.k, P::kFullK + 8 * slot, box.row,
                                               box.head, box.batch);
  }
  // Of a warpgroup, by its first thread.
  TSRI_DEVICE_MEMBER void ask_for_queries(const Args &args, int i, int thread) {
    if (thread % kWarpgroup != 0 || i >= P::items()) return;
    const WorkItem &item = P::item_at(i);
    const int group = thread / kWarpgroup;
    const uint32_t buffer = P::q_buffer(i, group);
    P::template load<P::kBytesQ, P::kPieceQ>(P::kQ + buffer * P::kBytesQ, args.q, P::kFullQ + 8 * buffer,
                                             item.slot_begin + item.row0 + 64 * group, item.h, item.q_batch);
  }
};

} // namespace gpu
} // namespace tessera

#endif // TESSERA_BACKENDS_CUDA_SM90_OWN_LOADS_HPP_
