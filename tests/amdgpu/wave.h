// SPDX-License-Identifier: Apache-2.0
//
// What the parts of the executor share: a decoded instruction, the state of a wave, and the memory
// it may touch. An instruction is text from LLVM's disassembler that was taken apart once; its
// handler is found by its name in a table, and finds its operands in the order in which the text
// has them.
#ifndef TESSERA_TESTS_AMDGPU_WAVE_H_
#define TESSERA_TESTS_AMDGPU_WAVE_H_

#include <stdint.h>
#include <string.h>

#include <memory>
#include <string>
#include <unordered_map>
#include <vector>

namespace tessera {
namespace amdgpu {

struct Wave;
struct Inst;
using Handler = void (*)(Wave &, const Inst &);

enum class Family : uint8_t { kGfx9, kGfx11, kGfx12 };

// Scalar registers by number: s0 .. s105, then those with names. Reads of null are 0.
enum : uint16_t { kVcc = 106, kTtmp = 108, kM0 = 124, kNull = 125, kExec = 126, kScalars = 128 };
constexpr int kVectors = 512; // v0 .. v255, a0 .. a255
constexpr int kAccumulators = 256;

enum class Kind : uint8_t { kNone, kVector, kScalar, kConstant, kOff };
enum class Part : uint8_t { kAll, kByte0, kByte1, kByte2, kByte3, kWord0, kWord1 };

struct Operand {
  Kind kind = Kind::kNone;
  bool negate = false, absolute = false, sign_extend = false;
  bool literal = false;    // of a constant: 32 bits that followed the instruction
  Part part = Part::kAll; // of a 32-bit register
  uint16_t reg = 0, count = 1;
  uint16_t half = 0; // a constant as an operand of 16,
  uint32_t word = 0; // 32,
  uint64_t wide = 0; // and 64 bits
};

// Modifiers that a handler has to understand to be allowed to carry them out.
enum : uint32_t {
  kModOffset = 1, // offset:, offset0:, offset1:
  kModCache = 2,   // cache policy: nothing to do
  kModReturn = 4, // an atomic gives back the old value
  kModSelect = 8, // op_sel, op_sel_hi, neg_lo, neg_hi
  kModSdwa = 16,
  kModDpp = 32,
  kModSigns = 64, // negated or absolute sources
  kModClamp = 128,
  kModLoad = 256 // no modifier: operand 0 is what a load will write
};

enum class Lanes : uint8_t {
  kSame,
  kQuad,
  kShiftLeft,
  kShiftRight,
  kRotate,
  kMirror,
  kHalfMirror,
  kShare,
  kXor,
  kBroadcast15,
  kBroadcast31
};

struct Inst {
  Handler run = nullptr;
  uint8_t operands = 0;
  uint8_t first_checked = 0; // operands from here on must not be owed by a load; see Transfer
  uint32_t modifiers = 0;
  Operand op[6];
  int32_t offset = 0, offset1 = 0;
  int32_t param = 0; // the table's: what tells instructions of one handler apart
  uint8_t select = 0, select_high = 7, negate_low = 0, negate_high = 0; // bit n: source n
  bool has_select_high = false;
  Part to = Part::kAll; // what of the result's register is written,
  bool keeps = false;    // and whether the rest stays
  Lanes lanes = Lanes::kSame;
  uint16_t lanes_arg = 0;
  bool bound_zero = false;     // lanes that DPP reads from nowhere are 0, not left out
  uint32_t next = 0;           // indices of instructions
  int32_t target = -1;         // of a branch
  uint32_t address = 0;        // bytes from the kernel's entry
  const Inst *pair = nullptr; // second half of a dual instruction
  uint8_t pair_order = 0;      // 0 first half first, 1 second half first, 2 both read what the other writes
  uint8_t max_wait[4] = {};    // s_waitcnt: see Counter; 255: does not wait
  std::string text;
};

struct TableRow {
  Handler run;
  uint32_t modifiers; // understood
  int32_t param;
  bool free_text = false; // what follows the name is no list of operands
};
using Table = std::unordered_map<std::string, TableRow>;
const Table &table();
// What table() is made of.
void add_scalar(Table &);
void add_vector(Table &);
void add_vector_wide(Table &);
void add_compare(Table &);
void add_lanes(Table &);
void add_global(Table &);
void add_lds(Table &);
void add_matrix(Table &);
void add_control(Table &);

struct Program {
  std::vector<Inst> code;
  std::vector<std::unique_ptr<Inst>> pairs;
};
struct Line;
// Text to instructions; those that are not modelled stop the wave that comes to them.
void decode(const std::vector<Line> &lines, Family family, Program *program);

// Memory of the device as one launch sees it.
struct MemoryMap {
  struct Range {
    uint64_t begin, end;
    bool writable;
  };
  std::vector<Range> ranges; // sorted
  mutable size_t last = 0;
  // Host address of [address, address + bytes), NULL where it is not memory of one block.
  unsigned char *at(uint64_t address, uint32_t bytes, bool write) const {
    const Range &r = ranges[last];
    if (address >= r.begin && address + bytes <= r.end && address + bytes >= address &&
        (!write || r.writable))
      return reinterpret_cast<unsigned char *>(address);
    return find(address, bytes, write);
  }
  unsigned char *find(uint64_t address, uint32_t bytes, bool write) const;
};

// Memory operations under way are counted; what one of them loads may not be used before the
// counter was waited for. gfx9: vm counts loads and stores; gfx11: stores have vs; lgkm is LDS and
// scalar memory, which gfx12 counts apart: ds and km.
enum Counter : uint8_t { kLoads, kLocal, kStores, kScalarLoads, kCounters };

struct Transfer {
  bool vector, in_order;
  uint16_t reg, count; // what it loads; count 0: nothing
};

// LDS of a block, and who touched which of its bytes since the last barrier: without one in
// between, a byte that a wave writes may be touched by no other.
struct Lds {
  // Barriers passed by then in the upper bits; below them the wave, kSeveral, and kAtomic for a write that
  // was one.
  struct Marks {
    std::vector<uint32_t> written, read;
  };
  static constexpr uint32_t kSeveral = 0x7f, kAtomic = 0x80;
  std::vector<unsigned char> bytes;
  // Of all four bytes of a word, until an access since that barrier (`apart`) was of some of them: then each has
  // its own. Apart from one another, so that words side by side are looked at together.
  Marks words, each;
  std::vector<uint32_t> apart;
  uint32_t barriers = 1;
};

enum class State : uint8_t { kRuns, kAtBarrier, kEnded, kFailed };

struct Wave {
  Family family = Family::kGfx9;
  bool flushes_halves = false; // gfx90a: MFMA takes denormals for 0
  int lanes = 64;
  State state = State::kRuns;
  bool signalled = false;
  uint32_t scc = 0;
  uint32_t pc = 0; // index of the next instruction
  uint32_t s[kScalars];
  std::vector<uint32_t> v; // kVectors rows of `lanes`
  int number = 0;           // in its block
  Lds *lds = nullptr;
  const MemoryMap *memory = nullptr;
  uint64_t code = 0; // address of the kernel's entry
  std::vector<Transfer> under_way[kCounters];
  uint32_t under_way_total = 0;
  uint8_t owed_vector[kVectors], owed_scalar[kScalars]; // transfers that will write a register
  uint64_t reached = 0; // lanes whose source of a DPP operand exists and is on
  uint64_t matrix = 0;
  std::string error;

  uint32_t *row(int reg) { return v.data() + static_cast<size_t>(reg) * static_cast<size_t>(lanes); }
  uint64_t all() const { return lanes == 64 ? ~uint64_t{0} : 0xffffffffu; }
  uint64_t exec() const { return s[kExec] | static_cast<uint64_t>(s[kExec + 1]) << 32; }
  uint64_t pair(int reg) const { return s[reg] | static_cast<uint64_t>(s[reg + 1]) << 32; }
  void set_pair(int reg, uint64_t x) {
    s[reg] = static_cast<uint32_t>(x);
    s[reg + 1] = static_cast<uint32_t>(x >> 32);
  }
  // A lane mask: as many registers as lanes / 32.
  uint64_t mask(const Operand &o) const;
  void set_mask(const Operand &o, uint64_t x);
  void fail(const std::string &why) {
    if (state == State::kFailed) return;
    state = State::kFailed;
    error = why;
  }

  void starts(Counter counter, bool vector, int reg, int count, bool in_order);
  void waits(Counter counter, uint32_t left);
  bool owes(const Inst &inst); // an operand is still owed: fails
};

// Values of an operand for all lanes: the register's own row, or `buffer` filled.
const uint32_t *read_words(Wave &w, const Inst &i, int n, uint32_t *buffer); // 32 bits
void read_halves(Wave &w, const Inst &i, int n, uint16_t *buffer);
void read_wides(Wave &w, const Inst &i, int n, uint64_t *buffer);
void write_words(Wave &w, const Inst &i, int n, const uint32_t *values);
void write_halves(Wave &w, const Inst &i, int n, const uint16_t *values);
void write_wides(Wave &w, const Inst &i, int n, const uint64_t *values);
uint32_t scalar_word(const Wave &w, const Operand &o);
uint64_t scalar_wide(const Wave &w, const Operand &o);
void set_scalar_word(Wave &w, const Operand &o, uint32_t x);
void set_scalar_wide(Wave &w, const Operand &o, uint64_t x);

inline float as_float(uint32_t x) {
  float f;
  memcpy(&f, &x, 4);
  return f;
}
inline uint32_t as_word(float f) {
  uint32_t x;
  memcpy(&x, &f, 4);
  return x;
}
inline double as_double(uint64_t x) {
  double d;
  memcpy(&d, &x, 8);
  return d;
}
inline uint64_t as_wide(double d) {
  uint64_t x;
  memcpy(&x, &d, 8);
  return x;
}

} // namespace amdgpu
} // namespace tessera

#endif // TESSERA_TESTS_AMDGPU_WAVE_H_
