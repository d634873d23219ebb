#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The server's page in headless Chromium: a text, Markdown, two policies side by side, probabilities, the gain, errors, a phone's width.

usage: server_page.py SERVER [--screenshots FOLDER]   build/bin/specagg-server; the packages of tools/site/check
"""
import os, pathlib, re, shutil, subprocess, sys, time

ROOT = pathlib.Path(__file__).resolve().parents[2]
PYTHON = ROOT / "build/tools/site-check/bin/python"
chromium = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
try:
    from axe_playwright_python.sync_playwright import Axe
    from playwright.sync_api import sync_playwright
except ImportError:
    if chromium and PYTHON.exists() and "SITE_CHECK" not in os.environ:
        os.execve(PYTHON, [str(PYTHON), *sys.argv], {**os.environ, "SITE_CHECK": "1"})
    print("skipped: no playwright (make site installs it) or no Chromium")
    sys.exit()

MARKDOWN = "# Title\n\nSome *words* in `code`, **bold**.\n- one\n- two\n```\n<b>x</b> * y\n```\n3. third"


def text_of(page, selector):
    return [e.inner_text() for e in page.query_selector_all(selector)]


def send(page, prompt):
    page.fill("#prompt", prompt)
    page.press("#prompt", "Enter")
    wait(page)


def wait(page):
    until = time.time() + 120
    while page.evaluate("going !== null"):  # (the page's policy forbids wait_for_function)
        assert time.time() < until, "no answer in 120 s"
        page.wait_for_timeout(50)


def with_and_without_drafts(page):
    page.select_option("#left .policy", "lossless")
    page.check("#compare")
    page.select_option("#right .policy", "lossless")
    page.select_option("#right .drafts", "none")
    send(page, "Yet again")
    end = "document.documentElement.scrollHeight - document.documentElement.scrollTop - document.documentElement.clientHeight"
    assert page.evaluate(end) < 40, page.evaluate(end)
    usage = text_of(page, ".usage")[-2:]
    rates = [float(re.search(r"([\d.]+) a second", one)[1]) for one in usage]
    times = float(re.search(r"with drafts ([\d.]+) times as fast as without", usage[1])[1])
    assert abs(times - rates[0] / rates[1]) < 0.06 + 0.1 * times, usage
    # an answer that ends too soon is said
    page.evaluate("window.fetch = async () => new Response('data: {\"choices\": []}\\n')")
    page.uncheck("#compare")
    send(page, "Cut?")
    assert text_of(page, ".failed")[-1] == "the server broke off", text_of(page, ".failed")


def begun(page):
    """An empty page has a placeholder and prompts to begin with, and a phone's screen is not half options."""
    wide = page.viewport_size["width"] > 600
    assert page.get_attribute("#prompt", "placeholder") == "The beginning of a text"
    assert page.evaluate("$('options').open") == wide and page.locator("#form").bounding_box()["height"] < (300 if wide else 200)
    page.click("#examples button >> nth=0")
    assert page.input_value("#prompt") == "Once upon a time" and "lossless" in page.inner_text("#first").lower()
    page.evaluate("$('options').open = true")
    # each policy comes with its parameters and its law
    assert page.locator("#left .policy option").count() > 25 and not page.is_visible("#left .parameters")
    page.select_option("#left .policy", "lossy")
    assert page.input_value("#left .parameters") == "alpha=0.25,beta=exact", page.input_value("#left .parameters")
    assert page.inner_text("#left .law").startswith("pi = min(q") and "usual: alpha=0, beta=exact" in page.inner_text("#left .law")
    page.select_option("#left .policy", "lossless")


def refused(page):
    """A wrong policy is said where it is seen, and the prompt comes back."""
    page.uncheck("#compare")
    page.select_option("#left .policy", "lossy")
    page.fill("#left .parameters", "alpha=nothing")
    send(page, "Lost?")
    assert text_of(page, ".failed")[-1].startswith("policy lossy:alpha=nothing: ") and page.input_value("#prompt") == "Lost?", text_of(page, ".failed")
    seen = page.locator(".failed").last.bounding_box()
    form = page.locator("#form").bounding_box()
    assert 0 <= seen["y"] and seen["y"] + seen["height"] <= form["y"] + 1, (seen, form)


def walk(page, shots, name):
    said = []
    page.on("console", lambda message: said.append(message.text))
    page.on("pageerror", lambda error: said.append(str(error)))
    assert page.inner_text("#model") == "target"
    begun(page)
    assert page.eval_on_selector_all("#left .drafts option", "all => all.map(o => o.value)") == ["model", "lookup", "counts", "none"]
    # a text: cut, the prompt cleared, tokens in order, only accepted ones coloured
    page.fill("#max_tokens", "24")
    send(page, "And it came to pass")
    assert page.input_value("#prompt") == ""
    assert re.search(r"^24 tokens, (\d+|\d\.\d|0\.\d+) a second, \d\.\d a call; \d+ % .*cut after 24", text_of(page, ".usage")[0]), text_of(page, ".usage")
    transparent = "rgba(0, 0, 0, 0)"
    colours = page.evaluate("[...document.querySelectorAll('.answer span')].map(s => [s.className, getComputedStyle(s).backgroundColor])")
    assert {k for k, _ in colours} == {"draft", "target"}, colours
    assert all((colour == transparent) == (kind == "target") for kind, colour in colours), colours
    page.click("button:text-is('Go on')")
    assert page.input_value("#prompt").startswith("And it came to pass") and len(page.input_value("#prompt")) > 40
    # the gain against no drafts, by a click, and the text does not go on with it
    before = page.input_value("#prompt")
    page.click("button:text-is('Without drafts, to compare the speed')")
    wait(page)
    assert re.search(r"^24 tokens, .* with drafts [\d.]+ times as fast as without", text_of(page, ".usage")[-1]), text_of(page, ".usage")
    assert page.input_value("#prompt") == before and page.locator(".plain").count() == 0
    # a token's probabilities, by a click
    page.click(".answer span.draft >> nth=0")
    assert re.search(r"drafted and accepted; probability [\d.e-]+ under pi, [\d.e-]+ under p$", page.inner_text("#token")), page.inner_text("#token")
    # two policies, one prompt and seed: lossless draws from p, so pi is p; the other has its own law
    page.check("#compare")
    page.select_option("#right .policy", "lossy")
    page.fill("#right .parameters", "alpha=0.3, beta=exact")
    send(page, "Now therefore")
    labels = text_of(page, ".answers:last-of-type > div > .faint:first-child")
    assert labels[-2:] == ["lossless, drafts: model", "lossy:alpha=0.3,beta=exact, drafts: model"], labels
    says = page.evaluate("""[...document.querySelectorAll('.answers')].at(-1).querySelectorAll('.answer').values()
        .map(a => [...a.querySelectorAll('span')].map(s => s.says.match(/probability (\\S+) under pi, (\\S+) under p$/).slice(1))).toArray()""")
    assert all(pi == p for pi, p in says[0]) and any(pi != p for pi, p in says[1]), says
    refused(page)
    said = [s for s in said if "400" not in s]  # Chromium's own words on that answer
    page.evaluate("""text => { const box = add($('texts'), 'div', 'answer'); box.id = 'marked';
        render(box, {text, tokens: [...text].map((c, i) => ({from: i, to: i + 1, kind: 'target', says: c}))}) }""", MARKDOWN)
    found = page.eval_on_selector("#marked", "e => [...e.querySelectorAll('h2,p,em,code,strong,li,pre')].map(x => [x.tagName, x.textContent])")
    assert found == [["H2", "Title"], ["P", "Some words in code, bold.\n"], ["EM", "words"], ["CODE", "code"], ["STRONG", "bold"],
                     ["LI", "one"], ["LI", "two"], ["PRE", "<b>x</b> * y\n"], ["LI", "third"]], found
    assert page.get_attribute("#marked ol", "start") == "3"
    width = page.viewport_size["width"]
    assert page.evaluate("document.documentElement.scrollWidth") <= width, "wider than the screen"
    if shots:
        page.evaluate("window.scrollTo(0, 0)")
        page.screenshot(path=f"{shots}/server-{name}.png")
    page.evaluate("window.scrollTo(0, 1e6)")
    with_and_without_drafts(page)
    assert not said, said
    faults = [fault["id"] for fault in Axe().run(page).response["violations"]]
    assert not faults, faults


def main():
    shots = sys.argv[3] if sys.argv[2:3] == ["--screenshots"] else None
    server = subprocess.Popen([sys.argv[1], "--target", ROOT / "models/target.gguf", "--draft", ROOT / "models/draft.gguf", "--port", "0"],
                              stdout=subprocess.PIPE, text=True)
    try:
        address = server.stdout.readline().split()[-1]
        with sync_playwright() as p:
            browser = p.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
            for scheme, width in (("light", 1280), ("dark", 390)):
                page = browser.new_page(viewport={"width": width, "height": 900}, color_scheme=scheme)
                page.goto(address)
                walk(page, shots, f"{scheme}-{width}")
            browser.close()
    finally:
        server.terminate()
        server.wait()
    print("the page: a text, two policies, Markdown, at 1280 and 390 pixels")


main()
