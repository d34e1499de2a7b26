"""What in a run cannot be: a lower bound above a guarantee that covers it."""

from __future__ import annotations

from leakmeter.auditors import Finding
from leakmeter.auditors.verdict import meaning
from leakmeter.fl_app.report.judge.of_run import verdict_of
from tests.fl_app.report.judge.makers import bound, conditional, guarantee, run


def said(*found: Finding) -> list[str]:
    wrong = ": an assumption of one of them does not hold"
    ends = [meaning.ends(row) for row in verdict_of(run(*found)).rows]
    return [words for words in ends if words.endswith(wrong)]


def test_a_bound_above_its_guarantee_is_a_contradiction() -> None:
    # Whoever sees noised sums sees the models too, so two attackers are named.
    words = said(guarantee(1.0), bound(2.0))
    assert len(words) == 2
    assert said(guarantee(2.5), bound(2.0)) == []
    assert said(guarantee(1.0), conditional(2.0)) == []
    assert said(guarantee(1.0, delta=1e-3), bound(2.0)) == []  # another promise
