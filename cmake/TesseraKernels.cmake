# SPDX-License-Identifier: Apache-2.0
#
# Kernel rows of a GPU backend: one generated source per line of its kernels.def, in the build folder
# only, and the compiler's report of what each row takes (registers, stack, spills, seconds).

# tessera_enable_cuda(): nvcc, also where it is not on the PATH, and the toolkit's libraries. A macro:
# a language is enabled in the folder that compiles it.
macro(tessera_enable_cuda)
  if(NOT CMAKE_CUDA_COMPILER AND NOT DEFINED ENV{CUDACXX})
    find_program(TESSERA_NVCC nvcc HINTS ENV CUDA_PATH ENV CUDA_HOME PATHS /usr/local/cuda PATH_SUFFIXES bin)
    mark_as_advanced(TESSERA_NVCC)
    if(NOT TESSERA_NVCC)
      message(FATAL_ERROR "TESSERA_ENABLE_CUDA=ON: nvcc is neither on the PATH nor in /usr/local/cuda/bin; "
        "set CUDACXX or -DCMAKE_CUDA_COMPILER, or test without it: -DTESSERA_EMULATE_CUDA=ON")
    endif()
    set(CMAKE_CUDA_COMPILER "${TESSERA_NVCC}")
  endif()
  if(NOT DEFINED CMAKE_CUDA_ARCHITECTURES)
    # 90 also as PTX: later devices compile that when the kernels are first used.
    set(CMAKE_CUDA_ARCHITECTURES "80-real;90-real;90-virtual" CACHE STRING "Architectures of the CUDA backend")
  endif()
  enable_language(CUDA)
  find_package(CUDAToolkit REQUIRED)
endmacro()

# The host side that GPU backends share: compiled once per backend, in a namespace of the backend's name.
set(TESSERA_GPU_HOST_SOURCES backend backward_plan cost launch merge select)
list(TRANSFORM TESSERA_GPU_HOST_SOURCES REPLACE "(.+)" "${Tessera_SOURCE_DIR}/common/gpu/host/\\1.cpp")

# tessera_gpu_host(<backend> <tsr_device_kind> [NAMED_ONLY]): tells those sources whose vtable they make,
# where its memory is, and whether it is used only when named.
function(tessera_gpu_host backend kind)
  cmake_parse_arguments(PARSE_ARGV 2 ARG "NAMED_ONLY" "" "")
  target_compile_definitions(tessera_backend_${backend} PRIVATE TSRI_GPU_BACKEND=${backend}
    TSRI_GPU_KIND=${kind} TSRI_GPU_NAMED_ONLY=$<BOOL:${ARG_NAMED_ONLY}>)
endfunction()

# tessera_kernel_row(<line of kernels.def>): sets ROW_* in the caller, ROW_FAMILY empty if it is no row.
macro(tessera_kernel_row line)
  set(ROW_FAMILY "")
  if("${line}" MATCHES "^TSRI_CUDA_(FORWARD|SPLIT|BACKWARD)\\(([^)]*)\\)$")
    set(_family "${CMAKE_MATCH_1}")
    string(REGEX MATCHALL "[^, ]+" _fields "${CMAKE_MATCH_2}")
    list(LENGTH _fields _count)
    string(TOLOWER "${_family}" ROW_FAMILY)
    set(_names DTYPE DTYPE_KEY TIER DIM_QK DIM_V MASK ARCH TILE_Q TILE_K)
    if(ROW_FAMILY STREQUAL "backward")
      list(APPEND _names CHUNK_QK CHUNK_V KEY_WARPS OTHER_WARPS QUERY_WARPS STAGES
        DQ_TILE_Q DQ_TILE_K DQ_CHUNK DQ_WARPS)
    else()
      list(APPEND _names WARPS STAGES)
    endif()
    list(LENGTH _names _expected)
    if(NOT _count EQUAL _expected)
      message(FATAL_ERROR "kernels.def: ${_count} fields, not ${_expected}: ${line}")
    endif()
    foreach(_name _field IN ZIP_LISTS _names _fields)
      set(ROW_${_name} "${_field}")
    endforeach()
    string(REGEX REPLACE "^sm" "" ROW_CAPABILITY "${ROW_ARCH}")
    set(ROW_ANY 0)
    if(ROW_MASK STREQUAL "any")
      set(ROW_ANY 1)
    endif()
    # Only forward has rows without pages: the others do not gain by it.
    set(ROW_PAGED 1)
    if(ROW_FAMILY STREQUAL "forward" AND ROW_MASK STREQUAL "edge")
      set(ROW_PAGED 0)
    endif()
    set(_op fwd)
    set(_variant "")
    if(ROW_FAMILY STREQUAL "split")
      set(_variant "split_")
    elseif(ROW_FAMILY STREQUAL "backward")
      set(_op bwd)
    endif()
    set(ROW_NAME "${_op}_${ROW_DTYPE}_${ROW_TIER}_${ROW_MASK}__${ROW_ARCH}_${_variant}${ROW_TILE_Q}x${ROW_TILE_K}")
  endif()
endmacro()

# tessera_kernel_sources(<out> DEF <kernels.def> FOLDER <folder of the templates> SUFFIX <cu or cc>
#                        UNITS <dtype>=<unit>...): generates the sources of all rows.
# The template of a family is instance_<family>.cu.in, or instance.cu.in where there is none.
function(tessera_kernel_sources out)
  cmake_parse_arguments(PARSE_ARGV 1 ARG "" "DEF;FOLDER;SUFFIX" "UNITS")
  set_property(DIRECTORY APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS "${ARG_DEF}")
  file(STRINGS "${ARG_DEF}" _lines REGEX "^TSRI_CUDA_")
  set(_sources "")
  foreach(_line IN LISTS _lines)
    tessera_kernel_row("${_line}")
    if(NOT ROW_FAMILY)
      message(FATAL_ERROR "${ARG_DEF}: not understood: ${_line}")
    endif()
    set(ROW_UNIT "")
    foreach(_unit IN LISTS ARG_UNITS)
      if(_unit MATCHES "^${ROW_DTYPE}=(.*)$")
        set(ROW_UNIT "${CMAKE_MATCH_1}")
      endif()
    endforeach()
    if(NOT ROW_UNIT)
      message(FATAL_ERROR "${ARG_DEF}: no unit for element type '${ROW_DTYPE}': ${_line}")
    endif()
    set(_template "${ARG_FOLDER}/instance_${ROW_FAMILY}.cu.in")
    if(NOT EXISTS "${_template}")
      set(_template "${ARG_FOLDER}/instance.cu.in")
    endif()
    set(_source "${CMAKE_CURRENT_BINARY_DIR}/rows/${ROW_NAME}.${ARG_SUFFIX}")
    if(_source IN_LIST _sources)
      message(FATAL_ERROR "${ARG_DEF}: two rows are called ${ROW_NAME}")
    endif()
    configure_file("${_template}" "${_source}" @ONLY)
    list(APPEND _sources "${_source}")
  endforeach()
  set(${out} "${_sources}" PARENT_SCOPE)
endfunction()

# tessera_kernel_reports(<backend>): lets every source that nvcc compiles for the backend leave a report
# beside its object; target <backend>_rows and the test of the same name print and judge them.
function(tessera_kernel_reports backend)
  set(_target tessera_backend_${backend})
  set(_folder "${CMAKE_CURRENT_BINARY_DIR}/reports")
  set_target_properties(${_target} PROPERTIES CUDA_COMPILER_LAUNCHER
    "${CMAKE_COMMAND};-DREPORTS=${_folder};-P;${Tessera_SOURCE_DIR}/cmake/run_nvcc.cmake;--")
  target_compile_options(${_target} PRIVATE "$<$<COMPILE_LANGUAGE:CUDA>:-Xptxas=-v>")
  set(_check "${CMAKE_COMMAND}" "-DREPORTS=${_folder}" "-DSOURCES=$<FILTER:$<TARGET_PROPERTY:${_target},SOURCES>,INCLUDE,[.]cu$>")
  if(TESSERA_PLUGINS)
    list(APPEND _check "-DBINARY=$<TARGET_FILE:tessera_plugin_${backend}>")
  endif()
  list(APPEND _check -P "${Tessera_SOURCE_DIR}/cmake/check_rows.cmake")
  add_custom_target(${backend}_rows COMMAND ${_check} VERBATIM)
  add_dependencies(${backend}_rows ${_target})
  if(TESSERA_BUILD_TESTS)
    add_test(NAME ${backend}_rows COMMAND ${_check})
    tessera_test_properties(${backend}_rows LABELS lint)
  endif()
endfunction()
