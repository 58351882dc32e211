// SPDX-License-Identifier: Apache-2.0
//
// The emulator's spelling of platform.hpp: ordinary C++ and the meetings of emulator.hpp.
#ifndef TESSERA_COMMON_GPU_PLATFORM_EMULATED_HPP_
#define TESSERA_COMMON_GPU_PLATFORM_EMULATED_HPP_

#include <math.h>
#include <stdint.h>
#include <string.h>

#include "common/dtype.h"
#include "common/gpu/emulator.hpp"

#define TSRI_DEVICE static inline __attribute__((unused))
#define TSRI_DEVICE_MEMBER static inline
#define TSRI_HOST_DEVICE
#define TSRI_UNROLL
#define TSRI_NO_UNROLL

#define TSRI_GPU_KERNEL(symbol, Config, Args)                \
  extern "C" void symbol(const void *args);                  \
  extern "C" void symbol(const void *args) {                 \
    Config::block(*static_cast<const Args *>(args));         \
  }
#define TSRI_GPU_KERNEL_BESIDE(symbol, Config, Args, Main) TSRI_GPU_KERNEL(symbol, Config, Args)

namespace tessera {
namespace gpu {

TSRI_DEVICE int thread_index() { return emulated_thread().thread; }
TSRI_DEVICE int fresh_thread_index() { return thread_index(); }
TSRI_DEVICE void keep_register(int &) {}
TSRI_DEVICE int wave_index(int wave) { return thread_index() / wave; }
TSRI_DEVICE uint32_t block_index() { return static_cast<uint32_t>(emulated_thread().block); }
TSRI_DEVICE uint32_t block_count() { return static_cast<uint32_t>(emulated_thread().blocks); }

TSRI_DEVICE void sync_block() { emulated_sync_block(); }
TSRI_DEVICE void sync_group(int id, int threads) { emulated_sync_group(id, threads); }
TSRI_DEVICE void arrive_group(int id, int threads) { emulated_arrive_group(id, threads); }
TSRI_DEVICE void sync_wave() { emulated_meet("wave barrier", nullptr, 0); }

template <class T>
inline T &shared_at(uint32_t offset) {
  return *reinterpret_cast<T *>(emulated_thread().shared + offset);
}

TSRI_DEVICE uint32_t shared_address(uint32_t offset) { return offset; }

TSRI_DEVICE uint32_t float_bits(float x) { return tsri_float_bits(x); }
TSRI_DEVICE float bits_float(uint32_t x) { return tsri_bits_float(x); }

// The words of a lane in what a meeting returned, from one on.
TSRI_DEVICE const unsigned char *met_words(const unsigned char *all, int lane, int word) {
  return all + static_cast<size_t>(lane) * kEmulatedSlot + static_cast<size_t>(word) * 4;
}
TSRI_DEVICE uint32_t met_word(const unsigned char *all, int lane, int word) {
  uint32_t v;
  memcpy(&v, met_words(all, lane, word), 4);
  return v;
}
TSRI_DEVICE int lane_index() { return emulated_thread().thread % emulated_thread().wave; }
TSRI_DEVICE uint32_t shuffle(uint32_t v, int lane) {
  return met_word(emulated_meet("shuffle", &v, 4), lane, 0);
}
TSRI_DEVICE uint32_t shuffle_xor(uint32_t v, int mask) {
  return met_word(emulated_meet("shuffle xor", &v, 4), lane_index() ^ mask, 0);
}

TSRI_DEVICE bool any_lane(bool x) {
  const uint32_t v = x;
  const unsigned char *all = emulated_meet("any lane", &v, 4);
  uint32_t any = 0;
  for (int lane = 0; lane < emulated_thread().wave; ++lane) any |= met_word(all, lane, 0);
  return any != 0;
}
TSRI_DEVICE int32_t uniform(int32_t x) {
  const unsigned char *all = emulated_meet("uniform", &x, 4);
  if (met_word(all, 0, 0) != static_cast<uint32_t>(x))
    emulated_fail("a value that a wave must share differs between its lanes");
  return x;
}

TSRI_DEVICE int64_t uniform(int64_t x) {
  uniform(static_cast<int32_t>(x >> 32));
  uniform(static_cast<int32_t>(x));
  return x;
}
TSRI_DEVICE const unsigned char *uniform(const unsigned char *p) {
  uniform(reinterpret_cast<int64_t>(p));
  return p;
}

TSRI_DEVICE float multiply_add(float a, float b, float c) { return fmaf(a, b, c); }
TSRI_DEVICE float exp2_of(float x) { // the device's instruction has no subnormal results
  const float y = exp2f(x);
  return y < 1.17549435e-38f ? 0.0f : y;
}
TSRI_DEVICE float log_of(float x) { return logf(x); }
TSRI_DEVICE float tanh_of(float x) { return tanhf(x); }
TSRI_DEVICE float larger_of(float a, float b) { return fmaxf(a, b); }
TSRI_DEVICE float inverse_of(float x) { return 1.0f / x; }

TSRI_DEVICE uint32_t pack_bf16(float lo, float hi) {
  return static_cast<uint32_t>(tsri_float_to_bf16(lo)) |
         static_cast<uint32_t>(tsri_float_to_bf16(hi)) << 16;
}
TSRI_DEVICE uint32_t pack_f16(float lo, float hi) {
  return static_cast<uint32_t>(tsri_float_to_f16(lo)) |
         static_cast<uint32_t>(tsri_float_to_f16(hi)) << 16;
}
TSRI_DEVICE float f16_to_float(uint16_t h) { return tsri_f16_to_float(h); }

// A load of global memory, for compilers that have to be told.
template <class T>
inline T load_global(const void *p) {
  return *static_cast<const T *>(p);
}
// The same at a base that all lanes of a wave share and 32 bits that are a lane's.
template <class T>
inline T load_lane(const unsigned char *base, uint32_t offset) {
  return load_global<T>(base + offset);
}

TSRI_DEVICE void store_chunk(void *to, const uint32_t (&w)[4]) { memcpy(to, w, sizeof w); }

TSRI_DEVICE void fetch_chunk(uint32_t (&w)[4], const void *from) { memcpy(w, from, sizeof w); }

TSRI_DEVICE void copy_async(uint32_t offset, const void *source, bool valid) {
  emulated_copy(emulated_thread().shared + offset, valid ? source : nullptr, 16);
}
TSRI_DEVICE void copy_commit() { emulated_commit(); }
template <int kLeft>
inline void copy_wait() {
  emulated_wait(kLeft);
}

TSRI_DEVICE void atomic_add(float *x, float v) { *x += v; }
TSRI_DEVICE void atomic_add_pair(float *x, float lo, float hi) {
  x[0] += lo;
  x[1] += hi;
}
TSRI_DEVICE void atomic_add_four(float *x, const float *v) {
  for (int i = 0; i < 4; ++i) atomic_add(x + i, v[i]);
}
// The same at `bytes` behind a base that all lanes of a wave share and 32 bits that are a lane's.
TSRI_DEVICE void atomic_add_pair_lane(const unsigned char *base, uint32_t offset, int bytes, float lo, float hi) {
  atomic_add_pair(reinterpret_cast<float *>(const_cast<unsigned char *>(base) + offset + bytes), lo, hi);
}
TSRI_DEVICE void fence_device() {}
TSRI_DEVICE void store_word(uint64_t *to, uint64_t x) { *to = x; }
TSRI_DEVICE uint64_t load_word(const uint64_t *from) { return *from; }
TSRI_DEVICE void replace_word(uint64_t *at, uint64_t expected, uint64_t x) {
  if (*at == expected) *at = x;
}
TSRI_DEVICE uint64_t add_word(uint64_t *at, uint64_t x) {
  const uint64_t before = *at;
  *at += x;
  return before;
}
TSRI_DEVICE uint64_t increment_word(uint64_t *at) { return add_word(at, 1); }
TSRI_DEVICE void wait_for_earlier() {}
TSRI_DEVICE void release_later() {}

} // namespace gpu
} // namespace tessera

#endif // TESSERA_COMMON_GPU_PLATFORM_EMULATED_HPP_
