// SPDX-License-Identifier: Apache-2.0
//
// A HIP runtime without devices and without kernels, for the host code above it: every call can be told to fail,
// and what it gave out is counted. Nothing is computed. Built as libamdhip64.so.7, the first name that the backend
// looks for; the program that tests opens the same file and asks for fakeHip().
#ifndef TESSERA_TESTS_SUPPORT_FAKE_HIP_H_
#define TESSERA_TESTS_SUPPORT_FAKE_HIP_H_

#include <stddef.h>
#include <stdint.h>

enum { FAKE_HIP_DEVICES = 2, FAKE_HIP_LOG = 4096, FAKE_HIP_OUT_OF_MEMORY = 2, FAKE_HIP_LAUNCH_FAILURE = 719 };

/* The counters are atomic. */
typedef struct fake_hip {
  int64_t calls;       /* that can fail */
  int64_t fail_at;     /* the number of the one that does, from 1; 0: none */
  int32_t for_ever;    /* 1: and all after it */
  int32_t error;       /* what it returns */
  int32_t capturing;   /* 1: every stream is being captured */
  const char *failed;  /* the name of the last call that failed */
  const char *log[FAKE_HIP_LOG]; /* names of the first calls, from number 1 on */
  int64_t modules;     /* loaded, and never unloaded */
  int64_t repeated;    /* modules of an image that their device had already */
  int64_t blocks;      /* of memory in stream order that were not given back */
  int64_t not_freed;   /* blocks that could not be, because giving them back was told to fail */
  int64_t launches;
  int64_t misplaced;   /* launches of a function of another device than the current one */
  void *(*memory)(int device, size_t bytes); /* of a device, to the end of the process */
} fake_hip;

fake_hip *fakeHip(void);

#endif  // TESSERA_TESTS_SUPPORT_FAKE_HIP_H_
