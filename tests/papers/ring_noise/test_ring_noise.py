"""Integer noise beside Gaussian noise in small, and the attack on low bits."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from leakmeter.papers.ring_noise import low_bits, table
from tests.papers.small import reproduce


@pytest.mark.slow
def test_every_noise_is_trained_in_every_ring_and_few_bits_cost_noise(tmp_path: Path) -> None:
    small = reproduce("ring-noise", tmp_path, is_tiny=False)
    rows = {(int(r["bits per coordinate"]), r["distribution"]): r for r in small.rows}
    bits = table._SCALES["small"].bits
    assert set(rows) == {(b, kind) for b in bits for kind in table._KINDS}
    for kind in ("skellam", "discrete-gaussian"):
        cost = [float(rows[b, kind]["noise multiplier"]) for b in bits]
        assert cost == sorted(cost, reverse=True)
        assert cost[0] > 2 * cost[-1]
        assert all(rows[b, kind]["ε against the server"] == "≤ 8" for b in bits)
    # Gaussian noise below two steps is priced as if there were no rounding, and says so.
    assert rows[8, "gaussian"]["ε against the server"] == "≈ 8"
    assert rows[32, "gaussian"]["ε against the server"] == "≤ 8"


def test_a_target_beyond_the_ring_is_said_not_trained() -> None:
    config = table._SCALES["small"].config
    own = replace(config, noise_distribution="skellam", secagg_bits=8, target_epsilon=0.01)
    found = table._trained(own)
    assert "target-epsilon must be" in found["refused"]
    assert table._row([found])[0] == "none"


def test_low_bits_tell_two_float64_sums_apart_and_nothing_else() -> None:
    # Being right in 40 coin flips by luck: 1e-12. A fair coin is between 0.1 and 0.9 but for 1e-7.
    found = {name: low_bits.attacked(name, 30, 40) for name in low_bits._RELEASES}
    broken = found.pop("float64, Gaussian")
    assert broken["right"] == 1
    assert broken["impossible"] > 15
    for release in found.values():
        assert release["impossible"] == 0
        assert 0.1 < release["right"] < 0.9
    assert 0.1 < broken["ratio"] < 0.9  # the distribution itself tells nothing at this distance


def test_the_true_sum_always_reaches_what_was_released() -> None:
    total = np.random.default_rng(0).standard_normal(200)
    for release, step in low_bits._RELEASES.values():
        assert low_bits.reaches(total, release(total), step).all()
