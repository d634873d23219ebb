// SPDX-License-Identifier: Apache-2.0
// The Python module specagg._core: arrays to requests, requests to the engine, on a pool of threads
// and without the interpreter's lock. Nothing here depends on the instruction set.
#include <nanobind/stl/vector.h>

#include <algorithm>
#include <string>
#include <vector>

#include "arguments.hpp"
#include "bindings.hpp"
#include "verified.hpp"

namespace python {
namespace {

void bind_machine(nb::module_& m) {
  m.def("isa", &specagg_engine_isa);
  m.def("set_threads", [](unsigned threads) {
    if (threads < 1 || threads > most_threads)
      refuse("threads: ", text_of(threads), " is not between 1 and ", text_of(most_threads));
    workers& all = shared_workers();
    nb::gil_scoped_release released;  // a call may be at work
    const std::lock_guard lock(all.busy);
    all.wanted = threads;
  });
}

void bind_policies(nb::module_& m) {
  nb::class_<policy>(m, "Policy")
      .def("__init__",
           [](policy* self, int line, const std::vector<double>& parameters) {
             new (self) policy{};
             self->chosen.line = line;
             if (!specagg_engine_policy(line, &self->known) ||
                 parameters.size() != self->known.count)
               refuse("policy: no such policy");
             std::copy(parameters.begin(), parameters.end(), self->chosen.parameters.begin());
           })
      .def("valid", [](const policy& p) { return specagg_engine_valid(&p.chosen); })
      .def_prop_ro("name", [](const policy& p) { return p.known.name; })
      .def_prop_ro("law", [](const policy& p) { return p.known.law; })
      .def_prop_ro("reads_draft", [](const policy& p) { return p.known.reads_draft; })
      .def_prop_ro("values", [](const policy& p) {
        return std::vector<double>(p.chosen.parameters.begin(),
                                   p.chosen.parameters.begin() + std::ptrdiff_t(p.known.count));
      });
  nb::class_<text_policy, policy>(m, "TextPolicy")
      .def(nb::init<int, const std::vector<const policy*>&, double, double, std::vector<token_id>,
                    std::vector<token_id>>());
  // Every policy: (name, law, reads_draft, [(parameter, low, high, usual, open, flag, word)])
  m.def("policies", [] {
    nb::list all;
    engine::known_policy r;
    for (int i = 0; specagg_engine_policy(i, &r); ++i) {
      nb::list parameters;
      for (std::size_t k = 0; k < r.count; ++k) {
        const engine::parameter& one = r.parameters[k];
        parameters.append(nb::make_tuple(one.name, one.low, one.high, one.usual, one.open, one.flag,
                                         one.word ? nb::object(nb::str(one.word)) : nb::none()));
      }
      all.append(nb::make_tuple(r.name, r.law, r.reads_draft, parameters));
    }
    return all;
  });
}

// Names of statuses and origins.
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
}

// What rows are changed by.
void bind_options(nb::module_& m) {
  nb::class_<sampling>(m, "Sampling")
      .def(nb::init<nb::object, nb::object, nb::object, nb::object>())
      .def_ro("temperature", &sampling::temperature)
      .def_ro("top_k", &sampling::top_k)
      .def_ro("top_p", &sampling::top_p)
      .def_ro("min_p", &sampling::min_p);
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
  bind_names(m);
  bind_options(m);
  bind_verify(m);
  bind_tree(m);
  bind_rows(m);
}
