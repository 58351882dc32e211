// SPDX-License-Identifier: Apache-2.0
//
// The only place that spells out what differs between GPU compilers: who am I, shared memory, barriers,
// shuffles, asynchronous copies, atomics, a few functions of one number. Three spellings: CUDA (nvcc),
// AMD (clang for amdgcn) and the SIMT emulator on a host, under which the tile programs are tested
// without a GPU. Matrix instructions are not here: they belong to the unit of an architecture.
#ifndef TESSERA_COMMON_GPU_PLATFORM_HPP_
#define TESSERA_COMMON_GPU_PLATFORM_HPP_

#include <stdint.h>

#if defined(__CUDACC__)
#define TSRI_GPU_CUDA 1
#elif defined(__AMDGCN__) || defined(__HIP__)
#define TSRI_GPU_AMD 1
#else
#define TSRI_GPU_EMULATED 1
#endif

#if defined(TSRI_GPU_CUDA)
#include "common/gpu/platform_cuda.hpp"
#elif defined(TSRI_GPU_AMD)
#include "common/gpu/platform_amd.hpp"
#else
#include "common/gpu/platform_emulated.hpp"
#endif

namespace tessera {
namespace gpu {

// 16 bytes as one access.
struct alignas(16) Chunk {
  uint32_t w[4];
};

TSRI_DEVICE float infinity() { return __builtin_inff(); }

#if !defined(TSRI_GPU_AMD)
TSRI_DEVICE void settle(float &) {}
#endif

// A value that all lanes of a wave hold, from one lane.
TSRI_DEVICE float shuffle(float v, int lane) {
  return bits_float(shuffle(float_bits(v), lane));
}
TSRI_DEVICE float shuffle_xor(float v, int mask) {
  return bits_float(shuffle_xor(float_bits(v), mask));
}

template <class T>
TSRI_DEVICE T larger(T a, T b) {
  return a > b ? a : b;
}
template <class T>
TSRI_DEVICE T smaller(T a, T b) {
  return a < b ? a : b;
}
TSRI_HOST_DEVICE constexpr int ceil_div(int a, int b) { return (a + b - 1) / b; }
TSRI_HOST_DEVICE constexpr int max_of(int a, int b) { return a > b ? a : b; }
TSRI_HOST_DEVICE constexpr int min_of(int a, int b) { return a < b ? a : b; }

} // namespace gpu
} // namespace tessera

#endif // TESSERA_COMMON_GPU_PLATFORM_HPP_
