// SPDX-License-Identifier: Apache-2.0
// Fuzz target of the .npy reader. Any input must be refused with one printable line, or give a
// tensor whose shape, strides and bytes agree, and that survives being written and read again.
// Built by libFuzzer (-fsanitize=fuzzer) or with replay_main.c, which runs files through it.
#include <stdlib.h>
#include <string.h>

#include "npy.h"
#include "oracle.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void check_round_trip(const file_tensor *tensor) {
  char header[1024];
  size_t length = npy_format_header(tensor, header, sizeof header);
  ORACLE(length != 0 && length % 64 == 0);
  uint8_t *whole = malloc(length + tensor->bytes + 1);
  ORACLE(whole != NULL);
  memcpy(whole, header, length);
  memcpy(whole + length, tensor->data, tensor->bytes);
  byte_source source;
  source_from_memory(&source, whole, length + tensor->bytes);
  file_tensor again;
  cli_message message;
  ORACLE(npy_read(&again, &source, true, &message));
  ORACLE(again.dtype == tensor->dtype && again.rank == tensor->rank);
  ORACLE(again.count == tensor->count && again.bytes == tensor->bytes);
  ORACLE(memcmp(again.data, tensor->data, tensor->bytes) == 0);
  file_tensor_free(&again);
  free(whole);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
  if (size == 0) return 0;
  for (int bf16 = 0; bf16 < 2; ++bf16) {
    byte_source source;
    source_from_memory(&source, data, size);
    file_tensor tensor;
    cli_message message = {.text = ""};
    if (npy_read(&tensor, &source, bf16 != 0, &message)) {
      oracle_check_tensor(&tensor);
      check_round_trip(&tensor);
    } else {
      ORACLE(tensor.data == NULL);
      oracle_check_message(&message);
    }
    file_tensor_free(&tensor);
  }
  return 0;
}
