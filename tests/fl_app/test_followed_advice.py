"""Every kind of next step is followed as it is printed: its command runs, and does what it says."""

from __future__ import annotations

import json
import shlex
from collections.abc import Callable
from pathlib import Path

import pytest

from leakmeter.auditors.verdict.lines import STEPPED
from leakmeter.auditors.verdict.verdict import Row
from leakmeter.fl_app.cli.main import main
from leakmeter.fl_app.config.config import Config
from leakmeter.fl_app.report.judge import next_steps, verdict_of
from leakmeter.fl_app.report.read import Run, read_run
from leakmeter.fl_app.run.launch import launch
from leakmeter.fl_app.run.run import new_run
from tests.helpers.runs import Dying

pytestmark = pytest.mark.slow

_NEAR = 0.12  # of accuracy: the run that follows has canaries, which the rehearsal has not
SMALL = ["--clients", "24", "--sample", "16", "--canary-seats", "6", "--rounds", "6"]
# The job, how its step begins, and what the step must have done to the run.
Follow = Callable[[Run, Run], None]


def rows(run: Run, sees: str) -> list[Row]:
    return [row for row in verdict_of(run).rows if row.attacker.sees == sees]


def is_masked(before: Run, after: Run) -> None:
    assert any(row.low > 0 for row in rows(before, "updates"))
    assert not any(row.low > 0 for row in rows(after, "updates"))


def is_guaranteed(before: Run, after: Run) -> None:
    """The row that the step is about has the guarantee that was named, and the model is kept."""
    target, adjacency = after.config["target-epsilon"], after.config["target-adjacency"]
    found = [row for row in verdict_of(after).rows if row.question.adjacency == adjacency]
    assert any(0 < row.high <= target for row in found)
    [rehearsal] = before.rehearsals
    assert after.accuracy is not None
    assert after.accuracy >= rehearsal.accuracy - _NEAR


def is_trained(before: Run, after: Run) -> None:
    found = [{one.kind for one in run.warnings} & STEPPED for run in (before, after)]
    assert found[0]
    assert not found[1]


def is_watched(before: Run, after: Run) -> None:
    """More canaries were played; the text does not say that they show more."""
    sizes = [
        max(f.facts["canaries"] for f in run.of_the_run if "canaries" in f.facts)
        for run in (before, after)
    ]
    assert sizes[1] > sizes[0]  # type: ignore[operator]


def is_tried(before: Run, after: Run) -> None:
    """A test with more trials could have shown more."""
    caps = [
        max(f.cap or 0.0 for f in run.of_the_run if f.auditor == "likelihood-ratio")
        for run in (before, after)
    ]
    assert caps[1] > caps[0]


def has_floor(before: Run, after: Run) -> None:
    """A higher floor guarantees less to lose."""
    lowest = [
        min(f.value for f in run.of_the_run if f.kind == "guarantee" and f.unit == "record")
        for run in (before, after)
    ]
    assert lowest[1] < lowest[0]


JOBS: dict[str, tuple[list[str], str, Follow]] = {
    "open updates": (
        [*SMALL, "--auditors", "one-shot,single-update", "--secagg", "off", "--model", "linear"],
        "Turn on secure aggregation",
        is_masked,
    ),
    "a leak that noise cures": (
        [
            *("--clients", "200", "--sample", "150", "--canary-seats", "20", "--rounds", "8"),
            # An audit that resamples, so the advice is rehearsed in a short run as well.
            *(
                "--auditors",
                "one-shot,mutual-information",
                "--mi-every",
                "8",
                "--model",
                "linear",
                "--secagg",
                "off",
            ),
            *("--noise", "central", "--clip-norm", "1", "--noise-multiplier", "0.05"),
        ],
        "Add noise",
        is_guaranteed,
    ),
    "steps that are too large": (
        [*SMALL, "--auditors", "one-shot", "--model", "linear", "--lr", "1e30"],
        "Lower the clients' learning rate",
        is_trained,
    ),
    "few canaries": (
        [
            *("--clients", "24", "--sample", "16", "--canary-seats", "2", "--rounds", "2"),
            *("--auditors", "one-shot", "--model", "linear"),
        ],
        "Play more canaries",
        is_watched,
    ),
    "few trials": (
        [
            *("--clients", "24", "--sample", "16", "--rounds", "2", "--model", "linear"),
            *("--auditors", "likelihood-ratio", "--lrt-trials", "20", "--lrt-fit", "60"),
            *("--noise", "distributed", "--clip-norm", "1", "--noise-multiplier", "5"),
        ],
        "Give the likelihood-ratio test more trials",
        is_tried,
    ),
    "a low floor": (
        [
            *("--clients", "10", "--sample", "6", "--rounds", "2", "--model", "linear"),
            *("--algorithm", "fedsgd", "--noise", "wfna", "--clip-norm", "1"),
            *("--wfna-floor", "1e-6", "--auditors", "record-likelihood-ratio"),
        ],
        "Raise the floor",
        has_floor,
    ),
}


@pytest.mark.parametrize("name", JOBS)
def test_a_step_that_is_followed_does_what_it_says(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    words, begins, follow = JOBS[name]
    monkeypatch.chdir(tmp_path)
    assert main([*words, "--out", "job"]) == 0
    before = read_run(tmp_path / "job")
    steps = {step.text: step for step in next_steps(before)}
    [step] = [one for text, one in steps.items() if text.startswith(begins)]
    assert main(shlex.split(step.command)[2:]) == 0
    follow(before, read_run(tmp_path / step.out))
    # The comparison that is printed with it works as well.
    for one in next_steps(before):
        if one.text.startswith("Compare"):
            assert main(shlex.split(one.command)[2:]) in (0, 2)  # 2 if it is about another step


def test_noise_that_would_ruin_the_model_is_never_advised_and_the_sweep_in_its_place_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    # In fewer rounds nothing is rehearsed.
    assert main([*SMALL, "--rounds", "14", "--auditors", "one-shot", "--out", "job"]) == 0
    run = read_run(tmp_path / "job")
    [rehearsal] = run.rehearsals
    assert rehearsal.without_noise is not None
    assert rehearsal.without_noise - rehearsal.accuracy > 0.1
    steps = next_steps(run)
    [instead] = [step for step in steps if "would ruin this model" in step.text]
    assert not any(step.text.startswith("Add noise") for step in steps)
    assert main(shlex.split(instead.command)[2:]) == 0
    [points] = tmp_path.glob("*/points.json")
    found = json.loads(points.read_text())["points"]
    best = max(one["accuracy"] for one in found)
    # What is advised in its place loses less.
    assert best > rehearsal.accuracy + 0.1


def test_an_interrupted_run_is_finished_by_its_step(
    tiny_config: Config, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(KeyboardInterrupt):
        launch(new_run(tiny_config, tmp_path / "job"), Dying(1))
    step = next_steps(read_run(tmp_path / "job"))[0]
    assert step.text == "Finish the run:"
    assert main(shlex.split(step.command)[2:]) == 0
    assert read_run(tmp_path / "job").is_finished
