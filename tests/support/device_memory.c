// SPDX-License-Identifier: Apache-2.0
//
// See device_memory.h. The drivers' entry points are one list, written here from their documentation,
// because building must not need a vendor's headers: HIP's have CUDA's parameters under other names, but for
// a few that are wrapped below. Shared blocks are managed memory where host and device may touch different
// pages at the same time, and page-locked host memory elsewhere.
#define _GNU_SOURCE
#include "device_memory.h"

#include <dlfcn.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>

/* Field of the table, symbols of CUDA and HIP (NULL: wrapped), parameters. Results: 0 is success. */
#define DRIVER_CALLS(CALL)                                                                                             \
  CALL(init, "cuInit", "hipInit", (unsigned))                                                                          \
  CALL(version, "cuDriverGetVersion", "hipDriverGetVersion", (int *))                                                  \
  CALL(count, "cuDeviceGetCount", "hipGetDeviceCount", (int *))                                                        \
  CALL(get, "cuDeviceGet", "hipDeviceGet", (int *, int))                                                               \
  CALL(name, "cuDeviceGetName", "hipDeviceGetName", (char *, int, int))                                                \
  CALL(bus, "cuDeviceGetPCIBusId", "hipDeviceGetPCIBusId", (char *, int, int))                                         \
  CALL(attribute, "cuDeviceGetAttribute", "hipDeviceGetAttribute", (int *, int, int))                                  \
  CALL(memory, "cuDeviceTotalMem_v2", "hipDeviceTotalMem", (size_t *, int))                                            \
  CALL(retain, "cuDevicePrimaryCtxRetain", NULL, (void **, int))                                                       \
  CALL(set_current, "cuCtxSetCurrent", NULL, (void *))                                                                 \
  CALL(synchronize, "cuCtxSynchronize", "hipDeviceSynchronize", (void))                                                \
  CALL(error_name, "cuGetErrorName", NULL, (int, const char **))                                                       \
  CALL(error_text, "cuGetErrorString", NULL, (int, const char **))                                                     \
  CALL(alloc, "cuMemAlloc_v2", "hipMalloc", (uint64_t *, size_t))                                                      \
  CALL(alloc_managed, "cuMemAllocManaged", "hipMallocManaged", (uint64_t *, size_t, unsigned))                         \
  CALL(release, "cuMemFree_v2", "hipFree", (uint64_t))                                                                 \
  CALL(alloc_host, "cuMemHostAlloc", "hipHostMalloc", (void **, size_t, unsigned))                                     \
  CALL(release_host, "cuMemFreeHost", "hipHostFree", (void *))                                                         \
  CALL(to_device, "cuMemcpyHtoD_v2", "hipMemcpyHtoD", (uint64_t, const void *, size_t))                                \
  CALL(to_host, "cuMemcpyDtoH_v2", "hipMemcpyDtoH", (void *, uint64_t, size_t))                                        \
  CALL(copy, "cuMemcpyDtoDAsync_v2", "hipMemcpyDtoDAsync", (uint64_t, uint64_t, size_t, void *))                       \
  CALL(fill, "cuMemsetD8_v2", "hipMemsetD8", (uint64_t, unsigned char, size_t))                                        \
  CALL(stream_create, "cuStreamCreate", "hipStreamCreateWithFlags", (void **, unsigned))                               \
  CALL(stream_synchronize, "cuStreamSynchronize", "hipStreamSynchronize", (void *))                                    \
  CALL(stream_destroy, "cuStreamDestroy_v2", "hipStreamDestroy", (void *))                                             \
  CALL(event_create, "cuEventCreate", "hipEventCreateWithFlags", (void **, unsigned))                                  \
  CALL(event_record, "cuEventRecord", "hipEventRecord", (void *, void *))                                              \
  CALL(event_synchronize, "cuEventSynchronize", "hipEventSynchronize", (void *))                                       \
  CALL(event_elapsed, "cuEventElapsedTime", "hipEventElapsedTime", (float *, void *, void *))                          \
  CALL(event_destroy, "cuEventDestroy_v2", "hipEventDestroy", (void *))                                                \
  CALL(capture_begin, "cuStreamBeginCapture_v2", "hipStreamBeginCapture", (void *, int))                               \
  CALL(capture_end, "cuStreamEndCapture", "hipStreamEndCapture", (void *, void **))                                    \
  CALL(graph_instantiate, "cuGraphInstantiateWithFlags", "hipGraphInstantiateWithFlags", (void **, void *, uint64_t))  \
  CALL(graph_launch, "cuGraphLaunch", "hipGraphLaunch", (void *, void *))                                              \
  CALL(graph_exec_destroy, "cuGraphExecDestroy", "hipGraphExecDestroy", (void *))                                      \
  CALL(graph_destroy, "cuGraphDestroy", "hipGraphDestroy", (void *))

typedef struct driver {
#define CALL(field, cuda, hip, parameters) int(*field) parameters;
  DRIVER_CALLS(CALL)
#undef CALL
} driver;

static const struct {
  const char *symbol[2]; /* by kind of driver */
  size_t offset;
} symbols[] = {
#define CALL(field, cuda, hip, parameters) {{cuda, hip}, offsetof(driver, field)},
    DRIVER_CALLS(CALL)
#undef CALL
};

/* Numbers of CUdevice_attribute and hipDeviceAttribute_t, and flags, which both have alike. */
typedef struct attributes {
  int clock, units, memory_clock, l2, major, minor, concurrent_managed;
} attributes;
static const attributes numbers[2] = {{13, 16, 36, 38, 75, 76, 89}, {5, 63, 60, 19, 23, 61, 9}};

enum { KIND_CUDA = 0, KIND_HIP = 1 };
enum {
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
static driver drivers[2];
static bool opened[2];
static tsr_gpu devices[2][DEVICES_MAX];
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

/* What HIP has in another form. Its contexts are its devices: device + 1 stands for one. */
static int (*hip_set_device)(int);
static const char *(*hip_error_name)(int);
static const char *(*hip_error_text)(int);

static int hip_retain(void **context, int device) {
  *context = (void *)(uintptr_t)(device + 1);
  return 0;
}

static int hip_set_current(void *context) {
  return context ? hip_set_device((int)(uintptr_t)context - 1) : 0;
}

static int hip_name_of(int result, const char **text) {
  *text = hip_error_name(result);
  return 0;
}

static int hip_text_of(int result, const char **text) {
  *text = hip_error_text(result);
  return 0;
}

static bool find_symbol(void *library, const char *name, void *to) {
  void *symbol = dlsym(library, name);
  if (!symbol) {
    snprintf(error, sizeof error, "the driver has no %s: it is too old", name);
    return false;
  }
  memcpy(to, &symbol, sizeof symbol);
  return true;
}

static void *open_library(int kind) {
  static const char *const names[2][4] = {
      {"libcuda.so.1"}, {"libamdhip64.so.7", "libamdhip64.so.6", "libamdhip64.so.5", "libamdhip64.so"}};
  void *library = NULL;
  int i;
  for (i = 0; i < 4 && !library && names[kind][i]; ++i)
    library = dlopen(names[kind][i], RTLD_NOW | RTLD_LOCAL);
  if (!library)
    snprintf(error, sizeof error, "no %s: %.300s", kind == KIND_CUDA ? "CUDA driver" : "HIP runtime", dlerror());
  return library;
}

static bool open_driver(int kind) {
  driver *calls = &drivers[kind];
  void *library;
  bool found = true;
  size_t i;
  if (opened[kind]) return true;
  if (!(library = open_library(kind))) return false;
  for (i = 0; i < sizeof symbols / sizeof symbols[0] && found; ++i)
    if (symbols[i].symbol[kind])
      found = find_symbol(library, symbols[i].symbol[kind], (char *)calls + symbols[i].offset);
  if (kind == KIND_HIP) {
    calls->retain = hip_retain;
    calls->set_current = hip_set_current;
    calls->error_name = hip_name_of;
    calls->error_text = hip_text_of;
    found = found && find_symbol(library, "hipSetDevice", &hip_set_device) &&
            find_symbol(library, "hipGetErrorName", &hip_error_name) &&
            find_symbol(library, "hipGetErrorString", &hip_error_text);
  }
  if (!found) {
    dlclose(library);
    return false;
  }
  if (!worked(calls, "initialisation", calls->init(0))) return false;
  opened[kind] = true;
  return true;
}

static int attribute(const driver *cu, int device, int which) {
  int value = 0;
  return cu->attribute(&value, which, device) == 0 ? value : 0;
}

static void read_facts(const driver *cu, const attributes *a, int device, tsr_gpu_facts *facts) {
  size_t bytes = 0;
  int version = 0;
  if (cu->name(facts->name, (int)sizeof facts->name, device) != 0)
    snprintf(facts->name, sizeof facts->name, "unknown device");
  if (cu->bus(facts->bus, (int)sizeof facts->bus, device) != 0) facts->bus[0] = 0;
  if (cu->version(&version) == 0) facts->driver = version;
  if (cu->memory(&bytes, device) == 0) facts->memory_bytes = (int64_t)bytes;
  facts->arch = 10 * attribute(cu, device, a->major) + attribute(cu, device, a->minor);
  facts->units = attribute(cu, device, a->units);
  facts->l2_bytes = attribute(cu, device, a->l2);
  facts->clock_khz = attribute(cu, device, a->clock);
  facts->memory_clock_khz = attribute(cu, device, a->memory_clock);
  facts->managed = attribute(cu, device, a->concurrent_managed) != 0;
}

static const tsr_gpu *open_device(int kind, int32_t index) {
  const driver *calls = &drivers[kind];
  tsr_gpu *gpu;
  int count = 0, device = 0;
  if (!open_driver(kind) || !worked(calls, "counting devices", calls->count(&count))) return NULL;
  if (index < 0 || index >= count || index >= DEVICES_MAX) {
    snprintf(error, sizeof error, "device %d: the driver has %d", (int)index, count);
    return NULL;
  }
  gpu = &devices[kind][index];
  if (gpu->context) return gpu;
  if (!worked(calls, "finding the device", calls->get(&device, index))) return NULL;
  read_facts(calls, &numbers[kind], device, &gpu->facts);
  if (!worked(calls, "the device's context", calls->retain(&gpu->context, device))) {
    gpu->context = NULL;
    return NULL;
  }
  gpu->cu = calls;
  return gpu;
}

const tsr_gpu *tsr_gpu_open(tsr_device device) {
  const tsr_gpu *gpu;
  if (device.kind != TSR_DEVICE_CUDA && device.kind != TSR_DEVICE_HIP) {
    snprintf(error, sizeof error, "memory of device kind %d is not offered to tests",
             (int)device.kind);
    return NULL;
  }
  pthread_mutex_lock(&lock);
  gpu = open_device(device.kind == TSR_DEVICE_HIP ? KIND_HIP : KIND_CUDA, device.index);
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
