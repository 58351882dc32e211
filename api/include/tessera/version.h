// SPDX-License-Identifier: Apache-2.0
//
// The version of Tessera, written here and nowhere else: the build reads these macros.
// TSR_API_VERSION_MAJOR changes with every incompatible change of the ABI and is the soname's number.
#ifndef TESSERA_VERSION_H_
#define TESSERA_VERSION_H_

#define TSR_VERSION_MAJOR 0
#define TSR_VERSION_MINOR 1
#define TSR_VERSION_PATCH 0
#define TSR_API_VERSION_MAJOR 0

#define TSR_VERSION_NUMBER \
  (TSR_VERSION_MAJOR * 10000 + TSR_VERSION_MINOR * 100 + TSR_VERSION_PATCH)

#endif  // TESSERA_VERSION_H_
