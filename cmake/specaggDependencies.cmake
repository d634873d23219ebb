# SPDX-License-Identifier: Apache-2.0
# What each target needs, found the same way in the source tree and by find_package(specagg).

# xsimd by its header: the CMake target of Debian's package links a library that does not exist.
function(specagg_use_xsimd target)
  find_path(SPECAGG_XSIMD_INCLUDE_DIR xsimd/xsimd.hpp DOC "Where xsimd/xsimd.hpp is")
  mark_as_advanced(SPECAGG_XSIMD_INCLUDE_DIR)
  if(SPECAGG_XSIMD_INCLUDE_DIR)
    target_include_directories(${target} SYSTEM INTERFACE $<BUILD_INTERFACE:${SPECAGG_XSIMD_INCLUDE_DIR}>)
  else()
    message(WARNING "specagg: xsimd/xsimd.hpp was not found: specagg uses vectors of 128 bits at most, which gives "
                    "the same tokens several times slower. Install xsimd, or set SPECAGG_XSIMD_INCLUDE_DIR.")
  endif()
endfunction()

# PCRE2 for byte-level BPE tokenizers. Without it files that have one are refused.
function(specagg_use_pcre2 target)
  find_path(SPECAGG_PCRE2_INCLUDE_DIR pcre2.h DOC "Where pcre2.h is")
  find_library(SPECAGG_PCRE2_LIBRARY pcre2-8 DOC "PCRE2, 8 bits")
  mark_as_advanced(SPECAGG_PCRE2_INCLUDE_DIR SPECAGG_PCRE2_LIBRARY)
  if(SPECAGG_PCRE2_INCLUDE_DIR AND SPECAGG_PCRE2_LIBRARY)
    target_include_directories(${target} SYSTEM INTERFACE $<BUILD_INTERFACE:${SPECAGG_PCRE2_INCLUDE_DIR}>)
    target_compile_definitions(${target} INTERFACE $<BUILD_INTERFACE:SPECAGG_PCRE2>)
    target_link_libraries(${target} INTERFACE $<BUILD_INTERFACE:${SPECAGG_PCRE2_LIBRARY}>)
  endif()
endfunction()

macro(specagg_find_cpu)
  find_package(Eigen3 NO_MODULE QUIET)
  find_package(Threads QUIET)
endmacro()

# libllama where CMake finds an installed one, or where scripts/get-llama-cpp put it. Then the target `llama` exists.
macro(specagg_find_llama_cpp)
  foreach(folder IN ITEMS "$ENV{SPECAGG_MODELS}" "$ENV{XDG_CACHE_HOME}/specagg" "$ENV{HOME}/.cache/specagg")
    if(NOT TARGET llama AND EXISTS "${folder}/llama.cpp/lib/cmake/llama")
      find_package(llama CONFIG QUIET PATHS "${folder}/llama.cpp")
    endif()
  endforeach()
  if(NOT TARGET llama)
    find_package(llama CONFIG QUIET)
  endif()
endmacro()

# The libraries of ExecuTorch's package on PyPI, with the kernels and delegates in it, where CMAKE_PREFIX_PATH names the
# package's folder. It makes targets of its own for CMake 3.28 and newer, and variables for all.
macro(specagg_find_executorch)
  if(NOT TARGET specagg::executorch_runtime)
    find_package(executorch CONFIG QUIET)
    if(EXECUTORCH_RUNTIME_LIBRARY_DIR)
      add_library(specagg::executorch_runtime INTERFACE IMPORTED GLOBAL)
      target_include_directories(specagg::executorch_runtime SYSTEM INTERFACE ${EXECUTORCH_INCLUDE_DIRS})
      target_compile_definitions(specagg::executorch_runtime INTERFACE ${EXECUTORCH_COMPILE_DEFINITIONS})
      target_link_libraries(specagg::executorch_runtime INTERFACE ${EXECUTORCH_LIBRARIES})
      target_link_options(specagg::executorch_runtime INTERFACE "LINKER:-rpath,${EXECUTORCH_RUNTIME_LIBRARY_DIR}")
    endif()
  endif()
endmacro()

# OpenVINO where CMake finds it: its package on PyPI has a folder cmake that CMAKE_PREFIX_PATH or OpenVINO_DIR can name.
macro(specagg_find_openvino)
  find_package(OpenVINO CONFIG QUIET COMPONENTS Runtime)
endmacro()

macro(specagg_find_cuda)
  find_package(CUDAToolkit 12 QUIET)
endmacro()

# gRPC::grpc++ by pkg-config where it can be: gRPC's CMake package wants the protocol buffer compiler's plugins too, and
# ends the configuration without them.
macro(specagg_find_net)
  find_package(Threads QUIET)
  find_package(PkgConfig QUIET)
  if(NOT TARGET gRPC::grpc++ AND PkgConfig_FOUND)
    # One call: pkg_check_modules makes dozens of them, which takes half a minute (gRPC has a hundred parts).
    execute_process(COMMAND ${PKG_CONFIG_EXECUTABLE} --cflags --libs grpc++
      OUTPUT_VARIABLE specagg_grpc RESULT_VARIABLE specagg_no_grpc OUTPUT_STRIP_TRAILING_WHITESPACE ERROR_QUIET)
    if(NOT specagg_no_grpc)
      separate_arguments(specagg_grpc UNIX_COMMAND "${specagg_grpc}")
      add_library(gRPC::grpc++ INTERFACE IMPORTED GLOBAL)
      set(specagg_grpc_libraries ${specagg_grpc})
      list(FILTER specagg_grpc_libraries INCLUDE REGEX "^-(l|L|Wl|pthread)")
      list(FILTER specagg_grpc EXCLUDE REGEX "^-(l|L|Wl)")
      target_link_libraries(gRPC::grpc++ INTERFACE ${specagg_grpc_libraries})
      target_compile_options(gRPC::grpc++ INTERFACE ${specagg_grpc})
    endif()
  endif()
  if(NOT TARGET gRPC::grpc++)
    find_package(gRPC CONFIG QUIET)
  endif()
endmacro()
