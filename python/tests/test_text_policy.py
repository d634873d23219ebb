# SPDX-License-Identifier: Apache-2.0
"""Policies of texts, and rows that are cut, against laws that are written out here."""

import itertools
import pickle

import numpy as np
import pytest
import specagg

V, LENGTH = 3, 3
numbers = np.random.default_rng(5)
# Rows after the last two tokens of a text; V stands for the begin. After some, p has a token without probability.
Q = numbers.dirichlet(np.ones(V), (V + 1, V + 1))
P = numbers.dirichlet(np.ones(V), (V + 1, V + 1))
P[1, :, 2] = 0
P /= P.sum(2, keepdims=True)

MARKS = dict(open=[1], close=[2])
WEIGHTS = [0.2, 0.9, 0.5]


def row(table, text):
    return table[tuple(((V, V) + tuple(text))[-2:])]


def entropy(p):
    return -sum(x * np.log(x) for x in p if x > 0) / np.log(V)


def standing(q, p, stands):
    """q where it stands, and what q has elsewhere drawn from p."""
    return np.where(stands, q, 0) + q[~stands].sum() * p


def regret(p):
    with np.errstate(divide="ignore"):
        return np.log(p.max() / p)


def budget_after(text, budget, limit):
    left = budget
    for i, y in enumerate(text):
        cost = regret(row(P, text[:i]))[y]
        left -= cost if cost <= min(left, limit) else 0
    return left


def window_after(text, threshold, window):
    left = 0
    for i, y in enumerate(text):
        p = row(P, text[:i])
        left = left - 1 if left else window if entropy(p) >= threshold and y != p.argmax() else 0
    return left


def is_inside(text):
    inside = False
    for y in text:
        inside = y not in MARKS["close"] if inside else y in MARKS["open"]
    return inside


def of_budget(text):
    left = budget_after(text, 1.0, 0.8)
    q, p = row(Q, text), row(P, text)
    return standing(q, p, regret(p) <= min(left, 0.8)), 1.0 - left


def of_window(text):
    left = window_after(text, 0.7, 1)
    q, p = row(Q, text), row(P, text)
    return (p if left or entropy(p) < 0.7 else standing(q, p, p > 0)), left


def of_phase(text):
    q, p = row(Q, text), row(P, text)
    weight = 0.7 if is_inside(text) else 0
    return weight * q + (1 - weight) * p, float(is_inside(text))


RULES = {
    "regret_budget": (specagg.regret_budget(1.0, 0.8), of_budget),
    "entropy_window": (specagg.entropy_window(0.7, 1), of_window),
    "phase": (specagg.phase("ensemble:lambda=0.7", "lossless", **MARKS), of_phase),
}


def rounds(policy, verifier, texts, gamma):
    """Texts of LENGTH tokens or more, by rounds; and what each round had."""
    done, states, seen = [()] * texts, np.zeros(texts), []
    while min(map(len, done)) < LENGTH:
        how = dict(seed=7, positions=np.array([len(t) for t in done]), rows="probabilities")
        drafted = np.zeros((texts, gamma), np.int64)
        ahead = list(done)
        for step in range(gamma):
            drafted[:, step] = specagg.draw(np.array([row(Q, t) for t in ahead]), step=step, coupled=verifier == "coupled", **how)
            ahead = [t + (int(y),) for t, y in zip(ahead, drafted[:, step])]
        q, p = (np.array([[row(table, t[:len(t) - gamma + j]) for j in range(gamma + 1)] for t in ahead]) for table in (Q, P))
        v = specagg.verify(drafted, q, p, policy, verifier, state=states, on_invalid="raise", **how)
        seen.append((list(done), v))
        states = np.array(v.states)
        done = [t + tuple(int(y) for y in v.tokens[i, : v.emitted[i]]) for i, t in enumerate(done)]
    return [t[:LENGTH] for t in done], seen


@pytest.mark.parametrize("name", RULES)
@pytest.mark.parametrize("verifier", ["token", "block", "match", "coupled"])
def test_each_token_has_the_law_of_its_text_and_the_state_is_that_of_the_text(name, verifier):
    policy, plain = RULES[name]
    for gamma in (1, 2, 3):
        _, seen = rounds(policy, verifier, 300, gamma)
        for before, v in seen:
            for i, text in enumerate(before):
                for j in range(v.emitted[i]):
                    y = int(v.tokens[i, j])
                    assert abs(np.exp(v.log_pi[i, j]) - plain(text)[0][y]) < 1e-12
                    text += (y,)
                assert abs(v.states[i] - plain(text)[1]) < 1e-12


@pytest.mark.parametrize("name", RULES)
def test_texts_of_several_rounds_have_the_product_of_the_laws(name):
    policy, plain = RULES[name]
    joint = np.zeros((V,) * LENGTH)
    for text in itertools.product(range(V), repeat=LENGTH):
        joint[text] = np.prod([plain(text[:i])[0][text[i]] for i in range(LENGTH)])
    assert abs(joint.sum() - 1) < 1e-12
    # One drafted token a round, so that most tokens have a state from the round before: without it their laws are 0.12 and
    # more from these. With two, only 0.001: rounds are then nearly whole texts.
    texts, _ = rounds(policy, "block", 20000, 1)
    assert specagg.goodness_of_fit(texts, joint).passed
    other = joint.swapaxes(0, 2)  # the test has power
    assert not specagg.goodness_of_fit([t for t in texts if other[t] > 0], other / other.sum()).passed


def test_a_policy_of_each_position():
    policy = specagg.by_position([f"ensemble:lambda={w}" for w in WEIGHTS])
    for verifier in ("token", "block", "match", "coupled"):
        _, seen = rounds(policy, verifier, 300, 2)
        for before, v in seen:
            assert np.isnan(v.states).all()
            for i, text in enumerate(before):
                for j in range(v.emitted[i]):
                    y, w = int(v.tokens[i, j]), WEIGHTS[j]
                    due = w * row(Q, text)[y] + (1 - w) * row(P, text)[y]
                    assert abs(np.exp(v.log_pi[i, j]) - due) < 1e-12
                    text += (y,)


def test_one_policy_at_every_position_decides_as_it_does_alone():
    drafts, q, p = numbers.integers(0, V, (40, 2)), numbers.random((40, 3, V)), numbers.random((40, 3, V))
    how = dict(seed=1, positions=0, acceptances=True)
    for dtype in (np.float32, np.float64):
        rows = q.astype(dtype), p.astype(dtype)
        for name in ("lossless", "token_v3:alpha=0.3", "typical", "ensemble:lambda=0.4"):
            alone = specagg.verify(drafts, *rows, name, **how)
            each = specagg.verify(drafts, *rows, [specagg.by_position([name] * 3), name] * 20, **how)
            for what in ("tokens", "log_pi", "log_p", "acceptance_of_row", "acceptance_of_token", "origins", "reasons"):
                assert np.array_equal(getattr(alone, what), getattr(each, what), equal_nan=True), (name, what)


def test_what_a_policy_of_a_text_refuses():
    one = specagg.by_position(["lossless", "ensemble:lambda=0.5"])
    drafts, q, p = np.array([[0, 1]]), np.zeros((1, 3, V)), np.zeros((1, 3, V))
    with pytest.raises(ValueError, match=r"policy: by_position has 2 policies, where request 0 has 3 positions"):
        specagg.verify(drafts, q, p, one)
    assert specagg.verify(drafts, q, p, one, bonus=False).statuses[0] == 0
    with pytest.raises(ValueError, match="bonus: of a policy of a text"):
        specagg.verify(drafts, q, p, one, bonus=[1])
    with pytest.raises(ValueError, match="q: the policy regret_budget reads the draft's row at the bonus position"):
        specagg.verify(drafts, q[:, :2], p, specagg.regret_budget(1))
    for refused in (specagg.law, specagg.acceptance):
        with pytest.raises(TypeError, match="policy: expected a name"):
            refused(*(one, q[0, 0], p[0, 0]) if refused is specagg.law else (q[0, 0], p[0, 0], one))
    with pytest.raises(TypeError, match="policies: expected a list"):
        specagg.by_position("lossless")
    with pytest.raises(ValueError, match="policies: is empty"):
        specagg.by_position([])
    with pytest.raises(TypeError, match="policy: expected a name"):
        specagg.by_position([one])
    for wrong in (-1, np.nan, np.inf):
        with pytest.raises(ValueError, match="budget: "):
            specagg.regret_budget(wrong)
        with pytest.raises(ValueError, match="window: "):
            specagg.entropy_window(0.3, wrong)
    with pytest.raises(TypeError, match="threshold: expected a number, not str"):
        specagg.entropy_window("0.3")
    with pytest.raises(TypeError, match="open: expected token ids"):
        specagg.phase("lossless", "lossless", ["<think>"], [2])
    with pytest.raises(ValueError, match="state: 2 values for 1 requests"):
        specagg.verify(drafts, q, p, specagg.regret_budget(1), state=[0, 1])


def test_a_state_is_kept_where_nothing_is_emitted_and_by_pickle():
    policy = specagg.regret_budget(1)
    drafts, q = np.zeros((3, 1), int), np.zeros((3, 2, V))
    p = q.copy()
    p[1] = np.nan
    v = specagg.verify(drafts, q, p, policy, state=[0.25, 0.5, 0.75], skip=np.array([False, False, True]))
    assert v.states[1] == 0.5 and v.states[2] == 0.75 and v.statuses[1] != 0 and v.states[0] == 0.25  # equal logits: no regret
    assert np.array_equal(pickle.loads(pickle.dumps(v)).states, v.states)


KEPT = np.array([True, False, True])


def first_tokens(verifier, texts, kept=KEPT, drop=False, policy="lossless", **more):
    q, p = Q[0, 1], P[0, 2]
    how = dict(seed=3, positions=0, rows="probabilities")
    drafts = specagg.draw(np.tile(q, (texts, 1)), **how).reshape(-1, 1).astype(np.int64)
    lengths = np.where(KEPT[drafts[:, 0]], 1, 0) if drop else None
    v = specagg.verify(drafts, np.tile(q, (texts, 1, 1)), np.tile(p, (texts, 2, 1)), policy, verifier, lengths=lengths,
                       kept=None if drop else kept, on_invalid="raise", **how, **more)
    return drafts[:, 0], v, p


@pytest.mark.parametrize("verifier", ["token", "block"])
def test_a_draft_whose_row_is_cut_emits_p(verifier):
    drafts, v, p = first_tokens(verifier, 20000)
    assert specagg.goodness_of_fit(v.tokens[:, 0], p).passed
    assert not v.accepted[~KEPT[drafts]].any() and v.accepted[KEPT[drafts]].any()
    assert np.allclose(np.exp(v.log_pi[:, 0]), p[v.tokens[:, 0]], rtol=0, atol=1e-12)
    whole = first_tokens(verifier, 20000, kept=np.ones((20000, 1, V), bool))[1]
    assert np.array_equal(whole.tokens, first_tokens(verifier, 20000, kept=None)[1].tokens)
    assert specagg.goodness_of_fit(first_tokens(verifier, 20000, kept=np.zeros(V, np.uint8))[1].tokens[:, 0], p).passed


def test_a_token_that_is_dropped_without_the_cut_is_a_bias():
    _, v, p = first_tokens("token", 20000, drop=True)
    assert not specagg.goodness_of_fit(v.tokens[:, 0], p).passed


def test_what_cut_rows_refuse():
    for wrong, message in ((np.ones(V + 1, bool), "kept: rows have 4 numbers"), (np.ones((3, V), bool), "kept: 3 masks for 2"),
                           (np.ones((2, 0, V), bool), "kept: .*where 1 rows are needed")):
        with pytest.raises(ValueError, match=message):
            first_tokens("token", 2, kept=wrong)
    with pytest.raises(TypeError, match="kept: expected bool or uint8"):
        first_tokens("token", 2, kept=np.ones(V))
    with pytest.raises(ValueError, match="kept: the policy ensemble reads the draft's row"):
        specagg.verify(np.zeros((1, 1), int), np.zeros((1, 2, V)), np.zeros((1, 2, V)), "ensemble:lambda=0.5", kept=KEPT)
    with pytest.raises(ValueError, match="kept: is for the verifiers token and block"):
        first_tokens("match", 2)
