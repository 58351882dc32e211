// SPDX-License-Identifier: Apache-2.0
//
// The few services of a GPU runtime that the host code of this folder needs; every backend that is built
// from it implements them once for its vendor's runtime. Calls that can fail return true on success, or a
// status: OUT_OF_MEMORY where the device or the driver has none left, DEVICE_ERROR for anything else that it
// reports. They write one line of text on failure. The current device of the calling thread is as it was
// when a call returns, and no error is left where the caller's next call of the runtime would find it.
#ifndef TESSERA_COMMON_GPU_HOST_RUNTIME_H_
#define TESSERA_COMMON_GPU_HOST_RUNTIME_H_

#include <stddef.h>
#include <stdint.h>

#include "common/gpu/arguments.hpp"
#include "common/gpu/host/device.h"
#include "tessera/backend.h"

namespace tessera {
namespace TSRI_GPU_BACKEND {

// Where a pointer of a run lives.
enum class Memory : int32_t { kUnknown, kHost, kDevice, kManaged };

struct Launch {
  const void *function; // Entry::function
  int64_t blocks;       // 1 .. 2^31 - 1
  int32_t threads;
  uint32_t shared_bytes;
  const void *args;     // the argument struct
  size_t args_size;
  void *stream;
  bool early;           // blocks may start while what precedes them in the stream runs: the function waits
};

// `device` is an ordinal.
bool runtime_probe(int32_t *devices, tsr_reason *why); // false: no driver or no device
bool runtime_facts(int32_t device, DeviceFacts *facts, tsr_reason *why);
// Prepares a device function on a device: its code is there, and it may use its shared memory.
tsr_status runtime_prepare(int32_t device, const void *function, uint32_t shared_bytes, tsr_reason *why);
// Whether a prepared function's code on the device can wait for what precedes it, as Launch::early asks.
bool runtime_starts_early(int32_t device, const void *function);
tsr_status runtime_launch(int32_t device, const Launch &launch, tsr_reason *why);
// Encodes where the copy engine finds a tensor of 16-bit or 8-bit elements: boxes of `rows` rows of 128 bytes,
// swizzled.
// Extents and strides by column, row, head, batch; strides in bytes, the first of them not used.
struct TensorBox {
  const void *base;
  tsr_dtype dtype;
  int64_t extent[4], stride[4];
  int32_t rows;
  int32_t device;
};
tsr_status runtime_tensor_map(const TensorBox &box, gpu::TensorMap *map, tsr_reason *why);
// Memory in stream order, for runs without a workspace. INVALID_ARGUMENT while the stream is captured;
// OUT_OF_MEMORY; DEVICE_ERROR.
tsr_status runtime_allocate(int32_t device, size_t bytes, void *stream, void **block,
                            tsr_reason *why);
void runtime_release(int32_t device, void *block, void *stream);
// Where a pointer points to; *owner is the device of device and managed memory. A pointer that the driver does not
// know is no failure; a driver that answers nothing any more is one.
tsr_status runtime_where(const void *pointer, Memory *where, int32_t *owner, tsr_reason *why);
// "CUDA 13.0, driver 13.0", terminated and cut to the capacity.
void runtime_version(char *text, size_t capacity);

} // namespace TSRI_GPU_BACKEND
} // namespace tessera

#endif // TESSERA_COMMON_GPU_HOST_RUNTIME_H_
