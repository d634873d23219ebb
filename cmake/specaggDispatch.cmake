# SPDX-License-Identifier: Apache-2.0
# One program for every machine: a source built once for each instruction set, the best version chosen at start.
#
#   specagg_dispatch(<target> SOURCE step.cpp ENTRY step [another...] [ISAS avx512 avx2 sse2] [NOT_EVERYWHERE])
#
# <target>  a target of this directory; it gets the versions, and step() itself, which jumps to the chosen one
# SOURCE    an ordinary source with  extern "C" ... step(...)  in it; callers declare and call step() as ever
# ENTRY     its extern "C" functions
# ISAS      avx512vnni avx512 avx2 sse2 scalar on x86-64 (default: avx512 avx2 sse2), neon scalar on aarch64 (default:
#           neon). avx512vnni is for sources that include backend/cpu: its products of quantised weights are faster
#
# NOT_EVERYWHERE  ISAS need not have one that every machine runs. A machine that runs none of them gets a message and
#           status 2 at start
#
# At start the best version that this machine runs is taken, or the one the environment's SPECAGG_ISA names; a name that
# was not built or cannot run here ends the program with a message and status 2.
#
# What SOURCE includes is compiled with -mavx512f too, std:: templates as well, and a linker that finds a function twice
# keeps either copy, for the whole program. So each version is first linked by itself (ld -r), and then all its symbols
# but the entries are made local (objcopy); the build fails if that did not work. This needs ELF, GNU ld and objcopy.
# Elsewhere SOURCE becomes an ordinary source of the target, built with the target's own flags; SPECAGG_ISA is not read.

cmake_policy(VERSION 3.22)
if(CMAKE_SCRIPT_MODE_FILE)  # cmake -DNM= -DOBJDUMP= -DOBJECT= -DENTRIES= -P: what the file exports and runs at start
  execute_process(COMMAND ${NM} --extern-only --undefined-only ${OBJECT} OUTPUT_VARIABLE undefined
                  COMMAND_ERROR_IS_FATAL ANY)
  execute_process(COMMAND ${NM} --defined-only --extern-only --format=posix ${OBJECT} OUTPUT_VARIABLE symbols
                  COMMAND_ERROR_IS_FATAL ANY)
  string(REPLACE "," ";" ENTRIES "${ENTRIES}")
  string(REGEX MATCHALL "[^\n]+" symbols "${symbols}")
  list(TRANSFORM symbols REPLACE " .*" "")
  foreach(entry IN LISTS ENTRIES)
    if(NOT entry IN_LIST symbols)
      file(REMOVE ${OBJECT})
      message(FATAL_ERROR "specagg_dispatch: no extern \"C\" function makes ${entry} in ${OBJECT}")
    endif()
  endforeach()
  list(REMOVE_ITEM symbols ${ENTRIES})
  execute_process(COMMAND ${OBJDUMP} -h ${OBJECT} OUTPUT_VARIABLE sections COMMAND_ERROR_IS_FATAL ANY)
  if(symbols)
    file(REMOVE ${OBJECT})
    message(FATAL_ERROR "specagg_dispatch: ${OBJECT} must export ${ENTRIES} only, but exports ${symbols} too")
  endif()
  if(sections MATCHES "[.](init_array|ctors)" AND NOT undefined MATCHES "__[at]san_init")
    file(REMOVE ${OBJECT})
    message(FATAL_ERROR "specagg_dispatch: ${OBJECT} has a static initialiser (a global object, <iostream>): it would "
                        "run at start on machines without its instruction set")
  endif()
  return()
endif()

function(specagg_dispatch target)
  cmake_parse_arguments(PARSE_ARGV 1 arg "NOT_EVERYWHERE" "SOURCE" "ENTRY;ISAS")
  if(NOT arg_SOURCE OR NOT arg_ENTRY OR arg_UNPARSED_ARGUMENTS)
    message(FATAL_ERROR "specagg_dispatch(<target> SOURCE step.cpp ENTRY step [ISAS avx512 avx2 sse2] "
                        "[NOT_EVERYWHERE])")
  endif()
  set(here ${CMAKE_CURRENT_FUNCTION_LIST_DIR})  # a variable of this file is not seen by callers in a parent directory
  include(${here}/specaggInstructionSets.cmake)
  cmake_path(ABSOLUTE_PATH arg_SOURCE OUTPUT_VARIABLE source)
  cmake_path(GET source STEM stem)

  set(arch)
  if(CMAKE_SYSTEM_PROCESSOR MATCHES "^(x86_64|AMD64)$" AND CMAKE_SIZEOF_VOID_P EQUAL 8)
    set(arch x86_64)
    set(least -march=x86-64)
    set(default avx512 avx2 sse2)
  elseif(CMAKE_SYSTEM_PROCESSOR MATCHES "^(aarch64|arm64|ARM64)$")
    set(arch aarch64)
    set(least -march=armv8-a)
    set(default neon)
  endif()
  set(known ${SPECAGG_ISAS_${arch}})

  set(ld)
  foreach(linker IN ITEMS ${CMAKE_LINKER} ld.bfd)  # CMAKE_LINKER may be gold, lld or mold
    execute_process(COMMAND ${linker} --version OUTPUT_VARIABLE version ERROR_QUIET RESULT_VARIABLE failed)
    if(NOT ld AND version MATCHES "^GNU ld" AND NOT (linker STREQUAL "ld.bfd" AND CMAKE_CROSSCOMPILING))
      set(ld ${linker})
    endif()
  endforeach()
  if(NOT arch OR NOT CMAKE_EXECUTABLE_FORMAT STREQUAL "ELF" OR NOT CMAKE_CXX_COMPILER_ID MATCHES "^(GNU|Clang)$" OR
     NOT ld OR NOT CMAKE_OBJCOPY OR NOT CMAKE_OBJDUMP OR NOT CMAKE_NM)
    message(STATUS "specagg_dispatch: one version of ${stem}: more need ELF, g++ or clang++, GNU ld, objcopy, x86-64 "
                   "or aarch64")
    target_sources(${target} PRIVATE ${source})
    return()
  endif()
  get_property(multi_config GLOBAL PROPERTY GENERATOR_IS_MULTI_CONFIG)
  get_target_property(directory ${target} SOURCE_DIR)
  if(multi_config OR NOT directory STREQUAL CMAKE_CURRENT_SOURCE_DIR)
    message(FATAL_ERROR "specagg_dispatch: ${target} must be made in this directory, by a single-config generator")
  endif()
  if(NOT arg_ISAS)
    set(arg_ISAS ${default})
  endif()
  foreach(isa IN LISTS arg_ISAS)
    if(NOT isa IN_LIST known)
      message(FATAL_ERROR "specagg_dispatch: no instruction set '${isa}' on ${arch}; there are: ${known}")
    endif()
  endforeach()
  if(NOT arg_NOT_EVERYWHERE AND NOT arg_ISAS MATCHES "sse2|scalar|neon")
    message(FATAL_ERROR "specagg_dispatch: ISAS has nothing that every ${arch} runs; add one of sse2, neon, scalar")
  endif()

  set(folder ${CMAKE_CURRENT_BINARY_DIR}/${target}.dispatch)
  set(isas)
  foreach(isa IN LISTS known)  # best first
    if(NOT isa IN_LIST arg_ISAS)
      continue()
    endif()
    list(APPEND isas ${isa})
    set(version ${target}_${stem}_${isa})
    file(CONFIGURE OUTPUT ${folder}/${stem}.${isa}.cpp @ONLY CONTENT [[
#include "@source@"

#include <string_view>

#include <specagg/config.hpp>
static_assert(std::string_view(SPECAGG_STRING(SPECAGG_ISA)) == "@isa@",
              "specagg_dispatch: this is not built for @isa@: xsimd is missing, or CMAKE_CXX_FLAGS has -m flags");
]])
    add_library(${version} OBJECT ${folder}/${stem}.${isa}.cpp)
    target_include_directories(${version} PRIVATE $<TARGET_PROPERTY:${target},INCLUDE_DIRECTORIES>)
    target_compile_definitions(${version} PRIVATE SPECAGG_ALLOW_SLOW $<TARGET_PROPERTY:${target},COMPILE_DEFINITIONS>)
    target_compile_options(${version} PRIVATE $<TARGET_PROPERTY:${target},COMPILE_OPTIONS>)
    target_link_libraries(${version} PRIVATE $<TARGET_PROPERTY:${target},LINK_LIBRARIES>)
    foreach(property IN ITEMS CXX_STANDARD CXX_STANDARD_REQUIRED CXX_EXTENSIONS NO_SYSTEM_FROM_IMPORTED)
      get_target_property(value ${target} ${property})
      if(NOT value MATCHES "-NOTFOUND$")
        set_target_properties(${version} PROPERTIES ${property} "${value}")
      endif()
    endforeach()
    # Options of a source come after all others: the last -march counts.
    set_source_files_properties(${folder}/${stem}.${isa}.cpp PROPERTIES
      COMPILE_OPTIONS "${least};${SPECAGG_FLAGS_${isa}};-fno-lto;$<$<CXX_COMPILER_ID:GNU>:-fno-gnu-unique>")
    set_target_properties(${version} PROPERTIES POSITION_INDEPENDENT_CODE ON INTERPROCEDURAL_OPTIMIZATION OFF
                                                CXX_VISIBILITY_PRESET hidden)
    set(entries "${arg_ENTRY}")
    list(TRANSFORM entries APPEND _${isa})
    set(keep "${arg_ENTRY}")
    list(TRANSFORM keep PREPEND --keep-global-symbol=)
    set(rename "${arg_ENTRY}")
    list(TRANSFORM rename REPLACE "(.+)" "--redefine-sym=\\1=\\1_${isa}")
    list(JOIN entries "," entries)
    set(object ${folder}/${stem}.${isa}.o)
    add_custom_command(
      OUTPUT ${object}
      COMMAND ${ld} -r --force-group-allocation -o ${object} $<TARGET_OBJECTS:${version}>
      COMMAND ${CMAKE_OBJCOPY} ${keep} ${object}
      COMMAND ${CMAKE_OBJCOPY} ${rename} ${object}
      COMMAND ${CMAKE_COMMAND} -DNM=${CMAKE_NM} -DOBJDUMP=${CMAKE_OBJDUMP} -DOBJECT=${object} -DENTRIES=${entries}
              -P ${here}/specaggDispatch.cmake
      DEPENDS ${version} $<TARGET_OBJECTS:${version}> ${here}/specaggDispatch.cmake
      COMMENT "specagg_dispatch: ${stem} for ${isa}" COMMAND_EXPAND_LISTS VERBATIM)
    target_sources(${target} PRIVATE ${object})
    set_source_files_properties(${object} PROPERTIES EXTERNAL_OBJECT ON GENERATED ON)
  endforeach()

  # The dispatcher: @names@, @built@, @what@, @entries@, @conditions@, @choices@ of specaggDispatch.cpp.in.
  list(JOIN isas " " built)
  list(JOIN isas "\", \"" names)
  set(names "\"${names}\"")
  list(JOIN arg_ENTRY ", " what)
  list(GET isas -1 everywhere)
  set(conditions)
  foreach(isa IN LISTS isas)
    set(features ${SPECAGG_FLAGS_${isa}})
    list(FILTER features INCLUDE REGEX "^-m")
    if(features)
      list(TRANSFORM features REPLACE "^-m(.*)" "SUPPORTS(\"\\1\")")
      list(TRANSFORM features REPLACE "SUPPORTS.\"f16c\".*" "f16c()")
      list(JOIN features " && " features)
      string(APPEND conditions "  if (std::strcmp(isa, \"${isa}\") == 0) return ${features};\n")
    endif()
  endforeach()
  set(entries)
  set(choices)
  foreach(entry IN LISTS arg_ENTRY)
    list(TRANSFORM isas PREPEND ${entry}_ OUTPUT_VARIABLE versions)
    list(JOIN versions ", " versions)
    string(APPEND entries "extern \"C\" {\nHIDDEN code ${versions};\n"
      "extern HIDDEN code* specagg_${entry};\ncode* specagg_${entry} = ${entry}_${everywhere};\n}\n"
      "ENTRY(\"${entry}\", \"specagg_${entry}\")\n")
    string(APPEND choices "  code* const ${entry}_versions[] = {${versions}};\n"
      "  specagg_${entry} = ${entry}_versions[chosen];\n")
  endforeach()
  configure_file(${here}/specaggDispatch.cpp.in ${folder}/${stem}.dispatch.cpp @ONLY)
  target_sources(${target} PRIVATE ${folder}/${stem}.dispatch.cpp)
  set_source_files_properties(${folder}/${stem}.dispatch.cpp PROPERTIES
                              COMPILE_OPTIONS -fno-lto SKIP_PRECOMPILE_HEADERS ON)
endfunction()
