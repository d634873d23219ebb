# SPDX-License-Identifier: Apache-2.0
"""What target.generation_config and the options of a call say: values, processors of logits, and what is refused."""

from __future__ import annotations

from typing import Any

import torch
import transformers
from transformers import GenerationConfig, RepetitionPenaltyLogitsProcessor

# What specagg.hf does.
_HONOURED = {
    "begin_suppress_tokens", "bad_words_ids", "do_sample", "eos_token_id", "exponential_decay_length_penalty",
    "forced_bos_token_id", "forced_eos_token_id", "max_length", "max_new_tokens", "min_length", "min_new_tokens", "min_p",
    "no_repeat_ngram_size", "pad_token_id", "remove_invalid_values", "repetition_penalty", "return_dict_in_generate",
    "sequence_bias", "suppress_tokens", "temperature", "top_k", "top_p",
}
# What asks for nothing here: with one beam, a prompt, and no compiled model.
_NO_EFFECT = {
    "bos_token_id", "decoder_start_token_id", "disable_compile", "early_stopping", "length_penalty", "low_memory",
    "renormalize_logits", "transformers_version", "use_cache",
}
# How transformers drafts, keeps keys and values, and compiles: done otherwise here, without a change of the law. The
# target's generation_config may say so, a call may not.
OTHERWISE = {
    "assistant_confidence_threshold", "assistant_lookbehind", "cache_config", "cache_implementation", "compile_config",
    "is_assistant", "max_cache_len", "max_matching_ngram_size", "num_assistant_tokens", "num_assistant_tokens_schedule",
    "return_legacy_cache", "target_lookbehind",
}
_HINTS = {"num_assistant_tokens": "; the number of drafted tokens is gamma"}
# Done by the processors and criteria that model.generate() hands to a function.
HANDED_OVER = {
    "encoder_no_repeat_ngram_size", "encoder_repetition_penalty", "epsilon_cutoff", "eta_cutoff", "max_time", "stop_strings",
    "top_h", "typical_p",
}
# Values that do nothing, beside None, False and the defaults of GenerationConfig.
_NOTHING = {
    "diversity_penalty": 0.0, "encoder_no_repeat_ngram_size": 0, "encoder_repetition_penalty": 1.0, "epsilon_cutoff": 0.0,
    "eta_cutoff": 0.0, "guidance_scale": 1.0, "num_beam_groups": 1, "num_beams": 1, "num_return_sequences": 1,
    "penalty_alpha": 0.0, "typical_p": 1.0,
}


def refuse_others(values: dict[str, Any], also: set[str] = set()) -> None:
    """ValueError, with the name: a value that asks for what is not done here. also: names that are done, or are not asked
    for by the call."""
    usual = vars(GenerationConfig())
    for name, value in values.items():
        if name in _HONOURED or name in _NO_EFFECT or name in also or name.startswith("_"):
            continue
        if value is None or value is False or value == usual.get(name) or value == _NOTHING.get(name):
            continue
        raise ValueError(f"{name}: {value!r} is not done by specagg.hf (from the call, or target.generation_config)"
                         + _HINTS.get(name, ""))


def values_of(target: Any, config: Any, options: dict[str, Any]) -> dict[str, Any]:
    """The options of a call that are not None, else those of its generation_config, else those of the target's.

    TypeError: an unknown name, or a config that is none. ValueError: what is not done here.
    """
    if config is not None and not isinstance(config, GenerationConfig):
        raise TypeError(f"generation_config: expected a GenerationConfig, not {type(config).__name__}")
    known = vars(GenerationConfig())
    for name in options:
        if name not in known or name.startswith("_"):
            hint = "; give that model as draft" if name == "assistant_model" else ""
            raise TypeError(f"{name}: generate() has no such argument{hint}")
    values: dict[str, Any] = {}
    of_target = getattr(target, "generation_config", None)
    for layer in (of_target, config, options):
        given = layer if isinstance(layer, dict) else {} if layer is None else layer.to_dict()
        given = {name: value for name, value in given.items() if value is not None}
        if layer is not options and given.get("max_length") == known["max_length"]:
            given.pop("max_length", None)
        if "max_length" in given or "max_new_tokens" in given:  # the one length of a layer replaces the other of those before
            values = {name: value for name, value in values.items() if name not in ("max_length", "max_new_tokens")}
        values.update(given)
    refuse_others(values, {name for name in OTHERWISE if values.get(name) == getattr(of_target, name, None)})
    return values


def new_tokens(values: dict[str, Any], prompt: int) -> Any:
    """How many tokens are written at most: max_new_tokens, else max_length, which counts the prompt; else 20."""
    if "max_length" not in values or "max_new_tokens" in values:
        return values.get("max_new_tokens", 20)
    whole = values["max_length"]
    if not isinstance(whole, int) or whole <= prompt:
        raise ValueError(f"max_length: {whole!r} leaves no token after a prompt of {prompt}")
    return whole - prompt


class _RepetitionPenalty(RepetitionPenaltyLogitsProcessor):  # type: ignore[misc]
    """That of transformers, where the leading pads[b] ids of row b do not count. Versions before 5.23 cannot say so."""

    def __init__(self, penalty: float, pads: Any) -> None:
        super().__init__(penalty)
        self.pads = pads[:, None]

    def __call__(self, input_ids: Any, scores: Any) -> Any:
        is_pad = torch.arange(input_ids.shape[1], device=input_ids.device) < self.pads
        # an id counts once, so the first one of the text may stand in their place
        return super().__call__(torch.where(is_pad, input_ids.gather(1, self.pads), input_ids), scores)


def processors_of(values: dict[str, Any], ends: list[int], pads: Any, prompt: int, longest: int, device: Any) -> list[Any]:
    """The processors that transformers makes of these values, in its order. pads [B]: leading pad tokens of each row;
    prompt: the length of input_ids; longest: that of the longest text. ValueError: from their constructors."""
    made: list[Any] = []

    def add(name: str, kind: Any, *arguments: Any, nothing: Any = None, **others: Any) -> None:
        if values.get(name) not in (None, nothing):
            made.append((getattr(transformers, kind) if isinstance(kind, str) else kind)(*arguments, **others))

    add("sequence_bias", "SequenceBiasLogitsProcessor", values.get("sequence_bias"))
    add("repetition_penalty", _RepetitionPenalty, values.get("repetition_penalty"), pads, nothing=1.0)
    add("no_repeat_ngram_size", "NoRepeatNGramLogitsProcessor", values.get("no_repeat_ngram_size"), nothing=0)
    add("bad_words_ids", "NoBadWordsLogitsProcessor", values.get("bad_words_ids"), ends or None)
    if ends:
        add("min_length", "MinLengthLogitsProcessor", values.get("min_length"), ends, device=device, nothing=0)
        add("min_new_tokens", "MinNewTokensLengthLogitsProcessor", prompt, values.get("min_new_tokens"), ends,
            device=device)
    add("forced_bos_token_id", "ForcedBOSTokenLogitsProcessor", values.get("forced_bos_token_id"))
    add("forced_eos_token_id", "ForcedEOSTokenLogitsProcessor", longest, values.get("forced_eos_token_id"), device=device)
    add("remove_invalid_values", "InfNanRemoveLogitsProcessor", nothing=False)
    if ends:
        add("exponential_decay_length_penalty", "ExponentialDecayLengthPenalty",
            values.get("exponential_decay_length_penalty"), torch.tensor(ends, device=device), prompt)
    add("suppress_tokens", "SuppressTokensLogitsProcessor", values.get("suppress_tokens"), device=device)
    add("begin_suppress_tokens", "SuppressTokensAtBeginLogitsProcessor", values.get("begin_suppress_tokens"), prompt,
        device=device)
    return made
