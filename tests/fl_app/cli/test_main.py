"""The command line: what it prints, what it leaves, and what it says about mistakes."""

from __future__ import annotations

import json
import math
import os
import re
import shutil
import subprocess
import sys
from dataclasses import fields
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

import leakmeter
from leakmeter.clients.secure_sum.signing import PublicKeys
from leakmeter.fl_app.cli.main import main
from leakmeter.fl_app.config.config import Config
from leakmeter.fl_app.config.field import kebab
from leakmeter.strategies.secure_sum.sum_round import Exchange
from tests.helpers.numbers import first_fast
from tests.helpers.processes import run_copies
from tests.helpers.project import ROOT
from tests.helpers.reports import write_report

HEAVY = {"torch", "torchvision", "flwr", "ray", "numpy", "scipy", "sklearn", "rich", "grpc"}
HEAVY |= {"matplotlib"}


@pytest.fixture(autouse=True)
def _in_an_empty_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


@pytest.fixture(scope="module")
def finished(panel: list[str], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a whole run."""
    path = tmp_path_factory.mktemp("runs") / "finished"
    assert main([*panel, "--out", str(path)]) == 0
    return path


@pytest.fixture
def unfinished(finished: Path, tmp_path: Path) -> Path:
    """The folder of a run whose report is still to be written."""
    path = tmp_path / "unfinished"
    shutil.copytree(finished, path)
    (path / "report.json").unlink()
    return path


def everything_under(folder: Path) -> dict[str, bytes | None]:
    """Return all files and folders with what is in them."""
    return {
        str(path.relative_to(folder)): path.read_bytes() if path.is_file() else None
        for path in folder.rglob("*")
    }


def refused(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> str:
    """Check that the arguments are an error with code 2 and no trace; return the one line."""
    before = everything_under(Path.cwd())
    capsys.readouterr()
    code = main(arguments)
    printed = capsys.readouterr()
    assert code == 2
    # What is about to run may be on the screen already, in one line.
    assert printed.out == "" or printed.out.startswith("leakmeter ")
    assert printed.out.count("\n") <= 1
    assert printed.err.startswith("error: ")
    assert printed.err.count("\n") == 1
    assert everything_under(Path.cwd()) == before
    return printed.err.removeprefix("error: ").strip()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--dataset", "cifar"], "dataset must be one of digits, adult, mnist, fashion-mnist"),
        (["--model", "resnet"], "model must be one of linear, slp, mlp, cnn, got 'resnet'"),
        (["--algorithm", "sgd"], "algorithm must be one of fedavg, fedsgd, fedprox, gd, got 'sgd'"),
        (
            ["--partition", "shards"],
            "partition must be one of iid, dirichlet, dirichlet-labels, natural, got 'shards'",
        ),
        (
            ["--partition", "natural"],
            "partition natural needs the person behind each record of synthetic",
        ),
        (
            ["--server", "adam"],
            "server must be one of fedavg, fedavgm, fedadam, fedyogi, got 'adam'",
        ),
        (
            ["--auditors", "one-shot,mi"],
            "auditors must be one of one-shot, single-update, likelihood-ratio, mutual-",
        ),
        (["--engine", "local"], "engine must be one of inline, ray, got 'local'"),
        (["--rounds", "0"], "--rounds must be at least 1, got 0. Try --rounds 30."),
        (["--lr", "nan"], "lr must be finite and above 0, got nan"),
        (["--delta", "1"], "delta must be above 0 and below 1, got 1.0"),
        (
            ["--sample", "9"],
            "--sample plus --canary-seats must be at most --clients 6, got 9 + 2 = 11",
        ),
        (["--clients", "four"], "--clients must be a whole number, got 'four'. Try --clients 60."),
        (["--clients"], "--clients: expected one argument; see python run_sim.py --help"),
        (["--clint", "4"], "unknown option --clint; did you mean --clients?"),
        (["--round=4"], "unknown option --round; did you mean --rounds?"),
        (["--no-downlod"], "unknown option --no-downlod; did you mean --no-download?"),
        (["--nothing", "4"], "unknown option --nothing; see python run_sim.py --help"),
        (["somewhere"], "unexpected argument somewhere; see python run_sim.py --help"),
        (
            ["--synthetic-examples", "9"],
            "--synthetic-examples must be at least 10, one per class, got 9",
        ),
        (
            ["--clients", "121"],
            "clients must be between 1 and the number of training records (120), got 121",
        ),
        (
            ["--partition", "dirichlet-labels", "--dirichlet", "0.001", "--clients", "12"],
            "of 12 clients would get no record in each of 20 Dirichlet(0.001) splits of 120",
        ),
        (
            ["--synthetic-features", "5"],
            "auditor one-shot: the model must have at least 100 parameters for canaries, got 60",
        ),
        (["--dataset", "mnist"], "mnist: looked for MNIST/raw/ or mnist/ with train-images"),
        (["--dataset", "adult", "--data-dir", "."], "adult: looked for adult/ with adult.data"),
        (["--config", "none.toml"], "config must be a readable file, got none.toml"),
        (
            ["--engine", "ray", "--ray-address", "nowhere"],
            "--ray-address must be HOST:PORT or auto",
        ),
        (
            ["--engine", "ray", "--ray-address", "127.0.0.1:1"],
            "--ray-address must be where a Ray cluster listens, got",
        ),
        (
            ["--resume", "."],
            "--resume takes all settings from the folder; leave out --auditors, ",
        ),
    ],
)
def test_a_mistake_is_one_line_with_code_2_and_leaves_nothing(
    arguments: list[str], message: str, tiny: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert message in refused([*tiny, *arguments], capsys)


def test_a_data_folder_that_is_missing_is_refused_though_the_variable_names_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("LEAKMETER_DATA", str(tmp_path))
    said = refused(["--dataset", "adult", "--data-dir", "typo"], capsys)
    assert f"data-dir must be a folder that exists, got {tmp_path / 'typo'}" in said


def test_every_folder_that_was_tried_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "there").mkdir()
    monkeypatch.setenv("LEAKMETER_DATA", str(tmp_path / "here"))
    said = refused(["--dataset", "adult", "--data-dir", "there"], capsys)
    assert f"{tmp_path / 'there'}, {tmp_path / 'here'}" in said


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("clients = ", "config must be a TOML file, got mine.toml"),
        ("cliens = 4", "unknown setting cliens; did you mean clients?"),
        ("clients = 4.0", "clients must be a whole number, got 4.0"),
        ("rounds = 0", "rounds must be at least 1, got 0"),
        ('dataset = "cifar"', "dataset must be one of"),
    ],
)
def test_a_wrong_config_file_gets_the_same_words(
    content: str, message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "mine.toml").write_text(content)
    assert message in refused(["--config", "mine.toml"], capsys)


def test_a_run_folder_that_exists_is_left_alone(
    unfinished: Path, tiny: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    said = refused([*tiny, "--out", str(unfinished)], capsys)
    assert said.startswith(f"--out must be a new or empty folder, got {unfinished}; choose another")


def test_a_file_in_the_place_of_the_run_folder_is_left_alone(
    tmp_path: Path, tiny: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "file").write_text("mine")
    assert "must be a new or empty folder" in refused([*tiny, "--out", "file"], capsys)
    assert "must be writable" in refused([*tiny, "--out", "file/below"], capsys)


def test_an_empty_run_folder_is_taken(tmp_path: Path, tiny: list[str]) -> None:
    (tmp_path / "empty").mkdir()
    assert main([*tiny, "--rounds", "1", "--auditors", "none", "--out", "empty"]) == 0
    assert (tmp_path / "empty" / "report.json").exists()


def test_only_an_unfinished_run_can_be_resumed(
    finished: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert "must be the folder of a run" in refused(["--resume", str(tmp_path)], capsys)
    assert "must be the folder of a run" in refused(["--resume", "nowhere"], capsys)
    before = everything_under(finished)
    assert "must be an unfinished run" in refused(["--resume", str(finished)], capsys)
    assert everything_under(finished) == before


@pytest.mark.parametrize("more", [["--seed", "1"], ["--out", "x"], ["--config", "c"]])
def test_a_resumed_run_takes_no_other_settings(
    more: list[str], unfinished: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    said = refused(["--resume", str(unfinished), *more], capsys)
    assert said == f"--resume takes all settings from the folder; leave out {more[0]}"


def test_a_run_whose_settings_were_edited_cannot_be_resumed(
    unfinished: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = unfinished / "config.toml"
    path.write_text(path.read_text().replace("rounds = 4", "rounds = 5").replace("0.3", "0.1"))
    said = refused(["--resume", str(unfinished)], capsys)
    assert said.endswith("has other values of rounds, lr")


def damage(path: Path, how: str) -> None:
    content = path.read_bytes()
    match how:
        case "cut":
            path.write_bytes(content[: len(content) // 2])
        case "empty":
            path.write_bytes(b"")
        case "flipped":
            path.write_bytes(content[:200] + bytes([content[200] ^ 1]) + content[201:])
        case "gone":
            path.unlink()


@pytest.mark.parametrize("how", ["cut", "empty", "flipped", "gone"])
def test_a_broken_checkpoint_is_an_error_before_anything_starts(
    how: str, unfinished: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    damage(unfinished / "checkpoint.npz", how)
    said = refused(["--resume", str(unfinished)], capsys)
    assert said.startswith("--resume needs a ")
    assert "checkpoint.npz" in said


@pytest.mark.parametrize("how", ["cut", "empty", "flipped", "gone"])
def test_a_broken_record_is_an_error_before_anything_starts(
    how: str, unfinished: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rounds = unfinished / "rounds.jsonl"
    if how == "flipped":
        rounds.write_text(rounds.read_text().replace('"server_round": 2', '"server_round": "', 1))
    else:
        damage(rounds, how)
    said = refused(["--resume", str(unfinished)], capsys)
    assert said.startswith("--resume needs ")
    assert "rounds.jsonl" in said


def run(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, *arguments],
        capture_output=True,
        text=True,
        env={**os.environ, **environment},
        check=False,
    )


def test_the_script_itself_ends_with_code_2_and_no_traceback() -> None:
    done = run(str(ROOT / "run_sim.py"), "--dataset", "cifar")
    assert done.returncode == 2
    assert done.stdout == ""
    assert done.stderr.startswith("error: --dataset must be one of ")
    assert done.stderr.count("\n") == 1


def test_help_and_mistakes_import_nothing_heavy() -> None:
    program = (
        "import sys\n"
        "from leakmeter.fl_app.cli.main import main\n"
        "try:\n"
        "    main(sys.argv[1:])\n"
        "except SystemExit as end:\n"
        "    assert not end.code\n"
        "print(sorted(name for name in sys.modules if '.' not in name))"
    )
    lines = (
        *("--help", "--help all", "--version", "--dataset cifar", "--round 4", "reprot"),
        *("report --help", "report", "reproduce --help", "reproduce --list", "list --help"),
    )
    for done in run_copies(program, [line.split() for line in lines]):
        assert done.returncode == 0, done
        modules = set(json.loads(done.stdout.splitlines()[-1].replace("'", '"')))
        assert "leakmeter" in modules
        assert not modules & HEAVY, done.args


def test_a_terminal_without_greek_letters_gets_words() -> None:
    done = run(str(ROOT / "run_sim.py"), "--help", PYTHONIOENCODING="ascii")
    assert done.returncode == 0, done.stderr
    assert "delta of every (eps, delta) reported" in done.stdout


def test_the_gate_of_a_terminal_without_greek_letters_has_words(tmp_path: Path) -> None:
    """It once printed "? ? 0.949"."""
    write_report(tmp_path / "run")
    words = ("gate", str(tmp_path / "run"), "--max-epsilon", "0.1", "--format", "text")
    done = run(str(ROOT / "run_sim.py"), *words, PYTHONIOENCODING="ascii")
    assert done.returncode in (3, 4), done.stderr
    assert "eps at delta = " in done.stdout
    assert "?" not in done.stdout


@pytest.mark.parametrize("command", [[], ["run"]], ids=["default", "run"])
def test_the_version_is_that_of_the_package(
    command: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as end:
        main([*command, "--version"])
    assert end.value.code == 0
    assert capsys.readouterr().out == f"leakmeter {leakmeter.__version__}\n"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["reprot", "runs/x"], "unknown command reprot; did you mean report?"),
        (
            ["nonsense"],
            "unknown command nonsense; the commands are run, audit, check, self-audit, sweep, ",
        ),
        (["report", "--cvs", "here", "runs/x"], "unknown option --cvs; did you mean --csv?"),
        (["report"], "the following arguments are required: RUN; see python run_sim.py report"),
        (["reproduce", "--lst"], "unknown option --lst; did you mean --list?"),
        (["run", "--csv"], "unknown option --csv; see python run_sim.py --help"),
    ],
)
def test_a_mistake_names_the_nearest_command_or_option_of_the_same_command(
    arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert refused(arguments, capsys).startswith(message)


def help_text(capsys: pytest.CaptureFixture[str], *command: str) -> str:
    with pytest.raises(SystemExit) as end:
        main([*command, "--help", "all"])
    assert end.value.code == 0
    return capsys.readouterr().out


def test_help_explains_every_setting_and_its_default(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COLUMNS", "300")
    text = " ".join(help_text(capsys).split())
    for spec in fields(Config):
        named = spec.default != "" and spec.default is not False
        shown = f"{spec.default:g}" if isinstance(spec.default, float) else spec.default
        shown = spec.metadata["zero"] or shown if spec.default == 0 else shown
        default = f" (default: {shown})" if named else ""
        assert f" {spec.metadata['help']}{default}" in text
        choices = "|".join(spec.metadata["choices"])
        assert f" --{kebab(spec.name)}{' ' * bool(choices)}{choices}" in text


@pytest.mark.parametrize(
    ("called", "program"),
    [("run_sim.py", "python run_sim.py"), ("/usr/bin/leakmeter", "leakmeter")],
)
def test_help_shows_examples_that_can_be_copied(
    called: str,
    program: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(sys, "argv", [called])
    printed = help_text(capsys)
    assert printed.startswith(f"usage: {program} [--preset NAME] ")
    assert f"\n  {program} --resume runs/demo\n" in printed
    assert f"\n  {program} reproduce --list\n" in printed
    assert f"\n  {program} report runs/demo runs/other\n" in printed


def test_help_without_a_command_is_that_of_run(
    capsys: pytest.CaptureFixture[str],
) -> None:
    text = help_text(capsys)
    assert text == help_text(capsys, "run")
    for command in ("audit", "check", "report", "gate", "reproduce", "replay", "watch"):
        assert help_text(capsys, command).startswith(f"usage: python run_sim.py {command} ")


def test_a_whole_run_leaves_its_folder(finished: Path) -> None:
    names = {"config.toml", "rounds.jsonl", "report.json", "report.html", "checkpoint.npz", ".lock"}
    assert {path.name for path in finished.iterdir()} == names
    lines = [json.loads(line) for line in (finished / "rounds.jsonl").read_text().splitlines()]
    assert [line["server_round"] for line in lines] == [1, 2, 3, 4]


def test_the_report_says_what_ran_and_what_was_found(finished: Path, panel_config: Config) -> None:
    report = json.loads((finished / "report.json").read_text())
    assert report["schema"] == "leakmeter-report/2"
    assert Config.from_mapping(report["config"]) == panel_config
    assert [line["server_round"] for line in report["rounds"]] == [1, 2, 3, 4]
    assert all(0 <= line["accuracy"] <= 1 for line in report["rounds"])
    assert all(line["num_clients"] == 5 for line in report["rounds"])
    assert {f["server_round"] for f in report["findings"]} == {1, 2, 3, 4, None}
    for finding in report["findings"]:
        proven = ("guarantee",)
        found = ("estimate", "approximation", "lower_bound", "diagnostic")
        assert finding["kind"] in (proven if finding["auditor"] == "secure-sum" else found)
        assert finding["threat_model"]
        assert "delta" in finding
        if finding["quantity"] == "epsilon":
            assert finding["delta"] == 1e-5
    assert report["failures"] == []


def test_the_same_configuration_gives_the_same_report(finished: Path, tmp_path: Path) -> None:
    config = str(finished / "config.toml")
    assert main(["--config", config, "--out", "again"]) == 0
    assert (tmp_path / "again/report.json").read_bytes() == (finished / "report.json").read_bytes()
    assert main(["--config", config, "--seed", "1", "--out", "other"]) == 0
    reports = [json.loads((tmp_path / x / "report.json").read_text()) for x in ("again", "other")]
    assert reports[0]["findings"] != reports[1]["findings"]
    assert {**reports[0]["config"], "seed": 1} == reports[1]["config"]


def test_arguments_outdo_the_config_file(tmp_path: Path, tiny: list[str]) -> None:
    (tmp_path / "mine.toml").write_text("rounds = 7\nseed = 5\n")
    assert main(["--config", "mine.toml", *tiny, "--rounds", "2", "--out", "run"]) == 0
    config = Config.from_toml(tmp_path / "run" / "config.toml")
    assert (config.rounds, config.seed) == (2, 5)


def test_the_data_folder_is_noted_so_that_it_is_found_from_anywhere(
    tmp_path: Path, tiny: list[str]
) -> None:
    (tmp_path / "files").mkdir()
    assert main([*tiny, "--rounds", "1", "--data-dir", "files", "--out", "run"]) == 0
    assert Config.from_toml(tmp_path / "run/config.toml").data_dir == str(tmp_path / "files")


def test_every_round_and_every_finding_is_shown_in_plain_lines(
    tiny: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["run", *tiny]) == 0
    printed = capsys.readouterr()
    assert printed.err == ""
    assert "\x1b" not in printed.out
    lines = printed.out.splitlines()
    assert lines[0].endswith(": synthetic, linear, 6 clients, 4 rounds; starting …")
    assert lines[1] == "model     synthetic, linear with 210 parameters"
    rounds = [line for line in lines if line.startswith("round ")]
    assert [line.split()[1] for line in rounds] == ["1/4", "2/4", "3/4", "4/4"]
    assert all(" accuracy 0." in line for line in rounds)
    assert any(" one-shot ε≈" in line for line in rounds)  # from the second canary on
    assert all(len(line) <= 80 for line in rounds)
    ending = lines[lines.index(rounds[-1]) + 2 :]
    assert ending[0].startswith("VERDICT  ")
    assert any(line.startswith("NEXT  1. ") for line in ending)
    assert len(ending) <= 25
    report = Path(lines[-1].removeprefix("details: python run_sim.py report --text ").split()[0])
    report /= "report.json"
    assert report.parent.parent == Path.cwd() / "runs"
    assert report.parent.name.endswith("-synthetic-linear")
    assert report.exists()
    assert lines[-2] == f"page: {report.with_name('report.html')}"
    assert report.with_name("report.html").exists()


def test_the_next_command_has_the_partition_of_this_run(
    tiny: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([*tiny, "--partition", "dirichlet", "--rounds", "2"]) == 0
    words = capsys.readouterr().out.split()
    partitions = [after for word, after in pairwise(words) if word == "--partition"]
    assert set(partitions) == {"dirichlet"}


def test_flowers_own_log_is_shown_only_when_asked_for(
    tiny: list[str], caplog: pytest.LogCaptureFixture
) -> None:
    short = [*tiny, "--rounds", "1", "--auditors", "none"]
    assert main([*short, "--out", "quiet"]) == 0
    assert "Starting Audited strategy" not in caplog.text
    assert main([*short, "--verbose", "--out", "loud"]) == 0
    assert "Starting Audited strategy" in caplog.text
    assert main([*short, "--out", "quiet-again"]) == 0
    assert caplog.text.count("Starting Audited strategy") == 1


def test_an_unaudited_run_has_rounds_and_names_the_server_that_nobody_audited(
    tmp_path: Path, tiny: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([*tiny, "--auditors", "none", "--secagg", "off", "--out", "run"]) == 0
    report = json.loads((tmp_path / "run/report.json").read_text())
    assert len(report["rounds"]) == 4
    [finding] = report["findings"]
    assert (finding["auditor"], finding["value"], finding["kind"]) == ("server", "inf", "guarantee")
    assert "What the run leaks" not in capsys.readouterr().out


@pytest.mark.parametrize(
    "more",
    first_fast(
        4,
        [
            ["--algorithm", "fedsgd", "--batch-size", "0"],
            ["--model", "mlp", "--partition", "dirichlet", "--dirichlet", "0.1"],
            ["--partition", "dirichlet-labels", "--canaries", "2", "--canary-repetitions", "2"],
            ["--server", "fedadam", "--server-beta1", "0.5", "--server-tau", "0.01"],
            ["--server", "fedavgm", "--server-momentum", "0.5"],
            ["--dataset", "digits"],
        ],
    ),
)
def test_every_choice_runs(more: list[str], tmp_path: Path, tiny: list[str]) -> None:
    assert main([*tiny, *more, "--rounds", "2", "--out", "run"]) == 0
    assert len(json.loads((tmp_path / "run/report.json").read_text())["rounds"]) == 2


def fail_with(error: BaseException, monkeypatch: pytest.MonkeyPatch) -> None:
    def launch(*_: Any) -> None:
        raise error

    monkeypatch.setattr("leakmeter.fl_app.run.launch.launch", launch)


def test_an_interruption_tells_how_to_resume(
    tmp_path: Path,
    tiny: list[str],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    fail_with(KeyboardInterrupt(), monkeypatch)
    assert main([*tiny, "--out", "run"]) == 130
    said = capsys.readouterr().out.splitlines()[-1]
    assert said == f"interrupted; resume with: python run_sim.py --resume {tmp_path / 'run'}"
    monkeypatch.undo()
    monkeypatch.chdir(tmp_path)
    assert main(["--resume", "run"]) == 0  # though no round was finished
    assert (tmp_path / "run" / "report.json").exists()
    fail_with(RuntimeError("made up"), monkeypatch)
    with pytest.raises(RuntimeError, match="made up"):
        main([*tiny, "--out", "other"])
    assert "the run failed; resume with: " in capsys.readouterr().out


def test_a_failed_auditor_is_named_and_gives_code_1(
    tmp_path: Path,
    tiny: list[str],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    def observe(*_: Any) -> None:
        raise ArithmeticError("made up")

    monkeypatch.setattr("leakmeter.auditors.OneShotCanaries.observe", observe)
    assert main([*tiny, "--out", "run"]) == 1
    report = json.loads((tmp_path / "run/report.json").read_text())
    assert report["failures"] == ["one-shot, round 1: ArithmeticError: made up"]
    assert len(report["rounds"]) == 4
    said = capsys.readouterr().out
    assert "Not audited as planned: one-shot, round 1: ArithmeticError" in said


def test_a_model_that_diverges_still_leaves_a_readable_report(
    tmp_path: Path, tiny: list[str]
) -> None:
    code = main([*tiny, "--model", "mlp", "--lr", "1e30", "--secagg", "off", "--out", "run"])

    def refuse(constant: str) -> None:
        raise AssertionError(f"{constant} is not JSON")

    report = json.loads((tmp_path / "run/report.json").read_text(), parse_constant=refuse)
    # Updates that are not finite are left out, so the model stays as it was.
    assert "non-finite-updates" in {w["kind"] for w in report["warnings"]}
    assert math.isfinite(report["rounds"][-1]["metrics"]["loss"])
    # No round released anything, which is no success.
    [abandoned] = [w for w in report["warnings"] if w["kind"] == "abandoned-rounds"]
    assert abandoned["value"] == 1
    assert code == (1 if report["failures"] else 4)


def test_a_round_with_too_few_for_a_secure_sum_is_abandoned_and_the_next_goes_on(
    tmp_path: Path, tiny: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    ask = Exchange.keys

    def mostly_silent(self: Exchange) -> dict[int, PublicKeys]:
        announced = ask(self)
        if self.session.server_round == 2:
            return {number: announced[number] for number in list(announced)[:2]}
        return announced

    monkeypatch.setattr(Exchange, "keys", mostly_silent)
    assert main([*tiny, "--out", "run"]) == 0
    report = json.loads((tmp_path / "run/report.json").read_text())
    assert [line["num_clients"] for line in report["rounds"]] == [5, 0, 5, 5]
    assert report["rounds"][1]["accuracy"] == report["rounds"][0]["accuracy"]
    [finding] = [f for f in report["findings"] if f["auditor"] == "secure-sum"]
    assert finding["facts"]["abandoned"] == 1
    [warning] = [w for w in report["warnings"] if w["kind"] == "abandoned-rounds"]
    assert (warning["count"], warning["total"]) == (1, 4)


def test_a_round_without_any_client_ends_the_run(
    tmp_path: Path,
    tiny: list[str],
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    def broken(*_: Any) -> None:
        raise ArithmeticError("made up")

    monkeypatch.setattr("leakmeter.fl_app.client_app.update_rule", broken)
    with pytest.raises(RuntimeError, match="no client answered in round 1"):
        main([*tiny, "--out", "run"])
    assert "5 client apps failed, the first with ArithmeticError: made up" in caplog.text
    assert not (tmp_path / "run/report.json").exists()
    monkeypatch.undo()
    assert main(["--resume", str(tmp_path / "run")]) == 0


def test_a_run_audits_the_rounds_it_is_asked_to_and_says_which_it_skips(
    tiny: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    names = "likelihood-ratio,mutual-information,mine"
    every = [word for name in ("lrt", "mi", "mine") for word in (f"--{name}-every", "-1")]
    few = ["--lrt-trials", "20", "--lrt-fit", "10", "--mine-steps", "1", "--mine-critics", "2"]
    folder = tmp_path / "run"
    assert main([*tiny, "--auditors", names, *every, *few, "--out", str(folder)]) == 0
    report = json.loads((folder / "report.json").read_text())
    wanted = {"every": -1, "num_rounds": 4, "audited": [1, 2, 4]}
    assert report["schedules"] == [{"auditor": name, **wanted} for name in names.split(",")]
    mine = [f for f in report["findings"] if f["auditor"] == "mine"]
    assert [f["server_round"] for f in mine] == [1, 2, 4, None]
    assert all(f["null_band"] and f["cap"] for f in mine)
    said = capsys.readouterr().out
    assert re.search(r"^round 1/4  .*  MI≈\d.*, MINE≈\S+ bits?$", said, re.MULTILINE)
    page = (folder / "report.html").read_text()
    assert "audited rounds 1, 2, 4 of 4; the others were skipped as" in page
    assert "--lrt-every</code> -1 asks." in page
    assert 'id="figure-' in page
    assert "critics (MINE), estimate" in page


def test_too_few_pairs_for_critics_are_refused_before_training(
    tiny: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    few = ["--auditors", "mine", "--mine-draws", "8", "--sample", "2", "--secagg", "off"]
    said = refused([*tiny, *few], capsys)
    assert "mine-draws must be at least 10 with --sample 2" in said
    assert "got 8" in said
