# SPDX-License-Identifier: Apache-2.0
"""Charts of the site, drawn from docs/*/results.json and benchmarks/cuda/h100 when it is built: they follow its colours and fit a phone.

A recorded picture is drawn anew if its results have all that it shows. Those of docs/experiments, trees and two sites stay
as recorded: their results have tables and verdicts, not the points of the curves.
"""
import html, json, math, pathlib, re

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent


def results(folder):
    return json.loads((ROOT / "docs" / folder / "results.json").read_text())


def figure(kind, title, body):
    """HTML on one line: Markdown leaves it as it is."""
    return f'<figure class="chart {kind}"><figcaption>{html.escape(title)}</figcaption>{body}</figure>'


def round_steps(high, most=6):
    """0 and up to `most` round numbers, the last at most `high`."""
    power = 10 ** math.floor(math.log10(high / most))
    step = next(n * power for n in (1, 2, 5, 10) if high / (n * power) <= most)
    return [round(i * step, 10) for i in range(int(high / step + 1e-9) + 1)]


def bars(title, unit, rows):
    """rows: (label, number as recorded, its kind: "ours", "" or another class). From 0."""
    values = [float(text.split()[0]) for _, text, _ in rows]
    place = lambda x: f"{100 * x / max(values):.1f}%"
    lines = [f'<tr><th scope="row">{html.escape(label)}</th><td><span{f" class={kind}" if kind else ""} style="width:{place(value)}"></span>'
             f"<b>{text}</b></td></tr>" for (label, text, kind), value in zip(rows, values)]
    scale = "".join(f'<i style="left:{place(x)}">{x:,.10g}</i>' for x in round_steps(max(values), 4))
    return figure("bars", title, f'<table class="plot">{"".join(lines)}<tr class="scale" aria-hidden="true"><td></td><td><div>{scale}</div></td></tr></table>'
                  f"<p>{unit}</p>")


def lines(up, across, series, most):
    """series: (name, [(x, y, standard error)], hue), each with its name at its right end; x from 0 to most. Without a hue
    the line is grey, and its name is seen when a mouse points at it."""
    left, right, top, base = 34, 300, 18, 300
    largest = max(b + e for _, points, _ in series for _, b, e in points)
    steps, across_steps = round_steps(largest * 1.05), round_steps(most, 5)
    highest = max(largest * 1.02, steps[-1])
    x = lambda value: left + (right - left) * value / most
    y = lambda value: base - (base - top) * value / highest
    out = [f'<text x="2" y="{top - 8}">{html.escape(up)}</text>'
           f'<text x="{(left + right) / 2}" y="{base + 32}" text-anchor="middle">{html.escape(across)}</text>']
    for b in steps:
        out.append(f'<path class="grid" d="M{left} {y(b):.0f}H{right}"/><text x="{left - 4}" y="{y(b) + 4:.0f}" text-anchor="end">{b:g}</text>')
    for a in across_steps:
        out.append(f'<text x="{x(a):.0f}" y="{base + 16}" text-anchor="middle">{a:g}</text>')
    for name, points, hue in series:
        if hue is None:
            out.append(f'<g class="others"><title>{html.escape(name)}</title><polyline points="{" ".join(f"{x(a):.1f},{y(b):.1f}" for a, b, _ in points)}"/>' +
                       "".join(f'<circle cx="{x(a):.1f}" cy="{y(b):.1f}" r="2"/>' for a, b, e in points) + "</g>")
    series = [one for one in series if one[2] is not None]
    series = sorted(series, key=lambda one: y(one[1][-1][1]))
    places = [y(points[-1][1]) for _, points, _ in series]
    for i in range(1, len(places)):  # the names do not overlap, and none is below the axis
        places[i] = max(places[i], places[i - 1] + 12)
    for i in reversed(range(len(places))):
        places[i] = min(places[i], base - 12 * (len(places) - 1 - i))
    for (name, points, hue), at in zip(series, places):
        end = x(points[-1][0]), y(points[-1][1])
        out.append(f'<g style="--hue:{hue}"><polyline points="{" ".join(f"{x(a):.1f},{y(b):.1f}" for a, b, _ in points)}"/>' +
                   "".join(f'<path d="M{x(a):.1f} {y(b - e):.1f}V{y(b + e):.1f}"/><circle cx="{x(a):.1f}" cy="{y(b):.1f}" r="2.5"/>'
                           for a, b, e in points) +
                   f'<path class="lead" d="M{end[0] + 3:.1f} {end[1]:.1f}L{right + 12} {at:.1f}"/>'
                   f'<text x="{right + 15}" y="{at + 4:.1f}">{html.escape(name)}</text></g>')
    return f'<svg viewBox="0 0 400 {base + 38}" role="img" aria-label="{html.escape(f"{up} against {across}")}">{"".join(out)}</svg>'


def step(title):
    rows = results("performance")["step"]
    return bars(title, "microseconds", [(said(who), warm, "ours" if who.startswith("specagg") else "") for who, warm, *_ in rows if warm])


WORDS = {"written out": "nothing kept", "known": "the draft's normalisers kept", "vLLM V1 steps": "vLLM V1's steps, in our scalar C++",
         "llama.cpp steps": "llama.cpp's steps, in our scalar C++", "scalar expf": "plain C++ with expf"}


def said(who):
    """A row of the step's table in words that its reader knows."""
    for short, words in WORDS.items():
        who = who.replace(short, words)
    return who


def short_step(title):
    found = results("performance")
    times, machine = {who: warm for who, warm, *_ in found["step"]}, found["machine"]
    shown = (("specagg", "specagg", "ours"), ("the same in Eigen", "Eigen, written out", ""),
             ("Hugging Face's steps in torch", "Hugging Face steps in torch, written out, 1 thread", ""), ("plain C++ with expf", "scalar expf, written out", ""))
    return bars(title, html.escape(f"microseconds; vocabulary 128,256, one core of {machine['cpu']}, {machine['date']}. We wrote the compared programs."),
                [(label, times[who], kind) for label, who, kind in shown])


def h100(title):
    """benchmarks/cuda/h100, B = 64, f32; what is predicted is said to be (tests/examples/measured_pages.py has the same formula)."""
    report, tuning = ((ROOT / "benchmarks/cuda/h100" / name).read_text() for name in ("run-1.txt", "tuning.txt"))
    number = lambda text, pattern: re.search(pattern, text, re.M)[1]
    ours = number(tuning.split("third lease: also facts and sums")[1], r"^f32 +64 +4 +1\.0 +([\d.]+) ")
    vllm = number(tuning, r"^vllm +f32 +64 +4 +[\d.]+ +([\d.]+) ")
    copy = float(number(report, r"^f32 +64 +4(?: +[\d.]+){7} +([\d.]+) ")) * 5 / 9
    flashinfer = number(report, r"^ +64 +4 +128256 +([\d.]+) ")
    return bars(title, "microseconds; f32 logits, vocabulary 128,256, 4 drafted tokens. We timed vLLM's call with a copy of the target's logits, which vLLM makes "
                'only for filters or a temperature other than 0 and 1. <a href="docs/cuda.html#measured">All sizes</a>',
                [("specagg", ours, "ours"), ("vLLM 0.33, without its copy", f"{float(vllm) - copy:.0f} predicted", "predicted"), ("vLLM 0.33, with a copy", vllm, ""),
                 ("FlashInfer 0.7.2, with its softmax", flashinfer, "")])


def audits(title):
    """Of five engines' samplers, as they are, the properties that did not hold: one that settings share counts once."""
    found = json.loads((ROOT / "docs/audits/results.json").read_text())
    rows = []
    for key, label in (("transformers", "transformers"), ("vLLM", "vLLM"), ("SGLang", "SGLang"), ("llama.cpp", "llama.cpp"), ("mlx-lm", "mlx-lm")):
        last = max(one["version"] for one in found if one["sampler"].startswith(key))
        of = {}
        for one in found:
            if one["sampler"].startswith(key) and one["version"] == last:
                of.setdefault(re.sub(", (token|block)$", "", one["property"]), []).append(one["holds"])
        wrong = sum(not all(held) for held in of.values())
        rows.append((f"{label} {last}", f"{wrong} of {len(of)}", "found"))
    return bars(title, 'properties that did not hold, of those tested on a CPU: the law with each filter, seeds, odd rows. '
                '<a href="docs/audits.html">Each, with a program that shows it</a>', sorted(rows, key=lambda row: -int(row[1].split()[0])))


def kernels(title):
    rows = results("performance")["kernels"]
    return bars(title, "time over the floor (1: the floor itself)", [(who, over, "ours" if "specagg" in who else "") for who, *_, over in rows if over])


def grid(title):
    of = {drafted: [float(x) for x in times] for size, drafted, texts, *times in results("performance")["grid"]
          if (size, texts) == ("128,256", "1")}
    series = [(f"gamma {drafted}", [(a, t, 0) for a, t in zip((0, 50, 80, 100), times)], hue)
              for (drafted, times), hue in zip(of.items(), (200, 230, 280))]
    return figure("curves", title, lines("microseconds (V = 128,256)", "acceptance, %", series, 100))


def frontier(title):
    settings = results("frontier")["settings"]["first-0.7"]
    rules = ["lossless", *sorted({s["rule"] for s in settings if s["goal"]})]
    named = ("lossless", "lossy", "token-v3", "ensemble", "opt", "chow")  # of each kind of policy one
    series = [(rule, [(s["accepted"][0], *s["kl"]) for s in sorted((s for s in settings if s["rule"] == rule),
                                                                   key=lambda s: s["goal"] or 0)],
               360 * named.index(rule) // len(named) if rule in named else None) for rule in rules]
    return figure("curves", title, lines("KL from the target, nats", "accepted tokens of four drafted", series, 4))


DRAWN = {"docs/performance/step.svg": step, "docs/performance/kernels.svg": kernels, "docs/performance/grid.svg": grid,
         "docs/frontier/frontier.svg": frontier}
