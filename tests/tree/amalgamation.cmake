# SPDX-License-Identifier: Apache-2.0
# What scripts/amalgamate writes compiles alone, and stands under the exact-law tests.
# In ${one} every header leads to specagg_decoders.hpp or, if that has no such header, to the original: including an
# original that the amalgamation has too would define everything twice.
set(one ${tree}/amalgamation)
list(TRANSFORM headers PREPEND ${PROJECT_SOURCE_DIR}/include/ OUTPUT_VARIABLE originals)
add_custom_command(OUTPUT ${one}/specagg.hpp ${one}/specagg_decoders.hpp VERBATIM
  COMMAND ${PROJECT_SOURCE_DIR}/scripts/amalgamate ${one}
  DEPENDS ${PROJECT_SOURCE_DIR}/scripts/amalgamate ${originals})
foreach(header IN LISTS headers)
  set(leads_to ${PROJECT_SOURCE_DIR}/include/${header})
  if(header MATCHES "^specagg/(config|token|half|specagg|decoders|logit_source|text|kernels|random)\\.hpp$"
     OR header MATCHES "^specagg/(detail|kernel|rows|policy|verify|draft|decode|plan)/")
    set(leads_to specagg_decoders.hpp)
  endif()
  file(CONFIGURE OUTPUT ${one}/${header} CONTENT "#pragma once\n#include <${leads_to}>\n")
endforeach()
foreach(header IN ITEMS specagg specagg_decoders)
  set(twice "#include <${header}.hpp>\n#include <${header}.hpp>\n")
  file(CONFIGURE OUTPUT ${one}/${header}.cpp CONTENT "${twice}")
endforeach()
set(command_before "${command}")
list(REMOVE_ITEM command ${includes})
list(GET isas -1 best_isa)
foreach(compiler IN LISTS compilers)
  foreach(isa IN LISTS isas)
    specagg_tier(slow)
    if("${compiler} ${isa}" STREQUAL "${one_of_them} ${best_isa}")
      specagg_tier(more)
    endif()
    foreach(header IN ITEMS specagg specagg_decoders)
      specagg_compile(amalgamation/${header}-${compiler}-${isa} ${compiler} ${one}/${header}.cpp -I${one} -fsyntax-only
        -fno-exceptions -fno-rtti ${SPECAGG_FLAGS_${isa}} AFTER ${one}/${header}.hpp)
    endforeach()
  endforeach()
endforeach()
set(command "${command_before}")
specagg_tier(slow)
add_executable(test-amalgamation verify/token.test.cpp audit/exact_law.test.cpp ${one}/specagg_decoders.hpp)
target_link_libraries(test-amalgamation PRIVATE specagg_testing)
target_include_directories(test-amalgamation BEFORE PRIVATE ${one})
specagg_left_to(slow test-amalgamation)
add_test(NAME "amalgamation: exact laws" COMMAND test-amalgamation)
