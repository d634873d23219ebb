// SPDX-License-Identifier: Apache-2.0
// EXPECT: nodiscard.*goodness_of_fit.*nodiscard.*coupled_acceptance.*nodiscard.*open
// ERRORS: 3
#include <specagg/audit/coupled_law.hpp>
#include <specagg/audit/goodness_of_fit.hpp>
#include <specagg/backend/cpu/gguf.hpp>

#pragma GCC diagnostic error "-Wunused-result"

using namespace specagg;

void audit(std::span<const double> counts, std::span<const double> law);
void audit(std::span<const double> counts, std::span<const double> law) {
#ifdef SPECAGG_BROKEN
  goodness_of_fit(counts, law, usual_false_alarm);
  coupled_acceptance(law, law);
  cpu::gguf_file::open("file.gguf");
#else
  (void)goodness_of_fit(counts, law, usual_false_alarm);
  (void)coupled_acceptance(law, law);
  (void)cpu::gguf_file::open("file.gguf");
#endif
}
