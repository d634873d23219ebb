# SPDX-License-Identifier: Apache-2.0
"""Adapters of specagg.conformance for samplers that pip installs. Each is made where its package is there."""

from __future__ import annotations

from typing import Any, Callable, Optional

import numpy as np

from ._verify import Drafts, Edits, Penalties, Rows, Sampling, Streams, draw, verify, verify_tree
from .conformance import Adapter, Logits, Settings, Tokens


def _specagg() -> Adapter:
    """This package: draw() and verify()."""
    from . import __version__

    def how(s: Settings) -> tuple[Rows, Streams]:
        sampling = Sampling(s.temperature, s.top_k, s.top_p, s.min_p)
        return Rows("logits", sampling), Streams(s.seeds, s.positions.astype(np.uint32), requests=0)

    def sample(logits: Logits, s: Settings) -> Any:
        rows, streams = how(s)
        penalties = Penalties([s.history] * len(logits), s.repetition, s.presence, s.frequency) if s.history else None
        given: Any = logits.astype(np.float16) if s.dtype == "float16" else logits
        return draw(given, rows=rows, streams=streams, edits=Edits(penalties, s.mask))

    def verified(drafts: Tokens, q: Optional[Logits], p: Logits, s: Settings) -> Any:
        rows, streams = how(s)
        return verify(Drafts(drafts), q, p, rows=rows, streams=streams).tokens

    def trees(tokens: Tokens, parents: Tokens, q: Optional[Logits], p: Logits, s: Settings) -> Any:
        rows, streams = how(s)
        return verify_tree(tokens, parents, q, p, proposed="sampled", rows=rows, streams=streams).tokens

    has = ("temperature greedy top_k top_p min_p repetition presence frequency mask seeds float16 invalid drafts one_hot bonus "
           "draft_filters padding wrong_ids no_support invalid_drafts trees")
    return Adapter(sample, frozenset(has.split()), "specagg", __version__, verify=verified, verify_tree=trees)


KNOWN: dict[str, Callable[[], Adapter]] = {"specagg": _specagg}


def _version(package: str) -> str:
    import importlib.metadata

    return importlib.metadata.version(package)


def _transformers() -> Adapter:
    """generate() of transformers, of a model that returns the given rows; and its acceptance of drafts."""
    import torch
    import transformers
    from transformers.generation import utils
    from transformers.modeling_outputs import CausalLMOutput

    transformers.logging.set_verbosity_error()
    torch.set_num_threads(1)

    class Given(transformers.PreTrainedModel, transformers.GenerationMixin):  # type: ignore[misc]
        config_class = transformers.GPT2Config
        rows: Any = None

        def __init__(self, config: Any) -> None:
            super().__init__(config)
            self.one = torch.nn.Parameter(torch.zeros(1))

        def prepare_inputs_for_generation(self, input_ids: Any, attention_mask: Any = None, **how: Any) -> Any:
            return {"input_ids": input_ids}

        def forward(self, input_ids: Any = None, attention_mask: Any = None, **how: Any) -> Any:
            return CausalLMOutput(logits=self.rows[:, None, :])

    model = Given(transformers.GPT2Config(vocab_size=8, n_layer=1, n_head=1, n_embd=8, bos_token_id=None, eos_token_id=None))

    def sample(logits: Logits, s: Settings) -> Any:
        torch.manual_seed(int(s.seeds[0]))
        model.rows = torch.from_numpy(logits.copy()).to(getattr(torch, s.dtype))
        model.config.vocab_size = logits.shape[1]
        ids = torch.tensor([s.history or (0,)]).expand(len(logits), -1)
        how: dict[str, Any] = {"do_sample": s.temperature > 0, "top_k": s.top_k, "top_p": s.top_p,
                               "min_p": s.min_p or None, "repetition_penalty": s.repetition}
        if s.temperature > 0:
            how["temperature"] = s.temperature
        mask = s.mask
        if mask is not None:
            how["prefix_allowed_tokens_fn"] = lambda batch, text: np.flatnonzero(mask).tolist()
        out = model.generate(ids, attention_mask=torch.ones_like(ids), max_new_tokens=1, pad_token_id=0, use_cache=False,
                             return_dict_in_generate=True, output_scores=True, **how)
        tokens = out.sequences[:, -1]
        logs = out.scores[0].log_softmax(-1).gather(1, tokens[:, None])[:, 0]
        return tokens.numpy(), logs.numpy()

    def verified(drafts: Tokens, q: Optional[Logits], p: Logits, s: Settings) -> Any:
        torch.manual_seed(int(s.seeds[0]) * 100 + int(s.positions[0]))  # the next round goes on
        found = []
        for d, of_q, of_p in zip(torch.from_numpy(drafts), torch.from_numpy(q), torch.from_numpy(p)):
            found.append(utils._speculative_sampling(d[None], of_q[None], len(d), of_p[None])[0][0].tolist())
        return found

    has = "temperature greedy top_k top_p min_p repetition mask log_probabilities float16 bfloat16 invalid drafts bonus"
    return Adapter(sample, frozenset(has.split()), "transformers", _version("transformers"), verify=verified)


def _mlx_lm() -> Adapter:
    """make_sampler() and make_logits_processors() of mlx-lm, on the CPU."""
    import mlx.core as mx
    from mlx_lm.sample_utils import make_logits_processors, make_sampler

    mx.set_default_device(mx.cpu)

    def sample(logits: Logits, s: Settings) -> Any:
        mx.random.seed(int(s.seeds[0]) % 2**63)
        rows = mx.array(logits).astype({"float32": mx.float32, "float16": mx.float16, "bfloat16": mx.bfloat16}[s.dtype])
        if s.history:
            for edit in make_logits_processors(repetition_penalty=None if s.repetition == 1 else s.repetition,
                                               presence_penalty=s.presence, frequency_penalty=s.frequency):
                rows = edit(mx.array(s.history), rows)
        rows = rows - mx.logsumexp(rows, axis=-1, keepdims=True)
        drawn = make_sampler(s.temperature, top_p=s.top_p, min_p=s.min_p, top_k=min(s.top_k, logits.shape[1] - 1))(rows)
        tokens = np.array(drawn).astype(np.int64)
        return tokens, np.array(mx.take_along_axis(rows, drawn[:, None], -1).astype(mx.float32))[:, 0]

    has = "temperature greedy top_k top_p min_p repetition presence frequency model_log_probabilities float16 bfloat16 invalid"
    return Adapter(sample, frozenset(has.split()), "mlx-lm", _version("mlx-lm"), order="top_p min_p top_k temperature")


def _executorch(kind: str = "stream") -> Adapter:
    """The C++ Sampler of ExecuTorch's runner of language models, called where its Python module has it. Its package brings
    neither the header nor a binding: the constructor and sample() are exported functions. One sampler for each setting
    goes on from row to row, as in a text; "seeds": a new one for each row."""
    import ctypes
    import executorch.extension.llm.runner._llm_runner as module

    library, name = ctypes.CDLL(module.__file__), "_ZN10executorch9extension3llm7Sampler"
    make = getattr(library, name + "C1Eiffy")  # vocab_size, temperature, topp, rng_seed
    make.argtypes, make.restype = [ctypes.c_void_p, ctypes.c_int32, ctypes.c_float, ctypes.c_float, ctypes.c_uint64], None
    types = {"float32": "f", "float16": "N3c104HalfE", "bfloat16": "N3c108BFloat16E"}
    calls = {dtype: getattr(library, f"{name}6sampleI{mangled}EEiPT_") for dtype, mangled in types.items()}
    for call in calls.values():
        call.argtypes, call.restype = [ctypes.c_void_p, ctypes.c_void_p], ctypes.c_int32
    samplers: dict[Any, Any] = {}

    def sampler(size: int, s: Settings, seed: int) -> Any:
        key = size, s.temperature, s.top_p
        if kind == "seeds" or key not in samplers:
            samplers[key] = (ctypes.c_uint64 * 16)()  # the object has 24 bytes
            make(samplers[key], size, s.temperature, s.top_p, seed)
        return samplers[key]

    def sample(logits: Logits, s: Settings) -> Any:
        rows: Any = logits.copy()
        if s.dtype == "float16":
            rows = rows.astype(np.float16)
        if s.dtype == "bfloat16":
            rows = (rows.view(np.uint32) >> 16).astype(np.uint16)
        call = calls[s.dtype]
        return np.array([call(sampler(row.size, s, int(seed)), row.ctypes.data) for row, seed in zip(rows, s.seeds)])

    has = "temperature greedy top_p float16 bfloat16 invalid" + (" seeds" if kind == "seeds" else "")
    return Adapter(sample, frozenset(has.split()), "ExecuTorch" + (", a sampler for each row" if kind == "seeds" else ""),
                   _version("executorch"))


def _executorch_gumbel() -> Adapter:
    """The sampler in torch that ExecuTorch exports with some of its models."""
    import torch
    from executorch.examples.models.qwen3_5_moe import sampler

    def sample(logits: Logits, s: Settings) -> Any:
        torch.manual_seed(int(s.seeds[0]))
        return sampler.sample(torch.from_numpy(logits.copy()), torch.tensor(s.temperature))[:, 0].long().numpy()

    return Adapter(sample, frozenset("temperature greedy invalid".split()), "ExecuTorch, exported with models",
                   _version("executorch"))


def _onnxruntime_genai() -> Adapter:
    """Generator of ONNX Runtime GenAI, whose logits are replaced by the given rows before each token."""
    import pathlib
    import tempfile

    import json
    import onnx
    import onnxruntime_genai as genai
    from onnx import TensorProto, helper

    models: dict[int, Any] = {}

    def model(size: int) -> Any:
        """A decoder without a layer that counts: its logits are zeros, its cache has one number for each token."""
        folder = pathlib.Path(tempfile.mkdtemp())
        cache = ["batch", 1, "past", 1]
        of = helper.make_tensor_value_info
        nodes = [helper.make_node("Cast", ["input_ids"], ["as_float"], to=TensorProto.FLOAT),
                 helper.make_node("Unsqueeze", ["as_float", "last"], ["column"]),
                 helper.make_node("MatMul", ["column", "zeros"], ["logits"]),
                 helper.make_node("Unsqueeze", ["column", "heads"], ["new"])]
        names = [f"{one}.0.{kind}" for one in ("past_key_values", "present") for kind in ("key", "value")]
        nodes += [helper.make_node("Concat", [past, "new"], [present], axis=2) for past, present in zip(names[:2], names[2:])]
        ids = [of(one, TensorProto.INT64, ["batch", length]) for one, length in (("input_ids", "s"), ("attention_mask", "t"))]
        graph = helper.make_graph(
            nodes, "given", [*ids, *(of(one, TensorProto.FLOAT, cache) for one in names[:2])],
            [of("logits", TensorProto.FLOAT, ["batch", "s", size]),
             *(of(one, TensorProto.FLOAT, ["batch", 1, "all", 1]) for one in names[2:])],
            [helper.make_tensor("last", TensorProto.INT64, [1], [2]), helper.make_tensor("heads", TensorProto.INT64, [1], [1]),
             helper.make_tensor("zeros", TensorProto.FLOAT, [1, size], np.zeros(size, np.float32))])
        onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), str(folder / "model.onnx"))
        (folder / "genai_config.json").write_text(json.dumps({
            "model": {"type": "llama", "vocab_size": size, "context_length": 64, "bos_token_id": 0, "eos_token_id": 0,
                      "pad_token_id": 0, "decoder": {
                          "filename": "model.onnx", "hidden_size": 1, "head_size": 1, "num_attention_heads": 1,
                          "num_key_value_heads": 1, "num_hidden_layers": 1, "session_options": {"provider_options": []},
                          "inputs": {"input_ids": "input_ids", "attention_mask": "attention_mask",
                                     "past_key_names": "past_key_values.%d.key", "past_value_names": "past_key_values.%d.value"},
                          "outputs": {"logits": "logits", "present_key_names": "present.%d.key",
                                      "present_value_names": "present.%d.value"}}},
            "search": {"max_length": 64, "past_present_share_buffer": False}}))
        return genai.Model(str(folder))

    def sample(logits: Logits, s: Settings) -> Any:
        n, size = logits.shape
        if size not in models:
            models[size] = model(size)
        how = genai.GeneratorParams(models[size])
        how.set_search_options(do_sample=s.temperature > 0, batch_size=n, max_length=32, top_k=s.top_k, top_p=s.top_p,
                               temperature=s.temperature or 1.0, repetition_penalty=s.repetition, min_length=0,
                               random_seed=int(s.seeds[0]) % 2**31)
        generator = genai.Generator(models[size], how)
        generator.append_tokens(np.tile(np.array(s.history or (0,), np.int32), (n, 1)))
        generator.set_logits(np.ascontiguousarray(logits[:, None, :]))
        generator.generate_next_token()
        return np.array(generator.get_next_tokens()).reshape(-1)

    has = "temperature greedy top_k top_p repetition invalid"
    return Adapter(sample, frozenset(has.split()), "ONNX Runtime GenAI", _version("onnxruntime-genai"), most=32)


def _openvino_model(rows: Logits) -> Any:
    """A decoder for OpenVINO whose logits after an id are the row of that number. Its cache holds positions, and is used times 0."""
    import openvino as ov
    from openvino import opset15 as op

    def number(x: Any, kind: Any = np.int64) -> Any:
        return op.constant(np.array(x, kind))

    def given(name: str, shape: list[int], kind: Any) -> Any:
        node = op.parameter(shape, kind, name=name)
        node.output(0).set_names({name})
        return node

    ids, mask, at = (given(name, [-1, -1], np.int64) for name in ("input_ids", "attention_mask", "position_ids"))
    beam = given("beam_idx", [-1], np.int32)
    info = ov.op.util.VariableInfo()
    info.data_shape, info.data_type = ov.PartialShape([-1, 1, -1, 1]), ov.Type.f32
    info.variable_id = "past_key_values.0.keypresent.0.key"
    cache, shape = ov.op.util.Variable(info), op.shape_of(ids)
    batch, length = (op.slice(shape, number([i]), number([i + 1]), number([1])) for i in (0, 1))
    empty = op.concat([batch, number([1]), op.subtract(length, length), number([1])], 0)
    past = op.gather(op.read_value(op.broadcast(number(0, np.float32), empty), cache), beam, number(0))
    new = op.unsqueeze(op.unsqueeze(op.convert(at, np.float32), number(1)), number(3))
    present = op.concat([past, new], 2)
    logits = op.gather(op.constant(rows), ids, number(0))
    for used, axes in (present, [0, 1, 2, 3]), (op.convert(mask, np.float32), [0, 1]):
        logits = op.add(logits, op.multiply(op.reduce_sum(used, number(axes), False), number(0, np.float32)))
    logits.output(0).set_names({"logits"})
    return ov.Model([op.result(logits)], [op.assign(present, cache)], [ids, mask, at, beam], "given")


def _openvino_tokenizer(folder: Any) -> Any:
    """A tokenizer that is never used, as prompts are ids: it makes one id 0 of any text."""
    import openvino as ov
    import openvino_genai as genai
    from openvino import opset15 as op

    text = op.parameter([-1], ov.Type.string, name="string_input")
    column, results = op.concat([op.shape_of(text), op.constant(np.array([1]))], 0), []
    for name in "input_ids", "attention_mask":
        node = op.broadcast(op.constant(np.int64(0)), column)
        node.output(0).set_names({name})
        results.append(op.result(node))
    ov.save_model(ov.Model(results, [text], "tokenizer"), folder / "openvino_tokenizer.xml")
    return genai.Tokenizer(folder)


def _openvino_genai() -> Adapter:
    """LLMPipeline of OpenVINO GenAI, of a model whose logits are the given rows: the last id of a prompt says which. Each row is a
    request of its own, as all requests of a call have one seed."""
    import pathlib
    import tempfile

    import openvino as ov
    import openvino_genai as genai

    folder = pathlib.Path(tempfile.mkdtemp())
    tokenizer = _openvino_tokenizer(folder)
    known: dict[bytes, Any] = {}

    def pipeline(rows: Logits) -> Any:
        key = rows.tobytes()
        if key not in known:
            ov.save_model(_openvino_model(rows), folder / "model.xml", compress_to_fp16=False)
            known.clear()
            known[key] = genai.LLMPipeline(
                (folder / "model.xml").read_text(), ov.Tensor(np.fromfile(folder / "model.bin", np.uint8)), tokenizer, "CPU",
                genai.GenerationConfig(max_new_tokens=1), INFERENCE_PRECISION_HINT="f32", INFERENCE_NUM_THREADS=1)
        return known[key]

    def sample(logits: Logits, s: Settings) -> Any:
        rows, of = np.unique(logits, axis=0, return_inverse=True)
        ready, size = pipeline(np.ascontiguousarray(rows)), logits.shape[1]
        how = genai.GenerationConfig(max_new_tokens=1, do_sample=s.temperature > 0, top_k=s.top_k or size, top_p=s.top_p,
                                     temperature=s.temperature or 1.0, repetition_penalty=s.repetition, ignore_eos=True)
        how.eos_token_id, how.stop_token_ids = size, {size}  # no id of the vocabulary
        if s.min_p:
            how.min_p = s.min_p
        tokens = []
        for i, seed in zip(of.reshape(-1), s.seeds):
            prompt = np.array([[*(one for one in s.history if one != i), int(i)]], np.int64)
            how.rng_seed = int(seed)
            given = ready.generate(genai.TokenizedInputs(ov.Tensor(prompt), ov.Tensor(np.ones_like(prompt))), how)
            tokens.append(given.tokens[0][0])
        return np.array(tokens, np.int64)

    has = "temperature greedy top_k top_p min_p repetition seeds invalid"
    return Adapter(sample, frozenset(has.split()), "OpenVINO GenAI", _version("openvino-genai"), most=512)


def _llama_cpp() -> Adapter:
    """The samplers of llama.cpp by llama-cpp-python: a chain of top-k, top-p, min-p, temperature, dist."""
    import ctypes
    import llama_cpp as c

    def sample(logits: Logits, s: Settings) -> Any:
        n, size = logits.shape
        cells = np.zeros(size, np.dtype([("id", np.int32), ("logit", np.float32), ("p", np.float32)]))
        tokens = np.empty(n, np.int64)
        for i, row in enumerate(logits):
            chain = c.llama_sampler_chain_init(c.llama_sampler_chain_default_params())
            parts = []
            if s.history:
                parts.append(c.llama_sampler_init_penalties(size, 64, s.repetition, s.frequency, s.presence))
            parts += [c.llama_sampler_init_top_k(s.top_k)] if s.top_k else []
            parts += [c.llama_sampler_init_top_p(s.top_p, 1)] if s.top_p < 1 else []
            parts += [c.llama_sampler_init_min_p(s.min_p, 1)] if s.min_p else []
            parts += [c.llama_sampler_init_temp(s.temperature), c.llama_sampler_init_dist(int(s.seeds[i]) % 2**32)]
            for part in parts:
                c.llama_sampler_chain_add(chain, part)
            for token in s.history:
                c.llama_sampler_accept(chain, token)
            cells["id"], cells["logit"], cells["p"] = np.arange(size), row, 0
            at = ctypes.cast(cells.ctypes.data, ctypes.POINTER(c.llama_token_data))
            found = c.llama_token_data_array(data=at, size=size, selected=-1, sorted=False)
            c.llama_sampler_apply(chain, ctypes.byref(found))
            tokens[i] = found.data[found.selected].id if found.selected >= 0 else -1
            c.llama_sampler_free(chain)
        return tokens

    has = "temperature greedy top_k top_p min_p repetition presence frequency seeds invalid"
    return Adapter(sample, frozenset(has.split()), "llama.cpp", "llama-cpp-python " + _version("llama-cpp-python"),
                   order="llama-cpp")


KNOWN.update({"transformers": _transformers, "mlx-lm": _mlx_lm, "executorch": _executorch,
              "executorch-seeds": lambda: _executorch("seeds"),
              "executorch-gumbel": _executorch_gumbel, "onnxruntime-genai": _onnxruntime_genai, "openvino-genai": _openvino_genai,
              "llama-cpp-python": _llama_cpp})
