// SPDX-License-Identifier: Apache-2.0
//
// See numeric.h. Rounding works on value = fraction * 2^exponent: the last kept bit of a format with
// m mantissa bits is 2^(exponent - m - 1), or the format's smallest subnormal, and rint rounds a
// multiple of it to nearest even. Slow and plain: it is the yardstick, not the product.
#include "numeric.h"

#include <float.h>
#include <math.h>
#include <string.h>

int32_t tsr_test_dtype_bytes(tsr_dtype dtype) {
  switch (dtype) {
    case TSR_DTYPE_F64:
    case TSR_DTYPE_I64:
      return 8;
    case TSR_DTYPE_F32:
    case TSR_DTYPE_I32:
      return 4;
    case TSR_DTYPE_F16:
    case TSR_DTYPE_BF16:
      return 2;
    case TSR_DTYPE_U8:
    case TSR_DTYPE_I8:
    case TSR_DTYPE_F8_E4M3:
    case TSR_DTYPE_F8_E5M2:
      return 1;
    default:
      return 0;
  }
}

const char *tsr_test_dtype_name(tsr_dtype dtype) {
  switch (dtype) {
    case TSR_DTYPE_F32:
      return "f32";
    case TSR_DTYPE_F16:
      return "f16";
    case TSR_DTYPE_BF16:
      return "bf16";
    case TSR_DTYPE_F64:
      return "f64";
    case TSR_DTYPE_F8_E4M3:
      return "f8_e4m3";
    case TSR_DTYPE_F8_E5M2:
      return "f8_e5m2";
    case TSR_DTYPE_I8:
      return "i8";
    case TSR_DTYPE_U8:
      return "u8";
    case TSR_DTYPE_BIT:
      return "bit";
    case TSR_DTYPE_I32:
      return "i32";
    case TSR_DTYPE_I64:
      return "i64";
    default:
      return "none";
  }
}

static double round_small(double x, int mantissa_bits, int lowest_exponent, double largest) {
  int exponent;
  double step, y;
  if (!(fabs(x) <= DBL_MAX) || x == 0) return x;
  frexp(x, &exponent); /* x = f * 2^exponent, 0.5 <= |f| < 1 */
  if (exponent < lowest_exponent) exponent = lowest_exponent;
  step = ldexp(1.0, exponent - mantissa_bits - 1);
  y = rint(x / step) * step;
  return fabs(y) > largest ? copysign((double)INFINITY, x) : y;
}

double tsr_test_largest(tsr_dtype dtype) {
  switch (dtype) {
    case TSR_DTYPE_F32:
      return (double)FLT_MAX;
    case TSR_DTYPE_F16:
      return 65504.0;
    case TSR_DTYPE_BF16:
      return 0x1.fep127;
    case TSR_DTYPE_F8_E4M3:
      return 448.0;
    case TSR_DTYPE_F8_E5M2:
      return 57344.0;
    case TSR_DTYPE_I8:
      return 127.0;
    default:
      return DBL_MAX;
  }
}

double tsr_test_round(tsr_dtype dtype, double x) {
  switch (dtype) {
    case TSR_DTYPE_F32:
      return (double)(float)x;
    case TSR_DTYPE_F16:
      return round_small(x, 10, -13, tsr_test_largest(dtype));
    case TSR_DTYPE_BF16:
      return round_small(x, 7, -125, tsr_test_largest(dtype));
    case TSR_DTYPE_F8_E4M3:
      return round_small(x, 3, -5, tsr_test_largest(dtype));
    case TSR_DTYPE_F8_E5M2:
      return round_small(x, 2, -13, tsr_test_largest(dtype));
    case TSR_DTYPE_I8:
      return rint(x);
    default:
      return x;
  }
}

static float bits_to_float(uint32_t bits) {
  float x;
  memcpy(&x, &bits, sizeof x);
  return x;
}

static double load_f16(uint16_t h) {
  int exponent = (h >> 10) & 31;
  double fraction = (double)(h & 1023) / 1024.0;
  double x;
  if (exponent == 31)
    x = (h & 1023) ? (double)NAN : (double)INFINITY;
  else
    x = exponent ? ldexp(1.0 + fraction, exponent - 15) : ldexp(fraction, -14);
  return (h & 0x8000) ? -x : x;
}

/* x is already a float16 value. */
static uint16_t store_f16(double x) {
  uint16_t sign = signbit(x) ? 0x8000 : 0;
  double a = fabs(x);
  int exponent;
  double fraction;
  if (isnan(x)) return 0x7e00;
  if (isinf(x)) return (uint16_t)(sign | 0x7c00);
  if (a < 0x1p-14) return (uint16_t)(sign | (uint16_t)(a * 0x1p24));
  fraction = frexp(a, &exponent) * 2 - 1;
  return (uint16_t)(sign | ((exponent + 14) << 10) | (int)(fraction * 1024.0));
}

/* The byte of a finite float8 value with m mantissa bits and this exponent bias, by search: exact. */
static uint8_t store_f8(double x, int m, int bias) {
  int code, limit = m == 3 ? 0x7f : 0x7c;
  for (code = 0; code < limit; ++code) {
    int exponent = code >> m;
    double fraction = (double)(code & ((1 << m) - 1)) / (double)(1 << m);
    double value = exponent ? ldexp(1.0 + fraction, exponent - bias) : ldexp(fraction, 1 - bias);
    if (value == fabs(x)) break;
  }
  return (uint8_t)(code | (signbit(x) ? 0x80 : 0));
}

double tsr_test_load(tsr_dtype dtype, const void *data, int64_t index) {
  switch (dtype) {
    case TSR_DTYPE_F64:
      return ((const double *)data)[index];
    case TSR_DTYPE_F32:
      return (double)((const float *)data)[index];
    case TSR_DTYPE_F16:
      return load_f16(((const uint16_t *)data)[index]);
    case TSR_DTYPE_BF16:
      return (double)bits_to_float((uint32_t)((const uint16_t *)data)[index] << 16);
    case TSR_DTYPE_U8:
      return ((const uint8_t *)data)[index];
    case TSR_DTYPE_I32:
      return ((const int32_t *)data)[index];
    case TSR_DTYPE_I64:
      return (double)((const int64_t *)data)[index];
    default:
      return (double)NAN;
  }
}

void tsr_test_store(tsr_dtype dtype, void *data, int64_t index, double value) {
  float narrow;
  uint32_t bits;
  switch (dtype) {
    case TSR_DTYPE_F64:
      ((double *)data)[index] = value;
      break;
    case TSR_DTYPE_F32:
      ((float *)data)[index] = (float)value;
      break;
    case TSR_DTYPE_F16:
      ((uint16_t *)data)[index] = store_f16(tsr_test_round(dtype, value));
      break;
    case TSR_DTYPE_BF16:
      narrow = (float)tsr_test_round(dtype, value);
      memcpy(&bits, &narrow, sizeof bits);
      ((uint16_t *)data)[index] = (uint16_t)(isnan(value) ? 0x7fc0 : bits >> 16);
      break;
    case TSR_DTYPE_U8:
      ((uint8_t *)data)[index] = (uint8_t)value;
      break;
    case TSR_DTYPE_I8:
      ((int8_t *)data)[index] = (int8_t)value;
      break;
    case TSR_DTYPE_F8_E4M3:
      ((uint8_t *)data)[index] = store_f8(tsr_test_round(dtype, value), 3, 7);
      break;
    case TSR_DTYPE_F8_E5M2:
      ((uint8_t *)data)[index] = store_f8(tsr_test_round(dtype, value), 2, 15);
      break;
    case TSR_DTYPE_I32:
      ((int32_t *)data)[index] = (int32_t)value;
      break;
    case TSR_DTYPE_I64:
      ((int64_t *)data)[index] = (int64_t)value;
      break;
    default:
      break;
  }
}

/* Bytes of the poison, least significant first as every supported machine stores them. Masks get a
 * byte that would allow a key, integers a number that would fault as an index. */
static uint64_t poison_bits(tsr_dtype dtype) {
  switch (dtype) {
    case TSR_DTYPE_F64:
      return 0x7ffa5a5a5a5a5a5aull;
    case TSR_DTYPE_F32:
      return 0x7fe5a5a5u;
    case TSR_DTYPE_F16:
      return 0x7e5au;
    case TSR_DTYPE_BF16:
      return 0x7fdau;
    case TSR_DTYPE_F8_E4M3:
    case TSR_DTYPE_F8_E5M2:
      return 0x7fu;
    case TSR_DTYPE_I32:
      return 0x7f7f7f7fu;
    case TSR_DTYPE_I64:
      return 0x7f7f7f7f7f7f7f7full;
    default:
      return 0xa5u;
  }
}

void tsr_test_poison(tsr_dtype dtype, void *data, int64_t index) {
  int32_t bytes = dtype == TSR_DTYPE_BIT ? 1 : tsr_test_dtype_bytes(dtype);
  uint64_t bits = poison_bits(dtype);
  memcpy((unsigned char *)data + index * bytes, &bits, (size_t)bytes);
}

bool tsr_test_is_poison(tsr_dtype dtype, const void *data, int64_t index) {
  int32_t bytes = dtype == TSR_DTYPE_BIT ? 1 : tsr_test_dtype_bytes(dtype);
  uint64_t bits = poison_bits(dtype);
  return memcmp((const unsigned char *)data + index * bytes, &bits, (size_t)bytes) == 0;
}

uint64_t tsr_test_bits(uint64_t seed, uint64_t stream, uint64_t index) {
  /* Three rounds of multiply and xor-shift by odd constants over the three inputs. */
  uint64_t x = seed * 0x9e3779b97f4a7c15ull + stream * 0xd1342543de82ef95ull + index + 1;
  int round;
  for (round = 0; round < 3; ++round) {
    x ^= x >> 32;
    x *= 0xd6e8feb86659fd93ull;
    x ^= x >> 29;
    x += 0x2545f4914f6cdd1dull * (stream + 1);
  }
  return x ^ (x >> 32);
}

double tsr_test_uniform(uint64_t seed, uint64_t stream, uint64_t index) {
  return (double)(tsr_test_bits(seed, stream, index) >> 11) * 0x1p-53;
}

double tsr_test_normal(uint64_t seed, uint64_t stream, uint64_t index) {
  /* Box and Muller; 1 - u is never 0. */
  double u = 1.0 - tsr_test_uniform(seed, stream, 2 * index);
  double v = tsr_test_uniform(seed, stream, 2 * index + 1);
  return sqrt(-2.0 * log(u)) * cos(6.283185307179586 * v);
}

int64_t tsr_test_integer(uint64_t seed, uint64_t stream, uint64_t index, int64_t lo, int64_t hi) {
  uint64_t range = (uint64_t)(hi - lo) + 1;
  return lo + (int64_t)(tsr_test_bits(seed, stream, index) % range);
}
