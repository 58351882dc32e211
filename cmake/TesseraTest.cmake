# SPDX-License-Identifier: Apache-2.0
#
# tessera_add_test(): one test program and its CTest entry. Criterion programs run their tests one at a
# time (-j1: tests may use every core through OpenMP), and a run in which nothing was tested fails,
# because Criterion itself calls that a success. So does one whose output holds a sanitizer's report: a leak
# is found when a test's process ends, after Criterion has noted that it passed.
#
# Criterion maps memory at addresses that the thread sanitizer keeps for itself, and does not exist for
# foreign architectures: in such builds only PLAIN tests are made.

set(TESSERA_TEST_LABELS unit reference kernels conformance fuzz cli example abi install lint
    threads slow gpu amdgpu)

# LLVM's OpenMP runtime tells the thread sanitizer about its forks, joins and barriers through a tool that
# it finds only by name; without it every parallel region ends in a false report. gcc's has no such tool.
if(TESSERA_BUILD_TESTS AND "thread" IN_LIST TESSERA_SANITIZE)
  if(NOT CMAKE_C_COMPILER_ID STREQUAL "Clang")
    message(FATAL_ERROR "TESSERA_SANITIZE=thread: tests need clang and its OpenMP runtime, found ${CMAKE_C_COMPILER_ID}")
  endif()
  find_package(OpenMP REQUIRED COMPONENTS C)
  get_filename_component(_omp_folder "${OpenMP_omp_LIBRARY}" DIRECTORY)
  find_file(TESSERA_ARCHER libarcher.so HINTS "${_omp_folder}" REQUIRED)
  mark_as_advanced(TESSERA_ARCHER)
endif()

# tessera_add_test(NAME <name> SOURCES <file>... LABELS <label>... [LIBS <target>...]
#                  [INTERNAL [BACKENDS <name>...]] [PLAIN] [ARGS <arg>...] [ENVIRONMENT <VAR=value>...]
#                  [TIMEOUT <seconds>])
# cmake/README.md explains the arguments.
function(tessera_add_test)
  cmake_parse_arguments(PARSE_ARGV 0 ARG "INTERNAL;PLAIN" "NAME;TIMEOUT"
    "SOURCES;LIBS;LABELS;BACKENDS;ARGS;ENVIRONMENT")
  if(ARG_UNPARSED_ARGUMENTS OR NOT ARG_NAME OR NOT ARG_SOURCES OR NOT ARG_LABELS)
    message(FATAL_ERROR "tessera_add_test(${ARG_NAME}): needs NAME, SOURCES and LABELS; "
      "unknown: '${ARG_UNPARSED_ARGUMENTS}'")
  endif()
  if(ARG_BACKENDS AND NOT ARG_INTERNAL)
    message(FATAL_ERROR "tessera_add_test(${ARG_NAME}): BACKENDS needs INTERNAL")
  endif()
  foreach(_label IN LISTS ARG_LABELS)
    if(NOT _label IN_LIST TESSERA_TEST_LABELS)
      message(FATAL_ERROR "tessera_add_test(${ARG_NAME}): label '${_label}' is not one of ${TESSERA_TEST_LABELS}")
    endif()
  endforeach()
  if(NOT ARG_TIMEOUT)
    set(ARG_TIMEOUT 1800)
  endif()

  set(target ${ARG_NAME})
  if(NOT ARG_PLAIN AND NOT TARGET PkgConfig::CRITERION)
    # The target exists, so that its folder may set properties on it, but is neither built nor run.
    add_executable(${target} EXCLUDE_FROM_ALL ${ARG_SOURCES})
    return()
  endif()
  add_executable(${target} ${ARG_SOURCES})
  tessera_target_defaults(${target})
  tessera_internal_includes(${target})
  if(ARG_INTERNAL)
    foreach(_backend IN LISTS ARG_BACKENDS)
      if(TARGET tessera_internal_${_backend})
        target_link_libraries(${target} PRIVATE tessera_internal_${_backend})
      elseif(NOT TARGET tessera_backend_${_backend})
        message(FATAL_ERROR "tessera_add_test(${ARG_NAME}): no backend '${_backend}' in this build")
      endif()
    endforeach()
    target_link_libraries(${target} PRIVATE tessera_internal)
  else()
    target_link_libraries(${target} PRIVATE Tessera::tessera)
  endif()
  target_link_libraries(${target} PRIVATE ${ARG_LIBS} m)

  if(ARG_PLAIN)
    add_test(NAME ${ARG_NAME} COMMAND ${target} ${ARG_ARGS})
  else()
    target_link_libraries(${target} PRIVATE PkgConfig::CRITERION)
    add_test(NAME ${ARG_NAME} COMMAND ${target} -j1 --color=never ${ARG_ARGS})
    set_property(TEST ${ARG_NAME} APPEND PROPERTY FAIL_REGULAR_EXPRESSION "Tested: 0 ")
  endif()
  tessera_test_properties(${ARG_NAME} LABELS ${ARG_LABELS} TIMEOUT ${ARG_TIMEOUT}
    ENVIRONMENT ${ARG_ENVIRONMENT})
endfunction()

# tessera_test_properties(<test> LABELS <label>... [TIMEOUT <seconds>] [ENVIRONMENT <VAR=value>...]):
# what every test gets, also those made with a plain add_test().
function(tessera_test_properties test)
  cmake_parse_arguments(PARSE_ARGV 1 ARG "" "TIMEOUT" "LABELS;ENVIRONMENT")
  if(NOT ARG_TIMEOUT)
    set(ARG_TIMEOUT 1800)
  endif()
  # No detect_stack_use_after_return: gcc 12 misaligns 64-byte vectors in the frames that it moves.
  set(_environment
    "ASAN_OPTIONS=abort_on_error=0:allocator_may_return_null=1"
    "UBSAN_OPTIONS=print_stacktrace=1"
    "TSAN_OPTIONS=ignore_noninstrumented_modules=1:halt_on_error=1")
  if(TESSERA_ARCHER)
    list(APPEND _environment "OMP_TOOL_LIBRARIES=${TESSERA_ARCHER}")
  endif()
  set_property(TEST ${test} APPEND PROPERTY FAIL_REGULAR_EXPRESSION
    "ERROR: [A-Za-z]+Sanitizer" "WARNING: ThreadSanitizer" "runtime error: ")
  # Tests choose backends and kernels themselves; the caller's environment must not.
  set_tests_properties(${test} PROPERTIES
    LABELS "${ARG_LABELS}" TIMEOUT ${ARG_TIMEOUT}
    ENVIRONMENT "${_environment};${ARG_ENVIRONMENT}"
    ENVIRONMENT_MODIFICATION
      "TSR_BACKEND=unset:;TSR_KERNEL=unset:;TSR_CPU_TARGET=unset:;TSR_PLUGIN_PATH=unset:;TSR_LOG=unset:")
  if("threads" IN_LIST ARG_LABELS)
    set_tests_properties(${test} PROPERTIES RUN_SERIAL ON)
  endif()
endfunction()
