# SPDX-License-Identifier: Apache-2.0
"""specagg.sglang without SGLang: its functions have the parameters of those that they are around (sglang_facts.json), and
decide as they should with CPU tensors and objects that have the recorded names alone. tools/engines/check-sglang runs
SGLang's own functions."""

import inspect
import logging
import pathlib
import sys
import types

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="specagg.sglang needs torch")

import engine_facts  # noqa: E402
from drafted import P, Q, V, Many, check_first, softmax, two_tokens  # noqa: E402
import specagg  # noqa: E402
from specagg import sglang as plug_in  # noqa: E402

(FACTS,) = engine_facts.recorded("sglang").values()
VERIFY = "kernels/ops/speculative/reject_sampling:chain_speculative_sampling_triton"
LOG_PROBS = "srt/layers/logprob_processor:compute_spec_logprobs"
REPLACED = {"srt/speculative/eagle_utils:eagle_sample": plug_in.sample, VERIFY: plug_in.verify, LOG_PROBS: plug_in.log_probs,
            "srt/sampling/sampling_params:SamplingParams.verify": plug_in.check}
GAMMA = 2


def differences(facts):
    """Of sample(), log_probs() and check(), only what they name themselves counts."""
    facts = {**facts, "functions": {place: names[:len(inspect.signature(REPLACED[place]).parameters) - 1]
                                    if place in REPLACED and place != VERIFY else names
                                    for place, names in facts["functions"].items()}}
    return engine_facts.differences("sglang", facts, plug_in.VERSIONS, {VERIFY: plug_in.verify}, without=("own",))


def test_fits_the_recorded_version():
    assert differences(FACTS) == []
    assert FACTS["functions"]["srt/speculative/eagle_utils:eagle_sample"][:2] == ["verify_input", "batch"]
    assert FACTS["functions"][LOG_PROBS][:3] == ["batch", "logits_output", "predict"]
    assert FACTS["functions"]["srt/plugins/hook_registry:HookRegistry.register"] == ["cls", "target", "hook", "hook_type="]
    for target in plug_in._PLACES.values():  # the recorded places, as SGLang's registry writes them
        assert target in [f"sglang.{place.replace('/', '.').replace(':', '.')}" for place in REPLACED]


def test_finds_a_planted_change():
    for planted in engine_facts.planted("sglang", FACTS, {VERIFY: None}):
        assert len(differences(planted)) == 1
    assert differences({**FACTS, "version": "0.0.1"}) == ["version 0.0.1"]


# ---- where it is put in ----------------------------------------------------------------------------------------------


@pytest.fixture
def sglang(monkeypatch):
    """A registry of the recorded names; what is registered in it."""
    registered = {}

    def register(target, hook, hook_type="after"):
        registered[target] = (hook, hook_type)

    def module(name, **what):
        made = types.ModuleType(name)
        vars(made).update(what)
        monkeypatch.setitem(sys.modules, name, made)
        return made

    for name in ("sglang.srt", "sglang.srt.plugins"):
        module(name)
    module("sglang.srt.plugins.hook_registry", HookRegistry=types.SimpleNamespace(register=register),
           HookType=types.SimpleNamespace(AROUND="around"))
    root = module("sglang", __version__="0.5.23")
    return types.SimpleNamespace(root=root, registered=registered)


def test_does_nothing_until_asked(sglang, monkeypatch):
    monkeypatch.delenv("SPECAGG_SGLANG", raising=False)
    plug_in.register()
    assert sglang.registered == {}


def test_registers_four_functions(sglang, monkeypatch):
    monkeypatch.setenv("SPECAGG_SGLANG", "token_v3:alpha=0.3")
    plug_in.register()
    assert sglang.registered == {plug_in._PLACES[one.__name__]: (one, "around")
                                 for one in (plug_in.sample, plug_in.verify, plug_in.log_probs, plug_in.check)}
    assert plug_in._usual[0].policy.name == "token-v3"


def test_another_version_keeps_its_own(sglang, monkeypatch, caplog):
    monkeypatch.setenv("SPECAGG_SGLANG", "lossless")
    sglang.root.__version__ = "0.99.0"
    with caplog.at_level(logging.WARNING):
        plug_in.register()
    assert sglang.registered == {} and len(caplog.records) == 1
    assert "SPECAGG_SGLANG=lossless is not followed" in caplog.text and "0.99.0" in caplog.text and "0.5.23" in caplog.text


def test_wrong_policy_ends_the_start(sglang, monkeypatch):
    monkeypatch.setenv("SPECAGG_SGLANG", "lossy:alpha=9")
    with pytest.raises(SystemExit, match='SPECAGG_SGLANG: "lossy:alpha=9"'):  # SGLang goes on after any Exception
        plug_in.register()


def test_a_request_is_told_what_is_wrong():
    calls = []
    with pytest.raises(ValueError, match=r'custom_params\["specagg"\]: "nothing": policy: there is no'):
        plug_in.check(calls_of(calls), types.SimpleNamespace(custom_params={"specagg": "nothing"}), 9)
    for fine in (None, {}, {"other": 1}, {"specagg": "lossless"}):
        plug_in.check(calls_of(calls), types.SimpleNamespace(custom_params=fine), 9)
    assert [more for _, more in calls] == [9] * 5


def calls_of(calls):
    return lambda *args: calls.append(args)


def test_entry_point():
    text = pathlib.Path(__file__).parents[1].joinpath("pyproject.toml").read_text()
    assert '[project.entry-points."sglang.srt.plugins"]\nspecagg = "specagg.sglang:register"\n' in text
    assert f'sglang = ["sglang=={plug_in.VERSIONS[-1]}"]' in text


# ---- a round ---------------------------------------------------------------------------------------------------------


def made(place, **values):
    """An object of SGLang with recorded names alone."""
    assert set(values) <= set(FACTS["fields"][place]), place
    return types.SimpleNamespace(**values)


def batch_of(B, policies=None, temperature=1.0, greedy=False, seeds=None, lengths=7):
    how = made("srt/sampling/sampling_batch_info:SamplingBatchInfo", temperatures=torch.full((B, 1), float(temperature)),
               top_ks=torch.full((B,), 1 if greedy else 2**30, dtype=torch.int32), sampling_seed=seeds)
    reqs = [made("srt/managers/schedule_batch:Req", sampling_params=made(
        "srt/sampling/sampling_params:SamplingParams", custom_params=one and {"specagg": one})) for one in policies or [None] * B]
    return made("srt/managers/schedule_batch:ScheduleBatch", reqs=reqs, sampling_info=how,
                seq_lens=torch.full((B,), lengths, dtype=torch.int32))


def run(usual, batch, drafts, q, p, order=None):
    """Tokens of each request, as SGLang reads them: by the slots of accept_index."""
    B, rows = len(drafts), GAMMA + 1
    slots = torch.arange(B * rows).reshape(B, rows) if order is None else order
    predicts, where = torch.full((B * rows,), 77, dtype=torch.int32), torch.full((B, rows), -1, dtype=torch.int32)
    count = torch.zeros(B, dtype=torch.int32)
    candidates = torch.tensor([[9, *one] for one in drafts])
    plug_in._usual[:] = [plug_in.setting(usual, "test")]

    def eagle_sample(verify_input, batch, logits_output):
        plug_in.verify(None, predicts=predicts, accept_index=where, accept_token_num=count, candidates=candidates,
                       retrive_index=slots, retrive_next_token=None, retrive_next_sibling=None, uniform_samples=None,
                       uniform_samples_for_final_sampling=None, target_probs=p.reshape(B, rows, V),
                       draft_probs=q.reshape(B, GAMMA, V), threshold_single=1.0, threshold_acc=1.0, deterministic=True,
                       block_verification=True)

    plug_in.sample(eagle_sample, None, batch, None)
    texts = [predicts[one[one >= 0].long()] for one in where]
    assert [len(one) for one in texts] == (count + 1).tolist()
    assert (predicts == 77).sum() == B * rows - sum(map(len, texts))
    return torch.nn.utils.rnn.pad_sequence(texts, batch_first=True, padding_value=-1)


@pytest.mark.parametrize("text, temperature", [
    ("lossless", 1.0), ("lossless,verifier=block", 0.7), ("lossless,verifier=match", 1.0), ("token_v3:alpha=0.3", 0.6),
    ("ensemble:lambda=0.5", 1.0)])
def test_has_the_law(text, temperature):
    B = 20000
    many = Many(B, temperature=temperature)
    slots = torch.from_numpy(np.random.default_rng(1).permutation(B * 3)).reshape(B, 3)
    tokens = run(text, batch_of(B, temperature=temperature), many.drafts, many.q, (many.p / temperature).softmax(-1), slots)
    first, both = two_tokens(text.partition(",")[0], temperature)
    check_first(tokens, first)
    went_on = tokens[tokens[:, 1] >= 0]
    assert len(went_on) > B / 10
    for a in range(V):  # given that the first was accepted, the second has its law
        of = went_on[went_on[:, 0] == a]
        check_first(of[:, 1:], both[a] / both[a].sum())


def test_greedy_requests_among_others():
    """SGLang drafts their most likely token, and gives rows of the target with top-k 1."""
    many, B = Many(300), 300
    likeliest, drafts = many.p.argmax(-1).reshape(B, 3), many.q.argmax(-1).reshape(B, 2)
    one_hot = torch.nn.functional.one_hot(many.p.argmax(-1), V).float()
    for one, best in zip(run("lossless", batch_of(B, greedy=True), drafts.tolist(), many.q, one_hot), likeliest):
        one = one[one >= 0]
        assert one.tolist() == best[: len(one)].tolist()
    first = run("ensemble:lambda=0.5", batch_of(B, greedy=True), drafts.tolist(), many.q, one_hot)[:, 0]
    assert set(first.tolist()) == {int(likeliest[0, 0]), int(drafts[0, 0])} and likeliest[0, 0] != drafts[0, 0]


def test_greedy_requests_have_temperature_0():
    """Under most policies that is the law at temperature 1, too, as their drafts and the target's rows are one-hot. Not under
    maximum: there the other tokens of the draft's row count."""
    B, policy = 20000, "maximum"
    many = Many(B)
    best, drafts = many.p.argmax(-1), many.q.argmax(-1).reshape(B, 2)
    one_hot = torch.nn.functional.one_hot(best, V).float()
    law, at_1 = (specagg.law(policy, Q[0, 0], one_hot[0].log().numpy(), rows="logits", sampling=specagg.Sampling(T)).pi
                 for T in (0, 1))
    assert np.abs(law - at_1).max() > 0.1 and np.flatnonzero(law).tolist() == sorted([int(best[0]), int(drafts[0, 0])])
    tokens = run(policy, batch_of(B, greedy=True), drafts.tolist(), many.q, one_hot)
    check_first(tokens, law)


def test_tokens_depend_on_seed_and_position_alone():
    many, seeds = Many(20), torch.from_numpy(np.random.default_rng(2).integers(-(2**63), 2**63 - 1, 20))
    p = many.p.softmax(-1)
    together = run("lossless", batch_of(20, seeds=seeds), many.drafts, many.q, p)
    for i in range(20):
        alone = run("lossless", batch_of(1, seeds=seeds[i : i + 1]), many.drafts[i : i + 1], many.q[2 * i : 2 * i + 2],
                    p[3 * i : 3 * i + 3])[0]
        assert alone.tolist() == together[i][together[i] >= 0].tolist()
    assert not torch.equal(run("lossless", batch_of(20, seeds=seeds, lengths=8), many.drafts, many.q, p)[:, 0], together[:, 0])
    again = [run("lossless", batch_of(20), many.drafts, many.q, p) for _ in range(2)]  # without seeds: others each time
    assert not torch.equal(again[0][:, 0], again[1][:, 0])


def test_policies_of_requests():
    B = 8000
    many = Many(B)
    tokens = run("lossless", batch_of(B, [None, "token_v3:alpha=0.3,verifier=block"] * (B // 2)), many.drafts, many.q,
                 many.p.softmax(-1))
    check_first(tokens[::2], two_tokens("lossless")[0])
    check_first(tokens[1::2], two_tokens("token_v3:alpha=0.3")[0])


def log_probs(monkeypatch, batch, original=False):
    """[B, GAMMA + 1]: what SGLang hands out; -5 is its own."""
    envs = types.SimpleNamespace(SGLANG_RETURN_ORIGINAL_LOGPROB=types.SimpleNamespace(get=lambda: original))
    monkeypatch.setitem(sys.modules, "sglang.srt.environ", types.SimpleNamespace(envs=envs))
    out = made("srt/layers/logits_processor:LogitsProcessorOutput", next_token_logprobs=None)

    def own(batch, logits_output, predict, accept_index):
        logits_output.next_token_logprobs = torch.full(accept_index.shape, -5.0)

    plug_in.log_probs(own, batch, out, None, accept_index=torch.zeros(len(batch.reqs), GAMMA + 1))
    return out.next_token_logprobs


@pytest.mark.parametrize("text, temperature", [("lossless,verifier=block", 0.7), ("token_v3:alpha=0.3", 0.6)])
def test_log_probabilities_are_under_pi(text, temperature, monkeypatch):
    many, batch = Many(300, temperature=temperature), batch_of(300, temperature=temperature)
    tokens = run(text, batch, many.drafts, many.q, (many.p / temperature).softmax(-1))
    found, (first, both) = log_probs(monkeypatch, batch), two_tokens(text.partition(",")[0], temperature)
    for one, of_one in zip(tokens, found):
        n = int((one >= 0).sum())
        due = [first[one[0]]] + [both[one[0], one[1]] / both[one[0]].sum()] * (n > 1)
        assert np.allclose(np.exp(of_one[: len(due)]), due, atol=1e-5) and (of_one[n:] == -5).all()
    assert (tokens[:, 1] >= 0).sum() > 30 and (tokens[:, 1] < 0).sum() > 30
    assert (log_probs(monkeypatch, batch, original=True) == -5).all()
    plug_in.sample(lambda *args: None, None, batch, None)  # SGLang's own verification: nothing of the round before is left
    assert (log_probs(monkeypatch, batch) == -5).all()


def test_drafts_of_minus_one_end():
    B = 20000
    many = Many(B)
    for text in ("lossless", "token_v3:alpha=0.3"):
        tokens = run(text, batch_of(B), [[-1, -1]] * B, many.q, many.p.softmax(-1))
        assert tokens.shape[1] == 1
        check_first(tokens, softmax(P[0, 0]))


def test_a_target_of_nan_is_said(caplog):
    many = Many(3)
    p = many.p.softmax(-1)
    p[3:6] = torch.nan
    with caplog.at_level(logging.WARNING):
        tokens = run("lossless", batch_of(3), many.drafts, many.q, p)
    assert tokens[1].tolist()[:1] == [0] and (tokens >= 0).sum(1)[1] == 1 and (tokens[[0, 2], 0] >= 0).all()
    assert "the target's row of request 1 of this batch is invalid_row" in caplog.text and "sglang" in caplog.records[0].name


def test_other_callers_keep_sglangs_own():
    """DSpark and UNO call the kernel without eagle_sample()."""
    calls = []
    names = [one.rstrip("=") for one in FACTS["functions"][VERIFY]]
    plug_in.verify(lambda *args, **kwargs: calls.append((args, kwargs)), *names, block_verification=True)
    assert calls == [(tuple(names), {"block_verification": True})]
    with pytest.raises(KeyError):  # and after an error, too
        plug_in.sample(lambda *args: {}["nothing"], None, batch_of(1), None)
    plug_in.verify(lambda *args, **kwargs: calls.append((args, kwargs)), *names)
    assert len(calls) == 2
