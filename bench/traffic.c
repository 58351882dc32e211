// SPDX-License-Identifier: Apache-2.0
// Cache-miss counters through perf_event_open (see traffic.h).
#define _GNU_SOURCE
#include "traffic.h"

#include <errno.h>
#include <linux/perf_event.h>
#include <omp.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

enum { kLineBytes = 64 };

// Counts misses of the calling thread in user mode.
static int open_counter(void) {
  struct perf_event_attr attributes;
  memset(&attributes, 0, sizeof attributes);
  attributes.type = PERF_TYPE_HARDWARE;
  attributes.size = sizeof attributes;
  attributes.config = PERF_COUNT_HW_CACHE_MISSES;
  attributes.exclude_kernel = 1;
  attributes.exclude_hv = 1;
  return (int)syscall(SYS_perf_event_open, &attributes, 0, -1, -1, PERF_FLAG_FD_CLOEXEC);
}

bool bench_traffic_begin(bench_traffic *traffic, int threads, char *reason, size_t capacity) {
  traffic->threads = threads > 0 ? threads : omp_get_max_threads();
  if (traffic->threads > TRAFFIC_THREADS_MAX) traffic->threads = TRAFFIC_THREADS_MAX;
  for (int i = 0; i < traffic->threads; ++i) traffic->counters[i] = -1;
  int error = 0;
#pragma omp parallel num_threads(traffic->threads) reduction(max : error)
  {
    int fd = open_counter();
    if (fd < 0) error = errno;
    traffic->counters[omp_get_thread_num()] = fd;
  }
  if (error == 0) return true;
  bench_traffic_end(traffic);
  snprintf(reason, capacity, "no cache-miss counter here: %s", strerror(error));
  return false;
}

double bench_traffic_end(bench_traffic *traffic) {
  double lines = 0;
  for (int i = 0; i < traffic->threads; ++i) {
    uint64_t count = 0;
    if (traffic->counters[i] < 0) continue;
    if (read(traffic->counters[i], &count, sizeof count) == (ssize_t)sizeof count) {
      lines += (double)count;
    }
    close(traffic->counters[i]);
    traffic->counters[i] = -1;
  }
  return lines * kLineBytes;
}
