"""What all rounds together reveal about a client's data, where the truth is known."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from leakmeter.auditors import DrawPlan, Finding, MutualInformation, RoundView
from leakmeter.auditors.auditor import Project, RoundFacts
from leakmeter.auditors.checks import check_auditor
from leakmeter.auditors.finding import Game
from leakmeter.auditors.information.draws import Draws
from leakmeter.auditors.information.over_rounds import (
    PairedDraws,
    directions_of,
    draw_pairs,
    over_rounds,
)
from leakmeter.auditors.information.theory import NATS_PER_BIT, Theory, UpdateEntropy
from leakmeter.auditors.rng import stream as numbers
from leakmeter.auditors.sampling.sampler import Moments, Stream, UpdateSampler
from leakmeter.auditors.values import Vector
from leakmeter.auditors.wording import claim
from tests.helpers.refusals import refuses

DIM, PAIRS = 3, 1500
STRENGTHS = (1.0, 2.0, 1.0)  # of the data in the updates of each round
QUANTITY = "information about the data over all rounds"


@dataclass(frozen=True)
class DataSampler(UpdateSampler):
    """Update = first entry of the model x the client's data + batch, both standard normal."""

    game: Game = "independent"
    data: tuple[str | int, ...] | None = None

    def keeping(self, stream: Stream) -> DataSampler:
        return replace(self, data=tuple(stream))

    def sample(
        self,
        model: Vector,
        clients: Sequence[int],
        draws: int,
        stream: Stream,
        *,
        project: NDArray[np.float64] | None = None,
    ) -> Iterator[NDArray[np.floating]]:
        shape = (draws, len(clients), len(model))
        data = numbers(0, *(self.data or stream), "data").standard_normal(shape)
        rows = model[0] * data + numbers(0, *stream, "batch").standard_normal(shape)
        yield rows if project is None else rows @ project

    def moments(self, model: Vector, clients: Sequence[int], draws: int, stream: Stream) -> Moments:
        raise NotImplementedError


def paired(
    strength: float,
    server_round: int,
    hidden: Sequence[int],
    noise_std: float = 0.0,
    pairs: int = PAIRS,
) -> PairedDraws:
    model = np.array([strength, 0.0, 0.0])
    drawn = Draws(DataSampler(), model, [0])
    halves = draw_pairs(drawn, pairs, DIM, names=("test",), server_round=server_round)
    assert halves is not None
    return PairedDraws(server_round, tuple(hidden), noise_std, halves)


def exact(
    strengths: Sequence[float], cohorts: Sequence[Sequence[int]], noise_std: float = 0.0
) -> float:
    """Return the information in nats of alike clients, of whom 0 is the target."""
    between = np.outer(strengths, strengths)
    counts = np.array([[len(set(a) & set(b)) for b in cohorts] for a in cohorts])
    sums = counts * (between + np.eye(len(strengths))) + noise_std**2 * np.eye(len(strengths))
    logs = [np.linalg.slogdet(one)[1] for one in (sums, sums - between)]
    return DIM / 2 * float(logs[0] - logs[1])


@pytest.mark.parametrize(
    ("cohorts", "noise_std"),
    [
        ([range(4)] * 3, 0.0),
        ([range(2)] * 3, 0.0),
        ([range(4)] * 3, 2.0),
        ([(0, 1, 2), (0, 1, 3), (0, 4, 5)], 0.0),
    ],
)
def test_gaussian_rounds_give_the_closed_form(
    cohorts: Sequence[Sequence[int]], noise_std: float
) -> None:
    rounds = [
        paired(a, t, c, noise_std) for t, (a, c) in enumerate(zip(STRENGTHS, cohorts, strict=True))
    ]
    found, truth = over_rounds(rounds, 0, seed=0), exact(STRENGTHS, cohorts, noise_std)
    assert found is not None
    assert found.figure.std_error is not None
    # Fixed seed; a correct estimator is beyond four standard errors in 1 of 16,000 cases.
    assert abs(found.figure.nats - truth) < 4 * found.figure.std_error
    assert found.figure.std_error < truth / 8
    assert found.is_told_from_zero
    assert found.rounds == 3
    # Later rounds repeat what earlier ones said.
    single = sum(exact([a], [c], noise_std) for a, c in zip(STRENGTHS, cohorts, strict=True))
    assert found.single_rounds == pytest.approx(single, rel=0.2)
    if len({tuple(c) for c in cohorts}) == 1 and not noise_std:
        assert found.figure.nats < found.single_rounds


def test_batches_alone_cannot_be_told_from_zero() -> None:
    seen = []
    for run in range(8):
        rounds = [paired(0.0, 10 * run + t, range(4), pairs=200) for t in range(2)]
        found = over_rounds(rounds, 0, seed=run)
        assert found is not None
        assert found.figure.nats < 0.1
        seen.append(found.is_told_from_zero)
        if not found.is_told_from_zero:
            assert "may be zero" in found.figure.rule
    assert sum(seen) <= 2  # one in twenty on average; more than two of eight with 6e-3


def test_only_rounds_of_the_client_count() -> None:
    rounds = [paired(1.0, 1, (0, 1)), paired(1.0, 2, (1, 2))]
    found = over_rounds(rounds, 0, seed=0)
    assert found is not None
    assert found.rounds == 1
    assert over_rounds(rounds, 7, seed=0) is None


def test_directions_are_as_many_as_the_pairs_allow() -> None:
    assert directions_of(400, 20, 8) == 8
    assert directions_of(100, 10, 8) == 5
    assert directions_of(1000, 2, None) == 8
    for pairs, rounds in ((50, 30), (5, 1)):  # 60 are needed, and 20 in any case
        with refuses("pairs"):
            directions_of(pairs, rounds, 8)


def audited(strength: float, **theory: Any) -> Finding:
    """Return the finding of the auditor over three rounds of four clients."""
    auditor = MutualInformation(
        DataSampler(), plan=DrawPlan(draws=8, rank=DIM, pairs=PAIRS), theory=Theory(**theory)
    )
    auditor.begin(DIM, 3)
    model = np.array([strength, 0.0, 0.0])
    for server_round in (1, 2, 3):
        facts = RoundFacts(num_clients=4, total_weight=4.0)
        replies = {c: np.zeros(DIM) for c in range(4)}
        auditor.observe(RoundView(server_round, model, replies, model, facts))
    [found] = [f for f in auditor.report() if f.quantity == QUANTITY]
    return found


def test_the_auditor_reports_it_once_for_the_run() -> None:
    found = audited(2.0)
    truth = exact([2.0] * 3, [range(4)] * 3) / NATS_PER_BIT
    assert found.value == pytest.approx(truth, rel=0.2)
    assert (found.kind, found.server_round, found.threat_model.participations) == (
        "approximation",
        None,
        3,
    )
    assert found.facts["told_from_zero"] is True
    assert found.null_band is not None
    assert found.null_band[1] < found.value
    single = found.facts["single_rounds_bits"]
    assert isinstance(single, float)
    assert single > found.value


def test_a_figure_that_may_be_zero_says_so_where_it_is_printed() -> None:
    found = audited(0.0)
    assert found.facts["told_from_zero"] is False
    assert "may be zero" in claim(found)
    assert "may be zero" in found.rule


def test_the_entropy_of_the_records_counts_once() -> None:
    found = audited(2.0, limit=lambda _: UpdateEntropy(records=0.1, batches=5.0, alone=5.1))
    assert found.value == pytest.approx(0.1 / NATS_PER_BIT)
    assert found.saturated


def test_other_games_are_named_before_training() -> None:
    plan = DrawPlan(draws=8, rank=2, pairs=40)
    project = Project(dim=DIM, num_rounds=2, clients=6)
    (said,) = MutualInformation(DataSampler("rerun"), plan=plan).limits(project)
    assert "measured in the game independent only" in said
    auditor = MutualInformation(DataSampler(), plan=replace(plan, pairs=10**5))
    auditor.begin(DIM, 2)
    (said,) = auditor.limits(project)
    assert "trains a client 400,016 times more, 200,008 times in each audited round" in said


def test_it_keeps_the_contract_of_auditors() -> None:
    plan = DrawPlan(draws=8, rank=2, pairs=24)
    check_auditor(lambda: MutualInformation(DataSampler(), plan=plan, every=3))
