// SPDX-License-Identifier: Apache-2.0
// Which option set a field of tsr_problem: the library's messages name fields, a user of the
// command line knows options. Called wherever a library message is passed on.
#ifndef TESSERA_CLI_FIELD_NAMES_H_
#define TESSERA_CLI_FIELD_NAMES_H_

#include <stdbool.h>

#include "message.h"

// Puts the option in front of a message of the form "status: field...: found ...". Fields that no
// option sets leave it as it is. shapes: sizes come from --b, --sq, ... instead of files.
void cli_name_option(cli_message *message, bool shapes);

#endif  // TESSERA_CLI_FIELD_NAMES_H_
