"""What a sweep is asked for: its points, and mistakes that are named before any work."""

from __future__ import annotations

import math
from dataclasses import fields
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from leakmeter.fl_app.cli.main import main
from leakmeter.fl_app.config.config import Config
from leakmeter.fl_app.config.field import ConfigError, kebab
from leakmeter.fl_app.sweep.points import SweepPlan, plan_of, typed_value, usual
from leakmeter.fl_app.sweep.sweep import SweepFolder
from tests.helpers.fixtures import Patch, Printed


def values(text: str) -> tuple[Any, ...]:
    [axis] = plan_of({}, [text]).axes
    return axis.values


def planned(text: str) -> tuple[SweepPlan | None, str]:
    """Return the plan, or the words of what is wrong."""
    try:
        return plan_of({}, [text]), ""
    except ConfigError as error:
        return None, str(error)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("noise-multiplier=0.5,1,2", (0.5, 1.0, 2.0)),
        ("sample=30, 60", (30, 60)),
        ("clip-norm=auto,0.5", ("auto", 0.5)),
        ("target-epsilon=1..32", (1.0, 2.0, 4.0, 8.0, 16.0, 32.0)),
        ("target-epsilon=1..30", (1.0, 1.97, 3.9, 7.7, 15.2, 30.0)),
        ("target-epsilon=8..9", (8.0, 9.0)),
        ("rounds=10..80", (10, 20, 40, 80)),
        ("rounds=1..3,9", (1, 2, 3, 9)),
        ("noise=none,central", ("none", "central")),
        ("--lr=0.1,0.3", (0.1, 0.3)),
    ],
)
def test_values_are_listed_or_about_double_from_one_end_to_the_other(
    text: str, expected: tuple[Any, ...]
) -> None:
    found = values(text)
    assert found == expected
    assert [type(one) for one in found] == [type(one) for one in expected]


@given(
    low=st.floats(1e-3, 1e3, allow_nan=False),
    factor=st.floats(1.5, 1e4, allow_nan=False),
)
def test_a_range_ascends_between_its_ends_by_factors_near_two(low: float, factor: float) -> None:
    high = low * factor
    found = values(f"lr={low!r}..{high!r}")
    assert (found[0], found[-1]) == (low, high)
    # At most half a doubling off, and three digits of rounding.
    assert all(1.4 < b / a < 2.9 for a, b in pairwise(found))
    assert len(found) == max(round(math.log2(high / low)), 1) + 1


@given(st.text(max_size=30))
def test_any_text_is_an_axis_or_refused_in_one_line(text: str) -> None:
    known = {kebab(spec.name) for spec in fields(Config)}
    plan, words = planned(text)
    if plan is None:
        assert words.startswith(("--over", "sweep needs"))
        assert len(words.splitlines()) == 1
    else:
        assert {axis.name for axis in plan.axes} <= known


@given(st.sampled_from(["lr", "sample", "noise", "clip-norm", "download"]), st.text(max_size=20))
def test_any_values_are_of_the_setting_or_refused_with_its_name(name: str, text: str) -> None:
    spec = next(spec for spec in fields(Config) if kebab(spec.name) == name)
    plan, words = planned(f"{name}={text}")
    if plan is None:
        assert name in words or words.startswith("sweep needs")
    else:
        [axis] = plan.axes
        assert all(one == "auto" or type(one) is type(spec.default) for one in axis.values)
        assert len(set(axis.values)) == len(axis.values) > 1


EVERY = ",".join(map(str, range(1, 11)))


@pytest.mark.parametrize(
    ("over", "settings", "message"),
    [
        ("nois-multiplier=1,2", {}, "--over must name a setting of the training, got nois-multip"),
        ("noise-multiplier", {}, "--over must be NAME=V1,V2, got 'noise-multiplier'. Try --over"),
        ("lr=", {}, "--over lr must be values separated by commas, or a range such as 1..32, got"),
        ("lr=0.1,,0.3", {}, "--over lr must be values separated by commas"),
        ("lr=0.1,0.10", {}, "--over lr must be values that differ, got '0.1,0.10'. List 0.1 once"),
        ("lr=fast,slow", {}, "--lr must be a number, got 'fast'. Try --lr 0.3."),
        ("lr=-1,1", {}, "--lr must be above 0, got -1.0. Try --lr 0.3."),
        ("noise=some,none", {}, "--noise must be one of none, central"),
        ("lr=4..2", {}, "--over lr must be a range from a number above 0 to a larger one"),
        ("lr=1..2..3", {}, "--over lr must be a range from a number above 0"),
        ("seed=1,2", {}, "--over must be a setting other than seed, got 'seed'. Try --seeds 3."),
        ("auditors=none,mine", {}, "--over must name a setting of the training, got auditors"),
        ("lr=1,2 lr=3,4", {}, "--over lr must be the only place that sets lr, got another"),
        ("lr=1,2", {"lr": 0.3}, "--over lr must be the only place that sets lr, got another"),
        ("", {}, "sweep needs a setting with several values, got none. Try --over noise-mult"),
        ("lr=1", {}, "sweep needs a setting with several values, got none. Try --over noise-mult"),
        ("lr=1,2", {"ledger": "x"}, "--ledger must be left out in a sweep: its points are rehe"),
        ("lr=1,2", {"fail-above": 8.0}, "--fail-above must be left out in a sweep: use leakmet"),
        ("lr=1,2", {"against": "nobody"}, "--against must be one of server, outsider, wire, or"),
        (f"epochs={EVERY} rounds={EVERY} lr={EVERY}", {}, "--over must give at most 500 points to"),
    ],
)
def test_a_mistake_is_named_with_what_is_allowed_and_what_to_do(
    over: str, settings: dict[str, Any], message: str
) -> None:
    with pytest.raises(ConfigError) as caught:
        plan_of(settings, over.split())
    assert str(caught.value).startswith(message)


def test_a_number_may_list_its_values_itself() -> None:
    plan = plan_of({"target-epsilon": "1..4", "rounds": 5}, ["sample=3,4"])
    assert [(axis.name, axis.values) for axis in plan.axes] == [
        ("sample", (3, 4)),
        ("target-epsilon", (1.0, 2.0, 4.0)),
    ]
    assert plan.settings == {"rounds": 5}


def test_points_are_all_combinations_with_names_seeds_and_settings_of_their_own() -> None:
    plan = plan_of({"seed": 7}, ["noise-multiplier=1,2", "sample=20,30,50"], seeds=2)
    points, refused = plan.points()
    assert refused == []
    assert [point.name for point in points] == list("ABCDEF")
    assert [tuple(point.values.values()) for point in points] == [
        (z, k) for z in (1.0, 2.0) for k in (20, 30, 50)
    ]
    for point in points:
        assert [config.seed for config in point.configs] == [7, 8]
        for config in point.configs:
            assert (config.noise_multiplier, config.sample) == tuple(point.values.values())
            assert (config.noise, config.auditors) == ("distributed", "one-shot")
            assert config.measures_clip
    assert points[0].label == "noise-multiplier 1, sample 20"


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ({}, {"noise": "distributed", "clip-norm": "auto"}),
        ({"secagg": "off"}, {"noise": "local", "clip-norm": "auto"}),
        ({"noise": "none"}, {"noise": "distributed"}),
        ({"noise": "wfna"}, {"noise": "distributed"}),
        ({"noise": "central", "clipping": "adaptive"}, {"noise": "distributed"}),
    ],
)
def test_defaults_are_noise_against_the_server_and_a_norm_that_fits(
    settings: dict[str, Any], expected: dict[str, Any]
) -> None:
    assert usual(settings) == {"auditors": "one-shot", **expected}


def test_points_that_cannot_run_are_refused_together_or_left_out_if_asked() -> None:
    asked = ({}, ["noise=none,central", "clip-norm=1,2"])
    with pytest.raises(ConfigError) as caught:
        plan_of(*asked).points()
    assert str(caught.value) == (
        "2 of 4 points cannot run, so nothing has run. noise none, clip-norm 1: --clip-norm must "
        "be 0 with --noise none, which clips nothing, got 1.0. Add --noise central; and 1 more. "
        "Add --skip-refused to run the others."
    )
    points, refused = plan_of(*asked, skips_refused=True).points()
    assert [point.label for point in points] == [f"noise central, clip-norm {c}" for c in (1, 2)]
    assert [point.name for point in points] == ["C", "D"]
    assert [words.split(":")[0] for words in refused] == [
        f"noise none, clip-norm {c}" for c in (1, 2)
    ]
    with pytest.raises(ConfigError, match=r"^2 of 2 points cannot run, so nothing has run\. .*\.$"):
        plan_of({"noise": "none"}, ["clip-norm=1,2"], skips_refused=True).points()


def test_a_default_that_gives_way_is_said_for_its_point() -> None:
    points, _ = plan_of({}, ["sample=30,60"]).points()
    assert [point.adapted for point in points] == [
        "",
        "adapted to your settings: --clients 70 (default 60)",
    ]


PLANS = st.builds(
    lambda settings, axes, seeds, skips: plan_of(
        settings,
        [f"{name}={text}" for name, text in axes.items()],
        seeds=seeds,
        skips_refused=skips,
    ),
    st.dictionaries(st.sampled_from(["rounds", "epochs"]), st.integers(1, 9)),
    st.dictionaries(
        st.sampled_from(["lr", "noise-multiplier", "target-epsilon", "clip-norm"]),
        st.sampled_from(["1,2", "0.1..0.9", "1..8"]),
        min_size=1,
    ),
    st.integers(1, 5),
    st.booleans(),
)


@given(plan=PLANS)
def test_a_folder_gives_back_the_plan(
    plan: SweepPlan, tmp_path_factory: pytest.TempPathFactory
) -> None:
    path = tmp_path_factory.mktemp("sweeps") / "one"
    SweepFolder.create(path, plan)
    assert SweepFolder.open(path).plan == plan


def test_a_broken_folder_is_named(tmp_path: Path) -> None:
    with pytest.raises(
        ConfigError, match=r"--resume must be the folder of a sweep with sweep\.json"
    ):
        SweepFolder.open(tmp_path)
    folder = SweepFolder.create(tmp_path / "one", plan_of({}, ["lr=1,2"]))
    path = folder.path / "sweep.json"
    path.write_text(path.read_text().replace("sweep/1", "sweep/0"))
    with pytest.raises(
        ConfigError, match="schema must be leakmeter-sweep/1, got leakmeter-sweep/0"
    ):
        SweepFolder.open(folder.path)
    path.write_text("{")
    with pytest.raises(ConfigError, match="--resume needs a whole"):
        SweepFolder.open(folder.path)
    with pytest.raises(ConfigError, match="--out must be a new or empty folder"):
        SweepFolder.create(folder.path, folder.plan)


RECORDS = "--algorithm fedsgd --wfna-floor 0.1 --clip-norm 1"


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("--seeds 0 --over lr=1,2", "--seeds must be from 1 to 100, got 0. Try --seeds 3"),
        ("--seeds few --over lr=1,2", "--seeds must be from 1 to 100, got 'few'"),
        ("--resume x --lr 1", "--resume takes all settings from the folder; leave out --lr"),
        ("--resume x --over lr=1,2", "--resume takes all settings from the folder; leave out --ov"),
        ("--resume x --seeds 3", "--resume takes all settings from the folder; leave out --seeds"),
        ("--ovr lr=1,2", "unknown option --ovr; did you mean --over?"),
        ("--over lr=1,2 --out full", "--out must be a new or empty folder"),
        (
            f"--noise record-sgd --batch-size 8,500 {RECORDS}",
            "1 of 2 points cannot run, so nothing has run. batch-size 500: --batch-size must be at "
            "most 23, the fewest records of a client, with --noise record-sgd, got 500. Add --skip",
        ),
    ],
)
def test_the_command_line_ends_with_2_before_it_writes_anything(
    words: str, message: str, tmp_path: Path, monkeypatch: Patch, capsys: Printed
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "file").touch()
    assert main(["sweep", *words.split()]) == 2
    assert capsys.readouterr().err.startswith(f"error: {message}")
    assert [path.name for path in tmp_path.iterdir()] == ["full"]


def test_values_are_shown_as_they_are_typed() -> None:
    shown = [typed_value(one) for one in (True, 0.5, 3.0, 30, "auto")]
    assert shown == ["true", "0.5", "3", "30", "auto"]
