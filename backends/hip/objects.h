// SPDX-License-Identifier: Apache-2.0
//
// The code objects that this build carries, one per device and kernel row, and handles of the functions in
// them. Entry::function of common/gpu/host/kernels.h is a Function here.
#ifndef TESSERA_BACKENDS_HIP_OBJECTS_H_
#define TESSERA_BACKENDS_HIP_OBJECTS_H_

#include <stdint.h>

#include <atomic>

namespace tessera {
namespace hip {

struct CodeObject { // laid out by objects.s.in
  const char *device; // "gfx942"
  const char *name;   // of the row, or of a source of this folder
  const unsigned char *begin, *end;
};

// A device function once it was loaded on a device; one list per function.
struct Loaded {
  int32_t device; // ordinal
  void *handle;   // hipFunction_t
  Loaded *next;
};

struct Function {
  const char *object; // CodeObject::name
  const char *symbol;
  mutable std::atomic<Loaded *> loaded;
};

// gfx942: 0x942; 0 for what is no architecture. Text after the number ("gfx942:sramecc+") is ignored.
int32_t arch_of(const char *name);
// Whether rows of an architecture, or of one device alone, are for a device: Row::arch is 0x9 or 0x942.
constexpr bool serves(int32_t row_arch, int32_t arch) { return row_arch == arch || row_arch == arch >> 8; }
// nullptr: not in this build.
const CodeObject *find_object(int32_t arch, const char *name);
// Whether this build has code for an architecture.
bool builds_for(int32_t arch);

} // namespace hip
} // namespace tessera

#endif // TESSERA_BACKENDS_HIP_OBJECTS_H_
