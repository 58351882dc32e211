# SPDX-License-Identifier: Apache-2.0
#
# tessera_add_backend(): one backend from one list of sources, either folded into libtessera or built as
# a plug-in <libdir>/tessera/<name>.so. Called by backends/*/CMakeLists.txt and common/CMakeLists.txt;
# api/CMakeLists.txt, which comes after them, collects what was registered here in global properties.

define_property(GLOBAL PROPERTY TESSERA_BUILTIN_BACKENDS
  BRIEF_DOCS "Names of the backends that are folded into libtessera, in order of registration")
define_property(GLOBAL PROPERTY TESSERA_PLUGIN_BACKENDS
  BRIEF_DOCS "Names of the backends that are built as plug-ins")
define_property(GLOBAL PROPERTY TESSERA_BUILTIN_LIBS
  BRIEF_DOCS "Libraries that the folded-in backends link")
define_property(GLOBAL PROPERTY TESSERA_FIND_DEPENDENCIES
  BRIEF_DOCS "Packages that users of a static libtessera must find")
define_property(GLOBAL PROPERTY TESSERA_PC_REQUIRES BRIEF_DOCS "Requires.private of tessera.pc")
define_property(GLOBAL PROPERTY TESSERA_PC_LIBS BRIEF_DOCS "Libs.private of tessera.pc")

# tessera_add_backend(NAME <name> SOURCES <file>... [ALWAYS_BUILTIN] [PRIVATE_LIBS <target>...]
#                     [FIND_DEPENDENCIES <package>...] [PC_REQUIRES <module>...] [PC_LIBS <flag>...])
function(tessera_add_backend)
  cmake_parse_arguments(PARSE_ARGV 0 ARG "ALWAYS_BUILTIN" "NAME"
    "SOURCES;PRIVATE_LIBS;FIND_DEPENDENCIES;PC_REQUIRES;PC_LIBS")
  if(ARG_UNPARSED_ARGUMENTS OR NOT ARG_NAME OR NOT ARG_SOURCES)
    message(FATAL_ERROR "tessera_add_backend: needs NAME and SOURCES; unknown: '${ARG_UNPARSED_ARGUMENTS}'")
  endif()
  if(NOT ARG_NAME MATCHES "^[a-z][a-z0-9_]*$")
    message(FATAL_ERROR "tessera_add_backend: NAME '${ARG_NAME}' is not [a-z][a-z0-9_]*")
  endif()

  set(object tessera_backend_${ARG_NAME})
  add_library(${object} OBJECT ${ARG_SOURCES})
  tessera_target_defaults(${object})
  tessera_internal_includes(${object})
  target_link_libraries(${object} PRIVATE ${ARG_PRIVATE_LIBS})

  if(TESSERA_PLUGINS AND NOT ARG_ALWAYS_BUILTIN)
    target_compile_definitions(${object} PRIVATE TSR_BUILDING_PLUGIN)
    set_property(GLOBAL APPEND PROPERTY TESSERA_PLUGIN_BACKENDS ${ARG_NAME})
    tessera_add_plugin_module(${ARG_NAME} ${object} ${ARG_PRIVATE_LIBS})
    # What INTERNAL tests of this backend's kernels link (see tessera_add_test).
    add_library(tessera_internal_${ARG_NAME} STATIC EXCLUDE_FROM_ALL $<TARGET_OBJECTS:${object}>)
    set_target_properties(tessera_internal_${ARG_NAME} PROPERTIES LINKER_LANGUAGE CXX)
    target_link_libraries(tessera_internal_${ARG_NAME} PUBLIC ${ARG_PRIVATE_LIBS})
  else()
    set_property(GLOBAL APPEND PROPERTY TESSERA_BUILTIN_BACKENDS ${ARG_NAME})
    set_property(GLOBAL APPEND PROPERTY TESSERA_BUILTIN_LIBS ${ARG_PRIVATE_LIBS})
    set_property(GLOBAL APPEND PROPERTY TESSERA_FIND_DEPENDENCIES ${ARG_FIND_DEPENDENCIES})
    set_property(GLOBAL APPEND PROPERTY TESSERA_PC_REQUIRES ${ARG_PC_REQUIRES})
    set_property(GLOBAL APPEND PROPERTY TESSERA_PC_LIBS ${ARG_PC_LIBS})
  endif()
endfunction()

# The loadable module of one backend. It calls the library only through tsr_host, so it does not link it.
function(tessera_add_plugin_module name object)
  add_library(tessera_plugin_${name} MODULE $<TARGET_OBJECTS:${object}>)
  tessera_target_defaults(tessera_plugin_${name})
  set_target_properties(tessera_plugin_${name} PROPERTIES
    OUTPUT_NAME ${name} PREFIX "" LINKER_LANGUAGE CXX INSTALL_RPATH ""
    LIBRARY_OUTPUT_DIRECTORY "${Tessera_BINARY_DIR}/lib/tessera")
  target_link_libraries(tessera_plugin_${name} PRIVATE ${ARGN})
  target_link_options(tessera_plugin_${name} PRIVATE
    -Wl,--exclude-libs,ALL -Wl,--as-needed
    "$<$<NOT:$<BOOL:${TESSERA_SANITIZE}>>:-Wl,--no-undefined>")
  install(TARGETS tessera_plugin_${name} LIBRARY DESTINATION "${CMAKE_INSTALL_LIBDIR}/tessera")
endfunction()

# Writes <out> from the template with the extern declarations and table entries of the folded-in
# backends: @TESSERA_BUILTIN_DECLS@ and @TESSERA_BUILTIN_ENTRIES@.
function(tessera_configure_builtin_backends template out)
  get_property(_names GLOBAL PROPERTY TESSERA_BUILTIN_BACKENDS)
  set(TESSERA_BUILTIN_DECLS "")
  set(TESSERA_BUILTIN_ENTRIES "")
  foreach(_name IN LISTS _names)
    string(APPEND TESSERA_BUILTIN_DECLS
      "const tsr_backend *tsr_backend_entry_${_name}(uint32_t host_abi);\n")
    string(APPEND TESSERA_BUILTIN_ENTRIES "  tsr_backend_entry_${_name},\n")
  endforeach()
  configure_file("${template}" "${out}" @ONLY)
endfunction()
