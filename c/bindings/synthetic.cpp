// SPDX-License-Identifier: Apache-2.0
// Synthetic acceptance of drafts that were verified. Built once for each instruction set.
#include <specagg/verify/synthetic.hpp>

#include "edit.hpp"
#include "verify.hpp"

namespace {

// In the place of a verifier that has decided already.
struct decided {
  template <class... Arguments>
  verdict verify(Arguments&&...) const {
    return {};
  }
};
template <class Any>
verdict synthetic(const engine::request& r, const synthetic_acceptance& how) {
  return verify_rows(r, synthetic_verifier<decided>({}, &how), lossless{}, rows_in<Any>(r, r.q),
                     rows_in<Any>(r, r.p));
}

}  // namespace

extern "C" void specagg_engine_synthetic(const engine::request* given,
                                         const synthetic_acceptance* how, verdict* result) {
  const edited_request edited(*given);
  const engine::request& r = edited.request;
  *result =
      engine::in_double(r.p.kind) ? synthetic<double_row>(r, *how) : synthetic<float_row>(r, *how);
}
