# SPDX-License-Identifier: Apache-2.0
"""verify() and draw(): tokens, laws, every kind of array, and what is refused."""

import ast
import copy
import functools
import itertools
import pathlib
import pickle
import subprocess
import sys
import threading
import warnings

import numpy as np
import pytest

import flat
import specagg
from specagg import Penalties, Sampling, Status

verify = functools.partial(flat.verify, seed=0, positions=0, acceptances=True)
draw = functools.partial(flat.draw, seed=0, positions=0)

V = 300


def logits(*shape, seed=0):
    return np.random.default_rng(seed).normal(0, 2, (*shape, V)).astype(np.float32)


def batch(B=4, gamma=3, seed=0):
    q, p = logits(B, gamma + 1, seed=seed), logits(B, gamma + 1, seed=seed + 1)
    p = (0.5 * p + 0.5 * q).astype(np.float32)
    drafts = np.stack([draw(q[:, j], step=j) for j in range(gamma)], axis=1)
    return drafts, q, p


def same(a, b):
    for name in ("tokens", "emitted", "accepted", "ended", "statuses", "origins", "reasons"):
        np.testing.assert_array_equal(getattr(a, name), getattr(b, name), err_msg=name)
    for name in ("log_pi", "log_p", "acceptance_of_row", "acceptance_of_token"):
        np.testing.assert_array_equal(getattr(a, name), getattr(b, name), err_msg=name)


def test_shapes_and_padding():
    drafts, q, p = batch()
    r = verify(drafts, q, p)
    assert len(r) == 4 and r.tokens.shape == (4, 4) and r.tokens.dtype == np.int32
    assert r.acceptance_of_row.shape == (4, 3)
    for i in range(4):
        n = r.emitted[i]
        assert n == r.accepted[i] + 1
        assert (r.tokens[i, :n] >= 0).all() and (r.tokens[i, n:] == -1).all()
        np.testing.assert_array_equal(r.tokens[i, : r.accepted[i]], drafts[i, : r.accepted[i]])
        assert np.isfinite(r.log_pi[i, :n]).all() and np.isnan(r.log_pi[i, n:]).all()
    assert (r.statuses == Status.ok).all() and (r.ended == -1).all()


def test_one_request_and_batches_agree():
    drafts, q, p = batch()
    whole = verify(drafts, q, p, seed=5)
    for i in range(4):
        one = verify(drafts[i], q[i], p[i], seed=5, requests=i)
        np.testing.assert_array_equal(one.tokens[0], whole.tokens[i])
    order = np.array([2, 0, 3, 1])
    turned = verify(drafts[order], q[order], p[order], seed=5, requests=order)
    np.testing.assert_array_equal(turned.tokens, whole.tokens[order])


@pytest.mark.parametrize("policy", [policy.name for policy in specagg.policies()])
@pytest.mark.parametrize("verifier", ["token", "block", "match", "coupled"])
def test_every_policy_and_verifier(policy, verifier):
    _, q, p = batch()
    drafts = np.stack([draw(q[:, j], step=j, coupled=verifier == "coupled") for j in range(3)], axis=1)
    r = verify(drafts, q, p, policy, verifier)
    assert (r.statuses == Status.ok).all() and (r.emitted == r.accepted + 1).all()


def test_the_usual_path_and_the_general_one_are_one():
    # logits in float32 under token verification have code of their own; float16 has not
    drafts, q, p = batch()
    half = [x.astype(np.float16) for x in (q, p)]
    for policy in specagg.policies():
        for sampling in (None, Sampling(0.7, top_k=20, top_p=0.9)):
            one = verify(drafts, *[x.astype(np.float32) for x in half], policy.name, sampling=sampling)
            same(one, verify(drafts, *half, policy.name, sampling=sampling))
            assert (one.statuses == Status.ok).all() or sampling  # minimum: supports may be disjoint


def test_law_of_emitted_tokens():
    # tokens drafted from q and verified towards the law have it, at each position
    rng = np.random.default_rng(3)
    q, p = rng.dirichlet(np.ones(6), 2), rng.dirichlet(np.ones(6), 2)
    n = 40000
    for policy in ("lossless", "token_v3:alpha=0.3", "ensemble:lambda=0.4"):
        rows_q, rows_p = (np.broadcast_to(x[:1], (n, 2, 6)) for x in (q, p))
        drafts = draw(rows_q[:, 0], rows="probabilities", seed=9)[:, None]
        r = verify(drafts, rows_q, rows_p, policy, rows="probabilities", seed=9)
        pi = specagg.law(policy, q[0], p[0]).pi
        assert specagg.goodness_of_fit(r.tokens[:, 0], pi).passed
        assert not specagg.goodness_of_fit(r.tokens[:, 0], 0.97 * pi + 0.03 * np.eye(6)[0]).passed
        both = r.tokens[r.emitted == 2]
        assert specagg.goodness_of_fit(both[:, 1], pi).passed  # the bonus is from the second row
        assert abs(r.accepted.mean() - specagg.acceptance(q[0], p[0], policy)) < 0.02


def test_rows_of_every_kind():
    drafts, q, p = batch()
    reference = verify(drafts, q, p)
    strided = np.zeros((4, 4, 2 * V + 3), np.float32)
    strided[:, :, 1 : V + 1] = p
    wide = np.zeros((8, 8, V), np.float32)
    wide[::2, ::2] = q
    same(reference, verify(drafts, wide[::2, ::2], strided[:, :, 1 : V + 1]))
    same(reference, verify(drafts.astype(np.int64), q, p))
    frozen = p.copy()
    frozen.flags.writeable = False
    same(reference, verify(drafts, q, frozen))
    half = [x.astype(np.float16) for x in (q, p)]
    same(verify(drafts, *[x.astype(np.float32) for x in half]), verify(drafts, *half))
    # probabilities: one rounding more than logits
    probability = [np.exp(np.float64(x)) / np.exp(np.float64(x)).sum(-1, keepdims=True) for x in (q, p)]
    r = verify(drafts, *probability, rows="probabilities")
    np.testing.assert_allclose(r.acceptance_of_row, reference.acceptance_of_row, atol=1e-5)
    mixed = verify(drafts, probability[0].astype(np.float32), p, rows=("probabilities", "logits"))
    np.testing.assert_allclose(mixed.acceptance_of_row, reference.acceptance_of_row, atol=1e-5)


def test_ragged_and_lengths():
    drafts, q, p = batch(B=3, gamma=3)
    size = [3, 0, 2]
    padded = drafts.copy()
    for i, g in enumerate(size):
        padded[i, g:] = -1
    reference = verify(padded, q, p, "chow:alpha=0.3")
    lengths = verify(drafts, q, p, "chow:alpha=0.3", lengths=size)
    np.testing.assert_array_equal(reference.tokens, lengths.tokens)
    flat = np.concatenate([drafts[i, :g] for i, g in enumerate(size)])
    long_q = np.concatenate([q[i, : g + 1] for i, g in enumerate(size)])
    flat_p = np.concatenate([p[i, : g + 1] for i, g in enumerate(size)])
    offsets = np.concatenate([[0], np.cumsum(size)])
    ragged = verify(flat, long_q, flat_p, "chow:alpha=0.3", offsets=offsets)
    np.testing.assert_array_equal(reference.tokens, ragged.tokens)
    short_q = np.concatenate([q[i, :g] for i, g in enumerate(size)])
    np.testing.assert_array_equal(verify(padded, q, p).tokens,
                                  verify(flat, short_q, flat_p, offsets=offsets).tokens)
    with pytest.raises(ValueError, match="q: the policy chow reads"):
        verify(flat, short_q, flat_p, "chow", offsets=offsets)


@pytest.mark.parametrize("kind", [np.float16, np.float32, np.float64])
@pytest.mark.parametrize("verifier", ["token", "block", "match"])
@pytest.mark.parametrize("policy", [policy.name for policy in specagg.policies() if not policy.reads_draft])
def test_the_bonus_row_of_q_is_not_needed(kind, verifier, policy):
    p = np.zeros((200, 2, 3), kind)
    drafts = np.tile(np.arange(3, dtype=np.int32), 67)[:200, None]
    for q in (p[:, :1], None):  # many drafts are accepted, so the bonus row is looked at
        r = verify(drafts, q, p, policy, verifier)
        assert (r.statuses == Status.ok).all() and (r.emitted == r.accepted + 1).all() and r.accepted.sum() > 30


def test_one_hot_drafts():
    drafts, _, p = batch()
    r = verify(drafts, None, p)
    one_hot = np.full(p.shape, -np.inf, np.float32)
    for i, j in itertools.product(range(4), range(3)):
        one_hot[i, j, drafts[i, j]] = 0
    one_hot[:, 3, 0] = 0
    np.testing.assert_array_equal(r.tokens, verify(drafts, one_hot, p).tokens)
    for kind in (np.float16, np.float64):  # the general path
        assert (verify(drafts, None, p.astype(kind)).statuses == 0).all()


def test_sampling_masks_penalties_per_request():
    drafts, q, p = batch()
    temperature, top_k = np.array([0.5, 1.0, 0.0, 2.0]), np.array([0, 5, 0, 1])
    r = verify(drafts, q, p, sampling=Sampling(temperature, top_k))
    for i in range(4):
        one = verify(drafts[i], q[i], p[i], requests=i,
                             sampling=Sampling(float(temperature[i]), int(top_k[i])))
        np.testing.assert_array_equal(one.tokens[0], r.tokens[i])
    assert r.tokens[2, 0] == p[2, 0].argmax() and r.tokens[3, 0] == p[3, 0].argmax()
    allowed = np.zeros((4, V), bool)
    allowed[:, :7] = True
    masked = verify(drafts, q, p, mask=allowed)
    assert (masked.tokens < 7).all()
    for i in range(4):
        edited = [np.where(allowed[i], x[i], -np.inf).astype(np.float32) for x in (q, p)]
        np.testing.assert_array_equal(verify(drafts[i], *edited, requests=i).tokens[0], masked.tokens[i])
    by_row = np.ones((4, 4, V), bool)
    by_row[:, 1:, 9:] = False
    assert (verify(drafts, q, p, mask=by_row).tokens[:, 1:] < 9).all()
    history = [[1, 2, 2], [], [5], [7, 7]]
    penalised = verify(drafts, q, p, penalties=Penalties(history, frequency=0.7, presence=0.1))
    for i in range(4):
        text, rows = list(history[i]), [q[i].copy(), p[i].copy()]
        for j in range(4):
            for v in set(text):
                for x in rows:
                    x[j, v] = np.float32(float(x[j, v]) - 0.1 - 0.7 * text.count(v))
            if j < 3:
                text.append(int(drafts[i, j]))
        np.testing.assert_array_equal(verify(drafts[i], *rows, requests=i).tokens[0], penalised.tokens[i])


@pytest.mark.parametrize("kind", [None, np.float16, np.float32, np.float64])
@pytest.mark.parametrize("verifier", ["token", "block", "match", "coupled"])
def test_a_masked_token_is_not_emitted(kind, verifier):
    # kind: of the rows q that the drafts are said to come from; None: q=None
    rng = np.random.default_rng(5)
    B, size = 400, 6
    rows = rng.normal(0, 1, (2, B, 3, size)).astype(kind or np.float32)
    q, p = None if kind is None else rows[0], rows[1]
    drafts = rng.integers(0, size, (B, 2)).astype(np.int32)
    allowed = rng.random((B, 3, size)) < 0.6
    allowed[..., 0] = True
    first_is_allowed = np.take_along_axis(allowed[:, 0], drafts[:, :1], 1)[:, 0]
    assert 100 < first_is_allowed.sum() < 350
    for one in specagg.policies():
        bonus = kind is not None or not one.reads_draft
        r = verify(drafts, q, p, one.name, verifier, mask=allowed, bonus=bonus)
        there = r.tokens >= 0
        assert np.take_along_axis(allowed, np.maximum(r.tokens, 0)[..., None], 2)[there].all(), one.name
        assert (r.accepted[~first_is_allowed] == 0).all() and r.accepted[first_is_allowed].sum() > 0, one.name
        if kind is None and not bonus:  # the draft ends there, and nothing follows
            assert (r.statuses[~first_is_allowed] == Status.invalid_row).all(), one.name
            assert (r.emitted[~first_is_allowed] == 0).all(), one.name


def test_policy_of_each_request_and_end_of_text():
    drafts, q, p = batch()
    names = ["lossless", "chow:alpha=0.4", "opt", "ensemble:lambda=0.5"]
    r = verify(drafts, q, p, names, seed=np.arange(4))
    for i, name in enumerate(names):
        one = verify(drafts[i], q[i], p[i], name, seed=i, requests=i)
        np.testing.assert_array_equal(one.tokens[0], r.tokens[i])
    ends = [int(drafts[0, 0])]
    r = verify(drafts[:1, :1], q[:1], q[:1], end_of_text=ends)
    assert r.tokens[0].tolist() == ends + [-1] and r.ended[0] == ends[0]
    assert (verify(drafts, q, q, bonus=False).emitted == 3).all()


def test_bad_rows_are_their_requests_status():
    drafts, q, p = batch()
    reference = verify(drafts, q, p)
    bad = p.copy()
    bad[1, 0, 5] = np.nan
    bad[2] = -np.inf
    sampling = Sampling(np.array([1.0, 1.0, 1.0, -1.0]))
    r = verify(drafts, q, bad, sampling=sampling)
    assert [Status(s).name for s in r.statuses] == ["ok", "invalid_row", "invalid_row", "invalid_parameter"]
    np.testing.assert_array_equal(r.tokens[0], reference.tokens[0])
    assert (r.tokens[1:] == -1).all()
    outside = drafts.copy()
    outside[0, 0] = V
    outside[1, 0] = 2**31 - 1
    r = verify(outside, q, p)
    assert (r.reasons[:2, 0] == Status.token_out_of_range).all() and (r.accepted[:2] == 0).all()
    assert (r.emitted[:2] == 1).all()
    huge = drafts.astype(np.int64)
    huge[0, 0], huge[1, 0] = 2**40 + 1, -(2**40)
    np.testing.assert_array_equal(verify(huge, q, p).accepted[:2], 0)
    assert draw(bad[:, 0])[1] == -1


REFUSED = {
    "drafts: expected a numpy array": lambda d, q, p: ([[1]], q, p, {}),
    "drafts: token ids": lambda d, q, p: (d.astype(np.float32), q, p, {}),
    "q: expected a numpy array": lambda d, q, p: (d, "x", p, {}),
    "p: logits are": lambda d, q, p: (d, q, p.astype(np.int32), {}),
    "p: expected a numpy array": lambda d, q, p: (d, q, p.astype(">f4"), {}),
    "q: the numbers of a row": lambda d, q, p: (d, np.asfortranarray(q), p, {}),
    "q: rows have": lambda d, q, p: (d, q[..., :-1], p, {}),
    "p: rows have no numbers": lambda d, q, p: (d, q, p[..., :0], {}),
    "q: .* has rows for 3 of 4": lambda d, q, p: (d, q[:3], p, {}),
    "p: 3 rows, where 4": lambda d, q, p: (d, q, p[:, :3], {}),
    "q: 2 rows, where 3": lambda d, q, p: (d, q[:, :2], p, {}),
    "q: the policy opt reads": lambda d, q, p: (d, q[:, :3], p, {"policy": "opt"}),
    "p: .* is expected": lambda d, q, p: (d, q, p[0], {}),
    "q, p: one is float64": lambda d, q, p: (d, q.astype(np.float64), p, {}),
    'policy: there is no "best"': lambda d, q, p: (d, q, p, {"policy": "best"}),
    "policy lossy: alpha: 2 is not in": lambda d, q, p: (d, q, p, {"policy": "lossy:alpha=2"}),
    "policy: 2 policies for 4": lambda d, q, p: (d, q, p, {"policy": ["opt", "chow"]}),
    "policy: expected a name": lambda d, q, p: (d, q, p, {"policy": 3}),
    "verifier: there is no": lambda d, q, p: (d, q, p, {"verifier": "best"}),
    "seed: 3 values for 4": lambda d, q, p: (d, q, p, {"seed": [1, 2, 3]}),
    "seed: -1 is out of range": lambda d, q, p: (d, q, p, {"seed": -1}),
    "seed: expected whole numbers": lambda d, q, p: (d, q, p, {"seed": [0.5] * 4}),
    "positions: .* out of range": lambda d, q, p: (d, q, p, {"positions": 2**32}),
    "temperature: expected numbers": lambda d, q, p: (d, q, p, {"sampling": Sampling("hot")}),
    "temperature: 2 values for 4": lambda d, q, p: (d, q, p, {"sampling": Sampling([1.0, 2.0])}),
    "sampling: expected specagg.Sampling": lambda d, q, p: (d, q, p, {"sampling": 0.5}),
    "mask: expected bool": lambda d, q, p: (d, q, p, {"mask": np.ones(V)}),
    "mask: rows have": lambda d, q, p: (d, q, p, {"mask": np.ones(V - 1, bool)}),
    "mask: 2 masks for 4": lambda d, q, p: (d, q, p, {"mask": np.ones((2, V), bool)}),
    "mask: .* where 4 rows": lambda d, q, p: (d, q, p, {"mask": np.ones((4, 2, V), bool)}),
    "history: 1 texts for 4": lambda d, q, p: (d, q, p, {"penalties": Penalties([[1]], 1.1)}),
    "mask, penalties: edit logits": lambda d, q, p: (d, q, p, {"mask": np.ones(V, bool), "rows": "probabilities"}),
    "rows: expected": lambda d, q, p: (d, q, p, {"rows": "weights"}),
    "lengths: 9 of request 0": lambda d, q, p: (d, q, p, {"lengths": [9, 1, 1, 1]}),
    "drafts: with offsets": lambda d, q, p: (d, q, p, {"offsets": [0, 1]}),
    "offsets: must begin": lambda d, q, p: (d.reshape(-1), q[0], p[0], {"offsets": [0, 12, 3]}),
    "offsets: end at": lambda d, q, p: (d.reshape(-1), q[0], p[0], {"offsets": [0, 3]}),
}


@pytest.mark.parametrize("message", REFUSED)
def test_what_is_refused_names_the_argument(message):
    with pytest.raises((ValueError, TypeError), match=message):
        d, q, p, others = REFUSED[message](*batch())
        verify(d, q, p, **others)


class Elsewhere:
    """A tensor of another device, as torch's."""

    device = "cuda:1"

    def __array__(self, *_, **__):
        raise TypeError("can't convert cuda:1 device type tensor to numpy")


def test_a_tensor_elsewhere_is_named_with_its_device():
    drafts, q, p = batch()
    for call in (lambda x: verify(drafts, q, x), lambda x: verify(drafts, x, p), lambda x: verify(x, q, p),
                 lambda x: verify(drafts, q, p, mask=x), lambda x: verify(drafts, q, p, positions=x),
                 lambda x: verify(drafts, q, p, end_of_text=x), lambda x: draw(x), lambda x: specagg.law("opt", x, x),
                 lambda x: specagg.goodness_of_fit(x, [1.0])):
        with pytest.raises(ValueError, match=r"^(\w+): is on the device cuda:1; .* in torch by \1.cpu\(\)$"):
            call(Elsewhere())


@pytest.mark.parametrize("kind", [np.float16, np.float32, np.float64])
def test_probabilities_taken_as_logits_are_warned_of(kind):
    drafts, q, p = batch()
    likely = [(np.exp(x) / np.exp(x).sum(-1, keepdims=True)).astype(kind) for x in (q, p)]
    logits = [x.astype(kind) for x in (q, p)]
    with pytest.warns(UserWarning, match='^p: rows .* say rows="probabilities"$') as seen:
        specagg.verify(drafts, logits[0], likely[1])
    assert [one.filename for one in seen] == [__file__]
    with pytest.warns(UserWarning, match="^q: rows"):
        verify(drafts[0], likely[0][0], logits[1][0])
    with pytest.warns(UserWarning, match="^rows: rows"):
        draw(likely[0][:, 0])
    with pytest.warns(UserWarning, match="^q: rows"):
        specagg.law("opt", likely[0][0, 0], logits[1][0, 0], rows="logits")
    with pytest.warns(UserWarning, match="^p: rows"):
        flat.verify_tree(drafts, np.zeros(drafts.shape, int), None, likely[1])
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        verify(drafts, *logits)
        verify(np.zeros((2, 0), int), None, np.zeros((2, 1, 4), kind))  # all alike
        verify(np.zeros((2, 0), int), None, np.ones((2, 1, 1), kind))  # one token
        if kind != np.float16:
            verify(drafts, *likely, rows="probabilities")
        with pytest.raises(UserWarning, match="^p: rows"):
            verify(drafts, logits[0], likely[1])


def test_what_a_result_prints():
    drafts, q, p = batch()
    r = verify(drafts, q, p)
    tokens = [row[:n] for row, n in zip(r.tokens.tolist(), r.emitted)]
    assert repr(r) == f"Verified(tokens={tokens}, accepted={r.accepted.tolist()}, statuses=[ok, ok, ok, ok])"
    p[1] = np.nan
    assert "statuses=[ok, invalid_row, ok, ok]" in repr(verify(drafts, q, p))
    many = repr(verify(*batch(B=9)))
    assert many.count(", ...]") == 3 and len(many) < 500
    tree = flat.verify_tree(drafts, np.zeros(drafts.shape, int), q, p)
    assert repr(tree).startswith("VerifiedTrees(tokens=[[")
    assert repr(verify(np.zeros((0, 3), int), None, p[:0])) == "Verified(tokens=[], accepted=[], statuses=[])"


def test_results_are_pickled_and_writable():
    drafts, q, p = batch()
    results = [verify(drafts, q, p), flat.verify_tree(drafts, np.zeros(drafts.shape, int), q, p),
               verify(np.zeros((0, 3), int), None, p[:0])]
    for r in results:
        again = pickle.loads(pickle.dumps(r))
        assert type(again) is type(r) and repr(again) == repr(r) and len(again) == len(r)
        same(again, r)
        same(copy.deepcopy(r), r)
        for name in ("tokens", "emitted", "statuses", "log_pi", "acceptance_of_row"):
            array = getattr(r, name)
            assert array.flags.writeable
            array[...] = 1
            assert (getattr(r, name) == 1).all() and (array.size == 0 or not (getattr(again, name) == 1).all())
    assert np.array_equal(pickle.loads(pickle.dumps(results[1])).paths, results[1].paths)
    with pytest.raises(ValueError, match="another version"):
        specagg.Verified.__new__(specagg.Verified).__setstate__((4, 4, [b""]))


def test_policies_and_options_are_pickled_copied_and_compared():
    near = [specagg.policy("token_v3", alpha=x) for x in (0.3, 0.1 + 0.2)]
    ways = [specagg.policy("token-v3:alpha=0.3"), specagg.policy("token_v3", alpha="0.3")]
    assert ways == [near[0]] * 2 and len({*ways, *near}) == 2 and near[0] != near[1]
    assert near[0] != specagg.policy("token_v2", alpha=0.3) and near[0] != "token_v3:alpha=0.3" and near[0] is not None
    assert str(specagg.policy("lossy:alpha=0.2")) == "lossy:alpha=0.2,beta=exact"
    assert repr(near[1]) == "policy('token-v3:alpha=0.30000000000000004')"
    policies = [specagg.policy(one.name) for one in specagg.policies()] + near
    texts = [specagg.by_position(near), specagg.by_position(near[:1]), specagg.policy("regret_budget", budget=1),
             specagg.policy("regret_budget", budget=1, limit=2), specagg.phase("token_v3:alpha=0.3", "lossless", 1, [2]),
             specagg.phase("token_v3:alpha=0.3", "lossless", 1, [3])]
    for one in [*policies, *texts]:
        for again in (pickle.loads(pickle.dumps(one)), copy.copy(one), copy.deepcopy(one), eval(repr(one), {**vars(specagg), "inf": np.inf})):
            assert type(again) is type(one) and again == one and hash(again) == hash(one) and repr(again) == repr(one)
        assert [one == other for other in [*policies, *texts]].count(True) == 1
    drafts, q, p = batch(gamma=2)
    text = pickle.loads(pickle.dumps(texts[0]))
    same(flat.verify(drafts, q, p, text, bonus=False, seed=1, positions=0),
         flat.verify(drafts, q, p, texts[0], bonus=False, seed=1, positions=0))

    sampling = specagg.Sampling(np.linspace(0.5, 2, 4), 7, 0.9, [0, 0.1, 0, 0.1])
    penalties = Penalties([[1, 2], [], [3], [0]], 1.2, [0, 0.5, 0, 0], 0.1)
    for change in (copy.copy, copy.deepcopy, lambda x: pickle.loads(pickle.dumps(x))):
        assert repr(change(sampling)) == repr(sampling)
        how = dict(seed=1, positions=0)
        same(flat.verify(drafts, q[:, :2], p, sampling=change(sampling), penalties=change(penalties), **how),
             flat.verify(drafts, q[:, :2], p, sampling=sampling, penalties=penalties, **how))


def test_help_says_what_the_stubs_say():
    stubs = ast.parse((pathlib.Path(specagg.__file__).parent / "_core.pyi").read_text())

    def words(text):
        return " ".join((text or "").split())

    for stub in stubs.body:
        found = getattr(specagg, getattr(stub, "name", ""), None)
        if isinstance(stub, ast.FunctionDef) and ast.get_docstring(stub):
            assert words(found.__doc__).endswith(words(ast.get_docstring(stub))), stub.name
        elif isinstance(stub, ast.ClassDef) and isinstance(found, type) and found.__module__ == "specagg._core":
            assert words(found.__doc__) == words(ast.get_docstring(stub)) != "", stub.name
            for one in stub.body:
                if isinstance(one, ast.FunctionDef) and one.decorator_list:
                    assert words(getattr(found, one.name).__doc__) == words(ast.get_docstring(one)), one.name
    for one in (getattr(specagg, name) for name in specagg.__all__):
        assert one is specagg.plan or len(one.__doc__) > 20 and not one.__doc__.startswith("An enumeration"), one


def test_a_wrong_number_of_threads_is_named():
    for wrong, error in ((0, ValueError), (-1, ValueError), (1025, ValueError), (2**70, ValueError), (1.5, TypeError), ("2", TypeError),
                         (None, TypeError)):
        with pytest.raises(error, match="^threads: "):
            specagg.set_threads(wrong)


def test_origins_have_names():
    drafts, q, p = batch(B=40)
    r = verify(drafts, q, p)
    assert [one.name for one in specagg.Origin] == ["no_token", "accepted", "residual", "bonus"]
    column = np.arange(r.tokens.shape[1])
    np.testing.assert_array_equal(r.origins == specagg.Origin.accepted, column < r.accepted[:, None])
    np.testing.assert_array_equal(r.origins == specagg.Origin.no_token, column >= r.emitted[:, None])
    last = r.origins[np.arange(40), r.accepted]
    assert set(last.tolist()) == {specagg.Origin.residual, specagg.Origin.bonus}
    np.testing.assert_array_equal(last == specagg.Origin.bonus, r.accepted == 3)


def test_acceptances_of_coupled_verification_are_0_or_1():
    _, q, p = batch(B=40)
    drafts = np.stack([draw(q[:, j], step=j, coupled=True) for j in range(3)], axis=1)
    r = verify(drafts, q, p, verifier="coupled")
    accepted = np.arange(3) < r.accepted[:, None]
    np.testing.assert_array_equal(r.acceptance_of_row, accepted)
    np.testing.assert_array_equal(r.acceptance_of_token, accepted)


def test_empty_batches():
    r = verify(np.zeros((0, 3), np.int32), np.zeros((0, 4, V), np.float32), np.zeros((0, 4, V), np.float32))
    assert len(r) == 0 and r.tokens.shape == (0, 4)
    drafts = np.zeros((2, 0), np.int32)
    r = verify(drafts, None, logits(2, 1))
    assert (r.emitted == 1).all() and r.tokens.shape == (2, 1)
    drafts, q, p = batch(B=0)
    for none in ([], (), np.array([])):  # numpy makes float64 of an empty list
        of_each = specagg.Sampling(none, none, none, none)
        r = flat.verify(drafts, q, p, [], seed=none, requests=none, positions=none, sampling=of_each, lengths=none, bonus=none,
                           skip=none, state=none, penalties=Penalties([], none, none, none))
        assert len(r) == 0
        assert len(flat.draw(q[:, 0], seed=none, requests=none, positions=none, sampling=of_each)) == 0
        assert len(flat.verify_tree(drafts, drafts, None, p, [], seed=none, requests=none, positions=none)) == 0
    assert len(flat.verify(drafts[0:0, 0], None, p[:, 0], offsets=[0], seed=[], positions=[])) == 0
    with pytest.raises(ValueError, match=r"offsets: expected B \+ 1 numbers, not \[0\]"):
        flat.verify(drafts[0:0, 0], None, p[:, 0], offsets=[])
    with pytest.raises(ValueError, match="positions: 0 values for 4 requests"):
        verify(*batch(), positions=[])


def test_a_masked_array_is_refused_by_name():
    drafts, q, p = batch()

    def masked(x):
        return np.ma.masked_array(x, np.ones_like(x, bool))

    for name, call in {
        "drafts": lambda: verify(masked(drafts), q, p), "q": lambda: verify(drafts, masked(q), p),
        "p": lambda: verify(drafts, q, masked(p)), "mask": lambda: verify(drafts, q, p, mask=masked(np.ones(V, bool))),
        "positions": lambda: verify(drafts, q, p, positions=masked(np.arange(4))),
        "temperature": lambda: specagg.Sampling([1.0, np.ma.masked]), "skip": lambda: verify(drafts, q, p, skip=masked(drafts[:, 0] > 0)),
        "history": lambda: Penalties([masked(drafts[0])] * 4), "end_of_text": lambda: verify(drafts, q, p, end_of_text=masked([1])),
        "rows": lambda: draw(masked(q[:, 0])), "tokens": lambda: flat.verify_tree(masked(drafts), drafts * 0, None, p),
        "parents": lambda: flat.verify_tree(drafts, masked(drafts * 0), None, p),
        "law": lambda: specagg.goodness_of_fit([0], masked(np.ones(1))), "next_child": lambda: specagg.parents_of(masked([-1]), [-1]),
        "kept": lambda: verify(drafts, q, p, kept=masked(np.ones(V, bool))),
    }.items():
        with pytest.raises(ValueError, match=f"^{name}.*: is a masked array, and its mask would be ignored"):
            call()
    with pytest.raises(ValueError, match="^q: is a masked array"):
        specagg.law("opt", [masked([0.5, 0.5])], [[0.5, 0.5]])


def test_results_do_not_depend_on_threads():
    drafts, q, p = batch(B=64)
    reference = verify(drafts, q, p, "token_v3")
    try:
        for threads in (1, 2, 5):
            specagg.set_threads(threads)
            same(reference, verify(drafts, q, p, "token_v3"))
    finally:
        specagg.set_threads(2)
    failures = []

    def work():
        for _ in range(20):
            if not np.array_equal(verify(drafts, q, p, "token_v3").tokens, reference.tokens):
                failures.append(1)

    threads = [threading.Thread(target=work) for _ in range(4)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert not failures


def test_arrays_outlive_the_result_and_memory_of_others():
    drafts, q, p = batch()
    tokens = verify(drafts, q, p).tokens
    kept = tokens.copy()
    del q, p, drafts
    for _ in range(50):
        verify(*batch(seed=4))
    np.testing.assert_array_equal(tokens, kept)


@pytest.mark.parametrize("isa", ["sse2", "avx2", "avx512"])
def test_same_tokens_on_every_instruction_set(isa):
    program = (
        "import numpy as np, specagg\n"
        "rng = np.random.default_rng(0)\n"
        "q, p = rng.normal(0, 3, (2, 8, 5, 5000)).astype(np.float32)\n"
        "how = dict(streams=specagg.Streams(1, positions=0))\n"
        "d = np.stack([specagg.draw(q[:, j], step=j, **how) for j in range(4)], 1)\n"
        "out = [specagg.verify(d, q, q + p / 4, policy.name, **how) for policy in specagg.policies()]\n"
        "out += [specagg.verify(d, q.astype(np.float16), q.astype(np.float16), verifier=v, **how) for v in ('block', 'match')]\n"
        "import zlib\n"
        "print(specagg.isa(), zlib.crc32(b''.join(r.tokens.tobytes() + r.log_pi.tobytes() for r in out)))\n")
    def run(**env):
        import os
        return subprocess.run([sys.executable, "-c", program], env={**os.environ, **env}, capture_output=True, text=True)
    here = run(SPECAGG_ISA=isa)
    if here.returncode == 2 and any(why in here.stderr for why in ("cannot run", "no such version")):
        pytest.skip(here.stderr)
    name, bits = here.stdout.split()
    assert name == isa
    assert run(SPECAGG_ISA="").stdout.split()[1] == bits


def test_acceptances_change_no_token():
    drafts, q, p = batch()
    with_them, without = verify(drafts, q, p), verify(drafts, q, p, acceptances=False)
    np.testing.assert_array_equal(with_them.tokens, without.tokens)
    assert np.isnan(without.acceptance_of_row).all() and np.isfinite(with_them.acceptance_of_row).all()


def test_seeds():
    drafts, q, p = batch(B=16)
    for call in (flat.verify, functools.partial(flat.verify_tree, parents=np.zeros((16, 3), int))):
        with pytest.raises(ValueError, match="positions: a seed needs them"):
            call(drafts, q=q, p=p, seed=3)
    with pytest.raises(ValueError, match="positions: a seed needs them"):
        flat.draw(q[:, 0], seed=3)
    fresh = [flat.verify(drafts, q, p).tokens.tolist() for _ in range(4)]
    assert fresh[0] != fresh[1] or fresh[1] != fresh[2]  # no call decides with numbers of another
    for refused in (lambda: flat.verify(drafts, q, p, verifier="coupled"), lambda: flat.draw(q[:, 0], coupled=True)):
        with pytest.raises(ValueError, match="seed: coupled"):
            refused()


def test_fork_and_threads():
    import os
    drafts, q, p = batch(B=32)
    tokens = verify(drafts, q, p).tokens.copy()
    child = os.fork()
    if child == 0:
        specagg.set_threads(3)
        os._exit(0 if np.array_equal(verify(drafts, q, p).tokens, tokens) else 1)
    assert os.waitpid(child, 0)[1] == 0
