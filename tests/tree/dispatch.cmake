# SPDX-License-Identifier: Apache-2.0
# specagg_dispatch: the best version at start, with and without AVX (by qemu).
# Builds package/'s dispatch for the instruction sets `built` and runs it for each that `runs` here, under `emulator`;
# all must answer what the scalar version does. Their folder is ${dispatch}.
macro(specagg_dispatch_tests name built runs emulator)
  string(MAKE_C_IDENTIFIER "dispatch_${name}" id)
  set(dispatch ${tree}/package/${id})
  add_test(NAME "dispatch: build, ${name}"
    COMMAND ${CMAKE_CTEST_COMMAND} --build-and-test ${package} ${dispatch} --build-generator Ninja --build-noclean
            --build-target dispatch --build-options -DCMAKE_PREFIX_PATH=${tree}/prefix "-DDISPATCH=${built}" ${ARGN})
  set_tests_properties("dispatch: build, ${name}" PROPERTIES FIXTURES_REQUIRED prefix FIXTURES_SETUP ${id})
  foreach(isa IN ITEMS ${runs})
    specagg_dispatch_test("${isa}, ${name}"
      "diff <(SPECAGG_ISA=scalar ${emulator} ./dispatch | sed 1s/scalar/${isa}/) \
            <(SPECAGG_ISA=${isa} ${emulator} ./dispatch)")
  endforeach()
  specagg_dispatch_test("an unknown name, ${name}" "! SPECAGG_ISA=avx ${emulator} ./dispatch")
  set_tests_properties("dispatch: an unknown name, ${name}" PROPERTIES
    PASS_REGULAR_EXPRESSION "^specagg: SPECAGG_ISA=avx: no such version \\(step, step_isa: [a-z0-9 ]+\\)\n$")
  specagg_dispatch_test("a version exports its entries and nothing else, ${name}" "
    for object in dispatch.dispatch/*.o; do
      isa=\${object%.o} && isa=\${isa##*.}
      diff <(printf 'step_%s\\n' $isa isa_$isa | sort) <(nm -gj --defined-only $object | sort) || exit
    done
    nm -g --defined-only CMakeFiles/*step_scalar.dir/dispatch.dispatch/*.o | grep -q ' W '")  # it had something to hide
endmacro()
function(specagg_dispatch_test name script)
  add_test(NAME "dispatch: ${name}" COMMAND bash -c "${script}" WORKING_DIRECTORY ${dispatch})
  set_tests_properties("dispatch: ${name}" PROPERTIES FIXTURES_REQUIRED ${id})
endfunction()

find_program(SPECAGG_qemu qemu-x86_64)
mark_as_advanced(SPECAGG_qemu)
if("sse2" IN_LIST isas)
  foreach(compiler IN LISTS compilers)
    specagg_tier_of(${compiler} more slow)
    # Three versions; the C library and the Python package are dispatched with every one.
    set(built avx2 sse2 scalar)
    set(runs ${product_isas})
    list(FILTER runs INCLUDE REGEX "^(avx2|sse2|scalar)$")
    specagg_dispatch_tests(${compiler} "${built}" "${runs}" ""
      -DCMAKE_CXX_COMPILER=${SPECAGG_${compiler}} "-DCMAKE_CXX_FLAGS=-O1 -Wall -Wextra -Wconversion -Werror")
    list(GET runs -1 best)
    specagg_dispatch_test("the best is the default, ${compiler}" "./dispatch | head -1 | grep -qx ${best}")
    if(NOT SPECAGG_qemu)
      specagg_skip("dispatch: on a machine without AVX, ${compiler}" "there is no qemu-x86_64")
      continue()
    endif()
    # Nehalem has no AVX: one AVX instruction ends the program. max,-xsave has AVX2, which its system does not save.
    foreach(machine IN ITEMS Nehalem max,-xsave)
      set(qemu "${SPECAGG_qemu} -cpu ${machine}")
      specagg_dispatch_test("on ${machine}, ${compiler}"
        "diff <(SPECAGG_ISA=scalar ./dispatch | sed 1s/scalar/sse2/) <(${qemu} ./dispatch)")
      specagg_dispatch_test("avx2 wanted on ${machine}, ${compiler}" "! SPECAGG_ISA=avx2 ${qemu} ./dispatch")
      set_tests_properties("dispatch: avx2 wanted on ${machine}, ${compiler}" PROPERTIES
        PASS_REGULAR_EXPRESSION "^specagg: SPECAGG_ISA=avx2: this machine cannot run it")
    endforeach()
    specagg_dispatch_test("a machine that runs none, ${compiler}"
      "cmake --build . --target dispatch_avx2 && ./dispatch_avx2 && ! ${SPECAGG_qemu} -cpu Nehalem ./dispatch_avx2")
    set_tests_properties("dispatch: a machine that runs none, ${compiler}" PROPERTIES PASS_REGULAR_EXPRESSION
      "specagg: this machine runs none of the instruction sets that this was built for \\(step, step_isa: avx2\\)")
    specagg_dispatch_test("on max, ${compiler}"
      "diff <(SPECAGG_ISA=scalar ./dispatch | sed 1s/scalar/avx2/) <(${SPECAGG_qemu} -cpu max ./dispatch)")
    specagg_dispatch_test("linked with no precaution an older machine crashes, ${compiler}"
      "cmake --build . --target dispatch_naive && { ${SPECAGG_qemu} -cpu Nehalem ./dispatch_naive; test $? = 132; }")
  endforeach()
endif()
specagg_tier(slow)
if("sse2" IN_LIST isas)  # what may not be dispatched is refused when it is built
  file(CONFIGURE OUTPUT ${tree}/dispatch/initialiser.cpp CONTENT
    "#include <iostream>\n#include <string>\n#include \"dispatch_step.cpp\"\nstd::string global(99, 'x');\n")
  specagg_consumer("dispatch of a static initialiser is refused" -DDISPATCH=sse2 -DCMAKE_CXX_FLAGS=-O1
    -DDISPATCH_STEP=${tree}/dispatch/initialiser.cpp)
  set_tests_properties("package: dispatch of a static initialiser is refused" PROPERTIES
    PASS_REGULAR_EXPRESSION "has a static initialiser")
  specagg_consumer("dispatch of a missing entry is refused" -DDISPATCH=sse2 -DDISPATCH_STEP=consumer.cpp)
  set_tests_properties("package: dispatch of a missing entry is refused" PROPERTIES
    PASS_REGULAR_EXPRESSION "no extern \"C\" function makes step_sse2")
  specagg_consumer("dispatch needs a version that runs everywhere" -DDISPATCH=avx2)
  set_tests_properties("package: dispatch needs a version that runs everywhere" PROPERTIES
    PASS_REGULAR_EXPRESSION "nothing that every x86_64 runs")
endif()
find_program(SPECAGG_aarch64_g++ aarch64-linux-gnu-g++)
find_program(SPECAGG_qemu_aarch64 qemu-aarch64)
mark_as_advanced(SPECAGG_aarch64_g++ SPECAGG_qemu_aarch64)
if(SPECAGG_aarch64_g++ AND SPECAGG_qemu_aarch64)
  specagg_dispatch_tests(aarch64 "${SPECAGG_ISAS_aarch64}" "${SPECAGG_ISAS_aarch64}" ${SPECAGG_qemu_aarch64}
    -DCMAKE_SYSTEM_NAME=Linux -DCMAKE_SYSTEM_PROCESSOR=aarch64
    -DCMAKE_CXX_COMPILER=${SPECAGG_aarch64_g++} -DCMAKE_EXE_LINKER_FLAGS=-static
    -DCMAKE_CXX_FLAGS=-O1)
else()
  specagg_skip("dispatch: aarch64" "there is no aarch64-linux-gnu-g++, or no qemu-aarch64")
endif()
