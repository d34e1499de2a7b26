"""`--target-epsilon`: the planned run guarantees it, and hardly less."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Any

import pytest

from leakmeter.fl_app import deployment
from leakmeter.fl_app.build import strategy as calibrate
from leakmeter.fl_app.build.strategy import calibrated, planned_guarantee
from leakmeter.fl_app.cli.main import main
from leakmeter.fl_app.config.config import CALIBRATED, Config
from leakmeter.fl_app.config.field import ConfigError
from leakmeter.fl_app.report.judge import repeat_command
from leakmeter.fl_app.report.read import read_run
from leakmeter.fl_app.run.folder import RunFolder
from tests.helpers.numbers import first_fast
from tests.helpers.project import ROOT

PATTERNS = ("fixed", "poisson", "once", "epochs")
FAST = list(zip(("central", "distributed", "local", "local"), PATTERNS, strict=True))


@pytest.fixture
def plan(tiny_config: Config) -> Config:
    """Forty clients, ten of them in each of four rounds."""
    sizes: dict[str, Any] = {"clients": 40, "sample": 10, "rounds": 4, "auditors": "none"}
    return replace(tiny_config, noise="central", clip_norm=0.5, target_epsilon=2.0, **sizes)


NOISES = ("central", "distributed", "local")


@pytest.mark.parametrize(
    ("noise", "pattern"),
    # Each noise and each pattern once; the other pairs are slow.
    first_fast(4, sorted(product(NOISES, PATTERNS), key=lambda pair: pair not in FAST)),
)
def test_the_planned_run_guarantees_the_target_and_hardly_less(
    plan: Config, noise: str, pattern: str
) -> None:
    config = calibrated(replace(plan, noise=noise, participation=pattern))
    found = planned_guarantee(config)
    assert 0.99 * 2.0 < found.value <= 2.0
    assert found.threat_model.observer == ("outsider" if noise == "central" else "server")
    assert (found.adjacency, found.threat_model.knows_cohort) == ("zero-out", True)
    # With a little less noise it would not.
    less = replace(config, noise_multiplier=config.noise_multiplier * 0.999)
    assert planned_guarantee(less).value > 2.0


@pytest.mark.parametrize(
    ("changes", "epsilon", "delta"),
    [
        ({"secagg": "off"}, 2.0, 1e-5),
        ({"secagg": "off", "clipping": "adaptive", "sample": 30}, 5.0, 1e-5),
        ({"secagg_bits": 16}, 2.0, 1e-5),
        ({"noise": "distributed", "colluders": 0}, 2.0, 1e-5),
        ({"rounds": 50}, 0.05, 1e-9),
        ({"rounds": 1}, 900.0, 1e-3),
    ],
)
def test_other_settings_reach_their_target_too(
    plan: Config, changes: dict[str, Any], epsilon: float, delta: float
) -> None:
    config = calibrated(replace(plan, target_epsilon=epsilon, delta=delta, **changes))
    assert 0.99 * epsilon < planned_guarantee(config).value <= epsilon


@pytest.mark.parametrize("noise", NOISES)
def test_a_target_for_any_two_updates_costs_twice_the_noise(plan: Config, noise: str) -> None:
    # Without rounding, whose cost does not double.
    zeroed = replace(plan, noise=noise, secagg="off" if noise != "distributed" else "on")
    replaced = replace(zeroed, target_adjacency="replace")
    once, twice = calibrated(zeroed), calibrated(replaced)
    found = planned_guarantee(twice)
    assert (found.adjacency, found.value <= 2.0) == ("replace", True)
    assert twice.noise_multiplier == pytest.approx(2 * once.noise_multiplier, rel=1e-4)


def test_coarse_rounding_costs_noise(plan: Config) -> None:
    fine, coarse = (calibrated(replace(plan, secagg_bits=bits)) for bits in (32, 14))
    assert coarse.noise_multiplier > 1.01 * fine.noise_multiplier


@pytest.mark.parametrize("noise", first_fast(1, NOISES))
def test_a_whole_run_guarantees_what_was_asked_for(
    tiny: list[str], tmp_path: Path, capsys: Any, noise: str
) -> None:
    out = tmp_path / "run"
    words = ["--noise", noise, "--clip-norm", "0.5", "--target-epsilon", "3", "--rounds", "2"]
    more = ["--participation", "epochs", "--auditors", "none"]  # no amplification, which takes long
    assert main([*tiny, *words, *more, "--out", str(out)]) == 0
    said = " ".join(capsys.readouterr().out.split())
    report = json.loads((out / "report.json").read_text())
    multiplier = report["config"]["noise-multiplier"]
    assert f"noise multiplier {multiplier:g}, calibrated" in said
    assert said.index("calibrated") < said.index("round 1/2")
    observer = "outsider" if noise == "central" else "server"
    [epsilon] = [
        f["value"]
        for f in report["findings"]
        if f["auditor"] == "accountant"
        and (f["adjacency"], f["threat_model"]["observer"]) == ("zero-out", observer)
    ]
    assert 0.99 * 3 < epsilon <= 3
    # The settings can be used again, and the page's command as well.
    assert "noise-multiplier =" not in (out / "config.toml").read_text()
    again = repeat_command(read_run(out))
    assert again is not None
    assert "--target-epsilon 3 " in f"{again} "
    assert "--noise-multiplier" not in again


def test_a_resumed_run_has_the_noise_of_its_folder(plan: Config, tmp_path: Path) -> None:
    made = RunFolder.create(tmp_path / "run", plan)
    assert made.config.noise_multiplier == calibrated(plan).noise_multiplier != 1.0
    assert RunFolder.open(made.path).config == made.config
    (made.path / CALIBRATED).write_text("noise-multiplier = 7.25\n")
    assert RunFolder.open(made.path).config.noise_multiplier == 7.25
    (made.path / CALIBRATED).unlink()
    with pytest.raises(ConfigError, match=CALIBRATED):
        RunFolder.open(made.path)


def test_another_seed_is_calibrated_anew_from_the_file_of_a_run(
    plan: Config, tmp_path: Path
) -> None:
    made = RunFolder.create(tmp_path / "run", plan)
    read = Config.from_toml(made.path / "config.toml")
    assert read == plan  # the multiplier is the default again
    assert calibrated(read) == made.config


def test_both_a_target_and_a_multiplier_are_refused(
    tiny: list[str], tmp_path: Path, capsys: Any
) -> None:
    words = ["--noise", "central", "--clip-norm", "1", "--target-epsilon", "2"]
    assert main([*tiny, *words, "--noise-multiplier", "1", "--out", str(tmp_path / "run")]) == 2
    assert "noise-multiplier must be left out with --target-epsilon" in capsys.readouterr().err
    assert not (tmp_path / "run").exists()


def test_a_target_that_no_noise_reaches_is_refused(plan: Config) -> None:
    # Adaptive clipping allows multipliers below a tenth of the cohort only.
    config = replace(plan, secagg="off", clipping="adaptive", sample=30, target_epsilon=0.1)
    with pytest.raises(ConfigError, match="noise of at most 3 times the clip norm"):
        calibrated(config)


@pytest.mark.parametrize("noise", NOISES)
def test_a_target_whose_noise_drowns_every_update_is_refused_with_what_it_needs(
    plan: Config, noise: str
) -> None:
    """The run diverged, and was told to lower its learning rate."""
    with pytest.raises(ConfigError) as error:
        calibrated(replace(plan, noise=noise, target_epsilon=1e-9))
    said = str(error.value)
    assert said.startswith("--target-epsilon must be one whose noise leaves something to learn")
    [needed] = re.findall(r"--noise-multiplier ([\d.e+]+),", said)
    assert (
        planned_guarantee(replace(plan, noise=noise, noise_multiplier=float(needed))).value <= 1e-9
    )
    assert re.search(r"noise that is [\d,]+ times as long as a mean update may be", said)
    assert "Try --target-epsilon 8, or see what each costs: leakmeter sweep" in said


def test_in_a_deployment_somebody_may_take_part_in_every_round(
    plan: Config, monkeypatch: pytest.MonkeyPatch
) -> None:
    known = calibrated(plan).noise_multiplier
    monkeypatch.setattr(calibrate, "is_deployed", lambda: True)
    monkeypatch.setattr(deployment, "is_deployed", lambda: True)
    secret = calibrated(plan)
    assert secret.noise_multiplier > known
    assert planned_guarantee(secret).threat_model.participations == plan.rounds


@pytest.mark.slow
def test_the_command_line_plans_the_cohorts_of_its_seed(tmp_path: Path) -> None:
    # It planned those of a secret seed, as a deployment does, until a simulation was started.
    code = """
import sys
from leakmeter.fl_app.cli import main as cli
from leakmeter.fl_app.run import run
from leakmeter.fl_app import deployment
def planned(config, folder=None):
    print(deployment.is_deployed())
    raise SystemExit
run.preflight = planned
cli.main(["--dataset", "synthetic", "--model", "linear", "--out", sys.argv[1]])
"""
    done = subprocess.run(
        [sys.executable, "-c", code, str(tmp_path / "run")],
        cwd=ROOT, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.stdout.splitlines()[-1] == "False", done.stderr
