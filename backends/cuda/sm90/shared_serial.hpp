// SPDX-License-Identifier: Apache-2.0
//
// The loop of serial.hpp for four warpgroups of a block that share tiles of keys and values: L2 gives a tile once for
// 256 queries instead of for 64, and it is there ahead of time. Queries and O are each warpgroup's own. There is no
// warp that loads, whose registers would be missing: for every tile another warpgroup asks, some tiles ahead, when all
// four have read what its buffer held.
#ifndef TESSERA_BACKENDS_CUDA_SM90_SHARED_SERIAL_HPP_
#define TESSERA_BACKENDS_CUDA_SM90_SHARED_SERIAL_HPP_

#include "backends/cuda/sm90/instructions.hpp"
#include "backends/cuda/sm90/maxima.hpp"
#include "backends/cuda/sm90/own_loads.hpp"
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

  // Tile number t of the block, the n-th of piece i, or if that has fewer, of what follows it; by one thread.
  TSRI_DEVICE_MEMBER void ask_for(const Args &args, int i, int32_t n, uint32_t t) {
    for (int32_t count; n >= (count = P::item_at(i).tiles.count); n -= count)
      if (++i == P::items()) return;
    const typename Own::Box box = Own::box_of(P::item_at(i), n);
    const uint32_t slot = P::template slot_of<P::kRing>(t), parity = P::template parity_of<P::kRing>(t) ^ 1;
    phase_wait(P::kEmptyK + 8 * slot, parity);
    Own::template ask_box<false>(args, box, slot, 0);
    phase_wait(P::kEmptyV + 8 * slot, parity);
    Own::template ask_box<true>(args, box, slot, 0);
  }

  TSRI_DEVICE_MEMBER void release(uint32_t empty, int thread) {
    if (thread % kWarpgroup == 0) phase_arrive(empty);
  }

  // How many of an item's tiles of keys there are up to the last that a row of the warpgroup sees; at least one. To
  // shared memory, for the warp that finds it.
  TSRI_DEVICE_MEMBER int32_t &end() {
    return shared_at<int32_t>(P::kEnds + static_cast<uint32_t>(thread_index()) / 32 * 4);
  }
  TSRI_DEVICE_MEMBER void find_end(const WorkItem &item, int group) {
    int32_t seen = item.tiles.count;
    if (!item.whole) {
      const int32_t i = smaller(item.i0 + 64 * group + 63, item.queries - 1);
      const RowBand last = work_band(item, i); // of rows in order the last one sees furthest
      seen = item.tiles.head;
      if (last.lo < last.hi) seen += larger(ceil_div(last.hi, P::kTileK) - item.tiles.band, 0);
      seen = smaller(larger(seen, 1), item.tiles.count);
    }
    sync_wave(); // the last item's is no longer read
    if (thread_index() % 32 == 0) end() = seen;
    sync_wave();
  }
  // Passes over tiles n and on of piece i, of which n is number t of the block; by one thread.
  TSRI_DEVICE_MEMBER void pass_over(const Args &args, int i, int32_t n, uint32_t t, int group) {
    for (; n < P::item_at(i).tiles.count; ++n, ++t) {
      const uint32_t slot = P::template slot_of<P::kRing>(t), parity = P::template parity_of<P::kRing>(t);
      if (t % P::kGroups == static_cast<uint32_t>(group)) ask_for(args, i, n + kAhead, t + kAhead);
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
      for (int n = 0; n < kAhead; ++n) ask_for(args, 0, n, static_cast<uint32_t>(n));
    Own::ask_for_queries(args, 0, thread);
    Own::ask_for_queries(args, 1, thread);
    uint32_t t = 0; // number of the tile: n of piece i
    int32_t n = 0;
    int i = 0;
    find_end(P::item_at(0), thread / kWarpgroup);
    phase_wait(P::kFullQ + 8 * P::q_buffer(0, thread / kWarpgroup), 0);
    P::multiply_keys(s, 0, 0, thread / kWarpgroup);
    P::start_state(state);
    typename P::FullTiles full = P::start_rows(P::item_at(0));
    TSRI_NO_UNROLL
    for (;;) {
      keep_register(thread);
      if (i > 0 && n == 0) Serial::ask_for_queries(args, i, thread);
      if (thread == static_cast<int>(t % P::kGroups) * kWarpgroup) ask_for(args, i, n + kAhead, t + kAhead);
      matrix_wait<0>();
      matrix_pin(s[0]);
      release(P::kEmptyK + 8 * P::template slot_of<P::kRing>(t), thread);
      float alpha[2];
      const int32_t key0 = KeyTiles::at(P::item_at(i).tiles, n) * P::kTileK;
      if (!P::whole(full, P::item_at(i).tiles.count - n)) Rows::mask_scores(s, P::item_at(i).prefix, key0);
      if (n == 0)
        Maxima<U, Rows>::begin(state, s, unit);
      else if (Maxima<U, Rows>::move(state, s, unit, alpha))
        Rows::rescale(state, alpha);
      const uint32_t slot = P::template slot_of<P::kRing>(t), v_tile = P::kV + slot * P::kBytesV;
      phase_wait(P::kFullV + 8 * slot, P::template parity_of<P::kRing>(t));
      if (P::item_at(i).keys - key0 < P::kTileK) P::clear_tail(v_tile, P::item_at(i).keys - key0, thread / kWarpgroup);
      Serial::fold_values(state, s, unit, matrix_tile(v_tile, P::kPieceK), n == 0);
      matrix_wait<0>();
      matrix_pin(state.out[0]);
      release(P::kEmptyV + 8 * P::template slot_of<P::kRing>(t), thread);
      ++n;
      ++t;
      const bool last = n == end();
      if (last) {
        const int32_t over = P::item_at(i).tiles.count - n;
        if (over > 0 && thread % kWarpgroup == 0) pass_over(args, i, n, t, thread / kWarpgroup);
        if (i + 1 == P::items()) break;
        t += static_cast<uint32_t>(over);
        phase_wait(P::kFullQ + 8 * P::q_buffer(i + 1, thread / kWarpgroup),
                   static_cast<uint32_t>(i + 1) / P::kBuffersQ & 1);
      }
      P::multiply_keys(s, i + last, t, thread / kWarpgroup);
      if (last) {
        P::finish(args, state, P::item_at(i), unit, P::buffer_o(i));
        ++i;
        n = 0;
        find_end(P::item_at(i), thread / kWarpgroup);
        state.l[0] = state.l[1] = Softmax::start_sum();
        full = P::start_rows(P::item_at(i));
      }
    }
    P::finish(args, state, P::item_at(i), unit, P::buffer_o(i));
    if (fresh_thread_index() % 32 == 0) bulk_wait_read(); // shared memory has to stay until then
  }
};

} // namespace gpu
} // namespace tessera

#endif // TESSERA_BACKENDS_CUDA_SM90_SHARED_SERIAL_HPP_
