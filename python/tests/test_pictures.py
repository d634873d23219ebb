# SPDX-License-Identifier: Apache-2.0
"""docs/step.svg is what scripts/plot-step draws: a step as it is computed."""

import pathlib
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parents[2]


def test_the_step(tmp_path):
    drawn = tmp_path / "step.svg"
    subprocess.run([sys.executable, ROOT / "scripts/plot-step", drawn], check=True)
    assert drawn.read_text(encoding="utf-8") == (ROOT / "docs/step.svg").read_text(encoding="utf-8")
