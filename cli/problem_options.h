// SPDX-License-Identifier: Apache-2.0
// The options that describe a computation apart from its tensors, shared by run, explain and bench.
//
// Parsing only reads words and numbers; whether a value makes sense is decided by the library's own
// validation, so that there is one place that says so. Every option lands in a tsr_problem field or
// in the context, none is dropped.
#ifndef TESSERA_CLI_PROBLEM_OPTIONS_H_
#define TESSERA_CLI_PROBLEM_OPTIONS_H_

#include <argp.h>
#include <stdbool.h>
#include <stdint.h>

#include <tessera/tessera.h>

#include "message.h"
#include "parse.h"

typedef struct problem_options {
  parse_state *state;  // first: shared with the command's own parser
  tsr_causal causal;
  int64_t diagonal;
  bool window_given;
  bool window_kind_given;
  tsr_window window;
  int64_t window_diagonal;
  double scale;
  double softcap;
  double dropout;
  uint64_t seed, offset;
  bool seed_given;
  int64_t prefix;
  tsr_order order;
  tsr_dtype out_dtype;  // NONE: as q
  tsr_determinism determinism;
  const char *backend;  // without ":N"
  char backend_name[64];
  const char *kernel;
  tsr_device device;  // index also from --backend NAME:N
  bool device_given;  // --device names a kind
  int64_t threads;
} problem_options;

void problem_options_init(problem_options *options, parse_state *state);

// A child parser: its input is a problem_options.
extern const struct argp problem_options_argp;

// "NAME" or "NAME:N": name receives the first part, *index the second, if there is one.
bool parse_backend(const char *text, char *name, size_t capacity, int32_t *index,
                   cli_message *message);

// Copies everything but sizes and tensors into a problem. Refuses combinations that a problem has
// no field for (a window without a corner, a seed without dropout).
bool problem_options_apply(const problem_options *options, tsr_problem *problem,
                           cli_message *message);

// Sizes of a problem without tensors, for explain and bench.
typedef struct shape_options {
  parse_state *state;
  int64_t batch, heads_q, heads_kv, dim_qk, dim_v;
  int64_t seq_q[16], seq_k[16];
  size_t seq_q_count, seq_k_count;
  int dtype;   // tsr_dtype
  bool given;  // a size was given
  bool dtype_given;
} shape_options;

void shape_options_init(shape_options *options, parse_state *state);
extern const struct argp shape_options_argp;

// Fills sizes and the layouts of q, k, v, o for the i-th length of the lists. heads_kv and dim_v
// default to heads_q and dim_qk, seq_k to seq_q.
bool shape_options_apply(const shape_options *shape, const problem_options *options, size_t index,
                         tsr_problem *problem, cli_message *message);
size_t shape_options_count(const shape_options *shape);

// Makes a context with these threads (and, for tests of the runner, a runner); one-line message.
bool cli_context_create(tsr_context **context, int64_t threads, const tsr_runner *runner,
                        cli_message *message);

// Fills the message from the library's last one, with the option behind the field it names (shapes:
// as in field_names.h). Returns the exit status that fits.
int cli_library_error(tsr_status status, bool shapes, cli_message *message);

const char *cli_dtype_name(tsr_dtype dtype);  // "float32"
size_t cli_dtype_bytes(tsr_dtype dtype);

#endif  // TESSERA_CLI_PROBLEM_OPTIONS_H_
