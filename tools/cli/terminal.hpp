// SPDX-License-Identifier: Apache-2.0
// What a person sees: colours, a progress bar, and text that is cut only between characters.
#pragma once
#include <fmt/color.h>
#include <unistd.h>

#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <string_view>

#include <specagg/printable.hpp>
#include <specagg/verify/verify.hpp>

namespace cli {

// Whether a person looks at this file descriptor, at a terminal that knows escape sequences.
inline bool knows_escapes(int file) {
  const char* terminal = std::getenv("TERM");
  return isatty(file) && terminal && *terminal && std::string_view(terminal) != "dumb";
}

// A model's text, or a file's, of several lines, as a terminal may get it: what a terminal obeys,
// but for ends of lines and tabs, is spelled out as by printable(), and so are bytes that are not
// UTF-8. Characters without a width stay: emoji and some scripts need them.
inline std::string for_terminal(std::string_view text) {
  std::string shown;
  while (!text.empty()) {
    const auto c = specagg::utf8::first_code_point(text);
    const std::string_view piece = text.substr(0, c.bytes);
    const bool control = c.value < 0x20 || (c.value >= 0x7f && c.value <= 0x9f);
    const bool direction =
        (c.value >= 0x202a && c.value <= 0x202e) || (c.value >= 0x2066 && c.value <= 0x2069);
    const bool stays = piece == "\n" || piece == "\t" || (c.valid && !control && !direction);
    shown += stays ? std::string(piece) : specagg::printable(piece);
    text.remove_prefix(c.bytes);
  }
  return shown;
}
// The same, if standard output is a terminal. A file or a pipe gets the bytes of the text: nothing
// there obeys them, and programs compare them. `| less` spells controls out itself.
inline std::string shown(std::string_view text) {
  static const bool terminal = isatty(STDOUT_FILENO);
  return terminal ? for_terminal(text) : std::string(text);
}

enum class color { automatic, always, never };
inline color chosen_color = color::automatic;  // --color, set before anything is printed

// How standard output shows where tokens came from: in colours, at a terminal without them in
// brackets, and otherwise not at all, so that a file or a pipe gets the bare text.
enum class marks { none, brackets, colours };
inline marks output_marks() {
  static const marks chosen = [] {
    if (chosen_color != color::automatic)
      return chosen_color == color::always ? marks::colours : marks::none;
    const char* no_color = std::getenv("NO_COLOR");
    if (knows_escapes(STDOUT_FILENO) && !(no_color && *no_color)) return marks::colours;
    return isatty(STDOUT_FILENO) ? marks::brackets : marks::none;
  }();
  return chosen;
}
inline std::string coloured(fmt::text_style style, std::string_view text) {
  return output_marks() == marks::colours && !text.empty() ? fmt::format(style, "{}", shown(text))
                                                           : shown(text);
}
inline std::string bold(std::string_view text) { return coloured(fmt::emphasis::bold, text); }
inline std::string dim(std::string_view text) { return coloured(fmt::emphasis::faint, text); }

// A token's text, marked by where it came from: in colour, or as {residual} and [bonus].
inline std::string marked(std::string_view text, specagg::origin from) {
  using specagg::origin;
  if (text.empty()) return {};
  if (output_marks() == marks::none) return shown(text);
  if (output_marks() == marks::brackets)
    return from == origin::residual ? fmt::format("{{{}}}", shown(text))
           : from == origin::bonus  ? fmt::format("[{}]", shown(text))
                                    : shown(text);
  const auto colour = from == origin::accepted   ? fmt::terminal_color::green
                      : from == origin::residual ? fmt::terminal_color::bright_red
                                                 : fmt::terminal_color::bright_cyan;
  return fmt::format(fmt::fg(colour), "{}", shown(text));
}

// On stderr, if that is a terminal, once the work has taken half a second.
class progress {
 public:
  explicit progress(std::string what) : what_(std::move(what)) {}
  ~progress() { clear(); }
  void show(double done) {
    if (!due()) return;
    const int width = 30, full = int(done * width);
    const double spent = std::chrono::duration<double>(last_ - start_).count();
    fmt::print(stderr, "\r{} [{:#<{}}{:.<{}}] {:3.0f} %  {:.0f} s left ", what_, "", full, "",
               width - full, 100 * done, done > 0 ? spent / done - spent : 0);
    std::fflush(stderr);
  }
  // Where nobody knows how much is to come.
  void count(std::size_t done) {
    if (!due()) return;
    fmt::print(stderr, "\r{} {} ", what_, done);
    std::fflush(stderr);
  }
  void clear() {
    if (shown_) fmt::print(stderr, "\r\033[K");
    shown_ = false;
  }

 private:
  bool due() {
    using namespace std::chrono;
    const auto now = steady_clock::now();
    if (!tty_ || now - start_ < milliseconds(500) || now - last_ < milliseconds(50)) return false;
    last_ = now;
    return shown_ = true;
  }
  std::string what_;
  std::chrono::steady_clock::time_point start_ = std::chrono::steady_clock::now(), last_ = start_;
  bool tty_ = knows_escapes(STDERR_FILENO), shown_ = false;
};

// Where the system makes fewer threads than --threads asks for, the program goes on with those and
// says so.
inline void say_if_fewer(unsigned threads, unsigned asked) {
  if (threads < asked)
    std::fputs(
        fmt::format("specagg: --threads {}: the system lets it have {}\n", asked, threads).c_str(),
        stderr);
}

// Bytes at the end of `text` that begin a UTF-8 character whose rest is still to come.
inline std::size_t unfinished(std::string_view text) {
  for (std::size_t n = 1; n <= 3 && n <= text.size(); ++n) {
    const auto b = static_cast<unsigned char>(text[text.size() - n]);
    if (b < 0x80) return 0;
    if (b >= 0xC0) return n < (b >= 0xF0 ? 4u : b >= 0xE0 ? 3u : 2u) ? n : 0;
  }
  return 0;
}

}  // namespace cli
