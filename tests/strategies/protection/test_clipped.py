"""Clipping of the mean update: exact, before the optimiser and the noise, and no guarantee."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from flwr.app import ArrayRecord
from flwr.serverapp.strategy import FedAvg, FedAvgM, Krum

from leakmeter.auditors import Audited, UnableError
from leakmeter.auditors.auditor import check_noise_is_known
from leakmeter.auditors.hook.wrapper import survey
from leakmeter.clients import NoiseMod
from leakmeter.clients.protection.noise_mod import clip
from leakmeter.strategies import Central, Clipped, Masked, Noised
from leakmeter.strategies.flower import restore_strategy, strategy_state
from leakmeter.strategies.protection.mechanism import FixedClip
from tests.helpers.flower import NO_DIMENSIONS
from tests.helpers.refusals import refuses

NODES = {"fraction_evaluate": 0.0}


def vector(arrays: ArrayRecord) -> np.ndarray:
    return np.concatenate([np.ravel(arrays[name].numpy()) for name in ("w", "b")]).astype(float)


def moved(fed: Any, strategy: Any, rounds: int = 1) -> np.ndarray:
    """Return how far the model has moved."""
    result = strategy.start(fed.grid, fed.arrays(), rounds)
    return vector(result.arrays) - vector(fed.arrays())


@pytest.mark.parametrize("norm", [0.5, 1e6])
def test_the_mean_is_scaled_to_the_norm_or_passes_as_it_is(federation: Any, norm: float) -> None:
    fed = federation()
    free, clipped = moved(fed, FedAvg(**NODES)), moved(fed, Clipped(FedAvg(**NODES), norm))
    assert np.linalg.norm(free) > 1
    # Flower's order of replies is random.
    np.testing.assert_allclose(clipped, clip(free, norm), atol=1e-6)


@NO_DIMENSIONS
def test_the_optimiser_comes_after_the_clipping(federation: Any) -> None:
    fed = federation()
    one = moved(fed, Clipped(FedAvgM(server_learning_rate=3.0, **NODES), 0.5))
    assert np.linalg.norm(one) == pytest.approx(1.5, rel=1e-5)


def test_noise_comes_after_the_clipping_and_costs_the_same(federation: Any) -> None:
    fed = federation(mods=[NoiseMod(seed=0)])

    def made(multiplier: float, **more: Any) -> Noised:
        asked = {"noise": Central(multiplier), "clipping": FixedClip(5.0), "seed": 0, **more}
        return Noised(FedAvg(**NODES), expected_clients=3.0, **asked)

    # Six answer where three are expected: the radius is that of the public number.
    still = moved(fed, made(0.0, clip_mean=0.5))
    assert np.linalg.norm(still) == pytest.approx(0.5, rel=1e-5)
    noisy, plain = made(2.0, clip_mean=0.5), made(2.0)
    assert np.linalg.norm(moved(fed, noisy)) > 5  # the noise is not clipped
    moved(fed, plain)
    assert [f.value for f in noisy.findings()] == [f.value for f in plain.findings()]


def test_clipping_a_sum_moves_no_two_sums_apart() -> None:
    rng = np.random.default_rng(0)
    for _ in range(300):
        one = rng.normal(size=5) * rng.exponential(3)
        other = one + rng.normal(size=5) * rng.exponential(1)
        apart = np.linalg.norm(clip(one, 2.0) - clip(other, 2.0))
        assert apart <= np.linalg.norm(one - other) * (1 + 1e-12)


def test_a_resumed_strategy_knows_its_arrays(federation: Any) -> None:
    fed = federation()
    first, second = (Clipped(FedAvg(**NODES), 0.5) for _ in range(2))
    whole = Audited(Clipped(FedAvg(**NODES), 0.5), []).start(fed.grid, fed.arrays(), 4).arrays
    half = Audited(first, []).start(fed.grid, fed.arrays(), 2).arrays
    restore_strategy(second, strategy_state(first))
    rest = Audited(second, [], rounds_done=2).start(fed.grid, half, 4).arrays
    np.testing.assert_allclose(vector(whole), vector(rest), atol=1e-6)


def test_an_outsider_of_a_clipped_mean_is_not_audited_as_if_it_saw_the_sum() -> None:
    for strategy in (
        Clipped(FedAvg(), 1.0),
        Masked(Noised(FedAvg(), noise=Central(1.0), clipping=FixedClip(1.0), clip_mean=1.0)),
    ):
        project = survey(strategy, 132, 2)
        assert project.clipped_by
        check_noise_is_known("server", project)
        with pytest.raises(UnableError, match="has clipped, and this audit is about sums"):
            check_noise_is_known("outsider", project)
    assert not survey(FedAvg(), 132, 2).clipped_by


def test_what_cannot_be_clipped_is_refused() -> None:
    for norm in (0.0, -1.0, float("inf"), float("nan")):
        with refuses("norm"):
            Clipped(FedAvg(), norm)
    with pytest.raises(TypeError, match="Krum"):
        Clipped(Krum(), 1.0)
