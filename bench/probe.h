// SPDX-License-Identifier: Apache-2.0
// What the machine can do, measured in the same run as what is compared with it: float32 fused
// multiply-adds per second, bytes per second read from memory, and the core clock.
//
// The roofline of a record is the larger of FLOPs over the FMA rate and bytes over the read rate.
#ifndef TESSERA_BENCH_PROBE_H_
#define TESSERA_BENCH_PROBE_H_

#include <stdint.h>

typedef struct bench_probe {
  double flops_f32;   // FLOP/s over all threads, best of seven
  double read_bytes;  // bytes/s over all threads, best of seven
  double clock_hz;    // of one core under scalar load; 0 where it cannot be told
  int threads;
  const char *isa;     // vector width the FMA probe used
  int64_t read_array;  // bytes of the array that was read
} bench_probe;

// About one second of work on `threads` threads (0: all).
void bench_probe_run(bench_probe *probe, int threads);

// The clock alone, a few milliseconds.
double bench_probe_clock(void);

double bench_now(void);  // monotonic seconds

#endif  // TESSERA_BENCH_PROBE_H_
