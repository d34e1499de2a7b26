"""Runs of all lengths, folders that are taken, and metrics that stay the user's."""

from __future__ import annotations

import json
import logging
import re
import shutil
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest
from flwr.app import Message
from flwr.serverapp.strategy import FedAvg

from leakmeter.auditors import Auditor, OneShotCanaries, passive
from leakmeter.fl_app.config.config import Config
from leakmeter.fl_app.config.field import kebab
from leakmeter.fl_app.report import export
from leakmeter.fl_app.report import page as pages
from leakmeter.fl_app.report.read import read_run
from tests.guest.clients import Gradients, Stateful
from tests.guest.harness import (
    NODES,
    Cell,
    Quiet,
    assert_same,
    assert_unharmed,
    canaries,
    explained,
    run_audited,
    run_plain,
    said,
    was_seen,
)
from tests.guest.strategies import ALL, DESCENDS, PLAIN, of
from tests.helpers.strategies import OwnLoop

FEDAVG = PLAIN["FedAvg"]


@pytest.mark.parametrize("rounds", [1, 3])
def test_short_runs_with_default_settings_yield_a_number(rounds: int) -> None:
    # With a fair coin each, and a round lost, three rounds showed nothing with this seed.
    cell = Cell(FEDAVG, Stateful, rounds=rounds)
    for seats in (1, "auto"):
        run, audited = run_audited(cell, [OneShotCanaries(seats=seats)])  # type: ignore[arg-type]
        assert_unharmed(cell, run)
        assert audited.failures == []
        assert was_seen(run, audited)
        # Seats of the cohort have canaries that play as often as clients do, so there are fewer.
        [(played, planned)] = audited.audit._panel.canaries
        assert played == planned == (rounds if seats == 1 else max(planned, 1))
        bounds = [f for f in audited.findings() if f.kind == "lower_bound"]
        shown = max(f.value for f in bounds if not f.is_conditional)
        assert shown > 1 or rounds == 1  # the model has 132 parameters only


def test_a_run_in_which_no_canary_was_played_says_so_and_why() -> None:
    auditor = OneShotCanaries(seats=1, canaries=2, include="coin")  # both coins say out
    _, audited = run_audited(Cell(FEDAVG, rounds=3), [auditor])
    reason = "no canary will be played: the coins of all 2 planned canaries say out"
    assert reason in explained(audited)
    [warning] = audited.warnings
    assert (warning.kind, warning.count, warning.total) == ("few-canaries", 0, 2)


def test_seats_that_never_deliver_are_said_to() -> None:
    lost = frozenset((r, n) for r in (1, 2) for n in range(1, NODES + 1))
    _, audited = run_audited(Cell(FEDAVG, rounds=2, lost=lost), [canaries()])
    assert "no canary was played: no seat delivered one that reached a model" in explained(audited)


def test_two_clients_get_no_seats_and_the_reason() -> None:
    least = ("min_train_nodes", "min_evaluate_nodes", "min_available_nodes")
    two = of(FedAvg, **dict.fromkeys(least, 2))
    run, audited = run_audited(Cell(two, nodes=2), [OneShotCanaries()])
    assert not run.trace.swapped
    assert "seats='auto' needs three clients in a round" in explained(audited)


@pytest.mark.parametrize("rounds", [0, 2])
def test_short_runs_are_audited_or_said_to_be_too_short(rounds: int) -> None:
    cell = Cell(FEDAVG, Stateful, rounds=rounds)
    run, audited = run_audited(cell, [canaries(seats=1)])
    assert run.error is None
    assert_unharmed(cell, run)
    assert was_seen(run, audited) or explained(audited)


@pytest.mark.parametrize("plan", [{"seats": NODES + 2}, {"repetitions": 50}], ids=str)
def test_plans_that_are_too_large_are_said_to_be(plan: dict[str, Any]) -> None:
    cell = Cell(FEDAVG, Stateful, rounds=2)
    run, audited = run_audited(cell, [canaries(**plan), Quiet()])
    assert_unharmed(cell, run)
    assert explained(audited)


def test_a_sample_of_the_nodes_is_the_same_as_without() -> None:
    half = {**ALL, "min_train_nodes": 2, "fraction_train": 0.5}
    cell = Cell(lambda: FedAvg(**half), Stateful)
    run, audited = run_audited(cell, [Quiet()])
    assert_same(cell, run)
    run, audited = run_audited(cell, [canaries(seats=1)])
    assert_unharmed(cell, run)
    assert audited.failures == []


def test_a_loop_of_its_own_is_kept() -> None:
    cell = Cell(of(OwnLoop), Stateful)
    run, audited = run_audited(cell, [Quiet()])
    assert_same(cell, run)
    run, audited = run_audited(cell)
    assert_unharmed(cell, run)
    assert was_seen(run, audited)


class Breaking(FedAvg):
    """Raises in the aggregation of round 2."""

    def aggregate_train(self, server_round: int, replies: Iterable[Message]) -> Any:
        if server_round == 2:
            raise OSError("the disk is full")
        return super().aggregate_train(server_round, replies)


def test_a_strategy_that_raises_does_so_as_it_does_alone() -> None:
    cell = Cell(of(Breaking), Stateful)
    assert run_plain(cell).error == "OSError: the disk is full"
    run, _ = run_audited(cell, [Quiet()])
    assert_same(cell, run)
    run, _ = run_audited(cell)
    assert_unharmed(cell, run)


class Raising(Auditor):
    """Fails wherever it can."""

    name = "raising"

    def __init__(self, where: str) -> None:
        def fail(*_: Any, **__: Any) -> Any:
            raise ZeroDivisionError(f"a mistake in {where}")

        setattr(self, where, fail)


@pytest.mark.parametrize("where", ["begin", "limits", "instruct", "bind", "observe", "report"])
def test_an_auditor_that_fails_is_named_and_changes_nothing(where: str) -> None:
    cell = Cell(FEDAVG, Stateful)
    run, audited = run_audited(cell, [Raising(where)])
    assert_same(cell, run)
    assert "raising" in "".join(audited.failures)
    assert f"a mistake in {where}" in "".join(audited.failures)


def test_metrics_hold_findings_only_if_asked_for() -> None:
    cell = Cell(FEDAVG, Stateful)
    ours = [
        {key for metrics in run.result.train_metrics_clientapp.values() for key in metrics}
        for run in (run_audited(cell)[0], run_audited(cell, metrics=True)[0])
    ]
    assert ours[0] == {"train-loss"}
    assert any(key.startswith("one-shot") for key in ours[1])


def test_a_folder_that_is_taken_is_not_written_to(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    cell = Cell(FEDAVG, Stateful)
    out = tmp_path / "audit"
    run_audited(cell, [Quiet()], out=out, name="first")
    kept = {path.name: path.read_bytes() for path in out.iterdir()}
    caplog.clear()
    run, audited = run_audited(cell, [Quiet()], out=out, name="second")
    assert_same(cell, run)
    assert {path.name: path.read_bytes() for path in out.iterdir()} == kept
    [other] = [path for path in tmp_path.iterdir() if path != out]
    assert json.loads((other / "report.json").read_text())["schema"]
    assert other.name in caplog.text or other.name in said(audited, "quiet")


def test_a_folder_that_vanishes_ends_no_training(tmp_path: Path) -> None:
    out = tmp_path / "audit"

    class Cleaning(FedAvg):
        """Clears away all that is not its own in round 2."""

        def aggregate_train(self, server_round: int, replies: Iterable[Message]) -> Any:
            if server_round == 2:
                shutil.rmtree(out, ignore_errors=True)
            return super().aggregate_train(server_round, replies)

    cell = Cell(of(Cleaning), Stateful)
    run, audited = run_audited(cell, [Quiet()], out=out)
    assert_same(cell, run)
    assert str(out) in "".join(audited.failures)


@pytest.mark.parametrize("sends", ["auto", "models"])
def test_seats_stay_honest_until_it_is_known_what_clients_send(sends: str) -> None:
    cell = Cell(FEDAVG, Stateful)
    run, audited = run_audited(cell, sends=sends)
    assert_unharmed(cell, run)
    first = min(server_round for server_round, _ in run.trace.swapped)
    assert first == (2 if sends == "auto" else 1)
    assert was_seen(run, audited)


@pytest.mark.slow
def test_a_panel_for_any_project_says_something_of_every_auditor() -> None:
    cell = Cell(DESCENDS, Gradients, rounds=1)
    panel = passive(seats=1, trials=20)
    run, audited = run_audited(cell, panel)
    assert_unharmed(cell, run)
    for auditor in ("one-shot", "likelihood-ratio", "mutual-information"):
        assert said(audited, auditor) or [f for f in audited.findings() if f.auditor == auditor]


def test_a_guest_reads_no_option_of_our_command_line(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, logger="flwr")
    _, audited = run_audited(Cell(FEDAVG, Stateful), [canaries(seats=1)], out=tmp_path / "run")
    assert [one.kind for one in audited.warnings] == ["few-canaries"]
    made = read_run(tmp_path / "run")
    page = re.sub("<(style|script).*?</(style|script)>", "", pages.page([made]), flags=re.DOTALL)
    report = (tmp_path / "run/report.json").read_text()
    options = re.compile("|".join(rf"--{kebab(name)}\b" for name in Config.__dataclass_fields__))
    for words in (caplog.text, report, page, "\n".join(export.text(made))):
        assert "OneShotCanaries(seats=" in words
        assert options.search(words) is None
        assert "run_sim" not in words
    assert "OneShotCanaries(seats=2)" in page  # of six clients
