// SPDX-License-Identifier: Apache-2.0
//
// What a cut of a problem takes on a device: a model of blocks that walk over key tiles, several to a
// multiprocessor, bounded from below by the traffic to memory. It has to put rows in the right order
// more than to hit the time: what tells them apart is how full the device is, what tiles and head-dim
// tiers compute in vain, and how often K and V are read.
#ifndef TESSERA_COMMON_GPU_HOST_COST_H_
#define TESSERA_COMMON_GPU_HOST_COST_H_

#include "common/gpu/host/select.h"

namespace tessera {
namespace TSRI_GPU_BACKEND {

// Key tiles that the blocks of a row visit.
struct Visits {
  double queries, keys; // of a sequence: the mean where the problem tells it, else the most
  double mean, most;    // tiles per query tile
  double pairs;         // allowed pairs of a head and sequence
};
Visits count_visits(const Row &row, const tsr_resolved &problem);

// Seconds of a forward row (cut.splits 0) or of a split row.
double cost_seconds(const DeviceFacts &facts, const Row &row, const tsr_resolved &problem,
                    const Visits &visits, const Cut &cut);
// The same for rows of the copy engine.
double engine_seconds(const DeviceFacts &facts, const Row &row, const tsr_resolved &problem,
                      const Visits &visits, const Cut &cut);
// FLOP of the problem and bytes of device memory that the row moves.
double cost_flops(const tsr_resolved &problem, const Visits &visits);
double cost_bytes(const DeviceFacts &facts, const Row &row, const tsr_resolved &problem,
                  const Visits &visits, const Cut &cut);

// The same of a backward row.
double backward_seconds(const DeviceFacts &facts, const Row &row, const tsr_resolved &problem,
                        const Visits &visits, const BackwardCut &cut);
double backward_flops(const tsr_resolved &problem, const Visits &visits);
double backward_bytes(const tsr_resolved &problem, const Visits &visits, const BackwardCut &cut);

} // namespace TSRI_GPU_BACKEND
} // namespace tessera

#endif // TESSERA_COMMON_GPU_HOST_COST_H_
