# SPDX-License-Identifier: Apache-2.0
"""specagg.hf with tiny models that the tests make."""

from __future__ import annotations

import contextlib
import copy
import inspect
import itertools
import pathlib
import re
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="specagg.hf needs torch")
transformers = pytest.importorskip("transformers", reason="specagg.hf needs transformers")

import flat  # noqa: E402
import specagg  # noqa: E402
from specagg import hf  # noqa: E402
from transformers import LlamaConfig, LlamaForCausalLM, MistralConfig, MistralForCausalLM  # noqa: E402

END = 2
takes_functions = "custom_generate" in str(inspect.signature(transformers.GenerationMixin.generate))


def tiny(seed: int, vocabulary: int = 16, layers: int = 1, window: int = 0) -> Any:
    """A model with random weights."""
    torch.manual_seed(seed)
    sizes = dict(vocab_size=vocabulary, hidden_size=16, intermediate_size=24, num_hidden_layers=layers,
                 num_attention_heads=4, num_key_value_heads=2, max_position_embeddings=256, initializer_range=0.35,
                 bos_token_id=None, eos_token_id=None, pad_token_id=None)
    model = (MistralForCausalLM(MistralConfig(sliding_window=window, **sizes)) if window
             else LlamaForCausalLM(LlamaConfig(**sizes)))
    model.generation_config.eos_token_id = model.generation_config.pad_token_id = None
    return model.eval()


@pytest.fixture(scope="module")
def target() -> Any:
    return tiny(1, layers=2)


@pytest.fixture(scope="module")
def near(target: Any) -> Any:
    """A draft model that is often right: the target with noise."""
    model = tiny(1, layers=2)
    torch.manual_seed(7)
    with torch.no_grad():
        for weights in model.parameters():
            weights += 0.03 * torch.randn_like(weights)
    return model


@pytest.fixture(scope="module")
def far() -> Any:
    return tiny(5)


PROMPT = torch.tensor([[3, 1, 4, 1, 5]])
# Three requests of 5, 2 and 3 tokens, padded with 0 on the left.
PROMPTS = torch.tensor([[3, 1, 4, 1, 5], [0, 0, 0, 9, 2], [0, 0, 6, 5, 3]])
FULL = torch.tensor([[3, 1, 4, 1, 5], [2, 7, 1, 8, 2], [9, 9, 6, 5, 3]])
MASK = torch.tensor([[1, 1, 1, 1, 1], [0, 0, 0, 1, 1], [0, 0, 1, 1, 1]])


def own(target: Any, ids: Any, mask: Any = None, **how: Any) -> Any:
    """The target's own text, by transformers."""
    mask = torch.ones_like(ids) if mask is None else mask
    how = {"do_sample": False, "max_new_tokens": 16, "pad_token_id": 0, **how}
    return target.generate(ids, attention_mask=mask, **how)


# ---- greedy ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("verifier, gamma", [("token", 1), ("token", 2), ("token", 3), ("token", 4), ("token", 5),
                                             ("token", "auto"), ("block", 3), ("match", 2), ("coupled", 4)])
def test_greedy_text_is_the_targets_own(target: Any, near: Any, far: Any, verifier: str, gamma: Any) -> None:
    alone, batch = own(target, PROMPT), own(target, PROMPTS, MASK)
    for draft in (near, far):
        how = dict(gamma=gamma, verifier=verifier, max_new_tokens=16, pad_token_id=0)
        assert torch.equal(hf.generate(target, draft, PROMPT, **how), alone)
        assert torch.equal(hf.generate(target, draft, PROMPTS, attention_mask=MASK, **how), batch)


def test_the_draft_is_accepted_where_the_models_agree(target: Any, near: Any) -> None:
    out = hf.generate(target, target, PROMPT, gamma=4, max_new_tokens=20, return_dict_in_generate=True)
    assert (out.rounds, out.drafted, out.accepted, out.emitted) == (4, [16], [16], [20])
    out = hf.generate(target, near, PROMPTS, attention_mask=MASK, gamma=4, max_new_tokens=32,
                      return_dict_in_generate=True)
    assert all(0 < a < d for a, d in zip(out.accepted, out.drafted))


def test_a_leading_pad_token_is_no_part_of_the_prompt(target: Any, near: Any) -> None:
    assert torch.equal(hf.generate(target, near, PROMPTS, pad_token_id=0, max_new_tokens=16),
                       own(target, PROMPTS, MASK))
    end_is_pad = hf.generate(target, near, PROMPTS, pad_token_id=0, eos_token_id=0, max_new_tokens=5)
    assert not torch.equal(end_is_pad[1], own(target, PROMPTS, MASK, max_new_tokens=5)[1])


@pytest.mark.parametrize("size", [12, 16, 20])
def test_a_draft_model_may_have_another_number_of_tokens(target: Any, size: int) -> None:
    assert torch.equal(hf.generate(target, tiny(9, vocabulary=size), PROMPT, max_new_tokens=16), own(target, PROMPT))


# ---- rows and caches ------------------------------------------------------------------------------


def checked_rows(monkeypatch: Any) -> list[int]:
    """Compares all rows with those of the models without a cache; returns a list of how many rows."""
    original = hf._Decoding.rows
    seen: list[int] = []

    def rows(self: Any, model: Any, drafts: Any, wanted: Any) -> Any:
        found = original(self, model, drafts, wanted)
        for b, draft, w, row in zip(self.active, drafts, wanted, found):
            text = self.sequences[b][self.pads[b]:] + draft
            with torch.no_grad():
                fresh = model.model(torch.tensor([text])).logits[0]
            assert torch.allclose(row[:w], fresh[len(fresh) - w:], rtol=0, atol=1e-4)
            seen.append(w)
        return found

    monkeypatch.setattr(hf._Decoding, "rows", rows)
    return seen


@pytest.mark.parametrize("window", [0, 4])
@pytest.mark.parametrize("policy", ["lossless", "ensemble:lambda=0.5"])
def test_cached_rows_are_the_models(monkeypatch: Any, policy: str, window: int) -> None:
    big, small = tiny(3, layers=2, window=window), tiny(4, layers=2, window=window)
    seen = checked_rows(monkeypatch)
    for decoder, chosen in (("speculative", policy), ("sequential", "chow:alpha=0.5")):
        hf.generate(big, small, PROMPTS.repeat(2, 1), attention_mask=MASK.repeat(2, 1), gamma=3, max_new_tokens=20,
                    do_sample=True, seed=4, policy=chosen, decoder=decoder, eos_token_id=END)
    assert sum(seen) > 200


@pytest.mark.skipif(not takes_functions, reason="this version's GPT-2 takes no Cache")
def test_positions_count_from_the_first_token(monkeypatch: Any) -> None:
    def gpt2(seed: int) -> Any:
        torch.manual_seed(seed)
        return transformers.GPT2LMHeadModel(transformers.GPT2Config(
            vocab_size=16, n_positions=25, n_embd=16, n_layer=1, n_head=2, initializer_range=0.35, eos_token_id=None,
            bos_token_id=None, pad_token_id=None)).eval()

    seen = checked_rows(monkeypatch)
    # 5 tokens and 20 new ones: all positions that there are.
    hf.generate(gpt2(1), gpt2(2), PROMPTS, attention_mask=MASK, do_sample=True, seed=2)
    assert sum(seen) > 60


def forwarded(model: Any, run: Any) -> int:
    """How many tokens go through a model in a run."""
    counts = []

    def count(module: Any, ids: Any, out: Any) -> None:
        counts.append(ids[0].shape[-1])

    hook = model.get_input_embeddings().register_forward_hook(count)
    run()
    hook.remove()
    return sum(counts)


@pytest.mark.parametrize("gamma", [1, 4])
def test_no_token_is_computed_twice(target: Any, near: Any, gamma: int) -> None:
    out: list[Any] = []
    how = dict(do_sample=True, temperature=0.3, seed=3, gamma=gamma, max_new_tokens=40, return_dict_in_generate=True)

    def run() -> None:
        out.append(hf.generate(target, near, PROMPT, **how))

    prompt = PROMPT.shape[1]
    by_target, by_draft = forwarded(target, run), forwarded(near, run)
    (drafted,), (accepted,) = out[0].drafted, out[0].accepted
    assert 0 < accepted < drafted
    # Each text token but the last, and each draft that was not accepted.
    assert by_target == prompt + 40 - 1 + drafted - accepted == prompt - 1 + out[0].rounds + drafted
    assert by_draft <= prompt + 40 - 1 + drafted - accepted


# ---- laws -----------------------------------------------------------------------------------------


def row(model: Any, text: list[int]) -> Any:
    with torch.no_grad():
        return model(torch.tensor([text])).logits[0, -1].numpy()


def joint_law(policy: str, target: Any, draft: Any, prompt: list[int], n: int, sampling: Any) -> Any:
    """The exact law of the first n tokens, [V, ..., V]."""
    size = target.config.vocab_size
    joint = np.ones((size,) * n)
    for k in range(n):
        for text in itertools.product(range(size), repeat=k):
            at = prompt + list(text)
            pi = specagg.law(policy, row(draft, at), row(target, at), rows="logits", sampling=sampling).pi
            joint[text] *= pi.reshape((size,) + (1,) * (n - k - 1))
    return joint


@pytest.mark.parametrize("verifier", ["token", "block", "match"])
def test_joint_law_of_lookup(verifier: str) -> None:
    """Prompts that repeat themselves, so that drafts are found; the law is the target's, and tokens are accepted."""
    target, how = tiny(1, 4, layers=2), dict(temperature=0.8)
    prompt = [1, 3, 2, 1, 3, 2, 1]
    law = joint_law("lossless", target, target, prompt, 3, specagg.Sampling(**how))
    out = hf.generate(target, None, torch.tensor([prompt] * 6000), verifier=verifier, gamma=3, seed=4, do_sample=True, top_k=0,
                      max_new_tokens=3, return_dict_in_generate=True, **how)
    assert specagg.goodness_of_fit(out.sequences[:, 7:].numpy(), law, false_alarm=1e-6).passed
    assert min(out.drafted) == 2 and 0.1 < sum(out.accepted) / sum(out.drafted) < 0.9
    fresh = hf.generate(target, None, torch.tensor([[0, 1, 2, 3]]), max_new_tokens=2, return_dict_in_generate=True)
    assert fresh.drafted == [0]  # nothing there to look up


def test_lookup_finds_what_followed() -> None:
    text = [5, 1, 2, 3, 9, 8, 1, 2, 3, 7, 6, 4, 1, 2, 3]
    assert hf._looked_up(text, 2) == [7, 6] and hf._looked_up(text, 9) == [7, 6, 4, 1, 2, 3]  # the later of two
    assert hf._looked_up([1, 2, 9, 2], 3) == [9, 2] and hf._looked_up([1, 2, 3], 3) == [] and hf._looked_up([1], 3) == []
    assert hf._looked_up([4, 4], 3) == [4] and hf._looked_up(text, 0) == []


def test_lookup_greedy_is_the_targets_own_text(target: Any) -> None:
    for gamma in (1, 3):
        assert torch.equal(hf.generate(target, None, PROMPTS, attention_mask=MASK, gamma=gamma, max_new_tokens=16),
                           own(target, PROMPTS, MASK))
    for how in ({"gamma": "auto"}, {"policy": "ensemble"}, {"policy": "chow", "decoder": "sequential"}):
        with pytest.raises(ValueError, match=r"draft: None \(prompt lookup\)"):
            hf.generate(target, None, PROMPT, **how)


LAWS = [
    ("lossless", "token", 2, "speculative"),
    ("lossless", "token", 3, "speculative"),
    ("lossless", "token", "auto", "speculative"),
    ("lossless", "block", 2, "speculative"),
    ("lossless", "match", 2, "speculative"),
    ("lossless", "coupled", 2, "speculative"),
    ("ensemble:lambda=0.4", "token", 2, "speculative"),
    ("ensemble:lambda=0.4", "block", 1, "speculative"),
    ("token-v3:alpha=0.5", "token", 2, "speculative"),
    ("chow:alpha=0.5", "token", 1, "sequential"),
]


@pytest.mark.parametrize("policy, verifier, gamma, decoder", LAWS)
def test_joint_law_of_the_text(policy: str, verifier: str, gamma: Any, decoder: str) -> None:
    target, draft = tiny(21, vocabulary=4, layers=2), tiny(22, vocabulary=4)
    how = dict(temperature=0.8, top_p=0.95)
    law = joint_law(policy, target, draft, [1, 3, 2], 3, specagg.Sampling(**how))
    assert specagg.total_variation(row(draft, [1, 3, 2]), row(target, [1, 3, 2]), rows="logits") > 0.2
    ids = hf.generate(target, draft, torch.tensor([[1, 3, 2]]).repeat(2500, 1), policy=policy, verifier=verifier,
                      gamma=gamma, decoder=decoder, do_sample=True, max_new_tokens=3, seed=11, **how)
    fit = specagg.goodness_of_fit(ids[:, 3:].numpy(), law, false_alarm=1e-6)
    assert fit.passed, fit
    # The test could tell it from the draft model's law.
    drafts = joint_law("lossless", draft, draft, [1, 3, 2], 3, specagg.Sampling(**how))
    assert 0.5 * np.abs(law - drafts).sum() > fit.detectable


@pytest.mark.parametrize("policy", ["lossless", "typical"])
def test_coupled_text_depends_on_neither_gamma_nor_batch(target: Any, near: Any, far: Any, policy: str) -> None:
    how = dict(verifier="coupled", policy=policy, do_sample=True, temperature=1.3, max_new_tokens=20, pad_token_id=0)
    first = hf.generate(target, near, PROMPTS, attention_mask=MASK, gamma=1, seed=8, **how)
    for draft, gamma in ((near, 3), (far, 5), (near, "auto")):
        assert torch.equal(hf.generate(target, draft, PROMPTS, attention_mask=MASK, gamma=gamma, seed=8, **how), first)
    assert torch.equal(hf.generate(target, near, PROMPTS[:1], seed=8, **how), first[:1])
    assert not torch.equal(hf.generate(target, near, PROMPTS[:1], seed=9, **how), first[:1])


@pytest.mark.parametrize("verifier", ["token", "block"])
def test_sampled_text_depends_on_seed_alone(target: Any, near: Any, verifier: str) -> None:
    how = dict(verifier=verifier, do_sample=True, max_new_tokens=20)
    both = hf.generate(target, near, PROMPTS[:2], attention_mask=MASK[:2], seed=[5, 6], **how)
    assert torch.equal(hf.generate(target, near, PROMPTS[:1], seed=5, **how), both[:1])
    torch.manual_seed(3)
    drawn = [hf.generate(target, near, PROMPT, **how) for _ in range(2)]
    torch.manual_seed(3)
    assert torch.equal(hf.generate(target, near, PROMPT, **how), drawn[0]) and not torch.equal(*drawn)


def test_sequential_calls_the_target_only_where_the_rule_defers(target: Any, near: Any) -> None:
    how = dict(decoder="sequential", do_sample=True, seed=1, max_new_tokens=30, return_dict_in_generate=True)
    calls: list[int] = []
    hook = target.register_forward_hook(lambda *_: calls.append(1))
    for alpha, least, most in ((-1, 30, 30), (0.7, 3, 27), (1, 0, 0)):
        calls.clear()
        out = hf.generate(target, near, PROMPT, policy=f"chow:alpha={alpha}", **how)
        assert len(calls) == 30 - out.accepted[0] and least <= len(calls) <= most
    hook.remove()
    # Never deferring is the draft model alone.
    greedy = hf.generate(target, near, PROMPTS, attention_mask=MASK, decoder="sequential", policy="chow:alpha=1",
                         max_new_tokens=16)
    assert torch.equal(greedy, own(near, PROMPTS, MASK))


def test_the_log_probability_of_each_token_is_that_under_the_policy(target: Any, near: Any) -> None:
    how = dict(do_sample=True, temperature=0.7, seed=5, max_new_tokens=12, return_dict_in_generate=True)
    sampling = specagg.Sampling(0.7)
    for policy, decoder in (("lossless", "speculative"), ("token-v3:alpha=0.5", "speculative"),
                            ("ensemble:lambda=0.5", "speculative"), ("chow:alpha=0.7", "sequential")):
        out = hf.generate(target, near, PROMPT, policy=policy, decoder=decoder, gamma=3, **how)
        ids = out.sequences
        with torch.no_grad():
            q, p = (model(ids).logits[0].double().numpy() for model in (near, target))
        pi = [specagg.law(policy, q[t - 1], p[t - 1], rows="logits", sampling=sampling).pi[int(ids[0, t])]
              for t in range(PROMPT.shape[1], ids.shape[1])]
        assert np.allclose(out.log_pi[0], np.log(pi), atol=1e-4)
        assert [len(logs) for logs in out.log_pi] == out.emitted


def test_a_seed_of_a_request_goes_with_it(target: Any, near: Any) -> None:
    how = dict(do_sample=True, temperature=1.3, max_new_tokens=20)
    for decoder, policy in (("speculative", "lossless"), ("sequential", "chow:alpha=0.5")):
        rows = hf.generate(target, near, FULL, seed=[5, 6, 7], decoder=decoder, policy=policy, **how)
        turned = hf.generate(target, near, FULL[[2, 0, 1]], seed=[7, 5, 6], decoder=decoder, policy=policy, **how)
        assert torch.equal(turned, rows[[2, 0, 1]])
        others = hf.generate(target, near, FULL, seed=[6, 5, 7], decoder=decoder, policy=policy, **how)
        assert not torch.equal(others, rows)
    # one seed: rows of one prompt differ
    same = hf.generate(target, near, PROMPT.repeat(3, 1), seed=5, **how)
    assert len({tuple(row) for row in same.tolist()}) == 3


# ---- where texts end ------------------------------------------------------------------------------


def test_end_of_text_and_padding_as_in_generate(target: Any, near: Any) -> None:
    plain = own(target, PROMPTS, MASK)[:, 5:]
    ends = {int(plain[0, 3]), int(plain[1, 9])}
    assert len({next((i for i, t in enumerate(r) if t in ends), 99) for r in plain.tolist()}) > 1
    for eos in (sorted(ends), int(plain[0, 3])):
        expected = own(target, PROMPTS, MASK, eos_token_id=eos, pad_token_id=15)
        for gamma in (1, 4):
            assert torch.equal(hf.generate(target, near, PROMPTS, attention_mask=MASK, gamma=gamma, max_new_tokens=16,
                                           eos_token_id=eos, pad_token_id=15), expected)
    try:
        target.generation_config.eos_token_id, target.generation_config.pad_token_id = sorted(ends), 15
        assert torch.equal(hf.generate(target, near, PROMPTS, attention_mask=MASK, max_new_tokens=16),
                           own(target, PROMPTS, MASK, pad_token_id=15))
        assert hf.generate(target, near, PROMPT, max_new_tokens=16, eos_token_id=[]).shape == (1, 21)
    finally:
        target.generation_config.eos_token_id = target.generation_config.pad_token_id = None


@pytest.mark.parametrize("most", [1, 2, 3, 7])
def test_max_new_tokens(target: Any, near: Any, most: int) -> None:
    assert torch.equal(hf.generate(target, near, PROMPT, gamma=4, max_new_tokens=most),
                       own(target, PROMPT, max_new_tokens=most))


def test_nothing_is_drafted_after_the_last_token(target: Any) -> None:
    out = hf.generate(target, target, PROMPT, gamma=4, max_new_tokens=7, return_dict_in_generate=True)
    assert (out.rounds, out.drafted) == (2, [5])
    text = own(target, PROMPT)[0, 5:].tolist()
    end = next(i for i in range(2, 16) if i % 5 < 3 and text[i] not in text[:i])  # within a draft
    out = hf.generate(target, target, PROMPT, gamma=4, max_new_tokens=16, eos_token_id=text[end],
                      return_dict_in_generate=True)
    assert out.emitted == [end + 1] and out.drafted == out.accepted == [end + 1 - (out.rounds - 1)]


class StopAfter(transformers.StoppingCriteria):  # type: ignore[misc]
    def __init__(self, token: int) -> None:
        self.token = token

    def __call__(self, input_ids: Any, scores: Any, **_: Any) -> Any:
        return input_ids[:, -1] == self.token


def test_stopping_criteria_are_asked_after_each_token(target: Any, near: Any) -> None:
    text = own(target, PROMPT)[0, 5:].tolist()
    stop = text[6]
    expected = PROMPT[0].tolist() + text[:text.index(stop) + 1]
    for gamma in (1, 4):
        assert hf.generate(target, near, PROMPT, gamma=gamma, max_new_tokens=16,
                           stopping_criteria=[StopAfter(stop)])[0].tolist() == expected
    expected_batch = own(target, PROMPTS, MASK, max_new_tokens=16)
    got = hf.generate(target, near, PROMPTS, attention_mask=MASK, gamma=3, max_new_tokens=16,
                      stopping_criteria=[StopAfter(stop)], return_dict_in_generate=True)
    for one, emitted, whole in zip(got.sequences.tolist(), got.emitted, expected_batch.tolist()):
        fresh = whole[5:]
        n = fresh.index(stop) + 1 if stop in fresh else 16
        assert emitted == n and one[:5 + n] == whole[:5 + n] and set(one[5 + n:]) <= {0}

    class ByRow(transformers.StoppingCriteria):  # type: ignore[misc]
        def __call__(self, input_ids: Any, scores: Any, **_: Any) -> Any:
            return torch.arange(len(input_ids)) + 7 <= input_ids.shape[1]

    assert hf.generate(target, near, FULL, stopping_criteria=[ByRow()], max_new_tokens=16,
                       return_dict_in_generate=True).emitted == [2, 3, 4]
    longest = transformers.generation.MaxLengthCriteria(max_length=9)
    assert hf.generate(target, near, PROMPT, stopping_criteria=[longest]).shape == (1, 9)


class Listener:
    def __init__(self) -> None:
        self.heard: list[Any] = []

    def put(self, value: Any) -> None:
        self.heard.append(value.tolist())

    def end(self) -> None:
        self.heard.append("end")


def test_streamer_hears_each_token(target: Any, near: Any) -> None:
    listener, text = Listener(), own(target, PROMPT)[0, 5:].tolist()
    hf.generate(target, near, PROMPT, max_new_tokens=16, streamer=listener)
    assert listener.heard == [PROMPT.tolist()] + [[t] for t in text] + ["end"]


def test_logits_processors_change_both_rows(target: Any, near: Any) -> None:
    processors = transformers.LogitsProcessorList([transformers.RepetitionPenaltyLogitsProcessor(1.8)])
    expected = own(target, FULL, repetition_penalty=1.8)
    assert not torch.equal(expected, own(target, FULL))
    assert torch.equal(hf.generate(target, near, FULL, logits_processor=processors, max_new_tokens=16), expected)

    def allowed(b: int, ids: Any) -> list[int]:
        return [b, b + 3, b + 6, b + 9]

    of_row = transformers.PrefixConstrainedLogitsProcessor(allowed, 1)
    assert torch.equal(hf.generate(target, near, FULL, logits_processor=[of_row], max_new_tokens=16),
                       own(target, FULL, prefix_allowed_tokens_fn=allowed))
    # The drafts of the target itself are accepted only if its rows as a draft are edited in the same way.
    found = hf.generate(target, target, PROMPT, logits_processor=processors, return_dict_in_generate=True)
    assert found.accepted == found.drafted


@contextlib.contextmanager
def configured(model: Any, values: dict[str, Any]) -> Iterator[None]:
    """The model with these values in its generation_config."""
    before = model.generation_config
    model.generation_config = copy.deepcopy(before)
    for name, value in values.items():
        setattr(model.generation_config, name, value)
    try:
        yield
    finally:
        model.generation_config = before


BIAS: Any = {(8,): -9.0, (0, 2): 9.0} if transformers.__version__ < "5" else [[[8], -9.0], [[0, 2], 9.0]]
HONOURED: list[dict[str, Any]] = [
    {"repetition_penalty": 1.8}, {"no_repeat_ngram_size": 2}, {"bad_words_ids": [[11], [0, 8]]},
    {"suppress_tokens": [1, 8, 9]}, {"begin_suppress_tokens": [8, 12]}, {"eos_token_id": 8, "min_new_tokens": 9},
    {"eos_token_id": 8, "min_length": 14}, {"max_length": 12}, {"max_new_tokens": 7}, {"forced_eos_token_id": 3},
    {"sequence_bias": BIAS}, {"eos_token_id": 7, "exponential_decay_length_penalty": (3, 1.5)},
    {"eos_token_id": [2, 8], "pad_token_id": 15},
]


@pytest.mark.parametrize("values", HONOURED, ids=lambda values: "+".join(values))
def test_options_and_generation_config_are_honoured(target: Any, near: Any, values: dict[str, Any]) -> None:
    lengths = {} if "max_length" in values or "max_new_tokens" in values else {"max_new_tokens": 16}
    pad = {} if "pad_token_id" in values else {"pad_token_id": 0}
    # before transformers 5.23 its repetition penalty counted the pad tokens
    prompts, mask = (FULL, torch.ones_like(FULL)) if "repetition_penalty" in values else (PROMPTS, MASK)
    expected = target.generate(prompts, attention_mask=mask, do_sample=False, **pad, **lengths, **values)
    assert not torch.equal(expected, own(target, prompts, mask))
    for draft in (near, target):
        how: dict[str, Any] = dict(attention_mask=mask, gamma=3, **pad, **lengths)
        assert torch.equal(hf.generate(target, draft, prompts, **how, **values), expected)
        config = transformers.GenerationConfig(**values)
        assert torch.equal(hf.generate(target, draft, prompts, generation_config=config, **how), expected)
        with configured(target, values):
            assert torch.equal(hf.generate(target, draft, prompts, **how), expected)


def test_a_repetition_penalty_counts_no_padding(target: Any, near: Any) -> None:
    how: dict[str, Any] = dict(repetition_penalty=1.8, pad_token_id=0, max_new_tokens=16)
    together = hf.generate(target, near, PROMPTS, attention_mask=MASK, **how)
    for b, pads in enumerate((0, 3, 2)):
        alone = own(target, PROMPTS[b:b + 1, pads:], repetition_penalty=1.8)
        assert torch.equal(together[b:b + 1, pads:], alone)
        assert 0 in alone[0, 5 - pads:]  # so a penalty of the pad token would show


def test_how_the_generation_config_samples(target: Any, near: Any) -> None:
    values = dict(do_sample=True, temperature=0.7, top_k=3, top_p=0.9)
    asked = hf.generate(target, near, PROMPT, seed=3, **values)
    greedy = hf.generate(target, near, PROMPT)
    assert not torch.equal(asked, greedy)
    with configured(target, values):
        assert torch.equal(hf.generate(target, near, PROMPT, seed=3), asked)
        assert torch.equal(hf.generate(target, near, PROMPT, seed=3, do_sample=False), greedy)
        hot = hf.generate(target, near, PROMPT, seed=3, temperature=5.0)
    assert torch.equal(hot, hf.generate(target, near, PROMPT, seed=3, **{**values, "temperature": 5.0}))
    # 50 is the top_k of transformers
    big, small = tiny(3, vocabulary=200), tiny(4, vocabulary=200)
    how = dict(do_sample=True, temperature=4.0, max_new_tokens=200, seed=1)
    usual = hf.generate(big, small, PROMPT, **how)
    assert torch.equal(usual, hf.generate(big, small, PROMPT, top_k=50, **how))
    assert not torch.equal(usual, hf.generate(big, small, PROMPT, top_k=0, **how))


REFUSED: dict[str, Any] = {"num_beams": 2, "num_return_sequences": 2, "typical_p": 0.5, "epsilon_cutoff": 0.1, "eta_cutoff": 0.1,
                           "guidance_scale": 1.5, "output_scores": True, "output_logits": True, "output_attentions": True,
                           "output_hidden_states": True, "stop_strings": "a", "max_time": 3.0, "token_healing": True}


@pytest.mark.parametrize("name", REFUSED)
def test_what_is_not_done_is_refused_by_name(target: Any, near: Any, name: str) -> None:
    with pytest.raises(ValueError, match=name):
        hf.generate(target, near, PROMPT, **{name: REFUSED[name]})
    with configured(target, {name: REFUSED[name]}), pytest.raises(ValueError, match=name):
        hf.generate(target, near, PROMPT)
    with pytest.raises(TypeError, match="no_such"):
        hf.generate(target, near, PROMPT, no_such=1)


OTHERWISE: dict[str, Any] = {"num_assistant_tokens": 7, "num_assistant_tokens_schedule": "heuristic_transient",
                             "assistant_confidence_threshold": 0.3, "max_matching_ngram_size": 3, "cache_implementation": "static"}


@pytest.mark.parametrize("name", [name for name in OTHERWISE if name in vars(transformers.GenerationConfig())])
def test_how_transformers_drafts_is_refused_of_a_call_alone(target: Any, near: Any, name: str) -> None:
    values = {name: OTHERWISE[name]}
    with pytest.raises(ValueError, match=name):
        hf.generate(target, near, PROMPT, **values)
    with pytest.raises(ValueError, match=name):
        hf.generate(target, near, PROMPT, generation_config=transformers.GenerationConfig(**values))
    text = own(target, PROMPT)
    with configured(target, values):
        assert torch.equal(hf.generate(target, near, PROMPT, max_new_tokens=16), text)
        config = copy.deepcopy(target.generation_config)  # what a caller changes another value of
        assert torch.equal(hf.generate(target, near, PROMPT, generation_config=config, max_new_tokens=16), text)


# ---- the draft length -----------------------------------------------------------------------------


def chosen(acceptance: float, step: float, call: float, each: float, rounds: int = 400) -> list[int]:
    """The gammas that gamma="auto" chooses, where times and acceptances are as given."""
    length, random, found = hf._DraftLength(), np.random.default_rng(1), []
    for _ in range(rounds):
        gamma = length.gamma()
        found.append(gamma)
        accepted = int(np.argmin(np.append(random.random(gamma) < acceptance, False)))
        length.observe([accepted], [gamma], gamma, step * gamma, call + each * (gamma + 1))
    return found[rounds // 2:]


def test_auto_is_near_the_best_gamma() -> None:
    for acceptance, step, call, each in ((0.9, 0.05, 0.9, 0.1), (0.6, 0.1, 1.0, 0.0), (0.75, 0.02, 0.5, 0.5)):
        v = [(call + each * (g + 1)) / (call + each) for g in range(17)]
        best, rate = specagg.plan.best_gamma(acceptance, step / (call + each), v)
        rates = [specagg.plan.expected_tokens(acceptance, g) / (g * step / (call + each) + v[g])
                 for g in chosen(acceptance, step, call, each)]
        assert np.mean(rates) > 0.95 * rate, (best, rate, np.mean(rates))


def test_auto_does_not_draft_where_that_does_not_pay() -> None:
    found = chosen(0.1, 0.5, 1.0, 0.2)
    assert 0 < sum(found) <= len(found) // 16


# ---- transformers' own generate -------------------------------------------------------------------


@pytest.mark.skipif(not takes_functions, reason="this version's generate() takes no function")
def test_custom_generate(target: Any, near: Any) -> None:
    hook = hf.custom_generate(near, gamma=3, seed=6)
    hows: list[dict[str, Any]] = [{}, {"repetition_penalty": 1.8}, {"eos_token_id": int(own(target, PROMPT)[0, 9])},
                                  {"prefix_allowed_tokens_fn": lambda b, ids: [b, b + 3, b + 6, b + 9]}]
    for how in hows:
        assert torch.equal(own(target, PROMPTS, MASK, custom_generate=hook, **how), own(target, PROMPTS, MASK, **how))
    how = dict(do_sample=True, temperature=0.7, top_k=5)
    sampled = own(target, PROMPT, custom_generate=hook, **how)
    assert torch.equal(sampled, hf.generate(target, near, PROMPT, gamma=3, seed=6, max_new_tokens=16, **how))
    listener = Listener()
    own(target, PROMPT, custom_generate=hf.custom_generate(near, streamer=listener), max_new_tokens=2)
    assert len(listener.heard) == 4
    out = own(target, PROMPT, custom_generate=hook, return_dict_in_generate=True)
    assert torch.equal(out.sequences, own(target, PROMPT))
    for name in ("num_beams", "output_scores", "output_logits", "guidance_scale"):
        with pytest.raises(ValueError, match=name):
            own(target, PROMPT, custom_generate=hook, return_dict_in_generate=True, **{name: REFUSED[name]})
    with pytest.raises(ValueError, match="token_type_ids"):
        hook(target, PROMPT, generation_config=transformers.GenerationConfig(max_length=9), token_type_ids=PROMPT)
    with configured(target, {"repetition_penalty": 1.8}):  # once, not twice
        assert torch.equal(own(target, PROMPTS, MASK, custom_generate=hook), own(target, PROMPTS, MASK))


FOLDER = pathlib.Path(__file__).parents[1] / "integrations/transformers"


@pytest.mark.skipif(not takes_functions, reason="this version's generate() takes no folder")
@pytest.mark.parametrize("how", [{}, {"policy": "ensemble:lambda=0.5"}, {"verifier": "block"}, {"assistant_model": None}])
def test_the_folder_for_the_hub(target: Any, near: Any, how: dict[str, Any]) -> None:
    usual = dict(do_sample=True, temperature=0.7, top_k=5, gamma=3, seed=6)
    given = {"assistant_model": near, **how}
    expected = hf.generate(target, given["assistant_model"], PROMPTS, attention_mask=MASK, max_new_tokens=16, **usual,
                           **{k: v for k, v in how.items() if k != "assistant_model"})
    texts = own(target, PROMPTS, MASK, custom_generate=str(FOLDER), trust_remote_code=True, **{**given, **usual})
    assert torch.equal(texts, expected)
    again = target.generate(input_ids=PROMPTS, attention_mask=MASK, custom_generate=str(FOLDER), trust_remote_code=True,
                            max_new_tokens=16, pad_token_id=0, **{**given, **usual})
    assert torch.equal(again, expected)


@pytest.mark.skipif(not takes_functions, reason="this version's generate() takes no folder")
@pytest.mark.parametrize("policy, differs", [("token-v3:alpha=0.5", True), ("chow:alpha=0.7", True), ("lossless", False)])
def test_the_folders_policies_compare_at_the_given_temperature(target: Any, near: Any, policy: str, differs: bool) -> None:
    """As its README says: transformers has divided the rows. hf.generate() does so where a processor divides them."""
    how: dict[str, Any] = dict(do_sample=True, policy=policy, gamma=3, seed=6)
    texts = own(target, FULL, custom_generate=str(FOLDER), trust_remote_code=True, assistant_model=near, temperature=0.5, **how)
    divided = hf.generate(target, near, FULL, max_new_tokens=16, logits_processor=[lambda ids, row: row / 0.5], **how)
    assert torch.equal(texts, divided)
    assert torch.equal(texts, hf.generate(target, near, FULL, max_new_tokens=16, temperature=0.5, **how)) != differs


def test_the_folders_file_hands_over_its_arguments(target: Any, near: Any) -> None:
    """For versions of transformers that take no folder: what its file asks of model.generate()."""
    names: dict[str, Any] = {}
    exec((FOLDER / "custom_generate/generate.py").read_text(), names)
    seen = []
    names["hf"].custom_generate, before = lambda *args, **kwargs: (args, kwargs), hf.custom_generate
    try:
        model = SimpleNamespace(generate=lambda ids, **options: seen.append((ids, options)))
        names["generate"](model, input_ids=PROMPT, assistant_model=near, policy="chow", decoder="sequential", seed=3, top_k=2)
        names["generate"](model, inputs=PROMPT)
    finally:
        hf.custom_generate = before
    usual = dict(policy="lossless", verifier="token", decoder="speculative", gamma=4, seed=None, streamer=None)
    assert seen[0][1] == {"custom_generate": ((near,), {**usual, "policy": "chow", "decoder": "sequential", "seed": 3}), "top_k": 2}
    assert seen[1][1] == {"custom_generate": ((None,), usual)} and seen[0][0] is seen[1][0] is PROMPT
    assert (FOLDER / "custom_generate/requirements.txt").read_text().startswith("specagg>=")


@pytest.mark.skipif(not takes_functions, reason="this version's generate() takes no function")
def test_the_documentations_example(target: Any, near: Any) -> None:
    page = pathlib.Path(__file__).parents[2] / "docs/python.md"
    (block,) = re.findall(r"^```py\n(.*?)^```", page.read_text(), re.M | re.S)
    inputs = {"input_ids": PROMPTS, "attention_mask": MASK}
    names = {"target": target, "draft": near, "inputs": inputs, "prompts": [], "tokenizer": lambda *_, **__: inputs}
    exec(block, names)
    assert len(names["text"]) == 3


# ---- wrong arguments ------------------------------------------------------------------------------

WRONG: list[tuple[dict[str, Any], type[Exception], str]] = [
    ({"target": 3}, TypeError, "target"),
    ({"draft": "gpt2"}, TypeError, "draft"),
    ({"input_ids": [[1, 2]]}, TypeError, "input_ids"),
    ({"input_ids": torch.ones(1, 2)}, TypeError, "input_ids"),
    ({"input_ids": torch.tensor([1, 2])}, ValueError, "input_ids"),
    ({"input_ids": torch.zeros((1, 0), dtype=torch.long)}, ValueError, "input_ids"),
    ({"attention_mask": torch.ones(1, 4)}, ValueError, "attention_mask"),
    ({"attention_mask": torch.tensor([[1, 1, 1, 1, 0]])}, ValueError, "attention_mask"),
    ({"attention_mask": torch.tensor([[0, 1, 0, 1, 1]])}, ValueError, "attention_mask"),
    ({"attention_mask": torch.zeros(1, 5)}, ValueError, "attention_mask"),
    ({"policy": "lossles"}, ValueError, "policy"),
    ({"verifier": "tree"}, ValueError, "verifier"),
    ({"decoder": "greedy"}, ValueError, "decoder"),
    ({"decoder": "sequential", "policy": "opt"}, ValueError, "policy"),
    ({"gamma": 0}, ValueError, "gamma"),
    ({"gamma": "many"}, TypeError, "gamma"),
    ({"gamma": True}, TypeError, "gamma"),
    ({"max_new_tokens": 0}, ValueError, "max_new_tokens"),
    ({"do_sample": True, "temperature": 0.0}, ValueError, "temperature"),
    ({"do_sample": True, "temperature": float("nan")}, ValueError, "temperature"),
    ({"top_k": -1}, ValueError, "top_k"),
    ({"top_k": 2.5}, TypeError, "top_k"),
    ({"top_p": 0.0}, ValueError, "top_p"),
    ({"min_p": 2.0}, ValueError, "min_p"),
    ({"seed": [1, 2]}, ValueError, "seed"),
    ({"seed": -1}, ValueError, "seed"),
    ({"seed": 1.5}, TypeError, "^seed: expected a whole number, or one for each request, not float"),
    ({"seed": torch.Generator()}, TypeError, "^seed: .*, not Generator"),
    ({"assistant_model": 3}, TypeError, "^assistant_model: .* draft$"),
    ({"input_ids": torch.tensor([[3, 16]])}, ValueError, "input_ids"),
    ({"max_length": 5}, ValueError, "max_length"),
    ({"generation_config": 3}, TypeError, "generation_config"),
    ({"input_ids": PROMPTS, "streamer": Listener()}, ValueError, "streamer"),
]


@pytest.mark.parametrize("wrong, error, name", WRONG)
def test_a_wrong_argument_is_named(target: Any, near: Any, wrong: dict[str, Any], error: type[Exception],
                                   name: str) -> None:
    how: dict[str, Any] = {"target": target, "draft": near, "input_ids": PROMPT, **wrong}
    with pytest.raises(error, match=name):
        hf.generate(**how)


def test_a_tensor_without_memory_is_named_with_its_device() -> None:
    with pytest.raises(ValueError, match=r"^p: is on the device meta; .* p.cpu\(\)$"):
        flat.verify(np.array([[1, 2]]), None, torch.zeros(1, 3, 8, device="meta"))


def test_a_tensor_whose_memory_has_other_values_is_refused_by_name() -> None:
    p = torch.randn(1, 3, 8)
    drafts = np.array([[1, 2]])
    how: dict[str, Any] = dict(seed=1, positions=0)
    negated = torch._neg_view(p)
    imaginary = torch.complex(p[0], p[0]).conj().imag  # such a view without a word of it
    for name, call in {"p": lambda: flat.verify(drafts, None, negated), "q": lambda: flat.verify(drafts, negated[:, :2], p),
                       "rows": lambda: flat.draw(imaginary), "mask": lambda: flat.verify(drafts, None, p, mask=negated),
                       "temperature": lambda: specagg.Sampling(temperature=negated[0, 0])}.items():
        with pytest.raises(ValueError, match=rf"^{name}: is a view that torch negates .* give {name}.resolve_neg\(\)"):
            call()
    with pytest.raises(ValueError, match="^p: is a view"):
        flat.verify(drafts, None, torch.complex(p, p).conj())
    found = flat.verify(drafts, None, negated.resolve_neg(), **how)
    assert np.array_equal(found.log_p, flat.verify(drafts, None, -p, **how).log_p, equal_nan=True)
    with pytest.raises((TypeError, ValueError), match="^p: "):
        flat.verify(drafts, None, torch._efficientzerotensor((1, 3, 8)))


def test_models_that_cannot_go_back_are_refused(target: Any) -> None:
    model = tiny(2)
    model.config.layer_types = ["linear_attention"]
    with pytest.raises(ValueError, match="draft"):
        hf.generate(target, model, PROMPT)


def test_a_row_without_tokens_is_an_error(target: Any, near: Any) -> None:
    def no_token(ids: Any, scores: Any) -> Any:
        return scores if ids.shape[1] < 8 else scores - torch.inf

    for decoder, policy in (("speculative", "lossless"), ("sequential", "chow")):
        with pytest.raises(RuntimeError, match="request 0.*invalid_row"):
            hf.generate(target, near, PROMPT, logits_processor=[no_token], decoder=decoder, policy=policy)


# ---- synthetic acceptance ----------------------------------------------------------------------------


def test_a_given_acceptance_length(target: Any, far: Any) -> None:
    how: dict[str, Any] = dict(gamma=4, do_sample=True, seed=3, max_new_tokens=90, return_dict_in_generate=True, eos_token_id=[])
    for draft, synthetic in ((far, specagg.SyntheticAcceptance(3)), (far, specagg.SyntheticAcceptance(rates=[1, 1, 0]))):
        out = hf.generate(target, draft, PROMPT, synthetic=synthetic, **how)
        assert (out.rounds, out.accepted, out.emitted) == (30, [60], [90])
        assert np.isnan(out.log_pi[0]).all()
    mean = hf.generate(target, far, PROMPT, synthetic=specagg.SyntheticAcceptance(2.5), **how)
    assert 90 / 3 < mean.rounds < 90 / 2
    if takes_functions:
        function = hf.custom_generate(far, gamma=2, seed=1, synthetic=specagg.SyntheticAcceptance(3))
        assert target.generate(PROMPT, custom_generate=function, max_new_tokens=9, do_sample=True).shape == (1, 14)
    for bad in (dict(gamma="auto"), dict(gamma=1), dict(decoder="sequential", policy="chow"),
                dict(gamma=1, synthetic=specagg.SyntheticAcceptance(rates=[0.5, 0.1]))):
        with pytest.raises(ValueError, match="^synthetic: "):
            hf.generate(target, far, PROMPT, **{**how, "synthetic": specagg.SyntheticAcceptance(3), **bad})
