// SPDX-License-Identifier: Apache-2.0
//
// A run of a plan, below the checks of its pointers: argument structs filled, workspace cut up,
// kernels launched. Backward rows have their own file of the same shape (backward_plan.h).
#ifndef TESSERA_COMMON_GPU_HOST_LAUNCH_H_
#define TESSERA_COMMON_GPU_HOST_LAUNCH_H_

#include "common/gpu/host/kernels.h"
#include "common/gpu/host/runtime.h"
#include "common/gpu/host/select.h"

namespace tessera {
namespace gpu {
struct Call;
struct TensorMap;
}
namespace TSRI_GPU_BACKEND {

struct Plan {
  const Row *row;
  const tsr_resolved *problem;
  int32_t device;
  bool early; // kEntryMain, and in backward what follows the first kernel, is launched so that it may start early
  Choice choice;
};

// What every kernel receives of the problem and the run.
void fill_call(const tsr_resolved &problem, const tsr_args &args, gpu::Call *call);

// Bytes of workspace of a forward or split row; INT64_MAX: too many.
int64_t launch_workspace(const Row &row, const tsr_resolved &problem, const Cut &cut);

// Launches a function, and one entry of a row.
tsr_status launch_function(const Plan &plan, const Entry &entry, int64_t blocks, const void *args,
                           size_t args_size, void *stream, tsr_reason *why, bool early = false);
tsr_status launch_entry(const Plan &plan, int entry, int64_t blocks, const void *args, size_t args_size,
                        void *stream, tsr_reason *why);

// Rows of keys of a box of the copy engine: the tile, or with pages as many as divide a page and the tile; a multiple
// of kLeastBox if the page is.
constexpr int32_t kLeastBox = 8;
int32_t engine_box_k(const Row &row, const tsr_problem &p);

// Where the copy engine finds a tensor, in boxes of box_rows rows. packed: rows of all sequences in one.
tsr_status map_tensor(int32_t device, const void *base, const tsr_layout &layout, bool packed, int64_t columns,
                      int64_t rows, int64_t heads, int64_t batch, int32_t box_rows, gpu::TensorMap *map,
                      tsr_reason *why);

// Runs a forward or split row; workspace is there.
tsr_status launch_forward(const Plan &plan, const tsr_args &args, void *workspace, tsr_reason *why);

} // namespace TSRI_GPU_BACKEND
} // namespace tessera

#endif // TESSERA_COMMON_GPU_HOST_LAUNCH_H_
