// SPDX-License-Identifier: Apache-2.0
// The .safetensors format: 8-byte header length, a JSON header, then the tensors' bytes.
//
// The reader trusts nothing: the header length is compared with the file and the format's limit
// before anything is allocated, every tensor's byte range with its dtype and shape, and all ranges
// together must cover the data exactly, without overlap or hole. Duplicate names are refused.
#ifndef TESSERA_CLI_SAFETENSORS_H_
#define TESSERA_CLI_SAFETENSORS_H_

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "source.h"
#include "tensor_file.h"

// The format's own limit on the header.
#define SAFETENSORS_HEADER_LIMIT UINT64_C(100000000)

typedef struct safetensors_entry {
  char *name;
  file_dtype dtype;
  int rank;
  int64_t shape[FILE_MAX_RANK];
  uint64_t begin;  // byte range inside the data section
  uint64_t end;
} safetensors_entry;

typedef struct safetensors_pair {
  char *key;
  char *value;
} safetensors_pair;

typedef struct safetensors_file {
  uint64_t data_start;  // where the data section begins in the file
  size_t count;
  safetensors_entry *entries;  // ascending by byte range
  size_t metadata_count;
  safetensors_pair *metadata;  // the "__metadata__" object, strings only
} safetensors_file;

bool safetensors_parse(safetensors_file *file, const byte_source *source, cli_message *message);
void safetensors_free(safetensors_file *file);

// NULL when absent.
const safetensors_entry *safetensors_find(const safetensors_file *file, const char *name);
const char *safetensors_metadata(const safetensors_file *file, const char *key);

// Reads one tensor of a parsed file.
bool safetensors_load(file_tensor *tensor, const safetensors_file *file,
                      const safetensors_entry *entry, const byte_source *source,
                      cli_message *message);

// Builds length field and header (padded so that the data starts at a multiple of 8) for tensors
// that follow each other in this order. Returns a malloc'ed block, NULL when out of memory.
char *safetensors_format_header(const file_tensor *const *tensors, const char *const *names,
                                size_t count, const safetensors_pair *metadata,
                                size_t metadata_count, size_t *length);

#endif  // TESSERA_CLI_SAFETENSORS_H_
