"""Noised gradients at equal ε, in small: prices, starts, training, and the order that is said."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from leakmeter.fl_app.experiments.zhang2024.noised_gradients import (
    _SCALES,
    Variant,
    compared,
    relations,
)
from leakmeter.fl_app.experiments.zhang2024.training import (
    MECHANISMS,
    _data,
    _order,
    _users,
    floor_of,
    start_accuracy,
    started,
)
from leakmeter.strategies.water_filling.guarantee import (
    full_gradient_epsilon,
    gaussian_sampling_epsilon,
    water_filling_epsilon,
)
from tests.fl_app.experiments.small import Small, reproduce

NAMES: dict[Variant, str] = {"linear": "wfna-mnist", "cnn": "wfna-mnist-cnn"}
LINEAR, CNN = (_SCALES[variant]["small"] for variant in NAMES)
# Calibrated beforehand: the accountant of secret batches takes seconds; a slow test repeats it.
SGD_FLOORS: dict[Variant, dict[float, float]] = {
    "linear": {2.0: 0.08362, 16.0: 0.009614},
    "cnn": {8.0: 0.08789, 64.0: 0.008797},
}


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> dict[Variant, Small]:
    """Both models, priced beforehand."""
    return {
        variant: reproduce(
            name,
            tmp_path_factory.mktemp(name),
            {f"small-SGD-DP-eps{e:g}-floor": floor for e, floor in SGD_FLOORS[variant].items()},
        )
        for variant, name in NAMES.items()
    }


@pytest.mark.parametrize("variant", NAMES)
def test_every_mechanism_is_trained_at_every_epsilon(
    small: dict[Variant, Small], variant: Variant
) -> None:
    rows, epsilons = small[variant].rows, _SCALES[variant]["small"].epsilons
    assert {(r["mechanism"], float(r["ε"])) for r in rows} == {
        (name, e) for name in MECHANISMS for e in epsilons
    }
    assert all(float(r["ms a round"]) > 0 for r in rows)
    # One run has no standard deviation.
    assert all(("±" in r["accuracy"]) == (variant == "linear") for r in rows)


@pytest.mark.parametrize("variant", NAMES)
def test_the_page_says_the_order_and_how_it_differs_from_the_paper(
    small: dict[Variant, Small], variant: Variant
) -> None:
    page, found = small[variant].page, small[variant].table.comparisons
    num_epsilons = len(_SCALES[variant]["small"].epsilons)
    assert page.count("GD-DP and GSGD-DP") + page.count("GD-DP is ") >= num_epsilons
    assert "not a guarantee" in page
    assert (f"{CNN.public} public records" in page) == (variant == "cnn")
    assert len(found) == num_epsilons + 2  # the order at each ε, the time, the spectrum
    assert all(c.paper and c.ours and c.why for c in found)


def test_more_privacy_costs_accuracy_and_all_learn_something(small: dict[Variant, Small]) -> None:
    accuracy = {
        (r["mechanism"], float(r["ε"])): float(r["accuracy"].split()[0])
        for r in small["linear"].rows
    }
    for name in MECHANISMS:
        assert accuracy[name, 16.0] > accuracy[name, 2.0] - 0.02
    assert accuracy["GD-DP", 16.0] > 0.7
    assert accuracy["GD-DP", 2.0] > accuracy["SGD-DP", 2.0]


def test_floors_are_the_least_that_keep_epsilon() -> None:
    setting = {"users": LINEAR.users, "clip": LINEAR.clip, "examples": LINEAR.examples}
    rest = {"rounds": LINEAR.rounds, "delta": 1e-4}
    with_batch = {**setting, "batch": LINEAR.batch, **rest}
    for name, price, options in (
        ("GSGD-DP", water_filling_epsilon, with_batch),
        ("GSGD isotropic", gaussian_sampling_epsilon, with_batch),
        ("GD-DP", full_gradient_epsilon, {**setting, **rest}),
    ):
        floor = floor_of(LINEAR, name, 1.0)
        assert price(floor=floor, **options) <= 1.0 < price(floor=0.99 * floor, **options)


@pytest.mark.slow
@pytest.mark.parametrize("epsilon", SGD_FLOORS["linear"])
def test_the_floors_of_secret_batches_are_what_the_accountant_says(epsilon: float) -> None:
    assert floor_of(LINEAR, "SGD-DP", epsilon) == pytest.approx(
        SGD_FLOORS["linear"][epsilon], rel=2e-3
    )


def test_comparisons_say_our_order_and_time_whatever_they_are() -> None:
    runs = {"SGD-DP": (0.3, 0.1), "GSGD-DP": (0.2, 2.0), "GSGD isotropic": (0.9, 9.0)}
    runs["GD-DP"] = (0.4, 0.5)
    got = {(n, 1.0): [{"accuracy": a, "seconds": s}] for n, (a, s) in runs.items()}
    order, times = compared(got, "linear model", "fewer rounds")
    assert order.ours == (
        "SGD-DP 0.3000, GSGD-DP 0.2000, GSGD isotropic 0.9000, GD-DP 0.4000; one run shows no "
        "order of GSGD-DP and SGD-DP; one run shows no order of GD-DP and GSGD-DP"
    )
    assert order.paper.startswith("GD-DP > GSGD-DP > SGD-DP")
    assert order.why == "fewer rounds"
    assert times.ours == "SGD-DP 100 ms, GSGD-DP 2000 ms, GD-DP 500 ms"


def test_an_order_is_named_only_where_runs_show_it() -> None:
    def told(better: list[float], worse: list[float]) -> str:
        runs = {"SGD-DP": worse, "GSGD-DP": better, "GSGD isotropic": worse, "GD-DP": better}
        got = {(name, 1.0): [{"accuracy": a} for a in each] for name, each in runs.items()}
        return relations(got, 1.0).split("; ")[1]

    # Runs of one number share their start: what they differ by counts, not how far they spread.
    assert told([0.5, 0.7, 0.9], [0.41, 0.6, 0.79]) == "GSGD-DP is above SGD-DP (+0.1000 ± 0.0248)"
    assert told([0.41, 0.6, 0.79], [0.5, 0.7, 0.9]).startswith("GSGD-DP is below SGD-DP (-0.1000")
    assert told([0.5, 0.7], [0.4, 0.69]).startswith("no order of GSGD-DP and SGD-DP is shown")
    assert told([0.5], [0.4]) == "one run shows no order of GSGD-DP and SGD-DP"


def test_the_start_is_trained_on_records_that_no_user_holds() -> None:
    order = _order(CNN, 0)
    held = set(order[: CNN.users * CNN.examples].tolist())
    assert not held & set(order[-CNN.public :].tolist())
    assert start_accuracy(CNN) > start_accuracy(replace(CNN, public=0)) + 0.05
    too_many = replace(CNN, public=len(order))
    with pytest.raises(ValueError, match=r"users x examples \+ public must be at most"):
        _users(too_many, 0)


def test_a_start_is_handed_out_as_a_copy() -> None:
    one, other = started(CNN, 0), started(CNN, 0)
    next(iter(one.parameters())).data.zero_()
    assert next(iter(other.parameters())).abs().sum() > 0


def test_images_are_enlarged_pixel_by_pixel() -> None:
    plain, large = _data("digits", 1), _data("digits", 2)
    assert large.input_shape == tuple(2 * side for side in plain.input_shape)
    first = plain.train_x[0].reshape(plain.input_shape)
    assert np.array_equal(large.train_x[0][::2, ::2], first)
    assert np.array_equal(large.train_x[0][1::2, 1::2], first)
