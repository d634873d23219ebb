# SPDX-License-Identifier: Apache-2.0
"""A traced policy as a C++ policy, in the words of docs/write-your-own-policy.md."""

from __future__ import annotations

import collections
import itertools
import math
import re
from collections.abc import Iterator

from ._symbols import REDUCTIONS, Node, node, order_of

# How strongly operators bind. The operands of & and | get parentheses, as compilers want.
_BINDS = {"*": 7, "/": 7, "+": 6, "-": 6, "<": 5, "<=": 5, ">": 5, ">=": 5, "==": 4, "&": 3, "|": 2}
_UNARY, _CALL = 8, 9
_NAME = r"[A-Za-z]\w*"
# No names for variables.
_TAKEN = """alignas alignof and and_eq asm auto bitand bitor bool break case catch char class compl concept
const constexpr continue decltype default delete do double else enum explicit export extern false float
for friend goto if inline int long mutable namespace new noexcept not not_eq nullptr operator or or_eq
private protected public register requires return short signed sizeof static static_assert struct switch
template this throw true try typedef typeid typename union unsigned using virtual void volatile while xor xor_eq
abs at bind entropy_term exp fma log max min positive pow rows select specagg sqrt std valid
weighted_log Rows""".split()


def cpp_of(
    pi: Node, name: str, parameters: dict[str, float], names: dict[Node, str], comment: str
) -> str:
    """The header. parameters: with their defaults. names: of variables, where C++ can have them.
    ValueError where it cannot have the name of the policy or of a parameter."""
    for word in (name, *parameters):
        if word in _TAKEN or word == name in parameters or not re.fullmatch(_NAME, word, re.ASCII):
            raise ValueError(f"specagg: {word} cannot be a name in C++")
    return _Writer(names, parameters).header(pi, name, comment)


class _Writer:
    def __init__(self, wishes: dict[Node, str], parameters: dict[str, float]) -> None:
        self.wishes, self.parameters = wishes, parameters
        self.taken = {*_TAKEN, *parameters}
        self.locals: dict[Node, str] = {}  # of bind
        self.functions: dict[Node, str] = {}  # of bind, too
        self.lanes: dict[Node, str] = {}  # of the function of `at` that is being written
        self.captured: set[str] = set()  # by it

    def header(self, pi: Node, name: str, comment: str) -> str:
        order = order_of(pi)
        members = {x.value for x in order if x.op == "member"}
        lines = [f"// {line}".rstrip(" \\") for line in comment.splitlines()] + [
            f"struct {name} {{"
        ]
        for word, default in self.parameters.items():
            if isinstance(default, bool):
                lines.append(f"  bool {word} = {str(default).lower()};")
            else:
                lines.append(f"  double {word} = {_number(default)};")
        unread = [] if members & {"q", "confidence_q"} else ["reads_draft = false"]
        unread += [] if members & {"confidence_q", "confidence_p"} else ["reads_confidence = false"]
        if unread:
            lines.append(f"  static constexpr bool {', '.join(unread)};")
        numbers = [
            f"specagg::is_finite({word})"
            for word, x in self.parameters.items()
            if not isinstance(x, bool)
        ]
        if numbers:
            lines.append(f"  constexpr bool valid() const {{ return {' && '.join(numbers)}; }}")
        if len(lines) > 1:
            lines.append("")
        rows = " rows" if any(x.op in REDUCTIONS for x in order) else ""
        lines += [
            "  template <class Rows>",
            f"  SPECAGG_FUNCTION auto bind(const Rows&{rows}) const {{",
        ]
        lines += [f"    {line}" for line in self.definitions(self.to_define(order), order)]
        lines += ["    " + self.function("return ", pi, ";")]
        text = "#pragma once\n#include <specagg/policy/policy.hpp>\n\n" + "\n".join(
            lines + ["  }", "};"]
        )
        return "".join(_wrapped(line) for line in text.splitlines())

    def to_define(self, order: list[Node]) -> list[Node]:
        """What gets a name in bind: numbers and conditions that are reduced, have a name in Python,
        or are used twice or by each token; functions of a token that several loops use."""
        users: dict[Node, set[Node]] = collections.defaultdict(set)
        for x in order:
            for a in x.args:
                users[a].add(x)
        loops: dict[Node, set[Node]] = {}  # the reductions that a row is a part of, or pi
        size: dict[Node, int] = {}
        for x in reversed(order):
            if x.row:
                loops[x] = set().union(*(loops[u] if u.row else {u} for u in users[x])) or {x}
        for x in order:
            size[x] = 1 + sum(size[a] for a in x.args if a.row) if x.row and x.args else 0

        def has_name(x: Node) -> bool:
            if x.row:
                one_user = any(loops[x] == loops[u] for u in users[x] if u.row)
                return size[x] > 3 and len(loops[x]) > 1 and not one_user
            by_tokens = x.op != "neg" and any(u.row for u in users[x])
            return x.op in REDUCTIONS or x in self.wishes or len(users[x]) > 1 or by_tokens

        return [x for x in order if x.args and has_name(x)]

    def definitions(self, defined: list[Node], order: list[Node]) -> Iterator[str]:
        """Statements, which define these. Two sums, or two maxima, are one loop where they can."""
        place = {x: i for i, x in enumerate(defined)}
        needs: dict[Node, int] = {}  # the last place of what a symbol is made of
        for x in order:
            needs[x] = max((place.get(a, needs[a]) for a in x.args), default=-1)
        for i, x in enumerate(defined):
            if x in self.locals:
                continue
            others = (y for y in defined[i + 1 :] if y.op == x.op and needs[y] < i)
            other = next((y for y in others if y not in self.locals), None)
            if x.op not in ("sum", "largest") or other is None:
                yield self.definition(x)
                continue
            loop, pair = ("sum", "sums") if x.op == "sum" else ("max", "tops")
            pair = self.unique(pair)
            both = node("both", x.args[0], other.args[0])
            yield self.function(f"const auto {pair} = rows.{loop}(", both, ");")
            self.locals[x], self.locals[other] = self.name(x), self.name(other)
            names = self.locals[x], self.locals[other]
            yield f"const double {names[0]} = {pair}.first, {names[1]} = {pair}.second;"

    def definition(self, x: Node) -> str:
        name = self.name(x)
        if x.row:
            text = self.function(f"const auto {name} = ", x, ";")
            self.functions[x] = name
            return text
        kind = "std::size_t" if x.op == "argmax" else "bool" if x.truth else "double"
        start = f"const {kind} {name} = "
        if x.op == "at":
            token = f"specagg::at(rows, {self.locals[x.args[1]]})"
            if x.args[0].op == "member":
                text = f"{start}specagg::as_double({token}.{x.args[0].value});"
            else:
                text = self.function(f"{start}specagg::as_double(", x.args[0], f"({token}));")
        elif x.op in REDUCTIONS:
            text = self.function(f"{start}rows.{x.op.replace('largest', 'max')}(", x.args[0], ");")
        else:
            text = f"{start}{self.text(x)};"
        self.locals[x] = name
        return text

    def name(self, x: Node, row: str = "part") -> str:
        """A variable's: as in Python, or for what it is; `row` if it has a value for each token."""
        word = {"sum": "total", "largest": "top", "argmax": "token"}.get(x.op, "value")
        word = row if x.row else "condition" if x.truth else word
        if x.op in REDUCTIONS and x.args[0].op == "member":
            word += f"_{x.args[0].value}"
        wish = self.wishes.get(x, word)
        return self.unique(wish if re.fullmatch(_NAME, wish, re.ASCII) else word)

    def unique(self, word: str) -> str:
        numbered = (f"{word}_{k}" for k in itertools.count(2))
        name = next(n for n in itertools.chain([word], numbered) if n not in self.taken)
        self.taken.add(name)
        return name

    def function(self, before: str, x: Node, after: str) -> str:
        """before, then the function of a token that returns x, then after. Its first line is not indented."""
        if x in self.functions:
            return f"{before}{self.functions[x]}{after}"
        inner = [
            a
            for a in order_of(x, collections.ChainMap(self.functions, self.locals))
            if a.row and a.args
        ]
        uses = collections.Counter(
            a for made in inner if made not in self.functions for a in made.args
        )
        before_this = set(self.taken)
        self.captured = set()
        body = []
        for shared in (a for a in inner if uses[a] > 1):
            text = self.text(shared)
            self.lanes[shared] = self.name(shared, "x")
            body.append(f"const auto {self.lanes[shared]} = {text};")
        body.append(f"return {self.text(x)};")
        self.lanes, self.taken = {}, before_this
        head = f"{before}[{', '.join(sorted(self.captured))}](auto at) {{"
        line = f"{head} {body[0]} }}{after}"
        if len(body) == 1 and len(line) <= 96:
            return line
        return "\n      ".join([head, *body]) + f"\n    }}{after}"

    def text(self, x: Node, binds: int = 0) -> str:
        """x as an expression, in parentheses if it binds less."""
        if x in self.lanes:
            return self.lanes[x]
        if x in self.functions:
            self.captured.add("=")
            return f"{self.functions[x]}(at)"
        if x in self.locals:
            self.captured.add("=")
            return self.locals[x]
        if x.op == "parameter":
            self.captured.add(f"{x.value} = {x.value}")
            return str(x.value)
        if x.op == "member":
            return f"at.{x.value}"
        own = _BINDS.get(x.op, _CALL)
        if x.op == "number":
            own, text = _UNARY if x.value < 0 else _CALL, _number(x.value)
        elif x.op in ("&", "|"):
            a, b = (self.text(a, _CALL) if a.row == x.row else self.lane(a, True) for a in x.args)
            text = f"{a} {x.op if x.row else 2 * x.op} {b}"
        elif x.op in _BINDS:
            text = f"{self.text(x.args[0], own)} {x.op} {self.text(x.args[1], own + 1)}"
        elif x.op in ("neg", "!"):
            own, text = _UNARY, ("-" if x.op == "neg" else "!") + self.text(x.args[0], _UNARY)
        else:
            text = self.call(x)
        return text if own >= binds else f"({text})"

    def call(self, x: Node) -> str:
        if x.op == "max" and x.args[0].op == "number" and x.args[0].value == 0:
            return f"positive({self.text(x.args[1])})"
        name = "select" if x.op == "where" else x.op
        if not x.row:  # functions of doubles
            space = "std" if name in ("abs", "sqrt") else "specagg"
            args = (_number(a.value, True) if a.op == "number" else self.text(a) for a in x.args)
            return f"{space}::{name}({', '.join(args)})"
        # These deduce the type of a lane from all of their arguments.
        name = "specagg::both" if x.op == "both" else name
        strict = x.op in ("pow", "weighted_log") or (x.op == "where" and not x.args[0].row)
        return f"{name}({', '.join(self.lane(a, strict and not a.truth) for a in x.args)})"

    def lane(self, x: Node, converted: bool) -> str:
        """x as an argument; if `converted`, a number of all tokens as one of each, and so a condition."""
        if x.row or not converted:
            return self.text(x)
        return (
            f"decltype(at.p)({self.text(x)})"
            if not x.truth
            else f"(decltype(at.p)({self.text(x)}) > 0)"
        )


def _number(x: float, is_double: bool = False) -> str:
    if math.isinf(x):
        return "-specagg::infinity" if x < 0 else "specagg::infinity"
    return str(int(x)) if x == int(x) and abs(x) < 1e15 and not is_double else repr(float(x))


def _wrapped(line: str) -> str:
    """The line, broken where it is longer than 100 columns: after a comma or a logical operator, else an operator."""
    indent = " " * (len(line) - len(line.lstrip()))
    lines = []
    while len(line) > 100 and not line.lstrip().startswith("//"):
        ends = [
            [x.end() for x in re.finditer(where, line) if x.end() > len(indent) + 8]
            for where in (r", | (&&?|\|\|?) ", r" [-+*/<>=]=? ")
        ]
        fitting = next((fit for fit in ([x for x in e if x <= 101] for e in ends) if fit), None)
        at = fitting[-1] if fitting else next((e[0] for e in ends if e), 0)
        if not at:
            break
        lines.append(line[: at - 1])
        line = f"{indent}    {line[at:]}"
    return "\n".join([*lines, line]) + "\n"
