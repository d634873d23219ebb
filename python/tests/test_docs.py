# SPDX-License-Identifier: Apache-2.0
"""The Python blocks of the pages run; the tutorial prints what it says; the notebooks are as they should be."""

import json
import pathlib
import re
import runpy

import pytest

root = pathlib.Path(__file__).resolve().parents[2]


def blocks(path):
    text = (root / path).read_text()
    return [pytest.param(code, id=f"{path}-{i}") for i, code in
            enumerate(re.findall(r"^```python\n(.*?)^```", text, re.M | re.S))]


@pytest.mark.parametrize("code", blocks("docs/python.md") + blocks("python/README.md") + blocks("README.md") + blocks("docs/from-vllm.md"))
def test_block(code, capsys):
    if "transformers" in code:
        pytest.importorskip("transformers")
    exec(compile(code, "block", "exec"), {"__name__": "block"})
    printed = capsys.readouterr().out
    said = re.findall(r"^print\(.*\)  # (True|False)$", code, re.M)
    assert [line for line in printed.splitlines() if line in ("True", "False")] == said


@pytest.mark.parametrize("name, least", [("first-verification.md", 7), ("audit-your-engine.md", 5)])
def test_tutorial(name, least, capsys):
    page = (root / "docs" / name).read_text()
    steps = re.findall(r"^```python\n(.*?)^```\n(?:```text\n(.*?)^```\n)?", page, re.M | re.S)
    assert len(steps) >= least and page.count("```python") == len(steps)
    names = {"__name__": "tutorial"}  # each block goes on where the one before ended
    for code, said in steps:
        exec(compile(code, name, "exec"), names)
        assert capsys.readouterr().out == said


def test_tutorial_as_a_notebook():
    written = runpy.run_path(str(root / "scripts/notebook"))["notebook"]()
    assert (root / "python/first_verification.ipynb").read_text() == written, "run scripts/notebook"
    cells = json.loads(written)["cells"]
    assert sum(bool(cell.get("outputs")) for cell in cells) >= 7


def test_notebook(monkeypatch):
    matplotlib = pytest.importorskip("matplotlib")
    matplotlib.use("Agg")
    book = json.loads((root / "python/trade_off.ipynb").read_text())
    lines = [line for cell in book["cells"] if cell["cell_type"] == "code" for line in "".join(cell["source"]).splitlines()]
    assert len([line for line in lines if line.strip()]) <= 20
    monkeypatch.chdir(root / "python")
    names = {"__name__": "notebook"}
    exec(compile("\n".join(lines), "trade_off.ipynb", "exec"), names)
    curves = names["curves"]
    assert set(curves) == {"chow", "diff", "opt", "token_v1", "token_v2", "token_v3"}
    # the ends of the curves: the target's law at alpha 0, the draft's at alpha 1
    assert curves["chow"].distance_to_target[0] == pytest.approx(0)
    for policy in ("chow", "diff", "opt", "token_v3"):
        assert curves[policy].acceptance[-1] == pytest.approx(1)
        # on the way, what is not rejected any more is lost: P(reject) + TV(pi, p) is TV(q, p) for a deferral rule
        if policy != "token_v3":
            total = 1 - curves[policy].acceptance + curves[policy].distance_to_target
            assert total == pytest.approx(curves[policy].distance_to_target[-1])
