# SPDX-License-Identifier: Apache-2.0
"""What people type into the search, and the page that they mean: it is found first. tools/site/check types each word."""
FOUND = {
    "docs/install.md": ["install", "CMake"],
    "docs/engine.md": ["rejection sampling", "top-p", "top-k", "min-p", "temperature", "seed", "KV cache", "one-hot", "log-probabilities"],
    "docs/python.md": ["python", "numpy"],
    "docs/vllm.md": ["vLLM", "SGLang"],
    "docs/cuda.md": ["CUDA", "GPU"],
    "docs/decoders.md": ["decoder"],
    "docs/drafters.md": ["EAGLE", "prompt lookup", "n-gram"],
    "docs/trees.md": ["tree", "tree attention"],
    "docs/two-sites.md": ["DRAGON", "DSSD"],
    "docs/mathematics.md": ["policy", "residual", "block verification", "Gumbel", "Gumbel-max", "NaN", "log-sum-exp", "token-v3", "chow-log"],
    "docs/audit.md": ["bias"],
    "docs/proofs.md": ["Coq", "theorem"],
}
