// SPDX-License-Identifier: Apache-2.0
// Bytes really fetched from memory by a piece of work, where the machine tells: last-level cache
// misses of every OpenMP thread, counted by the processor, times the line size. Lines brought in by
// the hardware prefetchers are counted or not as the processor's own event defines it. Virtual
// machines and locked-down kernels usually refuse; then the reason is reported instead of a number.
#ifndef TESSERA_BENCH_TRAFFIC_H_
#define TESSERA_BENCH_TRAFFIC_H_

#include <stdbool.h>
#include <stddef.h>

enum { TRAFFIC_THREADS_MAX = 1024 };

typedef struct bench_traffic {
  int threads;
  int counters[TRAFFIC_THREADS_MAX];
} bench_traffic;

// Starts a counter in every thread of the pool that parallel regions of this thread use. False with
// a reason when one cannot be had.
bool bench_traffic_begin(bench_traffic *traffic, int threads, char *reason, size_t capacity);

// Stops counting; bytes since bench_traffic_begin.
double bench_traffic_end(bench_traffic *traffic);

#endif  // TESSERA_BENCH_TRAFFIC_H_
