# SPDX-License-Identifier: Apache-2.0
#
# Installs a build into a scratch prefix, moves the prefix (nothing in it may remember where it was), and
# uses it as a stranger would. Variables are passed by tests/install/CMakeLists.txt. Any step that fails
# ends the test with that step's output.
cmake_minimum_required(VERSION 3.25)
file(REMOVE_RECURSE "${WORK}")
file(MAKE_DIRECTORY "${WORK}")
set(prefix "${WORK}/moved")

# run(<what> <command>...): OUTPUT receives what was printed.
macro(run what)
  execute_process(COMMAND ${ARGN} RESULT_VARIABLE _result OUTPUT_VARIABLE OUTPUT ERROR_VARIABLE OUTPUT)
  if(NOT _result EQUAL 0)
    message(FATAL_ERROR "${what} failed (${_result}):\n${OUTPUT}")
  endif()
  message("${what}: ok")
endmacro()

set(config "")
if(CONFIG)
  set(config --config "${CONFIG}")
endif()
run("install" "${CMAKE_COMMAND}" --install "${BUILD}" ${config} --prefix "${WORK}/first")
file(RENAME "${WORK}/first" "${prefix}")

# No file of the packages may name the build, the sources or the first prefix.
file(GLOB_RECURSE packages "${prefix}/*.cmake" "${prefix}/*.pc" "${prefix}/*.h")
list(LENGTH packages count)
if(count LESS 8)
  message(FATAL_ERROR "only ${count} headers and package files were installed: ${packages}")
endif()
foreach(file IN LISTS packages)
  file(READ "${file}" text)
  foreach(path "${BUILD}" "${SOURCE}/" "${WORK}")
    string(FIND "${text}" "${path}" position)
    if(NOT position EQUAL -1)
      message(FATAL_ERROR "${file} names ${path}")
    endif()
  endforeach()
endforeach()

# Without a backend that is chosen by itself, the programs must name the one that never is.
if(BACKEND)
  set(ENV{TSR_BACKEND} "${BACKEND}")
endif()
set(flags "")
if(SANITIZE)
  set(flags "-fsanitize=${SANITIZE}")
endif()
set(toolchain -G "${GENERATOR}" "-DCMAKE_C_COMPILER=${C_COMPILER}" "-DCMAKE_CXX_COMPILER=${CXX_COMPILER}"
  "-DCMAKE_C_FLAGS=${flags}" "-DCMAKE_CXX_FLAGS=${flags}")

# 1. find_package, with the version that was installed, and refused for another major version.
run("find_package: configure" "${CMAKE_COMMAND}" -S "${SOURCE}/tests/install/consumer"
  -B "${WORK}/consumer" ${toolchain} "-DCMAKE_PREFIX_PATH=${prefix}" "-DWANTED_VERSION=${VERSION}")
run("find_package: build" "${CMAKE_COMMAND}" --build "${WORK}/consumer")
run("find_package: run C" "${WORK}/consumer/consumer_c")
message("${OUTPUT}")
run("find_package: run C++" "${WORK}/consumer/consumer_cc")
message("${OUTPUT}")
execute_process(COMMAND "${CMAKE_COMMAND}" -S "${SOURCE}/tests/install/consumer"
  -B "${WORK}/refused" ${toolchain} "-DCMAKE_PREFIX_PATH=${prefix}" -DWANTED_VERSION=99.0
  RESULT_VARIABLE result OUTPUT_QUIET ERROR_QUIET)
if(result EQUAL 0)
  message(FATAL_ERROR "find_package(Tessera 99.0) was satisfied by ${VERSION}")
endif()

# 2. pkg-config.
set(ENV{PKG_CONFIG_PATH} "${prefix}/${LIBDIR}/pkgconfig")
set(static "")
set(linker "${C_COMPILER}")
if(NOT SHARED)
  set(static --static)
endif()
run("pkg-config: version" "${PKG_CONFIG}" --modversion tessera)
string(STRIP "${OUTPUT}" OUTPUT)
if(NOT OUTPUT STREQUAL VERSION)
  message(FATAL_ERROR "pkg-config says version '${OUTPUT}', not '${VERSION}'")
endif()
run("pkg-config: flags" "${PKG_CONFIG}" ${static} --cflags --libs tessera)
separate_arguments(pc_flags UNIX_COMMAND "${OUTPUT}")
run("pkg-config: build" "${C_COMPILER}" -std=c11 ${flags} "${SOURCE}/tests/install/consumer/consumer.c"
  -o "${WORK}/consumer_pc" ${pc_flags} -lm "-Wl,-rpath,${prefix}/${LIBDIR}")
run("pkg-config: run" "${WORK}/consumer_pc")
message("${OUTPUT}")

# 3. A plug-in that was built out of tree is found, and named as one, by the installed command line; one
#    whose file is no plug-in is listed with a reason.
run("plug-in: configure" "${CMAKE_COMMAND}" -S "${SOURCE}/examples/custom_backend"
  -B "${WORK}/plugin" ${toolchain} "-DCMAKE_PREFIX_PATH=${prefix}")
run("plug-in: build" "${CMAKE_COMMAND}" --build "${WORK}/plugin")
run("plug-in: its own tests" "${CMAKE_CTEST_COMMAND}" --test-dir "${WORK}/plugin" --output-on-failure
  --no-tests=error)
file(GLOB_RECURSE modules "${WORK}/plugin/*.so")
list(LENGTH modules count)
if(NOT count EQUAL 1)
  message(FATAL_ERROR "examples/custom_backend made ${count} modules: ${modules}")
endif()
if(CLI)
  get_filename_component(folder "${modules}" DIRECTORY)
  get_filename_component(name "${modules}" NAME_WE)
  set(ENV{TSR_PLUGIN_PATH} "${folder}")
  run("plug-in: info" "${prefix}/${BINDIR}/${CLI}" info)
  message("${OUTPUT}")
  string(FIND "${OUTPUT}" "${modules}" position)
  if(position EQUAL -1)
    message(FATAL_ERROR "tessera info does not name ${modules}")
  endif()
  if(NOT OUTPUT MATCHES "${name}")
    message(FATAL_ERROR "tessera info does not name backend '${name}'")
  endif()
  unset(ENV{TSR_PLUGIN_PATH})
endif()
message("install: every consumer was built and ran")
