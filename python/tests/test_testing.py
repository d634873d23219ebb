# SPDX-License-Identifier: Apache-2.0
"""specagg.testing: faults that real samplers had are found, right samplers pass, level and power are as stated."""

from __future__ import annotations

import math
import os
import pathlib
import random
import re
from typing import Any

import numpy as np
import pytest

import flat
import specagg
from specagg import _texts
from specagg.testing import assert_law, assert_lossless, in_rounds

V, GAMMA = 6, 2


def model(seed: int) -> Any:
    """A row of six probabilities for each prefix."""
    rows: dict[Any, Any] = {}

    def row(prefix: Any) -> Any:
        prefix = tuple(prefix)
        if prefix not in rows:
            rng = np.random.default_rng([seed, *(x + 1 for x in prefix)])
            rows[prefix] = rng.dirichlet(np.ones(V)).tolist()
        return rows[prefix]

    return row


q_model, p_model = model(1), model(2)


def pick(weights: Any, coins: random.Random) -> int:
    u = coins.random() * sum(weights)
    for token, weight in enumerate(weights):
        u -= weight
        if u < 0:
            return token
    return max((v for v, weight in enumerate(weights) if weight > 0), default=0)


def excess(p: Any, q: Any) -> list[float]:
    return [max(a - b, 0.0) for a, b in zip(p, q)]


class Right:
    """Speculative decoding, one text after the other. Each fault below changes one method."""

    q, p = staticmethod(q_model), staticmethod(p_model)

    def __call__(self, prompts: Any, seeds: Any) -> Any:
        return [self.text(list(prompt), seed) for prompt, seed in zip(prompts, seeds)]

    def text(self, text: list[int], seed: int) -> list[int]:
        start, coins = len(text), self.coins(seed)
        while len(text) < start + 3:
            emitted = self.round(text, coins, seed)
            if not emitted:
                break
            text = text + emitted
        return text[start:]

    def coins(self, seed: int) -> random.Random:
        return random.Random(seed)

    def round(self, text: list[int], coins: Any, seed: int) -> list[int]:
        return self.verify(text, *self.propose(text, coins), coins)

    def propose(self, text: list[int], coins: Any) -> Any:
        drafts, rows = [], []
        for _ in range(GAMMA):
            rows.append(self.q(text + drafts))
            drafts.append(pick(rows[-1], coins))
        return drafts, rows

    def verify(self, text: list[int], drafts: Any, rows: Any, coins: Any) -> list[int]:
        out: list[int] = []
        for d, q in zip(drafts, rows):
            p = self.at_draft(text + out)
            if math.isnan(p[0]):
                return out
            if not self.accepts(p[d], q[d], coins):
                return out + [self.replacement(p, q, coins)]
            out.append(d)
        return out + self.bonus(text + out, coins)

    def at_draft(self, text: list[int]) -> Any:
        return self.p(text)

    def accepts(self, p: float, q: float, coins: Any) -> bool:
        return bool(coins.random() * q < p)

    def replacement(self, p: Any, q: Any, coins: Any) -> int:
        return pick(excess(p, q), coins)

    def bonus(self, text: list[int], coins: Any) -> list[int]:
        p = self.p(text)
        return [] if math.isnan(p[0]) else [pick(p, coins)]


class Lookup(Right):
    """Drafts without a model: the most likely token of q, a deterministic choice."""

    def propose(self, text: list[int], coins: Any) -> Any:
        drafts: list[int] = []
        for _ in range(GAMMA):
            drafts.append(int(np.argmax(self.q(text + drafts))))
        return drafts, [[float(v == d) for v in range(V)] for d in drafts]


class Block(Lookup):
    """Block verification of such drafts (Sun et al. 2025), coins of its own in each round."""

    def coin(self, coins: Any, seed: int, position: int) -> float:
        return float(coins.random())

    def round(self, text: list[int], coins: Any, seed: int) -> list[int]:
        (drafts, rows), weight, kept, left = self.propose(text, coins), 1.0, 0, self.p(text)
        left = excess(left, rows[0])
        for i, d in enumerate(drafts):
            weight = min(1.0, weight * self.p(text + drafts[:i])[d])
            after = self.p(text + drafts[:i + 1])
            rest = [weight * a for a in after] if i + 1 == GAMMA else excess([weight * a for a in after], rows[i + 1])
            h = weight if i + 1 == GAMMA else sum(rest) / (sum(rest) + 1 - weight)
            if self.coin(coins, seed, len(text) + i) < h:
                kept, left = i + 1, rest
        return drafts[:kept] + [pick(left, coins)]


# ---- faults of real samplers ----------------------------------------------------------------------


class DividedByGarbage(Right):
    """vLLM's CPU backend 0.32.0: the temperature of drafted positions is memory that nobody wrote."""

    def at_draft(self, text: list[int]) -> Any:
        hot = [x**0.25 for x in self.p(text)]
        return [x / sum(hot) for x in hot]


class CoinsOfPositions(Block):
    """vLLM 0.32.0, model runner V2, block: the next round has the coins of this one at the same positions."""

    def coin(self, coins: Any, seed: int, position: int) -> float:
        return random.Random(seed * 1000 + position).random()


class DraftsWithoutSeed(Right):
    """vLLM 0.32.0, V1, probabilistic drafts: drawn with the process's random numbers."""

    def propose(self, text: list[int], coins: Any) -> Any:
        return super().propose(text, random)


class ZeroAccepted(Lookup):
    """vLLM 0.33.0, model runner V2: a drafted token with q = 0 is always accepted."""

    def accepts(self, p: float, q: float, coins: Any) -> bool:
        return True


class SmallerVocabulary(Right):
    """vLLM: min(V_target, V_draft): what the draft model has not is never emitted."""

    @staticmethod
    def q(prefix: Any) -> Any:
        row = q_model(prefix)[:4]
        return [x / sum(row) for x in row] + [0.0, 0.0]

    def replacement(self, p: Any, q: Any, coins: Any) -> int:
        return pick(excess(p[:4], q[:4]), coins)

    def bonus(self, text: list[int], coins: Any) -> list[int]:
        return [pick(self.p(text)[:4], coins)]


def broken(prefix: Any) -> Any:
    """The target's row, which is NaN after token 1."""
    return [math.nan] * V if prefix and prefix[-1] == 1 else p_model(prefix)


class RightOfBroken(Right):
    p = staticmethod(broken)


class EmitsAfterNaN(RightOfBroken):
    """vLLM 0.33.0, model runner V2: a row of NaN emits a token."""

    def bonus(self, text: list[int], coins: Any) -> list[int]:
        return super().bonus(text, coins) or [0]


class AcceptsAtNaN(RightOfBroken):
    """SGLang 0.5.23, block: min(NaN, 1) is 1, so that every draft is accepted."""

    def at_draft(self, text: list[int]) -> Any:
        row = self.p(text)
        return [1.0] * V if math.isnan(row[0]) else row


class PaddingEmitted(Right):
    """SGLang 0.5.23: the drafted id -1, which pads a short draft, reads the row before and is emitted."""

    def propose(self, text: list[int], coins: Any) -> Any:
        drafts, rows = super().propose(text, coins)
        return [drafts[0], -1], rows


class Ensemble(Right):
    """The policy ensemble with lambda 0.5, by token verification."""

    def at_draft(self, text: list[int]) -> Any:
        return [(a + b) / 2 for a, b in zip(self.q(text), self.p(text))]

    def bonus(self, text: list[int], coins: Any) -> list[int]:
        return [pick(self.at_draft(text), coins)]


class BonusFromTarget(Ensemble):
    """transformers 5.19: the token after an accepted draft is drawn from p, not from the ensemble."""

    def bonus(self, text: list[int], coins: Any) -> list[int]:
        return Right.bonus(self, text, coins)


class PadInText(Ensemble):
    """transformers 5.19: after a token that is also the pad id, the draft model's rows are not those of the text."""

    @staticmethod
    def q(prefix: Any) -> Any:
        return q_model([token for token in prefix if token != 0])


class DraftTooShort(Right):
    """llama.cpp, n_min 2 with p_min: a drawn draft is thrown away if the row after it is not confident."""

    def propose(self, text: list[int], coins: Any) -> Any:
        drafts, rows = super().propose(text, coins)
        return (drafts, rows) if max(rows[1]) > 0.5 else ([], [])


class GrammarRedrawn(Right):
    """local-inference-lab/vllm 476: where the grammar forbids the drafted token, one is drawn from p."""

    @staticmethod
    def p(prefix: Any) -> Any:
        row = p_model(prefix)[:4]
        return [x / sum(row) for x in row] + [0.0, 0.0]

    def propose(self, text: list[int], coins: Any) -> Any:
        drafts, rows = super().propose(text, coins)
        valid = next((i for i, d in enumerate(drafts) if d >= 4), GAMMA)
        return drafts[:valid], rows[:valid]


class ReadsItsToken(Right):
    """Stops at a drafted token that the draft model is not confident of, and drops this token."""

    def propose(self, text: list[int], coins: Any) -> Any:
        drafts, rows = super().propose(text, coins)
        kept = next((i for i in range(GAMMA) if rows[i][drafts[i]] < 0.4), GAMMA)
        return drafts[:kept], rows[:kept]


class ResidualFromTarget(Right):
    """A rejected token is replaced by one drawn from p."""

    def replacement(self, p: Any, q: Any, coins: Any) -> int:
        return pick(p, coins)


class BonusFromDraft(Right):
    def bonus(self, text: list[int], coins: Any) -> list[int]:
        return [pick(self.q(text), coins)]


class SharedCoins(Right):
    """Two requests have the same coins: every text alone has its law, and depends on no company."""

    def coins(self, seed: int) -> random.Random:
        return random.Random(seed // 2)


class SeedOfSlot(Right):
    """The random numbers of a request are those of its place in the batch."""

    def __call__(self, prompts: Any, seeds: Any) -> Any:
        return [self.text(list(prompt), seeds[0] + slot) for slot, prompt in enumerate(prompts)]


ensemble = dict(draft=q_model, policy="ensemble:lambda=0.5")
faults = [
    (DividedByGarbage, {}, "after "), (CoinsOfPositions, {}, "after "),
    (DraftsWithoutSeed, {}, "seeds give another text"), (DraftsWithoutSeed, {"seeded": False}, None),
    (ZeroAccepted, {}, "after "), (SmallerVocabulary, {}, r"after \[\]"),
    (EmitsAfterNaN, {"target": broken}, "after "), (AcceptsAtNaN, {"target": broken}, "after "),
    (PaddingEmitted, {}, "outside the vocabulary"), (BonusFromTarget, ensemble, r"after \["),
    (PadInText, ensemble, r"after \[0"), (DraftTooShort, {}, r"after \[\]"),
    (GrammarRedrawn, {"target": GrammarRedrawn.p}, r"after \[\]"),
    (ReadsItsToken, {}, r"after \[\]"), (ResidualFromTarget, {}, r"after \[\]"), (BonusFromDraft, {}, "token 3"),
    (SharedCoins, {}, "neighbours"), (SeedOfSlot, {}, "seeds give another text"),
]


@pytest.mark.parametrize("fault, how, message", faults, ids=lambda one: getattr(one, "__name__", ""))
def test_a_fault_is_found(fault: Any, how: Any, message: str | None) -> None:
    how = {"target": p_model, "tv": 0.1, **how}
    if message is None:  # only the seeds are wrong
        assert_law(fault(), **how)
        return
    with pytest.raises(AssertionError, match=message):
        assert_law(fault(), **how)


@pytest.mark.parametrize("engine, how", [
    (Right, {}), (Lookup, {}), (Block, {}), (RightOfBroken, {"target": broken}), (Ensemble, ensemble),
    (BonusFromTarget, {**ensemble, "bonus_from_target": GAMMA})], ids=lambda one: getattr(one, "__name__", ""))
def test_right_engines_pass(engine: Any, how: Any) -> None:
    found = assert_law(engine(), **{"target": p_model, "tv": 0.1, **how})
    assert found.detectable <= 0.1 and found.p_value_bound > 1e-6


def test_a_right_engine_is_refused_in_none_of_a_hundred_runs() -> None:
    for run in range(100 if os.environ.get("CI") else 300):
        assert_lossless(Right(), p_model, tv=0.3, first_seed=1 + 10_000 * run)


# ---- the other tests of the family -----------------------------------------------------------------


class Greedy(Right):
    """At temperature 0; wrong: the first drafted token is kept."""

    wrong = False

    def text(self, text: list[int], seed: int) -> list[int]:
        start = len(text)
        while len(text) < start + 3:
            text = text + [int(np.argmax((self.q if self.wrong else self.p)(text)))]
        return text[start:]


def test_temperature_0_is_exact() -> None:
    assert_lossless(Right(), p_model, greedy=Greedy(), tv=0.3)
    wrong = Greedy()
    wrong.wrong = True
    with pytest.raises(AssertionError, match=r"at temperature 0, after \[\]: \d, where \[\d\] is due"):
        assert_lossless(Right(), p_model, greedy=wrong, tv=0.3)


class Ends(Right):
    """Ends a text after token 1; late: also writes the token after it."""

    late = 0

    def text(self, text: list[int], seed: int) -> list[int]:
        text = super().text(text, seed)
        return text[:text.index(1) + 1 + self.late] if 1 in text else text


def test_a_text_ends_where_it_should() -> None:
    assert_lossless(Ends(), p_model, tv=0.3, end_of_text=[1])
    late = Ends()
    late.late = 1
    for engine, ends, message in (late, [1], "whole texts"), (Ends(), [], "none"), (Right(), [1], "whole texts"):
        with pytest.raises(AssertionError, match=message):
            assert_lossless(engine, p_model, tv=0.3, end_of_text=ends)


def test_a_prompt_stands_before_each_text() -> None:
    assert_lossless(Right(), p_model, prompt=[2, 0, 5], tv=0.3)
    with pytest.raises(AssertionError, match=r"after \[2, 0, 5\]"):
        assert_lossless(lambda prompts, seeds: Right()([[]] * len(seeds), seeds), p_model, prompt=[2, 0, 5], tv=0.3)


def test_what_a_failure_says() -> None:
    with pytest.raises(AssertionError) as failure:
        assert_lossless(ResidualFromTarget(), p_model, tv=0.2)
    first, *lines = str(failure.value).splitlines()
    assert "p-value at most" in first and "level 1e-06" in first and "texts of 3 tokens after []" in first
    assert any(line.startswith("  after [") and "expected 0." in line and "seen 0." in line for line in lines)


@pytest.mark.parametrize("how, message", [
    ({"tv": 0}, "tv, false_alarm: expected numbers in"), ({"false_alarm": 1.5}, "tv, false_alarm"),
    ({"length": 0}, "length, batch"), ({"batch": 1}, "length, batch"),
    ({"length": 7}, "length: 6\\^7 texts are too many"),
    ({"target": lambda prefix: [0.5, 0.2]}, r"target, draft: the rows after \[\]: law: "),
    ({"policy": "nonsense"}, "nonsense"), ({"engine": lambda prompts, seeds: []}, "engine: expected 64 texts"),
    ({"engine": lambda prompts, seeds: [[0.5]] * len(prompts)}, "engine: expected token ids")])
def test_arguments_that_cannot_be_used(how: Any, message: str) -> None:
    with pytest.raises((ValueError, TypeError), match=message):
        assert_law(**{"engine": Right(), "target": p_model, "tv": 0.3, **how})


# ---- level and power --------------------------------------------------------------------------------

more = 1 if os.environ.get("CI") else 5


def found_in(law: Any, truth: Any, n: int, false_alarm: float, rng: Any) -> bool:
    """Whether texts drawn from `truth` are refused as texts of `law`."""
    places = np.unravel_index(rng.choice(law.size, n, p=truth.reshape(-1)), law.shape)
    return bool(_texts.compare(_texts.tests_of(np.stack(places, -1), law), false_alarm)[1])


def law_of(length: int) -> Any:
    branches = _texts.branches_of(p_model, None, "lossless", "probabilities", None, None)
    return _texts.law_of_texts(branches, (), length, V, [], 0)


def test_a_right_engine_fails_with_at_most_the_stated_probability() -> None:
    rng, law, runs = np.random.default_rng(5), law_of(3), 100 * more
    for n in (60, 2000):
        refused = sum(found_in(law, law, n, 0.5, rng) for _ in range(runs))
        assert refused <= 0.5 * runs  # the tests together; each at this level would refuse nearly all


@pytest.mark.parametrize("length, tv", [(1, 0.05), (2, 0.1), (3, 0.2)])
def test_an_engine_at_the_stated_distance_is_found(length: int, tv: float) -> None:
    rng, law = np.random.default_rng(6), law_of(length)
    n = _texts.planned(law.reshape(-1), tv, 0.5e-6)
    fits = [specagg.goodness_of_fit(np.zeros((m, length), int), law, 0.5e-6).detectable for m in (n, int(0.97 * n))]
    assert fits[0] <= tv < fits[1]  # no fewer texts would do
    flat = law.reshape(-1)
    order = np.flatnonzero(flat > 0)
    up, down = order[::2], order[1::2]  # spread over all texts, which is hardest to see
    truth = flat.copy()
    truth[up] *= 1 + tv / flat[up].sum()
    truth[down] *= 1 - tv / flat[down].sum()
    assert np.abs(truth - flat).sum() / 2 == pytest.approx(tv) and truth.min() >= 0
    missed = sum(not found_in(law, truth.reshape(law.shape), n, 1e-6, rng) for _ in range(40 * more))
    assert missed == 0  # 0.001 of them are expected at most


def test_the_page_says_how_many_texts() -> None:
    page = (pathlib.Path(__file__).resolve().parents[2] / "docs/audit.md").read_text()
    number = r"([\d,]+)"
    said = re.search(rf"equally likely tokens:\s+{number} for 0.2, {number} for 0.1, {number} for 0.05 and\s+{number}\s+for 0.01", page)
    assert said
    found = [_texts.planned(np.full(V**3, V**-3.0), tv, 0.5e-6) for tv in (0.2, 0.1, 0.05, 0.01)]
    assert [int(one.replace(",", "")) for one in said.groups()] == found


def test_the_law_of_rounds_whose_bonus_is_the_targets() -> None:
    """gamma 1, by hand: an accepted token is followed by one of p, a replaced one by one of pi."""
    q, p = [0.5, 0.5], [0.75, 0.25]
    branches = _texts.branches_of(lambda x: p, lambda x: q, "ensemble:lambda=0.5", "probabilities", None, 1)
    pi = np.array([0.625, 0.375])
    accepted, replaced = np.minimum(q, pi), np.array([0.125, 0.0])
    assert _texts.law_of_texts(branches, (), 2, 2, [], 1)[:2, :2] == pytest.approx(
        np.outer(accepted, p) + np.outer(replaced, pi), abs=1e-15)


# ---- a verifier alone ---------------------------------------------------------------------------------


def verified(drafts: Any, q: Any, p: Any, seeds: Any, positions: Any, policy: str = "lossless", verifier: str = "token",
             **how: Any) -> Any:
    return flat.verify(drafts, q, p, policy, verifier, seed=seeds, requests=0, positions=positions.astype(np.uint32),
                          rows="probabilities", **how).tokens


@pytest.mark.parametrize("verifier, sampled", [("token", True), ("token", False), ("block", True), ("block", False)])
def test_in_rounds_makes_an_engine_of_verify(verifier: str, sampled: bool) -> None:
    def step(*given: Any) -> Any:
        return verified(*given, verifier=verifier)

    assert_lossless(in_rounds(step, q_model, p_model, length=3, sampled=sampled), p_model, tv=0.1)


def test_in_rounds_with_short_drafts_and_broken_rows() -> None:
    def sometimes(prefix: Any) -> Any:
        return None if sum(prefix) % 3 == 1 else [math.nan] * V if sum(prefix) % 3 == 2 else q_model(prefix)

    assert_lossless(in_rounds(verified, sometimes, p_model, length=3), p_model, tv=0.1)
    assert_lossless(in_rounds(verified, lambda prefix: None, p_model, length=3), p_model, tv=0.1)
    assert_lossless(in_rounds(verified, q_model, broken, length=3), broken, tv=0.1)


def test_in_rounds_finds_padding_that_is_emitted() -> None:
    def step(drafts: Any, q: Any, p: Any, seeds: Any, positions: Any) -> Any:
        tokens = verified(drafts, q, p, seeds, positions)
        return [[-1, *row] if draft[0] < 0 else row for draft, row in zip(drafts, tokens)]

    def sometimes(prefix: Any) -> Any:
        return None if sum(prefix) % 3 == 1 else q_model(prefix)

    with pytest.raises(AssertionError, match="-1.*outside the vocabulary"):
        assert_lossless(in_rounds(step, sometimes, p_model, length=3), p_model, tv=0.3)


def test_in_rounds_finds_coins_that_are_used_again() -> None:
    def step(drafts: Any, q: Any, p: Any, seeds: Any, positions: Any) -> Any:
        return verified(drafts, q, p, seeds, positions * 0)

    with pytest.raises(AssertionError, match="do not have their law"):
        assert_lossless(in_rounds(step, q_model, p_model, length=3), p_model, tv=0.1)
