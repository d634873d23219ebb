// SPDX-License-Identifier: Apache-2.0
// Runs the command-line program as a user does.
#pragma once
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstdio>
#include <initializer_list>
#include <string>

#include <specagg/printable.hpp>

#include "support/catch.hpp"

namespace cli {

struct ran {
  int status;
  std::string out;  // stdout and stderr
};
inline ran shell(const std::string& command) {
  FILE* pipe = popen(command.c_str(), "r");
  REQUIRE(pipe);
  ran r{-1, {}};
  std::array<char, 4096> buffer;
  while (const std::size_t n = std::fread(buffer.data(), 1, buffer.size(), pipe))
    r.out.append(buffer.data(), n);
  const int status = pclose(pipe);
  r.status = WIFEXITED(status) ? WEXITSTATUS(status) : -1;
  return r;
}
// With `output`, its standard output goes there instead. before: shell commands that come first.
inline ran run(const std::string& arguments, const std::string& input = "/dev/null",
               const std::string& output = "", const std::string& before = "") {
  return shell(before + std::string(SPECAGG_CLI) + " " + arguments + " 2>&1 <" + input +
               (output.empty() ? "" : " >" + output));
}
// One printable line, status 2, and every word of `words` in it.
inline void refuses(const std::string& arguments, std::initializer_list<const char*> words) {
  const ran r = run(arguments);
  INFO(arguments << "\n" << r.out);
  CHECK(r.status == 2);
  CHECK(std::count(r.out.begin(), r.out.end(), '\n') == 1);
  CHECK(specagg::printable(r.out, 100000) == r.out.substr(0, r.out.find('\n')) + "\\n");
  for (const char* word : words) CHECK(r.out.find(word) != std::string::npos);
}

// Whether the system has a pseudo-terminal for run_at_terminal. If not, the test has said so and
// should return; its name begins with "terminal:", so it is reported as not run
// (tests/CMakeLists.txt).
inline bool has_terminals() {
  const int terminal = posix_openpt(O_RDWR | O_NOCTTY | O_CLOEXEC);
  const bool there = terminal >= 0 && grantpt(terminal) == 0 && unlockpt(terminal) == 0 &&
                     access(ptsname(terminal), R_OK | W_OK) == 0;
  if (terminal >= 0) close(terminal);
  if (!there) std::puts("skipped: there is no pseudo-terminal (/dev/ptmx, /dev/pts)");
  std::fflush(stdout);
  return there;
}
// At a terminal. environment: as for env, "TERM=dumb" or "-u TERM".
inline ran run_at_terminal(const std::string& environment, const std::string& arguments) {
  const int terminal = posix_openpt(O_RDWR | O_NOCTTY | O_CLOEXEC);
  REQUIRE(terminal >= 0);
  REQUIRE(grantpt(terminal) == 0);
  REQUIRE(unlockpt(terminal) == 0);
  const std::string command = "exec env " + environment + " " + SPECAGG_CLI + " " + arguments +
                              " <" + ptsname(terminal) + " >" + ptsname(terminal) + " 2>&1";
  const pid_t process = fork();
  if (process == 0) {
    execl("/bin/sh", "sh", "-c", command.c_str(), nullptr);
    _exit(127);
  }
  REQUIRE(process > 0);
  // A read fails while the program has not opened its end yet, and when it has closed it.
  ran r{-1, {}};
  std::array<char, 4096> buffer;
  for (int status = 0; r.status < 0;) {
    const bool over = waitpid(process, &status, WNOHANG) == process;
    pollfd ready{terminal, POLLIN, 0};
    while (poll(&ready, 1, 10) > 0 && (ready.revents & POLLIN)) {
      const ssize_t n = read(terminal, buffer.data(), buffer.size());
      if (n <= 0) break;
      r.out.append(buffer.data(), std::size_t(n));
    }
    if (over) r.status = WIFEXITED(status) ? WEXITSTATUS(status) : 128;
  }
  close(terminal);
  return r;
}

// The program, while something else goes on. Killed when it goes out of scope.
class background {
 public:
  explicit background(const std::string& arguments, const std::string& before = "") {
    const std::string command =
        before + "exec " + std::string(SPECAGG_CLI) + " " + arguments + " 2>&1 </dev/null";
    std::array<int, 2> ends;
    REQUIRE(pipe2(ends.data(), O_CLOEXEC) == 0);
    process_ = fork();
    if (process_ == 0) {
      dup2(ends[1], STDOUT_FILENO);
      execl("/bin/sh", "sh", "-c", command.c_str(), nullptr);
      _exit(127);
    }
    close(ends[1]);
    REQUIRE(process_ > 0);
    out_ = fdopen(ends[0], "r");
  }
  ~background() {
    if (process_ > 0) end(SIGKILL);
    std::fclose(out_);
  }
  background(const background&) = delete;
  background& operator=(const background&) = delete;
  // The next line it says, without its end; empty when it says no more.
  std::string line() {
    std::string text;
    for (int c; (c = std::fgetc(out_)) != EOF && c != '\n';) text += char(c);
    return text;
  }
  // The rest of what it says, when it has ended by itself or by this signal.
  ran end(int signal = 0) {
    if (signal) kill(process_, signal);
    ran r{-1, {}};
    for (int c; (c = std::fgetc(out_)) != EOF;) r.out += char(c);
    int status = 0;
    waitpid(process_, &status, 0);
    process_ = -1;
    r.status = WIFEXITED(status) ? WEXITSTATUS(status) : -1;
    return r;
  }

 private:
  pid_t process_ = -1;
  FILE* out_ = nullptr;
};

}  // namespace cli
