// SPDX-License-Identifier: Apache-2.0
// tessera explain: which kernel would take a shape, its predicted bytes and FLOPs, and why every
// other candidate was refused or ranked lower. Works without tensors; --with names those that the
// problem would have.
#define _GNU_SOURCE
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <tessera/tessera.h>

#include "commands.h"
#include "device_job.h"
#include "message.h"
#include "parse.h"
#include "problem_options.h"
#include "text.h"

enum { KEY_WITH = PARSE_KEY_COMMAND, KEY_PASS, KEY_PAGE_SIZE, KEY_JSON };

typedef struct explain_options {
  parse_state state;
  problem_options problem;
  shape_options shape;
  const char *with;
  int passes;
  int64_t page_size;
  bool json;
} explain_options;

static const struct argp_option kOptions[] = {
    {"with", KEY_WITH, "LIST", 0,
     "Tensors of the problem, comma-separated: lse, max-logit, bias, mask, mask-bits, alibi, sink, "
     "cu-q, cu-k, used-q, used-k, left-pad-q, left-pad-k, dlse, dbias, dsink",
     1},
    {"page-size", KEY_PAGE_SIZE, "N", 0, "Keys and values in pages of N rows", 1},
    {"pass", KEY_PASS, "PASS", 0, "forward (default), backward, or both", 1},
    {"json", KEY_JSON, 0, 0, "Print JSON", 4},
    PARSE_HELP_OPTION,
    {0}};

static const parse_word kPasses[] = {{"forward", TSR_PASS_FORWARD},
                                     {"backward", TSR_PASS_BACKWARD},
                                     {"both", TSR_PASS_FORWARD | TSR_PASS_BACKWARD},
                                     {NULL, 0}};

static error_t parse_explain(int key, char *arg, struct argp_state *argp_state) {
  explain_options *options = argp_state->input;
  switch (key) {
    case ARGP_KEY_INIT:
      argp_state->child_inputs[0] = &options->shape;
      argp_state->child_inputs[1] = &options->problem;
      return 0;
    case KEY_WITH:
      options->with = arg;
      return 0;
    case KEY_JSON:
      options->json = true;
      return 0;
    case KEY_PAGE_SIZE:
      if (parse_int64(arg, 1, INT64_MAX, &options->page_size, options->state.message)) return 0;
      return parse_refuse(&options->state, "--page-size");
    case KEY_PASS:
      if (parse_choice(arg, kPasses, &options->passes, options->state.message)) return 0;
      return parse_refuse(&options->state, "--pass");
    default:
      return parse_common(key, argp_state, &options->state);
  }
}

// One word of --with. Tensors are dense and span every axis.
static bool add_tensor(const char *word, tsr_problem *p, cli_message *message) {
  static const struct {
    const char *word;
    uint32_t bit;
  } kArrays[] = {{"cu-q", TSR_ARRAY_CU_Q},
                 {"cu-k", TSR_ARRAY_CU_K},
                 {"used-q", TSR_ARRAY_USED_Q},
                 {"used-k", TSR_ARRAY_USED_K},
                 {"left-pad-q", TSR_ARRAY_LEFT_PAD_Q},
                 {"left-pad-k", TSR_ARRAY_LEFT_PAD_K}};
  const tsr_layout f32 = {.dtype = TSR_DTYPE_F32};
  for (size_t i = 0; i < sizeof kArrays / sizeof kArrays[0]; ++i) {
    if (strcmp(word, kArrays[i].word) != 0) continue;
    p->arrays |= kArrays[i].bit;
    if (kArrays[i].bit == TSR_ARRAY_CU_Q) p->total_q = p->batch * p->seq_q;
    if (kArrays[i].bit == TSR_ARRAY_CU_K) p->total_k = p->batch * p->seq_k;
    return true;
  }
  if (strcmp(word, "lse") == 0) {
    p->lse = f32;
  } else if (strcmp(word, "max-logit") == 0) {
    p->max_logit = f32;
  } else if (strcmp(word, "bias") == 0) {
    p->bias = f32;
  } else if (strcmp(word, "mask") == 0) {
    p->mask = (tsr_layout){.dtype = TSR_DTYPE_U8};
  } else if (strcmp(word, "mask-bits") == 0) {
    p->mask = (tsr_layout){.dtype = TSR_DTYPE_BIT};
  } else if (strcmp(word, "alibi") == 0) {
    p->alibi = TSR_ALIBI_PER_HEAD;
  } else if (strcmp(word, "sink") == 0) {
    p->sink = 1;
  } else if (strcmp(word, "dlse") == 0) {
    p->dlse = f32;
  } else if (strcmp(word, "dbias") == 0) {
    p->dbias = f32;
  } else if (strcmp(word, "dsink") == 0) {
    p->dsink = 1;
  } else {
    return cli_fail(message,
                    "--with: '%s'; accepted: lse, max-logit, bias, mask, mask-bits, alibi, "
                    "sink, cu-q, cu-k, used-q, used-k, left-pad-q, left-pad-k, dlse, "
                    "dbias, dsink",
                    word);
  }
  return true;
}

static bool build(const explain_options *options, tsr_problem *p, cli_message *message) {
  if (shape_options_count(&options->shape) > 1) {
    return cli_fail(message, "--sq, --sk: a list; accepted: one value each");
  }
  if (options->problem.seed_given) {
    return cli_fail(message, "--seed, --offset: they choose no kernel; accepted: without them");
  }
  if (!shape_options_apply(&options->shape, &options->problem, 0, p, message)) return false;
  p->passes = (uint32_t)options->passes;
  if ((options->passes & TSR_PASS_BACKWARD) != 0) {
    p->lse = (tsr_layout){.dtype = TSR_DTYPE_F32};
    p->dout = p->o;
    p->dq = p->q;
    p->dk = p->k;
    p->dv = p->v;
  }
  if (options->page_size > 0) {
    p->page_size = options->page_size;
    p->max_pages = (p->seq_k + p->page_size - 1) / p->page_size;
    p->num_pages = p->batch * p->max_pages;
    p->seq_k = 0;
    p->arrays |= TSR_ARRAY_USED_K;
  }
  char list[256];
  snprintf(list, sizeof list, "%s", options->with != NULL ? options->with : "");
  char *rest = list;
  for (char *word = strsep(&rest, ","); word != NULL; word = strsep(&rest, ",")) {
    if (*word != 0 && !add_tensor(word, p, message)) return false;
  }
  return true;
}

// tsr_explain answers with a text in any case where a problem is valid.
static char *explain_text(tsr_context *context, tsr_device device, const tsr_problem *problem,
                          tsr_status *status) {
  size_t needed = 0;
  *status = tsr_explain(context, device, problem, NULL, 0, &needed);
  if (needed <= 1) return NULL;
  char *text = malloc(needed);
  if (text == NULL) return NULL;
  *status = tsr_explain(context, device, problem, text, needed, NULL);
  return text;
}

static bool print_json(const char *text, tsr_status status) {
  json_t *lines = json_array();
  while (*text != 0) {
    size_t n = strcspn(text, "\n");
    json_array_append_new(lines, json_stringn(text, n));
    text += n + (text[n] == '\n');
  }
  return json_print(json_pack("{s:s, s:b, s:o}", "status", tsr_status_string(status), "planned",
                              status == TSR_STATUS_SUCCESS, "text", lines));
}

int command_explain(int argc, char **argv) {
  const struct argp_child children[] = {
      {&shape_options_argp, 0, 0, 0}, {&problem_options_argp, 0, 0, 0}, {0}};
  const struct argp argp = {kOptions, parse_explain,
                            0,        "Tells which kernel would run a problem, and why no other.",
                            children, 0,
                            0};
  cli_message message = {.text = ""};
  explain_options options = {.state = {.message = &message}, .passes = TSR_PASS_FORWARD};
  problem_options_init(&options.problem, &options.state);
  shape_options_init(&options.shape, &options.state);
  parse_result parsed =
      parse_command(&argp, "tessera explain", argc, argv, &options.state, &options);
  if (parsed == PARSE_HELP) return CLI_EXIT_OK;
  tsr_problem problem = TSR_PROBLEM_INIT;
  tsr_context *context = NULL;
  int code = CLI_EXIT_BAD_INPUT;
  char *text = NULL;
  if (parsed == PARSE_OK && build(&options, &problem, &message) &&
      cli_context_create(&context, options.problem.threads, NULL, &message)) {
    tsr_status status;
    text = explain_text(context, cli_device(context, &options.problem), &problem, &status);
    code = status == TSR_STATUS_SUCCESS ? CLI_EXIT_OK : cli_library_error(status, true, &message);
    // The text of a refused problem is the message itself, and that goes to stderr.
    bool planned = status == TSR_STATUS_SUCCESS || status == TSR_STATUS_NOT_SUPPORTED;
    if (planned && text != NULL && options.json) {
      if (!print_json(text, status)) code = CLI_EXIT_FAILED;
    } else if (planned && text != NULL) {
      fputs(text, stdout);
      if (text[0] != 0 && text[strlen(text) - 1] != '\n') putchar('\n');
    }
  }
  if (code != CLI_EXIT_OK) cli_print_error(&message);
  free(text);
  tsr_context_destroy(context);
  return code;
}
