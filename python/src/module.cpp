// SPDX-License-Identifier: Apache-2.0
// The Python module specagg._core: arrays to requests, requests to the engine, on a pool of threads
// and without the interpreter's lock. Nothing here depends on the instruction set.
#include <nanobind/stl/vector.h>

#include <algorithm>
#include <string>
#include <vector>

#include <specagg/draft/propose.hpp>
#include <specagg/verify/verifiers.hpp>

#include "arguments.hpp"
#include "bindings.hpp"
#include "verified.hpp"

namespace python {
namespace {

void bind_machine(nb::module_& m) {
  m.def("refuse_lazy", &refuse_lazy, "x"_a.none(), "name"_a);
  m.def("isa", &specagg_engine_isa,
        "The instruction set that was chosen at import; SPECAGG_ISA in the environment names "
        "another.");
  m.def(
      "set_threads",
      [](nb::handle threads) {
        if (!PyIndex_Check(threads.ptr()))
          throw nb::type_error((std::string("threads: expected a whole number, not ") +
                                nb::type_name(threads.type()).c_str())
                                   .c_str());
        unsigned wanted = 0;
        if (!nb::try_cast(threads, wanted) || wanted < 1 || wanted > most_threads)
          refuse("threads: ", nb::str(threads).c_str(), " is not between 1 and ",
                 text_of(most_threads));
        workers& all = shared_workers();
        nb::gil_scoped_release released;  // a call may be at work
        const std::lock_guard lock(all.busy);
        all.wanted = wanted;
      },
      "threads"_a.none(),
      "How many threads verify() and draw() work on, the caller's included: 1 to 1024. All cores "
      "unless set.");
}

bool is_same(const policy& a, const policy& b) {
  const auto same_part = [](const nb::object& x, const nb::object& y) {
    return is_same(nb::cast<const policy&>(x), nb::cast<const policy&>(y));
  };
  return a.chosen.line == b.chosen.line && a.values == b.values && a.open == b.open &&
         a.close == b.close && std::ranges::equal(a.parts, b.parts, same_part);
}
nb::tuple members_of(const policy& p) {
  return nb::make_tuple(p.known.name, nb::tuple(nb::cast(p.values)), nb::tuple(nb::cast(p.parts)),
                        nb::tuple(nb::cast(p.open)), nb::tuple(nb::cast(p.close)));
}

// As it is made in Python.
std::string shown(const policy& p) {
  if (p.chosen.line >= 0) return "policy('" + text_of(p) + "')";
  std::string parts;
  for (const nb::object& part : p.parts)
    parts += (parts.empty() ? "" : ", ") + ("'" + text_of(nb::cast<const policy&>(part)) + "'");
  if (p.chosen.line == engine::by_position) return "by_position([" + parts + "])";
  return "phase(" + parts + ", open=" + nb::repr(nb::cast(p.open)).c_str() +
         ", close=" + nb::repr(nb::cast(p.close)).c_str() + ")";
}

void bind_policies(nb::module_& m) {
  nb::class_<policy>(
      m, "Policy",
      "A policy with its parameters, made by specagg.policy(), by_position() or phase(). Two are "
      "equal if name and parameters are. It can be pickled.")
      .def(nb::init<int, std::vector<double>, std::vector<nb::object>, std::vector<token_id>,
                    std::vector<token_id>>(),
           "line"_a, "parameters"_a, "parts"_a = nb::tuple(), "open"_a = nb::tuple(),
           "close"_a = nb::tuple())
      .def("valid", [](const policy& p) { return specagg_engine_valid(&p.chosen); })
      .def_prop_ro(
          "name", [](const policy& p) { return p.known.name; }, "As policies() has it.")
      .def_prop_ro(
          "law", [](const policy& p) { return p.known.law; }, "Its equation in words.")
      .def_prop_ro(
          "reads_draft", [](const policy& p) { return p.known.reads_draft; },
          "Whether its law needs the draft's row.")
      .def_prop_ro(
          "of_text", [](const policy& p) { return p.known.of_text; },
          "Whether the law of a token depends on the text: verify() and law() alone take it.")
      .def_prop_ro(
          "values", [](const policy& p) { return p.values; }, "Of its parameters.")
      .def("__str__", [](const policy& p) { return text_of(p); })
      .def("__repr__", &shown)
      .def(
          "__eq__",
          [](const policy& a, nb::handle other) {
            const policy* b = nullptr;
            return nb::try_cast(other, b) && b && is_same(a, *b);
          },
          "other"_a.none())
      .def("__hash__", [](const policy& p) { return nb::hash(members_of(p)); })
      // By its text: in another version it is the same policy, or there is an error.
      .def("__reduce__", [](const policy& p) {
        const nb::module_ specagg = nb::module_::import_("specagg");
        if (p.chosen.line == engine::by_position)
          return nb::make_tuple(specagg.attr("by_position"), nb::make_tuple(nb::cast(p.parts)));
        if (p.chosen.line == engine::phase)
          return nb::make_tuple(
              specagg.attr("phase"),
              nb::make_tuple(p.parts[0], p.parts[1], nb::cast(p.open), nb::cast(p.close)));
        return nb::make_tuple(specagg.attr("policy"), nb::make_tuple(text_of(p)));
      });
  m.attr("phase") = engine::phase;
  m.attr("by_position") = engine::by_position;
}

void bind_catalogue(nb::module_& m) {
  // Every policy: (name, law, reads_draft, of_text,
  //                [(parameter, low, high, usual, open, flag, word)])
  m.def("policies", [] {
    nb::list all;
    engine::known_policy r;
    for (int i = 0; specagg_engine_policy(i, &r); ++i) {
      nb::list parameters;
      for (std::size_t k = 0; k < r.count; ++k) {
        const engine::parameter one = specagg_engine_parameter(i, k);
        parameters.append(nb::make_tuple(one.name, one.low, one.high, one.usual, one.open, one.flag,
                                         one.word ? nb::object(nb::str(one.word)) : nb::none()));
      }
      all.append(nb::make_tuple(r.name, r.law, r.reads_draft, r.of_text, parameters));
    }
    return all;
  });
}

// Names of statuses, origins, verifiers and proposals.
void bind_names(nb::module_& m) {
  int statuses = 0;
  while (specagg::name(specagg::status(statuses)) != std::string_view("unknown")) ++statuses;
  m.attr("status_count") = statuses;
  m.def("status_name", [](int s) { return status_text(std::uint8_t(s)); });
  nb::list origins;
  using enum specagg::origin;
  for (const specagg::origin one : {accepted, residual, bonus})
    origins.append(std::string(specagg::name(one)));
  m.attr("origins") = origins;
  nb::list verifiers, tree_verifiers, proposals;
  specagg::for_each_verifier(0, 0, [&]<class V>(const V& one) {
    verifiers.append(nb::make_tuple(one.name, specagg::is_coupled<V>));
  });
  specagg::for_each_verifier<specagg::all_tree_verifiers>(
      0, 0, [&](const auto& one) { tree_verifiers.append(one.name); });
  using enum specagg::proposal;
  for (const specagg::proposal one : {greedy, sampled, top, independent})
    proposals.append(std::string(specagg::name(one)));
  nb::list filter_orders;
  for (const specagg::filter_order one : specagg::filter_orders)
    filter_orders.append(std::string(specagg::name(one)));
  m.attr("filter_orders") = filter_orders;
  m.attr("verifiers") = verifiers;
  m.attr("tree_verifiers") = tree_verifiers;
  m.attr("proposals") = proposals;
}

// What rows are changed by.
void bind_options(nb::module_& m) {
  nb::class_<sampling>(m, "Sampling")
      .def(nb::init<nb::object, nb::object, nb::object, nb::object, int>())
      .def_ro("temperature", &sampling::temperature)
      .def_ro("top_k", &sampling::top_k)
      .def_ro("top_p", &sampling::top_p)
      .def_ro("min_p", &sampling::min_p)
      .def_ro("order", &sampling::order);
  nb::class_<edit_arguments>(m, "Edits")
      .def(nb::init<nb::object, nb::object, nb::object, nb::object, nb::object>(), "repetition"_a,
           "presence"_a, "frequency"_a, "history"_a.none(), "mask"_a.none());
}

}  // namespace
}  // namespace python

NB_MODULE(_core, m) {
  using namespace python;
  bind_plan(m.def_submodule("plan"));
  bind_machine(m);
  bind_policies(m);
  bind_catalogue(m);
  bind_names(m);
  bind_options(m);
  bind_verify(m);
  bind_tree(m);
  bind_rows(m);
}
