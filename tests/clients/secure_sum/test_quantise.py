"""Quantiser: the sum never wraps, the mean errs by less than its quantum, faults are refused."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes
from flwr.app import ConfigRecord
from hypothesis import given, settings
from hypothesis import strategies as st

from leakmeter.clients.secure_sum.quantise import (
    BlankSumError,
    Quantiser,
    RingVector,
    Rounding,
    add_vectors,
)
from leakmeter.clients.secure_sum.wire import get_quantiser, put_quantiser
from tests.helpers.numbers import num_examples
from tests.helpers.refusals import refuses

BITS = [8, 12, 16, 24, 32, 48, 64]


def plain(**changes: Any) -> Quantiser:
    return Quantiser(**({"clip_range": 1.0, "bits": 32, "max_clients": 10} | changes))


def total_of(quantiser: Quantiser, vectors: list[RingVector]) -> RingVector:
    return add_vectors(vectors, quantiser.ring)


cohorts = st.fixed_dictionaries(
    {
        "bits": st.sampled_from(BITS),
        "clients": st.integers(1, 6),
        "spare": st.integers(0, 3),
        "dim": st.integers(0, 20),
        "clip_range": st.sampled_from([1e-3, 0.7, 8.0]),
        "max_weight": st.sampled_from([1.0, 0.3, 60.0, 1000.0, 1e7]),
        "seed": st.integers(0, 1000),
    }
)


@given(cohorts)
@settings(max_examples=num_examples(150), deadline=None)
def test_mean_errs_by_less_than_its_quantum(case: dict[str, Any]) -> None:
    rng = np.random.default_rng(case["seed"])
    clients, reach = case["clients"], case["clip_range"]
    quantiser = Quantiser(
        clip_range=reach,
        bits=case["bits"],
        max_clients=clients + case["spare"],
        max_weight=case["max_weight"],
        metrics={"loss": (-1.0, 5.0), "accuracy": (0.0, 1.0)},
    )
    updates = rng.uniform(-1.5 * reach, 1.5 * reach, (clients, case["dim"]))
    weights = rng.uniform(0.01, 1.0, clients) * case["max_weight"]
    metrics = [{"loss": rng.uniform(-1, 5), "accuracy": rng.random()} for _ in range(clients)]
    total = total_of(
        quantiser,
        [quantiser.encode(u, w, m, rng) for u, w, m in zip(updates, weights, metrics, strict=True)],
    )
    result = quantiser.decode(total)
    # The mean is that of weights on the grid of `weight_unit`; nothing else is approximate.
    rounded = np.round(weights / quantiser.weight_unit) * quantiser.weight_unit
    expected = rounded @ np.clip(updates, -reach, reach) / rounded.sum()
    assert np.all(np.abs(result.mean - expected) <= result.quantum * (1 + 1e-9))
    assert result.total_weight == math.fsum(rounded)
    assert result.num_clients == clients
    assert result.saturated == np.count_nonzero(np.abs(updates) > reach)
    for name, (low, high) in quantiser.metrics.items():
        exact = rounded @ [m[name] for m in metrics] / rounded.sum()
        slack = (high - low) * clients * quantiser.weight_unit / rounded.sum()
        assert abs(result.metrics[name] - exact) <= slack * 1.001
    assert quantiser.implausible(total, clients) is None


@given(st.sampled_from(BITS), st.integers(1, 60), st.sampled_from([-1.0, 1.0]), st.integers(0, 50))
@settings(deadline=None)
def test_nothing_wraps_at_the_extremes(bits: int, clients: int, sign: float, seed: int) -> None:
    quantiser = Quantiser(
        clip_range=0.37,
        bits=bits,
        max_clients=clients,
        max_weight=977.0,
        metrics={"loss": (0.0, 1.0)},
    )
    rng = np.random.default_rng(seed)
    one = quantiser.encode(np.full(3, sign * 9.9), 977.0, {"loss": 1.0}, rng)
    result = quantiser.decode(total_of(quantiser, [one] * clients))
    np.testing.assert_allclose(result.mean, sign * 0.37, rtol=1e-12)
    assert result.total_weight == 977.0 * clients
    assert result.metrics == {"loss": 1.0}
    assert result.saturated == 3 * clients
    assert result.num_clients == clients


def bias_in_standard_errors(rounded: np.ndarray, exact: float) -> float:
    fraction = exact - math.floor(exact)
    return float((rounded.mean() - exact) / math.sqrt(fraction * (1 - fraction) / rounded.size))


@pytest.mark.parametrize("value", [0.3, -0.3, 12345.75, -2000000.125])
def test_rounding_is_unbiased_and_the_test_rejects_other_rounding(value: float) -> None:
    # Fixed keys; a fair draw would exceed 4.5 standard errors with chance 7e-6.
    fair = Rounding(bytes(32)).rounded(np.full(100_000, value))
    assert set(fair.tolist()) == {math.floor(value), math.ceil(value)}
    assert abs(bias_in_standard_errors(fair, value)) < 4.5
    for wrong in (np.floor, np.rint):
        assert abs(bias_in_standard_errors(wrong(np.full(100_000, value)), value)) > 50


@given(st.lists(st.integers(0, 300), max_size=5), st.binary(min_size=32, max_size=32))
@settings(max_examples=num_examples(25), deadline=None)
def test_rounding_is_by_words_of_aes_in_counter_mode_whatever_the_blocks(
    sizes: list[int], key: bytes
) -> None:
    ecb = Cipher(algorithms.AES128(key[:16]), modes.ECB()).encryptor()
    start, count = int.from_bytes(key[16:], "big"), sum(sizes)
    blocks = [((start + i) % 2**128).to_bytes(16, "big") for i in range(count // 4 + 1)]
    words = np.frombuffer(b"".join(map(ecb.update, blocks)), "<u4")[:count]
    values = np.random.default_rng(count).normal(scale=1e6, size=count)
    pairs = zip(values.tolist(), words.tolist(), strict=True)
    slow = [math.floor(v) + (word < (v - math.floor(v)) * 2**32) for v, word in pairs]
    rounding = Rounding(key)
    parts = np.split(values, np.cumsum(sizes)[:-1]) if sizes else []
    assert [v for part in parts for v in rounding.rounded(part).tolist()] == slow


def test_the_mean_is_unbiased_with_the_stated_spread() -> None:
    quantiser, rng = plain(bits=12, max_weight=10.0), np.random.default_rng(5)
    update = np.full(40_000, 0.0137)
    vectors = [quantiser.encode(update, weight, {}, rng) for weight in (3, 10, 7)]
    result = quantiser.decode(total_of(quantiser, vectors))
    spread = result.quantum / (2 * math.sqrt(3))
    errors = result.mean - 0.0137
    assert abs(errors.mean()) < 4.5 * spread / 200
    assert errors.std() <= 1.01 * spread


def test_same_generator_same_vector_and_the_input_is_left_alone() -> None:
    quantiser, update = plain(), np.random.default_rng(0).normal(size=40_000)
    before = update.copy()
    first, second = (quantiser.encode(update, 1, {}, np.random.default_rng(3)) for _ in range(2))
    np.testing.assert_array_equal(first, second)
    np.testing.assert_array_equal(update, before)
    single = quantiser.encode(update.astype(np.float32), 1, {}, np.random.default_rng(3))
    assert single.dtype == first.dtype


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("max_clients", 128),  # with 8 bits
        ("max_clients", 0),
        ("bits", 7),
        *(("clip_range", value) for value in (0.0, math.nan, 5e-324, 1e308)),
        *(("max_weight", value) for value in (math.inf, 5e-324, 1e308)),
        *(("noise_std", value) for value in (-1.0, 1e-320, 1e308)),
        ("metrics", {"loss": (-1e308, 1e308)}),
        ("metrics", {"loss": (0.0, 5e-324)}),
        ("metrics", {"loss": (1.0, math.nextafter(1.0, 2.0))}),
        ("metrics", {"loss": (1.0, 1.0)}),
    ],
)
def test_impossible_settings_are_refused(name: str, value: Any) -> None:
    with refuses("metrics['loss']" if name == "metrics" else name):
        plain(**({"bits": 8} if value == 128 else {}), **{name: value})


def test_metrics_are_required_finite_and_clipped() -> None:
    quantiser, rng = plain(metrics={"loss": (0.0, 2.0), "b": (0, 1)}), np.random.default_rng(0)
    with pytest.raises(ValueError, match=r"lacks \['b'\]"):
        quantiser.encode(np.zeros(3), 1, {"loss": 1.0}, rng)
    with pytest.raises(ValueError, match=r"update must be a flat vector, got shape \(2, 2\)"):
        quantiser.encode(np.zeros((2, 2)), 1, {"loss": 1.0, "b": 0}, rng)
    with pytest.raises(ValueError, match=r"metrics\['loss'\] must be finite, got nan"):
        quantiser.encode(np.zeros(3), 1, {"loss": math.nan, "b": 0}, rng)
    vector = quantiser.encode(np.zeros(3), 1, {"loss": 7.0, "b": 0, "other": 1.0}, rng)
    result = quantiser.decode(vector)
    assert result.metrics == {"loss": 2.0, "b": 0.0}
    assert result.saturated == 0  # a metric is no coordinate of the update


def test_noise_has_ten_standard_deviations_of_room_and_its_clipping_is_not_counted() -> None:
    quantiser, rng = plain(noise_std=0.5), np.random.default_rng(0)
    assert quantiser.room == 6.0
    noised = np.array([1.0 + 5.0, -6.0, 0.0])
    result = quantiser.decode(quantiser.encode(noised, 1, {}, rng))
    np.testing.assert_allclose(result.mean, noised, atol=quantiser.quantum(1, 1.0))
    assert result.saturated == 0
    beyond = quantiser.decode(quantiser.encode(np.array([7.0, -1e30]), 1, {}, rng))
    np.testing.assert_allclose(beyond.mean, [6.0, -6.0], atol=quantiser.quantum(1, 1.0))
    assert beyond.saturated == 0


def lie(vector: RingVector, slot: int, amount: int) -> RingVector:
    changed = vector.copy()
    changed[slot] += changed.dtype.type(amount % 2 ** (8 * changed.itemsize))
    return changed


def test_sums_that_no_honest_cohort_has_are_named() -> None:
    quantiser = plain(max_weight=10.0, metrics={"loss": (0.0, 1.0)})
    rng = np.random.default_rng(0)
    vectors = [quantiser.encode(np.zeros(4), 5, {"loss": 0.5}, rng) for _ in range(3)]
    total = total_of(quantiser, vectors)
    assert quantiser.implausible(total, 3) is None
    assert "contributors must be in [2, 2], got 3" in str(quantiser.implausible(total, 2))
    assert "num_clients must be in [1, 10], got 11" in str(quantiser.implausible(total, 11))
    # Half the weight allows half the range: 1.5 · levels and three roundings.
    most = 3 * quantiser.levels // 2 + 3
    for amount in (most, -most):
        assert quantiser.implausible(lie(total, 0, amount), 3) is None
    for amount in (most + 2, -most - 2):
        assert "sum in steps must be" in str(quantiser.implausible(lie(total, 0, amount), 3))
    weight_slot, digits = 6, quantiser._num_digits
    heavy = lie(total, weight_slot + digits - 1, 1 << 20)
    assert "total weight in units" in str(quantiser.implausible(heavy, 3))
    assert "saturated" in str(quantiser.implausible(lie(total, weight_slot + digits, 16), 3))
    better = lie(total, weight_slot + 3 * digits - 1, 1 << 20)
    assert "metric in weight units" in str(quantiser.implausible(better, 3))
    widest = plain(bits=64)
    lowest = widest.encode(np.zeros(1), 1, {}, rng)
    lowest[0] = 1 << 63  # whose negative is itself
    assert "smallest sum in steps" in str(widest.implausible(lowest, 1))


@pytest.mark.parametrize(("weight", "counts"), [(1.0, 2.0), (7.0, 7.0), (2.0**40, 2.0**31)])
def test_a_weight_beyond_the_limits_counts_as_the_nearest_one(weight: float, counts: float) -> None:
    quantiser = plain(max_weight=2.0**31)  # whose unit is 2
    assert quantiser.nearest_weight(weight) == counts
    rng = np.random.default_rng(0)
    nearest = quantiser.nearest_weight(weight)
    found = quantiser.decode(quantiser.encode(np.zeros(2), nearest, {}, rng))
    assert (found.num_clients, found.blank) == (1, 0)
    assert found.total_weight == pytest.approx(counts, abs=1.0)
    if weight != counts:
        with refuses("weight"):
            quantiser.encode(np.zeros(2), weight, {}, rng)


def test_a_client_without_an_update_is_counted_and_changes_no_mean() -> None:
    quantiser = plain(max_weight=10.0, metrics={"loss": (0.0, 1.0)})
    rng = np.random.default_rng(0)
    honest = quantiser.encode(np.array([0.5, -0.5]), 5, {"loss": 0.25}, rng)
    blank = quantiser.encode_blank(2)
    assert blank.shape == honest.shape
    assert blank.dtype == honest.dtype
    total = total_of(quantiser, [honest, blank, blank])
    assert quantiser.implausible(total, 3) is None
    alone, found = quantiser.decode(honest), quantiser.decode(total)
    assert (found.num_clients, found.blank, found.total_weight) == (1, 2, 5.0)
    np.testing.assert_array_equal(found.mean, alone.mean)
    assert found.metrics == alone.metrics
    with pytest.raises(BlankSumError):
        quantiser.decode(total_of(quantiser, [blank, blank]))


@pytest.mark.parametrize("law", ["skellam", "discrete-gaussian"])
def test_integer_noise_lets_nobody_set_a_coordinate(law: str) -> None:
    n, std = 20, 0.2
    quantiser = Quantiser(
        clip_range=0.5, bits=32, max_clients=n, noise_std=std, noise_distribution=law
    )
    rng = np.random.default_rng(0)
    steps = [np.rint(rng.normal(0.5, std, 4) / quantiser.step).astype(np.int64) for _ in range(n)]
    total = total_of(quantiser, [quantiser.encode_integers(s) for s in steps])
    assert quantiser.implausible(total, n) is None
    # n (clip range + step) + 9.3 σ √n; what one liar adds to a sum of zeros ends there.
    reach = n * (0.5 + quantiser.step) + 9.3 * std * math.sqrt(n)
    zero = total_of(quantiser, [quantiser.encode_integers(np.zeros(4, np.int64))] * n)
    for sign in (1, -1):
        inside = lie(zero, 0, sign * math.floor(reach / quantiser.step))
        assert quantiser.implausible(inside, n) is None
        beyond = lie(zero, 0, sign * (math.ceil(reach / quantiser.step) + 1))
        assert "sum in steps must be" in str(quantiser.implausible(beyond, n))
    assert "largest sum in steps" in str(quantiser.implausible(lie(zero, 2, 2**30), n))
    half = lie(zero, 6, -1)
    assert "total weight in units" in str(quantiser.implausible(half, n))
    assert "without an update" in str(quantiser.implausible(lie(zero, 5, 1), n))


def test_updates_weights_and_sums_that_cannot_be_are_refused() -> None:
    quantiser, rng = plain(max_weight=60.0), np.random.default_rng(0)
    for bad in (math.nan, math.inf, -math.inf):
        for place in (0, 39_999):
            update = np.zeros(40_000)
            update[place] = bad
            with pytest.raises(ValueError, match="update must be finite"):
                quantiser.encode(update, 1, {}, rng)
    for weight in (0, -1, 60.5, math.nan, math.inf, 1e-12):
        with refuses("weight"):
            quantiser.encode(np.zeros(3), weight, {}, rng)
    for wrong in (np.zeros(2, np.uint32), np.zeros(50, np.uint64), np.zeros((9, 9), np.uint32)):
        with pytest.raises(ValueError, match="total must be a flat uint32 vector"):
            quantiser.decode(wrong)
    with pytest.raises(ValueError, match="total weight must be positive, got 0"):
        quantiser.decode(np.zeros(50, np.uint32))
    with refuses("noise_distribution"):
        quantiser.encode_integers(np.zeros(3, np.int64))


@pytest.mark.parametrize("scale", [1e-90, 1e-45, 1e45, 1e90])
def test_settings_at_the_limits_give_the_mean(scale: float) -> None:
    quantiser = Quantiser(
        clip_range=scale,
        bits=32,
        max_clients=3,
        max_weight=scale,
        metrics={"loss": (-scale, scale)},
        noise_std=scale,
    )
    update = scale * np.array([0.25, -1.0, 0.0])
    rng = np.random.default_rng(0)
    encoded = quantiser.encode(update, scale, {"loss": 0.5 * scale}, rng)
    assert quantiser.implausible(encoded, 1) is None
    decoded = quantiser.decode(encoded)
    assert np.abs(decoded.mean - update).max() <= decoded.quantum < 1e-6 * scale
    assert decoded.metrics["loss"] == pytest.approx(0.5 * scale, rel=1e-6)


def integers(bits: int = 16, **changes: Any) -> Quantiser:
    noise = {"noise_std": 0.3, "noise_distribution": "skellam"}
    return plain(**{"bits": bits, "max_clients": 5, **noise, **changes})


def test_sums_of_integers_are_exact_and_wrap_around_the_ring() -> None:
    quantiser, rng = integers(12), np.random.default_rng(0)
    steps = rng.integers(-200, 200, (5, 40))
    encoded = [quantiser.encode_integers(row) for row in steps]
    total = add_vectors(encoded, quantiser.ring)
    assert quantiser.implausible(total, 5) is None
    mean = quantiser.decode(total)
    np.testing.assert_array_equal(mean.mean, steps.sum(axis=0) * (quantiser.step / 5))
    assert (mean.num_clients, mean.total_weight, mean.quantum) == (5, 5.0, quantiser.step)
    far = steps + 2**12 * rng.integers(-3, 4, steps.shape)  # the same elements of the ring
    again = add_vectors([quantiser.encode_integers(row) for row in far], quantiser.ring)
    np.testing.assert_array_equal(again, total)


def test_the_ring_has_room_for_all_clients_and_the_noise_of_their_sum() -> None:
    quantiser = integers(12)
    most = 5 * (quantiser.clip_range / quantiser.step + 1)
    noise = 10 * math.sqrt(5) * quantiser.noise_std / quantiser.step
    assert most + noise == pytest.approx(2**11 - 1)
    assert quantiser.step < plain(bits=12, max_clients=5, noise_std=0.3).step
    # In a large ring the sampler's table is the limit.
    assert integers(48).step == pytest.approx(0.3 / 2**14)
    with pytest.raises(ValueError, match="update must be integers"):
        quantiser.encode(np.zeros(3), 1.0, {}, np.random.default_rng(0))
    for wrong in (np.zeros(3), np.zeros((2, 2), np.int64)):
        with refuses("steps"):
            quantiser.encode_integers(wrong)
    # Weights: 100 clients of weight 60 of at most 1,000. Weighting what was rounded needs a grid
    # 1,000 times coarser.
    ours, other = plain(max_clients=100, max_weight=1000.0), plain(max_clients=100_000)
    ratio = other.quantum(100, 100.0) / ours.quantum(100, 6000.0)
    assert ratio == pytest.approx(60, rel=1e-3)


def test_a_distribution_travels_with_its_quantiser_and_gaussian_orders_are_as_before() -> None:
    for quantiser in (integers(), plain()):
        record = ConfigRecord(put_quantiser(quantiser))
        assert get_quantiser(record) == quantiser
        assert ("noise-distribution" in record) == quantiser.has_integers
