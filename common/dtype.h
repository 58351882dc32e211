// SPDX-License-Identifier: Apache-2.0
//
// Element types: the facts of dtype.def as functions, and the scalar conversions that define what a
// stored element means. Everything is exact or rounds once, to nearest with ties to even, also from
// double to 16 and 8 bits (going through float would round twice). Overflow: float16, bfloat16 and
// E5M2 become infinite; E4M3, which has no infinity, saturates at 448 (infinities too); int8 is
// symmetric and saturates at 127. Valid on host and device; vector forms in the backends are tested
// against these for equality.
#ifndef TESSERA_COMMON_DTYPE_H_
#define TESSERA_COMMON_DTYPE_H_

#include <stdint.h>
#include <string.h>

#include "common/platform.h"
#include "tessera/tessera.h"

typedef enum tsri_dtype_kind {
  TSRI_DTYPE_KIND_NONE = 0,
  TSRI_DTYPE_KIND_FLOAT = 1, /* numbers of attention; int8 counts as one, its scale is apart */
  TSRI_DTYPE_KIND_INTEGER = 2,
  TSRI_DTYPE_KIND_BOOLEAN = 3
} tsri_dtype_kind;

typedef struct tsri_dtype_info {
  const char *name;
  int32_t bits;
  tsri_dtype_kind kind;
  double roundoff;
  double max_slack, rms_factor, rms_slack; /* against the baseline */
  double bound, bound_sqrt;                /* against the reference alone */
} tsri_dtype_info;

/* Row of dtype.def; name "none" and zeros for a value that is no dtype. */
TSRI_INLINE tsri_dtype_info tsri_dtype_describe(tsr_dtype dtype) {
  tsri_dtype_info info = {"none", 0, TSRI_DTYPE_KIND_NONE, 0, 0, 0, 0, 0, 0};
  switch (dtype) {
#define TSRI_DTYPE(key, text, width, group, u, ms, rf, rs, b, bs) \
  case TSR_DTYPE_##key:                                           \
    info.name = text;                                             \
    info.bits = width;                                            \
    info.kind = TSRI_DTYPE_KIND_##group;                          \
    info.roundoff = u;                                            \
    info.max_slack = ms;                                          \
    info.rms_factor = rf;                                         \
    info.rms_slack = rs;                                          \
    info.bound = b;                                               \
    info.bound_sqrt = bs;                                         \
    break;
#include "common/dtype.def"
#undef TSRI_DTYPE
    default:
      break;
  }
  return info;
}

/* Bits of one element; 0 for NONE and unknown values. */
TSRI_INLINE int32_t tsri_dtype_bits(tsr_dtype dtype) {
  switch (dtype) {
#define TSRI_DTYPE(key, text, width, group, u, ms, rf, rs, b, bs) \
  case TSR_DTYPE_##key:                                           \
    return width;
#include "common/dtype.def"
#undef TSRI_DTYPE
    default:
      return 0;
  }
}

/* Bytes of one element; 0 for BIT, NONE and unknown values. */
TSRI_INLINE int32_t tsri_dtype_bytes(tsr_dtype dtype) {
  return tsri_dtype_bits(dtype) / 8;
}

/* One byte per element, meaningful only together with a scale. */
TSRI_INLINE int tsri_dtype_needs_scale(tsr_dtype dtype) {
  return dtype == TSR_DTYPE_F8_E4M3 || dtype == TSR_DTYPE_F8_E5M2 || dtype == TSR_DTYPE_I8;
}

/* --------------------------------------------------------------------------------- bit patterns */

TSRI_INLINE uint32_t tsri_float_bits(float x) {
  uint32_t u;
  memcpy(&u, &x, sizeof u);
  return u;
}

TSRI_INLINE float tsri_bits_float(uint32_t u) {
  float x;
  memcpy(&x, &u, sizeof x);
  return x;
}

TSRI_INLINE uint64_t tsri_double_bits(double x) {
  uint64_t u;
  memcpy(&u, &x, sizeof u);
  return u;
}

/* ------------------------------------------------------------------------------------- decoding */

TSRI_INLINE float tsri_bf16_to_float(uint16_t h) {
  return tsri_bits_float((uint32_t)h << 16);
}

TSRI_INLINE float tsri_f16_to_float(uint16_t h) {
  const uint32_t sign = (uint32_t)(h & 0x8000u) << 16;
  const uint32_t exponent = (h >> 10) & 0x1fu;
  const uint32_t mantissa = h & 0x3ffu;
  if (exponent == 0) { /* zero and subnormals: mantissa * 2^-24, exact in float */
    const float magnitude = (float)mantissa * 0x1p-24f;
    return sign ? -magnitude : magnitude;
  }
  if (exponent == 0x1f) return tsri_bits_float(sign | 0x7f800000u | (mantissa << 13));
  return tsri_bits_float(sign | ((exponent + 112u) << 23) | (mantissa << 13));
}

/* E5M2 is the upper byte of a float16. */
TSRI_INLINE float tsri_e5m2_to_float(uint8_t b) {
  return tsri_f16_to_float((uint16_t)((uint32_t)b << 8));
}

TSRI_INLINE float tsri_e4m3_to_float(uint8_t b) {
  const uint32_t sign = (uint32_t)(b & 0x80u) << 24;
  const uint32_t exponent = (b >> 3) & 0xfu;
  const uint32_t mantissa = b & 0x7u;
  if (exponent == 0) {
    const float magnitude = (float)mantissa * 0x1p-9f;
    return sign ? -magnitude : magnitude;
  }
  if (exponent == 0xf && mantissa == 0x7) return tsri_bits_float(sign | 0x7fc00000u);
  return tsri_bits_float(sign | ((exponent + 120u) << 23) | (mantissa << 20));
}

/* ------------------------------------------------------------------------------------- encoding */

/* Sign, exponent_bits and mantissa_bits of the IEEE-like format nearest to x, ties to even, with
 * subnormals; overflow is infinite. Integer arithmetic: no dependence on the rounding mode. */
TSRI_INLINE uint32_t tsri_encode_small(double x, int exponent_bits, int mantissa_bits) {
  const uint64_t bits = tsri_double_bits(x);
  const uint32_t sign = (uint32_t)(bits >> 63) << (exponent_bits + mantissa_bits);
  const uint32_t infinity = ((1u << exponent_bits) - 1u) << mantissa_bits;
  const int raw = (int)((bits >> 52) & 0x7ff);
  const uint64_t fraction = bits & ((1ull << 52) - 1);
  const int bias = (1 << (exponent_bits - 1)) - 1;
  const int exponent = raw - 1023;
  const int smallest = 1 - bias; /* exponent of the smallest normal number */
  int shift = 52 - mantissa_bits;
  uint64_t significand, quotient, rest, half;
  uint32_t code;

  if (raw == 0x7ff)
    return sign | infinity | (fraction ? 1u << (mantissa_bits - 1) : 0u); /* NaN stays quiet NaN */
  if (raw == 0) return sign; /* zero, or a double far below half of the smallest subnormal */
  if (exponent > bias) return sign | infinity;
  if (exponent < smallest) shift += smallest - exponent;
  if (shift > 53) return sign; /* below half of the smallest subnormal */
  significand = fraction | (1ull << 52);
  quotient = significand >> shift;
  rest = significand & ((1ull << shift) - 1);
  half = 1ull << (shift - 1);
  if (rest > half || (rest == half && (quotient & 1))) quotient++;
  code = (uint32_t)quotient; /* a carry out of the mantissa moves into the exponent, as it must */
  if (exponent >= smallest) code += (uint32_t)(exponent - smallest) << mantissa_bits;
  return sign | (code > infinity ? infinity : code);
}

TSRI_INLINE uint16_t tsri_double_to_f16(double x) {
  return (uint16_t)tsri_encode_small(x, 5, 10);
}
TSRI_INLINE uint16_t tsri_double_to_bf16(double x) {
  return (uint16_t)tsri_encode_small(x, 8, 7);
}
TSRI_INLINE uint8_t tsri_double_to_e5m2(double x) {
  return (uint8_t)tsri_encode_small(x, 5, 2);
}

TSRI_INLINE uint8_t tsri_double_to_e4m3(double x) {
  /* The IEEE-like encoder keeps the top exponent for infinities, E4M3 uses it for numbers. Scaled
   * by 2^-8, a value has the same exponent field in a format of five exponent bits (bias 15 for 7),
   * and none reaches that format's top. */
  const uint8_t sign = (uint8_t)((tsri_double_bits(x) >> 63) << 7);
  const double magnitude = x < 0 ? -x : x;
  uint32_t code;
  if (x != x) return (uint8_t)(sign | 0x7fu);
  if (magnitude >= 448.0) return (uint8_t)(sign | 0x7eu);
  code = tsri_encode_small(magnitude * 0x1p-8, 5, 3);
  return (uint8_t)(sign | code);
}

/* float -> 16 bits, the fast forms; equal to the double forms for every float. */
TSRI_INLINE uint16_t tsri_float_to_bf16(float x) {
  const uint32_t u = tsri_float_bits(x);
  if ((u & 0x7fffffffu) > 0x7f800000u) return (uint16_t)(((u >> 16) & 0x8000u) | 0x7fc0u);
  return (uint16_t)((u + 0x7fffu + ((u >> 16) & 1u)) >> 16);
}

TSRI_INLINE uint16_t tsri_float_to_f16(float x) {
  const uint32_t u = tsri_float_bits(x);
  const uint32_t sign = (u >> 16) & 0x8000u;
  uint32_t a = u & 0x7fffffffu;
  if (a >= 0x38800000u && a < 0x47800000u) { /* 2^-14 <= |x| < 65536 */
    a = a - (112u << 23) + 0xfffu + ((a >> 13) & 1u);
    return (uint16_t)(sign | (a >> 13));
  }
  return tsri_double_to_f16((double)x);
}

/* Nearest int8, ties to even, within +-127; NaN becomes 0. */
TSRI_INLINE int8_t tsri_double_to_i8(double x) {
  double magnitude = x < 0 ? -x : x;
  int32_t whole;
  double rest;
  if (!(magnitude < 127.0)) return (int8_t)(x != x ? 0 : x < 0 ? -127 : 127);
  whole = (int32_t)magnitude;
  rest = magnitude - whole;
  if (rest > 0.5 || (rest == 0.5 && (whole & 1))) whole++;
  return (int8_t)(x < 0 ? -whole : whole);
}

/* ------------------------------------------------------------------------- element load, store */

/* Element number index (not bytes) of an array of a FLOAT-kind dtype, without its scale. */
TSRI_INLINE float tsri_load_f32(tsr_dtype dtype, const void *base, int64_t index) {
  switch (dtype) {
    case TSR_DTYPE_F32:
      return ((const float *)base)[index];
    case TSR_DTYPE_F16:
      return tsri_f16_to_float(((const uint16_t *)base)[index]);
    case TSR_DTYPE_BF16:
      return tsri_bf16_to_float(((const uint16_t *)base)[index]);
    case TSR_DTYPE_F64:
      return (float)((const double *)base)[index];
    case TSR_DTYPE_F8_E4M3:
      return tsri_e4m3_to_float(((const uint8_t *)base)[index]);
    case TSR_DTYPE_F8_E5M2:
      return tsri_e5m2_to_float(((const uint8_t *)base)[index]);
    case TSR_DTYPE_I8:
      return (float)((const int8_t *)base)[index];
    default:
      return 0.0f;
  }
}

/* As tsri_load_f32, exact for float64 too. */
TSRI_INLINE double tsri_load_f64(tsr_dtype dtype, const void *base, int64_t index) {
  if (dtype == TSR_DTYPE_F64) return ((const double *)base)[index];
  return (double)tsri_load_f32(dtype, base, index);
}

/* Rounds once to the array's dtype. */
TSRI_INLINE void tsri_store_f64(tsr_dtype dtype, void *base, int64_t index, double value) {
  switch (dtype) {
    case TSR_DTYPE_F32:
      ((float *)base)[index] = (float)value;
      break;
    case TSR_DTYPE_F16:
      ((uint16_t *)base)[index] = tsri_double_to_f16(value);
      break;
    case TSR_DTYPE_BF16:
      ((uint16_t *)base)[index] = tsri_double_to_bf16(value);
      break;
    case TSR_DTYPE_F64:
      ((double *)base)[index] = value;
      break;
    case TSR_DTYPE_F8_E4M3:
      ((uint8_t *)base)[index] = tsri_double_to_e4m3(value);
      break;
    case TSR_DTYPE_F8_E5M2:
      ((uint8_t *)base)[index] = tsri_double_to_e5m2(value);
      break;
    case TSR_DTYPE_I8:
      ((int8_t *)base)[index] = tsri_double_to_i8(value);
      break;
    default:
      break;
  }
}

TSRI_INLINE void tsri_store_f32(tsr_dtype dtype, void *base, int64_t index, float value) {
  switch (dtype) {
    case TSR_DTYPE_F32:
      ((float *)base)[index] = value;
      break;
    case TSR_DTYPE_F16:
      ((uint16_t *)base)[index] = tsri_float_to_f16(value);
      break;
    case TSR_DTYPE_BF16:
      ((uint16_t *)base)[index] = tsri_float_to_bf16(value);
      break;
    default:
      tsri_store_f64(dtype, base, index, (double)value);
      break;
  }
}

/* What is left of x after a store and a load in F32, F16 or BF16. */
TSRI_INLINE float tsri_round_f32(tsr_dtype dtype, float x) {
  if (dtype == TSR_DTYPE_F16) return tsri_f16_to_float(tsri_float_to_f16(x));
  if (dtype == TSR_DTYPE_BF16) return tsri_bf16_to_float(tsri_float_to_bf16(x));
  return x;
}

#endif  // TESSERA_COMMON_DTYPE_H_
