// SPDX-License-Identifier: Apache-2.0
//
// See objects.h. The table is made by the build (objects.s.in).
#include "backends/hip/objects.h"

#include <string.h>

extern "C" {
extern const tessera::hip::CodeObject tsri_hip_objects[];
extern const uint64_t tsri_hip_object_count;
}

namespace tessera {
namespace hip {
namespace {

int digit_of(char c) {
  return c >= '0' && c <= '9' ? c - '0' : c >= 'a' && c <= 'f' ? c - 'a' + 10 : -1;
}

} // namespace

int32_t arch_of(const char *name) {
  int32_t arch = 0;
  if (strncmp(name, "gfx", 3) != 0) return 0;
  for (name += 3; digit_of(*name) >= 0 && arch < 0x1000000; ++name) arch = arch * 16 + digit_of(*name);
  return arch;
}

const CodeObject *find_object(int32_t arch, const char *name) {
  for (uint64_t i = 0; i < tsri_hip_object_count; ++i)
    if (strcmp(tsri_hip_objects[i].name, name) == 0 && arch_of(tsri_hip_objects[i].device) == arch)
      return &tsri_hip_objects[i];
  return nullptr;
}

bool builds_for(int32_t arch) {
  for (uint64_t i = 0; i < tsri_hip_object_count; ++i)
    if (arch_of(tsri_hip_objects[i].device) == arch) return true;
  return false;
}

} // namespace hip
} // namespace tessera
