// SPDX-License-Identifier: Apache-2.0
// Probes (see probe.h). Twelve independent accumulators hide the latency of a fused multiply-add on
// every core in use (latency 4, two per cycle: eight are needed). This file is compiled with
// contraction of a * x + y allowed, which the library's own sources are not.
#define _GNU_SOURCE
#include "probe.h"

#include <omp.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

double bench_now(void) {
  struct timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

enum { kSamples = 11, kReadSamples = 5, kChains = 12 };
static const double kWindow = 0.02;  // seconds

static int ascending(const void *a, const void *b) {
  double x = *(const double *)a, y = *(const double *)b;
  return x < y ? -1 : x > y;
}

bench_rate bench_rate_of(double *samples, int count) {
  if (count < 1) return (bench_rate){.samples = 0};
  qsort(samples, (size_t)count, sizeof samples[0], ascending);
  return (bench_rate){.best = samples[count - 1],
                      .median = 0.5 * (samples[(count - 1) / 2] + samples[count / 2]),
                      .least = samples[0],
                      .samples = count};
}

typedef double (*fma_fn)(int64_t rounds);

// x and y keep every chain near y / (1 - x): no overflow, no denormals.
#define DEFINE_FMA(name, bytes, attribute)                                       \
  attribute static double name(int64_t rounds) {                                 \
    typedef float vec __attribute__((vector_size(bytes)));                       \
    enum { kLanes = (bytes) / 4 };                                               \
    volatile float seed = 0.5f;                                                  \
    vec x, y, a0, a1, a2, a3, a4, a5, a6, a7, a8, a9, a10, a11;                  \
    for (int i = 0; i < kLanes; ++i) {                                           \
      float s = seed + (float)i;                                                 \
      x[i] = seed + 0.4f;                                                        \
      y[i] = seed;                                                               \
      a0[i] = s, a1[i] = s + 1, a2[i] = s + 2, a3[i] = s + 3, a4[i] = s + 4;     \
      a5[i] = s + 5, a6[i] = s + 6, a7[i] = s + 7, a8[i] = s + 8, a9[i] = s + 9; \
      a10[i] = s + 10, a11[i] = s + 11;                                          \
    }                                                                            \
    for (int64_t r = 0; r < rounds; ++r) {                                       \
      a0 = a0 * x + y, a1 = a1 * x + y, a2 = a2 * x + y, a3 = a3 * x + y;        \
      a4 = a4 * x + y, a5 = a5 * x + y, a6 = a6 * x + y, a7 = a7 * x + y;        \
      a8 = a8 * x + y, a9 = a9 * x + y, a10 = a10 * x + y, a11 = a11 * x + y;    \
    }                                                                            \
    vec sum = a0 + a1 + a2 + a3 + a4 + a5 + a6 + a7 + a8 + a9 + a10 + a11;       \
    volatile float sink = sum[0];                                                \
    (void)sink;                                                                  \
    return (double)rounds * kChains * kLanes * 2;                                \
  }

#if defined(__x86_64__)
DEFINE_FMA(fma_512, 64, __attribute__((target("avx512f,avx2,fma"))))
DEFINE_FMA(fma_256, 32, __attribute__((target("avx2,fma"))))
#endif
DEFINE_FMA(fma_128, 16, )

static fma_fn pick_fma(const char **isa) {
#if defined(__x86_64__)
  if (__builtin_cpu_supports("avx512f")) {
    *isa = "512-bit FMA";
    return fma_512;
  }
  if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma")) {
    *isa = "256-bit FMA";
    return fma_256;
  }
  *isa = "128-bit multiply and add";
#else
  *isa = "128-bit FMA";
#endif
  return fma_128;
}

// Work of `chunk` rounds, repeated until the window is over; every thread has its own clock.
static double fma_window(fma_fn fma, int threads, int64_t chunk, double seconds) {
  double rate = 0;
#pragma omp parallel num_threads(threads) reduction(+ : rate)
  {
#pragma omp barrier
    double flops = 0, begin = bench_now(), end = begin;
    while (end < begin + seconds) {
      flops += fma(chunk);
      end = bench_now();
    }
    rate += flops / (end - begin);
  }
  return rate;
}

// Tens of microseconds: short against a window, long against setting up registers and reading a
// clock.
enum { kFmaChunk = 32768 };

double bench_probe_fma(int threads, double seconds) {
  const char *isa;
  fma_fn fma = pick_fma(&isa);
  return fma_window(fma, threads > 0 ? threads : omp_get_max_threads(), kFmaChunk, seconds);
}

// Threads wake and clocks settle: windows until a quarter of a second has passed and the rate has
// stopped rising, a second at most.
static void warm_up(int threads) {
  double begin = bench_now(), best = 0, now = 0;
  do {
    double rate = bench_probe_fma(threads, kWindow);
    bool rising = rate > 1.02 * best;
    best = rate > best ? rate : best;
    now = bench_now() - begin;
    if (now > 0.25 && !rising) break;
  } while (now < 1);
}

static void measure_flops(bench_probe *probe) {
  double sample[kSamples];
  warm_up(probe->threads);
  for (int s = 0; s < kSamples; ++s) sample[s] = bench_probe_fma(probe->threads, kWindow);
  probe->fma = bench_rate_of(sample, kSamples);
  probe->flops_f32 = probe->fma.best;
  // Powers of two, then all: threads that are siblings of one core show here.
  for (int n = 1; n < probe->threads && probe->scalings < BENCH_SCALING_MAX - 1; n *= 2) {
    double best = 0;
    for (int s = 0; s < 3; ++s) {
      double rate = bench_probe_fma(n, kWindow);
      best = rate > best ? rate : best;
    }
    probe->scaling[probe->scalings++] = (bench_scaling){n, best};
  }
  probe->scaling[probe->scalings++] = (bench_scaling){probe->threads, probe->flops_f32};
}

typedef uint64_t (*sum_fn)(const uint64_t *data, int64_t count);

// Sum as integers in eight chains from four places, so that loads, not additions or one row of
// prefetches, are the limit. count is a multiple of 4 * 64.
#define DEFINE_SUM(name, bytes, attribute)                                          \
  attribute static uint64_t name(const uint64_t *data, int64_t count) {             \
    typedef uint64_t vec __attribute__((vector_size(bytes)));                       \
    enum { kLanes = (bytes) / 8 };                                                  \
    int64_t quarter = count / 4;                                                    \
    const uint64_t *a = data, *b = a + quarter, *c = b + quarter, *d = c + quarter; \
    vec s0 = {0}, s1 = s0, s2 = s0, s3 = s0, s4 = s0, s5 = s0, s6 = s0, s7 = s0;    \
    for (int64_t i = 0; i < quarter; i += 2 * kLanes) {                             \
      s0 += *(const vec *)(a + i), s1 += *(const vec *)(a + i + kLanes);            \
      s2 += *(const vec *)(b + i), s3 += *(const vec *)(b + i + kLanes);            \
      s4 += *(const vec *)(c + i), s5 += *(const vec *)(c + i + kLanes);            \
      s6 += *(const vec *)(d + i), s7 += *(const vec *)(d + i + kLanes);            \
    }                                                                               \
    vec sum = s0 + s1 + s2 + s3 + s4 + s5 + s6 + s7;                                \
    uint64_t total = 0;                                                             \
    for (int i = 0; i < kLanes; ++i) total += sum[i];                               \
    return total;                                                                   \
  }

#if defined(__x86_64__)
DEFINE_SUM(sum_512, 64, __attribute__((target("avx512f,avx2"))))
DEFINE_SUM(sum_256, 32, __attribute__((target("avx2"))))
#endif
DEFINE_SUM(sum_128, 16, )

static sum_fn pick_sum(void) {
#if defined(__x86_64__)
  if (__builtin_cpu_supports("avx512f")) return sum_512;
  if (__builtin_cpu_supports("avx2")) return sum_256;
#endif
  return sum_128;
}

// Whole passes over each thread's own part, as many as fill the window.
static double read_window(sum_fn sum, const uint64_t *data, int64_t part, int threads,
                          double seconds, uint64_t *sink) {
  double rate = 0;
  uint64_t total = 0;
#pragma omp parallel num_threads(threads) reduction(+ : rate, total)
  {
    const uint64_t *own = data + part * omp_get_thread_num();
#pragma omp barrier
    double bytes = 0, begin = bench_now(), end = begin;
    while (end < begin + seconds) {
      total += sum(own, part);
      bytes += (double)part * 8;
      end = bench_now();
    }
    rate += bytes / (end - begin);
  }
  *sink += total;
  return rate;
}

// Large pages where the system gives them: address translation is not what is measured. Each thread
// touches its part first, so that the part lies in its own node's memory.
static bench_rate measure_read(int threads, int64_t bytes) {
  const int64_t step = 4 * 64, page = 1 << 21;
  double sample[kReadSamples];
  int64_t part = bytes / 8 / threads / step * step;
  if (part < step) part = step;
  size_t size = (size_t)((part * 8 * threads + page - 1) / page * page);
  uint64_t *data = aligned_alloc((size_t)page, size);
  if (data == NULL) return (bench_rate){.samples = 0};
#ifdef MADV_HUGEPAGE
  madvise(data, size, MADV_HUGEPAGE);
#endif
#pragma omp parallel num_threads(threads)
  memset(data + part * omp_get_thread_num(), 1, (size_t)part * 8);
  sum_fn sum = pick_sum();
  uint64_t total = 0;
  read_window(sum, data, part, threads, kWindow, &total);
  for (int s = 0; s < kReadSamples; ++s) {
    sample[s] = read_window(sum, data, part, threads, kWindow, &total);
  }
  volatile uint64_t sink = total;
  (void)sink;
  free(data);
  return bench_rate_of(sample, kReadSamples);
}

double bench_probe_read(int threads, int64_t bytes) {
  return measure_read(threads > 0 ? threads : omp_get_max_threads(), bytes).best;
}

// Three times the last-level cache, so that two thirds of each pass come from memory at least; half
// a gibibyte if that is more, an eighth of memory if that is less.
static int64_t read_array_bytes(void) {
  int64_t size = (int64_t)1 << 29;
  long cache = 0;
#ifdef _SC_LEVEL3_CACHE_SIZE
  cache = sysconf(_SC_LEVEL3_CACHE_SIZE);
#endif
  long pages = sysconf(_SC_PHYS_PAGES), page = sysconf(_SC_PAGESIZE);
  if (cache > 0 && 3 * (int64_t)cache > size) size = 3 * (int64_t)cache;
  while (pages > 0 && size > (int64_t)pages * page / 8) size /= 2;
  return size;
}

// A chain of dependent register additions takes one cycle each; additions of a constant would not,
// because newer cores fold them away when they rename registers.
double bench_probe_clock(void) {
#if defined(__x86_64__) || defined(__aarch64__)
  double best = 0;
  for (int s = 0; s < 3; ++s) {
    int64_t rounds = 200000;
    uint64_t value = 1;
    double begin = bench_now();
    for (int64_t r = 0; r < rounds; ++r) {
  #if defined(__x86_64__)
      __asm__ volatile(".rept 16\n\tadd %0, %0\n\t.endr" : "+r"(value));
  #else
      __asm__ volatile(".rept 16\n\tadd %0, %0, %0\n\t.endr" : "+r"(value));
  #endif
    }
    double hz = (double)rounds * 16 / (bench_now() - begin);
    if (hz > best) best = hz;
  }
  return best;
#else
  return 0;
#endif
}

void bench_probe_run(bench_probe *probe, int threads) {
  *probe = (bench_probe){.threads = threads > 0 ? threads : omp_get_max_threads()};
  pick_fma(&probe->isa);
  measure_flops(probe);
  probe->clock_hz = bench_probe_clock();
  probe->read_array = read_array_bytes();
  probe->read = measure_read(probe->threads, probe->read_array);
  probe->read_bytes = probe->read.best;
}
