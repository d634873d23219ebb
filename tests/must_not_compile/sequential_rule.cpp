// SPDX-License-Identifier: Apache-2.0
// EXPECT: view_before_target
#include <specagg/audit/toy_source.hpp>
#include <specagg/decoders.hpp>

struct policy {  // of a sequential cascade: decides before the target is called
  double alpha;
  static constexpr bool decides_by_draft = true;
  template <class Rows>
  auto bind(const Rows& rows) const {
#ifdef SPECAGG_BROKEN
    const bool defer = rows.max([](auto at) { return at.confidence_p; }) > alpha;
#else
    const bool defer = rows.max([](auto at) { return at.confidence_q; }) < 1 - alpha;
#endif
    return [=](auto at) { return select(defer, at.p, at.q); };
  }
};

using model = specagg::toy_source<float>;
specagg::status decode(specagg::text& t, model& small, model& large,
                       specagg::cascade_workspace<float>& work);
specagg::status decode(specagg::text& t, model& small, model& large,
                       specagg::cascade_workspace<float>& work) {
  specagg::random_streams chooser(1);
  return specagg::sequential_decode(small, large, policy{0.5}, chooser,
                                    {.text = t, .most = 9, .work = work});
}
