# SPDX-License-Identifier: Apache-2.0
"""The plug-in of pytest: a fixture that audits an engine, and a line for each audit in the report. pytest loads it where
specagg is installed.

    def test_drafts_do_not_change_the_law(specagg_conformance):
        specagg_conformance(my_engine, target=my_target_row, rows="logits")
"""

from __future__ import annotations

from typing import Any, Callable

import pytest


def pytest_addoption(parser: Any) -> None:
    parser.getgroup("specagg").addoption(
        "--specagg-tv", type=float, default=0.05, metavar="TV",
        help="the bias that specagg_conformance finds, in total variation; half of it takes four times as many texts (0.05)")


@pytest.fixture
def specagg_conformance(request: Any) -> Callable[..., Any]:
    """specagg_conformance(engine, target, draft=None, policy="lossless", **how): specagg.testing.assert_law(), with the tv
    of --specagg-tv unless it is given."""
    from .testing import assert_law

    def audit(engine: Any, target: Any, draft: Any = None, policy: Any = "lossless", **how: Any) -> Any:
        found = assert_law(engine, target, draft, policy, **{"tv": request.config.getoption("--specagg-tv"), **how})
        request.node.user_properties.append(
            ("specagg", f"{policy}: {found.texts:,} texts fit; a total variation of {found.detectable:.3g} would be found"))
        return found

    return audit


def pytest_terminal_summary(terminalreporter: Any) -> None:
    audits = [(report.nodeid, value) for report in terminalreporter.getreports("passed")
              for name, value in report.user_properties if name == "specagg"]
    if audits:
        terminalreporter.section("specagg")
    for nodeid, value in audits:
        terminalreporter.line(f"{nodeid}: {value}")
