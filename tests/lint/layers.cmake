# SPDX-License-Identifier: Apache-2.0
#
# The layer rule, read off the #include lines: which folder may include which header, and how it is
# spelled (docs/design.md, "Layers"). Also: the library layers call nothing that prints, ends the process
# or allocates behind the caller's back.
#   cmake -DROOT=<top of the tree> -P layers.cmake        non-zero exit and one line per violation
# tests/lint/selftest.cmake proves that planted violations are found.
cmake_minimum_required(VERSION 3.25)
include("${CMAKE_CURRENT_LIST_DIR}/tree.cmake")

# C headers that compute; those of a library layer that may not do I/O or allocate.
set(pure "<(assert|complex|ctype|errno|fenv|float|inttypes|iso646|limits|math|stdalign|stdarg|stdbool|stddef|stdint|string)\\.h>|<c(float|limits|math|stddef|stdint|string)>|<(algorithm|array|limits|type_traits|utility)>")
set(public "[<\"]tessera/(tessera|version|export|backend|dlpack)\\.h[>\"]")
set(common "\"common/[a-z0-9_]+(-inl)?\\.(h|def)\"")
set(gpu "\"common/gpu/[a-z0-9_]+\\.hpp\"")
set(gpu_host "\"common/gpu/host/[a-z0-9_]+\\.h\"")
set(own "\"[a-z0-9_]+(-inl)?\\.(h|hpp|cuh|def)\"")
set(own_sub "\"[a-z0-9_]+/[a-z0-9_]+(-inl)?\\.(h|hpp|cuh|def)\"")
set(support "\"tests/support/[a-z0-9_]+\\.(h|def)\"")
set(system "<[a-z0-9_./+-]+>")
set(vendor "<(cuda|hip|hwy|hipcc|rocm)[a-z0-9_]*(\\.h|/.*)>|\"hwy/")
set(none "^$")

# rule(<folder regex> <allowed includes> <refused though allowed>): the first rule whose folder matches
# decides. What a rule's regexes do not name is a violation.
set(rule_count 0)
macro(rule folder allowed refused)
  set(rule_${rule_count}_folder "${folder}")
  set(rule_${rule_count}_allowed "^(${allowed})$")
  set(rule_${rule_count}_refused "${refused}")
  math(EXPR rule_count "${rule_count} + 1")
endmacro()

rule("^api/include/tessera/dlpack\\.h$" "${public}|${pure}|<dlpack/dlpack\\.h>" "${none}")
rule("^api/include/" "${public}|<stddef\\.h>|<stdint\\.h>" "${none}")
rule("^api/src/" "${public}|${common}|${own}|${system}" "${vendor}|<omp\\.h>")
rule("^common/reference/" "${public}|${common}|${own}|${system}" "${vendor}")
rule("^common/gpu/(platform\\.hpp|emulator\\.cpp)$" "${public}|${common}|${gpu}|${own}|${system}" "${none}")
rule("^common/gpu/host/" "${public}|${common}|${gpu}|${gpu_host}|${pure}|<stdio\\.h>" "${none}")
rule("^common/gpu/" "${public}|${common}|${gpu}|${own}|${pure}" "${none}")
rule("^common/" "${public}|${common}|${own}|${pure}" "${none}")
rule("^backends/cpu/"
  "${public}|${common}|${own}|\"backends/cpu/[a-z0-9_-]+\\.(h|cc)\"|\"hwy/[a-z0-9_/-]+\\.h\"|${system}"
  "<(cuda|hip)[a-z0-9_]*(\\.h|/.*)>")
rule("^backends/cuda/"
  "${public}|${common}|${gpu}|${gpu_host}|${own}|${own_sub}|\"backends/cuda/.*\"|${system}" "<hip[a-z0-9_]*(\\.h|/.*)>|<hwy/|\"(tests|api)/")
rule("^backends/hip/"
  "${public}|${common}|${gpu}|${gpu_host}|${own}|${own_sub}|\"backends/hip/.*\"|${system}" "<cuda[a-z0-9_]*(\\.h|/.*)>|<hwy/|\"(tests|api)/")
rule("^backends/" "${public}|${common}|${own}|${system}" "${none}")
rule("^cli/" "${public}|${support}|\"bench/[a-z0-9_]+\\.h\"|${own}|${system}" "${vendor}|tessera/backend\\.h")
rule("^examples/custom_backend/" "${public}|${own}|${system}" "${vendor}")
rule("^examples/" "[<\"]tessera/tessera\\.h[>\"]|${own}|${system}" "${vendor}|tessera/backend\\.h")
rule("^tests/conformance/" "${public}|${support}|${own}|${system}" "${vendor}|tessera/backend\\.h")
rule("^bench/" "${public}|${support}|${own}|${system}" "tessera/backend\\.h")
rule("^tests/support/" "${public}|${common}|${support}|${own}|${system}" "${vendor}")
rule("^tests/" ".*" "\"\\.\\./")

tessera_tree_files(files "^(api|backends|bench|cli|common|examples|tests)/.*\\.(c|h|cc|cpp|hpp|cu|cuh|hip|def|in)$")
foreach(file IN LISTS files)
  # [ and ] would glue list elements together; no include line that could pass contains them.
  file(STRINGS "${ROOT}/${file}" lines REGEX "^[ \t]*#[ \t]*include")
  foreach(line IN LISTS lines)
    if(NOT line MATCHES "include[ \t]*([<\"][^>\"]*[>\"])")
      if(file MATCHES "^tests/abi/")
        continue()  # the header under test is named on the compiler's command line
      endif()
      if(NOT line MATCHES "include[ \t]+HWY_TARGET_INCLUDE")
        tessera_violation("${file}" "include of a macro: ${line}")
      endif()
      continue()
    endif()
    set(name "${CMAKE_MATCH_1}")
    set(verdict "no rule covers this folder")
    foreach(i RANGE ${rule_count})
      if(i EQUAL rule_count)
        break()
      endif()
      if(file MATCHES "${rule_${i}_folder}")
        set(verdict "")
        if(NOT name MATCHES "${rule_${i}_allowed}" OR name MATCHES "${rule_${i}_refused}")
          set(verdict "may not include ${name}")
        endif()
        break()
      endif()
    endforeach()
    if(verdict)
      tessera_violation("${file}" "${verdict}")
    endif()
  endforeach()
endforeach()

# Library code reports through status and message. log.c holds the one sink that writes to stderr, and
# only if the environment asks for it.
tessera_tree_files(library "^(api/src|common|backends)/.*\\.(c|h|cc|cpp|hpp|cu|cuh|hip)$")
foreach(file IN LISTS library)
  file(STRINGS "${ROOT}/${file}" lines
    REGEX "(^|[^A-Za-z0-9_>.])(printf|fprintf|vfprintf|puts|fputs|putchar|perror|abort|exit|_exit|assert)[ ]*\\(")
  list(LENGTH lines count)
  if(count GREATER 0 AND NOT file STREQUAL "api/src/log.c")
    list(GET lines 0 line)
    string(STRIP "${line}" line)
    if(NOT line MATCHES "^(//|\\*|/\\*)")
      tessera_violation("${file}" "the library may not print, exit or assert: ${line}")
    endif()
  endif()
  if(file MATCHES "^common/[a-z0-9_-]+\\.h$")
    file(STRINGS "${ROOT}/${file}" lines REGEX "(^|[^A-Za-z0-9_>.])(malloc|calloc|realloc|free|new|delete)[ ]*\\(")
    list(LENGTH lines count)
    if(count GREATER 0)
      tessera_violation("${file}" "common/ may not allocate: ${lines}")
    endif()
  endif()
endforeach()

# A mask shaped as an interval is the business of common/mask.h and common/geometry.h alone: backends, their shared
# parts and the reference take rules, rows and tile classes, and name neither kinds nor fields of a window.
tessera_tree_files(sees_intervals "^(backends|common/gpu|common/reference)/.*\\.(c|h|cc|cpp|hpp|cu|cuh|hip|in)$")
foreach(file IN LISTS sees_intervals)
  file(STRINGS "${ROOT}/${file}" lines REGEX "TSR_WINDOW_|window\\.(kind|left|right)|tsri_mask_rule_make")
  list(LENGTH lines count)
  if(count GREATER 0)
    tessera_violation("${file}" "masks come from common/ as intervals: ${lines}")
  endif()
endforeach()

tessera_report("layers")
