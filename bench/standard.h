// SPDX-License-Identifier: Apache-2.0
// Standard attention, the thing that exact tiled attention is compared with: S = Q K^T, P =
// softmax(S), O = P V as three passes over a score matrix that is stored in memory.
//
// Products are register-blocked and vectorised for the processor at hand, exponentials too, and all
// threads work; 16-bit inputs are widened to float32 once. It is meant as an opponent, not a straw
// man. Score matrices of as many heads as fit a gigabyte are held at once.
#ifndef TESSERA_BENCH_STANDARD_H_
#define TESSERA_BENCH_STANDARD_H_

#include <stdbool.h>
#include <stdint.h>

#include <tessera/tessera.h>

typedef struct standard_problem {
  int64_t batch, heads_q, heads_kv, seq_q, seq_k, dim_qk, dim_v;
  tsr_dtype dtype;  // F32, F16 or BF16, of q, k, v and o
  const void *q, *k, *v;
  int64_t q_stride[3], k_stride[3], v_stride[3], o_stride[3];  // B, H, S; the last stride is 1
  void *o;
  float *lse;           // NULL, or dense [B, Hq, Sq]
  float scale;          // resolved, not 0
  float softcap;        // 0: none
  int64_t diagonal;     // key j is allowed when i + diagonal - left <= j <= i + diagonal + right
  int64_t left, right;  // TSR_UNBOUNDED: no bound
  int threads;          // 0: all
} standard_problem;

typedef struct standard_state standard_state;

// Allocates the score matrices and widened copies; NULL when memory does not suffice.
standard_state *standard_create(const standard_problem *problem);
void standard_run(standard_state *state);
void standard_destroy(standard_state *state);

// Bytes that it stores and loads at least: inputs, output, and the score matrix written and read in
// each of the three passes.
double standard_bytes(const standard_problem *problem);

#endif  // TESSERA_BENCH_STANDARD_H_
