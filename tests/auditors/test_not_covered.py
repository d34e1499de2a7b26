"""An auditor of clients beside a guarantee for records: the same numbers, with more words."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from leakmeter.auditors.auditor import Auditor, RoundFacts, RoundView
from leakmeter.auditors.canaries.auditor import OneShotCanaries
from leakmeter.auditors.checks import check_auditor
from leakmeter.auditors.finding import Finding, Unit
from leakmeter.auditors.not_covered import WORDS, NotCovered


class Says(Auditor):
    """Reports one finding about each unit."""

    name, wants_truth = "says", True
    reads = frozenset({"sent"})

    def observe(self, view: RoundView) -> Sequence[Finding]:
        units: tuple[Unit, Unit] = ("client", "record")
        return [
            Finding(
                value=1.0, kind="estimate", rule="made up", auditor=self.name, quantity="epsilon",
                threat_model="somebody", observer="server", unit=unit, assumptions=("first",),
            )
            for unit in units
        ]  # fmt: skip


def test_only_findings_about_clients_get_the_words() -> None:
    view = RoundView(1, np.zeros(3), {}, np.zeros(3), RoundFacts())
    client, record = NotCovered(Says()).observe(view)
    bare_client, bare_record = Says().observe(view)
    assert record == bare_record
    assert client.threat_model == f"somebody; {WORDS}"
    assert client.assumptions[0] == "first"  # what it rests on most stays in front
    plain = replace(client, threat_model="somebody", assumptions=("first",))
    assert plain == bare_client


def test_updates_with_noise_of_their_own_are_named() -> None:
    view = RoundView(1, np.zeros(3), {}, np.zeros(3), RoundFacts())
    [client, _] = NotCovered(Says(), is_frozen=True).observe(view)
    assert "drawn once" in " ".join(client.assumptions)
    [client, _] = NotCovered(Says()).observe(view)
    assert "drawn once" not in " ".join(client.assumptions)


def test_it_passes_for_the_auditor_inside() -> None:
    one = NotCovered(Says())
    assert (one.name, one.reads, one.wants_truth) == ("says", frozenset({"sent"}), True)
    check_auditor(lambda: NotCovered(OneShotCanaries(seats=2)))
