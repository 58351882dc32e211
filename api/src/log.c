// SPDX-License-Identifier: Apache-2.0
//
// Log lines to the caller's function or to stderr; see log.h.
#include "log.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

static const struct {
  const char *word;
  tsr_log_level level;
} level_words[] = {{"error", TSR_LOG_ERROR}, {"info", TSR_LOG_INFO}, {"plan", TSR_LOG_PLAN}};

tsr_status tsri_log_parse(tsri_log *log, const char *words) {
  log->levels = 0;
  if (!words) return TSR_STATUS_SUCCESS;
  while (*words) {
    const size_t length = strcspn(words, ",");
    int known = length == 0;
    for (size_t i = 0; i < sizeof level_words / sizeof level_words[0]; ++i) {
      if (length != strlen(level_words[i].word)) continue;
      if (memcmp(words, level_words[i].word, length) != 0) continue;
      log->levels |= 1u << level_words[i].level;
      known = 1;
    }
    TSRI_INVALID_IF(!known,
                    "TSR_LOG: found '%.*s', accepted error, info, plan, separated by commas",
                    length > 64 ? 64 : (int)length, words);
    words += length + (words[length] == ',');
  }
  return TSR_STATUS_SUCCESS;
}

int tsri_log_wants(const tsri_log *log, tsr_log_level level) {
  return log->fn || (log->levels & (1u << level));
}

void tsri_log_write(const tsri_log *log, tsr_log_level level, const char *format, ...) {
  char line[TSRI_MESSAGE_BYTES];
  if (!tsri_log_wants(log, level)) return;
  va_list args;
  va_start(args, format);
  const int length = vsnprintf(line, sizeof line, format, args);
  va_end(args);
  if (length < 0) return;
  if (log->fn) {
    log->fn(log->user, level, line);
  } else {
    fprintf(stderr, "tessera: %s: %s\n", level_words[level - TSR_LOG_ERROR].word, line);
  }
}
