# SPDX-License-Identifier: Apache-2.0
"""How plots look, and what several of them draw."""
import os, sys

from findings.parts import have, plots

try:
    import matplotlib
except ImportError:  # Debian's matplotlib belongs to Debian's python
    if os.path.realpath(sys.executable) != os.path.realpath("/usr/bin/python3") and os.path.exists("/usr/bin/python3"):
        os.execv("/usr/bin/python3", ["/usr/bin/python3", *sys.argv])
    matplotlib = None
    print("report.py: there is no matplotlib (Debian: python3-matplotlib): tables, but no plots", file=sys.stderr)

BLUE, GREY, RED, GREEN, ORANGE, PURPLE = "#1f6fb4", "#8a939b", "#c44e52", "#2f8f4e", "#d9822b", "#7b5ea7"
COLOUR = {"ensemble": GREY, "diff": BLUE, "opt": PURPLE, "chow": ORANGE, "token-v1": "#8c6d31", "token-v2": "#5aa9e6", "token-v3": GREEN,
          "lenient": RED, "lossy": RED, "bild": "#8c6d31", "diff-log": "#5aa9e6"}
RULES = [("chow", ORANGE), ("diff", BLUE), ("opt", PURPLE), ("token-v3", GREEN), ("lenient", RED), ("lossless", "#222")]
if matplotlib is not None:
    matplotlib.use("svg")
    import matplotlib.pyplot as plt
    plt.rcParams.update({"font.size": 9, "axes.spines.top": False, "axes.spines.right": False, "svg.hashsalt": "specagg",
                         "svg.fonttype": "none", "axes.titleweight": "bold", "axes.titlelocation": "left",
                         "axes.titlesize": 10})
    plots.mkdir(parents=True, exist_ok=True)


def draw_with(*parts):
    """Draws a plot, a function without arguments, at once if these parts were run."""
    def draw(plot):
        if matplotlib is not None and have(*parts):
            plot()
    return draw


def figure(width=7.2, height=4.2, columns=1):
    f, axes = plt.subplots(1, columns, figsize=(width, height), squeeze=False)
    return f, list(axes[0])


def finish(f, name, title):
    f.suptitle(title, x=0.01, ha="left", weight="bold", size=10.5)
    f.tight_layout()
    f.savefig(plots / f"{name}.svg", metadata={"Date": None})
    plt.close(f)


def label_ends(axis, ends, gap=0.045):
    """Text at the right ends of lines, (x, y, text, colour), moved apart where they would overlap."""
    low, high = axis.get_ylim()
    step = gap * (high - low)
    ends = sorted(ends, key=lambda e: e[1])
    at = [e[1] for e in ends]
    for _ in range(200):
        for i in range(len(at) - 1):
            if at[i + 1] - at[i] < step:
                middle = (at[i] + at[i + 1]) / 2
                at[i], at[i + 1] = middle - step / 2, middle + step / 2
    for (x, _, text, colour), y in zip(ends, at):
        axis.text(x, y, " " + text, color=colour, va="center", ha="left", size=8.5)


def name_lines(axis, named, x=1.01, y=0.95, step=0.07, **how):
    """(text, colour) of lines, one below the other; x and y are in units of the axis."""
    for i, (text, colour) in enumerate(named):
        axis.text(x, y - step * i, text, color=colour, transform=axis.transAxes, size=8.5, weight="bold", **how)
