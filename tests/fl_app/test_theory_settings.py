"""The published bound on mutual information from the command line: case, colluders, survivors."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from leakmeter.auditors import MutualInformation, OneShotCanaries, RoundView, SingleUpdates
from leakmeter.auditors.auditor import RoundFacts
from leakmeter.auditors.hook.panel import Panel
from leakmeter.auditors.information.theory import (
    IndependentWhitened,
    LogConcaveWhitened,
    round_bound,
)
from leakmeter.fl_app import build
from leakmeter.fl_app.cli.main import main
from leakmeter.fl_app.config.audits import GAUSSIAN_ENTROPY
from leakmeter.fl_app.config.config import Config
from leakmeter.fl_app.deployment import with_possible_auditors
from leakmeter.fl_app.report.judge import next_steps
from leakmeter.fl_app.report.read import read_run
from tests.helpers.runs import report_of, run_of

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
    findings = run_of(out, *tiny, *SGD, *more, "--colluders", "2")["findings"]
    lines = (out / "rounds.jsonl").read_text().splitlines()
    found = bound_of(json.loads(lines[0])["findings"])
    # Corollary 2: three of five are left.
    wanted = round_bound(210, 5, 8, cases=[case], colluding=2)
    assert found["value"] == pytest.approx(wanted.bits)
    assert found["threat_model"]["colluders"] == 2
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


# The auditor of single updates by name: on by default without masks, and on every launch.


OPEN = "one-shot,single-update,likelihood-ratio,mutual-information,mine"
QUICK = ["--model", "linear", "--clients", "16", "--sample", "8", "--canary-seats", "4"]


def of_it(folder: Path) -> list[dict[str, Any]]:
    return [f for f in report_of(folder)["findings"] if f["auditor"] == "single-update"]


def test_it_is_a_default_exactly_where_no_masks_hide_updates() -> None:
    assert Config.adapted({})[0].auditors == Config.auditors
    assert Config.adapted({"secagg": "active"})[0].auditors == Config.auditors
    config, words = Config.adapted({"secagg": "off"})
    assert config.auditors == OPEN
    assert words.startswith(f"adapted to your settings: --auditors {OPEN} (default one-shot,")
    chosen = {"secagg": "off", "auditors": "one-shot"}
    assert Config.adapted(chosen)[0].auditors == "one-shot"


def test_its_seats_are_those_of_the_settings_and_of_one_shot() -> None:
    alone = Config(auditors="single-update", secagg="off", canaries=20, delta=1e-6)
    assert (alone.seats, alone.cohort) == (10, 40)
    [made] = build.auditors(alone, 210)
    assert isinstance(made, SingleUpdates)
    assert (made.seats, made.canaries, made.include, made.delta) == (10, 20, "coin", 1e-6)
    both = build.auditors(replace(alone, auditors="single-update,one-shot"), 210)
    Panel(both).begin(210, 30)
    guest, other = both
    assert isinstance(other, OneShotCanaries)
    assert isinstance(guest, SingleUpdates)
    assert guest.plan is other.plan


def test_a_deployment_keeps_the_default_auditors_that_it_can_have(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("leakmeter.fl_app.deployment.is_deployed", lambda: True)
    config, words = with_possible_auditors(Config(auditors=OPEN, secagg="off"))
    assert config.auditors == "one-shot,single-update"
    assert "without likelihood-ratio, mutual-information, mine" in words
    chosen = Config(auditors=OPEN)  # masks hide updates: nobody has this list by default
    assert with_possible_auditors(chosen) == (chosen, "")


def test_a_run_without_masks_leads_with_the_server(tmp_path: Path, capsys: Any) -> None:
    out = tmp_path / "run"
    settings = ["--secagg", "off", "--auditors", "one-shot,single-update", "--rounds", "4"]
    once = ["--canary-repetitions", "1"]
    assert main([*QUICK, *settings, *once, "--out", str(out)]) == 0
    [bound] = [f for f in of_it(out) if f["kind"] == "lower_bound"]
    assert bound["value"] > 60
    said = " ".join(capsys.readouterr().out.split())
    assert "A server that sees every update can be practically certain whether a client" in said
    assert said.count("server, all updates") == 1
    steps = next_steps(read_run(out))
    assert steps[0].text.startswith("Turn on secure aggregation; now the server sees every")
    assert "--auditors one-shot " in f"{steps[0].command} "
    assert "single-update" not in steps[0].command  # which sees nothing behind masks
    page = (out / "report.html").read_text()
    assert "cosines-in-single-updates" in page
    assert "over their cosine with the update of their seat" in page
    assert "did not (0)" not in page


def test_a_guarantee_of_local_noise_covers_it(tmp_path: Path) -> None:
    out = tmp_path / "run"
    noise = ["--noise", "local", "--clip-norm", "1", "--noise-multiplier", "0.3"]
    more = ["--secagg", "off", "--auditors", "one-shot,single-update", "--rounds", "8"]
    assert main([*QUICK, *noise, *more, "--canary-repetitions", "4", "--out", str(out)]) == 0
    first, every = [f for f in of_it(out) if f["kind"] == "lower_bound"]
    assert 0 < first["value"] < every["value"]
    rows = [r for r in report_of(out)["verdict"]["rows"] if r["attacker"]["sees"] == "updates"]
    server = [r for r in rows if r["attacker"]["observer"] == "server"]
    assert {row["adjacency"] for row in server} == {"zero-out", "replace"}
    for row in server:
        assert row["shown"]["auditor"] == "single-update"
        assert row["shown"]["epsilon"] < row["at_most"]["epsilon"]
        assert row["severity"] != "refuted"


def test_behind_masks_it_says_that_there_is_nothing_to_see(tmp_path: Path) -> None:
    out = tmp_path / "run"
    assert main([*QUICK, "--auditors", "single-update", "--rounds", "2", "--out", str(out)]) == 0
    assert of_it(out) == []
    found = report_of(out)
    assert found["failures"] == []
    [words, _] = [one["text"] for one in found["limitations"] if one["auditor"] == "single-update"]
    assert words.startswith("clients mask their updates")
    assert not [w for w in found["warnings"] if w["kind"] == "few-canaries"]
