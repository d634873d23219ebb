#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The verification step of Hugging Face transformers (assisted decoding with sampling), in torch.

usage: torch_steps.py ROWS OUT.json      ROWS: written by bench-verify --export ROWS

The steps are those of hf_steps.py. Checked against the library's acceptance and residual law before they are timed;
medians, in the form of Google Benchmark's JSON.
"""
import json, statistics, struct, sys, time

try:
    import numpy, torch
except ImportError as e:
    sys.exit(f"torch_steps.py: {e} (scripts/bench runs this with a Python that has torch and numpy)")
import hf_steps

with open(sys.argv[1], "rb") as file:
    gamma, vocabulary, drafts = struct.unpack("QQQ", file.read(24))
    read = lambda kind, *shape: torch.from_numpy(numpy.fromfile(file, kind, int(numpy.prod(shape))).reshape(shape))
    q_logits, p_logits = read(numpy.float32, 1, gamma, vocabulary), read(numpy.float32, 1, gamma + 1, vocabulary)
    tokens = read(numpy.int32, drafts, 1, gamma).long()
    acceptance, residual = read(numpy.float64, gamma), read(numpy.float32, gamma, vocabulary)

q, p = torch.softmax(q_logits, -1)[0], torch.softmax(p_logits, -1)[0]
for j in range(gamma):
    left = torch.clamp(p[j] - q[j], min=0)
    if abs(float(torch.minimum(p[j], q[j]).double().sum()) - float(acceptance[j])) > 1e-4:
        sys.exit(f"torch_steps.py: position {j}: another acceptance than the library's: not timed")
    if float((left / left.sum() - residual[j]).abs().max()) > 1e-5:
        sys.exit(f"torch_steps.py: position {j}: another residual law than the library's: not timed")

results = []
for threads in (1, 2):
    torch.set_num_threads(threads)
    for name, known in (("written out", None), ("known", q.unsqueeze(0))):
        times = []
        for i in range(60):
            start = time.perf_counter()
            hf_steps.step(q_logits, p_logits, tokens[i % drafts], known)
            times.append((time.perf_counter() - start) * 1e6)
        times = times[10:]
        results.append({
            "name": f"step/Hugging Face steps in torch, {name}, {threads} thread{'s' * (threads > 1)}"
                    f"/V={vocabulary}/gamma={gamma}/B=1/acceptance=80%/warm",
            "run_name": "", "aggregate_name": "median", "time_unit": "us", "cpu_time": statistics.median(times),
            "real_time": statistics.median(times), "least": min(times), "most": max(times)})
        print(f"{results[-1]['name']}: {results[-1]['real_time']:.0f} us", flush=True)
with open(sys.argv[2], "w") as file:
    json.dump({"context": {"torch": torch.__version__, "instruction set": torch.backends.cpu.get_cpu_capability()},
               "benchmarks": results}, file, indent=1)
