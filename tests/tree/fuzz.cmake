# SPDX-License-Identifier: Apache-2.0
# A line "// FUZZ: -max_len=65536" in a source gives libFuzzer options; fuzz/<name>/ holds its seeds.
file(GLOB sources CONFIGURE_DEPENDS fuzz/*.fuzz.cpp)
specagg_tier(slow)
if(SPECAGG_clang++)
  file(WRITE ${tree}/fuzzer.cpp "extern \"C\" int LLVMFuzzerTestOneInput(const char*, unsigned long) { return 0; }\n")
  execute_process(COMMAND ${SPECAGG_clang++} -fsanitize=fuzzer,address,undefined ${tree}/fuzzer.cpp -o ${tree}/fuzzer
    RESULT_VARIABLE no_fuzzer OUTPUT_QUIET ERROR_QUIET)
else()
  set(no_fuzzer TRUE)
endif()
if(no_fuzzer)
  specagg_skip("fuzz" "there is no clang++ with libFuzzer")
  set(sources)
endif()
foreach(source IN LISTS sources)
  cmake_path(GET source STEM name)
  specagg_compile(fuzz/${name} clang++ ${source} -g -O1 -march=native -fsanitize=fuzzer,address,undefined
    -fno-sanitize-recover=all -DSPECAGG_COMPILE_FAST -DFMT_HEADER_ONLY -pthread -I${CMAKE_CURRENT_SOURCE_DIR} ${pcre2}
    -DSPECAGG_MODELS="${PROJECT_SOURCE_DIR}/models")
  file(STRINGS ${source} options REGEX "^// FUZZ: ")
  string(REPLACE "// FUZZ: " "" options "${options}")
  set(seeds)
  if(IS_DIRECTORY ${CMAKE_CURRENT_SOURCE_DIR}/fuzz/${name})
    set(seeds ${CMAKE_CURRENT_SOURCE_DIR}/fuzz/${name})
  endif()
  file(MAKE_DIRECTORY ${tree}/fuzz/${name}.corpus)
  string(JOIN " " options -max_total_time=\${FUZZ_SECONDS:-30} -timeout=20 -rss_limit_mb=4096 -verbosity=0
    -print_final_stats=1 -artifact_prefix=${tree}/fuzz/${name}- ${options} ${tree}/fuzz/${name}.corpus ${seeds})
  add_test(NAME "fuzz: ${name}" COMMAND bash -c "exec ${tree}/fuzz/${name} ${options}")
  set_tests_properties("fuzz: ${name}" PROPERTIES LABELS fuzz TIMEOUT 0 COST 1000)
endforeach()
