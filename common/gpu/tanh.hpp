// SPDX-License-Identifier: Apache-2.0
//
// tanh in float32 from 2^x alone, for devices whose compiler has no tanhf of its own: an odd polynomial
// (Chebyshev fit, 1e-8) near zero, where 1 - 2 / (e^2x + 1) would cancel. Within 3 ulp of tanh.
#ifndef TESSERA_COMMON_GPU_TANH_HPP_
#define TESSERA_COMMON_GPU_TANH_HPP_

#include "common/gpu/platform.hpp"

namespace tessera {
namespace gpu {

TSRI_DEVICE float tanh_by_exp2(float x) {
  const float a = x < 0 ? -x : x;
  if (a < 0.55f) {
    const float y = x * x;
    float p = multiply_add(-0.00633781124f, y, 0.021153722f);
    p = multiply_add(p, y, -0.0538821109f);
    p = multiply_add(p, y, 0.133329645f);
    p = multiply_add(p, y, -0.333333313f);
    return multiply_add(x * y, p, x);
  }
  const float r = 1.0f - 2.0f / (exp2_of(a * 2.88539008f) + 1.0f);
  return x < 0 ? -r : r;
}

} // namespace gpu
} // namespace tessera

#endif // TESSERA_COMMON_GPU_TANH_HPP_
