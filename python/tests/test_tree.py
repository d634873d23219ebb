# SPDX-License-Identifier: Apache-2.0
"""verify_tree(): its law, chains, engines' arrays, and what is refused."""

import functools

import numpy as np
import pytest

import flat
import specagg
from specagg import Status


verify, draw, verify_tree = (functools.partial(f, seed=0, positions=0) for f in (flat.verify, flat.draw, flat.verify_tree))


def test_a_chain_is_block_or_token_verification():
    rng = np.random.default_rng(0)
    q, p = rng.normal(0, 2, (2, 6, 5, 200)).astype(np.float32)
    drafts = np.stack([draw(q[:, j], step=j) for j in range(4)], axis=1)
    parents = np.broadcast_to(np.arange(4, dtype=np.int32), (6, 4))
    for verifier, same in (("traversal", "block"), ("recursive", "token")):
        tree = verify_tree(drafts, parents, q, p, verifier=verifier, proposed="independent")
        chain = verify(drafts, q, p, verifier=same)
        np.testing.assert_array_equal(tree.tokens, chain.tokens)
        for i in range(6):
            n = tree.accepted[i]
            assert tree.paths[i].tolist() == [*range(1, n + 1), *[-1] * (4 - n)]


@pytest.mark.parametrize("verifier", ["traversal", "recursive"])
@pytest.mark.parametrize("proposed", ["independent", "sampled", "top", "greedy"])
@pytest.mark.parametrize("policy", ["lossless", "token_v3:alpha=0.3"])
def test_law_of_the_first_token(verifier, proposed, policy):
    # three children of the text, proposed as it is said, over a vocabulary of 5
    rng = np.random.default_rng(1)
    q, p = rng.dirichlet(np.ones(5), 4), rng.dirichlet(np.ones(5), 4)
    n = 30000
    uniform = rng.random((n, 3))
    tokens = np.empty((n, 3), np.int32)
    by_size = np.argsort(-q[0], kind="stable")
    for k in range(3):
        weight = np.broadcast_to(q[0], (n, 5)).copy()
        if proposed == "sampled":
            for j in range(k):
                weight[np.arange(n), tokens[:, j]] = 0
        if proposed == "greedy":
            weight[:, by_size[:2]] = 0
        if proposed == "top" or (proposed == "greedy" and k > 0):
            tokens[:, k] = by_size[k if proposed == "top" else k - 1]
        else:
            cumulative = (weight / weight.sum(1, keepdims=True)).cumsum(1)
            tokens[:, k] = np.minimum((uniform[:, k : k + 1] >= cumulative).sum(1), 4)
    rows = [np.broadcast_to(x, (n, 4, 5)) for x in (q, p)]
    r = verify_tree(tokens, np.zeros((n, 3), np.int32), *rows, policy, verifier, proposed=proposed,
                            rows="probabilities", seed=3)
    pi = specagg.law(policy, q[0], p[0]).pi
    assert (r.statuses == Status.ok).all()
    assert specagg.goodness_of_fit(r.tokens[:, 0], pi).passed
    if proposed == "top":  # said to be what it is not
        wrong = verify_tree(tokens, np.zeros((n, 3), np.int32), *rows, policy, verifier, proposed="independent",
                                    rows="probabilities", seed=3)
        assert not specagg.goodness_of_fit(wrong.tokens[:, 0], pi).passed


def test_parents_of_engines_arrays():
    #        0
    #      1   4
    #     2 3  5
    child = [1, 2, -1, -1, 5, -1]
    sibling = [-1, 4, 3, -1, -1, -1]
    assert specagg.parents_of(child, sibling).tolist() == [0, 1, 1, 0, 4]
    assert specagg.parents_of([child, child], [sibling, sibling]).shape == (2, 5)
    with pytest.raises(ValueError, match="next_child"):
        specagg.parents_of([0, -1], [-1, -1])
    with pytest.raises(ValueError, match="shapes"):
        specagg.parents_of([1, -1], [-1])
    with pytest.raises(TypeError, match="whole numbers"):
        specagg.parents_of([1.0, -1.0], [-1, -1])


def test_what_is_refused():
    p = np.zeros((2, 4, 9), np.float32)
    tokens, parents = np.zeros((2, 3), np.int32), np.zeros((2, 3), np.int32)
    for message, change in {
        "parents: node 1 of request 1 follows node 1": {"parents": np.array([[0, 0, 0], [1, 0, 0]], np.int32)},
        "parents: node 2 of request 0 follows node -2": {"parents": np.array([[0, -5, 0], [0, 0, 0]], np.int32)},
        "parents: .*, where tokens": {"parents": parents[:1]},
        "p: 3 rows, where 4": {"p": p[:, :3]},
        "q: .* is expected": {"q": p[0]},
        "q: the policy opt reads": {"policy": "opt"},
        "proposed: there is no": {"proposed": "best"},
        "verifier: there is no": {"verifier": "token"},
    }.items():
        with pytest.raises(ValueError, match=message):
            verify_tree(**{"tokens": tokens, "parents": parents, "q": None, "p": p, **change})


def test_padding_and_bad_rows():
    rng = np.random.default_rng(2)
    p = rng.normal(0, 1, (2, 3, 50)).astype(np.float32)
    tokens, parents = np.array([[4, -1], [7, 8]], np.int32), np.array([[0, 99], [0, 1]], np.int32)
    r = verify_tree(tokens, parents, None, p)
    assert (r.statuses == Status.ok).all() and (r.emitted == r.accepted + 1).all()
    p[1, 0, 3] = np.nan
    r = verify_tree(tokens, parents, None, p)
    assert r.statuses.tolist() == [Status.ok, Status.invalid_row] and r.emitted[1] == 0
