// SPDX-License-Identifier: Apache-2.0
//
// AMD's spelling of platform.hpp, for clang's amdgcn target without a vendor's headers or libraries:
// attributes and builtins only, so that one text serves gfx9 (waves of 64 lanes), gfx11 and gfx12 (32).
// Copies to shared memory go through registers and are done when the call returns; the barriers of the
// tile programs are therefore enough. Kernels use no hidden arguments.
#ifndef TESSERA_COMMON_GPU_PLATFORM_AMD_HPP_
#define TESSERA_COMMON_GPU_PLATFORM_AMD_HPP_

#include <stdint.h>

#include "common/dtype.h"

#define TSRI_DEVICE static inline __attribute__((device, always_inline, unused))
#define TSRI_DEVICE_MEMBER static inline __attribute__((device, always_inline))
#define TSRI_HOST_DEVICE __attribute__((host, device))
#define TSRI_UNROLL _Pragma("unroll")
#define TSRI_NO_UNROLL _Pragma("unroll 1")

// Waves that a SIMD must have room for. gfx9: 2, that is 256 registers; with more, the compiler parks
// accumulators in the second half of the register file and moves them for every use. gfx11, gfx12: 6,
// that is 240; left to itself it fetches operands so far ahead that it spills.
#define TSRI_AMD_WAVES (__AMDGCN_WAVEFRONT_SIZE__ == 64 ? 2 : 6)

// Defines a kernel that runs Config::block(args). Arguments are read where the launch put them: a
// parameter whose address is taken could become a copy in scratch memory. 64 KiB of shared memory are
// what a block of any of these devices can have.
#define TSRI_GPU_KERNEL(symbol, Config, Args)                                                  \
  static_assert(Config::kSharedBytes <= 65536, "shared memory of a block");                    \
  extern "C" __attribute__((global, amdgpu_waves_per_eu(TSRI_AMD_WAVES),                       \
                            amdgpu_flat_work_group_size(Config::kThreads, Config::kThreads)))  \
  void symbol(const Args) {                                                                    \
    Config::block(*(const Args *)__builtin_amdgcn_kernarg_segment_ptr());                      \
  }

namespace tessera {
namespace gpu {

// 16 and 8 bytes as one access; structs would be taken apart, or go through scratch.
typedef uint32_t CopyWords __attribute__((ext_vector_type(4)));
// 16 bytes to global memory as one access.
TSRI_DEVICE void store_chunk(void *to, const uint32_t (&w)[4]) {
  *reinterpret_cast<__attribute__((address_space(1))) CopyWords *>(reinterpret_cast<uintptr_t>(to)) =
      CopyWords{w[0], w[1], w[2], w[3]};
}
typedef uint32_t Group __attribute__((ext_vector_type(2)));

TSRI_DEVICE int thread_index() { return static_cast<int>(__builtin_amdgcn_workitem_id_x()); }
// The same, as a value whose origin the compiler does not know: what is computed from it cannot be moved
// out of a loop.
TSRI_DEVICE int fresh_thread_index() {
  int x = thread_index();
  asm volatile("" : "+v"(x));
  return x;
}
// The same for any value, which stays in its register.
TSRI_DEVICE void keep_register(uint32_t &x) { asm volatile("" : "+v"(x)); }
TSRI_DEVICE int wave_index(int wave) {
  return __builtin_amdgcn_readfirstlane(thread_index() / wave);
}
TSRI_DEVICE uint32_t block_index() { return __builtin_amdgcn_workgroup_id_x(); }
// From the dispatch packet: grid_size_x is in threads, at byte 12, workgroup_size_x at byte 4.
TSRI_DEVICE uint32_t block_count() {
  const unsigned char *packet = (const unsigned char *)__builtin_amdgcn_dispatch_ptr();
  return *reinterpret_cast<const uint32_t *>(packet + 12) /
         *reinterpret_cast<const uint16_t *>(packet + 4);
}

// A kernel's arguments, read again: what a loop takes from them is not kept in scalar registers across it.
template <class T>
TSRI_DEVICE const T &fresh_arguments(const T &args) {
  const __attribute__((address_space(4))) T *p = (const __attribute__((address_space(4))) T *)&args;
  asm volatile("" : "+s"(p));
  return *(const T *)p;
}

// Orders shared memory only: no cache is invalidated. Global memory that threads of a block hand to
// each other needs fence_device() as well.
TSRI_DEVICE void sync_block() {
  __builtin_amdgcn_fence(__ATOMIC_RELEASE, "workgroup", "local");
  __builtin_amdgcn_s_barrier();
  __builtin_amdgcn_fence(__ATOMIC_ACQUIRE, "workgroup", "local");
}
// There are no barriers of a part of a block: all waves call this equally often, so the whole block's
// does.
TSRI_DEVICE void sync_group(int, int) { sync_block(); }
TSRI_DEVICE void sync_wave() {
  __builtin_amdgcn_fence(__ATOMIC_RELEASE, "wavefront", "local");
  __builtin_amdgcn_wave_barrier();
  __builtin_amdgcn_fence(__ATOMIC_ACQUIRE, "wavefront", "local");
}

// By number: a launch says how much shared memory there is, and with a symbol for its begin the compiler would
// add the symbol's 0 to every address.
template <class T>
TSRI_DEVICE T &shared_at(uint32_t offset) {
  return *(T *)(__attribute__((address_space(3))) T *)offset;
}

TSRI_DEVICE uint32_t float_bits(float x) { return __builtin_bit_cast(uint32_t, x); }
TSRI_DEVICE float bits_float(uint32_t x) { return __builtin_bit_cast(float, x); }

// Between lanes by ds_bpermute, which needs no shared memory and works across all lanes of a wave of
// either width; the permlane builtins are moved below branches by clang 19, where lanes may be off.
TSRI_DEVICE int lane_index() { return thread_index() & (__AMDGCN_WAVEFRONT_SIZE__ - 1); }
TSRI_DEVICE uint32_t shuffle(uint32_t v, int lane) {
  return static_cast<uint32_t>(__builtin_amdgcn_ds_bpermute(lane * 4, static_cast<int>(v)));
}
TSRI_DEVICE uint32_t shuffle_xor(uint32_t v, int mask) { return shuffle(v, lane_index() ^ mask); }
TSRI_DEVICE bool any_lane(bool x) {
#if __AMDGCN_WAVEFRONT_SIZE__ == 64
  return __builtin_amdgcn_ballot_w64(x) != 0;
#else
  return __builtin_amdgcn_ballot_w32(x) != 0;
#endif
}
// A value that all lanes of a wave hold, so that branches on it are branches of the wave: matrix
// instructions ignore which lanes are on.
TSRI_DEVICE int32_t uniform(int32_t x) { return __builtin_amdgcn_readfirstlane(x); }
TSRI_DEVICE int64_t uniform(int64_t x) {
  const uint32_t lo = static_cast<uint32_t>(uniform(static_cast<int32_t>(x)));
  return static_cast<int64_t>(static_cast<uint64_t>(uniform(static_cast<int32_t>(x >> 32))) << 32 | lo);
}
TSRI_DEVICE const unsigned char *uniform(const unsigned char *p) {
  return reinterpret_cast<const unsigned char *>(uniform(reinterpret_cast<int64_t>(p)));
}

TSRI_DEVICE float multiply_add(float a, float b, float c) { return __builtin_fmaf(a, b, c); }
TSRI_DEVICE float exp2_of(float x) { return __builtin_amdgcn_exp2f(x); } // v_exp_f32: 1 ulp
TSRI_DEVICE float log_of(float x) { return __builtin_logf(x); } // expanded by the compiler
TSRI_DEVICE float larger_of(float a, float b) { return __builtin_fmaxf(a, b); }

// A result of matrix instructions is made here and not later: clang 19 moves WMMA below a branch where lanes are
// off if nothing else uses what it makes, and WMMA wants all lanes. (MFMA it leaves where it is.)
TSRI_DEVICE void settle(float &x) {
#if defined(__GFX9__)
  (void)x;
#else
  asm volatile("" : "+v"(x));
#endif
}

// Two floats rounded to nearest even into one word, lo in the low half.
TSRI_DEVICE uint32_t round_bf16(float x) { // in the high half
  const uint32_t u = float_bits(x);
  return x != x ? u | 0x400000u : u + 0x7fffu + ((u >> 16) & 1u);
}
TSRI_DEVICE uint32_t pack_bf16(float lo, float hi) {
  return __builtin_amdgcn_perm(round_bf16(hi), round_bf16(lo), 0x07060302u);
}
// The same of numbers that are no NaN, or whose row is one anyhow.
TSRI_DEVICE uint32_t pack_numbers_bf16(float lo, float hi) {
  const uint32_t a = float_bits(lo), b = float_bits(hi);
  return __builtin_amdgcn_perm(b + 0x7fffu + ((b >> 16) & 1u), a + 0x7fffu + ((a >> 16) & 1u), 0x07060302u);
}
// Halves of two words.
TSRI_DEVICE uint32_t low_halves(uint32_t lo, uint32_t hi) { return __builtin_amdgcn_perm(hi, lo, 0x05040100u); }
TSRI_DEVICE uint32_t high_halves(uint32_t lo, uint32_t hi) { return __builtin_amdgcn_perm(hi, lo, 0x07060302u); }
TSRI_DEVICE uint32_t pack_f16(float lo, float hi) {
  const uint32_t low = __builtin_bit_cast(uint16_t, static_cast<_Float16>(lo));
  return low | static_cast<uint32_t>(__builtin_bit_cast(uint16_t, static_cast<_Float16>(hi))) << 16;
}
TSRI_DEVICE float f16_to_float(uint16_t h) {
  return static_cast<float>(__builtin_bit_cast(_Float16, h));
}

// A load of global memory, said to be one: a pointer that came through memory could point anywhere, and
// such a load would be slower and wait for shared memory as well.
template <class T>
TSRI_DEVICE T load_global(const void *p) {
  if constexpr (sizeof(T) == 2) // also a class around 16 bits, which cannot be copied between spaces
    return __builtin_bit_cast(T, *(const __attribute__((address_space(1))) uint16_t *)p);
  else
    return *(const __attribute__((address_space(1))) T *)p;
}

// The same at a base that is uniform and 32 bits that are a lane's: no address of 64 bits a lane.
template <class T>
TSRI_DEVICE T load_lane(const unsigned char *base, uint32_t offset) {
  const __attribute__((address_space(1))) unsigned char *p =
      (const __attribute__((address_space(1))) unsigned char *)base;
  asm("" : "+s"(p)); // or the sum of both would become a lane's address, moved on in every round of a loop
  return *(const __attribute__((address_space(1))) T *)(p + offset);
}

// 16 bytes of global memory into shared memory; zeros, and no access, where valid is false.
TSRI_DEVICE void copy_async(uint32_t offset, const void *source, bool valid) {
  CopyWords x = 0u;
  if (valid) x = load_global<CopyWords>(source);
  shared_at<CopyWords>(offset) = x;
}
TSRI_DEVICE void copy_async(uint32_t offset, const void *source) {
  shared_at<CopyWords>(offset) = load_global<CopyWords>(source);
}
TSRI_DEVICE void copy_commit() {}
template <int kLeft>
TSRI_DEVICE void copy_wait() {}

// The builtin is the instruction; an atomic of the language would be a loop on some of these targets.
TSRI_DEVICE void atomic_add(float *x, float v) {
  __builtin_amdgcn_global_atomic_fadd_f32((__attribute__((address_space(1))) float *)x, v);
}
TSRI_DEVICE void atomic_add_pair(float *x, float lo, float hi) {
  atomic_add(x, lo);
  atomic_add(x + 1, hi);
}
// The same at `bytes` behind a base that is uniform and 32 bits that are a lane's; see load_lane.
TSRI_DEVICE void atomic_add_pair_lane(const unsigned char *base, uint32_t offset, int bytes, float lo, float hi) {
  __attribute__((address_space(1))) char *p = (__attribute__((address_space(1))) char *)base;
  asm("" : "+s"(p));
  __attribute__((address_space(1))) float *to = (__attribute__((address_space(1))) float *)(p + offset + bytes);
  __builtin_amdgcn_global_atomic_fadd_f32(to, lo);
  __builtin_amdgcn_global_atomic_fadd_f32(to + 1, hi);
}
// Who sees what comes after sees what comes before.
TSRI_DEVICE void fence_device() { __builtin_amdgcn_fence(__ATOMIC_ACQ_REL, "agent"); }
// Words that blocks of a launch share. Each access is whole; none is ordered with those of other words.
TSRI_DEVICE void store_word(uint64_t *to, uint64_t x) {
  __hip_atomic_store(to, x, __ATOMIC_RELAXED, __HIP_MEMORY_SCOPE_AGENT);
}
TSRI_DEVICE uint64_t load_word(const uint64_t *from) {
  return __hip_atomic_load(from, __ATOMIC_RELAXED, __HIP_MEMORY_SCOPE_AGENT);
}
// Stores x where `expected` stands.
TSRI_DEVICE void replace_word(uint64_t *at, uint64_t expected, uint64_t x) {
  __hip_atomic_compare_exchange_strong(at, &expected, x, __ATOMIC_RELAXED, __ATOMIC_RELAXED,
                                       __HIP_MEMORY_SCOPE_AGENT);
}
// Adds 1 and returns what was there.
TSRI_DEVICE uint64_t increment_word(uint64_t *at) {
  return __hip_atomic_fetch_add(at, uint64_t{1}, __ATOMIC_RELAXED, __HIP_MEMORY_SCOPE_AGENT);
}
// Launches of a stream do not overlap here.
TSRI_DEVICE void wait_for_earlier() {}
TSRI_DEVICE void release_later() {}

} // namespace gpu
} // namespace tessera

#include "common/gpu/tanh.hpp"

namespace tessera {
namespace gpu {

TSRI_DEVICE float tanh_of(float x) { return tanh_by_exp2(x); }

} // namespace gpu
} // namespace tessera

#endif // TESSERA_COMMON_GPU_PLATFORM_AMD_HPP_
