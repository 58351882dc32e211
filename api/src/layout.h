// SPDX-License-Identifier: Apache-2.0
//
// Arithmetic of layouts, all of it overflow-checked: dense orders to strides, the byte extent of a
// strided tensor, whether a layout addresses an element twice, and whether two strided regions of
// memory share a byte. Knows nothing of attention; validate*.c are the callers.
#ifndef TESSERA_SRC_LAYOUT_H_
#define TESSERA_SRC_LAYOUT_H_

#include "tessera/tessera.h"

/* What a tensor's axes mean to the dense orders. */
enum {
  TSRI_LAYOUT_PACKED = 1, /* no batch axis: stride[0] is 0 */
  TSRI_LAYOUT_ROWS = 2    /* [B, H, S]: the last axis is unused and its stride 0 */
};

/* Non-zero if a + b or a * b does not fit; *out then holds the wrapped value. */
int tsri_add_overflows(int64_t a, int64_t b, int64_t *out);
int tsri_mul_overflows(int64_t a, int64_t b, int64_t *out);

/* Strides of a dense order. BIT: rows start at whole bytes. Non-zero on overflow. */
int tsri_layout_dense(const int64_t dim[4], tsr_order order, tsr_dtype dtype, int flags,
                      int64_t stride[4]);

/* Bytes from the first element to the end of the last; 0 when an axis is empty. BIT: whole bytes.
 * Non-zero when the result or an intermediate does not fit int64. */
int tsri_layout_extent(const int64_t dim[4], const int64_t stride[4], tsr_dtype dtype,
                       int64_t *bytes);

/* Whether every element has its own address, by nesting: with axes longer than 1 in order of
 * stride, each stride must pass the reach of the axes before it. Layouts that interleave axes
 * without nesting are reported as not unique, be they or not. On failure *axis is the axis to
 * blame. */
int tsri_layout_unique(const int64_t dim[4], const int64_t stride[4], int *axis);

/* Memory that a run addresses: blocks of `block` bytes at base + sum x[a] * step[a], 0 <= x[a] <
 * count[a]. No bytes when a count or the block is 0. */
typedef struct tsri_region {
  const void *base;
  int64_t block;
  int64_t count[4];
  int64_t step[4]; /* bytes, >= 0 */
} tsri_region;

/* The region of a tensor whose extent fits. */
tsri_region tsri_region_of(const void *base, const int64_t dim[4], const int64_t stride[4],
                           tsr_dtype dtype);
/* bytes in a row. */
tsri_region tsri_region_flat(const void *base, int64_t bytes);

/* Whether two regions certainly share a byte. Exact for nested layouts (slices of one packed
 * allocation that interleave without touching are found disjoint); for layouts so irregular that
 * the bounded search gives up, the answer is 0. */
int tsri_regions_collide(const tsri_region *a, const tsri_region *b);

#endif  // TESSERA_SRC_LAYOUT_H_
