// SPDX-License-Identifier: Apache-2.0
//
// Outputs with lanes along the head dimension, per Highway target: O += P V on rows of O where the
// caller has them. An element of P^T is broadcast, rows of V are loaded as vectors: whole lines, so
// that V needs no copy whatever the distance of its rows, and O is neither cleared nor turned.
// Every element is the same sum, in the same order, as output_block of tile-inl.h computes.
#include <stddef.h>
#include <stdint.h>

#include "row_policy-inl.h"
#include "tile-inl.h"

#if defined(TESSERA_CPU_OUTPUT_ROWS_INL_H_) == defined(HWY_TARGET_TOGGLE)
  #ifdef TESSERA_CPU_OUTPUT_ROWS_INL_H_
    #undef TESSERA_CPU_OUTPUT_ROWS_INL_H_
  #else
    #define TESSERA_CPU_OUTPUT_ROWS_INL_H_
  #endif

HWY_BEFORE_NAMESPACE();
namespace tessera {
namespace HWY_NAMESPACE {

  // Rows of a register block: they divide a vector of rows, so that one zone holds for all of them.
  // 8 x 3 of 32 registers, 4 x 3 of 16. 0: this form was not measured there, and is not used.
  #if HWY_TARGET == HWY_AVX3 || HWY_TARGET == HWY_AVX3_DL
constexpr size_t kOutputRows = 8;
constexpr bool kOutputRowsApart = true;  // also where rows of V share sets of L1 and come from L2
  #elif HWY_TARGET == HWY_AVX2
constexpr size_t kOutputRows = 4;
constexpr bool kOutputRowsApart = false;  // a product has twice the loads of V there
  #else
constexpr size_t kOutputRows = 0;
constexpr bool kOutputRowsApart = false;
  #endif

// Where rows of a register block end up, and what they are multiplied by.
struct OutputRows {
  float *o[8];
  const float *alpha;   // [row] of what O holds already; NULL: nothing
  const float *factor;  // [row] of the result, or NULL: more keys follow
  const bool *empty;    // [row] with factor: the result is 0, whatever V holds
};

// Dims [x, x + NV vectors) of MR rows, over n keys. p: column of the first of the rows in P^T.
template <int NV, int MR>
static HWY_NOINLINE void output_rows_block(const float *HWY_RESTRICT v, int64_t ld, size_t n,
                                           const float *HWY_RESTRICT p, size_t width, size_t x,
                                           const OutputRows &rows) {
  const DF d;
  const size_t lanes = hn::Lanes(d);
  #define TSRI_DECLARE(i) VF a##i##0 = hn::Zero(d), a##i##1 = a##i##0, a##i##2 = a##i##0;
  TSRI_EACH_ROW(TSRI_DECLARE)
  #undef TSRI_DECLARE
  v += x;
  TSRI_UNROLL
  for (size_t j = 0; j < n; ++j, v += ld, p += width) {
    const VF b0 = hn::LoadU(d, v);
    const VF b1 = NV > 1 ? hn::LoadU(d, v + lanes) : b0;
    const VF b2 = NV > 2 ? hn::LoadU(d, v + 2 * lanes) : b0;
  #define TSRI_STEP(i)                                            \
    if constexpr (i < MR) {                                       \
      const VF c = hn::Set(d, p[i]);                              \
      a##i##0 = hn::MulAdd(c, b0, a##i##0);                       \
      if constexpr (NV > 1) a##i##1 = hn::MulAdd(c, b1, a##i##1); \
      if constexpr (NV > 2) a##i##2 = hn::MulAdd(c, b2, a##i##2); \
    }
    TSRI_EACH_ROW(TSRI_STEP)
  #undef TSRI_STEP
  }
  const auto join = [&](size_t i, size_t at, VF sum) HWY_ATTR {
    float *o = rows.o[i] + x + at;
    if (rows.alpha) sum = Recurrence::new_sum(hn::LoadU(d, o), hn::Set(d, rows.alpha[i]), sum);
    if (rows.factor)
      // Adding +0 turns -0 into +0: masked keys may have added zeros or not.
      sum = rows.empty[i] ? hn::Zero(d)
                          : hn::Add(hn::Mul(sum, hn::Set(d, rows.factor[i])), hn::Zero(d));
    hn::StoreU(sum, d, o);
  };
  #define TSRI_FINISH(i)                                 \
    if constexpr (i < MR) {                              \
      join(i, 0, a##i##0);                               \
      if constexpr (NV > 1) join(i, lanes, a##i##1);     \
      if constexpr (NV > 2) join(i, 2 * lanes, a##i##2); \
    }
  TSRI_EACH_ROW(TSRI_FINISH)
  #undef TSRI_FINISH
}

// NOLINTNEXTLINE(google-readability-namespace-comments)
}  // namespace HWY_NAMESPACE
}  // namespace tessera
HWY_AFTER_NAMESPACE();

#endif  // TESSERA_CPU_OUTPUT_ROWS_INL_H_
