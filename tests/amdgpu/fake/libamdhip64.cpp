// SPDX-License-Identifier: Apache-2.0
//
// A HIP runtime for machines without an AMD GPU: the entry points that the HIP backend and device_memory.c
// open, over host memory, with kernels run by the executor of tests/amdgpu; built as libamdhip64.so.6. Work
// runs only when somebody waits for it, and a fault is for ever, as on a device. Environment:
//   FAKE_HIP_DEVICES    architectures of the devices ("gfx90a,gfx942,gfx1100,gfx1201")
//   FAKE_HIP_BACKWARDS  1: waves and blocks run in falling order
//   FAKE_HIP_OBJECTS    a folder of code objects <kernel>.co that take the place of those of the library
//   FAKE_HIP_LAUNCHES   a file to which the name of every kernel is added that ran to its end, once a process
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>

#include <deque>
#include <fstream>
#include <functional>
#include <iterator>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "tests/amdgpu/executor.h"

#define EXPORT extern "C" __attribute__((visibility("default")))

namespace {

using tessera::amdgpu::CodeObject;
using tessera::amdgpu::Executor;
using tessera::amdgpu::Kernel;
using tessera::amdgpu::LaunchOptions;

enum {
  kInvalidValue = 1,
  kOutOfMemory = 2,
  kInvalidConfiguration = 9,
  kNoDevice = 100,
  kInvalidDevice = 101,
  kInvalidImage = 200,
  kNoBinary = 209,
  kNotFound = 500,
  kLaunchFailure = 719,
  kCaptureUnsupported = 900
};

struct Region {
  unsigned char *base;
  size_t size, mapped;
  int device;
  bool managed, host;
};

struct Module {
  std::unique_ptr<CodeObject> object;
  int device;
};
struct Function {
  Kernel *kernel;
  int device;
};

using Work = std::function<void()>;
struct Stream {
  bool capturing = false;
  std::vector<Work> captured;
};
struct Graph {
  std::vector<Work> work;
};
struct Event {
  double time = 0;
};
struct Device {
  std::string arch;
  Executor executor;
};

std::recursive_mutex lock;
std::vector<std::unique_ptr<Device>> devices;
std::vector<Region> regions;
std::deque<Work> queue;
int fault; // 0, or the error that everything ends in from then on
std::string fault_text = "an exception while executing a kernel";
thread_local int current; // device

using Guard = std::lock_guard<std::recursive_mutex>;

void set_up() {
  if (!devices.empty()) return;
  const char *text = getenv("FAKE_HIP_DEVICES");
  std::string list = text ? text : "gfx90a,gfx942,gfx1100,gfx1201";
  while (!list.empty()) {
    const size_t comma = list.find(',');
    devices.emplace_back(new Device);
    devices.back()->arch = list.substr(0, comma);
    list = comma == std::string::npos ? "" : list.substr(comma + 1);
  }
}

bool is_device(int device) { return device >= 0 && device < static_cast<int>(devices.size()); }
Device &device_at(int device) { return *devices[static_cast<size_t>(device)]; }

double now() {
  struct timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return static_cast<double>(t.tv_sec) + 1e-9 * static_cast<double>(t.tv_nsec);
}

int drain() {
  while (!queue.empty()) {
    const Work work = std::move(queue.front());
    queue.pop_front();
    if (!fault) work();
  }
  return fault;
}

// Work on a stream that captures is recorded, else it waits in the queue.
int enqueue(void *stream, Work work) {
  Stream *s = static_cast<Stream *>(stream);
  if (fault) return fault;
  if (s && s->capturing)
    s->captured.push_back(std::move(work));
  else
    queue.push_back(std::move(work));
  return 0;
}

Region *find_region(const void *pointer) {
  const unsigned char *p = static_cast<const unsigned char *>(pointer);
  for (Region &r : regions)
    if (p >= r.base && p < r.base + r.size) return &r;
  return nullptr;
}

bool holds(const void *pointer, size_t bytes) {
  const Region *r = find_region(pointer);
  return r && static_cast<size_t>(static_cast<const unsigned char *>(pointer) - r->base) + bytes <= r->size;
}

// Memory that ends where an inaccessible page begins, but for its alignment.
int allocate(void **block, size_t bytes, bool managed, bool host) {
  constexpr size_t kPage = 4096, kAlign = 256;
  *block = nullptr;
  if (fault) return fault;
  if (bytes == 0 || bytes > size_t{1} << 38) return bytes ? kOutOfMemory : kInvalidValue;
  const size_t mapped = (bytes + kPage - 1) / kPage * kPage + kPage;
  void *at =
      mmap(nullptr, mapped, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (at == MAP_FAILED) return kOutOfMemory;
  unsigned char *begin = static_cast<unsigned char *>(at);
  mprotect(begin + mapped - kPage, kPage, PROT_NONE);
  unsigned char *base = begin + (mapped - kPage - bytes) / kAlign * kAlign;
  memset(base, 0xab, bytes < size_t{1} << 28 ? bytes : 0);
  regions.push_back(Region{base, bytes, mapped, current, managed, host});
  for (size_t d = 0; d < devices.size(); ++d)
    if (managed || host || static_cast<int>(d) == current) devices[d]->executor.add_block(base, bytes);
  *block = base;
  return 0;
}

int release(void *block) {
  for (size_t i = 0; i < regions.size(); ++i) {
    if (regions[i].base != block) continue;
    const Region r = regions[i];
    for (const auto &d : devices) d->executor.remove_block(block);
    const uintptr_t begin = reinterpret_cast<uintptr_t>(r.base) & ~uintptr_t{4095};
    munmap(reinterpret_cast<void *>(begin), r.mapped);
    regions.erase(regions.begin() + static_cast<std::ptrdiff_t>(i));
    return 0;
  }
  return block ? kInvalidValue : 0;
}

void note_launch(const std::string &kernel) {
  static std::set<std::string> noted;
  const char *path = getenv("FAKE_HIP_LAUNCHES");
  if (path && noted.insert(kernel).second) std::ofstream(path, std::ios::app) << kernel << "\n";
}

void run_kernel(const Function &f, const LaunchOptions &options, const std::vector<unsigned char> &args) {
  std::string error;
  if (device_at(f.device).executor.launch(f.kernel, options, args.data(), args.size(), &error))
    return note_launch(f.kernel->name);
  fault = kLaunchFailure;
  fault_text = error;
  fprintf(stderr, "fake libamdhip64: %s\n", error.c_str());
}

} // namespace

EXPORT int hipInit(unsigned) {
  const Guard guard(lock);
  set_up();
  return 0;
}
EXPORT int hipRuntimeGetVersion(int *version) {
  *version = 60200000;
  return 0;
}
EXPORT int hipDriverGetVersion(int *version) { return hipRuntimeGetVersion(version); }
EXPORT int hipGetDeviceCount(int *count) {
  const Guard guard(lock);
  set_up();
  *count = static_cast<int>(devices.size());
  return *count ? 0 : kNoDevice;
}
EXPORT int hipDeviceGet(int *device, int index) {
  *device = index;
  return is_device(index) ? 0 : kInvalidDevice;
}
EXPORT int hipGetDevice(int *device) {
  *device = current;
  return 0;
}
EXPORT int hipSetDevice(int device) {
  if (!is_device(device)) return kInvalidDevice;
  current = device;
  return 0;
}
EXPORT int hipDeviceGetName(char *name, int size, int device) {
  if (!is_device(device)) return kInvalidDevice;
  snprintf(name, static_cast<size_t>(size), "executor of %s", device_at(device).arch.c_str());
  return 0;
}
EXPORT int hipDeviceGetPCIBusId(char *name, int size, int device) {
  snprintf(name, static_cast<size_t>(size), "0000:%02x:00.0", static_cast<unsigned>(device));
  return 0;
}
EXPORT int hipDeviceTotalMem(size_t *bytes, int) {
  *bytes = size_t{16} << 30;
  return 0;
}
// Numbers of hipDeviceAttribute_t: clock, managed memory used by both sides at once, L2, width of the bus,
// memory clock, multiprocessors.
EXPORT int hipDeviceGetAttribute(int *value, int which, int device) {
  static const struct {
    int which, value;
  } known[] = {{5, 2000000}, {9, 1}, {19, 4 << 20}, {59, 4096}, {60, 1300000}, {63, 104}};
  if (!is_device(device)) return kInvalidDevice;
  for (const auto &k : known)
    if (k.which == which) {
      *value = k.value;
      return 0;
    }
  return kInvalidValue;
}
// The name and, where release 6 has it, the architecture's.
EXPORT int hipGetDevicePropertiesR0600(void *properties, int device) {
  constexpr size_t kArch = 1160;
  if (!is_device(device)) return kInvalidDevice;
  char *to = static_cast<char *>(properties);
  snprintf(to, 256, "executor of %s", device_at(device).arch.c_str());
  snprintf(to + kArch, 256, "%s:sramecc+:xnack-", device_at(device).arch.c_str());
  return 0;
}
EXPORT int hipGetLastError(void) { return 0; }
EXPORT const char *hipGetErrorName(int error) {
  switch (error) {
    case 0: return "hipSuccess";
    case kInvalidValue: return "hipErrorInvalidValue";
    case kOutOfMemory: return "hipErrorOutOfMemory";
    case kNoDevice: return "hipErrorNoDevice";
    case kInvalidImage: return "hipErrorInvalidImage";
    case kNoBinary: return "hipErrorNoBinaryForGpu";
    case kNotFound: return "hipErrorNotFound";
    case kLaunchFailure: return "hipErrorLaunchFailure";
    default: return "hipErrorUnknown";
  }
}
EXPORT const char *hipGetErrorString(int error) {
  const Guard guard(lock);
  return error == kLaunchFailure ? fault_text.c_str() : "an error of the fake runtime";
}

EXPORT int hipMalloc(void **block, size_t bytes) {
  const Guard guard(lock);
  return allocate(block, bytes, false, false);
}
EXPORT int hipMallocManaged(void **block, size_t bytes, unsigned) {
  const Guard guard(lock);
  return allocate(block, bytes, true, false);
}
EXPORT int hipHostMalloc(void **block, size_t bytes, unsigned) {
  const Guard guard(lock);
  return allocate(block, bytes, false, true);
}
EXPORT int hipFree(void *block) {
  const Guard guard(lock);
  const int error = drain();
  const int freed = release(block);
  return error ? error : freed;
}
EXPORT int hipHostFree(void *block) { return hipFree(block); }
EXPORT int hipMallocAsync(void **block, size_t bytes, void *stream) {
  const Guard guard(lock);
  if (stream && static_cast<Stream *>(stream)->capturing) return kCaptureUnsupported;
  return allocate(block, bytes, false, false);
}
EXPORT int hipFreeAsync(void *block, void *stream) {
  const Guard guard(lock);
  return enqueue(stream, [block] { release(block); });
}
EXPORT int hipMemcpyHtoD(void *to, const void *from, size_t bytes) {
  const Guard guard(lock);
  const int error = drain();
  if (error || !holds(to, bytes)) return error ? error : kInvalidValue;
  memcpy(to, from, bytes);
  return 0;
}
EXPORT int hipMemcpyDtoH(void *to, const void *from, size_t bytes) {
  const Guard guard(lock);
  const int error = drain();
  if (error || !holds(from, bytes)) return error ? error : kInvalidValue;
  memcpy(to, from, bytes);
  return 0;
}
EXPORT int hipMemcpyDtoDAsync(void *to, const void *from, size_t bytes, void *stream) {
  const Guard guard(lock);
  if (!holds(to, bytes) || !holds(from, bytes)) return kInvalidValue;
  return enqueue(stream, [=] { memmove(to, from, bytes); });
}
EXPORT int hipMemsetAsync(void *to, int byte, size_t bytes, void *stream) {
  const Guard guard(lock);
  if (!holds(to, bytes)) return kInvalidValue;
  return enqueue(stream, [=] { memset(to, byte, bytes); });
}
EXPORT int hipMemsetD8(void *to, unsigned char byte, size_t bytes) {
  return hipMemsetAsync(to, byte, bytes, nullptr);
}

struct PointerAttributes {
  int type, device;
  void *device_pointer, *host_pointer;
  int managed;
  unsigned flags;
};
EXPORT int hipPointerGetAttributes(PointerAttributes *to, const void *pointer) {
  const Guard guard(lock);
  const Region *r = find_region(pointer);
  if (!r) { // unregistered
    *to = PointerAttributes{0, -2, nullptr, nullptr, 0, 0};
    return 0;
  }
  const int type = r->managed ? 3 : r->host ? 1 : 2;
  *to = PointerAttributes{type, r->device, r->base, r->base, r->managed, 0};
  return 0;
}

namespace {

// The kernel of FAKE_HIP_OBJECTS that takes the place of a shipped one, so that faults can be tried out through
// the whole backend; null: none.
Kernel *replacement(const char *name) {
  static std::vector<std::pair<std::unique_ptr<CodeObject>, std::string>> loaded; // with its image
  const char *folder = getenv("FAKE_HIP_OBJECTS");
  if (!folder) return nullptr;
  const std::string path = std::string(folder) + "/" + name + ".co";
  std::ifstream file(path, std::ios::binary);
  if (!file) return nullptr;
  std::string image((std::istreambuf_iterator<char>(file)), std::istreambuf_iterator<char>()), error;
  loaded.emplace_back(nullptr, std::move(image));
  loaded.back().first = CodeObject::load(loaded.back().second.data(), loaded.back().second.size(), &error);
  if (!loaded.back().first) fprintf(stderr, "fake libamdhip64: %s: %s\n", path.c_str(), error.c_str());
  return loaded.back().first ? loaded.back().first->find(name) : nullptr;
}

} // namespace

EXPORT int hipModuleLoadData(void **module, const void *image) {
  const Guard guard(lock);
  std::string error;
  std::unique_ptr<CodeObject> object = CodeObject::load(image, 0, &error);
  if (!object) {
    fprintf(stderr, "fake libamdhip64: %s\n", error.c_str());
    return kInvalidImage;
  }
  if (object->device() != device_at(current).arch) return kNoBinary;
  *module = new Module{std::move(object), current};
  return 0;
}
EXPORT int hipModuleGetFunction(void **function, void *module, const char *name) {
  const Guard guard(lock);
  Module *m = static_cast<Module *>(module);
  Kernel *kernel = replacement(name);
  if (!kernel) kernel = m->object->find(name);
  if (!kernel) return kNotFound;
  *function = new Function{kernel, m->device};
  return 0;
}
EXPORT int hipModuleLaunchKernel(void *function, unsigned gx, unsigned gy, unsigned gz, unsigned bx,
                                 unsigned by, unsigned bz, unsigned shared, void *stream,
                                 void **parameters, void **extra) {
  const Guard guard(lock);
  const Function f = *static_cast<Function *>(function);
  if (parameters || !extra || extra[0] != reinterpret_cast<void *>(1) ||
      extra[2] != reinterpret_cast<void *>(2))
    return kInvalidValue;
  const size_t bytes = *static_cast<size_t *>(extra[3]);
  const unsigned char *args = static_cast<unsigned char *>(extra[1]);
  if (!gx || !gy || !gz || bx * by * bz > 1024 || shared > 65536 || f.device != current)
    return kInvalidConfiguration;
  LaunchOptions options;
  options.grid.x = gx, options.grid.y = gy, options.grid.z = gz;
  options.block.x = bx, options.block.y = by, options.block.z = bz;
  options.dynamic_lds = shared;
  const char *backwards = getenv("FAKE_HIP_BACKWARDS");
  options.backwards = backwards && *backwards == '1';
  const std::vector<unsigned char> copy(args, args + bytes);
  return enqueue(stream, [=] { run_kernel(f, options, copy); });
}

EXPORT int hipDeviceSynchronize(void) {
  const Guard guard(lock);
  return drain();
}
EXPORT int hipStreamCreateWithFlags(void **stream, unsigned) {
  *stream = new Stream;
  return 0;
}
EXPORT int hipStreamSynchronize(void *stream) {
  const Guard guard(lock);
  if (stream && static_cast<Stream *>(stream)->capturing) return kCaptureUnsupported;
  return drain();
}
EXPORT int hipStreamDestroy(void *stream) {
  const Guard guard(lock);
  const int error = drain();
  delete static_cast<Stream *>(stream);
  return error;
}
EXPORT int hipStreamIsCapturing(void *stream, int *status) {
  const Guard guard(lock);
  *status = stream && static_cast<Stream *>(stream)->capturing;
  return 0;
}
EXPORT int hipStreamBeginCapture(void *stream, int) {
  const Guard guard(lock);
  if (!stream) return kCaptureUnsupported;
  static_cast<Stream *>(stream)->capturing = true;
  return 0;
}
EXPORT int hipStreamEndCapture(void *stream, void **graph) {
  const Guard guard(lock);
  Stream *s = static_cast<Stream *>(stream);
  *graph = new Graph{std::move(s->captured)};
  s->captured.clear();
  s->capturing = false;
  return 0;
}
EXPORT int hipGraphInstantiateWithFlags(void **made, void *graph, unsigned long long) {
  *made = new Graph(*static_cast<Graph *>(graph));
  return 0;
}
EXPORT int hipGraphLaunch(void *graph, void *stream) {
  const Guard guard(lock);
  int error = fault;
  for (const Work &work : static_cast<Graph *>(graph)->work)
    if (!error) error = enqueue(stream, work);
  return error;
}
EXPORT int hipGraphDestroy(void *graph) {
  delete static_cast<Graph *>(graph);
  return 0;
}
EXPORT int hipGraphExecDestroy(void *graph) {
  const Guard guard(lock);
  const int error = drain();
  delete static_cast<Graph *>(graph);
  return error;
}

EXPORT int hipEventCreateWithFlags(void **event, unsigned) {
  *event = new Event;
  return 0;
}
EXPORT int hipEventRecord(void *event, void *stream) {
  const Guard guard(lock);
  return enqueue(stream, [event] { static_cast<Event *>(event)->time = now(); });
}
EXPORT int hipEventSynchronize(void *) {
  const Guard guard(lock);
  return drain();
}
EXPORT int hipEventElapsedTime(float *milliseconds, void *begin, void *end) {
  *milliseconds =
      static_cast<float>(1e3 * (static_cast<Event *>(end)->time - static_cast<Event *>(begin)->time));
  return 0;
}
EXPORT int hipEventDestroy(void *event) {
  const Guard guard(lock);
  const int error = drain();
  delete static_cast<Event *>(event);
  return error;
}
