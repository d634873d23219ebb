# SPDX-License-Identifier: Apache-2.0
"""Does an engine emit the tokens that it should? assert_lossless() and assert_law(), for an engine's own tests.

An engine is any callable `engine(prompts, seeds)` that returns one text for each prompt: the ids that follow it. The
models are tiny: `target(prefix)` gives the row after a prefix. The law of whole short texts, which several rounds of
drafting wrote, is enumerated from the rows, and the engine's texts are compared with it. docs/audit.md says what is
tested and what the level and the planned number of texts promise. in_rounds() makes an engine of a verifier alone.
Pytest has it as the fixture specagg_conformance (specagg.pytest_plugin).
"""

from __future__ import annotations

from typing import Any, Callable, Optional, Sequence

import numpy as np
import numpy.typing as npt

from ._law import Floats
from ._policy import PolicyLike
from ._texts import Found, Ids, Rows, Text, branches_of, compare, law_of_texts, planned, tests_of
from ._verify import Rows as RowsOf, Sampling, Streams, _ids, draw

Engine = Callable[[list[list[int]], list[int]], Sequence[Sequence[int]]]
Step = Callable[[Ids, Optional[Floats], Floats, npt.NDArray[np.uint64], Ids], Any]


class _Runs:
    """The engine's texts, checked: [n, length], with V where there is no token."""

    def __init__(self, engine: Engine, prompt: Text, length: int, vocabulary: int) -> None:
        self.engine, self.prompt, self.length, self.vocabulary = engine, prompt, length, vocabulary

    def __call__(self, seeds: Sequence[int]) -> Ids:
        given = self.engine([list(self.prompt) for _ in seeds], list(seeds))
        if len(given) != len(seeds):
            raise ValueError(f"engine: expected {len(seeds)} texts, one for each prompt, not {len(given)}")
        texts = np.full((len(seeds), self.length), self.vocabulary, np.int64)
        for out, seed, text in zip(texts, seeds, given):
            ids = _ids(text, "engine")[:self.length]
            if ids.size and not 0 <= ids.min() <= ids.max() < self.vocabulary:
                raise AssertionError(f"seed {seed}: the text {ids.tolist()} has an id outside the vocabulary of "
                                     f"{self.vocabulary}")
            out[:ids.size] = ids
        return texts


def _assert_seeds(runs: _Runs, seeds: list[int]) -> None:
    """The text of a seed is the same in a batch, in the reversed batch, and alone."""
    together, others = runs(seeds), {"in the reversed batch": runs(seeds[::-1])[::-1],
                                     "alone": np.concatenate([runs([one]) for one in seeds])}
    for where, texts in others.items():
        differ = np.flatnonzero((texts != together).any(1))
        if differ.size:
            k = differ[0]
            raise AssertionError(f"{differ.size} of {len(seeds)} seeds give another text {where}: seed {seeds[k]}: "
                                 f"{together[k].tolist()} in a batch, {texts[k].tolist()} {where}")


def _assert_greedy(runs: _Runs, target: Rows, ends: Sequence[int]) -> None:
    """At temperature 0 each token is a most likely one."""
    none = runs.vocabulary
    for text in runs(range(1, 9)).tolist():
        for k, token in enumerate(text):
            row = np.asarray(target(runs.prompt + tuple(text[:k])) if none not in text[:k] else [np.nan])
            over = np.isnan(row).any() or (k and text[k - 1] in ends)
            likeliest = [none] if over else np.flatnonzero(row == row.max()).tolist()
            if token not in likeliest:
                seen, due = "nothing" if token == none else token, "nothing" if over else likeliest
                raise AssertionError(f"at temperature 0, after {text[:k]}: {seen}, where {due} is due")


def assert_law(engine: Engine, target: Rows, draft: Rows | None = None, policy: PolicyLike = "lossless", *,
               tv: float = 0.01, prompt: Sequence[int] = (), length: int = 3, rows: str = "probabilities",
               sampling: Sampling | None = None, bonus_from_target: int | None = None, end_of_text: Sequence[int] = (),
               seeded: bool = True, greedy: Engine | None = None, batch: int = 4096, first_seed: int = 1,
               false_alarm: float = 1e-6) -> Found:
    """Texts that `engine` writes with drafts have the law of the policy, or AssertionError says which have not.

    engine       engine(prompts, seeds) -> texts, one for each prompt, of at least `length` tokens; ask for more tokens,
                 so that the end of the text shortens no draft. Called with at most `batch` prompts, all the same.
                 Tokens after the first `length` are ignored. A text that has ended may be shorter
    target, draft  target(prefix) -> row [V] after the ids `prefix`, which begin with `prompt`; V is small. draft: the
                 row that the drafted token is drawn from, for policies that read it
    rows, sampling  what these are, as in verify(): "probabilities", or "logits" with temperature and filters
    tv           an engine whose law of texts is this far off (total variation) fails with probability 0.999 or more
    false_alarm  a right engine fails with at most this probability
    bonus_from_target  how many tokens each round drafts, if the token after an accepted draft has the target's law
    end_of_text  ids after which no token may come; as none may come after a row with NaN
    seeded       the text of a seed must not depend on company; False: the engine ignores seeds
    greedy       the same engine at temperature 0, whose tokens are the target's most likely, as with "lossless"

    ValueError, TypeError: arguments that cannot be used.
    """
    if not 0 < tv < 1 or not 0 < false_alarm < 1:
        raise ValueError(f"tv, false_alarm: expected numbers in (0, 1), not {tv} and {false_alarm}")
    if length < 1 or batch < 2:
        raise ValueError(f"length, batch: expected at least 1 and 2, not {length} and {batch}")
    start, ends = tuple(int(one) for one in prompt), [int(one) for one in end_of_text]
    vocabulary = np.asarray(target(start)).size
    if vocabulary**length > 100_000:
        raise ValueError(f"length: {vocabulary}^{length} texts are too many to count; expected at most 100000")
    drafted = bonus_from_target
    branches = branches_of(target, draft, policy, rows, sampling, drafted)
    joint = law_of_texts(branches, start, length, vocabulary, ends, drafted or 0)
    runs = _Runs(engine, start, length, vocabulary)
    if seeded:
        _assert_seeds(runs, list(range(first_seed, first_seed + 64)))
    if greedy is not None:
        _assert_greedy(_Runs(greedy, start, length, vocabulary), target, ends)
    n = planned(joint.reshape(-1), tv, false_alarm / 2)
    texts = np.concatenate([runs(range(first_seed + i, first_seed + min(i + batch, n))) for i in range(0, n, batch)])
    found, worst = compare(tests_of(texts, joint), false_alarm)
    if worst:
        failure = AssertionError(
            f"the texts do not have their law (p-value at most {found.p_value_bound:.2g}, level {false_alarm:g}; {n:,} texts "
            f"of {length} tokens after {list(start)}; total variation {found.distance:.4f}):\n" + "\n".join(worst))
        setattr(failure, "found", found)  # for specagg.conformance
        raise failure
    return found


def assert_lossless(engine: Engine, target: Rows, **how: Any) -> Found:
    """assert_law() with the target's own law: drafts change nothing but the time."""
    return assert_law(engine, target, None, "lossless", **how)


def in_rounds(step: Step, draft: Rows, target: Rows, *, length: int, gamma: int = 2, sampled: bool = True,
              rows: str = "probabilities", sampling: Sampling | None = None) -> Engine:
    """An engine of a verifier alone: rounds of gamma drafted tokens until each text has `length` tokens.

    step(drafts [B, gamma], q [B, gamma, V], p [B, gamma + 1, V], seeds [B], positions [B]) returns the emitted tokens
    of each text, [B, up to gamma + 1], padded with -1 at the end; if there are none, the text ends. A -1 before a token
    is an emitted one, which no audit passes. Rows are float32, and what `rows` and `sampling` say, as in assert_law();
    step gets them as they are. draft(prefix) may give None, or NaN: nothing is drafted there (-1, and zeros in q).
    sampled=False: drafts are the most likely tokens, and q is None.
    """
    known: dict[tuple[bool, Text], Any] = {}

    kind = RowsOf(rows, sampling)

    def row(of: Rows, prefix: Text) -> Any:
        key = of is draft, prefix
        if key not in known:
            found = of(prefix)
            known[key] = None if found is None else np.asarray(found, np.float32)
        return known[key]

    def propose(prefixes: list[Text], seeds: npt.NDArray[np.uint64], positions: Ids) -> tuple[Ids, Floats]:
        drafts = np.full((len(prefixes), gamma), -1, np.int64)
        some = next((r for r in (row(draft, x) for x in prefixes) if r is not None), row(target, prefixes[0]))
        blank = np.full_like(some, np.nan)
        q = np.tile(blank, (len(prefixes), gamma, 1))
        ahead = list(prefixes)
        for j in range(gamma):
            for b, prefix in enumerate(ahead):
                found = row(draft, prefix) if len(prefix) == len(prefixes[b]) + j else None
                q[b, j] = blank if found is None else found
            drafts[:, j] = np.where(np.isnan(q[:, j]).any(-1), -1, q[:, j].argmax(-1)) if not sampled else draw(
                q[:, j], step=j, rows=kind, streams=Streams(seeds, positions.astype(np.uint32), requests=0))
            ahead = [prefix + (int(d),) if d >= 0 else prefix for prefix, d in zip(ahead, drafts[:, j])]
        return drafts, np.where(np.isnan(q), np.float32(0), q)

    def unpadded(tokens: Any) -> Text:
        ids = [int(one) for one in tokens]
        return tuple(ids[:max((i + 1 for i, one in enumerate(ids) if one >= 0), default=0)])

    def engine(prompts: list[list[int]], seeds: list[int]) -> list[list[int]]:
        texts = [tuple(one) for one in prompts]
        active = list(range(len(texts)))
        while active:
            prefixes = [texts[b] for b in active]
            now, at = np.array([seeds[b] for b in active], np.uint64), np.array([len(x) for x in prefixes], np.int64)
            drafts, q = propose(prefixes, now, at)
            p = np.stack([[row(target, x + tuple(d[:j])) if (d[:j] >= 0).all() else row(target, x)
                           for j in range(gamma + 1)] for x, d in zip(prefixes, drafts)])
            emitted = [unpadded(tokens) for tokens in step(drafts, q if sampled else None, p, now, at)]
            for b, tokens in zip(active, emitted):
                texts[b] += tokens
            active = [b for b, tokens in zip(active, emitted)
                      if tokens and min(tokens) >= 0 and len(texts[b]) - len(prompts[b]) < length]
        return [list(text[len(prompt):]) for text, prompt in zip(texts, prompts)]

    return engine
