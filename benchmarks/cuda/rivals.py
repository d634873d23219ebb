#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Rivals of verification on the device that are Python: the Hugging Face steps in torch, rejection sampling in Triton, and
the kernels of vLLM itself.

usage: rivals.py RIVAL...          torch, triton, vllm; on a CUDA device: checked, then timed at the shapes of verify.cu
       rivals.py --cpu RIVAL...    without one: checked only. Triton's kernels need TRITON_INTERPRET=1
       --rows ROWS                 with --cpu: torch and triton against the law of the library, too, of the rows that
                                   bench-verify --export ROWS wrote

The kernels of `triton` are our own statement of what an earlier vLLM does in its sampler: log-sum-exp block by block,
rejection request by request, the recovered token as the winner of an exponential race over blocks of the vocabulary.
Ours is a strong one: nothing V-sized is written, and only the row of the rejection is raced.

vLLM's are those of its package (0.33: vllm/v1/worker/gpu), called as its GPU model runner does, in its order: logits of
both models, a temperature, filters and a seed for each request. Without filters, at temperature 0 or 1, its kernels read
the model's own rows. Otherwise it copies the target's rows to f32, divides them unless T = 1, and masks what min-p, then
top-k and top-p leave out; the draft's rows only get the temperature. Its two small kernels that gather ids before and
count tokens afterwards are left out, in its favour. `scripts/gpu-check --kit` takes along the files that this needs.

All are checked by the law of what they emit: the first token of lossless verification has the target's law, for
any draft. Timed as verify.cu times: copies of the input used in turn, at least 4 times the L2 cache, a row of calls
between two events, replayed from a graph where it can be captured; medians. Of Triton's block sizes the fastest counts.
Accepted tokens are the mean over all copies that are timed.

vLLM is timed in every setting of SETTINGS, first the usual one, then those that differ from it in one thing, in two, and
so on: a run that ends early has the most important lines. Rows "flat" are those of benchmarks/rows.hpp; "rank^-a" have
p ~ rank^-a, with noise of deviation 0.5 on the logits: language models have such rows, with most mass on few tokens.
"""
import argparse, itertools, math, os, pathlib, statistics, struct, sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent))
arguments = argparse.ArgumentParser(usage=__doc__.split("usage: ")[1].split("\n\n")[0])
arguments.add_argument("--cpu", action="store_true")
arguments.add_argument("--rows")
arguments.add_argument("rivals", nargs="+", choices=("torch", "triton", "vllm"))
options = arguments.parse_args()
try:
    import torch
except ImportError:
    sys.exit("rivals.py: there is no torch: not measured")
import hf_steps

cpu = options.cpu
if not cpu and not torch.cuda.is_available():
    sys.exit("rivals.py: torch sees no CUDA device: not measured")
device = "cpu" if cpu else "cuda"
if not hasattr(torch.Tensor, "untyped_storage"):  # torch 1, which Triton's interpreter and vLLM do not know
    torch.Tensor.untyped_storage = lambda tensor: tensor.storage().untyped()
    torch.compile = lambda function, **_: function
try:
    import triton
    import triton.language as tl
    no_triton = "needs TRITON_INTERPRET=1" if cpu and not os.environ.get("TRITON_INTERPRET") else ""
except ImportError as e:
    no_triton = str(e)

# ---- Triton ----------------------------------------------------------------------------------------------------------

if not no_triton:
    @triton.jit
    def block_sums(q, p, largest, sums, vocabulary, gamma: tl.constexpr, BLOCK: tl.constexpr):
        """The largest logit and the sum of exponentials of block (axis 1) of a row (axis 0: draft's, then target's)."""
        rows: tl.constexpr = 2 * gamma + 1
        i, block = tl.program_id(0), tl.program_id(1)
        request, row = (i // rows).to(tl.int64), i % rows
        v = block * BLOCK + tl.arange(0, BLOCK)
        if row < gamma:
            x = tl.load(q + (request * gamma + row) * vocabulary + v, mask=v < vocabulary, other=float("-inf"))
        else:
            x = tl.load(p + (request * (gamma + 1) + row - gamma) * vocabulary + v, mask=v < vocabulary,
                        other=float("-inf"))
        x = x.to(tl.float32)
        top = tl.max(x, 0)
        tl.store(largest + i * tl.num_programs(1) + block, top)
        tl.store(sums + i * tl.num_programs(1) + block, tl.sum(tl.exp(x - top), 0))

    @triton.jit
    def reject(q, p, drafted, largest, sums, log_sums, accepted, vocabulary, blocks, seed, gamma: tl.constexpr,
               BLOCKS: tl.constexpr):
        """Of each request: log-sum-exp of its rows, then the first rejected position."""
        rows: tl.constexpr = 2 * gamma + 1
        r = tl.program_id(0)
        b = tl.arange(0, BLOCKS)
        for row in range(rows):
            top = tl.load(largest + (r * rows + row) * blocks + b, mask=b < blocks, other=float("-inf"))
            part = tl.load(sums + (r * rows + row) * blocks + b, mask=b < blocks, other=0.0)
            most = tl.max(top, 0)
            tl.store(log_sums + r * rows + row, most + tl.log(tl.sum(part * tl.exp(top - most), 0)))
        tl.debug_barrier()  # what a thread wrote, others read
        n = 0
        going = 1
        for j in range(gamma):
            if going == 1:
                token = tl.load(drafted + r * gamma + j)
                draft = tl.load(q + (r.to(tl.int64) * gamma + j) * vocabulary + token).to(tl.float32)
                target = tl.load(p + (r.to(tl.int64) * (gamma + 1) + j) * vocabulary + token).to(tl.float32)
                ratio = tl.exp(target - tl.load(log_sums + r * rows + gamma + j) - draft + tl.load(log_sums + r * rows + j))
                if tl.rand(seed, r * 64 + j) <= ratio:
                    n += 1
                else:
                    going = 0
        tl.store(accepted + r, n)

    @triton.jit
    def race(q, p, log_sums, accepted, scores, winners, vocabulary, seed, gamma: tl.constexpr, BLOCK: tl.constexpr):
        """The winner of block (axis 1) for request (axis 0): argmax of max(p - q, 0) / Exp(1), or of p / Exp(1)."""
        rows: tl.constexpr = 2 * gamma + 1
        r, block = tl.program_id(0), tl.program_id(1)
        n = tl.load(accepted + r)
        v = block * BLOCK + tl.arange(0, BLOCK)
        inside = v < vocabulary
        x = tl.load(p + (r.to(tl.int64) * (gamma + 1) + n) * vocabulary + v, mask=inside, other=float("-inf"))
        w = tl.exp(x.to(tl.float32) - tl.load(log_sums + r * rows + gamma + n))
        if n < gamma:
            y = tl.load(q + (r.to(tl.int64) * gamma + n) * vocabulary + v, mask=inside, other=float("-inf"))
            w = tl.maximum(w - tl.exp(y.to(tl.float32) - tl.load(log_sums + r * rows + n)), 0.0)
        score = w / -tl.log(tl.maximum(tl.rand(seed + 1, r * vocabulary + v), 1e-10))
        tl.store(scores + r * tl.num_programs(1) + block, tl.max(score, 0))
        tl.store(winners + r * tl.num_programs(1) + block, block * BLOCK + tl.argmax(score, 0))

    @triton.jit
    def choose(scores, winners, out, blocks, BLOCKS: tl.constexpr):
        r = tl.program_id(0)
        b = tl.arange(0, BLOCKS)
        best = tl.argmax(tl.load(scores + r * blocks + b, mask=b < blocks, other=-1.0), 0)
        tl.store(out + r, tl.load(winners + r * blocks + best))


class Triton:
    """Verification of batches of one shape."""

    def __init__(self, requests, gamma, vocabulary, block, warps):
        self.block, self.warps, self.blocks, self.rows = block, warps, triton.cdiv(vocabulary, block), 2 * gamma + 1
        new = lambda *shape, kind=torch.float32: torch.empty(shape, dtype=kind, device=device)
        self.largest, self.sums = (new(requests, self.rows, self.blocks) for _ in range(2))
        self.log_sums, self.accepted = new(requests, self.rows), new(requests, kind=torch.int32)
        self.scores, self.winners = new(requests, self.blocks), new(requests, self.blocks, kind=torch.int32)
        self.out = new(requests, kind=torch.int32)

    def __call__(self, q_logits, p_logits, drafted, seed=0):
        requests, gamma = drafted.shape
        vocabulary, padded = q_logits.shape[-1], triton.next_power_of_2(self.blocks)
        how = dict(gamma=gamma, num_warps=self.warps)
        block_sums[requests * self.rows, self.blocks](q_logits, p_logits, self.largest, self.sums, vocabulary,
                                                      BLOCK=self.block, **how)
        reject[requests,](q_logits, p_logits, drafted, self.largest, self.sums, self.log_sums, self.accepted, vocabulary,
                          self.blocks, seed, gamma=gamma, BLOCKS=padded, num_warps=1)
        race[requests, self.blocks](q_logits, p_logits, self.log_sums, self.accepted, self.scores, self.winners,
                                    vocabulary, seed, BLOCK=self.block, **how)
        choose[requests,](self.scores, self.winners, self.out, self.blocks, BLOCKS=padded, num_warps=1)
        return self.accepted, self.out


# ---- vLLM ------------------------------------------------------------------------------------------------------------


FILTERS = {"none": {}, "top-k 20": {"top_k": 20}, "top-k 50": {"top_k": 50}, "top-p 0.95": {"top_p": 0.95},
           "top-k 50, top-p 0.95": {"top_k": 50, "top_p": 0.95}, "min-p 0.05": {"min_p": 0.05}}


class Vllm:
    """Verification of batches of one shape, all requests with one temperature and the same filters."""

    def __init__(self, requests, gamma, temperature=1.0, filters="none"):
        from vllm.v1.worker.gpu.sample.gumbel import apply_temperature
        from vllm.v1.worker.gpu.spec_decode.rejection_sampler_utils import rejection_sample
        self.apply_temperature, self.sample, self.gamma = apply_temperature, rejection_sample, gamma
        given = FILTERS[filters]
        of_requests = {name: torch.full([requests], x, dtype=torch.int32 if name == "top_k" else torch.float32, device=device)
                       for name, x in given.items()}
        self.top_k, self.top_p, self.min_p = map(of_requests.get, ("top_k", "top_p", "min_p"))
        if self.min_p is not None:
            from vllm.v1.worker.gpu.sample.min_p import apply_min_p
            self.apply_min_p = apply_min_p
        if self.top_k is not None or self.top_p is not None:
            from vllm.v1.sample.ops.topk_topp_triton import apply_top_k_top_p_triton
            self.apply_top_k_top_p = apply_top_k_top_p_triton
        each = gamma + 1  # rows of the target, and tokens: the last one that was emitted, then the drafted ones
        whole = lambda x: x.to(device=device, dtype=torch.int32)
        self.first_row = whole(torch.arange(requests + 1) * each)
        self.request = whole(torch.arange(requests))
        self.request_of_row = whole(torch.arange(requests).repeat_interleave(each))
        self.step_of_row = whole(torch.arange(each).repeat(requests))
        self.position = 100 + self.step_of_row.long()
        self.divides = temperature not in (0, 1)
        self.copies = self.divides or (temperature != 0 and bool(given))
        self.temperature = torch.full([requests], temperature, device=device)
        self.last = torch.zeros(requests, 1, dtype=torch.int64, device=device)

    def call(self, q_logits, p_logits, drafted, number=0):
        """What vLLM does, as a function without arguments: its ids and seeds lie as it has them. Each number has seeds of
        its own."""
        tokens = torch.cat([self.last, drafted.long()], 1).reshape(-1)
        seed = 1 + number * len(drafted) + self.request.long()

        rows, each = p_logits.flatten(0, 1), self.gamma + 1
        # RejectionSampler._verify_in_chunks: at most 2^30 bytes of f32 at once
        at_once = max(1, (1 << 30) // (4 * rows.shape[1]) // each)

        def verify():
            parts = []
            for begin in range(0, len(drafted), at_once):
                requests = slice(begin, begin + at_once)
                of_rows = slice(each * begin, each * (begin + at_once))
                first = self.first_row[begin:begin + at_once + 1]
                parts.append(self.sample(
                    self.processed(rows[of_rows], self.request_of_row[of_rows]), q_logits, tokens[of_rows],
                    first - each * begin if begin > 0 else first, self.position[of_rows], self.request[requests],
                    self.request_of_row[of_rows], self.step_of_row[of_rows], self.temperature, seed, self.gamma))
            return parts[0] if len(parts) == 1 else tuple(map(torch.cat, zip(*parts)))

        return verify

    def processed(self, target, request):
        """Sampler.apply_sampling_params of the rows of the target; request: of each row."""
        if not self.copies:
            return target
        target = torch.empty_like(target, dtype=torch.float32).copy_(target)
        if self.divides:
            self.apply_temperature(target, request, self.temperature)
        if self.min_p is not None:
            self.apply_min_p(target, request, self.min_p)
        if self.top_k is None and self.top_p is None:
            return target
        of_row = lambda x: None if x is None else x.index_select(0, request)
        return self.apply_top_k_top_p(target, of_row(self.top_k), of_row(self.top_p), has_topp_only_rows=self.top_k is None)

    def __call__(self, q_logits, p_logits, drafted, number=0):
        emitted, count = self.call(q_logits, p_logits, drafted, number)()
        accepted = count - 1
        return accepted, emitted.gather(-1, accepted.long().unsqueeze(-1)).squeeze(-1)


# The first of each is the usual one. Of the other rivals only shapes and types vary.
SETTINGS = {"shape": [(B, gamma) for gamma in (4, 1, 8) for B in (64, 1, 8, 256, 32)], "kind": ["bf16", "f32"],
            "T": [1.0, 0.7, 0.0], "filters": list(FILTERS), "rows": ["rank^-1.3", "flat", "rank^-2"]}


def settings(rival):
    """Those that differ least from the first one first. At T = 0 filters change nothing."""
    several = SETTINGS if rival == "vllm" else {
        "shape": [(64, 4), (1, 4), (8, 4), (32, 4), (256, 4), (64, 8), (64, 16)], "kind": SETTINGS["kind"], "T": [1.0],
        "filters": ["none"], "rows": ["flat"]}
    number = lambda indices: (sum(i > 0 for i in indices), indices)
    every = sorted(itertools.product(*(range(len(x)) for x in several.values())), key=number)
    chosen = [[x[i] for x, i in zip(several.values(), indices)] for indices in every]
    return [s for s in chosen if s[2] > 0 or s[3] == "none"]


# ---- inputs and checks -----------------------------------------------------------------------------------------------


def rows_like_ours(requests, gamma, vocabulary, kind=torch.float32, acceptance=0.8, temperature=1.0, rows="flat"):
    """As benchmarks/rows.hpp: logits of standard deviation 2.5, q = a p + (1 - a) p backwards, drafts drawn from q. Rows
    "rank^-a": logits -a ln(rank), the ranks in a random order, with noise."""
    shape = (requests, gamma + 1, vocabulary)
    if rows == "flat":
        p = 2.5 * torch.randn(shape, device=device)
    else:
        rank = torch.rand(shape, device=device).argsort(-1).add_(1)
        p = float(rows.removeprefix("rank^")) * rank.log() + 0.5 * torch.randn(shape, device=device)
    q = p[:, :gamma]
    q = torch.logaddexp(q + torch.tensor(acceptance).log().item(), q.flip(-1) + torch.tensor(1 - acceptance).log().item())
    p, q = p.to(kind), q.to(kind)
    law = law_of(q, temperature).reshape(-1, vocabulary)
    return q, p, torch.multinomial(law, 1).reshape(requests, gamma)


def law_of(logits, temperature, top_k=0, top_p=1, min_p=0):
    """The softmax of rows of logits at a temperature, of what the filters keep: min-p first, then top-k, then top-p of
    what is left."""
    law = torch.nn.functional.one_hot(logits.argmax(-1), logits.shape[-1]).to(torch.float32) if temperature == 0 else \
        torch.softmax(logits / temperature, -1, dtype=logits.dtype if logits.dtype == torch.float64 else torch.float32)
    if temperature == 0 or (top_k == 0 and top_p == 1 and min_p == 0):
        return law
    law = torch.where(law < min_p * law.max(-1, True)[0], torch.zeros_like(law), law)
    order = law.argsort(-1, True)
    sorted_law = law.gather(-1, order)
    sorted_law[..., top_k or logits.shape[-1]:] = 0
    before = sorted_law.cumsum(-1) - sorted_law
    sorted_law[before >= top_p * sorted_law.sum(-1, True)] = 0
    law = torch.zeros_like(law).scatter(-1, order, sorted_law)
    return law / law.sum(-1, True)


def deviation(n, rate):
    """The s with exp(-2 n s^2) = rate."""
    return (-math.log(rate) / (2 * n)) ** 0.5


def check_law(name, verify, block=None, temperature=1.0, filters="none"):
    """The first emitted token of many equal requests against the target's law, and how many are accepted. A right rival
    fails with probability at most 2e-6: the total variation T between frequencies and law has a mean of at most
    sum sqrt(p (1 - p) / n) / 2, and exceeds it by s with probability at most exp(-2 n s^2) (McDiarmid); the mean of n
    values in 0..gamma is off by gamma s with probability at most 2 exp(-2 n s^2) (Hoeffding)."""
    requests, gamma, vocabulary = (1000 if cpu and block else 20000), 2, 80
    q, p, _ = rows_like_ours(1, gamma, vocabulary)
    law_q = law_of(q.double(), temperature)[0]  # only the target's rows are filtered
    law_p = law_of(p.double(), temperature, **FILTERS[filters])[0]
    drafted = torch.stack([torch.multinomial(law_q[j], requests, True) for j in range(gamma)], 1)
    n, token = verify(q.expand(requests, -1, -1).contiguous(), p.expand(requests, -1, -1).contiguous(), drafted)
    n = n.long()
    first = torch.where(n > 0, drafted[:, 0], token.long())
    seen = torch.bincount(first, minlength=vocabulary).double()
    distance = float((seen / requests - law_p[0]).abs().sum() / 2)
    most = float((law_p[0] * (1 - law_p[0]) / requests).sqrt().sum() / 2) + deviation(requests, 1e-6)
    overlap = [float(torch.minimum(law_p[j], law_q[j]).sum()) for j in range(gamma)]
    mean, want = float(n.double().mean()), overlap[0] * (1 + overlap[1])
    ok = distance < most and abs(mean - want) < gamma * deviation(requests, 1e-6 / 2)
    print(f"{name}: first token at {distance:.4f} from the law, at most {most:.4f}, accepted {mean:.3f} of {want:.3f}: "
          f"{'as it should be' if ok else 'WRONG'}", flush=True)
    return ok


def check_rows(path):
    """Acceptance and residual law of torch's softmax against the library's, of the rows that bench-verify wrote."""
    import numpy
    with open(path, "rb") as file:
        gamma, vocabulary, drafts = struct.unpack("QQQ", file.read(24))
        read = lambda kind, *shape: torch.from_numpy(
            numpy.fromfile(file, kind, int(numpy.prod(shape))).reshape(shape)).to(device)
        q, p = read(numpy.float32, 1, gamma, vocabulary), read(numpy.float32, 1, gamma + 1, vocabulary)
        tokens = read(numpy.int32, drafts, 1, gamma).long()
        acceptance = read(numpy.float64, gamma)
    means = []
    for verify in (lambda *x: hf_steps.batched(*x),) + ((Triton(1, gamma, vocabulary, 8192, 8),) if not no_triton else ()):
        times = 20 if cpu else 400
        n = [int(verify(q, p, tokens[i % drafts], *([i] if isinstance(verify, Triton) else []))[0]) for i in range(times)]
        means.append(sum(n) / len(n))
    want = float(sum(torch.cumprod(acceptance, 0)))
    print(f"{path}: accepted {' and '.join(f'{m:.2f}' for m in means)} on average, expected {want:.2f}", flush=True)
    return all(abs(m - want) < gamma * deviation(times, 1e-6 / 2) for m in means)


# ---- time ------------------------------------------------------------------------------------------------------------


def in_a_row(calls, repetitions=30):
    """Median microseconds of a call: eagerly, and replayed from a graph (None: it cannot be captured)."""
    def sample(work):
        times = []
        for i in range(repetitions + 5):
            start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
            start.record()
            work()
            end.record()
            torch.cuda.synchronize()
            times.append(start.elapsed_time(end) * 1e3 / len(calls))
        return statistics.median(times[5:])

    def every():
        for call in calls:
            call()

    every()
    torch.cuda.synchronize()
    eager, graphed = sample(every), None
    try:
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            every()
        graphed = sample(graph.replay)
    except Exception as e:
        print(f"  no graph: {e}".splitlines()[0], flush=True)
        torch.cuda.synchronize()
    return eager, graphed


def copies_like_ours(shape, vocabulary, kind, temperature, rows):
    l2 = getattr(torch.cuda.get_device_properties(0), "L2_cache_size", 60 << 20)
    size = (2 * shape[1] + 1) * shape[0] * vocabulary * kind.itemsize
    return [rows_like_ours(*shape, vocabulary, kind, temperature=temperature, rows=rows)
            for _ in range(min(max(4 * l2 // size + 1, 2), 64))]


def fastest_triton(copies, shape, vocabulary, sizes):
    """(times, the verification) of the best of these (block, warps)."""
    steps = [Triton(*shape, vocabulary, block, warps) for block, warps in sizes]
    timed = [(in_a_row([lambda c=c: step(*c) for c in copies], 15), step) for step in steps]
    return min(timed, key=lambda t: t[0][1] or t[0][0])


def measure(rival):
    torch.manual_seed(1)
    print("rival    type     B   g     T   eager us   graph us  accepted  rows       filters", flush=True)
    vocabulary, sizes = 128256, [(4096, 8), (8192, 8), (16384, 16)]
    kinds = {"f32": torch.float32, "bf16": torch.bfloat16}
    for shape, kind, temperature, filters, rows in settings(rival):
        copies = copies_like_ours(shape, vocabulary, kinds[kind], temperature, rows)
        if rival == "triton":
            (eager, graphed), step = fastest_triton(copies, shape, vocabulary, sizes)
        elif rival == "torch":
            step = hf_steps.batched
            eager, graphed = in_a_row([lambda c=c: step(*c) for c in copies])
        else:
            step = Vllm(*shape, temperature, filters)
            eager, graphed = in_a_row([step.call(*c, i) for i, c in enumerate(copies)])
        numbered = lambda i: (i,) * (rival == "vllm")  # the seeds of the call that was timed
        accepted = statistics.mean(float(step(*c, *numbered(i))[0].double().mean()) for i, c in enumerate(copies))
        print(f"{rival:8} {kind:5} {shape[0]:4} {shape[1]:3} {temperature:5.1f} {eager:10.1f} "
              f"{graphed or float('nan'):10.1f} {accepted:9.2f}  {rows:9}  {filters}", flush=True)
        del copies, step
        torch.cuda.empty_cache()


def check(rival):
    if rival == "torch":
        return check_law(rival, hf_steps.batched)
    if no_triton:
        sys.exit(f"rivals.py: {rival} needs Triton: {no_triton}")
    if rival == "triton":
        return check_law(rival, lambda q, p, d: Triton(*d.shape, q.shape[-1], 32, 1)(q, p, d, 5), 32)
    try:
        return all(check_law(f"{rival}, T = {T}, {f}", lambda q, p, d: Vllm(*d.shape, T, f)(q, p, d), 32, T, f)
                   for T, f in itertools.product(SETTINGS["T"], FILTERS) if T > 0 or f == "none")
    except ImportError as e:
        sys.exit(f"rivals.py: vllm is not installed, or another version: {e}")


torch.manual_seed(3)
for name in options.rivals:
    if not check(name):
        sys.exit(f"rivals.py: {name} has another law: not measured")
    if not cpu:
        measure(name)
if options.rows and not check_rows(options.rows):
    sys.exit("rivals.py: another law than the library's")
