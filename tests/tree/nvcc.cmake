# SPDX-License-Identifier: Apache-2.0
# Kernels by nvcc; what the emulator's tests find. (tests/cuda has the emulated kernels.)
find_program(SPECAGG_nvcc nvcc PATHS /usr/local/cuda/bin)
mark_as_advanced(SPECAGG_nvcc)
set(nvcc ${SPECAGG_nvcc} -ccbin ${CMAKE_CXX_COMPILER} -std=c++20 --expt-relaxed-constexpr -Werror all-warnings
  -I${PROJECT_SOURCE_DIR}/include -I${CMAKE_CURRENT_SOURCE_DIR})
set(no_code -Xcompiler -fsyntax-only)
if(SPECAGG_nvcc)
  execute_process(COMMAND ${SPECAGG_nvcc} --help OUTPUT_VARIABLE help)
  if(help MATCHES "-fdevice-syntax-only")  # older ones make the device's code
    list(APPEND no_code -fdevice-syntax-only)
  endif()
endif()
# A source of the checks on a GPU, as far as nvcc and the host's compiler understand it: no code is made, which takes a
# quarter of the time. scripts/gpu-check --kit makes the code.
function(specagg_nvcc_understands source)  # and flags
  string(JOIN " " name "cuda: nvcc understands ${source}" ${ARGN})
  if(NOT SPECAGG_nvcc)
    specagg_skip("${name}" "there is no nvcc")
    return()
  endif()
  add_test(NAME "${name}" COMMAND ${nvcc} -arch=sm_90 ${no_code} -x cu
    -c ${PROJECT_SOURCE_DIR}/${source} -o ${tree}/cuda/none.o ${ARGN} -DEIGEN_NO_CUDA "-DSPECAGG_MODELS=\"none\""
    -isystem $<TARGET_PROPERTY:Eigen3::Eigen,INTERFACE_INCLUDE_DIRECTORIES>)
endfunction()
specagg_tier(more)
specagg_nvcc_understands(tests/cuda/llama.test.cpp)  # the CPU backend
specagg_nvcc_understands(tests/cuda/verify.match.test.cpp -DPART=1)  # policies of the catalogue
if(SPECAGG_nvcc)  # its host code has other vectors than g++'s, and so another name
  file(CONFIGURE OUTPUT ${tree}/isa/name.cu
    CONTENT "#include <specagg/config.hpp>\nname: SPECAGG_STRING(SPECAGG_BUILD_)\n")
  add_test(NAME "isa: nvcc's functions have names of their own" COMMAND ${nvcc} -E ${tree}/isa/name.cu)
  set_tests_properties("isa: nvcc's functions have names of their own" PROPERTIES
    PASS_REGULAR_EXPRESSION "name: \"scalar_cuda\"")
endif()
# A kernel has the registers and the code that docs/cuda-kernels.txt says.
function(specagg_kernel number)
  set(name "cuda: nvcc gives kernel ${number} what docs/cuda-kernels.txt says")
  add_test(NAME ${name} COMMAND ${PROJECT_SOURCE_DIR}/scripts/cuda-kernels --check ${number})
  set_tests_properties(${name} PROPERTIES
    ENVIRONMENT "NVCC=${SPECAGG_nvcc}" SKIP_REGULAR_EXPRESSION "it cannot be compared")
endfunction()
if(SPECAGG_nvcc)
  specagg_kernel(0)  # a few seconds each
  specagg_kernel(2)
  specagg_kernel(3)
  specagg_kernel(17)
  specagg_kernel(4)  # a minute
endif()
specagg_tier(slow)
specagg_nvcc_understands(tests/cuda/ragged.test.cpp -DEVERY_KERNEL)
specagg_nvcc_understands(tests/cuda/sharded.test.cpp)  # as the kit has it
specagg_nvcc_understands(tests/cuda/sharded.test.cpp -DEVERY_KERNEL)
specagg_nvcc_understands(tests/cuda/tree.test.cpp -DEVERY_KERNEL)
if(SPECAGG_nvcc)
  foreach(verifier IN ITEMS token block match coupled)
    foreach(part RANGE 5)
      specagg_nvcc_understands(benchmarks/cuda/policies.cu -DVERIFIER=${verifier} -DPART=${part})
      if(NOT "${verifier} ${part}" STREQUAL "match 1")
        specagg_nvcc_understands(tests/cuda/verify.${verifier}.test.cpp -DPART=${part})
      endif()
    endforeach()
  endforeach()
  function(specagg_nvcc output source)  # as specagg_compile
    add_custom_command(
      OUTPUT ${tree}/${output} COMMAND ${nvcc} ${ARGN} ${source} -o ${tree}/${output} -MD -MF ${tree}/${output}.d
      DEPENDS ${source} DEPFILE ${tree}/${output}.d COMMENT "nvcc: ${output}" VERBATIM)
    set_property(GLOBAL APPEND PROPERTY specagg_treeslow ${tree}/${output})
  endfunction()
  file(MAKE_DIRECTORY ${tree}/cuda)
  specagg_nvcc(cuda/verify.o ${CMAKE_CURRENT_SOURCE_DIR}/cuda/verify.test.cpp -x cu -arch=sm_90 -c -DEVERY_KERNEL)
  foreach(arch IN ITEMS 80 90)
    specagg_nvcc(cuda/kernels-sm_${arch}.o ${CMAKE_CURRENT_SOURCE_DIR}/cuda/kernels.cu -arch=sm_${arch} -c
      -Xcompiler=-Wall,-Wextra)
  endforeach()
  file(READ ${PROJECT_SOURCE_DIR}/docs/cuda.md text)
  set(block "\n```cuda\n([^`]*)\n```.*")
  string(REGEX REPLACE ".*${block}${block}" "\\1\n\\2" code "${text}")
  file(CONFIGURE OUTPUT ${tree}/docs/cuda.cu CONTENT "@code@\n" @ONLY)
  specagg_nvcc(docs/cuda.o ${tree}/docs/cuda.cu -arch=sm_90 -c)
  # device_policy.cu compiles as it is, and with none of its mistakes; nor does it with flags that change the bits.
  set(broken ${CMAKE_CURRENT_SOURCE_DIR}/must_not_compile/device_policy.cu)
  specagg_nvcc(cuda/device_policy.ptx ${broken} -arch=compute_90 -ptx)
  file(STRINGS ${broken} mistakes REGEX "^// EXPECT [0-9]+: ")
  foreach(mistake IN LISTS mistakes)
    string(REGEX MATCH "^// EXPECT ([0-9]+): (.*)" mistake "${mistake}")
    set(expect "${CMAKE_MATCH_2}")
    add_test(NAME "must_not_compile: device_policy, mistake ${CMAKE_MATCH_1}, nvcc"
      COMMAND ${nvcc} -DSPECAGG_BROKEN=${CMAKE_MATCH_1} -arch=compute_90 -ptx ${broken} -o ${tree}/cuda/broken.ptx)
    set_tests_properties("must_not_compile: device_policy, mistake ${CMAKE_MATCH_1}, nvcc" PROPERTIES
      PASS_REGULAR_EXPRESSION "${expect}")
  endforeach()
  foreach(flag IN ITEMS -use_fast_math -ftz=true -prec-sqrt=false)
    add_test(NAME "must_not_compile: ${flag}, nvcc"
      COMMAND ${nvcc} ${flag} -arch=sm_90 -cubin ${broken} -o ${tree}/cuda/broken.cubin)
    set_tests_properties("must_not_compile: ${flag}, nvcc" PROPERTIES
      PASS_REGULAR_EXPRESSION "Unresolved extern function 'specagg_needs_nvcc_without_use_fast_math_ftz_prec_sqrt'")
  endforeach()
  specagg_consumer("find_package COMPONENTS cuda" -DCOMPONENTS=cuda -DCMAKE_CUDA_ARCHITECTURES=90
    -DCMAKE_CUDA_COMPILER=${SPECAGG_nvcc})
else()
  specagg_skip("cuda: nvcc" "there is no nvcc")
endif()
specagg_tier(more)
add_test(NAME "cuda: scripts/gpu-check builds, goes dry and runs, with a compiler and a GPU that are stubs"
  COMMAND ${CMAKE_CURRENT_SOURCE_DIR}/cuda/gpu_check.py)
add_test(NAME "cuda: vLLM's kernels are timed without a copy where vLLM makes none"
  COMMAND ${CMAKE_CURRENT_SOURCE_DIR}/cuda/rivals.py)
set_tests_properties("cuda: vLLM's kernels are timed without a copy where vLLM makes none" PROPERTIES
  SKIP_REGULAR_EXPRESSION "^skipped:")
specagg_tier(slow)
if(TARGET specagg_cuda_emulator)
  add_test(NAME "cuda: mistakes in the headers are found by the emulator's tests"
    COMMAND ${CMAKE_CURRENT_SOURCE_DIR}/cuda/mutants.py ${CMAKE_BINARY_DIR}/cuda-mutants
            "$<TARGET_FILE:specagg_testing>,$<TARGET_FILE:specagg_cuda_emulator>,-lboost_context,-lpthread"
            ${CMAKE_CXX_COMPILER} -std=c++20 -O1 -DSPECAGG_ALLOW_SLOW -DSPECAGG_COMPILE_FAST -Wno-unknown-pragmas
            -fsanitize=alignment -I${CMAKE_CURRENT_SOURCE_DIR}/cuda/emulator -I${CMAKE_CURRENT_SOURCE_DIR})
  set_tests_properties("cuda: mistakes in the headers are found by the emulator's tests" PROPERTIES
    COST 1000 TIMEOUT 3600)
  file(GLOB sources CONFIGURE_DEPENDS RELATIVE ${PROJECT_SOURCE_DIR}/include
    ${PROJECT_SOURCE_DIR}/include/specagg/backend/cuda/*.hpp)
  foreach(header IN LISTS sources)
    file(CONFIGURE OUTPUT ${tree}/headers/${header}.cpp CONTENT "#include <${header}>\n#include <${header}>\n")
    foreach(compiler IN LISTS compilers)
      specagg_compile(headers/${header}.${compiler} ${compiler} ${tree}/headers/${header}.cpp -fsyntax-only
        -DSPECAGG_SCALAR -Wno-unknown-pragmas -I${CMAKE_CURRENT_SOURCE_DIR}/cuda/emulator)
    endforeach()
  endforeach()
endif()
