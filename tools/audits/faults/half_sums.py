# SPDX-License-Identifier: Apache-2.0
"""ExecuTorch: the sampler adds probabilities of float16 rows in float16; first tokens of consecutive seeds depend on each other."""
import ctypes

import executorch.extension.llm.runner._llm_runner as runner
import numpy as np

library, name = ctypes.CDLL(runner.__file__), "_ZN10executorch9extension3llm7Sampler"
make = getattr(library, name + "C1Eiffy")  # Sampler(vocab_size, temperature, topp, rng_seed)
make.argtypes, make.restype = [ctypes.c_void_p, ctypes.c_int32, ctypes.c_float, ctypes.c_float, ctypes.c_uint64], None
half, single = (getattr(library, f"{name}6sampleI{t}EEiPT_") for t in ("N3c104HalfE", "f"))
half.argtypes = single.argtypes = [ctypes.c_void_p, ctypes.c_void_p]

def sampler(size, top_p, seed):
    there = (ctypes.c_uint64 * 16)()
    make(there, size, 1.0, top_p, seed)
    return there

def tokens(row, top_p, call, n=4000):
    one, rows = sampler(row.size, top_p, 1), np.tile(row, (n, 1))  # it writes into its row
    return np.array([call(one, rows[i].ctypes.data) for i in range(n)])

for size in 4096, 32_000:
    row = -np.log1p(np.arange(size)).astype(np.float16)  # Zipf's law, most likely token first
    p = np.exp(row.astype(np.float64)) / np.exp(row.astype(np.float64)).sum()
    for top_p in 1.0, 0.9:
        due = p * (np.cumsum(p) - p < top_p) / p[np.cumsum(p) - p < top_p].sum()
        far = size // 2 if top_p == 1 else 3 * np.count_nonzero(due) // 4
        share = [(tokens(row.astype(t), top_p, call) >= far).mean() for t, call in ((np.float16, half), (np.float32, single))]
        print(f"V = {size}, top-p {top_p}: tokens from {far} on have {due[far:].sum():.3f}; float16 gives {share[0]:.3f}, "
              f"float32 {share[1]:.3f}")
rows = np.zeros((20_000, 4), np.float32)
coins = np.array([single(sampler(4, 1.0, seed), rows[seed - 1].ctypes.data) for seed in range(1, 20_001)])
print(f"4 equal tokens, seeds 1 to 20000, the first token of each: {np.bincount(coins, minlength=4).tolist()}; neighbours are the "
      f"same in {(coins[1:] == coins[:-1]).mean():.3f}, where 0.250 is due")
