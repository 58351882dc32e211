// SPDX-License-Identifier: Apache-2.0
// Numbers, words and lists from option values, and argp with one-line errors.
//
// argp alone prints several lines and leaves with status 64; here every refusal is one line that
// names the option, what was found and what is accepted, and the caller chooses the status.
#ifndef TESSERA_CLI_PARSE_H_
#define TESSERA_CLI_PARSE_H_

#include <argp.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "message.h"

// Whole-string numbers. The message names the value and the accepted range.
bool parse_int64(const char *text, int64_t least, int64_t most, int64_t *out, cli_message *message);
bool parse_uint64(const char *text, uint64_t *out, cli_message *message);
bool parse_real(const char *text, double *out, cli_message *message);

// A comma-separated list of at most `capacity` integers.
bool parse_int64_list(const char *text, int64_t least, int64_t most, int64_t *out, size_t capacity,
                      size_t *count, cli_message *message);

// One of the words of a table that ends with a NULL word.
typedef struct parse_word {
  const char *word;
  int value;
} parse_word;
bool parse_choice(const char *text, const parse_word *words, int *out, cli_message *message);

typedef enum parse_result {
  PARSE_OK = 0,
  PARSE_HELP = 1,  // --help was printed
  PARSE_BAD = 2,   // message says what was wrong
} parse_result;

// State shared by a command's own parser and its children; first member of every command's input.
typedef struct parse_state {
  cli_message *message;
  bool failed;  // message is set
  bool help;
  int next;  // argv index after the one where argp stopped
} parse_state;

// Keys of options without a short form; each parser counts from its own base.
enum {
  PARSE_KEY_HELP = 0x1000,
  PARSE_KEY_PROBLEM = 0x1100,
  PARSE_KEY_SHAPE = 0x1200,
  PARSE_KEY_COMMAND = 0x1300,
};

// Marks the state failed after prefixing the message with the option. Returns EINVAL for argp.
error_t parse_refuse(parse_state *state, const char *option);

// The cases every parser shares: --help and errors found by argp itself. ARGP_ERR_UNKNOWN if the
// key is none of them.
error_t parse_common(int key, struct argp_state *argp_state, parse_state *state);

// Runs argp over argv[1..]; `usage_name` is what help calls the command ("tessera run").
// Positional arguments are refused unless the command's parser takes ARGP_KEY_ARG.
parse_result parse_command(const struct argp *argp, const char *usage_name, int argc, char **argv,
                           parse_state *state, void *input);

#define PARSE_HELP_OPTION \
  { "help", PARSE_KEY_HELP, 0, 0, "Give this help list", -1 }

#endif  // TESSERA_CLI_PARSE_H_
