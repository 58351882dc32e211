// SPDX-License-Identifier: Apache-2.0
//
// Host memory of the library: every block comes from the context's allocator (aligned malloc unless
// the caller gave another), so that a caller can count, limit and place it.
#ifndef TESSERA_SRC_MEMORY_H_
#define TESSERA_SRC_MEMORY_H_

#include "tessera/tessera.h"

/* The allocator used when the caller gives none. */
tsr_allocator tsri_allocator_default(void);

/* NULL when out of memory. alignment: a power of two, at most 4096. size 0 is served as 1. */
void *tsri_alloc(const tsr_allocator *allocator, size_t size, size_t alignment);
void *tsri_alloc_zeroed(const tsr_allocator *allocator, size_t size, size_t alignment);
/* NULL is allowed. */
void tsri_free(const tsr_allocator *allocator, void *block);
/* A copy of the first length bytes of text, terminated. NULL when out of memory. */
char *tsri_copy_text(const tsr_allocator *allocator, const char *text, size_t length);

#endif  // TESSERA_SRC_MEMORY_H_
