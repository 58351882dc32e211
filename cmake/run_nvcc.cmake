# SPDX-License-Identifier: Apache-2.0
#
# Compiler launcher of CUDA sources: runs nvcc, keeps what ptxas says of every kernel in
# <REPORTS>/<object's name>.txt together with the seconds it took, and shows only the rest.
#   cmake -DREPORTS=<folder> -P run_nvcc.cmake -- nvcc <argument>...
cmake_minimum_required(VERSION 3.25)

set(command "")
set(object "")
set(previous "")
set(begun FALSE)
math(EXPR last "${CMAKE_ARGC} - 1")
foreach(i RANGE ${last})
  set(argument "${CMAKE_ARGV${i}}")
  if(begun)
    list(APPEND command "${argument}")
    if(previous STREQUAL "-o")
      set(object "${argument}")
    endif()
    set(previous "${argument}")
  elseif(argument STREQUAL "--")
    set(begun TRUE)
  endif()
endforeach()

string(TIMESTAMP start "%s")
execute_process(COMMAND ${command} RESULT_VARIABLE status OUTPUT_VARIABLE output ERROR_VARIABLE errors)
string(TIMESTAMP end "%s")
math(EXPR seconds "${end} - ${start}")

set(all "${output}${errors}")
string(REGEX REPLACE "(ptxas info[^\n]*|    Function properties[^\n]*|[ ]+[0-9]+ bytes stack frame[^\n]*)\n" "" rest "${all}")
if(NOT rest STREQUAL "")
  message("${rest}")
endif()
if(NOT status STREQUAL "0")
  message(FATAL_ERROR "nvcc: ${status}")
endif()
if(object MATCHES "[.]o$")
  get_filename_component(name "${object}" NAME)
  string(REGEX REPLACE "[.]o$" "" name "${name}")
  file(WRITE "${REPORTS}/${name}.txt" "seconds ${seconds}\n${all}")
endif()
