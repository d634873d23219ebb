# SPDX-License-Identifier: Apache-2.0
# What does not depend on this build's compiler and flags, and therefore runs in one preset only:
#   tree               scripts/check-tree
#
#                      SPECAGG_TEST_TREE=ON (`make test`)         and ALL (`make test-all`)
#   tree               scripts/check-tree
#   headers            all together, by each compiler             each alone: scalar, as compiled by default by each
#                                                                 compiler; the core without exceptions and RTTI
#   amalgamation       what scripts/amalgamate writes, alone      by each compiler for each instruction set; under the
#                                                                 exact-law tests
#   docs               the code in README.md and docs/*.md        by each compiler
#   bits               bits/bits.cpp in scalar code, and by the   each instruction set, compiler, -ffp-contract, libc++:
#                      second compiler on AVX2; products on each  the same output everywhere
#                      instruction set; texts, steps: one of them
#   package            the include path alone, find_package,      find_package by each compiler, with components;
#                      add_subdirectory, FetchContent, errors,    dispatch refused
#                      archives
#   isa                parts built for different instruction      by each compiler
#                      sets in one program
#   dispatch           specagg_dispatch: the best version at      by each compiler, and for aarch64
#                      start, with and without AVX (by qemu)
#   cuda               (tests/cuda, emulated)                     kernels by nvcc without warnings; what needs a device;
#                                                                 the emulator with threads in other orders
#   counts             instructions of each kernel, against       by each compiler, on AVX-512, AVX2 and in scalar code
#                      counts/recorded.json: on AVX2 by g++
#   get-model          scripts/get-model with a small wheel: damage, interruptions, a full disk
#   get-llama-cpp      what scripts/get-llama-cpp builds for which processor
#   must_not_compile   the compiler's message is the expected     by each compiler
#                      one: g++'s
#   experiments                                                   programs; --quick, killed half-way, started again
#   fuzz                                                          each fuzz/*.fuzz.cpp for FUZZ_SECONDS (30)
# What cannot be tested on this machine becomes a test that says why it was skipped.

function(specagg_skip name reason)
  message(STATUS "SKIPPED: ${name}: ${reason}")
  add_test(NAME ${name} COMMAND ${CMAKE_COMMAND} -E echo "skipped: ${reason}")
  set_tests_properties(${name} PROPERTIES SKIP_REGULAR_EXPRESSION "^skipped:")
endfunction()

set(compilers)
foreach(compiler IN ITEMS g++ clang++)
  find_program(SPECAGG_${compiler} ${compiler})
  mark_as_advanced(SPECAGG_${compiler})
  if(SPECAGG_${compiler})
    list(APPEND compilers ${compiler})
  else()
    specagg_skip("everything with ${compiler}" "there is no ${compiler}")
  endif()
endforeach()

set(all FALSE)
if(SPECAGG_TEST_TREE STREQUAL "ALL")
  set(all TRUE)
endif()
list(GET compilers 0 one_of_them)
set(one_or_all ${one_of_them})
if(all)
  set(one_or_all ${compilers})
endif()

set(avx512 -mavx512f -mavx512cd -mavx512bw -mavx512dq -mavx512vl -mavx2 -mfma -mf16c)
set(avx2 -mavx2 -mfma -mf16c)
set(sse2)
set(neon)
set(scalar -DSPECAGG_SCALAR)
set(isas scalar)
if(CMAKE_SYSTEM_PROCESSOR MATCHES "x86_64|AMD64")
  list(APPEND isas sse2)
  set(cpu)
  if(EXISTS /proc/cpuinfo)
    file(READ /proc/cpuinfo cpu)
  endif()
  foreach(isa IN ITEMS avx2 avx512)
    set(lacking ${${isa}})
    list(TRANSFORM lacking REPLACE "^-m" "")
    foreach(feature IN LISTS lacking)
      if(cpu MATCHES "[ \t]${feature}[ \n]")
        list(REMOVE_ITEM lacking ${feature})
      endif()
    endforeach()
    if(lacking)
      specagg_skip("everything on ${isa}" "this CPU has no ${lacking}")
    else()
      list(APPEND isas ${isa})
    endif()
  endforeach()
else()
  list(APPEND isas neon)
endif()

set(tree ${CMAKE_CURRENT_BINARY_DIR}/tree)
set(strict -std=c++20 -Wall -Wextra -Wconversion -Werror -DSPECAGG_ALLOW_SLOW)
set(includes -I${PROJECT_SOURCE_DIR}/include)
set(externals ${SPECAGG_XSIMD_INCLUDE_DIR})
set(pcre2)
if(SPECAGG_PCRE2_INCLUDE_DIR AND SPECAGG_PCRE2_LIBRARY)
  list(APPEND externals ${SPECAGG_PCRE2_INCLUDE_DIR})
  set(pcre2 -DSPECAGG_PCRE2 ${SPECAGG_PCRE2_LIBRARY})
endif()
if(TARGET Eigen3::Eigen)
  get_target_property(eigen Eigen3::Eigen INTERFACE_INCLUDE_DIRECTORIES)
  list(APPEND externals ${eigen})
endif()
list(REMOVE_ITEM externals ${CMAKE_CXX_IMPLICIT_INCLUDE_DIRECTORIES})
list(TRANSFORM externals PREPEND -isystem)
set(command ${strict} ${includes} ${externals})

# Compiles `source` into tree/<output> with the compiler and flags given, when the build makes `tree`.
# DEPENDS: files to link; AFTER: files that must exist.
set_property(GLOBAL PROPERTY specagg_tree)
function(specagg_compile output compiler source)
  cmake_path(GET output PARENT_PATH folder)
  file(MAKE_DIRECTORY ${tree}/${folder})
  cmake_parse_arguments(PARSE_ARGV 3 arg "" "" "DEPENDS;AFTER")
  set(touch)
  if("-fsyntax-only" IN_LIST arg_UNPARSED_ARGUMENTS)
    set(touch COMMAND ${CMAKE_COMMAND} -E touch ${tree}/${output})
  endif()
  add_custom_command(
    OUTPUT ${tree}/${output}
    COMMAND ${SPECAGG_${compiler}} ${command} ${arg_UNPARSED_ARGUMENTS} ${source} ${arg_DEPENDS} -o ${tree}/${output}
            -MD -MF ${tree}/${output}.d -MT ${tree}/${output} ${touch}
    DEPENDS ${source} ${arg_DEPENDS} ${arg_AFTER} DEPFILE ${tree}/${output}.d COMMENT "${compiler}: ${output}" VERBATIM)
  set_property(GLOBAL APPEND PROPERTY specagg_tree ${tree}/${output})
endfunction()

# The compiler refuses `source` with a message that matches `regex` (whose first part may be lines above the last), and
# says little else.
function(specagg_must_not_compile name source regex)
  foreach(compiler IN LISTS one_or_all)
    set(test "must_not_compile: ${name}, ${compiler}")
    add_test(NAME ${test} COMMAND bash -c "said=$(\"$@\" 2>&1); echo \"$said\"
      errors=$(grep -c 'error: ' <<<\"$said\"); lines=$(wc -l <<<\"$said\")
      ((errors <= 4 && lines <= 100)) || echo \"TOO LONG: $errors errors, $lines lines\""
      bash ${SPECAGG_${compiler}} ${command} -fsyntax-only ${ARGN} ${source})
    set_tests_properties(${test} PROPERTIES PASS_REGULAR_EXPRESSION "error: .*${regex}"
      FAIL_REGULAR_EXPRESSION "TOO LONG" ENVIRONMENT LC_ALL=C)
  endforeach()
endfunction()

# --- tree -------------------------------------------------------------------------------------------------------------
add_test(NAME "tree: includes, names, licences" COMMAND ${PROJECT_SOURCE_DIR}/scripts/check-tree)
add_test(NAME "tree: each mistake that is put in is found" COMMAND ${CMAKE_CURRENT_SOURCE_DIR}/examples/check_tree.py)

# --- headers ----------------------------------------------------------------------------------------------------------
file(GLOB_RECURSE headers CONFIGURE_DEPENDS RELATIVE ${PROJECT_SOURCE_DIR}/include ${PROJECT_SOURCE_DIR}/include/*.hpp)
list(FILTER headers EXCLUDE REGEX "backend/cuda/")
if(NOT TARGET specagg::cpu)
  list(FILTER headers EXCLUDE REGEX "backend/cpu/")
endif()
if(NOT TARGET gRPC::grpc++)
  list(FILTER headers EXCLUDE REGEX "net/grpc")
endif()
if(NOT TARGET llama)
  list(FILTER headers EXCLUDE REGEX "backend/llama_cpp/")
  specagg_skip("everything with libllama" "there is no libllama (scripts/get-llama-cpp builds it)")
else()
  get_target_property(llama_includes llama INTERFACE_INCLUDE_DIRECTORIES)
  list(TRANSFORM llama_includes PREPEND -isystem)
  list(APPEND command ${llama_includes})
endif()
set(every)
foreach(header IN LISTS headers)
  string(APPEND every "#include <${header}>\n")
endforeach()
file(CONFIGURE OUTPUT ${tree}/headers/every.cpp CONTENT "${every}")
# Warnings that engines ask for, once for all headers: some include orders hide a name that others show.
set(wary -Wshadow -Wdouble-promotion -Wsign-conversion)
set(wary_gcc -Wuseless-cast)
foreach(compiler IN LISTS compilers)
  specagg_compile(headers/every.${compiler} ${compiler} ${tree}/headers/every.cpp -fsyntax-only ${wary}
    ${wary_${compiler}})
endforeach()
foreach(header IN LISTS headers)
  file(CONFIGURE OUTPUT ${tree}/headers/${header}.cpp CONTENT "#include <${header}>\n#include <${header}>\n")
  set(flags -fno-exceptions -fno-rtti)
  if(header MATCHES "specagg/(error|format|thread_pool|audit/|site/|backend/|net/)")
    set(flags)
  endif()
  if(all)
    # Scalar code includes least, so it hides least.
    specagg_compile(headers/${header}.scalar ${one_of_them} ${tree}/headers/${header}.cpp -fsyntax-only
      -DSPECAGG_SCALAR ${flags})
    foreach(compiler IN LISTS compilers)
      specagg_compile(headers/${header}.${compiler} ${compiler} ${tree}/headers/${header}.cpp -fsyntax-only ${flags})
    endforeach()
  endif()
endforeach()

# --- flags: a build that is slow says so, under -Werror too, and can be silenced --------------------------------------
foreach(compiler IN LISTS compilers)
  set(quiet ${SPECAGG_${compiler}} -std=c++20 -Werror ${includes} -fsyntax-only ${tree}/headers/specagg/config.hpp.cpp)
  if(CMAKE_SYSTEM_PROCESSOR MATCHES "x86_64|AMD64")
    add_test(NAME "flags: no FMA is said, ${compiler}" COMMAND ${quiet} ${externals})
    set_tests_properties("flags: no FMA is said, ${compiler}" PROPERTIES
      PASS_REGULAR_EXPRESSION "specagg: no AVX2 and FMA: several times slower" FAIL_REGULAR_EXPRESSION "error")
  endif()
  foreach(silent IN ITEMS -DSPECAGG_ALLOW_SLOW -DSPECAGG_SCALAR)
    add_test(NAME "flags: ${silent} says nothing, ${compiler}" COMMAND ${quiet} ${externals} ${silent})
    set_tests_properties("flags: ${silent} says nothing, ${compiler}" PROPERTIES FAIL_REGULAR_EXPRESSION ".")
  endforeach()
endforeach()

# --- amalgamation -----------------------------------------------------------------------------------------------------
# In ${one} specagg/specagg.hpp is the amalgamation, and every other header leads to it or, if it has no such header, to
# the original: including an original that the amalgamation has too would define everything twice.
set(one ${tree}/amalgamation)
list(TRANSFORM headers PREPEND ${PROJECT_SOURCE_DIR}/include/ OUTPUT_VARIABLE originals)
add_custom_command(OUTPUT ${one}/specagg/specagg.hpp VERBATIM
  COMMAND ${PROJECT_SOURCE_DIR}/scripts/amalgamate ${one}/specagg/specagg.hpp
  DEPENDS ${PROJECT_SOURCE_DIR}/scripts/amalgamate ${originals})
file(STRINGS ${PROJECT_SOURCE_DIR}/include/specagg/specagg.hpp core REGEX "^#include <specagg/")
foreach(header IN LISTS headers)
  set(leads_to ${PROJECT_SOURCE_DIR}/include/${header})
  if("#include <${header}>" IN_LIST core)
    set(leads_to specagg/specagg.hpp)
  endif()
  if(NOT header STREQUAL "specagg/specagg.hpp")
    file(CONFIGURE OUTPUT ${one}/${header} CONTENT "#pragma once\n#include <${leads_to}>\n")
  endif()
endforeach()
file(CONFIGURE OUTPUT ${one}/alone.cpp CONTENT "#include <specagg/specagg.hpp>\n#include <specagg/specagg.hpp>\n")
set(command_before "${command}")
list(REMOVE_ITEM command ${includes})
list(GET isas -1 best_isa)
set(best_or_all ${best_isa})
if(all)
  set(best_or_all ${isas})
endif()
foreach(compiler IN LISTS one_or_all)
  foreach(isa IN LISTS best_or_all)
    specagg_compile(amalgamation/alone-${compiler}-${isa} ${compiler} ${one}/alone.cpp -I${one} -fsyntax-only
      -fno-exceptions -fno-rtti ${${isa}} AFTER ${one}/specagg/specagg.hpp)
  endforeach()
endforeach()
set(command "${command_before}")
if(all)
  add_executable(test-amalgamation verify/token.test.cpp audit/exact_law.test.cpp ${one}/specagg/specagg.hpp)
  target_link_libraries(test-amalgamation PRIVATE specagg_testing)
  target_include_directories(test-amalgamation BEFORE PRIVATE ${one})
  add_test(NAME "amalgamation: exact laws" COMMAND test-amalgamation)
endif()

# --- documentation: every ```cpp block of README.md and docs/ compiles behind #include <specagg/specagg.hpp> ---------
# and runs under AddressSanitizer and UBSan: by its own main(), or by that of docs/<page>-<number>.cpp.
file(GLOB pages CONFIGURE_DEPENDS ${PROJECT_SOURCE_DIR}/README.md ${PROJECT_SOURCE_DIR}/docs/*.md)
foreach(page IN LISTS pages)
  set_property(DIRECTORY APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS ${page})
  cmake_path(GET page STEM name)
  if(name STREQUAL "llama_cpp" AND NOT TARGET llama)
    continue()
  endif()
  file(READ ${page} text)
  string(REPLACE ";" "<semicolon>" text "${text}")
  string(REGEX MATCHALL "\n```cpp\n[^`]*\n```" blocks "${text}")
  set(number 0)
  foreach(block IN LISTS blocks)
    math(EXPR number "${number} + 1")
    string(REGEX REPLACE "\n```cpp\n([^`]*)\n```" "\\1" code "${block}")
    string(REPLACE "<semicolon>" ";" code "${code}")
    file(CONFIGURE OUTPUT ${tree}/docs/${name}-${number}.cpp CONTENT "#include <specagg/specagg.hpp>\n@code@\n" @ONLY)
    foreach(compiler IN LISTS one_or_all)
      specagg_compile(docs/${name}-${number}.${compiler} ${compiler} ${tree}/docs/${name}-${number}.cpp -fsyntax-only)
    endforeach()
    set(source ${CMAKE_CURRENT_SOURCE_DIR}/docs/${name}-${number}.cpp)
    if(name STREQUAL "llama_cpp")  # libllama is not built with sanitizers; llama_cpp/ runs the same calls
      continue()
    elseif("${block}" MATCHES "int main\\(")
      set(source ${tree}/docs/${name}-${number}.cpp)
      set(before)
    elseif(EXISTS ${source})
      set(before -include ${tree}/docs/${name}-${number}.cpp)
    else()
      message(FATAL_ERROR "specagg: block ${number} of ${page} does not run: write ${source}")
    endif()
    if(all OR "${name}-${number}" STREQUAL "engine-1")
      specagg_compile(docs/${name}-${number} ${one_of_them} ${source} ${before} -g1 -O1 -march=native -pthread
        -fsanitize=address,undefined -fno-sanitize-recover=all -DSPECAGG_COMPILE_FAST -DFMT_HEADER_ONLY ${pcre2}
        -DSPECAGG_SOURCE_DIR="${PROJECT_SOURCE_DIR}" AFTER ${tree}/docs/${name}-${number}.cpp)
      add_test(NAME "docs: ${name}, block ${number}, runs" COMMAND ${tree}/docs/${name}-${number}
        WORKING_DIRECTORY ${tree}/docs)
    endif()
  endforeach()
endforeach()

add_test(NAME "docs: README's program and its rules"
  COMMAND ${CMAKE_CURRENT_SOURCE_DIR}/examples/readme.py ${tree}/docs/readme ${CMAKE_CXX_COMPILER} ${externals})

# --- bits -------------------------------------------------------------------------------------------------------------
foreach(isa IN LISTS isas)
  foreach(compiler IN LISTS compilers)
    foreach(contract IN ITEMS fast off)
      if(contract STREQUAL off AND NOT isa STREQUAL avx2)
        continue()  # -ffp-contract matters where there is a fused multiply-add to contract to; one such is enough
      endif()
      list(GET compilers -1 second)
      set(most_telling "scalar ${one_of_them} fast" "avx2 ${second} fast")
      if(NOT all AND NOT "${isa} ${compiler} ${contract}" IN_LIST most_telling)
        continue()
      endif()
      set(variant ${isa}-${compiler}-contract-${contract})
      specagg_compile(bits/${variant} ${compiler} ${CMAKE_CURRENT_SOURCE_DIR}/bits/bits.cpp
        -O1 ${${isa}} -ffp-contract=${contract})
      specagg_expect_bits("bits: ${variant}" expected.txt ${tree}/bits/${variant})
    endforeach()
  endforeach()
endforeach()

# LLVM's standard library, where it is installed
if(SPECAGG_clang++ AND all)
  file(WRITE ${tree}/libc++.cpp "#include <version>\n#if !defined(_LIBCPP_VERSION)\n#error\n#endif\nint main() {}\n")
  execute_process(COMMAND ${SPECAGG_clang++} -std=c++20 -stdlib=libc++ ${tree}/libc++.cpp -o ${tree}/libc++
    RESULT_VARIABLE no_libcxx OUTPUT_QUIET ERROR_QUIET)
endif()
if(SPECAGG_clang++ AND all AND NOT no_libcxx)
  specagg_compile(bits/libc++ clang++ ${CMAKE_CURRENT_SOURCE_DIR}/bits/bits.cpp -O1 ${avx2} -stdlib=libc++)
  specagg_expect_bits("bits: libc++" expected.txt ${tree}/bits/libc++)
elseif(all)
  specagg_skip("bits: libc++" "there is no clang++ with libc++")
endif()

# Products of quantised weights, which have a kernel for each machine.
set(avx512vnni -mavx512vnni ${avx512})
set(product_isas ${isas})
if("avx512" IN_LIST isas AND cpu MATCHES "avx512_vnni")
  list(APPEND product_isas avx512vnni)
endif()
foreach(isa IN LISTS product_isas)
  foreach(compiler IN LISTS one_or_all)
    specagg_compile(bits/products-${isa}-${compiler} ${compiler} ${CMAKE_CURRENT_SOURCE_DIR}/bits/products.cpp
      -O1 ${${isa}} -pthread)
    specagg_expect_bits("bits: products, ${isa}, ${compiler}" products.expected.txt
      ${tree}/bits/products-${isa}-${compiler})
  endforeach()
endforeach()

# Whole texts with the models, and 10^5 verification steps on 1, 2 and 4 threads: each instruction set once, or one.
set(stepping ${isas})
if(NOT all)
  list(FILTER stepping INCLUDE REGEX "avx2|neon")
endif()
foreach(isa IN LISTS stepping)
  list(GET compilers 0 compiler)
  specagg_compile(bits/steps-${isa} ${compiler} ${CMAKE_CURRENT_SOURCE_DIR}/bits/steps.cpp -O2 ${${isa}} -pthread)
  set(threads 1)
  if(isa STREQUAL avx2 OR isa STREQUAL neon)
    set(threads 1 2 4)
  endif()
  foreach(n IN LISTS threads)
    specagg_expect_bits("bits: 100,000 steps, ${isa}, ${n} threads" steps.expected.txt ${tree}/bits/steps-${isa} ${n})
  endforeach()
  specagg_compile(bits/texts-${isa} ${compiler} ${CMAKE_CURRENT_SOURCE_DIR}/bits/texts.cpp
    -O2 ${${isa}} -pthread -DSPECAGG_MODELS="${PROJECT_SOURCE_DIR}/examples/models")
  specagg_expect_bits("bits: texts, ${isa}" texts.expected.txt ${tree}/bits/texts-${isa})
endforeach()

# --- package ----------------------------------------------------------------------------------------------------------
set(package ${CMAKE_CURRENT_SOURCE_DIR}/package)
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

foreach(compiler IN LISTS one_or_all)
  foreach(mode IN ITEMS exceptions no-exceptions)
    set(flags -O1)
    if(mode STREQUAL no-exceptions)
      list(APPEND flags -fno-exceptions -fno-rtti)
    endif()
    specagg_compile(package/consumer-${compiler}-${mode} ${compiler} ${package}/consumer.cpp ${flags})
    add_test(NAME "package: the include path alone, ${compiler}, ${mode}"
      COMMAND ${tree}/package/consumer-${compiler}-${mode})
    string(JOIN " " flags ${strict} ${flags})
    specagg_consumer("find_package, ${compiler}, ${mode}" -DCMAKE_CXX_COMPILER=${SPECAGG_${compiler}}
      -DCMAKE_CXX_FLAGS=${flags})
  endforeach()
  string(JOIN " " flags ${strict})
  specagg_consumer("find_package COMPONENTS cpu, ${compiler}" -DCMAKE_CXX_COMPILER=${SPECAGG_${compiler}}
    -DCMAKE_CXX_FLAGS=${flags} -DCOMPONENTS=cpu)
endforeach()
if(TARGET llama AND all)
  specagg_consumer("find_package COMPONENTS llama_cpp" -DCMAKE_CXX_COMPILER=${CMAKE_CXX_COMPILER}
    -DCOMPONENTS=llama_cpp)
endif()
if(TARGET gRPC::grpc++ AND all)
  specagg_consumer("find_package COMPONENTS net" -DCMAKE_CXX_COMPILER=${CMAKE_CXX_COMPILER} -DCOMPONENTS=net)
elseif(all)
  specagg_skip("package: find_package COMPONENTS net" "there is no gRPC")
endif()
# In a parent project specagg_dispatch is called from another directory than the one that included it. Looking for gRPC
# takes half a minute.
set(in_parent -DCMAKE_CXX_COMPILER=${CMAKE_CXX_COMPILER} -DSPECAGG_SOURCE=${PROJECT_SOURCE_DIR} -DDISPATCH=scalar
  -DCMAKE_DISABLE_FIND_PACKAGE_gRPC=ON -DCMAKE_DISABLE_FIND_PACKAGE_PkgConfig=ON)
specagg_consumer("add_subdirectory adds nothing but the library, and dispatches" ${in_parent})
specagg_consumer("FetchContent adds nothing but the library, and dispatches" ${in_parent} -DFETCH=ON)
specagg_consumer("an unknown component is named" -DCMAKE_CXX_COMPILER=${CMAKE_CXX_COMPILER} -DCOMPONENTS=telepathy)
set_tests_properties("package: an unknown component is named" PROPERTIES
  PASS_REGULAR_EXPRESSION "no component 'telepathy'; it has")
specagg_consumer("a missing xsimd is warned of" -DCMAKE_CXX_COMPILER=${CMAKE_CXX_COMPILER} -DSPECAGG_XSIMD_INCLUDE_DIR=)
set_tests_properties("package: a missing xsimd is warned of" PROPERTIES
  PASS_REGULAR_EXPRESSION "xsimd/xsimd.hpp was not found")

add_test(NAME "package: archive, Debian package, pkg-config, Conan"
  COMMAND ${CMAKE_CURRENT_SOURCE_DIR}/package/packages.py ${tree}/packages ${CMAKE_CXX_COMPILER})
set_tests_properties("package: archive, Debian package, pkg-config, Conan" PROPERTIES
  SKIP_REGULAR_EXPRESSION "^skipped:")

# --- isa --------------------------------------------------------------------------------------------------------------
set(scalar_fma ${scalar} -mfma)
set(linked_isas ${isas})
if("avx2" IN_LIST isas)
  list(APPEND linked_isas scalar_fma)
endif()
foreach(compiler IN LISTS one_or_all)
  set(objects)
  set(parts)
  foreach(isa IN LISTS linked_isas)
    specagg_compile(isa/${compiler}-${isa}.o ${compiler} ${package}/isa_part.cpp -c -O2 ${${isa}} -DPART=part_${isa})
    list(APPEND objects ${tree}/isa/${compiler}-${isa}.o)
    string(APPEND parts " PART(part_${isa})")
  endforeach()
  specagg_compile(isa/${compiler} ${compiler} ${package}/isa_main.cpp -O2 "-DPARTS=${parts}" DEPENDS ${objects})
  string(JOIN ", " linked ${linked_isas})
  add_test(NAME "isa: ${linked} linked together, ${compiler}" COMMAND ${tree}/isa/${compiler})
endforeach()

# --- dispatch ---------------------------------------------------------------------------------------------------------
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
  foreach(compiler IN LISTS one_or_all)
    specagg_dispatch_tests(${compiler} "avx512vnni;avx512;avx2;sse2;scalar" "${product_isas}" ""
      -DCMAKE_CXX_COMPILER=${SPECAGG_${compiler}} "-DCMAKE_CXX_FLAGS=-O1 -Wall -Wextra -Wconversion -Werror")
    list(GET product_isas -1 best)
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
    specagg_dispatch_test("on max, ${compiler}"
      "diff <(SPECAGG_ISA=scalar ./dispatch | sed 1s/scalar/avx2/) <(${SPECAGG_qemu} -cpu max ./dispatch)")
    specagg_dispatch_test("linked with no precaution an older machine crashes, ${compiler}"
      "cmake --build . --target dispatch_naive && { ${SPECAGG_qemu} -cpu Nehalem ./dispatch_naive; test $? = 132; }")
  endforeach()
endif()
if("sse2" IN_LIST isas AND all)  # what may not be dispatched is refused when it is built
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
if(NOT all)
  # aarch64 is tested by `make test-all`
elseif(SPECAGG_aarch64_g++ AND SPECAGG_qemu_aarch64)
  specagg_dispatch_tests(aarch64 "neon;scalar" "neon;scalar" ${SPECAGG_qemu_aarch64} -DCMAKE_SYSTEM_NAME=Linux
    -DCMAKE_SYSTEM_PROCESSOR=aarch64 -DCMAKE_CXX_COMPILER=${SPECAGG_aarch64_g++} -DCMAKE_EXE_LINKER_FLAGS=-static
    -DCMAKE_CXX_FLAGS=-O1)
else()
  specagg_skip("dispatch: aarch64" "there is no aarch64-linux-gnu-g++, or no qemu-aarch64")
endif()

# --- cuda -------------------------------------------------------------------------------------------------------------
find_program(SPECAGG_nvcc nvcc PATHS /usr/local/cuda/bin)
mark_as_advanced(SPECAGG_nvcc)
if(NOT all)
  # nvcc is tested by `make test-all`
elseif(SPECAGG_nvcc)
  set(nvcc ${SPECAGG_nvcc} -ccbin ${CMAKE_CXX_COMPILER} -std=c++20 --expt-relaxed-constexpr -Werror all-warnings
    -I${PROJECT_SOURCE_DIR}/include -I${CMAKE_CURRENT_SOURCE_DIR})
  function(specagg_nvcc output source)  # as specagg_compile
    add_custom_command(
      OUTPUT ${tree}/${output} COMMAND ${nvcc} ${ARGN} ${source} -o ${tree}/${output} -MD -MF ${tree}/${output}.d
      DEPENDS ${source} DEPFILE ${tree}/${output}.d COMMENT "nvcc: ${output}" VERBATIM)
    set_property(GLOBAL APPEND PROPERTY specagg_tree ${tree}/${output})
  endfunction()
  file(MAKE_DIRECTORY ${tree}/cuda)
  specagg_nvcc(cuda/verify.o ${CMAKE_CURRENT_SOURCE_DIR}/cuda/verify.test.cpp -x cu -arch=sm_90 -c)
  foreach(arch IN ITEMS 80 90)
    specagg_nvcc(cuda/kernels-sm_${arch}.o ${CMAKE_CURRENT_SOURCE_DIR}/cuda/kernels.cu -arch=sm_${arch} -c
      -Xcompiler=-Wall,-Wextra)
  endforeach()
  file(READ ${PROJECT_SOURCE_DIR}/docs/cuda.md text)
  set(block "\n```cuda\n([^`]*)\n```.*")
  string(REGEX REPLACE ".*${block}${block}" "\\1\n\\2" code "${text}")
  file(CONFIGURE OUTPUT ${tree}/docs/cuda.cu CONTENT "@code@\n" @ONLY)
  specagg_nvcc(docs/cuda.o ${tree}/docs/cuda.cu -arch=sm_90 -c)
  # device_rule.cu compiles as it is, and with none of its mistakes; nor does it with flags that change the bits.
  set(broken ${CMAKE_CURRENT_SOURCE_DIR}/must_not_compile/device_rule.cu)
  specagg_nvcc(cuda/device_rule.ptx ${broken} -arch=compute_90 -ptx)
  file(STRINGS ${broken} mistakes REGEX "^// EXPECT [0-9]+: ")
  foreach(mistake IN LISTS mistakes)
    string(REGEX MATCH "^// EXPECT ([0-9]+): (.*)" mistake "${mistake}")
    set(expect "${CMAKE_MATCH_2}")
    add_test(NAME "must_not_compile: device_rule, mistake ${CMAKE_MATCH_1}, nvcc"
      COMMAND ${nvcc} -DSPECAGG_BROKEN=${CMAKE_MATCH_1} -arch=compute_90 -ptx ${broken} -o ${tree}/cuda/broken.ptx)
    set_tests_properties("must_not_compile: device_rule, mistake ${CMAKE_MATCH_1}, nvcc" PROPERTIES
      LABELS slow PASS_REGULAR_EXPRESSION "${expect}")
  endforeach()
  foreach(flag IN ITEMS -use_fast_math -ftz=true -prec-sqrt=false)
    add_test(NAME "must_not_compile: ${flag}, nvcc"
      COMMAND ${nvcc} ${flag} -arch=sm_90 -cubin ${broken} -o ${tree}/cuda/broken.cubin)
    set_tests_properties("must_not_compile: ${flag}, nvcc" PROPERTIES LABELS slow
      PASS_REGULAR_EXPRESSION "Unresolved extern function 'specagg_needs_nvcc_without_use_fast_math_ftz_prec_sqrt'")
  endforeach()
  specagg_consumer("find_package COMPONENTS cuda" -DCOMPONENTS=cuda -DCMAKE_CUDA_ARCHITECTURES=90
    -DCMAKE_CUDA_COMPILER=${SPECAGG_nvcc})
else()
  specagg_skip("cuda: nvcc" "there is no nvcc")
endif()
add_test(NAME "cuda: scripts/gpu-check builds, goes dry and runs, with a compiler and a GPU that are stubs"
  COMMAND ${CMAKE_CURRENT_SOURCE_DIR}/cuda/gpu_check.py)
if(TARGET specagg_cuda_emulator AND all)
  add_test(NAME "cuda: mistakes in the headers are found by the emulator's tests"
    COMMAND ${CMAKE_CURRENT_SOURCE_DIR}/cuda/mutants.py ${CMAKE_BINARY_DIR}/cuda-mutants
            "$<TARGET_FILE:specagg_testing>,$<TARGET_FILE:specagg_cuda_emulator>,-lboost_context,-lpthread"
            ${CMAKE_CXX_COMPILER} -std=c++20 -O1 -DSPECAGG_ALLOW_SLOW -DSPECAGG_COMPILE_FAST -Wno-unknown-pragmas
            -fsanitize=alignment -I${CMAKE_CURRENT_SOURCE_DIR}/cuda/emulator -I${CMAKE_CURRENT_SOURCE_DIR})
  set_tests_properties("cuda: mistakes in the headers are found by the emulator's tests" PROPERTIES
    LABELS slow COST 1000 TIMEOUT 3600)
  file(GLOB sources CONFIGURE_DEPENDS RELATIVE ${PROJECT_SOURCE_DIR}/include
    ${PROJECT_SOURCE_DIR}/include/specagg/backend/cuda/*.hpp)
  foreach(header IN LISTS sources)
    file(CONFIGURE OUTPUT ${tree}/headers/${header}.cpp CONTENT "#include <${header}>\n#include <${header}>\n")
    foreach(compiler IN LISTS one_or_all)
      specagg_compile(headers/${header}.${compiler} ${compiler} ${tree}/headers/${header}.cpp -fsyntax-only
        -DSPECAGG_SCALAR -Wno-unknown-pragmas -I${CMAKE_CURRENT_SOURCE_DIR}/cuda/emulator)
    endforeach()
  endforeach()
endif()

# --- counts -----------------------------------------------------------------------------------------------------------
foreach(compiler IN LISTS compilers)
  foreach(isa IN ITEMS avx512 avx2 scalar)
    set(counter ${PROJECT_SOURCE_DIR}/scripts/count-instructions ${SPECAGG_${compiler}} ${isa} ${externals})
    add_test(NAME "counts: ${isa}, ${compiler}" COMMAND ${counter})
    set(labels counts)
    if(NOT "${isa} ${compiler}" STREQUAL "avx2 ${one_of_them}")
      list(APPEND labels slow)
    endif()
    set_tests_properties("counts: ${isa}, ${compiler}" PROPERTIES
      LABELS "${labels}" SKIP_REGULAR_EXPRESSION "^skipped:")
  endforeach()
endforeach()
set(counter ${PROJECT_SOURCE_DIR}/scripts/count-instructions g++ avx2 ${externals})
add_test(NAME "counts: 4 % more are found" COMMAND bash -c "output=$(\"$@\" 2>&1); status=$?; echo \"$output\"
  [[ $output = skipped* ]] || [[ $status = 1 && $output =~ avx2,\\ log_sum_exp:.*TOO\\ MANY.*total_variation ]]"
  bash ${counter} -DSPECAGG_BROKEN)
set_tests_properties("counts: 4 % more are found" PROPERTIES LABELS "counts;slow" SKIP_REGULAR_EXPRESSION "^skipped:")

# --- must_not_compile -------------------------------------------------------------------------------------------------
# A file compiles as it is, and not with -DSPECAGG_BROKEN; its line "// EXPECT: regex" is what the message must match.
specagg_must_not_compile("-ffast-math" ${package}/consumer.cpp "specagg: -ffast-math"
  -ffast-math -Wfatal-errors)
file(GLOB sources CONFIGURE_DEPENDS must_not_compile/*.cpp)
foreach(source IN LISTS sources)
  cmake_path(GET source STEM name)
  file(STRINGS ${source} expect REGEX "^// EXPECT: ")
  string(REPLACE "// EXPECT: " "" expect "${expect}")
  specagg_must_not_compile(${name} ${source} "${expect}" -DSPECAGG_BROKEN)
  foreach(compiler IN LISTS one_or_all)
    specagg_compile(must_not_compile/${name}.${compiler} ${compiler} ${source} -fsyntax-only)
  endforeach()
endforeach()

# --- fuzz -------------------------------------------------------------------------------------------------------------
# A line "// FUZZ: -max_len=65536" in a source gives libFuzzer options; fuzz/<name>/ holds its seeds.
file(GLOB sources CONFIGURE_DEPENDS fuzz/*.fuzz.cpp)
if(NOT all)
  set(sources)
elseif(SPECAGG_clang++)
  file(WRITE ${tree}/fuzzer.cpp "extern \"C\" int LLVMFuzzerTestOneInput(const char*, unsigned long) { return 0; }\n")
  execute_process(COMMAND ${SPECAGG_clang++} -fsanitize=fuzzer,address,undefined ${tree}/fuzzer.cpp -o ${tree}/fuzzer
    RESULT_VARIABLE no_fuzzer OUTPUT_QUIET ERROR_QUIET)
else()
  set(no_fuzzer TRUE)
endif()
if(all AND no_fuzzer)
  specagg_skip("fuzz" "there is no clang++ with libFuzzer")
  set(sources)
endif()
foreach(source IN LISTS sources)
  cmake_path(GET source STEM name)
  specagg_compile(fuzz/${name} clang++ ${source} -g -O1 -march=native -fsanitize=fuzzer,address,undefined
    -fno-sanitize-recover=all -DSPECAGG_COMPILE_FAST -DFMT_HEADER_ONLY -pthread -I${CMAKE_CURRENT_SOURCE_DIR} ${pcre2}
    -DSPECAGG_MODELS="${PROJECT_SOURCE_DIR}/examples/models")
  file(STRINGS ${source} options REGEX "^// FUZZ: ")
  string(REPLACE "// FUZZ: " "" options "${options}")
  set(seeds)
  if(IS_DIRECTORY ${CMAKE_CURRENT_SOURCE_DIR}/fuzz/${name})
    set(seeds ${CMAKE_CURRENT_SOURCE_DIR}/fuzz/${name})
  endif()
  file(MAKE_DIRECTORY ${tree}/fuzz/${name}.corpus)
  string(JOIN " " options -max_total_time=\${FUZZ_SECONDS:-30} -timeout=20 -rss_limit_mb=4096 -verbosity=0
    -print_final_stats=1 -artifact_prefix=${tree}/fuzz/${name}- ${options} ${tree}/fuzz/${name}.corpus ${seeds})
  add_test(NAME "fuzz: ${name}" COMMAND bash -c "exec ${tree}/fuzz/${name} ${options}")
  set_tests_properties("fuzz: ${name}" PROPERTIES LABELS fuzz TIMEOUT 0 COST 1000)
endforeach()

# --- get-model --------------------------------------------------------------------------------------------------------
add_test(NAME "get-model: damage, interruptions, a full disk, two at once"
  COMMAND ${CMAKE_CURRENT_SOURCE_DIR}/examples/get_model.py)
set_tests_properties("get-model: damage, interruptions, a full disk, two at once" PROPERTIES
  SKIP_REGULAR_EXPRESSION "^skipped:")

# --- get-llama-cpp ----------------------------------------------------------------------------------------------------
add_test(NAME "get-llama-cpp: a processor's instruction sets without AMX, and another processor"
  COMMAND ${CMAKE_CURRENT_SOURCE_DIR}/examples/get_llama_cpp.py)

# --- experiments ------------------------------------------------------------------------------------------------------
add_test(NAME "experiments: every claim has its measure, part and plot, and is judged as claims.json says"
  COMMAND ${CMAKE_CURRENT_SOURCE_DIR}/examples/claims.py)
if(TARGET specagg-experiments AND all)
  add_test(NAME "experiments: quick, killed half-way and started again"
    COMMAND ${CMAKE_CURRENT_SOURCE_DIR}/examples/resume.py $<TARGET_FILE:specagg-experiments>
            ${CMAKE_BINARY_DIR}/experiments-test)
  set_tests_properties("experiments: quick, killed half-way and started again" PROPERTIES LABELS slow COST 500)
endif()

get_property(outputs GLOBAL PROPERTY specagg_tree)
add_custom_target(tree ALL DEPENDS ${outputs})
