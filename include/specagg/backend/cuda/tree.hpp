// SPDX-License-Identifier: Apache-2.0
// Verification of trees of drafts on the device (verify/tree.hpp): the library's walk, for a batch
// of requests whose logits are in device memory. Tokens, statuses and bits are those of the CPU, in
// every batch and on every device.
//
//   logits --(first kernel: one read of every row)--> what each block of 1024 logits sums to
//   these --(second: the walk, a thread block or cluster for each request)--> tokens
//
// The threads of a block share the nodes of its tree: 80 bytes a node, 4 for the scale of its law,
// and 96 for each of its two rows.
#pragma once
#include <specagg/backend/cuda/verify.hpp>
#include <specagg/draft/propose.hpp>

SPECAGG_BEGIN
namespace cuda {

inline constexpr std::size_t most_in_tree = 64;  // nodes without the root

// A batch of trees in device memory. The members of batch have this meaning. Node i of request r
// has token tokens[r most + i - 1] (at the end -1: there is no such node), and row j of a request
// follows node j; most <= most_in_tree. The target's rows are due after all nodes. The draft's rows
// are due after nodes with children; if the policy reads the draft, after all nodes. The children
// of a node were proposed by `propose` (draft/propose.hpp) from the draft's row after it, and stand
// next to each other: parents ascend. Otherwise the verdict is invalid_parameter.
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

// The Shape of a tree_batch.
template <class S>
struct nodes : padded<tree_batch<S>> {
  using padded<tree_batch<S>>::padded;
  __device__ draft_tree tree_of(std::size_t r) const {
    const token_id* const own = this->tokens + r * this->most;
    std::size_t n = this->most;
    while (n > 0 && own[n - 1] == no_token) --n;
    return {{own, n}, {this->parents + r * this->most, n}, this->start[r], this->end_of_text};
  }
  template <class Policy, class Verifier>
  bool reads_draft_rows(const tree_outcome&) const {
    return reads_draft<Policy> || (this->most > 0 && this->propose != proposal::top);
  }
  static constexpr std::size_t limit = most_in_tree;
  bool can_launch(const tree_outcome& out, bool reads_draft) const {
    return padded<tree_batch<S>>::can_launch(out, reads_draft) && this->levels <= most_drafted &&
           (this->most == 0 || this->parents);
  }
};

// The law that a child was drawn from: the draft's row after its parent without some siblings, or
// its token alone.
template <bool Whole, class S>
class child_law {
 public:
  using value_type = float;
  // known: the scale of an equal law; 0 if no such law was normalised, -1 if nothing was left of it
  __device__ child_law(const device_row<S, Whole>& q, std::span<const token_id> left_out,
                       token_id alone, token_id if_nothing_is_left, float* known)
      : row_(row_without<device_row<S, Whole>>(q, {})), token_(alone) {
    if (known && *known < 0) token_ = if_nothing_is_left;
    if (token_ == no_token) {
      row_ = specagg::normalise(row_without<device_row<S, Whole>>(q, left_out, known ? *known : 0));
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
  __device__ collective<Whole>& walker() const { return specagg::walker_of(row_); }
  __device__ float operator[](std::size_t v) const {
    return token_ == no_token ? row_[v] : float(v == std::size_t(token_));
  }
  __device__ status why() const { return why_; }
  __device__ auto open(std::size_t begin, std::size_t count) const {
    return row_.open(begin, count);
  }

 private:
  normal_form<row_without<device_row<S, Whole>>> row_;
  token_id token_;
  status why_ = status::ok;
};

// Trees. A row of the draft is due after nodes whose children were proposed from it, or, if the
// policy reads it, after all nodes; one of the target after all nodes.
template <class B, bool Whole>
struct trees : batch_rows<B, Whole> {
  __device__ void read(std::size_t r, std::size_t j, const auto& f) const {
    const bool is_draft = j < this->rows_of_draft;
    const std::size_t n = is_draft ? j : j - this->rows_of_draft;
    const draft_tree tree = this->tree_of(r);
    bool due = n == 0 || (n <= tree.size() && tree.tokens[n - 1] != no_token);
    if (is_draft && !this->policy_reads_draft) {
      bool parent = false;
      for (const std::uint32_t of_child : tree.parents) parent = parent || of_child == n;
      due = due && parent;
    }
    if (due) this->read_row(is_draft, r, n, f);
  }
};

// Whether siblings stand together, as their laws need.
inline __device__ bool siblings_together(const draft_tree& tree) {
  bool ascends = true;
  for (std::size_t i = 1; i < tree.size(); ++i)
    ascends = ascends && tree.parents[i - 1] <= tree.parents[i];
  return ascends;
}

// The data of its tree that the threads of a block share.
struct shared_tree {
  row_facts facts[2 * most_in_tree + 2];
  tree_node nodes[most_in_tree + 1];
  float scales[most_in_tree + 1];
};

// Trees are for few requests, so a multiprocessor needs room for one thread block only: the walk
// may have all of its registers.
template <class S, bool Whole, class Policies, class Verifier>
__global__ void __launch_bounds__(threads, 1)
    verify_trees(trees<nodes<S>, Whole> b, Policies policies, Verifier verifier,
                 block_sum<float>* sums, float* residual, tree_outcome out) {
  alignas(16) __shared__ unsigned char memory[sizeof(shared_memory)];
  alignas(16) __shared__ unsigned char tree_memory_of_block[sizeof(shared_tree)];
  collective<Whole> together(*reinterpret_cast<shared_memory*>(memory));
  auto& shared = *reinterpret_cast<shared_tree*>(tree_memory_of_block);
  const std::span<tree_node> nodes(shared.nodes, b.most + 1);
  const std::size_t r = blockIdx.x / together.size(), V = b.vocabulary,
                    draft_rows = b.rows_of_draft;
  find_facts_of_rows(b, r, reads_confidence<policy_of<Policies>>, sums, shared.facts, together);
  residual += r * b.levels * V;
  const draft_tree tree = b.tree_of(r);
  together.once([&] {
    for (float& scale : shared.scales) scale = 0;
    for (tree_node& node : nodes) node = {};
  });

  const row_range of_draft = b.draft_range(r), of_target = b.target_range(r);
  const auto p_row = [&](std::size_t n) {
    return device_row(b.p_row(of_target, n), shared.facts[draft_rows + n], together);
  };
  const auto q_row = [&](std::size_t n) {
    // Policies that do not read the draft ask for no draft row, and there may be no such row.
    return device_row(b.q_row(of_draft, n), shared.facts[n], together);
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
                               left_out.empty() ? nullptr : shared.scales + i);
  };
  random_streams chooser(b.seed[r], b.request ? b.request[r] : r);
  emission emissions[most_drafted + 1];  // every thread has its own copy
  tree_verdict v;
  v.why = status::invalid_parameter;
  if (siblings_together(tree))
    v = verifier.verify(
        tree, rows_of(tree.size() + 1, law), rows_of(of_draft.count, q_row),
        rows_of(of_target.count, p_row), policies[r], chooser,
        tree_memory<float, collective<Whole>&>{
            {emissions, b.levels + 1}, nodes, {residual, b.levels * V}, {}, together});
  if (!together.writes()) return;
  const std::size_t lane = threadIdx.x;
  if (lane == 0) out.verdicts[r] = v;
  if (lane < v.emitted) out.emissions[r * (b.levels + 1) + lane] = with_logs(emissions[lane]);
  for (std::size_t i = lane; out.claims && i <= b.most; i += 32)
    out.claims[r * (b.most + 1) + i] = nodes[i].claim;
}

template <class S>
std::size_t residual_bytes(const tree_batch<S>& b) {
  return (b.requests * b.levels * b.vocabulary * sizeof(float) + 15) / 16 * 16;
}

}  // namespace detail

// Bytes of device memory that verify_trees() needs: V floats for each level of each tree (the
// residuals of nodes), and 32 bytes for each block of 1024 logits. It must be aligned to 16.
template <class S>
[[nodiscard]] std::size_t verify_trees_storage(const tree_batch<S>& b) {
  return detail::residual_bytes(b) +
         detail::bytes_of_sums(b.requests * (2 * b.most + 2), b.vocabulary);
}

// Verifies a batch of trees on `stream`: two launches. No synchronisation, no allocation; can be
// captured in a graph.
//   verifier   traversal or recursive_rejection
//   storage    verify_trees_storage(b) bytes, written
// All else as for verify(). Every target row is read once, and so is every draft row that children
// were drawn from. A law without some siblings costs one more read when its child is visited. A
// failed child that was drawn costs a read of its law and, if it is the first of its siblings, of
// the target's row.
template <class S, class Policies, class Verifier>
[[nodiscard]] cudaError_t verify_trees(const tree_batch<S>& b, const Policies& policies,
                                       const Verifier& verifier, const tree_outcome& out,
                                       void* storage, std::size_t storage_bytes,
                                       cudaStream_t stream) {
  using detail::trees, detail::nodes;
  const std::size_t of_residuals = detail::residual_bytes(b);
  auto* const residual = static_cast<float*>(storage);
  auto* const sums =
      reinterpret_cast<block_sum<float>*>(static_cast<std::byte*>(storage) + of_residuals);
  return detail::launch_batch<Verifier, trees>(
      nodes<S>{b}, policies, out, detail::has_room(storage, storage_bytes, verify_trees_storage(b)),
      [&]<bool Whole, class Each>(const trees<nodes<S>, Whole>& rows, const Each& of_requests) {
        constexpr bool confidence = reads_confidence<detail::policy_of<Each>>;
        if (const auto e = detail::launch_sums(rows, confidence, sums, stream); e != cudaSuccess)
          return e;
        return detail::launch_verifier<detail::verify_trees<S, Whole, Each, Verifier>>(
            b.requests, b.vocabulary, stream, rows, of_requests, verifier, sums, residual, out);
      });
}

}  // namespace cuda
SPECAGG_END
