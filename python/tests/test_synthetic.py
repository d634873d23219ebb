# SPDX-License-Identifier: Apache-2.0
"""Synthetic acceptance: as many drafted tokens as are asked for, whatever the models say."""

import numpy as np
import pytest

import specagg
from flat import draw, verify
from specagg import Origin, SyntheticAcceptance

V, GAMMA, B = 8, 4, 20_000


def batch(B=B, double=False):
    rng = np.random.default_rng(1)
    q, p = (np.broadcast_to(rng.normal(0, 1, (1, GAMMA + 1, V)), (B, GAMMA + 1, V)) for _ in range(2))
    dtype = np.float64 if double else np.float32
    return rng.integers(0, V, (B, GAMMA)), np.ascontiguousarray(q, dtype), np.ascontiguousarray(p, dtype)


def at_least(result):
    return [float((result.accepted >= j).mean()) for j in range(1, GAMMA + 1)]


@pytest.mark.parametrize("verifier", ["token", "block", "match", "coupled"])
@pytest.mark.parametrize("policy", ["lossless", "ensemble:lambda=0.3"])
def test_a_length_is_kept_with_the_least_variance(policy, verifier):
    drafts, q, p = batch()
    r = verify(drafts, q, p, policy, verifier, seed=3, positions=5, synthetic=SyntheticAcceptance(3.25))
    assert at_least(r)[:2] == [1, 1] and at_least(r)[3] == 0
    assert abs(at_least(r)[2] - 0.25) < 5 * np.sqrt(0.25 * 0.75 / B)
    np.testing.assert_array_equal(r.emitted, r.accepted + 1)
    for n in (2, 3):  # the drafted tokens, then one of the target's row after them
        rows = r.accepted == n
        np.testing.assert_array_equal(r.tokens[rows, :n], drafts[rows, :n])
        assert (r.origins[rows, n] == Origin.residual).all()
        law = np.exp(p[0, n].astype(float))
        law /= law.sum()
        assert specagg.goodness_of_fit(r.tokens[rows, n], law).passed
        np.testing.assert_allclose(r.log_p[rows, n], np.log(law)[r.tokens[rows, n]], rtol=1e-5)
    assert np.isnan(r.log_pi).all()


def test_rates_are_those_by_position():
    drafts, q, p = batch(double=True)
    for rates in ([0.75, 0.5, 0.125], [1, 1, 0.25, 0.25], 0.5, np.array([0.5, 0])):
        r = verify(drafts, q, p, seed=4, positions=9, synthetic=SyntheticAcceptance(rates=rates))
        for seen, due in zip(at_least(r), [*np.atleast_1d(rates), 0, 0, 0, 0]):
            assert abs(seen - due) <= 5 * np.sqrt(due * (1 - due) / B)


def test_drafts_without_rows_masks_and_ends():
    drafts, _, p = batch(B=50)
    how = dict(seed=1, positions=0, synthetic=SyntheticAcceptance(GAMMA + 1))
    assert (verify(drafts, None, p, **how).emitted == GAMMA + 1).all()
    assert (verify(drafts, None, p[:, :GAMMA], bonus=False, **how).emitted == GAMMA).all()
    some = verify(drafts, None, p, lengths=[2] * 50, **how)
    assert (some.accepted == 2).all() and (some.origins[:, 2] == Origin.bonus).all()
    mask = np.arange(V) != 3
    assert (verify(drafts, None, p, mask=mask, **how).tokens[:, GAMMA] != 3).all()
    ended = verify(np.full((50, GAMMA), 2), None, p, end_of_text=2, **how)
    assert (ended.emitted == 1).all() and (ended.ended == 2).all()
    skipped = verify(drafts, None, p, skip=np.arange(50) < 7, **how)
    assert (skipped.emitted == np.where(np.arange(50) < 7, 0, GAMMA + 1)).all()
    p[3, 0] = np.nan
    assert verify(drafts, None, p, **how).emitted[3] == 0


def test_the_numbers_are_those_of_a_seed():
    drafts, q, p = batch(B=100)
    how = dict(positions=7, synthetic=SyntheticAcceptance(2.5))
    one = verify(drafts, q, p, seed=1, **how)
    np.testing.assert_array_equal(one.tokens, verify(drafts, q, p, seed=1, **how).tokens)
    np.testing.assert_array_equal(one.tokens[40:41], verify(drafts[40:41], q[40:41], p[40:41], seed=1, requests=40, **how).tokens)
    assert not np.array_equal(one.accepted, verify(drafts, q, p, seed=2, **how).accepted)


def test_what_cannot_be_asked_for():
    drafts, q, p = batch(B=2)
    for bad in (dict(), dict(length=2, rates=[0.5]), dict(length=0.5), dict(length=np.nan), dict(length=[2, 3]), dict(length=2e6),
                dict(rates=[]), dict(rates=[0.5, 0.6]), dict(rates=[1.5]), dict(rates=[-0.1]), dict(rates=[np.nan])):
        with pytest.raises(ValueError, match="^(length|rates)"):
            SyntheticAcceptance(**bad)
    with pytest.raises(TypeError, match="^length"):
        SyntheticAcceptance("2")
    with pytest.raises(TypeError, match="^synthetic: expected specagg.SyntheticAcceptance, not float"):
        verify(drafts, q, p, seed=1, positions=0, synthetic=2.5)
    with pytest.raises(ValueError, match="^synthetic: the policy regret-budget"):
        verify(drafts, q, p, ["lossless", "regret-budget"], seed=1, positions=0, synthetic=SyntheticAcceptance(2))
    with pytest.raises(ValueError, match="^synthetic: the bonus"):
        verify(drafts, q, p, seed=1, positions=0, bonus=[1, 2], synthetic=SyntheticAcceptance(2))


def test_coupled_drafts_are_replaced_too():
    _, q, p = batch(B=30)
    drafts = np.stack([draw(q[:, j], step=j, seed=0, positions=0, coupled=True) for j in range(GAMMA)], axis=1)
    r = verify(drafts, q, p, "lossless", "coupled", seed=0, positions=0, synthetic=SyntheticAcceptance(1))
    assert (r.accepted == 0).all() and (r.emitted == 1).all()
