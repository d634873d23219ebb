// SPDX-License-Identifier: Apache-2.0
// The edge cases of docs/mathematics.md: each row of the table, tried.
#include <specagg/verify/token.hpp>

#include <algorithm>
#include <fstream>
#include <functional>
#include <limits>
#include <map>
#include <string>
#include <vector>

#include <specagg/policy/checked.hpp>
#include <specagg/decoders.hpp>

#include "support/catch.hpp"

using namespace specagg;

namespace {

constexpr std::size_t V = 3;
constexpr double quiet_nan = std::numeric_limits<double>::quiet_NaN();
using row = std::vector<double>;
using rows = std::vector<row>;

struct outcome {
  verdict v = {};
  std::vector<emission> out = std::vector<emission>(4);
};
struct negative {  // sums to 1, and is no law
  static constexpr bool reads_draft = false;
  template <class Rows>
  SPECAGG_FUNCTION auto bind(const Rows&) const {
    return [](auto at) { return fma(at.p, 3, -0.6); };
  }
};
using any_policy = compiled_once<any_of<minimum<>, ensemble>>;
struct noise : random_streams {
  bool rejects;  // for any rows, as rounding may
  explicit noise(bool never) : random_streams(1), rejects(never) {}
  bool coin(moment m, double w, double t) const {
    return !rejects && random_streams::coin(m, w, t);
  }
};

template <class Policy>
outcome verified(const std::vector<token_id>& y, const rows& q, const rows& p, const Policy& policy,
                 std::size_t room = 4, draft d = {}, bool rejects = false) {
  outcome o;
  std::vector<double> scratch(verify_scratch(V));
  d.tokens = y;
  o.v = verify_token(d, q, p, policy, noise(rejects), std::span(o.out).first(room), scratch);
  return o;
}
outcome lossless_step(const std::vector<token_id>& y, const rows& q, const rows& p) {
  return verified(y, q, p, lossless{});
}
// What is wrong with the step, or with the first position that the draft did not reach; or ok.
status reported(const outcome& o) {
  if (o.v.why != status::ok) return o.v.why;
  for (std::size_t i = 0; i < o.v.emitted; ++i)
    if (o.out[i].why != status::ok) return o.out[i].why;
  return status::ok;
}

const row half{0.5, 0.5, 0}, first{1, 0, 0}, second{0, 1, 0}, flat{0.2, 0.3, 0.5};

// By what a row of the table begins with.
const std::map<std::string, std::function<outcome()>> cases{
    {"`q(y) = 0`", [] { return lossless_step({0}, {second}, {half, half}); }},
    {"drafted id < -1", [] { return lossless_step({V}, {half}, {half, half}); }},
    {"drafted id -1", [] { return lossless_step({0, -1}, {first, first}, {first, second}); }},
    {"end-of-text token",
     [] {
       const token_id end = 0;
       return verified({0, 1}, {first, half}, {first, half, half}, lossless{}, 4,
                       draft{.end_of_text = end});
     }},
    {"empty draft", [] { return lossless_step({}, {}, {second}); }},
    {"rejected, but",
     [] { return verified({0}, {first}, {first, first}, lossless{}, 4, {}, true); }},
    {"NaN, +inf", [] { return lossless_step({}, {}, {{quiet_nan, 0.5, 0.5}}); }},
    {"probabilities that sum", [] { return lossless_step({}, {}, {{0.5, 0.4995, 0}}); }},
    {"further off", [] { return lossless_step({}, {}, {{0.5, 0.4, 0}}); }},
    {"rows of different", [] { return lossless_step({0}, {{0.5, 0.5}}, {half, half}); }},
    {"a row that is needed", [] { return lossless_step({0}, {half}, {}); }},
    {"pi does not exist", [] { return verified({}, {first}, {second}, any_policy(minimum<>{})); }},
    {"pi is negative", [] { return verified({}, {}, {flat}, checked{negative{}}); }},
    {"a policy's parameter", [] { return verified({}, {half}, {half}, any_policy(ensemble{2})); }}};

}  // namespace

TEST_CASE("each edge case of docs/mathematics.md has the status that the page says") {
  std::ifstream page(SPECAGG_SOURCE_DIR "/docs/mathematics.md");
  std::string line;
  while (std::getline(page, line) && line != "| case | status | what happens |") {
  }
  std::getline(page, line);
  std::size_t tried = 0;
  for (; std::getline(page, line) && line.starts_with("| "); ++tried) {
    const std::size_t bar = line.find(" | "), open = line.find('`', bar + 3);
    const std::string what = line.substr(2, bar - 2);
    const std::string says = line.substr(open + 1, line.find('`', open + 1) - open - 1);
    const auto is_it = [&](const auto& entry) { return what.starts_with(entry.first); };
    const auto it = std::find_if(cases.begin(), cases.end(), is_it);
    INFO(line);
    REQUIRE(it != cases.end());
    const outcome o = it->second();
    CHECK(name(reported(o)) == says);
    const bool no_token = line.find("| no token", bar) != line.npos;
    CHECK((o.v.emitted == 0) == no_token);
    CHECK((o.v.why == status::ok) != no_token);
    if (line.find("| drawn from pi") != line.npos) CHECK(o.v.accepted == 0);
  }
  CHECK(tried == cases.size());
  // too little room, which is in the last row as well, and a temperature that is in it
  CHECK(verified({0}, {half}, {half, half}, lossless{}, 0).v.why == status::invalid_parameter);
  const std::vector<float> logits(V);
  CHECK(normalise(processed_row<float>(logits, {.temperature = -1})).why() ==
        status::invalid_parameter);
}
