// SPDX-License-Identifier: Apache-2.0
//
// The keep decision of dropout: a pure function of (seed, offset, b, h, i, j), so that every backend,
// tile shape, pass and process agrees. Philox4x32-10 (Salmon, Moraes, Dror and Shaw, "Parallel random
// numbers: as easy as 1, 2, 3", SC 2011).
//
//   key     = first two words of Philox(counter = (offset_lo, offset_hi, 0, 0), key = seed)
//   counter = (j / 4, i, head_lo, head_hi)  with head = b * Hq + h;  word = j % 4
//   keep    = word >= threshold,  threshold = floor(p_drop * 2^32)
// The key takes the offset in first so that the whole 128-bit counter is left for the element, with
// no field that could wrap.
#ifndef TESSERA_COMMON_DROPOUT_H_
#define TESSERA_COMMON_DROPOUT_H_

#include <stdint.h>

#include "common/platform.h"

typedef struct tsri_philox {
  uint32_t w[4];
} tsri_philox;

typedef struct tsri_dropout_key {
  uint32_t k0, k1;
} tsri_dropout_key;

/* Multipliers and key increments of Philox4x32; vector forms use the same. */
#define TSRI_PHILOX_M0 0xD2511F53u
#define TSRI_PHILOX_M1 0xCD9E8D57u
#define TSRI_PHILOX_W0 0x9E3779B9u
#define TSRI_PHILOX_W1 0xBB67AE85u
#define TSRI_PHILOX_ROUNDS 10

TSRI_INLINE tsri_philox tsri_philox4x32(uint32_t c0, uint32_t c1, uint32_t c2, uint32_t c3,
                                        uint32_t k0, uint32_t k1) {
  tsri_philox out;
  int round;
  for (round = 0; round < TSRI_PHILOX_ROUNDS; ++round) {
    uint64_t p0 = (uint64_t)TSRI_PHILOX_M0 * c0;
    uint64_t p1 = (uint64_t)TSRI_PHILOX_M1 * c2;
    c0 = (uint32_t)(p1 >> 32) ^ c1 ^ k0;
    c1 = (uint32_t)p1;
    c2 = (uint32_t)(p0 >> 32) ^ c3 ^ k1;
    c3 = (uint32_t)p0;
    k0 += TSRI_PHILOX_W0;
    k1 += TSRI_PHILOX_W1;
  }
  out.w[0] = c0;
  out.w[1] = c1;
  out.w[2] = c2;
  out.w[3] = c3;
  return out;
}

/* Key of one run. */
TSRI_INLINE tsri_dropout_key tsri_dropout_key_make(uint64_t seed, uint64_t offset) {
  tsri_philox r = tsri_philox4x32((uint32_t)offset, (uint32_t)(offset >> 32), 0, 0, (uint32_t)seed,
                                  (uint32_t)(seed >> 32));
  tsri_dropout_key key;
  key.k0 = r.w[0];
  key.k1 = r.w[1];
  return key;
}

/* The four words of keys 4 * quad .. 4 * quad + 3. head = b * Hq + h. */
TSRI_INLINE tsri_philox tsri_dropout_words(tsri_dropout_key key, int64_t head, int64_t i,
                                           int64_t quad) {
  return tsri_philox4x32((uint32_t)quad, (uint32_t)i, (uint32_t)head,
                         (uint32_t)((uint64_t)head >> 32), key.k0, key.k1);
}

TSRI_INLINE int tsri_dropout_keep(tsri_dropout_key key, uint64_t threshold, int64_t head, int64_t i,
                                  int64_t j) {
  return tsri_dropout_words(key, head, i, j >> 2).w[j & 3] >= threshold;
}

/* floor(p * 2^32), 0 .. 2^32, exact: a float's 24 bits times a power of two fit a double. */
TSRI_INLINE uint64_t tsri_dropout_threshold(float p) { return (uint64_t)((double)p * 4294967296.0); }

#endif  // TESSERA_COMMON_DROPOUT_H_
