// SPDX-License-Identifier: Apache-2.0
//
// float16 and bfloat16 of one word of a register: by the processor where it converts, by
// common/dtype.h where it does not (and under clang, whose macro for one number is not C++).
#ifndef TESSERA_TESTS_AMDGPU_HALF_H_
#define TESSERA_TESTS_AMDGPU_HALF_H_

#include <stdint.h>
#if defined(__F16C__)
  #include <immintrin.h>
#endif

#include "common/dtype.h"

namespace tessera {
namespace amdgpu {

inline uint16_t half_of(float x) { // to nearest even
#if defined(__F16C__) && !defined(__clang__)
  return static_cast<uint16_t>(_cvtss_sh(x, 0));
#else
  return tsri_float_to_f16(x);
#endif
}
inline float float_of_half(uint16_t h) {
#if defined(__F16C__)
  return _cvtsh_ss(h);
#else
  return tsri_f16_to_float(h);
#endif
}
template <int count> // a multiple of 8
inline void floats_of_halves(const uint16_t *from, float *to) {
#if defined(__F16C__)
  for (int l = 0; l < count; l += 8)
    _mm256_storeu_ps(to + l, _mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i *>(from + l))));
#else
  for (int l = 0; l < count; ++l) to[l] = tsri_f16_to_float(from[l]);
#endif
}

} // namespace amdgpu
} // namespace tessera

#endif // TESSERA_TESTS_AMDGPU_HALF_H_
