# python llama_model.py FILE: a llama of four tokens whose row of probabilities depends on the last token alone (pip install gguf)
import sys
import gguf, numpy as np

V, D, eps = 4, 32, 1e-13
after = np.full((V, V), 0.25)
after[2], after[0] = [0.5, 0.5, eps, eps], [1, eps, eps, eps]
w = gguf.GGUFWriter(sys.argv[1], "llama")
for name, n in ("context_length", 64), ("embedding_length", D), ("block_count", 1), ("feed_forward_length", D), ("head_count", 1):
    getattr(w, f"add_{name}")(n)
w.add_layer_norm_rms_eps(1e-6)
w.add_tokenizer_model("llama"), w.add_token_list([*"abcd"]), w.add_token_scores([0.0] * V), w.add_token_types([1] * V)
embedding, output, ones = np.eye(V, D), np.zeros((V, D)), np.ones(D)
output[:, :V] = np.log(after).T / D**0.5  # RMS norm makes a one-hot row D**0.5
zero = dict.fromkeys(f"blk.0.{x}" for x in "attn_q attn_k attn_v attn_output ffn_gate ffn_up ffn_down".split())
tensors = {"token_embd": embedding, "output": output, "output_norm": ones, "blk.0.attn_norm": ones, "blk.0.ffn_norm": ones,
           **{name: np.zeros((D, D)) for name in zero}}
for name, x in tensors.items():
    w.add_tensor(f"{name}.weight", x.astype(np.float32))
w.write_header_to_file(), w.write_kv_data_to_file(), w.write_tensors_to_file(), w.close()
