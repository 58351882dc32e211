// SPDX-License-Identifier: Apache-2.0
// The subcommands. Each takes argv with its own name first and returns an exit status of message.h.
#ifndef TESSERA_CLI_COMMANDS_H_
#define TESSERA_CLI_COMMANDS_H_

int command_info(int argc, char **argv);
int command_run(int argc, char **argv);
int command_demo(int argc, char **argv);
int command_explain(int argc, char **argv);
int command_check(int argc, char **argv);
int command_bench(int argc, char **argv);

#endif  // TESSERA_CLI_COMMANDS_H_
