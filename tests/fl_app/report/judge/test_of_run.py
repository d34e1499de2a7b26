"""What in a run cannot be: a lower bound above a guarantee that covers it."""

from __future__ import annotations

from leakmeter.auditors import Finding
from leakmeter.fl_app.report.judge.of_run import contradictions, verdict_of
from tests.fl_app.report.judge.makers import bound, conditional, guarantee, run


def said(*found: Finding) -> list[str]:
    return contradictions(verdict_of(run(*found)))


def test_a_bound_above_its_guarantee_is_a_contradiction() -> None:
    # Whoever sees noised sums sees the models too, so two attackers are named.
    words = said(guarantee(1.0), bound(2.0))
    assert len(words) == 2
    assert all("an assumption of one of them does not hold" in one for one in words)
    assert said(guarantee(2.5), bound(2.0)) == []
    assert said(guarantee(1.0), conditional(2.0)) == []
    assert said(guarantee(1.0, delta=1e-3), bound(2.0)) == []  # another promise
