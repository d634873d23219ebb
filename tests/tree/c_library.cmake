# SPDX-License-Identifier: Apache-2.0
# The library for C (c/): its decisions, what it exports, and how it is found (c/check.py).
find_program(SPECAGG_c_compiler NAMES cc)
mark_as_advanced(SPECAGG_c_compiler)
function(specagg_c_library name isas)  # isas: as SPECAGG_C_ISAS; ...: more options of CMake
  string(MAKE_C_IDENTIFIER "c_library_${name}" id)
  add_test(NAME "c: the C++ library's decisions, what it exports, pkg-config, find_package, ${name}"
    COMMAND ${CMAKE_CTEST_COMMAND} --build-and-test ${CMAKE_CURRENT_SOURCE_DIR}/c ${tree}/${id} --build-generator Ninja
            --build-noclean --build-options -DSPECAGG_SOURCE=${PROJECT_SOURCE_DIR} -DCMAKE_BUILD_TYPE=Release
            -DCMAKE_CXX_COMPILER=${CMAKE_CXX_COMPILER} "-DSPECAGG_C_ISAS=${isas}" -DCMAKE_DISABLE_FIND_PACKAGE_gRPC=ON
            -DCMAKE_DISABLE_FIND_PACKAGE_PkgConfig=ON ${ARGN}
            --test-command ${CMAKE_CURRENT_SOURCE_DIR}/c/check.py ${PROJECT_SOURCE_DIR})
  set_tests_properties("c: the C++ library's decisions, what it exports, pkg-config, find_package, ${name}" PROPERTIES
    TIMEOUT 3600)  # a minute for each of the engine's sources and instruction sets
endfunction()
if(SPECAGG_c_compiler)
  specagg_tier(more)
  if("avx2" IN_LIST isas)
    specagg_c_library("SSE2" "sse2" -DCMAKE_CXX_FLAGS=-DSPECAGG_COMPILE_FAST "-DCMAKE_CXX_FLAGS_RELEASE=-O1 -DNDEBUG")
    specagg_tier(slow)
  endif()
  specagg_c_library("every instruction set" "")
else()
  specagg_skip("c: the C library" "there is no cc")
endif()
