// SPDX-License-Identifier: Apache-2.0
// specagg._core.plan: closed forms (plan/acceptance.hpp, plan/speedup.hpp, plan/draft_length.hpp).
#include <nanobind/stl/vector.h>

#include <vector>

#include <specagg/plan/acceptance.hpp>
#include <specagg/plan/draft_length.hpp>
#include <specagg/plan/speedup.hpp>

#include "arguments.hpp"
#include "bindings.hpp"

namespace python {
namespace {

namespace plan = specagg::plan;
constexpr double most_drafted = 1e6;
void check(double x, const char* name, double low, double high) {
  if (!(x >= low && x <= high)) refuse(name, ": ", std::to_string(x), " is out of range");
}

// Speedups of decoders, from acceptances.
void bind_speedups(nb::module_& m) {
  m.def(
      "expected_tokens",
      [](double a, std::size_t gamma, bool bonus) {
        check(a, "acceptance", 0, 1);
        check(double(gamma), "gamma", 0, most_drafted);
        return plan::expected_tokens(a, gamma, bonus);
      },
      "acceptance"_a, "gamma"_a, "bonus"_a = true);
  m.def(
      "speedup",
      [](double a, std::size_t gamma, double c, double v, bool law_reads_draft) {
        check(a, "acceptance", 0, 1);
        check(double(gamma), "gamma", 0, most_drafted);
        check(c, "c", 0, specagg::infinity);
        return plan::speculative_speedup(a, gamma, c, v, law_reads_draft);
      },
      "acceptance"_a, "gamma"_a, "c"_a, "v"_a = 1.0, "law_reads_draft"_a = false);
  m.def(
      "naive_cos_speedup",
      [](double a, std::size_t gamma, double c, double v) {
        check(a, "acceptance", 0, 1);
        check(double(gamma), "gamma", 1, most_drafted);
        return plan::naive_cos_speedup(a, gamma, c, v);
      },
      "acceptance"_a, "gamma"_a, "c"_a, "v"_a = 1.0);
  m.def(
      "alternating_cos_speedup",
      [](double a_q, double a_p, std::size_t gamma_q, std::size_t gamma_p, double c, double v_q,
         double v_p) {
        check(a_q, "a_q", 0, 1);
        check(a_p, "a_p", 0, 1);
        check(double(gamma_q), "gamma_q", 1, most_drafted);
        check(double(gamma_p), "gamma_p", 1, most_drafted);
        return plan::rates({a_q, a_p, gamma_q, gamma_p, c, v_q, v_p}).speedup;
      },
      "a_q"_a, "a_p"_a, "gamma_q"_a, "gamma_p"_a, "c"_a, "v_q"_a = 1.0, "v_p"_a = 1.0);
}

// Draft lengths, and what acceptances follow from a distance.
void bind_acceptances(nb::module_& m) {
  m.def(
      "best_gamma",
      [](const std::vector<double>& a, double c, const std::vector<double>& v, double fixed) {
        for (const double x : a) check(x, "acceptances", 0, 1);
        if (!v.empty() && v.size() < a.size() + 1) refuse("v: expected one for each gamma from 0");
        const auto best = plan::best_fixed_draft(
            a, [&](std::size_t g) { return c * double(g) + (v.empty() ? 1.0 : v[g]) + fixed; });
        return nb::make_tuple(best.gamma, best.rate);
      },
      "acceptances"_a, "c"_a, "v"_a = std::vector<double>(), "fixed"_a = 0.0);
  m.def(
      "least_coupled_acceptance",
      [](double tv) {
        check(tv, "distance", 0, 1);
        return plan::least_coupled_acceptance(tv);
      },
      "distance"_a);
  m.def(
      "ensemble_acceptances",
      [](double lambda, double tv) {
        check(lambda, "lambda", 0, 1);
        check(tv, "distance", 0, 1);
        const auto both = plan::ensemble_acceptance(lambda, tv);
        return nb::make_tuple(both.q, both.p);
      },
      "lambda_"_a, "distance"_a);
}

}  // namespace

void bind_plan(nb::module_ m) {
  bind_speedups(m);
  bind_acceptances(m);
}

}  // namespace python
