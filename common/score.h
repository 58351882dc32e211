// SPDX-License-Identifier: Apache-2.0
//
// The ORDER of what happens to a score between Q K^T and P V, and each step's derivative. Backends
// vectorise these steps but may not reorder them:
//
//   1. s = scale * dot            4. mask            (mask.h)
//   2. s = softcap(s)             5. softmax, sink   (online_softmax-inl.h)
//   3. s += bias - slope * dist   6. dropout         (dropout.h)
//
// Backward walks back: dP = keep * dP'; dS = p * (dP - D); dBias = dS; dot gets
// dS * softcap'(s) * scale. Softcap: c * tanh(s / c), derivative 1 - tanh^2 (Gemma 2, 2024).
#ifndef TESSERA_COMMON_SCORE_H_
#define TESSERA_COMMON_SCORE_H_

#include <math.h>
#include <stdint.h>

#include "common/bias.h"
#include "common/platform.h"

/* Natural logarithm <-> base two, for backends that exponentiate in base two. */
#define TSRI_LOG2E 1.4426950408889634074
#define TSRI_LN2 0.69314718055994530942

/* Steps 1 to 3 in double precision. cap 0: none. slope 0: no ALiBi. */
TSRI_INLINE double tsri_score_f64(double dot, double scale, double cap, double bias, double slope,
                                  int64_t distance) {
  double s = scale * dot;
  if (cap > 0) s = cap * tanh(s / cap);
  return s + bias - slope * (double)distance;
}

/* The same in float32: the scalar form that vector forms are tested against. */
TSRI_INLINE float tsri_score_f32(float dot, float scale, float cap, float bias, float slope,
                                 int64_t distance) {
  float s = scale * dot;
  if (cap > 0) s = cap * tanhf(s / cap);
  return s + bias - slope * (float)distance;
}

/* d softcap(x) / d x at x = scale * dot. */
TSRI_INLINE double tsri_softcap_grad_f64(double x, double cap) {
  double t;
  if (!(cap > 0)) return 1;
  t = tanh(x / cap);
  return 1 - t * t;
}

TSRI_INLINE float tsri_softcap_grad_f32(float x, float cap) {
  float t;
  if (!(cap > 0)) return 1;
  t = tanhf(x / cap);
  return 1 - t * t;
}

#endif  // TESSERA_COMMON_SCORE_H_
