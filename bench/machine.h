// SPDX-License-Identifier: Apache-2.0
// Facts about the machine that belong to every record: processor, threads, caches, memory,
// compiler. Read from the operating system; what it does not say is 0 or "unknown".
#ifndef TESSERA_BENCH_MACHINE_H_
#define TESSERA_BENCH_MACHINE_H_

#include <jansson.h>
#include <stdbool.h>

typedef struct bench_machine {
  char cpu[128];
  char architecture[32];
  char kernel_version[96];
  char compiler[96];
  char governor[32];  // frequency governor of the first processor, "unknown" if not shown
  int threads;        // processors this process may use
  double l1d_bytes, l2_bytes, l3_bytes, memory_bytes;
} bench_machine;

void bench_machine_read(bench_machine *machine);
json_t *bench_machine_json(const bench_machine *machine);

#endif  // TESSERA_BENCH_MACHINE_H_
