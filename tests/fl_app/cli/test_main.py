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
from pathlib import Path
from unittest.mock import patch

import pytest

import leakmeter
from leakmeter.clients.secure_sum.signing import PublicKeys
from leakmeter.fl_app.cli.main import main
from leakmeter.fl_app.config.config import Config
from leakmeter.fl_app.config.field import kebab
from leakmeter.strategies.secure_sum.sum_round import Exchange
from tests.helpers.files import everything_under, report_in
from tests.helpers.fixtures import Patch, Printed
from tests.helpers.numbers import first_fast
from tests.helpers.processes import run_copies
from tests.helpers.project import ROOT
from tests.helpers.reports import write_report

HEAVY = {"torch", "torchvision", "flwr", "ray", "numpy", "scipy", "sklearn", "rich", "grpc"}
HEAVY |= {"matplotlib"}


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


def refused(arguments: list[str], capsys: Printed) -> str:
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
        (["--partition", "natural"], "natural needs the person behind each record of synthetic"),
        (["--auditors", "one-shot,mi"], "auditors must be one of one-shot, single-update, "),
        (["--rounds", "0"], "--rounds must be at least 1, got 0. Try --rounds 30."),
        (["--clients", "four"], "--clients must be a whole number, got 'four'. Try --clients 60."),
        (["--clients"], "--clients: expected one argument; see python run_sim.py --help"),
        (["--round=4"], "unknown option --round; did you mean --rounds?"),
        (["--seats", "3"], "unknown option --seats; here it is --canary-seats 3"),
        (["--no-downlod"], "unknown option --no-downlod; did you mean --no-download?"),
        (["--nothing", "4"], "unknown option --nothing; see python run_sim.py --help"),
        (["somewhere"], "unexpected argument somewhere; see python run_sim.py --help"),
        (["--synthetic-examples", "9"], "must be at least 10, one per class, got 9"),
        (["--clients", "121"], "between 1 and the number of training records (120), got 121"),
        (
            ["--partition", "dirichlet-labels", "--dirichlet", "0.001", "--clients", "12"],
            "of 12 clients would get no record in each of 20 Dirichlet(0.001) splits of 120",
        ),
        (["--synthetic-features", "5"], "must have at least 100 parameters for canaries, got 60"),
        (["--dataset", "mnist"], "mnist: looked for MNIST/raw/ or mnist/ with train-images"),
        (["--config", "none.toml"], "config must be a readable file, got none.toml"),
        (["--engine", "ray", "--ray-address", "nowhere"], "--ray-address must be HOST:PORT"),
        (["--engine", "ray", "--ray-address", "127.0.0.1:1"], "where a Ray cluster listens, got"),
        (
            [*("--auditors", "mine", "--mine-draws", "8"), *("--sample", "2", "--secagg", "off")],
            "mine-draws must be at least 10 with --sample 2",
        ),
        (["--resume", "."], "--resume takes all settings from the folder; leave out --auditors, "),
        (["--out", "file"], "must be a new or empty folder"),
        (["--out", "file/below"], "must be writable"),
        (["--config", "file"], "lr must be a number, got 'fast'"),
    ],
)
def test_a_mistake_is_one_line_with_code_2_and_leaves_nothing(
    arguments: list[str], message: str, tiny: list[str], capsys: Printed
) -> None:
    Path("file").write_text('lr = "fast"')
    assert message in refused([*tiny, *arguments], capsys)


def test_every_folder_that_was_tried_is_named(
    tmp_path: Path, monkeypatch: Patch, capsys: Printed
) -> None:
    (tmp_path / "there").mkdir()
    monkeypatch.setenv("LEAKMETER_DATA", str(tmp_path / "here"))
    said = refused(["--dataset", "adult", "--data-dir", "there"], capsys)
    assert f"{tmp_path / 'there'}, {tmp_path / 'here'}" in said
    # One that is missing is no reason to look elsewhere.
    said = refused(["--dataset", "adult", "--data-dir", "typo"], capsys)
    assert f"data-dir must be a folder that exists, got {tmp_path / 'typo'}" in said


def test_only_an_unfinished_run_can_be_resumed_with_the_settings_that_it_has(
    finished: Path, unfinished: Path, tiny: list[str], capsys: Printed
) -> None:
    before = everything_under(finished)
    assert "must be an unfinished run" in refused(["--resume", str(finished)], capsys)
    assert everything_under(finished) == before
    resume = ["--resume", str(unfinished)]
    for more in (["--seed", "1"], ["--out", "x"], ["--config", "c"]):
        said = refused([*resume, *more], capsys)
        assert said == f"--resume takes all settings from the folder; leave out {more[0]}"
    said = refused([*tiny, "--out", str(unfinished)], capsys)
    assert said.startswith(f"--out must be a new or empty folder, got {unfinished}; choose another")
    path = unfinished / "config.toml"
    path.write_text(path.read_text().replace("rounds = 4", "rounds = 5").replace("0.3", "0.1"))
    assert refused(resume, capsys).endswith("has other values of rounds, lr")


def damage(path: Path, how: str) -> None:
    content = path.read_bytes()
    match how:
        case "cut":
            path.write_bytes(content[: len(content) // 2])
        case "empty":
            path.write_bytes(b"")
        case "flipped" if path.suffix == ".jsonl":
            path.write_bytes(content.replace(b'"server_round": 2', b'"server_round": "', 1))
        case "flipped":
            path.write_bytes(content[:200] + bytes([content[200] ^ 1]) + content[201:])
        case "gone":
            path.unlink()


@pytest.mark.parametrize("how", ["cut", "empty", "flipped", "gone"])
@pytest.mark.parametrize("name", ["checkpoint.npz", "rounds.jsonl"])
def test_a_broken_file_is_an_error_before_anything_starts(
    name: str, how: str, unfinished: Path, capsys: Printed
) -> None:
    damage(unfinished / name, how)
    said = refused(["--resume", str(unfinished)], capsys)
    assert said.startswith("--resume needs ")
    assert name in said


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
        *("report --help", "gate", "reproduce --help", "reproduce --list", "list --help"),
    )
    for done in run_copies(program, [line.split() for line in lines]):
        assert done.returncode == 0, done
        modules = set(json.loads(done.stdout.splitlines()[-1].replace("'", '"')))
        assert "leakmeter" in modules
        assert not modules & HEAVY, done.args


def test_a_terminal_without_greek_letters_gets_words(tmp_path: Path) -> None:
    """A gate once printed "? ? 0.949"."""
    words = ["gate", str(write_report(tmp_path / "run")), "--max-epsilon", "0.1"]
    done = subprocess.run(
        [sys.executable, str(ROOT / "run_sim.py"), *words],
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONIOENCODING": "ascii"},
    )
    assert done.returncode in (3, 4), done.stderr
    assert "eps at delta = " in done.stdout
    assert "?" not in done.stdout


@pytest.mark.parametrize("command", [[], ["run"]], ids=["default", "run"])
def test_the_version_is_that_of_the_package(command: list[str], capsys: Printed) -> None:
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
        (["completion", "fsh"], "shell must be one of bash, zsh, fish, got 'fsh'; did you mean fi"),
        (["--help", "al"], "--help must be one of all, got 'al'; did you mean all?"),
        (["--preset", "quik"], "--preset must be one of quick, thorough, paper, got 'quik'; did "),
        (["--resume", "x", "--preset", "quick"], "--resume takes all settings from the folder; le"),
        (["report", "--cvs", "here", "runs/x"], "unknown option --cvs; did you mean --csv?"),
        (["gate"], "the following arguments are required: DIR; see python run_sim.py gate"),
        (["report"], "RUN must be the folder of a run with report.json or rounds.jsonl, got "),
        (["reproduce", "--lst"], "unknown option --lst; did you mean --list?"),
        (["run", "--csv"], "unknown option --csv; see python run_sim.py --help"),
    ],
)
def test_a_mistake_names_the_nearest_command_or_option_of_the_same_command(
    arguments: list[str], message: str, capsys: Printed
) -> None:
    assert refused(arguments, capsys).startswith(message)


def help_text(capsys: Printed, *command: str) -> str:
    with pytest.raises(SystemExit) as end:
        main([*command, "--help", "all"])
    assert end.value.code == 0
    return capsys.readouterr().out


def test_help_explains_every_setting_and_its_default(monkeypatch: Patch, capsys: Printed) -> None:
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
    called: str, program: str, monkeypatch: Patch, capsys: Printed
) -> None:
    monkeypatch.setattr(sys, "argv", [called])
    printed = help_text(capsys)
    assert printed.startswith(f"usage: {program} [--preset NAME] ")
    assert f"\n  {program} --resume runs/demo\n" in printed
    assert f"\n  {program} reproduce --list\n" in printed
    assert f"\n  {program} report runs/demo runs/other\n" in printed


def test_a_whole_run_leaves_its_folder_and_what_was_found(
    finished: Path, panel_config: Config
) -> None:
    names = {"config.toml", "rounds.jsonl", "report.json", "report.html", "checkpoint.npz", ".lock"}
    assert {path.name for path in finished.iterdir()} == names
    lines = [json.loads(line) for line in (finished / "rounds.jsonl").read_text().splitlines()]
    assert [line["server_round"] for line in lines] == [1, 2, 3, 4]
    report = report_in(finished)
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


def test_the_same_configuration_gives_the_same_report(tiny: list[str], tmp_path: Path) -> None:
    assert main([*tiny, "--out", "first"]) == 0
    config = str(tmp_path / "first" / "config.toml")
    assert main(["--config", config, "--out", "again"]) == 0
    assert main(["--config", config, "--seed", "1", "--out", "other"]) == 0
    first, again, other = (
        (tmp_path / name / "report.json").read_bytes() for name in ("first", "again", "other")
    )
    assert again == first
    assert json.loads(other)["findings"] != json.loads(first)["findings"]
    assert {**json.loads(first)["config"], "seed": 1} == json.loads(other)["config"]


def test_arguments_outdo_the_config_file_and_the_data_folder_is_found_from_anywhere(
    tmp_path: Path, tiny: list[str]
) -> None:
    (tmp_path / "empty").mkdir()  # an empty folder for results is taken
    (tmp_path / "files").mkdir()
    (tmp_path / "mine.toml").write_text("rounds = 7\nseed = 5\n")
    words = ["--rounds", "1", "--auditors", "none", "--data-dir", "files", "--out", "empty"]
    assert main(["--config", "mine.toml", *tiny, *words]) == 0
    config = Config.from_toml(tmp_path / "empty" / "config.toml")
    assert (config.rounds, config.seed) == (1, 5)
    assert config.data_dir == str(tmp_path / "files")


def test_every_round_and_every_finding_is_shown_in_plain_lines(
    tiny: list[str], capsys: Printed
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
    assert "What the run leaks, by attacker" not in printed.out
    assert main(["report", "--text", str(report.parent)]) == 0
    details = capsys.readouterr().out
    assert ending[0] in details
    assert "What the run leaks, by attacker" in details
    assert report.with_name("report.html").exists()


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


@pytest.mark.parametrize(
    "more",
    first_fast(
        2,
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
    assert len(report_in(tmp_path / "run")["rounds"]) == 2


def test_a_failed_auditor_is_named_and_gives_code_1(
    tmp_path: Path, tiny: list[str], capsys: Printed
) -> None:
    with patch("leakmeter.auditors.OneShotCanaries.observe", side_effect=ArithmeticError("x")):
        assert main([*tiny, "--out", "run"]) == 1
    report = report_in(tmp_path / "run")
    assert report["failures"] == ["one-shot, round 1: ArithmeticError: x"]
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
    tmp_path: Path, tiny: list[str], monkeypatch: Patch
) -> None:
    ask = Exchange.keys

    def mostly_silent(self: Exchange) -> dict[int, PublicKeys]:
        announced = ask(self)
        if self.session.server_round == 2:
            return {number: announced[number] for number in list(announced)[:2]}
        return announced

    monkeypatch.setattr(Exchange, "keys", mostly_silent)
    assert main([*tiny, "--out", "run"]) == 0
    report = report_in(tmp_path / "run")
    assert [line["num_clients"] for line in report["rounds"]] == [5, 0, 5, 5]
    assert report["rounds"][1]["accuracy"] == report["rounds"][0]["accuracy"]
    [finding] = [f for f in report["findings"] if f["auditor"] == "secure-sum"]
    assert finding["facts"]["abandoned"] == 1
    [warning] = [w for w in report["warnings"] if w["kind"] == "abandoned-rounds"]
    assert (warning["count"], warning["total"]) == (1, 4)


def test_a_round_without_any_client_ends_the_run(
    tiny: list[str], caplog: pytest.LogCaptureFixture, capsys: Printed
) -> None:
    with (
        patch("leakmeter.fl_app.client_app.update_rule", side_effect=ArithmeticError("made up")),
        pytest.raises(RuntimeError, match="no client answered in round 1"),
    ):
        main([*tiny, "--out", "run"])
    assert "5 client apps failed, the first with ArithmeticError: made up" in caplog.text
    assert "the run failed; resume with: " in capsys.readouterr().out
    assert not Path("run/report.json").exists()
    assert main(["--resume", "run"]) == 0  # though no round was finished


def test_a_run_audits_the_rounds_it_is_asked_to_and_says_which_it_skips(
    tiny: list[str], tmp_path: Path, capsys: Printed
) -> None:
    names = "likelihood-ratio,mutual-information,mine"
    every = [word for name in ("lrt", "mi", "mine") for word in (f"--{name}-every", "-1")]
    few = ["--lrt-trials", "20", "--lrt-fit", "10", "--mine-steps", "1", "--mine-critics", "2"]
    folder = tmp_path / "run"
    assert main([*tiny, "--auditors", names, *every, *few, "--out", str(folder)]) == 0
    report = report_in(folder)
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
