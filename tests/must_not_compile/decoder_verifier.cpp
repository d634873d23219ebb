// SPDX-License-Identifier: Apache-2.0
// EXPECT: specagg: this verifies no drafts of this decoder
#include <specagg/audit/toy_source.hpp>
#include <specagg/decoders.hpp>

using namespace specagg;

status decode(text& t, toy_source<float>& q, speculative_workspace<float>& work);
status decode(text& t, toy_source<float>& q, speculative_workspace<float>& work) {
  random_streams random(1);
#ifdef SPECAGG_BROKEN
  return speculative_decode(t, 9, q, q, lossless{}, random, work, with::verifier{traversal{}});
#else
  return speculative_decode(t, 9, q, q, lossless{}, random, work, with::verifier{block_verifier{}});
#endif
}
