// SPDX-License-Identifier: Apache-2.0
// .npy reader and header writer (see npy.h). The header is a Python dictionary literal; the parser
// below takes exactly the subset that array writers produce: one dictionary, string keys, and
// string, boolean or integer-tuple values in any order, with an optional trailing comma.
#include "npy.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { kMagicBytes = 6, kDescrMax = 32 };
static const uint8_t kMagic[kMagicBytes] = {0x93, 'N', 'U', 'M', 'P', 'Y'};

typedef struct npy_header {
  char descr[kDescrMax];
  bool fortran_order;
  int rank;
  int64_t shape[FILE_MAX_RANK];
} npy_header;

typedef struct cursor {
  const char *at;
  const char *end;
} cursor;

static void skip_space(cursor *c) {
  while (c->at < c->end && (*c->at == ' ' || *c->at == '\n' || *c->at == '\t' || *c->at == '\r')) {
    ++c->at;
  }
}

static bool take(cursor *c, char wanted) {
  skip_space(c);
  if (c->at >= c->end || *c->at != wanted) return false;
  ++c->at;
  return true;
}

static bool take_word(cursor *c, const char *word) {
  skip_space(c);
  size_t n = strlen(word);
  if ((size_t)(c->end - c->at) < n || memcmp(c->at, word, n) != 0) return false;
  c->at += n;
  return true;
}

// A quoted string without escapes; anything that needs an escape is no dtype and no known key.
static bool take_string(cursor *c, char *out, size_t capacity) {
  skip_space(c);
  if (c->at >= c->end || (*c->at != '\'' && *c->at != '"')) return false;
  char quote = *c->at++;
  size_t n = 0;
  while (c->at < c->end && *c->at != quote) {
    if (*c->at == '\\' || n + 1 >= capacity) return false;
    out[n++] = *c->at++;
  }
  if (c->at >= c->end) return false;
  ++c->at;
  out[n] = 0;
  return true;
}

static bool take_dimension(cursor *c, int64_t *out) {
  skip_space(c);
  int64_t value = 0;
  int digits = 0;
  for (; c->at < c->end && *c->at >= '0' && *c->at <= '9'; ++c->at, ++digits) {
    if (__builtin_mul_overflow(value, (int64_t)10, &value) ||
        __builtin_add_overflow(value, (int64_t)(*c->at - '0'), &value)) {
      return false;
    }
  }
  // Python 2 wrote long integers as 3L.
  if (digits != 0 && c->at < c->end && *c->at == 'L') ++c->at;
  *out = value;
  return digits != 0;
}

static bool take_shape(cursor *c, npy_header *header, cli_message *message) {
  if (!take(c, '(')) return cli_fail(message, ".npy header: 'shape' is no tuple of integers");
  header->rank = 0;
  bool comma = true;
  while (!take(c, ')')) {
    int64_t dimension;
    if (!comma || !take_dimension(c, &dimension)) {
      return cli_fail(message, ".npy header: 'shape' is no tuple of integers from 0 to 2^63-1");
    }
    if (header->rank == FILE_MAX_RANK) {
      return cli_fail(message, "has more than %d dimensions; accepted: up to %d", FILE_MAX_RANK,
                      FILE_MAX_RANK);
    }
    header->shape[header->rank++] = dimension;
    comma = take(c, ',');
  }
  // "(5)" is a parenthesised integer in Python, not a tuple.
  if (header->rank == 1 && !comma) {
    return cli_fail(message, ".npy header: 'shape' is an integer, not a tuple");
  }
  return true;
}

static bool take_value(cursor *c, const char *key, npy_header *header, cli_message *message) {
  if (strcmp(key, "descr") == 0) {
    skip_space(c);
    if (c->at < c->end && *c->at == '[') {
      return cli_fail(message, "holds a structured array; accepted: a plain numeric array");
    }
    if (!take_string(c, header->descr, sizeof header->descr)) {
      return cli_fail(message, ".npy header: 'descr' is no short string");
    }
    return true;
  }
  if (strcmp(key, "fortran_order") == 0) {
    header->fortran_order = take_word(c, "True");
    if (!header->fortran_order && !take_word(c, "False")) {
      return cli_fail(message, ".npy header: 'fortran_order' is neither True nor False");
    }
    return true;
  }
  return take_shape(c, header, message);
}

static bool parse_header(const char *text, size_t length, npy_header *header,
                         cli_message *message) {
  static const char *const kKeys[3] = {"descr", "fortran_order", "shape"};
  unsigned seen = 0;
  cursor c = {text, text + length};
  if (!take(&c, '{')) return cli_fail(message, ".npy header is no dictionary");
  bool comma = true;
  while (!take(&c, '}')) {
    char key[kDescrMax];
    if (!comma || !take_string(&c, key, sizeof key) || !take(&c, ':')) {
      return cli_fail(message,
                      ".npy header is no dictionary of the keys descr, fortran_order, "
                      "shape");
    }
    unsigned index = 0;
    while (index < 3 && strcmp(key, kKeys[index]) != 0) ++index;
    if (index == 3) return cli_fail(message, ".npy header has the unknown key '%s'", key);
    if ((seen & (1u << index)) != 0) return cli_fail(message, ".npy header has '%s' twice", key);
    seen |= 1u << index;
    if (!take_value(&c, key, header, message)) return false;
    comma = take(&c, ',');
  }
  skip_space(&c);
  if (c.at != c.end) return cli_fail(message, ".npy header has text after its dictionary");
  for (unsigned i = 0; i < 3; ++i) {
    if ((seen & (1u << i)) == 0) return cli_fail(message, ".npy header has no '%s'", kKeys[i]);
  }
  return true;
}

static bool dtype_of(const char *descr, bool void2_is_bf16, file_dtype *out, cli_message *message) {
  static const struct {
    const char *code;
    file_dtype dtype;
  } kCodes[] = {{"f4", FILE_F32}, {"f2", FILE_F16}, {"f8", FILE_F64},  {"i4", FILE_I32},
                {"i8", FILE_I64}, {"u1", FILE_U8},  {"b1", FILE_BOOL}, {"i1", FILE_I8}};
  static const char kAccepted[] =
      "accepted: <f4 <f2 <f8 <i4 <i8 |u1 |i1 |b1, and bfloat16 as '<V2' with --dtype bf16";
  if (strcmp(descr, "bfloat16") == 0) {
    *out = FILE_BF16;
    return true;
  }
  const char *code = descr;
  char order = '<';
  if (*code == '<' || *code == '>' || *code == '|' || *code == '=') order = *code++;
  if (strcmp(code, "V2") == 0) {
    if (!void2_is_bf16) {
      return cli_fail(message,
                      "holds two-byte void elements (descr '%s'), as NumPy stores bfloat16; say "
                      "--dtype bf16 to read them so",
                      descr);
    }
    *out = FILE_BF16;
    return true;
  }
  for (size_t i = 0; i < sizeof kCodes / sizeof kCodes[0]; ++i) {
    if (strcmp(code, kCodes[i].code) != 0) continue;
    if (file_dtype_info(kCodes[i].dtype)->bits > 8 && order != '<') {
      return cli_fail(message,
                      "holds elements of byte order '%c' (descr '%s'); accepted: "
                      "little-endian '<'",
                      order, descr);
    }
    *out = kCodes[i].dtype;
    return true;
  }
  return cli_fail(message, "holds elements of descr '%s'; %s", descr, kAccepted);
}

// Reads the preamble: sets where the header text starts and how long it is, both inside the file.
static bool read_preamble(const byte_source *source, uint64_t *start, size_t *length,
                          cli_message *message) {
  uint8_t head[12] = {0};
  size_t have = source->size < sizeof head ? (size_t)source->size : sizeof head;
  if (!source_read(source, 0, head, have, message)) return false;
  size_t compare = have < kMagicBytes ? have : kMagicBytes;
  if (memcmp(head, kMagic, compare) != 0) {
    return cli_fail(message,
                    "is no .npy file: begins with %02x %02x %02x %02x; accepted: 93 "
                    "'NUMPY'",
                    head[0], head[1], head[2], head[3]);
  }
  if (have < 10) {
    return cli_fail(message, "is truncated: %" PRIu64 " bytes, shorter than a .npy preamble",
                    source->size);
  }
  unsigned major = head[6], minor = head[7];
  if (major < 1 || major > 3 || minor != 0) {
    return cli_fail(message, "is .npy version %u.%u; accepted: 1.0, 2.0, 3.0", major, minor);
  }
  uint64_t stated;
  if (major == 1) {
    *start = 10;
    stated = (uint64_t)head[8] | (uint64_t)head[9] << 8;
  } else {
    *start = 12;
    if (have < 12) return cli_fail(message, "is truncated inside its .npy preamble");
    stated = (uint64_t)head[8] | (uint64_t)head[9] << 8 | (uint64_t)head[10] << 16 |
             (uint64_t)head[11] << 24;
  }
  if (stated > NPY_HEADER_LIMIT) {
    return cli_fail(message, ".npy header of %" PRIu64 " bytes; accepted: up to %d", stated,
                    (int)NPY_HEADER_LIMIT);
  }
  if (stated > source->size - *start) {
    return cli_fail(message, "is truncated: .npy header of %" PRIu64 " bytes in a file of %" PRIu64,
                    stated, source->size);
  }
  *length = (size_t)stated;
  return true;
}

bool npy_read(file_tensor *tensor, const byte_source *source, bool void2_is_bf16,
              cli_message *message) {
  *tensor = (file_tensor){.dtype = FILE_F32};
  uint64_t start = 0;
  size_t length = 0;
  if (!read_preamble(source, &start, &length, message)) return false;
  char *text = malloc(length + 1);
  if (text == NULL) return cli_fail_memory(message, length + 1);
  npy_header header = {.rank = 0};
  file_dtype dtype = FILE_F32;
  bool ok = source_read(source, start, text, length, message) &&
            parse_header(text, length, &header, message) &&
            dtype_of(header.descr, void2_is_bf16, &dtype, message);
  free(text);
  if (!ok || !file_tensor_layout(tensor, dtype, header.rank, header.shape, header.fortran_order,
                                 message)) {
    return false;
  }
  uint64_t body = source->size - start - length;
  if (tensor->bytes != body) {
    char shape[160];
    return cli_fail(message, "%s: %" PRIu64 " bytes follow the header, shape %s of %s needs %zu",
                    tensor->bytes > body ? "is truncated" : "is longer than its shape", body,
                    file_shape_text(tensor, shape, sizeof shape), file_dtype_info(dtype)->name,
                    tensor->bytes);
  }
  if (!file_tensor_allocate(tensor, message)) return false;
  if (!source_read(source, start + length, tensor->data, tensor->bytes, message)) {
    file_tensor_free(tensor);
    return false;
  }
  return true;
}

size_t npy_format_header(const file_tensor *tensor, char *out, size_t capacity) {
  const char *descr = file_dtype_info(tensor->dtype)->npy_descr;
  if (descr == NULL) return 0;
  char text[512];
  int used =
      snprintf(text, sizeof text, "{'descr': '%s', 'fortran_order': False, 'shape': (", descr);
  for (int i = 0; i < tensor->rank; ++i) {
    used += snprintf(text + used, sizeof text - (size_t)used, "%s%" PRId64, i != 0 ? ", " : "",
                     tensor->shape[i]);
  }
  used += snprintf(text + used, sizeof text - (size_t)used, "%s), }", tensor->rank == 1 ? "," : "");
  size_t body = (size_t)used + 1;  // with the closing line feed
  size_t total = (10 + body + 63) / 64 * 64;
  if (total > capacity) return 0;
  size_t header = total - 10;
  memcpy(out, kMagic, kMagicBytes);
  out[6] = 1;
  out[7] = 0;
  out[8] = (char)(header & 0xff);
  out[9] = (char)(header >> 8);
  memcpy(out + 10, text, (size_t)used);
  memset(out + 10 + used, ' ', header - body);
  out[total - 1] = '\n';
  return total;
}
