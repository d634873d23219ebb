# SPDX-License-Identifier: Apache-2.0
"""The Python blocks of docs/python.md and README.md, and the notebook, run."""

import json
import pathlib
import re

import pytest

root = pathlib.Path(__file__).resolve().parents[2]


def blocks(path):
    text = (root / path).read_text()
    return [pytest.param(code, id=f"{path}-{i}") for i, code in
            enumerate(re.findall(r"^```python\n(.*?)^```", text, re.M | re.S))]


@pytest.mark.parametrize("code", blocks("docs/python.md") + blocks("python/README.md"))
def test_block(code, capsys):
    if "transformers" in code:
        pytest.importorskip("transformers")
    exec(compile(code, "block", "exec"), {"__name__": "block"})
    printed = capsys.readouterr().out
    for line, said in re.findall(r"^(print\(.*\))  # (True|False)$", code, re.M):
        assert said in printed.split(), line


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
    # what the page says: at one distance from the target, OPT rejects no more than Chow
    assert set(curves) == {"chow", "diff", "opt", "token_v1", "token_v2", "token_v3"}
    for curve in curves.values():
        assert (curve.acceptance >= -1e-12).all() and (curve.distance_to_target <= 1).all()
