#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""How well `specagg plan record` predicts: tokens a second of the server of tools/server for each gamma, predicted from a
record at the largest gamma and from times of steps, beside measured ones.

usage: plan_record.py SERVER SPECAGG RESULTS.json NAME [--loads 1,8] [--gamma 8] [--rounds 12] [--seconds 1] [--temperature 0.7]
                      [--threads 1] -- OPTIONS OF THE SERVER   (adds the setting NAME to RESULTS.json)
       plan_record.py RESULTS.json PAGE.md                    (writes the section of PAGE.md)

So many clients as requests at once each send the next request when the last is answered. A window is what /metrics counts
while all of them are busy. Its seconds are those of a clock, and beside them those that the server's threads computed: on a
machine that others use, only the second are the server's own. Others can only make a step longer, so a step's time is the
lower quartile over rounds; tokens a second are tokens of a step, pooled over windows, over a step's time. A round has two
windows of each gamma, one after the other, the gammas in an order of chance: one for the times, of the largest gamma also for
the record, and one that is measured. They have other seeds. The times are of every gamma, because the time of a call is no
line between some of them: kernels read so many rows at once, and one row more costs much or little. What lines between
gamma 0, 1, 2, 4, ... would predict stands beside it. The bars were written before the first run:
each predicted number within 3 % of the measured one, and a regret of at most 3 %: the loss of the predicted best gamma
against the measured best.
"""
import datetime, http.client, json, os, pathlib, random, re, statistics, subprocess, sys, tempfile, threading, time

from measured import write

ROOT = pathlib.Path(__file__).resolve().parent.parent
PROMPTS = (ROOT / "research" / "prompts.txt").read_text().splitlines()
TOKENS, BAR, CLOCKS = 192, 0.03, ("clock", "computed")
PROGRAM = "benchmarks/plan_record.py"


class served:
    def __init__(self, server, options, gamma, at_once, threads):
        command = [server, *options, "--port", "0", "--gamma", str(gamma), "--requests", str(at_once), "--threads", str(threads),
                   "--per-request-spec-decode-metrics", "detailed"]
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        listens = re.search(r":(\d+)$", self.process.stdout.readline())
        if not listens:
            sys.exit(f"plan_record.py: {server} does not start")
        self.port = int(listens[1])

    def end(self):
        self.process.terminate()
        self.process.wait()

    def call(self, method, path, body=None):
        c = http.client.HTTPConnection("127.0.0.1", self.port, timeout=600)
        c.request(method, path, body and json.dumps(body), {"Content-Type": "application/json"})
        r = c.getresponse()
        text = r.read().decode()
        if r.status != 200:
            raise RuntimeError(f"plan_record.py: {r.status} {text}")
        return text

    def counters(self):
        text, now = self.call("GET", "/metrics"), time.monotonic()
        computed = 0
        for task in pathlib.Path(f"/proc/{self.process.pid}/task").glob("*/schedstat"):
            try:
                computed += int(task.read_text().split()[0]) / 1e9
            except OSError:  # a connection's thread that has ended
                pass
        number = lambda name: float(re.search(rf"^{re.escape(name)}(?:{{.*}})? (.*)$", text, re.M)[1])
        return now, computed, number("specagg_tokens_total"), number("specagg_request_steps_total")


def window(by, at_once, gamma, seconds, temperature, seed):
    """Tokens and steps; of each clock milliseconds of a step of all; and the records of the requests that ended."""
    records, stop, number, lock, failed = [], threading.Event(), [seed], threading.Lock(), []
    def client():
        try:
            while not stop.is_set():
                with lock:
                    i = number[0] = number[0] + 1
                body = {"prompt": PROMPTS[i % len(PROMPTS)], "max_tokens": TOKENS, "temperature": temperature, "seed": i,
                        "gamma": gamma} | ({} if gamma else {"draft": "none"})
                answer = json.loads(by.call("POST", "/v1/completions", body))
                if gamma: records.append(answer["metrics"]["speculative_decoding"])
        except Exception as e:
            failed.append(e)
    clients = [threading.Thread(target=client) for _ in range(at_once)]
    for c in clients: c.start()
    time.sleep(0.2)
    start = by.counters()
    time.sleep(seconds)
    end = by.counters()
    stop.set()
    for c in clients: c.join()
    if failed: raise failed[0]
    *took, tokens, steps = (b - a for a, b in zip(start, end))
    return (tokens, steps), [1000 * at_once * t / steps for t in took], records


def few(gamma):
    return [0] + [g for g in (1 << k for k in range(10)) if g < gamma] + [gamma]


def predicted(specagg, records, times):
    with tempfile.TemporaryDirectory() as folder:
        record, of_steps = pathlib.Path(folder) / "record.jsonl", pathlib.Path(folder) / "times.jsonl"
        record.write_text("".join(json.dumps(r) + "\n" for r in records))
        of_steps.write_text("".join(json.dumps(t) + "\n" for t in times))
        return json.loads(subprocess.run([specagg, "plan", "record", record, "--times", of_steps, "--json"], check=True,
                                         capture_output=True, text=True).stdout)


def measure(server, specagg, options, loads, gamma, rounds, seconds, temperature, threads):
    records, windows = [], {}
    for at_once in loads:
        by = served(server, options, gamma, at_once, threads)
        chance, seed = random.Random(at_once), 0
        window(by, at_once, gamma, 1, temperature, -1000)  # warm
        for _ in range(rounds):
            gammas = list(range(gamma + 1))
            chance.shuffle(gammas)
            for kind, g in ((kind, g) for g in gammas for kind in chance.sample(["times", "measured"], 2)):
                seed += 10_000
                counted, ms, got = window(by, at_once, g, seconds, temperature, seed)
                windows.setdefault((at_once, kind, g), []).append((counted, ms))
                if kind == "times" and g == gamma: records += got
        by.end()
    found = {"clocks": {}}
    for n, clock in enumerate(CLOCKS):
        ms = {key: statistics.quantiles([of_clocks[n] for _, of_clocks in all], n=4)[0] for key, all in windows.items()}
        length = {(at_once, g): sum(tokens for (tokens, _), _ in all) / sum(steps for (_, steps), _ in all)
                  for (at_once, kind, g), all in windows.items() if kind == "measured"}
        times = [{"requests": at_once, "gamma": g, "ms": ms[at_once, kind, g]} for at_once, kind, g in ms if kind == "times"]
        plan = predicted(specagg, records, times)
        lines = predicted(specagg, records, [t for t in times if t["gamma"] in few(gamma)])
        per_second = lambda requests, g: 1000 * requests * length[requests, g] / ms[requests, "measured", g]
        between = {load["requests"]: max(abs(r["tokens_per_second"] / per_second(load["requests"], r["gamma"]) - 1) for r in load["rows"])
                   for load in lines["loads"]}
        found["acceptance"] = {k: plan["records"][0][k] for k in ("acceptance_length", "mean_of_requests", "standard_error", "steps", "acceptances")}
        found["clocks"][clock] = {"times": times, "loads": [
            {"requests": load["requests"], "chosen": load["best"]["gamma"],
             "rows": [[r["gamma"], round(r["tokens_per_second"], 2),
                       round(per_second(load["requests"], r["gamma"]), 2)] for r in load["rows"]],
             "between": round(between[load["requests"]], 4),
             "tokens": [[r["gamma"], round(r["expected_tokens_per_step"], 4), round(length[load["requests"], r["gamma"]], 4)]
                        for r in load["rows"]]} for load in plan["loads"]]}
    return found


def verdict(load):
    """The largest error of a predicted number, the measured best gamma, and the regret of the chosen one."""
    rows = load["rows"]
    best = max(rows, key=lambda r: r[2])
    chosen = next(r for r in rows if r[0] == load["chosen"])
    return max(abs(p / m - 1) for _, p, m in rows), best[0], 1 - chosen[2] / best[2]


def page(results, to):
    loads = [load for setting in results["settings"].values() for of in setting["clocks"].values() for load in of["loads"]]
    few_too = all("between" in load for load in loads)
    timed = sorted({t["gamma"] for setting in results["settings"].values() for of in setting["clocks"].values() for t in of["times"]})
    lines = [f"`{PROGRAM}` on {results['date']}, {results['machine']}, one thread of the server: predicted / measured tokens a second. "
             f"The record is of the largest gamma, the times of steps are of gamma {', '.join(map(str, timed))}. *Computed*: seconds in which the server "
             "had a core; *clock*: on a machine that others keep busy they have an error of their own, as gamma 0 shows, where nothing "
             "about acceptance is predicted. *Tokens*: largest error of the tokens of a step, which no clock changes. " +
             ("*Few times*: the largest error with times of gamma 0, 1, 2, 4, 8 alone and lines between them. " if few_too else "") +
             "Bars, written before the first run: each prediction within 3 %, regret (loss of the chosen gamma against the best measured one) at most "
             "3 %.", ""]
    one = next(iter(results["settings"].values()))
    gammas = [r[0] for r in one["clocks"]["clock"]["loads"][0]["rows"]]
    lines += ["| setting | at once | seconds | " + " | ".join(f"gamma {g}" for g in gammas) + " | largest error | tokens |" + (" few times |" if few_too else "") + " chosen, best | regret |",
              "| --- | ---: | --- |" + " ---: |" * (len(gammas) + 4 + few_too)]
    good = {clock: [0, 0, 0] for clock in CLOCKS}
    tokens = []
    for name, setting in results["settings"].items():
        for clock in CLOCKS[::-1]:
            for load in setting["clocks"][clock]["loads"]:
                error, best, regret = verdict(load)
                tokens.append(max(abs(p / m - 1) for _, p, m in load["tokens"]))
                good[clock] = [x + y for x, y in zip(good[clock], (1, error <= BAR, regret <= BAR))]
                cells = [f"{p:.0f} / {m:.0f}" for _, p, m in load["rows"]]
                lines.append(f"| {name} | {load['requests']} | {clock} | " + " | ".join(cells) +
                             f" | {100 * error:.1f} % | {100 * tokens[-1]:.1f} % |" + (f" {100 * load['between']:.1f} % |" if few_too else "") +
                             f" {load['chosen']}, {best} | {100 * regret:.1f} % |")
    n = sum(x[0] for x in good.values())
    within, low = (sum(x[i] for x in good.values()) for i in (1, 2))
    lines += ["", f"The regret is within its bar in {low} of {n} rows, and all tokens a second are within theirs in {within} of {n}; "
              f"the tokens of a step are predicted within {100 * max(tokens):.1f} %. Four runs before this one, "
              "on a machine that also compiled, had errors of 4 to 82 %."]
    write(to, "plan-record", lines)


def cpu():
    found = re.search(r"^model name\s*: (.*)$", pathlib.Path("/proc/cpuinfo").read_text(), re.M)
    return f"{found[1] if found else 'a processor without a name'}, {os.cpu_count()} cores"


def main():
    if len(sys.argv) == 3:
        return page(json.loads(pathlib.Path(sys.argv[1]).read_text()), pathlib.Path(sys.argv[2]))
    if "--" not in sys.argv: sys.exit(__doc__)
    cut = sys.argv.index("--")
    own, options = sys.argv[1:cut], sys.argv[cut + 1:]
    server, specagg, to, name, *rest = own
    how = {"loads": "1,8", "gamma": "8", "rounds": "12", "seconds": "1", "temperature": "0.7", "threads": "1"}
    how |= {k.removeprefix("--"): v for k, v in zip(rest[::2], rest[1::2])}
    found = measure(server, specagg, options, [int(x) for x in how["loads"].split(",")], int(how["gamma"]), int(how["rounds"]),
                    float(how["seconds"]), float(how["temperature"]), int(how["threads"]))
    path = pathlib.Path(to)
    results = json.loads(path.read_text()) if path.exists() else {"settings": {}}
    results |= {"date": str(datetime.date.today()), "machine": cpu()}
    results["settings"][name] = found | {"how": how}
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(results, indent=1) + "\n")
    for clock, of in found["clocks"].items():
        for load in of["loads"]:
            error, best, regret = verdict(load)
            print(f"{clock}, {load['requests']} at once: {load['rows']}, largest error {100 * error:.1f} %, chosen {load['chosen']}, "
                  f"best {best}, regret {100 * regret:.1f} %")


if __name__ == "__main__":
    main()
