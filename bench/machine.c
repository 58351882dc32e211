// SPDX-License-Identifier: Apache-2.0
// Machine facts from /proc, /sys and uname (see machine.h).
#define _GNU_SOURCE
#include "machine.h"

#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/utsname.h>
#include <unistd.h>

static bool read_line(const char *path, char *text, size_t capacity) {
  FILE *file = fopen(path, "r");
  if (file == NULL) return false;
  bool ok = fgets(text, (int)capacity, file) != NULL;
  fclose(file);
  if (ok) text[strcspn(text, "\n")] = 0;
  return ok;
}

static void read_cpu_name(char *out, size_t capacity) {
  snprintf(out, capacity, "unknown processor");
  FILE *file = fopen("/proc/cpuinfo", "r");
  if (file == NULL) return;
  char line[512];
  while (fgets(line, sizeof line, file) != NULL) {
    char *colon = strchr(line, ':');
    if (strncmp(line, "model name", 10) != 0 || colon == NULL) continue;
    line[strcspn(line, "\n")] = 0;
    snprintf(out, capacity, "%.100s", colon + 1 + strspn(colon + 1, " "));
    break;
  }
  fclose(file);
}

// Sizes stand as "48K"; the data or unified cache of each level of the first processor.
static void read_caches(bench_machine *machine) {
  for (int i = 0; i < 8; ++i) {
    char path[128], level[16], type[32], size[32];
    snprintf(path, sizeof path, "/sys/devices/system/cpu/cpu0/cache/index%d/level", i);
    if (!read_line(path, level, sizeof level)) break;
    snprintf(path, sizeof path, "/sys/devices/system/cpu/cpu0/cache/index%d/type", i);
    if (!read_line(path, type, sizeof type) || strcmp(type, "Instruction") == 0) continue;
    snprintf(path, sizeof path, "/sys/devices/system/cpu/cpu0/cache/index%d/size", i);
    if (!read_line(path, size, sizeof size)) continue;
    char *unit;
    double bytes = strtod(size, &unit);
    if (*unit == 'K') bytes *= 1024.0;
    if (*unit == 'M') bytes *= 1024.0 * 1024.0;
    double *slot = level[0] == '1'   ? &machine->l1d_bytes
                   : level[0] == '2' ? &machine->l2_bytes
                                     : &machine->l3_bytes;
    *slot = bytes;
  }
}

void bench_machine_read(bench_machine *machine) {
  *machine = (bench_machine){.threads = 1};
  read_cpu_name(machine->cpu, sizeof machine->cpu);
  struct utsname name;
  if (uname(&name) == 0) {
    snprintf(machine->architecture, sizeof machine->architecture, "%.31s", name.machine);
    snprintf(machine->kernel_version, sizeof machine->kernel_version, "%.95s", name.release);
  }
#if defined(__clang__)
  snprintf(machine->compiler, sizeof machine->compiler, "clang %s", __clang_version__);
#elif defined(__GNUC__)
  snprintf(machine->compiler, sizeof machine->compiler, "gcc %s", __VERSION__);
#else
  snprintf(machine->compiler, sizeof machine->compiler, "unknown");
#endif
  if (!read_line("/sys/devices/system/cpu/cpu0/cpufreq/scaling_governor", machine->governor,
                 sizeof machine->governor)) {
    snprintf(machine->governor, sizeof machine->governor, "unknown");
  }
  cpu_set_t set;
  if (sched_getaffinity(0, sizeof set, &set) == 0) machine->threads = CPU_COUNT(&set);
  long pages = sysconf(_SC_PHYS_PAGES), page = sysconf(_SC_PAGESIZE);
  if (pages > 0 && page > 0) machine->memory_bytes = (double)pages * (double)page;
  read_caches(machine);
}

json_t *bench_machine_json(const bench_machine *m) {
  return json_pack("{s:s, s:s, s:s, s:s, s:s, s:i, s:f, s:f, s:f, s:f}", "cpu", m->cpu,
                   "architecture", m->architecture, "linux", m->kernel_version, "compiler",
                   m->compiler, "governor", m->governor, "threads", m->threads, "l1d_bytes",
                   m->l1d_bytes, "l2_bytes", m->l2_bytes, "l3_bytes", m->l3_bytes, "memory_bytes",
                   m->memory_bytes);
}
