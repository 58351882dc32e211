// SPDX-License-Identifier: Apache-2.0
//
// The recurrence of common/online_softmax-inl.h for one float per lane. 2^x is the device's own
// instruction (ex2.approx: 2 ulp); everything else is IEEE.
#ifndef TESSERA_COMMON_GPU_ROW_POLICY_HPP_
#define TESSERA_COMMON_GPU_ROW_POLICY_HPP_

#include "common/gpu/platform.hpp"

namespace tessera {
namespace gpu {

struct LanePolicy {
  using V = float;
  TSRI_DEVICE_MEMBER V set(float x) { return x; }
  TSRI_DEVICE_MEMBER V max(V a, V b) { return larger_of(a, b); }
  TSRI_DEVICE_MEMBER V add(V a, V b) { return a + b; }
  TSRI_DEVICE_MEMBER V sub(V a, V b) { return a - b; }
  TSRI_DEVICE_MEMBER V mul(V a, V b) { return a * b; }
  TSRI_DEVICE_MEMBER V mul_add(V a, V b, V c) { return multiply_add(a, b, c); }
  TSRI_DEVICE_MEMBER V exp2(V x) { return exp2_of(x); }
  TSRI_DEVICE_MEMBER V exp2_product(V x, V unit) { return exp2_of(x * unit); }
  TSRI_DEVICE_MEMBER V log(V x) { return log_of(x); }
  TSRI_DEVICE_MEMBER V div(V a, V b) { return a / b; }
  TSRI_DEVICE_MEMBER V select_le(V a, V b, V yes, V no) { return a <= b ? yes : no; }
  TSRI_DEVICE_MEMBER V select_eq(V a, V b, V yes, V no) { return a == b ? yes : no; }
};

#include "common/online_softmax-inl.h"

using Softmax = OnlineSoftmax<LanePolicy>;

} // namespace gpu
} // namespace tessera

#endif // TESSERA_COMMON_GPU_ROW_POLICY_HPP_
