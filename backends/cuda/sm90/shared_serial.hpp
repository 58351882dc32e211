// SPDX-License-Identifier: Apache-2.0
//
// The loop of serial.hpp for four warpgroups of a block that share tiles of keys and values: L2 gives a tile once for
// 256 queries instead of for 64, and it is there ahead of time. Queries and O are each warpgroup's own. There is no
// warp that loads, whose registers would be missing: for every tile another warpgroup asks, some tiles ahead, when all
// four have read what its buffer held.
#ifndef TESSERA_BACKENDS_CUDA_SM90_SHARED_SERIAL_HPP_
#define TESSERA_BACKENDS_CUDA_SM90_SHARED_SERIAL_HPP_

#include "backends/cuda/sm90/instructions.hpp"
#include "backends/cuda/sm90/loads.hpp"
#include "backends/cuda/sm90/maxima.hpp"
#include "backends/cuda/sm90/own_loads.hpp"
#include "backends/cuda/sm90/parts.hpp"
#include "backends/cuda/sm90/serial.hpp"
#include "backends/cuda/sm90/work.hpp"

namespace tessera {
namespace gpu {

// P: the program, EngineForward of four warpgroups that load for themselves.
template <class P>
struct SharedSerialLoop {
  using Args = EngineForwardArgs;
  using U = typename P::U;
  using Rows = typename P::Rows;
  using State = typename P::State;
  using Scores = typename P::Scores;
  using Own = OwnLoads<P>;
  using Serial = SerialLoop<P>;
  // Tiles asked for ahead: the buffer is one that all have read unless one of them is so many tiles behind.
  static constexpr int kAhead = P::kRing / 2;
  static_assert(P::kLoadsItself && P::kRing >= 2 && P::kBuffersQ == 2, "buffers to spare");

  // Tile number t of the block, the `more`-th behind the one of piece i with which `left` tiles are left; by one
  // thread.
  TSRI_DEVICE_MEMBER void ask_ahead(const Args &args, int i, int32_t left, int32_t more, uint32_t t) {
    while (more >= left) {
      more -= left;
      if (++i == P::items()) return;
      left = P::item_at(i).tiles.count;
    }
    const WorkItem &item = P::item_at(i);
    const typename Own::Box box = Own::box_of(item, item.tiles.count - left + more);
    const uint32_t slot = P::template slot_of<P::kRing>(t), parity = P::template parity_of<P::kRing>(t) ^ 1;
    phase_wait(P::kEmptyK + 8 * slot, parity);
    Own::template ask_box<false>(args, box, slot, 0);
    phase_wait(P::kEmptyV + 8 * slot, parity);
    Own::template ask_box<true>(args, box, slot, 0);
  }

  TSRI_DEVICE_MEMBER void release(uint32_t empty, int thread) {
    if (thread % kWarpgroup == 0) phase_arrive(empty);
  }

  // Of an item's last tiles of keys those that no row of the warpgroup sees, but of one tile at least none.
  TSRI_DEVICE_MEMBER int32_t unseen(const WorkItem &item, int group) {
    if (item.whole || item.tiles.count == 1) return 0;
    const int32_t i = smaller(item.i0 + 64 * group + 63, item.queries - 1);
    const RowBand last = work_band(item, i); // of rows in order the last one sees furthest
    int32_t seen = item.tiles.head;
    if (last.lo < last.hi) seen += larger(ceil_div(last.hi, P::kTileK) - item.tiles.band, 0);
    return item.tiles.count - smaller(larger(seen, 1), item.tiles.count);
  }
  // Passes over the `count` last tiles of piece i, of which the first is number t of the block.
  TSRI_DEVICE_MEMBER void pass_over(const Args &args, int i, int32_t count, uint32_t t, int thread) {
    if (thread % kWarpgroup != 0) return;
    for (; count > 0; --count, ++t) {
      const uint32_t slot = P::template slot_of<P::kRing>(t), parity = P::template parity_of<P::kRing>(t);
      if (thread == static_cast<int>(t % P::kGroups) * kWarpgroup) ask_ahead(args, i, count, kAhead, t + kAhead);
      phase_wait(P::kFullK + 8 * slot, parity); // in step with those that read it
      phase_arrive(P::kEmptyK + 8 * slot);
      phase_wait(P::kFullV + 8 * slot, parity);
      phase_arrive(P::kEmptyV + 8 * slot);
    }
  }

  TSRI_DEVICE_MEMBER void run(const Args &args) {
    const float unit = P::unit_of(args);
    if (P::items() == 0) return;
    int thread = thread_index();
    State state;
    Scores s;
    if (thread == 0)
      for (int n = 0; n < kAhead; ++n) ask_ahead(args, 0, P::item_at(0).tiles.count, n, static_cast<uint32_t>(n));
    Own::ask_for_queries(args, 0, thread);
    Own::ask_for_queries(args, 1, thread);
    uint32_t t = 0; // number of the tile
    int i = 0;
    int32_t left = P::item_at(0).tiles.count, over = unseen(P::item_at(0), thread / kWarpgroup);
    phase_wait(P::kFullQ + 8 * P::q_buffer(0, thread / kWarpgroup), 0);
    P::multiply_keys(s, 0, 0, thread / kWarpgroup);
    P::start_state(state);
    typename P::FullTiles full = P::start_rows(P::item_at(0));
    TSRI_NO_UNROLL
    for (;;) {
      keep_register(thread);
      const auto first = [&] { return left == P::item_at(i).tiles.count; };
      if (i > 0 && first()) Serial::ask_for_queries(args, i, thread);
      if (thread == static_cast<int>(t % P::kGroups) * kWarpgroup) ask_ahead(args, i, left, kAhead, t + kAhead);
      matrix_wait<0>();
      matrix_pin(s[0]);
      release(P::kEmptyK + 8 * P::template slot_of<P::kRing>(t), thread);
      float alpha[2];
      const int32_t key0 = P::first_key(P::item_at(i), left);
      if (!P::whole(full, left)) Rows::mask_scores(s, P::item_at(i).prefix, key0);
      if (first())
        Maxima<U, Rows>::begin(state, s, unit);
      else if (Maxima<U, Rows>::move(state, s, unit, alpha))
        Rows::rescale(state, alpha);
      const uint32_t slot = P::template slot_of<P::kRing>(t), v_tile = P::kV + slot * P::kBytesV;
      phase_wait(P::kFullV + 8 * slot, P::template parity_of<P::kRing>(t));
      if (left == 1 + over && P::item_at(i).keys - key0 < P::kTileK)
        EngineLoads<P>::clear_tail(v_tile, P::item_at(i).keys - key0, thread / kWarpgroup);
      Serial::fold_values(state, s, unit, matrix_tile(v_tile, P::kPieceK), first());
      matrix_wait<0>();
      matrix_pin(state.out[0]);
      release(P::kEmptyV + 8 * P::template slot_of<P::kRing>(t), thread);
      const bool last = left == 1 + over;
      ++t;
      if (last) {
        pass_over(args, i, over, t, thread);
        // Whose phase lies further back than the next wait tells apart may not run ahead of the thread that waited.
        if (over >= static_cast<int32_t>(P::kRing)) sync_group(P::kGroupBarrier + thread / kWarpgroup, kWarpgroup);
        t += static_cast<uint32_t>(over);
      }
      if (last && i + 1 == P::items()) break;
      if (last)
        phase_wait(P::kFullQ + 8 * P::q_buffer(i + 1, thread / kWarpgroup),
                   static_cast<uint32_t>(i + 1) / P::kBuffersQ & 1);
      P::multiply_keys(s, i + last, t, thread / kWarpgroup);
      --left;
      if (last) {
        P::finish(args, state, P::item_at(i), unit, P::buffer_o(i));
        ++i;
        left = P::item_at(i).tiles.count;
        over = unseen(P::item_at(i), thread / kWarpgroup);
        state.l[0] = state.l[1] = Softmax::start_sum();
        full = P::start_rows(P::item_at(i));
      }
    }
    ForwardParts<P>::finish(args, state, unit);
    if (fresh_thread_index() % 32 == 0) bulk_wait_read(); // shared memory has to stay until then
  }
};

} // namespace gpu
} // namespace tessera

#endif // TESSERA_BACKENDS_CUDA_SM90_SHARED_SERIAL_HPP_
