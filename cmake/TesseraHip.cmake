# SPDX-License-Identifier: Apache-2.0
#
# Device code of the HIP backend: one code object per device and row of kernels.def, made by clang alone (no
# vendor headers or libraries), and a source that carries them all into the backend.
include(TesseraKernels)

set(TESSERA_HIP_ARCHITECTURES "gfx90a;gfx942;gfx1100;gfx1201" CACHE STRING "Devices of the HIP backend")
set(TESSERA_HIP_COMPILER "" CACHE FILEPATH "clang 19 or later, or amdclang++ of ROCm; empty: clang++-19, amdclang++")
set(TESSERA_HIP_OBJECTS "" CACHE PATH
  "Code objects of another build (its backends/hip/objects), taken as they are: no compiler is looked for")

# tessera_find_hip_compiler(): sets TESSERA_HIP_CLANG in the caller to a compiler that makes code for every
# device of TESSERA_HIP_ARCHITECTURES, or leaves it alone where TESSERA_HIP_OBJECTS names code objects. A macro, so
# that the cache entry is made once.
macro(tessera_find_hip_compiler)
  if(TESSERA_HIP_COMPILER)
    set(TESSERA_HIP_CLANG "${TESSERA_HIP_COMPILER}")
  else()
    find_program(TESSERA_HIP_CLANG NAMES clang++-19 amdclang++ PATHS /opt/rocm/bin /opt/rocm/llvm/bin)
    mark_as_advanced(TESSERA_HIP_CLANG)
  endif()
  if(NOT TESSERA_HIP_CLANG)
    message(FATAL_ERROR "TESSERA_ENABLE_HIP=ON: neither clang++-19 nor amdclang++ was found; set "
      "-DTESSERA_HIP_COMPILER to a clang for amdgcn with its lld")
  endif()
  set(_probe "${CMAKE_CURRENT_BINARY_DIR}/probe.hip")
  file(WRITE "${_probe}" "extern \"C\" __attribute__((global)) void probe(int *x) { *x = 1; }\n")
  foreach(_device IN LISTS TESSERA_HIP_ARCHITECTURES)
    execute_process(COMMAND "${TESSERA_HIP_CLANG}" -x hip -nogpuinc -nogpulib --offload-arch=${_device}
        --offload-device-only --no-gpu-bundle-output "${_probe}" -o "${_probe}.co"
      RESULT_VARIABLE _status OUTPUT_VARIABLE _text ERROR_VARIABLE _text)
    if(NOT _status EQUAL 0)
      message(FATAL_ERROR "TESSERA_ENABLE_HIP=ON: ${TESSERA_HIP_CLANG} makes no code for ${_device}:\n${_text}")
    endif()
  endforeach()
endmacro()

# tessera_hip_arch(<out> <device>): the column "arch" of the rows that run on a device, beside its own name.
function(tessera_hip_arch out device)
  if(device MATCHES "^gfx(90a|942)$")
    set(${out} gfx9 PARENT_SCOPE)
  elseif(device MATCHES "^gfx(11|12)[0-9][0-9]$")
    set(${out} gfx${CMAKE_MATCH_1} PARENT_SCOPE)
  else()
    message(FATAL_ERROR "TESSERA_HIP_ARCHITECTURES: '${device}' is not one of gfx90a, gfx942, gfx11xx, gfx12xx")
  endif()
endfunction()

# tessera_hip_row(<line of kernels.def>): sets ROW_* in the caller.
macro(tessera_hip_row line)
  if(NOT "${line}" MATCHES "^TSRI_HIP_(FORWARD|SPLIT|BACKWARD)\\(([^)]*)\\)$")
    message(FATAL_ERROR "kernels.def: not understood: ${line}")
  endif()
  string(TOLOWER "${CMAKE_MATCH_1}" ROW_FAMILY)
  string(REGEX MATCHALL "[^, ]+" _fields "${CMAKE_MATCH_2}")
  set(_names DTYPE DTYPE_KEY TIER DIM_QK DIM_V MASK ARCH SIDE TILE_Q TILE_K)
  list(LENGTH _fields _count)
  set(_expected 12)
  if(ROW_FAMILY STREQUAL "backward")
    set(_expected 20)
  endif()
  if(NOT _count EQUAL _expected)
    message(FATAL_ERROR "kernels.def: ${_count} fields, not ${_expected}: ${line}")
  endif()
  list(SUBLIST _fields 0 10 _first)
  foreach(_name _field IN ZIP_LISTS _names _first)
    set(ROW_${_name} "${_field}")
  endforeach()
  # What the programs' templates take: all but the key of the type and the name of the tier.
  list(REMOVE_AT _fields 1 2)
  list(JOIN _fields ", " ROW_FIELDS)
  string(COMPARE EQUAL "${ROW_MASK}" any ROW_ANY)
  set(_op fwd)
  set(_variant "")
  if(ROW_FAMILY STREQUAL "split")
    set(_variant "split_")
  elseif(ROW_FAMILY STREQUAL "backward")
    set(_op bwd)
  endif()
  set(ROW_NAME "${_op}_${ROW_DTYPE}_${ROW_TIER}_${ROW_MASK}__${ROW_ARCH}_${_variant}${ROW_TILE_Q}x${ROW_TILE_K}")
endmacro()

# One code object: <build>/objects/<device>/<name>.co, or that of TESSERA_HIP_OBJECTS. Adds to _objects and what
# else the caller collects.
macro(tessera_hip_object device name source)
  set(_object "${CMAKE_CURRENT_BINARY_DIR}/objects/${device}/${name}.co")
  if(TESSERA_HIP_OBJECTS)
    set(_object "${TESSERA_HIP_OBJECTS}/${device}/${name}.co")
    if(NOT EXISTS "${_object}")
      message(FATAL_ERROR "TESSERA_HIP_OBJECTS: there is no ${_object}")
    endif()
  else()
    add_custom_command(OUTPUT "${_object}"
      COMMAND "${TESSERA_HIP_CLANG}" -x hip -nogpuinc -nogpulib -std=c++17 -O3 -ffp-contract=off
        -Wall -Wextra $<$<BOOL:${TESSERA_WERROR}>:-Werror>
        "-I${Tessera_SOURCE_DIR}/api/include" "-I${Tessera_SOURCE_DIR}" --offload-arch=${device}
        --offload-device-only --no-gpu-bundle-output -MD -MF "${_object}.d" -MT "${_object}"
        "${source}" -o "${_object}"
      DEPENDS "${source}" DEPFILE "${_object}.d" VERBATIM COMMAND_EXPAND_LISTS
      COMMENT "Building code object ${device}/${name}")
  endif()
  list(APPEND _objects "${_object}")
  list(LENGTH _objects _number)
  string(APPEND _assembly "begin_${_number}:\n  .incbin \"${_object}\"\nend_${_number}:\n  .balign 64\n")
  string(APPEND _texts "device_${_number}: .string \"${device}\"\nname_${_number}: .string \"${name}\"\n")
  string(APPEND _table "  .quad device_${_number}, name_${_number}, begin_${_number}, end_${_number}\n")
endmacro()

# tessera_hip_sources(<out>): sources of all rows, rules for their code objects, and the assembly source that
# includes these and the table of them (see runtime_hip.cpp).
function(tessera_hip_sources out)
  set(_def "${CMAKE_CURRENT_SOURCE_DIR}/kernels.def")
  set_property(DIRECTORY APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS "${_def}")
  file(STRINGS "${_def}" _lines REGEX "^TSRI_HIP_")
  set(_objects "")
  set(_assembly "")
  set(_texts "")
  set(_table "")
  set(_seen "")
  foreach(_line IN LISTS _lines)
    tessera_hip_row("${_line}")
    if(ROW_NAME IN_LIST _seen)
      message(FATAL_ERROR "kernels.def: two rows are called ${ROW_NAME}")
    endif()
    list(APPEND _seen ${ROW_NAME})
    set(_template "${CMAKE_CURRENT_SOURCE_DIR}/instance_${ROW_FAMILY}.hip.in")
    if(NOT EXISTS "${_template}")
      set(_template "${CMAKE_CURRENT_SOURCE_DIR}/instance.hip.in")
    endif()
    set(_source "${CMAKE_CURRENT_BINARY_DIR}/rows/${ROW_NAME}.hip")
    configure_file("${_template}" "${_source}" @ONLY)
    foreach(_device IN LISTS TESSERA_HIP_ARCHITECTURES)
      tessera_hip_arch(_arch ${_device})
      if(ROW_ARCH STREQUAL _arch OR ROW_ARCH STREQUAL _device)
        tessera_hip_object(${_device} ${ROW_NAME} "${_source}")
      endif()
    endforeach()
  endforeach()
  foreach(_device IN LISTS TESSERA_HIP_ARCHITECTURES)
    foreach(_name merge backward_rows)
      tessera_hip_object(${_device} ${_name} "${CMAKE_CURRENT_SOURCE_DIR}/${_name}.hip")
    endforeach()
  endforeach()
  list(LENGTH _objects TSRI_HIP_COUNT)
  set(TSRI_HIP_ASSEMBLY "${_assembly}")
  set(TSRI_HIP_TEXTS "${_texts}")
  set(TSRI_HIP_TABLE "${_table}")
  set(_embedded "${CMAKE_CURRENT_BINARY_DIR}/objects.s")
  configure_file("${CMAKE_CURRENT_SOURCE_DIR}/objects.s.in" "${_embedded}" @ONLY)
  set_source_files_properties("${_embedded}" PROPERTIES OBJECT_DEPENDS "${_objects}")
  set_property(GLOBAL PROPERTY TESSERA_HIP_OBJECTS "${_objects}")
  set(${out} "${_embedded}" PARENT_SCOPE)
endfunction()
