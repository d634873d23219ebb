// SPDX-License-Identifier: Apache-2.0
// Verification of trees of drafts on the device (verify/tree.hpp): the library's walk, for a batch
// of requests whose logits are in device memory. Tokens, statuses and bits are those of the CPU, in
// every batch and on every device.
//
//   logits --(first kernel: one read of every row)--> factors
//          --(second: the walk, a cluster for each request)-->
//   verdicts and tokens
//
// The threads of a block share the nodes of its tree: 80 bytes a node, and 4 for what its law was
// scaled by. With most_in_tree nodes that is 5,460 bytes of shared memory beside the 16,896 of
// every verification.
#pragma once
#include <specagg/backend/cuda/verify.hpp>
#include <specagg/draft/propose.hpp>

SPECAGG_BEGIN
namespace cuda {

inline constexpr std::size_t most_in_tree = 64;  // nodes without the root

// A batch of trees in device memory. Of the members of batch: node i of request r has token
// tokens[r most + i - 1] (at the end -1: there is no such node), and row j of a request follows
// node j; most <= most_in_tree. Due are rows of the target after all nodes, and of the draft after
// those that have children: after all if the policy reads the draft. The children of a node were
// proposed by `propose` (draft/propose.hpp) from the draft's row after it, and stand next to each
// other: parents ascend. Else the verdict is invalid_parameter.
template <class S>
struct tree_batch : batch<S> {
  const std::uint32_t* parents = nullptr;  // [requests][most], of node i at i - 1
  std::size_t levels = 0;                  // no tree is deeper; <= most_drafted
  proposal propose = proposal::greedy;
};
// The output, in device memory. It must not overlap with the input.
struct tree_outcome {
  tree_verdict* verdicts = nullptr;  // [requests]
  // [requests][levels + 1], the first verdict.emitted of each written
  emission* emissions = nullptr;
  double* claims = nullptr;  // [requests][most + 1] tree_node::claim of every node, or null
};

namespace detail {

static_assert(sizeof(tree_node) == 80,
              "specagg: the page and the head of this file say what the nodes take");

template <class S>
__device__ draft_tree tree_of(const tree_batch<S>& b, std::size_t r) {
  const token_id* tokens = b.tokens + r * b.most;
  std::size_t n = b.most;
  while (n > 0 && tokens[n - 1] == no_token) --n;
  return {{tokens, n}, {b.parents + r * b.most, n}, b.start[r], b.end_of_text};
}

// The law that a child was drawn from: the draft's row after its parent without some siblings, or
// its token alone.
template <bool Whole, class S>
class child_law {
 public:
  using value_type = float;
  // known: what an equal law was scaled by; 0 if none was normalised, -1 if nothing was left of it
  __device__ child_law(const device_row<S, Whole>& q, std::span<const token_id> left_out,
                       token_id alone, token_id if_nothing_is_left, float* known)
      : row_(row_without<device_row<S, Whole>>(q, {})), token_(alone) {
    if (known && *known < 0) token_ = if_nothing_is_left;
    if (token_ == no_token) {
      row_ = row_without<device_row<S, Whole>>(q, left_out, known ? *known : 0).normalise();
      why_ = q.why() != status::ok ? q.why() : row_.why();
      if (why_ != status::ok && q.why() == status::ok) token_ = if_nothing_is_left;
      if (known && q.why() == status::ok)
        walker().once([&] { *known = token_ == no_token ? row_.scale : -1; });
    }
    if (token_ != no_token)
      why_ = token_ >= 0 && std::size_t(token_) < size() ? status::ok : status::invalid_row;
  }
  __device__ std::size_t size() const { return row_.size(); }
  __device__ token_id token() const { return token_; }
  __device__ collective<Whole>& walker() const { return row_.walker(); }
  __device__ float operator[](std::size_t v) const {
    return token_ == no_token ? row_[v] : float(v == std::size_t(token_));
  }
  __device__ status why() const { return why_; }
  __device__ const child_law& normalise(bool = false) const { return *this; }
  __device__ auto open(std::size_t begin, std::size_t count) const {
    return row_.open(begin, count);
  }

 private:
  normal_form<row_without<device_row<S, Whole>>> row_;
  token_id token_;
  status why_ = status::ok;
};

// Each cluster reads one row. A request has draft_rows rows of the draft, then most + 1 rows of the
// target. Of the draft those are read that children were proposed from, or, with all_of_draft,
// those after every node.
template <bool Whole, class S>
__global__ void __launch_bounds__(threads, 2)
    normalise_tree_rows(tree_batch<S> b, std::size_t draft_rows, bool all_of_draft, bool confidence,
                        row_facts* facts) {
  alignas(16) __shared__ unsigned char memory[sizeof(shared_memory)];
  collective<Whole> together(*reinterpret_cast<shared_memory*>(memory));
  const std::size_t rows = draft_rows + b.most + 1, i = cluster_number(together), r = i / rows,
                    j = i % rows;
  const bool is_draft = j < draft_rows;
  const std::size_t n = is_draft ? j : j - draft_rows;
  const draft_tree tree = tree_of(b, r);
  bool read = n == 0 || (n <= tree.size() && tree.tokens[n - 1] != no_token);
  if (is_draft && !all_of_draft) {
    bool parent = false;
    for (const std::uint32_t of_child : tree.parents) parent = parent || of_child == n;
    read = read && parent;
  }
  const bool given = n < (is_draft ? draft_range(b, r) : target_range(b, r)).count;
  if (!given && together.leads()) facts[i].why = status::missing_row;  // a law may need it
  if (!read || !given) return;                                         // the whole cluster
  const double temperature = b.temperature ? b.temperature[r] : 1;
  const auto row = is_draft ? draft_row<Whole>(b, r, n) : target_row<Whole>(b, r, n);
  const row_facts found = facts_of(row, temperature, confidence, together);
  if (together.leads()) facts[i] = found;
}

// Whether siblings stand together, as their laws need.
inline __device__ bool siblings_together(const draft_tree& tree) {
  bool ascends = true;
  for (std::size_t i = 1; i < tree.size(); ++i)
    ascends = ascends && tree.parents[i - 1] <= tree.parents[i];
  return ascends;
}

template <bool Whole, class S, class Policies, class Verifier>
__global__ void __launch_bounds__(threads, 2)
    verify_trees(tree_batch<S> b, Policies policies, Verifier verifier, std::size_t draft_rows,
                 const row_facts* facts, float* residual, tree_outcome out) {
  alignas(16) __shared__ unsigned char memory[sizeof(shared_memory)];
  alignas(16) __shared__ unsigned char node_memory[sizeof(tree_node) * (most_in_tree + 1)];
  __shared__ float scales[most_in_tree + 1];
  collective<Whole> together(*reinterpret_cast<shared_memory*>(memory));
  const std::span<tree_node> nodes(reinterpret_cast<tree_node*>(node_memory), b.most + 1);
  const std::size_t r = cluster_number(together), V = b.vocabulary;
  facts += r * (draft_rows + b.most + 1);
  residual += r * b.levels * V;
  const draft_tree tree = tree_of(b, r);
  together.once([&] {
    for (float& scale : scales) scale = 0;
    for (tree_node& node : nodes) node = {};
  });

  const auto p_row = [&](std::size_t n) {
    return device_row(target_row<Whole>(b, r, n), facts[draft_rows + n], together);
  };
  const auto q_row = [&](std::size_t n) {
    // Policies that do not read the draft ask for no row of it. Then there may be none, and none is
    // made.
    return device_row(draft_row<Whole>(b, r, n), facts[n], together);
  };
  const auto law = [&](std::size_t i) {
    const std::uint32_t parent = tree.parents[i - 1];
    std::size_t first = i, last = i;  // the siblings
    while (first > 1 && tree.parents[first - 2] == parent) --first;
    while (last < tree.size() && tree.parents[last] == parent) ++last;
    const std::span<const token_id> before = tree.tokens.subspan(first - 1, i - first),
                                    after = tree.tokens.subspan(i, last - i);
    const bool greedy = b.propose == proposal::greedy, drawn_greedily = greedy && i == first;
    const bool alone = b.propose == proposal::top || (greedy && i != first);
    const token_id y = tree.tokens[i - 1];
    // not read if the token is alone
    const auto q = alone && draft_rows == 0 ? p_row(0) : q_row(parent);
    const auto left_out = drawn_greedily                   ? after
                          : b.propose == proposal::sampled ? before
                                                           : std::span<const token_id>();
    return child_law<Whole, S>(q, left_out, alone ? y : no_token, drawn_greedily ? y : no_token,
                               left_out.empty() ? nullptr : scales + i);
  };
  random_streams chooser(b.seed[r], b.request ? b.request[r] : r);
  emission emissions[most_drafted + 1];  // every thread has its own copy
  double sums[1];                        // the threads keep the sums of blocks themselves
  tree_verdict v;
  v.why = status::invalid_parameter;
  if (siblings_together(tree))
    v = verifier.verify(
        tree, rows_of(tree.size() + 1, law), rows_of(draft_range(b, r).count, q_row),
        rows_of(target_range(b, r).count, p_row), policies[r], chooser,
        tree_memory<float, collective<Whole>&>{
            {emissions, b.levels + 1}, nodes, {residual, b.levels * V}, sums, together});
  if (!together.leads()) return;
  out.verdicts[r] = v;
  for (std::size_t i = 0; i < v.emitted; ++i) out.emissions[r * (b.levels + 1) + i] = emissions[i];
  for (std::size_t i = 0; out.claims && i <= b.most; ++i)
    out.claims[r * (b.most + 1) + i] = nodes[i].claim;
}

template <class S>
std::size_t residual_bytes(const tree_batch<S>& b) {
  return (b.requests * b.levels * b.vocabulary * sizeof(float) + 15) / 16 * 16;
}

// Launches both kernels.
template <bool Whole, class S, class Policies, class Verifier>
cudaError_t verify_tree_rows(const tree_batch<S>& b, const Policies& policies,
                             const Verifier& verifier, const tree_outcome& out,
                             std::size_t draft_rows, float* residual, row_facts* facts,
                             cudaStream_t stream) {
  using Policy = policy_of<Policies>;
  const auto e = launch<normalise_tree_rows<Whole, S>>(
      b.requests * (draft_rows + b.most + 1), 4, b.vocabulary, stream, b, draft_rows,
      reads_draft<Policy>, reads_confidence<Policy>, facts);
  if (e != cudaSuccess) return e;
  return launch<verify_trees<Whole, S, Policies, Verifier>>(
      b.requests, 1, b.vocabulary, stream, b, policies, verifier, draft_rows,
      static_cast<const row_facts*>(facts), residual, out);
}

}  // namespace detail

// Bytes of device memory that verify_trees() needs: V floats for each level of each tree (what is
// left of nodes), and the facts of rows. It must be aligned to 16.
template <class S>
[[nodiscard]] std::size_t verify_trees_storage(const tree_batch<S>& b) {
  return detail::residual_bytes(b) + b.requests * (2 * b.most + 2) * sizeof(row_facts);
}

// Verifies a batch of trees on `stream`: two launches. No synchronisation, no allocation; can be
// captured in a graph.
//   verifier   traversal or recursive_rejection
//   storage    verify_trees_storage(b) bytes, written
// All else as for verify(). Every target row is read once, every draft's row that children were
// drawn from as well; a law of which siblings were left out costs one read more when its child is
// visited; a failed child that was drawn costs a read of its law and, if it is the first of its
// siblings, of the target's row.
template <class S, class Policies, class Verifier>
[[nodiscard]] cudaError_t verify_trees(const tree_batch<S>& b, const Policies& policies,
                                       const Verifier& verifier, const tree_outcome& out,
                                       void* storage, std::size_t storage_bytes,
                                       cudaStream_t stream) {
  if constexpr (!requires { policies[0]; }) {
    return verify_trees(b, detail::same_for_all<Policies>{policies}, verifier, out, storage,
                        storage_bytes, stream);
  } else {
    using Policy = detail::policy_of<Policies>;
    static_assert(std::is_trivially_copyable_v<Policies> && std::is_trivially_copyable_v<Verifier>,
                  "specagg: one policy for all requests, or a device pointer to one for each");
#if defined(__CUDACC__)
    static_assert(!OneOfSeveral<Policy>,
                  "specagg: no policy chosen at run time (any_of) runs on a device");
#endif
    const bool reads = reads_draft<Policy> || (b.most > 0 && b.propose != proposal::top);
    if constexpr (std::is_pointer_v<Policies>)
      if (!policies) return cudaErrorInvalidValue;
    if (b.requests == 0) return cudaSuccess;
    if (!detail::can_launch(b, out, most_in_tree, reads, storage, storage_bytes,
                            verify_trees_storage(b)) ||
        b.levels > most_drafted || (b.most > 0 && !b.parents))
      return cudaErrorInvalidValue;
    const bool whole = detail::rows_in_fours(b, reads);
    // node `most` has no children
    const std::size_t draft_rows = reads ? b.most + reads_draft<Policy> : 0;
    auto* residual = static_cast<float*>(storage);
    auto* facts =
        reinterpret_cast<row_facts*>(static_cast<std::byte*>(storage) + detail::residual_bytes(b));
    return whole ? detail::verify_tree_rows<true>(b, policies, verifier, out, draft_rows, residual,
                                                  facts, stream)
                 : detail::verify_tree_rows<false>(b, policies, verifier, out, draft_rows, residual,
                                                   facts, stream);
  }
}

}  // namespace cuda
SPECAGG_END
