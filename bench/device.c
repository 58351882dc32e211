// SPDX-License-Identifier: Apache-2.0
// Facts, copy rate and clocks of a GPU (see device.h).
#define _GNU_SOURCE
#include "device.h"

#include <dlfcn.h>
#include <stdio.h>
#include <string.h>

enum { kCopies = 8, kCopyRuns = 7 };

// Entry points of libnvidia-ml.so.1; results are 0 for success.
static struct {
  bool tried, ready;
  int (*init)(void);
  int (*driver)(char *text, unsigned capacity);
  int (*by_bus)(const char *bus, void **device);
  int (*clock)(void *device, int which, unsigned *megahertz);
  int (*power)(void *device, unsigned *milliwatts);
  int (*temperature)(void *device, int which, unsigned *celsius);
} nvml;
enum { CLOCK_CORE = 1, CLOCK_MEMORY = 2 };

static bool open_management(void) {
  static const struct {
    const char *name;
    void *into;
  } kSymbols[] = {{"nvmlInit_v2", &nvml.init},
                  {"nvmlSystemGetDriverVersion", &nvml.driver},
                  {"nvmlDeviceGetHandleByPciBusId_v2", &nvml.by_bus},
                  {"nvmlDeviceGetClockInfo", &nvml.clock},
                  {"nvmlDeviceGetPowerUsage", &nvml.power},
                  {"nvmlDeviceGetTemperature", &nvml.temperature}};
  if (nvml.tried) return nvml.ready;
  nvml.tried = true;
  void *library = dlopen("libnvidia-ml.so.1", RTLD_NOW | RTLD_LOCAL);
  if (library == NULL) return false;
  for (size_t i = 0; i < sizeof kSymbols / sizeof kSymbols[0]; ++i) {
    void *symbol = dlsym(library, kSymbols[i].name);
    if (symbol == NULL) return false;
    memcpy(kSymbols[i].into, &symbol, sizeof symbol);
  }
  nvml.ready = nvml.init() == 0;
  return nvml.ready;
}

bench_clocks bench_device_clocks(const bench_device *device) {
  bench_clocks clocks = {0};
  void *card = NULL;
  unsigned value;
  if (!open_management() || nvml.by_bus(tsr_gpu_describe(device->gpu)->bus, &card) != 0) {
    return clocks;
  }
  if (nvml.clock(card, CLOCK_CORE, &value) == 0) clocks.core_hz = 1e6 * value;
  if (nvml.clock(card, CLOCK_MEMORY, &value) == 0) clocks.memory_hz = 1e6 * value;
  if (nvml.power(card, &value) == 0) clocks.watts = 1e-3 * value;
  if (nvml.temperature(card, 0, &value) == 0) clocks.celsius = value;
  return clocks;
}

// Bytes per second, read and written, of the best of several runs of a few copies.
static bool measure_copy(bench_device *device) {
  const tsr_gpu *gpu = device->gpu;
  const tsr_gpu_facts *facts = tsr_gpu_describe(gpu);
  // Far beyond the cache, a sixteenth of the memory at most.
  int64_t bytes = (int64_t)1 << 30;
  if (facts->memory_bytes / 16 < bytes) bytes = facts->memory_bytes / 16;
  void *from = NULL, *to = NULL, *stream = NULL, *begin = NULL, *end = NULL;
  bool ok = tsr_gpu_alloc(gpu, TSR_GPU_DEVICE, (size_t)bytes, &from) &&
            tsr_gpu_alloc(gpu, TSR_GPU_DEVICE, (size_t)bytes, &to) &&
            tsr_gpu_fill(gpu, from, 0x11, (size_t)bytes) && tsr_gpu_stream_create(gpu, &stream) &&
            tsr_gpu_event_create(gpu, &begin) && tsr_gpu_event_create(gpu, &end);
  for (int run = 0; ok && run < kCopyRuns; ++run) {
    double seconds = 0;
    ok = tsr_gpu_event_record(gpu, begin, stream);
    for (int i = 0; ok && i < kCopies; ++i) {
      ok = tsr_gpu_copy(gpu, to, from, (size_t)bytes, stream);
    }
    ok = ok && tsr_gpu_event_record(gpu, end, stream) &&
         tsr_gpu_event_seconds(gpu, begin, end, &seconds);
    double rate = seconds > 0 ? 2.0 * kCopies * (double)bytes / seconds : 0;
    if (rate > device->copy_bytes) device->copy_bytes = rate;
  }
  device->copy_array = bytes;
  tsr_gpu_event_destroy(gpu, begin);
  tsr_gpu_event_destroy(gpu, end);
  tsr_gpu_stream_destroy(gpu, stream);
  tsr_gpu_free(gpu, TSR_GPU_DEVICE, from);
  tsr_gpu_free(gpu, TSR_GPU_DEVICE, to);
  return ok;
}

bool bench_device_open(bench_device *device, tsr_context *context, tsr_device which, char *message,
                       size_t capacity) {
  *device = (bench_device){.device = which, .gpu = tsr_gpu_open(which)};
  if (device->gpu == NULL || !measure_copy(device)) {
    snprintf(message, capacity, "device %d: %s", (int)which.index, tsr_gpu_error());
    return false;
  }
  tsr_device_info info = {.struct_size = sizeof info};
  if (tsr_device_query(context, which, &info) == TSR_STATUS_SUCCESS) {
    device->flops_16 = info.peak_flops_16;
    device->flops_f32 = info.peak_flops_f32;
  }
  if (open_management() && nvml.driver(device->driver, sizeof device->driver) != 0) {
    device->driver[0] = 0;
  }
  return true;
}

json_t *bench_device_json(const bench_device *device) {
  const tsr_gpu_facts *f = tsr_gpu_describe(device->gpu);
  char cuda[32];
  snprintf(cuda, sizeof cuda, "%d.%d", f->driver / 1000, f->driver % 1000 / 10);
  return json_pack("{s:s, s:i, s:s, s:s, s:i, s:i, s:I, s:I, s:f, s:f, s:f, s:f, s:f, s:I}", "name",
                   f->name, "ordinal", device->device.index, "driver", device->driver,
                   "driver_cuda", cuda, "compute_capability", f->arch, "units", f->units,
                   "memory_bytes", (json_int_t)f->memory_bytes, "l2_bytes", (json_int_t)f->l2_bytes,
                   "highest_core_hz", 1e3 * f->clock_khz, "highest_memory_hz",
                   1e3 * f->memory_clock_khz, "peak_flops_16_estimated", device->flops_16,
                   "peak_flops_f32_estimated", device->flops_f32, "copy_bytes_per_second",
                   device->copy_bytes, "copy_array_bytes", (json_int_t)device->copy_array);
}
