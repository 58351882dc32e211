// SPDX-License-Identifier: Apache-2.0
//
// Softmax of the AMX kernels, per Highway target; AVX-512 only: scores S^T of 32 rows to P^T in
// words of two keys, while the tile unit works for other blocks.
//
// 2^x = 2^n 2^f with n = floor(x): vreduceps gives f, vscalefps applies n without being told, and
// both take -inf to exactly 0, so nothing is compared or selected. 2^f by polynomials on [0, 1) with
// constant term 1: degree 6 (relative error 2e-9 before rounding) or, where P is only made bfloat16 and no
// LSE is made of its sum, degree 3 (8.6e-5; what bfloat16 drops is 4e-3). Instructions are what this softmax
// waits for, those of port 5 first: the tile unit sits behind it.
//
// Without LSE P is rounded to bfloat16 for nothing: half a unit of it, 2^-8 for what lies in [1, 2), is in the
// constant term, and the lower half of the word is left behind. l is the sum of the rounded P, so that a row
// of one key is exact; one dot product of words adds two keys.
#include "amx_pack-inl.h"
#include "row_policy-inl.h"

#if defined(TESSERA_CPU_AMX_SOFTMAX_INL_H_) == defined(HWY_TARGET_TOGGLE)
  #ifdef TESSERA_CPU_AMX_SOFTMAX_INL_H_
    #undef TESSERA_CPU_AMX_SOFTMAX_INL_H_
  #else
    #define TESSERA_CPU_AMX_SOFTMAX_INL_H_
  #endif

HWY_BEFORE_NAMESPACE();
namespace tessera {
namespace HWY_NAMESPACE {

  #if TSRI_AMX_TARGET
constexpr size_t kPairRows = 2 * kTileSide;  // rows of a block

// 2^x for x <= 127; exactly 0 at -inf, exactly 1 at 0, NaN at NaN. Degree 3 adds half a unit of bfloat16.
template <int kDegree>
HWY_INLINE VF exp2_floor(VF x) {
  const DF d;
  const VF f{_mm512_reduce_ps(x.raw, _MM_FROUND_TO_NEG_INF | _MM_FROUND_NO_EXC)};
  VF p, one = hn::Set(d, 1.0f);
  if constexpr (kDegree == 3) {
    one = hn::Set(d, 1.00390625f);
    p = hn::Set(d, 7.7067174e-02f);
    p = hn::MulAdd(p, f, hn::Set(d, 2.2764485e-01f));
    p = hn::MulAdd(p, f, hn::Set(d, 6.951168e-01f));
  } else {
    p = hn::Set(d, 2.161291486e-04f);
    p = hn::MulAdd(p, f, hn::Set(d, 1.246784697e-03f));
    p = hn::MulAdd(p, f, hn::Set(d, 9.675451554e-03f));
    p = hn::MulAdd(p, f, hn::Set(d, 5.548528209e-02f));
    p = hn::MulAdd(p, f, hn::Set(d, 2.402293086e-01f));
    p = hn::MulAdd(p, f, hn::Set(d, 6.931470633e-01f));
  }
  p = hn::MulAdd(p, f, one);
  return VF{_mm512_scalef_ps(p.raw, x.raw)};
}

// Probabilities whose sum becomes an LSE. ref: Recurrence::reference(m).
struct ExactProb {
  static constexpr bool kCut = false;
  static HWY_INLINE VF of(VF unit, VF s, VF ref) {
    return exp2_floor<6>(hn::Mul(hn::Sub(s, ref), unit));
  }
};

// Probabilities without LSE. ref: Recurrence::ready_reference(unit, m), so unit is at most 1.
struct ReadyProb {
  static constexpr bool kCut = true;  // the upper half is P in bfloat16
  static HWY_INLINE VF of(VF unit, VF s, VF ref) {
    return exp2_floor<3>(hn::MulSub(s, unit, ref));
  }
};

// Words (a[i], b[i]) in bfloat16, a in the lower half, of the upper halves of a and b.
HWY_INLINE Words upper_halves(Words a, Words b) {
  return _mm512_mask_blend_epi16(0xaaaaaaaau, _mm512_srli_epi32(a, 16), b);
}

// The same, halves rounded away from zero. A NaN may lose itself here: it is in the row's sum.
HWY_INLINE void store_pair(VF a, VF b, float *p) {
  const __m512i half = _mm512_set1_epi32(0x8000);
  _mm512_store_si512(p, upper_halves(_mm512_add_epi32(_mm512_castps_si512(a.raw), half),
                                     _mm512_add_epi32(_mm512_castps_si512(b.raw), half)));
}

// sum + the two bfloat16 of each word.
HWY_INLINE VF add_halves(VF sum, Words pair) {
    #if defined(TESSERA_EMULATE_AMX)
  const VF low{_mm512_castsi512_ps(_mm512_slli_epi32(pair, 16))};
  const VF high{_mm512_castsi512_ps(_mm512_and_si512(pair, _mm512_set1_epi32(-65536)))};
  return hn::Add(hn::Add(sum, low), high);
    #else
  const Words ones = _mm512_set1_epi32(0x3f803f80);
  __asm__("vdpbf16ps %2, %1, %0" : "+v"(sum.raw) : "v"(pair), "v"(ones));
  return sum;
    #endif
}

// Words from p on up to those of the last tile.
HWY_INLINE void clear_pairs(const float *base, size_t n, float *p) {
  const size_t words = (n + kTileDepth - 1) / kTileDepth * kTileSide * kPairRows;
  const size_t done = static_cast<size_t>(p - base);
  if (done < words) memset(p, 0, (words - done) * sizeof(float));
}

// P^T as float32 to words of two keys.
static HWY_NOINLINE HWY_MAYBE_UNUSED void pair_tile(const float *s, size_t n, float *words) {
  const DF d;
  float *p = words;
  for (size_t j = 0; j < n; j += 2, s += 2 * kPairRows, p += kPairRows)
    for (size_t x = 0; x < kPairRows; x += kTileSide) {
      const VF a = hn::Load(d, s + x);
      store_pair(a, j + 1 < n ? hn::Load(d, s + x + kPairRows) : hn::Zero(d), p + x);
    }
  clear_pairs(words, n, p);
}

// One step of 32 rows: P^T from S^T, and its sums, before rounding or, if P is ready to be cut, after.
template <class Prob>
class PairSoftmax {
 public:
  PairSoftmax(const float *s, float *p, VF unit, VF ref0, VF ref1)
      : s_(s), p_(p), unit_(unit), ref0_(ref0), ref1_(ref1) {}

  // The next two keys.
  HWY_INLINE void turn() {
    const DF d;
    const VF a0 = Prob::of(unit_, hn::Load(d, s_), ref0_);
    const VF a1 = Prob::of(unit_, hn::Load(d, s_ + kTileSide), ref1_);
    const VF b0 = Prob::of(unit_, hn::Load(d, s_ + kPairRows), ref0_);
    const VF b1 = Prob::of(unit_, hn::Load(d, s_ + kPairRows + kTileSide), ref1_);
    fold(a0, b0, p_, sum0_);
    fold(a1, b1, p_ + kTileSide, sum1_);
    s_ += 2 * kPairRows, p_ += kPairRows;
  }

  // The last key of an odd number.
  HWY_INLINE void last() {
    const DF d;
    const VF a0 = Prob::of(unit_, hn::Load(d, s_), ref0_);
    const VF a1 = Prob::of(unit_, hn::Load(d, s_ + kTileSide), ref1_);
    fold(a0, hn::Zero(d), p_, sum0_);
    fold(a1, hn::Zero(d), p_ + kTileSide, sum1_);
    p_ += kPairRows;
  }

  float *end() const { return p_; }
  VF sum0() const { return sum0_; }
  VF sum1() const { return sum1_; }

 private:
  static HWY_INLINE void fold(VF a, VF b, float *p, VF &sum) {
    if constexpr (Prob::kCut) {
      const Words pair = upper_halves(_mm512_castps_si512(a.raw), _mm512_castps_si512(b.raw));
      _mm512_store_si512(p, pair);
      sum = add_halves(sum, pair);
    } else {
      sum = hn::Add(hn::Add(sum, a), b);
      store_pair(a, b, p);
    }
  }

  const float *s_;
  float *p_;
  VF unit_, ref0_, ref1_;
  VF sum0_ = hn::Zero(DF()), sum1_ = hn::Zero(DF());
};

// n keys, with the steps of `work` between them, kTurns turns after each: a fixed number costs no
// mispredicted branch. Keys up to a whole tile get 0.
template <class Prob, int kTurns, class Work>
static HWY_NOINLINE void softmax_beside(const float *s, float *p, size_t n, VF unit, VF ref0, VF ref1,
                                        VF &sum0, VF &sum1, const Work &work_of_others) {
  Work work = work_of_others;
  PairSoftmax<Prob> softmax(s, p, unit, ref0, ref1);
  size_t left = n / 2;
  const auto turns = [&]() HWY_ATTR {
    softmax.turn();
    if constexpr (kTurns > 1) softmax.turn();
    if constexpr (kTurns > 2) softmax.turn(), softmax.turn();
    left -= kTurns;
  };
  while (work.scores() > 0 && left >= kTurns) {
    work.advance_scores();
    turns();
  }
  while (work.scores() > 0) work.advance_scores();
  while (work.outputs() > 0 && left >= kTurns) {
    work.advance_outputs();
    turns();
  }
  while (work.outputs() > 0) work.advance_outputs();
  for (; left > 0; --left) softmax.turn();
  if (n % 2) softmax.last();
  clear_pairs(p, n, softmax.end());
  sum0 = softmax.sum0();
  sum1 = softmax.sum1();
}

template <class Prob, class Work>
HWY_INLINE void softmax_pairs(const float *s, float *p, size_t n, VF unit, VF ref0, VF ref1, VF &sum0,
                              VF &sum1, const Work &work) {
  const size_t steps = work.scores() + work.outputs(), turns = n / 2;
  if (steps * 4 <= turns)
    softmax_beside<Prob, 4>(s, p, n, unit, ref0, ref1, sum0, sum1, work);
  else if (steps * 2 <= turns)
    softmax_beside<Prob, 2>(s, p, n, unit, ref0, ref1, sum0, sum1, work);
  else
    softmax_beside<Prob, 1>(s, p, n, unit, ref0, ref1, sum0, sum1, work);
}
  #endif  // TSRI_AMX_TARGET

// NOLINTNEXTLINE(google-readability-namespace-comments)
}  // namespace HWY_NAMESPACE
}  // namespace tessera
HWY_AFTER_NAMESPACE();

#endif  // TESSERA_CPU_AMX_SOFTMAX_INL_H_
