"""What a run of secure sums may say at its end."""

from __future__ import annotations

import pytest

from leakmeter.strategies.secure_sum.masked import Tally
from leakmeter.strategies.secure_sum.topology import Risks, Topology


@pytest.mark.parametrize("neighbours", [None, "auto"])
def test_honest_clients_and_colluders_of_a_finding_add_up(neighbours: str | None) -> None:
    # On sparse graphs 50 colluders were taken off the count, and 24 stated.
    risks = Risks()
    plan = Topology(threshold=2 / 3, neighbours=neighbours, risks=risks).plan(1000)
    [finding] = Tally().with_round(990, plan, idle=10).findings(risks)
    assert finding.threat_model.colluders > 0
    assert finding.value == 990 - 10 - finding.threat_model.colluders
