// SPDX-License-Identifier: Apache-2.0
//
// The fields of a row of kernels.def as types: which unit an architecture has for an element type, and the
// tile programs over it. Included by the generated sources of device code, and by rows.cpp, which takes
// from the same types what the host has to know of a row.
//
// Forward reads V from a transposed tile where a tile has the 32 keys that one needs. Split and backward
// rows, whose tiles are small or are operands of several products, read plain tiles (U::Fresh).
#ifndef TESSERA_BACKENDS_HIP_PROGRAMS_HPP_
#define TESSERA_BACKENDS_HIP_PROGRAMS_HPP_

#include <type_traits>

#include "common/gpu/platform.hpp"
// A compiler for one device knows the instructions of no other.
#if defined(TSRI_GPU_EMULATED) || defined(__GFX9__)
#define TSRI_HIP_GFX9 1
#include "backends/hip/gfx9/unit_f32.hpp"
#endif
#if defined(TSRI_GPU_EMULATED) || defined(__GFX11__) || defined(__GFX12__)
#define TSRI_HIP_GFX11 1
#include "backends/hip/gfx11/unit_f32.hpp"
#endif
#include "common/gpu/backward.hpp"
#include "common/gpu/backward_query.hpp"
#include "common/gpu/backward_stats.hpp"
#include "common/gpu/backward_wide.hpp"
#include "common/gpu/forward.hpp"
#include "common/gpu/split.hpp"

namespace tessera {
namespace hip {

// Values of the columns of kernels.def; arch: the number of a device (gfx942: 0x942), or that without its last two
// digits.
enum Arch : int { gfx9 = 0x9, gfx11 = 0x11, gfx12 = 0x12, gfx90a = 0x90a, gfx942 = 0x942 };
enum Mask : int { edge, paged, any };
using f16 = gpu::Half;
using bf16 = gpu::BFloat16;
using f32 = float;

// kSide: free and con indices of an accumulator.
template <class E, int kArch, int kSide>
struct UnitOf;
#if defined(TSRI_HIP_GFX9)
template <class E, int kSide>
struct UnitOf<E, gfx9, kSide> {
  using type = gpu::Mfma<E, kSide>;
};
template <>
struct UnitOf<float, gfx9, 16> {
  using type = gpu::MfmaF32;
};
template <class E, int kSide>
struct UnitOf<E, gfx942, kSide> {
  using type = gpu::Mfma<E, kSide>;
};
// float16 gradients: probabilities and dS are subnormal below 6e-5, and the 16-bit instructions take that for 0.
template <>
struct UnitOf<gpu::Half, gfx90a, 16> {
  using type = gpu::MfmaFloats<gpu::Half>;
};
#endif
#if defined(TSRI_HIP_GFX11)
template <class E>
struct UnitOf<E, gfx11, 16> {
  using type = gpu::WmmaGfx11<E>;
};
template <>
struct UnitOf<float, gfx11, 16> {
  using type = gpu::WmmaGfx11Bf16x6;
};
template <class E>
struct UnitOf<E, gfx12, 16> {
  using type = gpu::WmmaGfx12<E>;
};
template <>
struct UnitOf<float, gfx12, 16> {
  using type = gpu::WmmaGfx12Bf16x6;
};
#endif

template <class E, int kArch, int kSide, int kTileK, class U = typename UnitOf<E, kArch, kSide>::type>
using ForwardUnit = std::conditional_t<kTileK % 32 == 0, U, typename U::Fresh>;

// Columns of Q and K in shared memory. float32 of more columns would leave room for one wave on WMMA.
template <class E>
constexpr int slice_of(int dim_qk, int arch) {
  return sizeof(E) == 4 && dim_qk > 256 && (arch == gfx11 || arch == gfx12) ? 96 : dim_qk;
}
template <class E, int kDqk, int kDv, int kMask, int kArch, int kSide, int kTileQ, int kTileK, int kWaves,
          int kStages>
using ForwardOf = gpu::Forward<ForwardUnit<E, kArch, kSide, kTileK>, kTileQ, kTileK, kDqk, kDv, kWaves,
                               kStages, kMask == any, kMask != edge, slice_of<E>(kDqk, kArch)>;

template <class E, int kDqk, int kDv, int kMask, int kArch, int kSide, int kTileQ, int kTileK, int kWaves,
          int kStages>
struct SplitOf : gpu::Split<typename UnitOf<E, kArch, kSide>::type::Fresh, kTileK, kDqk, kDv, kWaves, kStages,
                            kMask == any> {
  static_assert(SplitOf::kTileQ == kTileQ, "rows of a tile are the unit's");
};

// The programs of a backward row; dq_*: of those whose blocks own queries. Whole rows of a tile are in shared memory.
template <class E, int kDqk, int kDv, int kMask, int kArch, int kSide, int kTileQ, int kTileK, int kChunkQk,
          int kChunkV, int kKeyWaves, int kOtherWaves, int kQueryWaves, int kStages, int kDqTileQ,
          int kDqTileK, int kDqChunk, int kDqWaves>
struct WholeBackwardOf {
  using U = typename UnitOf<E, kArch, kSide>::type;
  static constexpr bool kAny = kMask == any;
  // Copies beside products take registers, which the accumulators leave on gfx9 and to 16-bit operands alone.
  static constexpr bool kStaged = (kArch == gfx9 || kArch == gfx942) && sizeof(E) == 2 && !kAny && kOtherWaves == 1;
  using Main = gpu::BackwardMain<kStaged, U, kTileQ, kTileK, kDqk, kDv, kChunkQk, kChunkV, kKeyWaves, kOtherWaves,
                                 kQueryWaves, kStages, kAny>;
  using Stats = gpu::BackwardStats<U, kDqTileQ, kDqTileK, kDqk, kDv, kDqWaves, kAny>;
  using Dq = gpu::BackwardQ<U, kDqTileQ, kDqTileK, kDqk, kDv, kDqChunk, kDqWaves, kAny>;
  using Bias = gpu::BackwardBias<U, kDqTileQ, kDqTileK, kDqk, kDv, kDqWaves>;
  static constexpr int kDqColumns = kDqChunk, kColumnsQk = kChunkQk, kColumnsV = kChunkV;
};
// Tiles pass through shared memory by slices as wide as the chunks.
template <class E, int kDqk, int kDv, int kMask, int kArch, int kSide, int kTileQ, int kTileK, int kChunkQk,
          int kChunkV, int kWaves, int kOtherWaves, int kQueryWaves, int kStages, int kDqTileQ, int kDqTileK,
          int kDqChunk, int kDqWaves>
struct WideBackwardOf {
  using U = typename UnitOf<E, kArch, kSide>::type;
  static_assert(kMask == any && kOtherWaves == 1 && kStages == 1, "what BackwardWide is");
  static_assert(kChunkV == kChunkQk && kDqChunk == kChunkQk, "chunks of one width, that of a slice");
  using Tiles = gpu::WideTiles<U, kDqTileQ, kDqTileK, kChunkQk, kDqWaves>;
  using Main = gpu::BackwardWide<U, kTileQ, kTileK, kChunkQk, kWaves, kQueryWaves>;
  using Stats = gpu::BackwardStats<U, kDqTileQ, kDqTileK, kChunkQk, kChunkQk, kDqWaves, true, 0, Tiles>;
  using Dq = gpu::BackwardQ<U, kDqTileQ, kDqTileK, kChunkQk, kChunkQk, kDqChunk, kDqWaves, true, Tiles>;
  using Bias = gpu::BackwardBias<U, kDqTileQ, kDqTileK, kChunkQk, kChunkQk, kDqWaves, Tiles>;
  static constexpr int kDqColumns = kDqChunk, kColumnsQk = kChunkQk, kColumnsV = kChunkV;
};

template <class E, int kDqk, int... kRest>
using BackwardOf =
    std::conditional_t<(kDqk > 256), WideBackwardOf<E, kDqk, kRest...>, WholeBackwardOf<E, kDqk, kRest...>>;

} // namespace hip
} // namespace tessera

#endif // TESSERA_BACKENDS_HIP_PROGRAMS_HPP_
