// SPDX-License-Identifier: Apache-2.0
// How much memory a pass needs besides its tensors: the growth of the highest resident size over
// one call, in a process of its own, so that no earlier allocation hides it.
//
// Tensors (inputs, outputs, gradients) are touched before; LSE, the caller's workspace and whatever
// the library itself allocates count. The system keeps the figure in pages and per processor: it is
// exact to about half a mebibyte.
#ifndef TESSERA_BENCH_PEAK_MEMORY_H_
#define TESSERA_BENCH_PEAK_MEMORY_H_

#include <stdint.h>

#include "bench_attention.h"

typedef struct bench_peak {
  char kernel[128];
  int64_t tensors;    // bytes of Q, K, V, O and, backward, of dO, dQ, dK, dV
  int64_t workspace;  // as the plan asks: the larger of both passes' for backward; 0 for standard
  int64_t lse;        // bytes of LSE, part of extra
  int64_t extra;      // growth of the highest resident size
} bench_peak;

// One measurement in a child process; must be called before this process has started threads.
// standard: standard attention instead (forward only).
bench_status bench_peak_memory(const bench_request *request, bool standard, bench_peak *peak,
                               char *message, size_t capacity);

// The child's part, in bench_attention.c.
bench_status bench_peak_run(const bench_request *request, bool standard, bench_peak *peak,
                            char *message, size_t capacity);

// Most bytes ever resident in this process.
int64_t bench_peak_resident(void);

#endif  // TESSERA_BENCH_PEAK_MEMORY_H_
