// SPDX-License-Identifier: Apache-2.0
//
// Which keys a query may see, as intervals: causal, window, explicit diagonal and prefix are one rule
// here, and every backend and the reference take it from here. A mask tensor or block mask only
// removes keys from what this file allows.
//
//   band, diagonal d:  lo = i + d - left,  hi = i + d + right + 1   (cut to 0 .. Sk)
//   allowed keys:      [0, prefix)  and  [lo, hi)
//
//   causal top-left, Sq 3 < Sk 5      causal bottom-right            window left 1, bottom-right
//     i\j 0 1 2 3 4                     i\j 0 1 2 3 4                  i\j 0 1 2 3 4
//      0  x . . . .                      0  x x x . .                   0  . x x . .
//      1  x x . . .                      1  x x x x .                   1  . . x x .
//      2  x x x . .                      2  x x x x x                   2  . . . x x
//
//   prefix 2 with causal top-left     Sq 4 > Sk 2, bottom-right: rows 0 and 1 see no key
//      0  x x . . .                      0  . .
//      1  x x . . .                      1  . .
//      2  x x x . .                      2  x .
//                                        3  x x
#ifndef TESSERA_COMMON_MASK_H_
#define TESSERA_COMMON_MASK_H_

#include <stdint.h>

#include "common/platform.h"
#include "tessera/tessera.h"

/* The rule of one sequence. */
typedef struct tsri_mask_rule {
  int64_t sq, sk;      /* lengths of the used part */
  int64_t diagonal;    /* d; meaningless when left and right are both unbounded */
  int64_t left, right; /* >= 0, or TSR_UNBOUNDED */
  int64_t prefix;      /* 0 .. sk */
} tsri_mask_rule;

/* Allowed keys of one query: [0, prefix) and [lo, hi), with prefix <= lo <= hi <= sk, so that the two
 * parts are disjoint and in order. An empty part has equal ends. */
typedef struct tsri_mask_row {
  int64_t prefix;
  int64_t lo, hi;
} tsri_mask_row;

/* How a tile of rows [i0, i1) and keys [j0, j1) meets the rule. */
typedef enum tsri_tile_class {
  TSRI_TILE_SKIP = 0, /* no pair is allowed */
  TSRI_TILE_FULL = 1, /* every pair is allowed */
  TSRI_TILE_EDGE = 2  /* some are, or it was not worth finding out */
} tsri_tile_class;

/* a + b without overflow. */
TSRI_INLINE int64_t tsri_add_sat(int64_t a, int64_t b) {
  if (b > 0 && a > INT64_MAX - b) return INT64_MAX;
  if (b < 0 && a < INT64_MIN - b) return INT64_MIN;
  return a + b;
}

TSRI_INLINE int64_t tsri_clamp(int64_t x, int64_t lo, int64_t hi) {
  return x < lo ? lo : (x > hi ? hi : x);
}

/* Builds the rule of a sequence. kind, left and right come from the resolved window (causal already
 * merged in); diagonal is the explicit offset of this sequence, used by the EXPLICIT kind alone;
 * prefix is cut to sk. */
TSRI_INLINE tsri_mask_rule tsri_mask_rule_make(tsr_window_kind kind, int64_t left, int64_t right,
                                               int64_t diagonal, int64_t prefix, int64_t sq,
                                               int64_t sk) {
  tsri_mask_rule rule;
  rule.sq = sq;
  rule.sk = sk;
  rule.diagonal = kind == TSR_WINDOW_EXPLICIT       ? diagonal
                  : kind == TSR_WINDOW_BOTTOM_RIGHT ? sk - sq
                                                    : 0;
  rule.left = kind == TSR_WINDOW_NONE ? TSR_UNBOUNDED : left;
  rule.right = kind == TSR_WINDOW_NONE ? TSR_UNBOUNDED : right;
  rule.prefix = tsri_clamp(prefix, 0, sk);
  return rule;
}

/* Allowed keys of query i, 0 <= i < sq. */
TSRI_INLINE tsri_mask_row tsri_mask_row_of(const tsri_mask_rule *rule, int64_t i) {
  tsri_mask_row row;
  int64_t centre = tsri_add_sat(i, rule->diagonal);
  int64_t lo = rule->left == TSR_UNBOUNDED ? 0 : tsri_add_sat(centre, -rule->left);
  int64_t hi = rule->right == TSR_UNBOUNDED ? rule->sk
                                            : tsri_add_sat(tsri_add_sat(centre, rule->right), 1);
  row.prefix = rule->prefix;
  row.lo = tsri_clamp(lo, row.prefix, rule->sk);
  row.hi = tsri_clamp(hi, row.lo, rule->sk);
  return row;
}

/* The band of all rows in 32 bits, for rows and keys below 2^31: row i sees keys [i + lo, i + hi), cut to what
 * the sequence has; -INT32_MAX and INT32_MAX: no bound, or one that no such row comes to. */
typedef struct tsri_mask_band {
  int32_t lo, hi;
} tsri_mask_band;

TSRI_INLINE tsri_mask_band tsri_mask_band_of(const tsri_mask_rule *rule) {
  tsri_mask_band band = {-INT32_MAX, INT32_MAX};
  if (rule->left != TSR_UNBOUNDED)
    band.lo = (int32_t)tsri_clamp(tsri_add_sat(rule->diagonal, -rule->left), -INT32_MAX, INT32_MAX);
  if (rule->right != TSR_UNBOUNDED)
    band.hi = (int32_t)tsri_clamp(tsri_add_sat(tsri_add_sat(rule->diagonal, rule->right), 1), -INT32_MAX,
                                  INT32_MAX);
  return band;
}

/* Row i of it, as tsri_mask_row_of has it: 0 <= i, prefix and sk those of the rule. */
TSRI_INLINE tsri_mask_row tsri_mask_band_row(tsri_mask_band band, int64_t i, int64_t prefix, int64_t sk) {
  tsri_mask_row row;
  row.prefix = prefix;
  row.lo = tsri_clamp(band.lo == -INT32_MAX ? 0 : i + band.lo, prefix, sk);
  row.hi = tsri_clamp(band.hi == INT32_MAX ? sk : i + band.hi, row.lo, sk);
  return row;
}

TSRI_INLINE int tsri_mask_allows(const tsri_mask_row *row, int64_t j) {
  return j < row->prefix || (j >= row->lo && j < row->hi);
}

/* Number of allowed keys of a row. */
TSRI_INLINE int64_t tsri_mask_row_count(const tsri_mask_row *row) {
  return row->prefix + (row->hi - row->lo);
}

/* Keys that rows [i0, i1), i0 < i1, may see between them: [0, prefix) and [lo, hi). lo and hi do not
 * fall with i (the band moves right), so the first row gives lo and the last gives hi. */
TSRI_INLINE tsri_mask_row tsri_mask_rows_of(const tsri_mask_rule *rule, int64_t i0, int64_t i1) {
  tsri_mask_row first = tsri_mask_row_of(rule, i0);
  tsri_mask_row last = tsri_mask_row_of(rule, i1 - 1);
  tsri_mask_row rows;
  rows.prefix = rule->prefix;
  rows.lo = first.lo;
  rows.hi = last.hi > first.lo ? last.hi : first.lo;
  return rows;
}

/* Queries [*i0, *i1) outside of which none may see any of keys [j0, j1): the inverse of the band, and
 * all of them as soon as the prefix reaches into the keys. */
TSRI_INLINE void tsri_mask_queries_of(const tsri_mask_rule *rule, int64_t j0, int64_t j1,
                                      int64_t *i0, int64_t *i1) {
  *i0 = 0;
  *i1 = rule->sq;
  if (j0 < rule->prefix) return;
  if (rule->right != TSR_UNBOUNDED)
    *i0 = tsri_clamp(tsri_add_sat(tsri_add_sat(j0, -rule->diagonal), -rule->right), 0, rule->sq);
  if (rule->left != TSR_UNBOUNDED)
    *i1 = tsri_clamp(tsri_add_sat(tsri_add_sat(j1, -rule->diagonal), rule->left), *i0, rule->sq);
}

/* Class of keys [j0, j1), not empty, for rows of which the first and the last one's allowed keys are
 * given. FULL is exact; a tile that only touches corners between the parts may be called EDGE though
 * nothing in it is allowed. */
TSRI_INLINE tsri_tile_class tsri_mask_keys_class(const tsri_mask_row *first,
                                                 const tsri_mask_row *last, int64_t j0,
                                                 int64_t j1) {
  const int64_t hi = last->hi > first->lo ? last->hi : first->lo;
  if (j0 >= first->prefix && !(j0 < hi && j1 > first->lo)) return TSRI_TILE_SKIP;
  if (j1 <= first->prefix) return TSRI_TILE_FULL;
  /* Full when the narrowest part that all rows share covers the tile: from the last row's lo (or 0
   * if that touches the prefix) to the first row's hi. */
  if ((last->lo == last->prefix ? 0 : last->lo) <= j0 && j1 <= first->hi) return TSRI_TILE_FULL;
  return TSRI_TILE_EDGE;
}

/* Class of the tile [i0, i1) x [j0, j1), both not empty, as above. */
TSRI_INLINE tsri_tile_class tsri_mask_tile_class(const tsri_mask_rule *rule, int64_t i0, int64_t i1,
                                                 int64_t j0, int64_t j1) {
  const tsri_mask_row first = tsri_mask_row_of(rule, i0);
  const tsri_mask_row last = tsri_mask_row_of(rule, i1 - 1);
  return tsri_mask_keys_class(&first, &last, j0, j1);
}

#endif  // TESSERA_COMMON_MASK_H_
