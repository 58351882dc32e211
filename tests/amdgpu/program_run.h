// SPDX-License-Identifier: Apache-2.0
//
// A forward tile program compiled for an AMD GPU (program.hip.in), run on the executor for one problem and
// compared with the double-precision oracle. The program's name says its elements and its mask class.
#ifndef TESSERA_TESTS_AMDGPU_PROGRAM_RUN_H_
#define TESSERA_TESTS_AMDGPU_PROGRAM_RUN_H_

#include <stdio.h>

#include <fstream>
#include <iterator>
#include <string>

#include "executor.h"
#include "tests/kernels/forward_case.h"

namespace tessera {
namespace gpu {
namespace {

struct Shape { // as program.hip.in tells it
  uint32_t threads, shared, tile_q, args_bytes, columns;
};

struct Code {
  std::string name, image;
  std::unique_ptr<amdgpu::CodeObject> object;
  amdgpu::Kernel *tested = nullptr;
  Shape shape = {};
  tsr_dtype dtype = TSR_DTYPE_NONE;
  bool any = false;

  // An empty text, or why not.
  std::string read(const char *path) {
    const std::string text = path;
    name = text.substr(text.rfind('/') + 1);
    std::ifstream file(path, std::ios::binary);
    image.assign((std::istreambuf_iterator<char>(file)), std::istreambuf_iterator<char>());
    return load();
  }
  std::string load() {
    dtype = name.find("bf16") != std::string::npos ? TSR_DTYPE_BF16 : TSR_DTYPE_F16;
    any = name.find("any") != std::string::npos;
    std::string error;
    object = amdgpu::CodeObject::load(image.data(), image.size(), &error);
    amdgpu::Kernel *teller = nullptr;
    if (object) tested = object->find("tested"), teller = object->find("shape");
    if (!tested || !teller) return name + ": " + error;
    // The code object's own kernel tells what the host has to know.
    amdgpu::Executor executor;
    executor.add_block(&shape, sizeof shape);
    amdgpu::LaunchOptions options;
    options.block.x = 64;
    Shape *const to = &shape;
    if (!executor.launch(teller, options, &to, sizeof to, &error)) return name + ": " + error;
    return shape.args_bytes == sizeof(ForwardArgs) ? "" : name + ": arguments of another size";
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

struct Verdict {
  std::string wrong;   // empty: the result is right
  bool ended = false;  // the kernel ran to its end
  amdgpu::LaunchCounts counts;
};

// What of the result is out of bounds. Values are below 1, weights sum to 1 (dropout: 4/3): P and O are
// rounded once each.
std::string difference(const Run &run, const Case &c, tsr_dtype dtype) {
  const double u = dtype == TSR_DTYPE_F16 ? 0x1p-11 : 0x1p-8;
  const double o = Run::distance(run.o, run.o_wanted, run.args.call.p.o.dtype);
  const double lse = Run::distance(run.lse, run.lse_wanted, TSR_DTYPE_F32);
  const double top = c.scores ? Run::distance(run.top, run.top_wanted, TSR_DTYPE_F32) : 0;
  if (o <= 2 * u && lse <= 1e-5 && top <= 1e-5) return "";
  char text[160];
  snprintf(text, sizeof text, "O differs by %g (allowed %g), LSE by %g, row maxima by %g (1e-5)", o, 2 * u, lse, top);
  return text;
}

// edit: changes the arguments, or what else of the launch, after the oracle has answered.
template <class Edit>
Verdict run_case(const Code &code, const Case &c, bool backwards, Edit edit) {
  Run run(c, code.dtype);
  ForwardArgs &args = run.args;
  run.ask_oracle();
  args.tiles = static_cast<int32_t>((c.sq + code.shape.tile_q - 1) / code.shape.tile_q);
  args.chunks = static_cast<int32_t>((c.dv + code.shape.columns - 1) / code.shape.columns);
  args.call.a.o = run.o.data();
  args.call.a.lse = static_cast<float *>(run.lse.data());
  args.call.a.max_logit = static_cast<float *>(run.top.data());
  amdgpu::Executor executor;
  add_blocks(&executor, run);
  amdgpu::LaunchOptions options;
  options.grid.x = static_cast<uint32_t>(args.tiles * args.chunks * c.heads * c.batch);
  options.block.x = code.shape.threads;
  options.dynamic_lds = code.shape.shared;
  options.backwards = backwards;
  options.budget = 5000000;
  edit(&args, &options);
  Verdict verdict;
  verdict.ended =
      executor.launch(code.tested, options, &args, sizeof args, &verdict.wrong, &verdict.counts);
  if (verdict.ended) verdict.wrong = difference(run, c, code.dtype);
  if (verdict.ended && verdict.counts.matrix == 0) verdict.wrong = "no matrix instruction was executed";
  return verdict;
}

inline void as_it_is(ForwardArgs *, amdgpu::LaunchOptions *) {}

} // namespace
} // namespace gpu
} // namespace tessera

#endif // TESSERA_TESTS_AMDGPU_PROGRAM_RUN_H_
