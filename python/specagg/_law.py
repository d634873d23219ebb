# SPDX-License-Identifier: Apache-2.0
"""Exact laws, their cost and their trade-off curves, and the audit of tokens against a law."""

from __future__ import annotations

from typing import NamedTuple, Sequence, Union

import numpy as np
import numpy.typing as npt

from . import _core
from ._policy import PolicyLike, as_policy, policy as make_policy
from ._verify import Sampling, Status, _are_logits, _array, _named, _sampling, _verifiers

Floats = npt.NDArray[np.float64]


class Law(NamedTuple):
    """The law pi of one position, [V], and what it gives and costs: the probability that a token of
    q is accepted, sum min(q, pi); the total variation distance of pi and p, and of q and p; and KL(pi || p)
    in nats."""

    pi: Floats
    acceptance: float
    distance_to_target: float
    distance: float
    divergence: float


class Curve(NamedTuple):
    """A trade-off curve: for each value of a parameter, means over the given pairs of rows."""

    values: Floats
    acceptance: Floats
    distance_to_target: Floats
    divergence: Floats


class Fit(NamedTuple):
    """What an audit found. distance: total variation between frequencies and law; expected_distance:
    that of a right sampler. p_value: P(p_value <= a) <= a for a right sampler. detectable: a sampler
    this far from the law fails with probability at least 0.999."""

    distance: float
    expected_distance: float
    p_value: float
    passed: bool
    detectable: float


def _row(x: npt.ArrayLike, name: str) -> Floats:
    row = _floats(x, name)
    if row.ndim != 1 or row.size == 0:
        raise ValueError(f"{name}: expected one row [V], not {list(row.shape)}")
    return row


def _floats(x: npt.ArrayLike, name: str) -> Floats:
    given = _array(x, name)
    if given.size and given.dtype.kind not in "biuf":
        raise TypeError(f"{name}: expected numbers, not {type(x).__name__} of {given.dtype}")
    return np.asarray(given, np.float64, order="C")


def law(policy: PolicyLike, q: npt.ArrayLike, p: npt.ArrayLike, *, rows: str = "probabilities",
        sampling: Sampling | None = None) -> Law:
    """The exact law of a policy for one pair of rows [V], computed in double.

    ValueError: rows of different sizes, invalid rows, or rows for which the policy has no law.
    """
    q, p = _row(q, "q"), _row(p, "p")
    if q.size != p.size:
        raise ValueError(f"q, p: rows of {q.size} and {p.size} numbers")
    logits = _are_logits(rows)
    s = _sampling(sampling, "sampling", logits)
    for one in ("temperature", "top_k", "top_p", "min_p"):
        if isinstance(getattr(s, one), np.ndarray):
            raise ValueError(f"{one}: expected one number, as there is one pair of rows")
    if not -2**63 <= s.top_k < 2**63:
        raise ValueError(f"top_k: {s.top_k} is out of range")
    pi = np.empty(p.size)
    why, *numbers = _core.law(as_policy(policy), q, p, logits, s.temperature, s.top_k, s.top_p, s.min_p, pi)
    if why:
        raise ValueError(f"law: {Status(why).name}")
    return Law(pi, *numbers)


def acceptance(q: npt.ArrayLike, p: npt.ArrayLike, policy: PolicyLike = "lossless", *, rows: str = "probabilities",
               sampling: Sampling | None = None) -> float:
    """The probability that a token drawn from q is accepted towards the policy's law: sum min(q, pi)."""
    return law(policy, q, p, rows=rows, sampling=sampling).acceptance


def total_variation(q: npt.ArrayLike, p: npt.ArrayLike, *, rows: str = "probabilities",
                    sampling: Sampling | None = None) -> float:
    """The total variation distance of two rows, sum (p - q)+, in [0, 1]."""
    return law("lossless", q, p, rows=rows, sampling=sampling).distance


def curve(policy: str, parameter: str, values: npt.ArrayLike, q: npt.ArrayLike, p: npt.ArrayLike, *,
          rows: str = "probabilities", sampling: Sampling | None = None, **others: Union[float, str]) -> Curve:
    """What a policy gives and takes as a parameter changes, over pairs of rows [..., V].

    values: of the parameter; others: the policy's other parameters. Returns the mean acceptance, TV(pi, p) and
    KL(pi || p) for each value.
    """
    q, p = _floats(q, "q"), _floats(p, "p")
    if q.shape != p.shape or q.ndim < 1:
        raise ValueError(f"q, p: expected rows [..., V] of one shape, not {list(q.shape)} and {list(p.shape)}")
    if q.size == 0:
        raise ValueError("q, p: no rows")
    pairs = list(zip(q.reshape(-1, q.shape[-1]), p.reshape(-1, p.shape[-1])))
    xs = _floats(values, "values").reshape(-1)
    if not isinstance(parameter, str) or parameter in others:
        raise ValueError(f"parameter: expected the name of one that is not given, not {parameter!r}")
    means = []
    for x in xs:
        chosen = make_policy(policy, **{parameter: float(x)}, **others)
        laws = [law(chosen, a, b, rows=rows, sampling=sampling) for a, b in pairs]
        means.append([np.mean([one[k] for one in laws]) for k in (1, 2, 4)])
    table = np.array(means).reshape(-1, 3)
    return Curve(xs, table[:, 0], table[:, 1], table[:, 2])


class Audit(NamedTuple):
    """An exact audit: the largest difference of a probability of an emitted token from pi; how many pairs
    of rows were tried, and for how many of them the policy has no law."""

    worst_error: float
    pairs: int
    undefined: int
    passed: bool


def worst_error(policy: PolicyLike, verifier: str = "token") -> Audit:
    """Walks every branch of every draft of 1, 2 and 3 tokens over a grid of rows of three tokens, and compares
    the exact law of what is emitted with pi. No chance is involved. Takes seconds.

    ValueError: an unknown policy or verifier.
    """
    return Audit(*_core.audit(as_policy(policy), _named(_verifiers, verifier, "verifier")))


def goodness_of_fit(tokens: npt.ArrayLike, law: npt.ArrayLike, false_alarm: float = 1e-6) -> Fit:
    """Audits tokens against a law: an exact test whose rate of false alarms is at most `false_alarm`.

    tokens  [n] independent observations of one position; or [n, k]: joint texts of k tokens
    law     [V]; for texts [V, ..., V], k times: the joint law

    ValueError: a token outside the law, a law that is no distribution.
    """
    seen = _array(tokens, "tokens")
    pi = _floats(law, "law")
    if seen.size == 0:
        raise ValueError("tokens: there are none")
    if seen.dtype.kind not in "iu":
        raise TypeError(f"tokens: expected whole numbers, not {seen.dtype}")
    texts = seen.reshape(len(seen), -1) if seen.ndim else seen.reshape(1, 1)
    if seen.ndim not in (1, 2) or pi.ndim != texts.shape[1]:
        raise ValueError(f"tokens, law: {list(seen.shape)} and {list(pi.shape)} do not fit: [n] and [V], or [n, k] and "
                         "k dimensions")
    if not isinstance(false_alarm, (int, float)) or not 0 < false_alarm < 1:
        raise ValueError(f"false_alarm: {false_alarm} is not in (0, 1)")
    if pi.size == 0 or not np.all(pi >= 0) or abs(pi.sum() - 1) > 1e-9:
        raise ValueError("law: is no distribution (numbers of at least 0 whose sum is 1)")
    if texts.size and (texts.min() < 0 or np.any(texts >= np.array(pi.shape))):
        raise ValueError("tokens: an id is outside the law")
    places = np.ravel_multi_index(tuple(texts.T.astype(np.intp)), pi.shape)
    counts = np.bincount(places, minlength=pi.size).astype(np.float64)
    return Fit(*_core.goodness_of_fit(counts, np.ascontiguousarray(pi).reshape(-1), false_alarm))
