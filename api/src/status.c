// SPDX-License-Identifier: Apache-2.0
//
// Version, status strings and the per-thread message behind tsr_last_message. The message lives in
// thread-local storage, so that a failure needs no memory and threads never see each other's text.
#include "status.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

static _Thread_local char last_message[TSRI_MESSAGE_BYTES];

tsr_status tsri_fail(tsr_status status, const char *format, ...) {
  /* Formatted aside first: an argument may be the old message itself. */
  char text[TSRI_MESSAGE_BYTES];
  va_list args;
  va_start(args, format);
  const int length = vsnprintf(text, sizeof text, format, args);
  va_end(args);
  if (length < 0) text[0] = '\0';
  if (length >= (int)sizeof text) memcpy(text + sizeof text - 4, "...", 4);
  memcpy(last_message, text, strlen(text) + 1);
  return status;
}

const char *tsr_last_message(void) {
  return last_message;
}

const char *tsr_status_string(tsr_status status) {
  switch (status) {
    case TSR_STATUS_SUCCESS:
      return "success";
    case TSR_STATUS_INVALID_ARGUMENT:
      return "invalid argument";
    case TSR_STATUS_NOT_SUPPORTED:
      return "not supported";
    case TSR_STATUS_OUT_OF_MEMORY:
      return "out of memory";
    case TSR_STATUS_DEVICE_ERROR:
      return "device error";
    case TSR_STATUS_NOT_FOUND:
      return "not found";
    case TSR_STATUS_ABI_MISMATCH:
      return "ABI mismatch";
    case TSR_STATUS_INTERNAL:
      return "internal error";
  }
  return "unknown status";
}

#define TSRI_TEXT_OF(x) #x
#define TSRI_TEXT(x) TSRI_TEXT_OF(x)

uint32_t tsr_version(void) {
  return TSR_VERSION_NUMBER;
}

const char *tsr_version_string(void) {
  return TSRI_TEXT(TSR_VERSION_MAJOR) "." TSRI_TEXT(TSR_VERSION_MINOR) "." TSRI_TEXT(
      TSR_VERSION_PATCH);
}
