// SPDX-License-Identifier: Apache-2.0
//
// The bounded text writer and the spelling of enumerators in messages; see text.h.
#include "text.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "common/dtype.h"

tsri_text tsri_text_over(char *data, size_t capacity) {
  tsri_text text = {capacity ? data : NULL, capacity, 0};
  if (text.data) text.data[0] = '\0';
  return text;
}

void tsri_text_add(tsri_text *text, const char *format, ...) {
  const size_t used = text->length < text->capacity ? text->length : text->capacity;
  const size_t room = text->data ? text->capacity - used : 0;
  va_list args;
  va_start(args, format);
  /* With room 0 nothing is written, and the terminator of the last append that fitted stays. */
  const int length = vsnprintf(room ? text->data + used : NULL, room, format, args);
  va_end(args);
  if (length > 0) text->length += (size_t)length;
}

void tsri_reason_set(tsr_reason *reason, const char *format, ...) {
  va_list args;
  va_start(args, format);
  if (vsnprintf(reason->text, sizeof reason->text, format, args) < 0) reason->text[0] = '\0';
  va_end(args);
}

const char *tsri_reason_text(tsr_reason *reason, const char *otherwise) {
  reason->text[sizeof reason->text - 1] = '\0';
  if (!reason->text[0]) tsri_reason_set(reason, "%s", otherwise);
  return reason->text;
}

const char *tsri_dtype_text(tsr_dtype dtype) {
  if (dtype == TSR_DTYPE_NONE) return "none";
  return tsri_dtype_bits(dtype) ? tsri_dtype_describe(dtype).name : "?";
}

const char *tsri_device_text(tsr_device_kind kind) {
  switch (kind) {
    case TSR_DEVICE_HOST:
      return "host";
    case TSR_DEVICE_CUDA:
      return "cuda";
    case TSR_DEVICE_HIP:
      return "hip";
  }
  return "?";
}

const char *tsri_pass_text(tsr_pass pass) {
  return pass == TSR_PASS_BACKWARD ? "backward" : "forward";
}

void tsri_text_add_features(tsri_text *text, uint32_t features) {
  static const struct {
    uint32_t bit;
    const char *name;
  } names[] = {
      {TSR_FEATURE_CAUSAL, "causal"},
      {TSR_FEATURE_WINDOW, "window"},
      {TSR_FEATURE_PREFIX, "prefix"},
      {TSR_FEATURE_MASK, "mask"},
      {TSR_FEATURE_BLOCK_MASK, "block mask"},
      {TSR_FEATURE_BIAS, "bias"},
      {TSR_FEATURE_ALIBI, "alibi"},
      {TSR_FEATURE_SOFTCAP, "softcap"},
      {TSR_FEATURE_SINK, "sink"},
      {TSR_FEATURE_DROPOUT, "dropout"},
      {TSR_FEATURE_GROUPED_HEADS, "grouped heads"},
      {TSR_FEATURE_PACKED, "packed sequences"},
      {TSR_FEATURE_USED_LENGTHS, "used lengths"},
      {TSR_FEATURE_PAGED, "paged"},
      {TSR_FEATURE_MAX_LOGIT, "max logit"},
      {TSR_FEATURE_SCALES, "scales"},
      {TSR_FEATURE_DLSE, "dlse"},
      {TSR_FEATURE_DBIAS, "dbias"},
      {TSR_FEATURE_DSINK, "dsink"},
      {TSR_FEATURE_ACCUMULATE, "accumulate"},
      {TSR_FEATURE_DETERMINISTIC, "deterministic"},
      {TSR_FEATURE_BATCH_INVARIANT, "batch invariant"},
      {TSR_FEATURE_STRIDED_LAST, "strided last axis"},
  };
  const char *separator = "";
  for (size_t i = 0; i < sizeof names / sizeof names[0]; ++i) {
    if (!(features & names[i].bit)) continue;
    tsri_text_add(text, "%s%s", separator, names[i].name);
    separator = ", ";
  }
  if (!*separator) tsri_text_add(text, "none");
}
