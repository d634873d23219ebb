#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""tools/server: texts of requests at once are those that each gets alone, cancelled requests leave nothing behind,
and hostile clients get clear errors.

usage: server.py SERVER cpu|llama.cpp [quick|rest|CHECK...]   (nothing: all checks)
"""
import gzip, http.client, json, math, os, pathlib, random, re, resource, signal, socket, struct, subprocess, sys
import tempfile, threading, time, zlib

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
server = sys.argv[1]
backend = sys.argv[2]
cpu = backend == "cpu"
models = ROOT / "models"
CANCELS = 200  # requests with random cancels
END = "2"  # the token that ends a text of TARGET
TARGET, DRAFT = models / "target.gguf", models / "draft.gguf"
JSON = {"Content-Type": "application/json"}
# AddressSanitizer keeps 256 MB of what was freed, which would look like a leak.
# libllama keeps what it registered for other machines until the process ends.
UNDER_ASAN = {"ASAN_OPTIONS": "quarantine_size_mb=1:thread_local_quarantine_size_kb=16",
              "LSAN_OPTIONS": f"suppressions={pathlib.Path(__file__).with_name('leaks_of_libllama.txt')}:print_suppressions=0"}
CACHE = os.environ.get("SPECAGG_MODELS") or (os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")) + "/specagg"
SMOLLM2, HEAD = pathlib.Path(CACHE, "SmolLM2-135M-Instruct.Q4_1.gguf"), models / "smollm2-head.gguf"
EXACT = () if cpu else ("--exact-batches", 1)  # texts that do not depend on other requests


def set_limits(limits):
    for kind, most in limits.items(): resource.setrlimit(kind, (most, resource.getrlimit(kind)[1]))


class running:
    def __init__(self, *options, target=None, environment=None, threads=1, limits={}):
        named = ["--target", target] if target else ["--target", TARGET, "--draft", DRAFT]
        self.process = subprocess.Popen(
            [server, "--backend", backend, *named, "--port", "0", "--threads", str(threads), *map(str, options)],
            stdout=subprocess.PIPE, text=True, env={**UNDER_ASAN, **os.environ, **(environment or {})},
            preexec_fn=(lambda: set_limits(limits)) if limits else None)
        line = self.process.stdout.readline()
        self.port = int(re.search(r":(\d+)$", line)[1])

    def __enter__(self):
        return self

    def __exit__(self, *failed):
        self.process.terminate()
        status = self.process.wait(30)
        assert failed[0] or status == 0, f"the server's exit status is {status}"

    def call(self, method, path, body=None, headers=JSON):
        c = http.client.HTTPConnection("127.0.0.1", self.port, timeout=120)
        c.request(method, path, body if isinstance(body, (str, bytes, type(None))) else json.dumps(body), headers)
        r = c.getresponse()
        text = r.read().decode()
        c.close()
        return r.status, text

    def complete(self, **what):
        status, text = self.call("POST", "/v1/completions", what)
        assert status == 200, f"{status} {text}"
        return json.loads(text)

    def open(self, path, body, version="1.1"):
        """A connection that has sent a request."""
        s = socket.create_connection(("127.0.0.1", self.port), timeout=300)
        text = json.dumps(body).encode()
        s.sendall(f"POST {path} HTTP/{version}\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: "
                  f"{len(text)}\r\n\r\n".encode() + text)
        return s

    def raw(self, sent, wait=20, close=True):
        """What comes back for bytes that need not be HTTP. close: this end, after them."""
        with socket.create_connection(("127.0.0.1", self.port), timeout=wait) as s:
            try:
                got = b""
                s.sendall(sent)
                if close: s.shutdown(socket.SHUT_WR)
                while part := s.recv(65536):
                    got += part
            except ConnectionResetError:
                pass
            return got.decode(errors="replace")

    def metric(self, name):
        return float(re.search(rf"^specagg_{name} (.*)$", self.call("GET", "/metrics")[1], re.M)[1])

    def memory(self, what="VmRSS"):  # MB; VmHWM: the most so far
        return int(re.search(what + r":\s+(\d+)", pathlib.Path(f"/proc/{self.process.pid}/status").read_text())[1]) / 1024

    def drains(self, seconds=10):
        """Waits until SIGTERM has come."""
        end = time.time() + seconds
        while self.call("GET", "/health")[0] != 503: assert time.time() < end, "SIGTERM is not seen"

    def until(self, name, value, seconds=30):
        end = time.time() + seconds
        while self.metric(name) != value:
            assert time.time() < end, f"{name} is {self.metric(name)} and not {value}"
            time.sleep(0.05)


def at_once(calls):
    results, failed = [None] * len(calls), []
    def one(i):
        try:
            results[i] = calls[i]()
        except Exception as e:
            failed.append(e)
    threads = [threading.Thread(target=one, args=(i,)) for i in range(len(calls))]
    for t in threads: t.start()
    for t in threads: t.join()
    if failed: raise failed[0]
    return results


PROMPTS = ["And it came to pass", "The king said", "Behold, the sea", "O Romeo,", "In the beginning of the year, the men "
           "of the city went out to meet them, and they said unto the prophet,", "Hark! the"]
def asked(i):
    """Requests of every kind."""
    what = {"prompt": PROMPTS[i % len(PROMPTS)], "max_tokens": 12 + 5 * (i % 5), "seed": i, "origins": True,
            "temperature": [0, 0.7, 1][i % 3], "draft": ["lookup", "counts", "model", "none"][i % 4], "gamma": 1 + i % 4}
    if what["draft"] == "model":
        what["policy"] = ["lossless", "ensemble:lambda=0.3", "token-v3:alpha=0.4"][i // 4 % 3]
    if i % 5 == 1:
        what["top_p"] = 0.9
    if i % 7 == 3:
        what |= {"frequency_penalty": 0.5, "repetition_penalty": 1.1}
    if i % 9 == 5:
        what |= {"logit_bias": {str(t): -2 for t in range(300, 400)}, "stop": ["~", "\n\n\n"]}
    return what


def ending(i):
    """The same, of which some end at a stop string or at the token that ends a text."""
    early = {2: {"stop": ["he", "a"]}, 3: {"stop": "e", "draft": "model", "temperature": 0.7}, 4: {"logit_bias": {END: 12}}}
    return {**asked(i), **early.get(i % 6, {})}


def same(one, other):
    return all(one[k] == other[k] for k in ("tokens", "text", "origins"))


def texts_at_once(counts=(1, 8, 32), threads=1):
    with running(*EXACT, "--requests", 32, "--context", 128, threads=threads) as s:
        alone = [s.complete(**ending(i))["choices"][0] for i in range(32)]
        for count in counts:
            for first in range(0, 32, count):
                got = at_once([lambda i=i: s.complete(**ending(i)) for i in range(first, first + count)])
                for i, g in enumerate(got, first):
                    c = g["choices"][0]
                    assert same(c, alone[i]), f"{count} at once: {i}"
                    assert g["usage"]["completion_tokens"] == len(c["tokens"]) == len(c["origins"])
                    accepted = g["usage"]["completion_tokens_details"]["accepted_prediction_tokens"]
                    assert accepted == c["origins"].count("draft"), f"{i}: {g['usage']}"
        origins = [o for a in alone for o in a["origins"]]
        assert origins.count("draft") > 50 and origins.count("target") > 50
        assert all(o == "target" for i in range(32) if ending(i)["draft"] == "none" for o in alone[i]["origins"])
        assert len({a["text"] for a in alone}) > 16
        early = [a["origins"][-1] for a in alone if a["finish_reason"] == "stop"]
        assert len(early) > 6 and early.count("draft") > 1, early
        emitted, steps, times = s.metric("tokens_total"), s.metric("request_steps_total"), 1 + len(counts)
        assert emitted == times * sum(len(a["tokens"]) for a in alone)
        assert abs(s.metric("tokens_per_call") - emitted / steps) < 1e-9
        assert abs(s.metric("expected_tokens_per_call") - emitted / steps) < 0.2
        assert s.metric("accepted_tokens_total") == times * origins.count("draft")
    print(f"{counts} requests at once, {threads} threads: 32 texts each are those of the requests alone")
    return alone


def counts():
    """What a text counts is what it shows, for every reason to end; and /metrics says the same of all texts."""
    with running("--requests", 4, "--context", 256) as s:
        names = ("tokens_total", "accepted_tokens_total", "drafted_tokens_total", "request_steps_total")
        before, ended, cut = [s.metric(n) for n in names], [], 0
        kinds = [({"stop": stop}, "stop") for stop in (" to", ["e"], ["he", "a"], ["\n", " the"], ["in", "t"], "s", ["o", "d "])]
        kinds += [({"logit_bias": {END: by}}, "stop") for by in (8, 12, 16)] + [({}, "length")]
        shown = [0, 0, 0, 0]
        for more, why in kinds:
            for i in range(24):
                what = {"prompt": PROMPTS[i % 6], "max_tokens": 8 + i, "temperature": [0, 1][i % 2], "seed": i, "origins": True,
                        "draft": ["lookup", "counts", "model", "none"][i // 6], **more}
                got = s.complete(**what)
                c, u = got["choices"][0], got["usage"]
                d = u["completion_tokens_details"]
                assert u["completion_tokens"] == len(c["tokens"]) == len(c["origins"]), f"{what}: {got}"
                assert d["accepted_prediction_tokens"] == c["origins"].count("draft"), f"{what}: {got}"
                ended.append(c["finish_reason"] == why)
                cut += c["finish_reason"] == "stop" and c["origins"][-1] == "draft"
                drafted = d["accepted_prediction_tokens"] + d["rejected_prediction_tokens"]
                for k, x in enumerate((len(c["tokens"]), c["origins"].count("draft"), drafted, u["steps"])): shown[k] += x
        assert sum(ended) > len(ended) / 2 and cut > 20, f"{sum(ended)} of {len(ended)} ended as they should, {cut} in a draft"
        assert [s.metric(n) - b for n, b in zip(names, before)] == shown
        emitted, expected = s.metric("tokens_per_call"), s.metric("expected_tokens_per_call")
        assert abs(emitted - expected) < 0.1, f"{emitted} tokens a call, {expected} expected"
    with with_long_texts("--requests", 4, *ROOM) as s:  # every round emits what was accepted, and one more token
        for i in range(4):
            c = s.open("/v1/completions", {**LONG, "temperature": i / 2, "stream": True})
            got = b""
            while got.count(b"data: ") < 4: got += c.recv(1000)
            c.close()
        s.until("requests_active", 0)
        tokens, accepted, steps = (s.metric(n) for n in ("tokens_total", "accepted_tokens_total", "request_steps_total"))
        assert s.metric("requests_cancelled_total") == 4 and tokens - accepted == steps > 4 and accepted > 10, f"{tokens} {accepted} {steps}"
    print(f"{len(ended)} texts, {cut} of them cut in a draft, count what they show")


def record():
    """What vLLM's clients read: the record of a request, and the counters of all."""
    gamma, shown = 4, {}
    with running("--requests", 4, "--context", 256, "--gamma", gamma, "--per-request-spec-decode-metrics", "detailed") as s:
        histogram, drafted, stops = [0] * (gamma + 1), 0, 0
        for i in range(60):
            what = {"prompt": PROMPTS[i % 6], "max_tokens": 20 + i % 7, "temperature": [0, 1][i % 2], "seed": i, "origins": True,
                    "draft": ["model", "lookup"][i // 30], "gamma": 1 + i % gamma, **({"stop": "e"} if i % 5 == 0 else {})}
            got = s.complete(**what)
            m, usage = got["metrics"]["speculative_decoding"], got["usage"]
            steps, accepted = m["num_spec_steps"], m["num_accepted_draft_tokens"]
            if steps == 0: m |= {"per_step_accepted": [], "per_step_drafted": []}  # left out, as by vLLM
            assert len(m["acceptance_histogram"]) == what["gamma"] + 1 == m["num_spec_tokens"] + 1
            assert sum(m["acceptance_histogram"]) == steps == len(m["per_step_accepted"]) == len(m["per_step_drafted"])
            assert sum(j * n for j, n in enumerate(m["acceptance_histogram"])) == accepted == sum(m["per_step_accepted"])
            assert sum(m["per_step_drafted"]) == m["num_draft_tokens"] and all(
                a <= d <= what["gamma"] for a, d in zip(m["per_step_accepted"], m["per_step_drafted"]))
            assert m["mean_acceptance_length"] == (1 + accepted / steps if steps else 1)
            assert m["draft_acceptance_rate"] == (accepted / m["num_draft_tokens"] if steps else 0)
            in_text = got["choices"][0]["origins"].count("draft")
            assert accepted >= in_text if "stop" in what else accepted == in_text, f"{what}: {got}"
            stops += accepted > in_text
            assert steps <= usage["steps"] and all(d > 0 for d in m["per_step_drafted"])
            for j, n in enumerate(m["acceptance_histogram"]): histogram[j] += n
            drafted += m["num_draft_tokens"]
        assert stops > 0, "no stop string cut a draft"
        text = s.call("GET", "/metrics")[1]
        for name, more, value in re.findall(r'^vllm:spec_decode_num_(\w+)_total\{engine="0",model_name="target"(.*?)\} (\S+)$', text, re.M):
            shown[name + more] = float(value)
        at_least = [sum(histogram[j:]) for j in range(gamma + 2)]
        due = {"drafts": at_least[0], "draft_tokens": drafted, "accepted_tokens": sum(at_least[1:])}
        due |= {f'accepted_tokens_per_pos,position="{j}"': at_least[j + 1] for j in range(gamma)}
        assert shown == due and at_least[gamma] > 0, f"{shown}, {due}"
        two = s.complete(prompt="And", n=2, seed=1), s.complete(prompt=["And", "The"], seed=1), s.complete(prompt="And", draft="none")
        assert not any("metrics" in t for t in two)
        what = {"prompt": "And it", "max_tokens": 20, "seed": 1}
        whole = s.complete(**what)["metrics"]
        streamed = s.call("POST", "/v1/completions", {**what, "stream": True, "stream_options": {"include_usage": True}})[1]
        parts = [json.loads(e.removeprefix("data: ")) for e in streamed.split("\n\n") if e.startswith("data: {")]
        assert parts[-1]["metrics"] == whole and not any("metrics" in p for p in parts[:-1])
    for level in ("none", "summary"):
        with running("--per-request-spec-decode-metrics", level) as s:
            got = s.complete(**what)
            assert ("metrics" in got) == (level == "summary") and "per_step" not in json.dumps(got)
    print(f"records of {at_least[0]} drafts are as vLLM's, {stops} beyond a stop string")


def synthetic():
    """--synthetic-acceptance-length: the mean that is asked for, and the least variance."""
    for length, gamma in ((1, 3), (2.6, 3), (3.25, 4), (5, 4)):
        with running("--requests", 4, "--context", 512, "--gamma", gamma, "--synthetic-acceptance-length", length) as s:
            drafts = ["model", "model", "none"] if length != 2.6 else ["model"] * 3
            got = at_once([lambda i=i: s.complete(prompt=PROMPTS[i % 6], max_tokens=400, seed=i, draft=drafts[i % 3],
                                                  temperature=[0, 1][i % 2], logprobs=0, logit_bias={END: -100}) for i in range(12)])
            full = [0] * (gamma + 1)  # of steps, but for the last two of each text, which may be short
            for g in got:
                if "metrics" not in g: continue
                for j, n in enumerate(g["metrics"]["speculative_decoding"]["acceptance_histogram"]): full[j] += n
                assert len(g["choices"][0]["logprobs"]["tokens"]) == 400 and None in g["choices"][0]["logprobs"]["pi_logprobs"]
            low = int(length - 1)
            steps, near = sum(full), full[low] + (full[low + 1] if low < gamma else 0)
            assert steps - near <= 2 * len(got), f"length {length}: {full}"
            mean, part = 1 + sum(j * n for j, n in enumerate(full)) / steps, (length - 1) % 1
            assert abs(mean - length) < 5 * math.sqrt(part * (1 - part) / steps) + 2 * gamma * len(got) / steps, f"{mean}, not {length}"
    rates, full = (0.75, 0.5, 0.125), [0] * 4  # by position; a text's last two steps may be short
    with running("--requests", 4, "--context", 512, "--gamma", 3, "--synthetic-acceptance-rates", "0.75,0.5,0.125") as s:
        for g in at_once([lambda i=i: s.complete(prompt=PROMPTS[i % 6], max_tokens=400, seed=i, logit_bias={END: -100}) for i in range(8)]):
            for j, n in enumerate(g["metrics"]["speculative_decoding"]["acceptance_histogram"]): full[j] += n
    for j, rate in enumerate(rates):
        seen, steps = sum(full[j + 1:]), sum(full)
        assert abs(seen / steps - rate) < (5 * math.sqrt(rate * (1 - rate) * steps) + 2 * 8) / steps, f"{full}: not {rates}"
    for bad, why in (("0.5,0.6", "above the one before"), ("1,1,1", "has 3 numbers"), ("1.5", "1.5")):
        refused = subprocess.run([server, "--target", TARGET, "--gamma", "2", "--synthetic-acceptance-rates", bad], capture_output=True, text=True)
        assert refused.returncode == 2 and why in refused.stderr, refused.stderr
    refused = subprocess.run([server, "--target", TARGET, "--gamma", "2", "--synthetic-acceptance-length", "3.5"], capture_output=True, text=True)
    assert refused.returncode == 2 and "at most 3 tokens" in refused.stderr, refused.stderr
    print("synthetic acceptance has the length that is asked for")


def calls_are_shared():
    with running("--requests", 8, "--context", 128) as s:  # not exact: one call for all
        s.process.send_signal(signal.SIGSTOP)  # all are there when the first is read
        try:
            sent = [s.open("/v1/completions", {**asked(i), "max_tokens": 100}) for i in range(8)]
        finally:
            s.process.send_signal(signal.SIGCONT)
        got = [json.loads(whole_of(c).split(b"\r\n\r\n", 1)[1]) for c in sent]
        assert all(len(g["choices"][0]["tokens"]) == 100 for g in got)
        assert s.metric("decode_calls_total") < s.metric("request_steps_total") / 2, "requests do not share calls"
    print("8 requests at once share calls")


def arrivals():
    """32 requests that come at random, a third of which leave, at 1, 2 and 4 threads: each text is that of the request
    alone, on any number of threads."""
    due = None
    for threads in (1, 2, 4):
        alone = texts_at_once(counts=(32,), threads=threads)
        assert due is None or all(map(same, due, alone)), f"{threads} threads write other texts"
        due, rng = alone, random.Random(threads)
        with running(*EXACT, "--requests", 8, "--queue", 64, "--context", 1000, "--gamma", 32, threads=threads) as s:
            def one(i, wait, leaves):
                time.sleep(wait)
                if leaves:
                    c = s.open("/v1/completions", {**LONG, "max_tokens": 900, "stream": True, "seed": i})
                    c.recv(100)
                    c.close()
                else:
                    assert same(s.complete(**ending(i))["choices"][0], due[i]), f"{threads} threads: {i}"
            at_once([lambda i=i, w=rng.random() * 2, l=i % 3 == 0: one(i, w, l) for i in range(32)])
            s.until("requests_active", 0)
            assert s.metric("requests_failed_total") == 0
    print("requests that come and go: each text is that of the request alone")


def streams():
    with running("--context", 128) as s:
        for what in (asked(2), {**asked(4), "stop": ["e", "\n"]}, {**asked(6), "prompt": "Été à Paris, 日本"}):
            whole = s.complete(**what)
            status, text = s.call("POST", "/v1/completions",
                                  {**what, "stream": True, "stream_options": {"include_usage": True}})
            assert status == 200
            events = [e.removeprefix("data: ") for e in text.split("\n\n") if e.startswith("data: ")]
            assert events[-1] == "[DONE]"
            parts = [json.loads(e) for e in events[:-1]]
            assert parts[-1]["choices"] == [] and parts[-1]["usage"]["prompt_tokens"] == whole["usage"]["prompt_tokens"]
            assert all("usage" in p and p["usage"] is None for p in parts[:-1])
            choices = [p["choices"][0] for p in parts[:-1]]
            assert "".join(c["text"] for c in choices) == whole["choices"][0]["text"]
            assert [c["finish_reason"] for c in choices] == [None] * (len(choices) - 1) + [
                whole["choices"][0]["finish_reason"]]
            assert "stop" not in what or not any(t in whole["choices"][0]["text"] for t in what["stop"])
        assert '"usage"' not in s.call("POST", "/v1/completions", {**asked(2), "stream": True})[1]
        s.until("requests_active", 0)
        assert s.metric("requests_cancelled_total") == 0
    print("streamed texts are the same")


def cancels_at_random():
    with with_long_texts("--requests", 8, "--queue", 16, "--context", 4000) as s:
        at_once([lambda i=i: s.complete(**asked(i)) for i in range(16)])
        before, rng, went = s.memory(), random.Random(1), [0, 0, 0]
        def one(i):
            time.sleep(rng.random() * 3)
            body = json.dumps({**asked(i), "max_tokens": 3900, "stream": i % 2 == 0}).encode()
            with socket.create_connection(("127.0.0.1", s.port)) as c:
                c.sendall(b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
                          b"Content-Length: %d\r\n\r\n" % len(body) + body)
                c.settimeout(0.01 + rng.random() * 2)
                try:
                    got = c.recv(1000)
                    went[0 if b" 503 " in got else 1] += 1
                except TimeoutError:
                    went[2] += 1
                except ConnectionResetError:  # too many connections
                    went[0] += 1
        at_once([lambda i=i: one(i) for i in range(CANCELS)])
        s.until("requests_active", 0)
        s.until("requests_waiting", 0)
        grown = s.memory() - before
        assert grown < 24, f"memory grew by {grown:.1f} MB"
        assert s.metric("requests_cancelled_total") > (CANCELS - went[0]) / 2 and s.metric("requests_failed_total") == 0
        ask = [s.complete(**asked(i))["choices"][0]["tokens"] for i in range(8)]
        at_once([lambda i=i: s.complete(**asked(i)) for i in range(24)])  # every place can be had
        assert all(len(t) == asked(i)["max_tokens"] for i, t in enumerate(ask))
        print(f"{CANCELS} requests: {went[0]} answered 503, {went[1]} left while they read, {went[2]} before; "
              f"memory {before:.1f} MB before, {grown:+.1f} MB")


def full():
    with with_long_texts("--requests", 1, "--queue", 1, "--context", 4000) as s:
        long = {"prompt": "And", "max_tokens": SOME, "draft": "none"}
        got = at_once([lambda: s.call("POST", "/v1/completions", long)] * 6)
        statuses = sorted(status for status, _ in got)
        assert statuses[:2] == [200, 200] and statuses[-1] == 503, statuses
        refused = next(json.loads(text) for status, text in got if status == 503)
        assert "queue is full" in refused["error"]["message"]
        assert s.metric("requests_refused_total") == statuses.count(503)
    print("a full server answers 503")


GET = b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n"
POST = b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"


def hostile_bytes(s):
    for sent in (b"\0" * 1000, b"\r\n" * 5000, b"GET\r\n\r\n", b"G" * 100000, b"GET /health HTTP/9.9\r\n\r\n",
                 POST + b"Content-Length: -5\r\n\r\n{}", POST + b"Content-Length: 99999999999999999999\r\n\r\n{}",
                 POST + b"Content-Length: 10000000000\r\n\r\n" + b"x" * 300000,
                 POST + b"Transfer-Encoding: chunked\r\n\r\n" + b"ffff\r\n" + b"x" * 65535 + b"\r\n" + b"ffff\r\n",
                 POST + b"Transfer-Encoding: chunked\r\n\r\nzz\r\n\r\n",
                 b"GET /metrics HTTP/1.1\r\nHost: localhost\r\n" + b"X: y\r\n" * 20000 + b"\r\n",
                 b"GET /metrics HTTP/1.1\r\nHost: localhost\r\nRange: bytes=" + b"1-2," * 2000 + b"\r\n\r\n",
                 b"GET /metrics HTTP/1.1\r\nHost: localhost\r\nRange: bytes=" + b"9" * 4000 + b"-\r\n\r\n"):
        answer = s.raw(sent)
        assert not answer.startswith("HTTP/1.1 2") or b"metrics" in sent, f"{sent[:60]}: {answer[:200]}"


def hostile_connections(s, good):
    # half a request, one byte a second, and connections that say nothing: others are answered
    idle = [socket.create_connection(("127.0.0.1", s.port)) for _ in range(10)]
    idle[0].sendall(POST + b"Content-Length: 100\r\n\r\n{")
    idle[1].sendall(b"POST /v1/comp")
    start, slow = time.time(), socket.create_connection(("127.0.0.1", s.port))
    try:
        for byte in POST + b"Content-Length: 100\r\n\r\n" + b" " * 100:
            slow.send(bytes([byte]))
            time.sleep(0.5)
            assert time.time() - start < 30
            assert s.call("GET", "/health")[0] == 200
    except OSError:
        pass
    assert time.time() - start < 30, "a slow request holds its thread"
    for c in idle: c.close()
    # a thousand connections: those beyond the limit are closed, and then all is as before
    many = [socket.create_connection(("127.0.0.1", s.port)) for _ in range(900)]
    assert s.call("GET", "/health")[0] in (200, 503)
    for c in many: c.close()
    end = time.time() + 30
    while s.call("GET", "/health")[0] != 200: assert time.time() < end
    # a client that never reads
    deaf = socket.create_connection(("127.0.0.1", s.port))
    body = json.dumps({**good, "max_tokens": 100, "stream": True}).encode()
    deaf.sendall(POST + b"Content-Length: %d\r\n\r\n" % len(body) + body)
    assert s.complete(**good)["usage"]["completion_tokens"] == 4
    s.until("requests_active", 0)
    deaf.close()


# Changes to a request of /v1/completions that are refused, and what the error names.
NOT_SERVED = [
    ({"temperature": "hot"}, '"temperature"'), ({"temperature": -1}, '"temperature"'),
    ({"max_tokens": -3}, '"max_tokens"'), ({"max_tokens": 1.5}, '"max_tokens"'), ({"max_tokens": 0}, "max_tok"),
    ({"max_tokens": 10**30}, '"max_tokens"'), ({"max_tokens": 127}, "128 in all"),
    ({"prompt": "a b " * 500}, "128 in all"), ({"prompt": ["x", "a b " * 500]}, "128 in all"),
    ({"prompt": 1}, '"prompt" must be'), ({"prompt": ["x", 1]}, '"prompt" must be'),
    ({"prompt": [1, "x"]}, '"prompt" must be'), ({"prompt": [[[1]]]}, '"prompt" must be'),
    ({"prompt": [10**9]}, '"prompt" must be'), ({"prompt": [-1]}, '"prompt" must be'),
    ({"prompt": [1.5]}, '"prompt" must be'), ({"prompt": {}}, '"prompt" must be'),
    ({"prompt": []}, "no tokens"), ({"prompt": [[1], []]}, "no tokens"), ({"prompt": ["a"] * 5}, "may have 4"),
    ({"stream": True, "stream_options": {"colour": 1}}, "colour"),
    ({"stream": True, "stream_options": {"include_usage": 1}}, "include_usage"),
    ({"stream_options": {"include_usage": True}}, '"stream": true'),
    ({"max_completion_tokens": 4}, "max_completion_tokens"), ({"logprobs": 6}, '"logprobs" must be'), ({"logprobs": True}, '"logprobs"'), ({"logprobs": -1}, '"logprobs"'),
    ({"top_logprobs": 1}, '"top_logprobs"'),
    ({"filter_order": "top-p"}, "one of hugging-face, vllm, llama-cpp, joint"),
    ({"policy": "token-v9"}, '"token-v9" is unknown'), ({"policy": 7}, '"policy"'),
    ({"policy": "ensemble:lambda=2"}, "lambda"), ({"policy": "ensemble", "draft": "lookup"}, "draft model"),
    ({"draft": "oracle"}, '"draft"'), ({"gamma": 5}, '"gamma"'), ({"seed": 2**64}, '"seed"'), ({"seed": -2**63 - 1}, '"seed"'), ({"seed": 1.5}, '"seed"'), ({"seed": "1"}, '"seed"'),
    ({"stop": [1]}, '"stop"'), ({"stop": {"a": 1}}, '"stop"'), ({"n": 5}, '"n"'), ({"n": 0}, '"n"'),
    ({"n": 2, "prompt": ["a"] * 3}, "may have 4 in all"), ({"n": 1.5}, '"n"'),
    ({"presence_penalty": 3}, '"presence_penalty"'), ({"repetition_penalty": 0}, '"repetition_penalty"'),
    ({"logit_bias": {"x": 1}}, '"logit_bias"'), ({"logit_bias": {"-1": 1}}, '"logit_bias"'),
    ({"logit_bias": {"1 ": 1}}, '"logit_bias"'), ({"logit_bias": {"999999": 1}}, '"logit_bias"'),
    ({"logit_bias": {"1": 101}}, '"logit_bias"'), ({"logit_bias": {"05": 1}}, '"logit_bias"'), ({"logit_bias": {"5": 1, "05": 1}}, '"logit_bias"'), ({"logit_bias": {"1": None}}, '"logit_bias"'),
    ({"logit_bias": [1]}, '"logit_bias"'), ({"best_of": 2}, '"best_of" is not served'),
    ({"echo": True}, '"echo" is not served'), ({"suffix": "x"}, '"suffix" is not served'),
    ({"service_tier": "flex"}, '"service_tier" is not served'), ({"draft": "head"}, "no draft head"),
    ({"tools": []}, '"tools" is not served'), ({"response_format": {}}, '"response_format" is not served'),
    ({"top_p": 0}, '"top_p"'), ({"stream": "yes"}, '"stream"'), ({"colour": 1}, "colour"),
    ({"stream": True, "stream_options": 3}, "no JSON object"), ({"frequency_penalty": "x"}, '"frequency_penalty"')]


def hostile():
    with running("--requests", 2, "--queue", 2, "--context", 128) as s:
        good = {"prompt": "And", "max_tokens": 4, "seed": 1}
        def refused(status, word, body, path="/v1/completions", headers=JSON, method="POST"):
            got, text = s.call(method, path, body, headers)
            why = json.loads(text)["error"]
            assert got == status and word in why["message"] and "\n" not in why["message"], f"{body!r:.80}: {got} {text}"
        for change, word in NOT_SERVED:
            refused(400, word, {**good, **change})
        refused(404, "does not exist", {**good, "model": "gpt-4"})
        refused(400, "no JSON object", [1])
        for twice in ('"logit_bias": {"5": 1, "5": 2}', '"max_tokens": 4, "max_tokens": 5', '"x": [{"a": {"b": 1, "c": {"b": 1}, "b": 2}}]'):
            refused(400, "is given twice", '{"prompt": "x", %s}' % twice)
        for body in ("", "{", '{"prompt": "x", "temperature": NaN}', '{"prompt": "x", "temperature": 1e999}',
                     b'{"prompt": "\xff\xfe"}', b'{"prompt": "\xed\xa0\x80"}', "\0" * 100, '{"prompt": "\\ud800"}'):
            refused(400, "no valid JSON", body)
        for deep in ("[" * 50000, '{"a":' * 10000 + "1" + "}" * 10000):
            refused(400, "nested too deeply", deep)
        refused(400, "no chat template", {"messages": [{"role": "user", "content": "x"}]}, "/v1/chat/completions")
        refused(404, "nothing here", None, "/v1/nothing", method="GET")
        refused(415, "application/json", json.dumps(good), headers={"Content-Type": "text/plain"})
        refused(403, "browser", good, headers={**JSON, "Origin": "http://example.com"})
        refused(413, "too large", "x" * 200000)
        refused(404, "nothing here", None, "/" + "a" * 8000, method="GET")
        hostile_bytes(s)
        hostile_connections(s, good)
        assert s.process.poll() is None
    print("hostile requests get clear errors, and the server lives")


BROTLI = bytes.fromhex("cfffff7f002400e2b14072effff9ffff0f8004401c1680eefd3fffffff01900088c302d0bdffe7ffff3f001200"
                       "715800baf7ff03")  # 64 MB of zeros


def bodies():
    with running("--context", 64) as s:
        good = {"prompt": "And", "max_tokens": 4, "seed": 1}
        s.complete(**good)
        before, zeros = s.memory("VmHWM"), bytes(50 << 20)
        for coding, body in [("br", BROTLI), ("gzip", gzip.compress(zeros)), ("deflate", zlib.compress(zeros)),
                             ("gzip, br", BROTLI), ("identity", json.dumps(good))]:
            for method, path in [("POST", "/v1/completions"), ("POST", "/health"), ("PUT", "/v1/x"), ("DELETE", "/")]:
                status, text = s.call(method, path, body, {**JSON, "Content-Encoding": coding})
                assert status == 415 and "Content-Encoding" in json.loads(text)["error"]["message"], f"{coding}: {status}"
        grown = s.memory("VmHWM") - before
        assert grown < 16, f"compressed bodies take {grown:.0f} MB"
        # What is too long, or has no length, is refused before the rest of it comes.
        head = POST
        for sent, status in [(b"Content-Length: 10000000000\r\n\r\n" + b"x" * 300000, 413), (b"\r\n", 411),
                             (b"Content-Length: 10000000000\r\n\r\n{", 413),
                             (b"Transfer-Encoding: chunked\r\n\r\nfffff\r\n" + b"x" * 500000, 413)]:
            start = time.time()
            answer = s.raw(head + sent, close=False)
            assert answer.startswith(f"HTTP/1.1 {status} ") and '"error"' in answer, f"{sent[:40]}: {answer[:200]}"
            assert time.time() - start < 8, f"{sent[:40]}: {status} takes {time.time() - start:.1f} s"
        for name, part in [("Range", "bytes=0-9"), ("Range", "bytes=x"), ("RANGE", "lines=1-2"), ("range", "bytes=9-1"),
                           ("Range", "")]:
            status, text = s.call("POST", "/v1/completions", good, {**JSON, name: part})
            assert status == 200 and json.loads(text)["choices"], f"{name}: {part}: {status} {text}"
        # ... and in a body the word stays: the second chunk of this one begins a line with it
        chunks = b'{"max_tokens": 4, "seed": 1, "prompt": "', b'range: "}'
        answer = s.raw(head + b"Transfer-Encoding: chunked\r\n\r\n"
                       + b"".join(b"%x\r\n%s\r\n" % (len(c), c) for c in chunks) + b"0\r\n\r\n", close=False)
        one = json.loads(answer.split("\r\n\r\n")[1])["choices"][0]["text"]
        assert one == s.complete(**{**good, "prompt": "range: "})["choices"][0]["text"], answer
    print("bodies are refused before they take memory or time")


def forms_of_http():
    """What HTTP allows is taken, and what it does not allow is refused."""
    with running("--context", 64) as s:
        good = {"prompt": "And", "max_tokens": 4, "seed": 1}
        due, body = s.complete(**good)["choices"], json.dumps(good).encode()
        for kind in ("Application/JSON", "application/json; charset=utf-8", "APPLICATION/JSON ;x=y"):
            status, text = s.call("POST", "/v1/completions", good, {"Content-Type": kind})
            assert status == 200 and json.loads(text)["choices"] == due, f"{kind}: {status} {text}"
        for kind in ("application/jsonl", "text/json", "", "json"):
            assert s.call("POST", "/v1/completions", good, {"Content-Type": kind})[0] == 415, kind
        head = POST
        chunks = b"%x\r\n%s\r\n%X;name=value\r\n%s\r\n" % (10, body[:10], len(body) - 10, body[10:])
        for coding in (b"chunked", b"Chunked", b"CHUNKED"):
            for trailers in (b"", b"X-Sum: 1\r\n", b"A: b\r\nContent-Length: 3\r\n"):
                for last in (b"0\r\n", b"000;x\r\n"):
                    answer = s.raw(head + b"Transfer-Encoding: " + coding + b"\r\n\r\n" + chunks + last + trailers + b"\r\n", close=False)
                    assert answer.startswith("HTTP/1.1 200 "), f"{coding} {last} {trailers}: {answer[:300]}"
                    assert json.loads(answer.split("\r\n\r\n")[1])["choices"] == due
        n = len(body)
        def with_lengths(*lengths):
            return s.raw(head + b"".join(b"Content-Length: %s\r\n" % x for x in lengths) + b"\r\n" + body, close=False)
        assert with_lengths(b"%d" % n).startswith("HTTP/1.1 200 ") and with_lengths(b"%d" % n, b"%d" % n).startswith("HTTP/1.1 200 ")
        for wrong in ([b"%d" % n, b"%d" % (n + 1)], [b"+%d" % n], [b"abc"], [b"0x%x" % n], [b"%d, %d" % (n, n)], [b"-%d" % n],
                      [b"%d " % n + b"7"], [b"%d.0" % n], [b"%d" % n, b"abc"]):
            answer = with_lengths(*wrong)
            assert answer.startswith("HTTP/1.1 400 ") and "Content-Length" in answer.split("\r\n\r\n")[1], f"{wrong}: {answer[:300]}"
        assert with_lengths(b"9" * 30).startswith("HTTP/1.1 413 ")
        for coding in (b"gzip", b"chunked, gzip", b"chunkedx", b"chunked\r\nTransfer-Encoding: gzip"):
            answer = s.raw(head + b"Transfer-Encoding: " + coding + b"\r\n\r\n" + chunks + b"0\r\n\r\n")
            assert answer.startswith("HTTP/1.1 400 "), f"{coding}: {answer[:300]}"
        # RFC 9112: framing that another reader may read in another way
        chunked, size = head + b"Transfer-Encoding: chunked\r\n\r\n", b"%x\r\n" % n
        assert s.raw(chunked + size + body + b"\r\n0\r\n\r\n", close=False).startswith("HTTP/1.1 200 ")
        for wrong in (b"0x" + size + body + b"\r\n", b" " + size + body + b"\r\n", b"+" + size + body + b"\r\n", b"\r\n" + size + body + b"\r\n",
                      b"%x \r\n" % n + body + b"\r\n", b"%x\n" % n + body + b"\r\n", b"%x;a\n" % n + body + b"\r\n", b";a\r\n",
                      size + body, size + body + b" \r\n", size + body + b"\n", size + body + b"x\r\n", b"%x\r\n" % (n - 1) + body + b"\r\n"):
            answer = s.raw(chunked + wrong + b"0\r\n\r\n")
            assert answer.startswith("HTTP/1.1 400 ") and '"error"' in answer, f"{wrong}: {answer[:300]}"
        first, length = b"POST /v1/completions HTTP/1.%d\r\n", b"Content-Type: application/json\r\nContent-Length: %d\r\n" % n
        for begin, fields, status in [
                (first % 1, length, 400), (first % 0, length, 200), (first % 1, b"Host: localhost\r\n" + length, 200),
                (first % 1, b"Host: localhost\r\nHost: localhost\r\n" + length, 400), (first % 0, b"Host: a\r\nHost: b\r\n" + length, 400),
                (first % 1, b"Host: localhost\r\nX: a\r\n b\r\n" + length, 400), (first % 1, b"Host: localhost\r\nX: a\r\n\tb: c\r\n" + length, 400),
                (first % 1, b" Host: localhost\r\nHost: localhost\r\n" + length, 400)]:
            answer = s.raw(begin + fields + b"\r\n" + body, close=False)
            assert answer.startswith(f"HTTP/1.1 {status} "), f"{begin + fields}: {answer[:300]}"
        for fields in (b"Content-Length: %d\r\n" % n, b"Content-Length: 0\r\n"):
            answer = s.raw(head + fields + chunked[len(head):] + size + body + b"\r\n0\r\n\r\n")
            assert answer.startswith("HTTP/1.1 400 ") and "Transfer-Encoding" in answer.split("\r\n\r\n")[1], f"{fields}: {answer[:300]}"
        assert s.raw(head.replace(b"/1.1", b"/1.0") + chunked[len(head):] + size + body + b"\r\n0\r\n\r\n").startswith("HTTP/1.1 400 ")
    print("what HTTP allows is taken, and what it does not allow is refused")


def small_draft():
    """Where the draft model's context is full, the target goes on without drafts."""
    def small(name, model):
        if name == DRAFT: set_context(model, 64)
    with changed(small, *EXACT, "--requests", 4, "--context", 300) as s:
        prompts = ["And it came to pass", " ".join(PROMPTS), " ".join(PROMPTS * 2)]  # the last two are too long for the draft
        for prompt in prompts:
            for temperature in (0, 0.8):
                what = {"prompt": prompt, "max_tokens": 120, "temperature": temperature, "seed": 2, "origins": True}
                got = s.complete(**what)
                c, size = got["choices"][0], got["usage"]["prompt_tokens"]
                assert c["finish_reason"] == "length" and len(c["tokens"]) == 120, got
                of_draft = [i for i, o in enumerate(c["origins"]) if o == "draft"]
                if cpu: assert all(size + i < 64 + 1 for i in of_draft), f"{size}: {of_draft}"
                if size < 50 and temperature == 0: assert len(of_draft) > 10, f"{size}: {of_draft}"
                if temperature == 0: assert c["text"] == s.complete(**what, draft="none")["choices"][0]["text"]
        at_once([lambda p=p: s.complete(prompt=p, max_tokens=100, draft="model") for p in prompts * 3])
        if not cpu: return print("a small draft model (libllama's have any context)")
        # a policy that reads the draft's rows cannot go on, and says so before it begins
        mixed = {"prompt": prompts[0], "policy": "ensemble:lambda=0.3", "seed": 1}
        assert s.complete(**mixed, max_tokens=40)["usage"]["completion_tokens"] == 40
        status, text = s.call("POST", "/v1/completions", {**mixed, "max_tokens": 100})
        assert status == 400 and "policy reads the draft model's rows may have 64 in all" in text, text
    print("where the draft model's context is full, the target goes on without drafts")


def logprobs():
    """The target model's log-probabilities at temperature 1, in OpenAI's forms, and those of the most likely tokens."""
    near = lambda a, b: abs(a - b) < 2e-3  # keys and values are kept as f16
    with running(*EXACT, "--context", 128) as s:
        for case in json.loads(TARGET.with_suffix(".reference.json").read_text()):  # another program's numbers
            due = {t: l - case["last_logsumexp"] for t, l in case["last_logits_top8"]}
            order, greedy = list(due), case["greedy_continuation_ids"][0]
            for more in ({"temperature": 0}, {"temperature": 0, "draft": "none"}, {"temperature": 0.3, "top_k": 1},
                         {"temperature": 0, "logit_bias": {str(t): -1 for t in order}}, {"temperature": 2, "top_k": 2, "seed": 1},
                         {"temperature": 0, "repetition_penalty": 1.001, "presence_penalty": 1}):
                c = s.complete(prompt=case["ids"], max_tokens=3, logprobs=5, origins=True, **more)["choices"][0]
                l, first = c["logprobs"], c["tokens"][0]
                if more == {"temperature": 0}: assert first == greedy
                assert near(l["token_logprobs"][0], due[first]), f"{more}: {l}"
                top = list(l["top_logprobs"][0].values())
                assert len(top) in (5, 6) and all(map(near, sorted(top)[-5:], sorted(due.values())[-5:])), f"{more}: {l}"
                assert l["tokens"][0] in l["top_logprobs"][0] and len(l["tokens"]) == len(l["top_logprobs"]) == len(l["text_offset"]) == 3
        how = {"prompt": "And it came to pass", "max_tokens": 30, "seed": 3, "temperature": 1, "origins": True}
        for more in ({}, {"draft": "none"}, {"draft": "model"}, {"draft": "model", "policy": "ensemble:lambda=0.3"}):
            c = s.complete(**how, **more, logprobs=3)["choices"][0]
            l = c["logprobs"]
            assert all(map(near, l["token_logprobs"], l["target_logprobs"])), more  # the same at temperature 1
            assert (l["pi_logprobs"] == l["target_logprobs"]) == ("policy" not in more)
            for text, at, p, top in zip(l["tokens"], l["text_offset"], l["token_logprobs"], l["top_logprobs"]):
                assert c["text"][at:].startswith(text) and top[text] == p and 3 <= len(top) <= 4
                assert sum(map(math.exp, top.values())) <= 1 + 1e-9 and p >= min(top.values())
            assert s.complete(**how, **more, logprobs=0)["choices"][0]["logprobs"] == {**l, "top_logprobs": None}
            status, text = s.call("POST", "/v1/completions", {**how, **more, "logprobs": 3, "stream": True})
            parts = [json.loads(e)["choices"][0]["logprobs"] for e in re.findall(r"^data: (\{.*\})$", text, re.M)]
            assert {k: sum((x[k] for x in parts), []) for k in l} == l, more
        said = [s.complete(**{**how, "temperature": 3}, top_p=0.5, **({"filter_order": order} if order else {}))["choices"][0]["text"]
                for order in (None, "hugging-face", "vllm", "llama-cpp")]  # llama.cpp filters before the temperature
        assert said[0] == said[1] == said[2] != said[3], said
        greedy = {**how, "temperature": 0, "logprobs": 5}
        assert len({json.dumps(s.complete(**greedy, draft=d)["choices"][0]["logprobs"]) for d in ("none", "lookup", "counts", "model")}) == 1
        assert any(p < -0.1 for p in s.complete(**greedy)["choices"][0]["logprobs"]["token_logprobs"])
        # a character of several tokens
        l = s.complete(prompt="And", max_tokens=3, temperature=0, logprobs=1,
                       logit_bias={str(0xE2 + 3): 100})["choices"][0]["logprobs"]
        assert l["tokens"] == ["bytes:\\xe2"] * 3 and all("bytes:\\xe2" in t for t in l["top_logprobs"]), l
        status, text = s.call("POST", "/v1/completions", {**how, "logprobs": 6})
        assert status == 400 and '\\"logprobs\\" must be an integer from 0 to 5' in text, text
    print("log-probabilities of the target model, and of its most likely tokens")


def unused():
    """Tokens that the file calls unused are never drawn."""
    never = range(270, 398)  # 128 pieces that are often drawn
    def set_types(_, model):
        key = b"tokenizer.ggml.token_type" + struct.pack("<II", 9, 5)  # an array of 32-bit integers
        at = model.index(key) + len(key) + 8
        for t in never: struct.pack_into("<i", model, at + 4 * t, 5)
    what = [{"prompt": "A", "max_tokens": 60, "temperature": t, "seed": 1, "origins": True, "draft": d}
            for t in (0, 1, 3) for d in ("none", "lookup", "counts", "model")]
    with running(*EXACT, "--context", 100) as s:
        drawn = [t in never for w in what for t in s.complete(**w)["choices"][0]["tokens"]]
    with changed(set_types, *EXACT, "--context", 100) as s:
        what.append({**what[3], "policy": "ensemble:lambda=0.3"})
        left = [t for w in what for t in s.complete(**w)["choices"][0]["tokens"]]
    assert sum(drawn) > 100 and not set(left) & set(never), f"{sum(drawn)} of {len(drawn)}; {set(left) & set(never)}"
    print(f"tokens of the type unused are never drawn (as normal ones {sum(drawn)} of {len(drawn)})")


def few_threads():
    """The system gives fewer threads than there may be connections, or none. Here it is because each wants 256 MB of
    addresses for its stack."""
    if not cpu or "asan" in server: return print("skipped: libllama has threads of its own, and AddressSanitizer terabytes")
    if resource.getrlimit(resource.RLIMIT_STACK)[1] != resource.RLIM_INFINITY: return print("skipped: the hard limit of stacks is low (ulimit -Hs)")
    address_space, stack = 6 << 30, 256 << 20
    with running("--context", 64, limits={resource.RLIMIT_AS: address_space, resource.RLIMIT_STACK: stack}) as s:
        good = {"prompt": "And", "max_tokens": 4}
        s.complete(**good)
        idle = [socket.create_connection(("127.0.0.1", s.port)) for _ in range(40)]  # the first ones have all threads
        try:
            status, text = s.call("GET", "/health")
            assert status == 503 and "too many connections" in text, f"{status} {text}"
            idle[0].sendall(GET)
            assert whole_of(idle.pop(0)).startswith(b"HTTP/1.1 200 ")
        finally:
            for c in idle: c.close()
        end = time.time() + 10
        while s.call("GET", "/health")[0] != 200: assert time.time() < end, "the threads are not free again"
        def ask():
            try:
                return s.call("POST", "/v1/completions", good)[0]
            except OSError:  # refused before the body was sent
                return 503
        got = at_once([ask] * 40)
        assert 200 in got and set(got) <= {200, 503}, got
        s.complete(**good)  # the stacks did not take the memory that it needs
    r = subprocess.run([server, "--backend", backend, "--target", TARGET, "--port", "0", "--threads", "1"], capture_output=True, text=True, timeout=60,
                       preexec_fn=lambda: set_limits({resource.RLIMIT_AS: address_space, resource.RLIMIT_STACK: 2 * address_space}))
    assert r.returncode == 2 and not r.stdout and "threads: " in r.stderr and r.stderr.count("\n") == 1, r
    with running("--context", 64) as s:
        before = len(os.listdir(f"/proc/{s.process.pid}/task"))
        at_once([lambda: s.call("GET", "/health")] * 8)
        now = len(os.listdir(f"/proc/{s.process.pid}/task"))
        assert before < 16 and now <= before + 8, f"{before} threads before a request, {now} after 8"
    print("a server with few threads answers as many connections as it can")


def ports():
    with running("--context", 64) as s:
        options = [server, "--backend", backend, "--target", TARGET, "--context", "64", "--port", str(s.port)]
        r = subprocess.run(options, capture_output=True, text=True, timeout=60)
        assert r.returncode == 2 and "cannot be listened to" in r.stderr, f"{r.returncode} {r.stdout} {r.stderr}"
        s.call("GET", "/health")
    again = subprocess.Popen(options, stdout=subprocess.PIPE, text=True)  # at once, though old connections linger
    try:
        assert "listening" in again.stdout.readline()
    finally:
        again.terminate(), again.wait(30)
    print("a port has one server")


def command_line():
    for option, value in [("--gamma", "04"), ("--port", "0x10"), ("--threads", "08"), ("--context", "1e2"),
                          ("--memory", "010"), ("--host", "")]:
        r = subprocess.run([server, "--target", "/none", option, value], capture_output=True, text=True, timeout=60)
        assert r.returncode == 2 and r.stderr.count("\n") == 1, f"{option} {value}: {r.returncode} {r.stderr}"
        assert r.stderr.startswith("specagg-server: ") and option in r.stderr, f"{option} {value}: {r.stderr}"
    # ld.so runs it as a shell runs any other program
    loader = re.search(rb"/lib[\w/.-]*/ld-[\w.-]*", pathlib.Path(server).read_bytes())
    if not loader:
        return print("numbers of the command line")
    r = subprocess.run([loader[0], server, "--target", "/none"], capture_output=True, text=True, timeout=60)
    assert r.returncode == 2 and r.stderr.startswith("specagg-server: /none"), r.stderr
    print("numbers of the command line, and a start through ld.so")


def answered_at_once(s, count, connected=lambda: None):
    """So many connections, which are all open at the end."""
    burst = [socket.create_connection(("127.0.0.1", s.port), timeout=20) for _ in range(count)]
    connected()
    for c in burst: c.sendall(GET)
    for c in burst: assert c.recv(100).startswith(b"HTTP/1.1 200 ")
    for c in burst: c.close()


def bursts():
    with running("--context", 64) as s:
        s.process.send_signal(signal.SIGSTOP)  # connections come, and none is accepted
        try:
            answered_at_once(s, 40, lambda: s.process.send_signal(signal.SIGCONT))
        finally:
            s.process.send_signal(signal.SIGCONT)
    print("40 connections at once are answered")


def threads():
    """The threads of the model spin for microseconds, or as long as the user says."""
    for chosen, due in [({}, b"GOMP_SPINCOUNT=300"), ({"GOMP_SPINCOUNT": "7"}, b"GOMP_SPINCOUNT=7"),
                        ({"OMP_WAIT_POLICY": "active"}, b"OMP_WAIT_POLICY=active")]:
        with running("--context", 64, environment=chosen) as s:
            all = pathlib.Path(f"/proc/{s.process.pid}/environ").read_bytes().split(b"\0")
            found = [v for v in all if v.startswith((b"GOMP_SPINCOUNT=", b"OMP_WAIT_POLICY="))]
            assert found == [due], f"{chosen}: {found}"
            assert s.complete(prompt="And", max_tokens=4)["usage"]["completion_tokens"] == 4
    print("threads spin for microseconds")


# Many seconds on a fast machine, too: 20,000 tokens, for which the models' texts may be longer than they were trained on.
LONG = {"prompt": "And", "max_tokens": 20000, "draft": "model", "gamma": 32, "temperature": 5, "seed": 1}
SOME = 3000 if cpu else 300  # a second or some
ROOM = ("--context", 20100, "--gamma", 32)
def changed(change, *options, **how):
    """A server of the bundled pair, of which change(name, bytes) has changed the files."""
    folder = tempfile.TemporaryDirectory()
    for name in (TARGET, DRAFT):
        model = bytearray(name.read_bytes())
        change(name, model)
        pathlib.Path(folder.name, name.name).write_bytes(model)
    started = running(*options, "--draft", f"{folder.name}/{DRAFT.name}", target=f"{folder.name}/{TARGET.name}", **how)
    folder.cleanup()  # the server has them open
    return started
def set_context(model, tokens):
    key = b".context_length" + struct.pack("<I", 4)  # a number of 32 bits
    at = model.index(key) + len(key)
    model[at:at + 4] = struct.pack("<I", tokens)
def with_long_texts(*options, **how):
    return changed(lambda _, model: set_context(model, 1 << 20), *options, **how)


def clients_that_leave():
    with with_long_texts("--requests", 1, "--queue", 1, *ROOM) as s:
        for stream in (False, True):
            first = s.open("/v1/completions", {**LONG, "stream": True})
            s.until("requests_active", 1)
            for again in range(3):  # each would take the only place in the queue
                waits = s.open("/v1/completions", {**LONG, "stream": stream})
                s.until("requests_waiting", 1)
                waits.close()
                s.until("requests_waiting", 0, seconds=3)
            assert s.metric("requests_active") == 1 and s.metric("requests_refused_total") == 0
            first.close()
            s.until("requests_active", 0, seconds=3)
        whole = s.open("/v1/completions", LONG)  # one that leaves while its tokens come
        s.until("requests_active", 1)
        whole.close()
        s.until("requests_active", 0, seconds=3)
    with running("--requests", 1, "--queue", 4, "--context", 1000, "--gamma", 32) as s:
        what = {**LONG, "max_tokens": 300}
        due = s.complete(**what)["choices"][0]["text"]
        def half_closed(stream, version):
            c = s.open("/v1/completions", {**what, "stream": stream}, version)
            c.shutdown(socket.SHUT_WR)
            got = b""
            while part := c.recv(65536): got += part
            c.close()
            return got.decode()
        for whole in at_once([lambda: half_closed(False, "1.1")] * 2 + [lambda: s.complete(**what)])[:2]:
            while whole.startswith("HTTP/1.1 100 Continue\r\n\r\n"):
                whole = whole.removeprefix("HTTP/1.1 100 Continue\r\n\r\n")
            assert whole.startswith("HTTP/1.1 200 OK\r\n"), whole[:200]
            assert json.loads(whole.split("\r\n\r\n", 1)[1])["choices"][0]["text"] == due
        parts = half_closed(True, "1.1")
        events = re.findall(r"^data: (\{.*\})$", parts, re.M)
        assert parts.startswith("HTTP/1.1 200 OK\r\n") and parts.endswith("\r\n0\r\n\r\n") and "[DONE]" in parts
        assert "".join(json.loads(e)["choices"][0]["text"] for e in events) == due
        old = half_closed(False, "1.0")
        assert "100 Continue" not in old and (due in json.dumps(old) or "closed its connection" in old), old[:200]
        s.until("requests_active", 0)
    print("clients that leave take no place, and those that close one end are answered")


def whole_of(c):
    got = b""
    while part := c.recv(65536): got += part
    c.close()
    return got


def stops():
    """SIGTERM while streams are written, one request waits, and connections say nothing."""
    head = POST + b"Content-Length: 100\r\n\r\n{"
    for drain in (600, 0):
        with with_long_texts("--requests", 2, "--queue", 1, *ROOM, "--drain", drain, *EXACT) as s:
            what = {**LONG, "max_tokens": SOME if drain else 20000, "stream": True}
            due = s.complete(**{**what, "stream": False})["choices"][0]["text"] if drain else None
            streams = [s.open("/v1/completions", what) for _ in range(2)]
            for c in streams: assert c.recv(1).startswith(b"H")
            last = s.open("/v1/completions", {**what, "stream": False})
            s.until("requests_waiting", 1)
            idle = socket.create_connection(("127.0.0.1", s.port))
            half = socket.create_connection(("127.0.0.1", s.port))
            half.sendall(head)
            start = time.time()
            s.process.terminate()
            if drain:
                s.drains()
                for method, path, body in [("POST", "/v1/completions", {"prompt": "x"}), ("GET", "/health", None)]:
                    status, text = s.call(method, path, body)
                    assert status == 503 and "the server stops" in text, f"{path}: {status} {text}"
            for c in streams:
                got = whole_of(c)
                assert got.endswith(b"\r\n0\r\n\r\n") and b"data: [DONE]" in got, got[-300:]
                events = [json.loads(e) for e in re.findall(rb"^data: (\{.*\})$", got, re.M)]
                if drain: assert "".join(e["choices"][0]["text"] for e in events) == due
                else: assert "the server stops" in events[-1]["error"]["message"]
            got = whole_of(last).decode()
            body = json.loads(got.split("\r\n\r\n", 1)[1])
            if drain: assert got.startswith("HTTP/1.1 200 ") and body["choices"][0]["text"] == due, got[:300]
            else: assert got.startswith("HTTP/1.1 503 ") and "the server stops" in body["error"]["message"], got[:300]
            s.process.wait(30)
            assert drain or time.time() - start < 5, f"SIGTERM takes {time.time() - start:.1f} s"
            for c in (idle, half): c.close()
    with with_long_texts("--requests", 1, *ROOM) as s:  # a second signal does not wait
        c = s.open("/v1/completions", {**LONG, "stream": True})
        assert c.recv(1) == b"H"
        s.process.terminate()
        s.drains()
        assert s.process.poll() is None
        s.process.terminate()
        assert b"the server stops" in whole_of(c)
        s.process.wait(5)
    print("SIGTERM lets requests end, for as long as --drain says")


def stop_strings(s, how, text):
    """A text is cut before the stop string that is complete first, the longest of several."""
    def cut(stops):
        for end in range(len(text) + 1):
            if found := [x for x in stops if x and text[:end].endswith(x)]:
                return text[:end - max(map(len, found))], "stop"
        return text, "length"
    for stop in ([text[10:14]], [text[10:20], text[12:15]], [text[5:8], text[3:8]], [""], [], ["\x01"],
                 [text[20:30] + "\x01", text[22:26]], [text[i:i + 3] for i in range(40, 3, -1)]):
        for d in ("none", "model"):
            got = s.complete(**how, stop=stop, draft=d)["choices"][0]
            assert (got["text"], got["finish_reason"]) == cut(stop), f"{stop!r}: {got['text']!r}"


def choices():
    """n, logprobs, penalties, logit_bias, and the acceptance of a request."""
    with running(*EXACT, "--context", 256) as s:
        how = {"prompt": "And it came to pass", "max_tokens": 24, "seed": 3, "origins": True}
        one, three = s.complete(**how), s.complete(**how, n=3)
        assert three["choices"][0] == one["choices"][0] and [c["index"] for c in three["choices"]] == [0, 1, 2]
        assert len({c["text"] for c in three["choices"]}) == 3
        assert three["usage"]["prompt_tokens"] == one["usage"]["prompt_tokens"]
        assert three["usage"]["completion_tokens"] == 72
        two = s.complete(**{**how, "prompt": [how["prompt"], "The king"]}, n=2)["choices"]
        assert [c["text"] for c in two[:2]] == [c["text"] for c in three["choices"][:2]] and len(two) == 4
        # pi is the target's row for lossless, and another for a policy
        for policy in ("lossless", "ensemble:lambda=0.3"):
            l = s.complete(**how, policy=policy, logprobs=0)["choices"][0]
            pi, p = l["logprobs"]["pi_logprobs"], l["logprobs"]["target_logprobs"]
            assert "".join(l["logprobs"]["tokens"]) == l["text"] and len(pi) == len(p) == 24
            assert all(x <= 0 and math.isfinite(x) for x in pi)
            assert (pi == p) == (policy == "lossless"), policy
        greedy = {**how, "temperature": 0, "max_tokens": 60}
        plain = s.complete(**greedy)["choices"][0]
        for seed in (-1, -2**63, 2**63 - 1, 2**64 - 1):
            assert s.complete(**{**how, "seed": seed})["choices"] != one["choices"]
        assert s.complete(**{**how, "seed": -1})["choices"] == s.complete(**{**how, "seed": 2**64 - 1})["choices"]
        def counted(**change):
            tokens = s.complete(**greedy, **change)["choices"][0]["tokens"]
            return len(set(tokens)) / len(tokens)
        assert counted(frequency_penalty=2) > counted() and counted(presence_penalty=2) > counted()
        assert counted(repetition_penalty=1.5) > counted()
        # the answer's tokens alone count, but for repetition
        again = {"prompt": "king of Israel, king of Israel, king of", "max_tokens": 1, "temperature": 0}
        first = s.complete(**again)["choices"][0]["text"]
        assert first == " Israel" and s.complete(**again, presence_penalty=2, frequency_penalty=2)["choices"][0]["text"] == first
        assert s.complete(**again, repetition_penalty=100)["choices"][0]["text"] != first
        # the same with no drafts: penalties and biases are functions of the text
        for change in ({"frequency_penalty": 1}, {"presence_penalty": -1}, {"repetition_penalty": 1.3},
                       {"logit_bias": {str(plain["tokens"][0]): -100}}):
            texts = {s.complete(**greedy, **change, draft=d)["choices"][0]["text"]
                     for d in ("none", "lookup", "counts", "model")}
            assert len(texts) == 1 and (texts != {plain["text"]}), f"{change}: {texts}"
        banned = plain["tokens"][0]
        assert banned not in s.complete(**greedy, logit_bias={str(banned): -100})["choices"][0]["tokens"]
        always = s.complete(**greedy, logit_bias={str(banned): 100})["choices"][0]["tokens"]
        assert set(always) == {banned}
        u = s.complete(**how, draft="model")["usage"]
        d = u["completion_tokens_details"]
        drafted = d["accepted_prediction_tokens"] + d["rejected_prediction_tokens"]
        assert u["acceptance"] == d["accepted_prediction_tokens"] / drafted and 0 < u["steps"] < 24
        assert s.complete(**how, draft="none")["usage"]["acceptance"] is None
        stop_strings(s, greedy, plain["text"])
    print("choices, log-probabilities, penalties, biases and stop strings")


def forms():
    """What OpenAI's clients send."""
    with running(*EXACT, "--context", 128, "--queue", 16) as s:
        how = {"max_tokens": 12, "seed": 3, "origins": True}
        alone = [s.complete(**how, prompt=p) for p in PROMPTS]
        together = s.complete(**how, prompt=PROMPTS)
        assert together["choices"] == [{**a["choices"][0], "index": i} for i, a in enumerate(alone)]
        assert all(together["usage"][k] == sum(a["usage"][k] for a in alone)
                   for k in ("prompt_tokens", "completion_tokens", "total_tokens", "steps"))
        tokens = [a["choices"][0]["tokens"] for a in alone]  # as good as others
        answers = [s.complete(**how, prompt=t) for t in tokens]
        assert s.complete(**how, prompt=tokens)["choices"] == [
            {**a["choices"][0], "index": i} for i, a in enumerate(answers)]
        assert [a["usage"]["prompt_tokens"] for a in answers] == [len(t) for t in tokens]
        assert s.complete(**how, prompt=PROMPTS[:1])["choices"] == alone[0]["choices"]
        status, text = s.call("POST", "/v1/completions", {**how, "prompt": PROMPTS, "stream": True,
                                                          "stream_options": {"include_usage": True}})
        events = [json.loads(e) for e in re.findall(r"^data: (\{.*\})$", text, re.M)]
        assert status == 200 and text.endswith("data: [DONE]\n\n") and events[-1]["usage"] == together["usage"]
        for i, a in enumerate(alone):
            mine = [e["choices"][0] for e in events[:-1] if e["choices"][0]["index"] == i]
            assert "".join(c["text"] for c in mine) == a["choices"][0]["text"]
            assert [c["finish_reason"] for c in mine] == [None] * (len(mine) - 1) + ["length"]
        free = {k: v for k, v in how.items() if k != "seed"}
        several = s.complete(**free, prompt=["And"] * 8, temperature=1)["choices"]
        assert len({c["text"] for c in several}) > 1, "one seed for all prompts"
        # what the text does not depend on
        hints = {"user": "me", "safety_identifier": "me", "prompt_cache_key": "k", "prompt_cache_retention": "24h", "prompt_cache_options": {"mode": "implicit"},
                 "prediction": {"type": "content", "content": "And"}, "metadata": {"a": "b"}}
        assert s.complete(**how, prompt=PROMPTS[0], **hints)["choices"] == alone[0]["choices"]
        nothing = {"n": 1, "best_of": 1, "logprobs": None, "logit_bias": {}, "presence_penalty": 0, "echo": False, "suffix": None, "user": "me", "service_tier": "auto", "x": None}
        assert s.complete(**how, prompt=PROMPTS[0], **nothing)["choices"] == alone[0]["choices"]
        status, text = s.call("GET", "/v1/models/target")
        assert status == 200 and json.loads(text) == json.loads(s.call("GET", "/v1/models")[1])["data"][0]
        status, text = s.call("GET", "/v1/models/gpt-4")
        assert status == 404 and json.loads(text)["error"]["code"] == "model_not_found"
    print("prompts of all forms")


# The same of /v1/chat/completions.
NOT_CHAT = [
    ({"top_logprobs": 2}, '"logprobs": true'), ({"top_logprobs": 21, "logprobs": True}, '"top_logprobs"'),
    ({"logprobs": 1}, '"logprobs"'), ({"messages": [{"role": "user", "content": "x", "name": 1}]}, '"name"'),
    ({"max_tokens": 0, "max_completion_tokens": 4}, '"max_tokens"'),
    ({"max_tokens": "x", "max_completion_tokens": 4}, '"max_tokens"'),
    ({"max_completion_tokens": 0}, '"max_completion_tokens"'),
    ({"max_completion_tokens": [], "max_tokens": 4}, '"max_completion_tokens"'),
    ({"max_completion_tokens": 250, "max_tokens": None}, "256 in all"),
    ({"response_format": {"type": "json_object"}}, "response_format"),
    ({"reasoning_effort": "high"}, "reasoning_effort"), ({"verbosity": "low"}, "verbosity"), ({"web_search_options": {}}, "web_search_options"),
    ({"tools": [{"type": "function"}]}, "tools"), ({"tool_choice": "required"}, "tool_choice"),
    ({"prompt": "x"}, "prompt"), ({"echo": False}, "echo"),
    ({"messages": [{"role": "user"}]}, '"content" must be'),
    ({"messages": [{"role": "user", "content": None}]}, '"content" must be'),
    ({"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "x"}}]}]}, '"content"'),
    ({"messages": [{"role": "user", "content": [{"type": "text"}]}]}, '"content"'),
    ({"messages": [{"role": "user", "content": ["x"]}]}, "no JSON object"),
    ({"messages": [{"role": "user", "content": [{"type": "text", "text": "x", "bold": 1}]}]}, "bold"),
    ({"messages": [{"role": "user", "content": "x", "tool_calls": [1]}]}, "tool_calls")]


def chat():
    if not SMOLLM2.exists():
        return print("skipped: no chat without SmolLM2 (scripts/get-model)")
    with running("--context", 256, *EXACT, target=SMOLLM2) as s:
        asks = [{"role": "system", "content": "Answer."}, {"role": "user", "content": "What is the capital of France?"}]
        def say(messages=asks, **change):
            how = {"messages": messages, "max_tokens": 8, "temperature": 0}
            status, text = s.call("POST", "/v1/chat/completions", {**how, **change})
            return status, json.loads(text)
        said = say()[1]["choices"][0]["message"]
        assert "Paris" in said["content"]
        parts = [{"type": "text", "text": "What is the "}, {"type": "text", "text": "capital of France?", "prompt_cache_breakpoint": {"mode": "explicit"}}]
        for same in ([asks[0], {"role": "user", "content": parts}], [asks[0], {**asks[1], "name": None}],
                     [{**asks[0], "name": "me"}, {**asks[1], "name": "you"}]):
            assert say(same)[1]["choices"][0]["message"] == said
        for nothing in ({"response_format": {"type": "text"}}, {"tools": []}, {"tool_choice": "none"},
                        {"tools": [], "tool_choice": "none", "parallel_tool_calls": True}, {"tools": None},
                        {"functions": [], "function_call": "none"}, {"modalities": ["text"]}, {"reasoning_effort": "none", "verbosity": "medium"}, {"safety_identifier": "me", "prompt_cache_key": "k"}, {"logprobs": False},
                        {"max_completion_tokens": 8}, {"max_completion_tokens": 100}, {"max_tokens": None}):
            if "max_tokens" in nothing: nothing["max_completion_tokens"] = 8
            status, all = say(**nothing)
            assert status == 200 and all["choices"][0]["message"] == said, f"{nothing}: {all}"
        dumped = {"annotations": None, "audio": None, "function_call": None, "refusal": None, "tool_calls": None, **said}
        again = [*asks, said, {"role": "user", "content": "And of Italy?"}]
        due = say(again)[1]["choices"][0]["message"]
        assert say([*asks, dumped, again[3]])[1]["choices"][0]["message"] == due
        assert say([*asks, {**dumped, "tool_calls": [], "annotations": []}, again[3]])[1]["choices"][0]["message"] == due
        def listed(**more):
            return say(**more)[1]["choices"][0]["logprobs"]["content"]
        bare, top = listed(logprobs=True), listed(logprobs=True, top_logprobs=20)
        for one, other in zip(bare, top):
            assert one == {**other, "top_logprobs": []} and len(other["top_logprobs"]) == 20
            assert bytes(other["bytes"]).decode() == other["token"]
            best = other["top_logprobs"][0]  # temperature 0
            assert {k: other[k] for k in best} == best and set(best) == {"token", "logprob", "bytes"}
            assert [t["logprob"] for t in other["top_logprobs"]] == sorted((t["logprob"] for t in other["top_logprobs"]), reverse=True)
        assert len(top) == 8 or said["content"] and any(t["logprob"] < 0 for t in bare)
        for wrong, word in NOT_CHAT:
            status, all = say(**wrong)
            error = all["error"]
            assert status == 400 and word in error["message"], f"{wrong}: {status} {all}"
            assert error["type"] == "invalid_request_error" and {"param", "code"} <= set(error)
    print("messages of all forms")


def keys():
    for options, word in [(["--rpc", "x:1"], "--rpc"), (["--exact-batches", "1"], "--exact-batches"),
                          (["--backend", "llama.cpp", "--head", HEAD], "--head"), (["--backend", "gpu"], "--backend"),
                          (["--head", ROOT / "README.md"], "README.md"), (["--head", HEAD], "another target")]:
        r = subprocess.run([server, "--target", TARGET, *map(str, options)], capture_output=True, text=True, timeout=60)
        assert r.returncode == 2 and word in r.stderr and r.stderr.count("\n") == 1, f"{options}: {r.stderr}"
    refused = subprocess.run([server, "--target", TARGET, "--host", "0.0.0.0"], capture_output=True, text=True, timeout=60)
    assert refused.returncode == 2 and "needs --api-key" in refused.stderr and refused.stderr.count("\n") == 1
    for options, word in [(["--target", "/nonexistent"], "/nonexistent"), ([], "--target"),
                          (["--target", TARGET, "--requests", "0"], "--requests"),
                          (["--target", TARGET, "--draft", ROOT / "README.md"], "README.md")]:
        r = subprocess.run([server, "--port", "0", *map(str, options)], capture_output=True, text=True, timeout=60)
        assert r.returncode == 2 and word in r.stderr and r.stderr.count("\n") == 1, r.stderr
    with running("--context", 64, environment={"SPECAGG_API_KEY": "secret"}) as s:
        right = {**JSON, "Authorization": "Bearer secret"}
        for wrong in (JSON, {**JSON, "Authorization": "Bearer secre"}, {**JSON, "Authorization": "Bearer secret2"},
                      {**JSON, "Authorization": ""}):
            assert s.call("POST", "/v1/completions", {"prompt": "x"}, wrong)[0] == 401
            assert s.call("GET", "/metrics", headers=wrong)[0] == 401
        assert s.call("GET", "/health")[0] == 200
        assert s.call("POST", "/v1/completions", {"prompt": "x"}, right)[0] == 200
    print("a key is asked for")


def on_other_machines():
    """The model on two ggml-rpc-servers: the texts of one process."""
    program = os.environ.get("SPECAGG_RPC_SERVER")
    if not program:
        return print("skipped: no $SPECAGG_RPC_SERVER (ggml-rpc-server, which scripts/get-llama-cpp builds)")
    asking = [asked(i) for i in (0, 2, 4, 8)]
    with running(*EXACT, "--context", 128) as s:
        due = [s.complete(**a)["choices"][0]["tokens"] for a in asking]
    with socket.socket() as a, socket.socket() as b:  # ports that are free
        a.bind(("127.0.0.1", 0)), b.bind(("127.0.0.1", 0))
        at = [f"127.0.0.1:{x.getsockname()[1]}" for x in (a, b)]
    hosts = [subprocess.Popen([program, "-H", "127.0.0.1", "-p", address.split(":")[1], "-t", "1"],
                              stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) for address in at]
    try:
        for address in at:
            end = time.time() + 30
            while True:
                with socket.socket() as probe:
                    if probe.connect_ex(("127.0.0.1", int(address.split(":")[1]))) == 0: break
                assert time.time() < end, f"{program} does not listen"
                time.sleep(0.05)
        with running(*EXACT, "--context", 128, "--rpc", ",".join(at)) as s:
            got = at_once([lambda a=a: s.complete(**a)["choices"][0]["tokens"] for a in asking])
            assert got == due
    finally:
        for h in hosts: h.kill(), h.wait()
    print("two RPC servers: the texts are those of one process")


def openai_client():
    """The client that people have, from PyPI. Chat is tried where scripts/get-model has put SmolLM2."""
    try:
        import openai
    except ImportError:
        return print("skipped: no openai package (pip install openai)")
    key = {"SPECAGG_API_KEY": "secret"}
    with with_long_texts("--context", 20100, environment=key) as s:
        at = dict(base_url=f"http://127.0.0.1:{s.port}/v1", max_retries=0)
        client = openai.OpenAI(api_key="secret", **at)
        assert [m.id for m in client.models.list()] == ["target"]
        assert client.models.retrieve("target").id == "target"
        several = client.completions.create(model="target", prompt=["And it", "The king"], max_tokens=4)
        assert [c.index for c in several.choices] == [0, 1] and several.usage.completion_tokens == 8
        how = dict(model="target", prompt="And it came to pass", max_tokens=30, temperature=0.7, seed=4)
        whole = client.completions.create(**how, extra_body={"origins": True, "policy": "token-v3:alpha=0.4"})
        assert whole.usage.completion_tokens == 30 and whole.choices[0].finish_reason == "length"
        assert set(whole.choices[0].origins) == {"draft", "target"}
        listed = client.completions.create(**how, logprobs=2).choices[0].logprobs
        assert all(3 >= len(t) >= 2 for t in listed.top_logprobs) and len(listed.text_offset) == 30
        parts = list(client.completions.create(**how, stream=True, stream_options={"include_usage": True},
                                               extra_body={"policy": "token-v3:alpha=0.4"}))
        assert "".join(p.choices[0].text for p in parts if p.choices) == whole.choices[0].text
        assert parts[-1].usage == whole.usage
        for change, kind in [(dict(temperature=-1), openai.BadRequestError), (dict(model="gpt-4"), openai.NotFoundError),
                             (dict(logprobs=6), openai.BadRequestError)]:
            try:
                client.completions.create(**{**how, **change})
                assert False, change
            except kind as e:
                assert e.body["message"] and e.body["type"] == "invalid_request_error"
        try:
            openai.OpenAI(api_key="wrong", **at).models.list()
            assert False
        except openai.AuthenticationError:
            pass
        stream = client.completions.create(**{**how, "max_tokens": 20000, "temperature": 2}, stream=True)
        next(iter(stream))
        stream.close()
        end = time.time() + 30
        while "requests_cancelled_total 1" not in s.call("GET", "/metrics", headers={"Authorization": "Bearer secret"})[1]:
            assert time.time() < end, "a closed stream is not cancelled"
    if SMOLLM2.exists():
        with running("--context", 256, target=SMOLLM2) as s:
            client = openai.OpenAI(api_key="-", base_url=f"http://127.0.0.1:{s.port}/v1", max_retries=0)
            how = dict(model=SMOLLM2.stem, max_tokens=24, temperature=0,
                       messages=[{"role": "system", "content": "Answer."},
                                 {"role": "user", "content": "What is the capital of France?"}])
            whole = client.chat.completions.create(**how)
            assert "Paris" in whole.choices[0].message.content
            listed = client.chat.completions.create(**how, logprobs=True, top_logprobs=3).choices[0].logprobs.content
            assert [t.top_logprobs[0].token for t in listed] == [t.token for t in listed] and len(listed[0].top_logprobs) == 3
            parts = client.chat.completions.create(**how, stream=True)
            assert "".join(p.choices[0].delta.content for p in parts) == whole.choices[0].message.content
            messages = [*how["messages"], whole.choices[0].message.model_dump(),
                        {"role": "user", "content": [{"type": "text", "text": "And of Italy?"}]}]
            again = client.chat.completions.create(**{**how, "messages": messages}, tools=[], tool_choice="none",
                                                   response_format={"type": "text"})
            assert again.choices[0].message.content
    print("the openai client" + ("" if SMOLLM2.exists() else ", without chat (scripts/get-model)"))


def prefixes():
    """A prompt that several requests share is read once."""
    if not cpu: return print("skipped: libllama's sequences share nothing here")
    prompt = " ".join(PROMPTS * 6)
    what = {"prompt": prompt, "max_tokens": 10, "origins": True, "n": 4, "draft": "model"}
    with running("--context", 900) as s:
        alone = [s.complete(**{**what, "n": 1, "seed": seed})["choices"][0] for seed in (1, 2)]
        calls = s.metric("decode_calls_total")
        size = s.complete(**what, seed=1)["usage"]["prompt_tokens"]
        # 128 tokens of prompts in each step, so four prompts that are read take four times as many
        reading = -(-size // 128)
        calls = s.metric("decode_calls_total") - calls
        assert size > 256 and calls <= reading + 11, f"{size} tokens of the prompt, {calls} calls"
        # others that begin alike come while one reads and one writes
        got = at_once([lambda seed=seed: s.complete(**what, seed=seed) for seed in (1, 2)])
        assert [g["choices"][0] for g in got] == alone
        longer = {**what, "prompt": prompt + " and the", "n": 1, "seed": 5}
        due = s.complete(**longer)["choices"][0]
        assert at_once([lambda: s.complete(**what, seed=1), lambda: s.complete(**longer)])[1]["choices"][0] == due
    print("prompts that begin alike are read once, and the texts are the same")


def heads():
    if not cpu or not SMOLLM2.exists():
        return print("skipped: no draft head without SmolLM2 (scripts/get-model) and --backend cpu")
    with running("--context", 256, "--head", HEAD, "--requests", 8, target=SMOLLM2, threads=2) as s:
        what = [{"prompt": p, "max_tokens": 16, "seed": i, "temperature": [0, 0.8][i % 2], "origins": True,
                 "draft": ["head", "lookup", "counts"][i % 3]} for i, p in enumerate(PROMPTS)]
        alone = [s.complete(**w)["choices"][0] for w in what]
        got = at_once([lambda w=w: s.complete(**w)["choices"][0] for w in what * 2])
        assert all(map(same, got, alone * 2))
        greedy = {"prompt": PROMPTS[0], "max_tokens": 24, "temperature": 0}
        assert s.complete(**greedy)["choices"] == s.complete(**greedy, draft="none")["choices"]
        code = s.complete(prompt="def main():", max_tokens=24, temperature=0)  # the head is the default
        assert code["usage"]["acceptance"] > 0.1, code
        status, text = s.call("POST", "/v1/completions", {**greedy, "policy": "ensemble:lambda=0.3"})
        assert status == 400 and '"policy"' in text, text
    print("a draft head drafts for several requests, each text as alone")


def page():
    with running("--context", 64) as s:
        status, text = s.call("GET", "/", headers={})
        assert status == 200 and "<!doctype html>" in text and '"way":"completions"' in text
        good = {"prompt": "x", "max_tokens": 2}
        for origin, host, due in [(f"http://127.0.0.1:{s.port}", f"127.0.0.1:{s.port}", 200),
                                  (f"http://localhost:{s.port}", f"localhost:{s.port}", 200),
                                  ("http://example.com", f"127.0.0.1:{s.port}", 403),
                                  (f"http://example.com:{s.port}", f"example.com:{s.port}", 403),  # its name, our address
                                  (f"http://127.0.0.1.example.com:{s.port}", f"127.0.0.1.example.com:{s.port}", 403),
                                  ("null", f"127.0.0.1:{s.port}", 403), (f"http://127.0.0.1:1", f"127.0.0.1:{s.port}", 403)]:
            status, _ = s.call("POST", "/v1/completions", good, {**JSON, "Origin": origin, "Host": host})
            assert status == due, f"{origin} at {host}: {status}"
        # A page whose name was bound to this address asks without an Origin for what it may read.
        ours = (f"localhost:{s.port}", "localhost", "LOCALHOST:1", "127.0.0.1:80", "127.1.2.3", "[::1]", f"[::1]:{s.port}")
        for host in (*ours, f"example.com:{s.port}", "example.com", "127.0.0.1.example.com", "localhost:80@example.com", "localhost:", "localhost.example.com",
                     "[::1].example.com", "[::1", "::1", "128.0.0.1", "127.1"):
            due = 200 if host in (*ours, "localhost:") else 403
            for path in ("/", "/v1/models", "/v1/models/target", "/metrics"):
                assert s.call("GET", path, headers={"Host": host})[0] == due, f"{host}: {path}"
            assert s.call("POST", "/v1/completions", good, {**JSON, "Host": host})[0] == due, host
            assert s.call("GET", "/health", headers={"Host": host})[0] == 200  # of a load balancer
        assert s.call("GET", "/", headers={"Host": "localhost:80@example.com", "Origin": "http://localhost:80@example.com"})[0] == 403
        policy = s.raw(GET.replace(b"/health", b"/")).split("Content-Security-Policy: ")[1].split("\r\n")[0]
        assert {"frame-ancestors 'none'", "form-action 'none'", "base-uri 'none'", "default-src 'none'"} <= set(policy.split("; ")), policy
    with running("--context", 64, environment={"SPECAGG_API_KEY": "secret"}) as s:
        status, text = s.call("GET", "/", headers={"Host": "example.com"})
        assert status == 200 and "key" in text and "target" not in text and "lookup" not in text, text
        assert s.call("GET", "/", headers={"Authorization": "Bearer wrong"})[0] == 401
        assert '"model":"target"' in s.call("GET", "/", headers={"Authorization": "Bearer secret"})[1]
        assert s.call("POST", "/v1/completions", good)[0] == 401
    print("the page under /, which alone may ask without a key")


def memory():
    """Requests that want more memory than there is. Those that fit get the texts that they get alone."""
    if not cpu: return print("skipped: libllama takes the memory at once")
    with running("--context", 1000, "--memory", 3, "--requests", 8, "--queue", 64) as s:
        due = [s.complete(**asked(i))["choices"][0] for i in range(8)]
        large = {"prompt": "And", "max_tokens": 990, "draft": "model"}
        status, text = s.call("POST", "/v1/completions", large)
        assert status == 400 and "--memory" in json.loads(text)["error"]["message"], text
        # more at once than 3 MiB have room for: some wait
        used, done = [], threading.Event()
        def look():
            while not done.wait(0.005): used.append(s.metric("memory_bytes"))
        looking = threading.Thread(target=look)
        looking.start()
        got = at_once([lambda i=i: s.complete(**asked(i % 8))["choices"][0] for i in range(32)])
        done.set(), looking.join()
        assert all(map(same, got, due * 4)) and s.metric("memory_bytes") == 0
        assert 1 << 20 < max(used) <= 3 << 20, max(used)
    print("requests that want more memory than the server may use are refused, or wait")


def little_memory():
    """The system refuses memory. 64 MB must be left, and a long text takes about 30 when it begins."""
    if not cpu: return print("skipped: libllama takes the memory at once")
    if "asan" in server: return print("skipped: AddressSanitizer has terabytes for itself")
    # What is freed goes back to the system, or how much malloc keeps would differ from run to run.
    with with_long_texts("--context", 60000, "--requests", 64, "--queue", 64,
                         environment={"GLIBC_TUNABLES": "glibc.malloc.mmap_threshold=65536"}) as s:
        small = [asked(i) for i in range(16)]
        large = {"prompt": "And", "max_tokens": 59000, "draft": "counts", "stop": ["\n", "~", "!"], "seed": 1, "origins": True}
        due = [s.complete(**what)["choices"][0] for what in (*small, large)]
        answered_at_once(s, 64)  # the stacks of their threads are memory, too
        before, data = s.memory(), s.memory("VmData")
        def leave(more):  # MB
            resource.prlimit(s.process.pid, resource.RLIMIT_DATA, (more if more < 0 else int(data + more) << 20, -1))
        def refused(status, text):
            assert status == 503 and json.loads(text)["error"]["message"] == "no memory", f"{status} {text}"
        def ask(what): return s.call("POST", "/v1/completions", what)
        def tried(i):
            if i % 3 == 0: assert same(s.complete(**small[i // 3])["choices"][0], due[i // 3]), i
            elif i % 3 == 1: refused(*ask({**large, "n": 2}))
            else:
                status, text = ask(large)
                if status != 200: refused(status, text)
                else: assert same(json.loads(text)["choices"][0], due[-1])
        leave(64 + 48)
        at_once([lambda i=i: tried(i) for i in range(48)])
        growing = s.open("/v1/completions", {**LONG, "gamma": 4})
        s.until("requests_active", 1)
        written = s.metric("tokens_total")
        leave(20)
        answer = whole_of(growing).decode()
        refused(int(answer.split(" ")[1]), answer.split("\r\n\r\n", 1)[1])
        for what in (small[0], large): refused(*ask(what))
        leave(-1)
        s.until("requests_active", 0)
        assert s.metric("tokens_total") - written < 4000, "a text goes on where no memory is left"
        assert all(same(s.complete(**what)["choices"][0], d) for what, d in zip((*small, large), due))
        assert s.memory() - before < 24, f"memory grew by {s.memory() - before:.1f} MB"
        # a stream whose client reads nothing until its text is there and no memory is left
        with socket.socket() as c:
            c.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            c.setsockopt(socket.IPPROTO_TCP, socket.TCP_MAXSEG, 536)  # the server's buffer is small, too
            c.connect(("127.0.0.1", s.port))
            body = json.dumps({"prompt": "And", "max_tokens": 300, "n": 8, "logprobs": 5, "stream": True, "draft": "none", "seed": 1}).encode()
            c.sendall(POST + b"Content-Length: %d\r\n\r\n" % len(body) + body)
            s.until("requests_active", 8)
            s.until("requests_active", 0)  # in less time than a client may take to read a piece
            time.sleep(0.2)
            data = s.memory("VmData")
            leave(0)
            got = whole_of(c).decode()
        leave(-1)
        assert got.startswith("HTTP/1.1 200 ") and got.endswith("data: [DONE]\n\n\r\n0\r\n\r\n"), got[-300:]
        assert '"no memory"' in got.rsplit("data: {", 1)[1], got[-300:]
        assert same(s.complete(**small[0])["choices"][0], due[0])
    print("requests that want more memory than there is are refused, and disturb nobody")


def ten_thousand_stops():
    with running(*EXACT, "--context", 4096, "--requests", 8, "--queue", 8) as s:
        before = s.memory()
        due = [s.complete(**asked(i))["choices"][0] for i in range(4)]
        stops = [f"{i:x}~" for i in range(9000)] + ["~" * n for n in range(1, 100)] + [f"{i:x}#" for i in range(1000)]
        def one(i):
            got = s.complete(**asked(i % 4), **({"stop": stops} if i > 3 else {}))["choices"][0]
            assert same(got, due[i % 4])
        start = time.time()
        at_once([lambda i=i: one(i) for i in range(8)])
        spent = time.time() - start
        many = [str(i) for i in range(10_000)]
        assert s.complete(**{**asked(0), "max_tokens": 2}, stop=many)["choices"][0]["finish_reason"] in ("stop", "length")
        assert s.memory() - before < 24 and spent < 30, f"{s.memory() - before:.1f} MB, {spent:.1f} s"
    print("10,000 stop strings cost others nothing")


def thousand_connections():
    """1,000 connections at once; half of the clients are killed while their answers come."""
    with running(*EXACT, "--requests", 32, "--queue", 1024, "--context", 128) as s:
        due = [s.complete(**asked(i))["choices"][0] for i in range(32)]
        at_once([lambda i=i: s.complete(**asked(i)) for i in range(32)])
        before, went = s.memory(), [0, 0]
        lock = threading.Lock()
        def one(i):
            killed = i % 2 == 0
            c = s.open("/v1/completions", {**asked(i % 32), "stream": True})
            c.settimeout(300)
            got = b""
            if killed:
                c.recv(1)
                c.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")  # reset, as of a killed process
                c.close()
            else:
                got = whole_of(c)
                events = [json.loads(e)["choices"][0] for e in re.findall(rb"^data: (\{.*\})$", got, re.M)]
                text, tokens = "".join(e["text"] for e in events), sum((e["tokens"] for e in events), [])
                assert text == due[i % 32]["text"] and tokens == due[i % 32]["tokens"], f"{i}: {got[:200]}"
            with lock: went[killed] += 1
        at_once([lambda i=i: one(i) for i in range(1000)])
        s.until("requests_active", 0, seconds=60)
        s.until("requests_waiting", 0)
        assert went == [500, 500] and s.metric("requests_failed_total") == 0
        time.sleep(1)
        most = 512 if "asan" in server else 32  # AddressSanitizer has stacks of its own for each thread
        assert s.memory() - before < most, f"memory grew by {s.memory() - before:.1f} MB"
        assert all(same(s.complete(**asked(i))["choices"][0], due[i]) for i in range(8))
    print("1,000 connections, half of them killed: the other texts are those of the requests alone")


QUICK = ["command_line", "keys", "page", "forms", "choices", "counts", "record", "synthetic", "logprobs", "streams", "texts_at_once", "calls_are_shared", "prefixes",
         "full", "small_draft", "unused", "forms_of_http", "stops"]
REST = ["chat", "bursts", "bodies", "few_threads", "ports", "clients_that_leave", "hostile", "arrivals", "memory", "little_memory", "heads", "ten_thousand_stops",
        "thousand_connections", "cancels_at_random", "openai_client"]
sets = {"quick": QUICK, "rest": REST}
wanted = sys.argv[3:] or ["quick", "rest"] + ([] if cpu else ["threads", "on_other_machines"])
for check in (one for name in wanted for one in sets.get(name, [name])):
    start = time.time()
    globals()[check]()
    print(f"  ({time.time() - start:.1f} s)", flush=True)
