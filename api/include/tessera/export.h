// SPDX-License-Identifier: Apache-2.0
//
// Symbol visibility of the public functions. The library is built with hidden visibility and an
// export map, so only what carries TSR_API is part of the ABI.
#ifndef TESSERA_EXPORT_H_
#define TESSERA_EXPORT_H_

#if defined(TSR_STATIC)
#define TSR_API
#elif defined(_WIN32)
#if defined(TSR_BUILDING_LIBRARY)
#define TSR_API __declspec(dllexport)
#else
#define TSR_API __declspec(dllimport)
#endif
#else
#define TSR_API __attribute__((visibility("default")))
#endif

#endif  // TESSERA_EXPORT_H_
