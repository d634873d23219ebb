# SPDX-License-Identifier: Apache-2.0
"""python -m specagg.conformance ADAPTER: does a sampler draw the tokens that it should?

ADAPTER is module:name, or the name of a sampler that is known here (--list). An adapter is a function
`sample(logits, settings)` from rows of logits, float32 [n, V], and Settings to n tokens, with @adapter(...), which says what
the sampler has; or an Adapter. What it has not is "not applicable". docs/conformance.md says what is checked.

The sampler runs in a process of its own: a check that ends it is a fault, and the others go on.

Exit status: 0 if every check fits, 1 if one does not, 2 with one line if the adapter cannot be used.
"""

from __future__ import annotations

import argparse
import datetime
import importlib
import json
import os
import pathlib
import signal
import subprocess
import sys
import time
from dataclasses import dataclass, field
from typing import Any, Callable, Iterable, NamedTuple, Optional, Sequence, Union

import numpy as np
import numpy.typing as npt

from ._verify import _filter_orders
from .testing import assert_law

Logits = npt.NDArray[np.float32]
Tokens = npt.NDArray[np.int64]

# What a sampler can have, each with what its adapter must then do.
FEATURES = {
    "temperature": "divides by settings.temperature",
    "greedy": "temperature 0: emits the most likely token",
    "top_k": "keeps settings.top_k tokens; 0: all",
    "top_p": "keeps the likeliest tokens whose sum reaches settings.top_p; 1: all",
    "min_p": "keeps tokens of at least settings.min_p times the largest probability; 0: all",
    "repetition": "divides or multiplies logits of settings.history by settings.repetition",
    "presence": "takes settings.presence off the logits of settings.history",
    "frequency": "takes settings.frequency off the logits of settings.history, once for each occurrence",
    "mask": "emits only tokens of settings.mask",
    "seeds": "a token depends on its row, its seed and its position alone",
    "log_probabilities": "returns (tokens, their log-probabilities under the law)",
    "model_log_probabilities": "returns (tokens, their log-probabilities under the rows, before temperature and filters)",
    "float16": "takes rows in float16 if settings.dtype says so; logits has their values",
    "bfloat16": "takes rows in bfloat16 if settings.dtype says so; logits has their values",
    "invalid": "emits -1, or raises, for a row with NaN and for one that is all -inf",
    "drafts": "verify(): drafted tokens that were drawn from q",
    "one_hot": "verify(): q is None, the drafted tokens were chosen without chance",
    "bonus": "verify(): emits one more token after a draft that was accepted",
    "draft_filters": "verify(): temperature, top-k and top-p of the rows of q and of p",
    "padding": "verify(): a drafted -1 ends the draft, which may be of any length",
    "wrong_ids": "verify(): refuses a draft with ids outside the vocabulary, or rejects them",
    "no_support": "verify(): refuses a drafted token of which q is 0, or may reject it",
    "wider_target": "verify(): rows of p may be longer than those of q, which has no probability for the other ids",
    "invalid_drafts": "verify(): emits nothing, or raises, for rows of p with NaN",
    "trees": "verify_tree(): trees of drafted tokens, drawn as the adapter's `proposed` says",
}
STEPS = ("temperature", "top_k", "top_p", "min_p")
OF_VERIFY = ("drafts", "one_hot", "bonus", "draft_filters", "padding", "wrong_ids", "no_support", "wider_target", "invalid_drafts")


@dataclass(frozen=True, eq=False)
class Settings:
    """How n rows are sampled.

    seeds, positions  uint64 and int64 [n]: of each row; the position is how many tokens its text has
    history           ids that penalties count, the same for each row
    mask              bool [V], or None: False where a token may not be emitted
    dtype             "float32", "float16" or "bfloat16": what the engine's rows are; the given ones have their values
    """

    seeds: npt.NDArray[np.uint64]
    positions: Tokens
    temperature: float = 1.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    repetition: float = 1.0
    presence: float = 0.0
    frequency: float = 0.0
    history: tuple[int, ...] = ()
    mask: Optional[npt.NDArray[np.bool_]] = None
    dtype: str = "float32"


Sample = Callable[[Logits, Settings], Any]
Verify = Callable[[Tokens, Optional[Logits], Logits, Settings], Any]
VerifyTree = Callable[[Tokens, Tokens, Optional[Logits], Logits, Settings], Any]
PROPOSED = ("sampled", "independent", "top")


@dataclass(frozen=True, eq=False)
class Adapter:
    """A sampler.

    sample   sample(logits [n, V], settings) -> n tokens, -1 where none is emitted; with log-probabilities a pair
    has      names of FEATURES; a text with spaces between them will do
    order    in which its filters act: a name of specagg.Sampling, or the four of them, as "top_p min_p top_k temperature", each
             on the renormalised result of the one before
    verify   verify(drafts [n, gamma], q [n, gamma, V] or None, p [n, gamma + 1, V], settings) -> the emitted tokens of each
             row, [n, up to gamma + 1], then -1. Rows are logits. A drafted -1 pads
    most     the largest number of rows of a call
    verify_tree  verify_tree(tokens [n, nodes], parents [n, nodes], q [n, nodes + 1, V] or None, p [n, nodes + 1, V], settings)
             -> as verify(). Node 0 is the text; node i has tokens[i - 1] and follows node parents[i - 1]. Rows are after each node
    proposed  how the children of a node are chosen for it: "sampled" (drawn from q without replacement), "independent" (with), or
             "top" (the most likely ones; q is None)

    ValueError: an unknown feature, order or way to propose; features of verify() or verify_tree() without one.
    """

    sample: Sample
    has: frozenset[str]
    name: str
    version: str = ""
    order: str = "hugging-face"
    verify: Optional[Verify] = None
    most: int = 4096
    verify_tree: Optional[VerifyTree] = None
    proposed: str = "sampled"

    def __post_init__(self) -> None:
        unknown = sorted(self.has - set(FEATURES))
        if unknown:
            raise ValueError(f"has: there is no {', '.join(unknown)}; there are {', '.join(FEATURES)}")
        if self.order not in _filter_orders and (sorted(self.order.split()) != sorted(STEPS) or "draft_filters" in self.has):
            raise ValueError(f"order: there is no {self.order!r}; there are {', '.join(_filter_orders)}, and without draft_filters "
                             f"{', '.join(STEPS)} in any order")
        if self.verify is None and self.has & set(OF_VERIFY):
            raise ValueError(f"verify: needed for {', '.join(sorted(self.has & set(OF_VERIFY)))}")
        if self.verify_tree is None and "trees" in self.has:
            raise ValueError("verify_tree: needed for trees")
        if self.proposed not in PROPOSED:
            raise ValueError(f"proposed: there is no {self.proposed!r}; there are {', '.join(PROPOSED)}")


def adapter(has: Union[str, Iterable[str]], *, name: str = "", version: str = "", order: str = "hugging-face",
            verify: Optional[Verify] = None, most: int = 4096, verify_tree: Optional[VerifyTree] = None,
            proposed: str = "sampled") -> Callable[[Sample], Adapter]:
    """Makes an Adapter of a function sample(logits, settings)."""
    features = frozenset(has.split() if isinstance(has, str) else has)
    return lambda sample: Adapter(sample, features, name or getattr(sample, "__name__", "sampler"), version, order, verify, most,
                                  verify_tree, proposed)


class Result(NamedTuple):
    """What a check has found. verdict: "fits", "does not fit" or "not applicable". n: tokens or texts. p_value: at most
    this, of all tests of the check together; None of a check without chance. finds: a sampler at this total variation from
    the law fails with probability 0.999 or more; of a check without chance, one that is wrong in this share of the rows."""

    check: str
    verdict: str
    seen: str = ""
    n: int = 0
    p_value: Optional[float] = None
    distance: Optional[float] = None
    finds: Optional[float] = None
    seconds: float = 0.0


FITS, DOES_NOT, NOT_APPLICABLE = "fits", "does not fit", "not applicable"


def of_texts(check: str, engine: Any, target: Any, draft: Any = None, policy: Any = "lossless", **how: Any) -> Result:
    """What specagg.testing.assert_law() finds of an engine, as a Result; an error of the engine does not fit."""
    try:
        found = assert_law(engine, target, draft, policy, **how)
    except AssertionError as failure:
        seen = getattr(failure, "found", None)
        if seen is None:  # of a token, a seed or temperature 0
            return Result(check, DOES_NOT, str(failure))
        return Result(check, DOES_NOT, str(failure), *seen)
    except Exception as failure:  # the engine's own
        return Result(check, DOES_NOT, error_of(failure))
    return Result(check, FITS, "", *found)


def error_of(failure: Exception) -> str:
    """One line of an error."""
    return " ".join(f"{type(failure).__name__}: {failure}".split())[:300]


class Unusable(Exception):
    """The adapter cannot be used; the message is one line."""


@dataclass
class Report:
    """The results for one sampler. level: a right sampler fails one of the checks or more with at most this probability."""

    name: str
    version: str
    level: float
    tv: float
    seed: int
    vocabulary: int
    date: str = field(default_factory=lambda: datetime.datetime.now(datetime.timezone.utc).date().isoformat())
    results: list[Result] = field(default_factory=list)

    @property
    def fits(self) -> bool:
        return all(one.verdict != DOES_NOT for one in self.results)

    def as_json(self) -> str:
        """The report, and each result under its members' names."""
        head = {name: getattr(self, name) for name in ("name", "version", "date", "level", "tv", "seed", "vocabulary", "fits")}
        return json.dumps({**head, "results": [one._asdict() for one in self.results]}, indent=1)

    def _counts(self) -> dict[str, int]:
        return {verdict: sum(one.verdict == verdict for one in self.results) for verdict in (FITS, DOES_NOT, NOT_APPLICABLE)}

    def badge(self) -> str:
        """JSON for https://img.shields.io/endpoint?url=...: how many of the checks that apply fit."""
        count = self._counts()
        message = f"{count[FITS]} of {count[FITS] + count[DOES_NOT]} checks fit"
        return json.dumps({"schemaVersion": 1, "label": "sampling law", "message": message,
                           "color": "brightgreen" if self.fits else "red", "isError": not self.fits}, indent=1) + "\n"

    def summary(self) -> str:
        """One line: how many checks there were."""
        count = self._counts()
        return (f"{count[FITS]} checks fit, {count[DOES_NOT]} do not, {count[NOT_APPLICABLE]} are not applicable; level "
                f"{self.level:g} of all together")

    def table(self) -> str:
        """For a terminal: what does not fit has its reason in the lines below it."""
        title = " ".join(f"{self.name} {self.version}".split())
        lines = [f"{title}, {self.date}", "",
                 f"{'check':<38}{'verdict':<16}{'n':>8}{'p-value':>10}{'distance':>10}{'finds':>8}"]
        for one in self.results:
            if one.verdict == NOT_APPLICABLE:
                lines.append(f"{one.check:<38}{one.verdict:<16}{one.seen:>8}")
                continue
            lines.append(f"{one.check:<38}{one.verdict:<16}{one.n or '':>8}{_number(one.p_value):>10}"
                         f"{_number(one.distance):>10}{_number(one.finds):>8}")
            if one.seen:
                lines += ["    " + line for line in one.seen.splitlines()]
        return "\n".join([*lines, "", self.summary()])

    def page(self) -> str:
        """The same in Markdown."""
        lines = [f"# Conformance of {self.name}", "",
                 f"Version {self.version or 'not known'}, {self.date}, seed {self.seed}: {self.summary()}. *Finds*: a sampler at this "
                 "total variation from the law fails with probability 0.999 or more; without a p-value, one that is wrong in this "
                 "share of rows.", "", "| check | verdict | n | p-value | distance | finds | seen |",
                 "| --- | --- | ---: | ---: | ---: | ---: | --- |"]
        for one in self.results:
            verdict = f"**{one.verdict}**" if one.verdict == DOES_NOT else one.verdict
            seen = "; ".join(one.seen.replace("|", "\\|").split("\n"))
            lines.append(f"| {one.check} | {verdict} | {one.n or ''} | {_number(one.p_value)} | {_number(one.distance)} | "
                         f"{_number(one.finds)} | {seen} |")
        return "\n".join(lines) + "\n"


def _number(x: Optional[float]) -> str:
    return "" if x is None else f"{x:.2g}" if x and x < 0.001 else f"{x:.3f}".rstrip("0").rstrip(".")


def _first_call(checks: Any) -> None:
    try:
        checks.tokens(np.zeros((2, 3), np.float32), checks.settings(2))
    except Exception as failure:
        raise Unusable(f"{checks.sampler.name}: {error_of(failure)}") from failure


def run(sampler: Adapter, *, tv: float = 0.05, level: float = 1e-6, seed: int = 1, vocabulary: int = 4099, only: str = "",
        says: Optional[Callable[[Result], None]] = None, first: int = 0) -> Report:
    """Puts a sampler to all checks whose name has `only` in it. An engine may end the process on rows that have no law:
    run_apart() lives on.

    tv          checks draw as many tokens as find a sampler that is this far from the law
    level       a right sampler fails one check or more with at most this probability
    seed        of the rows, and of the first request
    vocabulary  of the large rows
    says        is called with each Result
    first       leaves out as many checks

    Unusable: the first call of the sampler fails, or returns no tokens. ValueError: arguments out of range.
    """
    from ._checks import Checks, checks_of

    if not 0 < tv < 1 or not 0 < level < 1:
        raise ValueError(f"tv, level: expected numbers in (0, 1), not {tv} and {level}")
    if vocabulary < 256 or not 0 <= seed < 2**31:
        raise ValueError(f"vocabulary, seed: expected at least 256, and 0 to 2^31 - 1, not {vocabulary} and {seed}")
    report = Report(sampler.name, sampler.version, level, tv, seed, vocabulary)
    chosen = [one for one in checks_of(sampler.has) if only in one.name]
    due = sum(one.needs <= sampler.has for one in chosen)
    checks = Checks(sampler, tv, level / max(due, 1), seed, vocabulary)
    _first_call(checks)
    for one in chosen[first:]:
        begin = time.perf_counter()
        missing = sorted(one.needs - sampler.has)
        if missing:
            result = Result(one.name, NOT_APPLICABLE, f"has no {', '.join(missing)}")
        else:
            try:
                result = one.run(checks, one.name)
            except Exception as failure:  # the sampler's own
                result = Result(one.name, DOES_NOT, error_of(failure))
        report.results.append(result._replace(seconds=round(time.perf_counter() - begin, 3)))
        if says:
            says(report.results[-1])
    return report


def _ended(status: int) -> str:
    """How a process ended, by the status that subprocess has."""
    if status >= 0:
        return f"the process ended with status {status}"
    names = {one.value: one.name for one in signal.Signals}
    return f"the process was ended by signal {-status} ({names.get(-status, 'unknown')})"


def run_apart(name: str, *, tv: float = 0.05, level: float = 1e-6, seed: int = 1, vocabulary: int = 4099, only: str = "",
              says: Optional[Callable[[Result], None]] = None) -> Report:
    """As run(load(name), ...), in a process of its own. A check that ends it, as by a failed assertion of an engine in C++,
    does not fit, and a new process goes on with the next check.

    Unusable, ValueError: as load() and run()."""
    from ._checks import checks_of

    names = [one.name for one in checks_of(()) if only in one.name]
    report: Optional[Report] = None
    while report is None or len(report.results) < len(names):
        done = len(report.results) if report else 0
        read, write = os.pipe()
        told = json.dumps({"tv": tv, "level": level, "seed": seed, "vocabulary": vocabulary, "only": only, "first": done,
                           "to": write})
        with open(read) as lines, subprocess.Popen([sys.executable, "-m", "specagg.conformance", name, "--told", told],
                                                   pass_fds=[write], stdout=2) as child:  # what an engine prints is no report
            os.close(write)
            begin = time.perf_counter()
            for line in lines:
                what = json.loads(line)
                if "unusable" in what:
                    raise (ValueError if what["value"] else Unusable)(what["unusable"])
                if "check" not in what:
                    report, begin = report or Report(**what), time.perf_counter()
                    continue
                assert report
                report.results.append(Result(**what))
                begin = time.perf_counter()
                if says:
                    says(report.results[-1])
            status = child.wait()
        if report is None:
            raise Unusable(f"{name}: {_ended(status)} before the first check")
        if len(report.results) < len(names):
            report.results.append(Result(names[len(report.results)], DOES_NOT, _ended(status),
                                         seconds=round(time.perf_counter() - begin, 3)))
            if says:
                says(report.results[-1])
    return report


def _told(name: str, told: dict[str, Any]) -> int:
    """The process of run_apart(): a line of JSON for the sampler, and one for each check."""
    from ._checks import Checks

    to = told.pop("to")
    os.set_inheritable(to, False)  # a process that the engine starts must not hold it open
    with open(to, "w", buffering=1) as out:
        def write(**what: Any) -> None:
            print(json.dumps(what), file=out, flush=True)

        try:
            sampler = load(name)
            _first_call(Checks(sampler, 0.5, 0.5, 1, 256))
            limits = {key: told[key] for key in ("level", "tv", "seed", "vocabulary")}
            write(name=sampler.name, version=sampler.version, **limits)
            run(sampler, says=lambda one: write(**one._asdict()), **told)
        except (Unusable, ValueError) as failure:
            write(unusable=str(failure), value=isinstance(failure, ValueError))
    return 0


def load(name: str) -> Adapter:
    """The adapter that `name` means: of a sampler that is known, or module:name.

    Unusable: there is none."""
    from ._adapters import KNOWN

    try:
        if name in KNOWN:
            return KNOWN[name]()
        module, _, member = name.partition(":")
        if not member:
            raise Unusable(f"{name}: expected module:name, or one of {', '.join(KNOWN)}")
        found = getattr(importlib.import_module(module), member)
    except Unusable:
        raise
    except Exception as failure:
        raise Unusable(f"{name}: {error_of(failure)}") from failure
    if isinstance(found, Adapter):
        return found
    if not callable(found):
        raise Unusable(f"{name}: is neither an Adapter nor a function")
    return adapter("temperature", name=name)(found)


def main(words: Optional[Sequence[str]] = None) -> int:
    """The command."""
    from ._adapters import KNOWN

    parser = argparse.ArgumentParser(prog="python -m specagg.conformance", description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("adapter", nargs="?", help="module:name, or a known one")
    parser.add_argument("--list", action="store_true", help="prints the known samplers, and what a sampler can have")
    parser.add_argument("--json", action="store_true", help="prints JSON instead of the table")
    parser.add_argument("--page", type=pathlib.Path, metavar="FILE", help="writes a page of Markdown")
    parser.add_argument("--badge", type=pathlib.Path, metavar="FILE", help="writes JSON for a badge of shields.io")
    parser.add_argument("--only", default="", metavar="WORD", help="checks whose name has this word")
    parser.add_argument("--tv", type=float, default=0.05, help="the distance from the law that is found (0.05)")
    parser.add_argument("--level", type=float, default=1e-6, help="with which probability a right sampler may fail (1e-6)")
    parser.add_argument("--seed", type=int, default=1, help="of the rows and of the first request (1)")
    parser.add_argument("--vocabulary", type=int, default=4099, help="of the large rows (4099)")
    parser.add_argument("--told", type=json.loads, help=argparse.SUPPRESS)
    given = parser.parse_args(words)
    if given.list:
        print("known:", *KNOWN, "\n", *(f"{name}: {what}" for name, what in FEATURES.items()), sep="\n")
        return 0
    if given.adapter is None:
        parser.error("an adapter is needed")
    sys.path.insert(0, os.getcwd())
    if given.told is not None:
        return _told(given.adapter, given.told)
    try:
        report = run_apart(given.adapter, tv=given.tv, level=given.level, seed=given.seed, vocabulary=given.vocabulary,
                           only=given.only)
        if given.page:
            given.page.write_text(report.page())
        if given.badge:
            given.badge.write_text(report.badge())
    except (Unusable, ValueError, OSError) as failure:
        print(f"specagg.conformance: {' '.join(str(failure).split())}", file=sys.stderr)
        return 2
    print(report.as_json() if given.json else report.table())
    return 0 if report.fits else 1


if __name__ == "__main__":
    # As the module that adapters import, not as __main__: their Adapter is the class that load() knows.
    sys.exit(importlib.import_module("specagg.conformance").main())
