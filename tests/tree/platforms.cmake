# SPDX-License-Identifier: Apache-2.0
# Other systems: what compiles for them, and prints the recorded bits where an emulator runs it.
specagg_tier(slow)
find_program(SPECAGG_wine NAMES wine64 wine PATHS /usr/lib/wine)
find_program(SPECAGG_qemu_riscv64 qemu-riscv64)
mark_as_advanced(SPECAGG_wine SPECAGG_qemu_riscv64)
set(platforms ${PROJECT_BINARY_DIR}/platforms)  # what scripts/bootstrap test-all installs
set(emulator_x86_64-windows-gnu ${SPECAGG_wine})
set(emulator_riscv64-linux-musl ${SPECAGG_qemu_riscv64})
set(emulator_wasm32-wasi ${platforms}/venv/bin/python ${CMAKE_CURRENT_SOURCE_DIR}/tree/wasi.py)
function(specagg_platform name)  # what platform.sh is given follows
  add_test(NAME "platforms: ${name}" COMMAND ${CMAKE_CURRENT_SOURCE_DIR}/tree/platform.sh ${platforms} ${ARGN})
  set_tests_properties("platforms: ${name}" PROPERTIES SKIP_REGULAR_EXPRESSION "^skipped:" TIMEOUT 3600)
endfunction()
foreach(target IN ITEMS aarch64-macos x86_64-macos x86_64-windows-gnu aarch64-windows-gnu wasm32-wasi
                        riscv64-linux-musl)
  specagg_platform("${target} compiles" ${target} compile)
endforeach()
foreach(target IN ITEMS x86_64-windows-gnu wasm32-wasi riscv64-linux-musl)
  if(emulator_${target})
    specagg_platform("${target} has the recorded bits" ${target} ${emulator_${target}})
  else()
    specagg_skip("platforms: ${target} has the recorded bits" "there is no wine, or no qemu-riscv64")
  endif()
endforeach()
