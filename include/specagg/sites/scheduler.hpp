// SPDX-License-Identifier: Apache-2.0
// Which side aggregates next: the schedulers of DRAGON as one type, and the measurements that they
// use for real sites.
#pragma once
#include <algorithm>
#include <array>
#include <string_view>

#include <specagg/plan/profiler.hpp>
#include <specagg/sites/dragon.hpp>

SPECAGG_BEGIN
namespace sites {

// eq8: as in the paper. recursion: the side with the smaller exact time per token. moving: follows
// the recursion token by token, and aggregates where the drafts are. l, r: always that side.
// random: a fair coin.
enum class scheduling : std::uint8_t { l, r, random, eq8, recursion, moving };
inline constexpr std::array<std::string_view, 6> scheduling_names{"device", "cloud",     "random",
                                                                  "Eq 8",   "recursion", "moving"};

// Known must have void observe(const dragon_outcome&), and plan::dragon setting() for the present
// moment.
template <class Known>
struct scheduler {
  static constexpr bool looks_at_rows = true;
  scheduling how;
  Known known;
  std::size_t look_ahead;
  std::uint64_t seed = 0;    // for random
  plan::timeline line = {};  // for moving

  void learned(const dragon_outcome& o) {
    if (how == scheduling::moving) {
      const plan::dragon d = known.setting();
      if (line.step == 0) line = plan::timeline(d, look_ahead);
      line.aggregate(d, o.at, o.accepted_l, o.accepted_r);
    }
    known.observe(o);
  }
  side operator()(const dragon_outcome& o) const {
    switch (how) {
      case scheduling::l: return side::l;
      case scheduling::r: return side::r;
      case scheduling::random: return side(philox({o.step, 0, 0, 0}, seed)[0] & 1);
      case scheduling::eq8: return plan::side_by_eq8(known.setting());
      case scheduling::recursion: return plan::side_by_recursion(known.setting(), o.at);
      case scheduling::moving: break;
    }
    const plan::dragon d = known.setting();
    return plan::next_side(d, line, plan::side_by_recursion(d, o.at));
  }
};

// The decode times of a side as a function of context length: a line fitted to up to 64
// measurements, spread over all measurements made. At 64 measurements every second is removed, and
// from then on half as many are kept. Between the fits the slope changes with every new measurement
// (k_c stays fixed). A line that was fitted before (DRAGON, section 5.2, the offline stage) is
// never fitted again: only its slope changes.
class decode_profile {
 public:
  decode_profile() = default;
  explicit decode_profile(const plan::decode_time& fitted_before)
      : line_(fitted_before), fits_(false) {}

  // Adds a measurement. A measurement of 0 s or less, or NaN, changes nothing.
  void observe(std::size_t context, double seconds) {
    if (!(seconds > 0)) return;
    // an outlier moves the line by no more than twice as much
    const double due = line_(double(context));
    line_.observe(double(context), due > 0 ? std::clamp(seconds, due / 2, 2 * due) : seconds, 0.05);
    if (!fits_ || seen_++ % stride_ != 0) return;
    context_[size_] = double(context);
    seconds_[size_] = seconds;
    ++size_;
    if (size_ <= 8 || size_ % 8 == 0) fit();
    if (size_ < most) return;
    for (std::size_t i = 0; 2 * i < most; ++i) {
      context_[i] = context_[2 * i];
      seconds_[i] = seconds_[2 * i];
    }
    size_ = most / 2;
    stride_ *= 2;
  }
  const plan::decode_time& line() const { return line_; }

 private:
  static constexpr std::size_t most = 64;
  void fit() {
    std::array<double, most> scratch;
    line_ = plan::fit_decode_time(std::span(context_).first(size_),
                                  std::span(seconds_).first(size_), scratch);
    if (size_ < 8) {  // too few for a slope: use their median
      std::copy_n(seconds_.begin(), size_, scratch.begin());
      std::nth_element(scratch.begin(), scratch.begin() + size_ / 2, scratch.begin() + size_);
      line_ = {0, 1, scratch[size_ / 2]};
    }
  }
  std::array<double, most> context_ = {}, seconds_ = {};
  std::size_t size_ = 0, seen_ = 0, stride_ = 1;
  plan::decode_time line_;
  bool fits_ = true;
};

// The measurements of one end about both sites while they run. Times in seconds. Not thread-safe.
class live_profile {
 public:
  static constexpr double z = 0.05;  // weight of a new observation

  live_profile() = default;
  // Decode times of the sites that were fitted before; they count from the first token on.
  explicit live_profile(const std::array<decode_profile, 2>& decode) : decode_(decode) {
    known_.decode_l = decode_[0].line();
    known_.decode_r = decode_[1].line();
  }

  // Adds the measurements of a step.
  void observe(const dragon_outcome& o) {
    for (std::size_t s = 0; s < 2; ++s) {
      decode_[s].observe(o.step, double(o.seconds[s]));
      if (o.bytes[s] > 0) bytes_[s].observe(double(o.bytes[s]), z);
    }
    const agreement& e = o.expected;
    known_.observe(e, z);
    known_.decode_l = decode_[0].line();
    known_.decode_r = decode_[1].line();
    step_ = o.step;
  }
  // Adds an echo that came back after `seconds` and was sent after `bytes` bytes.
  void observe_round_trip(std::size_t bytes, double seconds) {
    echoes_.observe(double(bytes), seconds, z);
    known_.observe_round_trip(std::max(echoes_.base(), 0.0), 1);
    if (const double each = echoes_.slope(); each > 0) {
      known_.from_l.bandwidth.observe(1 / each, z);
      known_.from_r.bandwidth.observe(1 / each, z);
    }
  }
  // The setting for the next token, from the present measurements.
  plan::dragon setting() const {
    return known_.setting(double(step_), double(step_), bytes_[0].value, bytes_[1].value);
  }
  double round_trip() const { return known_.from_l.latency.value + known_.from_r.latency.value; }

 private:
  std::array<decode_profile, 2> decode_;
  std::array<plan::moving_average, 2> bytes_;  // of the row of a draft
  plan::moving_line echoes_;
  plan::profile known_;
  std::uint32_t step_ = 0;
};

}  // namespace sites
SPECAGG_END
