// SPDX-License-Identifier: Apache-2.0
// A slow link for measurements: hands TCP connections on to a port of this machine, later.
// usage: bench-slow_link SERVER_PORT DELAY_EACH_WAY_SECONDS BYTES_PER_SECOND(0: no limit)
// Prints its port; at the end of standard input the bytes that went to the server and came from it.
#include "../tests/support/slow_link.hpp"

#include <cstdio>
#include <cstdlib>

int main(int argc, char** argv) {
  if (argc != 4) {
    std::fputs("usage: bench-slow_link SERVER_PORT DELAY BYTES_PER_SECOND\n", stderr);
    return 2;
  }
  slow_link link(std::atoi(argv[1]), {std::atof(argv[2]), std::atof(argv[3])});
  std::printf("%d\n", link.port());
  std::fflush(stdout);
  while (std::getchar() != EOF) {
  }
  std::printf("%zu %zu\n", link.bytes(0), link.bytes(1));
}
