# SPDX-License-Identifier: Apache-2.0
# What the files of this folder have in common: the compilers, the instruction sets of this machine, and functions that
# compile a source in another way than the rest of this build.
#
# What follows specagg_tier(more) is left to `make test-more`, what follows specagg_tier(slow) to `make test-all`: tests
# get that label, and what specagg_compile makes is made by the target of that name. specagg_tier("") ends that.
macro(specagg_tier next)
  get_property(tests DIRECTORY PROPERTY TESTS)
  get_property(labelled GLOBAL PROPERTY specagg_labelled)
  list(REMOVE_ITEM tests "" ${labelled})
  if(tests AND tier)
    set_property(TEST ${tests} APPEND PROPERTY LABELS ${tier})
  endif()
  set_property(GLOBAL APPEND PROPERTY specagg_labelled ${tests})
  set(tier "${next}")
endmacro()
macro(specagg_tier_of compiler first others)  # that of the compiler that all tests use, and of the others
  if("${compiler}" STREQUAL "${one_of_them}")
    specagg_tier("${first}")
  else()
    specagg_tier("${others}")
  endif()
endmacro()
specagg_tier("")

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
  specagg_tier(more)
endforeach()
specagg_tier("")
list(GET compilers 0 one_of_them)

# Those of cmake/specaggInstructionSets.cmake that this machine runs, the best last.
string(REPLACE "AMD64" "x86_64" arch "${CMAKE_SYSTEM_PROCESSOR}")
string(REGEX REPLACE "^(arm64|ARM64)$" "aarch64" arch "${arch}")
set(cpu)
if(EXISTS /proc/cpuinfo)
  file(READ /proc/cpuinfo cpu)
  string(REPLACE "_" "" cpu "${cpu}")  # avx512_vnni
endif()
set(product_isas)  # and those that only products of quantised weights have a kernel for
foreach(isa IN LISTS SPECAGG_ISAS_${arch})
  set(lacking ${SPECAGG_FLAGS_${isa}})
  list(FILTER lacking INCLUDE REGEX "^-m")
  list(TRANSFORM lacking REPLACE "^-m" "")
  foreach(feature IN LISTS lacking)
    if(cpu MATCHES "[ \t]${feature}[ \n]")
      list(REMOVE_ITEM lacking ${feature})
    endif()
  endforeach()
  if(lacking)
    specagg_skip("everything on ${isa}" "this CPU has no ${lacking}")
  else()
    list(PREPEND product_isas ${isa})
  endif()
endforeach()
set(isas ${product_isas})
list(REMOVE_ITEM isas avx512vnni)

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

# Compiles `source` into tree/<output> with the compiler and flags given, when the build makes the target of its
# tier: tree, more or slow.
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
  set_property(GLOBAL APPEND PROPERTY specagg_tree${tier} ${tree}/${output})
endfunction()

# The compiler refuses `source` (specagg/detail/misfit.hpp): its first error matches `regex`, and there are at most
# `errors` of them, in at most 40 lines of g++, 60 of clang++. The regex may begin with the part of the line before it.
# ${first_<compiler>}: flags, if that compiler has a precompiled header for the source.
set(no_limit_g++ -fmax-errors=0)
set(no_limit_clang++ -ferror-limit=0)
set(lines_g++ 40)
set(lines_clang++ 60)
function(specagg_must_not_compile name source regex errors)
  cmake_path(GET source PARENT_PATH folder)
  cmake_path(GET source FILENAME file)
  set(lines 1)
  if(errors GREATER 1 OR later)  # the regex names all of them, or what stands after the first
    set(lines 40)
  endif()
  foreach(compiler IN LISTS compilers)
    specagg_tier_of(${compiler} more slow)
    set(test "must_not_compile: ${name}, ${compiler}")
    add_test(NAME ${test} WORKING_DIRECTORY ${folder} COMMAND bash -c "said=$(\"$@\" 2>&1); echo \"$said\"
      echo \"FIRST $(sed -n '/error: /,$p' <<<\"$said\" | head -n ${lines} | tr '\\n' ' ')\"
      errors=$(grep -c 'error: ' <<<\"$said\"); lines=$(wc -l <<<\"$said\")
      ((errors <= ${errors} && lines <= ${lines_${compiler}})) || echo \"TOO LONG: $errors errors, $lines lines\""
      bash ${SPECAGG_${compiler}} ${command} -Wno-error -fdiagnostics-color=never ${no_limit_${compiler}} -fsyntax-only
      ${first_${compiler}} ${ARGN} ${file})
    set_tests_properties(${test} PROPERTIES PASS_REGULAR_EXPRESSION "FIRST [^\n]*error: [^\n]*${regex}"
      FAIL_REGULAR_EXPRESSION "TOO LONG" ENVIRONMENT LC_ALL=C)
  endforeach()
  specagg_tier("")
endfunction()
