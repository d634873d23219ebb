# SPDX-License-Identifier: Apache-2.0
"""specagg.cuda: the same bits as specagg.verify(), and what is refused. Where torch sees no GPU the device is emulated:
tensors are the CPU's, and g++ compiles what nvcc would (emulated.py); with an nvcc the text is compiled for devices, too.
On a GPU (scripts/gpu-check) the tests of ON_A_GPU run."""

import functools
import os
import re
import subprocess
import sys
import types

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="specagg.cuda needs torch")

import emulated  # noqa: E402
import flat  # noqa: E402
import specagg  # noqa: E402
from specagg import Sampling, _nvcc, cuda  # noqa: E402
from specagg.traced import traced, where  # noqa: E402

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
HAS_OPERATOR = hasattr(torch.library, "custom_op")
GAMMA = 3
ON_A_GPU = """test_types_of_logits test_probabilities_and_drafts_without_rows test_verifiers test_policies_of_the_catalogue
    test_a_traced_policy test_temperatures_masks_and_ends test_filters test_the_bonus test_rows_of_the_draft_by_numbers
    test_a_cuda_graph test_torch_compile_on_a_gpu""".split()
# Each compiles kernels of its own, some 20 s.
also = functools.partial(pytest.param, marks=pytest.mark.skipif(
    os.environ.get("CI") is not None, reason="takes too long where CI is set"))


@pytest.fixture(scope="module", autouse=True)
def emulator(tmp_path_factory):
    folder = tmp_path_factory.mktemp("emulator")
    before = cuda._how, os.environ.get("SPECAGG_CACHE")
    os.environ["SPECAGG_CACHE"] = str(folder / "cache")
    try:
        cuda._how = emulated.Emulator(folder) if DEVICE == "cpu" else before[0]
    except (OSError, TypeError, subprocess.CalledProcessError) as e:
        os.environ.pop("SPECAGG_CACHE")
        pytest.skip(f"the emulator needs g++ for x86-64 and Boost.Context: {e}")
    yield cuda._how
    cuda._how = before[0]
    os.environ.pop("SPECAGG_CACHE")
    if before[1] is not None:
        os.environ["SPECAGG_CACHE"] = before[1]


@pytest.fixture(autouse=True)
def where_it_runs(request):
    if DEVICE == "cuda" and request.function.__name__ not in ON_A_GPU:
        pytest.skip("is for the emulated device")


class Batch:
    """Ragged drafts of 6 requests, of which some end at -1, and rows of them; for both functions."""

    def __init__(self, V=300, dtype=torch.float32, rows="logits", bonus=False, seed=0):
        random = np.random.default_rng(seed)
        self.counts = np.array([3, 0, 2, 3, 1, 3])
        self.B, self.N, self.V = len(self.counts), int(self.counts.sum()), V
        self.offsets = np.concatenate([[0], np.cumsum(self.counts)])
        self.p = torch.from_numpy(random.normal(0, 2, (self.N + self.B, V)).astype(np.float32)).to(dtype)
        near = self.p.float() + torch.from_numpy(random.normal(0, 0.7, (self.N + self.B, V)).astype(np.float32))
        keep = np.concatenate([np.arange(a, b) + i for i, (a, b) in enumerate(zip(self.offsets[:-1], self.offsets[1:]))])
        near = near if bonus else near[torch.from_numpy(keep)]
        self.q = torch.softmax(near, -1) if rows == "probabilities" else near.to(dtype)
        drawn = torch.softmax(near.float(), -1).numpy()
        where = keep if bonus else np.arange(self.N)
        self.ids = np.array([random.choice(V, p=drawn[i].astype(float) / drawn[i].sum(dtype=float)) for i in where], np.int64)
        self.ids[self.offsets[5] + 1] = -1
        self.seeds = random.integers(0, 2**62, self.B)
        self.positions = random.integers(0, 1000, self.B)
        self.requests = random.integers(0, 1000, self.B)

    def here(self, q, policy="lossless", verifier="token", rows="logits", **more):
        return flat.verify(self.ids, q, self.p, policy, verifier, offsets=self.offsets, rows=rows,
                              **{**dict(seed=self.seeds.astype(np.uint64), positions=self.positions,
                                        requests=self.requests.astype(np.uint64)), **more})

    def there(self, draft_logits=None, ids=torch.int64, numbers=torch.int64, target=None, **more):
        given = dict(
            draft_token_ids=torch.from_numpy(self.ids).to(ids), target_logits=self.p if target is None else target,
            draft_logits=draft_logits, cu_num_draft_tokens=torch.from_numpy(self.offsets[1:].copy()).to(numbers),
            max_spec_len=GAMMA, seeds=torch.from_numpy(self.seeds), positions=torch.from_numpy(self.positions).to(numbers),
            requests=torch.from_numpy(self.requests), log_probs=True, acceptances=True)
        return cuda.verify(**on_the_device({**given, **more}))


def on_the_device(x):
    """Tensors, and those of a dict, where the kernels run."""
    if isinstance(x, dict):
        return {name: on_the_device(one) for name, one in x.items()}
    return x.to(DEVICE) if isinstance(x, torch.Tensor) else x


def agree(there, here, acceptances=False):
    there = types.SimpleNamespace(**{name: x if x is None else x.cpu() for name, x in there._asdict().items()})
    for name in ("tokens", "accepted", "emitted", "statuses"):
        np.testing.assert_array_equal(getattr(there, name).numpy(), getattr(here, name), err_msg=name)
    for name in ("log_pi", "log_p"):
        np.testing.assert_array_equal(getattr(there, name).numpy(), getattr(here, name).astype(np.float32), err_msg=name)
    if acceptances:
        for i, name in enumerate(("acceptance_of_row", "acceptance_of_token")):
            due = getattr(here, name)
            np.testing.assert_array_equal(there.acceptances.numpy()[..., i][~np.isnan(due)], due[~np.isnan(due)], err_msg=name)


@pytest.mark.parametrize("dtype", [torch.float32, also(torch.float16), torch.bfloat16])
def test_types_of_logits(dtype):
    b = Batch(dtype=dtype)
    here = b.here(b.q, acceptances=True)
    assert 0 < here.accepted.sum() < b.N
    agree(b.there(b.q), here, True)
    narrow = b.there(b.q, ids=torch.int32, numbers=torch.int32)
    assert narrow.tokens.dtype == torch.int32
    agree(narrow, here, True)


def test_probabilities_and_drafts_without_rows():
    b = Batch(rows="probabilities")
    agree(b.there(draft_probs=b.q), b.here(b.q, rows=("probabilities", "logits"), acceptances=True), True)
    agree(b.there(), b.here(None, acceptances=True), True)
    b.q[0] *= 0.99  # not normalised: ends its draft
    here = b.here(b.q, rows=("probabilities", "logits"))
    assert specagg.Status.not_normalised in here.reasons
    agree(b.there(draft_probs=b.q), here)
    b.p = torch.softmax(b.p, -1)
    agree(b.there(draft_probs=b.q, target_probs=True), b.here(b.q, rows="probabilities"))


@pytest.mark.parametrize("verifier", [also("block"), also("match"), "coupled"])
def test_verifiers(verifier):
    b = Batch(seed=1)
    agree(b.there(b.q, verifier=verifier), b.here(b.q, verifier=verifier))


@pytest.mark.parametrize("policy", ["token-v3:alpha=0.3", also("bild:alpha=20,greedy=true"), also("lenient:alpha=0.4")])
def test_policies_of_the_catalogue(policy):
    b = Batch(bonus=True, seed=2)
    here = b.here(b.q, policy)
    agree(b.there(b.q, policy=policy), here)
    assert (here.tokens != b.here(b.q).tokens).any()  # the parameters arrive
    without = Batch(seed=2)
    with pytest.raises(ValueError, match=r"draft rows: \[12, 300\].*bonus position"):
        without.there(without.q, policy=policy)


@traced
def mixed(q, p, share=0.5, hard=False):
    return where(hard, p, share * q + (1 - share) * p)


def test_a_traced_policy():
    b = Batch(bonus=True, seed=3)
    for share in (0.5, 0.25):
        agree(b.there(b.q, policy=mixed, parameters={"share": share}), b.here(b.q, f"ensemble:lambda={share}"))
    agree(b.there(b.q, policy=mixed, parameters={"hard": True}), b.here(b.q))
    with pytest.raises(TypeError, match="parameters: mixed has no alpha; it has share, hard"):
        b.there(b.q, policy=mixed, parameters={"alpha": 1})
    with pytest.raises(TypeError, match="parameters: numbers are of a traced policy"):
        b.there(b.q, parameters={"alpha": 1})


def test_parameters_of_each_request(monkeypatch):
    b = Batch(bonus=True, seed=13)
    alphas = [0.0, 0.1, 0.3, 0.5, 0.7, 0.9]
    here = b.here(b.q, [f"lossy:alpha={x},beta=1" for x in alphas])
    own = dict(alpha=torch.tensor(alphas, dtype=torch.float64))
    agree(b.there(b.q, policy="lossy:beta=1", parameters=own), here)
    assert (here.tokens != b.here(b.q, "lossy:beta=1").tokens).any()
    out = b.there(b.q, policy="lossy:beta=1", parameters=dict(alpha=torch.tensor([0, 0, 0, 0, 0, 2.0])))
    assert out.statuses.tolist() == [0] * 5 + [specagg.Status.invalid_parameter]
    with pytest.raises(TypeError, match="parameters: lossy has no gamma; it has alpha, beta"):
        b.there(b.q, policy="lossy", parameters=dict(gamma=own["alpha"]))
    with pytest.raises(ValueError, match=r"^parameters: alpha: .*\[6\]"):
        b.there(b.q, policy="lossy", parameters=dict(alpha=own["alpha"][1:].clone()))
    monkeypatch.setattr(specagg._verify, "_on_a_device", lambda x: isinstance(x, torch.Tensor))
    names = [f"lossy:alpha={x}" for x in alphas]
    given = dict(offsets=b.offsets, seed=b.seeds.astype(np.uint64), positions=b.positions)
    agree(flat.verify(torch.from_numpy(b.ids), b.q, b.p, names, **given),
          flat.verify(b.ids, b.q.numpy(), b.p.numpy(), names, **given))
    with pytest.raises(ValueError, match="^policy: on cpu all requests have one, .* not ensemble, lossy"):
        flat.verify(torch.from_numpy(b.ids), b.q, b.p, [*names[:5], "ensemble"], **given)


def test_temperatures_masks_and_ends():
    b = Batch(bonus=True, seed=4)
    at, drafted_at = np.array([0.7, 0, 1, 2, 0.5, -1], np.float32), np.array([1, 1, 0.8, 1, 1, 1.0])
    here = b.here(b.q, "ensemble", sampling=Sampling(at.astype(float)), draft_sampling=Sampling(drafted_at))
    assert here.statuses[5] == specagg.Status.invalid_parameter
    agree(b.there(b.q, policy="ensemble", temperature=torch.from_numpy(at), draft_temperature=torch.from_numpy(drafted_at)), here)
    agree(b.there(b.q, policy="ensemble", temperature=0.7), b.here(b.q, "ensemble", sampling=Sampling(0.7)))
    allowed = np.random.default_rng(1).random((b.B, GAMMA + 1, b.V)) < 0.8
    rows = np.concatenate([allowed[i, : n + 1] for i, n in enumerate(b.counts)])
    words = np.packbits(rows, axis=-1, bitorder="little")
    words = np.pad(words, ((0, 0), (0, (b.V + 31) // 32 * 4 - words.shape[1]))).view(np.int32)
    mask = torch.from_numpy(words.copy())
    agree(b.there(b.q, target_mask=mask, draft_mask=mask), b.here(b.q, mask=allowed))
    plain = b.here(b.q)
    accepted = np.flatnonzero(plain.accepted > 0)[:2]
    ends = plain.tokens[accepted, 0].tolist()  # their drafts end after one token
    for given, known in (torch.tensor(ends, dtype=torch.int32), ends), (ends[0], ends[0]):
        here = b.here(b.q, end_of_text=known)
        assert here.emitted[accepted[0]] == 1 and len(ends) == 2
        agree(b.there(b.q, end_of_text=given), here)


def test_filters():
    b = Batch(bonus=True, seed=10)
    top_k, top_p, min_p = [5, 0, 300, 40, 2, -1], [0.9, 0.8, 1, 1, 0.5, 1], [0, 0, 0, 0.1, 0, 0]
    target = Sampling(0.7, top_k, top_p, min_p)
    here = b.here(b.q, "token-v3:alpha=0.3", sampling=target)
    assert here.statuses[5] == specagg.Status.invalid_parameter and (here.statuses[:5] == 0).all()
    given = dict(policy="token-v3:alpha=0.3", temperature=0.7, top_k=torch.tensor(top_k, dtype=torch.int32),
                 top_p=torch.tensor(top_p, dtype=torch.float64), min_p=torch.tensor(min_p, dtype=torch.float64))
    agree(b.there(b.q, **given), here)
    assert (here.tokens != b.here(b.q, "token-v3:alpha=0.3", sampling=Sampling(0.7)).tokens).any()
    agree(b.there(b.q, **given, draft_top_k=0, draft_top_p=0.6, draft_min_p=0),  # the draft has others
          b.here(b.q, "token-v3:alpha=0.3", sampling=target, draft_sampling=Sampling(0.7, top_p=0.6)))
    agree(b.there(b.q, policy="token-v3:alpha=0.3", draft_top_k=3),  # and alone
          b.here(b.q, "token-v3:alpha=0.3", sampling=Sampling(), draft_sampling=Sampling(top_k=3)))
    for order in "vllm", "llama-cpp", "joint":
        agree(b.there(b.q, **given, filter_order=order),
              b.here(b.q, "token-v3:alpha=0.3", sampling=Sampling(0.7, top_k, top_p, min_p, order)))
    with pytest.raises(ValueError, match="^filter_order: there is no"):
        b.there(b.q, top_k=3, filter_order="top-k")


def test_the_bonus():
    b = Batch(seed=11)
    given = torch.tensor([7, 8, 9, -1, 300, 11], dtype=torch.int32)
    here = b.here(b.q, bonus=given.numpy())
    assert here.statuses[4] == specagg.Status.token_out_of_range and (here.origins == specagg.Origin.bonus).sum() > 1
    agree(b.there(b.q, bonus=given), here)
    for choice in False, "target":  # neither needs the draft's row at the bonus position
        agree(b.there(b.q, policy="token-v3:alpha=0.3", bonus=choice), b.here(b.q, "token-v3:alpha=0.3", bonus=choice))
    for wrong in "mean", 1, None:
        with pytest.raises(ValueError, match="^bonus: expected True, False, .target., or a tensor .B., not"):
            b.there(b.q, bonus=wrong)


def test_rows_of_the_draft_by_numbers():
    for more in {}, dict(policy="token-v3:alpha=0.3"):
        b = Batch(seed=12, bonus=bool(more))
        slots = torch.randperm(40, generator=torch.Generator().manual_seed(1))[: len(b.q)].to(torch.int32)
        by_slot = torch.full((40, b.V), torch.nan)
        by_slot[slots.long()] = b.q
        agree(b.there(by_slot, draft_row_numbers=slots, **more), b.here(b.q, **more))
    with pytest.raises(ValueError, match=r"^draft_row_numbers: expected contiguous int32 or int64 \[12\]"):
        b.there(by_slot, draft_row_numbers=slots[:-1].contiguous())
    with pytest.raises(ValueError, match="^draft_row_numbers: there are no rows"):
        b.there(draft_row_numbers=slots)


def test_one_number_for_all_and_drafts_of_one_length():
    random = np.random.default_rng(5)
    for V in (300, 301):  # in fours, and not
        p = torch.from_numpy(random.normal(0, 2, (4, GAMMA + 1, V)).astype(np.float32))
        q = (p[:, :GAMMA] + torch.from_numpy(random.normal(0, 0.5, (4, GAMMA, V)).astype(np.float32))).contiguous()
        ids = flat.draw(q.reshape(-1, V).numpy(), seed=1, positions=0).reshape(4, GAMMA)
        out = cuda.verify(torch.from_numpy(ids), p.reshape(-1, V), q.reshape(-1, V), seeds=2**64 - 5, positions=9,
                          log_probs=True)
        agree(out, flat.verify(ids, q, p, seed=2**64 - 5, positions=9))
        assert out.acceptances is None
        plain = cuda.verify(torch.from_numpy(ids), p.reshape(-1, V), q.reshape(-1, V), seeds=2**64 - 5, positions=9)
        assert plain.log_pi is None and torch.equal(plain.tokens, out.tokens)


def test_specagg_verify_forwards(monkeypatch):
    monkeypatch.setattr(specagg._verify, "_on_a_device", lambda x: isinstance(x, torch.Tensor) and not x.requires_grad)
    random = np.random.default_rng(6)
    p = torch.from_numpy(random.normal(0, 2, (4, GAMMA + 1, 300)).astype(np.float32))
    q = (p + torch.from_numpy(random.normal(0, 0.5, p.shape).astype(np.float32))).contiguous()
    ids = flat.draw(q[:, :GAMMA].reshape(-1, 300).numpy(), seed=1, positions=0).reshape(4, GAMMA)
    lengths = np.array([3, 2, 0, 1])
    how = dict(seed=3, positions=np.array([1, 2, 3, 4]), sampling=Sampling(0.7), end_of_text=[5])
    for policy, rows_of_q in ("lossless", GAMMA), ("ensemble", GAMMA + 1):
        there = flat.verify(torch.from_numpy(ids), q[:, :rows_of_q], p, policy, acceptances=True, **how)
        assert isinstance(there, cuda.Verified)
        agree(there, flat.verify(ids, q.numpy()[:, :rows_of_q], p.numpy(), policy, acceptances=True, **how), True)
        short = flat.verify(torch.from_numpy(ids), q[:, :rows_of_q], p, policy, lengths=lengths, **how)
        agree(short, flat.verify(np.where(np.arange(GAMMA) < lengths[:, None], ids, -1), q.numpy()[:, :rows_of_q], p.numpy(),
                                    policy, **how))
    how["sampling"] = Sampling(0.7, top_k=9, top_p=[0.9, 1, 0.5, 1], order="joint")
    for more in {}, dict(draft_sampling=Sampling(0.8)):
        there = flat.verify(torch.from_numpy(ids), q, p, "ensemble", **how, **more)
        agree(there, flat.verify(ids, q.numpy(), p.numpy(), "ensemble", **how, **more))
    with pytest.raises(ValueError, match="^draft_sampling: .*hugging-face and joint"):
        flat.verify(torch.from_numpy(ids), q, p, "ensemble", **how, draft_sampling=Sampling(top_k=3))
    one = flat.verify(ids[0], None, p[0], seed=3, positions=1)
    agree(one, flat.verify(ids[:1], None, p.numpy()[:1], seed=3, positions=1))
    b = Batch(rows="probabilities", seed=7)
    given = dict(offsets=b.offsets, rows=("probabilities", "logits"), seed=1, positions=0)
    agree(flat.verify(b.ids, b.q, b.p, **given), flat.verify(b.ids, b.q.numpy(), b.p.numpy(), **given))
    assert (flat.verify(ids, None, p).tokens != flat.verify(ids, None, p).tokens).any()  # fresh seeds
    for choice in "target", False, [5, 6, 7, -1]:
        agree(flat.verify(torch.from_numpy(ids), q[:, :GAMMA], p, "ensemble", bonus=choice, **how),
              flat.verify(ids, q.numpy()[:, :GAMMA], p.numpy(), "ensemble", bonus=choice, **how))
    for name, bad in dict(mask=np.ones(300, bool), penalties=specagg.Penalties([[1]] * 4)).items():
        with pytest.raises(ValueError, match=f"^{name}: "):
            flat.verify(ids, q, p, seed=1, positions=0, **{name: bad})
    with pytest.raises(ValueError, match="^positions: a seed needs them"):
        flat.verify(ids, q, p, seed=1)


def test_refusals_name_the_argument():
    b = Batch()
    V, rows = b.V, b.N + b.B

    def refused(match, kind=ValueError, **more):
        with pytest.raises(kind, match=match):
            b.there(**more)

    refused(rf"^draft_logits: expected \[12 or 18, {V}\] of float32 on cpu.*not float16 \[12, {V}\] on cpu",
            draft_logits=b.q.half())
    refused(r"^draft_logits: .*not float32 \[11, 300\]", draft_logits=b.q[1:])
    refused(r"^draft_probs: .*not float16", draft_probs=b.q.half())
    refused("^draft_logits, draft_probs: give one", draft_logits=b.q, draft_probs=b.q)
    refused("^draft_logits: with target_probs", draft_logits=b.q, target_probs=True)
    refused("^draft_logits: .*last dimension contiguous", draft_logits=b.q.T.contiguous().T)
    refused("^draft_logits: .*last dimension contiguous", draft_logits=torch.zeros(b.N, 2 * V)[:, ::2])
    refused("^seeds: expected contiguous int32 or int64", seeds=torch.zeros(5, dtype=torch.int64))
    refused("^seeds: expected contiguous", seeds=torch.zeros(2 * b.B, dtype=torch.int64)[::2])
    refused("^positions: .*not float32", positions=torch.zeros(6))
    refused("^positions: expected a whole number", TypeError, positions=1.5)
    refused("^temperature: expected a tensor", TypeError, temperature="hot")
    refused("^top_k: expected a whole number", TypeError, top_k=2.5)
    refused("^top_p: expected contiguous float32 or float64", top_p=torch.ones(5))
    refused("^bonus: expected contiguous int32 or int64 .6.", bonus=torch.zeros(6))
    refused("^draft_top_k: is of logits; there are no rows", draft_top_k=3)
    refused("^draft_min_p: is of logits; the rows are probabilities", draft_probs=torch.softmax(b.q, -1), draft_min_p=0.1)
    refused("^min_p: is of logits; the rows are probabilities", draft_probs=torch.softmax(b.q, -1), target_probs=True, min_p=0.1)
    refused("^target_mask: .*int32 .18, 10.", target_mask=torch.zeros(18, 9, dtype=torch.int32))
    refused("^verifier: there is no 'tokens'", verifier="tokens")
    refused("^cu_num_draft_tokens, max_spec_len: ", max_spec_len=None)
    refused("^max_spec_len: 17 is not between 0 and 16", max_spec_len=17)
    refused("cudaErrorInvalidValue", RuntimeError, max_spec_len=1)  # 12 tokens of 6 requests
    with pytest.raises(ValueError, match=r"^target_logits: .*\[18, 300\].*not float64 \[18, 300\] on cpu"):
        cuda.verify(torch.from_numpy(b.ids), b.p.double(), max_spec_len=3, seeds=1, positions=0,
                    cu_num_draft_tokens=torch.from_numpy(b.offsets[1:].copy()))
    with pytest.raises(ValueError, match="^draft_token_ids: .*not int16"):
        cuda.verify(torch.zeros(2, 3, dtype=torch.int16), b.p, seeds=1, positions=0)
    assert rows == 18


def test_a_wrong_device_and_no_nvcc(monkeypatch, emulator):
    b = Batch()
    monkeypatch.setattr(cuda, "_how", _nvcc.Nvcc())
    with pytest.raises(ValueError, match="target_logits: are on cpu; .*devices of type cuda"):
        b.there()
    for name in ("SPECAGG_NVCC", "CUDA_HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(_nvcc.shutil, "which", lambda *a, **k: None)
    with pytest.raises(RuntimeError, match="pip install nvidia-cuda-nvcc .*SPECAGG_NVCC"):
        _nvcc.find_nvcc()
    monkeypatch.setenv("SPECAGG_NVCC", "mine")
    assert _nvcc.find_nvcc() == "mine"


def test_the_cache(monkeypatch, emulator, tmp_path):
    monkeypatch.setenv("SPECAGG_CACHE", str(tmp_path))
    ran = []
    run = subprocess.run
    monkeypatch.setattr(subprocess, "run", lambda command, **more: ran.append(command) or run(command, **more))
    text = 'extern "C" int f() { return 0; }\n'
    path = _nvcc.compiled(text, "none", emulator)
    assert len([c for c in ran if "-o" in c]) == 1 and [x.name for x in tmp_path.iterdir()] == [path.name]
    assert _nvcc.compiled(text, "none", emulator) == path and len([c for c in ran if "-o" in c]) == 1
    assert _nvcc.compiled(text + "\n", "none", emulator) != path
    with pytest.raises(RuntimeError, match="nonsense"):
        _nvcc.compiled("nonsense", "none", emulator)
    assert len(list(tmp_path.iterdir())) == 2  # nothing is left of what failed


def test_kernels_for_the_rows(monkeypatch):
    b, asked, load = Batch(), [], _nvcc.load
    monkeypatch.setattr(_nvcc, "load", lambda *how: asked.append(how[3]) or load(*how))

    def moved(x, stride, offset):
        rows = torch.zeros(offset + len(x) * stride)[offset:].view(len(x), stride)[:, : b.V]
        return rows.copy_(x)

    here, mask = b.here(b.q), torch.full((len(b.p), (b.V + 31) // 32), -1, dtype=torch.int32)
    calls = [("whole", b.q, {}), ("whole", moved(b.q, 304, 4), dict(target=moved(b.p, 308, 8))),
             ("others", moved(b.q, 301, 0), {}), ("others", moved(b.q, 304, 1), {}), ("others", b.q, dict(target_mask=mask)),
             ("others", b.q, dict(target=moved(b.p, 302, 0))), ("others", b.q, dict(target=moved(b.p, 304, 2)))]
    for _, q, more in calls:
        agree(b.there(q, **more), here)
    assert asked == [kernels for kernels, *_ in calls]
    odd = Batch(V=299)
    agree(odd.there(odd.q), odd.here(odd.q))
    assert asked[-1] == "others"
    monkeypatch.setattr(cuda, "_kernels", lambda given: "whole")
    with pytest.raises(RuntimeError, match="^specagg.cuda: cudaErrorInvalidValue"):
        odd.there(odd.q)


@pytest.mark.parametrize("field", ["end_count", "storage_bytes"])
def test_a_negative_size_is_an_error(field, monkeypatch):
    b, load = Batch(), _nvcc.load

    def with_a_negative_size(*how):
        library = load(*how)
        same = {name: getattr(library, name) for name in ("specagg_storage", "specagg_reads_draft", "specagg_error")}

        def verify(call, *rest):
            setattr(call._obj, field, -1)
            return library.specagg_verify(call, *rest)

        return types.SimpleNamespace(specagg_verify=verify, **same)

    monkeypatch.setattr(_nvcc, "load", with_a_negative_size)
    with pytest.raises(RuntimeError, match="^specagg.cuda: cudaErrorInvalidValue"):
        b.there()


def test_headers_with_other_policies_are_refused(monkeypatch, emulator, tmp_path):
    monkeypatch.setenv("SPECAGG_CACHE", str(tmp_path))
    known = specagg.policies()
    monkeypatch.setattr(_nvcc, "policies", lambda: [known[1], known[0], *known[2:]])  # of an older _core
    with pytest.raises(RuntimeError, match=r"specagg.cuda: [^\n]*include: the C\+\+ headers are not those that "
                                           r"specagg._core was built from: install the package anew$"):
        _nvcc.compiled(_nvcc.text_of(_nvcc.catalogued_text("lossless"), "token", "float", "float"), "none", emulator)


def test_what_a_wheel_brings(monkeypatch, emulator, tmp_path):
    monkeypatch.setattr(_nvcc, "BROUGHT", tmp_path / "brought")
    monkeypatch.setenv("SPECAGG_CACHE", str(tmp_path / "cache"))
    texts = _nvcc.usual_texts()
    assert len(set(texts)) == len(texts) == 45
    b, ran = Batch(), []
    name, load = [], _nvcc.load
    monkeypatch.setattr(_nvcc, "load", lambda text, *how: name.append(text) or load(text, *how))
    b.there(b.q)  # compiled into the cache
    assert name[0] in texts
    _nvcc.build(_nvcc.BROUGHT, [name[0]], emulator)
    monkeypatch.setattr(subprocess, "run", lambda *a, **k: ran.append(a))
    path = _nvcc.compiled(name[0], "none", emulator)
    assert path.parent == _nvcc.BROUGHT and not ran
    agree(b.there(b.q), b.here(b.q))
    for arch, known in ("sm_75", False), ("sm_80", True), ("sm_121", True):
        assert (_nvcc.compiled(name[0], arch, emulator, "whole") == path) == known


def test_the_struct_is_that_of_the_header():
    header = (_nvcc.include() / "specagg/backend/cuda/call.hpp").read_text()
    body = re.search(r"struct ragged \{(.*?)\n\};", header, re.S)[1]
    names = []
    for line in re.sub(r"//.*", "", body).split(";"):
        words = re.sub(r"const |std::|\*", "", line).strip()
        names += [x.strip() for x in words.partition(" ")[2].split(",") if x.strip()]
    assert names == [name for name, _ in _nvcc.Call._fields_]


@pytest.mark.skipif(not HAS_OPERATOR, reason="torch has no custom_op before 2.4")
def test_the_operator():
    b = Batch(seed=8)
    seen = []
    operator = cuda._operator

    def check(*arguments):
        seen.append(arguments)
        return operator(*arguments)

    cuda._operator = check
    try:
        b.there(b.q)
    finally:
        cuda._operator = operator
    torch.library.opcheck(operator, seen[0], test_utils=("test_schema", "test_faketensor"))

    for more in {}, dict(policy=mixed, parameters={"share": 0.1}):
        b = Batch(seed=8, bonus=bool(more))

        def step(target, draft):
            out = b.there(draft, target=target * 2, **more)
            return out.tokens + 1, out.log_pi

        for found, due in zip(torch.compile(step, backend="aot_eager", fullgraph=True)(b.p, b.q), step(b.p, b.q)):
            np.testing.assert_array_equal(found.numpy(), due.numpy())


class OnAGPU:
    """A call whose tensors stay where they are: a batch's, with rows of other batches put into them."""

    def __init__(self):
        self.b = Batch(seed=11)
        self.given = on_the_device(dict(
            draft_token_ids=torch.from_numpy(self.b.ids), cu_num_draft_tokens=torch.from_numpy(self.b.offsets[1:].copy()),
            seeds=torch.from_numpy(self.b.seeds), positions=torch.from_numpy(self.b.positions),
            requests=torch.from_numpy(self.b.requests)))
        self.p, self.q = on_the_device(self.b.p.clone()), on_the_device(self.b.q.clone())

    def __call__(self, p, q):
        return cuda.verify(target_logits=p, draft_logits=q, max_spec_len=GAMMA, log_probs=True, **self.given)

    def due_of(self, seed):
        other = Batch(seed=seed)
        self.p.copy_(other.p)
        self.q.copy_(other.q)
        self.b.p = other.p
        return self.b.here(other.q)


@pytest.mark.skipif(DEVICE != "cuda", reason="needs a GPU")
def test_a_cuda_graph():
    step = OnAGPU()
    step(step.p, step.q)  # compiles, and loads the kernels
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        out = step(step.p, step.q)
    seen = set()
    for seed in (11, 12, 13):
        due = step.due_of(seed)
        graph.replay()
        torch.cuda.synchronize()
        agree(out, due)
        seen.add(due.tokens.tobytes())
    assert len(seen) == 3  # what lies in memory then


@pytest.mark.skipif(DEVICE != "cuda" or not HAS_OPERATOR, reason="needs a GPU and torch 2.4")
@pytest.mark.parametrize("mode", ["default", "reduce-overhead"])
def test_torch_compile_on_a_gpu(mode):
    step = OnAGPU()

    def scaled(p, q):
        out = step(p * 0.5 * 2, q)  # exact: there is something to compile
        return out.tokens + 0, out.log_pi

    compiled = torch.compile(scaled, fullgraph=True, mode=mode)
    for seed in (11, 12, 13, 14):
        due = step.due_of(seed)
        tokens, log_pi = compiled(step.p, step.q)
        np.testing.assert_array_equal(tokens.cpu().numpy(), due.tokens)
        np.testing.assert_array_equal(log_pi.cpu().numpy(), due.log_pi.astype(np.float32))


@pytest.mark.skipif(not HAS_OPERATOR, reason="torch has no compile before 2")
def test_the_program_of_the_page(monkeypatch):
    page = (emulated.ROOT / "docs/cuda.md").read_text()
    program = re.search(r"## From torch.*?```py\n(.*?)```", page, re.S)[1]
    monkeypatch.setattr(torch, "compile", functools.partial(torch.compile, backend="aot_eager"))
    names = {"__name__": "page"}
    exec(program, names)
    b = Batch(rows="probabilities", seed=9)
    numbers = [torch.from_numpy(x) for x in (b.offsets[1:].copy(), b.seeds, b.positions)]
    metadata = types.SimpleNamespace(draft_token_ids=torch.from_numpy(b.ids), cu_num_draft_tokens=numbers[0], max_spec_len=GAMMA)
    at = torch.full((b.B,), 0.7)
    tokens, accepted = names["step"](metadata, b.p, b.q, at, *numbers[1:])
    here = b.here(b.q, rows=("probabilities", "logits"), requests=None, sampling=Sampling(float(at[0])))
    np.testing.assert_array_equal(tokens.numpy(), here.tokens)
    np.testing.assert_array_equal(accepted.numpy(), here.accepted)
    b = Batch(bonus=True, seed=9)
    out = names["step_of_mine"](torch.from_numpy(b.ids), b.p, b.q, *numbers)
    np.testing.assert_array_equal(out.tokens.numpy()[:, : GAMMA + 1], b.here(b.q, "ensemble:lambda=0.1", requests=None).tokens)
    # Every text has the ids 0 to 19 twice, some of 20 to 29 once, and its drafted tokens.
    b = Batch(bonus=True, seed=9)
    how = dict(repetition=1.3, presence=0.25, frequency=0.5)
    texts = [[*range(20), *range(20), *range(20, 20 + i)] for i in range(b.B)]
    before = [texts[i] + b.ids[first : first + j].tolist() for i, first in enumerate(b.offsets[:-1]) for j in range(b.counts[i] + 1)]
    counted = [(row, id, text.count(id)) for row, text in enumerate(before) for id in set(text) if 0 <= id]
    rows, ids, counts = (torch.tensor(x) for x in zip(*counted))
    due = b.here(b.q, "ensemble:lambda=0.1", requests=None, penalties=specagg.Penalties(texts, **how))
    assert (due.tokens != b.here(b.q, "ensemble:lambda=0.1", requests=None).tokens).any()
    for logits in b.q, b.p:
        names["penalise"](logits, rows, ids, counts, **how)
    out = names["step_of_mine"](torch.from_numpy(b.ids), b.p, b.q, *numbers)
    np.testing.assert_array_equal(out.tokens.numpy()[:, : GAMMA + 1], due.tokens)
    np.testing.assert_array_equal(out.log_pi.numpy()[:, : GAMMA + 1], due.log_pi.astype(np.float32))


@pytest.mark.parametrize("arch", [also("sm_80"), also("sm_90")])
def test_nvcc_compiles_the_text(arch, tmp_path, monkeypatch):
    how = _nvcc.Nvcc()
    try:
        how.compiler()
    except RuntimeError as e:
        pytest.skip(str(e))
    monkeypatch.setenv("SPECAGG_CACHE", str(tmp_path))
    policy = cuda._policy_text(mixed if arch == "sm_80" else "lossy:alpha=0.2", {}, ())[0]
    kernels = "whole" if arch == "sm_80" else "both"
    path = _nvcc.compiled(_nvcc.text_of(policy, "token", "specagg::bf16", "specagg::cuda::probability"), arch, how, kernels)
    for name in ("specagg_verify", "specagg_storage", "specagg_reads_draft", "specagg_error"):
        assert name.encode() in path.read_bytes()


assert set(ON_A_GPU) <= set(globals())

if __name__ == "__main__":
    sys.exit(pytest.main([__file__, "-q", *sys.argv[1:]]))
