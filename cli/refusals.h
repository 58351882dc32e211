// SPDX-License-Identifier: Apache-2.0
// Which cases a backend may refuse: the list that `tessera check --refusals` reads.
//
// A line is "PASS DTYPE GROUP/CASE", each a pattern as a shell has it, with '#' before a comment:
//     backward f32 headdims/dim_160   # float32 backward ends at 128 columns
// A case that is refused or skipped and on no line is a failure. So is a line of which cases ran and none
// was refused: a list that nobody shortens would hide what is lost later.
#ifndef TESSERA_CLI_REFUSALS_H_
#define TESSERA_CLI_REFUSALS_H_

#include <stdbool.h>
#include <stdint.h>

#include "message.h"
#include "tests/support/check.h"

typedef struct refusal_rule {
  char pass[16], dtype[16], name[128];
  int line;
  int64_t ran, refused;
} refusal_rule;

typedef struct refusal_list {
  refusal_rule *rules;
  int32_t count;
} refusal_list;

// Reads a file. On failure *list is empty and the message names file, line and what is accepted.
bool refusals_read(refusal_list *list, const char *path, cli_message *message);
void refusals_free(refusal_list *list);

// Counts a record; whether one that is refused or skipped is on the list.
bool refusals_allow(refusal_list *list, const tsr_check_record *record);

// The first line of which cases ran and none was refused; NULL: there is none.
const refusal_rule *refusals_stale(const refusal_list *list);

#endif  // TESSERA_CLI_REFUSALS_H_
