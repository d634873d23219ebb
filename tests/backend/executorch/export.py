#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Writes small models of random weights as ExecuTorch programs, by the Llama and in the form of ExecuTorch's own exporter.

usage: export.py FOLDER     needs executorch and torch
"""
import pathlib, sys

import torch
from executorch.examples.models.llama.llama_transformer import construct_transformer
from executorch.examples.models.llama.model_args import ModelArgs
from executorch.exir import EdgeCompileConfig, to_edge_transform_and_lower

V, CONTEXT = 17, 64
# name: seed of the weights, type of the logits, and how the exporter was told to write the program
MODELS = {
    "target": (1, torch.float32, {}),
    "draft": (2, torch.float32, {}),
    "target_f16": (1, torch.float16, {}),
    "target_bf16": (1, torch.bfloat16, {}),
    "target_last": (1, torch.float32, {"generate_full_logits": False}),  # the row of the last token alone
    "target_static": (1, torch.float32, {"enable_dynamic_shape": False}),  # calls of one token
    "target_positions": (1, torch.float32, {}),  # the position of each token is an input, as Hugging Face's exporter has it
    "target_uncached": (1, torch.float32, {"use_kv_cache": False, "enable_dynamic_shape": True}),
}


class Logits(torch.nn.Module):
    """A model whose logits are stored in another type."""

    def __init__(self, model, dtype):
        super().__init__()
        self.model, self.dtype = model, dtype

    def forward(self, tokens, attn_options=None):
        logits = self.model(tokens, attn_options)
        return (logits[0] if isinstance(logits, tuple) else logits).to(self.dtype)


class Positions(torch.nn.Module):
    """A model that is told the position of each token."""

    def __init__(self, model):
        super().__init__()
        self.model = model

    def forward(self, tokens, positions):
        return self.model(tokens, {"input_pos": positions[:1]})


def export(seed, dtype, options, positions=False):
    args = ModelArgs(dim=32, hidden_dim=48, n_layers=2, n_heads=4, n_kv_heads=2, vocab_size=V, max_seq_len=CONTEXT,
                     max_context_len=CONTEXT, **{"use_kv_cache": True, "generate_full_logits": True,
                                                 "enable_dynamic_shape": True, **options})
    torch.manual_seed(seed)
    model = Logits(construct_transformer(args), dtype).eval()
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, std=0.3)
    tokens = torch.zeros((1, 3 if args.enable_dynamic_shape else 1), dtype=torch.long)
    count = {1: torch.export.Dim("count", max=CONTEXT - 1)} if args.enable_dynamic_shape else None
    if args.use_kv_cache:
        given, shapes = (tokens, {"input_pos": torch.zeros(1, dtype=torch.long)}), (count, {"input_pos": {0: 1}})
    else:
        given, shapes = (tokens,), (count,)
    if positions:
        model, given, shapes = Positions(model), (tokens, torch.arange(3)), (count, {0: count[1]})
    shapes = shapes if count else None
    with torch.no_grad():
        program = torch.export.export(model, given, dynamic_shapes=shapes, strict=False)
    about = {"get_max_seq_len": CONTEXT, "get_max_context_len": CONTEXT, "get_vocab_size": V}
    edge = to_edge_transform_and_lower(program, constant_methods=about, compile_config=EdgeCompileConfig(_check_ir_validity=False))
    return edge.to_executorch().buffer


if __name__ == "__main__":
    folder = pathlib.Path(sys.argv[1])
    folder.mkdir(parents=True, exist_ok=True)
    for name, how in MODELS.items():
        (folder / f"{name}.pte").write_bytes(export(*how, positions=name == "target_positions"))
        print(folder / f"{name}.pte")
