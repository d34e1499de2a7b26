"""What a prompt or a notebook shows of auditors, findings and audited strategies: one line each."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from flwr.serverapp.strategy import FedAvg, FedProx

from leakmeter.auditors import Audited, Auditor, LikelihoodRatio, OneShotCanaries, passive
from leakmeter.auditors.finding import ErrorCurve
from leakmeter.strategies import Masked
from tests.helpers.findings import finding


class Movement(Auditor):
    """Has an array, a number that is the default, and one that is not."""

    def __init__(self, directions: np.ndarray, order: float = 2.0, *, every: int = 1) -> None:
        self.directions, self._order, self.every = directions, order, every


def test_an_auditor_shows_how_it_was_made_and_no_array() -> None:
    assert repr(Movement(np.zeros(9), every=3)) == "Movement(every=3)"
    assert repr(Movement(np.zeros(9), 1.0)) == "Movement(order=1.0)"
    assert repr(OneShotCanaries(seats=2)) == "OneShotCanaries(seats=2)"


def test_every_public_auditor_has_one_short_line() -> None:
    for auditor in passive(seats=2, simulated=True):
        assert repr(auditor).startswith(f"{type(auditor).__name__}(")
        assert len(repr(auditor)) < 120
        assert " at 0x" not in repr(auditor)
    assert any(isinstance(one, LikelihoodRatio) for one in passive(seats=2, simulated=True))


def test_an_audited_strategy_shows_what_is_inside_and_where_its_log_is(tmp_path: Path) -> None:
    inner = Masked(FedProx(proximal_mu=0.1))
    shown = repr(Audited(inner, [OneShotCanaries(seats=2)], out=tmp_path / "mine"))
    out = str(tmp_path / "mine")
    assert shown == f"Audited(Masked around FedProx, auditors: one-shot, out={out!r})"
    assert repr(Audited(FedAvg(), [])) == "Audited(FedAvg, auditors: none)"


def test_a_finding_is_one_line_that_is_never_stronger_than_its_number() -> None:
    many = tuple(np.linspace(0.0, 1.0, 500))
    curve = ErrorCurve((1e-5,), (3.7,), (9.0,), many, many[::-1], many, many[::-1], 0.1)
    proven = {"kind": "lower_bound", "delta": 1e-5, "confidence": 0.95, "details": (curve,)}
    assert repr(finding(value=3.69987, **proven)) == (
        "Finding(mine: epsilon ≥ 3.69 at δ = 1e-05 (lower_bound, confidence 0.95), "
        "outsider, final model, the run)"
    )
    most = repr(finding(value=1.241, kind="guarantee", server_round=3))
    assert most.startswith("Finding(mine: epsilon ≤ 1.25 (guarantee), ")
    assert most.endswith(", round 3)")
