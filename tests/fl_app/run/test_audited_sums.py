"""The likelihood-ratio audit in whole runs: every game, every mechanism, beside its guarantee."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from leakmeter.auditors.bounds.gaussian import epsilon_gaussian
from tests.helpers.numbers import few_or_many, first_fast
from tests.helpers.runs import run_of

AUDIT = ["--auditors", "likelihood-ratio", "--lrt-every", "0", "--lrt-trials", "40"]
SMALL = ["--lrt-fit", "60", "--lrt-candidates", "20", "--sample", "5", "--rounds", "1"]


def findings(tiny: list[str], out: Path, *arguments: str) -> list[dict[str, Any]]:
    """Return what a small audited run reports."""
    found: list[dict[str, Any]] = run_of(out, *tiny, *AUDIT, *SMALL, *arguments)["findings"]
    rounds = [json.loads(line) for line in (out / "rounds.jsonl").read_text().splitlines()]
    return found + [f for line in rounds for f in line["findings"] if f not in found]


def of(found: list[dict[str, Any]], quantity: str, kind: str) -> dict[str, Any]:
    """Return the first finding of the auditor with this quantity and kind."""
    ours = [f for f in found if f["auditor"] == "likelihood-ratio"]
    return next(f for f in ours if (f["quantity"], f["kind"]) == (quantity, kind))


@pytest.mark.parametrize(
    "game", first_fast(2, ["partition", "independent-held-out", "rerun", "independent"])
)
def test_every_game_is_played_under_secure_aggregation(
    game: str, tiny: list[str], tmp_path: Path
) -> None:
    found = findings(tiny, tmp_path / "run", "--lrt-game", game)
    bound = of(found, "epsilon", "lower_bound")
    attacker = bound["threat_model"]
    assert (attacker["game"], attacker["observer"]) == (game, "server")
    assert (bound["adjacency"], bound["unit"]) == ("replace", "client")
    # Five clients and 210 parameters: nothing hides, and 40 trials cap what can be shown.
    assert bound["value"] > 1
    assert of(found, "guess", "diagnostic")["facts"]["right"]


@pytest.mark.parametrize("algorithm", few_or_many("fedprox", "fedsgd"))
def test_other_clients_are_audited_as_well(algorithm: str, tiny: list[str], tmp_path: Path) -> None:
    found = findings(tiny, tmp_path / "run", "--algorithm", algorithm, "--batch-size", "4")
    assert of(found, "epsilon", "lower_bound")["value"] > 0


def test_full_batches_on_known_data_hide_nothing(tiny: list[str], tmp_path: Path) -> None:
    found = findings(tiny, tmp_path / "run", "--algorithm", "gd", "--lrt-game", "rerun")
    said = of(found, "certain separation", "diagnostic")
    # 40 trials are too few to speak of certainty, so 60 draws are taken.
    assert (said["facts"]["draws"], said["facts"]["largest chance"]) == (60, 0.05)


@pytest.mark.parametrize(
    ("noise", "observer"), [("central", "outsider"), ("distributed", "server"), ("local", "server")]
)
def test_bounds_stay_below_the_guarantee_of_the_same_observer(
    noise: str, observer: str, tiny: list[str], tmp_path: Path
) -> None:
    arguments = ("--noise", noise, "--clip-norm", "0.5", "--noise-multiplier", "2")
    found = findings(tiny, tmp_path / "run", *arguments)
    bound = of(found, "epsilon", "lower_bound")
    assert bound["threat_model"]["observer"] == observer
    # Replacing an update of norm C moves the sum by 2C at most; the noise on it is at least 2C,
    # or 2C in each of the shares that are needed.
    assert bound["value"] <= epsilon_gaussian(bound["delta"], 2 / 2)
    assert bound["value"] < 1.0  # which 40 trials can hardly see


def test_little_noise_is_seen_through(tiny: list[str], tmp_path: Path) -> None:
    arguments = ("--noise", "central", "--clip-norm", "0.5", "--noise-multiplier", "0.01")
    found = findings(tiny, tmp_path / "run", *arguments)
    assert of(found, "epsilon", "lower_bound")["value"] > 1


def test_skewed_labels_and_unequal_clients_are_audited(tiny: list[str], tmp_path: Path) -> None:
    found = findings(tiny, tmp_path / "run", "--partition", "dirichlet-labels", "--lrt-target", "2")
    assert of(found, "epsilon", "lower_bound")["facts"]["target"] == 2


@pytest.mark.parametrize("rounds", few_or_many(1, 8))
@pytest.mark.parametrize(
    "arguments",
    first_fast(
        2,
        [
            ["--partition", "dirichlet-labels", "--lrt-game", "rerun"],
            ["--noise", "central", "--clip-norm", "0.1", "--noise-multiplier", "0.05"],
            ["--auditors", "likelihood-ratio,one-shot", "--sample", "7", "--canary-seats", "3"],
            ["--partition", "dirichlet-labels"],
            ["--partition", "dirichlet"],
            ["--lrt-game", "partition"],
        ],
    ),
    ids=["unequal weights", "clipped", "canaries", "unequal data", "own shares", "one deal"],
)
def test_guesses_about_released_sums_are_as_often_right_as_they_say(
    arguments: list[str], rounds: int, tiny: list[str], tmp_path: Path
) -> None:
    size = ["--clients", "12", "--synthetic-examples", "600", "--sample", "10"]
    size += ["--rounds", str(rounds), "--lrt-fit", "450", "--lrt-every", "1"]
    found = findings(tiny, tmp_path / "run", *size, *arguments)
    guesses = [f["facts"] for f in found if f["quantity"] == "guess"]
    assert len(guesses) == rounds
    # Without a Gaussian model of the scores nothing is expected of a guess.
    stated = [g for g in guesses if g["expected_error"] is not None]
    wrong = sum(not g["right"] for g in stated)
    expected = sum(g["expected_error"] for g in stated)
    assert wrong <= expected + 3 * max(expected, 0.1) ** 0.5
