// SPDX-License-Identifier: Apache-2.0
//
// Whether test_programs would notice: the programs' machine code with one fault planted at a time, run on
// the same cases. A missing barrier, a missing wait, operands of a matrix instruction in the wrong place, a
// comparison off by one; and a launch with too little LDS, a problem that claims one key more or one fewer
// than it has, a program that spills.
//   test_faults <code object>...      those named *spills* have to be refused
#include <string.h>

#include <functional>

#include "disassemble.h"
#include "program_run.h"

namespace tessera {
namespace gpu {
namespace {

int64_t checks, failures;

void check(bool good, const std::string &what) {
  ++checks;
  if (good) return;
  ++failures;
  printf("FAILED: %s\n", what.c_str());
}

// Until a case notices. Which wave is first does not matter: a race is one either way.
bool notices(const Code &code) {
  for (const Case &c : kEdgeCases)
    if (!run_case(code, c, false, as_it_is).wrong.empty()) return true;
  return false;
}

// Changes an instruction at `at` if it is of this kind of fault.
using Plant = bool (*)(const std::string &text, unsigned char *at);

constexpr uint32_t kNop = 0xbf800000;
bool begins(const std::string &text, const char *with) { return text.compare(0, strlen(with), with) == 0; }
void flip(unsigned char *at, uint32_t bits) {
  uint32_t word;
  memcpy(&word, at, 4);
  word ^= bits;
  memcpy(at, &word, 4);
}

bool no_barrier(const std::string &text, unsigned char *at) {
  // gfx12 arrives and waits in two instructions, one after the other.
  const bool split = begins(text, "s_barrier_signal");
  if (text != "s_barrier" && !split) return false;
  memcpy(at, &kNop, 4);
  if (split) memcpy(at + 4, &kNop, 4);
  return true;
}

bool no_wait(const std::string &text, unsigned char *at) {
  if (!begins(text, "s_waitcnt ") && !begins(text, "s_wait_loadcnt") && !begins(text, "s_wait_dscnt") &&
      !begins(text, "s_wait_kmcnt"))
    return false;
  memcpy(at, &kNop, 4);
  return true;
}

// A for B and B for A: bits 0-8 and 9-17 of the second word.
bool wrong_lanes(const std::string &text, unsigned char *at) {
  if (!begins(text, "v_mfma_") && !begins(text, "v_wmma_")) return false;
  uint32_t word;
  memcpy(&word, at + 4, 4);
  word = (word & ~0x3ffffu) | (word & 0x1ffu) << 9 | (word >> 9 & 0x1ffu);
  memcpy(at + 4, &word, 4);
  return true;
}

// < for <= and > for >=, and the other way round, of lanes' integers: the operation is bits 17-24 of a
// short encoding, 16-25 of a long one.
bool off_by_one(const std::string &text, unsigned char *at) {
  const size_t verb = text.find('_', 2) + 1; // v_cmp_lt_i32_e32, v_cmpx_lt_i32_e64
  const std::string what = text.substr(verb, 2), rest = text.substr(0, text.find(' '));
  if (!begins(text, "v_cmp") || (what != "lt" && what != "le" && what != "gt" && what != "ge") ||
      rest.find("_i32") == std::string::npos)
    return false;
  flip(at, rest.find("_e32") != std::string::npos ? 2u << 17 : 2u << 16);
  return true;
}

// How often the unchanged program comes to each word of its code: what no case comes to is left alone.
std::vector<uint64_t> visits_of(const Code &code) {
  std::vector<uint64_t> visits(code.tested->code_bytes / 4);
  auto count = [&](ForwardArgs *, amdgpu::LaunchOptions *options) { options->visits = visits.data(); };
  for (const Case &c : kEdgeCases) {
    const Verdict v = run_case(code, c, false, count);
    check(v.wrong.empty(), code.name + ": unchanged: " + v.wrong);
  }
  return visits;
}

// Every step-th instruction of a kind in turn; the part `least` of them has to be noticed.
void try_kind(const Code &code, const std::vector<uint64_t> &visits, const char *kind, Plant plant, int step,
              double least) {
  std::vector<amdgpu::Line> lines;
  std::string error;
  const unsigned char *entry = code.object->base() + code.tested->entry;
  check(amdgpu::disassemble(code.object->device(), entry, code.tested->code_bytes, &lines, &error), error);
  const size_t begin = code.image.find(std::string(reinterpret_cast<const char *>(entry), code.tested->code_bytes));
  check(begin != std::string::npos, code.name + ": the kernel's code in its file");
  int found = 0, planted = 0, noticed = 0;
  std::string missed;
  for (const amdgpu::Line &line : lines) {
    Code broken;
    broken.name = code.name;
    broken.image = code.image;
    const size_t first = line.text.find_first_not_of(" \t");
    if (first == std::string::npos || visits[line.address / 4] == 0) continue;
    const std::string text = line.text.substr(first);
    if (!plant(text, reinterpret_cast<unsigned char *>(&broken.image[begin + line.address]))) continue;
    if (found++ % step != 0) continue;
    const std::string why = broken.load();
    check(why.empty(), why);
    ++planted;
    if (notices(broken)) {
      ++noticed;
      continue;
    }
    char where[32];
    snprintf(where, sizeof where, " 0x%x", line.address);
    missed += where;
  }
  printf("%s: %s: %d planted, %d noticed; not noticed:%s\n", code.name.c_str(), kind, planted, noticed,
         missed.empty() ? " none" : missed.c_str());
  check(planted > 0 && noticed >= least * planted, code.name + ": " + kind + ": too few are noticed");
}

void try_launches(const Code &code) {
  struct {
    const char *what;
    std::function<void(ForwardArgs *, amdgpu::LaunchOptions *)> edit;
    const char *reason; // in the message; "": the result is wrong
  } const edits[] = {
      {"LDS is 16 bytes short", [](ForwardArgs *, amdgpu::LaunchOptions *o) { o->dynamic_lds -= 16; }, "LDS"},
      {"one key more than there is", [](ForwardArgs *a, amdgpu::LaunchOptions *) { ++a->call.p.seq_k; }, ""},
      {"one key fewer", [](ForwardArgs *a, amdgpu::LaunchOptions *) { --a->call.p.seq_k; }, ""},
      {"one query more", [](ForwardArgs *a, amdgpu::LaunchOptions *) { ++a->call.p.seq_q; }, "no memory"},
  };
  for (const auto &e : edits) {
    const Verdict v = run_case(code, kEdgeCases[0], false, e.edit);
    check(!v.wrong.empty() && v.wrong.find(e.reason) != std::string::npos,
          code.name + ": " + e.what + ": '" + v.wrong + "'");
  }
}

} // namespace
} // namespace gpu
} // namespace tessera

int main(int count, char **names) {
  using namespace tessera::gpu;
  for (int n = 1; n < count; ++n) {
    Code code;
    const std::string why = code.read(names[n]);
    check(why.empty(), why);
    if (!why.empty()) continue;
    if (code.name.find("spills") != std::string::npos) {
      const Verdict v = run_case(code, kEdgeCases[0], false, as_it_is);
      check(!v.ended && v.wrong.find("scratch memory") != std::string::npos, code.name + " is refused: " + v.wrong);
      continue;
    }
    try_launches(code);
    const std::vector<uint64_t> visits = visits_of(code);
    // Some barriers are for copies that are still under way when they are reached, which AMD's are not.
    try_kind(code, visits, "barrier left out", no_barrier, 1, 0.7);
    try_kind(code, visits, "matrix operands exchanged", wrong_lanes, 3, 1.0);
    // Many comparisons are of features that the cases do not use, or of columns that come in eights.
    try_kind(code, visits, "comparison off by one", off_by_one, 5, 0.2);
    // Some are passed on ways on which nothing was loaded.
    try_kind(code, visits, "wait left out", no_wait, 3, 0.75);
  }
  printf("test_faults: %lld checks, %lld failures\n", static_cast<long long>(checks), static_cast<long long>(failures));
  return failures != 0 || checks == 0;
}
