# SPDX-License-Identifier: Apache-2.0
"""Times a round that is verified on the host, where a device has no Triton and no kernels of specagg: the C library's call on the
host's tensors, as vLLM has them, beside the copy of the rows. The C library must emit what specagg.verify() emits.

usage: host_time.py LIBRARY [VOCABULARY REQUESTS]    libspecagg.so, of -DSPECAGG_C=ON; needs torch and specagg. One thread
"""
import ctypes as c
import sys
import time

import numpy as np
import torch

import specagg


class Rows(c.Structure):
    _fields_ = [("data", c.c_void_p), ("count", c.c_size_t), ("stride", c.c_size_t), ("kind", c.c_int32), ("sampling", c.c_void_p)]


class Sampling(c.Structure):
    _fields_ = [("temperature", c.c_double), ("top_k", c.c_uint32), ("top_p", c.c_double), ("min_p", c.c_double),
                ("order", c.c_int32)]


class Request(c.Structure):
    _fields_ = [("vocabulary", c.c_size_t), ("drafted", c.c_void_p), ("drafted_count", c.c_size_t), ("q", Rows), ("p", Rows),
                ("policy", c.c_void_p), ("verifier", c.c_int32), ("bonus", c.c_int32), ("bonus_token", c.c_int32),
                ("position", c.c_uint32), ("seed", c.c_uint64), ("request", c.c_uint64), ("end_of_text", c.c_void_p),
                ("end_of_text_count", c.c_size_t)]


class Result(c.Structure):
    _fields_ = [("tokens", c.c_void_p), *((name, c.c_void_p) for name in "log_pi log_p origins reasons of_row of_token".split()),
                ("emitted", c.c_size_t), ("accepted", c.c_size_t), ("status", c.c_int32), ("ended", c.c_int32)]


def best(run, times=25):
    """Milliseconds of CPU, of the fastest: other processes count little."""
    out = []
    for _ in range(times):
        begin = time.process_time()
        run()
        out.append(time.process_time() - begin)
    return 1000 * min(out)


library = c.CDLL(sys.argv[1])
library.specagg_scratch.restype, library.specagg_scratch.argtypes = c.c_size_t, [c.c_size_t, c.c_size_t]
library.specagg_isa.restype = library.specagg_last_error.restype = c.c_char_p
library.specagg_verify.argtypes = [c.c_void_p, c.c_void_p, c.c_size_t, c.c_void_p, c.c_size_t]
V, B = map(int, sys.argv[2:4]) if len(sys.argv) > 2 else (128_256, 8)
gamma, temperature = 4, 0.8
torch.set_num_threads(1)
specagg.set_threads(1)
rng = torch.Generator().manual_seed(1)
# as vLLM's V1 gives them: the target's logits [N + B, V], the draft's probabilities [N, V] at the temperature, int32 drafts [N]
q = torch.randn(B * gamma, V, generator=rng) * 2.5
logits = torch.cat([torch.cat([q[i * gamma:(i + 1) * gamma], torch.randn(1, V, generator=rng) * 2.5]) for i in range(B)])
logits += 0.5 * torch.randn(logits.shape, generator=rng)
probabilities = (q / temperature).softmax(-1)
drafts = torch.multinomial(probabilities, 1, generator=rng)[:, 0].int()

how = Sampling(temperature, 0, 1.0, 0.0, 1)  # in vLLM's order
requests, results = (Request * B)(), (Result * B)()
tokens = np.full((B, gamma + 1), -1, np.int32)
for i in range(B):
    of_q = Rows(probabilities[i * gamma].data_ptr(), gamma, 0, 4, None)
    of_p = Rows(logits[i * (gamma + 1)].data_ptr(), gamma + 1, 0, 0, c.addressof(how))
    requests[i] = Request(V, drafts[i * gamma:].data_ptr(), gamma, of_q, of_p, None, 0, 1, -1, 100 + i, 7 + i, 0, None, 0)
    results[i].tokens = tokens[i].ctypes.data
size = library.specagg_scratch(V, gamma)
scratch = np.empty(size, np.uint8)


def call():
    if library.specagg_verify(requests, results, B, scratch.ctypes.data, size):
        sys.exit(library.specagg_last_error().decode())


def of_python():
    rows = specagg.Rows(("probabilities", "logits"), specagg.Sampling(temperature, order="vllm"))
    return specagg.verify(specagg.Drafts(drafts.reshape(B, gamma)), probabilities.reshape(B, gamma, V), logits.reshape(B, gamma + 1, V),
                          rows=rows, streams=specagg.Streams(np.arange(7, 7 + B), np.arange(100, 100 + B), requests=0),
                          bonus="target")


call()
assert (of_python().tokens == tokens).all(), "the C library emits other tokens"
there = [torch.empty_like(x) for x in (logits, probabilities)]
megabytes = sum(x.numel() * 4 for x in there) / 1e6
times = {f"specagg_verify of C ({library.specagg_isa().decode()})": best(call), "specagg.verify of Python": best(of_python),
         f"a copy of the rows, {megabytes:.0f} MB": best(lambda: [a.copy_(b) for a, b in zip(there, (logits, probabilities))])}
print(f"V = {V}, {B} requests, {gamma} drafted tokens, {sum(r.accepted for r in results) / (B * gamma):.2f} accepted, one thread")
for name, ms in times.items():
    print(f"{ms:8.2f} ms  {name}")
