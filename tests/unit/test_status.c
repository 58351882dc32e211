// SPDX-License-Identifier: Apache-2.0
//
// Version, status strings, the per-thread message, the bounded text writer and the log.
#include <criterion/criterion.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "api/src/log.h"
#include "api/src/text.h"
#include "tests/support/fake_backend.h"

Test(status, version) {
  char text[64];
  snprintf(text, sizeof text, "%d.%d.%d", TSR_VERSION_MAJOR, TSR_VERSION_MINOR, TSR_VERSION_PATCH);
  cr_expect_str_eq(tsr_version_string(), text);
  cr_expect_eq(tsr_version(), (uint32_t)TSR_VERSION_NUMBER);
}

Test(status, strings) {
  for (int i = 0; i <= TSR_STATUS_INTERNAL; ++i) {
    const char *text = tsr_status_string((tsr_status)i);
    cr_expect_gt(strlen(text), 4);
    cr_expect_str_neq(text, "unknown status");
    for (int j = 0; j < i; ++j) cr_expect_str_neq(text, tsr_status_string((tsr_status)j));
  }
  cr_expect_str_eq(tsr_status_string((tsr_status)99), "unknown status");
  cr_expect_str_eq(tsr_status_string((tsr_status)-1), "unknown status");
}

Test(status, message) {
  cr_expect_str_eq(tsr_last_message(), "");
  cr_expect_eq(tsri_fail(TSR_STATUS_DEVICE_ERROR, "code %d", 7), TSR_STATUS_DEVICE_ERROR);
  cr_expect_str_eq(tsr_last_message(), "code 7");
  tsri_fail(TSR_STATUS_INTERNAL, "again: %s", tsr_last_message());
  cr_expect_str_eq(tsr_last_message(), "again: code 7");
  /* Too long: cut, and told so. */
  char large[2 * TSRI_MESSAGE_BYTES];
  memset(large, 'x', sizeof large - 1);
  large[sizeof large - 1] = '\0';
  tsri_fail(TSR_STATUS_INTERNAL, "%s", large);
  const size_t length = strlen(tsr_last_message());
  cr_expect_eq(length, TSRI_MESSAGE_BYTES - 1);
  cr_expect_str_eq(tsr_last_message() + length - 4, "x...");
}

static tsr_status twice(int fail) {
  TSRI_RETURN_IF(fail == 1, TSR_STATUS_NOT_FOUND, "first %d", fail);
  TSRI_INVALID_IF(fail == 2, "second %d", fail);
  if (fail == 3) TSRI_RETURN(TSR_STATUS_INTERNAL, "third %d", fail);
  return TSR_STATUS_SUCCESS;
}

static tsr_status forward(int fail) {
  TSRI_FORWARD(twice(fail));
  return TSR_STATUS_SUCCESS;
}

Test(status, macros) {
  cr_expect_eq(forward(0), TSR_STATUS_SUCCESS);
  cr_expect_str_eq(tsr_last_message(), "");
  cr_expect_eq(forward(1), TSR_STATUS_NOT_FOUND);
  cr_expect_str_eq(tsr_last_message(), "first 1");
  cr_expect_eq(forward(2), TSR_STATUS_INVALID_ARGUMENT);
  cr_expect_eq(forward(3), TSR_STATUS_INTERNAL);
  cr_expect_eq(forward(0), TSR_STATUS_SUCCESS);
  cr_expect_str_eq(tsr_last_message(), "third 3", "success does not clear the message");
}

static void *other_thread(void *arg) {
  const int clean = tsr_last_message()[0] == '\0';
  tsri_fail(TSR_STATUS_INTERNAL, "theirs");
  return clean ? arg : NULL;
}

Test(status, message_is_per_thread) {
  pthread_t thread;
  int anything = 0;
  void *clean = NULL;
  tsri_fail(TSR_STATUS_INTERNAL, "ours");
  cr_assert_eq(pthread_create(&thread, NULL, other_thread, &anything), 0);
  pthread_join(thread, &clean);
  cr_expect_not_null(clean);
  cr_expect_str_eq(tsr_last_message(), "ours");
}

Test(status, text_is_bounded) {
  char buffer[8] = "#######";
  tsri_text text = tsri_text_over(buffer, 6);
  cr_expect_str_eq(buffer, "");
  tsri_text_add(&text, "ab%d", 3);
  cr_expect_str_eq(buffer, "ab3");
  tsri_text_add(&text, "cdefgh");
  cr_expect_str_eq(buffer, "ab3cd");
  cr_expect_eq(text.length, 9u);
  tsri_text_add(&text, "more");
  cr_expect_str_eq(buffer, "ab3cd");
  cr_expect_eq(text.length, 13u);
  cr_expect_eq(buffer[6], '#');
  text = tsri_text_over(NULL, 0);
  tsri_text_add(&text, "12345");
  cr_expect_eq(text.length, 5u);
  text = tsri_text_over(buffer, 0);
  tsri_text_add(&text, "12345");
  cr_expect_str_eq(buffer, "ab3cd");
}

Test(status, names) {
  char buffer[512];
  cr_expect_str_eq(tsri_dtype_text(TSR_DTYPE_BF16), "bfloat16");
  cr_expect_str_eq(tsri_dtype_text(TSR_DTYPE_NONE), "none");
  cr_expect_str_eq(tsri_dtype_text((tsr_dtype)50), "?");
  cr_expect_str_eq(tsri_device_text(TSR_DEVICE_HIP), "hip");
  cr_expect_str_eq(tsri_pass_text(TSR_PASS_BACKWARD), "backward");
  tsri_text text = tsri_text_over(buffer, sizeof buffer);
  tsri_text_add_features(&text, 0);
  cr_expect_str_eq(buffer, "none");
  text = tsri_text_over(buffer, sizeof buffer);
  tsri_text_add_features(&text, TSR_FEATURE_CAUSAL | TSR_FEATURE_STRIDED_LAST);
  cr_expect_str_eq(buffer, "causal, strided last axis");
  /* Every feature has a name: 23 bits, 22 separators. */
  text = tsri_text_over(buffer, sizeof buffer);
  tsri_text_add_features(&text, UINT32_MAX);
  int commas = 0;
  for (const char *c = buffer; *c; ++c) commas += *c == ',';
  cr_expect_eq(commas, 22);
  cr_expect_eq((uint32_t)TSR_FEATURE_STRIDED_LAST, UINT32_C(1) << 22);
  tsr_reason reason;
  memset(&reason, 'x', sizeof reason);
  cr_expect_eq(strlen(tsri_reason_text(&reason, "")), sizeof reason - 1);
  reason.text[0] = '\0';
  cr_expect_str_eq(tsri_reason_text(&reason, "nothing said"), "nothing said");
}

static char lines[4][256];
static tsr_log_level levels[4];
static int count;

static void keep(void *user, tsr_log_level level, const char *text) {
  cr_expect_eq(user, lines);
  if (count == 4) return;
  levels[count] = level;
  snprintf(lines[count++], sizeof lines[0], "%s", text);
}

Test(status, log) {
  tsri_log log = {NULL, NULL, 0};
  cr_expect_not(tsri_log_wants(&log, TSR_LOG_ERROR));
  cr_expect_eq(tsri_log_parse(&log, "plan,error"), TSR_STATUS_SUCCESS);
  cr_expect(tsri_log_wants(&log, TSR_LOG_ERROR));
  cr_expect(tsri_log_wants(&log, TSR_LOG_PLAN));
  cr_expect_not(tsri_log_wants(&log, TSR_LOG_INFO));
  cr_expect_eq(tsri_log_parse(&log, ""), TSR_STATUS_SUCCESS);
  cr_expect_eq(log.levels, 0u);
  cr_expect_eq(tsri_log_parse(&log, NULL), TSR_STATUS_SUCCESS);
  cr_expect_eq(tsri_log_parse(&log, "plan,verbose"), TSR_STATUS_INVALID_ARGUMENT);
  cr_expect_str_eq(tsr_last_message(),
                   "TSR_LOG: found 'verbose', accepted error, info, plan, separated by commas");
  cr_expect_eq(tsri_log_parse(&log, "pla"), TSR_STATUS_INVALID_ARGUMENT);
  log.fn = keep;
  log.user = lines;
  log.levels = 0;
  tsri_log_write(&log, TSR_LOG_INFO, "%d and %s", 1, "one");
  cr_expect_eq(count, 1);
  cr_expect_eq(levels[0], TSR_LOG_INFO);
  cr_expect_str_eq(lines[0], "1 and one");
}
