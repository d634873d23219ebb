// SPDX-License-Identifier: Apache-2.0
#include "decoders.hpp"

int main() {
  return appends_20([](text& t, std::size_t n, auto& random, auto& d,
                       auto& m) { return write(t, n, d, m, random); },
                    toy(1), toy(2))
             ? 0
             : 1;
}
