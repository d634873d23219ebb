# SPDX-License-Identifier: Apache-2.0
"""The symbols that a policy is traced with (traced.py), functions of them, and their values by numpy."""

from __future__ import annotations

import math
import sys
import weakref
from collections.abc import Callable, Container
from typing import Any

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[np.float64]


def _binary(op: str, swapped: bool = False) -> Callable[[Node, Number], Node]:
    return lambda self, other: (
        _operation(op, other, self) if swapped else _operation(op, self, other)
    )


class Node:
    """A symbol: a number or a condition (`truth`), one for each token (`row`) or one for all. Equal
    symbols are one object."""

    __slots__ = ("op", "value", "args", "row", "truth", "confidence", "__weakref__")
    __hash__ = object.__hash__
    op: str
    value: Any  # a number's; the name of a parameter or of a member of the rows
    args: tuple[Node, ...]
    row: bool
    truth: bool
    confidence: Node  # of q and p alone: the same row before temperature and filters

    __add__, __radd__ = _binary("+"), _binary("+", swapped=True)
    __sub__, __rsub__ = _binary("-"), _binary("-", swapped=True)
    __mul__, __rmul__ = _binary("*"), _binary("*", swapped=True)
    __truediv__, __rtruediv__ = _binary("/"), _binary("/", swapped=True)
    __pow__, __rpow__ = _binary("pow"), _binary("pow", swapped=True)
    __lt__, __le__, __gt__, __ge__ = _binary("<"), _binary("<="), _binary(">"), _binary(">=")
    __and__, __or__ = _binary("&"), _binary("|")

    def __array_ufunc__(self, ufunc: Any, method: str, *args: Any, **_: Any) -> Node:
        """Operators whose left side is a number of numpy."""
        op = _OF_NUMPY.get(ufunc.__name__)
        if op is None or method != "__call__":
            raise TypeError(_instead_of(ufunc.__name__))
        a, b = (x.item() if isinstance(x, np.ndarray) and x.ndim == 0 else x for x in args)
        return ~_operation("==", a, b) if op == "!=" else _operation(op, a, b)

    def __array_function__(self, function: Any, *_: Any) -> Node:
        raise TypeError(_instead_of(function.__name__))

    def __eq__(self, other: Number) -> Node:  # type: ignore[override]
        return _operation("==", self, other)

    def __ne__(self, other: Number) -> Node:  # type: ignore[override]
        return ~_operation("==", self, other)

    def __invert__(self) -> Node:
        return _operation("!", self)

    def __neg__(self) -> Node:
        return _operation("neg", self)

    def __abs__(self) -> Node:
        return _operation("abs", self)

    def __getitem__(self, place: Node) -> Node:
        if not (isinstance(place, Node) and place.op == "argmax" and self.row):
            raise TypeError("specagg: a row of a policy is read at a token: row[argmax(other)]")
        return node("at", _number(self), place, row=False)

    def __bool__(self) -> bool:
        raise TypeError(
            "specagg: a policy is traced for all rows at once, so a condition has no value yet: write "
            "where(condition, a, b) for `if`, and & | ~ for `and`, `or`, `not`"
        )

    def __float__(self) -> float:
        raise TypeError(
            "specagg: a symbol of a policy has no value yet: take exp, log and others from specagg.traced"
        )

    def __iter__(self) -> Any:
        raise TypeError(
            "specagg: a row of a policy has no values yet: take sum, max and min from specagg.traced"
        )


def _instead_of(name: str) -> str:
    """What a policy uses in place of numpy's function."""
    own = {"amax": "max", "amin": "min", "absolute": "abs() of Python", "clip": "minimum and maximum",
           "logical_and": "&", "logical_or": "|", "logical_not": "~", "invert": "~"}.get(name, name)
    if own == name and not callable(globals().get(name)):
        return f"specagg: numpy.{name} cannot be used in a policy: specagg.traced says which functions can"
    where = "" if own[0] in "&|~" or " " in own else " from specagg.traced"
    return f"specagg: numpy.{name} has no value in a policy, which is traced with symbols: use {own}{where}"


Number = Node | float
_nodes: weakref.WeakValueDictionary[Any, Node] = weakref.WeakValueDictionary()
_CONDITIONS = {"<", "<=", ">", ">=", "==", "&", "|", "!"}
_LEAST = sys.float_info.min  # a smaller weight counts as 0 in weighted_log
_OF_NUMPY = {"add": "+", "subtract": "-", "multiply": "*", "divide": "/", "true_divide": "/", "power": "pow",
             "less": "<", "less_equal": "<=", "greater": ">", "greater_equal": ">=", "equal": "==", "not_equal": "!=",
             "bitwise_and": "&", "bitwise_or": "|"}
REDUCTIONS = {"sum", "largest", "argmax", "at"}


def node(
    op: str, *args: Node, value: Any = None, row: bool | None = None, truth: bool = False
) -> Node:
    """The symbol for op of args. row: None if it is one where an argument is."""
    key = op, value, truth, tuple(map(id, args))
    x = _nodes.get(key)
    if x is None:
        _nodes[key] = x = Node()
        x.op, x.value, x.args, x.truth = op, value, args, truth or op in _CONDITIONS
        x.row = any(a.row for a in args) if row is None else row
    return x


def _number(x: Number) -> Node:
    """x as a symbol; a condition as 0 or 1."""
    if isinstance(x, Node):
        if x.op == "argmax":
            raise TypeError("specagg: argmax is the place of a token: row[argmax(other)]")
        return where(x, 1, 0) if x.truth else x
    if not isinstance(x, (int, float, np.number, np.bool_)):
        raise TypeError(
            f"specagg: a policy is made of rows, parameters and numbers, not of a {type(x).__name__}"
        )
    if math.isnan(x):
        raise ValueError("specagg: a number in a policy is NaN")
    return node("number", value=float(x) + 0.0)


def _operation(op: str, *args: Number) -> Node:
    """op of numbers, or of conditions; numbers are computed, and a product plus a sum is an fma."""
    if op in ("&", "|", "!"):
        a, b = _condition(args[0]), _condition(args[-1])
        if op == "!":
            return a.args[0] if a.op == "!" else node(op, a)
        if a.op == b.op == "!":
            return ~_operation("|" if op == "&" else "&", a.args[0], b.args[0])
        return node(op, b, a) if a.op == "!" else node(op, a, b)  # compilers warn of !a & b
    x = [_number(a) for a in args]
    if all(a.op == "number" for a in x) and op not in _CONDITIONS:
        with np.errstate(all="ignore"):
            return _number(float(_NUMPY[op](*(np.float64(a.value) for a in x))))
    if op == "neg" and x[0].op in ("neg", "*"):
        return x[0].args[0] if x[0].op == "neg" else -x[0].args[0] * x[0].args[1]
    one, zero = node("number", value=1.0), node("number", value=0.0)
    if (op == "*" and x[0] is one) or (op == "+" and x[0] is zero):
        return x[1]
    if (op == "*" and x[1] is one) or (op in "+-" and x[1] is zero):
        return x[0]
    if op in "+-" and x[1].op == "neg":
        return _operation("-" if op == "+" else "+", x[0], x[1].args[0])
    if op in "+-" and x[0].op == "*":
        return node("fma", *x[0].args, x[1] if op == "+" else -x[1])
    if op in "+-" and x[1].op == "*":
        a, b = x[1].args
        return node("fma", a if op == "+" else -a, b, x[0])
    return node(op, *x)


def _is_row(*args: Number) -> bool:
    return any(isinstance(x, Node) and x.row for x in args)


def _condition(x: Any) -> Node:
    if not (isinstance(x, Node) and x.truth):
        raise TypeError(
            "specagg: a condition is a comparison, such as q < p, or several joined by & | ~"
        )
    return x


def _reduction(op: str, x: Number) -> Node:
    if not (isinstance(x, Node) and x.row):
        raise TypeError("specagg: sum, max, min and argmax take a row: one number for each token")
    return node(op, _number(x), row=False)


# ---- functions for policies: token by token -----------------------------------------------------


def where(condition: Node | bool, a: Number, b: Number) -> Node:
    """a where the condition holds, else b."""
    if isinstance(condition, (bool, np.bool_)):
        return _number(a if condition else b)
    return node("where", _condition(condition), _number(a), _number(b))


def exp(x: Number) -> Node:
    """e^x."""
    return _operation("exp", x)


def log(x: Number) -> Node:
    """The natural logarithm; -inf at 0, NaN below."""
    return _operation("log", x)


def sqrt(x: Number) -> Node:
    """The square root; NaN below 0."""
    return _operation("sqrt", x)


def minimum(a: Number, b: Number) -> Node:
    """The smaller; b where one is NaN."""
    return _operation("min", a, b) if _is_row(a, b) else where(_number(a) < b, a, b)


def maximum(a: Number, b: Number) -> Node:
    """The larger; b where one is NaN."""
    return _operation("max", a, b) if _is_row(a, b) else where(_number(a) > b, a, b)


def positive(x: Number) -> Node:
    """max(0, x); NaN stays NaN."""
    return maximum(0, x)


def weighted_log(w: Number, x: Number) -> Node:
    """w log x, and 0 where w is 0 or subnormal."""
    if _is_row(w, x):
        return _operation("weighted_log", w, x)
    return where(abs(_number(w)) < _LEAST, 0, w * log(x))


# ---- functions for policies: over the vocabulary ------------------------------------------------


def sum(x: Number) -> Node:
    """The sum; of a condition, the number of tokens."""
    return _reduction("sum", x)


def max(x: Number) -> Node:
    """The largest that is not NaN."""
    return _reduction("largest", x)


def min(x: Number) -> Node:
    """The smallest that is not NaN."""
    return -_reduction("largest", -_number(x))


def argmax(x: Number) -> Node:
    """The token with the largest x, of several the lowest id: row[argmax(x)]."""
    return _reduction("argmax", x)


def entropy(x: Number) -> Node:
    """-sum x log x in nats, with 0 log 0 = 0, of an x that is nowhere negative."""
    return sum(_operation("entropy_term", x))


def total_variation(a: Number, b: Number) -> Node:
    """sum (b - a)+, from 0 to 1 for distributions."""
    return sum(positive(_number(b) - a))


def normalised(x: Node) -> Node:
    """x (1 / sum x): no law where no token has weight."""
    total = sum(x)
    lift = where(total < 2.0**-126, 2.0**64, 1)  # 1 / total is beyond the numbers where it is subnormal
    return x * lift * (1 / (total * lift))


def softmax(score: Node) -> Node:
    """e^score / sum e^score. The scores may have any size; NaN if the largest is infinite."""
    weight = exp(score - max(score))
    return weight * (1 / sum(weight))


# ---- values -------------------------------------------------------------------------------------


def _fma(a: Any, b: Any, c: Any) -> Any:
    """a b + c with one rounding, but for ties of about 1 in 2^50."""

    def halves(x: Any) -> tuple[Any, Any]:
        high = 134217729 * x - (134217729 * x - x)
        return high, x - high

    (a1, a2), (b1, b2), product = halves(a), halves(b), a * b
    below = a2 * b2 - (product - a1 * b1 - a2 * b1 - a1 * b2)  # a b = product + below
    total = product + c
    of_c = total - product
    exact = total + (below + ((product - (total - of_c)) + (c - of_c)))
    return np.where(np.isfinite(exact), exact, total)


_NUMPY: dict[str, Callable[..., Any]] = {
    "+": np.add,
    "-": np.subtract,
    "*": np.multiply,
    "/": np.divide,
    "neg": np.negative,
    "abs": np.abs,
    "fma": _fma,
    "<": np.less,
    "<=": np.less_equal,
    ">": np.greater,
    ">=": np.greater_equal,
    "==": np.equal,
    "&": np.logical_and,
    "|": np.logical_or,
    "!": np.logical_not,
    "where": np.where,
    "sqrt": np.sqrt,
    "exp": lambda x: np.where(
        x < -1021.5 * math.log(2), 0.0, np.exp(x)
    ),  # no subnormal results
    "log": np.log,
    "pow": lambda x, y: np.where(y == 0, 1.0, _NUMPY["exp"](y * _NUMPY["log"](x))),
    "min": lambda a, b: np.where(a < b, a, b),
    "max": lambda a, b: np.where(a > b, a, b),
    "weighted_log": lambda w, x: np.where(abs(w) < _LEAST, 0.0, w * _NUMPY["log"](x)),
    "entropy_term": lambda x: -x * np.log(np.where(_LEAST > x, _LEAST, x)),
    "sum": lambda x: np.sum(x, -1, keepdims=True),
    "largest": lambda x: np.fmax.reduce(x, -1, keepdims=True, initial=-math.inf),
    "argmax": lambda x: np.argmax(np.where(np.isnan(x), -math.inf, x), -1)[..., None],
    "at": lambda x, place: np.take_along_axis(x, place, -1),
}


def order_of(root: Node, known: Container[Node] = ()) -> list[Node]:
    """What the root is made of, arguments first; without what only `known` symbols are made of."""
    order: dict[Node, None] = {}
    todo = [root]
    while todo:
        before = [a for a in todo[-1].args if a not in order and todo[-1] not in known]
        if before:
            todo += reversed(before)
        else:
            order[todo.pop()] = None
    return list(order)


def evaluate(root: Node, values: dict[tuple[str, str], Any]) -> Array:
    """values: of the members and parameters; rows [..., V]."""
    order = order_of(root)
    last = {a: x for x in order for a in x.args}  # who reads it last
    done: dict[Node, Any] = {}
    with np.errstate(all="ignore"):
        for x in order:
            if x.op == "number":
                done[x] = np.float64(x.value)
            else:
                done[x] = (
                    _NUMPY[x.op](*(done[a] for a in x.args)) if x.args else values[x.op, x.value]
                )
            for a in set(x.args):
                if last[a] is x:
                    del done[a]
    return np.asarray(done[root])
