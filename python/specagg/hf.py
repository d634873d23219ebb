# SPDX-License-Identifier: Apache-2.0
"""Decoding with two causal models of `transformers`: generate(), and custom_generate() for
`model.generate`. The draft model drafts, the target scores the drafts in one call, and verify()
decides, so the text has the policy's law: with "lossless", that of the target alone.

Both models have one tokenizer and take a `DynamicCache`. A batch may have any number of requests;
each keeps as many tokens of a round as were emitted for it. Every token of a text goes through each model
once: after a round the caches are cropped, and where the requests of a batch kept different numbers
of tokens, their keys and values are moved, so that all end at the same slot. No request's tokens
depend on which others are in the batch, but for the rounding of the models' arithmetic.

Rows are decided on the CPU: rows of logits are copied there, gamma + 1 of the target for a request and round.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Any, Callable, Sequence, Union

import numpy as np
import torch
from transformers import LogitsProcessorList, StoppingCriteriaList

from . import plan
from ._hf_cache import Cached
from ._hf_config import HANDED_OVER, OTHERWISE, new_tokens, processors_of, refuse_others, values_of
from ._law import law
from ._policy import PolicyLike, as_policy
from ._verify import Rows, Sampling, Status, Streams, SyntheticAcceptance, _group, _uncoupled, draw, verify


@dataclass
class Generated:
    """What generate(return_dict_in_generate=True) returns. sequences [B, S + n]: prompts and new tokens. For each
    request: how many tokens were drafted, accepted and emitted, and the log-probability of each emitted token under the
    policy's law (an importance ratio needs it, not the target's). rounds: calls of the target."""

    sequences: Any
    drafted: list[int]
    accepted: list[int]
    emitted: list[int]
    rounds: int
    log_pi: list[list[float]]


class _DraftLength:
    """gamma="auto": the gamma with the most tokens for the time, by the acceptances and times of the last rounds.

    The time of a target call is taken as a line, a + b (gamma + 1), fitted to the calls; that of a draft step as one
    number. All fade by 1 in 20 a round. Where drafting does not pay, one token is drafted every 32nd round.
    """

    most, fade = 16, 0.95

    def __init__(self) -> None:
        self.tried, self.accepted = 4.0, 2.6  # as if 4 drafted tokens had been accepted with probability 0.65
        self.steps = self.step_seconds = 0.0
        self.line = np.zeros(5)  # weight, n, n n, seconds, n seconds
        self.rounds = 0

    def gamma(self) -> int:
        self.rounds += 1
        w, n, nn, t, nt = self.line
        if w == 0 or self.steps == 0:
            return 4
        spread = w * nn - n * n
        slope = max(0.0, (w * nt - n * t) / spread) if spread > 1e-6 * w * nn else 0.0
        at_1 = max(t / w + slope * (1 - n / w), 0.05 * t / w)
        best, _ = plan.best_gamma(self.accepted / self.tried, self.step_seconds / self.steps / at_1,
                                  [1 + slope * g / at_1 for g in range(self.most + 1)], most=self.most)
        return best if best or self.rounds % 32 else 1

    def observe(self, accepted: Sequence[int], drafted: Sequence[int], steps: int, draft_time: float,
                target_time: float) -> None:
        self.tried = self.fade * self.tried + sum(min(a + 1, d) for a, d in zip(accepted, drafted))
        self.accepted = self.fade * self.accepted + sum(accepted)
        if self.rounds > 1:  # the first round reads the prompts
            n = max(drafted) + 1
            self.steps, self.step_seconds = self.fade * self.steps + steps, self.fade * self.step_seconds + draft_time
            self.line = self.fade * self.line + np.array([1, n, n * n, target_time, n * target_time])


def _looked_up(text: list[int], most: int) -> list[int]:
    """Up to `most` tokens that followed the last earlier occurrence of the text's last 3 tokens; else 2; else 1."""
    for n in range(min(3, len(text) - 1), 0, -1):
        for at in range(len(text) - n - 1, -1, -1):
            if text[at : at + n] == text[-n:]:
                return text[at + n : at + n + most]
    return []


class _Decoding:
    """The requests that are not finished, `active`, and the two models' caches of them."""

    def __init__(self, target: Any, draft: Any, sequences: list[list[int]], pads: list[int], policy: PolicyLike,
                 verifier: str, sampling: Sampling, seeds: Sequence[int], requests: Sequence[int], eos: Sequence[int],
                 processors: Any, synthetic: Union[SyntheticAcceptance, None] = None) -> None:
        self.target = Cached(target, "target", len(sequences))
        self.draft = None if draft is None else Cached(draft, "draft", len(sequences))  # None: prompt lookup
        self.models = [self.target] if self.draft is None else [self.target, self.draft]
        self.sequences, self.pads, self.active = sequences, pads, list(range(len(sequences)))
        self.policy, self.verifier, self.sampling = as_policy(policy), verifier, sampling
        self.seeds, self.requests = np.array(seeds, np.uint64), np.array(requests, np.uint64)
        self.eos, self.processors, self.synthetic = list(eos), processors, synthetic
        self.vocabulary = int(target.config.vocab_size)
        self.wide = torch.float64 in (one.model.dtype for one in self.models)
        self.times = (0, 0.0, 0.0)  # of the last round: calls of the draft, seconds of draft and target
        self.log_pi: list[list[float]] = [[] for _ in sequences]  # of all emitted tokens

    def sizes(self) -> list[int]:
        return [len(self.sequences[b]) - self.pads[b] for b in self.active]

    def how(self) -> dict[str, Any]:
        """The random numbers of a round are a function of seed, request and position."""
        streams = Streams(self.seeds[self.active], np.array(self.sizes(), np.uint32), self.requests[self.active])
        return {"rows": Rows(sampling=self.sampling), "streams": streams}

    def rows(self, model: Cached, drafts: Sequence[list[int]], wanted: Sequence[int]) -> Any:
        """The model's rows at the last wanted[b] positions of text and draft, edited by the processors, on the CPU.
        The model computes what it has not yet of the texts for which rows are wanted."""
        new = []
        for b, size, d, w in zip(self.active, model.sizes, drafts, wanted):
            text, at = self.sequences[b], self.pads[b] + size
            new.append(text[at:] + d[max(0, at - len(text)):] if w else [])
        rows = model.rows(new, wanted)
        if self.wide or self.processors:
            rows = rows.double() if self.wide else rows.float()
        # One tokenizer, but padded to another size: draft rows get tokens of probability 0, or lose some.
        missing = self.vocabulary - rows.shape[-1]
        rows = torch.nn.functional.pad(rows, (0, missing), value=-torch.inf) if missing else rows
        if self.processors:
            for b, d, w, out in zip(self.active, drafts, wanted, rows):
                for j in range(w):
                    out[j] = self.processors(*self.as_batch(b, d[:len(d) + 1 - w + j], out[j], rows.device))[b]
        return rows.cpu()

    def as_batch(self, b: int, draft: list[int], row: Any, device: Any) -> tuple[Any, Any]:
        """Text and row of request b in each row of a batch of all, for what knows requests by their row."""
        ids = torch.tensor([self.sequences[b] + draft], device=device)
        return ids.repeat(len(self.sequences), 1), None if row is None else row.repeat(len(self.sequences), 1)

    def propose(self, most: Sequence[int]) -> tuple[list[list[int]], Any, int]:
        """Drafts up to most[b] tokens for each request; the rows that they were drawn from, and the one after them if
        the policy reads it (else zeros), [B, gamma + 1, V], None for lookup; and how often the draft model was called."""
        if self.draft is None:
            return [_looked_up(self.sequences[b][self.pads[b]:], m) for b, m in zip(self.active, most)], None, 0
        drafts: list[list[int]] = [[] for _ in most]
        rows: list[Any] = []
        more = int(self.policy.reads_draft)
        for step in range(max(most) + more):
            wanted = [int(len(d) == step < m + more and not (d and d[-1] in self.eos)) for d, m in zip(drafts, most)]
            if not any(wanted):
                break
            rows.append(self.rows(self.draft, drafts, wanted)[:, 0])
            tokens = draw(rows[-1], step=step, coupled=self.verifier not in _uncoupled, **self.how())
            for d, m, w, token in zip(drafts, most, wanted, tokens.tolist()):
                if w and step < m and token >= 0:
                    d.append(token)
        zeros = torch.zeros((len(most), self.vocabulary), dtype=torch.float64 if self.wide else torch.float32)
        zeros = torch.zeros_like(rows[0]) if rows else zeros
        return drafts, torch.stack([*rows, zeros][:max(map(len, drafts)) + 1], 1), len(rows)

    def speculate(self, most: Sequence[int]) -> tuple[list[list[int]], list[int], list[int]]:
        """A round: the tokens emitted for each request, and how many were drafted and accepted."""
        before = self.sizes()
        times = [time.perf_counter()]
        drafts, q, calls = self.propose(most)
        times.append(time.perf_counter())
        p = self.rows(self.target, drafts, [len(d) + 1 for d in drafts])
        times.append(time.perf_counter())
        drafted = [len(d) for d in drafts]
        self.times = (calls, times[1] - times[0], times[2] - times[1])
        ids = np.array([d + [-1] * (max(drafted) - len(d)) for d in drafts], np.int32)
        out = verify(ids, q, p, self.policy, self.verifier, end_of_text=self.eos, synthetic=self.synthetic, **self.how())
        accepted = out.accepted.tolist()
        for b, status in zip(self.active, out.statuses.tolist()):
            if status:
                raise RuntimeError(f"request {b}: no token can be drawn: {Status(status).name}")
        for model in self.models:
            model.cut([n + a for n, a in zip(before, accepted)])
        for b, row, n in zip(self.active, out.log_pi.tolist(), out.emitted.tolist()):
            self.log_pi[b] += row[:n]
        return [row[:n] for row, n in zip(out.tokens.tolist(), out.emitted.tolist())], drafted, accepted

    def defer(self) -> tuple[list[list[int]], list[int], list[int]]:
        """decoder="sequential": a token of the draft model, or of the target for requests where the policy defers."""
        none: list[list[int]] = [[] for _ in self.active]
        assert self.draft is not None  # _check_decoder()
        rows = self.rows(self.draft, none, [1] * len(none))[:, 0]
        tokens = self.one_token(rows)
        chosen = rows.double()
        deferred = []
        for row in rows.double().numpy():
            # sum min(q, pi) is 1 if pi = q, and at most 1/2 if pi = p and p has only the token least probable in q
            other = np.where(np.arange(len(row)) == row.argmin(), 0.0, -np.inf)
            deferred.append(int(law(self.policy, row, other, rows="logits", sampling=self.sampling).acceptance < 0.75))
        if any(deferred):
            p = self.rows(self.target, none, deferred)[:, 0]
            chosen = torch.where(torch.tensor(deferred)[:, None] > 0, p.to(rows.dtype), rows)
            tokens = self.one_token(chosen)
        for b, row, token in zip(self.active, chosen.double().numpy(), tokens):
            pi = law("lossless", row, row, rows="logits", sampling=self.sampling).pi
            self.log_pi[b].append(float(np.log(pi[token])))
        return [[token] for token in tokens], [1] * len(none), [1 - d for d in deferred]

    def one_token(self, rows: Any) -> list[int]:
        tokens: list[int] = draw(rows, **self.how()).tolist()
        if min(tokens) < 0:
            raise RuntimeError(f"request {self.active[tokens.index(-1)]}: no token can be drawn: invalid_row")
        return tokens

    def finish(self, done: Sequence[bool]) -> None:
        """Takes these of the active requests out of the batch."""
        left = [i for i, d in enumerate(done) if not d]
        self.active = [self.active[i] for i in left]
        if left and len(left) < len(done):
            for model in self.models:
                if model.slots:
                    model.select(left)


def _prompts(input_ids: Any, attention_mask: Any, pad: int, infer: bool) -> tuple[list[list[int]], list[int]]:
    """The rows of input_ids, and how many pad tokens each begins with."""
    if not torch.is_tensor(input_ids) or input_ids.is_floating_point():
        raise TypeError(f"input_ids: expected a tensor of token ids, not {type(input_ids).__name__}")
    if input_ids.ndim != 2 or 0 in input_ids.shape:
        raise ValueError(f"input_ids: expected [B, S] with at least one token, not {list(input_ids.shape)}")
    if attention_mask is None:
        used = (input_ids != pad).cumsum(1) > 0 if infer else torch.ones_like(input_ids, dtype=torch.bool)
    elif not torch.is_tensor(attention_mask) or attention_mask.shape != input_ids.shape:
        raise ValueError(f"attention_mask: expected a tensor {list(input_ids.shape)} as input_ids")
    else:
        used = attention_mask != 0
    if not bool((used.int().diff(dim=1) >= 0).all() and used[:, -1].all()):
        raise ValueError("attention_mask: pad on the left: zeros, then at least one 1")
    return input_ids.tolist(), (~used).sum(1).tolist()


def _number(x: Any, name: str, kind: Any, low: float, high: float) -> Any:
    if isinstance(x, bool) or not isinstance(x, kind):
        raise TypeError(f"{name}: expected a number, not {x!r}")
    if not low <= x <= high:
        raise ValueError(f"{name}: {x} is not in [{low}, {high}]")
    return x


def _sampling(values: dict[str, Any]) -> Sampling:
    """Temperature and filters; without do_sample the most likely token, as in transformers, with any filters."""
    sampled = bool(values.get("do_sample"))
    temperature = values.get("temperature", 1.0) if sampled else 1.0
    how = Sampling(_number(temperature, "temperature", (int, float), 1e-30, 1e30),
                   _number(values.get("top_k", 50), "top_k", int, 0, 2**31 - 1),
                   _number(values.get("top_p", 1.0), "top_p", (int, float), 1e-30, 1),
                   _number(values.get("min_p", 0.0), "min_p", (int, float), 0, 1))
    return how if sampled else Sampling(0.0)


def _ends_and_pad(values: dict[str, Any]) -> tuple[list[int], int, bool]:
    """The tokens that end a text, the one that texts are padded with, and whether it stands for nothing else."""
    ends = values.get("eos_token_id", [])
    eos = [ends] if isinstance(ends, int) else [int(one) for one in ends]
    known_pad = values.get("pad_token_id")
    pad = known_pad if known_pad is not None else eos[0] if eos else 0
    return eos, pad, known_pad is not None and pad not in eos


def _check_synthetic(synthetic: Any, decoder: str, gamma: Any) -> None:
    if synthetic is None:
        return
    length, rates = _group(synthetic, SyntheticAcceptance, "synthetic")._of_core()
    if decoder != "speculative" or gamma == "auto":
        raise ValueError(f'synthetic: is for decoder="speculative" and a number gamma, not {decoder!r} and {gamma!r}')
    if len(rates) > gamma or length > gamma + 1:
        raise ValueError(f"synthetic: a round of gamma {gamma} has at most {gamma} drafted tokens, and {gamma + 1} in all")


def _check_decoder(decoder: str, policy: PolicyLike, draft: Any, gamma: Any, synthetic: Any) -> None:
    if draft is None and (decoder != "speculative" or gamma == "auto" or as_policy(policy).reads_draft):
        raise ValueError('draft: None (prompt lookup) is for decoder="speculative", a number gamma, and policies that do not '
                         f"read the draft's row; not {decoder!r}, {gamma!r} and {as_policy(policy).name}")
    if decoder not in ("speculative", "sequential"):
        raise ValueError(f'decoder: expected "speculative" or "sequential", not {decoder!r}')
    if decoder == "sequential" and as_policy(policy).name not in ("chow", "chow-log"):
        raise ValueError('policy: decoder="sequential" takes "chow" or "chow-log", which do not read the target\'s row')
    _check_synthetic(synthetic, decoder, gamma)


def _seeds(seed: Union[int, Sequence[int], None], count: int) -> tuple[list[int], Sequence[int]]:
    """The seed and the request of each text: one seed for all, or one each."""
    if seed is None:
        seed = int(torch.randint(2**62, ()).item())
    if not isinstance(seed, (int, Sequence)):
        raise TypeError(f"seed: expected a whole number, or one for each request, not {type(seed).__name__}")
    seeds = [_number(one, "seed", int, 0, 2**64 - 1) for one in ([seed] * count if isinstance(seed, int) else seed)]
    if len(seeds) != count:
        raise ValueError(f"seed: expected one number or {count}, not {len(seeds)}")
    return seeds, range(count) if isinstance(seed, int) else [0] * count


def _speculate(work: _Decoding, auto: Union[_DraftLength, None], fixed: int,
               left: list[int]) -> tuple[list[list[int]], list[int], list[int]]:
    """A round of texts that take so many tokens more, the last of which is not drafted."""
    most = auto.gamma() if auto else fixed
    emitted, drafted, accepted = work.speculate([min(most, n - 1) for n in left])
    if auto:
        auto.observe(accepted, drafted, *work.times)
    return emitted, drafted, accepted


def _padded(sequences: list[list[int]], pad: int, like: Any) -> Any:
    longest = max(map(len, sequences))
    return torch.tensor([s + [pad] * (longest - len(s)) for s in sequences], dtype=like.dtype, device=like.device)


def _write(target: Any, draft: Any, input_ids: Any, values: dict[str, Any], *, policy: PolicyLike, verifier: str,
           decoder: str, gamma: Union[int, str], seed: Union[int, Sequence[int], None], attention_mask: Any,
           logits_processor: Any, stopping_criteria: Any, streamer: Any, synthetic: Any) -> Any:
    """generate(), with all of its values."""
    eos, pad, pad_is_padding = _ends_and_pad(values)
    sequences, pads = _prompts(input_ids, attention_mask, pad, pad_is_padding)
    count = len(sequences)

    auto = _DraftLength() if gamma == "auto" else None
    fixed = 0 if auto else _number(gamma, "gamma", int, 1, 1024)
    start = input_ids.shape[1]
    room = _number(new_tokens(values, start), "max_new_tokens", int, 1, 2**31 - 1)
    sampling = _sampling(values)
    _check_decoder(decoder, policy, draft, gamma, synthetic)
    if streamer is not None and count > 1:
        raise ValueError("streamer: for a batch of one")
    seeds, requests = _seeds(seed, count)

    criteria = StoppingCriteriaList(stopping_criteria or [])
    made = processors_of(values, eos, torch.tensor(pads, device=input_ids.device), start, start + room, input_ids.device)
    work = _Decoding(target, draft, sequences, pads, policy, verifier, sampling, seeds, requests, eos,
                     LogitsProcessorList([*made, *(logits_processor or [])]), synthetic)
    if int(input_ids.min()) < 0 or int(input_ids.max()) >= work.vocabulary:
        raise ValueError(f"input_ids: not in 0 to {work.vocabulary - 1}")
    totals, rounds = [[0] * count, [0] * count], 0

    def ended(b: int) -> bool:
        sequence = sequences[b]
        if sequence[-1] in eos or len(sequence) - start >= room:
            return True
        return bool(criteria) and bool(criteria(*work.as_batch(b, [], None, input_ids.device))[b])

    def write(b: int, token: int) -> bool:
        """Appends a token; whether it ends the text."""
        sequences[b].append(token)
        if streamer is not None:
            streamer.put(torch.tensor([token]))
        return ended(b)

    if streamer is not None:
        streamer.put(input_ids.cpu())
    with torch.no_grad():
        while work.active:
            rounds += 1
            active = work.active
            if decoder == "sequential":
                emitted, drafted, accepted = work.defer()
            else:
                left = [start + room - len(sequences[b]) for b in active]
                emitted, drafted, accepted = _speculate(work, auto, fixed, left)
            for b, d, a in zip(active, drafted, accepted):
                totals[0][b] += d
                totals[1][b] += a
            work.finish([any(write(b, token) for token in tokens) for b, tokens in zip(active, emitted)])
    if streamer is not None:
        streamer.end()
    ids = _padded(sequences, pad, input_ids)
    if not values.get("return_dict_in_generate"):
        return ids
    lengths = [len(s) - start for s in sequences]
    return Generated(ids, totals[0], totals[1], lengths, rounds, [x[:n] for x, n in zip(work.log_pi, lengths)])


def generate(
    target: Any,
    draft: Any,
    input_ids: Any,
    *,
    policy: PolicyLike = "lossless",
    verifier: str = "token",
    decoder: str = "speculative",
    gamma: Union[int, str] = 4,
    synthetic: Union[SyntheticAcceptance, None] = None,
    seed: Union[int, Sequence[int], None] = None,
    attention_mask: Any = None,
    logits_processor: Any = None,
    stopping_criteria: Any = None,
    streamer: Any = None,
    generation_config: Any = None,
    **options: Any,
) -> Any:
    """Continues input_ids [B, S] with two models. Returns ids [B, S + n] as `model.generate` does: each row is
    padded with pad_token_id after its end; or a Generated.

    draft      a model; None: what followed the text's last 3 tokens (2, 1) when they last occurred in it (prompt lookup)
    policy     what law the tokens have, given the rows of draft and target: specagg.policies()
    verifier   "token", "block", "match", or "coupled": then each token is a function of seed, request, position and
               the models' rows; for policies that do not read the draft gamma does not change the text
    decoder    "speculative"; "sequential": the draft model writes, and the target is only called for a token
               where the policy ("chow" or "chow-log", which read q alone) defers to it
    gamma      tokens drafted in a round, at least 1; "auto": chosen by measured acceptances and times, so that with
               the token and block verifiers a sampled text differs from run to run (its law does not)
    synthetic  specagg.SyntheticAcceptance: for benchmarks, a given acceptance length; the text has no law, log_pi is NaN
    seed       a number: each row of the batch has random numbers of its own; or a number for each request, of which
               alone its text depends, not of its row; None: from torch's generator (torch.manual_seed)
    attention_mask  [B, S], left-padded; None: all tokens but the leading pad_token_id, unless that ends a text
    generation_config, options
               as for model.generate(): what the call does not say, target.generation_config says, else the defaults
               of transformers (greedy; if do_sample, top_k 50). They apply to the rows of both models: do_sample (else
               the most likely token, of pi at temperature 0), temperature, top_k (0: off), top_p, min_p,
               repetition_penalty, no_repeat_ngram_size, bad_words_ids, sequence_bias, suppress_tokens,
               begin_suppress_tokens, forced_bos_token_id, forced_eos_token_id, remove_invalid_values,
               exponential_decay_length_penalty, min_length, min_new_tokens. And max_new_tokens or max_length (20 new
               tokens), eos_token_id ([]: no end of text), pad_token_id, return_dict_in_generate. Others are refused,
               those of transformers' drafting (num_assistant_tokens) and caches only in a call
    logits_processor   a list, applied to the rows of both models, one row at a time, before temperature and filters
    stopping_criteria  a list, asked after each token of each request; scores are None. Both get a batch [B, n] whose
               row b is request b's text, with its pads and the draft; the other rows are not read
    streamer   put(prompt), put(token) for each token, end(); for a batch of one

    TypeError or ValueError, with the argument's name: a wrong argument. RuntimeError: a row that no token can be
    drawn from (NaN, all masked).
    """
    return _write(target, draft, input_ids, values_of(target, generation_config, options), policy=policy,
                  verifier=verifier, decoder=decoder, gamma=gamma, seed=seed, attention_mask=attention_mask, streamer=streamer,
                  logits_processor=logits_processor, stopping_criteria=stopping_criteria, synthetic=synthetic)


def custom_generate(draft: Any = None, *, policy: PolicyLike = "lossless", verifier: str = "token",
                    decoder: str = "speculative", gamma: Union[int, str] = 4,
                    seed: Union[int, Sequence[int], None] = None, streamer: Any = None,
                    synthetic: Union[SyntheticAcceptance, None] = None) -> Callable[..., Any]:
    """For target.generate(**inputs, custom_generate=specagg.hf.custom_generate(draft)), in versions of transformers
    that take a function there. What generate() takes applies: lengths, do_sample, temperature, filters, processors,
    stopping criteria; num_assistant_tokens and the like are not: transformers hands over a value for each. Give a
    streamer here if generate() does not hand its own to such a function (5.24 does not).

    ValueError: more than one beam.
    """

    def decode(model: Any, input_ids: Any, logits_processor: Any = None, stopping_criteria: Any = None,
               generation_config: Any = None, synced_gpus: bool = False, **model_kwargs: Any) -> Any:
        refuse_others(generation_config.to_dict(), HANDED_OVER | OTHERWISE)
        for name, value in model_kwargs.items():
            if torch.is_tensor(value) and name not in ("attention_mask", "position_ids", "cache_position"):
                raise ValueError(f"{name}: is not given to the models by specagg.hf")
        mask = model_kwargs.get("attention_mask")
        values = {name: value for name, value in generation_config.to_dict().items()
                  if name in ("do_sample", "eos_token_id", "pad_token_id", "return_dict_in_generate") and value is not None}
        # temperature, filters and penalties are among the processors
        values |= {"top_k": 0, "max_new_tokens": generation_config.max_length - input_ids.shape[1]}
        return _write(
            model, draft, input_ids, values, policy=policy, verifier=verifier, decoder=decoder, gamma=gamma, seed=seed,
            attention_mask=torch.ones_like(input_ids) if mask is None else mask, logits_processor=logits_processor,
            stopping_criteria=stopping_criteria, streamer=streamer, synthetic=synthetic)

    return decode
