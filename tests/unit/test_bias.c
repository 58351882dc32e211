// SPDX-License-Identifier: Apache-2.0
//
// common/bias.h and common/score.h: addresses of pair tensors with broadcast axes, mask bytes and
// bits, the distance of ALiBi, and the order and derivative of the score steps.
#include <criterion/criterion.h>
#include <math.h>

#include "common/score.h"

Test(bias, offsets) {
  const int64_t stride[4] = {0, 3, 0, 1}, far[4] = {INT64_C(1) << 34, 0, INT64_C(1) << 32, 1};
  cr_assert_eq(tsri_pair_offset(stride, 9, 2, 7, 5), 11);
  cr_assert_eq(tsri_pair_offset(far, 2, 9, 3, 5),
               2 * (INT64_C(1) << 34) + 3 * (INT64_C(1) << 32) + 5);
}

Test(bias, alibi_distance_is_from_the_bottom_right) {
  cr_assert_eq(tsri_alibi_distance(4, 9, 5, 10), 0); /* the last query and the last key */
  cr_assert_eq(tsri_alibi_distance(0, 9, 5, 10), 4);
  cr_assert_eq(tsri_alibi_distance(4, 0, 5, 10), 9);
  cr_assert_eq(tsri_alibi_distance(0, 0, 7, 2), 5); /* before the corner */
  /* A cached step and a whole run agree: query 6 of 7 is query 0 of 1. */
  cr_assert_eq(tsri_alibi_distance(6, 2, 7, 7), tsri_alibi_distance(0, 2, 1, 7));
  cr_assert_eq(tsri_alibi_distance(0, (INT64_C(1) << 31) - 2, 1, (INT64_C(1) << 31) - 1), 0);
}

Test(bias, mask_elements) {
  const uint8_t bytes[] = {0, 1, 0x80, 0};
  int64_t n;
  for (n = 0; n < 4; ++n) cr_assert_eq(tsri_mask_element(bytes, 0, n), n == 1 || n == 2);
  for (n = 0; n < 32; ++n) cr_assert_eq(tsri_mask_element(bytes, 1, n), n == 8 || n == 23);
}

Test(bias, order_of_the_score_steps) {
  /* The cap comes after the scale and before bias and slope. */
  double s = tsri_score_f64(10, 0.5, 2, 7, 0.25, 4);
  cr_assert_float_eq(s, 2 * tanh(5.0 / 2) + 7 - 1, 1e-15);
  cr_assert_float_eq(tsri_score_f64(10, 0.5, 0, 7, 0.25, 4), 5 + 7 - 1, 1e-15);
  cr_assert_float_eq((double)tsri_score_f32(10, 0.5f, 2, 7, 0.25f, 4), s, 1e-6);
  cr_assert_eq(tsri_score_f64(1, 1, 0, -(double)INFINITY, 0, 0), -(double)INFINITY);
}

Test(bias, softcap_derivative) {
  const double caps[] = {0.5, 2, 30}, h = 1e-6;
  size_t c;
  double x;
  for (c = 0; c < 3; ++c)
    for (x = -8; x <= 8; x += 0.37) {
      double numeric =
          (caps[c] * tanh((x + h) / caps[c]) - caps[c] * tanh((x - h) / caps[c])) / (2 * h);
      cr_assert_float_eq(tsri_softcap_grad_f64(x, caps[c]), numeric, 1e-8);
      cr_assert_float_eq((double)tsri_softcap_grad_f32((float)x, (float)caps[c]), numeric, 1e-5);
    }
  cr_assert_eq(tsri_softcap_grad_f64(123, 0), 1);
  cr_assert_eq(tsri_softcap_grad_f64(1e9, 1), 0);
}
