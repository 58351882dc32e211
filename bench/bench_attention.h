// SPDX-License-Identifier: Apache-2.0
// One benchmark: a dense problem with random inputs is checked against the oracle, then timed.
//
// Protocol (README.md): the result is checked first; warm-up; `repeats` samples, each of as many
// calls as fill `sample_seconds`; median, extremes and quartiles of the time per call. Workspace is
// allocated beforehand; caches are warm, as far as the data fits.
#ifndef TESSERA_BENCH_BENCH_ATTENTION_H_
#define TESSERA_BENCH_BENCH_ATTENTION_H_

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <tessera/tessera.h>

#include "device.h"
#include "probe.h"
#include "tensors.h"

// Sees a checked result: O and LSE of the library (standard false) or O of standard attention.
typedef void (*bench_inspect)(void *user, bool standard, const bench_tensor *o,
                              const bench_tensor *lse);

typedef struct bench_request {
  tsr_context *context;
  tsr_problem problem;  // sizes, scores and masks, layouts of q, k, v, o (dense, either order)
  tsr_pass pass;
  uint64_t seed;  // of the inputs, and of dropout
  int warmup, repeats;
  double sample_seconds;
  bool check;
  bool standard;                  // also time standard attention on the same inputs
  int threads;                    // 0: all
  const bench_tensor *q, *k, *v;  // inputs, dense [B, H, S, D]; NULL: random ones from the seed
  bench_inspect inspect;          // may be NULL
  void *user;
  tsr_device device;                 // where the tensors live
  const bench_device *bench_device;  // of a GPU: its measured copy rate and clocks; may be NULL
  struct bench_session *session;     // of a GPU: keeps tensors between calls; may be NULL
  bool against_last;  // check against the session's last result that passed, if there is one
} bench_request;

enum { BENCH_SAMPLES_MAX = 1000 };

typedef struct bench_times {
  double median, least, most, lower_quartile, upper_quartile;  // seconds per call
  int samples;
  int64_t calls_per_sample;
} bench_times;

typedef struct bench_record {
  tsr_problem problem;
  tsr_pass pass;
  uint64_t seed;
  char backend[64], kernel[128];
  int64_t tile_q, tile_k;
  double flops, bytes, estimate;  // as the plan predicts
  size_t workspace;
  double bytes_measured;  // of one call; negative: see the reason
  char bytes_reason[96];
  bench_times times;
  double clock_before, clock_after;  // Hz; 0 unknown
  bench_rate fma_beside;             // FLOP/s of the machine, one window after each sample
  double read_beside;  // bytes/s of reading an array of K's and V's size; 0: not memory bound
  int64_t read_array;  // its bytes
  const char *check;   // "whole result", "sampled rows", "one head", "not checked"
  double max_error, rms_error, ratio;  // worst output; ratio: error over the contract's bound
  bool standard;
  bench_times standard_times;
  double standard_bytes;
  const bench_device *device;  // NULL: host
  int sets;                    // copies of the tensors that took turns on a device
  bench_clocks clocks_before, clocks_after;
  bool forced;  // the kernel was named
  char best_forced[128];
  double best_forced_seconds;  // of the fastest other kernel by name; 0: none
} bench_record;

typedef enum bench_status {
  BENCH_OK = 0,
  BENCH_REFUSED = 1,  // the library refused the problem, or it cannot be benchmarked
  BENCH_WRONG = 2,    // the result broke its bound; nothing was timed
  BENCH_FAILED = 3    // memory or device
} bench_status;

// Whether the library takes the problem and it can be benchmarked; runs nothing.
bench_status bench_plan(const bench_request *request, char *message, size_t capacity);

// message receives one line unless the status is BENCH_OK.
bench_status bench_attention(const bench_request *request, bench_record *record, char *message,
                             size_t capacity);

// FLOP/s the machine did beside the measurement at best; the probe's before it if there is none.
double bench_fma_rate(const bench_record *record, const bench_probe *probe);

// Seconds of the roofline: FLOPs at that rate or bytes at the read rate, whichever is longer.
double bench_roofline_seconds(const bench_record *record, const bench_probe *probe);

#endif  // TESSERA_BENCH_BENCH_ATTENTION_H_
