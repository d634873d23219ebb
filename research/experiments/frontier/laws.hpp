// SPDX-License-Identifier: Apache-2.0
// The law of a policy at one position of a text, as a row, and what it is worth.
#pragma once
#include <string>
#include <vector>

namespace experiments::frontier {

// The rows of one position, after temperature and filters, at the tokens that one of them keeps:
// no policy gives weight to any other. likely is the target's row without filters, as KL needs it.
struct position {
  static constexpr std::size_t none = std::size_t(-1);
  std::vector<float> q, p, likely;
  std::size_t next = none;  // the place of the token that follows; none: no row keeps it
};
// The parameter that moves a policy from p to q, or from q to p. A policy without one (parameter is
// null) has its default values.
struct knob {
  const char *rule, *parameter;
  double low, high;
};
// The policies of the catalogue, each once.
std::vector<knob> knobs();

struct worth {
  double acceptance = 0;  // sum min(q, pi)
  double tv = 0;          // TV(pi, p)
  double kl = 0;          // KL(pi || the target's row without filters)
  double outside = 0;     // pi of the tokens that the target's filters leave out
  double likeliest = 0;   // pi of the target's most likely token
  double next = 0;        // pi of the token that follows
  double kept = 0;        // min(1, pi / q) of it
};
// Thrown where pi does not exist.
struct no_law {};
// The policy of this rule with its knob at x.
double acceptance(const knob&, double x, const position&);
worth measure(const knob&, double x, const position&);

}  // namespace experiments::frontier
