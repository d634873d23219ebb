// SPDX-License-Identifier: Apache-2.0
// DRAGON (Liu et al. 2025) with a model that reads: SmolLM2-135M-Instruct on both sites, documents
// from Debian's packages (documents.py). Figure 5 (real-dragon-dealt), questions with exact answers
// (real-dragon-answers), the rows that the sites send (real-dragon-rows), seconds of a step
// (real-dragon-times), and what follows from these and the paper's delays: figures 6 and 7
// (real-dragon-latency).
#include <chrono>

#include <specagg/format.hpp>
#include <specagg/sites/codec.hpp>

#include "real_lab.hpp"

namespace experiments {
namespace {

void dealt(real_lab& lab, table& out) {
  figure_5(lab.model(), lab.documents(), lab.how.quick ? 1 : 24, lab.how, out, lab.progress);
}

// ---- rows ---------------------------------------------------------------------------------------

// A site's rows at `each` positions of a window, of its passages read side by side. h: that of its
// scores.
std::vector<float> rows_of_site(const reader& reads, const job& j, const found& f, std::size_t each,
                                double& h) {
  const std::size_t v = reads.weights->vocab;
  std::vector<std::vector<float>> of;
  std::vector<double> relevance;
  for (std::size_t d = 0; d < f.size(); ++d) {
    cpu::llama s = reads.session(2 + cli::passages::length + j.tokens.size());
    reads.read(s, f.passages[d]);
    reads.rows(s, j.tokens, of.emplace_back(continued * v));
    relevance.push_back(scales[0] * f.scores[d]);
  }
  std::vector<float> mixed(each * v), scratch(2 * f.size());
  for (std::size_t i = 0; i < each; ++i) {
    std::vector<std::span<const float>> at;
    for (const auto& x : of) at.push_back(std::span(x).subspan(i * (continued / each) * v, v));
    const site_share share =
        mix_documents<float>(at, relevance, std::span(mixed).subspan(i * v, v), scratch);
    reads.check(share.why);
    h = share.h;
  }
  return mixed;
}

// What arrives of a row, and in how many bytes.
std::size_t send(const reader& reads, const row_codec& codec, const row_of& whole, row_of& sent) {
  std::vector<std::uint8_t> buffer(codec.max_bytes<float>());
  std::vector<token_id> ids(codec.max_tokens());
  std::vector<float> mass(whole.size());
  const auto coded =
      encode(codec, dense_row<float>(std::span<const float>(whole)), buffer, ids, mass);
  reads.check(coded.why);
  const auto& decoded = coded.row;
  reads.check(decoded.why());
  sent.resize(whole.size());
  for (std::size_t x = 0; x < whole.size(); ++x) sent[x] = decoded[x];
  return coded.bytes;
}

// What the sites send at positions of held-out text, two passages a site as in figure 6, and how
// often each accepts the other's tokens.
void rows(real_lab& lab, table& out) {
  const reader& reads = lab.model();
  const corpora& documents = lab.documents();
  const std::size_t of_each = lab.how.quick ? 1 : 16, each = lab.how.quick ? 2 : 16;
  const std::size_t v = reads.weights->vocab;
  std::vector<job> jobs = jobs_of(reads, documents, of_each, lab.how.seed);
  using values = row_codec::values;
  const std::vector<std::pair<const char*, row_codec>> codecs{
      {"whole", {.vocabulary = v}},
      {"top-p 0.8 half", {.vocabulary = v, .format = values::half, .top_p = 0.8}},
      {"top-k 64 half", {.vocabulary = v, .format = values::half, .top_k = 64}},
      {"counts 8 of 64", {.vocabulary = v, .format = values::counts, .top_k = 8, .total = 64}}};
  const auto run = [&](job& j) {
    const auto query = reads.tokens.decode(std::span<const token_id>(j.tokens).first(query_tokens));
    const found all = search(documents.all, query, 4);
    const auto [cloud, device] = deal(all, 2);
    double h_l = 0, h_r = 0;
    std::vector<float> l = rows_of_site(reads, j, device, each, h_l),
                       r = rows_of_site(reads, j, cloud, each, h_r);
    const site_weights eta = weigh_sites(h_l, h_r);
    for (std::size_t i = 0; i < each; ++i) {
      std::array<row_of, 2> whole;
      for (std::size_t s = 0; s < 2; ++s) {
        const auto at = (s == 0 ? l : r).begin() + std::ptrdiff_t(i * v);
        whole[s].assign(at, at + std::ptrdiff_t(v));
        to_probabilities(whole[s]);
      }
      // a list of numbers, each with as many digits as its double needs
      std::size_t json = 2 * v;
      for (const float x : whole[1]) json += fmt::formatted_size("{}", double(x));
      for (const auto& [name, codec] : codecs) {
        std::array<row_of, 2> sent;
        std::size_t bytes = 0;
        double tv = 0;
        for (std::size_t s = 0; s < 2; ++s) {
          const std::size_t coded = send(reads, codec, whole[s], sent[s]);
          if (s == 0) continue;
          bytes = coded;
          for (std::size_t x = 0; x < v; ++x)
            tv += std::abs(double(sent[s][x]) - double(whole[s][x])) / 2;
        }
        const agreement a =
            agreement_of(std::span<const float>(sent[0]), std::span<const float>(sent[1]), eta);
        j.rows.emplace_back([=, &j, &documents, name = name](table& to) {
          to.add(documents.of[j.text].name, j.window, i, name, json, bytes, tv, a.both, a.only_l,
                 a.only_r);
        });
      }
    }
  };
  each_of(jobs.size(), lab.how.threads, lab.progress, [&](std::size_t i) { run(jobs[i]); });
  for (const job& j : jobs)
    for (const auto& add : j.rows) add(out);
}

// ---- seconds ------------------------------------------------------------------------------------

// A token after two passages read side by side: on one thread (the device), on two (the cloud).
// What reading a token costs, in texts of the lengths that figure 7 reads.
void times(real_lab& lab, table& out) {
  const reader& reads = lab.model();
  const std::size_t repeats = lab.how.quick ? 3 : 21;
  const auto add = [&](const char* what, unsigned threads, std::size_t tokens, auto&& once) {
    std::vector<double> seconds;
    for (std::size_t i = 0; i <= repeats; ++i) {
      const auto begin = std::chrono::steady_clock::now();
      once();
      const double s =
          std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
      if (i > 0) seconds.push_back(s);  // the first one warms up
    }
    std::sort(seconds.begin(), seconds.end());
    out.add(what, threads, tokens, seconds[repeats / 2], seconds[repeats / 4],
            seconds[3 * repeats / 4]);
    lab.progress(0.1);
  };
  std::vector<token_id> text(512);
  for (std::size_t i = 0; i < text.size(); ++i) text[i] = token_id(1000 + 7 * i % 20000);
  const std::span<const token_id> some(text);
  for (const unsigned threads : {1u, 2u}) {
    const auto pool = std::make_shared<thread_pool>(threads);
    std::vector<cpu::llama> sessions;
    std::vector<std::vector<float>> logits(2, std::vector<float>(reads.weights->vocab));
    for (std::size_t d = 0; d < 2; ++d) {
      sessions.push_back(reads.session(256));
      reads.check(sessions[d].extend(some.first(160), {}));
    }
    add("step of two documents", threads, 1, [&] {
      pool->for_ranges(2, 1, [&](std::size_t begin, std::size_t end) {
        for (auto d = begin; d < end; ++d) {
          reads.check(sessions[d].extend(some.subspan(200, 1), logits[d]));
          reads.check(sessions[d].rollback(160));
        }
      });
    });
    for (const std::size_t n : {64u, 128u, 320u}) {
      cpu::llama s(reads.weights, threads > 1 ? pool : nullptr, 512);
      add("read", threads, n, [&] {
        reads.check(s.extend(some.first(n), {}));
        reads.check(s.rollback(0));
      });
    }
  }
}

const std::vector<part<real_lab>> parts = {
    {"real-dragon-dealt", false, 450, 20,
     "text,window,corpora,law,scale,passages,nats,device_weight", dealt},
    {"real-dragon-answers", false, 420, 12, "answer,law,scale,passages,exact,rank", answers},
    {"real-dragon-rows", false, 60, 3,
     "text,window,position,codec,json_bytes,bytes,tv,both,only_l,only_r", rows},
    {"real-dragon-times", true, 40, 5, "what,threads,tokens,seconds,quartile_1,quartile_3", times},
    {"real-dragon-latency", true, 60, 2, "what,delay_ms,side,sequences,mean,se", latency,
     "real-dragon-times real-dragon-rows"},
};

}  // namespace
}  // namespace experiments

int main(int argc, char** argv) {
  namespace e = experiments;
  return e::program(argc, argv, "specagg-experiments-documents",
                    "DRAGON with SmolLM2 and documents of Debian: a CSV file for each part",
                    e::parts,
                    {e::model_file(), e::script, "/usr/share/doc/debian-policy/policy.txt.gz",
                     "/usr/share/developers-reference/developers-reference.txt.gz",
                     "/usr/share/man/man3/printf.3.gz"});
}
