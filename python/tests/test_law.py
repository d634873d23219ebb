# SPDX-License-Identifier: Apache-2.0
"""Policies by name, laws, curves, closed forms, and the audit."""

import math
import pickle

import numpy as np
import pytest

import specagg
from specagg import plan

q, p = [0.5, 0.3, 0.2, 0.0], [0.2, 0.3, 0.1, 0.4]


def test_laws_by_hand():
    assert specagg.law("lossless", q, p).pi.tolist() == pytest.approx(p)
    both = specagg.law("ensemble:lambda=0.25", q, p)
    assert both.pi == pytest.approx(0.25 * np.array(q) + 0.75 * np.array(p))
    assert both.distance == pytest.approx(0.4) and both.distance_to_target == pytest.approx(0.1)
    assert both.acceptance == pytest.approx(1 - 0.75 * 0.4)
    pi = both.pi
    assert both.divergence == pytest.approx(sum(a * math.log(a / b) for a, b in zip(pi, p)))
    # token V3 (Narasimhan et al. 2025, equation 15): tokens with p < (1 - alpha) max p are rejected
    pi = specagg.law("token_v3", q, p, ).pi
    assert specagg.law("token-v3:alpha=0.5", q, p).pi == pytest.approx(
        [0.5 + 0.2 * 0.2, 0.3 + 0.2 * 0.3, 0.2 * 0.1, 0.2 * 0.4])
    assert specagg.acceptance(q, p) == pytest.approx(0.6) and specagg.total_variation(q, p) == pytest.approx(0.4)
    logits = [np.log(np.maximum(x, 1e-300)) for x in (q, p)]
    assert specagg.law("lossless", *logits, rows="logits").pi == pytest.approx(p)
    cold = specagg.law("lossless", *logits, rows="logits", sampling=specagg.Sampling(0.0)).pi
    assert cold.tolist() == [0, 0, 0, 1]


@pytest.mark.parametrize("how, kept", [
    (dict(top_k=2, top_p=0.55), {"hugging-face": 1, "vllm": 1, "llama-cpp": 1, "joint": 2}),
    (dict(top_p=0.55, min_p=0.6), {"hugging-face": 2, "vllm": 1, "llama-cpp": 2, "joint": 2}),
    (dict(temperature=0.5, top_p=0.5), {"hugging-face": 1, "vllm": 1, "llama-cpp": 2, "joint": 1})])
def test_the_order_of_filters(how, kept):
    p = np.array([0.4, 0.3, 0.2, 0.1])
    assert list(kept) == specagg._core.filter_orders
    for order, n in kept.items():
        sampling = specagg.Sampling(**how, order=order)
        assert repr(order) in repr(sampling) and repr(pickle.loads(pickle.dumps(sampling))) == repr(sampling)
        due = np.where(np.arange(4) < n, p, 0) ** (1 / how.get("temperature", 1))
        pi = specagg.law("lossless", np.log(p), np.log(p), rows="logits", sampling=sampling).pi
        assert pi == pytest.approx(due / due.sum())
        rows = np.tile(np.log(p), (400, 1))
        tokens = specagg.draw(rows, streams=specagg.Streams(1, positions=0, requests=np.arange(400)), rows=specagg.Rows(sampling=sampling))
        assert set(tokens.tolist()) == set(range(n))
    usual = specagg.law("lossless", np.log(p), np.log(p), rows="logits", sampling=specagg.Sampling(**how)).pi
    assert np.count_nonzero(usual) == kept["hugging-face"]
    for wrong in "top-k first", 1, None:
        with pytest.raises(ValueError, match="^order: "):
            specagg.Sampling(order=wrong)


def test_every_policy_of_the_catalogue():
    policies = specagg.policies()
    assert len(policies) >= 32 and {"lossless", "lossy", "opt", "token-v1", "contrastive"} <= {r.name for r in policies}
    for policy in policies:
        made = specagg.policy(policy.name)
        assert made.name == policy.name and made.values == [one.usual for one in policy.parameters]
        found = specagg.law(made, [0.5, 0.3, 0.2], [0.3, 0.3, 0.4])
        assert found.pi.sum() == pytest.approx(1) and (found.pi >= 0).all()
        assert policy.reads_draft == made.reads_draft


def test_curves():
    rng = np.random.default_rng(0)
    a, b = rng.dirichlet(np.ones(8), 20), rng.dirichlet(np.ones(8), 20)
    curve = specagg.curve("lossy", "alpha", [0, 0.2, 0.5, 0.9], a, b)
    assert (np.diff(curve.acceptance) > 0).all() and (np.diff(curve.distance_to_target) > 0).all()
    assert curve.distance_to_target[0] == pytest.approx(0)
    mean = np.mean([specagg.law("lossy:alpha=0.5", x, y).acceptance for x, y in zip(a, b)])
    assert curve.acceptance[2] == pytest.approx(mean)


@pytest.mark.parametrize("text, message", {
    "best": "there is no", "lossy:alpha": "not of the form", "lossy:alpha=x": "not a number",
    "lossy:alpha=1": r"alpha: 1 is not in \[0, 1\)", "lossy:gamma=1": '"gamma" is no parameter', "lossless:alpha=0":
    "is no parameter", "lossy:alpha=nan": "alpha: nan is not in", "bild:greedy=2": "neither true nor false",
    "lossy:alpha=0.5,beta=0.1": "do not fit"}.items())
def test_policies_that_are_refused(text, message):
    with pytest.raises(ValueError, match=message):
        specagg.policy(text)


def test_laws_that_are_refused():
    for message, arguments in {"rows of 3 and 4": (q[:3], p), "invalid_row": ([np.nan, 1, 0, 0], p),
                               "not_normalised": (q, [0.5] * 4), "one row": ([q], [p])}.items():
        with pytest.raises(ValueError, match=message):
            specagg.law("lossless", *arguments)
    with pytest.raises(ValueError, match="undefined_target"):
        specagg.law("minimum", [1, 0], [0, 1])


def test_audit_finds_a_bias_of_one_percent():
    rng = np.random.default_rng(1)
    pi = np.array([0.4, 0.3, 0.2, 0.1])
    right = rng.choice(4, 200000, p=pi)
    biased = np.where(rng.random(200000) < 0.01, 0, right)
    assert specagg.goodness_of_fit(right, pi).passed
    found = specagg.goodness_of_fit(biased, pi)
    assert not found.passed and found.detectable < 0.02
    pairs = np.stack([right[::2], right[1::2]], axis=1)
    assert specagg.goodness_of_fit(pairs, np.outer(pi, pi)).passed
    assert not specagg.goodness_of_fit(np.stack([right, right], axis=1), np.outer(pi, pi)).passed
    for message, arguments in {"outside": ([4], pi), "no distribution": ([0], pi * 2), "do not fit": ([[0, 1]], pi)}.items():
        with pytest.raises(ValueError, match=message):
            specagg.goodness_of_fit(*arguments)
    with pytest.raises(TypeError, match="whole numbers"):
        specagg.goodness_of_fit([0.5], pi)


def test_closed_forms():
    assert plan.expected_tokens(0.8, 4) == pytest.approx(sum(0.8**k for k in range(5)))
    assert plan.speedup(0.8, 4, 0.1) == pytest.approx(plan.expected_tokens(0.8, 4) / 1.4)
    assert plan.best_gamma(0.8, 0.1) == max(((g, pytest.approx(plan.speedup(0.8, g, 0.1))) for g in range(17)),
                                            key=lambda one: plan.speedup(0.8, one[0], 0.1))
    assert plan.best_gamma([0.1, 0.1], 0.9) == (0, 1)
    assert plan.naive_cos_speedup(0.8, 4, 0.1) == pytest.approx(sum(0.8**k for k in range(4)) * 1.1 / 1.4)
    assert plan.alternating_cos_speedup(0.8, 0.8, 4, 1, 0.1) > plan.naive_cos_speedup(0.8, 4, 0.1)
    assert plan.ensemble_acceptances(0.25, 0.4) == pytest.approx((0.7, 0.9))
    assert plan.least_coupled_acceptance(0.4) == pytest.approx(0.6 / 1.4)
    with pytest.raises(ValueError, match="acceptance: .* out of range"):
        plan.speedup(1.5, 4, 0.1)


@pytest.mark.parametrize("verifier", ["token", "block", "match", "coupled"])
def test_exact_audit(verifier):
    for policy in ("lossless", "token_v3:alpha=0.3"):
        found = specagg.worst_error(policy, verifier)
        assert found.passed and found.worst_error < 1e-12 and found.pairs > 1000 and found.undefined == 0
    with pytest.raises(ValueError, match="verifier: there is no"):
        specagg.worst_error("lossless", "best")
