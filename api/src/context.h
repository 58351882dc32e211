// SPDX-License-Identifier: Apache-2.0
//
// A context: options and environment as they were when it was made, the library's services for
// backends, and the registry. Immutable once created, so every other file reads it without locks.
#ifndef TESSERA_SRC_CONTEXT_H_
#define TESSERA_SRC_CONTEXT_H_

#include "log.h"
#include "memory.h"
#include "registry.h"

/* Who named a backend or kernel; a larger value wins. */
typedef enum tsri_source {
  TSRI_SOURCE_NONE = 0,
  TSRI_SOURCE_ENVIRONMENT = 1,
  TSRI_SOURCE_CONTEXT = 2,
  TSRI_SOURCE_PROBLEM = 3
} tsri_source;

typedef struct tsri_named {
  char *name; /* NULL: nothing is named */
  tsri_source source;
} tsri_named;

struct tsr_context {
  tsr_allocator allocator;
  tsr_runner runner; /* run NULL: none */
  tsri_log log;
  tsri_named backend, kernel, cpu_target;
  char *plugin_path; /* NULL: the default folder */
  tsr_host host;
  tsri_registry registry;
};

/* given, or the process-wide default, made on first use. */
tsr_status tsri_context_or_default(const tsr_context *given, const tsr_context **out);

#endif  // TESSERA_SRC_CONTEXT_H_
