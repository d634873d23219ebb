# SPDX-License-Identifier: Apache-2.0
"""The exact law of short texts of rounds with drafts, and the tests that compare texts with it."""

from __future__ import annotations

import itertools
from typing import Any, Callable, NamedTuple, Optional, Sequence

import numpy as np
import numpy.typing as npt

from . import _core
from ._law import Floats, law as law_of_rows
from ._policy import PolicyLike
from ._verify import Sampling

Ids = npt.NDArray[np.int64]
Text = tuple[int, ...]
Rows = Callable[[Text], Any]
# What a round may do at a prefix: rows [V] whose sum is a distribution, each with how many drafted tokens may follow.
# None: an invalid row, after which no token may come.
Branches = Callable[[Text, int], Optional[list[tuple[Floats, int]]]]


class Found(NamedTuple):
    """What an audit that passed has seen. texts: how many, the planned number. p_value_bound: the p-value of all tests
    together is at most this: P(p_value_bound <= a) <= a for a right engine, for which it is nearly always 1. It is no
    measure of how well the texts fit; detectable is. distance: total variation between the frequencies of whole texts and
    their law. detectable: an engine whose texts' law is this far off fails with probability 0.999 or more."""

    texts: int
    p_value_bound: float
    distance: float
    detectable: float


class Test(NamedTuple):
    """Counts of the outcomes of one test beside their law; `name` says where, `outcome(i)` which."""

    name: str
    counts: Floats
    law: Floats
    outcome: Callable[[int], str]


def branches_of(target: Rows, draft: Rows | None, policy: PolicyLike, rows: str, sampling: Sampling | None,
                drafted: int | None) -> Branches:
    """drafted: how many tokens a round drafts, if the token after them is drawn from p; None if it has the policy's
    law."""

    def branches(prefix: Text, left: int) -> list[tuple[Floats, int]] | None:
        p = np.asarray(target(prefix), np.float64)
        q = p if draft is None else np.asarray(draft(prefix), np.float64)
        if np.isnan(p).any() or np.isnan(q).any() or (rows == "logits" and p.max() == -np.inf):
            return None
        try:
            if drafted is not None and left == 0:
                return [(law_of_rows("lossless", p, p, rows=rows, sampling=sampling).pi, drafted)]
            pi = law_of_rows(policy, q, p, rows=rows, sampling=sampling).pi
            if drafted is None:
                return [(pi, 0)]
            q = law_of_rows("lossless", q, q, rows=rows, sampling=sampling).pi
        except ValueError as why:
            raise ValueError(f"target, draft: the rows after {list(prefix)}: {why}") from None
        return [(np.minimum(q, pi), left - 1), (np.maximum(pi - q, 0), drafted)]

    return branches


def law_of_texts(branches: Branches, prompt: Text, length: int, vocabulary: int, ends: Sequence[int],
                 drafted: int) -> Floats:
    """The probability of each text, [V + 1, ..., V + 1]; id V stands for no token, where the text has ended."""
    joint = np.zeros((vocabulary + 1,) * length)

    def walk(text: Text, weights: dict[int, float]) -> None:
        """weights: with which probability a round is here, by the drafted tokens that it has left."""
        following: dict[int, Floats] = {}
        over = len(text) == length or bool(text and text[-1] in ends)
        for left, weight in weights.items():
            found = None if over else branches(prompt + text, left)
            if found is None:
                joint[text + (vocabulary,) * (length - len(text))] += weight
            for row, then in found or []:
                following[then] = following.get(then, np.zeros(vocabulary)) + weight * row
        for token in range(vocabulary):
            at = {then: float(row[token]) for then, row in following.items() if row[token] > 0}
            if at:
                walk(text + (token,), at)

    walk((), {drafted: 1.0})
    return np.asarray(joint / joint.sum())


def tests_of(texts: Ids, joint: Floats) -> list[Test]:
    """Whole texts first; then the token after each prefix, pairs of adjacent tokens, and whether neighbours of a batch
    are independent of each other."""
    length, symbols = joint.ndim, joint.shape[0]
    counts = np.zeros_like(joint)
    np.add.at(counts, tuple(texts.T), 1)

    def shown(*places: int) -> Callable[[int], str]:
        def outcome(i: int) -> str:
            ids = [int(one) for one in np.unravel_index(i, (symbols,) * len(places))]
            return ", ".join(f"token {k + 1} is {'none' if one == symbols - 1 else one}" for k, one in zip(places, ids))
        return outcome

    def summed(table: Floats, *kept: int) -> Floats:
        return np.asarray(table.sum(tuple(k for k in range(length) if k not in kept))).reshape(-1)

    tests = [Test("whole texts", counts.reshape(-1), joint.reshape(-1), shown(*range(length)))]
    for k in range(length):
        of_law, of_counts = (summed(t, *range(k + 1)).reshape(-1, symbols) for t in (joint, counts))
        for i in np.flatnonzero((of_law.sum(1) > 0) & (of_law[:, -1] < of_law.sum(1))):
            prefix = [int(one) for one in np.unravel_index(i, (symbols,) * k)] if k else []
            tests.append(Test(f"after {prefix}", of_counts[i], of_law[i] / of_law[i].sum(), shown(k)))
    for k in range(length - 1 if length > 2 else 0):
        tests.append(Test("pairs", summed(counts, k, k + 1), summed(joint, k, k + 1), shown(k, k + 1)))
    for k, first in itertools.product(sorted({0, length - 1}), (0, 1)):
        pairs = texts[first:first + (len(texts) - first) // 2 * 2, k].reshape(-1, 2)
        seen = np.bincount(pairs[:, 0] * symbols + pairs[:, 1], minlength=symbols**2).astype(np.float64)
        one = summed(joint, k)
        tests.append(Test(f"token {k + 1} of neighbours in a batch", seen, np.outer(one, one).reshape(-1),
                          lambda i: f"{i // symbols} beside {i % symbols}"))
    return tests


def planned(law: Floats, tv: float, false_alarm: float) -> int:
    """The least number of texts, within 1 %, of which an engine at a distance tv from the law is found."""
    def finds(n: int) -> bool:
        counts = np.zeros(law.size)
        counts[0] = n
        return _core.goodness_of_fit(counts, law, false_alarm)[4] <= tv

    most = 64
    while not finds(most):
        most *= 2
    least = most // 2
    while most - least > max(1, most // 100):
        middle = (least + most) // 2
        least, most = (least, middle) if finds(middle) else (middle, most)
    return most


def compare(tests: list[Test], false_alarm: float) -> tuple[Found, list[str]]:
    """All tests with one level: half of it for whole texts, the other half in equal shares. And what does not fit."""
    worst: list[tuple[float, str]] = []
    found: Found | None = None
    for i, test in enumerate(tests):
        parts = 2 if i == 0 else 2 * (len(tests) - 1)
        n = test.counts.sum()
        distance, _, p_value, _, detectable = _core.goodness_of_fit(test.counts, test.law, false_alarm / parts)
        p_value = max(p_value, 1e-300)  # exponentials underflow; a bound stays one
        found = found or Found(int(n), 1.0, distance, detectable)
        found = found._replace(p_value_bound=min(found.p_value_bound, parts * p_value))
        if parts * p_value <= false_alarm:
            due = n * test.law
            far = np.abs(test.counts - due) / np.sqrt(np.maximum(due * (1 - test.law), 1e-300))
            k = int(far.argmax())
            worst.append((p_value, f"  {test.name}: {test.outcome(k)}: expected {test.law[k]:.4f}, seen "
                          f"{test.counts[k] / n:.4f} of {n:,.0f} (p-value at most {p_value:.2g})"))
    assert found
    return found, [line for _, line in sorted(worst, key=lambda one: one[0])[:5]]
