# SPDX-License-Identifier: Apache-2.0
#
# What the lint scripts share: the list of source files below ROOT, and the collection of violations.
# Works on a checkout as well as on an unpacked archive, so it walks the folders instead of asking git.

if(NOT ROOT OR NOT IS_DIRECTORY "${ROOT}")
  message(FATAL_ERROR "ROOT: '${ROOT}' is not a folder; pass -DROOT=<top of the tree>")
endif()
get_filename_component(ROOT "${ROOT}" ABSOLUTE)
set(tessera_violations "")

# tessera_tree_files(<variable> <regex>): files of the tree, relative to ROOT, whose path matches.
function(tessera_tree_files out regex)
  set(_found "")
  foreach(_top .ci api backends bench cli cmake common docs examples scripts tests)
    file(GLOB_RECURSE _files LIST_DIRECTORIES OFF RELATIVE "${ROOT}" "${ROOT}/${_top}/*")
    list(APPEND _found ${_files})
  endforeach()
  file(GLOB _files LIST_DIRECTORIES OFF RELATIVE "${ROOT}" "${ROOT}/*" "${ROOT}/.clang-format" "${ROOT}/.gitignore")
  list(APPEND _found ${_files})
  list(FILTER _found INCLUDE REGEX "${regex}")
  list(FILTER _found EXCLUDE REGEX "(^|/)(__pycache__|\\.venv|build[^/]*)/")
  list(REMOVE_DUPLICATES _found)
  list(SORT _found)
  set(${out} "${_found}" PARENT_SCOPE)
endfunction()

macro(tessera_violation file text)
  message("${file}: ${text}")
  list(APPEND tessera_violations "${file}")
endmacro()

# Ends the script: fails if anything was found, also if there was nothing to look at.
macro(tessera_report what)
  list(LENGTH tessera_violations _count)
  if(_count GREATER 0)
    message(FATAL_ERROR "${what}: ${_count} violation(s)")
  endif()
  message("${what}: no violation")
endmacro()
