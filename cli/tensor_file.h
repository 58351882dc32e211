// SPDX-License-Identifier: Apache-2.0
// Tensors in files: the element types, one loaded tensor, and "path" or "path.safetensors:name".
//
// The file readers (npy.h, safetensors.h) fill a file_tensor; every length they take from a file
// has been compared with the file's real size first. Callers: all subcommands that read tensors.
#ifndef TESSERA_CLI_TENSOR_FILE_H_
#define TESSERA_CLI_TENSOR_FILE_H_

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "message.h"

enum { FILE_MAX_RANK = 8 };

// Element types that files can hold. The first group can be used by the subcommands; the rest can
// stand in a .safetensors file next to tensors that are used.
typedef enum file_dtype {
  FILE_F32 = 0,
  FILE_F16,
  FILE_BF16,
  FILE_F64,
  FILE_I32,
  FILE_I64,
  FILE_U8,
  FILE_BOOL,
  FILE_I8,
  FILE_F8_E4M3,
  FILE_F8_E5M2,
  FILE_I16,
  FILE_U16,
  FILE_U32,
  FILE_U64,
  FILE_F4,
  FILE_F6_E2M3,
  FILE_F6_E3M2,
  FILE_F8_E8M0,
  FILE_C64,
  FILE_DTYPE_END,
} file_dtype;

typedef struct file_dtype_row {
  const char *name;       // as messages and .safetensors spell it: "F32"
  const char *npy_descr;  // what the .npy writer puts, NULL when it cannot
  unsigned bits;          // bits per element
} file_dtype_row;

const file_dtype_row *file_dtype_info(file_dtype dtype);

// Finds a .safetensors dtype name; false when unknown.
bool file_dtype_from_name(const char *name, file_dtype *out);

// One tensor in memory. `data` is 64-byte aligned (also when it holds no byte); strides count
// elements. Sub-byte element types are dense and cannot be indexed.
typedef struct file_tensor {
  file_dtype dtype;
  int rank;
  int64_t shape[FILE_MAX_RANK];
  int64_t stride[FILE_MAX_RANK];
  int64_t count;  // elements in all
  size_t bytes;
  void *data;
} file_tensor;

// Sets shape, C-order (or Fortran-order) strides, count and bytes; checks every product.
bool file_tensor_layout(file_tensor *tensor, file_dtype dtype, int rank, const int64_t *shape,
                        bool fortran_order, cli_message *message);
// Allocates `data` for the layout already set.
bool file_tensor_allocate(file_tensor *tensor, cli_message *message);
void file_tensor_free(file_tensor *tensor);

// Reads "path.npy" or "path.safetensors[:name]". `void2_is_bf16`: a .npy of two-byte void elements
// ('<V2') is bfloat16, which the file itself cannot say. `default_name` is taken from a
// .safetensors file when the text names no tensor; NULL demands a file with exactly one.
bool file_tensor_read(file_tensor *tensor, const char *spec, const char *default_name,
                      bool void2_is_bf16, cli_message *message);

// Splits "path.safetensors:name" in place of `path` (capacity bytes). name is "" when absent.
// False when the extension is neither .npy nor .safetensors.
typedef enum file_format { FILE_FORMAT_NPY = 0, FILE_FORMAT_SAFETENSORS = 1 } file_format;
bool file_spec_split(const char *spec, char *path, size_t capacity, const char **name,
                     file_format *format, cli_message *message);

// Element at a flat C-order index, as double. For floating, integer and boolean types of 8 bits up.
double file_tensor_get(const file_tensor *tensor, int64_t flat_index);

// Number of NaN elements; *first receives the flat index of the first. 0 for integer types.
int64_t file_tensor_count_nan(const file_tensor *tensor, int64_t *first);

// "[2, 4, 16, 64]" into a static-size buffer of the caller.
const char *file_shape_text(const file_tensor *tensor, char *buffer, size_t capacity);

double file_f16_to_double(uint16_t bits);
double file_bf16_to_double(uint16_t bits);

#endif  // TESSERA_CLI_TENSOR_FILE_H_
