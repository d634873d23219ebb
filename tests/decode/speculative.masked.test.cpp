// SPDX-License-Identifier: Apache-2.0
// Drafted tokens that the target's mask forbids (a grammar, forbidden words, logit_bias).
#include <specagg/decode/speculative.hpp>

#include <cmath>
#include <vector>

#include <specagg/audit/exact_law.hpp>

#include "decode/toy_text.hpp"

using namespace specagg;

namespace {

// A grammar: (t + 1) % V does not stand after t. It counts the forbidden tokens that it is given.
struct grammar {
  std::vector<token_id> pushed{0};
  std::size_t* forbidden;
  bool forbids(token_id t) const { return t == (pushed.back() + 1) % token_id(vocabulary); }
  void push(token_id t) {
    *forbidden += forbids(t);
    pushed.push_back(t);
  }
  void pop() { pushed.pop_back(); }
  template <class T>
  void apply(std::span<T> logits) const {
    for (std::size_t v = 0; v < logits.size(); ++v)
      if (forbids(token_id(v))) logits[v] = -T(INFINITY);
  }
};
static_assert(Processor<grammar>);

// Draws from the model's row, with the mask or without.
struct model_or_unmasked : model_drafter<toy_source<double>> {
  bool masked = false;
  using model_drafter::model_drafter;
  template <class P>
  status next(const draft_position& at, P& mask, row_type& row, double& confidence) {
    no_processor none;
    return masked ? model_drafter::next(at, mask, row, confidence)
                  : model_drafter::next(at, none, row, confidence);
  }
};

template <class With>
double worst_error(const any_verifier& verifier, std::size_t gamma, std::size_t& forbidden,
                   With&& with_drafter) {
  constexpr std::size_t length = 4;
  const auto law = exact_law([&](auto& chooser) {
    toy_source<double> m(vocabulary, 2);
    grammar mask{.forbidden = &forbidden};
    std::vector<token_id> buffer(16);
    text t{buffer, 1};
    with_drafter([&]<class D>(D& drafter) {
      drafting_workspace<double, typename D::row_type> work(vocabulary, {.gamma = gamma});
      REQUIRE(speculative_decode(drafter, m, lossless{}, chooser,
                                 {.text = t, .most = length, .work = work, .processor = mask},
                                 verifier) == status::ok);
    });
    return std::vector<token_id>(buffer.begin() + 1, buffer.begin() + std::ptrdiff_t(t.size));
  });
  const toy_source<double> m(vocabulary, 2);
  return worst_joint_error(law, length, no_token, [&](const std::vector<token_id>& context) {
    std::size_t ignored = 0;
    std::vector<double> logits(vocabulary);
    m.row(context, logits);
    grammar{.pushed = context, .forbidden = &ignored}.apply(std::span(logits));
    const auto row = normalise(processed_row<double>(logits));
    for (std::size_t v = 0; v < vocabulary; ++v) logits[v] = row[v];
    return logits;
  });
}

}  // namespace

TEST_CASE(
    "a drafted token that a mask forbids is rejected, not dropped: texts have the masked target's "
    "law") {
  const auto verified_by = [&](const any_verifier& verifier) {
    for (std::size_t gamma = 1; gamma <= 3; ++gamma) {
      std::size_t by_model = 0, by_kinds = 0, masked = 0;
      const auto of_model = [](bool with_mask) {
        return [=](auto&& decode) {
          toy_source<double> d(vocabulary, 1);
          std::vector<double> logits(4 * vocabulary);
          model_or_unmasked drafter(d, logits);
          drafter.masked = with_mask;
          decode(drafter);
        };
      };
      const auto of_kinds = [](auto&& decode) {  // it reads no processor
        mixed_drafter drafter;
        decode(drafter);
      };
      CHECK(worst_error(verifier, gamma, by_model, of_model(false)) < 1e-12);
      CHECK(worst_error(verifier, gamma, by_kinds, of_kinds) < 1e-12);
      CHECK(worst_error(verifier, gamma, masked, of_model(true)) < 1e-12);
      CHECK(by_model > 20);  // forbidden tokens were drafted
      CHECK(by_kinds > 20);
      CHECK(masked == 0);
    }
  };
  verified_by({token_verifier{}});
  verified_by({block_verifier{}});
  verified_by({match_verifier{}});
}
