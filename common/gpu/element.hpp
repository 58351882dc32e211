// SPDX-License-Identifier: Apache-2.0
//
// Element types of Q, K, V and the gradients on a device: their size, how two floats become one word
// of 16-bit values, and stores of any of them. Sums are float32 whatever the element.
#ifndef TESSERA_COMMON_GPU_ELEMENT_HPP_
#define TESSERA_COMMON_GPU_ELEMENT_HPP_

#include "common/gpu/platform.hpp"
#include "tessera/tessera.h"

namespace tessera {
namespace gpu {

struct Half {
  static constexpr tsr_dtype kDtype = TSR_DTYPE_F16;
  uint16_t bits;
  TSRI_DEVICE_MEMBER uint32_t pack(float lo, float hi) { return pack_f16(lo, hi); }
  // The same where a NaN has the usual bits (quiet, nothing in the low half) or does not matter.
  TSRI_DEVICE_MEMBER uint32_t pack_numbers(float lo, float hi) { return pack_f16(lo, hi); }
  TSRI_DEVICE_MEMBER float low(uint32_t w) { return f16_to_float(static_cast<uint16_t>(w)); }
  TSRI_DEVICE_MEMBER float high(uint32_t w) { return f16_to_float(static_cast<uint16_t>(w >> 16)); }
};

struct BFloat16 {
  static constexpr tsr_dtype kDtype = TSR_DTYPE_BF16;
  uint16_t bits;
  TSRI_DEVICE_MEMBER uint32_t pack(float lo, float hi) { return pack_bf16(lo, hi); }
  TSRI_DEVICE_MEMBER uint32_t pack_numbers(float lo, float hi) { return pack_numbers_bf16(lo, hi); }
  TSRI_DEVICE_MEMBER float low(uint32_t w) { return bits_float(w << 16); }
  TSRI_DEVICE_MEMBER float high(uint32_t w) { return bits_float(w & 0xffff0000u); }
};

template <class E>
struct DtypeOf {
  static constexpr tsr_dtype value = E::kDtype;
};
template <>
struct DtypeOf<float> {
  static constexpr tsr_dtype value = TSR_DTYPE_F32;
};

// Element number index of an array of float32, float16 or bfloat16.
TSRI_DEVICE float load_element(tsr_dtype dtype, const void *base, int64_t index) {
  if (dtype == TSR_DTYPE_F32) return load_global<float>(static_cast<const float *>(base) + index);
  const uint16_t bits = load_global<uint16_t>(static_cast<const uint16_t *>(base) + index);
  return dtype == TSR_DTYPE_F16 ? f16_to_float(bits) : bits_float(static_cast<uint32_t>(bits) << 16);
}

TSRI_DEVICE void store_element(tsr_dtype dtype, void *base, int64_t index, float x) {
  if (dtype == TSR_DTYPE_F32)
    static_cast<float *>(base)[index] = x;
  else
    static_cast<uint16_t *>(base)[index] =
        static_cast<uint16_t>(dtype == TSR_DTYPE_F16 ? pack_f16(x, 0) : pack_bf16(x, 0));
}

} // namespace gpu
} // namespace tessera

#endif // TESSERA_COMMON_GPU_ELEMENT_HPP_
