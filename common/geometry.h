// SPDX-License-Identifier: Apache-2.0
//
// Where things are: the used part of each sequence (fixed, packed, padded on the left, shorter than
// its slot), and the element offset of a row of Q, K, V, O, LSE in it, paged or not. All arithmetic
// is 64 bit. Lengths are read from the caller's arrays here and nowhere else, cut to their slots so
// that bad values on a device can never address outside them.
#ifndef TESSERA_COMMON_GEOMETRY_H_
#define TESSERA_COMMON_GEOMETRY_H_

#include <stddef.h>
#include <stdint.h>

#include "common/mask.h"
#include "common/platform.h"
#include "tessera/tessera.h"

/* One side (queries or keys) of one sequence: rows of the tensor. */
typedef struct tsri_span {
  int64_t slot_begin, slot_len; /* the slot */
  int64_t begin, len;           /* the used part, inside the slot; row 0 of section 1's formulas */
} tsri_span;

/* One sequence of a batch. */
typedef struct tsri_sequence {
  tsri_span q, k;
  int64_t diagonal; /* explicit offset; 0 when the problem has none */
  int64_t prefix;
} tsri_sequence;

/* Element i of an index array; 0 where there is no array. */
TSRI_INLINE int64_t tsri_index(const void *array, tsr_dtype dtype, int64_t i) {
  if (!array) return 0;
  return dtype == TSR_DTYPE_I64 ? ((const int64_t *)array)[i] : (int64_t)((const int32_t *)array)[i];
}

/* The span of sequence b. cu, used, left_pad: arrays or NULL; seq, total: of the problem. */
TSRI_INLINE tsri_span tsri_span_of(const void *cu, const void *used, const void *left_pad,
                                   tsr_dtype dtype, int64_t seq, int64_t total, int64_t b) {
  tsri_span s;
  int64_t pad;
  if (cu) {
    s.slot_begin = tsri_clamp(tsri_index(cu, dtype, b), 0, total);
    s.slot_len = tsri_clamp(tsri_index(cu, dtype, b + 1), s.slot_begin, total) - s.slot_begin;
  } else {
    s.slot_begin = 0;
    s.slot_len = seq;
  }
  pad = tsri_clamp(tsri_index(left_pad, dtype, b), 0, s.slot_len);
  s.begin = s.slot_begin + pad;
  s.len = s.slot_len - pad;
  if (used) s.len = tsri_clamp(tsri_index(used, dtype, b), 0, s.len);
  return s;
}

/* Sequence b of a resolved problem. */
TSRI_INLINE tsri_sequence tsri_sequence_of(const tsr_problem *p, const tsr_args *a, int64_t b) {
  tsri_sequence s;
  s.q = tsri_span_of(a->cu_q, a->used_q, a->left_pad_q, p->index_dtype, p->seq_q, p->total_q, b);
  s.k = tsri_span_of(a->cu_k, a->used_k, a->left_pad_k, p->index_dtype, p->seq_k, p->total_k, b);
  s.diagonal = a->diagonal ? tsri_index(a->diagonal, p->index_dtype, b) : p->diagonal;
  s.prefix = a->prefix ? tsri_index(a->prefix, p->index_dtype, b) : p->prefix;
  return s;
}

/* Mask rule of a sequence. */
TSRI_INLINE tsri_mask_rule tsri_sequence_rule(const tsr_problem *p, const tsri_sequence *s) {
  return tsri_mask_rule_make(p->window.kind, p->window.left, p->window.right, s->diagonal,
                             s->prefix, s->q.len, s->k.len);
}

/* The same for an estimate: of sq queries and sk keys, without what arrays say of a sequence. */
TSRI_INLINE tsri_mask_rule tsri_problem_rule(const tsr_problem *p, int64_t sq, int64_t sk) {
  return tsri_mask_rule_make(p->window.kind, p->window.left, p->window.right, p->diagonal, p->prefix, sq, sk);
}

/* Whether every row of every sequence sees all seq_k keys, by the interval rule. */
TSRI_INLINE int tsri_masks_nothing(const tsr_problem *p) {
  return p->arrays == 0 && p->window.left == TSR_UNBOUNDED && p->window.right == TSR_UNBOUNDED && p->prefix == 0;
}

/* Element offset of row `row` of the TENSOR (span.begin + i) in [B, H, S, D]; stride[0] of a packed
 * tensor is 0, so b does not matter there. */
TSRI_INLINE int64_t tsri_row_offset(const int64_t stride[4], int64_t b, int64_t h, int64_t row) {
  return b * stride[0] + h * stride[1] + row * stride[2];
}

/* Pages of K and V. table NULL: not paged. */
typedef struct tsri_pages {
  const void *table;
  tsr_dtype dtype;
  int64_t size;   /* rows of a page */
  int64_t stride; /* of the table's rows */
  int64_t count;  /* pages in the tensor */
} tsri_pages;

TSRI_INLINE tsri_pages tsri_pages_of(const tsr_problem *p, const tsr_args *a) {
  tsri_pages pages;
  pages.table = p->page_size ? a->page_table : NULL;
  pages.dtype = p->index_dtype;
  pages.size = p->page_size;
  pages.stride = p->page_table_stride;
  pages.count = p->num_pages;
  return pages;
}

/* Element offset of row `row` of K or V, paged or not. A page number outside the tensor is cut to
 * its range: host devices have refused it before, others must not fault. */
TSRI_INLINE int64_t tsri_kv_offset(const tsri_pages *pages, const int64_t stride[4], int64_t b,
                                   int64_t g, int64_t row) {
  int64_t page;
  if (!pages->table) return tsri_row_offset(stride, b, g, row);
  page = tsri_clamp(tsri_index(pages->table, pages->dtype, b * pages->stride + row / pages->size), 0,
                    pages->count - 1);
  return tsri_row_offset(stride, page, g, row % pages->size);
}

/* Rows from `row` on whose offsets continue by stride[2]: to the end of the page, or `left`. */
TSRI_INLINE int64_t tsri_kv_run(const tsri_pages *pages, int64_t row, int64_t left) {
  int64_t run = pages->table ? pages->size - row % pages->size : left;
  return run < left ? run : left;
}

#endif  // TESSERA_COMMON_GEOMETRY_H_
