// SPDX-License-Identifier: Apache-2.0
// What the machine can do, measured in the same run as what is compared with it: float32 fused
// multiply-adds per second and how they grow with threads, bytes per second read, the core clock.
//
// A rate is work done in a window of time by threads that all work through it, each timed by
// itself: one thread that starts late or is held up costs its own share, not everybody's.
#ifndef TESSERA_BENCH_PROBE_H_
#define TESSERA_BENCH_PROBE_H_

#include <stdint.h>

typedef struct bench_rate {
  double best, median, least;  // per second; 0: not measured
  int samples;
} bench_rate;

typedef struct bench_scaling {
  int threads;
  double flops;  // FLOP/s, best window
} bench_scaling;

enum { BENCH_SCALING_MAX = 16 };

typedef struct bench_probe {
  double flops_f32;   // FLOP/s over all threads, best window
  double read_bytes;  // bytes/s over all threads, best window
  double clock_hz;    // of one core under scalar load; 0 where it cannot be told
  int threads;
  const char *isa;     // vector width the FMA probe used
  int64_t read_array;  // bytes of the array that was read
  bench_rate fma, read;
  bench_scaling scaling[BENCH_SCALING_MAX];  // 1, 2, 4, ... threads and `threads` itself
  int scalings;
} bench_probe;

// About one second of work on `threads` threads (0: all).
void bench_probe_run(bench_probe *probe, int threads);

// FLOP/s of one window; between the samples of a measurement it tells what those minutes allow.
double bench_probe_fma(int threads, double seconds);

// bytes/s read from an array of `bytes` that every pass goes through whole: what the cache or the
// memory that holds it delivers. Best window; 0 when memory does not suffice.
double bench_probe_read(int threads, int64_t bytes);

// The clock alone, a few milliseconds.
double bench_probe_clock(void);

// Sorts the samples.
bench_rate bench_rate_of(double *samples, int count);

double bench_now(void);  // monotonic seconds

#endif  // TESSERA_BENCH_PROBE_H_
