# SPDX-License-Identifier: Apache-2.0
"""Rounds of token verification, with all of their branches."""

from __future__ import annotations

import itertools

import numpy as np
import numpy.typing as npt

from ._symbols import Array


def pair_after(prefix: tuple[int, ...], pairs: int) -> npt.NDArray[np.int64]:
    """The pair of rows after a prefix, for each pair that the round begins with (as audit/grid.hpp)."""
    pair = np.arange(pairs)
    for token in prefix:
        pair = (pair * 31 + (token + 100) * 577 + 101) % pairs
    return pair


def _verify(q: Array, pi: Array, token: int) -> tuple[Array, Array]:
    """Token verification of one drafted token: the probability that it is accepted [pairs], and the law
    of the token that else replaces it [pairs, V]; 0 where nothing is emitted."""
    accepted = np.divide(pi[:, token], q[:, token], out=np.zeros(len(q)), where=q[:, token] > 0)
    rest = np.maximum(pi - q, 0)
    total = rest.sum(-1, keepdims=True)
    return np.minimum(accepted, 1), np.divide(rest, total, out=np.zeros_like(rest), where=total > 0)


def emitted_by(gamma: int, q: Array, pi: Array) -> dict[tuple[int, ...], Array]:
    """After each emitted prefix the probabilities of prefix + next token [pairs, V], by all branches of all drafts."""
    pairs, vocabulary = q.shape
    emitted: dict[tuple[int, ...], Array] = {}

    def emit(text: tuple[int, ...], last: Array, weight: Array) -> None:
        """text, then a token with the law `last`, which is 0 where nothing follows."""
        for i, token in enumerate(text):
            emitted.setdefault(text[:i], np.zeros_like(q))[:, token] += weight
        emitted.setdefault(text, np.zeros_like(q))[:] += weight[:, None] * last

    for draft in itertools.product(range(vocabulary), repeat=gamma):
        at = [pair_after(draft[:i], pairs) for i in range(gamma + 1)]
        weight = np.ones(pairs)
        for i, token in enumerate(draft):
            weight = weight * q[at[i], token]
        for i, token in enumerate(draft):
            accepted, residual = _verify(q[at[i]], pi[at[i]], token)
            emit(draft[:i], residual, weight * (1 - accepted))
            weight = weight * accepted
        emit(draft, pi[at[gamma]], weight)
    return emitted
