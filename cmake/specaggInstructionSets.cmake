# SPDX-License-Identifier: Apache-2.0
# The instruction sets that specagg has code for, best first, and the compiler's flags for each. CMake reads this list,
# and scripts/instruction_sets.py reads it for the scripts. scripts/check-tree compares it with config.hpp and with
# CMakePresets.json. CONTRIBUTING.md says what else a new one needs.
set(SPECAGG_ISAS_x86_64 avx512vnni avx512 avx2 sse2 scalar)
set(SPECAGG_ISAS_aarch64 neon scalar)

set(SPECAGG_FLAGS_avx512vnni -mavx512vnni -mavx512f -mavx512cd -mavx512bw -mavx512dq -mavx512vl -mavx2 -mfma -mf16c)
set(SPECAGG_FLAGS_avx512 -mavx512f -mavx512cd -mavx512bw -mavx512dq -mavx512vl -mavx2 -mfma -mf16c)
set(SPECAGG_FLAGS_avx2 -mavx2 -mfma -mf16c)
set(SPECAGG_FLAGS_sse2)
set(SPECAGG_FLAGS_neon)
set(SPECAGG_FLAGS_scalar -DSPECAGG_SCALAR)
