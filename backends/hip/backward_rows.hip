// SPDX-License-Identifier: Apache-2.0
//
// Device code of common/gpu/backward_rows.hpp: one set for all backward rows, in one object per device.
#include "common/gpu/backward_rows.hpp"

namespace tessera {
namespace hip {

using Convert = gpu::BackwardConvert<__AMDGCN_WAVEFRONT_SIZE__>;
using Prepare = gpu::BackwardPrepare<__AMDGCN_WAVEFRONT_SIZE__, false>;
using Finish = gpu::BackwardFinish<__AMDGCN_WAVEFRONT_SIZE__>;
using Sink = gpu::BackwardSink<__AMDGCN_WAVEFRONT_SIZE__>;

TSRI_GPU_KERNEL(tsri_hip_backward_convert, Convert, gpu::BackwardConvertArgs)
TSRI_GPU_KERNEL(tsri_hip_backward_prepare, Prepare, gpu::BackwardArgs)
TSRI_GPU_KERNEL(tsri_hip_backward_finish, Finish, gpu::BackwardArgs)
TSRI_GPU_KERNEL(tsri_hip_backward_sink, Sink, gpu::BackwardArgs)

} // namespace hip
} // namespace tessera
