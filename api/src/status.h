// SPDX-License-Identifier: Apache-2.0
//
// How a call fails: the message of the calling thread and three macros (return if, return,
// forward). Every failure of the library passes through tsri_fail exactly once, where its cause is
// known; the callers above forward the status and leave the message alone. Used by every file of
// api/src.
#ifndef TESSERA_SRC_STATUS_H_
#define TESSERA_SRC_STATUS_H_

#include "tessera/tessera.h"

/* Length of the longest message, terminator included: a refusal list of a dozen kernels fits. */
#define TSRI_MESSAGE_BYTES 4096

#define TSRI_PRINTF(format_index, first_index) \
  __attribute__((format(printf, format_index, first_index)))

/* Sets the calling thread's message and returns status. Arguments may point into the old message.
 */
tsr_status tsri_fail(tsr_status status, const char *format, ...) TSRI_PRINTF(2, 3);

#define TSRI_RETURN(status, ...) return tsri_fail((status), __VA_ARGS__)

#define TSRI_RETURN_IF(condition, status, ...)              \
  do {                                                      \
    if (condition) return tsri_fail((status), __VA_ARGS__); \
  } while (0)

#define TSRI_FORWARD(expression)                             \
  do {                                                       \
    const tsr_status forwarded_ = (expression);              \
    if (forwarded_ != TSR_STATUS_SUCCESS) return forwarded_; \
  } while (0)

/* The commonest failure: a value that is wrong for every backend. */
#define TSRI_INVALID_IF(condition, ...) \
  TSRI_RETURN_IF(condition, TSR_STATUS_INVALID_ARGUMENT, __VA_ARGS__)

#endif  // TESSERA_SRC_STATUS_H_
