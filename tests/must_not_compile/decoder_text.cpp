// SPDX-License-Identifier: Apache-2.0
// EXPECT: specagg: a decoder takes a text, the most tokens, the models, .*docs/decoders.md
#include <specagg/audit/toy_source.hpp>
#include <specagg/decoders.hpp>

#ifdef SPECAGG_BROKEN
#define FIRST q, p, t, 9
#else
#define FIRST t, 9, q, p
#endif

using namespace specagg;
using source = toy_source<float>;

status decode(text& t, source& q, source& p, speculative_workspace<float>& work);
status decode(text& t, source& q, source& p, speculative_workspace<float>& work) {
  random_streams chooser(1);
  return speculative_decode(FIRST, lossless{}, chooser, work);
}
