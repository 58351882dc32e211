// SPDX-License-Identifier: Apache-2.0
//
// The end of a piece of forward.hpp whose successor has begun: O stays in its accumulators while the first scores of the
// next piece become probabilities beside its own last product; its maxima and sums have made room for the next ones.
// Three warpgroups, and score steps, have no registers for it.
#ifndef TESSERA_BACKENDS_CUDA_SM90_LATE_END_HPP_
#define TESSERA_BACKENDS_CUDA_SM90_LATE_END_HPP_

#include "backends/cuda/sm90/work.hpp"
#include "common/gpu/product.hpp"
#include "common/gpu/row_policy.hpp"

namespace tessera {
namespace gpu {

// P: the program, an EngineForward.
template <class P>
struct LateEnd {
  using State = typename P::State;
  float m[2], l[2];

  TSRI_DEVICE_MEMBER void keep(LateEnd &end, State &state) {
    TSRI_UNROLL
    for (int r = 0; r < 2; ++r) {
      end.m[r] = state.m[r], state.m[r] = Softmax::start_max();
      end.l[r] = state.l[r], state.l[r] = Softmax::start_sum();
    }
  }

  // Of piece i.
  TSRI_DEVICE_MEMBER void finish(const LateEnd &end, const EngineForwardArgs &args, State &state, int i, float unit) {
    const float m[2] = {state.m[0], state.m[1]}, l[2] = {state.l[0], state.l[1]};
    state.m[0] = end.m[0], state.m[1] = end.m[1], state.l[0] = end.l[0], state.l[1] = end.l[1];
    P::finish(args, state, P::item_at(i), unit, P::buffer_o(i));
    clear<typename P::U>(state.out);
    state.m[0] = m[0], state.m[1] = m[1], state.l[0] = l[0], state.l[1] = l[1];
  }
};

} // namespace gpu
} // namespace tessera

#endif // TESSERA_BACKENDS_CUDA_SM90_LATE_END_HPP_
