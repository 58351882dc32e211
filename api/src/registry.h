// SPDX-License-Identifier: Apache-2.0
//
// The list of backends of a context: those linked in, then plug-ins in order of folder and file
// name. Built once, when the context is made, and immutable afterwards. Absent and refused backends
// stay in the list with the reason, so that a user can ask why something is missing.
#ifndef TESSERA_SRC_REGISTRY_H_
#define TESSERA_SRC_REGISTRY_H_

#include "status.h"
#include "tessera/backend.h"

#define TSRI_BACKEND_NAME_BYTES 64
#define TSRI_KERNEL_NAME_BYTES 128

/* Entries of the backends linked in, ended by NULL (builtin_backends.c.in). */
extern const tsr_backend_entry_fn tsri_builtin_backends[];

typedef struct tsri_backend {
  char name[TSRI_BACKEND_NAME_BYTES];
  char *path;         /* of a plug-in or a folder that could not be read; NULL: built in */
  void *library;      /* handle of a plug-in in use */
  tsr_backend vtable; /* copy; slots that an older header did not have are NULL */
  void *state;
  int available;
  int32_t devices, kernels;
  tsr_reason reason; /* why it is not available */
  tsr_reason detail; /* what probe says of itself */
} tsri_backend;

typedef struct tsri_registry {
  tsri_backend *items;
  int32_t count, capacity;
} tsri_registry;

/* Fills the context's registry. Needs its allocator, log, host services and plug-in path. On
 * failure (out of memory, or a backend that knows no such cpu_target) tsri_registry_close must
 * still run. */
tsr_status tsri_registry_open(tsr_context *context);
void tsri_registry_close(tsr_context *context);

/* Index of a backend by name, or -1. */
int32_t tsri_registry_find(const tsri_registry *registry, const char *name);
/* Kernel i of an available backend; 0 if there is none. */
int tsri_backend_kernel(const tsri_backend *backend, int32_t i, tsr_kernel_info *info);
/* "built in", or the plug-in's path. */
const char *tsri_backend_origin(const tsri_backend *backend);

#endif  // TESSERA_SRC_REGISTRY_H_
