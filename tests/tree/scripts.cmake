# SPDX-License-Identifier: Apache-2.0
# The repository's own scripts.
add_test(NAME "tree: includes, names, licences" COMMAND ${PROJECT_SOURCE_DIR}/scripts/check-tree)
specagg_tier(more)
add_test(NAME "tree: each mistake that is put in is found" COMMAND ${CMAKE_CURRENT_SOURCE_DIR}/examples/check_tree.py)
add_test(NAME "site: an entry for every public name, and each mistake that is put in is found"
  COMMAND ${CMAKE_CURRENT_SOURCE_DIR}/examples/site.py)
set_tests_properties("site: an entry for every public name, and each mistake that is put in is found" PROPERTIES
  SKIP_REGULAR_EXPRESSION "^skipped:")

add_test(NAME "get-model: damage, interruptions, a full disk, two at once"
  COMMAND ${CMAKE_CURRENT_SOURCE_DIR}/examples/get_model.py)
set_tests_properties("get-model: damage, interruptions, a full disk, two at once" PROPERTIES
  SKIP_REGULAR_EXPRESSION "^skipped:")

specagg_tier("")
add_test(NAME "get-llama-cpp: a processor's instruction sets without AMX, and another processor"
  COMMAND ${CMAKE_CURRENT_SOURCE_DIR}/examples/get_llama_cpp.py)

add_test(NAME "experiments: every claim has its measure, part and plot, and is judged as claims.json says"
  COMMAND ${CMAKE_CURRENT_SOURCE_DIR}/examples/claims.py)
specagg_tier(more)
add_test(NAME "docs: pages of measurements are what their scripts write, each of one run"
  COMMAND ${CMAKE_CURRENT_SOURCE_DIR}/examples/measured_pages.py)
add_test(NAME "acceptance: its page is what its scripts write, and the logistic that it compares with is vLLM's"
  COMMAND ${CMAKE_CURRENT_SOURCE_DIR}/examples/estimators.py)
add_test(NAME "bench: a part that fails ends no other part, and writes no page of docs"
  COMMAND ${CMAKE_CURRENT_SOURCE_DIR}/examples/bench.py)
specagg_tier("")
add_test(NAME "experiments: documents are made of manual pages, text and HTML"
  COMMAND ${CMAKE_CURRENT_SOURCE_DIR}/examples/documents.py)
add_test(NAME "frontier: a quick run agrees if its program is right, and says what is not"
  COMMAND ${CMAKE_CURRENT_SOURCE_DIR}/examples/frontier_quick.py)
set(name "frontier: a draft is its model but for what was rounded or left out")
add_test(NAME ${name} COMMAND ${CMAKE_CURRENT_SOURCE_DIR}/examples/frontier_drafts.py)
set_tests_properties(${name} PROPERTIES SKIP_REGULAR_EXPRESSION "^skipped:")
specagg_tier(slow)
if(TARGET specagg_cli)
  add_test(NAME "explorer: three walks in Chromium, laws of the command line, recorded bits"
    COMMAND ${PROJECT_SOURCE_DIR}/tools/explorer/check --bits --cli $<TARGET_FILE:specagg_cli>)
  set_tests_properties("explorer: three walks in Chromium, laws of the command line, recorded bits" PROPERTIES
    SKIP_REGULAR_EXPRESSION "^skipped:" TIMEOUT 1800)
endif()
if(TARGET bench-kernels)  # 1 GB of logits
  set(name "bench: Eigen's sum of floats is timed where the largest cache has 480 MB")
  add_test(NAME ${name} COMMAND bench-kernels --benchmark_filter=Eigen/memory --benchmark_min_time=0.001)
  set_tests_properties(${name} PROPERTIES ENVIRONMENT SPECAGG_BENCH_CACHE_MB=480
    FAIL_REGULAR_EXPRESSION "not timed" PASS_REGULAR_EXPRESSION "Eigen/memory/268435456 ")
endif()
if(TARGET specagg-experiments)
  add_test(NAME "experiments: quick, killed half-way and started again"
    COMMAND ${CMAKE_CURRENT_SOURCE_DIR}/examples/resume.py $<TARGET_FILE:specagg-experiments>
            ${CMAKE_BINARY_DIR}/experiments-test)
  set_tests_properties("experiments: quick, killed half-way and started again" PROPERTIES COST 500)
endif()
