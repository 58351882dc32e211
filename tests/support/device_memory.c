// SPDX-License-Identifier: Apache-2.0
//
// See device_memory.h. The driver's entry points are one list, written here from their documentation,
// because building must not need a vendor's headers. Shared blocks are managed memory where host and
// device may touch different pages at the same time, and page-locked host memory elsewhere.
#define _GNU_SOURCE
#include "device_memory.h"

#include <dlfcn.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>

/* Field of the table, symbol, parameters. Results are CUresult: 0 is success. */
#define DRIVER_CALLS(CALL)                                                           \
  CALL(init, cuInit, (unsigned))                                                     \
  CALL(version, cuDriverGetVersion, (int *))                                         \
  CALL(count, cuDeviceGetCount, (int *))                                             \
  CALL(get, cuDeviceGet, (int *, int))                                               \
  CALL(name, cuDeviceGetName, (char *, int, int))                                    \
  CALL(bus, cuDeviceGetPCIBusId, (char *, int, int))                                 \
  CALL(attribute, cuDeviceGetAttribute, (int *, int, int))                           \
  CALL(memory, cuDeviceTotalMem_v2, (size_t *, int))                                 \
  CALL(retain, cuDevicePrimaryCtxRetain, (void **, int))                             \
  CALL(set_current, cuCtxSetCurrent, (void *))                                       \
  CALL(synchronize, cuCtxSynchronize, (void))                                        \
  CALL(error_name, cuGetErrorName, (int, const char **))                             \
  CALL(error_text, cuGetErrorString, (int, const char **))                           \
  CALL(alloc, cuMemAlloc_v2, (uint64_t *, size_t))                                   \
  CALL(alloc_managed, cuMemAllocManaged, (uint64_t *, size_t, unsigned))             \
  CALL(release, cuMemFree_v2, (uint64_t))                                            \
  CALL(alloc_host, cuMemHostAlloc, (void **, size_t, unsigned))                      \
  CALL(release_host, cuMemFreeHost, (void *))                                        \
  CALL(to_device, cuMemcpyHtoD_v2, (uint64_t, const void *, size_t))                 \
  CALL(to_host, cuMemcpyDtoH_v2, (void *, uint64_t, size_t))                         \
  CALL(copy, cuMemcpyDtoDAsync_v2, (uint64_t, uint64_t, size_t, void *))             \
  CALL(fill, cuMemsetD8_v2, (uint64_t, unsigned char, size_t))                       \
  CALL(stream_create, cuStreamCreate, (void **, unsigned))                           \
  CALL(stream_synchronize, cuStreamSynchronize, (void *))                            \
  CALL(stream_destroy, cuStreamDestroy_v2, (void *))                                 \
  CALL(event_create, cuEventCreate, (void **, unsigned))                             \
  CALL(event_record, cuEventRecord, (void *, void *))                                \
  CALL(event_synchronize, cuEventSynchronize, (void *))                              \
  CALL(event_elapsed, cuEventElapsedTime, (float *, void *, void *))                 \
  CALL(event_destroy, cuEventDestroy_v2, (void *))                                   \
  CALL(capture_begin, cuStreamBeginCapture_v2, (void *, int))                        \
  CALL(capture_end, cuStreamEndCapture, (void *, void **))                           \
  CALL(graph_instantiate, cuGraphInstantiateWithFlags, (void **, void *, uint64_t))  \
  CALL(graph_launch, cuGraphLaunch, (void *, void *))                                \
  CALL(graph_exec_destroy, cuGraphExecDestroy, (void *))                             \
  CALL(graph_destroy, cuGraphDestroy, (void *))

typedef struct driver {
#define CALL(field, symbol, parameters) int(*field) parameters;
  DRIVER_CALLS(CALL)
#undef CALL
} driver;

static const struct {
  const char *symbol;
  size_t offset;
} symbols[] = {
#define CALL(field, symbol, parameters) {#symbol, offsetof(driver, field)},
    DRIVER_CALLS(CALL)
#undef CALL
};

/* Numbers of CUdevice_attribute and flags. */
enum {
  ATTRIBUTE_CLOCK = 13,
  ATTRIBUTE_UNITS = 16,
  ATTRIBUTE_MEMORY_CLOCK = 36,
  ATTRIBUTE_L2 = 38,
  ATTRIBUTE_MAJOR = 75,
  ATTRIBUTE_MINOR = 76,
  ATTRIBUTE_CONCURRENT_MANAGED = 89,
  MANAGED_GLOBAL = 1,
  HOST_PORTABLE_MAPPED = 3,
  STREAM_NON_BLOCKING = 1,
  CAPTURE_RELAXED = 2
};

struct tsr_gpu {
  const driver *cu;
  void *context;
  tsr_gpu_facts facts;
};

enum { DEVICES_MAX = 16 };

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static driver calls;
static bool opened;
static tsr_gpu devices[DEVICES_MAX];
static _Thread_local char error[512];

const char *tsr_gpu_error(void) { return error; }

const tsr_gpu_facts *tsr_gpu_describe(const tsr_gpu *gpu) { return &gpu->facts; }

/* True for success; else the driver's words. */
static bool worked(const driver *cu, const char *what, int result) {
  const char *name = NULL, *text = NULL;
  if (result == 0) return true;
  if (cu->error_name(result, &name) != 0 || !name) name = "unknown error";
  if (cu->error_text(result, &text) != 0 || !text) text = "";
  snprintf(error, sizeof error, "%s: %s (%d): %s", what, name, result, text);
  return false;
}

static bool open_driver(void) {
  void *library;
  size_t i;
  if (opened) return true;
  library = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
  if (!library) {
    snprintf(error, sizeof error, "no CUDA driver: %.300s", dlerror());
    return false;
  }
  for (i = 0; i < sizeof symbols / sizeof symbols[0]; ++i) {
    void *symbol = dlsym(library, symbols[i].symbol);
    if (!symbol) {
      snprintf(error, sizeof error, "the CUDA driver has no %s: it is too old", symbols[i].symbol);
      dlclose(library);
      return false;
    }
    memcpy((char *)&calls + symbols[i].offset, &symbol, sizeof symbol);
  }
  if (!worked(&calls, "cuInit", calls.init(0))) return false;
  opened = true;
  return true;
}

static int attribute(const driver *cu, int device, int which) {
  int value = 0;
  return cu->attribute(&value, which, device) == 0 ? value : 0;
}

static void read_facts(const driver *cu, int device, tsr_gpu_facts *facts) {
  size_t bytes = 0;
  int version = 0;
  if (cu->name(facts->name, (int)sizeof facts->name, device) != 0)
    snprintf(facts->name, sizeof facts->name, "unknown device");
  if (cu->bus(facts->bus, (int)sizeof facts->bus, device) != 0) facts->bus[0] = 0;
  if (cu->version(&version) == 0) facts->driver = version;
  if (cu->memory(&bytes, device) == 0) facts->memory_bytes = (int64_t)bytes;
  facts->arch =
      10 * attribute(cu, device, ATTRIBUTE_MAJOR) + attribute(cu, device, ATTRIBUTE_MINOR);
  facts->units = attribute(cu, device, ATTRIBUTE_UNITS);
  facts->l2_bytes = attribute(cu, device, ATTRIBUTE_L2);
  facts->clock_khz = attribute(cu, device, ATTRIBUTE_CLOCK);
  facts->memory_clock_khz = attribute(cu, device, ATTRIBUTE_MEMORY_CLOCK);
  facts->managed = attribute(cu, device, ATTRIBUTE_CONCURRENT_MANAGED) != 0;
}

static const tsr_gpu *open_device(int32_t index) {
  tsr_gpu *gpu;
  int count = 0, device = 0;
  if (!open_driver() || !worked(&calls, "cuDeviceGetCount", calls.count(&count))) return NULL;
  if (index < 0 || index >= count || index >= DEVICES_MAX) {
    snprintf(error, sizeof error, "CUDA device %d: the driver has %d", (int)index, count);
    return NULL;
  }
  gpu = &devices[index];
  if (gpu->context) return gpu;
  if (!worked(&calls, "cuDeviceGet", calls.get(&device, index))) return NULL;
  read_facts(&calls, device, &gpu->facts);
  if (!worked(&calls, "cuDevicePrimaryCtxRetain", calls.retain(&gpu->context, device))) {
    gpu->context = NULL;
    return NULL;
  }
  gpu->cu = &calls;
  return gpu;
}

const tsr_gpu *tsr_gpu_open(tsr_device device) {
  const tsr_gpu *gpu;
  if (device.kind != TSR_DEVICE_CUDA) {
    snprintf(error, sizeof error, "memory of device kind %d is not offered to tests",
             (int)device.kind);
    return NULL;
  }
  pthread_mutex_lock(&lock);
  gpu = open_device(device.index);
  pthread_mutex_unlock(&lock);
  return gpu;
}

bool tsr_gpu_enter(const tsr_gpu *gpu) {
  return worked(gpu->cu, "cuCtxSetCurrent", gpu->cu->set_current(gpu->context));
}

void tsr_gpu_leave(const tsr_gpu *gpu) { gpu->cu->set_current(NULL); }

/* Enters the context, then makes a call and keeps its error. */
#define DO(field, ...) (tsr_gpu_enter(gpu) && worked(gpu->cu, #field, gpu->cu->field(__VA_ARGS__)))

static uint64_t address(const void *pointer) { return (uint64_t)(uintptr_t)pointer; }

bool tsr_gpu_alloc(const tsr_gpu *gpu, tsr_gpu_place place, size_t bytes, void **block) {
  uint64_t at = 0;
  bool ok;
  *block = NULL;
  if (bytes == 0) bytes = 1;
  if (place == TSR_GPU_SHARED && !gpu->facts.managed)
    return DO(alloc_host, block, bytes, HOST_PORTABLE_MAPPED);
  ok = place == TSR_GPU_SHARED ? DO(alloc_managed, &at, bytes, MANAGED_GLOBAL)
                               : DO(alloc, &at, bytes);
  if (ok) *block = (void *)(uintptr_t)at;
  return ok;
}

void tsr_gpu_free(const tsr_gpu *gpu, tsr_gpu_place place, void *block) {
  if (!block || !tsr_gpu_enter(gpu)) return;
  if (place == TSR_GPU_SHARED && !gpu->facts.managed)
    gpu->cu->release_host(block);
  else
    gpu->cu->release(address(block));
}

bool tsr_gpu_synchronize(const tsr_gpu *gpu) {
  return tsr_gpu_enter(gpu) && worked(gpu->cu, "waiting for the device", gpu->cu->synchronize());
}

bool tsr_gpu_to_device(const tsr_gpu *gpu, void *to, const void *from, size_t bytes) {
  return bytes == 0 || DO(to_device, address(to), from, bytes);
}

bool tsr_gpu_to_host(const tsr_gpu *gpu, void *to, const void *from, size_t bytes) {
  return bytes == 0 || DO(to_host, to, address(from), bytes);
}

/* The driver's fill may return before it is done. */
bool tsr_gpu_fill(const tsr_gpu *gpu, void *to, unsigned char byte, size_t bytes) {
  return bytes == 0 || (DO(fill, address(to), byte, bytes) && tsr_gpu_synchronize(gpu));
}

bool tsr_gpu_copy(const tsr_gpu *gpu, void *to, const void *from, size_t bytes, void *stream) {
  return DO(copy, address(to), address(from), bytes, stream);
}

bool tsr_gpu_stream_create(const tsr_gpu *gpu, void **stream) {
  *stream = NULL;
  return DO(stream_create, stream, STREAM_NON_BLOCKING);
}

bool tsr_gpu_stream_synchronize(const tsr_gpu *gpu, void *stream) {
  return DO(stream_synchronize, stream);
}

void tsr_gpu_stream_destroy(const tsr_gpu *gpu, void *stream) {
  if (stream && tsr_gpu_enter(gpu)) gpu->cu->stream_destroy(stream);
}

bool tsr_gpu_event_create(const tsr_gpu *gpu, void **event) {
  *event = NULL;
  return DO(event_create, event, 0);
}

bool tsr_gpu_event_record(const tsr_gpu *gpu, void *event, void *stream) {
  return DO(event_record, event, stream);
}

bool tsr_gpu_event_seconds(const tsr_gpu *gpu, void *begin, void *end, double *seconds) {
  float milliseconds = 0;
  if (!DO(event_synchronize, end) || !DO(event_elapsed, &milliseconds, begin, end)) return false;
  *seconds = (double)milliseconds * 1e-3;
  return true;
}

void tsr_gpu_event_destroy(const tsr_gpu *gpu, void *event) {
  if (event && tsr_gpu_enter(gpu)) gpu->cu->event_destroy(event);
}

bool tsr_gpu_capture_begin(const tsr_gpu *gpu, void *stream) {
  return DO(capture_begin, stream, CAPTURE_RELAXED);
}

bool tsr_gpu_capture_end(const tsr_gpu *gpu, void *stream, void **graph) {
  void *made = NULL;
  bool ok;
  *graph = NULL;
  if (!DO(capture_end, stream, &made)) return false;
  ok = DO(graph_instantiate, graph, made, 0);
  gpu->cu->graph_destroy(made);
  return ok;
}

bool tsr_gpu_graph_launch(const tsr_gpu *gpu, void *graph, void *stream) {
  return DO(graph_launch, graph, stream);
}

void tsr_gpu_graph_destroy(const tsr_gpu *gpu, void *graph) {
  if (graph && tsr_gpu_enter(gpu)) gpu->cu->graph_exec_destroy(graph);
}
