// SPDX-License-Identifier: Apache-2.0
//
// The six functions of LLVM's C interface (llvm-c/Disassembler.h, llvm-c/Target.h) that make text
// of machine code. TSRI_AMDGPU_LLVM is the library that CMake found.
#include "disassemble.h"

#include <dlfcn.h>
#include <string.h>

#include <mutex>

namespace tessera {
namespace amdgpu {

namespace {

struct Llvm {
  void *(*create)(const char *triple, const char *cpu, const char *features, void *info, int tag,
                  void *get_info, void *look_up);
  void (*dispose)(void *);
  size_t (*instruction)(void *, uint8_t *bytes, uint64_t size, uint64_t pc, char *text, size_t capacity);
  std::string error;
};

template <class F>
void find(void *library, const char *name, F *f, Llvm *llvm) {
  void *symbol = dlsym(library, name);
  if (!symbol) llvm->error = std::string("LLVM: no function ") + name;
  memcpy(f, &symbol, sizeof symbol);
}

Llvm open_llvm() {
  Llvm llvm = {};
  void *library = dlopen(TSRI_AMDGPU_LLVM, RTLD_NOW | RTLD_LOCAL);
  if (!library) {
    const char *why = dlerror();
    llvm.error = std::string("LLVM: ") + (why ? why : "cannot be opened");
    return llvm;
  }
  find(library, "LLVMCreateDisasmCPUFeatures", &llvm.create, &llvm);
  find(library, "LLVMDisasmDispose", &llvm.dispose, &llvm);
  find(library, "LLVMDisasmInstruction", &llvm.instruction, &llvm);
  for (const char *name : {"LLVMInitializeAMDGPUTargetInfo", "LLVMInitializeAMDGPUTargetMC",
                           "LLVMInitializeAMDGPUDisassembler"}) {
    void (*initialise)() = nullptr;
    find(library, name, &initialise, &llvm);
    if (initialise) initialise();
  }
  return llvm;
}

} // namespace

bool disassemble(const std::string &device, const unsigned char *code, size_t bytes, std::vector<Line> *lines,
                 std::string *error) {
  static const Llvm llvm = open_llvm();
  static std::mutex mutex;
  const std::lock_guard<std::mutex> lock(mutex);
  if (!llvm.error.empty()) {
    *error = llvm.error;
    return false;
  }
  const bool wide = device.compare(0, 4, "gfx9") == 0;
  void *context = llvm.create("amdgcn-amd-amdhsa", device.c_str(),
                              wide ? "+wavefrontsize64" : "+wavefrontsize32", nullptr, 0, nullptr, nullptr);
  if (!context) {
    *error = "LLVM does not know the device " + device;
    return false;
  }
  std::vector<uint8_t> copy(code, code + bytes);
  char text[512];
  for (size_t at = 0; at + 4 <= bytes;) {
    const size_t size = llvm.instruction(context, copy.data() + at, bytes - at, at, text, sizeof text);
    Line line = {static_cast<uint32_t>(at), static_cast<uint32_t>(size ? size : 4), size ? text : ""};
    at += line.bytes;
    lines->push_back(line);
  }
  llvm.dispose(context);
  return true;
}

} // namespace amdgpu
} // namespace tessera
