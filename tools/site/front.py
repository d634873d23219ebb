# SPDX-License-Identifier: Apache-2.0
"""The site's front page, its icon, and the picture that a link to it shows. Numbers are those that were recorded."""
import html, pathlib, re, shutil, subprocess

import charts

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
TITLE = "The accept-or-reject step of speculative decoding, exact and fast"
# Two ticks: of two drafted tokens, one is accepted, and one is drawn again.
ICON = """<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 64 64"><rect width="64" height="64" rx="14" fill="#3949ab"/>
<path d="M10 34l10 11 18-24" fill="none" stroke="#fff" stroke-width="7" stroke-linecap="round" stroke-linejoin="round"/>
<path d="M32 42l4 3 18-24" fill="none" stroke="#ffb74d" stroke-width="7" stroke-linecap="round" stroke-linejoin="round"/></svg>
"""
DOORS = (("I have an engine", "C++ headers that verify drafted tokens from your logits, on a CPU or a GPU.", "docs/engine.md", "Add it to your engine"),
         ("I use Python or vLLM", "A package for numpy, torch and transformers, with plug-ins for vLLM and SGLang.", "docs/python.md", "Use it from Python"),
         ("I have a paper", "From the paper's equation to the code, and whether its claims held here.", "docs/papers.md", "Find your paper"))


def step():
    """Microseconds of a step, ours and of the same step in torch, and what they were measured on."""
    found = charts.results("performance")
    times = {who: warm for who, warm, *_ in found["step"]}
    torch = next(warm for who, warm in times.items() if who.startswith("Hugging Face steps in torch, written out, 1 thread"))
    return float(times["specagg"]), float(torch), found["machine"]


def try_it():
    """Two sliders over the explorer's program; assets/front.js moves them."""
    return """## Try it

<div id="try" hidden>
<p>A draft model proposes a token from <b class="q">q</b>. The target model has <b class="p">p</b>. The emitted token has the law <b class="pi">pi</b>.</p>
<label>How much the models agree <input id="agree" type="range" min="0" max="1" step="0.01" value="0.5"></label>
<label>Weight of the draft model in pi <input id="weight" type="range" min="0" max="1" step="0.01" value="0"></label>
<div id="bars" aria-hidden="true"></div>
<p id="said" role="status"></p>
</div>

[All policies, trees, audits, your own equation: the explorer](explorer.md)
"""


def page(explorer):
    ours, torch, machine = step()
    doors = "\n".join(f'<div class="door" markdown>\n**{title}**\n\n{said}\n\n[{verb}]({to})\n</div>' for title, said, to, verb in DOORS)
    results = "\n\n".join((charts.short_step("Verifying 4 drafted tokens on one core"), charts.h100("The same for 64 requests on an H100"),
                          charts.audits("What did not hold in the samplers that we audited")))
    return f"""---
title: specagg
hide: [toc]
---

<div class="front" markdown>

# specagg { '{' } .hero { '}' }

**{TITLE}.** If this step is slightly wrong, nothing crashes: the text only has another distribution. We [found
faults](docs/audits.md) in seven engines. Here the emitted tokens have exactly the target model's distribution, or that of the
policy you choose. To verify 4 drafted tokens takes **{ours:,.0f} us** on one core; the same steps in torch take {torch:,.0f}.
{{ .line }}

<div class="doors" markdown>
{doors}
</div>

## Install

From a clone:

=== "Python"

    ```sh
    pip install -v ./python  # needs a C++20 compiler; then numpy alone
    ```

=== "C++"

    ```sh
    g++ -std=c++20 -O2 -DNDEBUG -march=native -Iinclude engine.cpp  # headers only
    ```

=== "vLLM"

    ```sh
    pip install "./python[vllm]"
    SPECAGG_VLLM=lossless vllm serve ...  # docs: In vLLM
    ```

[All ways to install](docs/install.md)

{try_it() if explorer else ""}
## Three results

{results}

[Every number, with its machine and date](docs/measured.md) · [What we found in other samplers](docs/audits.md) · [The whole overview](overview.md)

</div>
"""


def card():
    """The picture of a shared link, 800 by 420."""
    ours, torch, _ = step()
    bars = "".join(f'<text x="80" y="{y - 14}" font-size="30">{html.escape(name)}</text><rect x="80" y="{y}" width="{1000 * value / torch:.0f}" height="40" '
                   f'fill="{fill}"/><text x="{80 + 1000 * value / torch + 12 if value < torch else 930:.0f}" y="{y + 30}" font-size="28"{colour}>{value:,.0f} us</text>'
                   for name, value, y, fill, colour in (("a step in specagg", ours, 400, "#ffb74d", ""), ("the same in torch", torch, 510, "#9fa8da", ' fill="#1a237e"')))
    mark = re.sub(r"<svg [^>]*>|</svg>|<rect [^>]*/>", "", ICON)
    return (f'<svg xmlns="http://www.w3.org/2000/svg" width="800" height="420" viewBox="0 0 1200 630" font-family="DejaVu Sans, sans-serif" fill="#fff">'
            f'<rect width="1200" height="630" fill="#283593"/><g transform="translate(60 60) scale(1.8)">{mark}</g>'
            f'<text x="200" y="150" font-size="84" font-weight="700">specagg</text><text x="80" y="250" font-size="34">{TITLE.split(",")[0]},</text>'
            f'<text x="80" y="300" font-size="34">{TITLE.split(", ")[1]}: C++ headers, a Python package</text>{bars}</svg>\n')


def pictures(folder):
    """icon.svg, and card.png where there is Chromium to draw it; whether there is a card."""
    (folder / "icon.svg").write_text(ICON)
    chromium = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
    if not chromium:
        return False
    drawn = folder / "card.html"
    drawn.write_text(f'<!doctype html><style>body {{ margin: 0 }}</style>{card()}')
    subprocess.run([chromium, "--headless", "--no-sandbox", "--hide-scrollbars", "--window-size=800,420", f"--screenshot={folder / 'card.png'}",
                    drawn.as_uri()], check=True, capture_output=True, timeout=120)
    drawn.unlink()
    return True
