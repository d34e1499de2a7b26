"""Each logger's own files contain the bounds, bands, accuracy, warnings and the page."""

from __future__ import annotations

import json
import random
import struct
import sys
import tomllib
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from flwr.app import Context, RecordDict
from flwr.serverapp.strategy import FedAvg

from leakmeter import loggers
from leakmeter.auditors import Audited, Finding, OneShotCanaries, ThreatModel
from leakmeter.auditors.finding import RunWarning
from leakmeter.auditors.run_log import Callback, RoundLine, RunEnd, RunStart
from leakmeter.fl_app.cli.main import main
from leakmeter.fl_app.config.config import from_context
from leakmeter.fl_app.config.field import ConfigError
from leakmeter.fl_app.job import run
from leakmeter.loggers import _files, loggers_of, of_round, of_run
from leakmeter.strategies import Chosen
from leakmeter.strategies.chosen import FixedSize
from tests.helpers.project import ROOT

EPSILON = "one-shot.epsilon.lower_bound.outsider.all models"


@pytest.fixture(autouse=True)
def _elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Work in a folder of the test: MLflow and W&B write files where they are started."""
    monkeypatch.chdir(tmp_path)


class Told(Callback):
    """Tells a logger, and notes when that draws from a global generator.

    Flower samples clients by `random`, and many projects shuffle by numpy or torch: with a fixed
    seed, they train the same with and without a logger.
    """

    def __init__(self, inner: Callback) -> None:
        self._inner = inner
        self.drew: list[str] = []

    def on_start(self, start: RunStart) -> None:
        self._tell("start", lambda: self._inner.on_start(start))

    def on_round(self, line: RoundLine, warnings: Sequence[RunWarning]) -> None:
        self._tell("round", lambda: self._inner.on_round(line, warnings))

    def on_end(self, end: RunEnd) -> None:
        self._tell("end", lambda: self._inner.on_end(end))

    def _tell(self, when: str, say: Callable[[], None]) -> None:
        before = generators()
        say()
        self.drew += [when] if generators() != before else []


def generators() -> tuple[str, ...]:
    """Return the states of the global generators."""
    numbers = np.random.get_state()  # noqa: NPY002
    return str(random.getstate()), str(numbers), str(torch.get_rng_state().tolist())


@pytest.fixture
def audit(federation: Any, tmp_path: Path) -> Any:
    """Return a function that audits three rounds and returns its findings of the run."""

    def run(callback: Any) -> dict[str, float]:
        of, told = federation(), Told(callback)
        inner = Chosen(FedAvg(fraction_evaluate=0.0), FixedSize(6), num_clients=6, seed=1)
        audited = Audited(
            inner,
            [OneShotCanaries(seats=2, seed=3)],
            sends="models",
            out=tmp_path / "mine",
            config={"lr": 0.5, "comment": "x" * 900},
            callbacks=[told],
        )
        audited.start(
            of.grid, of.arrays(), num_rounds=3, evaluate_fn=lambda n, _: {"accuracy": n / 10}
        )
        assert told.drew == []
        found = [f for f in audited.findings() if f.server_round is None]
        return of_run(RunEnd(found, warnings=audited.warnings))

    return run


def finding(value: float, **more: Any) -> Finding:
    model = ThreatModel(observer="server", sees="round sum")
    known = {"kind": "estimate", "rule": "r", "auditor": "a/b", "quantity": "epsilon"}
    return Finding(value=value, **{**known, "threat_model": model, **more})


def test_names_say_kind_and_attacker_and_none_is_lost() -> None:
    bound = finding(1.0, kind="lower_bound", confidence=0.95)
    conditional = finding(
        2.0, kind="lower_bound", confidence=0.95, assumptions=("independent_scores",)
    )
    together = finding(
        5.0, kind="lower_bound", confidence=0.95, assumptions=("all-rounds-together",)
    )
    values = [finding(3.0, null_band=(0.1, 0.4)), finding(4.0), bound, conditional, together]
    line = RoundLine(1, 5, {"accuracy": 0.5, "loss": float("inf")}, tuple(values))
    said = of_round(line, [RunWarning.of("dropouts", 1, 4)])
    assert said == {
        "leakmeter/accuracy": 0.5,
        "leakmeter/clients": 5.0,
        "leakmeter round/a-b.epsilon.estimate.server.round sum": 3.0,
        "leakmeter round/a-b.epsilon.estimate.server.round sum.null-low": 0.1,
        "leakmeter round/a-b.epsilon.estimate.server.round sum.null-high": 0.4,
        "leakmeter round/a-b.epsilon.estimate.server.round sum.2": 4.0,
        "leakmeter round/a-b.epsilon.lower_bound.server.round sum": 1.0,
        "leakmeter round/a-b.epsilon.conditional-lower_bound.server.round sum": 2.0,
        "leakmeter round/a-b.epsilon.anytime-lower_bound.server.round sum": 5.0,
        "leakmeter warnings/dropouts": 0.25,
    }


@pytest.mark.slow
def test_tensorboard_has_the_series_the_verdict_and_the_page(audit: Any, tmp_path: Path) -> None:
    pytest.importorskip("tensorboard")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    said = audit(loggers.TensorBoard(tmp_path / "tb"))
    events = EventAccumulator(str(tmp_path / "tb" / "mine")).Reload()
    accuracy = [(e.step, round(e.value, 6)) for e in events.Scalars("leakmeter/accuracy")]
    assert accuracy == [(1, 0.1), (2, 0.2), (3, 0.3)]
    assert f"leakmeter run/{EPSILON}" in said
    for name, value in said.items():
        [event] = events.Scalars(name)[-1:]
        assert (event.step, event.value) == (3, pytest.approx(value, rel=1e-6))
    assert "text_summary" in str(events.Tags()["tensors"])
    assert "<!doctype html" in (tmp_path / "tb" / "mine" / "report.html").read_text().lower()


@pytest.mark.slow
def test_mlflow_has_the_series_the_settings_and_the_page(audit: Any, tmp_path: Path) -> None:
    mlflow = pytest.importorskip("mlflow")
    before = mlflow.get_tracking_uri()
    store = f"sqlite:///{tmp_path / 'mlflow.db'}"
    said = audit(loggers.MLflow("privacy", store))
    assert mlflow.active_run() is None
    assert mlflow.get_tracking_uri() == before
    client = mlflow.MlflowClient(store)
    home = client.get_experiment_by_name("privacy").experiment_id
    [run] = client.search_runs([home])
    assert run.info.status == "FINISHED"
    assert run.info.run_name == "mine"
    assert run.data.params["leakmeter.lr"] == "0.5"
    assert run.data.metrics["leakmeter/accuracy"] == 0.3
    assert {k: run.data.metrics[k] for k in said} == pytest.approx(said)
    history = client.get_metric_history(run.info.run_id, "leakmeter/accuracy")
    assert sorted((m.step, m.value) for m in history) == [(1, 0.1), (2, 0.2), (3, 0.3)]
    kept = {file.path for file in client.list_artifacts(run.info.run_id)}
    assert kept == {"report.html", "report.json", "verdict.txt"}


@pytest.mark.slow
def test_mlflow_leaves_a_run_of_the_users_open(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    mlflow = pytest.importorskip("mlflow")
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"sqlite:///{tmp_path / 'mlflow.db'}")
    logger = loggers.MLflow()
    logger.on_start(RunStart(1, config={"lr": 0.5}))
    with mlflow.start_run() as own:  # as in a strategy's own `start`
        logger.on_round(RoundLine(1, 5, {"accuracy": 0.3}), [])
        logger.on_end(RunEnd([]))
        active = mlflow.active_run()
        assert active is not None
        assert active.info.run_id == own.info.run_id
    data = mlflow.get_run(own.info.run_id).data
    assert data.metrics["leakmeter/accuracy"] == 0.3
    assert data.params["leakmeter.lr"] == "0.5"


@pytest.mark.slow  # starts wandb's own service
def test_wandb_offline_has_the_series_and_the_page(
    audit: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    wandb = pytest.importorskip("wandb")
    monkeypatch.setenv("WANDB_SILENT", "true")
    said = audit(loggers.WandB("privacy", mode="offline", dir=str(tmp_path)))
    assert wandb.run is None
    [folder] = (tmp_path / "wandb").glob("offline-run-*")
    history, summary = ([], {})  # type: ignore[var-annotated]
    for record in records(folder):
        history += [(_key(i), json.loads(i.value_json)) for i in record.history.item]
        summary |= {_key(i): json.loads(i.value_json) for i in record.summary.update}
    assert [value for name, value in history if name == "leakmeter/accuracy"] == [0.1, 0.2, 0.3]
    assert {k: summary[k] for k in said} == pytest.approx(said)
    assert summary["leakmeter verdict"]
    [page] = (folder / "files" / "media" / "html" / "leakmeter").glob("*.html")
    assert "<!doctype html" in page.read_text().lower()


@pytest.mark.slow  # starts wandb's own service
@pytest.mark.parametrize("steps", [True, False])
def test_wandb_leaves_a_run_of_the_users_and_its_steps_alone(
    steps: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    wandb = pytest.importorskip("wandb")
    monkeypatch.setenv("WANDB_SILENT", "true")
    logger = loggers.WandB("privacy", mode="offline")
    logger.on_start(RunStart(3, config={"lr": 0.5}))
    # As Flower's advanced example does: in the strategy's own `start`, with steps of its own.
    with wandb.init(project="mine", mode="offline", dir=str(tmp_path)) as own:
        for n in (1, 2, 3):
            if steps:
                own.log({"loss": float(n)}, step=n)
            logger.on_round(RoundLine(n, 5, {"accuracy": n / 10}), [])
            if steps:
                own.log({"mine": n / 10}, step=n)
        logger.on_end(RunEnd([]))
        assert wandb.run is own
    [folder] = (tmp_path / "wandb").glob("offline-run-*")
    rows = [{_key(i): json.loads(i.value_json) for i in r.history.item} for r in records(folder)]
    own_names = {"loss", "mine"} if steps else set()
    names = {"leakmeter/round", "leakmeter/accuracy", *own_names}
    found = [{k: row[k] for k in names} for row in rows if names <= set(row)]
    assert [row["leakmeter/round"] for row in found] == [1, 2, 3]
    assert [row["leakmeter/accuracy"] for row in found] == [0.1, 0.2, 0.3]
    assert not steps or [row["mine"] for row in found] == [0.1, 0.2, 0.3]


def _key(item: Any) -> str:
    return str(item.nested_key[0] if item.nested_key else item.key)


def records(folder: Path) -> list[Any]:
    """Return the records of an offline run: protocol buffers in LevelDB's log format."""
    import wandb
    from wandb.proto import wandb_internal_pb2

    wandb.teardown()  # its service writes the last records after the run has ended
    [path] = folder.glob("run-*.wandb")
    data, at, open_record, found = path.read_bytes(), 7, b"", []
    while at + 7 <= len(data):
        if (left := 32768 - at % 32768) < 7:  # too short for a header: padding
            at += left
            continue
        size, part = struct.unpack("<HB", data[at + 4 : at + 7])
        open_record += data[at + 7 : at + 7 + size]
        at += 7 + size
        if part in (1, 4):  # the whole record, or its last part
            record = wandb_internal_pb2.Record()
            record.ParseFromString(open_record)
            found.append(record)
            open_record = b""
    return found


@pytest.mark.parametrize(
    ("make", "module"),
    [(loggers.TensorBoard, "tensorboard"), (loggers.WandB, "wandb"), (loggers.MLflow, "mlflow")],
)
def test_a_missing_tool_is_named_with_its_installation(
    make: Any, module: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in [module, "torch.utils.tensorboard"]:
        monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(ImportError, match=rf'pip install "leakmeter\[{module}\]"'):
        make()
    with pytest.raises(ConfigError, match=rf'--log .* pip install "leakmeter\[{module}\]"'):
        loggers_of([module], Path())


@pytest.mark.parametrize(
    ("tools", "said"),
    [
        ("tensorbord", "--log must be one of tensorboard, wandb, mlflow, got 'tensorbord'"),
        ("wandb,mlflow,wandb", "--log must be names that differ, got 'wandb,mlflow,wandb'."),
        (
            "wandb",
            "--log must be tools that are installed, got 'wandb'. Install it: "
            'pip install "leakmeter[wandb]".\n',
        ),
    ],
)
def test_a_tool_that_cannot_be_is_an_error_before_anything_has_run(
    tools: str, said: str, tiny: list[str], tmp_path: Path, monkeypatch: Any, capsys: Any
) -> None:
    monkeypatch.setattr("leakmeter.fl_app.run.early.find_spec", lambda _: None)
    assert main([*tiny, "--log", tools, "--out", "run"]) == 2
    assert capsys.readouterr().err.startswith(f"error: {said}")
    assert list(tmp_path.iterdir()) == []


class Heard(Callback):
    """Notes what it is told."""

    def __init__(self, **options: Any) -> None:
        self.options, self.said = options, list[Any]()
        MADE.append(self)

    def on_start(self, start: RunStart) -> None:
        self.said.append(start.config["log"])

    def on_round(self, line: RoundLine, warnings: Sequence[RunWarning]) -> None:
        self.said.append(line.server_round)

    def on_end(self, end: RunEnd) -> None:
        self.said.append(end.folder)


MADE: list[Heard] = []


@pytest.fixture
def heard(monkeypatch: pytest.MonkeyPatch) -> list[Heard]:
    """What stands in for two tools has been told."""
    monkeypatch.setattr("leakmeter.fl_app.run.early.find_spec", lambda _: True)
    for name in ("WandB", "MLflow"):
        monkeypatch.setattr(f"leakmeter.loggers.{name}", Heard)
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    MADE.clear()
    return MADE


@pytest.mark.parametrize("log", [["--log", "wandb,mlflow"], ["--log", "wandb", "--log", "mlflow"]])
def test_several_tools_hear_of_every_round_and_keep_files_next_to_the_run(
    log: list[str], tiny: list[str], tmp_path: Path, heard: list[Heard]
) -> None:
    assert main([*tiny, *log, "--out", "runs/demo"]) == 0
    home = tmp_path / "runs"
    assert [one.options for one in heard] == [
        {"dir": str(home)},
        {"tracking_uri": f"sqlite:///{home / 'mlflow.db'}", "artifacts": home / "mlruns"},
    ]
    for one in heard:
        start, *rounds, end = one.said
        assert start.replace(";", ",").replace(" ", "") == "wandb,mlflow"
        assert (rounds, end) == ([1, 2, 3, 4], home / "demo")


def test_under_flower_the_setting_log_is_one_of_those_that_may_be_given() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    assert project["tool"]["flwr"]["app"]["config"]["log"] == ""
    context = Context(1, 1, {}, RecordDict(), {"log": "wandb,mlflow", "rounds": 4})
    assert from_context(context).loggers == ["wandb", "mlflow"]


def test_a_logger_needs_a_folder_to_keep() -> None:
    with _files(RunEnd([])) as files:  # where there is none, there is no page
        assert files == []
    with pytest.raises(ConfigError, match=r"--log must be given with a folder to keep"):
        run(rounds=1, log="wandb")


@pytest.mark.slow
@pytest.mark.parametrize("name", ["tensorboard", "wandb", "mlflow"])
def test_the_command_line_logs_to_each_tool(
    name: str, tiny: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip(name)
    monkeypatch.setenv("WANDB_MODE", "offline")
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    assert main([*tiny, "--log", name, "--out", "runs/demo"]) == 0
    kept = {"tensorboard": "tensorboard/demo", "wandb": "wandb", "mlflow": "mlruns"}[name]
    files = [one for one in (tmp_path / "runs" / kept).rglob("*") if one.is_file()]
    assert files
    assert {one.name for one in tmp_path.iterdir()} == {"runs"}
