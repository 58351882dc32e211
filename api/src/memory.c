// SPDX-License-Identifier: Apache-2.0
//
// The default allocator and small helpers over any allocator; see memory.h.
#include "memory.h"

#include <stdlib.h>
#include <string.h>

static void *default_alloc(void *user, size_t size, size_t alignment) {
  (void)user;
  if (alignment < sizeof(void *)) alignment = sizeof(void *);
  /* C11 asks for a size that is a multiple of the alignment. */
  if (size > SIZE_MAX - alignment) return NULL;
  return aligned_alloc(alignment, (size + alignment - 1) / alignment * alignment);
}

static void default_free(void *user, void *block) {
  (void)user;
  free(block);
}

tsr_allocator tsri_allocator_default(void) {
  const tsr_allocator allocator = {NULL, default_alloc, default_free};
  return allocator;
}

void *tsri_alloc(const tsr_allocator *allocator, size_t size, size_t alignment) {
  return allocator->alloc(allocator->user, size ? size : 1, alignment);
}

void *tsri_alloc_zeroed(const tsr_allocator *allocator, size_t size, size_t alignment) {
  void *block = tsri_alloc(allocator, size, alignment);
  if (block) memset(block, 0, size);
  return block;
}

void tsri_free(const tsr_allocator *allocator, void *block) {
  if (block) allocator->free(allocator->user, block);
}

char *tsri_copy_text(const tsr_allocator *allocator, const char *text, size_t length) {
  char *copy = tsri_alloc(allocator, length + 1, 1);
  if (!copy) return NULL;
  memcpy(copy, text, length);
  copy[length] = '\0';
  return copy;
}
