// SPDX-License-Identifier: Apache-2.0
//
// Merging of partial results and the keep mask of dropout: their kernels, and their launches once the
// pointers were checked.
#ifndef TESSERA_COMMON_GPU_HOST_MERGE_H_
#define TESSERA_COMMON_GPU_HOST_MERGE_H_

#include "common/gpu/host/kernels.h"
#include "tessera/backend.h"

namespace tessera {
namespace TSRI_GPU_BACKEND {

extern const Entry merge_entry, merge_table_entry, keep_mask_entry;

// Makes the functions of both calls ready on a device, once: whoever resets the device loads them again with the next call.
tsr_status merge_prepare(int32_t device, tsr_reason *why);
tsr_status merge_launch(int32_t device, const tsr_merge_problem &problem,
                        const void *const *o_parts, const float *const *lse_parts, void *o,
                        float *lse, void *stream, tsr_reason *why);
tsr_status keep_mask_launch(int32_t device, const tsr_dropout_problem &problem, uint8_t *mask,
                            void *stream, tsr_reason *why);

} // namespace TSRI_GPU_BACKEND
} // namespace tessera

#endif // TESSERA_COMMON_GPU_HOST_MERGE_H_
