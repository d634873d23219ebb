# SPDX-License-Identifier: Apache-2.0
# The library as users get it: the include path, find_package, add_subdirectory, FetchContent, archives.
set(package ${CMAKE_CURRENT_SOURCE_DIR}/package)
specagg_tier(more)
add_test(NAME "package: install" COMMAND bash -c
  "rm -rf ${tree}/prefix && ${CMAKE_COMMAND} --install ${PROJECT_BINARY_DIR} --prefix ${tree}/prefix")
set_tests_properties("package: install" PROPERTIES FIXTURES_SETUP prefix)
function(specagg_consumer name)  # configures, builds and runs package/ with the cache entries given
  string(MAKE_C_IDENTIFIER ${name} id)
  add_test(NAME "package: ${name}"
    COMMAND ${CMAKE_CTEST_COMMAND} --build-and-test ${package} ${tree}/package/${id} --build-generator Ninja
            --build-noclean --build-options -DCMAKE_PREFIX_PATH=${tree}/prefix ${ARGN} --test-command consumer)
  set_tests_properties("package: ${name}" PROPERTIES FIXTURES_REQUIRED prefix)
endfunction()

foreach(compiler IN LISTS compilers)
  specagg_tier_of(${compiler} more slow)
  foreach(mode IN ITEMS exceptions no-exceptions)
    set(flags -O1)
    if(mode STREQUAL no-exceptions)
      list(APPEND flags -fno-exceptions -fno-rtti)
    endif()
    specagg_compile(package/consumer-${compiler}-${mode} ${compiler} ${package}/consumer.cpp ${flags})
    add_test(NAME "package: the include path alone, ${compiler}, ${mode}"
      COMMAND ${tree}/package/consumer-${compiler}-${mode})
  endforeach()
  string(JOIN " " flags ${strict} -O1 -fno-exceptions -fno-rtti)
  specagg_consumer("find_package, ${compiler}, no exceptions" -DCMAKE_CXX_COMPILER=${SPECAGG_${compiler}}
    -DCMAKE_CXX_FLAGS=${flags})
  string(JOIN " " flags ${strict})
  specagg_consumer("find_package COMPONENTS cpu, ${compiler}" -DCMAKE_CXX_COMPILER=${SPECAGG_${compiler}}
    -DCMAKE_CXX_FLAGS=${flags} -DCOMPONENTS=cpu)
endforeach()
specagg_tier(slow)
if(TARGET llama)
  specagg_consumer("find_package COMPONENTS llama_cpp" -DCMAKE_CXX_COMPILER=${CMAKE_CXX_COMPILER}
    -DCOMPONENTS=llama_cpp)
endif()
if(TARGET specagg::executorch_runtime)
  specagg_consumer("find_package COMPONENTS executorch" -DCMAKE_CXX_COMPILER=${CMAKE_CXX_COMPILER}
    -DCOMPONENTS=executorch -Dexecutorch_DIR=${executorch_DIR})
endif()
if(TARGET openvino::runtime)
  specagg_consumer("find_package COMPONENTS openvino" -DCMAKE_CXX_COMPILER=${CMAKE_CXX_COMPILER}
    -DCOMPONENTS=openvino -DOpenVINO_DIR=${OpenVINO_DIR})
endif()
if(TARGET gRPC::grpc++)
  specagg_consumer("find_package COMPONENTS net" -DCMAKE_CXX_COMPILER=${CMAKE_CXX_COMPILER} -DCOMPONENTS=net)
else()
  specagg_skip("package: find_package COMPONENTS net" "there is no gRPC")
endif()
specagg_tier(more)
# In a parent project specagg_dispatch is called from another directory than the one that included it. Looking for gRPC
# takes half a minute.
set(in_parent -DCMAKE_CXX_COMPILER=${CMAKE_CXX_COMPILER} -DSPECAGG_SOURCE=${PROJECT_SOURCE_DIR} -DDISPATCH=scalar
  -DCMAKE_DISABLE_FIND_PACKAGE_gRPC=ON -DCMAKE_DISABLE_FIND_PACKAGE_PkgConfig=ON)
specagg_consumer("add_subdirectory adds nothing but the library, and dispatches" ${in_parent})
specagg_tier(slow)  # it does what add_subdirectory does
specagg_consumer("FetchContent adds nothing but the library, and dispatches" ${in_parent} -DFETCH=ON)
specagg_tier(more)
specagg_consumer("an unknown component is named" -DCMAKE_CXX_COMPILER=${CMAKE_CXX_COMPILER} -DCOMPONENTS=telepathy)
set_tests_properties("package: an unknown component is named" PROPERTIES
  PASS_REGULAR_EXPRESSION "no component 'telepathy'; it has")
add_test(NAME "package: a missing xsimd is warned of"  # when it is configured
  COMMAND ${CMAKE_COMMAND} -G Ninja -S ${package} -B ${tree}/package/no_xsimd -DCMAKE_PREFIX_PATH=${tree}/prefix
          -DCMAKE_CXX_COMPILER=${CMAKE_CXX_COMPILER} -DSPECAGG_XSIMD_INCLUDE_DIR=)
set_tests_properties("package: a missing xsimd is warned of" PROPERTIES FIXTURES_REQUIRED prefix
  PASS_REGULAR_EXPRESSION "xsimd/xsimd.hpp was not found")

add_test(NAME "package: archive, Debian package, pkg-config, Conan"
  COMMAND ${CMAKE_CURRENT_SOURCE_DIR}/package/packages.py ${tree}/packages ${CMAKE_CXX_COMPILER})
set_tests_properties("package: archive, Debian package, pkg-config, Conan" PROPERTIES
  SKIP_REGULAR_EXPRESSION "^skipped:")

# As the top-level project with no option and without two libraries. Looking for gRPC takes half a minute.
add_test(NAME "package: what lacks Catch2 and CLI11 is left out, and the rest is configured"
  COMMAND ${CMAKE_COMMAND} -G Ninja -S ${PROJECT_SOURCE_DIR} -B ${tree}/package/plain
          -DCMAKE_DISABLE_FIND_PACKAGE_Catch2=ON -DCMAKE_DISABLE_FIND_PACKAGE_CLI11=ON
          -DCMAKE_DISABLE_FIND_PACKAGE_gRPC=ON -DCMAKE_DISABLE_FIND_PACKAGE_PkgConfig=ON)
set_tests_properties("package: what lacks Catch2 and CLI11 is left out, and the rest is configured" PROPERTIES
  PASS_REGULAR_EXPRESSION "no CLI11: [^\n]* left out.*no Catch2: [^\n]* left out.*Build files have been written")

# Without any library but Catch2. The smallest program stands for the others, which have the same library and headers.
add_test(NAME "package: a compiler and Catch2 are enough for the tests of the headers"
  COMMAND ${CMAKE_CTEST_COMMAND} --build-and-test ${PROJECT_SOURCE_DIR} ${tree}/package/alone --build-generator Ninja
          --build-noclean --build-target test-plan --build-options -DCMAKE_CXX_COMPILER=${CMAKE_CXX_COMPILER}
          -DCMAKE_DISABLE_FIND_PACKAGE_Eigen3=ON -DCMAKE_DISABLE_FIND_PACKAGE_fmt=ON
          -DCMAKE_DISABLE_FIND_PACKAGE_nlohmann_json=ON -DCMAKE_DISABLE_FIND_PACKAGE_gRPC=ON
          -DCMAKE_DISABLE_FIND_PACKAGE_PkgConfig=ON -DSPECAGG_TESTS_COMPILE_FAST=ON -DSPECAGG_TESTS_TOGETHER=8
          --test-command ${tree}/package/alone/bin/test-plan)
set_tests_properties("package: a compiler and Catch2 are enough for the tests of the headers" PROPERTIES
  PASS_REGULAR_EXPRESSION "no Eigen3, no fmt, no nlohmann_json: [^\n]* left out.*All tests passed")
