# SPDX-License-Identifier: Apache-2.0
"""The plug-in of pytest, as a project with an engine uses it."""

import subprocess
import sys

PROJECT = """
import random

import pytest

ROW = [0.5, 0.3, 0.2]


def engine_of(row):
    def engine(prompts, seeds):
        return [random.Random(seed).choices(range(3), row, k=3) for _, seed in zip(prompts, seeds)]
    return engine


def test_right(specagg_conformance):
    found = specagg_conformance(engine_of(ROW), lambda prefix: ROW, length=2)
    assert found.detectable <= 0.2


@pytest.mark.parametrize("how", [{}, {"tv": 0.3}])
def test_wrong(specagg_conformance, how):
    specagg_conformance(engine_of([0.1, 0.2, 0.7]), lambda prefix: ROW, length=2, **how)
"""


def test_a_project_audits_its_engine_by_the_fixture(tmp_path):
    (tmp_path / "test_engine.py").write_text(PROJECT)
    run = subprocess.run([sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "--specagg-tv", "0.2"], cwd=tmp_path,
                         capture_output=True, text=True)
    assert run.returncode == 1 and "1 passed" in run.stdout and "2 failed" in run.stdout, run.stdout
    assert run.stdout.count("AssertionError: the texts do not have their law (p-value at most") >= 2
    assert "test_engine.py::test_right: lossless: 816 texts fit; a total variation of 0.199 would be found" in run.stdout
