// SPDX-License-Identifier: Apache-2.0
// Two sites over a network: the options, and what both ends do.
#pragma once
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include <specagg/error.hpp>
#include <specagg/sites/net/grpc.hpp>
#include <specagg/sites/net/runner.hpp>
#include <specagg/sites/net/sessions.hpp>

#include "site_model.hpp"
#include "trace.hpp"

namespace cli {

namespace net = specagg::net;
namespace sites = specagg::sites;

// The words of an option, and what each means.
template <class T>
using words = std::vector<std::pair<const char*, T>>;
inline const words<sites::scheduling> schedulings = {
    {"device", sites::scheduling::l},      {"cloud", sites::scheduling::r},
    {"eq8", sites::scheduling::eq8},       {"recursion", sites::scheduling::recursion},
    {"moving", sites::scheduling::moving}, {"random", sites::scheduling::random}};
inline const words<sites::protocol> splits = {{"dsd", sites::protocol::dsd},
                                              {"dsd-block", sites::protocol::dsd_block},
                                              {"dssd", sites::protocol::dssd},
                                              {"shared", sites::protocol::split_shared}};
inline const words<sites::protocol> noises = {{"shared", sites::protocol::dragon_shared},
                                              {"independent", sites::protocol::dragon}};
inline const words<specagg::sites::row_codec::values> codecs = {
    {"full", specagg::sites::row_codec::values::full},
    {"half", specagg::sites::row_codec::values::half},
    {"counts", specagg::sites::row_codec::values::counts}};
inline const words<specagg::side> firsts = {{"device", specagg::side::l},
                                            {"cloud", specagg::side::r}};
template <class T>
std::vector<std::string> names_of(const words<T>& all) {
  std::vector<std::string> names;
  for (const auto& [name, meaning] : all) names.emplace_back(name);
  return names;
}
// word: one of them.
template <class T>
T meaning_of(const std::string& word, const words<T>& all) {
  return std::find_if(all.begin(), all.end(), [&](auto& w) { return word == w.first; })->second;
}

struct two_sites_options {
  bool dragon = true;
  site_options site;
  std::string backend = "cpu";
  unsigned threads = 1;
  std::uint64_t seed = 1;
  std::string scheduler = "moving", trace;
  // files of `dragon profile`: of the device, of the cloud; or none
  std::array<std::string, 2> profiles = {};
  std::array<sites::decode_profile, 2> decode = {};  // what is in them
  bool as_json = false;
  // the wire
  std::string address = "127.0.0.1:7411", certificate, key, authority, token;  // files
  bool insecure = false;
  // serve
  std::size_t sessions = 16;
  double keep = 600;
  // device
  std::string prompt = "ROMEO:\nO, she doth teach the torches to burn bright!\n", prompt_file;
  std::uint32_t max_tokens = 200, look_ahead = 8, gamma = 4;
  specagg::sampling sample = {.temperature = 0.8};
  std::string noise = "shared", split = "dssd", codec = "half", first = "device", session;
  std::uint32_t row_top_k = 64, row_total = 1024;
  double row_top_p = 1, give_up = 30;
  bool alone = false, origins = false;
};

using ordered_json = nlohmann::ordered_json;
// A line of JSON. A text may end within a character.
std::string line_of(const ordered_json& j);
// A file's text; none, if no file is named. Throws specagg::error if it is empty.
std::string content_of(const std::string& path);

net::security security_of(const two_sites_options& o, bool serves);
net::limits limits_of(const two_sites_options& o, std::size_t vocabulary);
// How rows are made of logits, as the hello says it.
std::string text_of(const specagg::sampling& s);
std::uint64_t hash_of_vocabulary(const site_maker& of);
std::uint64_t hash_of_tokenization(const site_maker& of);
std::uint64_t random_bits();

std::shared_ptr<site_maker> open_sites(const two_sites_options& o);
void add_mapped(ordered_json& j, const site_maker& of);
// A session's model, made for `most` tokens, if there is room in it for a text of so many.
std::shared_ptr<site> model_for(const two_sites_options& o, site_maker& library, std::size_t tokens,
                                std::size_t most);
// Decode times that `dragon profile` measured, where its file is given.
std::array<sites::decode_profile, 2> profiles_of(const two_sites_options& o);

struct running {
  std::shared_ptr<session_watch> watch;
  std::shared_ptr<sites::live_profile> profile;
  std::shared_ptr<net::running_site> site;
};
// A site of either protocol, either side, with its model on its thread.
running run_site(const two_sites_options& o, const sites::hello& terms,
                 std::span<const specagg::token_id> prompt, site_maker& library, std::size_t most,
                 const std::shared_ptr<trace_file>& trace);
ordered_json report(const running& r);
// "device  120 tokens | acceptance 0.71 | epoch 98 | aggregates | 301 ms round trip | 41 bytes a
//          token sent"
std::string live_line(specagg::side s, const running& r);

extern std::atomic<bool> interrupted;
void until_interrupted();

void serve(two_sites_options o);
void device(two_sites_options o);
// dragon profile: the offline stage of DRAGON's section 5.2
void profile(const two_sites_options& o);

}  // namespace cli
