#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""benchmarks/cuda/rivals.py with a vLLM that is a stub, whose functions write down how they are called: without filters, at
temperature 0 or 1, its kernels get the target's rows where they lie; otherwise a copy in f32, which is divided and filtered
in vLLM's order, by the temperature and filters of each row, and in parts of at most 2^30 bytes. All have their law.

usage: rivals.py
"""
import os, pathlib, subprocess, sys, tempfile

ROOT = pathlib.Path(__file__).resolve().parents[2]
GPU = "vllm/v1/worker/gpu"
STUBS = {
    "triton/__init__.py": "jit = lambda f: f", "triton/language.py": "constexpr = None",
    "calls.py": """
import torch
done, given = [], []
torch.flatten_of = torch.Tensor.flatten
def flatten(tensor, *dimensions):  # what rivals.py begins with
    given.append(tensor.untyped_storage().data_ptr())
    return torch.flatten_of(tensor, *dimensions)
torch.Tensor.flatten = flatten
def note(what):
    done.append(what)
def of_rows(x, rows):
    assert x.shape == (rows,), (x.shape, rows)
    return f"{float(x[0]):g}"
""",
    f"{GPU}/sample/gumbel.py": """
import calls
def apply_temperature(logits, request, temperature):
    calls.note("divided")
    logits /= temperature[request.long()].unsqueeze(-1)
""",
    f"{GPU}/sample/min_p.py": """
import calls, torch
def apply_min_p(logits, request, min_p):
    calls.note(f"min-p {round(float(min_p[0]), 3)}")
    least = torch.log(min_p[request.long()]).unsqueeze(-1) + logits.max(-1, True)[0]
    logits[logits < least] = float("-inf")
""",
    "vllm/v1/sample/ops/topk_topp_triton.py": """
import calls, torch
def apply_top_k_top_p_triton(logits, k, p, has_topp_only_rows):
    rows = len(logits)
    calls.note(f"top-k {k if k is None else calls.of_rows(k, rows)}, top-p {p if p is None else calls.of_rows(p, rows)}, "
               f"only top-p {has_topp_only_rows}")
    law, order = torch.sort(logits, -1, True)
    if k is not None:
        law[:, int(k[0]):] = float("-inf")
    if p is not None:
        mass = law.softmax(-1)
        law[mass.cumsum(-1) - mass >= p.unsqueeze(-1)] = float("-inf")
    return torch.full_like(logits, float("-inf")).scatter(-1, order, law)
""",
    f"{GPU}/spec_decode/rejection_sampler_utils.py": """
import calls, hf_steps, torch
def rejection_sample(target, q, tokens, first, position, request, of_row, step, temperature, seed, gamma):
    B, T = len(request), round(float(temperature[0]), 3)
    lie = target.untyped_storage().data_ptr() == calls.given[-1]
    print("T", T, *calls.done, "as they lie" if lie else "copied", target.dtype, flush=True)
    calls.done.clear()
    assert first[0] == 0 and first[-1] == len(target) == len(tokens) == len(position) == len(of_row) == len(step)
    q, drafted = q[request.long()], tokens.reshape(B, -1)[:, 1:]
    target = target.reshape(B, gamma + 1, -1)
    greedy = lambda x: torch.where(x == x.max(-1, True)[0], 0.0, float("-inf"))
    q, target = (greedy(q), greedy(target)) if T == 0 else (q / T, target)
    n, token = hf_steps.batched(q, target, drafted)
    return token.unsqueeze(-1).expand(-1, gamma + 1).contiguous(), n + 1
"""}
FILTERED = ["top-k 20, top-p None, only top-p False", "top-k 50, top-p None, only top-p False",
            "top-k None, top-p 0.95, only top-p True", "top-k 50, top-p 0.95, only top-p False", "min-p 0.05"]
DUE = ["T 1.0 as they lie", *(f"T 1.0 {filtered} copied" for filtered in FILTERED), "T 0.7 divided copied",
       *(f"T 0.7 divided {filtered} copied" for filtered in FILTERED), "T 0.0 as they lie"]
# 15 shapes, 2 types, 3 kinds of rows, and 6 filters at two temperatures and none at 0
SETTINGS = ["each setting 1170 (64, 4) bf16 1.0 none rank^-1.3 of them 1170 (32, 8) f32 0.7 min-p 0.05 rank^-2"]
# 700 requests of 3 rows of 131,072 numbers: 682 at once
PARTS = """
import sys
sys.argv = ["rivals.py", "--cpu", "torch"]
import rivals, torch
rivals.hf_steps.batched = lambda q, p, drafted: (torch.zeros(len(drafted), dtype=torch.long), p[:, 0, 0].long())
p = torch.zeros(1, 1, 1).expand(700, 3, 1 << 17).to(torch.bfloat16)
numbers = torch.arange(700) % 256
p = torch.cat([numbers.view(-1, 1, 1).expand(-1, 3, 1), p[:, :, 1:2]], -1).to(torch.bfloat16)
wide = torch.as_strided(p, (700, 3, 1 << 17), (6, 2, 0))
n, token = rivals.Vllm(700, 2)(torch.zeros(700, 2, 2), wide, torch.zeros(700, 2))
every = rivals.settings("vllm")
print("each setting", len(every), *every[0], "of them", len({str(s) for s in every}), *every[-1])
print("each request its row", bool((token == numbers).all()), len(token))
"""
python = next((p for p in (sys.executable, "/usr/bin/python3")
               if subprocess.run([p, "-c", "import torch, numpy"], capture_output=True).returncode == 0), None)
if python is None:
    sys.exit(print("skipped: there is no torch"))
with tempfile.TemporaryDirectory() as folder:
    for name, text in STUBS.items():
        path = pathlib.Path(folder, name)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    environment = {**os.environ, "PYTHONPATH": f"{folder}:{ROOT}/benchmarks/cuda", "TRITON_INTERPRET": "1",
                   "PYTHONDONTWRITEBYTECODE": "1"}
    run = lambda *words: subprocess.run([python, *words], capture_output=True, text=True, env=environment)
    done, parts = run(ROOT / "benchmarks/cuda/rivals.py", "--cpu", "vllm"), run("-c", PARTS)
print(done.stdout, done.stderr, parts.stdout, parts.stderr)
seen = lambda ran: [line for line in ran.stdout.splitlines() if line.startswith(("T ", "each"))]
sys.exit(done.returncode or parts.returncode or seen(done) != [f"{line} torch.float32" for line in DUE] or
         seen(parts) != ["T 1.0 as they lie torch.bfloat16"] * 2 + SETTINGS + ["each request its row True 700"])
