# SPDX-License-Identifier: Apache-2.0
#
# A GPU backend where there is no driver: what holds it needs no library of the vendor's to be loaded, and
# `tessera info` lists it with the reason. Where there is a driver, it must be available instead, or give
# the driver's reason.
#   cmake -DBACKEND=<cuda or hip> -DREADELF=<program> -DCLI=<tessera> -DBINARY=<library or plug-in>
#         -P gpu_without_driver.cmake
cmake_minimum_required(VERSION 3.25)

if(BINARY MATCHES "[.]so")
  execute_process(COMMAND "${READELF}" -d "${BINARY}" OUTPUT_VARIABLE dynamic COMMAND_ERROR_IS_FATAL ANY)
  if(NOT dynamic MATCHES "NEEDED")
    message(FATAL_ERROR "${BINARY}: no needed library is listed, so nothing was checked:\n${dynamic}")
  endif()
  if(dynamic MATCHES "NEEDED[^\n]*(libcuda|libcudart|libnv|libamd|libhsa)[^\n]*")
    message(FATAL_ERROR "${BINARY}: must load without the driver, but has: ${CMAKE_MATCH_0}")
  endif()
endif()

execute_process(COMMAND "${CLI}" info --json OUTPUT_VARIABLE info RESULT_VARIABLE status)
if(NOT status EQUAL 0)
  message(FATAL_ERROR "tessera info: exit ${status}")
endif()
string(JSON count LENGTH "${info}" backends)
math(EXPR last "${count} - 1")
set(found FALSE)
foreach(i RANGE ${last})
  string(JSON name GET "${info}" backends ${i} name)
  if(name STREQUAL BACKEND)
    set(found TRUE)
    string(JSON available GET "${info}" backends ${i} available)
    set(reason "")
    if(NOT available)
      string(JSON reason GET "${info}" backends ${i} reason)
    endif()
  endif()
endforeach()
if(NOT found)
  message(FATAL_ERROR "tessera info lists no backend ${BACKEND}:\n${info}")
endif()
set(names_cuda cuda libcuda.so.1)
set(names_hip amdhip64 libamdhip64.so.7 libamdhip64.so.6 libamdhip64.so.5)
set(words_cuda "no CUDA driver on this machine")
set(words_hip "no HIP runtime on this machine")
find_library(driver NAMES ${names_${BACKEND}}
  PATHS /usr/lib/x86_64-linux-gnu /usr/lib64 /usr/lib/aarch64-linux-gnu /opt/rocm/lib)
message("driver: ${driver}; available: ${available}; reason: ${reason}")
if(NOT driver AND NOT reason MATCHES "${words_${BACKEND}}")
  message(FATAL_ERROR "no driver is here, but the reason is '${reason}', available: ${available}")
endif()
if(NOT available AND reason STREQUAL "")
  message(FATAL_ERROR "absent without a reason")
endif()
