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

// x, and if it is a NaN the usual one: where pack_numbers would take a NaN of other bits for a number.
#if defined(TSRI_GPU_AMD)
TSRI_DEVICE float plain_nan(float x) { return x == x ? x : __builtin_nanf(""); }
#else
TSRI_DEVICE float plain_nan(float x) { return x; }
#endif

// x, of which the compiler may think that it is false.
#if defined(TSRI_GPU_AMD)
TSRI_DEVICE bool seldom(bool x) { return __builtin_expect(x, 0); }
#else
TSRI_DEVICE bool seldom(bool x) { return x; }
#endif

TSRI_DEVICE float infinity() { return __builtin_inff(); }

#if !defined(TSRI_GPU_AMD)
TSRI_DEVICE void settle(float &) {}
template <class T>
TSRI_DEVICE const T &fresh_arguments(const T &args) { return args; }
TSRI_DEVICE void keep_register(uint32_t &) {}
TSRI_DEVICE uint32_t pack_numbers_bf16(float lo, float hi) { return pack_bf16(lo, hi); }
TSRI_DEVICE uint32_t low_halves(uint32_t lo, uint32_t hi) { return (lo & 0xffffu) | hi << 16; }
TSRI_DEVICE uint32_t high_halves(uint32_t lo, uint32_t hi) { return lo >> 16 | (hi & 0xffff0000u); }
struct alignas(16) CopyWords { // 16 bytes in registers
  uint32_t w[4];
  TSRI_HOST_DEVICE uint32_t &operator[](int i) { return w[i]; }
  TSRI_HOST_DEVICE uint32_t operator[](int i) const { return w[i]; }
};
struct alignas(8) Group { // 8 bytes
  uint32_t w[2];
  TSRI_HOST_DEVICE uint32_t operator[](int i) const { return w[i]; }
};
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
