# SPDX-License-Identifier: Apache-2.0
"""Charts of the site, drawn from docs/*/results.json when it is built: they follow its colours and fit a phone.

A recorded picture is drawn anew if its results have all that it shows. Those of docs/experiments, trees and two sites stay
as recorded: their results have tables and verdicts, not the points of the curves.
"""
import html, json, math, pathlib

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent


def results(folder):
    return json.loads((ROOT / "docs" / folder / "results.json").read_text())


def figure(kind, title, body):
    """HTML on one line: Markdown leaves it as it is."""
    return f'<figure class="chart {kind}"><figcaption>{html.escape(title)}</figcaption>{body}</figure>'


def bars(title, unit, rows):
    """rows: (label, number as recorded, whether it is ours). A log scale, from half of the least number."""
    values = [float(text) for _, text, _ in rows]
    low, high = math.log(min(values) / 2), math.log(max(values))
    place = lambda x: f"{100 * (math.log(x) - low) / (high - low):.1f}%"
    lines = [f'<tr><th scope="row">{html.escape(label)}</th><td><span{" class=ours" * ours} style="width:{place(value)}"></span>'
             f"<b>{text}</b></td></tr>" for (label, text, ours), value in zip(rows, values)]
    ticks = [10 ** n for n in range(math.ceil(low / math.log(10)), math.floor(high / math.log(10)) + 1)]
    scale = "".join(f'<i style="left:{place(x)}">{x:,}</i>' for x in ticks)
    return figure("bars", title, f'<table class="plot">{"".join(lines)}<tr class="scale" aria-hidden="true"><td></td><td>{scale}</td></tr></table>'
                  f"<p>{html.escape(unit)}, log scale</p>")


def lines(up, across, series, most):
    """series: (name, [(x, y, standard error)], hue), each with its name at its right end; x from 0 to most."""
    left, right, top, base = 34, 300, 18, 300
    largest = max(b + e for _, points, _ in series for _, b, e in points)
    scale = 10 ** math.floor(math.log10(largest))
    highest = next(n * scale for n in (1, 1.2, 1.6, 2, 2.4, 3.2, 4, 4.8, 6, 8, 10) if n * scale >= largest)
    x = lambda value: left + (right - left) * value / most
    y = lambda value: base - (base - top) * value / highest
    out = [f'<text x="2" y="{top - 8}">{html.escape(up)}</text>'
           f'<text x="{(left + right) / 2}" y="{base + 32}" text-anchor="middle">{html.escape(across)}</text>']
    for i in range(5):
        a, b = most * i / 4, highest * i / 4
        out.append(f'<path class="grid" d="M{left} {y(b):.0f}H{right}"/><text x="{left - 4}" y="{y(b) + 4:.0f}" text-anchor="end">{b:g}</text>'
                   f'<text x="{x(a):.0f}" y="{base + 16}" text-anchor="middle">{a:g}</text>')
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
    return bars(title, "microseconds", [(who, warm, who.startswith("specagg")) for who, warm, *_ in rows if warm])


def kernels(title):
    rows = results("performance")["kernels"]
    return bars(title, "time over the floor (1: the floor itself)", [(who, over, "specagg" in who) for who, *_, over in rows if over])


def grid(title):
    of = {drafted: [float(x) for x in times] for size, drafted, texts, *times in results("performance")["grid"]
          if (size, texts) == ("128,256", "1")}
    series = [(f"gamma {drafted}", [(a, t, 0) for a, t in zip((0, 50, 80, 100), times)], hue)
              for (drafted, times), hue in zip(of.items(), (200, 230, 280))]
    return figure("curves", title, lines("microseconds (V = 128,256)", "acceptance, %", series, 100))


def frontier(title):
    settings = results("frontier")["smollm2"]
    rules = ["lossless", *sorted({s["rule"] for s in settings if s["goal"]})]
    panels = ""
    for what, up in (("kl", "KL(pi || p), nats"), ("likeliest", "probability of the target's likeliest token")):
        series = [(rule, [(s["accepted"][0], *s[what]) for s in sorted((s for s in settings if s["rule"] == rule),
                                                                       key=lambda s: s["goal"] or 0)], 360 * i // len(rules))
                  for i, rule in enumerate(rules)]
        panels += lines(up, "accepted tokens of four drafted", series, 4)
    return figure("curves", title, panels)


DRAWN = {"docs/performance/step.svg": step, "docs/performance/kernels.svg": kernels, "docs/performance/grid.svg": grid,
         "docs/frontier/frontier.svg": frontier}
