// SPDX-License-Identifier: Apache-2.0
// What a step of reinforcement learning expects if a lossy policy wrote the texts: with the
// target's log-probability as that of the texts' law, and with log pi. Part toy: exact. Part
// steps: SmolLM2 answers questions by speculative decoding, and the reward is 1 for the right
// answer; a step is a group of answers to every question. The parameter is a bias of every logit,
// so the true gradient is known exactly, from the rows before each answer. scripts/training sets
// the environment, that of ../frontier/reading.hpp.
#include "../frontier/remembering.hpp"

#include "../parts.hpp"
#include "../policies.hpp"
#include "toy.hpp"

namespace experiments::training {
namespace {

using frontier::laboratory, frontier::must, frontier::remembering;
using any_policy = compiled_once<any_catalogued>;

constexpr std::size_t worlds = 10;

void toys(laboratory& l, table& out) {
  const std::size_t n = l.how.quick ? 2 : worlds;
  for (std::size_t i = 0; i < n; ++i) {
    const toy world(1000 * l.how.seed + i);
    for_each_policy(world, [&](const std::string& name, const std::vector<rollout>& all) {
      const step s = expected_step(world, all);
      out.add("\"" + name + "\"", i, s.accepted, s.tv, s.never, s.sample, s.with_p, s.by_token,
              s.by_text, s.moved_with_p, s.moved_by_text);
    });
    l.progress(double(i + 1) / double(n));
  }
}

// ---- SmolLM2 ------------------------------------------------------------------------------------

// The target's row after a text, as a step reads it.
struct known {
  double log_sum = 0;  // of exp(logits)
  double along = 0;    // the mean of the direction under p
};

struct asked {
  std::vector<token_id> prompt, answer;
  double right = 0;  // the target's probability of the answer
};
double log_sum_exp(std::span<const float> row) {
  const double top = *std::max_element(row.begin(), row.end());
  double sum = 0;
  for (const float x : row) sum += std::exp(double(x) - top);
  return top + std::log(sum);
}
std::vector<asked> questions(cpu::llama& p, std::size_t most) {
  const cpu::tokenizer tokenizer(p.weights().file);
  std::vector<asked> all;
  for (const frontier::question& of : frontier::questions_of(most))
    all.push_back({tokenizer.encode_inside(of.asked), tokenizer.encode_inside(of.answer)});
  return all;
}
// The derivative of the mean probability of a right answer by the bias of every logit.
std::vector<double> true_gradient(cpu::llama& p, std::vector<asked>& all) {
  const std::size_t V = p.vocab_size();
  std::vector<double> g(V);
  for (asked& one : all) {
    frontier::written t{"", 0, one.prompt.size(), one.prompt};
    t.tokens.insert(t.tokens.end(), one.answer.begin(), one.answer.end());
    const auto rows = frontier::rows_of(p, t);
    std::vector<double> score(V);
    double log_right = 0;
    for (std::size_t i = 0; i < one.answer.size(); ++i) {
      const auto row = std::span(rows).subspan(i * V, V);
      const double log_sum = log_sum_exp(row);
      for (std::size_t v = 0; v < V; ++v) score[v] -= std::exp(double(row[v]) - log_sum);
      score[std::size_t(one.answer[i])] += 1;
      log_right += double(row[std::size_t(one.answer[i])]) - log_sum;
    }
    one.right = std::exp(log_right);
    for (std::size_t v = 0; v < V; ++v) g[v] += one.right * score[v] / double(all.size());
  }
  return g;
}

// An answer of a group.
struct answer {
  double reward = 0, log_w = 0;
  double score = 0;     // the derivative of log p(answer) in the direction
  double by_token = 0;  // the same, each token's times its own ratio
};
// What a step moves in the direction of the true gradient, over what the true one moves.
struct moved {
  double with_p = 0, by_token = 0, by_text = 0, cut = 0;
};
constexpr double cut_at = 2;  // a usual truncation of ratios

moved mean_of_group(const std::vector<answer>& group) {
  moved m;
  double sum = 0;
  const double n = double(group.size());
  for (const answer& a : group) sum += a.reward;
  for (const answer& a : group) {
    const double advantage = (a.reward - (sum - a.reward) / (n - 1)) / n, w = std::exp(a.log_w);
    m.with_p += advantage * a.score;
    m.by_token += advantage * a.by_token;
    m.by_text += advantage * w * a.score;
    m.cut += advantage * std::min(w, cut_at) * a.score;
  }
  return m;
}

struct rule {
  const char* name;
  double value;
};
// One of each kind, at 0.1 more acceptance: the parameters of docs/frontier.md at temperature 1.
constexpr rule rules[] = {{"lossless", 0},        {"lossy", 0.485352}, {"token-v3", 0.956299},
                          {"ensemble", 0.320312}, {"opt", -0.15564},   {"chow", 0.514893}};

// The steps of one policy.
class trainer {
 public:
  trainer(laboratory& l, const std::vector<asked>& all, std::span<const double> direction,
          cpu::llama& q, cpu::llama& p)
      : l_(&l),
        all_(&all),
        direction_(direction),
        q_(q),
        p_(p),
        work_(p.vocab_size(), decode_options{.gamma = frontier::gamma}) {
    for (const double x : direction) length_ += x * x;
  }
  // A line for each step of each rule. Question by question, because all of them read its rows.
  void run(std::size_t steps, std::size_t group, table& out) {
    std::vector<std::vector<done>> all(std::size(rules), std::vector<done>(steps));
    const double n = double(all_->size());
    for (std::size_t i = 0; i < all_->size(); ++i) {
      for (std::size_t r = 0; r < std::size(rules); ++r)
        for (std::size_t s = 0; s < steps; ++s) {
          done& d = all[r][s];
          std::vector<answer> answers;
          for (std::size_t k = 0; k < group; ++k) {
            const random_streams noise(1000003 * l_->how.seed + s, i * group + k);
            answers.push_back(write((*all_)[i], policy_of(rules[r]), noise, d));
            d.reward += answers.back().reward / (double(group) * n);
          }
          const moved m = mean_of_group(answers);
          d.step.with_p += m.with_p / (n * length_);
          d.step.by_token += m.by_token / (n * length_);
          d.step.by_text += m.by_text / (n * length_);
          d.step.cut += m.cut / (n * length_);
        }
      q_.forget();
      p_.forget();
      known_.clear();
      l_->progress(double(i + 1) / n);
    }
    for (std::size_t r = 0; r < std::size(rules); ++r)
      for (std::size_t s = 0; s < steps; ++s) {
        const done& d = all[r][s];
        out.add(rules[r].name, rules[r].value, s, d.reward, d.tokens / d.calls, d.step.with_p,
                d.step.by_token, d.step.by_text, d.step.cut);
      }
  }

 private:
  struct done {
    moved step;
    double reward = 0, tokens = 0, calls = 0;
  };
  static any_policy policy_of(const rule& of) {
    any_catalogued found = lossless{};
    if (std::string_view(of.name) != "lossless")
      with_policy(of.name, of.value, [&](const auto& policy) { found = policy; });
    return found;
  }
  answer write(const asked& one, const any_policy& policy, const random_streams& noise, done& d) {
    std::vector<token_id> memory(one.prompt);
    memory.resize(one.prompt.size() + one.answer.size());
    text t{memory, one.prompt.size()};
    std::vector<double> log_pi;
    (void)q_.rollback(0);
    (void)p_.rollback(0);
    const auto keep = [&](const emission& e) {
      log_pi.push_back(e.log_pi);
      return true;
    };
    const auto count = [&](const speculative_result&, auto&) { ++d.calls; };
    must(speculative_decode(q_, p_, policy, noise,
                            {.text = t,
                             .most = one.answer.size(),
                             .work = work_,
                             .accept = keep,
                             .after_round = count}),
         "rollout");
    d.tokens += double(log_pi.size());
    answer a;
    a.reward = std::equal(one.answer.begin(), one.answer.end(),
                          memory.begin() + std::ptrdiff_t(one.prompt.size()));
    std::vector<token_id> before = one.prompt;
    for (std::size_t i = 0; i < log_pi.size(); ++i) {
      const auto y = std::size_t(memory[one.prompt.size() + i]);
      const auto& row = p_.row_after(before);
      const known& k = known_of(before, row);
      const double log_w = double(row[y]) - k.log_sum - log_pi[i], score = direction_[y] - k.along;
      a.log_w += log_w;
      a.score += score;
      a.by_token += std::exp(log_w) * score;
      before.push_back(token_id(y));
    }
    return a;
  }
  const known& known_of(const std::vector<token_id>& before, const std::vector<float>& row) {
    known& k = known_[before];
    if (k.log_sum != 0) return k;
    const auto p = frontier::probabilities(row, {});
    const auto top = std::size_t(std::max_element(row.begin(), row.end()) - row.begin());
    k.log_sum = double(row[top]) - std::log(double(p[top]));
    for (std::size_t v = 0; v < row.size(); ++v) k.along += double(p[v]) * direction_[v];
    return k;
  }

  laboratory* l_;
  const std::vector<asked>* all_;
  std::span<const double> direction_;
  remembering q_, p_;
  speculative_workspace<float> work_;
  std::map<std::vector<token_id>, known> known_;
  double length_ = 0;
};

void steps(laboratory& l, table& out) {
  cpu::llama p(frontier::target(), l.pool, 1024),
      q(frontier::draft_named("bits-4-3"), l.pool, 1024);
  auto all = questions(p, l.how.quick ? 4 : 40);
  const auto g = true_gradient(p, all);
  trainer(l, all, g, q, p).run(l.how.quick ? 3 : 32, l.how.quick ? 4 : 16, out);
}

const std::vector<part<laboratory>> parts{
    {"training-toy", false, 2, 1,
     "policy,world,accepted,tv,never,sample,with_p,by_token,by_text,moved_with_p,moved_by_text",
     toys},
    {"training-steps", false, 900, 20,
     "policy,value,step,reward,tokens_of_a_call,with_p,by_token,by_text,cut", steps}};

}  // namespace
}  // namespace experiments::training

int main(int argc, char** argv) {
  return experiments::program(argc, argv, "specagg-experiments-training",
                              "What a step of training expects if a lossy policy wrote the texts",
                              experiments::training::parts, {});
}
