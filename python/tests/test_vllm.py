# SPDX-License-Identifier: Apache-2.0
"""specagg.vllm without vLLM: its functions have the parameters of those that they replace (vllm_facts.json), and decide as
they should with objects that have the recorded names alone. tools/engines/check-vllm runs the engine itself."""

import inspect
import logging
import os
import pathlib
import subprocess
import sys
import types

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="specagg.vllm needs torch")

import emulated  # noqa: E402
import engine_facts  # noqa: E402
import specagg  # noqa: E402
from drafted import P, Q, V, Many, check_first, softmax, two_tokens  # noqa: E402
from specagg import _engine, cuda  # noqa: E402
from specagg import vllm as plug_in  # noqa: E402

ALL = engine_facts.recorded("vllm")
FACTS = ALL["0.33.0"]
V1, V2 = engine_facts.V1, engine_facts.V2
REPLACED = {
    "sampling_params:SamplingParams._verify_extra_args": plug_in._verify_extra_args,
    f"{V1}:RejectionSampler.forward": plug_in.forward,
    "v1/worker/gpu_model_runner:GPUModelRunner._sample": plug_in.sample,
    "v1/spec_decode/llm_base_proposer:SpecDecodeBaseProposer.propose": plug_in.propose,
    "v1/spec_decode/step3p5:Step3p5MTPProposer.propose": plug_in.propose,
    "v1/spec_decode/llm_base_proposer:SpecDecodeBaseProposer._sample_from_logits": plug_in.draw_draft,
    "v1/worker/gpu/model_states/interface:ModelState.custom_sampler": plug_in.custom_sampler,
    f"{V2}:RejectionSampler._verify": plug_in.verify_v2,
    f"{V2}:RejectionSampler._get_logprobs_tensors": plug_in.logprobs_v2,
    "v1/worker/gpu/sample/sampler:Sampler._sample_random": plug_in.sample_v2,
}
LOSSLESS, TOKEN_V3 = plug_in.setting("lossless", "test"), plug_in.setting("token_v3:alpha=0.3", "test")


def differences(facts):
    return engine_facts.differences("vllm", facts, plug_in.VERSIONS, REPLACED)


def test_fits_the_recorded_versions():
    assert tuple(ALL) == plug_in.VERSIONS
    for facts in ALL.values():
        assert differences(facts) == []


def test_finds_a_planted_change():
    for planted in engine_facts.planted("vllm", FACTS, REPLACED):
        assert len(differences(planted)) == 1
    assert differences({**FACTS, "version": "0.0.1"}) == ["version 0.0.1"]


def test_records_names_of_source_text(tmp_path):
    text = ("class A:\n    x: int\n    w = 1\n    def f(self, a, b=1):\n        self.y = a\n    @property\n"
            "    def z(self): pass\n")
    tree = engine_facts.ast.parse(text)
    assert set(engine_facts._fields(engine_facts._named(tree, ["A"]))) == {"x", "w", "y", "z"}
    assert [one.arg for one in engine_facts._named(tree, ["A", "f"]).args.args] == ["self", "a", "b"]


# ---- what is asked for -----------------------------------------------------------------------------------------------


def test_settings():
    assert plug_in.setting("lossless", "x").policy.name == "lossless" and LOSSLESS.verifier == "token"
    both = plug_in.setting("token_v3:alpha=0.2,verifier=block", "x")
    assert both.policy.values == [0.2] and both.verifier == "block"
    assert plug_in.setting("lossless,verifier=match", "x").verifier == "match"
    assert plug_in.setting("lossless", "x") is plug_in.setting("lossless", "y")  # so equal settings are verified together


@pytest.mark.parametrize("text, says", [
    ("tokenv3", 'X: "tokenv3": policy: there is no "tokenv3"'), ("token_v3:alpha=x", "alpha: 'x' is not a number"),
    ("lossless,verifier=tree", "verifier: there is no 'tree'; there are token, block, match"),
    ("lossless,verifier=coupled", "verifier: there is no 'coupled'"),
    ("lossless,verifier=token,verifier=block", "verifier: given twice"), ("", 'X: "": policy: there is no ""'),
    ("lossless,alpha=1", "policy: there is no")])
def test_wrong_settings(text, says):
    with pytest.raises(ValueError) as e:
        plug_in.setting(text, "X")
    assert says in str(e.value)
    with pytest.raises(TypeError, match="X: expected a text as .*, not dict"):
        plug_in.setting({}, "X")


def test_a_request_is_told_what_is_wrong():
    calls = []
    made = types.SimpleNamespace(extra_args={"specagg": "nothing", "other": 1})
    with pytest.raises(ValueError, match=r'extra_args\["specagg"\]: "nothing": policy: there is no'):
        plug_in._verify_extra_args(made, own=calls.append)
    for fine in (None, {}, {"other": 1}, {"specagg": "lossless"}):
        plug_in._verify_extra_args(types.SimpleNamespace(extra_args=fine), own=calls.append)
    assert len(calls) == 5


# ---- where it is put in ----------------------------------------------------------------------------------------------


@pytest.fixture
def vllm(monkeypatch):
    """Modules with what the plug-in replaces, of the recorded names."""
    def module(name, **what):
        made = types.ModuleType(name)
        vars(made).update(what)
        monkeypatch.setitem(sys.modules, name, made)
        return made

    packages = ("vllm.v1 vllm.v1.sample vllm.v1.sample.ops vllm.v1.spec_decode vllm.v1.worker vllm.v1.worker.gpu "
                "vllm.v1.worker.gpu.model_states vllm.v1.worker.gpu.spec_decode").split()
    for name in packages:
        module(name)
    module("vllm.v1.sample.logits_processor", builtin=types.SimpleNamespace(
        MinTokensLogitsProcessor=MinTokens, LogitBiasLogitsProcessor=LogitBias))
    classes = types.SimpleNamespace(
        SamplingParams=type("SamplingParams", (), {"_verify_extra_args": lambda self: None}),
        RejectionSampler=type("RejectionSampler", (), {"forward": lambda self: None}),
        ModelState=type("ModelState", (), {"custom_sampler": lambda self, sampler: None}),
        SpecDecodeBaseProposer=type("SpecDecodeBaseProposer", (), {
            "propose": lambda self: None, "_sample_from_logits": lambda self, logits, sampling_metadata: None}),
        Step3p5MTPProposer=type("Step3p5MTPProposer", (), {"propose": lambda self: None}),
        GPUModelRunner=type("GPUModelRunner", (), {"_sample": lambda self: None}))
    module("vllm.sampling_params", SamplingParams=classes.SamplingParams)
    module("vllm.v1.sample.rejection_sampler", RejectionSampler=classes.RejectionSampler)
    module("vllm.v1.worker.gpu.model_states.interface", ModelState=classes.ModelState)
    module("vllm.v1.spec_decode.llm_base_proposer", SpecDecodeBaseProposer=classes.SpecDecodeBaseProposer)
    module("vllm.v1.spec_decode.step3p5", Step3p5MTPProposer=classes.Step3p5MTPProposer)
    module("vllm.v1.worker.gpu_model_runner", GPUModelRunner=classes.GPUModelRunner)
    module("vllm.v1.outputs", SamplerOutput=lambda **values: made("v1/outputs:SamplerOutput", **values))
    module("vllm.v1.sample.ops.topk_topp_sampler", apply_top_k_top_p=called(
        "v1/sample/ops/topk_topp_sampler:apply_top_k_top_p", filtered))
    module("vllm.v1.spec_decode.metadata", SpecDecodeMetadata=types.SimpleNamespace(make_dummy=metadata_of))
    module("vllm.v1.worker.gpu.spec_decode.rejection_sampler", RejectionSampler=RejectionSamplerV2)
    classes.counted = {}
    module("prometheus_client", Counter=lambda name, text: types.SimpleNamespace(
        inc=lambda more: classes.counted.update({name: classes.counted.get(name, 0.0) + more})))
    monkeypatch.setattr(plug_in, "_counters", plug_in.functools.lru_cache(plug_in._counters.__wrapped__))
    classes.root = module("vllm", __version__="0.32.0")
    return classes


def functions(vllm):
    return [vllm.SamplingParams._verify_extra_args, vllm.RejectionSampler.forward, vllm.GPUModelRunner._sample,
            vllm.ModelState.custom_sampler, vllm.SpecDecodeBaseProposer.propose, vllm.SpecDecodeBaseProposer._sample_from_logits,
            vllm.Step3p5MTPProposer.propose]


def test_does_nothing_until_asked(vllm, monkeypatch):
    monkeypatch.delenv("SPECAGG_VLLM", raising=False)
    before = functions(vllm)
    plug_in.register()
    assert functions(vllm) == before


def test_replaces_once(vllm, monkeypatch):
    monkeypatch.setenv("SPECAGG_VLLM", "lossless")
    vllm.root.__version__ = "0.32.0+cpu"
    before = functions(vllm)
    plug_in.register()
    once = functions(vllm)
    assert all(a is not b for a, b in zip(before, once))
    plug_in.register()
    assert functions(vllm) == once


def test_another_version_keeps_its_own(vllm, monkeypatch, caplog):
    monkeypatch.setenv("SPECAGG_VLLM", "lossless")
    vllm.root.__version__, before = "0.99.0", functions(vllm)
    with caplog.at_level(logging.WARNING):
        plug_in.register()
    assert functions(vllm) == before and len(caplog.records) == 1
    assert "SPECAGG_VLLM=lossless is not followed" in caplog.text and "0.99.0" in caplog.text and "0.32.0" in caplog.text


def test_wrong_policy_ends_the_start(vllm, monkeypatch):
    monkeypatch.setenv("SPECAGG_VLLM", "lossy:alpha=9")
    with pytest.raises(ValueError, match='SPECAGG_VLLM: "lossy:alpha=9"'):
        plug_in.register()


def test_entry_point():
    text = pathlib.Path(__file__).parents[1].joinpath("pyproject.toml").read_text()
    assert '[project.entry-points."vllm.general_plugins"]\nspecagg = "specagg.vllm:register"\n' in text
    assert f'vllm = ["vllm=={plug_in.VERSIONS[-1]}"]' in text


# ---- objects of vLLM -------------------------------------------------------------------------------------------------


def made(place, **values):
    """An object of vLLM with recorded names alone."""
    assert set(values) <= set(FACTS["fields"][place]), place
    return types.SimpleNamespace(**values)


def called(place, function):
    """A function of vLLM that takes the recorded parameters alone."""
    names = [name for name in FACTS["functions"][place] if name not in ("self", "cls")]
    signature = inspect.Signature([inspect.Parameter(n.rstrip("="), inspect.Parameter.POSITIONAL_OR_KEYWORD, default=(
        None if n.endswith("=") else inspect.Parameter.empty)) for n in names])

    def call(*args, **kwargs):
        signature.bind(*args, **kwargs)
        return function(*args, **kwargs)

    return call


def filtered(logits, k, p):
    """vLLM's apply_top_k_top_p: rows [n, V], filters [n] or None."""
    out = logits.clone()
    for i, row in enumerate(out):
        order = row.argsort(descending=True)
        if k is not None:
            row[order[int(k[i]):]] = -np.inf
        if p is not None:
            probs = row.softmax(-1)[order]
            row[order[(probs.cumsum(-1) - probs) >= p[i]]] = -np.inf
    return out


def metadata_of(drafts, device="cpu"):
    counts = [len(one) for one in drafts]
    cu, ends = np.cumsum(counts), np.cumsum([n + 1 for n in counts])
    rows = np.arange(ends[-1])
    bonus = np.isin(rows, ends - 1)
    as_int = lambda x: torch.as_tensor(np.asarray(x, np.int32))  # noqa: E731
    return made("v1/spec_decode/metadata:SpecDecodeMetadata", draft_token_ids=as_int(sum(drafts, [])), num_draft_tokens=counts,
                cu_num_draft_tokens=as_int(cu), cu_num_sampled_tokens=as_int(ends), target_logits_indices=as_int(rows[~bonus]),
                bonus_logits_indices=as_int(rows[bonus]), logits_indices=as_int(rows), max_spec_len=max(counts))


class MinTokens:
    def __init__(self, min_toks):
        self.min_toks = min_toks


class LogitBias:
    def __init__(self, biases):
        self.biases = biases


def params_of(**more):
    return made("sampling_params:SamplingParams", **{**dict(extra_args=None, structured_outputs=None, bad_words=None,
                                                            allowed_token_ids=None, min_tokens=0), **more})


def metadata_for(B, **more):
    idle = made("v1/sample/logits_processor/state:LogitsProcessors", non_argmax_invariant=[MinTokens({}), LogitBias({})])
    values = dict(temperature=torch.ones(B), all_greedy=False, top_p=None, top_k=None, generators={}, max_num_logprobs=None,
                  no_penalties=True, bad_words_token_ids={}, allowed_token_ids_mask=None, logitsprocs=idle,
                  thinking_budget_state_holder=None, logprob_token_ids=None)
    return made("v1/sample/metadata:SamplingMetadata", **{**values, **more})


def rejection_sampler(shown=None):
    edits = lambda logits, *more: logits  # noqa: E731
    out = made(f"{V1}:RejectionSampler", synthetic_mode=False, is_processed_logprobs_mode=True, is_logits_logprobs_mode=False,
               sampler=types.SimpleNamespace(apply_logits_processors=called("v1/sample/sampler:Sampler.apply_logits_processors",
                                                                           edits)))
    out.apply_logits_processors = called(f"{V1}:RejectionSampler.apply_logits_processors", edits)
    out._get_logprobs_tensors = called(f"{V1}:RejectionSampler._get_logprobs_tensors", shown)
    return out


class RejectionSamplerV2:
    def __init__(self, sampler, spec_config, device):
        self.sampler, self.num_speculative_steps = sampler, 2

    def _get_logprobs_tensors(self, sampled, num_sampled, logits, cu_num_logits, cu_num_logits_np, max_num_logprobs):
        flat = torch.zeros(len(logits), dtype=torch.int64)
        for i, start in enumerate(cu_num_logits[:-1].tolist()):
            flat[start : start + num_sampled[i]] = sampled[i, : num_sampled[i]]
        return LogprobsTensors(flat[:, None], logits.log_softmax(-1).gather(1, flat[:, None]))


class LogprobsTensors:
    def __init__(self, ids, logprobs):
        self.logprob_token_ids, self.logprobs = ids, logprobs

    def _replace(self, logprobs):
        return LogprobsTensors(self.logprob_token_ids, logprobs)


# ---- model runner V1 -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("text, temperature, top_p", [
    ("lossless", 1.0, 1.0), ("lossless,verifier=block", 0.7, 0.9), ("lossless,verifier=match", 1.0, 1.0),
    ("token_v3:alpha=0.3", 1.0, 1.0), ("token_v3:alpha=0.3", 0.6, 1.0), ("ensemble:lambda=0.5", 0.7, 1.0)])
def test_v1_has_the_law(vllm, text, temperature, top_p):
    B = 20000
    many, usual = Many(B, temperature=temperature), plug_in.setting(text, "test")
    how = metadata_for(B, temperature=torch.full((B,), temperature), top_p=None if top_p == 1 else torch.full((B,), top_p))
    out = plug_in.forward(rejection_sampler(), metadata_of(many.drafts), many.q, many.p, how, usual=usual, own=None)
    tokens = out.sampled_token_ids
    first, joint = two_tokens(text.partition(",")[0], temperature, top_p)
    assert tokens.dtype == torch.int32 and tokens.shape == (B, 3) and out.logprobs_tensors is None
    check_first(tokens, first)
    accepted = tokens[(tokens[:, 0] == torch.tensor(many.drafts)[:, 0]) & (tokens[:, 1] >= 0)].numpy()
    for a in range(V):  # a second token, given the first: of the law, whatever it was drawn for
        mine = accepted[accepted[:, 0] == a][:, 1]
        if "block" not in text and "match" not in text and len(mine) > 100:
            assert specagg.goodness_of_fit(mine, joint[a] / first[a]).passed


def test_v1_without_rows_of_the_draft(vllm):
    B = 20000
    many = Many(B)
    for text in ("lossless", "token_v3:alpha=0.3"):
        out = plug_in.forward(rejection_sampler(), metadata_of([[2, 3]] * B), None, many.p, metadata_for(B),
                              usual=plug_in.setting(text, "test"), own=None)
        one_hot = np.where(np.arange(V) == 2, 0.0, -np.inf)
        check_first(out.sampled_token_ids, specagg.law(text, one_hot, P[0, 0], rows="logits").pi)


@pytest.mark.parametrize("text", ["lossless", "token_v3:alpha=0.3"])
def test_a_bonus_token_has_the_targets_law(vllm, text):
    B = 20000
    many = Many(B, gamma=1)
    out = plug_in.forward(rejection_sampler(), metadata_of(many.drafts), many.q, many.p, metadata_for(B),
                          usual=plug_in.setting(text, "test"), own=None)
    tokens = out.sampled_token_ids
    check_first(tokens, two_tokens(text)[0])
    bonus = tokens[tokens[:, 1] >= 0]
    assert len(bonus) > B / 4
    for a in range(V):
        mine = bonus[bonus[:, 0] == a][:, 1].numpy()
        if len(mine) > 100:
            assert specagg.goodness_of_fit(mine, softmax(P[1, a])).passed


def runner(B, drafts, generators=None, policies=None, temperature=1.0, positions=7, grammar=None):
    """A model runner V1 whose requests have `positions` tokens before the drafts."""
    counts = [len(one) + 1 for one in drafts]
    at = np.concatenate([positions - 1 + np.arange(n) for n in counts])
    requests = {str(i): made("v1/worker/gpu_input_batch:CachedRequestState", sampling_params=params_of(
        extra_args=policies and policies[i] and {"specagg": policies[i]}, structured_outputs=grammar)) for i in range(B)}
    how = metadata_for(B, generators=generators or {}, temperature=torch.full((B,), temperature))
    return made("v1/worker/gpu_model_runner:GPUModelRunner", rejection_sampler=rejection_sampler(), requests=requests,
                positions=torch.from_numpy(at), query_start_loc=types.SimpleNamespace(
                    gpu=torch.from_numpy(np.concatenate([[0], np.cumsum(counts)]))),
                discard_request_mask=types.SimpleNamespace(np=np.zeros(B + 3, bool)), _draft_token_ids=None, _draft_probs=None,
                _draft_prob_req_ids=None,
                input_batch=made("v1/worker/gpu_input_batch:InputBatch", req_ids=[str(i) for i in range(B)],
                                 sampling_metadata=how))


def run(self, metadata, logits, q, usual=LOSSLESS):
    """What GPUModelRunner._sample() gives with both functions replaced."""
    def own(self, logits, metadata):
        how = self.input_batch.sampling_metadata
        return plug_in.forward(self.rejection_sampler, metadata, q, logits, how, usual=usual, own=None)

    return plug_in.sample(self, logits, metadata, usual=usual, own=own).sampled_token_ids


def generators(seeds):
    return {i: torch.Generator().manual_seed(seed) for i, seed in enumerate(seeds) if seed is not None}


def part(many, i, gamma=2):
    """Request i alone: its drafts, its rows of q and of p."""
    return [many.drafts[i]], many.q[gamma * i : gamma * (i + 1)], many.p[(gamma + 1) * i : (gamma + 1) * (i + 1)]


@pytest.mark.parametrize("text", ["lossless", "token_v3:alpha=0.3", "lossless,verifier=block"])
def test_v1_tokens_of_a_seed_are_the_same_in_company(vllm, text):
    many, usual = Many(40), plug_in.setting(text, "test")
    seeds = [3 + 2**62 * (i % 2) - 2 * (i % 3) for i in range(40)]
    together = run(runner(40, many.drafts, generators(seeds)), metadata_of(many.drafts), many.p, many.q, usual)
    mixed = run(runner(40, many.drafts, generators(seeds), ["lossless", None, "ensemble,verifier=block"] * 13 + [None]),
                metadata_of(many.drafts), many.p, many.q, usual)
    for i in range(40):
        drafts, q, p = part(many, i)
        alone = run(runner(1, drafts, generators(seeds[i : i + 1])), metadata_of(drafts), p, q, usual)
        assert alone[0].tolist() == together[i].tolist()
        if i % 3 == 1:  # which had no policy of its own
            assert alone[0].tolist() == mixed[i].tolist()
    elsewhere = run(runner(40, many.drafts, generators(seeds), positions=8), metadata_of(many.drafts), many.p, many.q, usual)
    unlike = run(runner(40, many.drafts, generators([s + 1 for s in seeds])), metadata_of(many.drafts), many.p, many.q, usual)
    unseeded = run(runner(40, many.drafts), metadata_of(many.drafts), many.p, many.q, usual)
    for different in (elsewhere, unlike, unseeded):
        assert not torch.equal(different, together)


def test_v1_rounds_without_drafts_are_as_in_company(vllm):
    B, seeds = 30, list(range(30))
    none = [[] for _ in range(B)]
    p = torch.from_numpy(np.repeat(P[0, :1], B, 0))
    alone = run(runner(B, none, generators(seeds)), None, p, None)  # vLLM gives no metadata where there are no drafts
    assert alone.shape == (B, 1)
    drafts = [[1, 2]] + none[1:]
    in_company = run(runner(B, drafts, generators(seeds)), metadata_of(drafts),
                     torch.cat([torch.from_numpy(P[0, :2]), p]), None)
    assert in_company[1:, 0].tolist() == alone[1:, 0].tolist() and (in_company[1:, 1:] == -1).all()
    for usual in (LOSSLESS, TOKEN_V3):  # which draws such a token as a bonus token
        here, there = (run(runner(B, none, generators(seeds), positions=at), None, p, None, usual) for at in (7, 8))
        assert not torch.equal(here, there)
    check_first(run(runner(20000, [[]] * 20000), None, torch.from_numpy(np.repeat(P[0, :1], 20000, 0)), None), softmax(P[0, 0]))


def test_v1_leaves_what_it_does_not_know(vllm):
    own = lambda *args: "own"  # noqa: E731
    without = runner(1, [[]])
    without.rejection_sampler = None
    assert plug_in.sample(without, torch.zeros(1, V), None, usual=LOSSLESS, own=own) == "own"
    scored = runner(1, [[]])
    scored.input_batch.sampling_metadata.logprob_token_ids = {0: [1]}
    assert plug_in.sample(scored, torch.zeros(1, V), None, usual=LOSSLESS, own=own) == "own"
    for which in "synthetic_mode", "use_fly":
        method = rejection_sampler()
        setattr(method, which, True)
        assert plug_in.forward(method, metadata_of([[1]]), None, torch.zeros(2, V), metadata_for(1), usual=LOSSLESS,
                               own=own) == "own"
        without.rejection_sampler = method
        assert plug_in.sample(without, torch.zeros(1, V), None, usual=LOSSLESS, own=own) == "own"


def test_v1_temperature_zero(vllm):
    many = Many(30)
    likeliest = many.p.argmax(-1).reshape(30, 3)
    for text in ("lossless", "lossless,verifier=block", "lossless,verifier=match"):
        for q in (None, many.q):
            how = metadata_for(30, temperature=None, all_greedy=True)
            out = plug_in.forward(rejection_sampler(), metadata_of(many.drafts), q, many.p, how,
                                  usual=plug_in.setting(text, "test"), own=None).sampled_token_ids
            for tokens, best in zip(out, likeliest):
                tokens = tokens[tokens >= 0]
                assert tokens.tolist() == best[: len(tokens)].tolist()


def test_v1_invalid_rows_are_said(vllm, caplog):
    many = Many(20000)
    many.p[3:6] = torch.nan
    many.q[0::2] = torch.nan  # of the first drafted tokens
    with caplog.at_level(logging.WARNING):
        out = plug_in.forward(rejection_sampler(), metadata_of(many.drafts), many.q, many.p, metadata_for(20000), usual=TOKEN_V3,
                              own=None).sampled_token_ids
    assert out[1].tolist() == [0, -1, -1] and (out[[0, 2], 0] >= 0).all() and (out[:, 1] == -1).all()
    check_first(torch.cat([out[:1], out[2:]]), softmax(P[0, 0]))  # of the target
    assert "the target's row of request 1 of this batch is invalid_row" in caplog.text and "ERROR" in caplog.text
    assert "drafts of request 0 of this batch are not followed: invalid_row" in caplog.text


def test_v1_a_draft_that_q_excludes_is_rejected(vllm):
    B = 20000
    many = Many(B)
    many.q[::2, 3] = 0
    for text in ("lossless", "token_v3:alpha=0.3"):
        out = plug_in.forward(rejection_sampler(), metadata_of([[3, 1]] * B), many.q, many.p, metadata_for(B),
                              usual=plug_in.setting(text, "test"), own=None).sampled_token_ids
        check_first(out, specagg.law(text, many.q[0].log().numpy(), P[0, 0], rows="logits").pi)


def test_v1_drafts_of_minus_one_end(vllm):
    many = Many(30)
    drafts = [[one[0], -1] for one in many.drafts]
    for usual in (LOSSLESS, TOKEN_V3):
        out = plug_in.forward(rejection_sampler(), metadata_of(drafts), many.q, many.p, metadata_for(30), usual=usual, own=None)
        assert (out.sampled_token_ids[:, 2] == -1).all() and (out.sampled_token_ids[:, 1] >= 0).any()


def test_v1_log_probabilities_are_those_of_the_policy(vllm):
    seen = {}

    def shown(most, metadata, logits, at_target, at_bonus, sampled):
        seen["target"] = at_target
        ids = sampled.clone().flatten().long()
        ids[ids < 0] = 0
        return LogprobsTensors(torch.stack([ids, ids, torch.full_like(ids, V)], 1), torch.full((len(ids), 3), -100.0))

    many = Many(50)
    how = metadata_for(50, max_num_logprobs=2, top_k=torch.full((50,), 3), temperature=torch.full((50,), 0.8))
    out = plug_in.forward(rejection_sampler(shown), metadata_of(many.drafts), many.q, many.p, how,
                          usual=plug_in.setting("ensemble:lambda=0.5", "test"), own=None)
    logprobs = out.logprobs_tensors.logprobs.reshape(50, 3, 3)
    there = out.sampled_token_ids >= 0
    assert (logprobs[~there] == -100).all() and (logprobs[there][:, 2] == -100).all()
    top = softmax(np.where(P[0, 0] >= np.sort(P[0, 0])[-3], P[0, 0], -np.inf), 0.8)
    pi = specagg.law("ensemble:lambda=0.5", softmax(Q[0, 0], 1.0), top).pi  # Many drew at temperature 1
    for token, row in zip(out.sampled_token_ids[:, 0].tolist(), logprobs[:, 0]):
        np.testing.assert_allclose(row[:2], np.log(pi[token]), atol=1e-5)
    assert int(seen["target"][0].isneginf().sum()) == V - 3


class Proposer:
    """Of drafts, one row of Q a step."""

    def own(self, logits, sampling_metadata):
        probs = logits.softmax(-1)
        return torch.multinomial(probs, 1)[:, 0], probs

    def round(self, how, lengths, steps, parallel=False, rejected=None):
        """[B, steps]. lengths: of the texts, whose last token's draft is not yet computed."""
        B, out = len(lengths), []

        def draft(*args):
            for j in range(1 if parallel else steps):
                n = B * (steps if parallel else 1)
                logits = torch.from_numpy(np.repeat(Q[0, :1], n, 0))
                out.append(plug_in.draw_draft(self, logits, how, own=lambda *args: Proposer.own(*args))[0])

        extra = torch.zeros(B, dtype=torch.int32) if rejected is None else rejected
        attention = types.SimpleNamespace(seq_lens=torch.as_tensor(lengths, dtype=torch.int32) - 1 + extra)
        plug_in.propose(self, steps, None, None, None, None, None, attention, how, None, rejected, own=draft)
        return out[0].view(B, steps) if parallel else torch.stack(out, 1)


def test_v1_drafts_of_a_seed_are_a_function_of_seed_and_position():
    """Whoever else is there, and whatever was drawn before, as for a part of a prompt."""
    B, lengths = 20000, np.full(20000, 12)
    how = metadata_for(B, generators=generators(range(B)))
    ids = Proposer().round(how, lengths, 2)
    for step in range(2):
        check_first(ids[:, step:], softmax(Q[0, 0]))
    pairs = specagg.goodness_of_fit((ids[:, 0] * V + ids[:, 1]).numpy(), np.outer(*[softmax(Q[0, 0])] * 2).flatten())
    assert pairs.passed  # steps are independent of each other
    used = Proposer()
    used.round(how, lengths - 5, 2)
    assert torch.equal(used.round(how, lengths, 2), ids)
    assert torch.equal(Proposer().round(how, lengths, 2, rejected=torch.ones(B, dtype=torch.int32)), ids)
    alone = [Proposer().round(metadata_for(1, generators=generators([i])), [12], 2)[0].tolist() for i in range(30)]
    assert alone == ids[:30].tolist()
    some = Proposer().round(metadata_for(30, generators={i: g for i, g in generators(range(30)).items() if i % 2}), [12] * 30, 2)
    assert torch.equal(some[1::2], ids[1:30:2]) and not torch.equal(some[::2], ids[:30:2])  # the others: vLLM's own
    assert torch.equal(Proposer().round(how, lengths, 2, parallel=True), ids)
    for other in Proposer().round(how, lengths + 1, 2), Proposer().round(metadata_for(B, generators=generators(range(1, B + 1))),
                                                                        lengths, 2):
        assert not torch.equal(other, ids)
    both = specagg.goodness_of_fit((ids[:, 0] * V + Proposer().round(how, lengths + 1, 1)[:, 0]).numpy(),
                                   np.outer(*[softmax(Q[0, 0])] * 2).flatten())
    assert both.passed  # as are positions
    cold = metadata_for(30, generators=generators(range(30)), temperature=torch.zeros(30))
    assert Proposer().round(cold, [12] * 30, 1)[:, 0].tolist() == [int(Q[0, 0].argmax())] * 30


def test_a_token_without_mass_is_not_drawn():
    rows = torch.tensor([[0.0, 0.5, 0.0, 0.5, 0.0]]).repeat(4, 1)
    u = torch.tensor([2.0**-54, 0.5, 0.5 + 2.0**-53, 1 - 2.0**-53], dtype=torch.float64)
    assert _engine.drawn(rows, u, torch.ones(4)).tolist() == [1, 1, 3, 3]
    assert _engine.drawn(torch.zeros(1, V), u[:1], torch.ones(1)).tolist() == [V]
    u = _engine.uniforms(torch.arange(-3, 3), torch.arange(6), 1, 0)
    assert u.dtype == torch.float64 and ((u > 0) & (u < 1)).all() and len(set(u.tolist())) == 6


# ---- tokens that requests forbid -------------------------------------------------------------------------------------

ALLOWED = np.array([True, False, True, True, False])  # of the first token; of the second all


def masked(x, temperature=1.0):
    return softmax(np.where(ALLOWED, x, -np.inf), temperature)


def forbidding(many, B):
    p = many.p.clone().reshape(B, 3, V)
    p[:, 0, ~ALLOWED] = -torch.inf
    return p.reshape(-1, V)


FORBIDDEN = ["lossless", "lossless,verifier=block", "lossless,verifier=match", "token_v3:alpha=0.3", "ensemble:lambda=0.5",
             "ensemble:lambda=0.5,verifier=block"]


@pytest.mark.parametrize("text", FORBIDDEN)
@pytest.mark.parametrize("dropped", [True, False])
def test_v1_structured_output_has_the_law(vllm, text, dropped):
    """dropped: the scheduler takes off the draft from the first forbidden token on; or it leaves it there."""
    B, usual = 20000, plug_in.setting(text, "test")
    many, temperature = Many(B, temperature=0.8), 0.8
    p, fine = forbidding(many, B), [ALLOWED[one[0]] for one in many.drafts]
    drafts, q = many.drafts, many.q
    if dropped:
        drafts = [one if ok else [] for one, ok in zip(many.drafts, fine)]
        there = torch.tensor(np.repeat(fine, 2))
        p = p[torch.tensor(np.repeat(fine, 3)) | (torch.arange(3 * B) % 3 == 0)]
        q = q[there]
    self = runner(B, drafts, temperature=temperature, grammar=object())
    self._draft_token_ids = torch.tensor(many.drafts)
    self._draft_probs, self._draft_prob_req_ids = many.q.reshape(B, 2, V), self.input_batch.req_ids
    self.specagg_drafted = set(self.input_batch.req_ids)
    tokens = run(self, metadata_of(drafts), p, q, usual)
    assert tokens.shape == (B, 3)
    qa, pa = masked(Q[0, 0], temperature), masked(P[0, 0], temperature)
    pi = pa if text.startswith("lossless") else specagg.law(text.partition(",")[0], np.log(qa + 1e-300) * temperature, np.where(
        ALLOWED, P[0, 0], -np.inf), rows="logits", sampling=specagg.Sampling(temperature)).pi
    check_first(tokens, pi)
    ended = ~torch.tensor(fine)
    assert (tokens[ended, 1:] == -1).all()  # after a token that was drawn again there is no row
    accepted = tokens[~ended]
    accepted = accepted[accepted[:, 1] >= 0].numpy()
    likeliest = int(np.argmax(np.where(ALLOWED, np.minimum(qa, pa), 0)))
    second = softmax(P[1, likeliest], temperature) if text.startswith("lossless") else specagg.law(text.partition(",")[0], Q[
        1, likeliest], P[1, likeliest], rows="logits", sampling=specagg.Sampling(temperature)).pi
    if "block" not in text and "match" not in text:  # these accept a first token because of the second
        after = accepted[accepted[:, 0] == likeliest][:, 1]
        assert len(after) > 2000 and specagg.goodness_of_fit(after, second).passed


@pytest.mark.parametrize("text", ["lossless", "lossless,verifier=block", "lossless,verifier=match", "ensemble:lambda=0.5"])
def test_v1_a_draft_that_is_cut_for_want_of_room_has_no_bonus_of_another_row(vllm, text):
    """Nothing is forbidden; half of the requests have one draft of two scheduled."""
    B, many = 20000, Many(20000)
    short = np.arange(B) % 2 == 0
    drafts = [one[:1] if cut else one for one, cut in zip(many.drafts, short)]
    there = torch.from_numpy(~(np.repeat(short, 3) & (np.arange(3 * B) % 3 == 2)))
    q = many.q[torch.from_numpy(~(np.repeat(short, 2) & (np.arange(2 * B) % 2 == 1)))]
    self = runner(B, drafts, grammar=object())
    self._draft_token_ids = torch.tensor(many.drafts)
    self._draft_probs, self._draft_prob_req_ids = many.q.reshape(B, 2, V), self.input_batch.req_ids
    self.specagg_drafted = set(self.input_batch.req_ids)
    usual = plug_in.setting(text, "test")
    tokens = run(self, metadata_of(drafts), many.p[there], q, usual)
    assert (tokens[short, 2] == -1).all() and (tokens[~short, 2] >= 0).any() and (tokens[short, 1] >= 0).any()
    first, joint = two_tokens(text.partition(",")[0])
    check_first(tokens, first)
    likeliest = int(first.argmax())
    if "block" not in text and "match" not in text:
        mine = tokens[short & (tokens[:, 0] == likeliest).numpy() & (tokens[:, 0] == torch.tensor(many.drafts)[:, 0]).numpy()]
        assert specagg.goodness_of_fit(mine[mine[:, 1] >= 0][:, 1].numpy(), joint[likeliest] / first[likeliest]).passed


@pytest.mark.parametrize("text", ["lossless", "ensemble:lambda=0.5", "chow:alpha=0.5"])
def test_v1_drafts_without_rows_end_before_a_forbidden_token(vllm, text):
    B = 20000
    many, usual = Many(B), plug_in.setting(text, "test")
    self = runner(B, [[1, 0]] * B, grammar=object())  # token 1 is forbidden
    tokens = run(self, metadata_of([[1, 0]] * B), forbidding(many, B), None, usual)
    check_first(tokens, masked(P[0, 0]))
    assert (tokens[:, 1:] == -1).all()


@pytest.mark.parametrize("text", ["lossless", "ensemble:lambda=0.5"])
def test_v2_structured_output_has_the_law(vllm, text):
    B = 20000
    many = Many(B)
    sampler, rejecting = samplers_v2(sampler_v2(B, 1.0, np.arange(B)), text, structured_outputs=object())
    many.p = forbidding(many, B)
    tokens = verify_v2(rejecting, many, np.arange(B), many.q.reshape(B, 2, V).log())[1]
    qa, pa = masked(Q[0, 0]), masked(P[0, 0])
    check_first(tokens, pa if text == "lossless" else 0.5 * qa + 0.5 * pa)


def test_what_was_dropped_is_known_of_the_last_round_alone(vllm):
    """No draft of a part of a prompt, of a request without a grammar, or of one that was not drafted for."""
    many = Many(4)
    self = runner(4, [[]] * 4, grammar=object())
    self._draft_token_ids, self._draft_probs = torch.tensor(many.drafts), many.q.reshape(4, 2, V)
    self._draft_prob_req_ids = ["2", "0", "1", "9"]
    self.requests["1"].sampling_params.structured_outputs = None
    found = plug_in.dropped(self, [0, 0, 1, 0], {"0", "1", "2", "3"})
    assert sorted(found) == [0, 2]
    assert found[0][0].tolist() == [many.drafts[1][0]] and found[2][0].tolist() == [many.drafts[0][1]]
    assert torch.equal(found[2][1], many.q[1:2])
    assert plug_in.dropped(self, [2, 2, 2, 2], {"0", "1", "2", "3"}) == {} == plug_in.dropped(self, [0] * 4, {"3", "9"})
    self._draft_token_ids = [[1, 2]] * 4  # n-grams
    assert plug_in.dropped(self, [0] * 4, {"0", "2"}) == {}
    self._draft_probs = None
    self.discard_request_mask.np[1] = True  # request 1 is at a part of its prompt
    run(self, None, many.p[:4], None)
    assert self.specagg_drafted == {"0", "2", "3"}


@pytest.mark.parametrize("text", ["lossless", "token_v3:alpha=0.3"])
def test_v1_forbidden_tokens_where_the_draft_has_no_other(vllm, text):
    B = 20000
    many = Many(B)
    many.q[::2] = torch.tensor([0.0, 0.5, 0.0, 0.0, 0.5])
    drafts = [[1, 0]] * B
    self = runner(B, drafts, grammar=object())
    tokens = run(self, metadata_of(drafts), forbidding(many, B), many.q, plug_in.setting(text, "test"))
    check_first(tokens, masked(P[0, 0]))
    assert (tokens[:, 1:] == -1).all()


def test_v1_reads_the_engines_rows_where_they_lie(vllm, monkeypatch):
    many, seen = Many(6), []
    own = _engine.decide
    monkeypatch.setattr(plug_in, "decide", lambda r, *more: seen.append(r) or own(r, *more))

    def go(how, logits):
        plug_in.forward(rejection_sampler(), metadata_of(many.drafts), many.q, logits, how, usual=LOSSLESS, own=None)
        return seen[-1].rows.data_ptr() == logits.data_ptr()

    assert go(metadata_for(6), many.p)
    before = many.p.clone()
    holder = types.SimpleNamespace(has_tracked_requests=lambda: True)
    processors = [made("v1/sample/logits_processor/state:LogitsProcessors", non_argmax_invariant=[one])
                  for one in (MinTokens({0: 1}), LogitBias({0: {1: 2.0}}), object())]
    for edited in (dict(no_penalties=False), dict(bad_words_token_ids={0: [[1]]}), dict(allowed_token_ids_mask=torch.ones(6, V)),
                   dict(thinking_budget_state_holder=holder), *(dict(logitsprocs=one) for one in processors)):
        assert not go(metadata_for(6, **edited), many.p)
    assert torch.equal(many.p, before)


# ---- metrics ---------------------------------------------------------------------------------------------------------


def check_counted(counted, tokens, law, target):
    """tokens: of B requests, of which the first alone may be away from the target's law."""
    assert counted["specagg:tokens"] == (tokens >= 0).sum()
    expected = 0.5 * np.abs(law - target).sum()
    assert expected == 0 or expected > 0.05
    assert abs(counted["specagg:distance"] / len(tokens) - expected) <= 5 * 0.5 / len(tokens) ** 0.5 * (expected > 0)


@pytest.mark.parametrize("text, temperature", [("lossless", 1.0), ("token_v3:alpha=0.5", 1.0), ("ensemble:lambda=0.9", 0.7)])
def test_distance_from_the_target_is_counted(vllm, text, temperature):
    B, usual = 20000, plug_in.setting(text, "test")
    many = Many(B, gamma=1, temperature=temperature)
    tokens = run(runner(B, many.drafts, temperature=temperature), metadata_of(many.drafts), many.p, many.q, usual)
    check_counted(vllm.counted, tokens, two_tokens(text, temperature)[0], softmax(P[0, 0], temperature))
    before = dict(vllm.counted)
    plug_in.forward(rejection_sampler(), metadata_of(many.drafts), many.q, many.p, metadata_for(B), usual=usual, own=None)
    assert vllm.counted == before  # vLLM warms up
    run(runner(9, [[]] * 9), metadata_of([[]] * 9), many.p[:9], None, usual)
    assert vllm.counted == before  # no drafts


def test_requests_without_drafts_or_rows_are_not_counted(vllm):
    many, drafts = Many(3), [[1, 2], [], [3, 4]]  # the second is between parts of its prompt
    many.p[4:7] = torch.nan
    tokens = run(runner(3, drafts), metadata_of(drafts), many.p[:7], many.q[:4])
    assert tokens[1, 0] >= 0 and tokens[2].tolist() == [0, -1, -1]
    assert vllm.counted["specagg:tokens"] == (tokens[0] >= 0).sum()


def test_metrics_that_cannot_be_had_end_nothing(vllm, monkeypatch, caplog):
    def missing(name, text):
        raise FileNotFoundError("counter_1.db")

    monkeypatch.setattr(sys.modules["prometheus_client"], "Counter", missing)
    many = Many(5)
    for _ in range(2):
        run(runner(5, many.drafts), metadata_of(many.drafts), many.p, many.q)
    assert caplog.text.count("specagg: no metrics: counter_1.db") == 1


def test_log_probabilities_of_the_target_are_of_the_tokens(caplog):
    """Those of several settings in a batch, and where the draft's row is NaN."""
    B, how = 30, ["ensemble:lambda=0.5", "lossless", "token_v3:alpha=0.5"]
    many = Many(B)
    many.q[0] = torch.nan
    r = _engine.Round(many.p, torch.tensor(many.drafts).flatten().int(), torch.arange(1, B + 1) * 2, 2, many.q, False,
                      torch.arange(B), torch.zeros(B, dtype=torch.int64), torch.full((B,), 0.8), None, None)
    out = _engine.decide(r, [plug_in.setting(how[i % 3], "test") for i in range(B)], logging.getLogger("test"))
    assert out.emitted[0] == 1 and "request 0" in caplog.text
    at, places = torch.nonzero(out.tokens >= 0, as_tuple=True)
    expected = (many.p / 0.8).log_softmax(-1).reshape(B, 3, V)[at, places, out.tokens[at, places].long()]
    np.testing.assert_allclose(out.log_p[at, places], expected, atol=1e-5)
    assert out.log_p[out.tokens < 0].isnan().all() and (out.log_p - out.log_pi)[0::3].nan_to_num().abs().max() > 0.01


def test_a_device_without_kernels_is_verified_on_the_host(monkeypatch):
    assert _engine.verifier_for("cpu") is _engine.on_cpu and _engine.verifier_for("cuda") is _engine.on_device
    for device in "xpu", "npu", "mps", "privateuseone":
        assert _engine.verifier_for(device) is _engine.on_host
    many, B, moved = Many(30), 30, []
    r = _engine.Round(many.p, torch.tensor(many.drafts).flatten().int(), torch.arange(1, B + 1) * 2, 2, many.q, False,
                      torch.arange(B), torch.zeros(B, dtype=torch.int64), torch.full((B,), 0.8), None, None)
    own = torch.Tensor.cpu
    monkeypatch.setattr(torch.Tensor, "cpu", lambda x: (moved.append(x), own(x))[1])
    here, there = (run(r, LOSSLESS, logging.getLogger("test")) for run in (_engine.on_cpu, _engine.on_host))
    assert len(moved) == sum(torch.is_tensor(x) for x in r)  # all of it, or on_cpu() would meet a tensor of the device
    for a, b in zip(here, there):
        assert torch.equal(a.nan_to_num(), b.nan_to_num())


def test_distance_from_the_target_is_counted_in_v2(vllm):
    B, text = 20000, "token_v3:alpha=0.5"
    sampler, rejecting = samplers_v2(sampler_v2(B, 1.0, np.arange(B)), text)
    many = Many(B)
    many.p = many.p.reshape(B, 3, V)
    many.p[:, 1:] = -np.inf  # after the first token both models are sure of token 0
    many.p[:, 1:, 0] = 0
    many.p = many.p.reshape(-1, V)
    logits = many.q.reshape(B, 2, V).log()
    logits[:, 1] = many.p[1]
    tokens = verify_v2(rejecting, many, np.arange(B), logits, drafts=[[one[0], 0] for one in many.drafts])[1]
    check_counted(vllm.counted, tokens, two_tokens(text)[0], softmax(P[0, 0]))


def test_sums_of_a_device_are_read_later(vllm, monkeypatch):
    monkeypatch.setattr(plug_in, "_on_a_device", lambda rows: True)
    sampler, counted = types.SimpleNamespace(), []
    r = types.SimpleNamespace(most=2, cu_num_draft_tokens=torch.tensor([2, 4]), rows=None)
    log_pi = torch.log(torch.tensor([[0.5, 0.4, torch.nan], [1.0, torch.nan, torch.nan]]))
    out = types.SimpleNamespace(log_pi=log_pi, log_p=log_pi + np.log(0.75))
    for _ in range(192):
        plug_in._count(sampler, r, out)
        counted.append(dict(vllm.counted))
    assert counted[62] == {} and counted[63] == counted[126] == {"specagg:tokens": 0, "specagg:distance": 0}
    for round, sums in (127, 64), (190, 64), (191, 128):
        assert counted[round]["specagg:tokens"] == 3 * sums
        assert abs(counted[round]["specagg:distance"] - 0.75 * sums) < 1e-4


# ---- model runner V2 -------------------------------------------------------------------------------------------------


def of_numpy(x):
    return made("v1/worker/gpu/buffer_utils:UvaBackedTensor", np=x, gpu=torch.from_numpy(x))


def sampler_v2(slots, temperature, seeds=None, top_k=V):
    """Of `slots` requests; its parameters are temperature and top-k."""
    t = np.full(slots, temperature, np.float32)
    seeds = np.arange(slots, dtype=np.int64) if seeds is None else np.array(seeds, np.int64)
    states = made("v1/worker/gpu/sample/states:SamplingStates", temperature=of_numpy(t), seeds=of_numpy(seeds))

    def apply(logits, *more):
        return filtered(logits.float() / (temperature or 1), torch.full((len(logits),), top_k), None)

    out = made("v1/worker/gpu/sample/sampler:Sampler", sampling_states=states, logprobs_mode="processed_logprobs")
    out.apply_sampling_params = called("v1/worker/gpu/sample/sampler:Sampler.apply_sampling_params", apply)
    out.add_request = called("v1/worker/gpu/sample/sampler:Sampler.add_request", lambda *args: None)
    return out


def state_v2(**more):
    spec = made("config/speculative:SpeculativeConfig", rejection_sample_method="standard")
    config = made("config/vllm:VllmConfig", **{**dict(speculative_config=spec, watermark_config=None), **more})
    return made("v1/worker/gpu/model_states/interface:ModelState", vllm_config=config, device="cpu")


def samplers_v2(sampler, text="lossless", **params):
    both = plug_in.custom_sampler(state_v2(), sampler, usual=plug_in.setting(text, "test"), own=lambda *args: None)
    for i in range(len(sampler.sampling_states.seeds.np)):
        sampler.add_request(i, params_of(**params))
    return both


def verify_v2(made_v2, many, slots, q=None, drafts=None, positions=7):
    """slots: of the requests, in the order of the batch."""
    slots, drafts = np.asarray(slots), many.drafts if drafts is None else drafts
    B = len(slots)
    local = torch.arange(3, dtype=torch.int32).repeat(B)
    sampled = torch.tensor([[9, *one] for one in drafts]).flatten()
    where = torch.from_numpy(slots)
    return made_v2._verify(many.p, q, sampled, positions - 1 + local.long(), torch.arange(B + 1, dtype=torch.int32) * 3, where,
                           slots, where.repeat_interleave(3), local, np.full(B, 20), sampled)


@pytest.mark.parametrize("text, temperature, top_k", [
    ("lossless", 1.0, V), ("lossless", 0.7, 3), ("lossless,verifier=block", 0.7, V), ("token_v3:alpha=0.3", 0.6, V)])
def test_v2_has_the_law(vllm, text, temperature, top_k):
    B = 20000
    many = Many(B, temperature=temperature)
    sampler, rejecting = samplers_v2(sampler_v2(B, temperature, np.arange(B), top_k), text)
    logits = torch.zeros(B, 2, V + 1)  # the draft's vocabulary may be larger; its logits are those before temperature
    logits[..., :V] = many.q.reshape(B, 2, V).log() * temperature
    logits[..., V] = -np.inf
    rows, tokens, count = verify_v2(rejecting, many, np.arange(B), logits)
    assert tokens.dtype == torch.int64 and tokens.shape == (B, 3) and count.dtype == torch.int32
    assert ((tokens >= 0).sum(1) == count).all()
    if text.startswith("lossless"):
        best = np.where(P[0, 0] >= np.sort(P[0, 0])[-top_k], P[0, 0], -np.inf)
        first = softmax(best, temperature)
    else:
        first = two_tokens(text, temperature)[0]
    check_first(tokens, first)
    log_pi = rejecting._get_logprobs_tensors(tokens, count, rows, torch.arange(B + 1) * 3, np.arange(B + 1) * 3, 0).logprobs
    np.testing.assert_allclose(log_pi.reshape(B, 3)[:, 0], np.log(first[tokens[:, 0].numpy()]), atol=1e-5)


def test_v2_ids_beyond_the_drafts_vocabulary(vllm):
    B = 20000
    sampler, rejecting = samplers_v2(sampler_v2(B, 1.0))
    many = Many(B)
    tokens = verify_v2(rejecting, many, np.arange(B), torch.zeros(B, 2, 3), drafts=np.random.default_rng(1).integers(
        0, 3, (B, 2)).tolist())[1]
    check_first(tokens, softmax(P[0, 0]))


def test_v2_tokens_depend_on_seed_and_position_alone(vllm):
    many = Many(20)
    seeds = np.random.default_rng(2).integers(-(2**63), 2**63 - 1, 40)
    _, rejecting = samplers_v2(sampler_v2(40, 1.0, seeds))
    slots = np.random.default_rng(3).permutation(40)[:20]
    drafts = torch.zeros(40, 2, V)
    drafts[slots] = many.q.reshape(20, 2, V).log()
    together = verify_v2(rejecting, many, slots, drafts)[1]
    for i in range(20):
        alone = Many(1)
        _, alone.q, alone.p = part(many, i)
        assert verify_v2(rejecting, alone, slots[i : i + 1], drafts, [many.drafts[i]])[1][0].tolist() == together[i].tolist()
    assert not torch.equal(verify_v2(rejecting, many, slots, drafts, positions=8)[1], together)


def test_v2_placeholders_and_rounds_without_drafts(vllm):
    """A draft of -1 alone, and no draft: one token, with the law of p, and the same one."""
    B = 20000
    sampler, rejecting = samplers_v2(sampler_v2(B, 0.7, np.arange(B)))
    many = Many(B)
    tokens, count = verify_v2(rejecting, many, np.arange(B), drafts=[[-1, -1]] * B)[1:]
    assert (count == 1).all()
    check_first(tokens, softmax(P[0, 0], 0.7))
    slots = torch.arange(B)
    drawn, shown = called("v1/worker/gpu/sample/sampler:Sampler._sample_random", sampler._sample_random)(
        many.p[::3] / 0.7, slots, np.arange(B), torch.full((B,), 6), None, None, False, False)
    assert drawn.tolist() == tokens[:, 0].tolist() and torch.equal(shown, many.p[::3] / 0.7)


def test_v2_policies_of_requests(vllm):
    sampler, rejecting = samplers_v2(sampler_v2(2, 1.0))
    sampler.add_request(1, params_of(extra_args={"specagg": "ensemble,verifier=block"}))
    names = [(one.policy.name, one.verifier) for one, _ in (sampler.specagg_settings[i] for i in (0, 1))]
    assert names == [("lossless", "token"), ("ensemble", "block")]


def test_v2_leaves_what_it_does_not_know(vllm):
    synthetic, fly = (made("config/speculative:SpeculativeConfig", rejection_sample_method=name) for name in ("synthetic", "fly"))
    for config in (dict(speculative_config=None), dict(speculative_config=synthetic), dict(speculative_config=fly),
                   dict(speculative_config=None, watermark_config=object())):
        assert plug_in.custom_sampler(state_v2(**config), sampler_v2(1, 1.0), usual=LOSSLESS, own=lambda *args: None) is None
    assert plug_in.custom_sampler(state_v2(), sampler_v2(1, 1.0), usual=LOSSLESS, own=lambda *args: (1, 2)) == (1, 2)


def test_v2_refuses_by_name_what_it_would_not_follow(vllm):
    spec = made("config/speculative:SpeculativeConfig", rejection_sample_method="standard")
    spec.enable_adaptive_verification = True
    for name, config in {"watermark_config": dict(watermark_config=object()),
                         "enable_adaptive_verification": dict(speculative_config=spec)}.items():
        with pytest.raises(ValueError, match=f"SPECAGG_VLLM: {name} is not supported") as refused:
            plug_in.custom_sampler(state_v2(**config), sampler_v2(1, 1.0), usual=LOSSLESS, own=lambda *args: None)
        assert "\n" not in str(refused.value)
    spec.enable_adaptive_verification = False
    assert plug_in.custom_sampler(state_v2(speculative_config=spec), sampler_v2(1, 1.0), usual=LOSSLESS, own=lambda *args: None)


@pytest.mark.parametrize("ranks", [2, 3])
def test_v2_parts_of_a_batch_on_ranks_have_its_tokens(vllm, ranks):
    """Batch-sharded sampling: slot i is rank i mod ranks'; each has the rows of its requests, views into wider ones, all draft
    logits, and samplers of its own."""
    many, slots = Many(20), np.random.default_rng(3).permutation(40)[:20]
    drafts = torch.zeros(40, 2, V)
    drafts[slots] = many.q.reshape(20, 2, V).log()

    def samplers():
        both = samplers_v2(sampler_v2(40, 0.7, np.arange(40) * 1000))
        for slot in range(0, 40, 3):
            both[0].add_request(slot, params_of(extra_args={"specagg": "token_v3:alpha=0.5,verifier=block"}))
        return both

    sampler, rejecting = samplers()
    together = verify_v2(rejecting, many, slots, drafts)[1]
    whole = {int(slot): one.tolist() for slot, one in zip(slots, together)}
    draw = "v1/worker/gpu/sample/sampler:Sampler._sample_random"
    undrafted = called(draw, sampler._sample_random)(many.p[::3], torch.from_numpy(slots), slots, torch.full((20,), 6), None, None,
                                                     False, False)[0]
    found, none = {}, {}
    for rank in range(ranks):
        mine = np.flatnonzero(slots % ranks == rank)
        own_sampler, own = samplers()
        shard = Many(1)
        shard.p = torch.cat([torch.cat([part(many, i)[2] for i in mine]), torch.zeros(3 * len(mine), 5)], 1)[:, :V]
        assert not shard.p.is_contiguous()
        tokens = verify_v2(own, shard, slots[mine], drafts, [many.drafts[i] for i in mine])[1]
        found |= {int(slot): one.tolist() for slot, one in zip(slots[mine], tokens)}
        alone = called(draw, own_sampler._sample_random)(shard.p[::3], torch.from_numpy(slots[mine]), slots[mine],
                                                         torch.full((len(mine),), 6), None, None, False, False)[0]
        none |= {int(slot): int(one) for slot, one in zip(slots[mine], alone)}
    assert found == whole
    assert none == {int(slot): int(one) for slot, one in zip(slots, undrafted)}


# ---- tensors on a device ---------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def emulator(tmp_path_factory):
    folder = tmp_path_factory.mktemp("emulator")
    before = cuda._how, os.environ.get("SPECAGG_CACHE")
    os.environ["SPECAGG_CACHE"] = str(folder / "cache")
    try:
        cuda._how = emulated.Emulator(folder)
    except (OSError, TypeError, subprocess.CalledProcessError) as e:
        pytest.skip(f"the emulator needs g++ for x86-64 and Boost.Context: {e}")
    finally:
        os.environ.pop("SPECAGG_CACHE")
        if before[1] is not None:
            os.environ["SPECAGG_CACHE"] = before[1]
    os.environ["SPECAGG_CACHE"] = str(folder / "cache")
    yield
    cuda._how = before[0]
    os.environ.pop("SPECAGG_CACHE")
    if before[1] is not None:
        os.environ["SPECAGG_CACHE"] = before[1]


@pytest.mark.parametrize("text", [pytest.param("lossless", marks=pytest.mark.skipif(
    os.environ.get("CI") is not None, reason="takes too long where CI is set")), "token_v3:alpha=0.3"])
def test_tokens_of_a_device_are_the_cpus(emulator, vllm, text):
    many, how, log = Many(30), plug_in.setting(text, "test"), logging.getLogger("test")
    drafts = torch.tensor([[a, -1 if i % 5 == 0 else b] for i, (a, b) in enumerate(many.drafts)]).flatten()
    r = _engine.Round(many.p, drafts.int(), torch.arange(1, 31, dtype=torch.int32) * 2, 2, many.q, False, torch.arange(30) - 5,
                      torch.arange(30) + 3, torch.tensor([1.0, 0.7, 0.0]).repeat(10), None, None)
    filters = r._replace(top_k=torch.full((30,), 4), top_p=torch.full((30,), 0.9))
    for one in (r, filters):
        here, there = _engine.on_cpu(one, how, log), _engine.on_device(one, how, log)
        assert here.tokens.tolist() == there.tokens.tolist() and here.emitted.tolist() == there.emitted.tolist()
        np.testing.assert_allclose(here.log_pi, there.log_pi, atol=1e-5)
        np.testing.assert_allclose(here.log_p, there.log_p, atol=1e-5)
