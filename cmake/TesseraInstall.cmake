# SPDX-License-Identifier: Apache-2.0
#
# Install rules of the library: headers, archive or shared object, CMake package (config, version file
# that accepts the same major version, targets) and tessera.pc. Both packages find everything relative to
# their own place, so an installed tree may be moved. Included by api/CMakeLists.txt.
include(CMakePackageConfigHelpers)

set(_package_dir "${CMAKE_INSTALL_LIBDIR}/cmake/Tessera")

install(TARGETS tessera EXPORT TesseraTargets
  ARCHIVE DESTINATION "${CMAKE_INSTALL_LIBDIR}"
  LIBRARY DESTINATION "${CMAKE_INSTALL_LIBDIR}")
install(FILES
    include/tessera/backend.h
    include/tessera/dlpack.h
    include/tessera/export.h
    include/tessera/tessera.h
    include/tessera/version.h
  DESTINATION "${CMAKE_INSTALL_INCLUDEDIR}/tessera")
install(EXPORT TesseraTargets NAMESPACE Tessera:: DESTINATION "${_package_dir}")

# A shared library hides what it links; users of a static one must find the same packages again.
set(TESSERA_FIND_DEPENDENCIES_LINES "")
set(TESSERA_PC_REQUIRES_PRIVATE "")
set(TESSERA_PC_LIBS_PRIVATE "-lm")
get_property(_packages GLOBAL PROPERTY TESSERA_FIND_DEPENDENCIES)
get_property(_requires GLOBAL PROPERTY TESSERA_PC_REQUIRES)
get_property(_pc_libs GLOBAL PROPERTY TESSERA_PC_LIBS)
list(REMOVE_DUPLICATES _packages)
foreach(_package IN LISTS _packages ITEMS Threads)
  string(APPEND TESSERA_FIND_DEPENDENCIES_LINES "  find_dependency(${_package})\n")
endforeach()
list(REMOVE_DUPLICATES _pc_libs)
string(JOIN ", " TESSERA_PC_REQUIRES_PRIVATE ${_requires})
string(JOIN " " TESSERA_PC_LIBS_PRIVATE ${_pc_libs} -lstdc++ -pthread -ldl -lm)
set(TESSERA_PC_CFLAGS "")
if(NOT BUILD_SHARED_LIBS)
  set(TESSERA_PC_CFLAGS " -DTSR_STATIC")
endif()

configure_package_config_file(
  "${Tessera_SOURCE_DIR}/cmake/TesseraConfig.cmake.in"
  "${CMAKE_CURRENT_BINARY_DIR}/TesseraConfig.cmake"
  INSTALL_DESTINATION "${_package_dir}"
  PATH_VARS CMAKE_INSTALL_LIBDIR)
write_basic_package_version_file("${CMAKE_CURRENT_BINARY_DIR}/TesseraConfigVersion.cmake"
  VERSION ${PROJECT_VERSION} COMPATIBILITY SameMajorVersion)
install(FILES
    "${CMAKE_CURRENT_BINARY_DIR}/TesseraConfig.cmake"
    "${CMAKE_CURRENT_BINARY_DIR}/TesseraConfigVersion.cmake"
  DESTINATION "${_package_dir}")

# pkg-config knows only the folder of the .pc file: lead from there to the prefix.
file(RELATIVE_PATH TESSERA_PC_PREFIX
  "/prefix/${CMAKE_INSTALL_LIBDIR}/pkgconfig" "/prefix")
string(REGEX REPLACE "/$" "" TESSERA_PC_PREFIX "${TESSERA_PC_PREFIX}")
if(IS_ABSOLUTE "${CMAKE_INSTALL_LIBDIR}" OR IS_ABSOLUTE "${CMAKE_INSTALL_INCLUDEDIR}")
  message(FATAL_ERROR "CMAKE_INSTALL_LIBDIR and CMAKE_INSTALL_INCLUDEDIR must be relative: "
    "found '${CMAKE_INSTALL_LIBDIR}' and '${CMAKE_INSTALL_INCLUDEDIR}'")
endif()
configure_file("${Tessera_SOURCE_DIR}/cmake/tessera.pc.in"
  "${CMAKE_CURRENT_BINARY_DIR}/tessera.pc" @ONLY)
install(FILES "${CMAKE_CURRENT_BINARY_DIR}/tessera.pc"
  DESTINATION "${CMAKE_INSTALL_LIBDIR}/pkgconfig")
