"""The bench: its clock, its rows, its page, and that every question can be asked."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Callable
from dataclasses import replace
from importlib import import_module
from pathlib import Path

import pytest

from benchmarks import __main__ as command
from benchmarks import audited_run, growth, memory, page, suite
from benchmarks.measure import (
    OURS,
    Row,
    Scale,
    Skipped,
    Spread,
    alone,
    compare,
    interleave,
    paired,
    timer,
)
from benchmarks.report import Entry, Report, Setup
from benchmarks.script import from_json, rows_at, to_json
from benchmarks.words import amounts, line, target
from tests.helpers.processes import environment, run_python
from tests.helpers.project import ROOT

# Files that ask nothing: what the questions share.
SHARED = {
    *("__init__", "__main__", "benchmarks", "script", "suite", "report", "page", "words"),
    *("measure", "memory", "mnist", "growth_costs", "filling_memory", "audited_run"),
    *("secure_sum", "secure_sum_flower", "secure_sum_ours", "user_round_peers"),
}


class FakeClock:
    """A clock that only work moves, and that remembers who worked."""

    def __init__(self) -> None:
        self.now, self.worked = 0.0, list[str]()

    def __call__(self) -> float:
        return self.now

    def work(self, name: str, *seconds: float) -> Callable[[], None]:
        """Return work that takes these times in turn."""
        left = list(seconds)

        def call() -> None:
            self.worked.append(name)
            self.now += left.pop(0)

        return call


def test_a_timer_divides_by_its_calls_and_by_the_size_of_each() -> None:
    clock = FakeClock()
    assert timer(clock.work("a", 1, 3), calls=2, clock=clock)() == 2
    assert timer(clock.work("a", 3), size=0.25, clock=clock)() == 12
    assert clock.worked == ["a"] * 3


def test_timers_take_turns_and_the_order_alternates() -> None:
    clock = FakeClock()
    timers = {name: timer(clock.work(name, *range(9)), clock=clock) for name in "abc"}
    times = interleave(timers, 3)
    assert "".join(clock.worked) == "abc" + "abc" + "cba" + "abc"
    assert times == {name: [1, 2, 3] for name in "abc"}


def test_without_a_warm_up_the_first_call_counts() -> None:
    clock = FakeClock()
    assert interleave({"a": timer(clock.work("a", 7), clock=clock)}, 1, warm_up=False) == {"a": [7]}


def test_a_ratio_is_of_the_same_repetition_and_not_of_the_medians() -> None:
    clock = FakeClock()
    ours, theirs = clock.work(OURS, 1, 10, 2), clock.work("peer", 3, 10, 20)
    row = compare(
        "case",
        timer(ours, clock=clock),
        timer(theirs, clock=clock),
        peer="peer",
        repetitions=3,
        warm_up=False,
    )
    assert row.ratio == Spread(3, 1, 10)  # the medians' would be 10 / 2
    assert (row.ours, row.theirs) == (Spread(2, 1, 10), Spread(10, 3, 20))
    assert clock.worked == [OURS, "peer", "peer", OURS, OURS, "peer"]


def test_a_target_is_a_ratio_with_a_peer_and_a_limit_without() -> None:
    assert paired("case", [1, 1], [4, 6], peer="p", target=5).is_met
    assert paired("case", [1, 1], [4, 5], peer="p", target=5).is_met is False
    assert alone("case", [2], target=2).is_met
    assert alone("case", [2.1], target=2).is_met is False
    assert alone("case", [1]).is_met is None
    assert target(alone("case", [2.1], target=2)) == "at most 2 s: missed"


def test_rows_that_say_too_little_or_too_much_are_refused() -> None:
    one = Spread(1, 1, 1)
    with pytest.raises(ValueError, match="theirs"):
        Row("case", "CPU s", one, 1, peer="p")
    with pytest.raises(ValueError, match="ratio"):
        Row("case", "CPU s", one, 1, peer="p", theirs=one)
    with pytest.raises(ValueError, match="ratio"):
        Row("case", "CPU s", one, 1, ratio=one)
    with pytest.raises(ValueError, match="repetitions must be at least 1, got 0"):
        Row("case", "CPU s", one, 0)
    with pytest.raises(ValueError, match="at least one"):
        Spread.of([])


def test_figures_are_written_in_the_unit_of_their_median() -> None:
    assert amounts(Spread(0.0021, 0.0009, 0.013), "CPU s") == "2.1 ms (0.9 to 13)"
    assert amounts(Spread(4e-6, 4e-6, 4e-6), "wall s") == "4 µs"
    assert amounts(Spread(34166, 34166, 34166), "bytes") == "34,166 bytes"
    row = paired("case", [1.0], [221.4], peer="Flower", target=100)
    assert line(row).startswith("case: 221 times; ours 1 s; Flower 221 s; at least 100: met")


def test_an_exponent_is_the_slope_of_the_logarithms() -> None:
    assert math.isclose(growth.slope([1, 2, 4], [3, 12, 48]), 2)
    assert math.isclose(growth.slope([1, 10], [5, 5]), 0, abs_tol=1e-12)


def test_memory_is_what_a_fresh_process_holds_on_top() -> None:
    few, many = memory.grown(bytearray, 1, 20 << 20, 60 << 20)
    assert 15 < few < 25
    assert 55 < many < 65
    with pytest.raises(ValueError, match="rise"):
        memory.grown(bytearray, 1, 60, 20)


def check(row: Row | Skipped) -> None:
    """Raise unless a row can stand on the page."""
    assert row.case
    assert from_json(json.loads(json.dumps(to_json(row)))) == row
    if isinstance(row, Skipped):
        assert row.reason
        return
    spreads = [spread for spread in (row.ours, row.theirs) if spread]
    for spread in spreads:
        assert 0 <= spread.low <= spread.median <= spread.high < math.inf
    assert row.ratio is None or math.isfinite(row.ratio.median)
    assert row.target is None  # small sizes have none
    assert "\n" not in line(row)


def quick(name: str) -> list[Row | Skipped]:
    """Return the rows of a script's quick scale."""
    rows = list(rows_at(import_module(f"benchmarks.{name}").measure, "quick"))
    assert rows
    for row in rows:
        check(row)
    assert len({line(row).partition(";")[0] for row in rows}) == len(rows)
    return rows


# Of their own, which import Flower and torch.
PROCESSES = ("audited_memory", "audited_resnet", "default_job")
LONG = ("water_filling", "local_updates")  # many trainings even at the quick scale
ELSEWHERE = {*PROCESSES, *LONG, "round_of_a_hundred_clients", "user_round"}


@pytest.mark.parametrize("name", [name for name in suite.SCRIPTS if name not in ELSEWHERE])
def test_every_question_can_be_asked_quickly(name: str) -> None:
    quick(name)


@pytest.mark.slow
@pytest.mark.parametrize("name", [*PROCESSES, *LONG])
def test_the_other_questions_can_be_asked_quickly(name: str) -> None:
    quick(name)


def test_a_run_is_measured_with_and_without_its_audit() -> None:
    without = audited_run.run("noise", 500, rounds=3, clients=4, seats=0)
    audited = audited_run.run("noise", 500, rounds=3, clients=4, seats=2)
    assert (without.dim, without.findings, without.disk) == (500, 0, 0.0)
    assert audited.findings > 3
    assert audited.disk >= 3 * 500 * 4 / 1e6  # the changes of all rounds
    assert audited.peak >= without.peak > 0


@pytest.mark.launch
def test_a_round_on_ray_can_be_asked_quickly() -> None:
    entry = suite.run("round_of_a_hundred_clients", "quick")
    assert not entry.failure
    [row] = entry.rows
    assert isinstance(row, Row)
    assert row.unit == "wall s"


@pytest.mark.launch
def test_rounds_of_a_user_can_be_asked_quickly(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("LEAKMETER_PFL_PYTHON", raising=False)
    kinds = [type(row) for row in quick("user_round")]
    assert kinds == [Row, Skipped] * 2  # Flower's, and none of pfl's


def test_a_question_without_its_data_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LEAKMETER_DATA", "")
    [row] = quick("gradient_inversion")
    assert isinstance(row, Skipped)
    assert "mnist" in row.reason


def test_every_file_is_a_question_or_known_to_be_shared() -> None:
    files = {path.stem for path in (ROOT / "benchmarks").glob("*.py")}
    assert files == {*suite.SCRIPTS, *SHARED}
    assert all(suite.asked(name).endswith("?") for name in suite.SCRIPTS)
    assert set(suite.HAVE_LONG) <= set(suite.SCRIPTS)
    assert sum(suite.SCRIPTS.values()) < 35 * 60


def test_listing_the_questions_imports_nothing_heavy() -> None:
    code = (
        "import sys; from benchmarks.__main__ import main; main(['--list']); "
        "assert not {'numpy', 'torch', 'flwr', 'scipy'} & set(sys.modules)"
    )
    assert run_python("-c", code).count("?") == len(suite.SCRIPTS)


def test_a_script_runs_by_its_path_beside_a_package_of_the_same_name(tmp_path: Path) -> None:
    (tmp_path / "benchmarks").mkdir()
    (tmp_path / "benchmarks" / "__init__.py").write_text("raise RuntimeError('not ours')")
    script = ROOT / "benchmarks" / "epsilon_of_two_gaussians.py"
    paths = os.pathsep.join([str(tmp_path), str(ROOT)])
    printed = run_python(script, "--quick", cwd=tmp_path, env=environment(PYTHONPATH=paths))
    assert " times; ours " in printed


def tree(folder: Path, **scripts: str) -> Path:
    """Write scripts in which one may fail, and return the folder."""
    (folder / "benchmarks").mkdir()
    (folder / "benchmarks" / "__init__.py").touch()
    for name, body in scripts.items():
        (folder / "benchmarks" / f"{name}.py").write_text(f'"""Is {name} slow?"""\n{body}')
    return folder


GOOD = """
import json, sys
row = {"case": "one", "unit": "MB", "ours": {"median": 1, "low": 1, "high": 1}, "repetitions": 1}
open(sys.argv[-1], "w").write(json.dumps(row))
"""


def test_a_script_that_fails_or_hangs_stops_none_of_the_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    hanging = f"{GOOD}\nimport time; time.sleep(60)"
    tree(tmp_path, bad="raise RuntimeError('no peer')", slow=hanging, good=GOOD)
    names = {"bad": 1, "slow": 1, "good": 1}
    monkeypatch.setattr(suite, "ROOT", tmp_path)
    monkeypatch.setattr(suite, "LIMIT", 2)
    monkeypatch.setattr(command, "SCRIPTS", names)
    assert command.main(["--quick", "--out", str(tmp_path / "out")]) == 1
    bad, slow, good = Report.read(tmp_path / "out").entries
    assert (bad.failure, good.failure) == ("RuntimeError: no peer", "")
    assert "more than 2 s" in slow.failure
    assert (len(bad.rows), len(slow.rows), len(good.rows)) == (0, 1, 1)
    written = (tmp_path / "out" / page.FILE_NAME).read_text()
    assert "It failed: RuntimeError: no peer" in written
    assert "## Is good slow?" in written
    assert "failed: bad, slow" in capsys.readouterr().err


def test_a_part_of_a_run_writes_nothing_unless_told_where(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tree(tmp_path, good=GOOD)
    monkeypatch.setattr(suite, "ROOT", tmp_path)
    monkeypatch.setattr(command, "SCRIPTS", {"good": 1})
    monkeypatch.setattr(command, "DOCS", tmp_path / "docs")
    assert command.main(["good"]) == command.main(["--quick"]) == 0
    assert not (tmp_path / "docs").exists()
    assert command.main([]) == 0
    assert (tmp_path / "docs" / page.FILE_NAME).exists()


def test_names_that_are_not_there_are_refused(capsys: pytest.CaptureFixture[str]) -> None:
    for wrong in (["nothing"], ["shamir", "--long"]):
        with pytest.raises(SystemExit) as left:
            command.main(wrong)
        assert left.value.code == 2
    assert "got 'nothing'" in capsys.readouterr().err


def entry(name: str, scale: Scale = "full", **changes: object) -> Entry:
    """Return an entry of one row."""
    setup = Setup("a machine", {"numpy": "2"})
    rows = (paired("case", [1, 2], [30, 40], peer="p", target=100),)
    known = Entry(name, f"Is {name} slow?", scale, "2026-01-02", 3.0, 0.5, setup, rows)
    return replace(known, **changes)  # type: ignore[arg-type]


def test_new_figures_replace_those_of_the_same_script_and_scale() -> None:
    old = Report((entry("a"), entry("gone"), entry("b"), entry("a", "long")))
    new = old.having([entry("b", date="2027-01-01")], ["b", "a"])
    assert [(e.name, e.scale, e.date) for e in new.entries] == [
        ("b", "full", "2027-01-01"),
        ("a", "full", "2026-01-02"),
        ("a", "long", "2026-01-02"),
    ]


def test_data_survive_being_written_and_setups_stand_once() -> None:
    other = Setup("another machine", {"numpy": "3"})
    report = Report((entry("a"), entry("b"), entry("c", setup=other, failure="no peer")))
    assert Report.of_text(report.to_text()) == report
    assert report.to_text().count("a machine") == 1
    assert report.to_text().count("another machine") == 1


def test_the_page_names_machines_and_missed_targets() -> None:
    text = page.page(Report((entry("a"), entry("b", setup=Setup("other", {})))))
    assert "Machine A: a machine; numpy 2." in text
    assert "2026-01-02, machine B, load average 0.5 before" in text
    assert "Targets met: 0 of 2. Missed:" in text
    assert "| 25 (20 to 30) | case | 1.5 s (1 to 2) | p: 35 s (30 to 40) |" in text
    assert "Missed" not in page.page(Report((entry("a", rows=()),)))


def test_the_page_is_that_of_the_committed_data() -> None:
    report = Report.read(ROOT / "docs")
    assert report.entries
    assert page.page(report) == (ROOT / "docs" / page.FILE_NAME).read_text(encoding="utf-8")
    assert report.to_text() == (ROOT / "docs" / "benchmarks.json").read_text(encoding="utf-8")


@pytest.mark.slow
def test_mypy_is_content_with_the_benchmarks() -> None:
    run_python("-m", "mypy", "-p", "benchmarks", timeout=900)
