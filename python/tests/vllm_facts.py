# SPDX-License-Identifier: Apache-2.0
"""What specagg.vllm replaces, calls and reads of vLLM: names alone, of the version in vllm_facts.json, without importing vLLM.

usage: vllm_facts.py FOLDER   records those of the vLLM whose folder this is, site-packages/vllm
"""

import ast
import json
import pathlib
import sys

V1, V2 = "v1/sample/rejection_sampler", "v1/worker/gpu/spec_decode/rejection_sampler"
FUNCTIONS = [  # file:name
    "sampling_params:SamplingParams._verify_extra_args", f"{V1}:RejectionSampler.forward",
    f"{V1}:RejectionSampler.apply_logits_processors", f"{V1}:RejectionSampler._get_logprobs_tensors",
    "v1/sample/sampler:Sampler.apply_logits_processors", "v1/sample/ops/topk_topp_sampler:apply_top_k_top_p",
    "v1/spec_decode/metadata:SpecDecodeMetadata.make_dummy", "v1/worker/gpu_model_runner:GPUModelRunner._sample",
    "v1/spec_decode/llm_base_proposer:compute_probs_and_sample_next_token",
    "v1/worker/gpu/model_states/interface:ModelState.custom_sampler", f"{V2}:RejectionSampler.__init__",
    f"{V2}:RejectionSampler._verify", f"{V2}:RejectionSampler._get_logprobs_tensors",
    "v1/worker/gpu/sample/sampler:Sampler.add_request", "v1/worker/gpu/sample/sampler:Sampler.apply_sampling_params",
    "v1/worker/gpu/sample/sampler:Sampler._sample_random",
]
FIELDS = {  # of classes, those that are read or given
    "v1/sample/metadata:SamplingMetadata": "temperature all_greedy top_p top_k generators max_num_logprobs logprob_token_ids",
    "v1/spec_decode/metadata:SpecDecodeMetadata":
        "draft_token_ids num_draft_tokens cu_num_draft_tokens cu_num_sampled_tokens target_logits_indices "
        "bonus_logits_indices logits_indices max_spec_len",
    "v1/outputs:SamplerOutput": "sampled_token_ids logprobs_tensors",
    "v1/outputs:LogprobsTensors": "logprob_token_ids logprobs",
    f"{V1}:RejectionSampler": "sampler synthetic_mode is_processed_logprobs_mode is_logits_logprobs_mode",
    "v1/worker/gpu_model_runner:GPUModelRunner": "input_batch positions query_start_loc requests rejection_sampler",
    "v1/worker/gpu_input_batch:InputBatch": "req_ids sampling_metadata",
    "v1/worker/gpu_input_batch:CachedRequestState": "sampling_params",
    "sampling_params:SamplingParams": "extra_args",
    f"{V2}:RejectionSampler": "sampler num_speculative_steps",
    "v1/worker/gpu/sample/sampler:Sampler": "sampling_states logprobs_mode",
    "v1/worker/gpu/sample/states:SamplingStates": "temperature seeds",
    "v1/worker/gpu/buffer_utils:UvaBackedTensor": "np gpu",
    "v1/worker/gpu/model_states/interface:ModelState": "vllm_config device",
    "config/vllm:VllmConfig": "speculative_config watermark_config",
    "config/speculative:SpeculativeConfig": "rejection_sample_method",
}


def _named(tree, names):
    for name in names:
        tree = next(x for x in tree.body if isinstance(x, (ast.ClassDef, ast.FunctionDef)) and x.name == name)
    return tree


def _fields(tree):
    """Annotated names, attributes that methods set, and properties."""
    for x in ast.walk(tree):
        if isinstance(x, ast.AnnAssign) and isinstance(x.target, ast.Name):
            yield x.target.id
        if isinstance(x, ast.Attribute) and isinstance(x.ctx, ast.Store) and getattr(x.value, "id", "") == "self":
            yield x.attr
        if isinstance(x, ast.FunctionDef) and x.decorator_list:
            yield x.name


def record(folder):
    folder = pathlib.Path(folder)

    def at(place):
        file, names = place.split(":")
        return _named(ast.parse((folder / f"{file}.py").read_text()), names.split("."))

    out = {"version": next(line for line in (folder / "_version.py").read_text().splitlines()
                           if line.startswith("__version__ =")).split("'")[1], "functions": {}, "fields": {}}
    for place in FUNCTIONS:
        arguments = at(place).args
        names = [one.arg for one in [*arguments.posonlyargs, *arguments.args]]
        first = len(names) - len(arguments.defaults)  # that has a default, which is shown by "="
        out["functions"][place] = [name + "=" * (i >= first) for i, name in enumerate(names)]
    for place, names in FIELDS.items():
        there = set(_fields(at(place)))
        out["fields"][place] = [one for one in names.split() if one in there]
    return out


if __name__ == "__main__":
    found = record(sys.argv[1])
    pathlib.Path(__file__).with_suffix(".json").write_text(json.dumps(found, indent=1) + "\n")
