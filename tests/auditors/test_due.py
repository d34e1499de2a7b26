"""Which rounds an auditor looks at."""

from __future__ import annotations

import pytest

from leakmeter.auditors.auditor import Due


@pytest.mark.parametrize("every", [-1, 0, 1, 2, 3, 7])
def test_as_many_rounds_are_audited_as_were_counted_beforehand(every: int) -> None:
    for num_rounds in (*range(18), 31, 32, 33):
        due = Due(every, num_rounds)
        assert len(due) == sum(r in due for r in range(1, num_rounds + 1)), num_rounds


def test_doubling_audits_powers_of_two_and_the_last_round() -> None:
    assert [r for r in range(1, 31) if r in Due(-1, 30)] == [1, 2, 4, 8, 16, 30]
    assert [r for r in range(1, 33) if r in Due(-1, 32)] == [1, 2, 4, 8, 16, 32]


def test_a_schedule_below_minus_one_is_refused() -> None:
    with pytest.raises(ValueError, match=r"every must be .*-1.*got -2"):
        Due(-2, 5)
