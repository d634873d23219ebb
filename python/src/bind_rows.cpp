// SPDX-License-Identifier: Apache-2.0
// specagg._core: draws from rows, laws of two rows, and what tests of laws say.
#include <nanobind/stl/vector.h>

#include <span>
#include <vector>

#include <specagg/audit/goodness_of_fit.hpp>

#include "arguments.hpp"
#include "bindings.hpp"

namespace python {
namespace {

using numbers = nb::ndarray<const double, nb::ndim<1>, nb::c_contig, nb::device::cpu>;

void bind_draw(nb::module_& m) {
  m.def(
      "draw",
      [](nb::handle rows, bool logits, const sampling& how, const edit_arguments& edit,
         nb::handle seeds, nb::handle requests, nb::handle positions, std::uint32_t step,
         bool coupled) {
        const array a = array_of(rows, "rows");
        if (a.ndim() != 1 && a.ndim() != 2)
          refuse("rows: ", a.shape_text(), ", where [V] or [B, V] is expected");
        const std::size_t B = a.ndim() == 2 ? a.shape(0) : 1, V = a.shape(a.ndim() - 1);
        if (V == 0 || V > 0x7fffffff) refuse("rows: have no numbers, or too many");
        const engine::row_kind kind = kind_of(a, logits);
        check_row(a, V);
        const engine::rows all{kind, a.data(), a.ndim() == 2 ? a.stride(0) : 0, B};
        warn_of_probabilities("rows", all, V);
        const streams numbers(seeds, requests, positions, B);
        const samplings sampled(how, B);
        const edits edited(edit, B, V);
        std::vector<engine::edits> edit_of(B);
        for (std::size_t i = 0; i < B; ++i) edit_of[i] = edited.of(i, 1, step);
        auto* tokens = new std::vector<token_id>(B);
        nb::capsule owner(tokens,
                          [](void* x) noexcept { delete static_cast<std::vector<token_id>*>(x); });
        const std::size_t part = specagg::verify_scratch(V);
        std::vector<double> scratch(B * part);
        {
          nb::gil_scoped_release released;
          shared_workers().for_each(B, [&](std::size_t i) {
            engine::draw d;
            d.vocabulary = V;
            d.q = {kind, all.data + std::ptrdiff_t(i) * all.stride, 0, 1, sampled[i]};
            d.edits = edit_of[i];
            d.seed = numbers.seed[i];
            d.id = numbers.id(i);
            d.start = numbers.position[i];
            d.step = step;
            d.coupled = coupled;
            d.scratch = std::span(scratch).subspan(i * part, part);
            (*tokens)[i] = specagg_engine_draw(&d);
          });
        }
        return nb::ndarray<nb::numpy, token_id, nb::ndim<1>>(tokens->data(), {B}, owner);
      },
      "rows"_a.none(), "logits"_a, "sampling"_a, "edits"_a, "seeds"_a, "requests"_a.none(),
      "positions"_a, "step"_a, "coupled"_a);
}

void bind_law(nb::module_& m) {
  // (status, acceptance, TV(pi, p), TV(q, p), KL(pi || p)); pi is written if it is given.
  m.def("law", [](const policy& p, const numbers& q_row, const numbers& p_row, bool logits,
                  double temperature, std::int64_t top_k, double top_p, double min_p, int order,
                  nb::ndarray<double, nb::ndim<1>, nb::c_contig, nb::device::cpu> pi) {
    const std::size_t V = p_row.shape(0);
    if (q_row.shape(0) != V || pi.shape(0) != V) refuse("q, p: rows of different sizes");
    const auto rows = [&](const numbers& x) {
      return engine::rows{
          logits ? engine::row_kind::logits_f64 : engine::row_kind::probabilities_f64,
          reinterpret_cast<const std::byte*>(x.data()), 0, 1,
          sampling_of(temperature, top_k, top_p, min_p, order)};
    };
    const engine::pair both{V, rows(q_row), rows(p_row), specagg::no_token, p.chosen};
    warn_of_probabilities("q", both.q, V);
    warn_of_probabilities("p", both.p, V);
    engine::pair_numbers found;
    specagg::status why;
    {
      nb::gil_scoped_release released;
      why = specagg_engine_law(&both, pi.data(), &found);
    }
    return nb::make_tuple(int(why), found.acceptance, found.distance_to_target, found.distance,
                          found.divergence);
  });
}

void bind_law_of_text(nb::module_& m) {
  // The status. pi: V^n numbers, the law of texts whose tokens have the n rows of q and of p.
  using table = nb::ndarray<const double, nb::ndim<2>, nb::c_contig, nb::device::cpu>;
  m.def("law_of_text",
        [](const policy& one, const table& q_rows, const table& p_rows, bool logits,
           double temperature, std::int64_t top_k, double top_p, double min_p, int order,
           double state, nb::ndarray<double, nb::ndim<1>, nb::c_contig, nb::device::cpu> pi) {
          const std::size_t n = p_rows.shape(0), V = p_rows.shape(1);
          std::size_t texts = 1;
          for (std::size_t i = 0; i < n && texts <= pi.shape(0); ++i) texts *= V;
          if (q_rows.shape(0) != n || q_rows.shape(1) != V || pi.shape(0) != texts)
            refuse("q, p: rows of different sizes");
          const auto rows = [&](const char* name, const table& x) {
            const engine::rows all{
                logits ? engine::row_kind::logits_f64 : engine::row_kind::probabilities_f64,
                reinterpret_cast<const std::byte*>(x.data()), std::ptrdiff_t(V * sizeof(double)), n,
                sampling_of(temperature, top_k, top_p, min_p, order)};
            warn_of_probabilities(name, all, V);
            return all;
          };
          one.check_state(state);
          const engine::text_rows text{V, rows("q", q_rows), rows("p", p_rows), one.chosen, state};
          nb::gil_scoped_release released;
          return int(specagg_engine_law_of_text(&text, pi.data()));
        });
}

void bind_audit(nb::module_& m) {
  m.def("audit", [](const policy& p, std::size_t verifier) {
    engine::audit a;
    {
      nb::gil_scoped_release released;
      a = engine::audited(p.chosen, verifier);
    }
    return nb::make_tuple(a.worst_error, a.pairs, a.undefined, a.passed);
  });

  m.def("goodness_of_fit", [](const numbers& counts, const numbers& law, double false_alarm) {
    if (counts.shape(0) != law.shape(0)) refuse("counts, law: of different sizes");
    specagg::fit f;
    {
      nb::gil_scoped_release released;
      f = specagg::goodness_of_fit(std::span(counts.data(), counts.shape(0)),
                                   std::span(law.data(), law.shape(0)), false_alarm);
    }
    return nb::make_tuple(f.distance, f.expected_distance, f.p_value, f.passed, f.detectable);
  });
}

}  // namespace

void bind_rows(nb::module_& m) {
  bind_draw(m);
  bind_law(m);
  bind_law_of_text(m);
  bind_audit(m);
}

}  // namespace python
