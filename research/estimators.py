#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Log-loss of predictions of acceptance on recorded rows (specagg-estimators), each made before its round was verified:
specagg's plan::draft_forecast, the logistic estimator of vLLM 0.33 (acceptance_estimator.py), written again here, and the
share of each depth so far. The logistic reads log(q / (1 - q)) of a row's largest probability q, has one slope and an
intercept for each depth, and is fitted again every 100 steps with one damped Newton step on the verdicts since. The forecast
reads the confidence at temperature 1, and learns from sum min(q, p), also of rows behind a rejection.

usage: estimators.py ROWS.jsonl [VLLM]      VLLM: a folder with vLLM's Python files, whose estimator then runs itself, in
                                            Triton's interpreter (needs torch and triton): both must say the same
       estimators.py ROWS.jsonl --record NAME RESULTS.json     (adds the setting NAME to RESULTS.json)
       estimators.py --page RESULTS.json PAGE.md               (writes the section of PAGE.md)

Natural logarithms, a line of ROWS each. least: the loss of sum min(q, p) itself, which no prediction can beat on average.
"""
import json, math, pathlib, sys

SLOPE, BIAS, MOST = 0.5, -0.2, 40.0  # at the start; of the log-odds
EVERY, DAMPING, RIDGE = 100, 50.0, 1e-3


class logistic:
    """p = sigmoid(slope f + bias[depth]). The Newton step solves an arrowhead system: all depths share the slope."""
    def __init__(self, depths):
        self.slope, self.bias, self.steps = SLOPE, [BIAS] * depths, 0
        self.clear()

    def clear(self):
        zeros = lambda: [0.0] * len(self.bias)
        self.ff, self.f1, self.one, self.gf, self.g1, self.n = zeros(), zeros(), zeros(), zeros(), zeros(), zeros()

    def predict(self, depth, log_odds):
        return 1 / (1 + math.exp(-(self.slope * max(-MOST, min(MOST, log_odds)) + self.bias[depth])))

    def observe(self, depth, log_odds, said, accepted):
        f, w, off = max(-MOST, min(MOST, log_odds)), said * (1 - said), accepted - said
        for to, x in ((self.ff, w * f * f), (self.f1, w * f), (self.one, w), (self.gf, off * f), (self.g1, off), (self.n, 1)):
            to[depth] += x

    def end_of_step(self):
        self.steps += 1
        if self.steps % EVERY: return
        c = [x + RIDGE for x in self.one]
        shrunk = sum(self.ff) + RIDGE - sum(b * b / x for b, x in zip(self.f1, c))
        step = (sum(self.gf) - sum(b * g / x for b, g, x in zip(self.f1, self.g1, c))) / shrunk
        step *= sum(self.n) / (sum(self.n) + DAMPING)
        if math.isnan(step) or self.slope + step < 0: step = 0.0
        self.slope += step
        self.bias = [bias + (g - b * step) / x * n / (n + DAMPING)
                     for bias, b, g, x, n in zip(self.bias, self.f1, self.g1, c, self.n)]
        self.clear()


class shares:
    def __init__(self, depths): self.n = [[1.0, 2.0] for _ in range(depths)]
    def predict(self, depth, _): return self.n[depth][0] / self.n[depth][1]
    def observe(self, depth, _, said, accepted): self.n[depth] = [self.n[depth][0] + accepted, self.n[depth][1] + 1]
    def end_of_step(self): pass


def of_vllm(folder, depths):
    """vLLM's own, with the interface of logistic."""
    sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "tools/audits"))
    import importlib.util, types
    import interpreter
    interpreter.vllm(folder)
    import torch
    name = "vllm.v1.worker.gpu.spec_decode.rejection_sampler_utils"
    sys.modules[name] = sys.modules["small_blocks"]
    spec = importlib.util.find_spec("vllm.v1.worker.gpu.spec_decode.acceptance_estimator")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    own = module.OnlineAcceptanceEstimator(1, depths, torch.device("cpu"))

    class adapted:
        def predict(self, depth, log_odds):
            f = max(-MOST, min(MOST, log_odds))
            p = float(torch.sigmoid(own.slope[0] * f + own.intercepts[depth]))
            own.features[0, depth], own.predictions[0, depth] = f, p
            return p
        def observe(self, depth, log_odds, said, accepted):
            self.counted = (depth + 1, 0) if accepted else (depth, 1)
        def end_of_step(self):
            as_int = lambda x: torch.tensor([x], dtype=torch.int32)
            own.step(as_int(0), as_int(self.counted[0] + 1), as_int(self.counted[1]))
    return adapted()


def loss(p, y):
    p = min(max(p, 1e-12), 1 - 1e-12)
    return -(y * math.log(p) + (1 - y) * math.log(1 - p))


def compare(rows, vllm=None):
    """Name -> (mean loss, its standard error, mean loss after the first fifth); and the largest difference to vLLM's own."""
    depths = 1 + max(r["depth"] for r in rows)
    who = {"logistic": logistic(depths), "shares": shares(depths)}
    if vllm: who["vLLM's own"] = of_vllm(vllm, depths)
    losses, apart = {name: [] for name in ("forecast", *who, "least")}, 0.0
    for i, r in enumerate(rows):
        y = r["accepted"]
        said = {name: one.predict(r["depth"], r["log_odds"]) for name, one in who.items()}
        for name, one in who.items(): one.observe(r["depth"], r["log_odds"], said[name], y)
        if vllm: apart = max(apart, abs(said["logistic"] - said["vLLM's own"]))
        for name, p in (said | {"forecast": r["forecast"], "least": r["acceptance"]}).items(): losses[name].append(loss(p, y))
        if i + 1 == len(rows) or rows[i + 1]["step"] != r["step"]:
            for one in who.values(): one.end_of_step()
    # a step's tokens go together: blocks of 50 lines are taken for independent
    def summary(all):
        blocks = [sum(all[i:i + 50]) / 50 for i in range(0, len(all) - 49, 50)]
        mean = sum(all) / len(all)
        error = math.sqrt(sum((b - mean) ** 2 for b in blocks) / max(1, len(blocks) - 1) / max(1, len(blocks)))
        return mean, error, sum(all[len(all) // 5:]) / (len(all) - len(all) // 5)
    return {name: summary(all) for name, all in losses.items()}, summary([a - b for a, b in zip(losses["forecast"], losses["logistic"])]), apart


def page(results, to):
    sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "benchmarks"))
    from measured import write
    shown = lambda x: f"{x[0]:.4f}±{x[1]:.4f}"
    lines = ["`specagg-estimators` and `research/estimators.py`: mean log-loss (natural logarithms; ± is one standard error) of "
             "predictions made before each verdict, gamma 4, one text after another. *Forecast*: `plan::draft_forecast`, which `--gamma auto` uses. "
             "*Logistic*: vLLM 0.33's `acceptance_estimator.py`, written again; on 630 steps its own code in Triton's interpreter said "
             "the same to 1e-7. It sees verdicts alone, the forecast also sum min(q, p). *Shares*: of each depth so far. *Least*: sum min(q, p) itself.", "",
             "| rows | verdicts | forecast | logistic | forecast less logistic | shares | least |",
             "| --- | ---: | ---: | ---: | ---: | ---: | ---: |"]
    for name, r in results.items():
        lines.append(f"| {name} | {r['verdicts']} | {shown(r['forecast'])} | {shown(r['logistic'])} | {r['less'][0]:+.4f}±{r['less'][1]:.4f} | "
                     f"{shown(r['shares'])} | {shown(r['least'])} |")
    write(to, "estimators", lines)


def main():
    if len(sys.argv) == 4 and sys.argv[1] == "--page":
        return page(json.loads(pathlib.Path(sys.argv[2]).read_text()), pathlib.Path(sys.argv[3]))
    recorded = len(sys.argv) == 5 and sys.argv[2] == "--record"
    if len(sys.argv) not in (2, 3) and not recorded: sys.exit(__doc__)
    rows = [json.loads(line) for line in open(sys.argv[1])]
    found, less, apart = compare(rows, *(() if recorded else sys.argv[2:]))
    print(f"{len(rows)} verdicts of {rows[-1]['step'] + 1} steps")
    for name, (mean, error, later) in found.items(): print(f"{name:<12} {mean:.4f} ± {error:.4f}   after the first fifth {later:.4f}")
    print(f"forecast less logistic: {less[0]:+.4f} ± {less[1]:.4f}, after the first fifth {less[2]:+.4f}")
    if recorded:
        path = pathlib.Path(sys.argv[4])
        results = json.loads(path.read_text()) if path.exists() else {}
        results[sys.argv[3]] = found | {"less": less, "verdicts": len(rows)}
        path.write_text(json.dumps(results, indent=1) + "\n")
    elif len(sys.argv) == 3: print(f"logistic here and vLLM's own differ by at most {apart:.2g}")


if __name__ == "__main__":
    main()
