// SPDX-License-Identifier: Apache-2.0
// What commands print: aligned tables, quantities with units, and JSON.
//
// A terminal can be narrow, a pipe has no width: tables are aligned by their widest cell and never
// cut. JSON has no infinities, so a number that is not finite is written as null.
#ifndef TESSERA_CLI_TEXT_H_
#define TESSERA_CLI_TEXT_H_

#include <jansson.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdio.h>

enum { TABLE_COLUMNS = 16, TABLE_CELL = 96 };

typedef struct text_table {
  int columns;
  bool right[TABLE_COLUMNS];  // right-aligned column
  size_t rows;
  size_t capacity;
  char (*cells)[TABLE_CELL];  // rows * columns
  bool broken;                // memory ran out; printing says so
} text_table;

// The first row is the header; `alignment` has one character per column: 'l' or 'r'.
void table_begin(text_table *table, const char *alignment, const char *const *header);
void table_cell(text_table *table, const char *format, ...) __attribute__((format(printf, 2, 3)));
void table_print(const text_table *table, FILE *out);
void table_free(text_table *table);

// Each returns `buffer`.
const char *text_seconds(double seconds, char *buffer, size_t capacity);  // "1.23 ms"
const char *text_bytes(double bytes, char *buffer, size_t capacity);      // "4.0 MiB"
const char *text_flops(double flops, char *buffer, size_t capacity);      // "2.15 GFLOP"

json_t *json_real_or_null(double value);

// Prints one document and a line feed, frees it. False when the output could not be written.
bool json_print(json_t *root);
bool json_print_line(json_t *root);

// Flushes stdout; false (with the message on stderr) when something could not be written.
bool text_finish(void);

#endif  // TESSERA_CLI_TEXT_H_
