# SPDX-License-Identifier: Apache-2.0
#
# tessera_target_defaults(): language levels, warnings, floating-point rules, visibility and sanitizers
# of every target of this tree, set per target so that a parent project is never touched.
#
# Floating point: -ffp-contract=off everywhere and never -ffast-math. A product and a sum become one
# fused operation only where the source says so (fma, Highway's MulAdd); otherwise the same source would
# round differently per compiler, per -std and per inlining decision, and "the same bits" could not be
# promised. nvcc spells it -fmad=false. -fno-math-errno and -fno-trapping-math change no result, only
# errno and exception flags.

set(_tessera_warnings -Wall -Wextra -Wpedantic -Wshadow -Wpointer-arith -Wwrite-strings
    -Wvla -Wundef -Wformat=2 -Wimplicit-fallthrough
    # TSR_*_INIT sets struct_size and leaves the rest zero: that is the API's idiom.
    -Wno-missing-field-initializers
    # Messages and names are cut to their buffers on purpose; gcc notices some of them, depending on -O.
    $<$<C_COMPILER_ID:GNU>:-Wno-format-truncation>)
set(_tessera_warnings_c -Wstrict-prototypes -Wmissing-prototypes -Wold-style-definition)

# tessera_target_defaults(<target>)
function(tessera_target_defaults target)
  set_target_properties(${target} PROPERTIES
    C_STANDARD 11 C_STANDARD_REQUIRED ON C_EXTENSIONS OFF
    CXX_STANDARD 17 CXX_STANDARD_REQUIRED ON CXX_EXTENSIONS OFF
    CUDA_STANDARD 17 CUDA_STANDARD_REQUIRED ON CUDA_EXTENSIONS OFF
    C_VISIBILITY_PRESET hidden CXX_VISIBILITY_PRESET hidden CUDA_VISIBILITY_PRESET hidden
    VISIBILITY_INLINES_HIDDEN ON)
  target_compile_options(${target} PRIVATE
    "$<$<COMPILE_LANGUAGE:C,CXX>:-ffp-contract=off;-fno-math-errno;-fno-trapping-math;${_tessera_warnings}>"
    "$<$<COMPILE_LANGUAGE:C>:${_tessera_warnings_c}>"
    "$<$<COMPILE_LANGUAGE:CXX>:-fno-exceptions;-fno-rtti>"
    # The stubs that nvcc makes are never called (launches name their address), but what they refer to would
    # ask a C program for the C++ library.
    "$<$<COMPILE_LANGUAGE:CUDA>:-fmad=false;-Xcompiler=-ffp-contract=off,-fno-exceptions,-fno-threadsafe-statics,-Wall,-Wextra>"
    "$<$<BOOL:${TESSERA_WERROR}>:$<IF:$<COMPILE_LANGUAGE:CUDA>,-Werror=all-warnings,-Werror>>")
  get_target_property(_type ${target} TYPE)
  if(_type MATCHES "^(OBJECT|STATIC)_LIBRARY$")
    # Every object may end up in the shared library, a plug-in or a test.
    set_target_properties(${target} PROPERTIES POSITION_INDEPENDENT_CODE ON)
  endif()
  if(TESSERA_SANITIZE)
    string(REPLACE ";" "," _list "${TESSERA_SANITIZE}")
    target_compile_options(${target} PRIVATE
      "$<$<COMPILE_LANGUAGE:C,CXX>:-fsanitize=${_list};-fno-sanitize-recover=all;-fno-omit-frame-pointer>"
      # The instrumented code hides assignments from gcc's flow analysis.
      "$<$<AND:$<COMPILE_LANGUAGE:C,CXX>,$<C_COMPILER_ID:GNU>>:-Wno-maybe-uninitialized>")
    target_link_options(${target} PRIVATE -fsanitize=${_list})
  endif()
endfunction()

# tessera_internal_includes(<target>): the spellings <tessera/x.h> and "common/x.h". Which layer may use
# which of them is checked by tests/lint/layers.cmake.
function(tessera_internal_includes target)
  target_include_directories(${target} PRIVATE
    "${Tessera_SOURCE_DIR}/api/include" "${Tessera_SOURCE_DIR}")
endfunction()
