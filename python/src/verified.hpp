// SPDX-License-Identifier: Apache-2.0
// What a verified batch is in Python: arrays that view one object, which is printed and pickled.
#pragma once
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <limits>
#include <tuple>

#include "arguments.hpp"

namespace python {

// Arrays of B requests, views of one object.
template <class T>
using view1 = nb::ndarray<nb::numpy, T, nb::ndim<1>>;
template <class T>
using view2 = nb::ndarray<nb::numpy, T, nb::ndim<2>>;

struct verified {
  std::size_t requests = 0, columns = 0;  // columns: of tokens; one less of acceptances
  std::vector<token_id> tokens;
  std::vector<std::int32_t> emitted, accepted, ended;
  std::vector<std::int8_t> origins;
  std::vector<std::uint8_t> statuses, reasons;
  std::vector<double> log_pi, log_p, of_row, of_token, states;

  verified(std::size_t B, std::size_t gamma)
      : requests(B),
        columns(gamma + 1),
        tokens(B * columns, specagg::no_token),
        emitted(B),
        accepted(B),
        ended(B, specagg::no_token),
        origins(B * columns, -1),
        statuses(B),
        reasons(B * columns),
        log_pi(B * columns, std::numeric_limits<double>::quiet_NaN()),
        log_p(log_pi),
        of_row(B * gamma, std::numeric_limits<double>::quiet_NaN()),
        of_token(of_row),
        states(B, std::numeric_limits<double>::quiet_NaN()) {}

  // f(each array)
  template <class F>
  void for_each_array(F&& f) {
    f(tokens), f(emitted), f(accepted), f(ended), f(origins), f(statuses), f(reasons);
    f(log_pi), f(log_p), f(of_row), f(of_token), f(states);
  }

  void keep(std::size_t i, const specagg::verdict& v, std::span<const specagg::emission> out,
            std::span<const specagg::draft_acceptance> acceptances) {
    emitted[i] = std::int32_t(v.emitted);
    accepted[i] = std::int32_t(v.accepted);
    ended[i] = v.ended;
    statuses[i] = std::uint8_t(v.why);
    for (std::size_t j = 0; j < v.emitted; ++j) {
      const std::size_t at = i * columns + j;
      tokens[at] = out[j].token;
      origins[at] = std::int8_t(out[j].from);
      reasons[at] = std::uint8_t(out[j].why);
      log_pi[at] = out[j].log_pi;
      log_p[at] = out[j].log_p;
    }
    for (std::size_t j = 0; j < acceptances.size(); ++j) {
      of_row[i * (columns - 1) + j] = acceptances[j].of_row;
      of_token[i * (columns - 1) + j] = acceptances[j].of_token;
    }
  }
};

// one(i) for each of the first 8 of n: "[a, b]".
template <class F>
std::string listed(std::size_t n, F&& one) {
  std::string text = "[";
  for (std::size_t i = 0; i < std::min<std::size_t>(n, 8); ++i) text += (i ? ", " : "") + one(i);
  return text + (n > 8 ? ", ...]" : "]");
}
inline std::string status_text(std::uint8_t s) {
  return std::string(specagg::name(specagg::status(s)));
}
// What is in a result: emitted tokens, accepted counts, and statuses.
inline std::string text_of(const verified& v) {
  const auto tokens = [&](std::size_t i) {
    return listed(std::size_t(v.emitted[i]),
                  [&](std::size_t j) { return std::to_string(v.tokens[i * v.columns + j]); });
  };
  return "tokens=" + listed(v.requests, tokens) +
         ", accepted=" + listed(v.requests, [&](auto i) { return std::to_string(v.accepted[i]); }) +
         ", statuses=" + listed(v.requests, [&](auto i) { return status_text(v.statuses[i]); });
}

// For pickle: sizes, and the bytes of each array.
using pickled = std::tuple<std::size_t, std::size_t, std::vector<nb::bytes>>;
template <class Result>
pickled state_of(Result& v) {
  std::vector<nb::bytes> parts;
  v.for_each_array([&](auto& x) { parts.emplace_back(x.data(), x.size() * sizeof x[0]); });
  return {v.requests, v.columns, parts};
}
template <class Result>
void set_state(Result& v, const pickled& state) {
  const auto& [B, columns, parts] = state;
  new (&v) Result(B, columns - 1);
  std::size_t k = 0;
  v.for_each_array([&](auto& x) {
    if (k == parts.size() || parts[k].size() != x.size() * sizeof x[0])
      refuse("state: was pickled by another version of specagg");
    std::memcpy(x.data(), parts[k].c_str(), parts[k].size());
    ++k;
  });
}

}  // namespace python
