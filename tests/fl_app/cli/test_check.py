"""`leakmeter check`: honest replies are equal with and without the audit, or the reason is told."""

from __future__ import annotations

from pathlib import Path

import pytest

from leakmeter.auditors.hook import mods
from leakmeter.fl_app.audit_app import check, session
from leakmeter.fl_app.cli.main import main
from tests.helpers.apps import CLIENT, FEDAVG, LEGACY_CLIENT, LEGACY_SERVER, OWN_LOOP, app_in


def moving(message: object, context: object, call_next: object) -> object:
    """A mod that draws from numpy's global generator, as no audit may."""
    import numpy as np

    np.random.normal()  # noqa: NPY002
    return mods.canary_mod(message, context, call_next)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "apps",
    [(CLIENT, FEDAVG), (CLIENT, OWN_LOOP)],
    ids=["fedavg", "loop"],
)
def test_an_app_on_a_global_generator_trains_as_without_the_audit(
    apps: tuple[str, str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["check", str(app_in(tmp_path, *apps))]) == 0
    said = capsys.readouterr().out
    assert "equal: " in said
    assert " 0 seats" not in said
    assert not (tmp_path / "runs").exists()


def test_an_audit_that_moves_a_generator_is_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for module in (check, session):
        monkeypatch.setattr(module, "MODS", (moving,))
    assert main(["check", str(app_in(tmp_path))]) == 3
    said = capsys.readouterr().out
    assert "different: " in said
    assert "arrays." in said
    assert "a generator that all code of the process shares" in said


def test_an_app_with_draws_of_its_own_cannot_be_compared(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    client = CLIENT.replace("context, np.random)", "context, np.random.default_rng())")
    assert main(["check", str(app_in(tmp_path, client))]) == 4
    assert "cannot tell: " in capsys.readouterr().out


def test_a_metric_alone_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    client = CLIENT.replace('"drawn": float(new[0])', '"seconds": time.perf_counter()')
    client = f"import time\n{client}"
    assert main(["check", str(app_in(tmp_path, client))]) == 4
    said = capsys.readouterr().out
    assert "client 0, training 1: metrics.seconds\n" in said


def test_an_app_that_fails_is_no_comparison(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    app = app_in(tmp_path, server=f"{FEDAVG}    raise ValueError('no disk')\n")
    assert main(["check", str(app)]) == 1
    assert "raise ValueError('no disk')" in capsys.readouterr().err


def test_replays_leave_no_trace(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["--clients", "5", "--auditors", "one-shot,likelihood-ratio"]
    assert main(["check", str(app_in(tmp_path)), *words]) == 0
    assert "equal: 14 trainings of honest clients" in capsys.readouterr().out


def test_the_first_round_of_a_legacy_app_is_equal(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    # Flower's legacy loop adds replies in the order in which threads end, so later rounds differ.
    words = ["--run-config", "num-server-rounds=1"]
    assert main(["check", str(app_in(tmp_path, LEGACY_CLIENT, LEGACY_SERVER)), *words]) == 0
    assert "equal: " in capsys.readouterr().out
