# SPDX-License-Identifier: Apache-2.0
"""Adapter of specagg.conformance for eagle-harness, the package of EAGLE-4 by Eagle AI Corp: the kernel that verifies sampled trees,
and the one that draws their tokens. The package is called as pip installs it; its licence is its own (source-available), and no
part of it is here. The kernels run in Triton's interpreter, on a CPU.

usage: pip install torch numpy triton, and specagg; pip install --no-deps eagle-harness==0.1.3; then here
       python -m specagg.conformance eagle4:harness --tv 0.2 --vocabulary 515
"""
import importlib.metadata

import interpreter  # noqa: F401  Triton's, made faster; it comes before torch's kernels are imported
import numpy as np
import torch

from specagg.conformance import Adapter

torch.set_num_threads(1)
rounds = [0]  # the package has one seed, and another number for each round


class Shape:
    """A tree in which nodes have up to `most` children, as the package numbers it. parents: of the nodes from 1 on."""

    def __init__(self, parents):
        self.parents = [int(one) for one in parents]
        nodes = len(self.parents)
        children = [[i for i, parent in enumerate(self.parents, 1) if parent == node] for node in range(nodes + 1)]
        self.most = max(map(len, children))
        self.depth = [0] * (nodes + 1)
        self.slot = [0] * (nodes + 1)  # where a node's q is stored
        self.number = [0] * (nodes + 1)  # of a node among all `most` children of each stored row
        self.sibling = [-1] * (nodes + 1)
        self.first = [own[0] if own else -1 for own in children]
        for node, own in enumerate(children):
            for i, child in enumerate(own):
                self.depth[child] = self.depth[node] + 1
                self.number[child] = self.most * self.slot[node] + i
                self.slot[child] = 1 + self.number[child]
                self.sibling[child] = own[i + 1] if i + 1 < len(own) else -1
        self.slots = max(self.slot[parent] for parent in self.parents) + 1


def softmax(rows):
    return torch.softmax(torch.from_numpy(rows.copy()), -1)


def draw(logits, s):
    """One child of each row, of which each is a request; every id is a candidate."""
    from eagle_harness.kernels.sampled_draw import sample_children

    n, size = logits.shape
    rounds[0] += 1
    _, tokens = sample_children(
        torch.from_numpy(logits.copy()), torch.arange(size).expand(n, -1).contiguous(), 1, seed=7, launch=0,
        counter=torch.tensor(rounds, dtype=torch.int32), q=torch.zeros(n, 1, size), q_ids=torch.zeros(n, 1, size, dtype=torch.int64),
        positions=torch.zeros(n, 1, dtype=torch.int64), slot=0, start=0, rows_per_req=1)
    return tokens[:, 0].numpy()


def verify_tree(tokens, parents, q, p, s):
    from eagle_harness.kernels.sampled_tree import sample_tree

    (n, nodes), size, shape = tokens.shape, p.shape[2], Shape(parents[0])
    of_q = torch.zeros(n, shape.slots, size)
    for parent in set(shape.parents):
        of_q[:, shape.slot[parent]] = softmax(q[:, parent])
    positions = torch.zeros(n, shape.slots * shape.most, dtype=torch.int64)
    positions[:, shape.number[1:]] = torch.from_numpy(tokens)

    def same(row):
        return torch.tensor(row).expand(n, -1).contiguous()

    coins = np.random.default_rng([int(s.seeds[0]), int(s.positions[0])])
    emitted, lengths, path = sample_tree(
        softmax(p), of_q, torch.arange(size).expand(n, shape.slots, -1).contiguous(), positions, torch.ones(n, dtype=torch.bool),
        same(shape.number[1:]), torch.cat([torch.zeros(n, 1, dtype=torch.int64), torch.from_numpy(tokens)], 1),
        torch.arange(n * (nodes + 1)).reshape(n, -1), same(shape.first), same(shape.sibling),
        torch.from_numpy(coins.random((n, nodes + 1), np.float32)), torch.from_numpy(coins.random(n, np.float32)), top_k=shape.most,
        max_depth=max(shape.depth) + 1)
    return [emitted[rows[:length]].tolist() for rows, length in zip(path.long(), lengths.tolist())]


def verify(drafts, q, p, s):
    """A draft is a tree of one path."""
    n, gamma = drafts.shape
    return verify_tree(drafts, np.tile(np.arange(gamma), (n, 1)), q, p, s)


def __getattr__(name):
    if name != "harness":
        raise AttributeError(name)
    return Adapter(draw, frozenset("drafts bonus no_support trees".split()), "EAGLE-4, eagle-harness",
                   importlib.metadata.version("eagle-harness"), verify=verify, verify_tree=verify_tree)
