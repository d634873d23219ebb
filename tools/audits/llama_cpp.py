# SPDX-License-Identifier: Apache-2.0
"""llama.cpp's server, on llamas of five tokens whose rows depend on the last token alone."""

import concurrent.futures
import contextlib
import http.client
import json
import pathlib
import socket
import subprocess
import sys
import tempfile
import threading
import time

import numpy as np

from record import Record
from specagg import Sampling

HERE = pathlib.Path(__file__).resolve().parent
sys.path += [str(HERE / "faults"), str(HERE.parent / "engines")]
import llama_model  # noqa: E402
from install import LLAMA_CPP, llama_server  # noqa: E402

V, PROMPT, SLOTS, END = 5, [1, 3, 2, 1, 3, 2, 1, 3], 4, 4  # the prompt repeats itself, so that n-grams find drafts
logits = np.random.default_rng(1).normal(1, 1.2, (V, V))
near = logits + np.random.default_rng(2).normal(0, 0.7, (V, V))
without_end = np.where(np.arange(V) == END, -30, 0)
MODEL = "--spec-type draft-simple --spec-draft-n-max 2 --spec-draft-model DRAFT"
DRAFTS = {"no drafts": "", "ngram drafts": "--spec-type ngram-simple --spec-ngram-simple-size-n 2 --spec-ngram-simple-size-m 2",
          "greedy drafts": MODEL, "sampled drafts": f"{MODEL} --spec-draft-sampling probabilistic"}


@contextlib.contextmanager
def server(words, target=logits + without_end, draft=near + without_end):
    """Answers requests: a function of a list of (prompt, options), SLOTS at a time."""
    folder = pathlib.Path(tempfile.mkdtemp())
    for name, rows in ("TARGET", target), ("DRAFT", draft):
        llama_model.write(folder / name, rows)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    words = [str(folder / one) if one == "DRAFT" else one for one in words.split()]
    process = subprocess.Popen([llama_server(), "--port", str(port), "-m", folder / "TARGET", "--threads", "1", "--parallel", str(SLOTS),
                                *words], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    thread = threading.local()

    def ask(prompt, options):
        if not hasattr(thread, "to"):
            thread.to = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
        thread.to.request("POST", "/completion", json.dumps({"prompt": prompt, "n_predict": 6, "return_tokens": True, "top_k": 0,
                                                             "top_p": 1, "min_p": 0, "temperature": 1, **options}))
        answer = json.load(thread.to.getresponse())
        if "tokens" not in answer:
            raise RuntimeError(str(answer))
        return answer

    try:
        while process.poll() is None:  # until it answers
            with contextlib.suppress(OSError, RuntimeError):
                ask(PROMPT, {})
                break
            del thread.to
            time.sleep(0.1)
        with concurrent.futures.ThreadPoolExecutor(SLOTS) as pool:
            yield lambda asked: list(pool.map(lambda one: ask(*one), asked))
    finally:
        process.kill()
        process.wait()


def rows(edit=lambda prefix, row: row, of=logits + without_end):
    return lambda prefix: edit(prefix, of[prefix[-1]])


def repetition(prefix, row):
    """1.5, of every token that was in the text."""
    return np.where(np.isin(np.arange(V), prefix), np.where(row > 0, row / 1.5, row * 1.5), row)


def audit(drafts, words):
    record = Record(f"llama.cpp, server, {drafts}", f"b{LLAMA_CPP}")
    with server(words) as answers:
        def engine(**how):
            """Texts of 6 tokens, so that the end shortens no draft of the first three."""
            return lambda prompts, seeds: [one["tokens"] for one in answers(
                [(prompt, {"seed": seed, **how}) for prompt, seed in zip(prompts, seeds)])]

        def law(what, texts, p=rows(), **how):
            record.law(what, texts, p, rows="logits", prompt=PROMPT, batch=64, **{"seeded": False, **how})

        law("law; T 0; seeds alone and in company", engine(), greedy=engine(temperature=0), seeded=True)
        law("T 0.7, top-k 3", engine(temperature=0.7, top_k=3), sampling=Sampling(0.7, top_k=3))
        law("top-p 0.8", engine(top_p=0.8), sampling=Sampling(top_p=0.8))
        law("min-p 0.3", engine(min_p=0.3), sampling=Sampling(min_p=0.3))
        law("penalties (repetition 1.5)", engine(repeat_penalty=1.5), rows(repetition))
        log_probabilities(record, answers)
    with server(words, logits, near) as answers:
        law("end of text", engine(), rows(of=logits), end_of_text=[END])
    if drafts == "sampled drafts":
        with server(words) as answers:
            same = [one["tokens"] for one in answers([(PROMPT, {"seed": 1})] * 100)]
            record.says("one seed, again and again", same == same[:1] * 100, f"{same.count(same[0])} of 100 texts are the first")
        p = np.full((V, V), 1e-13)  # as in faults/llama_n_min.py
        p[3, 2], p[2, :2], p[0, 0], p[1, :4] = 1, 0.5, 1, 0.25
        with server(words + " --spec-draft-n-min 2 --spec-draft-p-min 0.45", np.log(p), np.log(p)) as answers:
            law("law, n-min 2 and p-min 0.45", engine(), rows(of=np.log(p)))


def log_probabilities(record, answers):
    worst, row = 0.0, rows()
    for one in answers([(PROMPT, {"seed": seed, "n_probs": 1}) for seed in range(100)]):
        for last, shown in zip([PROMPT[-1], *one["tokens"]], one["completion_probabilities"]):
            worst = max(worst, abs(shown["logprob"] - (row((last,)) - np.logaddexp.reduce(row((last,))))[shown["id"]]))
    record.says("log-probabilities", worst < 1e-4, f"largest error {worst:.1e}")


for drafts, words in DRAFTS.items():
    audit(drafts, words)
