"""`--noise-distribution`: what may be combined with it, and whole runs under integer noise."""

from __future__ import annotations

import json
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import pytest

from leakmeter.auditors.hook.wrapper import link
from leakmeter.auditors.noise import DISTRIBUTIONS
from leakmeter.fl_app import build
from leakmeter.fl_app.build.strategy import calibrated, planned_guarantee, server_strategy
from leakmeter.fl_app.cli.main import main
from leakmeter.fl_app.config import settings as tables
from leakmeter.fl_app.config.config import Config
from leakmeter.fl_app.config.field import ConfigError
from leakmeter.fl_app.report.read import read_run
from leakmeter.fl_app.run import budget
from leakmeter.fl_app.run.folder import RunFolder
from leakmeter.fl_app.run.launch import launch
from leakmeter.fl_app.run.progress import Progress
from leakmeter.strategies import Local, Noised
from tests.helpers.refusals import refuses
from tests.strategies.protection.laplace import Laplace

INTEGER = ("skellam", "discrete-gaussian")


def test_every_distribution_can_be_chosen() -> None:
    assert {name: kind.is_integer for name, kind in DISTRIBUTIONS.items()} == tables.DISTRIBUTIONS


def test_a_new_distribution_over_the_reals_can_be_chosen_for_local_noise(
    noised: Config, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(DISTRIBUTIONS, "laplace", Laplace())
    monkeypatch.setitem(tables.DISTRIBUTIONS, "laplace", False)  # type: ignore[arg-type]
    [spec] = [f for f in fields(Config) if f.name == "noise_distribution"]
    names = {**spec.metadata, "choices": tuple(tables.DISTRIBUTIONS)}
    monkeypatch.setattr(spec, "metadata", names)
    local = replace(noised, noise="local", noise_distribution="laplace")
    found = link(build.server_strategy(local), Noised)
    assert found is not None
    assert found.mechanism == Local(local.noise_multiplier, "laplace")


@pytest.fixture
def noised(tiny_config: Config) -> Config:
    """Eight clients, six in each of two rounds."""
    sizes: dict[str, Any] = {"clients": 8, "sample": 6, "rounds": 2, "auditors": "none"}
    return replace(
        tiny_config, noise="distributed", clip_norm=0.5, noise_distribution="skellam", **sizes
    )


def test_too_few_bits_for_a_proof_are_refused_before_anybody_trains(noised: Config) -> None:
    coarse = replace(
        noised, noise_distribution="discrete-gaussian", secagg_bits=8, noise_multiplier=0.01
    )
    with pytest.raises(ConfigError, match=r"--secagg-bits 8 .* Try --secagg-bits 16"):
        server_strategy(coarse)


@pytest.mark.parametrize("noise", ["central", "distributed"])
@pytest.mark.parametrize("law", INTEGER)
def test_a_target_is_calibrated_under_the_law(noised: Config, law: str, noise: str) -> None:
    bits = 12 if noise == "distributed" else 32
    plan = replace(
        noised, noise=noise, noise_distribution=law, target_epsilon=3.0, secagg_bits=bits
    )
    config = calibrated(plan)
    assert 0.99 * 3 < planned_guarantee(config).value <= 3
    assert planned_guarantee(config).facts["distribution"] == law
    gaussian = calibrated(replace(plan, noise_distribution="gaussian"))
    assert gaussian.noise_multiplier < config.noise_multiplier


def test_a_target_that_few_bits_cannot_reach_is_refused(noised: Config) -> None:
    with pytest.raises(ConfigError, match=r"must be one that noise .* more --secagg-bits than 8"):
        calibrated(replace(noised, target_epsilon=0.01, secagg_bits=8))


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"sample": 3, "clients": 60, "seed": 6, "rounds": 1}, "--sample"),
        (
            {
                "noise_distribution": "discrete-gaussian",
                "secagg_bits": 8,
                "noise_multiplier": 0.048,
            },
            "--secagg-bits",
        ),
    ],
)
def test_a_plan_without_a_price_is_refused(
    noised: Config, tmp_path: Path, changes: dict[str, Any], reason: str
) -> None:
    """A Poisson cohort may be too small for a sum, or so large that its grid is too coarse."""
    poisson = {"participation": "poisson", "ledger": str(tmp_path / "l"), "rounds": 30}
    config = replace(noised, **{**poisson, **changes})
    with refuses(reason):
        budget._planned(config, build.server_strategy(config), "plan")


def test_the_report_says_the_law(noised: Config, tmp_path: Path) -> None:
    launch(RunFolder.create(tmp_path / "run", noised), Progress())
    found = [f for f in read_run(tmp_path / "run").findings if f.auditor == "accountant"]
    assert {f.facts["distribution"] for f in found} == {"skellam"}
    assert all("uniform-bits" in f.assumptions for f in found)


@pytest.mark.parametrize("law", ["gaussian", "skellam"])
def test_trials_with_gaussian_noise_are_conditional_under_integer_noise(
    panel: list[str], tmp_path: Path, law: str
) -> None:
    words = [
        "--noise",
        "distributed",
        "--clip-norm",
        "0.5",
        "--noise-distribution",
        law,
        "--rounds",
        "1",
    ]
    more = ["--auditors", "likelihood-ratio", "--out", str(tmp_path / "run")]
    assert main([*panel, *words, *more]) == 0
    found = [f for f in read_run(tmp_path / "run").findings if f.kind == "lower_bound"]
    assert found
    assert {"gaussian-trials" in f.assumptions for f in found} == {law == "skellam"}
    assert {f.is_conditional for f in found} == {law == "skellam"}


def test_the_earlier_name_of_the_setting_is_accepted_and_hidden(
    capsys: pytest.CaptureFixture[str],
) -> None:
    words = {"noise": "central", "clip-norm": 1.0, "noise-law": "skellam"}
    assert Config.from_mapping(words).noise_distribution == "skellam"
    with pytest.raises(SystemExit):
        main(["--help", "all"])
    helped = capsys.readouterr().out
    assert "--noise-distribution" in helped
    assert "--noise-law" not in helped


# --clip-aggregate from the command line.


@pytest.mark.parametrize(
    "more",
    [
        ["--auditors", "one-shot,likelihood-ratio"],
        ["--auditors", "one-shot", "--noise", "central", "--clip-norm", "1"],
        ["--auditors", "none", "--noise", "distributed", "--clip-norm", "1", "--sample", "5"],
    ],
    ids=["none", "central", "distributed"],
)
def test_a_run_clips_its_aggregate_and_says_who_sees_it(
    more: list[str], tmp_path: Path, tiny: list[str]
) -> None:
    out = tmp_path / "run"
    short = ["--rounds", "2", "--clip-aggregate", "0.01", "--out", str(out)]
    assert main([*tiny, *more, *short]) == 0
    report = json.loads((out / "report.json").read_text())
    said = [one["text"] for one in report["limitations"]]
    assert any("clips the mean update after it has seen it" in text for text in said)
