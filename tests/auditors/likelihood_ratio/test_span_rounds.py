"""The span condition on rounds, and the sum of few directions that hides nothing."""

from __future__ import annotations

import importlib.util
from collections.abc import Iterator, Sequence
from types import ModuleType

import numpy as np
import pytest
from numpy.typing import NDArray

from leakmeter.auditors._types import Vector
from leakmeter.auditors.auditor import RoundFacts, RoundView
from leakmeter.auditors.likelihood_ratio.auditor import LikelihoodRatio
from leakmeter.auditors.likelihood_ratio.game import Effort
from leakmeter.auditors.likelihood_ratio.span_rounds import span_of_rounds, span_of_updates
from leakmeter.auditors.rng import stream
from leakmeter.auditors.sampler import Stream
from tests.helpers.project import ROOT

EXAMPLE = ROOT / "examples" / "sum_of_few_directions.py"


@pytest.fixture(scope="module")
def example() -> ModuleType:
    spec = importlib.util.spec_from_file_location("sum_of_few_directions", EXAMPLE)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_example_is_separated_by_support(example: ModuleType) -> None:
    found = example.span()
    assert found.separated
    assert found.idle_columns == 10
    assert found.rank == 30


def test_the_example_is_found_with_certainty(example: ModuleType) -> None:
    bare = example.audit()
    assert bare.saturated  # as much as so many trials can ever show
    assert bare.value > 3.5


def test_noise_in_the_missing_directions_ends_it(
    example: ModuleType, capsys: pytest.CaptureFixture[str]
) -> None:
    from leakmeter.auditors.gaussian.pair import epsilon_gaussian

    first, second = example.candidates()
    most = epsilon_gaussian(example.DELTA, float(np.linalg.norm(first - second)))
    assert 0 < example.audit(sigma=1.0).value < most
    example.main()
    assert "no error in 600 sums" in capsys.readouterr().out


def test_the_likelihood_ratio_audit_finds_it_by_support_where_its_scores_miss_it(
    gaussian_sampler: type,
) -> None:
    target, dim, idle = 3, 40, 10

    class FewDirections(gaussian_sampler):  # type: ignore[misc]
        def sample(
            self,
            model: Vector,
            clients: Sequence[int],
            draws: int,
            stream: Stream,
            *,
            project: NDArray[np.float64] | None = None,
        ) -> Iterator[NDArray[np.floating]]:
            for rows in super().sample(model, clients, draws, stream):
                for place, client in enumerate(clients):
                    if client != target:
                        rows[:, place] *= 10.0
                        rows[:, place, -idle:] = 0.0
                yield rows if project is None else rows @ project

    effort = Effort(fit=200, candidates=10, pilot=30, trials=200)
    auditor = LikelihoodRatio(FewDirections(np.eye(dim)), target=target, effort=effort)
    auditor.begin(dim, 1)
    replies = {client: np.zeros(dim) for client in range(4)}
    known = RoundFacts(aggregate=np.zeros(dim), num_clients=4, total_weight=4.0)
    found = auditor.observe(RoundView(1, np.zeros(dim), replies, np.zeros(dim), known))
    [bound] = [f for f in found if f.quantity == "epsilon" and f.kind == "lower_bound"]
    [support] = [f for f in found if f.quantity == "separation by support"]
    assert "separated by support" in support.rule
    # The fitted covariance is shrunk towards the loud directions, so the silent ones look noisy.
    assert bound.value < 1.0


def updates(seed: int, clients: int = 4, dim: int = 12) -> dict[int, np.ndarray]:
    """Return the counterexample as one round: all but the last client leave a quarter out."""
    rows = stream(seed, "updates").standard_normal((clients, dim))
    rows[:-1, -dim // 4 :] = 0.0
    return dict(enumerate(rows))


def test_every_client_is_held_against_the_others_of_its_round() -> None:
    found = {one.client: one for one in span_of_updates(updates(0), 7)}
    assert set(found) == {0, 1, 2, 3}
    assert found[3].span.idle_columns == 3
    assert found[3].span.separated
    # Three updates in twelve dimensions reach little: most of any other lies outside as well.
    assert all(one.span.outside for one in found.values())
    assert not found[0].span.idle_norm > 0
    assert found[3].bound.kind == "diagnostic"
    assert found[3].bound.value == found[3].span.share
    assert found[3].server_round == 7


def test_a_combination_of_the_others_lies_within() -> None:
    rows = stream(1, "rows").standard_normal((5, 20))
    together = dict(enumerate([*rows, rows.T @ np.arange(1.0, 6.0)]))
    last = span_of_updates(together)[-1]
    assert last.span.share < 1e-6
    assert not last.span.outside


def test_rounds_without_kept_updates_are_passed_over() -> None:
    def view(number: int, truth: dict[int, np.ndarray]) -> RoundView:
        return RoundView(number, np.zeros(12), {}, np.zeros(12), RoundFacts(), truth)

    found = span_of_rounds([view(1, updates(0)), view(2, {}), view(3, updates(1))])
    assert [one.server_round for one in found] == [1] * 4 + [3] * 4


def test_one_update_alone_is_refused() -> None:
    with pytest.raises(ValueError, match="at least 2"):
        span_of_updates({0: np.ones(3)})
