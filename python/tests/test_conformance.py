# SPDX-License-Identifier: Apache-2.0
"""specagg.conformance: planted faults are found, right samplers pass each time, and the command says which it was."""

from __future__ import annotations

import json
import os
import pathlib
import subprocess
import sys
from typing import Any

import numpy as np
import pytest

import samplers
import specagg
from specagg import _checks, conformance
from specagg.conformance import DOES_NOT, FITS, NOT_APPLICABLE, Adapter, Report, Unusable, load, run

QUICK: dict[str, Any] = {"tv": 0.1, "vocabulary": 1031}

faults = [
    (samplers.WrongOrder, "order: all"), (samplers.TemperatureLast, "order: T, top-p"), (samplers.TopPTooFew, "top-p 0.68"),
    (samplers.TopPTooMany, "top-p 0.68"), (samplers.TiesDropped, "ties, top-k"), (samplers.SharedSeed, "law"),
    (samplers.SeedOfSlot, "seeds alone"), (samplers.HalfSums, "large row, top-p 0.9"), (samplers.MaskForgotten, "mask"),
    (samplers.LastBlockForgotten, "one likely token"), (samplers.LastBlockForgotten, "large row, T 1"),
    (samplers.TokenOfNaN, "row with NaN"), (samplers.TokenOfNaN, "row of -inf"),
    (samplers.LogsBeforeTemperature, "log-probabilities"), (samplers.BonusReusesCoin, "drafts, T 1"),
    (samplers.RoundsReuseCoins, "drafts, all accepted"), (samplers.RoundsReuseCoins, "without chance, two ids"), (samplers.ResidualOfRawQ, "drafts, T 0.7"),
    (samplers.ResidualOfP, "drafts, T 1"), (samplers.OneHotAsProbabilities, "chosen without chance"),
    (samplers.PaddingAccepted, "padded with -1"), (samplers.WrongIdEmitted, "drafted ids outside"),
    (samplers.WithoutSupportAccepted, "q of 0"), (samplers.DraftsOfNaN, "drafts, rows with NaN"),
    (samplers.SmallerVocabulary, "vocabulary larger"),
    (samplers.HalfLogs, "log-probabilities, bfloat16"),
    (samplers.HalfLogs, "log-probabilities of rows, bfloat16"),
    (samplers.SecondChildAsFirst, "trees, T 1"), (samplers.DrawnWithReplacement, "trees, T 1")]


@pytest.mark.parametrize("fault, where", faults, ids=lambda one: getattr(one, "__name__", str(one)))
def test_a_fault_is_found_by_its_check(fault: Any, where: str) -> None:
    for seed in (1, 2):  # other rows each time
        named = run(samplers.adapted(fault()), only=where, seed=seed, **QUICK).results[0]
        assert named.verdict == DOES_NOT and named.seen, f"{fault.__name__}, seed {seed}: {named}"


def test_there_are_checks_for_each_feature() -> None:
    needed = {feature for one in _checks.checks_of(()) for feature in one.needs}
    assert needed == set(conformance.FEATURES)


def test_a_right_sampler_passes_twenty_times_of_twenty() -> None:
    for seed in range(20):
        found = run(load("specagg"), seed=seed, tv=0.25, vocabulary=515)
        assert found.fits, found.table()
    whole = run(samplers.adapted(samplers.Right()), tv=0.2, vocabulary=515)
    assert all(one.verdict == FITS for one in whole.results), whole.table()


def test_each_check_of_chance_finds_what_it_states() -> None:
    """A law that is off by the stated distance, spread over all tokens, is found each time; one that is right, never."""
    rng = np.random.default_rng(1)
    checks = _checks.Checks(samplers.adapted(samplers.Right()), 0.1, 1e-6 / 52, 1, 1031)
    law = checks.law(checks.small())
    n = checks.planned(law)
    order = np.argsort(law)
    truth = law.copy()
    truth[order[::2]] *= 1 + 0.1 / law[order[::2]].sum()
    truth[order[1::2]] *= 1 - 0.1 / law[order[1::2]].sum()
    for _ in range(25):
        assert checks.compared("", checks.tests(rng.choice(law.size, n, p=truth), law)).verdict == DOES_NOT
        right = checks.compared("", checks.tests(rng.choice(law.size, n, p=law), law))
        assert right.verdict == FITS and right.finds is not None and right.finds <= 0.1
    assert 1 - (1 - _checks.share(64))**64 == pytest.approx(0.999)


def test_the_orders_differ_where_they_are_told_apart() -> None:
    """And no cut is so near to a token that rounding decides."""
    row = np.arange(17) * np.log(0.78)

    def law(order: str, temperature: float, top_k: int, top_p: float, min_p: float) -> Any:
        return specagg.law("lossless", row, row, rows="logits",
                           sampling=specagg.Sampling(temperature, top_k, top_p, min_p, order)).pi

    orders, apart = ("hugging-face", "vllm", "llama-cpp", "joint"), np.zeros((4, 4))
    for how in (1.6, 0, 0.68, 0.0), (1.6, 7, 0.68, 0.0), (1.6, 0, 0.8, 0.33), (1.6, 7, 0.68, 0.4):
        laws = [law(order, *how) for order in orders]
        for a in range(4):
            near = [law(orders[a], how[0], how[1], how[2] + d, max(how[3] + e, 0)) for d in (-0.004, 0.004) for e in (-0.004, 0.004)]
            assert all(np.allclose(one, laws[a]) for one in near), (orders[a], how)
            for b in range(4):
                apart[a, b] = max(apart[a, b], np.abs(laws[a] - laws[b]).sum() / 2)
    assert (apart[~np.eye(4, dtype=bool)] > 0.1).all(), apart


def test_what_a_sampler_has_not_is_not_applicable() -> None:
    found = run(samplers.by_hand, tv=0.3, vocabulary=515)
    verdicts = {one.check: one for one in found.results}
    assert found.fits and found.name == "by hand"
    assert verdicts["mask"].verdict == NOT_APPLICABLE and verdicts["mask"].seen == "has no mask"
    assert verdicts["drafts, T 1"].verdict == NOT_APPLICABLE and verdicts["presence 0.7"].verdict == NOT_APPLICABLE
    assert verdicts["top-p 0.68"].verdict == FITS and verdicts["seeds alone and in company"].verdict == FITS


def test_an_order_that_is_declared_is_the_one_that_is_due() -> None:
    wrong = run(samplers.adapted(samplers.Right(), order="llama-cpp"), only="order", **QUICK)
    assert not wrong.fits
    declared = frozenset({"temperature", "top_p", "top_k"})
    for order in "llama-cpp", "top_k top_p min_p temperature":
        assert run(samplers.adapted(samplers.TemperatureLast(), declared, order=order), only="order", **QUICK).fits


def test_values_of_half_types() -> None:
    torch_says = {1.00390625: 1.0, 1.01171875: 1.015625, -3.14159: -3.140625, 1e-40: 1.0010005e-40}
    for x, due in torch_says.items():
        assert _checks.rounded(np.array([x], np.float32), "bfloat16")[0] == pytest.approx(due, rel=1e-2 if x < 1e-30 else 1e-7)
    assert _checks.rounded(np.array([0.1], np.float32), "float16")[0] == np.float32(np.float16(0.1))


def test_an_error_of_the_sampler_does_not_fit() -> None:
    def sample(logits: Any, settings: Any) -> Any:
        if settings.top_k:
            raise RuntimeError("no kernel\nfor this")
        return samplers.Right().sample(logits, settings)[0]

    found = run(Adapter(sample, frozenset({"top_k"}), "s"), only="top-k 4", **QUICK)
    assert found.results[0].verdict == DOES_NOT and found.results[0].seen == "RuntimeError: no kernel for this"


@pytest.mark.parametrize("how, message", [({"has": frozenset({"topk"})}, "there is no topk"), ({"order": "x"}, "there is no 'x'"),
                                          ({"order": "top_k top_p min_p"}, "in any order"),
                                          ({"has": frozenset({"drafts"})}, "verify: needed for drafts"),
                                          ({"has": frozenset({"trees"})}, "verify_tree: needed"),
                                          ({"proposed": "best"}, "there is no 'best'; there are sampled")])
def test_adapters_that_cannot_be(how: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Adapter(**{"sample": samplers.plain, "has": frozenset(), "name": "s", **how})


def test_a_report_can_be_read() -> None:
    found = run(samplers.wrong, only="order: T", **QUICK)
    read = json.loads(found.as_json())
    assert read["fits"] is False and read["level"] == 1e-6 and len(read["results"]) == 3
    assert read["results"][0]["verdict"] == DOES_NOT and read["results"][0]["p_value"] < 1e-6
    assert "| order: T, top-p | **does not fit** |" in found.page()
    assert "checks fit" in found.summary() and "expected" in found.table()
    badge = json.loads(found.badge())
    assert badge["schemaVersion"] == 1 and badge["message"] == "1 of 3 checks fit" and badge["color"] == "red"
    right = json.loads(run(samplers.by_hand, only="order: T", **QUICK).badge())
    assert right["message"] == "3 of 3 checks fit" and right["color"] == "brightgreen"


def command(*words: str) -> Any:
    return subprocess.run([sys.executable, "-m", "specagg.conformance", *words], cwd=pathlib.Path(__file__).parent,
                          capture_output=True, text=True, env={**os.environ, "PYTHONWARNINGS": "error"})


def test_the_command(tmp_path: pathlib.Path) -> None:
    page = tmp_path / "page.md"
    right = command("samplers:by_hand", "--tv", "0.2", "--only", "top-p", "--page", str(page))
    assert right.returncode == 0 and "by hand" in right.stdout and " do not" in right.stdout, right.stderr
    assert page.read_text().startswith("# Conformance of by hand\n")
    wrong = command("samplers:wrong", "--tv", "0.2", "--only", "order: T", "--json")
    assert wrong.returncode == 1 and json.loads(wrong.stdout)["fits"] is False
    assert "specagg" in command("--list").stdout
    for name, message in [("nothing:here", "No module named"), ("samplers:nothing", "has no attribute"), ("x", "expected module:name"),
                          ("samplers:EVERYTHING", "neither an Adapter nor a function"), ("samplers:broken", "expected 2 tokens")]:
        unusable = command(name)
        assert unusable.returncode == 2 and message in unusable.stderr and unusable.stderr.count("\n") == 1, unusable.stderr
        assert not unusable.stdout


def test_a_check_that_ends_the_process_is_a_fault_and_the_others_go_on(tmp_path: pathlib.Path) -> None:
    badge = tmp_path / "badge.json"
    found = command("samplers:deadly", "--tv", "0.3", "--vocabulary", "515", "--json", "--badge", str(badge))
    assert found.returncode == 1, found.stderr
    verdicts = {one["check"]: (one["verdict"], one["seen"]) for one in json.loads(found.stdout)["results"]}
    assert len(verdicts) == len(_checks.ALL)
    ended = "the process was ended by signal"
    assert verdicts["row with NaN"] == (DOES_NOT, f"{ended} 6 (SIGABRT)")
    assert verdicts["row of -inf"] == (DOES_NOT, f"{ended} 11 (SIGSEGV)")
    assert verdicts["T 0"] == verdicts["ties, T 0"] == (DOES_NOT, "the process ended with status 3")
    assert verdicts["law"][0] == verdicts["large row, T 1"][0] == FITS and verdicts["top-k 4"][0] == NOT_APPLICABLE
    assert "an engine speaks" in found.stderr and json.loads(badge.read_text())["color"] == "red"
    none = command("samplers:deadly_at_once")
    assert none.returncode == 2 and "signal 6 (SIGABRT) before the first check" in none.stderr and not none.stdout


@pytest.mark.parametrize("proposed", conformance.PROPOSED)
def test_trees_are_proposed_as_the_adapter_says(proposed: str) -> None:
    def trees(tokens: Any, parents: Any, q: Any, p: Any, s: Any) -> Any:
        assert (q is None) == (proposed == "top")
        return specagg.verify_tree(tokens, parents, q, p, proposed=proposed, streams=specagg.Streams(
            s.seeds, s.positions.astype(np.uint32), requests=0)).tokens

    found = run(Adapter(samplers.plain, frozenset({"trees"}), "s", verify_tree=trees, proposed=proposed), only="trees, T 1", **QUICK)
    assert found.fits, found.table()


def test_a_run_apart_is_a_run() -> None:
    here, apart = run(load("specagg"), **QUICK), conformance.run_apart("specagg", **QUICK)
    assert [one._replace(seconds=0) for one in here.results] == [one._replace(seconds=0) for one in apart.results]
    assert here._counts() == apart._counts() and (here.name, here.version) == (apart.name, apart.version)


def test_no_call_has_more_rows_than_an_adapter_takes() -> None:
    most = []

    def sample(logits: Any, settings: Any) -> Any:
        most.append((len(logits), len(settings.seeds), len(settings.positions)))
        return samplers.Right().sample(logits, settings)

    found = run(Adapter(sample, frozenset({"seeds", "log_probabilities", "greedy"}), "s", most=7), tv=0.3, vocabulary=515)
    assert found.fits and max(most) == (7, 7, 7) and all(len(set(one)) == 1 for one in most)


def test_a_function_alone_is_an_adapter() -> None:
    found = load("samplers:plain")
    assert found.has == frozenset({"temperature"}) and run(found, only="T 2", **QUICK).fits


def test_reports_of_unusable_samplers() -> None:
    with pytest.raises(Unusable, match="expected 2 tokens"):
        run(samplers.broken)
    for how in {"tv": 0.0}, {"level": 1.0}, {"vocabulary": 8}, {"seed": -1}:
        with pytest.raises(ValueError, match="expected"):
            run(samplers.by_hand, **how)
    assert Report("s", "", 1e-6, 0.1, 1, 515).fits
