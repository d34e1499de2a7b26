"""The worked examples of the textbook chapter."""

from __future__ import annotations

import numpy as np
import pytest

from leakmeter.papers import textbook as book
from leakmeter.papers.gaussian import delta_gaussian
from tests.papers.small import Reproduced


def test_the_printed_noise_is_right_to_its_rounding_and_far_more_than_needed() -> None:
    noise = book.noise_scales()
    assert noise["classical"] == pytest.approx(428.7644353553195, rel=1e-14)
    assert abs(noise["classical"] - 428.775) < 0.02
    assert noise["all rounds"] < noise["one round"] < noise["classical"]
    # The exact noise spends the whole budget, no more.
    assert delta_gaussian(2.0, 10 * 1.5 / noise["all rounds"]) == pytest.approx(1e-5, rel=1e-9)
    assert delta_gaussian(0.02, 1.5 / noise["one round"]) == pytest.approx(1e-7, rel=1e-9)
    assert noise["delivered"] < 2.0


@pytest.mark.parametrize("bits", [8, 32, 64])
def test_masks_cancel_as_printed_and_in_the_ring(bits: int) -> None:
    found = book.masked_values(bits)
    assert found["sent"] == [-3, 7, 20]
    assert sum(found["sent"]) == found["ring sum"] == 24


@pytest.mark.slow
def test_both_examples_are_set_beside_what_is_printed(reproduced: Reproduced) -> None:
    table = reproduced("textbook-examples").table
    assert [row.source for row in table.comparisons[:2]] == [
        f"Textbook chapter, worked example {i}" for i in (1, 2)
    ]
    assert table.comparisons[0].ours == "σ = 428.7644"
    assert table.comparisons[1].why == ""


@pytest.mark.slow
def test_longer_training_is_clipped_more_often_and_noise_ends_inversion(
    reproduced: Reproduced,
) -> None:
    cells = reproduced("textbook-examples").cells
    shares = [np.mean(np.array(cells[f"small-clipped-E{e}"]) > 1.5) for e in (1, 5, 7, 10)]
    assert shares == sorted(shares)
    assert shares[0] < 0.5 < shares[-1]
    bare, drowned = (
        np.mean(cells[f"small-dlg-{name}"]["psnr"])
        - np.mean(cells[f"small-dlg-{name}"]["strangers"])
        for name in ("Cinf-z0", "C1.5-z1-rescaled")
    )
    assert bare > 5 > 3 > drowned


def test_an_attacker_undoes_clipping_by_the_output_bias() -> None:
    bias = np.full(10, 0.1)
    bias[3] -= 1  # an untrained model, and the label 3
    assert book._undone(np.concatenate([np.ones(7), bias])) == pytest.approx(1)
    assert book._undone(0.25 * np.concatenate([np.ones(7), bias])) == pytest.approx(4)
