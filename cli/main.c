// SPDX-License-Identifier: Apache-2.0
// tessera: the command line of the library. Finds the subcommand and hands over; says what there
// is. Exit status: 0 done, 1 a check or the work failed, 2 bad input (one line on stderr says
// what).
#include <stdio.h>
#include <string.h>

#include <tessera/tessera.h>

#include "commands.h"
#include "message.h"
#include "text.h"

static const struct {
  const char *name;
  int (*run)(int argc, char **argv);
  const char *summary;
} kCommands[] = {
    {"info", command_info, "backends, devices, caches, targets, and why something is absent"},
    {"run", command_run, "attention on Q, K, V from .npy or .safetensors files"},
    {"demo", command_demo,
     "every layer of a captured model on every backend, with errors and speed"},
    {"explain", command_explain, "which kernel would take a shape, and why"},
    {"check", command_check, "conformance of every backend on this machine"},
    {"bench", command_bench, "timings with their whole protocol"},
};
enum { kCommandCount = sizeof kCommands / sizeof kCommands[0] };

static void print_help(void) {
  printf(
      "Usage: tessera COMMAND [OPTION...]\n"
      "Exact attention on whatever this machine has, by the Tessera library.\n\n");
  for (int i = 0; i < kCommandCount; ++i) {
    printf("  %-8s %s\n", kCommands[i].name, kCommands[i].summary);
  }
  printf(
      "\n`tessera COMMAND --help' lists the options of a command; all take --json.\n"
      "Exit status: 0 done, 1 a check or the work failed, 2 bad input.\n");
}

int main(int argc, char **argv) {
  cli_message message;
  if (argc < 2) {
    cli_fail(&message,
             "no command given; accepted: info, run, demo, explain, check, bench "
             "(see tessera --help)");
    cli_print_error(&message);
    return CLI_EXIT_BAD_INPUT;
  }
  if (strcmp(argv[1], "--help") == 0 || strcmp(argv[1], "help") == 0) {
    print_help();
    return text_finish() ? CLI_EXIT_OK : CLI_EXIT_FAILED;
  }
  if (strcmp(argv[1], "--version") == 0) {
    printf("tessera %s\n", tsr_version_string());
    return text_finish() ? CLI_EXIT_OK : CLI_EXIT_FAILED;
  }
  for (int i = 0; i < kCommandCount; ++i) {
    if (strcmp(argv[1], kCommands[i].name) != 0) continue;
    int status = kCommands[i].run(argc - 1, argv + 1);
    return text_finish() || status != CLI_EXIT_OK ? status : CLI_EXIT_FAILED;
  }
  cli_fail(&message, "unknown command '%s'; accepted: info, run, demo, explain, check, bench",
           argv[1]);
  cli_print_error(&message);
  return CLI_EXIT_BAD_INPUT;
}
