// SPDX-License-Identifier: Apache-2.0
// Runs a fuzz target over every file of the folders named on the command line, without libFuzzer:
// the regression replay that every compiler and sanitizer build can do. Fails when there was no
// file.
#define _GNU_SOURCE
#include <dirent.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void fail(const char *path, const char *what) {
  fprintf(stderr, "%s: %s\n", path, what);
  exit(2);
}

static void replay(const char *path) {
  FILE *file = fopen(path, "rb");
  if (file == NULL || fseek(file, 0, SEEK_END) != 0) fail(path, "cannot be read");
  long size = ftell(file);
  rewind(file);
  // Exactly as large as the input, so that the address sanitizer sees a read past its end.
  uint8_t *data = malloc(size > 0 ? (size_t)size : 1);
  if (size < 0 || data == NULL || fread(data, 1, (size_t)size, file) != (size_t)size) {
    fail(path, "cannot be read");
  }
  fclose(file);
  LLVMFuzzerTestOneInput(data, (size_t)size);
  free(data);
}

int main(int argc, char **argv) {
  int count = 0;
  for (int i = 1; i < argc; ++i) {
    DIR *folder = opendir(argv[i]);
    if (folder == NULL) fail(argv[i], "no such folder");
    for (struct dirent *entry = readdir(folder); entry != NULL; entry = readdir(folder)) {
      char path[4096];
      struct stat info;
      snprintf(path, sizeof path, "%s/%s", argv[i], entry->d_name);
      if (stat(path, &info) != 0 || !S_ISREG(info.st_mode)) continue;
      replay(path);
      ++count;
    }
    closedir(folder);
  }
  if (count == 0) fail(argc > 1 ? argv[1] : argv[0], "no corpus file");
  printf("%d inputs replayed\n", count);
  return 0;
}
