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
#include <math.h>

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

float element(const Wave &w, const uint32_t *row, int lane, int i, int type) {
  if (type == kF32) return as_float(row[i * w.lanes + lane]);
  const uint32_t word = row[i / 2 * w.lanes + lane];
  const uint16_t half = static_cast<uint16_t>(i & 1 ? word >> 16 : word);
  if (type == kBf16) {
    const bool gone = w.flushes_halves && (half & 0x7f80) == 0;
    return as_float(static_cast<uint32_t>(gone ? half & 0x8000 : half) << 16);
  }
  return float_of_half(w.flushes_halves && (half & 0x7c00) == 0 ? half & 0x8000 : half);
}

void multiply(Product &p, int side, int depth) {
  for (int k = 0; k < depth; ++k)
    for (int r = 0; r < side; ++r) {
      const float x = p.a[k][r];
      for (int c = 0; c < side; ++c) p.d[r][c] += x * p.b[k][c];
    }
}

// Where element e of lane l of an accumulator belongs.
int result_row(const Wave &w, int side, int l, int e) {
  if (w.family == Family::kGfx11) return 2 * e + l / 16;
  if (w.family == Family::kGfx12) return 8 * (l / 16) + e;
  return side == 16 ? 4 * (l / 16) + e : 8 * (e / 4) + 4 * (l / 32) + e % 4;
}

bool load_operands(Wave &w, const Inst &i, int side, int depth, Product &p) {
  const int type = i.param & 3;
  const uint32_t *a = w.row(i.op[1].reg), *b = w.row(i.op[2].reg);
  const int elements = w.family == Family::kGfx11 ? depth : depth * side / w.lanes;
  for (int l = 0; l < w.lanes; ++l)
    for (int n = 0; n < elements; ++n) {
      const int g = l / side;
      int k = g * elements + n;
      if (w.family == Family::kGfx11) k = n;
      if (w.family == Family::kGfx12) k = 8 * (n / 4) + 4 * g + n % 4;
      const float x = element(w, a, l, n, type), y = element(w, b, l, n, type);
      if (w.family == Family::kGfx11 && g == 1 &&
          (as_word(p.a[k][l % side]) != as_word(x) || as_word(p.b[k][l % side]) != as_word(y))) {
        w.fail("gets operands that differ between the halves of the wave");
        return false;
      }
      p.a[k][l % side] = x;
      p.b[k][l % side] = y;
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
  if (!load_operands(w, i, side, depth, p)) return;
  for (int e = 0; e < elements; ++e)
    for (int l = 0; l < w.lanes; ++l)
      p.d[result_row(w, side, l, e)][l % side] =
          c.kind == Kind::kConstant ? as_float(c.word) : as_float(w.row(c.reg + e)[l]);
  multiply(p, side, depth);
  for (int e = 0; e < elements; ++e) {
    uint32_t *row = w.row(i.op[0].reg + e);
    for (int l = 0; l < w.lanes; ++l) row[l] = as_word(p.d[result_row(w, side, l, e)][l % side]);
  }
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
