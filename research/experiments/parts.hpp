// SPDX-License-Identifier: Apache-2.0
// A program of the experiments: a list of parts, each of which writes one CSV file when it is
// finished. A part whose file is there, with the line of settings that this run would write, is not
// run again.
//   exact/  the same numbers in every run with the same seed, on any number of threads
//   timed/  seconds; a finished part keeps those of the run that finished it
#pragma once
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <iterator>
#include <string_view>

#include "../../tools/cli/effects.hpp"
#include "table.hpp"

namespace experiments {

// Lab(settings) is made once for all parts; a part calls lab.progress(share of it that is done).
template <class Lab>
struct part {
  const char* name;
  bool timed;
  double seconds, quick_seconds;  // about, for the time left
  const char* header;
  void (*run)(Lab&, table&);
  // parts that this one or its claims read, with spaces between; they are run with it
  std::string_view needs = "";
};

namespace detail {
inline std::uint64_t hash(std::uint64_t h, const std::string& bytes) {  // FNV-1a
  for (const char c : bytes) h = (h ^ std::uint8_t(c)) * 0x100000001b3;
  return h;
}
// The parts that have one of `only` in their name, and those that they need; all, if it is empty.
template <class Lab>
std::vector<bool> parts_due(const std::vector<part<Lab>>& parts,
                            const std::vector<std::string>& only) {
  std::vector<bool> due(parts.size());
  const auto ask = [&](auto& self, std::size_t i) -> void {
    due[i] = true;
    const std::string needs = fmt::format(" {} ", parts[i].needs);
    for (std::size_t k = 0; k < parts.size(); ++k)
      if (needs.find(fmt::format(" {} ", parts[k].name)) != std::string::npos) self(self, k);
  };
  for (std::size_t i = 0; i < parts.size(); ++i)
    if (only.empty() || std::any_of(only.begin(), only.end(), [&](const std::string& one) {
          return std::string(parts[i].name).find(one) != std::string::npos;
        }))
      ask(ask, i);
  return due;
}
// Under its name only when it is all there.
inline void write_whole(const std::filesystem::path& path, const std::string& text) {
  std::filesystem::create_directories(path.parent_path());
  auto partial = path;
  partial += ".partial";
  {
    std::ofstream file(partial, std::ios::binary);
    file << text << std::flush;
    if (!file) throw specagg::error(partial.string(), "", "cannot be written");
  }
  std::filesystem::rename(partial, path);
}
}  // namespace detail

inline std::string content(const std::filesystem::path& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

// Runs the parts that have one of `only` in their name, and those that they need. inputs: what the
// numbers depend on, the program among them.
template <class Lab>
void run(const std::vector<part<Lab>>& parts, const settings& how,
         const std::vector<std::string>& only, const std::vector<std::filesystem::path>& inputs) {
  const auto begin = std::chrono::steady_clock::now();
  std::uint64_t from = 0xcbf29ce484222325;
  for (const auto& file : inputs) from = detail::hash(from, content(file));
  const auto path = [&](const part<Lab>& p) {
    return how.out / (p.timed ? "timed" : "exact") / (std::string(p.name) + ".csv");
  };
  const auto first_line = [&](const part<Lab>& p) {
    return fmt::format("# {}; {}; seed {}; inputs {:016x}\n", p.name, how.quick ? "quick" : "full",
                       how.seed, from);
  };
  const auto takes = [&](const part<Lab>& p) { return how.quick ? p.quick_seconds : p.seconds; };
  const std::vector<bool> due = detail::parts_due(parts, only);
  std::vector<const part<Lab>*> left;
  double all = 0;  // expected seconds of the parts left
  for (std::size_t i = 0; i < parts.size(); ++i) {
    if (!due[i]) continue;
    if (content(path(parts[i])).starts_with(first_line(parts[i]))) {
      fmt::print(stderr, "{:<24} is there\n", parts[i].name);
      continue;
    }
    left.push_back(&parts[i]);
    all += takes(parts[i]);
  }
  if (left.empty()) return;
  Lab lab(how);
  double done = 0, shown = 0;
  for (const part<Lab>* p : left) {
    const auto say = [&](double share, bool always) {
      const double now =
          std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
      const double finished = done + takes(*p) * std::min(share, 1.0),
                   pace = finished > 10 ? now / finished : 1;
      const bool terminal = isatty(2);
      if (!always && now - shown < (terminal ? 0.5 : 15)) return;
      shown = now;
      fmt::print(stderr, "{}{:<24} {:3.0f} %, {:.0f} s, about {:.0f} s left{}",
                 terminal ? "\r\033[K" : "", p->name, 100 * share, now,
                 std::max(0.0, all - finished) * pace, terminal && !always ? "" : "\n");
      std::fflush(stderr);
    };
    lab.progress = [&](double share) { say(share, false); };
    table t(p->header);
    p->run(lab, t);
    detail::write_whole(path(*p), first_line(*p) + t.text());
    done += takes(*p);
    say(1, true);
  }
}

// The whole of main(). inputs: the files that the numbers depend on, this program aside.
template <class Lab>
int program(int argc, char** argv, const char* name, const char* about,
            const std::vector<part<Lab>>& parts, std::vector<std::filesystem::path> inputs) {
  CLI::App app(about, name);
  settings how;
  std::vector<std::string> only;
  app.add_flag("--quick", how.quick, "Few positions and tokens");
  app.add_option("--seed", how.seed, "Of all random numbers")->capture_default_str();
  app.add_option("--threads", how.threads, "Of the exact parts; 0: one for each core")
      ->check(CLI::Range(0, 256))
      ->capture_default_str();
  app.add_option("--out", how.out,
                 "Folder of the CSV files; parts that are there are not run again")
      ->capture_default_str();
  app.add_option(
         "--part", only,
         "Only the parts with this in their name, and what they need; may be given several times")
      ->allow_extra_args(false);
  cli::check_values_of_all(app);
  try {
    app.parse(argc, argv);
    std::error_code none;
    const auto self = std::filesystem::read_symlink("/proc/self/exe", none);
    inputs.insert(inputs.begin(), none ? argv[0] : self);
    run(parts, how, only, inputs);
    return 0;
  } catch (const CLI::ParseError& e) {
    if (e.get_exit_code() == 0) return app.exit(e);
    fmt::print(stderr, "{}: {} (--help says more)\n", name, specagg::printable(e.what(), 4000));
  } catch (const std::exception& e) {
    fmt::print(stderr, "{}: {}\n", name, specagg::printable(e.what(), 4000));
  }
  return 2;
}

}  // namespace experiments
