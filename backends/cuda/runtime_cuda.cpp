// SPDX-License-Identifier: Apache-2.0
//
// common/gpu/host/runtime.h on the CUDA runtime, which is linked statically and looks for the driver when it is first
// called: where there is none, probe says so and nothing else of this file runs. The thread's current
// device is the caller's: it is changed only where it differs, and set back.
#include <cuda.h> // types alone: the driver's functions are asked for by name
#include <cuda_runtime_api.h>
#include <stdio.h>
#include <string.h>

#include <atomic>

#include "common/gpu/host/runtime.h"

namespace tessera {
namespace cuda {
namespace {

// Text and status of a failure; also takes it from the runtime, where the next call would find it again.
tsr_status fail(const char *what, cudaError_t error, tsr_reason *why) {
  cudaGetLastError();
  snprintf(why->text, sizeof why->text, "%s: %s (%s)", what, cudaGetErrorString(error),
           cudaGetErrorName(error));
  return error == cudaErrorMemoryAllocation ? TSR_STATUS_OUT_OF_MEMORY : TSR_STATUS_DEVICE_ERROR;
}

// Makes a device the thread's current one for a while.
class Current {
 public:
  explicit Current(int32_t device) {
    int before = 0;
    error_ = cudaGetDevice(&before);
    if (error_ != cudaSuccess || before == device) return;
    error_ = cudaSetDevice(device);
    if (error_ == cudaSuccess) before_ = before;
  }
  ~Current() {
    if (before_ >= 0 && cudaSetDevice(before_) != cudaSuccess) cudaGetLastError();
  }
  Current(const Current &) = delete;
  Current &operator=(const Current &) = delete;
  cudaError_t error() const { return error_; }

 private:
  cudaError_t error_ = cudaSuccess;
  int before_ = -1; // what to set back
};

// A number that this runtime or driver may not know: 0 then.
int64_t attribute(int32_t device, cudaDeviceAttr which) {
  int value = 0;
  if (cudaDeviceGetAttribute(&value, which, device) != cudaSuccess) {
    cudaGetLastError();
    return 0;
  }
  return value;
}

} // namespace

bool runtime_probe(int32_t *devices, tsr_reason *why) {
  int count = 0;
  const cudaError_t error = cudaGetDeviceCount(&count);
  *devices = count;
  if (error == cudaSuccess && count > 0) return true;
  if (error == cudaErrorInsufficientDriver) {
    int driver = 0;
    cudaGetLastError();
    if (cudaDriverGetVersion(&driver) == cudaSuccess && driver > 0)
      snprintf(why->text, sizeof why->text,
               "the driver serves CUDA %d.%d, this build needs %d.%d or later", driver / 1000,
               driver % 1000 / 10, CUDART_VERSION / 1000, CUDART_VERSION % 1000 / 10);
    else
      snprintf(why->text, sizeof why->text, "no CUDA driver on this machine (libcuda.so.1)");
    return false;
  }
  if (error == cudaSuccess || error == cudaErrorNoDevice) {
    cudaGetLastError();
    snprintf(why->text, sizeof why->text, "the CUDA driver finds no device");
    return false;
  }
  fail("devices cannot be counted", error, why);
  return false;
}

bool runtime_facts(int32_t device, DeviceFacts *facts, tsr_reason *why) {
  cudaDeviceProp own;
  const cudaError_t error = cudaGetDeviceProperties(&own, device);
  if (error != cudaSuccess) {
    fail("properties of the device", error, why);
    return false;
  }
  memset(facts, 0, sizeof *facts);
  snprintf(facts->name, sizeof facts->name, "%s", own.name);
  facts->arch = own.major * 10 + own.minor;
  facts->processors = own.multiProcessorCount;
  facts->shared_per_block = static_cast<int64_t>(own.sharedMemPerBlockOptin);
  facts->shared_per_processor = static_cast<int64_t>(own.sharedMemPerMultiprocessor);
  facts->registers_per_processor = own.regsPerMultiprocessor;
  facts->l2_bytes = own.l2CacheSize;
  facts->memory_bytes = static_cast<int64_t>(own.totalGlobalMem);
  facts->clock = 1e3 * static_cast<double>(attribute(device, cudaDevAttrClockRate));
  // Two transfers per clock of the memory, on every bit of the bus.
  facts->bandwidth = 2e3 * static_cast<double>(attribute(device, cudaDevAttrMemoryClockRate)) *
                     static_cast<double>(own.memoryBusWidth) / 8;
  return true;
}

tsr_status runtime_prepare(int32_t device, const void *function, uint32_t shared_bytes, tsr_reason *why) {
  const Current current(device);
  if (current.error() != cudaSuccess) return fail("device", current.error(), why);
  // Asking for the function's facts brings its code to the device, which no run then has to.
  cudaFuncAttributes attributes;
  cudaError_t error = cudaFuncGetAttributes(&attributes, function);
  if (error != cudaSuccess) return fail("the kernel's code", error, why);
  error = cudaFuncSetAttribute(function, cudaFuncAttributeMaxDynamicSharedMemorySize,
                               static_cast<int>(shared_bytes));
  if (error != cudaSuccess) return fail("the kernel's shared memory", error, why);
  return TSR_STATUS_SUCCESS;
}

bool runtime_starts_early(int32_t device, const void *function) {
  const Current current(device);
  cudaFuncAttributes attributes;
  int driver = 0;
  // Graphs can record such launches from CUDA 12.3 on. Code for 8.0 compiled on the spot does not wait.
  const bool found = current.error() == cudaSuccess && cudaDriverGetVersion(&driver) == cudaSuccess &&
                     cudaFuncGetAttributes(&attributes, function) == cudaSuccess;
  if (!found) cudaGetLastError();
  return found && driver >= 12030 && attributes.ptxVersion >= 90 && attributes.binaryVersion >= 90;
}

tsr_status runtime_launch(int32_t device, const Launch &launch, tsr_reason *why) {
  const Current current(device);
  if (current.error() != cudaSuccess) return fail("device", current.error(), why);
  // The runtime copies the argument and does not write to it.
  void *arguments[] = {const_cast<void *>(launch.args)};
  cudaLaunchConfig_t config = {};
  config.gridDim = dim3(static_cast<unsigned>(launch.blocks));
  config.blockDim = dim3(static_cast<unsigned>(launch.threads));
  config.dynamicSmemBytes = launch.shared_bytes;
  config.stream = static_cast<cudaStream_t>(launch.stream);
  cudaLaunchAttribute early = {};
  early.id = cudaLaunchAttributeProgrammaticStreamSerialization;
  early.val.programmaticStreamSerializationAllowed = 1;
  if (launch.early) {
    config.attrs = &early;
    config.numAttrs = 1;
  }
  const cudaError_t error = cudaLaunchKernelExC(&config, launch.function, arguments);
  return error == cudaSuccess ? TSR_STATUS_SUCCESS : fail("launch", error, why);
}

tsr_status runtime_tensor_map(const TensorBox &box, gpu::TensorMap *map, tsr_reason *why) {
  static_assert(sizeof(gpu::TensorMap) == sizeof(CUtensorMap), "the driver's own size");
  // Found once; asking again in another thread finds the same.
  static std::atomic<void *> found{nullptr};
  void *function = found;
  if (!function) {
    cudaDriverEntryPointQueryResult result;
    const cudaError_t error = cudaGetDriverEntryPointByVersion("cuTensorMapEncodeTiled", &function, 12000,
                                                               cudaEnableDefault, &result);
    if (error != cudaSuccess) return fail("cuTensorMapEncodeTiled", error, why);
    if (!function) {
      snprintf(why->text, sizeof why->text, "the driver has no cuTensorMapEncodeTiled");
      return TSR_STATUS_DEVICE_ERROR;
    }
    found = function;
  }
  cuuint64_t extent[4], stride[3];
  for (int d = 0; d < 4; ++d) extent[d] = static_cast<cuuint64_t>(box.extent[d]);
  for (int d = 1; d < 4; ++d) stride[d - 1] = static_cast<cuuint64_t>(box.stride[d]);
  const cuuint32_t columns = static_cast<cuuint32_t>(128 / gpu::element_bytes(box.dtype));
  const cuuint32_t size[4] = {columns, static_cast<cuuint32_t>(box.rows), 1, 1}, step[4] = {1, 1, 1, 1};
  decltype(&cuTensorMapEncodeTiled) encode;
  memcpy(&encode, &function, sizeof encode);
  const CUtensorMapDataType type = gpu::element_bytes(box.dtype) == 1 ? CU_TENSOR_MAP_DATA_TYPE_UINT8
                                   : box.dtype == TSR_DTYPE_F16     ? CU_TENSOR_MAP_DATA_TYPE_FLOAT16
                                                                    : CU_TENSOR_MAP_DATA_TYPE_BFLOAT16;
  const auto make = [&] {
    return encode(reinterpret_cast<CUtensorMap *>(map), type, 4, const_cast<void *>(box.base), extent, stride, size,
                  step, CU_TENSOR_MAP_INTERLEAVE_NONE, CU_TENSOR_MAP_SWIZZLE_128B, CU_TENSOR_MAP_L2_PROMOTION_L2_256B,
                  CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
  };
  CUresult result = make();
  // The driver's own functions want a context, which a thread may not have: naming a device gives it one, also the
  // device that is current already.
  if (result == CUDA_ERROR_INVALID_CONTEXT) {
    int before = box.device;
    cudaError_t error = cudaGetDevice(&before);
    if (error == cudaSuccess) error = cudaSetDevice(box.device);
    if (error != cudaSuccess) return fail("device", error, why);
    result = make();
    if (before != box.device && cudaSetDevice(before) != cudaSuccess) cudaGetLastError();
  }
  if (result == CUDA_SUCCESS) return TSR_STATUS_SUCCESS;
  snprintf(why->text, sizeof why->text, "cuTensorMapEncodeTiled: error %d", static_cast<int>(result));
  return result == CUDA_ERROR_OUT_OF_MEMORY ? TSR_STATUS_OUT_OF_MEMORY : TSR_STATUS_DEVICE_ERROR;
}

tsr_status runtime_allocate(int32_t device, size_t bytes, void *stream, void **block,
                            tsr_reason *why) {
  const Current current(device);
  cudaStreamCaptureStatus capture = cudaStreamCaptureStatusNone;
  cudaError_t error = current.error();
  if (error == cudaSuccess)
    error = cudaStreamIsCapturing(static_cast<cudaStream_t>(stream), &capture);
  // The default stream may not even be asked while another thread captures.
  if (capture != cudaStreamCaptureStatusNone || error == cudaErrorStreamCaptureImplicit) {
    cudaGetLastError();
    snprintf(why->text, sizeof why->text, "the stream is being captured");
    return TSR_STATUS_INVALID_ARGUMENT;
  }
  if (error == cudaSuccess) error = cudaMallocAsync(block, bytes, static_cast<cudaStream_t>(stream));
  if (error == cudaSuccess) return TSR_STATUS_SUCCESS;
  if (error == cudaErrorMemoryAllocation) {
    cudaGetLastError();
    snprintf(why->text, sizeof why->text, "the device has no %zu bytes for this run", bytes);
    return TSR_STATUS_OUT_OF_MEMORY;
  }
  return fail("allocating memory", error, why);
}

void runtime_release(int32_t device, void *block, void *stream) {
  const Current current(device);
  const cudaError_t error = cudaFreeAsync(block, static_cast<cudaStream_t>(stream));
  if (current.error() != cudaSuccess || error != cudaSuccess) cudaGetLastError();
}

tsr_status runtime_where(const void *pointer, Memory *where, int32_t *owner, tsr_reason *why) {
  cudaPointerAttributes attributes;
  *owner = -1;
  *where = Memory::kUnknown;
  const cudaError_t error = cudaPointerGetAttributes(&attributes, pointer);
  if (error == cudaErrorInvalidValue || error == cudaErrorInvalidDevice) { // nobody's
    cudaGetLastError();
    return TSR_STATUS_SUCCESS;
  }
  // A device that a kernel has brought down answers everything so.
  if (error != cudaSuccess) return fail("looking up a pointer", error, why);
  *owner = attributes.device;
  switch (attributes.type) {
    case cudaMemoryTypeDevice:
      *where = Memory::kDevice;
      break;
    case cudaMemoryTypeManaged:
      *where = Memory::kManaged;
      break;
    case cudaMemoryTypeHost:
      *where = Memory::kHost;
      break;
    default:
      break;
  }
  return TSR_STATUS_SUCCESS;
}

void runtime_version(char *text, size_t capacity) {
  int runtime = 0, driver = 0;
  if (cudaRuntimeGetVersion(&runtime) != cudaSuccess) cudaGetLastError();
  if (cudaDriverGetVersion(&driver) != cudaSuccess) cudaGetLastError();
  snprintf(text, capacity, "CUDA %d.%d, driver %d.%d", runtime / 1000, runtime % 1000 / 10,
           driver / 1000, driver % 1000 / 10);
}

} // namespace cuda
} // namespace tessera
