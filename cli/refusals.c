// SPDX-License-Identifier: Apache-2.0
//
// See refusals.h. Every rule that matches counts a record, so that two that overlap are both kept honest.
#include "refusals.h"

#include <errno.h>
#include <fnmatch.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static bool add_rule(refusal_list *list, const refusal_rule *rule, cli_message *message) {
  size_t bytes = ((size_t)list->count + 1) * sizeof *rule;
  refusal_rule *rules = realloc(list->rules, bytes);
  if (rules == NULL) return cli_fail_memory(message, bytes);
  rules[list->count++] = *rule;
  list->rules = rules;
  return true;
}

static bool read_line(refusal_list *list, char *text, int number, const char *path, cli_message *message) {
  refusal_rule rule = {.line = number};
  char last[8] = "", rest[2], *comment = strchr(text, '#');
  if (comment != NULL) *comment = 0;
  const int found = sscanf(text, " %15s %15s %127s %7s %1s", rule.pass, rule.dtype, rule.name, last, rest);
  if (found <= 0) return true;  // nothing but a comment
  rule.inexact = strcmp(last, "inexact") == 0;
  if (found == 3 + rule.inexact && strchr(rule.name, '/') != NULL) return add_rule(list, &rule, message);
  return cli_fail(message, "%s, line %d: '%.100s'; accepted: PASS DTYPE GROUP/CASE, with or without 'inexact'", path,
                  number, text);
}

bool refusals_read(refusal_list *list, const char *path, cli_message *message) {
  char text[512];
  bool ok = true;
  *list = (refusal_list){.count = 0};
  FILE *file = fopen(path, "r");
  if (file == NULL) return cli_fail(message, "%s: %s; accepted: a list of cases", path, strerror(errno));
  for (int number = 1; ok && fgets(text, sizeof text, file) != NULL; ++number) {
    const size_t length = strcspn(text, "\n");
    if (text[length] == 0 && length + 1 == sizeof text)
      ok = cli_fail(message, "%s, line %d: more than %zu characters; accepted: fewer", path, number, length);
    text[length] = 0;
    ok = ok && read_line(list, text, number, path, message);
  }
  if (ok && ferror(file)) ok = cli_fail(message, "%s: cannot be read; accepted: a list of cases", path);
  fclose(file);
  if (!ok) refusals_free(list);
  return ok;
}

void refusals_free(refusal_list *list) {
  free(list->rules);
  *list = (refusal_list){.count = 0};
}

tsr_verdict refusals_judge(refusal_list *list, const tsr_check_record *record) {
  const bool refused = record->verdict == TSR_VERDICT_REFUSED || record->verdict == TSR_VERDICT_SKIPPED;
  const bool wrong = record->verdict == TSR_VERDICT_FAIL && *record->output != 0 && isfinite(record->ratio);
  const char *pass = record->pass == TSR_PASS_BACKWARD ? "backward" : "forward";
  char name[256];
  bool allowed = false;
  snprintf(name, sizeof name, "%s/%s", record->group, record->case_name);
  name[strcspn(name, "@")] = 0;  // run again with more alignment
  for (int32_t i = 0; i < list->count; ++i) {
    refusal_rule *rule = &list->rules[i];
    if (fnmatch(rule->pass, pass, 0) != 0 ||
        fnmatch(rule->dtype, tsr_check_dtype_name(record->dtype), 0) != 0 ||
        fnmatch(rule->name, name, 0) != 0)
      continue;
    const bool needed = rule->inexact ? wrong : refused;
    rule->ran++;
    rule->needed += needed;
    allowed = allowed || needed;
  }
  if (refused && !allowed) return TSR_VERDICT_FAIL;
  return wrong && allowed ? TSR_VERDICT_REFUSED : record->verdict;
}

const refusal_rule *refusals_stale(const refusal_list *list) {
  for (int32_t i = 0; i < list->count; ++i)
    if (list->rules[i].ran > 0 && list->rules[i].needed == 0) return &list->rules[i];
  return NULL;
}
