# SPDX-License-Identifier: Apache-2.0
# Parts built for different instruction sets, or with other flags that change the code, in one program.
set(SPECAGG_FLAGS_scalar_fma ${SPECAGG_FLAGS_scalar} -mfma)
set(linked_isas ${isas})
if("avx2" IN_LIST isas)
  list(APPEND linked_isas scalar_fma)
endif()
set(fast "-ffast-math -DSPECAGG_ALLOW_FAST_MATH")
list(GET isas -1 built_isa)
set(parts_of_x86 FALSE)
if("avx2" IN_LIST isas)
  set(built_isa avx2)
  set(parts_of_x86 TRUE)
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
  # one name, so there may be none. -O0: nothing is inlined, so there are most functions.
  set(apart)
  macro(specagg_apart isa)  # the flags follow
    string(MAKE_C_IDENTIFIER "part_${isa} ${ARGN}" name)
    string(REPLACE ";" " " flags "${ARGN}")  # a flag may be several words
    separate_arguments(flags UNIX_COMMAND "${flags}")
    specagg_compile(isa/${compiler}-${name}.o ${compiler} ${package}/isa_part.cpp -c -O0 ${SPECAGG_FLAGS_${isa}}
      ${flags} -DPART=part_apart)
    list(APPEND apart ${tree}/isa/${compiler}-${name}.o)
  endmacro()
  macro(specagg_share_nothing what)
    add_test(NAME "isa: ${what} share no function, ${compiler}" COMMAND bash -c "
      symbols=$(for object; do nm \"$object\" | grep -oE ' [WVu] _Z[A-Z]*7specagg.*' | sort -u; done)
      echo \"$(wc -l <<<\"$symbols\") functions in $# objects\"
      (( $(wc -l <<<\"$symbols\") > 20 * $# )) && ! sort <<<\"$symbols\" | uniq -d | grep ." bash ${apart}
      WORKING_DIRECTORY ${tree}/isa)
  endmacro()
  specagg_apart(${built_isa})
  specagg_apart(${built_isa} -DNDEBUG -DSPECAGG_COMPILE_FAST)
  specagg_apart(${built_isa} -DNDEBUG ${fast})
  if(parts_of_x86)
    specagg_apart(sse2 -DNDEBUG)
    specagg_apart(sse2 -DNDEBUG -mavx2)
  endif()
  specagg_share_nothing("parts built otherwise")
  specagg_tier(slow)
  specagg_apart(${built_isa} -DNDEBUG)
  specagg_apart(${built_isa} ${fast})
  specagg_apart(${built_isa} -DNDEBUG -DSPECAGG_COMPILE_FAST ${fast})
  if(parts_of_x86)
    specagg_apart(${built_isa} -DNDEBUG -mavx512f)
    specagg_apart(sse2 -DNDEBUG -msse4.2)
    specagg_apart(sse2 -DNDEBUG -mavx)
  endif()
  specagg_share_nothing("parts built in every other way")
endforeach()
