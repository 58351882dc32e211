// SPDX-License-Identifier: Apache-2.0
//
// The loop of forward blocks that are four to a multiprocessor. With four warpgroups beside each other one need not
// have two tiles at a time, whose registers there would be no room for: it makes the scores of a tile, then
// probabilities 16 keys after 16 keys, each of which begins its product with V while the next are made. The scores of
// the next tile are under way while a tile of queries ends.
//
// Keys and values that are all of one tile of queries and the first of the next are loaded once. O leaves by way of
// the buffer that its queries came in.
#ifndef TESSERA_BACKENDS_CUDA_SM90_SERIAL_HPP_
#define TESSERA_BACKENDS_CUDA_SM90_SERIAL_HPP_

#include "backends/cuda/sm90/instructions.hpp"
#include "backends/cuda/sm90/loads.hpp"
#include "backends/cuda/sm90/maxima.hpp"
#include "backends/cuda/sm90/own_loads.hpp"
#include "backends/cuda/sm90/parts.hpp"
#include "backends/cuda/sm90/work.hpp"

namespace tessera {
namespace gpu {

// P: the program, EngineForward of one warpgroup that loads for itself.
template <class P>
struct SerialLoop {
  using Args = EngineForwardArgs;
  using U = typename P::U;
  using E = typename U::Element;
  using Rows = typename P::Rows;
  using State = typename P::State;
  using Scores = typename P::Scores;
  using Own = OwnLoads<P>;
  static_assert(P::kLoadsItself && P::kBuffersQ == 2, "queries come while those before are multiplied");

  // Probabilities of a tile and their product with its values; first: of the first tile of a piece.
  TSRI_DEVICE_MEMBER void fold_values(State &state, Scores &s, float unit, MatrixTile v, bool first) {
    float minus_ready[2], more[2] = {0.0f, 0.0f}; // two chains of sums
    v = matrix_fresh(v);
    TSRI_UNROLL
    for (int r = 0; r < 2; ++r) minus_ready[r] = -Softmax::ready_reference(unit, state.m[r]);
    matrix_pin(state.out[0]);
    TSRI_UNROLL
    for (int c = 0; c < Rows::kCon; ++c) {
      float(&x)[8] = s[0][c].x;
      uint32_t p[4];
      TSRI_UNROLL
      for (int e = 0; e < 8; ++e) {
        const int r = U::slot(e);
        x[e] = Softmax::prob_negated(unit, x[e], minus_ready[r]);
        (e & 1 ? more : state.l)[r] += x[e];
      }
      TSRI_UNROLL
      for (int r = 0; r < 4; ++r) p[r] = E::pack(x[2 * r], x[2 * r + 1]);
      matrix_begin();
      matrix_product_registers<true>(E{}, state.out[0], p, matrix_at(v, static_cast<uint32_t>(c) * 2048),
                                     c > 0 || !first);
      matrix_commit();
      // Sums in time: the assembler would keep what they are made of instead.
      if (c % 2 == 1 && c + 1 < Rows::kCon) matrix_after(state.l[0] + state.l[1] + more[0] + more[1]);
    }
    TSRI_UNROLL
    for (int r = 0; r < 2; ++r) state.l[r] += more[r];
  }

  // Room for queries: buffers of the piece before i are free when every warp's part of O has been read.
  TSRI_DEVICE_MEMBER void ask_for_queries(const Args &args, int i, int thread) {
    const uint32_t buffer = P::q_buffer(i - 1, thread / kWarpgroup);
    if (thread % 32 == 0) {
      bulk_wait_read();
      phase_arrive(P::kEmptyQ + 8 * buffer);
    }
    if (thread % kWarpgroup == 0 && i + 1 < P::items())
      phase_wait(P::kEmptyQ + 8 * buffer, static_cast<uint32_t>(i - 1) / P::kBuffersQ & 1);
    Own::ask_for_queries(args, i + 1, thread);
  }

  // The tile after the one of piece i with which `left` tiles are left; the same again where a piece sees one tile of
  // keys and the next begins with it. Found twice, for keys and for values: no register is free to keep it among scores.
  struct Next {
    typename Own::Box box;
    bool again;
  };
  TSRI_DEVICE_MEMBER Next next_box(int i, int32_t left) {
    const bool last = left == 1;
    if (last && i + 1 == P::items()) return Next{{0, -1, 0}, false};
    const WorkItem &now = P::item_at(i), &item = P::item_at(i + last);
    const typename Own::Box box = Own::box_of(item, last ? 0 : item.tiles.count - left + 1);
    if (!last || now.tiles.count > 1) return Next{box, false};
    const typename Own::Box same = Own::box_of(now, 0);
    return Next{box, box.row == same.row && box.head == same.head && box.batch == same.batch};
  }
  template <bool kValues>
  TSRI_DEVICE_MEMBER void ask(const Args &args, const Next &next, int thread) {
    if (!next.again) Own::template ask_box<kValues>(args, next.box, 0, thread);
  }

  TSRI_DEVICE_MEMBER void run(const Args &args) {
    static_assert(P::kRing == 1, "one buffer of keys and of values");
    const float unit = P::unit_of(args);
    if (P::items() == 0) return;
    int thread = thread_index();
    State state;
    Scores s;
    Own::ask_for_queries(args, 0, thread);
    Own::template ask_box<false>(args, Own::box_of(P::item_at(0), 0), 0, thread);
    Own::template ask_box<true>(args, Own::box_of(P::item_at(0), 0), 0, thread);
    Own::ask_for_queries(args, 1, thread);
    uint32_t t = 0; // number of the tile among those that came from memory
    int i = 0;
    int32_t left = P::item_at(0).tiles.count;
    phase_wait(P::kFullQ, 0);
    P::multiply_keys(s, 0, 0, 0);
    P::start_state(state);
    typename P::FullTiles full = P::start_rows(P::item_at(0));
    TSRI_NO_UNROLL
    for (;;) {
      keep_register(thread);
      const auto first = [&] { return left == P::item_at(i).tiles.count; };
      const Next keys = next_box(i, left);
      if (i > 0 && first()) ask_for_queries(args, i, thread);
      matrix_wait<0>();
      matrix_pin(s[0]);
      ask<false>(args, keys, thread);
      float alpha[2];
      const int32_t key0 = P::first_key(P::item_at(i), left);
      if (!P::whole(full, left)) Rows::mask_scores(s, P::item_at(i).prefix, key0);
      if (first())
        Maxima<U, Rows>::begin(state, s, unit);
      else if (Maxima<U, Rows>::move(state, s, unit, alpha))
        Rows::rescale(state, alpha);
      phase_wait(P::kFullV, t & 1);
      if (left == 1 && P::item_at(i).keys - key0 < P::kTileK)
        EngineLoads<P>::clear_tail(P::kV, P::item_at(i).keys - key0, 0);
      fold_values(state, s, unit, matrix_tile(P::kV, P::kPieceK), first());
      const Next values = next_box(i, left);
      matrix_wait<0>();
      matrix_pin(state.out[0]);
      ask<true>(args, values, thread);
      const bool last = left == 1;
      if (last && i + 1 == P::items()) break;
      t += !values.again;
      if (last)
        phase_wait(P::kFullQ + 8 * P::q_buffer(i + 1, 0), static_cast<uint32_t>(i + 1) / P::kBuffersQ & 1);
      P::multiply_keys(s, i + last, t, 0);
      --left;
      if (last) {
        P::finish(args, state, P::item_at(i), unit, P::buffer_o(i));
        ++i;
        left = P::item_at(i).tiles.count;
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

#endif // TESSERA_BACKENDS_CUDA_SM90_SERIAL_HPP_
