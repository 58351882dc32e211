# SPDX-License-Identifier: Apache-2.0
#
# The test of cmake/check_rows.cmake: it must pass reports in which no kernel keeps anything in local
# memory, and fail on a planted stack frame, on planted spills, on a report without a kernel, on a
# missing report, and where a row of 9.0 does without warpgroup products. And of cmake/count_products.cmake, on
# a file made here.
#   cmake -DROOT=<top of the tree> -DWORK=<scratch folder> -P rows_selftest.cmake
cmake_minimum_required(VERSION 3.25)
set(folder "${WORK}/rows")
set(failures 0)

function(report name stack stores loads)
  file(WRITE "${folder}/${name}.cu.txt"
    "tenths 31\n" ${ARGN}
    "ptxas info    : 0 bytes gmem\n"
    "ptxas info    : Compiling entry function 'clean_${name}' for 'sm_80'\n"
    "ptxas info    : Function properties for clean_${name}\n"
    "    0 bytes stack frame, 0 bytes spill stores, 0 bytes spill loads\n"
    "ptxas info    : Used 128 registers, used 1 barriers, 5016 bytes cmem[0]\n"
    "ptxas info    : Compiling entry function '${name}' for 'sm_90'\n"
    "ptxas info    : Function properties for ${name}\n"
    "    ${stack} bytes stack frame, ${stores} bytes spill stores, ${loads} bytes spill loads\n"
    "ptxas info    : Used 255 registers, used 1 barriers, 5016 bytes cmem[0]\n")
endfunction()

# expect(<sources> <PASS|text that must be in the output>)
function(expect sources outcome)
  execute_process(
    COMMAND "${CMAKE_COMMAND}" "-DREPORTS=${folder}" "-DSOURCES=${sources}" -P "${ROOT}/cmake/check_rows.cmake"
    RESULT_VARIABLE result OUTPUT_VARIABLE text ERROR_VARIABLE text)
  string(FIND "${text}" "${outcome}" position)
  if((outcome STREQUAL "PASS" AND result EQUAL 0) OR (NOT result EQUAL 0 AND position GREATER_EQUAL 0))
    return()
  endif()
  message("${sources}: expected ${outcome}, found exit ${result}:\n${text}")
  math(EXPR failures "${failures} + 1")
  set(failures ${failures} PARENT_SCOPE)
endfunction()

file(REMOVE_RECURSE "${folder}")
report(good 0 0 0)
report(also_good 0 0 0)
report(framed 16 0 0)
report(stored 0 8 0)
report(loaded 0 0 4)
file(WRITE "${folder}/empty.cu.txt" "tenths 10\n")
expect("some/good.cu;also_good.cu" PASS)
expect("good.cu;framed.cu" "FAILED: framed, sm_90: 16 bytes of stack")
expect("stored.cu;good.cu" "FAILED: stored, sm_90: 0 bytes of stack, 8 of spill stores")
expect("loaded.cu" "4 of spill loads")
expect("good.cu;empty.cu" "FAILED: empty.cu: its report names no kernel")
expect("good.cu;absent.cu" "FAILED: absent.cu: no report")
expect("" "no kernel was reported")
report(fwd_bf16__sm90_a 0 0 0 "products 24 0\n")
report(fwd_e4m3_d64__sm90_a 0 0 0 "products 0 8\n")
report(fwd_e4m3_d64__sm90_b 0 0 0 "products 24 0\n")
report(fwd_bf16__sm90_b 0 0 0 "products 0 8\n")
report(fwd_bf16__sm90_c 0 0 0)
expect("fwd_bf16__sm90_a.cu;fwd_e4m3_d64__sm90_a.cu" PASS)
expect("fwd_bf16__sm90_b.cu" "products of warpgroups: 0 of 16 bits, 8 of 8")
expect("fwd_e4m3_d64__sm90_b.cu" "products of warpgroups: 24 of 16 bits, 0 of 8")
expect("fwd_bf16__sm90_c.cu" "nobody counted its products")

# A kernel file of two sections, at 0x40 and 0xa0: instructions, and data that look like them. The table is at 0xc0.
include("${ROOT}/cmake/count_products.cmake")
set(product_16 "f0791804000000000000000000000000")
set(product_8 "f37d1804000000000000000000000000")
set(other "19790000000000000000000000000000")
function(section out type flags begin size)
  string(REPEAT "00" 7 seven)
  string(REPEAT "00" 8 eight)
  set(${out} "00000000${type}000000${flags}${seven}${eight}${begin}${seven}${size}${seven}${eight}${eight}${eight}"
    PARENT_SCOPE)
endfunction()
section(code 01 06 40 60)
section(data 01 03 a0 20)
string(REPEAT "00" 36 before)
string(REPEAT "00" 10 between)
count_products_in(counts "7f454c46${before}c000000000000000${between}400002000000\
${product_16}${other}${product_16}${product_8}${other}${other}${product_16}${product_8}${code}${data}")
if(NOT counts STREQUAL "2 1")
  message("products of a file with 2 of 16 bits and 1 of 8: ${counts}")
  math(EXPR failures "${failures} + 1")
endif()
if(failures GREATER 0)
  message(FATAL_ERROR "rows_selftest: ${failures} failure(s)")
endif()
