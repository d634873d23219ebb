# SPDX-License-Identifier: Apache-2.0
# The compiler's message is the expected one, and short. A file compiles as it is, and not with -DSPECAGG_BROKEN.
# "// EXPECT: regex": what the first error must match. "// LATER: regex": what its notes must. "// ERRORS: number": how
# many errors there may be (1 unless it says so).
specagg_must_not_compile("-ffast-math" ${package}/consumer.cpp "specagg: -ffast-math" 1
  -ffast-math -Wfatal-errors)
specagg_must_not_compile("-std=c++17" ${package}/consumer.cpp "specagg: needs C\\+\\+20" 2 -std=c++17)
set(first ${tree}/must_not_compile/decoders.hpp)  # what nearly all of them include
set(first_g++ -include ${first})
file(CONFIGURE OUTPUT ${first} CONTENT "#include <specagg/decoders.hpp>\n")
specagg_tier(more)
specagg_compile(must_not_compile/decoders.hpp.gch g++ ${first} -x c++-header)
specagg_tier("")
file(GLOB sources CONFIGURE_DEPENDS must_not_compile/*.cpp)
foreach(source IN LISTS sources)
  cmake_path(GET source STEM name)
  file(STRINGS ${source} expect REGEX "^// EXPECT: ")
  string(REPLACE "// EXPECT: " "" expect "${expect}")
  file(STRINGS ${source} later REGEX "^// LATER: ")
  string(REPLACE "// LATER: " "" later "${later}")
  file(STRINGS ${source} errors REGEX "^// ERRORS: ")
  string(REPLACE "// ERRORS: " "" errors "${errors}")
  if(NOT errors)
    set(errors 1)
  endif()
  specagg_must_not_compile(${name} ${source} "${expect}${later}" ${errors} -DSPECAGG_BROKEN)
  list(APPEND whole must_not_compile/${name}.cpp)
endforeach()
unset(later)
specagg_together(must_not_compile 30 whole ${whole})
foreach(source IN LISTS whole)
  cmake_path(ABSOLUTE_PATH source)
  cmake_path(GET source STEM name)
  foreach(compiler IN LISTS compilers)
    specagg_tier_of(${compiler} more slow)
    specagg_compile(must_not_compile/${name}.${compiler} ${compiler} ${source} -fsyntax-only
      -I${CMAKE_CURRENT_SOURCE_DIR})
  endforeach()
endforeach()
