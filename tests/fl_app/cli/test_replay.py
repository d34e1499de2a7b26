"""`leakmeter replay`: a recorded run, audited again, says the same, and mistakes are named."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from leakmeter.auditors.auditor import Auditor
from leakmeter.auditors.codec import pack, unpack
from leakmeter.fl_app.cli.main import main
from leakmeter.fl_app.config.audits import MutualInformationSettings
from leakmeter.fl_app.config.config import Config
from leakmeter.fl_app.report.read import read_run
from leakmeter.fl_app.run.folder import RunFolder
from leakmeter.fl_app.run.launch import launch
from leakmeter.fl_app.run.progress import Progress
from tests.fl_app.cli.test_main import refused
from tests.helpers.files import report_in
from tests.helpers.fixtures import Patch, Printed
from tests.helpers.runs import Dying

QUICK = ("--lrt-fit", "20", "--lrt-candidates", "4", "--lrt-trials", "20", "--mi-draws", "6")
ALL = "one-shot,likelihood-ratio,mutual-information"


@pytest.fixture(scope="module")
def kept(tiny: list[str], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a whole run that was recorded."""
    path = tmp_path_factory.mktemp("runs") / "kept"
    names = ("--auditors", f"{ALL},recorder")
    assert main([*tiny, *QUICK, *names, "--mi-rank", "3", "--out", str(path)]) == 0
    return path


@pytest.fixture
def run(kept: Path, tmp_path: Path) -> Path:
    """A copy of it that a test may damage."""
    return Path(shutil.copytree(kept, tmp_path / "run"))


def findings(folder: Path, *without: str) -> list[dict[str, Any]]:
    report = report_in(folder)
    return [f for f in report["findings"] if not {f["auditor"], f["quantity"]} & set(without)]


def details(folder: Path, capsys: Printed) -> str:
    """Return all that a terminal can say of a run, in one line."""
    capsys.readouterr()
    assert main(["report", "--text", str(folder)]) == 0
    return " ".join(capsys.readouterr().out.split())


def test_the_same_settings_find_the_same_to_the_last_digit(run: Path, capsys: Printed) -> None:
    assert main(["replay", str(run)]) == 0
    again = run.with_name("run-replay")
    assert findings(again) == findings(run, "recorder", "guess")
    printed = capsys.readouterr().out
    assert f"replay    {run}\nrounds    4 of 210 parameters; nothing is trained" in printed
    assert "the recording has no truth: the guess about the sum" in details(again, capsys)
    was, now = (report_in(folder) for folder in (run, again))
    assert was["rounds"] == now["rounds"]
    assert was["warnings"] == now["warnings"]
    assert now["config"]["replay-of"] == str(run)
    assert now["limitations"][0]["text"].startswith("These auditors looked at the recorded r")
    page = (again / "report.html").read_text()
    assert "A replay: these auditors looked at the recorded rounds of" in page
    command = f"run_sim.py replay {run} --auditors {ALL}"
    assert command in page.replace("<span>", "").replace("</span>", "")
    # A second one takes the next free name.
    assert main(["replay", str(run / "recording"), "--auditors", "one-shot"]) == 0
    assert read_run(run.with_name("run-replay-2")).is_finished


def test_other_settings_and_auditors_look_at_the_same_run(run: Path, tmp_path: Path) -> None:
    out = tmp_path / "else"
    names = ("--auditors", "one-shot", "--delta", "1e-3")
    assert main(["replay", str(run), *names, "--out", str(out)]) == 0
    assert {f["delta"] for f in findings(out) if f["quantity"] == "epsilon"} == {1e-3}
    # The auditors of a run that had canary seats, without those who look for them.
    more = ("--auditors", "mutual-information", "--mi-rank", "2", "--mi-every", "0")
    assert main(["replay", str(run), *more, "--out", str(tmp_path / "mi")]) == 0
    (first, *_) = findings(tmp_path / "mi")
    assert (first["facts"]["directions"], first["server_round"]) == (2, 1)


def test_information_over_all_rounds_is_found_in_a_run_and_in_its_replay(
    tiny: list[str], tmp_path: Path, capsys: Printed
) -> None:
    out, again = tmp_path / "over", tmp_path / "again"
    pairs = ("--mi-rank", "2", "--mi-over-rounds", "40")
    names = ("--auditors", "mutual-information,recorder")
    assert main([*tiny, *pairs, *names, "--rounds", "2", "--out", str(out)]) == 0
    (found,) = (f for f in findings(out) if f["quantity"].startswith("information about the data"))
    assert (found["auditor"], found["server_round"]) == ("mutual-information", None)
    assert isinstance(found["facts"]["told_from_zero"], bool)
    assert "information about the data over all rounds" in details(out, capsys)
    assert main(["replay", str(out), "--out", str(again)]) == 0
    assert found in findings(again)
    more = ["replay", str(out), "--mi-over-rounds"]
    assert "pairs must be at least 20 for the information over 2 audited rounds" in refused(
        [*more, "3"], capsys
    )
    said = refused([*more, "40", "--lrt-game", "partition"], capsys)
    assert "mi-over-rounds must be 0 in the game partition, in which data are known or" in said
    said = refused([*tiny, "--auditors", "none", "--mi-over-rounds", "40"], capsys)
    assert "mi-over-rounds must be 0 without the auditor mutual-information, got 40" in said


def test_who_took_part_is_as_in_the_run_whoever_looks(run: Path, monkeypatch: Patch) -> None:
    cohorts = []

    class Looking(Auditor):
        name = "mutual-information"

        def __init__(self, config: Any) -> None:
            cohorts.append(config.cohort)

    monkeypatch.setattr(MutualInformationSettings, "make", lambda run: Looking(run.config))
    assert main(["replay", str(run), "--auditors", "mutual-information"]) == 0
    assert cohorts == [5]


def test_an_interrupted_run_is_audited_as_far_as_it_went(
    run: Path, tmp_path: Path, capsys: Printed
) -> None:
    (run / "report.json").unlink()
    (run / "recording" / "round-000004.npz").unlink()
    out = tmp_path / "part"
    assert main(["replay", str(run), "--auditors", "one-shot", "--out", str(out)]) == 0
    assert "3 of 4 planned rounds are audited" in details(out, capsys)
    rounds = report_in(out)["rounds"]
    assert [one["server_round"] for one in rounds] == [1, 2, 3]


def test_a_recording_is_enough(run: Path, tmp_path: Path) -> None:
    alone = Path(shutil.copytree(run / "recording", tmp_path / "alone"))
    assert main(["replay", str(alone), "--auditors", "one-shot"]) == 0
    # Bounds share the confidence with those of fewer auditors, so they alone may differ.
    found, known = findings(tmp_path / "alone-replay"), findings(run)
    for is_bound in (True, False):
        own, ours = (
            [f for f in some if (f["kind"] == "lower_bound") == is_bound]
            for some in (found, [f for f in known if f["auditor"] == "one-shot"])
        )
        assert len(own) == len(ours) > 0
        assert is_bound or own == ours
    assert {f["confidence"] for f in found if f["kind"] == "lower_bound"} == {0.975}


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--seed", "5"], "the recording has data and canaries of seed 0, got --seed 5"),
        (["--canary-seats", "1"], "the recording has canaries of canary-seats 2, got --canary-"),
        (["--lr", "0.5"], "--lr is not a setting of audits: the recorded run has lr = "),
        (["--engine", "ray"], "--engine is not a setting of audits: the recorded run has engine"),
        (["--auditors", "recorder"], "--auditors must not name recorder in a replay"),
        (["--auditors", "none"], "auditors must name at least one for a replay, got none"),
        (["--auditors", "record-likelihood-ratio"], "noise must be wfna or record-gd or record-"),
        (["--out", "run"], "out must be a new or empty folder, got "),
    ],
)
def test_a_setting_that_cannot_be_is_one_line_with_code_2(
    arguments: list[str], message: str, run: Path, capsys: Printed
) -> None:
    assert message in refused(["replay", str(run), *arguments], capsys)


def test_what_was_not_recorded_is_named(run: Path, monkeypatch: Patch, capsys: Printed) -> None:
    class Span(Auditor):
        name = "mutual-information"
        reads = frozenset({"truth"})

    monkeypatch.setattr(MutualInformationSettings, "make", lambda _: Span())
    said = refused(["replay", str(run), "--auditors", "mutual-information"], capsys)
    assert "mutual-information reads truth, which a recording does not have" in said
    assert "Use mutual-information during the run" in said


def test_damage_is_named_with_its_file(run: Path, capsys: Printed) -> None:
    kept = run / "recording"
    third, plan = kept / "round-000003.npz", kept / "plan.json"
    replay = ["replay", str(run), "--auditors", "one-shot"]
    whole, noted = third.read_bytes(), json.loads(plan.read_text())
    damaged = "round-000003.npz must be a round of a recorder"
    for content, message in (
        (whole[:200], damaged),
        (whole.replace(whole[-2000:-1990], b"0123456789"), damaged),
        (pack({**unpack(whole), "sent": np.zeros(3)}), "round-000003.npz must have 210 numbers"),
    ):
        third.write_bytes(content)
        assert message in refused(replay, capsys)
    third.unlink()
    assert "lacks round-000003.npz: copy it" in refused(replay, capsys)
    third.write_bytes(whole)
    (kept / "round-000004.npz").rename(run / "kept")
    assert "must contain all 4 rounds of the finished run, lacks round-0" in refused(replay, capsys)
    (run / "kept").rename(kept / "round-000004.npz")
    for content, message in (
        ({**noted, "dim": 7}, "must be of a model with 210 parameters (synthetic, linear), got di"),
        ({}, "must contain plan.json of a recorder with dim and num_rounds"),
    ):
        plan.write_text(json.dumps(content))
        assert message in refused(replay, capsys)
    shutil.rmtree(kept)
    said = refused(replay, capsys)
    assert "RUN must be a recorded run with recording/plan.json, got " in said


def test_settings_that_were_changed_since_are_named(run: Path, capsys: Printed) -> None:
    replay, toml = ["replay", str(run), "--auditors", "one-shot"], run / "config.toml"
    text = toml.read_text()
    toml.write_text(text.replace("seed = 0", "seed = 3"))
    assert "config.toml has seed = 3, but the recording is of a run with seed = 0" in refused(
        replay, capsys
    )
    toml.write_text(text.replace("lrt-trials = 20", "lrt-trials = 30"))  # of an audit
    assert main(replay) == 0
    plan = run / "recording" / "plan.json"
    noted = json.loads(plan.read_text())
    plan.write_text(json.dumps({**noted, "about": {}}))
    toml.unlink()
    assert "call leakmeter.replay(folder, auditors) in Python" in refused(replay, capsys)


def test_a_deployment_is_searched_for_canaries_only(run: Path, capsys: Printed) -> None:
    plan = run / "recording" / "plan.json"
    noted = json.loads(plan.read_text())
    plan.write_text(json.dumps({**noted, "about": {**noted["about"], "deployed": True}}))
    said = refused(["replay", str(run)], capsys)
    assert "auditors must be one-shot or single-update or recorder or none in a deployment" in said
    assert main(["replay", str(run), "--auditors", "one-shot"]) == 0


def test_a_run_without_canaries_cannot_be_searched_for_them(
    tiny: list[str], tmp_path: Path, capsys: Printed
) -> None:
    out = tmp_path / "plain"
    assert main([*tiny, "--rounds", "1", "--auditors", "recorder", "--out", str(out)]) == 0
    (found,) = (f for f in findings(out) if f["auditor"] == "recorder")
    assert (found["value"], found["kind"]) == (1.0, "diagnostic")
    assert "recorder: 1 round kept" in details(out, capsys)
    said = refused(["replay", str(out), "--auditors", "one-shot"], capsys)
    assert "one-shot looks for canaries, and the recorded run has played none" in said


def test_a_run_that_was_cut_off_and_resumed_is_recorded_as_a_whole_one(
    tiny_config: Config, tmp_path: Path
) -> None:
    config = replace(tiny_config, auditors="one-shot,recorder", rounds=3)
    launch(RunFolder.create(tmp_path / "whole", config), Progress())
    cut = RunFolder.create(tmp_path / "cut", config)
    with pytest.raises(KeyboardInterrupt):
        launch(cut, Dying(2))
    assert main(["--resume", str(cut.path)]) == 0
    whole, again = (findings(tmp_path / name) for name in ("whole", "cut"))
    assert whole == again
    for name in ("plan.json", "round-000001.npz", "round-000002.npz", "round-000003.npz"):
        recorded = [tmp_path / run / "recording" / name for run in ("whole", "cut")]
        assert recorded[0].read_bytes() == recorded[1].read_bytes(), name


@pytest.mark.slow
def test_records_are_audited_again_with_the_cohorts_of_the_run(
    tiny: list[str], tmp_path: Path
) -> None:
    out, again = tmp_path / "filled", tmp_path / "again"
    noise = [
        "--noise",
        "wfna",
        "--wfna-floor",
        "1e-4",
        "--clip-norm",
        "1",
        "--algorithm",
        "fedsgd",
        "--lrt-every",
        "0",
    ]
    names = ("--auditors", "one-shot,record-likelihood-ratio,recorder", "--rounds", "2")
    assert main([*tiny, *noise, *names, "--out", str(out)]) == 0
    only = ("--auditors", "record-likelihood-ratio")  # without the canary seats of the run
    assert main(["replay", str(out), *only, "--out", str(again)]) == 0
    # Alone, its bounds have a larger share of the confidence; all else is the same.
    shared = ("value", "confidence", "cap", "saturated", "details")
    found, known = (
        [{name: value for name, value in f.items() if name not in shared} for f in some]
        for some in (findings(again), findings(out, "recorder", "one-shot"))
    )
    assert found == known
