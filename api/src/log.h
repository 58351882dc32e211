// SPDX-License-Identifier: Apache-2.0
//
// Where log lines go: the caller's function, which gets every level; or, without one, stderr for
// the levels that TSR_LOG names. With neither, nothing is formatted. Called by registry, dispatch,
// plan.
#ifndef TESSERA_SRC_LOG_H_
#define TESSERA_SRC_LOG_H_

#include "status.h"

typedef struct tsri_log {
  tsr_log_fn fn; /* NULL: stderr */
  void *user;
  uint32_t levels; /* bit 1 << level: lines of the level go to stderr */
} tsri_log;

/* Sets the levels from TSR_LOG's text; NULL or empty selects none. INVALID_ARGUMENT on other words.
 */
tsr_status tsri_log_parse(tsri_log *log, const char *words);

/* Whether a line of that level goes anywhere. */
int tsri_log_wants(const tsri_log *log, tsr_log_level level);

/* Writes one line; text without a newline, longer lines are cut. */
void tsri_log_write(const tsri_log *log, tsr_log_level level, const char *format, ...)
    TSRI_PRINTF(3, 4);

#endif  // TESSERA_SRC_LOG_H_
