// SPDX-License-Identifier: Apache-2.0
// One-line error messages: formatting, prefixes, and removal of control bytes (see message.h).
#include "message.h"

#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

static const char kOutOfMemory[] = "out of memory";

// A name or a header may hold line feeds or terminal escapes; a message is one printable line.
static void make_printable(char *text) {
  for (unsigned char *p = (unsigned char *)text; *p != 0; ++p) {
    if (*p < 0x20 || *p == 0x7f) *p = '?';
  }
}

bool cli_fail(cli_message *message, const char *format, ...) {
  va_list args;
  va_start(args, format);
  vsnprintf(message->text, sizeof message->text, format, args);
  va_end(args);
  make_printable(message->text);
  return false;
}

bool cli_fail_in(cli_message *message, const char *prefix) {
  enum { kPrefixMax = CLI_MESSAGE_MAX / 4 };
  size_t used = strlen(prefix);
  bool cut = used > kPrefixMax;  // keep the finding visible after an absurdly long name
  if (cut) {
    prefix += used - kPrefixMax;
    used = kPrefixMax;
  }
  cli_message old = *message;
  char *out = message->text;
  if (cut) {
    memcpy(out, "...", 3);
    out += 3;
  }
  memcpy(out, prefix, used);
  memcpy(out + used, ": ", 2);
  out += used + 2;
  size_t room = (size_t)(message->text + sizeof message->text - out) - 1;
  size_t keep = strlen(old.text);
  if (keep > room) keep = room;
  memcpy(out, old.text, keep);
  out[keep] = 0;
  make_printable(message->text);
  return false;
}

void cli_print_error(const cli_message *message) {
  fprintf(stderr, "tessera: %s\n", message->text);
}

bool cli_fail_memory(cli_message *message, uint64_t bytes) {
  return cli_fail(message, "%s: %" PRIu64 " bytes wanted", kOutOfMemory, bytes);
}

bool cli_message_is_memory(const cli_message *message) {
  return strstr(message->text, kOutOfMemory) != NULL;
}
