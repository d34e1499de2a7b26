"""The gate: exit codes, limits in a project's file, formats for tools, and options of a run."""

from __future__ import annotations

import json
import re
import shlex
import shutil
from collections.abc import Sequence
from contextlib import redirect_stdout
from io import StringIO
from pathlib import Path
from xml.etree import ElementTree

import pytest

import leakmeter
from leakmeter.auditors import Finding
from leakmeter.auditors.finding import RunWarning
from leakmeter.auditors.run_log import RunLog
from leakmeter.fl_app.cli.main import main
from leakmeter.fl_app.config.field import ConfigError
from leakmeter.fl_app.report.export import FORMATS
from leakmeter.fl_app.run.folder import RunFolder
from tests.helpers.findings import finding
from tests.helpers.fixtures import Printed
from tests.helpers.project import ROOT

pytestmark = pytest.mark.usefixtures("without_masks")
# Small, and enough canaries to prove an ε of 0.4 where no noise hides them.
SMALL = {
    "auditors": "one-shot",
    "model": "linear",
    "clients": 40,
    "sample": 20,
    "canary_seats": 10,
    "rounds": 8,
    "epochs": 1,
}
CURE = {"noise": "central", "clip_norm": 1.0, "noise_multiplier": 4.0}
LIMITS = ["--max-epsilon", "0.4", "--against", "outsider/all-models"]


def words(settings: dict[str, object]) -> list[str]:
    return [w for k, v in settings.items() for w in (f"--{k.replace('_', '-')}", str(v))]


@pytest.fixture(scope="module")
def leaking(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a run without noise, which exits with the code of its limit."""
    path = tmp_path_factory.mktemp("runs") / "leaking"
    with redirect_stdout(StringIO()) as printed:
        assert main([*words(SMALL), "--out", str(path), "--fail-above", "0.4"]) == 3
    assert "GATE  failed: a limit is exceeded (exit code 3" in printed.getvalue()
    return path


@pytest.fixture(scope="module")
def cured(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of the same run with enough noise, which keeps its limits."""
    path = tmp_path_factory.mktemp("runs") / "cured"
    limits = ["--fail-above", "0.4", "--require-guarantee", "8", "--against", "outsider/all-models"]
    assert main([*words(SMALL | CURE), "--out", str(path), *limits]) == 0
    return path


def folder_of(path: Path, findings: Sequence[Finding] = (), **more: Sequence[str]) -> Path:
    """Return the folder that a foreign project's audit has left."""
    log = RunLog(path, {})
    log.finish(findings, more.get("failures", ()))
    return log.folder


def gate(capsys: Printed, folder: Path, *options: str, code: int) -> tuple[str, str]:
    """Check the exit code of a gate; return what it prints."""
    capsys.readouterr()
    assert main(["gate", str(folder), *options]) == code
    printed = capsys.readouterr()
    return printed.out, printed.err


def test_the_gate_fails_on_a_leak_and_passes_on_its_cure(
    leaking: Path, cured: Path, capsys: Printed
) -> None:
    out, _ = gate(capsys, leaking, *LIMITS, code=3)
    assert out.startswith("GATE  failed: a limit is exceeded (exit code 3; ε at δ = 1e-05, against")
    assert re.search(r"exceeded +max-epsilon: outsider, every model .* is proven", out, re.DOTALL)
    out, _ = gate(capsys, cured, *LIMITS, "--require-guarantee", "8", code=0)
    assert out.startswith("GATE  passed: the run keeps its limits (exit code 0")
    assert "is guaranteed" in out
    gate(capsys, leaking, "--require-guarantee", "8", "--against", "outsider", code=3)
    # The server sees the sum before the noise, and was not audited.
    gate(capsys, cured, "--require-guarantee", "8", code=3)
    gate(capsys, cured, "--max-epsilon", "0.4", code=4)


def test_what_no_audit_could_have_shown_is_not_passed(leaking: Path, capsys: Printed) -> None:
    out, _ = gate(capsys, leaking, "--max-epsilon", "1000", code=4)
    assert "could have shown more than" in out
    gate(capsys, leaking, "--max-epsilon", "1", "--against", "server", code=4)
    gate(capsys, leaking, "--no-reconstruction", code=4)
    gate(capsys, leaking, "--min-accuracy", "0.1", code=0)
    gate(capsys, leaking, "--min-accuracy", "1", code=3)


@pytest.mark.parametrize("name", FORMATS)
def test_every_format_names_delta_and_the_outcome(
    name: str, leaking: Path, cured: Path, capsys: Printed
) -> None:
    for folder, code in ((leaking, 3), (cured, 0)):
        printed, _ = gate(capsys, folder, *LIMITS, "--format", name, code=code)
        assert "1e-05" in printed
        assert "max-epsilon" in printed
        out, _ = gate(capsys, folder, *LIMITS, f"--format={name}", "--output=x/a.txt", code=code)
        assert Path("x/a.txt").read_text(encoding="utf-8") == printed
        assert out.startswith("GATE")
        assert out.endswith(f"{name}: {Path('x/a.txt').absolute()}\n")


def test_junit_has_a_failure_for_what_is_exceeded_and_an_error_for_what_is_not_tested(
    leaking: Path, capsys: Printed
) -> None:
    options = [*LIMITS, "--no-reconstruction", "--min-accuracy", "0.1", "--format", "junit"]
    out, _ = gate(capsys, leaking, *options, code=3)
    [suite] = ElementTree.fromstring(out.encode())
    counts = {name: suite.get(name) for name in ("tests", "failures", "errors", "skipped")}
    assert counts == {"tests": "3", "failures": "1", "errors": "1", "skipped": "0"}
    cases = {case.get("name"): [part.tag for part in case] for case in suite.iter("testcase")}
    assert cases == {
        "max-epsilon": ["failure"],
        "no-reconstruction": ["error"],
        "min-accuracy": ["system-out"],
    }
    assert all(case.get("classname") for case in suite.iter("testcase"))


def test_sarif_has_its_required_fields(leaking: Path, capsys: Printed) -> None:
    options = [*LIMITS, "--no-reconstruction", "--min-accuracy", "0.1", "--format", "sarif"]
    log = json.loads(gate(capsys, leaking, *options, code=3)[0])
    assert log["version"] == "2.1.0"
    [run] = log["runs"]
    driver = run["tool"]["driver"]
    assert driver["name"] == "leakmeter"
    assert run["invocations"][0] == {"executionSuccessful": True, "exitCode": 3}
    kinds = {}
    for result in run["results"]:
        assert driver["rules"][result["ruleIndex"]]["id"] == result["ruleId"]
        assert result["message"]["text"]
        place = result["locations"][0]["physicalLocation"]["artifactLocation"]["uri"]
        assert place.endswith("report.json")
        kinds[result["ruleId"]] = (result["kind"], result["level"])
        assert result["level"] == "none" or result["kind"] == "fail"
    assert kinds == {
        "max-epsilon": ("fail", "error"),
        "no-reconstruction": ("open", "none"),
        "min-accuracy": ("pass", "none"),
    }


def test_a_markdown_table_has_as_many_cells_as_heads(leaking: Path, capsys: Printed) -> None:
    out, _ = gate(capsys, leaking, *LIMITS, "--format", "markdown", code=3)
    table = [line for line in out.splitlines() if line.startswith("|")]
    assert len(table) == 3
    assert {len(re.findall(r"(?<!\\)\|", line)) for line in table} == {4}


def test_words_of_another_project_break_no_format(tmp_path: Path, capsys: Printed) -> None:
    folder = folder_of(tmp_path / "a|b<c&d", failures=["mine|<\x01> failed\nin ]]> round 2"])
    for name in FORMATS:
        out, _ = gate(capsys, folder, "--max-epsilon", "1", "--format", name, code=4)
        if name == "junit":
            ElementTree.fromstring(out.encode())
        if name in ("json", "sarif"):
            json.loads(out)
        if name == "markdown":
            table = [line for line in out.splitlines() if line.startswith("|")]
            assert {len(re.findall(r"(?<!\\)\|", line)) for line in table} == {4}


def test_a_foreign_run_is_checked_as_ours_are(tmp_path: Path, capsys: Printed) -> None:
    proven = finding(
        kind="lower_bound", value=3.0, confidence=0.95, adjacency="zero-out", cap=9.0, delta=1e-6
    )
    folder = folder_of(tmp_path / "theirs", [proven])
    out, _ = gate(capsys, folder, "--max-epsilon", "2", code=3)
    assert "δ = 1e-06" in out
    gate(capsys, folder, "--max-epsilon", "4", code=0)
    gate(capsys, folder, "--min-accuracy", "0.5", code=4)
    assert leakmeter.read_result(folder).findings == (proven,)
    empty = folder_of(tmp_path / "empty")
    out, _ = gate(capsys, empty, "--max-epsilon", "2", code=4)
    assert "The run says nothing about any attacker" in out


def test_an_unfinished_run_passes_nothing(cured: Path, tmp_path: Path, capsys: Printed) -> None:
    path = tmp_path / "unfinished"
    shutil.copytree(cured, path)
    (path / "report.json").unlink()
    out, _ = gate(capsys, path, *LIMITS, code=4)
    assert "The run has no report: let it end, or resume it." in out


def test_limits_of_the_project_hold_and_options_win(leaking: Path, capsys: Printed) -> None:
    table = '[tool.leakmeter.gate]\nmax-epsilon = 0.4\nagainst = "outsider"\nmin-accuracy = 0\n'
    Path("pyproject.toml").write_text(table)
    out, _ = gate(capsys, leaking, code=3)
    assert "min-accuracy" in out
    gate(capsys, leaking, "--max-epsilon", "3", code=0)


@pytest.mark.parametrize(
    ("table", "message"),
    [
        (
            "gate]\nmax_epsilon = 2",
            "unknown limit max_epsilon in [tool.leakmeter.gate]; did you",
        ),
        ("gate]\nmax-epsilon = true", "--max-epsilon must be a number, got True"),
        ("x]\n[tool.leakmeter]\ngate = 3", "[tool.leakmeter.gate] must be a table, got gate = 3"),
        ("gate", "must be a TOML file, got pyproject.toml"),
        ("x]", "gate needs a limit, one of --max-epsilon"),
        ("--max-epsilon -1", "--max-epsilon must be at least 0, got -1.0. Try --max-epsilon"),
        ("--max-epsilon two", "--max-epsilon must be a number, got 'two'"),
        ("--min-accuracy 2", "--min-accuracy must be at least 0 and at most 1, got 2.0"),
        ("--max-epsilon 1 --against sever", "got 'sever'; did you mean server?"),
        ("--max-epsilon 1 --format xml", "--format must be one of text, junit, sarif"),
        ("--max-epsilom 1", "unknown option --max-epsilom; did you mean --max-epsilon?"),
        ("--max-epsilon 1 --output .", "--output must be a file that can be written"),
    ],
)
def test_a_mistake_in_the_file_or_an_option_is_one_line_with_code_2(
    table: str, message: str, leaking: Path, capsys: Printed
) -> None:
    options = table.split() if table.startswith("--") else []
    if not options:
        Path("pyproject.toml").write_text(f"[tool.leakmeter.{table}")
    out, error = gate(capsys, leaking, *options, code=2)
    assert out == ""
    assert message in error
    assert error.count("\n") == 1


@pytest.mark.slow
@pytest.mark.parametrize(
    ("limit", "value", "code"),
    [("--fail-above", "3", 0), ("--fail-above", "1000", 4), ("--require-guarantee", "8", 3)],
)
def test_a_run_without_noise_exits_by_each_of_its_limits(limit: str, value: str, code: int) -> None:
    assert main([*words(SMALL), "--out", "a", limit, value]) == code


def test_a_guarantee_is_asked_for_every_question_of_a_client() -> None:
    """The target is for zero-out; that of replace is larger."""
    noisy = {**SMALL, "auditors": "none", "noise": "distributed", "clip_norm": 1.0, "rounds": 1}
    limits = {"require_guarantee": 8.0, "against": "server"}
    for target, code in ((3.0, 0), (8.0, 3)):
        chosen = {**noisy, **limits, "target_epsilon": target, "out": f"target-{target:g}"}
        chosen.pop("canary_seats")
        assert main(words(chosen)) == code


def test_an_attacker_needs_a_name_that_there_is_and_a_limit(capsys: Printed) -> None:
    assert main(["--fail-above", "1", "--against", "sever"]) == 2
    said = capsys.readouterr().err
    assert "--against must be one of server, outsider, wire, or one of them with a slash" in said
    assert "did you mean server?" in said
    assert len(said) < 300
    assert main(["--against", "server"]) == 2
    assert "empty without --fail-above or --require-guarantee" in capsys.readouterr().err


def test_limits_change_neither_findings_nor_what_may_be_resumed(leaking: Path) -> None:
    main([*words(SMALL), "--out", "a"])
    free, limited = (json.loads((p / "report.json").read_text()) for p in (Path("a"), leaking))
    assert limited["findings"] == free["findings"]
    Path("a/report.json").unlink()
    text = Path("a/config.toml").read_text().replace("fail-above = 0.0", "fail-above = 0.4")
    Path("a/config.toml").write_text(text)
    assert RunFolder.open(Path("a")).load() is not None


def test_a_run_all_of_whose_rounds_were_abandoned_is_not_a_success(capsys: Printed) -> None:
    tiny = {**SMALL, "rounds": 2, "dropout": 0.99}
    assert main([*words(tiny), "--out", "a"]) == 4
    assert "All rounds were abandoned, so nothing was audited (exit code 4)." in (
        capsys.readouterr().out
    )
    assert main([*words(tiny), "--out", "b", "--fail-above", "1"]) == 4
    assert "unable    distortion" in capsys.readouterr().out
    warnings = leakmeter.read_result("a").verdict.warnings
    assert RunWarning.of("abandoned-rounds", 2, 2) in warnings


@pytest.mark.slow
@pytest.mark.usefixtures("usual_null_draws")
def test_the_workflow_to_copy_fails_on_one_example_and_passes_on_its_cure(capsys: Printed) -> None:
    """The page has the number that a user gets: that of the few draws of tests is smaller."""
    folder = ROOT / "examples" / "gate"
    steps = re.findall(r"run: leakmeter (.*)", (folder / "privacy.yml").read_text())
    assert len(steps) == 4
    for name, code in (("leaking", 3), ("cured", 0)):
        for step in steps:
            call = step.replace("$SETTINGS", str(folder / f"{name}.toml")).replace(
                "runs/gate", name
            )
            # In the workflow, only the gate itself ends the job.
            command = shlex.split(re.sub(r" (>>|\|\|) .*", "", call))
            assert main(command) == (code if command[0] == "gate" else 0)
    assert json.loads(Path("gate.sarif").read_text())["runs"][0]["invocations"][0]["exitCode"] == 0
    capsys.readouterr()
    main(["gate", "leaking", *LIMITS])
    page = (ROOT / "docs" / "gate.md").read_text(encoding="utf-8")
    assert capsys.readouterr().out in page


@pytest.mark.slow
def test_python_runs_the_same_job(leaking: Path, capsys: Printed) -> None:
    capsys.readouterr()
    result = leakmeter.run(**SMALL)
    assert capsys.readouterr().out == ""
    kept = leakmeter.read_result(leaking)
    assert result.findings == kept.findings
    assert result.verdict == kept.verdict
    assert result.folder is None
    assert list(Path.cwd().iterdir()) == []
    with pytest.raises(AssertionError, match="max-epsilon: exceeded"):
        leakmeter.assert_private(result, max_epsilon=0.4)
    leakmeter.assert_private(result, max_epsilon=3.0)


def test_python_keeps_a_folder_if_it_is_given_one() -> None:
    assert {"run", "read_result", "AuditResult", "assert_private"} <= set(dir(leakmeter))
    result = leakmeter.run(**{**SMALL, "rounds": 1}, out="kept")
    assert result.folder == Path("kept").absolute()
    assert Path("kept/report.html").is_file()
    assert leakmeter.read_result("kept") == result
    with pytest.raises(ConfigError, match="--out must be a new or empty folder"):
        leakmeter.run(out="kept")


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"rounds": 0}, "--rounds must be at least 1, got 0"),
        ({"roundz": 3}, "unknown setting roundz; did you mean rounds?"),
        ({"model": "mpl"}, "--model must be one of .* did you mean mlp?"),
        ({"fail_above": 2.0}, r"--fail-above must be left out .* assert_private\(result, max_eps"),
        ({"data_dir": "nowhere"}, "--data-dir must be a folder that exists"),
        ({"clients": 4, "sample": 9}, "--sample plus --canary-seats must be at most --clients"),
    ],
)
def test_a_mistake_in_python_names_the_option(settings: dict[str, object], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        leakmeter.run(**settings)  # type: ignore[arg-type]


REBUILT = {
    "auditors": "inversion",
    "algorithm": "fedsgd",
    "batch_size": 1,
    "sample": 3,
    "inversion_images": 3,
    "inversion_steps": 100,
    "rounds": 1,
}


def test_a_reconstruction_ends_a_pipeline_and_noise_before_the_sum_lets_it_pass(
    capsys: Printed,
) -> None:
    noise = {"noise": "distributed", "clip_norm": 1.0, "noise_multiplier": 3.0}
    assert main([*words(REBUILT), "--out", "plain"]) == 0
    said = _flat(capsys.readouterr().out)
    assert "can rebuild training records: 3 of 3 fit what" in said
    assert "no attacker has an ε" in gate(capsys, Path("plain"), "--no-reconstruction", code=3)[0]
    assert "against outsiders and the server" in said  # the server sees through its own noise
    page = Path("plain/report.html").read_text(encoding="utf-8")
    first = page[: page.index("What to do next")]
    assert "≥ 3 of 3 records" in first
    assert 'src="data:image/png' in first
    assert main([*words(REBUILT | noise), "--out", "noised"]) == 0
    assert main(["gate", "plain", "--no-reconstruction"]) == 3
    assert "At least 3 originals recovered beyond chance" in capsys.readouterr().out
    assert main(["gate", "noised", "--no-reconstruction"]) == 0
    [test] = json.loads(Path("plain/report.json").read_text())["verdict"]["tests"]
    assert (test["quantity"], test["value"], test["shown"]) == ("originals recovered", 3.0, True)


def _flat(text: str) -> str:
    return " ".join(text.split())
