# SPDX-License-Identifier: Apache-2.0
"""A model for ONNX Runtime GenAI, after every token of which comes the same row of logits. Needs onnx and numpy."""
import json
import pathlib
import tempfile

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

def written(row):
    """Every token has this row; its cache holds one number for each token."""
    size, folder = row.size, pathlib.Path(tempfile.mkdtemp())
    names = [f"{one}.0.{kind}" for one in ("past_key_values", "present") for kind in ("key", "value")]
    node, value = helper.make_node, helper.make_tensor_value_info
    graph = helper.make_graph(
        [node("Cast", ["input_ids"], ["ids"], to=TensorProto.FLOAT), node("Unsqueeze", ["ids", "two"], ["column"]),
         node("Mul", ["column", "zero"], ["nothing"]), node("Add", ["nothing", "row"], ["logits"]),
         node("Unsqueeze", ["column", "one"], ["new"]), *(node("Concat", [a, "new"], [b], axis=2) for a, b in zip(names[:2], names[2:]))],
        "one_row", [*(value(one, TensorProto.INT64, ["batch", one]) for one in ("input_ids", "attention_mask")),
                    *(value(one, TensorProto.FLOAT, ["batch", 1, "past", 1]) for one in names[:2])],
        [value("logits", TensorProto.FLOAT, ["batch", "input_ids", size]),
         *(value(one, TensorProto.FLOAT, ["batch", 1, "all", 1]) for one in names[2:])],
        [numpy_helper.from_array(np.array(x, t), name) for name, x, t in
         (("two", [2], np.int64), ("one", [1], np.int64), ("zero", [0], np.float32), ("row", row, np.float32))])
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), str(folder / "model.onnx"))
    decoder = {"filename": "model.onnx", "hidden_size": 1, "head_size": 1, "num_attention_heads": 1, "num_key_value_heads": 1,
               "num_hidden_layers": 1, "session_options": {"provider_options": []},
               "inputs": {"input_ids": "input_ids", "attention_mask": "attention_mask", "past_key_names": "past_key_values.%d.key",
                          "past_value_names": "past_key_values.%d.value"},
               "outputs": {"logits": "logits", "present_key_names": "present.%d.key", "present_value_names": "present.%d.value"}}
    (folder / "genai_config.json").write_text(json.dumps(
        {"model": {"type": "llama", "vocab_size": size, "context_length": 64, "bos_token_id": 0, "eos_token_id": 0, "pad_token_id": 0,
                   "decoder": decoder}, "search": {"max_length": 64, "past_present_share_buffer": False}}))
    return str(folder)
