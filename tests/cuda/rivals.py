#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""benchmarks/cuda/rivals.py with a vLLM that is a stub: at temperature 1 its kernels get the target's rows where they lie,
and at another a copy in f32, divided; both have their law.

usage: rivals.py
"""
import os, pathlib, subprocess, sys, tempfile

ROOT = pathlib.Path(__file__).resolve().parents[2]
GPU = "vllm/v1/worker/gpu"
STUBS = {
    "triton/__init__.py": "jit = lambda f: f", "triton/language.py": "constexpr = None",
    f"{GPU}/sample/gumbel.py": "def apply_temperature(logits, request, temperature):\n    logits /= temperature[request.long()].unsqueeze(-1)",
    f"{GPU}/spec_decode/rejection_sampler_utils.py": """
import hf_steps, torch
given = []
torch.flatten_of = torch.Tensor.flatten
def flatten(tensor, *dimensions):  # what rivals.py begins with
    given.append(tensor.data_ptr())
    return torch.flatten_of(tensor, *dimensions)
torch.Tensor.flatten = flatten
def rejection_sample(target, q, tokens, first, position, request, of_row, step, temperature, seed, gamma):
    T, copied = round(float(temperature[0]), 3), target.data_ptr() != given[-1]
    print("T", T, "copied" if copied else "as they lie", target.dtype)
    drafted = tokens.reshape(len(q), -1)[:, 1:]
    n, token = hf_steps.batched(q / T, target.reshape(len(q), gamma + 1, -1), drafted)
    return token.unsqueeze(-1).expand(-1, gamma + 1).contiguous(), n + 1
"""}
python = next((p for p in (sys.executable, "/usr/bin/python3")
               if subprocess.run([p, "-c", "import torch, numpy"], capture_output=True).returncode == 0), None)
if python is None:
    sys.exit(print("skipped: there is no torch"))
with tempfile.TemporaryDirectory() as folder:
    for name, text in STUBS.items():
        path = pathlib.Path(folder, name)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    done = subprocess.run([python, ROOT / "benchmarks/cuda/rivals.py", "--cpu", "vllm"], capture_output=True, text=True, env={
        **os.environ, "PYTHONPATH": folder, "TRITON_INTERPRET": "1", "PYTHONDONTWRITEBYTECODE": "1"})
print(done.stdout, done.stderr)
due = ["T 1.0 as they lie torch.float32", "T 0.7 copied torch.float32"]
sys.exit(done.returncode or [line for line in done.stdout.splitlines() if line.startswith("T ")] != due)
