// SPDX-License-Identifier: Apache-2.0
// DRAGON's other experiment (Liu et al. 2025, figure 5): the likelihood of held-out text against
// the number of passages that each site retrieves. Exact at every position of a known text; nothing
// is sampled. It searches with Xapian and is a program of its own, for a change here must not run
// the other parts again.
//   device  target.gguf, passages of Shakespeare;   cloud  target.gguf, passages of the Bible
// One model on both sites, so that the passages alone make the difference. They come from
// valid.txt, the part of a text in front of test.txt, whose tokens they are to predict; the model
// was trained on neither.
#include <stdlib.h>

#include <functional>

#include <thread>

#include <specagg/error.hpp>
#include <specagg/sites/aggregate.hpp>

#include "../../../tools/cli/site_model.hpp"
#include "../lab.hpp"
#include "../parts.hpp"

namespace experiments {

void dealt(const settings& how, table& out, const std::function<void(double)>& progress);

using namespace specagg::sites;

namespace {

namespace fs = std::filesystem;

// minus_...: the paired difference to no passage, to one a side, to both sites with as many a side.
constexpr const char* header =
    "text,law,passages,prompts,cross_entropy,cross_entropy_se,minus_none,minus_none_se,minus_one,"
    "minus_one_se,"
    "minus_both,minus_both_se,device_weight,device_weight_se";
constexpr std::array<std::size_t, 6> counts{0, 1, 2, 4, 8, 16};  // passages of each site
constexpr std::size_t prompt = 64, continued = 64;
enum law { both, device, cloud };
constexpr std::array<const char*, 3> laws{"both", "device", "cloud"};

const std::string model_file = SPECAGG_MODELS "/target.gguf";
std::string text_file(const std::string& text, const char* which) {
  return SPECAGG_MODELS "/../research/text/" + text + "/" + which + ".txt";
}

// A site's documents: valid.txt in a folder where test.txt is not. It may go as soon as it is
// indexed.
struct folder_of_documents {
  std::string path = (fs::temp_directory_path() / "specagg-XXXXXX").string();
  explicit folder_of_documents(const std::string& text) {
    if (!mkdtemp(path.data())) throw error(path, "", "cannot be made");
    fs::copy_file(text_file(text, "valid"), path + "/valid.txt");
  }
  ~folder_of_documents() {
    std::error_code ignored;
    fs::remove_all(path, ignored);
  }
};

// Windows spread evenly over both texts, the first text's first, each after a begin as a prompt of
// a program is.
std::vector<std::vector<token_id>> windows(const cpu::tokenizer& tokenizer, std::size_t of_each,
                                           std::uint64_t seed) {
  std::vector<std::vector<token_id>> all;
  for (const std::string& text : texts) {
    std::vector<token_id> tokens = tokenizer.encode(content(text_file(text, "test")));
    if (!tokens.empty() && tokens.front() == tokenizer.bos()) tokens.erase(tokens.begin());
    const std::size_t size = prompt + continued;
    if (tokens.size() < of_each * size) throw error(text_file(text, "test"), "", "is too short");
    // They do not overlap; the seed shifts all of them.
    const std::size_t step = tokens.size() / of_each, shift = seed % (step - size + 1);
    for (std::size_t w = 0; w < of_each; ++w) {
      const auto from = tokens.begin() + std::ptrdiff_t(w * step + shift);
      auto& window = all.emplace_back(from, from + std::ptrdiff_t(size));
      if (tokenizer.bos() != no_token) window.insert(window.begin(), tokenizer.bos());
    }
  }
  return all;
}

// ln p^s before each token of a continuation, and h^s: the weights are static, so h is that of
// every row.
struct seen {
  std::vector<float> logits;
  double h = 0;
};
void see(cli::site_model& site, std::span<const token_id> window, seen& out) {
  static const std::atomic<bool> never = false;
  const std::size_t v = site.vocab_size();
  out.logits.resize(continued * v);
  site.begin(window.size() - continued);
  const status s = site.see(window.first(window.size() - 1), out.logits, out.h, never);
  if (s != status::ok) throw error(model_file, "", std::string(name(s)));
}

// Nats a token of a prompt's continuation.
struct measured {
  std::array<double, 3> nats{};
  double device_weight = 0;
};
measured measure(const seen& l, const seen& r, std::span<const token_id> truth, std::size_t v) {
  const site_weights eta = weigh_sites(l.h, r.h);
  measured m;
  m.device_weight = eta.l;
  for (std::size_t i = 0; i < truth.size(); ++i) {
    const std::size_t at = i * v + std::size_t(truth[i]);
    const double p_l = l.logits[at], p_r = r.logits[at];
    m.nats[both] -= log_add(eta.log_l + p_l, eta.log_r + p_r) / double(truth.size());
    m.nats[device] -= p_l / double(truth.size());
    m.nats[cloud] -= p_r / double(truth.size());
  }
  return m;
}

// Of both texts: each is a sample of its own, so their difference is no error.
estimate halves(const estimate& a, const estimate& b) {
  return {(a.mean + b.mean) / 2, std::hypot(a.se, b.se) / 2};
}

struct search_lab {
  explicit search_lab(const settings& s) : how(s) {}
  const settings how;
  std::function<void(double)> progress;
};
void passages(search_lab& lab, table& out) {
  const settings& how = lab.how;
  const std::size_t of_each = how.quick ? 4 : 96;
  const unsigned threads =
      how.threads ? how.threads : std::max(1u, std::thread::hardware_concurrency());
  std::vector<std::vector<measured>> all;  // by count of passages, by window
  // Time goes with the passages read.
  const auto work = [](std::size_t n) { return double(std::max<std::size_t>(n, 1)); };
  double done = 0, every = 0;
  for (const std::size_t n : counts) every += work(n);
  for (const std::size_t n : counts) {
    const auto site = [&](const std::string& text) {
      const folder_of_documents folder(text);
      cli::site_options o{.model = model_file, .folder = n ? folder.path : "", .documents = n};
      o.most = 1 + prompt + continued;
      return cli::site_model(std::make_shared<cli::site_library>(o), threads);
    };
    cli::site_model left = site(texts[0]), right = site(texts[1]);
    const auto prompts = windows(left.tokens(), of_each, how.seed);
    auto& here = all.emplace_back();
    seen l, r;
    const double share = work(n) / every;
    for (const auto& window : prompts) {
      see(left, window, l);
      see(right, window, r);
      here.push_back(measure(l, r, std::span(window).last(continued), left.vocab_size()));
      lab.progress(done + share * double(here.size()) / double(prompts.size()));
    }
    done += share;
  }

  for (std::size_t t = 0; t <= texts.size(); ++t)
    for (std::size_t a = 0; a < laws.size(); ++a)
      for (std::size_t c = 0; c < counts.size(); ++c) {
        const auto over = [&](auto&& f) {
          const auto of = [&](std::size_t text) {
            return mean_of(text * of_each, (text + 1) * of_each, 1, f);
          };
          return t < texts.size() ? of(t) : halves(of(0), of(1));
        };
        const auto nats = [&](std::size_t count, std::size_t law, std::size_t i) {
          return all[count][i].nats[law];
        };
        const estimate own = over([&](std::size_t i) { return nats(c, a, i); }),
                       none = over([&](std::size_t i) { return nats(c, a, i) - nats(0, a, i); }),
                       one = over([&](std::size_t i) { return nats(c, a, i) - nats(1, a, i); }),
                       more = over([&](std::size_t i) { return nats(c, a, i) - nats(c, both, i); }),
                       weight = over([&](std::size_t i) { return all[c][i].device_weight; });
        out.add(t < texts.size() ? texts[t] : "mix", laws[a], counts[c],
                t < texts.size() ? of_each : 2 * of_each, own.mean, own.se, none.mean, none.se,
                one.mean, one.se, more.mean, more.se, weight.mean, weight.se);
      }
}

const std::vector<part<search_lab>> parts = {
    {"dragon-passages", false, 300, 10, header, passages},
    {"dragon-dealt", false, 80, 3, "text,window,corpora,law,scale,passages,nats,device_weight",
     [](search_lab& l, table& t) { dealt(l.how, t, l.progress); }},
};

}  // namespace
}  // namespace experiments

int main(int argc, char** argv) {
  std::vector<std::filesystem::path> inputs{experiments::model_file};
  for (const std::string& t : experiments::texts)
    for (const char* which : {"test", "valid"}) inputs.push_back(experiments::text_file(t, which));
  return experiments::program(argc, argv, "specagg-experiments-passages",
                              "Cross-entropy against retrieved passages: a CSV file",
                              experiments::parts, inputs);
}
