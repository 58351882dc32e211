// SPDX-License-Identifier: Apache-2.0
//
// A backward pass of a row as a sequence of launches: which of them a problem needs, how each is cut,
// what workspace they share, and the run itself. The order, each step only where it is needed:
//
//   convert   dO as float32 becomes the element type of the products
//   prepare   LSE, delta and the band of every query row; float sums of dQ set to zero
//   stats     LSE and delta found again from the scores, for the tiles of rows that need it
//   main      dK, dV, and additions to the sums of dQ
//   finish    dQ from its sums
//   dq        dQ without sums: where additions in any order are not allowed, or nothing but dQ is wanted
//   bias      dBias
//   sink      dSink
#ifndef TESSERA_COMMON_GPU_HOST_BACKWARD_PLAN_H_
#define TESSERA_COMMON_GPU_HOST_BACKWARD_PLAN_H_

#include "common/gpu/host/kernels.h"
#include "common/gpu/host/launch.h"
#include "common/gpu/host/select.h"

namespace tessera {
namespace TSRI_GPU_BACKEND {

// Passes that do not depend on the row (common/gpu/backward_rows.hpp).
enum { kPassConvert, kPassPrepare, kPassFinish, kPassSink, kBackwardPasses };
extern const Entry backward_entries[kBackwardPasses];

// The steps and their blocks; false, with the reason, where one does not fit a launch.
// How many blocks of a device work on what is cut, and of how many heads there are sums at a time; false with the
// reason: too many units.
bool backward_blocks(const DeviceFacts &facts, const Row &row, const tsr_problem &p, BackwardCut *cut, tsr_reason *why);

// Whether kernels of rows of the copy engine may start while the one before ends, see Launch::early.
bool backward_starts_early(int32_t device, const Row &row, const BackwardCut &cut);

// The entry of a row that makes dK and dV.
int keys_entry(const Row &row, const BackwardCut &cut);

bool backward_cut(const Row &row, const tsr_problem &p, BackwardCut *cut, tsr_reason *why);
// Bytes of workspace; INT64_MAX: too many.
int64_t backward_workspace(const Row &row, const tsr_problem &p, const BackwardCut &cut);
// Makes the device functions of the shared passes ready on a device.
tsr_status backward_prepare(int32_t device, tsr_reason *why);
tsr_status backward_launch(const Plan &plan, const tsr_args &args, void *workspace, tsr_reason *why);

} // namespace TSRI_GPU_BACKEND
} // namespace tessera

#endif // TESSERA_COMMON_GPU_HOST_BACKWARD_PLAN_H_
