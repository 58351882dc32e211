// SPDX-License-Identifier: Apache-2.0
// Error figures and bounds (see accuracy.h).
#include "accuracy.h"

#include <math.h>
#include <string.h>

void accuracy_add(accuracy_sum *sum, const double *x, const double *reference, int64_t n) {
  for (int64_t i = 0; i < n; ++i) {
    double error = fabs(x[i] - reference[i]);
    if (x[i] == reference[i] || (isnan(x[i]) && isnan(reference[i]))) error = 0;
    if (isnan(error)) error = (double)INFINITY;
    if (error > sum->max_error) sum->max_error = error;
    sum->square_error += error * error;
    if (!isfinite(reference[i])) continue;
    double size = fabs(reference[i]);
    if (size > sum->max_reference) sum->max_reference = size;
    sum->square_reference += size * size;
  }
  sum->count += n;
}

static double rms(double square, int64_t count) {
  return count > 0 ? sqrt(square / (double)count) : 0;
}

double accuracy_rms_error(const accuracy_sum *sum) {
  return rms(sum->square_error, sum->count);
}

double accuracy_rms_reference(const accuracy_sum *sum) {
  return rms(sum->square_reference, sum->count);
}

accuracy_bound accuracy_bound_of(tsr_dtype dtype, bool logarithm, const accuracy_sum *naive) {
  double u = dtype == TSR_DTYPE_F32   ? 0x1p-24
             : dtype == TSR_DTYPE_F64 ? 0x1p-53
             : dtype == TSR_DTYPE_F16 ? 0x1p-11
                                      : 0x1p-8;
  bool wide = dtype == TSR_DTYPE_F32 || dtype == TSR_DTYPE_F64;
  double max_slack = wide ? 4.0 : 1.0, factor = wide ? 2.0 : 1.0, rms_slack = wide ? 1.0 : 0.05;
  double largest = naive->max_reference, typical = accuracy_rms_reference(naive);
  if (logarithm) {
    largest = fmax(largest, 1.0);
    typical = fmax(typical, 1.0);
  }
  return (accuracy_bound){2.0 * naive->max_error + max_slack * u * largest,
                          factor * accuracy_rms_error(naive) + rms_slack * u * typical};
}

static double over(double error, double bound) {
  return error <= 0 ? 0 : bound > 0 ? error / bound : (double)INFINITY;
}

double accuracy_ratio(const accuracy_sum *sum, accuracy_bound bound) {
  return fmax(over(sum->max_error, bound.max), over(accuracy_rms_error(sum), bound.rms));
}

static double f16_value(uint16_t h) {
  int exponent = (h >> 10) & 31;
  double fraction = (h & 1023) / 1024.0;
  double value = exponent == 31  ? ((h & 1023) != 0 ? (double)NAN : (double)INFINITY)
                 : exponent == 0 ? ldexp(fraction, -14)
                                 : ldexp(1 + fraction, exponent - 15);
  return (h & 0x8000) != 0 ? -value : value;
}

double accuracy_load(tsr_dtype dtype, const void *data, int64_t i) {
  if (dtype == TSR_DTYPE_F64) return ((const double *)data)[i];
  if (dtype == TSR_DTYPE_F32) return (double)((const float *)data)[i];
  uint16_t h = ((const uint16_t *)data)[i];
  if (dtype == TSR_DTYPE_F16) return f16_value(h);
  uint32_t wide = (uint32_t)h << 16;
  float value;
  memcpy(&value, &wide, sizeof value);
  return (double)value;
}

// A 16-bit float with `bits` stored fraction bits and exponent bias `bias`, from a double.
static uint16_t narrow(double x, int bits, int bias) {
  uint16_t sign = signbit(x) ? 0x8000 : 0;
  uint16_t infinite = (uint16_t)((2 * bias + 1) << bits);
  if (isnan(x)) return sign | infinite | 1;
  double size = fabs(x);
  int exponent;
  frexp(size, &exponent);
  exponent -= 1;
  if (exponent < 1 - bias) exponent = 1 - bias;
  double units = nearbyint(ldexp(size, bits - exponent));  // of the last place
  // units reaches 2^(bits+1) by rounding up: the encoding carries into the exponent by itself.
  double code = units + ldexp((double)(exponent + bias - 1), bits);
  return sign | (code >= infinite ? infinite : (uint16_t)code);
}

void accuracy_store(tsr_dtype dtype, void *data, int64_t i, double value) {
  switch (dtype) {
    case TSR_DTYPE_F64:
      ((double *)data)[i] = value;
      break;
    case TSR_DTYPE_F32:
      ((float *)data)[i] = (float)value;
      break;
    case TSR_DTYPE_F16:
      ((uint16_t *)data)[i] = narrow(value, 10, 15);
      break;
    default:
      ((uint16_t *)data)[i] = narrow(value, 7, 127);
      break;
  }
}
