// SPDX-License-Identifier: Apache-2.0
//
// From LLVM's text of an instruction to an Inst. Anything in the text that is not understood, or
// that the handler of its name does not carry out, makes it an instruction that stops the wave.
#include <stdlib.h>

#include <algorithm>

#include "disassemble.h"
#include "half.h"
#include "wave.h"

namespace tessera {
namespace amdgpu {

namespace {

void not_modelled(Wave &w, const Inst &) { w.fail("is not modelled"); }

struct Named {
  const char *name;
  uint16_t reg, count;
};
constexpr Named kNamed[] = {{"vcc", kVcc, 2},   {"vcc_lo", kVcc, 1},   {"vcc_hi", kVcc + 1, 1},
                            {"exec", kExec, 2}, {"exec_lo", kExec, 1}, {"exec_hi", kExec + 1, 1},
                            {"m0", kM0, 1},     {"null", kNull, 1}};

// "12" or "[2:5]" after the letters of a register file.
bool read_range(const char *text, int first, int last, Operand *o) {
  char *end;
  long low, high;
  if (*text == '[') {
    low = strtol(text + 1, &end, 10);
    high = low;
    if (*end == ':') high = strtol(end + 1, &end, 10);
    if (*end != ']' || end[1] != 0) return false;
  } else {
    low = high = strtol(text, &end, 10);
    if (*end != 0 || end == text) return false;
  }
  if (low < 0 || high < low || first + high > last) return false;
  o->reg = static_cast<uint16_t>(first + low);
  o->count = static_cast<uint16_t>(high - low + 1);
  return true;
}

bool read_register(const std::string &text, Operand *o) {
  for (const Named &n : kNamed)
    if (text == n.name) {
      o->kind = Kind::kScalar;
      o->reg = n.reg;
      o->count = n.count;
      return true;
    }
  const char *t = text.c_str();
  const bool digit = t[0] && (t[1] == '[' || (t[1] >= '0' && t[1] <= '9'));
  if (digit && (t[0] == 'v' || t[0] == 'a')) {
    o->kind = Kind::kVector;
    const int first = t[0] == 'a' ? kAccumulators : 0;
    return read_range(t + 1, first, first + 255, o);
  }
  o->kind = Kind::kScalar;
  if (digit && t[0] == 's') return read_range(t + 1, 0, 105, o);
  return text.compare(0, 4, "ttmp") == 0 && read_range(t + 4, kTtmp, kTtmp + 15, o);
}

bool read_constant(const std::string &text, Operand *o) {
  char *end;
  o->kind = Kind::kConstant;
  if (text.find('.') != std::string::npos) { // an inline constant
    const double x = strtod(text.c_str(), &end);
    // 1 / (2 pi) is printed rounded.
    const bool turn = text.compare(0, 6, "0.1591") == 0;
    o->word = turn ? 0x3e22f983u : as_word(static_cast<float>(x));
    o->wide = turn ? 0x3fc45f306dc9c882u : as_wide(x);
    o->half = turn ? 0x3118 : half_of(static_cast<float>(x));
    return *end == 0;
  }
  o->literal = text.compare(0, 2, "0x") == 0;
  const long long x = strtoll(text.c_str(), &end, 0);
  o->word = static_cast<uint32_t>(x);
  o->wide = static_cast<uint64_t>(x);
  o->half = static_cast<uint16_t>(x);
  return *end == 0 && end != text.c_str();
}

bool read_operand(std::string text, Operand *o) {
  if (text == "off") {
    o->kind = Kind::kOff;
    return true;
  }
  auto inside = [&text](const char *open, char close) {
    const size_t n = strlen(open);
    if (text.compare(0, n, open) != 0 || text.size() < n + 1 || text.back() != close) return false;
    text = text.substr(n, text.size() - n - 1);
    return true;
  };
  if (text.size() > 1 && text[0] == '-' && !(text[1] >= '0' && text[1] <= '9')) {
    o->negate = true;
    text = text.substr(1);
  } else if (inside("neg(", ')')) {
    o->negate = true;
  }
  if (inside("|", '|')) o->absolute = true;
  if (inside("sext(", ')')) o->sign_extend = true;
  return read_register(text, o) || read_constant(text, o);
}

// "[0,1,1]" as bits.
bool read_bits(const std::string &text, uint8_t *bits) {
  *bits = 0;
  int n = 0;
  for (const char c : text) {
    if (c == '1') *bits = static_cast<uint8_t>(*bits | 1u << n);
    if (c == '0' || c == '1') ++n;
  }
  return n > 0 && n <= 4;
}

bool read_part(const std::string &text, Part *part) {
  static const char *const names[] = {"DWORD", "BYTE_0", "BYTE_1", "BYTE_2", "BYTE_3", "WORD_0", "WORD_1"};
  for (int i = 0; i < 7; ++i)
    if (text == names[i]) {
      *part = static_cast<Part>(i);
      return true;
    }
  return false;
}

bool read_sdwa(const std::string &key, const std::string &value, Inst *inst) {
  inst->modifiers |= kModSdwa;
  if (key == "dst_sel") return read_part(value, &inst->to);
  if (key == "src0_sel") return read_part(value, &inst->op[1].part);
  if (key == "src1_sel") return read_part(value, &inst->op[2].part);
  if (key != "dst_unused" || value == "UNUSED_SEXT") return false;
  inst->keeps = value == "UNUSED_PRESERVE";
  return true;
}

bool read_dpp(const std::string &key, const std::string &value, Inst *inst) {
  static const struct {
    const char *key;
    Lanes lanes;
  } kinds[] = {{"row_shl", Lanes::kShiftLeft},
               {"row_shr", Lanes::kShiftRight},
               {"row_ror", Lanes::kRotate},
               {"row_mirror", Lanes::kMirror},
               {"row_half_mirror", Lanes::kHalfMirror},
               {"row_share", Lanes::kShare},
               {"row_newbcast", Lanes::kShare},
               {"row_xmask", Lanes::kXor}};
  inst->modifiers |= kModDpp;
  if (key == "row_mask" || key == "bank_mask") return value == "0xf";
  if (key == "bound_ctrl") {
    inst->bound_zero = true;
    return true;
  }
  if (key == "quad_perm") {
    inst->lanes = Lanes::kQuad;
    int n = 0;
    for (const char c : value)
      if (c >= '0' && c <= '3')
        inst->lanes_arg = static_cast<uint16_t>(inst->lanes_arg | (c - '0') << 2 * n++);
    return n == 4;
  }
  if (key == "row_bcast") {
    inst->lanes = value == "15" ? Lanes::kBroadcast15 : Lanes::kBroadcast31;
    return value == "15" || value == "31";
  }
  for (const auto &k : kinds)
    if (key == k.key) {
      inst->lanes = k.lanes;
      inst->lanes_arg = static_cast<uint16_t>(strtol(value.c_str(), nullptr, 0));
      return true;
    }
  return false;
}

bool read_modifier(const std::string &text, Inst *inst) {
  const size_t colon = text.find(':');
  const std::string key = text.substr(0, colon),
                    value = colon == std::string::npos ? "" : text.substr(colon + 1);
  if (key == "offset" || key == "offset0" || key == "offset1") {
    char *end;
    inst->modifiers |= kModOffset;
    (key == "offset1" ? inst->offset1 : inst->offset) = static_cast<int32_t>(strtol(value.c_str(), &end, 0));
    return *end == 0;
  }
  for (const char *word : {"glc", "sc0", "slc", "dlc", "sc1", "nt", "scope", "th"})
    if (key == word) {
      inst->modifiers |= kModCache;
      if (key == "glc" || key == "sc0" || value.find("ATOMIC_RETURN") != std::string::npos)
        inst->modifiers |= kModReturn;
      return true;
    }
  if (key == "clamp") {
    inst->modifiers |= kModClamp;
    return true;
  }
  struct {
    const char *key;
    uint8_t *bits;
  } const selects[] = {{"op_sel", &inst->select},
                       {"op_sel_hi", &inst->select_high},
                       {"neg_lo", &inst->negate_low},
                       {"neg_hi", &inst->negate_high}};
  for (const auto &s : selects)
    if (key == s.key) {
      inst->modifiers |= kModSelect;
      if (s.bits == &inst->select_high) inst->has_select_high = true;
      return read_bits(value, s.bits);
    }
  return read_sdwa(key, value, inst) || read_dpp(key, value, inst);
}

// What follows the name: operands between commas, modifiers between blanks after the last of them.
bool read_rest(const std::string &text, Inst *inst) {
  int depth = 0;
  std::string word;
  bool operand = true; // the word is one
  for (size_t at = 0; at <= text.size(); ++at) {
    const char c = at < text.size() ? text[at] : ' ';
    if (c == '[' || c == '(') ++depth;
    if (c == ']' || c == ')') --depth;
    if (depth > 0 || (c != ',' && c != ' ')) {
      word += c;
      continue;
    }
    if (!word.empty()) {
      if (!operand) {
        if (!read_modifier(word, inst)) return false;
      } else if (inst->operands == 6 || !read_operand(word, &inst->op[inst->operands++])) {
        return false;
      }
      word.clear();
      operand = false;
    }
    if (c == ',') operand = true;
  }
  for (int i = 0; i < inst->operands; ++i)
    if (inst->op[i].negate || inst->op[i].absolute) inst->modifiers |= kModSigns;
  return true;
}

bool ends_with(const std::string &text, const char *end) {
  const size_t n = strlen(end);
  return text.size() > n && text.compare(text.size() - n, n, end) == 0;
}

// The name without what says how it is encoded.
std::string plain_name(std::string name) {
  for (bool again = true; again;) {
    again = false;
    for (const char *end : {"_e32", "_e64", "_sdwa", "_dpp"})
      if (ends_with(name, end)) {
        name.resize(name.size() - strlen(end));
        again = true;
      }
  }
  return name;
}

// Counter values of s_waitcnt and its kin; 255 does not wait.
void read_waits(const std::string &name, const std::string &rest, Family family, Inst *inst) {
  std::fill(std::begin(inst->max_wait), std::end(inst->max_wait), uint8_t{255});
  auto field = [&](const char *key, Counter counter) {
    const size_t at = rest.find(key);
    if (at != std::string::npos)
      inst->max_wait[counter] = static_cast<uint8_t>(strtol(rest.c_str() + at + strlen(key), nullptr, 0));
  };
  if (name == "s_waitcnt") {
    field("vmcnt(", kLoads);
    field("lgkmcnt(", kLocal);
    return;
  }
  const size_t comma = rest.find(", ");
  const long value = strtol(rest.c_str() + (comma == std::string::npos ? 0 : comma + 2), nullptr, 0);
  const uint8_t low = static_cast<uint8_t>(value & 63), high = static_cast<uint8_t>(value >> 8 & 63);
  if (name == "s_waitcnt_vscnt" || name == "s_wait_storecnt") inst->max_wait[kStores] = low;
  if (name == "s_waitcnt_vmcnt" || name == "s_wait_loadcnt") inst->max_wait[kLoads] = low;
  if (name == "s_waitcnt_lgkmcnt" || name == "s_wait_dscnt") inst->max_wait[kLocal] = low;
  if (name == "s_wait_kmcnt") inst->max_wait[kScalarLoads] = low;
  if (name == "s_wait_loadcnt_dscnt") inst->max_wait[kLoads] = high, inst->max_wait[kLocal] = low;
  if (name == "s_wait_storecnt_dscnt") inst->max_wait[kStores] = high, inst->max_wait[kLocal] = low;
  (void)family;
}

bool decode_one(const std::string &text, Family family, Inst *inst) {
  const size_t blank = text.find(' ');
  const std::string name = plain_name(text.substr(0, blank));
  const std::string rest = blank == std::string::npos ? "" : text.substr(blank + 1);
  const auto row = table().find(name);
  if (row == table().end()) return false;
  inst->param = row->second.param;
  if (row->second.free_text) {
    if (name.compare(0, 6, "s_wait") == 0) read_waits(name, rest, family, inst);
    // The one message that concerns nobody but the hardware.
    if (name == "s_sendmsg" && rest != "sendmsg(MSG_DEALLOC_VGPRS)") return false;
  } else {
    if (!read_rest(rest, inst)) return false;
    uint32_t modifiers = inst->modifiers;
    if (!(row->second.modifiers & kModReturn)) modifiers &= ~kModReturn;
    if (modifiers & ~row->second.modifiers) return false;
    // op_sel of the result.
    if (inst->select >> (inst->operands > 0 ? inst->operands - 1 : 0)) return false;
    if (row->second.modifiers & kModLoad) inst->first_checked = 1;
  }
  inst->run = row->second.run;
  return true;
}

bool reads(const Inst &inst, const Operand &written) {
  for (int i = 1; i < inst.operands; ++i)
    if (inst.op[i].kind == written.kind && inst.op[i].reg == written.reg) return true;
  return inst.op[0].kind == written.kind && inst.op[0].reg == written.reg;
}

void decode_line(const std::string &text, Family family, Program *program, Inst *inst) {
  const size_t both = text.find(" :: ");
  inst->text = text;
  if (both == std::string::npos) {
    if (!decode_one(text, family, inst)) inst->run = not_modelled;
    return;
  }
  std::unique_ptr<Inst> second(new Inst);
  // v_dual_x is v_x, twice in one instruction; all sources are read before anything is written.
  auto single = [](std::string half) {
    return half.compare(0, 7, "v_dual_") == 0 ? "v_" + half.substr(7) : half;
  };
  if (!decode_one(single(text.substr(0, both)), family, inst) ||
      !decode_one(single(text.substr(both + 4)), family, second.get())) {
    inst->run = not_modelled;
    return;
  }
  const bool second_reads = reads(*second, inst->op[0]), first_reads = reads(*inst, second->op[0]);
  inst->pair_order = !second_reads ? 0 : !first_reads ? 1 : 2;
  inst->pair = second.get();
  program->pairs.push_back(std::move(second));
}

} // namespace

const Table &table() {
  static const Table rows = [] {
    Table t;
    add_scalar(t);
    add_vector(t);
    add_vector_wide(t);
    add_compare(t);
    add_lanes(t);
    add_global(t);
    add_lds(t);
    add_matrix(t);
    add_control(t);
    return t;
  }();
  return rows;
}

void decode(const std::vector<Line> &lines, Family family, Program *program) {
  std::unordered_map<uint32_t, uint32_t> index;
  for (const Line &line : lines) {
    index[line.address] = static_cast<uint32_t>(program->code.size());
    program->code.emplace_back();
    Inst &inst = program->code.back();
    inst.address = line.address;
    inst.next = static_cast<uint32_t>(program->code.size());
    const size_t begin = line.text.find_first_not_of(" \t");
    decode_line(begin == std::string::npos ? "" : line.text.substr(begin), family, program, &inst);
  }
  // Running off the end comes here.
  program->code.emplace_back();
  program->code.back().text = "(end of the kernel's code)";
  program->code.back().address = lines.empty() ? 0 : lines.back().address + lines.back().bytes;
  program->code.back().run = not_modelled;
  for (Inst &inst : program->code) {
    if (inst.text.compare(0, 8, "s_branch") != 0 && inst.text.compare(0, 9, "s_cbranch") != 0) continue;
    const int32_t words = static_cast<int16_t>(inst.op[0].word);
    const auto target = index.find(inst.address + 4 + static_cast<uint32_t>(words * 4));
    if (target == index.end())
      inst.run = not_modelled;
    else
      inst.target = static_cast<int32_t>(target->second);
  }
}

} // namespace amdgpu
} // namespace tessera
