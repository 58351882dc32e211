// SPDX-License-Identifier: Apache-2.0
//
// The table of cases.def and its groups. Length arrays in rows are compound literals at file scope,
// so they live as long as the program.
#include "cases.h"

#include <stddef.h>
#include <string.h>

#define LENGTHS(...) \
  (const int64_t[]) { __VA_ARGS__ }
/* clang-format off */
#define TSR_CASE(name_, group_, b_, hq_, hkv_, sq_, sk_, dqk_, dv_, ...)                       \
  {.name = #name_, .group = #group_, .batch = b_, .heads_q = hq_, .heads_kv = hkv_,            \
   .seq_q = sq_, .seq_k = sk_, .dim_qk = dqk_, .dim_v = dv_, __VA_ARGS__},
/* clang-format on */
static const tsr_case cases[] = {
#include "cases.def"
};
#undef TSR_CASE
#undef LENGTHS

enum { CASES = (int)(sizeof cases / sizeof cases[0]), GROUPS_MAX = 64 };

int32_t tsr_case_count(void) { return CASES; }

const tsr_case *tsr_case_at(int32_t index) {
  return index < 0 || index >= CASES ? NULL : &cases[index];
}

const tsr_case *tsr_case_find(const char *name) {
  int32_t i;
  for (i = 0; i < CASES; ++i)
    if (strcmp(cases[i].name, name) == 0) return &cases[i];
  return NULL;
}

/* Walks the groups; returns how many there are, or the name of one through name. */
static int32_t walk_groups(int32_t wanted, const char **name) {
  const char *seen[GROUPS_MAX];
  int32_t count = 0, i, g;
  for (i = 0; i < CASES; ++i) {
    for (g = 0; g < count; ++g)
      if (strcmp(seen[g], cases[i].group) == 0) break;
    if (g < count || count == GROUPS_MAX) continue;
    seen[count] = cases[i].group;
    if (count == wanted) *name = seen[count];
    count++;
  }
  return count;
}

int32_t tsr_case_group_count(void) { return walk_groups(-1, NULL); }

const char *tsr_case_group(int32_t group) {
  const char *name = NULL;
  walk_groups(group, &name);
  return name;
}

uint32_t tsr_case_dtypes(const tsr_case *row) {
  return row->dtypes ? row->dtypes
                     : (1u << TSR_DTYPE_F32) | (1u << TSR_DTYPE_F16) | (1u << TSR_DTYPE_BF16);
}
