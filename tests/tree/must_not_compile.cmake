# SPDX-License-Identifier: Apache-2.0
# The compiler's message is the expected one.
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
