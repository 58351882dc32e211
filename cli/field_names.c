// SPDX-License-Identifier: Apache-2.0
// Fields of tsr_problem and tsr_args, and the options behind them (see field_names.h).
#include "field_names.h"

#include <stddef.h>
#include <string.h>

typedef struct field_row {
  const char *field;
  const char *from_files;   // option of `run`
  const char *from_shapes;  // option of explain and bench; NULL: the same
} field_row;

static const field_row kFields[] = {
    {"batch", "--q", "--b"},
    {"heads_q", "--q", "--hq"},
    {"heads_kv", "--k", "--hkv"},
    {"seq_q", "--q", "--sq"},
    {"seq_k", "--k", "--sk"},
    {"total_q", "--q", "--sq"},
    {"total_k", "--k", "--sk"},
    {"dim_qk", "--q", "--d"},
    {"dim_v", "--v", "--dv"},
    {"q", "--q", "--dtype"},
    {"k", "--k", "--dtype"},
    {"v", "--v", "--dtype"},
    {"o", "--out-dtype", NULL},
    {"lse", "--lse", "--with lse"},
    {"max_logit", "--max-logit", "--with max-logit"},
    {"scale", "--scale", NULL},
    {"softcap", "--softcap", NULL},
    {"bias", "--bias", "--with bias"},
    {"alibi", "--alibi", "--with alibi"},
    {"sink", "--sink", "--with sink"},
    {"causal", "--causal", NULL},
    {"diagonal", "--causal", NULL},
    {"window", "--window", NULL},
    {"prefix", "--prefix", NULL},
    {"mask", "--mask", "--with mask"},
    {"block_mask", "--block-mask", NULL},
    {"block_q", "--block-q", NULL},
    {"block_k", "--block-k", NULL},
    {"dropout", "--dropout", NULL},
    {"page_size", "--page-size", NULL},
    {"num_pages", "--k", "--page-size"},
    {"max_pages", "--page-table", "--page-size"},
    {"page_table", "--page-table", "--page-size"},
    {"q_scale", "--q-scale", NULL},
    {"k_scale", "--k-scale", NULL},
    {"v_scale", "--v-scale", NULL},
    {"scale_rows_q", "--scale-rows-q", NULL},
    {"scale_rows_k", "--scale-rows-k", NULL},
    {"cu_q", "--cu-seqlens-q", "--with cu-q"},
    {"cu_k", "--cu-seqlens-k", "--with cu-k"},
    {"used_q", "--used-q", "--with used-q"},
    {"used_k", "--used-k", "--with used-k"},
    {"left_pad_q", "--left-pad-q", "--with left-pad-q"},
    {"left_pad_k", "--left-pad-k", "--with left-pad-k"},
    {"dlse", "--with dlse", NULL},
    {"dbias", "--with dbias", NULL},
    {"dsink", "--with dsink", NULL},
    {"determinism", "--determinism", NULL},
    {"backend", "--backend", NULL},
    {"kernel", "--kernel", NULL},
    {"passes", "--pass", NULL},
};

// Arrays are named by bit in one field.
static const field_row kArrays[] = {
    {"USED_K", "--used-k", "--page-size"},
    {"USED_Q", "--used-q", "--with used-q"},
    {"PREFIX", "--prefix-per-sequence", NULL},
    {"DIAGONAL", "--diagonal-per-sequence", NULL},
};

static const char *option_of(const field_row *row, bool shapes) {
  return shapes && row->from_shapes != NULL ? row->from_shapes : row->from_files;
}

void cli_name_option(cli_message *message, bool shapes) {
  const char *field = strstr(message->text, ": ");
  if (field == NULL) return;
  field += 2;
  size_t length = strcspn(field, ".[: ");
  if (length == 6 && strncmp(field, "arrays", 6) == 0) {
    for (size_t i = 0; i < sizeof kArrays / sizeof kArrays[0]; ++i) {
      if (strstr(field, kArrays[i].field) == NULL) continue;
      cli_fail_in(message, option_of(&kArrays[i], shapes));
      return;
    }
    return;
  }
  for (size_t i = 0; i < sizeof kFields / sizeof kFields[0]; ++i) {
    if (strlen(kFields[i].field) == length && strncmp(kFields[i].field, field, length) == 0) {
      cli_fail_in(message, option_of(&kFields[i], shapes));
      return;
    }
  }
}
