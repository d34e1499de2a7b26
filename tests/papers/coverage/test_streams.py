"""Streams bet as the bound does; bets that pay δ for each guess refute the true ε too often."""

from __future__ import annotations

import numpy as np
import pytest

from leakmeter.auditors.bounds.anytime import AnytimeBound
from leakmeter.auditors.rng import stream
from leakmeter.papers.coverage import streams
from leakmeter.papers.coverage.case import most_allowed
from leakmeter.papers.coverage.streams import COINS, ROUNDS, canary_wealth, cases
from leakmeter.papers.coverage.waiting import bounds_of, rounds_until
from tests.papers.small import RESULTS, Reproduced, read_cells

CASES = {case.key: case for case in cases()}


def test_bets_that_pay_delta_for_each_guess_cross_too_often() -> None:
    # With chance δ everything is shown, so the shares are at least δ: 2,000 streams, ± 1 %.
    for key, least in (("per-guess-0.1", most_allowed(2000)), ("per-guess-0.2", 0.17)):
        assert CASES[key].crosses(stream(1, "crossed", key), 2000).mean() > least


@pytest.mark.parametrize("key", ["response", "gaussian-8", "revealed-each"])
def test_streams_bet_as_the_bound_itself_does(key: str) -> None:
    """Wealth after every round, of one stream after the other through `AnytimeBound`."""
    epsilon, rng = CASES[key].epsilon, stream(2, "twin", key)
    p, is_in = streams._response(epsilon, 0.0, rng, (5, ROUNDS, COINS))
    p[:2] **= 3  # so that some wealth is large
    fast = canary_wealth(epsilon, p, is_in)
    for one in range(5):
        bound = AnytimeBound(delta=0.0, planned=ROUNDS * COINS, candidates=[epsilon])
        for now in range(ROUNDS):
            bound.add_canaries(np.log(p[one, now]), is_in[one, now])
            assert bound.log_wealth()[0] == pytest.approx(fast[one, now], abs=1e-9)


def test_every_mechanism_that_bets_must_survive_is_there() -> None:
    names = " ".join(case.name for case in CASES.values())
    for part in ("no leak", "Laplace", "Gaussian", "randomised response", "dependent rounds"):
        assert part in names
    for part in ("shared coins", "with chance δ all canaries are shown", "trials"):
        assert part in names
    assert {case.delta > 0 for case in CASES.values() if case.is_sound} == {True, False}


@pytest.mark.slow
def test_a_small_version_has_all_rows_and_figures(reproduced: Reproduced) -> None:
    small = reproduced("anytime-refutes")
    assert {row["noise"].split(",")[0] for row in small.rows} == {
        "Flower's local noise",
        "the right noise",
    }
    assert len(small.table.figures["anytime.svg"]) == 2


def test_the_kept_results_refute_flowers_noise_and_not_the_right_one() -> None:
    cells = read_cells(RESULTS / "anytime-refutes")
    waited = {key: cell["rounds"]["anytime"] for key, cell in cells.items() if "rounds" in cell}
    flower, right = waited["flower-noise-30-rounds-200"], waited["right-noise-30-rounds-200"]
    assert None not in flower["50"]
    assert np.median(flower["50"]) <= 5
    refuted = sum(r is not None for r in right["50"]) / 200
    assert refuted <= most_allowed(200)


@pytest.mark.slow
def test_bounds_of_a_run_never_fall_and_rounds_are_counted_from_one() -> None:
    found = bounds_of("flower", 0)
    for values in found.values():
        assert (np.diff(values) >= 0).all()
    assert rounds_until(np.array([0.0, 50.0, 60.0]), 50.0) == 2
    assert rounds_until(np.array([0.0, 50.0, 60.0]), 70.0) is None
