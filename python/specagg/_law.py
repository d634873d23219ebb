# SPDX-License-Identifier: Apache-2.0
"""Exact laws, their cost and their trade-off curves, and the audit of tokens against a law."""

from __future__ import annotations

import math
from functools import reduce
from typing import Any, NamedTuple, Sequence, Tuple, Union

import numpy as np
import numpy.typing as npt

from . import _core
from ._policy import PolicyLike, any_policy, as_policy, policy as make_policy
from ._verify import Sampling, Status, _are_logits, _array, _named, _sampling, _verifiers

Floats = npt.NDArray[np.float64]

_most_texts = 2**20  # whose law is listed
_How = Tuple[bool, Any, Any, Any, Any, int]  # whether rows are logits; temperature, top_k, top_p, min_p, order


class Law(NamedTuple):
    """The law pi of one position, [V], and what it gives and costs: the probability that a token of
    q is accepted, sum min(q, pi); the total variation distance of pi and p, and of q and p; and KL(pi || p)
    in nats. Of texts of n tokens [V, ..., V], n times, and the same of whole texts."""

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
        sampling: Sampling | None = None, state: float = 0.0, kept: npt.ArrayLike | None = None) -> Law:
    """The exact law of a policy, computed in double: for one pair of rows [V]; or, of a policy with state, for rows [n, V],
    a row for each token of a text, the joint law of texts, which goodness_of_fit() takes.

    state  of a policy with state, before the first token: verify() has it in `states`
    kept   bool or uint8 [V]: where the engine keeps a token that it drew from q, as in verify(). It changes `acceptance`
           alone, to that of kept tokens

    ValueError: rows of different sizes, invalid rows, rows for which the policy has no law, more than 2^20 texts; by_position;
    `state` for a policy without one; `kept` for a policy that reads q.
    """
    logits = _are_logits(rows)
    s = _sampling(sampling, "sampling", logits)
    for one in ("temperature", "top_k", "top_p", "min_p"):
        if isinstance(getattr(s, one), np.ndarray):
            raise ValueError(f"{one}: expected one number, as there is one pair of rows")
    if not -2**63 <= s.top_k < 2**63:
        raise ValueError(f"top_k: {s.top_k} is out of range")
    how = logits, s.temperature, s.top_k, s.top_p, s.min_p, s.order
    chosen = any_policy(policy)
    if kept is not None and chosen.reads_draft:
        raise ValueError(f"kept: the policy {chosen.name} reads the draft's row, of which a cut leaves a part")
    begin = _at_least_0(state, "state")
    if chosen.of_text:
        return _law_of_text(chosen, _floats(q, "q"), _floats(p, "p"), how, begin)
    if begin:
        raise ValueError(f"state: the policy {chosen.name} has none")
    q, p = _row(q, "q"), _row(p, "p")
    if q.size != p.size:
        raise ValueError(f"q, p: rows of {q.size} and {p.size} numbers")
    pi = np.empty(p.size)
    numbers = _law_of_row(chosen, q, p, how, pi)
    if kept is not None:
        numbers[0] = float(np.minimum(_distribution(q, how), pi)[_mask(kept, p.shape)].sum())
    return Law(pi, *numbers)


def _at_least_0(x: Any, name: str) -> float:
    if isinstance(x, bool) or not isinstance(x, (int, float)):
        raise TypeError(f"{name}: expected a number, not {type(x).__name__}")
    if not 0 <= x < math.inf:
        raise ValueError(f"{name}: {x} is not a number of at least 0")
    return float(x)


def _check(why: int) -> None:
    if why:
        raise ValueError(f"law: {Status(why).name}")


def _law_of_row(policy: _core.Policy, q: Floats, p: Floats, how: _How, pi: Floats) -> list[float]:
    """Writes pi; the other members of Law."""
    why, *numbers = _core.law(policy, q, p, *how, pi)
    _check(why)
    return numbers


def _distribution(row: Floats, how: _How) -> Floats:
    """What tokens of this row are drawn from."""
    drawn = np.empty(row.size)
    _law_of_row(as_policy("lossless"), row, row, how, drawn)
    return drawn


def _mask(kept: npt.ArrayLike, shape: tuple[int, ...]) -> npt.NDArray[np.bool_]:
    mask = _array(kept, "kept")
    if mask.dtype not in (np.dtype(bool), np.dtype(np.uint8)):
        raise TypeError("kept: expected bool or uint8")
    if mask.shape != shape:
        raise ValueError(f"kept: {list(mask.shape)}, where {list(shape)} is expected")
    return mask.astype(bool)


def _law_of_text(policy: _core.Policy, q: Floats, p: Floats, how: _How, state: float) -> Law:
    if policy.name == "by_position":
        raise ValueError("policy: by_position is of the positions of a round, and has no law of texts")
    if q.shape != p.shape or q.ndim not in (1, 2) or q.size == 0:
        raise ValueError(f"q, p: expected rows [V] or [n, V] of one shape, not {list(q.shape)} and {list(p.shape)}")
    q, p = np.atleast_2d(q), np.atleast_2d(p)
    n, V = p.shape
    if n > 20 or V**n > _most_texts:  # 20: V = 2
        raise ValueError(f"q, p: {n} tokens of {V} make more than {_most_texts} texts, or are more than 20")
    pi = np.empty(V**n)
    _check(_core.law_of_text(policy, q, p, *how, state, pi))
    of_q, of_p = (reduce(np.multiply.outer, [_distribution(row, how) for row in x]).reshape(-1) for x in (q, p))
    can = pi > 0
    with np.errstate(divide="ignore"):
        divergence = float(np.sum(pi[can] * np.log(pi[can] / of_p[can])))
    return Law(pi.reshape((V,) * n), float(np.minimum(of_q, pi).sum()), float(np.maximum(pi - of_p, 0).sum()),
               float(np.maximum(of_q - of_p, 0).sum()), divergence)


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
