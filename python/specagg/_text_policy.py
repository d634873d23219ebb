# SPDX-License-Identifier: Apache-2.0
"""Policies of a whole text (C++: policy/policies_of.hpp, verify/stateful.hpp). verify() takes them where it takes a policy."""

from __future__ import annotations

import math
from typing import Any, Iterable, Sequence, Union

from . import _core
from ._policy import PolicyLike, as_policy


# kind, policies, two numbers (budget and limit; threshold and window), open, close
_Made = tuple[int, tuple[_core.Policy, ...], float, float, tuple[int, ...], tuple[int, ...]]


class TextPolicy:
    """What by_position(), regret_budget(), entropy_window() and phase() return. Two are equal if they were made of the
    same. It can be pickled."""

    __slots__ = ("_core", "_made", "_shown")

    def __init__(self, made: _Made, shown: str) -> None:
        self._core, self._made, self._shown = _core.TextPolicy(*made), made, shown

    def __repr__(self) -> str:
        return self._shown

    def __eq__(self, other: object) -> bool:
        return isinstance(other, TextPolicy) and self._made == other._made

    def __hash__(self) -> int:
        return hash(self._made)

    def __reduce__(self) -> tuple[Any, ...]:
        return TextPolicy, (self._made, self._shown)


def by_position(policies: Sequence[PolicyLike]) -> TextPolicy:
    """Another policy at each position of a draft: policies[j] is that of the token after j drafted ones. As
    many as positions: gamma + 1, or gamma if no bonus is drawn; more are not looked at. They may depend on the text and on
    the j drafted tokens, not on later ones.

    TypeError, ValueError: no policies."""
    if isinstance(policies, (str, bytes)) or not isinstance(policies, Iterable):
        raise TypeError(f"policies: expected a list of policies, one for each position, not {type(policies).__name__}")
    each = tuple(as_policy(one) for one in policies)
    if not each:
        raise ValueError("policies: is empty; expected one for each position")
    return TextPolicy((0, each, 0, 0, (), ()), f"by_position({[str(one) for one in each]})")


def regret_budget(budget: float, limit: float = math.inf) -> TextPolicy:
    """A text may spend `budget` nats of regret, ln(max p / p(v)), and a token no more than `limit`. The state is what was
    spent. (After what is said of ASD, arXiv:2608.03447.)

    TypeError, ValueError: a budget that is negative or not finite, a limit that is negative."""
    made = _at_least_0(budget, "budget"), _at_least_0(limit, "limit", math.inf)
    return TextPolicy((1, (), *made, (), ()), f"regret_budget(budget={budget}, limit={limit})")


def entropy_window(threshold: float = 0.3, window: int = 6) -> TextPolicy:
    """The draft's tokens stand where the entropy of p's three most likely tokens, -sum p ln p in nats, is at least
    `threshold` (FLy's gate); after one that is not p's most likely, the next `window` tokens have the law p. The state is how many of these are left.

    TypeError, ValueError: a threshold that is not finite, a window that is negative or not finite."""
    made = _number(threshold, "threshold"), _at_least_0(window, "window")
    if not math.isfinite(made[0]):
        raise ValueError(f"threshold: {threshold} is not a finite number")
    return TextPolicy((2, (), *made, (), ()), f"entropy_window(threshold={threshold}, window={window})")


def phase(inside: PolicyLike, outside: PolicyLike, open: Union[int, Sequence[int]],
          close: Union[int, Sequence[int]]) -> TextPolicy:
    """The policy `inside` after a token of `open`, as far as the next one of `close`; elsewhere `outside`. The state is 1
    inside, and 0 outside.

    TypeError, ValueError: policies or ids that are none."""
    policies = as_policy(inside), as_policy(outside)
    marks = _marks(open, "open"), _marks(close, "close")
    return TextPolicy((3, policies, 0, 0, *marks),
                      f"phase('{policies[0]}', '{policies[1]}', open={list(marks[0])}, close={list(marks[1])})")


def _marks(given: Any, name: str) -> tuple[int, ...]:
    from ._verify import _ids

    ids = tuple(int(one) for one in _ids(given, name))
    for one in ids:
        if not 0 <= one < 2**31:
            raise ValueError(f"{name}: {one} is no token id")
    return ids


def _number(x: Any, name: str) -> float:
    if isinstance(x, bool) or not isinstance(x, (int, float)):
        raise TypeError(f"{name}: expected a number, not {type(x).__name__}")
    return float(x)


def _at_least_0(x: Any, name: str, most: float = math.nan) -> float:
    """most: a value that is allowed though it is not finite."""
    given = _number(x, name)
    if not given >= 0 or (not math.isfinite(given) and given != most):
        raise ValueError(f"{name}: {x} is not a number of at least 0")
    return given
