# SPDX-License-Identifier: Apache-2.0
"""ONNX Runtime GenAI: with more than 64 ids top-p keeps more tokens than are due. The rows are the model's own."""
import numpy as np
import onnxruntime_genai as genai

import genai_model

for size in 64, 65, 4096, 32_000:
    row = -np.log1p(np.arange(size)).astype(np.float32)  # Zipf's law, most likely token first
    p = np.exp(row.astype(np.float64))
    p /= p.sum()
    given = genai.Model(genai_model.written(row))
    for top_p in 0.05, 0.5, 0.9:
        tokens = []
        for seed in range(32):
            how = genai.GeneratorParams(given)
            how.set_search_options(do_sample=True, top_k=0, top_p=top_p, temperature=1.0, batch_size=32, max_length=8,
                                   random_seed=seed)
            generator = genai.Generator(given, how)
            generator.append_tokens(np.zeros((32, 1), np.int32))
            generator.generate_next_token()
            tokens += np.array(generator.get_next_tokens()).reshape(-1).tolist()
        due = np.count_nonzero(np.cumsum(p) - p < top_p)
        print(f"V = {size}, top-p {top_p}: {due} tokens are due; {np.mean(np.array(tokens) >= due):.3f} of 1,024 tokens are others, "
              f"the last one {max(tokens)}")
