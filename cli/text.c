// SPDX-License-Identifier: Apache-2.0
// Tables, units and JSON on standard output (see text.h).
#define _GNU_SOURCE
#include "text.h"

#include <errno.h>
#include <math.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

void table_begin(text_table *table, const char *alignment, const char *const *header) {
  *table = (text_table){.columns = (int)strlen(alignment)};
  for (int i = 0; i < table->columns; ++i) table->right[i] = alignment[i] == 'r';
  for (int i = 0; i < table->columns; ++i) table_cell(table, "%s", header[i]);
}

void table_cell(text_table *table, const char *format, ...) {
  if (table->rows == table->capacity) {
    size_t capacity = table->capacity != 0 ? table->capacity * 2 : 64;
    void *cells = realloc(table->cells, capacity * TABLE_CELL);
    if (cells == NULL) {
      table->broken = true;
      return;
    }
    table->cells = cells;
    table->capacity = capacity;
  }
  va_list args;
  va_start(args, format);
  vsnprintf(table->cells[table->rows++], TABLE_CELL, format, args);
  va_end(args);
}

// Bytes that start a character: what a terminal shows as one column for the symbols used here.
static int width_of(const char *text) {
  int width = 0;
  for (; *text != 0; ++text) width += ((unsigned char)*text & 0xc0) != 0x80;
  return width;
}

void table_print(const text_table *table, FILE *out) {
  int width[TABLE_COLUMNS] = {0};
  if (table->broken) fprintf(out, "(table cut: out of memory)\n");
  for (size_t i = 0; i < table->rows; ++i) {
    int column = (int)(i % (size_t)table->columns);
    int w = width_of(table->cells[i]);
    if (w > width[column]) width[column] = w;
  }
  for (size_t i = 0; i < table->rows; ++i) {
    int column = (int)(i % (size_t)table->columns);
    const char *text = table->cells[i];
    int pad = width[column] - width_of(text);
    bool last = column + 1 == table->columns;
    if (table->right[column]) {
      fprintf(out, "%*s%s%s", pad, "", text, last ? "\n" : "  ");
    } else {
      fprintf(out, "%s%*s%s", text, last ? 0 : pad, "", last ? "\n" : "  ");
    }
  }
}

void table_free(text_table *table) {
  free(table->cells);
  *table = (text_table){.columns = 0};
}

const char *text_seconds(double seconds, char *buffer, size_t capacity) {
  const char *unit = "s";
  if (seconds < 1e-6) {
    seconds *= 1e9;
    unit = "ns";
  } else if (seconds < 1e-3) {
    seconds *= 1e6;
    unit = "us";
  } else if (seconds < 1.0) {
    seconds *= 1e3;
    unit = "ms";
  }
  snprintf(buffer, capacity, "%.*f %s", seconds < 10 ? 2 : 1, seconds, unit);
  return buffer;
}

static const char *scaled(double value, double base, const char *const *units, int count,
                          char *buffer, size_t capacity) {
  int i = 0;
  while (i + 1 < count && value >= base) {
    value /= base;
    ++i;
  }
  snprintf(buffer, capacity, "%.*f %s",
           i == 0 || value >= 100 ? 0
           : value < 10           ? 2
                                  : 1,
           value, units[i]);
  return buffer;
}

const char *text_bytes(double bytes, char *buffer, size_t capacity) {
  static const char *const kUnits[] = {"B", "KiB", "MiB", "GiB", "TiB"};
  return scaled(bytes, 1024.0, kUnits, 5, buffer, capacity);
}

const char *text_flops(double flops, char *buffer, size_t capacity) {
  static const char *const kUnits[] = {"FLOP", "kFLOP", "MFLOP", "GFLOP", "TFLOP", "PFLOP"};
  return scaled(flops, 1000.0, kUnits, 6, buffer, capacity);
}

json_t *json_real_or_null(double value) {
  return isfinite(value) ? json_real(value) : json_null();
}

static bool print_document(json_t *root, size_t flags) {
  int failed = json_dumpf(root, stdout, flags | JSON_PRESERVE_ORDER | JSON_REAL_PRECISION(9));
  json_decref(root);
  if (failed != 0) {
    fprintf(stderr, "tessera: standard output cannot be written: %s\n", strerror(errno));
    return false;
  }
  putchar('\n');
  return true;
}

bool json_print(json_t *root) {
  return print_document(root, JSON_INDENT(2));
}

bool json_print_line(json_t *root) {
  return print_document(root, JSON_COMPACT);
}

bool text_finish(void) {
  if (fflush(stdout) == 0 && ferror(stdout) == 0) return true;
  fprintf(stderr, "tessera: standard output cannot be written: %s\n", strerror(errno));
  return false;
}
