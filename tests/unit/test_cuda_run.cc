// SPDX-License-Identifier: Apache-2.0
//
// Runs of the CUDA backend through its vtable on the emulated runtime: memory that is not the device's,
// workspaces that are missing, memory that runs out, launches that fail. Each failure must come back as
// its status with a reason, leave nothing allocated, and have launched nothing it need not.
#include <criterion/criterion.h>

#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <vector>

#include "backends/cuda/runtime_emulated.h"
extern "C" {
#include "api/src/validate.h"
const tsr_backend *tsr_backend_entry_cuda(uint32_t host_abi);
}
#include "common/dropout.h"
#include "common/gpu/merge_arguments.hpp"

namespace {

using tessera::cuda::EmulatedFaults;
using tessera::cuda::Memory;
using tessera::cuda::emulated_faults;

int64_t blocks_of_host = 0;
bool host_is_full = false;

void *host_alloc(void *, size_t size, size_t alignment) {
  if (host_is_full) return nullptr;
  ++blocks_of_host;
  return aligned_alloc(alignment, (size + alignment - 1) / alignment * alignment);
}
void host_free(void *, void *block) {
  blocks_of_host -= block != nullptr;
  free(block);
}
void host_log(void *, tsr_log_level, const char *) {}

constexpr uint16_t kOne = 0x3c00, kThree = 0x4200; // float16

// A backend that was probed, and one plan of it.
struct Bench {
  const tsr_backend *backend = tsr_backend_entry_cuda(TSR_BACKEND_ABI);
  tsr_host host = {};
  void *state = nullptr;
  tsr_resolved problem = {};
  int32_t kernel = -1;
  void *plan = nullptr;
  size_t workspace = 0;
  tsr_reason why = {};
  std::vector<uint16_t> q, k, v;
  std::vector<float> o, lse;
  tsr_args args = {};

  Bench() {
    cr_assert_not_null(backend);
    host.struct_size = sizeof host;
    host.abi = TSR_BACKEND_ABI;
    host.alloc = host_alloc;
    host.free = host_free;
    host.log = host_log;
    cr_assert_eq(backend->probe(&host, &state, &why), TSR_STATUS_SUCCESS);
  }
  ~Bench() {
    if (plan) backend->plan_destroy(state, plan);
    backend->close(state);
    cr_expect_eq(blocks_of_host, 0);
    const EmulatedFaults &f = emulated_faults();
    cr_expect_eq(f.allocated.load(), f.released.load());
  }
  Bench(const Bench &) = delete;
  Bench &operator=(const Bench &) = delete;

  // Float16 with a float32 result, dense, of the kernel whose name contains the text; alignment: promised, 0: none.
  void prepare(const char *name, int64_t batch, int64_t heads, int64_t sq, int64_t sk, int64_t alignment = 0) {
    tsr_problem p = TSR_PROBLEM_INIT, valid;
    tsr_kernel_info info;
    p.batch = batch, p.heads_q = p.heads_kv = heads, p.seq_q = sq, p.seq_k = sk, p.dim_qk = 8;
    p.q.dtype = p.k.dtype = p.v.dtype = TSR_DTYPE_F16;
    p.o.dtype = p.lse.dtype = TSR_DTYPE_F32;
    if (alignment > 0) p.q.alignment = p.k.alignment = p.v.alignment = p.o.alignment = alignment;
    cr_assert_eq(tsri_validate_problem(&p, &valid), TSR_STATUS_SUCCESS, "%s", tsr_last_message());
    tsri_resolve_pass(&valid, tsr_device{TSR_DEVICE_HOST, 0}, TSR_PASS_FORWARD, &problem);
    for (int32_t i = 0; backend->kernel_info(state, i, &info) == TSR_STATUS_SUCCESS; ++i) {
      tsr_estimate e = {};
      if (info.pass != TSR_PASS_FORWARD || !std::strstr(info.name, name)) continue;
      if (backend->supports(state, i, &problem, &e, &why) != TSR_STATUS_SUCCESS) continue;
      kernel = i;
      workspace = e.workspace;
      break;
    }
    cr_assert_geq(kernel, 0, "no kernel '%s' takes it: %s", name, why.text);
    const size_t rows = static_cast<size_t>(batch * heads * sq);
    q.assign(rows * 8 + 1, kOne);
    k.assign(static_cast<size_t>(batch * heads * sk) * 8 + 1, kOne);
    v.assign(k.size(), kThree);
    o.assign(rows * 8 + 1, -7.0f);
    lse.assign(rows + 1, -7.0f);
    args.struct_size = sizeof args;
    args.q = q.data(), args.k = k.data(), args.v = v.data();
    args.o = o.data(), args.lse = lse.data();
  }
  void make_plan() {
    cr_assert_eq(backend->plan_create(state, kernel, &problem, &plan, &why), TSR_STATUS_SUCCESS,
                 "%s", why.text);
  }
  tsr_status run() {
    std::memset(&why, 0, sizeof why);
    return backend->run(state, plan, &args, &why);
  }
  void expect_untouched() const {
    for (float x : o) cr_assert_eq(x, -7.0f);
    for (float x : lse) cr_assert_eq(x, -7.0f);
  }
  void expect_result(int64_t sk) const {
    for (size_t i = 0; i + 1 < o.size(); ++i) cr_assert_float_eq(o[i], 3.0f, 1e-5);
    const double expected = std::sqrt(8.0) + std::log(static_cast<double>(sk));
    for (size_t i = 0; i + 1 < lse.size(); ++i) cr_assert_float_eq(lse[i], expected, 1e-4);
    cr_assert_eq(o.back(), -7.0f);
    cr_assert_eq(lse.back(), -7.0f);
  }
};

// Parts of one row each, all of LSE 0 and value t: the result is their mean and ln(parts).
struct Parts {
  std::vector<float> values, zeros;
  std::vector<const void *> o;
  std::vector<const float *> lse;
  tsr_merge_problem problem = TSR_MERGE_PROBLEM_INIT;
  float out[3] = {-7, -7, -7}, out_lse[2] = {-7, -7};

  explicit Parts(int64_t parts) : values(static_cast<size_t>(2 * parts)), zeros(values.size()) {
    for (size_t t = 0; t < static_cast<size_t>(parts); ++t) {
      values[2 * t] = static_cast<float>(t), values[2 * t + 1] = 1.0f;
      o.push_back(&values[2 * t]);
      lse.push_back(&zeros[2 * t]);
    }
    problem.parts = parts;
    problem.batch = problem.heads = problem.seq = 1;
    problem.dim_v = 2;
    tsr_layout row = {};
    row.dtype = TSR_DTYPE_F32;
    row.order = TSR_ORDER_STRIDED;
    row.stride[3] = 1;
    row.alignment = 4;
    problem.o_part = problem.lse_part = problem.o = problem.lse = row;
  }
  tsr_status run(Bench &b) {
    std::memset(&b.why, 0, sizeof b.why);
    return b.backend->merge(b.state, 0, &problem, o.data(), lse.data(), out, out_lse, nullptr,
                            &b.why);
  }
};

void expect_text(const tsr_reason &why, const char *text) {
  cr_expect(std::strstr(why.text, text) != nullptr, "no '%s' in '%s'", text, why.text);
}

Test(cuda_run, abi_and_facts) {
  cr_expect_null(tsr_backend_entry_cuda(TSR_BACKEND_ABI + 1));
  Bench b;
  tsr_device_info info = TSR_DEVICE_INFO_INIT;
  cr_expect_eq(b.backend->device_count(b.state), 1);
  cr_expect_eq(b.backend->device_info(b.state, 0, &info, &b.why), TSR_STATUS_SUCCESS);
  cr_expect_eq(info.compute_units, 132);
  cr_expect_gt(info.peak_flops_16, info.peak_flops_f32);
  expect_text(b.why, "1 device: SIMT emulator on the host (9.0)");
  tsr_kernel_info kernel;
  cr_expect_eq(b.backend->kernel_info(b.state, -1, &kernel), TSR_STATUS_NOT_FOUND);
  cr_expect_eq(b.backend->kernel_info(b.state, 100000, &kernel), TSR_STATUS_NOT_FOUND);
}

Test(cuda_run, forward_runs) {
  Bench b;
  b.prepare("fwd_f16_d64_any__sm80_64", 2, 3, 5, 70);
  b.make_plan();
  cr_assert_eq(b.run(), TSR_STATUS_SUCCESS, "%s", b.why.text);
  b.expect_result(70);
  cr_expect_eq(emulated_faults().launches.load(), 1);
}

Test(cuda_run, nothing_to_do_launches_nothing) {
  Bench b;
  b.prepare("fwd_f16_d64_any__sm80_64", 2, 3, 0, 70);
  b.make_plan();
  b.args.q = nullptr;
  cr_assert_eq(b.run(), TSR_STATUS_SUCCESS);
  cr_expect_eq(emulated_faults().launches.load(), 0);
}

Test(cuda_run, pointers_are_looked_up) {
  Bench b;
  EmulatedFaults &f = emulated_faults();
  b.prepare("fwd_f16_d64_any__sm80_64", 1, 1, 5, 7);
  b.make_plan();
  f.elsewhere = b.args.k;
  f.place = Memory::kHost;
  cr_expect_eq(b.run(), TSR_STATUS_INVALID_ARGUMENT);
  expect_text(b.why, "k: found host memory at ");
  expect_text(b.why, "accepted memory of device 0");
  f.elsewhere = b.args.lse;
  f.place = Memory::kUnknown;
  cr_expect_eq(b.run(), TSR_STATUS_INVALID_ARGUMENT);
  expect_text(b.why, "lse: found memory the driver does not know");
  f.elsewhere = b.args.o;
  f.place = Memory::kDevice;
  f.owner = 3;
  cr_expect_eq(b.run(), TSR_STATUS_INVALID_ARGUMENT);
  expect_text(b.why, "o: found memory of device 3 at ");
  b.expect_untouched();
  cr_expect_eq(f.launches.load(), 0);
  // Managed memory moves to where it is used.
  f.place = Memory::kManaged;
  cr_expect_eq(b.run(), TSR_STATUS_SUCCESS);
  b.expect_result(7);
}

Test(cuda_run, every_pointer_of_a_run_is_named) {
  Bench b;
  EmulatedFaults &f = emulated_faults();
  static float elsewhere;
  b.prepare("fwd_f16_d64_any__sm80_64", 1, 1, 5, 7);
  b.make_plan();
  f.elsewhere = &elsewhere;
  const struct {
    const char *name;
    size_t offset;
  } fields[] = {
#define FIELD(name) {#name ": ", offsetof(tsr_args, name)}
      FIELD(q),          FIELD(k),        FIELD(v),        FIELD(bias),       FIELD(mask),
      FIELD(block_mask), FIELD(alibi),    FIELD(sink),     FIELD(q_scale),    FIELD(k_scale),
      FIELD(v_scale),    FIELD(cu_q),     FIELD(cu_k),     FIELD(used_q),     FIELD(used_k),
      FIELD(left_pad_q), FIELD(prefix),   FIELD(diagonal), FIELD(page_table), FIELD(left_pad_k),
      FIELD(rng_state),  FIELD(o),        FIELD(lse),      FIELD(max_logit),  FIELD(dout),
      FIELD(dlse),       FIELD(dq),       FIELD(dk),       FIELD(dv),         FIELD(dbias),
      FIELD(dsink),      FIELD(workspace),
#undef FIELD
  };
  const tsr_args good = b.args;
  for (const auto &field : fields) {
    const void *pointer = &elsewhere;
    b.args = good;
    std::memcpy(reinterpret_cast<char *>(&b.args) + field.offset, &pointer, sizeof pointer);
    cr_expect_eq(b.run(), TSR_STATUS_INVALID_ARGUMENT, "%s", field.name);
    cr_expect_eq(std::strncmp(b.why.text, field.name, std::strlen(field.name)), 0, "%s", b.why.text);
  }
  cr_expect_eq(f.launches.load(), 0);
}

Test(cuda_run, a_failed_launch_is_a_device_error) {
  Bench b;
  b.prepare("fwd_f16_d64_any__sm80_64", 1, 1, 5, 7);
  b.make_plan();
  emulated_faults().fail_launch = TSR_STATUS_DEVICE_ERROR;
  cr_expect_eq(b.run(), TSR_STATUS_DEVICE_ERROR);
  expect_text(b.why, "launch: a failure that was asked for");
  b.expect_untouched();
  emulated_faults().fail_launch = 0;
  cr_expect_eq(b.run(), TSR_STATUS_SUCCESS);
  b.expect_result(7);
}

// Whoever finds that there is no memory, and whoever finds that the device is down.
Test(cuda_run, statuses_of_the_runtime_are_told) {
  Bench b;
  EmulatedFaults &f = emulated_faults();
  b.prepare("fwd_f16_d64_edge__sm90_192x128", 1, 1, 5, 7, 16);
  for (const tsr_status status : {TSR_STATUS_OUT_OF_MEMORY, TSR_STATUS_DEVICE_ERROR}) {
    f.fail_prepare = status;
    cr_expect_eq(b.backend->plan_create(b.state, b.kernel, &b.problem, &b.plan, &b.why), status);
    f.fail_prepare = 0;
    cr_expect_null(b.plan);
  }
  b.make_plan();
  for (const tsr_status status : {TSR_STATUS_OUT_OF_MEMORY, TSR_STATUS_DEVICE_ERROR}) {
    Parts parts(3);
    f.fail_launch = status;
    cr_expect_eq(b.run(), status);
    cr_expect_eq(parts.run(b), status);
    f.fail_launch = 0;
    f.fail_where = status;
    cr_expect_eq(b.run(), status);
    expect_text(b.why, "looking up a pointer: ");
    cr_expect_eq(parts.run(b), status);
    f.fail_where = 0;
  }
  b.expect_untouched();
  cr_expect_eq(b.run(), TSR_STATUS_SUCCESS, "%s", b.why.text);
  b.expect_result(7);
}

// A merge and a keep mask have no plan in which their code could be loaded before a stream is captured.
Test(cuda_run, the_first_plan_prepares_merges) {
  Bench b;
  EmulatedFaults &f = emulated_faults();
  b.prepare("fwd_f16_d64_any__sm80_64", 1, 1, 5, 7);
  b.make_plan();
  cr_expect_eq(f.prepared.load(), 1 + 3);
  b.backend->plan_destroy(b.state, b.plan);
  b.make_plan();
  cr_expect_eq(f.prepared.load(), 2 + 3);
}

Test(cuda_run, plans_that_cannot_be_made) {
  Bench b;
  b.prepare("fwd_f16_d64_any__sm80_64", 1, 1, 5, 7);
  emulated_faults().fail_prepare = TSR_STATUS_DEVICE_ERROR;
  cr_expect_eq(b.backend->plan_create(b.state, b.kernel, &b.problem, &b.plan, &b.why),
               TSR_STATUS_DEVICE_ERROR);
  expect_text(b.why, "the kernel's code");
  emulated_faults().fail_prepare = 0;
  host_is_full = true;
  cr_expect_eq(b.backend->plan_create(b.state, b.kernel, &b.problem, &b.plan, &b.why),
               TSR_STATUS_OUT_OF_MEMORY);
  expect_text(b.why, "no memory for a plan");
  void *state = nullptr;
  cr_expect_eq(b.backend->probe(&b.host, &state, &b.why), TSR_STATUS_OUT_OF_MEMORY);
  host_is_full = false;
  cr_expect_null(b.plan);
}

// -------------------------------------------------------------------------------- split rows

constexpr char kSplit[] = "fwd_f16_d64_any__sm80_split_";

// Of a kernel that is run three times with whatever in its workspace.
static void run_in_workspaces(Bench &b, int64_t keys) {
  EmulatedFaults &f = emulated_faults();
  const auto before = f.launches.load();
  b.make_plan();
  cr_assert_gt(b.workspace, 0u);
  // Not a byte more than was asked for; what it holds before must not matter.
  unsigned char *block = static_cast<unsigned char *>(aligned_alloc(64, b.workspace));
  cr_assert_not_null(block);
  b.args.workspace = block;
  b.args.workspace_size = b.workspace;
  for (int n = 0; n < 3; ++n) {
    std::memset(block, n == 0 ? 0xff : 0x7f, n == 2 ? 0 : b.workspace);
    b.o.assign(b.o.size(), -7.0f);
    cr_assert_eq(b.run(), TSR_STATUS_SUCCESS, "%s", b.why.text);
    b.expect_result(keys);
  }
  cr_expect_eq(f.allocated.load(), 0);
  cr_expect_eq(f.launches.load() - before, 3);
  free(block);
}

Test(cuda_run, split_in_the_caller_s_workspace) {
  Bench b;
  b.prepare(kSplit, 1, 2, 3, 4000);
  run_in_workspaces(b, 4000);
}

// Blocks that stay and share tiles of queries leave parts of them there.
Test(cuda_run, parts_of_tiles_in_the_caller_s_workspace) {
  for (const char *name : {"fwd_f16_d64_edge__sm90_256x128", "fwd_f16_d64_edge__sm90_192x128"}) {
    setenv("TSR_EMULATED_PROCESSORS", "3", 1); // four tiles of queries
    Bench b;
    b.prepare(name, 1, 2, 300, 1500, 16);
    run_in_workspaces(b, 1500);
  }
}

Test(cuda_run, split_without_a_workspace) {
  Bench b;
  EmulatedFaults &f = emulated_faults();
  b.prepare(kSplit, 1, 2, 3, 4000);
  b.make_plan();
  cr_assert_eq(b.run(), TSR_STATUS_SUCCESS, "%s", b.why.text);
  b.expect_result(4000);
  cr_expect_eq(f.allocated.load(), 1);
  cr_expect_eq(f.released.load(), 1);
  f.fail_launch = TSR_STATUS_DEVICE_ERROR;
  cr_expect_eq(b.run(), TSR_STATUS_DEVICE_ERROR);
  cr_expect_eq(f.released.load(), 2);
  f.fail_launch = 0;
  f.fail_allocate = 1;
  cr_expect_eq(b.run(), TSR_STATUS_OUT_OF_MEMORY);
  expect_text(b.why, "the device has no ");
  f.fail_allocate = 0;
  f.capturing = 1;
  cr_expect_eq(b.run(), TSR_STATUS_INVALID_ARGUMENT);
  expect_text(b.why, "workspace: found NULL inside a stream capture, accepted ");
  cr_expect_eq(f.launches.load(), 1);
}

// ------------------------------------------------------------------------------------- merging

Test(cuda_run, merges_of_few_and_of_many_parts) {
  Bench b;
  EmulatedFaults &f = emulated_faults();
  const int64_t many = tessera::gpu::kMergeParts;
  for (int64_t parts : {int64_t{1}, int64_t{3}, many, many + 1, int64_t{1500}}) {
    Parts p(parts);
    f.launches = f.allocated = f.released = 0;
    cr_assert_eq(p.run(b), TSR_STATUS_SUCCESS, "%s", b.why.text);
    cr_expect_float_eq(p.out[0], static_cast<double>(parts - 1) / 2, 1e-3);
    cr_expect_float_eq(p.out[1], 1.0, 1e-5);
    cr_expect_float_eq(p.out_lse[0], std::log(static_cast<double>(parts)), 1e-5);
    cr_expect_eq(p.out[2], -7.0f);
    cr_expect_eq(p.out_lse[1], -7.0f);
    cr_expect_eq(f.allocated.load(), parts > many ? 1 : 0);
    cr_expect_eq(f.released.load(), f.allocated.load());
    const int64_t piece = tessera::gpu::kMergePiece;
    cr_expect_eq(f.launches.load(), parts > many ? 1 + 2 * ((parts + piece - 1) / piece) : 1);
  }
}

Test(cuda_run, merges_that_fail) {
  Bench b;
  EmulatedFaults &f = emulated_faults();
  Parts few(3), many(700);
  f.elsewhere = few.o[2];
  cr_expect_eq(few.run(b), TSR_STATUS_INVALID_ARGUMENT);
  expect_text(b.why, "o_parts[2]: found host memory");
  f.elsewhere = few.lse[1];
  cr_expect_eq(few.run(b), TSR_STATUS_INVALID_ARGUMENT);
  expect_text(b.why, "lse_parts[1]: found host memory");
  f.elsewhere = nullptr;
  f.capturing = 1;
  cr_expect_eq(few.run(b), TSR_STATUS_SUCCESS);
  cr_expect_eq(many.run(b), TSR_STATUS_INVALID_ARGUMENT);
  expect_text(b.why, "parts: found 700 inside a stream capture, accepted up to ");
  f.capturing = 0;
  f.fail_allocate = 1;
  cr_expect_eq(many.run(b), TSR_STATUS_OUT_OF_MEMORY);
  f.fail_allocate = 0;
  f.fail_launch = TSR_STATUS_DEVICE_ERROR;
  cr_expect_eq(many.run(b), TSR_STATUS_DEVICE_ERROR);
  cr_expect_eq(many.out[0], -7.0f);
}

Test(cuda_run, keep_mask_is_the_common_rule) {
  Bench b;
  enum { kBatch = 2, kHeads = 3, kRows = 5, kKeys = 11 };
  static uint8_t mask[kBatch * kHeads * kRows * kKeys + 1];
  tsr_dropout_problem p = {};
  p.struct_size = sizeof p;
  p.batch = kBatch, p.heads = kHeads, p.seq_q = kRows, p.seq_k = kKeys;
  p.dropout = 0.4f, p.seed = 77, p.offset = 1ull << 40;
  p.mask.dtype = TSR_DTYPE_U8;
  const int64_t stride[4] = {kHeads * kRows * kKeys, kRows * kKeys, kKeys, 1};
  std::memcpy(p.mask.stride, stride, sizeof stride);
  std::memset(mask, 9, sizeof mask);
  cr_assert_eq(b.backend->dropout_mask(b.state, 0, &p, mask, nullptr, &b.why), TSR_STATUS_SUCCESS);
  const tsri_dropout_key key = tsri_dropout_key_make(p.seed, p.offset);
  const uint64_t threshold = tsri_dropout_threshold(p.dropout);
  for (int64_t head = 0; head < kBatch * kHeads; ++head)
    for (int64_t i = 0; i < kRows; ++i)
      for (int64_t j = 0; j < kKeys; ++j)
        cr_assert_eq(mask[(head * kRows + i) * kKeys + j],
                     tsri_dropout_keep(key, threshold, head, i, j));
  cr_expect_eq(mask[sizeof mask - 1], 9);
  emulated_faults().elsewhere = mask;
  cr_expect_eq(b.backend->dropout_mask(b.state, 0, &p, mask, nullptr, &b.why),
               TSR_STATUS_INVALID_ARGUMENT);
  expect_text(b.why, "mask: found host memory");
}

} // namespace
