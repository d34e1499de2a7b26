"""The panel calls every auditor, whatever another one does."""

from __future__ import annotations

import logging
from collections.abc import Sequence

import numpy as np
import pytest

from leakmeter.auditors import Auditor, Claim, Finding, RoundView
from leakmeter.auditors.auditor import DivergedError, Due, RoundFacts
from leakmeter.auditors.finding import Limitation
from leakmeter.auditors.hook.panel import Panel
from tests.helpers.findings import finding


class Careful(Auditor):
    """Judges no round whose model is not finite."""

    name = "careful"

    def observe(self, view: RoundView) -> Sequence[Finding]:
        if not np.isfinite(view.released).all():
            raise DivergedError
        return [finding(auditor=self.name, server_round=view.server_round)]


def view(server_round: int, value: float) -> RoundView:
    return RoundView(server_round, np.zeros(2), {}, np.full(2, value), RoundFacts())


def test_a_round_that_diverged_is_a_limitation_and_the_auditor_stays() -> None:
    panel = Panel([Careful()])
    found = [panel.observe(view(i, value)) for i, value in enumerate((np.nan, 1.0, np.inf), 1)]
    assert [[f.server_round for f in some] for some in found] == [[], [2], []]
    assert [auditor.name for auditor in panel.auditors] == ["careful"]
    assert panel.failures == []
    assert panel.limitations == (Limitation("careful", str(DivergedError())),)  # said once


def test_an_error_without_a_text_is_named(caplog: pytest.LogCaptureFixture) -> None:
    panel = Panel([])
    with panel.keep_training_on_error("the round is not known"):
        raise MemoryError
    assert caplog.messages == ["the round is not known: MemoryError"]


def test_the_limits_of_a_run_are_limited() -> None:
    panel = Panel([Auditor()])
    for number in range(500):  # as clients can make them up, by names of mods
        panel.note(f"mod_{number} is in the way")
    assert len(panel.limitations) == 60
    assert panel.limitations[0].text == "mod_0 is in the way"


@pytest.mark.parametrize(("each", "lines"), [(10.0, 1), (5.0, 0), (None, 0)])
def test_a_long_audit_is_announced_once_before_it_starts(
    each: float | None, lines: int, caplog: pytest.LogCaptureFixture
) -> None:
    said: list[int] = []

    class Known(Careful):
        @property
        def due(self) -> Due:
            return Due(2, 20)

        def seconds(self, view: RoundView) -> float | None:
            return each

        def observe(self, view: RoundView) -> Sequence[Finding]:
            said.append(len(caplog.messages))
            return super().observe(view)

    panel = Panel([Known()])
    with caplog.at_level(logging.WARNING, logger="flwr"):
        for server_round in range(1, 4):
            panel.observe(view(server_round, 1.0))
    assert said == [lines] * 3
    if lines:
        assert caplog.messages[0] == (
            "careful: 10 rounds to audit, about 2 minutes; every=-1 audits fewer"
        )


def test_fewer_rounds_are_advised_only_where_there_are_several(
    caplog: pytest.LogCaptureFixture,
) -> None:
    class Once(Careful):
        @property
        def due(self) -> Due:
            return Due(0, 20)

        def seconds(self, view: RoundView) -> float | None:
            return 240.0

    with caplog.at_level(logging.WARNING, logger="flwr"):
        Panel([Once()]).observe(view(1, 1.0))
    assert caplog.messages == [
        "careful: 1 round to audit, about 4 minutes; fewer trials or draws take less"
    ]


@pytest.mark.parametrize(("took", "lines"), [(10.0, 1), (5.0, 0)])
def test_a_long_audit_is_announced_after_its_first_round(
    took: float, lines: int, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    clock = [0.0]

    class Slow(Careful):
        @property
        def due(self) -> Due:
            return Due(2, 20)

        def observe(self, view: RoundView) -> Sequence[Finding]:
            clock[0] += took
            return super().observe(view)

    monkeypatch.setattr("leakmeter.auditors.hook.panel.time.monotonic", lambda: clock[0])
    panel = Panel([Slow()])
    with caplog.at_level(logging.WARNING, logger="flwr"):
        for server_round in range(1, 4):
            panel.observe(view(server_round, 1.0))
    assert len(caplog.messages) == lines
    if lines:
        assert caplog.messages[0].startswith("careful: 9 more rounds to audit, about 2 minutes")


def test_auditors_meet_the_others_and_know_the_claims_before_confidence_is_shared() -> None:
    class Meeting(Careful):
        met: Sequence[Auditor] = ()

        def join(self, others: Sequence[Auditor]) -> None:
            self.met, self.num_bounds = others, len(self.claims)

    class Shy(Careful):
        name = "shy"

        def join(self, others: Sequence[Auditor]) -> None:
            raise RuntimeError("no")

    one, other = Meeting(), Meeting()
    other.name = "other"
    panel = Panel([one, Shy(), other])
    panel.begin(10, 2, claims=(Claim(1.0), Claim(2.0)))
    assert [each.name for each in one.met] == ["shy", "other"]
    assert [each.name for each in other.met] == ["careful"]  # the one in between is left out
    assert panel.failures == ["shy, before round 1: RuntimeError: no"]
    assert one.confidence == other.confidence == pytest.approx(1 - 0.05 / 4)


def test_what_an_auditor_has_noticed_in_the_run_is_a_limitation() -> None:
    class Noticing(Careful):
        noticed = ("a mod is in the way",)

    panel = Panel([Noticing()])
    panel.observe(view(1, 1.0))
    panel.report()
    assert panel.limitations == (Limitation("careful", "a mod is in the way"),)
