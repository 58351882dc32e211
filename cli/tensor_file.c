// SPDX-License-Identifier: Apache-2.0
// Loaded tensors: layout arithmetic with overflow checks, element access, and opening by name.
#include "tensor_file.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "npy.h"
#include "safetensors.h"
#include "source.h"

static const file_dtype_row kDtypes[FILE_DTYPE_END] = {
    [FILE_F32] = {"F32", "<f4", 32},       [FILE_F16] = {"F16", "<f2", 16},
    [FILE_BF16] = {"BF16", "<V2", 16},     [FILE_F64] = {"F64", "<f8", 64},
    [FILE_I32] = {"I32", "<i4", 32},       [FILE_I64] = {"I64", "<i8", 64},
    [FILE_U8] = {"U8", "|u1", 8},          [FILE_BOOL] = {"BOOL", "|b1", 8},
    [FILE_I8] = {"I8", "|i1", 8},          [FILE_F8_E4M3] = {"F8_E4M3", NULL, 8},
    [FILE_F8_E5M2] = {"F8_E5M2", NULL, 8}, [FILE_I16] = {"I16", NULL, 16},
    [FILE_U16] = {"U16", NULL, 16},        [FILE_U32] = {"U32", NULL, 32},
    [FILE_U64] = {"U64", NULL, 64},        [FILE_F4] = {"F4", NULL, 4},
    [FILE_F6_E2M3] = {"F6_E2M3", NULL, 6}, [FILE_F6_E3M2] = {"F6_E3M2", NULL, 6},
    [FILE_F8_E8M0] = {"F8_E8M0", NULL, 8}, [FILE_C64] = {"C64", NULL, 64},
};

const file_dtype_row *file_dtype_info(file_dtype dtype) {
  return &kDtypes[dtype];
}

bool file_dtype_from_name(const char *name, file_dtype *out) {
  for (int i = 0; i < FILE_DTYPE_END; ++i) {
    if (strcmp(name, kDtypes[i].name) == 0) {
      *out = (file_dtype)i;
      return true;
    }
  }
  return false;
}

const char *file_shape_text(const file_tensor *tensor, char *buffer, size_t capacity) {
  size_t used = (size_t)snprintf(buffer, capacity, "[");
  for (int i = 0; i < tensor->rank && used < capacity; ++i) {
    used += (size_t)snprintf(buffer + used, capacity - used, "%s%" PRId64, i != 0 ? ", " : "",
                             tensor->shape[i]);
  }
  if (used < capacity) snprintf(buffer + used, capacity - used, "]");
  return buffer;
}

bool file_tensor_layout(file_tensor *tensor, file_dtype dtype, int rank, const int64_t *shape,
                        bool fortran_order, cli_message *message) {
  *tensor = (file_tensor){.dtype = dtype, .rank = rank, .count = 1};
  if (rank < 0 || rank > FILE_MAX_RANK) {
    return cli_fail(message, "has %d dimensions; accepted: up to %d", rank, FILE_MAX_RANK);
  }
  bool empty = false;
  for (int i = 0; i < rank; ++i) {
    if (shape[i] < 0) {
      return cli_fail(message, "shape has dimension %" PRId64 "; accepted: 0 and more", shape[i]);
    }
    tensor->shape[i] = shape[i];
    empty |= shape[i] == 0;
  }
  // Strides are products of the dimensions inside; an empty tensor has no address to compute, so
  // its products (which may overflow although it holds nothing) are not formed.
  for (int step = 0; step < rank; ++step) {
    int i = fortran_order ? step : rank - 1 - step;
    tensor->stride[i] = tensor->count;
    if (empty) continue;
    if (__builtin_mul_overflow(tensor->count, shape[i], &tensor->count)) {
      return cli_fail(message, "shape has more than 2^63 elements");
    }
  }
  if (empty) tensor->count = 0;
  uint64_t bits;
  if (__builtin_mul_overflow((uint64_t)tensor->count, (uint64_t)kDtypes[dtype].bits, &bits) ||
      bits / 8 > INT64_MAX) {
    return cli_fail(message, "%" PRId64 " elements of %s pass 2^63 bytes", tensor->count,
                    kDtypes[dtype].name);
  }
  if (bits % 8 != 0) {
    return cli_fail(message, "%" PRId64 " elements of %s are no whole number of bytes",
                    tensor->count, kDtypes[dtype].name);
  }
  tensor->bytes = (size_t)(bits / 8);
  return true;
}

bool file_tensor_allocate(file_tensor *tensor, cli_message *message) {
  size_t rounded = (tensor->bytes + 63) / 64 * 64;
  tensor->data = aligned_alloc(64, rounded != 0 ? rounded : 64);
  if (tensor->data == NULL) return cli_fail_memory(message, tensor->bytes);
  return true;
}

void file_tensor_free(file_tensor *tensor) {
  free(tensor->data);
  *tensor = (file_tensor){.dtype = FILE_F32};
}

static bool ends_with(const char *text, const char *tail) {
  size_t n = strlen(text), m = strlen(tail);
  return n >= m && memcmp(text + n - m, tail, m) == 0;
}

bool file_spec_split(const char *spec, char *path, size_t capacity, const char **name,
                     file_format *format, cli_message *message) {
  static const char kMarker[] = ".safetensors:";
  *name = "";
  size_t length = strlen(spec);
  const char *marker = strstr(spec, kMarker);
  if (marker != NULL) {
    length = (size_t)(marker - spec) + sizeof kMarker - 2;
    *name = marker + sizeof kMarker - 1;
    *format = FILE_FORMAT_SAFETENSORS;
    if (**name == 0) return cli_fail(message, "no tensor name follows the colon");
  } else if (ends_with(spec, ".safetensors")) {
    *format = FILE_FORMAT_SAFETENSORS;
  } else if (ends_with(spec, ".npy")) {
    *format = FILE_FORMAT_NPY;
  } else {
    return cli_fail(message,
                    "file name has another extension; accepted: .npy, .safetensors, "
                    ".safetensors:NAME");
  }
  if (length >= capacity) return cli_fail(message, "file name is %zu bytes long", length);
  memcpy(path, spec, length);
  path[length] = 0;
  return true;
}

// Picks the wanted tensor of an opened .safetensors file.
static const safetensors_entry *pick_entry(const safetensors_file *file, const char *name,
                                           const char *default_name, cli_message *message) {
  const char *wanted = name[0] != 0 ? name : default_name;
  const safetensors_entry *entry = NULL;
  if (wanted != NULL) entry = safetensors_find(file, wanted);
  if (entry == NULL && name[0] == 0 && file->count == 1) entry = &file->entries[0];
  if (entry != NULL) return entry;
  char list[300] = "";
  size_t used = 0;
  for (size_t i = 0; i < file->count && used + 80 < sizeof list; ++i) {
    used += (size_t)snprintf(list + used, sizeof list - used, "%s%.60s", i != 0 ? ", " : "",
                             file->entries[i].name);
    if (i == 5 && file->count > 6) {
      snprintf(list + used, sizeof list - used, ", ...");
      break;
    }
  }
  if (wanted != NULL) {
    cli_fail(message, "has no tensor \"%.80s\"; it has %zu: %s", wanted, file->count, list);
  } else {
    cli_fail(message, "has %zu tensors, name one as FILE.safetensors:NAME; it has: %s", file->count,
             list);
  }
  return NULL;
}

static bool read_safetensors(file_tensor *tensor, const byte_source *source, const char *name,
                             const char *default_name, cli_message *message) {
  safetensors_file file;
  if (!safetensors_parse(&file, source, message)) return false;
  const safetensors_entry *entry = pick_entry(&file, name, default_name, message);
  bool ok = entry != NULL && safetensors_load(tensor, &file, entry, source, message);
  safetensors_free(&file);
  return ok;
}

bool file_tensor_read(file_tensor *tensor, const char *spec, const char *default_name,
                      bool void2_is_bf16, cli_message *message) {
  *tensor = (file_tensor){.dtype = FILE_F32};
  char path[4096];
  const char *name;
  file_format format;
  if (!file_spec_split(spec, path, sizeof path, &name, &format, message)) {
    return cli_fail_in(message, spec);
  }
  byte_source source;
  if (!source_open(&source, path, message)) return cli_fail_in(message, path);
  bool ok = format == FILE_FORMAT_NPY
                ? npy_read(tensor, &source, void2_is_bf16, message)
                : read_safetensors(tensor, &source, name, default_name, message);
  source_close(&source);
  if (!ok) {
    file_tensor_free(tensor);
    return cli_fail_in(message, spec);
  }
  return true;
}

// IEEE binary16: value = (1 + f/1024) 2^(e-15), subnormal f/1024 2^-14.
double file_f16_to_double(uint16_t bits) {
  int exponent = (bits >> 10) & 31;
  double fraction = (double)(bits & 1023) / 1024.0;
  double value;
  if (exponent == 31) {
    value = (bits & 1023) != 0 ? (double)NAN : (double)INFINITY;
  } else if (exponent == 0) {
    value = ldexp(fraction, -14);
  } else {
    value = ldexp(1.0 + fraction, exponent - 15);
  }
  return (bits & 0x8000) != 0 ? -value : value;
}

double file_bf16_to_double(uint16_t bits) {
  uint32_t wide = (uint32_t)bits << 16;
  float value;
  memcpy(&value, &wide, sizeof value);
  return (double)value;
}

// The small formats that can be used directly: OCP e4m3 (no infinity, NaN = S.1111.111) and e5m2.
static double f8_to_double(uint8_t bits, int mantissa_bits, int bias, bool e4m3) {
  int exponent_mask = (1 << (7 - mantissa_bits)) - 1;
  int exponent = (bits >> mantissa_bits) & exponent_mask;
  int mantissa = bits & ((1 << mantissa_bits) - 1);
  double scale = (double)(1 << mantissa_bits);
  double value;
  if (e4m3 && (bits & 0x7f) == 0x7f) {
    value = (double)NAN;
  } else if (!e4m3 && exponent == exponent_mask) {
    value = mantissa != 0 ? (double)NAN : (double)INFINITY;
  } else if (exponent == 0) {
    value = ldexp(mantissa / scale, 1 - bias);
  } else {
    value = ldexp(1.0 + mantissa / scale, exponent - bias);
  }
  return (bits & 0x80) != 0 ? -value : value;
}

static double element(const file_tensor *tensor, int64_t offset) {
  const uint8_t *p = (const uint8_t *)tensor->data + offset * (kDtypes[tensor->dtype].bits / 8);
  float f;
  double d;
  uint16_t h;
  int32_t i;
  int64_t l;
  switch (tensor->dtype) {
    case FILE_F32:
      memcpy(&f, p, 4);
      return (double)f;
    case FILE_F64:
      memcpy(&d, p, 8);
      return d;
    case FILE_F16:
      memcpy(&h, p, 2);
      return file_f16_to_double(h);
    case FILE_BF16:
      memcpy(&h, p, 2);
      return file_bf16_to_double(h);
    case FILE_I32:
      memcpy(&i, p, 4);
      return (double)i;
    case FILE_I64:
      memcpy(&l, p, 8);
      return (double)l;
    case FILE_U8:
      return (double)*p;
    case FILE_BOOL:
      return *p != 0 ? 1.0 : 0.0;
    case FILE_I8:
      return (double)(int8_t)*p;
    case FILE_F8_E4M3:
      return f8_to_double(*p, 3, 7, true);
    case FILE_F8_E5M2:
      return f8_to_double(*p, 2, 15, false);
    default:
      return (double)NAN;
  }
}

double file_tensor_get(const file_tensor *tensor, int64_t flat_index) {
  int64_t offset = 0;
  for (int i = tensor->rank - 1; i >= 0; --i) {
    offset += flat_index % tensor->shape[i] * tensor->stride[i];
    flat_index /= tensor->shape[i];
  }
  return element(tensor, offset);
}

static bool may_hold_nan(file_dtype dtype) {
  return dtype == FILE_F32 || dtype == FILE_F16 || dtype == FILE_BF16 || dtype == FILE_F64 ||
         dtype == FILE_F8_E4M3 || dtype == FILE_F8_E5M2;
}

int64_t file_tensor_count_nan(const file_tensor *tensor, int64_t *first) {
  int64_t found = 0;
  *first = -1;
  if (!may_hold_nan(tensor->dtype)) return 0;
  // Memory order equals C order unless the file was in Fortran order; the index reported follows
  // the C order, so a Fortran tensor is walked by index.
  bool dense = true;
  for (int i = 1; i < tensor->rank; ++i) dense &= tensor->stride[i - 1] >= tensor->stride[i];
  for (int64_t i = 0; i < tensor->count; ++i) {
    double value = dense ? element(tensor, i) : file_tensor_get(tensor, i);
    if (!isnan(value)) continue;
    if (found++ == 0) *first = i;
  }
  return found;
}
