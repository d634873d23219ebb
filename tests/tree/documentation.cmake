# SPDX-License-Identifier: Apache-2.0
# Every ```cpp block of README.md and docs/ compiles after #include <specagg/decoders.hpp>
# and runs under AddressSanitizer and UBSan: by its own main(), or by that of docs/<page>-<number>.cpp. A block that
# begins with `// examples/NAME.cpp` is a part of that program (scripts/check-tree), which is compiled and run itself.
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
    if(block MATCHES "^\n```cpp\n// examples/")
      continue()
    endif()
    string(REGEX REPLACE "\n```cpp\n([^`]*)\n```" "\\1" code "${block}")
    string(REPLACE "<semicolon>" ";" code "${code}")
    file(CONFIGURE OUTPUT ${tree}/docs/${name}-${number}.cpp CONTENT "#include <specagg/decoders.hpp>\n@code@\n" @ONLY)
    foreach(compiler IN LISTS compilers)
      specagg_tier_of(${compiler} more slow)
      if("${compiler} ${name}" STREQUAL "${one_of_them} README")
        specagg_tier("")
      endif()
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
    specagg_tier(slow)
    if("${name}-${number}" STREQUAL "engine-1")
      specagg_tier(more)
    endif()
    specagg_compile(docs/${name}-${number} ${one_of_them} ${source} ${before} -g1 -O1 -march=native -pthread
      -fsanitize=address,undefined -fno-sanitize-recover=all -DSPECAGG_COMPILE_FAST -DFMT_HEADER_ONLY ${pcre2}
      -DSPECAGG_SOURCE_DIR="${PROJECT_SOURCE_DIR}" AFTER ${tree}/docs/${name}-${number}.cpp)
    add_test(NAME "docs: ${name}, block ${number}, runs" COMMAND ${tree}/docs/${name}-${number}
      WORKING_DIRECTORY ${tree}/docs)
  endforeach()
endforeach()

specagg_tier("")
add_test(NAME "docs: README's program and its policies"
  COMMAND ${CMAKE_CURRENT_SOURCE_DIR}/examples/readme.py ${tree}/docs/readme ${CMAKE_CXX_COMPILER} ${externals})
specagg_tier(more)
add_test(NAME "docs: papers: each symbol is in its header"
  COMMAND ${CMAKE_CURRENT_SOURCE_DIR}/examples/papers.py ${tree}/docs/papers ${CMAKE_CXX_COMPILER} ${externals})
if(TARGET specagg_cli)
  add_test(NAME "docs: the commands of command-line.md run, and defaults are as pages say"
    COMMAND ${CMAKE_CURRENT_SOURCE_DIR}/examples/command_line.py $<TARGET_FILE:specagg_cli>)
endif()
