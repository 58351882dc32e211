// SPDX-License-Identifier: Apache-2.0
//
// Tile programs compiled for AMD GPUs, executed instruction by instruction and compared with the
// double-precision oracle: every code object named on the command line, waves of a block in both
// orders. What is under test is what would run on a device: the compiled matrix instructions with
// their layouts, lanes that are off, LDS, barriers and waits, and that nothing outside of the
// tensors is touched.
//   test_programs <code object>...      its file's name says the elements and the mask class
#include <stdio.h>
#include <stdlib.h>

#include <fstream>
#include <iterator>
#include <string>

#include "executor.h"
#include "tests/kernels/forward_case.h"

namespace tessera {
namespace gpu {
namespace {

int64_t checks, failures;

void check(bool ok, const std::string &what, double found, double bound) {
  ++checks;
  if (ok) return;
  ++failures;
  printf("FAILED: %s: %g, allowed %g\n", what.c_str(), found, bound);
}

struct Shape {
  uint32_t threads, shared, tile_q, args_bytes, columns;
};

struct Code {
  std::string name;
  std::unique_ptr<amdgpu::CodeObject> object;
  amdgpu::Kernel *tested = nullptr, *shape = nullptr;
  Shape shaped = {};
  tsr_dtype dtype = TSR_DTYPE_NONE;
  bool any = false;

  bool load(const char *path) {
    const std::string text = path;
    name = text.substr(text.rfind('/') + 1);
    dtype = name.find("bf16") != std::string::npos ? TSR_DTYPE_BF16 : TSR_DTYPE_F16;
    any = name.find("any") != std::string::npos;
    std::ifstream file(path, std::ios::binary);
    const std::string image((std::istreambuf_iterator<char>(file)), std::istreambuf_iterator<char>());
    std::string error;
    object = amdgpu::CodeObject::load(image.data(), image.size(), &error);
    if (object) tested = object->find("tested"), shape = object->find("shape");
    if (!tested || !shape) {
      printf("%s: %s\n", path, error.c_str());
      return false;
    }
    return ask_shape();
  }

  // The code object's own kernel tells what the host has to know.
  bool ask_shape() {
    amdgpu::Executor executor;
    executor.add_block(&shaped, sizeof shaped);
    amdgpu::LaunchOptions options;
    options.block.x = 64;
    Shape *const to = &shaped;
    std::string error;
    const bool good = executor.launch(shape, options, &to, sizeof to, &error);
    if (!good) printf("%s: %s\n", name.c_str(), error.c_str());
    return good && shaped.args_bytes == sizeof(ForwardArgs);
  }
};

// Everything that the kernel may touch, and nothing else.
void add_blocks(amdgpu::Executor *executor, Run &run) {
  const tsr_problem &p = run.args.call.p;
  auto add = [executor](const Tensor &t, const tsr_layout &layout, bool writable) {
    if (t.elements == 0) return;
    executor->add_block(t.data(), static_cast<size_t>(t.elements * tsri_dtype_bytes(layout.dtype)), writable);
  };
  add(run.q, p.q, false);
  add(run.k, p.k, false);
  add(run.v, p.v, false);
  add(run.o, p.o, true);
  add(run.lse, p.lse, true);
  add(run.top, p.max_logit, true);
  add(run.bias, p.bias, false);
  add(run.mask, p.mask, false);
  executor->add_block(run.used, sizeof run.used, false);
  executor->add_block(run.sink, sizeof run.sink, false);
  executor->add_block(run.slopes, sizeof run.slopes, false);
}

uint64_t instructions;

void try_case(const Code &code, const Case &c, bool backwards) {
  Run run(c, code.dtype);
  ForwardArgs &args = run.args;
  run.ask_oracle();
  args.tiles = static_cast<int32_t>((c.sq + code.shaped.tile_q - 1) / code.shaped.tile_q);
  args.chunks = static_cast<int32_t>((c.dv + code.shaped.columns - 1) / code.shaped.columns);
  args.call.a.o = run.o.data();
  args.call.a.lse = static_cast<float *>(run.lse.data());
  args.call.a.max_logit = static_cast<float *>(run.top.data());
  amdgpu::Executor executor;
  add_blocks(&executor, run);
  amdgpu::LaunchOptions options;
  options.grid.x = static_cast<uint32_t>(args.tiles * args.chunks * c.heads * c.batch);
  options.block.x = code.shaped.threads;
  options.dynamic_lds = code.shaped.shared;
  options.backwards = backwards;
  options.budget = 100000000;
  std::string error;
  amdgpu::LaunchCounts counts;
  const bool ran = executor.launch(code.tested, options, &args, sizeof args, &error, &counts);
  instructions += counts.instructions;
  const std::string what = code.name + ": " + c.name + (backwards ? ", backwards" : "");
  check(ran, what + ": " + error, 1, 0);
  if (!ran) return;
  check(counts.matrix > 0, what + ": matrix instructions", static_cast<double>(counts.matrix), 1);
  // Values are below 1, weights sum to 1 (dropout: 4/3): P and O are rounded once each.
  const double u = code.dtype == TSR_DTYPE_F16 ? 0x1p-11 : 0x1p-8;
  const double o = Run::distance(run.o, run.o_wanted, args.call.p.o.dtype);
  check(o <= 2 * u, what + ": O differs by", o, 2 * u);
  const double lse = Run::distance(run.lse, run.lse_wanted, TSR_DTYPE_F32);
  check(lse <= 1e-5, what + ": LSE differs by", lse, 1e-5);
  if (!c.scores) return;
  const double top = Run::distance(run.top, run.top_wanted, TSR_DTYPE_F32);
  check(top <= 1e-5, what + ": row maxima differ by", top, 1e-5);
}

} // namespace
} // namespace gpu
} // namespace tessera

int main(int count, char **names) {
  using namespace tessera::gpu;
  for (int n = 1; n < count; ++n) {
    Code code;
    if (!code.load(names[n])) {
      ++failures;
      continue;
    }
    for (const bool backwards : {false, true}) {
      for (const Case &c : kEdgeCases)
        if (!code.any) try_case(code, c, backwards);
      for (const Case &c : kAnyCases)
        if (code.any) try_case(code, c, backwards);
    }
  }
  printf("test_programs: %lld checks, %lld failures, %llu instructions\n", static_cast<long long>(checks),
         static_cast<long long>(failures), static_cast<unsigned long long>(instructions));
  return failures != 0 || checks == 0;
}
