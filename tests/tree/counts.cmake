# SPDX-License-Identifier: Apache-2.0
# Instructions of each kernel, against counts/recorded.json.
foreach(compiler IN LISTS compilers)
  foreach(isa IN ITEMS avx512 avx2 scalar)
    set(counter ${PROJECT_SOURCE_DIR}/scripts/count-instructions ${SPECAGG_${compiler}} ${isa} ${externals})
    specagg_tier(slow)
    if("${isa} ${compiler}" STREQUAL "avx2 ${one_of_them}")
      specagg_tier(more)
    endif()
    add_test(NAME "counts: ${isa}, ${compiler}" COMMAND ${counter})
    set_tests_properties("counts: ${isa}, ${compiler}" PROPERTIES
      LABELS counts SKIP_REGULAR_EXPRESSION "^skipped:")
  endforeach()
endforeach()
specagg_tier(slow)
set(counter ${PROJECT_SOURCE_DIR}/scripts/count-instructions g++ avx2 ${externals})
add_test(NAME "counts: 4 % more are found" COMMAND bash -c "output=$(\"$@\" 2>&1); status=$?; echo \"$output\"
  [[ $output = skipped* ]] || [[ $status = 1 && $output =~ avx2,\\ log_sum_exp:.*TOO\\ MANY.*total_variation ]]"
  bash ${counter} -DSPECAGG_BROKEN)
set_tests_properties("counts: 4 % more are found" PROPERTIES LABELS counts SKIP_REGULAR_EXPRESSION "^skipped:")
