// SPDX-License-Identifier: Apache-2.0
// What the two halves of `tessera bench` share: its options, the problems they name, exit statuses.
#ifndef TESSERA_CLI_BENCH_COMMAND_H_
#define TESSERA_CLI_BENCH_COMMAND_H_

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "bench/bench_attention.h"
#include "bench/suite.h"
#include "message.h"
#include "parse.h"
#include "problem_options.h"

typedef struct bench_options {
  parse_state state;
  problem_options problem;
  shape_options shape;
  int pass;
  int64_t repeats, warmup;
  double sample_seconds;
  bool no_check, standard, memory, forced, json;
  const char *plot, *records;
  bench_suite_row suite[BENCH_SUITE_ROWS_MAX];
  size_t suite_rows;
} bench_options;

// Lengths of the lists, or rows of the suite.
size_t bench_count(const bench_options *options);

// Problem of the i-th length or row. False: refused.
bool bench_make_request(const bench_options *options, tsr_context *context, size_t i,
                        bench_request *request, cli_message *message);

int bench_exit(bench_status status);

// Times every problem and prints; all of them have been planned once. Returns an exit status.
int bench_time(const bench_options *options, tsr_context *context, cli_message *message);

#endif  // TESSERA_CLI_BENCH_COMMAND_H_
