// SPDX-License-Identifier: Apache-2.0
//
// The rows of the HIP backend without a device: every function of every row lies in a code object for every
// architecture that the row is for, selection takes an architecture's own rows and refuses the others with a
// reason, and nothing asks for more shared memory than a block can have. With --list it prints the rows
// instead, one kernel a line, for scripts/amd_model.py and tests/amdgpu/fake/rows.py; with --list-shared the
// kernels that no row names, which are every device's.
#include <stdio.h>
#include <string.h>

#include <set>
#include <string>

#include "backends/hip/objects.h"
#include "common/gpu/host/backward_plan.h"
#include "common/gpu/host/merge.h"
#include "common/gpu/host/select.h"
extern "C" {
#include "api/src/validate.h"
}

extern "C" {
extern const tessera::hip::CodeObject tsri_hip_objects[];
extern const uint64_t tsri_hip_object_count;
}

namespace tessera {
namespace hip {
namespace {

int64_t checks, failures;

void check(bool ok, const char *what, const std::string &of) {
  ++checks;
  if (ok) return;
  ++failures;
  printf("FAILED: %s: %s\n", of.c_str(), what);
}

DeviceFacts facts_of(int32_t arch) {
  DeviceFacts f = {};
  snprintf(f.name, sizeof f.name, "a device");
  f.arch = arch;
  f.processors = 96;
  f.shared_per_block = 65536;
  f.shared_per_processor = 65536;
  f.registers_per_processor = 131072;
  f.l2_bytes = 4 << 20;
  f.memory_bytes = int64_t{16} << 30;
  f.clock = 2e9;
  f.bandwidth = 1e12;
  return f;
}

std::set<int32_t> archs() {
  std::set<int32_t> all;
  for (uint64_t i = 0; i < tsri_hip_object_count; ++i) all.insert(arch_of(tsri_hip_objects[i].device));
  return all;
}

// Whether a code object holds a symbol's name: its string table does.
bool holds(const CodeObject &object, const char *symbol) {
  const std::string image(reinterpret_cast<const char *>(object.begin),
                          static_cast<size_t>(object.end - object.begin));
  return image.find(symbol + std::string(1, '\0')) != std::string::npos;
}

// served: architectures that have a row.
void check_row(const Row &row, const std::set<int32_t> &all, std::set<int32_t> *served) {
  for (const int32_t arch : all) {
    if (!serves(row.arch, arch)) continue;
    served->insert(arch);
    for (const Entry &entry : row.entry) {
      if (!entry.function) continue;
      const Function &f = *static_cast<const Function *>(entry.function);
      const CodeObject *object = find_object(arch, f.object);
      check(object && holds(*object, f.symbol), "its code is missing", f.symbol);
      check(int64_t{entry.threads} * kMostBlocks <= int64_t{UINT32_MAX}, "a launch could have too many threads",
            f.symbol);
      check(entry.shared_bytes <= 65536 && entry.threads > 0 && entry.threads <= 1024, "its block is too large",
            f.symbol);
    }
  }
}

tsr_resolved resolve(tsr_pass pass, tsr_dtype dtype, int64_t seq, int64_t dim, int64_t alignment) {
  tsr_problem p = TSR_PROBLEM_INIT, valid;
  tsr_resolved r;
  p.batch = 1, p.heads_q = p.heads_kv = 4;
  p.seq_q = p.seq_k = seq, p.dim_qk = p.dim_v = dim;
  tsr_layout l = {};
  l.dtype = dtype;
  l.alignment = alignment;
  p.q = p.k = p.v = p.o = l;
  if (pass == TSR_PASS_BACKWARD) {
    p.passes = TSR_PASS_FORWARD | TSR_PASS_BACKWARD;
    p.dout = p.dq = p.dk = p.dv = l;
    p.lse.dtype = TSR_DTYPE_F32;
    p.lse.alignment = 4;
  }
  check(tsri_validate_problem(&p, &valid) == TSR_STATUS_SUCCESS, tsr_last_message(), "a problem of the test");
  tsri_resolve_pass(&valid, tsr_device{TSR_DEVICE_HIP, 0}, pass, &r);
  return r;
}

// Which rows take a problem on an architecture; every refusal has a reason.
int64_t takers(int32_t arch, const tsr_resolved &problem, tsr_pass pass) {
  const DeviceFacts facts = facts_of(arch);
  int64_t found = 0;
  const Row *row;
  for (int32_t i = 0; (row = row_at(i)) != nullptr; ++i) {
    Choice choice;
    tsr_reason why = {};
    if (row->pass != pass) continue;
    if (select_row(facts, *row, problem, &choice, &why)) {
      ++found;
      check(serves(row->arch, arch), "takes a device of another architecture", row->name);
      check(choice.estimate.seconds > 0, "estimates no time", row->name);
    } else {
      check(why.text[0] != 0, "refuses without a reason", row->name);
      if (!serves(row->arch, arch))
        check(strstr(why.text, "this kernel is for gfx") != nullptr, why.text, row->name);
    }
  }
  return found;
}

void check_selection(const std::set<int32_t> &all) {
  for (const int32_t arch : all)
    for (const tsr_dtype dtype : {TSR_DTYPE_F32, TSR_DTYPE_F16, TSR_DTYPE_BF16})
      for (const int64_t dim : {int64_t{40}, int64_t{64}, int64_t{128}, int64_t{512}})
        for (const int64_t alignment : {int64_t{2}, int64_t{16}})
          for (const tsr_pass pass : {TSR_PASS_FORWARD, TSR_PASS_BACKWARD}) {
            const int64_t least = dtype == TSR_DTYPE_F32 && alignment < 4 ? 4 : alignment;
            char text[96];
            snprintf(text, sizeof text, "gfx%x, dtype %d, %d columns, alignment %d, pass %d",
                     static_cast<unsigned>(arch), static_cast<int>(dtype), static_cast<int>(dim),
                     static_cast<int>(least), static_cast<int>(pass));
            const int64_t found = takers(arch, resolve(pass, dtype, 300, dim, least), pass);
            check(found > 0, "no row takes it", text);
          }
  const tsr_resolved problem = resolve(TSR_PASS_FORWARD, TSR_DTYPE_F16, 64, 64, 16);
  check(takers(0x908, problem, TSR_PASS_FORWARD) == 0, "has no code in this build, and a row takes it", "gfx908");
}

void list() {
  const Row *row;
  for (int32_t i = 0; (row = row_at(i)) != nullptr; ++i)
    for (const Entry &e : row->entry)
      if (e.function)
        printf("%s %s %d %u %d\n", row->name, static_cast<const Function *>(e.function)->symbol,
               static_cast<int>(e.threads), static_cast<unsigned>(e.shared_bytes), static_cast<int>(row->dtype));
}

void list_shared() {
  for (const Entry *e : {&merge_entry, &merge_table_entry, &keep_mask_entry})
    printf("%s\n", static_cast<const Function *>(e->function)->symbol);
  for (const Entry &e : backward_entries) printf("%s\n", static_cast<const Function *>(e.function)->symbol);
}

} // namespace
} // namespace hip
} // namespace tessera

int main(int argc, char **argv) {
  using namespace tessera::hip;
  if (argc > 1 && strcmp(argv[1], "--list") == 0) {
    list();
    return 0;
  }
  if (argc > 1 && strcmp(argv[1], "--list-shared") == 0) {
    list_shared();
    return 0;
  }
  const std::set<int32_t> all = archs();
  std::set<std::string> names;
  std::set<int32_t> served;
  const tessera::hip::Row *row;
  for (int32_t i = 0; (row = row_at(i)) != nullptr; ++i) {
    check(names.insert(row->name).second, "two rows have this name", row->name);
    check_row(*row, all, &served);
  }
  check(served == all && !all.empty(), "an architecture of the build has no row", "kernels.def");
  for (const Entry &e : backward_entries) {
    const Function &f = *static_cast<const Function *>(e.function);
    for (const int32_t arch : all) {
      const CodeObject *object = find_object(arch, f.object);
      check(object && holds(*object, f.symbol), "its code is missing", f.symbol);
    }
  }
  check(arch_of("gfx90a:sramecc+") == 0x90a && arch_of("gfx1201") == 0x1201 && arch_of("sm_90") == 0 &&
            arch_of("gfx") == 0,
        "names are read wrongly", "arch_of");
  check_selection(all);
  printf("%zu rows, %zu architectures: %lld checks, %lld failed\n", names.size(), all.size(),
         static_cast<long long>(checks), static_cast<long long>(failures));
  return failures != 0 || names.empty();
}
