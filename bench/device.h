// SPDX-License-Identifier: Apache-2.0
// A GPU as benchmarks see it: what it is, how fast it copies, at which clocks and power it runs.
// Clocks and power come from the vendor's management library, opened at run time; without it they
// are 0.
#ifndef TESSERA_BENCH_DEVICE_H_
#define TESSERA_BENCH_DEVICE_H_

#include <jansson.h>
#include <stdbool.h>
#include <stddef.h>

#include <tessera/tessera.h>

#include "tests/support/device_memory.h"

typedef struct bench_clocks {
  double core_hz, memory_hz;  // now
  double watts, celsius;
} bench_clocks;

typedef struct bench_device {
  tsr_device device;
  const tsr_gpu *gpu;
  char driver[64];     // "580.95.05", "" when unknown
  double copy_bytes;   // bytes/s read and written by a device-to-device copy, best of several
  int64_t copy_array;  // bytes of each side
  double flops_16, flops_f32;  // the backend's estimate of the peak
} bench_device;

// Opens the device and measures its copy. False with a message.
bool bench_device_open(bench_device *device, tsr_context *context, tsr_device which, char *message,
                       size_t capacity);

bench_clocks bench_device_clocks(const bench_device *device);
json_t *bench_device_json(const bench_device *device);

#endif  // TESSERA_BENCH_DEVICE_H_
