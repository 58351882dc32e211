// SPDX-License-Identifier: Apache-2.0
//
// See fake_hip.h. The devices are two of gfx90a, so that what is loaded for one of them must not be launched on
// the other.
#include <pthread.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "fake_hip.h"

#define EXPORT __attribute__((visibility("default")))
/* Strict compilers want the prototype first. */
#define ENTRY(name, parameters) \
  EXPORT int name parameters;   \
  int name parameters

enum { INVALID_VALUE = 1, INVALID_CONFIGURATION = 9, INVALID_DEVICE = 101, CAPTURE_UNSUPPORTED = 900 };

typedef struct region {
  struct region *next;
  unsigned char *base;
  size_t bytes;
  int device;
} region;

typedef struct module {
  struct module *next;
  const void *image;
  int device;
} module;

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static region *regions;
static module *modules;
static fake_hip state;
static _Thread_local int current, last_error;

static int64_t add(int64_t *counter, int64_t n) { return __atomic_add_fetch(counter, n, __ATOMIC_RELAXED); }

static int failed(int error) {
  if (error) last_error = error;
  return error;
}

/* Whether this call is to fail. */
static bool fails(const char *name) {
  const int64_t n = add(&state.calls, 1), at = __atomic_load_n(&state.fail_at, __ATOMIC_RELAXED);
  if (n < FAKE_HIP_LOG) __atomic_store_n(&state.log[n], name, __ATOMIC_RELAXED);
  if (at == 0 || (n != at && (!state.for_ever || n < at))) return false;
  __atomic_store_n(&state.failed, name, __ATOMIC_RELAXED);
  return true;
}
#define FAIL_IF_TOLD() \
  if (fails(__func__)) return failed(state.error)

static region *make_region(int device, size_t bytes) {
  region *r = (region *)calloc(1, sizeof *r);
  if (!r) return NULL;
  r->base = (unsigned char *)aligned_alloc(256, (bytes + 255) / 256 * 256);
  r->bytes = bytes;
  r->device = device;
  if (!r->base) {
    free(r);
    return NULL;
  }
  pthread_mutex_lock(&lock);
  r->next = regions;
  regions = r;
  pthread_mutex_unlock(&lock);
  return r;
}

static void *memory(int device, size_t bytes) {
  const region *r = make_region(device, bytes);
  return r ? r->base : NULL;
}

EXPORT fake_hip *fakeHip(void) {
  state.memory = memory;
  return &state;
}

ENTRY(hipInit, (unsigned flags)) {
  FAIL_IF_TOLD();
  return failed(flags ? INVALID_VALUE : 0);
}
ENTRY(hipRuntimeGetVersion, (int *version)) {
  FAIL_IF_TOLD();
  return *version = 70000000, 0;
}
ENTRY(hipGetDeviceCount, (int *count)) {
  FAIL_IF_TOLD();
  return *count = FAKE_HIP_DEVICES, 0;
}
ENTRY(hipGetDevice, (int *device)) {
  FAIL_IF_TOLD();
  return *device = current, 0;
}
ENTRY(hipSetDevice, (int device)) {
  FAIL_IF_TOLD();
  if (device < 0 || device >= FAKE_HIP_DEVICES) return failed(INVALID_DEVICE);
  return current = device, 0;
}
ENTRY(hipDeviceGetName, (char *name, int size, int device)) {
  FAIL_IF_TOLD();
  return snprintf(name, (size_t)size, "nothing at %d", device), 0;
}
ENTRY(hipDeviceTotalMem, (size_t *bytes, int device)) {
  FAIL_IF_TOLD();
  (void)device;
  return *bytes = (size_t)16 << 30, 0;
}
ENTRY(hipDeviceGetAttribute, (int *value, int which, int device)) {
  static const int known[][2] = {{5, 1700000}, {19, 8 << 20}, {59, 4096}, {60, 1600000}, {63, 104}};
  size_t i;
  (void)device;
  FAIL_IF_TOLD();
  for (i = 0; i < sizeof known / sizeof known[0]; ++i)
    if (known[i][0] == which) return *value = known[i][1], 0;
  return failed(INVALID_VALUE);
}
ENTRY(hipGetDevicePropertiesR0600, (void *properties, int device)) {
  FAIL_IF_TOLD();
  snprintf((char *)properties, 256, "nothing at %d", device);
  snprintf((char *)properties + 1160, 256, "gfx90a:sramecc+:xnack-");
  return 0;
}
ENTRY(hipGetLastError, (void)) {
  const int error = last_error;
  last_error = 0;
  return error;
}
EXPORT const char *hipGetErrorName(int error);
const char *hipGetErrorName(int error) {
  return error == FAKE_HIP_OUT_OF_MEMORY ? "hipErrorOutOfMemory" : "hipErrorOther";
}
EXPORT const char *hipGetErrorString(int error);
const char *hipGetErrorString(int error) {
  return error == FAKE_HIP_OUT_OF_MEMORY ? "out of memory" : "another error";
}

ENTRY(hipModuleLoadData, (void **made, const void *image)) {
  module *m;
  const module *other;
  FAIL_IF_TOLD();
  m = (module *)calloc(1, sizeof *m);
  if (!m) return failed(FAKE_HIP_OUT_OF_MEMORY);
  m->image = image;
  m->device = current;
  pthread_mutex_lock(&lock);
  for (other = modules; other; other = other->next)
    if (other->image == image && other->device == current) add(&state.repeated, 1);
  m->next = modules;
  modules = m;
  pthread_mutex_unlock(&lock);
  add(&state.modules, 1);
  return *made = m, 0;
}
/* A function is its module: which one of it makes no difference here. */
ENTRY(hipModuleGetFunction, (void **function, void *from, const char *name)) {
  FAIL_IF_TOLD();
  return *function = from, failed(name && *name ? 0 : INVALID_VALUE);
}
ENTRY(hipModuleLaunchKernel, (void *function, unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by,
                              unsigned bz, unsigned shared, void *stream, void **parameters, void **extra)) {
  (void)stream, (void)shared;
  FAIL_IF_TOLD();
  if (!gx || !gy || !gz || !bx || by != 1 || bz != 1 || (uint64_t)gx * bx > UINT32_MAX || parameters || !extra)
    return failed(INVALID_CONFIGURATION);
  if (((const module *)function)->device != current) {
    add(&state.misplaced, 1);
    return failed(INVALID_CONFIGURATION);
  }
  return add(&state.launches, 1), 0;
}
ENTRY(hipMallocAsync, (void **block, size_t bytes, void *stream)) {
  const region *r;
  (void)stream;
  FAIL_IF_TOLD();
  if (__atomic_load_n(&state.capturing, __ATOMIC_RELAXED)) return failed(CAPTURE_UNSUPPORTED);
  r = make_region(current, bytes);
  if (!r) return failed(FAKE_HIP_OUT_OF_MEMORY);
  add(&state.blocks, 1);
  return *block = r->base, 0;
}
ENTRY(hipFreeAsync, (void *block, void *stream)) {
  region **at, *found = NULL;
  (void)stream;
  if (fails("hipFreeAsync")) return add(&state.not_freed, 1), failed(state.error);
  pthread_mutex_lock(&lock);
  for (at = &regions; *at && !found; at = found ? at : &(*at)->next)
    if ((*at)->base == block) {
      found = *at;
      *at = found->next;
    }
  pthread_mutex_unlock(&lock);
  if (!found) return failed(INVALID_VALUE);
  free(found->base);
  free(found);
  return add(&state.blocks, -1), 0;
}
ENTRY(hipStreamIsCapturing, (void *stream, int *status)) {
  (void)stream;
  FAIL_IF_TOLD();
  return *status = __atomic_load_n(&state.capturing, __ATOMIC_RELAXED), 0;
}

/* As from release 6 on: an address that is nobody's is found, and of type 0. */
struct attributes {
  int type, device;
  void *device_pointer, *host_pointer;
  int managed;
  unsigned flags;
};
ENTRY(hipPointerGetAttributes, (struct attributes *to, const void *pointer)) {
  const unsigned char *p = (const unsigned char *)pointer;
  const region *r;
  struct attributes found = {0, -2, NULL, NULL, 0, 0};
  FAIL_IF_TOLD();
  pthread_mutex_lock(&lock);
  for (r = regions; r; r = r->next)
    if (p >= r->base && p < r->base + r->bytes) found.type = 2, found.device = r->device;
  pthread_mutex_unlock(&lock);
  return *to = found, 0;
}
