"""Runs on the same data add up, whatever happens to the file in between."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from leakmeter.auditors.bounds.gaussian import epsilon_gaussian
from leakmeter.strategies.accounting.accountant import Release, amplified
from leakmeter.strategies.accounting.assurance import Assurance
from leakmeter.strategies.accounting.ledger import Entry, Ledger, spent, spent_amplified
from leakmeter.strategies.protection.mechanism import Central, Distributed
from tests.helpers.refusals import refuses

DELTA = 1e-5


def entry(run: str = "a", std: float = 2.0, rounds: int = 4, **more: Any) -> Entry:
    values = {"data": "digits", "seed": None, "adjacency": "zero-out", "participations": rounds}
    return Entry(**{"run": run, "releases": (Release(std, 1.0),) * rounds, **values, **more})


def sampled(run: str, seed: int | None, rate: float = 0.1, noise: Any = None) -> Entry:
    release = Release(2.0, 1.0, sampling="poisson", rate=rate, population=500)
    assurance = Assurance((noise or Central(2.0)), (release,) * 5, 2)
    return assurance.entry(run=run, data="digits", seed=seed)


def test_an_entry_comes_back_whole_and_names_no_bare_multiplier(tmp_path: Path) -> None:
    ledger = Ledger(tmp_path / "deep" / "ledger.jsonl")
    releases = (Release(1.0, 0.5), Release(0.1 + 0.2, 1 / 3, bit_std=2.0), Release(1.0, 0.5))
    kept = entry(releases=releases, participations=3, adjacency="add-remove", seed=4)
    ledger.record(kept)
    assert ledger.entries("digits") == [
        entry(
            releases=(releases[0], releases[2], releases[1]),
            participations=3,
            adjacency="add-remove",
            seed=4,
        )
    ]
    [line] = ledger.path.read_text().splitlines()
    group = json.loads(line)["releases"][0]
    assert (group["noise_std"], group["sensitivity"], group["count"]) == (1.0, 0.5, 2)
    assert "multiplier" not in line


def test_runs_on_the_same_data_compose(tmp_path: Path) -> None:
    ledger = Ledger(tmp_path / "ledger.jsonl")
    assert ledger.entries("digits") == []
    ledger.record(entry("a", std=2.0, rounds=4))  # separation 1
    ledger.record(entry("b", std=1.0, rounds=9, participations=3))  # separation √3
    ledger.record(entry("c", data="mnist"))
    bound = spent(ledger.entries("digits"), DELTA)
    assert bound.value == pytest.approx(epsilon_gaussian(DELTA, 2.0))
    assert (bound.kind, bound.delta, bound.sample_sizes["runs"]) == ("guarantee", DELTA, 2)
    assert spent(ledger.entries("mnist"), DELTA).value == pytest.approx(epsilon_gaussian(DELTA, 1))


def test_the_price_of_runs_is_that_of_their_costliest_releases_and_of_any_that_is_rough() -> None:
    mixed = entry(releases=(Release(1.0, 1.0), Release(0.5, 1.0), Release(9.0, 1.0)), rounds=2)
    assert spent([mixed], DELTA).value == pytest.approx(epsilon_gaussian(DELTA, math.sqrt(5)))
    assert spent([entry(), entry("b", std=0.0)], DELTA).value == math.inf
    assert spent([entry(), entry("b", is_coarse=True)], DELTA).kind == "approximation"
    nothing = entry("b", rounds=0)  # ended before its first round
    assert spent([nothing], DELTA).value == 0
    alone, both = [sampled("a", 1)], [sampled("a", 1), nothing]
    assert spent_amplified(both, DELTA) == spent_amplified(alone, DELTA)
    with refuses("delta"):
        spent([entry()], 1.0)
    with refuses("participations"):
        entry(participations=5)


def test_a_later_entry_takes_the_place_of_an_earlier_one_of_its_run(tmp_path: Path) -> None:
    ledger = Ledger(tmp_path / "ledger.jsonl")
    for rounds in (1, 2, 3):
        ledger.record(entry("a", rounds=rounds))
        ledger.record(entry("b", rounds=1))
    assert {e.run: len(e.releases) for e in ledger.entries("digits")} == {"a": 3, "b": 1}
    assert [e.run for e in ledger.entries("digits", but="a")] == ["b"]
    assert [e.run for e in ledger.history()] == ["a", "b"] * 3  # nothing is written over


def test_runs_that_end_at_the_same_time_are_all_there_and_each_sees_those_before(
    tmp_path: Path,
) -> None:
    ledger = Ledger(tmp_path / "ledger.jsonl")

    def numbered(history: Sequence[Entry]) -> Entry:
        return entry(str(len(history)))

    with ThreadPoolExecutor(4) as pool:
        made = list(pool.map(lambda _: ledger.update(numbered), range(12)))
    assert sorted(int(e.run) for e in made) == list(range(12))
    assert {e.run for e in ledger.entries("digits")} == {str(i) for i in range(12)}


def test_a_failed_write_leaves_the_old_ledger(tmp_path: Path, monkeypatch: Any) -> None:
    ledger = Ledger(tmp_path / "ledger.jsonl")
    ledger.record(entry("a"))
    monkeypatch.setattr(
        "leakmeter.auditors.run_log.os.fsync", lambda _: (_ for _ in ()).throw(OSError("full"))
    )
    with pytest.raises(OSError, match="full"):
        ledger.record(entry("b"))
    assert [e.run for e in ledger.entries("digits")] == ["a"]


WRONG: list[dict[str, Any]] = [
    *({"run": []}, {"data": 3}, {"participations": 1.5}, {"releases": [{"count": 10**30}]}),
]


@pytest.mark.parametrize(
    "line",
    [
        *("{", "[]", "{}", '{"run": "x", "releases": []}'),
        *(json.dumps({**entry().to_json(), **wrong}) for wrong in WRONG),
    ],
)
def test_a_line_that_is_no_entry_is_an_error_not_a_gift(tmp_path: Path, line: str) -> None:
    ledger = Ledger(tmp_path / "ledger.jsonl")
    ledger.record(entry("a"))
    with ledger.path.open("a") as file:
        file.write(line + "\n")
    for ask in (lambda: ledger.entries("digits"), lambda: ledger.record(entry("b"))):
        with pytest.raises(ValueError, match="one entry per line, got line 2 of"):
            ask()


def test_a_clip_bit_makes_its_own_run_add_remove_and_no_other() -> None:
    bit = entry(releases=(Release(1.0, 1.0, bit_std=0.5),), rounds=1, adjacency="add-remove")
    bound = spent([entry("b"), bit], DELTA)
    assert bound.value == pytest.approx(epsilon_gaussian(DELTA, math.sqrt(3)))
    # Removing a client also removes its share of distributed noise, which nothing here prices.
    assert bound.rule.endswith("2 runs, add-remove and zero-out")
    assert spent([bit], DELTA).rule.endswith("1 run, add-remove")
    assert spent([entry("b")], DELTA).rule.endswith("1 run, zero-out")


def test_amplification_needs_poisson_everywhere_and_cohorts_of_its_own() -> None:
    both = [sampled("a", 1), sampled("b", 2)]
    bound = spent_amplified(both, DELTA)
    assert bound is not None
    releases = [r for e in both for r in e.releases]
    assert bound.value == amplified(releases, DELTA, adjacency="zero-out").value
    assert bound.value < spent(both, DELTA).value
    assert spent_amplified([sampled("a", 1), sampled("b", 1)], DELTA) is None
    assert spent_amplified([sampled("a", 1), entry("b")], DELTA) is None
    assert spent_amplified([sampled("a", 1, noise=Distributed(2.0, 3))], DELTA) is None
    assert spent_amplified([], DELTA) is None


def chained(tmp_path: Path) -> Ledger:
    ledger = Ledger(tmp_path / "ledger.jsonl")
    for run in "abc":
        ledger.record(entry(run))
    return ledger


def change(ledger: Ledger, number: int, new: str | None) -> None:
    """Change or remove a line, as an editor would."""
    lines = ledger.path.read_text().splitlines(keepends=True)
    lines[number - 1 : number] = (
        [] if new is None else [lines[number - 1].replace('"noise_std": 2.0', new)]
    )
    ledger.path.write_text("".join(lines))


@pytest.mark.parametrize("number", [1, 2, 3])
@pytest.mark.parametrize("new", [None, '"noise_std": 9.0'])
@pytest.mark.parametrize("has_head", [True, False])
def test_a_changed_or_removed_line_is_noticed(
    tmp_path: Path, number: int, new: str | None, has_head: bool
) -> None:
    ledger = chained(tmp_path)
    if not has_head:
        ledger._head.unlink()
    change(ledger, number, new)
    if number == 3 and not has_head:  # nothing after it knows it
        assert len(ledger.entries("digits")) == (2 if new is None else 3)
        return
    for ask in (lambda: ledger.entries("digits"), lambda: ledger.record(entry("d"))):
        with pytest.raises(ValueError, match=r"changed|removed") as caught:
            ask()
        assert "restore the ledger from a backup" in str(caught.value)
    if new is None:
        named = {
            1: "lines at the beginning of",
            2: "a line before line 2 was removed",
            3: "the last ones",
        }
        assert named[number] in str(caught.value)
    else:
        assert f"line {number} of" in str(caught.value)
    if has_head:
        ledger.path.unlink()
        with pytest.raises(ValueError, match="has 0 lines, but had 3: the last ones were removed"):
            ledger.entries("digits")


def test_a_ledger_of_an_earlier_release_is_continued_with_hashes(tmp_path: Path) -> None:
    ledger = Ledger(tmp_path / "ledger.jsonl")
    old = [entry(run).to_json() for run in "ab"]
    for values in old:
        del values["is_planned"], values["place"]
    ledger.path.write_text("".join(json.dumps(values) + "\n" for values in old))
    assert [e.run for e in ledger.entries("digits")] == ["a", "b"]
    ledger.record(entry("c"))
    assert [e.run for e in ledger.entries("digits")] == ["a", "b", "c"]
    ledger._head.unlink()
    change(ledger, 1, '"noise_std": 9.0')
    with pytest.raises(ValueError, match=r"one of lines 1 to 2 of .* was changed"):
        ledger.entries("digits")


@pytest.mark.parametrize("torn", [False, True])
def test_a_line_without_its_end_counts_if_it_is_whole(tmp_path: Path, torn: bool) -> None:
    ledger = chained(tmp_path)
    whole = ledger.path.read_text()
    # Half a line is of a process that died.
    ledger.path.write_text(whole + '{"run": "d", "da' if torn else whole.rstrip("\n"))
    assert [e.run for e in ledger.entries("digits")] == ["a", "b", "c"]
    ledger.record(entry("e"))
    assert [e.run for e in ledger.entries("digits")] == ["a", "b", "c", "e"]


def test_a_head_that_lags_behind_or_is_missing_is_no_alarm(tmp_path: Path) -> None:
    ledger = chained(tmp_path)
    head = ledger._head.read_text()
    ledger.record(entry("d"))
    ledger._head.write_text(head)  # the process died before it wrote the new one
    assert len(ledger.entries("digits")) == 4
    ledger._head.write_text("x")
    with pytest.raises(ValueError, match="is damaged; delete it if"):
        ledger.entries("digits")
    ledger._head.unlink()
    assert len(ledger.entries("digits")) == 4


def test_all_ways_to_one_ledger_have_one_lock_and_one_head(tmp_path: Path) -> None:
    ledger, link = tmp_path / "ledger.jsonl", tmp_path / "elsewhere" / "link.jsonl"
    link.parent.mkdir()
    Ledger(ledger).record(entry("a"))
    link.symlink_to(ledger)
    Ledger(link).record(entry("b"))
    ledger.write_bytes(ledger.read_bytes() + b'{"run": "to')  # half a line, which is cut off
    Ledger(link).record(entry("c"))
    assert link.is_symlink()
    assert [path.name for path in link.parent.iterdir()] == ["link.jsonl"]
    assert [e.run for e in Ledger(ledger).entries("digits")] == ["a", "b", "c"]


def test_the_plan_of_a_lost_run_can_be_replaced_by_what_it_has_released(tmp_path: Path) -> None:
    """As the documentation does it."""
    ledger = Ledger(tmp_path / "ledger.jsonl")
    ledger.record(entry("ended"))
    ledger.record(entry("lost", rounds=3, is_planned=True))
    plan = {e.run: e for e in ledger.history()}["lost"]
    ledger.record(replace(plan, releases=plan.releases[:1], participations=1, is_planned=False))
    [ended, lost] = ledger.entries("digits")
    assert (len(lost.releases), lost.is_planned) == (1, False)
    assert ended == entry("ended")
