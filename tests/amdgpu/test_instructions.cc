// SPDX-License-Identifier: Apache-2.0
//
// The executor's instructions one by one (instructions.def), and the layouts of matrix instructions at
// places that AMD's matrix instruction calculator names. Each row is assembled for every device that has it.
//   test_instructions <clang++-19> <scratch folder>
#include <string.h>

#include "assembly.h"

namespace tessera {
namespace amdgpu {
namespace {

int64_t checks, failures;

void check(bool good, const std::string &what) {
  ++checks;
  if (good) return;
  ++failures;
  printf("FAILED: %s\n", what.c_str());
}

struct Tuple {
  uint32_t in[4], out[2];
};
struct Row {
  uint32_t targets;
  std::string text;
  std::vector<Tuple> tuples; // empty: the launch stops,
  std::string reason;        // with this in its message
};

// The wait for LDS is spelled differently; it is put in where a row's text says @lds.
#define WAIT_LDS "@lds\n"
#define LDS_ADDRESS "v_lshrrev_b32 v6, 1, v0\n"
#define DIVISION(vcc, other)                                                                         \
  "v_div_scale_f32 v10, " other ", v3, v3, v2\nv_div_scale_f32 v11, " vcc ", v2, v3, v2\n"             \
  "v_rcp_f32 v12, v10\nv_fma_f32 v13, -v10, v12, 1.0\nv_fmac_f32 v12, v13, v12\nv_mul_f32 v13, v11, v12\n" \
  "v_fma_f32 v14, -v10, v13, v11\nv_fmac_f32 v13, v14, v12\nv_fma_f32 v10, -v10, v13, v11\n"           \
  "v_div_fmas_f32 v10, v10, v12, v13\nv_div_fixup_f32 v8, v10, v3, v2\n"
#define I(...) {__VA_ARGS__}
#define R(...) {__VA_ARGS__}
#define T(in, ...) Tuple{in, __VA_ARGS__}
const std::vector<Row> &rows() {
  static const std::vector<Row> all = {
#define ROW(targets, text, ...) {targets, text, {__VA_ARGS__}, ""},
#define STOPS(targets, text, reason) {targets, text, {}, reason},
#include "instructions.def"
  };
  return all;
}

std::string replaced(std::string text, const std::string &what, const std::string &by) {
  for (size_t at; (at = text.find(what)) != std::string::npos;) text.replace(at, what.size(), by);
  return text;
}

// Loads the inputs, runs the text, stores v8 and v9.
std::string body_of(const Target &t, const std::string &text) {
  const bool nine = t.bit & kNine, twelve = t.bit & kTwelve;
  std::string body = nine ? "s_load_dwordx4 s[4:7], s[0:1], 0x0\n" : "s_load_b128 s[4:7], s[0:1], 0x0\n";
  body += "v_lshlrev_b32 v0, 4, v0\nv_mov_b32 v8, 0\nv_mov_b32 v9, 0\n";
  body += "s_mov_b32 s20, 0x12345678\ns_mov_b32 s21, 0xfedcba98\ns_mov_b32 s22, 7\ns_mov_b32 s23, 0x80000000\n";
  body += twelve ? "s_wait_kmcnt 0x0\n" : "s_waitcnt lgkmcnt(0)\n";
  body += nine ? "global_load_dwordx4 v[2:5], v0, s[4:5]\n" : "global_load_b128 v[2:5], v0, s[4:5]\n";
  body += twelve ? "s_wait_loadcnt 0x0\n" : "s_waitcnt vmcnt(0)\n";
  body += replaced(text, "@lds", twelve ? "s_wait_dscnt 0x0" : "s_waitcnt lgkmcnt(0)") + "\n";
  body += "v_lshrrev_b32 v0, 1, v0\n";
  return body + (nine ? "global_store_dwordx2 v0, v[8:9], s[6:7]\n" : "global_store_b64 v0, v[8:9], s[6:7]\n");
}

void run_row(const Target &target, const Row &row, Kernel *kernel) {
  std::vector<uint32_t> in(target.lanes * 4), out(target.lanes * 2, 0xdddddddd);
  for (size_t l = 0; l < target.lanes && !row.tuples.empty(); ++l)
    memcpy(&in[4 * l], row.tuples[l % row.tuples.size()].in, 16);
  Executor executor;
  check(executor.add_block(in.data(), in.size() * 4, false) && executor.add_block(out.data(), out.size() * 4),
        "blocks are made known");
  LaunchOptions options;
  options.block.x = target.lanes;
  options.budget = 10000;
  const void *const pointers[2] = {in.data(), out.data()};
  std::string error;
  const bool ran = executor.launch(kernel, options, pointers, sizeof pointers, &error);
  const std::string what = std::string(target.name) + ": " + replaced(row.text, "\n", "; ");
  if (row.tuples.empty()) {
    check(!ran && error.find(row.reason) != std::string::npos, what + ": '" + error + "', not: " + row.reason);
    return;
  }
  check(ran, what + ": " + error);
  if (!ran) return;
  for (size_t l = 0; l < target.lanes; ++l) {
    const Tuple &t = row.tuples[l % row.tuples.size()];
    char text[120];
    snprintf(text, sizeof text, ": lane %zu has 0x%08x 0x%08x, not 0x%08x 0x%08x", l, out[2 * l], out[2 * l + 1],
             t.out[0], t.out[1]);
    check(out[2 * l] == t.out[0] && out[2 * l + 1] == t.out[1], what + text);
  }
}

// One element of A and of B of a matrix instruction, as the calculator places them, and the place of their
// product in D: register and lane, half of the register where elements have 16 bits.
struct Place {
  uint32_t reg, lane, half;
};
struct Layout {
  uint32_t targets;
  const char *name;
  uint32_t type; // 0 float16, 1 bfloat16, 2 float32
  uint32_t side, words;
  Place a, b, d;
};
const Layout kLayouts[] = {
    {kMi3, "v_mfma_f32_32x32x8_f16", 0, 32, 2, {1, 48, 0}, {1, 41, 0}, {8, 9, 0}},    // A[16][6] B[6][9]
    {kMi3, "v_mfma_f32_32x32x8_f16", 0, 32, 2, {1, 29, 1}, {1, 16, 1}, {13, 48, 0}},  // A[29][3] B[3][16]
    {kMi3, "v_mfma_f32_32x32x8_bf16", 1, 32, 2, {0, 10, 0}, {0, 23, 0}, {6, 23, 0}},  // A[10][0] B[0][23]
    {kMi3, "v_mfma_f32_16x16x16_f16", 0, 16, 2, {1, 16, 0}, {1, 25, 0}, {0, 9, 0}},   // A[0][6] B[6][9]
    {kMi3, "v_mfma_f32_16x16x16_bf16", 1, 16, 2, {1, 45, 1}, {1, 32, 1}, {1, 48, 0}}, // A[13][11] B[11][0]
    {kMi3, "v_mfma_f32_16x16x4_f32", 2, 16, 1, {0, 61, 0}, {0, 48, 0}, {1, 48, 0}},   // A[13][3] B[3][0]
    {kMi3, "v_mfma_f32_32x32x2_f32", 2, 32, 1, {0, 61, 0}, {0, 48, 0}, {13, 48, 0}},  // A[29][1] B[1][16]
    {1, "v_mfma_f32_16x16x16bf16_1k", 1, 16, 2, {0, 10, 0}, {0, 7, 0}, {2, 39, 0}},   // A[10][0] B[0][7]
    {1, "v_mfma_f32_16x16x16f16", 0, 16, 2, {1, 45, 1}, {1, 32, 1}, {1, 48, 0}},      // A[13][11] B[11][0]
    {1, "v_mfma_f32_32x32x8f16", 0, 32, 2, {1, 29, 1}, {1, 16, 1}, {13, 48, 0}},      // A[29][3] B[3][16]
    {1, "v_mfma_f32_32x32x8bf16_1k", 1, 32, 2, {1, 48, 0}, {1, 41, 0}, {8, 9, 0}},    // A[16][6] B[6][9]
    {kEleven, "v_wmma_f32_16x16x16_f16", 0, 16, 8, {3, 16, 0}, {3, 25, 0}, {0, 9, 0}}, // A[0][6] B[6][9]
    {kEleven, "v_wmma_f32_16x16x16_bf16", 1, 16, 8, {5, 29, 1}, {5, 16, 1}, {6, 16, 0}}, // A[13][11] B[11][0]
    {kEleven, "v_wmma_f32_16x16x16_f16", 0, 16, 8, {0, 26, 0}, {0, 23, 0}, {5, 7, 0}}, // A[10][0] B[0][7]
    {kTwelve, "v_wmma_f32_16x16x16_f16", 0, 16, 4, {1, 16, 0}, {1, 25, 0}, {0, 9, 0}}, // A[0][6] B[6][9]
    {kTwelve, "v_wmma_f32_16x16x16_bf16", 1, 16, 4, {3, 13, 1}, {3, 0, 1}, {5, 16, 0}}, // A[13][11] B[11][0]
    {kTwelve, "v_wmma_f32_16x16x16_f16", 0, 16, 4, {0, 10, 0}, {0, 7, 0}, {2, 23, 0}}}; // A[10][0] B[0][7]

std::string range(uint32_t first, uint32_t count) {
  const std::string name = std::to_string(first);
  return count == 1 ? "v" + name : "v[" + name + ":" + std::to_string(first + count - 1) + "]";
}

// A from v16 on holds 2 at its place, B from v32 on 3, all else 0; D from v48 on is 6 at its place and 0
// elsewhere. Operands of gfx11 are in both halves of the wave.
std::string layout_body(const Target &t, const Layout &y) {
  const bool nine = t.bit & kNine, twelve = t.bit & kTwelve;
  const uint32_t numbers[3][2] = {{0x4000, 0x4200}, {0x4000, 0x4040}, {0x40000000, 0x40400000}};
  const uint32_t elements = y.side * y.side / t.lanes;
  std::string body = nine ? "s_load_dwordx4 s[4:7], s[0:1], 0x0\n" : "s_load_b128 s[4:7], s[0:1], 0x0\n";
  body += std::string("v_and_b32 v1, ") + (t.bit == kEleven ? "15" : "63") + ", v0\nv_lshlrev_b32 v0, 2, v0\n";
  const Place places[2] = {y.a, y.b};
  for (uint32_t m = 0; m < 2; ++m) {
    const uint32_t first = 16 + 16 * m, bits = numbers[y.type][m] << (places[m].half ? 16 : 0);
    const uint32_t lane = t.bit == kEleven ? places[m].lane % 16 : places[m].lane;
    for (uint32_t r = 0; r < y.words; ++r) body += "v_mov_b32 v" + std::to_string(first + r) + ", 0\n";
    body += "v_mov_b32 v2, " + std::to_string(bits) + "\n";
    const std::string reg = "v" + std::to_string(first + places[m].reg), mask = nine ? "vcc" : "vcc_lo";
    body += "v_cmp_eq_u32 " + mask + ", " + std::to_string(lane) + ", v1\nv_cndmask_b32 " + reg + ", " + reg +
            ", v2, " + mask + "\n";
  }
  body += std::string(y.name) + " " + range(48, elements) + ", " + range(16, y.words) + ", " + range(32, y.words) +
          ", 0\n" + (twelve ? "s_wait_kmcnt 0x0\n" : "s_waitcnt lgkmcnt(0)\n");
  for (uint32_t e = 0; e < elements; ++e)
    body += std::string(nine ? "global_store_dword" : "global_store_b32") + " v0, v" + std::to_string(48 + e) +
            ", s[6:7] offset:" + std::to_string(e * t.lanes * 4) + "\n";
  return body;
}

void run_layout(const Target &target, const Layout &y, Kernel *kernel) {
  const uint32_t elements = y.side * y.side / target.lanes;
  std::vector<float> out(elements * target.lanes, -1.0f);
  Executor executor;
  executor.add_block(out.data(), out.size() * 4);
  LaunchOptions options;
  options.block.x = target.lanes;
  const void *const pointers[2] = {nullptr, out.data()};
  std::string error;
  LaunchCounts counts;
  const bool ran = executor.launch(kernel, options, pointers, sizeof pointers, &error, &counts);
  const std::string what = std::string(target.name) + ": layout of " + y.name;
  check(ran && counts.matrix == 1, what + ": " + error);
  for (uint32_t e = 0; ran && e < elements; ++e)
    for (uint32_t l = 0; l < target.lanes; ++l) {
      const float wanted = e == y.d.reg && l == y.d.lane ? 6.0f : 0.0f, found = out[e * target.lanes + l];
      check(found == wanted, what + ": register " + std::to_string(e) + " lane " + std::to_string(l) + " holds " +
                                 std::to_string(found));
    }
}

// Two waves, of which v1 is the number, v2 twice and v3 four times that, and LDS: whether a barrier is missing.
struct Race {
  const char *text;
  bool is_one;
};
const Race kRaces[] = {
    {"@store_b32 v3, v0\n", false},
    {"v_mov_b32 v3, 0\n@store_b32 v3, v0\n", true},
    {"@store_b16 v2, v0\n", false}, // halves of a word
    {"v_mov_b32 v2, 0\n@store_b16 v2, v0\n", true},
    {"@store_b8 v1, v0\n", false}, // bytes of a word
    {"v_mov_b32 v1, 2\n@store_b8 v1, v0\n", true},
    {"@store_b16 v1, v0\n", true}, // the second byte of one is the first of the other
    {"@store_b8 v1, v0\nv_mov_b32 v3, 0\n@load_b32 v4, v3\n@lds\n", true},
    {"@store_b8 v1, v0\n@lds\n@barrier\nv_mov_b32 v3, 0\n@load_b32 v4, v3\n@lds\n", false},
    {"@store_b8 v1, v0\n@load_u8 v4, v1\n@lds\n", false},
    {"v_mov_b32 v3, 0\n@load_b32 v4, v3\n@store_b8 v1, v0\n@lds\n", true},
    {"v_mov_b32 v3, 0\n@load_b32 v4, v3\n@lds\n@barrier\n@store_b8 v1, v0\n@lds\n", false},
    {"v_mov_b32 v3, 1\n@load_u8 v4, v3\nv_mov_b32 v5, 2\n@load_u8 v6, v5\n@lds\n", false}, // all read
    {"v_lshlrev_b32 v5, 1, v3\n@store_b64 v5, v[6:7]\n@load_u16 v4, v2\n@lds\n", true}, // a half of 8 bytes
};

std::string race_body(const Target &t, const Race &race) {
  const bool nine = t.bit & kNine, twelve = t.bit & kTwelve;
  std::string text = race.text;
  text = replaced(text, "@lds", twelve ? "s_wait_dscnt 0x0" : "s_waitcnt lgkmcnt(0)");
  text = replaced(text, "@barrier", twelve ? "s_barrier_signal -1\ns_barrier_wait -1" : "s_barrier");
  text = replaced(text, "@store_", nine ? "ds_write_" : "ds_store_");
  text = replaced(text, "@load_", nine ? "ds_read_" : "ds_load_");
  return std::string("v_lshrrev_b32 v1, ") + (t.lanes == 64 ? "6" : "5") +
         ", v0\nv_lshlrev_b32 v2, 1, v1\nv_lshlrev_b32 v3, 2, v1\nv_mov_b32 v6, 0\nv_mov_b32 v7, 0\n" + text;
}

void run_race(const Target &target, const Race &race, Kernel *kernel) {
  const void *const pointers[2] = {nullptr, nullptr};
  for (const bool backwards : {false, true}) {
    Executor executor;
    LaunchOptions options;
    options.block.x = 2 * target.lanes;
    options.backwards = backwards;
    std::string error;
    const bool ran = executor.launch(kernel, options, pointers, sizeof pointers, &error);
    check(race.is_one ? !ran && error.find("a barrier is missing") != std::string::npos : ran,
          std::string(target.name) + ": " + replaced(race.text, "\n", "; ") + ": '" + error + "'");
  }
}

// Images that are cut short or no code objects are refused with a reason; memory is known block by block.
void run_refusals(const std::string &image) {
  std::string error;
  for (size_t bytes = 0; bytes < image.size(); bytes += 1 + image.size() / 97) {
    const std::string part = image.substr(0, bytes) + std::string(bytes == 0 ? 1 : 0, 'x');
    error.clear();
    const auto object = CodeObject::load(part.data(), part.size(), &error);
    check(object || !error.empty(), "an image of " + std::to_string(bytes) + " bytes is refused with a reason");
    check(!object || bytes > image.size() / 2, "an image of " + std::to_string(bytes) + " bytes is refused");
  }
  std::string other = image;
  other[18] = 62; // e_machine
  check(!CodeObject::load(other.data(), other.size(), &error), "another processor's ELF file is refused");
  unsigned char memory[64];
  Executor executor;
  check(executor.add_block(memory + 16, 16) && !executor.add_block(memory + 24, 16) &&
            !executor.add_block(memory, 17) && !executor.add_block(memory, 0) && executor.add_block(memory, 16),
        "blocks do not overlap");
  check(executor.knows(memory + 16, 16) && !executor.knows(memory + 16, 17) && !executor.knows(memory + 32, 1) &&
            !executor.knows(memory, 32),
        "what is known is within one block");
  check(executor.remove_block(memory) && !executor.remove_block(memory) && !executor.knows(memory, 1),
        "a block is forgotten once");
}

void run_target(const Target &target, const std::string &clang, const std::string &folder) {
  Assembly assembly(target, 2048);
  for (const Row &row : rows())
    if (row.targets & target.bit) assembly.add(body_of(target, row.text));
  for (const Layout &y : kLayouts)
    if (y.targets & target.bit) assembly.add(layout_body(target, y));
  for (const Race &race : kRaces) assembly.add(race_body(target, race));
  const auto object = assembly.assemble(clang, folder + "/instructions_" + target.name);
  check(object != nullptr, std::string(target.name) + ": assembled and loaded");
  if (!object) return;
  run_refusals(read_file(folder + "/instructions_" + target.name + ".co"));
  int n = 0;
  for (const Row &row : rows())
    if (row.targets & target.bit) run_row(target, row, object->find("k" + std::to_string(n++)));
  for (const Layout &y : kLayouts)
    if (y.targets & target.bit) run_layout(target, y, object->find("k" + std::to_string(n++)));
  for (const Race &race : kRaces) run_race(target, race, object->find("k" + std::to_string(n++)));
}

} // namespace
} // namespace amdgpu
} // namespace tessera

int main(int count, char **args) {
  using namespace tessera::amdgpu;
  if (count != 3) return 2;
  for (const Target &target : kTargets) run_target(target, args[1], args[2]);
  printf("test_instructions: %lld checks, %lld failures\n", static_cast<long long>(checks),
         static_cast<long long>(failures));
  return failures != 0 || checks == 0;
}
