# SPDX-License-Identifier: Apache-2.0
# specagg_engine(<target> SOURCES engine.cpp ... [OPTIONS those of specagg_dispatch]): these sources of the engine, each
# built once for each instruction set. Without SPECAGG_ENGINE_SIMD (no xsimd) they are ordinary sources of the target.
include(${CMAKE_CURRENT_LIST_DIR}/../../cmake/specaggDispatch.cmake)

function(specagg_engine target)
  cmake_parse_arguments(PARSE_ARGV 1 arg "" "" "SOURCES;OPTIONS")
  foreach(name IN LISTS arg_SOURCES)
    set(source ${CMAKE_CURRENT_FUNCTION_LIST_DIR}/${name})
    if(NOT SPECAGG_ENGINE_SIMD)
      target_sources(${target} PRIVATE ${source})
      continue()
    endif()
    # Functions begin at the margin. specagg_dispatch refuses a source that exports others.
    set_property(DIRECTORY APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS ${source})
    file(STRINGS ${source} entries REGEX "^[a-z].* specagg_engine_[a-z_]+\\(")
    list(TRANSFORM entries REPLACE "^.*(specagg_engine_[a-z_]+)\\(.*$" "\\1")
    specagg_dispatch(${target} SOURCE ${source} ENTRY ${entries} ${arg_OPTIONS})
  endforeach()
endfunction()
