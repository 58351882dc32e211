/* SPDX-License-Identifier: Apache-2.0
 *
 * Facts of this machine that plans use: cache sizes, clock, memory. Read once when the backend is
 * probed; a figure that the system does not tell gets a cautious default. */
#ifndef TESSERA_CPU_DEVICE_H_
#define TESSERA_CPU_DEVICE_H_

#include <stdint.h>

typedef struct tsri_cpu_device {
  char name[128];
  int64_t l1_bytes; /* data cache of a core */
  int64_t l2_bytes; /* of a core */
  int64_t memory_bytes;
  double clock;     /* Hz, estimate */
  double bandwidth; /* bytes/s of one thread, estimate */
} tsri_cpu_device;

tsri_cpu_device tsri_cpu_device_read(void);

#endif /* TESSERA_CPU_DEVICE_H_ */
