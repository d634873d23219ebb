#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The server of tools/server under load: tokens per second with 1, 8 and 32 requests at once, and how long a
request takes.

usage: server.py SERVER cpu|llama.cpp TARGET.gguf [DRAFT.gguf]

Each request is a line of research/prompts.txt, 48 tokens at temperature 0.7. As many clients as there are requests at
once each send the next request when the last is answered. Drafts: none, and the server's default (the draft model, or a
lookup). p99: one by one, of 32 requests, it is the longest.
"""
import concurrent.futures
import http.client, json, os, pathlib, re, subprocess, sys, threading, time

ROOT = pathlib.Path(__file__).resolve().parent.parent
PROMPTS = (ROOT / "research" / "prompts.txt").read_text().splitlines()
TOKENS = 48


def ask(port, i, draft):
    """Seconds that request i takes, and its tokens."""
    body = {"prompt": PROMPTS[i % len(PROMPTS)], "max_tokens": TOKENS, "temperature": 0.7, "seed": i, "draft": draft}
    start = time.monotonic()
    c = http.client.HTTPConnection("127.0.0.1", port, timeout=600)
    c.request("POST", "/v1/completions", json.dumps(body), {"Content-Type": "application/json"})
    r = c.getresponse()
    text = r.read()
    if r.status != 200:
        raise RuntimeError(f"server.py: {r.status} {text.decode()}")
    return time.monotonic() - start, json.loads(text)["usage"]["completion_tokens"]


def load(port, at_once, count, draft):
    """Tokens per second, and the seconds of each request."""
    start = time.monotonic()
    with concurrent.futures.ThreadPoolExecutor(at_once) as clients:
        answers = list(clients.map(lambda i: ask(port, i, draft), range(count)))
    return sum(tokens for _, tokens in answers) / (time.monotonic() - start), sorted(seconds for seconds, _ in answers)


def main():
    if len(sys.argv) not in (4, 5):
        sys.exit(__doc__)
    server, backend, target, *drafts = sys.argv[1:]
    named = ["--backend", backend, "--target", target] + [word for draft in drafts for word in ("--draft", draft)]
    process = subprocess.Popen([server, *named, "--port", "0", "--requests", "32", "--context", "256", "--threads",
                                str(os.cpu_count())], stdout=subprocess.PIPE, text=True)
    try:
        listens = re.search(r":(\d+)$", process.stdout.readline())
        if not listens:
            sys.exit(f"server.py: {server} does not start")
        measure(int(listens[1]), f"{backend}, {pathlib.Path(target).name}", "model" if drafts else "lookup", process.pid)
    finally:
        process.terminate()
        process.wait()


def memory(pid):
    """MiB that the process has."""
    return int(re.search(r"VmRSS:\s+(\d+)", pathlib.Path(f"/proc/{pid}/status").read_text())[1]) / 1024


class peak:
    """The most memory while it lives."""
    def __init__(self, pid):
        self.most, self.ends, self.pid = memory(pid), threading.Event(), pid
        self.thread = threading.Thread(target=self.look)
        self.thread.start()

    def look(self):
        while not self.ends.wait(0.02): self.most = max(self.most, memory(self.pid))

    def end(self):
        self.ends.set()
        self.thread.join()
        return self.most


def measure(port, what, default, pid):
    print(f"{what}, {os.cpu_count()} threads\n")
    print("| drafts | requests at once | tokens/s | over one by one | p50 of a request, s | p99, s | MiB a request |")
    print("| --- | ---: | ---: | ---: | ---: | ---: | ---: |")
    for draft in ("none", default):
        ask(port, 0, draft)
        alone = None
        for at_once, count in ((1, 32), (8, 64), (32, 128)):
            before, most = memory(pid), peak(pid)
            rate, seconds = load(port, at_once, count, draft)
            each = (most.end() - before) / at_once
            alone = alone or rate
            p50, p99 = (seconds[int(share * (count - 1))] for share in (.5, .99))
            print(f"| {draft} | {at_once} | {rate:.0f} | {rate / alone:.2f} | {p50:.2f} | {p99:.2f} | {each:.1f} |", flush=True)


if __name__ == "__main__":
    main()
