"""A sweep end to end: a folder for each point, resumed after any cut, a page with commands."""

from __future__ import annotations

import csv
import html
import json
import math
import re
import shlex
import shutil
from collections.abc import Callable, Iterator
from contextlib import redirect_stdout
from dataclasses import replace
from io import StringIO
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest

from leakmeter.fl_app.cli.main import main
from leakmeter.fl_app.config.config import Config
from leakmeter.fl_app.engines.inline import UnmaskedSums
from leakmeter.fl_app.run import rehearsal
from leakmeter.fl_app.run.folder import locked_folder
from leakmeter.fl_app.run.launch import launch
from leakmeter.fl_app.run.progress import Progress
from leakmeter.fl_app.run.run import new_run
from leakmeter.fl_app.sweep import sweep as sweep_run
from tests.fl_app.report.test_page import Page
from tests.helpers.files import everything_under, report_in
from tests.helpers.fixtures import Patch, Printed
from tests.helpers.numbers import first_fast
from tests.helpers.pages import check_policy

OVER = ("--over", "noise-multiplier=0.5,8", "--over", "epochs=1,2", "--rounds", "2")
FILES = {"sweep.json", "points.csv", "points.json", "report.html", ".lock"}


@pytest.fixture(autouse=True, scope="module")
def _page(short_page: None) -> None:
    """Leave short pages of audits; that of the sweep is whole."""


@pytest.fixture(autouse=True)
def _in_an_empty_folder(tmp_path: Path, monkeypatch: Patch) -> None:
    monkeypatch.chdir(tmp_path)


def arguments(tiny: list[str]) -> list[str]:
    """Return a tiny sweep with two rounds; the number of epochs is one of its axes."""
    pairs = zip(tiny[::2], tiny[1::2], strict=True)
    left = [word for pair in pairs if pair[0] not in ("--epochs", "--rounds") for word in pair]
    return ["sweep", *left, *OVER]


@pytest.fixture(scope="module")
def told(tiny: list[str], tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    """A whole sweep, and what it prints."""
    path = tmp_path_factory.mktemp("sweeps") / "whole"
    with redirect_stdout(StringIO()) as printed:
        assert main([*arguments(tiny), "--seeds", "2", "--out", str(path)]) == 0
    return path, printed.getvalue()


@pytest.fixture
def swept(told: tuple[Path, str]) -> Path:
    return told[0]


@pytest.fixture
def points(swept: Path) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = json.loads((swept / "points.json").read_text())["points"]
    return found


def content(folder: Path) -> dict[str, bytes | None]:
    """Return every file that a sweep leaves, but for locks and progress."""
    found = everything_under(folder).items()
    return {name: own for name, own in found if not name.endswith((".lock", "checkpoint.npz"))}


def test_every_point_has_a_folder_and_only_those_on_the_frontier_an_audit(
    swept: Path, points: list[dict[str, Any]]
) -> None:
    folders = {f"point-{name}" for name in "ABCD"}
    assert {path.name for path in swept.iterdir()} == FILES | folders
    kept = {one["point"] for one in points if one["frontier"]}
    assert 0 < len(kept) < 4
    for one in points:
        folder = swept / one["folder"]
        audit = {"audit"} if one["point"] in kept else set()
        rehearsals = {f"rehearsal-{seed}.json" for seed in (0, 1)}
        assert {path.name for path in folder.iterdir()} == rehearsals | audit


def test_audits_have_their_rehearsal_and_the_guarantee_of_their_point(
    swept: Path, points: list[dict[str, Any]]
) -> None:
    for one in (one for one in points if one["frontier"]):
        report = json.loads((swept / one["folder"] / "audit" / "report.json").read_text())
        assert report["rehearsal"][0] == one["rehearsals"][0]
        assert report["config"]["clipping"] == "measured"
        assert report["config"]["clip-norm"] == one["clip_norm"]
        rows = report["verdict"]["rows"]
        server = [r for r in rows if r["attacker"]["observer"] == "server"]
        own = next(r for r in server if r["adjacency"] == "zero-out")
        assert one["shown_zero_out"] == (own["shown"] or {"epsilon": 0.0})["epsilon"]
        # Of both seeds the larger one.
        assert own["at_most"]["epsilon"] <= one["guaranteed_zero_out"] < math.inf


def test_the_table_has_a_row_for_every_point(swept: Path, points: list[dict[str, Any]]) -> None:
    rows = list(csv.DictReader((swept / "points.csv").read_text().splitlines()))
    assert [row["point"] for row in rows] == [one["point"] for one in points] == list("ABCD")
    for row, one in zip(rows, points, strict=True):
        assert float(row["accuracy"]) == one["accuracy"]
        assert (float(row["noise-multiplier"]), int(row["epochs"])) == tuple(
            one["settings"].values()
        )
        assert row["seeds"] == "2"
        assert float(row["accuracy_low"]) <= one["accuracy"] <= float(row["accuracy_high"])


class Cut(Exception):  # noqa: N818 - what a test does to a sweep
    """Ends a sweep like a power failure."""


def cut_after(count: int, function: Callable[..., Any]) -> Callable[..., Any]:
    """Return a function that works so many times, then fails."""
    left = iter(range(count))

    def called(*args: Any, **more: Any) -> Any:
        if next(left, None) is None:
            raise Cut
        return function(*args, **more)

    return called


class Dying(Progress):
    """Ends an audit after its first round."""

    def __init__(self, *_: Any) -> None:
        super().__init__()

    def round(self, line: Any) -> None:
        if line.server_round == 1:
            raise Cut


def cuts() -> Iterator[Any]:
    """Yield places where a sweep may end."""
    yield patch.object(sweep_run, "rehearse", cut_after(3, sweep_run.rehearse))
    yield patch.object(sweep_run, "launch", cut_after(1, sweep_run.launch))
    yield patch.object(sweep_run, "new_run", cut_after(0, sweep_run.new_run))
    yield patch.object(sweep_run, "launch", lambda run, _, **more: launch(run, Dying(), **more))
    yield patch.object(sweep_run, "page", cut_after(1, sweep_run.page))


@pytest.mark.parametrize("place", first_fast(1, (1, 0, 2, 3, 4)))
def test_a_sweep_that_was_cut_anywhere_ends_as_if_it_had_not_been(
    place: int, swept: Path, tiny: list[str], capsys: Printed
) -> None:
    path = Path("cut").absolute()
    with list(cuts())[place], pytest.raises(Cut):
        main([*arguments(tiny), "--seeds", "2", "--out", str(path)])
    assert f"resume with: python run_sim.py sweep --resume {path}" in capsys.readouterr().out
    rehearsed = len(list(path.glob("*/rehearsal-*.json")))
    assert rehearsed == (3 if place == 0 else 8)
    rehearsal._rehearsed.cache_clear()  # as in another process
    with patch.object(sweep_run, "rehearse", side_effect=sweep_run.rehearse) as again:
        assert main(["sweep", "--resume", str(path)]) == 0
    assert again.call_count == 8 - rehearsed
    assert content(path) == content(swept)
    assert f"{rehearsed} rehearsals of 8 read from the folder" in capsys.readouterr().out


def test_a_finished_sweep_is_only_read(swept: Path, capsys: Printed) -> None:
    shutil.copytree(swept, "copy")
    with (
        patch.object(sweep_run, "rehearse", cut_after(0, sweep_run.rehearse)),
        patch.object(sweep_run, "launch", cut_after(0, sweep_run.launch)),
    ):
        assert main(["sweep", "--resume", "copy"]) == 0
    assert content(Path("copy")) == content(swept)
    assert "8 rehearsals of 8 read from the folder" in capsys.readouterr().out


def test_a_damaged_rehearsal_is_named(swept: Path, capsys: Printed) -> None:
    shutil.copytree(swept, "copy")
    Path("copy", "point-B", "rehearsal-1.json").write_text("{}")
    assert main(["sweep", "--resume", "copy"]) == 2
    said = capsys.readouterr().err
    assert "point-B/rehearsal-1.json must be a rehearsal as this release writes it" in said


def test_the_terminal_says_how_far_it_is_and_marks_the_frontier(told: tuple[Path, str]) -> None:
    path, said = told
    first = r"rehearsal 1/8  A  noise-multiplier 0\.5, epochs 1  accuracy 0\.\d+; about \d+ s left"
    assert re.search(first, said)
    assert re.search(r"^audit 1/\d  [A-D]  noise-multiplier", said, re.MULTILINE)
    assert "FRONTIER  " in said
    assert re.search(r"^[A-D] \* / (0\.5|8); epochs: [12]; accuracy: 0\.\d{3} ", said, re.MULTILINE)
    assert "Choosing a setting by its accuracy on private data costs privacy" in said
    assert "no canary" in said
    assert f"page: {path / 'report.html'}" in said


def test_what_is_typed_replaces_what_is_in_a_file_of_settings(
    swept: Path, points: list[dict[str, Any]], capsys: Printed
) -> None:
    on = next(one for one in points if one["frontier"])
    file = swept / on["folder"] / "audit" / "config.toml"
    words = ["sweep", "--config", str(file), "--auditors", "none", "--out", "here"]
    assert main([*words, "--over", "noise-multiplier=1,3"]) == 0
    assert "2 points (noise-multiplier 1, 3)" in capsys.readouterr().out
    assert not list(Path("here").glob("*/audit"))  # without auditors


def test_two_sweeps_in_one_folder_are_refused(swept: Path, capsys: Printed) -> None:
    with locked_folder(swept):
        assert main(["sweep", "--resume", str(swept)]) == 2
    assert f"{swept} is in use by process" in capsys.readouterr().err


def test_points_without_noise_are_rehearsed_and_on_no_frontier(tiny: list[str]) -> None:
    assert main(["sweep", *tiny, "--over", "noise=none,distributed", "--out", "here"]) == 0
    whole = json.loads(Path("here", "points.json").read_text())
    assert whole["frontier"] == ["B"]
    assert whole["points"][0]["guaranteed_zero_out"] == "inf"
    assert whole["points"][0]["clip_norm"] is None


def test_the_page_is_whole_and_has_every_command_and_number(
    swept: Path, points: list[dict[str, Any]]
) -> None:
    text = (swept / "report.html").read_text()
    check_policy(text)
    page = Page(text)
    assert page.open == []
    assert len(set(page.ids)) == len(page.ids)
    assert [link for link in page.links if link.startswith("http")] == []
    for link in page.links:
        if not link.startswith(("#", "data:")):
            assert (swept / link).is_file()
    plain = html.unescape(re.sub(r"</?span>", "", text))
    for one in points:
        assert f"<code>{one['command']}</code>" in plain
        assert f"<code>{one['rehearsal_command']}</code>" in plain
        assert f'<data value="{one["accuracy"]!r}">' in text
        assert f'<data value="{one["guaranteed_zero_out"]!r}">' in text
    assert "costs privacy that no ε here covers" in plain
    assert "Accuracy is that of rehearsals" in plain
    assert "Made by Leakmeter from points.json" in plain


def follow(command: str, out: str) -> dict[str, Any]:
    """Run a command of the page as it is, but for where the results go; return its report."""
    words = shlex.split(command)
    assert words[:2] == ["python", "run_sim.py"]
    assert main([*words[2:], "--out", out]) == 0
    report: dict[str, Any] = report_in(out)
    return report


def check_followed(one: dict[str, Any], audit: Path | None) -> None:
    """Follow both commands of a point and compare what they give with the point."""
    name = one["point"]
    report = follow(one["rehearsal_command"], f"{name}-rehearsal")
    assert [line["accuracy"] for line in report["rounds"]] == one["rehearsals"][0]["accuracies"]
    ends = [
        f["value"]
        for f in report["findings"]
        if (f["kind"], f["quantity"], f["adjacency"]) == ("guarantee", "epsilon", "zero-out")
    ]
    assert max(ends) <= one["guaranteed_zero_out"]
    if audit is not None:
        rehearsal._rehearsed.cache_clear()
        report = follow(one["command"], f"{name}-audit")
        kept = report_in(audit)
        # Its own rehearsal is the one without noise that measured the clip norm.
        assert report.pop("rehearsal")[0]["settings"]["noise"] == "none"
        del kept["rehearsal"]
        assert report == kept


def test_commands_of_the_page_give_the_points_to_the_last_digit(
    swept: Path, points: list[dict[str, Any]]
) -> None:
    on = next(one for one in points if one["frontier"])
    off = next(one for one in points if not one["frontier"])
    check_followed(on, swept / on["folder"] / "audit")
    check_followed(off, None)


@pytest.mark.slow
def test_commands_of_the_default_task_give_the_points_to_the_last_digit() -> None:
    assert main(["sweep", "--target-epsilon", "8,32", "--out", "here"]) == 0
    found = json.loads(Path("here", "points.json").read_text())
    assert found["frontier"] == ["A", "B"]
    for one in found["points"]:
        check_followed(one, Path("here", one["folder"], "audit"))


@pytest.mark.parametrize(
    "more",
    first_fast(
        1,
        [
            {"noise": "distributed", "clip_norm": 0.5, "noise_distribution": "skellam"},
            {},
            {"noise": "central", "clip_norm": 0.5},
            {"noise": "distributed", "clip_norm": 0.5},
            {"participation": "poisson", "noise": "central", "clip_norm": 0.5},
            {"secagg_neighbours": 4, "secagg_bits": 16},
        ],
    ),
)
def test_sums_without_masks_leave_the_same_report(
    more: dict[str, Any], panel_config: Config, tmp_path: Path
) -> None:
    config = replace(panel_config, clients=12, sample=6, rounds=2, **more)
    launch(new_run(config, tmp_path / "masked"), Progress())
    with patch.object(
        UnmaskedSums, "_cohort", autospec=True, side_effect=UnmaskedSums._cohort
    ) as opened:
        launch(new_run(config, tmp_path / "open"), Progress(), without_masks=True)
    assert opened.call_count == 2
    one, other = ((tmp_path / name / "report.json").read_bytes() for name in ("masked", "open"))
    assert one == other


def test_an_audit_of_a_sweep_that_was_cut_can_be_resumed_as_a_run_of_its_own(
    swept: Path, tiny: list[str]
) -> None:
    with list(cuts())[3], pytest.raises(Cut):
        main([*arguments(tiny), "--out", "cut"])
    [audit] = Path("cut").glob("*/audit")
    assert main(["--resume", str(audit)]) == 0
    kept = swept / audit.relative_to("cut") / "report.json"
    assert (audit / "report.json").read_bytes() == kept.read_bytes()
