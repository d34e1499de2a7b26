"""Between training and the sum: the same as the client's own mods and the secure sum do."""

from __future__ import annotations

import numpy as np
import pytest

from leakmeter.auditors.rng import stream
from leakmeter.clients.noise.clipping import clip
from leakmeter.clients.sampling.postprocess import Clip, ClipAndNoise, InTurn, Rounded
from leakmeter.clients.secure_sum.quantise import Quantiser

UPDATES = stream(0, "finish").standard_normal((6, 50)) * np.arange(6)[:, None]
WEIGHTS = np.array([1.0, 2, 3, 4, 5, 6])


def rngs(name: str = "a") -> list[np.random.Generator]:
    return [stream(0, name, i) for i in range(6)]


def test_clipping_clips_each_row_by_its_own_norm() -> None:
    found = Clip(5.0)(UPDATES, WEIGHTS, rngs())
    np.testing.assert_array_equal(found, [clip(u, 5.0) for u in UPDATES])
    assert np.linalg.norm(found, axis=1).max() == pytest.approx(5)
    assert not found[0].any()


def test_noise_comes_after_clipping_and_from_each_rows_own_generator() -> None:
    found = ClipAndNoise(5.0, 0.3)(UPDATES, WEIGHTS, rngs())
    noise = found - Clip(5.0)(UPDATES, WEIGHTS, rngs())
    assert noise.std() == pytest.approx(0.3, rel=0.2)  # 300 draws: five standard errors
    alone = ClipAndNoise(5.0, 0.3)(UPDATES[4:5], WEIGHTS[4:5], rngs()[4:5])
    np.testing.assert_array_equal(alone[0], found[4])


def test_rounding_is_what_the_secure_sum_of_one_client_says() -> None:
    quantiser = Quantiser(clip_range=4.0, bits=16, max_clients=8, max_weight=6.0)
    found = Rounded(quantiser)(UPDATES, WEIGHTS, rngs())
    bounded = np.clip(UPDATES, -4, 4)
    for row, plain, weight in zip(found, bounded, WEIGHTS, strict=True):
        assert np.abs(row - plain).max() <= quantiser.quantum(1, weight)
    assert np.abs(found - bounded).max() > 0
    # The weighted mean of what was rounded one by one is what the sum decodes to.
    parts = [
        quantiser.encode(u, w, {}, r) for u, w, r in zip(UPDATES, WEIGHTS, rngs(), strict=True)
    ]
    total = sum(parts[1:], parts[0])
    np.testing.assert_allclose(
        WEIGHTS @ found / WEIGHTS.sum(), quantiser.decode(total).mean, atol=1e-12
    )


def test_metrics_of_the_sum_play_no_part_in_rounding() -> None:
    plain = Quantiser(clip_range=4.0, bits=32, max_clients=8)
    rich = Quantiser(clip_range=4.0, bits=32, max_clients=8, metrics={"loss": (0.0, 1.0)})
    ones = np.ones(6)
    one, other = (Rounded(q)(UPDATES, ones, rngs()) for q in (plain, rich))
    np.testing.assert_array_equal(one, other)


def test_steps_follow_in_turn() -> None:
    quantiser = Quantiser(clip_range=5.0, bits=12, max_clients=8)
    both = InTurn((Clip(5.0), Rounded(quantiser)))(UPDATES, np.ones(6), rngs())
    apart = Rounded(quantiser)(Clip(5.0)(UPDATES, np.ones(6), rngs()), np.ones(6), rngs())
    np.testing.assert_array_equal(both, apart)


@pytest.mark.parametrize("norm", [0.0, -1.0, float("inf"), float("nan")])
def test_a_norm_that_clips_nothing_is_refused(norm: float) -> None:
    with pytest.raises(ValueError, match=r"norm must be in \(0, inf\), got"):
        Clip(norm)
    with pytest.raises(ValueError, match="norm must be"):
        ClipAndNoise(norm, 1.0)
    with pytest.raises(ValueError, match=r"std must be in \[0, inf\), got -1"):
        ClipAndNoise(1.0, -1.0)
