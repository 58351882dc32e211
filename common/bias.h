// SPDX-License-Identifier: Apache-2.0
//
// What is added to a score: the address of a bias element, and the linear bias of ALiBi (Press, Smith
// and Lewis, "Train short, test long", 2022), whose distance is always measured from the bottom-right
// diagonal, whichever corner the causal mask uses, so that a cached and an uncached run agree.
#ifndef TESSERA_COMMON_BIAS_H_
#define TESSERA_COMMON_BIAS_H_

#include <stdint.h>

#include "common/platform.h"

/* Element offset in a [B, Hq, Sq, Sk] tensor (bias, dBias, mask); broadcast axes have stride 0. */
TSRI_INLINE int64_t tsri_pair_offset(const int64_t stride[4], int64_t b, int64_t h, int64_t i,
                                     int64_t j) {
  return b * stride[0] + h * stride[1] + i * stride[2] + j * stride[3];
}

/* |i + Sk - Sq - j|, what the slope multiplies. */
TSRI_INLINE int64_t tsri_alibi_distance(int64_t i, int64_t j, int64_t sq, int64_t sk) {
  int64_t d = i + sk - sq - j;
  return d < 0 ? -d : d;
}

/* Whether a mask element is set. bits: TSR_DTYPE_BIT (offset counts bits), else bytes. */
TSRI_INLINE int tsri_mask_element(const void *mask, int bits, int64_t offset) {
  const uint8_t *bytes = (const uint8_t *)mask;
  return bits ? (bytes[offset >> 3] >> (offset & 7)) & 1 : bytes[offset] != 0;
}

#endif  // TESSERA_COMMON_BIAS_H_
