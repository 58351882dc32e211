// SPDX-License-Identifier: Apache-2.0
//
// A problem with its tensors, run on the reference backend's vtable directly: no validation and no
// dispatch in between. Tensors are dense and float64 (LSE, maxima, bias and dBias too, which the
// public API keeps at float32: finite differences need the digits) unless a test sets other
// layouts.
#ifndef TESSERA_TESTS_REFERENCE_RIG_H_
#define TESSERA_TESTS_REFERENCE_RIG_H_

#include <stdint.h>

#include "common/dtype.h"
#include "tessera/backend.h"

typedef struct ref_rig {
  tsr_problem p; /* edit after rig_init, then rig_alloc */
  tsr_args a;
  tsr_resolved r;           /* made by rig_alloc */
  int64_t rows_q;           /* rows of the tensor per batch element (packed: in total) */
  int64_t rows_k;           /* likewise; paged: rows of a page */
  int64_t outer_q, outer_k; /* batch elements of the tensors: B, 1 when packed, pages */
  uint64_t seed;
  double *q, *k, *v, *o, *lse, *max_logit, *dout, *dq, *dk, *dv, *bias, *dbias; /* when float64 */
  float *sink, *slopes, *dlse, *dsink;
  void *blocks[64]; /* everything to free */
  int block_count;
} ref_rig;

/* Sizes; all dtypes float64, LSE and maximum wanted, scale 1. */
void rig_init(ref_rig *rig, int64_t batch, int64_t heads_q, int64_t heads_kv, int64_t seq_q,
              int64_t seq_k, int64_t dim_qk, int64_t dim_v);
/* Declares all gradients (dbias and dsink if there is a bias or sink). */
void rig_want_gradients(ref_rig *rig, int with_dlse);
/* Resolves the problem, allocates every tensor it declares, fills inputs with numbers in (-1, 1)
 * and outputs with NaN. Pointers already set in rig.a are kept. */
void rig_alloc(ref_rig *rig);
/* Resolves again after a change of the problem that moves no tensor (scale, window, arrays, ...).
 */
void rig_resolve(ref_rig *rig);
/* Runs a kernel by name in workspace full of NaN, with `threads` threads; fails the test if the
 * backend refuses. */
void rig_run(ref_rig *rig, const char *kernel, int32_t threads);
void rig_forward(ref_rig *rig); /* the oracle */
void rig_backward(ref_rig *rig);
void rig_free(ref_rig *rig);

/* Zeroed memory that rig_free frees. */
void *rig_memory(ref_rig *rig, int64_t bytes);
/* A copy of n 32-bit integers. */
void *rig_ints(ref_rig *rig, const int32_t *values, int64_t n);
/* Next number in (-1, 1), a multiple of 2^-20. */
double rig_random(ref_rig *rig);

/* Element of a tensor by its layout. */
double rig_get(const tsr_layout *layout, const void *data, int64_t b, int64_t h, int64_t s,
               int64_t d);

/* The vtable, a state with that many threads, and the index of a kernel (-1: none). */
const tsr_backend *rig_backend(void);
void *rig_state(int32_t threads);
int32_t rig_kernel(const char *name);

#endif  // TESSERA_TESTS_REFERENCE_RIG_H_
