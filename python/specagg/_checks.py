# SPDX-License-Identifier: Apache-2.0
"""The checks of specagg.conformance: rows whose law tells the known faults apart, and what is due."""

from __future__ import annotations

import functools
import itertools
from dataclasses import replace
from typing import Any, Callable, Iterable, NamedTuple, Optional

import numpy as np
import numpy.typing as npt

from ._law import Floats, law as law_of_rows
from ._texts import Test, compare, planned, tests_of
from ._verify import Rows as RowsOf, Sampling, Streams, _filter_orders, draw
from .conformance import DOES_NOT, FITS, Adapter, Logits, Result, Settings, Tokens, error_of, of_texts
from .testing import in_rounds

SMALL = 17  # of the rows whose tokens are counted one by one; no multiple of a register's width
STEP = 0.78  # each of their probabilities beside the next larger one
HISTORY = (0, 3, 3, 3, 8, 16)  # of penalties
AT_THE_CUT = 3e-4  # sums in float32 may cut this much earlier or later: tokens there are not counted


class Check(NamedTuple):
    """needs: what the sampler must have."""

    name: str
    needs: frozenset[str]
    run: Callable[["Checks", str], Result]


def share(n: int) -> float:
    """A fault in this share of the rows shows in n of them with probability 0.999."""
    return float(1 - 0.001 ** (1 / n))


def rounded(rows: Logits, dtype: str) -> Logits:
    """The values of rows in a half type, to nearest."""
    if dtype == "float16":
        return rows.astype(np.float16).astype(np.float32)
    bits = np.ascontiguousarray(rows, np.float32).view(np.uint32)
    return ((bits + 0x7FFF + ((bits >> 16) & 1)) & np.uint32(0xFFFF0000)).astype(np.uint32).view(np.float32)


def edited(row: Logits, s: Settings) -> Floats:
    """The logits after penalties and mask."""
    out = np.asarray(row, np.float64).copy()
    counts = np.bincount([one for one in s.history if one < out.size], minlength=out.size)
    there = counts > 0
    out[there] = np.where(out[there] > 0, out[there] / s.repetition, out[there] * s.repetition)
    out -= s.presence * there + s.frequency * counts
    return out if s.mask is None else np.where(s.mask, out, -np.inf)


class Checks:
    """A sampler with the rows and seeds of one run. level: of one check."""

    def __init__(self, sampler: Adapter, tv: float, level: float, seed: int, vocabulary: int) -> None:
        self.sampler, self.tv, self.level, self.seed, self.vocabulary = sampler, tv, level, seed, vocabulary
        self.random = np.random.default_rng(seed)
        self.next = seed * 1_000_003

    def settings(self, n: int, **how: Any) -> Settings:
        """With seeds that no row had before."""
        seeds = np.arange(self.next, self.next + n, dtype=np.uint64)
        self.next += n
        return Settings(seeds, np.full(n, 5, np.int64), **how)

    def both(self, rows: Logits, settings: Settings) -> tuple[Tokens, Any]:
        """The tokens, and the log-probabilities that come with them."""
        most = self.sampler.most
        if len(rows) > most:
            parts = [self.both(rows[i:i + most], replace(settings, seeds=settings.seeds[i:i + most],
                                                         positions=settings.positions[i:i + most]))
                     for i in range(0, len(rows), most)]
            given_logs = [logs for _, logs in parts if logs is not None]
            return np.concatenate([tokens for tokens, _ in parts]), np.concatenate(given_logs) if given_logs else None
        given = self.sampler.sample(rows, settings)
        logs = None
        if isinstance(given, tuple):
            given, logs = given
        tokens = np.asarray(given)
        if tokens.shape != (len(rows),) or tokens.dtype.kind not in "iu":
            raise TypeError(f"expected {len(rows)} tokens, not {tokens.dtype} {list(tokens.shape)}")
        if tokens.size and not -1 <= int(tokens.min()) <= int(tokens.max()) < rows.shape[1]:
            raise ValueError(f"emits the ids {int(tokens.min())} to {int(tokens.max())}, of a vocabulary of {rows.shape[1]}")
        return tokens.astype(np.int64), logs

    def tokens(self, rows: Logits, settings: Settings) -> Tokens:
        return self.both(rows, settings)[0]

    def draws(self, rows: Logits, n: int, **how: Any) -> Tokens:
        """n tokens of rows [r, V], which take turns."""
        most = max(len(rows), min(self.sampler.most, 2**22 // rows.shape[1]) // len(rows) * len(rows))
        parts = [min(most, n - i) for i in range(0, n, most)]
        return np.concatenate([self.tokens(np.ascontiguousarray(np.resize(rows, (m, rows.shape[1]))), self.settings(m, **how))
                               for m in parts])

    def law(self, row: Logits, **how: Any) -> Floats:
        """By the library's own law, in double; penalties and masks are applied here."""
        s = self.settings(0, **how)
        logits, order = edited(row, s), self.sampler.order
        values: dict[str, Any] = {"temperature": s.temperature, "top_k": s.top_k, "top_p": s.top_p, "min_p": s.min_p}
        if order in _filter_orders:
            return law_of_rows("lossless", logits, logits, rows="logits", sampling=Sampling(**values, order=order)).pi
        for step in order.split():  # each acts on the renormalised result of the one before
            pi = law_of_rows("lossless", logits, logits, rows="logits", sampling=Sampling(**{step: values[step]})).pi
            with np.errstate(divide="ignore"):
                logits = np.log(pi)
        return pi

    def small(self) -> Logits:
        """A row of 17 tokens, 0.78^k in random places."""
        return (self.random.permutation(np.arange(SMALL) * np.log(STEP)) + self.random.uniform(-2, 2)).astype(np.float32)

    def large(self) -> Logits:
        """Zipf's law in random places; the last id is a likely one, where a rest of a row is forgotten."""
        ranks = self.random.permutation(self.vocabulary)
        ranks[[int(np.flatnonzero(ranks == 5)[0]), -1]] = ranks[-1], 5
        return (-np.log1p(ranks)).astype(np.float32)

    def planned(self, law: Floats) -> int:
        return planned(law, self.tv, self.level / 2)

    def compared(self, name: str, tests: list[Test]) -> Result:
        found, worst = compare(tests, self.level)
        return Result(name, DOES_NOT if worst else FITS, "\n".join(line.strip() for line in worst[:2]), *found)

    def tests(self, tokens: Tokens, law: Floats) -> list[Test]:
        """Of the tokens, and whether neighbours in a batch are independent. The last symbol is none."""
        joint = np.append(law, 0.0)
        of_texts, _, *of_neighbours = tests_of(np.where(tokens < 0, law.size, tokens)[:, None], joint)
        return [of_texts._replace(name="tokens", outcome=lambda i: f"token {i}" if i < law.size else "none"),
                *(one._replace(name="neighbours in a batch") for one in of_neighbours)]

    def has_law(self, name: str, row: Logits, **how: Any) -> Result:
        law = self.law(row, **how)
        return self.compared(name, self.tests(self.draws(row[None], self.planned(law), **how), law))

    def groups(self, law: Floats, top_p: float = 1.0, of: Optional[Floats] = None) -> tuple[npt.NDArray[np.int64], Floats]:
        """A group for each token, by its rank, and their law: 1, 1, 2, 4, 8, ... tokens, each in two by the id; the last
        id alone; and the tokens that may not come. -1: at the cut of top-p, not counted. of: the law before top-p."""
        order = np.argsort(-law, kind="stable")
        rank = np.empty(law.size, np.int64)
        rank[order] = np.arange(law.size)
        group = 2 * np.ceil(np.log2(rank + 1)).astype(np.int64) + np.arange(law.size) % 2
        last = int(group.max()) + 2
        group[-1], group[law <= 0] = last - 1, last
        if of is not None:
            order = np.argsort(-of, kind="stable")
            before = np.empty(law.size)
            before[order] = np.cumsum(of[order]) - of[order]
            cut = of[before < top_p].min()
            group[(np.abs(before - top_p) < AT_THE_CUT) | (np.abs(of - cut) < 1e-9 * cut)] = -1
        weights = np.bincount(group[group >= 0], law[group >= 0], last + 1)
        return group, weights / weights.sum()

    def has_law_in_groups(self, name: str, row: Logits, **how: Any) -> Result:
        law, top_p = self.law(row, **how), how.get("top_p", 1.0)
        before = self.law(row, **{**how, "top_p": 1.0}) if top_p < 1 else None
        group, weights = self.groups(law, top_p, before)
        rank = np.argsort(np.argsort(-law, kind="stable"), kind="stable")
        tokens = self.draws(row[None], self.planned(weights), **how)
        seen = np.where(tokens < 0, weights.size, group[tokens])
        said = [f"{count} tokens of rank {int(np.median(rank[group == k])) if count else 0}"
                for k, count in enumerate(np.bincount(group[group >= 0], minlength=weights.size))]
        said[-2:] = "the last id", "tokens that may not come"
        first, *others = self.tests(seen[seen >= 0], weights)
        return self.compared(name, [first._replace(outcome=lambda i: said[i] if i < len(said) else "none"), *others])

    def exact(self, name: str, wrong: list[str], n: int) -> Result:
        """A check without chance of n rows."""
        return Result(name, DOES_NOT if wrong else FITS, f"{len(wrong)} of {n}: {wrong[0]}" if wrong else "", n, finds=share(n))


def law(**how: Any) -> Callable[[Checks, str], Result]:
    """The law of a small row, at settings."""
    return lambda checks, name: checks.has_law(name, checks.small(), **how)


def large(**how: Any) -> Callable[[Checks, str], Result]:
    """That of a large one, in groups."""
    def run(checks: Checks, name: str) -> Result:
        row = checks.large()
        return checks.has_law_in_groups(name, rounded(row, how["dtype"]) if "dtype" in how else row, **how)
    return run


def shifted(checks: Checks, name: str) -> Result:
    return checks.has_law(name, checks.small() + np.float32(1000))


def minus_infinity(checks: Checks, name: str) -> Result:
    row = checks.small()
    row[[0, 4, SMALL - 1]] = -np.inf
    return checks.has_law(name, row)


def mask(checks: Checks, name: str) -> Result:
    kept = np.ones(SMALL, bool)
    row = checks.small()
    kept[[int(row.argmax()), 2, SMALL - 1]] = False
    return checks.has_law(name, row, mask=kept)


def rows_of_a_batch(checks: Checks, name: str) -> Result:
    rows = np.stack([checks.small(), checks.small()])
    laws = [checks.law(row) for row in rows]
    tokens = checks.draws(rows, 2 * max(checks.planned(one) for one in laws))
    return checks.compared(name, [test for k in (0, 1) for test in checks.tests(tokens[k::2], laws[k])])


def most_likely(**how: Any) -> Callable[[Checks, str], Result]:
    """Only the most likely token is left."""
    def run(checks: Checks, name: str) -> Result:
        wrong, n = [], 0
        for rows in np.stack([checks.small() for _ in range(256)]), np.stack([checks.large() for _ in range(16)]):
            tokens = checks.tokens(rows, checks.settings(len(rows), **how))
            wrong += [f"emits {token}, where {due} is due" for token, due in zip(tokens, rows.argmax(1)) if token != due]
            n += len(rows)
        return checks.exact(name, wrong, n)
    return run


def sizes(checks: Checks, name: str) -> Result:
    """One token has the whole mass: the first, the last, one between."""
    wrong, n = [], 0
    for size in (1, 2, 3, 5, 31, 127, 257, 1003, checks.vocabulary):
        due = np.array(sorted({0, size - 1, size // 2, size // 16 * 16 - (size >= 16)}))
        rows = np.zeros((len(due), size), np.float32)
        rows[np.arange(len(due)), due] = 60
        tokens = checks.tokens(rows, checks.settings(len(due)))
        wrong += [f"V = {size}: emits {token}, where {one} is due" for token, one in zip(tokens, due) if token != one]
        n += len(due)
    return checks.exact(name, wrong, n)


def ties_at_0(checks: Checks, name: str) -> Result:
    wrong = []
    rows = np.stack([checks.small() for _ in range(256)])
    for row in rows:
        row[checks.random.permutation(SMALL)[:3]] = row.max() + 1
    tokens = checks.tokens(rows, checks.settings(len(rows), temperature=0.0))
    for token, row in zip(tokens, rows):
        if token < 0 or row[token] != row.max():
            wrong.append(f"emits {token}, where one of {np.flatnonzero(row == row.max()).tolist()} is due")
    return checks.exact(name, wrong, len(rows))


def ties(**how: Any) -> Callable[[Checks, str], Result]:
    """Four tokens are tied, of which the cut keeps two: any two, or, as many samplers do, all four."""
    def run(checks: Checks, name: str) -> Result:
        p = np.array([0.28, 0.2] + [0.11] * 4 + [0.04, 0.04])
        places = checks.random.permutation(p.size)
        row = np.full(p.size, np.nan)
        row[places] = np.log(p)
        tied = sorted(int(one) for one in places[2:6])
        conventions = [(f"keeps {list(two)} of the tied {tied}", two) for two in itertools.combinations(tied, 2)]
        tokens, best = None, None
        for said, kept in [*conventions, (f"keeps all of the tied {tied}", tuple(tied))]:
            one = np.zeros(p.size)
            for token in (*places[:2], *kept):
                one[token] = np.exp(row[token])
            one /= one.sum()
            if tokens is None:
                tokens = checks.draws(row.astype(np.float32)[None], checks.planned(one), **how)
            result = checks.compared(name, checks.tests(tokens, one))
            if result.verdict == FITS:
                return result._replace(seen=said)
            if best is None or (result.distance or 0) < (best.distance or 0):
                best = result
        assert best
        return best
    return run


def seeds(checks: Checks, name: str) -> Result:
    n, others = 64, 29
    rows = np.stack([checks.small() for _ in range(n + others)])
    settings = checks.settings(n + others)

    def drawn(chosen: Any) -> Tokens:
        at = np.asarray(chosen)
        return checks.tokens(np.ascontiguousarray(rows[at]), Settings(settings.seeds[at], settings.positions[at]))

    own = np.arange(n)
    together = drawn(own)
    elsewhere = {"again": drawn(own), "in the reversed batch": drawn(own[::-1])[::-1],
                 "in company, in another slot": drawn(np.concatenate([np.arange(n, n + others), own]))[others:],
                 "alone": np.concatenate([drawn([one]) for one in own])}
    wrong = [f"row {i}: {together[i]} in a batch, {tokens[i]} {where}" for where, tokens in elsewhere.items()
             for i in np.flatnonzero(tokens != together)]
    return checks.exact(name, wrong, n)


def log_probabilities(dtype: str = "float32", temperature: float = 0.7) -> Callable[[Checks, str], Result]:
    """Those of the tokens that are emitted."""
    def run(checks: Checks, name: str) -> Result:
        how: dict[str, Any] = {"temperature": temperature} if "temperature" in checks.sampler.has else {}
        worst, wrong, n = 0.0, [], 0
        for row in (checks.small(), checks.large()):
            if dtype != "float32":
                row = rounded(row, dtype)
            settings = checks.settings(64, dtype=dtype, **how)
            tokens, logs = checks.both(np.ascontiguousarray(np.resize(row, (64, row.size))), settings)
            if logs is None or np.shape(logs) != (64,):
                return Result(name, DOES_NOT, "returns none")
            due = np.log(checks.law(row, **how))[tokens]
            worst = max(worst, float(np.abs(np.asarray(logs, np.float64) - due).max()))
            wrong += [f"token {t}: {a:.4f}, where {b:.4f} is due" for t, a, b in zip(tokens, np.asarray(logs), due)
                      if not abs(a - b) < 1e-3]
            n += 64
        result = checks.exact(name, wrong, n)
        return result if wrong else result._replace(seen=f"largest error {worst:.1e}")
    return run


def invalid(value: float, whole: bool) -> Callable[[Checks, str], Result]:
    """A row that has no law stands between rows that have: it emits no token, or the call raises."""
    def run(checks: Checks, name: str) -> Result:
        rows = np.stack([checks.small() for _ in range(32)])
        bad = np.arange(32) % 2 == 1
        if whole:
            rows[bad] = value
        else:
            rows[bad, 5] = value
        try:
            tokens = checks.tokens(rows, checks.settings(32))
        except Exception as failure:
            return Result(name, FITS, f"raises {error_of(failure)[:80]}", 16, finds=share(16))
        wrong = [f"emits {token}" for token in tokens[bad] if token >= 0]
        wrong += ["a row beside it emits nothing" for token in tokens[~bad] if token < 0]
        return checks.exact(name, wrong, 16)
    return run


def model(*seed: int, size: int = 4) -> Any:
    """A row of logits after each prefix."""
    known: dict[Any, Logits] = {}

    def row(prefix: tuple[int, ...]) -> Logits:
        if prefix not in known:
            rng = np.random.default_rng([*seed, *(token + 1 for token in prefix)])
            known[prefix] = rng.normal(-3, 1.2, size).astype(np.float32)
        return known[prefix]
    return row


def coin(prefix: tuple[int, ...]) -> Logits:
    """Two ids, of which drafts are always the first: whether a round used its random numbers again shows most here."""
    return np.log(np.array([0.6, 0.4], np.float32))


def rounds(sampled: bool = True, short: bool = False, same: bool = False, two: bool = False, **how: Any) -> Callable[[Checks, str], Result]:
    """Whole texts that rounds of drafts wrote. short: drafts of 0 to 2 tokens, padded with -1. same: q is p, so that every
    draft is accepted. two: the rows are coin()."""
    def run(checks: Checks, name: str) -> Result:
        size, length, gamma = (3, 4, 1) if same else (4, 3, 2)
        p, q, verify = model(checks.seed, 1, size=size), model(checks.seed, 2, size=size), checks.sampler.verify
        assert verify
        if two:
            p = q = coin

        def engine(**settings: Any) -> Any:
            def step(drafts: Tokens, of_q: Any, of_p: Any, row_seeds: Any, positions: Tokens) -> Any:
                return verify(drafts, of_q, of_p, Settings(row_seeds, positions, **settings))

            def draft(prefix: tuple[int, ...]) -> Any:
                return None if short and (sum(prefix) + len(prefix)) % 3 == 1 else p(prefix) if same else q(prefix)

            s = Settings(np.zeros(0, np.uint64), np.zeros(0, np.int64), **settings)
            sampling = Sampling(s.temperature, s.top_k, s.top_p, s.min_p, checks.sampler.order)
            return sampling, in_rounds(step, draft, p, length=length, gamma=gamma, sampled=sampled, rows="logits",
                                       sampling=sampling)

        sampling, texts = engine(**how)
        greedy = engine(temperature=0.0)[1] if {"greedy", "draft_filters"} <= checks.sampler.has and sampled else None
        return of_texts(name, texts, p, rows="logits", sampling=sampling, tv=checks.tv, length=length, greedy=greedy,
                        seeded="seeds" in checks.sampler.has, batch=checks.sampler.most,
                        first_seed=checks.settings(100_000).seeds[0].item(), false_alarm=checks.level)
    return run


PARENTS = (0, 0, 1, 1, 2)  # of a tree: two tokens after the text, two after the first of them, one after the second


def rows_after(row: Any, codes: Tokens, size: int) -> Logits:
    """The rows after texts, whose codes are numbers with a digit 1 to size for each token."""
    different, of = np.unique(codes, return_inverse=True)
    texts = [tuple(int(one) - 1 for one in np.base_repr(code, size + 1)) if code else () for code in different]
    return np.array([row(text) for text in texts])[of.reshape(codes.shape)]


def trees(**how: Any) -> Callable[[Checks, str], Result]:
    """Whole texts that rounds of trees wrote."""
    def run(checks: Checks, name: str) -> Result:
        size, length, verify, proposed = 4, 3, checks.sampler.verify_tree, checks.sampler.proposed
        p, q = model(checks.seed, 4, size=size), model(checks.seed, 5, size=size)
        assert verify
        s = Settings(np.zeros(0, np.uint64), np.zeros(0, np.int64), **how)
        sampling = Sampling(s.temperature, s.top_k, s.top_p, s.min_p, checks.sampler.order)

        def engine(prompts: list[list[int]], seeds: list[int]) -> list[list[int]]:
            texts, active, all_seeds = [list(one) for one in prompts], np.arange(len(prompts)), np.array(seeds, np.uint64)
            while active.size:
                of, at = all_seeds[active], np.array([len(texts[b]) for b in active])
                codes = np.zeros((active.size, len(PARENTS) + 1), np.int64)
                codes[:, 0] = [functools.reduce(lambda code, one: code * (size + 1) + one + 1, texts[b], 0) for b in active]
                tokens = np.zeros((active.size, len(PARENTS)), np.int64)
                for i, parent in enumerate(PARENTS):
                    row = rows_after(q, codes[:, parent], size)
                    for j in range(i if proposed != "independent" else 0):
                        if PARENTS[j] == parent:
                            row[np.arange(len(row)), tokens[:, j]] = -np.inf
                    tokens[:, i] = row.argmax(1) if proposed == "top" else draw(
                        row, step=i, rows=RowsOf("logits", sampling), streams=Streams(of, at.astype(np.uint32), requests=0))
                    codes[:, i + 1] = codes[:, parent] * (size + 1) + tokens[:, i] + 1
                given = verify(tokens, np.tile(PARENTS, (active.size, 1)), None if proposed == "top" else rows_after(q, codes, size),
                               rows_after(p, codes, size), Settings(of, at, **how))
                emitted = [[int(one) for one in text if one >= 0] for text in given]
                for b, text in zip(active, emitted):
                    texts[b] += text
                active = active[[len(text) > 0 and len(texts[b]) < length for b, text in zip(active, emitted)]]
            return texts

        return of_texts(name, engine, p, rows="logits", sampling=sampling, tv=checks.tv, length=length,
                        seeded="seeds" in checks.sampler.has, batch=checks.sampler.most,
                        first_seed=checks.settings(100_000).seeds[0].item(), false_alarm=checks.level)
    return run


def wrong_ids(checks: Checks, name: str) -> Result:
    """Drafts with ids outside the vocabulary: refused, or rejected."""
    size, p = 5, model(checks.seed, 3, size=5)
    due = checks.law(p(()))
    n = checks.planned(due)
    rows = np.ascontiguousarray(np.broadcast_to(np.stack([p(()), p((0,))]), (n, 2, size)))
    settings, drafts = checks.settings(n), np.where(np.arange(n) % 2, size + 5, -7)[:, None]
    assert checks.sampler.verify
    try:
        given = checks.sampler.verify(drafts, np.zeros((n, 1, size), np.float32), rows, settings)
    except Exception as failure:
        return Result(name, FITS, f"raises {error_of(failure)[:80]}", n, finds=share(n))
    texts = [[int(one) for one in text] for text in given]
    outside = [f"emits {text}" for text in texts if any(not -1 <= one < size for one in text)]
    first = np.array([text[0] if text else -1 for text in texts], np.int64)
    if outside or (first < 0).all():
        return checks.exact(name, outside, n)
    return checks.compared(name, checks.tests(first, due))


def no_support(checks: Checks, name: str) -> Result:
    """Drafted tokens whose q is 0, and p 0.2: accepted at most as often as p says, which a rule that does not read q does."""
    n, at = 200, np.arange(200)
    drafts = (at % 5)[:, None]
    q = np.zeros((n, 1, 5), np.float32)
    q[at, 0, drafts[:, 0]] = -np.inf
    assert checks.sampler.verify
    try:
        given = checks.sampler.verify(drafts, q, np.zeros((n, 2, 5), np.float32), checks.settings(n))
    except Exception as failure:
        return Result(name, FITS, f"raises {error_of(failure)[:80]}", n, finds=share(n))
    accepted = sum(len(text) > 1 and min(int(one) for one in text[:2]) >= 0 for text in given)
    # 0.62: more than half of 200 are then accepted with probability 0.999; with 0.2, in 1e-21 of the runs
    return Result(name, DOES_NOT if 2 * accepted > n else FITS, f"accepts {accepted} of {n}", n, finds=0.62)


def wider_target(checks: Checks, name: str) -> Result:
    """The draft knows four ids, the target two more: the first token has the target's law."""
    row = checks.random.permutation(np.arange(6) * np.log(STEP)).astype(np.float32)
    due = checks.law(row)
    n = checks.planned(due)
    drafts = checks.random.integers(0, 4, (n, 1))
    assert checks.sampler.verify
    given = checks.sampler.verify(drafts, np.zeros((n, 1, 4), np.float32), np.ascontiguousarray(np.broadcast_to(row, (n, 2, 6))),
                                  checks.settings(n))
    first = np.array([int(text[0]) if len(text) else -1 for text in given], np.int64)
    return checks.compared(name, checks.tests(first, due))


def invalid_drafts(checks: Checks, name: str) -> Result:
    """Drafts whose rows of p have a NaN stand between those of rows that have a law."""
    rng, n = checks.random, 32
    q, p = (rng.normal(0, 1, (n, length, 5)).astype(np.float32) for length in (1, 2))
    bad = np.arange(n) % 2 == 1
    p[bad, :, 3] = np.nan
    assert checks.sampler.verify
    try:
        given = checks.sampler.verify(rng.integers(0, 5, (n, 1)), q, p, checks.settings(n))
    except Exception as failure:
        return Result(name, FITS, f"raises {error_of(failure)[:80]}", 16, finds=share(16))
    texts = [[int(one) for one in text if one >= 0] for text in given]
    wrong = [f"emits {text}" for text, is_bad in zip(texts, bad) if is_bad and text]
    wrong += ["a row beside it emits nothing" for text, is_bad in zip(texts, bad) if not is_bad and not text]
    return checks.exact(name, wrong, 16)


T_K_P = dict(temperature=1.6, top_k=7, top_p=0.68)
ALL: list[tuple[str, str, Callable[[Checks, str], Result]]] = [
    ("law", "", law()),
    ("rows of a batch", "", rows_of_a_batch),
    ("T 0.6", "temperature", law(temperature=0.6)),
    ("T 2", "temperature", law(temperature=2.0)),
    ("T 0", "greedy", most_likely(temperature=0.0)),
    ("top-k 4", "top_k", law(top_k=4)),
    ("top-k 1", "top_k", most_likely(top_k=1)),
    ("top-p 0.68", "top_p", law(top_p=0.68)),
    ("top-p 0.01", "top_p", most_likely(top_p=0.01)),
    ("min-p 0.33", "min_p", law(min_p=0.33)),
    ("min-p 0.99", "min_p", most_likely(min_p=0.99)),
    ("order: T, top-p", "temperature top_p", law(temperature=1.6, top_p=0.68)),
    ("order: T, top-k, top-p", "temperature top_k top_p", law(**T_K_P)),
    ("order: T, top-p, min-p", "temperature top_p min_p", law(temperature=1.6, top_p=0.8, min_p=0.33)),
    ("order: all", "temperature top_k top_p min_p", law(**T_K_P, min_p=0.4)),
    ("repetition 1.5", "repetition", law(repetition=1.5, history=HISTORY)),
    ("presence 0.7", "presence", law(presence=0.7, history=HISTORY)),
    ("frequency 0.4", "frequency", law(frequency=0.4, history=HISTORY)),
    ("mask", "mask", mask),
    ("logits of -inf", "", minus_infinity),
    ("logits near 1,000", "", shifted),
    ("one likely token, V 1 to large", "", sizes),
    ("ties, T 0", "greedy", ties_at_0),
    ("ties, top-k", "top_k", ties(top_k=4)),
    ("ties, top-p", "top_p", ties(top_p=0.65)),
    ("large row, T 1", "", large()),
    ("large row, top-k 50", "top_k", large(top_k=50)),
    ("large row, top-p 0.9", "top_p", large(top_p=0.9)),
    ("large row in float16, T 1", "float16", large(dtype="float16")),
    ("large row in float16, top-p 0.9", "float16 top_p", large(dtype="float16", top_p=0.9)),
    ("large row in bfloat16, T 1", "bfloat16", large(dtype="bfloat16")),
    ("large row in bfloat16, top-p 0.9", "bfloat16 top_p", large(dtype="bfloat16", top_p=0.9)),
    ("seeds alone and in company", "seeds", seeds),
    ("log-probabilities", "log_probabilities", log_probabilities()),
    ("log-probabilities, bfloat16", "log_probabilities bfloat16", log_probabilities("bfloat16")),
    ("log-probabilities of rows", "model_log_probabilities", log_probabilities(temperature=1.0)),
    ("log-probabilities of rows, bfloat16", "model_log_probabilities bfloat16", log_probabilities("bfloat16", 1.0)),
    ("drafts, T 1", "drafts", rounds()),
    ("drafts, T 0.7, top-k 3", "drafts draft_filters", rounds(temperature=0.7, top_k=3)),
    ("drafts, T 1.6, top-p 0.7", "drafts draft_filters", rounds(temperature=1.6, top_p=0.7)),
    ("drafts chosen without chance", "one_hot", rounds(sampled=False)),
    ("drafts chosen without chance, two ids", "one_hot", rounds(sampled=False, two=True)),
    ("drafts, all accepted", "drafts bonus", rounds(same=True)),
    ("drafts padded with -1", "drafts padding", rounds(short=True)),
    ("trees, T 1", "trees", trees()),
    ("trees, T 0.7, top-k 3", "trees draft_filters", trees(temperature=0.7, top_k=3)),
    ("drafted ids outside", "wrong_ids", wrong_ids),
    ("drafted token with q of 0", "no_support bonus", no_support),
    ("target's vocabulary larger", "drafts wider_target", wider_target),
    ("drafts, rows with NaN", "invalid_drafts", invalid_drafts),
    ("row with NaN", "invalid", invalid(np.nan, False)),
    ("row of -inf", "invalid", invalid(-np.inf, True)),
]


def checks_of(has: Iterable[str]) -> list[Check]:
    """All checks. Rows that have no law come last: a sampler may end there."""
    return [Check(name, frozenset(needs.split()), run) for name, needs, run in ALL]
