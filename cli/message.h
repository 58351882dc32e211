// SPDX-License-Identifier: Apache-2.0
// One-line error messages of the command line tool.
//
// Every refusal reads "<file or option>: <what was found>; accepted: <what would do>". A message is
// one line whatever a file name, a header or a tensor name holds: control bytes are replaced before
// anything is printed. The innermost reader writes the finding, callers put their name in front.
#ifndef TESSERA_CLI_MESSAGE_H_
#define TESSERA_CLI_MESSAGE_H_

#include <stdbool.h>
#include <stdint.h>

enum { CLI_MESSAGE_MAX = 2048 };

typedef struct cli_message {
  char text[CLI_MESSAGE_MAX];
} cli_message;

// Exit statuses, the same for every subcommand.
enum {
  CLI_EXIT_OK = 0,
  CLI_EXIT_FAILED = 1,     // a check failed, or the work itself did (device, memory, disk)
  CLI_EXIT_BAD_INPUT = 2,  // a file, an option or a problem was refused
};

// Writes the formatted text and returns false, so that `return cli_fail(...)` is one statement.
bool cli_fail(cli_message *message, const char *format, ...) __attribute__((format(printf, 2, 3)));

// Puts "prefix: " in front of the text already there. Returns false.
bool cli_fail_in(cli_message *message, const char *prefix);

// Prints "tessera: text" as exactly one line on stderr.
void cli_print_error(const cli_message *message);

// The exit status for a failed memory request is CLI_EXIT_FAILED, not CLI_EXIT_BAD_INPUT; readers
// mark the message so that the caller can tell.
bool cli_fail_memory(cli_message *message, uint64_t bytes);
bool cli_message_is_memory(const cli_message *message);

#endif  // TESSERA_CLI_MESSAGE_H_
