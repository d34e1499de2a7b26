"""Parts of a run add up to the run."""

from __future__ import annotations

import itertools

import pytest

from benchmarks.job_parts import PARTS, REST, WHOLE, Clock


def test_parts_count_without_those_inside_them_and_add_up() -> None:
    ticks = itertools.count()  # each look at the clock is one second
    clock = Clock(lambda: float(next(ticks)))

    def sampled() -> object:
        return (value for value in (1, 2))

    steps = clock.timed("sampled", sampled)
    with clock.part("audit"):
        assert list(steps()) == [1, 2]
    # Four visits to what is sampled: the call, two values and the end.
    assert clock.spent == {REST: 1, "audit": 5, "sampled": 4}


def test_parts_of_a_rehearsal_count_for_it() -> None:
    clock = Clock(lambda: 0.0)
    with clock.part(WHOLE), clock.part("training"):
        pass
    assert set(clock.spent) == {REST, WHOLE}


def test_an_error_closes_its_part() -> None:
    ticks = itertools.count()
    clock = Clock(lambda: float(next(ticks)))
    with pytest.raises(ZeroDivisionError):
        clock.timed("part", lambda: 1 / 0)()
    with clock.part("other"):
        pass
    assert clock.spent == {REST: 2, "part": 1, "other": 1}


def test_every_part_has_names_of_its_own() -> None:
    names = list(itertools.chain(*PARTS.values()))
    assert len(names) == len(set(names))
