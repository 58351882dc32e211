// SPDX-License-Identifier: Apache-2.0
//
// THE recurrence. Every kernel of every backend folds tiles of scores into a row's state with these
// calls and no others (Milakov and Gimelshein 2018; Dao et al. 2022, algorithm 1):
//
//   m' = max(m, max_j s_j)      alpha = 2^(m - m')
//   p_j = 2^(s_j - m')          l' = alpha * l + sum_j p_j        acc' = alpha * acc + sum_j p_j v_j
//   at the end: O = acc / l, LSE = m ln 2 + ln l
//
// Scores are in base two (multiplied by log2 e) because every unit has a fast 2^x. The state is
// associative: `weight` and `finish` also merge splits, caches and devices.
//
// Empty rows: m = -inf means "nothing allowed yet". Subtracting -inf would give NaN, so `reference`
// replaces -inf by 0: every 2^(-inf - 0) is then exactly 0, l stays 0, and `finish` returns O = 0,
// LSE = -inf. A NaN score is not mistaken for an empty row: it makes p, l and so O and LSE NaN.
//
// No namespace and a re-inclusion guard of Highway's kind: the CPU backend includes this once per
// target inside its target region, GPU backends once inside their namespace. A policy P supplies the
// arithmetic of one register of rows (a vector, or one float per GPU thread):
//   P::V                            register type
//   P::set(float) -> V              all lanes
//   P::max, add, sub, mul(V, V)     IEEE arithmetic; max may drop a NaN
//   P::mul_add(a, b, c)             a * b + c
//   P::exp2(V)                      2^x; exactly 0 at -inf, 1 at 0, NaN at NaN
//   P::exp2_product(x, unit)        2^(x * unit), unit > 0; the same at 0, -inf and NaN
//   P::log(V)                       natural, of values >= 1 (exactly 0 at 1), +inf or NaN
//   P::div(V, V)
//   P::product_rest(a, b, y)        a * b - y for y = a * b rounded; only where mul_add rounds twice
//   P::select_eq(a, b, yes, no)     lane-wise a == b ? yes : no (NaN: no)
//   P::select_le(a, b, yes, no)     lane-wise a <= b ? yes : no (NaN: no); only lazy_max and trial_max use it
#if defined(TESSERA_COMMON_ONLINE_SOFTMAX_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef TESSERA_COMMON_ONLINE_SOFTMAX_INL_H_
#undef TESSERA_COMMON_ONLINE_SOFTMAX_INL_H_
#else
#define TESSERA_COMMON_ONLINE_SOFTMAX_INL_H_
#endif

template <class P>
struct OnlineSoftmax {
  using V = typename P::V;

  // State of a row before any tile.
  static TSRI_FORCE_INLINE V start_max() { return P::set(-__builtin_inff()); }
  static TSRI_FORCE_INLINE V start_sum() { return P::set(0.0f); }

  // What scores are measured from: m, or 0 while nothing is allowed.
  static TSRI_FORCE_INLINE V reference(V m) {
    return P::select_eq(m, P::set(-__builtin_inff()), P::set(0.0f), m);
  }

  // Call 1a: the new maximum.
  static TSRI_FORCE_INLINE V new_max(V m, V tile_max) { return P::max(m, tile_max); }

  // Call 1b: alpha, the factor on l and acc when the maximum moves to m_new. ref = reference(m_new).
  // While m is -inf this is 0, and l and acc are 0 as well.
  static TSRI_FORCE_INLINE V correction(V m, V ref) { return P::exp2(P::sub(m, ref)); }

  // Call 2: probability of one register of scores, before division by l. -inf gives exactly 0.
  static TSRI_FORCE_INLINE V prob(V s, V ref) { return P::exp2(P::sub(s, ref)); }

  // Calls 1b and 2 for scores that still lack a positive factor: unit times them is in base two. The
  // difference is taken before the factor, so that the largest score has p = 1 to the bit and that a
  // bias of the lowest float cannot overflow.
  static TSRI_FORCE_INLINE V correction_in(V unit, V m, V ref) {
    return P::exp2_product(P::sub(m, ref), unit);
  }
  static TSRI_FORCE_INLINE V prob_in(V unit, V s, V ref) {
    return P::exp2_product(P::sub(s, ref), unit);
  }

  // The same two with the factor taken into the reference once per row, ready = unit * reference(m):
  // one fused operation per score. Whatever the rounding of `ready`, it is the same for all scores of a
  // row and cancels in O and in LSE = ready ln 2 + ln l, as long as every later tile and the LSE use the
  // same product; correction is 2^(ready_old - ready_new). Scores times unit must not overflow.
  static TSRI_FORCE_INLINE V ready_reference(V unit, V m) { return P::mul(unit, reference(m)); }
  static TSRI_FORCE_INLINE V prob_ready(V unit, V s, V ready) {
    return prob_negated(unit, s, P::sub(P::set(0.0f), ready));
  }
  // Where -ready is at hand already.
  static TSRI_FORCE_INLINE V prob_negated(V unit, V s, V minus_ready) {
    return prob_of(exponent(unit, s, minus_ready));
  }
  // In two steps, for who has others to take between them.
  static TSRI_FORCE_INLINE V exponent(V unit, V s, V minus_ready) { return P::mul_add(s, unit, minus_ready); }
  static TSRI_FORCE_INLINE V prob_of(V exponent) { return P::exp2(exponent); }

  // Call 1a when rescaling is dear: m stays while the new maximum times unit is at most `slack` above it,
  // so that probabilities may reach 2^slack and alpha is exactly 1 in most tiles. m is then what scores
  // are measured from, no longer the maximum. A row decides by its own scores alone.
  static TSRI_FORCE_INLINE V lazy_max(V unit, V m, V tile_max, V slack) {
    const V larger = P::max(m, tile_max);
    return P::select_le(P::mul(P::sub(larger, m), unit), slack, m, larger);
  }

  // Call 1a where even looking for the maximum is dear: the tile's probabilities were taken from
  // reference(m) on trial, and if no row's trial_sum passes `most` and none is without a key, they stay and
  // tile_max is not needed. Else rows that do move, the others do not, and the tile is done again. As with
  // lazy_max a row decides by its own scores alone. most: above the number of keys of a tile.
  static TSRI_FORCE_INLINE V trial_max(V m, V trial_sum, V tile_max, V most) {
    const V larger = P::max(m, tile_max);
    return P::select_eq(m, P::set(-__builtin_inff()), larger, P::select_le(trial_sum, most, m, larger));
  }

  // The sum after a tile: alpha * l + tile_sum.
  static TSRI_FORCE_INLINE V new_sum(V l, V alpha, V tile_sum) {
    return P::mul_add(alpha, l, tile_sum);
  }

  // Call 3: an accumulator after the maximum moved.
  static TSRI_FORCE_INLINE V rescale(V acc, V alpha) { return P::mul(acc, alpha); }

  // Call 4: 1 / l, or 0 for an empty row, so that O = acc * inverse.
  static TSRI_FORCE_INLINE V inverse_sum(V l) {
    return P::select_eq(l, P::set(0.0f), P::set(0.0f), P::div(P::set(1.0f), l));
  }

  // Natural log-sum-exp of a finished row; -inf when empty. l = 0 with m > -inf cannot happen: the
  // largest score adds 1. log sees 1 instead of 0 and the result is replaced.
  static TSRI_FORCE_INLINE V log_sum_exp(V m, V l) {
    return log_sum_exp_in(P::set(0.693147180559945309f), m, l);
  }

  // The same for scores that lack a factor: unit times them is natural.
  static TSRI_FORCE_INLINE V log_sum_exp_in(V unit, V m, V l) {
    const V zero = P::set(0.0f);
    const V safe = P::select_eq(l, zero, P::set(1.0f), l);
    const V lse = P::mul_add(reference(m), unit, P::log(safe));
    return P::select_eq(l, zero, P::set(-__builtin_inff()), lse);
  }

  // Merge of partial results given by their natural LSE: weight of a part against the largest LSE.
  // A part equal to the largest weighs exactly 1, an empty one exactly 0, so that merging with empty
  // parts changes nothing.
  // The factor log2 e comes in two parts, and what the difference lost is added: far below the largest,
  // where a large sink puts every key, the rounding of either would be an error of |lse - largest| / 2
  // units of the result.
  static TSRI_FORCE_INLINE V weight(V lse, V largest) {
    const V zero = P::set(0.0f), ref = reference(largest), x = P::sub(lse, ref);
    const V back = P::sub(x, lse);
    const V lost = P::sub(P::sub(lse, P::sub(x, back)), P::add(ref, back));
    const V factor = P::set(1.44269502162933349609f);
    const V y = P::mul(x, factor);
    const V rest = P::mul_add(lost, factor,
                              P::mul_add(x, P::set(1.92596299112661746887e-8f),
                                         product_rest<P>(x, factor, y, 0)));
    const V e = P::exp2(y);
    return P::select_eq(e, zero, zero, P::mul_add(e, P::mul(rest, P::set(0.693147180559945309f)), e));
  }

  // A sink logit joins the denominator of a finished row instead of call 4. m: what the scores were measured
  // from, and the sink, both natural: far below the sink an exponent in base two would have been rounded
  // twice, and the lowest finite score has none. Returns the factor that makes O of acc.
  static TSRI_FORCE_INLINE V join_sink(V m, V l, V sink, V *lse) {
    const V top = new_max(m, sink), keys = weight(m, top);
    const V total = new_sum(l, keys, weight(sink, top));
    *lse = merged_lse(top, total);
    return P::mul(keys, inverse_sum(total));
  }

  // What y = a * b lost to rounding: the policy's product_rest, or one fused operation.
  template <class Q>
  static TSRI_FORCE_INLINE auto product_rest(V a, V b, V y, int) -> decltype(Q::product_rest(a, b, y)) {
    return Q::product_rest(a, b, y);
  }
  template <class Q>
  static TSRI_FORCE_INLINE V product_rest(V a, V b, V y, long) {
    return Q::mul_add(a, b, Q::sub(Q::set(0.0f), y));
  }

  // LSE of the merged result from the largest LSE and the sum of weights (0: all parts empty).
  static TSRI_FORCE_INLINE V merged_lse(V largest, V weights) {
    const V zero = P::set(0.0f);
    const V safe = P::select_eq(weights, zero, P::set(1.0f), weights);
    const V lse = P::add(reference(largest), P::log(safe));
    return P::select_eq(weights, zero, P::set(-__builtin_inff()), lse);
  }
};

#endif  // TESSERA_COMMON_ONLINE_SOFTMAX_INL_H_
