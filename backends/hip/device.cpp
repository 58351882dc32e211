// SPDX-License-Identifier: Apache-2.0
//
// AMD devices as common/gpu/host/device.h wants to know them. A multiprocessor is what the runtime counts: a
// compute unit on gfx9, a pair of them (a work-group processor) on gfx11 and gfx12. Figures per cycle are
// those of AMD's matrix instruction calculator and of its data sheets.
#include "common/gpu/host/device.h"

#include <stdio.h>

#include "backends/hip/objects.h"
#include "common/gpu/host/kernels.h"

namespace tessera {
namespace hip {

void device_arch_text(int32_t arch, char *text, size_t capacity) {
  snprintf(text, capacity, "gfx%x", static_cast<unsigned>(arch));
}

const char *device_lacks(const DeviceFacts &facts) {
  return builds_for(facts.arch) ? "" : ": no code for it in this build";
}

bool device_takes(const DeviceFacts &facts, const Row &row, tsr_reason *why) {
  if (!serves(row.arch, facts.arch)) {
    snprintf(why->text, sizeof why->text, "%.64s is gfx%x, this kernel is for gfx%x", facts.name,
             static_cast<unsigned>(facts.arch), static_cast<unsigned>(row.arch));
    return false;
  }
  if (builds_for(facts.arch)) return true;
  snprintf(why->text, sizeof why->text, "%.64s is gfx%x, for which this build has no code", facts.name,
           static_cast<unsigned>(facts.arch));
  return false;
}

double device_flops(int32_t arch) {
  return arch == 0x90a || arch >> 8 == 0x11 ? 1024 : 2048;
}

double device_flops_f32(int32_t arch) { return arch >> 8 == 0x9 ? 256 : 512; }

double unit_flops(int32_t arch, tsr_dtype dtype) {
  if (dtype != TSR_DTYPE_F32) return device_flops(arch);
  // gfx9 multiplies float32 in its matrix units; elsewhere six products of bfloat16 planes make one.
  return arch >> 8 == 0x9 ? 256 : device_flops(arch) / 6;
}

} // namespace hip
} // namespace tessera
