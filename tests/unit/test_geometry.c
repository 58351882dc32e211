// SPDX-License-Identifier: Apache-2.0
//
// common/geometry.h: spans of fixed, packed and padded sequences, cut to their slots whatever the
// arrays hold; offsets of rows with strides past 2^31; pages and runs inside them.
#include <criterion/criterion.h>

#include "common/geometry.h"

static tsri_span span(const int32_t *cu, const int32_t *used, const int32_t *pad, int64_t seq,
                      int64_t total, int64_t b) {
  return tsri_span_of(cu, used, pad, TSR_DTYPE_I32, seq, total, b);
}

static void expect(tsri_span s, int64_t slot_begin, int64_t slot_len, int64_t begin, int64_t len) {
  cr_assert(
      s.slot_begin == slot_begin && s.slot_len == slot_len && s.begin == begin && s.len == len,
      "slot %lld + %lld, used %lld + %lld; expected %lld + %lld, %lld + %lld",
      (long long)s.slot_begin, (long long)s.slot_len, (long long)s.begin, (long long)s.len,
      (long long)slot_begin, (long long)slot_len, (long long)begin, (long long)len);
}

Test(geometry, spans) {
  const int32_t cu[] = {2, 5, 5, 11}, used[] = {1, 0, 3}, pad[] = {1, 0, 2};
  expect(span(NULL, NULL, NULL, 9, 0, 4), 0, 9, 0, 9);
  expect(span(NULL, used, NULL, 9, 0, 2), 0, 9, 0, 3);
  expect(span(NULL, NULL, pad, 9, 0, 2), 0, 9, 2, 7);
  expect(span(NULL, used, pad, 9, 0, 0), 0, 9, 1, 1);
  expect(span(cu, NULL, NULL, 9, 12, 0), 2, 3, 2, 3);
  expect(span(cu, NULL, NULL, 9, 12, 1), 5, 0, 5, 0);
  expect(span(cu, used, pad, 9, 12, 2), 5, 6, 7, 3);
}

/* On a device lengths cannot be refused: bad ones never leave the tensor. */
Test(geometry, bad_arrays_stay_inside) {
  static const int32_t values[] = {INT32_MIN, -7, -1, 0, 3, 10, 11, INT32_MAX};
  size_t a, b, c, d;
  for (a = 0; a < 8; ++a)
    for (b = 0; b < 8; ++b)
      for (c = 0; c < 8; ++c)
        for (d = 0; d < 8; ++d) {
          const int32_t cu[2] = {values[a], values[b]}, used[1] = {values[c]}, pad[1] = {values[d]};
          int packed;
          for (packed = 0; packed < 2; ++packed) {
            tsri_span s = span(packed ? cu : NULL, used, pad, 10, 10, 0);
            cr_assert(0 <= s.slot_begin && 0 <= s.slot_len && s.slot_begin + s.slot_len <= 10);
            cr_assert(s.slot_begin <= s.begin && 0 <= s.len &&
                      s.begin + s.len <= s.slot_begin + s.slot_len);
          }
        }
}

Test(geometry, indices) {
  const int32_t narrow[] = {1, -2, INT32_MAX};
  const int64_t wide[] = {5, INT64_C(1) << 40, -1};
  cr_assert_eq(tsri_index(NULL, TSR_DTYPE_I32, 9), 0);
  cr_assert_eq(tsri_index(narrow, TSR_DTYPE_I32, 1), -2);
  cr_assert_eq(tsri_index(wide, TSR_DTYPE_I64, 1), INT64_C(1) << 40);
}

Test(geometry, sequences_of_a_problem) {
  const int64_t used_k[] = {4, 6}, diagonal[] = {-3, 8}, prefix[] = {0, 2};
  tsr_problem p = {0};
  tsr_args a = {0};
  tsri_sequence s;
  tsri_mask_rule rule;
  p.seq_q = 5, p.seq_k = 7, p.index_dtype = TSR_DTYPE_I64;
  p.window.kind = TSR_WINDOW_EXPLICIT, p.window.left = 1, p.window.right = 0;
  p.diagonal = 99;
  a.used_k = used_k;
  s = tsri_sequence_of(&p, &a, 1);
  cr_assert(s.q.len == 5 && s.k.len == 6 && s.diagonal == 99 && s.prefix == 0);
  a.diagonal = diagonal;
  a.prefix = prefix;
  s = tsri_sequence_of(&p, &a, 1);
  cr_assert(s.diagonal == 8 && s.prefix == 2);
  rule = tsri_sequence_rule(&p, &s);
  cr_assert(rule.sq == 5 && rule.sk == 6 && rule.diagonal == 8 && rule.prefix == 2 &&
            rule.left == 1 && rule.right == 0);
  /* Bottom-right follows each sequence's own lengths. */
  p.window.kind = TSR_WINDOW_BOTTOM_RIGHT;
  s = tsri_sequence_of(&p, &a, 0);
  rule = tsri_sequence_rule(&p, &s);
  cr_assert_eq(rule.diagonal, 4 - 5);
}

Test(geometry, offsets_are_64_bit) {
  const int64_t stride[4] = {INT64_C(1) << 40, INT64_C(1) << 33, (INT64_C(1) << 31) + 5, 1};
  cr_assert_eq(tsri_row_offset(stride, 3, 2, 7),
               3 * (INT64_C(1) << 40) + 2 * (INT64_C(1) << 33) + 7 * ((INT64_C(1) << 31) + 5));
}

Test(geometry, pages) {
  /* Two sequences, three columns and a gap; pages of 4 rows. */
  const int32_t table[] = {6, 0, 3, -1, 2, 5, -9, -1};
  const int64_t stride[4] = {1000, 100, 10, 1};
  tsr_problem p = {0};
  tsr_args a = {0};
  tsri_pages pages;
  p.page_size = 4, p.page_table_stride = 4, p.num_pages = 7, p.index_dtype = TSR_DTYPE_I32;
  a.page_table = table;
  pages = tsri_pages_of(&p, &a);
  cr_assert_eq(tsri_kv_offset(&pages, stride, 0, 1, 0), 6000 + 100);
  cr_assert_eq(tsri_kv_offset(&pages, stride, 0, 1, 7), 0 + 100 + 30);
  cr_assert_eq(tsri_kv_offset(&pages, stride, 1, 0, 5), 5000 + 10);
  cr_assert_eq(tsri_kv_offset(&pages, stride, 1, 0, 9), 0 + 10); /* page -9 is cut to 0 */
  cr_assert_eq(tsri_kv_run(&pages, 5, 100), 3);
  cr_assert_eq(tsri_kv_run(&pages, 4, 2), 2);
  p.page_size = 0;
  pages = tsri_pages_of(&p, &a);
  cr_assert_eq(tsri_kv_offset(&pages, stride, 2, 1, 9), 2000 + 100 + 90);
  cr_assert_eq(tsri_kv_run(&pages, 5, 100), 100);
}
