// SPDX-License-Identifier: Apache-2.0
//
// How blocks that stay share out tiles of queries (backends/cuda/sm90/work.hpp): which of them are dealt out one by one,
// the longest first, and whether what fills no last round is cut along the keys. A pure function, as selection is.
#ifndef TESSERA_COMMON_GPU_HOST_DEAL_H_
#define TESSERA_COMMON_GPU_HOST_DEAL_H_

#include "common/gpu/host/select.h"

namespace tessera {
namespace TSRI_GPU_BACKEND {

// Sets cut->deal, from its tiles and blocks.
void choose_deal(const DeviceFacts &facts, const Row &row, const tsr_problem &p, Cut *cut);

} // namespace TSRI_GPU_BACKEND
} // namespace tessera

#endif // TESSERA_COMMON_GPU_HOST_DEAL_H_
