// SPDX-License-Identifier: Apache-2.0
// The random numbers of a request, which the threads of a block draw together.
#pragma once
#include <specagg/backend/cuda/collective.hpp>

SPECAGG_BEGIN
namespace cuda::detail {

// The random numbers that a verifier without noise may use, as random_streams has them: of each
// position a coin, one for the residual, and one for the bonus. All are drawn before the first
// kernel has ended, each by a thread of its own.
struct numbers_of_request {
  static constexpr unsigned positions = most_drafted + 1;
  double u[3][positions];

  // Called by all threads of a block; a barrier must follow.
  __device__ void draw_all(std::uint64_t seed, std::uint64_t request, std::uint32_t start) {
    static_assert(3 * positions <= threads && int(stream::bonus) - int(stream::coin) == 2);
    if (threadIdx.x >= 3 * positions) return;
    const unsigned use = threadIdx.x / positions, j = threadIdx.x % positions;
    u[use][j] = random_streams(seed, request)
                    .uniform({stream(unsigned(stream::coin) + use), start + j, start});
  }
  __device__ double uniform(const moment& m) const {
    return u[unsigned(m.use) - unsigned(stream::coin)][m.position - m.start];
  }
  __device__ bool coin(const moment& m, double w, double t) const { return uniform(m) * t < w; }
  template <class Weights>
  __device__ token_id draw(const moment& m, const Weights& w) const {
    return specagg::inverse_transform(w, uniform(m));
  }
};
// Likewise, for threads that can read any token of a row alone.
struct numbers_of_lanes : numbers_of_request {
  // How many of the drafted tokens 0, 1, ... judge(j) accepts, the threads of a warp each another
  // one. Every warp does the same.
  __device__ std::size_t leading(std::size_t count, const auto& judge) const {
    static_assert(positions <= 32);
    const std::size_t lane = threadIdx.x % 32;
    const unsigned accepted = __ballot_sync(~0u, lane < count && judge(lane));
    return std::size_t(__ffs(int(~accepted))) - 1;
  }
};

}  // namespace cuda::detail
SPECAGG_END
