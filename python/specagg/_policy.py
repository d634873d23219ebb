# SPDX-License-Identifier: Apache-2.0
"""Policies by name: those of the C++ library (include/specagg/policy/catalogue.hpp)."""

from __future__ import annotations

import math
from collections.abc import Iterable
from functools import lru_cache
from typing import Any, NamedTuple, Sequence, Union

from . import _core
from ._core import Policy


class Parameter(NamedTuple):
    """A parameter of a policy: a finite number in [low, high], without high itself if `open`; or a
    flag. word: the name of the usual value, where it has one."""

    name: str
    low: float
    high: float
    usual: float
    open: bool
    flag: bool
    word: str | None


class Catalogued(NamedTuple):
    """A line of the catalogue: `law` is its equation in words, over rows q (draft) and p (target).
    reads_draft: its law needs the draft's row, at the bonus position, too. has_state: its law is that of a text, which
    verify() and law() alone take."""

    name: str
    law: str
    reads_draft: bool
    has_state: bool
    parameters: list[Parameter]


_all = [Catalogued(name, law, reads, has_state, [Parameter(*one) for one in parameters])
        for name, law, reads, has_state, parameters in _core.policies()]
_line = {one.name: i for i, one in enumerate(_all)}

PolicyLike = Union[str, Policy]


def policies() -> list[Catalogued]:
    """All policies that policy() knows."""
    return list(_all)


def policy(name: str, **parameters: float | str) -> Policy:
    """A policy with its parameters: policy("lossy", alpha=0.2). In a text, as the command line has
    it: policy("lossy:alpha=0.2"). Names may have - or _.

    ValueError: an unknown policy or parameter, or a value out of range. TypeError: a name that is none.
    """
    if not isinstance(name, str):
        raise _no_policy(name, "a name")
    name, _, written = name.partition(":")
    given: dict[str, float | str] = dict(parameters)
    for item in written.split(",") if written else []:
        key, equals, value = item.partition("=")
        if not equals or key in given:
            raise ValueError(f'policy {name}: "{item}" is ' + ("given twice" if equals else "not of the form key=value"))
        given[key] = value
    line = _line.get(name.replace("_", "-"))
    if line is None:
        raise ValueError(f'policy: there is no "{name}"; there are {", ".join(_line)}')
    chosen = _all[line]
    values = [_value(chosen, one, given.pop(one.name)) if one.name in given else one.usual for one in chosen.parameters]
    for key in given:
        known = ", ".join(one.name for one in chosen.parameters) or "none"
        raise ValueError(f'policy {chosen.name}: "{key}" is no parameter of it ({known})')
    made = Policy(line, values)
    if not made.valid():
        raise ValueError(f"policy {chosen.name}: these parameters do not fit together: {values}")
    return made


def _value(chosen: Catalogued, one: Parameter, given: float | str) -> float:
    where = f"policy {chosen.name}: {one.name}"
    if isinstance(given, str):
        if given == one.word:
            return one.usual
        if one.flag and given in ("true", "false"):
            return float(given == "true")
    try:
        x = float(given)
    except Exception:  # whatever an object's own conversion raises
        what = repr(given) if isinstance(given, str) else type(given).__name__
        raise ValueError(f"{where}: {what} is not a number") from None
    if one.flag and x not in (0, 1):
        raise ValueError(f"{where}: {given!r} is neither true nor false")
    outside = x < one.low or x > one.high or (one.open and x == one.high)
    if not one.flag and (not math.isfinite(x) or outside):
        high = f"{one.high:g}" + (")" if one.open or one.high == math.inf else "]")
        raise ValueError(f"{where}: {given} is not in {'(' if one.low == -math.inf else '['}{one.low:g}, {high}")
    return x


@lru_cache(maxsize=1024)
def _parsed(text: str) -> Policy:
    return policy(text)


def any_policy(given: PolicyLike) -> Policy:
    """A policy as it is, or by its text."""
    if isinstance(given, Policy):
        return given
    if isinstance(given, str):
        return _parsed(given)
    raise _no_policy(given, "a name or specagg.policy(...)")


def as_policy(given: PolicyLike) -> Policy:
    """The same, of one that is no policy of a text."""
    chosen = any_policy(given)
    if chosen.of_text:
        raise ValueError(f"policy: {chosen.name} is of a text: specagg.verify and specagg.law take it")
    return chosen


def by_position(policies: Sequence[PolicyLike]) -> Policy:
    """Another policy at each position of a draft (C++: policy/policies_of.hpp): policies[j] is that of the token after j
    drafted ones. As many as positions: gamma + 1, or gamma if no bonus is drawn; more are not looked at. They may depend
    on the text and on the j drafted tokens, not on later ones.

    TypeError, ValueError: no policies."""
    if isinstance(policies, (str, bytes)) or not isinstance(policies, Iterable):
        raise TypeError(f"policies: expected a list of policies, one for each position, not {type(policies).__name__}")
    each = [as_policy(one) for one in policies]
    if not each:
        raise ValueError("policies: is empty; expected one for each position")
    return Policy(_core.by_position, [], each)


def phase(inside: PolicyLike, outside: PolicyLike, open: Union[int, Sequence[int]],
          close: Union[int, Sequence[int]]) -> Policy:
    """The policy `inside` after a token of `open`, as far as the next one of `close`; elsewhere `outside`. It has state:
    1 inside, and 0 outside.

    TypeError, ValueError: policies or ids that are none."""
    return Policy(_core.phase, [], [as_policy(inside), as_policy(outside)], _marks(open, "open"), _marks(close, "close"))


def _marks(given: Any, name: str) -> list[int]:
    from ._verify import _ids

    ids = [int(one) for one in _ids(given, name)]
    for one in ids:
        if not 0 <= one < 2**31:
            raise ValueError(f"{name}: {one} is no token id")
    return ids


def _no_policy(given: object, expected: str) -> TypeError:
    """The error for what is no policy of the C++ library."""
    from .traced import TracedPolicy

    if not isinstance(given, TracedPolicy):
        return TypeError(f"policy: expected {expected}, not {type(given).__name__}")
    name = given.name
    return TypeError(
        f"policy: {name} is a policy in Python, and this function takes those of the C++ library: use {name}.law, "
        f"{name}.acceptance, {name}.curve or {name}.audit; to verify with it, give its law as the target's rows, "
        f'p={name}.law(q, p) with rows="probabilities", or compile {name}.cpp() into a C++ program')
