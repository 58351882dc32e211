// SPDX-License-Identifier: Apache-2.0
//
// NVIDIA devices as common/gpu/host/device.h wants to know them. Figures per cycle and multiprocessor are
// those of NVIDIA's white papers and CUDA programming guide.
#include "common/gpu/host/device.h"

#include <stdio.h>

#include "common/gpu/host/kernels.h"

namespace tessera {
namespace cuda {

// Compute capability that the oldest rows need.
constexpr int32_t kLeastArch = 80;

void device_arch_text(int32_t arch, char *text, size_t capacity) {
  snprintf(text, capacity, "%d.%d", static_cast<int>(arch / 10), static_cast<int>(arch % 10));
}

const char *device_lacks(const DeviceFacts &facts) {
  return facts.arch < kLeastArch ? ": too old, 8.0 needed" : "";
}

bool device_takes(const DeviceFacts &facts, const Row &row, tsr_reason *why) {
  // Code of the copy engine is of one capability and runs on no later one.
  if (row.engine.box_q ? facts.arch == row.arch : facts.arch >= row.arch) return true;
  snprintf(why->text, sizeof why->text, "%.64s has compute capability %d.%d, this kernel needs %d.%d",
           facts.name, static_cast<int>(facts.arch / 10), static_cast<int>(facts.arch % 10),
           static_cast<int>(row.arch / 10), static_cast<int>(row.arch % 10));
  return false;
}

double device_flops(int32_t arch) {
  return arch >= 120 ? 1024 : arch >= 100 ? 8192 : arch >= 90 ? 4096 : arch == 80 ? 2048 : 1024;
}

// 64 lanes on 8.0 and 128 elsewhere.
double device_flops_f32(int32_t arch) { return arch == 80 ? 128 : 256; }

double unit_flops(int32_t arch, tsr_dtype dtype) {
  // mma.sync reaches five eighths of what warp-group instructions reach on 9.0.
  const double sixteen = arch >= 90 && arch < 120 ? 4096 * 0.625 : device_flops(arch);
  // Six products of bfloat16 planes make one of float32.
  return dtype == TSR_DTYPE_F32 ? sixteen / 6 : sixteen;
}

} // namespace cuda
} // namespace tessera
