// SPDX-License-Identifier: Apache-2.0
// .safetensors reader and header writer (see safetensors.h). JSON is parsed by jansson with
// duplicate keys refused; every number is then checked against the file before it is used.
#include "safetensors.h"

#include <inttypes.h>
#include <jansson.h>
#include <stdlib.h>
#include <string.h>

static const char kMetadataKey[] = "__metadata__";

static char *copy_text(const char *text) {
  size_t n = strlen(text) + 1;
  char *copy = malloc(n);
  if (copy != NULL) memcpy(copy, text, n);
  return copy;
}

void safetensors_free(safetensors_file *file) {
  for (size_t i = 0; i < file->count; ++i) free(file->entries[i].name);
  for (size_t i = 0; i < file->metadata_count; ++i) {
    free(file->metadata[i].key);
    free(file->metadata[i].value);
  }
  free(file->entries);
  free(file->metadata);
  *file = (safetensors_file){.data_start = 0};
}

static bool parse_metadata(safetensors_file *file, json_t *object, cli_message *message) {
  if (!json_is_object(object)) return cli_fail(message, "\"%s\" is no object", kMetadataKey);
  size_t n = json_object_size(object);
  if (n == 0) return true;
  file->metadata = calloc(n, sizeof *file->metadata);
  if (file->metadata == NULL) return cli_fail_memory(message, n * sizeof *file->metadata);
  const char *key;
  json_t *value;
  json_object_foreach(object, key, value) {
    if (!json_is_string(value)) {
      return cli_fail(message, "\"%s\" entry \"%.80s\" is no string", kMetadataKey, key);
    }
    safetensors_pair *pair = &file->metadata[file->metadata_count++];
    pair->key = copy_text(key);
    pair->value = copy_text(json_string_value(value));
    if (pair->key == NULL || pair->value == NULL) return cli_fail_memory(message, 1);
  }
  return true;
}

static bool parse_shape(safetensors_entry *entry, const json_t *array, cli_message *message) {
  if (!json_is_array(array)) {
    return cli_fail(message, "tensor \"%.80s\": \"shape\" is no array", entry->name);
  }
  size_t rank = json_array_size(array);
  if (rank > FILE_MAX_RANK) {
    return cli_fail(message, "tensor \"%.80s\" has %zu dimensions; accepted: up to %d", entry->name,
                    rank, FILE_MAX_RANK);
  }
  entry->rank = (int)rank;
  for (size_t i = 0; i < rank; ++i) {
    const json_t *item = json_array_get(array, i);
    if (!json_is_integer(item) || json_integer_value(item) < 0) {
      return cli_fail(message, "tensor \"%.80s\": dimension %zu is no integer from 0 to 2^63-1",
                      entry->name, i);
    }
    entry->shape[i] = (int64_t)json_integer_value(item);
  }
  return true;
}

// The range must lie in the data section and hold exactly the shape's elements.
static bool parse_range(safetensors_entry *entry, const json_t *array, uint64_t data_bytes,
                        cli_message *message) {
  const json_t *first = json_array_get(array, 0);
  const json_t *last = json_array_get(array, 1);
  if (!json_is_array(array) || json_array_size(array) != 2 || !json_is_integer(first) ||
      !json_is_integer(last) || json_integer_value(first) < 0 || json_integer_value(last) < 0) {
    return cli_fail(message, "tensor \"%.80s\": \"data_offsets\" is no pair of byte offsets",
                    entry->name);
  }
  entry->begin = (uint64_t)json_integer_value(first);
  entry->end = (uint64_t)json_integer_value(last);
  if (entry->begin > entry->end) {
    return cli_fail(message,
                    "tensor \"%.80s\": data_offsets [%" PRIu64 ", %" PRIu64
                    "] run "
                    "backwards",
                    entry->name, entry->begin, entry->end);
  }
  if (entry->end > data_bytes) {
    return cli_fail(message,
                    "is truncated: tensor \"%.80s\" ends at data byte %" PRIu64
                    ", the file holds %" PRIu64,
                    entry->name, entry->end, data_bytes);
  }
  file_tensor layout;
  cli_message inner;
  if (!file_tensor_layout(&layout, entry->dtype, entry->rank, entry->shape, false, &inner)) {
    return cli_fail(message, "tensor \"%.80s\": %s", entry->name, inner.text);
  }
  if (entry->end - entry->begin != layout.bytes) {
    char shape[160];
    return cli_fail(message,
                    "tensor \"%.80s\": data_offsets span %" PRIu64
                    " bytes, shape %s of "
                    "%s needs %zu",
                    entry->name, entry->end - entry->begin,
                    file_shape_text(&layout, shape, sizeof shape),
                    file_dtype_info(entry->dtype)->name, layout.bytes);
  }
  return true;
}

static bool parse_entry(safetensors_entry *entry, const char *name, const json_t *object,
                        uint64_t data_bytes, cli_message *message) {
  entry->name = copy_text(name);
  if (entry->name == NULL) return cli_fail_memory(message, strlen(name) + 1);
  if (!json_is_object(object)) return cli_fail(message, "tensor \"%.80s\" is no object", name);
  const json_t *dtype = json_object_get(object, "dtype");
  const json_t *shape = json_object_get(object, "shape");
  const json_t *range = json_object_get(object, "data_offsets");
  if (dtype == NULL || shape == NULL || range == NULL || json_object_size(object) != 3) {
    return cli_fail(message, "tensor \"%.80s\" has other fields than dtype, shape, data_offsets",
                    name);
  }
  if (!json_is_string(dtype) || !file_dtype_from_name(json_string_value(dtype), &entry->dtype)) {
    return cli_fail(message,
                    "tensor \"%.80s\" has the dtype \"%.40s\"; accepted: F64 F32 F16 BF16 "
                    "F8_E4M3 F8_E5M2 I64 I32 I8 U8 BOOL and the format's others",
                    name, json_is_string(dtype) ? json_string_value(dtype) : "(no string)");
  }
  return parse_shape(entry, shape, message) && parse_range(entry, range, data_bytes, message);
}

static int by_range(const void *a, const void *b) {
  const safetensors_entry *x = a, *y = b;
  if (x->begin != y->begin) return x->begin < y->begin ? -1 : 1;
  if (x->end != y->end) return x->end < y->end ? -1 : 1;
  return strcmp(x->name, y->name);
}

static bool check_cover(const safetensors_file *file, uint64_t data_bytes, cli_message *message) {
  uint64_t at = 0;
  for (size_t i = 0; i < file->count; ++i) {
    const safetensors_entry *entry = &file->entries[i];
    if (entry->begin != at) {
      return cli_fail(message, "tensor \"%.80s\" begins at data byte %" PRIu64 ", %s byte %" PRIu64,
                      entry->name, entry->begin,
                      entry->begin < at ? "inside another that ends at" : "leaving a hole from",
                      at);
    }
    at = entry->end;
  }
  if (at != data_bytes) {
    return cli_fail(message, "has %" PRIu64 " bytes after its last tensor", data_bytes - at);
  }
  return true;
}

static bool parse_root(safetensors_file *file, json_t *root, uint64_t data_bytes,
                       cli_message *message) {
  if (!json_is_object(root)) return cli_fail(message, ".safetensors header is no object");
  size_t n = json_object_size(root);
  if (n != 0) {
    file->entries = calloc(n, sizeof *file->entries);
    if (file->entries == NULL) return cli_fail_memory(message, n * sizeof *file->entries);
  }
  const char *name;
  json_t *value;
  json_object_foreach(root, name, value) {
    bool ok = strcmp(name, kMetadataKey) == 0
                  ? parse_metadata(file, value, message)
                  : parse_entry(&file->entries[file->count++], name, value, data_bytes, message);
    if (!ok) return false;
  }
  if (file->count != 0) qsort(file->entries, file->count, sizeof *file->entries, by_range);
  return check_cover(file, data_bytes, message);
}

static bool read_header_length(const byte_source *source, size_t *length, cli_message *message) {
  if (source->size < 8) {
    return cli_fail(message,
                    "is truncated: %" PRIu64
                    " bytes, shorter than the 8 of a "
                    ".safetensors length",
                    source->size);
  }
  uint8_t head[9] = {0};
  if (!source_read(source, 0, head, source->size > 8 ? 9 : 8, message)) return false;
  uint64_t stated = 0;
  for (int i = 7; i >= 0; --i) stated = stated << 8 | head[i];
  // Another kind of file read as a length is astronomically long: name the likelier mistake first.
  if (stated > SAFETENSORS_HEADER_LIMIT) {
    return cli_fail(message,
                    "states a .safetensors header of %" PRIu64
                    " bytes; accepted: up to "
                    "%" PRIu64,
                    stated, SAFETENSORS_HEADER_LIMIT);
  }
  if (stated > source->size - 8) {
    return cli_fail(message,
                    "is truncated: .safetensors header of %" PRIu64
                    " bytes in a file of "
                    "%" PRIu64,
                    stated, source->size);
  }
  if (stated < 2 || head[8] != '{') {
    return cli_fail(message, "is no .safetensors file: the header does not begin with '{'");
  }
  *length = (size_t)stated;
  return true;
}

bool safetensors_parse(safetensors_file *file, const byte_source *source, cli_message *message) {
  *file = (safetensors_file){.data_start = 0};
  size_t length = 0;
  if (!read_header_length(source, &length, message)) return false;
  char *text = malloc(length);
  if (text == NULL) return cli_fail_memory(message, length);
  if (!source_read(source, 8, text, length, message)) {
    free(text);
    return false;
  }
  json_error_t error;
  json_t *root = json_loadb(text, length, JSON_REJECT_DUPLICATES, &error);
  free(text);
  if (root == NULL) {
    return cli_fail(message, ".safetensors header is no valid JSON: %.120s (byte %d)", error.text,
                    error.position);
  }
  file->data_start = 8 + (uint64_t)length;
  bool ok = parse_root(file, root, source->size - file->data_start, message);
  json_decref(root);
  if (!ok) safetensors_free(file);
  return ok;
}

const safetensors_entry *safetensors_find(const safetensors_file *file, const char *name) {
  for (size_t i = 0; i < file->count; ++i) {
    if (strcmp(file->entries[i].name, name) == 0) return &file->entries[i];
  }
  return NULL;
}

const char *safetensors_metadata(const safetensors_file *file, const char *key) {
  for (size_t i = 0; i < file->metadata_count; ++i) {
    if (strcmp(file->metadata[i].key, key) == 0) return file->metadata[i].value;
  }
  return NULL;
}

bool safetensors_load(file_tensor *tensor, const safetensors_file *file,
                      const safetensors_entry *entry, const byte_source *source,
                      cli_message *message) {
  if (!file_tensor_layout(tensor, entry->dtype, entry->rank, entry->shape, false, message) ||
      !file_tensor_allocate(tensor, message)) {
    return false;
  }
  if (!source_read(source, file->data_start + entry->begin, tensor->data, tensor->bytes, message)) {
    file_tensor_free(tensor);
    return false;
  }
  return true;
}

static json_t *describe(const file_tensor *tensor, uint64_t begin) {
  json_t *shape = json_array();
  for (int i = 0; i < tensor->rank; ++i) {
    json_array_append_new(shape, json_integer((json_int_t)tensor->shape[i]));
  }
  return json_pack("{s:s, s:o, s:[I, I]}", "dtype", file_dtype_info(tensor->dtype)->name, "shape",
                   shape, "data_offsets", (json_int_t)begin, (json_int_t)(begin + tensor->bytes));
}

char *safetensors_format_header(const file_tensor *const *tensors, const char *const *names,
                                size_t count, const safetensors_pair *metadata,
                                size_t metadata_count, size_t *length) {
  json_t *root = json_object();
  if (metadata_count != 0) {
    json_t *object = json_object();
    for (size_t i = 0; i < metadata_count; ++i) {
      json_object_set_new(object, metadata[i].key, json_string(metadata[i].value));
    }
    json_object_set_new(root, kMetadataKey, object);
  }
  uint64_t at = 0;
  for (size_t i = 0; i < count; ++i) {
    json_object_set_new(root, names[i], describe(tensors[i], at));
    at += tensors[i]->bytes;
  }
  char *text = json_dumps(root, JSON_COMPACT);
  size_t expected = count + (metadata_count != 0 ? 1 : 0);
  bool complete = text != NULL && json_object_size(root) == expected;
  json_decref(root);
  size_t used = text != NULL ? strlen(text) : 0;
  size_t padded = (used + 7) / 8 * 8;
  char *out = complete ? malloc(8 + padded) : NULL;
  if (out != NULL) {
    for (int i = 0; i < 8; ++i) out[i] = (char)((uint64_t)padded >> (8 * i));
    memcpy(out + 8, text, used);
    memset(out + 8 + used, ' ', padded - used);  // the format allows trailing spaces
    *length = 8 + padded;
  }
  free(text);
  return out;
}
