// SPDX-License-Identifier: Apache-2.0
//
// common/gpu/host/runtime.h on AMD's HIP runtime, libamdhip64, which is opened when devices are asked for: where
// there is none, probe says so and nothing else of this file runs. Its entry points are declared here from
// their documentation, so that building needs no vendor headers; what changed between its releases is read
// in a way that serves all of them. The thread's current device is set back when a call returns.
#include <dlfcn.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "backends/hip/objects.h"
#include "common/gpu/host/kernels.h"
#include "common/gpu/host/runtime.h"

namespace tessera {
namespace hip {
namespace {

// hipPointerAttribute_t; its first number means other things from release 6 on.
struct PointerAttributes {
  int32_t type;
  int device;
  void *device_pointer, *host_pointer;
  int managed;
  unsigned flags;
  char more[64]; // room for what later releases add
};

// Field of the table, symbol, parameters. Results are hipError_t: 0 is success.
#define TSRI_HIP_CALLS(CALL)                                                                      \
  CALL(init, hipInit, (unsigned))                                                                 \
  CALL(count, hipGetDeviceCount, (int *))                                                         \
  CALL(current, hipGetDevice, (int *))                                                            \
  CALL(set_current, hipSetDevice, (int))                                                          \
  CALL(name, hipDeviceGetName, (char *, int, int))                                                \
  CALL(attribute, hipDeviceGetAttribute, (int *, int, int))                                       \
  CALL(memory, hipDeviceTotalMem, (size_t *, int))                                                \
  CALL(runtime_version, hipRuntimeGetVersion, (int *))                                            \
  CALL(last_error, hipGetLastError, (void))                                                       \
  CALL(load, hipModuleLoadData, (void **, const void *))                                          \
  CALL(find, hipModuleGetFunction, (void **, void *, const char *))                               \
  CALL(launch, hipModuleLaunchKernel,                                                             \
       (void *, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, void *, void **, \
        void **))                                                                                 \
  CALL(allocate, hipMallocAsync, (void **, size_t, void *))                                       \
  CALL(release, hipFreeAsync, (void *, void *))                                                   \
  CALL(is_capturing, hipStreamIsCapturing, (void *, int *))                                       \
  CALL(where, hipPointerGetAttributes, (PointerAttributes *, const void *))

struct Api {
#define TSRI_CALL(field, symbol, parameters) int(*field) parameters;
  TSRI_HIP_CALLS(TSRI_CALL)
#undef TSRI_CALL
  const char *(*error_name)(int);
  const char *(*error_text)(int);
  int (*properties)(void *, int);
  int version; // 10000000 major + 100000 minor + patch
};

constexpr struct {
  const char *symbol;
  size_t offset;
} kSymbols[] = {
#define TSRI_CALL(field, symbol, parameters) {#symbol, offsetof(Api, field)},
    TSRI_HIP_CALLS(TSRI_CALL)
#undef TSRI_CALL
        {"hipGetErrorName", offsetof(Api, error_name)},
    {"hipGetErrorString", offsetof(Api, error_text)}};

// Numbers of hipError_t, hipDeviceAttribute_t and of launch parameters.
enum {
  kInvalidValue = 1,
  kOutOfMemory = 2,
  kNoDevice = 100,
  kInvalidDevice = 101,
  kCaptureImplicit = 906,
  kAttributeClock = 5,
  kAttributeL2 = 19,
  kAttributeBusWidth = 59,
  kAttributeMemoryClock = 60,
  kAttributeUnits = 63,
  kParameterBuffer = 1,
  kParameterSize = 2,
  kParameterEnd = 3,
  kRelease6 = 60000000
};

Api api;
bool opened;
pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER; // of opening, and of loading code

tsr_status fail(const char *what, int error, tsr_reason *why) {
  api.last_error(); // takes it from the runtime, where the next call would find it again
  snprintf(why->text, sizeof why->text, "%s: %s (%s)", what, api.error_text(error), api.error_name(error));
  return error == kOutOfMemory ? TSR_STATUS_OUT_OF_MEMORY : TSR_STATUS_DEVICE_ERROR;
}

// The library and its entry points, once.
bool open_library(tsr_reason *why) {
  const char *const names[] = {"libamdhip64.so.7", "libamdhip64.so.6", "libamdhip64.so.5", "libamdhip64.so"};
  void *library = nullptr;
  if (opened) return true;
  for (const char *name : names)
    if (!library) library = dlopen(name, RTLD_NOW | RTLD_LOCAL);
  if (!library) {
    snprintf(why->text, sizeof why->text, "no HIP runtime on this machine (libamdhip64.so)");
    return false;
  }
  for (const auto &s : kSymbols) {
    void *symbol = dlsym(library, s.symbol);
    if (!symbol) {
      snprintf(why->text, sizeof why->text, "the HIP runtime has no %s: it is too old", s.symbol);
      dlclose(library);
      return false;
    }
    memcpy(reinterpret_cast<char *>(&api) + s.offset, &symbol, sizeof symbol);
  }
  void *properties = dlsym(library, "hipGetDevicePropertiesR0600");
  if (!properties) properties = dlsym(library, "hipGetDeviceProperties");
  memcpy(&api.properties, &properties, sizeof properties);
  if (!api.properties) {
    snprintf(why->text, sizeof why->text, "the HIP runtime has no hipGetDeviceProperties");
    dlclose(library);
    return false;
  }
  const int error = api.runtime_version(&api.version);
  if (error != 0) {
    fail("the HIP runtime's version", error, why);
    dlclose(library);
    return false;
  }
  opened = true;
  return true;
}

// Makes a device the thread's current one for a while.
class Current {
 public:
  explicit Current(int32_t device) {
    int before = 0;
    error_ = api.current(&before);
    if (error_ != 0 || before == device) return;
    error_ = api.set_current(device);
    if (error_ == 0) before_ = before;
  }
  ~Current() {
    if (before_ >= 0 && api.set_current(before_) != 0) api.last_error();
  }
  Current(const Current &) = delete;
  Current &operator=(const Current &) = delete;
  int error() const { return error_; }

 private:
  int error_ = 0;
  int before_ = -1; // what to set back
};

// A number that the runtime may not know: 0 then.
double attribute(int32_t device, int which) {
  int value = 0;
  if (api.attribute(&value, which, device) == 0) return value;
  api.last_error();
  return 0;
}

// The device's architecture is told only as a text in the properties, a structure that every release has laid
// out anew: it is the one text behind the device's name that begins with "gfx" and a number.
tsr_status find_arch(int32_t device, int32_t *arch, tsr_reason *why) {
  constexpr size_t kSize = 16384, kName = 256;
  char properties[kSize];
  memset(properties, 0, sizeof properties);
  *arch = 0;
  const int error = api.properties(properties, device);
  if (error != 0) return fail("properties of the device", error, why);
  for (size_t i = kName; i + 16 < kSize && *arch == 0; ++i)
    if (memcmp(properties + i, "gfx", 3) == 0) *arch = arch_of(properties + i);
  return TSR_STATUS_SUCCESS;
}

void *loaded_handle(const Function &function, int32_t device) {
  for (const Loaded *l = function.loaded.load(std::memory_order_acquire); l; l = l->next)
    if (l->device == device) return l->handle;
  return nullptr;
}

// A code object on a device; kept to the end of the process, as the runtime keeps it.
struct Module {
  const CodeObject *object;
  int32_t device;
  void *handle;
  Module *next;
};
Module *modules;

tsr_status no_memory(tsr_reason *why) {
  snprintf(why->text, sizeof why->text, "no memory for handles of the kernel's code");
  return TSR_STATUS_OUT_OF_MEMORY;
}

// With the lock held and the device current. The entry comes first: code without one would be loaded again, and
// stay on the device for nothing.
tsr_status load_module(const CodeObject &object, int32_t device, void **handle, tsr_reason *why) {
  for (const Module *m = modules; m; m = m->next)
    if (m->object == &object && m->device == device) {
      *handle = m->handle;
      return TSR_STATUS_SUCCESS;
    }
  Module *module = static_cast<Module *>(malloc(sizeof *module));
  if (!module) return no_memory(why);
  const int error = api.load(handle, object.begin);
  if (error != 0) {
    free(module);
    return fail("the kernel's code", error, why);
  }
  *module = Module{&object, device, *handle, modules};
  modules = module;
  return TSR_STATUS_SUCCESS;
}

tsr_status load_locked(const Function &function, int32_t device, void **handle, tsr_reason *why) {
  void *module = nullptr;
  int32_t arch;
  *handle = loaded_handle(function, device);
  if (*handle) return TSR_STATUS_SUCCESS;
  tsr_status status = find_arch(device, &arch, why);
  if (status != TSR_STATUS_SUCCESS) return status;
  const CodeObject *object = find_object(arch, function.object);
  if (!object) {
    snprintf(why->text, sizeof why->text, "this build has no code for gfx%x", static_cast<unsigned>(arch));
    return TSR_STATUS_DEVICE_ERROR;
  }
  const Current current(device);
  if (current.error() != 0) return fail("device", current.error(), why);
  status = load_module(*object, device, &module, why);
  if (status != TSR_STATUS_SUCCESS) return status;
  Loaded *entry = static_cast<Loaded *>(malloc(sizeof *entry));
  if (!entry) return no_memory(why);
  const int error = api.find(handle, module, function.symbol);
  if (error != 0) {
    free(entry);
    return fail(function.symbol, error, why);
  }
  *entry = Loaded{device, *handle, function.loaded.load(std::memory_order_relaxed)};
  function.loaded.store(entry, std::memory_order_release);
  return TSR_STATUS_SUCCESS;
}

tsr_status load_function(const void *opaque, int32_t device, void **handle, tsr_reason *why) {
  const Function &function = *static_cast<const Function *>(opaque);
  *handle = loaded_handle(function, device);
  if (*handle) return TSR_STATUS_SUCCESS;
  pthread_mutex_lock(&lock);
  const tsr_status status = load_locked(function, device, handle, why);
  pthread_mutex_unlock(&lock);
  return status;
}

// Transfers per clock of a device's kind of memory: HBM2e, HBM3, GDDR6.
double transfers(int32_t arch) { return arch == 0x90a ? 2 : arch == 0x942 ? 4 : 16; }

} // namespace

bool runtime_probe(int32_t *devices, tsr_reason *why) {
  int count = 0;
  *devices = 0;
  pthread_mutex_lock(&lock);
  const bool open = open_library(why);
  pthread_mutex_unlock(&lock);
  if (!open) return false;
  int error = api.init(0);
  if (error == 0) error = api.count(&count);
  *devices = count;
  if (error == 0 && count > 0) return true;
  if (error != 0 && error != kNoDevice) {
    fail("devices cannot be counted", error, why);
    return false;
  }
  api.last_error();
  snprintf(why->text, sizeof why->text, "the HIP runtime finds no device");
  return false;
}

bool runtime_facts(int32_t device, DeviceFacts *facts, tsr_reason *why) {
  size_t bytes = 0;
  memset(facts, 0, sizeof *facts);
  int error = api.name(facts->name, static_cast<int>(sizeof facts->name), device);
  if (error == 0) error = api.memory(&bytes, device);
  if (error != 0) {
    fail("properties of the device", error, why);
    return false;
  }
  facts->name[sizeof facts->name - 1] = 0;
  if (find_arch(device, &facts->arch, why) != TSR_STATUS_SUCCESS) return false;
  const int32_t arch = facts->arch;
  const bool paired = arch >> 8 != 0x9; // a multiprocessor is two compute units
  facts->processors = static_cast<int32_t>(attribute(device, kAttributeUnits));
  facts->shared_per_block = 65536;
  facts->shared_per_processor = paired ? 131072 : 65536;
  // 512 for each of 4 x 64 lanes, 1536 for each of 4 x 32.
  facts->registers_per_processor = paired ? 196608 : 131072;
  facts->l2_bytes = static_cast<int64_t>(attribute(device, kAttributeL2));
  facts->memory_bytes = static_cast<int64_t>(bytes);
  facts->clock = 1e3 * attribute(device, kAttributeClock);
  facts->bandwidth = 1e3 * attribute(device, kAttributeMemoryClock) * transfers(arch) *
                     attribute(device, kAttributeBusWidth) / 8;
  return true;
}

tsr_status runtime_prepare(int32_t device, const void *function, uint32_t shared_bytes, tsr_reason *why) {
  void *handle = nullptr;
  (void)shared_bytes; // no more than a block of any device may have
  return load_function(function, device, &handle, why);
}

// Launches of a stream follow each other here.
bool runtime_starts_early(int32_t device, const void *function) {
  (void)device;
  (void)function;
  return false;
}

tsr_status runtime_launch(int32_t device, const Launch &launch, tsr_reason *why) {
  void *handle = nullptr;
  const tsr_status status = load_function(launch.function, device, &handle, why);
  if (status != TSR_STATUS_SUCCESS) return status;
  const Current current(device);
  if (current.error() != 0) return fail("device", current.error(), why);
  size_t size = launch.args_size;
  // The runtime copies the argument and does not write to it.
  void *parameters[] = {reinterpret_cast<void *>(uintptr_t{kParameterBuffer}),
                        const_cast<void *>(launch.args),
                        reinterpret_cast<void *>(uintptr_t{kParameterSize}), &size,
                        reinterpret_cast<void *>(uintptr_t{kParameterEnd})};
  const int error = api.launch(handle, static_cast<unsigned>(launch.blocks), 1, 1,
                               static_cast<unsigned>(launch.threads), 1, 1, launch.shared_bytes,
                               launch.stream, nullptr, parameters);
  return error == 0 ? TSR_STATUS_SUCCESS : fail("launch", error, why);
}

// Rows of the copy engine are other vendors': there is nothing to encode here.
tsr_status runtime_tensor_map(const TensorBox &box, gpu::TensorMap *map, tsr_reason *why) {
  (void)box;
  (void)map;
  snprintf(why->text, sizeof why->text, "AMD's devices have no copy engine for tensors");
  return TSR_STATUS_INTERNAL;
}

tsr_status runtime_allocate(int32_t device, size_t bytes, void *stream, void **block, tsr_reason *why) {
  const Current current(device);
  int capture = 0, error = current.error();
  if (error == 0) error = api.is_capturing(stream, &capture);
  // The default stream may not even be asked while another thread captures.
  if (capture != 0 || error == kCaptureImplicit) {
    api.last_error();
    snprintf(why->text, sizeof why->text, "the stream is being captured");
    return TSR_STATUS_INVALID_ARGUMENT;
  }
  if (error == 0) error = api.allocate(block, bytes, stream);
  if (error == 0) return TSR_STATUS_SUCCESS;
  if (error == kOutOfMemory) {
    api.last_error();
    snprintf(why->text, sizeof why->text, "the device has no %zu bytes for this run", bytes);
    return TSR_STATUS_OUT_OF_MEMORY;
  }
  return fail("allocating memory", error, why);
}

void runtime_release(int32_t device, void *block, void *stream) {
  const Current current(device);
  const int error = api.release(block, stream);
  if (current.error() != 0 || error != 0) api.last_error();
}

tsr_status runtime_where(const void *pointer, Memory *where, int32_t *owner, tsr_reason *why) {
  PointerAttributes attributes;
  memset(&attributes, 0, sizeof attributes);
  *owner = -1;
  *where = Memory::kUnknown;
  const int error = api.where(&attributes, pointer);
  if (error == kInvalidValue || error == kInvalidDevice) { // nobody's
    api.last_error();
    return TSR_STATUS_SUCCESS;
  }
  // A device that a kernel has brought down answers everything so.
  if (error != 0) return fail("looking up a pointer", error, why);
  *owner = attributes.device;
  // host, device, array, unified; from release 6 on: unregistered, host, device, managed.
  const int host = api.version >= kRelease6 ? 1 : 0;
  if (attributes.managed || (attributes.type == host + 2 && host == 1))
    *where = Memory::kManaged;
  else if (attributes.type == host)
    *where = Memory::kHost;
  else if (attributes.type == host + 1)
    *where = Memory::kDevice;
  return TSR_STATUS_SUCCESS;
}

void runtime_version(char *text, size_t capacity) {
  snprintf(text, capacity, "HIP %d.%d.%d", api.version / 10000000, api.version / 100000 % 100,
           api.version % 100000);
}

} // namespace hip
} // namespace tessera
