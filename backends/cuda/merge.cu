// SPDX-License-Identifier: Apache-2.0
//
// The kernels of common/gpu/merge.hpp and their handles. Compiled as CUDA, or as C++ in the emulated
// build.
#include "common/gpu/merge.hpp"

#include "common/gpu/host/merge.h"

namespace tessera {
namespace cuda {

TSRI_GPU_KERNEL(tsri_cuda_merge, gpu::Merge<32>, gpu::MergeArgs)
TSRI_GPU_KERNEL(tsri_cuda_merge_table, gpu::MergeTable, gpu::MergeTableArgs)
TSRI_GPU_KERNEL(tsri_cuda_keep_mask, gpu::KeepMask, gpu::KeepMaskArgs)

const Entry merge_entry = {reinterpret_cast<const void *>(tsri_cuda_merge), gpu::kMergeThreads, 0};
const Entry merge_table_entry = {reinterpret_cast<const void *>(tsri_cuda_merge_table),
                                 gpu::kMergeThreads, 0};
const Entry keep_mask_entry = {reinterpret_cast<const void *>(tsri_cuda_keep_mask),
                               gpu::kMergeThreads, 0};

} // namespace cuda
} // namespace tessera
