# SPDX-License-Identifier: Apache-2.0
"""Writes a llama for llama.cpp whose logits depend on the last token alone (pip install gguf)."""
import gguf
import numpy as np


def write(file, logits):
    """logits [V, V]: row i is what follows token i. Token V - 1 is the end of the text."""
    V, D = len(logits), 32
    w = gguf.GGUFWriter(file, "llama")
    for name, n in dict(context_length=256, embedding_length=D, block_count=1, feed_forward_length=D, head_count=1).items():
        getattr(w, f"add_{name}")(n)
    w.add_layer_norm_rms_eps(1e-6)
    w.add_tokenizer_model("llama"), w.add_token_list([*"abcdefgh"[:V]]), w.add_token_scores([0.0] * V)
    w.add_token_types([1] * V), w.add_eos_token_id(V - 1)
    embedding, output, ones = np.eye(V, D), np.zeros((V, D)), np.ones(D)
    output[:, :V] = np.transpose(logits) / D**0.5  # RMS norm makes a one-hot row D**0.5
    zero = {f"blk.0.{x}": np.zeros((D, D)) for x in "attn_q attn_k attn_v attn_output ffn_gate ffn_up ffn_down".split()}
    tensors = {"token_embd": embedding, "output": output, "output_norm": ones, "blk.0.attn_norm": ones, "blk.0.ffn_norm": ones}
    for name, x in {**tensors, **zero}.items():
        w.add_tensor(f"{name}.weight", x.astype(np.float32))
    w.write_header_to_file(), w.write_kv_data_to_file(), w.write_tensors_to_file(), w.close()
