// SPDX-License-Identifier: Apache-2.0
//
// Conversions of common/dtype.h: every 16-bit and 8-bit pattern, rounding against the definition of
// nearest (ties to even) found by search, and the values where formats end.
#include <criterion/criterion.h>
#include <math.h>
#include <string.h>

#include "common/dtype.h"
#include "common/workspace.h"

/* Value of a pattern from the definition: (-1)^s 2^(e - bias) (1 + m / 2^bits), subnormal at e = 0.
 */
static double decode(uint32_t code, int exponent_bits, int mantissa_bits) {
  const uint32_t m = code & ((1u << mantissa_bits) - 1);
  const uint32_t e = code >> mantissa_bits & ((1u << exponent_bits) - 1);
  const int bias = (1 << (exponent_bits - 1)) - 1;
  const double sign = code >> (exponent_bits + mantissa_bits) & 1 ? -1 : 1;
  const double fraction = (double)m / (double)(1u << mantissa_bits);
  if (e == (1u << exponent_bits) - 1) return m ? NAN : sign * INFINITY;
  return sign * (e ? ldexp(1 + fraction, (int)e - bias) : ldexp(fraction, 1 - bias));
}

static int identical(double x, double y) {
  return (isnan(x) && isnan(y)) || (x == y && signbit(x) == signbit(y));
}

Test(dtype, every_pattern) {
  for (uint32_t code = 0; code < 65536; code++) {
    const double f16 = decode(code, 5, 10), bf16 = decode(code, 8, 7);
    cr_assert(identical(tsri_f16_to_float((uint16_t)code), f16), "f16 %04x", code);
    cr_assert(identical(tsri_bf16_to_float((uint16_t)code), bf16), "bf16 %04x", code);
    if (!isnan(f16)) {
      cr_assert_eq(tsri_double_to_f16(f16), code);
      cr_assert_eq(tsri_float_to_f16((float)f16), code);
    }
    if (!isnan(bf16)) {
      cr_assert_eq(tsri_double_to_bf16(bf16), code);
      cr_assert_eq(tsri_float_to_bf16((float)bf16), code);
    }
  }
  for (uint32_t code = 0; code < 256; code++) {
    const double e5m2 = decode(code, 5, 2);
    /* E4M3 has numbers where others have infinities: 1.m * 2^8 up to 448, then one NaN. */
    double e4m3 = decode(code, 4, 3);
    if ((code & 0x78) == 0x78)
      e4m3 = (code & 7) == 7 ? NAN : (code & 0x80 ? -1 : 1) * ldexp(1 + (code & 7) / 8.0, 8);
    cr_assert(identical(tsri_e5m2_to_float((uint8_t)code), e5m2), "e5m2 %02x", code);
    cr_assert(identical(tsri_e4m3_to_float((uint8_t)code), e4m3), "e4m3 %02x", code);
    if (!isnan(e5m2)) cr_assert_eq(tsri_double_to_e5m2(e5m2), code);
    if (!isnan(e4m3)) cr_assert_eq(tsri_double_to_e4m3(e4m3), code);
  }
}

Test(dtype, nan_stays_nan) {
  cr_expect(isnan(tsri_f16_to_float(tsri_double_to_f16(NAN))));
  cr_expect(isnan(tsri_f16_to_float(tsri_float_to_f16(NAN))));
  cr_expect(isnan(tsri_bf16_to_float(tsri_double_to_bf16(NAN))));
  cr_expect(isnan(tsri_bf16_to_float(tsri_float_to_bf16(NAN))));
  /* A NaN whose payload lies only in the bits that are cut off. */
  cr_expect(isnan(tsri_bf16_to_float(tsri_float_to_bf16(tsri_bits_float(0x7f800001)))));
  cr_expect(isnan(tsri_f16_to_float(tsri_float_to_f16(tsri_bits_float(0x7f800001)))));
  cr_expect(isnan(tsri_e4m3_to_float(tsri_double_to_e4m3(NAN))));
  cr_expect(isnan(tsri_e5m2_to_float(tsri_double_to_e5m2(NAN))));
}

/* Between each two neighbours: just below, at and just above the middle. */
Test(dtype, rounds_to_nearest_even) {
  for (uint32_t code = 0; code < 0x7bff; code++) {
    const double low = decode(code, 5, 10), high = decode(code + 1, 5, 10),
                 middle = (low + high) / 2;
    cr_assert_eq(tsri_double_to_f16(middle), code + (code & 1));
    cr_assert_eq(tsri_double_to_f16(nextafter(middle, 0)), code);
    cr_assert_eq(tsri_double_to_f16(nextafter(middle, INFINITY)), code + 1);
    cr_assert_eq(tsri_float_to_f16((float)middle), code + (code & 1));
    cr_assert_eq(tsri_float_to_f16(nextafterf((float)middle, 0)), code);
    cr_assert_eq(tsri_float_to_f16(-nextafterf((float)middle, INFINITY)), 0x8000 | (code + 1));
  }
  for (uint32_t code = 0; code < 0x7f7f; code++) {
    const double low = decode(code, 8, 7), high = decode(code + 1, 8, 7), middle = (low + high) / 2;
    cr_assert_eq(tsri_double_to_bf16(middle), code + (code & 1));
    cr_assert_eq(tsri_double_to_bf16(nextafter(middle, 0)), code);
    cr_assert_eq(tsri_double_to_bf16(nextafter(middle, INFINITY)), code + 1);
    cr_assert_eq(tsri_float_to_bf16((float)middle), code + (code & 1));
    cr_assert_eq(tsri_float_to_bf16(nextafterf((float)middle, INFINITY)), code + 1);
  }
  for (uint32_t code = 0; code < 0x7b; code++) {
    const double middle = (decode(code, 5, 2) + decode(code + 1, 5, 2)) / 2;
    cr_assert_eq(tsri_double_to_e5m2(middle), code + (code & 1));
    cr_assert_eq(tsri_double_to_e5m2(nextafter(middle, INFINITY)), code + 1);
  }
  for (uint32_t code = 0; code < 0x7e; code++) {
    const double middle = ((double)tsri_e4m3_to_float((uint8_t)code) +
                           (double)tsri_e4m3_to_float((uint8_t)(code + 1))) /
                          2;
    cr_assert_eq(tsri_double_to_e4m3(middle), code + (code & 1));
    cr_assert_eq(tsri_double_to_e4m3(nextafter(middle, INFINITY)), code + 1);
    cr_assert_eq(tsri_double_to_e4m3(-nextafter(middle, 0)), 0x80 | code);
  }
}

/* Through float, 1 + 2^-11 + 2^-40 would first become the tie and then go down. */
Test(dtype, double_rounds_once) {
  cr_expect_eq(tsri_double_to_f16(1 + 0x1p-11 + 0x1p-40), 0x3c01);
  cr_expect_eq(tsri_double_to_bf16(1 + 0x1p-8 + 0x1p-40), 0x3f81);
}

Test(dtype, ends_of_the_ranges) {
  cr_expect_eq(tsri_double_to_f16(65519.99), 0x7bff);
  cr_expect_eq(tsri_double_to_f16(65520), 0x7c00);
  cr_expect_eq(tsri_float_to_f16(-65520.0f), 0xfc00);
  cr_expect_eq(tsri_float_to_f16(1e30f), 0x7c00);
  cr_expect_eq(tsri_double_to_f16(1e300), 0x7c00);
  cr_expect_eq(tsri_double_to_f16(0x1p-25), 0);
  cr_expect_eq(tsri_double_to_f16(nextafter(0x1p-25, 1)), 1);
  cr_expect_eq(tsri_double_to_f16(-0.0), 0x8000);
  cr_expect_eq(tsri_double_to_f16(-1e-300), 0x8000);
  cr_expect_eq(tsri_double_to_bf16(3.4e38), 0x7f80);
  cr_expect_eq(tsri_double_to_bf16(1e39), 0x7f80);
  cr_expect_eq(tsri_double_to_bf16(4.9e-324), 0);
  cr_expect_eq(tsri_double_to_e5m2(61440), 0x7c);
  cr_expect_eq(tsri_double_to_e5m2(61439), 0x7b);
  cr_expect_eq(tsri_double_to_e4m3(1e9), 0x7e, "saturates at 448");
  cr_expect_eq(tsri_double_to_e4m3(-INFINITY), 0xfe);
  cr_expect_eq(tsri_double_to_i8(127.4), 127);
  cr_expect_eq(tsri_double_to_i8(-1000), -127);
  cr_expect_eq(tsri_double_to_i8(2.5), 2);
  cr_expect_eq(tsri_double_to_i8(-3.5), -4);
  cr_expect_eq(tsri_double_to_i8(126.5), 126);
  cr_expect_eq(tsri_double_to_i8(-126.6), -127);
  cr_expect_eq(tsri_double_to_i8(NAN), 0);
}

/* Store then load gives back what the type holds, by element number; the table knows the sizes. */
Test(dtype, table_and_elements) {
  static const tsr_dtype types[] = {TSR_DTYPE_F32, TSR_DTYPE_F16,     TSR_DTYPE_BF16,
                                    TSR_DTYPE_F64, TSR_DTYPE_F8_E4M3, TSR_DTYPE_F8_E5M2,
                                    TSR_DTYPE_I8};
  static const int bytes[] = {4, 2, 2, 8, 1, 1, 1};
  for (int t = 0; t < 7; t++) {
    unsigned char memory[64];
    memset(memory, 0xaa, sizeof memory);
    cr_expect_eq(tsri_dtype_bytes(types[t]), bytes[t]);
    cr_expect_eq(tsri_dtype_describe(types[t]).kind, TSRI_DTYPE_KIND_FLOAT);
    tsri_store_f64(types[t], memory, 2, -3);
    tsri_store_f32(types[t], memory, 3, 5);
    cr_expect_eq(tsri_load_f64(types[t], memory, 2), -3);
    cr_expect_eq(tsri_load_f32(types[t], memory, 3), 5);
    for (int n = 0; n < 64; n++)
      if (n < 2 * bytes[t] || n >= 4 * bytes[t]) cr_expect_eq(memory[n], 0xaa);
  }
  cr_expect_eq(tsri_dtype_bits(TSR_DTYPE_BIT), 1);
  cr_expect_eq(tsri_dtype_bytes(TSR_DTYPE_BIT), 0);
  cr_expect_eq(tsri_dtype_bits((tsr_dtype)99), 0);
  cr_expect_str_eq(tsri_dtype_describe((tsr_dtype)99).name, "none");
  cr_expect(tsri_dtype_needs_scale(TSR_DTYPE_I8) && !tsri_dtype_needs_scale(TSR_DTYPE_F16));
}

Test(workspace, counts_and_cuts_alike) {
  unsigned char *block = (unsigned char *)aligned_alloc(64, 1024);
  tsri_workspace count = {NULL, 0}, cut = {NULL, 0};
  unsigned char *a, *b;
  cut.base = block;
  cr_expect_null(tsri_workspace_take(&count, 3, 8));
  (void)tsri_workspace_take(&count, 0, 8);
  (void)tsri_workspace_take(&count, 65, 1);
  a = (unsigned char *)tsri_workspace_take(&cut, 3, 8);
  (void)tsri_workspace_take(&cut, 0, 8);
  b = (unsigned char *)tsri_workspace_take(&cut, 65, 1);
  cr_expect(a == block && b == block + 64);
  cr_expect(count.used == 192 && cut.used == 192);
  (void)tsri_workspace_take(&count, INT64_MAX / 4, 8);
  cr_expect_eq(count.used, INT64_MAX);
  (void)tsri_workspace_take(&count, 1, 1);
  cr_expect_eq(count.used, INT64_MAX);
  free(block);
}
