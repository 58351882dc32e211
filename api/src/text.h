// SPDX-License-Identifier: Apache-2.0
//
// A bounded text writer over a caller's buffer: appends are cut at the capacity, the length that
// the whole text needs is counted, and the buffer is terminated after every append. Plus the names
// of enumerators as messages spell them. Used for explanations, refusal lists and log lines.
#ifndef TESSERA_SRC_TEXT_H_
#define TESSERA_SRC_TEXT_H_

#include "status.h"
#include "tessera/backend.h"

typedef struct tsri_text {
  char *data;      /* NULL: count only */
  size_t capacity; /* bytes of data */
  size_t length;   /* of the whole text, without terminator; may pass the capacity */
} tsri_text;

tsri_text tsri_text_over(char *data, size_t capacity);
void tsri_text_add(tsri_text *text, const char *format, ...) TSRI_PRINTF(2, 3);

/* Copies text into a reason, cut if needed. */
void tsri_reason_set(tsr_reason *reason, const char *format, ...) TSRI_PRINTF(2, 3);
/* Terminates a reason that foreign code may have left unterminated, and gives an empty one words.
 */
const char *tsri_reason_text(tsr_reason *reason, const char *otherwise);

/* "float32"; "none"; "?" for values that are no dtype. */
const char *tsri_dtype_text(tsr_dtype dtype);
const char *tsri_device_text(tsr_device_kind kind);
const char *tsri_pass_text(tsr_pass pass);
/* Appends the names of feature bits, separated by ", ". */
void tsri_text_add_features(tsri_text *text, uint32_t features);

#endif  // TESSERA_SRC_TEXT_H_
