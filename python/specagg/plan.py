# SPDX-License-Identifier: Apache-2.0
"""Closed forms for planning, as the C++ library computes them. Notation: gamma drafted tokens in a
round; c: cost of a step of the draft model, in steps of the target; v: cost of scoring a draft, in
steps of the target (the papers have 1). ValueError: an argument out of range."""

from __future__ import annotations

from typing import Sequence, Union

from ._core import plan as _plan


def expected_tokens(acceptance: float, gamma: int, bonus: bool = True) -> float:
    """Tokens of a round: 1 + a + ... + a^gamma; without a bonus token up to a^(gamma - 1)
    (Leviathan et al. 2023)."""
    return _plan.expected_tokens(acceptance, gamma, bonus)


def speedup(acceptance: float, gamma: int, c: float, v: float = 1.0, law_reads_draft: bool = False) -> float:
    """Of speculative decoding over the target alone (Leviathan et al. 2023). law_reads_draft: the
    policy reads the draft's row, so its bonus token costs a draft step more."""
    return _plan.speedup(acceptance, gamma, c, v, law_reads_draft)


def naive_cos_speedup(acceptance: float, gamma: int, c: float, v: float = 1.0) -> float:
    """Of CoS with one proposer over running both models for every token (Fu et al. 2025, Theorem 3.1)."""
    return _plan.naive_cos_speedup(acceptance, gamma, c, v)


def alternating_cos_speedup(a_q: float, a_p: float, gamma_q: int, gamma_p: int, c: float, v_q: float = 1.0,
                            v_p: float = 1.0) -> float:
    """Of CoS with alternating proposers over running both models for every token. a_q, a_p:
    acceptances of the drafts of q and of p."""
    return _plan.alternating_cos_speedup(a_q, a_p, gamma_q, gamma_p, c, v_q, v_p)


def best_gamma(acceptances: Union[float, Sequence[float]], c: float, v: Sequence[float] = (), *, most: int = 16,
               fixed: float = 0.0) -> tuple[int, float]:
    """The gamma with the most tokens per cost, and the speed-up it gives (0: drafting does not pay).

    acceptances  one for all drafted tokens, or one for each if those before it were accepted; gamma
                 is at most their number
    v            cost of scoring gamma = 0, 1, ... drafted tokens; 1 unless given
    most         the largest gamma, where one acceptance is given
    fixed        cost of a round, for any gamma (a link)
    """
    a = [acceptances] * most if isinstance(acceptances, (int, float)) else list(acceptances)
    return _plan.best_gamma(a, c, list(v), fixed)


def least_coupled_acceptance(distance: float) -> float:
    """The least acceptance of coupled verification: (1 - TV) / (1 + TV) (Daliri et al. 2024)."""
    return _plan.least_coupled_acceptance(distance)


def ensemble_acceptances(lambda_: float, distance: float) -> tuple[float, float]:
    """Towards pi = lambda q + (1 - lambda) p: the acceptances of drafts of q, and of p (Fu et al.
    2025, Theorem 3.2). distance: TV(q, p)."""
    return _plan.ensemble_acceptances(lambda_, distance)
