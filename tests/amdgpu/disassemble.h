// SPDX-License-Identifier: Apache-2.0
//
// Text of AMD machine code by LLVM 19, whose library is opened at run time: only its C interface is
// used, and no header of it is needed.
#ifndef TESSERA_TESTS_AMDGPU_DISASSEMBLE_H_
#define TESSERA_TESTS_AMDGPU_DISASSEMBLE_H_

#include <stddef.h>
#include <stdint.h>

#include <string>
#include <vector>

namespace tessera {
namespace amdgpu {

struct Line {
  uint32_t address, bytes;
  std::string text; // empty: no instruction
};

// Instructions of code[0, bytes) of a device ("gfx942"). false and a reason where LLVM is missing
// or does not know the device.
bool disassemble(const std::string &device, const unsigned char *code, size_t bytes, std::vector<Line> *lines,
                 std::string *error);

} // namespace amdgpu
} // namespace tessera

#endif // TESSERA_TESTS_AMDGPU_DISASSEMBLE_H_
