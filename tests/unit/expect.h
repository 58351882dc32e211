// SPDX-License-Identifier: Apache-2.0
//
// Shared by the unit tests of validation: a call must succeed, or fail with a status and a message
// that contains a text, at the line of the test that said so.
#ifndef TESSERA_TESTS_UNIT_EXPECT_H_
#define TESSERA_TESTS_UNIT_EXPECT_H_

#include <criterion/criterion.h>
#include <string.h>

#include "api/src/status.h"

static inline void expect_status(tsr_status found, tsr_status wanted, const char *text, int line) {
  cr_expect(found == wanted, "line %d: status %d (%s), wanted %d; message: %s", line, (int)found,
            tsr_status_string(found), (int)wanted, tsr_last_message());
  if (found != TSR_STATUS_SUCCESS && found == wanted) {
    cr_expect(strstr(tsr_last_message(), text) != NULL, "line %d: no '%s' in message: %s", line,
              text, tsr_last_message());
  }
  /* A later test must not pass on the message of this one. */
  tsri_fail(TSR_STATUS_SUCCESS, "(old message)");
}

#define EXPECT_OK(call) expect_status((call), TSR_STATUS_SUCCESS, "", __LINE__)
#define EXPECT_FAIL(status, text, call) expect_status((call), (status), (text), __LINE__)
#define EXPECT_INVALID(text, call) EXPECT_FAIL(TSR_STATUS_INVALID_ARGUMENT, text, call)

#endif  // TESSERA_TESTS_UNIT_EXPECT_H_
