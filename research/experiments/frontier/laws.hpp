// SPDX-License-Identifier: Apache-2.0
// The law of a policy at one position of a text, as a row, and what it is worth.
#pragma once
#include <string>
#include <vector>

#include <specagg/token.hpp>

namespace experiments::frontier {

// Two rows of probabilities at temperature 1, and the token that follows.
struct position {
  std::vector<float> q, p;
  specagg::token_id next = specagg::no_token;
};
// The parameter that moves a policy from p to q, or from q to p. A policy without one (parameter is
// null) has its default values.
struct knob {
  const char *rule, *parameter;
  double low, high;
};
// The policies of the catalogue, each once, but for mentored.
std::vector<knob> knobs();

struct worth {
  double acceptance = 0;  // sum min(q, pi)
  double tv = 0, kl = 0;  // TV(pi, p), KL(pi || p)
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
