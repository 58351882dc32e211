// SPDX-License-Identifier: Apache-2.0
//
// common/gpu/host/runtime.h on the SIMT emulator: one device with the facts of a current one, so that
// selection takes the ways it takes there; memory is the host's, and work is done when a call returns.
#include "runtime_emulated.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "backends/cuda/sm90/emulated.hpp"
#include "common/gpu/emulator.hpp"
#include "common/workspace.h"

namespace tessera {
namespace cuda {
namespace {

constexpr int kWave = 32;

tsr_status failed(const std::atomic<int32_t> &asked, const char *what, tsr_reason *why) {
  const int32_t status = asked;
  if (status != TSR_STATUS_SUCCESS) snprintf(why->text, sizeof why->text, "%s: a failure that was asked for", what);
  return static_cast<tsr_status>(status);
}

} // namespace

EmulatedFaults &emulated_faults() {
  static EmulatedFaults faults;
  return faults;
}

bool runtime_probe(int32_t *devices, tsr_reason *why) {
  (void)why;
  *devices = 1;
  return true;
}

// TSR_EMULATED_PROCESSORS, 1 to 132 (default): with few of them blocks that stay go from one piece of work to the
// next in small problems too. L2 is that of as many.
static int32_t processors() {
  const char *value = getenv("TSR_EMULATED_PROCESSORS");
  const long n = value ? strtol(value, nullptr, 10) : 0;
  return n >= 1 && n <= 132 ? static_cast<int32_t>(n) : 132;
}

bool runtime_facts(int32_t device, DeviceFacts *facts, tsr_reason *why) {
  (void)device;
  (void)why;
  memset(facts, 0, sizeof *facts);
  snprintf(facts->name, sizeof facts->name, "SIMT emulator on the host");
  facts->arch = 90;
  facts->processors = processors();
  facts->shared_per_block = 227 << 10;
  facts->shared_per_processor = 228 << 10;
  facts->registers_per_processor = 65536;
  facts->l2_bytes = (int64_t{50} << 20) * facts->processors / 132;
  facts->memory_bytes = int64_t{80} << 30;
  facts->clock = 1.7e9;
  facts->bandwidth = 3.3e12;
  return true;
}

tsr_status runtime_prepare(int32_t device, const void *function, uint32_t shared_bytes, tsr_reason *why) {
  (void)device;
  (void)function;
  (void)shared_bytes;
  ++emulated_faults().prepared;
  return failed(emulated_faults().fail_prepare, "the kernel's code", why);
}

// Said so that such launches are made here too; work is done when the call before returns.
bool runtime_starts_early(int32_t device, const void *function) {
  (void)device;
  return function != nullptr;
}

tsr_status runtime_launch(int32_t device, const Launch &launch, tsr_reason *why) {
  using Kernel = void (*)(const void *);
  (void)device;
  const tsr_status told = failed(emulated_faults().fail_launch, "launch", why);
  if (told != TSR_STATUS_SUCCESS) return told;
  ++emulated_faults().launches;
  Kernel kernel;
  static_assert(sizeof kernel == sizeof launch.function, "a handle is the function's address");
  memcpy(&kernel, &launch.function, sizeof kernel);
  return gpu::emulate(kernel, launch.args, launch.blocks, launch.threads, kWave,
                      launch.shared_bytes, why->text, sizeof why->text)
             ? TSR_STATUS_SUCCESS
             : TSR_STATUS_DEVICE_ERROR;
}

tsr_status runtime_tensor_map(const TensorBox &box, gpu::TensorMap *map, tsr_reason *why) {
  // What the driver refuses.
  for (int d = 0; d < 4; ++d)
    if (box.extent[d] < 1 || box.extent[d] > int64_t{1} << 32 ||
        (d > 0 && (box.stride[d] < 16 || box.stride[d] % 16 != 0 || box.stride[d] >= int64_t{1} << 40))) {
      snprintf(why->text, sizeof why->text, "a map of extent %lld and stride %lld bytes in dimension %d",
               static_cast<long long>(box.extent[d]), static_cast<long long>(box.stride[d]), d);
      return TSR_STATUS_DEVICE_ERROR;
    }
  if (reinterpret_cast<uintptr_t>(box.base) % 16 != 0 || box.rows < 1 || box.rows > 256) {
    snprintf(why->text, sizeof why->text, "a map of boxes of %d rows at %p", static_cast<int>(box.rows), box.base);
    return TSR_STATUS_DEVICE_ERROR;
  }
  gpu::EmulatedMap own;
  memset(map, 0, sizeof *map);
  own.base = static_cast<const unsigned char *>(box.base);
  memcpy(own.extent, box.extent, sizeof own.extent);
  memcpy(own.stride_bytes, box.stride, sizeof own.stride_bytes);
  own.element_bytes = static_cast<int32_t>(gpu::element_bytes(box.dtype));
  own.stride_bytes[0] = own.element_bytes;
  own.rows = box.rows;
  memcpy(map, &own, sizeof own);
  return TSR_STATUS_SUCCESS;
}

tsr_status runtime_allocate(int32_t device, size_t bytes, void *stream, void **block,
                            tsr_reason *why) {
  (void)device;
  (void)stream;
  if (emulated_faults().capturing) {
    snprintf(why->text, sizeof why->text, "the stream is being captured");
    return TSR_STATUS_INVALID_ARGUMENT;
  }
  *block = emulated_faults().fail_allocate
               ? nullptr
               : aligned_alloc(TSRI_WORKSPACE_ALIGNMENT,
                               static_cast<size_t>(tsri_workspace_round(static_cast<int64_t>(bytes))));
  if (!*block) {
    snprintf(why->text, sizeof why->text, "the device has no %zu bytes for this run", bytes);
    return TSR_STATUS_OUT_OF_MEMORY;
  }
  ++emulated_faults().allocated;
  return TSR_STATUS_SUCCESS;
}

void runtime_release(int32_t device, void *block, void *stream) {
  (void)device;
  (void)stream;
  ++emulated_faults().released;
  free(block);
}

tsr_status runtime_where(const void *pointer, Memory *where, int32_t *owner, tsr_reason *why) {
  const EmulatedFaults &faults = emulated_faults();
  const bool elsewhere = pointer == faults.elsewhere;
  *owner = elsewhere ? faults.owner.load() : 0;
  *where = elsewhere ? faults.place.load() : Memory::kDevice;
  return failed(faults.fail_where, "looking up a pointer", why);
}

void runtime_version(char *text, size_t capacity) { snprintf(text, capacity, "emulated"); }

} // namespace cuda
} // namespace tessera
