"""Foreign Flower apps: at most five changed lines, and an audit that says something."""

from __future__ import annotations

import difflib
import importlib
import json
import math
import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.foreign_app import loaded, run_here, settings
from tests.helpers.processes import environment, run
from tests.helpers.project import ROOT

EXAMPLES = sorted(path.parent for path in (ROOT / "examples").glob("*/before"))
NAMES = [path.name for path in EXAMPLES]
OURS = {"leakmeter", "auditors", "clients", "strategies", "fl_app"}
REPLAYED = {"logistic_sklearn", "own_loop"}  # audited by `passive()`; the others by canaries alone
# Fewer clients and rounds than at their own sizes are enough to see canaries.
SMALL = {
    "cnn_batchnorm": {"num-server-rounds": 6},
    "logistic_sklearn": {"num-server-rounds": 6},
    "own_loop": {"num-server-rounds": 6},
    "lora_transformer": {
        "pretraining-steps": 20,
        "num-server-rounds": 6,
        "min-nodes": 10,
        "local-steps": 1,
    },
}

pytestmark = pytest.mark.usefixtures("flower_task")
each = pytest.mark.parametrize("example", EXAMPLES, ids=NAMES)


@pytest.fixture(autouse=True)
def own_cache(tmp_path_factory: pytest.TempPathFactory, monkeypatch: Any) -> None:
    """Keep base models out of the cache of whoever runs the tests; all tests share one."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.getbasetemp() / "cache"))


def files(folder: Path) -> dict[str, list[str]]:
    """Return the lines of all files of an app that somebody wrote."""
    return {
        str(path.relative_to(folder)): path.read_text().splitlines()
        for path in sorted(folder.rglob("*"))
        if path.suffix in {".py", ".toml", ".md"}
    }


def changed_lines(before: list[str], after: list[str]) -> int:
    """Count changed lines: where n lines take the place of m, the larger of both numbers."""
    blocks = difflib.SequenceMatcher(None, before, after, autojunk=False).get_opcodes()
    return sum(max(i2 - i1, j2 - j1) for tag, i1, i2, j1, j2 in blocks if tag != "equal")


def test_the_count_of_changed_lines_counts() -> None:
    assert changed_lines(list("abc"), list("abc")) == 0
    assert changed_lines(list("abc"), list("axc")) == 1  # replaced
    assert changed_lines(list("abc"), list("abxc")) == 1  # inserted
    assert changed_lines(list("abc"), list("ac")) == 1  # taken out
    assert changed_lines(list("abc"), list("xyzc")) == 3
    assert changed_lines([], list("abcdef")) == 6  # a new file


def test_there_are_four_kinds_of_foreign_apps() -> None:
    assert len(EXAMPLES) >= 4
    words = {path.name: str(files(path / "before")) for path in EXAMPLES}
    assert "BatchNorm" in words["cnn_batchnorm"]
    assert "sklearn.linear_model" in words["logistic_sklearn"]
    assert "def start(" in words["own_loop"]
    assert "lora_A" in words["lora_transformer"]


@each
def test_at_most_five_lines_change_and_only_the_plug_in_is_imported(example: Path) -> None:
    before, after = files(example / "before"), files(example / "after")
    changed = {
        name: changed_lines(before.get(name, []), after.get(name, []))
        for name in before.keys() | after.keys()
    }
    assert 1 <= sum(changed.values()) <= 5, changed
    assert changed["README.md"] == 0
    # `flwr run` would look for us in a package index, where we are not, and the run would fail.
    assert changed["pyproject.toml"] == 0
    for name, lines in before.items():
        assert not [x for x in lines if "auditors" in x or "leakmeter" in x], name
    imported = {
        line.split()[1].split(".")[0]
        for name, lines in after.items()
        if name.endswith(".py")
        for line in lines
        if line.startswith(("from ", "import "))
    }
    assert imported & OURS == {"leakmeter"}
    client = after[f"{example.name}/client_app.py"]
    assert sum("canary_mod" in line for line in client) == 2  # one import, one list of mods


@each
def test_before_runs_without_us(example: Path, capsys: Any) -> None:
    grid = run_here(example / "before", **SMALL.get(example.name, {}) | {"num-server-rounds": 1})
    assert "accuracy" in capsys.readouterr().out
    assert not any("leakmeter" in key for c in grid._contexts.values() for key in c.state)


def audit(example: Path, home: Path, monkeypatch: Any, **changes: Any) -> dict[str, Any]:
    """Run the changed app in this process and return its report."""
    monkeypatch.setenv("HOME", str(home))
    run_here(example / "after", run_id=7, **changes)
    report: dict[str, Any] = json.loads((home / "audits" / "7" / "report.json").read_text())
    return report


def of(report: dict[str, Any], auditor: str, **fields: Any) -> list[dict[str, Any]]:
    """Return the findings of an auditor with these fields."""
    return [
        finding
        for finding in report["findings"]
        if finding["auditor"] == auditor and all(finding[k] == v for k, v in fields.items())
    ]


def check_canaries_were_seen(report: dict[str, Any]) -> None:
    """Without noise a canary is seen by everyone who sees all models."""
    seen = [
        f
        for f in of(report, "one-shot", kind="lower_bound", server_round=None)
        if f["threat_model"]["sees"] == "all models"
    ]
    assert max(f["value"] for f in seen) > 1
    for f in seen:
        assert f["threat_model"]["observer"] == "outsider"
        assert (f["unit"], f["adjacency"]) == ("client", "zero-out")
        assert f["delta"] == 1e-5
        assert f["confidence"] >= 0.95
    # The auditors share what they may miss, so that all their bounds hold together.
    assert report["verdict"]["confidence"] == pytest.approx(0.95)
    estimates = of(report, "one-shot", kind="estimate", server_round=None)
    assert all(low <= high for low, high in (f["null_band"] for f in estimates))


def check_replays_were_judged(report: dict[str, Any]) -> None:
    """The sum of a few clients tells two updates apart, as far as 60 trials can show it."""
    [bound] = of(report, "likelihood-ratio", kind="lower_bound", server_round=None)
    # 60 trials alone reach 2.70; less where the auditor shares its confidence with three bounds.
    most = 2.70 if bound["confidence"] == pytest.approx(0.95) else 2.38
    assert 0 < bound["value"] <= bound["cap"] == pytest.approx(most, abs=0.01)
    [first] = of(report, "likelihood-ratio", kind="lower_bound", server_round=1)
    assert first["threat_model"]["game"] == "rerun"
    assert of(report, "likelihood-ratio", quantity="guess", server_round=1)
    bits = of(report, "mutual-information", quantity="mutual information", server_round=1)
    assert [f["kind"] for f in bits] == ["approximation"]
    assert 0 < bits[0]["value"] < 50


@pytest.mark.parametrize(
    "example",
    [
        # The others train real models; two rounds of the slowest are below.
        pytest.param(path, marks=() if path.name == "own_loop" else pytest.mark.slow)
        for path in EXAMPLES
    ],
    ids=NAMES,
)
def test_after_leaves_a_report_with_sense(
    example: Path, tmp_path: Path, monkeypatch: Any, caplog: Any
) -> None:
    report = audit(example, tmp_path, monkeypatch, **SMALL.get(example.name, {}))
    assert report["failures"] == []
    # All can be done; canaries are as few as the clients, and replays train more than the run.
    texts = [o["text"] for o in report["limitations"] if o["auditor"] != "one-shot"]
    assert all(text.startswith("the audit trains clients") for text in texts)
    assert len(texts) == (1 if example.name in REPLAYED else 0)
    planned = settings(example / "after")["config"]["num-server-rounds"]
    assert 6 <= len(report["rounds"]) <= planned
    check_canaries_were_seen(report)
    if example.name == "cnn_batchnorm":  # its clients evaluate, and learn beside the canaries
        assert report["rounds"][-1]["accuracy"] > 0.6
        assert report["rounds"][0]["metrics"].keys() >= {"train_loss", "eval_loss", "accuracy"}
    elif example.name == "lora_transformer":  # its server evaluates
        first, *_, last = (one["metrics"]["perplexity"] for one in report["rounds"])
        assert last < 0.95 * first
    else:
        check_replays_were_judged(report)
    folder = tmp_path / "audits" / "7"
    assert f"leakmeter report {folder}" in caplog.text


@pytest.mark.slow
def test_a_model_of_another_library_is_replayed(tmp_path: Path, monkeypatch: Any) -> None:
    from sklearn import datasets

    example = ROOT / "examples" / "logistic_sklearn"
    few = [part[:200] for part in datasets.load_digits(return_X_y=True)]
    monkeypatch.setattr(datasets, "load_digits", lambda **_: few)
    report = audit(example, tmp_path, monkeypatch, **{"num-server-rounds": 2, "min-nodes": 8})
    assert report["failures"] == []
    assert [line["server_round"] for line in report["rounds"]] == [1, 2]
    check_replays_were_judged(report)


@contextmanager
def lora_task() -> Iterator[Any]:
    """Import the transformer's task, for as long as it is needed."""
    with loaded(ROOT / "examples" / "lora_transformer" / "before"):
        yield importlib.import_module("lora_transformer.task")


@pytest.mark.parametrize(("freeze_a", "dim"), [(False, 8192), (True, 4608)])
def test_only_adapters_travel_and_they_change_nothing_at_first(freeze_a: bool, dim: int) -> None:
    import torch

    with lora_task() as task:
        model = task.create_model({"pretraining-steps": 1, "rank": 4, "freeze-a": freeze_a})
        sent = sys.modules["lora_transformer.model"].get_adapters(model)
        base = task.Transformer(len(task.CHARACTERS))
        base.load_state_dict(task.base_weights(1))
        text = task.load_text(0)[None, :32]
        assert torch.equal(model(text), base(text))
    expected = {"lora_B"} if freeze_a else {"lora_A", "lora_B"}
    assert {name.split(".")[-1] for name in sent} == expected
    assert sum(array.numel() for array in sent.values()) == dim
    assert not any(array.any() for name, array in sent.items() if name.endswith("lora_B"))


def assert_same(weights: dict[str, Any], others: dict[str, Any]) -> None:
    assert weights.keys() == others.keys()
    assert all((weights[name] == others[name]).all() for name in others)


def test_all_processes_get_the_base_model_of_the_first_that_made_it(
    tmp_path: Path, monkeypatch: Any
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    with lora_task() as task:
        first = task.base_weights(1)
        [kept] = tmp_path.glob("lora_transformer/*")
        task.base_weights.cache_clear()
        monkeypatch.setattr(task, "pretrain", None)  # the second process need not train
        assert_same(task.base_weights(1), first)

        def slow(steps: int) -> Any:  # another process has finished while this one trained
            kept.rename(kept.with_stem(kept.stem.removesuffix("-1") + f"-{steps}"))
            return task.Transformer(len(task.CHARACTERS))

        monkeypatch.setattr(task, "pretrain", slow)
        assert_same(task.base_weights(2), first)
    assert len(list(tmp_path.glob("lora_transformer/*"))) == 1  # and nothing half written


@pytest.mark.slow
def test_fine_tuning_helps_at_the_sizes_of_the_example(capsys: Any) -> None:
    run_here(ROOT / "examples" / "lora_transformer" / "before")
    said = re.findall(r"perplexity ([\d.]+)", capsys.readouterr().out)
    assert float(said[-1]) < 0.7 * float(said[0])


def test_clients_without_randomness_are_told_so_and_the_rest_goes_on(
    tmp_path: Path, monkeypatch: Any
) -> None:
    import numpy as np

    [example] = [path for path in EXAMPLES if path.name == "own_loop"]
    # The app's own shuffling, gone: every replay is then the same.
    monkeypatch.setattr(np.random, "permutation", np.arange)
    report = audit(example, tmp_path, monkeypatch, **{"num-server-rounds": 6})
    assert [line.split(",")[0] for line in report["failures"]] == [
        "likelihood-ratio",
        "mutual-information",
    ]
    for line in report["failures"]:
        assert "round 1: ReplayError: client" in line
        assert "they have no randomness of their own" in line
    assert of(report, "one-shot", kind="lower_bound")


@pytest.mark.launch
@pytest.mark.parametrize("which", ["before", "after"])
def test_flowers_simulation_runs_them_too(which: str, tmp_path: Path) -> None:
    example = ROOT / "examples" / "logistic_sklearn"
    own = {"HOME": str(tmp_path), "RAY_ADDRESS": "local"}
    done = run(
        *(sys.executable, ROOT / "tests" / "foreign_app.py", example / which),
        cwd=tmp_path,
        env=environment(PYTHONPATH=str(example / which), **own),
        timeout=900,
    )
    printed = done.stdout + done.stderr
    assert done.returncode == 0, printed
    assert "accuracy on clients: {1:" in printed, printed
    found = list(tmp_path.glob("audits/*/report.json"))
    assert len(found) == (which == "after"), printed
    for path in found:
        report = json.loads(path.read_text())
        assert report["failures"] == []
        check_canaries_were_seen(report)
        check_replays_were_judged(report)
        assert f"leakmeter report {path.parent}" in printed
        assert all(math.isfinite(f["value"]) for f in of(report, "one-shot"))
