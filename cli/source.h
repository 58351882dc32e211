// SPDX-License-Identifier: Apache-2.0
// A bounded source of bytes: a regular file, or a block of memory for tests and fuzzers.
//
// The size is known before anything is read, so a reader compares every length a file states with
// it before allocating. Reads are positional and complete: short reads are errors.
#ifndef TESSERA_CLI_SOURCE_H_
#define TESSERA_CLI_SOURCE_H_

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "message.h"

typedef struct byte_source {
  int fd;                 // -1 for a memory source
  const uint8_t *memory;  // NULL for a file source
  uint64_t size;          // bytes in all
} byte_source;

// Opens a regular file for reading. Directories, devices, pipes and empty files are refused.
bool source_open(byte_source *source, const char *path, cli_message *message);

// Reads from a caller's block, which must outlive the source.
void source_from_memory(byte_source *source, const void *memory, size_t size);

// Copies exactly `count` bytes at `offset`; refuses ranges beyond the end.
bool source_read(const byte_source *source, uint64_t offset, void *out, size_t count,
                 cli_message *message);

void source_close(byte_source *source);

#endif  // TESSERA_CLI_SOURCE_H_
