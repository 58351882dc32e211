// SPDX-License-Identifier: Apache-2.0
//
// One public header, TSR_TEST_HEADER, compiled first and alone in strict C11, twice to prove its guard,
// with every initialiser macro it offers used under -Wall -Wextra. header_alone.cc compiles the same text as C++17.
#if defined(TSR_TEST_HEADER_dlpack)
#include <dlpack/dlpack.h>
#endif
#include TSR_TEST_HEADER
#include TSR_TEST_HEADER

#if defined(TSR_TEST_HEADER_tessera)
extern const tsr_context_options options;
const tsr_context_options options = TSR_CONTEXT_OPTIONS_INIT;
extern const tsr_backend_info backend_info;
const tsr_backend_info backend_info = TSR_BACKEND_INFO_INIT;
extern const tsr_device_info device_info;
const tsr_device_info device_info = TSR_DEVICE_INFO_INIT;
extern const tsr_problem problem;
const tsr_problem problem = TSR_PROBLEM_INIT;
extern const tsr_plan_info plan_info;
const tsr_plan_info plan_info = TSR_PLAN_INFO_INIT;
extern const tsr_args args;
const tsr_args args = TSR_ARGS_INIT;
extern const tsr_merge_problem merge_problem;
const tsr_merge_problem merge_problem = TSR_MERGE_PROBLEM_INIT;
extern const tsr_dropout_problem dropout_problem;
const tsr_dropout_problem dropout_problem = TSR_DROPOUT_PROBLEM_INIT;
#elif defined(TSR_TEST_HEADER_version)
#if TSR_VERSION_NUMBER != TSR_VERSION_MAJOR * 10000 + TSR_VERSION_MINOR * 100 + TSR_VERSION_PATCH
#error "TSR_VERSION_NUMBER"
#endif
extern const int abi_number;
const int abi_number = TSR_API_VERSION_MAJOR;
#elif defined(TSR_TEST_HEADER_export)
TSR_API int exported(void);
#elif defined(TSR_TEST_HEADER_backend)
extern const tsr_backend backend;
const tsr_backend backend = {sizeof(tsr_backend), TSR_BACKEND_ABI, "x", TSR_DEVICE_HOST, 0, 0, 0, 0,
                             0, 0, 0, 0, 0, 0, 0, 0};
TSR_BACKEND_ENTRY(x) { return host_abi == TSR_BACKEND_ABI ? &backend : 0; }
#elif defined(TSR_TEST_HEADER_dlpack)
extern const int dlpack_float_code;
const int dlpack_float_code = kDLFloat;
#else
#error "TSR_TEST_HEADER_<name>: no public header of that name"
#endif
