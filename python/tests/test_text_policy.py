# SPDX-License-Identifier: Apache-2.0
"""Policies of texts, and rows that are cut, against laws that are written out here."""

import itertools
import pickle

import numpy as np
import pytest
import flat
import specagg

V, LENGTH = 3, 3
numbers = np.random.default_rng(5)
# Rows after the last two tokens of a text; V stands for the begin. After some, p has a token without probability.
Q = numbers.dirichlet(np.ones(V), (V + 1, V + 1))
P = numbers.dirichlet(np.ones(V), (V + 1, V + 1))
P[1, :, 2] = 0
P /= P.sum(2, keepdims=True)
TABLES = Q, P

MARKS = dict(open=[1], close=[2])
WEIGHTS = [0.2, 0.9, 0.5]


def row(table, text):
    return table[len(text)] if table.ndim == 2 else table[tuple(((V, V) + tuple(text))[-2:])]


def entropy(p):
    """Of the three most likely tokens."""
    return -sum(x * np.log(x) for x in np.sort(p)[-3:] if x > 0)


def standing(q, p, stands):
    """q where it stands, and what q has elsewhere drawn from p."""
    return np.where(stands, q, 0) + q[~stands].sum() * p


def regret(p):
    with np.errstate(divide="ignore"):
        return np.log(p.max() / p)


def budget_after(text, budget, limit, table):
    left = budget
    for i, y in enumerate(text):
        cost = regret(row(table, text[:i]))[y]
        left -= cost if cost <= min(left, limit) else 0
    return left


def window_after(text, threshold, window, table):
    left = 0
    for i, y in enumerate(text):
        p = row(table, text[:i])
        left = left - 1 if left else window if entropy(p) >= threshold and y != p.argmax() else 0
    return left


def is_inside(text):
    inside = False
    for y in text:
        inside = y not in MARKS["close"] if inside else y in MARKS["open"]
    return inside


def of_budget(text, tables=TABLES):
    left = budget_after(text, 1.0, 0.8, tables[1])
    q, p = (row(table, text) for table in tables)
    return standing(q, p, regret(p) <= min(left, 0.8)), 1.0 - left


def of_window(text, tables=TABLES):
    left = window_after(text, 0.7, 1, tables[1])
    q, p = (row(table, text) for table in tables)
    return (p if left or entropy(p) < 0.7 else standing(q, p, p > 0)), left


def of_phase(text, tables=TABLES):
    q, p = (row(table, text) for table in tables)
    weight = 0.7 if is_inside(text) else 0
    return weight * q + (1 - weight) * p, float(is_inside(text))


RULES = {
    "regret-budget": (specagg.policy("regret_budget", budget=1, limit=0.8), of_budget),
    "entropy-window": (specagg.policy("entropy_window:threshold=0.7,window=1"), of_window),
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
            drafted[:, step] = flat.draw(np.array([row(Q, t) for t in ahead]), step=step, coupled=verifier == "coupled", **how)
            ahead = [t + (int(y),) for t, y in zip(ahead, drafted[:, step])]
        q, p = (np.array([[row(table, t[:len(t) - gamma + j]) for j in range(gamma + 1)] for t in ahead]) for table in (Q, P))
        v = flat.verify(drafted, q, p, policy, verifier, state=states, on_invalid="raise", **how)
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


def joint_law(plain, tables):
    joint = np.zeros((V,) * LENGTH)
    for text in itertools.product(range(V), repeat=LENGTH):
        joint[text] = np.prod([plain(text[:i], tables)[0][text[i]] for i in range(LENGTH)])
    return joint


@pytest.mark.parametrize("name", RULES)
def test_texts_of_several_rounds_have_the_product_of_the_laws(name):
    policy, plain = RULES[name]
    joint = joint_law(plain, TABLES)
    assert abs(joint.sum() - 1) < 1e-12
    # One drafted token a round, so that most tokens have a state from the round before: without it their laws are 0.12 and
    # more from these. With two, only 0.001: rounds are then nearly whole texts.
    texts, _ = rounds(policy, "block", 10000, 1)
    assert specagg.goodness_of_fit(texts, joint).passed
    other = joint.swapaxes(0, 2)  # the test has power
    assert not specagg.goodness_of_fit([t for t in texts if other[t] > 0], other / other.sum()).passed


@pytest.mark.parametrize("name", RULES)
def test_the_joint_law_of_texts_whose_tokens_have_given_rows(name):
    policy, plain = RULES[name]
    # The states and both parameters of each policy count with these rows; p[2] has a token with p = 0.
    q, p = np.array([Q[3, 0], Q[0, 2], Q[3, 0]]), np.array([P[2, 3], P[0, 0], P[1, 1]])
    found, joint = specagg.law(policy, q, p), joint_law(plain, (q, p))
    assert found.pi.shape == (V,) * LENGTH and abs(found.pi - joint).max() < 1e-12
    of_q, of_p = np.einsum("i,j,k", *q), np.einsum("i,j,k", *p)
    due = np.minimum(of_q, joint).sum(), abs(joint - of_p).sum() / 2, abs(of_q - of_p).sum() / 2
    assert np.allclose(found[1:4], due, rtol=0, atol=1e-12)
    can = joint > 0
    with np.errstate(divide="ignore"):
        assert np.isclose(found.divergence, (joint[can] * np.log(joint[can] / of_p[can])).sum(), rtol=1e-12)
        as_logits = specagg.law(policy, np.log(q), np.log(p), rows="logits")
    assert abs(as_logits.pi - joint).max() < 1e-12
    for y in range(V):  # the state after a token has all that the others' law needs of it
        rest = specagg.law(policy, q[1:], p[1:], state=plain((y,), (q, p))[1])
        assert abs(rest.pi - joint[y] / joint[y].sum()).max() < 1e-12
        assert abs(specagg.law(policy, q[1], p[1], state=plain((y,), (q, p))[1]).pi - rest.pi.sum(1)).max() < 1e-12


def test_the_joint_law_is_that_of_the_command_line():
    # specagg law --json --policy regret-budget:budget=1,limit=0.8, these rows
    found = specagg.law("regret-budget:budget=1,limit=0.8", [[0.5, 0.3, 0.2], [0.2, 0.5, 0.3]], [[0.3, 0.5, 0.2], [0.6, 0.1, 0.3]])
    pi = [[0.3808, 0.0448, 0.1344], [0.2, 0.02, 0.18], [0.02, 0.002, 0.018]]
    assert abs(found.pi - pi).max() < 1e-12
    assert abs(found.distance_to_target - 0.29) < 1e-12 and abs(found.divergence - 0.22848838743763578) < 1e-12


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
            alone = flat.verify(drafts, *rows, name, **how)
            each = flat.verify(drafts, *rows, [specagg.by_position([name] * 3), name] * 20, **how)
            for what in ("tokens", "log_pi", "log_p", "acceptance_of_row", "acceptance_of_token", "origins", "reasons"):
                assert np.array_equal(getattr(alone, what), getattr(each, what), equal_nan=True), (name, what)


def test_what_a_policy_of_a_text_refuses():
    one = specagg.by_position(["lossless", "ensemble:lambda=0.5"])
    drafts, q, p = np.array([[0, 1]]), np.zeros((1, 3, V)), np.zeros((1, 3, V))
    with pytest.raises(ValueError, match=r"policy: by_position has 2 policies, where request 0 has 3 positions"):
        flat.verify(drafts, q, p, one)
    assert flat.verify(drafts, q, p, one, bonus=False).statuses[0] == 0
    with pytest.raises(ValueError, match="bonus: of a policy of a text"):
        flat.verify(drafts, q, p, one, bonus=[1])
    with pytest.raises(ValueError, match="q: the policy regret-budget reads the draft's row at the bonus position"):
        flat.verify(drafts, q[:, :2], p, "regret-budget:budget=1")
    with pytest.raises(ValueError, match="policy: by_position is of the positions of a round"):
        specagg.law(one, q[0], p[0])
    half = np.full((2, 2), 0.5)
    for message, (policy, a, b), more in (
            ("q, p: expected rows", ("regret-budget:budget=1", half, half[0]), {}),
            ("q, p: 21 tokens of 2", ("regret-budget:budget=1", np.full((21, 2), 0.5), np.full((21, 2), 0.5)), {}),
            ("law: not_normalised", ("regret-budget:budget=1", half, half / 2), {}),
            ("state: -1 is not a number of at least 0", ("regret-budget:budget=1", half, half), dict(state=-1)),
            ("state: the policy lossless has none", ("lossless", half[0], half[0]), dict(state=1)),
            ("kept: the policy regret-budget reads", ("regret-budget:budget=1", half, half), dict(kept=[True, False])),
            ("kept: the policy ensemble reads", ("ensemble", half[0], half[0]), dict(kept=[True, False])),
            (r"kept: \[3\], where \[2\] is expected", ("lossless", half[0], half[0]), dict(kept=KEPT))):
        with pytest.raises(ValueError, match=message):
            specagg.law(policy, a, b, **more)
    with pytest.raises(TypeError, match="kept: expected bool or uint8"):
        specagg.law("lossless", half[0], half[0], kept=[1.0, 0.0])
    with pytest.raises(TypeError, match="policies: expected a list"):
        specagg.by_position("lossless")
    with pytest.raises(ValueError, match="policies: is empty"):
        specagg.by_position([])
    for call in (lambda: specagg.by_position([one]), lambda: specagg.phase("regret-budget", "lossless", 1, 2),
                 lambda: flat.verify_tree(drafts, drafts * 0, None, p, one), lambda: specagg.worst_error("entropy-window")):
        with pytest.raises(ValueError, match="policy: .* is of a text: specagg.verify and specagg.law take it"):
            call()
    for wrong in (-1, np.nan, np.inf):
        with pytest.raises(ValueError, match="budget: "):
            specagg.policy("regret-budget", budget=wrong)
        with pytest.raises(ValueError, match="window: "):
            specagg.policy("entropy-window", window=wrong)
    with pytest.raises(TypeError, match="open: expected token ids"):
        specagg.phase("lossless", "lossless", ["<think>"], [2])
    for wrong in (-5, 2**40, 2**31):
        with pytest.raises(ValueError, match=f"^open: {wrong} is no token id"):
            specagg.phase("lossless", "lossless", wrong, 2)
        with pytest.raises(ValueError, match=f"^close: {wrong} is no token id"):
            specagg.phase("lossless", "lossless", [1], [2, wrong])
    with pytest.raises(ValueError, match="state: 2 values for 1 requests"):
        flat.verify(drafts, q, p, "regret-budget:budget=1", state=[0, 1])


def test_a_state_is_kept_where_nothing_is_emitted_and_by_pickle():
    policy = "regret-budget:budget=1"
    drafts, q = np.zeros((3, 1), int), np.zeros((3, 2, V))
    p = q.copy()
    p[1] = np.nan
    v = flat.verify(drafts, q, p, policy, state=[0.25, 0.5, 0.75], skip=np.array([False, False, True]))
    assert v.states[1] == 0.5 and v.states[2] == 0.75 and v.statuses[1] != 0 and v.states[0] == 0.25  # equal logits: no regret
    assert np.array_equal(pickle.loads(pickle.dumps(v)).states, v.states)


def test_a_state_that_no_text_has_is_refused():
    drafts, q = np.zeros((2, 1), int), np.zeros((2, 2, V))
    half = np.full((1, 2), 0.5)
    phase = specagg.phase("lossless", "lossless", 1, 2)
    for policy, wrong in (("regret-budget:budget=1", [np.nan, -1, np.inf]), ("entropy-window", [np.nan, -1, np.inf]),
                          (phase, [np.nan, -1, 0.5, 2])):
        for state in wrong:
            with pytest.raises(ValueError, match=f"^state: request 1: {float(state)} is no state of"):
                flat.verify(drafts, q, q, policy, state=[0, state])
            with pytest.raises(ValueError, match="^state: "):
                specagg.law(policy, half, half, state=state)
            # of a policy without one nothing is read, and `states` has NaN there
            assert not flat.verify(drafts, q, q, ["lossless", policy], state=[state, 0]).statuses.any()
            assert not flat.verify(drafts, q, q, policy, state=[state, 0], skip=[True, False]).statuses.any()


KEPT = np.array([True, False, True])


def first_tokens(verifier, texts, kept=KEPT, drop=False, policy="lossless", **more):
    q, p = Q[0, 1], P[0, 2]
    how = dict(seed=3, positions=0, rows="probabilities")
    drafts = flat.draw(np.tile(q, (texts, 1)), **how).reshape(-1, 1).astype(np.int64)
    lengths = np.where(KEPT[drafts[:, 0]], 1, 0) if drop else None
    v = flat.verify(drafts, np.tile(q, (texts, 1, 1)), np.tile(p, (texts, 2, 1)), policy, verifier, lengths=lengths,
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


def test_the_law_of_a_cut_row_is_p_and_its_acceptance_that_of_what_is_kept():
    q, p = Q[0, 1], P[0, 2]
    for policy in ("lossless", "typical:eps=0.3"):
        v = first_tokens("token", 1, policy=policy, acceptances=True)[1]
        whole, cut = specagg.law(policy, q, p), specagg.law(policy, q, p, kept=KEPT)
        assert np.array_equal(cut.pi, whole.pi) and cut[2:] == whole[2:]
        assert abs(cut.acceptance - np.minimum(q, whole.pi)[[0, 2]].sum()) < 1e-12
        assert abs(cut.acceptance - v.acceptance_of_row[0, 0]) < 1e-12 and whole.acceptance > cut.acceptance + 0.01


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
        flat.verify(np.zeros((1, 1), int), np.zeros((1, 2, V)), np.zeros((1, 2, V)), "ensemble:lambda=0.5", kept=KEPT)
    with pytest.raises(ValueError, match="kept: is for the verifiers token and block"):
        first_tokens("match", 2)
