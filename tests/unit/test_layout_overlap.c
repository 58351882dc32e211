// SPDX-License-Identifier: Apache-2.0
//
// Collision of strided regions: slices that interleave inside one allocation are apart, real
// overlaps are found, and both verdicts agree with marking bytes one by one on random layouts.
#include <criterion/criterion.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "api/src/layout.h"

static int collide(const void *a, const int64_t da[4], const int64_t sa[4], const void *b,
                   const int64_t db[4], const int64_t sb[4], tsr_dtype dtype) {
  const tsri_region x = tsri_region_of(a, da, sa, dtype);
  const tsri_region y = tsri_region_of(b, db, sb, dtype);
  const int forth = tsri_regions_collide(&x, &y);
  cr_expect_eq(forth, tsri_regions_collide(&y, &x), "the verdict depends on the order");
  return forth;
}

static float memory[1 << 14];

/* q, k, v of one [B, S, 3, H, D] tensor. */
Test(layout_overlap, packed_qkv) {
  const int64_t b = 2, s = 7, h = 4, d = 8;
  const int64_t dim[4] = {b, h, s, d};
  const int64_t stride[4] = {s * 3 * h * d, d, 3 * h * d, 1};
  for (int i = 0; i < 3; ++i) {
    for (int j = 0; j < 3; ++j) {
      const int hit =
          collide(memory + i * h * d, dim, stride, memory + j * h * d, dim, stride, TSR_DTYPE_F32);
      cr_expect_eq(hit, i == j, "slices %d and %d", i, j);
    }
  }
  cr_expect(collide(memory, dim, stride, memory + h * d - 1, dim, stride, TSR_DTYPE_F32));
  /* Grouped heads: [S, Hq + 2 Hkv, D] with fewer heads in k and v. */
  const int64_t grouped[4] = {1, 2, s, d};
  const int64_t gq[4] = {0, d, (h + 4) * d, 1};
  const int64_t dq[4] = {1, h, s, d};
  cr_expect_not(collide(memory, dq, gq, memory + h * d, grouped, gq, TSR_DTYPE_F32));
  cr_expect_not(
      collide(memory + h * d, grouped, gq, memory + (h + 2) * d, grouped, gq, TSR_DTYPE_F32));
  cr_expect(collide(memory, dq, gq, memory + (h - 1) * d, grouped, gq, TSR_DTYPE_F32));
}

/* Even and odd elements of one buffer, and a shift by less than an element. */
Test(layout_overlap, elements_interleave) {
  const int64_t dim[4] = {1, 1, 10, 10};
  const int64_t stride[4] = {0, 0, 20, 2};
  cr_expect_not(collide(memory, dim, stride, memory + 1, dim, stride, TSR_DTYPE_F32));
  cr_expect(collide(memory, dim, stride, memory + 2, dim, stride, TSR_DTYPE_F32));
  cr_expect(collide(memory, dim, stride, (char *)memory + 2, dim, stride, TSR_DTYPE_F32));
  cr_expect_not(collide(memory, dim, stride, memory + 200, dim, stride, TSR_DTYPE_F32));
}

Test(layout_overlap, empty_and_broadcast) {
  const int64_t none[4] = {2, 0, 3, 4}, dim[4] = {2, 2, 3, 4};
  const int64_t stride[4] = {24, 12, 4, 1}, zero[4] = {0, 0, 0, 0};
  cr_expect_not(collide(memory, none, stride, memory, dim, stride, TSR_DTYPE_F32));
  cr_expect(collide(memory, dim, zero, memory, dim, stride, TSR_DTYPE_F32));
  cr_expect_not(collide(memory - 1 + 1, dim, zero, memory + 1, dim, stride, TSR_DTYPE_F32));
  /* Unused rows beyond: strides near the end of the address range. */
  const int64_t two[4] = {2, 1, 1, 1}, far[4] = {INT64_C(1) << 60, 0, 0, 0};
  cr_expect_not(collide(memory, two, far, memory + 1, two, far, TSR_DTYPE_F32));
  cr_expect(collide(memory, two, far, memory, two, far, TSR_DTYPE_F32));
}

Test(layout_overlap, bits_are_bytes) {
  const int64_t dim[4] = {1, 1, 4, 13}, stride[4] = {0, 0, 24, 1};
  const char *bytes = (const char *)memory;
  cr_expect(collide(bytes, dim, stride, bytes + 1, dim, stride, TSR_DTYPE_BIT));
  cr_expect_not(collide(bytes, dim, stride, bytes + 2, (const int64_t[4]){1, 1, 4, 8}, stride,
                        TSR_DTYPE_BIT));
}

/* Two dense buffers of many axes in different orders: the search must settle this, not give up. */
Test(layout_overlap, different_strides) {
  const int64_t dim[4] = {3, 5, 7, 11};
  const int64_t bhsd[4] = {385, 77, 11, 1}, bshd[4] = {385, 11, 55, 1};
  const int64_t gaps[4] = {5000, 900, 100, 3};
  cr_expect_not(collide(memory, dim, bhsd, memory + 1155, dim, bshd, TSR_DTYPE_F32));
  cr_expect(collide(memory, dim, bhsd, memory + 1154, dim, bshd, TSR_DTYPE_F32));
  cr_expect(collide(memory, dim, gaps, memory + 5000, dim, bhsd, TSR_DTYPE_F32));
}

static unsigned long long seed = 1;
static int64_t pick(int64_t n) {
  seed = seed * 6364136223846793005ull + 1442695040888963407ull;
  return (int64_t)((seed >> 33) % (unsigned long long)n);
}

enum { SPACE = 4096 };

/* Marks the bytes of a small tensor; returns 1 if one was marked before. */
static int mark(unsigned char map[SPACE], int64_t base, const int64_t dim[4],
                const int64_t stride[4], int size) {
  int hit = 0;
  for (int64_t a = 0; a < dim[0]; ++a)
    for (int64_t b = 0; b < dim[1]; ++b)
      for (int64_t c = 0; c < dim[2]; ++c)
        for (int64_t d = 0; d < dim[3]; ++d)
          for (int i = 0; i < size; ++i) {
            const int64_t at =
                base + i + size * (a * stride[0] + b * stride[1] + c * stride[2] + d * stride[3]);
            cr_assert_lt(at, SPACE);
            hit |= map[at];
            map[at] |= 1;
          }
  return hit;
}

Test(layout_overlap, agrees_with_marking_bytes) {
  static const tsr_dtype dtypes[] = {TSR_DTYPE_F32, TSR_DTYPE_F16, TSR_DTYPE_U8};
  static const int sizes[] = {4, 2, 1};
  int hits = 0, wrong_unique = 0;
  for (int trial = 0; trial < 20000; ++trial) {
    static unsigned char map[SPACE];
    int64_t dim[2][4], stride[2][4], base[2];
    const int t = (int)pick(3);
    for (int k = 0; k < 2; ++k) {
      base[k] = pick(200);
      for (int a = 0; a < 4; ++a) {
        dim[k][a] = 1 + pick(3);
        stride[k][a] = pick(4) ? pick(60) : pick(8);
      }
    }
    if (pick(2)) memcpy(stride[1], stride[0], sizeof stride[0]);
    memset(map, 0, sizeof map);
    const int twice = mark(map, base[0], dim[0], stride[0], sizes[t]);
    int axis = -1;
    const int unique = tsri_layout_unique(dim[0], stride[0], &axis);
    cr_assert(!(unique && twice), "trial %d: a layout that repeats was called unique", trial);
    wrong_unique += !unique && !twice;
    unsigned char other[SPACE];
    memset(other, 0, sizeof other);
    mark(other, base[1], dim[1], stride[1], sizes[t]);
    int expected = 0;
    for (int i = 0; i < SPACE; ++i) expected |= map[i] && other[i];
    const int found = collide((char *)memory + base[0], dim[0], stride[0], (char *)memory + base[1],
                              dim[1], stride[1], dtypes[t]);
    cr_assert_eq(found, expected, "trial %d: found %d, marking says %d", trial, found, expected);
    hits += expected;
  }
  /* The trial set has both verdicts in earnest, and layouts that only look as if they repeat. */
  cr_expect_gt(hits, 2000);
  cr_expect_lt(hits, 18000);
  cr_expect_gt(wrong_unique, 0);
}

Test(layout_overlap, extents) {
  int64_t bytes = -1;
  const int64_t dim[4] = {2, 3, 4, 5}, stride[4] = {60, 20, 5, 1};
  cr_expect_not(tsri_layout_extent(dim, stride, TSR_DTYPE_F16, &bytes));
  cr_expect_eq(bytes, 240);
  const int64_t bit_dim[4] = {1, 1, 2, 9}, bit_stride[4] = {0, 0, 16, 1};
  cr_expect_not(tsri_layout_extent(bit_dim, bit_stride, TSR_DTYPE_BIT, &bytes));
  cr_expect_eq(bytes, 4);
  const int64_t empty[4] = {2, 3, 0, 5}, large[4] = {INT64_MAX, INT64_MAX, INT64_MAX, INT64_MAX};
  cr_expect_not(tsri_layout_extent(empty, large, TSR_DTYPE_F32, &bytes));
  cr_expect_eq(bytes, 0);
  cr_expect(tsri_layout_extent(dim, large, TSR_DTYPE_F32, &bytes));
  int64_t dense[4];
  cr_expect_not(tsri_layout_dense(dim, TSR_ORDER_BHSD, TSR_DTYPE_F32, 0, dense));
  cr_expect_eq(dense[0], 60);
  cr_expect(tsri_layout_dense((const int64_t[4]){1, INT64_MAX, 2, 2}, TSR_ORDER_BHSD, TSR_DTYPE_F32,
                              0, dense));
}
