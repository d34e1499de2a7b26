"""Settings of the secure sum and simulated dropouts in whole runs."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from leakmeter.auditors.hook.wrapper import chain
from leakmeter.fl_app import build
from leakmeter.fl_app.config.config import Config
from leakmeter.fl_app.config.field import ConfigError
from leakmeter.strategies import Distributed, Noised
from tests.helpers.runs import run_of

PLAIN = ["--auditors", "none", "--clients", "12", "--sample", "10", "--rounds", "3"]


def run(path: Path, tiny: list[str], *more: str, code: int = 0) -> dict[str, Any]:
    return run_of(path, *tiny, *PLAIN, *more, code=code)


def hidden(report: dict[str, Any]) -> dict[str, Any]:
    """Return the finding of the secure sum."""
    [found] = [f for f in report["findings"] if f["auditor"] == "secure-sum"]
    return dict(found)


def test_threshold_neighbours_and_bits_reach_the_sum(tiny: list[str], tmp_path: Path) -> None:
    # Six neighbours, seven holders, six shares: at most 2·6 − 7 − 1 = 4 colluders.
    sparse = ("--secagg-neighbours", "6", "--secagg-threshold", "0.8", "--secagg-bits", "24")
    found = hidden(run(tmp_path / "sparse", tiny, *sparse))
    assert found["facts"]["chance that a client was exposed"] == 0
    assert found["threat_model"]["colluders"] == 4
    assert found["value"] == 10 - 4
    # All nine others, ten holders, seven shares: three.
    usual = hidden(run(tmp_path / "usual", tiny))
    assert (usual["threat_model"]["colluders"], usual["value"]) == (3, 10 - 3)
    assert "chance that a client was exposed" not in usual["facts"]


def test_fewer_bits_give_the_same_model_up_to_coarser_rounding(
    tiny: list[str], tmp_path: Path
) -> None:
    losses = {}
    for bits in ("16", "32", "64"):
        report = run(tmp_path / bits, tiny, "--secagg-bits", bits)
        losses[bits] = [line["metrics"]["train-loss"] for line in report["rounds"]]
    assert losses["64"] == pytest.approx(losses["32"], rel=1e-5)
    assert losses["16"] == pytest.approx(losses["32"], rel=0.1)
    assert losses["16"] != losses["32"]


def test_assumed_colluders_are_those_of_every_finding(tiny: list[str], tmp_path: Path) -> None:
    noise = ("--noise", "distributed", "--clip-norm", "1", "--colluders", "1")
    report = run(tmp_path / "run", tiny, *noise)
    assert (hidden(report)["threat_model"]["colluders"], hidden(report)["value"]) == (1, 9)
    priced = [f for f in report["findings"] if f["auditor"] == "accountant"]
    assert {f["threat_model"]["colluders"] for f in priced} == {1}
    # Of seven certain survivors six add the whole noise, and nine of ten did add theirs.
    assert priced[0]["facts"]["least noise std"] == pytest.approx((9 / 6) ** 0.5)


def test_assumed_colluders_decide_how_large_a_share_of_the_noise_is(tiny_config: Config) -> None:
    size: dict[str, Any] = {"auditors": "none", "clients": 12, "sample": 10}
    own = replace(tiny_config, noise="distributed", clip_norm=1.0, **size)
    for colluders, honest in ((-1, 4), (0, 7), (2, 5)):
        config = replace(own, colluders=colluders)
        [noised] = [s for s in chain(build.server_strategy(config)) if isinstance(s, Noised)]
        assert noised.mechanism == Distributed(1.0, min_honest=honest)


def test_dropouts_are_recovered_exactly_counted_and_the_same_again(
    tiny: list[str], tmp_path: Path
) -> None:
    lossy = ("--dropout", "0.08", "--seed", "3")
    report = run(tmp_path / "one", tiny, *lossy)
    facts = hidden(report)["facts"]
    lost = sum(count for name, count in facts.items() if name.startswith("dropouts in stage"))
    assert lost > 0
    assert facts["abandoned"] == 0
    in_sums = [line["num_clients"] for line in report["rounds"]]
    assert min(in_sums) < 10
    assert "dropouts" in {w["kind"] for w in report["warnings"]}
    again = run(tmp_path / "two", tiny, *lossy)
    assert again["rounds"] == report["rounds"]


def test_a_masked_round_with_dropouts_has_the_mean_of_its_survivors(
    tiny: list[str], tmp_path: Path
) -> None:
    # With this seed two clients drop out in the train stage, and nobody before it. Without masks
    # there is that stage alone, by the same draw.
    def loss(name: str, *more: str) -> float:
        lossy = ("--dropout", "0.05", "--rounds", "1", "--seed", "18")
        [line] = run(tmp_path / name, tiny, *lossy, *more)["rounds"]
        assert line["num_clients"] == 8
        return float(line["metrics"]["train-loss"])

    assert loss("masked", "--secagg-bits", "64") == pytest.approx(
        loss("open", "--secagg", "off"), rel=1e-6
    )


def test_rounds_below_the_threshold_are_abandoned_and_the_run_goes_on(
    tiny: list[str], tmp_path: Path
) -> None:
    report = run(tmp_path / "run", tiny, "--dropout", "0.5", "--rounds", "4", code=4)
    [warning] = [w for w in report["warnings"] if w["kind"] == "abandoned-rounds"]
    assert warning["total"] == 4
    assert warning["count"] >= 1
    assert len(report["rounds"]) == 4


@pytest.mark.parametrize("noise", [(), ("--noise", "central", "--clip-norm", "1")])
def test_a_round_that_everybody_misses_ends_no_run(
    tiny: list[str], tmp_path: Path, noise: tuple[str, ...]
) -> None:
    most = ("--dropout", "0.999", "--secagg", "off", "--rounds", "2")
    report = run(tmp_path / "run", tiny, *most, *noise, code=4)
    assert [line["num_clients"] for line in report["rounds"]] == [0, 0]


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"sample": 30, "colluders": 12}, r"colluders 12: threshold must be in \[23, 32\]"),
        ({"sample": 30, "secagg_neighbours": 2}, r"P\(abort\) must be in"),
    ],
)
def test_what_does_not_fit_the_cohort_is_refused_before_training(
    tiny_config: Config, changes: dict[str, Any], words: str
) -> None:
    with pytest.raises(ConfigError, match=words):
        build.server_strategy(replace(tiny_config, clients=60, **changes))
