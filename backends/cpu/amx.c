// SPDX-License-Identifier: Apache-2.0
//
// Detection of Intel AMX: the processor's word (CPUID leaf 7), the system's (XCR0), and permission
// for the 8 KiB of tile state, which Linux grants per process on request (arch_prctl,
// ARCH_REQ_XCOMP_PERM; Documentation/arch/x86/xstate.rst of the kernel).
#define _GNU_SOURCE
#include "amx.h"

#include <stddef.h>

#if defined(__x86_64__) && defined(__linux__)
  #include <cpuid.h>
  #include <sys/syscall.h>
  #include <unistd.h>

enum {
  request_permission = 0x1023, /* ARCH_REQ_XCOMP_PERM */
  tile_data = 18               /* state component XTILEDATA */
};

static unsigned long long enabled_state(void) {
  unsigned low, high;
  __asm__("xgetbv" : "=a"(low), "=d"(high) : "c"(0));
  return (unsigned long long)high << 32 | low;
}

/* Tiles and products of bfloat16, and the AVX-512 conversions that kernels use beside them. */
static int has_instructions(void) {
  #if defined(TESSERA_EMULATE_AMX)
  return 1;
  #else
  unsigned a = 0, b, c, d = 0;
  if (!__get_cpuid_count(7, 0, &a, &b, &c, &d) || (d >> 22 & 1) == 0 || (d >> 24 & 1) == 0)
    return 0;
  return __get_cpuid_count(7, 1, &a, &b, &c, &d) && (a >> 5 & 1);
  #endif
}

const char *tsri_cpu_amx_missing(void) {
  unsigned a, b, c = 0, d;
  if (!__get_cpuid(1, &a, &b, &c, &d) || !(c >> 27 & 1) || (enabled_state() & 0xe6) != 0xe6)
    return "the system does not save AVX-512 registers";
  if (!has_instructions()) return "the processor has no AMX tiles for bfloat16";
  #if !defined(TESSERA_EMULATE_AMX)
  if ((enabled_state() >> 17 & 3) != 3) return "the system does not save AMX tiles";
  if (syscall(SYS_arch_prctl, request_permission, tile_data) != 0)
    return "the system refused this process the AMX tiles";
  #endif
  return NULL;
}
#else
const char *tsri_cpu_amx_missing(void) {
  return "AMX is an x86-64 extension, supported under Linux";
}
#endif
