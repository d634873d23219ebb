# SPDX-License-Identifier: Apache-2.0
"""A policy written in Python as an expression: evaluated by numpy, audited, and printed as C++.

    from specagg.traced import max, sum, traced, where

    @traced
    def token_v3(q, p, alpha=0.0):  # Narasimhan et al. 2025, eq. 15
        keeps = p.confidence >= (1 - alpha) * max(p.confidence)
        eta = sum(where(keeps, 0, q))
        return where(keeps, q, 0) + eta * p

    token_v3.law(q, p, alpha=0.3)  # pi
    token_v3.cpp()                 # the same as a C++ policy

The function is called once, with symbols for the rows q and p and for the parameters. It returns pi.
Loops unroll; `if` on a symbol is a TypeError. q.confidence and p.confidence are the rows before
temperature and filters. Conditions are joined by & | ~, and are 0 or 1 as numbers. x[argmax(y)] is x at
the token with the largest y, of several the lowest id. A policy may call other policies: token_v3(q, p) is a
row.

The values are those of the C++ policy on rows of doubles, but for roundings in sums, exp and log: a
product plus a sum is one fma; log(0) is -inf; 0 * log(0) is NaN, and 0 in weighted_log and entropy.
"""

from __future__ import annotations

import functools
import inspect
import math
import sys
from collections.abc import Callable
from types import FrameType
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from ._audit import emitted_by, pair_after
from ._cpp import cpp_of
from ._symbols import (
    Array,
    Node,
    argmax,
    entropy,
    evaluate,
    exp,
    log,
    max,
    maximum,
    min,
    minimum,
    node,
    normalised,
    positive,
    softmax,
    sqrt,
    sum,
    total_variation,
    weighted_log,
    where,
)

__all__ = [
    "PolicyAudit",
    "PolicyCurve",
    "TracedPolicy",
    "argmax",
    "entropy",
    "exp",
    "log",
    "max",
    "maximum",
    "min",
    "minimum",
    "normalised",
    "positive",
    "softmax",
    "sqrt",
    "sum",
    "total_variation",
    "traced",
    "weighted_log",
    "where",
]

TOLERANCE = 1e-9  # of the sum of pi
ROW_TOLERANCE = 1e-3  # of the sums of q and p, which are then divided by them


class PolicyCurve(NamedTuple):
    """Arrays with a number for each value of the parameter: means over the rows."""

    values: Array
    acceptance: Array  # sum min(q, pi)
    distance_to_target: Array  # total variation between pi and p


class PolicyAudit(NamedTuple):
    """The largest difference of a conditional probability of the emitted law from pi's, and where it was."""

    error: float  # 1 if pi has values that are no law
    gamma: int  # with how many drafted tokens
    prefix: tuple[int, ...]  # after which emitted tokens
    q: tuple[float, ...]  # the rows there
    p: tuple[float, ...]
    pairs: int  # of rows that were tried as the first of a round
    undefined: int  # of them: pi is NaN or infinite there, and nothing is emitted
    no_law: int  # of them: pi has values, of which one is negative or the sum is not 1

    @property
    def passed(self) -> bool:
        """Whether the emitted law is pi up to 1e-12, and pi a law wherever it has values."""
        return self.error <= 1e-12 and self.no_law == 0


class TracedPolicy:
    """A traced policy. Arguments of its methods: q and p, rows of probabilities [V] or [..., V], which are
    broadcast and divided by their sums; q_confidence and p_confidence, the same before temperature and
    filters, if they differ; and the policy's parameters by name. ValueError: rows that are no distributions
    (up to 1e-3), or of different V, or a parameter that is not finite. TypeError: no such parameter."""

    def __init__(self, function: Callable[..., Any]) -> None:
        functools.update_wrapper(self, function)
        self.name: str = function.__name__
        self.function = function
        arguments = list(inspect.signature(function).parameters.values())
        if len(arguments) < 2 or not all(
            isinstance(x.default, (int, float)) for x in arguments[2:]
        ):
            raise TypeError(
                f"specagg: {self.name} takes q and p, and then parameters whose defaults are numbers"
            )
        self.defaults: dict[str, float] = {x.name: x.default for x in arguments[2:]}
        parameters = {
            name: node("parameter", value=name, row=False, truth=isinstance(default, bool))
            for name, default in self.defaults.items()
        }
        q, p = (node("member", value=name, row=True) for name in "qp")
        q.confidence, p.confidence = (
            node("member", value=f"confidence_{name}", row=True) for name in "qp"
        )
        self.pi, self.names = _traced(function, q, p, parameters)
        if not (isinstance(self.pi, Node) and self.pi.row and not self.pi.truth):
            raise TypeError(f"specagg: {self.name} must return a row: one number for each token")

    def __reduce__(self) -> str:
        return self.function.__qualname__  # as a function: by its name

    def __call__(self, q: Node, p: Node, **parameters: Any) -> Node:
        """pi as a symbol, for another policy."""
        row: Node = self.function(q, p, **parameters)
        return row

    def law(
        self,
        q: npt.ArrayLike,
        p: npt.ArrayLike,
        q_confidence: npt.ArrayLike | None = None,
        p_confidence: npt.ArrayLike | None = None,
        **parameters: float,
    ) -> Array:
        """pi [..., V]. ValueError, with the reason and the first such row, where pi is no law: NaN,
        negative, or with a sum further than 1e-9 from 1."""
        return self._law(self._rows(q, p, q_confidence, p_confidence), parameters)

    def acceptance(
        self,
        q: npt.ArrayLike,
        p: npt.ArrayLike,
        q_confidence: npt.ArrayLike | None = None,
        p_confidence: npt.ArrayLike | None = None,
        **parameters: float,
    ) -> Array:
        """sum min(q, pi) [...], the probability that token verification accepts a token drawn from q.
        Errors: as law."""
        rows = self._rows(q, p, q_confidence, p_confidence)
        return _acceptance(rows, self._law(rows, parameters))

    def total_variation(
        self,
        q: npt.ArrayLike,
        p: npt.ArrayLike,
        q_confidence: npt.ArrayLike | None = None,
        p_confidence: npt.ArrayLike | None = None,
        **parameters: float,
    ) -> Array:
        """The total variation [...] between pi and p, from 0 to 1. Errors: as law."""
        rows = self._rows(q, p, q_confidence, p_confidence)
        return _distance(rows, self._law(rows, parameters))

    def curve(
        self,
        parameter: str,
        values: npt.ArrayLike,
        q: npt.ArrayLike,
        p: npt.ArrayLike,
        q_confidence: npt.ArrayLike | None = None,
        p_confidence: npt.ArrayLike | None = None,
        **parameters: float,
    ) -> PolicyCurve:
        """What pi gives and takes at each of the values [N] of one parameter. Errors: as law."""
        numbers = np.atleast_1d(np.asarray(values, np.float64))
        rows = self._rows(q, p, q_confidence, p_confidence)
        laws = (self._law(rows, {**parameters, parameter: float(x)}) for x in numbers)
        means = [(_acceptance(rows, pi).mean(), _distance(rows, pi).mean()) for pi in laws]
        acceptance, distance = np.array(means).reshape(-1, 2).T
        return PolicyCurve(numbers, acceptance, distance)

    def audit(self, **parameters: float) -> PolicyAudit:
        """The exact law of the tokens that token verification emits, by all branches of all drafts of 1
        to 3 tokens, for the 2,025 pairs of rows over three tokens in steps of 1/8. Each later position
        has another pair, as in the C++ audit. Takes 0.2 s."""
        eighths = np.array([(a, b, 8 - a - b) for a in range(9) for b in range(9 - a)]) / 8
        pairs = len(eighths) ** 2
        everything = self._rows(
            np.repeat(eighths, len(eighths), 0), np.tile(eighths, (len(eighths), 1))
        )
        pi_of = self._values(everything, parameters).copy()
        undefined = ~np.isfinite(pi_of).all(-1)
        no_law = ~undefined & ((pi_of < 0).any(-1) | ~(np.abs(pi_of.sum(-1) - 1) <= TOLERANCE))
        pi_of[undefined | no_law] = 0  # emits nothing
        worst: tuple[float, int, tuple[int, ...], int] = 0.0, 0, (), 0
        if no_law.any():
            worst = 1.0, 0, (), int(np.argmax(no_law))
        for gamma in (1, 2, 3):
            for prefix, emitted in emitted_by(gamma, everything["q"], pi_of).items():
                pair, follows = pair_after(prefix, pairs), emitted.sum(-1, keepdims=True)
                error = np.abs(
                    np.divide(emitted, follows, out=pi_of[pair], where=follows > 0) - pi_of[pair]
                ).max(-1)
                if error.max() > worst[0]:
                    worst = float(error.max()), gamma, prefix, int(pair[np.argmax(error)])
        q, p = (tuple(map(float, everything[name][worst[3]])) for name in "qp")
        return PolicyAudit(*worst[:3], q, p, pairs, int(undefined.sum()), int(no_law.sum()))

    def cpp(self, name: str | None = None) -> str:
        """A header with the same policy in C++, a struct of this name (the policy's, if none is given)."""
        return cpp_of(
            self.pi,
            name or self.name,
            self.defaults,
            self.names,
            inspect.getdoc(self.function) or "",
        )

    def _rows(
        self,
        q: npt.ArrayLike,
        p: npt.ArrayLike,
        q_confidence: npt.ArrayLike | None = None,
        p_confidence: npt.ArrayLike | None = None,
    ) -> dict[str, Array]:
        rows = {"q": _probabilities("q", q), "p": _probabilities("p", p)}
        for name, x in (("q", q_confidence), ("p", p_confidence)):
            same = rows[name]
            rows[f"confidence_{name}"] = (
                same if x is None else _probabilities(f"{name}_confidence", x)
            )
        sizes = [x.shape[-1] for x in rows.values()]
        if len(set(sizes)) > 1:
            words = ", ".join(map(str, sizes))
            raise ValueError(f"specagg: rows of different vocabularies: {words} tokens")
        return dict(zip(rows, np.broadcast_arrays(*rows.values())))

    def _values(self, rows: dict[str, Array], parameters: dict[str, float]) -> Array:
        for name, x in parameters.items():
            if name not in self.defaults:
                has = ", ".join(self.defaults) or "none"
                raise TypeError(f"specagg: {self.name} has no parameter {name}; it has {has}")
            if not math.isfinite(x):
                raise ValueError(f"specagg: {name} is {x}, and must be finite")
        values: dict[tuple[str, str], Any] = {("member", name): x for name, x in rows.items()}
        for name, default in self.defaults.items():
            x = parameters.get(name, default)
            values["parameter", name] = bool(x) if isinstance(default, bool) else np.float64(x)
        return evaluate(self.pi, values)

    def _law(self, rows: dict[str, Array], parameters: dict[str, float]) -> Array:
        pi = self._values(rows, parameters)
        fault = _fault(pi, TOLERANCE)
        if fault:
            raise ValueError(f"specagg: pi of {self.name} {fault}")
        return pi


def traced(function: Callable[..., Any]) -> TracedPolicy:
    """Makes a policy of function(q, p, parameter=default, ...), which returns pi. A default True or False
    makes a flag: a condition. TypeError where the function branches on a symbol, or returns no row."""
    return TracedPolicy(function)


def _traced(
    function: Callable[..., Any], q: Node, p: Node, parameters: dict[str, Node]
) -> tuple[Any, dict[Node, str]]:
    """What the function returns, and its names for symbols, and those of functions beside it. The C++
    code has these names, too."""
    names: dict[Node, str] = {}

    def note(frame: FrameType, event: str, _: Any) -> None:
        if event == "return" and frame.f_globals is function.__globals__:
            names.update({x: name for name, x in frame.f_locals.items() if isinstance(x, Node)})

    before = sys.getprofile()
    sys.setprofile(note)
    try:
        return function(q, p, **parameters), names
    finally:
        sys.setprofile(before)


def _fault(x: Array, tolerance: float) -> str | None:
    """Why the rows x [..., V] are not all distributions."""
    total = x.sum(-1)
    faults = np.isnan(x).any(-1), (x < 0).any(-1), ~(np.abs(total - 1) <= tolerance)
    for bad, says in zip(faults, ("is NaN", "is negative", "sums to {:.10g}")):
        if bad.any():
            at = tuple(int(i) for i in np.argwhere(bad)[0])
            return says.format(total[at]) + (f" in row {', '.join(map(str, at))}" if at else "")
    return None


def _probabilities(name: str, x: npt.ArrayLike) -> Array:
    rows = np.asarray(x, np.float64)
    fault = _fault(rows, ROW_TOLERANCE) if rows.ndim else "is a number"
    if fault:
        raise ValueError(f"specagg: {name} {fault}, and must be probabilities")
    return np.asarray(rows / rows.sum(-1, keepdims=True))


def _acceptance(rows: dict[str, Array], pi: Array) -> Array:
    return np.asarray(np.minimum(rows["q"], pi).sum(-1))


def _distance(rows: dict[str, Array], pi: Array) -> Array:
    return np.asarray(np.abs(pi - rows["p"]).sum(-1) / 2)
