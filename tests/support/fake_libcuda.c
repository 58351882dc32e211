// SPDX-License-Identifier: Apache-2.0
//
// A CUDA driver for machines without a GPU: the entry points that device_memory.c opens, over host memory,
// built as libcuda.so.1 for tests of the device path. It is as unforgiving as a real one where tests could
// cheat: work runs only when somebody waits for it, device memory proper cannot be touched by the host,
// an address belongs to one of two devices, a fault is for ever. fake_device_plugin.c computes on it
// through fakeCudaLaunch. FAKE_CUDA_FAULT=N makes the N-th launch fault.
#define _GNU_SOURCE
#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>

#define EXPORT __attribute__((visibility("default")))

enum { SUCCESS = 0, INVALID_VALUE = 1, OUT_OF_MEMORY = 2, INVALID_CONTEXT = 201, ILLEGAL_ADDRESS = 700 };
enum { DEVICES = 2, PAGE = 4096 };

typedef struct region {
  struct region *next;
  unsigned char *base;
  size_t size; /* as asked for */
  size_t mapped;
  int device;
  bool secret; /* device memory proper */
  bool host;   /* page-locked host memory */
} region;

typedef enum op_kind { OP_LAUNCH, OP_COPY, OP_RECORD } op_kind;

typedef struct op {
  struct op *next;
  op_kind kind;
  void (*function)(void *);
  void *argument; /* of a launch: a copy; of a record: the event */
  size_t size;
  unsigned char *to;
  const unsigned char *from;
} op;

typedef struct list {
  op *first, **last;
} list;

typedef struct stream {
  bool capturing;
  list captured;
} stream;

typedef struct event {
  double time;
  bool done;
} event;

static pthread_mutex_t lock;
static pthread_once_t once = PTHREAD_ONCE_INIT;
static region *regions;
static list queue;
static int fault, launches, fault_at;
static char contexts[DEVICES];
static _Thread_local int current = -1;

static void set_up(void) {
  const char *text = getenv("FAKE_CUDA_FAULT");
  pthread_mutexattr_t attributes;
  pthread_mutexattr_init(&attributes);
  pthread_mutexattr_settype(&attributes, PTHREAD_MUTEX_RECURSIVE);
  pthread_mutex_init(&lock, &attributes);
  queue.last = &queue.first;
  fault_at = text ? atoi(text) : 0;
}

static void hold(void) {
  pthread_once(&once, set_up);
  pthread_mutex_lock(&lock);
}

static int leave(int result) {
  pthread_mutex_unlock(&lock);
  return result;
}

static void append(list *to, op *made) {
  made->next = NULL;
  *to->last = made;
  to->last = &made->next;
}

static op *copy_op(const op *from) {
  op *made = (op *)malloc(sizeof *made);
  if (!made) abort();
  *made = *from;
  if (from->kind == OP_LAUNCH) {
    made->argument = malloc(from->size);
    if (!made->argument) abort();
    memcpy(made->argument, from->argument, from->size);
  }
  return made;
}

static void free_op(op *old) {
  if (old->kind == OP_LAUNCH) free(old->argument);
  free(old);
}

/* Work on a stream that captures is recorded, else it waits in the queue. */
static void enqueue(void *at, const op *work) {
  stream *s = (stream *)at;
  append(s && s->capturing ? &s->captured : &queue, copy_op(work));
}

static void reveal(bool visible) {
  region *r;
  for (r = regions; r; r = r->next)
    if (r->secret) mprotect(r->base, r->mapped, visible ? PROT_READ | PROT_WRITE : PROT_NONE);
}

static double now(void) {
  struct timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static void run_op(op *work) {
  if (work->kind == OP_RECORD) {
    ((event *)work->argument)->time = now();
    ((event *)work->argument)->done = true;
  } else if (work->kind == OP_COPY) {
    memmove(work->to, work->from, work->size);
  } else {
    if (++launches == fault_at) fault = ILLEGAL_ADDRESS;
    if (!fault) work->function(work->argument);
  }
}

static int drain(void) {
  if (queue.first) {
    reveal(true);
    while (queue.first) {
      op *work = queue.first;
      queue.first = work->next;
      if (!queue.first) queue.last = &queue.first;
      run_op(work);
      free_op(work);
    }
    reveal(false);
  }
  return fault;
}

static region *region_of(const void *pointer, size_t bytes) {
  const unsigned char *p = (const unsigned char *)pointer;
  region *r;
  for (r = regions; r; r = r->next)
    if (p >= r->base && p + bytes <= r->base + r->mapped && p < r->base + r->mapped) return r;
  return NULL;
}

static int make_region(void **block, size_t size, bool secret, bool host) {
  region *r;
  if (fault) return fault;
  if (current < 0) return INVALID_CONTEXT;
  r = (region *)calloc(1, sizeof *r);
  if (!r) return OUT_OF_MEMORY;
  r->size = size;
  r->mapped = (size + PAGE - 1) / PAGE * PAGE;
  r->device = current;
  r->secret = secret;
  r->host = host;
  r->base = (unsigned char *)mmap(NULL, r->mapped, secret ? PROT_NONE : PROT_READ | PROT_WRITE,
                                  MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (r->base == MAP_FAILED) {
    free(r);
    return OUT_OF_MEMORY;
  }
  r->next = regions;
  regions = r;
  *block = r->base;
  return SUCCESS;
}

static int drop_region(const void *block) {
  region **at;
  drain();
  for (at = &regions; *at; at = &(*at)->next) {
    region *r = *at;
    if (r->base != block) continue;
    *at = r->next;
    munmap(r->base, r->mapped);
    free(r);
    return fault;
  }
  return INVALID_VALUE;
}

/* ------------------------------------------------------------------------------ for the plug-in */

EXPORT int fakeCudaLaunch(void *at, void (*function)(void *), void *argument, size_t size);
int fakeCudaLaunch(void *at, void (*function)(void *), void *argument, size_t size) {
  op work = {.kind = OP_LAUNCH, .function = function, .argument = argument, .size = size};
  hold();
  if (!fault) enqueue(at, &work);
  return leave(fault);
}

/* Attribute 2: memory type, 1 host, 2 device; 9: ordinal. */
EXPORT int cuPointerGetAttribute(void *value, int attribute, uint64_t pointer);
int cuPointerGetAttribute(void *value, int attribute, uint64_t pointer) {
  const region *r;
  int result = INVALID_VALUE;
  hold();
  r = region_of((const void *)(uintptr_t)pointer, 0);
  if (r && (attribute == 2 || attribute == 9)) {
    *(int *)value = attribute == 9 ? r->device : r->host ? 1 : 2;
    result = SUCCESS;
  }
  return leave(result);
}

/* ------------------------------------------------------------------------------------ the driver */

/* Name, parameters and body of an entry point; strict compilers want the prototype first. */
#define ENTRY(name, parameters) \
  EXPORT int name parameters;   \
  int name parameters

ENTRY(cuInit, (unsigned flags)) { return flags ? INVALID_VALUE : SUCCESS; }
ENTRY(cuDriverGetVersion, (int *version)) { return *version = 13000, SUCCESS; }
ENTRY(cuDeviceGetCount, (int *count)) { return *count = DEVICES, SUCCESS; }
ENTRY(cuDeviceGet, (int *device, int ordinal)) {
  *device = ordinal;
  return ordinal >= 0 && ordinal < DEVICES ? SUCCESS : INVALID_VALUE;
}
ENTRY(cuDeviceGetName, (char *name, int capacity, int device)) {
  return snprintf(name, (size_t)capacity, "host memory posing as device %d", device), SUCCESS;
}
ENTRY(cuDeviceGetPCIBusId, (char *name, int capacity, int device)) {
  return snprintf(name, (size_t)capacity, "0000:00:%02x.0", device), SUCCESS;
}
ENTRY(cuDeviceGetAttribute, (int *value, int attribute, int device)) {
  (void)device;
  switch (attribute) {
    case 13:
    case 36: *value = 1000000; break; /* clocks */
    case 16: *value = 4; break;
    case 38: *value = 1 << 20; break; /* L2 */
    case 75: *value = 9; break;
    case 89: *value = !getenv("FAKE_CUDA_PINNED"); break;
    default: *value = 0;
  }
  return SUCCESS;
}
ENTRY(cuDeviceTotalMem_v2, (size_t * bytes, int device)) {
  (void)device;
  return *bytes = (size_t)1 << 30, SUCCESS;
}
ENTRY(cuDevicePrimaryCtxRetain, (void **context, int device)) {
  return *context = &contexts[device], SUCCESS;
}
ENTRY(cuCtxSetCurrent, (void *context)) {
  current = context ? (int)((char *)context - contexts) : -1;
  return SUCCESS;
}
ENTRY(cuCtxGetCurrent, (void **context)) {
  return *context = current < 0 ? NULL : &contexts[current], SUCCESS;
}
ENTRY(cuCtxSynchronize, (void)) {
  hold();
  return leave(drain());
}
ENTRY(cuGetErrorName, (int error, const char **name)) {
  *name = error == ILLEGAL_ADDRESS ? "CUDA_ERROR_ILLEGAL_ADDRESS" : "CUDA_ERROR_OF_THE_FAKE";
  return SUCCESS;
}
ENTRY(cuGetErrorString, (int error, const char **text)) {
  *text = error == ILLEGAL_ADDRESS ? "an illegal memory access was encountered" : "refused";
  return SUCCESS;
}

ENTRY(cuMemAlloc_v2, (uint64_t * pointer, size_t bytes)) {
  void *block = NULL;
  hold();
  int result = make_region(&block, bytes, true, false);
  *pointer = (uint64_t)(uintptr_t)block;
  return leave(result);
}
ENTRY(cuMemAllocManaged, (uint64_t * pointer, size_t bytes, unsigned flags)) {
  void *block = NULL;
  hold();
  int result = flags == 1 ? make_region(&block, bytes, false, false) : INVALID_VALUE;
  *pointer = (uint64_t)(uintptr_t)block;
  return leave(result);
}
ENTRY(cuMemFree_v2, (uint64_t pointer)) {
  hold();
  return leave(drop_region((const void *)(uintptr_t)pointer));
}
ENTRY(cuMemHostAlloc, (void **block, size_t bytes, unsigned flags)) {
  (void)flags;
  hold();
  return leave(make_region(block, bytes, false, true));
}
ENTRY(cuMemFreeHost, (void *block)) {
  hold();
  return leave(drop_region(block));
}

/* Copies wait for all work; the device side must be memory of the driver's. */
static int move(void *to, const void *from, size_t bytes, const void *device_side) {
  int result;
  hold();
  result = drain();
  if (!result && !region_of(device_side, bytes)) result = INVALID_VALUE;
  if (!result) {
    reveal(true);
    memcpy(to, from, bytes);
    reveal(false);
  }
  return leave(result);
}
ENTRY(cuMemcpyHtoD_v2, (uint64_t to, const void *from, size_t bytes)) {
  return move((void *)(uintptr_t)to, from, bytes, (const void *)(uintptr_t)to);
}
ENTRY(cuMemcpyDtoH_v2, (void *to, uint64_t from, size_t bytes)) {
  return move(to, (const void *)(uintptr_t)from, bytes, (const void *)(uintptr_t)from);
}
ENTRY(cuMemcpyDtoDAsync_v2, (uint64_t to, uint64_t from, size_t bytes, void *at)) {
  op work = {.kind = OP_COPY, .size = bytes, .to = (unsigned char *)(uintptr_t)to,
             .from = (const unsigned char *)(uintptr_t)from};
  int result = SUCCESS;
  hold();
  if (!region_of(work.to, bytes) || !region_of(work.from, bytes)) result = INVALID_VALUE;
  if (!result) enqueue(at, &work);
  return leave(result ? result : fault);
}
ENTRY(cuMemsetD8_v2, (uint64_t to, unsigned char byte, size_t bytes)) {
  void *block = (void *)(uintptr_t)to;
  int result;
  hold();
  result = drain();
  if (!result && !region_of(block, bytes)) result = INVALID_VALUE;
  if (!result) {
    reveal(true);
    memset(block, byte, bytes);
    reveal(false);
  }
  return leave(result);
}

ENTRY(cuStreamCreate, (void **made, unsigned flags)) {
  stream *s = (stream *)calloc(1, sizeof *s);
  (void)flags;
  if (!s) return OUT_OF_MEMORY;
  s->captured.last = &s->captured.first;
  *made = s;
  return SUCCESS;
}
ENTRY(cuStreamSynchronize, (void *at)) {
  (void)at;
  return cuCtxSynchronize();
}
ENTRY(cuStreamDestroy_v2, (void *at)) {
  hold();
  drain();
  free(at);
  return leave(fault);
}
ENTRY(cuStreamIsCapturing, (void *at, int *status)) {
  *status = at && ((stream *)at)->capturing;
  return SUCCESS;
}
ENTRY(cuStreamBeginCapture_v2, (void *at, int mode)) {
  (void)mode;
  if (!at || ((stream *)at)->capturing) return INVALID_VALUE;
  ((stream *)at)->capturing = true;
  return fault;
}
ENTRY(cuStreamEndCapture, (void *at, void **graph)) {
  stream *s = (stream *)at;
  list *made = (list *)malloc(sizeof *made);
  if (!made) return OUT_OF_MEMORY;
  made->first = s->captured.first;
  s->capturing = false;
  s->captured.first = NULL;
  s->captured.last = &s->captured.first;
  *graph = made;
  return SUCCESS;
}
ENTRY(cuGraphInstantiateWithFlags, (void **exec, void *graph, uint64_t flags)) {
  list *made = (list *)malloc(sizeof *made);
  const op *work;
  (void)flags;
  if (!made) return OUT_OF_MEMORY;
  made->first = NULL, made->last = &made->first;
  for (work = ((const list *)graph)->first; work; work = work->next) append(made, copy_op(work));
  *exec = made;
  return SUCCESS;
}
ENTRY(cuGraphLaunch, (void *exec, void *at)) {
  const op *work;
  hold();
  for (work = ((const list *)exec)->first; work; work = work->next) enqueue(at, work);
  return leave(fault);
}
ENTRY(cuGraphDestroy, (void *graph)) {
  list *l = (list *)graph;
  op *next;
  for (; l->first; l->first = next) next = l->first->next, free_op(l->first);
  free(l);
  return SUCCESS;
}
ENTRY(cuGraphExecDestroy, (void *exec)) { return cuGraphDestroy(exec); }

ENTRY(cuEventCreate, (void **made, unsigned flags)) {
  (void)flags;
  *made = calloc(1, sizeof(event));
  return *made ? SUCCESS : OUT_OF_MEMORY;
}
ENTRY(cuEventRecord, (void *made, void *at)) {
  op work = {.kind = OP_RECORD, .argument = made};
  hold();
  ((event *)made)->done = false;
  enqueue(at, &work);
  return leave(fault);
}
ENTRY(cuEventSynchronize, (void *made)) {
  (void)made;
  return cuCtxSynchronize();
}
ENTRY(cuEventElapsedTime, (float *milliseconds, void *begin, void *end)) {
  const event *a = (const event *)begin, *b = (const event *)end;
  if (!a->done || !b->done) return INVALID_VALUE;
  *milliseconds = (float)((b->time - a->time) * 1e3);
  return fault;
}
ENTRY(cuEventDestroy_v2, (void *made)) {
  hold();
  drain();
  free(made);
  return leave(fault);
}
