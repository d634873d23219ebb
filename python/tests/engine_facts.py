# SPDX-License-Identifier: Apache-2.0
"""What the plug-ins replace, call and read of engines: names alone, of the versions in vllm_facts.json and sglang_facts.json,
without importing the engines.

usage: engine_facts.py vllm|sglang FOLDER   records those of the engine whose folder this is, site-packages/vllm
"""

import ast
import copy
import inspect
import json
import pathlib
import sys

V1, V2 = "v1/sample/rejection_sampler", "v1/worker/gpu/spec_decode/rejection_sampler"
FUNCTIONS = {  # file:name
    "vllm": [
        "sampling_params:SamplingParams._verify_extra_args", f"{V1}:RejectionSampler.forward",
        f"{V1}:RejectionSampler.apply_logits_processors", f"{V1}:RejectionSampler._get_logprobs_tensors",
        "v1/sample/sampler:Sampler.apply_logits_processors", "v1/sample/ops/topk_topp_sampler:apply_top_k_top_p",
        "v1/spec_decode/metadata:SpecDecodeMetadata.make_dummy", "v1/worker/gpu_model_runner:GPUModelRunner._sample",
        "v1/spec_decode/llm_base_proposer:SpecDecodeBaseProposer.propose", "v1/spec_decode/step3p5:Step3p5MTPProposer.propose",
        "v1/spec_decode/llm_base_proposer:SpecDecodeBaseProposer._sample_from_logits",
        "v1/worker/gpu/model_states/interface:ModelState.custom_sampler", f"{V2}:RejectionSampler.__init__",
        f"{V2}:RejectionSampler._verify", f"{V2}:RejectionSampler._get_logprobs_tensors",
        "v1/worker/gpu/sample/sampler:Sampler.add_request", "v1/worker/gpu/sample/sampler:Sampler.apply_sampling_params",
        "v1/worker/gpu/sample/sampler:Sampler._sample_random",
    ],
    "sglang": [
        "srt/speculative/eagle_utils:eagle_sample", "srt/sampling/sampling_params:SamplingParams.verify",
        "kernels/ops/speculative/reject_sampling:chain_speculative_sampling_triton",
        "srt/layers/logprob_processor:compute_spec_logprobs",
        "srt/plugins/hook_registry:HookRegistry.register",
    ],
}
FIELDS = {  # of classes, those that are read or given
    "vllm": {
        "v1/sample/metadata:SamplingMetadata":
            "temperature all_greedy top_p top_k generators max_num_logprobs no_penalties bad_words_token_ids "
            "allowed_token_ids_mask logitsprocs thinking_budget_state_holder logprob_token_ids",
        "v1/sample/logits_processor/state:LogitsProcessors": "non_argmax_invariant",
        "v1/sample/logits_processor/builtin:MinTokensLogitsProcessor": "min_toks",
        "v1/sample/logits_processor/builtin:LogitBiasLogitsProcessor": "biases",
        "v1/spec_decode/metadata:SpecDecodeMetadata":
            "draft_token_ids num_draft_tokens cu_num_draft_tokens cu_num_sampled_tokens target_logits_indices "
            "bonus_logits_indices logits_indices max_spec_len",
        "v1/outputs:SamplerOutput": "sampled_token_ids logprobs_tensors",
        "v1/outputs:LogprobsTensors": "logprob_token_ids logprobs",
        f"{V1}:RejectionSampler": "sampler synthetic_mode is_processed_logprobs_mode is_logits_logprobs_mode",
        "v1/worker/gpu_model_runner:GPUModelRunner":
            "input_batch positions query_start_loc requests discard_request_mask _draft_token_ids _draft_probs "
            "_draft_prob_req_ids rejection_sampler",
        "v1/worker/gpu_input_batch:InputBatch": "req_ids sampling_metadata",
        "v1/worker/gpu_input_batch:CachedRequestState": "sampling_params",
        "sampling_params:SamplingParams": "structured_outputs bad_words allowed_token_ids min_tokens extra_args",
        f"{V2}:RejectionSampler": "sampler num_speculative_steps",
        "v1/worker/gpu/sample/sampler:Sampler": "sampling_states logprobs_mode",
        "v1/worker/gpu/sample/states:SamplingStates": "temperature seeds",
        "v1/worker/gpu/buffer_utils:UvaBackedTensor": "np gpu",
        "v1/worker/gpu/model_states/interface:ModelState": "vllm_config device",
        "config/vllm:VllmConfig": "speculative_config watermark_config",
        "config/speculative:SpeculativeConfig": "rejection_sample_method",
    },
    "sglang": {
        "srt/managers/schedule_batch:ScheduleBatch": "reqs sampling_info seq_lens",
        "srt/managers/schedule_batch:Req": "sampling_params",
        "srt/sampling/sampling_batch_info:SamplingBatchInfo": "temperatures top_ks sampling_seed",
        "srt/sampling/sampling_params:SamplingParams": "custom_params",
        "srt/layers/logits_processor:LogitsProcessorOutput": "next_token_logprobs",
        "srt/plugins/hook_registry:HookType": "AROUND",
    },
}


def _named(tree, names):
    for name in names:
        tree = next(x for x in tree.body if isinstance(x, (ast.ClassDef, ast.FunctionDef)) and x.name == name)
    return tree


def _fields(tree):
    """Names that a class's body sets or annotates, attributes that methods set, and properties."""
    for x in getattr(tree, "body", []):
        if isinstance(x, ast.Assign):
            yield from (one.id for one in x.targets if isinstance(one, ast.Name))
    for x in ast.walk(tree):
        if isinstance(x, ast.AnnAssign) and isinstance(x.target, ast.Name):
            yield x.target.id
        if isinstance(x, ast.Attribute) and isinstance(x.ctx, ast.Store) and getattr(x.value, "id", "") == "self":
            yield x.attr
        if isinstance(x, ast.FunctionDef) and x.decorator_list:
            yield x.name


def record(engine, folder):
    folder = pathlib.Path(folder)

    def at(place):
        file, names = place.split(":")
        return _named(ast.parse((folder / f"{file}.py").read_text()), names.split("."))

    out = {"version": next(line for line in (folder / "_version.py").read_text().splitlines()
                           if line.startswith("__version__ =")).split("'")[1], "functions": {}, "fields": {}}
    for place in FUNCTIONS[engine]:
        arguments = at(place).args
        names = [one.arg for one in [*arguments.posonlyargs, *arguments.args]]
        first = len(names) - len(arguments.defaults)  # that has a default, which is shown by "="
        out["functions"][place] = [name + "=" * (i >= first) for i, name in enumerate(names)]
    for place, names in FIELDS[engine].items():
        there = set(_fields(at(place)))
        out["fields"][place] = [one for one in names.split() if one in there]
    return out


def recorded(engine):
    """{version: facts}"""
    return json.loads(pathlib.Path(__file__).with_name(f"{engine}_facts.json").read_text())


def differences(engine, facts, versions, replaced, without=()):
    """What of a recorded version a plug-in does not fit. replaced: {place: function in place of that}; without: parameters
    of these that are the plug-in's own."""
    out = [] if facts["version"] in versions else [f"version {facts['version']}"]
    for place, function in replaced.items():
        parameters = inspect.signature(function).parameters.values()
        ours = [one.name + "=" * (one.default is not one.empty) for one in parameters
                if one.kind not in (one.KEYWORD_ONLY, one.VAR_POSITIONAL) and one.name not in without]
        takes_more = any(one.kind is one.VAR_POSITIONAL for one in parameters)
        if ours != facts["functions"][place][: len(ours) if takes_more else None]:
            out.append(f"{place}: {ours}")
    for place, names in FIELDS[engine].items():
        out += [f"{place} has no {name}" for name in names.split() if name not in facts["fields"][place]]
    return out


def planted(engine, facts, replaced):
    """Facts with one change each, which differences() must find."""
    for place in replaced:
        changed = copy.deepcopy(facts)
        changed["functions"][place].insert(1, "more")
        yield changed
    for place, names in FIELDS[engine].items():
        changed = copy.deepcopy(facts)
        changed["fields"][place].remove(names.split()[-1])
        yield changed


if __name__ == "__main__":
    found = record(*sys.argv[1:])
    all_of_them = {**recorded(sys.argv[1]), found["version"]: found}
    pathlib.Path(__file__).with_name(f"{sys.argv[1]}_facts.json").write_text(json.dumps(all_of_them, indent=1) + "\n")
