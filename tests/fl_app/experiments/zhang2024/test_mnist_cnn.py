"""The comparison of noised gradients with a CNN, in small: priced, started and trained alike."""

from __future__ import annotations

import csv
import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from leakmeter.fl_app.cli.main import main
from leakmeter.fl_app.experiments.zhang2024.mnist_cnn import _SCALES
from leakmeter.fl_app.experiments.zhang2024.page import RANKED
from leakmeter.fl_app.experiments.zhang2024.training import (
    _data,
    _order,
    _users,
    start_accuracy,
    started,
)

SMALL = _SCALES["small"]
# Calibrated beforehand: the accountant of secret batches takes seconds.
SGD_FLOORS = {8.0: 0.08789, 64.0: 0.008797}


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("reproduced") / "wfna-cnn"
    (path / "cells").mkdir(parents=True)
    for epsilon, floor in SGD_FLOORS.items():
        (path / "cells" / f"small-SGD-DP-eps{epsilon:g}-floor.json").write_text(str(floor))
    assert main(["reproduce", "wfna-mnist-cnn", "--scale", "small", "--out", str(path)]) == 0
    return path


def test_every_mechanism_stands_at_every_epsilon_with_its_time(small: Path) -> None:
    with (small / "table.csv").open(encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    assert {(r["mechanism"], float(r["ε"])) for r in rows} == {
        (name, e) for name in RANKED for e in SMALL.epsilons
    }
    assert all(float(r["ms a round"]) > 0 for r in rows)
    assert all("±" not in r["accuracy"] for r in rows)  # of one run there is no spread


def test_the_page_says_where_it_starts_and_how_it_differs_from_the_paper(small: Path) -> None:
    text = (small / "table.md").read_text()
    assert f"{SMALL.public} public records" in text
    found = json.loads((small / "table.json").read_text())["comparisons"]
    assert len(found) == len(SMALL.epsilons) + 2  # the order at each ε, the time, the spectrum
    assert all(c["paper"] and c["ours"] and c["why"] for c in found)


def test_the_start_is_trained_on_records_that_no_user_holds() -> None:
    order = _order(SMALL, 0)
    held = set(order[: SMALL.users * SMALL.examples].tolist())
    assert not held & set(order[-SMALL.public :].tolist())
    assert start_accuracy(SMALL) > start_accuracy(replace(SMALL, public=0)) + 0.05
    too_many = replace(SMALL, public=len(order))
    with pytest.raises(ValueError, match=r"users x examples \+ public must be at most"):
        _users(too_many, 0)


def test_a_start_is_handed_out_as_a_copy() -> None:
    one, other = started(SMALL, 0), started(SMALL, 0)
    next(iter(one.parameters())).data.zero_()
    assert next(iter(other.parameters())).abs().sum() > 0


def test_images_are_enlarged_pixel_by_pixel() -> None:
    plain, large = _data("digits", 1), _data("digits", 2)
    assert large.input_shape == tuple(2 * side for side in plain.input_shape)
    first = plain.train_x[0].reshape(plain.input_shape)
    assert np.array_equal(large.train_x[0][::2, ::2], first)
    assert np.array_equal(large.train_x[0][1::2, 1::2], first)
