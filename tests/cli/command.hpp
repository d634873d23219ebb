// SPDX-License-Identifier: Apache-2.0
// Runs the command-line program as a user does.
#pragma once
#include <sys/wait.h>

#include <algorithm>
#include <array>
#include <cstdio>
#include <initializer_list>
#include <string>

#include "support/catch.hpp"

namespace cli {

struct ran {
  int status;
  std::string out;  // stdout and stderr
};
inline ran run(const std::string& arguments, const std::string& input = "/dev/null") {
  const std::string command = std::string(SPECAGG_CLI) + " " + arguments + " 2>&1 <" + input;
  FILE* pipe = popen(command.c_str(), "r");
  REQUIRE(pipe);
  ran r{-1, {}};
  std::array<char, 4096> buffer;
  while (const std::size_t n = std::fread(buffer.data(), 1, buffer.size(), pipe)) r.out.append(buffer.data(), n);
  const int status = pclose(pipe);
  r.status = WIFEXITED(status) ? WEXITSTATUS(status) : -1;
  return r;
}
// One line, status 2, and every word of `words` in it.
inline void refuses(const std::string& arguments, std::initializer_list<const char*> words) {
  const ran r = run(arguments);
  INFO(arguments << "\n" << r.out);
  CHECK(r.status == 2);
  CHECK(std::count(r.out.begin(), r.out.end(), '\n') == 1);
  for (const char* word : words) CHECK(r.out.find(word) != std::string::npos);
}

}  // namespace cli
