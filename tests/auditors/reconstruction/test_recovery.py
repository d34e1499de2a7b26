"""Originals are recovered if they fit better than every stranger, which chance seldom explains."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from leakmeter.auditors.reconstruction.inversion import RoundImages, _drawn, recovery
from leakmeter.auditors.rng import stream

PIXELS = 6
CHANCE = 0.05  # 99 batches serve any chance from 0.01 on


def round_of(rng: np.random.Generator, originals: int = 3, **changes: Any) -> RoundImages:
    """Return a round without labels, with a hundred strangers for each original."""
    images = rng.random((101 * originals, PIXELS))
    settings: dict[str, Any] = {"dealt": 100 * originals} | changes
    return RoundImages(images[:originals], images[originals:], **settings)


def test_images_that_came_back_are_all_counted() -> None:
    rng = stream(0, "recovery")
    known = round_of(rng)
    found = recovery(known.originals[::-1] + 1e-3, known, chance=CHANCE, rng=rng)
    assert (found.recovered, found.tested, found.batches) == (3, 3, 99)
    assert found.is_dealt
    assert found.worst == pytest.approx(60.0, abs=0.1)  # 0.001 on each pixel
    assert found.stranger < 40


def test_a_smaller_chance_to_be_wrong_takes_more_strangers() -> None:
    rng = stream(0, "recovery")
    known = round_of(rng)
    found = recovery(known.originals, known, chance=0.004, rng=rng)
    assert (found.tested, found.batches) == (1, 249)  # 300 strangers have no more batches of one


def test_without_a_leak_one_in_a_hundred_tests_is_wrong() -> None:
    """Of 800 tests 8 are expected: none, or more than 20, with a chance below 5e-4."""
    wrong = 0
    for trial in range(800):
        rng = stream(trial, "no leak")
        known = round_of(rng, originals=2)
        wrong += recovery(rng.random((2, PIXELS)), known, chance=CHANCE, rng=rng).recovered > 0
    assert 1 <= wrong <= 20


def test_one_image_that_came_back_does_not_count_for_the_others() -> None:
    """Two of five come back; a third is counted by chance in 1 % of tests, 3 of 300 expected."""
    more = 0
    for trial in range(300):
        rng = stream(trial, "partial leak")
        known = round_of(rng, originals=5)
        images = np.concatenate([known.originals[:2], rng.random((3, PIXELS))])
        count = recovery(images, known, chance=CHANCE, rng=rng).recovered
        assert count >= 2
        more += count > 2
    assert more <= 13  # beyond with a chance of 1e-5


def test_one_image_recovers_one_original() -> None:
    rng = stream(0, "twins")
    known = round_of(rng)
    twins = RoundImages(known.originals[[0, 0, 0]], known.strangers, dealt=300)
    assert recovery(known.originals[:1], twins, chance=CHANCE, rng=rng).recovered == 1


def test_a_stranger_that_is_equal_to_an_original_hides_it() -> None:
    rng = stream(0, "copy")
    known = round_of(rng, originals=1)
    known.strangers[:99] = known.originals[0]
    assert recovery(known.originals, known, chance=CHANCE, rng=rng).recovered == 0


@pytest.mark.parametrize(("control", "is_wrong"), [("same label", False), ("other label", True)])
def test_what_the_label_alone_gives_away_is_no_recovery(control: str, is_wrong: bool) -> None:
    """Each label is a brightness: who knows the label knows that much, and so do strangers of it.

    Compared with strangers of the other label, every round would look like a recovery.
    """
    labels = np.repeat([0, 1, 0], [2, 200, 200])
    count = 0
    for trial in range(100):
        rng = stream(trial, "labels")
        images = labels[:, None] / 2 + rng.random((402, PIXELS)) / 50
        known = RoundImages(
            images[:2],
            images[2:],
            labels=labels[:2] if control == "same label" else 1 - labels[:2],
            stranger_labels=labels[2:],
            dealt=400,
        )
        guess = np.full((2, PIXELS), 0.01)
        count += recovery(guess, known, chance=CHANCE, rng=rng).recovered > 0
    assert count == 100 if is_wrong else count <= 8  # one expected, beyond 8 with a chance of 1e-6


def test_too_few_strangers_test_nothing_and_strangers_of_unknown_origin_are_named() -> None:
    rng = stream(0, "few")
    known = round_of(rng, dealt=0)
    assert not recovery(known.originals, known, chance=CHANCE, rng=rng).is_dealt
    few = RoundImages(known.originals, known.strangers[:98], dealt=98)
    found = recovery(known.originals, few, chance=CHANCE, rng=rng)
    assert (found.recovered, found.tested) == (0, 0)


def test_no_record_is_in_two_batches_and_each_batch_has_the_labels_of_the_originals() -> None:
    rng = stream(0, "batches")
    labels, kinds = np.array([0, 0, 0, 1, 2]), rng.integers(0, 3, size=600)
    known = RoundImages(np.zeros((5, 1)), np.zeros((600, 1)), labels, kinds)
    tested, strangers = _drawn(known, 600, 99, rng)
    assert len(np.unique(strangers)) == len(strangers) == 99 * len(tested)
    assert np.array_equal(np.bincount(kinds[strangers]), 99 * np.bincount(labels[tested]))
    assert np.array_equal(np.bincount(labels[tested]), [np.sum(kinds == 0) // 99, 1, 1])
