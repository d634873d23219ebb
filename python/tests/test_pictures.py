# SPDX-License-Identifier: Apache-2.0
"""The pictures of docs/ are what scripts/pictures draws of what is computed and recorded today."""

import pathlib
import subprocess
import sys

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def drawn(tmp_path_factory):
    folder = tmp_path_factory.mktemp("pictures")
    subprocess.run([sys.executable, ROOT / "scripts/pictures", folder], check=True)
    return folder


@pytest.mark.parametrize("name", ["step", "turns", "tree", "deferral", "protocols", "cuda"])
def test_a_picture(drawn, name):
    assert (drawn / f"{name}.svg").read_text(encoding="utf-8") == (ROOT / f"docs/{name}.svg").read_text(encoding="utf-8")


def test_each_is_tested(drawn):
    assert sorted(drawn.iterdir()) == [drawn / f"{name}.svg" for name in ("cuda", "deferral", "protocols", "step", "tree", "turns")]
