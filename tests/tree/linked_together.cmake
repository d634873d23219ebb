# SPDX-License-Identifier: Apache-2.0
# Parts built for different instruction sets, or with other flags that change the code, in one program.
set(SPECAGG_FLAGS_scalar_fma ${SPECAGG_FLAGS_scalar} -mfma)
set(linked_isas ${isas})
if("avx2" IN_LIST isas)
  list(APPEND linked_isas scalar_fma)
endif()
set(fast "-ffast-math -DSPECAGG_ALLOW_FAST_MATH")
list(GET isas -1 built_isa)
set(partly)
set(parts_of_x86)
if("avx2" IN_LIST isas)
  set(built_isa avx2)
  set(partly "-DNDEBUG -mavx512f")
  set(parts_of_x86 -msse4.2 -mavx -mavx2)
endif()
foreach(compiler IN LISTS compilers)
  specagg_tier_of(${compiler} more slow)
  set(objects)
  set(parts)
  foreach(isa IN LISTS linked_isas)
    specagg_compile(isa/${compiler}-${isa}.o ${compiler} ${package}/isa_part.cpp -c -O2
      ${SPECAGG_FLAGS_${isa}} -DPART=part_${isa})
    list(APPEND objects ${tree}/isa/${compiler}-${isa}.o)
    string(APPEND parts " PART(part_${isa})")
  endforeach()
  specagg_compile(isa/${compiler} ${compiler} ${package}/isa_main.cpp -O2 "-DPARTS=${parts}" DEPENDS ${objects})
  string(JOIN ", " linked ${linked_isas})
  add_test(NAME "isa: ${linked} linked together, ${compiler}" COMMAND ${tree}/isa/${compiler})
  # The linker keeps one copy of a function of the plain types, whichever part it is from: so there may be none.
  add_test(NAME "isa: plain data brings no function along, ${compiler}" COMMAND bash -c "
    ! nm -C \"$@\" | grep -E ' [WVu] specagg::(draft|draft_tree|end_tokens|emission|sampling|verdict|tree_\\w+)::'"
    bash ${objects})

  # One instruction set, built otherwise, and what the compiler alone makes more of: the linker would merge functions of
  # one name, so there may be none.
  set(apart)
  foreach(way IN ITEMS "" -DNDEBUG "-DNDEBUG -DSPECAGG_COMPILE_FAST" "${fast}" "-DNDEBUG ${fast}"
      "-DNDEBUG -DSPECAGG_COMPILE_FAST ${fast}" ${partly})
    string(MAKE_C_IDENTIFIER "part${way}" name)
    separate_arguments(flags UNIX_COMMAND "${way}")
    specagg_compile(isa/${compiler}-${name}.o ${compiler} ${package}/isa_part.cpp -c -O1 ${SPECAGG_FLAGS_${built_isa}}
      ${flags} -DPART=part_apart)
    list(APPEND apart ${tree}/isa/${compiler}-${name}.o)
  endforeach()
  foreach(more IN ITEMS "" ${parts_of_x86})
    string(MAKE_C_IDENTIFIER "part_sse2${more}" name)
    specagg_compile(isa/${compiler}-${name}.o ${compiler} ${package}/isa_part.cpp -c -O1 -DNDEBUG ${SPECAGG_FLAGS_sse2}
      ${more} -DPART=part_apart)
    list(APPEND apart ${tree}/isa/${compiler}-${name}.o)
  endforeach()
  add_test(NAME "isa: parts built otherwise share no function, ${compiler}" COMMAND bash -c "
    for object; do nm \"$object\" | grep -oE ' [WVu] _Z[A-Z]*7specagg.*' | sort -u; done >symbols.txt
    echo \"$(wc -l <symbols.txt) functions in $# objects\"
    (( $(wc -l <symbols.txt) > 20 * $# )) && ! sort symbols.txt | uniq -d | grep ." bash ${apart}
    WORKING_DIRECTORY ${tree}/isa)
endforeach()
