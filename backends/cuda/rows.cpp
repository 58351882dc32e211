// SPDX-License-Identifier: Apache-2.0
//
// The table of kernel rows: kernels.def expanded twice, as declarations of what the generated sources
// define and as the list of them.
#include <stddef.h>

#include "kernels.h"

namespace tessera {
namespace cuda {

#define TSRI_CUDA_FORWARD(dtype, DTYPE, tier, dim_qk, dim_v, mask, arch, q, k, warps, stages) \
  extern const Row tsri_cuda_row_fwd_##dtype##_##tier##_##mask##__##arch##_##q##x##k;
#define TSRI_CUDA_ENGINE_FORWARD(dtype, DTYPE, tier, dim_qk, dim_v, mask, arch, q, k, ...) \
  extern const Row tsri_cuda_row_fwd_##dtype##_##tier##_##mask##__##arch##_##q##x##k;
#define TSRI_CUDA_ENGINE_HEADS(dtype, DTYPE, tier, dim_qk, dim_v, mask, arch, q, k, ...) \
  extern const Row tsri_cuda_row_fwd_##dtype##_##tier##_##mask##__##arch##_heads_##q##x##k;
#define TSRI_CUDA_SPLIT(dtype, DTYPE, tier, dim_qk, dim_v, mask, arch, q, k, warps, stages) \
  extern const Row tsri_cuda_row_fwd_##dtype##_##tier##_##mask##__##arch##_split_##q##x##k;
#define TSRI_CUDA_BACKWARD(dtype, DTYPE, tier, dim_qk, dim_v, mask, arch, q, k, ...) \
  extern const Row tsri_cuda_row_bwd_##dtype##_##tier##_##mask##__##arch##_##q##x##k;
#define TSRI_CUDA_ENGINE_BACKWARD(...) TSRI_CUDA_BACKWARD(__VA_ARGS__)
#define TSRI_CUDA_PLANES_FORWARD(dtype, DTYPE, tier, dim_qk, dim_v, mask, arch, q, k, warps, stages) \
  extern const Row tsri_cuda_row_fwd_##dtype##_##tier##_##mask##__##arch##_planes_##q##x##k;
#define TSRI_CUDA_PLANES_BACKWARD(dtype, DTYPE, tier, dim_qk, dim_v, mask, arch, q, k, ...) \
  extern const Row tsri_cuda_row_bwd_##dtype##_##tier##_##mask##__##arch##_planes_##q##x##k;
#define TSRI_CUDA_HALVES_BACKWARD(dtype, DTYPE, tier, dim_qk, dim_v, mask, arch, q, k, ...) \
  extern const Row tsri_cuda_row_bwd_##dtype##_##tier##_##mask##__##arch##_halves_##q##x##k;
#include "kernels.def"

static const Row *const rows[] = {
#define TSRI_CUDA_FORWARD(dtype, DTYPE, tier, dim_qk, dim_v, mask, arch, q, k, warps, stages) \
  &tsri_cuda_row_fwd_##dtype##_##tier##_##mask##__##arch##_##q##x##k,
#define TSRI_CUDA_ENGINE_FORWARD(dtype, DTYPE, tier, dim_qk, dim_v, mask, arch, q, k, ...) \
  &tsri_cuda_row_fwd_##dtype##_##tier##_##mask##__##arch##_##q##x##k,
#define TSRI_CUDA_ENGINE_HEADS(dtype, DTYPE, tier, dim_qk, dim_v, mask, arch, q, k, ...) \
  &tsri_cuda_row_fwd_##dtype##_##tier##_##mask##__##arch##_heads_##q##x##k,
#define TSRI_CUDA_SPLIT(dtype, DTYPE, tier, dim_qk, dim_v, mask, arch, q, k, warps, stages) \
  &tsri_cuda_row_fwd_##dtype##_##tier##_##mask##__##arch##_split_##q##x##k,
#define TSRI_CUDA_BACKWARD(dtype, DTYPE, tier, dim_qk, dim_v, mask, arch, q, k, ...) \
  &tsri_cuda_row_bwd_##dtype##_##tier##_##mask##__##arch##_##q##x##k,
#define TSRI_CUDA_ENGINE_BACKWARD(...) TSRI_CUDA_BACKWARD(__VA_ARGS__)
#define TSRI_CUDA_PLANES_FORWARD(dtype, DTYPE, tier, dim_qk, dim_v, mask, arch, q, k, warps, stages) \
  &tsri_cuda_row_fwd_##dtype##_##tier##_##mask##__##arch##_planes_##q##x##k,
#define TSRI_CUDA_PLANES_BACKWARD(dtype, DTYPE, tier, dim_qk, dim_v, mask, arch, q, k, ...) \
  &tsri_cuda_row_bwd_##dtype##_##tier##_##mask##__##arch##_planes_##q##x##k,
#define TSRI_CUDA_HALVES_BACKWARD(dtype, DTYPE, tier, dim_qk, dim_v, mask, arch, q, k, ...) \
  &tsri_cuda_row_bwd_##dtype##_##tier##_##mask##__##arch##_halves_##q##x##k,
#include "kernels.def"
};

const Row *row_at(int32_t index) {
  constexpr int32_t kCount = static_cast<int32_t>(sizeof rows / sizeof rows[0]);
  return index >= 0 && index < kCount ? rows[index] : nullptr;
}

} // namespace cuda
} // namespace tessera
