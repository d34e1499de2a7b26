"""Figures and orders in the sentences of the documentation follow from the kept results."""

from __future__ import annotations

import json
import re

import pytest

from leakmeter.auditors.audited_round import Trials
from tests.helpers.project import ROOT

DOCS = ROOT / "docs"
ORDER = ("GD-DP", "GSGD-DP", "SGD-DP")  # as published, the best first


def page(name: str) -> str:
    """Return a page in one line."""
    return " ".join((DOCS / name).read_text(encoding="utf-8").split())


def accuracies(name: str) -> dict[float, dict[str, float]]:
    """Return the mean accuracy of each mechanism, by ε."""
    rows = json.loads((DOCS / "results" / name / "table.json").read_text())["rows"]
    found: dict[float, dict[str, float]] = {}
    for mechanism, epsilon, _, _, accuracy, _ in rows:
        found.setdefault(epsilon, {})[mechanism] = float(accuracy.split(" ")[0])
    return found


def comparisons(name: str) -> tuple[int, int]:
    """Return how many comparisons show the published order, and how many there are."""
    kept = json.loads((DOCS / "results" / name / "table.json").read_text())["comparisons"]
    ours = " ".join(one["ours"] for one in kept if "accuracy" in one["what"])
    shown = len(re.findall(r"(?:GD-DP|GSGD-DP) is above (?:GSGD-DP|SGD-DP)", ours))
    return shown, shown + len(re.findall(r"no order of", ours))


@pytest.mark.parametrize("name", ["wfna-mnist", "wfna-mnist-cnn"])
def test_the_page_counts_the_comparisons_that_show_the_published_order(name: str) -> None:
    shown, total = comparisons(name)
    assert f"{shown} of {total} comparisons shows" in page("water-filling.md")


def test_means_of_the_linear_model_have_the_published_order_and_filling_is_below_isotropic() -> (
    None
):
    assert "have this order at every ε" in page("water-filling.md")
    for means in accuracies("wfna-mnist").values():
        assert sorted(ORDER, key=lambda one: -means[one]) == list(ORDER)
        assert means["GSGD-DP"] <= means["GSGD isotropic"]


def test_the_page_says_how_far_apart_the_means_of_the_cnn_are() -> None:
    spread = max(
        max(one.values()) - min(one.values()) for one in accuracies("wfna-mnist-cnn").values()
    )
    assert f"differ by up to {100 * spread:.1f} points" in page("water-filling.md")


@pytest.mark.parametrize(("trials", "words"), [(60, "2.7"), (1000, "5.5"), (5000, "7.15")])
def test_the_caps_of_the_likelihood_ratio_are_those_of_trials_without_an_error(
    trials: int, words: str
) -> None:
    assert words in page("likelihood-ratio.md")
    assert cap(trials, 0.95) == pytest.approx(float(words), abs=0.05)


def test_the_cap_of_the_default_job_is_that_of_all_its_bounds_and_rounds() -> None:
    # Two bounds of the canaries and one of the trials share 5 %; 30 rounds share the last.
    [stated] = re.findall(r"bound is capped at ([\d.]+)\.", page("likelihood-ratio.md"))
    assert cap(300, 1 - 0.05 / 3 / 6) == pytest.approx(float(stated), abs=0.01)


@pytest.mark.parametrize(
    "name", ["../README.md", "index.md", "quick-start.md", "tutorial/first-run.md"]
)
def test_the_default_job_takes_as_long_as_the_pages_say(name: str) -> None:
    """It was "about a minute" when it took half of one, and so on."""
    text = page(name).lower()
    assert "half a minute" in text
    assert "less than" not in text.split("half a minute")[0][-12:]  # on two busy cores it is more
    kept = json.loads((DOCS / "benchmarks.json").read_text(encoding="utf-8"))
    [job] = [one["rows"][0] for one in kept if one["name"] == "default_job"]
    assert job["unit"] == "CPU s"
    assert 30 / 3 < max(job["ours"]) < 30


def cap(trials: int, confidence: float) -> float:
    """Return the most that so many trials can show."""
    import numpy as np

    played = Trials(np.ones(trials), -np.ones(trials), threshold=0.0)
    found = played.bound(1e-5, confidence).cap
    assert found is not None
    return found
