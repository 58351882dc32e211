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

  // Next tiles of keys and of values.
  struct Asked {
    int k_item, v_item;     // pieces of work
    int32_t k_tile, v_tile; // tiles of them
  };

  TSRI_DEVICE_MEMBER void advance(int &item, int32_t &tile) {
    if (item < P::items() && ++tile == P::item_at(item).tiles.count) {
      tile = 0;
      ++item;
    }
  }
  TSRI_DEVICE_MEMBER bool asks(int item) { return item < P::items() && fresh_thread_index() == 0; }
  TSRI_DEVICE_MEMBER int32_t tile_row(const WorkItem &item, int32_t tile) {
    return item.k_begin + KeyTiles::at(item.tiles, tile) * P::kTileK;
  }

  TSRI_DEVICE_MEMBER void ask_for_keys(const Args &args, Asked &asked, uint32_t slot) {
    if (asks(asked.k_item)) {
      const WorkItem &item = P::item_at(asked.k_item);
      P::template load<P::kBytesK, P::kPieceK>(P::kK + slot * P::kBytesK, args.k, P::kFullK + 8 * slot,
                                               tile_row(item, asked.k_tile), item.k_head, item.k_batch);
    }
    advance(asked.k_item, asked.k_tile);
  }
  TSRI_DEVICE_MEMBER void ask_for_values(const Args &args, Asked &asked, uint32_t slot) {
    if (asks(asked.v_item)) {
      const WorkItem &item = P::item_at(asked.v_item);
      P::template load<P::kBytesV, P::kPieceK>(P::kV + slot * P::kBytesV, args.v, P::kFullV + 8 * slot,
                                               tile_row(item, asked.v_tile), item.k_head, item.k_batch);
    }
    advance(asked.v_item, asked.v_tile);
  }
  TSRI_DEVICE_MEMBER void ask_for_queries(const Args &args, int i) {
    if (!asks(i)) return;
    const WorkItem &item = P::item_at(i);
    const uint32_t buffer = P::q_buffer(i, 0);
    P::template load<P::kBytesQ, P::kPieceQ>(P::kQ + buffer * P::kBytesQ, args.q, P::kFullQ + 8 * buffer,
                                             item.slot_begin + item.row0, item.h, item.q_batch);
  }

  // As many as there are buffers for.
  TSRI_DEVICE_MEMBER void ask_first(const Args &args, Asked &asked) {
    asked = Asked{0, 0, 0, 0};
    ask_for_queries(args, 0);
    for (uint32_t slot = 0; slot < P::kRing; ++slot) {
      ask_for_keys(args, asked, slot);
      ask_for_values(args, asked, slot);
    }
    for (int i = 1; i < P::kBuffersQ; ++i) ask_for_queries(args, i);
  }
};

} // namespace gpu
} // namespace tessera

#endif // TESSERA_BACKENDS_CUDA_SM90_OWN_LOADS_HPP_
