// SPDX-License-Identifier: Apache-2.0
//
// The warps of forward.hpp that load: one asks the copy engine for keys and values, one for queries, in the order of
// the block's list of work and as far ahead as there are buffers.
#ifndef TESSERA_BACKENDS_CUDA_SM90_LOADS_HPP_
#define TESSERA_BACKENDS_CUDA_SM90_LOADS_HPP_

#include "backends/cuda/sm90/instructions.hpp"
#include "backends/cuda/sm90/work.hpp"

namespace tessera {
namespace gpu {

// P: the program, an EngineForward.
template <class P>
struct EngineLoads {
  using Args = EngineForwardArgs;

  // Keys and values, by one thread.
  TSRI_DEVICE_MEMBER void load_keys(const Args &args) {
    uint32_t slot = 0, parity = 1; // empty buffers are there from the start
    for (int i = 0; i < P::items(); ++i) {
      const WorkItem &item = P::item_at(i);
      TSRI_NO_UNROLL
      for (int32_t n = 0; n < item.tiles.count; ++n) {
        const int32_t row = item.k_begin + KeyTiles::at(item.tiles, n) * P::kTileK;
        phase_wait(P::kEmptyK + 8 * slot, parity);
        P::template load<P::kBytesK, P::kPieceK>(P::kK + slot * P::kBytesK, args.k, P::kFullK + 8 * slot, row,
                                                 item.k_head, item.k_batch);
        phase_wait(P::kEmptyV + 8 * slot, parity);
        P::template load<P::kBytesV, P::kPieceK>(P::kV + slot * P::kBytesV, args.v, P::kFullV + 8 * slot, row,
                                                 item.k_head, item.k_batch);
        if (++slot == P::kRing) {
          slot = 0;
          parity ^= 1;
        }
      }
    }
  }

  // Queries, by one thread.
  TSRI_DEVICE_MEMBER void load_queries(const Args &args) {
    for (int i = 0; i < P::items(); ++i) {
      const WorkItem &item = P::item_at(i);
      TSRI_NO_UNROLL
      for (int group = 0; group < P::kGroups; ++group) {
        const uint32_t buffer = P::q_buffer(i, group);
        phase_wait(P::kEmptyQ + 8 * buffer, P::template parity_of<P::kBuffersQ>(static_cast<uint32_t>(i)) ^ 1);
        P::template load<P::kBytesQ, P::kPieceQ>(P::kQ + buffer * P::kBytesQ, args.q, P::kFullQ + 8 * buffer,
                                                 item.slot_begin + item.row0 + 64 * group, item.h, item.q_batch);
      }
    }
  }

  // Rows of V beyond the sequence are whatever memory holds, and 0 times it need not be 0.
  TSRI_DEVICE_MEMBER void clear_tail(uint32_t v_tile, int32_t rows, int group) {
    const int first = larger(rows, 0);
    for (int piece = 0; piece < static_cast<int>(P::kBytesV / P::kPieceK); ++piece)
      for (int i = first * 8 + thread_index() % kWarpgroup; i < P::kTileK * 8; i += kWarpgroup)
        shared_at<Chunk>(v_tile + static_cast<uint32_t>(piece) * P::kPieceK + static_cast<uint32_t>(i) * 16) =
            Chunk{{0, 0, 0, 0}};
    fence_async();
    sync_group(P::kGroupBarrier + group, kWarpgroup);
  }
};

} // namespace gpu
} // namespace tessera

#endif // TESSERA_BACKENDS_CUDA_SM90_LOADS_HPP_
