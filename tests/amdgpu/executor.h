// SPDX-License-Identifier: Apache-2.0
//
// Executes AMD code objects (gfx90a, gfx942, gfx1100, gfx1201) on the host, instruction by
// instruction, so that the kernels that are shipped are run where there is no AMD GPU. It knows the
// instruction forms that this project's kernels use and stops, with the instruction's text, at any
// other. Device memory is host memory that was made known with Executor::add_block(); an access
// outside of it is an error. It is stricter than a device: registers and LDS start as NaN, a result
// used before it was waited for, LDS that waves share without a barrier and matrix instructions with
// lanes off are errors.
//
// It says what the ISA's rules make of a kernel. It has no caches, no timing and no hazards
// (s_nop).
#ifndef TESSERA_TESTS_AMDGPU_EXECUTOR_H_
#define TESSERA_TESTS_AMDGPU_EXECUTOR_H_

#include <stddef.h>
#include <stdint.h>

#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

namespace tessera {
namespace amdgpu {

struct Program; // a kernel decoded for execution

struct Extent {
  uint32_t x = 1, y = 1, z = 1;
};

// One kernel of a code object; owned by it.
struct Kernel {
  std::string name;
  uint32_t static_lds = 0;     // bytes
  uint32_t scratch = 0;        // bytes per lane; a kernel that has any is refused
  uint32_t kernarg_bytes = 0; // what its arguments take, hidden ones included
  uint32_t wave = 0;           // lanes: 32 or 64
  uint32_t max_threads = 0;    // of a block
  uint32_t vgprs = 0, agprs = 0, sgprs = 0;
  uint64_t descriptor = 0; // offset in the image
  uint64_t entry = 0, code_bytes = 0;
  // Arguments that the compiler added: what they are, and where they go.
  struct Hidden {
    std::string kind;
    uint32_t offset, bytes;
  };
  std::vector<Hidden> hidden;
  class CodeObject *object = nullptr;
  std::shared_ptr<Program> program; // made at the first launch
};

class CodeObject {
 public:
  // Of an ELF image in memory, which is copied. bytes 0: as many as its headers say, for callers
  // that were given a pointer alone. NULL and a reason in *error where the image is not understood.
  static std::unique_ptr<CodeObject> load(const void *image, size_t bytes, std::string *error);
  ~CodeObject();

  const std::string &device() const { return device_; } // "gfx942"
  uint32_t wave() const { return wave_; }                // lanes of its waves, unless a kernel says otherwise
  Kernel *find(const std::string &name);                 // NULL: none of this name
  std::vector<std::string> names() const;

  // The loaded image: segments at their addresses relative to base().
  const unsigned char *base() const { return base_; }
  size_t size() const { return size_; }

 private:
  CodeObject() = default;
  friend struct Loader;
  std::string device_;
  uint32_t wave_ = 0;
  unsigned char *base_ = nullptr;
  size_t size_ = 0;
  std::map<std::string, Kernel> kernels_;
};

struct LaunchOptions {
  Extent grid;                   // blocks
  Extent block;                  // threads
  uint32_t dynamic_lds = 0;      // bytes
  bool backwards = false;        // waves run in falling order between barriers, and blocks too
  uint64_t budget = UINT64_MAX;  // wave instructions before the launch is given up as endless
  // If not NULL: raised at [address of an instruction / 4] for each time that a wave comes to it. As many as
  // the kernel's code has words.
  uint64_t *visits = nullptr;
};

struct LaunchCounts {
  uint64_t instructions = 0; // of waves
  uint64_t matrix = 0;        // of these, MFMA or WMMA
};

class Executor {
 public:
  // Makes [begin, begin + bytes) known as memory of the device. false: it overlaps a known block,
  // or is empty. The owner keeps it alive until remove_block.
  bool add_block(void *begin, size_t bytes, bool writable = true);
  // false: no block begins there.
  bool remove_block(void *begin);
  // Whether all of [begin, begin + bytes) lies in one known block.
  bool knows(const void *begin, size_t bytes) const;

  // Runs the kernel to its end on the calling thread. kernarg: the explicit arguments as the code
  // object lays them out, `bytes` of them; hidden arguments are filled in where the kernel has any.
  // false and one line of text in *error (kernel, block, wave, address and text of the instruction)
  // where it was stopped; memory then holds what was written until then. Safe from several threads
  // at once.
  bool launch(Kernel *kernel, const LaunchOptions &options, const void *kernarg, size_t bytes,
              std::string *error, LaunchCounts *counts = nullptr);

 private:
  struct Block {
    size_t bytes;
    bool writable;
  };
  mutable std::mutex mutex_;
  std::map<uintptr_t, Block> blocks_;
};

} // namespace amdgpu
} // namespace tessera

#endif // TESSERA_TESTS_AMDGPU_EXECUTOR_H_
