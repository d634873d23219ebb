# SPDX-License-Identifier: Apache-2.0
"""What engines ask of verify(): the bonus, seeds that may be None, requests left alone, tokens into their own array."""

import dataclasses

import numpy as np
import pytest

import flat
import specagg
from flat import draw
from specagg import Origin, Sampling, Status

V = 50


def batch(B=4, gamma=3, seed=0, near=True):
    rng = np.random.default_rng(seed)
    q = rng.normal(0, 1, (B, gamma + 1, V)).astype(np.float32)
    p = q + rng.normal(0, 0.05 if near else 1, q.shape).astype(np.float32)
    drafts = np.stack([draw(q[:, j], step=j, seed=seed, positions=0) for j in range(gamma)], axis=1)
    return drafts, q, p


def verify(*a, seed=0, positions=0, **more):
    return flat.verify(*a, seed=seed, positions=positions, **more)


def test_the_groups_of_arguments():
    drafts, q, p = batch()
    streams, rows = specagg.Streams(0, positions=0), specagg.Rows(sampling=Sampling(0.7), draft_sampling=Sampling())
    plain = specagg.verify(drafts, q, p, streams=streams)
    assert np.array_equal(plain.tokens, verify(drafts, q, p).tokens)
    for given in (specagg.Drafts(drafts), specagg.Drafts(drafts, lengths=[3] * 4)):
        assert np.array_equal(specagg.verify(given, q, p, streams=streams).log_pi, plain.log_pi, equal_nan=True)
    assert np.array_equal(specagg.verify(drafts, q, p, rows=specagg.Rows(), streams=streams).tokens, plain.tokens)
    warm = specagg.verify(drafts, q, p, rows=rows, streams=streams)
    assert not np.array_equal(warm.log_p, plain.log_p, equal_nan=True)
    # a draft is drawn by what verify() is given: draft_sampling
    assert np.array_equal(specagg.draw(q[:, 0], rows=rows, streams=streams), drafts[:, 0])
    cold = specagg.Rows(("logits", "logits"), draft_sampling=Sampling(0.0))
    assert np.array_equal(specagg.draw(q[:, 0], rows=cold, streams=streams), q[:, 0].argmax(-1))
    with pytest.raises(dataclasses.FrozenInstanceError):
        streams.seed = 1
    for name, call in {"streams: expected specagg.Streams, not int": lambda: specagg.verify(drafts, q, p, streams=7),
                       "edits: expected specagg.Edits, not dict": lambda: specagg.draw(q[:, 0], edits={"mask": None}),
                       "edits: expected specagg.Edits, not NoneType": lambda: specagg.verify(drafts, q, p, edits=None)}.items():
        with pytest.raises(TypeError, match=f"^{name}"):
            call()
    with pytest.raises(ValueError, match="^kept: is not there for trees"):
        specagg.verify_tree(drafts, drafts * 0, None, p, rows=specagg.Rows(kept=np.ones(V, bool)))


# ---- the bonus ------------------------------------------------------------------------------------------------------


def test_a_bonus_from_the_target_has_its_law_and_needs_no_draft_row():
    rng = np.random.default_rng(3)
    q, p = rng.dirichlet(np.ones(6), 2), rng.dirichlet(np.ones(6), 2)
    n = 40000
    drafts = draw(np.broadcast_to(q[:1], (n, 6)), rows="probabilities", seed=9, positions=0)[:, None]
    q_rows, p_rows = np.broadcast_to(q[:1], (n, 1, 6)), np.broadcast_to(p, (n, 2, 6))
    for verifier in ("token", "block", "match"):
        r = verify(drafts, q_rows, p_rows, "ensemble:lambda=0.6", verifier, rows="probabilities", seed=9, bonus="target")
        assert (r.statuses == Status.ok).all()
        after = r.tokens[r.accepted == 1][:, 1]
        assert len(after) > 5000
        assert specagg.goodness_of_fit(after, p[1]).passed
        assert not specagg.goodness_of_fit(after, 0.4 * p[1] + 0.6 * q[1]).passed  # the law of a bonus from pi
        first = specagg.law("ensemble:lambda=0.6", q[0], p[0]).pi
        assert specagg.goodness_of_fit(r.tokens[:, 0], first).passed


@pytest.mark.parametrize("policy", ["lossless", "ensemble", "token_v3:alpha=0.3"])
@pytest.mark.parametrize("verifier", ["token", "block", "match", "coupled"])
def test_given_ids_follow_what_is_accepted(policy, verifier):
    _, q, p = batch(B=40)
    if verifier == "match":  # which accepts as often as the most likely tokens are drawn
        q, p = 6 * q, 6 * p
    drafts = np.stack([draw(q[:, j], step=j, seed=0, positions=0, coupled=verifier == "coupled") for j in range(3)], axis=1)
    ids = np.arange(40) - 1  # -1: none for request 0
    with_rows = verify(drafts, q, p, policy, verifier, bonus=True)
    r = verify(drafts, q[:, :3], p[:, :3], policy, verifier, bonus=ids)
    whole = with_rows.accepted == 3
    assert 3 < whole.sum()
    np.testing.assert_array_equal(r.accepted, with_rows.accepted)
    np.testing.assert_array_equal(r.tokens[:, :3], with_rows.tokens[:, :3])
    np.testing.assert_array_equal(r.tokens[whole, 3], ids[whole])
    np.testing.assert_array_equal(r.emitted, np.where((ids < 0) & whole, 3, with_rows.emitted))
    assert np.isnan(r.log_pi[whole, 3]).all() and np.isnan(r.log_p[whole, 3]).all()
    assert (r.origins[whole & (ids >= 0), 3] == Origin.bonus).all()
    assert (r.statuses == Status.ok).all()


def test_a_bonus_for_each_request():
    drafts, q, _ = batch(B=6)
    p = q.copy()  # all are accepted
    r = verify(drafts, q, p, "ensemble", bonus=[True, False, "target", 7, V, -5])
    np.testing.assert_array_equal(r.emitted, [4, 3, 4, 4, 3, 3])
    assert r.tokens[3, 3] == 7
    assert r.statuses.tolist() == [0, 0, 0, 0, Status.token_out_of_range, Status.token_out_of_range]
    np.testing.assert_array_equal(verify(drafts, q, p, bonus=np.arange(6) % 2 == 0).emitted, [4, 3, 4, 3, 4, 3])
    # rows of q are missing at the bonus of a request that needs one
    assert verify(drafts[2:], q[2:, :3], p[2:], "ensemble", bonus=["target", 7, False, "target"]).emitted.tolist() == [4, 4, 3, 4]
    with pytest.raises(ValueError, match='^q: the policy ensemble reads.*bonus="target"'):
        verify(drafts, q[:, :3], p, "ensemble", bonus=["target"] * 5 + [True])
    with pytest.raises(ValueError, match="^p: 3 rows, where 4 are needed"):
        verify(drafts, q, p[:, :3], bonus=[7] * 5 + ["target"])


def test_engines_flat_rows_without_a_bonus_row():
    drafts, q, p = batch(B=3)
    size, offsets = [3, 0, 2], [0, 3, 3, 5]
    keep = [(i, j) for i in range(3) for j in range(size[i])]
    flat = [np.stack([x[i, j] for i, j in keep]) for x in (drafts, q, p)]
    ids = np.array([4, 5, 6])
    r = verify(*flat, "ensemble", offsets=offsets, bonus=ids)
    padded = drafts.copy()
    padded[1], padded[2, 2] = -1, -1
    whole = verify(padded, q, p, "ensemble", bonus=ids)
    np.testing.assert_array_equal(r.tokens, whole.tokens)
    assert r.tokens[1].tolist() == [5, -1, -1, -1]
    with pytest.raises(ValueError, match="^p: .*8 rows are expected"):
        verify(*flat, offsets=offsets, bonus="target")


def test_a_bonus_that_is_none_of_these():
    drafts, q, p = batch(B=2)
    for bad in (None, 1, 3.0, [1.5, 2], [[1], [2]], [None, True], np.zeros(2), np.zeros((2, 1), int), object()):
        with pytest.raises(TypeError, match="^bonus: "):
            verify(drafts, q, p, bonus=bad)
    for bad in ("draft", ["target", "pi"], [1], np.arange(3)):
        with pytest.raises(ValueError, match="^bonus: "):
            verify(drafts, q, p, bonus=bad)


def test_trees_take_a_bonus_from_the_target():
    rng = np.random.default_rng(1)
    n, parents = 20000, np.array([0, 0])
    q, p = rng.dirichlet(np.ones(5), 3), rng.dirichlet(np.ones(5), 3)
    p[0] = [0.5, 0.5, 0, 0, 0]
    tokens = np.tile(np.array([0, 1]), (n, 1))
    rows = [np.broadcast_to(x, (n, 3, 5)) for x in (q, p)]
    how = dict(rows="probabilities", seed=4, positions=0, proposed="top")
    r = flat.verify_tree(tokens, np.tile(parents, (n, 1)), *rows, "ensemble:lambda=0.5", bonus="target", **how)
    after = r.tokens[r.tokens[:, 0] == 1][:, 1]
    assert specagg.goodness_of_fit(after[after >= 0], p[2]).passed
    assert not specagg.goodness_of_fit(after[after >= 0], (p[2] + q[2]) / 2).passed
    with pytest.raises(ValueError, match="^bonus: of a tree"):
        flat.verify_tree(tokens[0], parents, q, p, bonus=[3], **how)


# ---- seeds, requests left alone, the array for tokens ----------------------------------------------------------------


def test_seeds_of_some_requests():
    drafts, q, p = batch(B=6, near=False)
    seeds = [7, None, 8, None, 9, 10]
    known = [i for i, one in enumerate(seeds) if one is not None]
    reference = verify(drafts, q, p, seed=[0 if one is None else one for one in seeds])
    runs = [verify(drafts, q, p, seed=seeds) for _ in range(20)]
    for r in runs:
        np.testing.assert_array_equal(r.tokens[known], reference.tokens[known])
    assert len({r.tokens[[1, 3]].tobytes() for r in runs}) > 1
    assert len({draw(q[:, 0], seed=[None] * 6).tobytes() for _ in range(20)}) > 1
    flat.verify(drafts, q, p, seed=[None] * 6)  # needs no positions
    with pytest.raises(ValueError, match="^positions: "):
        flat.verify(drafts, q, p, seed=seeds)
    with pytest.raises(ValueError, match="^seed: coupled"):
        verify(drafts, q, p, "lossless", "coupled", seed=seeds)
    with pytest.raises(ValueError, match="^seed: coupled"):
        draw(q[:, 0], coupled=True, seed=seeds, positions=0)
    with pytest.raises(TypeError, match="^seed: "):
        verify(drafts, q, p, seed=[None, "a", 1, 2, 3, 4])


def test_requests_that_are_left_alone():
    drafts, q, p = batch(B=5)
    q[1] = p[1] = np.nan
    skip = np.array([False, True, False, True, False])
    whole = verify(drafts, q, p, acceptances=True)
    r = verify(drafts, q, p, skip=skip, acceptances=True)
    for name in ("tokens", "emitted", "accepted", "statuses", "origins", "log_pi", "acceptance_of_row"):
        np.testing.assert_array_equal(getattr(r, name)[~skip], getattr(whole, name)[~skip])
    assert (r.tokens[skip] == -1).all() and (r.ended[skip] == -1).all() and (r.origins[skip] == Origin.no_token).all()
    assert (r.emitted[skip] == 0).all() and (r.statuses == Status.ok).all()
    assert np.isnan(r.acceptance_of_row[skip]).all()
    with pytest.raises(ValueError, match="^skip: 2 values for 5 requests"):
        verify(drafts, q, p, skip=[True, False])
    for bad in (True, [1, 0, 0, 0, 0], np.zeros((5, 1), bool), "no"):
        with pytest.raises(TypeError, match="^skip: "):
            verify(drafts, q, p, skip=bad)


@pytest.mark.parametrize("kind", [np.int32, np.int64])
def test_tokens_into_an_array_of_the_callers(kind):
    drafts, q, p = batch(near=False)
    out = np.full((4, 12), 77, kind)[:, ::2]  # strided, and wider than needed
    r = verify(drafts, q, p, out=out)
    np.testing.assert_array_equal(out[:, :4], r.tokens)
    assert (out[:, 4:] == -1).all() and (out[:, :4] == -1).any()
    for bad, error in ((np.zeros((4, 3), kind), ValueError), (np.zeros((3, 4), kind), ValueError),
                       (np.zeros((4, 4), np.float32), TypeError), (np.zeros(16, kind), TypeError), ([[0] * 4] * 4, TypeError)):
        with pytest.raises(error, match="^out: "):
            verify(drafts, q, p, out=bad)
    out.flags.writeable = False
    with pytest.raises(ValueError, match="^out: cannot be written"):
        verify(drafts, q, p, out=out)


def test_tokens_into_a_tensor():
    torch = pytest.importorskip("torch")
    drafts, q, p = batch()
    out = torch.zeros((4, 5), dtype=torch.int64)
    r = verify(drafts, torch.from_numpy(q), torch.from_numpy(p), out=out)
    np.testing.assert_array_equal(out[:, :4].numpy(), r.tokens)


def test_an_invalid_request_may_be_an_error():
    drafts, q, p = batch()
    assert (verify(drafts, q, p, on_invalid="raise").statuses == Status.ok).all()
    p[2, 0, 5] = np.nan
    assert verify(drafts, q, p).statuses.tolist() == [0, 0, Status.invalid_row, 0]
    with pytest.raises(ValueError, match="^p, q, drafts, sampling: request 2: invalid_row$"):
        verify(drafts, q, p, on_invalid="raise")
    with pytest.raises(ValueError, match=r"request 0: invalid_parameter \(and 3 more"):
        verify(drafts, q, p, on_invalid="raise", sampling=Sampling(-1))
    with pytest.raises(ValueError, match="^on_invalid: "):
        verify(drafts, q, p, on_invalid="ignore")


@pytest.mark.parametrize("kind", [np.float32, np.float64, np.float16])
def test_a_top_k_of_the_vocabulary_or_more_is_no_filter(kind):
    drafts, q, p = (x.astype(kind) if x.dtype == np.float32 else x for x in batch(near=False))
    plain = verify(drafts, q, p, sampling=Sampling(0.7))
    for k in (V, V + 1, 2**31, 2**40):
        r = verify(drafts, q, p, sampling=Sampling(0.7, top_k=k))
        np.testing.assert_array_equal(r.tokens, plain.tokens)
        np.testing.assert_array_equal(r.log_pi, plain.log_pi)
    fewer = verify(drafts, q, p, sampling=Sampling(0.7, top_k=V - 1))
    assert (fewer.log_pi != plain.log_pi)[np.isfinite(plain.log_pi)].any()


def test_probabilities_of_the_draft_beside_logits_of_the_target():
    drafts, q, p = batch(near=False)
    warm = np.exp(q / 0.7) / np.exp(q / 0.7).sum(-1, keepdims=True)
    a = verify(drafts, q, p, sampling=Sampling(0.7), acceptances=True)
    b = verify(drafts, warm, p, rows=("probabilities", "logits"), sampling=Sampling(0.7), acceptances=True)
    np.testing.assert_allclose(a.acceptance_of_row, b.acceptance_of_row, atol=1e-5)
    np.testing.assert_array_equal(a.tokens, b.tokens)
