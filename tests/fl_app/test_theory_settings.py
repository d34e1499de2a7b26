"""The published bound on mutual information from the command line: case, colluders, survivors."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from leakmeter.auditors import MutualInformation, RoundView
from leakmeter.auditors.auditor import RoundFacts
from leakmeter.auditors.information.theory import (
    IndependentWhitened,
    LogConcaveWhitened,
    round_bound,
)
from leakmeter.fl_app import build
from leakmeter.fl_app.cli.main import main
from leakmeter.fl_app.config.audits import GAUSSIAN_ENTROPY
from leakmeter.fl_app.config.config import Config
from tests.helpers.refusals import refuses

WHOLE = "mutual information of all coordinates"
SGD = [
    "--auditors",
    "mutual-information",
    "--algorithm",
    "fedsgd",
    "--rounds",
    "2",
    "--sample",
    "5",
]


def bound_of(findings: list[dict[str, Any]]) -> dict[str, Any]:
    """Return the one finding that cites the theorem."""
    (found,) = [f for f in findings if f["quantity"] == WHOLE and "Theorem 1" in f["rule"]]
    assert found["kind"] == "guarantee"
    return found


@pytest.mark.parametrize(
    ("more", "case"),
    [
        (["--mi-case", "independent", "--mi-c0", "0.5"], IndependentWhitened(0.5)),
        (["--mi-case", "log-concave"], LogConcaveWhitened(1.0, 210 * GAUSSIAN_ENTROPY)),
    ],
)
def test_a_run_prints_the_bound_of_its_case_for_the_honest_clients(
    more: list[str], case: Any, tmp_path: Path, tiny: list[str]
) -> None:
    out = tmp_path / "run"
    assert main([*tiny, *SGD, *more, "--colluders", "2", "--out", str(out)]) == 0
    lines = (out / "rounds.jsonl").read_text().splitlines()
    found = bound_of(json.loads(lines[0])["findings"])
    # Corollary 2: three of five are left.
    wanted = round_bound(210, 5, 8, cases=[case], colluding=2)
    assert found["value"] == pytest.approx(wanted.bits)
    assert found["threat_model"]["colluders"] == 2
    findings = json.loads((out / "report.json").read_text())["findings"]
    findings = [f for f in findings if f["server_round"] is None]
    whole = bound_of(findings)
    rounds = whole["threat_model"]["participations"]
    assert rounds == 2
    assert whole["value"] == pytest.approx(rounds * wanted.bits)
    # Whoever stood for a colluder in one round is protected in it too.
    measured = next(f for f in findings if f["quantity"] == "mutual information")
    assert measured["threat_model"]["participations"] == 2


def view(clients: int, answered: int, dim: int = 210) -> RoundView:
    sent = np.zeros(dim)
    facts = RoundFacts(num_clients=answered, total_weight=float(answered))
    return RoundView(1, sent, dict.fromkeys(range(clients), sent), sent, facts)


def audited(tiny_config: Config, **more: Any) -> MutualInformation:
    config = replace(
        tiny_config,
        auditors="mutual-information",
        algorithm="fedsgd",
        mi_case="independent",
        **{"mi_c0": 0.5, "sample": 6, **more},
    )
    (auditor,) = build.auditors(config, 210)
    assert isinstance(auditor, MutualInformation)
    return auditor


def test_only_survivors_hide_one_another(tiny_config: Config) -> None:
    case = [IndependentWhitened(0.5)]
    for clients, answered in ((6, 6), (4, 4), (6, 4)):
        found = audited(tiny_config).observe(view(clients, answered))
        bound = bound_of([f.to_json() for f in found])
        assert bound["value"] == pytest.approx(round_bound(210, answered, 8, cases=case).bits)


def test_any_so_many_may_collude_and_all_stay_protected(tiny_config: Config) -> None:
    auditor = audited(tiny_config, colluders=4)
    auditor.observe(view(6, 6))
    bounds = {c: e.bound for c, e in auditor._account.entries.items()}
    assert sorted(bounds) == list(range(6))
    assert set(bounds.values()) == {round_bound(210, 2, 8, cases=auditor.theory.cases).nats}
    # More than that and nothing hides a client, so nothing is bounded.
    few = audited(tiny_config, colluders=4)
    assert few.observe(view(5, 5)) != ()
    assert not any("Theorem 1" in f.rule for f in few.observe(view(5, 5)))
    assert few.observe(view(4, 4)) == ()


def test_the_target_is_no_colluder(tiny_config: Config) -> None:
    auditor = audited(tiny_config, colluders=3, mi_target=2)
    drawn = [auditor.colluding_in(range(6), server_round) for server_round in range(1, 30)]
    assert not any(2 in some for some in drawn)
    assert all(len(some) == 3 for some in drawn)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"mi_case": "independent"}, "--mi-case"),
        ({"mi_case": "independent", "algorithm": "fedsgd", "auditors": "one-shot"}, "--mi-case"),
        ({"mi_case": "independent", "algorithm": "fedsgd", "lrt_game": "partition"}, "--mi-case"),
        ({"mi_c0": 1.0}, "--mi-c0"),
        ({"mi_sigma": 0.5}, "--mi-sigma"),
        ({"mi_entropy": 2.0}, "--mi-entropy"),
        ({"colluders": 29}, "--colluders"),
    ],
)
def test_what_the_bound_is_not_about_is_refused(settings: dict[str, Any], message: str) -> None:
    with refuses(message):
        Config(**settings)
