# SPDX-License-Identifier: Apache-2.0
# Parts built for different instruction sets, in one program.
set(SPECAGG_FLAGS_scalar_fma ${SPECAGG_FLAGS_scalar} -mfma)
set(linked_isas ${isas})
if("avx2" IN_LIST isas)
  list(APPEND linked_isas scalar_fma)
endif()
foreach(compiler IN LISTS one_or_all)
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
endforeach()
