// SPDX-License-Identifier: Apache-2.0
// Runs a fuzz target over the files named on the command line, without libFuzzer: the regression
// replay that every compiler and sanitizer build can do. Fails when no file was given.
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size);

int main(int argc, char** argv) {
  if (argc < 2) {
    fprintf(stderr, "%s: no corpus file given\n", argv[0]);
    return 2;
  }
  for (int i = 1; i < argc; ++i) {
    FILE* file = fopen(argv[i], "rb");
    if (file == NULL || fseek(file, 0, SEEK_END) != 0) {
      fprintf(stderr, "%s: cannot be read\n", argv[i]);
      return 2;
    }
    long size = ftell(file);
    rewind(file);
    // Exactly as large as the input, so that the address sanitizer sees a read past its end.
    uint8_t* data = malloc(size > 0 ? (size_t)size : 1);
    if (size < 0 || data == NULL || fread(data, 1, (size_t)size, file) != (size_t)size) {
      fprintf(stderr, "%s: cannot be read\n", argv[i]);
      return 2;
    }
    fclose(file);
    LLVMFuzzerTestOneInput(data, (size_t)size);
    free(data);
  }
  printf("%d inputs replayed\n", argc - 1);
  return 0;
}
