// SPDX-License-Identifier: Apache-2.0
//
// Cache sizes from sysconf or sysfs, clock and name from cpufreq or /proc/cpuinfo. Nothing is
// measured: a figure must be the same in every process of a machine, because key tiles follow the
// L1 size and results follow key tiles.
#define _GNU_SOURCE
#include "device.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* First line of a file without its newline; 0 if there is none. */
static int read_line(const char *path, char *text, size_t capacity) {
  FILE *file = fopen(path, "r");
  int ok = 0;
  if (!file) return 0;
  if (fgets(text, (int)capacity, file)) {
    text[strcspn(text, "\n")] = '\0';
    ok = 1;
  }
  fclose(file);
  return ok;
}

/* Size of the cache of a level that holds data, from sysfs ("48K"); 0 if unknown. */
static int64_t sysfs_cache(int level) {
  int index;
  for (index = 0; index < 8; ++index) {
    char path[128], text[64], *end;
    int64_t size;
    snprintf(path, sizeof path, "/sys/devices/system/cpu/cpu0/cache/index%d/level", index);
    if (!read_line(path, text, sizeof text) || atoi(text) != level) continue;
    snprintf(path, sizeof path, "/sys/devices/system/cpu/cpu0/cache/index%d/type", index);
    if (!read_line(path, text, sizeof text) || strcmp(text, "Instruction") == 0) continue;
    snprintf(path, sizeof path, "/sys/devices/system/cpu/cpu0/cache/index%d/size", index);
    if (!read_line(path, text, sizeof text)) continue;
    size = strtoll(text, &end, 10);
    if (*end == 'K') size *= 1024;
    if (*end == 'M') size *= 1024 * 1024;
    return size;
  }
  return 0;
}

static int64_t system_value(int name) {
  const long value = sysconf(name);
  return value > 0 ? (int64_t)value : 0;
}

static int64_t first_of(int64_t a, int64_t b, int64_t otherwise) {
  return a > 0 ? a : (b > 0 ? b : otherwise);
}

/* Value of a "key : value" line of /proc/cpuinfo; 0 if it has none. */
static int cpuinfo_value(const char *key, char *text, size_t capacity) {
  char line[512];
  FILE *file = fopen("/proc/cpuinfo", "r");
  int found = 0;
  if (!file) return 0;
  while (!found && fgets(line, sizeof line, file)) {
    const char *colon = strchr(line, ':');
    if (!colon || strncmp(line, key, strlen(key)) != 0) continue;
    colon += strspn(colon, ": \t");
    snprintf(text, capacity, "%.*s", (int)strcspn(colon, "\n"), colon);
    found = 1;
  }
  fclose(file);
  return found;
}

static double read_clock(void) {
  char text[64];
  if (read_line("/sys/devices/system/cpu/cpu0/cpufreq/cpuinfo_max_freq", text, sizeof text) &&
      atof(text) > 0)
    return atof(text) * 1e3; /* kHz */
  if (cpuinfo_value("cpu MHz", text, sizeof text) && atof(text) > 0) return atof(text) * 1e6;
  return 2e9;
}

tsri_cpu_device tsri_cpu_device_read(void) {
  tsri_cpu_device device;
  memset(&device, 0, sizeof device);
  device.l1_bytes = first_of(system_value(_SC_LEVEL1_DCACHE_SIZE), sysfs_cache(1), 32 * 1024);
  device.l2_bytes = first_of(system_value(_SC_LEVEL2_CACHE_SIZE), sysfs_cache(2), 512 * 1024);
  device.memory_bytes = system_value(_SC_PHYS_PAGES) * system_value(_SC_PAGESIZE);
  device.clock = read_clock();
  device.bandwidth = 10e9; /* what one core of a server draws; desktops draw more */
  if (!cpuinfo_value("model name", device.name, sizeof device.name))
    snprintf(device.name, sizeof device.name, "CPU");
  return device;
}
