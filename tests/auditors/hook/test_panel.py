"""The panel calls every auditor, whatever another one does."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from leakmeter.auditors import Auditor, Finding, Limitation, RoundFacts, RoundView
from leakmeter.auditors.auditor import DivergedError
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


def test_the_limits_of_a_run_are_limited() -> None:
    panel = Panel([Auditor()])
    for number in range(500):  # as clients can make them up, by names of mods
        panel.note(f"mod_{number} is in the way")
    assert len(panel.limitations) == 60
    assert panel.limitations[0].text == "mod_0 is in the way"
