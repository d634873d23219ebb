# SPDX-License-Identifier: Apache-2.0
# Three commands run tests; each has what the ones before it lack.
#   make test       one compiler, one instruction set: every law by enumeration, whole texts, tools, two sites
#   make test-more  what guards rarer things, listed here. .ci/run runs it after `make test`
#   make test-all   hours: *.slow.test.cpp, TEST_CASEs tagged [slow], every preset, sanitizers, nvcc, fuzzing
# A line moves a test between the first two. It is a regular expression that matches the path of a test file below
# tests/, the name of a test as ctest prints it, the path of an example, or what specagg_compile makes (below
# build/tests/tree).
set(SPECAGG_MORE
  # the second compiler
  "clang\\+\\+"
  # bits on other instruction sets and numbers of threads (`make test` has "bits: this build" and the texts)
  "^bits[/:] ?(scalar|sse2|neon|avx|products|steps|[0-9])"
  "^isa[/:]"
  "^dispatch:"
  # emulated CUDA
  "^cuda[/:]"
  # packages, and the library as one file
  "^package[/:]"
  "^amalgamation[/:]"
  # documents: README stays; pages begin with a small letter
  "^docs[/:] ?[a-z]"
  # the compiler's messages about misuse, and instruction counts
  "^must_not_compile[/:]"
  "^counts:"
  # scripts that download
  "^get-model:"
  # a thousand connections, and a lack of memory
  "^server: hostile clients"
  # where libllama is: the adapter and its server
  "llama_cpp"
  # the CPU backend's products and layers; whole texts stay
  "^backend/cpu/(activations|draft_head|head_weights|layers|matrix|product|tree_paths)\\."
  "^backend/cpu/llama\\.(shapes|tiny)\\."
  # the loops of its threads
  "^thread_pool\\."
  # every policy held as any other and checked, with every verifier and kind of number
  "^policy/(any_of|checked)\\."
  "^audit/goodness_of_fit\\.bounds\\."
  # what a draft head is trained on
  "^cli/features\\."
  "^tools/features$"
  # what a clean clone has no model for, and the script that checks the tree against each mistake
  "SmolLM2:"
  "^tree: each mistake"
  # all examples but the first, embed
  "^examples/[a-df-z][a-z_]*\\.cpp$"
  "^example: [a-df-z]"
  # long simulations and sweeps
  "^audit: many rounds through the production streams"
  "^audit: simulated samplers at the detectable distance"
  "^cli: at temperature 0 drafts of lookup and counts change none of 20 texts"
  "^cli: every option of every command has an effect"
  "^cli: plan prints numbers or refuses"
  "^cli: plan schedulers: on the protocol ours are not slower"
  "^plan: of two drafters it takes the one that is worth more")

# Sets `result` to whether `make test` leaves `name` to `make test-more`. Presets that test one compiler or instruction
# set, and `make test-all`, leave nothing out.
function(specagg_left_to_more name result)
  set(${result} FALSE PARENT_SCOPE)
  if(SPECAGG_TEST_TREE STREQUAL "ON" OR SPECAGG_TEST_TREE STREQUAL "MORE")
    foreach(regex IN LISTS SPECAGG_MORE)
      if(name MATCHES "${regex}")
        set(${result} TRUE PARENT_SCOPE)
        return()
      endif()
    endforeach()
  endif()
endfunction()

# Gives a test that `make test` leaves out the label more. What it runs may not have been built: a plain `ctest` then
# says that it is disabled.
function(specagg_label_more test)
  specagg_left_to_more("${test}" to_more)
  if(to_more)
    set_property(TEST "${test}" APPEND PROPERTY LABELS more)
    if(SPECAGG_TEST_TREE STREQUAL "ON")
      set_tests_properties("${test}" PROPERTIES DISABLED TRUE)
    endif()
  endif()
endfunction()
