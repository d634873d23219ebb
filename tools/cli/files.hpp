// SPDX-License-Identifier: Apache-2.0
// Files of the user: read up to a limit, and an error where reading or writing fails.
#pragma once
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <string>
#include <system_error>

#include <specagg/error.hpp>

namespace cli {

// more than a context of a million tokens holds
inline constexpr std::size_t most_text_bytes = 16 << 20;

// A prompt, a certificate, ...: a file or a pipe.
inline std::string read_text(const std::string& path) {
  struct descriptor {
    int number;
    ~descriptor() {
      if (number >= 0) ::close(number);
    }
  };
  const auto fail = [&](const std::string& why) { throw specagg::error(path, "", why); };
  const auto why = [] { return " (" + std::generic_category().message(errno) + ")"; };
  // O_NONBLOCK: a pipe is opened even if nobody writes to it. From then on it is read as any file.
  const descriptor file{::open(path.c_str(), O_RDONLY | O_NONBLOCK | O_CLOEXEC)};
  struct stat kind{};
  if (file.number < 0 || fstat(file.number, &kind) != 0 || fcntl(file.number, F_SETFL, 0) != 0)
    fail("cannot be read" + why());
  std::string text;
  for (std::size_t size = 0;;) {
    text.resize(size + 65536);
    const ssize_t n = ::read(file.number, text.data() + size, text.size() - size);
    if (n < 0) fail("cannot be read" + why());
    text.resize(size += std::size_t(n));
    if (n == 0) break;
    if (size > most_text_bytes) fail("has more than " + std::to_string(most_text_bytes) + " bytes");
  }
  if (text.empty() && S_ISFIFO(kind.st_mode)) fail("is a pipe that nobody writes to");
  return text;
}

// The next line of standard input, which is its line `number` from 0; false where there is none. A
// line of more than `most` bytes is an error: what never ends must not fill the memory.
inline bool read_line(std::string& line, std::size_t number, std::size_t most) {
  line.clear();
  for (int c; (c = getc_unlocked(stdin)) != EOF;) {
    if (c == '\n') return true;
    if (line.size() == most)
      throw specagg::error("standard input", "line " + std::to_string(number + 1),
                           "has more than " + std::to_string(most) + " bytes");
    line.push_back(char(c));
  }
  if (std::ferror(stdin)) throw specagg::error("standard input", "", "cannot be read");
  return !line.empty();
}

// Flushes all that was printed so far: some of it may still be in memory, or not have been written.
inline void flush_output() {
  if (std::fflush(stdout) != 0 || std::ferror(stdout))
    throw specagg::error("standard output", "", "cannot be written");
}

}  // namespace cli
