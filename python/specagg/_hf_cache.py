# SPDX-License-Identifier: Apache-2.0
"""The keys and values of a batch whose texts grow and shrink by different numbers of tokens."""

from __future__ import annotations

import inspect
from typing import Any, Sequence

import torch
from transformers import DynamicCache

# Of config.layer_types: their keys and values can be cropped.
_croppable = {"full_attention", "sliding_attention", "chunked_attention"}


class Cached:
    """A model and the keys and values of the first sizes[b] tokens of the text of each row b.

    They stand in the slots ends[b] - sizes[b] to ends[b] - 1 of `slots`; what is in the others is masked.
    """

    def __init__(self, model: Any, name: str, batch: int) -> None:
        if not callable(getattr(model, "forward", None)) or not hasattr(model, "config"):
            raise TypeError(f"{name}: expected a causal model of transformers, not {type(model).__name__}")
        layers = set(getattr(model.config, "layer_types", None) or ())
        if model.config.is_encoder_decoder or layers - _croppable:
            raise ValueError(f"{name}: {type(model).__name__} has states that cannot be rolled back")
        self.model, self.cache, self.slots = model, DynamicCache(), 0
        self.sizes, self.ends = [0] * batch, [0] * batch
        self.accepts = inspect.signature(model.forward).parameters

    def rows(self, new: Sequence[list[int]], wanted: Sequence[int]) -> Any:
        """Appends tokens to the texts. Returns the logits after the last wanted[b] tokens of new[b], at least 0 and
        at most all, [B, max(wanted), V], on the model's device; what row b has after wanted[b] is arbitrary."""
        self._settle()
        device = self.model.device
        n = max(map(len, new))
        size, count, most = (torch.tensor(x, device=device)[:, None] for x in (self.sizes, [*map(len, new)], wanted))
        step = torch.arange(n, device=device)
        before = torch.arange(self.slots, device=device) >= self.slots - size
        keep = n - min(len(tokens) - w for tokens, w in zip(new, wanted))
        inputs = {
            "input_ids": torch.tensor([tokens + [0] * (n - len(tokens)) for tokens in new],
                                      device=device).clamp(max=self.model.config.vocab_size - 1),
            # A row without new tokens sees its first slot: else its numbers would be 0/0, and NaN times 0 is NaN.
            "attention_mask": torch.cat([before, step < count.clamp(min=1)], 1).long(),
            "position_ids": (size + torch.minimum(step, count - 1)).clamp(min=0),
            "logits_to_keep": keep,
        }
        inputs = {name: x for name, x in inputs.items() if name in self.accepts}
        inputs["cache" if "cache" in self.accepts else "past_key_values"] = self.cache
        logits = self.model(use_cache=True, **inputs).logits[:, -keep:]
        self.sizes = [a + len(tokens) for a, tokens in zip(self.sizes, new)]
        self.ends = [self.slots + len(tokens) for tokens in new]
        self.slots += n
        place = count - most - (n - keep) + torch.arange(max(wanted), device=device)
        return logits[torch.arange(len(new), device=device)[:, None], place.clamp(0, keep - 1)]

    def cut(self, most: Sequence[int]) -> None:
        """Takes off what is after the first most[b] tokens of each text."""
        for b, m in enumerate(most):
            gone = max(0, self.sizes[b] - m)
            self.sizes[b] -= gone
            self.ends[b] -= gone

    def select(self, rows: Sequence[int]) -> None:
        """Keeps only these rows."""
        self._settle()
        self.cache.batch_select_indices(torch.tensor(rows, device=self.model.device))
        self.sizes, self.ends = [self.sizes[b] for b in rows], [self.ends[b] for b in rows]

    def _settle(self) -> None:
        """Crops what no row uses at the end, and moves rows to the right where they end before others."""
        end = max(self.ends)
        if end < self.slots:
            self.cache.crop(end - self.slots)
            self.slots = end
        if min(self.ends) == end:
            return
        self.slots = max(self.sizes)
        index = (torch.tensor(self.ends)[:, None] - self.slots + torch.arange(self.slots)).clamp(min=0)

        def move(x: Any) -> Any:  # [B, heads, slots, numbers]
            return x.gather(2, index.to(x.device)[:, None, :, None].expand(-1, x.shape[1], -1, x.shape[3]))

        if hasattr(self.cache, "layers"):
            for layer in self.cache.layers:
                if layer.keys is not None:
                    layer.keys, layer.values = move(layer.keys), move(layer.values)
        else:  # before transformers 4.54
            self.cache.key_cache = [move(x) for x in self.cache.key_cache]
            self.cache.value_cache = [move(x) for x in self.cache.value_cache]
        self.ends = [self.slots] * len(self.ends)
