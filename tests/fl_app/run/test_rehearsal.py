"""A rehearsal is the run without its auditors: same model, same guarantees, and nothing on disk."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import numpy as np
import pytest

import leakmeter
from leakmeter.auditors import Auditor, RoundView
from leakmeter.auditors.finding import Finding
from leakmeter.auditors.wording import Assumption
from leakmeter.fl_app.cli.main import main
from leakmeter.fl_app.config.config import Config
from leakmeter.fl_app.config.field import ConfigError
from leakmeter.fl_app.report.read import Run, read_run
from leakmeter.fl_app.run import rehearsal as advice
from leakmeter.fl_app.run.folder import RunFolder
from leakmeter.fl_app.run.launch import launch
from leakmeter.fl_app.run.progress import Progress
from leakmeter.fl_app.run.rehearsal import alone, rehearse, with_clip_norm, without_noise
from leakmeter.fl_app.run.run import new_run
from tests.helpers.numbers import first_fast
from tests.helpers.refusals import refuses
from tests.helpers.runs import Dying, report_of

NOISES: Mapping[str, Mapping[str, Any]] = {
    "none": {},
    "central": {"noise": "central", "clip_norm": 0.5},
    "central without sums": {"noise": "central", "clip_norm": 0.5, "secagg": "off"},
    "adaptive": {
        "noise": "central",
        "clip_norm": 0.5,
        "clipping": "adaptive",
        "noise_multiplier": 0.2,
        "canary_seats": 3,
    },
    "distributed": {"noise": "distributed", "clip_norm": 0.5},
    "few colluders": {"noise": "distributed", "clip_norm": 0.5, "colluders": 1},
    "skellam": {"noise": "distributed", "clip_norm": 0.5, "noise_distribution": "skellam"},
    "local": {"noise": "local", "clip_norm": 0.5, "secagg": "off"},
    "signed": {"noise": "distributed", "clip_norm": 0.5, "secagg": "active"},
    "dropouts": {"noise": "distributed", "clip_norm": 0.5, "dropout": 0.1},
    "poisson": {"noise": "central", "clip_norm": 0.5, "participation": "poisson"},
    "wfna": {"noise": "wfna", "clip_norm": 0.5, "wfna_floor": 0.1, "algorithm": "fedsgd"},
}


class Tap(Auditor):
    """Keeps what the plain updates of each round are, as auditors of a simulation get them."""

    name, wants_truth = "tap", True

    def __init__(self) -> None:
        self.views: list[RoundView] = []

    def observe(self, view: RoundView) -> tuple[()]:
        self.views.append(view)
        return ()

    @property
    def norms(self) -> list[float]:
        return [float(np.linalg.norm(u)) for view in self.views for u in view.truth.values()]


def run(config: Config, path: Path, auditors: list[Auditor] | None = None) -> Run:
    return launch(new_run(config, path), Progress(), auditors)


def guarantees(findings: tuple[Finding, ...]) -> list[tuple[float, str, str | None]]:
    found = [f for f in findings if f.kind == "guarantee" and f.quantity == "epsilon"]
    return sorted((f.value, f.observer, f.adjacency) for f in found if f.auditor == "accountant")


@pytest.mark.parametrize("name", first_fast(2, NOISES))
def test_without_canaries_it_is_the_run_to_the_last_bit(
    name: str, tiny_config: Config, tmp_path: Path
) -> None:
    config = alone(replace(tiny_config, **NOISES[name]))
    made, found = run(config, tmp_path / "run"), rehearse(config)
    assert found.accuracies == tuple(one.accuracy for one in made.rounds)
    assert guarantees(found.guarantees) == guarantees(made.findings)
    assert found.settings == {}


@pytest.mark.parametrize("name", first_fast(1, ["distributed", "wfna", "central", "local"]))
def test_canary_seats_stay_in_the_cohorts_so_guarantees_are_those_of_the_audited_run(
    name: str, tiny_config: Config, tmp_path: Path
) -> None:
    config = replace(tiny_config, clients=12, sample=8, **NOISES[name])
    made, found = run(config, tmp_path / "run"), rehearse(config)
    assert found.settings == {"auditors": "none", "sample": 10}
    ours, theirs = guarantees(found.guarantees), guarantees(made.findings)
    if name == "wfna":  # where a canary replaces the update that would have hidden others
        assert [a[1:] for a in ours] == [b[1:] for b in theirs]
        assert all(a[0] < b[0] for a, b in zip(ours, theirs, strict=True))
    else:
        assert ours == theirs
    # Its clients all train: canaries change the model, though noise may hide that from accuracy.
    if name != "local":
        assert found.accuracies != tuple(one.accuracy for one in made.rounds)


@pytest.mark.parametrize("name", first_fast(1, ["adaptive", "none", "central", "distributed"]))
def test_norms_and_clipped_share_are_those_that_a_tap_sees(
    name: str, tiny_config: Config, tmp_path: Path
) -> None:
    config = alone(replace(tiny_config, **NOISES[name]))
    tap = Tap()
    run(config, tmp_path / "run", [tap])
    found = rehearse(config)
    for share in (0.05, 0.5, 0.95):
        expected = np.quantile(tap.norms, share, method="inverted_cdf")
        assert found.norm(share) == pytest.approx(expected, rel=1e-12)
    limits = [v.facts.clip_norm for v in tap.views for _ in v.truth]
    over = [n > c for n, c in zip(tap.norms, limits, strict=True) if c is not None]
    assert found.clipped_share == (sum(over) / len(over) if over else None)
    assert found.clip_norm == tap.views[-1].facts.clip_norm


@pytest.mark.parametrize("name", first_fast(1, ["distributed", "central", "local"]))
def test_the_signal_is_the_mean_clipped_update_and_the_noise_is_on_all_coordinates(
    name: str, tiny_config: Config, tmp_path: Path
) -> None:
    config = alone(replace(tiny_config, **NOISES[name]))
    tap = Tap()
    run(config, tmp_path / "run", [tap])
    ratios = []
    for view in tap.views:
        clipped = [u * min(0.5 / np.linalg.norm(u), 1.0) for u in view.truth.values()]
        assert view.facts.noise_std is not None
        noise = view.facts.noise_std * math.sqrt(view.sent.size)
        ratios.append(float(np.linalg.norm(np.mean(clipped, axis=0))) / noise)
    assert rehearse(config).signal_to_noise == pytest.approx(np.median(ratios), rel=1e-9)


def test_noise_that_grows_lowers_the_signal_in_proportion(tiny_config: Config) -> None:
    # One round: later ones start from other models.
    config = replace(tiny_config, rounds=1, noise="central", clip_norm=0.5)
    one, ten = (rehearse(replace(config, noise_multiplier=z)) for z in (1.0, 10.0))
    assert one.signal_to_noise is not None
    assert ten.signal_to_noise == pytest.approx(one.signal_to_noise / 10)
    assert rehearse(without_noise(config)).signal_to_noise is None


def test_nothing_is_written_and_no_ledger_is_charged(
    tiny_config: Config, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    ledger = str(tmp_path / "ledger.jsonl")
    rehearse(replace(tiny_config, noise="central", clip_norm=1.0, ledger=ledger, seed=5))
    assert list(tmp_path.iterdir()) == []


def auto(config: Config, **more: Any) -> Config:
    values = {**config.to_mapping(), "noise": "distributed", "clip-norm": "auto", **more}
    return Config.from_mapping(values)


def test_an_automatic_clip_norm_is_the_quantile_of_norms_without_noise(tiny_config: Config) -> None:
    for share in (0.5, 0.8):
        config = auto(tiny_config, **{"clip-quantile": share})
        assert config.measures_clip
        found, rehearsal = with_clip_norm(config)
        assert rehearsal is not None
        assert found.clip_norm == float(f"{rehearsal.norm(share):.3g}") > 0
        assert not found.measures_clip
        assert with_clip_norm(found) == (found, None)
        assert rehearsal.settings["noise"] == "none"
        assert rehearsal == replace(rehearse(without_noise(config)), settings=rehearsal.settings)


def test_a_run_keeps_the_measured_norm_for_resume_report_and_a_command_to_repeat(
    tiny_config: Config, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config = auto(tiny_config)
    norm, rehearsal = with_clip_norm(config)[0].clip_norm, with_clip_norm(config)[1]
    assert rehearsal is not None
    run(config, tmp_path / "whole")
    with pytest.raises(KeyboardInterrupt):
        launch(new_run(config, tmp_path / "cut"), Dying(2))
    assert RunFolder.open(tmp_path / "cut").config.clip_norm == norm
    assert main(["--resume", str(tmp_path / "cut")]) == 0
    whole, cut = (report_of(tmp_path / name) for name in ("whole", "cut"))
    assert whole == cut
    assert whole["config"]["clip-norm"] == norm
    assert whole["config"]["clipping"] == "measured"
    measured = whole["rehearsal"][0]
    assert measured["accuracies"] == list(rehearsal.accuracies)
    assert measured["settings"]["auditors"] == "none"
    assert f"--clip-norm {norm:g} --clipping measured" in capsys.readouterr().out


def test_a_replay_takes_the_number_and_rehearses_nothing(
    tiny_config: Config, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = run(auto(tiny_config, auditors="one-shot,recorder"), tmp_path / "kept")
    monkeypatch.setattr("leakmeter.fl_app.run.rehearsal._rehearsed", None)
    assert main(["replay", str(tmp_path / "kept"), "--out", str(tmp_path / "again")]) == 0
    again = report_of(tmp_path / "again")
    assert again["config"]["clip-norm"] == made.config["clip-norm"]
    assert again["config"]["clipping"] == "measured"


def test_the_price_of_a_measured_norm_is_said_in_finding_limits_and_terminal(
    tiny_config: Config, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    own = {**vars(auto(tiny_config)), "clip_norm": "auto"}
    del own["clipping"]
    leakmeter.run(**own, out=tmp_path / "run", quiet=False)
    made = read_run(tmp_path / "run")
    priced = [f for f in made.findings if f.kind == "guarantee" and f.auditor == "accountant"]
    assert priced
    assert all(Assumption.PUBLIC_CLIP_NORM in f.assumptions for f in priced)
    [limit] = [one.text for one in made.limitations if one.auditor == "accountant"]
    assert "do not cover what the choice of the norm reveals" in limit
    assert "no guarantee covers this choice" in capsys.readouterr().out
    usual = rehearse(replace(tiny_config, noise="distributed", clip_norm=0.5))
    assert not any(Assumption.PUBLIC_CLIP_NORM in f.assumptions for f in usual.guarantees)


def test_updates_without_a_finite_norm_are_refused_with_what_to_do(tiny_config: Config) -> None:
    with (
        np.errstate(all="ignore"),
        refuses("--clip-norm"),
    ):
        with_clip_norm(auto(tiny_config, model="mlp", lr=1e30))


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"noise": "none"}, "--clip-norm must be 0 with --noise none, which clips nothing, got 'a"),
        (
            {"noise": "wfna", "wfna-floor": 0.1, "algorithm": "fedsgd"},
            "--clip-norm must be a number with --noise wfna, which clips single gradients, got 'a",
        ),
        ({"clipping": "adaptive"}, "--clip-norm must be a number with --clipping adaptive, which"),
        ({"ledger": "l"}, "--clip-norm must be a number with --ledger, which cannot count the"),
        ({"clip-norm": "automatic"}, "--clip-norm must be a number, got 'automatic'"),
        (
            {"noise": "record-gd", "wfna-floor": 0.1, "clip-norm": 1.0, "clipping": "measured"},
            "--clipping must be fixed with --noise record-gd",
        ),
    ],
)
def test_an_automatic_clip_norm_goes_only_with_noise_on_whole_updates(
    values: dict[str, Any], message: str
) -> None:
    with pytest.raises(ConfigError) as caught:
        Config.from_mapping({"noise": "central", "clip-norm": "auto", **values})
    assert str(caught.value).startswith(message)


def test_a_damaged_rehearsal_is_named(tiny_config: Config, tmp_path: Path) -> None:
    folder = RunFolder.create(tmp_path / "run", tiny_config)
    assert folder.rehearsal is None
    (folder.path / "rehearsal.json").write_text("{")
    with pytest.raises(ConfigError, match=r"rehearsal\.json must be a rehearsal as this release"):
        launch(folder, Progress())


@pytest.mark.parametrize(
    ("auditors", "rounds", "played"),
    [("none", 30, []), ("one-shot", 13, []), ("one-shot", 14, [1]), ("one-shot", 40, [3])],
)
def test_advice_is_rehearsed_in_15_percent_of_an_audited_run_and_in_no_other(
    auditors: str, rounds: int, played: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    sketch = Mock(side_effect=ConfigError("enough"))
    monkeypatch.setattr(advice, "noise_changes", lambda _: {})
    monkeypatch.setattr(advice, "sketch", sketch)
    assert advice.rehearsed_advice(Config(auditors=auditors, rounds=rounds), Mock()) == ()
    assert [call.args[1] for call in sketch.call_args_list] == played
