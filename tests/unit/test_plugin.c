// SPDX-License-Identifier: Apache-2.0
//
// Plug-ins from disk: good ones take part in dispatch, every kind of bad one is listed with its
// reason, in order of file name, and none brings a context down. argv and the build tell where the
// modules are: TSR_TEST_PLUGINS, folders `good`, `bad` and `clash` made by
// tests/unit/CMakeLists.txt.
#define _POSIX_C_SOURCE 200809L
#include <criterion/criterion.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "api/src/plugin.h"
#include "tests/support/fake_backend.h"
#include "tests/unit/expect.h"

static char path[4096];

static const char *folder(const char *names) {
  const char *root = getenv("TSR_TEST_PLUGINS");
  cr_assert_not_null(root, "TSR_TEST_PLUGINS must name the folder of the test plug-ins");
  size_t used = 0;
  path[0] = '\0';
  for (const char *at = names; *at;) {
    const int length = (int)strcspn(at, ":");
    used += (size_t)snprintf(path + used, sizeof path - used, "%s%s/%.*s", used ? ":" : "", root,
                             length, at);
    at += length + (at[length] == ':');
  }
  return path;
}

static tsr_context *make(const char *plugin_path) {
  tsr_context_options options = TSR_CONTEXT_OPTIONS_INIT;
  tsr_context *context = NULL;
  fake_reset();
  options.plugin_path = plugin_path;
  EXPECT_OK(tsr_context_create(&context, &options));
  cr_assert_not_null(context);
  return context;
}

static tsr_backend_info info_at(const tsr_context *context, int32_t index) {
  tsr_backend_info info = TSR_BACKEND_INFO_INIT;
  EXPECT_OK(tsr_context_backend_info(context, index, &info));
  return info;
}

/* The backend whose origin ends so. */
static tsr_backend_info info_of(const tsr_context *context, const char *file) {
  for (int32_t i = 0; i < tsr_context_backend_count(context); ++i) {
    const tsr_backend_info info = info_at(context, i);
    const size_t length = strlen(info.origin), wanted = strlen(file);
    if (length >= wanted && strcmp(info.origin + length - wanted, file) == 0) return info;
  }
  cr_assert_fail("no backend of origin %s", file);
  exit(1); /* not reached, which the compiler cannot know */
}

static void expect_refused(const tsr_context *context, const char *file, const char *why) {
  const tsr_backend_info info = info_of(context, file);
  cr_expect_eq(info.available, 0, "%s", file);
  cr_expect(strstr(info.reason, why) != NULL, "%s: no '%s' in '%s'", file, why, info.reason);
}

Test(plugin, good_ones_run) {
  tsr_context *context = make(folder("good"));
  static float q[8], out[8];
  const tsr_tensor t = {q, TSR_DTYPE_F32, 0, {1, 1, 1, 8}, {8, 8, 8, 1}};
  tsr_tensor o = t;
  o.data = out;
  const tsr_backend_info info = info_of(context, "/good/plugged.so");
  cr_expect_str_eq(info.name, "plugged");
  cr_expect_eq(info.available, 1);
  cr_expect_str_eq(info.reason, "");
  cr_expect_str_eq(info.detail, "one device");
  cr_expect_str_eq(info_of(context, "/good/short.so").name, "short");
  cr_expect_eq(info_of(context, "/good/short.so").available, 1);
  /* Its estimate beats the linked-in one's. */
  EXPECT_OK(tsr_attention(context, (tsr_device){TSR_DEVICE_HOST, 0}, &t, &t, &t, &o, NULL,
                          TSR_CAUSAL_NONE, 0, NULL));
  cr_expect_eq(out[0], 7.0f);
  /* Slots that its header did not have are refused, not called. */
  fake_backends[0].merge_status = TSR_STATUS_NOT_SUPPORTED;
  tsr_merge_problem m = TSR_MERGE_PROBLEM_INIT;
  m.parts = m.dim_v = 1;
  m.o_part.dtype = m.lse_part.dtype = m.o.dtype = TSR_DTYPE_F32;
  const void *parts[1] = {q};
  const float *lse_parts[1] = {q};
  EXPECT_FAIL(
      TSR_STATUS_NOT_SUPPORTED, "short: cannot merge",
      tsr_merge(context, (tsr_device){TSR_DEVICE_HOST, 0}, &m, parts, lse_parts, out, NULL, NULL));
  tsr_context_destroy(context);
}

Test(plugin, bad_ones_are_listed) {
  tsr_context *context = make(folder("bad"));
  expect_refused(context, "/bad/bad_name.so", "its name is not");
  expect_refused(context, "/bad/empty_slot.so", "a required slot");
  expect_refused(context, "/bad/garbage.so", "cannot be opened");
  expect_refused(context, "/bad/no_device.so", "no device");
  expect_refused(context, "/bad/no_driver.so", "libdriver.so.1 is not here");
  expect_refused(context, "/bad/no_symbol.so", "no symbol tsr_backend_entry");
  expect_refused(context, "/bad/old.so", "does not serve number 1");
  expect_refused(context, "/bad/other_abi.so", "built for backend ABI 8, this library has 1");
  expect_refused(context, "/bad/tiny.so", "vtable of");
  /* Refused files go by their own name, so that they cannot be named as backends by accident. */
  cr_expect_str_eq(info_of(context, "/bad/old.so").name, "old.so");
  cr_expect_str_eq(info_of(context, "/bad/no_driver.so").name, "plugged");
  /* Only *.so is opened, in order of name. */
  cr_expect_eq(tsr_context_backend_count(context), FAKE_BACKENDS + 9);
  for (int32_t i = FAKE_BACKENDS + 1; i < tsr_context_backend_count(context); ++i) {
    char before[4096];
    snprintf(before, sizeof before, "%s", info_at(context, i - 1).origin);
    cr_expect(strcmp(before, info_at(context, i).origin) < 0);
  }
  cr_expect_null(tsr_context_kernel_name(context, FAKE_BACKENDS, 0));
  tsr_context_destroy(context);
}

Test(plugin, names_clash) {
  tsr_context *context = make(folder("clash:good"));
  expect_refused(context, "/clash/alpha.so", "its name 'alpha' is taken (built in)");
  cr_expect_eq(info_of(context, "/good/plugged.so").available, 1);
  tsr_context_destroy(context);
  /* The same folder twice: the first wins. */
  context = make(folder("good:good"));
  cr_expect_eq(tsr_context_backend_count(context), FAKE_BACKENDS + 4);
  cr_expect_eq(info_at(context, FAKE_BACKENDS).available, 1);
  const tsr_backend_info again = info_at(context, FAKE_BACKENDS + 2);
  cr_expect(strstr(again.reason, "is taken") != NULL, "%s", again.reason);
  tsr_context_destroy(context);
}

Test(plugin, folders) {
  /* A folder that was asked for and cannot be read is told; the default one may be missing. */
  tsr_context *context = make("/nonexistent/folder");
  cr_expect_eq(tsr_context_backend_count(context), FAKE_BACKENDS + 1);
  const tsr_backend_info info = info_at(context, FAKE_BACKENDS);
  cr_expect_str_eq(info.origin, "/nonexistent/folder");
  cr_expect(strstr(info.reason, "No such file") != NULL, "%s", info.reason);
  tsr_context_destroy(context);
  context = make(NULL);
  cr_expect_eq(tsr_context_backend_count(context), FAKE_BACKENDS);
  tsr_context_destroy(context);
  /* Empty: no plug-ins. */
  context = make("");
  cr_expect_eq(tsr_context_backend_count(context), FAKE_BACKENDS);
  tsr_context_destroy(context);
  context = make("::");
  cr_expect_eq(tsr_context_backend_count(context), FAKE_BACKENDS);
  tsr_context_destroy(context);
  static char large[8192];
  memset(large, 'x', sizeof large - 1);
  context = make(large);
  cr_expect(strstr(info_at(context, FAKE_BACKENDS).reason, "cannot be read") != NULL);
  tsr_context_destroy(context);
}

Test(plugin, environment) {
  setenv("TSR_PLUGIN_PATH", folder("good"), 1);
  tsr_context *context = make(NULL);
  cr_expect_eq(info_of(context, "/good/plugged.so").available, 1);
  tsr_context_destroy(context);
  context = make(""); /* the option wins */
  cr_expect_eq(tsr_context_backend_count(context), FAKE_BACKENDS);
  tsr_context_destroy(context);
}

Test(plugin, default_folder_is_beside_the_library) {
  char beside[TSRI_PATH_BYTES], self[TSRI_PATH_BYTES];
  tsri_plugin_default_folder(beside);
  /* Here the library is part of the test program. */
  const ssize_t length = readlink("/proc/self/exe", self, sizeof self - 1);
  cr_assert_gt(length, 0);
  self[length] = '\0';
  *strrchr(self, '/') = '\0';
  strcat(self, "/tessera");
  cr_expect_str_eq(beside, self);
}

Test(plugin, many_contexts) {
  for (int i = 0; i < 3; ++i) {
    tsr_context *a = make(folder("good:bad")), *b = make(folder("good"));
    tsr_context_destroy(a);
    cr_expect_eq(info_of(b, "/good/plugged.so").available, 1);
    tsr_context_destroy(b);
  }
}
