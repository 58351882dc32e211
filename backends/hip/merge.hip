// SPDX-License-Identifier: Apache-2.0
//
// Device code of common/gpu/merge.hpp, in one object per device.
#include "common/gpu/merge.hpp"

namespace tessera {
namespace hip {

TSRI_GPU_KERNEL(tsri_hip_merge, gpu::Merge<__AMDGCN_WAVEFRONT_SIZE__>, gpu::MergeArgs)
TSRI_GPU_KERNEL(tsri_hip_merge_table, gpu::MergeTable, gpu::MergeTableArgs)
TSRI_GPU_KERNEL(tsri_hip_keep_mask, gpu::KeepMask, gpu::KeepMaskArgs)

} // namespace hip
} // namespace tessera
