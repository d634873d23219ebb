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

std::vector<double> values_of(const policy& p) {
  return {p.chosen.parameters.begin(), p.chosen.parameters.begin() + std::ptrdiff_t(p.known.count)};
}
bool is_same(const policy& a, const policy& b) {
  if (a.of_text || b.of_text) return &a == &b;
  return a.chosen.line == b.chosen.line && values_of(a) == values_of(b);
}

void bind_policies(nb::module_& m) {
  nb::class_<policy>(
      m, "Policy",
      "A policy with its parameters, made by specagg.policy(). Two are equal if name "
      "and parameters are. It can be pickled.")
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
      .def_prop_ro(
          "name", [](const policy& p) { return p.known.name; }, "As policies() has it.")
      .def_prop_ro(
          "law", [](const policy& p) { return p.known.law; }, "Its equation in words.")
      .def_prop_ro(
          "reads_draft", [](const policy& p) { return p.known.reads_draft; },
          "Whether its law needs the draft's row.")
      .def_prop_ro("values", &values_of, "Of its parameters.")
      .def("__str__", [](const policy& p) { return text_of(p); })
      .def("__repr__", [](const policy& p) { return "policy('" + text_of(p) + "')"; })
      .def(
          "__eq__",
          [](const policy& a, nb::handle other) {
            const policy* b = nullptr;
            return nb::try_cast(other, b) && b && is_same(a, *b);
          },
          "other"_a.none())
      .def("__hash__",
           [](const policy& p) {
             if (p.of_text) return nb::hash(nb::int_(std::uintptr_t(&p)));
             return nb::hash(nb::make_tuple(p.known.name, nb::tuple(nb::cast(values_of(p)))));
           })
      // By its text: in another version it is the same policy, or there is an error.
      .def("__reduce__", [](const policy& p) {
        if (p.of_text) throw nb::type_error("cannot pickle a part of a specagg.TextPolicy");
        return nb::make_tuple(nb::module_::import_("specagg").attr("policy"),
                              nb::make_tuple(text_of(p)));
      });
  // specagg.TextPolicy has one, and knows what it is made of: this one is equal to itself alone.
  nb::class_<text_policy, policy>(m, "TextPolicy")
      .def(nb::init<int, const std::vector<const policy*>&, double, double, std::vector<token_id>,
                    std::vector<token_id>>());
}

void bind_catalogue(nb::module_& m) {
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
  bind_catalogue(m);
  bind_names(m);
  bind_options(m);
  bind_verify(m);
  bind_tree(m);
  bind_rows(m);
}
