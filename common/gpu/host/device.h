// SPDX-License-Identifier: Apache-2.0
//
// What a GPU backend knows of its vendor's devices: the facts that selection depends on, and a few
// functions of them which each backend defines (device.cpp). They are pure: no device is in reach.
//
// The host code of this folder is compiled once per backend, with the backend's name as its namespace.
#ifndef TESSERA_COMMON_GPU_HOST_DEVICE_H_
#define TESSERA_COMMON_GPU_HOST_DEVICE_H_

#include <stddef.h>
#include <stdint.h>

#include "tessera/backend.h"

#if !defined(TSRI_GPU_BACKEND)
#error "TSRI_GPU_BACKEND: the backend's name, see tessera_gpu_host() in cmake/TesseraKernels.cmake"
#endif

namespace tessera {
namespace TSRI_GPU_BACKEND {

struct Row;

// Facts that selection may depend on, and nothing else does.
struct DeviceFacts {
  char name[128];
  int32_t arch;              // the vendor's number: 90 for compute capability 9.0, 0x942 for gfx942
  int32_t processors;        // multiprocessors, compute units
  int64_t shared_per_block;  // bytes, opt-in limit
  int64_t shared_per_processor;
  int64_t registers_per_processor;
  int64_t l2_bytes;
  int64_t memory_bytes;
  double clock;              // Hz
  double bandwidth;          // device memory, bytes/s
};

// "9.0", "gfx942".
void device_arch_text(int32_t arch, char *text, size_t capacity);
// What keeps every row from the device, as in ": too old, 8.0 needed"; empty if nothing does.
const char *device_lacks(const DeviceFacts &facts);
// Whether a row's code runs on the device; false with the reason.
bool device_takes(const DeviceFacts &facts, const Row &row, tsr_reason *why);

// FLOP per cycle and multiprocessor: dense float16 products of the device's matrix units, float32 outside
// of them, and of the unit that the rows of an element type use.
double device_flops(int32_t arch);
double device_flops_f32(int32_t arch);
double unit_flops(int32_t arch, tsr_dtype dtype);

} // namespace TSRI_GPU_BACKEND
} // namespace tessera

#endif // TESSERA_COMMON_GPU_HOST_DEVICE_H_
