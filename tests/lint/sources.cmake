# SPDX-License-Identifier: Apache-2.0
#
# What every text file of the tree must have: the licence line at its top, a size that one can read, no
# markers of unfinished work, no tabs or trailing blanks in code.
#   cmake -DROOT=<top of the tree> -P sources.cmake       non-zero exit and one line per violation
# Files above the limit are listed in long_files.txt with the reason.
cmake_minimum_required(VERSION 3.25)
include("${CMAKE_CURRENT_LIST_DIR}/tree.cmake")

set(line_limit 500)
set(long_files "")
if(NOT LONG_FILES)
  set(LONG_FILES "${CMAKE_CURRENT_LIST_DIR}/long_files.txt")
endif()
file(STRINGS "${LONG_FILES}" rows REGEX "^[^#]")
foreach(row IN LISTS rows)
  if(NOT row MATCHES "^([^ ]+)  +([^ ].*)$")
    message(FATAL_ERROR "${LONG_FILES}: '${row}' is not '<path>  <reason>'")
  endif()
  list(APPEND long_files "${CMAKE_MATCH_1}")
  if(NOT EXISTS "${ROOT}/${CMAKE_MATCH_1}")
    tessera_violation("${CMAKE_MATCH_1}" "listed in long_files.txt but absent")
  endif()
endforeach()

set(code "\\.(c|h|cc|cpp|hpp|cu|cuh|hip|def)$")
set(text "\\.(c|h|cc|cpp|hpp|cu|cuh|hip|def|cmake|in|map|py|sh|md|yml|txt)$|^\\.ci/run$|^\\.clang-format$|^\\.gitignore$")
# Put together so that this file does not find itself.
string(CONCAT unfinished "(^|[^A-Za-z_])(TO" "DO|FIX" "ME|X" "XX|HA" "CK|not imple" "mented|unimple" "mented)([^A-Za-z_]|$)")

tessera_tree_files(files "${text}")
list(FILTER files EXCLUDE REGEX "^tests/data/.*\\.txt$")
foreach(file IN LISTS files)
  file(READ "${ROOT}/${file}" head LIMIT 400)
  if(NOT head MATCHES "SPDX-License-Identifier: Apache-2\\.0")
    tessera_violation("${file}" "no line 'SPDX-License-Identifier: Apache-2.0' at the top")
  endif()

  file(STRINGS "${ROOT}/${file}" hits REGEX "${unfinished}")
  if(hits)
    list(GET hits 0 hit)
    tessera_violation("${file}" "marker of unfinished work: ${hit}")
  endif()

  if(file MATCHES "${code}" OR file MATCHES "\\.(py|sh|cmake|in)$")
    file(READ "${ROOT}/${file}" content)
    string(REGEX MATCHALL "\n" newlines "${content}")
    list(LENGTH newlines length)
    if(length GREATER line_limit AND NOT file IN_LIST long_files)
      tessera_violation("${file}" "${length} lines; the limit is ${line_limit}, exceptions go into tests/lint/long_files.txt")
    elseif(length LESS_EQUAL line_limit AND file IN_LIST long_files)
      tessera_violation("${file}" "${length} lines, so it needs no line in tests/lint/long_files.txt")
    endif()
    if(content MATCHES "[ \t]\r?\n" OR content MATCHES "\r")
      tessera_violation("${file}" "blanks at the end of a line, or DOS line ends")
    endif()
    if(file MATCHES "${code}" AND content MATCHES "\t")
      tessera_violation("${file}" "tab")
    endif()
  endif()
endforeach()

list(LENGTH files count)
if(count EQUAL 0)
  message(FATAL_ERROR "sources: no file found below ${ROOT}")
endif()
tessera_report("sources")
