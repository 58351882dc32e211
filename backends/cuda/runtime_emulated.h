// SPDX-License-Identifier: Apache-2.0
//
// What tests can make the emulated runtime do that a working device does not: refuse memory, fail a
// launch, be in a capture, see memory of another place. Counted, so that each test can also tell
// that nothing happened. Exists in the emulated build only.
#ifndef TESSERA_BACKENDS_CUDA_RUNTIME_EMULATED_H_
#define TESSERA_BACKENDS_CUDA_RUNTIME_EMULATED_H_

#include <atomic>

#include "common/gpu/host/runtime.h"

namespace tessera {
namespace cuda {

struct EmulatedFaults {
  std::atomic<int32_t> fail_prepare{0};  // not 0: the next calls fail with this status
  std::atomic<int32_t> fail_launch{0};
  std::atomic<int32_t> fail_where{0};
  std::atomic<int32_t> fail_allocate{0}; // 1: they fail
  std::atomic<int32_t> capturing{0};     // 1: every stream is being captured
  std::atomic<const void *> elsewhere{nullptr}; // this address is reported as `place` of `owner`
  std::atomic<Memory> place{Memory::kHost};
  std::atomic<int32_t> owner{0};
  std::atomic<int64_t> prepared{0}, launches{0}, allocated{0}, released{0};
};

EmulatedFaults &emulated_faults();

} // namespace cuda
} // namespace tessera

#endif // TESSERA_BACKENDS_CUDA_RUNTIME_EMULATED_H_
