// SPDX-License-Identifier: Apache-2.0
//
// The last tiles of queries of a launch, fewer than blocks, cut along the keys: blocks get the same share of them in
// tiles of keys, each a part or two. A part leaves its accumulators, maxima and sums in memory, lane by lane as they
// are in registers; at the end of its work a block that finds all parts of a tile of queries there adds them, in their
// order, so that the bits do not depend on who comes last. By every warpgroup for its own 64 queries.
#ifndef TESSERA_BACKENDS_CUDA_SM90_PARTS_HPP_
#define TESSERA_BACKENDS_CUDA_SM90_PARTS_HPP_

#include "backends/cuda/sm90/instructions.hpp"
#include "backends/cuda/sm90/work.hpp"
#include "common/gpu/row_policy.hpp"

namespace tessera {
namespace gpu {

// P: the program, an EngineForward.
template <class P>
struct ForwardParts {
  using Args = EngineForwardArgs;
  using U = typename P::U;
  using Rows = typename P::Rows;
  using State = typename P::State;
  static_assert(Rows::kFree == 1 && Rows::kSlots == 2, "two rows a lane");
  static constexpr int kLanes = P::kGroups * kWarpgroup;
  static constexpr int kQuads = 2 * Rows::kOut + 1; // of a lane: accumulators, then maxima and sums
  static_assert(sizeof(CutQuad) * kQuads * kLanes == cut_bytes(P::kTileQ, Rows::kOutColumns), "as the host counts");

  TSRI_DEVICE_MEMBER CutQuad *quad_of(const Args &args, const WorkItem &item, int32_t part, int quad) {
    return static_cast<CutQuad *>(args.cut.parts) +
           (static_cast<int64_t>(item.first + part) * kQuads + quad) * kLanes + thread_index();
  }

  TSRI_DEVICE_MEMBER void store(const Args &args, State &state, const WorkItem &item) {
    CutQuad *at = quad_of(args, item, item.part, 0);
    TSRI_UNROLL
    for (int o = 0; o < Rows::kOut; ++o) {
      TSRI_UNROLL
      for (int half = 0; half < 2; ++half) {
        const float(&x)[8] = state.out[0][o].x;
        at[(2 * o + half) * kLanes] = CutQuad{{x[4 * half], x[4 * half + 1], x[4 * half + 2], x[4 * half + 3]}};
      }
      matrix_pin(state.out[0]);
    }
    at[2 * Rows::kOut * kLanes] = CutQuad{{state.m[0], state.m[1], state.l[0], state.l[1]}};
  }

  // Whether the calling warpgroup is the last of its rows. Counters are as those of split rows: parts that are done in
  // the low bits under the tag of the launch, whatever memory holds before, and 0 afterwards.
  TSRI_DEVICE_MEMBER bool ends_last(const Args &args, const WorkItem &item) {
    constexpr int kCountBits = 24;
    const int group = thread_index() / kWarpgroup;
    uint32_t &last = shared_at<uint32_t>(P::kLast + 4 * static_cast<uint32_t>(group));
    fence_device();
    sync_group(P::kGroupBarrier + group, kWarpgroup);
    if (thread_index() % kWarpgroup == 0) {
      uint64_t *counter = args.cut.counters + item.cut * P::kGroups + group;
      const uint64_t found = load_word(counter);
      if (found >> kCountBits != args.cut.tag) replace_word(counter, found, args.cut.tag << kCountBits);
      fence_device(); // everybody's stores, by way of the barrier
      last = increment_word(counter) + 1 == (args.cut.tag << kCountBits) + static_cast<uint32_t>(item.parts);
      if (last) store_word(counter, 0);
    }
    sync_group(P::kGroupBarrier + group, kWarpgroup);
    if (!last) return false;
    fence_device();
    return true;
  }

  // All parts of a tile, in their order.
  TSRI_DEVICE_MEMBER void merge(const Args &args, State &state, const WorkItem &item, float unit) {
    P::start_state(state);
    TSRI_NO_UNROLL
    for (int32_t p = 0; p < item.parts; ++p) {
      const CutQuad sums = *quad_of(args, item, p, 2 * Rows::kOut);
      float kept[2], added[2];
      TSRI_UNROLL
      for (int r = 0; r < 2; ++r) {
        const float m = Softmax::new_max(state.m[r], sums.x[r]);
        kept[r] = state.m[r] == m ? 1.0f : P::part_weight(unit, state.m[r], m); // exactly 1
        added[r] = sums.x[r] == m ? 1.0f : P::part_weight(unit, sums.x[r], m);
        state.m[r] = m;
        state.l[r] = multiply_add(sums.x[2 + r], added[r], state.l[r] * kept[r]);
      }
      TSRI_UNROLL
      for (int o = 0; o < Rows::kOut; ++o) {
        TSRI_UNROLL
        for (int half = 0; half < 2; ++half) {
          const CutQuad part = *quad_of(args, item, p, 2 * o + half);
          TSRI_UNROLL
          for (int e = 0; e < 4; ++e) {
            float &x = state.out[0][o].x[4 * half + e];
            x = multiply_add(part.x[e], added[U::slot(e)], x * kept[U::slot(e)]);
          }
        }
        // Some after some, for the registers' sake: the assembler would begin with all loads.
        if (o % 4 == 3) matrix_after(state.out[0][o].x[7] * state.out[0][o].x[7]);
      }
    }
  }

  // The parts of a block, which are the last ones of its list, where other pieces have ended.
  TSRI_DEVICE_MEMBER void finish_parts(const Args &args, float unit) {
    TSRI_NO_UNROLL
    for (int i = P::items() - 1; i >= 0 && P::item_at(i).parts > 1; --i) {
      if (!ends_last(args, P::item_at(i))) continue;
      State state;
      merge(args, state, P::item_at(i), unit);
      P::finish_whole(args, state, P::item_at(i), unit, P::buffer_o(i));
    }
  }
  // The same and the end of a block's last piece, whose state this is.
  TSRI_DEVICE_MEMBER void finish(const Args &args, State &state, float unit) {
    int i = P::items() - 1;
    if constexpr (!P::kCuts) return P::finish_whole(args, state, P::item_at(i), unit, P::buffer_o(i));
    if (P::item_at(i).parts > 1) store(args, state, P::item_at(i));
    TSRI_NO_UNROLL
    for (;; --i) { // one place for all that ends here: its instructions are many
      const WorkItem &item = P::item_at(i);
      const bool cut = item.parts > 1, here = !cut || ends_last(args, item);
      if (cut && here) merge(args, state, item, unit);
      if (here) P::finish_whole(args, state, item, unit, P::buffer_o(i));
      if (!cut || i == 0 || P::item_at(i - 1).parts == 1) break;
    }
  }
};

} // namespace gpu
} // namespace tessera

#endif // TESSERA_BACKENDS_CUDA_SM90_PARTS_HPP_
