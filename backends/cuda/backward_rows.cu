// SPDX-License-Identifier: Apache-2.0
//
// The kernels of common/gpu/backward_rows.hpp and their handles: one set for all backward rows. Compiled
// as CUDA, or as C++ in the emulated build.
#include "common/gpu/backward_rows.hpp"

#include "common/gpu/host/backward_plan.h"

namespace tessera {
namespace cuda {

using Convert = gpu::BackwardConvert<32>;
using Prepare = gpu::BackwardPrepare<32, true>;
using Finish = gpu::BackwardFinish<32>;
using Sink = gpu::BackwardSink<32>;

TSRI_GPU_KERNEL(tsri_cuda_backward_convert, Convert, gpu::BackwardConvertArgs)
TSRI_GPU_KERNEL(tsri_cuda_backward_prepare, Prepare, gpu::BackwardArgs)
TSRI_GPU_KERNEL(tsri_cuda_backward_finish, Finish, gpu::BackwardArgs)
TSRI_GPU_KERNEL(tsri_cuda_backward_sink, Sink, gpu::BackwardArgs)

const Entry backward_entries[kBackwardPasses] = {
    {reinterpret_cast<const void *>(tsri_cuda_backward_convert), Convert::kThreads, 0},
    {reinterpret_cast<const void *>(tsri_cuda_backward_prepare), Prepare::kThreads, 0},
    {reinterpret_cast<const void *>(tsri_cuda_backward_finish), Finish::kThreads, Finish::kSharedBytes},
    {reinterpret_cast<const void *>(tsri_cuda_backward_sink), Sink::kThreads, Sink::kSharedBytes},
};

} // namespace cuda
} // namespace tessera
