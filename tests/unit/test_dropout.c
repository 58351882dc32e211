// SPDX-License-Identifier: Apache-2.0
//
// common/dropout.h: Philox4x32-10 against the known answers published with it, thresholds, and that
// every part of the state (seed, offset, head, row, key) moves the bits, also where it passes 32
// bits.
#include <criterion/criterion.h>
#include <math.h>

#include "common/dropout.h"

Test(dropout, known_answers) {
  tsri_philox r = tsri_philox4x32(0, 0, 0, 0, 0, 0);
  cr_assert(r.w[0] == 0x6627e8d5u && r.w[1] == 0xe169c58du && r.w[2] == 0xbc57ac4cu &&
            r.w[3] == 0x9b00dbd8u);
  r = tsri_philox4x32(~0u, ~0u, ~0u, ~0u, ~0u, ~0u);
  cr_assert(r.w[0] == 0x408f276du && r.w[1] == 0x41c83b0eu && r.w[2] == 0xa20bc7c6u &&
            r.w[3] == 0x6d5451fdu);
  r = tsri_philox4x32(0x243f6a88u, 0x85a308d3u, 0x13198a2eu, 0x03707344u, 0xa4093822u, 0x299f31d0u);
  cr_assert(r.w[0] == 0xd16cfe09u && r.w[1] == 0x94fdccebu && r.w[2] == 0x5001e420u &&
            r.w[3] == 0x24126ea1u);
}

Test(dropout, thresholds) {
  cr_assert_eq(tsri_dropout_threshold(0), 0);
  cr_assert_eq(tsri_dropout_threshold(1), UINT64_C(1) << 32);
  cr_assert_eq(tsri_dropout_threshold(0.5f), UINT64_C(1) << 31);
  cr_assert_eq(tsri_dropout_threshold(0x1p-32f), 1);
  cr_assert_eq(tsri_dropout_threshold(0x1p-33f), 0);
}

Test(dropout, ends_keep_all_or_nothing) {
  tsri_dropout_key key = tsri_dropout_key_make(1, 2);
  int64_t j;
  for (j = 0; j < 1000; ++j) {
    cr_assert(tsri_dropout_keep(key, 0, 3, 4, j));
    cr_assert_not(tsri_dropout_keep(key, UINT64_C(1) << 32, 3, 4, j));
  }
}

/* Words of 16 keys of one row, as a fingerprint. */
static uint32_t print_of(uint64_t seed, uint64_t offset, int64_t head, int64_t i, int64_t quad) {
  tsri_philox r = tsri_dropout_words(tsri_dropout_key_make(seed, offset), head, i, quad);
  return r.w[0] ^ r.w[1] * 3u ^ r.w[2] * 5u ^ r.w[3] * 7u;
}

Test(dropout, every_part_of_the_state_counts) {
  const uint32_t base = print_of(1, 2, 3, 4, 5);
  int bit;
  for (bit = 0; bit < 64; ++bit) {
    cr_assert_neq(print_of(1 ^ UINT64_C(1) << bit, 2, 3, 4, 5), base, "seed bit %d", bit);
    cr_assert_neq(print_of(1, 2 ^ UINT64_C(1) << bit, 3, 4, 5), base, "offset bit %d", bit);
    if (bit < 62)
      cr_assert_neq(print_of(1, 2, 3 ^ INT64_C(1) << bit, 4, 5), base, "head bit %d", bit);
    if (bit < 31) {
      cr_assert_neq(print_of(1, 2, 3, 4 ^ INT64_C(1) << bit, 5), base, "row bit %d", bit);
      cr_assert_neq(print_of(1, 2, 3, 4, 5 ^ INT64_C(1) << bit), base, "key bit %d", bit);
    }
  }
}

Test(dropout, rate_and_independence) {
  static const float rates[] = {0.1f, 0.5f, 0.9f};
  enum { N = 40000 };
  tsri_dropout_key key = tsri_dropout_key_make(77, 0);
  size_t r;
  for (r = 0; r < 3; ++r) {
    uint64_t threshold = tsri_dropout_threshold(rates[r]);
    double kept = 0, both = 0, p = 1 - (double)rates[r];
    int64_t n;
    for (n = 0; n < N; ++n) {
      int a = tsri_dropout_keep(key, threshold, n / 200, n % 7, n % 200);
      int b = tsri_dropout_keep(key, threshold, n / 200, n % 7, n % 200 + 1);
      kept += a;
      both += a && b;
    }
    cr_assert_float_eq(kept / N, p, 5 * sqrt(p * (1 - p) / N));
    cr_assert_float_eq(both / N, p * p, 0.02);
  }
}
