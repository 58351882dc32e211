// SPDX-License-Identifier: Apache-2.0
// What must hold after any input, for both fuzz targets: a refusal is one printable line; a
// tensor's strides address exactly its bytes, and every element can be read.
#ifndef TESSERA_TESTS_FUZZ_READERS_ORACLE_H_
#define TESSERA_TESTS_FUZZ_READERS_ORACLE_H_

#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "message.h"
#include "tensor_file.h"

// Not assert(): it must also hold in builds with NDEBUG.
#define ORACLE(condition)                                                     \
  do {                                                                        \
    if (!(condition)) {                                                       \
      fprintf(stderr, "%s:%d: broken: %s\n", __FILE__, __LINE__, #condition); \
      abort();                                                                \
    }                                                                         \
  } while (0)

static inline void oracle_check_message(const cli_message *message) {
  const char *end = memchr(message->text, 0, sizeof message->text);
  ORACLE(end != NULL && end != message->text);
  size_t n = (size_t)(end - message->text);
  for (size_t i = 0; i < n; ++i) {
    ORACLE((unsigned char)message->text[i] >= 0x20 && message->text[i] != 0x7f);
  }
}

static inline void oracle_check_tensor(const file_tensor *tensor) {
  ORACLE(tensor->data != NULL && (uintptr_t)tensor->data % 64 == 0);
  ORACLE(tensor->rank >= 0 && tensor->rank <= FILE_MAX_RANK);
  unsigned bits = file_dtype_info(tensor->dtype)->bits;
  ORACLE((uint64_t)tensor->count * bits == (uint64_t)tensor->bytes * 8);
  int64_t last = 0, count = 1;
  for (int i = 0; i < tensor->rank; ++i) {
    ORACLE(tensor->shape[i] >= 0);
    if (tensor->count != 0) count *= tensor->shape[i];
    if (tensor->count != 0) last += (tensor->shape[i] - 1) * tensor->stride[i];
  }
  if (tensor->count == 0) return;
  ORACLE(count == tensor->count && last == tensor->count - 1);
  int64_t first;
  int64_t nans = file_tensor_count_nan(tensor, &first);
  ORACLE(nans >= 0 && nans <= tensor->count && (nans == 0) == (first < 0));
  if (bits < 8) return;
  volatile double sink = 0;
  for (int64_t i = 0; i < tensor->count; ++i) sink = file_tensor_get(tensor, i);
  (void)sink;
  char text[64];
  file_shape_text(tensor, text, sizeof text);
}

#endif  // TESSERA_TESTS_FUZZ_READERS_ORACLE_H_
