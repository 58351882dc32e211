// SPDX-License-Identifier: Apache-2.0
// Probes (see probe.h). Twelve independent accumulators hide the latency of a fused multiply-add on
// every core in use (latency 4, two per cycle: eight are needed). This file is compiled with
// contraction of a * x + y allowed, which the library's own sources are not.
#define _GNU_SOURCE
#include "probe.h"

#include <omp.h>
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

enum { kSamples = 7, kChains = 12 };

// A peak is what the machine can do when nothing disturbs it: the best sample, not the median.
static double best_of(const double rate[kSamples]) {
  double best = 0;
  for (int s = 0; s < kSamples; ++s) best = rate[s] > best ? rate[s] : best;
  return best;
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

static double measure_flops(fma_fn fma, int threads) {
  int64_t rounds = 1 << 16;
  double begin = bench_now();
  fma(rounds);
  double once = bench_now() - begin;
  rounds = (int64_t)((double)rounds * 0.04 / (once > 1e-6 ? once : 1e-6)) + 1;
  double rate[kSamples];
  for (int s = 0; s < kSamples; ++s) {
    double flops = 0;
    begin = bench_now();
#pragma omp parallel num_threads(threads) reduction(+ : flops)
    flops += fma(rounds);
    rate[s] = flops / (bench_now() - begin);
  }
  return best_of(rate);
}

typedef uint64_t (*sum_fn)(const uint64_t *data, int64_t count);

// Sum of a block in eight chains: loads, not additions, are the limit. Vectors as wide as the machine
// has, so that few instructions keep many cache lines under way.
#define DEFINE_SUM(name, bytes, attribute)                                                \
  attribute static uint64_t name(const uint64_t *data, int64_t count) {                   \
    typedef uint64_t vec __attribute__((vector_size(bytes)));                             \
    enum { kWords = (bytes) / 8 };                                                        \
    vec s0 = {0}, s1 = s0, s2 = s0, s3 = s0, s4 = s0, s5 = s0, s6 = s0, s7 = s0;          \
    for (int64_t i = 0; i + 8 * kWords <= count; i += 8 * kWords) {                       \
      const vec *v = (const vec *)(data + i);                                             \
      s0 += v[0], s1 += v[1], s2 += v[2], s3 += v[3];                                     \
      s4 += v[4], s5 += v[5], s6 += v[6], s7 += v[7];                                     \
    }                                                                                     \
    s0 += s1 + s2 + s3 + s4 + s5 + s6 + s7;                                               \
    uint64_t sum = 0;                                                                     \
    for (int k = 0; k < kWords; ++k) sum += s0[k];                                        \
    return sum;                                                                           \
  }

#if defined(__x86_64__)
DEFINE_SUM(sum_512, 64, __attribute__((target("avx512f"))))
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

// Reads an array far larger than any cache, or an eighth of memory if that is less, in large pages
// where the system gives them.
static double measure_read(int threads, int64_t *bytes) {
  const int64_t huge = (int64_t)1 << 21;
  int64_t size = (int64_t)1 << 30;
  long pages = sysconf(_SC_PHYS_PAGES), page = sysconf(_SC_PAGESIZE);
  while (pages > 0 && size > (int64_t)pages * page / 8) size /= 2;
  *bytes = size;
  uint64_t *data = aligned_alloc((size_t)huge, (size_t)((size + huge - 1) / huge * huge));
  if (data == NULL) return 0;
#ifdef MADV_HUGEPAGE
  madvise(data, (size_t)size, MADV_HUGEPAGE);
#endif
  int64_t chunk = size / 8 / threads / 512 * 512;
  sum_fn sum = pick_sum();
#pragma omp parallel num_threads(threads)
  memset(data + chunk * omp_get_thread_num(), 1, (size_t)chunk * 8);
  double rate[kSamples];
  uint64_t total = 0;
  for (int s = 0; s < kSamples; ++s) {
    double begin = bench_now();
#pragma omp parallel num_threads(threads) reduction(+ : total)
    total += sum(data + chunk * omp_get_thread_num(), chunk);
    rate[s] = (double)chunk * 8 * threads / (bench_now() - begin);
  }
  volatile uint64_t sink = total;
  (void)sink;
  free(data);
  return best_of(rate);
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
  fma_fn fma = pick_fma(&probe->isa);
  probe->clock_hz = bench_probe_clock();
  probe->flops_f32 = measure_flops(fma, probe->threads);
  probe->read_bytes = measure_read(probe->threads, &probe->read_array);
}
