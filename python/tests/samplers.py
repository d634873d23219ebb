# SPDX-License-Identifier: Apache-2.0
"""A right sampler in numpy, with an adapter for specagg.conformance, and faults that it must find. Each fault changes one
method."""

from __future__ import annotations

import dataclasses
import os
import signal
from typing import Any

import numpy as np

from specagg._checks import rounded
from specagg.conformance import FEATURES, Adapter, adapter


def softmax(rows: Any) -> Any:
    with np.errstate(invalid="ignore"):
        weights = np.exp(rows - rows.max(-1, keepdims=True))
        return weights / weights.sum(-1, keepdims=True)


def hashed(*parts: Any) -> Any:
    """Uniform numbers in [0, 1) of whole numbers (splitmix64 after each)."""
    x = np.zeros(np.broadcast(*parts).shape, np.uint64)
    for part in parts:
        x = x * np.uint64(0xD1342543DE82EF95) + np.asarray(part).astype(np.uint64) + np.uint64(0x9E3779B97F4A7C15)
        for shift, factor in (30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB), (31, 1):
            x = (x ^ (x >> np.uint64(shift))) * np.uint64(factor)
    return (x >> np.uint64(11)).astype(np.float64) / 2**53


def inverted(p: Any, u: Any) -> Any:
    """The token of u in each row of probabilities."""
    sums = np.cumsum(p, -1)
    return np.minimum((sums <= u[:, None] * sums[:, -1:]).sum(-1), p.shape[-1] - 1 - (p[:, ::-1] > 0).argmax(-1))


class Right:
    """Temperature, top-k (ties: the lower id), top-p, min-p; chain verification by accept and reject."""

    def coins(self, s: Any, what: Any) -> Any:
        return hashed(s.seeds, s.positions, what)

    def filtered(self, p: Any, s: Any) -> Any:
        if s.top_k:
            p = p * self.kept_of_k(p, s.top_k)
        p = p / p.sum(-1, keepdims=True)
        if s.top_p < 1:
            order = np.argsort(-p, -1, kind="stable")
            p = p * self.unsorted(order, self.kept_of_p(np.take_along_axis(p, order, -1), s.top_p))
        return p * (p >= s.min_p * p.max(-1, keepdims=True))

    def unsorted(self, order: Any, kept: Any) -> Any:
        out = np.empty_like(kept)
        np.put_along_axis(out, order, kept, -1)
        return out

    def kept_of_k(self, p: Any, k: int) -> Any:
        order = np.argsort(-p, -1, kind="stable")
        return self.unsorted(order, np.broadcast_to(np.arange(p.shape[-1]) < k, p.shape).copy())

    def kept_of_p(self, p: Any, top_p: float) -> Any:
        """Of sorted rows."""
        return np.cumsum(p, -1) - p < top_p

    def hot(self, p: Any, temperature: float) -> Any:
        if temperature == 0:
            return np.arange(p.shape[-1]) == p.argmax(-1)[..., None]
        return p ** (1 / temperature)

    def probabilities(self, logits: Any, s: Any) -> Any:
        x = np.asarray(logits, np.float64)
        if s.history:
            counts = np.bincount(s.history, minlength=x.shape[-1])[:x.shape[-1]]
            x = np.where(counts > 0, np.where(x > 0, x / s.repetition, x * s.repetition), x)
            x = x - s.presence * (counts > 0) - s.frequency * counts
        if s.mask is not None:
            x = np.where(s.mask, x, -np.inf)
        p = self.acted(softmax(x), s)
        return p / p.sum(-1, keepdims=True)

    def acted(self, p: Any, s: Any) -> Any:
        p = self.hot(p, s.temperature)
        return self.filtered(p / p.sum(-1, keepdims=True), s)

    def valid(self, p: Any) -> Any:
        return ~np.isnan(p).any(-1)

    def sample(self, logits: Any, s: Any) -> Any:
        with np.errstate(invalid="ignore"):
            p = self.probabilities(logits, s)
            tokens = np.where(self.valid(p), inverted(np.nan_to_num(p), self.coins(s, 0)), -1)
            return tokens, np.log(np.maximum(np.take_along_axis(p, np.maximum(tokens, 0)[:, None], -1)[:, 0], 1e-300))

    # ---- drafts

    def rows_of_q(self, drafts: Any, q: Any, p: Any, s: Any) -> Any:
        if q is None:
            return np.arange(p.shape[-1]) == drafts[..., None]
        law_q = self.probabilities(q, s)
        return np.concatenate([law_q, np.zeros((*law_q.shape[:2], p.shape[-1] - law_q.shape[-1]))], -1)

    def drafted(self, d: Any, size: int) -> Any:
        return (d >= 0) & (d < size)

    def supported(self, q: Any) -> Any:
        return q > 0

    def residual(self, p: Any, q: Any, raw_q: Any) -> Any:
        return np.maximum(p - q, 0)

    def bonus_coins(self, s: Any, j: int) -> Any:
        return self.coins(s, 200 + j)

    def verify(self, drafts: Any, q: Any, p: Any, s: Any) -> Any:
        n, gamma = drafts.shape
        size, out, on = p.shape[-1], np.full((n, gamma + 1), -1), np.ones(n, bool)
        law_p, law_q = self.probabilities(p, s), self.rows_of_q(drafts, q, p, s)
        raw = law_q if q is None or q.shape[-1] < size else softmax(np.asarray(q, np.float64))
        for j in range(gamma + 1):
            d = drafts[:, j] if j < gamma else np.full(n, -2)
            there, at = self.drafted(d, size), np.arange(n)
            on = on & self.valid(law_p[:, j])
            token = np.where(there, d, 0)
            bonus = inverted(law_p[:, j], self.bonus_coins(s, j))
            if j == gamma:
                out[:, j] = np.where(on, bonus, out[:, j])
                break
            coin, of_q, of_p = self.coins(s, 100 + j), law_q[at, j, token], law_p[at, j, token]
            accepted = there & self.supported(of_q) & (coin * of_q < of_p)
            left = self.residual(law_p[:, j], law_q[:, j], raw[:, j])
            left = np.where(left.sum(-1, keepdims=True) > 0, left, law_p[:, j])
            other = np.where(there, inverted(left, self.coins(s, 300 + j)), bonus)
            out[:, j] = np.where(on, np.where(accepted, d, other), out[:, j])
            on = on & accepted
        return out


    def next_child(self, p: Any, q: Any, token: Any) -> Any:
        """What is left of p and of q where a child was rejected: each child was drawn without those before it."""
        left = np.maximum(p - q, 0)
        total = left.sum(-1, keepdims=True)
        q = np.where(np.arange(q.shape[-1]) == token[:, None], 0, q)
        mass = q.sum(-1, keepdims=True)
        return np.where(total > 0, left / np.where(total > 0, total, 1), p), q / np.where(mass > 0, mass, 1)

    def verify_tree(self, tokens: Any, parents: Any, q: Any, p: Any, s: Any) -> Any:
        """Recursive rejection."""
        out, at = np.full(tokens.shape, -1), np.arange(len(tokens))
        law_p, law_q = self.probabilities(p, s), self.probabilities(q, s)
        for b in at:
            one = dataclasses.replace(s, seeds=s.seeds[b:b + 1], positions=s.positions[b:b + 1])
            node, count, going = 0, 0, True
            while going:
                left, of_q, going = law_p[b, node][None], law_q[b, node][None], False
                for i in np.flatnonzero(parents[b] == node):
                    token = tokens[b, i]
                    if self.coins(one, 400 + i)[0] * of_q[0, token] < left[0, token]:
                        out[b, count], count, node, going = token, count + 1, i + 1, True
                        break
                    left, of_q = self.next_child(left, of_q, tokens[b:b + 1, i])
            out[b, count] = inverted(left, self.coins(one, 500 + node))[0]
        return out


class WrongOrder(Right):
    """Top-p before top-k."""

    def filtered(self, p: Any, s: Any) -> Any:
        order = np.argsort(-p, -1, kind="stable")
        if s.top_p < 1:
            p = p * self.unsorted(order, self.kept_of_p(np.take_along_axis(p, order, -1), s.top_p))
        if s.top_k:
            p = p * self.kept_of_k(p, s.top_k)
        return p * (p >= s.min_p * p.max(-1, keepdims=True))


class TemperatureLast(Right):
    """The temperature acts on what the filters have left."""

    def acted(self, p: Any, s: Any) -> Any:
        return self.hot(self.filtered(p, s), s.temperature)


class TopPTooFew(Right):
    """Top-p drops the token that reaches the sum."""

    def kept_of_p(self, p: Any, top_p: float) -> Any:
        kept = np.cumsum(p, -1) < top_p
        kept[..., 0] = True
        return kept


class TopPTooMany(Right):
    """Top-p keeps one token more."""

    def kept_of_p(self, p: Any, top_p: float) -> Any:
        kept = super().kept_of_p(p, top_p)
        return np.concatenate([np.ones_like(kept[..., :1]), kept[..., :-1]], -1)


class TiesDropped(Right):
    """Top-k drops all tokens that are tied at the cut."""

    def kept_of_k(self, p: Any, k: int) -> Any:
        ordered = -np.sort(-p, -1)
        if k >= p.shape[-1]:
            return np.ones_like(p, bool)
        cut, after = ordered[..., k - 1:k], ordered[..., k:k + 1]
        return np.where(np.isclose(cut, after), p > cut * 1.0001, p >= cut)


class SharedSeed(Right):
    """Two neighbours have one seed: each token alone has its law, and depends on its seed alone."""

    def coins(self, s: Any, what: Any) -> Any:
        return hashed(s.seeds // np.uint64(2), s.positions, what)


class SeedOfSlot(Right):
    """The place in the batch is in the random numbers."""

    def coins(self, s: Any, what: Any) -> Any:
        return hashed(s.seeds, s.positions, what, np.arange(len(s.seeds)))


class HalfSums(Right):
    """Cumulative sums in bfloat16, of top-p and of the draw."""

    def kept_of_p(self, p: Any, top_p: float) -> Any:
        sums, before = np.zeros(len(p), np.float32), np.empty(p.shape, np.float32)
        for k in range(p.shape[-1]):
            before[:, k] = sums
            sums = rounded(sums + p[:, k].astype(np.float32), "bfloat16")
        return before < top_p


class MaskForgotten(Right):
    """The mask is forgotten."""

    def probabilities(self, logits: Any, s: Any) -> Any:
        return super().probabilities(logits, dataclasses.replace(s, mask=None))


class LastBlockForgotten(Right):
    """Tokens after the last whole block of 16 are never drawn."""

    def probabilities(self, logits: Any, s: Any) -> Any:
        p = super().probabilities(logits, s)
        whole = p.shape[-1] // 16 * 16
        if whole:
            p[..., whole:] = 0
        with np.errstate(invalid="ignore"):
            return np.nan_to_num(p / p.sum(-1, keepdims=True), nan=1 / p.shape[-1])


class TokenOfNaN(Right):
    """A row that has no law emits token 0."""

    def sample(self, logits: Any, s: Any) -> Any:
        tokens, logs = super().sample(logits, s)
        return np.maximum(tokens, 0), logs


class LogsBeforeTemperature(Right):
    """Log-probabilities are those of the rows as they came."""

    def sample(self, logits: Any, s: Any) -> Any:
        tokens, _ = super().sample(logits, s)
        with np.errstate(invalid="ignore"):
            p = softmax(np.asarray(logits, np.float64))
        return tokens, np.log(np.take_along_axis(p, np.maximum(tokens, 0)[:, None], -1)[:, 0])


class BonusReusesCoin(Right):
    """The bonus has the random number that decided about the drafted token."""

    def bonus_coins(self, s: Any, j: int) -> Any:
        return self.coins(s, 100 + max(j - 1, 0))


class RoundsReuseCoins(Right):
    """Each round has the random numbers of the first one."""

    def coins(self, s: Any, what: Any) -> Any:
        return hashed(s.seeds, 0, what)


class ResidualOfRawQ(Right):
    """The residual is taken from q before temperature and filters."""

    def residual(self, p: Any, q: Any, raw_q: Any) -> Any:
        return np.maximum(p - raw_q, 0)


class ResidualOfP(Right):
    """A rejected token is replaced by one of p."""

    def residual(self, p: Any, q: Any, raw_q: Any) -> Any:
        return p


class OneHotAsProbabilities(Right):
    """A token that was chosen without chance is judged by the probability that p gives it, as if it had been drawn."""

    def rows_of_q(self, drafts: Any, q: Any, p: Any, s: Any) -> Any:
        return self.probabilities(p, s)[:, :-1] if q is None else super().rows_of_q(drafts, q, p, s)


class PaddingAccepted(Right):
    """A drafted -1 is emitted."""

    def verify(self, drafts: Any, q: Any, p: Any, s: Any) -> Any:
        out = super().verify(drafts, q, p, s)
        padded = drafts[:, 0] == -1
        out[padded, 1:], out[padded, 0] = out[padded, :-1], -1
        return out


class WrongIdEmitted(Right):
    """An id outside the vocabulary is emitted."""

    def verify(self, drafts: Any, q: Any, p: Any, s: Any) -> Any:
        out = super().verify(drafts, q, p, s)
        return np.where(drafts[:, :1] >= p.shape[-1], drafts[:, :1], out)


class WithoutSupportAccepted(Right):
    """A drafted token that q does not have is accepted."""

    def supported(self, q: Any) -> Any:
        return np.ones_like(q, bool)


class SmallerVocabulary(Right):
    """Only ids that the draft knows are emitted."""

    def residual(self, p: Any, q: Any, raw_q: Any) -> Any:
        return np.maximum(p - q, 0) * (q > 0)


class DraftsOfNaN(Right):
    """Drafts emit a token where p has no law."""

    def valid(self, p: Any) -> Any:
        return np.ones(len(p), bool)


class HalfLogs(Right):
    """Log-probabilities are rounded to the rows' type."""

    def sample(self, logits: Any, s: Any) -> Any:
        tokens, logs = super().sample(logits, s)
        return tokens, logs if s.dtype == "float32" else rounded(logs.astype(np.float32), s.dtype)


class SecondChildAsFirst(Right):
    """A node's second child is judged by the whole rows, as if none had been rejected before it."""

    def next_child(self, p: Any, q: Any, token: Any) -> Any:
        return p, q


class DrawnWithReplacement(Right):
    """A node's second child, drawn without the first, is judged as if it had been drawn with it."""

    def next_child(self, p: Any, q: Any, token: Any) -> Any:
        return super().next_child(p, q, token)[0], q


EVERYTHING = frozenset(FEATURES)


def adapted(sampler: Right, has: frozenset[str] = EVERYTHING, **how: Any) -> Adapter:
    return Adapter(sampler.sample, has, type(sampler).__name__, "1", verify=sampler.verify, verify_tree=sampler.verify_tree, **how)


@adapter("temperature greedy top_k top_p min_p seeds", name="by hand")
def by_hand(logits: Any, settings: Any) -> Any:
    """As a user's adapter: a function."""
    return Right().sample(logits, settings)[0]


def plain(logits: Any, settings: Any) -> Any:
    """A function without @adapter."""
    return Right().sample(logits, settings)[0]


@adapter("greedy invalid", name="deadly")
def deadly(logits: Any, settings: Any) -> Any:
    """Ends the process on rows that have no law, and at temperature 0."""
    if settings.temperature == 0:
        os._exit(3)
    if np.isnan(logits).any():
        os.abort()
    if np.isneginf(logits).all(-1).any():
        os.kill(os.getpid(), signal.SIGSEGV)
    print("an engine speaks")
    return Right().sample(logits, settings)[0]


@adapter("greedy", name="deadly at once")
def deadly_at_once(logits: Any, settings: Any) -> Any:
    os.abort()


wrong = adapted(TemperatureLast())
broken = adapter("greedy")(lambda logits, settings: [0.5] * len(logits))
