// SPDX-License-Identifier: Apache-2.0
// Narasimhan et al. 2025, Table 2 (SeqCascade), Figure 1 and section 7: what cascades write, one
// after the other and speculatively. Counted, not timed.
#include <specagg/error.hpp>

#include "../decoding.hpp"
#include "../policies.hpp"
#include "reading.hpp"

namespace experiments::real {
namespace {

constexpr std::size_t prompt = 64, written = 64;

// ROUGE-L (Lin 2004): the F-measure of the longest common subsequence, here of tokens.
double rouge_l(std::span<const token_id> a, std::span<const token_id> b) {
  std::vector<std::size_t> row(b.size() + 1);
  for (const token_id x : a)
    for (std::size_t j = 0, corner = 0; j < b.size(); ++j) {
      const std::size_t above = row[j + 1];
      row[j + 1] = x == b[j] ? corner + 1 : std::max(above, row[j]);
      corner = above;
    }
  return 2 * double(row.back()) / double(a.size() + b.size());
}

struct way {
  std::string execution, rule;
  double value;
  continuation decode;
};
std::vector<way> ways(double temperature, bool quick) {
  const cascade_options options{.sample = {temperature}};
  std::vector<way> all;
  const auto with_work = [options](auto&& decode) -> continuation {
    return [options, decode](text& t, std::size_t n, std::vector<meter>& m, random_streams& r,
                             decoded&) {
      cascade_workspace<float> work(m[0].vocab_size(), options);
      return decode(t, n, m[0], m[1], r, work);
    };
  };
  for (const double alpha : {0.3, 0.5, 0.7})
    all.push_back({"sequence", "chow", alpha, with_work([alpha](auto&&... rest) {
                     const auto run = [alpha](text& t, std::size_t n, meter& q, meter& p,
                                              random_streams& r, auto& work) {
                       return sequence_decode(q, p, alpha, r, {.text = t, .most = n, .work = work});
                     };
                     return run(rest...);
                   })});
  for (const double alpha : {0.2, 0.4, 0.6, 0.8})
    all.push_back({"sequential", "chow", alpha, with_work([alpha](auto&&... rest) {
                     const auto run = [alpha](text& t, std::size_t n, meter& q, meter& p,
                                              random_streams& r, auto& work) {
                       return sequential_decode(q, p, chow{alpha}, r,
                                                {.text = t, .most = n, .work = work});
                     };
                     return run(rest...);
                   })});
  for (const double alpha : {-0.2, 0.0, 0.2, 0.4})
    all.push_back({"oracle", "diff", alpha, with_work([alpha](auto&&... rest) {
                     const auto run = [alpha](text& t, std::size_t n, meter& q, meter& p,
                                              random_streams& r, auto& work) {
                       return oracle_decode(q, p, diff{alpha}, r,
                                            {.text = t, .most = n, .work = work});
                     };
                     return run(rest...);
                   })});
  const std::vector<sweep> speculative{{"lossless", {0}},
                                       {"lenient", {0.3, 0.5, 0.8}},
                                       {"chow", {0.2, 0.4, 0.6, 0.8}},
                                       {"diff", {-0.2, 0, 0.2, 0.4}},
                                       {"opt", {-0.2, 0, 0.2, 0.4}},
                                       {"token-v3", {0.5, 0.8, 0.95}}};
  for (const sweep& s : speculative)
    for (const double x : s.values)
      all.push_back(
          {"speculative", s.rule, x,
           [rule = s.rule, x, temperature](text& t, std::size_t n, std::vector<meter>& m,
                                           random_streams& r, decoded& d) {
             status why = status::ok;
             with_policy(rule, x, [&]<class Policy>(const Policy& policy) {
               if constexpr (std::is_same_v<Policy, lossless> || std::is_same_v<Policy, lossy> ||
                             std::is_same_v<Policy, chow> || std::is_same_v<Policy, diff> ||
                             std::is_same_v<Policy, opt> || std::is_same_v<Policy, token_v3>)
                 why = speculate(t, n, m, r, d, policy, 3, temperature, false);
             });
             return why;
           }});
  if (quick) std::erase_if(all, [](const way& w) { return w.value != 0.2 && w.value != 0.3; });
  return all;
}

}  // namespace

void texts_of(lab& lab, const pair& models, table& out) {
  const auto passages = lab.prompts(lab.how.quick ? 1 : 8, prompt + written);
  const std::vector<double> temperatures{0, 1};
  for (std::size_t k = 0; k < temperatures.size(); ++k) {
    const auto all = ways(temperatures[k], lab.how.quick);
    for (std::size_t w = 0; w < all.size(); ++w) {
      std::vector<decoded> of(passages.size());
      std::vector<double> rouge(passages.size()), agreement(passages.size());
      lab.each(passages.size(), [&](std::size_t i) {
        const auto truth = std::span(passages[i]).subspan(prompt);
        readers sessions = lab.open({models.q, models.p});
        of[i] = decode_prompt({passages[i].begin(), passages[i].begin() + prompt}, written,
                              sessions, all[w].decode, lab.how.seed, i);
        rouge[i] = rouge_l(std::span(of[i].text).subspan(prompt), truth);
        agreement[i] = agreement_with(*sessions[1], of[i].text, prompt);
      });
      decoded sum;
      for (const decoded& d : of) sum += d;
      const auto read = [&](std::size_t m) {
        std::size_t tokens = 0;
        for (std::size_t n = 1; n <= meter::most; ++n) tokens += n * sum.calls_of[m][n];
        return double(tokens) / double(sum.tokens);
      };
      const auto mean = [&](const std::vector<double>& x) {
        return mean_of(0, x.size(), 1, [&](std::size_t i) { return x[i]; });
      };
      const estimate r = mean(rouge), a = mean(agreement);
      out.add(models.name(), all[w].execution, temperatures[k], all[w].rule, all[w].value,
              fmt::format("\"{}\"", policy_text(all[w].rule, all[w].value)), sum.tokens,
              double(sum.calls(1)) / double(sum.tokens), double(sum.calls(0)) / double(sum.tokens),
              read(1), read(0), r.mean, r.se, a.mean, a.se);
      lab.progress((double(k) + double(w + 1) / double(all.size())) / double(temperatures.size()));
    }
  }
}

}  // namespace experiments::real
