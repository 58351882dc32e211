// SPDX-License-Identifier: Apache-2.0
//
// common/mask.h against the definition applied key by key: causal corners, explicit diagonals,
// windows, prefixes, and the tile classes, over all small shapes and at the ends of the number
// range.
#include <criterion/criterion.h>

#include "common/mask.h"

/* The rule as tessera.h states it. */
static int allowed(tsr_window_kind kind, int64_t left, int64_t right, int64_t diagonal,
                   int64_t prefix, int64_t sq, int64_t sk, int64_t i, int64_t j) {
  int64_t d = kind == TSR_WINDOW_BOTTOM_RIGHT ? sk - sq
              : kind == TSR_WINDOW_EXPLICIT   ? diagonal
                                              : 0;
  if (j < prefix || kind == TSR_WINDOW_NONE) return 1;
  return (left == TSR_UNBOUNDED || j >= i + d - left) &&
         (right == TSR_UNBOUNDED || j <= i + d + right);
}

/* The band in 32 bits says the same of a row. */
static void check_band(const tsri_mask_rule *rule, int64_t i) {
  const tsri_mask_row row = tsri_mask_row_of(rule, i);
  const tsri_mask_row other = tsri_mask_band_row(tsri_mask_band_of(rule), i, rule->prefix, rule->sk);
  cr_assert(other.prefix == row.prefix && other.lo == row.lo && other.hi == row.hi,
            "row %lld of diagonal %lld, left %lld, right %lld, %lld x %lld: [%lld, %lld), not [%lld, %lld)",
            (long long)i, (long long)rule->diagonal, (long long)rule->left, (long long)rule->right,
            (long long)rule->sq, (long long)rule->sk, (long long)other.lo, (long long)other.hi,
            (long long)row.lo, (long long)row.hi);
}

static void check_rows(tsr_window_kind kind, int64_t left, int64_t right, int64_t diagonal,
                       int64_t prefix, int64_t sq, int64_t sk) {
  tsri_mask_rule rule = tsri_mask_rule_make(kind, left, right, diagonal, prefix, sq, sk);
  int64_t i, j;
  for (i = 0; i < sq; ++i) {
    tsri_mask_row row = tsri_mask_row_of(&rule, i);
    int64_t count = 0;
    cr_assert(0 <= row.prefix && row.prefix <= row.lo && row.lo <= row.hi && row.hi <= sk);
    for (j = 0; j < sk; ++j) {
      int expected = allowed(kind, left, right, diagonal, prefix, sq, sk, i, j);
      count += expected;
      cr_assert_eq(!!tsri_mask_allows(&row, j), expected,
                   "kind %d left %lld right %lld d %lld prefix %lld, %lld x %lld: (%lld, %lld)",
                   kind, (long long)left, (long long)right, (long long)diagonal, (long long)prefix,
                   (long long)sq, (long long)sk, (long long)i, (long long)j);
    }
    cr_assert_eq(tsri_mask_row_count(&row), count);
    check_band(&rule, i);
  }
}

/* Every tile of the rule: SKIP only where nothing is allowed, FULL exactly where all is. */
static void check_tiles(tsr_window_kind kind, int64_t left, int64_t right, int64_t diagonal,
                        int64_t prefix, int64_t sq, int64_t sk) {
  tsri_mask_rule rule = tsri_mask_rule_make(kind, left, right, diagonal, prefix, sq, sk);
  int64_t i0, i1, j0, j1, i, j;
  for (i0 = 0; i0 < sq; ++i0)
    for (i1 = i0 + 1; i1 <= sq; ++i1)
      for (j0 = 0; j0 < sk; ++j0)
        for (j1 = j0 + 1; j1 <= sk; ++j1) {
          int any = 0, all = 1;
          tsri_tile_class found = tsri_mask_tile_class(&rule, i0, i1, j0, j1);
          tsri_mask_row rows = tsri_mask_rows_of(&rule, i0, i1);
          for (i = i0; i < i1; ++i)
            for (j = j0; j < j1; ++j) {
              int a = allowed(kind, left, right, diagonal, prefix, sq, sk, i, j);
              any |= a;
              all &= a;
              if (a) cr_assert(tsri_mask_allows(&rows, j));
            }
          cr_assert_eq(found == TSRI_TILE_FULL, all, "%lld..%lld x %lld..%lld: class %d",
                       (long long)i0, (long long)i1, (long long)j0, (long long)j1, found);
          if (found == TSRI_TILE_SKIP) cr_assert_not(any);
        }
}

static const tsr_window_kind kinds[] = {TSR_WINDOW_NONE, TSR_WINDOW_TOP_LEFT,
                                        TSR_WINDOW_BOTTOM_RIGHT, TSR_WINDOW_EXPLICIT};

Test(mask, every_small_rule) {
  static const int64_t sides[] = {0, 1, 3, TSR_UNBOUNDED};
  static const int64_t lengths[] = {0, 1, 2, 5, 8};
  size_t k, l, r, a, b;
  int64_t prefix, d;
  for (k = 0; k < 4; ++k)
    for (l = 0; l < 4; ++l)
      for (r = 0; r < 4; ++r)
        for (a = 0; a < 5; ++a)
          for (b = 0; b < 5; ++b)
            for (prefix = 0; prefix < 4; prefix += 3)
              for (d = -6; d <= 6; d += 3)
                check_rows(kinds[k], sides[l], sides[r], d, prefix, lengths[a], lengths[b]);
}

Test(mask, every_small_tile) {
  static const int64_t sides[] = {0, 2, TSR_UNBOUNDED};
  size_t k, l, r;
  int64_t prefix, sq, sk;
  for (k = 0; k < 4; ++k)
    for (l = 0; l < 3; ++l)
      for (r = 0; r < 3; ++r)
        for (prefix = 0; prefix < 5; prefix += 2)
          for (sq = 1; sq <= 5; sq += 2)
            for (sk = 1; sk <= 7; sk += 3)
              check_tiles(kinds[k], sides[l], sides[r], 1, prefix, sq, sk);
}

/* Tiles of keys of one length that a tile of queries is seen by follow each other, so that the one before has it exactly
 * if that one's last tile of queries is not before it; what kernels that add tile after tile wait for. */
static void check_neighbours(const tsri_mask_rule *rule, int64_t tile_q, int64_t tile_k, int64_t padding) {
  int64_t seen[8] = {0}; /* tile of keys after the last one that the tile of queries was in */
  int64_t t, i, before = 0;
  for (t = 0; t * tile_k < padding + rule->sk; ++t) {
    const int64_t first = t * tile_k - padding > 0 ? t * tile_k - padding : 0;
    const int64_t end = (t + 1) * tile_k - padding < rule->sk ? (t + 1) * tile_k - padding : rule->sk;
    int64_t from = 0, to = 0;
    if (first < end) tsri_mask_queries_of(rule, first, end, &from, &to);
    if (to <= from) from = to = 0;
    for (i = from / tile_q; i * tile_q < to; ++i) {
      cr_assert_eq(seen[i], i < before ? t : 0,
                   "diagonal %lld, left %lld, right %lld, %lld x %lld, tiles %lld x %lld, padding %lld: (%lld, %lld)",
                   (long long)rule->diagonal, (long long)rule->left, (long long)rule->right, (long long)rule->sq,
                   (long long)rule->sk, (long long)tile_q, (long long)tile_k, (long long)padding, (long long)i,
                   (long long)t);
      seen[i] = t + 1;
    }
    before = (to + tile_q - 1) / tile_q;
  }
}

Test(mask, tiles_of_keys_follow_each_other) {
  static const int64_t sides[] = {TSR_UNBOUNDED, 0, 1, 4};
  int64_t sq, sk, diagonal, tile_q, tile_k, padding;
  size_t l, r;
  for (sq = 0; sq <= 8; sq += 2)
    for (sk = 0; sk <= 9; sk += 3)
      for (diagonal = -9; diagonal <= 9; ++diagonal)
        for (l = 0; l < 4; ++l)
          for (r = 0; r < 4; ++r) {
            const tsri_mask_rule rule =
                tsri_mask_rule_make(TSR_WINDOW_EXPLICIT, sides[l], sides[r], diagonal, 0, sq, sk);
            for (tile_q = 1; tile_q <= 3; ++tile_q)
              for (tile_k = 1; tile_k <= 3; ++tile_k)
                for (padding = 0; padding <= 4; ++padding) check_neighbours(&rule, tile_q, tile_k, padding);
          }
}

Test(mask, corners_as_drawn) {
  /* The pictures at the top of mask.h. */
  tsri_mask_rule rule = tsri_mask_rule_make(TSR_WINDOW_TOP_LEFT, TSR_UNBOUNDED, 0, 0, 0, 3, 5);
  tsri_mask_row row = tsri_mask_row_of(&rule, 0);
  cr_assert(row.lo == 0 && row.hi == 1);
  rule = tsri_mask_rule_make(TSR_WINDOW_BOTTOM_RIGHT, TSR_UNBOUNDED, 0, 0, 0, 3, 5);
  row = tsri_mask_row_of(&rule, 0);
  cr_assert(row.lo == 0 && row.hi == 3);
  rule = tsri_mask_rule_make(TSR_WINDOW_BOTTOM_RIGHT, TSR_UNBOUNDED, 0, 0, 0, 4, 2);
  row = tsri_mask_row_of(&rule, 1);
  cr_assert_eq(tsri_mask_row_count(&row), 0);
  row = tsri_mask_row_of(&rule, 2);
  cr_assert_eq(tsri_mask_row_count(&row), 1);
}

/* Nothing wraps: diagonals, sides and rows near the ends of 64 bits. */
Test(mask, saturates) {
  static const int64_t extremes[] = {
      INT64_MIN, INT64_MIN + 1, -(INT64_C(1) << 61), 0, INT64_C(1) << 61, INT64_MAX - 1, INT64_MAX};
  const int64_t longest = (INT64_C(1) << 31) - 1;
  size_t d, l, r;
  int64_t i;
  cr_assert_eq(tsri_add_sat(INT64_MAX, 1), INT64_MAX);
  cr_assert_eq(tsri_add_sat(INT64_MIN, -1), INT64_MIN);
  cr_assert_eq(tsri_add_sat(INT64_MAX, INT64_MIN), -1);
  for (d = 0; d < 7; ++d)
    for (l = 3; l < 7; ++l)
      for (r = 3; r < 7; ++r)
        for (i = 0; i < longest; i += longest / 3) {
          tsri_mask_rule rule = tsri_mask_rule_make(TSR_WINDOW_EXPLICIT, extremes[l], extremes[r],
                                                    extremes[d], 7, longest, longest);
          tsri_mask_row row = tsri_mask_row_of(&rule, i);
          cr_assert(row.prefix == 7 && 7 <= row.lo && row.lo <= row.hi && row.hi <= longest);
          if (extremes[r] < INT64_C(1) << 61 && extremes[d] < -longest - extremes[r])
            cr_assert_eq(row.lo, row.hi);
        }
}

/* Of rows and keys below 2^31, whatever the numbers of the rule are. */
Test(mask, band_of_32_bits) {
  static const int64_t bounds[] = {TSR_UNBOUNDED, 0, 1, INT32_MAX - 1, INT32_MAX, INT64_C(1) << 32,
                                   INT64_MAX};
  static const int64_t diagonals[] = {INT64_MIN, -(INT64_C(1) << 40), -INT32_MAX, -5, 0,
                                      5, INT32_MAX, INT64_C(1) << 40, INT64_MAX};
  static const int64_t keys[] = {0, 1, 1000, INT32_MAX - 4096};
  static const int64_t rows[] = {0, 1, 999, INT32_MAX - 4097};
  for (size_t l = 0; l < sizeof bounds / sizeof *bounds; ++l)
    for (size_t r = 0; r < sizeof bounds / sizeof *bounds; ++r)
      for (size_t d = 0; d < sizeof diagonals / sizeof *diagonals; ++d)
        for (size_t k = 0; k < sizeof keys / sizeof *keys; ++k)
          for (size_t i = 0; i < sizeof rows / sizeof *rows; ++i) {
            const tsri_mask_rule rule = tsri_mask_rule_make(TSR_WINDOW_EXPLICIT, bounds[l], bounds[r], diagonals[d],
                                                            i % 2 ? keys[k] / 2 : 0, INT32_MAX - 4096, keys[k]);
            check_band(&rule, rows[i]);
          }
}
