// SPDX-License-Identifier: Apache-2.0
// Output files that appear all together and whole, or not at all.
//
// Every output is first written to a temporary file in its own folder and flushed to disk; only
// when all are complete are they renamed into place, and a rename that fails takes back those
// before it. SIGINT, SIGTERM and SIGHUP before the renames remove the temporaries.
#ifndef TESSERA_CLI_ATOMIC_OUTPUT_H_
#define TESSERA_CLI_ATOMIC_OUTPUT_H_

#include <stdbool.h>
#include <stddef.h>

#include "message.h"
#include "tensor_file.h"

enum { OUTPUT_MAX = 16 };

typedef struct output_tensor {
  const char *option;  // "--o", for messages
  const char *spec;    // "o.npy" or "out.safetensors[:name]"
  const char *name;    // tensor name when the spec has none
  const file_tensor *tensor;
} output_tensor;

// Checks before any work that every spec names a supported format and a folder that can be written,
// and that no two outputs collide. Touches no file.
bool output_check(const output_tensor *outputs, size_t count, cli_message *message);

// Writes all outputs; tensors that share one .safetensors path go into one file, in this order.
bool output_write_all(const output_tensor *outputs, size_t count, cli_message *message);

// Writes one block of text the same way (plots, reports).
bool output_write_text(const char *path, const char *text, size_t length, cli_message *message);

#endif  // TESSERA_CLI_ATOMIC_OUTPUT_H_
