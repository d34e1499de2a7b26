"""Findings of one audit share their fields; trials become bounds in one place."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from leakmeter.auditors.audited_round import Claims, Trials
from leakmeter.auditors.bounds.lower_bound import BandAndFixed, epsilon_lower_bound
from leakmeter.auditors.finding import ThreatModel
from leakmeter.auditors.rng import stream
from leakmeter.auditors.wording import Assumption

ATTACKER = ThreatModel(observer="server", sees="round sum", holds="two updates", game="rerun")
CLAIMS = Claims("mine", ATTACKER, seed=7, assumptions=(Assumption.KNOWN_SEATS,))


def trials(gap: float, seed: int = 0, count: int = 300) -> Trials:
    """Return trials of two Gaussians, with a threshold half way."""
    first, second = stream(seed, "trials").standard_normal((2, count))
    return Trials(first + gap, second, gap / 2)


def test_a_bound_comes_with_the_shared_fields_and_assumptions() -> None:
    played = trials(3.0)
    found = replace(CLAIMS, server_round=4).proof(played, {"target": 2})
    plain = epsilon_lower_bound(
        played.first, played.second, delta=1e-5, rule=BandAndFixed(played.threshold)
    )
    assert found.value == plain.value > 1
    assert found.assumptions == (*plain.assumptions, Assumption.KNOWN_SEATS)
    assert (found.auditor, found.threat_model, found.seed) == ("mine", ATTACKER, 7)
    assert (found.server_round, found.adjacency, found.unit) == (4, "replace", "client")
    assert found.details[0].server_round == 4


def test_the_largest_of_several_bounds_shares_the_confidence_among_all_looks() -> None:
    played = [trials(1.0, 1), trials(3.0, 2), trials(2.0, 3)]
    best, bound = CLAIMS.largest(played, looks=5)
    assert best == 1
    assert bound.value == played[1].bound(1e-5, 0.99).value < played[1].bound(1e-5, 0.95).value
    assert bound.confidence == 0.95


def test_without_a_fixed_threshold_the_band_alone_decides() -> None:
    played = trials(8.0)  # no trial errs, so the threshold that was fixed shows more
    free = replace(played, threshold=None)
    assert free.bound(1e-5, 0.95).value < played.bound(1e-5, 0.95).value
    assert Assumption.FIXED_THRESHOLD not in free.bound(1e-5, 0.95).assumptions


def test_separation_is_in_standard_deviations_and_knows_worlds_without_any() -> None:
    assert trials(2.0, count=20_000).separation == pytest.approx(2.0, abs=0.05)
    assert Trials(np.ones(5), np.zeros(5)).separation == np.inf
    assert Trials(np.ones(5), np.ones(5)).separation == 0.0


def test_a_diagnostic_claims_nothing() -> None:
    found = CLAIMS.diagnostic("separation", 2.0, "how", {"pilot": 1.0})
    assert (found.kind, found.confidence, found.assumptions) == ("diagnostic", None, ())
    assert found.facts == {"pilot": 1.0}
