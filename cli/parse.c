// SPDX-License-Identifier: Apache-2.0
// Option values and the wrapper around argp (see parse.h).
#define _GNU_SOURCE
#include "parse.h"

#include <errno.h>
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

bool parse_int64(const char *text, int64_t least, int64_t most, int64_t *out,
                 cli_message *message) {
  char *end;
  errno = 0;
  long long value = strtoll(text, &end, 10);
  bool shaped = *text != 0 && *end == 0 && strchr(" \t\n\v\f\r", *text) == NULL;
  if (!shaped || errno == ERANGE || value < least || value > most) {
    if (most == INT64_MAX) {
      return cli_fail(message, "'%s'; accepted: an integer from %" PRId64 " up", text, least);
    }
    return cli_fail(message, "'%s'; accepted: an integer from %" PRId64 " to %" PRId64, text, least,
                    most);
  }
  *out = value;
  return true;
}

bool parse_uint64(const char *text, uint64_t *out, cli_message *message) {
  char *end;
  errno = 0;
  unsigned long long value = strtoull(text, &end, 0);
  // strtoull takes "-1" as 2^64-1; a seed is written as the number it is.
  if (*text < '0' || *text > '9' || *end != 0 || errno == ERANGE) {
    return cli_fail(message, "'%s'; accepted: an integer from 0 to 2^64-1", text);
  }
  *out = value;
  return true;
}

bool parse_real(const char *text, double *out, cli_message *message) {
  char *end;
  double value = strtod(text, &end);
  if (*text == 0 || *end != 0 || !isfinite(value)) {
    return cli_fail(message, "'%s'; accepted: a finite number", text);
  }
  *out = value;
  return true;
}

bool parse_int64_list(const char *text, int64_t least, int64_t most, int64_t *out, size_t capacity,
                      size_t *count, cli_message *message) {
  char copy[512];
  if (strlen(text) >= sizeof copy) return cli_fail(message, "list is too long");
  memcpy(copy, text, strlen(text) + 1);
  *count = 0;
  char *at = copy;
  for (;;) {
    char *comma = strchr(at, ',');
    if (comma != NULL) *comma = 0;
    if (*count == capacity)
      return cli_fail(message, "'%s'; accepted: up to %zu values", text, capacity);
    if (!parse_int64(at, least, most, &out[*count], message)) return false;
    ++*count;
    if (comma == NULL) return true;
    at = comma + 1;
  }
}

bool parse_choice(const char *text, const parse_word *words, int *out, cli_message *message) {
  char accepted[256] = "";
  size_t used = 0;
  for (const parse_word *w = words; w->word != NULL; ++w) {
    if (strcmp(text, w->word) == 0) {
      *out = w->value;
      return true;
    }
    if (used < sizeof accepted) {
      used += (size_t)snprintf(accepted + used, sizeof accepted - used, "%s%s",
                               w == words ? "" : ", ", w->word);
    }
  }
  return cli_fail(message, "'%s'; accepted: %s", text, accepted);
}

error_t parse_refuse(parse_state *state, const char *option) {
  if (!state->failed) cli_fail_in(state->message, option);
  state->failed = true;
  return EINVAL;
}

error_t parse_common(int key, struct argp_state *argp_state, parse_state *state) {
  switch (key) {
    case PARSE_KEY_HELP:
      state->help = true;
      return EINVAL;  // stops argp; help is printed by parse_command
    case ARGP_KEY_ERROR:
      state->next = argp_state->next;
      return 0;
    case ARGP_KEY_ARG:
      cli_fail(state->message, "unexpected argument '%s'; accepted: options only (see --help)",
               argp_state->argv[argp_state->next - 1]);
      state->failed = true;
      return EINVAL;
    default:
      return ARGP_ERR_UNKNOWN;
  }
}

static const struct argp_option *find_option(const struct argp *argp, const char *name,
                                             size_t length) {
  for (const struct argp_option *o = argp->options;
       o != NULL && (o->name != NULL || o->key != 0 || o->doc != NULL); ++o) {
    if (o->name != NULL && strlen(o->name) == length && memcmp(o->name, name, length) == 0) {
      return o;
    }
  }
  for (const struct argp_child *c = argp->children; c != NULL && c->argp != NULL; ++c) {
    const struct argp_option *o = find_option(c->argp, name, length);
    if (o != NULL) return o;
  }
  return NULL;
}

// argp itself met an option it could not take: unknown, ambiguous, or a value missing or too many.
static void describe_bad_option(const struct argp *argp, const char *word, cli_message *message) {
  if (word[0] != '-' || word[1] != '-') {
    cli_fail(message, "unknown option '%s'; accepted: long options only (see --help)", word);
    return;
  }
  size_t length = strcspn(word + 2, "=");
  const struct argp_option *option = find_option(argp, word + 2, length);
  if (option == NULL) {
    cli_fail(message, "unknown option '%.*s'; see --help", (int)(length + 2), word);
  } else if (option->arg != NULL) {
    cli_fail(message, "--%s: no value given; accepted: --%s %s", option->name, option->name,
             option->arg);
  } else {
    cli_fail(message, "--%s: takes no value", option->name);
  }
}

parse_result parse_command(const struct argp *argp, const char *usage_name, int argc, char **argv,
                           parse_state *state, void *input) {
  char name[64];
  snprintf(name, sizeof name, "%s", usage_name);
  error_t error =
      argp_parse(argp, argc, argv, ARGP_NO_ERRS | ARGP_NO_HELP | ARGP_NO_EXIT, NULL, input);
  if (state->help) {
    argp_help(argp, stdout, ARGP_HELP_USAGE | ARGP_HELP_LONG | ARGP_HELP_DOC, name);
    return PARSE_HELP;
  }
  if (error == 0) return PARSE_OK;
  if (!state->failed) {
    int index = state->next - 1;
    if (index >= 1 && index < argc) {
      describe_bad_option(argp, argv[index], state->message);
    } else {
      cli_fail(state->message, "the options cannot be parsed: %s", strerror(error));
    }
  }
  return PARSE_BAD;
}
