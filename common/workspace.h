// SPDX-License-Identifier: Apache-2.0
//
// Cutting one block of temporary memory into aligned arrays. The same sequence of takes is written
// once and run twice: with base NULL it only counts (when a plan is made, to tell the size), with
// the caller's workspace it hands out pointers. Sizes saturate instead of wrapping, so that an
// impossible problem yields an impossible size and is refused, never a small one.
#ifndef TESSERA_COMMON_WORKSPACE_H_
#define TESSERA_COMMON_WORKSPACE_H_

#include <stddef.h>
#include <stdint.h>

#include "common/platform.h"

/* Alignment of a workspace and of every array in it: a cache line, and the widest vector. */
#define TSRI_WORKSPACE_ALIGNMENT 64

typedef struct tsri_workspace {
  unsigned char *base; /* NULL: count only */
  int64_t used;        /* bytes handed out; INT64_MAX: too much */
} tsri_workspace;

/* a * b for non-negative numbers, INT64_MAX if that does not fit. */
TSRI_INLINE int64_t tsri_mul_sat(int64_t a, int64_t b) {
  if (a > 0 && b > INT64_MAX / a) return INT64_MAX;
  return a * b;
}

/* Bytes rounded up to the alignment, saturating. */
TSRI_INLINE int64_t tsri_workspace_round(int64_t bytes) {
  if (bytes > INT64_MAX - (TSRI_WORKSPACE_ALIGNMENT - 1)) return INT64_MAX;
  return (bytes + (TSRI_WORKSPACE_ALIGNMENT - 1)) / TSRI_WORKSPACE_ALIGNMENT *
         TSRI_WORKSPACE_ALIGNMENT;
}

/* count elements of size bytes each; NULL while only counting. */
TSRI_INLINE void *tsri_workspace_take(tsri_workspace *ws, int64_t count, int64_t size) {
  const int64_t bytes = tsri_workspace_round(tsri_mul_sat(count, size));
  void *block = ws->base ? ws->base + ws->used : NULL;
  ws->used = bytes > INT64_MAX - ws->used ? INT64_MAX : ws->used + bytes;
  return block;
}

#endif  // TESSERA_COMMON_WORKSPACE_H_
