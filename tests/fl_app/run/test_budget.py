"""A budget is asked before a run and charged however it ends."""

from __future__ import annotations

import json
import os
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from leakmeter.auditors import wording
from leakmeter.auditors.hook.wrapper import chain
from leakmeter.auditors.run_log import locked
from leakmeter.fl_app import build, client_app
from leakmeter.fl_app.cli.main import main
from leakmeter.fl_app.config.config import Config
from leakmeter.fl_app.config.field import ConfigError
from leakmeter.fl_app.run import budget
from leakmeter.fl_app.run.folder import Checkpoint, RunFolder
from leakmeter.fl_app.run.launch import launch
from leakmeter.fl_app.run.progress import Progress
from leakmeter.strategies import Central, Noised
from leakmeter.strategies.accounting.accountant import Release
from leakmeter.strategies.accounting.assurance import Assurance, Charge
from leakmeter.strategies.accounting.ledger import Ledger, spent
from leakmeter.strategies.flower import strategy_state
from tests.helpers.numbers import first_fast
from tests.helpers.refusals import refuses

NOISE = ["--noise", "central", "--clip-norm", "1", "--noise-multiplier", "2"]
QUICK = [*NOISE, "--secagg", "off", "--auditors", "none"]


def entries(path: Path) -> Any:
    return Ledger(path).entries("synthetic")


def noised(config: Config, tmp_path: Path, **more: Any) -> Config:
    usual = {"noise": "central", "clip_norm": 1.0, "ledger": str(tmp_path / "l")}
    return replace(config, **usual | more)


def made(path: Path) -> Path:
    path.mkdir()
    return path


def test_runs_are_charged_and_one_beyond_the_budget_is_refused_before_it_begins(
    tiny: list[str], tmp_path: Path, capsys: Any
) -> None:
    ledger = tmp_path / "ledger.jsonl"
    settings = [*tiny, *NOISE, "--ledger", str(ledger)]
    assert main([*settings, "--out", str(tmp_path / "a")]) == 0
    said = " ".join(capsys.readouterr().out.split())
    [entry] = entries(ledger)
    epsilon = spent([entry], 1e-5).value
    rounded_up = wording.number(epsilon, kind="guarantee")
    assert f"ledger: 1 run on synthetic, ε ≤ {rounded_up} at δ = 1e-05" in said
    assert len(entry.releases) == 4
    assert [(r.noise_std, r.sampling, r.cohort) for r in entry.releases] == [(2.0, "fixed", 5)] * 4
    report = json.loads((tmp_path / "a" / "report.json").read_text())
    values = [f["value"] for f in report["findings"] if f["auditor"] == "accountant"]
    assert epsilon in values

    more = [*settings, "--seed", "1", "--budget", str(1.2 * epsilon)]
    assert main([*more, "--out", str(tmp_path / "b")]) == 2
    assert "would be exceeded" in capsys.readouterr().err
    assert not (tmp_path / "b").exists()
    assert main([*more, "--over-budget", "warn", "--out", str(tmp_path / "b")]) == 0
    assert "exceeds the budget" in " ".join(capsys.readouterr().out.split())
    assert len(entries(ledger)) == 2


def test_an_interrupted_run_is_charged_once_for_what_it_has_released(
    tiny: list[str], tmp_path: Path, monkeypatch: Any
) -> None:
    ledger, out = tmp_path / "ledger.jsonl", tmp_path / "a"
    with monkeypatch.context() as patch:

        def round_two(*_: Any) -> Any:
            raise KeyboardInterrupt

        real = client_app.update_rule
        calls = iter(range(100))
        rule = lambda c: round_two() if next(calls) > 6 else real(c)  # noqa: E731
        patch.setattr(client_app, "update_rule", rule)
        settings = [*tiny, *NOISE, "--ledger", str(ledger), "--out", str(out)]
        assert main(settings) == 130
    [partial] = entries(ledger)
    assert len(partial.releases) == 1
    assert main(["--resume", str(out)]) == 0
    [whole] = entries(ledger)
    assert (whole.run, len(whole.releases)) == (partial.run, 4)


def test_a_seed_names_the_noise_and_serves_once(tiny_config: Config, tmp_path: Path) -> None:
    config = noised(tiny_config, tmp_path)
    strategy = build.server_strategy(config)
    budget.check_budget(config, strategy)
    entry = budget._planned(config, strategy, "before")
    Ledger(tmp_path / "l").record(entry)
    with refuses("--seed"):
        budget.check_budget(config, strategy)
    budget.check_budget(replace(config, seed=1), strategy)
    budget.check_budget(replace(config, dataset="digits"), strategy)


@pytest.mark.parametrize(
    ("noise", "distribution", "participation", "secagg"),
    first_fast(
        5,
        [
            # Without masks for Gaussian noise, else up to the rounding of the secure sum.
            ("central", "gaussian", "fixed", "off"),
            ("distributed", "gaussian", "poisson", "on"),
            ("local", "gaussian", "epochs", "off"),
            ("distributed", "skellam", "epochs", "on"),
            ("central", "skellam", "epochs", "off"),
            ("central", "skellam", "epochs", "on"),
            ("central", "gaussian", "poisson", "off"),
            ("central", "gaussian", "epochs", "off"),
            ("distributed", "gaussian", "fixed", "on"),
            ("distributed", "gaussian", "epochs", "on"),
            ("local", "gaussian", "fixed", "off"),
            ("local", "gaussian", "poisson", "off"),
        ],
    ),
)
def test_the_plan_is_what_a_run_without_dropouts_releases(
    noise: str,
    distribution: str,
    participation: str,
    secagg: str,
    tiny_config: Config,
    tmp_path: Path,
) -> None:
    protection = {"noise": noise, "noise_distribution": distribution, "secagg": secagg}
    more = {"auditors": "none", "sample": 4, "participation": participation}
    config = noised(tiny_config, tmp_path, **more, **protection)
    planned = budget._planned(config, build.server_strategy(config), "plan")
    launch(RunFolder.create(tmp_path / "a", config), Progress())
    [charged] = entries(tmp_path / "l")
    assert charged.participations == planned.participations
    both = (sorted(one.releases, key=lambda r: r.noise_std) for one in (charged, planned))
    for real, plan in zip(*both, strict=True):
        assert real.noise_std == pytest.approx(plan.noise_std)
        assert (real.grid is None, plan.grid is None) == (distribution == "gaussian",) * 2
        if distribution == "skellam":
            assert real.sensitivity == pytest.approx(plan.sensitivity, rel=1e-6)


def test_the_statement_rounds_up_and_calls_an_approximation_by_its_name(
    tiny_config: Config, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = noised(tiny_config, tmp_path)
    entry = budget._planned(config, build.server_strategy(config), "one")
    Ledger(tmp_path / "l").record(entry)
    exact = spent([entry], config.delta).value
    said = budget.statement(config)
    printed = float(said.partition("ε ≤ ")[2].partition(" ")[0])
    assert exact <= printed <= 1.001 * exact
    assert "never learn" not in said
    with monkeypatch.context() as patch:
        smaller = replace(spent([entry], config.delta), value=0.5)
        patch.setattr(budget, "spent_amplified", lambda *_: smaller)
        words = " (ε ≤ 0.5 against those who never learn who took part)"
        assert words in budget.statement(config)
    Ledger(tmp_path / "l").record(replace(entry, is_coarse=True))
    said = budget.statement(config)
    assert "ε ≈ " in said
    assert "≤" not in said


def test_canaries_are_not_charged_to_clients() -> None:
    # A guarantee is priced for them, but no client's data are in them.
    assurance = Assurance(Central(1.0), (Release(1.0, 1.0),) * 4, 1, canary_rounds=4)
    assert assurance.entry(run="a", data="digits", seed=0).participations == 1


LOCKED = r"readable ledger .*l\.lock: Is a directory; make it a file that can be written, or"


@pytest.mark.parametrize(
    ("name", "words"),
    [("l", "readable ledger"), ("", "readable ledger"), ("loop", ""), ("locked/l", LOCKED)],
)
def test_a_broken_ledger_is_the_users_mistake(
    name: str, words: str, tiny_config: Config, tmp_path: Path
) -> None:
    (tmp_path / "l").write_text("nonsense\n")
    (tmp_path / "loop").symlink_to(tmp_path / "loop")
    (tmp_path / "locked/l.lock").mkdir(parents=True)
    config = noised(tiny_config, tmp_path, ledger=str(tmp_path / name))
    with pytest.raises(ConfigError, match=f"ledger must be a? ?{words}"):
        budget.check_budget(config, build.server_strategy(config))


def test_a_ledger_that_somebody_keeps_locked_is_not_waited_for_without_end(
    tiny_config: Config, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("leakmeter.strategies.accounting.ledger._PATIENCE", 0.1)
    config = noised(tiny_config, tmp_path)
    words = rf"ledger must be free, but .*/l has been locked by process {os.getpid()} on"
    with locked(tmp_path / "l.lock"), pytest.raises(ConfigError, match=words):
        budget.reserve(config, build.server_strategy(config), made(tmp_path / "run"))


def test_a_ledger_that_cannot_be_written_is_refused_before_there_is_a_folder(
    tiny: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    ledger, access = tmp_path / "l", os.access

    def read_only(path: Path, mode: int) -> bool:
        return access(path, mode) and (path != ledger or mode != os.W_OK)

    ledger.touch()
    monkeypatch.setattr(os, "access", read_only)  # root may write anywhere
    out = ["--ledger", str(ledger), "--out", str(tmp_path / "run")]
    assert main([*tiny, *NOISE, "--auditors", "none", *out]) == 2
    assert f"can be written, got {ledger}: Permission denied" in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == [ledger]


def test_two_runs_that_start_at_once_cannot_both_have_the_budget(
    tiny: list[str], tmp_path: Path, monkeypatch: Any, capsys: Any
) -> None:
    quick = [*tiny, *QUICK, "--rounds", "2"]
    ledger = tmp_path / "l"
    settings = [*quick, "--ledger", str(ledger), "--budget", "4"]
    check, codes = budget.check_budget, []

    def passed(*args: Any) -> None:
        """Start a second run after the first has found that there is room for it."""
        check(*args)
        if not codes:
            codes.append(0)
            codes[0] = main([*settings, "--seed", "1", "--out", str(tmp_path / "b")])

    monkeypatch.setattr("leakmeter.fl_app.run.run.check_budget", passed)
    assert main([*settings, "--out", str(tmp_path / "a")]) == 2
    assert codes == [0]
    assert "budget of ε = 4 at δ = 1e-05 would be exceeded" in capsys.readouterr().err
    assert [e.seed for e in entries(ledger)] == [1]


def test_a_run_is_counted_as_planned_until_it_ends(tiny_config: Config, tmp_path: Path) -> None:
    config = noised(tiny_config, tmp_path)
    strategy = build.server_strategy(config)
    account = budget.reserve(config, strategy, made(tmp_path / "a"))
    [entry] = entries(tmp_path / "l")
    assert (entry.is_planned, len(entry.releases)) == (True, config.rounds)
    # A run that has not ended counts for the next one, also after it was killed.
    limit = 1.1 * spent([entry], config.delta).value
    second = replace(config, seed=1, budget=limit)
    with pytest.raises(ConfigError, match=r"\(1 run not ended, counted as planned\)"):
        budget.reserve(second, strategy, made(tmp_path / "b"))
    # Resumed and ended before its first release, it costs nothing.
    assert budget.reserve(config, strategy, tmp_path / "a") == account
    assert "0 runs" not in account.close(strategy)
    assert [len(e.releases) for e in entries(tmp_path / "l")] == [0]
    assert budget.reserve(second, strategy, tmp_path / "b") is not None


def test_rounds_that_cost_more_than_planned_raise_the_reservation(
    tiny_config: Config, tmp_path: Path
) -> None:
    config = noised(tiny_config, tmp_path)
    strategy = build.server_strategy(config)
    account = budget.reserve(config, strategy, made(tmp_path / "a"))
    noise = next(s for s in chain(strategy) if isinstance(s, Noised))
    usual = account.planned.releases[0]
    noise.spending.add(Charge(usual, 3, (0, 1, 2)))
    account.note(strategy, 1)
    assert len(Ledger(tmp_path / "l").history()) == 1  # as planned: nothing to write
    noise.spending.add(Charge(replace(usual, noise_std=0.5), 3, (0, 1, 2)))
    account.note(strategy, 2)
    [entry] = entries(tmp_path / "l")
    assert entry.is_planned
    assert sorted(r.noise_std for r in entry.releases) == [0.5, 0.5, 0.5, 1.0]
    account.note(strategy, 2)
    assert len(Ledger(tmp_path / "l").history()) == 2
    account.settle(strategy)
    account.settle(strategy)
    [entry] = entries(tmp_path / "l")
    assert (entry.is_planned, len(entry.releases)) == (False, 2)
    assert len(Ledger(tmp_path / "l").history()) == 3


def test_a_copy_of_a_folder_is_noticed(
    tiny_config: Config, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    config = noised(tiny_config, tmp_path)
    strategy = build.server_strategy(config)
    first, copy, last = made(tmp_path / "a"), tmp_path / "b", tmp_path / "c"
    budget.reserve(config, strategy, first)
    shutil.copytree(first, copy)
    with pytest.raises(ConfigError, match=r"/b is a copy of .*/a, and the ledger counts them as"):
        budget.reserve(config, strategy, copy)
    budget.reserve(config, strategy, first)  # the original goes on
    first.rename(last)  # and may be moved
    account = budget.reserve(config, strategy, last)
    assert "continues in" in caplog.text
    with pytest.raises(ConfigError, match=r"/b is a copy of .*/c"):
        budget.reserve(config, strategy, copy)
    # The one that went on is no longer there: the copy knows nothing of its releases.
    noise = next(s for s in chain(strategy) if isinstance(s, Noised))
    for _ in range(2):
        noise.spending.add(Charge(account.planned.releases[0], 1, (0,)))
    account.settle(strategy)
    shutil.rmtree(last)
    with pytest.raises(ConfigError, match=r"/b is an older copy of .*/c: the ledger has 2"):
        budget.reserve(config, strategy, copy)
    # One release is that of the round that was open when the copy was made.
    noise.spending.charges.pop()
    RunFolder(copy, config).save(Checkpoint(1, {}, strategy_state(strategy), {}))
    assert budget.reserve(config, strategy, copy) is not None


def test_a_copy_whose_run_went_on_elsewhere_is_refused(tiny_config: Config, tmp_path: Path) -> None:
    config = noised(tiny_config, tmp_path)
    strategy = build.server_strategy(config)
    first, aside = made(tmp_path / "a"), tmp_path / "aside"
    budget.reserve(config, strategy, first)
    shutil.copytree(first, tmp_path / "b")
    first.rename(aside)  # as on another machine, where it cannot be seen
    budget.reserve(config, strategy, tmp_path / "b")
    shutil.rmtree(tmp_path / "b")
    aside.rename(first)
    with pytest.raises(ConfigError, match=r"/a was copied or moved to .*/b, where its run"):
        budget.reserve(config, strategy, first)


def test_a_run_without_its_name_in_the_ledger_is_refused(
    tiny_config: Config, tmp_path: Path
) -> None:
    config = noised(tiny_config, tmp_path)
    (made(tmp_path / "a") / "ledger-run").write_text("")
    with pytest.raises(ConfigError, match="resume needs the run's name in the ledger"):
        budget.reserve(config, build.server_strategy(config), tmp_path / "a")


def test_a_changed_ledger_ends_the_run_with_its_line(
    tiny: list[str], tmp_path: Path, capsys: Any
) -> None:
    quick = [*tiny, *QUICK, "--rounds", "1"]
    ledger = tmp_path / "l"
    assert main([*quick, "--ledger", str(ledger), "--out", str(tmp_path / "a")]) == 0
    ledger.write_text(ledger.read_text().replace('"noise_std": 2.0', '"noise_std": 9.0'))
    capsys.readouterr()
    assert main([*quick, "--seed", "1", "--ledger", str(ledger), "--out", str(tmp_path / "b")]) == 2
    assert f"line 1 of {ledger} was changed, or a line before" in capsys.readouterr().err


def test_an_end_removed_together_with_its_head_is_known_from_the_reports(
    tiny: list[str], tmp_path: Path, capsys: Any
) -> None:
    quick = [*tiny, *QUICK, "--rounds", "1"]
    ledger, head = tmp_path / "l", tmp_path / "l.head"

    def code(name: str, seed: int, *more: str) -> int:
        out = ["--seed", str(seed), "--out", str(tmp_path / name)]
        return main([*quick, "--ledger", str(ledger), *out, *more])

    assert code("a", 0) == 0
    early = [path.read_bytes() for path in (ledger, head)]
    assert code("b", 1) == 0
    whole = [path.read_bytes() for path in (ledger, head)]
    kept = json.loads((tmp_path / "b" / "report.json").read_text())["ledger"]
    assert kept == json.loads(whole[1])
    # An old copy of both files, in which nothing contradicts itself.
    for path, content in zip((ledger, head), early, strict=True):
        path.write_bytes(content)
    capsys.readouterr()
    assert code("c", 2) == 2
    said = capsys.readouterr().err
    lines = early[0].count(b"\n")
    assert f"has {lines} lines, but had {kept['lines']} according to {tmp_path}/b/report" in said
    assert "restore the ledger from a backup" in said
    assert not (tmp_path / "c").exists()
    # Also where the run's line was taken out and others were added instead.
    plan = Ledger(ledger).history()[-1]
    for run in ("x", "y", "z"):
        Ledger(ledger).record(replace(plan, run=run, seed=None))
    assert code("c", 2) == 2
    assert f"was changed according to {tmp_path}/b/report.json" in capsys.readouterr().err
    # A run elsewhere: the folder of the first run, which the ledger names, leads to the second.
    assert code("elsewhere/c", 2) == 2
    assert "according to" in capsys.readouterr().err
    # And where nothing is left of the ledger: then the reports next to the new folder are known.
    for path in (ledger, head):
        path.unlink()
    assert code("d", 2) == 2
    assert "has 0 lines, but had" in capsys.readouterr().err
    for path, content in zip((ledger, head), whole, strict=True):
        path.write_bytes(content)
    assert code("c", 2) == 0


def test_a_damaged_report_and_one_of_another_ledger_say_nothing_of_this_one(
    tiny: list[str], tmp_path: Path
) -> None:
    quick = [*tiny, *QUICK, "--rounds", "1"]
    for name in ("a", "b"):
        other = ["--ledger", str(tmp_path / "other"), "--seed", name.encode().hex()]
        assert main([*quick, *other, "--out", str(tmp_path / name)]) == 0
    (tmp_path / "a" / "report.json").write_text("{")
    assert main([*quick, "--ledger", str(tmp_path / "l"), "--out", str(tmp_path / "c")]) == 0
