// SPDX-License-Identifier: Apache-2.0
//
// MFMA and WMMA. A lane's registers are put where AMD's matrix instruction calculator says they
// belong, products are summed in float32 (one rounding per step; the hardware's order is not
// documented), and results go back the same way. All lanes must be on.
//
//   MFMA n x n, depth d    lane l = n g + r holds A(r, k) and B(k, r) for its d n / 64 consecutive
//   k from
//                          that many times g on, and element e of D(8 (e / 4) + 4 g + e % 4, r);
//                          with n 16: D(4 g + e, r)
//   WMMA gfx11             lanes r and r + 16 both hold A(r, k), B(k, r) as element k; element e of
//   lane
//                          16 g + r is D(2 e + g, r)
//   WMMA gfx12             element i of lane 16 g + r is A(r, k), B(k, r) for k = 8 (i / 4) + 4 g +
//   i % 4;
//                          element e is D(8 g + e, r)
#include <algorithm>

#include "half.h"
#include "wave.h"

namespace tessera {
namespace amdgpu {

namespace {

// What param says: the elements, the side n and the depth of an instruction.
enum : int32_t { kF16 = 0, kBf16 = 1, kF32 = 2, kSide32 = 4, kDepthShift = 8 };

struct Product {
  float a[32][32]; // [k][row]
  float b[32][32]; // [k][column]
  float d[32][32]; // [row][column]
};

// Element n of all lanes as float32.
template <int lanes>
void convert(const Wave &w, const uint32_t *registers, int n, int type, float *to) {
  if (type == kF32) {
    memcpy(to, registers + n * lanes, sizeof *to * lanes);
    return;
  }
  const uint32_t *row = registers + n / 2 * lanes;
  const int shift = n & 1 ? 16 : 0;
  uint16_t halves[lanes];
  for (int l = 0; l < lanes; ++l) halves[l] = static_cast<uint16_t>(row[l] >> shift);
  if (w.flushes_halves) {
    const uint16_t exponent = type == kBf16 ? 0x7f80 : 0x7c00;
    for (uint16_t &h : halves) h = (h & exponent) == 0 ? h & 0x8000 : h;
  }
  if (type == kF16)
    floats_of_halves<lanes>(halves, to);
  else
    for (int l = 0; l < lanes; ++l) to[l] = as_float(static_cast<uint32_t>(halves[l]) << 16);
}

template <int side>
void multiply(Product &p, int depth) {
  for (int r = 0; r < side; ++r) {
    float sum[side];
    memcpy(sum, p.d[r], sizeof sum);
    for (int k = 0; k < depth; ++k) {
      const float x = p.a[k][r];
      for (int c = 0; c < side; ++c) sum[c] += x * p.b[k][c];
    }
    memcpy(p.d[r], sum, sizeof sum);
  }
}

// Row of D that element e of the lanes side * g, side * g + 1, ... is in; they are its columns.
int result_row(const Wave &w, int side, int g, int e) {
  if (w.family == Family::kGfx11) return 2 * e + g;
  if (w.family == Family::kGfx12) return 8 * g + e;
  return side == 16 ? 4 * g + e : 8 * (e / 4) + 4 * g + e % 4;
}

// k of element n of these lanes, of `elements` that an operand has.
int depth_of(const Wave &w, int g, int n, int elements) {
  if (w.family == Family::kGfx11) return n;
  return w.family == Family::kGfx12 ? 8 * (n / 4) + 4 * g + n % 4 : g * elements + n;
}

bool load_operand(Wave &w, const Inst &i, int source, int side, int depth, float (*to)[32]) {
  const bool doubled = w.family == Family::kGfx11;
  const int elements = doubled ? depth : depth * side / w.lanes;
  const size_t bytes = sizeof(float) * static_cast<size_t>(side);
  float lanes[64];
  for (int n = 0; n < elements; ++n) {
    (w.lanes == 64 ? convert<64> : convert<32>)(w, w.row(i.op[source].reg), n, i.param & 3, lanes);
    if (doubled && memcmp(lanes, lanes + side, bytes) != 0) {
      w.fail("gets operands that differ between the halves of the wave");
      return false;
    }
    for (int g = 0; g < (doubled ? 1 : w.lanes / side); ++g)
      memcpy(to[depth_of(w, g, n, elements)], lanes + g * side, bytes);
  }
  return true;
}

void run(Wave &w, const Inst &i) {
  const int side = i.param & kSide32 ? 32 : 16, depth = i.param >> kDepthShift;
  const int elements = side * side / w.lanes;
  const Operand &c = i.op[3];
  const int words =
      (w.family == Family::kGfx11 ? depth : depth * side / w.lanes) / ((i.param & 3) == kF32 ? 1 : 2);
  if (w.exec() != w.all()) return w.fail("runs with lanes switched off");
  if (i.op[0].kind != Kind::kVector || i.op[1].kind != Kind::kVector || i.op[2].kind != Kind::kVector ||
      i.op[0].count != elements || i.op[1].count != words || i.op[2].count != words ||
      (c.kind == Kind::kVector && c.count != elements) ||
      (c.kind != Kind::kVector && c.kind != Kind::kConstant))
    return w.fail("has operands that are not modelled");
  Product p;
  if (!load_operand(w, i, 1, side, depth, p.a) || !load_operand(w, i, 2, side, depth, p.b)) return;
  const size_t bytes = sizeof(float) * static_cast<size_t>(side);
  for (int e = 0; e < elements; ++e)
    for (int g = 0; g < w.lanes / side; ++g) {
      float *row = p.d[result_row(w, side, g, e)];
      if (c.kind == Kind::kVector)
        memcpy(row, w.row(c.reg + e) + g * side, bytes);
      else
        std::fill(row, row + side, as_float(c.word));
    }
  if (side == 16)
    multiply<16>(p, depth);
  else
    multiply<32>(p, depth);
  for (int e = 0; e < elements; ++e)
    for (int g = 0; g < w.lanes / side; ++g)
      memcpy(w.row(i.op[0].reg + e) + g * side, p.d[result_row(w, side, g, e)], bytes);
  ++w.matrix;
}

} // namespace

void add_matrix(Table &t) {
  const struct {
    const char *name;
    int32_t type, side, depth;
  } forms[] = {{"v_mfma_f32_16x16x16f16", kF16, 0, 16},
               {"v_mfma_f32_16x16x16_f16", kF16, 0, 16},
               {"v_mfma_f32_16x16x16bf16_1k", kBf16, 0, 16},
               {"v_mfma_f32_16x16x16_bf16", kBf16, 0, 16},
               {"v_mfma_f32_32x32x8f16", kF16, kSide32, 8},
               {"v_mfma_f32_32x32x8_f16", kF16, kSide32, 8},
               {"v_mfma_f32_32x32x8bf16_1k", kBf16, kSide32, 8},
               {"v_mfma_f32_32x32x8_bf16", kBf16, kSide32, 8},
               {"v_mfma_f32_16x16x4f32", kF32, 0, 4},
               {"v_mfma_f32_16x16x4_f32", kF32, 0, 4},
               {"v_mfma_f32_32x32x2f32", kF32, kSide32, 2},
               {"v_mfma_f32_32x32x2_f32", kF32, kSide32, 2},
               {"v_wmma_f32_16x16x16_f16", kF16, 0, 16},
               {"v_wmma_f32_16x16x16_bf16", kBf16, 0, 16}};
  for (const auto &f : forms) t[f.name] = {run, 0, f.type | f.side | f.depth << kDepthShift};
}

} // namespace amdgpu
} // namespace tessera
