// SPDX-License-Identifier: Apache-2.0
//
// CUDA's spelling of platform.hpp: intrinsics, and PTX where no intrinsic names the instruction
// (cp.async of sm_80, packed conversions, ex2.approx). Shared memory is addressed by offsets into the
// one dynamic array, so that the compiler sees the address space.
#ifndef TESSERA_COMMON_GPU_PLATFORM_CUDA_HPP_
#define TESSERA_COMMON_GPU_PLATFORM_CUDA_HPP_

#include <stdint.h>

#include "common/dtype.h"

#define TSRI_DEVICE static __device__ __forceinline__
#define TSRI_DEVICE_MEMBER static __device__ __forceinline__
#define TSRI_HOST_DEVICE __host__ __device__
#define TSRI_UNROLL _Pragma("unroll")
#define TSRI_NO_UNROLL _Pragma("unroll 1")

// Defines a kernel that runs Config::block(args); symbol is its handle.
#define TSRI_GPU_KERNEL(symbol, Config, Args) TSRI_GPU_KERNEL_BESIDE(symbol, Config, Args, Config)
// The same beside a program without which it is not selected.
#define TSRI_GPU_KERNEL_BESIDE(symbol, Config, Args, Main)                         \
  extern "C" __global__ void __launch_bounds__(Config::kThreads, Config::kMinBlocks) \
      symbol(const __grid_constant__ Args args) {                                  \
    if constexpr (Main::kSharedBytes <= tessera::gpu::kMostSharedBytes) Config::block(args); \
  }

namespace tessera {
namespace gpu {

// Of shared memory, that a block has on any device of the architecture: selection refuses what takes more, and no code
// is made of it. TSRI_ONE_PTX: one PTX for all architectures, of which nothing here may know.
// TSRI_PTX_BELOW_90: nor may code that becomes that of a later device when it is loaded.
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ < 900 && !defined(TSRI_ONE_PTX) && !defined(TSRI_PTX_BELOW_90)
constexpr uint32_t kMostSharedBytes = 163 * 1024;
#else
constexpr uint32_t kMostSharedBytes = 227 * 1024;
#endif

extern __shared__ __align__(1024) unsigned char tsri_shared[];

// The index, read again: what is computed from it cannot be moved out of a loop.
TSRI_DEVICE int fresh_thread_index() {
  int x;
  asm volatile("mov.u32 %0, %%tid.x;" : "=r"(x));
  __builtin_assume(x >= 0 && x < 1024);
  return x;
}
// The same for any value, which stays in its register.
TSRI_DEVICE void keep_register(int &x) { asm volatile("" : "+r"(x)); }
#if defined(TSRI_ALWAYS_FRESH) // where accumulators leave no register for what a loop does not change
TSRI_DEVICE int thread_index() { return fresh_thread_index(); }
#else
TSRI_DEVICE int thread_index() { return static_cast<int>(threadIdx.x); }
#endif
TSRI_DEVICE int wave_index(int wave) { return thread_index() / wave; }
TSRI_DEVICE uint32_t block_index() { return blockIdx.x; }
TSRI_DEVICE uint32_t block_count() { return gridDim.x; }

TSRI_DEVICE void sync_block() { __syncthreads(); }
// Barrier of `threads` threads, whole waves, that name the same id, 1 to 15.
TSRI_DEVICE void sync_group(int id, int threads) {
  asm volatile("bar.sync %0, %1;" ::"r"(id), "r"(threads) : "memory");
}
// Arrives at such a barrier and goes on at once; the threads that wait there count it.
TSRI_DEVICE void arrive_group(int id, int threads) {
  asm volatile("bar.arrive %0, %1;" ::"r"(id), "r"(threads) : "memory");
}
TSRI_DEVICE void sync_wave() { __syncwarp(); }

template <class T>
TSRI_DEVICE T &shared_at(uint32_t offset) {
  return *reinterpret_cast<T *>(tsri_shared + offset);
}
TSRI_DEVICE uint32_t shared_address(uint32_t offset) {
  return static_cast<uint32_t>(__cvta_generic_to_shared(tsri_shared)) + offset;
}

TSRI_DEVICE uint32_t float_bits(float x) { return __float_as_uint(x); }
TSRI_DEVICE float bits_float(uint32_t x) { return __uint_as_float(x); }
TSRI_DEVICE uint32_t shuffle(uint32_t v, int lane) { return __shfl_sync(0xffffffffu, v, lane); }
TSRI_DEVICE bool any_lane(bool x) { return __any_sync(0xffffffffu, x); }
// A value that all lanes of a wave hold; some compilers have to be told.
TSRI_DEVICE int32_t uniform(int32_t x) { return x; }
TSRI_DEVICE int64_t uniform(int64_t x) { return x; }
TSRI_DEVICE const unsigned char *uniform(const unsigned char *p) { return p; }
TSRI_DEVICE uint32_t shuffle_xor(uint32_t v, int mask) {
  return __shfl_xor_sync(0xffffffffu, v, mask);
}

TSRI_DEVICE float multiply_add(float a, float b, float c) { return __fmaf_rn(a, b, c); }
TSRI_DEVICE float exp2_of(float x) {
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}
TSRI_DEVICE float log_of(float x) { return logf(x); }
TSRI_DEVICE float tanh_of(float x) { return tanhf(x); }
TSRI_DEVICE float larger_of(float a, float b) { return fmaxf(a, b); }
// 1 / x within 1 ulp; 0 of infinity.
TSRI_DEVICE float inverse_of(float x) {
  float y;
  asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}

// Two floats rounded to nearest even into one word, lo in the low half.
TSRI_DEVICE uint32_t pack_bf16(float lo, float hi) {
  uint32_t r;
  asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(r) : "f"(hi), "f"(lo));
  return r;
}
TSRI_DEVICE uint32_t pack_f16(float lo, float hi) {
  uint32_t r;
  asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(r) : "f"(hi), "f"(lo));
  return r;
}
TSRI_DEVICE float f16_to_float(uint16_t h) {
  float y;
  asm("cvt.f32.f16 %0, %1;" : "=f"(y) : "h"(h));
  return y;
}

// A load of global memory, for compilers that have to be told.
template <class T>
TSRI_DEVICE T load_global(const void *p) {
  return *static_cast<const T *>(p);
}
// The same at a base that all lanes of a wave share and 32 bits that are a lane's.
template <class T>
TSRI_DEVICE T load_lane(const unsigned char *base, uint32_t offset) {
  return load_global<T>(base + offset);
}

// 16 bytes to global memory as one access; the compiler takes structs apart where it sees fit.
TSRI_DEVICE void store_chunk(void *to, const uint32_t (&w)[4]) {
  asm volatile("st.global.v4.b32 [%0], {%1, %2, %3, %4};" ::"l"(to), "r"(w[0]), "r"(w[1]), "r"(w[2]), "r"(w[3])
               : "memory");
}

// 16 bytes of global memory as one access, started where it stands.
TSRI_DEVICE void fetch_chunk(uint32_t (&w)[4], const void *from) {
  asm volatile("ld.global.v4.b32 {%0, %1, %2, %3}, [%4];"
               : "=r"(w[0]), "=r"(w[1]), "=r"(w[2]), "=r"(w[3])
               : "l"(from));
}

// 16 bytes of global memory into shared memory; zeros, and no access, where valid is false.
TSRI_DEVICE void copy_async(uint32_t offset, const void *source, bool valid) {
  const int bytes = valid ? 16 : 0;
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(shared_address(offset)),
               "l"(source), "r"(bytes)
               : "memory");
}
TSRI_DEVICE void copy_commit() { asm volatile("cp.async.commit_group;" ::: "memory"); }
template <int kLeft>
TSRI_DEVICE void copy_wait() {
  asm volatile("cp.async.wait_group %0;" ::"n"(kLeft) : "memory");
}

TSRI_DEVICE void atomic_add(float *x, float v) { atomicAdd(x, v); }
#if !defined(TSRI_ONE_PTX)
// Two neighbours, the first at a multiple of 8 bytes.
TSRI_DEVICE void atomic_add_pair(float *x, float lo, float hi) {
#if __CUDA_ARCH__ >= 900
  asm volatile("red.global.add.v2.f32 [%0], {%1, %2};" ::"l"(x), "f"(lo), "f"(hi) : "memory");
#else
  atomicAdd(x, lo);
  atomicAdd(x + 1, hi);
#endif
}
// Four neighbours, the first at a multiple of 16 bytes.
TSRI_DEVICE void atomic_add_four(float *x, const float *v) {
#if __CUDA_ARCH__ >= 900
  asm volatile("red.global.add.v4.f32 [%0], {%1, %2, %3, %4};" ::"l"(x), "f"(v[0]), "f"(v[1]), "f"(v[2]), "f"(v[3])
               : "memory");
#else
  for (int i = 0; i < 4; ++i) atomicAdd(x + i, v[i]);
#endif
}
// The same at `bytes` behind a base that all lanes of a wave share and 32 bits that are a lane's.
TSRI_DEVICE void atomic_add_pair_lane(const unsigned char *base, uint32_t offset, int bytes, float lo, float hi) {
  atomic_add_pair(reinterpret_cast<float *>(const_cast<unsigned char *>(base) + offset + bytes), lo, hi);
}
#endif
// Who sees what comes after sees what comes before.
TSRI_DEVICE void fence_device() { asm volatile("fence.acq_rel.gpu;" ::: "memory"); }
// Words that blocks of a launch share. Each access is whole; none is ordered with those of other words.
TSRI_DEVICE void store_word(uint64_t *to, uint64_t x) {
  asm volatile("st.relaxed.gpu.global.u64 [%0], %1;" ::"l"(to), "l"(x) : "memory");
}
TSRI_DEVICE uint64_t load_word(const uint64_t *from) {
  uint64_t x;
  asm volatile("ld.relaxed.gpu.global.u64 %0, [%1];" : "=l"(x) : "l"(from) : "memory");
  return x;
}
// Stores x where `expected` stands.
TSRI_DEVICE void replace_word(uint64_t *at, uint64_t expected, uint64_t x) {
  atomicCAS(reinterpret_cast<unsigned long long *>(at), static_cast<unsigned long long>(expected),
            static_cast<unsigned long long>(x));
}
// Adds x, or 1, and returns what was there.
TSRI_DEVICE uint64_t add_word(uint64_t *at, uint64_t x) {
  return atomicAdd(reinterpret_cast<unsigned long long *>(at), static_cast<unsigned long long>(x));
}
TSRI_DEVICE uint64_t increment_word(uint64_t *at) { return add_word(at, 1); }

#if !defined(TSRI_ONE_PTX)
// Blocks may start before what precedes the launch in its stream is done (Launch::early). Waits for that,
// every thread for itself; nothing of global memory may be read or written before. A block that never
// waits would let its launch count as done too soon.
TSRI_DEVICE void wait_for_earlier() {
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}
// Lets blocks of the next launch start in what room this one leaves.
TSRI_DEVICE void release_later() {
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
#endif
}
#endif

} // namespace gpu
} // namespace tessera

#endif // TESSERA_COMMON_GPU_PLATFORM_CUDA_HPP_
