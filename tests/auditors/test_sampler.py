"""What every sampler has without writing it, and one sampler for each round."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import pytest

from leakmeter.auditors.auditor import Project, RoundFacts, RoundMessages, RoundView
from leakmeter.auditors.finding import Game
from leakmeter.auditors.sampling.sampler import Moments, Stream, UpdateSampler, sampler_of_round

VIEW = RoundView(2, np.zeros(3), {}, np.zeros(3), RoundFacts())


class Counting(UpdateSampler):
    """A client adds its number, times the draw's; the least that a sampler must write."""

    game: Game = "rerun"

    def sample(
        self, model: Any, clients: Sequence[int], draws: int, stream: Stream, *, project: Any = None
    ) -> Iterator[Any]:
        for first in range(0, draws, 2):
            chunk = np.arange(first, min(first + 2, draws))
            rows = chunk[:, None, None] * np.asarray(clients)[None, :, None] * np.ones(3)
            yield rows if project is None else rows @ project

    def moments(self, model: Any, clients: Sequence[int], draws: int, stream: Stream) -> Moments:
        raise NotImplementedError


class Shared(Counting):
    """The same where clients share one data set."""

    game: Game = "partition"


def test_a_sampler_writes_only_what_it_needs() -> None:
    sampler = Counting()
    assert (sampler.scale, sampler.free, sampler.has_noise) == (1.0, None, False)
    assert sampler.limits(Project(3, 1)) == ()
    sampler.bind(RoundMessages(None, {}, None, None, "num-examples"))  # type: ignore[arg-type]
    assert sampler.for_round(VIEW) is sampler


def test_sums_are_the_rows_summed_over_the_clients() -> None:
    found = np.concatenate(list(Counting().sums(np.zeros(3), [1, 4], 3, ("a",))))
    assert found.tolist() == [[0.0] * 3, [5.0] * 3, [10.0] * 3]
    half = np.full((3, 1), 0.5)
    found = np.concatenate(list(Counting().sums(np.zeros(3), [1, 4], 3, ("a",), project=half)))
    assert found.tolist() == [[0.0], [7.5], [15.0]]


class Independent(Counting):
    """The same where clients draw from all records."""

    game: Game = "independent"


@pytest.mark.parametrize("kind", [Counting, Independent])
def test_only_games_that_hold_records_out_set_them_apart(kind: type[Counting]) -> None:
    sampler = kind()
    assert sampler.excluding_drawn(0, ("a",), [1]) is sampler
    assert sampler.excluding_real(0) is sampler
    with pytest.raises(NotImplementedError, match="Shared must define excluding_drawn"):
        Shared().excluding_drawn(0, ("a",), [1])
    with pytest.raises(NotImplementedError, match="Shared must define excluding_real"):
        Shared().excluding_real(0)


def test_a_function_gives_each_round_its_own_sampler() -> None:
    made = Counting()
    assert sampler_of_round(lambda view: made if view.server_round == 2 else Shared(), VIEW) is made
    assert sampler_of_round(made, VIEW) is made
