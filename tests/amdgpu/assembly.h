// SPDX-License-Identifier: Apache-2.0
//
// Code objects from assembly, for tests: kernels of a few instructions, assembled and linked by clang 19.
#ifndef TESSERA_TESTS_AMDGPU_ASSEMBLY_H_
#define TESSERA_TESTS_AMDGPU_ASSEMBLY_H_

#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

#include <fstream>
#include <iterator>
#include <memory>
#include <string>
#include <vector>

#include "executor.h"

namespace tessera {
namespace amdgpu {

constexpr uint32_t kNine = 3, kMi3 = 2, kEleven = 4, kTwelve = 8, kLate = 12, kAll = 15;
struct Target {
  const char *name;
  uint32_t bit, lanes;
};
constexpr Target kTargets[] = {
    {"gfx90a", 1, 64}, {"gfx942", 2, 64}, {"gfx1100", 4, 32}, {"gfx1201", 8, 32}};

inline std::string read_file(const std::string &path) {
  std::ifstream file(path, std::ios::binary);
  return std::string((std::istreambuf_iterator<char>(file)), std::istreambuf_iterator<char>());
}

// Kernels k0, k1, ... of the given bodies. A kernel's arguments are at s[0:1].
class Assembly {
 public:
  Assembly(const Target &target, uint32_t lds_bytes) : target_(target), lds_bytes_(lds_bytes) {}

  void add(const std::string &body) {
    const std::string name = "k" + std::to_string(count_++);
    const bool nine = target_.bit & kNine;
    code_ += ".globl " + name + "\n.p2align 8\n.type " + name + ",@function\n" + name + ":\n" + body +
             "\ns_endpgm\n.size " + name + ", .-" + name + "\n";
    descriptors_ += ".amdhsa_kernel " + name +
                    "\n.amdhsa_next_free_vgpr 96\n.amdhsa_next_free_sgpr 48\n"
                    ".amdhsa_user_sgpr_kernarg_segment_ptr 1\n.amdhsa_kernarg_size 32\n"
                    ".amdhsa_float_denorm_mode_32 3\n.amdhsa_group_segment_fixed_size " +
                    std::to_string(lds_bytes_) + "\n" +
                    (nine ? ".amdhsa_accum_offset 96\n" : ".amdhsa_wavefront_size32 1\n") +
                    ".end_amdhsa_kernel\n";
    metadata_ += "  - .name: " + name + "\n    .symbol: " + name +
                 ".kd\n    .kernarg_segment_size: 32\n    .kernarg_segment_align: 8\n"
                 "    .group_segment_fixed_size: " + std::to_string(lds_bytes_) +
                 "\n    .private_segment_fixed_size: 0\n    .sgpr_count: 48\n    .vgpr_count: 96\n"
                 "    .max_flat_workgroup_size: 256\n    .wavefront_size: " +
                 std::to_string(target_.lanes) + "\n";
  }

  // NULL, with what clang said on the standard error stream, where it refuses.
  std::unique_ptr<CodeObject> assemble(const std::string &clang, const std::string &path) const {
    const std::string source = path + ".s", object = path + ".co";
    std::ofstream(source) << ".amdgcn_target \"amdgcn-amd-amdhsa--" << target_.name << "\"\n.text\n" << code_
                          << ".rodata\n.p2align 6\n" << descriptors_
                          << ".amdgpu_metadata\n---\namdhsa.version: [1, 2]\namdhsa.kernels:\n" << metadata_
                          << "...\n.end_amdgpu_metadata\n";
    const std::string command = "'" + clang + "' -x assembler -target amdgcn-amd-amdhsa -mcpu=" + target_.name +
                                " '" + source + "' -o '" + object + "'";
    if (system(command.c_str()) != 0) return nullptr;
    const std::string image = read_file(object);
    std::string error;
    std::unique_ptr<CodeObject> loaded = CodeObject::load(image.data(), 0, &error);
    if (!loaded) fprintf(stderr, "%s: %s\n", object.c_str(), error.c_str());
    return loaded;
  }

 private:
  Target target_;
  uint32_t lds_bytes_;
  int count_ = 0;
  std::string code_, descriptors_, metadata_;
};

} // namespace amdgpu
} // namespace tessera

#endif // TESSERA_TESTS_AMDGPU_ASSEMBLY_H_
