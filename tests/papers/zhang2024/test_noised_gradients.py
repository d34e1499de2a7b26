"""Noised gradients at equal ε, in small: prices, starts, training, and the order that is said."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import cache

import numpy as np
import pytest
import torch
from torch import nn

from leakmeter.fl_app.task import load_task, record_rule
from leakmeter.papers.base import accuracy, audited_run
from leakmeter.papers.zhang2024.noised_gradients import (
    _SCALES,
    MECHANISMS,
    _data,
    compared,
    floor_of,
    relations,
    start_accuracy,
    task_of,
    trained,
)
from leakmeter.papers.zhang2024.prices import (
    full_gradient_epsilon,
    gaussian_sampling_epsilon,
    water_filling_epsilon,
)
from tests.helpers.numbers import first_fast
from tests.papers.small import Small, reproduce

Models = Callable[[str], Small]

NAMES = {"linear": "wfna-mnist", "cnn": "wfna-mnist-cnn"}
LINEAR, CNN = (_SCALES[variant]["small"] for variant in NAMES)
# Calibrated beforehand: the accountant of secret batches takes seconds; a slow test repeats it.
SGD_FLOORS = {
    "linear": {2.0: 0.08362, 16.0: 0.009614},
    "cnn": {8.0: 0.08789, 64.0: 0.008797},
}


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> Models:
    """Return what gives either model, priced beforehand and trained by whoever asks first."""

    @cache
    def get(variant: str) -> Small:
        priced = {f"small-SGD-DP-eps{e:g}-floor": x for e, x in SGD_FLOORS[variant].items()}
        name = NAMES[variant]
        return reproduce(name, tmp_path_factory.mktemp(name), priced)

    return get


@pytest.mark.slow
@pytest.mark.parametrize("variant", NAMES)
def test_every_mechanism_is_trained_at_every_epsilon(small: Models, variant: str) -> None:
    rows, epsilons = small(variant).rows, _SCALES[variant]["small"].epsilons
    assert {(r["mechanism"], float(r["ε"])) for r in rows} == {
        (name, e) for name in MECHANISMS for e in epsilons
    }
    assert all(float(r["ms a round"]) > 0 for r in rows)
    # One run has no standard deviation.
    assert all(("±" in r["accuracy"]) == (variant == "linear") for r in rows)


@pytest.mark.parametrize("variant", first_fast(1, NAMES))
def test_the_page_says_the_order_and_how_it_differs_from_the_paper(
    small: Models, variant: str
) -> None:
    page, found = small(variant).page, small(variant).table.comparisons
    epsilons = _SCALES[variant]["small"].epsilons
    for epsilon, order in zip(epsilons, found, strict=False):
        assert f"ε = {epsilon:g}" in order.what
        assert "GD-DP and GSGD-DP" in order.ours or "GD-DP is " in order.ours
    assert "not a guarantee" in page
    assert (f"{CNN.public} public records" in page) == (variant == "cnn")
    assert len(found) == len(epsilons) + 2  # the order at each ε, the time, the spectrum
    assert all(c.paper and c.ours and c.why for c in found)


def test_more_privacy_costs_accuracy_and_all_learn_something(small: Models) -> None:
    accuracy = {
        (r["mechanism"], float(r["ε"])): float(r["accuracy"].split()[0])
        for r in small("linear").rows
    }
    for name in MECHANISMS:
        assert accuracy[name, 16.0] > accuracy[name, 2.0] - 0.02
    assert accuracy["GD-DP", 16.0] > 0.7
    assert accuracy["GD-DP", 2.0] > accuracy["SGD-DP", 2.0]


def test_floors_are_the_least_that_keep_epsilon() -> None:
    config = LINEAR.config
    setting = {"users": config.clients, "clip": config.clip_norm, "examples": LINEAR.examples}
    rest = {"rounds": config.rounds, "delta": 1e-4}
    with_batch = {**setting, "batch": config.batch_size, **rest}
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
    order, times = compared(got, "linear model")
    assert order.ours == (
        "SGD-DP 0.3000, GSGD-DP 0.2000, GSGD isotropic 0.9000, GD-DP 0.4000; one run shows no "
        "order of GSGD-DP and SGD-DP; one run shows no order of GD-DP and GSGD-DP"
    )
    assert order.paper.startswith("GD-DP > GSGD-DP > SGD-DP")
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
    few = replace(LINEAR, public=100)
    start, held = task_of(few, 0).initial, np.concatenate(task_of(few, 0).parts)
    assert len(set(held.tolist())) == few.config.clients * few.examples
    # Other records at the users' end of the split change nothing, and a public one does.
    fewer = replace(few, examples=few.examples - 1)
    assert _same(task_of(fewer, 0).initial, start)
    assert not _same(task_of(replace(few, public=101), 0).initial, start)
    with pytest.raises(AssertionError):  # records that users hold are not public
        task_of(replace(LINEAR, public=2000), 0)


def _same(one: nn.Module, other: nn.Module) -> bool:
    pairs = zip(one.parameters(), other.parameters(), strict=True)
    return all(torch.equal(a, b) for a, b in pairs)


@pytest.mark.slow
def test_public_records_bring_the_start_off_its_plateau(small: Models) -> None:
    at_random = start_accuracy(replace(CNN, public=0))
    assert small("cnn").cells["small-start"] > at_random + 0.05


@pytest.mark.parametrize("noise", ["record-sgd", "wfna", "record-isotropic", "record-gd"])
def test_training_is_that_of_a_run_of_the_command_line(noise: str) -> None:
    # The same records, rules and streams: what is left is the rounding of the secure sum.
    config = replace(
        LINEAR.config,
        noise=noise,
        algorithm="gd" if noise == "record-gd" else "fedsgd",
        wfna_floor=1e-3,
        synthetic_examples=400,
        dataset="synthetic",
        rounds=3,
    )
    _, report = audited_run(config)
    task = load_task(config)
    for played in report["rounds"]:
        net, _ = trained(task, record_rule(config), played["server_round"], config.seed, ["train"])
        assert accuracy(task, net) == played["accuracy"]
    assert report["rounds"][-1]["accuracy"] > report["rounds"][0]["accuracy"]


def test_images_are_enlarged_pixel_by_pixel() -> None:
    plain, large = _data("digits", 1), _data("digits", 2)
    assert large.input_shape == tuple(2 * side for side in plain.input_shape)
    first = plain.train_x[0].reshape(plain.input_shape)
    assert np.array_equal(large.train_x[0][::2, ::2], first)
    assert np.array_equal(large.train_x[0][1::2, 1::2], first)
