// SPDX-License-Identifier: Apache-2.0
// Fuzz target of the .safetensors reader. Any input must be refused with one printable line, or
// give entries that tile the data section and load, and that survive being written and read again.
// Built by libFuzzer (-fsanitize=fuzzer) or with replay_main.c, which runs files through it.
#include <stdlib.h>
#include <string.h>

#include "oracle.h"
#include "safetensors.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

enum { kRewriteMax = 32 };

static void check_rewrite(const safetensors_file *file, const file_tensor *const *tensors) {
  const char *names[kRewriteMax];
  for (size_t i = 0; i < file->count; ++i) names[i] = file->entries[i].name;
  size_t length = 0;
  char *header = safetensors_format_header(tensors, names, file->count, file->metadata,
                                           file->metadata_count, &length);
  ORACLE(header != NULL && length % 8 == 0);
  size_t bytes = 0;
  for (size_t i = 0; i < file->count; ++i) bytes += tensors[i]->bytes;
  uint8_t *whole = malloc(length + bytes);
  ORACLE(whole != NULL);
  memcpy(whole, header, length);
  size_t at = length;
  for (size_t i = 0; i < file->count; ++i) {
    memcpy(whole + at, tensors[i]->data, tensors[i]->bytes);
    at += tensors[i]->bytes;
  }
  byte_source source;
  source_from_memory(&source, whole, length + bytes);
  safetensors_file again;
  cli_message message;
  ORACLE(safetensors_parse(&again, &source, &message));
  ORACLE(again.count == file->count && again.metadata_count == file->metadata_count);
  for (size_t i = 0; i < file->count; ++i) {
    const safetensors_entry *found = safetensors_find(&again, names[i]);
    ORACLE(found != NULL && found->dtype == tensors[i]->dtype && found->rank == tensors[i]->rank);
    file_tensor copy;
    ORACLE(safetensors_load(&copy, &again, found, &source, &message));
    ORACLE(copy.bytes == tensors[i]->bytes);
    ORACLE(memcmp(copy.data, tensors[i]->data, copy.bytes) == 0);
    file_tensor_free(&copy);
  }
  for (size_t i = 0; i < file->metadata_count; ++i) {
    const char *value = safetensors_metadata(&again, file->metadata[i].key);
    ORACLE(value != NULL && strcmp(value, file->metadata[i].value) == 0);
  }
  safetensors_free(&again);
  free(header);
  free(whole);
}

static void check_file(const safetensors_file *file, const byte_source *source) {
  file_tensor loaded[kRewriteMax];
  const file_tensor *pointers[kRewriteMax];
  uint64_t at = 0;
  size_t kept = 0;
  for (size_t i = 0; i < file->count; ++i) {
    const safetensors_entry *entry = &file->entries[i];
    ORACLE(entry->begin == at && entry->end >= entry->begin);
    at = entry->end;
    file_tensor tensor;
    cli_message message;
    ORACLE(safetensors_load(&tensor, file, entry, source, &message));
    oracle_check_tensor(&tensor);
    if (kept < kRewriteMax) {
      loaded[kept] = tensor;
      pointers[kept] = &loaded[kept];
      ++kept;
    } else {
      file_tensor_free(&tensor);
    }
  }
  ORACLE(file->data_start + at == source->size);
  if (kept == file->count) check_rewrite(file, pointers);
  for (size_t i = 0; i < kept; ++i) file_tensor_free(&loaded[i]);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
  if (size == 0) return 0;
  byte_source source;
  source_from_memory(&source, data, size);
  safetensors_file file;
  cli_message message = {.text = ""};
  if (safetensors_parse(&file, &source, &message)) {
    check_file(&file, &source);
  } else {
    ORACLE(file.entries == NULL && file.metadata == NULL);
    oracle_check_message(&message);
  }
  safetensors_free(&file);
  return 0;
}
