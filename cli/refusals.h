// SPDX-License-Identifier: Apache-2.0
// Which cases a backend may refuse: the list that `tessera check --refusals` reads.
//
// A line is "PASS DTYPE GROUP/CASE", each a pattern as a shell has it, with '#' before a comment:
//     backward f32 headdims/dim_160             # float32 backward ends at 128 columns
//     forward f16 extreme/values_tiny inexact   # the device takes such numbers for 0
// A case that is refused or skipped and on no line is a failure. "inexact" lets results break their bounds
// instead, by finite errors. A line of which cases ran and none needed it is a failure as well: a list that nobody
// shortens would hide what is lost later.
#ifndef TESSERA_CLI_REFUSALS_H_
#define TESSERA_CLI_REFUSALS_H_

#include <stdbool.h>
#include <stdint.h>

#include "message.h"
#include "tests/support/check.h"

typedef struct refusal_rule {
  char pass[16], dtype[16], name[128];
  bool inexact;
  int line;
  int64_t ran, needed;
} refusal_rule;

typedef struct refusal_list {
  refusal_rule *rules;
  int32_t count;
} refusal_list;

// Reads a file. On failure *list is empty and the message names file, line and what is accepted.
bool refusals_read(refusal_list *list, const char *path, cli_message *message);
void refusals_free(refusal_list *list);

// Counts a record, and what is made of it: a failure where it was refused or skipped and is on no line, a refusal where
// it failed and may be inexact, else its own verdict.
tsr_verdict refusals_judge(refusal_list *list, const tsr_check_record *record);

// The first line of which cases ran and none needed it; NULL: there is none.
const refusal_rule *refusals_stale(const refusal_list *list);

#endif  // TESSERA_CLI_REFUSALS_H_
