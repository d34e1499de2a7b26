"""The bench: its clock, its rows, its page, and that every question can be asked."""

from __future__ import annotations

import json
import math
import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import asdict, replace
from importlib import import_module
from pathlib import Path

import pytest

from benchmarks import __main__ as command
from benchmarks import audited_run, growth, likelihood_ratio_round, measure, memory, page, run
from benchmarks import user_round as rounds_of_a_user
from benchmarks.cpu import cpu_seconds
from benchmarks.measure import OURS, Row, Scale, compare, interleave, timer
from benchmarks.page import Entry, amount, line, target
from benchmarks.secure_sum import until_one_ends
from leakmeter.strategies.secure_sum.sum_round import AbandonedError
from tests.helpers.flower import flower_from
from tests.helpers.processes import run_python
from tests.helpers.project import ROOT

QUESTIONS = run.questions()


class FakeClock:
    """A clock that only work moves, and that remembers who worked."""

    def __init__(self) -> None:
        self.now, self.worked = 0.0, list[str]()

    def process_time(self) -> float:
        return self.now

    def work(self, name: str, *seconds: float) -> Callable[[], None]:
        """Return work that takes these times in turn."""
        left = list(seconds)

        def call() -> None:
            self.worked.append(name)
            self.now += left.pop(0)

        return call


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> FakeClock:
    fake = FakeClock()
    monkeypatch.setattr(measure, "time", fake)
    return fake


def test_a_timer_divides_by_its_calls_and_by_the_size_of_each(clock: FakeClock) -> None:
    assert timer(clock.work("a", 1, 3), calls=2)() == 2
    assert timer(clock.work("a", 3), size=0.25)() == 12
    assert clock.worked == ["a"] * 3


BURN = "import time\nwhile time.process_time() < {}: pass"


def test_the_cpu_of_a_command_includes_what_outlives_it_and_waits_for_nobody_else() -> None:
    daemon = [sys.executable, "-c", BURN.format(0.3)]
    with subprocess.Popen([sys.executable, "-c", "import time; time.sleep(30)"]) as another:
        spent = cpu_seconds(
            [sys.executable, "-c", f"import subprocess; subprocess.Popen({daemon})"]
        )
        assert another.poll() is None
        another.kill()
    assert spent > 0.3


@pytest.mark.slow
def test_cpu_of_a_process_that_nobody_waits_for_is_counted() -> None:
    work = "import time\nwhile time.process_time() < 0.8: pass"
    code = f"""
import signal, subprocess, sys, time
signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # the kernel forgets what the child has used
child = subprocess.Popen([sys.executable, "-c", {work!r}])
while child.poll() is None: time.sleep(0.05)
"""
    assert cpu_seconds([sys.executable, "-c", code]) > 0.6


def test_a_command_that_fails_says_so_in_its_own_words() -> None:
    with pytest.raises(RuntimeError, match=r"code 3: .*no data"):
        cpu_seconds(
            [sys.executable, "-c", "import sys; print('no data', file=sys.stderr); sys.exit(3)"]
        )


def test_timers_take_turns_and_the_order_alternates(clock: FakeClock) -> None:
    times = interleave({name: timer(clock.work(name, *range(9))) for name in "abc"}, 3)
    assert "".join(clock.worked) == "abc" + "abc" + "cba" + "abc"
    assert times == {name: [1, 2, 3] for name in "abc"}


def test_without_a_warm_up_the_first_call_counts(clock: FakeClock) -> None:
    assert interleave({"a": timer(clock.work("a", 7))}, 1, warm_up=False) == {"a": [7]}


def test_a_ratio_is_of_the_same_repetition_and_not_of_the_medians(clock: FakeClock) -> None:
    ours, theirs = timer(clock.work(OURS, 1, 10, 2)), timer(clock.work("peer", 3, 10, 20))
    row = compare("case", ours, theirs, peer="peer", repetitions=3, warm_up=False)
    assert row.ratios == (3, 1, 10)  # the ratio of the medians would be 10 / 2
    assert (row.ours, row.theirs) == ([1, 10, 2], [3, 10, 20])
    assert clock.worked == [OURS, "peer", "peer", OURS, OURS, "peer"]


def test_sides_that_were_not_measured_equally_often_are_refused() -> None:
    with pytest.raises(ValueError, match="zip"):
        _ = Row("case", [1, 1], [2], peer="p").ratios


def test_a_target_is_a_ratio_with_a_peer_and_a_limit_without() -> None:
    assert target(Row("case", [1, 1], [4, 6], peer="p", target=5)) == "≥ 5: met"
    assert target(Row("case", [1, 1], [4, 5], peer="p", target=5)) == "≥ 5: **missed**"
    assert target(Row("case", [2], target=2)) == "≤ 2 s: met"
    assert target(Row("case", [2.1], target=2)) == "≤ 2 s: **missed**"
    assert Row("case", [1]).margin is None
    assert Row("case", [], note="not measured: no peer", target=2).margin is None
    assert target(Row("case", [0, 0, 1], target=0.1)) == "≤ 100 ms: met"


def test_figures_are_written_in_the_unit_of_their_median() -> None:
    assert amount([0.013, 0.0009, 0.0021], "CPU s") == "2.1 ms (0.9 to 13)"
    assert amount([4e-6], "wall s") == "4 µs"
    assert amount([0.0], "CPU s") == "0 ns"
    assert amount([34166], "bytes") == "34,166 bytes"
    assert amount([], "MB") == ""
    row = Row("case", [1.0], [221.4], peer="Flower", target=100)
    assert line(row).startswith("ratio 221; case case; ours 1 s; peer Flower: 221 s; target ≥ 100")


def test_an_exponent_is_the_slope_of_the_logarithms() -> None:
    assert math.isclose(growth.slope([1, 2, 4], [3, 12, 48]), 2)
    assert math.isclose(growth.slope([1, 10], [5, 5]), 0, abs_tol=1e-12)


def test_memory_is_what_a_fresh_process_holds_on_top() -> None:
    few, many = memory.grown(bytearray, 1, 20 << 20, 60 << 20)
    assert 15 < few < 25
    assert 55 < many < 65
    with pytest.raises(ValueError, match="rise"):
        memory.grown(bytearray, 1, 60, 20)


def test_the_memory_of_a_likelihood_ratio_round_starts_from_a_small_one() -> None:
    for size in likelihood_ratio_round.SIZES["full"].values():
        few = replace(size, fit=200, candidates=5, trials=10)
        assert likelihood_ratio_round.one(likelihood_ratio_round.SMALL, few) > 0


def test_an_abandoned_round_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    fake = FakeClock()
    monkeypatch.setattr("benchmarks.secure_sum.time", fake)
    lost = [fake.work("lost", 2), fake.work("lost", 3)]

    def play() -> float:
        if lost:
            lost.pop()()
            raise AbandonedError
        return 10.0

    assert until_one_ends(play) == (15.0, 2)


def grown_here(call: Callable[[int], object], small: int, *sizes: int) -> list[float]:
    """Measure memory in this process: a fresh one imports torch for seconds."""
    return memory._grown(call, small, sizes)


def quick(name: str) -> list[Row]:
    """Return the rows of a benchmark's quick scale; each can be on the page."""
    rows: list[Row] = list(import_module(f"benchmarks.{name}").measure("quick"))
    assert rows
    for row in rows:
        written = json.dumps(asdict(row))
        assert json.dumps(asdict(Row(**json.loads(written)))) == written
        assert row.case
        assert row.note or row.ours
        assert all(0 <= value < math.inf for value in (*row.ours, *row.theirs)) or (
            row.unit == "exponent"
        )
        assert "\n" not in line(row)
    assert len({(row.case, row.peer) for row in rows}) == len(rows)
    return rows


# Of their own, which import Flower and torch.
PROCESSES = (
    *("audited_memory", "audited_resnet", "default_job", "filling_memory"),
    *("population", "single_updates"),
)
# A second and more even at the quick scale.
LONG = (
    *("water_filling", "local_updates", "growth", "secure_sum_round", "mine_training"),
    "gradient_inversion",
)
ELSEWHERE = {*PROCESSES, *LONG, "round_of_a_hundred_clients", "user_round"}


PEERS = flower_from("1.33", "the peer of the benchmark is elsewhere")


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=[PEERS, pytest.mark.slow] if name == "secure_sum_traffic" else ())
        for name in QUESTIONS
        if name not in ELSEWHERE
    ],
)
def test_every_question_can_be_asked_quickly(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    if hasattr(module := import_module(f"benchmarks.{name}"), "grown"):
        monkeypatch.setattr(module, "grown", grown_here)
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
    name = "round_of_a_hundred_clients"
    entry = run.run(name, QUESTIONS[name], "quick")
    assert not entry.failure
    [row] = entry.rows
    assert row.unit == "wall s"


@pytest.mark.launch
def test_rounds_of_a_user_can_be_asked_quickly(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rounds_of_a_user, "find_spec", lambda _: None)
    measured = [bool(row.ours) for row in quick("user_round")]
    # Flower's with images, with tensors, none of pfl's, and bare products; the CNN with tensors.
    assert measured == [True, True, False, True] * 2 + [True, False]


def test_a_question_without_its_data_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LEAKMETER_DATA", "")
    [row] = quick("gradient_inversion")
    assert not row.ours
    assert "mnist" in row.note


def test_every_module_that_measures_asks_a_question() -> None:
    files = {path.stem: path.read_text() for path in (ROOT / "benchmarks").glob("*.py")}
    measuring = {name for name, text in files.items() if "\ndef measure(" in text}
    assert measuring == set(QUESTIONS)


def test_the_harness_is_small() -> None:
    files = ("__main__", "run", "measure", "page", "memory")
    lines = [(ROOT / "benchmarks" / f"{name}.py").read_text().count("\n") for name in files]
    assert sum(lines) <= 393


def test_listing_the_questions_imports_nothing_heavy() -> None:
    code = (
        "import sys; from benchmarks.__main__ import main; main(['--list']); "
        "assert not {'numpy', 'torch', 'flwr', 'scipy'} & set(sys.modules)"
    )
    assert run_python("-c", code).count("?") == len(QUESTIONS)


@pytest.mark.slow
def test_the_command_measures_in_a_process_of_its_own() -> None:
    """Run from the shell: a module that is `__main__` cannot be found by its children."""
    printed = run_python("-m", "benchmarks", "epsilon_of_two_gaussians", "--quick")
    assert printed.count("ratio ") >= 3


GOOD = """
from benchmarks.measure import Row

def measure(scale):
    yield Row("one", [1.0], unit="MB", target=2.0)
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return a folder of benchmarks, of which one is good; the page goes beside it."""
    found = tmp_path / "some_benches"
    found.mkdir()
    (found / "shared.py").write_text('"""Nothing is asked here."""')
    (found / "good.py").write_text(f'"""Is good slow?"""\n{GOOD}')
    monkeypatch.setattr(run, "FOLDER", found)
    monkeypatch.setattr(command, "DOCS", tmp_path / "docs")
    monkeypatch.syspath_prepend(str(tmp_path))
    return found


def test_a_benchmark_that_fails_or_dies_stops_none_of_the_others(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (folder / "bad.py").write_text(f'"""Bad?"""\n{GOOD}    raise RuntimeError("no peer")')
    (folder / "dead.py").write_text(f'"""Dead?"""\n{GOOD}    import os; os._exit(7)')
    assert command.main(["--quick", "--out", str(tmp_path / "out")]) == 1
    bad, dead, good = page.read(tmp_path / "out")
    assert (bad.failure, dead.failure, good.failure) == ("RuntimeError: no peer", "exit code 7", "")
    assert [len(entry.rows) for entry in (bad, dead, good)] == [1, 1, 1]
    assert good.rows[0].target is None
    written = (tmp_path / "out" / page.PAGE).read_text()
    assert "It failed: RuntimeError: no peer" in written
    assert "## Is good slow?" in written
    assert "failed: bad, dead" in capsys.readouterr().err


def test_a_benchmark_that_hangs_ends_with_what_it_started(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(run.LIMITS, "quick", 5)
    os.mkfifo(pipe := tmp_path / "pipe")
    reader = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
    waits = f"subprocess.run(['sh', '-c', 'exec 3> {pipe}; echo here >&3; exec sleep 600'])"
    (folder / "slow.py").write_text(f'"""Slow?"""\nimport subprocess\n{GOOD}    {waits}')
    slow = run.run("slow", "Slow?", "quick")
    assert slow.failure == "stopped after 5 s"
    assert [row.case for row in slow.rows] == ["one"]
    assert os.read(reader, 99) == b"here\n"
    assert os.read(reader, 99) == b""  # an error while somebody could still write
    os.close(reader)


def test_a_part_of_a_run_writes_nothing_unless_told_where(folder: Path, tmp_path: Path) -> None:
    assert folder
    assert command.main(["good"]) == 0
    assert not (tmp_path / "docs").exists()
    assert command.main([]) == 0
    assert "≤ 2 MB: met" in (tmp_path / "docs" / page.PAGE).read_text()


def test_wrong_command_lines_are_refused(capsys: pytest.CaptureFixture[str]) -> None:
    for wrong, said in ((["nothing"], "got 'nothing'"), (["--long"], "--long needs the NAME")):
        with pytest.raises(SystemExit) as left:
            command.main(wrong)
        assert left.value.code == 2
        assert said in capsys.readouterr().err


def entry(name: str, scale: Scale = "full", **changes: object) -> Entry:
    """Return an entry of two rows, the second nearer to its target."""
    rows = [
        Row("far", [1, 1], [30, 30], peer="p", target=10),
        Row("near", [1, 2], [30, 40], peer="p", target=100),
    ]
    known = Entry(name, f"Is {name} slow?", scale, "2026-01-02", 3.0, 0.5, "a machine", rows)
    return replace(known, **changes)  # type: ignore[arg-type]


def slow(*names: str) -> dict[str, str]:
    """Return the questions of these benchmarks."""
    return {name: f"Is {name} slow?" for name in names}


def test_new_figures_replace_those_of_the_same_name_and_scale(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    old = [entry("a"), entry("gone"), entry("b"), entry("a", "long")]
    page.write([*old, entry("b", date="2027-01-01")], tmp_path, slow("b", "a"))
    new = page.read(tmp_path)
    assert [(e.name, e.scale, e.date) for e in new] == [
        ("b", "full", "2027-01-01"),
        ("a", "full", "2026-01-02"),
        ("a", "long", "2026-01-02"),
    ]
    assert new[1] == entry("a")
    said = "left out, no such benchmark: gone, full scale, 2026-01-02\n"
    assert capsys.readouterr().err == said


def test_a_run_that_failed_replaces_no_figures(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    failed = entry("a", failure="stopped after 5 s", rows=[], date="2027-01-01")
    page.write([failed], tmp_path, slow("a"))
    assert page.read(tmp_path) == [failed]
    page.write([failed, entry("a"), failed], tmp_path, slow("a"))
    assert page.read(tmp_path) == [entry("a")]
    assert "left out, it failed: a, full scale, 2027-01-01" in capsys.readouterr().err


def test_a_part_of_a_run_leaves_all_other_figures_as_they_are(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert folder
    for name in ("other", "third"):
        (folder / f"{name}.py").write_text(f'"""Is {name} slow?"""\n{GOOD}')
    old = [entry("other"), entry("other", "long"), entry("good", "long")]
    page.write(old, tmp_path, run.questions())
    assert command.main(["good", "--out", str(tmp_path)]) == 0
    new = {(e.name, e.scale): e for e in page.read(tmp_path)}
    assert list(new) == [("good", "full"), ("good", "long"), ("other", "full"), ("other", "long")]
    assert [new[e.name, e.scale] for e in old] == old
    assert (tmp_path / page.DATA).read_text("utf-8").count("\n") == 4 + 2  # a line each
    assert not capsys.readouterr().err


def test_the_page_names_every_question_and_how_to_measure_what_is_not() -> None:
    text = page.page([entry("a"), entry("c", rows=[], failure="no")], slow("a", "b", "c"))
    for name in ("b", "c"):
        command = f"`python -m benchmarks {name} --out docs`"
        assert f"[Is {name} slow?](../benchmarks/{name}.py) | not measured: {command} |" in text
    assert "## Is b slow?" not in text


def test_the_page_begins_with_one_line_per_question_the_row_nearest_to_its_target() -> None:
    entries = [entry("a"), entry("a", "long"), entry("b", machine="another")]
    text = page.page(entries, slow("a", "b"))
    first = text.partition("## How it is measured")[0]
    assert "Targets met: 3 of 6." in first
    assert "took 0\nminutes, without the long scale" in text
    assert "| [Is a slow?](../benchmarks/a.py) | 25 (20 to 30): near | ≥ 100: **missed** |" in first
    assert first.count("slow?") == 2
    assert "Machine: a machine.\n" in text
    assert "Machine: another.\n" in text
    assert "2026-01-02, load 0.5, long scale, 3 s." in text
    assert "| 25 (20 to 30) | near | 1.5 s (1 to 2) | p: 35 s (30 to 40) |" in text


def test_the_page_is_that_of_the_committed_data(tmp_path: Path) -> None:
    docs = ROOT / "docs"
    entries = page.read(docs)
    assert entries
    page.write(entries, tmp_path, QUESTIONS)
    for name in (page.DATA, page.PAGE):
        assert (tmp_path / name).read_text("utf-8") == (docs / name).read_text("utf-8")


def test_the_first_screen_of_the_page_is_one_screen() -> None:
    first = (ROOT / "docs" / page.PAGE).read_text("utf-8").partition("## How it is measured")[0]
    assert first.count("\n") <= 50


@pytest.mark.slow
def test_mypy_is_content_with_the_benchmarks() -> None:
    run_python("-m", "mypy", "-p", "benchmarks", timeout=900)
