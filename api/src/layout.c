// SPDX-License-Identifier: Apache-2.0
//
// Layout arithmetic. Collision of two regions is a bounded integer problem: is there an x in a box
// with  -b.block < (b.base - a.base) + sum x[k] * step[k] < a.block?  Contiguous axes are folded
// into the blocks and equal steps into one variable first; then a depth-first search from the
// largest step down visits only values that the remaining axes can still bring back into the
// target, at most a few per axis for nested layouts.
#include "layout.h"

#include "common/dtype.h"

/* Differences of addresses plus extents up to 2^63 need more than 64 bits. */
__extension__ typedef __int128 wide;

int tsri_add_overflows(int64_t a, int64_t b, int64_t *out) {
  return __builtin_add_overflow(a, b, out);
}

int tsri_mul_overflows(int64_t a, int64_t b, int64_t *out) {
  return __builtin_mul_overflow(a, b, out);
}

int tsri_layout_dense(const int64_t dim[4], tsr_order order, tsr_dtype dtype, int flags,
                      int64_t stride[4]) {
  const int middle = order == TSR_ORDER_BSHD ? 1 : 2; /* the axis next to D */
  const int outer = 3 - middle;
  int64_t row = flags & TSRI_LAYOUT_ROWS ? 1 : dim[3];
  if (dtype == TSR_DTYPE_BIT) {
    if (tsri_add_overflows(row, 7, &row)) return 1;
    row -= row % 8;
  }
  stride[3] = flags & TSRI_LAYOUT_ROWS ? 0 : 1;
  stride[middle] = row;
  if (tsri_mul_overflows(row, dim[middle], &stride[outer])) return 1;
  if (tsri_mul_overflows(stride[outer], dim[outer], &stride[0])) return 1;
  if (flags & TSRI_LAYOUT_PACKED) stride[0] = 0;
  return 0;
}

int tsri_layout_extent(const int64_t dim[4], const int64_t stride[4], tsr_dtype dtype,
                       int64_t *bytes) {
  int64_t last = 0;
  *bytes = 0;
  for (int a = 0; a < 4; ++a) {
    if (dim[a] == 0) return 0;
  }
  for (int a = 0; a < 4; ++a) {
    int64_t reach;
    if (tsri_mul_overflows(dim[a] - 1, stride[a], &reach)) return 1;
    if (tsri_add_overflows(last, reach, &last)) return 1;
  }
  if (dtype == TSR_DTYPE_BIT) {
    *bytes = last / 8 + 1;
    return 0;
  }
  if (tsri_add_overflows(last, 1, &last)) return 1;
  return tsri_mul_overflows(last, tsri_dtype_bytes(dtype), bytes);
}

/* Axes longer than 1, by ascending stride; returns their number. */
static int axes_by_stride(const int64_t count[4], const int64_t step[4], int order[4]) {
  int n = 0;
  for (int a = 3; a >= 0; --a) {
    if (count[a] <= 1) continue;
    int at = n++;
    for (; at > 0 && step[order[at - 1]] > step[a]; --at) order[at] = order[at - 1];
    order[at] = a;
  }
  return n;
}

int tsri_layout_unique(const int64_t dim[4], const int64_t stride[4], int *axis) {
  int order[4];
  const int n = axes_by_stride(dim, stride, order);
  int64_t reach = 0;
  for (int a = 0; a < 4; ++a) {
    if (dim[a] == 0) return 1;
  }
  for (int k = 0; k < n; ++k) {
    const int a = order[k];
    if (stride[a] <= reach) {
      *axis = a;
      return 0;
    }
    reach += (dim[a] - 1) * stride[a]; /* fits: the extent was checked before */
  }
  return 1;
}

tsri_region tsri_region_of(const void *base, const int64_t dim[4], const int64_t stride[4],
                           tsr_dtype dtype) {
  tsri_region r;
  const int bits = dtype == TSR_DTYPE_BIT;
  r.base = base;
  r.block = bits ? 1 : tsri_dtype_bytes(dtype);
  for (int a = 0; a < 4; ++a) {
    r.count[a] = dim[a];
    /* Steps of axes of length 1 may be anything, also too large for bytes. */
    r.step[a] = dim[a] <= 1 ? 0 : bits ? stride[a] / 8 : stride[a] * r.block;
  }
  if (bits && stride[3] == 1) {
    r.count[3] = (dim[3] + 7) / 8;
    r.step[3] = 1;
  }
  return r;
}

tsri_region tsri_region_flat(const void *base, int64_t bytes) {
  const tsri_region r = {base, bytes, {1, 1, 1, 1}, {0, 0, 0, 0}};
  return r;
}

/* One variable of the search: z in [lo, hi], contributing z * step. */
typedef struct search_axis {
  int64_t step;
  wide lo, hi;
} search_axis;

typedef struct search {
  int axes;
  search_axis axis[8];
  wide rest_lo[9], rest_hi[9]; /* what axes k .. can contribute */
  wide target_lo, target_hi;
  int budget; /* values still tried before giving up */
} search;

static wide floor_div(wide a, wide b) {
  return a >= 0 ? a / b : -((-a + b - 1) / b);
}
static wide ceil_div(wide a, wide b) {
  return -floor_div(-a, b);
}

static int search_from(search *s, int k, wide sum) {
  if (k == s->axes) return sum >= s->target_lo && sum <= s->target_hi;
  const search_axis *x = &s->axis[k];
  wide lo = ceil_div(s->target_lo - sum - s->rest_hi[k + 1], x->step);
  wide hi = floor_div(s->target_hi - sum - s->rest_lo[k + 1], x->step);
  if (lo < x->lo) lo = x->lo;
  if (hi > x->hi) hi = x->hi;
  for (wide z = lo; z <= hi; ++z) {
    if (--s->budget < 0) return 0;
    if (search_from(s, k + 1, sum + z * x->step)) return 1;
  }
  return 0;
}

/* Folds axes that continue the block without a gap into it; returns 0 for an empty region. */
static int compact(tsri_region *r) {
  int order[4];
  const int n = axes_by_stride(r->count, r->step, order);
  for (int a = 0; a < 4; ++a) {
    if (r->count[a] == 0) return 0;
  }
  for (int k = 0; k < n; ++k) {
    const int a = order[k];
    if (r->step[a] > r->block) break;
    r->block += (r->count[a] - 1) * r->step[a];
    r->count[a] = 1;
  }
  return r->block > 0;
}

/* Adds the axes of a region to the search, sign * z with 0 <= z < count. */
static void add_axes(search *s, const tsri_region *r, int sign) {
  for (int a = 0; a < 4; ++a) {
    if (r->count[a] <= 1 || r->step[a] == 0) continue;
    const wide reach = r->count[a] - 1;
    int k = 0;
    while (k < s->axes && s->axis[k].step > r->step[a]) ++k;
    if (k == s->axes || s->axis[k].step != r->step[a]) {
      for (int m = s->axes++; m > k; --m) s->axis[m] = s->axis[m - 1];
      s->axis[k].step = r->step[a];
      s->axis[k].lo = s->axis[k].hi = 0;
    }
    if (sign > 0) {
      s->axis[k].hi += reach;
    } else {
      s->axis[k].lo -= reach;
    }
  }
}

/* Most tensors are apart as a whole, which needs no search. */
static int ranges_meet(const tsri_region *a, const tsri_region *b) {
  wide end_a = (wide)(uintptr_t)a->base + a->block, end_b = (wide)(uintptr_t)b->base + b->block;
  for (int k = 0; k < 4; ++k) {
    if (a->count[k] > 1) end_a += (wide)(a->count[k] - 1) * a->step[k];
    if (b->count[k] > 1) end_b += (wide)(b->count[k] - 1) * b->step[k];
  }
  return (wide)(uintptr_t)a->base < end_b && (wide)(uintptr_t)b->base < end_a;
}

int tsri_regions_collide(const tsri_region *a, const tsri_region *b) {
  tsri_region x = *a, y = *b;
  search s;
  if (!ranges_meet(a, b)) return 0;
  if (!compact(&x) || !compact(&y)) return 0;
  s.axes = 0;
  add_axes(&s, &x, -1);
  add_axes(&s, &y, 1);
  s.target_lo = 1 - (wide)y.block;
  s.target_hi = (wide)x.block - 1;
  s.rest_lo[s.axes] = s.rest_hi[s.axes] = 0;
  for (int k = s.axes - 1; k >= 0; --k) {
    s.rest_lo[k] = s.rest_lo[k + 1] + s.axis[k].lo * s.axis[k].step;
    s.rest_hi[k] = s.rest_hi[k + 1] + s.axis[k].hi * s.axis[k].step;
  }
  s.budget = 20000;
  return search_from(&s, 0, (wide)(uintptr_t)y.base - (wide)(uintptr_t)x.base);
}
