# SPDX-License-Identifier: Apache-2.0
# A build that is slow says so, under -Werror too, and can be silenced.
foreach(compiler IN LISTS compilers)
  specagg_tier_of(${compiler} "" more)
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
