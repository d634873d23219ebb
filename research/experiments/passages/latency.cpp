// SPDX-License-Identifier: Apache-2.0
// real-dragon-latency: figures 6 and 7 with the seconds and acceptances of the other parts.
#include <cstdlib>

#include <specagg/plan/dragon.hpp>

#include "../../../tools/cli/scheduled.hpp"
#include "real_lab.hpp"

namespace experiments {
namespace {

constexpr double base = 0.001, link = 100e6 / 8;  // s; bytes a second
constexpr std::uint32_t tokens = 20;
constexpr std::pair<const char*, sites::scheduling> sides[] = {
    {"device", sites::scheduling::l},
    {"cloud", sites::scheduling::r},
    {"random", sites::scheduling::random}};

double number(const records::value_type& r, const char* column) {
  return std::strtod(r.at(column).c_str(), nullptr);
}

// What the other parts found.
struct measured {
  records times;
  agreement law;
  double row_bytes = 0;          // of a row as DRAGON sends it
  double device = 0, cloud = 0;  // s of a step

  explicit measured(const settings& how) : times(experiments::read(how, "real-dragon-times")) {
    double n = 0;
    for (const auto& r : experiments::read(how, "real-dragon-rows")) {
      if (r.at("codec") != "top-p 0.8 half") continue;
      law.both += number(r, "both");
      law.only_l += number(r, "only_l");
      law.only_r += number(r, "only_r");
      row_bytes += number(r, "bytes");
      ++n;
    }
    if (n == 0) throw error("real-dragon-rows", "", "is missing");
    law = {law.both / n, law.only_l / n, law.only_r / n};
    row_bytes /= n;
    device = seconds("step of two documents", "1", "1");
    cloud = seconds("step of two documents", "2", "1");
  }
  double seconds(const char* what, const char* threads, const char* read) const {
    for (const auto& r : times)
      if (r.at("what") == what && r.at("threads") == threads && r.at("tokens") == read)
        return number(r, "seconds");
    throw error("real-dragon-times", what, "is missing");
  }
};

// Decodes 20 tokens under an added delay, by the simulation that the bundled models have.
struct delayed {
  const measured& by;
  std::uint64_t seed;
  table& out;
  std::size_t repeats;

  std::vector<double> times(double delay, const agreement& accept, std::uint32_t look_ahead,
                            sites::scheduling how) const {
    const cli::scheduled_setting setting{by.device, by.cloud, base,      delay,
                                         accept,    tokens,   look_ahead};
    std::vector<double> ms(repeats);
    for (std::size_t i = 0; i < repeats; ++i)
      ms[i] = 1e3 * cli::scheduled_run(setting, how, seed + i).all / double(tokens);
    return ms;
  }
  template <class Of>
  void add(const char* what, double delay, std::string_view side, Of&& of) const {
    const estimate e = mean_of(0, repeats, 1, of);
    out.add(what, 1e3 * delay, side, repeats, e.mean, e.se);
  }
  void exactly(const char* what, double delay, double x) const {
    out.add(what, 1e3 * delay, "", 1, x, NAN);
  }
  // whole_row: bytes of one of 16 bits a token.
  void figure_6(double delay, double whole_row) const {
    const double way = base + delay / 2;
    const auto synchronous = times(delay, {}, 1, sites::scheduling::l),
               eq8 = times(delay, by.law, 16, sites::scheduling::eq8);
    add("ms", delay, "token-wise", [&](std::size_t i) { return synchronous[i]; });
    add("ms", delay, "Eq 8", [&](std::size_t i) { return eq8[i]; });
    // rows as DRAGON sends them, or as whole rows of 16 bits
    for (const auto& [name, bytes] :
         {std::pair{"sequence-wise", by.row_bytes}, {"sequence-wise of whole rows", whole_row}})
      exactly(
          name, delay,
          1e3 * plan::sequence_wise_latency({by.device, by.cloud, way, way}, tokens, bytes / link));
    add("saved", delay, "Eq 8", [&](std::size_t i) { return 1 - eq8[i] / synchronous[i]; });
    for (const auto& [name, how] : sides) {
      const auto other = times(delay, by.law, 16, how);
      add("ms", delay, name, [&](std::size_t i) { return other[i]; });
      add("Eq 8 adds", delay, name, [&](std::size_t i) { return eq8[i] / other[i] - 1; });
    }
  }
  // A query of 64 tokens, and two documents of 64 on each side, whose keys and values, `kept` bytes
  // a token, are kept there. Retrieval takes the paper's 52.6 ms.
  void figure_7(double delay, double kept) const {
    constexpr double retrieval = 0.0526;
    const double way = base + delay / 2, step = by.device,
                 query = 2 * by.seconds("read", "1", "64"),
                 at_cloud = 2 * by.seconds("read", "2", "64");
    const plan::dragon first{query + step, at_cloud + by.cloud, way, way, {}};
    const auto ms = [&](const char* name, double x) {
      out.add("first ms", 1e3 * delay, name, 1, 1e3 * (retrieval + x), NAN);
    };
    ms("device alone", query + step);
    ms("DRAGON", plan::first_token_latency(first));
    const double alone = step / 2;  // one context, not two side by side
    ms("DRCG/Text",
       plan::first_token_by_text({alone, by.cloud, way, way, {}}, by.seconds("read", "1", "320")));
    ms("DRCG/KV",
       plan::first_token_by_cache({alone + query / 2, by.cloud, way, way, {}}, 128 * kept / link));
  }
};

}  // namespace

// Under 0 to 300 ms of added delay. The link has 100 Mbit/s, as the paper's.
void latency(real_lab& lab, table& out) {
  const measured by(lab.how);
  const reader& reads = lab.model();
  delayed at{by, lab.how.seed, out, lab.how.quick ? 4u : 200u};
  at.exactly("acceptance of the device", 0, by.law.l());
  at.exactly("acceptance of the cloud", 0, by.law.r());
  at.exactly("device ms", 0, 1e3 * by.device);
  at.exactly("cloud ms", 0, 1e3 * by.cloud);
  // keys and values of a token, as floats
  const double kept =
      2 * double(reads.weights->layers.size() * reads.weights->kv_heads * reads.weights->head_dim) *
      sizeof(float);
  at.exactly("bytes of a token's keys and values", 0, kept);
  for (const double delay : {0.0, 0.05, 0.1, 0.15, 0.2, 0.25, 0.3}) {
    at.figure_6(delay, 2 * double(reads.weights->vocab));
    at.figure_7(delay, kept);
    lab.progress(delay / 0.6);
  }
  at.repeats = lab.how.quick ? 8 : 2000;
  for (const double delay : {0.1, 0.3}) {
    const auto eq8 = at.times(delay, by.law, 16, sites::scheduling::eq8);
    for (const auto& [name, how] : sides) {
      const auto other = at.times(delay, by.law, 16, how);
      at.add("ms saved", delay, name, [&](std::size_t i) { return other[i] - eq8[i]; });
    }
    lab.progress(0.5 + delay / 0.6);
  }
}

}  // namespace experiments
