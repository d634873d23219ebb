// SPDX-License-Identifier: Apache-2.0
// A policy for the device whose functions lack SPECAGG_FUNCTION, one after the other: nvcc must say
// so, not put a kernel in its place that does nothing.
// EXPECT 1: policy.bind\(rows\)
// EXPECT 2: policy.valid\(\)
// EXPECT 3: pi\(.*view
// EXPECT 4: __host__ function.*term::operator
// EXPECT 5: Policy=mine.*checked<Policy>::bind
// EXPECT 6: specagg: no policy chosen at run time
#include <specagg/backend/cuda/verify.hpp>
#include <specagg/policy/checked.hpp>
#include <specagg/policy/lossless.hpp>

#ifndef SPECAGG_BROKEN
#define SPECAGG_BROKEN 0
#endif
#if SPECAGG_BROKEN == 6
#include <specagg/policy/any_of.hpp>
#endif

#if SPECAGG_BROKEN == 1 || SPECAGG_BROKEN == 5
#define OF_BIND
#else
#define OF_BIND SPECAGG_FUNCTION
#endif
#if SPECAGG_BROKEN == 2
#define OF_VALID
#else
#define OF_VALID SPECAGG_FUNCTION
#endif
#if SPECAGG_BROKEN == 3
#define OF_LAW
#else
#define OF_LAW SPECAGG_FUNCTION
#endif
#if SPECAGG_BROKEN == 4
#define OF_TERM
#else
#define OF_TERM SPECAGG_FUNCTION
#endif

struct target_law {
  template <class At>
  OF_LAW auto operator()(At at) const {
    return at.p;
  }
};
struct term {
  template <class At>
  OF_TERM auto operator()(At at) const {
    return at.p;
  }
};
struct mine {
  double alpha;
  static constexpr bool reads_draft = false, reads_confidence = false;
  OF_VALID bool valid() const { return alpha > 0; }
  template <class Rows>
  OF_BIND auto bind(const Rows& rows) const {
    (void)rows.sum(term{});
    return target_law{};
  }
};
#if SPECAGG_BROKEN == 5
using policy = specagg::checked<mine>;
#elif SPECAGG_BROKEN == 6
using policy = specagg::any_of<mine, specagg::lossless>;
#else
using policy = mine;
#endif

template cudaError_t specagg::cuda::verify(const specagg::cuda::batch<float>&, const policy&,
                                           const specagg::match_verifier&,
                                           const specagg::cuda::outcome&, void*, std::size_t,
                                           cudaStream_t);
