#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""From the JSON files of scripts/bench to plots and results.json, from which performance_page.py writes the page.

usage: report.py FOLDER PAGE.md      plots and results.json go into the folder performance/ beside the page
"""
import json, os, pathlib, statistics, subprocess, sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent / "scripts"))
import recorded

try:
    import matplotlib
except ImportError:  # Debian's matplotlib belongs to Debian's python
    if os.path.realpath(sys.executable) != os.path.realpath("/usr/bin/python3") and os.path.exists("/usr/bin/python3"):
        os.execv("/usr/bin/python3", ["/usr/bin/python3", *sys.argv])
    matplotlib = None
    print("report.py: there is no matplotlib (Debian: python3-matplotlib): tables, but no plots", file=sys.stderr)

folder, page = pathlib.Path(sys.argv[1]), pathlib.Path(sys.argv[2])
plots = page.parent / "performance"
BLUE, GREY, RED = "#1f6fb4", "#9aa3ab", "#c44e52"


def load(name):
    path = folder / name
    return json.loads(path.read_text()) if path.exists() else None


TO_US = {"ns": 1e-3, "us": 1, "ms": 1e3}
median, spread = {}, {}  # microseconds; (largest - least) / median or standard deviation / median
for file in ("bench-kernels.json", "bench-verify.json", "torch.json"):
    for b in (load(file) or {"benchmarks": []})["benchmarks"]:
        name = b.get("run_name") or b["name"]
        if b.get("aggregate_name") == "median":
            median[name] = b["cpu_time"] * TO_US[b["time_unit"]] if "torch" not in name else b["real_time"]
        elif b.get("aggregate_name") == "cv":
            spread[name] = b["cpu_time"]


def kernel(name):
    return next((k for k in median if k == name or k.startswith(name + "/") and k[len(name) + 1:].isdigit()), None)


# A time of what was not run, or was not like the library: it is not a number, and no ratio with it is one.
NOT_MEASURED = float("nan")


def us(name):
    return median.get(kernel(name), NOT_MEASURED)


STANDARD = "V=128256/gamma=4/B=1/acceptance=80%/"


def step(who, setting=STANDARD + "warm"):
    return median.get(f"step/{who}/{setting}", NOT_MEASURED)


def uncached(who):
    return step(who, STANDARD + "cold")


def shown(value, form):
    return "" if value != value else form.format(value)


machine, decoded = load("machine.json"), load("decode.json")
if torch := load("torch.json"):
    machine["torch"] = f"{torch['context']['torch']}, {torch['context']['instruction set']}"
# ---- goals --------------------------------------------------------------------------------------------------------
other = {name: statistics.median(r["seconds"]["other"] / r["seconds"]["total"] for r in runs)
         for name, runs in decoded.items()}
bars = [
    ("log-sum-exp, V = 131,072, in cache, over a read of the row", us("log-sum-exp: specagg/cache") / us("floor: read/cache"), "<=", 5),
    ("log-sum-exp, from memory, over a read", us("log-sum-exp: specagg/memory") / us("floor: read/memory"), "<=", 1.4),
    ("TV of probabilities in cache, over reading both rows", us("TV of probabilities: specagg/cache") / us("floor: read both/cache"), "<=", 1.25),
    ("TV of probabilities from memory, over reading both rows", us("TV of probabilities: specagg/memory") / us("floor: read both/memory"), "<=", 1.25),
    ("residual mass and draw from logits, over one exponential pass", us("residual mass and draw: specagg") / us("floor: exponentials of both rows"), "<=", 1.3),
    ("step, draft's normalisers known to specagg: Hugging Face steps in torch as published (softmax of all rows) over specagg", step("Hugging Face steps in torch, written out, 1 thread") / step("specagg, known"), ">=", 20),
    ("the same, the draft's probabilities at hand in torch too", step("Hugging Face steps in torch, known, 1 thread") / step("specagg, known"), ">=", 20),
    ("step, draft's normalisers (or probabilities) known to both: scalar expf over specagg", step("scalar expf, known") / step("specagg, known"), ">=", 15),
    ("step, nothing known: scalar expf over specagg", step("scalar expf, written out") / step("specagg"), ">=", 12),
    ("a step whose rows are in no cache: time with f32 over time with bf16", uncached("specagg") / uncached("specagg, bf16"), ">=", 1.3),
    ("a step whose rows are in no cache, the draft model's normalisers known: time with f32 over time with bf16", uncached("specagg, known") / uncached("specagg, bf16, known"), ">=", 1.3),
    ("top-k 40 row, V = 151,936: sorting over specagg", us("top-k 40 row: sorted") / us("top-k 40 row: specagg"), ">=", 20),
    ("top-p 0.9 row, V = 151,936: sorting over specagg", us("top-p 0.9 row: sorted") / us("top-p 0.9 row: specagg"), ">=", 20),
    ("specagg generate, lossless, gamma 4: time in neither model nor terminal", 100 * other.get("lossless, gamma 4", NOT_MEASURED), "<=", 3),
]
goals = []
for what, value, kind, bar in bars:
    met = value <= bar if kind == "<=" else value >= bar
    unit = " %" if "time in neither" in what else ""
    goals.append([what, *(("", f"{kind} {bar}{unit}", "not measured") if value != value else
                          (f"{value:.2f}{unit}", f"{kind} {bar}{unit}", "met" if met else "missed"))])

# ---- kernels ------------------------------------------------------------------------------------------------------
ROWS = [("log-sum-exp: specagg/cache", "floor: read/cache"), ("log-sum-exp: Eigen/cache", "floor: read/cache"),
        ("log-sum-exp: scalar expf/cache", "floor: read/cache"), ("log-sum-exp: specagg/memory", "floor: read/memory"),
        ("log-sum-exp: Eigen/memory", "floor: read/memory"),
        ("TV of probabilities: specagg/cache", "floor: read both/cache"),
        ("TV of probabilities: specagg/memory", "floor: read both/memory"),
        ("TV of logits: specagg", "floor: exponentials of both rows"),
        ("residual mass and draw: specagg", "floor: exponentials of both rows"),
        ("residual mass and draw: scalar expf", "floor: exponentials of both rows"),
        ("exponential race: specagg", None), ("greedy row: specagg", None), ("greedy row: sorted", None),
        ("greedy row: plain argmax", None),
        ("top-k 40 row: specagg", None), ("top-k 40 row: sorted", None), ("top-p 0.9 row: specagg", None),
        ("top-p 0.9 row: sorted", None)]
ROWS = [row for row in ROWS if kernel(row[0])]
from_memory = kernel("floor: read/memory")
size = f"{int(from_memory.split('/')[-1]) * 4 >> 20} MB, at least twice the largest cache" if from_memory else "not measured"
kernels = [[name, f"{us(name):.1f}", shown(100 * spread.get(kernel(name), NOT_MEASURED), "{:.0f} %"), shown(us(name) / us(floor), "{:.2f}") if floor else ""] for name, floor in ROWS]

# ---- the step -----------------------------------------------------------------------------------------------------
who = sorted({n.split("/")[1] for n in median if n.startswith("step/")},
             key=lambda w: step(w) if step(w) == step(w) else uncached(w))
steps = [[w, shown(step(w), "{:.0f}"), shown(step(w) / step("specagg, known"), "{:.1f}"), shown(uncached(w), "{:.0f}")]
         for w in who]
accepts = (0, 50, 80, 100)
grid = [[f"{v:,}", f"{g}", f"{b}", *(shown(step('specagg', f'V={v}/gamma={g}/B={b}/acceptance={a}%/warm') / b, "{:.0f}") for a in accepts)]
        for v in (32000, 128256, 151936) for g in (1, 4, 8) for b in (1, 8)]

# ---- decoding -----------------------------------------------------------------------------------------------------
decode = []
for name, runs in decoded.items():
    m = lambda f: statistics.median(f(r) for r in runs)
    share = lambda key: 100 * m(lambda r: r["seconds"][key] / r["seconds"]["total"])
    decode.append([name, f"{m(lambda r: r['tokens_per_second']):.0f}", f"{m(lambda r: r['tokens_per_target_call']):.2f}",
                   f"{share('draft'):.0f} %", f"{share('target'):.0f} %", f"{share('other'):.1f} %"])

recorded.write(plots / "results.json", {
    "machine": machine, "spread": [f"{100 * statistics.median(spread.values()):.1f}", f"{100 * max(spread.values()):.0f}"] if spread else ["", ""],
    "memory": size, "goals": goals, "kernels": kernels, "step": steps, "grid": grid, "decode": decode, "notes": []})
subprocess.run([pathlib.Path(__file__).with_name("performance_page.py"), plots / "results.json", page], check=True)
print(f"report.py: {page}")
for what, value, kind, bar in bars:
    print(f"  {what}: {value:.2f} (bar: {kind} {bar})")

# ---- plots --------------------------------------------------------------------------------------------------------
if matplotlib is None:
    sys.exit(0)
matplotlib.use("svg")
import matplotlib.pyplot as plt

plt.rcParams.update({"font.size": 9, "axes.spines.top": False, "axes.spines.right": False, "svg.hashsalt": "specagg",
                     "svg.fonttype": "none", "axes.titleweight": "bold", "axes.titlelocation": "left"})
plots.mkdir(parents=True, exist_ok=True)


def bars_plot(name, title, labels, values, colours, texts, xlabel, log=False):
    figure, axis = plt.subplots(figsize=(7.5, 0.32 * len(labels) + 1))
    y = range(len(labels))[::-1]
    axis.barh(y, values, color=colours, height=0.7)
    axis.set_yticks(list(y), labels)
    axis.tick_params(left=False)
    figure.suptitle(title, x=0.01, ha="left", weight="bold", size=10)
    axis.set_xlabel(xlabel)
    if log:
        axis.set_xscale("log")
    for at, value, label in zip(y, values, texts):
        axis.text(value * (1.06 if log else 1), at, "" * (not log) + f" {label}", va="center")
    axis.margins(x=0.3 if log else 0.18)
    figure.tight_layout()
    figure.savefig(plots / f"{name}.svg", metadata={"Date": None})
    plt.close(figure)


floors = [(n, f) for n, f in ROWS if f and us(n) / us(f) == us(n) / us(f)]
bars_plot("kernels", "Kernels run close to what reading or exponentiating alone costs",
          [n for n, _ in floors], [us(n) / us(f) for n, f in floors],
          [BLUE if "specagg" in n else GREY for n, _ in floors], [f"{us(n) / us(f):.1f}" for n, f in floors],
          "time over the floor (1: the floor itself), log scale", log=True)
timed = [w for w in who if step(w) == step(w)]
bars_plot("step", "One verification step, gamma 4, V = 128,256, one thread unless said",
          timed, [step(w) for w in timed], [BLUE if w.startswith("specagg") else GREY for w in timed],
          [f"{step(w):.0f} us" for w in timed], "microseconds, log scale", log=True)
figure, axis = plt.subplots(figsize=(7.5, 3.4))
for g, colour in ((1, "#9ecae1"), (4, BLUE), (8, "#08306b")):
    times = [step("specagg", f"V=128256/gamma={g}/B=1/acceptance={a}%/warm") for a in accepts]
    axis.plot(accepts, times, color=colour, marker="o")
    axis.text(101, times[-1], f" gamma {g}", color=colour, va="center")
axis.set_title("The step stops at the first rejection: it costs what is accepted")
axis.set_xlabel("acceptance, %")
axis.set_ylabel("microseconds (V = 128,256)")
axis.set_ylim(0)
axis.set_xlim(0, 115)
axis.set_xticks(accepts)
figure.tight_layout()
figure.savefig(plots / "grid.svg", metadata={"Date": None})
