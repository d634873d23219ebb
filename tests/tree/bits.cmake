# SPDX-License-Identifier: Apache-2.0
# The same bits from each instruction set and compiler, with and without contraction, and from libc++.
foreach(isa IN LISTS isas)
  foreach(compiler IN LISTS compilers)
    foreach(contract IN ITEMS fast off)
      if(contract STREQUAL off AND NOT isa STREQUAL avx2)
        continue()  # -ffp-contract matters where there is a fused multiply-add to contract to; one such is enough
      endif()
      list(GET compilers -1 second)
      set(most_telling "scalar ${one_of_them} fast" "avx2 ${second} fast")
      specagg_tier(slow)
      if("${isa} ${compiler} ${contract}" IN_LIST most_telling)
        specagg_tier(more)
      endif()
      set(contracts)
      if(compiler STREQUAL g++)
        set(contracts -fexpensive-optimizations)  # without it g++ contracts nothing at -O1
      endif()
      set(variant ${isa}-${compiler}-contract-${contract})
      specagg_compile(bits/${variant} ${compiler} ${CMAKE_CURRENT_SOURCE_DIR}/bits/bits.cpp
        -O1 ${contracts} ${SPECAGG_FLAGS_${isa}} -ffp-contract=${contract})
      specagg_expect_bits("bits: ${variant}" expected.txt ${tree}/bits/${variant})
    endforeach()
  endforeach()
endforeach()

# LLVM's standard library, where it is installed
specagg_tier(slow)
set(no_libcxx TRUE)
if(SPECAGG_clang++)
  file(WRITE ${tree}/libc++.cpp "#include <version>\n#if !defined(_LIBCPP_VERSION)\n#error\n#endif\nint main() {}\n")
  execute_process(COMMAND ${SPECAGG_clang++} -std=c++20 -stdlib=libc++ ${tree}/libc++.cpp -o ${tree}/libc++
    RESULT_VARIABLE no_libcxx OUTPUT_QUIET ERROR_QUIET)
endif()
if(NOT no_libcxx)
  specagg_compile(bits/libc++ clang++ ${CMAKE_CURRENT_SOURCE_DIR}/bits/bits.cpp -O1
    ${SPECAGG_FLAGS_avx2} -stdlib=libc++)
  specagg_expect_bits("bits: libc++" expected.txt ${tree}/bits/libc++)
else()
  specagg_skip("bits: libc++" "there is no clang++ with libc++")
endif()

# Products of quantised weights, which have a kernel for each machine.
foreach(isa IN LISTS product_isas)
  foreach(compiler IN LISTS compilers)
    specagg_tier_of(${compiler} more slow)
    specagg_compile(bits/products-${isa}-${compiler} ${compiler} ${CMAKE_CURRENT_SOURCE_DIR}/bits/products.cpp
      -O1 ${SPECAGG_FLAGS_${isa}} -pthread)
    specagg_expect_bits("bits: products, ${isa}, ${compiler}" products.expected.txt
      ${tree}/bits/products-${isa}-${compiler})
  endforeach()
endforeach()

# Whole texts with the models, and 10^5 verification steps on 1, 2 and 4 threads: each instruction set once.
foreach(isa IN LISTS isas)
  specagg_tier(slow)
  set(tier_of_texts slow)
  if(isa STREQUAL avx2 OR isa STREQUAL neon)
    specagg_tier(more)
    set(tier_of_texts "")  # one
  endif()
  specagg_compile(bits/steps-${isa} ${one_of_them} ${CMAKE_CURRENT_SOURCE_DIR}/bits/steps.cpp
    -O2 ${SPECAGG_FLAGS_${isa}} -pthread)
  set(threads 1)
  if(isa STREQUAL avx2 OR isa STREQUAL neon)
    set(threads 1 2 4)
  endif()
  foreach(n IN LISTS threads)
    specagg_expect_bits("bits: 100,000 steps, ${isa}, ${n} threads" steps.expected.txt ${tree}/bits/steps-${isa} ${n})
  endforeach()
  specagg_tier("${tier_of_texts}")
  specagg_compile(bits/texts-${isa} ${one_of_them} ${CMAKE_CURRENT_SOURCE_DIR}/bits/texts.cpp
    -O2 ${SPECAGG_FLAGS_${isa}} -pthread -DSPECAGG_MODELS="${PROJECT_SOURCE_DIR}/models")
  specagg_expect_bits("bits: texts, ${isa}" texts.expected.txt ${tree}/bits/texts-${isa})
endforeach()
