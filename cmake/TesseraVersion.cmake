# SPDX-License-Identifier: Apache-2.0
#
# Reads the version out of api/include/tessera/version.h, the only place where it is written.
# Sets TESSERA_VERSION (major.minor.patch) and TESSERA_SOVERSION (the ABI's number, hence the soname).
# Included before project(), so it must not depend on a compiler.

set(_tessera_version_h "${CMAKE_CURRENT_LIST_DIR}/../api/include/tessera/version.h")
file(STRINGS "${_tessera_version_h}" _tessera_version_lines REGEX "^#define TSR_[A-Z_]+ +[0-9]+$")
foreach(_macro VERSION_MAJOR VERSION_MINOR VERSION_PATCH API_VERSION_MAJOR)
  if(NOT _tessera_version_lines MATCHES "#define TSR_${_macro} +([0-9]+)")
    message(FATAL_ERROR "${_tessera_version_h}: no line '#define TSR_${_macro} <number>'")
  endif()
  set(_tessera_${_macro} "${CMAKE_MATCH_1}")
endforeach()
set(TESSERA_VERSION
    "${_tessera_VERSION_MAJOR}.${_tessera_VERSION_MINOR}.${_tessera_VERSION_PATCH}")
set(TESSERA_SOVERSION "${_tessera_API_VERSION_MAJOR}")

# A reconfigure picks up an edited version.
set_property(DIRECTORY APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS "${_tessera_version_h}")
