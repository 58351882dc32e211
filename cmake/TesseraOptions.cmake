# SPDX-License-Identifier: Apache-2.0
#
# Every option of the build, one line each. Build options default to OFF when Tessera is a subproject.
# Besides these, CMake's own variables apply: BUILD_SHARED_LIBS, CMAKE_INSTALL_PREFIX and its kin.

option(BUILD_SHARED_LIBS "Build libtessera as a shared library" ON)

option(TESSERA_ENABLE_CPU "CPU backend (Google Highway and OpenMP)" ON)
option(TESSERA_ENABLE_CUDA "CUDA backend for NVIDIA GPUs" OFF)
option(TESSERA_ENABLE_HIP "HIP backend for AMD GPUs" OFF)
option(TESSERA_PLUGINS "Build backends as <libdir>/tessera/<name>.so instead of folding them in" OFF)

option(TESSERA_BUILD_CLI "Command line program 'tessera' (Jansson)" ${PROJECT_IS_TOP_LEVEL})
option(TESSERA_BUILD_TESTS "Tests (Criterion)" ${PROJECT_IS_TOP_LEVEL})
option(TESSERA_BUILD_BENCH "Benchmark programs" ${PROJECT_IS_TOP_LEVEL})
option(TESSERA_BUILD_EXAMPLES "Example programs" ${PROJECT_IS_TOP_LEVEL})
option(TESSERA_BUILD_DOCS "Reference manual as target 'docs' (Doxygen)" OFF)

option(TESSERA_WERROR "Treat compiler warnings as errors" OFF)
set(TESSERA_SANITIZE "" CACHE STRING "Sanitizers for every target, separated by ';': address, undefined, leak, thread")

foreach(_sanitizer IN LISTS TESSERA_SANITIZE)
  if(NOT _sanitizer MATCHES "^(address|undefined|leak|thread)$")
    message(FATAL_ERROR "TESSERA_SANITIZE: '${_sanitizer}' is not one of address, undefined, leak, thread")
  endif()
endforeach()
if("thread" IN_LIST TESSERA_SANITIZE AND TESSERA_SANITIZE MATCHES "address|leak")
  message(FATAL_ERROR "TESSERA_SANITIZE: thread cannot be combined with address or leak")
endif()
