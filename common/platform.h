// SPDX-License-Identifier: Apache-2.0
//
// The only compiler switch in common/: what an inline function is on hosts and devices. Everything
// here is plain C11 and C++17 that GPU compilers accept too.
#ifndef TESSERA_COMMON_PLATFORM_H_
#define TESSERA_COMMON_PLATFORM_H_

#if defined(__HIP__)
/* By attribute: kernels are compiled without a vendor's headers. */
#define TSRI_INLINE static inline __attribute__((host, device, always_inline, unused))
#elif defined(__CUDACC__)
#define TSRI_INLINE static __host__ __device__ __forceinline__
#elif defined(__GNUC__)
/* unused: a header offers more than one translation unit needs. */
#define TSRI_INLINE static inline __attribute__((unused))
#else
#define TSRI_INLINE static inline
#endif

/* A member function or template that must vanish into its caller. */
#if defined(__HIP__)
#define TSRI_FORCE_INLINE inline __attribute__((host, device, always_inline))
#elif defined(__CUDACC__)
#define TSRI_FORCE_INLINE __host__ __device__ __forceinline__
#elif defined(__GNUC__)
#define TSRI_FORCE_INLINE inline __attribute__((always_inline))
#else
#define TSRI_FORCE_INLINE inline
#endif

#if defined(__GNUC__) || defined(__CUDACC__)
#define TSRI_RESTRICT __restrict__
#else
#define TSRI_RESTRICT
#endif

#endif  // TESSERA_COMMON_PLATFORM_H_
